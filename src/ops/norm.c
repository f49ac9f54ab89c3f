/* norm.c - softmax, normalisations, dropout: composites over rows of ops.def.
 *
 * Where the gradient derived node by node would read more than it must, a composite carries its own rule,
 * written in the same builder calls. Start with softmax and its rule. */
#include <math.h>
#include <string.h>

#include "../../include/tensor_extend.h"
#include "ops.h"

/* ---- softmax ---- */

/* y = softmax(x): dx = y (g - sum(g y)) */
static bool softmax_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *y = wide(r->out);
    g = wide(g);
    gin[0] = mul(y, sub(g, total(mul(g, y), (uint32_t)r->whole[0])));
    return gin[0] != NULL;
}

/* x, but `instead` where it is v. */
static tn_tensor *in_place_of(double v, tn_tensor *x, double instead)
{
    return x ? where(eq(x, constant(x, v)), constant(x, instead), x) : NULL;
}

static tn_tensor *softmax_as(tn_tensor *x, int axis, bool or_zero)
{
    x = floating(x);
    if (!x) return NULL;
    if (!x->shape[axis]) return tn_mk1(TN_OP_exp, x); /* no elements, which have no maximum */
    uint32_t first = x->graph->n_nodes, mask = 1u << axis;
    tn_tensor *xf = wide(x), *most = tn_mk_reduce(TN_OP_reduce_max, xf, mask);
    tn_tensor *e = tn_mk1(TN_OP_exp, sub(xf, or_zero ? in_place_of(-INFINITY, most, 0) : most));
    tn_tensor *sum = total(e, mask);
    tn_tensor *out =
        mul(e, tn_mk1(TN_OP_reciprocal, or_zero ? in_place_of(0, sum, 1) : sum)); /* one division a row */
    out = narrow(out, x->dtype);
    tn_rule *r = tn_rule_set(out, first, softmax_rule, 1, &x);
    if (!r) return NULL;
    r->whole[0] = mask;
    tn_rule_save(r, 0, out);
    return out;
}

tn_tensor *tn_softmax_of(tn_tensor *x, int axis) { return softmax_as(x, axis, false); }

tn_tensor *tn_softmax_or_zero_of(tn_tensor *x, int axis) { return softmax_as(x, axis, true); }

bool tn_is_softmax(const tn_tensor *x, int axis)
{
    return x->rule && x->rule->fn == softmax_rule && x->rule->whole[0] == 1 << axis;
}

/* y = log softmax(x): dx = g - e^y sum(g). A y of 16 bits is too coarse to take e^y of: it is made again,
 * from each row's saved largest element and logarithm. */
static bool log_softmax_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *y = r->saved[1] ? sub(sub(wide(r->args[0]), r->saved[0]), r->saved[1]) : r->out;
    g = wide(g);
    gin[0] = sub(g, mul(tn_mk1(TN_OP_exp, y), total(g, (uint32_t)r->whole[0])));
    return gin[0] != NULL;
}

tn_tensor *tn_log_softmax_of(tn_tensor *x, int axis)
{
    x = floating(x);
    if (!x) return NULL;
    if (!x->shape[axis]) return tn_mk1(TN_OP_exp, x); /* no elements, which have no maximum */
    uint32_t first = x->graph->n_nodes, mask = 1u << axis;
    tn_tensor *xf = wide(x), *most = tn_mk_reduce(TN_OP_reduce_max, xf, mask), *d = sub(xf, most);
    tn_tensor *log_sum = tn_mk1(TN_OP_log, total(tn_mk1(TN_OP_exp, d), mask));
    tn_tensor *exact = sub(d, log_sum), *out = narrow(exact, x->dtype);
    tn_rule *r = tn_rule_set(out, first, log_softmax_rule, 1, &x);
    if (!r) return NULL;
    r->whole[0] = mask;
    tn_rule_save(r, 0, out == exact ? out : most);
    if (out != exact) tn_rule_save(r, 1, log_sum);
    return out;
}

#define ALONG_AXIS(name, of)                                                                                 \
    TN_AT(tn_tensor *, name, (x, axis), tn_tensor *x, int axis)                                              \
    {                                                                                                        \
        tn_scope sc = tn_enter_as(TN_ATTR(axis), #name, file, line, 1, 0, &x);                               \
        int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;                                                         \
        return tn_leave(&sc, a < 0 ? NULL : of(exact(x), a));                                                \
    }
ALONG_AXIS(softmax, tn_softmax_of)
ALONG_AXIS(log_softmax, tn_log_softmax_of)

/* ---- layer_norm, rms_norm, group_norm ---- */

typedef struct norm_args {
    double eps, momentum;
    int ndim;
} norm_args;

/* False with the error set where a number means nothing. */
static bool norm_defaults(tn_graph *g, const tn_norm_options *o, norm_args *a)
{
    *a = (norm_args){1e-5, 0.1, 0};
    if (o && o->eps != 0) a->eps = o->eps;
    if (o && o->momentum != 0) a->momentum = o->momentum;
    if (o) a->ndim = o->ndim;
    if (!(a->eps > 0 && isfinite(a->eps)))
        return tn_error_set(g, TN_E_ARG, "eps is %g, must be finite and not negative", a->eps) != NULL;
    if (!(a->momentum >= 0 && a->momentum <= 1))
        return tn_error_set(g, TN_E_ARG, "momentum is %g, must be in [0, 1]", a->momentum) != NULL;
    return true;
}

/* Weight and bias of a norm over x's trailing axes broadcast by themselves; their shapes are checked here so
 * that the error is in the norm's terms. */
static bool fits_trailing(const tn_tensor *x, const tn_tensor *w, int ndim, const char *what)
{
    if (!w) return true;
    bool ok = w->ndim == ndim;
    for (int i = 0; i < ndim && ok; i++) ok = w->shape[i] == x->shape[x->ndim - ndim + i];
    if (ok) return true;
    tn_error_set(x->graph, TN_E_SHAPE, "%s %s does not match the last %d axes of x %s", what,
                 TN_TENSOR_TEXT(w), ndim, TN_TENSOR_TEXT(x));
    return false;
}

/* (x - mean) rstd over the axes in mask. The mean and the inverse deviation of each row are small and saved.
 * The mean is moved by that of the distances from it, which is what its rounding was: equal elements give 0.
 */
static tn_tensor *standardise(tn_tensor *x, uint32_t mask, double eps, tn_tensor **mean, tn_tensor **rstd)
{
    if (!x) return NULL;
    double n = (double)count_of(x, mask);
    *mean = mul(total(x, mask), num(x, 1 / n));
    tn_tensor *d = sub(x, *mean);
    tn_tensor *off = *mean ? mul(total(d, mask), num(x, 1 / n)) : NULL;
    tn_tensor *var = off ? sub(mul(total(square(d), mask), num(x, 1 / n)), square(off)) : NULL;
    *mean = add(*mean, off);
    *rstd =
        var ? tn_mk1(TN_OP_rsqrt, add(tn_mk2(TN_OP_maximum, var, constant(x, 0)), constant(x, eps))) : NULL;
    return mul(sub(x, *mean), *rstd);
}

/* With h = (x - mean) rstd and u = g w: dx = rstd (u - mean(u) - h mean(u h)), dw = sum(g h), db = sum(g). */
static tn_tensor *standardise_back(tn_tensor *h, tn_tensor *u, tn_tensor *rstd, uint32_t mask)
{
    if (!h || !u) return NULL;
    tn_tensor *n = num(h, 1 / (double)count_of(h, mask));
    tn_tensor *a = mul(total(u, mask), n), *b = mul(total(mul(u, h), mask), n);
    return mul(rstd, sub(sub(u, a), mul(h, b)));
}

/* Undoes the broadcast of a weight whose axes are those of `like`, aligned at the end. Those of the axes that
 * the norm itself runs over come first: the pass that sums along them has these sums at hand. */
static tn_tensor *sum_to(tn_tensor *g, const tn_tensor *like, uint32_t normed)
{
    if (!g) return NULL;
    uint32_t mask = 0;
    int lead = g->ndim - like->ndim;
    for (int i = 0; i < g->ndim; i++)
        if (i < lead || (like->shape[i - lead] == 1 && g->shape[i] != 1)) mask |= 1u << i;
    if (mask & normed) g = total(g, mask & normed);
    return tn_mk_reshape(total(g, mask & ~normed), like->ndim, like->shape);
}

/* k trailing axes of x, as the option says or, where there is one, as weight has. */
static tn_tensor *no_such_axes(tn_graph *g, int k, const tn_tensor *x, const tn_tensor *weight)
{
    char a[128];
    tn_tensor_text(a, sizeof a, x);
    if (!weight)
        return tn_error_set(g, TN_E_ARG, "x is %s, which has no %d trailing axes to normalise over", a, k);
    return tn_error_set(g, TN_E_ARG, "weight %s does not fit x %s: wanted the shape of x's trailing axes",
                        TN_TENSOR_TEXT(weight), a);
}

static bool layer_norm_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[0], *w = r->args[1], *b = r->args[2];
    tn_tensor *h = mul(sub(wide(x), r->saved[0]), r->saved[1]);
    g = wide(g);
    if (x->flags & TN_F_REQUIRES_GRAD)
        gin[0] = standardise_back(h, w ? mul(g, wide(w)) : g, r->saved[1], (uint32_t)r->whole[0]);
    if (w && w->flags & TN_F_REQUIRES_GRAD) gin[1] = sum_to(mul(g, h), w, (uint32_t)r->whole[0]);
    if (b && b->flags & TN_F_REQUIRES_GRAD) gin[2] = sum_to(g, b, (uint32_t)r->whole[0]);
    return !x->graph->error.status;
}

/* The last step of all norms: scale and shift, where weight and bias may be NULL, in x's dtype. */
static tn_tensor *scaled(tn_tensor *h, tn_tensor *weight, tn_tensor *bias, const tn_tensor *x)
{
    if (weight) h = mul(h, wide(weight));
    if (bias) h = add(h, wide(bias));
    return tn_mk_cast(h, x->dtype);
}

/* Standardised over the axes of mask, scaled and shifted; weight and bias broadcast. */
static tn_tensor *normalise(tn_tensor *x, uint32_t mask, double eps, tn_tensor *weight, tn_tensor *bias)
{
    if (!x) return NULL;
    uint32_t first = x->graph->n_nodes;
    tn_tensor *mean = NULL, *rstd = NULL,
              *out = scaled(standardise(wide(x), mask, eps, &mean, &rstd), weight, bias, x);
    tn_rule *r = tn_rule_set(out, first, layer_norm_rule, 3, (tn_tensor *[]){x, weight, bias});
    if (!r) return NULL;
    r->whole[0] = mask;
    tn_rule_save(r, 0, mean);
    tn_rule_save(r, 1, rstd);
    return out;
}

/* The mask of the trailing axes that o, or else weight and bias, say; 0 and the error where they do not fit.
 */
static uint32_t trailing(tn_graph *g, const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias,
                         const tn_norm_options *options, norm_args *o)
{
    if (!norm_defaults(g, options, o)) return 0;
    const int k = o->ndim ? o->ndim : weight ? weight->ndim : 1;
    if (k < 1 || k > x->ndim)
        no_such_axes(g, k, x, o->ndim ? NULL : weight);
    else if (fits_trailing(x, weight, k, "weight") && fits_trailing(x, bias, k, "bias"))
        return ((1u << k) - 1) << (x->ndim - k);
    return 0;
}

TN_AT(tn_tensor *, layer_norm, (x, weight, bias, options), tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
      const tn_norm_options *options)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, 0), "layer_norm", file, line, 1, 2, &x, &weight, &bias);
    norm_args o;
    const uint32_t mask = sc.ok ? trailing(sc.g, x, weight, bias, options, &o) : 0;
    return tn_leave(&sc, mask ? normalise(floating(x), mask, o.eps, weight, bias) : NULL);
}

/* h = x rstd, u = g w: dx = rstd (u - h mean(u h)) */
static bool rms_norm_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[0], *w = r->args[1], *rstd = r->saved[0], *h = mul(wide(x), rstd);
    uint32_t mask = (uint32_t)r->whole[0];
    g = wide(g);
    if (x->flags & TN_F_REQUIRES_GRAD) {
        tn_tensor *u = w ? mul(g, wide(w)) : g, *n = num(x, 1 / (double)count_of(x, mask));
        gin[0] = mul(rstd, sub(u, mul(h, mul(total(mul(u, h), mask), n))));
    }
    if (w && w->flags & TN_F_REQUIRES_GRAD) gin[1] = sum_to(mul(g, h), w, mask);
    return !x->graph->error.status;
}

TN_AT(tn_tensor *, rms_norm, (x, weight, options), tn_tensor *x, tn_tensor *weight,
      const tn_norm_options *options)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, 0), "rms_norm", file, line, 1, 1, &x, &weight);
    norm_args o;
    const uint32_t mask = sc.ok ? trailing(sc.g, x, weight, NULL, options, &o) : 0,
                   first = sc.ok ? sc.g->n_nodes : 0;
    x = mask ? floating(x) : NULL;
    tn_tensor *xf = x ? wide(x) : NULL;
    if (!xf) return tn_leave(&sc, NULL);
    tn_tensor *ms = mul(total(square(xf), mask), num(xf, 1 / (double)count_of(xf, mask)));
    tn_tensor *rstd = tn_mk1(TN_OP_rsqrt, add(ms, constant(x, o.eps)));
    tn_tensor *out = scaled(mul(xf, rstd), weight, NULL, x);
    tn_rule *r = tn_rule_set(out, first, rms_norm_rule, 2, (tn_tensor *[]){x, weight});
    if (!r) return tn_leave(&sc, NULL);
    r->whole[0] = mask;
    tn_rule_save(r, 0, rstd);
    return tn_leave(&sc, out);
}

TN_AT(tn_tensor *, group_norm, (x, groups, weight, bias, options), tn_tensor *x, int groups,
      tn_tensor *weight, tn_tensor *bias, const tn_norm_options *options)
{
    tn_scope sc =
        tn_enter_as(TN_ATTR_STRUCT(options, groups), "group_norm", file, line, 1, 2, &x, &weight, &bias);
    norm_args o;
    if (!sc.ok || !norm_defaults(sc.g, options, &o)) return tn_leave(&sc, NULL);
    int64_t c = x->ndim ? x->shape[x->ndim - 1] : 0;
    if (x->ndim < 2 || x->ndim == TN_MAX_DIMS || groups < 1 || c % groups)
        return tn_leave_error(&sc, TN_E_SHAPE, "%d groups of the last axis of %s", groups, TN_TENSOR_TEXT(x));
    if (!fits_trailing(x, weight, 1, "weight") || !fits_trailing(x, bias, 1, "bias"))
        return tn_leave(&sc, NULL);
    int n = x->ndim;
    int64_t split[TN_MAX_DIMS], affine[2] = {groups, c / groups};
    memcpy(split, x->shape, sizeof split);
    split[n - 1] = groups;
    split[n] = c / groups;
    uint32_t mask = (((1u << (n - 1)) - 1) & ~1u) | 1u << n; /* the axes between, and within the group */
    tn_tensor *xf = tn_mk_reshape(floating(x), n + 1, split);
    if (weight) weight = tn_mk_reshape(weight, 2, affine);
    if (bias) bias = tn_mk_reshape(bias, 2, affine);
    return tn_leave(&sc, tn_mk_reshape(normalise(xf, mask, o.eps, weight, bias), n, x->shape));
}

/* ---- batch_norm ---- */

static bool batch_norm_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[0], *w = r->args[1], *b = r->args[2], *mean = r->saved[0], *rstd = r->saved[1];
    tn_tensor *h = mul(sub(wide(x), mean), rstd);
    uint32_t mask = (uint32_t)r->whole[0];
    g = wide(g);
    tn_tensor *sg = total(g, mask), *sgh = total(mul(g, h), mask), *own[2] = {sg, sgh};
    if (x->flags & TN_F_REQUIRES_GRAD) {
        tn_tensor *scale = w ? mul(rstd, wide(w)) : rstd;
        if (r->whole[2]) {
            sg = tn_mk_ranks_mean(mul(sg, num(sg, r->num[0])));
            sgh = tn_mk_ranks_mean(mul(sgh, num(sgh, r->num[0])));
        }
        if (r->whole[1]) { /* training: the statistics move with x */
            tn_tensor *n = num(x, 1 / (double)count_of(x, mask));
            gin[0] = mul(scale, sub(sub(g, mul(sg, n)), mul(h, mul(sgh, n))));
        } else
            gin[0] = mul(g, scale);
    }
    if (w && w->flags & TN_F_REQUIRES_GRAD) gin[1] = tn_mk_reshape(own[1], 1, w->shape);
    if (b && b->flags & TN_F_REQUIRES_GRAD) gin[2] = tn_mk_reshape(own[0], 1, b->shape);
    return !x->graph->error.status;
}

/* Batch statistics in one pass over x. Sums are taken of d = x - k with k the first row, so that a mean far
 * from zero costs no accuracy: mean = k + sum(d)/n, var = (sum(d^2) - sum(d)^2/n) / n, never below 0. Where k
 * is far from all others, the two terms are up to n times as large as what they leave: they are f64, and so
 * is sum(d)/n, which is added to k as two f32, the larger first. */
static bool batch_statistics(tn_tensor *x, uint32_t mask, tn_tensor **mean, tn_tensor **var)
{
    int64_t start[TN_MAX_DIMS] = {0}, step[TN_MAX_DIMS], count[TN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        step[i] = 1;
        count[i] = mask >> i & 1 ? 1 : x->shape[i];
    }
    x->graph->no_grad++; /* k cancels out */
    tn_tensor *k = wide(tn_mk_slice(x, start, step, count));
    x->graph->no_grad--;
    x = wide(x);
    tn_tensor *n = num(x, 1 / (double)count_of(x, mask)), *d = tn_mk_cast(sub(x, k), TN_F64);
    tn_tensor *s1 = mul(total(d, mask), n), *s2 = mul(total(square(d), mask), n);
    tn_tensor *v = tn_mk2(TN_OP_maximum, sub(s2, square(s1)), constant(x, 0));
    tn_tensor *most = tn_mk_cast(s1, x->dtype), *rest = sub(s1, most);
    *mean = add(add(k, most), tn_mk_cast(rest, x->dtype));
    *var = tn_mk_cast(v, x->dtype);
    return *mean && *var;
}

/* Those of all ranks. weight: of this one's. In f64 the squares' mean less the mean's square errs less than
 * statistics of f32 can tell, and ranks meet once; where x is f64 itself they meet for the mean first. */
static bool statistics_of_ranks(double weight, tn_tensor **mean, tn_tensor **var)
{
    tn_tensor *own = tn_mk_cast(*mean, TN_F64), *v = tn_mk_cast(*var, TN_F64), *part = num(own, weight);
    tn_tensor *all = tn_mk_ranks_mean(mul(own, part));
    const bool twice = (*mean)->dtype == TN_F64;
    v = tn_mk_ranks_mean(mul(add(v, square(twice ? sub(own, all) : own)), part));
    if (!twice) v = tn_mk2(TN_OP_maximum, sub(v, square(all)), constant(v, 0));
    *mean = tn_mk_cast(all, (*mean)->dtype);
    *var = tn_mk_cast(v, (*var)->dtype);
    return *mean && *var;
}

static bool channel_vector(const tn_tensor *x, const tn_tensor *v, const char *what)
{
    return fits_trailing(x, v, 1, what);
}

TN_AT(tn_tensor *, batch_norm, (x, weight, bias, running_mean, running_var, options), tn_tensor *x,
      tn_tensor *weight, tn_tensor *bias, tn_tensor *running_mean, tn_tensor *running_var,
      const tn_norm_options *options)
{
    const double share = options && options->sync ? tn_rank_weight(tn_slot_session(x)) : 1;
    tn_tensor *run[2] = {running_mean, running_var}, *now[2] = {running_mean, running_var};
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, tn_bits(share)), "batch_norm", file, line, 1, 4, &x,
                              &weight, &bias, &now[0], &now[1]);
    norm_args o;
    if (!sc.ok || !norm_defaults(sc.g, options, &o)) return tn_leave(&sc, NULL);
    bool training = sc.g->training;
    if (x->ndim < 2 || tn_node_numel(x) == 0)
        return tn_leave_error(&sc, TN_E_SHAPE, "x needs a channel axis, others, and elements");
    if (!channel_vector(x, weight, "weight") || !channel_vector(x, bias, "bias") ||
        !channel_vector(x, now[0], "running_mean") || !channel_vector(x, now[1], "running_var"))
        return tn_leave(&sc, NULL);
    if (!training && (!now[0] || !now[1]))
        return tn_leave_error(&sc, TN_E_NULL, "evaluation needs running_mean and running_var");
    uint32_t mask = (1u << (x->ndim - 1)) - 1, first = sc.g->n_nodes;
    double n = (double)count_of(x, mask);
    const int ranks = training && options && options->sync ? tn_ranks(sc.g->session) : 1;
    n *= share > 0 ? ranks / share : ranks; /* of all */
    if (training && n < 2)
        return tn_leave_error(&sc, TN_E_SHAPE, "training needs more than one value per channel");
    x = floating(x);
    tn_tensor *xf = wide(x), *mean = wide(now[0]), *var = wide(now[1]);
    if (!xf || (training && !batch_statistics(x, mask, &mean, &var))) return tn_leave(&sc, NULL);
    if (ranks > 1 && !statistics_of_ranks(share, &mean, &var)) return tn_leave(&sc, NULL);
    int64_t row[TN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) row[i] = mask >> i & 1 ? 1 : x->shape[i];
    mean = tn_mk_reshape(mean, x->ndim, row);
    var = tn_mk_reshape(var, x->ndim, row);
    tn_tensor *rstd = tn_mk1(TN_OP_rsqrt, add(var, constant(x, o.eps)));
    tn_tensor *out = scaled(mul(sub(xf, mean), rstd), weight, bias, x);
    tn_rule *r = tn_rule_set(out, first, batch_norm_rule, 3, (tn_tensor *[]){x, weight, bias});
    if (!r) return tn_leave(&sc, NULL);
    r->whole[0] = mask;
    r->whole[1] = training;
    r->whole[2] = ranks > 1;
    r->num[0] = share;
    tn_rule_save(r, 0, mean);
    tn_rule_save(r, 1, rstd);
    if (training) { /* once, in the step that recorded it; the variance without bias, as PyTorch */
        tn_tensor *to[2] = {mean, var};
        sc.g->no_grad++;
        for (int i = 0; i < 2 && out; i++) {
            if (!now[i]) continue;
            tn_tensor *old = tn_mk_reshape(now[i], x->ndim, row);
            tn_tensor *moved = mul(to[i], num(x, o.momentum * (i ? ratio(n, n - 1) : 1)));
            moved = add(mul(old, num(x, 1 - o.momentum)), moved);
            tn_tensor *target = tn_resolve(run[i]);
            if (!(target->flags & TN_F_PERSISTENT))
                out = tn_error_set(sc.g, TN_E_STATE, "running statistics must be persistent tensors");
            else if (tn_assign_node(target, old, NULL, moved, true))
                out = NULL;
        }
        sc.g->no_grad--;
    }
    return tn_leave(&sc, out);
}

/* ---- dropout ---- */

/* The mask is a function of seed and draw: nothing is kept for backward, it is drawn again. */
TN_AT(tn_tensor *, dropout, (x, p), tn_tensor *x, double p)
{
    tn_scope sc = tn_enter_as(TN_ATTR(tn_bits(p)), "dropout", file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (!(p >= 0 && p <= 1)) return tn_leave_error(&sc, TN_E_ARG, "p is %g, must be in [0, 1]", p);
    if (!sc.g->training || p == 0) return tn_leave(&sc, x);
    tn_tensor *chance = tn_mk_typed(sc.g, TN_OP_scalar, tn_number_f(p), TN_F32);
    tn_tensor *keep = tn_mk_random(sc.g, TN_OP_bernoulli, TN_BOOL, x->ndim, x->shape, chance);
    return tn_leave(&sc, where(keep, mul(x, num(x, p < 1 ? 1 / (1 - p) : 0)), constant(x, 0)));
}
