/* conv_desc.h - convolutions and products that tests, tables and benchmarks begin with: square images, a square window
 * of odd size, padded so that the result is as large as the image. Pointers, and what differs, are the
 * caller's. */
#pragma once

#include "src/device/device.h"

static inline tn_conv2d_desc conv_desc(tn_dtype dtype, tn_conv_pass pass, int64_t n, int64_t size, int64_t c,
                                       int64_t oc, int64_t window)
{
    const int64_t pad = window / 2;
    return (tn_conv2d_desc){.dtype = dtype,
                            .pass = pass,
                            .n = n,
                            .h = size,
                            .w = size,
                            .c = c,
                            .oc = oc,
                            .kh = window,
                            .kw = window,
                            .oh = size,
                            .ow = size,
                            .groups = 1,
                            .stride = {1, 1},
                            .pad = {pad, pad, pad, pad},
                            .dilation = {1, 1}};
}

/* By n h w c oc kh kw groups, stride, pad (top bottom left right), dilation. */
static inline tn_conv2d_desc conv_desc_of(tn_dtype dtype, const int *v)
{
    tn_conv2d_desc c = conv_desc(dtype, TN_CONV_FORWARD, v[0], v[1], v[3], v[4], v[5]);
    c.w = v[2];
    c.kw = v[6];
    c.groups = v[7];
    for (int i = 0; i < 2; i++) c.stride[i] = v[8 + i];
    for (int i = 0; i < 4; i++) c.pad[i] = v[10 + i];
    for (int i = 0; i < 2; i++) c.dilation[i] = v[14 + i];
    c.oh = (c.h + c.pad[0] + c.pad[1] - c.dilation[0] * (c.kh - 1) - 1) / c.stride[0] + 1;
    c.ow = (c.w + c.pad[2] + c.pad[3] - c.dilation[1] * (c.kw - 1) - 1) / c.stride[1] + 1;
    return c;
}

/* Rows of both operands and of the result stand side by side. */
static inline tn_gemm gemm_desc(tn_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    tn_gemm g = {.dtype = dtype, .m = m, .n = n, .k = k, .a_row = k, .b_row = n, .c_row = n};
    g.a_col = g.b_col = 1;
    return g;
}
