/* lookups.c - a run that meets an index out of range assigns nothing: indices are known to be in range before
 * the first assignment.
 *
 * Most assignments stand behind all lookups anyway, as an optimizer's do: what they write is made of
 * gradients of a loss that its labels were looked up for. Some do not: running statistics of batch_norm are
 * assigned while the labels have yet to be read. Then
 *
 *   ahead   an index that is computed from memory that is there before the run, as labels and tokens are,
 *           is looked through by a small kernel before all others
 *   order   for an index that the run computes, assignments wait for the nodes that look it up, and are made
 *           by other kernels
 *   undo    an assignment that such a lookup itself waits for, as it looks into what is assigned, is taken
 *           back where memory is the host's (tn_plan.undo); on a GPU it takes effect
 *
 * A function of the user's that fails assigns nothing either: assignments wait for it in the same way.
 *
 * This file lists what is looked up, and orders assignments behind it; loops/lookahead.c decides which of the
 * three it is, and text/checks.c writes the kernels of those ahead. Start with fu_list_lookups. */
#include "graph.h"

#include "../../src/core/hash.h"

#include <string.h>

/* ---- who looks up what ---- */

static bool looks_up(const fu_ctx *c, int i)
{
    const fu_node *n = &c->node[i];
    if (!n->live) return false;
    if (!tn_kind_looks_up(n->kind) && n->kind != TN_KIND_SCATTER && n->t->op != TN_OP_assign_rows)
        return false;
    /* a number is the same wherever the index points */
    const tn_tensor *x = fu_value_of(c, n->t->in[0]);
    const bool any = tn_kind_looks_up(n->kind) && tn_is_number(x);
    return !any && tn_node_numel(n->t) > 0 && tn_node_numel(fu_value_of(c, n->t->in[1])) > 0;
}

bool fu_lasts(const fu_ctx *c, int i)
{
    const tn_tensor *t = c->node[i].t, *to = tn_node_written(t);
    bool adds = false; /* to what is there, as a second backward does */
    if (!c->node[i].live || !to) return false;
    for (int k = 0; k < t->n_in && !adds; k++) {
        const tn_tensor *x = fu_value_of(c, t->in[k]);
        adds = fu_node_of(c, x) < 0 && tn_node_overlap(x, to);
    }
    return adds || c->node[i].kind == TN_KIND_ASSIGN;
}

static const tn_tensor *index_of(const fu_ctx *c, int i) { return fu_value_of(c, c->node[i].t->in[1]); }

static int64_t lines_of(const fu_ctx *c, int i)
{
    const tn_tensor *t = c->node[i].t;
    return (tn_kind_looks_up(c->node[i].kind) ? t->in[0] : t)->shape[t->attr->axis];
}

static bool is_lookup(const fu_ctx *c, int i, const fu_lookup *l)
{
    if (!looks_up(c, i) || lines_of(c, i) != l->extent) return false;
    return tn_same_view(index_of(c, i), l->index);
}

/* Positions that an operator has made are in range where there are not more of them than lines. */
static bool counts_lines(const fu_ctx *c, const fu_lookup *l)
{
    const int i = fu_node_of(c, l->index);
    if (i < 0) return false;
    const tn_tensor *t = c->node[i].t;
    int64_t most = 1;
    if (c->node[i].kind == TN_KIND_IOTA) return t->shape[t->attr->axis] <= l->extent;
    if (t->op != TN_OP_reduce_argmax && t->op != TN_OP_reduce_argmin) return false;
    for (int a = 0; a < t->in[0]->ndim; a++)
        if (t->attr->axes >> a & 1) most *= t->in[0]->shape[a];
    return most <= l->extent;
}

static uint64_t hash_of(const fu_ctx *c, int i)
{
    const tn_tensor *x = index_of(c, i);
    return tn_hash_mix((uint64_t)x->base->slot ^ 0x9e3779b97f4a7c15u,
                       (uint64_t)(lines_of(c, i) ^ x->offset) ^ 0xd1b54a32d192ed03u);
}

/* met: lookups by what they look up. */
static int note_lookup(fu_ctx *c, int i, fu_seen *met)
{
    uint32_t at = (uint32_t)hash_of(c, i) & met->mask;
    while (met->slot[at] >= 0 && !is_lookup(c, i, &c->lookup[met->slot[at]])) at = (at + 1) & met->mask;
    if (met->slot[at] < 0) {
        fu_lookup *list = fu_grow(&c->arena, c->lookup, c->n_lookup, &c->cap_lookup, sizeof *list);
        if (!list) return TN_E_NOMEM;
        c->lookup = list;
        met->slot[at] = c->n_lookup++;
        list[met->slot[at]] = (fu_lookup){.index = index_of(c, i), .extent = lines_of(c, i), .node = i};
        list[met->slot[at]].known = counts_lines(c, &list[met->slot[at]]);
    }
    c->node[i].lookup = met->slot[at];
    fu_lookup *l = &c->lookup[met->slot[at]];
    l->known = l->known || c->node[i].t->attr->in_range;
    return 0;
}

int fu_list_lookups(fu_ctx *c)
{
    bool any = false;
    int status = 0;
    fu_seen met;
    for (int i = 0; i < c->n_node && !any; i++) any = fu_lasts(c, i);
    if (any && !fu_seen_open(c, &met)) return TN_E_NOMEM;
    for (int i = 0; i < c->n_node && any && !status; i++)
        if (looks_up(c, i)) status = note_lookup(c, i, &met);
    return status;
}

/* ---- order ---- */

/* For each node those it waits for, or those that wait for it: by[begin[i]] .. by[begin[i + 1] - 1]. */
typedef struct edges {
    int *begin, *by;
} edges;

static bool list_edges(fu_ctx *c, bool waiting, edges *e)
{
    int all = 0;
    e->begin = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 2) * sizeof *e->begin);
    if (!e->begin) return false;
    for (int i = 0; i < c->n_node; i++)
        for (int k = 0; k < c->node[i].n_after; k++) e->begin[waiting ? c->node[i].after[k] : i]++;
    for (int i = 0; i <= c->n_node; i++) e->begin[i] = all += e->begin[i]; /* ends, for now */
    e->by = tn_arena_alloc(&c->arena, (size_t)(all + 1) * sizeof *e->by);
    for (int i = c->n_node; e->by && i-- > 0;)
        for (int k = c->node[i].n_after; k-- > 0;) {
            const int d = c->node[i].after[k];
            e->by[--e->begin[waiting ? d : i]] = waiting ? i : d;
        }
    return e->by != NULL;
}

/* Marks what the edges lead to from a node on. stack: room for all nodes. */
static void spread(const edges *e, int node, bool *seen, int *stack)
{
    int n = 0;
    stack[n++] = node;
    seen[node] = true;
    while (n) {
        const int i = stack[--n];
        for (int k = e->begin[i]; k < e->begin[i + 1]; k++) {
            if (seen[e->by[k]]) continue;
            seen[e->by[k]] = true;
            stack[n++] = e->by[k];
        }
    }
}

int fu_put_behind(fu_ctx *c, int node)
{
    const size_t n = (size_t)c->n_node + 1;
    edges awaited, waiting;
    bool *before = tn_arena_alloc(&c->arena, n), *behind = tn_arena_alloc(&c->arena, n);
    int *stack = tn_arena_alloc(&c->arena, n * sizeof *stack);
    if (!before || !behind || !stack || !list_edges(c, false, &awaited) || !list_edges(c, true, &waiting))
        return TN_E_NOMEM;
    spread(&awaited, node, before, stack);
    spread(&waiting, node, behind, stack);
    for (int w = 0; w < c->n_node; w++) {
        if (!fu_lasts(c, w) || behind[w]) continue;
        c->plan->undo = c->plan->undo || before[w];
        if (before[w]) continue;
        if (!fu_note_after(c, w, node)) return TN_E_NOMEM;
        spread(&waiting, w, behind, stack);
    }
    return 0;
}

bool fu_looks_too_late(const fu_ctx *c, int n, const int *member)
{
    bool writes = false, late = false;
    for (int i = 0; i < n && c->n_lookup; i++) writes = writes || fu_lasts(c, member[i]);
    for (int i = 0; i < n && writes && !late; i++) {
        const int lookup = c->node[member[i]].lookup;
        const fu_lookup *l = lookup < 0 ? NULL : &c->lookup[lookup];
        late = l && !l->known && !l->ahead && !l->undone;
    }
    return late;
}
