/* late.c - what a group of gradients makes for others alone goes to a later group that has all it is made of,
 * and lets go of what it can lie over. A batch norm's gradient goes over its rows twice, and both times makes
 * again what forward has left of them; what a product reads of that is made the second time:
 *
 *   sums of dy, x           reads x, dy; makes h            reads x, dy
 *   dx of dy, x             reads x, dy; makes dx over x    reads x, dy; makes dx over x, h over dy
 *
 * Start with fu_make_late. */
#include "group.h"

#include <string.h>

enum { READERS = 8, LEAST = 1 << 16 /* bytes */ };

/* Returns true where nobody reads the node behind group g: of gradients, g and `before` alone do. */
static bool dies_in(const fu_ctx *c, int node, int g, int before)
{
    const fu_node *n = &c->node[node];
    int reader[READERS];
    const int count = fu_readers(c, node, reader, READERS);
    bool dies = count > 0 && !n->root && !tn_node_written(n->t) && n->into < 0;
    for (int i = 0; i < count; i++)
        dies = dies && (reader[i] == g || reader[i] == before || !c->group[reader[i]].backward);
    return dies;
}

/* Bytes of large values that group g is the last to read, less those that it makes. */
static int64_t room_in(const fu_ctx *c, int g, int before)
{
    const fu_group *a = &c->group[g];
    int seen[2 * FU_MAX_MEMBERS], n_seen = 0;
    int64_t bytes = 0;
    for (int i = 0; i < a->n; i++) {
        const fu_node *n = &c->node[a->member[i]];
        const bool stores =
            fu_group_of(c, a->member[i]) == g && (n->root || fu_read_outside(c, NULL, a->member[i]));
        if (stores && fu_bytes(n->t) >= LEAST) bytes -= fu_bytes(n->t);
        for (int k = 0; k < n->t->n_in && n_seen < 2 * FU_MAX_MEMBERS; k++) {
            const int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
            if (p < 0 || fu_has(a, p) || fu_find(n_seen, seen, p) >= 0 || fu_bytes(c->node[p].t) < LEAST)
                continue;
            seen[n_seen++] = p;
            if (dies_in(c, p, g, before)) bytes += fu_bytes(c->node[p].t);
        }
    }
    return bytes;
}

/* Returns true where group g reads x from memory, or x is small. */
static bool reads(const fu_ctx *c, const fu_group *g, const tn_tensor *x)
{
    bool has = tn_is_number(x) || fu_bytes(x->base) < LEAST;
    for (int i = 0; i < g->n && !has; i++) {
        const tn_tensor *t = c->node[g->member[i]].t;
        for (int k = 0; k < t->n_in && !has; k++) has = fu_value_of(c, t->in[k])->base == x->base;
    }
    return has;
}

/* Returns true where the node can be made in `to`: what it is made of is moved too, or is there. */
static bool can_make(const fu_ctx *c, const fu_group *a, const fu_group *to, const fu_node *n,
                     const bool *moved)
{
    bool can = (n->kind == TN_KIND_ELTWISE || n->kind == TN_KIND_CAST) && !n->n_copy && n->lookup < 0;
    for (int k = 0; k < n->t->n_in && can; k++) {
        const tn_tensor *x = fu_value_of(c, n->t->in[k]);
        const int p = fu_node_of(c, x), at = p < 0 ? -1 : fu_find(a->n, a->member, p);
        can = at < 0 ? reads(c, to, x) : moved[at] || fu_has(to, p);
    }
    return can;
}

/* Marks as `moved` the node and what group g makes for it alone. Returns how many; 0: they cannot move. */
static int collect(const fu_ctx *c, int g, const fu_group *to, int node, bool *moved)
{
    const fu_group *a = &c->group[g];
    int count = 0;
    for (int i = a->n - 1; i >= 0; i--) {
        const fu_node *n = &c->node[a->member[i]];
        bool only = n->n_user && !fu_has(to, a->member[i]) && fu_group_of(c, a->member[i]) == g;
        for (int u = 0; u < n->n_user; u++) {
            const int at = fu_find(a->n, a->member, n->user[u]);
            only = only && (a->member[i] == node ? at < 0 : at >= 0 && moved[at]);
        }
        if (a->member[i] == node && !only) return 0;
        count += moved[i] = only;
    }
    for (int i = 0; i < a->n; i++)
        if (moved[i] && !can_make(c, a, to, &c->node[a->member[i]], moved)) return 0;
    return count;
}

/* Moves those members of group a to group b, or leaves all as it is. */
static bool move(fu_ctx *c, int a, int b, const bool *moved, int count)
{
    fu_group *from = &c->group[a], *to = &c->group[b];
    const fu_group was_from = *from, was_to = *to;
    if (was_to.n + count > FU_MAX_MEMBERS || count == was_from.n) return false;
    int *less = tn_arena_alloc(&c->arena, (size_t)was_from.n * sizeof *less);
    int *more = tn_arena_alloc(&c->arena, (size_t)(was_to.n + count) * sizeof *more);
    if (!less || !more) return false;
    memcpy(more, was_to.member, (size_t)was_to.n * sizeof *more);
    from->member = less, from->n = 0;
    to->member = more;
    for (int i = 0; i < was_from.n; i++) {
        const int m = was_from.member[i];
        if (moved[i])
            more[to->n++] = m, c->node[m].group = b;
        else
            less[from->n++] = m;
    }
    fu_by_id(to->n, more);
    fu_unrank(c);
    if (!fu_between(c, a, b) && fu_still_can(c, a) && fu_still_can(c, b)) return true;
    for (int i = 0; i < was_from.n; i++)
        if (moved[i]) c->node[was_from.member[i]].group = a;
    *from = was_from;
    *to = was_to;
    fu_unrank(c);
    return false;
}

/* Returns true where both make some node again. */
static bool share(const fu_group *a, const fu_group *b)
{
    int i = 0, k = 0;
    while (i < a->n && k < b->n && a->member[i] != b->member[k])
        *(a->member[i] < b->member[k] ? &i : &k) += 1;
    return i < a->n && k < b->n;
}

void fu_make_late(fu_ctx *c, int node)
{
    const fu_node *n = &c->node[node];
    if (!n->live || n->root || n->group < 0 || n->into >= 0 || tn_node_written(n->t)) return;
    const int a = fu_group_of(c, node);
    const int64_t bytes = fu_bytes(n->t);
    const fu_group *own = &c->group[a];
    if (!own->backward || own->room != FU_LOOPS || bytes < LEAST || fu_alone(c, own)) return;
    bool moved[FU_MAX_MEMBERS];
    for (int b = a + 1; b < c->n_group && b <= a + 64; b++) {
        const fu_group *g = &c->group[b];
        if (g->dead || !g->backward || g->room != FU_LOOPS || g->early || !share(own, g) || fu_alone(c, g))
            continue;
        const int count = collect(c, a, g, node, moved);
        if (!count || room_in(c, a, a) >= bytes || room_in(c, b, a) < bytes || fu_between(c, a, b)) continue;
        if (move(c, a, b, moved, count)) return;
    }
}
