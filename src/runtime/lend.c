/* lend.c - memory of gradients for values that die before these are written.
 *
 * From the update to the backward pass nobody needs what the slab of gradients holds: a plan that writes a
 * gradient anew, and reads none of its memory before, may lay other values there until then, such as what the
 * forward pass leaves for the backward one. What a run leaves behind is the same.
 * Start with tn_plan_lend. */
#include <limits.h>
#include <stdlib.h>

#include "flush.h"

static int by_low(const void *a, const void *b)
{
    const tn_lent *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* x's memory is read or written in step `by`: what is not written by then is needed as it was. */
static void claim(const tn_slab *b, tn_plan *p, const tn_tensor *x, int by, bool writes)
{
    uintptr_t low, high;
    const uintptr_t base = (uintptr_t)b->gradient_base;
    if (!tn_node_bytes(x, &low, &high) || high <= base) return;
    for (int i = 0; i < p->n_lent; i++) {
        tn_lent *l = &p->lent[i];
        if (low < base + l->high && base + l->low < high && by < l->until + !writes) l->until = 0;
    }
}

int tn_plan_lend(const tn_session *s, const tn_flush_scratch *f, tn_plan *p)
{
    const tn_slab *b = &s->slab[TN_F32];
    const uintptr_t base = (uintptr_t)b->gradient_base, end = base + (size_t)b->count * sizeof(float);
    const int n_slot = f->node.n + f->leaf.n;
    uintptr_t low, high;
    p->n_lent = 0;
    if (!b->count) return TN_OK;
    p->lent = tn_arena_alloc(&p->arena, (size_t)(p->n_value + 1) * sizeof *p->lent);
    int *first = tn_malloc((size_t)(n_slot + 1) * sizeof *first); /* step that has the slot */
    if (!p->lent || !first) {
        tn_free_mem(first);
        return TN_E_NOMEM;
    }
    for (int i = 0; i < p->n_value; i++) {
        const tn_plan_value *v = &p->value[i];
        const tn_tensor *n = v->slot < f->node.n ? f->node.at[v->slot] : NULL;
        if (!n || !n->place || !tn_node_bytes(n->place, &low, &high) || low < base || high > end) continue;
        if (high - low == v->elems * tn_dtype_size(v->dtype))
            p->lent[p->n_lent++] = (tn_lent){low - base, high - base, v->first};
    }
    if (p->n_lent) qsort(p->lent, (size_t)p->n_lent, sizeof *p->lent, by_low);
    for (int i = 0; i < n_slot; i++) first[i] = INT_MAX;
    for (int i = p->n_step - 1; i >= 0 && p->n_lent; i--)
        for (int k = 0; k < p->step[i].n_buf; k++) {
            const int slot = p->step[i].buf[k];
            if (slot >= 0 && slot < n_slot) first[slot] = i;
        }
    for (int i = 0; i < n_slot && p->n_lent; i++) {
        const bool node = i < f->node.n;
        const tn_tensor *x = node ? tn_node_written(f->node.at[i]) : f->leaf.at[i - f->node.n];
        if (x && first[i] < INT_MAX) claim(b, p, x, first[i], node);
    }
    tn_free_mem(first);
    return TN_OK;
}
