/* build_number.c - numbers as nodes, and a value of another dtype: a number is converted here and now. */
#include "build.h"

tn_number tn_number_f(double v) { return (tn_number){v, 0, false}; }

tn_number tn_number_i(int64_t v) { return (tn_number){(double)v, v, true}; }

tn_tensor *tn_mk_typed(tn_graph *g, tn_op op, tn_number v, tn_dtype dtype)
{
    tn_tensor *n = tn_node_new(g, op, dtype, 0, NULL, 0, NULL);
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    a->number = v;
    return n;
}

static tn_tensor *weak(tn_graph *g, tn_op op, tn_number v)
{
    tn_tensor *n = tn_mk_typed(g, op, v, v.is_int ? TN_I64 : TN_F32);
    if (n) n->attr->weak = true;
    return n;
}

tn_tensor *tn_mk_num(tn_graph *g, double v)
{
    bool whole = v >= -1e15 && v <= 1e15 && v == (double)(int64_t)v;
    return weak(g, TN_OP_constant, (tn_number){v, whole ? (int64_t)v : 0, whole});
}

tn_tensor *tn_mk_scalar(tn_graph *g, tn_number v) { return weak(g, TN_OP_scalar, v); }

tn_tensor *tn_mk_cast(tn_tensor *x, tn_dtype dtype)
{
    if (!x) return NULL;
    if (tn_kind_of(x) == TN_KIND_NUMBER) {
        if (x->dtype == dtype && !x->attr->weak) return x;
        tn_number v = x->attr->number;
        if (!tn_dtype_is_float(dtype) && !v.is_int) v.i = tn_f64_to_i64(v.f);
        return tn_mk_typed(x->graph, x->op, v, dtype);
    }
    if (x->dtype == dtype) return x;
    bool back = x->op == TN_OP_cast && x->in[0]->dtype == dtype && x->dtype == TN_F32;
    if (back && tn_dtype_is_half(dtype) && !(x->flags & TN_F_USER)) return x->in[0];
    return tn_node_new(x->graph, TN_OP_cast, dtype, x->ndim, x->shape, 1, &x);
}
