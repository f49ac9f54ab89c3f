/* attention_cpu.c - attention as one kernel beside the products and the softmax it stands for, forward and
 * forward with backward, and the memory each takes at most.
 *
 *   attention_cpu [T ...]     B12 H4 d32 at 64, else 8 heads (2 from 4096 on) of 64; T 64 to 8192
 *   attention_cpu memory      only how memory grows with T
 *
 * The composite is what eager mode makes of softmax(q k^T scale + mask) v written out. Medians of rounds; one
 * line a case, for tests/bench/attention_torch.py to stand beside. Then, for 8 heads of 64, what a session
 * has at most: q, k, v, the result and what lies between.
 *
 * Read first: measure.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensor.h>

enum { ROUNDS = 9, FEW = 3 }; /* few from 4096 on */

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

static double peak_of(const tn_session *s)
{
    tn_stats stats = {.size = sizeof stats};
    tn_get_stats(s, &stats);
    return (double)stats.bytes_peak * 1e-6;
}

static void finish(tn_session *s)
{
    if (tn_error(s)) {
        fprintf(stderr, "%s\n", tn_error_text(s));
        exit(1);
    }
    tn_close(s);
}

static void make(tn_session *s, const job *j, tn_tensor **x)
{
    const int64_t shape[] = {j->batch, j->heads, j->t, j->d};
    for (int i = 0; i < 3; i++) tn_requires_grad(x[i] = tn_randn(s, TN_F32, 4, shape), true);
}

static void measure(const job *j)
{
    double ms[2][2], peak[2];
    const int rounds = j->t < 4096 ? ROUNDS : FEW;
    for (int kernel = 0; kernel < 2; kernel++) {
        const int64_t square[] = {j->t, j->t};
        tn_session *s = tn_open(.device = TN_CPU, .mode = kernel ? TN_FUSED : TN_EAGER, .seed = 1);
        tn_tensor *x[3], *mask = NULL;
        if (!s) exit(1);
        make(s, j, x);
        if (j->causal && !kernel) {
            float *m = malloc((size_t)(j->t * j->t) * sizeof *m);
            if (!m) exit(1);
            for (int64_t i = 0; i < j->t * j->t; i++) m[i] = i % j->t > i / j->t ? -INFINITY : 0;
            mask = tn_from(s, m, TN_F32, 2, square);
            free(m);
        }
        for (int back = 0; back < 2; back++) {
            double t[ROUNDS];
            for (int i = -1; i < rounds; i++) {
                double one = step(s, j, x, mask, kernel, back);
                if (i >= 0) t[i] = one;
            }
            qsort(t, (size_t)rounds, sizeof *t, by_size);
            ms[kernel][back] = t[rounds / 2];
        }
        peak[kernel] = peak_of(s);
        finish(s);
    }
    printf("B%lld H%lld T%-5lld d%lld %-6s  kernel %9.3f %9.3f ms, %8.1f MB   composite %9.3f %9.3f ms, "
           "%8.1f MB\n",
           (long long)j->batch, (long long)j->heads, (long long)j->t, (long long)j->d,
           j->causal ? "causal" : "full", ms[1][0], ms[1][1], peak[1], ms[0][0], ms[0][1], peak[0]);
    fflush(stdout);
}

/* One line a length: peak memory forward and with backward, and the scores that are nowhere. */
static void memory(void)
{
    double before[2] = {0};
    for (int64_t t = 1024; t <= 8192; t *= 2) {
        const job j = {1, 8, t, 64, false};
        double peak[2];
        for (int back = 0; back < 2; back++) {
            tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 1);
            tn_tensor *x[3];
            if (!s) exit(1);
            make(s, &j, x);
            step(s, &j, x, NULL, true, back);
            peak[back] = peak_of(s);
            finish(s);
        }
        printf("N %-5lld peak %7.2f MB forward, %7.2f MB with backward", (long long)t, peak[0], peak[1]);
        if (before[0] > 0)
            printf(" (%.2f x, %.2f x those of N / 2)", peak[0] / before[0], peak[1] / before[1]);
        printf("; scores would be %.0f MB\n", (double)(j.batch * j.heads * t * t) * 4e-6);
        fflush(stdout);
        memcpy(before, peak, sizeof before);
    }
}

int main(int argc, char **argv)
{
    const char *all[] = {"64", "256", "1024", "2048", "4096", "8192"};
    const bool only = argc > 1 && !strcmp(argv[1], "memory");
    int n = only ? 0 : argc > 1 ? argc - 1 : (int)(sizeof all / sizeof *all);
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
    memory();
    return 0;
}
