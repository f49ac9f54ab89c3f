/* scatter.c - scatter_add and index_add without atomics and always in one order: an item owns a range of
 * the target's lines along the axis, zeroes it, then walks the whole index and adds what falls into its
 * range. Start with fu_emit_scatter. */
#include "raw.h"

#include <stdio.h>
#include <string.h>

typedef struct scatter {
    fu_raw k;
    fu_ctx *c;
    int node, axis;
    const tn_tensor *t, *src, *index;
    bool by_line; /* index_add: the index has one entry a line of src, not one an element */
    tn_tensor dense[2];
    int slot[2]; /* of src and index: where a copy of a number lies, or -1 */
    int wide;    /* where sums of f16 and bf16 are added up in f32, or -1 */
    int64_t outer, lines, inner;
    int64_t ranges, range; /* that the lines are cut into, and lines of each */
} scatter;

/* Numbers are written out first: into dense copies. */
static int write_numbers(scatter *s)
{
    const tn_tensor **operand[2] = {&s->src, &s->index};
    for (int i = 0; i < 2; i++) {
        const tn_tensor *x = *operand[i];
        s->slot[i] = -1;
        if (!tn_is_number(x)) continue;
        if ((s->slot[i] = fu_emit_dense(s->c, x)) < 0) return s->slot[i];
        s->dense[i] = *x;
        int64_t stride = 1;
        for (int a = x->ndim - 1; a >= 0; a--) {
            s->dense[i].stride[a] = stride;
            stride *= x->shape[a];
        }
        *operand[i] = &s->dense[i];
    }
    return 0;
}

static int declare(scatter *s, int i, const tn_tensor *x, const char *name)
{
    if (s->slot[i] < 0) return fu_raw_input(&s->k, x, name);
    fu_raw_operand(&s->k, s->slot[i], 0, (tn_dtype)x->dtype, name, false);
    return 0;
}

/* Loops over the axes behind the scattered one; the caller writes the body and closes them: how many. */
static int open_inner(scatter *s, bool simd)
{
    for (int i = s->axis + 1; i < s->src->ndim; i++) {
        if (simd && i == s->src->ndim - 1) fu_line(&s->k.t, "%s", s->k.lang->simd);
        fu_open(&s->k.t, "for (int64_t i%d = 0; i%d < %lld; i%d++) {", i, i, (long long)s->src->shape[i], i);
    }
    return s->src->ndim - s->axis - 1;
}

/* The item's lines, from .. to - 1 of one place of the axes in front, are zeroed. */
static void open_item(scatter *s, const char *sum)
{
    tn_growing *t = &s->k.t;
    fu_open(t, "for (int64_t item = begin; item < end; item++) {");
    fu_line(t, "const int64_t from = item %% %lld * %lld, outer = item / %lld;", (long long)s->ranges,
            (long long)s->range, (long long)s->ranges);
    fu_line(t, "const int64_t to = from + %lld < %lld ? from + %lld : %lld;", (long long)s->range,
            (long long)s->lines, (long long)s->range, (long long)s->lines);
    fu_line(t, "const int64_t row = outer * %lld;", (long long)(s->lines * s->inner));
    fu_raw_decode(&s->k, s->t, 0, s->axis, "outer");
    fu_line(t, "for (int64_t j = from * %lld; j < to * %lld; j++) %s[row + j] = 0;", (long long)s->inner,
            (long long)s->inner, sum);
    fu_line(t, "bool inside = true;");
    for (int i = 0; i < s->axis; i++)
        if (s->src->shape[i] < s->t->shape[i])
            fu_line(t, "inside &= i%d < %lld;", i, (long long)s->src->shape[i]);
}

/* Walks the index and adds what falls into the item's lines. */
static void add_all(scatter *s, const char *sum)
{
    tn_growing *t = &s->k.t;
    char at[256], to[300] = "", element[300], loaded[480];
    int axis = s->axis, count = fu_raw_dim(&s->k, s->src->shape[axis]), where = fu_raw_dim(&s->k, s->node);
    fu_open(t, "for (int64_t i%d = 0; inside && i%d < a->dim[%d]; i%d++) {", axis, axis, count, axis);
    int opened = s->by_line ? 0 : open_inner(s, false);
    if (s->by_line)
        snprintf(at, sizeof at, "i%d * %lld", axis, (long long)s->index->stride[0]);
    else
        fu_raw_index(s->index, 0, s->index->ndim, "i", at, sizeof at);
    fu_line(t, "const int64_t line = (int64_t)index[%s];", at);
    fu_line(t, "if ((uint64_t)line >= %lld) index_fault(a, a->dim[%d], line);", (long long)s->lines, where);
    fu_line(t, "if (line < from || line >= to) continue;");
    if (s->by_line) opened += open_inner(s, true);
    fu_raw_index(s->src, 0, s->src->ndim, "i", at, sizeof at);
    snprintf(element, sizeof element, "src[%s]", at);
    snprintf(loaded, sizeof loaded, s->k.lang->load[s->t->dtype], element);
    size_t u = 0;
    int64_t below = s->inner;
    for (int i = axis + 1; i < s->t->ndim; i++) {
        below = s->t->shape[i] ? below / s->t->shape[i] : 0;
        u += (size_t)snprintf(to + u, sizeof to - u, " + i%d * %lld", i, (long long)below);
    }
    fu_line(t, "%s[row + line * %lld%s] += %s;", sum, (long long)s->inner, to, loaded);
    while (opened--) fu_close(t);
    fu_close(t);
}

int fu_emit_scatter(fu_ctx *c, const fu_group *g)
{
    if (c->target->dialect == TN_DIALECT_CUDA) return fu_cuda_scatter(c, g);
    int node = g->member[0];
    const tn_tensor *t = c->node[node].t;
    scatter s = {.c = c, .node = node, .axis = t->attr->axis, .t = t, .wide = -1};
    s.src = fu_value_of(c, t->in[0]);
    s.index = fu_value_of(c, t->in[1]);
    s.by_line = t->op == TN_OP_index_add;
    int r = write_numbers(&s);
    if (r < 0) return r;
    s.outer = fu_raw_count(t, 0, s.axis);
    s.lines = t->shape[s.axis];
    s.inner = fu_raw_count(t, s.axis + 1, t->ndim);
    s.ranges = s.outer >= 16 ? 1 : s.lines < 16 ? s.lines : 16;
    if (s.ranges < 1) s.ranges = 1;
    s.range = (s.lines + s.ranges - 1) / s.ranges;
    tn_dtype d = (tn_dtype)t->dtype, acc = fu_compute_dtype(d);
    if (acc != d && (s.wide = fu_scratch_slot(c, tn_node_numel(t), acc)) < 0) return s.wide;
    if ((r = fu_raw_open(&s.k, c, g, tn_op_get((tn_op)t->op)->name, s.inner > 1 ? s.inner : s.lines)))
        return r;
    s.k.fault = true;
    if ((r = declare(&s, 0, s.src, "src")) || (r = declare(&s, 1, s.index, "index")))
        return tn_growing_free(&s.k.t), r;
    if (s.wide >= 0) fu_raw_operand(&s.k, s.wide, 0, acc, "sum", true);
    fu_raw_output(&s.k, "out");
    const char *sum = s.wide >= 0 ? "sum" : "out";
    open_item(&s, sum);
    add_all(&s, sum);
    if (s.wide >= 0) {
        char value[160];
        snprintf(value, sizeof value, s.k.lang->store[d], "sum[row + j]");
        fu_line(&s.k.t, "for (int64_t j = from * %lld; j < to * %lld; j++) out[row + j] = %s;",
                (long long)s.inner, (long long)s.inner, value);
    }
    fu_close(&s.k.t);
    return fu_raw_close(&s.k, "each item owns a range of target lines and walks the whole index",
                        s.outer * s.ranges, s.src->shape[s.axis] + s.range * s.inner);
}
