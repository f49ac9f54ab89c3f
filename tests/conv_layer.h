/* conv_layer.h - a convolution and its exact result, for tests of those of a processor. Read first: reference. */
#pragma once

#include "conv_desc.h"
#include "cpu_lib_rig.h"

typedef struct layer {
    tn_conv2d_desc c;
    int64_t x, w, y; /* elements */
} layer;

static inline layer make(const int *v, tn_dtype d)
{
    layer l = {.c = conv_desc_of(d, v)};
    const tn_conv2d_desc *c = &l.c;
    l.x = c->n * c->h * c->w * c->c;
    l.w = c->oc * c->kh * c->kw * (c->c / c->groups);
    l.y = c->n * c->oh * c->ow * c->oc;
    return l;
}

/* One walk over every product a * b of the layer serves all passes: `sum` and the sum of sizes at the element
 * of the pass's result. */
static inline void reference(const layer *l, double *sum, double *size)
{
    const tn_conv2d_desc *c = &l->c;
    int64_t ci = c->c / c->groups, co = c->oc / c->groups;
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t oh = 0; oh < c->oh; oh++)
            for (int64_t ow = 0; ow < c->ow; ow++)
                for (int64_t o = 0; o < c->oc; o++)
                    for (int64_t r = 0; r < c->kh; r++)
                        for (int64_t s = 0; s < c->kw; s++) {
                            int64_t ih = oh * c->stride[0] + r * c->dilation[0] - c->pad[0];
                            int64_t iw = ow * c->stride[1] + s * c->dilation[1] - c->pad[2];
                            if (ih < 0 || iw < 0 || ih >= c->h || iw >= c->w) continue;
                            int64_t y = ((n * c->oh + oh) * c->ow + ow) * c->oc + o;
                            int64_t x = ((n * c->h + ih) * c->w + iw) * c->c + o / co * ci;
                            int64_t w = ((o * c->kh + r) * c->kw + s) * ci;
                            for (int64_t i = 0; i < ci; i++) {
                                bool f = c->pass == TN_CONV_FORWARD, g = c->pass == TN_CONV_DATA_GRAD;
                                double t = get(c->dtype, c->in0, g ? y : x + i) *
                                           get(c->dtype, c->in1, f || g ? w + i : y);
                                int64_t at = f ? y : g ? x + i : w + i;
                                sum[at] += t, size[at] += fabs(t);
                            }
                        }
}
