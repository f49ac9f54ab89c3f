/* spare.c - gradients that nobody asks for need no memory of their own.
 *
 * A parameter's gradient is written to its place in the slab, where it can be had until the step ends. Where
 * the update reads it as it is made (tn_update_gradient), the run that ends the step knows whether anybody
 * has asked: if not, it is a value of the plan like any other, which dies with its update, or is never stored
 * where one kernel does both. Start with tn_spare_gradients. */
#include "flush.h"
#include "log.h"

static bool looks(tn_tensor *v, void *seen)
{
    if (v->flags & TN_F_VERSION && v->of && v->of->flags & TN_F_GRADIENT) *(bool *)seen = true;
    return true;
}

tn_tensor *tn_update_gradient(tn_tensor *param)
{
    const tn_tensor *p = param ? tn_resolve(param) : NULL;
    if (!p || !(p->flags & TN_F_PARAM) || !p->grad || p->grad_step != p->graph->generation) return NULL;
    tn_session *s = p->graph->session;
    const size_t bytes = (size_t)tn_node_numel(p) * tn_dtype_size(p->dtype);
    if (bytes < s->apart || !tn_deferred(s) || !s->device->shares_host_memory || s->device->is_reference ||
        s->device->no_compiler || tn_ranks(s) > 1 || s->caught || s->explain->check || tn_has_value(p->grad))
        return NULL;
    p->grad->flags |= TN_F_UPDATES;
    return tn_handle(p->grad);
}

int tn_spare_gradients(tn_session *s)
{
    tn_graph *g = &s->graph;
    for (uint32_t i = 0; i < g->n_graded; i++) {
        const tn_tensor *leaf = g->graded[i].leaf, *p = leaf->of;
        tn_tensor *grad = g->graded[i].grad;
        if (!(grad->flags & TN_F_UPDATES) || tn_has_value(grad) || !p || p->grad != grad) continue;
        bool seen = !s->ending || grad->flags & TN_F_ASKED || !(grad->flags & TN_F_CONSUMED);
        if (!seen && !tn_graph_meet(g, &g->sights, p->place, 0, UINT32_MAX, looks, &seen)) return TN_E_NOMEM;
        if ((grad->place == NULL) == !seen) continue;
        grad->place = seen ? p->place : NULL;
        g->writers.stale = g->sights.stale = true;
    }
    return TN_OK;
}

void tn_ask_gradient(tn_tensor *p)
{
    tn_graph *g = p->graph;
    tn_tensor *grad = p->grad;
    if (!(grad->flags & TN_F_ASKED) && grad->flags & TN_F_UPDATES && !grad->place) {
        tn_tape_cut(g->session); /* the plan of the step that is repeated has no place for it */
        grad->place = p->place;
        g->writers.stale = g->sights.stale = true;
    }
    grad->flags |= TN_F_ASKED;
}

int tn_gradient_room(tn_session *s, const tn_tensor *x)
{
    const tn_slab *b = &s->slab[x->dtype];
    uintptr_t low, high;
    if (!b->gradient_base || !tn_node_bytes(x, &low, &high)) return TN_OK;
    const size_t first = (size_t)(low - (uintptr_t)b->gradient_base), bytes = (size_t)(high - low);
    if (first >= b->reserved || !s->device->commit(s->device, b->gradient_base, first, bytes)) return TN_OK;
    return tn_error_of(&s->graph, NULL, TN_E_NOMEM, "no memory for %zu bytes of gradients", bytes);
}
