/* conv_depthwise.c - convolutions in which each channel is a group of its own, vectors across
 * channels.
 *
 * The result's pixels are sums over taps of source pixels times weights, for the data gradient as for the
 * forward pass: only the pixel that a tap reads differs. The weight gradient is cut into runs of images; each
 * gives a partial sum, of sums of rows, and they are added in order. Bodies are written once, with vectors of
 * the compiler, and compiled for each instruction set.
 * Read first: tn_conv2d_depthwise, then pixels. */
#include "cpu_lib.h"
#include "gemm_kernel.h"
#include "pool.h"
#include "vectors.h"
#include "../../core/int64.h"

enum {
    LANES = 16,
    BLOCK = 4 * LANES, /* channels at once */
    SIDE = 4,          /* pixels at once, which read each weight once */
    BAND = 8,          /* rows whose sums are one chain */
    PARTIALS = 16,
    PARTIAL_PIXELS = 1024,
    CHUNK = 1 << 19, /* multiply-adds worth a chunk of their own */
};
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t masks __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

typedef struct work {
    const tn_conv2d_desc *c;
    int64_t h, w, from_h, from_w; /* of what is computed, and of what taps read */
    const float *taps;            /* [kh, kw, channels] */
    const int64_t *column;        /* [w, kw]: where in a row a tap reads, -1: outside */
    int64_t first, last;          /* columns all of whose taps read inside */
    float *partials;              /* weight gradient: taps of each run of images */
    int64_t images, parts;
} work;

/* Rows of one image's gradient, and the channels of it and the weights that are under way. */
typedef struct band {
    int64_t image, first, last, ch;
    float *taps;
    masks counts; /* lanes of channels that the vectors before have not counted: the last one reaches back */
} band;

#define BODY static inline __attribute__((always_inline)) void

/* `count` vectors of channels, from ch on, of `side` pixels side by side; of more than one, no tap reads
 * outside. */
BODY pixels(const int count, const int side, const work *v, int64_t image, int64_t row, int64_t col,
            int64_t ch)
{
    const tn_conv2d_desc *c = v->c;
    const float *from = (const float *)c->in0 + image * v->from_h * v->from_w * c->c + ch;
    float *to = (float *)c->out + ((image * v->h + row) * v->w + col) * c->c + ch;
    lanes sum[SIDE][BLOCK / LANES];
    UNROLL for (int i = 0; i < side; i++)
    {
        UNROLL for (int b = 0; b < count; b++)
        {
            sum[i][b] =
                c->bias ? ((const lanes *)(const void *)((const float *)c->bias + ch))[b] : (lanes){0};
        }
    }
    for (int64_t r = 0; r < c->kh; r++) {
        const int64_t y = tn_conv2d_tap(c, 0, row, r);
        if (y < 0) continue;
        const float *line = from + y * v->from_w * c->c;
        for (int64_t s = 0; s < c->kw; s++) {
            const lanes *w = (const void *)(v->taps + (r * c->kw + s) * c->c + ch);
            const int64_t *x = v->column + col * c->kw + s;
            if (side == 1 && *x < 0) continue;
            UNROLL for (int i = 0; i < side; i++)
            {
                const lanes *p = (const void *)(line + x[i * c->kw]);
                UNROLL for (int b = 0; b < count; b++)
                {
                    sum[i][b] += p[b] * w[b];
                }
            }
        }
    }
    UNROLL for (int i = 0; i < side; i++)
    {
        UNROLL for (int b = 0; b < count; b++)
        {
            if (c->epilogue == TN_EPI_RELU) sum[i][b] = (lanes)((masks)sum[i][b] & ~(sum[i][b] < (lanes){0}));
            ((lanes *)(void *)(to + i * c->c))[b] = sum[i][b];
        }
    }
}

BODY row_of(const int count, const work *v, int64_t image, int64_t row, int64_t ch)
{
    const bool wide = v->last - v->first >= SIDE;
    for (int64_t col = 0; col < v->w;) {
        if (wide && v->first <= col && col < v->last) {
            col = tn_min64(col, v->last - SIDE); /* some twice rather than one by one */
            pixels(count, SIDE, v, image, row, col, ch);
            col += SIDE;
        } else {
            pixels(count, 1, v, image, row, col++, ch);
        }
    }
}

/* Of `side` taps side by side, from (r, s) on: what some columns of a band of the output's gradient add to
 * the weights of some channels. */
BODY taps_of(const int count, const int side, const work *v, const band *at, int64_t r, int64_t s,
             int64_t begin, int64_t end)
{
    const tn_conv2d_desc *c = v->c;
    lanes sum[SIDE][BLOCK / LANES];
    UNROLL for (int i = 0; i < side; i++)
    {
        UNROLL for (int b = 0; b < count; b++)
        {
            sum[i][b] = (lanes){0};
        }
    }
    for (int64_t row = at->first; row < at->last; row++) {
        const int64_t y = tn_conv2d_tap(c, 0, row, r);
        if (y < 0) continue;
        const float *gy = (const float *)c->in1 + ((at->image * c->oh + row) * c->ow + begin) * c->c + at->ch;
        const float *line = (const float *)c->in0 + (at->image * c->h + y) * c->w * c->c + at->ch;
        const int64_t *x = v->column + begin * c->kw + s;
        for (int64_t col = begin; col < end; col++, gy += c->c, x += c->kw) {
            if (side == 1 && *x < 0) continue;
            UNROLL for (int i = 0; i < side; i++)
            {
                const lanes *p = (const void *)(line + x[i]), *g = (const void *)gy;
                UNROLL for (int b = 0; b < count; b++)
                {
                    sum[i][b] += g[b] * p[b];
                }
            }
        }
    }
    UNROLL for (int i = 0; i < side; i++)
    {
        UNROLL for (int b = 0; b < count; b++)
        {
            ((lanes *)(void *)(at->taps + (r * c->kw + s + i) * c->c + at->ch))[b] +=
                (lanes)((masks)sum[i][b] & at->counts);
        }
    }
}

BODY weights(const int count, const work *v, const band *at)
{
    enum { TAPS = 3 };
    const tn_conv2d_desc *c = v->c;
    for (int64_t r = 0; r < c->kh; r++) {
        int64_t s = 0;
        for (; s + TAPS <= c->kw; s += TAPS) {
            taps_of(count, TAPS, v, at, r, s, v->first, v->last);
            for (int64_t i = s; i < s + TAPS; i++) {
                taps_of(count, 1, v, at, r, i, 0, v->first);
                taps_of(count, 1, v, at, r, i, v->last, c->ow);
            }
        }
        for (; s < c->kw; s++) taps_of(count, 1, v, at, r, s, 0, c->ow);
    }
}

BODY rows(const work *v, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        int64_t ch = 0;
        for (; ch + BLOCK <= v->c->c; ch += BLOCK) row_of(BLOCK / LANES, v, i / v->h, i % v->h, ch);
        for (; ch + 2 * LANES <= v->c->c; ch += 2 * LANES) row_of(2, v, i / v->h, i % v->h, ch);
        for (; ch < v->c->c; ch += LANES)
            row_of(1, v, i / v->h, i % v->h,
                   tn_min64(ch, v->c->c - LANES)); /* some twice, if they do not fit */
    }
}

BODY runs(const work *v, int64_t begin, int64_t end)
{
    const tn_conv2d_desc *c = v->c;
    for (int64_t i = begin; i < end; i++) {
        float *taps = v->partials + i * c->kh * c->kw * c->c;
        memset(taps, 0, (size_t)(c->kh * c->kw * c->c) * sizeof *taps);
        band at = {.image = i * v->images, .taps = taps, .counts = (masks){0} - 1};
        for (; at.image < tn_min64(c->n, (i + 1) * v->images); at.image++) {
            for (at.first = 0; at.first < c->oh; at.first = at.last) {
                at.last = tn_min64(c->oh, at.first + BAND);
                at.ch = 0;
                for (; at.ch + BLOCK <= c->c; at.ch += BLOCK) weights(BLOCK / LANES, v, &at);
                for (; at.ch + 2 * LANES <= c->c; at.ch += 2 * LANES) weights(2, v, &at);
                for (; at.ch + LANES <= c->c; at.ch += LANES) weights(1, v, &at);
                if (at.ch == c->c) continue;
                for (int lane = 0; lane < LANES; lane++) at.counts[lane] = -(lane >= at.ch + LANES - c->c);
                at.ch = c->c - LANES;
                weights(1, v, &at);
                at.counts |= -1;
            }
        }
    }
}

#define COMPILED(name, target)                                                                               \
    static target void rows_##name(void *v, int64_t begin, int64_t end)                                      \
    {                                                                                                        \
        rows(v, begin, end);                                                                                 \
    }                                                                                                        \
    static target void runs_##name(void *v, int64_t begin, int64_t end)                                      \
    {                                                                                                        \
        runs(v, begin, end);                                                                                 \
    }
COMPILED(base, )
#if X86
COMPILED(avx2, __attribute__((target("avx2"))))
COMPILED(avx512, __attribute__((target("avx512f,avx2"))))
#endif

static void run(struct tn_pool *pool, work *v, bool whole_runs, int64_t n, int64_t grain)
{
    void (*body)(void *, int64_t, int64_t) = whole_runs ? runs_base : rows_base;
#if X86
    if (__builtin_cpu_supports("avx512f"))
        body = whole_runs ? runs_avx512 : rows_avx512;
    else if (__builtin_cpu_supports("avx2"))
        body = whole_runs ? runs_avx2 : rows_avx2;
#endif
    tn_pool_run(pool, body, v, n, grain);
}

bool tn_conv2d_is_depthwise(const tn_conv2d_desc *c)
{
    return c->dtype != TN_F64 && c->groups == c->c && c->oc == c->c && c->c >= LANES;
}

/* n numbers of 16 bits to floats, or floats to them. */
typedef struct change {
    tn_dtype dtype;
    const void *from;
    void *to;
    bool narrows;
} change;

static void run_change(void *arg, int64_t begin, int64_t end)
{
    const change *g = arg;
    if (g->narrows)
        tn_narrow_floats(g->dtype, (const float *)g->from + begin, (uint16_t *)g->to + begin, end - begin);
    else
        tn_widen_floats(g->dtype, (const uint16_t *)g->from + begin, (float *)g->to + begin, end - begin);
}

/* Of 16 bits: by way of floats. There is little to compute, and each number is read several times. */
static int widened(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    enum { CHANGED = 1 << 16, OPERANDS = 4 };
    const int64_t x = c->n * c->h * c->w * c->c, y = c->n * c->oh * c->ow * c->c, w = c->kh * c->kw * c->c;
    const bool back = c->pass == TN_CONV_DATA_GRAD, wgrad = c->pass == TN_CONV_WEIGHT_GRAD;
    const int64_t n[OPERANDS] = {back ? y : x, wgrad ? y : w, c->bias ? c->c : 0, back ? x : wgrad ? w : y};
    const void *from[OPERANDS] = {c->in0, c->in1, c->bias, NULL};
    float *at = tn_cpu_scratch(lib, TN_SCRATCH_WIDE, (size_t)(n[0] + n[1] + n[2] + n[3]) * sizeof *at);
    if (!at) return tn_err(err, TN_E_NOMEM, "conv2d: no memory for a depthwise convolution in f32");
    float *wide[OPERANDS];
    for (int i = 0; i < OPERANDS; at += n[i++]) {
        wide[i] = at;
        change g = {.dtype = c->dtype, .from = from[i], .to = at};
        if (from[i]) tn_pool_run(pool, run_change, &g, n[i], CHANGED);
    }
    tn_conv2d_desc f = *c;
    f.dtype = TN_F32, f.in0 = wide[0], f.in1 = wide[1], f.bias = c->bias ? wide[2] : NULL, f.out = wide[3];
    const int s = tn_conv2d_depthwise(lib, pool, &f, err);
    change g = {.dtype = c->dtype, .from = wide[3], .to = c->out, .narrows = true};
    if (!s) tn_pool_run(pool, run_change, &g, n[3], CHANGED);
    return s;
}

int tn_conv2d_depthwise(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    if (c->dtype != TN_F32) return widened(lib, pool, c, err);
    const bool back = c->pass == TN_CONV_DATA_GRAD, wgrad = c->pass == TN_CONV_WEIGHT_GRAD;
    const int64_t taps = c->kh * c->kw,
                  fewest = tn_max64(tn_ceil_div(c->n, PARTIALS), tn_ceil_div(PARTIAL_PIXELS, c->oh * c->ow));
    work v = {.c = c,
              .h = back ? c->h : c->oh,
              .w = back ? c->w : c->ow,
              .from_h = back ? c->oh : c->h,
              .from_w = back ? c->ow : c->w,
              .images = tn_min64(c->n, fewest)};
    v.parts = wgrad ? tn_ceil_div(c->n, v.images) : 1;
    float *scratch = tn_cpu_scratch(lib, TN_SCRATCH_SUM, (size_t)(v.parts * taps * c->c) * sizeof *scratch);
    int64_t *column = tn_cpu_scratch(lib, TN_SCRATCH_PACK, (size_t)(v.w * c->kw) * sizeof *column);
    if (!scratch || !column)
        return tn_err(err, TN_E_NOMEM, "conv2d: no memory for the taps of a depthwise convolution");
    if (tn_pool_rehearses(pool)) return TN_OK;
    for (int64_t i = 0; i < v.w * c->kw; i++) {
        const int64_t x = tn_conv2d_tap(c, 1, i / c->kw, i % c->kw);
        column[i] = x < 0 ? x : x * c->c;
    }
    const int64_t far = c->kw - 1; /* the tap at the other end: both inside, all are, one pixel apart */
    for (v.first = 0; v.first < v.w && (column[v.first * c->kw] | column[v.first * c->kw + far]) < 0;)
        v.first++;
    for (v.last = v.first; v.last < v.w && (column[v.last * c->kw] | column[v.last * c->kw + far]) >= 0;)
        v.last++;
    if (back && c->stride[1] > 1) v.last = v.first;
    v.column = column, v.partials = scratch, v.taps = scratch;
    if (!wgrad) {
        const float *w = c->in1;
        for (int64_t i = 0; i < taps * c->c; i++) scratch[i] = w[i % c->c * taps + i / c->c];
        run(pool, &v, false, c->n * v.h, tn_max64(1, CHUNK / (v.w * taps * c->c)));
        return TN_OK;
    }
    run(pool, &v, true, v.parts, 1);
    float *gw = c->out;
    for (int64_t i = 0; i < taps * c->c; i++) {
        for (int64_t q = 1; q < v.parts; q++) scratch[i] += scratch[q * taps * c->c + i];
        gw[i % c->c * taps + i / c->c] = scratch[i];
    }
    return TN_OK;
}
