/* explain.c - the step in words: tn_plan_text, small and stable, and tn_explain, at length.
 * Start with put_text. */
#include "view.h"

#include "../../fuser/loops/conv_tile.h"
#include "../../include/tensor_extend.h"

#include <string.h>

/* Converts to megabytes. A value of less than half of the last digit that is shown counts as 0, of either
 * sign. */
static double mb(int64_t bytes) { return bytes > -5000 && bytes < 5000 ? 0 : (double)bytes * 1e-6; }

/* ---- the plan ---- */

/* Nodes that were not computed: their value was there. Numbers the plan was made for, and serves no others.
 */
static void put_simplified(const tn_view *v, const char *before, tn_growing *t)
{
    const int count[] = {v->common, v->folded, v->guards};
    static const char *const word[] = {"common", "folded", "guard"};
    bool any = false;
    for (int i = 0; i < 3; i++) {
        if (!count[i]) continue;
        if (any)
            tn_put(t, ", ");
        else
            tn_put(t, "%ssimplified: ", before);
        tn_put(t, "%d %s%s", count[i], word[i], i == 2 && count[i] > 1 ? "s" : "");
        any = true;
    }
    if (any) tn_put(t, "\n");
}

static void put_plan(tn_session *s, const tn_view *v, tn_growing *t)
{
    (void)s;
    if (!v->log) return;
    tn_put(t, "step: %d kernels, %.2f MB moved, %.2f MB arena (naive %.2f, least %.2f)\n", v->total.kernels,
           mb(v->total.bytes), (double)v->arena_bytes * 1e-6, (double)v->naive_bytes * 1e-6,
           (double)v->least_bytes * 1e-6);
    put_simplified(v, "", t);
    for (int i = 0; i < v->n_launch; i++) {
        const tn_launch *l = &v->launch[i];
        const tn_run_log *run = &v->log->run[l->segment];
        if (v->log->fused && v->log->n > 1 && (!i || l[-1].segment != l->segment)) {
            tn_put(t, "segment %d of %d: %s", l->segment + 1, v->log->n, run->ender);
            tn_put(t, run->what[0] ? " of %s\n" : "%s\n", run->what);
        }
        tn_put(t, "%3d %-8s %-32s %10.3f MB  %s\n", i + 1, tn_way_name(l->way), l->of->name, mb(l->of->bytes),
               l->ops);
    }
}

const char *tn_plan_text(tn_session *s)
{
    if (!s) return NULL;
    tn_explain_state *x = s->explain;
    tn_view v;
    tn_growing t = {0};
    int status = tn_view_make(s, &v);
    if (status == TN_E_STATE) return "";
    if (!status) put_plan(s, &v, &t);
    tn_view_free(&v);
    if (status || t.failed) {
        tn_growing_free(&t);
        return NULL;
    }
    tn_free_mem(x->text);
    return x->text = t.p;
}

/* ---- the bandwidth of a copy ---- */

/* GB/s of y = x, by a kernel like any other, where 2^(16 + 2 i) bytes are moved, and for the last i more than
 * caches hold: the best of a few. 0: could not be measured. */
static double copy_of(tn_session *m, int i)
{
    enum { ROUNDS = 6 };
    const int64_t n = i + 1 < TN_COPIES ? (int64_t)1 << (13 + 2 * i) : 48 << 20;
    tn_tensor *x = tn_keep(tn_zeros(m, TN_F32, 1, &n)), *y = tn_keep(x);
    double best = 0;
    for (int k = 0; k < ROUNDS && y; k++) {
        tn_step_begin(m);
        tn_assign(y, x);
        if (tn_step_end(m)) break;
        const tn_run_log *run = m->explain->last.n ? m->explain->last.run : NULL;
        double seconds = run && run->kernel && run->plan->n_step == 1 ? run->kernel[1] - run->kernel[0] : 0;
        double gbs = seconds > 0 ? 8e-9 * (double)n / seconds : 0;
        if (k && gbs > best) best = gbs; /* the first one compiles */
    }
    tn_free(x);
    tn_free(y);
    return best;
}

/* Of the sizes in the mask, on a session of its own. */
static void measure_copies(tn_session *s, unsigned sizes)
{
    double *gbs = s->explain->copy_gbs;
    tn_session *m = NULL;
    for (int i = 0; i < TN_COPIES && !s->device->is_reference; i++) {
        if (!(sizes >> i & 1) || gbs[i] > 0) continue;
        if (!m && !(m = tn_open_beside(s))) return;
        gbs[i] = copy_of(m, i);
    }
    tn_close(m);
}

/* The smallest of the copies that moves as many bytes as the launch. */
static int copy_like(const tn_launch *l)
{
    int i = 0;
    while (i + 1 < TN_COPIES && (int64_t)1 << (16 + 2 * i) < l->of->bytes) i++;
    return i;
}

void tn_view_copies(tn_session *s, tn_view *v)
{
    if (v->total.ms <= 0) return;
    unsigned sizes = 1u << (TN_COPIES - 1);
    for (int i = 0; i < v->n_launch; i++) sizes |= 1u << copy_like(&v->launch[i]);
    measure_copies(s, sizes);
    const double *gbs = s->explain->copy_gbs;
    TN_EACH(l, v->launch, v->n_launch) {
        double speed = gbs[copy_like(l)];
        if (speed > 0) l->copy_ms = (double)l->of->bytes * 1e-6 / speed;
    }
    v->gbs = gbs[TN_COPIES - 1];
    tn_view_add_up(v);
}

/* ---- at length ---- */

static void put_session(tn_session *s, const tn_view *v, tn_growing *t)
{
    tn_stats a = {.size = sizeof a};
    tn_get_stats(s, &a);
    tn_put(t, "device %s, %d threads, %s mode, profile %s\n", s->device->name, s->device->threads,
           tn_view_mode(s, v), tn_profile_name(s));
    tn_put(
        t,
        "%llu steps, %llu operators' nodes; %llu kernels and %llu library calls moved %.3f GB; %llu copies\n",
        (unsigned long long)a.steps, (unsigned long long)a.nodes, (unsigned long long)a.kernels,
        (unsigned long long)a.library_calls, (double)a.bytes_moved * 1e-9, (unsigned long long)a.copies);
    tn_put(t, "%llu plans made, %llu found again; %llu kernels compiled, %llu found\n",
           (unsigned long long)a.plans, (unsigned long long)a.plan_hits, (unsigned long long)a.compiled,
           (unsigned long long)a.cache_hits);
    const tn_device_stats *d = &s->device->stats;
    if (s->device->replay)
        tn_put(t, "%llu recordings of a plan as one launch, run %llu times\n",
               (unsigned long long)d->recorded, (unsigned long long)d->replays);
    if (s->not_recorded[0]) tn_put(t, "not run as one launch: %s\n", s->not_recorded);
    tn_put(t, "device memory %.1f MB, at most %.1f MB\n", (double)a.bytes_now * 1e-6,
           (double)a.bytes_peak * 1e-6);
    tn_curves_text(s, t);
}

static void put_budget(const tn_session *s, const tn_view *v, tn_growing *t)
{
    if (!s->budget.bytes || !v->log->backward) return;
    tn_put(t, "  of the memory budget of %.2f MB the arena takes %.2f MB", (double)s->budget.bytes * 1e-6,
           (double)v->arena_bytes * 1e-6);
    if (s->budget.again)
        tn_put(t, ", with the first %d of %d parts of forward computed again", s->budget.again,
               s->budget.parts);
    tn_put(t, (int64_t)v->arena_bytes > s->budget.bytes ? "; it cannot be met\n" : "\n");
}

static void put_time(const tn_view *v, tn_growing *t, const tn_sums *s)
{
    if (s->ms < 0 || !s->kernels) return;
    tn_put(t, "  %8.3f ms", s->ms);
    if (v->gbs > 0 && s->ms > 0) {
        double gbs = (double)s->bytes * 1e-6 / s->ms;
        tn_put(t, " %6.1f GB/s %3.0f %%", gbs, 100 * tn_sums_share(s));
    }
}

static void put_sums(const tn_view *v, tn_growing *t, const char *name, const tn_sums *s)
{
    tn_put(t, "  %-10s %4d -> %4d  %10.2f -> %10.2f  %10.2f  %9.3f", name, s->before, s->kernels,
           mb(s->bytes_before), mb(s->bytes), mb(s->bytes_before - s->bytes), s->predicted_ms);
    put_time(v, t, s);
    tn_put(t, "\n");
}

/* Prints what the compiler has made of a kernel (registers, memory), and how a convolution is cut. */
static void put_kernel(const tn_session *s, const tn_launch *l, tn_growing *t)
{
    tn_kernel_info info;
    const struct fu_conv_tile *o = l->of->tile;
    const bool known = tn_launch_info(s, l, &info);
    if (!known && !o) return;
    tn_put(t, "        ");
    if (o) tn_put(t, "tile %d x %d", o->bm, o->bn);
    if (o && o->share > 0) tn_put(t, " x %d, %d stages", o->bk, o->stages);
    if (o && o->wgmma) tn_put(t, " by wgmma");
    if (o && o->splits > 1) tn_put(t, ", %lld splits", (long long)o->splits);
    if (o && o->share > 0) tn_put(t, ", predicted %.0f %% of peak", 100 * o->share);
    if (o) tn_put(t, "%s%s", o->tuned ? ", the fastest when timed" : "", known ? "; " : "");
    if (known)
        tn_put(t, "%d registers, %lld bytes of shared memory, %lld bytes spilled", info.registers,
               (long long)info.shared_bytes, (long long)info.local_bytes);
    tn_put(t, "\n");
}

static void put_row(const tn_session *s, const tn_view *v, tn_growing *t, int row)
{
    static const tn_way ways[] = {TN_WAY_FORWARD, TN_WAY_BACKWARD};
    tn_put(t, "%d\n", row + 1);
    for (int w = 0; w < 2; w++) {
        tn_sums sums = tn_view_row(v, row, ways[w]);
        if (sums.kernels) put_sums(v, t, tn_view_way(v, row, w), &sums);
        for (int i = v->first_of[row]; i >= 0 && sums.kernels; i = v->launch[i].next) {
            const tn_launch *l = &v->launch[i];
            if ((l->way == TN_WAY_BACKWARD) != (ways[w] == TN_WAY_BACKWARD)) continue;
            tn_put(t, "      %-30s %s", l->of->name, l->ops);
            if (l->layers[0]) tn_put(t, "  (%s)", l->layers);
            tn_put(t, l->lines[0] ? "  [%s]\n" : "%s\n", l->lines);
            if (l->of->does) tn_put(t, "        %s\n", l->of->does);
            put_kernel(s, l, t);
        }
    }
}

static void put_ledger(const tn_view *v, tn_growing *t)
{
    tn_put(t,
           "\nwhat forward does for backward: %.2f MB kept, %.2f MB computed again (predicted %.3f ms), "
           "%.2f MB never stored\n",
           mb(v->kept_bytes), mb(v->again_bytes), v->again_ms, mb(v->never_bytes));
    TN_EACH(k, v->kept, v->n_kept) {
        tn_put(t, "  %10.3f MB  %-14s  %s", mb(k->bytes), k->how, k->name);
        if (k->n > 1) tn_put(t, " (%d values)", k->n);
        if (k->reader[0]) tn_put(t, ", for %s", k->reader);
        if (k->ms > 0) tn_put(t, ": %.3f ms", k->ms);
        tn_put(t, "\n");
    }
}

static void put_gradients(const tn_view *v, tn_growing *t)
{
    static const char *const what[TN_SPARED] = {
        [TN_NEVER_STORED] = "MB never stored: the kernel that makes them updates their parameters",
        [TN_GONE_EARLY] = "MB in memory until they have updated their parameters",
        [TN_IN_SLAB] = "MB kept for tn_gradient, which was called, or may be: this ran before tn_step_end"};
    for (int i = 0; i < TN_SPARED; i++)
        if (v->gradients[i])
            tn_put(t, "  gradients of large parameters: %.2f %s\n", mb(v->gradients[i]), what[i]);
}

static void put_boundaries(const tn_view *v, tn_growing *t)
{
    tn_put(t, "\nboundaries: a kernel ends, and a value goes through memory\n");
    tn_told rest;
    const int told = tn_view_told(v, &rest);
    TN_EACH(b, v->boundary, told) {
        tn_put(t, "  %10.3f MB  %s -> %s", mb(b->bytes), b->from, b->to);
        tn_put(t, b->n > 1 ? " (%d values)\n" : "\n", b->n);
        tn_put(t, "                 %s; %s\n", b->reason, b->remedy);
        if (b->ms >= 0)
            tn_put(t, "                 without it the step is predicted to take %.3f ms less\n", b->ms);
    }
    if (rest.n) tn_put(t, "  %10.3f MB  %d values of less than 1 %% each\n", mb(rest.bytes), rest.n);
}

static void put_text(tn_session *s, const tn_view *v, tn_growing *t)
{
    put_session(s, v, t);
    if (!v->log) {
        tn_put(t, "no step has run a plan\n");
        return;
    }
    tn_put(t,
           "\nstep %llu (%s): kernels before -> after fusing, MB moved before -> after, saved, predicted ms",
           (unsigned long long)v->log->number, tn_view_which(v));
    tn_put(t, v->total.ms >= 0 ? ", time, share of the speed of a copy of as many bytes\n" : "\n");
    put_sums(v, t, "all", &v->total);
    for (int w = 0; w < TN_WAYS; w++)
        if (v->way[w].kernels) put_sums(v, t, tn_way_name((tn_way)w), &v->way[w]);
    tn_put(t, "  arena %.2f MB; each value by itself %.2f, the most alive at once %.2f\n",
           (double)v->arena_bytes * 1e-6, (double)v->naive_bytes * 1e-6, (double)v->least_bytes * 1e-6);
    put_gradients(v, t);
    put_budget(s, v, t);
    put_simplified(v, "  ", t);
    for (int i = 0; i < v->n_break; i++) tn_put(t, "cut into segments: %s\n", v->breaks[i]);
    if (v->unread) tn_put(t, "computed and used nowhere: %s\n", v->unread);
    tn_put(t, "\ngroups (f' is the gradient of f)\n");
    for (int r = 0; r < v->n_row; r++) put_row(s, v, t, r);
    if (v->log->backward) put_ledger(v, t);
    if (v->n_boundary) put_boundaries(v, t);
    tn_ranks_text(s, v, t);
}

/* Makes the view and writes it; t is the caller's to free. */
static int tell(tn_session *s, tn_growing *t, void (*write)(tn_session *, const tn_view *, tn_growing *))
{
    tn_view v;
    int status = tn_view_make(s, &v);
    if (status == TN_E_NOMEM) return status;
    if (v.log) tn_view_copies(s, &v);
    write(s, &v, t);
    tn_view_free(&v);
    return t->failed ? TN_E_NOMEM : TN_OK;
}

TN_DEFINE(int, explain, s, (s, out), tn_session *s, FILE *out)
{
    if (!s) return TN_E_NULL;
    if (!out) return tn_fail(s, TN_E_NULL, "explain", "out is NULL");
    tn_growing t = {0};
    int status = tell(s, &t, put_text);
    return tn_put_out(&t, status, out);
}

int tn_report_text(tn_session *s, const char *path, tn_growing *t)
{
    const char *end = strrchr(path, '.');
    if (end && !strcmp(end, ".html")) return tell(s, t, tn_report_html);
    if (end && !strcmp(end, ".json")) return tell(s, t, tn_report_json);
    if (end && !strcmp(end, ".txt")) return tell(s, t, put_text);
    if (end && !strcmp(end, ".plan")) return tell(s, t, put_plan);
    return TN_E_ARG;
}
