/* fuser_graphs.h - short names for the nodes that the tests of the fuser build their graphs from. */
#pragma once

#include "fuser_rig.h"

static inline tn_tensor *op1(tn_op op, tn_tensor *x) { return tn_mk1(op, x); }
static inline tn_tensor *op2(tn_op op, tn_tensor *x, tn_tensor *y) { return tn_mk2(op, x, y); }
static inline tn_tensor *num(tn_graph *g, double v) { return tn_mk_num(g, v); }
static inline tn_tensor *back(tn_tensor *x, const tn_tensor *like)
{
    return tn_mk_expand(x, like->ndim, like->shape);
}

/* Over the axes of the mask, which stay as extents of 1. */
static inline tn_tensor *mean(tn_graph *g, tn_tensor *x, uint32_t axes)
{
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++)
        if (axes >> i & 1) n *= x->shape[i];
    return op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, x, axes), num(g, 1.0 / (double)n));
}

static inline tn_tensor *softmax(tn_graph *g, tn_tensor *x, int axis)
{
    (void)g;
    tn_tensor *m = tn_mk_reduce(TN_OP_reduce_max, x, 1u << axis);
    tn_tensor *e = op1(TN_OP_exp, op2(TN_OP_sub, x, back(m, x)));
    return op2(TN_OP_div, e, back(tn_mk_reduce(TN_OP_reduce_sum, e, 1u << axis), x));
}
