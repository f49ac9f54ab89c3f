/* conv_windows.h - what the windows of a convolution read, as products can read it: a copy of a band of
 * lines.
 *
 * In a copy of the lines, with padding as zeros, a window is a run of memory for each of its rows, a constant
 * apart, and so are the windows of pixels side by side; that is all that the kernels of gemm_kernel.h ask
 * for. Where nothing is padded, narrow or grouped, the image itself is as good ("in place"). Windows that
 * share no columns, and those of images too small to fill a kernel's rows, are copied one by one ("patches"):
 * all of one band, whatever their lines and images, are a constant apart then.
 *
 * The forward pass and the weight gradient walk along each axis once. The data gradient does for each phase
 * of its pixels, as many as the stride: gx[p] is the sum of gy[(p + pad - tap * dilation) / stride] over the
 * taps for which that is whole, and these are the same for all p that are equal modulo the stride. No zero is
 * multiplied. Read first: tn_conv_axis, then tn_windows. */
#pragma once

#include "cpu_lib.h"
#include "gemm_kernel.h"

/* One axis of a phase. Result o, of `count`, is pixel to + o * to_step, and reads at o * step + first + j *
 * apart, where that is in `size`, by tap (tap + j * tap_step) of the weights, j < taps. */
typedef struct tn_conv_axis {
    int64_t count, to, to_step, taps, tap, tap_step, size, step, first, apart;
} tn_conv_axis;

/* axis: 0 for rows, 1 for columns. */
tn_conv_axis tn_conv_axis_of(const tn_conv2d_desc *c, int axis, int64_t phase);
int64_t tn_conv_phases(const tn_conv2d_desc *c, int axis);

/* One axis of all phases: result o of any reads within o * step + low .. o * step + high. */
typedef struct tn_conv_span {
    int64_t count, size, step, low, high;
} tn_conv_span;

typedef struct tn_windows {
    const tn_conv2d_desc *c;
    const tn_gemm_kernel *kn;
    int64_t es, cs;                     /* bytes of a number as stored and as computed */
    int64_t per, fs;                    /* numbers of an element that is read, of a pair 2; its bytes */
    int64_t from, from_all, to, to_all; /* channels of one group and of all: read, in elements; of results */
    int64_t taps;
    tn_conv_span y, x;
    bool few;        /* results have so few channels that vectors go along the windows: conv_few.h */
    bool neighbours; /* elements are pairs of what two pixels, one behind the other, have in a place */
    bool in_place, patches;
    int64_t column, row; /* elements from one column to the next, from one row to the next */
    int64_t pixel;       /* from one pixel's window to the next one's */
    /* A band is `lines` lines of one image, of patches of any, in `chunks` of `wide` pixels. */
    int64_t lines, wide, chunks, bands;
    int64_t line;  /* where in a copy a line is kept that pairs are made from */
    int64_t bytes; /* of a copy, and what is read behind it */
} tn_windows;

typedef struct tn_band {
    int64_t group, image, l0, l1, x0, x1;
} tn_band;

/* pairs: two channels of bf16 may be one element, or, in the weight gradient, one channel of two pixels,
 * where the processor multiplies these. */
void tn_windows_of(tn_windows *w, const tn_conv2d_desc *c, bool pairs);
/* Cuts bands of about so many bytes, of at most so many lines. `rows`: of a product are pixels, else they are
 * elements of windows. */
void tn_windows_cut(tn_windows *w, bool rows, int64_t bytes, int64_t most);
/* Of all bands, chunk by chunk, the i-th. */
tn_band tn_windows_band(const tn_windows *w, int64_t group, int64_t i);
/* Returns the first pixel's window, of patches; else row l0 * step + low, column x0 * step + low. */
const char *tn_windows_copy(const tn_windows *w, const tn_band *b, char *copy);
