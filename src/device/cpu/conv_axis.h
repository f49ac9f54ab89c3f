/* conv_axis.h - one axis of a convolution's pass as a walk with stride: where results stand, what each reads,
 * and by which taps of the weights.
 *
 * The forward pass and the weight gradient have one such walk, the data gradient one for each phase of its
 * pixels, as many as the stride: gx[p] is the sum of gy[(p + pad - tap * dilation) / stride] over the taps
 * for which that is whole, and these are the same for all p that are equal modulo the stride. */
#ifndef TN_CONV_AXIS_H
#define TN_CONV_AXIS_H

#include "../../core/int64.h"
#include "../device.h"

typedef struct tn_conv_axis {
    int64_t taps, tap,
        tap_step; /* the j-th is tap + j * tap_step of the weights; in the order of what is read */
    int64_t size, step, first,
        apart;                  /* result o reads at o * step + first + j * apart, where that is in size */
    int64_t count, to, to_step; /* results; the o-th is pixel to + o * to_step */
} tn_conv_axis;

/* axis: 0 for rows, 1 for columns. */
static inline tn_conv_axis tn_conv_axis_of(const tn_conv2d_desc *c, int axis, int64_t phase)
{
    const int64_t stride = c->stride[axis], dilation = c->dilation[axis], pad = c->pad[2 * axis];
    const int64_t taps = axis ? c->kw : c->kh, in = axis ? c->w : c->h, out = axis ? c->ow : c->oh;
    if (c->pass != TN_CONV_DATA_GRAD)
        return (tn_conv_axis){.taps = taps,
                              .tap_step = 1,
                              .size = in,
                              .step = stride,
                              .first = -pad,
                              .apart = dilation,
                              .count = out,
                              .to_step = 1};
    tn_conv_axis x = {.size = out, .step = 1, .to = phase, .to_step = stride};
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

#endif
