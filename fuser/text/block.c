/* block.c - what lies crosswise: its elements are contiguous along another atom than the vector's (a
 * transpose).
 *
 * An item is then a block of lines, rows or whole columns. Operands that lie so are first read along their
 * own lines into a block on the stack, turned (tn_turn where elements are of 4 bytes), and results that do
 * are put into such a block and turned into their place when all of it is there. For a layer norm of x [n,
 * 64, 128] that a product has left as [n, 128, 64]:
 *
 *     const int64_t b1 = 64 - b0 < 32 ? 64 : b0 + 32;
 *     _Alignas(64) float in_i_block[4608];
 *     {
 *         const int64_t i1 = b0, i2 = 0;
 *         tn_turn(in_i_block, 144, in + i0 * 8192 + i1 + i2 * 64, 64, 128, b1 - b0);
 *     }
 *     for (int64_t i1 = b0; i1 < b1; i1++) {
 *         ... in_i_block[(i1 - b0) * 144 + i2] ...
 *     }
 *
 * Start with fu_open_block. */
#include "nest.h"

#include <stdio.h>

/* What lies in memory with these strides is read into the block of that name, or written from it. */
static void turn(fu_em *e, const fu_range *r, const char *name, int buf, tn_dtype dtype,
                 const int64_t *stride, bool writes)
{
    const fu_prog *p = e->p;
    const int a = p->block, vec = fu_vec(p);
    const bool whole = p->form == FU_COLUMN;
    const long long pitch = fu_block_pitch(p), apart = stride[vec];
    char at[256], memory[320], lines[32] = "b1 - b0";
    fu_index(e, stride, ~0u, at, sizeof at);
    snprintf(memory, sizeof memory, "%s + %s", e->pointer[buf], at);
    if (whole) snprintf(lines, sizeof lines, "%d", p->lines);
    fu_scope_open(e, "{");
    fu_line(&e->t, "const int64_t i%d = %s, i%d = %s;", a, whole ? "0" : "b0", vec, r->lo);
    if (tn_dtype_size(dtype) == 4 && writes) {
        fu_line(&e->t, "tn_turn(%s, %lld, %s_block, %lld, %s, %s);", memory, apart, name, pitch, lines,
                r->hi);
    } else if (tn_dtype_size(dtype) == 4) {
        fu_line(&e->t, "tn_turn(%s_block, %lld, %s, %lld, %s, %s);", name, pitch, memory, apart, r->hi,
                lines);
    } else {
        fu_line(&e->t, "for (int64_t j = 0; j < %s; j++)", r->hi);
        fu_line(&e->t, "    for (int64_t k = 0; k < %s; k++)", lines);
        if (writes)
            fu_line(&e->t, "        (%s)[k + j * %lld] = %s_block[k * %lld + j];", memory, apart, name,
                    pitch);
        else
            fu_line(&e->t, "        %s_block[k * %lld + j] = (%s)[k + j * %lld];", name, pitch, memory,
                    apart);
    }
    fu_scope_close(e);
}

static void declare(fu_em *e, const char *name, tn_dtype d)
{
    fu_line(&e->t, "%s%s %s_block[%lld];", e->lang->align, e->lang->memory[d], name,
            (long long)(e->p->lines * fu_block_pitch(e->p)));
}

/* Reads the operands, then opens the loop over the block's lines. */
void fu_open_block(fu_em *e, const fu_range *r)
{
    fu_prog *p = e->p;
    const int a = p->block;
    char extent[32];
    if (a < 0) return;
    fu_extent(p, a, extent);
    if (p->form != FU_COLUMN)
        fu_line(&e->t, "const int64_t b1 = %s - b0 < %d ? %s : b0 + %d;", extent, p->lines, extent, p->lines);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->staged || !e->hot[i]) continue;
        fu_name(e, v);
        declare(e, v->name, v->dtype);
        turn(e, r, v->name, v->buf, v->dtype, v->stride, false);
    }
    TN_EACH(s, p->store, p->n_store)
        if (s->staged) declare(e, e->pointer[s->buf], s->dtype);
    if (p->form != FU_COLUMN) fu_scope_open(e, "for (int64_t i%d = b0; i%d < b1; i%d++) {", a, a, a);
}

void fu_close_block(fu_em *e, const fu_range *r)
{
    const fu_prog *p = e->p;
    if (p->block < 0) return;
    if (p->form != FU_COLUMN) fu_scope_close(e);
    TN_EACH(s, p->store, p->n_store)
        if (s->staged) turn(e, r, e->pointer[s->buf], s->buf, s->dtype, s->stride, true);
}
