/* floor.c - what each launch of a step takes, beside what it would take at the machine's own speed.
 *
 * The floor of a launch is the longer of two times: its bytes, each operand once, at the speed of a copy from
 * and to memory; and its operations at the speed of a product of square matrices of as many operations. Both
 * speeds are measured here and now. A launch that is faster - a convolution by Winograd's tiles multiplies
 * less than its definition says, and what the caches hold is read sooner - is its own floor.
 *
 * Start with zoo_floor. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/clock.h"
#include "src/report/view.h"
#include "zoo.h"

enum { SIDES = 6, LEAST_SIDE = 32, PROFILED = 5 };

struct speed {
    double flops[SIDES], gflops[SIDES]; /* of products of matrices of LEAST_SIDE, 2 LEAST_SIDE, .. */
};

/* The best of many, of a product alone. */
static void measure_products(struct net *m, struct speed *v)
{
    tn_session *s = tn_open(.mode = TN_EAGER, .threads = tn_threads(m->s));
    for (int i = 0; i < SIDES; i++) {
        const int64_t side = LEAST_SIDE << i;
        tn_tensor *a = tn_ones(s, TN_F32, TN_SHAPE(side, side));
        double best = INFINITY, until = now_ms() + 60;
        for (int k = 0; k < 8 || now_ms() < until; k++) {
            const double start = now_ms();
            tn_tensor *c = tn_matmul(a, a);
            best = fmin(best, now_ms() - start);
            tn_free(c);
        }
        v->flops[i] = 2.0 * (double)(side * side * side);
        v->gflops[i] = v->flops[i] / best * 1e-6;
        if (i) v->gflops[i] = fmax(v->gflops[i], v->gflops[i - 1]);
        tn_free(a);
    }
    tn_close(s);
}

/* Milliseconds of so many operations: between the sizes measured in proportion to the logarithm. */
static double compute_ms(const struct speed *v, double flops)
{
    int i = 0;
    while (i + 2 < SIDES && flops > v->flops[i + 1]) i++;
    const double t = log(flops / v->flops[i]) / log(v->flops[i + 1] / v->flops[i]);
    return flops / (v->gflops[i] + fmin(fmax(t, 0), 1) * (v->gflops[i + 1] - v->gflops[i])) * 1e-6;
}

struct row {
    const tn_launch *of;
    double ms, floor;
};

static int most_lost_first(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    const double lost = (y->ms - y->floor) - (x->ms - x->floor);
    return (lost > 0) - (lost < 0);
}

static void print_rows(const struct row *row, int n, int most, FILE *out)
{
    fprintf(out, "%8s %8s %6s %9s %8s %8s  launch\n", "ms", "floor", "times", "MB", "GB/s", "GFLOP/s");
    for (int i = 0; i < n && i < most; i++) {
        const tn_step *of = row[i].of->of;
        fprintf(out, "%8.3f %8.3f %6.2f %9.3f %8.1f %8.1f  %-8s %.24s: %.60s\n", row[i].ms, row[i].floor,
                row[i].ms / row[i].floor, (double)of->bytes * 1e-6, (double)of->bytes * 1e-6 / row[i].ms,
                of->flops * 1e-6 / row[i].ms, tn_way_name(row[i].of->way), of->name, row[i].of->ops);
    }
}

/* The times of the launches of one step, into ms[]: the smaller of those there and these. */
static int take_times(const tn_view *v, double *ms)
{
    for (int i = 0; i < v->n_launch; i++) ms[i] = fmin(ms[i], v->launch[i].ms);
    return v->n_launch;
}

double zoo_floor(struct net *m, int (*step)(struct net *), int most, FILE *out)
{
    struct speed speed;
    tn_view v;
    double sum[2][2] = {{0}}; /* of kernels and of library calls: times, floors */
    measure_products(m, &speed);
    tn_profile(m->s, true);
    if (step(m) || step(m) || tn_view_make(m->s, &v)) return -1;
    const int n = v.n_launch;
    double *ms = calloc((size_t)n + 1, sizeof *ms);
    struct row *row = calloc((size_t)n + 1, sizeof *row);
    bool ok = ms && row;
    for (int i = 0; i < n && ok; i++) ms[i] = INFINITY;
    for (int k = 0; k < PROFILED && ok; k++) {
        take_times(&v, ms);
        tn_view_free(&v);
        ok = !step(m) && !tn_view_make(m->s, &v) && v.n_launch == n;
    }
    if (ok) tn_view_copies(m->s, &v);
    for (int i = 0; i < n && ok; i++) {
        const tn_launch *l = &v.launch[i];
        const double compute = l->of->flops > 0 ? compute_ms(&speed, l->of->flops) : 0;
        row[i] = (struct row){
            l, ms[i], fmin(ms[i], fmax(compute, v.gbs > 0 ? (double)l->of->bytes * 1e-6 / v.gbs : 0))};
        const bool library = l->of->kind != TN_STEP_KERNEL;
        sum[library][0] += ms[i];
        sum[library][1] += row[i].floor;
    }
    if (ok && out) {
        qsort(row, (size_t)n, sizeof *row, most_lost_first);
        fprintf(out, "%d launches; kernels take %.2f ms, their floors %.2f; library calls %.2f, %.2f\n", n,
                sum[0][0], sum[0][1], sum[1][0], sum[1][1]);
        fprintf(out, "products of %d cubed, %d cubed .. run at", LEAST_SIDE, 2 * LEAST_SIDE);
        for (int i = 0; i < SIDES; i++) fprintf(out, " %.0f", speed.gflops[i]);
        fprintf(out, " GFLOP/s, a copy at %.1f GB/s\n", v.gbs);
        print_rows(row, n, most, out);
    }
    tn_view_free(&v);
    tn_profile(m->s, false);
    free(ms);
    free(row);
    return ok ? sum[0][1] + sum[1][1] : -1;
}
