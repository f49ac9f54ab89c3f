/* attention_cuda.h - tiles of the attention kernels for tensor cores (src/device/cuda/kernels/attention*.cu):
 * which a problem is given, what they take of a multiprocessor, what they should reach.
 *
 * Read first: struct fu_flash_desc, then fu_flash_tile.
 */
#pragma once

#include "../../src/device/device.h"

/* The kernels' PASS. Backward is the last three, in this order. */
typedef enum fu_flash_pass {
    FU_FLASH_FORWARD,
    FU_FLASH_DELTA,
    FU_FLASH_DKV,
    FU_FLASH_DQ,
    FU_FLASH_PASSES
} fu_flash_pass;
typedef enum fu_flash_mask { FU_FLASH_NO_MASK, FU_FLASH_BOOL_MASK, FU_FLASH_ADDED_MASK } fu_flash_mask;

typedef struct fu_flash_desc {
    fu_flash_pass pass;
    tn_dtype dtype; /* f32, f16, bf16 */
    bool tf32;      /* f32 as one product of TF32, not as three */
    bool causal, dropout;
    bool strict; /* a query that sees nothing gives NaN, not 0 */
    fu_flash_mask mask;
    int head; /* elements of a row of q, k and v: 32, 64, 96, 128 */
    int64_t batch, heads, tq, tk;
    bool whole; /* the gradients of q, k and v are all wanted: the pass of dk and dv may give dq too */
} fu_flash_desc;

struct fu_flash_tile {
    int warps, m_tiles, columns, stages; /* WARPS, M_TILES, COLS, STAGES */
    bool kept;                           /* A_REGS */
    bool wgmma;                          /* WGMMA: by warpgroups, else by mma.sync */
    int rows, threads;                   /* of a block */
    int splits;             /* forward: blocks that share their rows, and part the keys; dim[32] */
    int64_t parts;          /* f32 elements of scratch: behind lse with splits above 1, else behind dv, */
    int64_t counts;         /* of which as many are words that pass delta clears, behind its delta; dim[32] */
    int64_t blocks, shared; /* tn_grid.n (chunk 1) and its shared */
    double flops;           /* of products that are wanted; three of TF32 for one of f32 count as one */
    double bytes;           /* that blocks read and write outside, caches not counted, */
    double shared_read;     /* and read from shared memory */
    double share;           /* predicted: of what its instruction can do in this precision; 0: no products; */
    const char *bound;      /* and what takes the time: tensor, exponents, issue, shared, L2, DRAM */
};

/* false: not a problem for these kernels, or no tile fits the target. */
bool fu_flash_tile(const fu_flash_desc *d, const tn_target *t, struct fu_flash_tile *out);

/* Its tile of warpgroups, be it the faster or not; false: it has none. Of a problem that has a tile. */
bool fu_flash_warpgroups(const fu_flash_desc *d, const tn_target *t, struct fu_flash_tile *out);

/* The kernel of a pass, to stand behind ptx.cuh and the #defines. */
const char *fu_flash_text(fu_flash_pass pass, const struct fu_flash_tile *tile);

/* The #defines that stand in front of the kernels' text, as snprintf: all but ENTRY, SCALE and, with dropout,
 * DROP_P, SEED, DRAW, which are the caller's. */
int fu_flash_defines(const fu_flash_desc *d, const struct fu_flash_tile *tile, char *out, size_t room);
