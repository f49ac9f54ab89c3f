/* random_graphs.h - random programs: what they are made of, how one is drawn, run and printed.
 *
 *   node      one operator with its operands (earlier nodes) and numbers; its shape, dtype and a bound on its
 *             magnitude are known when it is drawn, so that nothing overflows and no domain is left
 *   program   5 to 40 nodes and leaves, the nodes that are compared, the leaves that gradients are taken for
 *   family    a group of operators that are drawn alike; what each does is the expression in its row
 *
 * Read first: struct node, then draw_program. */
#pragma once

#include <tensor_export.h>

#include "check.h"

enum { MAX_NODES = 160, MAX_ELEMENTS = 3000, MAX_PROGRAM_OUT = 6, MAX_WRT = 3, NUMBERS = 8 };

typedef struct node {
    int op;    /* index in `ops` */
    int in[3]; /* -1: none */
    int64_t p[NUMBERS];
    double f[2];
    int ndim;
    int64_t shape[5];
    tn_dtype dtype;
    double mag; /* no element is larger */
} node;

typedef struct program {
    uint64_t seed;
    tn_dtype dtype;
    int n;
    node v[MAX_NODES];
    int n_out, out[MAX_PROGRAM_OUT];
    int n_wrt, wrt[MAX_WRT];
    int n_ops; /* it is drawn of the first so many rows */
} program;

typedef bool draw_fn(program *p, rng *r, node *n, int which);
typedef tn_tensor *run_fn(const program *p, int i, tn_session *s, tn_tensor **v);

typedef struct op_entry {
    const char *name;
    draw_fn *draw;
    run_fn *run;
    int which; /* of its family */
    int weight;
} op_entry;

enum { OP_LEAF, OP_INDEX, MOST_OPS = 128 };
static op_entry ops[MOST_OPS];
static int n_ops, n_first_ops;

/* ---- drawing ---- */

static int64_t elements(const node *n)
{
    int64_t k = 1;
    for (int i = 0; i < n->ndim; i++) k *= n->shape[i];
    return k;
}

static void shape_like(node *n, const node *x)
{
    n->ndim = x->ndim;
    memcpy(n->shape, x->shape, sizeof n->shape);
    n->dtype = x->dtype;
    n->mag = x->mag;
}

static int64_t draw_extent(rng *r)
{
    static const int64_t extent[] = {1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 16, 17, 33};
    return extent[rng_below(r, 15)];
}

static int add_leaf(program *p, int ndim, const int64_t *shape)
{
    node n = {.op = OP_LEAF, .in = {-1, -1, -1}, .ndim = ndim, .dtype = p->dtype, .mag = 2};
    for (int i = 0; i < ndim; i++) n.shape[i] = shape[i];
    if (p->n + 8 > MAX_NODES || elements(&n) > MAX_ELEMENTS) return -1;
    p->v[p->n] = n;
    return p->n++;
}

static int add_index(program *p, int ndim, const int64_t *shape, int64_t bound)
{
    int i = add_leaf(p, ndim, shape);
    if (i < 0) return -1;
    p->v[i].op = OP_INDEX;
    p->v[i].dtype = bound % 2 ? TN_I64 : TN_I32;
    p->v[i].p[0] = bound;
    return i;
}

static bool is_real(const program *p, int i) { return tn_dtype_is_float(p->v[i].dtype); }

/* An earlier floating node, a recent one more often than not. */
static int pick(const program *p, rng *r)
{
    for (int k = 0; k < 40; k++) {
        int back = rng_below(r, 3) ? 4 : p->n;
        int i = p->n - 1 - (int)rng_below(r, back < p->n ? back : p->n);
        if (is_real(p, i)) return i;
    }
    return 0;
}

static int pick_ndim(const program *p, rng *r, int low, int high)
{
    for (int k = 0; k < 20; k++) {
        int i = pick(p, r);
        if (p->v[i].ndim >= low && p->v[i].ndim <= high) return i;
    }
    return -1;
}

/* Something that broadcasts with x: an earlier node, or a leaf with some of x's axes. */
static int partner(program *p, rng *r, int x)
{
    for (int k = 0; k < 12 && rng_below(r, 4); k++) {
        int i = pick(p, r), nd;
        int64_t s[TN_MAX_DIMS];
        const node *a = &p->v[x], *b = &p->v[i];
        if (!tn_broadcast_shape(a->ndim, a->shape, b->ndim, b->shape, &nd, s) || nd > 5) continue;
        int64_t n = 1;
        for (int d = 0; d < nd; d++) n *= s[d];
        if (n <= MAX_ELEMENTS) return i;
    }
    const node *a = &p->v[x];
    int64_t s[5];
    int lead = (int)rng_below(r, a->ndim + 1);
    for (int d = lead; d < a->ndim; d++) s[d - lead] = rng_below(r, 4) ? a->shape[d] : 1;
    return add_leaf(p, a->ndim - lead, s);
}

static bool broadcast_into(program *p, node *n, int a, int b)
{
    int nd;
    int64_t s[TN_MAX_DIMS];
    const node *x = &p->v[a], *y = &p->v[b];
    if (!tn_broadcast_shape(x->ndim, x->shape, y->ndim, y->shape, &nd, s) || nd > 5) return false;
    n->ndim = nd;
    memcpy(n->shape, s, sizeof n->shape);
    n->dtype = p->dtype;
    return true;
}

/* -- elementwise, one operand -- */

enum { SAME, UNIT, DOMAIN, EXP, SQUARED };

static bool draw_unary(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick(p, r);
    const node *x = &p->v[n->in[0]];
    shape_like(n, x);
    n->mag = which == SAME      ? x->mag + 1
             : which == UNIT    ? 1
             : which == EXP     ? exp(x->mag)
             : which == SQUARED ? x->mag * x->mag
                                : x->mag + 2;
    /* The sine of a large number is all rounding. */
    return !(which == EXP && x->mag > 5) && !(which == UNIT && x->mag > 100);
}

/* Inside the domain of a logarithm and of a power. */
static tn_tensor *away(tn_tensor *x) { return tn_add_scalar(tn_abs(x), 0.5); }

/* -- elementwise with numbers -- */

enum { SIGNED, POSITIVE, POWER, SQUASH };

static bool draw_number(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick(p, r);
    shape_like(n, &p->v[n->in[0]]);
    n->f[0] = rng_real(r, 0.3, 1.7) * (which == SIGNED && rng_below(r, 2) ? -1 : 1);
    n->mag = which == POWER ? n->mag * n->mag * n->mag : which == SQUASH ? 2 : 2 * n->mag + 2;
    return true;
}

/* -- elementwise, two operands and more -- */

enum { PLUS, MUL, DIV, LERP };

static bool draw_binary(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick(p, r);
    n->in[1] = partner(p, r, n->in[0]);
    if (n->in[1] < 0 || !broadcast_into(p, n, n->in[0], n->in[1])) return false;
    double a = p->v[n->in[0]].mag, b = p->v[n->in[1]].mag;
    n->mag = which == MUL ? a * b : which == DIV ? 2 * a : which == LERP ? 2 * a + b : a + b;
    return true;
}

/* -- reductions and what normalises rows -- */

enum { SUM, VAR, STD, OTHER };

static bool draw_reduce(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick_ndim(p, r, 1, 5);
    if (n->in[0] < 0) return false;
    const node *x = &p->v[n->in[0]];
    shape_like(n, x);
    int64_t mask = 1 + rng_below(r, (1 << x->ndim) - 1), count = 1;
    bool keep = rng_below(r, 2);
    n->p[0] = mask, n->p[1] = keep, n->ndim = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (mask >> d & 1) count *= x->shape[d];
        if (!(mask >> d & 1) || keep) n->shape[n->ndim++] = mask >> d & 1 ? 1 : x->shape[d];
    }
    if ((which == VAR || which == STD) && count < 2) return false;
    n->mag = which == SUM ? x->mag * (double)count : which == VAR ? 2 * x->mag * x->mag : x->mag + 8;
    return true;
}

enum { SOFTMAX, LOG_SOFTMAX, CUMSUM, LAYER_NORM, RMS_NORM, ARGMAX, GROUP, SORTED };

static bool draw_row(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick_ndim(p, r, which == GROUP ? 2 : 1, 5);
    if (n->in[0] < 0) return false;
    shape_like(n, &p->v[n->in[0]]);
    const node *x = &p->v[n->in[0]];
    n->p[0] = rng_below(r, x->ndim);
    int64_t row = x->shape[x->ndim - 1];
    if (which == LAYER_NORM || which == RMS_NORM) {
        if (row < 2) return false;
        n->in[1] = rng_below(r, 3) ? add_leaf(p, 1, &row) : -1;
        n->in[2] = n->in[1] >= 0 && which == LAYER_NORM ? add_leaf(p, 1, &row) : -1;
    }
    if (which == ARGMAX) { /* keepdim */
        n->mag = (double)x->shape[n->p[0]];
        n->shape[n->p[0]] = 1;
        return true;
    }
    n->mag = which == SOFTMAX       ? 1
             : which == CUMSUM      ? n->mag * (double)x->shape[n->p[0]]
             : which == LOG_SOFTMAX ? 2 * n->mag + 8
             : which == SORTED      ? n->mag
                                    : 20;
    return true;
}

#include "random_shapes.h"
#include "random_more.h"

/* ---- leaves ---- */

static tn_tensor *leaf_values(const program *p, int i, tn_session *s, bool whole)
{
    const node *n = &p->v[i];
    static double data[MAX_ELEMENTS];
    rng r = {p->seed * 1000003u + (uint64_t)i};
    for (int64_t k = 0; k < elements(n); k++)
        data[k] = whole ? (double)rng_below(&r, n->p[0]) : rng_real(&r, -2, 2);
    return tensor_of(s, data, n->dtype, n->ndim, n->shape);
}

/* ---- operators ---- */

static tn_tensor *operand_of(const node *n, tn_tensor **v, int k)
{
    return n->in[k] < 0 ? NULL : v[n->in[k]];
}

/* The bits of a mask as a list. */
static int axes_of(int64_t mask, int *axes)
{
    int k = 0;
    for (int d = 0; d < 5; d++)
        if (mask >> d & 1) axes[k++] = d;
    return k;
}

/* What a row's expression may name: the operands x, y, z, the node n and its numbers. */
#define OP(...)    OP_AT(__COUNTER__, __VA_ARGS__)
#define OP_AT(...) OP_ADD(__VA_ARGS__)
#define OP_ADD(id, name, family, which, weight, expression)                                                  \
    static tn_tensor *run_##id(const program *p, int i, tn_session *s, tn_tensor **v)                        \
    {                                                                                                        \
        const node *n = &p->v[i];                                                                            \
        tn_tensor *x = operand_of(n, v, 0), *y = operand_of(n, v, 1), *z = operand_of(n, v, 2);              \
        const double c = n->f[0];                                                                            \
        const int axis = (int)n->p[0];                                                                       \
        const bool keep = n->p[1];                                                                           \
        int axes[5], k = axes_of(n->p[0], axes);                                                             \
        (void)s, (void)x, (void)y, (void)z, (void)c, (void)axis, (void)keep, (void)k;                        \
        return expression;                                                                                   \
    }                                                                                                        \
    __attribute__((constructor)) static void add_##id(void)                                                  \
    {                                                                                                        \
        ops[n_ops++] = (op_entry){name, family, run_##id, which, weight};                                    \
    }

OP("leaf", NULL, 0, 0, leaf_values(p, i, s, false))
OP("index", NULL, 1, 0, leaf_values(p, i, s, true))
OP("neg", draw_unary, SAME, 2, tn_neg(x))
OP("abs", draw_unary, SAME, 2, tn_abs(x))
OP("relu", draw_unary, SAME, 4, tn_relu(x))
OP("gelu", draw_unary, SAME, 3, tn_gelu(x))
OP("gelu_tanh", draw_unary, SAME, 2, tn_gelu_tanh(x))
OP("silu", draw_unary, SAME, 2, tn_silu(x))
OP("mish", draw_unary, SAME, 1, tn_mish(x))
OP("softplus", draw_unary, SAME, 2, tn_softplus(x))
OP("floor", draw_unary, SAME, 1, tn_floor(x))
OP("round", draw_unary, SAME, 1, tn_round(x))
OP("trunc", draw_unary, SAME, 1, tn_trunc(x))
OP("ceil", draw_unary, SAME, 1, tn_ceil(x))
OP("detach", draw_unary, SAME, 1, tn_detach(x))
OP("tanh", draw_unary, UNIT, 5, tn_tanh(x))
OP("sigmoid", draw_unary, UNIT, 4, tn_sigmoid(x))
OP("sin", draw_unary, UNIT, 3, tn_sin(x))
OP("cos", draw_unary, UNIT, 3, tn_cos(x))
OP("erf", draw_unary, UNIT, 2, tn_erf(x))
OP("sign", draw_unary, UNIT, 1, tn_sign(x))
OP("log", draw_unary, DOMAIN, 2, tn_log(away(x)))
OP("log1p", draw_unary, DOMAIN, 2, tn_log1p(away(x)))
OP("sqrt", draw_unary, DOMAIN, 2, tn_sqrt(away(x)))
OP("rsqrt", draw_unary, DOMAIN, 2, tn_rsqrt(away(x)))
OP("reciprocal", draw_unary, DOMAIN, 2, tn_reciprocal(away(x)))
OP("exp", draw_unary, EXP, 3, tn_exp(x))
OP("expm1", draw_unary, EXP, 1, tn_expm1(x))
OP("square", draw_unary, SQUARED, 3, tn_square(x))
OP("ndtr", draw_unary, UNIT, 1, tn_ndtr(x))
OP("add_scalar", draw_number, SIGNED, 3, tn_add_scalar(x, c))
OP("mul_scalar", draw_number, SIGNED, 4, tn_mul_scalar(x, c))
OP("rsub_scalar", draw_number, SIGNED, 2, tn_rsub_scalar(x, c))
OP("maximum_scalar", draw_number, SIGNED, 2, tn_maximum_scalar(x, c))
OP("clamp", draw_number, POSITIVE, 2, tn_clamp(x, -c, c + 0.1))
OP("leaky_relu", draw_number, POSITIVE, 2, tn_leaky_relu(x, c / 10))
OP("elu", draw_number, POSITIVE, 2, tn_elu(x, c))
OP("pow_scalar", draw_number, POWER, 1, tn_pow_scalar(x, 3))
OP("dropout", draw_number, POSITIVE, 3, tn_dropout(x, c / 4))
OP("squash", draw_number, SQUASH, 4, tn_div_scalar(x, p->v[n->in[0]].mag))
OP("add", draw_binary, PLUS, 10, tn_add(x, y))
OP("sub", draw_binary, PLUS, 6, tn_sub(x, y))
OP("mul", draw_binary, MUL, 10, tn_mul(x, y))
OP("div", draw_binary, DIV, 4, tn_div(x, away(y)))
OP("maximum", draw_binary, PLUS, 2, tn_maximum(x, y))
OP("minimum", draw_binary, PLUS, 2, tn_minimum(x, y))
OP("where", draw_binary, PLUS, 3, tn_where(tn_lt(x, y), tn_mul_scalar(x, 0.5), y))
OP("lerp", draw_binary, LERP, 2, tn_lerp(x, y, tn_sigmoid(x)))
OP("mask", draw_binary, PLUS, 2, tn_where(tn_logical_or(tn_gt_scalar(x, 0.1), tn_ge(y, x)), x, tn_neg(y)))
OP("sum", draw_reduce, SUM, 5, tn_sum(x, k, axes, keep))
OP("mean", draw_reduce, OTHER, 5, tn_mean(x, k, axes, keep))
OP("max", draw_reduce, OTHER, 3, tn_max(x, k, axes, keep))
OP("min", draw_reduce, OTHER, 2, tn_min(x, k, axes, keep))
OP("var", draw_reduce, VAR, 2, tn_var(x, k, axes, keep, 1))
OP("std", draw_reduce, STD, 2, tn_sqrt(tn_add_scalar(tn_var(x, k, axes, keep, 0), 0.1)))
OP("logsumexp", draw_reduce, OTHER, 2, tn_logsumexp(x, k, axes, keep))
OP("any", draw_reduce, OTHER, 1, tn_cast(tn_any(tn_gt_scalar(x, 0.7), k, axes, keep), p->dtype))
OP("softmax", draw_row, SOFTMAX, 4, tn_softmax(x, axis))
OP("log_softmax", draw_row, LOG_SOFTMAX, 2, tn_log_softmax(x, axis))
OP("cumsum", draw_row, CUMSUM, 2, tn_cumsum(x, axis))
OP("layer_norm", draw_row, LAYER_NORM, 4, tn_layer_norm(x, y, z, .eps = 0.01))
OP("rms_norm", draw_row, RMS_NORM, 3, tn_rms_norm(x, y, .eps = 0.01))
OP("argmax", draw_row, ARGMAX, 1, tn_cast(tn_argmax(x, axis, true), p->dtype))
OP("group_norm", draw_row, GROUP, 1, tn_group_norm(x, 1, NULL, NULL, .eps = 0.01))
OP("reshape", draw_view, RESHAPE, 4, tn_reshape(x, n->ndim, n->shape))
OP("permute", draw_view, PERMUTE, 5, permuted(x, n))
OP("slice", draw_view, SLICE, 5, tn_slice(x, axis, n->p[1], n->p[2], n->p[3]))
OP("flip", draw_view, FLIP, 2, tn_flip(x, 1, &axis))
OP("pad", draw_view, PAD, 3, tn_pad(x, axis, n->p[1], n->p[2], 0.25))
OP("expand", draw_view, EXPAND, 3, tn_expand(x, n->ndim, n->shape))
OP("select", draw_view, SELECT, 2, tn_select(x, axis, n->p[1]))
OP("contiguous", draw_view, CONTIGUOUS, 1, tn_contiguous(x))
OP("concat", draw_join, CONCAT, 3, tn_concat(2, (tn_tensor *[]){x, y}, axis))
OP("stack", draw_join, STACK, 2, tn_stack(2, (tn_tensor *[]){x, y}, axis))
OP("matmul", draw_matmul, 0, 4, tn_matmul(x, y))
OP("matmul_t", draw_matmul, 1, 3, tn_matmul(x, tn_transpose(y, -1, -2)))
OP("affine", draw_matmul, 2, 4, tn_affine(x, y, z))
OP("attention", draw_attention, ATTENTION, 5, run_attention(p, i, s, v, ATTENTION))
OP("written_out", draw_attention, WRITTEN_OUT, 5, run_attention(p, i, s, v, WRITTEN_OUT))
OP("conv2d", draw_image, CONV, 3, tn_conv2d(x, y, z, .stride = (int)n->p[1], .pad = (int)n->p[2]))
OP("max_pool2d", draw_image, MAX_POOL, 2,
   tn_max_pool2d(x, (int)n->p[0], .stride = (int)n->p[1], .pad = (int)n->p[2]))
OP("avg_pool2d", draw_image, AVG_POOL, 2,
   tn_avg_pool2d(x, (int)n->p[0], .stride = (int)n->p[1], .pad = (int)n->p[2]))
OP("index_select", draw_index, INDEX_SELECT, 3, tn_index_select(x, axis, y))
OP("gather", draw_index, GATHER, 2, tn_gather(x, axis, y))
OP("scatter_add", draw_index, SCATTER_ADD, 2, tn_scatter_add(x, axis, y, z))
OP("embedding", draw_index, EMBEDDING, 2, tn_embedding(x, y))

/* Seeds that once failed name programs of the rows above. */
__attribute__((constructor)) static void first_ops_end(void) { n_first_ops = n_ops; }

OP("atan", draw_unary, SAME, 1, tn_atan(x))
OP("hardswish", draw_unary, SAME, 1, tn_hardswish(x))
OP("swiglu", draw_unary, SAME, 1, tn_swiglu(x, tn_sin(x)))
OP("huber", draw_unary, SAME, 1, tn_huber_loss(x, tn_sin(x), .delta = 0.7, .reduction = TN_REDUCE_NONE))
OP("smooth_l1", draw_unary, SAME, 1, tn_smooth_l1_loss(x, tn_cos(x), .reduction = TN_REDUCE_NONE))
OP("kl_div", draw_row, LOG_SOFTMAX, 1,
   tn_kl_div(tn_log_softmax(x, axis), tn_softmax(tn_neg(x), axis), .reduction = TN_REDUCE_NONE))
OP("sort", draw_row, SORTED, 1, sorted_values(x, axis, n->ndim > 2))
OP("topk", draw_top, 0, 1, top_values(x, n))
OP("prelu", draw_beside, PRELU, 1, tn_prelu(x, y))
OP("cosine_similarity", draw_beside, COSINE, 1, tn_cosine_similarity(x, y, -1, 0.1))
OP("triplet", draw_beside, TRIPLET, 1,
   tn_triplet_margin_loss(x, y, tn_sin(x), .swap = n->ndim > 1, .reduction = TN_REDUCE_NONE))
OP("glu", draw_even, GLU, 2, tn_glu(x, axis))
OP("rotary", draw_even, ROTARY, 2, tn_rotary(x, n->p[1], .interleaved = n->p[2] != 0))
OP("tril", draw_even, TRIANGLE, 1, tn_tril(x, n->p[1]))
OP("triu", draw_even, TRIANGLE, 1, tn_triu(x, n->p[1]))
OP("einsum", draw_einsum, 0, 2, tn_einsum("abc,dc->adb", 2, (tn_tensor *[]){x, y}))
OP("resize_nearest", draw_sampled, RESIZE, 1, tn_resize_nearest(x, n->shape[1], n->shape[2]))
OP("resize_bilinear", draw_sampled, RESIZE, 1, tn_resize_bilinear(x, n->shape[1], n->shape[2], n->p[3] != 0))
OP("conv1d", draw_sampled, CONV1D, 2, tn_conv1d(x, y, z, .stride = (int)n->p[1], .pad = (int)n->p[2]))
OP("conv_transpose1d", draw_sampled, BACK1D, 1,
   tn_conv_transpose1d(x, y, z, .stride = (int)n->p[1], .pad = (int)n->p[2]))
OP("conv_transpose2d", draw_sampled, BACK2D, 1,
   tn_conv_transpose2d(x, y, z, .stride = (int)n->p[1], .pad = (int)n->p[2]))
OP("lstm", draw_recurrent, 4, 1, tn_lstm(x, y, z, NULL, NULL))
OP("gru", draw_recurrent, 3, 1, tn_gru(x, y, z, NULL))

/* ---- whole programs ---- */

static bool draw_node(program *p, rng *r)
{
    int total = 0;
    for (int i = 0; i < p->n_ops; i++) total += ops[i].weight;
    int at = (int)rng_below(r, total), op = 0, before = p->n;
    while (at >= ops[op].weight) at -= ops[op++].weight;
    node n = {.op = op, .in = {-1, -1, -1}, .dtype = p->dtype};
    bool ok = ops[op].draw(p, r, &n, ops[op].which);
    if (!ok || n.mag > 1e4 || elements(&n) > MAX_ELEMENTS || elements(&n) < 1) {
        p->n = before; /* and the leaves it asked for */
        return false;
    }
    p->v[p->n++] = n;
    return true;
}

static void draw_program_of(program *p, uint64_t seed, int known)
{
    rng r = {seed};
    *p = (program){.seed = seed, .n_ops = known};
    p->dtype = rng_below(&r, 8) ? TN_F32 : TN_F64;
    int leaves = 1 + (int)rng_below(&r, 3), target = 5 + (int)rng_below(&r, 36), made = 0;
    for (int i = 0; i < leaves; i++) {
        int64_t shape[4];
        int ndim = 1 + (int)rng_below(&r, 4);
        for (int d = 0; d < ndim; d++) shape[d] = draw_extent(&r);
        while (add_leaf(p, ndim, shape) < 0) shape[rng_below(&r, ndim)] = 2;
    }
    for (int tries = 0; made < target && tries < 400 && p->n + 8 < MAX_NODES; tries++)
        made += draw_node(p, &r);

    bool used[MAX_NODES] = {false};
    for (int i = 0; i < p->n; i++) {
        for (int k = 0; k < 3; k++)
            if (p->v[i].in[k] >= 0) used[p->v[i].in[k]] = true;
    }
    for (int i = p->n - 1; i >= 0 && p->n_out < MAX_PROGRAM_OUT; i--)
        if (ops[p->v[i].op].weight && (!used[i] || !rng_below(&r, 8))) p->out[p->n_out++] = i;
    if (rng_below(&r, 3)) {
        for (int i = 0; i < p->n && p->n_wrt < MAX_WRT; i++)
            if (p->v[i].op == OP_LEAF && rng_below(&r, 3)) p->wrt[p->n_wrt++] = i;
    }
}

static void draw_program(program *p, uint64_t seed) { draw_program_of(p, seed, n_ops); }

/* Which nodes the outputs and gradients need. */
static void live_nodes(const program *p, bool *live)
{
    memset(live, 0, MAX_NODES);
    for (int i = 0; i < p->n_out; i++) live[p->out[i]] = true;
    for (int i = 0; i < p->n_wrt; i++) live[p->wrt[i]] = true;
    for (int i = p->n - 1; i >= 0; i--) {
        for (int k = 0; live[i] && k < 3; k++)
            if (p->v[i].in[k] >= 0) live[p->v[i].in[k]] = true;
    }
}

/* For the drill: in this session the results of this operator are wrong by a ten-thousandth. */
static tn_session *faulty_session;
static const char *faulty_op;

/* Its outputs and the gradients of its leaves, at out[*n] and on. */
static void record_program(const program *p, tn_session *s, int *n, tn_tensor **out)
{
    tn_tensor *v[MAX_NODES] = {NULL}, *leaf[MAX_WRT], *grad[MAX_WRT] = {NULL}, *loss = NULL;
    bool live[MAX_NODES];
    live_nodes(p, live);
    for (int i = 0; i < p->n; i++) {
        if (!live[i]) continue;
        const op_entry *o = &ops[p->v[i].op];
        v[i] = o->run(p, i, s, v);
        if (s == faulty_session && !strcmp(o->name, faulty_op)) v[i] = tn_mul_scalar(v[i], 1.0001);
        for (int k = 0; k < p->n_wrt; k++)
            if (p->wrt[k] == i) tn_requires_grad(leaf[k] = v[i], true);
    }
    for (int i = 0; i < p->n_out; i++) out[(*n)++] = v[p->out[i]];
    if (!p->n_wrt) return;
    loss =
        weighted(s, tn_square(leaf[0]), p->seed + 99); /* there is a gradient even if all else is detached */
    for (int i = 0; i < p->n_out; i++) loss = tn_add(loss, weighted(s, v[p->out[i]], p->seed + (uint64_t)i));
    tn_grad(loss, p->n_wrt, leaf, grad);
    for (int k = 0; k < p->n_wrt; k++) out[(*n)++] = grad[k] ? grad[k] : tn_mul_scalar(leaf[k], 0.0);
}

static void print_program(const program *p, FILE *f)
{
    bool live[MAX_NODES];
    live_nodes(p, live);
    for (int i = 0; i < p->n; i++) {
        const node *n = &p->v[i];
        char shape[128];
        if (!live[i]) continue;
        fprintf(f, "  v%d = %s(", i, ops[n->op].name);
        for (int k = 0; k < 3 && n->in[k] >= 0; k++) fprintf(f, "%sv%d", k ? ", " : "", n->in[k]);
        fprintf(f, ")  %s %s  [", tn_dtype_name(n->dtype),
                tn_shape_text(shape, sizeof shape, n->ndim, n->shape));
        for (int k = 0; k < NUMBERS; k++) fprintf(f, "%s%lld", k ? " " : "", (long long)n->p[k]);
        fprintf(f, " | %g %g]\n", n->f[0], n->f[1]);
    }
    fprintf(f, "  read:");
    for (int i = 0; i < p->n_out; i++) fprintf(f, " v%d", p->out[i]);
    fprintf(f, "%s", p->n_wrt ? "; gradients for:" : "");
    for (int i = 0; i < p->n_wrt; i++) fprintf(f, " v%d", p->wrt[i]);
    fprintf(f, "\n");
}

enum { MOST_RESULTS = MAX_PROGRAM_OUT + MAX_WRT };

/* One step of the program, for an export; results are f32 or f64 and kept. */
static inline int exported_step(const program *p, tn_session *s, bool name_them, tn_tensor **kept)
{
    tn_tensor *out[MOST_RESULTS];
    char name[20];
    int n = 0;
    tn_step_begin(s);
    record_program(p, s, &n, out);
    for (int i = 0; i < n; i++) {
        const tn_dtype d = tn_dtype_of(out[i]) == TN_F64 ? TN_F64 : TN_F32;
        tn_tensor *x = tn_mul_scalar(tn_cast(tn_contiguous(out[i]), d), 1.0);
        snprintf(name, sizeof name, "out%d", i);
        if (name_them) tn_export_output(x, name);
        kept[i] = tn_keep(x);
    }
    tn_step_end(s);
    return n;
}

/* Result i of the program as an export's file has it, beside the session's: to `within` of the largest, which is
 * `least` at least, as of sums that cancel the terms are larger. */
static inline void compare_exported(const program *p, int i, tn_tensor *kept, const void *its, double within,
                                    double least)
{
    const int64_t count = tn_numel(kept);
    const bool wide = tn_dtype_of(kept) == TN_F64;
    double *own = calloc((size_t)count + 1, sizeof *own), largest = least;
    assert_int_equal(tn_read(kept, TN_F64, own, (size_t)count * sizeof *own), 0);
    for (int64_t k = 0; k < count; k++)
        if (fabs(own[k]) > largest) largest = fabs(own[k]);
    for (int64_t k = 0; k < count; k++) {
        const double v = wide ? ((const double *)its)[k] : (double)((const float *)its)[k];
        if (v == own[k] || fabs(v - own[k]) <= within * largest || (isnan(v) && isnan(own[k]))) continue;
        print_program(p, stderr);
        fail_msg("seed %llu, result %d, element %lld is %.9g, the session's %.9g",
                 (unsigned long long)p->seed, i, (long long)k, v, own[k]);
    }
    free(own);
}
