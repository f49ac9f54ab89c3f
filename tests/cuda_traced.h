/* cuda_traced.h - a program recorded on inputs, on the simulated GPU and on the CPU: its results and
 * gradients there and here, one after the other, and how far they may be apart.
 *
 * Read first: struct traced, struct tiled, then compare. */
#pragma once

#include "cuda_rig.h"

#include <math.h>

#include <tensor_nn.h>

#include "plan_checks.h"
#include "src/core/convert.h"

enum { MOST = 12 };

typedef struct traced {
    tn_session *s;
    bool gradients;
    tn_dtype dtype;
    int n_out, n_wrt, n_input;
    tn_tensor *out[MOST], *wrt[MOST];
    tn_tensor *mean, *var; /* running statistics of 8 channels */
} traced;

typedef struct tiled {
    const char *name;
    void (*record)(traced *t);
    int forward, backward; /* kernels, at most */
    tn_dtype dtype;
    bool evaluation; /* as tn_train(s, false) */
    const char *has; /* in the text of the first convolution's kernel */
    double slack;    /* 0: as the dtype's digits ask for */
} tiled;

/* Numbers about `middle` that go round by another `step` in each tensor, as the dtype holds them. */
static inline tn_tensor *filled(tn_session *s, tn_dtype dtype, double middle, int64_t step, int ndim,
                                const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    float *v = malloc((size_t)n * sizeof *v + 4);
    void *held = malloc((size_t)n * tn_dtype_size(dtype) + 8);
    assert_true(v && held);
    for (int64_t i = 0; i < n; i++) v[i] = (float)(middle + (double)((i * step + 11) % 1009) / 1009 - 0.5);
    tn_convert(held, dtype, v, TN_F32, (size_t)n);
    tn_tensor *x = tn_from(s, held, dtype, ndim, shape);
    free(v);
    free(held);
    assert_non_null(x);
    return x;
}

/* An input of the case: numbers that differ from input to input. */
static inline tn_tensor *input_of(traced *t, double middle, int ndim, const int64_t *shape)
{
    tn_tensor *x = filled(t->s, TN_F32, middle, 37 + 6 * t->n_input++, ndim, shape);
    if (t->gradients) tn_requires_grad(t->wrt[t->n_wrt++] = x, true);
    return t->dtype == TN_F32 ? x : tn_cast(x, t->dtype);
}
#define input(t, ...)        input_of(t, 0, TN_SHAPE(__VA_ARGS__))
#define input_at(t, at, ...) input_of(t, at, TN_SHAPE(__VA_ARGS__))

static inline void give(traced *t, tn_tensor *out)
{
    if (!out) fail_msg("%s", tn_error_text(t->s));
    t->out[t->n_out++] = t->dtype == TN_F32 ? out : tn_cast(out, TN_F32);
}

/* ---- values ---- */

static inline tn_session *open_on(tn_device_kind device)
{
    tn_session *s = tn_open(.device = device, .mode = TN_FUSED, .seed = 9, .threads = 1, .log = log_keep);
    if (!s) fail_msg("%s", logged);
    return s;
}

static inline void close_step(tn_session *s)
{
    tn_step_end(s);
    assert_int_equal(tn_error(s), 0);
    assert_int_equal(tn_close(s), 0);
}

static inline void read_into(tn_tensor *x, tn_dtype dtype, void *to)
{
    if (tn_read(x, dtype, to, (size_t)tn_numel(x) * tn_dtype_size(dtype)))
        fail_msg("%s; %s", tn_error_text(x->graph->session), sim.report());
}

static inline traced begin(tn_session *s, const tiled *c)
{
    float mean[8], var[8];
    tn_train(s, !c->evaluation);
    for (int i = 0; i < 8; i++) mean[i] = (float)i / 8, var[i] = 1 + (float)i / 16;
    traced t = {.s = s, .gradients = true, .dtype = c->dtype};
    t.mean = tn_from(s, mean, TN_F32, TN_SHAPE(8));
    t.var = tn_from(s, var, TN_F32, TN_SHAPE(8));
    tn_step_begin(s);
    c->record(&t);
    return t;
}

static inline tn_tensor *loss_of(const traced *t)
{
    tn_tensor *loss = NULL;
    for (int i = 0; i < t->n_out; i++) {
        int64_t shape[TN_MAX_DIMS];
        for (int k = 0; k < tn_ndim(t->out[i]); k++) shape[k] = tn_dim(t->out[i], k);
        tn_tensor *weight = filled(t->s, TN_F32, 0.1, 53, tn_ndim(t->out[i]), shape),
                  *part = tn_sum(tn_mul(t->out[i], weight), TN_ALL, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    return loss;
}

static inline void take_gradients(const traced *t, tn_tensor *loss, tn_tensor **grad)
{
    if (tn_grad(loss, t->n_wrt, t->wrt, grad)) fail_msg("%s", tn_error_text(t->s));
}

/* The plan of the gradients alone: forward has run by then. */
static inline seen look_backward(const traced *t)
{
    tn_tensor *grad[MOST];
    if (tn_flush(t->s)) fail_msg("%s; %s", tn_error_text(t->s), sim.report());
    tn_tensor *loss = loss_of(t);
    assert_int_equal(tn_flush(t->s), 0);
    take_gradients(t, loss, grad);
    return look(t->s);
}

/* Results and gradients, one after the other: returns how many, *v is the caller's. */
static inline int64_t values_of(const tiled *c, tn_device_kind device, float **v)
{
    tn_session *s = open_on(device);
    traced t = begin(s, c);
    tn_tensor *all[2 * MOST + 2];
    int n = 0;
    int64_t count = 0, at = 0;
    for (int i = 0; i < t.n_out; i++) all[n++] = t.out[i];
    take_gradients(&t, loss_of(&t), all + n);
    n += t.n_wrt;
    all[n++] = t.mean;
    all[n++] = t.var;
    for (int i = 0; i < n; i++) count += tn_numel(all[i]);
    assert_non_null(*v = malloc((size_t)count * sizeof **v));
    for (int i = 0; i < n; at += tn_numel(all[i++])) read_into(all[i], TN_F32, *v + at);
    close_step(s);
    return count;
}

/* Nothing is left on the GPU. */
static inline void compare_values(const tiled *c, int64_t n, const float *cuda, const float *cpu)
{
    assert_int_equal(counters().live, 0);
    double slack = c->slack > 0 ? c->slack : c->dtype == TN_F32 ? 1e-4 : c->dtype == TN_F16 ? 5e-3 : 4e-2;
    for (int64_t i = 0; i < n; i++) {
        double scale = fabs((double)cpu[i]) > 1 ? fabs((double)cpu[i]) : 1;
        double off = fabs((double)cuda[i] - (double)cpu[i]) / scale;
        if (!(off < slack))
            fail_msg("%s: value %lld of %lld is %g, on the CPU %g", c->name, (long long)i, (long long)n,
                     (double)cuda[i], (double)cpu[i]);
    }
}

static inline void compare(const tiled *c)
{
    float *cuda, *cpu;
    int64_t n = values_of(c, TN_CPU, &cpu);
    assert_int_equal(values_of(c, TN_CUDA, &cuda), n);
    compare_values(c, n, cuda, cpu);
    free(cuda);
    free(cpu);
}
