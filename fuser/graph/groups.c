/* groups.c - what a group is: which one a node belongs to, who waits for it, which of its values others read.
 * Groups are numbers into fu_ctx.group; one that has been merged stays there, dead, and says into which.
 * Start with fu_group_of. */
#include "graph.h"

int fu_alive(const fu_ctx *c, int g)
{
    while (g >= 0 && c->group[g].dead) g = c->group[g].into;
    return g;
}

int fu_group_of(const fu_ctx *c, int node) { return fu_alive(c, c->node[node].group); }

int fu_awaited(const fu_ctx *c, int g, int node, int k)
{
    const int d = c->node[node].after[k], owner = fu_group_of(c, d);
    const bool own = fu_can(c->target)->meet && owner != g && c->node[d].n_copy &&
                     !tn_node_written(c->node[node].t) && fu_has(&c->group[g], d);
    return own ? g : owner;
}

int fu_find(int n, const int *list, int x)
{
    for (int i = 0; i < n; i++)
        if (list[i] == x) return i;
    return -1;
}

bool fu_has(const fu_group *g, int node) { return fu_find(g->n, g->member, node) >= 0; }

static bool is_of(const fu_candidate *k, int g) { return k && (g == k->a || g == k->b); }

bool fu_read_outside(const fu_ctx *c, const fu_candidate *k, int node)
{
    const fu_node *n = &c->node[node];
    for (int i = 0; i < n->n_user; i++) {
        const fu_node *u = &c->node[n->user[i]];
        const int owner = fu_group_of(c, n->user[i]);
        if (is_of(k, owner) ? fu_find(k->n, k->member, node) < 0 : !fu_has(&c->group[owner], node))
            return true;
        for (int j = 0; j < u->n_copy; j++) {
            const int g = fu_alive(c, u->copy[j]);
            if (!is_of(k, g) && !fu_has(&c->group[g], node)) return true;
        }
    }
    return false;
}

int fu_readers(const fu_ctx *c, int node, int *out, int most)
{
    const fu_node *n = &c->node[node];
    int count = 0, owner = fu_group_of(c, node);
    for (int u = 0; u < n->n_user; u++) {
        const fu_node *user = &c->node[n->user[u]];
        for (int k = -1; k < user->n_copy; k++) {
            int g = k < 0 ? fu_group_of(c, n->user[u]) : fu_alive(c, user->copy[k]);
            bool known = g == owner || fu_has(&c->group[g], node);
            for (int i = 0; i < count && !known; i++) known = out[i] == g;
            if (known) continue;
            if (count == most) return -1;
            out[count++] = g;
        }
    }
    return count;
}

bool fu_owns(const fu_ctx *c, const fu_candidate *k, int node) { return is_of(k, fu_group_of(c, node)); }

fu_candidate fu_candidate_of(const fu_ctx *c, const fu_group *g)
{
    const int at = (int)(g - c->group);
    return (fu_candidate){.a = at, .b = at, .n = g->n, .member = g->member, .settled = true};
}

bool fu_alone(const fu_ctx *c, const fu_group *g)
{
    for (int i = 0; i < g->n && c->seg->root; i++)
        if (c->seg->root[g->member[i]] & TN_SEG_ALONE) return true;
    return false;
}

int64_t fu_bytes(const tn_tensor *t) { return tn_node_numel(t) * (int64_t)tn_dtype_size(t->dtype); }

fu_room fu_room_of(const tn_tensor *t)
{
    switch (tn_kind_of(t)) {
    case TN_KIND_GEMM: return FU_GEMM;
    case TN_KIND_CONV: return FU_CONV;
    case TN_KIND_WINDOW: return FU_WINDOW;
    case TN_KIND_SCATTER: return FU_SCATTER;
    case TN_KIND_SCAN:
    case TN_KIND_SORT: return FU_SCAN;
    case TN_KIND_ATTENTION: return FU_ATTENTION;
    case TN_KIND_RANKS: return FU_RANKS;
    case TN_KIND_HOST: return FU_HOST;
    case TN_KIND_VIEW: return t->op == TN_OP_concat && t->n_in > FU_MAX_JOINED ? FU_CONCAT : FU_LOOPS;
    case TN_KIND_LEAF:
    case TN_KIND_NUMBER:
    case TN_KIND_IOTA:
    case TN_KIND_ELTWISE:
    case TN_KIND_CAST:
    case TN_KIND_REDUCE:
    case TN_KIND_GATHER:
    case TN_KIND_ROWS:
    case TN_KIND_RANDOM: return FU_LOOPS;
    case TN_KIND_ASSIGN: return t->op == TN_OP_assign_rows ? FU_SCATTER : FU_LOOPS;
    }
    return FU_LOOPS;
}

void fu_by_id(int n, int *node)
{
    for (int i = 1; i < n; i++) {
        const int at = node[i];
        int k = i;
        for (; k > 0 && node[k - 1] > at; k--) node[k] = node[k - 1];
        node[k] = at;
    }
}
