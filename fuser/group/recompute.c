/* recompute.c - computing a value again where it is read, instead of storing it.
 *
 * Once groups are formed, a value that one group would write only for others to read may be computed by those
 * others themselves, where its operands are in memory anyway and the arithmetic is predicted to cost less
 * than the traffic. `again` collects the nodes that such a reader takes in: the value, and below it whatever
 * is not in memory. The readers change all together or not at all. Convolutions with a kernel of our own are
 * asked last (tile.c): they compute their image as they load it. Start with compute_again, then worth. */
#include "../loops/cost.h"
#include "group.h"
#include "../loops/tile.h"

#include <string.h>

/* Instructions for an element; negative: not to be computed twice. */
static double cost_of(const tn_tensor *t)
{
    const tn_op_info *op = tn_op_get(t->op);
    if (op->kind == TN_KIND_ELTWISE) return op->work;
    return op->kind == TN_KIND_CAST || op->kind == TN_KIND_IOTA ? 0 : op->kind == TN_KIND_ROWS ? 1 : -1;
}

typedef struct again {
    int n, node[FU_MAX_MEMBERS]; /* to be computed again */
    double cost;                 /* instructions for an element */
    const tn_tensor *read[8];    /* large values they read */
    int n_read;
    int64_t size;                   /* of the value that is to be saved */
    bool tiles;                     /* by convolutions, as they load it */
    bool old;                       /* they read memory that is overwritten later (order_readers) */
    int n_later, cap_later, *later; /* nodes that wait for it by order_readers */
    bool near;                      /* what their own group stores for others as well is read, not computed */
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

/* Returns true where x is read as an assignment of this segment leaves it. Notes in r where a later
 * assignment changes it. */
static bool assigned(const fu_ctx *c, const tn_tensor *x, again *r)
{
    int first, end;
    fu_written_pieces(c, x, &first, &end);
    for (int k = first; k < end; k++) {
        int before = fu_writer_near(c, k, x->base->id, false);
        if (before >= 0 && c->node[before].t == x->base)
            before = fu_writer_near(c, k, x->base->id - 1, false);
        if (before >= 0) return true;
        r->old = r->old || fu_writer_near(c, k, x->base->id, true) >= 0;
    }
    return false;
}

/* It is computed from many values: other groups read it, and never compute it themselves. */
static bool made_once(const fu_node *n) { return n->kind == TN_KIND_REDUCE || n->kind == TN_KIND_CONV; }

/* Adds `node` and whatever it needs that is not in memory anyway. */
static bool collect_again(const fu_ctx *c, int node, again *r)
{
    const tn_tensor *t = c->node[node].t;
    double cost = cost_of(t);
    if (fu_find(r->n, r->node, node) >= 0) return true;
    if (cost < 0 || r->n == FU_MAX_MEMBERS) return false;
    r->cost += cost;
    r->node[r->n++] = node;
    for (int k = 0; k < t->n_in; k++) {
        const tn_tensor *x = fu_value_of(c, t->in[k]);
        int p = fu_node_of(c, x);
        if (tn_is_number(x)) continue;
        bool other = p >= 0 && fu_group_of(c, p) != fu_group_of(c, node) && !fu_widens(&c->node[p]) &&
                     c->node[p].kind != TN_KIND_IOTA; /* numbers of places are in memory for nobody */
        bool stored = p < 0 || c->node[p].root || other || made_once(&c->node[p]) ||
                      (r->near && fu_read_outside(c, NULL, p));
        if (stored ? assigned(c, x, r) || !reads(r, x->base) : !collect_again(c, p, r)) return false;
    }
    return true;
}

/* Bytes of r's large operands that group g does not read so far. */
static double new_reads(const fu_ctx *c, const fu_group *g, const again *r)
{
    double bytes = 0;
    for (int i = 0; i < r->n_read; i++) {
        bool known = false;
        for (int m = 0; m < g->n && !known; m++) {
            const tn_tensor *t = c->node[g->member[m]].t;
            for (int j = 0; j < t->n_in && !known; j++) known = fu_value_of(c, t->in[j])->base == r->read[i];
        }
        if (!known) bytes += (double)fu_bytes(r->read[i]);
    }
    return bytes;
}

/* Bytes of r's large operands that would be kept on its account alone: for the backward pass (`later`), or
 * since nobody but the value's own group reads them. */
static double kept_longer(const fu_ctx *c, const again *r, bool later)
{
    double bytes = 0;
    const int own = fu_group_of(c, r->node[0]);
    for (int i = 0; i < r->n_read; i++) {
        int p = fu_node_of(c, r->read[i]);
        bool dies = p >= 0 && !c->node[p].root;
        for (int u = 0; dies && u < c->node[p].n_user; u++) {
            const int of = fu_group_of(c, c->node[p].user[u]);
            dies = later ? !c->group[of].backward : of == own;
        }
        if (dies) bytes += (double)fu_bytes(r->read[i]);
    }
    return bytes;
}

/* Returns true where computing the value again in `groups` groups, which then have to read `more` bytes, is
 * predicted to take no longer than writing it and reading it back in each. Half of the arithmetic hides
 * behind a kernel's reads and writes. A value kept for the backward pass is read from far away, and takes
 * memory until then: twice the arithmetic is spent to avoid that, but operands that have to be kept in the
 * value's place count against it. Nor is it where more would be moved, and there until then: the value can
 * lie over one of those. */
static bool worth(const fu_ctx *c, const fu_node *n, const again *r, int groups, double more, double spared)
{
    double bytes = (double)fu_bytes(n->t), elems = (double)tn_node_numel(n->t);
    bool later = false;
    for (int i = 0; i < n->n_user; i++)
        later = later || c->group[fu_group_of(c, n->user[i])].backward != c->group[n->group].backward;
    double at = later ? c->far : bytes, load = fu_load_ns(c->target, bytes, at);
    double move = tn_dtype_size(n->t->dtype) < 4 ? 2 : 1; /* and convert */
    double keep = fu_store_ns(c->target, bytes, at) + groups * load +
                  fu_work_ns(c->target, elems * move * (1 + groups)) / 2;
    double work = groups * fu_work_ns(c->target, elems * r->cost);
    const double kept = kept_longer(c, r, later);
    if (later) more += kept;
    if (!later && kept > bytes && more > (1 + groups) * bytes) return false;
    return work / (later ? 4 : 2) + more / bytes * load <= keep + spared;
}

/* Returns true where the value would be computed from something much larger than itself, as the mean of many
 * elements is: its readers could no longer write their results over the larger one, and storing the value
 * instead costs next to nothing. */
static bool holds_up(const again *r)
{
    enum { MUCH = 16 };
    for (int i = 0; i < r->n_read; i++)
        if (tn_node_numel(r->read[i]) / MUCH > r->size) return true;
    return false;
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
    fu_by_id(count, all);
    const fu_candidate more = {.a = g, .b = g, .n = count, .member = all, .tiles_first = r->tiles};
    if (fu_try(c, &more)) return false;
    if (to->room == FU_LOOPS && fu_slower(c, &g, 1, fu_work_ns(c->target, (double)r->size * r->cost)))
        return false;
    int *member = tn_arena_alloc(&c->arena, (size_t)count * sizeof *member);
    if (!member) return false;
    memcpy(member, all, (size_t)count * sizeof *member);
    for (int i = 0; i < r->n; i++)
        if (!fu_has(to, r->node[i]) && !fu_note_copy(c, r->node[i], g)) return false;
    to->member = member;
    to->n = count;
    return true;
}

bool fu_still_can(fu_ctx *c, int g)
{
    fu_candidate k = fu_candidate_of(c, &c->group[g]);
    k.settled = false;
    return c->group[g].room != FU_LOOPS || !fu_try(c, &k);
}

/* Returns true where the groups that store r's values can do what computing them elsewhere asks: not to store
 * r's own value, for which alone some of their loops may exist, and to store what r's nodes read. */
static bool sources_can(fu_ctx *c, const again *r)
{
    if (!fu_still_can(c, fu_group_of(c, r->node[0]))) return false;
    for (int i = 0; i < r->n; i++) {
        const tn_tensor *t = c->node[r->node[i]].t;
        for (int k = 0; k < t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, t->in[k]));
            if (p >= 0 && !fu_still_can(c, fu_group_of(c, p))) return false;
        }
    }
    return true;
}

/* Returns true where group g is a convolution whose image is the node, and no other member of g reads the
 * node. */
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

/* Returns true where the group computes the image of a convolution, which may compute it as it loads it.
 * Other values that the group stores then keep it from being dropped. */
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
    const double bytes = (double)fu_bytes(n->t), load = fu_load_ns(c->target, bytes, bytes);
    const fu_group *owner = &c->group[fu_alive(c, n->group)];
    double all = 0;
    bool gone = true;
    for (int i = 0; i < owner->n; i++) {
        bool listed = false;
        for (int k = 0; k < r->n && !listed; k++) listed = r->node[k] == owner->member[i];
        const fu_node *m = &c->node[owner->member[i]];
        gone = gone && (listed ||
                        (!m->root && !tn_node_written(m->t) && !fu_read_outside(c, NULL, owner->member[i])));
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

/* Groups that compute r's nodes read what these do, and before it is overwritten. Lists the writers in r->later. */
static bool order_readers(fu_ctx *c, again *r, int count, const int *to)
{
    for (int at = 0; at < r->n; at++)
        for (int k = 0; k < c->node[r->node[at]].t->n_in; k++) {
            const tn_tensor *x = fu_value_of(c, c->node[r->node[at]].t->in[k]);
            int piece, end, w;
            for (fu_written_pieces(c, x, &piece, &end); piece < end; piece++)
                for (uint32_t id = x->base->id; (w = fu_writer_near(c, piece, id, true)) >= 0;
                     id = c->node[w].t->id)
                    for (int i = 0; i < count; i++) {
                        const fu_group *g = &c->group[to[i]];
                        int own = 0;
                        while (own < g->n && fu_group_of(c, g->member[own]) != to[i]) own++;
                        int *later = fu_grow(&c->arena, r->later, r->n_later, &r->cap_later, sizeof *later);
                        if (later) r->later = later;
                        if (!later || own == g->n || fu_group_of(c, w) == to[i] ||
                            !fu_note_after(c, w, g->member[own]))
                            return false;
                        r->later[r->n_later++] = w;
                    }
        }
    return true;
}

/* Returns true where the groups can run one after the other, now that `to` need more and r's writers wait for them. */
static bool can_be_ordered(fu_ctx *c, const again *r, int count, const int *to)
{
    bool hold = true;
    for (int i = 0; i < count; i++) hold = hold && fu_rank_holds(c, to[i]);
    for (int i = 0; i < r->n_later; i++) hold = hold && fu_rank_holds(c, fu_group_of(c, r->later[i]));
    if (!hold) fu_unrank(c);
    return fu_rank(c);
}

/* Returns true where those that read the node read something much larger with it: they would make it once for
 * each element of that. */
static bool spread_out(const fu_ctx *c, int node)
{
    const fu_node *n = &c->node[node];
    for (int u = 0; u < n->n_user; u++) {
        const tn_tensor *t = c->node[n->user[u]].t;
        for (int k = 0; k < t->n_in; k++)
            if (tn_node_numel(fu_value_of(c, t->in[k])) > tn_node_numel(n->t)) return true;
    }
    return false;
}

/* A value that one group would store only for others to read, and that is cheap to make from what is in
 * memory anyway, is computed by those others again. `tiles`: by convolutions among them, as they load it, and
 * whatever else keeps the group that makes it from being spared. `near`: from what the group stores anyway,
 * as it is. Returns whether they do. */
static bool compute_again(fu_ctx *c, int node, bool tiles, bool near)
{
    enum { MANY = 16 };
    fu_node *n = &c->node[node];
    if (!n->live || n->root || n->group < 0 || (near && spread_out(c, node))) return false;
    const fu_room room = c->group[fu_group_of(c, node)].room;
    if (room != FU_LOOPS && (room != FU_TILE || tiles || !fu_widens(n))) return false;
    again r = {.size = tn_node_numel(n->t), .tiles = tiles, .near = near};
    int to[MANY], count = fu_readers(c, node, to, MANY);
    if (count <= 0 || cost_of(n->t) < 0 || !collect_again(c, node, &r) || holds_up(&r)) return false;
    if (fu_alone(c, &c->group[fu_group_of(c, node)])) return false;
    double reads = 0;
    int convs = 0;
    for (int i = 0; i < count; i++) {
        const fu_group *g = &c->group[to[i]];
        const bool takes = tiles && takes_image(c, g, node);
        if ((!takes && g->room != FU_LOOPS) || fu_alone(c, g))
            return false; /* it has to be stored in any case */
        reads += new_reads(c, g, &r);
        convs += takes;
    }
    if (tiles && (!r.n_read || (!convs && !makes_image(c, &c->group[fu_group_of(c, node)])))) return false;
    if (!worth(c, n, &r, count, reads, tiles ? spared(c, n, &r, count, to) : 0)) return false;
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
    ok = ok || !tiles; /* where not all could, those that could not read it */
    if (tiles || r.old) ok = ok && order_readers(c, &r, count, to);
    if (ok && can_be_ordered(c, &r, count, to) && sources_can(c, &r)) return true;
    for (int i = 0; i < r.n_later; i++) c->node[r.later[i]].n_after--;
    for (int i = 0; i < count; i++) {
        c->group[to[i]].n = before[i].n;
        c->group[to[i]].member = before[i].member;
    }
    for (int i = 0; i < r.n; i++) c->node[r.node[i]].n_copy = copies[i];
    c->n_copy = copied;
    return false;
}

void fu_recompute(fu_ctx *c, int node)
{
    if (!compute_again(c, node, false, false)) compute_again(c, node, false, true);
}

void fu_recompute_for_tiles(fu_ctx *c)
{
    if (!fu_can(c->target)->tiles) return;
    for (int i = c->n_node - 1; i >= 0; i--) compute_again(c, i, true, false);
}
