/* verify_graph.c - what the passes may take for granted about nodes and groups, checked between them.
 *
 *   graph    after simplify and after fold: who reads what, what stands for what, order, spared copies
 *   groups   after group: each node is stored by one group, no groups wait for each other, rooms fit
 *
 * A pass that breaks a rule makes no plan: the error names the pass, the node with its line in the program,
 * and the rule. The other two specifications stand in verify_program.c and verify_steps.c.
 * Start with fu_verify_graph. */

#include "graph.h"

/* ---- the graph ---- */

/* Checks operand k of node i: it must be older than i, and be there. Returns the rule that is broken, or
 * NULL. */
static const char *wrong_operand(const fu_ctx *c, int i, int k)
{
    const tn_tensor *t = c->node[i].t, *x = fu_value_of(c, t->in[k]);
    if (fu_value_of(c, x) != x) return "what stands for an operand has something else standing for it";
    if (!tn_same_type(x, t->in[k])) return "what stands for an operand has another dtype or shape";
    if (tn_kind_of(x->base) == TN_KIND_NUMBER && x->base->op == TN_OP_constant) return NULL;
    int p = fu_node_of(c, x), slot;
    int64_t offset;
    if (p < 0) return fu_place(c, x, &slot, &offset) ? NULL : "an operand is neither node, leaf nor number";
    if (p >= i) return "an operand is not older than its reader";
    if (!c->node[p].live) return "an operand is a node that does not run";
    const tn_tensor *v = x;
    while (v != c->node[p].t && v->base != v && v->n_in && tn_kind_of(v) == TN_KIND_VIEW) v = v->in[0];
    if (v != c->node[p].t) return "a view does not lead to the node whose memory it looks at";
    for (int u = 0; u < c->node[p].n_user; u++)
        if (c->node[p].user[u] == i) return NULL;
    return "a reader is not among the users of what it reads";
}

/* Checks the place that node i is to write its value to: inside of a node that leaves its memory to
 * others. */
static const char *wrong_target(const fu_ctx *c, int i)
{
    const fu_node *n = &c->node[i], *to = &c->node[n->into];
    if (!to->live || !to->spared) return "writes into a node that is not spared";
    int64_t low = n->into_offset, high = low;
    for (int k = 0; k < n->t->ndim; k++) {
        int64_t far = (n->t->shape[k] - 1) * n->into_stride[k];
        *(far < 0 ? &low : &high) += far;
    }
    if (tn_node_numel(n->t) && (low < 0 || high >= tn_node_numel(to->t)))
        return "writes outside of the node it is to write into";
    return n->n_user == 1 ? NULL : "is read by others than the node it writes into";
}

static const char *wrong_node(const fu_ctx *c, int i)
{
    const fu_node *n = &c->node[i];
    const char *why = NULL;
    if (n->kind != tn_kind_of(n->t)) return "its kind is not that of its op";
    if (n->same && !tn_same_type(n->same, n->t)) return "what stands for it has another dtype or shape";
    if (!n->live) return n->spared || n->into >= 0 ? "a node that does not run is spared or written" : NULL;
    for (int k = tn_kind_of(n->t) == TN_KIND_ASSIGN ? 1 : 0; k < n->t->n_in && !why; k++) {
        if (fu_draws(c, n->t, k)) continue;
        int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
        why = wrong_operand(c, i, k);
        if (!why && p >= 0 && fu_find(n->n_after, n->after, p) < 0) why = "does not wait for what it reads";
    }
    for (int k = 0; k < n->n_user && !why; k++)
        if (n->user[k] <= i || n->user[k] >= c->n_node || !c->node[n->user[k]].live)
            why = "a user is older, or does not run";
    for (int k = 0; k < n->n_after && !why; k++)
        if (n->after[k] < 0 || n->after[k] >= c->n_node || !c->node[n->after[k]].live)
            why = "waits for a node that does not run";
    if (!why && n->into >= 0) why = wrong_target(c, i);
    return why;
}

/* A node whose value others write has all of it written. */
static int check_spared(fu_ctx *c, const char *pass)
{
    int64_t *written = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *written);
    if (!written) return TN_E_NOMEM;
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].live && c->node[i].into >= 0) written[c->node[i].into] += tn_node_numel(c->node[i].t);
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].spared && written[i] != tn_node_numel(c->node[i].t) && c->node[i].into < 0) {
            bool through = false; /* parts may be written into what this one is copied to */
            for (int u = 0; u < c->node[i].n_user; u++)
                through = through || (c->node[c->node[i].user[u]].spared &&
                                      written[c->node[i].user[u]] == tn_node_numel(c->node[i].t));
            if (!through) return fu_broken(c, pass, i, "is spared, and nobody writes all of it");
        }
    return 0;
}

/* Checks that all nodes can run, each after those it waits for. */
static int check_order(fu_ctx *c, const char *pass)
{
    bool *done = tn_arena_alloc(&c->arena, (size_t)c->n_node + 1);
    if (!done) return TN_E_NOMEM;
    int left = 0, before;
    for (int i = 0; i < c->n_node; i++) left += c->node[i].live;
    do {
        before = left;
        for (int i = 0; i < c->n_node; i++) {
            const fu_node *n = &c->node[i];
            if (!n->live || done[i]) continue;
            bool ready = true;
            for (int k = 0; k < n->n_after && ready; k++) ready = done[n->after[k]];
            if (ready) done[i] = true;
            left -= ready;
        }
    } while (left && left < before);
    for (int i = 0; i < c->n_node && left; i++) {
        if (!c->node[i].live || done[i]) continue;
        if (c->n_writer) /* what the program asks for: operands alone, which are older, make no circle */
            return fu_fail(c, TN_E_UNSUPPORTED, "values before and after an assignment are both needed");
        return fu_broken(c, pass, i, "nodes wait for each other");
    }
    return 0;
}

static int check_guards(fu_ctx *c, const char *pass)
{
    for (int i = 0; i < c->plan->n_guard; i++) {
        int leaf = c->plan->guard[i].leaf;
        if (leaf < 0 || leaf >= c->n_leaf || c->seg->leaf[leaf]->base->op != TN_OP_scalar ||
            c->seg->unguarded)
            return fu_broken(c, pass, -1, "a guard of what is no run-time number");
    }
    return 0;
}

int fu_verify_graph(fu_ctx *c, const char *pass)
{
    for (int i = 0; i < c->n_node; i++)
        if ((c->node[i].root || c->node[i].kind == TN_KIND_ASSIGN) && !c->node[i].live)
            return fu_broken(c, pass, i, "a root does not run");
    for (int i = 0; i < c->n_node; i++) {
        const char *why = wrong_node(c, i);
        if (why) return fu_broken(c, pass, i, why);
    }
    int status = check_spared(c, pass);
    if (!status) status = check_order(c, pass);
    return status ? status : check_guards(c, pass);
}

/* ---- groups ---- */

static int alive(const fu_ctx *c, int g)
{
    while (g >= 0 && g < c->n_group && c->group[g].dead) g = c->group[g].into;
    return g;
}

/* The kinds of a room's nodes. */
static bool fits(fu_room room, tn_kind kind)
{
#define K(kind) (1u << TN_KIND_##kind)
    enum { ANY = K(ELTWISE) | K(CAST) | K(REDUCE) | K(VIEW) | K(IOTA) | K(RANDOM) | K(ASSIGN) };
    static const uint32_t kinds[] = {[FU_GEMM] = K(GEMM),
                                     [FU_CONV] = K(CONV),
                                     [FU_TILE] = ANY | K(CONV) | K(GEMM),
                                     [FU_WINDOW] = K(WINDOW),
                                     [FU_SCATTER] = K(SCATTER) | K(ASSIGN),
                                     [FU_SCAN] = K(SCAN) | K(SORT),
                                     [FU_CONCAT] = K(VIEW),
                                     [FU_ATTENTION] = K(ATTENTION),
                                     [FU_RANKS] = K(RANKS),
                                     [FU_HOST] = K(HOST),
                                     [FU_LOOPS] = ANY | K(GATHER) | K(ROWS),
                                     [FU_NOTHING] = UINT32_MAX};
#undef K
    return kinds[room] >> kind & 1;
}

static const char *wrong_member(const fu_ctx *c, int g, int k)
{
    const fu_group *a = &c->group[g];
    int i = a->member[k];
    if (i < 0 || i >= c->n_node || !c->node[i].live) return "a group has a node that does not run";
    if (k && a->member[k - 1] >= i) return "a group's nodes are not in order";
    if (!fits(a->room, c->node[i].kind)) return "does not belong into its group's room";
    if ((a->room == FU_NOTHING) != c->node[i].spared)
        return "is spared, and its group is not, or the reverse";
    if (fu_group_of(c, i) == g) return NULL;
    if (c->node[i].root) return "a root is computed again";
    for (int n = 0; n < c->node[i].n_copy; n++)
        if (alive(c, c->node[i].copy[n]) == g) return NULL;
    return "is in a group that neither stores it nor is known to compute it again";
}

static int check_group_order(fu_ctx *c)
{
    bool *done = tn_arena_alloc(&c->arena, (size_t)c->n_group + 1);
    if (!done) return TN_E_NOMEM;
    int left = 0, before, stuck = -1;
    for (int g = 0; g < c->n_group; g++) left += !c->group[g].dead;
    do {
        before = left;
        for (int g = 0; g < c->n_group; g++) {
            const fu_group *a = &c->group[g];
            if (a->dead || done[g]) continue;
            bool ready = true;
            for (int i = 0; i < a->n && ready; i++)
                for (int k = 0; k < c->node[a->member[i]].n_after && ready; k++) {
                    int d = fu_awaited(c, g, a->member[i], k);
                    ready = d == g || done[d];
                }
            done[g] = ready;
            left -= ready;
            if (!ready) stuck = a->member[0];
        }
    } while (left && left < before);
    return left ? fu_broken(c, "group", stuck, "groups wait for each other") : 0;
}

int fu_verify_groups(fu_ctx *c)
{
    for (int i = 0; i < c->n_node; i++) {
        if (!c->node[i].live) continue;
        int g = c->node[i].group < c->n_group ? alive(c, c->node[i].group) : -1;
        if (g < 0 || g >= c->n_group || !fu_has(&c->group[g], i))
            return fu_broken(c, "group", i, "no group stores it");
    }
    for (int g = 0; g < c->n_group; g++) {
        const fu_group *a = &c->group[g];
        if (a->dead) continue;
        if (a->n < 1 || a->n > FU_MAX_MEMBERS)
            return fu_broken(c, "group", -1, "a group of no or too many nodes");
        bool both = a->room == FU_WINDOW && a->n == 2; /* the largest and which it is */
        if (a->n > 1 && a->room != FU_LOOPS && a->room != FU_TILE && a->room != FU_ATTENTION && !both)
            return fu_broken(c, "group", a->member[1], "shares a kernel that can only compute one node");
        for (int k = 0; k < a->n; k++) {
            const char *why = wrong_member(c, g, k);
            if (why) return fu_broken(c, "group", a->member[k], why);
        }
    }
    return check_group_order(c);
}
