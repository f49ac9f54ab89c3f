/* attention_cpu.c - attention as one kernel beside the products and the softmax it stands for, forward and
 * forward with backward, and the memory each takes at most.
 *
 *   attention_cpu [T ...]     B12 H4 d32 at 64, else 8 heads (2 from 4096 on) of 64
 *
 * The composite is what eager mode makes of softmax(q k^T scale + mask) v written out. Medians of rounds; one
 * line a case, for tests/bench/attention_torch.py to stand beside.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensor.h>

enum { ROUNDS = 9 };

typedef struct job {
    int64_t batch, heads, t, d;
    bool causal;
} job;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tn_tensor *attend(const job *j, tn_tensor **x, tn_tensor *mask, bool kernel)
{
    if (kernel) return tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = j->causal);
    tn_tensor *s = tn_mul_scalar(tn_matmul(x[0], tn_transpose(x[1], 2, 3)), 1 / sqrt((double)j->d));
    return tn_matmul(tn_softmax(j->causal ? tn_add(s, mask) : s, 3), x[2]);
}

/* One step; its milliseconds. */
static double step(tn_session *s, const job *j, tn_tensor **x, tn_tensor *mask, bool kernel, bool back)
{
    tn_tensor *grad[3];
    tn_step_begin(s);
    double begin = now_ms();
    if (!back) tn_no_grad_begin(s);
    tn_tensor *o = attend(j, x, mask, kernel);
    if (back) tn_grad(tn_sum(o, TN_ALL, false), 3, x, grad);
    if (!back) tn_no_grad_end(s);
    tn_flush(s);
    double ms = now_ms() - begin;
    tn_step_end(s);
    return ms;
}

static void measure(const job *j)
{
    double ms[2][2], peak[2];
    for (int kernel = 0; kernel < 2; kernel++) {
        const int64_t shape[] = {j->batch, j->heads, j->t, j->d}, square[] = {j->t, j->t};
        tn_session *s = tn_open(.device = TN_CPU, .mode = kernel ? TN_FUSED : TN_EAGER, .seed = 1);
        tn_tensor *x[3], *mask = NULL;
        if (!s) exit(1);
        for (int i = 0; i < 3; i++) tn_requires_grad(x[i] = tn_randn(s, TN_F32, 4, shape), true);
        if (j->causal && !kernel) {
            float *m = malloc((size_t)(j->t * j->t) * sizeof *m);
            if (!m) exit(1);
            for (int64_t i = 0; i < j->t * j->t; i++) m[i] = i % j->t > i / j->t ? -INFINITY : 0;
            mask = tn_from(s, m, TN_F32, 2, square);
            free(m);
        }
        for (int back = 0; back < 2; back++) {
            double t[ROUNDS];
            for (int i = -1; i < ROUNDS; i++) {
                double one = step(s, j, x, mask, kernel, back);
                if (i >= 0) t[i] = one;
            }
            qsort(t, ROUNDS, sizeof *t, by_size);
            ms[kernel][back] = t[ROUNDS / 2];
        }
        tn_stats stats = {.size = sizeof stats};
        tn_get_stats(s, &stats);
        peak[kernel] = (double)stats.bytes_peak * 1e-6;
        if (tn_error(s)) {
            fprintf(stderr, "%s\n", tn_error_text(s));
            exit(1);
        }
        tn_close(s);
    }
    printf("B%lld H%lld T%-5lld d%lld %-6s  kernel %9.3f %9.3f ms, %8.1f MB   composite %9.3f %9.3f ms, "
           "%8.1f MB\n",
           (long long)j->batch, (long long)j->heads, (long long)j->t, (long long)j->d,
           j->causal ? "causal" : "full", ms[1][0], ms[1][1], peak[1], ms[0][0], ms[0][1], peak[0]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *all[] = {"64", "256", "1024"};
    int n = argc > 1 ? argc - 1 : 3;
    for (int i = 0; i < n; i++) {
        int64_t t = strtol(argc > 1 ? argv[i + 1] : all[i], NULL, 10);
        job j = {t <= 64     ? 12
                 : t <= 1024 ? 2
                             : 1,
                 t <= 64    ? 4
                 : t < 4096 ? 8
                            : 2,
                 t, t <= 64 ? 32 : 64, false};
        for (int causal = 0; causal < 2; causal++) {
            j.causal = causal;
            measure(&j);
        }
    }
    return 0;
}
