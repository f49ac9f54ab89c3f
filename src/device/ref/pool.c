/* pool.c - windows over images [n, h, w, c], one channel at a time.
 *
 * Six ops, one walk: for every output element the elements of its window that lie inside the image. Padding
 * takes part in nothing. pool_spread is the transpose of pool_sum and pool_put that of pool_take, so they
 * walk the same pairs and add the other way. Read first: window. */
#include "internal.h"

#include <math.h>

typedef struct pool {
    tn_op op;
    const tn_pool_attr *attr;
    int64_t c;
    const double *x;              /* in[0], in whichever of the two shapes the op reads */
    const tn_ref_int *xi, *index; /* xi: x where it is of integers */
    double *out;
    tn_ref_int *outi; /* likewise */
} pool;

/* The output element at `y_at`, whose window's top left corner is (top, left) of image n. */
static void window(const pool *p, int64_t n, int64_t top, int64_t left, int64_t ch, int64_t y_at)
{
    const tn_pool_attr *t = p->attr;
    double best = -INFINITY, sum = 0;
    int64_t chosen = 0, most = 0;
    bool any = false;
    for (int64_t k = 0; k < t->window[0] * t->window[1]; k++) {
        int64_t ih = top + k / t->window[1], iw = left + k % t->window[1];
        if (ih < 0 || ih >= t->h || iw < 0 || iw >= t->w) continue;
        int64_t x_at = ((n * t->h + ih) * t->w + iw) * p->c + ch;
        if (p->op == TN_OP_pool_spread) {
            p->out[x_at] += p->x[y_at];
        } else if (p->op == TN_OP_pool_put) {
            if (p->index[y_at] == k) p->out[x_at] += p->x[y_at];
        } else if (p->op == TN_OP_pool_take) {
            if (p->index[y_at] == k) p->out[y_at] = p->x[x_at];
        } else if (p->xi) {
            if (!any || p->xi[x_at] > most) {
                most = p->xi[x_at];
                chosen = k;
                any = true;
            }
        } else {
            double v = p->x[x_at];
            sum += v;
            if (!any || v > best || (isnan(v) && !isnan(best))) {
                best = v;
                chosen = k;
                any = true;
            }
        }
    }
    if (p->op == TN_OP_pool_sum) p->out[y_at] = sum;
    if (p->op == TN_OP_pool_argmax)
        p->outi[y_at] = chosen;
    else if (p->op == TN_OP_pool_max && p->xi)
        p->outi[y_at] = most;
    else if (p->op == TN_OP_pool_max)
        p->out[y_at] = best;
}

int tn_ref_pool(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    const tn_pool_attr *t = &node->attr->pool;
    pool p = {.op = node->op, .attr = t, .c = node->shape[3], .x = a->in[0], .out = a->out};
    p.xi = tn_ref_ints(node->in[0], a->in[0]);
    p.outi = tn_ref_out(a);
    if (node->n_in > 1) p.index = tn_ref_ints(node->in[1], a->in[1]);
    for (int64_t n = 0; n < node->shape[0]; n++) {
        for (int64_t oh = 0; oh < t->oh; oh++) {
            for (int64_t ow = 0; ow < t->ow; ow++) {
                int64_t top = oh * t->stride[0] - t->pad[0], left = ow * t->stride[1] - t->pad[2];
                for (int64_t ch = 0; ch < p.c; ch++)
                    window(&p, n, top, left, ch, ((n * t->oh + oh) * t->ow + ow) * p.c + ch);
            }
        }
    }
    return TN_OK;
}
