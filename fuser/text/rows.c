/* rows.c - an assignment of some lines of its target: an item takes its part of all lines, one after the
 * other, so that of a line that is named twice the last one stays. What lies in memory that the target does is
 * copied first. Start with fu_emit_rows. */
#include "raw.h"

#include <stdio.h>

enum { TILE = 256 };

static int find(fu_ctx *c, const tn_tensor *t, int i, fu_stored *out)
{
    return fu_reads(c, t->in[i], t) == FU_UNSEEN ? fu_raw_find(c, t->in[i], out)
                                                 : fu_raw_copy(c, t->in[i], out);
}

int fu_emit_rows(fu_ctx *c, const fu_group *g)
{
    const int node = g->member[0];
    const tn_tensor *t = c->node[node].t;
    const int axis = t->attr->axis;
    const tn_dtype d = t->dtype;
    fu_stored index, src;
    int r = find(c, t, 1, &index), target;
    int64_t offset;
    if (!r) r = find(c, t, 2, &src);
    if (!r && !fu_place(c, t->in[0], &target, &offset))
        r = fu_fail(c, TN_E_INTERNAL, "the target has no memory");
    fu_raw k;
    const long long lines = t->shape[axis], rows = t->in[2]->shape[axis],
                    inner = tn_extent(t->shape, axis + 1, t->ndim);
    if (!r) r = fu_raw_open(&k, c, g, tn_op_get(t->op)->name, inner);
    if (r) return r;
    const long long tiles = k.grid ? inner : (inner + TILE - 1) / TILE;
    const int64_t items = tn_extent(t->shape, 0, axis) * tiles;
    char at[300], value[400], to[160];
    fu_raw_input(&k, &index, "index");
    fu_raw_input(&k, &src, "src");
    fu_raw_operand(&k, node, offset, d, "out", true);
    k.s->bytes += fu_bytes(src.t);
    k.fault = true;
    const int count = fu_raw_dim(&k, rows), where = fu_raw_dim(&k, node);
    const char *number = fu_raw_each(&k, items);
    fu_line(&k.t, "const int64_t part = %s %% %lld, outer = %s / %lld;", number, tiles, number, tiles);
    fu_raw_decode(&k, t, 0, axis, "outer");
    fu_open(&k.t, "for (int64_t i%d = 0; i%d < %sdim[%d]; i%d++) {", axis, axis, k.lang->args, count, axis);
    fu_line(&k.t, "const int64_t line = (int64_t)index[i%d * %lld];", axis, (long long)index.t->stride[0]);
    fu_line(&k.t, "if ((uint64_t)line >= %lld) index_fault(a, %sdim[%d], line);", lines, k.lang->args, where);
    if (k.grid)
        fu_line(&k.t, "const int64_t inner = part;");
    else {
        fu_line(&k.t, "const int64_t end_of = (part + 1) * %d < %lld ? (part + 1) * %d : %lld;", TILE, inner,
                TILE, inner);
        fu_line(&k.t, "%s", k.lang->simd);
        fu_open(&k.t, "for (int64_t inner = part * %d; inner < end_of; inner++) {", TILE);
    }
    fu_raw_decode(&k, t, axis + 1, t->ndim, "inner");
    fu_raw_index(src.t, 0, t->ndim, "i", at, sizeof at);
    fu_raw_value(&k, d, "src", at, value, sizeof value);
    snprintf(to, sizeof to, "out[(outer * %lld + line) * %lld + inner]", lines, inner);
    fu_raw_store(&k, d, to, value);
    if (!k.grid) fu_close(&k.t);
    fu_close(&k.t);
    fu_close(&k.t);
    return fu_raw_close(&k, "some lines of a target", items, rows * TILE, FU_RAW_THREADS);
}
