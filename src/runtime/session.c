/* session.c - opening, closing, steps, errors, statistics. Start with tn_open_with. */
#include "../core/placed.h"
#include "../core/print.h"
#include "explain.h"
#include "tune.h"

#include <stdarg.h>
#include <string.h>

static void log_stderr(int level, const char *text, void *user)
{
    (void)user;
    if (level <= TN_LOG_WARN) fprintf(stderr, "libtensor: %s\n", text);
}

static void say(const tn_options *o, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void say(const tn_options *o, int level, const char *fmt, ...)
{
    char text[1400];
    va_list ap;
    va_start(ap, fmt);
    tn_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    o->log(level, text, o->log_user);
}

const char *tn_version(void)
{
    return "0.1.0";
}

const char *tn_status_text(int status)
{
    switch (status) {
#define TN_X(name, value, text)                                                                              \
    case value:                                                                                              \
        return text;
        TN_STATUSES(TN_X)
#undef TN_X
    }
    return "unknown status";
}

/* ---- opening ---- */

/* The program's word comes first; where it leaves the choice to a variable that means nothing, there is no
 * session: training on another device, or in another way, than was asked for helps nobody. */
static bool pick(tn_options *o, const tn_settings *from)
{
    if (o->threads < 0) {
        say(o, TN_LOG_ERROR, "no session: threads is %d, must be 0, for all there are, or more", o->threads);
        return false;
    }
    if ((unsigned)o->mode > TN_EAGER) {
        say(o, TN_LOG_ERROR, "no session: mode is %d, must be TN_MODE_AUTO, TN_FUSED or TN_EAGER",
            (int)o->mode);
        return false;
    }
    if ((unsigned)o->precision > TN_PRECISION_TF32) {
        say(o, TN_LOG_ERROR, "no session: precision is %d, must be TN_PRECISION_F32 or TN_PRECISION_TF32",
            (int)o->precision);
        return false;
    }
    if ((unsigned)o->device > TN_REF) {
        say(o, TN_LOG_ERROR, "no session: device is %d, must be TN_AUTO, TN_CPU, TN_CUDA or TN_REF",
            (int)o->device);
        return false;
    }
    if (o->device == TN_AUTO && from->bad_device) {
        say(o, TN_LOG_ERROR, "no session: TENSOR_DEVICE is '%.100s', accepted: " TN_ACCEPTED_DEVICES,
            from->bad_device);
        return false;
    }
    if (o->mode == TN_MODE_AUTO && from->bad_mode) {
        say(o, TN_LOG_ERROR, "no session: TENSOR_MODE is '%.100s', accepted: " TN_ACCEPTED_MODES,
            from->bad_mode);
        return false;
    }
    if (o->device == TN_AUTO) o->device = from->device;
    if (o->precision == TN_PRECISION_F32) o->precision = from->precision;
    if (o->mode == TN_MODE_AUTO) o->mode = from->mode == TN_EAGER ? TN_EAGER : TN_FUSED;
    return true;
}

static int open_device(tn_session *s)
{
    tn_errbuf err = {""};
    tn_device_options d = {s->options.threads, s->options.cache_dir, s->options.log, s->options.log_user};
    int status = TN_E_UNSUPPORTED;
    bool driver = false;
    switch (s->options.device) {
    case TN_AUTO:
        if (!tn_cuda_open(&d, &s->device, &driver, &err)) return TN_OK;
        /* where there is not even a driver, nobody expects a GPU to be used */
        say(&s->options, driver ? TN_LOG_WARN : TN_LOG_INFO, "running on the CPU: %s", err.text);
        status = tn_cpu_open(&d, &s->device, &err);
        break;
    case TN_CPU:
        status = tn_cpu_open(&d, &s->device, &err);
        break;
    case TN_REF:
        status = tn_ref_open(&d, &s->device, &err);
        break;
    case TN_CUDA:
        status = tn_cuda_open(&d, &s->device, NULL, &err);
        break;
    }
    if (status)
        say(&s->options, TN_LOG_ERROR, "cannot open a device: %s",
            err.text[0] ? err.text : tn_status_text(status));
    return status;
}

/* Something is about to be recorded into the graph of the step before: in a step, as a departure from it. */
static void unpark(tn_graph *g)
{
    if (g->session->tape.active)
        tn_tape_cut(g->session);
    else
        tn_graph_set_aside(g);
}

tn_session *tn_open_with(const tn_options *options)
{
    tn_options o = {.size = sizeof o};
    if (options) memcpy(&o, options, options->size && options->size < sizeof o ? options->size : sizeof o);
    if (!o.log) o.log = log_stderr;
    tn_settings from = tn_settings_read(o.log, o.log_user);
    if (!pick(&o, &from)) return NULL;
    tn_session *s = tn_calloc(1, sizeof *s);
    if (!s) {
        say(&o, TN_LOG_ERROR, "no memory for a session");
        return NULL;
    }
    s->options = o;
    s->mode = o.mode;
    s->graph.session = s;
    s->graph.seed = o.seed;
    s->graph.unpark = unpark;
    s->tape.off = !from.replay;
    tn_graph_init(&s->graph);
    s->plans = tn_plan_cache_new(from.plans);
    const bool room = s->plans && tn_explain_open(s, &from);
    if (!room) say(&o, TN_LOG_ERROR, "no memory for a session");
    if (!room || open_device(s)) {
        tn_explain_close(s);
        tn_plan_cache_free(s->plans);
        tn_graph_free(&s->graph);
        tn_free_mem(s);
        return NULL;
    }
    s->graph.device = s->device;
    s->target = s->device->target;
    s->target.tf32 = o.precision == TN_PRECISION_TF32;
    tn_profile_choose(s);
    if (tn_tune_open(s)) {
        say(&o, TN_LOG_ERROR, "no memory for a session");
        tn_close(s);
        return NULL;
    }
    return s;
}

int tn_close(tn_session *s)
{
    if (!s) return TN_OK;
    if (s->device->take_fault && !s->graph.error.status) { /* what has run may have failed unseen */
        if (s->device->sync(s->device)) tn_device_error(s, "close");
        tn_check_fault(s);
    }
    int status = s->graph.error.status;
    s->closing = true;
    while (s->n_closers) {
        struct tn_closer c = s->closers[--s->n_closers];
        c.fn(c.arg);
    }
    tn_free_mem(s->closers);
    tn_free_mem(s->watch);
    tn_graph_reset(&s->graph);
    tn_tape_free(s);
    tn_state_free(s);
    tn_flush_free(s);
    tn_explain_close(s);
    tn_plan_cache_free(s->plans);
    tn_graph_free(&s->graph);
    s->device->close(s->device);
    tn_tune_close(s);
    tn_free_mem(s->profile);
    tn_free_mem(s);
    return status;
}

int tn_on_close(tn_session *s, void (*fn)(void *), void *arg)
{
    if (!s) return TN_E_NULL;
    if (!fn) return tn_fail(s, TN_E_NULL, "on_close", "fn is NULL");
    if (s->n_closers == s->cap_closers) {
        int cap = s->cap_closers ? 2 * s->cap_closers : 8;
        struct tn_closer *p = tn_realloc(s->closers, (size_t)cap * sizeof *p);
        if (!p) return tn_fail(s, TN_E_NOMEM, "on_close", "no memory");
        s->closers = p;
        s->cap_closers = cap;
    }
    s->closers[s->n_closers++] = (struct tn_closer){fn, arg};
    return TN_OK;
}

void *tn_on_close_arg(const tn_session *s, void (*fn)(void *))
{
    for (int i = 0; s && i < s->n_closers; i++)
        if (s->closers[i].fn == fn) return s->closers[i].arg;
    return NULL;
}

/* ---- errors ---- */

int tn_error(const tn_session *s)
{
    return s ? s->graph.error.status : TN_E_NULL;
}

const char *tn_error_text(const tn_session *s)
{
    return !s ? "no session" : s->graph.error.status ? s->graph.error.text : "";
}

void tn_clear_error(tn_session *s)
{
    if (!s) return;
    if (s->graph.error.status && s->in_step) tn_tape_end(s);
    s->graph.error = (tn_error_state){0};
    if (s->device->take_fault && !s->device->sync(s->device)) s->device->take_fault(s->device, &s->fault);
    s->fault = (tn_fault){0};
}

int tn_fail(tn_session *s, int status, const char *op, const char *format, ...)
{
    if (!s) return status;
    char text[400];
    va_list ap;
    va_start(ap, format);
    tn_vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (s->graph.call)
        tn_error_set(&s->graph, status, "%s: %s", op, text);
    else {
        tn_call here = {.name = op};
        s->graph.call = &here;
        tn_error_set(&s->graph, status, "%s", text);
        s->graph.call = NULL;
    }
    return status;
}

void tn_place_begin(tn_session *s, const char *file, int line)
{
    if (s && s->graph.place.depth++ == 0) {
        s->graph.place.file = file;
        s->graph.place.line = line;
    }
}

void tn_place_end(tn_session *s)
{
    if (s && s->graph.place.depth && --s->graph.place.depth == 0) s->graph.place.file = NULL;
}

void tn_warn(const tn_session *s, const char *format, ...)
{
    if (!s) return;
    char text[1400];
    va_list ap;
    va_start(ap, format);
    tn_vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    say(&s->options, TN_LOG_WARN, "%s", text);
}

/* ---- steps ---- */

/* Device memory that is higher at the end of each of three steps running is a leak in the making; not where
 * a step was planned anew, as its shapes are others and memory as well. */
static void watch_growth(tn_session *s)
{
    size_t now = s->device->stats.bytes_now;
    bool planned = s->stats.plans != s->growth_plans;
    s->growth_plans = s->stats.plans;
    s->growing = now > s->live_high && s->live_high && !planned ? s->growing + 1 : 0;
    if (now > s->live_high) s->live_high = now; /* never less: lengths that come and go are no leak */
    if (s->growing == 3)
        say(&s->options, TN_LOG_WARN,
            "device memory has grown in three steps running, now %zu bytes: tensors "
            "made outside of steps live until tn_free",
            now);
}

void tn_end_scope(tn_session *s)
{
    tn_graph_reset(&s->graph);
    s->flushed = 0;
    s->n_watch = 0;
    s->outside.calls = s->outside.next = s->outside.freed = 0;
}

/* A tn_op_begin without its end: whatever is called from there on would count as part of it. */
static void close_op(tn_session *s, const char *here)
{
    if (!s->graph.call_depth) return;
    tn_tape_end(s);
    const char *name = s->graph.call ? s->graph.call->name : "";
    s->graph.call_depth = s->tape.region = 0;
    s->graph.call = NULL;
    tn_fail(s, TN_E_STATE, here, "the operator '%s' was begun (tn_op_begin) and not ended (tn_op_end)", name);
}

int tn_step_begin(tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (s->in_step) return tn_fail(s, TN_E_STATE, "step_begin", "the step before was not ended");
    close_op(s, "step_begin");
    if (!s->graph.parked) tn_end_scope(s);
    s->graph.outside = false;
    if (s->graph.aside.there) tn_graph_take_back(&s->graph);
    tn_step_log_begin(s);
    s->step_runs = s->stats.runs;
    s->drawn = s->step_draw = s->graph.draw;
    s->in_step = true;
    s->went_back = false;
    s->went_back_outside = 0;
    tn_tape_begin(s);
    return s->graph.error.status;
}

TN_PLACED(int, step_begin, s, (s), tn_session *s)

int tn_step_end(tn_session *s)
{
    return tn_step_end_at(s, NULL, 0);
}

static int no_step(tn_session *s, const char *file, int line)
{
    tn_place_begin(s, file, line);
    tn_fail(s, TN_E_STATE, "step_end", "no step was begun");
    tn_place_end(s);
    return TN_E_STATE;
}

int tn_step_end_at(tn_session *s, const char *file, int line)
{
    if (!s) return TN_E_NULL;
    if (!s->in_step) return no_step(s, file, line);
    tn_require_left_open(s);
    if (s->graph.call_depth) {
        tn_place_begin(s, file, line);
        close_op(s, "step_end");
        tn_place_end(s);
    }
    s->ending = true;
    tn_flush_at(s, file, line);
    /* What has not taken effect has drawn nothing either: the step that is tried again draws the same. */
    if (s->graph.error.status) s->graph.draw = s->drawn;
    tn_watch_collect(s);
    int n_watched = s->n_watch;
    s->ending = false;
    tn_step_log_end(s);
    if (!tn_tape_park(s)) tn_end_scope(s);
    s->flushed = 0;
    s->n_watched = n_watched;
    s->n_watch = 0;
    s->in_step = false;
    s->graph.outside = true;
    s->stats.steps++;
    s->stats.backward_steps += s->went_back;
    watch_growth(s);
    return s->graph.error.status;
}

int tn_flush(tn_session *s)
{
    return tn_flush_at(s, NULL, 0);
}

int tn_flush_at(tn_session *s, const char *file, int line)
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

/* ---- asking ---- */

const char *tn_device_name(const tn_session *s)
{
    return s ? s->device->name : "none";
}
int tn_threads(const tn_session *s)
{
    return s ? s->device->threads : 0;
}
uint64_t tn_seed(const tn_session *s)
{
    return s ? s->graph.seed : 0;
}
uint64_t tn_rng_draw(const tn_session *s)
{
    return s ? s->graph.draw : 0;
}

int tn_set_rng(tn_session *s, uint64_t seed, uint64_t draw)
{
    if (!s) return TN_E_NULL;
    s->graph.seed = seed;
    s->graph.draw = s->drawn = s->step_draw = draw;
    return TN_OK;
}

int tn_train(tn_session *s, bool on)
{
    if (!s) return TN_E_NULL;
    s->graph.training = on;
    return TN_OK;
}

bool tn_is_training(const tn_session *s)
{
    return s && s->graph.training;
}

int tn_no_grad_begin(tn_session *s)
{
    if (!s) return TN_E_NULL;
    s->graph.no_grad++;
    return TN_OK;
}

int tn_no_grad_end(tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (!s->graph.no_grad) return tn_fail(s, TN_E_STATE, "no_grad_end", "without tn_no_grad_begin");
    s->graph.no_grad--;
    return TN_OK;
}

TN_PLACED(int, no_grad_end, s, (s), tn_session *s)

int tn_get_stats(const tn_session *s, tn_stats *out)
{
    if (!s || !out) return TN_E_NULL;
    tn_stats v = s->stats;
    v.size = sizeof v;
    v.nodes = s->graph.total_nodes;
    v.replayed = s->tape.hits;
    v.copies = s->device->stats.copies;
    v.reorders = s->device->stats.reorders;
    v.compiled = s->device->stats.compiled;
    v.cache_hits = s->device->stats.cache_hits;
    v.bytes_now = s->device->stats.bytes_now;
    v.bytes_peak = s->device->stats.bytes_peak;
    memcpy(out, &v, out->size && out->size < sizeof v ? out->size : sizeof v);
    return TN_OK;
}

/* ---- user's own composites ---- */

int tn_op_begin(tn_session *s, const char *name)
{
    if (!s) return TN_E_NULL;
    if (!name) return tn_fail(s, TN_E_NULL, "op_begin", "name is NULL");
    tn_tape *t = &s->tape;
    bool outer = s->graph.call_depth == t->region;
    static const char region[] = "region";
    const tn_op_key key = {.part = {name}, .bytes = {strlen(name)}}; /* wherever the text stands */
    tn_entry *e = outer ? tn_tape_match(s, TN_ENTRY_OPEN, region, &key, 0, NULL) : NULL;
    if (e) {
        t->region++;
        s->graph.call_depth++;
        s->graph.call = e->call;
        return TN_OK;
    }
    if (outer && tn_call_begin(&s->graph, name, NULL, 0)) {
        int at = tn_tape_note(s, TN_ENTRY_OPEN, region, &key, 0, NULL, NULL, s->graph.n_nodes);
        tn_tape_done(s, at, 0, NULL);
        t->region++;
        return TN_OK;
    }
    if (outer) return s->graph.error.status;
    return tn_call_begin(&s->graph, name, NULL, 0) ? TN_OK : s->graph.error.status;
}

TN_PLACED(int, op_begin, s, (s, name), tn_session *s, const char *name)

int tn_run_open_ends(tn_session *s, int n, tn_tensor *const *results)
{
    tn_graph *g = &s->graph;
    uint32_t first = g->call ? g->call->first : g->n_nodes;
    uint32_t mark = ++g->mark;
    for (uint32_t i = first; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i]->n_in; k++) g->nodes[i]->in[k]->mark = mark;
    tn_tensor **root = tn_malloc((g->n_nodes - first + (uint32_t)n + 1) * sizeof *root);
    if (!root) return tn_fail(s, TN_E_NOMEM, "op_end", "no memory");
    for (int i = 0; i < n; i++) root[i] = results[i];
    for (uint32_t i = first; i < g->n_nodes; i++) {
        tn_tensor *t = g->nodes[i];
        bool assigns = tn_op_get((tn_op)t->op)->kind == TN_KIND_ASSIGN && !(t->flags & TN_F_REFUSED);
        if (assigns || ((t->flags & TN_F_USER) && t->mark != mark)) root[n++] = t;
    }
    g->pending_assigns = 0;
    int status = n ? tn_run(s, n, root) : TN_OK;
    tn_free_mem(root);
    return status;
}

int tn_op_end(tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (!s->graph.call_depth) return tn_fail(s, TN_E_STATE, "op_end", "without tn_op_begin");
    int status = s->graph.error.status;
    tn_tape *t = &s->tape;
    if (t->region == s->graph.call_depth) {
        static const char end[] = "end";
        if (!tn_tape_match(s, TN_ENTRY_CLOSE, end, TN_NO_ATTR, 0, NULL))
            tn_tape_done(s, tn_tape_note(s, TN_ENTRY_CLOSE, end, TN_NO_ATTR, 0, NULL, NULL, s->graph.n_nodes),
                         0, NULL);
        t->region--;
    }
    if (s->graph.call_depth == 1 && !status && !tn_deferred(s)) {
        s->region_ends = true;
        status = tn_run_open_ends(s, 0, NULL);
        s->region_ends = false;
    }
    tn_call_end(&s->graph);
    return status;
}

TN_PLACED(int, op_end, s, (s), tn_session *s)
