/* loss.c - losses and accuracy. Start with cross_entropy: one kernel per row forward, one backward; the
 * probabilities are never written. */
#include <string.h>

#include "ops.h"

static tn_tensor *to_scalar(tn_tensor *x)
{
    return tn_mk_reshape(x, 0, NULL);
}

static tn_loss_options loss_defaults(const tn_loss_options *o)
{
    return o ? *o : (tn_loss_options){.reduction = TN_REDUCE_MEAN};
}

static bool known_reduction(tn_graph *g, const tn_loss_options *o)
{
    switch (o->reduction) {
    case TN_REDUCE_MEAN:
    case TN_REDUCE_SUM:
    case TN_REDUCE_NONE:
        return true;
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
    if (reduction == TN_REDUCE_MEAN) s = mul(s, num(s, ratio(1, (double)tn_node_numel(x))));
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
    if (fits && !x->shape[x->ndim - 1]) {
        char a[128];
        tn_error_set(g, TN_E_SHAPE, "x %s has no classes", tn_tensor_text(a, sizeof a, x));
        return false;
    }
    if (!fits) {
        char a[128], b[128];
        tn_error_set(g, TN_E_SHAPE, "labels %s do not fit x %s: wanted one label for each row of classes",
                     tn_tensor_text(a, sizeof a, labels), tn_tensor_text(b, sizeof b, x));
        return false;
    }
    if (!tn_dtype_is_int((tn_dtype)labels->dtype) || !tn_dtype_is_float((tn_dtype)x->dtype)) {
        tn_error_set(g, TN_E_DTYPE, "wants floating x and integer labels, got %s and %s",
                     tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)labels->dtype));
        return false;
    }
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
        *count = total(tn_mk_cast(r->counts, (tn_dtype)row->dtype), 3);
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
    tn_dtype d = (tn_dtype)z->dtype;
    g = wide(g);
    tn_tensor *scale = r->whole[0] == TN_REDUCE_NONE ? tn_mk_reshape(g, 2, (const int64_t[]){n, 1})
                                                     : tn_mk_reshape(g, 2, (const int64_t[]){1, 1});
    if (count) scale = tn_mk2(TN_OP_div, scale, count);
    scale = where(rows.counts, scale, constant(x, 0));
    tn_tensor *e = tn_mk1(TN_OP_exp, sub(wide(rows.x), m)), *p = mul(e, tn_mk1(TN_OP_reciprocal, z));
    tn_tensor *at = tn_mk_iota(x->graph, 1, 2, (const int64_t[]){n, c}, (tn_dtype)rows.safe->dtype);
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
    if (!class_rows_of(x, labels, o, &r)) return NULL;
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
    tn_tensor *count, *out = reduce_rows(row, &r, o, labels, (tn_dtype)x->dtype, &count);
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

tn_tensor *tn_cross_entropy_at(tn_tensor *logits, tn_tensor *labels, const tn_loss_options *options,
                               const char *file, int line)
{
    tn_scope sc =
        tn_enter_as(TN_ATTR_STRUCT(options, 0), "cross_entropy", file, line, 2, 0, &logits, &labels);
    tn_loss_options o = loss_defaults(options);
    if (sc.ok && !known_reduction(sc.g, &o)) return tn_leave(&sc, NULL);
    if (sc.ok && !(o.label_smoothing >= 0 && o.label_smoothing < 1))
        return tn_leave(
            &sc, tn_error_set(sc.g, TN_E_ARG, "label_smoothing is %g, must be in [0, 1)", o.label_smoothing));
    return tn_leave(&sc, sc.ok ? cross_entropy(&sc, logits, labels, &o) : NULL);
}
PLAIN(cross_entropy, (tn_tensor * logits, tn_tensor *labels, const tn_loss_options *options),
      (logits, labels, options, NULL, 0))

tn_tensor *tn_nll_loss_at(tn_tensor *log_probs, tn_tensor *labels, const tn_loss_options *options,
                          const char *file, int line)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, 0), "nll_loss", file, line, 2, 0, &log_probs, &labels);
    tn_loss_options o = loss_defaults(options);
    class_rows r;
    if (!sc.ok || !known_reduction(sc.g, &o) || !class_rows_of(log_probs, labels, &o, &r))
        return tn_leave(&sc, NULL);
    tn_tensor *row = neg(wide(at_label(&r))), *count;
    row = where(r.counts, row, constant(row, 0));
    return tn_leave(&sc, reduce_rows(row, &r, &o, labels, (tn_dtype)log_probs->dtype, &count));
}
PLAIN(nll_loss, (tn_tensor * log_probs, tn_tensor *labels, const tn_loss_options *options),
      (log_probs, labels, options, NULL, 0))

/* ---- elementwise losses ---- */

/* *d: the dtype of the loss. */
typedef tn_tensor *pair_fn(tn_tensor *x, tn_tensor *y, tn_dtype *d);

static tn_tensor *pair_loss(const char *name, pair_fn *fn, tn_tensor *x, tn_tensor *y,
                            const tn_loss_options *options, const char *file, int line)
{
    tn_scope sc = tn_enter_as(TN_ATTR_STRUCT(options, 0), name, file, line, 2, 0, &x, &y);
    tn_loss_options o = loss_defaults(options);
    if (sc.ok && !known_reduction(sc.g, &o)) return tn_leave(&sc, NULL);
    if (sc.ok && !tn_same_shape(x, y)) {
        char a[128], b[128];
        return tn_leave(&sc, tn_error_set(sc.g, TN_E_SHAPE, "x %s and target %s differ",
                                          tn_tensor_text(a, sizeof a, x), tn_tensor_text(b, sizeof b, y)));
    }
    tn_dtype d = TN_F32;
    tn_tensor *each = sc.ok ? fn(x, y, &d) : NULL;
    return tn_leave(&sc, finish(each, o.reduction, d));
}

static tn_tensor *difference(tn_tensor *x, tn_tensor *y, tn_dtype *d)
{
    x = floating(x);
    if (!x) return NULL;
    *d = tn_common_dtype(2, (tn_tensor *[]){x, y});
    return sub(wide(x), wide(y));
}
static tn_tensor *squared(tn_tensor *x, tn_tensor *y, tn_dtype *d)
{
    return square(difference(x, y, d));
}
static tn_tensor *absolute(tn_tensor *x, tn_tensor *y, tn_dtype *d)
{
    return tn_mk1(TN_OP_abs, difference(x, y, d));
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
static tn_tensor *bce(tn_tensor *x, tn_tensor *y, tn_dtype *d)
{
    x = floating(x);
    *d = x ? (tn_dtype)x->dtype : TN_F32;
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
    tn_tensor *tn_##name##_at(tn_tensor *x, tn_tensor *target, const tn_loss_options *options,               \
                              const char *file, int line)                                                    \
    {                                                                                                        \
        return pair_loss(#name, fn, x, target, options, file, line);                                         \
    }                                                                                                        \
    PLAIN(name, (tn_tensor * x, tn_tensor * target, const tn_loss_options *options),                         \
          (x, target, options, NULL, 0))
PAIR_LOSS(mse_loss, squared)
PAIR_LOSS(l1_loss, absolute)
PAIR_LOSS(bce_with_logits, bce)

/* ---- accuracy ---- */

tn_tensor *tn_accuracy_at(tn_tensor *logits, tn_tensor *labels, const char *file, int line)
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
PLAIN(accuracy, (tn_tensor * logits, tn_tensor *labels), (logits, labels, NULL, 0))
