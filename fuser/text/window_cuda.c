/* window_cuda.c - pooling on a GPU: what kernels/pool.cuh, which says how it goes, is told of the windows. For the
 * gradient of the largest elements of windows of 3 by 3 that step by 2, which overlap, the windows over the elements of a
 * step are 2 by 2: what they gave and what they chose is read first, then each of the 2 by 2 elements adds what is its own.
 *
 * Start with fu_window_cuda.
 */
#include "../../src/core/int64.h"
#include "../../src/device/embed.h"
#include "raw.h"

#include <stdio.h>

enum {
    AHEAD = 4,     /* elements of a window's row that are on their way at once */
    HELD = 9,      /* windows whose packs a thread keeps */
    UNROLLED = 36, /* pairs of window and element that are written out */
    MOST = 8       /* elements of a pack */
};

static int pack_of(const fu_window *w)
{
    const size_t wide = tn_dtype_size(w->d), size = tn_dtype_size(w->to) > wide ? tn_dtype_size(w->to) : wide;
    int pack = 16 / (int)size < MOST ? 16 / (int)size : MOST;
    while (pack > 1 && (w->c | w->shift) % pack) pack /= 2;
    return pack;
}

static void define(fu_window *w, const char *name, const char *axis, int64_t value)
{
    tn_put(&w->k.t, value < 0 ? "#define %s%s (%lld)\n" : "#define %s%s %lld\n", name, axis,
           (long long)value);
}

/* The windows over the elements of one step along an axis, and the steps: how many there are. */
static int64_t define_axis(fu_window *w, int i, const char *axis, int64_t size, int64_t windows,
                           int64_t *most)
{
    const tn_pool_attr *p = w->p;
    const int64_t step = p->stride[i], before = tn_ceil_div(p->window[i], step) - 1,
                  first = p->pad[2 * i] / step, steps = (size - 1 + p->pad[2 * i]) / step - first + 1;
    *most = before + 1 < windows ? before + 1 : windows;
    define(w, "WINDOW_", axis, p->window[i]);
    define(w, "STEP_", axis, step);
    define(w, "PAD_", axis, p->pad[2 * i]);
    define(w, "BEFORE_", axis, before);
    define(w, "FIRST_", axis, first);
    define(w, "MOST_", axis, *most);
    define(w, "STEPS_", axis, steps);
    return steps;
}

int64_t fu_window_cuda(fu_window *w)
{
    const tn_pool_attr *p = w->p;
    const fu_dialect *lang = w->k.lang;
    tn_growing *t = &w->k.t;
    const int64_t n = w->t->shape[0], most = INT32_MAX;
    const bool small = n * p->h * p->w * w->c < most && n * p->oh * p->ow * w->c < most;
    const bool put = w->t->op == TN_OP_pool_put, max = w->max || w->chosen;
    const int pack = pack_of(w);
    int64_t most_y, most_x, rows = p->oh, cols = p->ow;
    char start[48] = "0", load[64], store[64];
    if (max) fu_limit(start, sizeof start, w->acc, true);
    snprintf(load, sizeof load, lang->load[w->d], "v");
    snprintf(store, sizeof store, lang->store[w->to], "v");
    const int64_t steps_y = define_axis(w, 0, "Y", p->h, p->oh, &most_y),
                  steps_x = define_axis(w, 1, "X", p->w, p->ow, &most_x), windows = most_y * most_x;
    if (w->back) rows = steps_y, cols = steps_x;
    const struct {
        const char *name;
        int64_t value;
    } each[] = {{"H", p->h},
                {"W", p->w},
                {"OH", p->oh},
                {"OW", p->ow},
                {"C", w->c},
                {"PACK", pack},
                {"PACKS", w->c / pack},
                {"ROW_PACKS", w->c / pack * cols},
                {"IMAGE_PACKS", w->c / pack * cols * rows},
                {"AHEAD", p->window[1] < AHEAD ? p->window[1] : AHEAD},
                {"BACK", w->back},
                {"MAX", w->max},
                {"CHOSEN", w->back ? put : w->chosen},
                {"TAKES", w->t->op == TN_OP_pool_take},
                {"HELD", windows <= HELD}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) define(w, each[i].name, "", each[i].value);
    const bool written_out =
        w->back ? windows * p->stride[0] * p->stride[1] <= UNROLLED : p->window[0] * p->window[1] <= UNROLLED;
    tn_put(t, "#define UNROLL_WINDOW %s\n", written_out ? "_Pragma(\"unroll\")" : "");
    tn_put(t, "#define UNROLL_STEPS _Pragma(\"unroll%s\")\n", written_out ? "" : " 1");
    tn_put(t, "#define UNROLL_HELD %s\n", windows <= HELD ? "_Pragma(\"unroll\")" : "");
    tn_put(t, "#define LOAD(v) (%s)\n#define STORE(v) (%s)\n#define START %s\n", load, store, start);
    fu_line(t, "typedef %s at_t;\ntypedef %s read_t;\ntypedef %s sum_t;\ntypedef %s written_t;",
            small ? "int" : "int64_t", lang->memory[w->d], lang->type[w->acc], lang->memory[w->to]);
    if (w->t->n_in > 1) fu_line(t, "typedef %s chosen_t;", lang->memory[w->t->in[1]->dtype]);
    const int64_t items = n * rows * cols * (w->c / pack);
    tn_put(t, "#define ITEM %s\n", fu_raw_each(&w->k, items));
    tn_put(t, "%s", tn_embed_text(TN_EMBED_POOL_CUH));
    return items;
}
