/* attention.h - when one kernel makes an attention, and what the kernel's text and its launcher agree on.
 *
 *   operands  forward: q k v (mask) (o) (lse)   backward: q k v (mask) o lse go (parts) (dq) (dk) (dv), in
 *             round brackets what not every kernel has; parts are f32, see kernels/attention.c
 *   dims      batch, heads, tq, tk; then strides in elements, columns standing side by side: of q, k, v
 * (batch, head, row), of the mask (and column), of o, go, dq, dk, dv; how many blocks share a block's
 * queries. lse is [batch, heads, tq]
 *
 * Read first: fu_attention_pays, then fu_emit_attention in attention.c. */
#pragma once

#include "../../src/device/device.h"

enum {
    FU_ATTENTION_TILE = 128, /* a CPU's keys, and in backward queries, of a tile; half of it for wide heads */
    FU_ATTENTION_WIDEST = 256,
    FU_AT_SIZES = 0,
    FU_AT_Q = 4,
    FU_AT_K = 7,
    FU_AT_V = 10,
    FU_AT_MASK = 13,
    FU_AT_O = 17,
    FU_AT_GO = 20,
    FU_AT_DQ = 23,
    FU_AT_DK = 26,
    FU_AT_DV = 29,
    FU_AT_SPLITS = 32,
    FU_AT_DIMS
};

typedef struct fu_attention_size {
    tn_dtype dtype;
    int64_t heads, tq, tk, d; /* heads of all batches */
    bool causal;
} fu_attention_size;

/* Returns true where there is a kernel for it on this target, and it is expected to be faster, forward and
 * backward together, than products with a softmax between them. A function of the target profile and the
 * size. */
bool fu_attention_pays(const tn_target *t, const fu_attention_size *size);
