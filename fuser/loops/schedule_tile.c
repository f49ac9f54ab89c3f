/* schedule_tile.c - how a loop program runs inside of a convolution's or product's own kernel.
 *
 * That kernel owns the loops: it walks rows and columns of the product and hands over each element, or, for
 * what follows from statistics, each column. So there are no items, parts or threads to decide: the program's
 * atoms have to be those of the product, in its order, the columns as the last one. Start with
 * fu_schedule_tile. */
#include "schedule.h"
#include "tile.h"

/* Atoms from the slowest to the fastest of the product's index. */
static tn_cut_reason order_as(fu_prog *p, const int64_t *stride)
{
    int position[FU_MAX_ATOMS];
    for (int a = 0; a < p->n_atom; a++) {
        if (!stride[a] && p->extent[a] > 1) return TN_CUT_SHAPES;
        position[a] = 0;
        for (int i = 0; i < p->n_atom; i++)
            position[a] += stride[i] > stride[a] || (stride[i] == stride[a] && i < a);
    }
    fu_reorder(p, position);
    return TN_CUT_NONE;
}

/* Returns true where all that the program reads, draws and writes lies along its columns, as vectors take
 * it. */
static bool runs_along(const fu_prog *p, int vec)
{
    TN_EACH(v, p->value, p->n_value) {
        const bool memory = v->kind == FU_LOAD || v->kind == FU_RANDOM;
        if (memory && v->vary >> vec & 1 && v->stride[vec] != 1) return false;
    }
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].stride[vec] != 1) return false;
    return true;
}

tn_cut_reason fu_schedule_tile(fu_prog *p, int64_t columns, int pack)
{
    const bool then = fu_can(p->c->target)->then;
    int element = -1;
    p->red = p->cross = 0;
    p->n_after = 0;
    for (int i = 0; i < p->n_value; i++) {
        if (p->value[i].kind == FU_REDUCE || p->value[i].kind == FU_INDEX) return TN_CUT_TILE;
        if (p->value[i].kind == FU_GIVEN && p->value[i].given == FU_ELEMENT) element = i;
    }
    if (element >= 0) {
        tn_cut_reason why = order_as(p, p->value[element].stride);
        if (why) return why;
        /* columns are told from rows, and neither merged with the other, by being marked as reduced */
        for (int a = 0; a < p->n_atom; a++)
            if (p->value[element].stride[a] < columns) p->red |= fu_bit(a);
        fu_merge_atoms(p);
        p->red = 0;
    }
    int vec = fu_vec(p);
    if (vec < 0 || p->extent[vec] != columns) return TN_CUT_SHAPES;
    p->form = FU_POINTWISE;
    if (then && !runs_along(p, vec)) return TN_CUT_TILE;
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].dom != fu_bit(p->n_atom) - 1) return TN_CUT_REPEATED;
    p->outer = 0;
    p->split = p->stream = false;
    p->part = p->parts = p->chunk = p->items = 1;
    p->tile = then ? TN_TILE_COLUMNS : 0;
    p->block = -1;
    for (int i = 0; i < p->n_store; i++) p->store[i].staged = false;
    p->unroll = p->ahead = p->lanes = p->team = p->abreast = 1;
    p->held = 0;
    p->pack = pack;
    p->threads = 0;
    for (int i = 0; i < p->n_value; i++) {
        p->value[i].stash = -1;
        p->value[i].array = p->value[i].staged = false;
    }
    if (!fu_set_phases(p)) return TN_CUT_SIZE;
    fu_mark_packs(p);
    fu_mark_needs(p);
    return TN_CUT_NONE;
}
