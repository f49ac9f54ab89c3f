/* resize.c - scales a box of an image: bilinear, each way by itself, with a filter that grows as the image
 * shrinks (antialias), as PIL's resize and torchvision's do. A place of the result looks at what lies around
 * its centre
 *
 *     from + (i + 1/2) scale,  scale = (to - from) / out,
 *
 * with the weights max(0, 1 - distance / max(scale, 1)), made to add up to 1; beyond the image there is
 * nothing. */
#include "nn.h"

#include <math.h>
#include <string.h>

typedef struct filter {
    int64_t taps;
    float *weight;  /* [out, taps] */
    int64_t *first; /* [out] of the elements that are looked at */
    int64_t *count; /* [out] */
} filter;

static bool make_filter(filter *f, int64_t n, double from, double to, int64_t out)
{
    const double scale = (to - from) / (double)out, wide = scale > 1 ? scale : 1;
    f->taps = 2 * (int64_t)ceil(wide) + 1;
    f->first = tn_malloc((size_t)out * (2 * sizeof(int64_t) + (size_t)f->taps * sizeof(float)));
    if (!f->first) return false;
    f->count = f->first + out;
    f->weight = (float *)(f->count + out);
    for (int64_t i = 0; i < out; i++) {
        const double centre = from + ((double)i + 0.5) * scale;
        const int64_t low = (int64_t)(centre - wide + 0.5), high = (int64_t)(centre + wide + 0.5);
        const int64_t first = low < 0 ? 0 : low, end = high > n ? n : high;
        float *w = f->weight + i * f->taps;
        double sum = 0;
        f->first[i] = first;
        f->count[i] = end - first < f->taps ? end - first : f->taps;
        for (int64_t k = 0; k < f->count[i]; k++) {
            const double off = fabs((double)(first + k) - centre + 0.5) / wide;
            w[k] = off < 1 ? (float)(1 - off) : 0;
            sum += (double)w[k];
        }
        for (int64_t k = 0; k < f->count[i]; k++) w[k] = (float)((double)w[k] / sum);
    }
    return true;
}

static void along_x(const filter *f, const unsigned char *in, int64_t c, int64_t out_w, float *out)
{
    for (int64_t x = 0; x < out_w; x++)
        for (int64_t k = 0; k < c; k++) {
            const float *w = f->weight + x * f->taps;
            const unsigned char *from = in + f->first[x] * c + k;
            float sum = 0;
            for (int64_t t = 0; t < f->count[x]; t++) sum += w[t] * (float)from[t * c];
            out[x * c + k] = sum;
        }
}

int tn_nn_resize(const nn_picture *in, int64_t c, const double box[4], unsigned char *out, int64_t out_h,
                 int64_t out_w)
{
    filter fx = {0}, fy = {0};
    if (in->h == out_h && in->w == out_w && box[2] - box[0] == (double)out_h &&
        box[3] - box[1] == (double)out_w) {
        memcpy(out, in->pixels, (size_t)(out_h * out_w * c));
        return TN_OK;
    }
    float *rows = NULL;
    bool good =
        make_filter(&fy, in->h, box[0], box[2], out_h) && make_filter(&fx, in->w, box[1], box[3], out_w);
    const int64_t first = good ? fy.first[0] : 0, end = good ? fy.first[out_h - 1] + fy.count[out_h - 1] : 0,
                  row = out_w * c;
    if (good) good = (rows = tn_malloc((size_t)((end - first + 1) * row) * sizeof(float))) != NULL;
    for (int64_t y = first; y < end && good; y++)
        along_x(&fx, in->pixels + y * in->w * c, c, out_w, rows + (y - first) * row);
    for (int64_t y = 0; y < out_h && good; y++) {
        const float *from = rows + (fy.first[y] - first) * row, *w = fy.weight + y * fy.taps;
        float *sum = rows + (end - first) * row;
        memset(sum, 0, (size_t)row * sizeof(float));
        for (int64_t t = 0; t < fy.count[y]; t++)
            for (int64_t i = 0; i < row; i++) sum[i] += w[t] * from[t * row + i];
        for (int64_t i = 0; i < row; i++) out[y * row + i] = (unsigned char)(sum[i] + 0.5f);
    }
    tn_free_mem(rows);
    tn_free_mem(fx.first);
    tn_free_mem(fy.first);
    return good ? TN_OK : TN_E_NOMEM;
}
