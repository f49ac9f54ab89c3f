/* scatter.c - scatter_add and index_add without atomics and always in one order: who owns a range of the
 * target's lines along the axis zeroes it, walks the whole index and adds what falls into the range.
 *
 *   an item         of a processor has all places of its lines, or some columns of all lines where each place has
 *                   an index of its own, which then is walked once; on a GPU it has one place of its lines
 *   a block         of threads, for index_add on a GPU: its threads look through the index side by side and
 *                   list what falls into the range, in order; then they add one line of the source after the
 *                   other, each its own places; where the index is long it is sorted (scatter_cuda.c)
 *
 * Sums of f16 and bf16 are made in scratch of f32. Start with fu_emit_scatter. */
#include "../../src/core/int64.h"
#include "raw.h"

#include <stdio.h>
#include <string.h>

typedef struct scatter {
    fu_raw k;
    const tn_tensor *t;
    fu_stored src, index;
    int axis;
    bool by_line; /* index_add: the index has one entry a line of src, not one an element */
    long long outer, lines, inner, ranges, range; /* of the target; ranges of its lines, of that many */
    long long parts, part;                        /* of the axis behind: ranges, of that many */
    int count, where;                             /* which of args.dim */
    const char *to;                               /* what is added to */
} scatter;

static void own_range(scatter *s, const char *number)
{
    fu_line(&s->k.t, "const int64_t from = %s %% %lld * %lld, outer = %s / %lld;", number, s->ranges,
            s->range, number, s->ranges);
    fu_line(&s->k.t, "const int64_t to = from + %lld < %lld ? from + %lld : %lld;", s->range, s->lines,
            s->range, s->lines);
}

/* Where in the target an element belongs that is at the loops' coordinates behind the axis. */
static void target_place(const scatter *s, bool behind, char *out, size_t n)
{
    size_t k = (size_t)snprintf(out, n, "%s[row + line * %lld", s->to, s->inner);
    int64_t below = s->inner;
    for (int i = s->axis + 1; i < s->t->ndim && behind; i++) {
        below = s->t->shape[i] ? below / s->t->shape[i] : 0;
        k += (size_t)snprintf(out + k, n - k, " + i%d * %lld", i, (long long)below);
    }
    snprintf(out + k, n - k, "]");
}

static void add_element(scatter *s, bool behind)
{
    char at[300], value[400], to[400];
    fu_raw_index(s->src.t, 0, s->src.t->ndim, "i", at, sizeof at);
    fu_raw_value(&s->k, s->t->dtype, "src", at, value, sizeof value);
    target_place(s, behind, to, sizeof to);
    fu_line(&s->k.t, "%s += %s;", to, value);
}

/* Rounds a sum that was added up in f32 and writes it to the result. */
static void round_sum(scatter *s, const char *at)
{
    char sum[120], to[120];
    snprintf(sum, sizeof sum, "sum[%s]", at);
    snprintf(to, sizeof to, "out[%s]", at);
    fu_raw_store(&s->k, s->t->dtype, to, sum);
}

/* ---- an item for each range, or for each place of one ---- */

/* Loops over the axes behind the scattered one, within the item's part of the first; the caller writes the
 * body and closes them: how many. */
static int open_inner(scatter *s, bool simd)
{
    const tn_tensor *x = s->src.t;
    for (int i = s->axis + 1; i < x->ndim; i++) {
        const bool parted = s->parts > 1 && i == s->axis + 1;
        if (simd && i == x->ndim - 1) fu_line(&s->k.t, "%s", s->k.lang->simd);
        if (parted)
            fu_open(&s->k.t, "for (int64_t i%d = left; i%d < right && i%d < %lld; i%d++) {", i, i, i,
                    (long long)x->shape[i], i);
        else
            fu_open(&s->k.t, "for (int64_t i%d = 0; i%d < %lld; i%d++) {", i, i, (long long)x->shape[i], i);
    }
    return x->ndim - s->axis - 1;
}

/* Opens loops over the elements of the item's lines, whose place is written to `own`: how many. */
static int open_own(scatter *s, char *own, size_t n)
{
    const long long below = s->parts > 1 ? s->inner / s->t->shape[s->axis + 1] : 0;
    snprintf(own, n, "row + line * %lld%s", s->inner, s->parts > 1 ? " + j" : "");
    if (s->k.grid || s->parts > 1) {
        fu_open(&s->k.t, "for (int64_t line = from; line < to; line++) {");
        if (s->k.grid) return 1;
        fu_open(&s->k.t, "for (int64_t j = left * %lld; j < right * %lld; j++) {", below, below);
        return 2;
    }
    snprintf(own, n, "row + j");
    fu_open(&s->k.t, "for (int64_t j = from * %lld; j < to * %lld; j++) {", s->inner, s->inner);
    return 1;
}

static void close_all(scatter *s, int opened)
{
    while (opened--) fu_close(&s->k.t);
}

static void read_line(scatter *s, const char *at)
{
    fu_line(&s->k.t, "const int64_t line = (int64_t)index[%s];", at);
}

static void check_line(scatter *s)
{
    fu_line(&s->k.t, "if ((uint64_t)line >= %lld) index_fault(a, %sdim[%d], line);", s->lines,
            s->k.lang->args, s->where);
}

/* One entry a line: those in the range are listed without a branch, that no processor could foresee, and then
 * added. */
static void add_lines(scatter *s)
{
    enum { LISTED = 256 };
    tn_growing *t = &s->k.t;
    char at[60];
    fu_line(t, "int64_t found[%d];", LISTED);
    fu_open(t, "for (int64_t start = 0; start < a->dim[%d]; start += %d) {", s->count, LISTED);
    fu_line(t, "const int64_t stop = a->dim[%d] - start < %d ? a->dim[%d] : start + %d;", s->count, LISTED,
            s->count, LISTED);
    fu_line(t, "int n = 0;");
    fu_open(t, "for (int64_t j = start; j < stop; j++) {");
    snprintf(at, sizeof at, "j * %lld", (long long)s->index.t->stride[0]);
    read_line(s, at);
    check_line(s);
    fu_line(t, "found[n] = j;");
    fu_line(t, "n += (uint64_t)(line - from) < (uint64_t)(to - from);");
    fu_close(t);
    fu_open(t, "for (int k = 0; k < n; k++) {");
    fu_line(t, "const int64_t i%d = found[k];", s->axis);
    snprintf(at, sizeof at, "i%d * %lld", s->axis, (long long)s->index.t->stride[0]);
    read_line(s, at);
    const int opened = open_inner(s, true);
    add_element(s, true);
    close_all(s, opened + 2);
}

static void add_places(scatter *s)
{
    const bool one = s->k.grid; /* an item is one place of the lines */
    const int axis = s->axis;
    char at[300];
    fu_line(&s->k.t, "bool inside = true;");
    for (int i = 0; i < (one ? s->t->ndim : axis); i++)
        if (i != axis && s->src.t->shape[i] < s->t->shape[i])
            fu_line(&s->k.t, "inside &= i%d < %lld;", i, (long long)s->src.t->shape[i]);
    fu_open(&s->k.t, "for (int64_t i%d = 0; inside && i%d < %sdim[%d]; i%d++) {", axis, axis, s->k.lang->args,
            s->count, axis);
    const int opened = one ? 0 : open_inner(s, false);
    fu_raw_index(s->index.t, 0, s->index.t->ndim, "i", at, sizeof at);
    read_line(s, at);
    check_line(s);
    if (s->ranges > 1)
        fu_line(&s->k.t, "if (line < from || line >= to) continue;");
    else
        fu_line(&s->k.t, "if ((uint64_t)line >= %lld) continue;", s->lines);
    add_element(s, !one);
    close_all(s, opened + 1);
}

static int walk_index(scatter *s)
{
    tn_growing *t = &s->k.t;
    const bool one = s->k.grid;
    const int64_t items = s->outer * s->ranges * (one ? s->inner : s->parts);
    char own[60];
    const char *number = fu_raw_each(&s->k, items);
    if (one)
        fu_line(t, "const int64_t inner = %s %% %lld, rest = %s / %lld;", number, s->inner, number, s->inner);
    if (s->parts > 1) {
        const long long whole = s->t->shape[s->axis + 1];
        fu_line(t, "const int64_t left = item %% %lld * %lld, rest = item / %lld;", s->parts, s->part,
                s->parts);
        fu_line(t, "const int64_t right = left + %lld < %lld ? left + %lld : %lld;", s->part, whole, s->part,
                whole);
    }
    own_range(s, one || s->parts > 1 ? "rest" : number);
    fu_line(t, "const int64_t row = outer * %lld%s;", s->lines * s->inner, one ? " + inner" : "");
    fu_raw_decode(&s->k, s->t, 0, s->axis, "outer");
    if (one) fu_raw_decode(&s->k, s->t, s->axis + 1, s->t->ndim, "inner");
    int opened = open_own(s, own, sizeof own);
    fu_line(t, "%s[%s] = 0;", s->to, own);
    close_all(s, opened);
    if (s->by_line)
        add_lines(s);
    else
        add_places(s);
    if (strcmp(s->to, "out")) {
        opened = open_own(s, own, sizeof own);
        round_sum(s, own);
        close_all(s, opened);
    }
    fu_close(t);
    return fu_raw_close(&s->k, "each item owns a range of target lines and walks the whole index", items,
                        s->src.t->shape[s->axis] + s->range * s->inner / s->parts, FU_RAW_THREADS);
}

/* ---- a block for each range ---- */

static void open_lines(scatter *s)
{
    fu_open(&s->k.t, "for (int64_t line = from; line < to; line++) {");
    fu_open(&s->k.t, "for (int64_t inner = threadIdx.x; inner < %lld; inner += %d) {", s->inner,
            FU_RAW_THREADS);
}

static int list_index(scatter *s)
{
    tn_growing *t = &s->k.t;
    char own[80];
    snprintf(own, sizeof own, "row + line * %lld + inner", s->inner);
    fu_line(t, "const int64_t item = blockIdx.x;");
    own_range(s, "item");
    fu_line(t, "const int64_t row = outer * %lld;", s->lines * s->inner);
    fu_raw_decode(&s->k, s->t, 0, s->axis, "outer");
    fu_line(t, "__shared__ int32_t found_at[%d], found_line[%d];", FU_RAW_THREADS, FU_RAW_THREADS);
    fu_line(t, "/* each place of the range belongs to one thread, from here on */");
    open_lines(s);
    fu_line(t, "%s[%s] = 0;", s->to, own);
    fu_close(t);
    fu_close(t);
    fu_open(t, "for (int64_t start = 0; start < a.dim[%d]; start += %d) {", s->count, FU_RAW_THREADS);
    fu_line(t, "const int64_t j = start + threadIdx.x;");
    fu_line(t, "const int64_t mine = j < a.dim[%d] ? (int64_t)index[j * %lld] : 0;", s->count,
            (long long)s->index.t->stride[0]);
    fu_line(t, "if (j < a.dim[%d] && (uint64_t)mine >= %lld) index_fault(a, a.dim[%d], mine);", s->count,
            s->lines, s->where);
    fu_line(t, "const bool hit = j < a.dim[%d] && mine >= from && mine < to;", s->count);
    fu_line(t, "int found;");
    fu_line(t, "const int place = tn_place_in_block<%d>(hit, &found);", FU_RAW_THREADS);
    fu_open(t, "if (hit) {");
    fu_line(t, "found_at[place] = (int32_t)threadIdx.x;");
    fu_line(t, "found_line[place] = (int32_t)(mine - from);");
    fu_close(t);
    fu_line(t, "__syncthreads();");
    fu_open(t, "for (int f = 0; f < found; f++) {");
    fu_line(t, "const int64_t i%d = start + found_at[f], line = from + found_line[f];", s->axis);
    fu_open(t, "for (int64_t inner = threadIdx.x; inner < %lld; inner += %d) {", s->inner, FU_RAW_THREADS);
    fu_raw_decode(&s->k, s->t, s->axis + 1, s->t->ndim, "inner");
    add_element(s, true);
    fu_close(t);
    fu_close(t);
    fu_line(t, "__syncthreads();");
    fu_close(t);
    if (strcmp(s->to, "out")) {
        open_lines(s);
        round_sum(s, own);
        fu_close(t);
        fu_close(t);
    }
    s->k.s->work = fu_wait_work(s->k.c->target, (double)s->src.t->shape[s->axis] *
                                                    (1.0 / FU_RAW_THREADS + 1.0 / (double)s->ranges));
    return fu_raw_close(&s->k, "each block owns a range of target lines and looks through the whole index",
                        s->outer * s->ranges, 0, 1);
}

/* ---- both ---- */

/* As many ranges as keep the device busy: each walks the whole index. Ranges of columns walk their own, of
 * which a line of a cache is had whole. */
static void cut_ranges(scatter *s)
{
    enum { TOGETHER = 8 };
    long long busy = 16, owners = s->outer;
    s->parts = 1;
    if (s->k.grid) {
        const int processors = s->k.c->target->processors;
        busy = 2 * (processors > 0 ? processors : 64);
        if (!s->by_line) owners *= s->inner, busy *= FU_RAW_THREADS / 8;
    } else if (!s->by_line && owners < busy && s->inner >= 2 * TOGETHER) {
        const long long behind = s->t->shape[s->axis + 1], below = s->inner / behind;
        const long long parts = s->inner / TOGETHER < busy ? s->inner / TOGETHER : busy;
        s->part = tn_ceil_div(behind, parts);
        if (s->part * below < TOGETHER) s->part = tn_ceil_div(TOGETHER, below);
        s->parts = tn_ceil_div(behind, s->part);
    }
    s->ranges = owners < 1 || s->parts > 1 ? 1 : tn_ceil_div(busy, owners);
    if (!s->k.grid && s->parts == 1 && owners < busy) s->ranges = busy;
    if (s->ranges > s->lines) s->ranges = s->lines;
    if (s->ranges < 1) s->ranges = 1;
    s->range = tn_ceil_div(s->lines, s->ranges);
    if (s->range > 0) s->ranges = tn_ceil_div(s->lines, s->range);
}

int fu_emit_scatter(fu_ctx *c, const fu_group *g)
{
    const int node = g->member[0];
    const tn_tensor *t = c->node[node].t;
    if (c->node[node].kind == TN_KIND_ASSIGN) return fu_emit_rows(c, g);
    const tn_dtype d = t->dtype, acc = fu_compute_dtype(d);
    scatter s = {.t = t, .axis = t->attr->axis, .by_line = t->op == TN_OP_index_add, .to = "out"};
    int r, wide = -1;
    if ((r = fu_raw_find(c, t->in[0], &s.src)) || (r = fu_raw_find(c, t->in[1], &s.index))) return r;
    s.outer = tn_extent(t->shape, 0, s.axis);
    s.lines = t->shape[s.axis];
    s.inner = tn_extent(t->shape, s.axis + 1, t->ndim);
    const fu_scatter all = {node, t, s.index, s.outer, s.lines, s.inner, s.src.t->shape[s.axis]};
    if (fu_can(c->target)->grid && s.by_line && fu_scatter_sorts(&all))
        return fu_emit_scatter_sorted(c, &all);
    if (acc != d && (wide = fu_scratch_slot(c, tn_node_numel(t), acc)) < 0) return wide;
    if ((r = fu_raw_open(&s.k, c, g, tn_op_get(t->op)->name, s.inner > 1 ? s.inner : s.lines))) return r;
    cut_ranges(&s);
    fu_raw_input(&s.k, &s.src, "src");
    fu_raw_input(&s.k, &s.index, "index");
    if (wide >= 0) fu_raw_operand(&s.k, wide, 0, acc, s.to = "sum", true);
    fu_raw_output(&s.k, "out");
    s.count = fu_raw_dim(&s.k, s.src.t->shape[s.axis]);
    s.where = fu_raw_dim(&s.k, node);
    s.k.fault = true;
    return s.by_line && s.k.grid ? list_index(&s) : walk_index(&s);
}
