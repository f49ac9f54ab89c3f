/* parts.c - values that steps write or read piece by piece, as a recurrence does the products of its inputs
 * and what it makes of them: each part is there from the first step that writes it to the last one that reads
 * it, and before and behind that others may lie there. Start with fu_list_parts. */
#include <limits.h>
#include <stdlib.h>

#include "fuser.h"

enum {
    LEAST = 1 << 16,             /* bytes of a value that is looked at, */
    SMALLEST = 4 * TN_PLAN_ALIGN /* and of a part */
};

/* Step s writes or reads these bytes of a value. */
typedef struct use {
    int value, step;
    size_t low, high;
    bool writes;
} use;

typedef struct uses {
    fu_ctx *c;
    int *value_of; /* of each slot; -1: none, or all of it lives as long */
    use *at;
    int n, cap;
} uses;

static int by_value(const void *a, const void *b)
{
    const use *x = a, *y = b;
    if (x->value != y->value) return x->value - y->value;
    return x->low != y->low ? (x->low > y->low) - (x->low < y->low) : x->step - y->step;
}

static size_t bytes_of(const tn_plan_value *v) { return v->elems * tn_dtype_size(v->dtype); }

/* Adds to u, of a value of so many bytes, those from element `at` on that axes with these strides reach. */
static void widen(use *u, int64_t at, const int64_t *shape, const int64_t *stride, int ndim, int64_t size,
                  size_t bytes)
{
    int64_t low = at, high = at;
    for (int i = 0; i < ndim; i++) *(stride[i] < 0 ? &low : &high) += stride[i] * (shape[i] - 1);
    const bool inside = low >= 0 && high >= low && (size_t)((high + 1) * size) <= bytes;
    const size_t from = inside ? (size_t)(low * size) : 0, to = inside ? (size_t)((high + 1) * size) : bytes;
    u->low = u->high && u->low < from ? u->low : from;
    u->high = u->high > to ? u->high : to;
}

/* Operand of n, a node that joins more than one kernel does, that goes to element `at` of it; or NULL: one
 * kernel makes it. */
static const tn_tensor *copied_to(const fu_ctx *c, int n, int64_t at)
{
    const tn_tensor *t = c->node[n].t;
    const int g = fu_group_of(c, n);
    if (g < 0 || c->group[g].room != FU_CONCAT) return NULL;
    const int64_t inner = tn_extent(t->shape, t->attr->axis + 1, t->ndim);
    for (int i = 0; i < t->n_in; at -= t->in[i++]->shape[t->attr->axis] * inner)
        if (!at && tn_node_numel(t->in[i])) return t->in[i];
    return NULL;
}

/* Notes what step s writes or reads of value v, its buffer b, by what it computes. False: no memory. */
static bool note(uses *w, int s, int v, int b)
{
    const fu_ctx *c = w->c;
    const tn_plan *p = c->plan;
    const tn_step *st = &p->step[s];
    const int slot = p->value[v].slot;
    const int64_t size = (int64_t)tn_dtype_size(p->value[v].dtype);
    const size_t bytes = bytes_of(&p->value[v]);
    const bool writes = b >= st->n_buf - st->n_out;
    use u = {.value = v, .step = s, .writes = writes};
    bool all = st->kind == TN_STEP_RANKS || st->kind == TN_STEP_HOST;
    for (int i = 0; i < st->n_nodes; i++) {
        const int m = p->node_of[st->first_node + i];
        const fu_node *n = &c->node[m];
        const tn_tensor *part = writes && m == slot ? copied_to(c, m, st->offset[b]) : NULL;
        all |= writes && m == slot && !part;
        if (part) widen(&u, st->offset[b], part->shape, n->t->stride, part->ndim, size, bytes);
        if (writes && n->into == slot)
            widen(&u, n->into_offset, n->t->shape, n->into_stride, n->t->ndim, size, bytes);
        for (int k = 0; k < n->t->n_in && !writes; k++) {
            const tn_tensor *x = fu_value_of(c, n->t->in[k]);
            if (fu_node_of(c, x) == slot)
                widen(&u, x->offset - x->base->offset, x->shape, x->stride, x->ndim, size, bytes);
        }
    }
    if (all || !u.high) u.low = 0, u.high = bytes;
    use *list = fu_grow(&w->c->arena, w->at, w->n, &w->cap, sizeof *list);
    if (!list) return false;
    w->at = list;
    list[w->n++] = u;
    return true;
}

/* Values that lie in the arena, for some steps. */
static bool list_values(uses *w)
{
    const tn_plan *p = w->c->plan;
    const int n_slot = w->c->n_node + w->c->n_leaf + p->n_scratch;
    w->value_of = tn_arena_alloc(&w->c->arena, ((size_t)n_slot + 1) * sizeof *w->value_of);
    if (!w->value_of) return false;
    for (int i = 0; i < n_slot; i++) w->value_of[i] = -1;
    for (int i = 0; i < p->n_value; i++) {
        const tn_plan_value *v = &p->value[i];
        if (v->slot < w->c->n_node && !v->root && !v->keep && v->alias < 0 && v->last > v->first + 1 &&
            bytes_of(v) >= LEAST)
            w->value_of[v->slot] = i;
    }
    return true;
}

/* Begins another part at `low`, a whole number of the planner's steps, where the one before is large enough. */
static void begin(tn_plan *p, const tn_plan_value *v, size_t low, size_t smallest)
{
    const tn_plan_part *before = p->n_part > v->part ? &p->part[p->n_part - 1] : NULL;
    if (!before || (low >= before->low + smallest && low < bytes_of(v)))
        p->part[p->n_part++] = (tn_plan_part){.low = before ? low : 0, .first = INT_MAX};
}

/* What use u does with what part t has, whole planner's steps. */
static void live(tn_plan_part *t, const use *u)
{
    if (t->high <= u->low / TN_PLAN_ALIGN * TN_PLAN_ALIGN) return;
    t->first = u->writes && u->step < t->first ? u->step : t->first;
    t->last = u->step > t->last ? u->step : t->last;
}

/* Cuts the value of these n uses, by their places, where one begins. What nobody writes is there at once. */
static void cut(tn_plan *p, const use *u, int n)
{
    tn_plan_value *v = &p->value[u->value];
    const int first = v->part = p->n_part;
    for (int i = 0; i < n; i++) {
        const size_t low = u[i].low / TN_PLAN_ALIGN * TN_PLAN_ALIGN;
        const int parts = p->n_part;
        begin(p, v, low, SMALLEST);
        if (p->n_part > parts && low < u[i].low) begin(p, v, low + TN_PLAN_ALIGN, TN_PLAN_ALIGN);
    }
    for (int k = first; k < p->n_part; k++)
        p->part[k].high = k + 1 < p->n_part ? p->part[k + 1].low : bytes_of(v);
    for (int i = 0; i < n; i++)
        for (int k = first; k < p->n_part && p->part[k].low < u[i].high; k++) live(&p->part[k], &u[i]);
    int last = first; /* neighbours that live as long are one */
    for (int k = first; k < p->n_part; k++) {
        tn_plan_part *t = &p->part[k], *to = &p->part[last];
        if (t->first > t->last) t->first = v->first;
        if (k == first || (t->first == to->first && t->last == to->last))
            to->high = t->high;
        else
            p->part[++last] = *t;
    }
    v->n_part = last > first ? last + 1 - first : 0;
    p->n_part = first + v->n_part;
}

int fu_list_parts(fu_ctx *c)
{
    tn_plan *p = c->plan;
    uses w = {.c = c};
    bool ok = list_values(&w);
    for (int s = 0; s < p->n_step && ok; s++)
        for (int b = 0; b < p->step[s].n_buf && ok; b++) {
            const int slot = p->step[s].buf[b], v = slot < 0 ? -1 : w.value_of[slot];
            if (v >= 0) ok = note(&w, s, v, b);
        }
    if (ok && w.n) qsort(w.at, (size_t)w.n, sizeof *w.at, by_value);
    p->part = ok ? tn_arena_alloc(&p->arena, ((size_t)w.n * 2 + 1) * sizeof *p->part) : NULL;
    if (!p->part) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int i = 0, end; i < w.n; i = end) {
        for (end = i; end < w.n && w.at[end].value == w.at[i].value; end++)
            ;
        cut(p, w.at + i, end - i);
    }
    return 0;
}
