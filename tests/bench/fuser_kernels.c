/* fuser_kernels.c - bandwidth of generated kernels beside a plain copy by the same emitter, interleaved.
 *
 *   build/bench/fuser_kernels [ROWS COLS [ROUNDS [CASE]]]
 *
 * For each case: median time, bytes it must move (each input and output once) per second, and that as a share
 * of the copy's in the same rounds. Start with the table of cases. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/runtime/session.h"

static tn_tensor *op1(tn_op op, tn_tensor *x)
{
    return tn_mk1(op, x);
}
static tn_tensor *op2(tn_op op, tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(op, x, y);
}
static tn_tensor *back(tn_tensor *x, const tn_tensor *like)
{
    return tn_mk_expand(x, like->ndim, like->shape);
}
static tn_tensor *num(tn_tensor *x, double v)
{
    return tn_mk_num(x->graph, v);
}
static tn_tensor *sum(tn_tensor *x, uint32_t axes)
{
    return tn_mk_reduce(TN_OP_reduce_sum, x, axes);
}

typedef struct leaves {
    tn_tensor *x, *y, *w, *label, *p, *m, *v;
} leaves;

static int copy(const leaves *l, tn_tensor **r)
{
    r[0] = tn_mk_contiguous(l->x);
    return 1;
}

static int chain(const leaves *l, tn_tensor **r)
{
    tn_tensor *x = l->x;
    r[0] = op2(TN_OP_sub,
               op1(TN_OP_sigmoid, op1(TN_OP_relu, op2(TN_OP_mul, op2(TN_OP_add, x, l->y), num(x, 2)))),
               num(x, 1));
    return 1;
}

static int gelu(const leaves *l, tn_tensor **r)
{
    tn_tensor *x = l->x, *e = op1(TN_OP_erf, op2(TN_OP_mul, x, num(x, 0.70710678118654752)));
    r[0] = op2(TN_OP_mul, op2(TN_OP_mul, x, num(x, 0.5)), op2(TN_OP_add, e, num(x, 1)));
    return 1;
}

static int softmax(const leaves *l, tn_tensor **r)
{
    tn_tensor *x = l->x, *m = tn_mk_reduce(TN_OP_reduce_max, x, 2),
              *e = op1(TN_OP_exp, op2(TN_OP_sub, x, back(m, x)));
    r[0] = op2(TN_OP_div, e, back(sum(e, 2), x));
    return 1;
}

static int layer_norm(const leaves *l, tn_tensor **r)
{
    tn_tensor *x = l->x;
    double n = (double)x->shape[1];
    tn_tensor *m = op2(TN_OP_mul, sum(x, 2), num(x, 1 / n)), *d = op2(TN_OP_sub, x, back(m, x));
    tn_tensor *v = op2(TN_OP_mul, sum(op1(TN_OP_square, d), 2), num(x, 1 / n));
    tn_tensor *s = op1(TN_OP_rsqrt, op2(TN_OP_add, v, num(x, 1e-5)));
    r[0] = op2(TN_OP_add, op2(TN_OP_mul, op2(TN_OP_mul, d, back(s, x)), l->w), l->w);
    return 1;
}

static int column_sum(const leaves *l, tn_tensor **r)
{
    r[0] = sum(l->x, 1);
    return 1;
}

static int column_stats(const leaves *l, tn_tensor **r)
{
    r[0] = sum(l->x, 1);
    r[1] = sum(op1(TN_OP_square, l->x), 1);
    return 2;
}

static int full_sum(const leaves *l, tn_tensor **r)
{
    r[0] = sum(op1(TN_OP_square, op2(TN_OP_sub, l->x, l->y)), 3);
    return 1;
}

static int row_max(const leaves *l, tn_tensor **r)
{
    r[0] = tn_mk_reduce(TN_OP_reduce_max, l->x, 2);
    return 1;
}

static int argmax(const leaves *l, tn_tensor **r)
{
    r[0] = tn_mk_reduce(TN_OP_reduce_argmax, l->x, 2);
    return 1;
}

static int bias_relu(const leaves *l, tn_tensor **r)
{
    r[0] = op1(TN_OP_relu, op2(TN_OP_add, l->x, l->w));
    return 1;
}

static int transpose(const leaves *l, tn_tensor **r)
{
    r[0] = tn_mk_contiguous(tn_mk_swap(l->x, 0, 1));
    return 1;
}

static int dropout(const leaves *l, tn_tensor **r)
{
    tn_tensor *p = tn_mk_typed(l->x->graph, TN_OP_scalar, (tn_number){0.1, 0, false}, TN_F32);
    tn_tensor *keep = tn_mk_random(l->x->graph, TN_OP_bernoulli, TN_BOOL, 2, l->x->shape, p);
    r[0] = op2(TN_OP_mul, op2(TN_OP_mul, l->x, tn_mk_cast(keep, TN_F32)), num(l->x, 1.1));
    return 1;
}

static int relu_backward(const leaves *l, tn_tensor **r)
{
    r[0] = tn_mk3(TN_OP_where, op2(TN_OP_gt, l->y, num(l->x, 0)), l->x, num(l->x, 0));
    r[1] = sum(r[0], 1);
    return 2;
}

/* What one element of x costs: bytes read and written of tensors of x's size. */
static const struct {
    const char *name;
    int (*build)(const leaves *, tn_tensor **);
    double tensors;
} cases[] = {
    {"copy", copy, 2},
    {"chain", chain, 3},
    {"bias_relu", bias_relu, 2},
    {"gelu", gelu, 2},
    {"softmax", softmax, 2},
    {"layer_norm", layer_norm, 2},
    {"row_max", row_max, 1},
    {"argmax", argmax, 1},
    {"full_sum", full_sum, 2},
    {"column_sum", column_sum, 1},
    {"column_stats", column_stats, 1},
    {"relu_backward", relu_backward, 3},
    {"dropout", dropout, 2},
    {"transpose", transpose, 2},
};
enum { CASES = sizeof cases / sizeof *cases, MAX_ROUNDS = 101 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int64_t rows = argc > 2 ? atoll(argv[1]) : 4096, cols = argc > 2 ? atoll(argv[2]) : 1024;
    int rounds = argc > 3 ? atoi(argv[3]) : 15;
    if (rounds < 1 || rounds > MAX_ROUNDS) rounds = 15;
    tn_session *s = tn_open_with(
        &(tn_options){.size = sizeof(tn_options), .device = TN_CPU, .mode = TN_FUSED, .seed = 1});
    float *data = malloc((size_t)(rows * cols) * sizeof *data);
    if (!s || !data) return 1;
    for (int64_t i = 0; i < rows * cols; i++) data[i] = (float)(i * 7919 % 1000) / 300.0f - 1.6f;
    tn_tensor *x = tn_from_at(s, data, TN_F32, 2, (int64_t[]){rows, cols}, __FILE__, __LINE__);
    tn_tensor *y = tn_from_at(s, data, TN_F32, 2, (int64_t[]){rows, cols}, __FILE__, __LINE__);
    tn_tensor *w = tn_from_at(s, data, TN_F32, 1, (int64_t[]){cols}, __FILE__, __LINE__);
    free(data);
    static double time[CASES][MAX_ROUNDS];
    for (int round = -2; round < rounds; round++)
        for (int k = 0; k < CASES; k++) {
            if (argc > 4 && k && strcmp(argv[4], cases[k].name)) continue;
            tn_tensor *root[4];
            tn_step_begin(s);
            leaves l = {.x = tn_use(tn_resolve(x)), .y = tn_use(tn_resolve(y)), .w = tn_use(tn_resolve(w))};
            int n = cases[k].build(&l, root);
            double t = now();
            if (tn_run(s, n, root)) {
                fprintf(stderr, "%s: %s\n", cases[k].name, tn_error_text(s));
                return 1;
            }
            if (round >= 0) time[k][round] = now() - t;
            tn_step_end(s);
        }
    double copy_rate = 0;
    printf("%lldx%lld f32, %d threads, median of %d interleaved rounds\n", (long long)rows, (long long)cols,
           tn_threads(s), rounds);
    for (int k = 0; k < CASES; k++) {
        if (argc > 4 && k && strcmp(argv[4], cases[k].name)) continue;
        qsort(time[k], (size_t)rounds, sizeof(double), ascending);
        double t = time[k][rounds / 2], rate = cases[k].tensors * 4 * (double)(rows * cols) / t;
        if (!k) copy_rate = rate;
        printf("%-14s %9.3f ms  %7.2f GB/s  %5.2f of copy\n", cases[k].name, t * 1e3, rate * 1e-9,
               rate / copy_rate);
    }
    return tn_close(s) != 0;
}
