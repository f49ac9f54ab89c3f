/* parts.c - values that steps read piece by piece, as a recurrence does the products of its inputs: each part
 * dies with the last step that reads it, and what later steps write may lie there. Start with fu_list_parts. */
#include <stdlib.h>

#include "fuser.h"

enum {
    LEAST = 1 << 16,             /* bytes of a value that is looked at, */
    SMALLEST = 4 * TN_PLAN_ALIGN /* and of a part */
};

typedef struct reading {
    int value;
    size_t low, high; /* bytes */
    int last;
} reading;

typedef struct readings {
    fu_ctx *c;
    int *value_of; /* of each slot; -1: none, or it dies at once */
    reading *at;
    int n, cap;
} readings;

static int in_order(const void *a, const void *b)
{
    const reading *x = a, *y = b;
    if (x->value != y->value) return x->value - y->value;
    return x->low != y->low ? (x->low > y->low) - (x->low < y->low) : x->last - y->last;
}

/* Adds the bytes that x, memory of a value of so many, looks at. */
static void widen(reading *r, const tn_tensor *x, size_t bytes)
{
    const int64_t size = (int64_t)tn_dtype_size(x->base->dtype);
    int64_t low = x->offset - x->base->offset, high = low;
    for (int i = 0; i < x->ndim; i++) *(x->stride[i] < 0 ? &low : &high) += x->stride[i] * (x->shape[i] - 1);
    const bool inside = low >= 0 && high >= low && (size_t)((high + 1) * size) <= bytes;
    const size_t from = inside ? (size_t)(low * size) : 0, to = inside ? (size_t)((high + 1) * size) : bytes;
    r->low = r->high && r->low < from ? r->low : from;
    r->high = r->high > to ? r->high : to;
}

/* Notes what step s reads of value v, by the operands of what it computes. False: no memory. */
static bool note(readings *w, int s, int v)
{
    const fu_ctx *c = w->c;
    const tn_plan *p = c->plan;
    const tn_step *st = &p->step[s];
    const size_t bytes = p->value[v].elems * tn_dtype_size(p->value[v].dtype);
    reading r = {.value = v, .last = s};
    for (int i = 0; i < st->n_nodes; i++) {
        const tn_tensor *t = c->node[p->node_of[st->first_node + i]].t;
        for (int k = 0; k < t->n_in; k++) {
            const tn_tensor *x = fu_value_of(c, t->in[k]);
            if (fu_node_of(c, x) == p->value[v].slot) widen(&r, x, bytes);
        }
    }
    if (!r.high || st->kind == TN_STEP_RANKS || st->kind == TN_STEP_HOST) r.low = 0, r.high = bytes;
    reading *list = fu_grow(&w->c->arena, w->at, w->n, &w->cap, sizeof *list);
    if (!list) return false;
    w->at = list;
    list[w->n++] = r;
    return true;
}

/* Values that one step makes, and that lie in the arena. */
static bool list_values(readings *w)
{
    const tn_plan *p = w->c->plan;
    const int n_slot = w->c->n_node + w->c->n_leaf + p->n_scratch;
    w->value_of = tn_arena_alloc(&w->c->arena, ((size_t)n_slot + 1) * sizeof *w->value_of);
    if (!w->value_of) return false;
    for (int i = 0; i < n_slot; i++) w->value_of[i] = -1;
    for (int i = 0; i < p->n_value; i++) {
        const tn_plan_value *v = &p->value[i];
        if (v->slot < w->c->n_node && !v->root && !v->keep && v->alias < 0 && v->last > v->first + 1 &&
            v->elems * tn_dtype_size(v->dtype) >= LEAST)
            w->value_of[v->slot] = i;
    }
    for (int s = 0; s < p->n_step; s++)
        for (int b = p->step[s].n_buf - p->step[s].n_out; b < p->step[s].n_buf; b++) {
            const int slot = p->step[s].buf[b], v = slot < 0 ? -1 : w->value_of[slot];
            if (v >= 0 && p->value[v].first != s) w->value_of[slot] = -1;
        }
    return true;
}

/* Joins readings of one value that overlap, or begin close to each other. Returns how many are left. */
static int join(reading *at, int n)
{
    int k = 0;
    for (int i = 1; i < n; i++)
        if (at[i].low < at[k].high || at[i].low < at[k].low + SMALLEST) {
            at[k].high = at[i].high > at[k].high ? at[i].high : at[k].high;
            at[k].last = at[i].last > at[k].last ? at[i].last : at[k].last;
        } else
            at[++k] = at[i];
    return k + 1;
}

/* Between two parts, at a whole number of the planner's steps, where the one that lives longer has all of its
 * bytes. */
static size_t border(const reading *a, const reading *b)
{
    const size_t up = a->last > b->last ? TN_PLAN_ALIGN - 1 : 0;
    return (b->low + up) / TN_PLAN_ALIGN * TN_PLAN_ALIGN;
}

int fu_list_parts(fu_ctx *c)
{
    tn_plan *p = c->plan;
    readings w = {.c = c};
    bool ok = list_values(&w);
    for (int s = 0; s < p->n_step && ok; s++)
        for (int b = 0; b < p->step[s].n_buf - p->step[s].n_out && ok; b++) {
            const int slot = p->step[s].buf[b], v = slot < 0 ? -1 : w.value_of[slot];
            if (v >= 0 && (!w.n || w.at[w.n - 1].value != v || w.at[w.n - 1].last != s)) ok = note(&w, s, v);
        }
    if (ok && w.n) qsort(w.at, (size_t)w.n, sizeof *w.at, in_order);
    p->part = ok ? tn_arena_alloc(&p->arena, ((size_t)w.n + 1) * sizeof *p->part) : NULL;
    if (!p->part) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int i = 0, end; i < w.n; i = end) {
        for (end = i; end < w.n && w.at[end].value == w.at[i].value; end++)
            ;
        const int n = join(w.at + i, end - i);
        tn_plan_value *v = &p->value[w.at[i].value];
        if (n < 2) continue;
        v->part = p->n_part;
        for (int k = 0; k < n; k++) {
            const reading *r = &w.at[i + k];
            const size_t low = k ? p->part[p->n_part - 1].high : 0;
            const size_t high = k + 1 < n ? border(r, r + 1) : v->elems * tn_dtype_size(v->dtype);
            p->part[p->n_part++] = (tn_plan_part){low, high, r->last};
        }
        v->n_part = n;
    }
    return 0;
}
