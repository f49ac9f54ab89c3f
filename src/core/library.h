/* library.h - products and convolutions as a device's library is asked for them, from their nodes. */
#pragma once

#include "../device/device.h"
#include "graph.h"

/* How the last two axes of a tensor lie, and the batch axes before them: distances in elements. */
typedef struct tn_matrix {
    int64_t row, col, batch[TN_MAX_DIMS];
} tn_matrix;

/* Of x as it stands, or of a copy of it without gaps. False: no library reads x where it stands. */
bool tn_matrix_of(const tn_tensor *x, bool copied, tn_matrix *m);

/* The matmul t of matrices a and b into c, without pointers and bias. False: neighbouring batch axes that all
 * three walk as one are one, and too many are left. */
bool tn_gemm_of(const tn_tensor *t, const tn_matrix *a, const tn_matrix *b, const tn_matrix *c, tn_gemm *g);

/* The convolution, or the gradient of one, that t is, without pointers. */
tn_conv2d_desc tn_conv2d_of(const tn_tensor *t);
