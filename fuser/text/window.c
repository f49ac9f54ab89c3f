/* window.c - pooling over NHWC images and its transposes.
 *
 * One item is a piece of one row of the result (TX columns, all channels) with an accumulator for each of its
 * elements, so that inner loops run over channels, over columns where there are few channels, or over both as
 * one. Padding is handled by the range of columns a window position can read, never inside the loop. The
 * transposes are gathers: each element of the image adds the windows that cover it, in one order.
 *
 * The largest element of each window and its place in the window may be the results of one kernel.
 *
 * Start with fu_emit_window; forward() and transposed() write the two families.
 */
#include "raw.h"

#include <stdio.h>
#include <string.h>

enum { ROW_ELEMENTS = 8192 };

typedef struct window {
    fu_window of;
    int64_t c, tx, tiles, width; /* channels; result columns an item makes; items a row; columns */
    bool flat;                   /* the loops now open are one */
} window;

/* Loops over columns [from, to) and channels. Where all strides are 1 they are one loop; many channels are
 * the inner loop; few are the outer one. */
static void open_loops(window *w, const char *from, const char *to, bool flat)
{
    tn_growing *t = &w->of.k.t;
    long long c = w->c;
    w->flat = flat;
    if (flat) {
        fu_line(t, "%s", w->of.k.lang->simd);
        fu_open(t, "for (int64_t q = %s * %lld; q < %s * %lld; q++) {", from, c, to, c);
    } else if (c >= 8) {
        fu_open(t, "for (int64_t col = %s; col < %s; col++) {", from, to);
        fu_line(t, "%s", w->of.k.lang->simd);
        fu_open(t, "for (int64_t ch = 0; ch < %lld; ch++) {", c);
    } else {
        fu_open(t, "for (int64_t ch = 0; ch < %lld; ch++) {", c);
        fu_line(t, "%s", w->of.k.lang->simd);
        fu_open(t, "for (int64_t col = %s; col < %s; col++) {", from, to);
    }
}

/* name = the element at column base + col * stride, of the loops' channel */
static void put_index(window *w, const char *name, const char *base, int64_t stride)
{
    if (w->flat)
        fu_line(&w->of.k.t, "const int64_t %s = (%s) * %lld + q;", name, base, (long long)w->c);
    else if (stride == 1)
        fu_line(&w->of.k.t, "const int64_t %s = (%s + col) * %lld + ch;", name, base, (long long)w->c);
    else
        fu_line(&w->of.k.t, "const int64_t %s = (%s + col * %lld) * %lld + ch;", name, base,
                (long long)stride, (long long)w->c);
}

static void close_loops(window *w)
{
    fu_close(&w->of.k.t);
    if (!w->flat) fu_close(&w->of.k.t);
}

static void loaded(const window *w, const char *pointer, const char *at, char *out, size_t n)
{
    char e[200];
    snprintf(e, sizeof e, "%s[%s]", pointer, at);
    snprintf(out, n, w->of.k.lang->load[w->of.d], e);
}

/* The item's place: image n, row y, columns x0 .. x1 of the result. */
static void open_item(window *w, int64_t rows)
{
    tn_growing *t = &w->of.k.t;
    fu_open(t, "for (int64_t item = begin; item < end; item++) {");
    fu_line(t, "const int64_t x0 = item %% %lld * %lld;", (long long)w->tiles, (long long)w->tx);
    fu_line(t, "const int64_t x1 = x0 + %lld < %lld ? x0 + %lld : %lld;", (long long)w->tx,
            (long long)w->width, (long long)w->tx, (long long)w->width);
    fu_line(t, "const int64_t y = item / %lld %% %lld, n = item / %lld;", (long long)w->tiles,
            (long long)rows, (long long)(w->tiles * rows));
}

/* `value` becomes the result; NULL: none. */
static void put_result(window *w, int64_t rows, const char *value)
{
    char stored[160];
    char base[80];
    open_loops(w, "x0", "x1", true);
    put_index(w, "j", "-x0", 1);
    snprintf(base, sizeof base, "(n * %lld + y) * %lld", (long long)rows, (long long)w->width);
    put_index(w, "to", base, 1);
    if (value) {
        snprintf(stored, sizeof stored, w->of.k.lang->store[w->of.to], value);
        fu_line(&w->of.k.t, "out[to] = %s;", stored);
    }
    if (w->of.chosen) fu_line(&w->of.k.t, "place[to] = which[j] < 0 ? 0 : which[j];");
    close_loops(w);
}

/* pool_max, pool_argmax, pool_sum, pool_take: over the windows' elements */
static void forward(window *w)
{
    const tn_pool_attr *p = w->of.p;
    tn_growing *t = &w->of.k.t;
    bool max = w->of.max || w->of.chosen, arg = w->of.chosen;
    bool takes = w->of.t->op == TN_OP_pool_take;
    char start[48], value[300], base[80];
    open_item(w, p->oh);
    if (max) {
        fu_literal(start, sizeof start, w->of.acc, -__builtin_inf(),
                   w->of.acc == TN_I32   ? INT32_MIN
                   : w->of.acc == TN_I64 ? INT64_MIN
                                         : 0,
                   !tn_dtype_is_float(w->of.acc));
    } else {
        snprintf(start, sizeof start, "0");
    }
    fu_line(t, "_Alignas(64) %s best[%lld];", w->of.k.lang->type[w->of.acc], (long long)(w->tx * w->c));
    fu_line(t, "for (int64_t j = 0; j < (x1 - x0) * %lld; j++) best[j] = %s;", (long long)w->c, start);
    if (arg) {
        fu_line(t, "_Alignas(64) int32_t which[%lld];", (long long)(w->tx * w->c));
        fu_line(t, "for (int64_t j = 0; j < (x1 - x0) * %lld; j++) which[j] = -1;", (long long)w->c);
    }
    fu_open(t, "for (int64_t ky = 0; ky < %lld; ky++) {", (long long)p->window[0]);
    fu_line(t, "const int64_t iy = y * %lld + ky - %lld;", (long long)p->stride[0], (long long)p->pad[0]);
    fu_line(t, "if (iy < 0 || iy >= %lld) continue;", (long long)p->h);
    fu_open(t, "for (int64_t kx = 0; kx < %lld; kx++) {", (long long)p->window[1]);
    fu_line(t, "/* columns whose element kx lies inside the image */");
    fu_line(t, "const int64_t shift = kx - %lld;", (long long)p->pad[2]);
    fu_line(t, "int64_t from = shift < 0 ? (-shift + %lld) / %lld : 0;", (long long)(p->stride[1] - 1),
            (long long)p->stride[1]);
    fu_line(t, "int64_t to = %lld - 1 - shift < 0 ? 0 : (%lld - 1 - shift) / %lld + 1;", (long long)p->w,
            (long long)p->w, (long long)p->stride[1]);
    fu_line(t, "from = from < x0 ? x0 : from;");
    fu_line(t, "to = to > x1 ? x1 : to;");
    open_loops(w, "from", "to", p->stride[1] == 1);
    put_index(w, "j", "-x0", 1);
    snprintf(base, sizeof base, "(n * %lld + iy) * %lld + shift", (long long)p->h, (long long)p->w);
    put_index(w, "at", base, p->stride[1]);
    loaded(w, "x", "at", value, sizeof value);
    fu_line(t, "const %s v = %s;", w->of.k.lang->type[w->of.acc], value);
    if (arg) {
        fu_line(t, "const bool won = v > best[j] || which[j] < 0%s;",
                tn_dtype_is_float(w->of.acc) ? " || (v != v && best[j] == best[j])" : "");
        fu_line(t, "which[j] = won ? (int32_t)(ky * %lld + kx) : which[j];", (long long)p->window[1]);
        fu_line(t, "best[j] = won ? v : best[j];");
    } else if (max) {
        fu_line(t, "best[j] = tn_max(best[j], v);");
    } else if (takes) {
        snprintf(base, sizeof base, "(n * %lld + y) * %lld", (long long)p->oh, (long long)p->ow);
        put_index(w, "to", base, 1);
        fu_line(t, "best[j] = (int32_t)index[to] == (int32_t)(ky * %lld + kx) ? v : best[j];",
                (long long)p->window[1]);
    } else {
        fu_line(t, "best[j] += v;");
    }
    close_loops(w);
    fu_close(t);
    fu_close(t);
    put_result(w, p->oh, arg && !w->of.max ? NULL : "best[j]");
    fu_close(t);
}

/* pool_spread, pool_put: over the windows that cover each element of the image */
static void transposed(window *w)
{
    const tn_pool_attr *p = w->of.p;
    tn_growing *t = &w->of.k.t;
    bool put = w->of.t->op == TN_OP_pool_put;
    int64_t sy = p->stride[0], sx = p->stride[1];
    char value[300], base[80];
    open_item(w, p->h);
    fu_line(t, "_Alignas(64) %s sum[%lld];", w->of.k.lang->type[w->of.acc], (long long)(w->tx * w->c));
    fu_line(t, "for (int64_t j = 0; j < (x1 - x0) * %lld; j++) sum[j] = 0;", (long long)w->c);
    fu_line(t, "/* windows oy whose rows contain y */");
    fu_line(t, "const int64_t top = y + %lld;", (long long)p->pad[0]);
    fu_line(t, "const int64_t oy0 = top < %lld ? 0 : (top - %lld) / %lld;", (long long)p->window[0],
            (long long)(p->window[0] - sy), (long long)sy);
    fu_line(t, "const int64_t oy1 = top / %lld < %lld ? top / %lld : %lld;", (long long)sy,
            (long long)(p->oh - 1), (long long)sy, (long long)(p->oh - 1));
    fu_open(t, "for (int64_t oy = oy0; oy <= oy1; oy++) {");
    fu_line(t, "const int64_t ky = top - oy * %lld;", (long long)sy);
    fu_line(t, "if (ky < 0 || ky >= %lld) continue;", (long long)p->window[0]);
    fu_open(t, "for (int64_t kx = 0; kx < %lld; kx++) {", (long long)p->window[1]);
    fu_line(t, "/* windows ox whose element kx is a column of this item: x0 <= ox * %lld + shift < x1 */",
            (long long)sx);
    fu_line(t, "const int64_t shift = kx - %lld;", (long long)p->pad[2]);
    fu_line(t, "int64_t from = x0 - shift <= 0 ? 0 : (x0 - shift + %lld) / %lld;", (long long)(sx - 1),
            (long long)sx);
    fu_line(t, "int64_t to = x1 - 1 - shift < 0 ? 0 : (x1 - 1 - shift) / %lld + 1;", (long long)sx);
    fu_line(t, "to = to > %lld ? %lld : to;", (long long)p->ow, (long long)p->ow);
    open_loops(w, "from", "to", sx == 1);
    put_index(w, "j", "shift - x0", sx);
    snprintf(base, sizeof base, "(n * %lld + oy) * %lld", (long long)p->oh, (long long)p->ow);
    put_index(w, "at", base, 1);
    loaded(w, "g", "at", value, sizeof value);
    if (put)
        fu_line(t, "sum[j] += (int32_t)index[at] == (int32_t)(ky * %lld + kx) ? %s : 0;",
                (long long)p->window[1], value);
    else
        fu_line(t, "sum[j] += %s;", value);
    close_loops(w);
    fu_close(t);
    fu_close(t);
    put_result(w, p->h, "sum[j]");
    fu_close(t);
}

int fu_emit_window(fu_ctx *c, const fu_group *g)
{
    if (c->target->dialect == TN_DIALECT_CUDA) return fu_cuda_window(c, g);
    window w = {.flat = false};
    int r = fu_window_open(&w.of, c, g);
    if (r) return r;
    const tn_tensor *t = w.of.t;
    w.c = t->shape[3];
    w.width = t->shape[2];
    w.tx = ROW_ELEMENTS / (w.c ? w.c : 1);
    w.tx = w.tx < 1 ? 1 : w.tx > w.width ? w.width : w.tx;
    w.tiles = (w.width + w.tx - 1) / w.tx;
    if (w.of.back)
        transposed(&w);
    else
        forward(&w);
    return fu_raw_close(
        &w.of.k,
        w.of.back ? "each element adds the windows that cover it" : "windows over rows of the result",
        t->shape[0] * t->shape[1] * w.tiles, w.tx * w.c * w.of.p->window[0] * w.of.p->window[1]);
}
