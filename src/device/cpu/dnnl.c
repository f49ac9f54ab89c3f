/* dnnl.c - primitives of oneDNN, single-threaded. The only file that knows its types; 2.x and 3.x.
 *
 * Primitives live in a small table replaced least recently used. What a running primitive needs for itself (a
 * stream, a scratchpad) lives in a `slot`, claimed by whatever thread runs one. Debian's library is built
 * with OpenMP: a thread's own limit is set to 1 around every call into it and put back, so that no team is
 * ever started, and no exception comes out (guard.h).
 * Read first: dnnl.h, then visit, find_entry and execute. */
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
#include "dnnl_versions.h"
#include "guard.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { ENTRIES = 192 }; /* primitives kept */

/* Returns whether ours shall do it. The reference loops of oneDNN are hundreds of times slower; its f32
 * products, which some of its convolutions are made of, point the stack pointer into a block of the heap
 * while they compute: a signal's handler that runs then writes its frame over what lies below. */
static bool is_poor(dnnl_primitive_desc_t pd)
{
    const char *name = "";
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return !strncmp(name, "ref", 3) || !strncmp(name, "simple", 6) || strstr(name, "gemm:");
}

/* ---- state ---- */

/* The key that a primitive is looked up by: every number that went into making it. */
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
    size_t scratch, weight_bytes, run_room;
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
    bool open;          /* the engine is there */
    bool lacked;        /* memory for a primitive, once */
    atomic_bool broken; /* an exception came out of it */
};

/* Calls body, which calls oneDNN. After an exception nothing more is asked of it. */
static void visit(tn_dnnl *d, void (*body)(void *), void *arg)
{
    int threads = d->omp_get && d->omp_set ? d->omp_get() : 0;
    if (threads > 1) d->omp_set(1);
    if (!tn_guarded(body, arg)) atomic_store(&d->broken, true);
    if (threads > 1) d->omp_set(threads);
}

/* The guard takes the exceptions that oneDNN throws for want of memory, but some failures it does not
 * survive itself. Objects with an operator new of its own (primitives and their descriptors, memory
 * objects, kernels) are constructed at NULL where that has found nothing. And where memory goes on wanting
 * while an exception leaves the making of a primitive, the destructor of a promise for its cache needs a
 * string, throws and so calls std::terminate. And libgomp ends the process where it has nowhere to note
 * what it knows of a thread. So oneDNN is called only where there is more room than the call takes, and our
 * own loops stand in where there is not: what is left is a failure of that very call, with room before it.
 * tests/faults/sweep.c counts those. */
enum {
    PRIMITIVE_ROOM = 16 << 20, /* to make one */
    RUN_ROOM = 128 << 10,      /* to run one, of the running thread's heap */
    PACK_ROOM = 8 << 20,       /* a product packs its operands, piece by piece (measured: up to 7 MB) */
};

static size_t run_room(int64_t m, int64_t n, int64_t k)
{
    double packed = 4 * ((double)m * (double)k + (double)k * (double)n + (double)m * (double)n);
    return RUN_ROOM + (packed < PACK_ROOM ? (size_t)packed : PACK_ROOM);
}

static bool has_room(size_t bytes)
{
    void *p = tn_malloc(bytes);
    tn_free_mem(p);
    return p != NULL;
}

/* The code of a kernel lies in pages of its own, executable ones: what is free in the heap is no help there,
 * and what the heap is asked for it may keep. */
static bool has_pages(size_t bytes)
{
    if (!has_room(bytes)) return false;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    bool ok = !mprotect(p, bytes, PROT_READ | PROT_EXEC);
    munmap(p, bytes);
    return ok;
}

bool tn_dnnl_lacked(const tn_dnnl *d)
{
    return d->lacked || atomic_load(&d->broken);
}

static void make_engine(void *arg)
{
    tn_dnnl *d = arg;
    d->open = dnnl_engine_create(&d->engine, dnnl_cpu, 0) == dnnl_success &&
              dnnl_primitive_attr_create(&d->attr) == dnnl_success &&
              dnnl_primitive_attr_set_scratchpad_mode(d->attr, dnnl_scratchpad_mode_user) == dnnl_success;
}

tn_dnnl *tn_dnnl_open(bool *no_memory)
{
    *no_memory = false;
    if (tn_setting_is_foreign()) return NULL; /* it writes files and opens libraries that variables name */
    tn_dnnl *d = has_pages(PRIMITIVE_ROOM) ? tn_calloc(1, sizeof *d) : NULL;
    *no_memory = !d;
    if (!d) return NULL;
    /* By name at run time: a build of oneDNN without OpenMP has no such functions, and needs no care. */
    *(void **)&d->omp_get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    *(void **)&d->omp_set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    d->entries = tn_calloc(ENTRIES, sizeof *d->entries);
    if (d->entries) visit(d, make_engine, d);
    if (d->open) return d;
    *no_memory = !d->entries || d->broken;
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

static void make_streams(void *arg)
{
    tn_dnnl *d = arg;
    for (int i = 0; i < d->nslots; i++)
        if (dnnl_stream_create(&d->slots[i].stream, d->engine, dnnl_stream_default_flags) != dnnl_success)
            return;
}

bool tn_dnnl_ready(tn_dnnl *d, int n, const tn_dnnl_prim *p, const tn_dnnl_prim *q)
{
    size_t scratch = q && q->scratch > p->scratch ? q->scratch : p->scratch;
    if (d->nslots < n) {
        clear_slots(d);
        d->slots = tn_calloc((size_t)n, sizeof *d->slots);
        if (!d->slots) return false;
        for (; d->nslots < n; d->nslots++) atomic_flag_clear(&d->slots[d->nslots].taken);
        if (has_room(RUN_ROOM)) visit(d, make_streams, d);
        if (!d->slots[n - 1].stream) {
            clear_slots(d);
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

/* The state that is needed while a primitive is made, and not after that. */
typedef struct making {
    tn_dnnl *d;
    entry *e; /* `declined` until it is whole */
    dnnl_data_type_t type;
    md *m; /* MDS, cleared afterwards, as are the hints */
    dnnl_primitive_desc_t hint[2];
    /* a product: of A, B, C and the bias, if there is one */
    int nd;
    dnnl_dims_t dims[4], strides[4];
    bool bias;
    /* a convolution */
    const tn_conv2d_desc *conv;
    int64_t images, rest;
} making;
enum { MDS = 8 };

/* Takes pd over. Where there is a descriptor, but no primitive, that is for want of something. */
static bool make_step(making *w, step *s, dnnl_primitive_desc_t pd)
{
    entry *e = w->e;
    s->pd = pd;
    if (!pd) return false;
    if (dnnl_primitive_create(&s->prim, pd) != dnnl_success) {
        w->d->lacked = true;
        return false;
    }
    size_t need = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    if (need > e->scratch) e->scratch = need;
    return true;
}

/* NULL: oneDNN has nothing good, or not the memory for it. */
static const entry *make(making *w, void (*body)(void *))
{
    tn_dnnl *d = w->d;
    md m[MDS] = {0};
    w->m = m;
    w->e->declined = true;
    if (!has_pages(PRIMITIVE_ROOM))
        d->lacked = true;
    else if (!atomic_load(&d->broken))
        visit(d, body, w);
    for (int i = 0; i < MDS; i++) md_clear(&m[i]);
    for (int i = 0; i < 2; i++)
        if (w->hint[i]) dnnl_primitive_desc_destroy(w->hint[i]);
    return w->e->declined ? NULL : w->e;
}

typedef struct operand {
    int arg;
    dnnl_query_t what;
    int index;
    const void *p;
} operand;

typedef struct execution {
    tn_dnnl *d;
    const step *s;
    const operand *op;
    slot *slot;
    int n, made;
    dnnl_exec_arg_t args[6]; /* a memory object for each operand and the scratchpad */
    bool done;
} execution;

static void run_step(void *arg)
{
    execution *x = arg;
    bool ok = true;
    for (int i = 0; ok && i <= x->n; i++) {
        bool pad = i == x->n;
        md_ref m = pad ? dnnl_primitive_desc_query_md(x->s->pd, dnnl_query_scratchpad_md, 0)
                       : dnnl_primitive_desc_query_md(x->s->pd, x->op[i].what, x->op[i].index);
        if (pad && !dnnl_memory_desc_get_size(m)) break;
        void *p = pad ? x->slot->scratch : (void *)(uintptr_t)x->op[i].p;
        x->args[x->made].arg = pad ? DNNL_ARG_SCRATCHPAD : x->op[i].arg;
        ok = dnnl_memory_create(&x->args[x->made].memory, m, x->d->engine, p) == dnnl_success;
        x->made += ok;
    }
    x->done = ok && dnnl_primitive_execute(x->s->prim, x->slot->stream, x->made, x->args) == dnnl_success &&
              dnnl_stream_wait(x->slot->stream) == dnnl_success;
}

/* Runs s on its operands, in the calling thread. Returns a tn_status. */
static int execute(tn_dnnl *d, size_t room, const step *s, const operand *op, int n)
{
    if (!has_room(room) || atomic_load(&d->broken)) return TN_E_NOMEM;
    execution x = {.d = d, .s = s, .op = op, .n = n};
    x.slot = take_slot(d);
    visit(d, run_step, &x);
    for (int i = 0; i < x.made; i++) dnnl_memory_destroy(x.args[i].memory);
    give_slot(x.slot);
    return x.done ? TN_OK : TN_E_DEVICE;
}

static bool data_type(tn_dtype t, dnnl_data_type_t *out)
{
    *out = t == TN_F32 ? dnnl_f32 : t == TN_F16 ? dnnl_f16 : dnnl_bf16;
    return t == TN_F32 || t == TN_F16 || t == TN_BF16;
}

/* ---- products ---- */

static void make_matmul(void *arg)
{
    making *w = arg;
    for (int i = 0; i < 4; i++)
        if (!md_strided(&w->m[i], w->nd, w->dims[i], w->type, w->strides[i])) return;
    dnnl_primitive_desc_t pd =
        matmul_pd(w->d->engine, &w->m[0], &w->m[1], w->bias ? &w->m[3] : NULL, &w->m[2], w->d->attr);
    w->e->declined = !make_step(w, &w->e->main, pd) || is_poor(pd);
}

const tn_dnnl_prim *tn_dnnl_matmul(tn_dnnl *d, const tn_gemm *g, int64_t rows, const int64_t *per)
{
    making w = {.d = d, .bias = g->bias != NULL};
    if (!data_type(g->dtype, &w.type)) return NULL;
    key k = {.kind = KIND_MATMUL,
             .v = {g->dtype, rows, g->n, g->k, g->a_row, g->a_col, g->b_row, g->b_col, g->c_row}};
    int64_t *da = w.dims[0], *db = w.dims[1], *dc = w.dims[2], *dbias = w.dims[3];
    int64_t *sa = w.strides[0], *sb = w.strides[1], *sc = w.strides[2], *sbias = w.strides[3];
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
    w.e = find_entry(d, &k, &found);
    if (found) return w.e->declined ? NULL : w.e;
    da[nd] = dc[nd] = rows, da[nd + 1] = db[nd] = g->k, db[nd + 1] = dc[nd + 1] = dbias[nd + 1] = g->n;
    dbias[nd] = 1;
    sa[nd] = g->a_row, sa[nd + 1] = g->a_col, sb[nd] = g->b_row, sb[nd + 1] = g->b_col;
    sc[nd] = g->c_row, sc[nd + 1] = 1, sbias[nd] = g->n, sbias[nd + 1] = 1;
    w.nd = nd + 2;
    w.e->run_room = run_room(rows, g->n, g->k);
    return make(&w, make_matmul);
}

int tn_dnnl_run_matmul(tn_dnnl *d, const tn_dnnl_prim *p, const void *a, const void *b, const void *bias,
                       void *c)
{
    operand op[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, a},
                    {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, b},
                    {DNNL_ARG_DST, dnnl_query_dst_md, 0, c},
                    {DNNL_ARG_BIAS, dnnl_query_weights_md, 1, bias}};
    return execute(d, p->run_room, &p->main, op, bias ? 4 : 3);
}

/* ---- convolutions ---- */

/* The primitives for groups of `images` (and a last one of `rest`). */
static void make_conv(void *arg)
{
    making *w = arg;
    const tn_conv2d_desc *c = w->conv;
    entry *e = w->e;
    dnnl_engine_t engine = w->d->engine;
    dnnl_primitive_attr_t attr = w->d->attr;
    md *x = &w->m[0], *y = &w->m[1], *weights = &w->m[2], *ohwi = &w->m[3], *bias = &w->m[4];
    md *x_rest = &w->m[5], *y_rest = &w->m[6], *forward = &w->m[7];
    bool wgrad = c->pass == TN_CONV_WEIGHT_GRAD;
    int64_t ci = c->c / c->groups, co = c->oc / c->groups;
    conv_shape s = {{c->stride[0], c->stride[1]},
                    {c->dilation[0] - 1, c->dilation[1] - 1},
                    {c->pad[0], c->pad[2]},
                    {c->pad[1], c->pad[3]}};
    dnnl_dims_t x_dims = {w->images, c->c, c->h, c->w}, y_dims = {w->images, c->oc, c->oh, c->ow};
    dnnl_dims_t x_strides = {c->h * c->w * c->c, 1, c->w * c->c, c->c};
    dnnl_dims_t y_strides = {c->oh * c->ow * c->oc, 1, c->ow * c->oc, c->oc};
    dnnl_dims_t w_dims = {c->groups, co, ci, c->kh, c->kw}, b_dims = {c->oc}, b_strides = {1};
    dnnl_dims_t w_strides = {co * c->kh * c->kw * ci, c->kh * c->kw * ci, 1, c->kw * ci, ci};
    int g = c->groups == 1; /* without groups the leading dimension goes */
    /* Partial sums of a weight gradient stay f32 whatever the dtype. */
    dnnl_data_type_t type = w->type, w_type = wgrad ? dnnl_f32 : type;
    if (!md_strided(x, 4, x_dims, type, x_strides) || !md_strided(y, 4, y_dims, type, y_strides) ||
        !md_any(weights, 5 - g, w_dims + g, w_type) || !md_any(forward, 5 - g, w_dims + g, type) ||
        !md_strided(ohwi, 5 - g, w_dims + g, type, w_strides + g) ||
        !md_strided(bias, 1, b_dims, type, b_strides))
        return;
    dnnl_primitive_desc_t pd =
        conv_pd(engine, TN_CONV_FORWARD, x, forward, c->bias ? bias : NULL, y, &s, NULL, attr);
    if (c->pass != TN_CONV_FORWARD) {
        w->hint[0] = pd;
        if (!pd && type != dnnl_f32) return;
        pd = conv_pd(engine, c->pass, x, weights, NULL, y, &s, w->hint[0], attr);
    }
    if (!make_step(w, &e->main, pd) || is_poor(pd)) return;
    md_ref inner =
        dnnl_primitive_desc_query_md(pd, wgrad ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    e->weight_bytes = (dnnl_memory_desc_get_size(inner) + 63) / 64 * 64;
    if (!dnnl_memory_desc_equal(inner, REF(*ohwi))) {
        dnnl_primitive_desc_t r =
            wgrad ? reorder_pd(engine, inner, REF(*ohwi), attr) : reorder_pd(engine, REF(*ohwi), inner, attr);
        if (!make_step(w, &e->reorder, r)) return;
    }
    if (w->rest != w->images) {
        x_dims[0] = y_dims[0] = w->rest;
        if (!md_strided(x_rest, 4, x_dims, type, x_strides) ||
            !md_strided(y_rest, 4, y_dims, type, y_strides))
            return;
            /* In the layout that the others chose: the partial sums are added element by element. */
#if DNNL_VERSION_MAJOR >= 3
        md_clear(weights);
        *weights = NULL;
        if (dnnl_memory_desc_clone(weights, inner) != dnnl_success) return;
#else
        *weights = *inner;
#endif
        w->hint[1] = conv_pd(engine, TN_CONV_FORWARD, x_rest, weights, NULL, y_rest, &s, NULL, attr);
        dnnl_primitive_desc_t r =
            conv_pd(engine, c->pass, x_rest, weights, NULL, y_rest, &s, w->hint[w->hint[1] != NULL], attr);
        if (!make_step(w, &e->rest, r) || is_poor(r)) return;
    }
    e->declined = false;
}

const tn_dnnl_prim *tn_dnnl_conv(tn_dnnl *d, const tn_conv2d_desc *c, int64_t images, int64_t rest)
{
    key k = {.kind = KIND_CONV,
             .v = {c->dtype,  c->pass,        images,         rest,           c->h,      c->w,
                   c->c,      c->oc,          c->kh,          c->kw,          c->oh,     c->ow,
                   c->groups, c->stride[0],   c->stride[1],   c->pad[0],      c->pad[1], c->pad[2],
                   c->pad[3], c->dilation[0], c->dilation[1], c->bias != NULL}};
    making w = {.d = d, .conv = c, .images = images, .rest = rest};
    if (!data_type(c->dtype, &w.type)) return NULL;
    bool found;
    w.e = find_entry(d, &k, &found);
    if (found) return w.e->declined ? NULL : w.e;
    w.e->run_room = run_room(c->oh * c->ow, c->oc, c->kh * c->kw * c->c / c->groups);
    return make(&w, make_conv);
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
    if (pass == TN_CONV_FORWARD) return execute(d, p->run_room, s, forward, bias ? 4 : 3);
    return execute(d, p->run_room, s, pass == TN_CONV_DATA_GRAD ? data : weight, 3);
}

int tn_dnnl_run_reorder(tn_dnnl *d, const tn_dnnl_prim *p, const void *from, void *to)
{
    operand op[] = {{DNNL_ARG_FROM, dnnl_query_src_md, 0, from}, {DNNL_ARG_TO, dnnl_query_dst_md, 0, to}};
    return execute(d, RUN_ROOM, &p->reorder, op, 2);
}

#endif
