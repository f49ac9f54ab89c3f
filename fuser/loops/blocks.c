/* blocks.c - which operands and results go through blocks on the stack, since their memory jumps along the
 * vector and is contiguous along another atom (text/block.c, text/cuda_block.c); and which through lines, where
 * no block serves (text/strided.c).
 *
 * Start with fu_choose_block. */
#include "schedule.h"
#include "../../src/core/int64.h"

/* The memory jumps along the vector and is contiguous along atom a. */
static bool crosswise(const fu_prog *p, const int64_t *stride, int64_t shift, int a)
{
    const int64_t s = stride[fu_vec(p)];
    return !shift && s != 0 && s != 1 && s != -1 && stride[a] == 1 && p->extent[a] >= 8;
}

static bool load_crosswise(const fu_prog *p, const fu_value *v, int a)
{
    return v->kind == FU_LOAD && !v->n_arg && crosswise(p, v->stride, v->shift, a);
}

static bool store_crosswise(const fu_prog *p, const fu_store *s, int a)
{
    return s->mask < 0 && fu_store_full(p, s) && crosswise(p, s->stride, s->shift, a);
}

/* Of programs that reduce: what runs along the innermost of the rows, or down the columns, as far as there is
 * room for whole rows and columns. */
static void choose_whole_block(fu_prog *p)
{
    const int vec = fu_vec(p);
    const bool row = p->form == FU_ROW;
    int a = vec - 1;
    while (!row && a > 0 && !(p->red >> a & 1)) a--;
    const uint32_t reduced = fu_bit(row ? vec : a);
    if (p->split || p->second || p->fold || p->red != reduced || fu_runtime(p, row ? vec : a)) return;
    int64_t bytes = 0; /* of a line of all blocks */
    TN_EACH(v, p->value, p->n_value)
        if (load_crosswise(p, v, a)) bytes += (int64_t)tn_dtype_size(v->dtype);
    TN_EACH(s, p->store, p->n_store)
        if (crosswise(p, s->stride, s->shift, a)) bytes += (int64_t)tn_dtype_size(s->dtype);
    if (!bytes) return;
    if (row) {
        p->lines = FU_BLOCK;
        while (p->lines > 8 && p->lines * fu_block_pitch(p) * bytes > FU_BLOCK_ROOM) p->lines /= 2;
        if (p->lines * fu_block_pitch(p) * bytes > FU_BLOCK_ROOM) return;
    } else {
        const int64_t tile = p->tile;
        if (p->tile > FU_BLOCK_TILE && p->extent[a] * fu_block_pitch(p) * bytes > FU_BLOCK_ROOM)
            p->tile = FU_BLOCK_TILE;
        if (p->extent[a] * fu_block_pitch(p) * bytes > FU_BLOCK_ROOM) {
            p->tile = tile;
            return;
        }
        p->lines = (int)p->extent[a];
    }
    p->block = a;
    TN_EACH(v, p->value, p->n_value) v->staged = load_crosswise(p, v, a);
    TN_EACH(s, p->store, p->n_store) s->staged = store_crosswise(p, s, a);
}

/* A load that jumps along the vector but is contiguous along another atom is read in blocks of both; so is
 * written, on a CPU, what lies so. */
void fu_choose_block(fu_prog *p)
{
    int vec = fu_vec(p);
    p->block = -1;
    p->lines = FU_BLOCK;
    for (int i = 0; i < p->n_value; i++) p->value[i].staged = false;
    for (int i = 0; i < p->n_store; i++) p->store[i].staged = false;
    if (p->n_atom < 2 || p->extent[vec] < 8) return;
    if (p->form != FU_POINTWISE) {
        if (!fu_can(p->c->target)->grid) choose_whole_block(p);
        return;
    }
    bool inside = false; /* the loops are cut where that changes, unless there is a block */
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind == FU_RANDOM) return;
        inside = inside || v->kind == FU_INSIDE;
    }
    TN_EACH(v, p->value, p->n_value)
        for (int a = 0; a < vec; a++)
            if (load_crosswise(p, v, a) && (p->block < 0 || p->block == a)) {
                p->block = a;
                v->staged = true;
            }
    TN_EACH(s, p->store, p->n_store)
        for (int a = 0; a < vec && !fu_can(p->c->target)->grid; a++)
            if (store_crosswise(p, s, a) && !s->late && (p->block == a || (p->block < 0 && !inside))) {
                p->block = a;
                s->staged = true;
            }
}

/* Elements from one line of a block to the next: never a power of two, whose lines would drive each other out
 * of the nearest cache. */
int64_t fu_block_pitch(const fu_prog *p)
{
    enum { LINE = 16 };
    const int64_t width = p->form == FU_COLUMN ? p->tile : p->extent[fu_vec(p)];
    return p->form == FU_POINTWISE ? FU_BLOCK_TILE : tn_ceil_div(width, LINE) * LINE + LINE;
}

int64_t fu_line_length(const fu_prog *p) { return p->form == FU_ROW ? p->extent[fu_vec(p)] : p->tile; }

bool fu_has_line(const fu_prog *p, const fu_value *v, int phase)
{
    enum { FEW = 8, DEAR = 4, ROOM = 1 << 14 }; /* what is dear is not to be computed in single steps */
    const int64_t s = v->stride[fu_vec(p)], n = fu_line_length(p) * (p->form == FU_COLUMN ? p->unroll : 1);
    if (v->kind != FU_LOAD || v->n_arg || v->staged || !v->used || !fu_computed_in(p, v, phase)) return false;
    if (p->fold || fu_can(p->c->target)->grid || (p->form == FU_ROW && fu_runtime(p, fu_vec(p))))
        return false;
    int64_t few = FEW;
    TN_EACH(o, p->value, p->n_value)
        if (o->kind == FU_OP && fu_op_cost(o) >= DEAR && fu_computed_in(p, o, phase)) few = 2;
    return s != 0 && s != 1 && fu_line_length(p) >= few && n * (int64_t)tn_dtype_size(v->dtype) <= ROOM;
}
