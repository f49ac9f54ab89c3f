/* replay.c - matching a step's calls with those of the step before (replay.h). Start with tn_tape_match. */
#include "replay.h"

#include <string.h>

#include "log.h"

/* ---- the tape's memory ---- */

static void flush_record_free(tn_flush_record *r)
{
    if (!r) return;
    tn_flush_scratch_free(&r->f);
    tn_plan_free(r->plan);
    tn_free_mem(r);
}

/* Forgets the entries from n on. */
static void shorten(tn_tape *t, int n)
{
    if (n < t->n) {
        t->n_ref = t->entry[n].ref;
        t->n_attr = t->entry[n].attr;
    }
    for (int i = n; i < t->n; i++) flush_record_free(t->entry[i].flush);
    t->n = n;
}

void tn_tape_free(tn_session *s)
{
    tn_tape *t = &s->tape;
    shorten(t, 0);
    tn_free_mem(t->entry);
    tn_free_mem(t->ref);
    tn_free_mem(t->attr);
    memset(t, 0, sizeof *t);
}

/* ---- noting ---- */

static bool is_noted(const tn_session *s) { return s->tape.recording && tn_deferred(s); }

static tn_entry *entry_new(tn_tape *t, uint32_t refs, uint32_t bytes)
{
    if (!tn_reserve(&t->entry, &t->cap, t->n + 1, sizeof *t->entry)) return NULL;
    if (!tn_reserve(&t->ref, &t->cap_ref, (int64_t)t->n_ref + refs, sizeof *t->ref)) return NULL;
    if (!tn_reserve(&t->attr, &t->cap_attr, (int64_t)t->n_attr + bytes + 1, 1)) return NULL;
    tn_entry *e = &t->entry[t->n++];
    *e = (tn_entry){.ref = t->n_ref, .attr = t->n_attr, .attr_bytes = bytes};
    t->n_ref += refs;
    t->n_attr += bytes;
    return e;
}

int tn_tape_note(tn_session *s, tn_entry_kind kind, const char *name, const tn_op_key *key, int n,
                 tn_tensor *const *given, tn_tensor *const *as, uint32_t first)
{
    tn_tape *t = &s->tape;
    if (!is_noted(s)) return -1;
    tn_entry *e = entry_new(t, (uint32_t)(2 * n), (uint32_t)(key->bytes[0] + key->bytes[1]));
    if (!e) { /* a step that cannot be noted is recorded again next time */
        tn_tape_end(s);
        return -1;
    }
    e->kind = kind;
    e->name = name;
    e->first = first;
    e->n_arg = (uint16_t)n;
    e->training = s->graph.training;
    e->no_grad = s->graph.no_grad > 0;
    e->products = (uint8_t)s->graph.products;
    e->region = s->graph.region;
    e->number = key->number != NULL;
    e->is_int = key->number && key->number->is_int;
    e->call = s->graph.call;
    for (int i = 0; i < n; i++) {
        t->ref[e->ref + 2 * i] = given[i];
        t->ref[e->ref + 2 * i + 1] = as[i];
    }
    unsigned char *to = t->attr + e->attr;
    for (int i = 0; i < 2; i++) {
        if (key->bytes[i]) memcpy(to, key->part[i], key->bytes[i]);
        to += key->bytes[i];
    }
    return t->n - 1;
}

static uint32_t holder_at(const tn_graph *g, uint32_t id)
{
    uint32_t i = g->n_holders;
    while (i && g->holder[i - 1]->id >= id) i--;
    return i;
}

void tn_tape_done(tn_session *s, int entry, int n, tn_tensor *const *results)
{
    tn_tape *t = &s->tape;
    tn_graph *g = &s->graph;
    if (entry < 0 || !is_noted(s)) return;
    shorten(t, entry + 1); /* what it called is part of it */
    tn_entry *e = &t->entry[entry];
    t->n_ref = e->ref + 2 * e->n_arg + (uint32_t)n;
    if (!tn_reserve(&t->ref, &t->cap_ref, (int)t->n_ref, sizeof *t->ref)) {
        tn_tape_end(s);
        return;
    }
    for (int i = 0; i < n; i++) tn_entry_results(t, e)[i] = results[i];
    e->n_result = (uint16_t)n;
    e->end = g->n_nodes;
    e->holder0 = holder_at(g, e->first);
    e->holder1 = g->n_holders;
    e->graded1 = g->n_graded;
    e->graded0 = entry ? t->entry[entry - 1].graded1 : 0;
    e->seen = g->gradients_seen;
    e->written = g->gradients_written;
    const tn_number *number = NULL;
    bool one = true; /* all scalars of the call are the number it was given */
    for (uint32_t i = e->first; i < e->end; i++) {
        const tn_tensor *made = g->nodes[i];
        e->random = e->random || tn_kind_of(made) == TN_KIND_RANDOM;
        if (made->op != TN_OP_scalar) continue;
        const tn_number *v = &made->attr->number;
        one = one && (!number || (number->f == v->f && number->i == v->i && number->is_int == v->is_int));
        number = v;
    }
    if (e->number && !(one && number)) tn_tape_end(s);
}

void tn_tape_end(tn_session *s)
{
    tn_tape *t = &s->tape;
    if (t->active) tn_tape_cut(s);
    t->recording = false;
    t->broken = true;
}

/* ---- matching ---- */

static bool is_same(const tn_session *s, const tn_entry *e, tn_entry_kind kind, const char *name,
                    const tn_op_key *key, int n)
{
    const unsigned char *was = s->tape.attr + e->attr;
    return e->kind == kind && (e->name == name || !strcmp(e->name, name)) && e->n_arg == n &&
           e->training == s->graph.training && e->no_grad == (s->graph.no_grad > 0) &&
           e->products == (uint8_t)s->graph.products && e->region == s->graph.region &&
           e->attr_bytes == key->bytes[0] + key->bytes[1] && e->number == (key->number != NULL) &&
           (!e->number || e->is_int == key->number->is_int) &&
           (!key->bytes[0] || !memcmp(was, key->part[0], key->bytes[0])) &&
           (!key->bytes[1] || !memcmp(was + key->bytes[0], key->part[1], key->bytes[1]));
}

static bool alike(const tn_tensor *p, const tn_tensor *v)
{
    enum { SAME = TN_F_REQUIRES_GRAD | TN_F_PARAM };
    if (p->dtype != v->dtype || p->ndim != v->ndim || (p->flags ^ v->flags) & SAME || p->offset != v->offset)
        return false;
    for (int i = 0; i < p->ndim; i++)
        if (p->shape[i] != v->shape[i] || p->stride[i] != v->stride[i]) return false;
    return true;
}

/* Lets the version node that this call recorded for a persistent operand stand for `now`: the same tensor
 * as then, or another like it whose memory is its own (the next batch). */
static bool bind_version(tn_tensor *now, const tn_tensor *then, tn_tensor *version)
{
    if (!alike(now, version) || !now->base->buf || now->flags & TN_F_REFUSED) return false;
    version->flags &= ~(uint32_t)TN_F_REFUSED;
    if (now != then && (now->flags & (TN_F_PARAM | TN_F_GRADIENT) || now->base->buf->borrowed)) return false;
    if (now != then && version->flags & TN_F_TARGET)
        return false; /* an assignment knows the tensor it is for */
    version->of = now;
    now->of = version;
    if (version->buf) tn_storage_release(version->buf);
    version->buf = now->base->buf;
    tn_storage_retain(version->buf);
    version->flags |= TN_F_DONE;
    return true;
}

static bool bind_operand(const tn_entry *e, tn_tensor *now, const tn_tensor *then, tn_tensor *as)
{
    if (!now || !as) return now == as;
    if (!(now->flags & TN_F_PERSISTENT)) return now == as;
    if (now->of == as) return true;
    bool fresh = as->flags & TN_F_VERSION && as->id >= e->first && as->id < e->end;
    if (as->flags & TN_F_DONE) return false; /* it stands for another operand, which was the same one then */
    return fresh && !(now->of && now->of->id >= e->first) && bind_version(now, then, as);
}

/* Repeats the other effects of the call: versions that assignments replaced, gradients, numbers, draws. */
static bool effects(tn_session *s, const tn_entry *e, const tn_number *number)
{
    tn_graph *g = &s->graph;
    for (uint32_t h = e->holder0; h < e->holder1; h++) {
        tn_tensor *n = g->holder[h];
        if (n->flags & TN_F_VERSION && !n->buf) return false; /* of a tensor that was no operand */
        if (tn_kind_of(n) != TN_KIND_ASSIGN) continue;
        if (!n->of) return false; /* its target is gone */
        for (tn_tensor *v = n->lost; v; v = v->lost_next) {
            v->flags |= TN_F_LOST;
            if (v->of && v->of->of == v) v->of->of = NULL;
        }
        n->of->of = n->flags & TN_F_STANDS ? n : NULL;
    }
    for (uint32_t i = e->graded0; i < e->graded1; i++) {
        tn_tensor *leaf = g->graded[i].leaf, *holder = leaf->of ? leaf->of : leaf;
        holder->grad = g->graded[i].grad;
        holder->grad_step = g->generation;
    }
    for (uint32_t i = e->first; i < e->end && (number || e->random); i++) {
        tn_tensor *n = g->nodes[i];
        if (number && n->op == TN_OP_scalar) n->attr->number = *number;
        if (!e->random || tn_kind_of(n) != TN_KIND_RANDOM) continue;
        n->attr->draw = g->draw++;
        n->attr->seed = g->seed;
    }
    g->gradients_seen = e->seen;
    g->gradients_written = e->written;
    g->total_nodes += e->end - e->first;
    return true;
}

tn_entry *tn_tape_match(tn_session *s, tn_entry_kind kind, const char *name, const tn_op_key *key, int n,
                        tn_tensor *const *given)
{
    tn_tape *t = &s->tape;
    if (!t->active) return NULL;
    tn_entry *e = t->cursor < t->n ? &t->entry[t->cursor] : NULL;
    bool same = e && !s->graph.error.status && is_same(s, e, kind, name, key, n);
    for (int i = 0; i < n && same; i++)
        same = bind_operand(e, given[i], t->ref[e->ref + 2 * i], t->ref[e->ref + 2 * i + 1]);
    if (!same || !effects(s, e, key->number)) {
        tn_tape_cut(s);
        return NULL;
    }
    t->cursor++;
    return e;
}

/* ---- cutting ---- */

/* As if only the nodes that are left had been recorded: what later calls had set on them is taken off. */
static void set_flags_anew(tn_session *s, uint32_t cut)
{
    enum { LATER = TN_F_CONSUMED | TN_F_WANTED | TN_F_WATCHED | TN_F_TARGET };
    tn_tape *t = &s->tape;
    tn_graph *g = &s->graph;
    uint32_t walked = 0; /* a backward is done with what was read before its end */
    for (int i = 0; i < t->n; i++)
        if (t->entry[i].graded1 > t->entry[i].graded0 &&
            !(g->graded[t->entry[i].graded0].grad->flags & TN_F_VERSION)) /* else it assigns to gradients */
            walked = t->entry[i].end;
    for (uint32_t i = 0; i < cut; i++) {
        tn_tensor *n = g->nodes[i];
        n->flags &= ~(uint32_t)LATER;
        n->read = 0;
        if (n->walked >= cut) n->flags &= ~(uint32_t)TN_F_WALKED;
        if (n->lost_to && n->lost_to->id >= cut) n->lost_to = NULL;
    }
    for (uint32_t i = 0; i < cut; i++) {
        tn_tensor *n = g->nodes[i];
        uint32_t consumed = n->call && n->call->backward ? 0 : TN_F_CONSUMED;
        const bool read = n->flags & TN_F_REQUIRES_GRAD && i >= walked;
        for (int k = 0; k < n->n_in; k++) {
            n->in[k]->flags |= consumed;
            if (read) n->in[k]->base->read = g->reads;
        }
        if (tn_kind_of(n) == TN_KIND_ASSIGN) n->in[0]->base->flags |= TN_F_TARGET;
    }
    for (int i = 0; i < t->n; i++)
        if (t->entry[i].kind == TN_ENTRY_WATCH) t->ref[t->entry[i].ref + 1]->flags |= TN_F_WATCHED;
}

void tn_tape_cut(tn_session *s)
{
    tn_tape *t = &s->tape;
    tn_graph *g = &s->graph;
    if (!t->active) return;
    uint32_t cut = t->cursor < t->n ? t->entry[t->cursor].first : g->n_nodes;
    t->active = false;
    t->recording = true;
    t->cuts++;
    g->parked = false;
    shorten(t, t->cursor);
    const tn_entry *last = t->n ? &t->entry[t->n - 1] : NULL;
    g->gradients_seen = last ? last->seen : 0;
    g->gradients_written = last ? last->written : 0;
    g->n_graded = last ? last->graded1 : 0;
    for (uint32_t i = 0; i < cut; i++) /* before the nodes they point to go */
        if (g->nodes[i]->lost_to && g->nodes[i]->lost_to->id >= cut) {
            g->nodes[i]->lost_to = NULL;
            g->nodes[i]->flags &= ~(uint32_t)TN_F_LOST;
        }
    for (uint32_t i = 0; i < cut; i++)
        if (g->nodes[i]->again && g->nodes[i]->again->id >= cut) g->nodes[i]->again = NULL;
    tn_graph_truncate(g, cut);
    set_flags_anew(s, cut);
}

/* ---- between steps ---- */

static void drop_flushed(const tn_flush_record *r)
{
    for (int i = 0; i < r->f.n_placed; i++) {
        int slot = r->plan->value[r->f.placed[i]].slot;
        if (slot < r->f.node.n) tn_node_drop_value(r->f.node.at[slot]);
    }
}

static void drop_values(tn_tape *t, tn_graph *g)
{
    TN_EACH(e, t->entry, t->n) {
        if (e->flush && e->flush->plan) drop_flushed(e->flush);
        if (e->uploads) tn_node_drop_value(tn_entry_results(t, e)[0]);
    }
    g->sights.stale = true;
    g->n_settled = 0;
    for (uint32_t i = 0; i < g->n_holders; i++) {
        tn_tensor *n = g->holder[i];
        if (n->of && n->of->of == n) n->of->of = NULL;
        n->flags &= ~(uint32_t)(TN_F_LOST | TN_F_RESCUES);
        if (n->flags & TN_F_VERSION) tn_node_drop_value(n);
    }
}

enum { MOST_CUTS = 16 }; /* then the graph and its memory begin anew */

bool tn_tape_park(tn_session *s)
{
    tn_tape *t = &s->tape;
    tn_graph *g = &s->graph;
    if (t->active && t->cursor < t->n) tn_tape_cut(s);
    bool whole = (t->recording || t->active) && !t->broken && !g->unrepeatable && !g->error.status &&
                 !t->region && !g->call_depth && t->n && t->entry[t->n - 1].end == g->n_nodes &&
                 t->cuts < MOST_CUTS;
    t->hits += whole && t->active;
    t->recording = t->active = false;
    if (!whole) {
        shorten(t, 0);
        return false;
    }
    drop_values(t, g);
    tn_graph_park(g);
    return true;
}

void tn_tape_begin(tn_session *s)
{
    tn_tape *t = &s->tape;
    t->cursor = t->region = 0;
    t->broken = false;
    t->active = s->graph.parked;
    /* each step is compared, or this one is to be written down */
    if ((s->explain->check || s->caught) && t->active) tn_tape_cut(s);
    t->recording =
        !t->active && !t->off && !s->explain->check && s->mode == TN_FUSED && !s->device->is_reference;
    if (!t->active) {
        shorten(t, 0);
        t->cuts = 0;
    }
}
