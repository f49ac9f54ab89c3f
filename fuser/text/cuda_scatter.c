/* cuda_scatter.c - scatter_add and index_add in CUDA C, without atomics and always in one order.
 *
 *   scatter_add  a thread owns one place of a line of the index, and a range of the target's lines: it walks
 *                the index and adds what falls into the range
 *   index_add    a block owns a range of the target's lines. Its threads look through the index side by side
 *                and list what falls into the range, in order; then they add one line of the source after the
 *                other, each its own places
 *
 * Sums of f16 and bf16 are made in scratch of f32. Start with fu_cuda_scatter.
 */
#include "raw.h"

#include <stdio.h>
#include <string.h>

enum { THREADS = 256 };

typedef struct scatter {
    fu_raw k;
    const tn_tensor *t, *src, *index;
    int axis;
    long long outer, lines, inner, ranges, range; /* of the target; ranges of its lines, of that many */
    int count, where;                             /* which of args.dim */
    const char *to;                               /* what is added to */
} scatter;

/* Row-major place behind the axis, from coordinates. */
static void place_behind(const tn_tensor *t, int axis, int64_t inner, char *out, size_t n)
{
    size_t k = 0;
    out[0] = 0;
    for (int i = axis + 1; i < t->ndim; i++) {
        inner = t->shape[i] ? inner / t->shape[i] : 0;
        k += (size_t)snprintf(out + k, n - k, " + i%d * %lld", i, (long long)inner);
    }
}

static void source_value(const scatter *s, char *out, size_t n)
{
    char at[300], element[340];
    fu_raw_index(s->src, 0, s->src->ndim, "i", at, sizeof at);
    snprintf(element, sizeof element, "src[%s]", at);
    snprintf(out, n, s->k.lang->load[s->t->dtype], element);
}

static void own_range(scatter *s, const char *number)
{
    fu_line(&s->k.t, "const int64_t from = %s %% %lld * %lld;", number, s->ranges, s->range);
    fu_line(&s->k.t, "const int64_t to = from + %lld < %lld ? from + %lld : %lld;", s->range, s->lines,
            s->range, s->lines);
}

/* Rounds a sum that was added up in f32 and writes it to the result. */
static void round_line(scatter *s, const char *at)
{
    char sum[120], stored[200];
    if (!strcmp(s->to, "out")) return;
    snprintf(sum, sizeof sum, "sum[%s]", at);
    snprintf(stored, sizeof stored, s->k.lang->store[s->t->dtype], sum);
    fu_line(&s->k.t, "out[%s] = %s;", at, stored);
}

/* A thread for each place of a line and range of lines. */
static int scatter_elements(scatter *s)
{
    fu_raw *k = &s->k;
    const tn_tensor *t = s->t;
    int64_t items = s->outer * s->inner * s->ranges;
    char at[300], value[400];
    const char *number = fu_cuda_each(k, items);
    fu_line(&k->t, "const int64_t inner = %s %% %lld, rest = %s / %lld;", number, s->inner, number, s->inner);
    own_range(s, "rest");
    fu_line(&k->t, "const int64_t outer = rest / %lld, row = outer * %lld + inner;", s->ranges,
            s->lines * s->inner);
    fu_raw_decode(k, t, 0, s->axis, "outer");
    fu_raw_decode(k, t, s->axis + 1, t->ndim, "inner");
    fu_line(&k->t, "for (int64_t line = from; line < to; line++) %s[row + line * %lld] = 0;", s->to,
            s->inner);
    fu_line(&k->t, "bool inside = true;");
    for (int i = 0; i < t->ndim; i++)
        if (i != s->axis && s->src->shape[i] < t->shape[i])
            fu_line(&k->t, "inside &= i%d < %lld;", i, (long long)s->src->shape[i]);
    fu_open(&k->t, "for (int64_t i%d = 0; inside && i%d < a.dim[%d]; i%d++) {", s->axis, s->axis, s->count,
            s->axis);
    fu_raw_index(s->index, 0, s->index->ndim, "i", at, sizeof at);
    fu_line(&k->t, "const int64_t line = (int64_t)index[%s];", at);
    k->fault = true;
    fu_line(&k->t, "if ((uint64_t)line >= %lld) index_fault(a, a.dim[%d], line);", s->lines, s->where);
    source_value(s, value, sizeof value);
    fu_line(&k->t, "if (line >= from && line < to) %s[row + line * %lld] += %s;", s->to, s->inner, value);
    fu_close(&k->t);
    if (strcmp(s->to, "out")) {
        fu_open(&k->t, "for (int64_t line = from; line < to; line++) {");
        char place[60];
        snprintf(place, sizeof place, "row + line * %lld", s->inner);
        round_line(s, place);
        fu_close(&k->t);
    }
    fu_close(&k->t);
    return fu_cuda_close(k, "each thread owns some places of the target and walks the index", items, THREADS,
                         THREADS);
}

/* ---- index_add ---- */

/* Adds line `line` of the source at index position i<axis>. */
static void add_line(scatter *s)
{
    fu_raw *k = &s->k;
    char value[400], behind[300];
    fu_open(&k->t, "for (int64_t inner = threadIdx.x; inner < %lld; inner += %d) {", s->inner, THREADS);
    fu_raw_decode(k, s->t, s->axis + 1, s->t->ndim, "inner");
    source_value(s, value, sizeof value);
    place_behind(s->t, s->axis, s->inner, behind, sizeof behind);
    fu_line(&k->t, "%s[row + line * %lld%s] += %s;", s->to, s->inner, behind, value);
    fu_close(&k->t);
}

static int add_lines(scatter *s)
{
    fu_raw *k = &s->k;
    fu_line(&k->t, "const int64_t item = blockIdx.x, outer = item / %lld;", s->ranges);
    own_range(s, "item");
    fu_line(&k->t, "const int64_t row = outer * %lld;", s->lines * s->inner);
    fu_raw_decode(k, s->t, 0, s->axis, "outer");
    fu_line(&k->t, "__shared__ int32_t found_at[%d], found_line[%d];", THREADS, THREADS);
    fu_line(&k->t, "/* each place of the range belongs to one thread, from here on */");
    fu_open(&k->t, "for (int64_t line = from; line < to; line++) {");
    fu_line(&k->t,
            "for (int64_t inner = threadIdx.x; inner < %lld; inner += %d) %s[row + line * %lld + inner] = 0;",
            s->inner, THREADS, s->to, s->inner);
    fu_close(&k->t);
    fu_open(&k->t, "for (int64_t start = 0; start < a.dim[%d]; start += %d) {", s->count, THREADS);
    fu_line(&k->t, "const int64_t j = start + threadIdx.x;");
    fu_line(&k->t, "const int64_t mine = j < a.dim[%d] ? (int64_t)index[j * %lld] : 0;", s->count,
            (long long)s->index->stride[0]);
    k->fault = true;
    fu_line(&k->t, "if (j < a.dim[%d] && (uint64_t)mine >= %lld) index_fault(a, a.dim[%d], mine);", s->count,
            s->lines, s->where);
    fu_line(&k->t, "const bool hit = j < a.dim[%d] && mine >= from && mine < to;", s->count);
    fu_line(&k->t, "int found;");
    fu_line(&k->t, "const int place = tn_place_in_block<%d>(hit, &found);", THREADS);
    fu_open(&k->t, "if (hit) {");
    fu_line(&k->t, "found_at[place] = (int32_t)threadIdx.x;");
    fu_line(&k->t, "found_line[place] = (int32_t)(mine - from);");
    fu_close(&k->t);
    fu_line(&k->t, "__syncthreads();");
    fu_open(&k->t, "for (int f = 0; f < found; f++) {");
    fu_line(&k->t, "const int64_t i%d = start + found_at[f], line = from + found_line[f];", s->axis);
    add_line(s);
    fu_close(&k->t);
    fu_line(&k->t, "__syncthreads();");
    fu_close(&k->t);
    if (strcmp(s->to, "out")) {
        fu_open(&k->t, "for (int64_t line = from; line < to; line++) {");
        fu_open(&k->t, "for (int64_t inner = threadIdx.x; inner < %lld; inner += %d) {", s->inner, THREADS);
        char place[80];
        snprintf(place, sizeof place, "row + line * %lld + inner", s->inner);
        round_line(s, place);
        fu_close(&k->t);
        fu_close(&k->t);
    }
    return fu_cuda_close(k, "each block owns a range of target lines and looks through the whole index",
                         s->outer * s->ranges, THREADS, 1);
}

int fu_cuda_scatter(fu_ctx *c, const fu_group *g)
{
    int node = g->member[0], r, wide = -1;
    const tn_tensor *t = c->node[node].t;
    tn_dtype d = (tn_dtype)t->dtype, acc = fu_compute_dtype(d);
    bool by_line = t->op == TN_OP_index_add;
    fu_place_of src, index;
    if ((r = fu_cuda_place(c, t->in[0], &src)) || (r = fu_cuda_place(c, t->in[1], &index))) return r;
    scatter s = {.t = t, .src = src.t, .index = index.t, .axis = t->attr->axis, .to = "out"};
    s.outer = fu_raw_count(t, 0, s.axis);
    s.lines = t->shape[s.axis];
    s.inner = fu_raw_count(t, s.axis + 1, t->ndim);
    /* as many ranges as keep the device busy; each walks the whole index */
    long long busy = 2 * (c->target->processors > 0 ? c->target->processors : 64), owners = s.outer;
    if (!by_line) owners *= s.inner, busy *= THREADS / 8;
    s.ranges = owners < 1 ? 1 : (busy + owners - 1) / owners;
    if (s.ranges > s.lines) s.ranges = s.lines;
    if (s.ranges < 1) s.ranges = 1;
    s.range = (s.lines + s.ranges - 1) / s.ranges;
    if (s.range > 0) s.ranges = (s.lines + s.range - 1) / s.range;
    if (acc != d && (wide = fu_scratch_slot(c, tn_node_numel(t), acc)) < 0) return wide;
    if ((r = fu_raw_open(&s.k, c, g, tn_op_get((tn_op)t->op)->name, s.inner > 1 ? s.inner : s.lines)))
        return r;
    fu_cuda_operand(&s.k, &src, "src");
    fu_cuda_operand(&s.k, &index, "index");
    if (wide >= 0) fu_raw_operand(&s.k, wide, 0, acc, s.to = "sum", true);
    fu_raw_output(&s.k, "out");
    s.count = fu_raw_dim(&s.k, src.t->shape[s.axis]);
    s.where = fu_raw_dim(&s.k, node);
    return by_line ? add_lines(&s) : scatter_elements(&s);
}
