/* log.c - remembering: logs of runs and steps.
 *
 * A replayed step costs two clock readings and one entry a segment here; everything else is done once with
 * the plan (note.c), or when someone asks. Start with tn_run_log_begin. */
#include "log.h"

#include <string.h>
#include <time.h>

double tn_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- opening and closing ---- */

static void log_clear(tn_step_log *l)
{
    for (int i = 0; i < l->n; i++) {
        tn_free_mem(l->run[i].kernel);
        tn_plan_free(l->run[i].plan);
    }
    l->n = 0;
    l->backward = false;
}

void tn_log_free(tn_session *s)
{
    tn_explain_state *x = s->explain;
    if (!x) return;
    tn_step_log *all[] = {&x->now, &x->last, &x->trained, &x->usual};
    for (int i = 0; i < 4; i++) {
        log_clear(all[i]);
        tn_free_mem(all[i]->run);
    }
    tn_free_mem(x->require);
    tn_free_mem(x->text);
    tn_free_mem(x);
    s->explain = NULL;
}

/* ---- logs ---- */

static tn_run_log *push_run(tn_step_log *l)
{
    return tn_reserve(&l->run, &l->cap, l->n + 1, sizeof *l->run) ? &l->run[l->n] : NULL;
}

void tn_asked_set(tn_session *s, const char *name, const char *file, int line)
{
    s->explain->asked = (struct tn_asked){name, file, line, NULL};
}

static void name_end(const tn_session *s, tn_run_log *r)
{
    const struct tn_asked *a = &s->explain->asked;
    const tn_call *c = s->graph.call;
    const tn_tensor *x = a->root;
    *r = (tn_run_log){.ender = a->name        ? a->name
                               : c && c->name ? c->name
                                              : "flush",
                      .file = a->name ? a->file
                              : c     ? c->file
                                      : NULL,
                      .line = a->name ? a->line
                              : c     ? c->line
                                      : 0};
    const char *name = x ? (x->name ? x->name : x->base->name) : NULL;
    if (name)
        snprintf(r->what, sizeof r->what, "%s", name);
    else if (x && x->base->call && x->base->call != c)
        snprintf(r->what, sizeof r->what, "a result of %s", x->base->call->name);
}

/* The step's handles end with it: what the user called for, no operator has read, and no read, tn_watch or
 * tn_backward asked for, is computed for nothing. */
static void note_unread(const tn_flush_scratch *f, tn_run_log *r)
{
    enum { USED = TN_F_CONSUMED | TN_F_WATCHED | TN_F_WALKED };
    for (int i = 0; i < f->seed.n; i++) {
        const tn_tensor *n = f->seed.at[i]; /* a view, perhaps */
        const bool called = (n->flags & (TN_F_USER | USED)) == TN_F_USER && !(n->call && n->call->backward);
        if (!called || tn_node_written(n)) continue;
        if (r->n_unread < TN_UNREAD) r->unread[r->n_unread] = (int)n->base->slot;
        r->n_unread++;
    }
}

int tn_run_log_begin(tn_session *s, const tn_flush_scratch *f, tn_plan *p, double start)
{
    tn_explain_state *x = s->explain;
    int status = x->looks.required ? x->looks.required(s, f, p) : TN_OK;
    if (status || !s->in_step) return status;
    tn_run_log *r = push_run(&x->now);
    if (!r) return tn_fail_memory(s);
    name_end(s, r);
    if (s->ending) note_unread(f, r);
    if (x->measure && !(r->kernel = tn_calloc((size_t)p->n_step * 2 + 1, sizeof *r->kernel)))
        return tn_fail_memory(s);
    r->plan = p;
    r->start = start;
    r->planned = tn_clock();
    p->refs++;
    x->now.n++;
    x->now.backward = x->now.backward || p->note->backward;
    return TN_OK;
}

void tn_run_log_end(tn_session *s, const tn_plan *p, int status)
{
    tn_step_log *l = &s->explain->now;
    if (status || !s->in_step || !l->n || l->run[l->n - 1].plan != p) return;
    l->run[l->n - 1].end = tn_clock();
}

void tn_probe_before(tn_session *s, int step)
{
    tn_step_log *l = &s->explain->now;
    if (s->explain->checking && !step && s->arena && s->device->shares_host_memory)
        memset(s->arena, 0xff, s->arena_bytes); /* dead until it is written: see check.c */
    if (s->explain->measure && s->in_step && l->n && l->run[l->n - 1].kernel)
        l->run[l->n - 1].kernel[2 * step] = tn_clock();
}

int tn_probe_after(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step)
{
    tn_step_log *l = &s->explain->now;
    if (s->explain->measure && s->in_step && l->n && l->run[l->n - 1].kernel) {
        double *at = &l->run[l->n - 1].kernel[2 * step];
        s->device->sync(s->device);
        at[1] = tn_clock();
        if (s->explain->looks.launched) s->explain->looks.launched(s, p, step, at[1] - at[0]);
    }
    return s->explain->checking ? s->explain->looks.after(s, f, p, step) : TN_OK;
}

void tn_step_log_begin(tn_session *s)
{
    tn_explain_state *x = s->explain;
    log_clear(&x->now);
    x->n_require = 0;
    x->looks.required = NULL;
    x->require_open = false;
    memset(x->origin, 0, sizeof x->origin);
    x->now.fused = s->mode == TN_FUSED;
    x->now.start = tn_clock();
    x->now.number = s->stats.steps + 1;
}

static void swap(tn_step_log *a, tn_step_log *b)
{
    const tn_step_log old = *a;
    *a = *b;
    *b = old;
}

/* Counts the steps that ran the plans that are told of. A few of others, such as an epoch's short last batch,
 * are not told of in their place. */
static bool is_unusual(tn_explain_state *x)
{
    enum { FEW = 4, MANY = 8 };
    const tn_step_log *told = x->usual.n ? &x->usual : &x->trained;
    bool same = told->n == x->now.n;
    if (told->fused != x->now.fused) x->alike = 0; /* the program has set another mode */
    for (int i = 0; i < told->n && same; i++) same = told->run[i].plan == x->now.run[i].plan;
    if (!same && x->alike >= FEW && --x->alike >= FEW) return true;
    x->alike = !same ? 1 : x->alike < MANY ? x->alike + 1 : MANY;
    return false;
}

void tn_step_log_end(tn_session *s)
{
    tn_explain_state *x = s->explain;
    x->now.end = tn_clock();
    if (!x->now.n) return;
    tn_step_log *to = x->now.backward ? &x->trained : &x->last;
    if (x->now.backward && is_unusual(x)) {
        if (!x->usual.n) swap(&x->usual, &x->trained);
    } else if (x->now.backward)
        log_clear(&x->usual);
    swap(to, &x->now);
    log_clear(&x->now);
}

const tn_step_log *tn_step_log_told(const tn_session *s)
{
    const tn_explain_state *x = s->explain;
    if (x->trained.n) return x->usual.n ? &x->usual : &x->trained;
    return x->last.n ? &x->last : NULL;
}

int tn_profile(tn_session *s, bool on)
{
    if (!s) return TN_E_NULL;
    s->explain->measure = on && !s->device->runs_nothing;
    return TN_OK;
}

void tn_look_away(tn_session *s)
{
    tn_explain_state *x = s->explain;
    x->looks = (tn_looks){0};
    x->level = 0;
    x->folder = NULL;
    x->dump = x->measure = x->check = false;
}
