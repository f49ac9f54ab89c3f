/* dnnl.c - primitives of oneDNN, single-threaded. The only file that includes it; 2.x and 3.x.
 *
 * Primitives live in a small table replaced least recently used. What a running primitive needs for itself (a
 * stream, a scratchpad) lives in a `slot`, claimed by whatever thread runs one. Debian's library is built
 * with OpenMP: a thread's own limit is set to 1 around every call into it and put back, so that no team is
 * ever started; so is its signal mask, for the reason in signals.h. Read first: dnnl.h, then enter,
 * find_entry and execute. */
#include "dnnl.h"

#ifndef TN_HAVE_DNNL

tn_dnnl *tn_dnnl_open(bool *no_memory)
{
    *no_memory = false;
    return NULL;
}

void tn_dnnl_close(tn_dnnl *d)
{
    (void)d;
}

bool tn_dnnl_lacked(const tn_dnnl *d)
{
    (void)d;
    return false;
}

#else

#include "../../core/alloc.h"
#include "../../core/settings.h"
#include "signals.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>
#include <string.h>

enum { ENTRIES = 192 }; /* primitives kept */

/* ---- the two major versions ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t md;
typedef const_dnnl_memory_desc_t md_ref;
typedef const_dnnl_primitive_desc_t pd_ref;
#define REF(m) (m)

static bool md_strided(md *m, int nd, const dnnl_dims_t dims, dnnl_data_type_t t, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(m, nd, dims, t, strides) == dnnl_success;
}

static bool md_any(md *m, int nd, const dnnl_dims_t dims, dnnl_data_type_t t)
{
    return dnnl_memory_desc_create_with_tag(m, nd, dims, t, dnnl_format_tag_any) == dnnl_success;
}

static void md_clear(md *m)
{
    if (*m) dnnl_memory_desc_destroy(*m);
}
#else
typedef dnnl_memory_desc_t md;
typedef const dnnl_memory_desc_t *md_ref;
typedef const_dnnl_primitive_desc_t pd_ref;
#define REF(m) (&(m))

static bool md_strided(md *m, int nd, const dnnl_dims_t dims, dnnl_data_type_t t, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(m, nd, dims, t, strides) == dnnl_success;
}

static bool md_any(md *m, int nd, const dnnl_dims_t dims, dnnl_data_type_t t)
{
    return dnnl_memory_desc_init_by_tag(m, nd, dims, t, dnnl_format_tag_any) == dnnl_success;
}

static void md_clear(md *m)
{
    (void)m;
}
#endif

/* These three return NULL where oneDNN has no such primitive. bias may be NULL. */
static dnnl_primitive_desc_t matmul_pd(dnnl_engine_t e, md *a, md *b, md *bias, md *c,
                                       dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_matmul_primitive_desc_create(&pd, e, *a, *b, bias ? *bias : NULL, *c, attr);
#else
    dnnl_matmul_desc_t op;
    if (dnnl_matmul_desc_init(&op, a, b, bias, c) == dnnl_success)
        dnnl_primitive_desc_create(&pd, &op, attr, e, NULL);
#endif
    return pd;
}

typedef struct conv_shape {
    dnnl_dims_t stride, dilation, pad_l, pad_r;
} conv_shape;

/* The backward passes need the forward one's descriptor as a hint. */
static dnnl_primitive_desc_t conv_pd(dnnl_engine_t e, tn_conv_pass pass, md *x, md *w, md *bias, md *y,
                                     const conv_shape *s, dnnl_primitive_desc_t hint,
                                     dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    const dnnl_alg_kind_t alg = dnnl_convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
    if (pass == TN_CONV_FORWARD)
        dnnl_convolution_forward_primitive_desc_create(&pd, e, dnnl_forward_training, alg, *x, *w,
                                                       bias ? *bias : NULL, *y, s->stride, s->dilation,
                                                       s->pad_l, s->pad_r, attr);
    else if (pass == TN_CONV_DATA_GRAD)
        dnnl_convolution_backward_data_primitive_desc_create(&pd, e, alg, *x, *w, *y, s->stride, s->dilation,
                                                             s->pad_l, s->pad_r, hint, attr);
    else
        dnnl_convolution_backward_weights_primitive_desc_create(&pd, e, alg, *x, *w, NULL, *y, s->stride,
                                                                s->dilation, s->pad_l, s->pad_r, hint, attr);
#else
    dnnl_convolution_desc_t op;
    dnnl_status_t st;
    if (pass == TN_CONV_FORWARD)
        st = dnnl_dilated_convolution_forward_desc_init(&op, dnnl_forward_training, alg, x, w, bias, y,
                                                        s->stride, s->dilation, s->pad_l, s->pad_r);
    else if (pass == TN_CONV_DATA_GRAD)
        st = dnnl_dilated_convolution_backward_data_desc_init(&op, alg, x, w, y, s->stride, s->dilation,
                                                              s->pad_l, s->pad_r);
    else
        st = dnnl_dilated_convolution_backward_weights_desc_init(&op, alg, x, w, NULL, y, s->stride,
                                                                 s->dilation, s->pad_l, s->pad_r);
    if (st == dnnl_success) dnnl_primitive_desc_create(&pd, &op, attr, e, hint);
#endif
    return pd;
}

static dnnl_primitive_desc_t reorder_pd(dnnl_engine_t e, md_ref from, md_ref to, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_reorder_primitive_desc_create(&pd, from, e, to, e, attr);
    return pd;
}

/* The reference loops of oneDNN are hundreds of times slower than ours. */
static bool is_ref(dnnl_primitive_desc_t pd)
{
    const char *name = "";
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return !strncmp(name, "ref", 3) || !strncmp(name, "simple", 6);
}

/* ---- state ---- */

/* What a primitive is looked up by: every number that went into making it. */
typedef struct key {
    int64_t kind, v[31];
} key;
enum { KIND_FREE, KIND_MATMUL, KIND_CONV };

typedef struct step {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t prim;
} step;

struct tn_dnnl_prim {
    key k;
    uint64_t used;
    bool declined;   /* oneDNN has nothing good for it */
    step main, rest; /* rest: the last, shorter group of a weight gradient */
    step reorder;    /* weights to what main asks for, or back; empty where that is OHWI itself */
    size_t scratch, weight_bytes;
};
typedef tn_dnnl_prim entry;

typedef struct slot {
    atomic_flag taken;
    dnnl_stream_t stream;
    void *scratch;
    size_t scratch_bytes;
} slot;

struct tn_dnnl {
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr;
    int (*omp_get)(void);
    void (*omp_set)(int);
    uint64_t clock;
    entry *entries;
    slot *slots;
    int nslots;
    bool lacked, warm; /* memory for a primitive; sgemm has its kernels */
};

/* What a call into oneDNN changes of its thread, as it was. */
typedef struct caller {
    int threads;
    sigset_t signals;
} caller;

static caller enter(const tn_dnnl *d)
{
    caller was = {.threads = d->omp_get && d->omp_set ? d->omp_get() : 0};
    tn_signals_hold(&was.signals);
    if (was.threads > 1) d->omp_set(1);
    return was;
}

static void leave(const tn_dnnl *d, const caller *was)
{
    if (was->threads > 1) d->omp_set(was->threads);
    tn_signals_release(&was->signals);
}

/* oneDNN does not survive a want of memory: it lets C++ exceptions out, which C cannot catch, ends the
 * process while it cleans up after one, or writes through NULL. So it is called only where there is more room
 * than the call takes, and our own loops stand in where there is not. */
enum {
    PRIMITIVE_ROOM = 16 << 20, /* to make one */
    SGEMM_ROOM = 96 << 20,     /* to make all of sgemm's kernels */
    RUN_ROOM = 64 << 10,       /* of the running thread's heap: some small blocks are allocated */
};

static bool has_room(size_t bytes)
{
    void *p = tn_malloc(bytes);
    tn_free_mem(p);
    return p != NULL;
}

bool tn_dnnl_lacked(const tn_dnnl *d)
{
    return d->lacked;
}

tn_dnnl *tn_dnnl_open(bool *no_memory)
{
    *no_memory = false;
    if (tn_setting_is_foreign()) return NULL; /* it writes files and opens libraries that variables name */
    tn_dnnl *d = has_room(PRIMITIVE_ROOM) ? tn_calloc(1, sizeof *d) : NULL;
    *no_memory = !d;
    if (!d) return NULL;
    /* By name at run time: a build of oneDNN without OpenMP has no such functions, and needs no care. */
    *(void **)&d->omp_get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    *(void **)&d->omp_set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    d->entries = tn_calloc(ENTRIES, sizeof *d->entries);
    caller was = enter(d);
    bool ok = d->entries && dnnl_engine_create(&d->engine, dnnl_cpu, 0) == dnnl_success &&
              dnnl_primitive_attr_create(&d->attr) == dnnl_success &&
              dnnl_primitive_attr_set_scratchpad_mode(d->attr, dnnl_scratchpad_mode_user) == dnnl_success;
    leave(d, &was);
    if (ok) return d;
    *no_memory = !d->entries;
    tn_dnnl_close(d);
    return NULL;
}

static void clear_step(step *s)
{
    if (s->prim) dnnl_primitive_destroy(s->prim);
    if (s->pd) dnnl_primitive_desc_destroy(s->pd);
    *s = (step){NULL, NULL};
}

static void clear_entry(entry *e)
{
    clear_step(&e->main);
    clear_step(&e->rest);
    clear_step(&e->reorder);
    memset(e, 0, sizeof *e);
}

static void clear_slots(tn_dnnl *d)
{
    for (int i = 0; i < d->nslots; i++) {
        if (d->slots[i].stream) dnnl_stream_destroy(d->slots[i].stream);
        tn_free_mem(d->slots[i].scratch);
    }
    tn_free_mem(d->slots);
    d->slots = NULL;
    d->nslots = 0;
}

void tn_dnnl_close(tn_dnnl *d)
{
    if (!d) return;
    for (int i = 0; d->entries && i < ENTRIES; i++) clear_entry(&d->entries[i]);
    tn_free_mem(d->entries);
    clear_slots(d);
    if (d->attr) dnnl_primitive_attr_destroy(d->attr);
    if (d->engine) dnnl_engine_destroy(d->engine);
    tn_free_mem(d);
}

bool tn_dnnl_ready(tn_dnnl *d, int n, const tn_dnnl_prim *p, const tn_dnnl_prim *q)
{
    size_t scratch = q && q->scratch > p->scratch ? q->scratch : p->scratch;
    if (d->nslots < n) {
        clear_slots(d);
        d->slots = tn_calloc((size_t)n, sizeof *d->slots);
        if (!d->slots) return false;
        for (; d->nslots < n; d->nslots++) {
            slot *s = &d->slots[d->nslots];
            atomic_flag_clear(&s->taken);
            if (dnnl_stream_create(&s->stream, d->engine, dnnl_stream_default_flags) != dnnl_success)
                return false;
        }
    }
    for (int i = 0; i < d->nslots; i++) {
        slot *s = &d->slots[i];
        if (s->scratch_bytes >= scratch) continue;
        tn_free_mem(s->scratch);
        s->scratch = tn_aligned_alloc(64, scratch);
        s->scratch_bytes = s->scratch ? scratch : 0;
        if (!s->scratch) return false;
    }
    return true;
}

static slot *take_slot(tn_dnnl *d)
{
    for (int i = 0;; i = (i + 1) % d->nslots) {
        if (!atomic_flag_test_and_set_explicit(&d->slots[i].taken, memory_order_acquire)) return &d->slots[i];
    }
}

static void give_slot(slot *s)
{
    atomic_flag_clear_explicit(&s->taken, memory_order_release);
}

/* The entry for this key; if it is new, an empty one in the place of the least recently used. */
static entry *find_entry(tn_dnnl *d, const key *k, bool *found)
{
    entry *oldest = &d->entries[0];
    for (int i = 0; i < ENTRIES; i++) {
        entry *e = &d->entries[i];
        if (!memcmp(&e->k, k, sizeof *k)) {
            e->used = ++d->clock;
            *found = true;
            return e;
        }
        if (e->used < oldest->used) oldest = e;
    }
    clear_entry(oldest);
    oldest->k = *k;
    oldest->used = ++d->clock;
    *found = false;
    return oldest;
}

/* Takes pd over. */
static bool make_step(entry *e, step *s, dnnl_primitive_desc_t pd)
{
    s->pd = pd;
    if (!pd || dnnl_primitive_create(&s->prim, pd) != dnnl_success) return false;
    size_t need = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    if (need > e->scratch) e->scratch = need;
    return true;
}

typedef struct operand {
    int arg;
    dnnl_query_t what;
    int index;
    const void *p;
} operand;

/* Runs s on its operands, in the calling thread. Returns a tn_status. */
static int execute(tn_dnnl *d, const step *s, const operand *op, int n)
{
    enum { MOST = 6 };
    dnnl_exec_arg_t args[MOST];
    if (!has_room(RUN_ROOM)) return TN_E_NOMEM;
    slot *sl = take_slot(d);
    bool ok = true;
    int made = 0;
    caller was = enter(d);
    for (int i = 0; ok && i <= n; i++) {
        bool pad = i == n;
        md_ref m = pad ? dnnl_primitive_desc_query_md(s->pd, dnnl_query_scratchpad_md, 0)
                       : dnnl_primitive_desc_query_md(s->pd, op[i].what, op[i].index);
        if (pad && !dnnl_memory_desc_get_size(m)) break;
        void *p = pad ? sl->scratch : (void *)(uintptr_t)op[i].p;
        args[made].arg = pad ? DNNL_ARG_SCRATCHPAD : op[i].arg;
        ok = dnnl_memory_create(&args[made].memory, m, d->engine, p) == dnnl_success;
        made += ok;
    }
    ok = ok && dnnl_primitive_execute(s->prim, sl->stream, made, args) == dnnl_success &&
         dnnl_stream_wait(sl->stream) == dnnl_success;
    for (int i = 0; i < made; i++) dnnl_memory_destroy(args[i].memory);
    leave(d, &was);
    give_slot(sl);
    return ok ? TN_OK : TN_E_DEVICE;
}

static bool data_type(tn_dtype t, dnnl_data_type_t *out)
{
    *out = t == TN_F32 ? dnnl_f32 : t == TN_F16 ? dnnl_f16 : dnnl_bf16;
    return t == TN_F32 || t == TN_F16 || t == TN_BF16;
}

/* ---- products ---- */

bool tn_dnnl_sgemm(const tn_dnnl *d, bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc)
{
    caller was = enter(d);
    dnnl_status_t s = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
    leave(d, &was);
    return s == dnnl_success;
}

/* Its kernels are made when the first product of a process comes that is neither tiny nor one vector. */
bool tn_dnnl_sgemm_ready(tn_dnnl *d)
{
    enum { N = 64 };
    if (d->warm) return true;
    float *zeros = has_room(SGEMM_ROOM) ? tn_calloc(3 * N * N, sizeof *zeros) : NULL;
    if (!zeros) return false;
    d->warm = tn_dnnl_sgemm(d, false, false, N, N, N, zeros, N, zeros + N * N, N, zeros + 2 * N * N, N);
    tn_free_mem(zeros);
    return d->warm;
}

const tn_dnnl_prim *tn_dnnl_matmul(tn_dnnl *d, const tn_gemm *g, int64_t rows, const int64_t *per)
{
    dnnl_data_type_t type;
    if (!data_type(g->dtype, &type)) return NULL;
    key k = {.kind = KIND_MATMUL,
             .v = {g->dtype, rows, g->n, g->k, g->a_row, g->a_col, g->b_row, g->b_col, g->c_row}};
    dnnl_dims_t da = {0}, db = {0}, dc = {0}, dbias = {0}, sa = {0}, sb = {0}, sc = {0}, sbias = {0};
    int nd = 0, nk = 9;
    for (int i = 0; i < g->batch_ndim; i++) {
        if (per[i] == 1) continue;
        da[nd] = g->a_batch[i] ? per[i] : 1;
        db[nd] = g->b_batch[i] ? per[i] : 1;
        dc[nd] = per[i];
        dbias[nd] = 1;
        k.v[nk++] = dc[nd];
        k.v[nk++] = sa[nd] = g->a_batch[i];
        k.v[nk++] = sb[nd] = g->b_batch[i];
        k.v[nk++] = sc[nd] = g->c_batch[i];
        if (da[nd] == 1) sa[nd] = g->m * g->k;
        if (db[nd] == 1) sb[nd] = g->k * g->n;
        sbias[nd] = g->n;
        nd++;
    }
    k.v[nk++] = nd;
    k.v[nk] = g->bias != NULL;
    bool found;
    entry *e = find_entry(d, &k, &found);
    if (found) return e->declined ? NULL : e;
    e->declined = true;
    if (!has_room(PRIMITIVE_ROOM)) {
        d->lacked = true;
        return NULL;
    }
    da[nd] = dc[nd] = rows, da[nd + 1] = db[nd] = g->k, db[nd + 1] = dc[nd + 1] = dbias[nd + 1] = g->n;
    dbias[nd] = 1;
    sa[nd] = g->a_row, sa[nd + 1] = g->a_col, sb[nd] = g->b_row, sb[nd + 1] = g->b_col;
    sc[nd] = g->c_row, sc[nd + 1] = 1, sbias[nd] = g->n, sbias[nd + 1] = 1;
    md a = {0}, b = {0}, c = {0}, bias = {0};
    if (md_strided(&a, nd + 2, da, type, sa) && md_strided(&b, nd + 2, db, type, sb) &&
        md_strided(&c, nd + 2, dc, type, sc) && md_strided(&bias, nd + 2, dbias, type, sbias)) {
        caller was = enter(d);
        dnnl_primitive_desc_t pd = matmul_pd(d->engine, &a, &b, g->bias ? &bias : NULL, &c, d->attr);
        e->declined = !make_step(e, &e->main, pd) || is_ref(pd);
        leave(d, &was);
    }
    md_clear(&a), md_clear(&b), md_clear(&c), md_clear(&bias);
    return e->declined ? NULL : e;
}

int tn_dnnl_run_matmul(tn_dnnl *d, const tn_dnnl_prim *p, const void *a, const void *b, const void *bias,
                       void *c)
{
    operand op[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, a},
                    {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, b},
                    {DNNL_ARG_DST, dnnl_query_dst_md, 0, c},
                    {DNNL_ARG_BIAS, dnnl_query_weights_md, 1, bias}};
    return execute(d, &p->main, op, bias ? 4 : 3);
}

/* ---- convolutions ---- */

/* Fills e with the primitives for groups of `images` (and a last one of `rest`); leaves it declined where
 * oneDNN has nothing good. */
static void make_conv(tn_dnnl *d, entry *e, const tn_conv2d_desc *c, int64_t images, int64_t rest)
{
    dnnl_data_type_t type;
    e->declined = true;
    if (!data_type(c->dtype, &type)) return;
    bool wgrad = c->pass == TN_CONV_WEIGHT_GRAD;
    int64_t ci = c->c / c->groups, co = c->oc / c->groups;
    conv_shape s = {{c->stride[0], c->stride[1]},
                    {c->dilation[0] - 1, c->dilation[1] - 1},
                    {c->pad[0], c->pad[2]},
                    {c->pad[1], c->pad[3]}};
    dnnl_dims_t x_dims = {images, c->c, c->h, c->w}, y_dims = {images, c->oc, c->oh, c->ow};
    dnnl_dims_t x_strides = {c->h * c->w * c->c, 1, c->w * c->c, c->c};
    dnnl_dims_t y_strides = {c->oh * c->ow * c->oc, 1, c->ow * c->oc, c->oc};
    dnnl_dims_t w_dims = {c->groups, co, ci, c->kh, c->kw}, b_dims = {c->oc}, b_strides = {1};
    dnnl_dims_t w_strides = {co * c->kh * c->kw * ci, c->kh * c->kw * ci, 1, c->kw * ci, ci};
    int g = c->groups == 1; /* without groups the leading dimension goes */
    /* Partial sums of a weight gradient stay f32 whatever the dtype. */
    dnnl_data_type_t w_type = wgrad ? dnnl_f32 : type;
    md x = {0}, y = {0}, w = {0}, ohwi = {0}, bias = {0}, x_rest = {0}, y_rest = {0};
    dnnl_primitive_desc_t forward = NULL, pd = NULL;
    if (!md_strided(&x, 4, x_dims, type, x_strides) || !md_strided(&y, 4, y_dims, type, y_strides) ||
        !md_any(&w, 5 - g, w_dims + g, w_type) ||
        !md_strided(&ohwi, 5 - g, w_dims + g, type, w_strides + g) ||
        !md_strided(&bias, 1, b_dims, type, b_strides))
        goto out;
    forward = conv_pd(d->engine, TN_CONV_FORWARD, &x, &w, c->bias ? &bias : NULL, &y, &s, NULL, d->attr);
    if (c->pass == TN_CONV_FORWARD) {
        pd = forward, forward = NULL;
    } else {
        if (!forward && type != dnnl_f32) goto out;
        pd = conv_pd(d->engine, c->pass, &x, &w, NULL, &y, &s, forward, d->attr);
    }
    if (!make_step(e, &e->main, pd) || is_ref(pd)) goto out;
    md_ref inner =
        dnnl_primitive_desc_query_md(pd, wgrad ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    e->weight_bytes = (dnnl_memory_desc_get_size(inner) + 63) / 64 * 64;
    if (!dnnl_memory_desc_equal(inner, REF(ohwi))) {
        dnnl_primitive_desc_t r = wgrad ? reorder_pd(d->engine, inner, REF(ohwi), d->attr)
                                        : reorder_pd(d->engine, REF(ohwi), inner, d->attr);
        if (!make_step(e, &e->reorder, r)) goto out;
    }
    if (rest != images) {
        x_dims[0] = y_dims[0] = rest;
        if (!md_strided(&x_rest, 4, x_dims, type, x_strides) ||
            !md_strided(&y_rest, 4, y_dims, type, y_strides))
            goto out;
            /* In the layout that the others chose: the partial sums are added element by element. */
#if DNNL_VERSION_MAJOR >= 3
        md_clear(&w);
        w = NULL;
        if (dnnl_memory_desc_clone(&w, inner) != dnnl_success) goto out;
#else
        w = *inner;
#endif
        dnnl_primitive_desc_t f =
            conv_pd(d->engine, TN_CONV_FORWARD, &x_rest, &w, NULL, &y_rest, &s, NULL, d->attr);
        dnnl_primitive_desc_t r =
            conv_pd(d->engine, c->pass, &x_rest, &w, NULL, &y_rest, &s, f ? f : forward, d->attr);
        if (f) dnnl_primitive_desc_destroy(f);
        if (!make_step(e, &e->rest, r) || is_ref(r)) goto out;
    }
    e->declined = false;
out:
    if (forward) dnnl_primitive_desc_destroy(forward);
    md_clear(&x), md_clear(&y), md_clear(&w), md_clear(&ohwi), md_clear(&bias);
    md_clear(&x_rest), md_clear(&y_rest);
}

const tn_dnnl_prim *tn_dnnl_conv(tn_dnnl *d, const tn_conv2d_desc *c, int64_t images, int64_t rest)
{
    key k = {.kind = KIND_CONV,
             .v = {c->dtype,  c->pass,        images,         rest,           c->h,      c->w,
                   c->c,      c->oc,          c->kh,          c->kw,          c->oh,     c->ow,
                   c->groups, c->stride[0],   c->stride[1],   c->pad[0],      c->pad[1], c->pad[2],
                   c->pad[3], c->dilation[0], c->dilation[1], c->bias != NULL}};
    bool found;
    entry *e = find_entry(d, &k, &found);
    if (!found && !has_room(PRIMITIVE_ROOM)) {
        e->declined = d->lacked = true;
    } else if (!found) {
        caller was = enter(d);
        make_conv(d, e, c, images, rest);
        leave(d, &was);
    }
    return e->declined ? NULL : e;
}

bool tn_dnnl_reorders(const tn_dnnl_prim *p)
{
    return p->reorder.prim != NULL;
}

int64_t tn_dnnl_weight_bytes(const tn_dnnl_prim *p)
{
    return (int64_t)p->weight_bytes;
}

int tn_dnnl_run_conv(tn_dnnl *d, const tn_dnnl_prim *p, tn_conv_pass pass, bool last, const void *in0,
                     const void *in1, const void *bias, void *out)
{
    operand forward[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, in0},
                         {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, in1},
                         {DNNL_ARG_DST, dnnl_query_dst_md, 0, out},
                         {DNNL_ARG_BIAS, dnnl_query_weights_md, 1, bias}};
    operand data[] = {{DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0, in0},
                      {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, in1},
                      {DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0, out}};
    operand weight[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, in0},
                        {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0, in1},
                        {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0, out}};
    const step *s = last && p->rest.prim ? &p->rest : &p->main;
    if (pass == TN_CONV_FORWARD) return execute(d, s, forward, bias ? 4 : 3);
    return execute(d, s, pass == TN_CONV_DATA_GRAD ? data : weight, 3);
}

int tn_dnnl_run_reorder(tn_dnnl *d, const tn_dnnl_prim *p, const void *from, void *to)
{
    operand op[] = {{DNNL_ARG_FROM, dnnl_query_src_md, 0, from}, {DNNL_ARG_TO, dnnl_query_dst_md, 0, to}};
    return execute(d, &p->reorder, op, 2);
}

#endif
