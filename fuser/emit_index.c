/* emit_index.c - scatter_add and index_add without atomics and always in one order: an item owns a range of
 * the target's lines along the axis, zeroes it, then walks the whole index and adds what falls into its
 * range. Start with fu_emit_scatter. */
#include "raw.h"

#include <stdio.h>
#include <string.h>

/* Loops over the axes behind `axis`; the caller writes the body with i<axis+1> .. and closes them. */
static int open_inner(fu_raw *k, const tn_tensor *src, int axis, bool simd)
{
    for (int i = axis + 1; i < src->ndim; i++) {
        if (simd && i == src->ndim - 1) fu_line(&k->t, "%s", k->lang->simd);
        fu_open(&k->t, "for (int64_t i%d = 0; i%d < %lld; i%d++) {", i, i, (long long)src->shape[i], i);
    }
    return src->ndim - axis - 1;
}

int fu_emit_scatter(fu_ctx *c, const fu_group *g)
{
    if (c->target->dialect == TN_DIALECT_CUDA) return fu_cuda_scatter(c, g);
    int node = g->member[0], axis;
    const tn_tensor *t = c->node[node].t, *src = fu_value_of(c, t->in[0]), *index = fu_value_of(c, t->in[1]);
    bool by_line = t->op == TN_OP_index_add;
    tn_dtype d = (tn_dtype)t->dtype, acc = fu_compute_dtype(d);
    axis = t->attr->axis;
    tn_tensor dense[2];
    const tn_tensor **operand[2] = {&src, &index};
    int slot[2] = {-1, -1};
    for (int i = 0; i < 2; i++) { /* numbers are written out first */
        const tn_tensor *x = *operand[i];
        if (tn_op_get((tn_op)x->base->op)->kind != TN_KIND_NUMBER) continue;
        if ((slot[i] = fu_emit_dense(c, x, node)) < 0) return slot[i];
        dense[i] = *x;
        int64_t s = 1;
        for (int a = x->ndim - 1; a >= 0; a--) {
            dense[i].stride[a] = s;
            s *= x->shape[a];
        }
        *operand[i] = &dense[i];
    }
    int64_t outer = fu_raw_count(t, 0, axis), lines = t->shape[axis],
            inner = fu_raw_count(t, axis + 1, t->ndim);
    int64_t ranges = outer >= 16 ? 1 : lines < 16 ? lines : 16;
    if (ranges < 1) ranges = 1;
    int64_t range = (lines + ranges - 1) / ranges;
    int wide = -1;
    if (acc != d && (wide = fu_scratch_slot(c, tn_node_numel(t), acc)) < 0) return wide;
    fu_raw k;
    int r = fu_raw_open(&k, c, g, tn_op_get((tn_op)t->op)->name, inner > 1 ? inner : lines);
    if (r) return r;
    k.fault = true;
    if (slot[0] >= 0)
        fu_raw_operand(&k, slot[0], 0, d, "src", false);
    else if ((r = fu_raw_input(&k, src, "src")))
        return fu_text_free(&k.t), r;
    if (slot[1] >= 0)
        fu_raw_operand(&k, slot[1], 0, (tn_dtype)index->dtype, "index", false);
    else if ((r = fu_raw_input(&k, index, "index")))
        return fu_text_free(&k.t), r;
    if (wide >= 0) fu_raw_operand(&k, wide, 0, acc, "sum", true);
    fu_raw_output(&k, "out");
    const char *to = wide >= 0 ? "sum" : "out";
    int count = fu_raw_dim(&k, src->shape[axis]), where = fu_raw_dim(&k, node);
    char at[256], line[64], value[160], element[300];
    fu_open(&k.t, "for (int64_t item = begin; item < end; item++) {");
    fu_line(&k.t, "const int64_t from = item %% %lld * %lld, outer = item / %lld;", (long long)ranges,
            (long long)range, (long long)ranges);
    fu_line(&k.t, "const int64_t to = from + %lld < %lld ? from + %lld : %lld;", (long long)range,
            (long long)lines, (long long)range, (long long)lines);
    fu_line(&k.t, "const int64_t row = outer * %lld;", (long long)(lines * inner));
    fu_raw_decode(&k, t, 0, axis, "outer");
    fu_line(&k.t, "for (int64_t j = from * %lld; j < to * %lld; j++) %s[row + j] = 0;", (long long)inner,
            (long long)inner, to);
    bool covered = true;
    fu_line(&k.t, "bool inside = true;");
    for (int i = 0; i < axis; i++)
        if (src->shape[i] < t->shape[i]) {
            fu_line(&k.t, "inside &= i%d < %lld;", i, (long long)src->shape[i]);
            covered = false;
        }
    (void)covered;
    fu_open(&k.t, "for (int64_t i%d = 0; inside && i%d < a->dim[%d]; i%d++) {", axis, axis, count, axis);
    int opened = by_line ? 0 : open_inner(&k, src, axis, false);
    if (by_line)
        snprintf(at, sizeof at, "i%d * %lld", axis, (long long)index->stride[0]);
    else
        fu_raw_index(index, 0, index->ndim, "i", at, sizeof at);
    fu_line(&k.t, "const int64_t line = (int64_t)index[%s];", at);
    fu_line(&k.t, "if ((uint64_t)line >= %lld) index_fault(a, a->dim[%d], line);", (long long)lines, where);
    fu_line(&k.t, "if (line < from || line >= to) continue;");
    if (by_line) opened += open_inner(&k, src, axis, true);
    fu_raw_index(src, 0, src->ndim, "i", at, sizeof at);
    snprintf(element, sizeof element, "src[%s]", at);
    snprintf(value, sizeof value, k.lang->load[d], "%s");
    char loaded[480];
    snprintf(loaded, sizeof loaded, k.lang->load[d], element);
    size_t u = 0;
    element[0] = 0;
    int64_t below = inner;
    for (int i = axis + 1; i < t->ndim; i++) {
        below = t->shape[i] ? below / t->shape[i] : 0;
        u += (size_t)snprintf(element + u, sizeof element - u, " + i%d * %lld", i, (long long)below);
    }
    snprintf(line, sizeof line, "line * %lld", (long long)inner);
    fu_line(&k.t, "%s[row + %s%s] += %s;", to, line, element, loaded);
    while (opened--) fu_close(&k.t);
    fu_close(&k.t);
    if (wide >= 0) {
        snprintf(value, sizeof value, k.lang->store[d], "sum[row + j]");
        fu_line(&k.t, "for (int64_t j = from * %lld; j < to * %lld; j++) out[row + j] = %s;",
                (long long)inner, (long long)inner, value);
    }
    fu_close(&k.t);
    return fu_raw_close(&k, "each item owns a range of target lines and walks the whole index",
                        outer * ranges, src->shape[axis] + range * inner);
}
