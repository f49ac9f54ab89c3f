/* window_take.c - what a window does with one element of the image, and what it gives back to it. */
#include "raw.h"

void fu_window_take(fu_window *w, const char *best, const char *which, const char *index)
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

void fu_window_add(fu_window *w, const char *sum, const char *index, const char *value)
{
    if (w->t->op == TN_OP_pool_put)
        fu_line(&w->k.t, "%s += (int32_t)%s == (int32_t)(ky * %lld + kx) ? %s : 0;", sum, index,
                (long long)w->p->window[1], value);
    else
        fu_line(&w->k.t, "%s += %s;", sum, value);
}
