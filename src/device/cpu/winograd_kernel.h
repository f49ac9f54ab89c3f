/* winograd_kernel.h - the transforms of Winograd's convolutions F(2x2, 3x3) and F(4x4, 3x3), one set per
 * instruction set.
 *
 * A tile of m by m results of a 3x3 convolution follows from m + 2 by m + 2 inputs with (m + 2)^2
 * multiplications a channel instead of 9 m^2 (A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural
 * Networks, 2015): 16 instead of 36, or 36 instead of 144.
 *
 *   y = A^T [ (G g G^T) . (B^T d B) ] A
 *
 * with d the inputs, g the 3x3 weights, y the results and . element by element. Results and weights are taken
 * for polynomials, whose product is known from its values at m + 1 points and its highest term:
 *
 *   A:  rows (1 p p^2 ..), the last (0 .. 0 1)
 *   G:  rows (1 p p^2) / N(p), N(p) the product of p - q over all other points q, the last (0 0 1)
 *   B^T: rows of coefficients of the product of x - q over all other points q, the last over all points
 *
 * For m = 2 the points are 0, 1, -1 (signs of the last rows and factors of 2 moved about, so that nothing but
 * 0, 1, -1 and 1/2 is left): nothing grows, and the error is that of the sums written out. For m = 4 they are
 * 0, 5/8, -5/8, 3/2, -3/2, whose powers are exact and stay near 1: the error is about twice as large, where
 * the usual 0, 1, -1, 2, -2 make it five times as large (tests/test_conv.c). Read first: tn_winograd_kernel.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../core/dtype.h"

enum { TN_WINOGRAD_TILE = 4, TN_WINOGRAD_POSITIONS = 36 }; /* the most of each */

/* Every function goes along n channels, a multiple of `vl`; the (tile + 2)^2 values of a tile lie `step`
 * floats apart, or at[] floats from the first place. Pixels, taps and values come row by row, the first two
 * as pointers to their first channel; pixels, taps and bias are of `dtype`, f32, f16 or bf16, and rounded to
 * it once, as they are stored. */
typedef struct tn_winograd_kernel {
    int vl, tile;
    tn_dtype dtype;
    void (*input)(const void *const *pixel, int64_t n, float *v, const int64_t *at); /* v = B^T d B */
    void (*gradient)(const void *const *pixel, int64_t n, float *z, int64_t step);   /* z = A y A^T */
    void (*output)(const float *p, int64_t step, int64_t n, const void *bias, bool relu,
                   void *const *pixel);                                        /* y = A^T p A + bias */
    void (*filter)(const void *const *tap, int64_t n, float *u, int64_t step); /* u = G g G^T */
    void (*filter_gradient)(const float *p, int64_t step, int64_t n, void *const *tap); /* g = G^T p G */
    void (*add)(float *sum, const float *more, int64_t n);
} tn_winograd_kernel;

/* For tiles of 2 or 4 of one of these dtypes: the best this processor runs; it goes with
 * tn_gemm_kernel_for(TN_F32). */
const tn_winograd_kernel *tn_winograd_kernel_best(int tile, tn_dtype dtype);
/* The i-th of all that this processor runs, in the order of tn_gemm_kernel_at, NULL at the end: for tests. */
const tn_winograd_kernel *tn_winograd_kernel_at(int tile, tn_dtype dtype, int i);
