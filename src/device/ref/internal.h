/* internal.h - what the files of the reference interpreter share.
 *
 * run.c gathers every operand into row-major elements without gaps and hands them over with a zeroed result;
 * the op functions below therefore know shapes and attributes but no strides or memory. What only moves
 * elements moves doubles; what computes asks whether they are integers (tn_ref_ints).
 */
#ifndef TN_REF_INTERNAL_H
#define TN_REF_INTERNAL_H

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
static inline int64_t tn_ref_sum(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
static inline int64_t tn_ref_product(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

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

/* run.c: one op, whichever it is, from dense operands into a zeroed result that is not yet rounded. */
int tn_ref_compute(const tn_ref_args *a);

/* Each computes one op or a family of ops and returns 0 or a negative tn_status. */
int tn_ref_number(const tn_ref_args *a);
int tn_ref_iota(const tn_ref_args *a);
int tn_ref_cast(const tn_ref_args *a);
int tn_ref_eltwise(const tn_ref_args *a);
int tn_ref_reduce(const tn_ref_args *a);
int tn_ref_scan(const tn_ref_args *a);
int tn_ref_sort(const tn_ref_args *a);
int tn_ref_reshape(const tn_ref_args *a);
int tn_ref_ranks(const tn_ref_args *a);
int tn_ref_pad(const tn_ref_args *a);
int tn_ref_concat(const tn_ref_args *a);
int tn_ref_matmul(const tn_ref_args *a);
int tn_ref_conv2d(const tn_ref_args *a);
int tn_ref_pool(const tn_ref_args *a);
int tn_ref_gather(const tn_ref_args *a);
int tn_ref_index_select(const tn_ref_args *a);
int tn_ref_scatter_add(const tn_ref_args *a);
int tn_ref_index_add(const tn_ref_args *a);
int tn_ref_attention(const tn_ref_args *a);
int tn_ref_random(const tn_ref_args *a);
int tn_ref_host(const tn_ref_args *a);

/* Writes a line into err and returns status. */

/* Brings n elements to dtype d: integers wrapped, 0 or 1 for bool, floats as they are. */
void tn_ref_settle(tn_dtype d, double *v, int64_t n);

/* A number, or one that was cut off, as an element of dtype d in *out. */
void tn_ref_store(tn_dtype d, tn_number v, double *out);

/* out[i...] = in[sum i*stride], row-major. */
void tn_ref_copy(double *out, const double *in, int ndim, const int64_t *shape, const int64_t *stride);

/* Steps a multi-index in row-major order; after the last one it is all zeros again. */
void tn_ref_next(int ndim, const int64_t *shape, int64_t *index);

#endif
