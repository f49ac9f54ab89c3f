/* cpu_lib.h - matrix products and convolutions on the CPU.
 *
 * Two calls: products are gemm_plain.c's; convolutions conv_depthwise.c's where each channel is a group,
 * winograd.c's where that is faster, and else conv_plain.c's and conv_weights.c's. cpu_lib.c checks what it
 * is given, settles the edge cases and chooses. Every slice of work is computed by one thread, and where
 * partial sums are added, in a fixed order, their number and bounds depend on shapes alone: the bits do not
 * depend on the thread count.
 *
 * A tn_cpu_lib belongs to one session, as its pool does: one call at a time. Read first: tn_cpu_gemm and
 * tn_cpu_conv2d in cpu_lib.c. */
#pragma once

#include <stdbool.h>

#include "../device.h"

struct tn_pool;
typedef struct tn_cpu_lib tn_cpu_lib;

/* Returns 0 or TN_E_NOMEM. */
int tn_cpu_lib_open(tn_cpu_lib **out);
void tn_cpu_lib_close(tn_cpu_lib *lib); /* NULL is allowed */

/* C = act(A B + bias) as device.h says, any dtype but bool. k = 0 leaves act(bias), or zeros; m, n or a batch
 * extent of 0 does nothing. Integers wrap; they take no bias. C must not overlap A, B or bias.
 * Returns 0, TN_E_DTYPE, TN_E_ARG, TN_E_NOMEM or TN_E_DEVICE. */
int tn_cpu_gemm(tn_cpu_lib *lib, struct tn_pool *pool, const tn_gemm *g, tn_device_stats *stats,
                tn_errbuf *err);

/* One pass of a convolution as device.h says: f32 f64 f16 bf16. Errors as above, TN_E_SHAPE too. */
int tn_cpu_conv2d(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_device_stats *stats,
                  tn_errbuf *err);

/* Has scratch memory for a product or a convolution (the other is NULL): the call itself cannot fail for want
 * of memory then, until tn_cpu_settle, which gives large blocks back. Nothing is computed. Errors as of the
 * call. */
int tn_cpu_ready(tn_cpu_lib *lib, struct tn_pool *pool, const tn_gemm *g, const tn_conv2d_desc *c,
                 tn_errbuf *err);
/* Returns true where it gave anything back. */
bool tn_cpu_settle(tn_cpu_lib *lib);

/* Sets the log that is told, once, that another implementation had to stand in for want of memory. */
void tn_cpu_lib_log(tn_cpu_lib *lib, tn_log_fn *log, void *user);

/* Chooses among the implementations. AUTO takes the faster one by shape; the others are for tests and
 * benchmarks. */
typedef enum tn_cpu_impl {
    TN_CPU_AUTO,
    TN_CPU_PLAIN,
    TN_CPU_TILES_2, /* Winograd's, else as AUTO */
    TN_CPU_TILES_4
} tn_cpu_impl;
void tn_cpu_lib_prefer(tn_cpu_lib *lib, tn_cpu_impl impl);

/* ---- between the files of this folder ---- */

typedef enum tn_scratch {
    TN_SCRATCH_PACK,
    TN_SCRATCH_SUM,
    TN_SCRATCH_WIDE,   /* operands of 16 bits as floats */
    TN_SCRATCH_SHARED, /* of tn_gemm.share 1, and so on */
    TN_SCRATCH_USES = TN_SCRATCH_SHARED + TN_GEMM_SHARED
} tn_scratch;
struct tn_cpu_lib {
    tn_cpu_impl impl;
    void *scratch[TN_SCRATCH_USES];
    size_t scratch_bytes[TN_SCRATCH_USES];
    const void
        *shared[TN_GEMM_SHARED]; /* the B whose packed form stands in its scratch, until tn_cpu_settle */
    bool held;                   /* until tn_cpu_settle nothing is given back */
    bool told;                   /* that another implementation stood in */
    tn_log_fn *log;
    void *log_user;
};

/* A block of at least `bytes`, 64-byte aligned, valid until the next call for the same use. NULL when there
 * is no memory. Large ones are given back at the end of the call. */
void *tn_cpu_scratch(tn_cpu_lib *lib, tn_scratch use, size_t bytes);
bool tn_cpu_trim_scratch(tn_cpu_lib *lib); /* whether it gave anything back */

/* Both are given requests that cpu_lib.c has checked and normalised: every extent at least 1, one stride of
 * each matrix 1. */
int tn_gemm_plain(tn_cpu_lib *lib, struct tn_pool *pool, const tn_gemm *g, tn_errbuf *err);
int tn_conv2d_plain(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err);
int tn_conv2d_weights(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err);
bool tn_conv2d_is_depthwise(const tn_conv2d_desc *c); /* one that conv_depthwise.c serves */
int tn_conv2d_depthwise(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err);

/* Returns the place along an axis (0: rows, 1: columns) that tap k reads for place o of the result, or -1
 * outside. Forward reads o * stride + k * dilation - pad of x; its transpose reads the output that had this
 * input under its tap k. */
static inline int64_t tn_conv2d_tap(const tn_conv2d_desc *c, int axis, int64_t o, int64_t k)
{
    const int64_t stride = c->stride[axis], away = k * c->dilation[axis] - c->pad[2 * axis];
    if (c->pass != TN_CONV_DATA_GRAD) {
        const int64_t i = o * stride + away;
        return i < (axis ? c->w : c->h) ? (i < 0 ? -1 : i) : -1;
    }
    const int64_t i = o - away;
    if (i < 0) return -1;
    if (stride == 1) return i < (axis ? c->ow : c->oh) ? i : -1;
    return i % stride == 0 && i / stride < (axis ? c->ow : c->oh) ? i / stride : -1;
}
