/* window_cuda.c - pooling on a GPU: a thread has a pack of channels, 16 bytes of them where their number
 * allows. Of windows it makes one; of an image the elements of one step of the windows, `stride` by `stride`,
 * so that no two threads of a warp go different ways, and each reads what the windows over its elements gave
 * only once. For the gradient of the largest elements of windows of 3 by 3 that step by 2, which overlap:
 *
 *     tn_bfloat16 g_pack[4][8];                                 what the 2 by 2 windows gave,
 *     uint8_t index_pack[4][8];                                 and what they chose
 *     for (int w = 0; w < 4; w++) {...}
 *     for (int ry = 0; ry < 2; ry++) {                          elements
 *         const int y = top0 + ry - 1;
 *         if (y < 0 || y >= 112) continue;
 *         for (int rx = 0; rx < 2; rx++) {
 *             float sum[8];
 *             for (int w = 0; w < 4; w++) {                     windows
 *                 const int oy = oy0 + w / 2, ky = top0 + ry - oy * 2;
 *                 if (oy >= 56 || ky < 0 || ky >= 3) continue;
 *                 ...
 *                 for (int l = 0; l < 8; l++)
 *                     sum[l] += index_pack[w][l] == ky * 3 + kx ? g_pack[w][l] : 0;
 *             }
 *             tn_store(out + ((n * 112 + y) * 112 + x) * 64 + c0, out_piece);
 *         }
 *     }
 *
 * Start with fu_window_cuda.
 */
#include "../../src/core/int64.h"
#include "raw.h"

#include <stdio.h>

enum {
    AHEAD = 4,     /* elements of a window's row that are on their way at once */
    HELD = 9,      /* windows whose packs a thread keeps */
    UNROLLED = 36, /* pairs of window and element that are written out */
    MOST = 8       /* elements of a pack */
};

typedef struct place {
    const char *type; /* of coordinates and positions */
    int pack;
} place;

static place choose(const fu_window *w)
{
    const tn_pool_attr *p = w->p;
    const int64_t n = w->t->shape[0];
    const bool small = n * p->h * p->w * w->c < INT32_MAX && n * p->oh * p->ow * w->c < INT32_MAX;
    const size_t wide = tn_dtype_size(w->d), size = tn_dtype_size(w->to) > wide ? tn_dtype_size(w->to) : wide;
    place at = {small ? "int" : "int64_t", 16 / (int)size < MOST ? 16 / (int)size : MOST};
    while (at.pack > 1 && (w->c | w->shift) % at.pack) at.pack /= 2;
    return at;
}

/* Coordinates of an item: image n, rows and columns of `rows` and `cols`, first channel. */
static int64_t open_item(fu_window *w, const place *at, const char *y, int64_t rows, const char *x,
                         int64_t cols)
{
    const long long packs = w->c / at->pack;
    tn_growing *t = &w->k.t;
    const int64_t items = w->t->shape[0] * rows * cols * packs;
    const char *q = fu_raw_each(&w->k, items), *type = at->type;
    fu_line(t, "const %s c0 = (%s)(%s %% %lld) * %d;", type, type, q, packs, at->pack);
    fu_line(t, "const %s %s = (%s)(%s / %lld %% %lld);", type, x, type, q, packs, (long long)cols);
    fu_line(t, "const %s %s = (%s)(%s / %lld %% %lld);", type, y, type, q, packs * cols, (long long)rows);
    fu_line(t, "const %s n = (%s)(%s / %lld);", type, type, q, packs * cols * rows);
    return items;
}

static void put_load(fu_window *w, const place *at, const char *to, const char *from)
{
    fu_line(&w->k.t, at->pack > 1 ? "tn_load(%s, %s);" : "%s[0] = *(%s);", to, from);
}

static void declare(fu_window *w, const char *type, const char *name, int pack, const char *start)
{
    fu_line(&w->k.t, "%s %s[%d];", type, name, pack);
    fu_line(&w->k.t, "for (int l = 0; l < %d; l++) %s[l] = %s;", pack, name, start);
}

static void open_lanes(fu_window *w, const place *at)
{
    fu_line(&w->k.t, "#pragma unroll");
    fu_open(&w->k.t, "for (int l = 0; l < %d; l++) {", at->pack);
}

/* What was accumulated, stored at position `to`. */
static void put_results(fu_window *w, const place *at, const char *sum, const char *to)
{
    tn_growing *t = &w->k.t;
    const char *const store = at->pack > 1 ? "tn_store(%s + %s, %s_piece);" : "%s[%s] = %s_piece[0];";
    const bool value = w->max || !w->chosen;
    if (value) fu_line(t, "%s out_piece[%d];", w->k.lang->memory[w->to], at->pack);
    if (w->chosen) fu_line(t, "uint8_t place_piece[%d];", at->pack);
    open_lanes(w, at);
    if (value) fu_raw_store(&w->k, w->to, "out_piece[l]", sum);
    if (w->chosen) fu_line(t, "place_piece[l] = (uint8_t)(which[l] < 0 ? 0 : which[l]);");
    fu_close(t);
    if (value) fu_line(t, store, "out", to, "out");
    if (w->chosen) fu_line(t, store, "place", to, "place");
}

/* ---- from the image to windows ---- */

static int64_t forward(fu_window *w, const place *at)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
    const long long high = p->window[0], wide = p->window[1], width = p->w, c = w->c;
    const int ahead = wide < AHEAD ? (int)wide : AHEAD;
    const bool unroll = high * wide <= UNROLLED, takes = w->t->op == TN_OP_pool_take;
    const char *type = w->k.lang->type[w->acc];
    char start[48] = "0", value[300], to[120], from[200];
    const int64_t items = open_item(w, at, "oy", p->oh, "ox", p->ow);
    snprintf(to, sizeof to, "((n * %lld + oy) * %lld + ox) * %lld + c0", (long long)p->oh, (long long)p->ow,
             c);
    if (w->max || w->chosen) fu_limit(start, sizeof start, w->acc, true);
    declare(w, type, "best", at->pack, start);
    if (w->chosen) declare(w, "int32_t", "which", at->pack, "-1");
    if (takes) {
        fu_line(t, "%s index_pack[%d];", w->k.lang->memory[w->t->in[1]->dtype], at->pack);
        snprintf(from, sizeof from, "index + %s", to);
        put_load(w, at, "index_pack", from);
    }
    if (unroll) fu_line(t, "#pragma unroll");
    fu_open(t, "for (int ky = 0; ky < %lld; ky++) {", high);
    fu_line(t, "const %s iy = oy * %lld + ky - %lld;", at->type, (long long)p->stride[0],
            (long long)p->pad[0]);
    fu_line(t, "if (iy < 0 || iy >= %lld) continue;", (long long)p->h);
    if (ahead < wide) fu_open(t, "for (int k0 = 0; k0 < %lld; k0 += %d) {", wide, ahead);
    fu_line(t, "%s x_pack[%d][%d];", w->k.lang->memory[w->d], ahead, at->pack);
    for (int pass = 0; pass < 2; pass++) {
        fu_line(t, "#pragma unroll");
        fu_open(t, "for (int k = 0; k < %d; k++) {", ahead);
        fu_line(t, ahead < wide ? "const int kx = k0 + k;" : "const int kx = k;");
        fu_line(t, "const %s ix = ox * %lld + kx - %lld;", at->type, (long long)p->stride[1],
                (long long)p->pad[2]);
        if (!pass) { /* of what lies outside, the nearest column */
            fu_line(t, "const %s in = ix < 0 ? 0 : ix < %lld ? ix : %lld;", at->type, width, width - 1);
            snprintf(from, sizeof from, "x + ((n * %lld + iy) * %lld + in) * %lld + c0", (long long)p->h,
                     width, c);
            put_load(w, at, "x_pack[k]", from);
        } else {
            if (wide % ahead) fu_line(t, "if (kx >= %lld) break;", wide);
            fu_line(t, "if (ix < 0 || ix >= %lld) continue;", width);
            open_lanes(w, at);
            fu_raw_value(&w->k, w->d, "x_pack[k]", "l", value, sizeof value);
            fu_line(t, "const %s v = %s;", type, value);
            fu_window_take(w, "best[l]", "which[l]", "index_pack[l]");
            fu_close(t);
        }
        fu_close(t);
    }
    if (ahead < wide) fu_close(t);
    fu_close(t);
    put_results(w, at, "best[l]", to);
    return items;
}

/* ---- from windows to the image ---- */

/* The windows over the elements of one step along an axis, and the steps. */
typedef struct steps {
    int64_t step, window, before; /* before: windows that begin earlier and still cover an element */
    int64_t most;                 /* windows */
    int64_t first, n;             /* steps */
} steps;

static steps steps_of(const tn_pool_attr *p, int axis, int64_t size, int64_t windows)
{
    steps s = {.step = p->stride[axis], .window = p->window[axis]};
    s.before = tn_ceil_div(s.window, s.step) - 1;
    s.most = s.before + 1 < windows ? s.before + 1 : windows;
    s.first = p->pad[2 * axis] / s.step;
    s.n = (size - 1 + p->pad[2 * axis]) / s.step - s.first + 1;
    return s;
}

/* The first window over the elements of a step. */
static void put_first(fu_window *w, const place *at, const char *axis, const char *from, const steps *s)
{
    tn_growing *t = &w->k.t;
    const long long shift = s->first - s->before;
    fu_line(t, "const %s %s0 = (b%s + %lld) * %lld;", at->type, from, axis, (long long)s->first,
            (long long)s->step);
    if (s->most > s->before)
        fu_line(t, "const %s o%s0 = b%s - %lld;", at->type, axis, axis, -shift);
    else /* fewer than could cover an element */
        fu_line(t, "const %s o%s0 = b%s < %lld ? 0 : b%s - %lld;", at->type, axis, axis, -shift, axis,
                -shift);
}

/* Which window it is, and which of its elements. */
static void put_number(fu_window *w, const place *at, const char *axis, const char *number, const steps *s)
{
    tn_growing *t = &w->k.t;
    fu_line(t, "const %s o%s = o%s0 + %s;", at->type, axis, axis, number);
    if (s->most > s->before)
        fu_line(t, "const int k%s = r%s + (%lld - %s) * %lld;", axis, axis, (long long)s->before, number,
                (long long)s->step);
    else
        fu_line(t, "const %s k%s = (b%s + %lld - o%s) * %lld + r%s;", at->type, axis, axis,
                (long long)s->first, axis, (long long)s->step, axis);
}

/* Loads what window w gave, and which element it chose; beside the border, those of the nearest one. */
static void put_window(fu_window *w, const place *at, const char *name, int64_t most)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
    char from[160], to[32];
    const long long last[2] = {p->oh - 1, p->ow - 1};
    for (int i = 0; i < 2; i++) {
        const char axis = i ? 'x' : 'y';
        fu_line(t, "const %s at%c = o%c0 + w %c %lld;", at->type, axis, axis, i ? '%' : '/', (long long)most);
        fu_line(t, "const %s w%c = at%c < 0 ? 0 : at%c < %lld ? at%c : %lld;", at->type, axis, axis, axis,
                last[i], axis, last[i]);
    }
    for (int i = 0; i < w->t->n_in; i++) {
        snprintf(from, sizeof from, "%s + ((n * %lld + wy) * %lld + wx) * %lld + c0", i ? "index" : "g",
                 (long long)p->oh, (long long)p->ow, (long long)w->c);
        snprintf(to, sizeof to, i ? "index_%s" : "g_%s", name);
        put_load(w, at, to, from);
    }
}

static void declare_windows(fu_window *w, const place *at, int64_t n)
{
    for (int i = 0; i < w->t->n_in; i++) {
        const char *type = w->k.lang->memory[w->t->in[i]->dtype], *name = i ? "index_pack" : "g_pack";
        if (n)
            fu_line(&w->k.t, "%s %s[%lld][%d];", type, name, (long long)n, at->pack);
        else
            fu_line(&w->k.t, "%s %s[%d];", type, name, at->pack);
    }
}

static int64_t transposed(fu_window *w, const place *at)
{
    const tn_pool_attr *p = w->p;
    tn_growing *t = &w->k.t;
    const steps y = steps_of(p, 0, p->h, p->oh), x = steps_of(p, 1, p->w, p->ow);
    const long long windows = y.most * x.most;
    const bool held = windows <= HELD, unroll = windows * y.step * x.step <= UNROLLED;
    const char *type = at->type;
    char value[300], to[120], number[32];
    const int64_t items = open_item(w, at, "by", y.n, "bx", x.n);
    put_first(w, at, "y", "top", &y);
    put_first(w, at, "x", "left", &x);
    if (held) {
        declare_windows(w, at, windows);
        fu_line(t, "#pragma unroll");
        fu_open(t, "for (int w = 0; w < %lld; w++) {", windows);
        put_window(w, at, "pack[w]", x.most);
        fu_close(t);
    }
    fu_line(t, unroll ? "#pragma unroll" : "#pragma unroll 1");
    fu_open(t, "for (int ry = 0; ry < %lld; ry++) {", (long long)y.step);
    fu_line(t, "const %s y = top0 + ry - %lld;", type, (long long)p->pad[0]);
    fu_line(t, "if (y < 0 || y >= %lld) continue;", (long long)p->h);
    fu_line(t, unroll ? "#pragma unroll" : "#pragma unroll 1");
    fu_open(t, "for (int rx = 0; rx < %lld; rx++) {", (long long)x.step);
    fu_line(t, "const %s x = left0 + rx - %lld;", type, (long long)p->pad[2]);
    fu_line(t, "if (x < 0 || x >= %lld) continue;", (long long)p->w);
    declare(w, w->k.lang->type[w->acc], "sum", at->pack, "0");
    if (held) fu_line(t, "#pragma unroll");
    fu_open(t, "for (int w = 0; w < %lld; w++) {", windows);
    snprintf(number, sizeof number, "w / %lld", (long long)x.most);
    put_number(w, at, "y", number, &y);
    snprintf(number, sizeof number, "w %% %lld", (long long)x.most);
    put_number(w, at, "x", number, &x);
    fu_line(t, "if (ky < 0 || ky >= %lld || oy < 0 || oy >= %lld) continue;", (long long)y.window,
            (long long)p->oh);
    fu_line(t, "if (kx < 0 || kx >= %lld || ox < 0 || ox >= %lld) continue;", (long long)x.window,
            (long long)p->ow);
    if (!held) {
        declare_windows(w, at, 0);
        put_window(w, at, "pack", x.most);
    }
    open_lanes(w, at);
    fu_raw_value(&w->k, w->d, held ? "g_pack[w]" : "g_pack", "l", value, sizeof value);
    fu_window_add(w, "sum[l]", held ? "index_pack[w][l]" : "index_pack[l]", value);
    fu_close(t);
    fu_close(t);
    snprintf(to, sizeof to, "((n * %lld + y) * %lld + x) * %lld + c0", (long long)p->h, (long long)p->w,
             (long long)w->c);
    put_results(w, at, "sum[l]", to);
    fu_close(t);
    fu_close(t);
    return items;
}

int64_t fu_window_cuda(fu_window *w)
{
    const place at = choose(w);
    return w->back ? transposed(w, &at) : forward(w, &at);
}
