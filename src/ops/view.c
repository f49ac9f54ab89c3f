/* view.c - shapes and views. Each checks its arguments in the user's terms (negative axes, -1 extents) and
 * leaves the strides to build_view.c. Start with tn_reshape_at. */
#include <string.h>

#include "ops.h"

static bool too_many(tn_graph *g, int ndim, const void *list)
{
    if (ndim >= 0 && ndim <= TN_MAX_DIMS && (list || !ndim)) return false;
    if (ndim > 0 && ndim <= TN_MAX_DIMS)
        tn_error_set(g, TN_E_NULL, "%d axes are announced and their list is NULL", ndim);
    else
        tn_error_set(g, TN_E_SHAPE, "%d axes; 0 to %d are possible", ndim, TN_MAX_DIMS);
    return true;
}

TN_AT(tn_tensor *, reshape, (x, ndim, shape), tn_tensor *x, int ndim, const int64_t *shape)
{
    tn_scope sc = tn_enter_as(TN_ATTR_LIST(shape, ndim, ndim), "reshape", file, line, 1, 0, &x);
    if (!sc.ok || too_many(sc.g, ndim, shape)) return tn_leave(&sc, NULL);
    int64_t s[TN_MAX_DIMS], known = 1, n = tn_node_numel(x);
    int open = -1;
    bool bad = false;
    for (int i = 0; i < ndim; i++) {
        s[i] = shape[i];
        if (s[i] == -1 && open < 0)
            open = i;
        else if (s[i] < 0)
            bad = true;
        else
            bad = bad || __builtin_mul_overflow(known, s[i], &known);
    }
    if (bad || (open >= 0 && (known == 0 || n % known)))
        return tn_leave_error(&sc, TN_E_SHAPE, "shape %s cannot become %s", TN_TENSOR_TEXT(x),
                              TN_SHAPE_TEXT(ndim, shape));
    if (open >= 0) s[open] = n / known;
    return tn_leave(&sc, tn_mk_reshape(x, ndim, s));
}

TN_AT(tn_tensor *, flatten, (x, start_axis), tn_tensor *x, int start_axis)
{
    tn_scope sc = tn_enter_as(TN_ATTR(start_axis), "flatten", file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    int64_t s[TN_MAX_DIMS];
    int a = x->ndim ? tn_axis(sc.g, x, start_axis) : 0;
    if (a < 0) return tn_leave(&sc, NULL);
    for (int i = 0; i < a; i++) s[i] = x->shape[i];
    s[a] = tn_extent(x->shape, a, x->ndim);
    return tn_leave(&sc, tn_mk_reshape(x, a + 1, s));
}

TN_AT(tn_tensor *, squeeze, (x, axis), tn_tensor *x, int axis)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis), "squeeze", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    if (x->shape[a] != 1) return tn_leave(&sc, x);
    return tn_leave(&sc, drop_axes(x, 1u << a));
}

TN_AT(tn_tensor *, unsqueeze, (x, axis), tn_tensor *x, int axis)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis), "unsqueeze", file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    int a = axis < 0 ? axis + x->ndim + 1 : axis;
    if (a < 0 || a > x->ndim || too_many(sc.g, x->ndim + 1, x))
        return tn_leave_error(&sc, TN_E_ARG, "axis %d does not fit between %d axes", axis, x->ndim);
    return tn_leave(&sc, unsqueeze(x, a));
}

TN_AT(tn_tensor *, permute, (x, ndim, order), tn_tensor *x, int ndim, const int *order)
{
    tn_scope sc = tn_enter_as(TN_ATTR_LIST(order, ndim, ndim), "permute", file, line, 1, 0, &x);
    if (!sc.ok || too_many(sc.g, ndim, order)) return tn_leave(&sc, NULL);
    int perm[TN_MAX_DIMS];
    uint32_t seen = 0;
    for (int i = 0; i < ndim && i < x->ndim; i++) {
        perm[i] = order[i] < 0 ? order[i] + x->ndim : order[i];
        if (perm[i] >= 0 && perm[i] < x->ndim) seen |= 1u << perm[i];
    }
    if (ndim != x->ndim || seen != (1u << ndim) - 1)
        return tn_leave_error(&sc, TN_E_ARG, "the order must name each of the %d axes once", x->ndim);
    return tn_leave(&sc, tn_mk_permute(x, perm));
}

TN_AT(tn_tensor *, transpose, (x, axis0, axis1), tn_tensor *x, int axis0, int axis1)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis0, axis1), "transpose", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis0) : -1, b = a < 0 ? -1 : tn_axis(sc.g, x, axis1);
    return tn_leave(&sc, b < 0 ? NULL : tn_mk_swap(x, a, b));
}

TN_AT(tn_tensor *, expand, (x, ndim, shape), tn_tensor *x, int ndim, const int64_t *shape)
{
    tn_scope sc = tn_enter_as(TN_ATTR_LIST(shape, ndim, ndim), "expand", file, line, 1, 0, &x);
    if (!sc.ok || too_many(sc.g, ndim, shape)) return tn_leave(&sc, NULL);
    int64_t s[TN_MAX_DIMS];
    int lead = ndim - x->ndim;
    for (int i = 0; i < ndim; i++) {
        s[i] = shape[i] == -1 && i >= lead ? x->shape[i - lead] : shape[i];
        if (s[i] >= 0) continue;
        char t[160];
        tn_tensor_text(t, sizeof t, x);
        if (s[i] == -1)
            tn_error_set(
                sc.g, TN_E_SHAPE,
                "-1 keeps the extent that x has; axis %d is new in front of x's %s and has none to keep", i,
                t);
        else
            return tn_leave_error(&sc, TN_E_SHAPE,
                                  "extent %lld of axis %d; x is %s, and only -1, which keeps x's, is below 0",
                                  (long long)shape[i], i, t);
    }
    return tn_leave(&sc, tn_mk_expand(x, ndim, s));
}

/* ---- slices ---- */

static int64_t clamp64(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

TN_AT(tn_tensor *, slice, (x, axis, start, end, step), tn_tensor *x, int axis, int64_t start, int64_t end,
      int64_t step)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, start, end, step), "slice", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    if (step == 0) return tn_leave_error(&sc, TN_E_ARG, "step is 0");
    int64_t n = x->shape[a], count;
    if (start < 0) start += n;
    if (step > 0) {
        end = end == TN_END ? n : end < 0 ? end + n : end;
        start = clamp64(start, 0, n);
        end = clamp64(end, start, n);
        count = end > start ? (end - start - 1) / step + 1 : 0;
    } else {
        end = end == TN_END ? -1 : end < 0 ? end + n : end;
        start = clamp64(start, -1, n - 1);
        end = clamp64(end, -1, start);
        count = start > end ? (start - end - 1) / (step < -INT64_MAX ? INT64_MAX : -step) + 1 : 0;
    }
    if (count < 2) step = 1; /* a stride follows from it, which must be a number, too */
    if (!count) start = 0;
    return tn_leave(&sc, tn_mk_slice1(x, a, start, step, count));
}

TN_AT(tn_tensor *, select, (x, axis, index), tn_tensor *x, int axis, int64_t index)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, index), "select", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    int64_t i = index < 0 ? index + x->shape[a] : index;
    if (i < 0 || i >= x->shape[a])
        return tn_leave(
            &sc, x->shape[a]
                     ? tn_error_set(sc.g, TN_E_INDEX, "index is %lld, must be from %lld to %lld",
                                    (long long)index, -(long long)x->shape[a], (long long)x->shape[a] - 1)
                     : tn_error_set(sc.g, TN_E_INDEX, "index is %lld, of an axis without elements",
                                    (long long)index));
    return tn_leave(&sc, drop_axes(tn_mk_slice1(x, a, i, 1, 1), 1u << a));
}

TN_AT(tn_tensor *, flip, (x, naxes, axes), tn_tensor *x, int naxes, const int *axes)
{
    tn_scope sc = tn_enter_as(TN_ATTR_LIST(axes, naxes, naxes), "flip", file, line, 1, 0, &x);
    uint32_t mask;
    if (!sc.ok || !axis_mask(x, naxes, axes, &mask)) return tn_leave(&sc, NULL);
    int64_t v[3][TN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        bool turned = mask >> i & 1;
        v[0][i] = turned ? x->shape[i] - 1 : 0;
        v[1][i] = turned ? -1 : 1;
        v[2][i] = x->shape[i];
    }
    return tn_leave(&sc, tn_mk_slice(x, v[0], v[1], v[2]));
}

TN_AT(tn_tensor *, pad, (x, axis, before, after, value), tn_tensor *x, int axis, int64_t before,
      int64_t after, double value)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, before, after, tn_bits(value)), "pad", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    if (before < 0 || after < 0)
        return tn_leave_error(&sc, TN_E_ARG, "padding by %lld and %lld", (long long)before, (long long)after);
    if (before > INT64_MAX / 4 || after > INT64_MAX / 4)
        return tn_leave_error(&sc, TN_E_SHAPE, "%s padded by %lld and %lld is not possible",
                              TN_TENSOR_TEXT(x), (long long)before, (long long)after);
    if (!tn_dtype_holds(x->dtype, value))
        return tn_leave_error(&sc, TN_E_ARG, "value is %g, which %s does not hold", value,
                              tn_dtype_name(x->dtype));
    int64_t b[TN_MAX_DIMS] = {0}, e[TN_MAX_DIMS] = {0};
    b[a] = before;
    e[a] = after;
    return tn_leave(&sc, tn_mk_pad(x, tn_mk_scalar(sc.g, tn_number_f(value)), b, e));
}

/* ---- joining and splitting ---- */

enum { MAX_JOIN = UINT8_MAX };

/* in: room for the nodes. The session of a list is known from its first tensor that is not NULL. */
tn_scope tn_enter_join(const tn_op_key *key, const char *name, int n, tn_tensor *const *xs, tn_tensor **in,
                       const char *file, int line)
{
    bool fits = n >= 1 && n <= MAX_JOIN && xs;
    tn_session *s = NULL;
    for (int i = 0; i < n && xs && !s; i++) s = tn_slot_session(xs[i]);
    if (fits) memcpy(in, xs, (size_t)n * sizeof *in);
    if (fits) return tn_enter_list_as(key, name, file, line, "xs[]", n, in);
    tn_scope sc = tn_enter_session(s, name, file, line);
    if (sc.ok) tn_error_set(sc.g, TN_E_ARG, "%d tensors given, 1 to %d can be joined", n, MAX_JOIN);
    sc.ok = false;
    return sc;
}

TN_AT(tn_tensor *, concat, (n, xs, axis), int n, tn_tensor *const *xs, int axis)
{
    tn_tensor *in[MAX_JOIN];
    tn_scope sc = tn_enter_join(TN_ATTR(axis), "concat", n, xs, in, file, line);
    int a = sc.ok ? tn_axis(sc.g, in[0], axis) : -1;
    return tn_leave(&sc, a < 0 ? NULL : tn_mk_concat(sc.g, n, in, a));
}

TN_AT(tn_tensor *, stack, (n, xs, axis), int n, tn_tensor *const *xs, int axis)
{
    tn_tensor *in[MAX_JOIN];
    tn_scope sc = tn_enter_join(TN_ATTR(axis), "stack", n, xs, in, file, line);
    if (!sc.ok) return tn_leave(&sc, NULL);
    int ndim = in[0]->ndim, a = axis < 0 ? axis + ndim + 1 : axis;
    if (a < 0 || a > ndim || ndim == TN_MAX_DIMS)
        return tn_leave_error(&sc, TN_E_ARG, "axis %d does not fit between %d axes", axis, ndim);
    for (int i = 1; i < n; i++) {
        if (tn_same_shape(in[0], in[i])) continue;
        return tn_leave_error(&sc, TN_E_SHAPE, "shapes %s and %s are not the same", TN_TENSOR_TEXT(in[0]),
                              TN_TENSOR_TEXT(in[i]));
    }
    for (int i = 0; i < n; i++) in[i] = unsqueeze(in[i], a);
    return tn_leave(&sc, tn_mk_concat(sc.g, n, in, a));
}

TN_AT(int, split, (x, n, axis, out), tn_tensor *x, int n, int axis, tn_tensor **out)
{
    tn_scope sc = tn_enter_as(TN_ATTR(n, axis), "split", file, line, 1, 0, &x);
    if (sc.ok && (!out || n < 1)) {
        tn_error_set(sc.g, out ? TN_E_ARG : TN_E_NULL, out ? "into %d parts" : "out is NULL", n);
        sc.ok = false;
    }
    if (!out || n < 1) return tn_leave_many(&sc, 0, NULL);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a >= 0 && x->shape[a] % n) {
        tn_error_set(sc.g, TN_E_SHAPE, "axis %d of %s is not %d equal parts", axis, TN_TENSOR_TEXT(x), n);
        a = -1;
    }
    for (int i = 0; i < n; i++)
        out[i] = a < 0 ? NULL : tn_mk_slice1(x, a, i * (x->shape[a] / n), 1, x->shape[a] / n);
    return tn_leave_many(&sc, n, out);
}

TN_AT(tn_tensor *, contiguous, (x), tn_tensor *x)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "contiguous", file, line, 1, 0, &x);
    return tn_leave(&sc, sc.ok ? tn_mk_dense(x) : NULL);
}
