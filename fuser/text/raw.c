/* raw.c - what every kernel uses whose loops are written out by hand: operands, coordinates, and dense copies
 * of what such a kernel cannot read where it lies. Start with fu_raw_open. */
#include "raw.h"
#include "cuda.h"

#include <stdio.h>

int fu_raw_open(fu_raw *k, fu_ctx *c, const fu_group *g, const char *what, int64_t width)
{
    *k = (fu_raw){.c = c, .lang = fu_language(c->target), .grid = fu_can(c->target)->grid};
    char name[64];
    if (width > 1)
        snprintf(name, sizeof name, "%.30s_%lld", what, (long long)width);
    else
        snprintf(name, sizeof name, "%.30s_kernel", what);
    k->s = fu_step_new(c, TN_STEP_KERNEL, name);
    k->node = g->member[0];
    k->t.indent = 1;
    return k->s ? 0 : TN_E_NOMEM;
}

void fu_raw_operand(fu_raw *k, int slot, int64_t offset, tn_dtype d, const char *name, bool out)
{
    int i = fu_step_buf(k->c, k->s, slot, offset);
    if (i < 0) k->t.failed = i;
    if (out) k->s->n_out++;
    fu_put_pointer(&k->t, k->lang, d, name, i, !out);
}

int fu_raw_find(fu_ctx *c, const tn_tensor *t, fu_stored *out)
{
    t = fu_value_of(c, t);
    *out = (fu_stored){.t = t};
    return tn_is_number(t) ? fu_raw_copy(c, t, out) : fu_take(c, t, true, &out->slot, &out->offset);
}

int fu_raw_copy(fu_ctx *c, const tn_tensor *t, fu_stored *out)
{
    t = fu_value_of(c, t);
    *out = (fu_stored){.dense = *t};
    if ((out->slot = fu_emit_dense(c, t)) < 0) return out->slot;
    out->t = &out->dense;
    tn_dense_strides(t->ndim, t->shape, out->dense.stride);
    return 0;
}

void fu_raw_input(fu_raw *k, const fu_stored *x, const char *name)
{
    fu_raw_operand(k, x->slot, x->offset, x->t->dtype, name, false);
    k->s->bytes += fu_bytes(x->t);
}

void fu_raw_output(fu_raw *k, const char *name)
{
    const tn_tensor *t = k->c->node[k->node].t;
    fu_raw_operand(k, k->node, 0, t->dtype, name, true);
    k->s->bytes += fu_bytes(t);
}

int fu_raw_dim(fu_raw *k, int64_t v)
{
    const int at = fu_step_dim(k->c, k->s, v);
    if (at < 0) k->t.failed = at;
    return at;
}

const char *fu_raw_each(fu_raw *k, int64_t items)
{
    const bool small = items < INT64_C(0x7fffffff);
    if (!k->grid) {
        fu_open(&k->t, "for (int64_t item = begin; item < end; item++) {");
        return "item";
    }
    fu_line(&k->t, "const int64_t item = (int64_t)blockIdx.x * %d + threadIdx.x;", FU_RAW_THREADS);
    fu_open(&k->t, "if (item < a.n) {");
    if (small) fu_line(&k->t, "const uint32_t q = (uint32_t)item;");
    return small ? "q" : "item";
}

int fu_raw_close(fu_raw *k, const char *comment, int64_t items, int64_t per_item, int64_t in_block)
{
    tn_growing all = {0};
    tn_put(&all, "/* %s: %s */\n", k->s->name, comment);
    if (k->grid) {
        tn_put(&all,
               "extern \"C\" __global__ void __launch_bounds__(%d, 1) %s(const tn_cuda_args a)\n{\n%s%s}\n",
               FU_RAW_THREADS, k->s->name, fu_cuda_guard(k->c, 1, &k->node, k->fault), k->t.p ? k->t.p : "");
        k->s->grid.threads = FU_RAW_THREADS;
    } else {
        if (k->fault) tn_put(&all, "%s", FU_INDEX_FAULT);
        tn_put(&all, "void %s(const tn_args *a, int64_t begin, int64_t end)\n{\n%s}\n", k->s->name,
               k->t.p ? k->t.p : "");
    }
    if (!all.failed) all.failed = k->t.failed;
    tn_growing_free(&k->t);
    k->s->grid.n = items;
    k->s->grid.chunk = k->grid ? in_block : per_item > 0 && per_item < 32768 ? 32768 / per_item : 1;
    return fu_finish_kernel(k->c, k->s, &all);
}

void fu_raw_value(const fu_raw *k, tn_dtype d, const char *name, const char *at, char *out, size_t n)
{
    char element[340];
    snprintf(element, sizeof element, "%s[%s]", name, at);
    snprintf(out, n, k->lang->load[d], element);
}

void fu_raw_store(fu_raw *k, tn_dtype d, const char *element, const char *value)
{
    char stored[200];
    snprintf(stored, sizeof stored, k->lang->store[d], value);
    fu_line(&k->t, "%s = %s;", element, stored);
}

void fu_raw_index(const tn_tensor *t, int from, int to, const char *coordinate, char *out, size_t n)
{
    size_t k = 0;
    out[0] = 0;
    for (int i = from; i < to && k < n; i++) {
        if (t->shape[i] == 1 || !t->stride[i]) continue;
        k += (size_t)snprintf(out + k, n - k, "%s%s%d * %lld", k ? " + " : "", coordinate, i,
                              (long long)t->stride[i]);
    }
    if (!k) snprintf(out, n, "0");
}

/* Coordinates of axes from .. to - 1 from the row-major number `what`. */
void fu_raw_decode(fu_raw *k, const tn_tensor *t, int from, int to, const char *what)
{
    fu_decode(&k->t, (1u << to) - (1u << from), t->shape, what);
}

/* The kernel that copies x into a part of a dense tensor of shape `whole`, which begins at `offset`. */
static int emit_copy(fu_ctx *c, const fu_group *g, const tn_tensor *x, const int64_t *whole, int slot,
                     int64_t offset)
{
    fu_prog *const whose = c->prog; /* may be that of the kernel for which x is copied */
    if (!c->copy && !(c->copy = tn_arena_alloc(&c->arena, sizeof *c->copy)))
        return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    c->prog = c->copy;
    int64_t r = fu_copy_program(c, x, whole);
    if (r > 0) {
        c->prog->store[0].slot = slot;
        c->prog->store[0].offset = offset;
        fu_schedule(c->prog);
        r = fu_emit(c, g, c->prog);
    }
    c->prog = whose;
    return (int)r;
}

int fu_emit_dense(fu_ctx *c, const tn_tensor *t)
{
    const fu_group none = {0};
    const int slot = fu_scratch_slot(c, tn_node_numel(t), t->dtype);
    const int r = slot < 0 ? slot : emit_copy(c, &none, t, t->shape, slot, 0);
    return r ? r : slot;
}

/* More operands than one kernel joins are copied to their places one by one. */
int fu_emit_concat(fu_ctx *c, const fu_group *g)
{
    const tn_tensor *t = c->node[g->member[0]].t;
    const int axis = t->attr->axis;
    const int64_t inner = tn_extent(t->shape, axis + 1, t->ndim);
    int64_t at = 0;
    for (int i = 0; i < t->n_in; i++) {
        const int r = emit_copy(c, g, fu_value_of(c, t->in[i]), t->shape, g->member[0], at);
        if (r) return r;
        at += t->in[i]->shape[axis] * inner;
    }
    return 0;
}

int fu_take(fu_ctx *c, const tn_tensor *t, bool lies, int *slot, int64_t *offset)
{
    *offset = 0;
    if (lies) return fu_place(c, t, slot, offset) ? 0 : fu_fail(c, TN_E_INTERNAL, "an operand has no memory");
    *slot = fu_emit_dense(c, t);
    return *slot < 0 ? *slot : 0;
}

int fu_dense_operand(fu_ctx *c, const tn_tensor *t, int *slot, int64_t *offset)
{
    t = fu_value_of(c, t);
    return fu_take(c, t, !tn_is_number(t) && tn_node_is_dense(t), slot, offset);
}
