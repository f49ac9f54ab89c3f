/* cuda_concat.c - concat in CUDA C, a kernel that only moves elements: a thread for each element of
 * the result, so that neighbours write side by side. Also the helpers of the other kernels that are written
 * out by hand. Start with fu_cuda_concat. */
#include "raw.h"

#include <stdio.h>
#include <string.h>

enum { THREADS = 256 };

/* ---- helpers ---- */

int fu_cuda_place(fu_ctx *c, const tn_tensor *t, fu_place_of *out)
{
    t = fu_value_of(c, t);
    *out = (fu_place_of){.t = t};
    if (!tn_is_number(t)) {
        if (fu_place(c, t, &out->slot, &out->offset)) return 0;
        return fu_fail(c, TN_E_INTERNAL, "an operand has no memory");
    }
    if ((out->slot = fu_emit_dense(c, t)) < 0) return out->slot;
    out->dense = *t;
    out->t = &out->dense;
    int64_t below = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        out->dense.stride[i] = below;
        below *= t->shape[i];
    }
    return 0;
}

void fu_cuda_operand(fu_raw *k, const fu_place_of *x, const char *name)
{
    fu_raw_operand(k, x->slot, x->offset, (tn_dtype)x->t->dtype, name, false);
    k->s->bytes += tn_node_numel(x->t) * (int64_t)tn_dtype_size((tn_dtype)x->t->dtype);
}

const char *fu_cuda_each(fu_raw *k, int64_t numel)
{
    bool small = numel < INT64_C(0x7fffffff);
    fu_line(&k->t, "const int64_t item = (int64_t)blockIdx.x * %d + threadIdx.x;", THREADS);
    fu_open(&k->t, "if (item < a.n) {");
    if (small) fu_line(&k->t, "const uint32_t q = (uint32_t)item;");
    return small ? "q" : "item";
}

int fu_cuda_close(fu_raw *k, const char *comment, int64_t items, int threads, int64_t chunk)
{
    tn_growing all = {0};
    tn_put(&all, "/* %s: %s */\n", k->s->name, comment);
    tn_put(&all, "extern \"C\" __global__ void __launch_bounds__(%d, 1) %s(const tn_cuda_args a)\n{\n%s%s}\n",
           threads, k->s->name, fu_cuda_guard(k->c, 1, &k->node, k->fault), k->t.p ? k->t.p : "");
    if (!all.failed) all.failed = k->t.failed;
    tn_growing_free(&k->t);
    k->s->grid.n = items;
    k->s->grid.chunk = chunk;
    k->s->grid.threads = threads;
    return fu_finish_kernel(k->c, k->s, &all);
}

/* ---- concat ---- */

int fu_cuda_concat(fu_ctx *c, const fu_group *g, int from, int to, int64_t start)
{
    const tn_tensor *t = c->node[g->member[0]].t;
    int axis = t->attr->axis, r;
    int64_t inner = fu_raw_count(t, axis + 1, t->ndim), outer = fu_raw_count(t, 0, axis), lines = 0;
    fu_place_of *x = tn_arena_alloc(&c->arena, FU_CONCAT_AT_ONCE * sizeof *x);
    if (!x) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int i = from; i < to; i++) {
        const tn_tensor *in = fu_value_of(c, t->in[i]);
        lines += in->shape[axis];
        if (tn_node_numel(in) && (r = fu_cuda_place(c, in, &x[i - from]))) return r;
    }
    if (!lines) return 0;
    fu_raw k;
    if ((r = fu_raw_open(&k, c, g, "concat", inner > 1 ? inner : t->shape[axis]))) return r;
    for (int i = from; i < to; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i - from);
        if (tn_node_numel(t->in[i])) fu_cuda_operand(&k, &x[i - from], name);
    }
    fu_raw_output(&k, "out");
    tn_tensor part[1] = {*t}; /* the result, but for what other kernels make of it */
    part->shape[axis] = lines;
    const char *number = fu_cuda_each(&k, outer * lines * inner);
    fu_raw_decode(&k, part, 0, t->ndim, number);
    fu_line(&k.t, "%s value;", k.lang->memory[t->dtype]);
    int64_t done = 0;
    for (int i = from; i < to; i++) {
        const tn_tensor *in = x[i - from].t;
        if (!tn_node_numel(t->in[i])) continue;
        char at[400], rest[300];
        int64_t extent = in->shape[axis];
        fu_raw_index(in, 0, axis, "i", at, sizeof at);
        fu_raw_index(in, axis + 1, in->ndim, "i", rest, sizeof rest);
        bool last = done + extent == lines;
        if (!last)
            fu_line(&k.t, "%sif (i%d < %lld)", done ? "else " : "", axis, (long long)(done + extent));
        else if (done)
            fu_line(&k.t, "else");
        fu_line(&k.t, "    value = x%d[%s + (i%d - %lld) * %lld + %s];", i - from, at, axis, (long long)done,
                (long long)in->stride[axis], rest);
        done += extent;
    }
    if (lines == t->shape[axis])
        fu_line(&k.t, "out[item] = value;");
    else
        fu_line(&k.t, "out[item / %lld * %lld + item %% %lld + %lld] = value;", (long long)(lines * inner),
                (long long)(t->shape[axis] * inner), (long long)(lines * inner), (long long)(start * inner));
    fu_close(&k.t);
    return fu_cuda_close(&k, "operands one after the other", outer * lines * inner, THREADS, THREADS);
}
