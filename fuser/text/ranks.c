/* ranks.c - steps of a plan that no kernel computes: what all ranks do together, which the runtime hands to
 * whoever connects them, and functions of the user's, which it calls. Start with fu_emit_ranks. */
#include "raw.h"

int fu_emit_ranks(fu_ctx *c, const fu_group *g)
{
    const int node = g->member[0];
    const tn_tensor *t = c->node[node].t, *whole = tn_together_of(t) == TN_SCATTER ? t->in[0] : t;
    const int64_t size = (int64_t)tn_dtype_size(t->dtype), lines = whole->ndim ? whole->shape[0] : 1;
    int slot;
    int64_t offset;
    const int status = fu_dense_operand(c, t->in[0], &slot, &offset);
    if (status) return status;
    tn_step *s = fu_step_new(c, TN_STEP_RANKS, tn_op_get(t->op)->name);
    if (!s) return TN_E_NOMEM;
    if (fu_step_buf(c, s, slot, offset) < 0 || fu_step_buf(c, s, node, 0) < 0 ||
        fu_step_dim(c, s, tn_node_numel(whole)) < 0 || fu_step_dim(c, s, size) < 0 ||
        fu_step_dim(c, s, tn_together_of(t)) < 0 || fu_step_dim(c, s, lines) < 0)
        return TN_E_NOMEM;
    s->n_out = 1;
    s->bytes = (tn_node_numel(t->in[0]) + tn_node_numel(t)) * size;
    const tn_step *last = c->plan->together ? &c->plan->step[c->plan->together - 1] : NULL;
    if (tn_together_of(t) != TN_GATHER || !last || last->dim[TN_RANKS_HOW] == TN_GATHER)
        c->plan->together = c->plan->n_step;
    return 0;
}

int fu_emit_host(fu_ctx *c, const fu_group *g)
{
    const int node = g->member[0];
    const tn_tensor *t = c->node[node].t;
    const char *name = t->call && t->call->of ? t->call->of->name : t->call ? t->call->name : NULL;
    tn_step *s = NULL;
    int slot[2 + TN_MAX_ARGS];
    int64_t offset[2 + TN_MAX_ARGS];
    for (int i = 0; i < t->n_in; i++) { /* may add steps that lay them out */
        const int status = fu_dense_operand(c, t->in[i], &slot[i], &offset[i]);
        if (status) return status;
    }
    if (!(s = fu_step_new(c, TN_STEP_HOST, name ? name : tn_op_get(t->op)->name))) return TN_E_NOMEM;
    for (int i = 0; i < t->n_in; i++) {
        if (fu_step_buf(c, s, slot[i], offset[i]) < 0) return TN_E_NOMEM;
        s->bytes += fu_bytes(t->in[i]);
    }
    if (fu_step_buf(c, s, node, 0) < 0) return TN_E_NOMEM;
    s->n_out = 1;
    s->bytes += fu_bytes(t);
    return 0;
}
