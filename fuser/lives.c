/* lives.c - neighbours in the order of groups that do not wait for each other, in the order in which values
 * die sooner. A layer's two gradients both read the gradient of its result; made first, the weight's lets go
 * of what forward has kept for it before the other needs room:
 *
 *   alive while       dx is made      dw is made           dw is made      dx is made
 *                     dy  x  dx       dy  x  dx (dw)       dy  x  (dw)     dy  dx
 *
 * A value as large as a table waits, with its update, until what others read is gone (put_off).
 * Start with fu_shorten_lives. */
#include "fuser.h"

enum {
    READERS = 8,    /* of a value that is looked at */
    FURTHEST = 4,   /* groups that one may move ahead of */
    LONGEST = 64,   /* groups that a large value may wait for */
    LEAST = 1 << 16 /* bytes that it spares */
};

typedef struct lives {
    fu_ctx *c;
    int *at;   /* of each group: its place in the order */
    int *seen; /* of each node: the count below, when it was last looked at */
    int count;
} lives;

/* Returns true where the node's value takes room of its own until it was read for the last time. */
static bool has_life(const fu_ctx *c, int i)
{
    const fu_node *n = &c->node[i];
    return n->live && !n->root && !n->spared && n->into < 0 && !tn_node_written(n->t);
}

/* Bytes that group g writes for others. */
static int64_t made(const lives *l, int g)
{
    const fu_group *a = &l->c->group[g];
    int64_t bytes = 0;
    for (int i = 0; i < a->n; i++)
        if (fu_group_of(l->c, a->member[i]) == g && has_life(l->c, a->member[i]) &&
            fu_read_outside(l->c, NULL, a->member[i]))
            bytes += fu_bytes(l->c->node[a->member[i]].t);
    return bytes;
}

/* Returns true where g is the last of the node's readers but for those behind place `end`. */
static bool lets_go(const lives *l, int node, int g, int end)
{
    int reader[READERS];
    const int n = fu_readers(l->c, node, reader, READERS);
    for (int i = 0; i < n; i++)
        if (reader[i] != g && l->at[reader[i]] >= end) return false;
    return n > 0;
}

/* Bytes that g reads and nobody at or behind place `end` does, but g. */
static int64_t freed(lives *l, int g, int end)
{
    const fu_ctx *c = l->c;
    const fu_group *a = &c->group[g];
    int64_t bytes = 0;
    l->count++;
    for (int i = 0; i < a->n; i++) {
        const tn_tensor *t = c->node[a->member[i]].t;
        for (int k = 0; k < t->n_in; k++) {
            const int p = fu_node_of(c, fu_value_of(c, t->in[k]));
            if (p < 0 || l->seen[p] == l->count) continue;
            l->seen[p] = l->count;
            if (has_life(c, p) && !fu_has(a, p) && lets_go(l, p, g, end)) bytes += fu_bytes(c->node[p].t);
        }
    }
    return bytes;
}

static bool is_fixed(const fu_ctx *c, int g)
{
    return c->group[g].room == FU_RANKS || c->group[g].room == FU_HOST;
}

static bool can_move(const fu_ctx *c, int g)
{
    const fu_group *a = &c->group[g];
    bool can = !is_fixed(c, g);
    for (int i = 0; i < a->n && can; i++) can = c->node[a->member[i]].kind != TN_KIND_ASSIGN;
    return can;
}

static bool waits_for(const fu_ctx *c, int g, int other)
{
    const fu_group *a = &c->group[g];
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < c->node[a->member[i]].n_after; k++)
            if (fu_awaited(c, g, a->member[i], k) == other) return true;
    return false;
}

/* Returns true where less is alive at most if `later`, which is next, goes ahead of `first`. */
static bool is_better(lives *l, int first, int later)
{
    const int end = l->at[first];
    const int64_t a = made(l, first), b = made(l, later), let = freed(l, first, end),
                  lets = freed(l, later, end);
    const int64_t now = a > a - let + b ? a : a - let + b, then = b > b - lets + a ? b : b - lets + a;
    return now - then >= LEAST;
}

/* A large value that the next group assigns something by, as rows that have been looked up are updated: both
 * go behind groups that do not wait for them, to where less is alive. */
static void put_off(lives *l, int *order, int n, int i)
{
    const fu_ctx *c = l->c;
    const int g = order[i], update = order[i + 1];
    const int64_t bytes = made(l, g);
    int64_t now = 0, high = 0, least = bytes; /* above what is alive as g would begin */
    int at = i, best = i;
    if (bytes < LEAST || !c->group[update].frees || !waits_for(c, update, g) || !can_move(c, g)) return;
    for (; at + 2 < n && at < i + LONGEST; at++) {
        const int next = order[at + 2];
        if (is_fixed(c, next) || waits_for(c, next, g) || waits_for(c, next, update)) break;
        order[at] = next;
        l->at[next] = at;
        order[at + 1] = g;
        order[at + 2] = update;
        const int64_t more = made(l, next);
        high = now + more > high ? now + more : high;
        now += more - freed(l, next, at + 1);
        const int64_t most = now + bytes > high ? now + bytes : high;
        if (least - most >= LEAST) best = at + 1, least = most;
    }
    for (; at > best; at--) {
        order[at + 1] = order[at - 1];
        l->at[order[at + 1]] = at + 1;
        order[at] = update;
        order[at - 1] = g;
    }
    l->at[g] = at;
    l->at[update] = at + 1;
}

int fu_shorten_lives(fu_ctx *c, int *order, int n)
{
    lives l = {.c = c};
    l.at = tn_arena_alloc(&c->arena, ((size_t)c->n_group + 1) * sizeof *l.at);
    l.seen = tn_arena_alloc(&c->arena, ((size_t)c->n_node + 1) * sizeof *l.seen);
    if (!l.at || !l.seen) return TN_E_NOMEM;
    for (int i = 0; i < c->n_node; i++) l.seen[i] = 0;
    for (int i = 0; i < n; i++) l.at[order[i]] = i;
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && i - k < FURTHEST; k--) {
            const int first = order[k - 1], later = order[k];
            if (!c->group[first].backward || !can_move(c, first) || !can_move(c, later) ||
                waits_for(c, later, first) || !is_better(&l, first, later))
                break;
            order[k - 1] = later;
            order[k] = first;
            l.at[later] = k - 1;
            l.at[first] = k;
        }
    for (int i = n - 2; i >= 0; i--) put_off(&l, order, n, i);
    return 0;
}
