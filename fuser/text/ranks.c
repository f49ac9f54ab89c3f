/* ranks.c - what all ranks do together as steps of a plan: the runtime hands them to whoever connects the
 * ranks. Start with fu_emit_ranks. */
#include "raw.h"

int fu_emit_ranks(fu_ctx *c, const fu_group *g)
{
    const int node = g->member[0];
    const tn_tensor *t = c->node[node].t;
    int slot;
    int64_t offset;
    const int status = fu_dense_operand(c, t->in[0], &slot, &offset);
    if (status) return status;
    tn_step *s = fu_step_new(c, TN_STEP_RANKS, tn_op_get(t->op)->name);
    if (!s) return TN_E_NOMEM;
    if (fu_step_buf(c, s, slot, offset) < 0 || fu_step_buf(c, s, node, 0) < 0 ||
        fu_step_dim(c, s, tn_node_numel(t)) < 0 || fu_step_dim(c, s, (int64_t)tn_dtype_size(t->dtype)) < 0)
        return TN_E_NOMEM;
    s->n_out = 1;
    s->bytes = 2 * tn_node_numel(t) * (int64_t)tn_dtype_size(t->dtype);
    c->plan->together = c->plan->n_step;
    return 0;
}
