/* scan.c - running sums and the like, by the row in ops.def: along one axis every line is sequential; lines
 * side by side are vectorised. */
#include "raw.h"

#include <stdio.h>
#include <string.h>

int fu_emit_scan(fu_ctx *c, const fu_group *g)
{
    enum { TILE = 256 };
    if (c->target->dialect == TN_DIALECT_CUDA) return fu_cuda_scan(c, g);
    int node = g->member[0], axis;
    const tn_tensor *t = c->node[node].t, *x = fu_value_of(c, t->in[0]);
    const tn_op_info *op = tn_op_get((tn_op)t->op);
    tn_dtype d = (tn_dtype)t->dtype, acc = tn_dtype_is_float(d) ? TN_F64 : d;
    axis = t->attr->axis;
    int slot = -1;
    tn_tensor dense;
    if (tn_is_number(x)) {
        if ((slot = fu_emit_dense(c, x)) < 0) return slot;
        dense = *x;
        int64_t s = 1;
        for (int a = x->ndim - 1; a >= 0; a--) {
            dense.stride[a] = s;
            s *= x->shape[a];
        }
        x = &dense;
    }
    int64_t outer = fu_raw_count(t, 0, axis), n = t->shape[axis], inner = fu_raw_count(t, axis + 1, t->ndim);
    int64_t tiles = (inner + TILE - 1) / TILE;
    fu_raw k;
    int r = fu_raw_open(&k, c, g, op->name, axis ? n : 0);
    if (r) return r;
    if (slot >= 0)
        fu_raw_operand(&k, slot, 0, d, "x", false);
    else if ((r = fu_raw_input(&k, x, "x")))
        return tn_growing_free(&k.t), r;
    fu_raw_output(&k, "out");
    fu_line(&k.t, "const int64_t n = a->dim[%d];", fu_raw_dim(&k, n));
    char at[256], element[300], value[400], stored[400];
    fu_open(&k.t, "for (int64_t item = begin; item < end; item++) {");
    if (inner > 1) {
        fu_line(&k.t, "const int64_t v0 = item %% %lld * %d, outer = item / %lld;", (long long)tiles, TILE,
                (long long)tiles);
        fu_line(&k.t, "const int64_t w = %lld - v0 < %d ? %lld - v0 : %d;", (long long)inner, TILE,
                (long long)inner, TILE);
        fu_line(&k.t, "%s sum[%d];", k.lang->type[acc], TILE);
        fu_line(&k.t, "for (int64_t j = 0; j < w; j++) sum[j] = %d;", op->start);
    } else {
        fu_line(&k.t, "const int64_t outer = item;");
        fu_line(&k.t, "%s sum = %d;", k.lang->type[acc], op->start);
    }
    fu_raw_decode(&k, t, 0, axis, "outer");
    if (t->attr->reverse)
        fu_open(&k.t, "for (int64_t i%d = n - 1; i%d >= 0; i%d--) {", axis, axis, axis);
    else
        fu_open(&k.t, "for (int64_t i%d = 0; i%d < n; i%d++) {", axis, axis, axis);
    const char *sum = inner > 1 ? "sum[j]" : "sum", *col = inner > 1 ? " + v0 + j" : "";
    if (inner > 1) {
        fu_line(&k.t, "%s", k.lang->simd);
        fu_open(&k.t, "for (int64_t j = 0; j < w; j++) {");
        fu_line(&k.t, "const int64_t inner = v0 + j;");
        fu_raw_decode(&k, t, axis + 1, t->ndim, "inner");
    }
    int from = 0, to = inner > 1 ? t->ndim : axis + 1;
    fu_raw_index(x, from, to, "i", at, sizeof at);
    snprintf(element, sizeof element, "x[%s]", at);
    snprintf(value, sizeof value, k.lang->load[d], element);
    fu_line(&k.t, "%s %s= %s;", sum, op->by, value);
    char cast[64];
    snprintf(cast, sizeof cast, "(%s)%s", k.lang->type[d], sum);
    snprintf(stored, sizeof stored, k.lang->store[d], cast);
    fu_line(&k.t, "out[(outer * n + i%d) * %lld%s] = %s;", axis, (long long)inner, col, stored);
    if (inner > 1) fu_close(&k.t);
    fu_close(&k.t);
    fu_close(&k.t);
    return fu_raw_close(&k, "running sums along one axis", inner > 1 ? outer * tiles : outer,
                        inner > 1 ? n * TILE : n);
}
