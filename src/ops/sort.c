/* sort.c - sort, argsort and topk: the places of a line's first elements in order, one node, and what stands
 * there, a gather, whose gradient goes back to these places.
 */
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

tn_tensor *tn_argsort_at(tn_tensor *x, int axis, bool descending, const char *file, int line)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, descending), "argsort", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    return tn_leave(&sc, a < 0 ? NULL : tn_mk_sort(x, a, x->shape[a], descending));
}
PLAIN(argsort, (tn_tensor * x, int axis, bool descending), (x, axis, descending, NULL, 0))

int tn_sort_at(tn_tensor *x, int axis, bool descending, tn_tensor **values, tn_tensor **indices,
               const char *file, int line)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, descending), "sort", file, line, 1, 0, &x);
    tn_tensor *made[2] = {NULL};
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a >= 0) ordered(x, a, x->shape[a], descending, made);
    return leave(&sc, made, values, indices);
}

int tn_sort(tn_tensor *x, int axis, bool descending, tn_tensor **values, tn_tensor **indices)
{
    return tn_sort_at(x, axis, descending, values, indices, NULL, 0);
}

int tn_topk_at(tn_tensor *x, int64_t k, int axis, bool smallest, tn_tensor **values, tn_tensor **indices,
               const char *file, int line)
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

int tn_topk(tn_tensor *x, int64_t k, int axis, bool smallest, tn_tensor **values, tn_tensor **indices)
{
    return tn_topk_at(x, k, axis, smallest, values, indices, NULL, 0);
}
