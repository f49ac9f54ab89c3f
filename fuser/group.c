/* group.c - which nodes one kernel computes.
 *
 * Greedy, in the segment's order: each node starts a group of its own, then joins the groups of its
 * producers, then those that read the same memory, whenever the union is legal: no other group stands
 * between the two, and domain.c, program.c and schedule.c can make one kernel of it. Every refusal along an
 * edge is kept with its reason. Start with fu_group_all.
 */
#include "cost.h"
#include "tile.h"

#include <string.h>

static int alive(const fu_ctx *c, int g)
{
    while (g >= 0 && c->group[g].dead) g = c->group[g].into;
    return g;
}

int fu_group_of(const fu_ctx *c, int node)
{
    return alive(c, c->node[node].group);
}

bool fu_has(const fu_group *g, int node)
{
    for (int i = 0; i < g->n; i++)
        if (g->member[i] == node) return true;
    return false;
}

/* Whether some group reads the node's value from memory: one that computes a user of it, but not the node. */
bool fu_read_outside(const fu_ctx *c, int node)
{
    const fu_node *n = &c->node[node];
    for (int i = 0; i < n->n_user; i++) {
        const fu_node *u = &c->node[n->user[i]];
        bool merging = u->group >= 0 && c->try_n &&
                       (fu_group_of(c, n->user[i]) == c->try_a || fu_group_of(c, n->user[i]) == c->try_b);
        if (merging) {
            bool inside = false;
            for (int k = 0; k < c->try_n && !inside; k++) inside = c->try_member[k] == node;
            if (!inside) return true;
        } else if (u->group < 0 || !fu_has(&c->group[fu_group_of(c, n->user[i])], node)) {
            return true;
        }
        for (int k = 0; k < u->n_copy; k++) {
            int g = alive(c, u->copy[k]);
            bool tried = c->try_n && (g == c->try_a || g == c->try_b);
            if (!tried && !fu_has(&c->group[g], node)) return true;
        }
    }
    return false;
}

/* Whether the group being tried is the one that stores the node, rather than one that computes it again. */
bool fu_owns(const fu_ctx *c, int node)
{
    int g = fu_group_of(c, node);
    return g == c->try_a || g == c->try_b;
}

/* As fu_try for the union of groups a and b (or for a alone). */
static tn_cut_reason try_groups(fu_ctx *c, int a, int b, int n, const int *member)
{
    c->try_a = a;
    c->try_b = b;
    c->try_n = n;
    c->try_member = member;
    fu_tile_parts parts;
    tn_cut_reason why =
        fu_tile_conv(c, n, member) >= 0 ? fu_tile_try(c, n, member, &parts) : fu_try(c, n, member);
    c->try_n = 0;
    return why;
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
    case TN_KIND_ATTENTION:
        return FU_ATTENTION;
    case TN_KIND_VIEW:
        return t->op == TN_OP_concat ? FU_CONCAT : FU_LOOPS;
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

static int64_t bytes_of(const tn_tensor *t)
{
    return tn_node_numel(t) * (int64_t)tn_dtype_size((tn_dtype)t->dtype);
}

static int64_t largest(const fu_ctx *c, const fu_group *g)
{
    int64_t most = 0;
    for (int i = 0; i < g->n; i++) {
        int64_t b = bytes_of(c->node[g->member[i]].t);
        most = b > most ? b : most;
    }
    return most;
}

/* What a gradient can make of forward's values alone is made when the gradient is: done early, forward would
 * write it and backward read it, instead of what it is made of. Only what is much smaller, such as the mask
 * of a relu, is worth keeping. */
static bool too_early(const fu_ctx *c, int a, int b)
{
    if (c->group[a].backward == c->group[b].backward) return false;
    int forward = c->group[a].backward ? b : a, backward = c->group[a].backward ? a : b;
    double made = (double)largest(c, &c->group[backward]), of = (double)largest(c, &c->group[forward]);
    double keep = fu_store_ns(c->target, made, c->far) + fu_load_ns(c->target, made, c->far);
    return forward < backward && keep >= fu_load_ns(c->target, of, c->far);
}

/* Whether a node of the group is to have no company. */
static bool alone(const fu_ctx *c, const fu_group *g)
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

static tn_cut_reason merge(fu_ctx *c, int a, int b)
{
    fu_group *ga = &c->group[a], *gb = &c->group[b];
    if (alone(c, ga) || alone(c, gb)) return TN_CUT_WRONG;
    fu_room r = ga->room != FU_LOOPS ? ga->room : gb->room,
            other = ga->room != FU_LOOPS ? gb->room : ga->room;
    bool tile = other == FU_LOOPS && r == FU_TILE;
    if (!tile && (r != FU_LOOPS || other != FU_LOOPS))
        return r == FU_GEMM || r == FU_CONV ? TN_CUT_LIBRARY : r == FU_TILE ? TN_CUT_TILE : TN_CUT_OWN_KERNEL;
    int n = 0, all[2 * FU_MAX_MEMBERS];
    for (int i = 0, j = 0; i < ga->n || j < gb->n;) { /* both computed it: once is enough */
        if (i < ga->n && j < gb->n && ga->member[i] == gb->member[j]) j++;
        all[n++] =
            j == gb->n || (i < ga->n && ga->member[i] < gb->member[j]) ? ga->member[i++] : gb->member[j++];
    }
    if (n > FU_MAX_MEMBERS) return TN_CUT_SIZE;
    if (tile && !c->tiles_last && fu_tile_waits(c, all, n)) return TN_CUT_TILE;
    if (too_early(c, a, b)) return TN_CUT_BACKWARD;
    if (between(c, a, b)) return TN_CUT_CYCLE;
    tn_cut_reason why = try_groups(c, a, b, n, all);
    if (why) return why;
    if (tile && ga->n == 1 && is_product(c, ga) && !fu_tile_pays(c, ga->member[0], kept_beside(c, a, b)))
        return TN_CUT_LIBRARY;
    int *member = tn_arena_alloc(&c->arena, (size_t)n * sizeof *member);
    if (!member) return TN_CUT_SIZE; /* smaller groups are always right */
    memcpy(member, all, (size_t)n * sizeof *member);
    ga->room = r;
    ga->member = member;
    ga->n = n;
    gb->dead = true;
    gb->into = a;
    return TN_CUT_NONE;
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
            if (!c->node[i].live || c->node[i].group < 0) continue;
            bool shares = false;
            for (int m = 0; m < o->n_in && !shares; m++) shares = fu_value_of(c, o->in[m])->base == base;
            int a = fu_group_of(c, i), b = fu_group_of(c, node);
            for (int m = 0; m < tries && shares; m++) shares = tried[m] != a;
            if (!shares || a == b || c->group[a].room != FU_LOOPS) continue;
            tried[tries++] = a;
            merge(c, a, b);
        }
    }
}

/* Two groups that one kernel of its own makes become one. */
static bool join(fu_ctx *c, int a, int b)
{
    fu_group *ga = &c->group[a], *gb = &c->group[b];
    if (alone(c, ga) || alone(c, gb) || between(c, a, b)) return false;
    int n = 0, *member = tn_arena_alloc(&c->arena, (size_t)(ga->n + gb->n) * sizeof *member);
    if (!member) return false; /* two kernels are as right */
    for (int i = 0, j = 0; i < ga->n || j < gb->n;)
        member[n++] =
            j == gb->n || (i < ga->n && ga->member[i] < gb->member[j]) ? ga->member[i++] : gb->member[j++];
    ga->member = member;
    ga->n = n;
    gb->dead = true;
    gb->into = a;
    return true;
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

/* ---- computing again instead of storing ---- */

/* Instructions for an element; negative: not to be computed twice. */
static double cost_of(const tn_tensor *t)
{
    switch (tn_op_get((tn_op)t->op)->kind) {
    case TN_KIND_ELTWISE:
        return tn_op_get((tn_op)t->op)->work;
    case TN_KIND_CAST:
    case TN_KIND_IOTA:
        return 0;
    default:
        return -1;
    }
}

typedef struct again {
    int n, node[FU_MAX_MEMBERS]; /* to be computed again */
    double cost;                 /* instructions for an element */
    const tn_tensor *read[8];    /* large values they read */
    int n_read;
    int64_t size; /* of the value that is to be saved */
    bool ordered; /* what is overwritten later may be read: whoever does so is put before that (order_readers)
                   */
} again;

static bool reads(again *r, const tn_tensor *base)
{
    if (tn_node_numel(base) * 4 < r->size) return true; /* small ones cost nothing */
    for (int i = 0; i < r->n_read; i++)
        if (r->read[i] == base) return true;
    if (r->n_read == 8) return false;
    r->read[r->n_read++] = base;
    return true;
}

/* Whether an assignment of this segment changes the memory x is read from: who reads it is then ordered. */
static bool assigned(const fu_ctx *c, const tn_tensor *x, const again *r)
{
    for (int i = 0; i < c->n_node; i++) {
        fu_sight s = c->node[i].live ? fu_reads(c, x, c->node[i].t) : FU_UNSEEN;
        if (s == FU_NEW || (s == FU_OLD && !r->ordered)) return true;
    }
    return false;
}

/* Adds `node` and whatever it needs that is not in memory anyway. */
static bool collect_again(const fu_ctx *c, int node, again *r)
{
    const tn_tensor *t = c->node[node].t;
    double cost = cost_of(t);
    for (int i = 0; i < r->n; i++)
        if (r->node[i] == node) return true;
    if (cost < 0 || r->n == FU_MAX_MEMBERS) return false;
    r->cost += cost;
    r->node[r->n++] = node;
    for (int k = 0; k < t->n_in; k++) {
        const tn_tensor *x = fu_value_of(c, t->in[k]);
        int p = fu_node_of(c, x);
        if (tn_op_get((tn_op)x->base->op)->kind == TN_KIND_NUMBER) continue;
        bool stored = p < 0 || c->node[p].root || fu_group_of(c, p) != fu_group_of(c, node) ||
                      c->node[p].kind == TN_KIND_REDUCE;
        if (stored ? assigned(c, x, r) || !reads(r, x->base) : !collect_again(c, p, r)) return false;
    }
    return true;
}

/* How many of r's large operands group g does not read so far. */
static int new_reads(const fu_ctx *c, const fu_group *g, const again *r)
{
    int k = 0;
    for (int i = 0; i < r->n_read; i++) {
        bool known = false;
        for (int m = 0; m < g->n && !known; m++) {
            const tn_tensor *t = c->node[g->member[m]].t;
            for (int j = 0; j < t->n_in && !known; j++) known = fu_value_of(c, t->in[j])->base == r->read[i];
        }
        k += !known;
    }
    return k;
}

/* How many of r's large operands would be kept for the backward pass on its account alone. */
static int kept_longer(const fu_ctx *c, const again *r)
{
    int k = 0;
    for (int i = 0; i < r->n_read; i++) {
        int p = fu_node_of(c, r->read[i]);
        bool dies = p >= 0 && !c->node[p].root;
        for (int u = 0; dies && u < c->node[p].n_user; u++)
            dies = !c->group[fu_group_of(c, c->node[p].user[u])].backward;
        k += dies;
    }
    return k;
}

/* Whether computing the value again in so many groups, which then have to read `more` operands of its size,
 * is predicted to take no longer than writing it and reading it back in each. Half of the arithmetic hides
 * behind a kernel's memory. What would be kept for the backward pass is read from far away, and takes memory
 * until then: for that, twice the arithmetic is spent; but operands that have to be kept in its place count
 * against it. */
static bool worth(const fu_ctx *c, const fu_node *n, const again *r, int groups, int more, double spared)
{
    double bytes = (double)bytes_of(n->t), elems = (double)tn_node_numel(n->t);
    bool later = false;
    for (int i = 0; i < n->n_user; i++)
        later = later || c->group[fu_group_of(c, n->user[i])].backward != c->group[n->group].backward;
    double at = later ? c->far : bytes, load = fu_load_ns(c->target, bytes, at);
    double move = tn_dtype_size((tn_dtype)n->t->dtype) < 4 ? 2 : 1; /* and convert */
    double keep = fu_store_ns(c->target, bytes, at) + groups * load +
                  fu_work_ns(c->target, elems * move * (1 + groups)) / 2;
    double work = groups * fu_work_ns(c->target, elems * r->cost);
    if (later) more += kept_longer(c, r);
    return work / (later ? 4 : 2) + more * load <= keep + spared;
}

/* The groups that compute a user of the node and would read it from memory. */
static int readers(const fu_ctx *c, int node, int *out, int most)
{
    const fu_node *n = &c->node[node];
    int count = 0, owner = fu_group_of(c, node);
    for (int u = 0; u < n->n_user; u++) {
        const fu_node *user = &c->node[n->user[u]];
        for (int k = -1; k < user->n_copy; k++) {
            int g = k < 0 ? fu_group_of(c, n->user[u]) : alive(c, user->copy[k]);
            bool known = g == owner || fu_has(&c->group[g], node);
            for (int i = 0; i < count && !known; i++) known = out[i] == g;
            if (known) continue;
            if (count == most) return -1;
            out[count++] = g;
        }
    }
    return count;
}

/* Adds what r lists to group g. */
static bool add_again(fu_ctx *c, int g, const again *r)
{
    fu_group *to = &c->group[g];
    int all[2 * FU_MAX_MEMBERS], count = 0;
    for (int i = 0; i < to->n; i++) all[count++] = to->member[i];
    for (int i = 0; i < r->n; i++)
        if (!fu_has(to, r->node[i])) all[count++] = r->node[i];
    if (count > FU_MAX_MEMBERS) return false;
    for (int i = 1; i < count; i++) /* by id */
        for (int j = i; j > 0 && all[j - 1] > all[j]; j--) {
            int t = all[j];
            all[j] = all[j - 1];
            all[j - 1] = t;
        }
    if (try_groups(c, g, g, count, all)) return false;
    int *member = tn_arena_alloc(&c->arena, (size_t)count * sizeof *member);
    if (!member) return false;
    memcpy(member, all, (size_t)count * sizeof *member);
    for (int i = 0; i < r->n; i++)
        if (!fu_has(to, r->node[i]) && !fu_note_copy(c, r->node[i], g)) return false;
    to->member = member;
    to->n = count;
    return true;
}

/* What computing r's values elsewhere asks of the groups they come from: to store what r's nodes read. */
static bool sources_can(fu_ctx *c, const again *r)
{
    for (int i = 0; i < r->n; i++) {
        const tn_tensor *t = c->node[r->node[i]].t;
        for (int k = 0; k < t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, t->in[k]));
            int g = p < 0 ? -1 : fu_group_of(c, p);
            if (g < 0 || c->group[g].room != FU_LOOPS) continue;
            if (try_groups(c, g, g, c->group[g].n, c->group[g].member)) return false;
        }
    }
    return true;
}

/* Whether group g is a convolution of the node, which nothing else of it reads. */
static bool takes_image(const fu_ctx *c, const fu_group *g, int node)
{
    const int conv = g->room == FU_TILE ? fu_tile_conv(c, g->n, g->member) : -1;
    if (conv < 0 || c->node[conv].kind != TN_KIND_CONV) return false;
    if (fu_value_of(c, c->node[conv].t->in[0]) != c->node[node].t) return false;
    for (int i = 0; i < g->n; i++) {
        const tn_tensor *t = c->node[g->member[i]].t;
        for (int k = g->member[i] == conv; k < t->n_in; k++)
            if (fu_node_of(c, fu_value_of(c, t->in[k])) == node) return false;
    }
    return fu_tile_before_ns(c, conv, 0, 0) >= 0;
}

/* Whether the group makes something that a convolution may compute as it loads it: what else it stores stands
 * in the way of doing without it. */
static bool makes_image(const fu_ctx *c, const fu_group *g)
{
    for (int i = 0; i < g->n; i++) {
        const fu_node *n = &c->node[g->member[i]];
        for (int u = 0; u < n->n_user; u++)
            if (takes_image(c, &c->group[fu_group_of(c, n->user[u])], g->member[i])) return true;
    }
    return false;
}

/* Nanoseconds that are spared, beside the value's own bytes, if the convolutions among the groups compute it
 * as they load it: less what that takes there, and with the pass that makes it now, if it has nothing else to
 * do. */
static double spared(const fu_ctx *c, const fu_node *n, const again *r, int count, const int *to)
{
    const double bytes = (double)bytes_of(n->t), load = fu_load_ns(c->target, bytes, bytes);
    const fu_group *owner = &c->group[alive(c, n->group)];
    double all = 0;
    bool gone = true;
    for (int i = 0; i < owner->n; i++) {
        bool listed = false;
        for (int k = 0; k < r->n && !listed; k++) listed = r->node[k] == owner->member[i];
        const fu_node *m = &c->node[owner->member[i]];
        gone =
            gone && (listed || (!m->root && !tn_node_written(m->t) && !fu_read_outside(c, owner->member[i])));
    }
    if (gone) all += tn_target_rates(c->target)->launch_us * 1e3 + load;
    for (int i = 0; i < count; i++) {
        const fu_group *g = &c->group[to[i]];
        if (g->room != FU_TILE) continue;
        /* instead of what `worth` takes it for, which hides half of it behind memory */
        const double elems = (double)tn_node_numel(n->t);
        all += fu_work_ns(c->target, elems * r->cost) / 2;
        all -= fu_tile_before_ns(c, fu_tile_conv(c, g->n, g->member), r->cost, r->n_read - 1);
    }
    return all;
}

/* Whether the groups can run one after the other. */
static bool can_be_ordered(const fu_ctx *c, bool *done)
{
    int left = 0, before = -1;
    for (int g = 0; g < c->n_group; g++) left += !(done[g] = c->group[g].dead);
    while (left && left != before) {
        before = left;
        for (int g = 0; g < c->n_group; g++) {
            const fu_group *a = &c->group[g];
            bool ready = !done[g];
            for (int i = 0; i < a->n && ready; i++)
                for (int k = 0; k < c->node[a->member[i]].n_after && ready; k++) {
                    int d = fu_group_of(c, c->node[a->member[i]].after[k]);
                    ready = d == g || done[d];
                }
            if (!ready) continue;
            done[g] = true;
            left--;
        }
    }
    return !left;
}

/* Groups that compute r's nodes read what these do, and before it is overwritten. */
static bool order_readers(fu_ctx *c, const again *r, int count, const int *to)
{
    for (int w = 0; w < c->n_node; w++) {
        bool old = false;
        for (int i = 0; i < r->n && c->node[w].live && !old; i++) {
            const tn_tensor *t = c->node[r->node[i]].t;
            for (int k = 0; k < t->n_in; k++)
                old = old || fu_reads(c, fu_value_of(c, t->in[k]), c->node[w].t) == FU_OLD;
        }
        for (int i = 0; i < count && old; i++) {
            const fu_group *g = &c->group[to[i]];
            int own = 0;
            while (own < g->n && fu_group_of(c, g->member[own]) != to[i]) own++;
            if (own == g->n || fu_group_of(c, w) == to[i] || !fu_note_after(c, w, g->member[own]))
                return false;
        }
    }
    return true;
}

/* A value that one group would store only for others to read, and that is cheap to make from what is in
 * memory anyway, is computed by those others again. `tiles`: by convolutions among them, as they load it, and
 * whatever else keeps the group that makes it from being spared. */
static void compute_again(fu_ctx *c, int node, bool tiles)
{
    enum { MANY = 16 };
    fu_node *n = &c->node[node];
    if (!n->live || n->root || n->group < 0 || c->group[fu_group_of(c, node)].room != FU_LOOPS) return;
    again r = {.size = tn_node_numel(n->t), .ordered = tiles};
    int to[MANY], count = readers(c, node, to, MANY);
    if (count <= 0 || cost_of(n->t) < 0 || !collect_again(c, node, &r)) return;
    if (alone(c, &c->group[fu_group_of(c, node)])) return;
    int reads = 0, convs = 0;
    for (int i = 0; i < count; i++) {
        const fu_group *g = &c->group[to[i]];
        const bool takes = tiles && takes_image(c, g, node);
        if ((!takes && g->room != FU_LOOPS) || alone(c, g)) return; /* it has to be stored in any case */
        reads += new_reads(c, g, &r);
        convs += takes;
    }
    if (tiles && (!r.n_read || (!convs && !makes_image(c, &c->group[fu_group_of(c, node)])))) return;
    if (!worth(c, n, &r, count, reads, tiles ? spared(c, n, &r, count, to) : 0)) return;
    int *after = tiles ? tn_arena_alloc(&c->arena, (size_t)c->n_node * sizeof *after) : NULL;
    bool *done = tiles ? tn_arena_alloc(&c->arena, (size_t)c->n_group + 1) : NULL;
    if (tiles && (!after || !done)) return;
    for (int i = 0; i < c->n_node && tiles; i++) after[i] = c->node[i].n_after;
    struct {
        int n, *member;
    } before[MANY];
    int copies[FU_MAX_MEMBERS], copied = c->n_copy;
    for (int i = 0; i < count; i++) {
        before[i].n = c->group[to[i]].n;
        before[i].member = c->group[to[i]].member;
    }
    for (int i = 0; i < r.n; i++) copies[i] = c->node[r.node[i]].n_copy;
    bool ok = true;
    for (int i = 0; i < count && ok; i++) ok = add_again(c, to[i], &r);
    if (tiles) ok = ok && order_readers(c, &r, count, to) && can_be_ordered(c, done);
    if (sources_can(c, &r) && (ok || !tiles)) return; /* where not all could, those that could not read it */
    for (int i = 0; i < c->n_node && tiles; i++) c->node[i].n_after = after[i];
    for (int i = 0; i < count; i++) {
        c->group[to[i]].n = before[i].n;
        c->group[to[i]].member = before[i].member;
    }
    for (int i = 0; i < r.n; i++) c->node[r.node[i]].n_copy = copies[i];
    c->n_copy = copied;
}

static bool share_large(const fu_ctx *c, const fu_group *a, const fu_group *b)
{
    for (int i = 0; i < b->n; i++) {
        const tn_tensor *t = c->node[b->member[i]].t;
        for (int k = 0; k < t->n_in; k++) {
            const tn_tensor *base = fu_value_of(c, t->in[k])->base;
            if (tn_node_numel(base) < 1024 || tn_op_get((tn_op)base->op)->kind == TN_KIND_NUMBER) continue;
            int p = fu_node_of(c, base);
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

/* Once values are computed again where they are read, groups may share reads that they did not before. */
static void join_groups(fu_ctx *c)
{
    for (int b = 0; b < c->n_group; b++)
        for (int a = b - 1; a >= 0 && a >= b - 64; a--) {
            if (c->group[b].dead) break;
            const fu_group *ga = &c->group[a], *gb = &c->group[b];
            if (ga->dead || ga->room != FU_LOOPS || gb->room != FU_LOOPS || !share_large(c, ga, gb)) continue;
            merge(c, a, b);
        }
}

/* The group that computes a user of the convolution's group, and reads what it stores; the next after `last`.
 */
static int next_reader(const fu_ctx *c, int g, int last)
{
    const fu_group *a = &c->group[g];
    int best = -1;
    for (int i = 0; i < a->n; i++) {
        const fu_node *n = &c->node[a->member[i]];
        for (int u = 0; u < n->n_user; u++)
            for (int k = -1; k < c->node[n->user[u]].n_copy; k++) {
                int r = k < 0 ? fu_group_of(c, n->user[u]) : alive(c, c->node[n->user[u]].copy[k]);
                if (r != g && r > last && c->group[r].room == FU_LOOPS && (best < 0 || r < best)) best = r;
            }
    }
    return best;
}

/* Refusals along the edges from group a to group b are for this reason. */
static void say_why(fu_ctx *c, int a, int b, tn_cut_reason why)
{
    for (int i = 0; i < c->plan->n_cut; i++) {
        tn_cut *cut = &c->plan->cut[i];
        if (fu_group_of(c, cut->from) == a && fu_group_of(c, cut->to) == b) cut->reason = why;
    }
}

/* Bytes that group g reads and writes, each value once. */
static double traffic(const fu_ctx *c, int g)
{
    const fu_group *a = &c->group[g];
    double bytes = 0;
    for (int i = 0; i < a->n; i++) {
        const fu_node *n = &c->node[a->member[i]];
        bool read = n->root;
        for (int u = 0; u < n->n_user && !read; u++) {
            read = !fu_has(a, n->user[u]);
            for (int k = 0; k < c->node[n->user[u]].n_copy && !read; k++)
                read = alive(c, c->node[n->user[u]].copy[k]) != g &&
                       !fu_has(&c->group[alive(c, c->node[n->user[u]].copy[k])], a->member[i]);
        }
        if (read && fu_group_of(c, a->member[i]) == g) bytes += (double)bytes_of(n->t);
        for (int k = 0; k < n->t->n_in; k++) {
            const tn_tensor *base = fu_value_of(c, n->t->in[k])->base;
            int p = fu_node_of(c, base);
            bool known = p >= 0 && fu_has(a, p);
            for (int j = 0; j <= i && !known; j++) {
                const tn_tensor *t = c->node[a->member[j]].t;
                for (int m = 0; m < (j < i ? t->n_in : k) && !known; m++)
                    known = fu_value_of(c, t->in[m])->base == base;
            }
            if (!known) bytes += (double)bytes_of(base);
        }
    }
    return bytes;
}

/* Which of group r's nodes are computed before any of its reductions, and lead from the convolution of group
 * g to a value, or are read by such: how many. Only what the group stores itself. */
static int first_of(const fu_ctx *c, int g, int r, int *out)
{
    const fu_group *a = &c->group[r];
    bool after[FU_MAX_MEMBERS] = {false}, of_conv[FU_MAX_MEMBERS] = {false}, wanted[FU_MAX_MEMBERS] = {false};
    int n = 0;
    for (int i = 0; i < a->n; i++) {
        const fu_node *m = &c->node[a->member[i]];
        after[i] = m->kind == TN_KIND_REDUCE || m->kind == TN_KIND_GATHER || tn_node_written(m->t) ||
                   fu_group_of(c, a->member[i]) != r;
        for (int k = 0; k < m->t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, m->t->in[k]));
            of_conv[i] = of_conv[i] || (p >= 0 && fu_has(&c->group[g], p));
            for (int j = 0; j < i && p >= 0; j++)
                if (a->member[j] == p) {
                    after[i] = after[i] || after[j];
                    of_conv[i] = of_conv[i] || of_conv[j];
                }
        }
    }
    for (int i = a->n - 1; i >= 0; i--) {
        const fu_node *m = &c->node[a->member[i]];
        wanted[i] = !after[i] && (wanted[i] || of_conv[i]);
        for (int k = 0; k < m->t->n_in && wanted[i]; k++)
            for (int j = 0; j < i; j++)
                if (a->member[j] == fu_node_of(c, fu_value_of(c, m->t->in[k]))) wanted[j] = true;
    }
    for (int i = 0; i < a->n; i++)
        if (wanted[i]) out[n++] = a->member[i];
    return n;
}

/* A reader that also reduces is cut in two, where the convolution's taking the first part along moves less.
 */
static void join_first(fu_ctx *c, int g, int r)
{
    fu_group *part = &c->group[c->n_group], *whole = &c->group[r], before = *whole;
    int first[FU_MAX_MEMBERS], n = first_of(c, g, r, first), rest = before.n - n, at = c->n_group;
    if (!n || !rest || at >= c->n_node || alone(c, whole)) return;
    int *member = tn_arena_alloc(&c->arena, (size_t)before.n * sizeof *member);
    if (!member) return; /* one kernel more is as right */
    double moved = traffic(c, g) + traffic(c, r);
    *part = before;
    part->member = member;
    part->n = n;
    memcpy(member, first, (size_t)n * sizeof *member);
    whole->member = member + n;
    whole->n = rest;
    for (int i = 0, k = 0; i < before.n; i++)
        if (!fu_has(part, before.member[i])) whole->member[k++] = before.member[i];
    int old[FU_MAX_MEMBERS];
    for (int i = 0; i < n; i++) {
        old[i] = c->node[first[i]].group;
        c->node[first[i]].group = at;
    }
    c->n_group++;
    bool good = !try_groups(c, r, r, whole->n, whole->member);
    int conv_n = c->group[g].n, *conv_member = c->group[g].member;
    good = good && !merge(c, g, at);
    for (int i = 0; i < n && good; i++) c->node[first[i]].group = g;
    good = good && traffic(c, g) + traffic(c, r) < moved;
    c->n_group--;
    for (int i = 0; i < n && good; i++)
        for (int u = 0; u < c->node[first[i]].n_user; u++)
            if (fu_has(whole, c->node[first[i]].user[u]))
                fu_cut(c, first[i], c->node[first[i]].user[u], TN_CUT_TILE);
    if (good) return;
    c->group[g].n = conv_n;
    c->group[g].member = conv_member;
    *whole = before;
    for (int i = 0; i < n; i++) c->node[first[i]].group = old[i];
}

/* A product becomes our kernel with those that read it where that pays, and else stays the library's. A
 * reader that also reduces remains a pass in any case: that is not worth it. */
static void join_product(fu_ctx *c, int g)
{
    fu_group *a = &c->group[g];
    if (a->dead || a->room != FU_GEMM || !c->node[a->member[0]].tile[0]) return;
    a->room = FU_TILE;
    for (int r = next_reader(c, g, -1); r >= 0;) {
        tn_cut_reason why = merge(c, g, r);
        r = next_reader(c, g, why ? r : -1);
    }
    if (a->n == 1) a->room = FU_GEMM;
    for (int i = 0; i < c->plan->n_cut && a->n > 1; i++) { /* no call of a library any more */
        tn_cut *cut = &c->plan->cut[i];
        int from = fu_group_of(c, cut->from), to = fu_group_of(c, cut->to);
        if ((from == g) == (to == g) || cut->reason != TN_CUT_LIBRARY) continue;
        fu_room other = c->group[from == g ? to : from].room;
        if (other != FU_GEMM && other != FU_CONV) cut->reason = TN_CUT_TILE;
    }
}

/* What reads a convolution joins its kernel as a whole: only then it is certain that nothing more is read for
 * it than before. Where another convolution has it already, that is who keeps it. */
static void join_tiles(fu_ctx *c)
{
    c->tiles_last = true;
    for (int g = 0; g < c->n_group; g++) {
        if (c->group[g].dead || c->group[g].room != FU_TILE) continue;
        for (int r = next_reader(c, g, -1); r >= 0;) {
            tn_cut_reason why = merge(c, g, r);
            if (why) join_first(c, g, r);
            if (why) say_why(c, g, r, why);
            r = next_reader(c, g, why ? r : -1);
        }
    }
    for (int g = 0; g < c->n_group; g++) join_product(c, g);
    c->tiles_last = false;
}

/* How much is touched between forward's making a value and backward's reading it, about: of what the nodes
 * come to, a fourth is ever written, or read from elsewhere. */
static double distance_to_backward(const fu_ctx *c)
{
    double bytes = 0;
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].live) bytes += (double)bytes_of(c->node[i].t);
    return bytes / 4;
}

int fu_group_all(fu_ctx *c)
{
    c->far = distance_to_backward(c);
    c->group = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *c->group);
    if (!c->group) return TN_E_NOMEM;
    for (int i = 0; i < c->n_node; i++) {
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
        for (int k = n->t->n_in - 1; k >= 0; k--) {
            if ((n->kind == TN_KIND_ASSIGN && k == 0) || fu_draws(c, n->t, k)) continue;
            int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
            if (p < 0 || fu_group_of(c, p) == fu_group_of(c, i)) continue;
            tn_cut_reason why = merge(c, fu_group_of(c, p), fu_group_of(c, i));
            if (why && !n->spared && !c->node[p].spared) fu_cut(c, p, i, why);
        }
        if (g->room == FU_LOOPS) join_siblings(c, i);
        if (g->room == FU_WINDOW) join_window(c, i);
        if (g->room == FU_ATTENTION) join_attention(c, i);
    }
    int before = c->n_copy;
    for (int i = c->n_node - 1; i >= 0; i--) compute_again(c, i, false);
    if (c->n_copy > before) join_groups(c);
    join_tiles(c);
    c->tiles_first = true;
    for (int i = c->n_node - 1; i >= 0; i--)
        if (c->target->dialect == TN_DIALECT_CUDA) compute_again(c, i, true);
    c->tiles_first = false;
    for (int i = 0; i < c->n_node; i++) /* what statistics are in the place of has no value to be read */
        for (int u = 0; c->node[i].statistic == FU_WITHIN && u < c->node[i].n_user; u++) {
            int g = fu_group_of(c, i);
            if (c->group[g].room == FU_TILE && fu_group_of(c, c->node[i].user[u]) != g) return TN_E_NOMEM;
        }
    return 0;
}
