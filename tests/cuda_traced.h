/* cuda_traced.h - a program recorded on inputs, on the simulated GPU and on the CPU: its results and
 * gradients there and here, one after the other, and how far they may be apart.
 *
 * Read first: struct traced, struct tiled, then compare.
 */
#ifndef TESTS_CUDA_TRACED_H
#define TESTS_CUDA_TRACED_H

#include "cuda_rig.h"

#include <math.h>

#include <tensor_nn.h>

#include "plan_checks.h"

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

/* An input of the case: numbers that differ from input to input. */
static inline tn_tensor *input_of(traced *t, double middle, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    float *v = malloc((size_t)n * sizeof *v + 4);
    assert_non_null(v);
    int64_t step = 37 + 6 * t->n_input++;
    for (int64_t i = 0; i < n; i++) v[i] = (float)(middle + (double)((i * step + 11) % 1009) / 1009 - 0.5);
    tn_tensor *x = tn_from(t->s, v, TN_F32, ndim, shape);
    free(v);
    assert_non_null(x);
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

static inline tn_session *open_on(tn_device_kind device, const tiled *c)
{
    tn_session *s = tn_open(.device = device, .mode = TN_FUSED, .seed = 9, .threads = 1, .log = log_keep);
    if (!s) fail_msg("%s", logged);
    tn_train(s, !c->evaluation);
    return s;
}

static inline traced begin(tn_session *s, const tiled *c)
{
    float mean[8], var[8];
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
        int64_t shape[TN_MAX_DIMS], n = tn_numel(t->out[i]);
        for (int k = 0; k < tn_ndim(t->out[i]); k++) shape[k] = tn_dim(t->out[i], k);
        float *v = malloc((size_t)n * sizeof *v);
        for (int64_t k = 0; k < n; k++) v[k] = (float)((k * 53 + 7) % 997) / 997 - 0.4f;
        tn_tensor *part =
            tn_sum(tn_mul(t->out[i], tn_from(t->s, v, TN_F32, tn_ndim(t->out[i]), shape)), TN_ALL, false);
        free(v);
        loss = loss ? tn_add(loss, part) : part;
    }
    return loss;
}

/* Results and gradients, one after the other: returns how many, *v is the caller's. */
static inline int64_t values_of(const tiled *c, tn_device_kind device, float **v)
{
    tn_session *s = open_on(device, c);
    traced t = begin(s, c);
    tn_tensor *all[2 * MOST + 2];
    int n = 0;
    int64_t count = 0, at = 0;
    for (int i = 0; i < t.n_out; i++) all[n++] = t.out[i];
    if (tn_grad(loss_of(&t), t.n_wrt, t.wrt, all + n)) fail_msg("%s", tn_error_text(s));
    n += t.n_wrt;
    all[n++] = t.mean;
    all[n++] = t.var;
    for (int i = 0; i < n; i++) count += tn_numel(all[i]);
    assert_non_null(*v = malloc((size_t)count * sizeof **v));
    for (int i = 0; i < n; i++) {
        int64_t k = tn_numel(all[i]);
        if (tn_read(all[i], TN_F32, *v + at, (size_t)k * sizeof **v))
            fail_msg("%s: %s; %s", c->name, tn_error_text(s), sim.report());
        at += k;
    }
    tn_step_end(s);
    assert_int_equal(tn_close(s), 0);
    return count;
}

static inline void compare_values(const tiled *c, int64_t n, const float *cuda, const float *cpu)
{
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

#endif
