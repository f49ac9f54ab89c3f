/* reduce.c - reductions. Nodes keep reduced axes as extents of 1; dropping them is a view.
 * Start with reduced. */
#include <math.h>

#include "ops.h"

typedef tn_tensor *reduce_fn(tn_tensor *x, uint32_t mask, int64_t n, double extra);

static tn_tensor *reduced(const char *name, reduce_fn *fn, tn_tensor *x, int naxes, const int *axes,
                          bool keepdim, double extra, const char *file, int line)
{
    tn_scope sc =
        tn_enter_as(TN_ATTR_LIST(axes, naxes, naxes, keepdim, tn_bits(extra)), name, file, line, 1, 0, &x);
    uint32_t mask;
    if (!sc.ok || !axis_mask(x, naxes, axes, &mask)) return tn_leave(&sc, NULL);
    x = exact(x);
    tn_tensor *out = !x ? NULL : narrow(fn(x, mask, count_of(x, mask), extra), x->dtype);
    return tn_leave(&sc, keepdim ? out : drop_axes(out, mask));
}

/* The text of a kernel does not depend on how much a mean runs over. */
static tn_tensor *over(tn_tensor *x, double n) { return mul(x, num(x, ratio(1, n))); }

/* One row of ops.def. */
#define OF_A_ROW(name)                                                                                       \
    static tn_tensor *name(tn_tensor *x, uint32_t mask, int64_t n, double extra)                             \
    {                                                                                                        \
        (void)n, (void)extra;                                                                                \
        return tn_mk_reduce(TN_OP_reduce_##name, x, mask);                                                   \
    }
OF_A_ROW(sum)
OF_A_ROW(prod)
OF_A_ROW(max)
OF_A_ROW(min)

static tn_tensor *mean(tn_tensor *x, uint32_t mask, int64_t n, double extra)
{
    (void)extra;
    x = floating(x);
    return x ? over(total(x, mask), (double)n) : NULL;
}

/* k / (n - correction), or k / 0 where the correction leaves nothing to divide by: no estimate (NaN), or
 * infinity, as PyTorch. */
static tn_tensor *share(const tn_tensor *x, double k, int64_t n, double correction)
{
    return num(x, ratio(k, fmax((double)n - correction, 0)));
}

/* d var / dx = 2 (x - mean) / (n - correction) */
static bool var_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[0];
    gin[0] = mul(mul(wide(g), share(x, 2, r->whole[0], r->num[0])), sub(x, r->saved[0]));
    return gin[0] != NULL;
}

/* d std / dx = (x - mean) / std / (n - correction), 0 where all are equal: so is what is derived from it, as
 * there is no root of 0 in it. */
static bool std_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[0], *var = r->saved[1], *zero = constant(x, 0), *equal = eq(var, zero);
    tn_tensor *std = tn_mk1(TN_OP_sqrt, where(equal, constant(x, 1), var));
    tn_tensor *h = where(equal, zero, tn_mk2(TN_OP_div, sub(x, r->saved[0]), std));
    gin[0] = mul(mul(wide(g), share(x, 1, r->whole[0], r->num[0])), h);
    return gin[0] != NULL;
}

/* The mean in f64, of equal elements these to the last bit. A sum of n equal f32 is exact in f64, and so is
 * its nth part, but not its product with 1/n. A mean of f64 is moved by that of the distances from it, which
 * is what its rounding was. */
static tn_tensor *centre(tn_tensor *x, uint32_t mask, int64_t n)
{
    tn_tensor *sum = total(tn_mk_cast(x, TN_F64), mask), *mean = tn_mk2(TN_OP_div, sum, num(sum, (double)n));
    if (x->dtype != TN_F64) return mean;
    return add(mean, tn_mk2(TN_OP_div, total(sub(x, mean), mask), num(sum, (double)n)));
}

/* Two passes, both of f64: the mean, then the squared distances from it. In f32 a mean far from 0 would take
 * digits from the distances, and squares end at 1e38 and 1e-45. */
static tn_tensor *spread(tn_tensor *x, uint32_t mask, int64_t n, double correction, bool root)
{
    x = floating(x);
    if (!x) return NULL;
    uint32_t first = x->graph->n_nodes;
    tn_tensor *mean = centre(x, mask, n);
    tn_tensor *var = mul(total(square(sub(x, mean)), mask), share(x, 1, n, correction));
    tn_tensor *rounded = tn_mk_cast(root ? tn_mk1(TN_OP_sqrt, var) : var, x->dtype);
    tn_rule *r = tn_rule_set(rounded, first, root ? std_rule : var_rule, 1, &x);
    if (!r) return NULL;
    r->whole[0] = n;
    r->num[0] = correction;
    tn_rule_save(r, 0, mean);
    if (root) tn_rule_save(r, 1, var);
    return rounded;
}

static tn_tensor *var(tn_tensor *x, uint32_t mask, int64_t n, double correction)
{
    return spread(x, mask, n, correction, false);
}

static tn_tensor *std(tn_tensor *x, uint32_t mask, int64_t n, double correction)
{
    return spread(x, mask, n, correction, true);
}

/* d logsumexp / dx = exp(x - out), whatever the maximum was; out before it was rounded to 16 bits, where it
 * was. */
static bool logsumexp_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *out = r->saved[0] ? r->saved[0] : r->out;
    tn_tensor *p = tn_mk1(TN_OP_exp, sub(wide(r->args[0]), out));
    return (gin[0] = mul(wide(g), p)) != NULL;
}

/* m + ln sum e^(x - m). A row of -inf alone gives -inf: the maximum is taken as 0 where it is infinite. So
 * does a row of nothing, which has no maximum. */
static tn_tensor *logsumexp(tn_tensor *x, uint32_t mask, int64_t n, double extra)
{
    (void)extra;
    x = floating(x);
    if (!x) return NULL;
    if (!n) return tn_mk1(TN_OP_log, total(tn_mk1(TN_OP_exp, x), mask));
    tn_graph *g = x->graph;
    uint32_t first = g->n_nodes;
    tn_tensor *xf = wide(x), *m = tn_mk_reduce(TN_OP_reduce_max, xf, mask);
    m = where(tn_mk1(TN_OP_isfinite, m), m, tn_mk_num(g, 0));
    tn_tensor *s = total(tn_mk1(TN_OP_exp, sub(xf, m)), mask);
    tn_tensor *exact = add(tn_mk1(TN_OP_log, s), m), *out = narrow(exact, x->dtype);
    tn_rule *r = tn_rule_set(out, first, logsumexp_rule, 1, &x);
    if (r && out != exact) tn_rule_save(r, 0, exact);
    return out;
}

/* Returns the result of any (false) or all (true) of no elements. */
static tn_tensor *of_nothing(const tn_tensor *x, uint32_t mask, bool value)
{
    int64_t shape[TN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) shape[i] = mask >> i & 1 ? 1 : x->shape[i];
    tn_tensor *v = tn_mk_typed(x->graph, TN_OP_constant, tn_number_i(value), TN_BOOL);
    return tn_mk_contiguous(tn_mk_expand(v, x->ndim, shape));
}

static tn_tensor *any(tn_tensor *x, uint32_t mask, int64_t n, double extra)
{
    (void)extra;
    return n ? tn_mk_reduce(TN_OP_reduce_max, tn_mk_cast(x, TN_BOOL), mask) : of_nothing(x, mask, false);
}

static tn_tensor *all(tn_tensor *x, uint32_t mask, int64_t n, double extra)
{
    (void)extra;
    return n ? tn_mk_reduce(TN_OP_reduce_min, tn_mk_cast(x, TN_BOOL), mask) : of_nothing(x, mask, true);
}

#define REDUCTION(name)                                                                                      \
    TN_AT(tn_tensor *, name, (x, naxes, axes, keepdim), tn_tensor *x, int naxes, const int *axes,            \
          bool keepdim)                                                                                      \
    {                                                                                                        \
        return reduced(#name, name, x, naxes, axes, keepdim, 0, file, line);                                 \
    }
REDUCTION(sum)
REDUCTION(mean)
REDUCTION(prod)
REDUCTION(max)
REDUCTION(min)
REDUCTION(logsumexp)
REDUCTION(any)
REDUCTION(all)

#define SPREAD(name)                                                                                         \
    TN_AT(tn_tensor *, name, (x, naxes, axes, keepdim, correction), tn_tensor *x, int naxes,                 \
          const int *axes, bool keepdim, int correction)                                                     \
    {                                                                                                        \
        return reduced(#name, name, x, naxes, axes, keepdim, correction, file, line);                        \
    }
SPREAD(var)
SPREAD(std)

static tn_tensor *arg(const char *name, tn_op op, tn_tensor *x, int axis, bool keepdim, const char *file,
                      int line)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, keepdim), name, file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    tn_tensor *out = tn_mk_reduce(op, x, 1u << a);
    return tn_leave(&sc, keepdim ? out : drop_axes(out, 1u << a));
}

TN_AT(tn_tensor *, argmax, (x, axis, keepdim), tn_tensor *x, int axis, bool keepdim)
{
    return arg("argmax", TN_OP_reduce_argmax, x, axis, keepdim, file, line);
}

TN_AT(tn_tensor *, argmin, (x, axis, keepdim), tn_tensor *x, int axis, bool keepdim)
{
    return arg("argmin", TN_OP_reduce_argmin, x, axis, keepdim, file, line);
}

#define TN_SCAN(name, ...)                                                                                   \
    TN_AT(tn_tensor *, name, (x, axis), tn_tensor *x, int axis)                                              \
    {                                                                                                        \
        tn_scope sc = tn_enter_as(TN_ATTR(axis), #name, file, line, 1, 0, &x);                               \
        int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;                                                         \
        return tn_leave(&sc, a < 0 ? NULL : tn_mk_scan(TN_OP_##name, x, a, false));                          \
    }
#include "../core/ops.def"
