/* copy.c - kernels that only move elements: dense copies of strided operands, concat. Also the few
 * helpers that every kernel written out by hand uses (fu_raw_*). Start with fu_emit_concat. */
#include "raw.h"

#include <stdio.h>
#include <string.h>

/* ---- helpers ---- */

int fu_raw_open(fu_raw *k, fu_ctx *c, const fu_group *g, const char *what, int64_t width)
{
    *k = (fu_raw){.c = c, .lang = fu_language(c->target)};
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
    const char *type = k->lang->memory[d], *only = out ? "" : "const ";
    if (k->lang == &fu_dialect_cuda)
        fu_line(&k->t, "%s%s *const %s = (%s%s *)a.buf[%d];", only, type, name, only, type, i);
    else
        fu_line(&k->t, "%s%s *%s = a->buf[%d];", only, type, name, i);
}

int fu_raw_input(fu_raw *k, const tn_tensor *t, const char *name)
{
    int slot;
    int64_t offset;
    if (!fu_place(k->c, t, &slot, &offset))
        return fu_fail(k->c, TN_E_UNSUPPORTED, "an operand has no memory");
    fu_raw_operand(k, slot, offset, (tn_dtype)t->dtype, name, false);
    k->s->bytes += tn_node_numel(t) * (int64_t)tn_dtype_size((tn_dtype)t->dtype);
    return 0;
}

void fu_raw_output(fu_raw *k, const char *name)
{
    const tn_tensor *t = k->c->node[k->node].t;
    fu_raw_operand(k, k->node, 0, (tn_dtype)t->dtype, name, true);
    k->s->bytes += tn_node_numel(t) * (int64_t)tn_dtype_size((tn_dtype)t->dtype);
}

int fu_raw_dim(fu_raw *k, int64_t v)
{
    tn_step *s = k->s;
    if (!s->dim) s->dim = tn_arena_alloc(&k->c->plan->arena, 8 * sizeof *s->dim);
    if (!s->dim || s->n_dim == 8) {
        k->t.failed = s->dim ? TN_E_UNSUPPORTED : TN_E_NOMEM;
        return 0;
    }
    s->dim[s->n_dim] = v;
    return s->n_dim++;
}

int fu_raw_close(fu_raw *k, const char *comment, int64_t items, int64_t per_item)
{
    fu_text all = {0};
    fu_put(&all, "/* %s: %s */\n", k->s->name, comment);
    if (k->fault) fu_put(&all, "%s", FU_INDEX_FAULT);
    fu_put(&all, "void %s(const tn_args *a, int64_t begin, int64_t end)\n{\n%s}\n", k->s->name,
           k->t.p ? k->t.p : "");
    if (!all.failed) all.failed = k->t.failed;
    fu_text_free(&k->t);
    k->s->grid.n = items;
    k->s->grid.chunk = per_item > 0 && per_item < 32768 ? 32768 / per_item : 1;
    return fu_finish_kernel(k->c, k->s, &all);
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
    int64_t below = 1;
    for (int i = to - 1; i >= from; i--) {
        char by[40] = "", mod[40] = "";
        if (below > 1) snprintf(by, sizeof by, " / %lld", (long long)below);
        if (i > from) snprintf(mod, sizeof mod, " %% %lld", (long long)t->shape[i]);
        fu_line(&k->t, "const int64_t i%d = %s%s%s;", i, what, by, mod);
        below *= t->shape[i] ? t->shape[i] : 1;
    }
}

int64_t fu_raw_count(const tn_tensor *t, int from, int to)
{
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= t->shape[i];
    return n;
}

/* ---- dense copy into scratch ---- */

int64_t fu_dense_program(fu_ctx *c, const tn_tensor *t)
{
    fu_prog *p = c->prog;
    memset(p, 0, offsetof(fu_prog, value));
    p->c = c;
    p->n_value = p->n_store = 1;
    p->last_bytes = fu_last_bytes(c->target);
    fu_value *v = &p->value[0];
    fu_store *s = &p->store[0];
    memset(v, 0, sizeof *v);
    memset(s, 0, sizeof *s);
    bool number = tn_op_get((tn_op)t->base->op)->kind == TN_KIND_NUMBER;
    v->kind = !number ? FU_LOAD : t->base->op == TN_OP_scalar ? FU_SCALAR : FU_NUMBER;
    v->dtype = v->from = s->dtype = (tn_dtype)t->dtype;
    v->node = v->stash = -1;
    s->node = s->mask = -1;
    if (number) v->number = t->base->attr->number;
    if (!fu_place(c, t, &v->slot, &v->offset) && v->kind != FU_NUMBER)
        return fu_fail(c, TN_E_UNSUPPORTED, "an operand has no memory");
    v->hint = t->name ? t->name : t->base->name;
    int64_t dense = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] == 1) continue;
        p->n_atom++;
        dense *= t->shape[i];
    }
    int64_t below = dense;
    for (int i = 0, a = 0; i < t->ndim; i++) {
        if (t->shape[i] == 1) continue;
        below = t->shape[i] ? below / t->shape[i] : 0;
        p->extent[a] = t->shape[i];
        if (!number) v->stride[a] = t->stride[i];
        if (!number && t->stride[i]) v->vary |= fu_bit(a);
        s->stride[a] = below;
        s->dom |= fu_bit(a++);
    }
    return dense;
}

int fu_emit_dense(fu_ctx *c, const tn_tensor *t, int node)
{
    (void)node;
    int64_t elems = fu_dense_program(c, t);
    if (elems < 0) return (int)elems;
    int slot = c->prog->store[0].slot = fu_scratch_slot(c, elems, (tn_dtype)t->dtype);
    if (slot < 0) return slot;
    fu_schedule(c->prog);
    fu_group none = {0};
    int r = elems ? fu_emit(c, &none, c->prog) : 0;
    return r ? r : slot;
}

/* ---- concat ---- */

/* Loops over axes from .. last of x that copy into a dense place at `to`; lines that lie in memory as they
 * will, if they are long and `past` the caches. */
static void copy_loops(fu_raw *k, const tn_tensor *x, int from, const char *name, const char *fixed,
                       const char *to, bool past)
{
    enum { LONG = 256 };
    char at[256], dense[256];
    size_t u = 0;
    int opened = 0, last = x->ndim - 1;
    int64_t below = fu_raw_count(x, from, x->ndim), size = (int64_t)tn_dtype_size((tn_dtype)x->dtype);
    past = past && from <= last && x->stride[last] == 1 && x->shape[last] * size >= LONG;
    fu_raw_index(x, from, past ? last : x->ndim, "i", at, sizeof at);
    dense[0] = 0;
    for (int i = from; i < (past ? last : x->ndim); i++) {
        below = x->shape[i] ? below / x->shape[i] : 0;
        if (i == last) fu_line(&k->t, "%s", k->lang->simd);
        fu_open(&k->t, "for (int64_t i%d = 0; i%d < %lld; i%d++) {", i, i, (long long)x->shape[i], i);
        opened++;
        u += (size_t)snprintf(dense + u, sizeof dense - u, " + i%d * %lld", i, (long long)below);
    }
    if (past)
        fu_line(&k->t, "tn_stream(out + %s%s, %s + %s + %s, %lld);", to, dense, name, fixed, at,
                (long long)(x->shape[last] * size));
    else
        fu_line(&k->t, "out[%s%s] = %s[%s + %s];", to, dense, name, fixed, at);
    while (opened--) fu_close(&k->t);
}

static int concat_some(fu_ctx *c, const fu_group *g, int from, int to, int64_t start)
{
    const tn_tensor *t = c->node[g->member[0]].t;
    int axis = t->attr->axis;
    int64_t inner = fu_raw_count(t, axis + 1, t->ndim), lines = 0;
    bool past = tn_node_numel(t) * (int64_t)tn_dtype_size((tn_dtype)t->dtype) > fu_last_bytes(c->target);
    int slot[UINT8_MAX];
    for (int i = from; i < to; i++) {
        const tn_tensor *x = fu_value_of(c, t->in[i]);
        lines += x->shape[axis];
        slot[i] = -1;
        if (tn_op_get((tn_op)x->base->op)->kind == TN_KIND_NUMBER && tn_node_numel(x) &&
            (slot[i] = fu_emit_dense(c, x, g->member[0])) < 0)
            return slot[i];
    }
    fu_raw k;
    int r = fu_raw_open(&k, c, g, "concat", inner > 1 ? inner : t->shape[axis]);
    if (r) return r;
    tn_tensor dense[1];
    for (int i = from; i < to; i++) {
        const tn_tensor *x = fu_value_of(c, t->in[i]);
        char name[16];
        snprintf(name, sizeof name, "x%d", i - from);
        if (slot[i] >= 0)
            fu_raw_operand(&k, slot[i], 0, (tn_dtype)t->dtype, name, false);
        else if ((r = fu_raw_input(&k, x, name)))
            return fu_text_free(&k.t), r;
    }
    fu_raw_output(&k, "out");
    fu_open(&k.t, "for (int64_t item = begin; item < end; item++) {");
    bool by_line = inner > 1;
    if (by_line) {
        fu_line(&k.t, "const int64_t line = item %% %lld, outer = item / %lld;", (long long)lines,
                (long long)lines);
        fu_raw_decode(&k, t, 0, axis, "outer");
    } else {
        fu_raw_decode(&k, t, 0, axis, "item");
    }
    int64_t done = 0;
    for (int i = from; i < to; i++) {
        const tn_tensor *x = fu_value_of(c, t->in[i]);
        if (slot[i] >= 0) { /* copied: dense strides */
            dense[0] = *x;
            int64_t s = 1;
            for (int a = x->ndim - 1; a >= 0; a--) {
                dense[0].stride[a] = s;
                s *= x->shape[a];
            }
            x = dense;
        }
        char name[16], fixed[256], place[160];
        int64_t n = x->shape[axis];
        if (!n) continue;
        snprintf(name, sizeof name, "x%d", i - from);
        fu_raw_index(x, 0, axis, "i", fixed, sizeof fixed);
        if (by_line) {
            size_t u = strlen(fixed);
            snprintf(fixed + u, sizeof fixed - u, " + (line - %lld) * %lld", (long long)done,
                     (long long)x->stride[axis]);
            snprintf(place, sizeof place, "(outer * %lld + %lld + line) * %lld", (long long)t->shape[axis],
                     (long long)start, (long long)inner);
            fu_open(&k.t, "%sif (line < %lld) {", done ? "else " : "", (long long)(done + n));
            copy_loops(&k, x, axis + 1, name, fixed, place, past);
            fu_close(&k.t);
        } else {
            snprintf(place, sizeof place, "item * %lld + %lld", (long long)t->shape[axis],
                     (long long)(start + done));
            copy_loops(&k, x, axis, name, fixed, place, past);
        }
        done += n;
    }
    fu_close(&k.t);
    if (past) fu_line(&k.t, "tn_stream_end();");
    int64_t outer = fu_raw_count(t, 0, axis);
    return fu_raw_close(&k, "operands one after the other", by_line ? outer * lines : outer,
                        by_line ? inner : lines);
}

int fu_emit_concat(fu_ctx *c, const fu_group *g)
{
    bool cuda = c->target->dialect == TN_DIALECT_CUDA;
    const tn_tensor *t = c->node[g->member[0]].t;
    int64_t start = 0;
    for (int i = 0; i < t->n_in; i += FU_CONCAT_AT_ONCE) {
        int to = i + FU_CONCAT_AT_ONCE < t->n_in ? i + FU_CONCAT_AT_ONCE : t->n_in;
        int r = cuda ? fu_cuda_concat(c, g, i, to, start) : concat_some(c, g, i, to, start);
        if (r) return r;
        for (int k = i; k < to; k++) start += t->in[k]->shape[t->attr->axis];
    }
    return 0;
}
