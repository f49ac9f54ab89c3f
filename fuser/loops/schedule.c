/* schedule.c - how a loop program runs: its form, tiles, whether a reduction is split, lanes.
 *
 * Forms. With K the atoms that are kept and R those that are reduced:
 *   pointwise  R empty. Items are tiles of the vector atom times the other atoms, or plain elements.
 *   row        the vector atom is reduced. An item is one point of K; the R loops run once per phase.
 *   column     the vector atom is kept. An item is a tile of it; accumulators are arrays over the tile.
 * A phase is one pass over R: a value that depends on a finished reduction belongs to a later phase.
 * Split: too few items for a long R. Parts of R write partial results, a second kernel combines them in
 * order. Everything here follows from shapes alone, so results do not depend on the number of threads.
 *
 * atoms.c and phases.c have the steps that all schedules share; what is left to decide once the phases are
 * known differs: for a CPU here, for a GPU in schedule_cuda.c. Start with fu_schedule. */
#include "schedule.h"
#include "../../src/core/int64.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is not stored at all points ---- */

/* Store s is made at few of the points that have equal values: those where the missing coordinates are 0. */
static bool store_at_zero(fu_prog *p, fu_store *s, uint32_t missing)
{
    enum { TIMES = 4 }; /* that its value may be computed, if that can be helped */
    bool often = fu_count(p, missing) > TIMES && !p->settled;
    if (p->form != FU_POINTWISE || (missing >> fu_vec(p) & 1) || often || s->late ||
        p->n_value + 2 > FU_MAX_VALUES)
        return false;
    int at = p->n_value++;
    fu_value *v = &p->value[at];
    memset(v, 0, sizeof *v);
    v->kind = FU_INSIDE;
    v->dtype = v->from = TN_BOOL;
    v->node = v->stash = v->slot = -1;
    v->extent = 1;
    v->vary = missing;
    int64_t dense = 1;
    for (int a = p->n_atom - 1; a >= 0; a--)
        if (missing >> a & 1) {
            v->stride[a] = dense;
            dense *= p->extent[a];
        }
    if (s->mask >= 0) {
        fu_value *both = &p->value[p->n_value++];
        *both = *v;
        both->kind = FU_OP;
        both->op = TN_OP_logical_and;
        both->n_arg = 2;
        both->arg[0] = s->mask;
        both->arg[1] = at;
        both->vary |= p->value[s->mask].vary;
        memset(both->stride, 0, sizeof both->stride);
        at++;
    }
    s->mask = at;
    s->dom |= missing;
    return true;
}

/* ---- sizes ---- */

/* Items of a chunk, where `most` elements with next to no arithmetic would be one: fewer where an element
 * takes long, as then they are worth another thread's waking. A few chunks are made fours, so that 2 or 4
 * threads end together. */
static int64_t chunk_of(const fu_prog *p, int64_t most, int64_t per_item)
{
    enum { CHEAP = 16, FEW = 16, LINE = 64 };
    int work = 0;
    for (int i = 0; i < p->n_value; i++) work += fu_op_cost(&p->value[i]);
    const int64_t chunk = most * CHEAP / (work > CHEAP ? work : CHEAP) / per_item;
    if (chunk < 1) return 1;
    int64_t chunks = (p->items + chunk - 1) / chunk;
    if (work <= CHEAP || chunks < 2 || chunks >= FEW) return chunk;
    chunks = (chunks + 3) / 4 * 4;
    const int64_t line = per_item == 1 && !p->tile ? LINE : 1;
    return (p->items + chunks * line - 1) / (chunks * line) * line;
}

/* Of `n` lines over all atoms of p->block: how many blocks. */
static int64_t in_blocks(const fu_prog *p, int64_t n)
{
    const int64_t lines = p->block >= 0 ? p->extent[p->block] : 0;
    return lines ? n / lines * tn_ceil_div(lines, p->lines) : n;
}

static void size_items(fu_prog *p)
{
    int vec = fu_vec(p);
    uint32_t keep = ~p->red & (fu_bit(p->n_atom) - 1);
    int64_t width = p->extent[vec], per_item;
    if (p->form == FU_POINTWISE) {
        int64_t outer = fu_count(p, keep & ~fu_bit(vec));
        bool random = false;
        for (int i = 0; i < p->n_value; i++) random = random || p->value[i].kind == FU_RANDOM;
        if (p->n_atom == 1 && !random)
            p->tile = 0;
        else if (random)
            p->tile = width > 0 && width < FU_RANDOM_TILE && p->n_atom > 1 ? width : FU_RANDOM_TILE;
        else
            p->tile = width > 8192 ? 4096 : width > 0 ? width : 1;
        if (p->block >= 0 && width > FU_BLOCK_TILE) p->tile = FU_BLOCK_TILE;
        outer = in_blocks(p, outer);
        p->items = p->tile ? outer * ((width + p->tile - 1) / p->tile) : width;
        per_item = p->tile ? p->tile * (p->block >= 0 ? FU_BLOCK : 1) : 1;
    } else if (p->form == FU_ROW) {
        p->tile = 0;
        p->items = in_blocks(p, fu_count(p, keep)) * (p->split ? p->parts : 1);
        per_item = p->split ? FU_PART : fu_count(p, p->red) * (p->block >= 0 ? p->lines : 1);
    } else {
        int64_t tiles = (width + p->tile - 1) / p->tile;
        p->items = fu_count(p, keep & ~fu_bit(vec)) * tiles * (p->split ? p->parts : 1);
        per_item = p->tile * (p->split ? p->part : fu_count(p, p->red));
    }
    if (per_item < 1) per_item = 1;
    p->chunk = chunk_of(p, !p->tile && p->form == FU_POINTWISE ? 16384 : 32768, per_item);
    if (!p->cross) return;
    if (p->block >= 0) { /* a part is of whole blocks */
        p->part = tn_max64(1, p->part / p->lines);
        p->parts = tn_ceil_div(p->items, p->part);
    }
    p->chunk = p->part; /* a chunk begins where a part does */
}

/* Elements of a vector that is as wide as they come: compilers make one of as many elements as the narrowest
 * dtype has in it, and where a loop has fewer, take narrower vectors for all of it. */
static int64_t lanes_of(const fu_prog *p)
{
    bool narrow = false;
    for (int i = 0; i < p->n_value; i++)
        narrow = narrow || (p->value[i].kind == FU_LOAD && tn_dtype_is_half(p->value[i].dtype));
    for (int i = 0; i < p->n_store; i++) narrow = narrow || tn_dtype_is_half(p->store[i].dtype);
    return p->c->target->vector_bytes / (narrow ? 2 : 4);
}

/* Whole sums and, as far as there are columns, whole vectors: two of them where that leaves enough items. */
static void choose_folded_tile(fu_prog *p)
{
    enum { ITEMS = 64, VECTORS = 8 };
    const int64_t lanes = lanes_of(p), width = p->extent[fu_vec(p)];
    const int64_t others = fu_count(p, ~p->red & (fu_bit(fu_vec(p)) - 1));
    p->tile = p->fold;
    while (p->tile % lanes && p->tile < width && p->tile < VECTORS * lanes) p->tile += p->fold;
    if (p->tile < 2 * lanes && others * (width / (2 * p->tile)) >= ITEMS) p->tile *= 2;
    if (p->tile > width) p->tile = width;
}

/* Column: as wide as the accumulators may be to stay in L1, since rows are read best from end to end; narrow
 * where later phases come back to the same elements. */
static void choose_tile(fu_prog *p)
{
    int reductions = 0;
    if (p->fold) {
        choose_folded_tile(p);
        return;
    }
    for (int i = 0; i < p->n_value; i++) reductions += p->value[i].kind == FU_REDUCE;
    int64_t most = p->n_phase > 1 ? 256 : reductions <= 2 ? 2048 : reductions <= 4 ? 1024 : 512;
    int64_t width = p->extent[fu_vec(p)], tiles = (width + most - 1) / most;
    p->tile = tiles > 1 ? ((width + tiles - 1) / tiles + 63) / 64 * 64 : width > 0 ? width : 1;
}

/* Adding several rows at once saves accumulator traffic. Not where something would be computed per element
 * that is now computed per row. */
static void choose_unroll(fu_prog *p)
{
    int vec = fu_vec(p), work = 0;
    p->unroll = 1;
    if (p->form != FU_COLUMN) return;
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind == FU_RANDOM || v->kind == FU_INDEX || fu_chooses(v)) return;
        if (!fu_full(p, v)) continue;
        work += fu_op_cost(v);
        if (!(v->vary >> vec & 1) && fu_op_cost(v) > 1) return;
    }
    p->unroll = work <= 4 ? 8 : work <= 16 ? 4 : 1;
}

/* Returns the bytes that the whole loop reads and writes, each element counted once. */
static int64_t touched(const fu_prog *p)
{
    int64_t bytes = 0;
    TN_EACH(v, p->value, p->n_value)
        if (v->kind == FU_LOAD) bytes += fu_count(p, v->vary) * (int64_t)tn_dtype_size(v->dtype);
    for (int i = 0; i < p->n_store; i++)
        bytes += fu_count(p, p->store[i].dom) * (int64_t)tn_dtype_size(p->store[i].dtype);
    return bytes;
}

/* Results that no cache will hold until they are read are written past it, where a loop that only stores, or
 * sums up a part of everything, writes them from end to end: those that are too large for it, and those of a
 * loop that touches more than it holds, if they are large enough to matter. What is updated in place was just
 * read and is at hand. */
static void choose_stream(fu_prog *p)
{
    int vec = fu_vec(p);
    bool floods = touched(p) > p->last_bytes;
    p->stream = false;
    TN_EACH(s, p->store, p->n_store) {
        int64_t bytes = fu_count(p, s->dom) * (int64_t)tn_dtype_size(s->dtype);
        bool plain = p->form == FU_POINTWISE;
        if (p->form == FU_ROW && (s->dom & p->red)) {
            plain = true;
            for (int k = 0; k < p->n_value; k++)
                if (p->value[k].kind == FU_REDUCE && !p->value[k].cross && p->value[k].phase == s->phase + 1)
                    plain = p->split && (p->red == fu_bit(vec) || p->extent[vec] % FU_STREAM_TILE == 0);
        }
        s->stream = plain && !s->late && s->mask < 0 && !s->shift && s->stride[vec] == 1 &&
                    p->extent[vec] >= 64 && (bytes > p->last_bytes || (floods && bytes > p->last_bytes / 8));
        p->stream = p->stream || s->stream;
    }
}

/* Few long rows: they are cut. */
static bool few_rows(const fu_prog *p)
{
    return fu_count(p, ~p->red & (fu_bit(p->n_atom) - 1)) < 32 && fu_count(p, p->red) > 4 * FU_PART;
}

static void choose_split(fu_prog *p)
{
    int vec = fu_vec(p);
    uint32_t keep = ~p->red & (fu_bit(p->n_atom) - 1);
    int64_t r = fu_count(p, p->red);
    p->split = false;
    p->part = p->parts = 1;
    if (p->second || p->form == FU_POINTWISE || p->fold) return;
    for (int i = 0; i < p->n_value; i++)
        if (fu_chooses(&p->value[i])) return;
    if (p->form == FU_ROW) {
        int64_t outer = fu_count(p, p->red & ~fu_bit(vec));
        p->split = few_rows(p);
        if (!p->split) return;
        int64_t n = outer > 1 ? outer : p->extent[vec];
        p->part = outer > 1 ? FU_PART / p->extent[vec] : FU_PART;
        if (p->part < 1) p->part = 1;
        while (n / p->part > 8192) p->part *= 2;
        p->parts = (n + p->part - 1) / p->part;
    } else {
        int64_t tiles = (p->extent[vec] + p->tile - 1) / p->tile;
        int64_t items = fu_count(p, keep & ~fu_bit(vec)) * tiles;
        p->split = items < 32 && r >= 256 && r * p->extent[vec] > 65536;
        if (!p->split) return;
        p->part = r >= 1 << 20 ? r / 8192 : r >= 65536 ? 128 : r >= 4096 ? 64 : 32;
        p->parts = (r + p->part - 1) / p->part;
    }
}

/* Chains of additions wait for one another: where a loop has but one, it wants more of them side by side. */
static int choose_lanes(const fu_prog *p)
{
    if (p->split || p->extent[fu_vec(p)] < 512) return FU_LANES;
    for (int phase = 0; phase < p->n_phase; phase++) {
        int sums = 0;
        TN_EACH(v, p->value, p->n_value) {
            if (fu_chooses(v)) return FU_LANES;
            sums += fu_reduced_in(v, phase);
        }
        if (sums > 1) return FU_LANES;
    }
    return FU_MANY_LANES;
}

/* ---- the whole ---- */

/* Makes the choices that are left once the phases are known. */
static tn_cut_reason schedule_cpu(fu_prog *p)
{
    int vec = fu_vec(p);
    bool runtime_row = p->form == FU_ROW && p->outer == vec;
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind != FU_RANDOM) continue;
        if (!fu_full(p, v) && p->split) return TN_CUT_RANDOM; /* the finish may run along another atom */
        if (!(v->vary >> vec & 1)) continue;
        if (v->stride[vec] != 1 || (p->form == FU_ROW && (runtime_row || p->extent[vec] > FU_STASH)))
            return TN_CUT_RANDOM;
    }
    fu_choose_block(p);
    choose_stream(p);
    size_items(p);
    fu_choose_stash(p);
    int64_t width = p->extent[vec], rows = fu_count(p, p->red & ~fu_bit(vec));
    p->lanes = choose_lanes(p);
    if (!runtime_row)
        while (p->lanes > 1 && p->lanes / 2 >= width) p->lanes /= 2;
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind != FU_REDUCE || v->cross) continue;
        if (p->form == FU_COLUMN) v->vary |= fu_bit(vec);
        bool many = p->form == FU_ROW ? width < 256 && rows * width / p->lanes > 2048 && !p->split
                                      : rows > 128 && !p->split;
        v->wide = v->op == TN_OP_reduce_sum && fu_compute_dtype(v->dtype) == TN_F32 && (p->second || many);
    }
    choose_unroll(p);
    /* accumulators are arrays over the tile, whatever they add up: what uses them changes along it too */
    if (p->form == FU_COLUMN)
        TN_EACH(v, p->value, p->n_value)
            for (int k = 0; k < v->n_arg && v->kind != FU_REDUCE; k++) v->vary |= p->value[v->arg[k]].vary;
    return TN_CUT_NONE;
}

/* From a place to the next along atom a memory goes no further than a few lines. */
static bool is_near(const fu_prog *p, int a)
{
    enum { NEAR = 64 };
    TN_EACH(v, p->value, p->n_value)
        if ((v->kind == FU_LOAD || v->kind == FU_PICK) && llabs(v->stride[a]) > NEAR) return false;
    TN_EACH(s, p->store, p->n_store)
        if (llabs(s->stride[a]) > NEAR) return false;
    return true;
}

/* The atom that memory is contiguous along may be too short for a vector. If rows are, or leave some of one, the vector
 * runs along a long atom that their elements are near to, so that what each row takes besides its few elements is
 * taken once for many. If nothing is reduced and there is much to compute, it runs along the longest: arithmetic in
 * single steps takes longer than memory that jumps. */
static int vector_of(const fu_prog *p)
{
    enum { FEW = 8, WHOLE = 16, RAGGED = 64, MANY = 64, DEAR = 8 };
    const int last = fu_vec(p);
    const int64_t width = p->extent[last];
    const bool row = p->red == fu_bit(last);
    bool ragged = width % WHOLE != 0;
    int best = last, cost = 0;
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind == FU_RANDOM) return last;
        cost += v->kind == FU_OP ? fu_op_cost(v) : 0;
        ragged = ragged || fu_chooses(v);
    }
    if (p->second || p->cross || p->fold || width >= (!row ? FEW : ragged ? RAGGED : WHOLE + 1)) return last;
    if (!row && (p->red || cost < DEAR)) return last;
    for (int a = 0; a < last; a++)
        if (p->extent[a] >= MANY && p->extent[a] > p->extent[best] && (!row || is_near(p, a))) best = a;
    return best;
}

/* Returns true where there is much to compute for each element, of many, by loops of vectors. Few are as well along what
 * is contiguous, whose extent a short batch does not change. */
static bool is_dear(const fu_prog *p)
{
    enum { DEAR = 4, MANY = 1 << 10 };
    bool dear = false;
    TN_EACH(v, p->value, p->n_value) dear = dear || (v->kind == FU_OP && fu_op_cost(v) >= DEAR);
    return dear && !p->cross && !fu_can(p->c->target)->grid && fu_count(p, fu_all_atoms(p)) >= MANY;
}

static void turn_back(int64_t *stride, int64_t *shift, int a, int64_t extent)
{
    *shift += stride[a] * (extent - 1);
    stride[a] = -stride[a];
}

/* What is written from the vector's end to its begin, as a flip is, leaves the loop in single steps: then the vector
 * runs the other way, and what is read so goes through a line (blocks.c). */
static void run_forwards(fu_prog *p)
{
    const int vec = fu_vec(p);
    int back = 0;
    if (!vec || p->red >> vec & 1) return; /* the first atom's extent is known when the kernel runs */
    TN_EACH(s, p->store, p->n_store) back += s->stride[vec] < 0 ? 1 : s->stride[vec] > 0 ? -1 : 0;
    if (back <= 0) return;
    TN_EACH(v, p->value, p->n_value)
        if (v->kind == FU_RANDOM || v->kind == FU_PICK || v->kind == FU_GIVEN || fu_chooses(v)) return;
    TN_EACH(v, p->value, p->n_value) turn_back(v->stride, &v->shift, vec, p->extent[vec]);
    TN_EACH(s, p->store, p->n_store) turn_back(s->stride, &s->shift, vec, p->extent[vec]);
}

tn_cut_reason fu_schedule(fu_prog *p)
{
    p->red = p->cross = 0;
    p->n_after = 0;
    if (!p->n_atom) {
        p->n_atom = 1;
        p->extent[0] = 1;
        for (int i = 0; i < p->n_store; i++) p->store[i].dom = 1;
    }
    tn_cut_reason why = fu_cross_sets(p);
    bool turned = false;
    if (why) return why;
    fu_merge_atoms(p);
    fu_move_last(p, fu_choose_vector(p, is_dear(p)));
    fu_merge_atoms(p);
    p->fold = 0;
    if (!fu_can(p->c->target)->grid) {
        if (!few_rows(p)) fu_fold_columns(p);
        const int at = vector_of(p);
        turned = at != fu_vec(p);
        if (turned) fu_move_last(p, at);
        if (turned) fu_merge_atoms(p);
        run_forwards(p);
    }
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_REDUCE && !p->cross && p->value[i].reduces != p->red)
            return TN_CUT_REDUCED_AXES;
    for (int i = 0; i < p->n_store; i++) {
        uint32_t dom = p->store[i].dom;
        if ((dom & p->red) && (dom & p->red) != p->red) return TN_CUT_REPEATED;
    }
    int vec = fu_vec(p);
    p->outer =
        turned && p->red & 1 && !(p->red >> vec & 1) ? vec : 0; /* short rows have a length that is known */
    if (p->cross && (why = fu_cross_schedule(p))) return why;
    p->form = !p->red ? FU_POINTWISE : p->red >> vec & 1 ? FU_ROW : FU_COLUMN;
    for (int i = 0; i < p->n_store; i++) {
        /* written where the coordinates it does not have are 0 */
        fu_store *s = &p->store[i];
        uint32_t missing = (fu_bit(p->n_atom) - 1) & ~p->red & ~s->dom;
        if (!missing || store_at_zero(p, s, missing)) continue;
        bool outside =
            p->form == FU_ROW ? !(s->dom & p->red) : p->form == FU_POINTWISE && (missing >> vec & 1);
        if (!outside || s->late) return TN_CUT_REPEATED; /* others still read what it would overwrite */
    }
    if (!fu_set_phases(p)) return TN_CUT_SIZE;
    choose_tile(p);
    if (!p->cross) choose_split(p);
    if (p->split && p->n_phase > 1) return TN_CUT_SPLIT;
    for (int i = 0; i < p->n_store && p->split; i++)
        if ((p->store[i].dom | p->red) != fu_bit(p->n_atom) - 1) return TN_CUT_REPEATED;
    return fu_can(p->c->target)->grid ? fu_schedule_cuda(p) : schedule_cpu(p);
}
