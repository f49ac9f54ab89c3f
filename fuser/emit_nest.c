/* emit_nest.c - the loop nest of a program, in any of the three forms.
 *
 *   items                         one point of the kept atoms (and a tile, and a part)
 *     values that do not change inside
 *     for each phase
 *       [column: results of the last phase, over the tile]
 *       loops over the outer reduced atoms
 *         values that do not change along the vector
 *         vector loop: loads, expressions, accumulation, stores
 *     what the reductions gave, stores of kept values
 *
 * Start with fu_emit, then write_item and write_phase.
 */
#include "emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096 }; /* elements summed in f32 before the sum goes to a wider total */

static uint32_t all_atoms(const fu_prog *p)
{
    return fu_bit(p->n_atom) - 1;
}
static bool runtime(const fu_prog *p, int atom)
{
    return atom == p->outer;
}

/* ---- what a phase holds ---- */

static bool computed_in(const fu_prog *p, const fu_value *v, int phase)
{
    return fu_full(p, v) && (v->need >> phase & 1) && !(v->stash >= 0 && phase > v->stash);
}

/* Whether `phase` reduces value v. */
static bool reduced_in(const fu_value *v, int phase)
{
    return v->kind == FU_REDUCE && v->phase == phase + 1;
}

static bool phase_reduces(const fu_prog *p, int phase)
{
    for (int i = 0; i < p->n_value; i++)
        if (reduced_in(&p->value[i], phase)) return true;
    return false;
}

/* Sums over long rows go through totals of a wider type, block by block. */
static bool flushes(const fu_prog *p, const fu_value *v)
{
    int vec = fu_vec(p);
    if (p->form != FU_ROW || p->split || v->wide || v->op != TN_OP_reduce_sum || !tn_dtype_is_float(v->dtype))
        return false;
    if (runtime(p, vec)) return true;
    int64_t width = p->extent[vec];
    return width > 2 * BLOCK || (width >= 256 && fu_count(p, p->red) > 2 * BLOCK) ||
           (width >= 256 && p->outer >= 0 && (p->red >> p->outer & 1));
}

/* ---- the vector loop's body ---- */

static void write_body(fu_em *e, int phase, const char *lane)
{
    fu_prog *p = e->p;
    e->in_vector = true;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!reduced_in(v, phase)) continue;
        char acc[80], at[160];
        const char *x = fu_ask(e, v->arg[0]);
        fu_name(e, v);
        if (e->local)
            snprintf(acc, sizeof acc, "%s_now", v->name);
        else
            snprintf(acc, sizeof acc, "%s_%s[%s]", v->name, p->form == FU_ROW ? "lane" : "acc", lane);
        fu_index(e, v->stride, ~0u, at, sizeof at);
        fu_accumulate(e, v, acc, at, x);
    }
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (v->stash != phase) continue;
        const char *x = fu_ask(e, i);
        fu_line(&e->t, "%s_row[%s] = %s;", v->name, e->stash_at, x);
    }
    for (int i = 0; i < p->n_store; i++) /* every load stands before every store: two may change places */
        if (fu_store_full(p, &p->store[i]) && p->store[i].phase == phase) fu_ask(e, p->store[i].value);
    for (int i = 0; i < p->n_store; i++)
        if (fu_store_full(p, &p->store[i]) && p->store[i].phase == phase) fu_put_store(e, &p->store[i]);
    e->in_vector = false;
}

static bool index_inside(const fu_prog *p, int phase)
{
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_INDEX && (p->value[i].vary >> fu_vec(p) & 1) &&
            (computed_in(p, &p->value[i], phase) || !fu_full(p, &p->value[i])))
            return true;
    return false;
}

/* After a loop that could not stop at a bad index: the largest one seen, negative ones above all. */
static void report_worst(fu_em *e)
{
    for (int i = 0; i < e->p->n_value; i++)
        if (e->where[i] >= 0 && (e->p->value[i].vary >> fu_vec(e->p) & 1)) {
            fu_line(&e->t, "if (worst) index_fault(a, a->dim[%d], (int64_t)worst);", e->where[i]);
            return;
        }
}

static void simd(fu_em *e, bool worst)
{
    fu_line(&e->t, "%s%s", e->lang->simd, worst ? " reduction(max : worst)" : "");
}

static void stash_index(fu_em *e)
{
    fu_prog *p = e->p;
    int64_t dense[FU_MAX_ATOMS] = {0}, s = p->form == FU_COLUMN ? p->tile : 1;
    bool shifted = p->form == FU_ROW && strcmp(e->first, "0");
    snprintf(e->bits_at, sizeof e->bits_at, shifted ? "%s - %s" : "%s", e->lane, e->first);
    for (int i = p->n_atom - 1; i >= 0; i--)
        if (p->red >> i & 1) {
            dense[i] = s;
            s *= p->extent[i];
        }
    fu_index(e, dense, ~0u, e->stash_at, sizeof e->stash_at);
    if (p->form == FU_COLUMN) {
        size_t k = strlen(e->stash_at);
        snprintf(e->stash_at + k, sizeof e->stash_at - k, " + %s", e->lane);
    }
}

/* Several rows for one element: their contributions meet in a variable. `rows` names the rows' coordinate. */
static void unrolled_body(fu_em *e, int phase, const char *rows)
{
    fu_prog *p = e->p;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!reduced_in(v, phase)) continue;
        fu_line(&e->t, "%s %s_now = %s_acc[%s];", fu_acc_type(e, v), v->name, v->name, e->lane);
    }
    fu_line(&e->t, "#pragma GCC unroll %d", p->unroll);
    fu_scope_open(e, "for (int u = 0; u < %d; u++) {", p->unroll);
    fu_line(&e->t, "const int64_t %s = b + u;", rows);
    e->local = true;
    stash_index(e);
    write_body(e, phase, e->lane);
    e->local = false;
    fu_scope_close(e);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (reduced_in(v, phase)) fu_line(&e->t, "%s_acc[%s] = %s_now;", v->name, e->lane, v->name);
    }
}

/* While a phase computes on a row that is at hand, the memory can bring the next one: `at` is where in the
 * row the present block of `n` elements starts. */
static void prefetch_next(fu_em *e, int phase, const char *at, int n)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p), row = vec - 1;
    if (p->form != FU_ROW || p->split || phase != 1 || row < 0 || (p->red >> row & 1)) return;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        int size = (int)tn_dtype_size(v->dtype);
        if (v->kind != FU_LOAD || !(v->need & 1) || v->stride[vec] != 1 || !v->stride[row]) continue;
        int64_t bytes = p->extent[vec] * size;
        if (bytes < 1024 || bytes > 65536 || bytes * p->extent[row] < (int64_t)1 << 21) continue;
        char index[256];
        fu_index(e, v->stride, ~fu_bit(vec), index, sizeof index);
        for (int k = 0; k < n * size; k += 64)
            fu_line(&e->t, "%s(%s + %s + %lld + %s);", e->lang->prefetch, e->pointer[v->buf], index,
                    (long long)(v->stride[row] + k / size), at);
    }
}

static bool phase_streams(const fu_prog *p, int phase)
{
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].stream && p->store[i].phase == phase) return true;
    return false;
}

/* The loop in pieces, each computed into small arrays and then written past the caches. `span` is the number
 * of elements, `base` the first one's coordinate. */
static void stream_loop(fu_em *e, int phase, const char *base, const char *span, bool worst)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    char i[16], count[16], first[80], at[256], *end;
    int64_t known = strtoll(span, &end, 10);
    snprintf(i, sizeof i, "i%d", vec);
    fu_scope_open(e, "for (int64_t c = 0; c < %s; c += %d) {", span, FU_STREAM_TILE);
    if (!*end && known % FU_STREAM_TILE == 0) {
        snprintf(count, sizeof count, "%d", FU_STREAM_TILE);
    } else {
        fu_line(&e->t, "const int64_t m = %s - c < %d ? %s - c : %d;", span, FU_STREAM_TILE, span,
                FU_STREAM_TILE);
        snprintf(count, sizeof count, "m");
    }
    bool zero = !strcmp(base, "0");
    snprintf(first, sizeof first, zero ? "%sc" : "%s + c", zero ? "" : base);
    for (int k = 0; k < p->n_store; k++)
        if (p->store[k].stream && p->store[k].phase == phase)
            fu_line(&e->t, "%s%s %s_piece[%d];", e->lang->align, e->lang->memory[p->store[k].dtype],
                    e->pointer[p->store[k].buf], FU_STREAM_TILE);
    prefetch_next(e, phase, first, FU_STREAM_TILE);
    simd(e, worst);
    fu_scope_open(e, "for (int64_t k = 0; k < %s; k++) {", count);
    fu_line(&e->t, "const int64_t %s = %s + k;", i, first);
    if (!zero && p->form != FU_ROW && p->tile) fu_line(&e->t, "const int64_t j = c + k;");
    e->lane = !zero && p->form != FU_ROW && p->tile ? "j" : i;
    e->piece = "k";
    stash_index(e);
    write_body(e, phase, e->lane);
    fu_scope_close(e);
    for (int k = 0; k < p->n_store; k++) {
        const fu_store *s = &p->store[k];
        if (!s->stream || s->phase != phase) continue;
        fu_index(e, s->stride, ~fu_bit(vec), at, sizeof at);
        const char *to = e->pointer[s->buf];
        fu_line(&e->t, "tn_stream(%s + %s%s%s, %s_piece, %s * %d);", to, strcmp(at, "0") ? at : "",
                strcmp(at, "0") ? " + " : "", first, to, count, (int)tn_dtype_size(s->dtype));
    }
    e->lane = e->piece = NULL;
    fu_scope_close(e);
}

/* Loop over the whole vector range [lo, hi), `count` elements or -1 when only known at run time. */
static void plain_loop(fu_em *e, int phase, const char *lo, const char *hi, bool worst, const char *rows)
{
    int vec = fu_vec(e->p);
    char j[16] = "j", i[16];
    snprintf(i, sizeof i, "i%d", vec);
    bool from_zero = !strcmp(lo, "0");
    if (phase_streams(e->p, phase)) {
        char span[160];
        bool difference = !from_zero && (e->p->form == FU_ROW || !e->p->tile);
        snprintf(span, sizeof span, difference ? "(%s - %s)" : "%s", hi, lo);
        stream_loop(e, phase, lo, span, worst);
        return;
    }
    simd(e, worst);
    if (from_zero || e->p->form == FU_ROW || (e->p->form == FU_POINTWISE && !e->p->tile)) {
        fu_scope_open(e, "for (int64_t %s = %s; %s < %s; %s++) {", i, lo, i, hi, i);
        e->lane = i;
    } else {
        fu_scope_open(e, "for (int64_t j = 0; j < %s; j++) {", hi);
        fu_line(&e->t, "const int64_t %s = %s + j;", i, lo);
        e->lane = j;
    }
    if (rows) {
        unrolled_body(e, phase, rows);
    } else {
        stash_index(e);
        write_body(e, phase, e->lane);
    }
    fu_scope_close(e);
    e->lane = NULL;
}

static void lane_loop(fu_em *e, int phase, const char *from, const char *count, bool worst)
{
    char i[16];
    snprintf(i, sizeof i, "i%d", fu_vec(e->p));
    simd(e, worst);
    fu_scope_open(e, "for (int l = 0; l < %s; l++) {", count);
    fu_line(&e->t, "const int64_t %s = %s + l;", i, from);
    e->lane = i;
    stash_index(e);
    write_body(e, phase, "l");
    fu_scope_close(e);
    e->lane = NULL;
}

static void lanes_loop(fu_em *e, int phase, const char *lo, const char *hi, int64_t count, bool worst)
{
    int lanes = e->p->lanes;
    char n[24], from[64];
    snprintf(n, sizeof n, "%d", lanes);
    if (count >= 0) {
        int64_t main = count / lanes * lanes, tail = count - main;
        bool zero = !strcmp(lo, "0");
        if (main == lanes) {
            lane_loop(e, phase, lo, n, worst);
        } else if (main) {
            if (zero)
                fu_scope_open(e, "for (int64_t b = 0; b < %lld; b += %d) {", (long long)main, lanes);
            else
                fu_scope_open(e, "for (int64_t b = %s; b < %s + %lld; b += %d) {", lo, lo, (long long)main,
                              lanes);
            prefetch_next(e, phase, "b", lanes);
            lane_loop(e, phase, "b", n, worst);
            fu_scope_close(e);
        }
        if (tail) {
            char rest[24];
            snprintf(rest, sizeof rest, "%lld", (long long)tail);
            if (zero)
                snprintf(from, sizeof from, "%lld", (long long)main);
            else
                snprintf(from, sizeof from, "%s + %lld", lo, (long long)main);
            lane_loop(e, phase, from, rest, worst);
        }
        return;
    }
    fu_scope_open(e, "{");
    fu_line(&e->t, "int64_t b = %s;", lo);
    fu_scope_open(e, "for (; b + %d <= %s; b += %d) {", lanes, hi, lanes);
    lane_loop(e, phase, "b", n, worst);
    fu_scope_close(e);
    snprintf(from, sizeof from, "%s - b", hi);
    lane_loop(e, phase, "b", from, worst);
    fu_scope_close(e);
}

/* ---- accumulators ---- */

static void declare(fu_em *e, fu_value *v, const char *kind, int64_t n)
{
    char start[48];
    fu_name(e, v);
    fu_reduce_start(e, v, start, sizeof start);
    fu_line(&e->t, "%s%s %s_%s[%lld];", e->lang->align, fu_acc_type(e, v), v->name, kind, (long long)n);
    fu_line(&e->t, "for (int l = 0; l < %lld; l++) %s_%s[l] = %s;", (long long)n, v->name, kind, start);
    if (fu_chooses(v)) {
        fu_line(&e->t, "%sint64_t %s_at[%lld];", e->lang->align, v->name, (long long)n);
        fu_line(&e->t, "for (int l = 0; l < %lld; l++) %s_at[l] = -1;", (long long)n, v->name);
    }
}

/* Lanes into lane 0, by halves. */
static void fold(fu_em *e, fu_value *v)
{
    int lanes = e->p->lanes;
    char a[80], b[80];
    if (lanes == 1) return;
    if (fu_chooses(v)) {
        const char *n = v->name, *cmp = v->op == TN_OP_reduce_argmax ? ">" : "<";
        fu_scope_open(e, "for (int l = 1; l < %d; l++) {", lanes);
        fu_line(&e->t, "const %s u = %s_lane[0], w = %s_lane[l];", fu_acc_type(e, v), n, n);
        fu_line(&e->t, "const bool same = u == w || (u != u && w != w);");
        fu_line(&e->t,
                "if (%s_at[l] >= 0 && (%s_at[0] < 0 || w %s u || (w != w && u == u) || (same && %s_at[l] < "
                "%s_at[0]))) {",
                n, n, cmp, n, n);
        fu_line(&e->t, "    %s_lane[0] = w;", n);
        fu_line(&e->t, "    %s_at[0] = %s_at[l];", n, n);
        fu_line(&e->t, "}");
        fu_scope_close(e);
        return;
    }
    snprintf(a, sizeof a, "%s_lane[l]", v->name);
    snprintf(b, sizeof b, "%s_lane[l + w]", v->name);
    int half = 1;
    while (half * 2 < lanes) half *= 2;
    fu_line(&e->t, "for (int w = %d; w > 0; w /= 2)", half);
    e->t.indent++;
    fu_line(&e->t, "for (int l = 0; l < w; l++)");
    e->t.indent++;
    fu_accumulate(e, v, a, "", b);
    e->t.indent -= 2;
}

static void flush_lanes(fu_em *e, int phase)
{
    for (int i = 0; i < e->p->n_value; i++) {
        fu_value *v = &e->p->value[i];
        if (!reduced_in(v, phase) || !flushes(e->p, v)) continue;
        fold(e, v);
        fu_line(&e->t, "%s_total += %s_lane[0];", v->name, v->name);
    }
}

static void declare_flushed(fu_em *e, int phase)
{
    for (int i = 0; i < e->p->n_value; i++) {
        fu_value *v = &e->p->value[i];
        if (reduced_in(v, phase) && flushes(e->p, v)) declare(e, v, "lane", e->p->lanes);
    }
}

/* ---- random bits ---- */

static void fill_random(fu_em *e, int phase, const char *count)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    int64_t n = p->form == FU_ROW ? p->extent[vec] : p->tile;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (v->kind != FU_RANDOM || !(v->vary >> vec & 1) || !v->used) continue;
        if (fu_full(p, v) && !computed_in(p, v, phase)) continue;
        char at[256];
        fu_name(e, v);
        fu_index(e, v->stride, ~fu_bit(vec), at, sizeof at);
        int seed = fu_scalar(e, v->slot, TN_WORD_SEED), draw = fu_scalar(e, v->slot, TN_WORD_DRAW);
        if (v->op == TN_OP_bernoulli) { /* as tn_dropped: dropped when the bits are below p * 2^32 */
            const char *share = fu_ask(e, v->arg[0]);
            fu_line(&e->t, "const double %s_share = (double)%s * 0x1p32;", v->name, share);
            fu_line(&e->t,
                    "const uint32_t %s_bound = %s_share > 0 ? %s_share < 0x1p32 ? (uint32_t)%s_share : "
                    "0xffffffffu : 0;",
                    v->name, v->name, v->name, v->name);
            fu_line(&e->t, "const bool %s_live = %s_share < 0x1p32;", v->name, v->name);
        }
        bool normal = v->op == TN_OP_normal;
        fu_line(&e->t, "%s%s %s_bits[%lld];", e->lang->align, normal ? "float" : "uint32_t", v->name,
                (long long)n);
        fu_line(&e->t, "%s(a->scalar[%d].u, a->scalar[%d].u, (uint64_t)(%s%s%s), %s, %s_bits);",
                normal ? "tn_normal_fill" : "tn_philox_fill", seed, draw, strcmp(at, "0") ? at : "",
                strcmp(at, "0") ? " + " : "", e->first, count, v->name);
    }
}

/* ---- one phase ---- */

typedef struct range {
    char lo[64], hi[64]; /* of the vector's coordinate; hi is the count where lo is not 0 (tiles) */
    int64_t count;       /* or -1 */
} range;

static void hoist(fu_em *e, int phase, bool inside)
{
    fu_prog *p = e->p;
    uint32_t vec = fu_bit(fu_vec(p));
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!e->hot[i] || v->kind == FU_NUMBER || v->kind == FU_REDUCE || (v->vary & vec)) continue;
        if (inside ? computed_in(p, v, phase) : !fu_full(p, v) && v->phase <= phase) {
            if (!inside && p->form != FU_POINTWISE && (v->vary & p->red)) continue;
            fu_ask(e, i);
        }
    }
}

static void write_vector(fu_em *e, int phase, const range *r, const char *rows)
{
    fu_prog *p = e->p;
    bool worst = index_inside(p, phase), lanes = p->form == FU_ROW && phase_reduces(p, phase);
    bool flush = false;
    for (int i = 0; i < p->n_value; i++)
        flush = flush || (reduced_in(&p->value[i], phase) && flushes(p, &p->value[i]));
    e->first = r->lo;
    char count[160];
    if (p->form == FU_ROW)
        snprintf(count, sizeof count, "%s - %s", r->hi, r->lo);
    else
        snprintf(count, sizeof count, "%s", r->hi);
    fill_random(e, phase, r->count >= 0 && p->form == FU_ROW ? r->hi : count);
    if (worst) fu_line(&e->t, "uint64_t worst = 0;");
    if (!lanes) {
        plain_loop(e, phase, r->lo, r->hi, worst, rows);
    } else if (!flush) {
        lanes_loop(e, phase, r->lo, r->hi, r->count, worst);
    } else if (r->count >= 0 && r->count <= 2 * BLOCK) {
        fu_scope_open(e, "{");
        declare_flushed(e, phase);
        lanes_loop(e, phase, r->lo, r->hi, r->count, worst);
        flush_lanes(e, phase);
        fu_scope_close(e);
    } else {
        fu_scope_open(e, "for (int64_t from = %s; from < %s; from += %d) {", r->lo, r->hi, BLOCK);
        fu_line(&e->t, "const int64_t to = %s - from < %d ? %s : from + %d;", r->hi, BLOCK, r->hi, BLOCK);
        declare_flushed(e, phase);
        lanes_loop(e, phase, "from", "to", -1, worst);
        flush_lanes(e, phase);
        fu_scope_close(e);
    }
    if (worst) report_worst(e);
}

/* Opens loops over the outer reduced atoms but the last `leave`; returns how many scopes. */
static int open_outer(fu_em *e, const char *r0, const char *r1, int leave)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p), n = 0, n_outer = 0, outer[FU_MAX_ATOMS];
    for (int i = 0; i < vec; i++)
        if (p->red >> i & 1) outer[n_outer++] = i;
    if (!n_outer) return 0;
    if (r0) {
        if (n_outer == 1) {
            fu_scope_open(e, "for (int64_t i%d = %s; i%d < %s; i%d++) {", outer[0], r0, outer[0], r1,
                          outer[0]);
            return 1;
        }
        fu_scope_open(e, "for (int64_t r = %s; r < %s; r++) {", r0, r1);
        int64_t below = 1;
        for (int i = n_outer - 1; i >= 0; i--) {
            char by[40] = "", mod[40] = "";
            if (below > 1) snprintf(by, sizeof by, " / %lld", (long long)below);
            if (i) snprintf(mod, sizeof mod, " %% %lld", (long long)p->extent[outer[i]]);
            fu_line(&e->t, "const int64_t i%d = r%s%s;", outer[i], by, mod);
            below *= p->extent[outer[i]];
        }
        return 1;
    }
    for (; n < n_outer - leave; n++) {
        int a = outer[n];
        if (runtime(p, a))
            fu_scope_open(e, "for (int64_t i%d = 0; i%d < n%d; i%d++) {", a, a, a, a);
        else
            fu_scope_open(e, "for (int64_t i%d = 0; i%d < %lld; i%d++) {", a, a, (long long)p->extent[a], a);
    }
    return n;
}

/* A column phase over the innermost reduced atom, several rows at a time and then those left. */
static bool write_rows(fu_em *e, int phase, const range *r, const char *r0, const char *r1)
{
    fu_prog *p = e->p;
    int last = fu_vec(p) - 1, n_outer = 0;
    while (last >= 0 && !(p->red >> last & 1)) last--;
    for (int i = 0; i < fu_vec(p); i++) n_outer += p->red >> i & 1;
    if (last < 0 || (r0 && n_outer > 1)) return false;
    if (!r0 && !runtime(p, last) && p->extent[last] < p->unroll) return false;
    int scopes = r0 ? 0 : open_outer(e, NULL, NULL, 1);
    char hi[48], rows[16];
    snprintf(rows, sizeof rows, "i%d", last);
    if (r0)
        snprintf(hi, sizeof hi, "%s", r1);
    else if (runtime(p, last))
        snprintf(hi, sizeof hi, "n%d", last);
    else
        snprintf(hi, sizeof hi, "%lld", (long long)p->extent[last]);
    fu_scope_open(e, "{");
    fu_line(&e->t, "int64_t b = %s;", r0 ? r0 : "0");
    fu_scope_open(e, "for (; b + %d <= %s; b += %d) {", p->unroll, hi, p->unroll);
    write_vector(e, phase, r, rows);
    fu_scope_close(e);
    if (r0 || runtime(p, last) || p->extent[last] % p->unroll) {
        fu_scope_open(e, "for (int64_t %s = b; %s < %s; %s++) {", rows, rows, hi, rows);
        write_vector(e, phase, r, NULL);
        fu_scope_close(e);
    }
    fu_scope_close(e);
    while (scopes--) fu_scope_close(e);
    return true;
}

static void write_phase(fu_em *e, int phase, const range *r, const char *r0, const char *r1)
{
    fu_prog *p = e->p;
    e->phase = phase;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!reduced_in(v, phase) || p->form != FU_ROW) continue;
        fu_name(e, v);
        if (flushes(p, v))
            fu_line(&e->t, "double %s_total = 0;", v->name);
        else
            declare(e, v, "lane", p->lanes);
    }
    if (p->form == FU_COLUMN && p->unroll > 1 && write_rows(e, phase, r, r0, r1)) return;
    int scopes = open_outer(e, r0, r1, 0);
    if (scopes) hoist(e, phase, true);
    bool block = false;
    if (!scopes && (index_inside(p, phase) || p->n_phase > 1)) { /* `worst` and the bits need a scope */
        for (int i = 0; i < p->n_value; i++)
            block = block || ((p->value[i].kind == FU_RANDOM || p->value[i].kind == FU_INDEX) &&
                              (p->value[i].vary >> fu_vec(p) & 1));
        if (block) fu_scope_open(e, "{");
    }
    write_vector(e, phase, r, NULL);
    if (block) fu_scope_close(e);
    while (scopes--) fu_scope_close(e);
    if (p->form == FU_ROW)
        for (int i = 0; i < p->n_value; i++) {
            fu_value *v = &p->value[i];
            if (!reduced_in(v, phase)) continue;
            if (flushes(p, v)) {
                fu_line(&e->t, "const %s %s = (%s)%s_total;", fu_type(e, v->dtype), v->name,
                        fu_type(e, v->dtype), v->name);
            } else {
                fold(e, v);
                fu_line(&e->t, "const %s %s = (%s)%s_%s[0];", fu_type(e, v->dtype), v->name,
                        fu_type(e, v->dtype), v->name, fu_chooses(v) ? "at" : "lane");
            }
            e->defined[i] = e->depth;
        }
}

/* ---- column: what stands between phases ---- */

static bool wants_array(const fu_prog *p, int id)
{
    const fu_value *v = &p->value[id];
    if (fu_full(p, v) || !(v->vary >> fu_vec(p) & 1) || v->kind == FU_REDUCE || v->kind == FU_NUMBER)
        return false;
    bool slow = fu_op_cost(v) >= 4;
    if (!v->phase && !slow) return false;
    for (int i = 0; i < p->n_value; i++)
        for (int k = 0; k < p->value[i].n_arg; k++)
            if (p->value[i].arg[k] == id && p->value[i].used &&
                (fu_full(p, &p->value[i]) || p->value[i].phase > v->phase || p->value[i].kind == FU_REDUCE))
                return true;
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].value == id && (p->store[i].phase != v->phase || fu_store_full(p, &p->store[i])))
            return true;
    return false;
}

/* The tile loop after `done` phases: arrays for later phases, and stores of kept values. */
static void write_between(fu_em *e, int done, const range *r)
{
    fu_prog *p = e->p;
    bool any = false;
    for (int i = 0; i < p->n_value; i++)
        any = any || (p->value[i].array && p->value[i].phase == done && e->hot[i]);
    for (int i = 0; i < p->n_store && !p->split; i++)
        any = any || (!fu_store_full(p, &p->store[i]) && p->store[i].phase == done);
    e->ready = done;
    if (!any) return;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->array || v->phase != done || !e->hot[i]) continue;
        fu_name(e, v);
        fu_line(&e->t, "%s%s %s_col[%lld];", e->lang->align, fu_type(e, v->dtype), v->name,
                (long long)p->tile);
    }
    int vec = fu_vec(p);
    bool worst = false;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        worst = worst || (v->kind == FU_INDEX && e->hot[i] && !fu_full(p, v) && (v->vary >> vec & 1));
    }
    if (worst) {
        fu_scope_open(e, "{");
        fu_line(&e->t, "uint64_t worst = 0;");
    }
    simd(e, worst);
    fu_scope_open(e, "for (int64_t j = 0; j < %s; j++) {", r->hi);
    fu_line(&e->t, "const int64_t i%d = %s%sj;", vec, strcmp(r->lo, "0") ? r->lo : "",
            strcmp(r->lo, "0") ? " + " : "");
    e->lane = "j";
    e->in_vector = true;
    e->phase = done;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->array || v->phase != done || !e->hot[i]) continue;
        v->array = false; /* computed here, read from the array afterwards */
        const char *x = fu_ask(e, i);
        v->array = true;
        fu_line(&e->t, "%s_col[j] = %s;", v->name, x);
    }
    for (int i = 0; i < p->n_store && !p->split; i++)
        if (!fu_store_full(p, &p->store[i]) && p->store[i].phase == done) fu_ask(e, p->store[i].value);
    for (int i = 0; i < p->n_store && !p->split; i++)
        if (!fu_store_full(p, &p->store[i]) && p->store[i].phase == done) fu_put_store(e, &p->store[i]);
    e->in_vector = false;
    fu_scope_close(e);
    if (worst) {
        report_worst(e);
        fu_scope_close(e);
    }
}

/* ---- items ---- */

/* Coordinates of the kept atoms and the part, from `item`. */
static void decode_item(fu_em *e, int64_t tiles, int parts_dim)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    char cur[200] = "item";
    uint32_t keep = ~p->red & all_atoms(p);
    if (p->form != FU_ROW) keep &= ~fu_bit(vec);
    if (p->form != FU_ROW && (tiles > 1 || runtime(p, vec))) {
        if (!keep && !p->split)
            fu_line(&e->t, "const int64_t v0 = item * %lld;", (long long)p->tile);
        else
            fu_line(&e->t, "const int64_t v0 = item %% %lld * %lld;", (long long)tiles, (long long)p->tile);
        size_t k = strlen(cur);
        snprintf(cur + k, sizeof cur - k, " / %lld", (long long)tiles);
    }
    bool part_inner = p->split && p->outer >= 0 && !(p->red >> p->outer & 1);
    if (part_inner && keep) {
        fu_line(&e->t, "const int64_t part = %s %% a->dim[%d];", cur, parts_dim);
        size_t k = strlen(cur);
        snprintf(cur + k, sizeof cur - k, " / a->dim[%d]", parts_dim);
    } else if (part_inner) {
        fu_line(&e->t, "const int64_t part = %s;", cur);
    }
    int first = 0;
    while (first < p->n_atom && !(keep >> first & 1)) first++;
    for (int i = p->n_atom - 1; i >= 0; i--) {
        if (!(keep >> i & 1)) continue;
        bool last = i == first && (!p->split || part_inner);
        if (i == p->block) {
            int64_t n = (p->extent[i] + FU_BLOCK - 1) / FU_BLOCK;
            if (last)
                fu_line(&e->t, "const int64_t b0 = %s * %d;", cur, FU_BLOCK);
            else
                fu_line(&e->t, "const int64_t b0 = %s %% %lld * %d;", cur, (long long)n, FU_BLOCK);
            size_t k = strlen(cur);
            snprintf(cur + k, sizeof cur - k, " / %lld", (long long)n);
            continue;
        }
        if (last)
            fu_line(&e->t, "const int64_t i%d = %s;", i, cur);
        else
            fu_line(&e->t, "const int64_t i%d = %s %% %lld;", i, cur, (long long)p->extent[i]);
        size_t k = strlen(cur);
        snprintf(cur + k, sizeof cur - k, " / %lld", (long long)p->extent[i]);
    }
    if (p->split && !part_inner) fu_line(&e->t, "const int64_t part = %s;", cur);
}

/* Partial results: scratch[part][kept point]. */
static void write_partials(fu_em *e, const range *r, const int *scratch)
{
    fu_prog *p = e->p;
    int64_t dense[FU_MAX_ATOMS] = {0}, total = 1;
    char at[200];
    for (int i = p->n_atom - 1; i >= 0; i--) {
        if (p->red >> i & 1) continue;
        dense[i] = total;
        total *= p->extent[i];
    }
    fu_index(e, dense, ~0u, at, sizeof at);
    if (p->form == FU_COLUMN) {
        simd(e, false);
        fu_scope_open(e, "for (int64_t j = 0; j < %s; j++) {", r->hi);
        fu_line(&e->t, "const int64_t i%d = %s%sj;", fu_vec(p), strcmp(r->lo, "0") ? r->lo : "",
                strcmp(r->lo, "0") ? " + " : "");
    }
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (v->kind != FU_REDUCE) continue;
        const char *to = e->pointer[scratch[i]];
        if (p->form == FU_COLUMN)
            fu_line(&e->t, "%s[part * %lld + %s] = %s_acc[j];", to, (long long)total, at, v->name);
        else if (total == 1)
            fu_line(&e->t, "%s[part] = %s;", to, v->name);
        else
            fu_line(&e->t, "%s[part * %lld + %s] = %s;", to, (long long)total, at, v->name);
    }
    if (p->form == FU_COLUMN) fu_scope_close(e);
}

/* Reads the block's crosswise operands along their own lines, then opens the loop over the block's lines. */
static void stage_blocks(fu_em *e, const range *r)
{
    fu_prog *p = e->p;
    int a = p->block, vec = fu_vec(p);
    char extent[32], at[256];
    if (runtime(p, a))
        snprintf(extent, sizeof extent, "n%d", a);
    else
        snprintf(extent, sizeof extent, "%lld", (long long)p->extent[a]);
    fu_line(&e->t, "const int64_t b1 = %s - b0 < %d ? %s : b0 + %d;", extent, FU_BLOCK, extent, FU_BLOCK);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->staged || !e->hot[i]) continue;
        fu_name(e, v);
        fu_line(&e->t, "%s%s %s_block[%d];", e->lang->align, e->lang->memory[v->dtype], v->name,
                FU_BLOCK * FU_BLOCK_TILE);
        fu_scope_open(e, "for (int64_t j = 0; j < %s; j++) {", r->hi);
        fu_line(&e->t, "const int64_t i%d = %s%sj;", vec, strcmp(r->lo, "0") ? r->lo : "",
                strcmp(r->lo, "0") ? " + " : "");
        fu_index(e, v->stride, ~0u, at, sizeof at);
        fu_line(&e->t, "for (int64_t i%d = b0; i%d < b1; i%d++) %s_block[(i%d - b0) * %d + j] = %s[%s];", a,
                a, a, v->name, a, FU_BLOCK_TILE, e->pointer[v->buf], at);
        fu_scope_close(e);
    }
    fu_scope_open(e, "for (int64_t i%d = b0; i%d < b1; i%d++) {", a, a, a);
}

/* Stores of values that do not change inside the loops. Where an item's value does not even depend on all of
 * the item's coordinates, the one where the others are 0 stores it. */
static void write_kept(fu_em *e)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    for (int i = 0; i < p->n_store; i++)
        if (!fu_store_full(p, &p->store[i])) fu_ask(e, p->store[i].value);
    for (int i = 0; i < p->n_store; i++) {
        const fu_store *s = &p->store[i];
        if (fu_store_full(p, s)) continue;
        uint32_t missing = all_atoms(p) & ~p->red & ~s->dom;
        char only[200] = "";
        size_t k = 0;
        for (int a = 0; a < p->n_atom; a++) {
            if (!(missing >> a & 1)) continue;
            if (a < vec || p->form != FU_POINTWISE)
                k += (size_t)snprintf(only + k, sizeof only - k, "%si%d == 0", k ? " && " : "", a);
            else if (!p->tile)
                k += (size_t)snprintf(only + k, sizeof only - k, "%sbegin == 0", k ? " && " : "");
            else if (p->extent[vec] > p->tile || runtime(p, vec))
                k += (size_t)snprintf(only + k, sizeof only - k, "%sv0 == 0", k ? " && " : "");
        }
        if (k) fu_line(&e->t, "if (%s)", only);
        e->t.indent += k != 0;
        fu_put_store(e, s);
        e->t.indent -= k != 0;
    }
}

static void write_item(fu_em *e, const int *scratch)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    int64_t width = p->extent[vec], tiles = p->tile ? (width + p->tile - 1) / p->tile : 1;
    range r = {.lo = "0", .count = -1};
    char r0[16] = "", r1[16] = "";
    bool split_vec = false;
    for (int i = 0; i < p->n_value; i++) /* between-phase arrays */
        p->value[i].array = p->form == FU_COLUMN && wants_array(p, i);
    int parts_dim = p->split ? fu_dim(e, p->parts) : -1, part_dim = p->split ? fu_dim(e, p->part) : -1;
    fu_scope_open(e, "for (int64_t item = begin; item < end; item++) {");
    decode_item(e, tiles, parts_dim);
    if (p->form == FU_ROW) {
        if (runtime(p, vec)) {
            snprintf(r.hi, sizeof r.hi, "n%d", vec);
        } else {
            snprintf(r.hi, sizeof r.hi, "%lld", (long long)width);
            r.count = width;
        }
        split_vec = p->split && !(p->red & ~fu_bit(vec));
    } else {
        if (tiles > 1 || runtime(p, vec)) snprintf(r.lo, sizeof r.lo, "v0");
        if (runtime(p, vec)) {
            fu_line(&e->t, "const int64_t w = n%d - v0 < %lld ? n%d - v0 : %lld;", vec, (long long)p->tile,
                    vec, (long long)p->tile);
            snprintf(r.hi, sizeof r.hi, "w");
        } else if (width % p->tile) {
            fu_line(&e->t, "const int64_t w = %lld - v0 < %lld ? %lld - v0 : %lld;", (long long)width,
                    (long long)p->tile, (long long)width, (long long)p->tile);
            snprintf(r.hi, sizeof r.hi, "w");
        } else {
            snprintf(r.hi, sizeof r.hi, "%lld", (long long)p->tile);
            r.count = p->tile;
        }
    }
    if (p->split) {
        uint32_t outer = split_vec ? fu_bit(vec) : p->red & ~fu_bit(vec);
        int64_t n = fu_count(p, outer);
        int n_dim = fu_dim(e, n);
        fu_line(&e->t, "const int64_t r0 = part * a->dim[%d];", part_dim);
        fu_line(&e->t, "const int64_t r1 = r0 + a->dim[%d] < a->dim[%d] ? r0 + a->dim[%d] : a->dim[%d];",
                part_dim, n_dim, part_dim, n_dim);
        if (split_vec) {
            snprintf(r.lo, sizeof r.lo, "r0");
            snprintf(r.hi, sizeof r.hi, "r1");
            r.count = -1;
        } else {
            snprintf(r0, sizeof r0, "r0");
            snprintf(r1, sizeof r1, "r1");
        }
    }
    if (p->form == FU_COLUMN)
        for (int i = 0; i < p->n_value; i++)
            if (p->value[i].kind == FU_REDUCE) declare(e, &p->value[i], "acc", p->tile);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (v->stash < 0) continue;
        int64_t n = fu_count(p, p->red) * (p->form == FU_COLUMN ? p->tile : 1);
        fu_name(e, v);
        fu_line(&e->t, "%s%s %s_row[%lld];", e->lang->align, fu_type(e, v->dtype), v->name, (long long)n);
    }
    if (p->block >= 0) stage_blocks(e, &r);
    for (int phase = 0; phase < p->n_phase; phase++) {
        if (p->form == FU_COLUMN) write_between(e, phase, &r);
        e->phase = phase;
        hoist(e, phase, false);
        write_phase(e, phase, &r, r0[0] ? r0 : NULL, r1);
    }
    e->phase = p->n_phase;
    if (p->split) {
        write_partials(e, &r, scratch);
    } else if (p->form == FU_COLUMN) {
        write_between(e, p->n_phase, &r);
    } else {
        write_kept(e);
    }
    if (p->block >= 0) fu_scope_close(e);
    fu_scope_close(e);
}

/* ---- the kernel ---- */

static void mark_hot(fu_em *e, int id)
{
    if (e->hot[id]) return;
    e->hot[id] = true;
    for (int i = 0; i < e->p->value[id].n_arg; i++) mark_hot(e, e->p->value[id].arg[i]);
}

static void collect(fu_em *e)
{
    fu_prog *p = e->p;
    for (int i = 0; i < p->n_store; i++)
        if (!p->split || fu_store_full(p, &p->store[i])) mark_hot(e, p->store[i].value);
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_REDUCE) mark_hot(e, i);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        e->where[i] = -1;
        if (e->hot[i] && (v->kind == FU_LOAD || v->kind == FU_PICK))
            v->buf = fu_pointer(e, v->slot, v->offset, v->dtype, v->hint ? v->hint : "in");
    }
}

static void describe(fu_em *e, const fu_group *g)
{
    const fu_prog *p = e->p;
    static const char *const form[] = {"pointwise", "row", "column"};
    fu_text *t = &e->head;
    fu_put(t, "/* %s:", e->s->name);
    for (int i = 0; i < g->n; i++) {
        const tn_tensor *n = e->c->node[g->member[i]].t;
        fu_put(t, "%s%s%s%s", i % 8 ? " " : "\n *   ", tn_op_get((tn_op)n->op)->name, n->name ? ":" : "",
               n->name ? n->name : "");
    }
    fu_put(t, "\n * %s schedule over [", form[p->form]);
    for (int i = 0; i < p->n_atom; i++) {
        const char *sep = i ? ", " : "";
        if (runtime(p, i))
            fu_put(t, "%sn%s", sep, p->red >> i & 1 ? " reduced" : "");
        else
            fu_put(t, "%s%lld%s", sep, (long long)p->extent[i], p->red >> i & 1 ? " reduced" : "");
    }
    fu_put(t, "]");
    if (p->n_phase > 1) fu_put(t, ", %d phases", p->n_phase);
    if (p->split) fu_put(t, ", partial results per part");
    if (p->stream) fu_put(t, ", streaming stores");
    if (p->second) fu_put(t, ", combines the parts in order");
    fu_put(t, " */\n");
}

static int64_t bytes_of(const fu_em *e)
{
    const fu_prog *p = e->p;
    int64_t n = 0;
    for (int i = 0; i < e->n_pointer; i++) {
        int64_t most = 0;
        for (int k = 0; k < p->n_value; k++) {
            const fu_value *v = &p->value[k];
            if ((v->kind == FU_LOAD || v->kind == FU_PICK) && v->buf == i && e->hot[k]) {
                int64_t m = fu_count(p, v->vary);
                if (m > most) most = m;
            }
        }
        for (int k = 0; k < p->n_store; k++)
            if (p->store[k].buf == i) {
                int64_t m = fu_count(p, p->store[k].dom);
                if (m > most) most = m;
            }
        n += most * (int64_t)tn_dtype_size((tn_dtype)e->pointer_dtype[i]);
    }
    return n;
}

static int emit_one(fu_ctx *c, const fu_group *g, fu_prog *p, const int *scratch_slot)
{
    fu_em *e = tn_arena_alloc(&c->arena, sizeof *e);
    if (!e) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    e->c = c;
    e->p = p;
    e->lang = &fu_dialect_c;
    char name[64];
    fu_kernel_name(c, g, p->outer == fu_vec(p) ? 0 : p->extent[fu_vec(p)], name, sizeof name - 8);
    if (p->split) strcat(name, "_parts");
    e->s = fu_step_new(c, TN_STEP_KERNEL, name);
    if (!e->s) return TN_E_NOMEM;
    collect(e);
    int n_in = e->n_pointer, scratch[FU_MAX_VALUES];
    for (int i = 0; i < p->n_store; i++) {
        fu_store *s = &p->store[i];
        s->buf = -1;
        if (p->split && !fu_store_full(p, s)) continue;
        const tn_tensor *t = s->node < 0 ? NULL : c->node[s->node].t;
        const char *want = "out";
        bool in_place = t && t->op == TN_OP_assign;
        if (in_place && t->in[0]->name)
            want = t->in[0]->name;
        else if (t && t->name)
            want = t->name;
        else if (!in_place && p->value[s->value].hint && p->value[s->value].kind == FU_OP)
            want = p->value[s->value].hint;
        char text[64];
        snprintf(text, sizeof text, in_place || (t && t->name) ? "%.24s_out" : "%.24s", want);
        s->buf = fu_pointer(e, s->slot, s->offset, s->dtype, text);
    }
    for (int i = 0; i < p->n_value && p->split; i++)
        if (p->value[i].kind == FU_REDUCE)
            scratch[i] = fu_pointer(e, scratch_slot[i], 0, fu_compute_dtype(p->value[i].dtype), "partial");
    e->t.indent = 1;
    for (int i = 0; i < e->n_pointer; i++) {
        fu_line(&e->t, "%s%s *%s = a->buf[%d];", i < n_in ? "const " : "",
                e->lang->memory[e->pointer_dtype[i]], e->pointer[i], i);
        if (fu_step_buf(c, e->s, e->pointer_slot[i], e->pointer_offset[i]) < 0) return TN_E_NOMEM;
    }
    e->s->n_out = e->n_pointer - n_in;
    bool counted = p->red >> p->outer & 1; /* a loop runs up to the run-time extent */
    if (p->form == FU_POINTWISE && p->tile) counted = p->outer == fu_vec(p) || p->outer == p->block;
    if (counted && !p->split)
        fu_line(&e->t, "const int64_t n%d = a->dim[%d];", p->outer, fu_dim(e, p->extent[p->outer]));
    e->depth = 1;
    for (int i = 0; i < p->n_value; i++) { /* what no loop changes */
        fu_value *v = &p->value[i];
        if (e->hot[i] && !v->vary && !v->phase && v->kind != FU_NUMBER) fu_ask(e, i);
    }
    if (p->form == FU_POINTWISE && !p->tile) {
        range r = {.count = -1};
        snprintf(r.lo, sizeof r.lo, "begin");
        snprintf(r.hi, sizeof r.hi, "end");
        write_vector(e, 0, &r, NULL);
        write_kept(e);
    } else {
        write_item(e, scratch);
    }
    if (p->stream) fu_line(&e->t, "tn_stream_end();");
    describe(e, g);
    if (e->helpers & FU_HELP_FAULT)
        fu_put(&e->head, "%s", FU_INDEX_FAULT);
    fu_put(&e->head, "void %s(const tn_args *a, int64_t begin, int64_t end)\n{\n%s}\n", e->s->name,
           e->t.p ? e->t.p : "");
    bool failed = e->t.failed;
    fu_text_free(&e->t);
    e->head.failed = e->head.failed || failed;
    e->s->items = p->items;
    e->s->chunk = p->chunk;
    e->s->bytes = bytes_of(e);
    return fu_finish_kernel(c, e->s, &e->head);
}

int fu_emit(fu_ctx *c, const fu_group *g, fu_prog *p)
{
    if (!p->split) return emit_one(c, g, p, NULL);
    int slot[FU_MAX_VALUES];
    int64_t kept = fu_count(p, ~p->red & all_atoms(p));
    for (int i = 0; i < p->n_value; i++) {
        if (p->value[i].kind != FU_REDUCE) continue;
        slot[i] = fu_scratch_slot(c, kept * p->parts, fu_compute_dtype(p->value[i].dtype));
        if (slot[i] < 0) return TN_E_NOMEM;
    }
    fu_second_stage(p, c->prog2, slot);
    for (int i = 0; i < p->n_value; i++) p->value[i].name[0] = 0;
    int r = emit_one(c, g, p, slot);
    if (r) return r;
    for (int i = 0; i < c->prog2->n_value; i++) c->prog2->value[i].name[0] = 0;
    return emit_one(c, g, c->prog2, NULL);
}
