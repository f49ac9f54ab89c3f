/* early.c - sums of something small that gradients wait for: they are made beforehand, by a kernel of their
 * own.
 *
 * Loss and gradients are computed in one pass over large operands (join_groups in group.c) where no gradient
 * has to wait for the end of that pass. The mean of a loss over the rows that count, say, has to wait for
 * their number, a sum that depends on the labels alone:
 *
 *     labels -> counts -> cast -> sum -> how many                   by itself: little is read
 *     logits, counts, how many -> rows' losses, their sum, gradient      one pass over the logits
 *
 * Such a sum's group computes all that the sum depends on for itself (fu_node.copy), from operands that can
 * be read at any time, and so waits for no other group. Where loss and gradients are not one kernel in the
 * end, the sum is merged into the loss's group again.
 *
 * Start with fu_early_sum, then fu_settle_early. */
#include "group.h"

#include <string.h>

enum { MOST = 8 }; /* nodes of such a group */

typedef struct chain {
    int n, node[MOST];
} chain;

static bool of_backward(const fu_ctx *c, int node)
{
    const tn_tensor *t = c->node[node].t;
    return t->call && t->call->backward;
}

/* Adds the node and the nodes that it depends on, down to operands that can be read at any time. */
static bool collect(const fu_ctx *c, int node, chain *s)
{
    const tn_tensor *t = c->node[node].t;
    if (fu_find(s->n, s->node, node) >= 0) return true;
    if (s->n == MOST || tn_node_written(t)) return false;
    s->node[s->n++] = node;
    for (int k = 0; k < t->n_in; k++) {
        const tn_tensor *x = fu_value_of(c, t->in[k]);
        int p = fu_node_of(c, x);
        if (tn_is_number(x)) continue;
        if (p < 0) {
            if (!fu_lasting(c, x)) return false;
            continue;
        }
        const fu_node *m = &c->node[p];
        const bool again = !m->root && !m->spared && m->into < 0;
        if (!again || (m->kind != TN_KIND_ELTWISE && m->kind != TN_KIND_CAST) || !collect(c, p, s))
            return false;
    }
    return true;
}

/* Returns true where t is much smaller than the largest gradient. */
static bool is_small(const fu_ctx *c, const tn_tensor *t)
{
    enum { MUCH = 16 };
    int64_t most = 0;
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].live && of_backward(c, i) && tn_node_numel(c->node[i].t) > most)
            most = tn_node_numel(c->node[i].t);
    return tn_node_numel(t) * MUCH <= most;
}

bool fu_early_sum(fu_ctx *c, int node, int g)
{
    const fu_node *n = &c->node[node];
    if (!fu_can(c->target)->meet || n->kind != TN_KIND_REDUCE || tn_node_numel(n->t) != 1 ||
        of_backward(c, node))
        return false;
    bool waited = false;
    for (int u = 0; u < n->n_user; u++) waited = waited || of_backward(c, n->user[u]);
    chain s = {0};
    if (!waited || !is_small(c, fu_value_of(c, n->t->in[0])) || !collect(c, node, &s)) return false;
    fu_by_id(s.n, s.node);
    for (int i = 0; i < s.n; i++)
        if (fu_alone(c, &c->group[i == s.n - 1 ? g : fu_group_of(c, s.node[i])])) return false;
    int *member = tn_arena_alloc(&c->arena, (size_t)s.n * sizeof *member);
    if (!member || fu_try(c, &(fu_candidate){.a = g, .b = g, .n = s.n, .member = s.node})) return false;
    for (int i = 0; i < s.n - 1; i++)
        if (!fu_note_copy(c, s.node[i], g)) return false;
    memcpy(member, s.node, (size_t)s.n * sizeof *member);
    fu_unrank(c);
    c->group[g].member = member;
    c->group[g].n = s.n;
    c->group[g].early = true;
    return true;
}

/* Returns true where the group stores gradients; those that it only computes again for itself do not
 * count. */
static bool makes_gradients(const fu_ctx *c, int g)
{
    for (int i = 0; i < c->group[g].n; i++)
        if (of_backward(c, c->group[g].member[i]) && fu_group_of(c, c->group[g].member[i]) == g) return true;
    return false;
}

void fu_settle_early(fu_ctx *c)
{
    for (int g = 0; g < c->n_group; g++) {
        fu_group *early = &c->group[g];
        if (early->dead || !early->early) continue;
        const fu_node *sum = &c->node[early->member[early->n - 1]];
        int loss = -1;
        bool worth = false;
        for (int u = 0; u < sum->n_user; u++) {
            int of = fu_group_of(c, sum->user[u]);
            if (of_backward(c, sum->user[u])) continue;
            worth = worth || makes_gradients(c, of);
            loss = of;
        }
        if (worth || loss < 0) continue;
        early->early = false;
        fu_merge(c, loss, g);
    }
}
