/* strided.c - operands along which the vector loop would jump (a transpose whose contiguous atom is short, a slice
 * with steps) and that no block serves (block.c): they are copied to a line on the stack before it. For the
 * gradient of a batch norm that lies as a shuffle of channels has left it, [n, 16, 4], four rows at once:
 *
 *     _Alignas(64) float in_i_line[64];
 *     for (int u = 0; u < 4; u++) {
 *         const int64_t i0 = b + u;
 *         for (int64_t j = 0; j < 16; j++) in_i_line[u * 16 + j] = in[i0 * 64 + i1 + j * 4];
 *     }
 *
 * Compilers leave a loop with such a load in single steps, where it is short or its stride is long; and single
 * steps branch at each choice, that no processor foresees. Start with fu_fill_lines. */
#include "nest.h"

#include <stdio.h>

static void fill(fu_em *e, const fu_loop *l, fu_value *v, const char *count)
{
    const fu_prog *p = e->p;
    const int vec = fu_vec(p);
    char from[300], at[40];
    fu_load_place(e, v, from, sizeof from);
    fu_line(&e->t, "%s%s %s_line%.0d[%lld];", e->lang->align, e->lang->memory[v->dtype], v->name, l->phase,
            (long long)fu_line_length(p) * (l->rows ? p->unroll : 1));
    if (l->rows) {
        fu_scope_open(e, "for (int u = 0; u < %d; u++) {", p->unroll);
        fu_line(&e->t, "const int64_t %s = b + u;", l->rows);
    }
    fu_scope_open(e, "for (int64_t j = 0; j < %s; j++) {", count);
    fu_line(&e->t, "const int64_t i%d = %s + j;", vec, l->first);
    snprintf(at, sizeof at, l->rows ? "u * %lld + j" : "j", (long long)fu_line_length(p));
    fu_line(&e->t, "%s_line%.0d[%s] = %s[%s];", v->name, l->phase, at, e->pointer[v->buf], from);
    fu_scope_close(e);
    if (l->rows) fu_scope_close(e);
}

void fu_fill_lines(fu_em *e, fu_loop *l, const char *count)
{
    TN_EACH(v, e->p->value, e->p->n_value) {
        if (!fu_has_line(e->p, v, l->phase)) continue;
        fu_name(e, v);
        fill(e, l, v, count);
        l->lines = true;
    }
}
