/* pointwise.c - the nest where nothing is reduced: an item is a tile of the vector's atom at one point
 * of the others, or the kernel's range of elements where there is one atom only.
 *
 *     for (int64_t item = begin; item < end; item++) {         x [n, 300] + b [300]
 *         const int64_t i0 = item;
 *     #pragma omp simd
 *         for (int64_t i1 = 0; i1 < 300; i1++) {
 *             const float x_i = x[i0 * 300 + i1];
 *             const float b_i = b[i1];
 *             const float add = x_i + b_i;
 *             out[i0 * 300 + i1] = add;
 *         }
 *     }
 *
 * Where an operand lies crosswise (a transpose), an item is a block of FU_BLOCK lines by FU_BLOCK_TILE
 * elements (block.c).
 *
 * Start with fu_nest_pointwise. */
#include "nest.h"

#include <stdio.h>
#include <string.h>

/* The vector loop over a range, and what belongs to it. */
static void write_range(fu_em *e, const char *lo, const char *hi)
{
    fu_prog *p = e->p;
    fu_loop l = {.first = lo, .worst = fu_index_inside(p, 0)};
    l.by_pieces = p->block < 0 && fu_phase_streams(p, 0) && fu_random_by_pieces(p, 0);
    e->phase = 0;
    fu_fill_random(e, &l, hi);
    fu_fill_lines(e, &l, hi);
    if (l.worst) fu_line(&e->t, "uint64_t worst = 0;");
    fu_plain_loop(e, &l, lo, hi);
    if (l.worst) fu_report_worst(e);
    if (p->tile) e->phase = 1;
}

/* The range between two cuts along the vector. A tile's end is told as a count. */
static void write_between(fu_em *e, const fu_range *r, const fu_cuts *cut, bool last)
{
    const fu_prog *p = e->p;
    const bool counted = p->tile != 0;
    char lo[32], hi[48];
    fu_scope_open(e, "{"); /* what one stretch declares is not the next one's */
    if (counted && !strcmp(r->lo, "0") && r->count >= 0) {
        snprintf(lo, sizeof lo, "%lld", (long long)cut->from);
        snprintf(hi, sizeof hi, "%lld", (long long)(cut->to - cut->from));
        write_range(e, lo, hi);
        fu_scope_close(e);
        return;
    }
    const char *plus = counted ? r->lo : "", *sign = counted ? " + " : "";
    fu_line(&e->t, "const int64_t from = %s > %lld ? %s : %lld;", r->lo, (long long)cut->from, r->lo,
            (long long)cut->from);
    if (last)
        fu_line(&e->t, "const int64_t to = %s%s%s;", plus, sign, r->hi);
    else
        fu_line(&e->t, "const int64_t to = %s%s%s < %lld ? %s%s%s : %lld;", plus, sign, r->hi,
                (long long)cut->to, plus, sign, r->hi, (long long)cut->to);
    write_range(e, "from", counted ? "to - from" : "to");
    fu_scope_close(e);
}

/* Once for each stretch between the cuts. */
static void write_cut(fu_em *e, const fu_range *r, fu_cuts *cut)
{
    const bool along = cut->atom == fu_vec(e->p);
    if (along && e->p->tile) fu_hoist(e, 0, false);
    for (int k = 0; k <= cut->n; k++) {
        const bool last = k == cut->n;
        fu_go_to_cut(e->p, cut, k);
        e->cut = cut;
        if (along) {
            write_between(e, r, cut, last);
        } else {
            if (last)
                fu_scope_open(e, "else {");
            else
                fu_scope_open(e, "%sif (i%d < %lld) {", k ? "else " : "", cut->atom, (long long)cut->to);
            fu_hoist(e, 0, false);
            write_range(e, r->lo, r->hi);
            fu_write_kept(e, "");
            fu_scope_close(e);
        }
        e->cut = NULL;
    }
    if (along) fu_write_kept(e, "");
}

void fu_nest_pointwise(fu_em *e, const fu_range *r)
{
    fu_prog *p = e->p;
    fu_cuts cut;
    if (fu_find_cuts(p, &cut)) {
        write_cut(e, r, &cut);
        return;
    }
    fu_open_block(e, r);
    if (p->tile) fu_hoist(e, 0, false);
    write_range(e, r->lo, r->hi);
    fu_write_kept(e, "");
    fu_close_block(e, r);
}
