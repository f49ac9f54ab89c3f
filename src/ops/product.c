/* product.c - matmul, affine, convolution, pooling, indexing: options in the user's terms become the
 * geometry that build_product.c checks. Start with tn_matmul_at. */
#include <string.h>

#include "ops.h"

/* A 1-d x is a row, a 1-d y a column; the axis that was added goes again. A 2-d y with a batched x is one
 * product over all rows, not a batch of them. */
static tn_tensor *matmul(tn_tensor *x, tn_tensor *y, tn_tensor *bias)
{
    bool row = x->ndim == 1, column = y->ndim == 1;
    if (x->ndim == 0 || y->ndim == 0)
        return tn_error_set(x->graph, TN_E_SHAPE, "a 0-d operand; multiply with mul instead");
    if (row) x = unsqueeze(x, 0);
    if (column) y = unsqueeze(y, 1);
    if (!x || !y) return NULL;
    tn_tensor *out;
    if (x->ndim > 2 && y->ndim == 2 && x->shape[x->ndim - 1] == y->shape[0]) {
        int64_t flat[2] = {1, x->shape[x->ndim - 1]}, shape[TN_MAX_DIMS];
        for (int i = 0; i + 1 < x->ndim; i++) flat[0] *= shape[i] = x->shape[i];
        shape[x->ndim - 1] = y->shape[1];
        out = tn_mk_reshape(tn_mk_matmul(tn_mk_reshape(x, 2, flat), y, bias), x->ndim, shape);
    } else
        out = tn_mk_matmul(x, y, bias);
    if (column) out = out ? drop_axes(out, 1u << (out->ndim - 1)) : NULL;
    if (row) out = out ? drop_axes(out, 1u << (column ? out->ndim - 1 : out->ndim - 2)) : NULL;
    return out;
}

TN_AT(tn_tensor *, matmul, (x, y), tn_tensor *x, tn_tensor *y)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "matmul", file, line, 2, 0, &x, &y);
    tn_tensor *whole = sc.ok ? tn_attention_written(x, y) : NULL;
    if (whole || !sc.ok || sc.g->error.status) return tn_leave(&sc, whole);
    return tn_leave(&sc, matmul(x, y, NULL));
}

TN_AT(tn_tensor *, affine, (x, weight, bias), tn_tensor *x, tn_tensor *weight, tn_tensor *bias)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "affine", file, line, 2, 1, &x, &weight, &bias);
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (weight->ndim != 2 || x->ndim < 1 || x->shape[x->ndim - 1] != weight->shape[1])
        return tn_leave_error(&sc, TN_E_SHAPE, "x %s does not fit weight %s, which is [out, in]",
                              TN_TENSOR_TEXT(x), TN_TENSOR_TEXT(weight));
    tn_dtype d = tn_product_dtype(sc.g, x->dtype, weight->dtype);
    weight = tn_mk_cast(weight, d); /* as it lies */
    return tn_leave(&sc, matmul(x, tn_mk_swap(weight, 0, 1), bias));
}

/* ---- convolution and pooling ---- */

static tn_conv_attr conv_attr(const tn_conv2d_options *options)
{
    tn_conv2d_options o = {0};
    if (options) o = *options;
    tn_conv_attr a = {.groups = o.groups ? o.groups : 1};
    for (int i = 0; i < 2; i++) {
        a.stride[i] = o.stride_hw[i] ? o.stride_hw[i] : o.stride ? o.stride : 1;
        a.dilation[i] = o.dilation_hw[i] ? o.dilation_hw[i] : o.dilation ? o.dilation : 1;
        a.pad[2 * i] = a.pad[2 * i + 1] = o.pad_hw[i] ? o.pad_hw[i] : o.pad;
    }
    return a;
}

/* The transpose of a convolution in x: the image whose convolution by weight has x's shape, the gradient of
 * one with respect to its image. The images that fit differ by output_pad. */
static tn_tensor *transposed(tn_tensor *x, tn_tensor *w, tn_tensor *bias, tn_conv_attr a,
                             const int output_pad[2])
{
    int64_t out[2];
    bool known = x->ndim == 4 && w->ndim == 4 && a.groups > 0 && x->shape[3] == w->shape[0] &&
                 w->shape[0] % a.groups == 0 && tn_node_numel(w) > 0;
    if (!known || (bias && (bias->ndim != 1 || bias->shape[0] != w->shape[3] * a.groups)))
        return tn_error_set(
            x->graph, TN_E_SHAPE,
            "x %s does not fit weight %s, which is [c, kh, kw, oc / groups], or bias is not [oc]",
            TN_TENSOR_TEXT(x), TN_TENSOR_TEXT(w));
    for (int i = 0; i < 2; i++) {
        if (a.stride[i] < 1 || a.dilation[i] < 1 || a.pad[2 * i] < 0 || output_pad[i] < 0 ||
            output_pad[i] >= a.stride[i])
            return tn_error_set(
                x->graph, TN_E_ARG,
                "stride %lld, pad %lld, dilation %lld, output_pad %d: stride and dilation must be "
                "positive, pad not negative, and output_pad below stride",
                (long long)a.stride[i], (long long)a.pad[2 * i], (long long)a.dilation[i], output_pad[i]);
        out[i] = (x->shape[1 + i] - 1) * a.stride[i] - 2 * a.pad[2 * i] +
                 a.dilation[i] * (w->shape[1 + i] - 1) + output_pad[i] + 1;
        if (!x->shape[1 + i] || out[i] < 1)
            return tn_error_set(x->graph, TN_E_SHAPE,
                                "nothing is left of x %s by weight %s and a padding of %lld",
                                TN_TENSOR_TEXT(x), TN_TENSOR_TEXT(w), (long long)a.pad[2 * i]);
    }
    a.h = out[0];
    a.w = out[1];
    a.kh = w->shape[1];
    a.kw = w->shape[2];
    tn_dtype d = tn_product_dtype(x->graph, x->dtype, w->dtype);
    if (!tn_dtype_is_float(d))
        return tn_error_set(x->graph, TN_E_DTYPE, "needs a floating dtype, got %s", tn_dtype_name(d));
    x = tn_mk_conv2d_data_grad(tn_mk_cast(x, d), tn_mk_cast(w, d), &a);
    return bias ? add(x, tn_mk_cast(bias, d)) : x;
}

static tn_tensor *convolved(tn_tensor *x, tn_tensor *w, tn_tensor *bias, const tn_conv_attr *a,
                            const int *output_pad)
{
    return output_pad ? transposed(x, w, bias, *a, output_pad) : tn_mk_conv2d(x, w, bias, a);
}

/* Of a row: an image of height 1. */
static tn_tensor *convolved1(tn_tensor *x, tn_tensor *w, tn_tensor *bias, const tn_conv2d_options *o,
                             bool back)
{
    tn_conv_attr a = conv_attr(o);
    bool fits = x->ndim == 3 && w->ndim == 3 && a.groups > 0 && w->shape[0] % a.groups == 0;
    if (!fits || x->shape[2] != (back ? w->shape[0] : w->shape[2] * a.groups))
        return tn_error_set(x->graph, TN_E_SHAPE, "x %s and weight %s: wanted %s, groups being %lld",
                            TN_TENSOR_TEXT(x), TN_TENSOR_TEXT(w),
                            back ? "[n, t, c] and [c, k, oc / groups]" : "[n, t, c] and [oc, k, c / groups]",
                            (long long)a.groups);
    a.stride[0] = a.dilation[0] = 1;
    a.pad[0] = a.pad[1] = 0;
    const int output_pad[2] = {0, o ? o->output_pad : 0};
    x = convolved(unsqueeze(x, 1), unsqueeze(w, 1), bias, &a, back ? output_pad : NULL);
    return x ? drop_axes(x, 2u) : NULL;
}

#define CONV(name, ...)                                                                                      \
    TN_AT(tn_tensor *, name, (x, weight, bias, options), tn_tensor *x, tn_tensor *weight, tn_tensor *bias,   \
          const tn_conv2d_options *options)                                                                  \
    {                                                                                                        \
        tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, 0), #name, file, line, 2, 1, &x, &weight, &bias);  \
        if (!sc.ok) return tn_leave(&sc, NULL);                                                              \
        tn_conv_attr a = conv_attr(options);                                                                 \
        const int output_pad[2] = {options ? options->output_pad : 0, options ? options->output_pad : 0};    \
        (void)a, (void)output_pad;                                                                           \
        return tn_leave(&sc, __VA_ARGS__);                                                                   \
    }
CONV(conv2d, convolved(x, weight, bias, &a, NULL))
CONV(conv_transpose2d, convolved(x, weight, bias, &a, output_pad))
CONV(conv1d, convolved1(x, weight, bias, options, false))
CONV(conv_transpose1d, convolved1(x, weight, bias, options, true))

/* PyTorch's geometry: in ceil mode a last window may hang over the far edge, but must begin inside the image
 * or its near padding. */
static int64_t pooled(int64_t n, int64_t window, int64_t stride, int64_t pad, bool ceil_mode)
{
    int64_t span = n + 2 * pad - window + (ceil_mode ? stride - 1 : 0);
    if (span < 0) return 0;
    int64_t k = span / stride + 1;
    return ceil_mode && (k - 1) * stride >= n + pad ? k - 1 : k;
}

enum { WIDEST = 46340 }; /* window: its elements are counted in an i32 */

static bool pool_geometry(tn_tensor *x, int window, const tn_pool2d_options *options, tn_pool_attr *a)
{
    tn_pool2d_options o = {0};
    if (options) o = *options;
    int stride = o.stride ? o.stride : window;
    if (x->ndim != 4)
        return tn_error_set(x->graph, TN_E_SHAPE, "wanted [n, h, w, c], got %s", TN_TENSOR_TEXT(x)) != NULL;
    if (window < 1 || window > WIDEST || stride < 1 || o.pad < 0 || o.pad > window / 2)
        return tn_error_set(x->graph, TN_E_ARG,
                            "window %d, stride %d, pad %d: a window is 1 to %d wide, and pad may be half of "
                            "it at most",
                            window, stride, o.pad, WIDEST) != NULL;
    *a = (tn_pool_attr){.h = x->shape[1], .w = x->shape[2]};
    a->oh = pooled(a->h, window, stride, o.pad, o.ceil_mode);
    a->ow = pooled(a->w, window, stride, o.pad, o.ceil_mode);
    for (int i = 0; i < 2; i++) {
        int64_t n = i ? a->w : a->h, k = i ? a->ow : a->oh;
        a->window[i] = window;
        a->stride[i] = stride;
        a->pad[2 * i] = o.pad;
        a->pad[2 * i + 1] = (k - 1) * stride + window - n - o.pad; /* what the last window hangs over */
    }
    if (a->oh < 1 || a->ow < 1)
        return tn_error_set(x->graph, TN_E_SHAPE, "window %d is larger than image %s", window,
                            TN_TENSOR_TEXT(x)) != NULL;
    return true;
}

TN_AT(tn_tensor *, max_pool2d, (x, window, options), tn_tensor *x, int window,
      const tn_pool2d_options *options)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, window), "max_pool2d", file, line, 1, 0, &x);
    tn_pool_attr a;
    if (!sc.ok || !pool_geometry(x, window, options, &a)) return tn_leave(&sc, NULL);
    return tn_leave(&sc, tn_mk_pool(TN_OP_pool_max, x, NULL, &a));
}

/* Returns how many elements each window averages: window^2, but near an edge only those that lie in the image
 * (and, if counted, in the symmetric padding; never those that ceil mode hangs over). */
static tn_tensor *pool_counts(tn_graph *g, const tn_pool_attr *a, int64_t pad, bool exclude_pad)
{
    tn_tensor *n[2];
    for (int i = 0; i < 2; i++) {
        int64_t shape[4] = {1, i ? 1 : a->oh, i ? a->ow : 1, 1}, size = i ? a->w : a->h;
        tn_tensor *at = tn_mk_iota(g, i + 1, 4, shape, TN_F32);
        tn_tensor *lo = sub(mul(at, tn_mk_num(g, (double)a->stride[i])), tn_mk_num(g, (double)pad));
        tn_tensor *hi = add(lo, tn_mk_num(g, (double)a->window[i]));
        double first = exclude_pad ? 0 : -(double)pad, end = (double)(exclude_pad ? size : size + pad);
        lo = tn_mk2(TN_OP_maximum, lo, tn_mk_num(g, first));
        hi = tn_mk2(TN_OP_minimum, hi, tn_mk_num(g, end));
        n[i] = sub(hi, lo);
    }
    return mul(n[0], n[1]);
}

TN_AT(tn_tensor *, avg_pool2d, (x, window, options), tn_tensor *x, int window,
      const tn_pool2d_options *options)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, window), "avg_pool2d", file, line, 1, 0, &x);
    tn_pool_attr a;
    if (!sc.ok || !pool_geometry(x, window, options, &a)) return tn_leave(&sc, NULL);
    int64_t pad = options ? options->pad : 0;
    bool exclude = options && options->exclude_pad;
    bool full = a.pad[1] <= (exclude ? 0 : pad) && a.pad[3] <= (exclude ? 0 : pad) && (!exclude || !pad);
    tn_tensor *sum = tn_mk_pool(TN_OP_pool_sum, x, NULL, &a);
    tn_tensor *mean = full ? mul(sum, tn_mk_num(sc.g, 1.0 / ((double)window * window)))
                           : tn_mk2(TN_OP_div, sum, pool_counts(sc.g, &a, pad, exclude));
    return tn_leave(&sc, narrow(mean, x->dtype));
}

TN_AT(tn_tensor *, global_avg_pool2d, (x), tn_tensor *x)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "global_avg_pool2d", file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (x->ndim != 4)
        return tn_leave_error(&sc, TN_E_SHAPE, "wanted [n, h, w, c], got %s", TN_TENSOR_TEXT(x));
    double n = (double)(x->shape[1] * x->shape[2]);
    tn_tensor *m = narrow(mul(total(x, 6u), num(x, 1 / n)), x->dtype);
    return tn_leave(&sc, tn_mk_reshape(m, 2, (const int64_t[]){x->shape[0], x->shape[3]}));
}

/* ---- indexing ---- */

TN_AT(tn_tensor *, gather, (x, axis, index), tn_tensor *x, int axis, tn_tensor *index)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis), "gather", file, line, 2, 0, &x, &index);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    return tn_leave(&sc, a < 0 ? NULL : tn_mk_gather(x, a, index));
}

TN_AT(tn_tensor *, scatter_add, (x, axis, index, src), tn_tensor *x, int axis, tn_tensor *index,
      tn_tensor *src)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis), "scatter_add", file, line, 3, 0, &x, &index, &src);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    src = wide(tn_mk_cast(src, x->dtype));
    tn_tensor *added = tn_mk_scatter_add(src, a, index, x->ndim, x->shape);
    return tn_leave(&sc, narrow(add(wide(x), added), x->dtype));
}

TN_AT(tn_tensor *, index_select, (x, axis, index), tn_tensor *x, int axis, tn_tensor *index)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis), "index_select", file, line, 2, 0, &x, &index);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    return tn_leave(&sc, a < 0 ? NULL : tn_mk_index_select(x, a, index));
}

/* Returns true where start and length lie in the axis, or x or the axis are missing, which other checks
 * report. */
static bool narrow_fits(const tn_tensor *handle, int axis, int64_t start, int64_t length)
{
    const tn_tensor *x = handle ? tn_resolve(handle) : NULL;
    int a = x && axis < 0 ? axis + x->ndim : axis;
    if (!x || a < 0 || a >= x->ndim) return true;
    return length >= 0 && length <= x->shape[a] && start >= 0 && start <= x->shape[a] - length;
}

/* Rows at computed positions, as the offset of a view would be part of the plan. The start is no part of the
 * key either: a call whose start does not fit goes without one, or it would pass for the call before. */
TN_AT(tn_tensor *, narrow, (x, axis, start, length), tn_tensor *x, int axis, int64_t start, int64_t length)
{
    const tn_number first = tn_number_i(start);
    const int64_t attr[] = {axis, length};
    const tn_op_key key = {.part = {attr}, .bytes = {sizeof attr}, .number = &first};
    bool fits = narrow_fits(x, axis, start, length);
    tn_scope sc = tn_enter_as(fits ? &key : NULL, "narrow", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    if (length < 0 || length > x->shape[a])
        return tn_leave_error(&sc, TN_E_SHAPE, "length is %lld, must be from 0 to %lld", (long long)length,
                              (long long)x->shape[a]);
    if (!fits)
        return tn_leave_error(&sc, TN_E_INDEX, "start is %lld, must be from 0 to %lld", (long long)start,
                              (long long)(x->shape[a] - length));
    tn_tensor *at = tn_mk_iota(sc.g, 0, 1, &length, TN_I64);
    tn_tensor *rows = tn_mk_index_select(x, a, tn_mk2(TN_OP_add, at, tn_mk_scalar(sc.g, first)));
    if (rows) rows->attr->in_range = true;
    return tn_leave(&sc, rows);
}

TN_AT(tn_tensor *, embedding, (weight, index), tn_tensor *weight, tn_tensor *index)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "embedding", file, line, 2, 0, &weight, &index);
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (weight->ndim != 2 || index->ndim >= TN_MAX_DIMS)
        return tn_leave_error(&sc, TN_E_SHAPE, "weight must be [entries, width], got %s",
                              TN_TENSOR_TEXT(weight));
    int64_t n = tn_node_numel(index), shape[TN_MAX_DIMS];
    memcpy(shape, index->shape, sizeof shape);
    shape[index->ndim] = weight->shape[1];
    tn_tensor *rows = tn_mk_index_select(weight, 0, tn_mk_reshape(index, 1, &n));
    return tn_leave(&sc, tn_mk_reshape(rows, index->ndim + 1, shape));
}

TN_AT(tn_tensor *, one_hot, (index, classes), tn_tensor *index, int64_t classes)
{
    tn_scope sc = tn_enter_as(TN_ATTR(classes), "one_hot", file, line, 1, 0, &index);
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (!tn_dtype_is_int(index->dtype))
        return tn_leave_error(&sc, TN_E_DTYPE, "index must be an integer tensor, got %s",
                              tn_dtype_name(index->dtype));
    if (classes < 1 || index->ndim == TN_MAX_DIMS)
        return tn_leave_error(&sc, TN_E_ARG, "%lld classes", (long long)classes);
    int64_t shape[TN_MAX_DIMS];
    memcpy(shape, index->shape, sizeof shape);
    shape[index->ndim] = classes;
    tn_tensor *at = tn_mk_iota(sc.g, index->ndim, index->ndim + 1, shape, index->dtype);
    return tn_leave(&sc, tn_mk_cast(eq(unsqueeze(index, index->ndim), at), TN_F32));
}
