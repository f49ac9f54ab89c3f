/* resize.c - images [n, h, w, c] of another height and width: nearest and bilinear, as
 * torch.nn.functional.interpolate has them. An axis at a time is read at computed places; these are exact, in
 * f64, whatever x is. Start with tn_resize_nearest_at. */
#include "ops.h"

static tn_tensor *number64(tn_graph *g, double v)
{
    return tn_mk_typed(g, TN_OP_constant, tn_number_f(v), TN_F64);
}

static bool image_fits(tn_tensor *x, int64_t height, int64_t width)
{
    if (x->ndim != 4)
        tn_error_set(x->graph, TN_E_SHAPE, "x %s: wanted [n, h, w, c]", TN_TENSOR_TEXT(x));
    else if (height < 1 || width < 1 || !x->shape[1] || !x->shape[2])
        tn_error_set(x->graph, TN_E_SHAPE, "x %s cannot become %lld high and %lld wide", TN_TENSOR_TEXT(x),
                     (long long)height, (long long)width);
    else
        return true;
    return false;
}

/* x at the places `at`, whole f64 numbers along an axis that hold no other than x's. */
static tn_tensor *lines(tn_tensor *x, int axis, tn_tensor *at)
{
    tn_tensor *out = tn_mk_index_select(x, axis, tn_mk_cast(at, TN_I32));
    if (out) out->attr->in_range = true;
    return out;
}

/* ---- nearest: line floor(i * old / new) ---- */

/* Both ratios are whole: elements repeat, and their gradients are sums that fuse. */
static tn_tensor *repeated(tn_tensor *x, int64_t rows, int64_t columns)
{
    const int64_t n = x->shape[0], h = x->shape[1], w = x->shape[2], c = x->shape[3];
    x = tn_mk_reshape(x, 6, (const int64_t[]){n, h, 1, w, 1, c});
    x = tn_mk_expand(x, 6, (const int64_t[]){n, h, rows, w, columns, c});
    return tn_mk_reshape(x, 4, (const int64_t[]){n, h * rows, w * columns, c});
}

static tn_tensor *nearest(tn_tensor *x, int axis, int64_t count)
{
    const int64_t n = x->shape[axis];
    if (n % count == 0) return tn_mk_slice1(x, axis, 0, n / count, count);
    tn_graph *g = x->graph;
    tn_tensor *at = mul(tn_mk_iota(g, 0, 1, &count, TN_F64), number64(g, (double)n));
    return lines(x, axis, tn_mk1(TN_OP_floor, tn_mk2(TN_OP_div, at, number64(g, (double)count))));
}

TN_AT(tn_tensor *, resize_nearest, (x, height, width), tn_tensor *x, int64_t height, int64_t width)
{
    tn_scope sc = tn_enter_as(TN_ATTR(height, width), "resize_nearest", file, line, 1, 0, &x);
    if (!sc.ok || !image_fits(x, height, width)) return tn_leave(&sc, NULL);
    if (height % x->shape[1] == 0 && width % x->shape[2] == 0)
        return tn_leave(&sc, repeated(x, height / x->shape[1], width / x->shape[2]));
    const tn_dtype d = x->dtype;
    x = nearest(wide(x), 1, height); /* its gradient is a sum along one axis and then along the other */
    return tn_leave(&sc, x ? narrow(nearest(x, 2, width), d) : NULL);
}

/* ---- bilinear: between the lines on both sides of (i + 1/2) * old / new - 1/2 ---- */

static tn_tensor *between(tn_tensor *x, int axis, int64_t count, bool corners)
{
    tn_graph *g = x->graph;
    const int64_t n = x->shape[axis];
    const double ratio = !corners    ? (double)n / (double)count
                         : count > 1 ? (double)(n - 1) / (double)(count - 1)
                                     : 0;
    if (n == count) return x;
    tn_tensor *at = tn_mk_iota(g, 0, 1, &count, TN_F64), *none = number64(g, 0), *half = number64(g, 0.5);
    at = corners ? mul(at, number64(g, ratio)) : sub(mul(add(at, half), number64(g, ratio)), half);
    at = tn_mk2(TN_OP_minimum, tn_mk2(TN_OP_maximum, at, none), number64(g, (double)(n - 1)));
    tn_tensor *low = tn_mk1(TN_OP_floor, at);
    tn_tensor *high = tn_mk2(TN_OP_minimum, add(low, number64(g, 1)), number64(g, (double)(n - 1)));
    tn_tensor *share = tn_mk_cast(sub(at, low), x->dtype);
    int64_t shape[4] = {1, 1, 1, 1};
    shape[axis] = count;
    share = tn_mk_reshape(share, 4, shape);
    tn_tensor *from = lines(x, axis, low);
    return add(from, mul(sub(lines(x, axis, high), from), share));
}

TN_AT(tn_tensor *, resize_bilinear, (x, height, width, align_corners), tn_tensor *x, int64_t height,
      int64_t width, bool align_corners)
{
    tn_scope sc = tn_enter_as(TN_ATTR(height, width, align_corners), "resize_bilinear", file, line, 1, 0, &x);
    if (!sc.ok || !image_fits(x, height, width)) return tn_leave(&sc, NULL);
    tn_tensor *y = floating(x);
    tn_dtype d = y ? y->dtype : TN_F32;
    y = wide(y);
    if (y) y = between(y, 1, height, align_corners);
    if (y) y = between(y, 2, width, align_corners);
    return tn_leave(&sc, narrow(y, d));
}
