/* emit_cuda_window.c - pooling over NHWC images and its transposes, in CUDA C: a thread for each element of
 * the result, channels side by side. The transposes are gathers: each element of the image adds the windows
 * that cover it, in one order. Start with fu_cuda_window. */
#include "raw.h"

#include <stdio.h>

enum { THREADS = 256 };

typedef struct window {
    fu_raw k;
    const tn_tensor *t;
    const tn_pool_attr *p;
    long long c; /* channels */
    tn_dtype d, acc;
    bool max;    /* of the windows: the largest element is written, */
    bool chosen; /* and which one it is */
} window;

static void loaded(const window *w, const char *element, char *out, size_t n)
{
    snprintf(out, n, w->k.lang->load[w->d], element);
}

static void put_result(window *w, const char *value)
{
    char stored[160];
    snprintf(stored, sizeof stored, w->k.lang->store[w->d], value);
    fu_line(&w->k.t, "out[item] = %s;", stored);
}

/* pool_max, pool_argmax, pool_sum, pool_take: over the window's elements */
static void forward(window *w)
{
    const tn_pool_attr *p = w->p;
    fu_text *t = &w->k.t;
    bool arg = w->chosen, max = w->max || arg;
    bool takes = w->t->op == TN_OP_pool_take, real = tn_dtype_is_float(w->acc);
    const char *type = w->k.lang->type[w->acc];
    char start[48] = "0", value[96];
    if (max)
        fu_literal(start, sizeof start, w->acc, -__builtin_inf(),
                   w->acc == TN_I32   ? INT32_MIN
                   : w->acc == TN_I64 ? INT64_MIN
                                      : 0,
                   !real);
    fu_line(t, "%s best = %s;", type, start);
    if (arg) fu_line(t, "int32_t which = -1;");
    if (takes) fu_line(t, "const int32_t chosen = (int32_t)index[item];");
    fu_open(t, "for (int ky = 0; ky < %lld; ky++) {", (long long)p->window[0]);
    fu_line(t, "const int64_t iy = i1 * %lld + ky - %lld;", (long long)p->stride[0], (long long)p->pad[0]);
    fu_line(t, "if (iy < 0 || iy >= %lld) continue;", (long long)p->h);
    fu_open(t, "for (int kx = 0; kx < %lld; kx++) {", (long long)p->window[1]);
    fu_line(t, "const int64_t ix = i2 * %lld + kx - %lld;", (long long)p->stride[1], (long long)p->pad[2]);
    fu_line(t, "if (ix < 0 || ix >= %lld) continue;", (long long)p->w);
    char element[160];
    snprintf(element, sizeof element, "x[((i0 * %lld + iy) * %lld + ix) * %lld + i3]", (long long)p->h,
             (long long)p->w, w->c);
    loaded(w, element, value, sizeof value);
    if (takes) {
        fu_line(t, "if (chosen == ky * %lld + kx) best = %s;", (long long)p->window[1], value);
    } else if (arg) {
        fu_line(t, "const %s v = %s;", type, value);
        fu_line(t, "if (v > best || which < 0%s) {", real ? " || (v != v && best == best)" : "");
        fu_line(t, "    which = ky * %lld + kx;", (long long)p->window[1]);
        fu_line(t, "    best = v;");
        fu_line(t, "}");
    } else if (max) {
        fu_line(t, "best = tn_max(best, (%s)%s);", type, value);
    } else {
        fu_line(t, "best += %s;", value);
    }
    fu_close(t);
    fu_close(t);
    if (arg) fu_line(t, "place[item] = which < 0 ? 0 : which;");
    if (!arg || w->max) put_result(w, "best");
}

/* pool_spread, pool_put: over the windows that cover the element of the image */
static void transposed(window *w)
{
    const tn_pool_attr *p = w->p;
    fu_text *t = &w->k.t;
    bool put = w->t->op == TN_OP_pool_put;
    long long sy = p->stride[0], sx = p->stride[1];
    char value[96];
    fu_line(t, "%s sum = 0;", w->k.lang->type[w->acc]);
    fu_line(t, "/* windows oy, ox that contain row i1 and column i2 */");
    fu_line(t, "const int64_t top = i1 + %lld, left = i2 + %lld;", (long long)p->pad[0],
            (long long)p->pad[2]);
    fu_line(t, "const int64_t oy0 = top < %lld ? 0 : (top - %lld) / %lld;", (long long)p->window[0],
            (long long)p->window[0] - sy, sy);
    fu_line(t, "const int64_t ox0 = left < %lld ? 0 : (left - %lld) / %lld;", (long long)p->window[1],
            (long long)p->window[1] - sx, sx);
    fu_open(t, "for (int64_t oy = oy0; oy < %lld && oy * %lld <= top; oy++) {", (long long)p->oh, sy);
    fu_line(t, "const int64_t ky = top - oy * %lld;", sy);
    fu_line(t, "if (ky >= %lld) continue;", (long long)p->window[0]);
    fu_open(t, "for (int64_t ox = ox0; ox < %lld && ox * %lld <= left; ox++) {", (long long)p->ow, sx);
    fu_line(t, "const int64_t kx = left - ox * %lld;", sx);
    fu_line(t, "if (kx >= %lld) continue;", (long long)p->window[1]);
    fu_line(t, "const int64_t at = ((i0 * %lld + oy) * %lld + ox) * %lld + i3;", (long long)p->oh,
            (long long)p->ow, w->c);
    loaded(w, "g[at]", value, sizeof value);
    if (put)
        fu_line(t, "if ((int64_t)index[at] == ky * %lld + kx) sum += %s;", (long long)p->window[1], value);
    else
        fu_line(t, "sum += %s;", value);
    fu_close(t);
    fu_close(t);
    put_result(w, "sum");
}

int fu_cuda_window(fu_ctx *c, const fu_group *g)
{
    int node = g->member[0];
    const tn_tensor *t = c->node[node].t;
    window w = {.t = t, .p = &t->attr->pool, .d = (tn_dtype)t->in[0]->dtype, .c = t->shape[3]};
    int slot[2] = {-1, -1};
    int64_t offset[2] = {0}, numel = tn_node_numel(t);
    for (int i = 0; i < t->n_in; i++) {
        int r = fu_dense_operand(c, t->in[i], node, &slot[i], &offset[i]);
        if (r) return r;
    }
    w.acc = fu_compute_dtype(w.d);
    bool back = t->op == TN_OP_pool_spread || t->op == TN_OP_pool_put;
    int r = fu_raw_open(&w.k, c, g, tn_op_get((tn_op)t->op)->name, w.c);
    if (r) return r;
    fu_raw_operand(&w.k, slot[0], offset[0], w.d, back ? "g" : "x", false);
    if (t->n_in > 1) fu_raw_operand(&w.k, slot[1], offset[1], (tn_dtype)t->in[1]->dtype, "index", false);
    for (int i = 0; i < t->n_in; i++)
        w.k.s->bytes += tn_node_numel(t->in[i]) * (int64_t)tn_dtype_size((tn_dtype)t->in[i]->dtype);
    for (int i = 0; i < g->n; i++) {
        bool chosen = c->node[g->member[i]].t->op == TN_OP_pool_argmax;
        w.chosen = w.chosen || chosen;
        w.max = w.max || c->node[g->member[i]].t->op == TN_OP_pool_max;
        w.k.node = g->member[i];
        fu_raw_output(&w.k, chosen ? "place" : "out");
    }
    fu_raw_decode(&w.k, t, 0, 4, fu_cuda_each(&w.k, numel));
    if (back)
        transposed(&w);
    else
        forward(&w);
    fu_close(&w.k.t);
    return fu_cuda_close(&w.k,
                         back ? "each element adds the windows that cover it" : "a window for each element",
                         numel, THREADS, THREADS);
}
