/* programs.h - runs a training program on both devices in both modes and says whether the four agree.
 *
 * A program is a set-up, a step that is called again and again, and how many steps it takes until every
 * segment has been seen. Each value it reads goes through `note` with what it must be, so that a program is
 * checked against arithmetic done by hand as well as against its other three runs.
 *
 * Read first: run_everywhere. */
#pragma once

#include "tests/rig.h"

enum { MAX_NOTED = 2048, MAX_HELD = 8 };

typedef struct run {
    tn_session *s;
    const char *name; /* "cpu fused", ... */
    bool fused, cpu;
    int step;                  /* from 0 */
    tn_tensor *held[MAX_HELD]; /* the program's persistent tensors */
    tn_optim *opt[2];
    double w[8]; /* what its parameters must be: moved by the program beside them */
    int n;
    double noted[MAX_NOTED];
} run;

typedef struct training {
    void (*open)(run *r);
    void (*step)(run *r); /* begins and ends its own step */
    int steps, settled;   /* from step `settled` on no plan is made and nothing compiled */
    double apart;         /* how far the four may differ, of 1 + the value; 0: not at all */
} training;

/* A value that the program has read, and what it must be. */
static inline void note(run *r, double got, double want, double tolerance)
{
    bool ok = isnan(want) ? isnan(got) : fabs(got - want) <= tolerance * (1 + fabs(want));
    if (!ok)
        fail_msg("%s, step %d, value %d: %.9g, expected %.9g; %s", r->name, r->step, r->n, got, want,
                 tn_error_text(r->s));
    assert_true(r->n < MAX_NOTED);
    r->noted[r->n++] = got;
}

static inline void note_all(run *r, tn_tensor *x, int n, const double *want, double tolerance)
{
    double v[16];
    for (int i = 0; i < 16; i++) v[i] = -777;
    tn_read(x, TN_F64, v, (size_t)n * sizeof *v);
    for (int i = 0; i < n; i++) note(r, v[i], want[i], tolerance);
}

static inline tn_tensor *vector(tn_session *s, int n, const double *v)
{
    float f[16];
    for (int i = 0; i < n; i++) f[i] = (float)v[i];
    return tn_from(s, f, TN_F32, TN_SHAPE(n));
}

static inline run open_run(int k)
{
    return (run){
        .name = Ways[k].name, .fused = is_fused(k), .cpu = Ways[k].device == TN_CPU, .s = open_way(k)};
}

static inline void run_steps(run *r, const training *t)
{
    tn_stats settled = {0};
    t->open(r);
    assert_string_equal(tn_error_text(r->s), "");
    for (r->step = 0; r->step < t->steps; r->step++) {
        if (r->step == t->settled) settled = stats_of(r->s);
        t->step(r);
        if (tn_error(r->s)) fail_msg("%s, step %d: %s", r->name, r->step, tn_error_text(r->s));
    }
    tn_stats end = stats_of(r->s);
    if (end.plans != settled.plans || end.compiled != settled.compiled)
        fail_msg("%s: %d plans and %d kernels made after step %d", r->name, (int)(end.plans - settled.plans),
                 (int)(end.compiled - settled.compiled), t->settled);
    if (r->cpu) assert_true(end.plan_hits > settled.plan_hits);
    assert_true(end.bytes_now <= settled.bytes_now); /* nothing grows from step to step */
}

static inline void run_everywhere(const training *t)
{
    static run r[N_WAYS];
    for (int way = 0; way < N_WAYS; way++) {
        r[way] = open_run(way);
        run_steps(&r[way], t);
        assert_int_equal(tn_close(r[way].s), 0);
        assert_int_equal(r[way].n, r[0].n);
        for (int i = 0; i < r[0].n; i++) {
            double a = r[0].noted[i], b = r[way].noted[i];
            if (isnan(a) ? !isnan(b) : fabs(a - b) > t->apart * (1 + fabs(a)))
                fail_msg("value %d: %.9g in %s, %.9g in %s", i, a, r[0].name, b, r[way].name);
        }
    }
}

/* A test that is one training program. */
#define TRAINING(name, ...)                                                                                  \
    TEST(name) { run_everywhere(&(training){__VA_ARGS__}); }

#define ON_EACH_RUN(r)                                                                                       \
    for (int way_ = 0; way_ < N_WAYS; way_++)                                                                \
        for (run r = open_run(way_); r.s; r.s = (close_clean(r.s), NULL))

/* ---- least squares ---- */

/* x w against y = x w*, x = {{1, -1}, {1, 1}}. With e = w - w* the loss is 2 (e0^2 + e1^2), the gradient 4 e,
 * and everything is exact in floats. */
enum { W, X, Y }; /* places in held */
static const double Target[2] = {3, -5};

static inline void open_squares(run *r)
{
    const double x[4] = {1, -1, 1, 1}, y[2] = {8, -2};
    r->held[W] = tn_param(r->s, "w", tn_zeros(r->s, TN_F32, TN_SHAPE(2)));
    float f[4];
    for (int i = 0; i < 4; i++) f[i] = (float)x[i];
    r->held[X] = tn_from(r->s, f, TN_F32, TN_SHAPE(2, 2));
    r->held[Y] = vector(r->s, 2, y);
    r->w[0] = r->w[1] = 0;
    r->opt[0] = tn_sgd(r->s, tn_all_params(r->s), .lr = 0.125);
}

static inline tn_tensor *loss_of(const run *r)
{
    return tn_sum(tn_square(tn_sub(tn_matmul(r->held[X], r->held[W]), r->held[Y])), TN_ALL, false);
}

static inline double error(const run *r, int i) { return r->w[i] - Target[i]; }

static inline double loss_wanted(const run *r)
{
    return 2 * (error(r, 0) * error(r, 0) + error(r, 1) * error(r, 1));
}

static inline void moved(run *r, double rate)
{
    for (int i = 0; i < 2; i++) r->w[i] -= rate * 4 * error(r, i);
}

static inline void plain_step(run *r)
{
    tn_step_begin(r->s);
    tn_tensor *loss = loss_of(r);
    tn_backward(loss);
    tn_optim_step(r->opt[0]);
    note(r, tn_item(loss), loss_wanted(r), 0);
    tn_step_end(r->s);
    moved(r, 0.125);
    note_all(r, r->held[W], 2, r->w, 0);
}

/* ---- four points in three classes ---- */

static const double Points[4][2] = {{1, 0}, {0.5, 1}, {-1, 0.25}, {0, -2}};
static const int32_t Labels[4] = {0, 1, 2, 2};

static inline void open_classes(run *r)
{
    float x[8];
    for (int i = 0; i < 8; i++) x[i] = (float)Points[i / 2][i % 2];
    for (int i = 0; i < 6; i++) r->w[i] = 0.25 * (i - 2);
    r->held[W] = tn_param(r->s, "w", tn_reshape(vector(r->s, 6, r->w), TN_SHAPE(3, 2)));
    r->held[X] = tn_from(r->s, x, TN_F32, TN_SHAPE(4, 2));
    r->held[Y] = tn_from(r->s, Labels, TN_I32, TN_SHAPE(4));
    r->opt[0] = tn_sgd(r->s, tn_all_params(r->s), .lr = 0.5);
}
