/* build.c - elementwise nodes and reductions. Start with tn_mk2, which shows promotion, weak numbers
 * and broadcasting. */
#include "build.h"

#include <string.h>

static tn_graph *graph_of(const tn_tensor *x) { return x->graph; }

int tn_axis(tn_graph *g, const tn_tensor *x, int axis)
{
    int a = axis < 0 ? axis + x->ndim : axis;
    if (a >= 0 && a < x->ndim) return a;
    tn_error_set(g, TN_E_ARG, "axis %d does not exist in shape %s", axis, TN_TENSOR_TEXT(x));
    return -1;
}

bool tn_broadcast_shape(int na, const int64_t *a, int nb, const int64_t *b, int *n, int64_t *out)
{
    *n = na > nb ? na : nb;
    for (int i = 1; i <= *n; i++) {
        int64_t x = i <= na ? a[na - i] : 1, y = i <= nb ? b[nb - i] : 1;
        if (x != y && x != 1 && y != 1) return false;
        out[*n - i] = x == 1 ? y : x;
    }
    return true;
}

/* ---- numbers ---- */

static bool is_number(const tn_tensor *x) { return tn_kind_of(x) == TN_KIND_NUMBER; }

static bool is_weak(const tn_tensor *x) { return is_number(x) && x->attr->weak; }

tn_tensor *tn_mk_iota(tn_graph *g, int axis, int ndim, const int64_t *shape, tn_dtype dtype)
{
    tn_tensor *n = tn_node_new(g, TN_OP_iota, dtype, ndim, shape, 0, NULL);
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    a->axis = axis;
    return n;
}

/* ---- elementwise ---- */

static int join(int have, tn_tensor *x)
{
    return have < 0 ? x->dtype : (int)tn_dtype_promote((tn_dtype)have, x->dtype);
}

/* 0 bool, 1 integer, 2 floating */
static int category(int d) { return d == TN_BOOL ? 0 : tn_dtype_is_float((tn_dtype)d) ? 2 : 1; }

tn_dtype tn_common_dtype(int n, tn_tensor *const *x)
{
    int axes = -1, none = -1;
    bool weak_float = false, weak_int = false;
    for (int i = 0; i < n; i++)
        if (!is_weak(x[i]))
            *(x[i]->ndim ? &axes : &none) = join(x[i]->ndim ? axes : none, x[i]);
        else if (x[i]->attr->number.is_int)
            weak_int = true;
        else
            weak_float = true;
    int d = axes < 0 || (none >= 0 && category(none) > category(axes)) ? none : axes;
    if (d < 0) return weak_float ? TN_F32 : TN_I64;
    if (weak_float && category(d) < 2) return TN_F32;
    if (weak_int && category(d) < 1) return TN_I64;
    return (tn_dtype)d;
}

static tn_tensor *eltwise(tn_op op, int n, tn_tensor *const *operand)
{
    for (int i = 0; i < n; i++)
        if (!operand[i]) return NULL;
    tn_graph *g = graph_of(operand[0]);
    const tn_op_info *o = tn_op_get(op);
    int ndim = 0;
    int64_t shape[TN_MAX_DIMS];
    for (int i = 0; i < n; i++)
        if (!tn_broadcast_shape(ndim, shape, operand[i]->ndim, operand[i]->shape, &ndim, shape))
            return tn_error_set(g, TN_E_SHAPE, "shapes %s and %s do not broadcast",
                                TN_TENSOR_TEXT(operand[0]), TN_TENSOR_TEXT(operand[i]));
    /* where's condition keeps its own type: only what is chosen from promotes */
    int first = o->arity == 3 ? 1 : 0;
    if (first && operand[0]->dtype != TN_BOOL)
        return tn_error_set(g, TN_E_DTYPE, "condition must be bool, as a comparison makes it, got %s",
                            tn_dtype_name(operand[0]->dtype));
    tn_dtype d = tn_common_dtype(n - first, operand + first);
    if (o->type == TN_TYPE_FLT && !tn_dtype_is_float(d)) d = TN_F32;
    if (o->type == TN_TYPE_NUM && d == TN_BOOL) d = TN_I64;
    tn_tensor *in[3];
    for (int i = 0; i < n; i++) {
        in[i] = i < first ? operand[i] : tn_mk_cast(operand[i], d);
        in[i] = tn_mk_expand(in[i], ndim, shape);
        if (!in[i]) return NULL;
    }
    return tn_node_new(g, op, o->type == TN_TYPE_TEST ? TN_BOOL : d, ndim, shape, n, in);
}

tn_tensor *tn_mk1(tn_op op, tn_tensor *x) { return eltwise(op, 1, &x); }

tn_tensor *tn_mk2(tn_op op, tn_tensor *x, tn_tensor *y) { return eltwise(op, 2, (tn_tensor *[]){x, y}); }

tn_tensor *tn_mk3(tn_op op, tn_tensor *x, tn_tensor *y, tn_tensor *z)
{
    return eltwise(op, 3, (tn_tensor *[]){x, y, z});
}

/* ---- reductions ---- */

/* Sums and products of bool and integers are i64, those of 16-bit floats f32. */
static tn_dtype reduce_dtype(tn_op op, tn_dtype d)
{
    if (op == TN_OP_reduce_argmax || op == TN_OP_reduce_argmin) return TN_I64;
    bool adds = op == TN_OP_reduce_sum || op == TN_OP_reduce_prod;
    return !adds ? d : !tn_dtype_is_float(d) ? TN_I64 : tn_dtype_is_half(d) ? TN_F32 : d;
}

tn_tensor *tn_mk_reduce(tn_op op, tn_tensor *x, uint32_t axes)
{
    if (!x) return NULL;
    tn_graph *g = graph_of(x);
    tn_dtype d = reduce_dtype(op, x->dtype);
    bool arg = op == TN_OP_reduce_argmax || op == TN_OP_reduce_argmin;
    if (!axes && !arg) return tn_mk_cast(x, d);
    int64_t shape[TN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        shape[i] = axes >> i & 1 ? 1 : x->shape[i];
        if ((axes >> i & 1) && x->shape[i] == 0 && op != TN_OP_reduce_sum && op != TN_OP_reduce_prod)
            return tn_error_set(g, TN_E_SHAPE, "%s over an empty axis of shape %s", tn_op_get(op)->name + 7,
                                TN_TENSOR_TEXT(x));
    }
    if (!arg) x = tn_mk_cast(x, d);
    tn_tensor *n = x ? tn_node_new(g, op, d, x->ndim, shape, 1, &x) : NULL;
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    a->axes = axes;
    return n;
}

tn_tensor *tn_mk_place_of_max(tn_tensor *x, uint32_t axes)
{
    int64_t k = 1;
    for (int i = 0; x && i < x->ndim; i++) k *= axes >> i & 1 ? x->shape[i] : 1;
    tn_tensor *n = tn_mk_reduce(TN_OP_reduce_argmax, x, axes);
    if (n) n->dtype = k <= 256 ? TN_U8 : k <= INT32_MAX ? TN_I32 : TN_I64;
    return n;
}

tn_tensor *tn_mk_ranks_mean(tn_tensor *x)
{
    return x ? tn_node_new(graph_of(x), TN_OP_ranks_mean, x->dtype, x->ndim, x->shape, 1, &x) : NULL;
}

tn_tensor *tn_mk_ranks_lines(tn_op op, tn_tensor *x, int64_t lines)
{
    int64_t shape[TN_MAX_DIMS];
    if (!(x = tn_mk_dense(x))) return NULL;
    memcpy(shape, x->shape, sizeof shape);
    shape[0] = lines;
    tn_tensor *n = tn_node_new(graph_of(x), op, x->dtype, x->ndim, shape, 1, &x);
    if (n) n->flags &= ~(uint32_t)TN_F_REQUIRES_GRAD;
    return n;
}

tn_tensor *tn_mk_scan(tn_op op, tn_tensor *x, int axis, bool reverse)
{
    if (!x) return NULL;
    if (!tn_dtype_is_float(x->dtype)) x = tn_mk_cast(x, TN_I64);
    tn_tensor *n = x ? tn_node_new(graph_of(x), op, x->dtype, x->ndim, x->shape, 1, &x) : NULL;
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    a->axis = axis;
    a->reverse = reverse;
    return n;
}

tn_tensor *tn_mk_sort(tn_tensor *x, int axis, int64_t k, bool descending)
{
    int64_t shape[TN_MAX_DIMS];
    if (!x) return NULL;
    memcpy(shape, x->shape, sizeof shape);
    shape[axis] = k;
    tn_tensor *n = tn_node_new(graph_of(x), TN_OP_argsort, TN_I64, x->ndim, shape, 1, &x);
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    n->flags &= ~(uint32_t)TN_F_REQUIRES_GRAD;
    a->axis = axis;
    a->reverse = descending;
    return n;
}

/* ---- random draws and assignment ---- */

tn_tensor *tn_mk_random(tn_graph *g, tn_op op, tn_dtype dtype, int ndim, const int64_t *shape, tn_tensor *p)
{
    tn_tensor *n = tn_node_new(g, op, dtype, ndim, shape, p ? 1 : 0, &p);
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    n->flags &= ~(uint32_t)TN_F_REQUIRES_GRAD;
    a->draw = g->draw++;
    a->seed = g->seed;
    return n;
}

/* An assignment is no function of its operands. */
static tn_tensor *assignment(tn_op op, tn_tensor *target, int n_in, tn_tensor **in)
{
    tn_graph *g = graph_of(target);
    g->no_grad++;
    tn_tensor *n = tn_node_new(g, op, target->dtype, target->ndim, target->shape, n_in, in);
    g->no_grad--;
    if (n) target->base->flags |= TN_F_TARGET;
    return n && tn_node_hold(n) ? n : NULL;
}

tn_tensor *tn_mk_assign(tn_tensor *target, tn_tensor *source)
{
    if (!target || !source) return NULL;
    if (!tn_same_shape(target, source))
        return tn_error_set(graph_of(target), TN_E_SHAPE, "target is %s, source %s", TN_TENSOR_TEXT(target),
                            TN_TENSOR_TEXT(source));
    source = tn_mk_cast(source, target->dtype);
    return source ? assignment(TN_OP_assign, target, 2, (tn_tensor *[]){target, source}) : NULL;
}

tn_tensor *tn_mk_assign_rows(tn_tensor *target, int axis, tn_tensor *index, tn_tensor *source, bool in_range)
{
    if (!target || !index || !source) return NULL;
    bool fits = index->ndim == 1 && source->ndim == target->ndim && source->shape[axis] == index->shape[0];
    for (int i = 0; fits && i < target->ndim; i++) fits = i == axis || source->shape[i] == target->shape[i];
    if (!fits || !tn_node_is_dense(target) || !tn_dtype_is_int(index->dtype))
        return tn_error_set(
            graph_of(target), fits ? TN_E_ARG : TN_E_SHAPE,
            "target %s, index %s, source %s: wanted integers, one for each line of source along axis "
            "%d, and a target that is dense",
            TN_TENSOR_TEXT(target), TN_TENSOR_TEXT(index), TN_TENSOR_TEXT(source), axis);
    source = tn_mk_cast(source, target->dtype);
    tn_tensor *n =
        source ? assignment(TN_OP_assign_rows, target, 3, (tn_tensor *[]){target, index, source}) : NULL;
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    a->axis = axis;
    a->in_range = in_range;
    return n;
}
