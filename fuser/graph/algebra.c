/* algebra.c - values that exist already, bit for bit, and numbers that can be worked out here.
 *
 * Only what IEEE arithmetic keeps exactly: x * 1, x / 1, x - 0, x + -0, x^1, the negative of a negative, the
 * larger of x and x, a cast there and back through a type that holds every value, what has been rounded or
 * cut off already. Not x + 0, which makes 0 of -0, nor x * 0 or x - x, which are NaN for some x. Of x * -1
 * and x / -1 there is no value yet, but x has it with the other sign.
 *
 * A run-time number of 1, 0 or -1 is taken for a constant under a guard: the plan then serves no other value
 * of it (tn_plan_serves), and once a second one has been seen none of the segment's numbers is folded any
 * more (tn_segment.unguarded).
 *
 * Rows of constants alone are worked out in f64 and rounded once, where that is what a kernel would get.
 *
 * Start with fu_algebra. */
#include <math.h>
#include <string.h>

#include "graph.h"

/* ---- numbers ---- */

static bool guard(fu_ctx *c, const tn_tensor *x)
{
    tn_plan *p = c->plan;
    int leaf = (int)x->slot - c->n_node;
    for (int i = 0; i < p->n_guard; i++)
        if (p->guard[i].leaf == leaf) return true;
    if (p->n_guard == c->cap_guard) {
        int cap = c->cap_guard ? 2 * c->cap_guard : 8;
        tn_guard *list = tn_arena_alloc(&p->arena, (size_t)cap * sizeof *list);
        if (!list) return false;
        if (p->n_guard) memcpy(list, p->guard, (size_t)p->n_guard * sizeof *list);
        p->guard = list;
        c->cap_guard = cap;
    }
    p->guard[p->n_guard++] = (tn_guard){leaf, x->base->attr->number};
    return true;
}

static bool has_sign(const tn_number *v) { return !v->is_int && signbit(v->f); }

bool fu_is_number(fu_ctx *c, const tn_tensor *t, int k, double v, int *status)
{
    const tn_tensor *x = fu_value_of(c, t->in[k]);
    if (!tn_is_number(x)) return false;
    const tn_number *n = &x->base->attr->number;
    bool whole = !tn_dtype_is_float(x->dtype);
    double now = n->is_int ? (double)n->i : n->f;
    if (now != v || (v == 0 && !whole && has_sign(n) != (signbit(v) != 0))) return false;
    if (x->base->op == TN_OP_constant) return true;
    int64_t leaf = x->slot - c->n_node;
    if (c->seg->unguarded || leaf < 0 || leaf >= c->n_leaf || c->seg->leaf[leaf] != x) return false;
    if (!guard(c, x)) *status = TN_E_NOMEM;
    return !*status;
}

/* ---- rows of constants ---- */

#define K(v)         (v)
#define tn_abs(x)    fabs(x)
#define tn_sqrt(x)   sqrt(x)
#define tn_floor(x)  floor(x)
#define tn_ceil(x)   ceil(x)
#define tn_round(x)  nearbyint(x)
#define tn_trunc(x)  trunc(x)
#define tn_sign(x)   ((double)((x) > 0) - ((x) < 0))
#define tn_max(x, y) ((x) > (y) ? (x) : (y))
#define tn_min(x, y) ((x) < (y) ? (x) : (y))
/* Those whose last bit is the device's own are not worked out here: not a number, whatever x is. */
#define OWN(x)         ((x)*NAN)
#define tn_exp(x)      OWN(x)
#define tn_log(x)      OWN(x)
#define tn_log1p(x)    OWN(x)
#define tn_expm1(x)    OWN(x)
#define tn_rsqrt(x)    OWN(x)
#define tn_sin(x)      OWN(x)
#define tn_cos(x)      OWN(x)
#define tn_atan(x)     OWN(x)
#define tn_tanh(x)     OWN(x)
#define tn_erf(x)      OWN(x)
#define tn_ndtr(x)     OWN(x)
#define tn_sigmoid(x)  OWN(x)
#define tn_pow(x, y)   OWN((x) + (y))
#define tn_isfinite(x) (isfinite(x) != 0)

static double row(tn_op op, double first, double y, double z)
{
    switch (op) {
#define TN_UNARY(name, type, expression, ...)                                                                \
    case TN_OP_##name: {                                                                                     \
        const double x = first;                                                                              \
        return expression;                                                                                   \
    }
#define TN_BINARY(name, type, expression, ...)                                                               \
    case TN_OP_##name: {                                                                                     \
        const double x = first;                                                                              \
        return expression;                                                                                   \
    }
#define TN_TERNARY(name, type, expression, ...)                                                              \
    case TN_OP_##name: {                                                                                     \
        const bool x = first != 0;                                                                           \
        return expression;                                                                                   \
    }
#define TN_OTHER(name, ...) case TN_OP_##name:
#include "../../src/core/ops.def"
    case TN_OP_COUNT: break;
    }
    return NAN;
}

enum { DIGITS = 53 }; /* integers below 2^53 are exact in f64; 2^53 may have been one more */

/* v as a number of type d, or false: it is not one exactly (an integer that wraps), or f16 and bf16, which
 * kernels round only when they write. */
static bool settle(double v, tn_dtype d, tn_number *out)
{
    if (!isfinite(v)) return false;
    switch (d) {
    case TN_F32:
        v = (double)(float)v;
        *out = (tn_number){.f = v};
        return isfinite(v) != 0;
    case TN_F64: *out = (tn_number){.f = v}; return true;
    case TN_I32:
    case TN_I64:
    case TN_U8:
    case TN_BOOL: {
        double high = d == TN_I32 ? INT32_MAX : d == TN_I64 ? ldexp(1, DIGITS) - 1 : d == TN_U8 ? 255 : 1;
        double low = d == TN_I32 || d == TN_I64 ? -high : 0;
        if (v != trunc(v) || v < low || v > high) return false;
        *out = (tn_number){.f = v, .i = (int64_t)v, .is_int = true};
        return true;
    }
    case TN_F16:
    case TN_BF16:
    case TN_DTYPE_COUNT: break;
    }
    return false;
}

static const tn_tensor *spread(fu_ctx *c, const tn_tensor *like, tn_number v)
{
    tn_tensor *t = tn_arena_alloc(&c->arena, 2 * sizeof *t), *n = t + 1;
    tn_attr *a = tn_arena_alloc(&c->arena, sizeof *a);
    if (!t || !a) return NULL;
    a->number = v;
    *n = (tn_tensor){.graph = like->graph, .op = TN_OP_constant, .dtype = like->dtype, .attr = a, .slot = -1};
    n->base = n;
    n->in = n->in_;
    *t = (tn_tensor){.graph = like->graph, .op = TN_OP_expand, .dtype = like->dtype, .ndim = like->ndim};
    memcpy(t->shape, like->shape, sizeof t->shape);
    t->slot = -1;
    t->base = n;
    t->in = t->in_;
    t->n_in = 1;
    t->in_[0] = n;
    return t;
}

/* A row or a cast of constants. */
static const tn_tensor *work_out(fu_ctx *c, const tn_tensor *t, int *status)
{
    double x[3] = {0};
    if (!t->n_in || t->n_in > 3) return NULL;
    for (int k = 0; k < t->n_in; k++) {
        const tn_tensor *o = fu_value_of(c, t->in[k]);
        tn_number v;
        if (o->base->op != TN_OP_constant) return NULL;
        const tn_number *n = &o->base->attr->number;
        if (!settle(n->is_int ? (double)n->i : n->f, o->dtype, &v)) return NULL;
        x[k] = v.f;
    }
    tn_number v;
    bool cast = t->op == TN_OP_cast;
    double value = !cast ? row(t->op, x[0], x[1], x[2]) : t->dtype == TN_BOOL ? x[0] != 0 : x[0];
    if (cast && !tn_dtype_is_float(t->dtype)) value = trunc(value);
    if (!settle(value, t->dtype, &v)) return NULL;
    const tn_tensor *made = spread(c, t, v);
    if (!made) *status = TN_E_NOMEM;
    return made;
}

/* ---- what is there already ---- */

/* The node behind operand k, if that is its value as it is. */
static const tn_tensor *maker(const fu_ctx *c, const tn_tensor *t, int k)
{
    const tn_tensor *x = fu_value_of(c, t->in[k]);
    return x->base == x && fu_node_of(c, x) >= 0 ? x : NULL;
}

/* Returns true where every value of dtype a is also a value of dtype b, so that a cast to b and back changes
 * nothing. */
static bool holds(tn_dtype b, tn_dtype a)
{
    /* bits of the integers, or of the significand, that a value can have; and whether exponents fit */
    static const int bits[TN_DTYPE_COUNT] = {[TN_F32] = 24, [TN_F16] = 11, [TN_BF16] = 8, [TN_F64] = 53,
                                             [TN_I32] = 32, [TN_I64] = 64, [TN_U8] = 8,   [TN_BOOL] = 1};
    bool from = tn_dtype_is_float(a), to = tn_dtype_is_float(b);
    if (from && (!to || b == TN_F16 || b == TN_BF16)) return a == b;
    if (!from && to) return bits[b] >= bits[a];
    return bits[b] >= bits[a];
}

/* Rows that leave alone what they have made themselves. */
static bool settles(tn_op op)
{
    return op == TN_OP_abs || op == TN_OP_relu || op == TN_OP_floor || op == TN_OP_ceil ||
           op == TN_OP_round || op == TN_OP_trunc || op == TN_OP_sign;
}

static const tn_tensor *of_row(fu_ctx *c, const tn_tensor *t, int *status)
{
    const tn_tensor *x = fu_value_of(c, t->in[0]), *from = maker(c, t, 0);
    if (from && from->op == t->op && t->op == TN_OP_neg) return fu_value_of(c, from->in[0]);
    if (from && from->op == t->op && settles(t->op)) return from;
    switch (t->op) {
    case TN_OP_mul:
        return fu_is_number(c, t, 1, 1, status)   ? x
               : fu_is_number(c, t, 0, 1, status) ? fu_value_of(c, t->in[1])
                                                  : NULL;
    case TN_OP_div:
    case TN_OP_pow: return fu_is_number(c, t, 1, 1, status) ? x : NULL;
    case TN_OP_sub: return fu_is_number(c, t, 1, 0, status) ? x : NULL;
    case TN_OP_add: {
        double nothing = tn_dtype_is_float(t->dtype) ? -0.0 : 0;
        return fu_is_number(c, t, 1, nothing, status)   ? x
               : fu_is_number(c, t, 0, nothing, status) ? fu_value_of(c, t->in[1])
                                                        : NULL;
    }
    case TN_OP_maximum:
    case TN_OP_minimum: return x == fu_value_of(c, t->in[1]) ? x : NULL;
    case TN_OP_where: {
        const tn_tensor *y = fu_value_of(c, t->in[1]);
        return y == fu_value_of(c, t->in[2]) ? y : NULL;
    }
    default: return NULL;
    }
}

static const tn_tensor *candidate(fu_ctx *c, int i, int *status)
{
    const tn_tensor *t = c->node[i].t, *made, *from, *x;
    switch (c->node[i].kind) {
    case TN_KIND_ELTWISE: made = of_row(c, t, status); return made || *status ? made : work_out(c, t, status);
    case TN_KIND_CAST:
        from = maker(c, t, 0);
        if (from && from->op == TN_OP_cast) {
            x = fu_value_of(c, from->in[0]);
            if (x->dtype == t->dtype && holds(from->dtype, t->dtype)) return x;
        }
        return work_out(c, t, status);
    case TN_KIND_VIEW: /* a copy of what is dense */
        x = t->op == TN_OP_contiguous ? fu_value_of(c, t->in[0]) : NULL;
        return x && tn_node_is_dense(x) && !tn_is_number(x) ? x : NULL;
    default: return NULL;
    }
}

const tn_tensor *fu_algebra(fu_ctx *c, int i, int *status)
{
    int guards = c->plan->n_guard;
    const tn_tensor *t = c->node[i].t, *x = candidate(c, i, status);
    if (x && !*status && tn_same_type(x, t) && fu_lasting(c, x)) return x;
    c->plan->n_guard = guards;
    return NULL;
}

const tn_tensor *fu_negated(fu_ctx *c, int i, int *status)
{
    const tn_tensor *t = c->node[i].t;
    if ((t->op != TN_OP_mul && t->op != TN_OP_div) || !tn_dtype_is_float(t->dtype)) return NULL;
    for (int k = 1; k >= (t->op == TN_OP_mul ? 0 : 1); k--) {
        const tn_tensor *x = fu_value_of(c, t->in[1 - k]);
        if (tn_same_type(x, t) && fu_is_number(c, t, k, -1, status)) return x;
    }
    return NULL;
}
