/* recurrent.c - the recurrences of LSTM and GRU over whole sequences, time being the first axis.
 *
 * What of a step depends on its input alone, x W_ih^T + b_ih, is `gates`, one product for all steps before
 * the first. A step is then one product and one kernel: P = h W^T + b, and the cell. Backward, a step is that
 * kernel's gradient, which makes D, what goes back to P, and one product, D W. The weight's gradient is one
 * product at the end, of all D and all h. So that it is, the whole sequence is one composite with a rule of
 * its own; what the rule reads of a step are its gates, from which neither P nor the product of the inputs
 * has to be kept, and what else the cell has made: a list.
 *
 * Read first: lstm, then lstm_rule. */

#include "ops.h"

#include <string.h>

static tn_tensor *sigmoid(tn_tensor *x) { return tn_mk1(TN_OP_sigmoid, x); }
static tn_tensor *tanh_of(tn_tensor *x) { return tn_mk1(TN_OP_tanh, x); }
static tn_tensor *less_square(tn_tensor *y) /* 1 - y^2 */ { return sub(constant(y, 1), square(y)); }
static tn_tensor *slope(tn_tensor *s) /* of a sigmoid */ { return mul(s, sub(constant(s, 1), s)); }

/* Step t of x [t, ..]. */
static tn_tensor *step_of(tn_tensor *x, int64_t t)
{
    return x ? drop_axes(tn_mk_slice1(x, 0, t, 1, 1), 1u) : NULL;
}

/* Part k of the columns of x [n, parts * h]. */
static tn_tensor *part(tn_tensor *x, int64_t k, int64_t h) { return wide(tn_mk_slice1(x, 1, k * h, 1, h)); }

/* n tensors of a shape after one another along a new first axis; takes up `x` for it. */
static tn_tensor *joined(tn_graph *g, int64_t n, tn_tensor **x)
{
    enum { MOST = 128 };
    for (int64_t i = 0; i < n; i++) x[i] = x[i] ? unsqueeze(x[i], 0) : NULL;
    while (n > 1) {
        int64_t m = 0;
        for (int64_t i = 0; i < n; i += MOST)
            if (!(x[m++] = tn_mk_concat(g, (int)(n - i < MOST ? n - i : MOST), x + i, 0))) return NULL;
        n = m;
    }
    return x[0];
}

/* One tensor for each of n steps, in the memory of the step graph. */
static tn_tensor **list_of(tn_graph *g, int64_t n)
{
    tn_tensor **list = tn_arena_alloc(&g->arena, (size_t)n * sizeof *list);
    if (!list) tn_error_set(g, TN_E_NOMEM, "no memory for %lld steps", (long long)n);
    return list;
}

static tn_tensor *rows_of(tn_tensor *x) /* [t, n, m] -> [t * n, m] */
{
    return x ? tn_mk_reshape(x, 2, (const int64_t[]){x->shape[0] * x->shape[1], x->shape[2]}) : NULL;
}

/* The gradients of weight and bias, from those of all products, D [t, n, m], and all h that went into them.
 */
static void weight_gradients(tn_rule *r, tn_tensor *all, int weight, int bias, tn_tensor **gin)
{
    tn_tensor *d = rows_of(all), *out = r->out;
    if (!d) return;
    tn_tensor *before = rows_of(tn_mk_slice1(out, 0, 0, 1, all->shape[0]));
    gin[weight] = before ? tn_mk_matmul(tn_mk_swap(d, 0, 1), before, NULL) : NULL;
    if (!r->args[bias]) return;
    tn_tensor *sum = narrow(total(d, 1u), r->args[bias]->dtype);
    gin[bias] = sum ? tn_mk_reshape(sum, 1, r->args[bias]->shape) : NULL;
}

/* ---- lstm: i f g o of a step's columns ---- */

enum { GATES, WEIGHT, BIAS, HIDDEN, CELL };
enum { LSTM_KEEPS = 5, GRU_KEEPS = 4 }; /* of each step */

typedef struct lstm_gates {
    tn_tensor *i, *f, *g, *o;
} lstm_gates;

static lstm_gates lstm_gates_of(tn_tensor *x, tn_tensor *p, int64_t h)
{
    return (lstm_gates){.i = sigmoid(add(part(x, 0, h), part(p, 0, h))),
                        .f = sigmoid(add(part(x, 1, h), part(p, 1, h))),
                        .g = tanh_of(add(part(x, 2, h), part(p, 2, h))),
                        .o = sigmoid(add(part(x, 3, h), part(p, 3, h)))};
}

/* c' = f c + i g, h' = o tanh(c'). The result is h_0 .. h_t, and c_t behind them. */
static bool lstm_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[GATES], *w = r->args[WEIGHT];
    const int64_t steps = x->shape[0];
    const tn_dtype d = x->dtype;
    tn_tensor **all = list_of(x->graph, steps), *dc = wide(step_of(g, steps + 1)), *dh = NULL;
    if (!all) return false;
    for (int64_t t = steps - 1; t >= 0; t--) {
        tn_tensor **kept = r->list + LSTM_KEEPS * t; /* i f g o c */
        tn_tensor *before = t ? kept[-1] : wide(r->args[CELL]), *now = tanh_of(kept[4]);
        const lstm_gates a = {kept[0], kept[1], kept[2], kept[3]};
        tn_tensor *own = wide(step_of(g, t + 1));
        dh = dh ? add(own, dh) : own;
        dc = add(dc, mul(mul(dh, a.o), less_square(now)));
        tn_tensor *parts[4] = {mul(mul(dc, a.g), slope(a.i)), mul(mul(dc, before), slope(a.f)),
                               mul(mul(dc, a.i), less_square(a.g)), mul(mul(dh, now), slope(a.o))};
        for (int k = 0; k < 4; k++) parts[k] = narrow(parts[k], d);
        all[t] = tn_mk_concat(x->graph, 4, parts, 1);
        dh = wide(tn_mk_matmul(all[t], w, NULL));
        dc = mul(dc, a.f);
        if (!dh || !dc) return false;
    }
    gin[HIDDEN] = add(wide(step_of(g, 0)), dh);
    gin[CELL] = dc;
    gin[GATES] = joined(x->graph, steps, all);
    if (gin[GATES]) weight_gradients(r, gin[GATES], WEIGHT, BIAS, gin);
    return !x->graph->error.status;
}

/* ---- gru: r z n of a step's columns ---- */

typedef struct gru_gates {
    tn_tensor *r, *z, *n, *p; /* p: h's part of n, before r */
} gru_gates;

static gru_gates gru_gates_of(tn_tensor *x, tn_tensor *p, int64_t h)
{
    gru_gates a = {.r = sigmoid(add(part(x, 0, h), part(p, 0, h))),
                   .z = sigmoid(add(part(x, 1, h), part(p, 1, h))),
                   .p = tn_mk_contiguous(part(p, 2, h))};
    a.n = tanh_of(add(part(x, 2, h), mul(a.r, a.p)));
    return a;
}

/* n = tanh(x_n + r p), h' = n + z (h - n). What goes back to the gates differs from what goes back to the
 * products in the last of the parts alone, which has no r. */
static bool gru_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[GATES], *w = r->args[WEIGHT], *dh = NULL;
    const int64_t steps = x->shape[0], h = w->shape[1];
    const tn_dtype d = x->dtype;
    tn_tensor **all = list_of(x->graph, steps), **last = list_of(x->graph, steps);
    if (!all || !last) return false;
    for (int64_t t = steps - 1; t >= 0; t--) {
        tn_tensor **kept = r->list + GRU_KEEPS * t;
        const gru_gates a = {kept[0], kept[1], kept[2], kept[3]};
        tn_tensor *before = wide(step_of(r->out, t)), *own = wide(step_of(g, t + 1));
        dh = dh ? add(own, dh) : own;
        tn_tensor *dn = mul(mul(dh, sub(constant(dh, 1), a.z)), less_square(a.n));
        tn_tensor *parts[3] = {mul(mul(dn, a.p), slope(a.r)), mul(mul(dh, sub(before, a.n)), slope(a.z)),
                               mul(dn, a.r)};
        for (int k = 0; k < 3; k++) parts[k] = narrow(parts[k], d);
        last[t] = narrow(dn, d);
        all[t] = tn_mk_concat(x->graph, 3, parts, 1);
        tn_tensor *back = wide(tn_mk_matmul(all[t], w, NULL));
        dh = add(mul(dh, a.z), back);
        if (!dh) return false;
    }
    gin[HIDDEN] = add(wide(step_of(g, 0)), dh);
    tn_tensor *whole = joined(x->graph, steps, all);
    if (!whole) return false;
    tn_tensor *halves[2] = {tn_mk_slice1(whole, 2, 0, 1, 2 * h), joined(x->graph, steps, last)};
    gin[GATES] = tn_mk_concat(x->graph, 2, halves, 2);
    weight_gradients(r, whole, WEIGHT, BIAS, gin);
    return !x->graph->error.status;
}

/* ---- forward ---- */

/* The operands fit each other, and are of one floating dtype; what is missing of the first states is 0. */
static bool fit(tn_graph *g, int parts, tn_tensor **in, int n)
{
    const tn_tensor *x = in[GATES], *w = in[WEIGHT];
    const int64_t h = w->ndim == 2 ? w->shape[1] : 0;
    bool fits = x->ndim == 3 && h > 0 && w->shape[0] == parts * h && x->shape[2] == parts * h &&
                x->shape[0] > 0 && (!in[BIAS] || (in[BIAS]->ndim == 1 && in[BIAS]->shape[0] == parts * h));
    const tn_tensor *bad = NULL;
    for (int i = HIDDEN; i < n && fits && !bad; i++)
        if (in[i] && (in[i]->ndim != 2 || in[i]->shape[0] != x->shape[1] || in[i]->shape[1] != h))
            bad = in[i];
    if (!fits || bad)
        return tn_error_set(
                   g, TN_E_SHAPE,
                   "gates %s, weight %s%s%s: wanted [t, n, %d h], [%d h, h], bias [%d h], states [n, h]",
                   TN_TENSOR_TEXT(x), TN_TENSOR_TEXT(w), bad ? ", state " : "",
                   bad ? TN_TENSOR_TEXT(bad) : "", parts, parts, parts) != NULL;
    tn_dtype d = tn_dtype_promote(x->dtype, w->dtype);
    if (!tn_dtype_is_float(d))
        return tn_error_set(g, TN_E_DTYPE, "needs a floating dtype, got %s", tn_dtype_name(d)) != NULL;
    for (int i = 0; i < n; i++) {
        if (!in[i] && i >= HIDDEN)
            in[i] = tn_mk_expand(tn_mk_typed(g, TN_OP_constant, tn_number_f(0), d), 2,
                                 (const int64_t[]){x->shape[1], h});
        if (in[i]) in[i] = tn_mk_cast(in[i], d);
    }
    return !g->error.status;
}

/* in: gates, weight, bias, h_0(, c_0), ready. */
static tn_tensor *sequence(tn_graph *g, bool lstm, tn_tensor **in)
{
    const int64_t steps = in[GATES]->shape[0], h = in[WEIGHT]->shape[1];
    const tn_dtype d = in[GATES]->dtype;
    const uint32_t first = g->n_nodes;
    const int each = lstm ? LSTM_KEEPS : GRU_KEEPS;
    tn_tensor **saved = list_of(g, each * steps), **rows = list_of(g, steps + 2);
    tn_tensor *w = tn_mk_swap(in[WEIGHT], 0, 1), *state = in[HIDDEN], *cell = lstm ? wide(in[CELL]) : NULL;
    if (!saved || !rows) return NULL;
    rows[0] = state;
    for (int64_t t = 0; t < steps; t++) {
        tn_tensor *p = tn_mk_matmul(state, w, in[BIAS]), *x = step_of(in[GATES], t),
                  **keep = saved + each * t;
        if (!p) return NULL;
        if (lstm) {
            const lstm_gates a = lstm_gates_of(x, p, h);
            cell = add(mul(a.f, cell), mul(a.i, a.g));
            state = narrow(mul(a.o, tanh_of(cell)), d);
            memcpy(keep, (tn_tensor *[LSTM_KEEPS]){a.i, a.f, a.g, a.o, cell}, LSTM_KEEPS * sizeof *keep);
        } else {
            const gru_gates a = gru_gates_of(x, p, h);
            state = narrow(add(a.n, mul(a.z, sub(wide(state), a.n))), d);
            memcpy(keep, (tn_tensor *[GRU_KEEPS]){a.r, a.z, a.n, a.p}, GRU_KEEPS * sizeof *keep);
        }
        rows[t + 1] = state;
    }
    rows[steps + 1] = narrow(cell, d);
    tn_tensor *out = joined(g, steps + (lstm ? 2 : 1), rows);
    tn_rule *r = tn_rule_set(out, first, lstm ? lstm_rule : gru_rule, lstm ? 5 : 4, in);
    if (!r) return NULL;
    tn_rule_save(r, 0, out);
    tn_rule_save_list(r, (int)(each * steps), saved);
    return out;
}

TN_AT(tn_tensor *, lstm, (gates, weight, bias, h, c), tn_tensor *gates, tn_tensor *weight, tn_tensor *bias,
      tn_tensor *h, tn_tensor *c)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "lstm", file, line, 2, 3, &gates, &weight, &bias, &h, &c);
    tn_tensor *in[5] = {gates, weight, bias, h, c};
    return tn_leave(&sc, sc.ok && fit(sc.g, 4, in, 5) ? sequence(sc.g, true, in) : NULL);
}

TN_AT(tn_tensor *, gru, (gates, weight, bias, h), tn_tensor *gates, tn_tensor *weight, tn_tensor *bias,
      tn_tensor *h)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "gru", file, line, 2, 2, &gates, &weight, &bias, &h);
    tn_tensor *in[4] = {gates, weight, bias, h};
    return tn_leave(&sc, sc.ok && fit(sc.g, 3, in, 4) ? sequence(sc.g, false, in) : NULL);
}
