/* conv_plain.c - our own convolution of any kind: products whose left operand stands in a copy of a few lines
 * of the image.
 *
 *   forward           y[pixel, o]      = sum over (s, r, i)  patch of x [pixel, (s, r, i)] * w[o, r, s, i]
 *   data gradient     gx[pixel, i]     = sum over (s, r, o)  patch of gy[pixel, (s, r, o)] * w[o, r, s, i]
 *   weight gradient   gw[(s, r, i), o] = sum over pixels     patch of x [pixel, (s, r, i)] * gy[pixel, o]
 *
 * The copy has padding as zeros and, of each column, the rows that a window reads side by side: a window is
 * one run in memory then, and that of the next pixel begins a constant further on, which is all that the
 * kernels of gemm_kernel.h ask for. Windows that share few columns, or lines too short for a kernel's rows,
 * are copied one by one ("patches").
 *
 * The data gradient of a strided convolution is one of stride 1 for each phase of its pixels, by the taps
 * that reach those; no zero is multiplied. Groups are convolutions of their own. What is wider than its
 * storage is widened as it is copied or packed. The sum of no element depends on how the work is cut; the
 * weight gradient has a fixed number of partial sums, added in order. Read first: tn_conv2d_plain, then axis
 * and fill. */
#include "conv_axis.h"
#include "cpu_lib.h"
#include "gemm_kernel.h"
#include "pool.h"
#include "slots.h"
#include "../../core/int64.h"

#include <string.h>

enum {
    BAND_BYTES = 128 << 10, /* of copied lines */
    B_BYTES = 384 << 10,    /* of packed weights that a band meets at a time */
    SHARES = 3,             /* units of each thread, at least */
    PARTIALS = 16,
    PARTIAL_PIXELS = 1024,
    PARTIAL_BYTES = 32 << 20,
    SUM_CHUNK = 1 << 13,
    LANES = 16, /* no kernel reads further than the next multiple of so many columns */
    NARROW = 8, /* lines of fewer pixels are copied by patches */
};

typedef struct conv {
    const tn_conv2d_desc *c;
    const tn_gemm_kernel *kn;
    int64_t es, cs;                     /* bytes of an element as stored and as computed */
    int64_t from, from_all, to, to_all; /* channels of one group and of all: read, and of results */
    tn_conv_axis y, x;
    int64_t total;                            /* lines of all images */
    bool patches, in_place, flat, b_in_place; /* flat: all pixels of a band are one line */
    int64_t k, column, pixel; /* elements of a window, of a copied column, from one window to the next */
    int64_t runs, jump;       /* of a window, and elements between them */
    int64_t lines, wide;      /* of a band: lines, and pixels of each */
    int64_t chunks;           /* of a line */
    int64_t slices, slice;    /* of columns of the product; columns of one */
    char *packed;
    char *partials;
    int64_t part_lines, parts;
    int64_t copied; /* bytes of a slot that the copy has */
    tn_slots slots;
} conv;

/* ---- the copy ---- */

static int64_t columns_of(const conv *v, int64_t pixels)
{
    if (v->in_place) return v->x.size;
    return v->patches ? pixels : (pixels - 1) * v->x.step + (v->x.taps - 1) * v->x.apart + 1;
}

static inline __attribute__((always_inline)) void copy_const(const char *s, int64_t lds, char *d, int64_t ldd,
                                                             int64_t n, int64_t bytes)
{
    for (int64_t i = 0; i < n; i++) memcpy(d + i * ldd, s + i * lds, (size_t)bytes);
}

/* n pixels, lds and ldd bytes apart. */
static void copy_pixels(const conv *v, const char *s, int64_t lds, char *d, int64_t ldd, int64_t n)
{
    const int64_t bytes = v->from * v->cs;
    if (v->es != v->cs) {
        const bool whole = lds == v->from * v->es && ldd == bytes;
        for (int64_t i = 0; i < (whole ? 1 : n); i++)
            tn_widen_floats(v->c->dtype, s + i * lds, d + i * ldd, whole ? n * v->from : v->from);
        return;
    }
    switch (bytes) { /* as constants: mostly too few for memcpy's call */
    case 4:
        copy_const(s, lds, d, ldd, n, 4);
        break;
    case 12:
        copy_const(s, lds, d, ldd, n, 12);
        break;
    case 64:
        copy_const(s, lds, d, ldd, n, 64);
        break;
    case 128:
        copy_const(s, lds, d, ldd, n, 128);
        break;
    default:
        copy_const(s, lds, d, ldd, n, bytes);
    }
}

static void zero_pixels(const conv *v, char *d, int64_t ldd, int64_t n)
{
    const int64_t bytes = v->from * v->cs, words = bytes < 64 ? bytes / 4 : 0;
    for (int64_t i = 0; i < n; i++, d += ldd) {
        for (int64_t q = 0; q < words; q++) memcpy(d + 4 * q, &(float){0}, 4);
        if (!words) memset(d, 0, (size_t)bytes);
    }
}

/* Copies what pixels [x0, x1) of lines [l0, l1) read. */
static void fill(const conv *v, int64_t group, int64_t l0, int64_t l1, int64_t x0, int64_t x1, char *to)
{
    const tn_conv_axis *x = &v->x, *y = &v->y;
    const int64_t columns = columns_of(v, x1 - x0), step = v->patches ? x->step : 1,
                  ldd = (v->patches ? v->pixel : v->column) * v->cs, lds = step * v->from_all * v->es;
    const char *from = (const char *)v->c->in0 + group * v->from * v->es;
    for (int64_t l = l0; l < l1; l++, to += columns * ldd) {
        const char *image = from + l / y->count * y->size * x->size * v->from_all * v->es;
        const int64_t row = l % y->count * y->step + y->first;
        for (int64_t s = 0; s < (v->patches ? x->taps : 1); s++) {
            const int64_t at = x0 * x->step + x->first + s * x->apart;
            const int64_t lo = at < 0 ? tn_min64(columns, tn_ceil_div(-at, step)) : 0;
            const int64_t hi =
                at < x->size ? tn_max64(lo, tn_min64(columns, tn_ceil_div(x->size - at, step))) : lo;
            for (int64_t r = 0; r < y->taps; r++) {
                char *d = to + (s * y->taps + r) * v->from * v->cs;
                const int64_t h = row + r * y->apart;
                const bool inside = h >= 0 && h < y->size;
                zero_pixels(v, d, ldd, inside ? lo : columns);
                if (!inside) continue;
                copy_pixels(v, image + (h * x->size + at + lo * step) * v->from_all * v->es, lds,
                            d + lo * ldd, ldd, hi - lo);
                zero_pixels(v, d + hi * ldd, ldd, columns - hi);
            }
        }
    }
}

/* Returns where the windows of a band begin: in its copy, or in the image. */
static const char *windows(const conv *v, int64_t group, int64_t l0, int64_t l1, int64_t x0, int64_t x1,
                           char *copy)
{
    if (v->in_place)
        return (const char *)v->c->in0 +
               ((l0 * v->y.step * v->x.size + x0 * v->x.step + v->x.first) * v->from_all + group * v->from) *
                   v->es;
    fill(v, group, l0, l1, x0, x1, copy);
    return copy;
}

/* Elements from one line's windows to the next line's. */
static int64_t line_step(const conv *v, int64_t pixels)
{
    if (v->in_place) return v->y.step * v->x.size * v->from_all;
    return columns_of(v, pixels) * (v->patches ? v->pixel : v->column);
}

static void layout(conv *v, bool weights)
{
    const tn_conv_axis *x = &v->x, *y = &v->y;
    const int64_t window = (x->taps - 1) * x->apart + 1, up = (x->count + 3) / 4 * 4;
    v->k = x->taps * y->taps * v->from;
    const bool together = x->to_step == 1 && y->to_step == 1; /* lines of the result follow on each other */
    v->in_place = v->es == v->cs && y->taps == 1 && (x->taps == 1 || v->from == v->from_all) &&
                  x->first == 0 && y->first == 0 && y->size == y->count * y->step &&
                  (x->count - 1) * x->step + window <= x->size &&
                  (weights ? v->from % 4 == 0 : x->count % 4 == 0);
    const bool narrow =
        weights ? x->count < 4 : together && (x->count < NARROW || (up - x->count) * 10 > x->count);
    v->patches = !v->in_place && (x->step >= window || narrow);
    v->flat = v->patches && (weights || together);
    v->column = v->in_place ? v->from_all : y->taps * v->from;
    v->pixel = v->patches ? v->k : x->step * v->column;
    if (v->patches && v->k * v->cs % 1024 == 0) v->pixel += LANES; /* or they share few sets of a cache */
    v->runs = v->patches || x->apart == 1 || x->taps < 2 ? 1 : x->taps;
    v->jump = v->runs > 1 ? (x->apart - 1) * v->column : 0;
    v->total = v->c->n * y->count;
}

/* Cuts lines into bands. */
static void cut_bands(conv *v, int64_t most_lines)
{
    const int64_t count = v->x.count, line = tn_max64(1, line_step(v, count) * v->cs);
    v->wide = count;
    v->chunks = 1;
    if (line > BAND_BYTES && !v->in_place) {
        const int64_t fit = BAND_BYTES / (v->pixel * v->cs) / v->kn->mr * v->kn->mr;
        v->chunks = tn_ceil_div(count, tn_max64(2 * v->kn->mr, fit));
        v->wide = tn_ceil_div(tn_ceil_div(count, v->chunks), v->kn->mr) * v->kn->mr;
        v->chunks = tn_ceil_div(count, v->wide);
    }
    v->lines = v->chunks > 1 ? 1 : tn_max64(1, tn_min64(most_lines, BAND_BYTES / line));
    /* Rows of a block, and channels of its steps, are read up to the next multiple of 4. */
    v->copied = v->in_place ? 0 : (v->lines * line_step(v, v->wide) + 4 * v->pixel + LANES) * v->cs;
    v->copied = (v->copied + 63) / 64 * 64;
}

/* Returns how many of the rows that are left the next block takes. */
static int64_t even_rows(const conv *v, int64_t left)
{
    const int64_t blocks = tn_ceil_div(left, v->kn->mr);
    return tn_min64(left, tn_ceil_div(tn_ceil_div(left, blocks), 4) * 4);
}

/* ---- forward and data gradient ---- */

/* One tap of `cols` filters, lds apart, as rows of a panel. */
static void turn(const conv *v, const char *w, int64_t lds, int64_t cols, char *d)
{
    enum { STEP = 64 };
    float wide[TN_GEMM_MAX_NR * STEP];
    if (v->es == v->cs) {
        tn_pack_transpose(v->c->dtype, w, lds, cols, v->from, d, v->kn->nr);
        return;
    }
    for (int64_t i = 0; i < v->from; i += STEP, d += STEP * v->kn->nr * v->cs) {
        const int64_t n = tn_min64(STEP, v->from - i);
        for (int64_t o = 0; o < cols; o++)
            tn_widen_floats(v->c->dtype, w + (o * lds + i) * v->es, wide + o * STEP, n);
        tn_pack_transpose(TN_F32, wide, STEP, cols, n, d, v->kn->nr);
    }
}

/* B[(s, r, channel), j] of one panel of one group. */
static void run_pack(void *arg, int64_t begin, int64_t end)
{
    const conv *v = arg;
    const tn_conv2d_desc *c = v->c;
    const int64_t nr = v->kn->nr, panels = tn_ceil_div(v->to, nr), taps = c->kh * c->kw;
    for (int64_t u = begin; u < end; u++) {
        const int64_t group = u / panels, j0 = u % panels * nr, cols = tn_min64(nr, v->to - j0);
        char *d = v->packed + u * v->k * nr * v->cs;
        if (cols < nr) memset(d, 0, (size_t)(v->k * nr * v->cs));
        for (int64_t s = 0; s < v->x.taps; s++) {
            for (int64_t r = 0; r < v->y.taps; r++, d += v->from * nr * v->cs) {
                const int64_t tap = (v->y.tap + r * v->y.tap_step) * c->kw + v->x.tap + s * v->x.tap_step;
                const char *w = (const char *)c->in1;
                if (c->pass == TN_CONV_FORWARD) {
                    w += ((group * v->to + j0) * taps + tap) * v->from * v->es;
                    turn(v, w, taps * v->from, cols, d);
                } else {
                    w += ((group * v->from * taps + tap) * v->to + j0) * v->es;
                    for (int64_t o = 0; o < v->from; o++)
                        tn_widen_floats(c->dtype, w + o * taps * v->to * v->es, d + o * nr * v->cs, cols);
                }
            }
        }
    }
}

/* Of pixel p of line l: the first result of its group. */
static char *result(const conv *v, int64_t group, int64_t l, int64_t p)
{
    const tn_conv2d_desc *c = v->c;
    const bool back = c->pass == TN_CONV_DATA_GRAD;
    const int64_t h = back ? c->h : c->oh, w = back ? c->w : c->ow;
    const int64_t y = v->y.to + l % v->y.count * v->y.to_step, x = v->x.to + p * v->x.to_step;
    return (char *)c->out + (((l / v->y.count * h + y) * w + x) * v->to_all + group * v->to) * v->es;
}

/* Columns [j0, j1) of `pixels` results side by side, from windows at a. */
static void results(const conv *v, int64_t group, int64_t j0, int64_t j1, const char *a, int64_t pixels,
                    char *out, char *aside)
{
    const int64_t nr = v->kn->nr, ldc = v->x.to_step * v->to_all, width = j1 - j0;
    const bool narrow = v->es != v->cs;
    tn_gemm_block g = {.a_step = v->pixel,
                       .cols = width,
                       .kc = v->k,
                       .b = v->packed + (group * tn_ceil_div(v->to, nr) * nr + j0) * v->k * v->cs,
                       .ldb = nr,
                       .b_step = v->k * nr,
                       .ldc = narrow ? width : ldc,
                       .runs = v->runs,
                       .a_jump = v->jump,
                       .relu = v->c->epilogue == TN_EPI_RELU};
    if (v->c->bias) {
        g.bias = (const char *)v->c->bias + (group * v->to + j0) * v->es;
        if (narrow) g.bias = aside + v->kn->mr * width * v->cs;
        if (narrow)
            tn_widen_floats(v->c->dtype, (const char *)v->c->bias + (group * v->to + j0) * v->es,
                            aside + v->kn->mr * width * v->cs, width);
    }
    for (int64_t i = 0; i < pixels; i += g.rows) {
        char *c = out + (i * ldc + j0) * v->es;
        g.rows = (int)even_rows(v, pixels - i);
        g.a = a + i * v->pixel * v->cs;
        g.c = narrow ? aside : c;
        v->kn->block(&g);
        for (int q = 0; narrow && q < g.rows; q++)
            tn_narrow_floats(v->c->dtype, aside + q * width * v->cs, c + q * ldc * v->es, width);
    }
}

static void run_results(void *arg, int64_t begin, int64_t end)
{
    conv *v = arg;
    const int64_t at_once = tn_max64(1, B_BYTES / (tn_max64(1, v->k) * v->kn->nr * v->cs)) * v->kn->nr;
    const int mine = tn_take_slot(&v->slots);
    char *copy = tn_slot(&v->slots, mine);
    for (int64_t u = begin; u < end; u++) {
        int64_t rest = u;
        const int64_t slice = rest % v->slices, chunk = (rest /= v->slices) % v->chunks;
        const int64_t group = (rest /= v->chunks) % v->c->groups, band = rest / v->c->groups;
        const int64_t l0 = band * v->lines, l1 = tn_min64(v->total, l0 + v->lines), x0 = chunk * v->wide,
                      x1 = tn_min64(v->x.count, x0 + v->wide), last = tn_min64(v->to, (slice + 1) * v->slice);
        if (!v->k) { /* no tap reaches them */
            for (int64_t l = l0; l < l1; l++)
                for (int64_t p = x0; p < x1; p++) memset(result(v, group, l, p), 0, (size_t)(v->to * v->es));
            continue;
        }
        const char *a = windows(v, group, l0, l1, x0, x1, copy);
        const int64_t step = line_step(v, x1 - x0);
        for (int64_t j = slice * v->slice; j < last; j += at_once) {
            const int64_t end_j = tn_min64(last, j + at_once);
            for (int64_t l = l0; l < l1; l++) {
                const int64_t pixels = (x1 - x0) * (v->flat ? l1 - l0 : 1);
                results(v, group, j, end_j, a + (l - l0) * step * v->cs, pixels, result(v, group, l, x0),
                        copy + v->copied);
                if (v->flat) break;
            }
        }
    }
    tn_give_slot(&v->slots, mine);
}

/* One phase. */
static int results_of(tn_cpu_lib *lib, struct tn_pool *pool, conv *v, tn_errbuf *err)
{
    const int64_t nr = v->kn->nr, panels = tn_ceil_div(v->to, nr), threads = tn_pool_threads(pool),
                  units = SHARES * threads;
    layout(v, false);
    cut_bands(v, tn_max64(1, v->total * v->c->groups / units));
    const int64_t bands = tn_ceil_div(v->total, v->lines) * v->chunks * v->c->groups;
    v->slice = tn_ceil_div(panels, tn_min64(panels, tn_ceil_div(units, bands))) * nr;
    v->slices = tn_ceil_div(v->to, v->slice);
    const int64_t aside = v->es != v->cs ? (v->kn->mr + 1) * v->slice * v->cs : 0;
    const int64_t weights = v->c->groups * panels * v->k * nr * v->cs;
    v->packed = tn_cpu_scratch(lib, TN_SCRATCH_PACK, (size_t)weights + 1);
    if (!v->packed || !tn_open_slots(&v->slots, lib, TN_SCRATCH_SUM, (int)threads, v->copied + aside, 0))
        return tn_err(err, TN_E_NOMEM, "conv2d: no memory for a copy of its operands");
    if (v->k) tn_pool_run(pool, run_pack, v, v->c->groups * panels, tn_max64(1, (1 << 14) / (v->k * nr)));
    tn_pool_run(pool, run_results, v, bands * v->slices, 1);
    return TN_OK;
}

/* ---- weight gradient ---- */

/* Adds what a band of lines gives for columns [j0, j1) of gy's group to the rows of `sum`. */
static void weights_of(const conv *v, int64_t group, int64_t l0, int64_t l1, int64_t x0, int64_t x1,
                       int64_t j0, int64_t j1, bool first, char *sum, char *copy)
{
    const tn_conv2d_desc *c = v->c;
    const int64_t lines = l1 - l0, pixels = lines * (x1 - x0), width = j1 - j0;
    const char *gy = (const char *)c->in1 + (((l0 * c->ow + x0) * c->oc) + group * v->to + j0) * v->es;
    const char *a = windows(v, group, l0, l1, x0, x1, copy);
    const bool whole = v->x.apart == 1 || v->patches || v->x.taps == 1;
    tn_gemm_block g = {.a_by_k = true,
                       .a_step = v->pixel,
                       .cols = width,
                       .kc = pixels,
                       .b = gy,
                       .ldb = c->oc,
                       .b_step = v->kn->nr,
                       .ldc = v->to,
                       .accumulate = !first};
    if (lines > 1 && !v->patches) {
        g.runs = lines;
        g.a_jump = line_step(v, x1 - x0) - (x1 - x0) * v->pixel;
    }
    if (!v->b_in_place) {
        char *d = copy + v->copied;
        g.b = d, g.ldb = (width + LANES - 1) / LANES * LANES;
        for (int64_t p = 0; p < pixels; p++, gy += c->oc * v->es, d += g.ldb * v->cs)
            tn_widen_floats(c->dtype, gy, d, width);
    }
    const int64_t rows = whole ? v->k : v->column;
    for (int64_t k = 0; k < v->k; k += rows, a += v->x.apart * v->column * v->cs) {
        for (int64_t i = 0; i < rows; i += g.rows) {
            g.rows = (int)even_rows(v, rows - i);
            g.a = a + i * v->cs;
            g.c = sum + ((k + i) * v->to + j0) * v->cs;
            v->kn->block(&g);
        }
    }
}

static void run_parts(void *arg, int64_t begin, int64_t end)
{
    conv *v = arg;
    const int mine = tn_take_slot(&v->slots);
    for (int64_t u = begin; u < end; u++) {
        const int64_t slice = u % v->slices, group = u / v->slices % v->c->groups,
                      part = u / v->slices / v->c->groups;
        const int64_t j0 = slice * v->slice, j1 = tn_min64(v->to, j0 + v->slice),
                      first = part * v->part_lines, last = tn_min64(v->total, first + v->part_lines);
        char *sum = v->partials + (part * v->c->groups + group) * v->k * v->to * v->cs;
        for (int64_t l = first; l < last; l += v->lines)
            for (int64_t x = 0; x < v->x.count; x += v->wide)
                weights_of(v, group, l, tn_min64(last, l + v->lines), x, tn_min64(v->x.count, x + v->wide),
                           j0, j1, l == first && x == 0, sum, tn_slot(&v->slots, mine));
    }
    tn_give_slot(&v->slots, mine);
}

/* Adds one tap's partial sums in order, and turns the sum. */
static void run_sum(void *arg, int64_t begin, int64_t end)
{
    const conv *v = arg;
    const tn_conv2d_desc *c = v->c;
    const int64_t taps = c->kh * c->kw, one = v->k * v->to, n = v->from * v->to, all = c->groups * one;
    for (int64_t u = begin; u < end; u++) {
        const int64_t group = u / taps, s = u % taps / c->kh, r = u % c->kh;
        const int64_t at = group * one + (s * c->kh + r) * n;
        for (int64_t q = 1; q < v->parts; q++) {
            for (int64_t i = at; v->cs == sizeof(double) && i < at + n; i++)
                ((double *)(void *)v->partials)[i] += ((double *)(void *)v->partials)[q * all + i];
            for (int64_t i = at; v->cs == sizeof(float) && i < at + n; i++)
                ((float *)(void *)v->partials)[i] += ((float *)(void *)v->partials)[q * all + i];
        }
        char *to = v->es == v->cs ? c->out : v->partials + v->parts * all * v->cs;
        tn_pack_transpose(tn_gemm_compute(c->dtype), v->partials + at * v->cs, v->to, v->from, v->to,
                          to + ((group * v->to * taps + r * c->kw + s) * v->from) * v->cs, taps * v->from);
    }
}

static void run_narrow(void *arg, int64_t begin, int64_t end)
{
    const conv *v = arg;
    const int64_t all = v->c->groups * v->k * v->to;
    tn_narrow_floats(v->c->dtype, v->partials + (v->parts * all + begin) * v->cs,
                     (char *)v->c->out + begin * v->es, end - begin);
}

static int weight_grad(tn_cpu_lib *lib, struct tn_pool *pool, conv *v, tn_errbuf *err)
{
    const tn_conv2d_desc *c = v->c;
    const int64_t all = c->groups * v->to * c->kh * c->kw * v->from, threads = tn_pool_threads(pool);
    layout(v, true);
    const int64_t fewest = tn_max64(tn_ceil_div(v->total, PARTIALS), tn_ceil_div(PARTIAL_PIXELS, v->x.count));
    v->part_lines = tn_min64(v->total, tn_max64(fewest, tn_ceil_div(v->total * all * v->cs, PARTIAL_BYTES)));
    v->parts = tn_ceil_div(v->total, v->part_lines);
    cut_bands(v, v->part_lines);
    const int64_t nr = v->kn->nr, panels = tn_ceil_div(v->to, nr);
    v->slice =
        tn_ceil_div(panels, tn_min64(panels, tn_ceil_div(SHARES * threads, v->parts * c->groups))) * nr;
    v->slices = tn_ceil_div(v->to, v->slice);
    v->b_in_place = v->es == v->cs && v->to % LANES == 0;
    const int64_t beside = v->b_in_place ? 0 : v->lines * v->wide * tn_ceil_div(v->slice, LANES) * LANES;
    v->partials = tn_cpu_scratch(lib, TN_SCRATCH_SUM, (size_t)((v->parts + (v->es != v->cs)) * all * v->cs));
    if (!v->partials ||
        !tn_open_slots(&v->slots, lib, TN_SCRATCH_PACK, (int)threads, v->copied + beside * v->cs, 0))
        return tn_err(err, TN_E_NOMEM, "conv2d: no memory for partial weight gradients");
    tn_pool_run(pool, run_parts, v, v->parts * c->groups * v->slices, 1);
    tn_pool_run(pool, run_sum, v, c->groups * c->kh * c->kw, tn_max64(1, SUM_CHUNK / (v->from * v->to)));
    if (v->es != v->cs) tn_pool_run(pool, run_narrow, v, all, SUM_CHUNK);
    return TN_OK;
}

/* Returns whether each patch is the pixel at the same place. */
bool tn_conv2d_is_product(const tn_conv2d_desc *c)
{
    return c->kh * c->kw == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->groups == 1 &&
           !(c->pad[0] | c->pad[1] | c->pad[2] | c->pad[3]);
}

static int product(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    const bool forward = c->pass == TN_CONV_FORWARD;
    tn_gemm g = {.dtype = c->dtype,
                 .m = c->n * c->oh * c->ow,
                 .n = forward ? c->oc : c->c,
                 .k = forward ? c->c : c->oc,
                 .a = c->in0,
                 .b = c->in1,
                 .bias = c->bias,
                 .c = c->out,
                 .a_col = 1,
                 .b_row = forward ? 1 : c->c,
                 .b_col = forward ? c->c : 1,
                 .epilogue = c->epilogue};
    g.a_row = g.k, g.c_row = g.n;
    return tn_gemm_plain(lib, pool, &g, err);
}

int tn_conv2d_plain(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    const bool back = c->pass == TN_CONV_DATA_GRAD;
    conv v = {.c = c,
              .kn = tn_gemm_kernel_for(tn_gemm_compute(c->dtype)),
              .es = (int64_t)tn_dtype_size(c->dtype),
              .cs = (int64_t)tn_dtype_size(tn_gemm_compute(c->dtype)),
              .from_all = back ? c->oc : c->c,
              .to_all = back ? c->c : c->oc};
    v.from = v.from_all / c->groups, v.to = v.to_all / c->groups;
    if (c->pass != TN_CONV_WEIGHT_GRAD && tn_conv2d_is_product(c)) return product(lib, pool, c, err);
    const int64_t phases_y = back ? tn_min64(c->stride[0], c->h) : 1,
                  phases_x = back ? tn_min64(c->stride[1], c->w) : 1;
    for (int64_t i = 0; i < phases_y * phases_x; i++) {
        v.y = tn_conv_axis_of(c, 0, i / phases_x);
        v.x = tn_conv_axis_of(c, 1, i % phases_x);
        const int s =
            c->pass == TN_CONV_WEIGHT_GRAD ? weight_grad(lib, pool, &v, err) : results_of(lib, pool, &v, err);
        if (s) return s;
    }
    return TN_OK;
}
