/* cross.c - rows and columns in one pass: a row program that also sums over its rows.
 *
 * The backward of a norm needs sums along each row and, for the gradients of weight and bias, sums over all
 * rows of values it has at hand just then; a loss needs its mean. Such a *cross* reduction runs over the kept
 * atoms of a row program. Items are grouped in parts of fixed length; while a part's rows are walked, their
 * values are added up in the part's line of scratch, and the kernel's finish (second_stage.c) adds the lines
 * in order. What depends on a cross reduction is written by the finish, and by nothing else.
 *
 *     layer_norm backward    dx: row          weight, bias: cross, one sum for each column
 *     cross_entropy          loss: row        its mean: cross, one sum
 *     mean(softmax(x)^2)     x: row           the sum of everything: that of the rows' sums
 *
 * Start with fu_cross_sets, then fu_cross_schedule. */
#include "schedule.h"

#include <string.h>

/* ---- which axes ---- */

/* Value i gets another one before it. */
static fu_value *insert_value(fu_prog *p, int i)
{
    memmove(&p->value[i + 1], &p->value[i], (size_t)(p->n_value - i) * sizeof *p->value);
    p->n_value++;
    for (int k = i + 1; k < p->n_value; k++)
        for (int a = 0; a < p->value[k].n_arg; a++) p->value[k].arg[a] += p->value[k].arg[a] >= i;
    for (int k = 0; k < p->n_store; k++) p->store[k].value += p->store[k].value >= i;
    return &p->value[i];
}

/* Later sums over rows that are the same as value i take it. */
static void share_row(fu_prog *p, int i)
{
    const fu_value *u = &p->value[i];
    for (int k = i + 1; k < p->n_value; k++) {
        fu_value *v = &p->value[k];
        if (v->kind != FU_REDUCE || v->op != u->op || v->reduces != u->reduces || v->arg[0] != u->arg[0] ||
            v->dtype != u->dtype)
            continue;
        v->kind = FU_OP;
        v->op = TN_OP_contiguous;
        v->from = v->dtype;
        v->arg[0] = i;
        v->reduces = v->space = 0;
    }
}

/* A sum over everything, beside sums over rows, is the sum of what its rows sum up to. */
static void sum_by_rows(fu_prog *p)
{
    uint32_t all = fu_bit(p->n_atom) - 1, row = 0;
    TN_EACH(v, p->value, p->n_value)
        if (v->kind == FU_REDUCE && v->space == all && v->reduces != all && v->reduces >> fu_vec(p) & 1)
            row = v->reduces;
    for (int i = 0; i < p->n_value && row && p->n_value < FU_MAX_VALUES; i++) {
        if (p->value[i].kind != FU_REDUCE || p->value[i].reduces != all || p->value[i].op != TN_OP_reduce_sum)
            continue;
        fu_value *u = insert_value(p, i), *v = u + 1;
        v->arg[0] = i;
        u->dtype = v->from = fu_compute_dtype(u->dtype);
        u->node = -1;
        u->hint[0] = 0;
        u->reduces = row;
        u->vary = p->value[u->arg[0]].vary & ~row;
        v->space = v->reduces = all & ~row;
        v->vary = 0;
        if (fu_can(p->c->target)->meet) share_row(p, i);
        i++;
    }
}

tn_cut_reason fu_cross_sets(fu_prog *p)
{
    uint32_t all = fu_bit(p->n_atom) - 1, set[2] = {0}, below = 0;
    int n = 0;
    if (!p->second) sum_by_rows(p);
    p->red = p->cross = 0;
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind != FU_REDUCE) continue;
        if (v->space != all) { /* a sum over rows of sums along them */
            if (v->reduces != v->space || (below && below != v->space)) return TN_CUT_REDUCED_AXES;
            below = v->space;
            continue;
        }
        bool known = (n > 0 && set[0] == v->reduces) || (n > 1 && set[1] == v->reduces);
        if (known) continue;
        if (n == 2) return TN_CUT_REDUCED_AXES;
        set[n++] = v->reduces;
    }
    const uint32_t both = set[0] & set[1];
    if (n == 2 && !below &&
        (both == set[0] || both == set[1])) { /* sums of columns, and of several of them */
        p->red = set[0] | set[1];
        return TN_CUT_NONE;
    }
    if (below && !n) return TN_CUT_REDUCED_AXES;
    if (below) {
        if (set[0] == below && n == 1) return TN_CUT_REDUCED_AXES;
        int other = set[0] == below ? 1 : 0;
        if (n == 2 && set[1 - other] != below) return TN_CUT_REDUCED_AXES;
        p->red = set[other];
        p->cross = below;
    } else {
        p->red = set[0];
        p->cross = n == 2 ? set[1] : 0;
    }
    p->cross_rows = below != 0;
    if (p->cross && ((p->red & p->cross) || (p->red | p->cross) != all)) return TN_CUT_REDUCED_AXES;
    return TN_CUT_NONE;
}

/* ---- what comes after ---- */

static bool follows(const bool *after, const fu_value *v)
{
    for (int k = 0; k < v->n_arg; k++)
        if (after[v->arg[k]]) return true;
    return false;
}

/* Returns true where v can be computed in the finish: it is an operation, and does not vary over the rows. */
static bool can_follow(const fu_prog *p, const fu_value *v)
{
    uint32_t rows = ~p->red & (fu_bit(p->n_atom) - 1);
    return v->kind == FU_OP && !(v->vary & rows);
}

static bool plain_operand(const fu_prog *p, const fu_value *v)
{
    uint32_t rows = ~p->red & (fu_bit(p->n_atom) - 1);
    return (v->kind == FU_NUMBER || v->kind == FU_SCALAR || v->kind == FU_LOAD) && !(v->vary & rows);
}

static void swap_stores(fu_store *a, fu_store *b)
{
    fu_store t = *a;
    *a = *b;
    *b = t;
}

/* Few, that f32 adds up well, but so many that the parts' lines, which are written and read once more, are
 * little beside the rows; and at least 256 parts, where there are rows enough, for many threads to share. */
static int64_t rows_of_part(int64_t rows)
{
    enum { PARTS = 256, MOST = 512 };
    const int64_t few = rows >= 1 << 10 ? 64 : 16, fair = rows / PARTS;
    return fair < few ? few : fair < MOST ? fair : MOST;
}

/* A cross reduction has a sum for each element of a row. */
static bool is_wide(const fu_prog *p)
{
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].cross && fu_cross_width(p, &p->value[i]) > 1) return true;
    return false;
}

/* Short rows that leave some of a vector are computed many at a time (vector_of in schedule.c), which sums over them
 * would forbid: of many, that gains more than another pass over what is small takes. */
static bool many_ragged_rows(const fu_prog *p)
{
    enum { WHOLE = 16, SHORT = 64, MANY = 2048 };
    const int64_t width = p->extent[fu_vec(p)];
    return !fu_can(p->c->target)->grid && p->red == fu_bit(fu_vec(p)) && width % WHOLE && width < SHORT &&
           fu_count(p, p->cross) >= MANY;
}

tn_cut_reason fu_cross_schedule(fu_prog *p)
{
    enum { FEW = 64 };
    bool after[FU_MAX_VALUES] = {false};
    int vec = fu_vec(p);
    if (!(p->red >> vec & 1)) { /* the sums along the vector are the rows' */
        if (p->cross_rows) return TN_CUT_REDUCED_AXES;
        uint32_t t = p->red;
        p->red = p->cross;
        p->cross = t;
    }
    if (p->outer == vec || fu_count(p, p->cross) < FEW || fu_count(p, p->red) > FU_STASH)
        return TN_CUT_REDUCED_AXES;
    if (many_ragged_rows(p)) return TN_CUT_SHORT;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        bool follower = follows(after, v);
        v->cross = v->kind == FU_REDUCE && v->reduces == p->cross;
        after[i] = v->cross || follower;
        if (v->cross && (follower || v->op != TN_OP_reduce_sum || !tn_dtype_is_float(v->dtype)))
            return TN_CUT_REDUCED_AXES;
        if (!follower) continue;
        if (!can_follow(p, v)) return TN_CUT_REDUCED_AXES;
        for (int k = 0; k < v->n_arg; k++)
            if (!after[v->arg[k]] && !plain_operand(p, &p->value[v->arg[k]])) return TN_CUT_REDUCED_AXES;
    }
    /* sums for each element of a row, and single ones, are not finished by one loop */
    const bool wide = is_wide(p), both = fu_can(p->c->target)->finishes > 1;
    for (int i = 0; i < p->n_store;) {
        fu_store *s = &p->store[i];
        if (!after[s->value]) {
            i++;
            continue;
        }
        if (s->late || (s->dom != (wide ? p->red : 0) && (!both || s->dom))) return TN_CUT_REDUCED_AXES;
        swap_stores(s, &p->store[--p->n_store]);
        p->n_after++;
    }
    int64_t rows = fu_count(p, p->cross);
    p->part = rows_of_part(rows);
    p->parts = (rows + p->part - 1) / p->part;
    return TN_CUT_NONE;
}

bool fu_is_partial(const fu_prog *p, int id)
{
    const fu_value *v = &p->value[id];
    return v->kind == FU_REDUCE && (p->split || v->cross);
}

/* Returns how many sums a cross reduction has: one for each element of a row, or one. */
int64_t fu_cross_width(const fu_prog *p, const fu_value *v)
{
    return v->vary & p->red ? fu_count(p, p->red) : 1;
}
