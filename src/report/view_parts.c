/* view_parts.c - what the files that make a view, and those that print it, all use. Start with tn_view_take.
 */
#include "making.h"
#include "../core/int64.h"

#include <stdlib.h>
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

static int by_part(const void *a, const void *b)
{
    const tn_part *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    if (x->run != y->run) return x->run - y->run;
    if (x->call != y->call) return x->call - y->call;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->slot - y->slot;
}

const tn_note *tn_view_note(const tn_making *m, int run) { return m->v->log->run[run].plan->note; }

void tn_view_parts(tn_making *m, size_t values)
{
    m->part = tn_view_take(m, values, sizeof *m->part);
    for (int r = 0; r < m->v->log->n && !m->failed; r++)
        for (int i = 0; i < tn_view_note(m, r)->n_value; i++) {
            const tn_note_value *v = &tn_view_note(m, r)->value[i];
            if (v->call < 0) continue;
            m->part[m->n_part++] = (tn_part){tn_view_note(m, r)->call[v->call].key, r, v->call, v->at, i};
        }
    if (m->n_part) qsort(m->part, (size_t)m->n_part, sizeof *m->part, by_part);
}

int tn_part_at(const tn_making *m, uint32_t key, int run, int call, uint32_t at)
{
    const tn_part want = {key, run, call, at, 0};
    int low = 0, high = m->n_part;
    TN_BISECT(low, high, by_part(&m->part[middle], &want) < 0)
    return low;
}

int tn_same_value(const tn_making *m, int r, int i, int *run, bool nodes_only)
{
    const tn_note_value *v = &tn_view_note(m, r)->value[i];
    const tn_note_call *c = v->call < 0 ? NULL : &tn_view_note(m, r)->call[v->call];
    const tn_part *p, *end = m->part + m->n_part;
    for (int k = c ? tn_part_at(m, c->key, *run, 0, 0) : m->n_part;
         (p = m->part + k) < end && p->key == c->key && p->run < r;
         k = tn_part_at(m, c->key, p->run, p->call + 1, 0)) {
        const tn_note *o = tn_view_note(m, p->run);
        const tn_part *q = m->part + tn_part_at(m, c->key, p->run, p->call, v->at);
        for (; tn_same_call(c, &o->call[p->call]) && q < end && q->call == p->call && q->at == v->at; q++) {
            if (q->run != p->run || q->key != p->key) break;
            if (o->value[q->slot].op != v->op || (nodes_only && q->slot >= o->n_node)) continue;
            *run = p->run;
            return q->slot;
        }
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
