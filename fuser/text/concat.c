/* concat.c - operands one after the other along an axis, in C. Start with fu_emit_concat. */
#include "raw.h"

#include <stdio.h>
#include <string.h>

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
        if (tn_is_number(x) && tn_node_numel(x) && (slot[i] = fu_emit_dense(c, x)) < 0) return slot[i];
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
            return tn_growing_free(&k.t), r;
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
