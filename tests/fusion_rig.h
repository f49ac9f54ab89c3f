/* fusion_rig.h - what the tests of fusion record a program into, and how they look at what became of it:
 * inputs with or without gradients, results, and the bounds on kernels and on values written.
 *
 * Read first: struct traced, then expect. */
#pragma once

#include "tests/rig.h"

#include "plan_checks.h"

enum { MAX_CASE_OUT = 4, MAX_CASE_IN = 6, ROWS = 256, COLS = 512 };

typedef struct traced {
    tn_session *s;
    bool gradients; /* of this recording's inputs */
    int n_out, n_wrt;
    tn_tensor *out[MAX_CASE_OUT], *wrt[MAX_CASE_IN];
} traced;

/* Kernels, and values in memory that nobody asked for, at most. */
typedef struct bound {
    int kernels, written;
} bound;

static inline tn_session *open_mode(tn_mode mode)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .seed = 9, .log = quiet);
    assert_non_null(s);
    return s;
}

static inline float *numbers(int64_t n)
{
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 37 + 11) % 1009 + 1) / 1009.0f;
    return v;
}

/* An input of the case, with a gradient where the recording is for one. */
static inline tn_tensor *input_of(traced *t, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    float *v = numbers(n);
    tn_tensor *x = tn_from(t->s, v, TN_F32, ndim, shape);
    free(v);
    assert_non_null(x);
    if (t->gradients) tn_requires_grad(t->wrt[t->n_wrt++] = x, true);
    return x;
}
#define input(t, ...) input_of(t, TN_SHAPE(__VA_ARGS__))

static inline tn_tensor *indices(traced *t, int64_t n, int below)
{
    int32_t v[4096];
    for (int64_t i = 0; i < n; i++) v[i] = (int32_t)(i * 7 % below);
    return tn_from(t->s, v, TN_I32, TN_SHAPE(n));
}

static inline void give(traced *t, tn_tensor *out)
{
    if (!out) fail_msg("%s", tn_error_text(t->s));
    t->out[t->n_out++] = out;
}

/* ---- looking at a plan ---- */

static inline void expect(const char *name, const char *what, const seen *v, bound wanted, bound so_far)
{
    if (v->kernels <= wanted.kernels && v->written <= wanted.written) {
        if (so_far.kernels) print_message("%s, %s: what is to be reached is reached\n", name, what);
        return;
    }
    if (v->kernels <= so_far.kernels && v->written <= so_far.written) return;
    print_plan(v);
    if (so_far.kernels) wanted = so_far;
    fail_msg("%s, %s: %d kernels and %d values written, expected %d and %d", name, what, v->kernels,
             v->written, wanted.kernels, wanted.written);
}

static inline uint64_t launched(const tn_session *s)
{
    tn_stats v = {.size = sizeof v};
    tn_get_stats(s, &v);
    assert_int_equal(v.copies, 0);
    return v.kernels + v.library_calls;
}

/* ---- a step ---- */

static inline void end_step(tn_session *s, int kernels)
{
    uint64_t before = launched(s);
    assert_int_equal(tn_step_end(s), 0);
    assert_int_equal(launched(s) - before, kernels); /* what was looked at is what runs */
}

static inline tn_tensor *loss_of(const traced *t)
{
    tn_tensor *loss = NULL;
    for (int i = 0; i < t->n_out; i++) {
        int64_t shape[TN_MAX_DIMS], n = tn_numel(t->out[i]);
        for (int k = 0; k < tn_ndim(t->out[i]); k++) shape[k] = tn_dim(t->out[i], k);
        float *v = numbers(n);
        tn_tensor *c = tn_from(t->s, v, TN_F32, tn_ndim(t->out[i]), shape);
        tn_tensor *part = tn_sum(tn_mul(t->out[i], c), TN_ALL, false);
        free(v);
        loss = loss ? tn_add(loss, part) : part;
    }
    return loss;
}

static inline void take_gradients(traced *t, tn_tensor *loss)
{
    tn_tensor *grad[MAX_CASE_IN];
    if (tn_grad(loss, t->n_wrt, t->wrt, grad)) fail_msg("%s", tn_error_text(t->s));
    for (int i = 0; i < t->n_wrt; i++) assert_non_null(grad[i]);
}
