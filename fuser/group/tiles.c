/* tiles.c - which groups become part of a convolution's or product's own kernel.
 *
 * The kernel of a TILE group hands over each element of its product before anything is stored. A group that
 * reads the product joins it as a whole, or, where it also reduces, is cut in two and the part before its
 * reductions joins. A product is the library's until then, and stays so where no reader makes our own kernel
 * the faster one. Runs last, when all other groups are what they will be. Start with fu_join_tiles. */
#include "group.h"

#include <string.h>

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
                int r = k < 0 ? fu_group_of(c, n->user[u]) : fu_alive(c, c->node[n->user[u]].copy[k]);
                if (r != g && r > last && c->group[r].room == FU_LOOPS && (best < 0 || r < best)) best = r;
            }
    }
    return best;
}

/* Refusals along the edges from group a to group b are for this reason. */
static void say_why(fu_ctx *c, int a, int b, tn_cut_reason why)
{
    TN_EACH(cut, c->plan->cut, c->plan->n_cut)
        if (fu_group_of(c, cut->from) == a && fu_group_of(c, cut->to) == b) cut->reason = why;
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
                read = fu_alive(c, c->node[n->user[u]].copy[k]) != g &&
                       !fu_has(&c->group[fu_alive(c, c->node[n->user[u]].copy[k])], a->member[i]);
        }
        if (read && fu_group_of(c, a->member[i]) == g) bytes += (double)fu_bytes(n->t);
        for (int k = 0; k < n->t->n_in; k++) {
            const tn_tensor *base = fu_value_of(c, n->t->in[k])->base;
            int p = fu_node_of(c, base);
            bool known = p >= 0 && fu_has(a, p);
            for (int j = 0; j <= i && !known; j++) {
                const tn_tensor *t = c->node[a->member[j]].t;
                for (int m = 0; m < (j < i ? t->n_in : k) && !known; m++)
                    known = fu_value_of(c, t->in[m])->base == base;
            }
            if (!known) bytes += (double)fu_bytes(base);
        }
    }
    return bytes;
}

/* Lists the nodes of group r that can join the convolution of group g ahead of r's reductions: those that
 * lead from the convolution to a value, or are read by such, and that r itself stores. Returns how many. */
static int first_of(const fu_ctx *c, int g, int r, int *out)
{
    const fu_group *a = &c->group[r];
    bool after[FU_MAX_MEMBERS] = {false}, of_conv[FU_MAX_MEMBERS] = {false}, wanted[FU_MAX_MEMBERS] = {false};
    int n = 0;
    for (int i = 0; i < a->n; i++) {
        const fu_node *m = &c->node[a->member[i]];
        after[i] = m->kind == TN_KIND_REDUCE || tn_kind_looks_up(m->kind) || tn_node_written(m->t) ||
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
    if (!n || !rest || at >= c->n_node || fu_alone(c, whole)) return;
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
    fu_unrank(c);
    bool good = !fu_try(c, &(fu_candidate){.a = r, .b = r, .n = whole->n, .member = whole->member});
    int conv_n = c->group[g].n, *conv_member = c->group[g].member;
    good = good && !fu_merge_last(c, g, at);
    for (int i = 0; i < n && good; i++) c->node[first[i]].group = g;
    good = good && traffic(c, g) + traffic(c, r) < moved;
    c->n_group--;
    fu_unrank(c);
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
        tn_cut_reason why = fu_merge_last(c, g, r);
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

/* A reader of a convolution joins its kernel as a whole: only then is it certain that nothing more is read
 * for it than before. A reader that has joined one convolution stays with it. */
void fu_join_tiles(fu_ctx *c)
{
    for (int g = 0; g < c->n_group; g++) {
        if (c->group[g].dead || c->group[g].room != FU_TILE) continue;
        for (int r = next_reader(c, g, -1); r >= 0;) {
            tn_cut_reason why = fu_merge_last(c, g, r);
            if (why) join_first(c, g, r);
            if (why) say_why(c, g, r, why);
            r = next_reader(c, g, why ? r : -1);
        }
    }
    for (int g = 0; g < c->n_group; g++) join_product(c, g);
}
