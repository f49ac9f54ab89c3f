/* cuda_scan.c - running sums and the like in CUDA C, by the row in ops.def: a thread for each line, where
 * lines lie side by side; along the last axis a warp, which combines 32 elements in five steps and carries
 * the total on. Start with fu_cuda_scan.
 */
#include "raw.h"

#include <stdio.h>
#include <string.h>

enum { THREADS = 256, WARPS = THREADS / 32 };

/* One line, its elements 32 at a time. */
static void scan_line(fu_raw *k, const tn_tensor *t, const tn_tensor *x, tn_dtype acc)
{
    int axis = t->attr->axis;
    tn_dtype d = (tn_dtype)t->dtype;
    char at[300], element[340], value[400], stored[120], cast[64];
    const char *type = k->lang->type[acc];
    const tn_op_info *op = tn_op_get((tn_op)t->op);
    fu_line(&k->t, "const int lane = (int)threadIdx.x %% 32;");
    fu_line(&k->t, "const int64_t item = (int64_t)blockIdx.x * %d + threadIdx.x / 32, n = a.dim[%d];", WARPS,
            fu_raw_dim(k, t->shape[axis]));
    fu_open(&k->t, "if (item < a.n) {");
    fu_raw_decode(k, t, 0, axis, "item");
    fu_line(&k->t, "%s total = %d;", type, op->start);
    fu_open(&k->t, "for (int64_t j = 0; j < n; j += 32) {");
    fu_line(&k->t,
            t->attr->reverse ? "const int64_t i%d = n - 1 - j - lane;" : "const int64_t i%d = j + lane;",
            axis);
    fu_raw_index(x, 0, axis + 1, "i", at, sizeof at);
    snprintf(element, sizeof element, "x[%s]", at);
    snprintf(value, sizeof value, k->lang->load[d], element);
    fu_line(&k->t, "%s sum = j + lane < n ? (%s)(%s) : %d;", type, type, value, op->start);
    fu_line(&k->t, "#pragma unroll");
    fu_open(&k->t, "for (int s = 1; s < 32; s *= 2) {");
    fu_line(&k->t, "const %s before = tn_lane_value(sum, lane - s);", type);
    fu_line(&k->t, "if (lane >= s) sum %s= before;", op->by);
    fu_close(&k->t);
    fu_line(&k->t, "sum %s= total;", op->by);
    snprintf(cast, sizeof cast, "(%s)sum", k->lang->type[d]);
    snprintf(stored, sizeof stored, k->lang->store[d], cast);
    fu_line(&k->t, "if (j + lane < n) out[item * n + i%d] = %s;", axis, stored);
    fu_line(&k->t, "total = tn_lane_value(sum, 31);");
    fu_close(&k->t);
    fu_close(&k->t);
}

/* Lines side by side. */
static void scan_lines(fu_raw *k, const tn_tensor *t, const tn_tensor *x, tn_dtype acc, int64_t items)
{
    int axis = t->attr->axis;
    tn_dtype d = (tn_dtype)t->dtype;
    const tn_op_info *op = tn_op_get((tn_op)t->op);
    long long inner = fu_raw_count(t, axis + 1, t->ndim);
    char at[300], element[340], value[400], stored[120], cast[64];
    fu_line(&k->t, "const int64_t n = a.dim[%d];", fu_raw_dim(k, t->shape[axis]));
    const char *number = fu_cuda_each(k, items);
    fu_line(&k->t, "const int64_t inner = %s %% %lld, outer = %s / %lld;", number, inner, number, inner);
    fu_raw_decode(k, t, 0, axis, "outer");
    fu_raw_decode(k, t, axis + 1, t->ndim, "inner");
    fu_line(&k->t, "%s sum = %d;", k->lang->type[acc], op->start);
    if (t->attr->reverse)
        fu_open(&k->t, "for (int64_t i%d = n - 1; i%d >= 0; i%d--) {", axis, axis, axis);
    else
        fu_open(&k->t, "for (int64_t i%d = 0; i%d < n; i%d++) {", axis, axis, axis);
    fu_raw_index(x, 0, t->ndim, "i", at, sizeof at);
    snprintf(element, sizeof element, "x[%s]", at);
    snprintf(value, sizeof value, k->lang->load[d], element);
    fu_line(&k->t, "sum %s= %s;", op->by, value);
    snprintf(cast, sizeof cast, "(%s)sum", k->lang->type[d]);
    snprintf(stored, sizeof stored, k->lang->store[d], cast);
    fu_line(&k->t, "out[(outer * n + i%d) * %lld + inner] = %s;", axis, inner, stored);
    fu_close(&k->t);
    fu_close(&k->t);
}

int fu_cuda_scan(fu_ctx *c, const fu_group *g)
{
    int node = g->member[0];
    const tn_tensor *t = c->node[node].t;
    tn_dtype d = (tn_dtype)t->dtype, acc = tn_dtype_is_float(d) ? TN_F64 : d;
    int axis = t->attr->axis;
    fu_place_of x;
    fu_raw k;
    int r = fu_cuda_place(c, t->in[0], &x);
    if (!r) r = fu_raw_open(&k, c, g, tn_op_get((tn_op)t->op)->name, axis ? t->shape[axis] : 0);
    if (r) return r;
    fu_cuda_operand(&k, &x, "x");
    fu_raw_output(&k, "out");
    int64_t outer = fu_raw_count(t, 0, axis), inner = fu_raw_count(t, axis + 1, t->ndim);
    bool along = inner == 1;
    if (along)
        scan_line(&k, t, x.t, acc);
    else
        scan_lines(&k, t, x.t, acc, outer * inner);
    return fu_cuda_close(&k, "running sums along one axis", outer * inner, THREADS, along ? WARPS : THREADS);
}
