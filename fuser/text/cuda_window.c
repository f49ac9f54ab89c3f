/* cuda_window.c - pooling over NHWC images and its transposes, in CUDA C: a thread for each element of
 * the result, channels side by side. The transposes are gathers: each element of the image adds the windows
 * that cover it, in one order. Start with fu_cuda_window. */
#include "raw.h"

#include <stdio.h>

enum { THREADS = 256 };

static void loaded(const fu_window *w, const char *element, char *out, size_t n)
{
    snprintf(out, n, w->k.lang->load[w->d], element);
}

static void put_result(fu_window *w, const char *value)
{
    char stored[160];
    snprintf(stored, sizeof stored, w->k.lang->store[w->to], value);
    fu_line(&w->k.t, "out[item] = %s;", stored);
}

/* pool_max, pool_argmax, pool_sum, pool_take: over the window's elements */
static void forward(fu_window *w)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
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
             (long long)p->w, (long long)w->t->shape[3]);
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
static void transposed(fu_window *w)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
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
            (long long)p->ow, (long long)w->t->shape[3]);
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
    fu_window w;
    int r = fu_window_open(&w, c, g);
    if (r) return r;
    int64_t numel = tn_node_numel(w.t);
    fu_raw_decode(&w.k, w.t, 0, 4, fu_cuda_each(&w.k, numel));
    if (w.back)
        transposed(&w);
    else
        forward(&w);
    fu_close(&w.k.t);
    return fu_cuda_close(&w.k,
                         w.back ? "each element adds the windows that cover it" : "a window for each element",
                         numel, THREADS, THREADS);
}
