/* spread.c - exponentials of how far the elements of a row lie below the largest.
 *
 * Softmax, logsumexp and cross entropy ask for e^(x - max x). Where no element lies so far below the largest
 * that its power is denormal, or is not a number, a third of the function's instructions has nothing to do.
 * So the pass that looks for the largest looks for the least as well, which costs it little, as it waits for
 * loads; and the pass of the exponentials has two texts, one of them with the short form:
 *
 *     max_lane[l] = tn_max(max_lane[l], x_i);
 *     max_least[l] = x_i < max_least[l] ? x_i : max_least[l];
 *     ...
 *     const bool max_low = max_least[0] - max >= TN_EXP_LEAST;
 *     if (max_low) { ... tn_exp_low_f32(sub) ... } else { ... tn_exp(sub) ... }
 *
 * Both forms give the same bits. Start with fu_low_form, then fu_low_condition.
 */
#include "nest.h"

#include <stdio.h>

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
           p->extent[fu_vec(p)] >= LONG_ROW && p->c->target->dialect == TN_DIALECT_C;
}

bool fu_low_form(const fu_prog *p, const fu_value *v)
{
    return long_rows(p) && top_of(p, v) >= 0;
}

bool fu_wants_least(const fu_prog *p, int id)
{
    if (p->value[id].kind != FU_REDUCE || !long_rows(p)) return false;
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].used && top_of(p, &p->value[i]) == id) return true;
    return false;
}

void fu_declare_least(fu_em *e, const fu_value *v)
{
    fu_line(&e->t, "%sfloat %s_least[%d];", e->lang->align, v->name, e->p->lanes);
    fu_line(&e->t, "for (int l = 0; l < %d; l++) %s_least[l] = __builtin_inff();", e->p->lanes, v->name);
}

void fu_put_least(fu_em *e, const fu_value *v, const char *lane, const char *x)
{
    fu_line(&e->t, "%s_least[%s] = %s < %s_least[%s] ? %s : %s_least[%s];", v->name, lane, x, v->name, lane,
            x, v->name, lane);
}

/* A NaN anywhere makes the largest one, and the comparison false. */
void fu_fold_least(fu_em *e, const fu_value *v)
{
    const char *n = v->name;
    int half = 1;
    while (half * 2 < e->p->lanes) half *= 2;
    for (int w = e->p->lanes > 1 ? half : 0; w; w /= 2) {
        if (w > 2) fu_simd(e, false);
        fu_line(&e->t, "for (int l = 0; l < %d; l++)", w);
        fu_line(&e->t, "    %s_least[l] = %s_least[l + %d] < %s_least[l] ? %s_least[l + %d] : %s_least[l];",
                n, n, w, n, n, w, n);
    }
    fu_line(&e->t, "const bool %s_low = %s_least[0] - %s >= TN_EXP_LEAST;", n, n, n);
}

bool fu_low_condition(const fu_prog *p, int phase, char *out, size_t n)
{
    size_t k = 0;
    bool listed[FU_MAX_VALUES] = {false};
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        if (v->kind == FU_RANDOM && fu_computed_in(p, v, phase)) return false; /* its bits are made once */
        const int top = fu_low_form(p, v) && fu_computed_in(p, v, phase) ? top_of(p, v) : -1;
        if (top < 0 || listed[top]) continue;
        listed[top] = true;
        if (k < n) k += (size_t)snprintf(out + k, n - k, "%s%s_low", k ? " && " : "", p->value[top].name);
    }
    return k && k < n && !fu_index_inside(p, phase);
}
