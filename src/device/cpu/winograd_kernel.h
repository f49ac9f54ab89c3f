/* winograd_kernel.h - the transforms of Winograd's convolution F(2x2, 3x3), one set per instruction set.
 *
 * Two by two results of a 3x3 convolution follow from four by four inputs with 16 multiplications a channel
 * instead of 36 (A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, 2015):
 *
 *   y = A^T [ (G g G^T) . (B^T d B) ] A
 *
 * with d the 4x4 inputs, g the 3x3 weights, y the 2x2 results and . element by element. *
 * B^T, A^T and G hold 0, 1, -1 and 1/2 alone, so that nothing grows and the error is that of the sum written
 * out (tests/test_conv.c). Read first: tn_winograd_kernel.
 */
#ifndef TN_WINOGRAD_KERNEL_H
#define TN_WINOGRAD_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

/* Every function goes along n channels, a multiple of `vl`; the 16 values of a 4x4 tile lie `step` floats
 * apart, row by row. Pixels and taps are pointers to their first channel, row by row. */
typedef struct tn_winograd_kernel {
    int vl;
    void (*input)(const float *const pixel[16], int64_t n, float *v, int64_t step);   /* v = B^T d B */
    void (*gradient)(const float *const pixel[4], int64_t n, float *z, int64_t step); /* z = A y A^T */
    void (*output)(const float *m, int64_t step, int64_t n, const float *bias, bool relu,
                   float *const pixel[4]);                                        /* y = A^T m A + bias */
    void (*filter)(const float *const tap[9], int64_t n, float *u, int64_t step); /* u = G g G^T */
    void (*filter_gradient)(const float *u, int64_t step, int64_t n, float *const tap[9]); /* g = G^T u G */
    void (*add)(float *sum, const float *more, int64_t n);
} tn_winograd_kernel;

/* The best this processor runs; it goes with tn_gemm_kernel_for(TN_F32). */
const tn_winograd_kernel *tn_winograd_kernel_best(void);
/* The i-th of all that this processor runs, in the order of tn_gemm_kernel_at, NULL at the end: for tests. */
const tn_winograd_kernel *tn_winograd_kernel_at(int i);

#endif
