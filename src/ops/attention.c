/* attention.c - scaled dot product attention: one node of its own where a kernel makes it best, else a
 * composite of two products and a softmax.
 *
 *   one node    attention, and attention_lse beside it where a gradient is wanted: of each row of scores the
 *               log of the sum of exponentials, from which backward makes the probabilities again. Its
 *               gradients are nodes of the same kind. Scores are in memory at no time. The fuser says whether
 *               this is to be expected faster (fuser/text/attention.h).
 *   composite   for what the node does not hold: a mask that wants a gradient, values of another width than
 *               the keys, f64.
 *
 * What a program writes out as softmax(q k^T scale + mask) v is found when its second product is recorded,
 * in fused mode: that is the first moment at which it is one, its gradient has not been asked for yet, and so
 * is that of the node from the start. The probabilities stay in the graph, unread; whoever else reads them
 * has them made beside the attention, and both gradients add up. A gradient by one of the values in between
 * is refused (TN_F_INSIDE), and a chain that a detach or a no-grad scope interrupts is left as it is. Beside
 * a mask of -1e9 that hides a row throughout f32 has no digits left for the logarithm: with a floating mask
 * processors keep it in f64, and on a GPU such a chain is left as it is.
 *
 * A query that sees nothing gives zeros where the operator was called, and NaN where softmax was written.
 *
 * The gradient of a gradient is made of the composite's formulas.
 *
 * Read first: tn_scaled_dot_product_attention_at, then attention_rule. */
#include <math.h>
#include <string.h>

#include "../../fuser/text/attention.h"
#include "ops.h"

static tn_tensor *swapped(tn_tensor *x) { return x ? tn_mk_swap(x, x->ndim - 2, x->ndim - 1) : NULL; }

/* ---- the composite ---- */

/* Scores are sums, which 16 bits need not hold. */
static tn_attention widened(tn_attention a)
{
    a.q = wide(a.q);
    a.k = wide(a.k);
    a.v = wide(a.v);
    a.go = wide(a.go);
    return a;
}

static tn_tensor *causal_mask(const tn_tensor *s)
{
    int64_t shape[TN_MAX_DIMS];
    int n = s->ndim;
    for (int i = 0; i < n; i++) shape[i] = i < n - 2 ? 1 : s->shape[i];
    return le(tn_mk_iota(s->graph, n - 1, n, shape, TN_I32), tn_mk_iota(s->graph, n - 2, n, shape, TN_I32));
}

/* softmax(q k^T scale + mask); q and k may still have to be broadcast */
static tn_tensor *probabilities(const tn_attention *a)
{
    tn_tensor *product = tn_mk_matmul(a->q, swapped(a->k), NULL), *s = mul(product, a->scale);
    if (product) product->base->flags |= TN_F_COMPOSED;
    if (s && a->causal) s = where(causal_mask(s), s, constant(s, -INFINITY));
    if (s && a->mask && a->mask->dtype == TN_BOOL)
        s = where(a->mask, s, constant(s, -INFINITY));
    else if (s && a->mask)
        s = add(s, a->mask);
    if (!s) return NULL;
    return a->strict ? tn_softmax_of(s, s->ndim - 1) : tn_softmax_or_zero_of(s, s->ndim - 1);
}

static double chance_of(const tn_tensor *keep)
{
    const tn_number *p = &keep->in[0]->attr->number;
    return p->is_int ? (double)p->i : p->f;
}

/* Returns p, or its gradient, with the dropped elements set to 0 and the others scaled up. */
static tn_tensor *left(const tn_attention *a, tn_tensor *p)
{
    if (!a->keep || !p) return p;
    return where(a->keep, mul(p, constant(p, 1 / (1 - chance_of(a->keep)))), constant(p, 0));
}

/* Returns the mask of the elements that dropout of chance p keeps; the chance is a constant of the kernel's
 * text. */
static tn_tensor *kept(tn_graph *g, double p, int ndim, const int64_t *shape)
{
    tn_tensor *chance = tn_mk_typed(g, TN_OP_constant, tn_number_f(p), TN_F32);
    return tn_mk_random(g, TN_OP_bernoulli, TN_BOOL, ndim, shape, chance);
}

/* ---- the gradient of a gradient ---- */

/* Sets the gradient of hidden scores to 0. */
static tn_tensor *unhidden(const tn_attention *a, tn_tensor *s)
{
    if (s && a->causal) s = where(causal_mask(s), s, constant(s, 0));
    if (s && a->mask && a->mask->dtype == TN_BOOL) s = where(a->mask, s, constant(s, 0));
    return s;
}

/* The number that scores are multiplied by. */
static tn_tensor *factor(const tn_attention *a)
{
    return a->divided ? tn_mk2(TN_OP_div, constant(a->scale, 1), a->scale) : a->scale;
}

static tn_tensor *row_sums(tn_tensor *x) { return x ? total(x, 1u << (x->ndim - 1)) : NULL; }

static tn_tensor *plus(tn_tensor *x, tn_tensor *y) { return x ? add(x, y) : y; }

/* c is the gradient of one of dq = S ds k, dk = S ds^T q, dv = d^T go, with p = softmax(s), d what dropout
 * leaves of p, dp what it leaves of go v^T, r = sum p dp by row, ds = p (dp - r), S = scale. cs, cp, .. are
 * the gradients of s, p, .., u = sum p cds by row:
 *
 *   dq   cds = S c k^T,  dk += S ds^T c
 *   dk   cds = S q c^T,  dq += S ds c
 *   dv   cd = go c^T,  dgo += d c
 *
 *   cdp = p (cds - u),  cp = cds (dp - r) - u dp;  cp += what is left of cd
 *   dgo += cdp' v,  dv += cdp'^T go,  cdp' what is left of cdp
 *   cs = p (cp - sum p cp by row),  dq += S cs k,  dk += S cs^T q */
static bool gradient_rule(tn_rule *r, tn_tensor *c, tn_tensor **gin)
{
    tn_attention a = widened(tn_attention_of(r->out));
    c = wide(c);
    a.scale = factor(&a);
    a.divided = false;
    tn_tensor *p = probabilities(&a), *dp = left(&a, tn_mk_matmul(a.go, swapped(a.v), NULL)), *cp;
    if (!p || !dp) return false;
    if (r->out->op == TN_OP_attention_dv) {
        cp = left(&a, tn_mk_matmul(a.go, swapped(c), NULL));
        gin[3] = tn_mk_matmul(left(&a, p), c, NULL);
    } else {
        bool of_q = r->out->op == TN_OP_attention_dq;
        tn_tensor *cds = of_q ? tn_mk_matmul(c, swapped(a.k), NULL) : tn_mk_matmul(a.q, swapped(c), NULL);
        cds = unhidden(&a, mul(cds, a.scale));
        tn_tensor *rest = sub(dp, row_sums(mul(p, dp))), *u = row_sums(mul(p, cds));
        tn_tensor *ds = mul(unhidden(&a, mul(p, rest)), a.scale), *cdp = left(&a, mul(p, sub(cds, u)));
        cp = sub(mul(cds, rest), mul(u, dp));
        gin[of_q] = of_q ? tn_mk_matmul(swapped(ds), c, NULL) : tn_mk_matmul(ds, c, NULL);
        gin[2] = tn_mk_matmul(swapped(cdp), a.go, NULL);
        gin[3] = tn_mk_matmul(cdp, a.v, NULL);
    }
    tn_tensor *cs = mul(unhidden(&a, mul(p, sub(cp, row_sums(mul(p, cp))))), a.scale);
    gin[0] = plus(gin[0], tn_mk_matmul(cs, a.k, NULL));
    gin[1] = plus(gin[1], tn_mk_matmul(swapped(cs), a.q, NULL));
    return !c->graph->error.status;
}

/* ---- the node ---- */

static bool attention_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    static const tn_op op[] = {TN_OP_attention_dq, TN_OP_attention_dk, TN_OP_attention_dv};
    tn_attention a = tn_attention_of(r->out);
    a.o = a.rows ? tn_mk_swap(r->out, 1, 2) : r->out;
    a.lse = r->saved[1];
    a.go = a.rows ? tn_mk_swap(g, 1, 2) : g;
    a.rows = false;
    if (!a.o || !a.go) return false;
    for (int i = 0; i < 3; i++) {
        if (!(r->args[i]->flags & TN_F_REQUIRES_GRAD)) continue;
        uint32_t first = g->graph->n_nodes;
        if (!(gin[i] = tn_mk_attention(op[i], &a))) return false;
        if (gin[i]->flags & TN_F_REQUIRES_GRAD &&
            !tn_rule_set(gin[i], first, gradient_rule, 4, (tn_tensor *[]){a.q, a.k, a.v, a.go}))
            return false;
    }
    return true;
}

/* Returns true where each row of x has its heads side by side. */
static bool by_rows(const tn_tensor *x)
{
    return x->ndim == 4 && x->shape[1] > 1 && x->stride[1] > 0 && x->stride[1] < x->stride[2];
}

/* Its operands are ready: broadcast, and of one dtype. Where q or v is a slice of a projection, with its
 * heads side by side in a row, so is the result: what puts the heads together is a view then. */
static tn_tensor *node(tn_attention *a)
{
    uint32_t first = a->q->graph->n_nodes;
    const tn_tensor *q = a->q;
    a->fine = a->mask && a->mask->dtype != TN_BOOL && q->graph->device->shares_host_memory;
    a->rows = q->ndim == 4 && q->shape[2] > 1 && (by_rows(q) || by_rows(a->v));
    tn_tensor *out = tn_mk_attention(TN_OP_attention, a);
    if (!out || !(out->flags & TN_F_REQUIRES_GRAD)) return a->rows ? tn_mk_swap(out, 1, 2) : out;
    tn_tensor *lse = tn_mk_attention(TN_OP_attention_lse, a);
    if (!lse) return NULL;
    tn_rule *r = tn_rule_set(out, first, attention_rule, 4, (tn_tensor *[]){a->q, a->k, a->v, a->mask});
    if (!r) return NULL;
    tn_rule_save(r, 0, out);
    tn_rule_save(r, 1, lse);
    return a->rows ? tn_mk_swap(out, 1, 2) : out;
}

/* The axes in front of the last two that q, k, v and the mask broadcast to. */
static bool common_axes(const tn_attention *a, int *n, int64_t *shape)
{
    const tn_tensor *x[] = {a->k, a->v, a->mask};
    *n = a->q->ndim - 2;
    memcpy(shape, a->q->shape, sizeof a->q->shape);
    for (int i = 0; i < 3; i++) {
        int64_t own[TN_MAX_DIMS];
        int extra = x[i] ? x[i]->ndim - 2 : 0;
        memcpy(own, shape, sizeof own);
        if (x[i] && !tn_broadcast_shape(*n, own, extra < 0 ? 0 : extra, x[i]->shape, n, shape)) return false;
    }
    return true;
}

static tn_tensor *spread(tn_tensor *x, int n, int64_t *shape, int64_t rows, int64_t columns)
{
    shape[n] = rows;
    shape[n + 1] = columns;
    return tn_mk_expand(x, n + 2, shape);
}

static bool constant_mask(const tn_tensor *m, tn_dtype d)
{
    return !m || (!(m->flags & TN_F_REQUIRES_GRAD) && (m->dtype == TN_BOOL || m->dtype == d));
}

/* Returns true where the mask broadcasts to the scores, rather than they to it. */
static bool fits_scores(const tn_attention *a)
{
    const tn_tensor *m = a->mask;
    int64_t want[2] = {a->q->shape[a->q->ndim - 2], a->k->shape[a->k->ndim - 2]};
    for (int i = 1; m && i <= 2 && i <= m->ndim; i++)
        if (m->shape[m->ndim - i] != 1 && m->shape[m->ndim - i] != want[2 - i]) return false;
    return true;
}

/* Returns true where the attention node can compute this attention, and is expected to be faster. `d` is the
 * dtype of the products. */
static bool serves(const tn_attention *a, tn_dtype d, int n, const int64_t *shape)
{
    fu_attention_size size = {.dtype = d, .heads = tn_extent(shape, 0, n), .causal = a->causal};
    const tn_tensor *q = a->q, *k = a->k, *v = a->v;
    size.tq = q->shape[q->ndim - 2];
    size.tk = k->shape[k->ndim - 2];
    size.d = q->shape[q->ndim - 1];
    if (n > 2 || v->shape[v->ndim - 1] != size.d || !constant_mask(a->mask, d)) return false;
    if (!size.heads || !size.tq || !size.tk || !size.d) return false;
    if (q->graph->session->export) return false; /* its kernel is no plain C */
    return q->graph->device->is_reference || fu_attention_pays(&q->graph->session->target, &size);
}

/* Broadcasts what is there, with dropout of chance p. NULL on error. */
static tn_tensor *as_node(tn_attention a, tn_dtype d, int n, int64_t *shape, double p)
{
    int64_t tq = a.q->shape[a.q->ndim - 2], tk = a.k->shape[a.k->ndim - 2], width = a.q->shape[a.q->ndim - 1];
    a.q = spread(tn_mk_cast(a.q, d), n, shape, tq, width);
    a.k = spread(tn_mk_cast(a.k, d), n, shape, tk, width);
    a.v = spread(tn_mk_cast(a.v, d), n, shape, tk, width);
    if (a.mask) a.mask = spread(a.mask, n, shape, tq, tk);
    if (!a.q || !a.k || !a.v) return NULL;
    if (p > 0) {
        shape[n] = tq;
        shape[n + 1] = tk;
        a.keep = kept(a.q->graph, p, n + 2, shape);
    }
    return a.q->graph->error.status ? NULL : node(&a);
}

/* ---- grouped heads ---- */

/* Each head of k and v serves several of q's, in a row: [.., h, t, d] becomes [.. * h of k, h / h of k, t,
 * d], along whose second axis k and v are repeated without a copy. false: they are not so, or an error is
 * set. */
static tn_tensor *by_group(tn_tensor *x, int64_t heads)
{
    const int n = x->ndim;
    const int64_t shape[4] = {tn_extent(x->shape, 0, n - 3) * heads, x->shape[n - 3] / heads, x->shape[n - 2],
                              x->shape[n - 1]};
    return tn_mk_reshape(x, 4, shape);
}

static bool grouped(tn_attention *a)
{
    const tn_tensor *q = a->q, *k = a->k, *v = a->v;
    const int n = q->ndim;
    if (n < 3 || k->ndim != n || v->ndim != n) return false;
    const int64_t h = q->shape[n - 3], few = k->shape[n - 3];
    bool so = few > 1 && few < h && h % few == 0 && v->shape[n - 3] == few;
    for (int i = 0; i < n - 3; i++) so = so && k->shape[i] == q->shape[i] && v->shape[i] == q->shape[i];
    if (!so) return false;
    if (a->mask && a->mask->ndim > 2) {
        int64_t shape[TN_MAX_DIMS];
        memcpy(shape, q->shape, sizeof shape);
        shape[n - 1] = k->shape[n - 2];
        a->mask = tn_mk_expand(a->mask, n, shape);
        a->mask = a->mask ? by_group(a->mask, few) : NULL;
    }
    a->q = by_group(a->q, few);
    a->k = by_group(a->k, few);
    a->v = by_group(a->v, few);
    return true;
}

static double usual_scale(const tn_tensor *handle)
{
    const tn_tensor *q = handle ? tn_resolve(handle) : NULL;
    return q && q->ndim && q->shape[q->ndim - 1] ? 1 / sqrt((double)q->shape[q->ndim - 1]) : 1;
}

TN_AT(tn_tensor *, scaled_dot_product_attention, (q, k, v, options), tn_tensor *q, tn_tensor *k, tn_tensor *v,
      const tn_sdpa_options *options)
{
    tn_sdpa_options o = {0};
    if (options) o = *options;
    const tn_number scale = tn_number_f(o.scale != 0 ? o.scale : usual_scale(q)); /* the call's only scalar */
    const int64_t part[] = {o.causal, isfinite(o.scale), tn_bits(o.dropout)};
    const tn_op_key key = {.part = {part}, .bytes = {sizeof part}, .number = &scale};
    tn_scope sc = tn_enter_as(&key, "scaled_dot_product_attention", file, line, 3, 1, &q, &k, &v, &o.mask);
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (q->ndim < 2 || k->ndim < 2 || v->ndim < 2 || q->shape[q->ndim - 1] != k->shape[k->ndim - 1] ||
        k->shape[k->ndim - 2] != v->shape[v->ndim - 2])
        return tn_leave_error(&sc, TN_E_SHAPE,
                              "q %s, k %s, v %s: wanted [.., tq, d], [.., tk, d], [.., tk, dv]",
                              TN_SHAPE_TEXT(q->ndim, q->shape), TN_SHAPE_TEXT(k->ndim, k->shape),
                              TN_SHAPE_TEXT(v->ndim, v->shape));
    if (!(o.dropout >= 0 && o.dropout < 1))
        return tn_leave_error(&sc, TN_E_ARG, "dropout is %g, must be in [0, 1)", o.dropout);
    if (o.mask && o.mask->dtype != TN_BOOL && !tn_dtype_is_float(o.mask->dtype))
        return tn_leave_error(&sc, TN_E_DTYPE, "mask must be bool or floating, got %s",
                              tn_dtype_name(o.mask->dtype));
    if (!isfinite(o.scale)) return tn_leave_error(&sc, TN_E_ARG, "scale is %g, must be finite", o.scale);
    double p = sc.g->training ? o.dropout : 0;
    tn_attention a = {.q = q, .k = k, .v = v, .mask = o.mask, .causal = o.causal};
    int64_t whole[TN_MAX_DIMS];
    memcpy(whole, q->shape, sizeof whole);
    whole[q->ndim - 1] = v->shape[v->ndim - 1];
    const int ndim = grouped(&a) ? q->ndim : 0;
    if (sc.g->error.status) return tn_leave(&sc, NULL);
    tn_dtype d = tn_product_dtype(sc.g, tn_dtype_promote(q->dtype, k->dtype), v->dtype);
    if (sc.g->products != TN_F32 && d == sc.g->products) {
        a.q = q = tn_mk_cast(q, d);
        a.k = k = tn_mk_cast(k, d);
        a.v = v = tn_mk_cast(v, d);
        if (!q || !k || !v) return tn_leave(&sc, NULL);
    }
    int n;
    int64_t shape[TN_MAX_DIMS];
    bool same = q->dtype == d && k->dtype == d && v->dtype == d; /* else products differ in theirs */
    if (same && common_axes(&a, &n, shape) && fits_scores(&a) && serves(&a, d, n, shape)) {
        a.scale = tn_mk_typed(sc.g, TN_OP_scalar, scale, TN_F32);
        tn_tensor *out = as_node(a, d, n, shape, p);
        return tn_leave(&sc, ndim && out ? tn_mk_reshape(out, ndim, whole) : out);
    }
    a.scale = tn_mk_scalar(sc.g, scale);
    if (a.mask && a.mask->dtype != TN_BOOL) d = tn_dtype_promote(d, a.mask->dtype);
    a = widened(a);
    tn_tensor *s = probabilities(&a);
    if (s && p > 0) {
        a.keep = kept(sc.g, p, s->ndim, s->shape);
        s = left(&a, s);
    }
    s = narrow(tn_mk_matmul(s, a.v, NULL), d);
    return tn_leave(&sc, ndim && s ? tn_mk_reshape(s, ndim, whole) : s);
}

/* ---- written out ---- */

/* The values from the scores to the operand of the second product, all of which the node takes the place of.
 */
typedef struct trail {
    tn_tensor *at[24];
    int n;
    bool full;
} trail;

static tn_tensor *pass(trail *t, tn_tensor *x)
{
    t->full = t->full || t->n == (int)(sizeof t->at / sizeof *t->at);
    if (!t->full) t->at[t->n++] = x;
    return x;
}

/* The value behind views that change nothing. */
static tn_tensor *itself(trail *t, tn_tensor *x)
{
    while (pass(t, x)->op == TN_OP_reshape && x->base != x && tn_same_shape(x, x->in[0])) x = x->in[0];
    return x;
}

/* Returns true where gradients flow through all of the nodes on the trail to q and k, or, as neither wants
 * one, through none of them. */
static bool is_whole(const trail *t, const tn_attention *a)
{
    const bool wanted = (a->q->flags | a->k->flags) & TN_F_REQUIRES_GRAD;
    for (int i = 0; i < t->n; i++)
        if (!(t->at[i]->flags & TN_F_REQUIRES_GRAD) == wanted) return false;
    return !t->full;
}

/* The number that x is, or that tn_full was given for it, the same in each repetition of the call; else NULL. */
static tn_tensor *number_of(const tn_tensor *x)
{
    while ((x->op == TN_OP_expand || x->op == TN_OP_reshape || x->op == TN_OP_contiguous) &&
           x->base->op != TN_OP_constant)
        x = x->in[0];
    return tn_is_number(x) ? x->base : NULL;
}

static bool is_number(const tn_tensor *x, double v)
{
    const tn_tensor *n = number_of(x);
    return n && (n->attr->number.is_int ? (double)n->attr->number.i : n->attr->number.f) == v;
}

/* x is p with elements dropped, or p. */
static tn_tensor *undropped(trail *t, tn_tensor *x, tn_tensor **keep)
{
    x = itself(t, x);
    if (x->op != TN_OP_where || x->in[0]->op != TN_OP_bernoulli || !is_number(x->in[2], 0)) return x;
    tn_tensor *m = x->in[1], *by_chance;
    if (m->op != TN_OP_mul || !(by_chance = number_of(m->in[1]))) return x;
    if (by_chance->attr->number.f != 1 / (1 - chance_of(x->in[0]))) return x;
    *keep = x->in[0];
    return itself(t, m->in[0]);
}

/* Reads what hides scores, or is added to them: a bool mask, of what is seen or with *hides of what is not,
 * or a floating one that wants no gradient. */
static tn_tensor *unmasked(trail *t, tn_tensor *s, tn_tensor **mask, bool *hides)
{
    if (s->op == TN_OP_where) {
        const int to = is_number(s->in[2], -INFINITY) ? 1 : is_number(s->in[1], -INFINITY) ? 2 : 0;
        if (!to) return s;
        *hides = to == 2;
        *mask = s->in[0];
        return itself(t, s->in[to]);
    }
    if (s->op != TN_OP_add || !s->graph->device->shares_host_memory) return s;
    /* of the two the scores are what carries the gradient, or is as the product has made it */
    trail ahead = {.n = 0};
    for (int i = 0; i < 2; i++) {
        const tn_tensor *x = itself(&ahead, s->in[i]);
        const bool scores = x->op == TN_OP_matmul || x->op == TN_OP_mul || x->op == TN_OP_div;
        if (!scores || s->in[1 - i]->flags & TN_F_REQUIRES_GRAD || tn_is_number(s->in[1 - i])) continue;
        *mask = s->in[1 - i];
        return itself(t, s->in[i]);
    }
    return s;
}

/* Reads the scores that softmax was taken of: a product of q and the transpose of k, scaled, then masked.
 * false: they are something else. */
static bool read_scores(trail *t, tn_tensor *s, tn_attention *a, bool *hides)
{
    s = unmasked(t, itself(t, s), &a->mask, hides);
    if (s->op == TN_OP_mul || s->op == TN_OP_div) {
        int of = s->op == TN_OP_mul && number_of(s->in[0]) ? 1 : 0;
        a->scale = number_of(s->in[1 - of]);
        a->divided = s->op == TN_OP_div;
        s = itself(t, s->in[of]);
        if (!a->scale) return false;
    }
    if (s->op != TN_OP_matmul || s->n_in != 2) return false;
    a->q = s->in[0];
    a->k = s->in[1];
    return true;
}

/* Returns true where the node takes the place of what has been read, from the scores' product to p. */
static bool taken(const tn_attention *a, const tn_tensor *p, const trail *passed)
{
    const tn_tensor *y = a->v;
    const tn_graph *g = p->graph;
    int n = p->ndim - 2;
    tn_dtype d = p->dtype;
    if (a->q->dtype != d || y->dtype != d || y->ndim != p->ndim) return false;
    for (int i = 0; i < n; i++)
        if (y->shape[i] != p->shape[i]) return false;
    if (y->shape[n] != p->shape[n + 1] || (a->mask && !tn_same_shape(a->mask, p))) return false;
    fu_attention_size size = {.dtype = d,
                              .heads = tn_extent(y->shape, 0, n),
                              .tq = p->shape[n],
                              .tk = p->shape[n + 1],
                              .d = y->shape[n + 1]};
    if (n > 2 || a->q->shape[n + 1] != size.d || !constant_mask(a->mask, d) || !tn_node_numel(p) || !size.d)
        return false;
    return !g->session->export && fu_attention_pays(&g->session->target, &size) && is_whole(passed, a);
}

/* Of a mask that was broadcast, what it was broadcast of is negated. */
static tn_tensor *negated(tn_tensor *mask)
{
    if (mask->op != TN_OP_expand) return tn_mk1(TN_OP_logical_not, mask);
    return tn_mk_expand(tn_mk1(TN_OP_logical_not, mask->in[0]), mask->ndim, mask->shape);
}

tn_tensor *tn_attention_written(tn_tensor *x, tn_tensor *y)
{
    tn_attention a = {.v = y, .strict = true};
    trail passed = {.n = 0};
    bool hides = false;
    tn_graph *g = x->graph;
    if (!tn_deferred(g->session) || x->ndim < 2 || y->ndim < 2) return NULL;
    tn_tensor *p = undropped(&passed, x, &a.keep);
    if (!tn_is_softmax(p, p->ndim - 1) || p->flags & TN_F_DONE ||
        !read_scores(&passed, p->rule->args[0], &a, &hides))
        return NULL;
    if (!taken(&a, p, &passed)) {
        if (!passed.full) passed.at[passed.n - 1]->base->flags |= TN_F_COMPOSED;
        return NULL;
    }
    for (int i = 0; i < passed.n; i++) passed.at[i]->flags |= TN_F_INSIDE;
    a.k = swapped(a.k);
    if (hides) a.mask = negated(a.mask);
    if (!a.scale) a.scale = tn_mk_typed(g, TN_OP_constant, tn_number_f(1), TN_F32);
    /* x has a reader that nobody asks for: it is no result of the step */
    return a.k && a.scale && (a.mask || !hides) && tn_mk_alias(x) ? node(&a) : NULL;
}
