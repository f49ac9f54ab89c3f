/* attention.c - attention and its gradients by the definition: a row of scores at a time.
 *
 *   p = softmax(scale q k^T + mask), d = p with what is dropped at 0 and the rest over 1 - chance, o = d v
 *   dv = d^T go, ds = p (dd - sum p dd) with dd of go v^T as d of p, dq = scale ds k, dk = scale ds^T q
 *
 * Noise moves scores, d and ds by their dtype, not by that of the sums: a device may hold them in memory
 * where attention is several kernels, or hand them to a product as its operand.
 *
 * What a mask of bools or of causality hides has no gradient. Gradients take o and lse as they were rounded:
 * p is e^(score - lse), and sum p dd is that of go times o. Read first: row. */
#include "internal.h"

#include "../../core/build.h"

#include <math.h>

enum { SCORES, DROPPED, DS }; /* what is rounded on the way */

/* One query of one head. */
typedef struct place {
    const tn_ref_args *a;
    tn_attention of;
    int n_in;
    int64_t tk, d, dv, i;      /* query i of its head */
    int64_t first;             /* number of the row's first score among all */
    const double *q, *k, *v;   /* its row, and its head's rows */
    const double *mask, *keep; /* its row of each, or NULL */
    double scale, chance;      /* of being dropped */
    double *p, *dropped;       /* tk elements each */
} place;

static bool hidden(const place *w, int64_t j)
{
    bool masked = w->mask && w->of.mask->dtype == TN_BOOL && w->mask[j] == 0;
    return masked || (w->of.causal && j > w->i);
}

/* Fills p and what is left of it, from lse where it is known; returns the log of the sum of exponentials,
 * which is infinite where nothing is seen, and p 0, or else with `strict` NaN. */
static double row(const place *w, const double *lse)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < w->tk; j++) {
        double s = 0;
        for (int64_t c = 0; c < w->d; c++) s += w->q[c] * w->k[j * w->d + c];
        s = tn_ref_noise_between(w->a->node, SCORES, w->first + j, s * w->scale);
        if (w->mask && w->of.mask->dtype != TN_BOOL) s += w->mask[j];
        if (hidden(w, j)) s = -INFINITY;
        w->p[j] = s;
        if (s > most || isnan(s)) most = isnan(most) ? most : s;
    }
    const bool blind = most == -INFINITY && w->tk && !w->of.strict;
    if (lse) most = *lse;
    if (blind) most = INFINITY;
    for (int64_t j = 0; j < w->tk; j++) sum += w->p[j] = exp(w->p[j] - most);
    for (int64_t j = 0; j < w->tk; j++) {
        if (!lse && !blind) w->p[j] /= sum;
        w->dropped[j] = !w->keep ? w->p[j] : w->keep[j] != 0 ? w->p[j] / (1 - w->chance) : 0;
        w->dropped[j] = tn_ref_noise_between(w->a->node, DROPPED, w->first + j, w->dropped[j]);
    }
    return blind ? most : most + log(sum);
}

static double kept(const place *w, int64_t j)
{
    return !w->keep ? 1 : w->keep[j] != 0 ? 1 / (1 - w->chance) : 0;
}

/* Adds what the query gives to the wanted gradient; o and g are its rows of o and go, out begins at its head.
 */
static void gradients(const place *w, tn_op op, const double *o, const double *g, double *out)
{
    if (op == TN_OP_attention_dv) {
        for (int64_t j = 0; j < w->tk; j++)
            for (int64_t c = 0; c < w->dv; c++) out[j * w->dv + c] += w->dropped[j] * g[c];
        return;
    }
    double *ds = w->dropped, sum = 0;
    for (int64_t j = 0; j < w->tk; j++) {
        double dp = 0;
        for (int64_t c = 0; c < w->dv; c++) dp += g[c] * w->v[j * w->dv + c];
        ds[j] = dp * kept(w, j);
    }
    for (int64_t c = 0; c < w->dv; c++) sum += o[c] * g[c];
    for (int64_t j = 0; j < w->tk; j++) {
        double s = hidden(w, j) ? 0 : w->p[j] * (ds[j] - sum) * w->scale;
        s = tn_ref_noise_between(w->a->node, DS, w->first + j, s);
        for (int64_t c = 0; c < w->d; c++)
            if (op == TN_OP_attention_dq)
                out[w->i * w->d + c] += s * w->k[j * w->d + c];
            else
                out[j * w->d + c] += s * w->q[c];
    }
}

int tn_ref_attention(const tn_ref_args *a)
{
    const tn_tensor *n = a->node;
    place w = {.a = a, .of = tn_attention_of(n)};
    const tn_tensor *q = w.of.q, *k = w.of.k;
    int nd = q->ndim, at = 4;
    int64_t heads = tn_extent(q->shape, 0, nd - 2), tq = q->shape[nd - 2];
    w.tk = k->shape[nd - 2];
    w.d = q->shape[nd - 1];
    w.dv = w.of.v->shape[nd - 1];
    w.scale = w.of.divided ? 1 / a->in[3][0] : a->in[3][0];
    const double *mask = w.of.mask ? a->in[at++] : NULL, *keep = w.of.keep ? a->in[at++] : NULL;
    if (keep) w.chance = a->in[at++][0];
    const double *o = w.of.go ? a->in[at] : NULL, *lse = o ? a->in[at + 1] : NULL,
                 *go = o ? a->in[at + 2] : NULL;
    double *own = tn_calloc((size_t)(2 * w.tk) + 1, sizeof *own);
    if (!own) return tn_err(a->err, TN_E_NOMEM, "no memory for a row of %lld scores", (long long)w.tk);
    w.p = own;
    w.dropped = own + w.tk;
    for (int64_t h = 0; h < heads; h++) {
        int64_t row_of = n->op == TN_OP_attention_dq   ? tq * w.d
                         : n->op == TN_OP_attention_dk ? w.tk * w.d
                                                       : w.tk * w.dv;
        w.k = a->in[1] + h * w.tk * w.d;
        w.v = a->in[2] + h * w.tk * w.dv;
        for (w.i = 0; w.i < tq; w.i++) {
            int64_t line = h * tq + w.i, inner = w.of.rows ? q->shape[1] : 1, to = line;
            if (w.of.rows) to = (h / inner * tq + w.i) * inner + h % inner;
            w.first = line * w.tk;
            w.q = a->in[0] + line * w.d;
            w.mask = mask ? mask + line * w.tk : NULL;
            w.keep = keep ? keep + line * w.tk : NULL;
            double log_sum = row(&w, lse ? lse + line : NULL);
            if (n->op == TN_OP_attention_lse)
                a->out[line] = log_sum;
            else if (go)
                gradients(&w, n->op, o + line * w.dv, go + line * w.dv, a->out + h * row_of);
            else
                for (int64_t j = 0; j < w.tk; j++)
                    for (int64_t c = 0; c < w.dv; c++)
                        a->out[to * w.dv + c] += w.dropped[j] * w.v[j * w.dv + c];
        }
    }
    tn_free_mem(own);
    return TN_OK;
}
