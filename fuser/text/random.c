/* random.c - random bits of a range of elements, in an array that the vector loop reads.
 *
 * A block of Philox serves four elements, and eight or sixteen blocks are made side by side, so that bits are
 * not made where an element asks for them. Where the loop goes piece by piece, they are made piece by piece
 * too: making those of a row takes longer than reading and writing it, and the memory would be idle
 * meanwhile. Read first: fu_fill_random. */
#include "nest.h"

#include <string.h>

static bool wanted(const fu_prog *p, const fu_value *v, int phase)
{
    return v->kind == FU_RANDOM && (v->vary >> fu_vec(p) & 1) && v->used && fu_computed_in(p, v, phase);
}

/* Returns true where pieces begin at a block of four random numbers, as then the rows that they are parts of
 * have to. */
static bool whole_blocks(const fu_prog *p, const fu_value *v)
{
    bool whole = p->tile % 4 == 0;
    for (int i = 0; i < p->n_atom; i++) whole = whole && (i == fu_vec(p) || v->stride[i] % 4 == 0);
    return whole && v->op != TN_OP_normal;
}

/* The number of the element that is `at` behind the tile's, or row's, first. */
static void element(fu_em *e, const fu_loop *l, const fu_value *v, const char *at, char *out, size_t n)
{
    char outer[256];
    fu_index(e, v->stride, ~fu_bit(fu_vec(e->p)), outer, sizeof outer);
    snprintf(out, n, "(uint64_t)(%s%s%s%s%s)", strcmp(outer, "0") ? outer : "",
             strcmp(outer, "0") ? " + " : "", l->first, *at ? " + " : "", at);
}

void fu_put_bound(fu_em *e, const fu_value *v)
{
    const char *name = v->name;
    if (v->op != TN_OP_bernoulli) return; /* dropped when the bits are below p * 2^32, as tn_dropped has it */
    fu_line(&e->t, "const double %s_share = (double)%s * 0x1p32;", name, fu_ask(e, v->arg[0]));
    fu_line(&e->t,
            "const uint32_t %s_bound = %s_share > 0 ? %s_share < 0x1p32 ? (uint32_t)%s_share : "
            "0xffffffffu : 0;",
            name, name, name, name);
    fu_line(&e->t, "const bool %s_live = %s_share < 0x1p32;", name, name);
}

void fu_fill_bits(fu_em *e, const fu_loop *l, fu_value *v, const char *count)
{
    fu_prog *p = e->p;
    int64_t n = p->form == FU_ROW ? p->extent[fu_vec(p)] : p->tile;
    char first[320];
    fu_name(e, v);
    int seed = fu_scalar(e, v->slot, TN_WORD_SEED), draw = fu_scalar(e, v->slot, TN_WORD_DRAW);
    fu_put_bound(e, v);
    bool normal = v->op == TN_OP_normal;
    fu_line(&e->t, "%s%s %s_bits[%lld];", e->lang->align, normal ? "float" : "uint32_t", v->name,
            (long long)n);
    if (l->by_pieces) {
        fu_line(&e->t, "tn_philox_draw %s_draw;", v->name);
        fu_line(&e->t, "tn_philox_open(&%s_draw, a->scalar[%d].u, a->scalar[%d].u);", v->name, seed, draw);
        return;
    }
    element(e, l, v, "", first, sizeof first);
    fu_line(&e->t, "%s(a->scalar[%d].u, a->scalar[%d].u, %s, %s, %s_bits);",
            normal ? "tn_normal_fill" : "tn_philox_fill", seed, draw, first, count, v->name);
}

void fu_fill_random(fu_em *e, const fu_loop *l, const char *count)
{
    fu_prog *p = e->p;
    for (int i = 0; i < p->n_value; i++)
        if (wanted(p, &p->value[i], l->phase)) fu_fill_bits(e, l, &p->value[i], count);
}

bool fu_random_by_pieces(const fu_prog *p, int phase)
{
    bool any = false;
    for (int i = 0; i < p->n_value; i++) {
        if (!wanted(p, &p->value[i], phase)) continue;
        any = true;
        if (!whole_blocks(p, &p->value[i])) return false;
    }
    return any;
}

void fu_take_random(fu_em *e, const fu_loop *l, const char *at, const char *count)
{
    fu_prog *p = e->p;
    char first[320];
    for (int i = 0; i < p->n_value && l->by_pieces; i++) {
        if (!wanted(p, &p->value[i], l->phase)) continue;
        element(e, l, &p->value[i], at, first, sizeof first);
        fu_line(&e->t, "tn_philox_take(&%s_draw, %s, %s, %s_bits + %s);", p->value[i].name, first, count,
                p->value[i].name, at);
    }
}
