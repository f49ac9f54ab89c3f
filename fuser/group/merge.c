/* merge.c - two groups become one, where no other stands between them, where one kernel can compute both, and
 * where that costs nothing: values that only gradients need are not computed in the forward pass, and a
 * product stays the library's where the library is faster. Start with fu_merge. */
#include "../loops/cost.h"
#include "../loops/tile.h"
#include "group.h"

#include <string.h>

static int64_t largest(const fu_ctx *c, const fu_group *g)
{
    int64_t most = 0;
    for (int i = 0; i < g->n; i++) {
        int64_t b = fu_bytes(c->node[g->member[i]].t);
        most = b > most ? b : most;
    }
    return most;
}

/* Returns true where a node with a kernel of its own kind, not of loops, reads this one's value, which is in
 * memory then whatever is fused. */
static bool read_whole(const fu_ctx *c, const fu_node *n)
{
    for (int u = 0; u < n->n_user; u++)
        if (fu_room_of(c->node[n->user[u]].t) != FU_LOOPS) return true;
    return false;
}

/* Returns true where the forward pass goes on from this group to a product, a convolution or the like: the
 * group does not compute the loss. */
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

/* A gradient's value that depends on forward values alone is computed with the gradient. Computed early, it
 * would be written by the forward pass and read by the backward pass, in the place of its own operands. That
 * pays only where it is much smaller than they are, such as the mask of a relu. Where the loss is computed,
 * values that are written anyway (a gradient that is asked for, or read by a product) cost nothing. */
static bool too_early(const fu_ctx *c, int a, int b)
{
    if (c->group[a].backward == c->group[b].backward) return false;
    int forward = c->group[a].backward ? b : a, backward = c->group[a].backward ? a : b;
    const fu_group *f = &c->group[forward], *g = &c->group[backward];
    double made = (double)(goes_on(c, f) ? largest(c, g) : largest_between(c, g)), of = (double)largest(c, f);
    double keep = fu_store_ns(c->target, made, c->far) + fu_load_ns(c->target, made, c->far);
    return forward < backward && keep >= fu_load_ns(c->target, of, c->far);
}

static bool is_product(const fu_ctx *c, const fu_group *g)
{
    int node = fu_tile_conv(c, g->n, g->member);
    return node >= 0 && c->node[node].kind == TN_KIND_GEMM;
}

/* Returns true where a reduction would find out for each element which operand of a concat it is. */
static bool reduces_joined(const fu_ctx *c, const fu_prog *p, int n, const int *member)
{
    bool joins = false;
    for (int i = 0; i < n; i++) joins = joins || c->node[member[i]].t->op == TN_OP_concat;
    return joins && p->form != FU_POINTWISE;
}

/* Returns true where group a's only node is read outside of group b too, or after the plan has run. */
static bool kept_beside(const fu_ctx *c, int a, int b)
{
    const fu_node *n = &c->node[c->group[a].member[0]];
    for (int u = 0; u < n->n_user; u++)
        if (fu_group_of(c, n->user[u]) != b || c->node[n->user[u]].n_copy) return true;
    return n->root;
}

/* Returns true where the product of group a, which makes less than it reads, would wait in group b for what
 * another kernel of its own kind makes after it: with a part of a gradient, of a weight that is used twice, for
 * the other part. */
static bool keeps_waiting(const fu_ctx *c, int a, int b)
{
    const int product = c->group[a].member[0];
    const fu_group *g = &c->group[b];
    const tn_tensor *t = c->node[product].t;
    bool later = false;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < c->node[g->member[i]].t->n_in; k++) {
            const int p = fu_node_of(c, fu_value_of(c, c->node[g->member[i]].t->in[k]));
            later = later || (p > product && fu_room_of(c->node[p].t) != FU_LOOPS);
        }
    return later && fu_bytes(t) < fu_bytes(t->in[0]) + fu_bytes(t->in[1]);
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
    tn_cut_reason why = fu_try(c, &both);
    if (why) return why;
    if (reduces_joined(c, c->prog, n, all)) return TN_CUT_JOINED;
    if (r == FU_LOOPS && fu_slower(c, (int[2]){a, b}, 2, 0)) return TN_CUT_SLOWER;
    if (tile && ga->n == 1 && is_product(c, ga) &&
        (keeps_waiting(c, a, b) || !fu_tile_pays(c, ga->member[0], kept_beside(c, a, b))))
        return TN_CUT_LIBRARY;
    int *member = tn_arena_alloc(&c->arena, (size_t)n * sizeof *member);
    if (!member) return TN_CUT_SIZE; /* smaller groups are always right */
    memcpy(member, all, (size_t)n * sizeof *member);
    ga->room = r;
    absorb(c, a, b, n, member);
    return TN_CUT_NONE;
}

tn_cut_reason fu_merge(fu_ctx *c, int a, int b) { return merge(c, a, b, false); }

tn_cut_reason fu_merge_last(fu_ctx *c, int a, int b) { return merge(c, a, b, true); }

bool fu_join(fu_ctx *c, int a, int b)
{
    const fu_group *ga = &c->group[a], *gb = &c->group[b];
    if (fu_alone(c, ga) || fu_alone(c, gb) || fu_between(c, a, b)) return false;
    int *member = tn_arena_alloc(&c->arena, (size_t)(ga->n + gb->n) * sizeof *member);
    if (!member) return false; /* two kernels are as right */
    absorb(c, a, b, unite(ga, gb, member), member);
    return true;
}

void fu_join_difference(fu_ctx *c, int node)
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
    if (tile.n + gb->n > FU_MAX_MEMBERS || too_early(c, a, b) || !fu_join(c, a, b)) return;
    if (!fu_merge(c, a, fu_group_of(c, node))) return;
    c->group[a] = tile;
    c->group[b].dead = false;
    fu_unrank(c);
}
