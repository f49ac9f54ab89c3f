/* build.h - how nodes are made. Each function checks its operands, derives the result's dtype and shape,
 * appends one node (or a few: a cast, an EXPAND) to the graph's current call and returns it.
 *
 * Given a NULL node they return NULL; what does not fit is reported through tn_error_set under the current
 * call's name. Operators (src/ops), backward rules (autograd) and passes are all written in these. */
#pragma once

#include "graph.h"

/* Elementwise rows. Operands are promoted and broadcast. A weak number (tn_mk_num) takes the other operand's
 * dtype, unless it is floating and the other is not. */
tn_tensor *tn_mk1(tn_op op, tn_tensor *x);
tn_tensor *tn_mk2(tn_op op, tn_tensor *x, tn_tensor *y);
tn_tensor *tn_mk3(tn_op op, tn_tensor *x, tn_tensor *y, tn_tensor *z);
tn_tensor *tn_mk_cast(tn_tensor *x, tn_dtype dtype); /* x itself when it has that dtype */
/* The dtype a set of operands is brought to. As in PyTorch there are three ranks: tensors with axes, 0-d
 * tensors, weak numbers. Within one rank dtypes promote; a lower rank counts only where its category is
 * higher. */
tn_dtype tn_common_dtype(int n, tn_tensor *const *x);

tn_tensor *tn_mk_num(tn_graph *g, double v);                                /* weak constant of the text */
tn_tensor *tn_mk_scalar(tn_graph *g, tn_number v);                          /* weak run-time scalar */
tn_tensor *tn_mk_typed(tn_graph *g, tn_op op, tn_number v, tn_dtype dtype); /* scalar or constant, 0-d */
tn_tensor *tn_mk_like(const tn_tensor *x, int64_t v); /* a constant in each place of x */
tn_tensor *tn_mk_iota(tn_graph *g, int axis, int ndim, const int64_t *shape, tn_dtype dtype);

/* axes: bit mask; the result keeps extents of 1. An empty mask gives x. Sums and products of bool and
 * integers are i64, those of f16 and bf16 f32. */
tn_tensor *tn_mk_reduce(tn_op op, tn_tensor *x, uint32_t axes);
/* Of the first largest, counted along the axes row by row: argmax in the smallest integers that hold it. */
tn_tensor *tn_mk_place_of_max(tn_tensor *x, uint32_t axes);
/* The places of the first k along an axis, in rising order or falling. */
tn_tensor *tn_mk_sort(tn_tensor *x, int axis, int64_t k, bool descending);
tn_tensor *tn_mk_ranks_mean(tn_tensor *x);
/* scatter, gather: the result has `lines` lines. No gradient passes. */
tn_tensor *tn_mk_ranks_lines(tn_op op, tn_tensor *x, int64_t lines);
tn_tensor *tn_mk_scan(tn_op op, tn_tensor *x, int axis, bool reverse);

tn_tensor *tn_mk_alias(tn_tensor *x);                                   /* another node for the same value */
tn_tensor *tn_mk_reshape(tn_tensor *x, int ndim, const int64_t *shape); /* same number of elements */
tn_tensor *tn_mk_permute(tn_tensor *x, const int *perm);
tn_tensor *tn_mk_swap(tn_tensor *x, int axis0, int axis1);
tn_tensor *tn_mk_expand(tn_tensor *x, int ndim, const int64_t *shape); /* leading axes may be added */
tn_tensor *tn_mk_slice(tn_tensor *x, const int64_t *start, const int64_t *step, const int64_t *count);
tn_tensor *tn_mk_slice1(tn_tensor *x, int axis, int64_t start, int64_t step, int64_t count);
tn_tensor *tn_mk_pad(tn_tensor *x, tn_tensor *fill, const int64_t *before, const int64_t *after);
tn_tensor *tn_mk_concat(tn_graph *g, int n, tn_tensor *const *xs, int axis);
tn_tensor *tn_mk_contiguous(tn_tensor *x); /* always a new dense copy */
tn_tensor *tn_mk_dense(tn_tensor *x);      /* x when dense, else a copy */

/* Batch axes broadcast; ndim >= 2. bias [n] or NULL. */
/* The dtype that a product of operands of these is computed in, and has. */
tn_dtype tn_product_dtype(const tn_graph *g, tn_dtype x, tn_dtype y);
tn_tensor *tn_mk_matmul(tn_tensor *x, tn_tensor *y, tn_tensor *bias);
/* attr: stride, pad, dilation, groups filled; h w kh kw are set here. bias [oc] or NULL. */
tn_tensor *tn_mk_conv2d(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, const tn_conv_attr *attr);
tn_tensor *tn_mk_conv2d_data_grad(tn_tensor *gy, tn_tensor *weight, const tn_conv_attr *attr);
tn_tensor *tn_mk_conv2d_weight_grad(tn_tensor *x, tn_tensor *gy, const tn_conv_attr *attr);
/* pool_max pool_argmax pool_sum pool_spread: index NULL; pool_put, pool_take: index of pool_argmax. Sums over
 * windows of f16 and bf16 are f32, as tn_mk_reduce's. */
tn_tensor *tn_mk_pool(tn_op op, tn_tensor *x, tn_tensor *index, const tn_pool_attr *attr);

/* The operands of an attention by name; NULL where it has none. */
typedef struct tn_attention {
    tn_tensor *q, *k,
        *v; /* [.., tq, d], [.., tk, d], [.., tk, d] of one floating dtype, with equal axes in front */
    tn_tensor *scale;  /* a 0-d number */
    tn_tensor *mask;   /* [.., tq, tk], bool or of q's dtype */
    tn_tensor *keep;   /* bernoulli [.., tq, tk], */
    tn_tensor *chance; /* and what it is made of: set by tn_attention_of alone */
    bool causal;
    bool strict;  /* a query that sees nothing gives NaN, as softmax does; else 0, and lse is infinite */
    bool rows;    /* of four axes: o comes as [batch, tq, heads, d] */
    bool divided; /* scores are divided by `scale` instead of multiplied */
    bool fine;    /* lse is f64: beside a mask of -1e9 the logarithm is none of f32's digits */
    tn_tensor *o, *lse, *go; /* of a gradient */
} tn_attention;
/* attention attention_lse attention_dq attention_dk attention_dv. */
tn_tensor *tn_mk_attention(tn_op op, const tn_attention *a);
tn_attention tn_attention_of(const tn_tensor *n);
/* Returns true where an attention takes only the seed and the draw of operand k: no kernel has to make its
 * elements. */
bool tn_attention_draws(const tn_tensor *n, int k);

tn_tensor *tn_mk_gather(tn_tensor *x, int axis, tn_tensor *index);
tn_tensor *tn_mk_index_select(tn_tensor *x, int axis, tn_tensor *index);
/* Zeros of `shape` with src added where index says. */
tn_tensor *tn_mk_scatter_add(tn_tensor *src, int axis, tn_tensor *index, int ndim, const int64_t *shape);
tn_tensor *tn_mk_index_add(tn_tensor *src, int axis, tn_tensor *index, int ndim, const int64_t *shape);

/* Takes the session's next draw. p: 0-d f32, for bernoulli only. */
tn_tensor *tn_mk_random(tn_graph *g, tn_op op, tn_dtype dtype, int ndim, const int64_t *shape, tn_tensor *p);

/* target persistent. The node's value is target's memory. */
tn_tensor *tn_mk_assign(tn_tensor *target, tn_tensor *source);
/* The lines that index names along an axis, and no others. */
tn_tensor *tn_mk_assign_rows(tn_tensor *target, int axis, tn_tensor *index, tn_tensor *source, bool in_range);

/* Helpers for shapes. */
int tn_axis(tn_graph *g, const tn_tensor *x, int axis); /* negative from the back; -1 and an error when bad */
bool tn_broadcast_shape(int na, const int64_t *a, int nb, const int64_t *b, int *n, int64_t *out);
