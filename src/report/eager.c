/* eager.c - what eager mode would have run in the place of a launch: how many kernels, and their
 * bytes.
 *
 * Eager mode runs each call by itself. A call that only loops over elements is one kernel wherever fusing has
 * put its nodes, and counts where its last value is made; of any other each launch has its part, which counts
 * where it makes what another call reads or does more than loop. Start with tn_eager_count. */
#include "making.h"

/* Returns the bytes that the nodes of one call read and write if they run by themselves: those nodes that are
 * in this launch, or for a simple call all. */
static int64_t bytes_alone(const tn_making *m, const tn_launch *l, int call, const tn_eager *e)
{
    const tn_note *n = l->note;
    const int first = tn_part_at(m, n->call[call].key, l->segment, call, 0),
              end = tn_part_at(m, n->call[call].key, l->segment, call + 1, 0);
    const bool *out = e->call[call].simple ? e->elsewhere : e->outside;
    int64_t bytes = 0, *seen = e->seen;
    for (int pass = 0; pass < 3; pass++)
        for (int part = first; part < end; part++) {
            const int i = m->part[part].slot;
            const tn_note_value *v = &n->value[i];
            if (i >= n->n_node || v->step < 0 || (!e->call[call].simple && v->step != l->step)) continue;
            if (pass == 1 && out[i]) bytes += (int64_t)tn_note_bytes(v);
            for (int k = 0; k < v->n_in; k++) {
                const tn_note_value *x = &n->value[v->in[k]];
                bool inner =
                    v->in[k] < n->n_node && x->call == call && (e->call[call].simple || x->step == l->step);
                if (x->number || inner) continue;
                if (pass == 0) seen[v->in[k]] += v->read[k];
                if (pass == 1 && seen[v->in[k]] > 0) {
                    int64_t most = seen[v->in[k]] < x->numel ? seen[v->in[k]] : x->numel;
                    bytes += most * (int64_t)tn_dtype_size(x->dtype);
                    seen[v->in[k]] = -1;
                }
                if (pass == 2) seen[v->in[k]] = 0;
            }
        }
    return bytes;
}

static bool loops_over_elements(tn_op op)
{
    tn_kind k = tn_op_get(op)->kind;
    return k == TN_KIND_ELTWISE || k == TN_KIND_CAST || k == TN_KIND_IOTA || k == TN_KIND_RANDOM;
}

void tn_eager_make(tn_making *m, const tn_plan *p, tn_eager *e)
{
    const tn_note *n = p->note;
    size_t count = (size_t)n->n_value;
    bool *read = tn_view_take(m, count, 1);
    e->call = tn_view_take(m, (size_t)n->n_call, sizeof *e->call);
    e->outside = tn_view_take(m, count, 1);
    e->elsewhere = tn_view_take(m, count, 1);
    e->seen = tn_view_take(m, count, sizeof *e->seen);
    if (m->failed) return;
    for (int i = 0; i < n->n_call; i++) e->call[i].simple = true;
    TN_EACH(y, n->value, n->n_node) {
        if (y->call >= 0 && y->step >= 0) {
            struct tn_eager_call *c = &e->call[y->call];
            c->simple = c->simple && loops_over_elements(y->op) && !y->written;
            c->last = y->step;
        }
        for (int k = 0; k < y->n_in && y->step >= 0; k++) {
            const tn_note_value *x = &n->value[y->in[k]];
            read[y->in[k]] = true;
            if (x->call != y->call) e->elsewhere[y->in[k]] = true;
            if (x->call != y->call || x->step != y->step) e->outside[y->in[k]] = true;
        }
    }
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].slot < n->n_node && (p->value[i].root || p->value[i].keep))
            e->outside[p->value[i].slot] = e->elsewhere[p->value[i].slot] = true;
    for (int i = 0; i < n->n_node; i++) {
        e->outside[i] = e->outside[i] || !read[i];
        e->elsewhere[i] = e->elsewhere[i] || !read[i];
    }
}

/* Returns true where eager mode needs a kernel for this part of a call: it makes what another call reads, or
 * does more than loop over elements. Any other part would stand in the kernel that reads it. */
static bool needs_kernel(const tn_launch *l, int call, const tn_eager *e)
{
    for (int i = 0; i < l->of->n_nodes; i++) {
        int at = tn_launch_node(l, i);
        const tn_note_value *v = &l->note->value[at];
        if (!tn_launch_owns(l, at) || v->call != call) continue;
        if (e->elsewhere[at] || !loops_over_elements(v->op)) return true;
    }
    return false;
}

void tn_eager_count(const tn_making *m, tn_launch *l, const tn_eager *e)
{
    l->before = !l->repeated; /* eager mode keeps it */
    l->bytes_before = l->repeated ? 0 : l->of->bytes;
    if (l->repeated) return;
    if (l->of->early) { /* eager mode makes it with the rest of its call */
        l->before = 0;
        l->bytes_before = 0;
        return;
    }
    if (l->again || l->of->kind != TN_STEP_KERNEL) return;
    int calls = 0, told = 0;
    int64_t bytes = 0;
    bool whole = true; /* one call, and all that it has */
    for (int i = 0; i < l->of->n_nodes; i++) {
        int at = tn_launch_node(l, i), call = l->note->value[at].call;
        bool counted = false;
        if (!tn_launch_owns(l, at) || call < 0) {
            whole = false;
            continue;
        }
        for (int k = 0; k < i && !counted; k++)
            counted =
                tn_launch_owns(l, tn_launch_node(l, k)) && l->note->value[tn_launch_node(l, k)].call == call;
        if (counted) continue;
        told++;
        if (e->call[call].simple ? e->call[call].last != l->step : !needs_kernel(l, call, e)) continue;
        calls++;
        bytes += bytes_alone(m, l, call, e);
    }
    if (told == 1 && calls == 1 && whole) return; /* nothing was joined */
    l->before = calls;
    l->bytes_before = bytes;
}
