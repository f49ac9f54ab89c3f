/* view_parts.c - what the files that make a view, and those that print it, all use. Start with tn_view_take.
 */
#include "explain_view.h"

#include <string.h>

void *tn_view_take(tn_making *m, size_t n, size_t size)
{
    void *p = tn_arena_alloc(&m->v->arena, (n + 1) * size);
    m->failed = m->failed || !p;
    return p;
}

char *tn_view_text(tn_making *m, tn_growing *t)
{
    char *p = t->failed ? NULL : tn_arena_strdup(&m->v->arena, t->p ? t->p : "");
    m->failed = m->failed || !p;
    tn_growing_free(t);
    return p;
}

int tn_same_value(const tn_note *n, int i, const tn_note *other, bool nodes_only)
{
    const tn_note_value *v = &n->value[i];
    for (int k = 0; k < (nodes_only ? other->n_node : other->n_value) && v->call >= 0; k++) {
        const tn_note_value *o = &other->value[k];
        if (o->call < 0 || o->at != v->at || o->op != v->op) continue;
        if (tn_same_call(&n->call[v->call], &other->call[o->call])) return k;
    }
    return -1;
}

bool tn_launch_info(const tn_session *s, const tn_launch *l, tn_kernel_info *out)
{
    const tn_device *d = s->device;
    if (l->of->kind != TN_STEP_KERNEL || !d->kernel_info) return false;
    if (!d->kernel_info(s->device, l->of->kernel, out)) return false;
    out->shared_bytes += l->of->grid.shared;
    return true;
}

bool tn_same_call(const tn_note_call *a, const tn_note_call *b)
{
    return a->key == b->key && a->backward == b->backward && a->line == b->line && !a->file == !b->file &&
           (!a->file || !strcmp(a->file, b->file)) && !strcmp(a->name, b->name);
}
