/* begin.c - when what ranks do together can begin: with a part of the memory it reads as soon as no step
 * ahead of it writes there any more, so that it goes on beside the rest of the plan. Gradients lie in the
 * order of their parameters and are made from the last to the first; neighbours are sent together, but a
 * large one that is made before small ones ahead of it does not wait for them. What a step of the plan makes
 * (sums of a batch norm) begins behind it, and what needs none of that runs ahead of the wait (fu_wait_late).
 * Start with fu_begin_early. */
#include <stdlib.h>

#include "fuser.h"

enum { PARTS = 16, LEAST = 1 << 16 }; /* so many parts or a few less, of so many elements at least */
enum { LARGE = 4 };                   /* a quarter of all */
enum { WINDOW = 6 }; /* groups a wait is looked for among: values live no longer than these */

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

/* The last step so far that writes what step s, of no memory that was there before, reads. What is gathered
 * waits until all ranks know how it went (execute.c). */
static int made_by(const beginning *w, const tn_step *st, int s)
{
    const bool own = st->buf[0] < w->c->n_node && st->dim[TN_RANKS_HOW] != TN_GATHER;
    return own && w->written[st->buf[0]] >= 0 ? w->written[st->buf[0]] : s - 1;
}

/* Marks those that g waits for, and lists them where they were not marked. Returns how many. */
static int mark_awaited(fu_ctx *c, int g, int *list)
{
    const fu_group *a = &c->group[g];
    int n = 0;
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < c->node[a->member[i]].n_after; k++) {
            const int d = fu_awaited(c, g, a->member[i], k);
            if (list && c->group[d].mark != c->mark) list[n++] = d;
            c->group[d].mark = c->mark;
        }
    return n;
}

static bool makes_mean(const fu_ctx *c, const fu_group *g)
{
    return !g->dead && g->room == FU_RANKS && tn_together_of(c->node[g->member[0]].t) != TN_GATHER;
}

void fu_mark_means(fu_ctx *c, int *scratch)
{
    int n = 0;
    bool any = false;
    for (int g = 0; g < c->n_group; g++) any = any || makes_mean(c, &c->group[g]);
    c->mark++;
    for (int g = 0; g < c->n_group; g++) {
        if ((any && !makes_mean(c, &c->group[g])) || c->group[g].mark == c->mark) continue;
        c->group[g].mark = c->mark;
        scratch[n++] = g;
        while (n) {
            const int at = scratch[--n];
            n += mark_awaited(c, at, scratch + n);
        }
    }
}

void fu_wait_late(fu_ctx *c, int *order, int n)
{
    for (int first = 0, end; first < n; first = end + 1) {
        const int low = first < WINDOW ? 0 : first - WINDOW;
        int later[WINDOW], n_later = 0, to = low;
        for (end = first; end < n && makes_mean(c, &c->group[order[end]]); end++)
            ;
        c->mark++;
        for (int i = end - 1; i >= low && end > first; i--)
            if (i >= first || c->group[order[i]].mark == c->mark) mark_awaited(c, order[i], NULL);
        for (int i = low; i < first && end > first; i++)
            if (c->group[order[i]].mark == c->mark)
                order[to++] = order[i];
            else
                later[n_later++] = order[i];
        for (int i = 0; i < n_later; i++) order[to++] = later[i];
    }
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
            fine = add(&w, (tn_begin){s, made_by(&w, st, s), 0, st->dim[TN_RANKS_ALL], buf});
        if (!fine) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
        for (int k = st->n_buf - st->n_out; k < st->n_buf; k++)
            if (st->buf[k] >= 0 && st->buf[k] < c->n_node) w.written[st->buf[k]] = s;
        buf += st->n_buf;
    }
    qsort(p->begin, (size_t)p->n_begin, sizeof *p->begin, in_order);
    return 0;
}
