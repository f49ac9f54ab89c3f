/* drawn.c - the step's graph as a picture for the page: its launches from top to bottom, and an arc from the
 * one that makes a value to each that reads it, the thicker the larger the value. Start with tn_drawn_html.
 */
#include "view.h"

enum { ROW = 20, LEFT = 130, WIDTH = 900 };

static double y_of(int launch) { return ROW * (launch + .5); }

static void put_arc(tn_growing *t, int from, int to, double share)
{
    const int bend = 4 * (to - from) + 8;
    const double far = LEFT - 8 - (bend < LEFT - 16 ? bend : LEFT - 16);
    tn_put(t, "<path d='M%d %.0fC%.0f %.0f %.0f %.0f %d %.0f' stroke-width=%.1f><title>", LEFT - 8,
           y_of(from), far, y_of(from), far, y_of(to), LEFT - 8, y_of(to), 1 + 8 * (share < .5 ? share : .5));
}

/* Arcs of one segment, the launches of which begin with number `first`. False: no memory. */
static bool put_segment(const tn_view *v, int r, int first, tn_growing *t)
{
    const tn_plan *p = v->log->run[r].plan;
    const tn_note *n = p->note;
    int *made = tn_calloc((size_t)(n->n_value + p->n_scratch) + 1, sizeof *made); /* by which step, from 1 */
    if (!made) return false;
    for (int s = 0; s < p->n_step; s++)
        for (int b = 0; b < p->step[s].n_buf; b++) {
            const int slot = p->step[s].buf[b];
            if (slot < 0) continue;
            const bool value = slot < n->n_value;
            int *maker = &made[value ? n->value[slot].memory : slot];
            if (b >= p->step[s].n_buf - p->step[s].n_out) {
                *maker = s + 1;
            } else if (value && *maker && *maker <= s) {
                char name[160];
                const double bytes = (double)tn_note_bytes(&n->value[slot]);
                put_arc(t, first + *maker - 1, first + s,
                        v->total.bytes > 0 ? bytes / (double)v->total.bytes : 0);
                TN_PUT_HTML(t, "", tn_note_name(n, slot, name, sizeof name));
                tn_put(t, ", %.3f MB</title></path>\n", bytes * 1e-6);
            }
        }
    tn_free_mem(made);
    return true;
}

void tn_drawn_html(const tn_view *v, tn_growing *t)
{
    static const char *const colour[TN_WAYS] = {"#4878a8", "#d08020", "#608050", "#888"};
    tn_put(
        t,
        "<h2>Graph</h2>\n<p>Launches in their order, and arcs from the one that makes a value to those that "
        "read it.</p>\n<div class='w g'><svg width=%d height=%d><g fill=none stroke='#88888880'>\n",
        WIDTH, ROW * v->n_launch);
    for (int i = 0, r = -1; i < v->n_launch; i++) {
        if (v->launch[i].segment == r) continue;
        r = v->launch[i].segment;
        t->failed = !put_segment(v, r, i, t) || t->failed;
    }
    tn_put(t, "</g>\n");
    for (int i = 0; i < v->n_launch; i++) {
        const tn_launch *l = &v->launch[i];
        tn_put(t, "<circle cx=%d cy=%.0f r=4 fill='%s'/><text x=%d y=%.0f>%d ", LEFT - 8, y_of(i),
               colour[l->way], LEFT, y_of(i) + 4, i + 1);
        TN_PUT_HTML(t, "", l->ops, l->layers[0] ? " \302\267 " : "", l->layers, "</text>\n");
    }
    tn_put(t, "</svg></div>\n<p>Blue: forward, orange: backward, green: both in one, grey: update.</p>\n");
}
