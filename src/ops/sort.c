/* sort.c - sort, argsort and topk: the places of a line's first elements in order, one node, and what stands
 * there, a gather, whose gradient goes back to these places. */
#include "ops.h"

/* out: the values, and their places. */
static bool ordered(tn_tensor *x, int axis, int64_t k, bool descending, tn_tensor **out)
{
    out[1] = tn_mk_sort(x, axis, k, descending);
    out[0] = k ? tn_mk_gather(x, axis, out[1]) : tn_mk_slice1(x, axis, 0, 1, 0);
    if (k && out[0]) out[0]->attr->in_range = true;
    return out[0] && out[1];
}

static int leave(tn_scope *sc, tn_tensor **made, tn_tensor **values, tn_tensor **indices)
{
    int status = tn_leave_many(sc, 2, made);
    if (values) *values = made[0];
    if (indices) *indices = made[1];
    return status;
}

TN_AT(tn_tensor *, argsort, (x, axis, descending), tn_tensor *x, int axis, bool descending)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, descending), "argsort", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    return tn_leave(&sc, a < 0 ? NULL : tn_mk_sort(x, a, x->shape[a], descending));
}

TN_AT(int, sort, (x, axis, descending, values, indices), tn_tensor *x, int axis, bool descending,
      tn_tensor **values, tn_tensor **indices)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, descending), "sort", file, line, 1, 0, &x);
    tn_tensor *made[2] = {NULL};
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a >= 0) ordered(x, a, x->shape[a], descending, made);
    return leave(&sc, made, values, indices);
}

TN_AT(int, topk, (x, k, axis, smallest, values, indices), tn_tensor *x, int64_t k, int axis, bool smallest,
      tn_tensor **values, tn_tensor **indices)
{
    tn_scope sc = tn_enter_as(TN_ATTR(k, axis, smallest), "topk", file, line, 1, 0, &x);
    tn_tensor *made[2] = {NULL};
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a >= 0 && (k < 0 || k > x->shape[a])) {
        tn_error_set(sc.g, TN_E_ARG, "k is %lld, must be from 0 to axis %d of %s", (long long)k, axis,
                     TN_TENSOR_TEXT(x));
        a = -1;
    }
    if (a >= 0) ordered(x, a, k, !smallest, made);
    return leave(&sc, made, values, indices);
}
