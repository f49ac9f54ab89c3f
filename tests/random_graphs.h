/* random_graphs.h - random programs: what they are made of, how one is drawn, run and printed.
 *
 *   node      one operator with its operands (earlier nodes) and numbers; its shape, dtype and a bound on its
 *             magnitude are known when it is drawn, so that nothing overflows and no domain is left
 *   program   5 to 40 nodes and leaves, the nodes that are compared, the leaves that gradients are taken for
 *   family    a group of operators drawn and run alike: a draw function and a run function
 *
 * Read first: struct node, then draw_program.
 */
#ifndef TESTS_RANDOM_GRAPHS_H
#define TESTS_RANDOM_GRAPHS_H

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
} program;

typedef bool draw_fn(program *p, rng *r, node *n, int which);
typedef tn_tensor *run_fn(const program *p, int i, tn_session *s, tn_tensor **v, int which);

typedef struct op_entry {
    const char *name;
    draw_fn *draw;
    run_fn *run;
    int which; /* of its family */
    int weight;
} op_entry;

enum { OP_LEAF, OP_INDEX };

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

static bool is_real(const program *p, int i)
{
    return tn_dtype_is_float(p->v[i].dtype);
}

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

enum { SAME, UNIT, DOMAIN_LOG, DOMAIN_POWER, EXP, SQUARED };
static const struct {
    tn_tensor *(*f)(tn_tensor *);
    int kind;
} unary[] = {
    {tn_neg, SAME},         {tn_abs, SAME},          {tn_relu, SAME},          {tn_gelu, SAME},
    {tn_gelu_tanh, SAME},   {tn_silu, SAME},         {tn_mish, SAME},          {tn_softplus, SAME},
    {tn_floor, SAME},       {tn_round, SAME},        {tn_trunc, SAME},         {tn_ceil, SAME},
    {tn_detach, SAME},      {tn_tanh, UNIT},         {tn_sigmoid, UNIT},       {tn_sin, UNIT},
    {tn_cos, UNIT},         {tn_erf, UNIT},          {tn_sign, UNIT},          {tn_log, DOMAIN_LOG},
    {tn_log1p, DOMAIN_LOG}, {tn_sqrt, DOMAIN_POWER}, {tn_rsqrt, DOMAIN_POWER}, {tn_reciprocal, DOMAIN_POWER},
    {tn_exp, EXP},          {tn_expm1, EXP},         {tn_square, SQUARED},     {tn_ndtr, UNIT}};

static bool draw_unary(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick(p, r);
    const node *x = &p->v[n->in[0]];
    int kind = unary[which].kind;
    shape_like(n, x);
    n->mag = kind == SAME      ? x->mag + 1
             : kind == UNIT    ? 1
             : kind == EXP     ? exp(x->mag)
             : kind == SQUARED ? x->mag * x->mag
                               : x->mag + 2;
    /* The sine of a large number is all rounding. */
    return !(kind == EXP && x->mag > 5) && !(kind == UNIT && x->mag > 100);
}

static tn_tensor *run_unary(const program *p, int i, tn_session *s, tn_tensor **v, int which)
{
    (void)s;
    tn_tensor *x = v[p->v[i].in[0]];
    bool domain = unary[which].kind == DOMAIN_LOG || unary[which].kind == DOMAIN_POWER;
    return unary[which].f(domain ? tn_add_scalar(tn_abs(x), 0.5) : x);
}

/* -- elementwise with numbers -- */

enum { ADD_NUMBER, MUL_NUMBER, RSUB_NUMBER, MAX_NUMBER, CLAMP, LEAKY, ELU, POWER, DROPOUT, SQUASH };

static bool draw_number(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick(p, r);
    shape_like(n, &p->v[n->in[0]]);
    n->f[0] = rng_real(r, 0.3, 1.7) * (which < CLAMP && rng_below(r, 2) ? -1 : 1);
    n->mag = which == POWER ? n->mag * n->mag * n->mag : which == SQUASH ? 2 : 2 * n->mag + 2;
    return true;
}

static tn_tensor *run_number(const program *p, int i, tn_session *s, tn_tensor **v, int which)
{
    (void)s;
    tn_tensor *x = v[p->v[i].in[0]];
    double c = p->v[i].f[0];
    switch (which) {
    case ADD_NUMBER:
        return tn_add_scalar(x, c);
    case MUL_NUMBER:
        return tn_mul_scalar(x, c);
    case RSUB_NUMBER:
        return tn_rsub_scalar(x, c);
    case MAX_NUMBER:
        return tn_maximum_scalar(x, c);
    case CLAMP:
        return tn_clamp(x, -c, c + 0.1);
    case LEAKY:
        return tn_leaky_relu(x, c / 10);
    case ELU:
        return tn_elu(x, c);
    case POWER:
        return tn_pow_scalar(x, 3);
    case DROPOUT:
        return tn_dropout(x, c / 4);
    default: /* brings large values back */
        return tn_div_scalar(x, p->v[p->v[i].in[0]].mag);
    }
}

/* -- elementwise, two operands and more -- */

enum { ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, CHOOSE, LERP, MASK };

static bool draw_binary(program *p, rng *r, node *n, int which)
{
    n->in[0] = pick(p, r);
    n->in[1] = partner(p, r, n->in[0]);
    if (n->in[1] < 0 || !broadcast_into(p, n, n->in[0], n->in[1])) return false;
    double a = p->v[n->in[0]].mag, b = p->v[n->in[1]].mag;
    n->mag = which == MUL ? a * b : which == DIV ? 2 * a : which == LERP ? 2 * a + b : a + b;
    return true;
}

static tn_tensor *run_binary(const program *p, int i, tn_session *s, tn_tensor **v, int which)
{
    (void)s;
    tn_tensor *x = v[p->v[i].in[0]], *y = v[p->v[i].in[1]];
    switch (which) {
    case ADD:
        return tn_add(x, y);
    case SUB:
        return tn_sub(x, y);
    case MUL:
        return tn_mul(x, y);
    case DIV:
        return tn_div(x, tn_add_scalar(tn_abs(y), 0.5));
    case MAXIMUM:
        return tn_maximum(x, y);
    case MINIMUM:
        return tn_minimum(x, y);
    case CHOOSE:
        return tn_where(tn_lt(x, y), tn_mul_scalar(x, 0.5), y);
    case LERP:
        return tn_lerp(x, y, tn_sigmoid(x));
    default:
        return tn_where(tn_logical_or(tn_gt_scalar(x, 0.1), tn_ge(y, x)), x, tn_neg(y));
    }
}

/* -- reductions and what normalises rows -- */

enum { SUM, MEAN, MAX, MIN, VAR, STD, LOGSUMEXP, ANY };

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

static tn_tensor *run_reduce(const program *p, int i, tn_session *s, tn_tensor **v, int which)
{
    (void)s;
    const node *n = &p->v[i];
    tn_tensor *x = v[n->in[0]];
    int axes[5], k = 0;
    for (int d = 0; d < p->v[n->in[0]].ndim; d++) {
        if (n->p[0] >> d & 1) axes[k++] = d;
    }
    bool keep = n->p[1];
    switch (which) {
    case SUM:
        return tn_sum(x, k, axes, keep);
    case MEAN:
        return tn_mean(x, k, axes, keep);
    case MAX:
        return tn_max(x, k, axes, keep);
    case MIN:
        return tn_min(x, k, axes, keep);
    case VAR:
        return tn_var(x, k, axes, keep, 1);
    case STD: /* away from the square root's pole */
        return tn_sqrt(tn_add_scalar(tn_var(x, k, axes, keep, 0), 0.1));
    case LOGSUMEXP:
        return tn_logsumexp(x, k, axes, keep);
    default:
        return tn_cast(tn_any(tn_gt_scalar(x, 0.7), k, axes, keep), p->dtype);
    }
}

enum { SOFTMAX, LOG_SOFTMAX, CUMSUM, LAYER_NORM, RMS_NORM, ARGMAX, GROUP };

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
                                    : 20;
    return true;
}

static tn_tensor *run_row(const program *p, int i, tn_session *s, tn_tensor **v, int which)
{
    (void)s;
    const node *n = &p->v[i];
    tn_tensor *x = v[n->in[0]], *w = n->in[1] < 0 ? NULL : v[n->in[1]],
              *b = n->in[2] < 0 ? NULL : v[n->in[2]];
    int axis = (int)n->p[0];
    switch (which) {
    case SOFTMAX:
        return tn_softmax(x, axis);
    case LOG_SOFTMAX:
        return tn_log_softmax(x, axis);
    case CUMSUM:
        return tn_cumsum(x, axis);
    case LAYER_NORM:
        return tn_layer_norm(x, w, b, .eps = 0.01);
    case RMS_NORM:
        return tn_rms_norm(x, w, .eps = 0.01);
    case ARGMAX:
        return tn_cast(tn_argmax(x, axis, true), p->dtype);
    default:
        return tn_group_norm(x, 1, NULL, NULL, .eps = 0.01);
    }
}

#include "random_shapes.h"

/* ---- leaves ---- */

static tn_tensor *run_leaf(const program *p, int i, tn_session *s, tn_tensor **v, int which)
{
    (void)v;
    const node *n = &p->v[i];
    static double data[MAX_ELEMENTS];
    rng r = {p->seed * 1000003u + (uint64_t)i};
    for (int64_t k = 0; k < elements(n); k++) {
        data[k] = which ? (double)rng_below(&r, n->p[0]) : rng_real(&r, -2, 2);
    }
    return tensor_of(s, data, n->dtype, n->ndim, n->shape);
}

static const op_entry ops[] = {
    {"leaf", NULL, run_leaf, 0, 0},
    {"index", NULL, run_leaf, 1, 0},
    {"neg", draw_unary, run_unary, 0, 2},
    {"abs", draw_unary, run_unary, 1, 2},
    {"relu", draw_unary, run_unary, 2, 4},
    {"gelu", draw_unary, run_unary, 3, 3},
    {"gelu_tanh", draw_unary, run_unary, 4, 2},
    {"silu", draw_unary, run_unary, 5, 2},
    {"mish", draw_unary, run_unary, 6, 1},
    {"softplus", draw_unary, run_unary, 7, 2},
    {"floor", draw_unary, run_unary, 8, 1},
    {"round", draw_unary, run_unary, 9, 1},
    {"trunc", draw_unary, run_unary, 10, 1},
    {"ceil", draw_unary, run_unary, 11, 1},
    {"detach", draw_unary, run_unary, 12, 1},
    {"tanh", draw_unary, run_unary, 13, 5},
    {"sigmoid", draw_unary, run_unary, 14, 4},
    {"sin", draw_unary, run_unary, 15, 3},
    {"cos", draw_unary, run_unary, 16, 3},
    {"erf", draw_unary, run_unary, 17, 2},
    {"sign", draw_unary, run_unary, 18, 1},
    {"log", draw_unary, run_unary, 19, 2},
    {"log1p", draw_unary, run_unary, 20, 2},
    {"sqrt", draw_unary, run_unary, 21, 2},
    {"rsqrt", draw_unary, run_unary, 22, 2},
    {"reciprocal", draw_unary, run_unary, 23, 2},
    {"exp", draw_unary, run_unary, 24, 3},
    {"expm1", draw_unary, run_unary, 25, 1},
    {"square", draw_unary, run_unary, 26, 3},
    {"ndtr", draw_unary, run_unary, 27, 1},
    {"add_scalar", draw_number, run_number, ADD_NUMBER, 3},
    {"mul_scalar", draw_number, run_number, MUL_NUMBER, 4},
    {"rsub_scalar", draw_number, run_number, RSUB_NUMBER, 2},
    {"maximum_scalar", draw_number, run_number, MAX_NUMBER, 2},
    {"clamp", draw_number, run_number, CLAMP, 2},
    {"leaky_relu", draw_number, run_number, LEAKY, 2},
    {"elu", draw_number, run_number, ELU, 2},
    {"pow_scalar", draw_number, run_number, POWER, 1},
    {"dropout", draw_number, run_number, DROPOUT, 3},
    {"squash", draw_number, run_number, SQUASH, 4},
    {"add", draw_binary, run_binary, ADD, 10},
    {"sub", draw_binary, run_binary, SUB, 6},
    {"mul", draw_binary, run_binary, MUL, 10},
    {"div", draw_binary, run_binary, DIV, 4},
    {"maximum", draw_binary, run_binary, MAXIMUM, 2},
    {"minimum", draw_binary, run_binary, MINIMUM, 2},
    {"where", draw_binary, run_binary, CHOOSE, 3},
    {"lerp", draw_binary, run_binary, LERP, 2},
    {"mask", draw_binary, run_binary, MASK, 2},
    {"sum", draw_reduce, run_reduce, SUM, 5},
    {"mean", draw_reduce, run_reduce, MEAN, 5},
    {"max", draw_reduce, run_reduce, MAX, 3},
    {"min", draw_reduce, run_reduce, MIN, 2},
    {"var", draw_reduce, run_reduce, VAR, 2},
    {"std", draw_reduce, run_reduce, STD, 2},
    {"logsumexp", draw_reduce, run_reduce, LOGSUMEXP, 2},
    {"any", draw_reduce, run_reduce, ANY, 1},
    {"softmax", draw_row, run_row, SOFTMAX, 4},
    {"log_softmax", draw_row, run_row, LOG_SOFTMAX, 2},
    {"cumsum", draw_row, run_row, CUMSUM, 2},
    {"layer_norm", draw_row, run_row, LAYER_NORM, 4},
    {"rms_norm", draw_row, run_row, RMS_NORM, 3},
    {"argmax", draw_row, run_row, ARGMAX, 1},
    {"group_norm", draw_row, run_row, GROUP, 1},
    {"reshape", draw_view, run_view, RESHAPE, 4},
    {"permute", draw_view, run_view, PERMUTE, 5},
    {"slice", draw_view, run_view, SLICE, 5},
    {"flip", draw_view, run_view, FLIP, 2},
    {"pad", draw_view, run_view, PAD, 3},
    {"expand", draw_view, run_view, EXPAND, 3},
    {"select", draw_view, run_view, SELECT, 2},
    {"contiguous", draw_view, run_view, CONTIGUOUS, 1},
    {"concat", draw_join, run_join, CONCAT, 3},
    {"stack", draw_join, run_join, STACK, 2},
    {"matmul", draw_matmul, run_matmul, 0, 4},
    {"matmul_t", draw_matmul, run_matmul, 1, 3},
    {"affine", draw_matmul, run_matmul, 2, 4},
    {"attention", draw_attention, run_attention, ATTENTION, 5},
    {"written_out", draw_attention, run_attention, WRITTEN_OUT, 5},
    {"conv2d", draw_image, run_image, CONV, 3},
    {"max_pool2d", draw_image, run_image, MAX_POOL, 2},
    {"avg_pool2d", draw_image, run_image, AVG_POOL, 2},
    {"index_select", draw_index, run_index, INDEX_SELECT, 3},
    {"gather", draw_index, run_index, GATHER, 2},
    {"scatter_add", draw_index, run_index, SCATTER_ADD, 2},
    {"embedding", draw_index, run_index, EMBEDDING, 2},
};
enum { N_OPS = sizeof ops / sizeof *ops };

/* ---- whole programs ---- */

static bool draw_node(program *p, rng *r)
{
    static int total;
    if (!total) {
        for (int i = 0; i < N_OPS; i++) total += ops[i].weight;
    }
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

static void draw_program(program *p, uint64_t seed)
{
    rng r = {seed};
    *p = (program){.seed = seed};
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
        for (int k = 0; k < 3; k++) {
            if (p->v[i].in[k] >= 0) used[p->v[i].in[k]] = true;
        }
    }
    for (int i = p->n - 1; i >= 0 && p->n_out < MAX_PROGRAM_OUT; i--) {
        if (ops[p->v[i].op].weight && (!used[i] || !rng_below(&r, 8))) p->out[p->n_out++] = i;
    }
    if (rng_below(&r, 3)) {
        for (int i = 0; i < p->n && p->n_wrt < MAX_WRT; i++) {
            if (p->v[i].op == OP_LEAF && rng_below(&r, 3)) p->wrt[p->n_wrt++] = i;
        }
    }
}

/* Which nodes the outputs and gradients need. */
static void live_nodes(const program *p, bool *live)
{
    memset(live, 0, MAX_NODES);
    for (int i = 0; i < p->n_out; i++) live[p->out[i]] = true;
    for (int i = 0; i < p->n_wrt; i++) live[p->wrt[i]] = true;
    for (int i = p->n - 1; i >= 0; i--) {
        for (int k = 0; live[i] && k < 3; k++) {
            if (p->v[i].in[k] >= 0) live[p->v[i].in[k]] = true;
        }
    }
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

#endif
