/* dnnl_slices.c - cuts products and convolutions into slices for oneDNN, one thread each.
 *
 * Large f32 products are cut into tiles, each one sgemm. Batches of small ones, and 16-bit products, are
 * matmul primitives over equal parts of the work; convolutions are primitives over equal groups of images,
 * with weights in the layout oneDNN asks for (one reorder a call). A weight gradient is one partial sum per
 * group of images, added in order afterwards. All cuts depend on shapes only; the sizes below were measured.
 * Read first: tn_dnnl_gemm and tn_dnnl_conv2d. */
#include "dnnl.h"

#ifdef TN_HAVE_DNNL

#include "gemm_kernel.h"
#include "pool.h"
#include "../../core/int64.h"

#include <stdatomic.h>

enum {
    PARTIALS = 16,             /* of a weight gradient, at most */
    PARTIAL_PIXELS = 2048,     /* each covers at least so many, or adding them up would show */
    PARTIAL_BYTES = 32 << 20,  /* all of them together */
    SUM_CHUNK = 1 << 14,       /* elements */
    TURNED_ELEMENTS = 1 << 22, /* of a transposed copy at a time */
    EPILOGUE_BYTES = 1 << 19,  /* of C, still in the second-level cache when bias and relu follow */
};
static const double TILE_FLOPS = 6e6, PART_FLOPS = 4e6, SMALL_FLOPS = 32e6;

/* The largest divisor of n that is at most `most`, at least 1. */
static int64_t divisor(int64_t n, double most)
{
    for (int64_t d = most < (double)n ? (int64_t)most : n; d > 1; d--) {
        if (n % d == 0) return d;
    }
    return 1;
}

/* ---- products ---- */

typedef struct product {
    tn_dnnl *d;
    tn_gemm g;                        /* batch dimensions merged */
    int64_t mt, nt, m_tiles, n_tiles; /* tiles of one entry */
    const tn_dnnl_prim *e, *last;     /* matmul: for the last, shorter tile of rows too */
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

typedef struct turn {
    const float *src; /* [rows, cols], row stride lds */
    float *dst;       /* [cols, rows], row stride ldd */
    int64_t rows, cols, lds, ldd;
} turn;

static void run_turn(void *arg, int64_t begin, int64_t end)
{
    const turn *t = arg;
    int64_t i0 = begin * 16, rows = tn_min64(end * 16, t->rows) - i0;
    for (int64_t p = 0; p < t->cols; p += 64)
        tn_pack_transpose(TN_F32, t->src + i0 * t->lds + p, t->lds, rows, tn_min64(64, t->cols - p),
                          t->dst + p * t->ldd + i0, t->ldd);
}

/* A transposed copy; *ldd is its row stride, kept off whole pages. NULL: no memory. */
static const float *transposed(tn_cpu_lib *lib, struct tn_pool *pool, tn_scratch use, const float *src,
                               int64_t rows, int64_t cols, int64_t lds, int64_t *ldd)
{
    turn t = {.src = src, .rows = rows, .cols = cols, .lds = lds};
    t.ldd = *ldd = tn_ceil_div(rows, 16) * 16 + (rows % 256 == 0 ? 16 : 0);
    t.dst = tn_cpu_scratch(lib, use, (size_t)(cols * t.ldd) * sizeof(float));
    if (t.dst) tn_pool_run(pool, run_turn, &t, tn_ceil_div(rows, 16), tn_max64(1, (1 << 11) / cols));
    return t.dst;
}

static void run_sgemm(void *arg, int64_t begin, int64_t end)
{
    product *w = arg;
    const tn_gemm *g = &w->g;
    bool ta = g->a_col != 1, tb = g->b_col != 1;
    int64_t lda = ta ? g->a_col : g->a_row, ldb = tb ? g->b_col : g->b_row;
    for (int64_t t = begin; t < end; t++) {
        int64_t i = t % w->m_tiles * w->mt, j = t / w->m_tiles % w->n_tiles * w->nt;
        int64_t e = t / w->m_tiles / w->n_tiles;
        int64_t m = tn_min64(w->mt, g->m - i), n = tn_min64(w->nt, g->n - j);
        const float *a = (const float *)g->a + offset(w, g->a_batch, e) + i * g->a_row;
        const float *b = (const float *)g->b + offset(w, g->b_batch, e) + j * g->b_col;
        float *c = (float *)g->c + offset(w, g->c_batch, e) + i * g->c_row + j;
        if (!tn_dnnl_sgemm(w->d, ta, tb, m, n, g->k, a, lda, b, ldb, c, g->c_row))
            atomic_store(&w->status, TN_E_DEVICE);
        tn_bias_relu(TN_F32, c, g->c_row, m, n, g->bias ? (const float *)g->bias + j : NULL,
                     g->epilogue == TN_EPI_RELU);
    }
}

/* Leading dimensions as BLAS wants them, also where an extent of 1 made the stride meaningless. */
static bool blas_strides(tn_gemm *g)
{
    if (g->a_col == 1 && g->m == 1) g->a_row = tn_max64(g->a_row, g->k);
    if (g->a_col != 1 && g->k == 1) g->a_col = tn_max64(g->a_col, g->m);
    if (g->b_col == 1 && g->k == 1) g->b_row = tn_max64(g->b_row, g->n);
    if (g->b_col != 1 && g->n == 1) g->b_col = tn_max64(g->b_col, g->k);
    if (g->m == 1) g->c_row = tn_max64(g->c_row, g->n);
    return g->c_row >= g->n && (g->a_col == 1 ? g->a_row >= g->k : g->a_col >= g->m) &&
           (g->b_col == 1 ? g->b_row >= g->n : g->b_col >= g->k);
}

static void sgemm_tiles(struct tn_pool *pool, product *w, int64_t batches)
{
    tn_gemm *g = &w->g;
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    int64_t tiles = flops < TILE_FLOPS ? 1 : flops > 32 * TILE_FLOPS ? 32 : (int64_t)(flops / TILE_FLOPS);
    /* Rows first. Taller tiles where packing B anew for each of them is dear: A read along its columns and a
     * B that leaves the caches. */
    int64_t tall = g->a_col != 1 && g->n * g->k > 1 << 21 ? 192 : 48;
    w->m_tiles = tn_max64(1, tn_min64(tiles, g->m / tall));
    w->n_tiles = tn_max64(1, tn_min64(tn_ceil_div(tiles, w->m_tiles), g->n / 192));
    w->nt = tn_ceil_div(tn_ceil_div(g->n, w->n_tiles), 48) * 48;
    w->n_tiles = tn_ceil_div(g->n, w->nt);
    w->mt = tn_ceil_div(g->m, w->m_tiles);
    if (g->bias || g->epilogue == TN_EPI_RELU)
        w->mt = tn_min64(w->mt, tn_max64(8, EPILOGUE_BYTES / 4 / w->nt));
    w->mt = tn_ceil_div(w->mt, 8) * 8;
    w->m_tiles = tn_ceil_div(g->m, w->mt);
    tn_pool_run(pool, run_sgemm, w, batches * w->m_tiles * w->n_tiles, 1);
}

/* Transposes once what every tile would otherwise transpose for itself, a block of columns at a time: B read
 * along k, when enough rows share it; A read along m, when its rows lie whole pages apart, which sgemm packs
 * at half its speed. */
static int large_product(tn_cpu_lib *lib, struct tn_pool *pool, product *w, int64_t batches, tn_errbuf *err)
{
    if (!blas_strides(&w->g)) return TN_CPU_DECLINED;
    if (!tn_dnnl_sgemm_ready(w->d)) return TN_E_NOMEM;
    const tn_gemm all = w->g;
    bool b_turned = all.b_col != 1 && all.m >= 256 && batches == 1;
    bool a_turned = all.a_col != 1 && all.a_col % 1024 == 0 && all.n >= 256 && batches == 1;
    /* Ours is faster: it packs B by all threads, or reads it in place, and cuts few rows finer. */
    if (!b_turned && (all.b_col != 1 ? all.m <= 4 || all.m > 8 : all.m <= 64)) return TN_CPU_DECLINED;
    int64_t block = tn_max64(96, TURNED_ELEMENTS / all.k / 48 * 48);
    int64_t nb = b_turned ? tn_min64(all.n, block) : all.n, mb = a_turned ? tn_min64(all.m, block) : all.m;
    tn_gemm *g = &w->g;
    for (int64_t j = 0; j < all.n; j += nb) {
        g->n = tn_min64(nb, all.n - j);
        g->b = (const float *)all.b + j * all.b_col;
        g->bias = all.bias ? (const float *)all.bias + j : NULL;
        if (b_turned) {
            g->b = transposed(lib, pool, TN_SCRATCH_PACK, g->b, g->n, all.k, all.b_col, &g->b_row);
            g->b_col = 1;
        }
        for (int64_t i = 0; i < all.m; i += mb) {
            g->m = tn_min64(mb, all.m - i);
            g->a = (const float *)all.a + i * all.a_row;
            g->c = (float *)all.c + i * all.c_row + j;
            if (a_turned) {
                /* A as it stands is [k, m]: its transpose has rows of k. */
                g->a = transposed(lib, pool, TN_SCRATCH_SUM, g->a, all.k, g->m, all.a_col, &g->a_row);
                g->a_col = 1;
            }
            if (!g->a || !g->b) return tn_err(err, TN_E_NOMEM, "gemm: no memory for a transposed operand");
            sgemm_tiles(pool, w, batches);
        }
    }
    w->g = all;
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
        const tn_dnnl_prim *prim = g->m - i < w->mt ? w->last : w->e;
        int s = tn_dnnl_run_matmul(w->d, prim,
                                   (const char *)g->a + (offset(w, g->a_batch, e) + i * g->a_row) * es,
                                   (const char *)g->b + offset(w, g->b_batch, e) * es, g->bias, c);
        if (s) atomic_store(&w->status, s);
        if (g->epilogue != TN_EPI_RELU) continue;
        int64_t inner[TN_GEMM_BATCH_DIMS] = {0}; /* every matrix of the part */
        for (bool more = true; more;) {
            int64_t off = 0;
            for (int d = 0; d < g->batch_ndim; d++) off += inner[d] * g->c_batch[d];
            tn_bias_relu(g->dtype, c + off * es, g->c_row, tn_min64(w->mt, g->m - i), g->n, NULL, true);
            more = false;
            for (int d = g->batch_ndim - 1; d >= 0 && !more; d--) {
                more = ++inner[d] < w->per[d];
                if (!more) inner[d] = 0;
            }
        }
    }
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
        w->mt = tn_min64(g->m, tn_max64(64, (int64_t)(2 * PART_FLOPS / row) / 16 * 16));
    }
    w->m_tiles = tn_ceil_div(g->m, w->mt);
    w->last = tn_dnnl_matmul(w->d, g, g->m - (w->m_tiles - 1) * w->mt, w->per);
    w->e = tn_dnnl_matmul(w->d, g, w->mt, w->per);
    if (!w->e || !w->last) return TN_CPU_DECLINED;
    if (!tn_dnnl_ready(w->d, tn_pool_threads(pool), w->e, w->last))
        return tn_err(err, TN_E_NOMEM, "gemm: no memory for the scratchpads of oneDNN");
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
    if (request->dtype != TN_F32 && request->dtype != TN_F16 && request->dtype != TN_BF16)
        return TN_CPU_DECLINED;
    int64_t batches = merge_batch(&w.g);
    double flops = 2.0 * (double)w.g.m * (double)w.g.n * (double)w.g.k;
    bool small = w.g.dtype != TN_F32 || (batches > 1 && flops <= SMALL_FLOPS);
    int s = small ? small_products(pool, &w, err) : large_product(lib, pool, &w, batches, err);
    if (s == TN_OK && (s = atomic_load(&w.status)) != TN_OK)
        return tn_err(err, s, "gemm: oneDNN failed on %lld x %lld x %lld", (long long)w.g.m, (long long)w.g.n,
                      (long long)w.g.k);
    return s;
}

/* ---- convolutions ---- */

typedef struct conv {
    tn_dnnl *d;
    const tn_conv2d_desc *c;
    const tn_dnnl_prim *prim;
    int64_t images, parts;    /* images of one group; groups */
    int64_t x_image, y_image; /* bytes */
    const void *weight;       /* in the layout wanted */
    char *partials;           /* weight gradient: a result per group */
    int64_t weight_bytes;
    float *sum;
    atomic_int status;
} conv;

static void run_images(void *arg, int64_t begin, int64_t end)
{
    conv *w = arg;
    const tn_conv2d_desc *c = w->c;
    for (int64_t i = begin; i < end; i++) {
        int64_t x = i * w->images * w->x_image, y = i * w->images * w->y_image;
        const char *in0 = c->in0, *in1 = w->weight;
        char *out = c->out;
        if (c->pass == TN_CONV_FORWARD) {
            in0 += x, out += y;
        } else if (c->pass == TN_CONV_DATA_GRAD) {
            in0 += y, out += x;
        } else {
            in0 += x, in1 = (const char *)c->in1 + y, out = w->partials + i * w->weight_bytes;
        }
        int s = tn_dnnl_run_conv(w->d, w->prim, c->pass, i == w->parts - 1, in0, in1, c->bias, out);
        if (s) atomic_store(&w->status, s);
        int64_t n = w->images * c->oh * c->ow * c->oc;
        if (c->epilogue == TN_EPI_RELU) tn_bias_relu(c->dtype, out, n, 1, n, NULL, true);
    }
}

static void run_sum(void *arg, int64_t begin, int64_t end)
{
    const conv *w = arg;
    int64_t one = w->weight_bytes / (int64_t)sizeof(float);
    const float *p = (const float *)(const void *)w->partials;
    for (int64_t i = begin; i < end; i++) w->sum[i] = p[i] + p[i + one];
    for (int64_t q = 2; q < w->parts; q++) {
        for (int64_t i = begin; i < end; i++) w->sum[i] += p[q * one + i];
    }
}

static int weights_first(tn_cpu_lib *lib, struct tn_pool *pool, conv *w)
{
    w->weight = w->c->in1;
    if (tn_dnnl_reorders(w->prim)) {
        void *wanted = tn_cpu_scratch(lib, TN_SCRATCH_PACK, (size_t)w->weight_bytes);
        if (!wanted) return TN_E_NOMEM;
        int s = tn_pool_rehearses(pool) ? TN_OK : tn_dnnl_run_reorder(w->d, w->prim, w->c->in1, wanted);
        if (s) return s;
        w->weight = wanted;
    }
    tn_pool_run(pool, run_images, w, w->parts, 1);
    return TN_OK;
}

static int weights_last(tn_cpu_lib *lib, struct tn_pool *pool, conv *w, int64_t weights)
{
    bool reorder = tn_dnnl_reorders(w->prim);
    w->partials = w->c->out;
    if (reorder || w->parts > 1)
        w->partials = tn_cpu_scratch(lib, TN_SCRATCH_SUM, (size_t)(w->parts * w->weight_bytes));
    if (!w->partials) return TN_E_NOMEM;
    tn_pool_run(pool, run_images, w, w->parts, 1);
    w->sum = reorder ? (float *)(void *)w->partials : w->c->out;
    int64_t n = reorder ? w->weight_bytes / (int64_t)sizeof(float) : weights;
    if (w->parts > 1) tn_pool_run(pool, run_sum, w, n, SUM_CHUNK);
    if (!reorder || tn_pool_rehearses(pool)) return TN_OK;
    return tn_dnnl_run_reorder(w->d, w->prim, w->sum, w->c->out);
}

int tn_dnnl_conv2d(tn_cpu_lib *lib, tn_dnnl *d, struct tn_pool *pool, const tn_conv2d_desc *c,
                   tn_device_stats *stats, tn_errbuf *err)
{
    if (c->dtype != TN_F32 && c->dtype != TN_BF16) return TN_CPU_DECLINED;
    const int64_t es = (int64_t)tn_dtype_size(c->dtype), sum = sizeof(float);
    int64_t pixels = c->oh * c->ow, weights = c->oc * c->kh * c->kw * (c->c / c->groups);
    conv w = {.d = d, .c = c, .x_image = c->h * c->w * c->c * es, .y_image = pixels * c->oc * es};
    bool wgrad = c->pass == TN_CONV_WEIGHT_GRAD;
    if (wgrad) {
        int64_t fewest = tn_max64(tn_ceil_div(c->n, PARTIALS), tn_ceil_div(PARTIAL_PIXELS, pixels));
        w.images = tn_min64(c->n, tn_max64(fewest, tn_ceil_div(c->n * weights * sum, PARTIAL_BYTES)));
    } else {
        w.images = divisor(c->n, PART_FLOPS / (2.0 * (double)pixels * (double)weights));
    }
    w.parts = tn_ceil_div(c->n, w.images);
    w.prim = tn_dnnl_conv(d, c, w.images, c->n - (w.parts - 1) * w.images);
    if (!w.prim) return TN_CPU_DECLINED;
    w.weight_bytes = tn_dnnl_weight_bytes(w.prim);
    int s = TN_E_NOMEM;
    if (tn_dnnl_ready(d, tn_pool_threads(pool), w.prim, NULL))
        s = wgrad ? weights_last(lib, pool, &w, weights) : weights_first(lib, pool, &w);
    if (stats && tn_dnnl_reorders(w.prim)) stats->reorders++;
    if (!s) s = atomic_load(&w.status);
    if (s == TN_E_NOMEM) return tn_err(err, s, "conv2d: no memory for the workspace of oneDNN");
    if (s) return tn_err(err, s, "conv2d: oneDNN failed");
    return TN_OK;
}

#else

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

#endif
