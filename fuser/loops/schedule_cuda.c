/* schedule_cuda.c - how a loop program runs on a GPU. schedule.c has merged the atoms, chosen the vector's
 * one and set form and phases; here follow packs, teams, what threads keep, parts, and the sizes of blocks.
 *
 *   pack        elements side by side along the vector's atom that a thread reads, computes and writes
 *               together: 16 bytes of what is widest, fewer where the atom's extent is no multiple of it. An
 *               operand that is not aligned so far is read one by one.
 *   pointwise   an item is a pack.
 *   row         an item is a row, walked by a team of threads: part of a warp, a warp, or a block for rows so
 *               long that a warp could not keep in registers what later phases need of them. Rows that no
 *               block could keep are read again in each phase.
 *   column      an item is a tile of columns; a block is some packs of columns wide and walks the rows with
 *               the rest of its threads.
 *
 * Too few items for the processors are split in parts, whose results a second launch combines.
 * A program that also sums over its rows (cross.c) has one part for each team. Everything follows from shapes
 * and the device's numbers, never from how blocks happen to run.
 *
 * Start with fu_schedule_cuda.
 */
#include "schedule.h"
#include "tile.h"
#include "../../src/core/int64.h"

enum {
    BLOCK = 256, /* threads of a block where nothing else decides */
    MOST_THREADS = 1024,
    WARP = 32,
    LINE = 8,        /* packs of 16 bytes in what caches are asked for at once, */
    SECTOR = 8,      /* and floats in the least that memory brings */
    KEEP = 40,       /* registers for what a thread keeps of a row, and */
    KEEP_LARGE = 30, /* in blocks of MOST_THREADS, whose threads have but 64 each, */
    KEEP_LEAN = 16,  /* and where the compiler was found to spill; LEAN_THREADS leave each thread more */
    LEAN_THREADS = 128,
    ADDED = 4096 /* elements that one accumulator adds up in f32, at most */
};

static int power_of_two(int64_t n, int most)
{
    int k = 1;
    while (k < most && k < n) k *= 2;
    return k;
}

bool fu_lean(const fu_prog *p)
{
    for (int i = 0; i < p->n_value; i++) {
        const int node = p->value[i].node;
        if (node >= 0 && node < p->c->n_node && p->c->seg->root[node] & TN_SEG_LEAN) return true;
    }
    return false;
}

/* ---- packs ---- */

/* Returns the position of element `offset` of a slot, counted in elements from where its memory was
 * allocated. */
int64_t fu_position(const fu_ctx *c, int slot, int64_t offset)
{
    const tn_tensor *t = NULL;
    if (slot >= c->n_node && slot < c->n_node + c->n_leaf) t = c->seg->leaf[slot - c->n_node];
    if (slot >= 0 && slot < c->n_node) {
        t = c->node[slot].t;
        t = tn_kind_of(t) == TN_KIND_ASSIGN ? fu_value_of(c, t->in[0]) : t->place;
    }
    return t ? tn_node_first(t) + offset : offset;
}

static bool along(const fu_prog *p, const int64_t *stride) { return stride[fu_vec(p)] == 1; }

static bool multiples(const fu_prog *p, const int64_t *stride)
{
    for (int a = 0; a < fu_vec(p); a++)
        if (stride[a] % p->pack) return false;
    return true;
}

static bool is_load(const fu_value *v) { return v->kind == FU_LOAD || v->kind == FU_PICK; }

static void choose_pack(fu_prog *p)
{
    int vec = fu_vec(p);
    size_t most = 0;
    bool words = false;
    TN_EACH(v, p->value, p->n_value) {
        if (!is_load(v) || !along(p, v->stride)) continue;
        size_t size = tn_dtype_size(v->dtype);
        most = size > most ? size : most;
        words = words || size == 4;
    }
    for (int i = 0; i < p->n_store; i++) {
        if (!(p->store[i].dom >> vec & 1) || !along(p, p->store[i].stride)) continue;
        size_t size = tn_dtype_size(p->store[i].dtype);
        most = size > most ? size : most;
        words = words || size == 4;
    }
    int bytes = p->c->target->vector_bytes > 0 ? p->c->target->vector_bytes : 16;
    p->pack = most == 0 || p->block >= 0 ? 1 : bytes / (int)(words ? 4 : most == 1 ? 2 : most);
    bool tails = p->outer == vec && p->form != FU_COLUMN; /* the kernel sees to what is left over */
    while (p->pack > 1 && !tails && p->extent[vec] % p->pack) p->pack /= 2;
    fu_mark_packs(p);
}

void fu_mark_packs(fu_prog *p)
{
    int vec = fu_vec(p);
    TN_EACH(v, p->value, p->n_value) {
        v->packed = p->pack > 1 && is_load(v) && along(p, v->stride) && multiples(p, v->stride) &&
                    (fu_position(p->c, v->slot, v->offset) + v->shift) % p->pack == 0 &&
                    (v->kind == FU_PICK || !v->n_arg); /* what is not read everywhere goes one by one */
        if (v->kind == FU_PICK)
            v->packed = v->packed && v->pick % p->pack == 0 && !(p->value[v->arg[0]].vary >> vec & 1);
    }
    TN_EACH(s, p->store, p->n_store) {
        s->packed = p->pack > 1 && s->dom >> vec & 1 && s->mask < 0 && along(p, s->stride) &&
                    multiples(p, s->stride) &&
                    (fu_position(p->c, s->slot, s->offset) + s->shift) % p->pack == 0;
    }
}

/* ---- what is kept of a row ---- */

/* Marks what threads keep between phases: operands read again, and what is dear to compute. Returns the most
 * of it that is alive at once, in registers for each element. */
static int choose_stash(fu_prog *p)
{
    uint32_t kept = ~p->red & (fu_bit(p->n_atom) - 1);
    bool alone = fu_count(p, kept) == 1;
    for (int i = 0; i < p->n_value; i++) p->value[i].stash = -1;
    fu_mark_needs(p);
    for (int i = p->n_value - 1; i >= 0; i--) {
        fu_value *v = &p->value[i];
        uint64_t seen[(FU_MAX_VALUES + 63) / 64] = {0};
        if (!(v->need & (v->need - 1)) || !fu_full(p, v)) continue;
        /* a row that all items share stays in the cache by itself */
        bool read = is_load(v) && ((v->vary & kept) || alone);
        if (!read && (is_load(v) || fu_again_cost(p, i, seen) < 6)) continue;
        v->stash = __builtin_ctz(v->need);
        fu_mark_needs(p);
    }
    int most = 0;
    for (int after = 0; after + 1 < p->n_phase; after++) {
        int alive = 0;
        TN_EACH(v, p->value, p->n_value) {
            if (v->stash >= 0 && v->stash <= after && v->need >> (after + 1))
                alive += tn_dtype_size(v->dtype) == 8 ? 2 : 1;
        }
        most = alive > most ? alive : most;
    }
    return most;
}

static int wide_sums(const fu_prog *p)
{
    int n = 0;
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].cross && fu_cross_width(p, &p->value[i]) > 1)
            n += tn_dtype_size(p->value[i].dtype) == 8 ? 2 : 1;
    return n;
}

/* Sums of f32 that one accumulator would add too much to are carried with what they round away, as are those
 * of the finish. */
static void sum_wide(fu_prog *p, bool many)
{
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind == FU_REDUCE && !v->cross)
            v->wide =
                (p->second || many) && v->op == TN_OP_reduce_sum && fu_compute_dtype(v->dtype) == TN_F32;
    }
}

/* ---- forms ---- */

/* Tiles that would not fit in shared memory together are done without. */
static void fit_tiles(fu_prog *p)
{
    int64_t room = p->c->target->shared_bytes > 0 ? p->c->target->shared_bytes : 32 << 10;
    TN_EACH(v, p->value, p->n_value) {
        if (!v->staged) continue;
        room -= FU_BLOCK * (FU_BLOCK + 1) * (int64_t)tn_dtype_size(v->dtype);
        if (room < 0) v->staged = false;
    }
}

/* A block of threads takes a tile of FU_BLOCK by FU_BLOCK elements, one at a time. */
static void schedule_block(fu_prog *p)
{
    int64_t tiles = 1;
    for (int a = 0; a < p->n_atom; a++)
        tiles *= a == p->block || a == fu_vec(p) ? tn_ceil_div(p->extent[a], FU_BLOCK) : p->extent[a];
    fit_tiles(p);
    p->team = 1;
    p->items = tiles;
    p->chunk = 1;
}

static void schedule_pointwise(fu_prog *p)
{
    if (p->block >= 0) {
        schedule_block(p);
        return;
    }
    int64_t width = p->extent[fu_vec(p)], outer = fu_count(p, ~fu_bit(fu_vec(p)) & (fu_bit(p->n_atom) - 1));
    int loads = 0, work = 0;
    for (int i = 0; i < p->n_value; i++) {
        loads += p->value[i].packed;
        work += fu_op_cost(&p->value[i]);
    }
    p->team = 1;
    p->ahead = loads && loads <= 2 && work <= 40 && !fu_lean(p) ? 2 : 1;
    p->items = outer * tn_ceil_div(width, p->pack);
    p->chunk = (int64_t)p->threads * p->ahead;
}

/* Parts of `work` (packs of a row, or rows) for `items` that alone would leave processors idle; each keeps
 * `threads` busy for some rounds. */
static void choose_parts(fu_prog *p, int64_t items, int64_t work, int threads, int64_t most)
{
    enum { BLOCKS = 4 }; /* on a processor, so that enough reads are on their way */
    int64_t want = BLOCKS * (int64_t)(p->c->target->processors > 0 ? p->c->target->processors : 64);
    p->split = false;
    p->part = p->parts = 1;
    if (p->second || p->n_phase != 1 || p->cross || items < 1) return;
    TN_EACH(v, p->value, p->n_value) {
        if (fu_chooses(v)) return;
        if (v->kind == FU_RANDOM && !fu_full(p, v)) return;
    }
    for (int i = 0; i < p->n_store; i++)
        if ((p->store[i].dom | p->red) != fu_bit(p->n_atom) - 1) return;
    int64_t parts = tn_ceil_div(want, items), least = 8 * (int64_t)threads;
    if (parts > work / least) parts = work / least;
    if (parts < tn_ceil_div(work, most)) parts = tn_ceil_div(work, most);
    if (parts < 2) return;
    p->split = true;
    p->part = tn_ceil_div(work, parts);
    p->parts = tn_ceil_div(work, p->part);
}

/* Sums beyond those that a norm and its gradient have: each takes registers from what is kept. */
static int more_sums(const fu_prog *p)
{
    enum { USUAL = 4 };
    int n = 0;
    for (int i = 0; i < p->n_value; i++) n += p->value[i].kind == FU_REDUCE;
    return n > USUAL ? 2 * (n - USUAL) : 0;
}

/* Items that lie side by side, each in pieces much shorter than a line of memory (a group's channels, pixel
 * by pixel), are taken by one block: as many as fill a line, or as leave every processor a block, up to
 * `most`. */
static int items_abreast(const fu_prog *p, int64_t items, int most)
{
    enum { WHOLE = 128 };
    const int vec = fu_vec(p);
    int last = p->n_atom - 1, n = 1;
    size_t size = 8;
    bool beside = false;
    while (last >= 0 && (p->red >> last & 1 || last == vec)) last--;
    if (last < 0 || last == p->outer || p->cross || p->split || p->second) return 1;
    TN_EACH(v, p->value, p->n_value) {
        if (fu_chooses(v)) return 1;
        if (!is_load(v) || !fu_full(p, v) || !along(p, v->stride)) continue;
        beside = beside || v->stride[last] == p->extent[vec];
        if (tn_dtype_size(v->dtype) < size) size = tn_dtype_size(v->dtype);
    }
    while (beside && n * p->extent[vec] * (int64_t)size < WHOLE && p->extent[last] % (2 * n) == 0 &&
           items / (2 * n) >= p->c->target->processors && 2 * n <= most)
        n *= 2;
    return n;
}

static void schedule_row(fu_prog *p)
{
    uint32_t keep = ~p->red & (fu_bit(p->n_atom) - 1);
    int64_t items = fu_count(p, keep), packs = tn_ceil_div(fu_count(p, p->red), p->pack);
    bool runtime = p->red >> p->outer & 1, lean = fu_lean(p);
    const int block = p->threads, sums = more_sums(p);
    p->held = 0;
    p->team = p->second ? p->threads : 0;
    int kept = choose_stash(p) + wide_sums(p);
    if (!p->second && !runtime && packs > 0) {
        for (int team = power_of_two(packs, WARP); team <= MOST_THREADS && !p->team; team *= 2) {
            int64_t held = tn_ceil_div(packs, team);
            int64_t budget = (lean ? KEEP_LEAN : team == MOST_THREADS ? KEEP_LARGE : KEEP) - sums;
            int64_t need = held * (p->pack * (kept ? kept : 1) + 1); /* one for the address */
            if (team < WARP ? held > 1 : need > budget) continue;
            p->team = team;
            p->held = (int)held;
        }
    }
    if (!p->team) p->team = runtime || lean ? block : MOST_THREADS / 2;
    if (!p->second) choose_parts(p, items, packs, block, (int64_t)ADDED * block);
    if (p->split) {
        p->held = 0;
        p->team = block;
    }
    if (!p->held) { /* nothing is kept */
        for (int i = 0; i < p->n_value; i++) p->value[i].stash = -1;
        fu_mark_needs(p);
    }
    if (p->team >= WARP && !runtime)
        p->abreast = items_abreast(p, items, MOST_THREADS / 2 / (p->held ? p->team : WARP));
    if (p->abreast > 1 && !p->held) p->team = MOST_THREADS / 2 / p->abreast;
    if (!p->second) p->threads = p->abreast > 1 ? p->team * p->abreast : p->team > WARP ? p->team : block;
    sum_wide(p, !p->split && packs / p->team > ADDED);
    int teams = p->threads / p->team;
    p->items = items * (p->split ? p->parts : 1);
    p->chunk = teams;
    if (!p->cross) return;
    /* as many teams as the device holds at once, and few enough lines for the last block to add up */
    int processors = p->c->target->processors > 0 ? p->c->target->processors : 64;
    int blocks = (p->c->target->max_threads > 0 ? p->c->target->max_threads : 2048) / p->threads;
    int64_t all = (int64_t)processors * (blocks > 4 ? 4 : blocks < 1 ? 1 : blocks) * teams;
    p->part = tn_ceil_div(items, all);
    if (p->part > ADDED) p->part = ADDED;
    if (p->part < 1) p->part = 1;
    p->parts = tn_ceil_div(items, p->part);
    p->chunk = p->part * teams;
}

static void schedule_column(fu_prog *p)
{
    int vec = fu_vec(p);
    uint32_t keep = ~p->red & (fu_bit(p->n_atom) - 1);
    int64_t width = p->extent[vec], rows = fu_count(p, p->red);
    const int64_t packs = tn_ceil_div(width, p->pack), beside = fu_count(p, keep & ~fu_bit(vec));
    p->team = power_of_two(packs, p->second ? LINE : WARP); /* packs that a block is wide, */
    while (p->second && p->team * p->pack > SECTOR &&
           beside * tn_ceil_div(packs, p->team) < p->c->target->processors)
        p->team /= 2; /* in a finish few, so that many blocks share what it reads */
    p->tile = (int64_t)p->team * p->pack;
    int64_t items = beside * tn_ceil_div(width, p->tile);
    int lines = p->threads / p->team;
    choose_parts(p, items, rows, lines, (int64_t)ADDED * lines);
    if (p->tile == width) p->abreast = items_abreast(p, items, WARP / p->team);
    lines /= p->abreast;
    sum_wide(p, !p->split && rows / lines > ADDED);
    p->apart = !p->second && !p->split && p->abreast == 1 && rows < lines &&
               !(p->outer >= 0 && p->red >> p->outer & 1);
    p->items = items * (p->split ? p->parts : 1);
    p->chunk = p->apart ? lines : p->abreast;
    for (int i = 0; i < p->n_value; i++) p->value[i].stash = -1;
    fu_mark_needs(p);
    /* accumulators belong to columns, whatever they add up: what uses them changes along the columns too */
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind == FU_REDUCE) v->vary |= fu_bit(vec);
        for (int k = 0; k < v->n_arg && v->kind != FU_REDUCE; k++) v->vary |= p->value[v->arg[k]].vary;
    }
}

tn_cut_reason fu_schedule_cuda(fu_prog *p)
{
    bool split = p->split;
    p->threads = fu_lean(p) ? LEAN_THREADS : BLOCK;
    fu_choose_block(p);
    p->tile = 0;
    p->unroll = p->ahead = p->abreast = 1;
    p->held = 0;
    p->lanes = 1;
    p->stream = false;
    for (int i = 0; i < p->n_store; i++) p->store[i].stream = false;
    TN_EACH(v, p->value, p->n_value) {
        v->array = false;
        v->stash = -1;
        if (v->kind == FU_RANDOM && !fu_full(p, v) && split) return TN_CUT_RANDOM;
    }
    choose_pack(p);
    switch (p->form) {
    case FU_POINTWISE:
        schedule_pointwise(p);
        fu_mark_needs(p);
        break;
    case FU_ROW: schedule_row(p); break;
    case FU_COLUMN: schedule_column(p); break;
    }
    return TN_CUT_NONE;
}
