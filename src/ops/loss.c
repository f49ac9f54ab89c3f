/* loss.c - losses and accuracy. Start with cross_entropy: one kernel per row forward, one backward; the
 * probabilities are never written. */

#include "ops.h"

static tn_tensor *to_scalar(tn_tensor *x) { return tn_mk_reshape(x, 0, NULL); }

static tn_loss_options loss_defaults(const tn_loss_options *o)
{
    return o ? *o : (tn_loss_options){.reduction = TN_REDUCE_MEAN};
}

static bool known_reduction(tn_graph *g, const tn_loss_options *o, bool by_batch)
{
    switch (o->reduction) {
    case TN_REDUCE_MEAN:
    case TN_REDUCE_SUM:
    case TN_REDUCE_NONE: return true;
    case TN_REDUCE_BATCH_MEAN:
        if (by_batch) return true;
    }
    tn_error_set(g, TN_E_ARG, "reduction is %d, must be TN_REDUCE_MEAN, TN_REDUCE_SUM or TN_REDUCE_NONE",
                 (int)o->reduction);
    return false;
}

/* The losses of all elements as the caller asked for them, as a `d`. */
static tn_tensor *finish(tn_tensor *x, tn_reduction reduction, tn_dtype d)
{
    if (!x || reduction == TN_REDUCE_NONE) return narrow(x, d);
    tn_tensor *s = total(x, all_axes(x));
    const double n = (double)(reduction == TN_REDUCE_BATCH_MEAN ? x->shape[0] : tn_node_numel(x));
    if (reduction != TN_REDUCE_SUM) s = mul(s, num(s, ratio(1, n)));
    return s ? to_scalar(narrow(s, d)) : NULL;
}

/* ---- cross_entropy, nll_loss ---- */

/* The operands that both losses share: x as rows [n, c], labels as [n, 1], 1 where a label counts, and labels
 * made safe to index with where it does not. */
typedef struct class_rows {
    tn_tensor *x, *label, *counts, *safe;
} class_rows;

static bool class_rows_of(tn_tensor *x, tn_tensor *labels, const tn_loss_options *o, class_rows *r)
{
    tn_graph *g = x->graph;
    bool fits = x->ndim >= 1 && labels->ndim == x->ndim - 1;
    for (int i = 0; i < labels->ndim && fits; i++) fits = labels->shape[i] == x->shape[i];
    if (fits && !x->shape[x->ndim - 1])
        return tn_error_set(g, TN_E_SHAPE, "x %s has no classes", TN_TENSOR_TEXT(x)) != NULL;
    if (!fits)
        return tn_error_set(g, TN_E_SHAPE,
                            "labels %s do not fit x %s: wanted one label for each row of classes",
                            TN_TENSOR_TEXT(labels), TN_TENSOR_TEXT(x)) != NULL;
    if (!tn_dtype_is_int(labels->dtype) || !tn_dtype_is_float(x->dtype))
        return tn_error_set(g, TN_E_DTYPE,
                            "wants floating x and integer labels, one for each row, got %s and %s",
                            tn_dtype_name(x->dtype), tn_dtype_name(labels->dtype)) != NULL;
    int64_t c = x->shape[x->ndim - 1], n = c ? tn_node_numel(x) / c : 0;
    r->x = tn_mk_reshape(x, 2, (const int64_t[]){n, c});
    r->label = tn_mk_reshape(labels, 2, (const int64_t[]){n, 1});
    if (labels->dtype == TN_U8) r->label = tn_mk_cast(r->label, TN_I32);
    tn_tensor *ignored = tn_mk_scalar(g, tn_number_i(o->use_ignore_index ? o->ignore_index : -100));
    r->counts = tn_mk2(TN_OP_ne, r->label, ignored);
    r->safe = where(r->counts, r->label, constant(x, 0));
    return r->x && r->safe;
}

/* The element of each row that its label chooses, [n, 1], in x's dtype. */
static tn_tensor *at_label(const class_rows *r)
{
    tn_tensor *n = tn_mk_gather(r->x, 1, r->safe);
    if (n) n->attr->indexed_by = "labels";
    return n;
}

/* The per-row losses as the caller asked for them, as a `d`. The mean is over rows that count; none at all
 * gives NaN, as PyTorch. */
static tn_tensor *reduce_rows(tn_tensor *row, const class_rows *r, const tn_loss_options *o,
                              const tn_tensor *labels, tn_dtype d, tn_tensor **count)
{
    *count = NULL;
    if (!row) return NULL;
    if (o->reduction == TN_REDUCE_NONE) return tn_mk_reshape(narrow(row, d), labels->ndim, labels->shape);
    tn_tensor *s = total(row, 3);
    if (s && o->reduction == TN_REDUCE_MEAN) {
        *count = total(tn_mk_cast(r->counts, row->dtype), 3);
        s = tn_mk2(TN_OP_div, s, *count);
    }
    return s ? to_scalar(narrow(s, d)) : NULL;
}

/* d loss / d x[i][j] = scale[i] (softmax(x[i])[j] - target[i][j]), scale = g / count where the row counts,
 * else 0, and target = (1 - s) onehot + s / c with label smoothing s. The softmax is e^(x - m) / z with each
 * row's saved largest element m and sum z, so that a kernel which makes both loss and gradient takes one
 * exponential of each element, not two. */
static bool cross_entropy_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[0], *m = r->saved[0], *z = r->saved[1], *count = r->saved[2];
    class_rows rows;
    tn_loss_options o = {.use_ignore_index = r->whole[1] != 0, .ignore_index = r->whole[2]};
    if (!class_rows_of(x, r->args[1], &o, &rows)) return false;
    int64_t n = rows.x->shape[0], c = rows.x->shape[1];
    double s = r->num[0];
    tn_dtype d = z->dtype;
    g = wide(g);
    tn_tensor *scale = r->whole[0] == TN_REDUCE_NONE ? tn_mk_reshape(g, 2, (const int64_t[]){n, 1})
                                                     : tn_mk_reshape(g, 2, (const int64_t[]){1, 1});
    if (count) scale = tn_mk2(TN_OP_div, scale, count);
    scale = where(rows.counts, scale, constant(x, 0));
    tn_tensor *e = tn_mk1(TN_OP_exp, sub(wide(rows.x), m)), *p = mul(e, tn_mk1(TN_OP_reciprocal, z));
    tn_tensor *at = tn_mk_iota(x->graph, 1, 2, (const int64_t[]){n, c}, rows.safe->dtype);
    tn_tensor *hit = eq(at, rows.safe);
    tn_tensor *target = s == 0
                            ? tn_mk_cast(hit, d)
                            : where(hit, tn_mk_cast(num(x, 1 - s + s / (double)c), d), num(x, s / (double)c));
    gin[0] = tn_mk_reshape(mul(sub(p, tn_mk_cast(target, d)), scale), x->ndim, x->shape);
    return gin[0] != NULL;
}

/* row loss = lse - (1 - s) x[label] - s mean(x), lse = log sum e^x = log z + m */
static tn_tensor *cross_entropy(tn_scope *sc, tn_tensor *x, tn_tensor *labels, const tn_loss_options *o)
{
    uint32_t first = sc->g->n_nodes;
    class_rows r;
    double s = o->label_smoothing;
    if (!x || !class_rows_of(x, labels, o, &r)) return NULL;
    double c = (double)r.x->shape[1];
    tn_tensor *xf = wide(r.x), *m = tn_mk_reduce(TN_OP_reduce_max, xf, 2);
    tn_tensor *z = total(tn_mk1(TN_OP_exp, sub(xf, m)), 2);
    tn_tensor *lse = add(tn_mk1(TN_OP_log, z), m);
    tn_tensor *row = wide(at_label(&r));
    if (s != 0) { /* scaled before it is summed: the sum of large logits need not be finite */
        tn_tensor *mean = total(mul(xf, num(x, s / c)), 2);
        row = add(mul(row, num(x, 1 - s)), mean);
    }
    row = where(r.counts, sub(lse, row), constant(x, 0));
    tn_tensor *count, *out = reduce_rows(row, &r, o, labels, x->dtype, &count);
    tn_rule *rule = tn_rule_set(out, first, cross_entropy_rule, 2, (tn_tensor *[]){x, labels});
    if (!rule) return NULL;
    tn_rule_save(rule, 0, m);
    tn_rule_save(rule, 1, z);
    tn_rule_save(rule, 2, count);
    rule->num[0] = s;
    rule->whole[0] = o->reduction;
    rule->whole[1] = o->use_ignore_index;
    rule->whole[2] = o->ignore_index;
    return out;
}

/* Labels that are shares of the classes: row loss = -sum ((1 - s) share + s / c) log softmax x. */
static tn_tensor *soft_cross_entropy(tn_tensor *x, tn_tensor *share, const tn_loss_options *o)
{
    if (!x || !share) return NULL;
    const int axis = x->ndim - 1;
    const double s = o->label_smoothing, c = (double)x->shape[axis];
    tn_tensor *t = wide(share);
    if (s != 0) t = add(mul(t, num(t, 1 - s)), num(t, ratio(s, c)));
    tn_tensor *row = neg(total(mul(t, tn_log_softmax_of(wide(x), axis)), 1u << axis));
    if (row && axis) row = tn_mk_reshape(row, axis, x->shape);
    return axis ? finish(row, o->reduction, x->dtype) : row ? to_scalar(narrow(row, x->dtype)) : NULL;
}

TN_AT(tn_tensor *, cross_entropy, (logits, labels, options), tn_tensor *logits, tn_tensor *labels,
      const tn_loss_options *options)
{
    tn_scope sc =
        tn_enter_as(TN_ATTR_STRUCT(options, 0), "cross_entropy", file, line, 2, 0, &logits, &labels);
    tn_loss_options o = loss_defaults(options);
    if (sc.ok && !known_reduction(sc.g, &o, false)) return tn_leave(&sc, NULL);
    if (sc.ok && !(o.label_smoothing >= 0 && o.label_smoothing < 1))
        return tn_leave_error(&sc, TN_E_ARG, "label_smoothing is %g, must be in [0, 1)", o.label_smoothing);
    if (sc.ok && logits->ndim && tn_dtype_is_float(labels->dtype) && tn_same_shape(logits, labels)) {
        if (!tn_dtype_is_float(logits->dtype) || o.use_ignore_index)
            return tn_leave_error(
                &sc, o.use_ignore_index ? TN_E_ARG : TN_E_DTYPE,
                "labels %s are shares of classes, beside which ignore_index means nothing and x "
                "%s has to be floating",
                TN_TENSOR_TEXT(labels), TN_TENSOR_TEXT(logits));
        return tn_leave(&sc, soft_cross_entropy(exact(logits), exact(labels), &o));
    }
    return tn_leave(&sc, sc.ok ? cross_entropy(&sc, exact(logits), labels, &o) : NULL);
}

TN_AT(tn_tensor *, nll_loss, (log_probs, labels, options), tn_tensor *log_probs, tn_tensor *labels,
      const tn_loss_options *options)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, 0), "nll_loss", file, line, 2, 0, &log_probs, &labels);
    tn_loss_options o = loss_defaults(options);
    class_rows r;
    log_probs = sc.ok && known_reduction(sc.g, &o, false) ? exact(log_probs) : NULL;
    if (!log_probs || !class_rows_of(log_probs, labels, &o, &r)) return tn_leave(&sc, NULL);
    tn_tensor *row = neg(wide(at_label(&r))), *count;
    row = where(r.counts, row, constant(row, 0));
    return tn_leave(&sc, reduce_rows(row, &r, &o, labels, log_probs->dtype, &count));
}

/* ---- elementwise losses ---- */

/* *d: the dtype of the loss. */
typedef tn_tensor *pair_fn(tn_tensor *x, tn_tensor *y, const tn_loss_options *o, tn_dtype *d);

static pair_fn kl;

static tn_tensor *pair_loss(const char *name, pair_fn *fn, tn_tensor *x, tn_tensor *y,
                            const tn_loss_options *options, const char *file, int line)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, 0), name, file, line, 2, 0, &x, &y);
    tn_loss_options o = loss_defaults(options);
    if (sc.ok && !known_reduction(sc.g, &o, fn == kl && x->ndim)) return tn_leave(&sc, NULL);
    if (sc.ok && !tn_same_shape(x, y))
        return tn_leave_error(&sc, TN_E_SHAPE, "x %s and target %s differ", TN_TENSOR_TEXT(x),
                              TN_TENSOR_TEXT(y));
    tn_dtype d = TN_F32;
    if (sc.ok) {
        x = exact(x);
        y = exact(y);
    }
    tn_tensor *each = sc.ok && x && y ? fn(x, y, &o, &d) : NULL;
    return tn_leave(&sc, finish(each, o.reduction, d));
}

static tn_tensor *difference(tn_tensor *x, tn_tensor *y, tn_dtype *d)
{
    x = floating(x);
    if (!x) return NULL;
    *d = tn_common_dtype(2, (tn_tensor *[]){x, y});
    return sub(wide(x), wide(y));
}
static tn_tensor *squared(tn_tensor *x, tn_tensor *y, const tn_loss_options *o, tn_dtype *d)
{
    (void)o;
    return square(difference(x, y, d));
}
static tn_tensor *absolute(tn_tensor *x, tn_tensor *y, const tn_loss_options *o, tn_dtype *d)
{
    (void)o;
    return tn_mk1(TN_OP_abs, difference(x, y, d));
}

/* d/dx = min(max(x - y, -delta), delta) scale, finite also where the loss is not */
static bool huber_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *d = sub(wide(r->args[0]), wide(r->args[1]));
    d = tn_mk2(TN_OP_minimum, d, num(d, r->num[0]));
    d = mul(mul(wide(g), tn_mk2(TN_OP_maximum, d, num(d, -r->num[0]))), num(d, r->num[1]));
    if (r->args[0]->flags & TN_F_REQUIRES_GRAD) gin[0] = d;
    if (r->args[1]->flags & TN_F_REQUIRES_GRAD) gin[1] = neg(d);
    return d != NULL;
}

/* a = |x - y|: a^2 / 2 up to delta, delta (a - delta / 2) beyond, times scale */
static tn_tensor *huber_of(tn_tensor *x, tn_tensor *y, const tn_loss_options *o, bool smooth, tn_dtype *d)
{
    const double delta = o->delta != 0 ? o->delta : 1, scale = smooth ? 1 / delta : 1;
    x = floating(x);
    if (!x) return NULL;
    if (!(delta > 0)) return tn_error_set(x->graph, TN_E_ARG, "delta is %g, must be above 0", delta);
    uint32_t first = x->graph->n_nodes;
    tn_tensor *a = tn_mk1(TN_OP_abs, difference(x, y, d)), *most = num(x, delta);
    tn_tensor *near = mul(square(a), constant(x, 0.5)), *far = mul(sub(a, num(x, delta / 2)), most);
    tn_tensor *out = mul(where(le(a, most), near, far), num(x, scale));
    tn_rule *rule = tn_rule_set(out, first, huber_rule, 2, (tn_tensor *[]){x, y});
    if (!rule) return NULL;
    rule->num[0] = delta;
    rule->num[1] = scale;
    return out;
}
static tn_tensor *huber(tn_tensor *x, tn_tensor *y, const tn_loss_options *o, tn_dtype *d)
{
    return huber_of(x, y, o, false, d);
}
static tn_tensor *smooth_l1(tn_tensor *x, tn_tensor *y, const tn_loss_options *o, tn_dtype *d)
{
    return huber_of(x, y, o, true, d);
}

/* y (ln y - x), y ln y being 0 at 0; of a target that is a logarithm e^y (y - x) */
static tn_tensor *kl(tn_tensor *x, tn_tensor *y, const tn_loss_options *o, tn_dtype *d)
{
    if (!difference(x, y, d)) return NULL;
    x = wide(floating(x));
    y = wide(floating(y));
    if (o->log_target) return mul(tn_mk1(TN_OP_exp, y), sub(y, x));
    tn_tensor *own = where(eq(y, constant(y, 0)), constant(y, 0), mul(y, tn_mk1(TN_OP_log, y)));
    return sub(own, mul(y, x));
}

/* d/dx = sigmoid(x) - y, d/dy = -x */
static bool bce_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = wide(r->args[0]), *y = wide(r->args[1]);
    g = wide(g);
    if (!x || !y) return false;
    if (r->args[0]->flags & TN_F_REQUIRES_GRAD) gin[0] = mul(g, sub(tn_mk1(TN_OP_sigmoid, x), y));
    if (r->args[1]->flags & TN_F_REQUIRES_GRAD) gin[1] = neg(mul(g, x));
    return !x->graph->error.status;
}

/* (1 - y) x - ln sigmoid(x) = (1 - y) x + max(-x, 0) + ln(1 + e^-|x|): PyTorch's form, which says inf and NaN
 * where it does. */
static tn_tensor *bce(tn_tensor *x, tn_tensor *y, const tn_loss_options *o, tn_dtype *d)
{
    (void)o;
    x = floating(x);
    *d = x ? x->dtype : TN_F32;
    y = tn_mk_cast(y, *d);
    if (!x || !y) return NULL;
    uint32_t first = x->graph->n_nodes;
    tn_tensor *xf = wide(x), *yf = wide(y);
    tn_tensor *tail = tn_mk1(TN_OP_log1p, tn_mk1(TN_OP_exp, neg(tn_mk1(TN_OP_abs, xf))));
    tn_tensor *out = add(mul(sub(constant(x, 1), yf), xf), add(tn_mk1(TN_OP_relu, neg(xf)), tail));
    tn_rule_set(out, first, bce_rule, 2, (tn_tensor *[]){x, y});
    return out;
}

#define PAIR_LOSS(name, fn)                                                                                  \
    TN_AT(tn_tensor *, name, (x, target, options), tn_tensor *x, tn_tensor *target,                          \
          const tn_loss_options *options)                                                                    \
    {                                                                                                        \
        return pair_loss(#name, fn, x, target, options, file, line);                                         \
    }
PAIR_LOSS(mse_loss, squared)
PAIR_LOSS(l1_loss, absolute)
PAIR_LOSS(bce_with_logits, bce)
PAIR_LOSS(huber_loss, huber)
PAIR_LOSS(smooth_l1_loss, smooth_l1)
PAIR_LOSS(kl_div, kl)

/* ---- distances ---- */

/* The gradient of a row's similarity c = x y / (m n), m and n the norms, but eps at least: y / (m n) - c x /
 * (m |x|), and the same for y. As in PyTorch the norm is differentiated where eps has taken its place, too.
 */
static bool cosine_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *c = r->saved[0], *most = num(c, r->num[0]), *v[2], *norm[2], *m[2];
    g = wide(tn_mk_reshape(g, c->ndim, c->shape));
    for (int i = 0; i < 2; i++) {
        v[i] = wide(r->args[i]);
        norm[i] = r->saved[1 + i];
        m[i] = tn_mk2(TN_OP_maximum, norm[i], most);
    }
    tn_tensor *both = tn_mk2(TN_OP_div, g, mul(m[0], m[1]));
    for (int i = 0; i < 2; i++) {
        if (!(r->args[i]->flags & TN_F_REQUIRES_GRAD)) continue;
        tn_tensor *own = tn_mk2(TN_OP_div, mul(g, c), mul(m[i], norm[i]));
        own = where(gt(norm[i], constant(c, 0)), own, constant(c, 0));
        gin[i] = sub(mul(v[1 - i], both), mul(v[i], own));
    }
    return !c->graph->error.status;
}

TN_AT(tn_tensor *, cosine_similarity, (x, y, axis, eps), tn_tensor *x, tn_tensor *y, int axis, double eps)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis, tn_bits(eps)), "cosine_similarity", file, line, 2, 0, &x, &y);
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (!(eps >= 0)) return tn_leave_error(&sc, TN_E_ARG, "eps is %g, must not be below 0", eps);
    int64_t shape[TN_MAX_DIMS];
    int ndim;
    if (!tn_broadcast_shape(x->ndim, x->shape, y->ndim, y->shape, &ndim, shape))
        return tn_leave_error(&sc, TN_E_SHAPE, "x %s and y %s do not broadcast", TN_TENSOR_TEXT(x),
                              TN_TENSOR_TEXT(y));
    tn_tensor *v[2] = {tn_mk_expand(floating(x), ndim, shape), tn_mk_expand(floating(y), ndim, shape)};
    int a = v[0] && v[1] ? tn_axis(sc.g, v[0], axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    uint32_t first = sc.g->n_nodes;
    tn_dtype d = tn_common_dtype(2, v);
    tn_tensor *w[2] = {wide(v[0]), wide(v[1])}, *norm[2], *m[2];
    double least = eps > 0 ? eps : 1e-8;
    for (int i = 0; i < 2; i++) {
        norm[i] = tn_mk1(TN_OP_sqrt, total(square(w[i]), 1u << a));
        m[i] = tn_mk2(TN_OP_maximum, norm[i], num(w[i], least));
    }
    tn_tensor *c = tn_mk2(TN_OP_div, total(mul(w[0], w[1]), 1u << a), mul(m[0], m[1]));
    tn_tensor *out = c ? drop_axes(narrow(c, d), 1u << a) : NULL;
    tn_rule *rule = tn_rule_set(out, first, cosine_rule, 2, v);
    if (!rule) return tn_leave(&sc, NULL);
    tn_rule_save(rule, 0, c);
    for (int i = 0; i < 2; i++) tn_rule_save(rule, 1 + i, norm[i]);
    rule->num[0] = least;
    return tn_leave(&sc, out);
}

/* The euclidean norm of x - y + eps over the last axis. */
static tn_tensor *distance(tn_tensor *x, tn_tensor *y, double eps)
{
    tn_tensor *d = add(sub(x, y), num(x, eps));
    return d ? tn_mk1(TN_OP_sqrt, total(square(d), 1u << (d->ndim - 1))) : NULL;
}

TN_AT(tn_tensor *, triplet_margin_loss, (anchor, positive, negative, options), tn_tensor *anchor,
      tn_tensor *positive, tn_tensor *negative, const tn_loss_options *options)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, 0), "triplet_margin_loss", file, line, 3, 0, &anchor,
                              &positive, &negative);
    tn_loss_options o = loss_defaults(options);
    if (!sc.ok || !known_reduction(sc.g, &o, false)) return tn_leave(&sc, NULL);
    if (!anchor->ndim || !tn_same_shape(anchor, positive) || !tn_same_shape(anchor, negative))
        return tn_leave_error(&sc, TN_E_SHAPE,
                              "anchor %s, positive %s, negative %s: wanted the same, [.., n]",
                              TN_TENSOR_TEXT(anchor), TN_TENSOR_TEXT(positive), TN_TENSOR_TEXT(negative));
    tn_tensor *x[3] = {floating(anchor), floating(positive), floating(negative)};
    if (!x[0] || !x[1] || !x[2]) return tn_leave(&sc, NULL);
    const tn_dtype d = tn_common_dtype(3, x);
    for (int i = 0; i < 3; i++) x[i] = wide(x[i]); /* once: the gradients of both distances add up as f32 */
    const double eps = 1e-6, margin = o.margin != 0 ? o.margin : 1;
    tn_tensor *near = distance(x[0], x[1], eps), *far = distance(x[0], x[2], eps);
    if (o.swap) far = tn_mk2(TN_OP_minimum, far, distance(x[1], x[2], eps));
    tn_tensor *each = tn_mk1(TN_OP_relu, add(sub(near, far), num(x[0], margin)));
    each = each ? drop_axes(each, 1u << (each->ndim - 1)) : NULL;
    return tn_leave(&sc, finish(each, o.reduction, d));
}

/* ---- accuracy ---- */

TN_AT(tn_tensor *, accuracy, (logits, labels), tn_tensor *logits, tn_tensor *labels)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "accuracy", file, line, 2, 0, &logits, &labels);
    tn_loss_options o = {.reduction = TN_REDUCE_MEAN};
    class_rows r;
    if (!sc.ok || !class_rows_of(logits, labels, &o, &r)) return tn_leave(&sc, NULL);
    sc.g->no_grad++;
    tn_tensor *best = tn_mk_reduce(TN_OP_reduce_argmax, r.x, 2);
    tn_tensor *hit = tn_mk_cast(eq(best, r.label), TN_F32);
    tn_tensor *out = finish(hit, TN_REDUCE_MEAN, TN_F32);
    sc.g->no_grad--;
    return tn_leave(&sc, out);
}
