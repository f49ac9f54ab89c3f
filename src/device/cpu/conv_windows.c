/* conv_windows.c - what windows read, copied as conv_windows.h says. Read first: tn_windows_cut, then
 * copy_rows. */
#include "conv_windows.h"

#include "conv_few.h"
#include "../../core/int64.h"

#include <string.h>

enum {
    FEW_PIXELS = 128, /* so many products are worth a load and a store of the sum */
    FAR_APART = 1 << 10,
    COPY = 2, /* cycles that a copy takes, and elements that it has in each further one */
    COPIED = 12,
    LANES = 16,
    MANY = 32, /* results of a window that are worth its copy as a patch */
};

/* ---- geometry ---- */

static int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

int64_t tn_conv_phases(const tn_conv2d_desc *c, int axis)
{
    return c->pass == TN_CONV_DATA_GRAD ? tn_min64(c->stride[axis], axis ? c->w : c->h) : 1;
}

tn_conv_axis tn_conv_axis_of(const tn_conv2d_desc *c, int axis, int64_t phase)
{
    const int64_t stride = c->stride[axis], dilation = c->dilation[axis], pad = c->pad[2 * axis];
    const int64_t taps = axis ? c->kw : c->kh, in = axis ? c->w : c->h, out = axis ? c->ow : c->oh;
    if (c->pass != TN_CONV_DATA_GRAD)
        return (tn_conv_axis){.count = out,
                              .to_step = 1,
                              .taps = taps,
                              .tap_step = 1,
                              .size = in,
                              .step = stride,
                              .first = -pad,
                              .apart = dilation};
    tn_conv_axis x = {.to = phase, .to_step = stride, .size = out, .step = 1};
    x.count = tn_ceil_div(in - phase, stride);
    int64_t common = stride, rest = dilation;
    while (rest) {
        const int64_t next = common % rest;
        common = rest, rest = next;
    }
    const int64_t every = stride / common, some = tn_min64(every, taps);
    int64_t tap = 0;
    while (tap < some && (phase + pad - tap * dilation) % stride) tap++;
    if (tap == some) return x;
    x.taps = (taps - 1 - tap) / every + 1;
    x.tap = tap + (x.taps - 1) * every; /* a later tap reads further to the left */
    x.tap_step = -every;
    x.first = (phase + pad - x.tap * dilation) / stride;
    x.apart = dilation / common;
    return x;
}

static tn_conv_span span_of(const tn_conv2d_desc *c, int axis)
{
    const int64_t stride = c->stride[axis], pad = c->pad[2 * axis],
                  reach = ((axis ? c->kw : c->kh) - 1) * c->dilation[axis];
    const int64_t in = axis ? c->w : c->h, out = axis ? c->ow : c->oh;
    /* One window alone is not followed by another, however far that would be: no room is kept for it. */
    if (c->pass != TN_CONV_DATA_GRAD) return (tn_conv_span){out, in, out > 1 ? stride : 1, -pad, reach - pad};
    const int64_t low = -floor_div(reach - pad, stride),
                  high = floor_div(tn_min64(stride, in) - 1 + pad, stride);
    return (tn_conv_span){tn_ceil_div(in, stride), out, 1, low,
                          tn_max64(low, high)}; /* no tap may reach any */
}

static int64_t reach(const tn_conv_span *s, int64_t count)
{
    return (count - 1) * s->step + s->high - s->low + 1;
}

/* Taps so far apart that what lies between them is not worth a copy. */
static bool is_far(const tn_windows *w)
{
    return (double)reach(&w->y, 1) * (double)reach(&w->x, 1) > FAR_APART * (double)w->taps;
}

void tn_windows_of(tn_windows *w, const tn_conv2d_desc *c, bool pairs)
{
    const bool back = c->pass == TN_CONV_DATA_GRAD;
    *w = (tn_windows){.c = c, .kn = tn_gemm_kernel_for(tn_gemm_compute(c->dtype)), .taps = c->kh * c->kw};
    w->es = (int64_t)tn_dtype_size(c->dtype);
    w->cs = (int64_t)tn_dtype_size(tn_gemm_compute(c->dtype));
    w->from_all = back ? c->oc : c->c, w->to_all = back ? c->c : c->oc;
    w->from = w->from_all / c->groups, w->to = w->to_all / c->groups;
    w->y = span_of(c, 0), w->x = span_of(c, 1);
    w->fs = w->es, w->per = 1;
    w->few = c->pass != TN_CONV_WEIGHT_GRAD && c->dtype != TN_F64 && w->to <= TN_FEW_RESULTS &&
             w->from % TN_FEW_LANES == 0 && !is_far(w);
    const tn_gemm_kernel *paired =
        pairs && !w->few && c->dtype == TN_BF16 ? tn_gemm_kernel_for(TN_BF16) : NULL;
    if (paired && c->pass == TN_CONV_WEIGHT_GRAD) {
        w->neighbours = !is_far(w) && (c->ow % paired->per == 0 || w->to >= MANY);
        if (w->neighbours) w->kn = paired;
    } else if (paired && w->from % paired->per == 0) {
        w->kn = paired;
        w->per = paired->per;
        w->fs = w->per * w->es;
        w->from /= w->per, w->from_all /= w->per;
    }
}

static bool inside(const tn_conv_span *s)
{
    return s->low >= 0 && (s->count - 1) * s->step + s->high < s->size;
}

/* ---- the cut ---- */

static void lay_out(tn_windows *w, bool rows, int64_t bytes)
{
    const tn_conv2d_desc *c = w->c;
    const int64_t window = w->x.high - w->x.low + 1, up = (w->x.count + 3) / 4 * 4;
    const bool whole = c->pass != TN_CONV_DATA_GRAD || (c->stride[0] == 1 && c->stride[1] == 1);
    w->in_place = !w->neighbours && w->fs == w->cs && (uintptr_t)c->in0 % (uintptr_t)w->fs == 0 &&
                  inside(&w->x) && inside(&w->y) && (w->from == w->from_all || c->kw == 1) &&
                  reach(&w->y, 1) * w->x.size * w->from_all * w->cs <= bytes;
    /* Rows of a block are few where lines are short: what that wastes, and what copying windows takes. */
    const double products = (double)(w->taps * w->from) * (double)tn_ceil_div(w->to, LANES) / 2,
                 waste = products * (double)(up - w->x.count) / (double)w->x.count,
                 copies = (double)w->taps * (COPY + (double)w->from / COPIED);
    const bool narrow = rows ? waste > copies : w->x.count * w->y.count < FEW_PIXELS;
    w->patches = w->neighbours
                     ? c->ow % w->kn->per != 0 /* pairs are of any two pixels then */
                     : !w->in_place && !w->few && whole && (narrow || is_far(w) || w->x.step >= window);
    w->column = w->in_place ? w->from_all : w->from;
    w->pixel = w->x.step * w->column;
    if (!w->patches) return;
    w->pixel = w->taps * w->from;
    if (w->pixel * w->cs % 1024 == 0) w->pixel += LANES; /* or they share few sets of a cache */
}

void tn_windows_cut(tn_windows *w, bool rows, int64_t bytes, int64_t most)
{
    lay_out(w, rows, bytes);
    const int64_t mr = w->kn->mr, total = w->y.count * (w->patches ? w->c->n : 1);
    const int64_t high = w->patches ? 1 : reach(&w->y, 1), each = high * w->pixel * w->cs;
    w->wide = w->x.count;
    if (!w->in_place && each * w->wide > bytes) {
        w->chunks = tn_ceil_div(w->wide, tn_max64(2, bytes / each / mr) * mr);
        w->wide = tn_ceil_div(tn_ceil_div(w->wide, w->chunks), mr) * mr;
    }
    w->chunks = tn_ceil_div(w->x.count, w->wide);
    w->row = w->in_place  ? w->x.size * w->from_all
             : w->patches ? w->wide * w->pixel
                          : reach(&w->x, w->wide) * w->from;
    const int64_t spare = (bytes / (w->row * w->cs) - high) / (w->patches ? 1 : w->y.step) + 1;
    w->lines = w->chunks > 1 ? 1 : tn_max64(1, tn_min64(tn_min64(most, total), spare));
    w->lines = tn_ceil_div(total, tn_ceil_div(total, w->lines));
    w->bands = tn_ceil_div(total, w->lines) * (w->patches ? 1 : w->c->n);
    const int64_t held = w->patches ? w->lines : reach(&w->y, w->lines);
    w->bytes = (held * w->row + 4 * w->pixel + LANES) * w->cs;
    w->line = (w->bytes + 63) / 64 * 64;
    if (w->neighbours)
        w->bytes = w->line + ((w->patches ? held * w->row : w->row + w->pixel) + LANES) * w->fs;
    w->bytes = (w->bytes + 63) / 64 * 64;
}

tn_band tn_windows_band(const tn_windows *w, int64_t group, int64_t i)
{
    const int64_t chunk = i % w->chunks, band = i / w->chunks, images = w->patches ? 1 : w->c->n;
    const int64_t each = w->bands / images, total = w->y.count * (w->patches ? w->c->n : 1);
    tn_band b = {.group = group, .image = band / each};
    b.l0 = band % each * w->lines, b.l1 = tn_min64(total, b.l0 + w->lines);
    b.x0 = chunk * w->wide, b.x1 = tn_min64(w->x.count, b.x0 + w->wide);
    return b;
}

/* ---- the copy ---- */

static inline __attribute__((always_inline)) void each_pixel(const char *s, int64_t lds, char *d, int64_t ldd,
                                                             int64_t n, int64_t bytes)
{
    for (int64_t i = 0; i < n; i++) memcpy(d + i * ldd, s + i * lds, (size_t)bytes);
}

/* n pixels, lds and ldd bytes apart, to elements of es bytes. */
static void copy_pixels(const tn_windows *w, const char *s, int64_t lds, char *d, int64_t ldd, int64_t n,
                        int64_t es)
{
    const int64_t bytes = w->from * es;
    if (w->fs == es && lds == bytes && ldd == bytes) {
        memcpy(d, s, (size_t)(n * bytes));
    } else if (w->fs != es && lds == w->from * w->fs && ldd == bytes) {
        tn_widen_floats(w->c->dtype, s, d, n * w->from);
    } else if (w->fs != es) {
        for (int64_t i = 0; i < n; i++) tn_widen_floats(w->c->dtype, s + i * lds, d + i * ldd, w->from);
    } else {
        switch (bytes) { /* as constants: mostly too few for memcpy's call */
        case 4: each_pixel(s, lds, d, ldd, n, 4); break;
        case 12: each_pixel(s, lds, d, ldd, n, 12); break;
        case 64: each_pixel(s, lds, d, ldd, n, 64); break;
        case 128: each_pixel(s, lds, d, ldd, n, 128); break;
        default: each_pixel(s, lds, d, ldd, n, bytes);
        }
    }
}

/* Of n places, at, at + step, .., those in [0, size): [*lo, *hi). */
static void clip(int64_t at, int64_t step, int64_t n, int64_t size, int64_t *lo, int64_t *hi)
{
    *lo = at < 0 ? tn_min64(n, tn_ceil_div(-at, step)) : 0;
    *hi = at < size ? tn_max64(*lo, tn_min64(n, tn_ceil_div(size - at, step))) : *lo;
}

static void copy_rows(const tn_windows *w, const tn_band *b, const char *image, char *to)
{
    const int64_t first = b->l0 * w->y.step + w->y.low, rows = reach(&w->y, b->l1 - b->l0);
    const int64_t at = b->x0 * w->x.step + w->x.low, columns = reach(&w->x, b->x1 - b->x0);
    const int64_t each = w->from * w->cs, pixel = w->from_all * w->fs;
    int64_t lo, hi;
    clip(at, 1, columns, w->x.size, &lo, &hi);
    image += b->image * w->y.size * w->x.size * pixel;
    for (int64_t h = first; h < first + rows; h++, to += w->row * w->cs) {
        const bool whole = h >= 0 && h < w->y.size;
        memset(to, 0, (size_t)((whole ? lo : columns) * each));
        if (!whole) continue;
        copy_pixels(w, image + (h * w->x.size + at + lo) * pixel, pixel, to + lo * each, each, hi - lo,
                    w->cs);
        memset(to + hi * each, 0, (size_t)((columns - hi) * each));
    }
}

/* The same of pairs: each element with the one that the next pixel has in its place. */
static void copy_neighbours(const tn_windows *w, const tn_band *b, const char *image, char *to)
{
    const int64_t first = b->l0 * w->y.step + w->y.low, rows = reach(&w->y, b->l1 - b->l0);
    const int64_t at = b->x0 * w->x.step + w->x.low, columns = reach(&w->x, b->x1 - b->x0);
    const int64_t each = w->from * w->fs, pixel = w->from_all * w->fs, n = columns + w->x.step;
    char *line = to + w->line;
    int64_t lo, hi;
    clip(at, 1, n, w->x.size, &lo, &hi);
    image += b->image * w->y.size * w->x.size * pixel;
    memset(line, 0, (size_t)(n * each));
    for (int64_t h = first; h < first + rows; h++, to += w->row * w->cs) {
        if ((h - first) % w->y.step > w->y.high - w->y.low) continue; /* no window has it */
        if (h < 0 || h >= w->y.size) {
            memset(to, 0, (size_t)(columns * w->from * w->cs));
            continue;
        }
        const char *s = image + (h * w->x.size + at + lo) * pixel;
        if (each == pixel)
            memcpy(line + lo * each, s, (size_t)((hi - lo) * each));
        else
            each_pixel(s, pixel, line + lo * each, each, hi - lo, each);
        tn_pack_pairs((const uint16_t *)(const void *)line, w->x.step * w->from, columns * w->from,
                      w->kn->per, (uint32_t *)(void *)to, 0);
    }
}

static void copy_patches(const tn_windows *w, const tn_band *b, const char *images, char *to)
{
    const tn_conv_axis y = tn_conv_axis_of(w->c, 0, 0), x = tn_conv_axis_of(w->c, 1, 0);
    const int64_t n = b->x1 - b->x0, lds = x.step * w->from_all * w->fs, es = w->neighbours ? w->fs : w->cs;
    const int64_t ldd = w->pixel * es;
    if (!inside(&w->x) || !inside(&w->y)) memset(to, 0, (size_t)((b->l1 - b->l0) * n * ldd));
    for (int64_t l = b->l0; l < b->l1; l++, to += n * ldd) {
        char *d = to;
        for (int64_t r = 0; r < y.taps; r++) {
            const int64_t h = l % y.count * y.step + y.first + r * y.apart;
            const char *row = images + (l / y.count * y.size + h) * x.size * w->from_all * w->fs;
            for (int64_t s = 0; s < x.taps; s++, d += w->from * es) {
                const int64_t at = b->x0 * x.step + x.first + s * x.apart;
                int64_t lo, hi;
                clip(at, x.step, n, x.size, &lo, &hi);
                if (h >= 0 && h < y.size)
                    copy_pixels(w, row + (at + lo * x.step) * w->from_all * w->fs, lds, d + lo * ldd, ldd,
                                hi - lo, es);
            }
        }
    }
}

const char *tn_windows_copy(const tn_windows *w, const tn_band *b, char *copy)
{
    const char *from = (const char *)w->c->in0 + b->group * w->from * w->fs;
    if (w->in_place) {
        const int64_t rows = w->c->n * w->y.size, first = b->image * w->y.size + b->l0 * w->y.step + w->y.low;
        const int64_t skip = b->x0 * w->x.step + w->x.low, held = reach(&w->y, b->l1 - b->l0);
        const char *at = from + (first * w->x.size + skip) * w->from_all * w->fs;
        if ((rows - first - held) * w->x.size > 4 * w->x.step) return at;
        /* Kernels may read a little past a window: not past the image. */
        memcpy(copy, at, (size_t)((held * w->x.size - skip - 1) * w->from_all + w->from) * w->fs);
        return copy;
    }
    if (w->patches && w->neighbours) {
        copy_patches(w, b, from, copy + w->line);
        tn_pack_pairs((const uint16_t *)(const void *)(copy + w->line), w->pixel, w->taps * w->from,
                      (b->l1 - b->l0) * (b->x1 - b->x0), (uint32_t *)(void *)copy, w->pixel);
    } else if (w->patches)
        copy_patches(w, b, from, copy);
    else if (w->neighbours)
        copy_neighbours(w, b, from, copy);
    else
        copy_rows(w, b, from, copy);
    return copy;
}
