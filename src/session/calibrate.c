/* calibrate.c - measuring a target profile, with kernels such as every program runs.
 *
 *   bands         y = x with plain and with streaming stores, and the sum of x, at each footprint, again and
 *                 again on the same tensors, less a launch
 *   launch        what two small copies, one twice as large, leave when their size is taken away
 *   library call  a product of nothing much
 *   arithmetic    an exponential beside a copy of the same size
 *   gemm, conv    f32, several sizes
 *
 * Each is the best of several runs, timed around the launch alone. Disturbances only take time, and may last:
 * all is measured in three passes, of which the fastest counts, or the one in the middle where a number is
 * the difference of two times. Where a larger footprint has been found faster than a smaller one, or a
 * smaller product faster than a larger one, both are that fast. Start with tn_calibrate. */
#include <math.h>
#include <string.h>

#include "../runtime/profile.h"

typedef struct bench {
    tn_session *s, *past; /* the second one's kernels write past the caches */
    bool failed;
    double launch, library; /* seconds */
} bench;

/* Returns the seconds that the launches of the last step took together. */
static double launches(const tn_session *s)
{
    const tn_step_log *l = tn_step_log_told(s);
    double t = 0;
    for (int r = 0; l && r < l->n; r++)
        for (int i = 0; l->run[r].kernel && i < l->run[r].plan->n_step; i++)
            t += l->run[r].kernel[2 * i + 1] - l->run[r].kernel[2 * i];
    return t;
}

typedef struct job job;
struct job {
    tn_tensor *(*run)(const job *j); /* records the work; what it returns is computed */
    tn_tensor *x, *y, *z;
};

static tn_tensor *copy(const job *j)
{
    tn_assign(j->y, j->x);
    return j->y;
}

static tn_tensor *sum(const job *j) { return tn_sum(j->x, TN_ALL, false); }

static tn_tensor *exponential(const job *j)
{
    tn_assign(j->y, tn_exp(j->x));
    return j->y;
}

static tn_tensor *product(const job *j) { return tn_matmul(j->x, j->y); }

static tn_tensor *convolution(const job *j)
{
    const tn_conv2d_options o = {.size = sizeof o, .pad = 1};
    return tn_conv2d(j->x, j->y, NULL, &o);
}

/* The best time of a job in seconds: of at least `least` runs, and as many as take some milliseconds. */
static double best_of(bench *b, tn_session *s, const job *j, int least)
{
    const double enough = 60e-3;
    double best = INFINITY, start = tn_clock();
    for (int i = 0; !b->failed && (i < least + 1 || (i < 400 && tn_clock() - start < enough)); i++) {
        tn_step_begin(s);
        tn_no_grad_begin(s);
        bool made = j->run(j) != NULL;
        tn_no_grad_end(s);
        b->failed = tn_step_end(s) || !made;
        double t = launches(s);
        if (i && t < best) best = t; /* the first one compiles */
        if (!i) start = tn_clock();
    }
    return best;
}

static tn_tensor *floats(tn_session *s, int64_t n) { return tn_keep(tn_zeros(s, TN_F32, 1, &n)); }

/* Returns a time less the launch in it, but never less than .3 of it, however short it is. */
static double less_launch(const bench *b, double t) { return fmax(t - b->launch, .3 * t); }

/* ---- bands ---- */

static void measure_band(bench *b, tn_target_profile *p, double footprint)
{
    tn_profile_band *at = &p->band[p->n_band];
    int64_t n = (int64_t)(footprint / 8);
    int least = footprint > 2e8 ? 3 : footprint > 5e6 ? 8 : 100;
    *at = (tn_profile_band){.bytes = footprint};
    for (int past = 0; past < 2; past++) {
        tn_session *s = past ? b->past : b->s;
        job j = {.run = copy, .x = floats(s, n), .y = floats(s, n)};
        double gbs = 8e-9 * (double)n / less_launch(b, best_of(b, s, &j, least));
        *(past ? &at->stream : &at->copy) = gbs;
        tn_free(j.x);
        tn_free(j.y);
    }
    job j = {.run = sum, .x = floats(b->s, 2 * n)};
    at->read = 8e-9 * (double)n / less_launch(b, best_of(b, b->s, &j, least));
    tn_free(j.x);
    if (at->read < at->copy / 2) at->read = at->copy / 2;
    p->n_band++;
}

static void measure_bands(bench *b, tn_target_profile *p, double largest)
{
    for (double footprint = .25e6; footprint <= largest && !b->failed; footprint *= 4)
        measure_band(b, p, footprint);
}

/* cache: bytes of the last level; 0: unknown. */
static void settle_bands(tn_target_profile *p, int64_t cache)
{
    for (int i = p->n_band - 2; i >= 0; i--) {
        tn_profile_band *at = &p->band[i];
        at->read = fmax(at->read, at[1].read);
        at->copy = fmax(at->copy, at[1].copy);
        at->stream = fmax(at->stream, at[1].stream);
    }
    const tn_profile_band *last = &p->band[p->n_band - 1];
    p->stream_bytes = last->stream > 1.05 * last->copy ? (double)(cache > 0 ? cache : 32 << 20) : 0;
}

/* ---- the rest ---- */

static double time_of(bench *b, tn_tensor *(*run)(const job *), int64_t n)
{
    job j = {.run = run, .x = floats(b->s, n), .y = floats(b->s, n)};
    double t = best_of(b, b->s, &j, 399);
    tn_free(j.x);
    tn_free(j.y);
    return t;
}

static void measure_costs(bench *b, tn_target_profile *p)
{
    enum { FEW = 1 << 15, MANY = 1 << 17 };
    const int64_t shape[] = {8, 8};
    double few = time_of(b, copy, FEW), twice = time_of(b, copy, 2 * FEW);
    b->launch = fmax(2 * few - twice, .1 * few);
    p->launch_us = b->launch * 1e6;
    double memory = time_of(b, copy, MANY) - b->launch, all = time_of(b, exponential, MANY) - b->launch;
    double work = MANY * (tn_op_get(TN_OP_exp)->work + 2); /* with a load and a store */
    p->instruction_ps = fmax(all - FU_OVERLAP * memory, .5 * all) * 1e12 / work;
    tn_tensor *x = tn_keep(tn_zeros(b->s, TN_F32, 2, shape));
    job j = {.run = product, .x = x, .y = x};
    b->library = best_of(b, b->s, &j, 200);
    p->library_us = b->library * 1e6;
    tn_free(x);
}

/* The rate of a library call that takes t, the call itself apart. */
static tn_profile_rate rate_of(const bench *b, double flops, double t)
{
    return (tn_profile_rate){flops, flops * 1e-9 / fmax(t - b->library, .5 * t)};
}

static void no_slower(tn_profile_rate *r, int n)
{
    for (int i = 1; i < n; i++)
        if (r[i].gflops < r[i - 1].gflops) r[i].gflops = r[i - 1].gflops;
}

static void measure_products(bench *b, tn_target_profile *p)
{
    static const int64_t side[] = {16, 64, 192, 768};
    for (int i = 0; i < 4 && !b->failed; i++) {
        const int64_t shape[] = {side[i], side[i]};
        job j = {.run = product,
                 .x = tn_keep(tn_ones(b->s, TN_F32, 2, shape)),
                 .y = tn_keep(tn_ones(b->s, TN_F32, 2, shape))};
        double flops = 2 * pow((double)side[i], 3);
        p->gemm[p->n_gemm++] = rate_of(b, flops, best_of(b, b->s, &j, 5));
        tn_free(j.x);
        tn_free(j.y);
    }
}

static void measure_convolutions(bench *b, tn_target_profile *p)
{
    static const int64_t count[] = {1, 8, 64};
    for (int i = 0; i < 3 && !b->failed; i++) {
        const int64_t x[] = {count[i], 14, 14, 32}, w[] = {64, 3, 3, 32};
        job j = {.run = convolution,
                 .x = tn_keep(tn_ones(b->s, TN_F32, 4, x)),
                 .y = tn_keep(tn_ones(b->s, TN_F32, 4, w))};
        double flops = 2.0 * 14 * 14 * 64 * 9 * 32 * (double)count[i];
        p->conv[p->n_conv++] = rate_of(b, flops, best_of(b, b->s, &j, 5));
        tn_free(j.x);
        tn_free(j.y);
    }
}

static tn_session *open_like(const tn_session *s, int64_t last_bytes)
{
    tn_session *m = tn_open_beside(s);
    if (m) m->target.last_bytes = last_bytes;
    return m;
}

/* ---- passes ---- */

enum { PASSES = 3 };

static double middle_of(double a, double b, double c) { return fmax(fmin(a, b), fmin(fmax(a, b), c)); }

static void fastest_rates(tn_profile_rate *a, const tn_profile_rate *b, int n)
{
    for (int i = 0; i < n; i++) a[i].gflops = fmax(a[i].gflops, b[i].gflops);
}

/* All passes in the first of them. */
static void join_passes(tn_target_profile *p)
{
    p->launch_us = middle_of(p[0].launch_us, p[1].launch_us, p[2].launch_us);
    p->instruction_ps = middle_of(p[0].instruction_ps, p[1].instruction_ps, p[2].instruction_ps);
    for (const tn_target_profile *q = p + 1; q < p + PASSES; q++) {
        p->library_us = fmin(p->library_us, q->library_us);
        for (int i = 0; i < p->n_band; i++) {
            p->band[i].read = fmax(p->band[i].read, q->band[i].read);
            p->band[i].copy = fmax(p->band[i].copy, q->band[i].copy);
            p->band[i].stream = fmax(p->band[i].stream, q->band[i].stream);
        }
        fastest_rates(p->gemm, q->gemm, p->n_gemm);
        fastest_rates(p->conv, q->conv, p->n_conv);
    }
}

int tn_calibrate(tn_session *s)
{
    const double usual = 256e6, large = 1024e6;
    return tn_calibrate_to(s, s && (double)s->device->target.cache_bytes > usual / 3 ? large : usual);
}

int tn_calibrate_to(tn_session *s, double largest)
{
    char path[4096], text[4096];
    if (!s) return TN_E_NULL;
    if (s->device->is_reference || !tn_profile_path(s, path, sizeof path))
        return tn_fail(s, TN_E_UNSUPPORTED, "calibrate", "%s",
                       s->device->is_reference ? "the device ref has no speed worth knowing"
                                               : "there is no folder that would keep the profile");
    bench b = {.s = open_like(s, INT64_MAX), .past = open_like(s, 1)};
    tn_target_profile p[PASSES], before;
    memset(p, 0, sizeof p);
    b.failed = !b.s || !b.past;
    for (int i = 0; i < PASSES; i++) {
        if (!b.failed) measure_costs(&b, &p[i]);
        if (!b.failed) measure_bands(&b, &p[i], largest);
        if (!b.failed) measure_products(&b, &p[i]);
        if (!b.failed) measure_convolutions(&b, &p[i]);
    }
    if (!b.failed) {
        join_passes(p);
        settle_bands(p, s->device->target.cache_bytes);
    }
    p->threads = s->device->threads;
    snprintf(p->name, sizeof p->name, "calibrated");
    snprintf(p->machine, sizeof p->machine, "%s", s->device->machine);
    no_slower(p->gemm, p->n_gemm);
    no_slower(p->conv, p->n_conv);
    if (b.s && tn_error(b.s)) tn_fail(s, tn_error(b.s), "calibrate", "%s", tn_error_text(b.s));
    if (b.past && tn_error(b.past)) tn_fail(s, tn_error(b.past), "calibrate", "%s", tn_error_text(b.past));
    tn_close(b.s);
    tn_close(b.past);
    if (b.failed)
        return tn_error(s) ? tn_error(s) : tn_fail(s, TN_E_NOMEM, "calibrate", "no session to measure with");
    tn_profile_round(p, tn_profile_load(s, path, false, &before) ? &before : NULL);
    tn_growing t = {0};
    tn_profile_print(p, text, sizeof text);
    tn_put(&t, "%s", text);
    int status =
        t.failed ? tn_fail(s, TN_E_NOMEM, "calibrate", "no memory") : tn_write_file(s, "calibrate", path, &t);
    tn_growing_free(&t);
    return status;
}
