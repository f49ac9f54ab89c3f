/* dnnl.c - oneDNN, single-threaded, inside our pool. The only file that includes it; 2.x and 3.x.
 *
 * Large f32 products are cut into tiles, each one dnnl_sgemm. Batches of small ones, and 16-bit products, are
 * matmul primitives over equal parts of the work; convolutions are primitives over equal groups of images,
 * with weights in the layout oneDNN asks for (one reorder a call). A weight gradient is one partial sum per
 * group of images, added in order afterwards. All cuts depend on shapes only.
 *
 * Primitives live in `entry`, kept in a small table replaced least recently used. What a running primitive
 * needs for itself (a stream, a scratchpad) lives in a `slot`, claimed by whatever thread runs a chunk.
 * Debian's library is built with OpenMP: a thread's own limit is set to 1 around every call into it and put
 * back, so that no team is ever started. Read first: tn_dnnl_gemm, tn_dnnl_conv2d, then find_entry. */
#include "cpu_lib.h"

#ifndef TN_HAVE_DNNL

tn_dnnl *tn_dnnl_open(void)
{
    return NULL;
}

void tn_dnnl_close(tn_dnnl *d)
{
    (void)d;
}

int tn_dnnl_gemm(tn_cpu_lib *lib, tn_dnnl *d, struct tn_pool *pool, const tn_gemm *g, tn_errbuf *err)
{
    (void)lib, (void)d, (void)pool, (void)g, (void)err;
    return TN_CPU_DECLINED;
}

int tn_dnnl_conv2d(tn_cpu_lib *lib, tn_dnnl *d, struct tn_pool *pool, const tn_conv2d_desc *c,
                   tn_device_stats *stats, tn_errbuf *err)
{
    (void)lib, (void)d, (void)pool, (void)c, (void)stats, (void)err;
    return TN_CPU_DECLINED;
}

#else

#include "../../core/alloc.h"
#include "gemm_kernel.h"
#include "pool.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>
#include <string.h>

enum {
    ENTRIES = 192,            /* primitives kept */
    PARTIALS = 16,            /* of a weight gradient, at most */
    PARTIAL_PIXELS = 2048,    /* each covers at least so many, or adding them up would show */
    PARTIAL_BYTES = 32 << 20, /* all of them together */
    SUM_CHUNK = 1 << 14,      /* elements */
    EPILOGUE_BYTES = 1 << 19, /* of C, still in the second-level cache when bias and relu follow */
};
static const double TILE_FLOPS = 6e6, PART_FLOPS = 4e6, SMALL_FLOPS = 32e6;

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

typedef struct entry {
    key k;
    uint64_t used;
    bool declined;   /* oneDNN has nothing good for it */
    step main, rest; /* rest: the last, shorter group of a weight gradient */
    step reorder;    /* weights to what main asks for, or back; empty where that is OHWI itself */
    size_t scratch, weight_bytes;
} entry;

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
};

static int one_thread(const tn_dnnl *d)
{
    if (!d->omp_get || !d->omp_set) return 0;
    int before = d->omp_get();
    if (before != 1) d->omp_set(1);
    return before;
}

static void as_before(const tn_dnnl *d, int before)
{
    if (before > 1) d->omp_set(before);
}

tn_dnnl *tn_dnnl_open(void)
{
    tn_dnnl *d = tn_calloc(1, sizeof *d);
    if (!d) return NULL;
    /* By name at run time: a build of oneDNN without OpenMP has no such functions, and needs no care. */
    *(void **)&d->omp_get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    *(void **)&d->omp_set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    d->entries = tn_calloc(ENTRIES, sizeof *d->entries);
    int before = one_thread(d);
    bool ok = d->entries && dnnl_engine_create(&d->engine, dnnl_cpu, 0) == dnnl_success &&
              dnnl_primitive_attr_create(&d->attr) == dnnl_success &&
              dnnl_primitive_attr_set_scratchpad_mode(d->attr, dnnl_scratchpad_mode_user) == dnnl_success;
    as_before(d, before);
    if (ok) return d;
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

/* As many slots as threads may run chunks, each with so much scratchpad. */
static bool have_slots(tn_dnnl *d, int n, size_t scratch)
{
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
    slot *sl = take_slot(d);
    bool ok = true;
    int made = 0, before = one_thread(d);
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
    as_before(d, before);
    give_slot(sl);
    return ok ? TN_OK : TN_E_DEVICE;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The largest divisor of n that is at most `most`, at least 1. */
static int64_t divisor(int64_t n, double most)
{
    for (int64_t d = most < (double)n ? (int64_t)most : n; d > 1; d--) {
        if (n % d == 0) return d;
    }
    return 1;
}

static bool data_type(tn_dtype t, dnnl_data_type_t *out)
{
    *out = t == TN_F32 ? dnnl_f32 : t == TN_F16 ? dnnl_f16 : dnnl_bf16;
    return t == TN_F32 || t == TN_F16 || t == TN_BF16;
}

/* ---- products ---- */

typedef struct product {
    tn_dnnl *d;
    tn_gemm g;          /* batch dimensions merged, B perhaps a transposed copy */
    const float *b_old; /* what to transpose, row stride ldb_old; `g.b` is where to */
    int64_t ldb_old;
    int64_t mt, nt, m_tiles, n_tiles; /* tiles of one entry */
    const entry *e, *last;            /* matmul: for the last, shorter tile of rows too */
    int64_t per[TN_GEMM_BATCH_DIMS];  /* entries of one part, by dimension */
    atomic_int status;
} product;

static int64_t offset(const product *w, const int64_t *stride, int64_t i)
{
    int64_t off = 0;
    for (int d = w->g.batch_ndim - 1; d >= 0; d--) {
        int64_t parts = w->g.batch[d] / w->per[d];
        off += i % parts * w->per[d] * stride[d];
        i /= parts;
    }
    return off;
}

static void run_transpose(void *arg, int64_t begin, int64_t end)
{
    const product *w = arg;
    int64_t j0 = begin * 16, cols = min64(end * 16, w->g.n) - j0;
    for (int64_t p = 0; p < w->g.k; p += 64) {
        float *dst = (float *)(uintptr_t)w->g.b + p * w->g.b_row + j0;
        tn_pack_transpose(TN_F32, w->b_old + j0 * w->ldb_old + p, w->ldb_old, cols, min64(64, w->g.k - p),
                          dst, w->g.b_row);
    }
}

static void run_sgemm(void *arg, int64_t begin, int64_t end)
{
    product *w = arg;
    const tn_gemm *g = &w->g;
    bool ta = g->a_col != 1, tb = g->b_col != 1;
    int64_t lda = ta ? g->a_col : g->a_row, ldb = tb ? g->b_col : g->b_row;
    int before = one_thread(w->d);
    for (int64_t t = begin; t < end; t++) {
        int64_t i = t % w->m_tiles * w->mt, j = t / w->m_tiles % w->n_tiles * w->nt;
        int64_t e = t / w->m_tiles / w->n_tiles;
        int64_t m = min64(w->mt, g->m - i), n = min64(w->nt, g->n - j);
        const float *a = (const float *)g->a + offset(w, g->a_batch, e) + i * g->a_row;
        const float *b = (const float *)g->b + offset(w, g->b_batch, e) + j * g->b_col;
        float *c = (float *)g->c + offset(w, g->c_batch, e) + i * g->c_row + j;
        if (dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, g->k, 1, a, lda, b, ldb, 0, c, g->c_row))
            atomic_store(&w->status, TN_E_DEVICE);
        tn_bias_relu(TN_F32, c, g->c_row, m, n, g->bias ? (const float *)g->bias + j : NULL,
                     g->epilogue == TN_EPI_RELU);
    }
    as_before(w->d, before);
}

/* Leading dimensions as BLAS wants them, also where an extent of 1 made the stride meaningless. */
static bool blas_strides(tn_gemm *g)
{
    if (g->a_col == 1 && g->m == 1) g->a_row = max64(g->a_row, g->k);
    if (g->a_col != 1 && g->k == 1) g->a_col = max64(g->a_col, g->m);
    if (g->b_col == 1 && g->k == 1) g->b_row = max64(g->b_row, g->n);
    if (g->b_col != 1 && g->n == 1) g->b_col = max64(g->b_col, g->k);
    if (g->m == 1) g->c_row = max64(g->c_row, g->n);
    return g->c_row >= g->n && (g->a_col == 1 ? g->a_row >= g->k : g->a_col >= g->m) &&
           (g->b_col == 1 ? g->b_row >= g->n : g->b_col >= g->k);
}

static int large_product(tn_cpu_lib *lib, struct tn_pool *pool, product *w, int64_t batches, tn_errbuf *err)
{
    tn_gemm *g = &w->g;
    if (!blas_strides(g)) return TN_CPU_DECLINED;
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    if (g->b_col != 1 && g->m > 8) {
        /* Read along k, B costs every tile a transpose of its own; one for all is cheaper when there are
         * rows enough to share it. */
        if (g->m < 256) return TN_CPU_DECLINED;
        if (batches == 1 && g->n * g->k <= 1 << 24) {
            w->b_old = g->b;
            w->ldb_old = g->b_col;
            g->b_row = (g->n + 15) / 16 * 16 + (g->n % 256 == 0 ? 16 : 0);
            g->b_col = 1;
            g->b = tn_cpu_scratch(lib, TN_SCRATCH_PACK, (size_t)(g->k * g->b_row) * sizeof(float));
            if (!g->b) return tn_cpu_fail(err, TN_E_NOMEM, "gemm: no memory for a transposed operand");
            tn_pool_run(pool, run_transpose, w, ceil_div(g->n, 16), max64(1, (1 << 11) / g->k));
        }
    }
    /* Rows first. Taller tiles where packing B anew for each of them is dear: A read along its columns and a
     * B that leaves the caches. */
    int64_t tiles = flops < TILE_FLOPS ? 1 : flops > 32 * TILE_FLOPS ? 32 : (int64_t)(flops / TILE_FLOPS);
    int64_t tall = g->a_col != 1 && g->n * g->k > 1 << 21 ? 192 : 48;
    w->m_tiles = max64(1, min64(tiles, g->m / tall));
    w->n_tiles = max64(1, min64(ceil_div(tiles, w->m_tiles), g->n / 192));
    w->nt = ceil_div(ceil_div(g->n, w->n_tiles), 48) * 48;
    w->n_tiles = ceil_div(g->n, w->nt);
    w->mt = ceil_div(g->m, w->m_tiles);
    if (g->bias || g->epilogue == TN_EPI_RELU) w->mt = min64(w->mt, max64(8, EPILOGUE_BYTES / 4 / w->nt));
    w->mt = ceil_div(w->mt, 8) * 8;
    w->m_tiles = ceil_div(g->m, w->mt);
    tn_pool_run(pool, run_sgemm, w, batches * w->m_tiles * w->n_tiles, 1);
    return TN_OK;
}

static void run_matmul(void *arg, int64_t begin, int64_t end)
{
    product *w = arg;
    const tn_gemm *g = &w->g;
    int64_t es = (int64_t)tn_dtype_size(g->dtype);
    for (int64_t t = begin; t < end; t++) {
        int64_t i = t % w->m_tiles * w->mt, e = t / w->m_tiles;
        char *c = (char *)g->c + (offset(w, g->c_batch, e) + i * g->c_row) * es;
        operand op[] = {
            {DNNL_ARG_SRC, dnnl_query_src_md, 0,
             (const char *)g->a + (offset(w, g->a_batch, e) + i * g->a_row) * es},
            {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, (const char *)g->b + offset(w, g->b_batch, e) * es},
            {DNNL_ARG_DST, dnnl_query_dst_md, 0, c},
            {DNNL_ARG_BIAS, dnnl_query_weights_md, 1, g->bias}};
        const entry *en = g->m - i < w->mt ? w->last : w->e;
        int s = execute(w->d, &en->main, op, g->bias ? 4 : 3);
        if (s) atomic_store(&w->status, s);
        if (g->epilogue != TN_EPI_RELU) continue;
        int64_t inner[TN_GEMM_BATCH_DIMS] = {0}; /* every matrix of the part */
        for (bool more = true; more;) {
            int64_t off = 0;
            for (int d = 0; d < g->batch_ndim; d++) off += inner[d] * g->c_batch[d];
            tn_bias_relu(g->dtype, c + off * es, g->c_row, min64(w->mt, g->m - i), g->n, NULL, true);
            more = false;
            for (int d = g->batch_ndim - 1; d >= 0 && !more; d--) {
                more = ++inner[d] < w->per[d];
                if (!more) inner[d] = 0;
            }
        }
    }
}

/* The matmul primitive for rows x n x k matrices, w->per of them; NULL where there is none worth using. */
static entry *matmul_entry(product *w, int64_t rows)
{
    const tn_gemm *g = &w->g;
    dnnl_data_type_t type;
    if (!data_type(g->dtype, &type)) return NULL;
    key k = {.kind = KIND_MATMUL,
             .v = {g->dtype, rows, g->n, g->k, g->a_row, g->a_col, g->b_row, g->b_col, g->c_row}};
    dnnl_dims_t da = {0}, db = {0}, dc = {0}, dbias = {0}, sa = {0}, sb = {0}, sc = {0}, sbias = {0};
    int nd = 0, nk = 9;
    for (int d = 0; d < g->batch_ndim; d++) {
        if (w->per[d] == 1) continue;
        da[nd] = g->a_batch[d] ? w->per[d] : 1;
        db[nd] = g->b_batch[d] ? w->per[d] : 1;
        dc[nd] = w->per[d];
        dbias[nd] = 1;
        k.v[nk++] = dc[nd];
        k.v[nk++] = sa[nd] = g->a_batch[d];
        k.v[nk++] = sb[nd] = g->b_batch[d];
        k.v[nk++] = sc[nd] = g->c_batch[d];
        if (da[nd] == 1) sa[nd] = g->m * g->k;
        if (db[nd] == 1) sb[nd] = g->k * g->n;
        sbias[nd] = g->n;
        nd++;
    }
    k.v[nk++] = nd;
    k.v[nk] = g->bias != NULL;
    bool found;
    entry *e = find_entry(w->d, &k, &found);
    if (found) return e->declined ? NULL : e;
    e->declined = true;
    da[nd] = dc[nd] = rows, da[nd + 1] = db[nd] = g->k, db[nd + 1] = dc[nd + 1] = dbias[nd + 1] = g->n;
    dbias[nd] = 1;
    sa[nd] = g->a_row, sa[nd + 1] = g->a_col, sb[nd] = g->b_row, sb[nd + 1] = g->b_col;
    sc[nd] = g->c_row, sc[nd + 1] = 1, sbias[nd] = g->n, sbias[nd + 1] = 1;
    md a = {0}, b = {0}, c = {0}, bias = {0};
    if (md_strided(&a, nd + 2, da, type, sa) && md_strided(&b, nd + 2, db, type, sb) &&
        md_strided(&c, nd + 2, dc, type, sc) && md_strided(&bias, nd + 2, dbias, type, sbias)) {
        dnnl_primitive_desc_t pd = matmul_pd(w->d->engine, &a, &b, g->bias ? &bias : NULL, &c, w->d->attr);
        e->declined = !make_step(e, &e->main, pd) || is_ref(pd);
    }
    md_clear(&a), md_clear(&b), md_clear(&c), md_clear(&bias);
    return e->declined ? NULL : e;
}

/* Small products many to a part, a larger 16-bit one in tiles of rows. */
static int small_products(struct tn_pool *pool, product *w, tn_errbuf *err)
{
    tn_gemm *g = &w->g;
    double room = PART_FLOPS / (2.0 * (double)g->m * (double)g->n * (double)g->k);
    int64_t parts = 1;
    for (int d = g->batch_ndim - 1; d >= 0; d--) {
        w->per[d] = divisor(g->batch[d], room);
        if (w->per[d] < g->batch[d]) room = 0; /* only whole inner dimensions may be followed by outer ones */
        room /= (double)w->per[d];
        parts *= g->batch[d] / w->per[d];
    }
    w->mt = g->m;
    if (g->dtype != TN_F32 && room < 1) {
        double row = 2.0 * (double)g->n * (double)g->k;
        w->mt = min64(g->m, max64(64, (int64_t)(2 * PART_FLOPS / row) / 16 * 16));
    }
    w->m_tiles = ceil_div(g->m, w->mt);
    int before = one_thread(w->d);
    w->last = matmul_entry(w, g->m - (w->m_tiles - 1) * w->mt);
    w->e = matmul_entry(w, w->mt);
    bool slots =
        w->e && w->last && have_slots(w->d, tn_pool_threads(pool), max64(w->e->scratch, w->last->scratch));
    as_before(w->d, before);
    if (!w->e || !w->last) return TN_CPU_DECLINED;
    if (!slots) return tn_cpu_fail(err, TN_E_NOMEM, "gemm: no memory for the scratchpads of oneDNN");
    tn_pool_run(pool, run_matmul, w, parts * w->m_tiles, 1);
    return TN_OK;
}

/* Drops batch dimensions of 1 and merges those that run on from each other in all three. */
static int64_t merge_batch(tn_gemm *g)
{
    int nd = 0;
    int64_t batches = 1;
    for (int d = 0; d < g->batch_ndim; d++) {
        int64_t n = g->batch[d], a = g->a_batch[d], b = g->b_batch[d], c = g->c_batch[d];
        batches *= n;
        if (n == 1) continue;
        int o = nd - 1;
        if (nd && g->a_batch[o] == n * a && g->b_batch[o] == n * b && g->c_batch[o] == n * c)
            g->batch[o] *= n;
        else
            o = nd++, g->batch[o] = n;
        g->a_batch[o] = a, g->b_batch[o] = b, g->c_batch[o] = c;
    }
    g->batch_ndim = nd;
    return batches;
}

int tn_dnnl_gemm(tn_cpu_lib *lib, tn_dnnl *d, struct tn_pool *pool, const tn_gemm *request, tn_errbuf *err)
{
    product w = {.d = d, .g = *request, .per = {1, 1, 1, 1}};
    dnnl_data_type_t type;
    if (!data_type(request->dtype, &type)) return TN_CPU_DECLINED;
    int64_t batches = merge_batch(&w.g);
    double flops = 2.0 * (double)w.g.m * (double)w.g.n * (double)w.g.k;
    bool small = w.g.dtype != TN_F32 || (batches > 1 && flops <= SMALL_FLOPS);
    int s = small ? small_products(pool, &w, err) : large_product(lib, pool, &w, batches, err);
    if (s == TN_OK && (s = atomic_load(&w.status)) != TN_OK)
        return tn_cpu_fail(err, s, "gemm: oneDNN failed on %lld x %lld x %lld", (long long)w.g.m,
                           (long long)w.g.n, (long long)w.g.k);
    return s;
}

/* ---- convolutions ---- */

typedef struct conv {
    tn_dnnl *d;
    const tn_conv2d_desc *c;
    const entry *e;
    int64_t images;           /* of one group */
    int64_t x_image, y_image; /* bytes */
    const void *weight;       /* as oneDNN wants it */
    char *partials;
    int64_t parts, weights; /* partial sums and the elements of one */
    float *sum;
    atomic_int status;
} conv;

static void run_images(void *arg, int64_t begin, int64_t end)
{
    conv *w = arg;
    const tn_conv2d_desc *c = w->c;
    for (int64_t i = begin; i < end; i++) {
        int64_t x = i * w->images * w->x_image, y = i * w->images * w->y_image;
        int s;
        if (c->pass == TN_CONV_FORWARD) {
            char *out = (char *)c->out + y;
            operand op[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, (const char *)c->in0 + x},
                            {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, w->weight},
                            {DNNL_ARG_DST, dnnl_query_dst_md, 0, out},
                            {DNNL_ARG_BIAS, dnnl_query_weights_md, 1, c->bias}};
            s = execute(w->d, &w->e->main, op, c->bias ? 4 : 3);
            if (c->epilogue == TN_EPI_RELU) {
                int64_t n = w->images * c->oh * c->ow * c->oc;
                tn_bias_relu(c->dtype, out, n, 1, n, NULL, true);
            }
        } else if (c->pass == TN_CONV_DATA_GRAD) {
            operand op[] = {{DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0, (const char *)c->in0 + y},
                            {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, w->weight},
                            {DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0, (char *)c->out + x}};
            s = execute(w->d, &w->e->main, op, 3);
        } else {
            operand op[] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, (const char *)c->in0 + x},
                            {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0, (const char *)c->in1 + y},
                            {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0,
                             w->partials + i * (int64_t)w->e->weight_bytes}};
            bool rest = w->e->rest.prim && i == w->parts - 1;
            s = execute(w->d, rest ? &w->e->rest : &w->e->main, op, 3);
        }
        if (s) atomic_store(&w->status, s);
    }
}

static void run_sum(void *arg, int64_t begin, int64_t end)
{
    const conv *w = arg;
    int64_t one = (int64_t)(w->e->weight_bytes / sizeof(float));
    const float *p = (const float *)(const void *)w->partials;
    for (int64_t i = begin; i < end; i++) w->sum[i] = p[i] + p[i + one];
    for (int64_t q = 2; q < w->parts; q++) {
        for (int64_t i = begin; i < end; i++) w->sum[i] += p[q * one + i];
    }
}

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

int tn_dnnl_conv2d(tn_cpu_lib *lib, tn_dnnl *d, struct tn_pool *pool, const tn_conv2d_desc *c,
                   tn_device_stats *stats, tn_errbuf *err)
{
    if (c->dtype != TN_F32) return TN_CPU_DECLINED;
    bool wgrad = c->pass == TN_CONV_WEIGHT_GRAD;
    int64_t es = (int64_t)tn_dtype_size(c->dtype);
    conv w = {.d = d, .c = c, .x_image = c->h * c->w * c->c * es, .y_image = c->oh * c->ow * c->oc * es};
    w.weights = c->oc * c->kh * c->kw * (c->c / c->groups);
    double flops = 2.0 * (double)(c->oh * c->ow) * (double)w.weights;
    if (wgrad) {
        int64_t fewest = max64(ceil_div(c->n, PARTIALS), ceil_div(PARTIAL_PIXELS, c->oh * c->ow));
        w.images = min64(c->n, max64(fewest, ceil_div(c->n * w.weights * 4, PARTIAL_BYTES)));
    } else {
        w.images = divisor(c->n, PART_FLOPS / flops);
    }
    w.parts = ceil_div(c->n, w.images);
    int64_t rest = c->n - (w.parts - 1) * w.images;

    key k = {.kind = KIND_CONV,
             .v = {c->dtype,  c->pass,        w.images,       rest,           c->h,      c->w,
                   c->c,      c->oc,          c->kh,          c->kw,          c->oh,     c->ow,
                   c->groups, c->stride[0],   c->stride[1],   c->pad[0],      c->pad[1], c->pad[2],
                   c->pad[3], c->dilation[0], c->dilation[1], c->bias != NULL}};
    bool found, slots = true;
    int before = one_thread(d);
    entry *e = find_entry(d, &k, &found);
    if (!found) make_conv(d, e, c, w.images, rest);
    if (!e->declined) slots = have_slots(d, tn_pool_threads(pool), e->scratch);
    as_before(d, before);
    if (e->declined) return TN_CPU_DECLINED;
    w.e = e;
    bool reorder = e->reorder.prim != NULL;
    size_t need = e->weight_bytes * (size_t)(wgrad ? w.parts : 1);
    char *scratch = slots && (reorder || w.parts > 1) ? tn_cpu_scratch(lib, TN_SCRATCH_PACK, need) : NULL;
    if (!slots || (!scratch && (reorder || (wgrad && w.parts > 1))))
        return tn_cpu_fail(err, TN_E_NOMEM, "conv2d: no memory for the workspace of oneDNN");

    int s = TN_OK;
    if (!wgrad) {
        w.weight = c->in1;
        if (reorder) {
            operand op[] = {{DNNL_ARG_FROM, dnnl_query_src_md, 0, c->in1},
                            {DNNL_ARG_TO, dnnl_query_dst_md, 0, scratch}};
            s = execute(d, &e->reorder, op, 2);
            w.weight = scratch;
        }
        if (!s) tn_pool_run(pool, run_images, &w, w.parts, 1);
    } else {
        w.partials = w.parts > 1 || reorder ? scratch : c->out;
        tn_pool_run(pool, run_images, &w, w.parts, 1);
        int64_t n = (int64_t)(e->weight_bytes / sizeof(float));
        w.sum = (float *)(void *)(reorder ? w.partials : (char *)c->out);
        if (w.parts > 1) tn_pool_run(pool, run_sum, &w, reorder ? n : w.weights, SUM_CHUNK);
        if (reorder) {
            operand op[] = {{DNNL_ARG_FROM, dnnl_query_src_md, 0, w.partials},
                            {DNNL_ARG_TO, dnnl_query_dst_md, 0, c->out}};
            s = execute(d, &e->reorder, op, 2);
        }
    }
    if (reorder && stats) stats->reorders++;
    if (!s) s = atomic_load(&w.status);
    if (s) return tn_cpu_fail(err, s, "conv2d: oneDNN failed");
    return TN_OK;
}

#endif
