/* refuse.c - what a run that failed was to do is not done later.
 *
 * Where operators wait, what runs together takes effect together or not at all. After a run that an error
 * ended, its assignments are as if they had not been recorded: their targets stand for what is in memory, and
 * what was made of the values they were to have cannot be had. Gradients that were to come of it are none.
 * Other values are made when they are asked for, as ever; one that stands behind a bad index fails again.
 *
 * Start with tn_refuse_waiting.
 */
#include "explain.h"
#include "flush.h"

/* n's target is what it was before. */
static void refuse_assignment(tn_graph *g, tn_tensor *n)
{
    n->flags |= TN_F_REFUSED;
    if (n->of && n->of->of == n) n->of->of = NULL;
    for (uint32_t i = 0; i < g->n_holders; i++) {
        tn_tensor *v = g->holder[i];
        if (v->lost_to != n) continue;
        v->lost_to = NULL;
        v->flags &= ~(uint32_t)TN_F_LOST;
    }
}

static void refuse_gradient(const struct tn_graded *d)
{
    tn_tensor *holder = d->leaf->of ? d->leaf->of : d->leaf;
    d->grad->place = NULL; /* another one's */
    holder->grad = d->leaf->grad = NULL;
}

void tn_refuse_waiting(tn_session *s, uint32_t first)
{
    tn_graph *g = &s->graph;
    for (uint32_t i = 0; i < g->n_holders; i++)
        if (tn_kind_of(g->holder[i]) == TN_KIND_ASSIGN && !tn_has_value(g->holder[i]))
            refuse_assignment(g, g->holder[i]);
    for (uint32_t i = 0; i < g->n_graded; i++) {
        const tn_tensor *made = g->graded[i].grad->base;
        if (!tn_has_value(made) && made->id >= first) refuse_gradient(&g->graded[i]);
    }
}

void tn_refuse_nodes(tn_session *s, const tn_flush_scratch *f)
{
    for (int i = 0; i < f->node.n; i++)
        if (tn_kind_of(f->node.at[i]) == TN_KIND_ASSIGN) refuse_assignment(&s->graph, f->node.at[i]);
}

void tn_refuse_all(tn_session *s)
{
    tn_graph *g = &s->graph;
    if (g->parked && !s->tape.active) return; /* the nodes of a step that is over */
    tn_refuse_waiting(s, 0);
    for (uint32_t i = 0; i < g->n_graded; i++) refuse_gradient(&g->graded[i]);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        tn_tensor *n = g->nodes[i];
        if (n->base != n || tn_kind_of(n) == TN_KIND_LEAF || tn_kind_of(n) == TN_KIND_NUMBER) continue;
        if (tn_kind_of(n) == TN_KIND_ASSIGN)
            refuse_assignment(g, n);
        else
            n->flags |= TN_F_REFUSED;
        n->flags &= ~(uint32_t)TN_F_DONE;
    }
}

int tn_refused(tn_session *s, const tn_tensor *b)
{
    char at[200];
    const int status = tn_node_indexes(b) ? TN_E_INDEX : TN_E_NOT_KEPT;
    tn_node_where(b, at, sizeof at);
    if (tn_kind_of(b) == TN_KIND_ASSIGN)
        tn_error_set(&s->graph, status, "%s, to %s, did not take place: an error refused the run it was in",
                     at, b->name ? b->name : "a tensor");
    else if (status == TN_E_INDEX)
        tn_error_set(&s->graph, status, "%s has no value: an index of it was out of range", at);
    else
        tn_error_set(&s->graph, status, "%s has no value: there was an index out of range where it ran", at);
    return status;
}
