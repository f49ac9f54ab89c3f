/* begin.c - when what ranks do together can begin: with a part of the memory it reads as soon as no step
 * ahead of it writes there any more, so that it goes on beside the rest of the plan. Gradients lie in the
 * order of their parameters and are made from the last to the first; neighbours are sent together, but a
 * large one that is made before small ones ahead of it does not wait for them. Start with fu_begin_early.
 */
#include <stdlib.h>

#include "fuser.h"

enum { PARTS = 16, LEAST = 1 << 16 }; /* so many parts or a few less, of so many elements at least */
enum { LARGE = 4 };                   /* a quarter of all */

typedef struct beginning {
    fu_ctx *c;
    int *written; /* of each node: the last step that writes it, -1: none */
    int cap;
} beginning;

static bool add(beginning *w, tn_begin b)
{
    tn_plan *p = w->c->plan;
    tn_begin *list = fu_grow(&p->arena, p->begin, p->n_begin, &w->cap, sizeof *list);
    if (!list) return false;
    p->begin = list;
    list[p->n_begin++] = b;
    return true;
}

/* The parts of x, memory that was there before the plan, which step s reads whole. */
static bool cut(beginning *w, const tn_tensor *x, int s, int buf)
{
    const fu_written *m = &w->c->written;
    const int64_t size = (int64_t)tn_dtype_size(x->dtype), all = tn_node_numel(x), each = all / PARTS;
    uintptr_t low, high;
    int piece, end;
    tn_begin b = {.step = s, .after = -1, .buf = buf};
    if (!tn_node_bytes(x, &low, &high)) return add(w, (tn_begin){s, s - 1, 0, all, buf});
    for (fu_written_pieces(w->c, x, &piece, &end); piece < end; piece++) {
        const uintptr_t to = m->edge[piece + 1] < high ? m->edge[piece + 1] : high;
        const int writer = fu_writer_near(w->c, piece, x->base->id, false);
        const int made = writer >= 0 ? w->written[writer] : -1;
        const int64_t until = (int64_t)(to - low) / size, before = b.first + b.n, here = until - before;
        if (b.n && made < b.after && here >= LEAST && here >= all / LARGE) {
            if (!add(w, b)) return false;
            b = (tn_begin){.step = s, .after = -1, .first = before, .buf = buf};
        }
        if (made > b.after) b.after = made;
        b.n = until - b.first;
        if (b.n < LEAST || b.n < each || piece + 1 == end) continue;
        if (!add(w, b)) return false;
        b = (tn_begin){.step = s, .after = -1, .first = b.first + b.n, .buf = buf};
    }
    b.n = all - b.first;
    return !b.n || add(w, b);
}

static int in_order(const void *a, const void *b)
{
    const tn_begin *x = a, *y = b;
    if (x->after != y->after) return x->after - y->after;
    return x->step != y->step ? x->step - y->step : (x->first > y->first) - (x->first < y->first);
}

int fu_begin_early(fu_ctx *c)
{
    tn_plan *p = c->plan;
    beginning w = {.c = c};
    int buf = 0;
    if (!p->together) return 0;
    w.written = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *w.written);
    if (!w.written) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int i = 0; i < c->n_node; i++) w.written[i] = -1;
    for (int s = 0; s < p->n_step; s++) {
        const tn_step *st = &p->step[s];
        const bool together = st->kind == TN_STEP_RANKS;
        const bool leaf = together && st->dim[TN_RANKS_HOW] != TN_GATHER && st->buf[0] >= c->n_node &&
                          st->buf[0] < c->n_node + c->n_leaf;
        bool fine = true;
        if (leaf)
            fine = cut(&w, fu_value_of(c, c->node[st->buf[1]].t->in[0]), s, buf);
        else if (together)
            fine = add(&w, (tn_begin){s, s - 1, 0, st->dim[TN_RANKS_ALL], buf});
        if (!fine) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
        for (int k = st->n_buf - st->n_out; k < st->n_buf; k++)
            if (st->buf[k] >= 0 && st->buf[k] < c->n_node) w.written[st->buf[k]] = s;
        buf += st->n_buf;
    }
    qsort(p->begin, (size_t)p->n_begin, sizeof *p->begin, in_order);
    return 0;
}
