/* cuts.c - loops that are cut where a border lies. What is padded or joined is read under a test of where its
 * places are (FU_INSIDE). Where such a test follows one atom, a nest is written once for each stretch of that
 * atom in which all tests have one outcome, and in it nothing is tested, read or computed in vain:
 *
 *     for (int64_t item = begin; item < end; item++) {         concat of a [n, 300] and b [n, 200]
 *         const int64_t i0 = item;
 *     #pragma omp simd
 *         for (int64_t i1 = 0; i1 < 300; i1++) {
 *             const float a_i = a[i0 * 300 + i1];
 *             out[i0 * 500 + i1] = a_i;
 *         }
 *     #pragma omp simd
 *         for (int64_t j = 0; j < 200; j++) {
 *             const int64_t i1 = 300 + j;
 *             const float b_i = b[i0 * 200 + i1 - 300];
 *             out[i0 * 500 + i1] = b_i;
 *         }
 *     }
 *
 * Start with fu_find_cuts, then fu_known. */
#include "nest.h"

/* n / by, rounded up; by > 0. */
static int64_t over(int64_t n, int64_t by) { return n >= 0 ? (n + by - 1) / by : -(-n / by); }

/* The atom that test v follows alone, and the places [*from, *to) along it where it is true; -1: v is no such
 * test. */
static int stretch(const fu_prog *p, const fu_value *v, int64_t *from, int64_t *to)
{
    int atom = -1;
    if (v->kind != FU_INSIDE) return -1;
    for (int i = 0; i < p->n_atom; i++) {
        if (!v->stride[i]) continue;
        if (atom >= 0) return -1;
        atom = i;
    }
    if (atom < 0) return -1;
    const int64_t step = v->stride[atom], first = step > 0 ? -v->shift : v->shift - v->extent + 1;
    *from = over(first, step > 0 ? step : -step);
    *to = over(first + v->extent, step > 0 ? step : -step);
    return atom;
}

static void add_cut(fu_cuts *c, int64_t at)
{
    int k = c->n;
    for (int i = 0; i < c->n; i++)
        if (c->at[i] == at) return;
    if (c->n++ == FU_MAX_CUTS) return;
    for (; k > 0 && c->at[k - 1] > at; k--) c->at[k] = c->at[k - 1];
    c->at[k] = at;
}

/* What test `id` comes to in stretch c, as fu_known. */
static int known(const fu_prog *p, const fu_cuts *c, int id)
{
    const fu_value *v = &p->value[id];
    int64_t from, to;
    if (v->kind == FU_OP && v->op == TN_OP_logical_and && v->from == TN_BOOL) {
        const int x = known(p, c, v->arg[0]), y = known(p, c, v->arg[1]);
        return x == 0 || y == 0 ? 0 : x == 1 && y == 1 ? 1 : -1;
    }
    if (stretch(p, v, &from, &to) != c->atom) return -1;
    if (from <= c->from && c->to <= to) return 1;
    return to <= c->from || c->to <= from ? 0 : -1;
}

static int settled(const fu_prog *p, const fu_cuts *c, int id)
{
    const fu_value *v = &p->value[id];
    if (v->kind == FU_LOAD && v->n_arg && !known(p, c, v->arg[0])) return settled(p, c, v->arg[1]);
    if (v->kind != FU_OP || v->op != TN_OP_logical_and || v->from != TN_BOOL) return id;
    return known(p, c, v->arg[0]) == 1 ? v->arg[1] : known(p, c, v->arg[1]) == 1 ? v->arg[0] : id;
}

/* How many values the nest of stretch c computes; operands have lower numbers than what is made of them. */
static int computed(const fu_prog *p, const fu_cuts *c)
{
    bool asked[FU_MAX_VALUES] = {false};
    int n = 0;
    TN_EACH(s, p->store, p->n_store) {
        const int stored = s->mask < 0 ? 1 : known(p, c, s->mask);
        if (stored) asked[settled(p, c, s->value)] = true;
        if (stored < 0) asked[s->mask] = true;
    }
    for (int i = p->n_value - 1; i >= 0; i--) {
        const fu_value *v = &p->value[i];
        if (!asked[i]) continue;
        const int chosen = v->kind == FU_OP && v->op == TN_OP_where ? known(p, c, v->arg[0]) : -1;
        for (int k = 0; k < v->n_arg; k++)
            if (chosen < 0 || k == 2 - chosen) asked[settled(p, c, v->arg[k])] = true;
        n++;
    }
    return n;
}

/* The k-th stretch becomes the one being written. */
void fu_go_to_cut(const fu_prog *p, fu_cuts *c, int k)
{
    c->from = k ? c->at[k - 1] : 0;
    c->to = k == c->n ? p->extent[c->atom] : c->at[k];
}

/* The cuts along one atom; false: none, or so many that the text would be long. */
static bool cut_along(const fu_prog *p, int atom, fu_cuts *c)
{
    enum { LONG = 600 };
    int64_t from, to;
    int values = 0;
    *c = (fu_cuts){.atom = atom};
    for (int i = 0; i < p->n_value && c->n <= FU_MAX_CUTS; i++) {
        if (stretch(p, &p->value[i], &from, &to) != atom) continue;
        if (from > 0 && from < p->extent[atom]) add_cut(c, from);
        if (to > 0 && to < p->extent[atom] && c->n <= FU_MAX_CUTS) add_cut(c, to);
    }
    if (!c->n || c->n > FU_MAX_CUTS) return false;
    for (int k = 0; k <= c->n && values <= LONG; k++) {
        fu_go_to_cut(p, c, k);
        values += computed(p, c);
    }
    return values <= LONG;
}

bool fu_find_cuts(const fu_prog *p, fu_cuts *c)
{
    enum { SHORT = 8 }; /* elements that one vector holds, tested or not */
    const int vec = fu_vec(p);
    int tests[FU_MAX_ATOMS] = {0}, most = -1;
    int64_t from, to;
    if (p->form != FU_POINTWISE || p->block >= 0) return false;
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind == FU_RANDOM && v->vary >> vec & 1) return false; /* bits are made for the whole loop */
        const int atom = stretch(p, v, &from, &to);
        if (atom >= 0) tests[atom]++;
    }
    for (int k = 0; k < p->n_store; k++) { /* a store under a test is one more */
        const int atom = p->store[k].mask < 0 ? -1 : stretch(p, &p->value[p->store[k].mask], &from, &to);
        if (atom >= 0) tests[atom]++;
    }
    if (tests[vec] > (p->extent[vec] > SHORT ? 0 : 1) && cut_along(p, vec, c)) return true;
    for (int i = 0; i < vec; i++)
        if (tests[i] > 1 && (most < 0 || tests[i] >= tests[most])) most = i;
    return most >= 0 && cut_along(p, most, c); /* one test alone compilers take out of the loop */
}

int fu_known(const fu_em *e, int id) { return e->cut ? known(e->p, e->cut, id) : -1; }

int fu_settled(const fu_em *e, int id) { return e->cut ? settled(e->p, e->cut, id) : id; }

bool fu_never(const fu_em *e, const fu_store *s) { return s->mask >= 0 && !fu_known(e, s->mask); }
