/* lost.c - values whose memory has been written over since: by an assignment, which says so (assign.c), or by
 * the gradients of a later backward. To need one again is TN_E_NOT_KEPT. Start with tn_lost_to. */
#include "flush.h"

/* Gradients are written in their slab without an assignment: over a version of the slab, and over a gradient
 * that has run, which a reader recorded later may find there in place of the old one. */
static const tn_tensor *gradient_over(const tn_tensor *v, uint32_t reader)
{
    const tn_graph *g = v->graph;
    const bool slab = v->flags & TN_F_VERSION && v->of && v->of->flags & TN_F_GRADIENT;
    const bool gradient = v->place && v->flags & TN_F_DONE && tn_kind_of(v) != TN_KIND_ASSIGN;
    if (!(slab || (gradient && tn_deferred(g->session))) || !g->session->in_step) return NULL;
    for (uint32_t i = g->n_holders; i-- > 0 && g->holder[i]->id > v->id;) {
        const tn_tensor *h = g->holder[i];
        const bool written = h->place && tn_kind_of(h) != TN_KIND_ASSIGN && tn_has_value(h);
        if (written && (slab || h->id > reader) && tn_node_overlap(h->place, slab ? v : v->place)) return h;
    }
    return NULL;
}

const tn_tensor *tn_lost_to(const tn_tensor *v, uint32_t reader)
{
    const tn_tensor *w = v->flags & TN_F_LOST ? v->lost_to : NULL;
    return w && tn_has_value(w) ? w : gradient_over(v, reader);
}
