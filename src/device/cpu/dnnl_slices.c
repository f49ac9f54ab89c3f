/* dnnl_slices.c - cuts 16-bit products and convolutions into slices for oneDNN, one thread each.
 *
 * Products are matmul primitives over equal parts of the work, convolutions primitives over equal groups of
 * images, with weights in the layout oneDNN asks for (one reorder a call). A weight gradient is one partial
 * sum per group of images, added in order afterwards. All cuts depend on shapes only; the sizes below were
 * measured. Read first: tn_dnnl_gemm and tn_dnnl_conv2d. */
#include "dnnl.h"

#ifdef TN_HAVE_DNNL

#include "gemm_kernel.h"
#include "pool.h"
#include "vectors.h"
#include "../../core/int64.h"

#include <stdatomic.h>

enum {
    PARTIALS = 16,            /* of a weight gradient, at most */
    PARTIAL_PIXELS = 2048,    /* each covers at least so many, or adding them up would show */
    PARTIAL_BYTES = 32 << 20, /* all of them together */
    SUM_CHUNK = 1 << 14,      /* elements */
    TURNED = 32,              /* a line of 16-bit numbers */
};
static const double PART_FLOPS = 4e6;

/* The largest divisor of n that is at most `most`, at least 1. */
static int64_t divisor(int64_t n, double most)
{
    for (int64_t d = most < (double)n ? (int64_t)most : n; d > 1; d--) {
        if (n % d == 0) return d;
    }
    return 1;
}

/* In place; NaN stays NaN. A 16-bit float is negative and no NaN when its bits lie between -0 and -infinity.
 */
static void relu(tn_dtype type, void *rows, int64_t ld, int64_t m, int64_t n)
{
    const unsigned last = type == TN_F16 ? 0xfc00 : 0xff80;
    for (int64_t i = 0; i < m; i++) {
        float *r = (float *)rows + i * ld;
        uint16_t *h = (uint16_t *)rows + i * ld;
        int64_t j = 0;
        if (type != TN_F32) {
            for (; j < n; j++) h[j] = h[j] > 0x8000 && h[j] <= last ? 0 : h[j];
            continue;
        }
        for (; j + 4 <= n; j += 4) {
            vec_f32 v = load_f32(r + j);
            v = (vec_f32)((vec_i32)v & ~(v < (vec_f32){0, 0, 0, 0}));
            memcpy(r + j, &v, sizeof v);
        }
        for (; j < n; j++) r[j] = r[j] < 0 ? 0 : r[j];
    }
}

/* ---- products ---- */

typedef struct product {
    tn_dnnl *d;
    tn_gemm g;                       /* batch dimensions merged */
    int64_t mt, m_tiles;             /* tiles of rows of one entry */
    const tn_dnnl_prim *e, *last;    /* matmul: for the last, shorter tile of rows too */
    int64_t per[TN_GEMM_BATCH_DIMS]; /* entries of one part, by dimension */
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
            relu(g->dtype, c + off * es, g->c_row, tn_min64(w->mt, g->m - i), g->n);
            more = false;
            for (int d = g->batch_ndim - 1; d >= 0 && !more; d--) {
                more = ++inner[d] < w->per[d];
                if (!more) inner[d] = 0;
            }
        }
    }
}

/* A whose columns run along m, with rows along k instead. */
typedef struct turn {
    const uint16_t *from;
    uint16_t *to;
    int64_t m, k, ld;
} turn;

static void run_turn(void *arg, int64_t begin, int64_t end)
{
    const turn *t = arg;
    for (int64_t i = begin * TURNED; i < t->m && i < end * TURNED; i += TURNED)
        tn_pack_transpose(TN_BF16, t->from + i, t->ld, t->k, tn_min64(TURNED, t->m - i), t->to + i * t->k,
                          t->k);
}

/* Small products many to a part, a larger one in tiles of rows. Each tile would turn an A whose columns run
 * along m for itself, in short runs that lie far apart: turned beforehand, a weight gradient takes half as
 * long (measured). */
static int products(tn_cpu_lib *lib, struct tn_pool *pool, product *w, tn_errbuf *err)
{
    tn_gemm *g = &w->g;
    turn t = {.from = g->a, .m = g->m, .k = g->k, .ld = g->a_col};
    const bool turned =
        g->a_row == 1 && g->a_col > 1 && !g->batch_ndim && g->m >= TURNED && g->n >= TURNED && g->k >= TURNED;
    if (turned) g->a_row = g->k, g->a_col = 1;
    double room = PART_FLOPS / (2.0 * (double)g->m * (double)g->n * (double)g->k);
    int64_t parts = 1;
    for (int d = g->batch_ndim - 1; d >= 0; d--) {
        w->per[d] = divisor(g->batch[d], room);
        if (w->per[d] < g->batch[d]) room = 0; /* only whole inner dimensions may be followed by outer ones */
        room /= (double)w->per[d];
        parts *= g->batch[d] / w->per[d];
    }
    w->mt = g->m;
    if (room < 1) {
        double row = 2.0 * (double)g->n * (double)g->k;
        w->mt = tn_min64(g->m, tn_max64(64, (int64_t)(2 * PART_FLOPS / row) / 16 * 16));
    }
    w->m_tiles = tn_ceil_div(g->m, w->mt);
    w->last = tn_dnnl_matmul(w->d, g, g->m - (w->m_tiles - 1) * w->mt, w->per);
    w->e = tn_dnnl_matmul(w->d, g, w->mt, w->per);
    if (!w->e || !w->last) return TN_CPU_DECLINED;
    if (!tn_dnnl_ready(w->d, tn_pool_threads(pool), w->e, w->last))
        return tn_err(err, TN_E_NOMEM, "gemm: no memory for the scratchpads of oneDNN");
    if (turned) {
        t.to = tn_cpu_scratch(lib, TN_SCRATCH_PACK, (size_t)(t.m * t.k) * sizeof *t.to);
        if (!t.to) return tn_err(err, TN_E_NOMEM, "gemm: no memory for a transposed operand");
        tn_pool_run(pool, run_turn, &t, tn_ceil_div(t.m, TURNED), 1);
        g->a = t.to;
    }
    tn_pool_run(pool, run_matmul, w, parts * w->m_tiles, 1);
    return TN_OK;
}

/* Drops batch dimensions of 1 and merges those that run on from each other in all three. */
static void merge_batch(tn_gemm *g)
{
    int nd = 0;
    for (int d = 0; d < g->batch_ndim; d++) {
        int64_t n = g->batch[d], a = g->a_batch[d], b = g->b_batch[d], c = g->c_batch[d];
        if (n == 1) continue;
        int o = nd - 1;
        if (nd && g->a_batch[o] == n * a && g->b_batch[o] == n * b && g->c_batch[o] == n * c)
            g->batch[o] *= n;
        else
            o = nd++, g->batch[o] = n;
        g->a_batch[o] = a, g->b_batch[o] = b, g->c_batch[o] = c;
    }
    g->batch_ndim = nd;
}

int tn_dnnl_gemm(tn_cpu_lib *lib, tn_dnnl *d, struct tn_pool *pool, const tn_gemm *request, tn_errbuf *err)
{
    product w = {.d = d, .g = *request, .per = {1, 1, 1, 1}};
    if (request->dtype != TN_F16 && request->dtype != TN_BF16) return TN_CPU_DECLINED;
    merge_batch(&w.g);
    int s = products(lib, pool, &w, err);
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
        if (c->epilogue == TN_EPI_RELU) relu(c->dtype, out, n, 1, n);
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
