/* conv_desc.h - the convolution that tests, tables and benchmarks begin with: square images, a square window
 * of odd size, padded so that the result is as large as the image. Pointers, and what differs, are the
 * caller's. */
#ifndef TESTS_CONV_DESC_H
#define TESTS_CONV_DESC_H

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

#endif
