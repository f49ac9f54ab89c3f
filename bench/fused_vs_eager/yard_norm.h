/* yard_norm.h - what the files of the yardsticks share: scratch of the workers, and how they write. */
#pragma once

#include "yard_vec.h"
#include "yardstick.h"

/* Of each worker a loss (8 doubles apart: a cache line each) and up to three sums over the rows; of all,
 * three rows of columns. */
typedef struct yard_scratch {
    double loss[YARD_WORKERS * 8];
    float sum[YARD_WORKERS][3][YARD_CHANNELS];
    float column[4][YARD_CHANNELS];
} yard_scratch;

void yard_begin(yard *y);                          /* sums and losses are 0 */
void yard_end(yard *y);                            /* y->loss */
void yard_columns(yard *y, int which, float *out); /* a sum over the rows, all workers' together */

#if !defined(YARD_NO_VECTORS)
static inline void put(const yard *y, float *p, V x)
{
    if (y->stream)
        vstream(p, x);
    else
        vstore(p, x);
}

static inline void lose(yard *y, int worker, V x)
{
    ((yard_scratch *)y->scratch)->loss[worker * 8] += (double)vadd(x);
}

yard_fn yard_layer_norm_gelu_forward, yard_layer_norm_gelu_step, yard_rms_norm_silu_forward,
    yard_rms_norm_silu_step, yard_residual_forward, yard_residual_step, yard_batch_norm_relu_forward,
    yard_batch_norm_relu_step;
#endif
