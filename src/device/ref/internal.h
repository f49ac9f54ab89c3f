/* internal.h - what the files of the reference interpreter share.
 *
 * run.c gathers every operand into row-major elements without gaps and hands them over with a zeroed result;
 * the op functions below therefore know shapes and attributes but no strides or memory. What only moves
 * elements moves doubles; what computes asks whether they are integers (tn_ref_ints). */
#pragma once

#include "ref.h"

typedef struct tn_ref_args {
    const tn_tensor *node;
    const double *const *in; /* one dense array per input, in the input's own shape */
    double *out;             /* dense, zeroed, in the node's shape */
    tn_errbuf *err;
} tn_ref_args;

/* An element of an integer dtype, in the place of a double. */
typedef int64_t tn_ref_int __attribute__((may_alias));

/* The elements of x, which stand at p, where its dtype is an integer one; else NULL. */
static inline const tn_ref_int *tn_ref_ints(const tn_tensor *x, const double *p)
{
    return tn_dtype_is_int(x->dtype) ? (const tn_ref_int *)(const void *)p : NULL;
}
/* The node's result likewise. */
static inline tn_ref_int *tn_ref_out(const tn_ref_args *a)
{
    return tn_dtype_is_int(a->node->dtype) ? (tn_ref_int *)(void *)a->out : NULL;
}
/* Sums and products of integers wrap. */
static inline int64_t tn_ref_sum(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static inline int64_t tn_ref_product(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

typedef struct tn_ref_device {
    tn_device device; /* first: a tn_device * of this device is a tn_ref_device * */
    double noise;
    uint64_t noise_seed;
} tn_ref_device;

/* noise.c. Nothing happens while noise is off. `result` moves what was rounded, and settles comparisons that
 * rounding could turn; tn_ref_noise_adds says whether the node adds up its operands, whose elements are then
 * all moved by `operand`. */
void tn_ref_noise_result(const tn_ref_args *a, int64_t n);
void tn_ref_noise_number(const tn_tensor *number, double *v);
bool tn_ref_noise_adds(const tn_tensor *node);
void tn_ref_noise_operand(const tn_tensor *node, int operand, double *v, int64_t n);
/* v as a device may round it that holds it in the node's dtype on the way to the result: element i of the
 * node's intermediate value `which`. */
double tn_ref_noise_between(const tn_tensor *node, int which, int64_t i, double v);

/* Each computes one op or a family of ops and returns 0 or a negative tn_status. */
typedef int tn_ref_rule(const tn_ref_args *a);
tn_ref_rule tn_ref_compute; /* whichever it is; run.c */
tn_ref_rule tn_ref_number, tn_ref_iota, tn_ref_cast, tn_ref_eltwise, tn_ref_reduce, tn_ref_scan, tn_ref_sort,
    tn_ref_reshape, tn_ref_ranks, tn_ref_pad, tn_ref_concat, tn_ref_matmul, tn_ref_conv2d, tn_ref_pool,
    tn_ref_gather, tn_ref_index_select, tn_ref_scatter_add, tn_ref_index_add, tn_ref_attention, tn_ref_random,
    tn_ref_host;

/* Brings n elements to dtype d: integers wrapped, 0 or 1 for bool, floats as they are. */
void tn_ref_settle(tn_dtype d, double *v, int64_t n);

/* A number, or one that was cut off, as an element of dtype d in *out. */
void tn_ref_store(tn_dtype d, tn_number v, double *out);

/* out[i...] = in[sum i*stride], row-major. */
void tn_ref_copy(double *out, const double *in, int ndim, const int64_t *shape, const int64_t *stride);

/* Steps a multi-index in row-major order; after the last one it is all zeros again. */
void tn_ref_next(int ndim, const int64_t *shape, int64_t *index);
