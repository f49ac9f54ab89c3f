/* pads.c - zeros that a pad puts around the image of a convolution: the convolution puts them there itself.
 *
 *   conv(pad(x, 0, a, b), w)  =  conv(x, w) of so much more padding; likewise a weight's gradient
 *
 * So the padded copy need not be in memory, nor kept for backward beside x. Start with fu_take_padding. */
#include "graph.h"

#include <string.h>

/* The node of the pad that makes the image of t, a convolution, or -1. Where its extents stand: *lines first,
 * or -1, then columns. */
static int pad_of(const fu_ctx *c, const tn_tensor *t, int *lines)
{
    const tn_tensor *x = fu_value_of(c, t->in[0]);
    const int p = fu_node_of(c, x);
    const tn_tensor *pad = p < 0 || c->node[p].root ? NULL : c->node[p].t;
    if (!pad || pad->op != TN_OP_pad) return -1;
    if (x == pad) return *lines = 1, p;
    const bool row = pad->ndim == 3 && x->base == pad && x->shape[0] == pad->shape[0] && x->shape[1] == 1 &&
                     x->shape[2] == pad->shape[1] && tn_node_is_dense(x);
    return *lines = 0, row ? p : -1;
}

/* Adds what a pad puts before and behind the extent `at` to a convolution's own padding of that axis. False:
 * the convolution would not reach over it. */
static bool add_padding(tn_conv_attr *a, int axis, const tn_attr *pad, int at)
{
    const int64_t reach = a->dilation[axis] * ((axis ? a->kw : a->kh) - 1);
    for (int side = 0; side < 2; side++) {
        const int64_t more = pad->v[side][at];
        a->pad[2 * axis + side] += more;
        if (more < 0 || a->pad[2 * axis + side] > reach) return false;
    }
    int64_t *extent = axis ? &a->w : &a->h;
    *extent -= pad->v[0][at] + pad->v[1][at];
    return *extent > 0;
}

/* x, memory of 3 or 4 axes, as an image. */
static const tn_tensor *image_of(fu_ctx *c, const tn_tensor *x, const tn_tensor *like)
{
    if (x->ndim == 4) return x;
    tn_tensor *v = tn_arena_alloc(&c->arena, sizeof *v);
    if (!v) return NULL;
    *v = *like;
    v->base = x->base;
    v->offset = x->offset;
    v->in = v->in_;
    v->in_[0] = (tn_tensor *)(uintptr_t)x; /* passes only read */
    v->slot = -1;
    const int64_t shape[4] = {x->shape[0], 1, x->shape[1], x->shape[2]};
    const int64_t stride[4] = {x->stride[0], x->stride[0], x->stride[1], x->stride[2]};
    memcpy(v->shape, shape, sizeof shape);
    memcpy(v->stride, stride, sizeof stride);
    return v;
}

/* Takes one pad away. Returns 1, 0 where there is none that can be, or a status. */
static int take(fu_ctx *c, int i)
{
    const tn_tensor *t = c->node[i].t;
    int lines, status = 0;
    const int p = pad_of(c, t, &lines);
    if (p < 0) return 0;
    const tn_tensor *pad = c->node[p].t, *x = fu_value_of(c, pad->in[0]), *image;
    const int last = pad->ndim - 1;
    tn_conv_attr a = t->attr->conv;
    bool can = x->dtype == t->in[0]->dtype && tn_node_is_dense(x) && fu_lasting(c, x) && !tn_is_number(x);
    for (int side = 0; side < 2; side++) can = can && !pad->attr->v[side][0] && !pad->attr->v[side][last];
    can = can && (!lines || add_padding(&a, 0, pad->attr, 1)) && add_padding(&a, 1, pad->attr, 1 + lines) &&
          fu_is_number(c, pad, 1, 0, &status);
    if (!can) return status;
    tn_tensor *to = tn_arena_alloc(&c->arena, sizeof *to);
    tn_tensor **in = tn_arena_alloc(&c->arena, t->n_in * sizeof *in);
    tn_attr *attr = tn_arena_alloc(&c->arena, sizeof *attr);
    if (!to || !in || !attr || !(image = image_of(c, x, t->in[0]))) return TN_E_NOMEM;
    *to = *t;
    *attr = *t->attr;
    attr->conv = a;
    memcpy(in, t->in, t->n_in * sizeof *in);
    in[0] = (tn_tensor *)(uintptr_t)image;
    if (t->base == t) to->base = to;
    to->in = in;
    to->attr = attr;
    c->node[i].t = to;
    return 1;
}

int fu_take_padding(fu_ctx *c, int i)
{
    const tn_op op = c->node[i].t->op;
    int status = op == TN_OP_conv2d || op == TN_OP_conv2d_weight_grad;
    while (status > 0) status = take(c, i);
    return status;
}
