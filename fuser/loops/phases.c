/* phases.c - passes over the reduced atoms: which value belongs to which, and what is kept from one to the
 * next.
 *
 * A value that depends on a finished reduction belongs to a later phase than that reduction's. What several
 * phases use is computed anew in each, or, where that costs more than memory that is near at hand, computed
 * once and kept. What single values cost stands here too. Start with fu_set_phases, then fu_choose_stash. */
#include "schedule.h"

bool fu_full(const fu_prog *p, const fu_value *v)
{
    return p->form == FU_POINTWISE ? v->vary >> fu_vec(p) & 1 : (v->vary & p->red) != 0;
}

bool fu_reduced_in(const fu_value *v, int phase)
{
    return v->kind == FU_REDUCE && !v->cross && v->phase == phase + 1;
}

/* ---- costs ---- */

/* Of one elementwise row: about how many vector instructions. */
static int row_cost(tn_op op)
{
    double work = tn_op_get(op)->work;
    return work > 15 ? 10 : work > 5 ? 4 : 1;
}

int fu_op_cost(const fu_value *v)
{
    switch (v->kind) {
    case FU_NUMBER:
    case FU_SCALAR:
    case FU_IOTA: return 0;
    case FU_LOAD:
    case FU_REDUCE:
    case FU_INSIDE:
    case FU_GIVEN:
    case FU_INDEX: return 1;
    case FU_PICK: return 4;
    case FU_RANDOM: return v->op == TN_OP_normal ? 60 : 25;
    case FU_OP: return v->op == TN_OP_cast || v->op == TN_OP_contiguous ? 0 : row_cost(v->op);
    }
    return 1;
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

/* ---- which phase ---- */

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

bool fu_set_phases(fu_prog *p)
{
    p->n_phase = 0;
    TN_EACH(v, p->value, p->n_value) {
        v->phase = 0;
        for (int k = 0; k < v->n_arg; k++)
            if (p->value[v->arg[k]].phase > v->phase) v->phase = p->value[v->arg[k]].phase;
        if (v->cross && v->vary & p->red && v->phase + 1 > p->n_phase) p->n_phase = v->phase + 1;
        if (v->kind == FU_REDUCE && !v->cross && ++v->phase > p->n_phase) p->n_phase = v->phase;
    }
    TN_EACH(s, p->store, p->n_store) {
        s->phase = p->value[s->value].phase;
        bool full = fu_store_full(p, s);
        if (full && s->phase + 1 > p->n_phase) p->n_phase = s->phase + 1;
    }
    TN_EACH(s, p->store, p->n_store) {
        bool full = fu_store_full(p, s);
        if (s->late) s->phase = full ? p->n_phase - 1 : p->n_phase;
    }
    if (p->form == FU_POINTWISE) p->n_phase = 1;
    return p->n_phase <= FU_MAX_PHASES;
}

static bool costs_again(const fu_prog *p, int id)
{
    enum { WORTH = 6 };
    uint64_t seen[(FU_MAX_VALUES + 63) / 64] = {0};
    return fu_again_cost(p, id, seen) >= WORTH;
}

/* A kept value that costs little to compute from other kept values is not kept itself. */
static void keep_fewer(fu_prog *p)
{
    for (int i = p->n_value - 1; i >= 0; i--) {
        fu_value *v = &p->value[i];
        int kept = v->stash;
        if (kept < 0) continue;
        v->stash = -1;
        if (costs_again(p, i)) v->stash = kept;
    }
    fu_mark_needs(p);
}

/* Expensive values that several phases use are computed once and kept. */
void fu_choose_stash(fu_prog *p)
{
    uint32_t vec = fu_bit(fu_vec(p));
    int64_t row = p->form == FU_ROW ? fu_count(p, p->red) : fu_count(p, p->red) * p->tile;
    bool runtime = p->outer >= 0 && (p->red >> p->outer & 1);
    fu_mark_needs(p);
    if (p->split || p->n_phase < 2 || runtime || row > FU_STASH) return;
    int kept = 0;
    for (int i = p->n_value - 1; i >= 0 && kept < 4; i--) {
        fu_value *v = &p->value[i];
        if (v->kind == FU_LOAD || !(v->vary & vec) || __builtin_popcount(v->need) < 2) continue;
        if (!costs_again(p, i)) continue;
        int first = 0;
        while (!(v->need >> first & 1)) first++;
        v->stash = first;
        kept++;
        fu_mark_needs(p);
    }
    keep_fewer(p);
}

/* ---- what a phase holds ---- */

uint32_t fu_all_atoms(const fu_prog *p) { return fu_bit(p->n_atom) - 1; }

bool fu_runtime(const fu_prog *p, int atom) { return atom == p->outer; }

bool fu_computed_in(const fu_prog *p, const fu_value *v, int phase)
{
    return fu_full(p, v) && (v->need >> phase & 1) && !(v->stash >= 0 && phase > v->stash);
}

bool fu_index_inside(const fu_prog *p, int phase)
{
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_INDEX && (p->value[i].vary >> fu_vec(p) & 1) &&
            (fu_computed_in(p, &p->value[i], phase) || !fu_full(p, &p->value[i])))
            return true;
    return false;
}

bool fu_phase_streams(const fu_prog *p, int phase)
{
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].stream && p->store[i].phase == phase) return true;
    return false;
}

bool fu_phase_reduces(const fu_prog *p, int phase)
{
    for (int i = 0; i < p->n_value; i++)
        if (fu_reduced_in(&p->value[i], phase)) return true;
    return false;
}

/* ---- exponentials of how far elements lie below their row's largest (text/spread.c) ---- */

enum { LONG_ROW = 256 };

/* The largest of all that v subtracts it from, in the same row, or -1. */
static int top_of(const fu_prog *p, const fu_value *v)
{
    if (v->kind != FU_OP || v->op != TN_OP_exp || fu_compute_dtype(v->from) != TN_F32) return -1;
    const fu_value *less = &p->value[v->arg[0]];
    if (less->kind != FU_OP || less->op != TN_OP_sub || less->from != v->from) return -1;
    const int top = less->arg[1];
    const fu_value *max = &p->value[top];
    const bool largest = max->kind == FU_REDUCE && max->op == TN_OP_reduce_max && !max->cross;
    return largest && max->reduces == p->red && max->arg[0] == less->arg[0] ? top : -1;
}

static bool long_rows(const fu_prog *p)
{
    return p->form == FU_ROW && !p->split && !p->second && !fu_runtime(p, fu_vec(p)) &&
           p->extent[fu_vec(p)] >= LONG_ROW && fu_can(p->c->target)->two_forms;
}

int fu_low_top(const fu_prog *p, const fu_value *v) { return long_rows(p) ? top_of(p, v) : -1; }

bool fu_wants_least(const fu_prog *p, int id)
{
    if (p->value[id].kind != FU_REDUCE || !long_rows(p)) return false;
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].used && top_of(p, &p->value[i]) == id) return true;
    return false;
}
