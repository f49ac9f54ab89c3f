/* row.c - the nest where the vector's atom is reduced: an item is one point of the kept atoms, walked
 * once for each phase. A sum runs in FU_LANES accumulators that are folded by halves at the end, so its bits
 * do not depend on the machine's vectors; long rows go block by block into totals of a wider type.
 *
 *     for (int64_t item = begin; item < end; item++) {         softmax over [n, 768]
 *         const int64_t i0 = item;
 *         _Alignas(64) float max_lane[32];
 *         for (int l = 0; l < 32; l++) max_lane[l] = -__builtin_inff();
 *         for (int64_t b = 0; b < 768; b += 32) {               phase 0
 *     #pragma omp simd
 *             for (int l = 0; l < 32; l++) {
 *                 const int64_t i1 = b + l;
 *                 const float x_i = x[i0 * 768 + i1];
 *                 max_lane[l] = tn_max(max_lane[l], x_i);
 *             }
 *         }
 *         (fold)
 *         const float max = (float)max_lane[0];
 *         ...                                                   phase 1: the sum of exp(x - max), kept
 *         ...                                                   phase 2: the stores
 *     }
 *
 * Start with fu_nest_row. */
#include "nest.h"

#include <stdio.h>
#include <string.h>

enum {
    BLOCK = 4096,   /* elements summed in f32 before the sum goes to a wider total */
    VECTOR_FOLD = 4 /* lanes that are worth a vector when they are folded */
};

/* Sums over long rows go through totals of a wider type, block by block. */
static bool flushes(const fu_prog *p, const fu_value *v)
{
    int vec = fu_vec(p);
    if (p->form != FU_ROW || p->split || v->wide || v->op != TN_OP_reduce_sum || !tn_dtype_is_float(v->dtype))
        return false;
    if (fu_runtime(p, vec)) return true;
    int64_t width = p->extent[vec];
    return width > 2 * BLOCK || (width >= 256 && fu_count(p, p->red) > 2 * BLOCK) ||
           (width >= 256 && p->outer >= 0 && (p->red >> p->outer & 1));
}

/* ---- lanes ---- */

static void lane_loop(fu_em *e, const fu_loop *l, const char *from, const char *count, const char *piece)
{
    char i[16];
    fu_lane lane;
    snprintf(i, sizeof i, "i%d", fu_vec(e->p));
    fu_simd(e, l->worst);
    fu_scope_open(e, "for (int l = 0; l < %s; l++) {", count);
    fu_line(&e->t, "const int64_t %s = %s + l;", i, from);
    fu_lane_of(e, l, i, &lane);
    lane.piece = piece;
    fu_write_body(e, l->phase, &lane, "l");
    fu_scope_close(e);
}

/* A piece: lanes after lanes, of which what goes past the caches is written together. */
static void lanes_piece(fu_em *e, const fu_loop *l)
{
    char n[24], from[64], at[48];
    snprintf(n, sizeof n, "%d", e->p->lanes);
    for (int k = 0; k < FU_STREAM_TILE; k += e->p->lanes) {
        snprintf(from, sizeof from, "b + %d", k);
        snprintf(at, sizeof at, "%d + l", k);
        lane_loop(e, l, k ? from : "b", n, k ? at : "l");
    }
}

static void piece_loop(fu_em *e, const fu_loop *l, const char *lo, const char *hi)
{
    char i[16], n[24];
    snprintf(i, sizeof i, "i%d", fu_vec(e->p));
    snprintf(n, sizeof n, "%d", FU_STREAM_TILE);
    if (lo)
        fu_scope_open(e, "for (int64_t b = %s; b + %s <= %s; b += %s) {", lo, n, hi, n);
    else
        fu_scope_open(e, "for (; b + %s <= %s; b += %s) {", n, hi, n);
    fu_declare_pieces(e, l->phase);
    if (fu_tests_arguments(e->p, l->phase)) {
        fu_loop near = *l;
        fu_lane lane;
        fu_line(&e->t, "int far = 0;");
        fu_line(&e->t, "%s reduction(| : far)", e->lang->simd);
        fu_scope_open(e, "for (int l = 0; l < %s; l++) {", n);
        fu_line(&e->t, "const int64_t %s = b + l;", i);
        fu_lane_of(e, l, i, &lane);
        fu_test_arguments(e, l->phase, &lane);
        fu_scope_close(e);
        fu_scope_open(e, "if (far) {");
        lanes_piece(e, l);
        fu_scope_close(e);
        fu_scope_open(e, "else {");
        near.near = true;
        lanes_piece(e, &near);
        fu_scope_close(e);
    } else {
        lanes_piece(e, l);
    }
    fu_put_pieces(e, l->phase, "b", n);
    fu_scope_close(e);
}

/* Random bits for the lanes from b on; where those of more are made together, not at each turn. */
static void take_lanes(fu_em *e, const fu_loop *l, int lanes, int64_t main)
{
    char n[24];
    int each = main % FU_STREAM_TILE ? lanes : FU_STREAM_TILE;
    snprintf(n, sizeof n, "%d", each);
    bool rarely = each > lanes && l->by_pieces;
    if (rarely) fu_scope_open(e, "if (b %% %d == 0) {", each);
    fu_take_random(e, l, "b", n);
    if (rarely) fu_scope_close(e);
}

static void lanes_loop(fu_em *e, const fu_loop *l, const char *lo, const char *hi, int64_t count)
{
    int lanes = e->p->lanes;
    char n[24], from[64];
    bool pieces =
        e->p->split && !l->worst && (fu_phase_streams(e->p, l->phase) || fu_tests_arguments(e->p, l->phase));
    snprintf(n, sizeof n, "%d", lanes);
    if (count >= 0 && pieces && count % FU_STREAM_TILE == 0) {
        piece_loop(e, l, lo, hi);
        return;
    }
    if (count >= 0) { /* a whole row: from 0 */
        const int64_t main = count / lanes * lanes, tail = count - main;
        if (main == lanes) {
            fu_take_random(e, l, "0", n);
            lane_loop(e, l, "0", n, NULL);
        } else if (main) {
            fu_scope_open(e, "for (int64_t b = 0; b < %lld; b += %d) {", (long long)main, lanes);
            fu_prefetch_next(e, l->phase, "b", lanes);
            take_lanes(e, l, lanes, main);
            lane_loop(e, l, "b", n, NULL);
            fu_scope_close(e);
        }
        if (tail) {
            char rest[24];
            snprintf(rest, sizeof rest, "%lld", (long long)tail);
            snprintf(from, sizeof from, "%lld", (long long)main);
            fu_take_random(e, l, from, rest);
            lane_loop(e, l, from, rest, NULL);
        }
        return;
    }
    fu_scope_open(e, "{");
    fu_line(&e->t, "int64_t b = %s;", lo);
    if (pieces) piece_loop(e, l, NULL, hi);
    fu_scope_open(e, "for (; b + %d <= %s; b += %d) {", lanes, hi, lanes);
    lane_loop(e, l, "b", n, NULL);
    fu_scope_close(e);
    snprintf(from, sizeof from, "%s - b", hi);
    lane_loop(e, l, "b", from, NULL);
    fu_scope_close(e);
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
    int half = 1;
    while (half * 2 < lanes) half *= 2;
    for (int w = half; w > 1; w /= 2) { /* each for itself, as a vector: a loop over w would go by elements */
        snprintf(b, sizeof b, "%s_lane[l + %d]", v->name, w);
        if (w >= VECTOR_FOLD) fu_simd(e, false);
        fu_line(&e->t, "for (int l = 0; l < %d; l++)", w);
        e->t.indent++;
        fu_accumulate(e, v, a, "", b);
        e->t.indent--;
    }
    snprintf(a, sizeof a, "%s_lane[0]", v->name);
    snprintf(b, sizeof b, "%s_lane[1]", v->name);
    fu_accumulate(e, v, a, "", b);
}

static void flush_lanes(fu_em *e, int phase)
{
    TN_EACH(v, e->p->value, e->p->n_value) {
        if (!fu_reduced_in(v, phase) || !flushes(e->p, v)) continue;
        fold(e, v);
        fu_line(&e->t, "%s_total += %s_lane[0];", v->name, v->name);
    }
}

static void declare_flushed(fu_em *e, int phase)
{
    TN_EACH(v, e->p->value, e->p->n_value)
        if (fu_reduced_in(v, phase) && flushes(e->p, v)) fu_declare(e, v, "lane", e->p->lanes);
}

/* ---- one phase ---- */

static void write_vector(fu_em *e, int phase, const fu_range *r, bool low)
{
    fu_prog *p = e->p;
    fu_loop l = {.phase = phase, .first = r->lo, .worst = fu_index_inside(p, phase), .low = low};
    bool lanes = fu_phase_reduces(p, phase), flush = false;
    for (int i = 0; i < p->n_value; i++)
        flush = flush || (fu_reduced_in(&p->value[i], phase) && flushes(p, &p->value[i]));
    char count[160];
    snprintf(count, sizeof count, "%s - %s", r->hi, r->lo);
    l.by_pieces = r->count >= 0 && !strcmp(r->lo, "0") && !p->split &&
                  (lanes ? !flush : fu_phase_streams(p, phase)) && fu_random_by_pieces(p, phase);
    fu_fill_random(e, &l, r->count >= 0 ? r->hi : count);
    fu_fill_lines(e, &l, r->count >= 0 ? r->hi : count);
    if (l.worst) fu_line(&e->t, "uint64_t worst = 0;");
    if (!lanes) {
        fu_plain_loop(e, &l, r->lo, r->hi);
    } else if (!flush) {
        lanes_loop(e, &l, r->lo, r->hi, r->count);
    } else if (r->count >= 0 && r->count <= 2 * BLOCK) {
        fu_scope_open(e, "{");
        declare_flushed(e, phase);
        lanes_loop(e, &l, r->lo, r->hi, r->count);
        flush_lanes(e, phase);
        fu_scope_close(e);
    } else {
        fu_scope_open(e, "for (int64_t from = %s; from < %s; from += %d) {", r->lo, r->hi, BLOCK);
        fu_line(&e->t, "const int64_t to = %s - from < %d ? %s : from + %d;", r->hi, BLOCK, r->hi, BLOCK);
        declare_flushed(e, phase);
        lanes_loop(e, &l, "from", "to", -1);
        flush_lanes(e, phase);
        fu_scope_close(e);
    }
    if (l.worst) fu_report_worst(e);
}

/* Opens a scope where `worst` or random bits need one of their own. */
static bool open_block(fu_em *e, int phase)
{
    fu_prog *p = e->p;
    if (!fu_index_inside(p, phase) && p->n_phase < 2) return false;
    for (int i = 0; i < p->n_value; i++)
        if ((p->value[i].kind == FU_RANDOM || p->value[i].kind == FU_INDEX) &&
            (p->value[i].vary >> fu_vec(p) & 1)) {
            fu_scope_open(e, "{");
            return true;
        }
    return false;
}

static void write_phase(fu_em *e, int phase, const fu_range *r)
{
    fu_prog *p = e->p;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!fu_reduced_in(v, phase)) continue;
        fu_name(e, v);
        if (flushes(p, v))
            fu_line(&e->t, "double %s_total = 0;", v->name);
        else
            fu_declare(e, v, "lane", p->lanes);
        if (fu_wants_least(p, i)) fu_declare_least(e, v);
    }
    int scopes = fu_open_outer(e, r, 0);
    if (scopes) fu_hoist(e, phase, true);
    bool block = !scopes && open_block(e, phase);
    char low[240];
    if (fu_low_condition(p, phase, low, sizeof low)) {
        fu_scope_open(e, "if (%s) {", low);
        write_vector(e, phase, r, true);
        fu_scope_close(e);
        fu_scope_open(e, "else {");
        write_vector(e, phase, r, false);
        fu_scope_close(e);
    } else {
        write_vector(e, phase, r, false);
    }
    if (block) fu_scope_close(e);
    while (scopes--) fu_scope_close(e);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!fu_reduced_in(v, phase)) continue;
        if (flushes(p, v)) {
            fu_line(&e->t, "const %s %s = (%s)%s_total;", fu_type(e, v->dtype), v->name, fu_type(e, v->dtype),
                    v->name);
        } else {
            fold(e, v);
            fu_line(&e->t, "const %s %s = (%s)%s_%s[0];", fu_type(e, v->dtype), v->name, fu_type(e, v->dtype),
                    v->name, fu_chooses(v) ? "at" : "lane");
        }
        if (fu_wants_least(p, i)) fu_fold_least(e, v);
        e->defined[i] = e->depth;
    }
}

/* ---- the item ---- */

void fu_sum_rows(fu_em *e, const char *guard)
{
    const fu_prog *p = e->p;
    TN_EACH(v, p->value, p->n_value) {
        if (!v->cross || fu_cross_width(p, v) > 1) continue;
        const char *x = fu_ask(e, v->arg[0]);
        char acc[80];
        snprintf(acc, sizeof acc, "%s%s_sum[0]", guard, v->name);
        fu_accumulate(e, v, acc, "", x);
    }
}

void fu_nest_row(fu_em *e, const fu_range *r, const int *scratch)
{
    fu_prog *p = e->p;
    fu_open_block(e, r);
    fu_declare_kept_rows(e);
    for (int phase = 0; phase < p->n_phase; phase++) {
        e->phase = phase;
        fu_hoist(e, phase, false);
        write_phase(e, phase, r);
    }
    e->phase = p->n_phase;
    fu_sum_rows(e, "");
    if (p->split)
        fu_put_partials(e, scratch, "");
    else
        fu_write_kept(e, "");
    fu_close_block(e, r);
}
