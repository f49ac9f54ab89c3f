/* column.c - the nest where the vector's atom is kept and others are reduced: an item is a tile of it,
 * and each reduction has an accumulator for every element of the tile.
 *
 *     for (int64_t item = begin; item < end; item++) {         sum over the rows of [n, 512]
 *         _Alignas(64) float sum_acc[512];
 *         for (int l = 0; l < 512; l++) sum_acc[l] = 0.0f;
 *         {
 *             int64_t b = 0;
 *             for (; b + 8 <= n0; b += 8) {                     several rows at once save accumulator traffic
 *     #pragma omp simd
 *                 for (int64_t i1 = 0; i1 < 512; i1++) {
 *                     float sum_now = sum_acc[i1];
 *     #pragma GCC unroll 8
 *                     for (int u = 0; u < 8; u++) {
 *                         const int64_t i0 = b + u;
 *                         const float x_i = x[i0 * 512 + i1];
 *                         sum_now += x_i;
 *                     }
 *                     sum_acc[i1] = sum_now;
 *                 }
 *             }
 *             for (int64_t i0 = b; i0 < n0; i0++) {...}         the rows left over
 *         }
 *         for (int64_t j = 0; j < 512; j++) out[j] = sum_acc[j];
 *     }
 *
 * Between two phases a loop over the tile computes what later phases need of finished reductions.
 *
 * Start with fu_nest_column. */
#include "nest.h"

#include <stdio.h>
#include <string.h>

static void write_vector(fu_em *e, int phase, const fu_range *r, const char *rows)
{
    fu_loop l = {.phase = phase, .first = r->lo, .rows = rows, .worst = fu_index_inside(e->p, phase)};
    fu_fill_random(e, &l, r->hi);
    fu_fill_lines(e, &l, r->hi);
    if (l.worst) fu_line(&e->t, "uint64_t worst = 0;");
    fu_plain_loop(e, &l, r->lo, r->hi);
    if (l.worst) fu_report_worst(e);
}

/* A column phase over the innermost reduced atom, several rows at a time and then those left. */
static bool write_rows(fu_em *e, int phase, const fu_range *r)
{
    fu_prog *p = e->p;
    int last = fu_vec(p) - 1, n_outer = 0;
    while (last >= 0 && !(p->red >> last & 1)) last--;
    for (int i = 0; i < fu_vec(p); i++) n_outer += p->red >> i & 1;
    if (last < 0 || (r->part && n_outer > 1)) return false;
    if (!r->part && !fu_runtime(p, last) && p->extent[last] < p->unroll) return false;
    int scopes = r->part ? 0 : fu_open_outer(e, r, 1);
    char hi[32], rows[16];
    snprintf(rows, sizeof rows, "i%d", last);
    fu_extent(p, last, hi);
    if (r->part) snprintf(hi, sizeof hi, "r1");
    fu_scope_open(e, "{");
    fu_line(&e->t, "int64_t b = %s;", r->part ? "r0" : "0");
    fu_scope_open(e, "for (; b + %d <= %s; b += %d) {", p->unroll, hi, p->unroll);
    write_vector(e, phase, r, rows);
    fu_scope_close(e);
    if (r->part || fu_runtime(p, last) || p->extent[last] % p->unroll) {
        fu_scope_open(e, "for (int64_t %s = b; %s < %s; %s++) {", rows, rows, hi, rows);
        write_vector(e, phase, r, NULL);
        fu_scope_close(e);
    }
    fu_scope_close(e);
    while (scopes--) fu_scope_close(e);
    return true;
}

/* Columns that have one sum: each of them takes it. */
static void fold_columns(fu_em *e, int phase, const fu_range *r)
{
    const fu_prog *p = e->p;
    char first[80], other[80];
    if (!p->fold || !fu_phase_reduces(p, phase)) return;
    fu_scope_open(e, "for (int64_t j = 0; j < %s; j += %lld) {", r->hi, (long long)p->fold);
    TN_EACH(v, p->value, p->n_value) {
        if (!fu_reduced_in(v, phase) || v->apart) continue;
        snprintf(first, sizeof first, "%s_acc[j]", v->name);
        snprintf(other, sizeof other, "%s_acc[j + l]", v->name);
        fu_scope_open(e, "for (int l = 1; l < %lld; l++) {", (long long)p->fold);
        fu_accumulate(e, v, first, "", other);
        fu_scope_close(e);
        fu_line(&e->t, "for (int l = 1; l < %lld; l++) %s = %s;", (long long)p->fold, other, first);
    }
    fu_scope_close(e);
}

static void write_phase(fu_em *e, int phase, const fu_range *r)
{
    fu_prog *p = e->p;
    if (p->unroll > 1 && write_rows(e, phase, r)) return;
    int scopes = fu_open_outer(e, r, 0);
    if (scopes) fu_hoist(e, phase, true);
    write_vector(e, phase, r, NULL);
    while (scopes--) fu_scope_close(e);
}

/* ---- what stands between phases ---- */

bool fu_wants_array(const fu_prog *p, int id)
{
    const fu_value *v = &p->value[id];
    if (fu_full(p, v) || !(v->vary >> fu_vec(p) & 1) || v->kind == FU_REDUCE || v->kind == FU_NUMBER)
        return false;
    if (v->kind == FU_RANDOM) return true; /* its bits are made for a whole tile */
    bool slow = fu_op_cost(v) >= 4 || (p->fold && (v->kind != FU_LOAD || v->stride[p->n_atom]));
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

static bool made_now(const fu_em *e, int id, int done)
{
    const fu_value *v = &e->p->value[id];
    return v->array && v->phase == done && e->hot[id];
}

static bool stored_now(const fu_prog *p, const fu_store *s, int done)
{
    return !p->split && !fu_store_full(p, s) && s->phase == done;
}

bool fu_declare_columns(fu_em *e, int done, int64_t n)
{
    bool any = false;
    for (int i = 0; i < e->p->n_value; i++) {
        fu_value *v = &e->p->value[i];
        if (!made_now(e, i, done)) continue;
        any = true;
        fu_name(e, v);
        fu_line(&e->t, "%s%s %s_col[%lld];", e->lang->align, fu_type(e, v->dtype), v->name, (long long)n);
    }
    return any;
}

fu_value *fu_next_draw(const fu_em *e, int done, int *from)
{
    for (; *from < e->p->n_value; ++*from)
        if (e->p->value[*from].kind == FU_RANDOM && made_now(e, *from, done)) return &e->p->value[(*from)++];
    return NULL;
}

void fu_make_columns(fu_em *e, int done)
{
    for (int i = 0; i < e->p->n_value; i++) {
        fu_value *v = &e->p->value[i];
        if (!made_now(e, i, done)) continue;
        v->array = false; /* computed here, read from the array afterwards */
        const char *x = fu_ask(e, i);
        v->array = true;
        fu_line(&e->t, "%s_col[%s] = %s;", v->name, e->lane->at, x);
    }
}

bool fu_stores_columns(const fu_prog *p, int done, bool late)
{
    for (int i = 0; i < p->n_store; i++)
        if (stored_now(p, &p->store[i], done) && (!late || p->store[i].late)) return true;
    return false;
}

void fu_store_columns(fu_em *e, int done)
{
    const fu_prog *p = e->p;
    for (int i = 0; i < p->n_store; i++)
        if (stored_now(p, &p->store[i], done)) fu_ask(e, p->store[i].value);
    for (int i = 0; i < p->n_store; i++)
        if (stored_now(p, &p->store[i], done)) fu_put_store(e, &p->store[i]);
}

/* The tile loop after `done` phases: arrays for later phases, and stores of kept values. */
static void write_between(fu_em *e, int done, const fu_range *r)
{
    fu_prog *p = e->p;
    const int vec = fu_vec(p);
    const fu_loop l = {.phase = done, .first = r->lo};
    bool worst = false;
    e->ready = done;
    if (!fu_declare_columns(e, done, p->tile) && !fu_stores_columns(p, done, false)) return;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        worst = worst || (v->kind == FU_INDEX && e->hot[i] && !fu_full(p, v) && (v->vary >> vec & 1));
    }
    int at = 0;
    fu_value *draw = fu_next_draw(e, done, &at);
    const bool block = worst || draw;
    if (block) fu_scope_open(e, "{");
    if (worst) fu_line(&e->t, "uint64_t worst = 0;");
    for (; draw; draw = fu_next_draw(e, done, &at)) fu_fill_bits(e, &l, draw, r->hi);
    fu_simd(e, worst);
    fu_scope_open(e, "for (int64_t j = 0; j < %s; j++) {", r->hi);
    fu_line(&e->t, "const int64_t i%d = %s%sj;", vec, strcmp(r->lo, "0") ? r->lo : "",
            strcmp(r->lo, "0") ? " + " : "");
    fu_lane lane;
    fu_lane_of(e, &l, "j", &lane);
    e->lane = &lane;
    e->phase = done;
    fu_make_columns(e, done);
    fu_store_columns(e, done);
    e->lane = NULL;
    fu_scope_close(e);
    if (worst) fu_report_worst(e);
    if (block) fu_scope_close(e);
}

/* ---- the item ---- */

/* Partial results of a split reduction: scratch[part][kept point]. */
static void write_partials(fu_em *e, const fu_range *r, const int *scratch)
{
    fu_prog *p = e->p;
    fu_simd(e, false);
    fu_scope_open(e, "for (int64_t j = 0; j < %s; j++) {", r->hi);
    fu_line(&e->t, "const int64_t i%d = %s%sj;", fu_vec(p), strcmp(r->lo, "0") ? r->lo : "",
            strcmp(r->lo, "0") ? " + " : "");
    fu_put_partials(e, scratch, "_acc[j]");
    fu_scope_close(e);
}

void fu_nest_column(fu_em *e, const fu_range *r, const int *scratch)
{
    fu_prog *p = e->p;
    for (int i = 0; i < p->n_value; i++) p->value[i].array = fu_wants_array(p, i);
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_REDUCE) fu_declare(e, &p->value[i], "acc", p->tile);
    fu_declare_kept_rows(e);
    fu_open_block(e, r);
    for (int phase = 0; phase < p->n_phase; phase++) {
        e->phase = phase;
        fu_hoist(e, phase, false); /* before any loop over columns: what is checked in one is counted there */
        write_between(e, phase, r);
        e->phase = phase;
        write_phase(e, phase, r);
        fold_columns(e, phase, r);
    }
    e->phase = p->n_phase;
    if (p->split)
        write_partials(e, r, scratch);
    else
        write_between(e, p->n_phase, r);
    fu_close_block(e, r);
}
