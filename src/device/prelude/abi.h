/* abi.h - what a generated kernel and the library agree on.
 *
 * This text stands at the top of every generated kernel, C and CUDA C, and is also included by the library,
 * so that the two cannot drift apart. A C kernel has no threads in it: the pool (src/device/cpu/pool.c) calls
 * it with disjoint half-open ranges [begin, end) of its work items, whose meaning (elements, rows, tiles) is
 * the schedule's business. A block of a CUDA kernel finds its range by its own index. Nothing is included
 * here but what every C compiler ships by itself, and nothing at all under NVRTC, which has no headers.
 */
#ifndef TN_KERNEL_ABI_H
#define TN_KERNEL_ABI_H

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#else
#include <stdint.h>
#endif

#define TN_KERNEL_ABI 4 /* bumped when tn_args changes: part of every kernel's cache key */

/* A run-time scalar. The kernel knows from its own text which member is meant. */
typedef union tn_word {
    double f;
    int64_t i;
    uint64_t u;
} tn_word;

/* A run of a plan by its number, and how many random draws there were before it. */
typedef struct tn_run_mark {
    int64_t run, draw;
} tn_run_mark;

/* The first fault a kernel meets. Kernels only ever write it while `code` is 0; races between threads
 * decide which of several faults is reported, never whether one is. */
typedef struct tn_fault {
    int32_t code;    /* 0 none, else enum tn_fault_code */
    int32_t where;   /* index of the node (within its plan) that met it */
    int64_t value;   /* the offending index */
    tn_run_mark in;  /* the run that met it, where it is found later than that; run 0: not known */
    tn_run_mark now; /* the run that is under way there */
} tn_fault;

enum tn_fault_code { TN_FAULT_NONE, TN_FAULT_INDEX };

enum { TN_MAX_KERNEL_BUFS = 64, TN_MAX_KERNEL_DIMS = 48, TN_KERNEL_TICKETS = 4096, TN_TILE_COLUMNS = 1024 };

/* A part of a product's result, near at hand while its kernel goes on with it (tn_gemm.then): items are rows
 * of the product, and `at` is the first item's element in column `first`; the columns end before `last`. */
typedef struct tn_tile {
    const void *at;
    int64_t ld, first, last; /* elements from row to row; at most TN_TILE_COLUMNS columns */
} tn_tile;

typedef struct tn_args {
    void *const *buf;      /* one pointer per operand, already moved to the view's first element */
    const int64_t *dim;    /* run-time extents, and numbers that follow from them */
    const tn_word *scalar; /* run-time scalars, seeds and draw numbers */
    tn_fault *fault;
    int32_t n_buf, n_dim; /* for a device that hands them over by value */
    const tn_tile *tile;  /* of a kernel that goes on with a product; else NULL */
} tn_args;

typedef void tn_kernel_fn(const tn_args *a, int64_t begin, int64_t end);

/* The one parameter of a generated CUDA kernel, handed over by value; all pointers are the device's. The
 * launch has ceil(n / chunk) blocks, block b does the items [b * chunk, min(n, (b + 1) * chunk)). A kernel's
 * finish is a second launch, with n and chunk of its own and the rest as it was. A kernel in which the block
 * that arrives last goes on, or one for each tile of its result, counts in the words of `ticket`, of which
 * there are TN_KERNEL_TICKETS. */
typedef struct tn_cuda_args {
    int64_t n, chunk;
    const tn_word *scalar; /* as in tn_args */
    tn_fault *fault;
    uint32_t *ticket; /* all 0 before and after the launch */
    void *buf[TN_MAX_KERNEL_BUFS];
    int64_t dim[TN_MAX_KERNEL_DIMS];
} tn_cuda_args;

#endif
