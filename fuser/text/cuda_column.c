/* cuda_column.c - the nest where the vector's atom is kept and others are reduced: a block takes a tile
 * of columns, a few packs wide, and its threads walk the rows side by side. What the threads of a column have
 * added up is combined in shared memory, by halves, and every one of them gets the total.
 *
 *     const int x0 = (int)threadIdx.x % 32, y0 = (int)threadIdx.x / 32;       sum over the rows of [n, 512]
 *     const int64_t v0 = (tile * 32 + x0) * 4;
 *     float sum_acc[4];
 *     for (int64_t j = y0; j < n0; j += 8) {...}
 *     tn_columns_reduce<tn_sum_of, 32, 8>(sum_acc);
 *     if (y0 == 0) out[v0 + l] = sum_acc[l];
 *
 * Between two phases each thread computes, for its columns, what later phases need of finished reductions.
 * Items side by side that are narrow share a block (fu_prog.abreast): x0 is then a pack of the thread's item.
 * Where there are fewer rows than threads to walk them, as in the windows of a pooling, each y0 has an item
 * of its own and walks all of its rows (fu_prog.apart).
 *
 * Start with fu_cuda_column.
 */
#include "cuda.h"

#include <stdio.h>

/* Threads side by side, and lines of them. */
static int across(const fu_prog *p) { return p->team * p->abreast; }
static int lines(const fu_prog *p) { return p->threads / across(p); }

/* Of the columns of an item one thread writes what is in none of its loops. */
static void open_stores(fu_em *e)
{
    const fu_prog *p = e->p;
    const bool ragged = p->extent[fu_vec(p)] % p->tile != 0;
    const char *one = p->apart ? "" : "y0 == 0", *and = ragged && !p->apart ? " && " : "";
    if (ragged || !p->apart)
        fu_scope_open(e, "if (%s%s%s) {", one, and, ragged ? "mine" : "");
    else
        fu_scope_open(e, "{");
}

/* Opens `for each element of the thread's pack`. */
static void open_elements(fu_em *e, fu_lane *lane)
{
    fu_prog *p = e->p;
    fu_line(&e->t, "#pragma unroll");
    fu_scope_open(e, "for (int l = 0; l < %d; l++) {", p->pack);
    fu_line(&e->t, "const int64_t i%d = v0 + l;", fu_vec(p));
    *lane = (fu_lane){.at = "l", .pack = p->pack > 1 ? "l" : NULL, .stash = "l", .bits = "l"};
    e->lane = lane;
}

static void close_elements(fu_em *e)
{
    e->lane = NULL;
    fu_scope_close(e);
}

/* Operands that all rows share are read once. */
static void load_columns(fu_em *e)
{
    if (!fu_cuda_packs(e, -1, "", NULL)) return;
    fu_scope_open(e, e->p->extent[fu_vec(e->p)] % e->p->tile ? "if (mine) {" : "{");
    fu_cuda_packs(e, -1, NULL, "");
    fu_scope_close(e);
}

/* ---- one phase ---- */

static void write_phase(fu_em *e, int phase, const char *from, const char *to)
{
    fu_prog *p = e->p;
    fu_pack k = {.phase = phase, .n = p->pack};
    uint32_t outer = p->red & ~fu_bit(fu_vec(p));
    fu_line(&e->t, "#pragma unroll %d", fu_cuda_stores(p, phase) ? 1 : 4);
    bool ragged = p->extent[fu_vec(p)] % p->tile != 0;
    const char *type = p->second ? "int" : "int64_t"; /* there are not that many parts */
    char first[160];
    const char *own = p->apart ? "" : " + y0";
    if (ragged)
        snprintf(first, sizeof first, "mine ? %s%s : %s", from, own, to);
    else
        snprintf(first, sizeof first, "%s%s", from, own);
    fu_scope_open(e, "for (%s j = (%s)(%s); j < (%s)(%s); j += %d) {", type, type, first, type, to,
                  p->apart ? 1 : lines(p));
    fu_cuda_decode(e, outer, "j", 1);
    fu_cuda_pack(e, &k);
    fu_scope_close(e);
    TN_EACH(v, p->value, p->n_value) {
        if (!fu_reduced_in(v, phase) || p->apart) continue;
        if (fu_chooses(v))
            fu_line(&e->t, "tn_columns_choose<%s, %d, %d>(%s_acc, %s_at);", fu_cuda_reducer(v), across(p),
                    lines(p), v->name, v->name);
        else
            fu_line(&e->t, "tn_columns_reduce<%s, %d, %d>(%s_acc);", fu_cuda_reducer(v), across(p), lines(p),
                    v->name);
    }
}

/* ---- what stands between phases ---- */

static void make_arrays(fu_em *e, int done)
{
    fu_prog *p = e->p;
    fu_lane lane;
    int at = 0;
    if (!fu_declare_columns(e, done, p->pack)) return;
    fu_scope_open(e, p->extent[fu_vec(p)] % p->tile ? "if (mine) {" : "{");
    for (fu_value *v; (v = fu_next_draw(e, done, &at));) fu_cuda_random(e, v, p->pack);
    open_elements(e, &lane);
    fu_make_columns(e, done);
    close_elements(e);
    fu_scope_close(e);
}

static void store_columns(fu_em *e, int done)
{
    fu_prog *p = e->p;
    fu_lane lane;
    if (!fu_stores_columns(p, done, false)) return;
    if (!p->apart && fu_stores_columns(p, done, true))
        fu_line(&e->t, "__syncthreads();"); /* others of the column may have yet to read it */
    open_stores(e);
    open_elements(e, &lane);
    fu_store_columns(e, done);
    close_elements(e);
    fu_scope_close(e);
}

/* Partial results of a split reduction: scratch[part][kept point]. */
static void write_partials(fu_em *e, const int *scratch)
{
    open_stores(e);
    fu_lane lane;
    open_elements(e, &lane);
    fu_put_partials(e, scratch, "_acc[l]");
    close_elements(e);
    fu_scope_close(e);
}

/* ---- the item ---- */

static void item_coordinates(fu_em *e, char *from, char *to, size_t n)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    int64_t tiles = (p->extent[vec] + p->tile - 1) / p->tile;
    uint32_t keep = ~p->red & ~fu_bit(vec) & fu_all_atoms(p), outer = p->red & ~fu_bit(vec);
    const char *rest = "item";
    if (p->split) {
        int parts = fu_dim(e, p->parts);
        fu_line(&e->t, "const int64_t part = item %% a.dim[%d], line = item / a.dim[%d];", parts, parts);
        rest = "line";
    }
    if (tiles > 1) fu_line(&e->t, "const int64_t tile = %s %% %lld;", rest, (long long)tiles);
    if (tiles < 1) tiles = 1;
    if (keep) fu_cuda_decode(e, keep, rest, tiles);
    char wide[48];
    snprintf(wide, sizeof wide, tiles > 1 ? "(tile * %d + x0)" : "(int64_t)x0", p->team);
    if (p->pack > 1)
        fu_line(&e->t, "const int64_t v0 = %s * %d;", wide, p->pack);
    else
        fu_line(&e->t, "const int64_t v0 = %s;", wide);
    if (p->extent[vec] % p->tile) fu_line(&e->t, "const bool mine = v0 < %lld;", (long long)p->extent[vec]);
    char rows[64];
    if (fu_runtime(p, p->outer) && p->red >> p->outer & 1) {
        int64_t below = fu_count(p, outer & ~fu_bit(p->outer));
        snprintf(rows, sizeof rows, below > 1 ? "n%d * %lld" : "n%d", p->outer, (long long)below);
    } else {
        snprintf(rows, sizeof rows, "%lld", (long long)fu_count(p, outer));
    }
    if (!p->split) {
        snprintf(from, n, "0");
        snprintf(to, n, "%s", rows);
        return;
    }
    int part = fu_dim(e, p->part);
    fu_line(&e->t, "const int64_t lines = %s, r0 = part * a.dim[%d];", rows, part);
    fu_line(&e->t, "const int64_t r1 = r0 + a.dim[%d] < lines ? r0 + a.dim[%d] : lines;", part, part);
    snprintf(from, n, "r0");
    snprintf(to, n, "r1");
}

void fu_cuda_column(fu_em *e, const int *scratch)
{
    fu_prog *p = e->p;
    char from[64], to[64];
    for (int i = 0; i < p->n_value; i++) p->value[i].array = fu_wants_array(p, i);
    fu_line(&e->t, "const int x0 = (int)threadIdx.x %% %d, y0 = (int)threadIdx.x / %d;", p->team, across(p));
    if (p->apart) {
        fu_line(&e->t, "const int64_t item = (int64_t)blockIdx.x * %d + y0;", lines(p));
        fu_scope_open(e, "if (item < a.n) {");
    } else {
        if (p->abreast > 1)
            fu_line(&e->t, "const int64_t item = (int64_t)blockIdx.x * %d + threadIdx.x %% %d / %d;",
                    p->abreast, across(p), p->team);
        else
            fu_line(&e->t, "const int64_t item = blockIdx.x;");
        fu_scope_open(e, "{");
    }
    item_coordinates(e, from, to, sizeof from);
    load_columns(e);
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_REDUCE) fu_declare(e, &p->value[i], "acc", p->pack);
    for (int phase = 0; phase < p->n_phase; phase++) {
        e->ready = phase;
        make_arrays(e, phase);
        e->phase = phase;
        store_columns(e, phase);
        fu_hoist(e, phase, false);
        write_phase(e, phase, from, to);
    }
    e->phase = e->ready = p->n_phase;
    if (p->split) {
        write_partials(e, scratch);
    } else {
        make_arrays(e, p->n_phase);
        store_columns(e, p->n_phase);
    }
    fu_scope_close(e);
}
