/* conv_shape.c - the product that a convolution is, and how the image it gathers from lies in shared memory.
 *
 * Forward, data gradient and weight gradient are three products of one convolution; a data gradient over a
 * stride is one for each phase. Where windows overlap, a block keeps the rows of the image they share: a halo
 * of whole channels, or, of few channels, the image's own rows. Read first: fu_conv_shape_of. */
#include "conv_model.h"

#include "../../src/core/int64.h"

enum {
    TAPS = 1 << 15,
    MOST_FEW = 4,     /* channels of conv_few.cu, */
    MOST_PIECES = 32, /* and pieces of a window */
    FEW = 8           /* channels of a group: a tile of tensor cores would be a fourth full at best */
};

static bool fits(int64_t a, int64_t b, int64_t c, int64_t d)
{
    double all = (double)a * (double)b * (double)c * (double)d;
    return a > 0 && b > 0 && c > 0 && d > 0 && all < (double)(INT32_MAX - (1 << 16));
}

/* Of the phase of a data gradient that sees most: those a whole number of strides apart. */
static int64_t most_taps(int64_t taps, int64_t stride, int64_t dilation)
{
    int64_t step = 1;
    while (step * dilation % stride) step++;
    return tn_ceil_div(taps, step);
}

bool fu_conv_shape_of(const tn_conv2d_desc *d, fu_conv_shape *s)
{
    if (d->dtype != TN_F32 && d->dtype != TN_F16 && d->dtype != TN_BF16) return false;
    if (d->groups < 1 || d->c % d->groups || d->oc % d->groups) return false;
    const int64_t in = d->c / d->groups, out = d->oc / d->groups;
    if (!fits(d->n, d->h, d->w, d->c) || !fits(d->n, d->oh, d->ow, d->oc) || !fits(d->oc, d->kh, d->kw, in))
        return false;
    if (d->kh * d->kw > TAPS || d->stride[0] * d->stride[1] > TAPS) return false;
    /* positions in the image and around it, and products of stride and tap */
    if (!fits(d->h + d->pad[0] + d->pad[1], d->stride[0], d->dilation[0] * d->kh, 1) ||
        !fits(d->w + d->pad[2] + d->pad[3], d->stride[1], d->dilation[1] * d->kw, 1))
        return false;
    *s = (fu_conv_shape){.groups = d->groups,
                         .phases = 1,
                         .size = d->dtype == TN_F32 ? 4 : 2,
                         .taps = d->kh * d->kw,
                         .forward = d->pass == TN_CONV_FORWARD,
                         .weights = d->pass == TN_CONV_WEIGHT_GRAD};
    s->width = d->ow;
    s->pixels = d->oh * d->ow;
    s->channels = in;
    switch (d->pass) {
    case TN_CONV_FORWARD: s->m = d->n * s->pixels, s->n = out, s->k = d->kh * d->kw * in; break;
    case TN_CONV_DATA_GRAD:
        s->phases = d->stride[0] * d->stride[1];
        s->width = tn_ceil_div(d->w, d->stride[1]);
        s->pixels = tn_ceil_div(d->h, d->stride[0]) * s->width;
        s->channels = out;
        s->m = d->n * s->pixels, s->n = in;
        s->k = most_taps(d->kh, d->stride[0], d->dilation[0]) *
               most_taps(d->kw, d->stride[1], d->dilation[1]) * out;
        break;
    case TN_CONV_WEIGHT_GRAD: s->m = out, s->n = d->kh * d->kw * in, s->k = d->n * s->pixels; break;
    }
    if (d->groups > 1 && in == 1) { /* all channels are one group's */
        s->multiplier = out;
        s->groups = 1;
        s->m = d->pass == TN_CONV_WEIGHT_GRAD ? 1 : s->m;
        s->n = d->pass == TN_CONV_DATA_GRAD ? d->c : d->oc;
    } else if (d->groups > 1 && in <= FEW && out <= FEW) { /* likewise, of tiles that are whole groups */
        s->in_each = d->pass == TN_CONV_DATA_GRAD ? out : in;
        s->out_each = d->pass == TN_CONV_DATA_GRAD ? in : out;
        s->groups = 1;
        s->m = d->pass == TN_CONV_WEIGHT_GRAD ? 1 : s->m;
        s->n = d->pass == TN_CONV_DATA_GRAD ? d->c : d->oc;
    }
    s->direct = s->multiplier || s->in_each;
    return fits(s->m, 1, 1, 1) && fits(s->k, 1, 1, 1);
}

bool fu_conv_lay_halo(const tn_conv2d_desc *d, const struct fu_conv_tile *o, fu_conv_shape *s)
{
    const int64_t reach[2] = {d->dilation[0] * (d->kh - 1), d->dilation[1] * (d->kw - 1)};
    const int64_t x[2] = {d->h, d->w}, y[2] = {d->oh, d->ow};
    int64_t extent[2];
    if (s->direct || d->stride[0] != 1 || d->stride[1] != 1 || s->channels % o->bk) return false;
    if (s->weights) {
        if (o->bm != 64 || o->bn != FU_CONV_WINDOW * FU_CONV_WINDOW * FU_CONV_WIDE ||
            d->kh != FU_CONV_WINDOW || d->kw != FU_CONV_WINDOW)
            return false;
    } else if (o->splits > 1 || s->taps < 2 * (o->stages - 2)) {
        return false;
    }
    for (int i = 0; i < 2; i++) { /* in front of what is gathered from, and behind it */
        const bool back = d->pass == TN_CONV_DATA_GRAD;
        const int64_t front = back ? reach[i] - d->pad[2 * i] : d->pad[2 * i];
        const int64_t in = back ? y[i] : x[i], out = back ? x[i] : y[i];
        const int64_t behind = out + reach[i] - front - in;
        const int64_t more = front > behind ? front : behind;
        extent[i] = in + (more > 0 ? more : 0);
        if (extent[i] < out) extent[i] = out;
    }
    s->width = extent[1];
    s->pixels = extent[0] * extent[1];
    *(s->weights ? &s->k : &s->m) = d->n * s->pixels;
    const int64_t own = s->weights ? FU_CONV_PIXELS : o->bm;
    s->halo = (own + reach[0] * s->width + reach[1] + 7) / 8 * 8;
    return fits(d->n, extent[0], extent[1], 2) && s->halo < 1 << 14;
}

bool fu_conv_lay_few(const tn_conv2d_desc *d, const struct fu_conv_tile *o, fu_conv_shape *s)
{
    struct few *f = &s->few;
    if (s->direct || d->groups > 1 || d->c > MOST_FEW || d->dilation[1] > 1 || d->pass == TN_CONV_DATA_GRAD)
        return false;
    const int64_t before = d->pad[2] * d->c, row = d->w * d->c, by = d->stride[1] * d->c;
    f->odd = by % 2;
    f->rows = d->kh;
    f->run = d->kw * d->c;
    f->shift = f->odd ? 0 : before % 2;
    f->pieces = tn_ceil_div(f->run + f->shift, 8);
    f->left = (before + 7) / 8 * 8;
    const int64_t end = (d->ow - 1) * by - before + f->pieces * 8 + 2;
    f->pitch = (f->left + (end > row ? end : row) + 7) / 8 * 8;
    f->down = d->dilation[0] * f->pitch;
    f->reach = (d->kh - 1) * d->dilation[0] + 1;
    f->tall = (d->oh - 1) * d->stride[0] + f->reach;
    const int64_t rows = tn_ceil_div(o->bm - 1, d->ow) + 1,
                  more = f->reach - d->stride[0]; /* of y, that a tile sees */
    s->halo = (rows - 1) * d->stride[0] + f->reach + tn_ceil_div(rows - 1, d->oh) * (more > 0 ? more : 0);
    const int64_t pieces = d->kh * f->pieces;
    if (s->weights && (o->warps_m != 4 * tn_ceil_div(pieces, 8) || d->oc % 8)) return false;
    return pieces <= MOST_PIECES && o->stages == 2 && (o->bn == 64 || o->bn == 128) && o->warps_n == 1 &&
           (s->weights || o->warps_m * 16 == o->bm) && fits(s->halo, f->pitch, 1, 1) &&
           fits(d->n, f->tall, 1, 1);
}
