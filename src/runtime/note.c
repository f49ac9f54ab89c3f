/* note.c - what a plan was made of, in words that outlive the step: made once with the plan, in the plan's
 * own memory. And how nodes and calls are called in what is told. Start with tn_note_plan. */
#include "log.h"

#include <stdio.h>
#include <string.h>

size_t tn_note_bytes(const tn_note_value *v) { return (size_t)v->numel * tn_dtype_size(v->dtype); }

typedef struct noting {
    tn_arena *arena;
    tn_note *note;
    uint32_t mark; /* of calls that have been noted */
    int cap;
    bool failed;
} noting;

static int call_index(noting *w, tn_call *c)
{
    tn_note *n = w->note;
    if (!c) return -1;
    if (c->mark == w->mark) return c->index;
    int of = c->backward ? call_index(w, c->of) : -1;
    if (n->n_call == w->cap)
        return -1; /* a gradient of a gradient of .. has more calls behind it than nodes here */
    c->mark = w->mark;
    c->index = n->n_call;
    const char *file = c->file && *c->file ? tn_arena_strdup(w->arena, c->file) : NULL;
    n->call[n->n_call] = (tn_note_call){.name = c->name ? tn_arena_strdup(w->arena, c->name) : "",
                                        .file = file,
                                        .line = c->line,
                                        .backward = c->backward,
                                        .again = c->again,
                                        .of = of,
                                        .key = c->first};
    w->failed = w->failed || (c->file && *c->file && !file) || !n->call[n->n_call].name;
    return n->n_call++;
}

static int slot_of(const tn_flush_scratch *f, const tn_tensor *x)
{
    const tn_tensor *b = x->base;
    bool node = b->slot >= 0 && b->slot < f->node.n && f->node.at[b->slot] == b;
    return (int)(node ? b->slot : x->slot);
}

static void note_value(noting *w, const tn_flush_scratch *f, const tn_tensor *t, int slot)
{
    tn_note_value *v = &w->note->value[slot];
    tn_tensor *b = t->base;
    const char *name = t->name ? t->name : b->name;
    bool leaf = slot >= f->node.n;
    *v = (tn_note_value){.op = b->op,
                         .dtype = t->dtype,
                         .ndim = t->ndim,
                         .name = name && *name ? tn_arena_strdup(w->arena, name) : NULL,
                         .number = tn_is_number(b),
                         .numel = tn_node_numel(t),
                         .call = call_index(w, b->call),
                         .at = b->call ? b->id - b->call->first : 0,
                         .memory = slot,
                         .held = tn_node_numel(b),
                         .step = -1};
    memcpy(v->shape, t->shape, sizeof v->shape);
    v->kept = leaf && !v->number && b->op != TN_OP_leaf && !(b->flags & TN_F_PERSISTENT);
    v->written = !leaf && tn_node_written(t) != NULL;
    v->gradient = leaf && ((b->call && b->call->backward) || (b->of && b->of->flags & TN_F_GRADIENT));
    if (leaf) {
        const bool seen =
            b->leaf >= f->node.n && b->leaf < slot && f->leaf.at[b->leaf - f->node.n]->base == b;
        if (!seen) b->leaf = slot;
        v->memory = (int)b->leaf;
        return;
    }
    v->in = tn_arena_alloc(w->arena, (size_t)(t->n_in + 1) * sizeof *v->in);
    v->read = tn_arena_alloc(w->arena, (size_t)(t->n_in + 1) * sizeof *v->read);
    w->failed = w->failed || !v->in || !v->read;
    for (int k = 0; !w->failed && k < t->n_in; k++) {
        int64_t seen = tn_node_numel(t->in[k]), whole = tn_node_numel(t->in[k]->base);
        v->read[v->n_in] = seen < whole ? seen : whole;
        v->in[v->n_in++] = slot_of(f, t->in[k]);
    }
}

/* The plan has a value for each node that is stored, in their order. */
static void note_gradients(tn_note *n, const tn_flush_scratch *f, const tn_plan *p)
{
    for (int i = 0, k = 0; i < n->n_node; i++) {
        const tn_tensor *t = f->node.at[i];
        while (k < p->n_value && p->value[k].slot < i) k++;
        const bool stored = k < p->n_value && p->value[k].slot == i;
        const tn_spared how = t->place ? TN_IN_SLAB : stored ? TN_GONE_EARLY : TN_NEVER_STORED;
        if (t->flags & TN_F_UPDATES) n->gradients[how] += (int64_t)tn_note_bytes(&n->value[i]);
    }
}

int tn_note_plan(tn_session *s, const tn_flush_scratch *f, tn_plan *p)
{
    noting w = {
        .arena = &p->arena, .mark = (uint32_t)++s->explain->plans, .cap = 2 * (f->node.n + f->leaf.n) + 2};
    tn_note *n = w.note = tn_arena_alloc(w.arena, sizeof *n);
    if (n) n->value = tn_arena_alloc(w.arena, (size_t)(f->node.n + f->leaf.n + 1) * sizeof *n->value);
    if (n) n->call = tn_arena_alloc(w.arena, (size_t)w.cap * sizeof *n->call);
    if (!n || !n->value || !n->call) w.failed = true;
    if (!w.failed) {
        n->n_node = f->node.n;
        n->n_value = f->node.n + f->leaf.n;
        for (int i = 0; i < n->n_value; i++) note_value(&w, f, tn_node_at(f, i), i);
        note_gradients(n, f, p);
        for (int i = 0; i < p->n_step; i++)
            for (int k = 0; k < p->step[i].n_nodes; k++) {
                int node = p->node_of[p->step[i].first_node + k];
                if (n->value[node].step < 0) n->value[node].step = i;
            }
        for (int i = 0; i < n->n_call; i++) n->backward = n->backward || n->call[i].backward;
        n->number = s->explain->plans;
        p->note = n;
    }
    if (w.failed) return tn_fail_memory(s);
    if (s->explain->looks.planned) s->explain->looks.planned(s, p);
    return TN_OK;
}

/* ---- words ---- */

const char *tn_short_file(const char *file)
{
    const char *slash = file ? strrchr(file, '/') : NULL;
    return slash ? slash + 1 : file ? file : "";
}

const char *tn_note_where(const tn_note_call *c, char *out, size_t n)
{
    const tn_note_call *at = c;
    int k = snprintf(out, n, "%s", c->name);
    if (at->file && k >= 0 && (size_t)k < n)
        snprintf(out + k, n - (size_t)k, " at %s:%d", tn_short_file(at->file), at->line);
    return out;
}

const char *tn_node_where(const tn_tensor *n, char *out, size_t size)
{
    const tn_call *c = n->call;
    const tn_call *at = c && c->of ? c->of : c;
    const char *before = !c || !c->of ? "" : c->again ? "again, " : "the gradient of ";
    if (!at)
        snprintf(out, size, "%s", tn_op_get(n->op)->name);
    else if (at->file)
        snprintf(out, size, "%s%s at %s:%d", before, at->name, tn_short_file(at->file), at->line);
    else
        snprintf(out, size, "%s%s", before, at->name);
    return out;
}

const char *tn_note_name(const tn_note *n, int slot, char *out, size_t size)
{
    const tn_note_value *v = &n->value[slot];
    if (v->name)
        snprintf(out, size, "%s", v->name);
    else if (v->call >= 0) {
        const tn_note_call *c = &n->call[v->call];
        const bool gradient = c->backward && !c->again;
        if (c->backward && c->of >= 0) c = &n->call[c->of];
        snprintf(out, size, "%s of %s", gradient ? "a gradient" : "a result", TN_NOTE_WHERE(c));
    } else
        snprintf(out, size, "an input");
    return out;
}
