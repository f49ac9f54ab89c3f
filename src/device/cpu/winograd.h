/* winograd.h - convolutions by 3x3 windows with fewer multiplications: Winograd's F(2x2, 3x3) and F(4x4,
 * 3x3), all three passes, f32, or f16 and bf16 with transforms and products in f32. What the transforms are
 * stands in winograd_kernel.h, how they are put together in winograd.c. */
#pragma once

#include "cpu_lib.h"

/* Returns true where it can serve the request: f32, f16 or bf16, 3x3, stride and dilation 1, one group,
 * channels in whole vectors. */
bool tn_winograd_serves(const tn_conv2d_desc *c);
/* Returns the side of the tiles with which it is also the faster way on this processor, 2 or 4; 0: it is not
 * (measured beside sums written out: bench/gemm_conv.c). */
int tn_winograd_tile(const tn_conv2d_desc *c);

/* As tn_cpu_conv2d, for a request that tn_winograd_serves, by tiles of 2 or 4. The error of tiles of 2 is
 * that of the sums written out, of tiles of 4 two to three times that, measured against all that a tile is
 * computed from: a result of small numbers whose neighbours are large has the neighbours' error. A value that
 * is not finite may reach every result of the tiles whose inputs hold it, as NaN. */
int tn_winograd_conv2d(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, int tile,
                       tn_errbuf *err);
