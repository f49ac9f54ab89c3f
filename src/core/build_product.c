/* build_product.c - matmul, convolution, pooling, indexing: the nodes that carry their own geometry.
 * Start with tn_mk_matmul. */
#include <string.h>

#include "build.h"

static tn_tensor *fail_shapes(tn_tensor *x, tn_tensor *y, const char *what)
{
    return tn_error_set(x->graph, TN_E_SHAPE, "shapes %s and %s do not fit: %s", TN_TENSOR_TEXT(x),
                        TN_TENSOR_TEXT(y), what);
}

static bool floating(const tn_tensor *x)
{
    if (tn_dtype_is_float(x->dtype)) return true;
    tn_error_set(x->graph, TN_E_DTYPE, "needs a floating dtype, got %s", tn_dtype_name(x->dtype));
    return false;
}

static bool multiplies(const tn_tensor *x)
{
    if (x->dtype != TN_BOOL) return true;
    tn_error_set(x->graph, TN_E_DTYPE, "needs numbers, got bool; cast it first");
    return false;
}

tn_dtype tn_product_dtype(const tn_graph *g, tn_dtype x, tn_dtype y)
{
    tn_dtype d = tn_dtype_promote(x, y);
    return d == TN_F32 ? g->products : d;
}

tn_tensor *tn_mk_matmul(tn_tensor *x, tn_tensor *y, tn_tensor *bias)
{
    if (!x || !y || !multiplies(x) || !multiplies(y)) return NULL;
    int bx = x->ndim - 2, by = y->ndim - 2, nb;
    int64_t shape[TN_MAX_DIMS], sx[TN_MAX_DIMS], sy[TN_MAX_DIMS];
    if (bx < 0 || by < 0) return fail_shapes(x, y, "both need two axes or more");
    int64_t m = x->shape[bx], k = x->shape[bx + 1], n = y->shape[by + 1];
    if (y->shape[by] != k) return fail_shapes(x, y, "inner extents differ");
    if (!tn_broadcast_shape(bx, x->shape, by, y->shape, &nb, shape))
        return fail_shapes(x, y, "batch axes do not broadcast");
    tn_dtype d = tn_product_dtype(x->graph, x->dtype, y->dtype);
    memcpy(sx, shape, sizeof sx);
    memcpy(sy, shape, sizeof sy);
    sx[nb] = shape[nb] = m;
    sx[nb + 1] = sy[nb] = k;
    sy[nb + 1] = shape[nb + 1] = n;
    tn_tensor *in[3] = {tn_mk_expand(tn_mk_cast(x, d), nb + 2, sx),
                        tn_mk_expand(tn_mk_cast(y, d), nb + 2, sy), NULL};
    if (!in[0] || !in[1]) return NULL;
    if (bias) {
        if (bias->ndim != 1 || bias->shape[0] != n) return fail_shapes(y, bias, "bias must be [n]");
        bool within = tn_dtype_is_float(d); /* products of integers know no bias */
        in[2] = within ? tn_mk_cast(bias, d) : NULL;
        if (!within)
            return tn_mk2(TN_OP_add, tn_node_new(x->graph, TN_OP_matmul, d, nb + 2, shape, 2, in), bias);
        if (!in[2]) return NULL;
    }
    return tn_node_new(x->graph, TN_OP_matmul, d, nb + 2, shape, bias ? 3 : 2, in);
}

/* ---- convolution ---- */

static int64_t window_count(int64_t extent, int64_t pad, int64_t window, int64_t dilation, int64_t stride)
{
    if (window > 1 && dilation > (extent + pad) / (window - 1)) return 0;
    int64_t span = extent + pad - dilation * (window - 1) - 1;
    return span < 0 ? 0 : span / stride + 1;
}

static tn_tensor *conv_node(tn_op op, tn_tensor *a, tn_tensor *b, tn_tensor *bias, const int64_t *shape,
                            const tn_conv_attr *attr)
{
    a = tn_mk_dense(a); /* the library calls take dense operands only */
    b = tn_mk_dense(b);
    if (!a || !b) return NULL;
    tn_tensor *n = tn_node_new(a->graph, op, a->dtype, 4, shape, bias ? 3 : 2, (tn_tensor *[]){a, b, bias});
    tn_attr *p = n ? tn_node_attr(n) : NULL;
    if (!p) return NULL;
    p->conv = *attr;
    return n;
}

tn_tensor *tn_mk_conv2d(tn_tensor *x, tn_tensor *w, tn_tensor *bias, const tn_conv_attr *attr)
{
    if (!x || !w || !floating(x)) return NULL;
    tn_conv_attr c = *attr;
    if (x->ndim != 4 || w->ndim != 4)
        return fail_shapes(x, w, "wanted [n, h, w, c] and [oc, kh, kw, c / groups]");
    if (c.groups < 1 || c.stride[0] < 1 || c.stride[1] < 1 || c.dilation[0] < 1 || c.dilation[1] < 1 ||
        c.pad[0] < 0 || c.pad[1] < 0 || c.pad[2] < 0 || c.pad[3] < 0)
        return tn_error_set(x->graph, TN_E_ARG,
                            "stride, dilation and groups must be positive and pad not negative");
    if (x->shape[3] != w->shape[3] * c.groups || w->shape[0] % c.groups)
        return fail_shapes(x, w,
                           "channels and groups disagree: wanted [n, h, w, c] and [oc, kh, kw, c / groups]");
    if (x->shape[1] < 1 || x->shape[2] < 1 || w->shape[1] < 1 || w->shape[2] < 1 || w->shape[3] < 1)
        return fail_shapes(x, w, "images, windows and channels need an extent of 1 or more");
    tn_dtype d = tn_product_dtype(x->graph, x->dtype, w->dtype);
    x = tn_mk_cast(x, d);
    w = tn_mk_cast(w, d);
    if (!x || !w) return NULL;
    if (bias) {
        if (bias->ndim != 1 || bias->shape[0] != w->shape[0])
            return fail_shapes(w, bias, "bias must be [oc]");
        bias = tn_mk_dense(tn_mk_cast(bias, d));
        if (!bias) return NULL;
    }
    c.h = x->shape[1];
    c.w = x->shape[2];
    c.kh = w->shape[1];
    c.kw = w->shape[2];
    int64_t shape[4] = {x->shape[0], window_count(c.h, c.pad[0] + c.pad[1], c.kh, c.dilation[0], c.stride[0]),
                        window_count(c.w, c.pad[2] + c.pad[3], c.kw, c.dilation[1], c.stride[1]),
                        w->shape[0]};
    if (shape[1] < 1 || shape[2] < 1) return fail_shapes(x, w, "the window is larger than the padded image");
    return conv_node(TN_OP_conv2d, x, w, bias, shape, &c);
}

tn_tensor *tn_mk_conv2d_data_grad(tn_tensor *gy, tn_tensor *w, const tn_conv_attr *attr)
{
    if (!gy || !w) return NULL;
    int64_t shape[4] = {gy->shape[0], attr->h, attr->w, w->shape[3] * attr->groups};
    return conv_node(TN_OP_conv2d_data_grad, gy, w, NULL, shape, attr);
}

tn_tensor *tn_mk_conv2d_weight_grad(tn_tensor *x, tn_tensor *gy, const tn_conv_attr *attr)
{
    if (!x || !gy) return NULL;
    int64_t shape[4] = {gy->shape[3], attr->kh, attr->kw, x->shape[3] / attr->groups};
    return conv_node(TN_OP_conv2d_weight_grad, x, gy, NULL, shape, attr);
}

/* ---- pooling ---- */

/* Returns true where each element of the image lies in exactly one window, and there are channels enough for
 * a window's channels to be loops of their own: with fewer, a kernel that walks rows of windows is faster. */
static bool tiled(const tn_pool_attr *a, int64_t channels)
{
    enum { MANY = 16 };
    return channels >= MANY && a->stride[0] == a->window[0] && a->stride[1] == a->window[1] && !a->pad[0] &&
           !a->pad[2] && a->h == a->oh * a->window[0] && a->w == a->ow * a->window[1];
}

enum { IN_WINDOW = 1u << 2 | 1u << 4 }; /* the axes within a window of [n, oh, kh, ow, kw, c] */

static tn_tensor *split(tn_tensor *x, const tn_pool_attr *a)
{
    return tn_mk_reshape(
        x, 6, (const int64_t[]){x->shape[0], a->oh, a->window[0], a->ow, a->window[1], x->shape[3]});
}

/* Windows that tile the image are a reshape and a reduction of it, which fuse with what stands before and
 * behind, and whose gradients do; overlapping ones have kernels of their own. */
static tn_tensor *tiled_pool(tn_op op, tn_tensor *x, const tn_pool_attr *a)
{
    bool max = op == TN_OP_pool_max;
    tn_tensor *y = tn_mk_reduce(max ? TN_OP_reduce_max : TN_OP_reduce_sum, split(x, a), IN_WINDOW);
    if (!y) return NULL;
    y->attr->first = max;
    return tn_mk_reshape(y, 4, (const int64_t[]){x->shape[0], a->oh, a->ow, x->shape[3]});
}

tn_tensor *tn_mk_pool(tn_op op, tn_tensor *x, tn_tensor *index, const tn_pool_attr *attr)
{
    if (!x) return NULL;
    bool to_image = op == TN_OP_pool_spread || op == TN_OP_pool_put;
    int64_t shape[4] = {x->shape[0], to_image ? attr->h : attr->oh, to_image ? attr->w : attr->ow,
                        x->shape[3]};
    if ((op == TN_OP_pool_max || op == TN_OP_pool_sum) && tiled(attr, x->shape[3]))
        return tiled_pool(op, x, attr);
    tn_dtype place = attr->window[0] * attr->window[1] <= 256 ? TN_U8 : TN_I32;
    x = tn_mk_dense(x);
    if (!x) return NULL;
    tn_dtype d = x->dtype;
    if (op == TN_OP_pool_argmax) d = place;
    if (op == TN_OP_pool_sum && tn_dtype_is_half(d)) d = TN_F32;
    tn_tensor *n = tn_node_new(x->graph, op, d, 4, shape, index ? 2 : 1, (tn_tensor *[]){x, index});
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    a->pool = *attr;
    return n;
}

/* ---- indexing ---- */

static bool index_dtype(const tn_tensor *index)
{
    if (tn_dtype_is_int(index->dtype)) return true;
    tn_error_set(index->graph, TN_E_DTYPE, "index must be an integer tensor, got %s",
                 tn_dtype_name(index->dtype));
    return false;
}

/* A kernel that meets an index out of range goes on with 0, which has to be there. */
static bool something_to_choose(const tn_tensor *index, int axis, int ndim, const int64_t *shape)
{
    if (shape[axis] || !tn_node_numel(index)) return true;
    tn_error_set(index->graph, TN_E_INDEX, "nothing to choose from: axis %d of shape %s is empty", axis,
                 TN_SHAPE_TEXT(ndim, shape));
    return false;
}

static tn_tensor *index_node(tn_op op, tn_tensor *x, tn_tensor *index, int axis, int ndim,
                             const int64_t *shape)
{
    tn_tensor *n = tn_node_new(x->graph, op, x->dtype, ndim, shape, 2, (tn_tensor *[]){x, index});
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (!a) return NULL;
    a->axis = axis;
    return n;
}

/* Where an index says the same of all elements of a line, of which none is missing, the lines' numbers: [n].
 * NULL: it does not. */
static tn_tensor *names_lines(tn_tensor *index, int axis, int ndim, const int64_t *shape)
{
    tn_tensor *line = index;
    if (index->ndim != ndim || !tn_node_numel(index)) return NULL;
    for (int i = 0; i < ndim; i++)
        if (i != axis && (index->shape[i] != shape[i] || (index->shape[i] > 1 && index->stride[i])))
            return NULL;
    for (int i = 0; i < ndim; i++)
        if (i != axis) line = tn_mk_slice1(line, i, 0, 1, 1);
    return tn_mk_reshape(line, 1, &index->shape[axis]);
}

tn_tensor *tn_mk_gather(tn_tensor *x, int axis, tn_tensor *index)
{
    if (!x || !index || !index_dtype(index)) return NULL;
    if (x->ndim != index->ndim) return fail_shapes(x, index, "x and index need as many axes");
    for (int i = 0; i < x->ndim; i++)
        if (i != axis && index->shape[i] > x->shape[i])
            return fail_shapes(x, index, "index is longer than x beside the gathered axis");
    if (!something_to_choose(index, axis, x->ndim, x->shape)) return NULL;
    tn_tensor *line = x->ndim > 1 ? names_lines(index, axis, x->ndim, x->shape) : NULL;
    if (line) return tn_mk_index_select(x, axis, line);
    return index_node(TN_OP_gather, x, index, axis, index->ndim, index->shape);
}

tn_tensor *tn_mk_index_select(tn_tensor *x, int axis, tn_tensor *index)
{
    if (!x || !index || !index_dtype(index)) return NULL;
    if (index->ndim != 1) return fail_shapes(x, index, "index must have one axis");
    if (!something_to_choose(index, axis, x->ndim, x->shape)) return NULL;
    int64_t shape[TN_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[axis] = index->shape[0];
    return index_node(TN_OP_index_select, x, index, axis, x->ndim, shape);
}

tn_tensor *tn_mk_scatter_add(tn_tensor *src, int axis, tn_tensor *index, int ndim, const int64_t *shape)
{
    if (!src || !index || !index_dtype(index)) return NULL;
    bool fits = src->ndim == ndim && tn_same_shape(src, index);
    for (int i = 0; fits && i < ndim; i++) fits = i == axis || src->shape[i] <= shape[i];
    if (!fits) return fail_shapes(src, index, "src and index must agree and lie within the target");
    if (!something_to_choose(index, axis, ndim, shape)) return NULL;
    tn_tensor *line = names_lines(index, axis, ndim, shape);
    if (line) return tn_mk_index_add(src, axis, line, ndim, shape);
    return index_node(TN_OP_scatter_add, src, index, axis, ndim, shape);
}

tn_tensor *tn_mk_index_add(tn_tensor *src, int axis, tn_tensor *index, int ndim, const int64_t *shape)
{
    if (!src || !index || !index_dtype(index)) return NULL;
    if (index->ndim != 1 || src->ndim != ndim || src->shape[axis] != index->shape[0])
        return fail_shapes(src, index, "index must name one target line for each of src's");
    if (!something_to_choose(index, axis, ndim, shape)) return NULL;
    return index_node(TN_OP_index_add, src, index, axis, ndim, shape);
}
