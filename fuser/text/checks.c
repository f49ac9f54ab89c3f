/* checks.c - the kernels that look indices through before anything is assigned (graph/lookups.c), where no
 * other kernel does so in time. Start with fu_emit_checks. */
#include "text.h"

#include <stdio.h>

static int emit_check(fu_ctx *c, const fu_lookup *l)
{
    if (!fu_lookahead_program(c, l))
        return fu_fail(c, TN_E_INTERNAL, "an index can no longer be looked through");
    const int slot = fu_scratch_slot(c, tn_node_numel(l->index), TN_I64), at = c->plan->n_step;
    if (slot < 0) return slot;
    fu_group none = {0};
    c->prog->store[0].slot = slot;
    const int status = fu_emit(c, &none, c->prog);
    if (status) return status;
    const tn_tensor *t = c->node[l->node].t;
    char text[160];
    snprintf(text, sizeof text, "looks whether all %s are from 0 to %lld, before anything is assigned",
             t->attr->indexed_by ? t->attr->indexed_by : "indices", (long long)l->extent - 1);
    tn_step *s = &c->plan->step[at];
    s->first_node = at; /* none, but not those of the step before */
    s->does = tn_arena_strdup(&c->plan->arena, text);
    return s->does ? 0 : fu_fail(c, TN_E_NOMEM, "no memory for a plan");
}

int fu_emit_checks(fu_ctx *c)
{
    int status = 0;
    for (int i = 0; i < c->n_lookup && !status; i++) {
        const fu_lookup *l = &c->lookup[i];
        if (!l->known && l->ahead && !l->first) status = emit_check(c, l);
    }
    return status;
}
