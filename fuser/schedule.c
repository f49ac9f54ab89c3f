/* schedule.c - how a loop program runs: merged atoms, the vector's atom, form, phases, what is kept between
 * phases, and whether a reduction is split.
 *
 * Forms. With K the atoms that are kept and R those that are reduced:
 *   pointwise  R empty. Items are tiles of the vector atom times the other atoms, or plain elements.
 *   row        the vector atom is reduced. An item is one point of K; the R loops run once per phase.
 *   column     the vector atom is kept. An item is a tile of it; accumulators are arrays over the tile.
 * A phase is one pass over R: a value that depends on a finished reduction belongs to a later phase.
 * Split: too few items for a long R. Parts of R write partial results, a second kernel combines them in
 * order. Everything here follows from shapes alone, so results do not depend on the number of threads.
 *
 * Start with fu_schedule.
 */
#include "tile.h"

#include <string.h>

#include "fuser.h"

int fu_vec(const fu_prog *p)
{
    return p->n_atom - 1;
}

int64_t fu_count(const fu_prog *p, uint32_t atoms)
{
    int64_t k = 1;
    for (int i = 0; i < p->n_atom; i++)
        if (atoms & fu_bit(i)) k *= p->extent[i];
    return k;
}

bool fu_full(const fu_prog *p, const fu_value *v)
{
    return p->form == FU_POINTWISE ? v->vary >> fu_vec(p) & 1 : (v->vary & p->red) != 0;
}

/* ---- atoms ---- */

static uint32_t move_bits(uint32_t m, const int *position, int n)
{
    uint32_t out = 0;
    for (int i = 0; i < n; i++)
        if (m & fu_bit(i)) out |= fu_bit(position[i]);
    return out;
}

static void move_strides(int64_t *s, const int *position, int n)
{
    int64_t old[FU_MAX_ATOMS];
    memcpy(old, s, sizeof old);
    memset(s, 0, sizeof old);
    for (int i = 0; i < n; i++) s[position[i]] = old[i];
}

void fu_reorder(fu_prog *p, const int *position)
{
    int n = p->n_atom;
    move_strides(p->extent, position, n);
    p->red = move_bits(p->red, position, n);
    p->cross = move_bits(p->cross, position, n);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        move_strides(v->stride, position, n);
        v->vary = move_bits(v->vary, position, n);
        v->reduces = move_bits(v->reduces, position, n);
        v->space = move_bits(v->space, position, n);
    }
    for (int i = 0; i < p->n_store; i++) {
        move_strides(p->store[i].stride, position, n);
        p->store[i].dom = move_bits(p->store[i].dom, position, n);
    }
}

static bool strided(const fu_value *v)
{
    return v->kind == FU_LOAD || v->kind == FU_PICK || v->kind == FU_IOTA || v->kind == FU_RANDOM ||
           v->kind == FU_INSIDE || v->kind == FU_GIVEN || v->op == TN_OP_reduce_argmax ||
           v->op == TN_OP_reduce_argmin;
}

/* Whether the test v of the coordinate that atom a counts can be one of the place among the short lines
 * that the next atom counts. */
static bool scalable(const fu_prog *p, const fu_value *v, int a)
{
    enum { SHORT = 64 };
    return v->kind == FU_INSIDE && v->stride[a] == 1 && !v->stride[a + 1] && p->extent[a + 1] < SHORT;
}

/* Whether atoms a and a + 1 are walked as one by everything. */
static bool mergeable(const fu_prog *p, int a)
{
    int b = a + 1;
    if ((p->red >> a & 1) != (p->red >> b & 1)) return false;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        if (strided(v) && v->stride[a] != v->stride[b] * p->extent[b] && (p->red || !scalable(p, v, a)))
            return false;
        if (v->kind == FU_REDUCE && ((v->space >> a & 1) != (v->space >> b & 1))) return false;
    }
    for (int i = 0; i < p->n_store; i++) {
        const fu_store *s = &p->store[i];
        if ((s->dom >> a & 1) != (s->dom >> b & 1) || s->stride[a] != s->stride[b] * p->extent[b])
            return false;
    }
    return true;
}

/* The tests of atom a become tests of it and the next one together, also for what depends on them. */
static void scale_tests(fu_prog *p, int a)
{
    for (int i = 0; i < p->n_value && !p->red; i++) {
        fu_value *v = &p->value[i];
        if (scalable(p, v, a)) {
            int64_t by = p->extent[a + 1];
            for (int k = 0; k < p->n_atom; k++) v->stride[k] *= by;
            v->stride[a + 1] = 1;
            v->shift *= by;
            v->extent *= by;
            v->vary |= fu_bit(a + 1);
        }
        for (int k = 0; k < v->n_arg; k++) v->vary |= p->value[v->arg[k]].vary;
    }
}

static void merge_atoms(fu_prog *p)
{
    for (int a = 0; a + 1 < p->n_atom;) {
        if (!mergeable(p, a)) {
            a++;
            continue;
        }
        /* the pair takes the outer one's place and the inner one's strides */
        scale_tests(p, a);
        int position[FU_MAX_ATOMS], last = p->n_atom - 1;
        int64_t both = p->extent[a] * p->extent[a + 1];
        for (int i = 0; i < p->n_atom; i++) position[i] = i < a ? i : i == a ? last : i - 1;
        fu_reorder(p, position);
        p->extent[a] = both;
        p->n_atom = last;
        uint32_t gone = ~fu_bit(last);
        p->red &= gone;
        p->cross &= gone;
        for (int i = 0; i < p->n_value; i++) {
            p->value[i].vary &= gone;
            p->value[i].reduces &= gone;
            p->value[i].space &= gone;
            p->value[i].stride[last] = 0;
        }
        for (int i = 0; i < p->n_store; i++) {
            p->store[i].dom &= gone;
            p->store[i].stride[last] = 0;
        }
    }
}

static int bits(uint32_t m)
{
    int k = 0;
    for (; m; m &= m - 1) k++;
    return k;
}

/* The atom along which most of what is read and written lies contiguous, counted in elements. */
static int choose_vector(const fu_prog *p)
{
    int best = p->n_atom - 1;
    int64_t best_score = -1;
    for (int a = p->n_atom - 1; a >= 0; a--) {
        int64_t score = 0;
        for (int i = 0; i < p->n_value; i++) {
            const fu_value *v = &p->value[i];
            if (v->kind == FU_RANDOM && v->stride[a] == 1) score += 8 * fu_count(p, v->vary);
            if ((v->kind == FU_LOAD || v->kind == FU_PICK) && v->stride[a] == 1)
                score += fu_count(p, v->vary);
        }
        for (int i = 0; i < p->n_store; i++)
            if (p->store[i].stride[a] == 1) score += fu_count(p, p->store[i].dom) + 1;
        if (score > best_score) {
            best_score = score;
            best = a;
        }
    }
    return best;
}

static void move_last(fu_prog *p, int a)
{
    int position[FU_MAX_ATOMS];
    for (int i = 0; i < p->n_atom; i++) position[i] = i < a ? i : i == a ? p->n_atom - 1 : i - 1;
    fu_reorder(p, position);
}

/* ---- costs ---- */

int fu_row_cost(tn_op op)
{
    double work = tn_op_get(op)->work;
    return work > 15 ? 10 : work > 5 ? 4 : 1;
}

int fu_op_cost(const fu_value *v)
{
    switch (v->kind) {
    case FU_NUMBER:
    case FU_SCALAR:
    case FU_IOTA:
        return 0;
    case FU_RANDOM:
        return v->op == TN_OP_normal ? 30 : 8;
    case FU_PICK:
        return 4;
    case FU_OP:
        return v->op == TN_OP_cast || v->op == TN_OP_contiguous ? 0 : fu_row_cost(v->op);
    default:
        return 1;
    }
}

/* Cost of computing v anew in a later phase: everything below it inside the loops. */
int fu_again_cost(const fu_prog *p, int id, uint64_t *seen)
{
    const fu_value *v = &p->value[id];
    if (seen[id >> 6] >> (id & 63) & 1) return 0;
    seen[id >> 6] |= UINT64_C(1) << (id & 63);
    if (!fu_full(p, v) || v->stash >= 0) return 0;
    int k = fu_op_cost(v);
    for (int i = 0; i < v->n_arg; i++) k += fu_again_cost(p, v->arg[i], seen);
    return k;
}

/* ---- phases ---- */

static void mark_need(fu_prog *p, int id, int phase)
{
    fu_value *v = &p->value[id];
    if (!fu_full(p, v)) {
        if (!v->used) {
            v->used = true;
            if (v->kind != FU_REDUCE)
                for (int i = 0; i < v->n_arg; i++) mark_need(p, v->arg[i], phase);
        }
        return;
    }
    if (v->need >> phase & 1) return;
    v->need |= 1u << phase;
    v->used = true;
    if (v->stash >= 0 && phase > v->stash) return; /* read back */
    for (int i = 0; i < v->n_arg; i++) mark_need(p, v->arg[i], phase);
}

void fu_mark_needs(fu_prog *p)
{
    for (int i = 0; i < p->n_value; i++) {
        p->value[i].need = 0;
        p->value[i].used = false;
    }
    for (int i = 0; i < p->n_store; i++) {
        mark_need(p, p->store[i].value, p->store[i].phase);
        if (p->store[i].mask >= 0) mark_need(p, p->store[i].mask, p->store[i].phase);
    }
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_REDUCE) {
            p->value[i].used = true;
            mark_need(p, p->value[i].arg[0], p->value[i].phase - !p->value[i].cross);
        }
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].stash >= 0) mark_need(p, i, p->value[i].stash);
}

bool fu_store_full(const fu_prog *p, const fu_store *s)
{
    return p->form == FU_POINTWISE ? s->dom >> fu_vec(p) & 1 : (s->dom & p->red) != 0;
}

static bool set_phases(fu_prog *p)
{
    p->n_phase = 0;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        v->phase = 0;
        for (int k = 0; k < v->n_arg; k++)
            if (p->value[v->arg[k]].phase > v->phase) v->phase = p->value[v->arg[k]].phase;
        if (v->cross && v->vary & p->red && v->phase + 1 > p->n_phase) p->n_phase = v->phase + 1;
        if (v->kind == FU_REDUCE && !v->cross && ++v->phase > p->n_phase) p->n_phase = v->phase;
    }
    for (int i = 0; i < p->n_store; i++) {
        fu_store *s = &p->store[i];
        s->phase = p->value[s->value].phase;
        bool full = fu_store_full(p, s);
        if (full && s->phase + 1 > p->n_phase) p->n_phase = s->phase + 1;
    }
    for (int i = 0; i < p->n_store; i++) {
        fu_store *s = &p->store[i];
        bool full = fu_store_full(p, s);
        if (s->late) s->phase = full ? p->n_phase - 1 : p->n_phase;
    }
    if (p->form == FU_POINTWISE) p->n_phase = 1;
    return p->n_phase <= FU_MAX_PHASES;
}

/* Expensive values that several phases use are computed once and kept. */
static void choose_stash(fu_prog *p)
{
    uint32_t vec = fu_bit(fu_vec(p));
    int64_t row = p->form == FU_ROW ? fu_count(p, p->red) : fu_count(p, p->red) * p->tile;
    bool runtime = p->outer >= 0 && (p->red >> p->outer & 1);
    fu_mark_needs(p);
    if (p->split || p->n_phase < 2 || runtime || row > FU_STASH) return;
    int kept = 0;
    for (int i = p->n_value - 1; i >= 0 && kept < 4; i--) {
        fu_value *v = &p->value[i];
        if (v->kind == FU_LOAD || !(v->vary & vec) || bits(v->need) < 2) continue;
        uint64_t seen[(FU_MAX_VALUES + 63) / 64] = {0};
        if (fu_again_cost(p, i, seen) < 6) continue;
        int first = 0;
        while (!(v->need >> first & 1)) first++;
        v->stash = first;
        kept++;
        fu_mark_needs(p);
    }
}

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

/* ---- the whole ---- */

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
        if (p->block >= 0 && p->extent[p->block])
            outer = outer / p->extent[p->block] * ((p->extent[p->block] + FU_BLOCK - 1) / FU_BLOCK);
        p->items = p->tile ? outer * ((width + p->tile - 1) / p->tile) : width;
        per_item = p->tile ? p->tile * (p->block >= 0 ? FU_BLOCK : 1) : 1;
    } else if (p->form == FU_ROW) {
        p->tile = 0;
        p->items = fu_count(p, keep) * (p->split ? p->parts : 1);
        per_item = p->split ? FU_PART : fu_count(p, p->red);
    } else {
        int64_t tiles = (width + p->tile - 1) / p->tile;
        p->items = fu_count(p, keep & ~fu_bit(vec)) * tiles * (p->split ? p->parts : 1);
        per_item = p->tile * (p->split ? p->part : fu_count(p, p->red));
    }
    if (per_item < 1) per_item = 1;
    p->chunk = 32768 / per_item;
    if (p->chunk < 1) p->chunk = 1;
    if (p->cross) p->chunk = p->part; /* a chunk begins where a part does */
    if (!p->tile && p->form == FU_POINTWISE) p->chunk = 16384;
}

/* Column: as wide as the accumulators may be to stay in L1, since rows are read best from end to end; narrow
 * where later phases come back to the same elements. */
static void choose_tile(fu_prog *p)
{
    int reductions = 0;
    for (int i = 0; i < p->n_value; i++) reductions += p->value[i].kind == FU_REDUCE;
    int64_t most = p->n_phase > 1 ? 256 : reductions <= 2 ? 2048 : reductions <= 4 ? 1024 : 512;
    int64_t width = p->extent[fu_vec(p)], tiles = (width + most - 1) / most;
    p->tile = tiles > 1 ? ((width + tiles - 1) / tiles + 63) / 64 * 64 : width > 0 ? width : 1;
}

/* A load that jumps along the vector but is contiguous along another atom is read in blocks of both. */
void fu_choose_block(fu_prog *p)
{
    int vec = fu_vec(p);
    p->block = -1;
    for (int i = 0; i < p->n_value; i++) p->value[i].staged = false;
    if (p->form != FU_POINTWISE || p->n_atom < 2 || p->extent[vec] < 8) return;
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_RANDOM) return;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (v->kind != FU_LOAD || v->n_arg || v->shift || v->stride[vec] == 0 || v->stride[vec] == 1 ||
            v->stride[vec] == -1)
            continue;
        for (int a = 0; a < vec; a++)
            if (v->stride[a] == 1 && p->extent[a] >= 8 && (p->block < 0 || p->block == a)) {
                p->block = a;
                v->staged = true;
            }
    }
}

/* Adding several rows at once saves accumulator traffic. Not where something would be computed per element
 * that is now computed per row. */
static void choose_unroll(fu_prog *p)
{
    int vec = fu_vec(p), work = 0;
    p->unroll = 1;
    if (p->form != FU_COLUMN) return;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        if (v->kind == FU_RANDOM || v->kind == FU_INDEX || v->op == TN_OP_reduce_argmax ||
            v->op == TN_OP_reduce_argmin)
            return;
        if (!fu_full(p, v)) continue;
        work += fu_op_cost(v);
        if (!(v->vary >> vec & 1) && fu_op_cost(v) > 1) return;
    }
    p->unroll = work <= 4 ? 8 : work <= 16 ? 4 : 1;
}

/* What the whole loop reads and writes, each element once. */
static int64_t touched(const fu_prog *p)
{
    int64_t bytes = 0;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        if (v->kind == FU_LOAD) bytes += fu_count(p, v->vary) * (int64_t)tn_dtype_size(v->dtype);
    }
    for (int i = 0; i < p->n_store; i++)
        bytes += fu_count(p, p->store[i].dom) * (int64_t)tn_dtype_size(p->store[i].dtype);
    return bytes;
}

/* Results that no cache will hold until they are read are written past it, where a loop that only stores
 * writes them from end to end: those that are too large for it, and those of a loop that touches more than it
 * holds, if they are large enough to matter. What is updated in place was just read and is at hand. */
static void choose_stream(fu_prog *p)
{
    int vec = fu_vec(p);
    bool floods = touched(p) > p->last_bytes;
    p->stream = false;
    for (int i = 0; i < p->n_store; i++) {
        fu_store *s = &p->store[i];
        int64_t bytes = fu_count(p, s->dom) * (int64_t)tn_dtype_size(s->dtype);
        bool plain = p->form == FU_POINTWISE;
        if (p->form == FU_ROW && (s->dom & p->red)) {
            plain = true;
            for (int k = 0; k < p->n_value; k++)
                if (p->value[k].kind == FU_REDUCE && !p->value[k].cross && p->value[k].phase == s->phase + 1)
                    plain = false;
        }
        s->stream = plain && !s->late && s->mask < 0 && !s->shift && s->stride[vec] == 1 &&
                    p->extent[vec] >= 64 && (bytes > p->last_bytes || (floods && bytes > p->last_bytes / 8));
        p->stream = p->stream || s->stream;
    }
}

static void choose_split(fu_prog *p)
{
    int vec = fu_vec(p);
    uint32_t keep = ~p->red & (fu_bit(p->n_atom) - 1);
    int64_t k = fu_count(p, keep), r = fu_count(p, p->red);
    p->split = false;
    p->part = p->parts = 1;
    if (p->second || p->form == FU_POINTWISE) return;
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].op == TN_OP_reduce_argmax || p->value[i].op == TN_OP_reduce_argmin) return;
    if (p->form == FU_ROW) {
        int64_t outer = fu_count(p, p->red & ~fu_bit(vec));
        p->split = k < 32 && r > 4 * FU_PART;
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

/* Chains of additions wait for one another: a loop that does little else wants more of them side by side. */
static int choose_lanes(const fu_prog *p)
{
    int work = 0, reductions = 0;
    for (int i = 0; i < p->n_value; i++) {
        reductions += p->value[i].kind == FU_REDUCE && !p->value[i].cross;
        if (p->value[i].op == TN_OP_reduce_argmax || p->value[i].op == TN_OP_reduce_argmin) return FU_LANES;
        if (fu_full(p, &p->value[i])) work += fu_op_cost(&p->value[i]);
    }
    return reductions == 1 && work <= 4 && !p->split && p->extent[fu_vec(p)] >= 512 ? FU_MANY_LANES
                                                                                    : FU_LANES;
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
    if (why) return why;
    for (int i = 0; i < p->n_store; i++) {
        uint32_t dom = p->store[i].dom;
        if ((dom & p->red) && (dom & p->red) != p->red) return TN_CUT_REPEATED;
    }
    merge_atoms(p);
    move_last(p, choose_vector(p));
    merge_atoms(p);
    int vec = fu_vec(p);
    p->outer = 0;
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
    if (!set_phases(p)) return TN_CUT_SIZE;
    choose_tile(p);
    if (!p->cross) choose_split(p);
    if (p->split && p->n_phase > 1) return TN_CUT_SPLIT;
    for (int i = 0; i < p->n_store && p->split; i++)
        if ((p->store[i].dom | p->red) != fu_bit(p->n_atom) - 1) return TN_CUT_REPEATED;
    if (p->c->target->dialect == TN_DIALECT_CUDA) return fu_schedule_cuda(p);
    bool runtime_row = p->form == FU_ROW && p->outer == vec;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        if (v->kind != FU_RANDOM) continue;
        if (!fu_full(p, v) && p->split) return TN_CUT_RANDOM; /* the finish may run along another atom */
        if (!(v->vary >> vec & 1)) continue;
        if (v->stride[vec] != 1 || (p->form == FU_ROW && (runtime_row || p->extent[vec] > FU_STASH)))
            return TN_CUT_RANDOM;
    }
    fu_choose_block(p);
    choose_stream(p);
    size_items(p);
    choose_stash(p);
    int64_t width = p->extent[vec], rows = fu_count(p, p->red & ~fu_bit(vec));
    p->lanes = choose_lanes(p);
    if (!runtime_row)
        while (p->lanes > 1 && p->lanes / 2 >= width) p->lanes /= 2;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (v->kind != FU_REDUCE || v->cross) continue;
        if (p->form == FU_COLUMN) v->vary |= fu_bit(vec);
        bool many = p->form == FU_ROW ? width < 256 && rows * width / p->lanes > 2048 && !p->split
                                      : rows > 2048 && !p->split;
        v->wide = v->op == TN_OP_reduce_sum && fu_compute_dtype(v->dtype) == TN_F32 && (p->second || many);
    }
    choose_unroll(p);
    /* accumulators are arrays over the tile, whatever they add up: what uses them changes along it too */
    if (p->form == FU_COLUMN)
        for (int i = 0; i < p->n_value; i++) {
            fu_value *v = &p->value[i];
            for (int k = 0; k < v->n_arg && v->kind != FU_REDUCE; k++) v->vary |= p->value[v->arg[k]].vary;
        }
    return TN_CUT_NONE;
}

/* ---- in a convolution's kernel ---- */

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

tn_cut_reason fu_schedule_tile(fu_prog *p, int64_t columns, int pack)
{
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
        merge_atoms(p);
        p->red = 0;
    }
    int vec = fu_vec(p);
    if (vec < 0 || p->extent[vec] != columns) return TN_CUT_SHAPES;
    p->form = FU_POINTWISE;
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].dom != fu_bit(p->n_atom) - 1) return TN_CUT_REPEATED;
    p->outer = 0;
    p->split = p->stream = false;
    p->part = p->parts = p->chunk = p->items = 1;
    p->tile = 0;
    p->block = -1;
    p->unroll = p->ahead = p->lanes = p->team = 1;
    p->held = 0;
    p->pack = pack;
    p->threads = 0;
    for (int i = 0; i < p->n_value; i++) {
        p->value[i].stash = -1;
        p->value[i].array = p->value[i].staged = false;
    }
    if (!set_phases(p)) return TN_CUT_SIZE;
    fu_mark_packs(p);
    fu_mark_needs(p);
    return TN_CUT_NONE;
}

/* ---- second stage ---- */

void fu_second_stage(const fu_prog *first, fu_prog *q, const int *scratch)
{
    /* atoms: the parts, then those that are kept */
    int position[FU_MAX_ATOMS], n = 1, map[FU_MAX_VALUES];
    int64_t dense[FU_MAX_ATOMS] = {0}, total = 1;
    memset(q, 0, offsetof(fu_prog, value));
    q->n_value = q->n_store = 0;
    q->c = first->c;
    q->threads = first->threads;
    q->last_bytes = first->last_bytes;
    q->second = true;
    q->extent[0] = first->parts;
    for (int i = 0; i < first->n_atom; i++) {
        position[i] = -1;
        if (first->red >> i & 1) continue;
        position[i] = n;
        q->extent[n++] = first->extent[i];
    }
    q->n_atom = n;
    for (int i = n - 1; i > 0; i--) {
        dense[i] = total;
        total *= q->extent[i];
    }
    dense[0] = total;
    uint32_t all = fu_bit(n) - 1;
    for (int i = 0; i < first->n_value; i++) {
        const fu_value *v = &first->value[i];
        map[i] = -1;
        if (!v->used || fu_full(first, v)) continue;
        fu_value *w = &q->value[q->n_value++];
        *w = *v;
        w->need = 0;
        w->used = w->array = w->wide = false;
        w->stash = -1;
        if (v->kind == FU_REDUCE) {
            memset(w, 0, sizeof *w);
            w->kind = FU_LOAD;
            w->dtype = w->from = v->dtype == TN_F16 || v->dtype == TN_BF16 ? TN_F32 : v->dtype;
            w->slot = scratch[i];
            w->node = w->stash = -1;
            w->hint = "partial";
            memcpy(w->stride, dense, sizeof dense);
            w->vary = all;
            fu_value *r = &q->value[q->n_value++];
            *r = *v;
            r->stash = -1;
            r->need = 0;
            r->from = w->dtype;
            r->arg[0] = (int)(w - q->value);
            memset(r->stride, 0, sizeof r->stride);
            r->reduces = 1;
            r->space = all;
            r->vary = all & ~1u;
            map[i] = (int)(r - q->value);
            continue;
        }
        memset(w->stride, 0, sizeof w->stride);
        w->vary = 0;
        for (int a = 0; a < first->n_atom; a++)
            if (position[a] >= 0) {
                w->stride[position[a]] = v->stride[a];
                if (v->vary >> a & 1) w->vary |= fu_bit(position[a]);
            }
        for (int k = 0; k < v->n_arg; k++) w->arg[k] = map[v->arg[k]];
        map[i] = (int)(w - q->value);
    }
    for (int i = 0; i < first->n_store; i++) {
        const fu_store *s = &first->store[i];
        if (s->dom & first->red) continue;
        fu_store *o = &q->store[q->n_store++];
        *o = *s;
        o->value = map[s->value];
        o->dom = 0;
        memset(o->stride, 0, sizeof o->stride);
        for (int a = 0; a < first->n_atom; a++)
            if (position[a] >= 0) {
                o->stride[position[a]] = s->stride[a];
                if (s->dom >> a & 1) o->dom |= fu_bit(position[a]);
            }
    }
    fu_schedule(q); /* one reduction over the first atom: always possible */
}
