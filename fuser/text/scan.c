/* scan.c - running sums and the like, by the row in ops.def. Along one axis every line is sequential; lines
 * side by side are one item of a processor's vectors, or have a thread each. Along the last axis a line has a
 * warp on a GPU, which combines 32 elements in five steps and carries the total on. Start with fu_emit_scan.
 */
#include "raw.h"

#include <stdio.h>

enum { TILE = 256, WARPS = FU_RAW_THREADS / 32 };

typedef struct scan {
    fu_raw k;
    const tn_tensor *t;
    fu_stored x;
    const tn_op_info *op;
    tn_dtype d, acc;
    int axis;
    long long outer, inner; /* lines before and behind the axis */
} scan;

static void element(const scan *s, int axes, char *out, size_t n)
{
    char at[300];
    fu_raw_index(s->x.t, 0, axes, "i", at, sizeof at);
    fu_raw_value(&s->k, s->d, "x", at, out, n);
}

static void put_sum(scan *s, const char *to, const char *sum)
{
    char cast[64];
    snprintf(cast, sizeof cast, "(%s)%s", s->k.lang->type[s->d], sum);
    fu_raw_store(&s->k, s->d, to, cast);
}

static void scan_lines(scan *s, int64_t items, bool side)
{
    const tn_tensor *t = s->t;
    tn_growing *out = &s->k.t;
    const int axis = s->axis;
    const long long inner = s->inner, tiles = (inner + TILE - 1) / TILE;
    const char *type = s->k.lang->type[s->acc], *sum = side ? "sum[j]" : "sum";
    const char *number = fu_raw_each(&s->k, items);
    if (side) {
        fu_line(out, "const int64_t v0 = item %% %lld * %d, outer = item / %lld;", tiles, TILE, tiles);
        fu_line(out, "const int64_t w = %lld - v0 < %d ? %lld - v0 : %d;", inner, TILE, inner, TILE);
        fu_line(out, "%s sum[%d];", type, TILE);
        fu_line(out, "for (int64_t j = 0; j < w; j++) sum[j] = %d;", s->op->start);
    } else {
        if (inner > 1)
            fu_line(out, "const int64_t inner = %s %% %lld, outer = %s / %lld;", number, inner, number,
                    inner);
        else
            fu_line(out, "const int64_t outer = %s;", number);
        fu_line(out, "%s sum = %d;", type, s->op->start);
    }
    fu_raw_decode(&s->k, t, 0, axis, "outer");
    if (!side && inner > 1) fu_raw_decode(&s->k, t, axis + 1, t->ndim, "inner");
    fu_open(out,
            t->attr->reverse ? "for (int64_t i%d = n - 1; i%d >= 0; i%d--) {"
                             : "for (int64_t i%d = 0; i%d < n; i%d++) {",
            axis, axis, axis);
    if (side) {
        fu_line(out, "%s", s->k.lang->simd);
        fu_open(out, "for (int64_t j = 0; j < w; j++) {");
        fu_line(out, "const int64_t inner = v0 + j;");
        fu_raw_decode(&s->k, t, axis + 1, t->ndim, "inner");
    }
    char value[400], to[120];
    element(s, t->ndim, value, sizeof value);
    fu_line(out, "%s %s= %s;", sum, s->op->by, value);
    snprintf(to, sizeof to, "out[(outer * n + i%d) * %lld%s]", axis, inner, inner > 1 ? " + inner" : "");
    put_sum(s, to, sum);
    if (side) fu_close(out);
    fu_close(out);
    fu_close(out);
}

/* One line, its elements 32 at a time. */
static void scan_by_warps(scan *s)
{
    tn_growing *t = &s->k.t;
    char value[400], to[120];
    const char *type = s->k.lang->type[s->acc];
    fu_line(t, "const int lane = (int)threadIdx.x %% 32;");
    fu_line(t, "const int64_t item = (int64_t)blockIdx.x * %d + threadIdx.x / 32;", WARPS);
    fu_open(t, "if (item < a.n) {");
    fu_raw_decode(&s->k, s->t, 0, s->axis, "item");
    fu_line(t, "%s total = %d;", type, s->op->start);
    fu_open(t, "for (int64_t j = 0; j < n; j += 32) {");
    fu_line(t, "const int64_t i%d = %sj %c lane;", s->axis, s->t->attr->reverse ? "n - 1 - " : "",
            s->t->attr->reverse ? '-' : '+');
    element(s, s->axis + 1, value, sizeof value);
    fu_line(t, "%s sum = j + lane < n ? (%s)(%s) : %d;", type, type, value, s->op->start);
    fu_line(t, "#pragma unroll");
    fu_open(t, "for (int s = 1; s < 32; s *= 2) {");
    fu_line(t, "const %s before = tn_lane_value(sum, lane - s);", type);
    fu_line(t, "if (lane >= s) sum %s= before;", s->op->by);
    fu_close(t);
    fu_line(t, "sum %s= total;", s->op->by);
    snprintf(to, sizeof to, "if (j + lane < n) out[item * n + i%d]", s->axis);
    put_sum(s, to, "sum");
    fu_line(t, "total = tn_lane_value(sum, 31);");
    fu_close(t);
    fu_close(t);
}

int fu_emit_scan(fu_ctx *c, const fu_group *g)
{
    if (c->node[g->member[0]].kind == TN_KIND_SORT) return fu_emit_sort(c, g);
    const tn_tensor *t = c->node[g->member[0]].t;
    const int axis = t->attr->axis;
    scan s = {.t = t, .op = tn_op_get(t->op), .d = t->dtype, .axis = axis};
    int r = fu_raw_find(c, t->in[0], &s.x);
    if (!r) r = fu_raw_open(&s.k, c, g, s.op->name, axis ? t->shape[axis] : 0);
    if (r) return r;
    s.acc = tn_dtype_is_float(s.d) ? TN_F64 : s.d;
    s.outer = tn_extent(t->shape, 0, axis);
    s.inner = tn_extent(t->shape, axis + 1, t->ndim);
    const bool side = s.inner > 1 && !s.k.grid, warps = s.inner == 1 && s.k.grid;
    const int64_t n = t->shape[axis], items = s.outer * (side ? (s.inner + TILE - 1) / TILE : s.inner);
    fu_raw_input(&s.k, &s.x, "x");
    fu_raw_output(&s.k, "out");
    fu_line(&s.k.t, "const int64_t n = %sdim[%d];", s.k.lang->args, fu_raw_dim(&s.k, n));
    if (warps)
        scan_by_warps(&s);
    else
        scan_lines(&s, items, side);
    return fu_raw_close(&s.k, "running sums along one axis", items, side ? n * TILE : n,
                        warps ? WARPS : FU_RAW_THREADS);
}
