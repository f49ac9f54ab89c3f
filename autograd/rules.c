/* rules.c - the gradient of each op, in builder calls.
 *
 * Elementwise rows: the backward columns of ops.def, expanded here; the small functions below give them their
 * vocabulary. Everything that no row can hold follows by kind. Start with tn_backward_of. */
#include <string.h>

#include "../src/core/notation.h"
#include "autograd.h"

/* ---- the vocabulary of ops.def's backward columns ---- */

static tn_tensor *div(tn_tensor *x, tn_tensor *y) { return tn_mk2(TN_OP_div, x, y); }
static tn_tensor *exp_of(tn_tensor *x) { return tn_mk1(TN_OP_exp, x); }
static tn_tensor *log_of(tn_tensor *x) { return tn_mk1(TN_OP_log, x); }
static tn_tensor *sin_of(tn_tensor *x) { return tn_mk1(TN_OP_sin, x); }
static tn_tensor *cos_of(tn_tensor *x) { return tn_mk1(TN_OP_cos, x); }
/* C has functions of these names; the columns need theirs. */
#define exp exp_of
#define log log_of
#define sin sin_of
#define cos cos_of
#define pow pow_of

static tn_tensor *pow_of(tn_tensor *x, tn_tensor *y) { return tn_mk2(TN_OP_pow, x, y); }

static tn_tensor *constant(tn_graph *g, double v) { return tn_mk_num(g, v); }

static tn_tensor *zero(tn_tensor *g) { return tn_mk_like(g, 0); }

/* g where x is chosen, half of it where it ties. NaN neither loses nor ties: both operands get g then. */
static tn_tensor *tie_share(tn_tensor *loses, tn_tensor *ties, tn_tensor *g)
{
    return where(loses, constant(g->graph, 0), where(ties, mul(g, constant(g->graph, 0.5)), g));
}

/* y x^(y-1), and 0 where y is 0, also for x = 0, and so is what is derived from it. */
static tn_tensor *pow_grad_base(tn_tensor *g, tn_tensor *x, tn_tensor *y)
{
    tn_tensor *one = constant(g->graph, 1), *none = constant(g->graph, 0);
    tn_tensor *flat = eq(y, none);
    return where(flat, none, mul(g, mul(y, pow(x, where(flat, one, sub(y, one))))));
}

/* x^y ln x, and 0 where x is 0 and y is not negative. */
static tn_tensor *pow_grad_exponent(tn_tensor *g, tn_tensor *x, tn_tensor *y, tn_tensor *out)
{
    tn_tensor *none = constant(g->graph, 0);
    tn_tensor *flat = tn_mk2(TN_OP_logical_and, eq(x, none), tn_mk2(TN_OP_ge, y, none));
    return where(flat, none, mul(g, mul(out, log(x))));
}

#define num(v) constant(g->graph, v)
#define NOGRAD NULL

static bool wants(const tn_tensor *n, int i) { return (n->in[i]->flags & TN_F_REQUIRES_GRAD) != 0; }

/* Returns the tensor that index i of a gradient formula names: operand i, or for 3 the result. */
static tn_tensor *named(tn_tensor *n, int i)
{
    tn_tensor *v = i == 3 ? n : i < n->n_in ? n->in[i] : NULL;
    return tn_op_needs(n->op) >> i & 1 ? wide(v) : v;
}

static void eltwise(tn_tensor *n, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = named(n, 0), *y = named(n, 1), *z = named(n, 2), *out = named(n, 3);
    (void)x, (void)y, (void)z, (void)out;
    g = wide(g);
    switch ((tn_op)n->op) {
#define TN_UNARY(id, t, expr, dx, lo, hi, f, ...)                                                            \
    case TN_OP_##id:                                                                                         \
        if (wants(n, 0)) gin[0] = dx;                                                                        \
        break;
#define TN_BINARY(id, t, expr, dx, dy, lo, hi, f, ...)                                                       \
    case TN_OP_##id:                                                                                         \
        if (wants(n, 0)) gin[0] = dx;                                                                        \
        if (wants(n, 1)) gin[1] = dy;                                                                        \
        break;
#define TN_TERNARY(id, t, expr, dx, dy, dz, lo, hi, f, ...)                                                  \
    case TN_OP_##id:                                                                                         \
        if (wants(n, 0)) gin[0] = dx;                                                                        \
        if (wants(n, 1)) gin[1] = dy;                                                                        \
        if (wants(n, 2)) gin[2] = dz;                                                                        \
        break;
#include "../src/core/ops.def"
#define TN_OTHER(id, ...) case TN_OP_##id:
#include "../src/core/ops.def"
    case TN_OP_COUNT: break;
    }
}
#undef NOGRAD

/* ---- views ---- */

/* Undoes broadcasting, the one place where it is done. */
static tn_tensor *expand_back(const tn_tensor *x, tn_tensor *g)
{
    uint32_t axes = 0;
    for (int i = 0; i < x->ndim; i++)
        if (x->shape[i] == 1 && g->shape[i] != 1) axes |= 1u << i;
    if (!x->ndim) axes = (1u << g->ndim) - 1; /* 0-d repeats along all */
    g = tn_mk_reduce(TN_OP_reduce_sum, g, axes);
    return x->ndim ? g : tn_mk_reshape(g, 0, NULL);
}

static tn_tensor *permute_back(const tn_tensor *n, tn_tensor *g)
{
    int inverse[TN_MAX_DIMS];
    for (int i = 0; i < n->ndim; i++) inverse[n->attr->v[0][i]] = i;
    return tn_mk_permute(g, inverse);
}

/* One axis of a slice's gradient: g's elements go to start, start + step, ... of `extent` zeros. A step wider
 * than 1 is spread by padding each element to `step` of them, so placed among them that these begin at a
 * multiple of the step; those behind the last one may reach over the end. */
static tn_tensor *spread(tn_tensor *g, int axis, int64_t start, int64_t step, int64_t extent)
{
    if (!g) return NULL;
    int64_t n = g->shape[axis], before[TN_MAX_DIMS] = {0}, after[TN_MAX_DIMS] = {0};
    tn_tensor *fill = constant(g->graph, 0);
    if (n == 0) start = 0, step = 1;
    if (step < 0) {
        g = tn_mk_slice1(g, axis, n - 1, -1, n);
        start += (n - 1) * step;
        step = -step;
    }
    if (step > 1 && n > 1) {
        int64_t wide[TN_MAX_DIMS], shape[TN_MAX_DIMS];
        memcpy(shape, g->shape, sizeof shape);
        for (int i = 0, k = 0; k <= g->ndim; k++) wide[k] = k == axis + 1 ? 1 : g->shape[i++];
        int64_t lead[TN_MAX_DIMS] = {0}, gap[TN_MAX_DIMS] = {0};
        lead[axis + 1] = start % step;
        gap[axis + 1] = step - 1 - start % step;
        start -= start % step;
        if (g->ndim == TN_MAX_DIMS)
            return tn_error_set(g->graph, TN_E_GRAD, "a stepped slice of %d axes has no gradient",
                                TN_MAX_DIMS);
        g = tn_mk_pad(tn_mk_reshape(g, g->ndim + 1, wide), fill, lead, gap);
        shape[axis] = n * step;
        g = tn_mk_reshape(g, g ? g->ndim - 1 : 0, shape);
        n = n * step < extent - start ? n * step : extent - start;
        g = tn_mk_slice1(g, axis, 0, 1, n);
    }
    before[axis] = start;
    after[axis] = extent - start - n;
    return tn_mk_pad(g, fill, before, after);
}

static tn_tensor *slice_back(const tn_tensor *n, tn_tensor *g)
{
    const tn_tensor *x = n->in[0];
    int64_t before[TN_MAX_DIMS], after[TN_MAX_DIMS];
    bool plain = true;
    for (int i = 0; i < n->ndim; i++) {
        before[i] = n->attr->v[0][i];
        after[i] = x->shape[i] - before[i] - n->shape[i];
        plain = plain && n->attr->v[1][i] == 1 && n->shape[i] > 0;
    }
    if (plain) return tn_mk_pad(g, constant(g->graph, 0), before, after);
    for (int i = 0; i < n->ndim; i++) g = spread(g, i, n->attr->v[0][i], n->attr->v[1][i], x->shape[i]);
    return g;
}

static tn_tensor *pad_back(const tn_tensor *n, tn_tensor *g)
{
    int64_t one[TN_MAX_DIMS];
    for (int i = 0; i < n->ndim; i++) one[i] = 1;
    return tn_mk_slice(g, n->attr->v[0], one, n->in[0]->shape);
}

static void concat_back(const tn_tensor *n, tn_tensor *g, tn_tensor **gin)
{
    int axis = n->attr->axis;
    int64_t at = 0;
    for (int i = 0; i < n->n_in; i++) {
        int64_t count = n->in[i]->shape[axis];
        if (wants(n, i)) gin[i] = tn_mk_slice1(g, axis, at, 1, count);
        at += count;
    }
}

/* ---- reductions ---- */

/* Of each element along the last axis of x [m, n], n a power of two, the product of the others: with e these
 * products of a b, where a and b are the halves, that is e b and e a. */
static tn_tensor *others(tn_tensor *x)
{
    if (!x) return NULL;
    const int64_t m = x->shape[0], n = x->shape[1], halves[3] = {m, 2, n / 2}, half[3] = {m, 1, n / 2};
    if (n == 2) return tn_mk_slice1(x, 1, 1, -1, 2);
    tn_tensor *p = tn_mk_reshape(x, 3, halves), *a = tn_mk_slice1(x, 1, 0, 1, n / 2);
    tn_tensor *e = others(mul(a, tn_mk_slice1(x, 1, n / 2, 1, n / 2)));
    e = e ? mul(tn_mk_slice1(p, 1, 1, -1, 2), tn_mk_reshape(e, 3, half)) : NULL;
    return e ? tn_mk_reshape(e, 2, x->shape) : NULL;
}

/* Not g out / x: that is wrong where x or the product is 0, infinite or NaN. */
static tn_tensor *prod_back(tn_tensor *n, tn_tensor *x, tn_tensor *g)
{
    int perm[TN_MAX_DIMS], inverse[TN_MAX_DIMS], k = 0;
    int64_t shape[TN_MAX_DIMS], flat[2] = {1, 1}, whole = 2, none[2] = {0}, after[2] = {0};
    for (int last = 0; last < 2; last++) /* the axes of the product go to the end */
        for (int i = 0; i < x->ndim; i++) {
            if ((int)(n->attr->axes >> i & 1) != last) continue;
            flat[last] *= shape[k] = x->shape[i];
            inverse[i] = k;
            perm[k++] = i;
        }
    if (flat[1] < 2) return tn_mk_expand(g, x->ndim, x->shape);
    while (whole < flat[1]) whole *= 2;
    after[1] = whole - flat[1];
    tn_tensor *p = tn_mk_reshape(tn_mk_permute(x, perm), 2, flat);
    if (after[1]) p = tn_mk_pad(p, constant(g->graph, 1), none, after);
    p = others(p);
    if (p && after[1]) p = tn_mk_slice1(p, 1, 0, 1, flat[1]);
    p = tn_mk_reshape(p, x->ndim, shape);
    return p ? mul(g, tn_mk_permute(p, inverse)) : NULL;
}

/* The first of the largest has it, as in pooling: a window's place is counted row by row. */
static tn_tensor *first_back(tn_tensor *n, tn_tensor *x, tn_tensor *g)
{
    int64_t shape[TN_MAX_DIMS], k = 1;
    for (int i = 0; i < x->ndim; i++) {
        shape[i] = n->attr->axes >> i & 1 ? x->shape[i] : 1;
        k *= shape[i];
    }
    tn_tensor *first = tn_mk_place_of_max(x, n->attr->axes);
    tn_tensor *at = first ? tn_mk_iota(g->graph, 0, 1, &k, first->dtype) : NULL;
    at = at ? tn_mk_reshape(at, x->ndim, shape) : NULL;
    return where(eq(first, at), g, constant(g->graph, 0));
}

/* The elements equal to the extreme share the gradient. Where that was read and x was not, x is made again,
 * by other kernels, whose reductions may round otherwise: then the extreme is looked for again as well. */
static tn_tensor *extreme_back(tn_tensor *n, tn_tensor *x, tn_tensor *g)
{
    if (n->attr->first) return first_back(n, x, g);
    if (n->flags & TN_F_DONE && !(x->flags & TN_F_DONE)) n = tn_mk_reduce(n->op, x, n->attr->axes);
    if (!n) return NULL;
    tn_tensor *hit = tn_mk_cast(eq(x, n), g->dtype);
    return mul(hit, div(g, tn_mk_reduce(TN_OP_reduce_sum, hit, n->attr->axes)));
}

/* ---- products ---- */

static tn_tensor *swap_last(tn_tensor *x) { return x ? tn_mk_swap(x, x->ndim - 2, x->ndim - 1) : NULL; }

static bool is_swapped(const tn_tensor *x)
{
    return x->op == TN_OP_permute && x->attr->v[0][x->ndim - 1] == x->ndim - 2 &&
           x->attr->v[0][x->ndim - 2] == x->ndim - 1;
}

/* x y, which is elementwise where it has one term only. */
static tn_tensor *product(tn_tensor *x, tn_tensor *y)
{
    return x && y && x->shape[x->ndim - 1] == 1 ? mul(x, y) : tn_mk_matmul(x, y, NULL);
}

/* x y, for a z that was swapped before it went into the product that is differentiated: made swapped too, so
 * that the gradient of z itself comes out dense. */
static tn_tensor *product_for(const tn_tensor *z, tn_tensor *x, tn_tensor *y)
{
    if (!is_swapped(z)) return product(x, y);
    tn_tensor *t = product(swap_last(y), swap_last(x));
    return t ? swap_last(t) : NULL;
}

static void matmul_back(tn_tensor *n, tn_tensor *g, tn_tensor **gin)
{
    if (wants(n, 0)) gin[0] = product_for(n->in[0], g, swap_last(n->in[1]));
    if (wants(n, 1)) gin[1] = product_for(n->in[1], swap_last(n->in[0]), g);
    if (n->n_in > 2 && wants(n, 2)) {
        tn_tensor *s = tn_mk_reduce(TN_OP_reduce_sum, g, (1u << (g->ndim - 1)) - 1);
        gin[2] = tn_mk_reshape(s, 1, n->in[2]->shape);
    }
}

/* Returns true where a convolution is no more than a product of each place's channels and w, which makes one
 * channel of them. */
static bool is_one_channel(const tn_conv_attr *c, const tn_tensor *w)
{
    bool is = w->shape[0] == 1 && c->kh == 1 && c->kw == 1 && c->stride[0] == 1 && c->stride[1] == 1;
    for (int i = 0; i < 4; i++) is = is && !c->pad[i];
    return is;
}

/* Each of the three is linear in both operands, and the three are each other's gradients. */
static void conv_back(tn_tensor *n, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *a = n->in[0], *b = n->in[1];
    const tn_conv_attr *c = &n->attr->conv;
    if (n->op == TN_OP_conv2d) { /* x, weight */
        if (wants(n, 0)) gin[0] = is_one_channel(c, b) ? mul(g, b) : tn_mk_conv2d_data_grad(g, b, c);
        if (wants(n, 1)) gin[1] = tn_mk_conv2d_weight_grad(a, g, c);
        if (n->n_in > 2 && wants(n, 2))
            gin[2] = tn_mk_reshape(tn_mk_reduce(TN_OP_reduce_sum, g, 7u), 1, n->in[2]->shape);
    } else if (n->op == TN_OP_conv2d_data_grad) { /* gy, weight */
        if (wants(n, 0)) gin[0] = tn_mk_conv2d(g, b, NULL, c);
        if (wants(n, 1)) gin[1] = tn_mk_conv2d_weight_grad(g, a, c);
    } else { /* x, gy */
        if (wants(n, 0)) gin[0] = tn_mk_conv2d_data_grad(b, g, c);
        if (wants(n, 1)) gin[1] = tn_mk_conv2d(a, g, NULL, c);
    }
}

/* ---- windows ---- */

static const tn_pool_attr *pool(const tn_tensor *n) { return &n->attr->pool; }

static tn_tensor *pool_sum_back(const tn_tensor *n, tn_tensor *g)
{
    tn_tensor *s = tn_mk_pool(TN_OP_pool_spread, g, NULL, pool(n));
    if (s) s->dtype = n->in[0]->dtype; /* rounded once, as it is written */
    return s;
}

/* ---- the rows that are not elementwise ---- */

#define to_x(v)       gin[0] = (v)
#define no_gradient() (void)0 /* integers, or nothing to pass it on to */
#define no_host_gradient(n)                                                                                  \
    tn_error_set((n)->graph, TN_E_GRAD,                                                                      \
                 (n)->attr->host.wanted ? "its gradient has none" : "no .gradient was defined")
#define own_rule(n) tn_error_set((n)->graph, TN_E_GRAD, "attention nodes come with a rule")

bool tn_backward_of(tn_tensor *n, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = n->n_in ? n->in[0] : NULL, *y = n->n_in > 1 ? n->in[1] : NULL;
    switch ((tn_op)n->op) {
#define TN_ROW(id, ...) case TN_OP_##id:
#include "../src/core/ops.def"
        eltwise(n, g, gin);
        break;
#define TN_OTHER(id, kind, inputs, needs, reference, ...)                                                    \
    case TN_OP_##id:                                                                                         \
        __VA_ARGS__;                                                                                         \
        break;
#include "../src/core/ops.def"
    case TN_OP_COUNT: break;
    }
    return !n->graph->error.status;
}
