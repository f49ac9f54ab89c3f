/* golden.h - reading tests/golden/ and comparing with it; the devices such tests run on.
 *
 * A golden file holds float64 results of PyTorch (tests/golden/make_golden.py). An element is close where its
 * error is at most `tolerance` times its own size plus the root mean square of its tensor plus 0.01;
 * infinities and NaN must be where they are. Read golden_close first. */
#pragma once

#include "nn/optim.h"
#include "src/core/convert.h"
#include "tests/check.h"
#include "tests/needs.h"
#include "tests/rig.h"

/* ---- what to run on ---- */

typedef struct place {
    const char *name;
    tn_device_kind device;
    tn_mode mode;
} place;

static const place PLACES[] = {
    {"ref", TN_REF, TN_EAGER}, {"cpu eager", TN_CPU, TN_EAGER}, {"cpu fused", TN_CPU, TN_FUSED}};
enum { PLACE_COUNT = sizeof(PLACES) / sizeof(*PLACES) };

static inline tn_session *open_place(const place *p, void (*log)(int, const char *, void *), void *user)
{
    tn_session *s = tn_open(.device = p->device == TN_CPU ? subject_device() : p->device, .mode = p->mode,
                            .seed = 1, .threads = 2, .log = log ? log : quiet, .log_user = user);
    if (!s) fail_msg("no session on %s", p->name);
    return s;
}

static inline void expect_fine(tn_session *s, const char *where)
{
    if (tn_error(s)) fail_msg("%s: %s", where, tn_error_text(s));
}

/* ---- files ---- */

typedef struct golden {
    nn_safetensors file;
} golden;

static inline void golden_open(golden *g, const char *name)
{
    needs_cjson();
    char path[256];
    nn_why why = {0};
    snprintf(path, sizeof(path), "tests/golden/%s.safetensors", name);
    if (tn_nn_safetensors_read(path, &g->file, &why)) fail_msg("%s", why.text);
}

static inline void golden_close_file(golden *g) { tn_nn_safetensors_free(&g->file); }

static inline const nn_saved *golden_find(const golden *g, const char *format, ...)
{
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    const nn_saved *e = tn_nn_safetensors_find(&g->file, name);
    if (!e) fail_msg("the golden file has no '%s'", name);
    return e;
}

static inline int64_t golden_count(const nn_saved *e)
{
    int64_t n = 1;
    for (int i = 0; i < e->ndim; i++) n *= e->shape[i];
    return n;
}

/* Its elements as doubles; free them. */
static inline double *golden_values(const nn_saved *e)
{
    int64_t n = golden_count(e);
    double *v = calloc((size_t)n + 1, sizeof(*v));
    assert_non_null(v);
    tn_convert(v, TN_F64, e->data, e->dtype, (size_t)n);
    return v;
}

/* As a tensor of a dtype of the caller's choice. */
static inline tn_tensor *golden_tensor(tn_session *s, const nn_saved *e, tn_dtype dtype)
{
    size_t n = (size_t)golden_count(e);
    void *v = calloc(n + 1, 8);
    assert_non_null(v);
    tn_convert(v, dtype, e->data, e->dtype, n);
    tn_tensor *t = tn_from(s, v, dtype, e->ndim, e->shape);
    free(v);
    return t;
}

/* ---- comparing ---- */

/* The largest error, in units of `tolerance`: fine up to 1. */
static inline double golden_error(const double *got, const double *want, int64_t n, double tolerance)
{
    double square = 0, worst = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i])) square += want[i] * want[i], finite++;
    double rms = finite ? sqrt(square / (double)finite) : 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(want[i]) || !isfinite(got[i])) {
            bool same = isnan(want[i]) ? isnan(got[i]) : want[i] == got[i];
            if (!same) return INFINITY;
            continue;
        }
        double e = fabs(got[i] - want[i]);
        if (e > 0) e /= tolerance * (fabs(want[i]) + rms + 0.01);
        if (e > worst) worst = e;
    }
    return worst;
}

static inline void golden_close(const char *where, const char *what, tn_tensor *got, const nn_saved *want,
                                double tolerance)
{
    int64_t n = golden_count(want);
    if (!got) fail_msg("%s: %s is NULL", where, what);
    if (tn_numel(got) != n)
        fail_msg("%s: %s has %lld elements, not %lld", where, what, (long long)tn_numel(got), (long long)n);
    double *w = golden_values(want), *v = calloc((size_t)n + 1, sizeof(*v));
    assert_non_null(v);
    if (tn_read(got, TN_F64, v, (size_t)n * sizeof(*v)))
        fail_msg("%s: %s: %s", where, what, tn_error_text(tn_session_of(got)));
    double e = golden_error(v, w, n, tolerance);
    if (!(e <= 1)) {
        int64_t i = 0;
        while (i + 1 < n && golden_error(&v[i], &w[i], 1, 2 * tolerance) <= 1) i++;
        fail_msg("%s: %s is off by %.3g tolerances of %g; element %lld is %.17g, PyTorch's %.17g", where,
                 what, e, tolerance, (long long)i, v[i], w[i]);
    }
    free(v);
    free(w);
}
