/* html.c - the report to look at: one page that needs nothing beside itself. A summary, the roofline
 * (measured launches only), the groups, the graph, the ledger, the boundaries. Start with tn_report_html. */
#include "view.h"

#include <math.h>

static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 "
    "1em;color:#222;background:#fff}"
    "h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}"
    "table{border-collapse:collapse;width:100%}th,td{padding:.25em .6em;text-align:left;vertical-align:top;"
    "border-bottom:1px solid #e4e4e4}th{font-weight:600;border-bottom:2px solid #bbb}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "code,.k{font:13px ui-monospace,monospace}.k{color:#555}.b td{color:#555}"
    ".tiles{display:flex;flex-wrap:wrap;gap:1em}.tile{border:1px solid #ddd;border-radius:6px;padding:.6em "
    "1em}"
    ".tile b{display:block;font-size:1.35em}.bar{background:#4878a8;height:.6em;border-radius:2px}"
    ".w{overflow-x:auto}.g{max-height:40em}details{display:inline}details[open]{display:block}summary{cursor:"
    "pointer}"
    "pre{font:12px/1.4 ui-monospace,monospace;max-height:30em;overflow:auto}"
    "@media(max-width:40em){body{margin:1em auto;padding:0 .5em}.tiles{gap:.5em}"
    ".tile{flex:1 1 40%;padding:.3em .6em}"
    /* A row of a table becomes lines of words and of numbers, which then say themselves what they are. */
    ".w:not(.g) tr{display:flex;flex-wrap:wrap;column-gap:.6em;padding:.2em 0;border-bottom:1px solid #8884}"
    ".w th,.w td[style]{display:none}.w td{border:0;padding:0}.w td.l{flex:1 0 100%}.w td.o{flex:1 0 60%}"
    ".w td[title]{font-size:.85em}.w td[title]:not(:empty)::after{content:' ' attr(title)}}"
    "svg text{font:12px system-ui,sans-serif;fill:#444}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}th,td{border-color:#333}"
    ".k,.b td{color:#aaa}svg text{fill:#bbb}.tile{border-color:#444}}";

static double mb(int64_t bytes) { return (double)bytes * 1e-6 + 0.0; }

static void put_tile(tn_growing *t, const char *what, const char *big, const char *small)
{
    tn_put(t, "<div class=tile>%s<b>%s</b>%s</div>\n", what, big, small);
}

static void put_summary(const tn_view *v, tn_growing *t)
{
    char big[80], small[160];
    tn_put(t, "<div class=tiles>\n");
    snprintf(big, sizeof big, "%d", v->total.kernels);
    snprintf(small, sizeof small, "%d without fusing", v->total.before);
    put_tile(t, "kernels", big, small);
    tn_snprintf(big, sizeof big, "%.1f MB", mb(v->total.bytes));
    tn_snprintf(small, sizeof small, "%.1f MB without fusing", mb(v->total.bytes_before));
    put_tile(t, "moved", big, small);
    tn_snprintf(big, sizeof big, "%.1f MB", (double)v->arena_bytes * 1e-6);
    tn_snprintf(small, sizeof small, "naive %.1f, least %.1f", (double)v->naive_bytes * 1e-6,
                (double)v->least_bytes * 1e-6);
    put_tile(t, "arena", big, small);
    if (v->log->backward) {
        tn_snprintf(big, sizeof big, "%.1f MB", mb(v->kept_bytes));
        tn_snprintf(small, sizeof small, "%.1f computed again, %.1f never stored", mb(v->again_bytes),
                    mb(v->never_bytes));
        put_tile(t, "kept for backward", big, small);
    }
    tn_snprintf(big, sizeof big, "%.3f ms", v->total.predicted_ms);
    put_tile(t, "predicted", big, "by the target profile");
    if (v->total.ms > 0) {
        tn_snprintf(big, sizeof big, "%.3f ms", v->total.ms);
        tn_snprintf(small, sizeof small, "a copy moves %.1f GB/s", v->gbs);
        put_tile(t, "in kernels", big, small);
    }
    tn_put(t, "</div>\n");
    for (int i = 0; i < v->n_break; i++)
        TN_PUT_HTML(t, "<p><b>Cut into segments:</b> ", v->breaks[i], "</p>\n");
    if (v->unread) TN_PUT_HTML(t, "<p><b>Computed and used nowhere:</b> ", v->unread, "</p>\n");
}

/* ---- the roofline ---- */

enum { WIDTH = 820, HEIGHT = 380, LEFT = 60, TOP = 20, BOTTOM = 340, RIGHT = 800 };

typedef struct axes {
    double x0, x1, y0, y1; /* decades */
} axes;

static double at_x(const axes *a, double v)
{
    return LEFT + (log10(v) - a->x0) / (a->x1 - a->x0) * (RIGHT - LEFT);
}

static double at_y(const axes *a, double v)
{
    return BOTTOM - (log10(v) - a->y0) / (a->y1 - a->y0) * (BOTTOM - TOP);
}

static bool measured(const tn_launch *l) { return l->ms > 0 && l->of->flops > 0 && l->of->bytes > 0; }

static void put_grid(const axes *a, tn_growing *t)
{
    for (double d = a->x0; d <= a->x1; d++)
        tn_put(t, "<path d='M%.1f %dV%d' stroke='#8883'/><text x=%.1f y=%d text-anchor=middle>%g</text>\n",
               at_x(a, pow(10, d)), TOP, BOTTOM, at_x(a, pow(10, d)), BOTTOM + 16, pow(10, d));
    for (double d = a->y0; d <= a->y1; d++)
        tn_put(t, "<path d='M%d %.1fH%d' stroke='#8883'/><text x=%d y=%.1f text-anchor=end>%g</text>\n", LEFT,
               at_y(a, pow(10, d)), RIGHT, LEFT - 6, at_y(a, pow(10, d)) + 4, pow(10, d));
}

static void put_roofline(const tn_view *v, tn_growing *t)
{
    axes a = {-1, 2, -1, 2};
    double most = 0;
    TN_EACH(l, v->launch, v->n_launch) {
        if (!measured(l)) continue;
        double x = log10(l->of->flops / (double)l->of->bytes), y = log10(l->of->flops * 1e-6 / l->ms);
        a.x0 = fmin(a.x0, floor(x));
        a.x1 = fmax(a.x1, ceil(x));
        a.y0 = fmin(a.y0, floor(y));
        a.y1 = fmax(a.y1, ceil(y));
        most = fmax(most, l->of->flops * 1e-6 / l->ms);
    }
    if (most <= 0 || v->gbs <= 0) return;
    tn_put(t, "<h2>Roofline</h2>\n<svg viewBox='0 0 %d %d' width='100%%' role=img>\n", WIDTH, HEIGHT);
    put_grid(&a, t);
    double x0 = fmax(pow(10, a.x0), pow(10, a.y0) / v->gbs), knee = most / v->gbs;
    tn_put(t, "<path d='M%.1f %.1fL%.1f %.1fH%d' stroke='#c44' fill=none stroke-width=1.5 />\n", at_x(&a, x0),
           at_y(&a, x0 * v->gbs), at_x(&a, knee), at_y(&a, most), RIGHT);
    TN_EACH(l, v->launch, v->n_launch) {
        if (!measured(l)) continue;
        double r = 3 + 12 * sqrt(l->ms / v->total.ms);
        tn_put(t, "<circle cx=%.1f cy=%.1f r=%.1f fill='%s' fill-opacity=.55><title>%s: ",
               at_x(&a, l->of->flops / (double)l->of->bytes), at_y(&a, l->of->flops * 1e-6 / l->ms), r,
               l->way == TN_WAY_BACKWARD ? "#d08020" : "#4878a8", l->of->name);
        TN_PUT_HTML(t, "", l->ops);
        tn_put(t, ", %.3f ms</title></circle>\n", l->ms);
    }
    tn_put(
        t,
        "<text x=%d y=%d text-anchor=end>operations a byte moved</text><text x=%d y=%d>GFLOP/s</text></svg>\n"
        "<p>Line: the bandwidth of a copy, and the fastest launch of this step. Area: share of the time. "
        "Blue: forward, orange: backward.</p>\n",
        RIGHT, HEIGHT - 6, LEFT + 6, TOP + 10);
}

/* ---- tables ---- */

static void put_sums(const tn_view *v, tn_growing *t, const tn_sums *s)
{
    tn_put(t,
           "<td class=n title=kernels>%d &rarr; %d<td class=n title=MB>%.2f &rarr; %.2f<td class=n title='MB "
           "saved'>%.2f<td class=n title='ms predicted'>%.3f",
           s->before, s->kernels, mb(s->bytes_before), mb(s->bytes), mb(s->bytes_before - s->bytes),
           s->predicted_ms);
    if (v->total.ms < 0) return;
    tn_put(t, "<td class=n title=ms>%.3f<td class=n title='of a copy'>", s->ms > 0 ? s->ms : 0);
    if (tn_sums_share(s) > 0) tn_put(t, "%.0f %%", 100 * tn_sums_share(s));
    tn_put(t, "<td style='width:6em'><div class=bar style='width:%.0f%%'></div>",
           v->total.ms > 0 ? 100 * s->ms / v->total.ms : 0);
}

/* The kernel's name; a click shows its source. */
static void put_kernel(tn_growing *t, const tn_launch *l)
{
    if (!l->of->source.text || l->again) {
        tn_put(t, "<span class=k>%s</span>", l->of->name);
        return;
    }
    TN_PUT_HTML(t, "<details class=k><summary>", l->of->name, "</summary><pre>", l->of->source.text,
                "</pre></details>");
}

static void put_group(const tn_view *v, tn_growing *t, int row, bool backward)
{
    tn_sums s = tn_view_row(v, row, backward ? TN_WAY_BACKWARD : TN_WAY_FORWARD);
    if (!s.kernels) return;
    tn_put(t, "<tr%s><td class=n>%d<td>%s<td class=o>", backward ? " class=b" : "", row + 1,
           tn_view_way(v, row, backward));
    bool any = false;
    for (int i = v->first_of[row]; i >= 0; i = v->launch[i].next) {
        const tn_launch *l = &v->launch[i];
        if ((l->way == TN_WAY_BACKWARD) != backward) continue;
        if (any) tn_put(t, "<br>");
        TN_PUT_HTML(t, "", l->ops);
        if (l->layers[0]) TN_PUT_HTML(t, " <b>", l->layers, "</b>");
        TN_PUT_HTML(t, " <span class=k>", l->lines, "</span> ");
        put_kernel(t, l);
        any = true;
    }
    put_sums(v, t, &s);
    tn_put(t, "</tr>\n");
}

static void put_groups(const tn_view *v, tn_growing *t)
{
    tn_put(t, "<h2>Groups</h2>\n<p>f' is the gradient of f. Before &rarr; after fusing; before: each call by "
              "itself. A click on a kernel shows its source.</p>\n<div class=w><table><tr><th "
              "class=n>#<th><th>operators, layers, lines, kernel<th class=n>kernels<th class=n>MB moved<th "
              "class=n>saved<th class=n>ms predicted");
    if (v->total.ms >= 0) tn_put(t, "<th class=n>ms<th class=n>of a copy<th>time");
    tn_put(t, "</tr>\n");
    for (int r = 0; r < v->n_row; r++) {
        put_group(v, t, r, false);
        put_group(v, t, r, true);
    }
    tn_put(t, "<tr><td><td><b>all</b><td class=o>");
    put_sums(v, t, &v->total);
    tn_put(t, "</tr></table></div>\n");
}

static void put_ledger(const tn_view *v, tn_growing *t)
{
    tn_put(t, "<h2>What forward does for backward</h2>\n<div class=w><table><tr><th>value<th>how<th>for"
              "<th class=n>values<th class=n>MB<th class=n>ms predicted</tr>\n");
    TN_EACH(k, v->kept, v->n_kept) {
        TN_PUT_HTML(t, "<tr><td>", k->name);
        tn_put(t,
               "<td>%s<td class=k>%s<td class=n title=values>%d<td class=n title=MB>%.3f<td class=n "
               "title='ms predicted'>",
               k->how, k->reader, k->n, mb(k->bytes));
        tn_put(t, k->ms > 0 ? "%.3f</tr>\n" : "</tr>\n", k->ms);
    }
    tn_put(t, "</table></div>\n");
}

static void put_boundaries(const tn_view *v, tn_growing *t)
{
    tn_put(t, "<h2>Boundaries</h2>\n<p>Where a kernel ends and a value goes through memory.</p>\n<div "
              "class=w><table><tr><th>from<th>to<th>reason<th>what would help<th class=n>values<th "
              "class=n>MB<th class=n>ms it costs</tr>\n");
    tn_told rest;
    const int told = tn_view_told(v, &rest);
    TN_EACH(b, v->boundary, told) {
        TN_PUT_HTML(t, "<tr><td>", b->from, "<td>&rarr; ", b->to);
        tn_put(t,
               "<td class=l>%s<td class=l>%s<td class=n title=values>%d<td class=n title=MB>%.3f<td class=n "
               "title=ms>",
               b->reason, b->remedy, b->n, mb(b->bytes));
        tn_put(t, b->ms >= 0 ? "%.3f</tr>\n" : "</tr>\n", b->ms);
    }
    if (rest.n)
        tn_put(t,
               "<tr><td colspan=4>of less than 1 %% each<td class=n title=values>%d<td class=n "
               "title=MB>%.3f<td class=n title=ms>%.3f</tr>\n",
               rest.n, mb(rest.bytes), rest.ms);
    tn_put(t, "</table></div>\n");
}

void tn_report_html(tn_session *s, const tn_view *v, tn_growing *t)
{
    tn_put(t,
           "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport "
           "content='width=device-width,initial-scale=1'>"
           "<title>libtensor: a step</title>\n<style>%s</style>\n",
           style);
    tn_put(t, "<h1>A step of libtensor %s</h1>\n<p>%s, %d threads, %s mode, profile %s", tn_version(),
           s->device->name, s->device->threads, tn_view_mode(s, v), tn_profile_name(s));
    if (!v->log) {
        tn_put(t, ". No step has run a plan.</p></html>\n");
        return;
    }
    tn_put(t, ", step %llu (%s)</p>\n", (unsigned long long)v->log->number, tn_view_which(v));
    tn_curves_html(s, t);
    put_summary(v, t);
    put_roofline(v, t);
    put_groups(v, t);
    tn_drawn_html(v, t);
    if (v->log->backward) put_ledger(v, t);
    if (v->n_boundary) put_boundaries(v, t);
    tn_ranks_html(s, v, t);
    tn_put(t, "</html>\n");
}
