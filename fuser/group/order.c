/* order.c - in which order groups can run, kept while they are merged.
 *
 * Two groups may become one kernel if no third group stands between them: one that needs a value of the one
 * and makes a value that the other needs. Looking for one among all that a group needs would cost the square
 * of the program. So each group has a rank: it needs only what ranks below it. Whatever stands between two
 * has a rank between theirs.
 *
 *     rank    0     1     2     3     4     5
 *             a     x     A     y     B     z      A and B become one: x, z stay
 *             a     x     y?    AB    y?    z      y goes before AB if B needs it, and behind it if not
 *
 * Ranks hold as long as groups are only merged. Whoever changes them otherwise says so (fu_unrank), and they
 * are worked out anew when they are next asked for. Start with fu_between. */
#include "group.h"

#include <string.h>

void fu_unrank(fu_ctx *c) { c->n_rank = 0; }

/* The next group that w's needs; -1: there is none. */
static int next_needed(const fu_ctx *c, fu_walk *w)
{
    const fu_group *a = &c->group[w->group];
    for (; w->member < a->n; w->member++, w->k = 0)
        while (w->k < c->node[a->member[w->member]].n_after) {
            const int d = fu_awaited(c, w->group, a->member[w->member], w->k++);
            if (d != w->group) return d;
        }
    return -1;
}

/* Gives g a rank above all it needs, these first. False: it is needed by what it needs. */
static bool rank_group(fu_ctx *c, int g)
{
    fu_walk *const stack = c->stack;
    int n = 0;
    stack[n++] = (fu_walk){.group = g};
    c->group[g].mark = c->mark;
    while (n) {
        const int d = next_needed(c, &stack[n - 1]), done = stack[n - 1].group;
        if (d < 0) {
            c->group[done].rank = c->n_rank;
            c->ranked[c->n_rank++] = done;
            n--;
        } else if (c->group[d].rank < 0) {
            if (c->group[d].mark == c->mark) return false;
            c->group[d].mark = c->mark;
            stack[n++] = (fu_walk){.group = d};
        }
    }
    return true;
}

bool fu_rank(fu_ctx *c)
{
    if (c->n_rank) return true;
    if (c->n_group >= c->cap_rank) {
        c->cap_rank = c->n_group + c->n_group / 2 + 1;
        c->ranked = tn_arena_alloc(&c->arena, 2 * (size_t)c->cap_rank * sizeof *c->ranked);
        c->stack = tn_arena_alloc(&c->arena, (size_t)c->cap_rank * sizeof *c->stack);
    }
    if (!c->stack || !c->ranked) return false;
    c->mark++;
    for (int g = 0; g < c->n_group; g++) c->group[g].rank = -1;
    for (int g = 0; g < c->n_group; g++)
        if (!c->group[g].dead && c->group[g].rank < 0 && !rank_group(c, g)) {
            c->n_rank = 0;
            return false;
        }
    c->waiting = c->ranked + c->n_group + 1;
    return true;
}

bool fu_rank_holds(const fu_ctx *c, int g)
{
    fu_walk w = {.group = g};
    int d = c->n_rank ? next_needed(c, &w) : g;
    while (d >= 0 && c->group[d].rank < c->group[g].rank) d = next_needed(c, &w);
    return d < 0;
}

/* Marks what `from` needs above rank `low`: *marked groups. Whether it needs the group there, through another
 * one. */
static bool needs(fu_ctx *c, int from, int low, int *marked)
{
    int n = 0;
    *marked = 0;
    c->mark++;
    c->group[from].mark = c->mark;
    c->waiting[n++] = from;
    while (n) {
        fu_walk w = {.group = c->waiting[--n]};
        for (int d; (d = next_needed(c, &w)) >= 0;) {
            const int rank = c->group[d].rank;
            if (rank < low || c->group[d].mark == c->mark) continue;
            if (rank == low && w.group != from) return true;
            if (rank == low) continue;
            c->group[d].mark = c->mark;
            c->waiting[n++] = d;
            (*marked)++;
        }
    }
    return false;
}

bool fu_between(fu_ctx *c, int a, int b)
{
    if (!fu_rank(c)) return true; /* no memory: smaller groups are always right */
    int marked;
    const int low = c->group[a].rank, high = c->group[b].rank;
    return low < high ? needs(c, b, low, &marked) : needs(c, a, high, &marked);
}

void fu_merge_ranks(fu_ctx *c, int a, int b)
{
    if (!c->n_rank) return;
    const bool first = c->group[a].rank < c->group[b].rank;
    const int low = c->group[first ? a : b].rank, high = c->group[first ? b : a].rank;
    int *order = c->ranked + low, n = 0, n_later = 0, marked;
    needs(c, first ? b : a, low, &marked);
    if (!marked) { /* nothing has to move: the two stand where the first of them did */
        c->ranked[high] = -1;
        c->ranked[low] = a;
        c->group[a].rank = low;
        return;
    }
    int *later = c->waiting; /* which is done */
    for (int r = 0; r <= high - low; r++) {
        const int g = order[r];
        if (g < 0 || g == a || g == b) continue;
        if (c->group[g].mark == c->mark)
            order[n++] = g;
        else
            later[n_later++] = g;
    }
    order[n++] = a;
    for (int i = 0; i < n_later; i++) order[n++] = later[i];
    for (int r = 0; r < n; r++) c->group[order[r]].rank = low + r;
    while (n <= high - low) order[n++] = -1; /* the place of b, and of those before it */
}

/* ---- indices that are looked through in time ---- */

/* Clears `first` of each lookup whose index no group looks through that group `own` waits for. found:
 * scratch, one entry for each lookup. */
static void look_before(fu_ctx *c, int own, bool *found)
{
    memset(found, 0, (size_t)c->n_lookup);
    c->group[own].mark = ++c->mark;
    for (int r = c->group[own].rank; r >= 0; r--) {
        const int g = c->ranked[r];
        const fu_group *a = g >= 0 && c->group[g].mark == c->mark ? &c->group[g] : NULL;
        for (int i = 0; a && i < a->n; i++)
            for (int k = 0; k < c->node[a->member[i]].n_after; k++)
                c->group[fu_awaited(c, g, a->member[i], k)].mark = c->mark;
    }
    for (int i = 0; i < c->n_node; i++) {
        const int l = c->node[i].lookup, g = l < 0 ? own : fu_group_of(c, i);
        if (g != own && c->group[g].mark == c->mark) found[l] = true;
    }
    for (int l = 0; l < c->n_lookup; l++) c->lookup[l].first = c->lookup[l].first && found[l];
}

/* Sets `first` of each lookup whose index is looked through by a kernel that every assignment waits for. An
 * assignment that waits for another one waits for all that the other waits for. */
int fu_find_first(fu_ctx *c)
{
    bool *assigned = tn_arena_alloc(&c->arena, (size_t)c->n_group + 1); /* by it, or before it */
    bool *found = tn_arena_alloc(&c->arena, (size_t)c->n_lookup + 1);
    if (!assigned || !found) return TN_E_NOMEM;
    const bool ranked = fu_rank(c);
    for (int l = 0; l < c->n_lookup; l++) c->lookup[l].first = ranked;
    for (int r = 0; ranked && r < c->n_rank; r++) {
        const int g = c->ranked[r];
        const fu_group *a = g < 0 ? NULL : &c->group[g];
        bool own = false, before = false;
        for (int i = 0; a && i < a->n; i++) {
            own = own || (fu_lasts(c, a->member[i]) && fu_group_of(c, a->member[i]) == g);
            for (int k = 0; k < c->node[a->member[i]].n_after; k++)
                before = before || assigned[fu_awaited(c, g, a->member[i], k)];
        }
        if (own && !before) look_before(c, g, found);
        if (a) assigned[g] = own || before;
    }
    return 0;
}
