/* explain_log.c - remembering: notes of plans, logs of steps.
 *
 * A replayed step costs two clock readings and one entry a segment here; everything else is done once with
 * the plan, or when someone asks. Start with tn_note_plan and tn_run_log_begin.
 */
#include "explain.h"

#include <string.h>
#include <time.h>

double tn_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- opening and closing ---- */

bool tn_explain_open(tn_session *s, const tn_settings *from)
{
    s->explain = tn_calloc(1, sizeof *s->explain);
    if (s->explain) tn_debug_open(s->explain, from);
    return s->explain != NULL;
}

static void log_clear(tn_step_log *l)
{
    for (int i = 0; i < l->n; i++) {
        tn_free_mem(l->run[i].kernel);
        tn_plan_free(l->run[i].plan);
    }
    l->n = 0;
    l->backward = false;
}

void tn_explain_close(tn_session *s)
{
    tn_explain_state *x = s->explain;
    if (!x) return;
    tn_step_log *all[] = {&x->now, &x->last, &x->trained};
    for (int i = 0; i < 3; i++) {
        log_clear(all[i]);
        tn_free_mem(all[i]->run);
    }
    tn_check_free(x);
    tn_debug_close(x);
    tn_free_mem(x->require);
    tn_free_mem(x->text);
    tn_free_mem(x);
    s->explain = NULL;
}

/* ---- notes ---- */

typedef struct noting {
    tn_arena *arena;
    tn_note *note;
    uint32_t mark; /* of calls that have been noted */
    int cap;
    bool failed;
} noting;

static int call_index(noting *w, tn_call *c)
{
    tn_note *n = w->note;
    if (!c) return -1;
    if (c->mark == w->mark) return c->index;
    int of = c->backward ? call_index(w, c->of) : -1;
    if (n->n_call == w->cap) {
        return -1; /* a gradient of a gradient of .. has more calls behind it than nodes here */
    }
    c->mark = w->mark;
    c->index = n->n_call;
    const char *file = c->file && *c->file ? tn_arena_strdup(w->arena, c->file) : NULL;
    n->call[n->n_call] = (tn_note_call){.name = c->name ? tn_arena_strdup(w->arena, c->name) : "",
                                        .file = file,
                                        .line = c->line,
                                        .backward = c->backward,
                                        .of = of,
                                        .key = c->first};
    w->failed = w->failed || (c->file && *c->file && !file) || !n->call[n->n_call].name;
    return n->n_call++;
}

static int slot_of(const tn_flush_scratch *f, const tn_tensor *x)
{
    const tn_tensor *b = x->base;
    bool node = b->slot >= 0 && b->slot < f->node.n && f->node.at[b->slot] == b;
    return (int)(node ? b->slot : x->slot);
}

static void note_value(noting *w, const tn_flush_scratch *f, const tn_tensor *t, int slot)
{
    tn_note_value *v = &w->note->value[slot];
    tn_tensor *b = t->base;
    const char *name = t->name ? t->name : b->name;
    bool leaf = slot >= f->node.n;
    *v = (tn_note_value){.op = b->op,
                         .dtype = t->dtype,
                         .ndim = t->ndim,
                         .name = name && *name ? tn_arena_strdup(w->arena, name) : NULL,
                         .number = tn_kind_of(b) == TN_KIND_NUMBER,
                         .numel = tn_node_numel(t),
                         .call = call_index(w, b->call),
                         .at = b->call ? b->id - b->call->first : 0,
                         .memory = slot,
                         .held = tn_node_numel(b),
                         .step = -1};
    memcpy(v->shape, t->shape, sizeof v->shape);
    v->kept = leaf && !v->number && b->op != TN_OP_leaf && !(b->flags & TN_F_PERSISTENT);
    v->written = !leaf && tn_node_written(t) != NULL;
    v->gradient = leaf && ((b->call && b->call->backward) || (b->of && b->of->flags & TN_F_GRADIENT));
    if (leaf) {
        const bool seen =
            b->leaf >= f->node.n && b->leaf < slot && f->leaf.at[b->leaf - f->node.n]->base == b;
        if (!seen) b->leaf = slot;
        v->memory = (int)b->leaf;
        return;
    }
    v->in = tn_arena_alloc(w->arena, (size_t)(t->n_in + 1) * sizeof *v->in);
    v->read = tn_arena_alloc(w->arena, (size_t)(t->n_in + 1) * sizeof *v->read);
    w->failed = w->failed || !v->in || !v->read;
    for (int k = 0; !w->failed && k < t->n_in; k++) {
        int64_t seen = tn_node_numel(t->in[k]), whole = tn_node_numel(t->in[k]->base);
        v->read[v->n_in] = seen < whole ? seen : whole;
        v->in[v->n_in++] = slot_of(f, t->in[k]);
    }
}

int tn_note_plan(tn_session *s, const tn_flush_scratch *f, tn_plan *p)
{
    noting w = {
        .arena = &p->arena, .mark = (uint32_t)++s->explain->plans, .cap = 2 * (f->node.n + f->leaf.n) + 2};
    tn_note *n = w.note = tn_arena_alloc(w.arena, sizeof *n);
    if (n) n->value = tn_arena_alloc(w.arena, (size_t)(f->node.n + f->leaf.n + 1) * sizeof *n->value);
    if (n) n->call = tn_arena_alloc(w.arena, (size_t)w.cap * sizeof *n->call);
    if (!n || !n->value || !n->call) w.failed = true;
    if (!w.failed) {
        n->n_node = f->node.n;
        n->n_value = f->node.n + f->leaf.n;
        for (int i = 0; i < n->n_value; i++) note_value(&w, f, tn_node_at(f, i), i);
        for (int i = 0; i < p->n_step; i++)
            for (int k = 0; k < p->step[i].n_nodes; k++) {
                int node = p->node_of[p->step[i].first_node + k];
                if (n->value[node].step < 0) n->value[node].step = i;
            }
        for (int i = 0; i < n->n_call; i++) n->backward = n->backward || n->call[i].backward;
        n->number = s->explain->plans;
        p->note = n;
    }
    if (w.failed) return tn_fail_memory(s);
    tn_debug_plan(s, p);
    return TN_OK;
}

/* ---- words ---- */

const char *tn_short_file(const char *file)
{
    const char *slash = file ? strrchr(file, '/') : NULL;
    return slash ? slash + 1 : file ? file : "";
}

const char *tn_note_where(const tn_note_call *c, char *out, size_t n)
{
    const tn_note_call *at = c;
    int k = snprintf(out, n, "%s", c->name);
    if (at->file && k >= 0 && (size_t)k < n)
        snprintf(out + k, n - (size_t)k, " at %s:%d", tn_short_file(at->file), at->line);
    return out;
}

const char *tn_node_where(const tn_tensor *n, char *out, size_t size)
{
    const tn_call *c = n->call;
    const tn_call *at = c && c->of ? c->of : c;
    if (!at)
        snprintf(out, size, "%s", tn_op_get((tn_op)n->op)->name);
    else if (at->file)
        snprintf(out, size, "%s%s at %s:%d", c->of ? "the gradient of " : "", at->name,
                 tn_short_file(at->file), at->line);
    else
        snprintf(out, size, "%s%s", c->of ? "the gradient of " : "", at->name);
    return out;
}

const char *tn_note_name(const tn_note *n, int slot, char *out, size_t size)
{
    const tn_note_value *v = &n->value[slot];
    if (v->name)
        snprintf(out, size, "%s", v->name);
    else if (v->call >= 0) {
        char where[120];
        const tn_note_call *c = &n->call[v->call];
        if (c->backward && c->of >= 0) c = &n->call[c->of];
        snprintf(out, size, "%s of %s", n->call[v->call].backward ? "a gradient" : "a result",
                 tn_note_where(c, where, sizeof where));
    } else
        snprintf(out, size, "an input");
    return out;
}

size_t tn_note_bytes(const tn_note_value *v)
{
    return (size_t)v->numel * tn_dtype_size((tn_dtype)v->dtype);
}

/* ---- logs ---- */

static tn_run_log *push_run(tn_step_log *l)
{
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 8;
        tn_run_log *p = tn_realloc(l->run, (size_t)cap * sizeof *p);
        if (!p) return NULL;
        l->run = p;
        l->cap = cap;
    }
    return &l->run[l->n];
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
    int status = x->n_require ? tn_require_check(s, f, p) : TN_OK;
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
        tn_debug_launch(s, p, step, at[1] - at[0]);
    }
    return s->explain->checking ? tn_check_after(s, f, p, step) : TN_OK;
}

void tn_step_log_begin(tn_session *s)
{
    tn_explain_state *x = s->explain;
    log_clear(&x->now);
    x->n_require = 0;
    x->require_open = false;
    memset(x->origin, 0, sizeof x->origin);
    x->now.start = tn_clock();
    x->now.number = s->stats.steps + 1;
}

void tn_step_log_end(tn_session *s)
{
    tn_explain_state *x = s->explain;
    x->now.end = tn_clock();
    if (!x->now.n) return;
    tn_step_log *to = x->now.backward ? &x->trained : &x->last, old = *to;
    *to = x->now;
    x->now = old;
    log_clear(&x->now);
}

const tn_step_log *tn_step_log_told(const tn_session *s)
{
    const tn_explain_state *x = s->explain;
    if (x->trained.n) return &x->trained;
    return x->last.n ? &x->last : NULL;
}

int tn_profile(tn_session *s, bool on)
{
    if (!s) return TN_E_NULL;
    s->explain->measure = on;
    return TN_OK;
}
