/* builtin.h - running nodes without generated kernels, for a machine that has no C compiler.
 *
 *   builtin.c          one node: memory for its result, operands, which way it is computed
 *   builtin_move.c     copies, casts and reductions
 *   builtin_eltwise.c  the elementwise rows of ops.def as loops, in f32 and f64, for three kinds of processor
 *                      (f16 and bf16 in f32)
 *   builtin_rows.h     those loops for one of the three and one type
 *
 * Products and convolutions are the device's own; what has no loop here goes through the reference
 * interpreter, in f64 on one thread: correct, and slow. Read first: tn_builtin_run. */
#pragma once

#include "../../core/graph.h"
#include "../device.h"

struct tn_pool;

/* Computes `node` (not a view of another) from its inputs' values into storage of its own, or where
 * node->place says; an assign writes into its target's. Inputs must have been run; numbers need not.
 * `d` is the CPU device. Returns 0 or a negative tn_status with one line in `err`. */
int tn_builtin_run(tn_device *d, tn_tensor *node, tn_errbuf *err);

struct tn_pool *tn_cpu_pool(tn_device *d); /* cpu.c */

/* ---- between the files ---- */

/* Elements to read in logical order: extents and strides with axes joined where they can be. */
typedef struct tn_bl_operand {
    const char *data;
    tn_dtype dtype;
    size_t size; /* of an element */
    bool dense;
    int ndim;
    int64_t extent[TN_MAX_DIMS], stride[TN_MAX_DIMS];
    union {
        double f;
        int64_t i;
    } number; /* where data points to for a NUMBER */
} tn_bl_operand;

/* `o` must not move afterwards. false: x has no value. */
bool tn_bl_open(const tn_tensor *x, tn_bl_operand *o);
/* For an x that arithmetic reads, and not only a copy: a number of 16 bits keeps f32's digits, as it does in
 * compiled kernels. */
void tn_bl_widen_number(const tn_tensor *x, tn_bl_operand *o);
/* Elements [begin, begin + n) into `out`, dense. */
void tn_bl_gather(const tn_bl_operand *o, int64_t begin, int64_t n, void *out);
void tn_bl_copy(struct tn_pool *pool, const tn_bl_operand *x, int64_t n, void *out);
void tn_bl_cast(struct tn_pool *pool, const tn_bl_operand *x, int64_t n, tn_dtype to, void *out);

/* Returns true where there is a loop for this node; tn_bl_eltwise then computes its n elements into out. */
bool tn_bl_has_eltwise(const tn_tensor *node);
void tn_bl_eltwise(struct tn_pool *pool, const tn_tensor *node, const tn_bl_operand *in, int64_t n,
                   void *out);

/* f32 sums, maxima and minima over neighbouring axes of a dense x: [outer, red, inner] -> [outer, inner]. */
bool tn_bl_has_reduce(const tn_tensor *node, int64_t *outer, int64_t *red, int64_t *inner);
int tn_bl_reduce(tn_device *d, tn_op op, const float *x, int64_t outer, int64_t red, int64_t inner,
                 float *out);
