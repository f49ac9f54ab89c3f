/* range_max.c - a tree of halves: node i has the halves 2i and 2i + 1. Start with tn_range_raise. */
#include "range_max.h"

#include "alloc.h"

bool tn_range_max_open(tn_range_max *r, int n)
{
    for (r->n = 1; r->n < n;) r->n *= 2;
    r->node = tn_calloc(2 * (size_t)r->n, sizeof *r->node);
    for (int i = 0; r->node && i < 2 * r->n; i++) r->node[i].over_by = r->node[i].within_by = -1;
    return r->node != NULL;
}

void tn_range_max_close(tn_range_max *r)
{
    tn_free_mem(r->node);
    r->node = NULL;
}

/* A node, and the places it stands for. */
typedef struct part {
    int node, low, high;
} part;

static part half(part p, int which)
{
    const int middle = p.low + (p.high - p.low) / 2;
    return (part){2 * p.node + which, which ? middle + 1 : p.low, which ? p.high : middle};
}

static void raise(tn_range_max *r, part p, int first, int last, uint64_t value, int by)
{
    struct tn_range_max_node *n = &r->node[p.node];
    if (last < p.low || p.high < first) return;
    if (value > n->within) {
        n->within = value;
        n->within_by = by;
    }
    if (first <= p.low && p.high <= last) {
        if (value > n->over) {
            n->over = value;
            n->over_by = by;
        }
        return;
    }
    raise(r, half(p, 0), first, last, value, by);
    raise(r, half(p, 1), first, last, value, by);
}

void tn_range_raise(tn_range_max *r, int first, int last, uint64_t value, int by)
{
    raise(r, (part){1, 0, r->n - 1}, first, last, value, by);
}

static void find(const tn_range_max *r, part p, int first, int last, uint64_t *most, int *by)
{
    const struct tn_range_max_node *n = &r->node[p.node];
    if (last < p.low || p.high < first || n->within <= *most) return;
    const bool whole = first <= p.low && p.high <= last;
    const uint64_t value = whole ? n->within : n->over;
    if (value > *most) {
        *most = value;
        *by = whole ? n->within_by : n->over_by;
    }
    if (whole) return;
    find(r, half(p, 0), first, last, most, by);
    find(r, half(p, 1), first, last, most, by);
}

uint64_t tn_range_most(const tn_range_max *r, int first, int last, int *by)
{
    uint64_t most = 0;
    int who = -1;
    if (first <= last) find(r, (part){1, 0, r->n - 1}, first, last, &most, &who);
    if (by) *by = who;
    return most;
}
