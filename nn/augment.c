/* augment.c - images as a training pass sees them: moved, flipped, of other colours, a part of them, mixed.
 *
 * Everything that is drawn for an item comes from streams of its own, which begin at a hash of the pass's key
 * and the item's number (stream), and all of it is drawn in the same order whatever is asked for. So an item
 * looks the same however many threads there are and wherever a run was cut in two. Read tn_nn_view_of and
 * tn_nn_show first. */
#include "augment.h"

#include "draw.h"

#include <math.h>
#include <string.h>

enum { VIEW, BOX, SHARE, STREAMS };

/* Not the number that tn_nn_places goes by. */
uint64_t tn_nn_key(uint64_t seed, int64_t epoch)
{
    uint64_t state = seed + NN_GOLDEN * ((uint64_t)epoch + 1);
    tn_nn_splitmix(&state);
    return tn_nn_splitmix(&state);
}

static uint64_t stream(const nn_draw *draw, int64_t k, int which)
{
    uint64_t state = draw->key + NN_GOLDEN * ((uint64_t)k * STREAMS + (uint64_t)which);
    return tn_nn_splitmix(&state);
}

/* Uniform in [low, high). */
static double uniform(uint64_t *state, double low, double high)
{
    return low + (high - low) * ((double)(tn_nn_splitmix(state) >> 11) * 0x1p-53);
}

static float factor(uint64_t *state, double by) { return (float)uniform(state, by < 1 ? 1 - by : 0, 1 + by); }

void tn_nn_view_of(const nn_draw *draw, int64_t k, nn_view *out)
{
    const tn_augment *a = &draw->how;
    uint64_t state = stream(draw, k, VIEW);
    out->flip = uniform(&state, 0, 1) < 0.5 && a->flip;
    out->dy = (int64_t)uniform(&state, 0, 2 * a->pad + 1) - a->pad;
    out->dx = (int64_t)uniform(&state, 0, 2 * a->pad + 1) - a->pad;
    out->colours = a->brightness > 0 || a->contrast > 0 || a->saturation > 0;
    out->brightness = factor(&state, a->brightness);
    out->contrast = factor(&state, a->contrast);
    out->saturation = factor(&state, a->saturation);
}

/* As torchvision's RandomResizedCrop: a share of the area and a ratio of the sides, tried until it fits. */
void tn_nn_crop_box(const nn_draw *draw, int64_t k, int64_t h, int64_t w, double box[4])
{
    enum { TRIES = 10 };
    const double area = (double)h * (double)w, wide = log(4.0 / 3);
    uint64_t state = stream(draw, k, BOX);
    double bh = 0, bw = 0;
    for (int i = 0; i < TRIES && !(bh >= 1 && bw >= 1); i++) {
        const double share = uniform(&state, draw->how.crop[0], draw->how.crop[1]) * area,
                     ratio = exp(uniform(&state, -wide, wide));
        bw = round(sqrt(share * ratio));
        bh = round(sqrt(share / ratio));
        if (bw > (double)w || bh > (double)h) bh = bw = 0;
    }
    const bool found = bh >= 1 && bw >= 1;
    if (!found) { /* the middle, of such a ratio */
        bw = fmin((double)w, round((double)h * 4 / 3));
        bh = fmin((double)h, round((double)w * 4 / 3));
    }
    box[0] = floor(found ? uniform(&state, 0, (double)h - bh + 1) : ((double)h - bh) / 2);
    box[1] = floor(found ? uniform(&state, 0, (double)w - bw + 1) : ((double)w - bw) / 2);
    box[2] = box[0] + bh;
    box[3] = box[1] + bw;
}

/* Beta(alpha, alpha): u^(1/alpha) / (u^(1/alpha) + v^(1/alpha)) of those pairs whose sum is at most 1 (Joehnk
 * 1964), by logarithms, as the powers of a small alpha are too small for a double. */
double tn_nn_share(const nn_draw *draw, int64_t k)
{
    uint64_t state = stream(draw, k, SHARE);
    for (;;) {
        const double x = log(uniform(&state, 0x1p-54, 1)) / draw->how.mixup,
                     y = log(uniform(&state, 0x1p-54, 1)) / draw->how.mixup, most = x > y ? x : y;
        if (most + log(exp(x - most) + exp(y - most)) <= 0)
            return exp(x - most) / (exp(x - most) + exp(y - most));
    }
}

/* ---- pixels ---- */

static float within(float v) { return v < 0 ? 0 : v > 1 ? 1 : v; }

static float grey_of(const float *p, int64_t c)
{
    return c < 3 ? p[0] : 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2];
}

/* Values in [0, 1]: times a factor, away from their mean grey, away from each pixel's grey; cut to [0, 1]
 * each time. The fourth channel, which is no colour, stays. */
static void colour(float *p, int64_t pixels, int64_t c, const nn_view *v)
{
    const int64_t colours = c < 3 ? c : 3;
    double sum = 0;
    for (int64_t i = 0; i < pixels; i++) {
        for (int64_t k = 0; k < colours; k++) p[i * c + k] = within(p[i * c + k] * v->brightness);
        sum += (double)grey_of(p + i * c, c);
    }
    const float mean = (float)(sum / (double)pixels);
    for (int64_t i = 0; i < pixels; i++) {
        float *q = p + i * c;
        for (int64_t k = 0; k < colours; k++) q[k] = within(mean + (q[k] - mean) * v->contrast);
        const float grey = grey_of(q, c);
        for (int64_t k = 0; k < colours; k++) q[k] = within(grey + (q[k] - grey) * v->saturation);
    }
}

void tn_nn_show(const tn_dataset *d, const unsigned char *from, const nn_view *v, float *to)
{
    const int64_t h = d->array[0].shape[0], w = d->array[0].shape[1], c = d->array[0].shape[2];
    const float(*table)[256] = v->colours ? d->plain : d->table;
    float *out = to;
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            const int64_t sy = y + v->dy, sx = (v->flip ? w - 1 - x : x) + v->dx;
            const unsigned char *p = from + (sy * w + sx) * c;
            const bool inside = sy >= 0 && sy < h && sx >= 0 && sx < w;
            for (int64_t k = 0; k < c; k++) *out++ = table[k][inside ? p[k] : 0];
        }
    if (!v->colours) return;
    colour(to, h * w, c, v);
    for (int64_t i = 0; i < h * w; i++)
        for (int64_t k = 0; k < c; k++) to[i * c + k] = to[i * c + k] * d->scale[k] + d->table[k][0];
}

bool tn_nn_follows(const tn_dataset *d, int i)
{
    const nn_array *x = &d->array[0], *a = &d->array[i];
    return i && a->ndim >= 2 && x->raw == NN_PIXELS && a->shape[0] == x->shape[0] &&
           a->shape[1] == x->shape[1];
}

/* Beyond the edge stands -100, which losses ignore, or in a dtype without it 0. */
void tn_nn_follow(const nn_array *a, const unsigned char *from, const nn_view *v, unsigned char *to)
{
    const int64_t h = a->shape[0], w = a->shape[1],
                  none = a->dtype == TN_I32 || a->dtype == TN_I64 ? NN_NO_LABEL : 0;
    const size_t size = tn_dtype_size(a->dtype), pixel = (size_t)(a->item / (h * w)) * size;
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++, to += pixel) {
            const int64_t sy = y + v->dy, sx = (v->flip ? w - 1 - x : x) + v->dx;
            if (sy >= 0 && sy < h && sx >= 0 && sx < w)
                memcpy(to, from + (size_t)(sy * w + sx) * pixel, pixel);
            else
                for (size_t k = 0; k < pixel; k += size) memcpy(to + k, &none, size);
        }
}
