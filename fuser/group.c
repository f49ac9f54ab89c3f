/* group.c - which nodes one kernel computes.
 *
 * Greedy, in the segment's order: each node starts a group of its own, then joins the groups of its
 * producers, then those that read the same memory, whenever the union is legal: no other group stands
 * between the two, and domain.c, program.c and schedule.c can make one kernel of it. Every refusal along an
 * edge is kept with its reason. Start with fu_group_all.
 */
#include "fuser.h"

#include <string.h>

int fu_group_of(const fu_ctx *c, int node)
{
    int g = c->node[node].group;
    while (g >= 0 && c->group[g].dead) g = c->group[g].into;
    return g;
}

tn_cut_reason fu_try(fu_ctx *c, int n, const int *member)
{
    tn_cut_reason why = fu_domain_build(c, c->domain, n, member);
    if (!why) why = fu_program(c, c->domain, c->prog);
    if (!why) why = fu_schedule(c->prog);
    return why;
}

static fu_room room_of(const tn_tensor *t)
{
    switch (tn_op_get((tn_op)t->op)->kind) {
    case TN_KIND_GEMM:
        return FU_GEMM;
    case TN_KIND_CONV:
        return FU_CONV;
    case TN_KIND_WINDOW:
        return FU_WINDOW;
    case TN_KIND_SCATTER:
        return FU_SCATTER;
    case TN_KIND_SCAN:
        return FU_SCAN;
    case TN_KIND_VIEW:
        return t->op == TN_OP_pad ? FU_PAD : t->op == TN_OP_concat ? FU_CONCAT : FU_LOOPS;
    default:
        return FU_LOOPS;
    }
}

/* Whether group `from` needs, through any other group, what `to` computes. Groups whose nodes are all older
 * than `to` cannot. */
static bool reaches(fu_ctx *c, int from, int to, bool direct)
{
    fu_group *g = &c->group[from];
    if (g->mark == c->mark) return false;
    g->mark = c->mark;
    for (int i = 0; i < g->n; i++) {
        const fu_node *n = &c->node[g->member[i]];
        for (int k = 0; k < n->n_after; k++) {
            int d = c->node[n->after[k]].group < 0 ? -1 : fu_group_of(c, n->after[k]);
            if (d < 0 || d == from) continue;
            if (d == to) {
                if (direct) return true;
                continue;
            }
            if (reaches(c, d, to, true)) return true;
        }
    }
    return false;
}

static bool between(fu_ctx *c, int a, int b)
{
    c->mark++;
    if (reaches(c, a, b, false)) return true;
    c->mark++;
    return reaches(c, b, a, false);
}

static tn_cut_reason merge(fu_ctx *c, int a, int b)
{
    fu_group *ga = &c->group[a], *gb = &c->group[b];
    if (ga->room != FU_LOOPS || gb->room != FU_LOOPS) {
        fu_room r = ga->room != FU_LOOPS ? ga->room : gb->room;
        return r == FU_GEMM || r == FU_CONV ? TN_CUT_LIBRARY : TN_CUT_OWN_KERNEL;
    }
    int n = ga->n + gb->n, all[2 * FU_MAX_MEMBERS];
    if (n > FU_MAX_MEMBERS) return TN_CUT_SIZE;
    for (int i = 0, j = 0, k = 0; k < n; k++)
        all[k] =
            j == gb->n || (i < ga->n && ga->member[i] < gb->member[j]) ? ga->member[i++] : gb->member[j++];
    if (between(c, a, b)) return TN_CUT_CYCLE;
    tn_cut_reason why = fu_try(c, n, all);
    if (why) return why;
    int *member = tn_arena_alloc(&c->arena, (size_t)n * sizeof *member);
    if (!member) return TN_CUT_SIZE; /* smaller groups are always right */
    memcpy(member, all, (size_t)n * sizeof *member);
    ga->member = member;
    ga->n = n;
    gb->dead = true;
    gb->into = a;
    return TN_CUT_NONE;
}

/* Earlier groups that read the same large memory. */
static void join_siblings(fu_ctx *c, int node)
{
    const tn_tensor *t = c->node[node].t;
    int tries = 0;
    for (int k = 0; k < t->n_in && tries < 4; k++) {
        const tn_tensor *base = fu_value_of(c, t->in[k])->base;
        if (tn_node_numel(base) < 2 || tn_op_get((tn_op)base->op)->kind == TN_KIND_NUMBER) continue;
        int p = fu_node_of(c, base);
        int first = p >= 0 ? p + 1 : 0;
        for (int i = node - 1; i >= first && i > node - 64 && tries < 4; i--) {
            const tn_tensor *o = c->node[i].t;
            if (!c->node[i].live || c->node[i].group < 0) continue;
            bool shares = false;
            for (int m = 0; m < o->n_in && !shares; m++) shares = fu_value_of(c, o->in[m])->base == base;
            int a = fu_group_of(c, i), b = fu_group_of(c, node);
            if (!shares || a == b || c->group[a].room != FU_LOOPS) continue;
            tries++;
            merge(c, a, b);
        }
    }
}

int fu_group_all(fu_ctx *c)
{
    c->group = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *c->group);
    if (!c->group) return TN_E_NOMEM;
    for (int i = 0; i < c->n_node; i++) {
        fu_node *n = &c->node[i];
        if (!n->live) continue;
        fu_group *g = &c->group[c->n_group];
        g->member = tn_arena_alloc(&c->arena, sizeof *g->member);
        if (!g->member) return TN_E_NOMEM;
        g->room = room_of(n->t);
        g->n = 1;
        g->member[0] = i;
        n->group = c->n_group++;
        for (int k = n->t->n_in - 1; k >= 0; k--) {
            if (n->kind == TN_KIND_ASSIGN && k == 0) continue;
            int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
            if (p < 0 || fu_group_of(c, p) == fu_group_of(c, i)) continue;
            tn_cut_reason why = merge(c, fu_group_of(c, p), fu_group_of(c, i));
            if (why) fu_cut(c, p, i, why);
        }
        if (g->room == FU_LOOPS) join_siblings(c, i);
    }
    return 0;
}
