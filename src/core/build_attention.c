/* build_attention.c - the nodes of an attention: one list of operands for all five.
 *
 *   q, k, v, scale, mask if attr.mask, keep and chance if attr.keep; of a gradient then o, lse, go
 *
 * A kernel makes several of them at once where their operands are the same (fuser/text/attention.c). Start
 * with tn_mk_attention. */
#include <string.h>

#include "build.h"

static bool of_backward(tn_op op)
{
    return op == TN_OP_attention_dq || op == TN_OP_attention_dk || op == TN_OP_attention_dv;
}

tn_tensor *tn_mk_attention(tn_op op, const tn_attention *a)
{
    tn_tensor *in[10], *like = op == TN_OP_attention_dk ? a->k : op == TN_OP_attention_dv ? a->v : a->q;
    int n = 0;
    if (!a->q || !a->k || !a->v || !a->scale) return NULL;
    in[n++] = a->q;
    in[n++] = a->k;
    in[n++] = a->v;
    in[n++] = a->scale;
    if (a->mask) in[n++] = a->mask;
    if (a->keep) {
        in[n++] = a->keep;
        in[n++] = a->keep->in[0];
    }
    if (of_backward(op)) {
        if (!a->o || !a->lse || !a->go) return NULL;
        in[n++] = a->o;
        in[n++] = a->lse;
        in[n++] = a->go;
    }
    bool sums = op == TN_OP_attention_lse, rows = op == TN_OP_attention && a->rows;
    int64_t shape[TN_MAX_DIMS];
    memcpy(shape, like->shape, sizeof shape);
    if (rows) {
        shape[1] = like->shape[2];
        shape[2] = like->shape[1];
    }
    tn_tensor *t = tn_node_new(like->graph, op, sums ? a->fine ? TN_F64 : TN_F32 : like->dtype,
                               like->ndim - sums, shape, n, in);
    tn_attr *attr = t ? tn_node_attr(t) : NULL;
    if (!attr) return NULL;
    attr->attention = (tn_attention_attr){.causal = a->causal,
                                          .mask = a->mask != NULL,
                                          .rows = a->rows,
                                          .strict = a->strict,
                                          .divided = a->divided,
                                          .keep = a->keep != NULL};
    return t;
}

tn_attention tn_attention_of(const tn_tensor *t)
{
    const tn_attention_attr *p = &t->attr->attention;
    int n = 4;
    tn_attention a = {.q = t->in[0],
                      .k = t->in[1],
                      .v = t->in[2],
                      .scale = t->in[3],
                      .causal = p->causal,
                      .strict = p->strict,
                      .divided = p->divided,
                      .rows = p->rows};
    if (p->mask) a.mask = t->in[n++];
    if (p->keep) {
        a.keep = t->in[n];
        a.chance = t->in[n + 1];
        n += 2;
    }
    if (!of_backward(t->op)) return a;
    a.o = t->in[n];
    a.lse = t->in[n + 1];
    a.go = t->in[n + 2];
    return a;
}

bool tn_attention_draws(const tn_tensor *t, int k)
{
    if (tn_kind_of(t) != TN_KIND_ATTENTION) return false;
    const tn_attention_attr *p = &t->attr->attention;
    return p->keep && k == 4 + p->mask;
}
