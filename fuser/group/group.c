/* group.c - which nodes one kernel computes.
 *
 * Greedy, in the segment's order: each node starts a group of its own, then joins the groups of its
 * producers, then those that read the same memory, whenever the union is legal: no other group stands
 * between the two, and domain.c, program.c and schedule.c can make one kernel of it. Every refusal along an
 * edge is kept with its reason. Then values are computed again by their readers (recompute.c), and readers of
 * convolutions and products join those (tiles.c). Start with fu_group_all, then fu_merge.
 */
#include "group.h"

#include "../loops/cost.h"
#include "../loops/tile.h"

#include <string.h>

int fu_alive(const fu_ctx *c, int g)
{
    while (g >= 0 && c->group[g].dead) g = c->group[g].into;
    return g;
}

int fu_group_of(const fu_ctx *c, int node)
{
    return fu_alive(c, c->node[node].group);
}

int fu_awaited(const fu_ctx *c, int g, int node, int k)
{
    const int d = c->node[node].after[k], owner = fu_group_of(c, d);
    const bool own = c->target->dialect == TN_DIALECT_C && owner != g && c->node[d].n_copy &&
                     !tn_node_written(c->node[node].t) && fu_has(&c->group[g], d);
    return own ? g : owner;
}

bool fu_has(const fu_group *g, int node)
{
    for (int i = 0; i < g->n; i++)
        if (g->member[i] == node) return true;
    return false;
}

static bool is_of(const fu_candidate *k, int g)
{
    return k && (g == k->a || g == k->b);
}

static bool is_member(const fu_candidate *k, int node)
{
    for (int i = 0; i < k->n; i++)
        if (k->member[i] == node) return true;
    return false;
}

bool fu_read_outside(const fu_ctx *c, const fu_candidate *k, int node)
{
    const fu_node *n = &c->node[node];
    for (int i = 0; i < n->n_user; i++) {
        const fu_node *u = &c->node[n->user[i]];
        const int owner = fu_group_of(c, n->user[i]);
        if (is_of(k, owner) ? !is_member(k, node) : !fu_has(&c->group[owner], node)) return true;
        for (int j = 0; j < u->n_copy; j++) {
            const int g = fu_alive(c, u->copy[j]);
            if (!is_of(k, g) && !fu_has(&c->group[g], node)) return true;
        }
    }
    return false;
}

bool fu_owns(const fu_ctx *c, const fu_candidate *k, int node)
{
    return is_of(k, fu_group_of(c, node));
}

fu_candidate fu_candidate_of(const fu_ctx *c, const fu_group *g)
{
    const int at = (int)(g - c->group);
    return (fu_candidate){.a = at, .b = at, .n = g->n, .member = g->member, .settled = true};
}

tn_cut_reason fu_try_groups(fu_ctx *c, const fu_candidate *k)
{
    fu_tile_parts parts;
    return fu_tile_conv(c, k->n, k->member) >= 0 ? fu_tile_try(c, k, &parts) : fu_try(c, k);
}

tn_cut_reason fu_try(fu_ctx *c, const fu_candidate *k)
{
    if (fu_looks_too_late(c, k->n, k->member)) return TN_CUT_UNCHECKED;
    tn_cut_reason why = fu_domain_build(c, c->domain, k->n, k->member);
    if (!why) why = fu_program(c, k, c->domain, c->prog);
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
    case TN_KIND_ATTENTION:
        return FU_ATTENTION;
    case TN_KIND_VIEW:
        return t->op == TN_OP_concat ? FU_CONCAT : FU_LOOPS;
    case TN_KIND_LEAF:
    case TN_KIND_NUMBER:
    case TN_KIND_IOTA:
    case TN_KIND_ELTWISE:
    case TN_KIND_CAST:
    case TN_KIND_REDUCE:
    case TN_KIND_GATHER:
    case TN_KIND_RANDOM:
    case TN_KIND_ASSIGN:
        return FU_LOOPS;
    }
    return FU_LOOPS;
}

int64_t fu_bytes(const tn_tensor *t)
{
    return tn_node_numel(t) * (int64_t)tn_dtype_size((tn_dtype)t->dtype);
}

static int64_t largest(const fu_ctx *c, const fu_group *g)
{
    int64_t most = 0;
    for (int i = 0; i < g->n; i++) {
        int64_t b = fu_bytes(c->node[g->member[i]].t);
        most = b > most ? b : most;
    }
    return most;
}

/* Whether others than kernels of loops read the node's value, which is then in memory whatever is fused. */
static bool read_whole(const fu_ctx *c, const fu_node *n)
{
    for (int u = 0; u < n->n_user; u++)
        if (room_of(c->node[n->user[u]].t) != FU_LOOPS) return true;
    return false;
}

/* Whether the forward pass goes on from this group in a product, a convolution or the like: it is not where
 * the loss is made. */
static bool goes_on(const fu_ctx *c, const fu_group *g)
{
    for (int i = 0; i < g->n; i++)
        if (read_whole(c, &c->node[g->member[i]])) return true;
    return false;
}

/* The largest value of the group that is in memory only because another group reads it. */
static int64_t largest_between(const fu_ctx *c, const fu_group *g)
{
    int64_t most = 0;
    for (int i = 0; i < g->n; i++) {
        const fu_node *n = &c->node[g->member[i]];
        if (n->root || read_whole(c, n) || !fu_read_outside(c, NULL, g->member[i])) continue;
        most = fu_bytes(n->t) > most ? fu_bytes(n->t) : most;
    }
    return most;
}

/* What a gradient can make of forward's values alone is made when the gradient is: done early, forward would
 * write it and backward read it, instead of what it is made of. Only what is much smaller, such as the mask
 * of a relu, is worth keeping; and where the loss is made, what is written anyway (a gradient asked for, or
 * read by a product) costs nothing. */
static bool too_early(const fu_ctx *c, int a, int b)
{
    if (c->group[a].backward == c->group[b].backward) return false;
    int forward = c->group[a].backward ? b : a, backward = c->group[a].backward ? a : b;
    const fu_group *f = &c->group[forward], *g = &c->group[backward];
    double made = (double)(goes_on(c, f) ? largest(c, g) : largest_between(c, g)), of = (double)largest(c, f);
    double keep = fu_store_ns(c->target, made, c->far) + fu_load_ns(c->target, made, c->far);
    return forward < backward && keep >= fu_load_ns(c->target, of, c->far);
}

bool fu_alone(const fu_ctx *c, const fu_group *g)
{
    for (int i = 0; i < g->n && c->seg->root; i++)
        if (c->seg->root[g->member[i]] & TN_SEG_ALONE) return true;
    return false;
}

static bool is_product(const fu_ctx *c, const fu_group *g)
{
    int node = fu_tile_conv(c, g->n, g->member);
    return node >= 0 && c->node[node].kind == TN_KIND_GEMM;
}

/* Whether the one node of group a is read by more than group b, or by what follows the plan. */
static bool kept_beside(const fu_ctx *c, int a, int b)
{
    const fu_node *n = &c->node[c->group[a].member[0]];
    for (int u = 0; u < n->n_user; u++)
        if (fu_group_of(c, n->user[u]) != b || c->node[n->user[u]].n_copy) return true;
    return n->root;
}

/* The nodes of both groups in id order; what both compute, once. */
static int unite(const fu_group *a, const fu_group *b, int *out)
{
    int n = 0;
    for (int i = 0, j = 0; i < a->n || j < b->n;) {
        if (i < a->n && j < b->n && a->member[i] == b->member[j]) j++;
        out[n++] = j == b->n || (i < a->n && a->member[i] < b->member[j]) ? a->member[i++] : b->member[j++];
    }
    return n;
}

static void absorb(fu_ctx *c, int a, int b, int n, int *member)
{
    fu_merge_ranks(c, a, b);
    c->group[a].member = member;
    c->group[a].n = n;
    c->group[b].dead = true;
    c->group[b].into = a;
}

static tn_cut_reason merge(fu_ctx *c, int a, int b, bool last)
{
    fu_group *ga = &c->group[a], *gb = &c->group[b];
    if (fu_alone(c, ga) || fu_alone(c, gb)) return TN_CUT_WRONG;
    if (ga->early || gb->early) return TN_CUT_SPLIT;
    fu_room r = ga->room != FU_LOOPS ? ga->room : gb->room,
            other = ga->room != FU_LOOPS ? gb->room : ga->room;
    bool tile = other == FU_LOOPS && r == FU_TILE;
    if (!tile && (r != FU_LOOPS || other != FU_LOOPS))
        return r == FU_GEMM || r == FU_CONV ? TN_CUT_LIBRARY : r == FU_TILE ? TN_CUT_TILE : TN_CUT_OWN_KERNEL;
    int all[2 * FU_MAX_MEMBERS], n = unite(ga, gb, all);
    if (n > FU_MAX_MEMBERS) return TN_CUT_SIZE;
    const fu_candidate both = {.a = a, .b = b, .n = n, .member = all};
    if (tile && !last && fu_tile_waits(c, &both)) return TN_CUT_TILE;
    if (too_early(c, a, b)) return TN_CUT_BACKWARD;
    if (fu_between(c, a, b)) return TN_CUT_CYCLE;
    tn_cut_reason why = fu_try_groups(c, &both);
    if (why) return why;
    if (tile && ga->n == 1 && is_product(c, ga) && !fu_tile_pays(c, ga->member[0], kept_beside(c, a, b)))
        return TN_CUT_LIBRARY;
    int *member = tn_arena_alloc(&c->arena, (size_t)n * sizeof *member);
    if (!member) return TN_CUT_SIZE; /* smaller groups are always right */
    memcpy(member, all, (size_t)n * sizeof *member);
    ga->room = r;
    absorb(c, a, b, n, member);
    return TN_CUT_NONE;
}

tn_cut_reason fu_merge(fu_ctx *c, int a, int b)
{
    return merge(c, a, b, false);
}

tn_cut_reason fu_merge_last(fu_ctx *c, int a, int b)
{
    return merge(c, a, b, true);
}

/* Two groups that one kernel of its own makes become one. */
static bool join(fu_ctx *c, int a, int b)
{
    const fu_group *ga = &c->group[a], *gb = &c->group[b];
    if (fu_alone(c, ga) || fu_alone(c, gb) || fu_between(c, a, b)) return false;
    int *member = tn_arena_alloc(&c->arena, (size_t)(ga->n + gb->n) * sizeof *member);
    if (!member) return false; /* two kernels are as right */
    absorb(c, a, b, unite(ga, gb, member), member);
    return true;
}

/* What statistics take the place of is a difference from a value of each column. Where that is one of the
 * convolution's own, widened, it needs the convolution, and the difference needs it: all three become one, or
 * none. */
static void join_difference(fu_ctx *c, int node)
{
    const fu_node *n = &c->node[node];
    if (n->statistic != FU_WITHIN || n->t->op != TN_OP_sub) return;
    const int x = fu_node_of(c, fu_value_of(c, n->t->in[0])), k = fu_node_of(c, fu_value_of(c, n->t->in[1]));
    if (x < 0 || k < 0 || !fu_widens(&c->node[k])) return;
    const int a = fu_group_of(c, x), b = fu_group_of(c, k),
              of = fu_node_of(c, fu_value_of(c, c->node[k].t->in[0]));
    const fu_group tile = c->group[a], *gb = &c->group[b];
    if (tile.room != FU_TILE || gb->room != FU_LOOPS || gb->early || of < 0 || fu_group_of(c, of) != a)
        return;
    if (tile.n + gb->n > FU_MAX_MEMBERS || too_early(c, a, b) || !join(c, a, b)) return;
    if (!fu_merge(c, a, fu_group_of(c, node))) return;
    c->group[a] = tile;
    c->group[b].dead = false;
    fu_unrank(c);
}

/* Earlier groups that read the same large memory. */
static void join_siblings(fu_ctx *c, int node)
{
    enum { TRIES = 6 };
    const tn_tensor *t = c->node[node].t;
    int tried[TRIES], tries = 0;
    for (int k = 0; k < t->n_in && tries < TRIES; k++) {
        const tn_tensor *base = fu_value_of(c, t->in[k])->base;
        if (tn_node_numel(base) < 2 || tn_op_get((tn_op)base->op)->kind == TN_KIND_NUMBER) continue;
        int p = fu_node_of(c, base);
        int first = p >= 0 ? p + 1 : 0;
        for (int i = node - 1; i >= first && i > node - 64 && tries < TRIES; i--) {
            const tn_tensor *o = c->node[i].t;
            if (!c->node[i].live) continue;
            bool shares = false;
            for (int m = 0; m < o->n_in && !shares; m++) shares = fu_value_of(c, o->in[m])->base == base;
            int a = fu_group_of(c, i), b = fu_group_of(c, node);
            for (int m = 0; m < tries && shares; m++) shares = tried[m] != a;
            if (!shares || a == b || c->group[a].room != FU_LOOPS) continue;
            tried[tries++] = a;
            fu_merge(c, a, b);
        }
    }
}

/* Where windows have chosen their elements is known when their largest is: one kernel makes both, and the
 * image need not be kept until backward asks. */
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
        if (same && c->group[a].n == 1 && join(c, a, b)) return;
    }
}

/* What an attention makes of the same operands is made at once: o and lse, and dq, dk and dv. */
static void join_attention(fu_ctx *c, int node)
{
    const tn_tensor *t = c->node[node].t;
    for (int i = node - 1; i >= 0; i--) {
        const tn_tensor *o = c->node[i].t;
        if (!c->node[i].live || c->node[i].kind != TN_KIND_ATTENTION || o->op == t->op || o->n_in != t->n_in)
            continue;
        bool same = !memcmp(&o->attr->attention, &t->attr->attention, sizeof o->attr->attention);
        for (int k = 0; k < t->n_in && same; k++) same = fu_value_of(c, o->in[k]) == fu_value_of(c, t->in[k]);
        if (same && join(c, fu_group_of(c, i), fu_group_of(c, node))) return;
    }
}

/* Whether b reads a large value that a reads, or, where a loss and gradients may meet, makes. */
static bool share_large(const fu_ctx *c, const fu_group *a, const fu_group *b, bool meet)
{
    for (int i = 0; i < b->n; i++) {
        const tn_tensor *t = c->node[b->member[i]].t;
        for (int k = 0; k < t->n_in; k++) {
            const tn_tensor *base = fu_value_of(c, t->in[k])->base;
            if (tn_node_numel(base) < 1024 || tn_op_get((tn_op)base->op)->kind == TN_KIND_NUMBER) continue;
            int p = fu_node_of(c, base);
            if (p >= 0 && fu_has(a, p) && meet) return true;
            if (p >= 0 && (fu_has(a, p) || fu_has(b, p))) continue;
            for (int j = 0; j < a->n; j++) {
                const tn_tensor *o = c->node[a->member[j]].t;
                for (int m = 0; m < o->n_in; m++)
                    if (fu_value_of(c, o->in[m])->base == base) return true;
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
    const bool meet = c->target->dialect == TN_DIALECT_C;
    for (int b = 0; b < c->n_group; b++)
        for (int a = b - 1; a >= 0 && a >= b - 64; a--) {
            if (c->group[b].dead) break;
            const fu_group *ga = &c->group[a], *gb = &c->group[b];
            const bool both = meet && ga->backward != gb->backward;
            if (ga->dead || ga->room != FU_LOOPS || gb->room != FU_LOOPS || !(copied || both)) continue;
            if (share_large(c, ga, gb, both)) fu_merge(c, a, b);
        }
}

/* How much is touched between forward's making a value and backward's reading it, about: of what the nodes
 * come to, a fourth is ever written, or read from elsewhere. */
static double distance_to_backward(const fu_ctx *c)
{
    double bytes = 0;
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].live) bytes += (double)fu_bytes(c->node[i].t);
    return bytes / 4;
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
        g->room = n->spared ? FU_NOTHING : n->tile[0] && n->kind == TN_KIND_CONV ? FU_TILE : room_of(n->t);
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
        join_difference(c, i);
        for (int k = n->t->n_in - 1; k >= 0; k--) {
            if ((n->kind == TN_KIND_ASSIGN && k == 0) || fu_draws(c, n->t, k)) continue;
            int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
            if (p < 0 || fu_group_of(c, p) == fu_group_of(c, i)) continue;
            tn_cut_reason why = fu_merge(c, fu_group_of(c, p), fu_group_of(c, i));
            if (why && !n->spared && !c->node[p].spared) fu_cut(c, p, i, why);
        }
        if (g->room == FU_LOOPS) join_siblings(c, i);
        if (g->room == FU_WINDOW) join_window(c, i);
        if (g->room == FU_ATTENTION) join_attention(c, i);
    }
    int before = c->n_copy;
    for (int i = c->n_node - 1; i >= 0; i--) fu_recompute(c, i);
    join_groups(c, c->n_copy > before);
    fu_settle_early(c);
    fu_join_tiles(c);
    fu_recompute_for_tiles(c);
    for (int i = 0; i < c->n_node; i++) /* what statistics are in the place of has no value to be read */
        for (int u = 0; c->node[i].statistic == FU_WITHIN && u < c->node[i].n_user; u++) {
            int g = fu_group_of(c, i);
            if (c->group[g].room == FU_TILE && fu_group_of(c, c->node[i].user[u]) != g) return TN_E_NOMEM;
        }
    return 0;
}
