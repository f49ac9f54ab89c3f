/* build_view.c - views: nodes that move no data where strides can say it.
 *
 * A view's base is its input's base and its strides follow from the input's; only a reshape whose strides do
 * not merge, pad, concat and contiguous own memory. Start with strided, then tn_mk_reshape. */
#include <string.h>

#include "build.h"

/* A VIEW node over x's memory; the caller has computed stride and offset. */
static tn_tensor *strided(tn_op op, tn_tensor *x, int ndim, const int64_t *shape, const int64_t *stride,
                          int64_t offset)
{
    tn_tensor *n = tn_node_new(x->graph, op, x->dtype, ndim, shape, 1, &x);
    if (!n) return NULL;
    n->base = x->base;
    n->offset = offset;
    memcpy(n->stride, stride, (size_t)ndim * sizeof *stride);
    return n;
}

/* Strides of `shape` over x's memory, or false when x's own do not merge that way. Runs of old axes are
 * matched with runs of new axes of the same size; a run works if its old axes are mergeable. */
static bool reshape_strides(const tn_tensor *x, int ndim, const int64_t *shape, int64_t *stride)
{
    int64_t old_shape[TN_MAX_DIMS], old_stride[TN_MAX_DIMS];
    int n_old = 0;
    for (int i = 0; i < x->ndim; i++)
        if (x->shape[i] != 1) {
            old_shape[n_old] = x->shape[i];
            old_stride[n_old++] = x->stride[i];
        }
    int o = 0, n = 0;
    while (o < n_old && n < ndim) {
        int o2 = o + 1, n2 = n + 1;
        int64_t po = old_shape[o], pn = shape[n];
        while (po != pn) {
            if (po < pn) {
                if (o2 == n_old) return false;
                po *= old_shape[o2++];
            } else {
                if (n2 == ndim) return false;
                pn *= shape[n2++];
            }
        }
        for (int i = o; i + 1 < o2; i++)
            if (old_stride[i] != old_stride[i + 1] * old_shape[i + 1]) return false;
        int64_t s = old_stride[o2 - 1];
        for (int i = n2 - 1; i >= n; i--) {
            stride[i] = s;
            s *= shape[i];
        }
        o = o2;
        n = n2;
    }
    for (; n < ndim; n++) stride[n] = 1; /* only extents of 1 are left */
    return o == n_old;
}

/* Another node for the same value. */
tn_tensor *tn_mk_alias(tn_tensor *x)
{
    return x ? strided(TN_OP_reshape, x, x->ndim, x->shape, x->stride, x->offset) : NULL;
}

tn_tensor *tn_mk_reshape(tn_tensor *x, int ndim, const int64_t *shape)
{
    if (!x) return NULL;
    const int64_t k = tn_extent(shape, 0, ndim);
    if (k != tn_node_numel(x))
        return tn_error_set(x->graph, TN_E_SHAPE, "shape %s cannot become %s", TN_TENSOR_TEXT(x),
                            TN_SHAPE_TEXT(ndim, shape));
    if (ndim == x->ndim && (!ndim || !memcmp(shape, x->shape, (size_t)ndim * sizeof *shape))) return x;
    int64_t stride[TN_MAX_DIMS];
    if (k > 0 && reshape_strides(x, ndim, shape, stride))
        return strided(TN_OP_reshape, x, ndim, shape, stride, x->offset);
    return tn_node_new(x->graph, TN_OP_reshape, x->dtype, ndim, shape, 1, &x);
}

tn_tensor *tn_mk_permute(tn_tensor *x, const int *perm)
{
    if (!x) return NULL;
    int64_t shape[TN_MAX_DIMS], stride[TN_MAX_DIMS];
    bool same = true;
    for (int i = 0; i < x->ndim; i++) {
        shape[i] = x->shape[perm[i]];
        stride[i] = x->stride[perm[i]];
        same = same && perm[i] == i;
    }
    if (same) return x;
    if (x->op == TN_OP_permute &&
        !(x->flags & TN_F_USER)) { /* one order after another: nobody sees the first */
        int both[TN_MAX_DIMS];
        for (int i = 0; i < x->ndim; i++) both[i] = (int)x->attr->v[0][perm[i]];
        return tn_mk_permute(x->in[0], both);
    }
    tn_tensor *n = strided(TN_OP_permute, x, x->ndim, shape, stride, x->offset);
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    for (int i = 0; i < x->ndim; i++) a->v[0][i] = perm[i];
    return n;
}

tn_tensor *tn_mk_swap(tn_tensor *x, int axis0, int axis1)
{
    if (!x) return NULL;
    int perm[TN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) perm[i] = i == axis0 ? axis1 : i == axis1 ? axis0 : i;
    return tn_mk_permute(x, perm);
}

tn_tensor *tn_mk_expand(tn_tensor *x, int ndim, const int64_t *shape)
{
    if (!x) return NULL;
    if (ndim == x->ndim && (!ndim || !memcmp(shape, x->shape, (size_t)ndim * sizeof *shape))) return x;
    int lead = ndim - x->ndim;
    if (lead > 0 && x->ndim > 0) { /* align the axes first, so that EXPAND only repeats */
        int64_t s[TN_MAX_DIMS];
        for (int i = 0; i < ndim; i++) s[i] = i < lead ? 1 : x->shape[i - lead];
        return tn_mk_expand(tn_mk_reshape(x, ndim, s), ndim, shape);
    }
    int64_t stride[TN_MAX_DIMS] = {0};
    bool fits = lead >= 0;
    for (int i = 0; i < ndim && x->ndim && fits; i++) {
        fits = x->shape[i] == shape[i] || x->shape[i] == 1;
        stride[i] = x->shape[i] == shape[i] ? x->stride[i] : 0;
    }
    if (!fits)
        return tn_error_set(x->graph, TN_E_SHAPE, "shape %s does not expand to %s", TN_TENSOR_TEXT(x),
                            TN_SHAPE_TEXT(ndim, shape));
    return strided(TN_OP_expand, x, ndim, shape, stride, x->offset);
}

tn_tensor *tn_mk_like(const tn_tensor *x, int64_t v)
{
    return tn_mk_expand(tn_mk_typed(x->graph, TN_OP_constant, tn_number_i(v), x->dtype), x->ndim, x->shape);
}

tn_tensor *tn_mk_slice(tn_tensor *x, const int64_t *start, const int64_t *step, const int64_t *count)
{
    if (!x) return NULL;
    int64_t stride[TN_MAX_DIMS], offset = x->offset;
    bool same = true;
    for (int i = 0; i < x->ndim; i++) {
        stride[i] = x->stride[i] * step[i];
        if (count[i] > 0) offset += x->stride[i] * start[i];
        same = same && start[i] == 0 && step[i] == 1 && count[i] == x->shape[i];
    }
    if (same) return x;
    tn_tensor *n = strided(TN_OP_slice, x, x->ndim, count, stride, offset);
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    memcpy(a->v[0], start, (size_t)x->ndim * sizeof *start);
    memcpy(a->v[1], step, (size_t)x->ndim * sizeof *step);
    return n;
}

tn_tensor *tn_mk_slice1(tn_tensor *x, int axis, int64_t start, int64_t step, int64_t count)
{
    if (!x) return NULL;
    int64_t v[3][TN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        v[0][i] = i == axis ? start : 0;
        v[1][i] = i == axis ? step : 1;
        v[2][i] = i == axis ? count : x->shape[i];
    }
    return tn_mk_slice(x, v[0], v[1], v[2]);
}

tn_tensor *tn_mk_pad(tn_tensor *x, tn_tensor *fill, const int64_t *before, const int64_t *after)
{
    if (!x || !fill) return NULL;
    int64_t shape[TN_MAX_DIMS];
    bool same = true;
    for (int i = 0; i < x->ndim; i++) {
        shape[i] = before[i] + x->shape[i] + after[i];
        same = same && !before[i] && !after[i];
    }
    if (same) return x;
    fill = tn_mk_cast(fill, x->dtype);
    if (!fill) return NULL;
    tn_tensor *n = tn_node_new(x->graph, TN_OP_pad, x->dtype, x->ndim, shape, 2, (tn_tensor *[]){x, fill});
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    memcpy(a->v[0], before, (size_t)x->ndim * sizeof *before);
    memcpy(a->v[1], after, (size_t)x->ndim * sizeof *after);
    return n;
}

tn_tensor *tn_mk_concat(tn_graph *g, int n, tn_tensor *const *xs, int axis)
{
    if (n < 1 || n > UINT8_MAX)
        return tn_error_set(g, TN_E_ARG, "%d tensors given, 1 to %d can be joined", n, UINT8_MAX);
    int64_t shape[TN_MAX_DIMS];
    tn_tensor *in[UINT8_MAX];
    tn_dtype d = TN_F32;
    for (int i = 0; i < n; i++) {
        if (!xs[i]) return NULL;
        d = i ? tn_dtype_promote(d, xs[i]->dtype) : xs[i]->dtype;
    }
    int ndim = xs[0]->ndim;
    memcpy(shape, xs[0]->shape, sizeof shape);
    for (int i = 0; i < n; i++) {
        bool fits = xs[i]->ndim == ndim;
        for (int a = 0; a < ndim && fits; a++) fits = a == axis || xs[i]->shape[a] == shape[a];
        if (!fits)
            return tn_error_set(g, TN_E_SHAPE, "shapes %s and %s do not join along axis %d",
                                TN_TENSOR_TEXT(xs[0]), TN_TENSOR_TEXT(xs[i]), axis);
        if (i) shape[axis] += xs[i]->shape[axis];
        in[i] = tn_mk_cast(xs[i], d);
        if (!in[i]) return NULL;
    }
    if (n == 1) return in[0];
    tn_tensor *out = tn_node_new(g, TN_OP_concat, d, ndim, shape, n, in);
    tn_attr *a = out ? tn_node_attr(out) : NULL;
    if (!a) return NULL;
    a->axis = axis;
    return out;
}

tn_tensor *tn_mk_contiguous(tn_tensor *x)
{
    if (!x) return NULL;
    return tn_node_new(x->graph, TN_OP_contiguous, x->dtype, x->ndim, x->shape, 1, &x);
}

tn_tensor *tn_mk_dense(tn_tensor *x) { return !x || tn_node_is_dense(x) ? x : tn_mk_contiguous(x); }
