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
 * Both forms give the same bits. Start with fu_low_top, then fu_low_condition. */
#include "nest.h"

#include <stdio.h>

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
        if (w > 2) fu_line(&e->t, "%s", e->lang->simd);
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
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind == FU_RANDOM && fu_computed_in(p, v, phase)) return false; /* its bits are made once */
        const int top = fu_computed_in(p, v, phase) ? fu_low_top(p, v) : -1;
        if (top < 0 || listed[top]) continue;
        listed[top] = true;
        if (k < n) k += (size_t)snprintf(out + k, n - k, "%s%s_low", k ? " && " : "", p->value[top].name);
    }
    return k && k < n && !fu_index_inside(p, phase);
}
