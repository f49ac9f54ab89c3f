/* group.c - which nodes one kernel computes.
 *
 * Greedy, in the segment's order: each node starts a group of its own, then joins the groups of its
 * producers, then those that read the same memory, whenever the union is legal: no other group stands
 * between the two, and domain.c, program.c and schedule.c can make one kernel of it. Every refusal along an
 * edge is kept with its reason. Then values are computed again by their readers (recompute.c), and readers of
 * convolutions and products join those (tiles.c). Start with fu_group_all, then fu_merge. */
#include "group.h"

#include <string.h>

/* Finds which elements of its base the view x reaches from, and to. */
static void reach(const tn_tensor *x, int64_t *low, int64_t *high)
{
    *low = *high = x->offset;
    for (int i = 0; i < x->ndim; i++) {
        const int64_t far = (x->shape[i] - 1) * x->stride[i];
        *(far < 0 ? low : high) += far;
    }
}

/* Returns true where the two may read the same elements: steps of a sequence, each a slice of one tensor, do
 * not. */
static bool meet(const tn_tensor *x, const tn_tensor *y)
{
    int64_t low[2], high[2];
    if (x->base != y->base) return false;
    reach(x, &low[0], &high[0]);
    reach(y, &low[1], &high[1]);
    return low[0] <= high[1] && low[1] <= high[0];
}

/* Earlier groups that read the same large memory. */
static void join_siblings(fu_ctx *c, int node)
{
    enum { TRIES = 6 };
    const tn_tensor *t = c->node[node].t;
    int tried[TRIES], tries = 0;
    for (int k = 0; k < t->n_in && tries < TRIES; k++) {
        const tn_tensor *x = fu_value_of(c, t->in[k]), *base = x->base;
        if (tn_node_numel(base) < 2 || tn_is_number(base)) continue;
        int p = fu_node_of(c, base);
        int first = p >= 0 ? p + 1 : 0;
        for (int i = node - 1; i >= first && i > node - 64 && tries < TRIES; i--) {
            const tn_tensor *o = c->node[i].t;
            if (!c->node[i].live) continue;
            bool shares = false;
            for (int m = 0; m < o->n_in && !shares; m++) shares = meet(fu_value_of(c, o->in[m]), x);
            int a = fu_group_of(c, i), b = fu_group_of(c, node);
            for (int m = 0; m < tries && shares; m++) shares = tried[m] != a;
            if (!shares || a == b || c->group[a].room != FU_LOOPS) continue;
            tried[tries++] = a;
            fu_merge(c, a, b);
        }
    }
}

/* Max pooling finds the largest element of each window and where it lies at once: one kernel gives both, and
 * the image need not be kept for the backward pass. */
static void join_window(fu_ctx *c, int node)
{
    const fu_node *n = &c->node[node];
    if (n->t->op != TN_OP_pool_argmax || tn_node_written(n->t)) return;
    for (int i = node - 1; i >= 0; i--) {
        const tn_tensor *o = c->node[i].t;
        if (!c->node[i].live || o->op != TN_OP_pool_max || tn_node_written(o)) continue;
        int a = fu_group_of(c, i), b = fu_group_of(c, node);
        bool same = fu_value_of(c, o->in[0]) == fu_value_of(c, n->t->in[0]) &&
                    !memcmp(&o->attr->pool, &n->t->attr->pool, sizeof o->attr->pool);
        if (same && c->group[a].n == 1 && fu_join(c, a, b)) return;
    }
}

/* Joins the attention results that have the same operands, which one kernel gives at once: o and lse, and dq,
 * dk and dv. */
static void join_attention(fu_ctx *c, int node)
{
    const tn_tensor *t = c->node[node].t;
    for (int i = node - 1; i >= 0; i--) {
        const tn_tensor *o = c->node[i].t;
        if (!c->node[i].live || c->node[i].kind != TN_KIND_ATTENTION || o->op == t->op || o->n_in != t->n_in)
            continue;
        bool same = !memcmp(&o->attr->attention, &t->attr->attention, sizeof o->attr->attention);
        for (int k = 0; k < t->n_in && same; k++) same = fu_value_of(c, o->in[k]) == fu_value_of(c, t->in[k]);
        if (same && fu_join(c, fu_group_of(c, i), fu_group_of(c, node))) return;
    }
}

/* Returns true where b reads a large value that a reads too, or, with `both` (one of them is the forward
 * pass, the other gradients), one that a computes. */
static bool share_large(const fu_ctx *c, const fu_group *a, const fu_group *b, bool both)
{
    for (int i = 0; i < b->n; i++) {
        const tn_tensor *t = c->node[b->member[i]].t;
        for (int k = 0; k < t->n_in; k++) {
            const tn_tensor *x = fu_value_of(c, t->in[k]), *base = x->base;
            if (tn_node_numel(base) < 1024 || tn_is_number(base)) continue;
            int p = fu_node_of(c, base);
            if (p >= 0 && fu_has(a, p) && both) return true;
            if (p >= 0 && (fu_has(a, p) || fu_has(b, p))) continue;
            for (int j = 0; j < a->n; j++) {
                const tn_tensor *o = c->node[a->member[j]].t;
                for (int m = 0; m < o->n_in; m++)
                    if (meet(fu_value_of(c, o->in[m]), x)) return true;
            }
        }
    }
    return false;
}

/* Once values are computed again where they are read, groups may share reads that they did not before. And
 * once gradients are whole groups, it can be told what of them is written anyway: what one of their values by
 * itself was too early for, all of them together may be in time for. */
static void join_groups(fu_ctx *c, bool copied)
{
    const bool may = fu_can(c->target)->meet;
    for (int b = 0; b < c->n_group; b++)
        for (int a = b - 1; a >= 0 && a >= b - 64; a--) {
            if (c->group[b].dead) break;
            const fu_group *ga = &c->group[a], *gb = &c->group[b];
            const bool both = may && ga->backward != gb->backward;
            if (ga->dead || ga->room != FU_LOOPS || gb->room != FU_LOOPS || !(copied || both)) continue;
            if (share_large(c, ga, gb, both)) fu_merge(c, a, b);
        }
}

/* Bytes that are touched, about, between the forward pass's computing a value and the backward pass's reading
 * it. It is an estimate: a fourth of all the nodes' values is written or read in memory. */
static double distance_to_backward(const fu_ctx *c)
{
    double bytes = 0;
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].live) bytes += (double)fu_bytes(c->node[i].t);
    return bytes / 4;
}

/* Returns true where node i makes a much larger value of p's, which is in memory anyway, for a product: reading
 * it takes next to nothing, and all that else is made of it or with it would be so over again in i's loops. */
static bool stays_small(const fu_ctx *c, int p, int i)
{
    enum { MUCH = 16 };
    bool stays = false;
    for (int u = 0; u < c->node[p].n_user && !stays; u++)
        stays = fu_room_of(c->node[c->node[p].user[u]].t) != FU_LOOPS;
    return stays && tn_node_numel(c->node[p].t) * MUCH <= tn_node_numel(c->node[i].t);
}

int fu_group_all(fu_ctx *c)
{
    c->far = distance_to_backward(c);
    c->group = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *c->group);
    if (!c->group) return TN_E_NOMEM;
    for (int i = 0; i < c->n_node; i++) { /* all of them: an assignment may have to wait for newer ones */
        fu_node *n = &c->node[i];
        if (!n->live) continue;
        fu_group *g = &c->group[c->n_group];
        g->member = tn_arena_alloc(&c->arena, sizeof *g->member);
        if (!g->member) return TN_E_NOMEM;
        g->room = n->spared ? FU_NOTHING : n->tile[0] && n->kind == TN_KIND_CONV ? FU_TILE : fu_room_of(n->t);
        g->backward = n->t->call && n->t->call->backward;
        g->n = 1;
        g->member[0] = i;
        n->group = c->n_group++;
    }
    for (int i = 0; i < c->n_node; i++) {
        const fu_node *n = &c->node[i];
        if (!n->live) continue;
        const fu_group *g = &c->group[n->group];
        if (fu_early_sum(c, i, n->group)) continue;
        fu_join_difference(c, i);
        for (int k = n->t->n_in - 1; k >= 0; k--) {
            if ((n->kind == TN_KIND_ASSIGN && k == 0) || fu_draws(c, n->t, k)) continue;
            int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
            if (p < 0 || fu_group_of(c, p) == fu_group_of(c, i)) continue;
            tn_cut_reason why =
                stays_small(c, p, i) ? TN_CUT_REPEATED : fu_merge(c, fu_group_of(c, p), fu_group_of(c, i));
            if (why == TN_CUT_LIBRARY && c->node[p].t->flags & TN_F_COMPOSED) why = TN_CUT_ATTENTION;
            if (why && !n->spared && !c->node[p].spared) fu_cut(c, p, i, why);
        }
        if (g->room == FU_LOOPS) join_siblings(c, i);
        if (g->room == FU_WINDOW) join_window(c, i);
        if (g->room == FU_ATTENTION) join_attention(c, i);
    }
    int before = c->n_copy;
    for (int i = c->n_node - 1; i >= 0; i--) fu_recompute(c, i);
    join_groups(c, c->n_copy > before);
    for (int i = 0; i < c->n_node; i++) fu_make_late(c, i);
    fu_settle_early(c);
    fu_join_tiles(c);
    fu_recompute_for_tiles(c);
    for (int i = 0; i < c->n_node; i++) /* what statistics are in the place of has no value to be read */
        for (int u = 0; c->node[i].statistic == FU_WITHIN && u < c->node[i].n_user; u++) {
            int g = fu_group_of(c, i);
            if (c->group[g].room == FU_TILE && fu_group_of(c, c->node[i].user[u]) != g)
                return fu_fail(c, TN_E_INTERNAL, "what statistics are in the place of is read");
        }
    return 0;
}
