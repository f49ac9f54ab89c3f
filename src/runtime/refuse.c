/* refuse.c - the work of a run that failed is not done later.
 *
 * Where operators wait, what runs together takes effect together or not at all. After a run that an error
 * ended, its assignments are as if they had not been recorded: their targets have the value that is in
 * memory, and values that depend on the new ones cannot be had. Gradients are what earlier runs have made
 * them. A tensor that was to be kept has no value until it is assigned one. Other values are computed when
 * they are asked for, as ever; one that depends on a bad index fails again.
 *
 * Start with tn_refuse_waiting. */
#include "log.h"
#include "flush.h"

/* Refuses the versions that were to read what n writes, as n has not written it: they have no value. */
static void refuse_versions(tn_graph *g, const tn_tensor *n)
{
    const tn_tensor *to = tn_node_written(n);
    for (uint32_t i = 0; i < g->n_holders && to; i++) {
        tn_tensor *v = g->holder[i];
        if (!(v->flags & TN_F_VERSION) || v->id < n->id || !tn_node_overlap(v, to)) continue;
        v->flags |= TN_F_REFUSED;
        if (v->of && v->of->of == v) v->of->of = NULL;
    }
}

/* n's target is what it was before. */
static void refuse_assignment(tn_graph *g, tn_tensor *n)
{
    refuse_versions(g, n);
    n->flags |= TN_F_REFUSED;
    if (n->of && n->of->of == n) n->of->of = NULL;
    if (n->of && n->flags & TN_F_RESCUES) n->of->flags |= TN_F_REFUSED;
    for (tn_tensor *v = n->lost; v; v = v->lost_next) {
        v->lost_to = NULL;
        v->flags &= ~(uint32_t)TN_F_LOST;
        g->sights.stale = true;
    }
    n->lost = NULL;
}

/* There is a tensor, and no value for it until it is assigned one. */
static void refuse_kept(tn_graph *g, tn_tensor *copy)
{
    refuse_versions(g, copy);
    copy->flags |= TN_F_REFUSED;
    copy->of->flags |= TN_F_REFUSED;
}

/* The gradient is what runs before have made it. */
static void refuse_gradient(tn_graph *g, const struct tn_graded *d)
{
    tn_tensor *holder = d->leaf->of ? d->leaf->of : d->leaf, *before = NULL;
    refuse_versions(g, d->grad);
    d->grad->place = NULL; /* another one's */
    for (uint32_t i = 0; i < g->n_graded; i++) {
        const struct tn_graded *o = &g->graded[i];
        if ((o->leaf->of ? o->leaf->of : o->leaf) == holder && o->grad->id < d->grad->id &&
            tn_has_value(o->grad->base))
            before = o->grad;
    }
    holder->grad = d->leaf->grad = before;
}

void tn_refuse_waiting(tn_session *s, uint32_t first)
{
    tn_graph *g = &s->graph;
    const tn_tape *t = &s->tape; /* nodes of the step before stand for what this one has yet to call */
    const uint32_t end = t->active && t->cursor < t->n ? t->entry[t->cursor].first : g->n_nodes;
    for (uint32_t i = 0; i < g->n_holders; i++) {
        tn_tensor *n = g->holder[i];
        if (tn_has_value(n) || n->id >= end) continue;
        if (tn_kind_of(n) == TN_KIND_ASSIGN)
            refuse_assignment(g, n);
        else if (n->of && n->place == n->of && n->id >= first)
            refuse_kept(g, n);
    }
    for (uint32_t i = 0; i < g->n_graded; i++) {
        const tn_tensor *made = g->graded[i].grad->base;
        if (!tn_has_value(made) && made->id >= first && made->id < end) refuse_gradient(g, &g->graded[i]);
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
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        tn_tensor *n = g->nodes[i];
        if (n->base != n || tn_kind_of(n) == TN_KIND_LEAF || tn_kind_of(n) == TN_KIND_NUMBER) continue;
        n->flags |= TN_F_REFUSED;
        n->flags &= ~(uint32_t)TN_F_DONE;
    }
    tn_refuse_waiting(s, 0);
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
    else if (b->flags & TN_F_VERSION)
        tn_error_set(&s->graph, status, "%s has no value: an error refused the run that was to make it",
                     b->name ? b->name : "a tensor that was kept");
    else
        tn_error_set(&s->graph, status, "%s has no value: an error refused the run it was in", at);
    return status;
}
