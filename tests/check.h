/* check.h - runs one program on the reference device and on the devices under test, and compares.
 *
 * A program is a function that records tensors into a session. The reference runs it exactly, and a few times
 * more with rounding noise (src/device/ref/ref.h); the spread of those answers says, element by element, how
 * far a correct device may be off. There are no tolerances to choose. An element whose spread is as large as
 * a wrong answer would be (rounding decides a comparison) says nothing and is counted as undecided.
 *
 *   program   what to run        result   what came out of one run
 *   bench     the sessions       verdict  what the comparison of two results found
 *
 * Read first: check_program. */
#pragma once

#include "src/core/convert.h"
#include "src/device/ref/ref.h"
#include "src/runtime/session.h"
#include "tests/subject.h"
#include "tests/test.h"

#ifndef MAX_OUT
#define MAX_OUT 64 /* of one program; a test may ask for more before it includes this */
#endif
enum { NOISY_RUNS = 8 };

/* The first run rounds, the others move by chance. */
static inline uint64_t noise_seed(int run) { return run ? 1000 + (uint64_t)run : 0; }

/* ---- results ---- */

typedef struct value {
    int ndim;
    int64_t shape[TN_MAX_DIMS], n;
    tn_dtype dtype;
    double *v;
} value;

typedef struct result {
    int status;
    char text[512];
    int n;
    value out[MAX_OUT];
} result;

static inline void result_free(result *r)
{
    for (int i = 0; i < r->n; i++) free(r->out[i].v);
    r->n = 0;
}

/* Records into s and puts what is to be compared into out. */
typedef void program_fn(tn_session *s, void *user, int *n, tn_tensor **out);

/* Called with the step's graph before it ends: coverage is counted there. May be NULL. */
typedef void visit_fn(tn_session *s, void *user);

static inline void read_value(tn_tensor *t, value *v)
{
    v->ndim = tn_ndim(t);
    v->n = tn_numel(t);
    v->dtype = tn_dtype_of(t);
    for (int i = 0; i < v->ndim; i++) v->shape[i] = tn_dim(t, i);
    v->v = calloc(v->n > 0 ? (size_t)v->n : 1, sizeof *v->v);
    assert_non_null(v->v);
    if (v->n > 0) tn_read(t, TN_F64, v->v, (size_t)v->n * sizeof *v->v);
}

static inline result run_program(tn_session *s, program_fn *program, void *user, visit_fn *visit)
{
    result r = {0};
    tn_tensor *out[MAX_OUT] = {NULL};
    int n = 0;
    tn_clear_error(s);
    tn_set_rng(s, 77, 0);
    tn_step_begin(s);
    program(s, user, &n, out);
    for (int i = 0; i < n && out[i]; i++) read_value(out[i], &r.out[r.n++]);
    if (visit) visit(s, user);
    tn_step_end(s);
    r.status = tn_error(s);
    snprintf(r.text, sizeof r.text, "%s", tn_error_text(s));
    if (r.status == TN_OK && r.n < n) {
        r.status = TN_E_STATE;
        snprintf(r.text, sizeof r.text, "output %d is NULL without an error", r.n);
    }
    return r;
}

/* A tensor of host doubles, rounded to dtype before any session sees them. */
static inline tn_tensor *tensor_of(tn_session *s, const double *v, tn_dtype dtype, int ndim,
                                   const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    size_t size = tn_dtype_size(dtype);
    char *host = malloc(n > 0 ? (size_t)n * size : 1);
    assert_non_null(host);
    if (n > 0) tn_convert(host, dtype, v, TN_F64, (size_t)n);
    tn_tensor *t = tn_from(s, host, dtype, ndim, shape);
    free(host);
    return t;
}

/* A scalar that depends on each element of t differently: what gradients are taken of. */
static inline tn_tensor *weighted(tn_session *s, tn_tensor *t, uint64_t seed)
{
    int64_t n = tn_numel(t), shape[TN_MAX_DIMS];
    if (n < 0) return NULL;
    double *w = malloc((size_t)n * sizeof *w + 1);
    assert_non_null(w);
    rng r = {seed};
    for (int64_t i = 0; i < n; i++) w[i] = rng_real(&r, 0.3, 1.5) * (rng_below(&r, 2) ? 1 : -1);
    for (int i = 0; i < tn_ndim(t); i++) shape[i] = tn_dim(t, i);
    tn_tensor *sum = tn_sum(tn_mul(t, tensor_of(s, w, tn_dtype_of(t), tn_ndim(t), shape)), TN_ALL, false);
    free(w);
    return sum;
}

/* ---- comparison ---- */

typedef struct verdict {
    bool ok;
    int64_t elements, undecided;
    double worst; /* largest error over its bound */
    int output;   /* the first that is wrong */
    char text[640];
} verdict;

static inline double dtype_ulp(tn_dtype d)
{
    return d == TN_F32 ? 0x1p-23 : d == TN_F16 ? 0x1p-10 : d == TN_BF16 ? 0x1p-7 : d == TN_F64 ? 0x1p-49 : 0;
}

/* A few steps between numbers too small to be normal. */
static inline double dtype_tiny(tn_dtype d)
{
    return d == TN_F16    ? 0x1p-22
           : d == TN_F32  ? 0x1p-147
           : d == TN_BF16 ? 0x1p-131
           : d == TN_F64  ? 0x1p-1070
                          : 0;
}

/* How far from `want` a correct answer may be; < 0: anything goes. */
static inline double bound_of(tn_dtype d, double want, const result *noisy, int out, int64_t i)
{
    double spread = 0;
    for (int k = 0; k < NOISY_RUNS; k++) {
        double v = noisy[k].out[out].v[i];
        if (isnan(v) != isnan(want) || isinf(v) != isinf(want)) return -1;
        if (v != want && !isnan(v)) spread = fmax(spread, fabs(v - want));
    }
    if (!tn_dtype_is_float(d)) return spread > 0 ? -1 : 0;
    /* On a GPU convolutions of f32 are put together from three products (tn_precision), each with an error.
     */
    const double share = d == TN_F32 && subject_device() == TN_CUDA ? 9 : 6;
    double bound = share * spread + 4 * dtype_ulp(d) * fabs(want) + dtype_tiny(d);
    /* As wide as the value itself: it would pass whatever it is. */
    return bound > 0.1 * fabs(want) && bound > 1e6 * dtype_ulp(d) ? -1 : bound;
}

static inline void place_text(char *buf, size_t size, const value *v, int64_t i)
{
    int64_t at[TN_MAX_DIMS];
    for (int d = v->ndim - 1; d >= 0; d--) {
        at[d] = i % v->shape[d];
        i /= v->shape[d];
    }
    tn_shape_text(buf, size, v->ndim, at);
}

static inline bool same_meta(const value *a, const value *b)
{
    if (a->ndim != b->ndim || a->dtype != b->dtype) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

static inline void compare_output(verdict *v, int out, const result *want, const result *noisy,
                                  const result *got)
{
    const value *w = &want->out[out], *g = &got->out[out];
    char place[128];
    if (!same_meta(w, g)) {
        char a[128], b[128];
        v->output = out;
        snprintf(v->text, sizeof v->text, "output %d is %s %s, expected %s %s", out, tn_dtype_name(g->dtype),
                 tn_shape_text(a, sizeof a, g->ndim, g->shape), tn_dtype_name(w->dtype),
                 tn_shape_text(b, sizeof b, w->ndim, w->shape));
        v->ok = false;
        return;
    }
    for (int64_t i = 0; i < w->n; i++) {
        v->elements++;
        double bound = bound_of(w->dtype, w->v[i], noisy, out, i);
        if (bound < 0) {
            v->undecided++;
            continue;
        }
        if (w->v[i] == g->v[i] || (isnan(w->v[i]) && isnan(g->v[i]))) continue;
        /* A result beyond the dtype's range is infinite there and not here. */
        if (w->dtype != TN_F64 && isinf(g->v[i]) && fabs(w->v[i]) > (w->dtype == TN_F16 ? 65500 : 3.4e38) &&
            (g->v[i] > 0) == (w->v[i] > 0))
            continue;
        double error = fabs(g->v[i] - w->v[i]);
        double share = bound > 0 ? error / bound : INFINITY;
        if (share > v->worst) v->worst = share;
        if (share <= 1) continue;
        if (v->ok) {
            v->output = out;
            place_text(place, sizeof place, w, i);
            snprintf(v->text, sizeof v->text,
                     "output %d at %s: %.9g, expected %.9g, off by %.3g with %.3g allowed", out, place,
                     g->v[i], w->v[i], error, bound);
        }
        v->ok = false;
    }
}

static inline verdict compare(const result *want, const result *noisy, const result *got)
{
    verdict v = {.ok = true, .output = -1};
    if (want->status != got->status) {
        snprintf(v.text, sizeof v.text, "status %d (%.200s), expected %d (%.200s)", got->status, got->text,
                 want->status, want->text);
        v.ok = false;
        return v;
    }
    if (want->n != got->n) {
        snprintf(v.text, sizeof v.text, "%d outputs, expected %d", got->n, want->n);
        v.ok = false;
    }
    for (int i = 0; v.ok && i < want->n; i++) compare_output(&v, i, want, noisy, got);
    return v;
}

/* ---- sessions ---- */

enum { MAX_SUBJECTS = 3 };

typedef struct bench {
    tn_session *ref;
    int n;
    tn_session *subject[MAX_SUBJECTS];
    const char *name[MAX_SUBJECTS];
    unsigned skip;     /* bit i: leave subject i out of the next check */
    int failed_output; /* of the last check that failed */
    int64_t elements, undecided;
    double worst;
} bench;

static inline void bench_add(bench *b, const char *name, tn_session *s)
{
    assert_non_null(s);
    b->name[b->n] = name;
    b->subject[b->n++] = s;
}

static inline void bench_open(bench *b)
{
    const bool cuda = subject_device() == TN_CUDA;
    *b = (bench){0};
    b->ref = tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 77, .log = quiet);
    assert_non_null(b->ref);
    bench_add(b, cuda ? "cuda eager" : "cpu eager",
              tn_open(.device = subject_device(), .mode = TN_EAGER, .seed = 77, .log = quiet));
    bench_add(b, cuda ? "cuda fused" : "cpu fused",
              tn_open(.device = subject_device(), .mode = TN_FUSED, .seed = 77, .log = quiet));
}

/* The exact answer and the noisy ones. */
static inline result reference(tn_session *ref, program_fn *program, void *user, visit_fn *visit,
                               result *noisy)
{
    tn_ref_set_noise(ref->device, 0, 0);
    result want = run_program(ref, program, user, visit);
    for (int k = 0; k < NOISY_RUNS; k++) {
        tn_ref_set_noise(ref->device, 2, noise_seed(k));
        noisy[k] = run_program(ref, program, user, NULL);
    }
    tn_ref_set_noise(ref->device, 0, 0);
    return want;
}

/* ---- compiling ahead ---- */

/* A session whose device runs nothing: it notes which kernels a program needs. Compiled many to a unit they
 * are in the kernel cache when the sessions under test ask for them one by one; most of a test's time would
 * go into starting the compiler otherwise. */
enum { AHEAD_BATCH = 96, AHEAD_SEEN = 1 << 14 };
typedef struct ahead {
    tn_session *s[2]; /* fused, eager */
    int (*compile)(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err);
    int n;
    tn_source src[AHEAD_BATCH];
    uint64_t seen[AHEAD_SEEN]; /* hashes of all texts so far, in their order; a text missed is only slower */
    int n_seen;
} ahead;
static ahead Ahead;

static inline void ahead_compile(void)
{
    tn_kernel *out[AHEAD_BATCH] = {NULL};
    tn_errbuf err;
    /* What cannot be compiled is for the session under test to report. */
    if (Ahead.n) Ahead.compile(Ahead.s[0]->device, Ahead.src, Ahead.n, out, &err);
    for (int i = 0; i < Ahead.n; i++) {
        free((void *)(uintptr_t)Ahead.src[i].entry);
        free((void *)(uintptr_t)Ahead.src[i].text);
    }
    Ahead.n = 0;
}

static inline int ahead_note(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    static char some_kernel;
    (void)d, (void)err;
    for (int i = 0; i < n; i++) {
        uint64_t hash = hash_text(src[i].text);
        int k = 0;
        while (k < Ahead.n_seen && Ahead.seen[k] != hash) k++;
        out[i] = (tn_kernel *)(void *)&some_kernel;
        if (k < Ahead.n_seen || k == AHEAD_SEEN) continue;
        Ahead.seen[Ahead.n_seen++] = hash;
        Ahead.src[Ahead.n++] = (tn_source){strdup(src[i].entry), strdup(src[i].text)};
        if (Ahead.n == AHEAD_BATCH) ahead_compile();
    }
    return TN_OK;
}

static inline int ahead_launch(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid,
                               tn_errbuf *err)
{
    (void)d, (void)k, (void)args, (void)grid, (void)err;
    return TN_OK;
}

static inline int ahead_gemm(tn_device *d, const tn_gemm *g, tn_errbuf *err)
{
    (void)d, (void)g, (void)err;
    return TN_OK;
}

static inline int ahead_conv2d(tn_device *d, const tn_conv2d_desc *c, tn_errbuf *err)
{
    (void)d, (void)c, (void)err;
    return TN_OK;
}

static inline int ahead_download(tn_device *d, void *host, const void *src, size_t bytes)
{
    (void)d, (void)src;
    memset(host, 0, bytes);
    return TN_OK;
}

static inline void ahead_open(tn_device_kind device)
{
    for (int i = 0; i < 2; i++) {
        Ahead.s[i] = tn_open(.device = device, .mode = i ? TN_EAGER : TN_FUSED, .seed = 77, .log = quiet);
        assert_non_null(Ahead.s[i]);
        tn_device *d = Ahead.s[i]->device;
        Ahead.compile = d->compile;
        d->compile = ahead_note;
        d->ready = NULL; /* would look into a kernel that a product takes along */
        d->launch = ahead_launch;
        d->gemm = ahead_gemm;
        d->conv2d = ahead_conv2d;
        d->download = ahead_download;
        d->kernel_info = NULL; /* of kernels that there are not */
        d->record_begin = NULL;
    }
}

static inline void ahead_close(void)
{
    for (int i = 0; i < 2 && Ahead.s[i]; i++) {
        tn_clear_error(Ahead.s[i]);
        assert_int_equal(tn_close(Ahead.s[i]), 0);
        Ahead.s[i] = NULL;
    }
    Ahead.n_seen = 0;
}

static inline void bench_close(bench *b)
{
    tn_clear_error(b->ref);
    assert_int_equal(tn_close(b->ref), 0);
    for (int i = 0; i < b->n; i++) {
        tn_clear_error(b->subject[i]);
        assert_int_equal(tn_close(b->subject[i]), 0);
    }
    ahead_compile();
    ahead_close();
}

/* Notes what the program needs on the devices under test; compiles when there is enough for a batch. */
static inline void note_ahead(const bench *b, program_fn *program, void *user)
{
    for (int i = 0; i < b->n; i++) {
        const tn_session *s = b->subject[i];
        if (b->skip >> i & 1 || s->device->is_reference) continue;
        if (!Ahead.s[0]) ahead_open(subject_device());
        result r = run_program(Ahead.s[s->mode == TN_EAGER], program, user, NULL);
        result_free(&r);
    }
}

/* Runs the program everywhere; false and text[640] at the first subject that disagrees. */
static inline bool check_program(bench *b, program_fn *program, void *user, visit_fn *visit, char *text)
{
    result noisy[NOISY_RUNS];
    result want = reference(b->ref, program, user, visit, noisy);
    bool ok = want.status == TN_OK;
    if (!ok) snprintf(text, 640, "ref: %.500s", want.text);
    for (int k = 0; ok && k < NOISY_RUNS; k++) {
        ok = noisy[k].status == TN_OK && noisy[k].n == want.n;
        if (!ok) snprintf(text, 640, "ref with noise: %.500s", noisy[k].text);
    }
    if (ok) note_ahead(b, program, user);
    ahead_compile();
    b->failed_output = -1;
    for (int i = 0; ok && i < b->n; i++) {
        if (b->skip >> i & 1) continue;
        result got = run_program(b->subject[i], program, user, NULL);
        verdict v = compare(&want, noisy, &got);
        result_free(&got);
        b->elements += v.elements;
        b->undecided += v.undecided;
        if (v.worst > b->worst) b->worst = v.worst;
        ok = v.ok;
        if (ok) continue;
        b->failed_output = v.output;
        snprintf(text, 640, "%s: %.600s", b->name[i], v.text);
    }
    result_free(&want);
    for (int k = 0; k < NOISY_RUNS; k++) result_free(&noisy[k]);
    return ok;
}

/* The values of tn_sort. */
static inline tn_tensor *sorted_values(tn_tensor *x, int axis, bool descending)
{
    tn_tensor *values = NULL, *indices = NULL;
    tn_sort(x, axis, descending, &values, &indices);
    return values;
}
