/* window.c - pooling over NHWC images and its transposes. The transposes are gathers: each element of the
 * image adds the windows that cover it, in one order.
 *
 * An item of a processor is a range of columns of one row of the result, so that columns and channels are one
 * vector loop; window_cuda.c has a GPU's. For the largest elements of windows of 3 by 3 that step by 2:
 *
 *     for (int ky = 0; ky < 3; ky++) {                        y is the row, x0 .. x1 the columns
 *         const int64_t iy = y * 2 + ky - 1;
 *         if (iy < 0 || iy >= 56) continue;
 *         for (int kx = 0; kx < 3; kx++) {
 *             (columns whose element kx lies inside the image: from .. to)
 *             for (int64_t col = from; col < to; col++)
 *     #pragma omp simd
 *                 for (int64_t ch = 0; ch < 64; ch++) {
 *                     const int64_t j = (-x0 + col) * 64 + ch;
 *                     const int64_t at = ((n * 56 + iy) * 56 + shift + col * 2) * 64 + ch;
 *                     best[j] = tn_max(best[j], x[at]);
 *                 }
 *         }
 *     }
 *
 * Start with fu_emit_window. */
#include "../loops/tile.h"
#include "raw.h"

#include <stdio.h>

enum { ROW_ELEMENTS = 8192 };

typedef fu_window window;

/* ---- loops ---- */

/* Loops over columns [from, to) and channels. Where all strides are 1 they are one loop; many channels are
 * the inner loop; few are the outer one. */
static void open_loops(window *w, const char *from, const char *to, bool flat)
{
    tn_growing *t = &w->k.t;
    const long long c = w->c;
    w->flat = flat;
    if (!flat && c < 8) fu_open(t, "for (int64_t ch = 0; ch < %lld; ch++) {", c);
    if (!flat && c >= 8) fu_open(t, "for (int64_t col = %s; col < %s; col++) {", from, to);
    fu_line(t, "%s", w->k.lang->simd);
    if (flat)
        fu_open(t, "for (int64_t q = %s * %lld; q < %s * %lld; q++) {", from, c, to, c);
    else if (c >= 8)
        fu_open(t, "for (int64_t ch = 0; ch < %lld; ch++) {", c);
    else
        fu_open(t, "for (int64_t col = %s; col < %s; col++) {", from, to);
}

static void close_loops(window *w)
{
    fu_close(&w->k.t);
    if (!w->flat) fu_close(&w->k.t);
}

/* name = the element at column base + col * stride, of the loops' channel */
static void put_index(window *w, const char *name, const char *base, int64_t stride)
{
    const long long c = w->c;
    if (w->flat)
        fu_line(&w->k.t, "const int64_t %s = (%s) * %lld + q;", name, base, c);
    else if (stride == 1)
        fu_line(&w->k.t, "const int64_t %s = (%s + col) * %lld + ch;", name, base, c);
    else
        fu_line(&w->k.t, "const int64_t %s = (%s + col * %lld) * %lld + ch;", name, base, (long long)stride,
                c);
}

/* The item's place: image n, row y, columns x0 .. x1 of the result. */
static void open_item(window *w)
{
    tn_growing *t = &w->k.t;
    const long long tiles = w->tiles, rows = w->rows;
    fu_raw_each(&w->k, 0);
    fu_line(t, "const int64_t x0 = item %% %lld * %lld;", tiles, (long long)w->tx);
    fu_line(t, "const int64_t x1 = x0 + %lld < %lld ? x0 + %lld : %lld;", (long long)w->tx,
            (long long)w->width, (long long)w->tx, (long long)w->width);
    fu_line(t, "const int64_t y = item / %lld %% %lld, n = item / %lld;", tiles, rows, tiles * rows);
}

/* A variable for each element of the item, at `start`. */
static void declare(window *w, const char *type, const char *name, const char *start)
{
    tn_growing *t = &w->k.t;
    fu_line(t, "%s%s %s[%lld];", w->k.lang->align, type, name, (long long)(w->tx * w->c));
    fu_line(t, "for (int64_t j = 0; j < (x1 - x0) * %lld; j++) %s[j] = %s;", (long long)w->c, name, start);
}

/* What was accumulated becomes the result. */
static void put_results(window *w)
{
    char base[80];
    open_loops(w, "x0", "x1", true);
    put_index(w, "j", "-x0", 1);
    snprintf(base, sizeof base, "(n * %lld + y) * %lld", (long long)w->rows, (long long)w->width);
    put_index(w, "to", base, 1);
    if (w->max || !w->chosen) fu_raw_store(&w->k, w->to, "out[to]", w->back ? "sum[j]" : "best[j]");
    if (w->chosen)
        fu_line(&w->k.t, w->k.lang->typed ? "place[to] = (uint8_t)(which[j] < 0 ? 0 : which[j]);"
                                          : "place[to] = which[j] < 0 ? 0 : which[j];");
    close_loops(w);
}

/* ---- from the image to windows ---- */

/* The element v, number ky, kx of its window, for what is accumulated; `index`: which one the window chose. */
static void take(window *w, const char *best, const char *which, const char *index)
{
    const bool real = tn_dtype_is_float(w->acc);
    const long long wide = w->p->window[1];
    tn_growing *t = &w->k.t;
    if (w->chosen) {
        fu_line(t, "const bool won = v > %s || %s < 0%s%s%s%s%s;", best, which, real ? " || (v != v && " : "",
                real ? best : "", real ? " == " : "", real ? best : "", real ? ")" : "");
        fu_line(t, "%s = won ? (int32_t)(ky * %lld + kx) : %s;", which, wide, which);
        fu_line(t, "%s = won ? v : %s;", best, best);
    } else if (w->max) {
        fu_line(t, "%s = tn_max%s(%s, v);", best, fu_suffix(w->k.lang, w->acc), best);
    } else if (w->t->op == TN_OP_pool_take) {
        fu_line(t, "%s = (int32_t)%s == (int32_t)(ky * %lld + kx) ? v : %s;", best, index, wide, best);
    } else {
        fu_line(t, "%s += v;", best);
    }
}

/* Opens the loops over the elements of the image that are number ky, kx of their window: `at` counts them. */
static void open_elements(window *w)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
    const long long width = p->w, step = p->stride[1];
    char base[80];
    fu_line(t, "/* columns whose element kx lies inside the image */");
    fu_line(t, "const int64_t shift = kx - %lld;", (long long)p->pad[2]);
    fu_line(t, "int64_t from = shift < 0 ? (-shift + %lld) / %lld : 0;", step - 1, step);
    fu_line(t, "int64_t to = %lld - 1 - shift < 0 ? 0 : (%lld - 1 - shift) / %lld + 1;", width, width, step);
    fu_line(t, "from = from < x0 ? x0 : from;");
    fu_line(t, "to = to > x1 ? x1 : to;");
    open_loops(w, "from", "to", step == 1);
    put_index(w, "j", "-x0", 1);
    snprintf(base, sizeof base, "(n * %lld + iy) * %lld + shift", (long long)p->h, width);
    put_index(w, "at", base, step);
}

/* pool_max, pool_argmax, pool_sum, pool_take */
static void forward(window *w)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
    const bool max = w->max || w->chosen;
    const long long wide = p->window[1];
    const char *type = w->k.lang->type[w->acc];
    char start[48] = "0", value[300], base[80];
    if (max) fu_limit(start, sizeof start, w->acc, true);
    declare(w, type, "best", start);
    if (w->chosen) declare(w, "int32_t", "which", "-1");
    fu_open(t, "for (int ky = 0; ky < %lld; ky++) {", (long long)p->window[0]);
    fu_line(t, "const int64_t iy = y * %lld + ky - %lld;", (long long)p->stride[0], (long long)p->pad[0]);
    fu_line(t, "if (iy < 0 || iy >= %lld) continue;", (long long)p->h);
    fu_open(t, "for (int kx = 0; kx < %lld; kx++) {", wide);
    open_elements(w);
    fu_raw_value(&w->k, w->d, "x", "at", value, sizeof value);
    fu_line(t, "const %s v = %s;", type, value);
    if (w->t->op == TN_OP_pool_take) {
        snprintf(base, sizeof base, "(n * %lld + y) * %lld", (long long)p->oh, (long long)p->ow);
        put_index(w, "to", base, 1);
    }
    take(w, "best[j]", "which[j]", "index[to]");
    close_loops(w);
    fu_close(t);
    fu_close(t);
}

/* ---- from windows to the image ---- */

/* What a window gives to its element ky, kx. */
static void give(window *w, const char *sum, const char *index, const char *value)
{
    if (w->t->op == TN_OP_pool_put)
        fu_line(&w->k.t, "%s += (int32_t)%s == (int32_t)(ky * %lld + kx) ? %s : 0;", sum, index,
                (long long)w->p->window[1], value);
    else
        fu_line(&w->k.t, "%s += %s;", sum, value);
}

/* Opens the loops over the windows of row oy whose element kx is a column of this item: `at` counts them. */
static void open_windows(window *w)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
    const long long step = p->stride[1], wide = p->window[1];
    char base[80];
    fu_open(t, "for (int64_t kx = 0; kx < %lld; kx++) {", wide);
    fu_line(t, "/* windows ox whose element kx is a column of this item: x0 <= ox * %lld + shift < x1 */",
            step);
    fu_line(t, "const int64_t shift = kx - %lld;", (long long)p->pad[2]);
    fu_line(t, "int64_t from = x0 - shift <= 0 ? 0 : (x0 - shift + %lld) / %lld;", step - 1, step);
    fu_line(t, "int64_t to = x1 - 1 - shift < 0 ? 0 : (x1 - 1 - shift) / %lld + 1;", step);
    fu_line(t, "to = to > %lld ? %lld : to;", (long long)p->ow, (long long)p->ow);
    open_loops(w, "from", "to", step == 1);
    put_index(w, "j", "shift - x0", step);
    snprintf(base, sizeof base, "(n * %lld + oy) * %lld", (long long)p->oh, (long long)p->ow);
    put_index(w, "at", base, 1);
}

/* pool_spread, pool_put */
static void transposed(window *w)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
    const long long step = p->stride[0], high = p->window[0];
    char value[300];
    declare(w, w->k.lang->type[w->acc], "sum", "0");
    fu_line(t, "/* windows oy whose rows contain y */");
    fu_line(t, "const int64_t top = y + %lld;", (long long)p->pad[0]);
    fu_line(t, "const int64_t oy0 = top < %lld ? 0 : (top - %lld) / %lld;", high, high - step, step);
    fu_open(t, "for (int64_t oy = oy0; oy < %lld && oy * %lld <= top; oy++) {", (long long)p->oh, step);
    fu_line(t, "const int64_t ky = top - oy * %lld;", step);
    fu_line(t, "if (ky >= %lld) continue;", high);
    open_windows(w);
    fu_raw_value(&w->k, w->d, "g", "at", value, sizeof value);
    give(w, "sum[j]", "index[at]", value);
    close_loops(w);
    fu_close(t);
    fu_close(t);
}

/* ---- both ---- */

/* Declares operands and results: x or g, index; out, place. */
static int open_kernel(window *w, fu_ctx *c, const fu_group *g)
{
    const tn_tensor *t = w->t;
    int slot[2] = {-1, -1};
    int64_t offset[2] = {0};
    for (int i = 0; i < t->n_in; i++) {
        const int r = fu_dense_operand(c, t->in[i], &slot[i], &offset[i]);
        if (r) return r;
    }
    const int r = fu_raw_open(&w->k, c, g, tn_op_get(t->op)->name, t->shape[3]);
    if (r) return r;
    for (int i = 0; i < t->n_in; i++) {
        fu_raw_operand(&w->k, slot[i], offset[i], t->in[i]->dtype, i ? "index" : w->back ? "g" : "x", false);
        w->k.s->bytes += fu_bytes(t->in[i]);
        w->shift |= fu_position(c, slot[i], offset[i]);
    }
    for (int i = 0; i < g->n; i++) {
        const tn_op op = (tn_op)c->node[g->member[i]].t->op;
        w->chosen = w->chosen || op == TN_OP_pool_argmax;
        w->max = w->max || op == TN_OP_pool_max;
        w->k.node = g->member[i];
        fu_raw_output(&w->k, op == TN_OP_pool_argmax ? "place" : "out");
        w->shift |= fu_position(c, g->member[i], 0);
    }
    return 0;
}

int fu_emit_window(fu_ctx *c, const fu_group *g)
{
    const tn_tensor *t = c->node[g->member[0]].t;
    window w = {.t = t, .p = &t->attr->pool, .d = t->in[0]->dtype};
    w.to = t->op == TN_OP_pool_argmax ? w.d : t->dtype;
    w.acc = fu_compute_dtype(w.d);
    w.back = t->op == TN_OP_pool_spread || t->op == TN_OP_pool_put;
    w.rows = t->shape[1];
    w.width = t->shape[2];
    w.c = t->shape[3];
    w.tx = ROW_ELEMENTS / (w.c ? w.c : 1);
    w.tx = w.tx < 1 ? 1 : w.tx > w.width ? w.width : w.tx;
    w.tiles = (w.width + w.tx - 1) / w.tx;
    const int r = open_kernel(&w, c, g);
    if (r) return r;
    int64_t items = t->shape[0] * w.rows * w.tiles;
    if (w.k.grid) {
        items = fu_window_cuda(&w);
    } else {
        open_item(&w);
        if (w.back)
            transposed(&w);
        else
            forward(&w);
        put_results(&w);
    }
    fu_close(&w.k.t);
    return fu_raw_close(&w.k,
                        w.back ? "each element adds the windows that cover it"
                               : "a window for each element of the result",
                        items, w.tx * w.c * w.p->window[0] * w.p->window[1], FU_RAW_THREADS);
}
