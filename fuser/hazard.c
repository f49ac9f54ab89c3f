/* hazard.c - order through memory: what an assignment, or a value written to a place of its own, overwrites.
 *
 * Most nodes depend on each other through values. A *writer* also changes memory that leaves look into: a
 * version of a parameter recorded before it must have been read by then, one recorded after it must not be
 * read until then. Which of the two follows from the ids: the record is the program's order.
 *
 *   fu_order_writers   adds that order to the nodes' dependences
 *   fu_reads           whether an operand looks into memory that a writer overwrites, before or after it
 *
 * Within one kernel a writer may overwrite only what the kernel has read at the same element: program.c.
 */
#include "fuser.h"

fu_sight fu_reads(const fu_ctx *c, const tn_tensor *x, const tn_tensor *writer)
{
    const tn_tensor *to = tn_node_written(writer);
    x = fu_value_of(c, x);
    const tn_tensor *b = x->base;
    if (!to || b == writer || tn_op_get((tn_op)b->op)->kind == TN_KIND_NUMBER) return FU_UNSEEN;
    if (fu_node_of(c, x) >= 0 && !tn_node_written(b)) return FU_UNSEEN; /* a value of the plan's own */
    if (!tn_node_overlap(x, to)) return FU_UNSEEN;
    return b->id < writer->id ? FU_OLD : FU_NEW;
}

static bool overwrites_older(const tn_tensor *a, const tn_tensor *b)
{
    const tn_tensor *x = tn_node_written(a), *y = tn_node_written(b);
    return x && y && b->id < a->id && tn_node_overlap(x, y);
}

static int order_writer(fu_ctx *c, int w)
{
    const tn_tensor *writer = c->node[w].t;
    for (int i = 0; i < c->n_node; i++) {
        const tn_tensor *t = c->node[i].t;
        if (i == w || !c->node[i].live) continue;
        bool before = overwrites_older(writer, t), after = false;
        for (int k = t->op == TN_OP_assign ? 1 : 0; k < t->n_in; k++) {
            fu_sight s = fu_reads(c, t->in[k], writer);
            before = before || s == FU_OLD;
            after = after || s == FU_NEW;
        }
        if (before && !fu_note_after(c, w, i)) return TN_E_NOMEM;
        if (after && !fu_note_after(c, i, w)) return TN_E_NOMEM;
    }
    return 0;
}

int fu_order_writers(fu_ctx *c)
{
    int status = 0;
    for (int w = 0; w < c->n_node && !status; w++)
        if (c->node[w].live && tn_node_written(c->node[w].t)) status = order_writer(c, w);
    return status;
}
