/* flush.c - running what was recorded: roots -> segment -> plan -> launches.
 *
 * Where operators wait (a step in fused mode), a flush runs everything that does: what was asked for,
 * assignments, values that have a place to be written to, what is watched, and each tensor the user made that
 * no operator has read. Elsewhere it runs what the call that just ended returns.
 *
 * Three roads lead from a segment to its values: a plan (found by its record, or made by the fuser and
 * compiled), the reference interpreter, and the built-in loops where there is no compiler.
 *
 * Read first: tn_run.
 */
#include <fenv.h>
#include <stdlib.h>

#include "device_run.h"
#include "log.h"
#include "tune.h"

/* ---- scratch ---- */

void tn_flush_free(tn_session *s)
{
    tn_device *d = s->device;
    if (s->arena && d->shares_host_memory) d->free(d, s->arena);
    if (s->arena && !d->shares_host_memory) d->release(d, s->arena, s->arena_range);
    s->arena = NULL;
    tn_device_forget_runs(s);
    tn_free_mem(s->ran);
    s->ran = NULL;
    if (s->scratch) tn_flush_scratch_free(s->scratch);
    tn_free_mem(s->scratch);
    s->scratch = NULL;
}

/* ---- plan ---- */

/* Kernels of a plan, through the device's cache. */
static int compile_plan(tn_session *s, tn_plan *p, tn_errbuf *err)
{
    int n = 0;
    tn_source *src = tn_malloc((size_t)p->n_step * sizeof *src);
    tn_kernel **kernel = tn_malloc((size_t)p->n_step * sizeof *kernel);
    int status = src && kernel ? TN_OK : TN_E_NOMEM;
    for (int i = 0; i < p->n_step && !status; i++)
        if (p->step[i].source.text) src[n++] = p->step[i].source;
    if (!status && n) status = s->device->compile(s->device, src, n, kernel, err);
    for (int i = 0, k = 0; i < p->n_step && !status; i++)
        if (p->step[i].source.text) p->step[i].kernel = kernel[k++];
    tn_free_mem(src);
    tn_free_mem(kernel);
    return status;
}

/* Returns the bytes that the threads of all the plan's kernels spill. mark: marks the nodes of those kernels
 * (TN_SEG_LEAN). */
static int64_t spilt(const tn_session *s, tn_flush_scratch *f, const tn_plan *p, bool mark)
{
    int64_t bytes = 0;
    for (int i = 0; s->device->kernel_info && i < p->n_step; i++) {
        const tn_step *st = &p->step[i];
        tn_kernel_info info;
        if (st->kind != TN_STEP_KERNEL || !s->device->kernel_info(s->device, st->kernel, &info)) continue;
        bytes += info.local_bytes;
        for (int k = 0; mark && info.local_bytes && k < st->n_nodes; k++)
            f->root[p->node_of[st->first_node + k]] |= TN_SEG_LEAN;
    }
    return bytes;
}

/* Only a compiler knows how many registers a kernel takes. Where one spills, the plan is made once more with
 * kernels that keep less in them, and the better of the two serves. */
static void make_leaner(tn_session *s, tn_flush_scratch *f, const tn_segment *seg, tn_plan **best)
{
    tn_errbuf err = {""};
    tn_plan *lean = NULL;
    int64_t before = spilt(s, f, *best, true);
    if (!before) return;
    int status = tn_plan_build(seg, &s->target, &lean, &err);
    if (!status) status = compile_plan(s, lean, &err);
    int64_t after = status ? before : spilt(s, f, lean, false);
    if (s->explain->looks.spilled) s->explain->looks.spilled(s, before, after);
    if (after < before) {
        tn_plan_free(*best);
        *best = lean;
    } else
        tn_plan_free(lean);
    for (int i = 0; i < f->node.n; i++) f->root[i] &= (uint8_t)~TN_SEG_LEAN;
}

/* unguarded: a plan of the same record was for other numbers than these. */
static int make_plan(tn_session *s, tn_flush_scratch *f, bool unguarded, tn_plan **out)
{
    tn_errbuf err = {""};
    tn_segment seg = {&s->graph, f->node.at, f->node.n, f->leaf.at, f->leaf.n, f->root, f->twin, unguarded};
    tn_plan *p = NULL;
    int status = tn_plan_build(&seg, &s->target, &p, &err);
    if (!status && tn_tune_plan(s, p)) {
        tn_plan_free(p);
        p = NULL;
        status = tn_plan_build(&seg, &s->target, &p, &err);
    }
    if (status)
        return tn_error_of(&s->graph, NULL, status, "%s", err.text[0] ? err.text : "no plan could be made");
    status = compile_plan(s, p, &err);
    if (status) {
        if (s->device->no_compiler) /* not an error: run_builtin takes over, and says so once */
            tn_warn(s, "%s: running built-in loops, slower than compiled kernels", err.text);
        else
            tn_error_set(&s->graph, status, "%s", err.text[0] ? err.text : tn_status_text(status));
        tn_plan_free(p);
        return status;
    }
    make_leaner(s, f, &seg, &p);
    s->stats.plans++;
    status = tn_plan_lend(s, f, p);
    if (!status) status = tn_plan_memory(p);
    if (!status) status = tn_plan_predict(&seg, &s->target, p);
    if (status) {
        tn_plan_free(p);
        return tn_fail_memory(s);
    }
    status = tn_plan_verify_memory(p, &err);
    if (status) {
        tn_error_set(&s->graph, status, "%s", err.text);
        tn_plan_free(p);
        return status;
    }
    status = tn_note_plan(s, f, p);
    if (status) {
        tn_plan_free(p);
        return status;
    }
    tn_plan_made(s, p);
    status = tn_plan_cache_add(s->plans, f->key, f->n_key, p);
    if (!status && s->device->shares_host_memory && tn_plan_cache_arena(s->plans) < s->arena_bytes) {
        s->device->free(s->device, s->arena); /* the plan that wanted so much has gone */
        s->arena = NULL;
        s->arena_bytes = 0;
    }
    if (status) tn_error_set(&s->graph, status, "no memory for the plan cache");
    *out = p;
    return status;
}

/* ---- roots ---- */

/* Returns true where a flush of everything that waits has to run t. */
static bool waits(const tn_tensor *t, bool ends)
{
    if (t->base->flags & (TN_F_DONE | TN_F_REFUSED) || tn_is_number(t)) return false;
    if (tn_node_written(t) || t->flags & TN_F_WATCHED) return true;
    return ends && (t->flags & (TN_F_USER | TN_F_CONSUMED)) == TN_F_USER;
}

/* ends: also what the user made and no operator has read. */
static int seed(tn_session *s, tn_flush_scratch *f, int n, tn_tensor *const *roots, bool ends)
{
    tn_graph *g = &s->graph;
    f->seed.n = 0;
    for (int i = 0; i < n; i++)
        if (!tn_list_push(&f->seed, roots[i])) return tn_fail_memory(s);
    for (uint32_t i = s->flushed; i < g->n_nodes && tn_deferred(s); i++)
        if (waits(g->nodes[i], ends) && !tn_list_push(&f->seed, g->nodes[i])) return tn_fail_memory(s);
    return TN_OK;
}

/* Sets *all to true where all the roots can be read as they are. Returns an error where one is refused or was
 * overwritten. */
static int settled(tn_session *s, int n, tn_tensor *const *roots, bool *all)
{
    *all = n > 0;
    for (int i = 0; i < n; i++) {
        tn_tensor *b = roots[i]->base;
        if (b->flags & TN_F_REFUSED) return tn_refused(s, b);
        *all = *all && tn_has_value(b) && !(tn_deferred(s) && tn_write_pending(s, roots[i]));
        const tn_tensor *writer = tn_lost_to(b, UINT32_MAX);
        if (!writer) continue;
        tn_error_set(&s->graph, TN_E_NOT_KEPT,
                     "%s has assigned to %s after %s was made of it; tn_keep the value before that",
                     TN_NODE_WHERE(writer), b->name ? b->name : "a tensor", TN_NODE_WHERE(roots[i]));
        return TN_E_NOT_KEPT;
    }
    return TN_OK;
}

static int run_segment(tn_session *s, tn_flush_scratch *f, tn_plan **used)
{
    int status = s->caught ? s->caught(s, f) : TN_OK;
    if (status) return status;
    if (s->device->is_reference || s->device->no_compiler) return tn_run_nodes(s, f);
    double start = tn_clock();
    if (!tn_segment_record(s, f)) return tn_fail_memory(s);
    const tn_looks *looks = &s->explain->looks;
    if (looks->banned && looks->banned(s, f) && !tn_segment_record(s, f)) return tn_fail_memory(s);
    bool other = false;
    tn_plan *p = tn_plan_cache_find(s->plans, f->key, f->n_key, f->leaf.at, &other);
    bool fresh = !p;
    if (p)
        s->stats.plan_hits++;
    else
        status = make_plan(s, f, other, &p);
    if (status && s->device->no_compiler) return tn_run_nodes(s, f);
    if (!status) status = tn_run_log_begin(s, f, p, start);
    if (!status && looks->begin) status = looks->begin(s, f, p, fresh);
    if (!status) status = tn_execute(s, f, p);
    if (looks->end) looks->end(s);
    if (p) tn_run_log_end(s, p, status);
    *used = p;
    return status ? status : tn_check_fault(s);
}

/* ---- replay ---- */

static const char flush_name[] = "flush";

static bool copy_list(tn_list *to, const tn_list *from)
{
    for (int i = 0; i < from->n; i++)
        if (!tn_list_push(to, from->at[i])) return false;
    return true;
}

/* Notes what has just run on the tape of the step. */
static void note_flush(tn_session *s, int n, tn_tensor *const *roots, tn_plan *p)
{
    tn_tape *t = &s->tape;
    int at =
        tn_tape_note(s, TN_ENTRY_FLUSH, flush_name, TN_ATTR(s->ending), n, roots, roots, s->graph.n_nodes);
    if (at < 0) return;
    tn_flush_record *r = tn_calloc(1, sizeof *r);
    bool ran = s->scratch->node.n > 0;
    if (!r ||
        (ran && (!copy_list(&r->f.seed, &s->scratch->seed) || !copy_list(&r->f.node, &s->scratch->node) ||
                 !copy_list(&r->f.leaf, &s->scratch->leaf))) ||
        (ran && (!p || !tn_flush_fix(&r->f, p)))) {
        if (r) tn_flush_scratch_free(&r->f);
        tn_free_mem(r);
        tn_tape_end(s);
        return;
    }
    r->plan = ran ? p : NULL;
    if (r->plan) r->plan->refs++; /* it may leave the cache before the tape ends */
    tn_tape_done(s, at, 0, NULL);
    t->entry[at].flush = r;
}

static int repeat_flush(tn_session *s, const tn_entry *e)
{
    tn_flush_record *r = e->flush;
    s->flushed = e->end;
    if (!r->plan) return TN_OK;
    s->stats.plan_hits++;
    tn_plan_cache_touch(s->plans, r->plan);
    int status = tn_run_log_begin(s, &r->f, r->plan, tn_clock());
    const tn_looks *looks = &s->explain->looks;
    if (!status && looks->begin) status = looks->begin(s, &r->f, r->plan, false);
    if (!status) status = tn_execute(s, &r->f, r->plan);
    if (looks->end) looks->end(s);
    tn_run_log_end(s, r->plan, status);
    return status ? status : tn_check_fault(s);
}

/* Ends the tape's replay where the next flush on it has a plan that serves only other numbers than there are
 * now. */
static void leave_plan(tn_session *s)
{
    const tn_tape *t = &s->tape;
    if (!t->active || t->cursor == t->n || t->entry[t->cursor].kind != TN_ENTRY_FLUSH) return;
    const tn_flush_record *r = t->entry[t->cursor].flush;
    if (r->plan && !tn_plan_serves(r->plan, r->f.leaf.at)) tn_tape_cut(s);
}

/* The nodes that are needed for what was asked for and, where operators wait, for all that does. If what the
 * user made and nobody has read cannot be made, perhaps nobody asks for it: it is left out. */
static int collect(tn_session *s, int n, tn_tensor *const *roots)
{
    tn_flush_scratch *f = s->scratch;
    const tn_error_state before = s->graph.error;
    f->node.n = 0;
    int status = seed(s, f, n, roots, true);
    if (!status) status = tn_segment_collect(s, f);
    if (!tn_deferred(s) || !status || status == TN_E_NOMEM) return status;
    s->graph.error = before;
    status = seed(s, f, n, roots, false);
    return status ? status : tn_segment_collect(s, f);
}

/* Returns true where the nodes that wait could run without the value that was asked for, which cannot be
 * computed. */
static bool can_wait_on(tn_session *s, int n)
{
    const tn_error_state why = s->graph.error;
    const bool can =
        n && tn_deferred(s) && !seed(s, s->scratch, 0, NULL, false) && !tn_segment_collect(s, s->scratch);
    s->graph.error = why;
    return can;
}

static int run_recorded(tn_session *s, int n, tn_tensor *const *roots)
{
    tn_plan *p = NULL;
    int status = tn_deferred(s) ? tn_spare_gradients(s) : TN_OK;
    if (!status) status = collect(s, n, roots);
    for (int i = 0; i < s->scratch->node.n && !status; i++) {
        const tn_tensor *to = s->scratch->node.at[i]->place;
        if (to) status = tn_gradient_room(s, to);
    }
    if (status && can_wait_on(s, n)) { /* nothing was run */
        s->stats.runs--;
        return status;
    }
    const uint32_t first = s->flushed;
    if (!status && s->scratch->node.n) status = run_segment(s, s->scratch, &p);
    s->flushed = s->graph.n_nodes;
    if (tn_deferred(s) && !status) note_flush(s, n, roots, p);
    if (status && tn_deferred(s))
        tn_refuse_waiting(s, first);
    else if (status)
        tn_refuse_nodes(s, s->scratch);
    if (status) tn_note_failure(s, s->stats.runs);
    return status;
}

static int run(tn_session *s, int n, tn_tensor *const *roots)
{
    s->stats.runs++;
    if (!s->scratch && !(s->scratch = tn_calloc(1, sizeof *s->scratch))) return tn_fail_memory(s);
    const bool whole = tn_deferred(s);
    const uint32_t first = s->flushed;
    if (whole && s->graph.error.status) { /* after an error nothing takes effect */
        s->flushed = s->graph.n_nodes;
        tn_refuse_waiting(s, first);
        tn_note_failure(s, s->stats.runs);
        return s->graph.error.status;
    }
    if (whole) leave_plan(s);
    tn_entry *e = whole ? tn_tape_match(s, TN_ENTRY_FLUSH, flush_name, TN_ATTR(s->ending), n, roots) : NULL;
    if (!e) return run_recorded(s, n, roots);
    int status = repeat_flush(s, e);
    if (status) {
        tn_refuse_waiting(s, first);
        tn_note_failure(s, s->stats.runs);
    }
    return status;
}

/* A host may have floating-point traps on, or look at the flags of what it has computed itself. What runs
 * here divides by zero, compares NaN and computes in lanes nobody asked for: neither traps nor flags show it.
 * The threads of the pool take over how the caller's stands. */
int tn_run(tn_session *s, int n, tn_tensor *const *roots)
{
    bool all = false;
    fenv_t host;
    s->explain->asked.root = n ? roots[0] : NULL;
    int status = settled(s, n, roots, &all);
    if (status || all) return status;
    feholdexcept(&host);
    status = run(s, n, roots);
    fesetenv(&host);
    if (!status) s->drawn = s->graph.draw;
    return status;
}

TN_AT(int, flush, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (tn_deferred(s)) {
        tn_asked_set(s, s->ending ? "step_end" : "flush", file, line);
        tn_run(s, 0, NULL);
        tn_asked_set(s, NULL, NULL, 0);
    }
    tn_check_fault(s);
    return s->graph.error.status;
}
