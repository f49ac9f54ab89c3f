/* atoms.c - the loops of a program: how many iterations, in which order, and which of them are walked as one.
 *
 * Domains are cut into as many atoms as any node tells apart. What all loads, stores and reductions walk in
 * one stride becomes one atom again, and the atom along which most memory lies contiguous is made the last
 * one, the vector's. Whatever moves atoms moves the masks and strides of all values and stores with them.
 * Start with fu_merge_atoms. */
#include "schedule.h"

#include <string.h>

int fu_vec(const fu_prog *p) { return p->n_atom - 1; }

int64_t fu_count(const fu_prog *p, uint32_t atoms)
{
    int64_t k = 1;
    for (int i = 0; i < p->n_atom; i++)
        if (atoms & fu_bit(i)) k *= p->extent[i];
    return k;
}

int64_t fu_elements(const fu_prog *p, const int64_t *stride, uint32_t atoms)
{
    const bool once = p->fold && stride[p->n_atom] && atoms >> fu_vec(p) & 1;
    return fu_count(p, atoms) / (once ? p->fold : 1);
}

static uint32_t move_bits(uint32_t m, const int *position, int n)
{
    uint32_t out = 0;
    for (int i = 0; i < n; i++)
        if (m & fu_bit(i)) out |= fu_bit(position[i]);
    return out;
}

static void move_strides(int64_t *s, const int *position, int n)
{
    int64_t old[FU_MAX_ATOMS];
    memcpy(old, s, sizeof old);
    memset(s, 0, sizeof old);
    for (int i = 0; i < n; i++) s[position[i]] = old[i];
}

void fu_reorder(fu_prog *p, const int *position)
{
    int n = p->n_atom;
    move_strides(p->extent, position, n);
    p->red = move_bits(p->red, position, n);
    p->cross = move_bits(p->cross, position, n);
    TN_EACH(v, p->value, p->n_value) {
        move_strides(v->stride, position, n);
        v->vary = move_bits(v->vary, position, n);
        v->reduces = move_bits(v->reduces, position, n);
        v->space = move_bits(v->space, position, n);
    }
    for (int i = 0; i < p->n_store; i++) {
        move_strides(p->store[i].stride, position, n);
        p->store[i].dom = move_bits(p->store[i].dom, position, n);
    }
}

bool fu_chooses(const fu_value *v)
{
    return v->kind == FU_REDUCE && (v->op == TN_OP_reduce_argmax || v->op == TN_OP_reduce_argmin);
}

static bool strided(const fu_value *v)
{
    return v->kind == FU_LOAD || v->kind == FU_PICK || v->kind == FU_IOTA || v->kind == FU_RANDOM ||
           v->kind == FU_INSIDE || v->kind == FU_GIVEN || fu_chooses(v);
}

/* Returns true where v tests only the coordinate that atom a counts, and can instead test the position that a
 * and the short atom behind it count together. */
static bool scalable(const fu_prog *p, const fu_value *v, int a)
{
    enum { SHORT = 64 };
    return v->kind == FU_INSIDE && v->stride[a] == 1 && !v->stride[a + 1] && p->extent[a + 1] < SHORT;
}

/* Returns true where every value and store walks atoms a and a + 1 as if they were one loop. */
static bool mergeable(const fu_prog *p, int a)
{
    int b = a + 1;
    if ((p->red >> a & 1) != (p->red >> b & 1)) return false;
    TN_EACH(v, p->value, p->n_value) {
        if (strided(v) && v->stride[a] != v->stride[b] * p->extent[b] && (p->red || !scalable(p, v, a)))
            return false;
        if (v->kind == FU_REDUCE &&
            ((v->space >> a & 1) != (v->space >> b & 1) || (v->reduces >> a & 1) != (v->reduces >> b & 1)))
            return false;
    }
    TN_EACH(s, p->store, p->n_store)
        if ((s->dom >> a & 1) != (s->dom >> b & 1) || s->stride[a] != s->stride[b] * p->extent[b])
            return false;
    return true;
}

/* The tests of atom a become tests of it and the next one together, also for what depends on them. */
static void scale_tests(fu_prog *p, int a)
{
    for (int i = 0; i < p->n_value && !p->red; i++) {
        fu_value *v = &p->value[i];
        if (scalable(p, v, a)) {
            int64_t by = p->extent[a + 1];
            for (int k = 0; k < p->n_atom; k++) v->stride[k] *= by;
            v->stride[a + 1] = 1;
            v->shift *= by;
            v->extent *= by;
            v->vary |= fu_bit(a + 1);
        }
        for (int k = 0; k < v->n_arg; k++) v->vary |= p->value[v->arg[k]].vary;
    }
}

/* Atoms a and a + 1 become one: the pair takes the outer one's place and the inner one's strides. */
static void merge(fu_prog *p, int a)
{
    int position[FU_MAX_ATOMS], last = p->n_atom - 1;
    int64_t both = p->extent[a] * p->extent[a + 1];
    for (int i = 0; i < p->n_atom; i++) position[i] = i < a ? i : i == a ? last : i - 1;
    fu_reorder(p, position);
    p->extent[a] = both;
    p->n_atom = last;
    uint32_t gone = ~fu_bit(last);
    p->red &= gone;
    p->cross &= gone;
    for (int i = 0; i < p->n_value; i++) {
        p->value[i].vary &= gone;
        p->value[i].reduces &= gone;
        p->value[i].space &= gone;
        p->value[i].stride[last] = 0;
    }
    for (int i = 0; i < p->n_store; i++) {
        p->store[i].dom &= gone;
        p->store[i].stride[last] = 0;
    }
}

void fu_merge_atoms(fu_prog *p)
{
    for (int a = 0; a + 1 < p->n_atom;) {
        if (!mergeable(p, a)) {
            a++;
            continue;
        }
        scale_tests(p, a);
        merge(p, a);
    }
}

/* ---- short rows side by side ---- */

/* Returns true where strides walk atom a and the vector's, behind it, as one, or know only which a it is. */
static bool foldable(const fu_prog *p, const int64_t *stride, int a, bool coarse)
{
    return stride[a] == stride[a + 1] * p->extent[a + 1] || (coarse && !stride[a + 1]);
}

static bool may_fold(const fu_prog *p, int a)
{
    enum { ROWS = 8, VECTORS = 2, WINDOW = 256 }; /* that are worth adding neighbours up; that hide a rest */
    const int vec = a + 1;
    const uint32_t columns = p->red & ~fu_bit(vec);
    const int64_t width = p->extent[vec], lanes = p->c->target->vector_bytes / 4;
    const bool row = p->red >> vec & 1;
    const int64_t count = fu_count(p, columns);
    bool apart = false;
    if (a < 1 || p->second || p->cross || p->red >> a & 1 || !columns ||
        (row ? count < ROWS : count > WINDOW || width >= lanes))
        return false;
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind == FU_REDUCE && row && v->reduces != p->red) {
            if (v->reduces != columns) return false;
            apart = true;
        }
        if (v->kind == FU_INDEX || v->kind == FU_PICK || (row && fu_chooses(v)) ||
            (strided(v) && !foldable(p, v->stride, a, v->kind == FU_LOAD && !v->n_arg)))
            return false;
    }
    TN_EACH(s, p->store, p->n_store)
        if (!(s->dom >> a & 1) || !foldable(p, s->stride, a, s->mask < 0)) return false;
    return apart || (width % lanes && width < VECTORS * lanes);
}

/* Sums along a short vector, as those of a group of channels, leave most lanes empty, and read little of each
 * line of memory. Where what follows in memory are other such rows, they are walked together: each column is
 * added up for itself, and neighbours are when the loops are over. So sums of single columns, as the gradient
 * of a group norm's weight needs them, can be had in the same pass. */
void fu_fold_columns(fu_prog *p)
{
    const int vec = fu_vec(p), a = vec - 1;
    int64_t coarse[FU_MAX_VALUES + FU_MAX_STORES];
    p->fold = 0;
    if (!may_fold(p, a)) return;
    const uint32_t outer = fu_bit(a), inner = fu_bit(vec);
    const int64_t sums = p->extent[a], width = p->extent[vec];
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (v->vary & outer) v->vary |= inner;
        v->apart = v->kind == FU_REDUCE && !(v->reduces & inner);
        v->reduces &= ~inner;
        coarse[i] = v->stride[vec] ? 0 : v->stride[a];
    }
    for (int i = 0; i < p->n_store; i++) {
        p->store[i].dom |= inner;
        coarse[p->n_value + i] = p->store[i].stride[vec] ? 0 : p->store[i].stride[a];
    }
    p->red &= ~inner;
    merge(p, a);
    p->fold = width;
    p->extent[p->n_atom] = sums;
    for (int i = 0; i < p->n_value; i++) p->value[i].stride[p->n_atom] = coarse[i];
    for (int i = 0; i < p->n_store; i++) p->store[i].stride[p->n_atom] = coarse[p->n_value + i];
}

/* The atom along which most of what is read and written lies contiguous, counted in elements. A few that are
 * contiguous gain little where there is much to compute. */
int fu_choose_vector(const fu_prog *p, bool dear)
{
    enum { FEW = 8 };
    int best = p->n_atom - 1;
    int64_t best_score = -1;
    for (int a = p->n_atom - 1; a >= 0; a--) {
        int64_t score = 0;
        TN_EACH(v, p->value, p->n_value) {
            if (v->kind == FU_RANDOM && v->stride[a] == 1) score += 8 * fu_count(p, v->vary);
            if ((v->kind == FU_LOAD || v->kind == FU_PICK) && v->stride[a] == 1)
                score += v->kind == FU_LOAD && v->n_arg ? v->extent : fu_count(p, v->vary);
        }
        for (int i = 0; i < p->n_store; i++)
            if (p->store[i].stride[a] == 1) score += fu_count(p, p->store[i].dom) + 1;
        if (p->extent[a] < FEW && dear) score = score * p->extent[a] / FEW;
        if (score > best_score) {
            best_score = score;
            best = a;
        }
    }
    return best;
}

void fu_move_last(fu_prog *p, int a)
{
    int position[FU_MAX_ATOMS];
    for (int i = 0; i < p->n_atom; i++) position[i] = i < a ? i : i == a ? p->n_atom - 1 : i - 1;
    fu_reorder(p, position);
}
