/* assign.c - writing to what outlives a step.
 *
 * An assignment makes a new version of its target. The version node that earlier operators of the step read
 * keeps the old value: where a backward may still want it, it is copied out first. Read first: tn_assign_at.
 */

#include "../runtime/log.h"

typedef struct asking {
    tn_session *s;
    const tn_tensor *of;
    tn_tensor *writer;
    bool found;
    int status;
} asking;

/* Returns true where v's value may be asked for again: a backward has still to read it, or the user has a
 * view of it that no operator has read or, where operators run at their call, it is a gradient he has. */
static bool still_wanted(const tn_graph *g, const tn_tensor *v)
{
    bool wanted = v->read == g->reads || (v->flags & TN_F_ASKED && !tn_deferred(g->session));
    for (const tn_tensor *k = v->views; k && !wanted; k = k->views)
        wanted = (k->flags & (TN_F_USER | TN_F_CONSUMED)) == TN_F_USER;
    return wanted;
}

/* v's value as memory of its own. */
static int copy_out(tn_session *s, tn_tensor *v)
{
    tn_graph *g = &s->graph;
    size_t bytes = (size_t)tn_node_numel(v) * tn_elem_size(g, v->dtype);
    tn_storage *copy = tn_storage_new(g, bytes);
    if (!copy || s->device->copy(s->device, copy->data, tn_node_data(v), bytes)) {
        tn_storage_release(copy);
        return tn_error_of(g, NULL, TN_E_NOMEM, "no memory to keep the old value of '%s'",
                           v->name ? v->name : "");
    }
    tn_storage_release(v->buf);
    v->buf = copy;
    v->place = NULL;
    v->flags &= ~(uint32_t)TN_F_VERSION;
    g->unrepeatable = true; /* the copy was made now */
    return TN_OK;
}

/* A step node that looks into memory which may be assigned to: a version, or what was assigned before. */
static bool looks_into(const tn_tensor *v, const tn_tensor *p)
{
    if (v->flags & TN_F_REFUSED) return false;
    return (v->flags & TN_F_VERSION || tn_node_written(v)) && tn_node_overlap(v, p);
}

/* Returns true where nobody can ask for v any more: the user has neither v nor a view of it, and v stands for
 * no tensor of the user's. */
static bool is_out_of_sight(const tn_tensor *v)
{
    return !(v->flags & TN_F_USER) && !v->views && v->of && v->of->of != v;
}

static bool release(tn_tensor *v, void *arg)
{
    asking *a = arg;
    if (v->flags & TN_F_LOST) return false;
    if (a->status || !looks_into(v, a->of)) return true;
    const bool wanted = still_wanted(&a->s->graph, v) && tn_has_value(v);
    /* outside a step a view is an alias: it sees the new value */
    if (!wanted && !a->s->in_step) return !is_out_of_sight(v);
    if (v->of && v->of->of == v) v->of->of = NULL;
    if (wanted)
        a->status = copy_out(a->s, v);
    else
        tn_node_lose(v, a->writer);
    return false;
}

/* Before p's memory is overwritten: step nodes that look into it keep what they saw. One that may be asked
 * for again gets the old value as memory of its own; any other is lost to `writer` once that has run, so that
 * needing it again is an error and never a wrong number. Readers recorded before stand before the writer. */
static int release_versions(tn_session *s, tn_tensor *p, tn_tensor *writer)
{
    asking a = {.s = s, .of = p, .writer = writer};
    if (!tn_graph_meet(&s->graph, &s->graph.sights, p, 0, writer->id, release, &a)) return TN_E_NOMEM;
    return a.status;
}

static bool is_to_settle(tn_tensor *v, void *arg)
{
    asking *a = arg;
    const tn_tensor *p = a->of ? a->of : v;
    if (v->flags & TN_F_LOST) return false;
    a->found =
        a->found || (looks_into(v, p) && still_wanted(&a->s->graph, v) && tn_is_awaited(a->s, v, UINT32_MAX));
    return true;
}

/* Runs what waits where an old value has to be copied out before an assignment to p (NULL: to anything), and
 * its memory is still to be written: a copy can only be taken of what has run. */
static int settle(tn_session *s, const tn_tensor *p)
{
    asking a = {.s = s, .of = p};
    if (!tn_graph_meet(&s->graph, &s->graph.sights, p, 0, UINT32_MAX, is_to_settle, &a)) return TN_E_NOMEM;
    if (!a.found) return TN_OK;
    tn_tape_end(s);
    return tn_run(s, 0, NULL);
}

int tn_make_room(tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (tn_deferred(s) && !s->tape.active) settle(s, NULL); /* a step that is repeated needed none */
    return s->graph.error.status;
}

/* Gradients that p covers are what has been assigned to them: tn_gradient gives that, and a backward adds to it. */
static int regrade(tn_session *s, const tn_tensor *p)
{
    tn_graph *g = &s->graph;
    for (int i = 0; p->flags & TN_F_GRADIENT && i < s->n_params; i++) {
        tn_tensor *w = s->params[i];
        if (!w->grad || w->grad_step != g->generation || !tn_node_overlap(w->place, p)) continue;
        tn_ask_gradient(w); /* it is to stand there */
        tn_tensor *now = tn_use(w->place), *leaf = now ? tn_use(w) : NULL;
        if (!leaf || !tn_graph_grade(g, leaf, now)) break;
        now->flags |= TN_F_USER; /* as those of a backward */
        w->grad = now;
    }
    return g->error.status;
}

/* After an error no effect of the step takes place. */
int tn_assign_node(tn_tensor *p, tn_tensor *target, const tn_lines *lines, tn_tensor *source, bool defer)
{
    tn_graph *g = p->graph;
    tn_session *s = g->session;
    if (g->error.status || !source) return g->error.status ? g->error.status : TN_E_NULL;
    bool waits = tn_deferred(s);
    if (waits && settle(s, p)) return g->error.status;
    tn_tensor *node = lines ? tn_mk_assign_rows(target, lines->axis, lines->index, source, lines->in_range)
                            : tn_mk_assign(target, source);
    if (!node || release_versions(s, p, node)) return g->error.status;
    if (target->base->buf && !tn_node_overlap(target, p)) { /* the old version has moved away */
        p->of = NULL;
        target = tn_mk_reshape(tn_use(p), target->ndim, target->shape);
        if (!target) return g->error.status;
        node->in[0] = target;
        target->base->flags |= TN_F_TARGET;
    }
    p->of = NULL;
    node->of = p;
    node->name = p->name;
    if (s->in_step) tn_node_lose(target->base, node);
    if (!defer && !waits) {
        int status = tn_run(s, 1, &node);
        if (!status) p->flags &= ~(uint32_t)TN_F_REFUSED;
        return status ? status : regrade(s, p);
    }
    if (p->flags & TN_F_REFUSED) node->flags |= TN_F_RESCUES;
    p->flags &= ~(uint32_t)TN_F_REFUSED;
    if (!waits) g->pending_assigns++; /* runs with the operator around it */
    if (tn_same_shape(node, p)) {     /* until it has run it is p's version */
        node->flags |= TN_F_STANDS | (p->flags & (TN_F_REQUIRES_GRAD | TN_F_PARAM));
        p->of = node;
    }
    return regrade(s, p);
}

static bool outlives(tn_scope *sc, const tn_tensor *p)
{
    if (!sc->ok || p->flags & TN_F_PERSISTENT) return sc->ok;
    tn_error_set(
        sc->g, TN_E_STATE,
        "the target dies with its step; only parameters, buffers and kept tensors can be assigned to%s",
        p->call && p->call->backward ? ", and gradients where they stand: tn_param_slab, tn_param_range"
                                     : "");
    return sc->ok = false;
}

static int end_assignment(tn_scope *sc, int status)
{
    if (!status) tn_tape_done(sc->g->session, sc->note, 0, NULL);
    tn_call_end(sc->g);
    return status;
}

TN_AT(int, assign, (target, source), tn_tensor *target, tn_tensor *source)
{
    tn_tensor *p = target ? tn_resolve(target) : NULL;
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "assign", file, line, 2, 0, &target, &source);
    if (!sc.g) return TN_E_NULL;
    if (sc.entry) return TN_OK;
    if (!outlives(&sc, p)) return end_assignment(&sc, sc.g->error.status);
    return end_assignment(&sc, tn_assign_node(p, target, NULL, source, sc.g->call_depth > 1));
}

TN_AT(int, assign_rows, (target, axis, index, source), tn_tensor *target, int axis, tn_tensor *index,
      tn_tensor *source)
{
    tn_tensor *p = target ? tn_resolve(target) : NULL;
    tn_scope sc = tn_enter_as(TN_ATTR(axis), "assign_rows", file, line, 3, 0, &target, &index, &source);
    if (!sc.g) return TN_E_NULL;
    if (sc.entry) return TN_OK;
    tn_lines lines = {.axis = outlives(&sc, p) ? tn_axis(sc.g, target, axis) : -1, .index = index};
    if (lines.axis < 0) return end_assignment(&sc, sc.g->error.status);
    return end_assignment(&sc, tn_assign_node(p, target, &lines, source, sc.g->call_depth > 1));
}
