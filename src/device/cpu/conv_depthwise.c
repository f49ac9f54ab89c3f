/* conv_depthwise.c - convolutions in which each channel is a group of its own, vectors across
 * channels.
 *
 * The result's pixels are sums over taps of source pixels times weights, for the data gradient as for the
 * forward pass: only the pixel that a tap reads differs. The weight gradient is cut into runs of images; each
 * gives a partial sum, of sums of rows, and they are added in order. Windows of 3 x 3 slide where
 * conv_slide.c serves. The other bodies are written once, with vectors of the compiler, and compiled for each
 * instruction set; what is 16 bits wide they have beside, as floats. Read first: tn_conv2d_depthwise, then
 * pixels. */
#include "conv_slide.h"
#include "cpu_lib.h"
#include "gemm_kernel.h"
#include "pool.h"
#include "slots.h"
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
    const float *bias;
    bool slides;
    bool narrow;       /* operands are 16 bits wide: floats in a slot of each thread */
    int64_t wide_from; /* floats of a slot that operands have; results behind them */
    tn_slots *slots;
} work;

/* Rows of one image's gradient, and the channels of it and the weights that are under way. */
typedef struct band {
    int64_t image, first, last, ch;
    float *taps;
    const float *x, *gy; /* of the image */
    masks counts; /* lanes of channels that the vectors before have not counted: the last one reaches back */
} band;

#define BODY static inline __attribute__((always_inline)) void

/* `count` vectors of channels, from ch on, of `side` pixels side by side; of more than one, no tap reads
 * outside. */
BODY pixels(const int count, const int side, const work *v, const float *image, float *line, int64_t row,
            int64_t col, int64_t ch)
{
    const tn_conv2d_desc *c = v->c;
    const float *from = image + ch;
    float *to = line + col * c->c + ch;
    lanes sum[SIDE][BLOCK / LANES];
    UNROLL(int i = 0; i < side; i++) {
        UNROLL(int b = 0; b < count; b++) {
            sum[i][b] = v->bias ? ((const lanes *)(const void *)(v->bias + ch))[b] : (lanes){0};
        }
    }
    for (int64_t r = 0; r < c->kh; r++) {
        const int64_t y = tn_conv2d_tap(c, 0, row, r);
        if (y < 0) continue;
        const float *read = from + y * v->from_w * c->c;
        for (int64_t s = 0; s < c->kw; s++) {
            const lanes *w = (const void *)(v->taps + (r * c->kw + s) * c->c + ch);
            const int64_t *x = v->column + col * c->kw + s;
            if (side == 1 && *x < 0) continue;
            UNROLL(int i = 0; i < side; i++) {
                const lanes *p = (const void *)(read + x[i * c->kw]);
                UNROLL(int b = 0; b < count; b++) sum[i][b] += p[b] * w[b];
            }
        }
    }
    UNROLL(int i = 0; i < side; i++) {
        UNROLL(int b = 0; b < count; b++) {
            if (c->epilogue == TN_EPI_RELU) sum[i][b] = (lanes)((masks)sum[i][b] & ~(sum[i][b] < (lanes){0}));
            ((lanes *)(void *)(to + i * c->c))[b] = sum[i][b];
        }
    }
}

BODY row_of(const int count, const work *v, const float *image, float *line, int64_t row, int64_t ch)
{
    const bool wide = v->last - v->first >= SIDE;
    for (int64_t col = 0; col < v->w;) {
        if (wide && v->first <= col && col < v->last) {
            col = tn_min64(col, v->last - SIDE); /* some twice rather than one by one */
            pixels(count, SIDE, v, image, line, row, col, ch);
            col += SIDE;
        } else {
            pixels(count, 1, v, image, line, row, col++, ch);
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
    UNROLL(int i = 0; i < side; i++) {
        UNROLL(int b = 0; b < count; b++) sum[i][b] = (lanes){0};
    }
    for (int64_t row = at->first; row < at->last; row++) {
        const int64_t y = tn_conv2d_tap(c, 0, row, r);
        if (y < 0) continue;
        const float *gy = at->gy + (row * c->ow + begin) * c->c + at->ch;
        const float *line = at->x + y * c->w * c->c + at->ch;
        const int64_t *x = v->column + begin * c->kw + s;
        for (int64_t col = begin; col < end; col++, gy += c->c, x += c->kw) {
            if (side == 1 && *x < 0) continue;
            UNROLL(int i = 0; i < side; i++) {
                const lanes *p = (const void *)(line + x[i]), *g = (const void *)gy;
                UNROLL(int b = 0; b < count; b++) sum[i][b] += g[b] * p[b];
            }
        }
    }
    UNROLL(int i = 0; i < side; i++) {
        UNROLL(int b = 0; b < count; b++) {
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

/* Rows [begin, end) of one image, of results at `to`. */
BODY rows_of(const work *v, const float *image, float *to, int64_t begin, int64_t end)
{
    const int64_t all = v->c->c;
    for (int64_t row = begin; row < end; row++, to += v->w * all) {
        int64_t ch = 0;
        for (; ch + BLOCK <= all; ch += BLOCK) row_of(BLOCK / LANES, v, image, to, row, ch);
        for (; ch + 2 * LANES <= all; ch += 2 * LANES) row_of(2, v, image, to, row, ch);
        for (; ch < all; ch += LANES)
            row_of(1, v, image, to, row, tn_min64(ch, all - LANES)); /* some twice, if they do not fit */
    }
}

BODY rows(const work *v, int64_t begin, int64_t end)
{
    const tn_conv2d_desc *c = v->c;
    const int64_t size = v->from_h * v->from_w * c->c, line = v->w * c->c, wide = v->from_w * c->c;
    const int mine = v->narrow ? tn_take_slot(v->slots) : 0;
    for (int64_t i = begin, stop; i < end; i = stop) {
        const int64_t image = i / v->h, first = i % v->h;
        stop = tn_min64(end, (image + 1) * v->h);
        if (!v->narrow) {
            rows_of(v, (const float *)c->in0 + image * size, (float *)c->out + i * line, first,
                    first + stop - i);
            continue;
        }
        int64_t y0 = v->from_h, y1 = 0; /* rows that are read */
        for (int64_t q = 0; q < (stop - i) * c->kh; q++) {
            const int64_t y = tn_conv2d_tap(c, 0, first + q / c->kh, q % c->kh);
            if (y >= 0) y0 = tn_min64(y0, y), y1 = tn_max64(y1, y + 1);
        }
        float *from = tn_slot(v->slots, mine), *to = from + v->wide_from;
        if (y1 > y0)
            tn_widen_floats(c->dtype, (const uint16_t *)c->in0 + image * size + y0 * wide, from,
                            (y1 - y0) * wide);
        rows_of(v, from - (y1 > y0 ? y0 * wide : 0), to, first, first + stop - i);
        tn_narrow_floats(c->dtype, to, (uint16_t *)c->out + i * line, (stop - i) * line);
    }
    if (v->narrow) tn_give_slot(v->slots, mine);
}

BODY runs(const work *v, int64_t begin, int64_t end)
{
    const tn_conv2d_desc *c = v->c;
    const int64_t x = c->h * c->w * c->c, y = c->oh * c->ow * c->c;
    const int mine = v->narrow ? tn_take_slot(v->slots) : 0;
    for (int64_t i = begin; i < end; i++) {
        float *taps = v->partials + i * c->kh * c->kw * c->c;
        memset(taps, 0, (size_t)(c->kh * c->kw * c->c) * sizeof *taps);
        band at = {.image = i * v->images, .taps = taps, .counts = (masks){0} - 1};
        for (; at.image < tn_min64(c->n, (i + 1) * v->images); at.image++) {
            at.x = (const float *)c->in0 + at.image * x, at.gy = (const float *)c->in1 + at.image * y;
            if (v->narrow) {
                float *wide = tn_slot(v->slots, mine);
                tn_widen_floats(c->dtype, (const uint16_t *)c->in0 + at.image * x, wide, x);
                tn_widen_floats(c->dtype, (const uint16_t *)c->in1 + at.image * y, wide + x, y);
                at.x = wide, at.gy = wide + x;
            }
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
    if (v->narrow) tn_give_slot(v->slots, mine);
}

/* ---- windows that slide ---- */

static tn_slide slide_of(const work *v)
{
    const tn_conv2d_desc *c = v->c;
    const bool back = c->pass == TN_CONV_DATA_GRAD;
    return (tn_slide){.dtype = c->dtype,
                      .channels = c->c,
                      .count = v->w,
                      .width = v->from_w,
                      .step = back ? 1 : c->stride[1],
                      .first = back ? c->pad[2] - (c->kw - 1) : -c->pad[2],
                      .ahead =
                          (back ? 1 : c->stride[0]) * v->from_w * c->c * (int64_t)tn_dtype_size(c->dtype),
                      .taps = (float *)v->taps,
                      .bias = v->bias,
                      .relu = c->epilogue == TN_EPI_RELU};
}

/* What `row` of an image's results reads, of the image's lines of `bytes`. */
static void lines_of(const tn_conv2d_desc *c, const char *image, int64_t bytes, int64_t row,
                     const char *line[3])
{
    for (int64_t r = 0; r < c->kh; r++) {
        const int64_t y = tn_conv2d_tap(c, 0, row, c->pass == TN_CONV_DATA_GRAD ? c->kh - 1 - r : r);
        line[r] = y < 0 ? NULL : image + y * bytes;
    }
}

static void slide_rows(void *arg, int64_t begin, int64_t end)
{
    const work *v = arg;
    const tn_conv2d_desc *c = v->c;
    const int64_t pixel = c->c * (int64_t)tn_dtype_size(c->dtype), line = v->from_w * pixel;
    tn_slide s = slide_of(v);
    for (int64_t i = begin; i < end; i++) {
        lines_of(c, (const char *)c->in0 + i / v->h * v->from_h * line, line, i % v->h, s.line);
        tn_slide_results(&s, (char *)c->out + i * v->w * pixel);
    }
}

static void slide_runs(void *arg, int64_t begin, int64_t end)
{
    const work *v = arg;
    const tn_conv2d_desc *c = v->c;
    const int64_t pixel = c->c * (int64_t)tn_dtype_size(c->dtype), line = c->w * pixel,
                  taps = c->kh * c->kw * c->c;
    tn_slide s = slide_of(v);
    for (int64_t i = begin; i < end; i++) {
        s.taps = v->partials + i * taps;
        memset(s.taps, 0, (size_t)taps * sizeof *s.taps);
        const int64_t last = tn_min64(c->n, (i + 1) * v->images) * c->oh;
        for (int64_t row = i * v->images * c->oh; row < last; row++) {
            lines_of(c, (const char *)c->in0 + row / c->oh * c->h * line, line, row % c->oh, s.line);
            tn_slide_weights(&s, (const char *)c->in1 + row * c->ow * pixel);
        }
    }
}

#define COMPILED(name, target)                                                                               \
    static target void rows_##name(void *v, int64_t begin, int64_t end) { rows(v, begin, end); }             \
    static target void runs_##name(void *v, int64_t begin, int64_t end) { runs(v, begin, end); }
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
    if (v->slides) body = whole_runs ? slide_runs : slide_rows;
    tn_pool_run(pool, body, v, n, grain);
}

bool tn_conv2d_is_depthwise(const tn_conv2d_desc *c)
{
    return c->dtype != TN_F64 && c->groups == c->c && c->oc == c->c && c->c >= LANES;
}

int tn_conv2d_depthwise(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    const bool back = c->pass == TN_CONV_DATA_GRAD, wgrad = c->pass == TN_CONV_WEIGHT_GRAD;
    const int64_t taps = c->kh * c->kw, weights = taps * c->c, threads = tn_pool_threads(pool),
                  fewest = tn_max64(tn_ceil_div(c->n, PARTIALS), tn_ceil_div(PARTIAL_PIXELS, c->oh * c->ow));
    tn_slots slots;
    work v = {.c = c,
              .h = back ? c->h : c->oh,
              .w = back ? c->w : c->ow,
              .from_h = back ? c->oh : c->h,
              .from_w = back ? c->ow : c->w,
              .images = tn_min64(c->n, fewest),
              .bias = c->bias,
              .narrow = c->dtype != TN_F32,
              .slots = &slots};
    v.slides = c->kh == 3 && c->kw == 3 && c->dilation[1] == 1 && tn_slide_serves(c->dtype, c->stride[1]) &&
               !(back && c->stride[1] > 1);
    v.parts = wgrad ? tn_ceil_div(c->n, v.images) : 1;
    const int64_t grain = tn_max64(1, tn_min64(v.h, CHUNK / (v.w * weights)));
    /* Of 16 bits, floats beside: weights and bias of all, rows or images of each thread. */
    const int64_t read = tn_min64(v.from_h, back ? (grain + c->kh * c->dilation[0]) / c->stride[0] + 2
                                                 : grain * c->stride[0] + c->kh * c->dilation[0]);
    v.wide_from = wgrad ? c->h * c->w * c->c : read * v.from_w * c->c;
    const int64_t floats = v.slides ? 0 : v.wide_from + (wgrad ? c->oh * c->ow : grain * v.w) * c->c;
    float *scratch = tn_cpu_scratch(lib, TN_SCRATCH_SUM, (size_t)(v.parts * weights) * sizeof *scratch);
    int64_t *column = tn_cpu_scratch(lib, TN_SCRATCH_PACK, (size_t)(v.w * c->kw) * sizeof *column);
    if (!scratch || !column ||
        (v.narrow &&
         !tn_open_slots(&slots, lib, TN_SCRATCH_WIDE, (int)threads, floats * (int64_t)sizeof(float),
                        (weights + c->c) * (int64_t)sizeof(float))))
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
    float *wide = v.narrow ? tn_slot(&slots, slots.n) : NULL;
    if (v.narrow && c->bias) {
        tn_widen_floats(c->dtype, c->bias, wide + weights, c->c);
        v.bias = wide + weights;
    }
    if (!wgrad) {
        const float *w = v.narrow ? wide : c->in1;
        if (v.narrow) tn_widen_floats(c->dtype, c->in1, wide, weights);
        for (int64_t t = 0; t < taps; t++) {
            const int64_t tap = back && v.slides ? taps - 1 - t : t;
            for (int64_t ch = 0; ch < c->c; ch++) scratch[t * c->c + ch] = w[ch * taps + tap];
        }
        run(pool, &v, false, c->n * v.h, grain);
        return TN_OK;
    }
    run(pool, &v, true, v.parts, 1);
    float *gw = v.narrow ? wide : c->out;
    for (int64_t q = 1; q < v.parts; q++)
        for (int64_t i = 0; i < weights; i++) scratch[i] += scratch[q * weights + i];
    for (int64_t ch = 0; ch < c->c; ch++)
        for (int64_t t = 0; t < taps; t++) gw[ch * taps + t] = scratch[t * c->c + ch];
    if (v.narrow) tn_narrow_floats(c->dtype, wide, c->out, weights);
    return TN_OK;
}
