/* table.h - the table of our own kernels on tensor cores, as the real NVRTC compiles them for GPUs that are
 * not there (make cuda-kernels).
 *
 * A family of kernels is a function that gives its rows one by one (families[] in table.c and in
 * tests/test_cuda_kernels.c). Read first: struct table_row, then table.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "src/device/device.h"
#include "tests/cuda_source.h"
#include "tests/gpu_target.h"

typedef struct table_row {
    char kernel[64], dtype[24], tile[48]; /* what it computes, of what, in what pieces */
    char *text;                           /* behind the prelude, allocated; it has one kernel */
    int threads;
    int64_t shared;    /* bytes of dynamic shared memory of a block */
    double per_l2;     /* operations for a byte from L2, */
    double per_shared; /* and for one that a warp reads from shared memory */
    double share;      /* predicted, of what its instruction can do, */
    bool wgmma;        /* which is that of warpgroups: for sm_90a alone */
    const char *bound; /* and what takes the time */
    bool tested;       /* by the test suite too, which has no time for all */
} table_row;

/* Row `i` of the family, or false: there are no more. The target is gpu_target(90). */
typedef bool table_family(int i, table_row *out);

/* What kernels are made for, and how a row calls it. */
static const struct table_kind {
    tn_dtype dtype;
    bool tf32;
    const char *name;
} table_kinds[] = {{TN_F32, false, "f32 (3 x TF32)"},
                   {TN_F32, true, "f32 as TF32"},
                   {TN_F16, false, "f16"},
                   {TN_BF16, false, "bf16"}};
enum { TABLE_KINDS = sizeof table_kinds / sizeof *table_kinds };

/* Blocks that live on a multiprocessor of the target at once. */
static inline long table_resident(const table_row *row, long registers)
{
    const tn_target t = gpu_target(90);
    const long by_registers = registers ? 65536 / (((registers + 7) / 8 * 8) * row->threads) : 1;
    const long by_shared = (t.l1_bytes / (row->shared + 1024)), by_threads = t.max_threads / row->threads;
    const long least = by_registers < by_shared ? by_registers : by_shared;
    return least < by_threads ? least : by_threads;
}
