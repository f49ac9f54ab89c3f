/* ranks.c - what ranks send each other in a step, what of it is hidden behind the rest, and how long the step
 * would take with other numbers of them.
 *
 * The launches are walked in order, with a clock for what computes and one for the network, which takes one
 * thing after the other: a part of the gradients is under way from the launch that makes the last of it to
 * the one that needs the mean. On a network of latency L and bandwidth B, to send n bytes once around a ring
 * of N ranks takes
 *
 *     (N - 1) * L + (N - 1) / N * n / B
 *
 * A mean goes around twice; a scattered one once, and so do the weights that are gathered behind it. Each
 * rank has the step's own batch: N ranks take N times as many items, and the efficiency is the time of one
 * rank by that of N.
 *
 * Start with walk. */
#include "../runtime/ranks.h"
#include "view.h"

#include "../../include/tensor_extend.h"

#include <stdlib.h>

enum {
    NOTES = 512,
    PARTS = 16,
    LEAST = 1 << 18
}; /* bytes of a note; parts of a step that one rank has run */

/* Launches by index; -1 is ahead of the first, n_launch behind the last. */
typedef struct sending {
    int after, until;
    int64_t bytes;
    bool gradient;
    double begin, end; /* ms, of the walk that was last */
} sending;

typedef struct network {
    double latency, bandwidth; /* ms, bytes a ms */
    const char *bad;           /* TENSOR_NETWORK where it means nothing */
    bool given;
} network;

typedef struct forecast {
    double ms, sent_ms, exposed_ms; /* sent and not waited for is hidden */
    double share;                   /* of the time, what one rank would take for itself */
} forecast;

typedef struct work {
    const tn_view *v;
    network net;
    sending *list;
    int n;
    int shares;        /* ranks among whom the step's own update is shared */
    int ranks;         /* of the session, 2 where it is one */
    forecast one, own; /* of one rank for itself, and of these */
} work;

/* ---- what is given ---- */

/* TENSOR_NETWORK=MICROSECONDS,GB/s */
static network network_of(void)
{
    const char *text = tn_setting("TENSOR_NETWORK");
    char *end = NULL;
    double us = 50, gbs = 1.25;
    network n = {.given = text != NULL};
    if (text) {
        us = tn_strtod(text, &end);
        const bool comma = end != text && *end == ',';
        const char *second = comma ? end + 1 : text;
        gbs = tn_strtod(second, &end);
        if (!comma || end == second || *end || !(us >= 0 && us < 1e9) || !(gbs > 0 && gbs < 1e9))
            n.bad = text;
    }
    n.latency = n.bad ? 0.05 : us * 1e-3;
    n.bandwidth = n.bad ? 1.25e6 : gbs * 1e6;
    return n;
}

static bool together(const tn_launch *l, tn_together how)
{
    return l->of->kind == TN_STEP_RANKS && l->of->dim[TN_RANKS_HOW] == (int64_t)how;
}

/* Bytes of gradients that the launch is the first to write where they belong. */
static int64_t makes(const tn_launch *l)
{
    int64_t bytes = 0;
    for (int k = 0; k < l->of->n_nodes; k++) {
        const int node = l->plan->node_of[l->of->first_node + k];
        const tn_note_value *value = &l->note->value[node];
        if (value->written && value->step == l->step && value->call >= 0 &&
            l->note->call[value->call].backward)
            bytes += value->numel * (int64_t)tn_dtype_size((tn_dtype)value->dtype);
    }
    return bytes;
}

/* Of a step of several ranks: its parts. */
static void list_parts(work *w)
{
    const tn_view *v = w->v;
    for (int i = 0; i < v->n_launch; i++) {
        const tn_launch *l = &v->launch[i];
        TN_EACH(b, l->plan->begin, l->plan->n_begin) {
            if (b->step != l->step || together(l, TN_GATHER)) continue;
            w->list[w->n++] = (sending){.after = i - l->step + b->after,
                                        .until = i,
                                        .bytes = b->n * l->of->dim[TN_RANKS_SIZE],
                                        .gradient = l->way == TN_WAY_UPDATE};
        }
        if (together(l, TN_SCATTER)) w->shares = w->shares > 1 ? w->shares : 2;
    }
}

/* Of a step of one rank: as its parts would be. */
static void list_gradients(work *w)
{
    const tn_view *v = w->v;
    int64_t all = 0, ready = 0;
    int last = -1;
    for (int i = 0; i < v->n_launch; i++) {
        const int64_t bytes = makes(&v->launch[i]);
        all += bytes;
        if (bytes) last = i;
    }
    for (int i = 0; i <= last; i++) {
        ready += makes(&v->launch[i]);
        if (i < last && (ready < LEAST || ready < all / PARTS)) continue;
        int until = i + 1;
        while (until < v->n_launch && v->launch[until].way != TN_WAY_UPDATE) until++;
        w->list[w->n++] = (sending){.after = i, .until = until, .bytes = ready, .gradient = true};
        ready = 0;
    }
}

/* ---- the walk ---- */

static double ring(const work *w, int ranks, int64_t bytes)
{
    return (ranks - 1) * w->net.latency + (double)(ranks - 1) / ranks * (double)bytes / w->net.bandwidth;
}

static forecast walk(work *w, int ranks, bool shard)
{
    const tn_view *v = w->v;
    forecast f = {0};
    double now = 0, free = 0;
    int64_t gradients = 0;
    for (int i = -1; i <= v->n_launch; i++) {
        const tn_launch *l = i >= 0 && i < v->n_launch ? &v->launch[i] : NULL;
        for (int k = 0; k < w->n && ranks > 1; k++) {
            if (w->list[k].until != i || free <= now) continue;
            f.exposed_ms += free - now;
            now = free;
        }
        double ms = !l || l->of->kind == TN_STEP_RANKS ? 0 : l->ms >= 0 ? l->ms : l->of->predicted_ms;
        if (l && l->way == TN_WAY_UPDATE) ms = ms * w->shares / (shard ? ranks : 1);
        now += ms;
        for (int k = 0; k < w->n && ranks > 1; k++) {
            sending *s = &w->list[k];
            if (s->after != i) continue;
            s->begin = free > now ? free : now;
            s->end = free = s->begin + ring(w, ranks, s->bytes) * (shard && s->gradient ? 1 : 2);
            f.sent_ms += s->end - s->begin;
            gradients += s->gradient ? s->bytes : 0;
        }
    }
    if (ranks > 1 && shard) {
        const double gather = ring(w, ranks, gradients);
        f.sent_ms += gather;
        f.exposed_ms += gather;
        now += gather;
    }
    if (ranks > 1) /* they meet before the first, behind the last, and where shares are handed out */
        now += (shard ? 3 : 2) * (w->net.latency + (double)(ranks - 1) * NOTES / w->net.bandwidth);
    f.ms = now;
    f.share = now > 0 ? w->one.ms / now : 1;
    return f;
}

static int begin_work(tn_session *s, const tn_view *v, work *w)
{
    int n = 0;
    *w = (work){.v = v, .net = network_of(), .shares = 1};
    if (!v->log || !v->log->backward || (tn_ranks(s) == 1 && !w->net.given)) return 0;
    for (int i = 0; i < v->n_launch; i++)
        n += v->launch[i].of->kind == TN_STEP_RANKS ? v->launch[i].plan->n_begin : 1;
    w->list = tn_calloc((size_t)n + 1, sizeof *w->list);
    if (!w->list) return 0;
    list_parts(w);
    if (w->shares > 1) w->shares = tn_ranks(s);
    if (!w->n) list_gradients(w);
    if (!w->n) return 0;
    w->ranks = tn_ranks(s) > 1 ? tn_ranks(s) : 2;
    w->one = walk(w, 1, false);
    w->own = walk(w, w->ranks, w->shares > 1);
    return w->n;
}

/* ---- told ---- */

static void put_text(const work *w, tn_growing *t)
{
    int64_t bytes = 0;
    for (int k = 0; k < w->n; k++) bytes += w->list[k].bytes;
    tn_put(t, "  %d parts, %.3f MB; on a network of %.4g us and %.4g GB/s%s, %d ranks:\n", w->n,
           (double)bytes * 1e-6, w->net.latency * 1e3, w->net.bandwidth * 1e-6,
           w->net.given && !w->net.bad ? "" : " (TENSOR_NETWORK=MICROSECONDS,GB/s is another one)", w->ranks);
    TN_EACH(s, w->list, w->n) {
        tn_put(t, "  %10.3f MB from %8.3f to %8.3f ms, behind launch %d, for launch %d\n",
               (double)s->bytes * 1e-6, s->begin, s->end, s->after + 1, s->until + 1);
    }
}

void tn_ranks_text(tn_session *s, const tn_view *v, tn_growing *t)
{
    work w;
    if (begin_work(s, v, &w)) {
        const forecast own = w.own;
        tn_put(t, "\nranks: %d%s%s\n", tn_ranks(s), tn_ranks(s) > 1 ? " by " : "",
               tn_ranks(s) > 1 ? tn_ranks_name(s) : "");
        if (w.net.bad) tn_put(t, "  TENSOR_NETWORK is '%.40s', which means nothing\n", w.net.bad);
        put_text(&w, t);
        tn_put(t, "  %.3f ms of sending, %.3f ms hidden, %.3f ms exposed\n", own.sent_ms,
               own.sent_ms - own.exposed_ms, own.exposed_ms);
        tn_put(t, "  predicted, each rank with this batch:\n  %6s %10s %10s   with .shard\n", "ranks",
               "step ms", "efficiency");
        for (int n = 1; n <= 1024; n *= 2) {
            const forecast f = walk(&w, n, false), g = walk(&w, n, true);
            tn_put(t, "  %6d %10.3f %8.1f %%   %10.3f %8.1f %%\n", n, f.ms, 100 * f.share, g.ms,
                   100 * g.share);
        }
    }
    tn_free_mem(w.list);
}

void tn_ranks_json(tn_session *s, const tn_view *v, tn_growing *t)
{
    work w;
    if (begin_work(s, v, &w)) {
        const forecast own = w.own;
        tn_put(t,
               ",\n\"ranks\":{\"ranks\":%d,\"latency_us\":%.6g,\"gbs\":%.6g,\"sent_ms\":%.6f,\"exposed_ms\":%"
               ".6f,",
               w.ranks, w.net.latency * 1e3, w.net.bandwidth * 1e-6, own.sent_ms, own.exposed_ms);
        tn_put(t, "\"parts\":[");
        for (int k = 0; k < w.n; k++)
            tn_put(t, "%s\n{\"bytes\":%lld,\"begin_ms\":%.6f,\"end_ms\":%.6f}", k ? "," : "",
                   (long long)w.list[k].bytes, w.list[k].begin, w.list[k].end);
        tn_put(t, "],\"forecast\":[");
        for (int n = 1; n <= 1024; n *= 2) {
            const forecast f = walk(&w, n, false), g = walk(&w, n, true);
            tn_put(t,
                   "%s\n{\"ranks\":%d,\"ms\":%.6f,\"efficiency\":%.4f,\"shard_ms\":%.6f,\"shard_efficiency\":"
                   "%.4f}",
                   n > 1 ? "," : "", n, f.ms, f.share, g.ms, g.share);
        }
        tn_put(t, "]}");
    }
    tn_free_mem(w.list);
}

void tn_ranks_html(tn_session *s, const tn_view *v, tn_growing *t)
{
    work w;
    if (begin_work(s, v, &w)) {
        const forecast own = w.own;
        tn_put(
            t,
            "<h2>Ranks</h2>\n<p>%d ranks on a network of %.4g us and %.4g GB/s (TENSOR_NETWORK): %.3f ms of "
            "sending, %.3f ms of it hidden behind the step, %.3f ms exposed.</p>\n",
            w.ranks, w.net.latency * 1e3, w.net.bandwidth * 1e-6, own.sent_ms, own.sent_ms - own.exposed_ms,
            own.exposed_ms);
        tn_put(t, "<div class=w><table><tr><th class=n>part, MB<th class=n>from ms<th class=n>to ms"
                  "<th class=n>behind launch<th class=n>for launch</tr>\n");
        for (int k = 0; k < w.n; k++)
            tn_put(t,
                   "<tr><td class=n title=MB>%.3f<td class=n title='ms begins'>%.3f<td class=n title='ms "
                   "ends'>%.3f<td class=n title='is behind'>%d<td class=n title='is for'>%d</tr>\n",
                   (double)w.list[k].bytes * 1e-6, w.list[k].begin, w.list[k].end, w.list[k].after + 1,
                   w.list[k].until + 1);
        tn_put(t, "</table></div>\n<p>Predicted, each rank with this batch:</p>\n<div class=w><table><tr>"
                  "<th class=n>ranks<th class=n>ms a step<th class=n>efficiency<th class=n>ms with .shard"
                  "<th class=n>efficiency</tr>\n");
        for (int n = 1; n <= 1024; n *= 2) {
            const forecast f = walk(&w, n, false), g = walk(&w, n, true);
            tn_put(t,
                   "<tr><td class=n title=ranks>%d<td class=n title=ms>%.3f<td class=n>%.1f %%"
                   "<td class=n title='ms with .shard'>%.3f<td class=n>%.1f %%</tr>\n",
                   n, f.ms, 100 * f.share, g.ms, 100 * g.share);
        }
        tn_put(t, "</table></div>\n");
    }
    tn_free_mem(w.list);
}
