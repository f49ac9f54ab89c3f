/* open.c - a session is put together, and taken apart. Start with tn_session_open. */
#include "../../include/tensor_extend.h"
#include "../check/check.h"
#include "../runtime/ranks.h"
#include "../runtime/tune.h"
#include "join.h"

#include <limits.h>
#include <string.h>

static void log_stderr(int level, const char *text, void *user)
{
    (void)user;
    if (level <= TN_LOG_WARN) fprintf(stderr, "libtensor: %s\n", text);
}

/* ---- opening ---- */

/* The program's word comes first; where it leaves the choice to a variable that means nothing, there is no
 * session: training on another device, or in another way, than was asked for helps nobody. */
static bool pick(tn_options *o, const tn_settings *from)
{
    const struct {
        const char *name, *wants;
        int value, most; /* from 0 on */
    } own[] = {
        {"threads", "0, for all there are, or more", o->threads, INT_MAX},
        {"gpu", "0 or more", o->gpu, INT_MAX},
        {"mode", "TN_MODE_AUTO, TN_FUSED or TN_EAGER", (int)o->mode, TN_EAGER},
        {"precision", "TN_PRECISION_F32, _TF32, _BF16 or _F16", (int)o->precision, TN_PRECISION_F16},
        {"device", "TN_AUTO, TN_CPU, TN_CUDA or TN_REF", (int)o->device, TN_REF},
        {"comm", "TN_COMM_AUTO, TN_COMM_NONE or TN_COMM_MPI", (int)o->comm, TN_COMM_MPI},
    };
    const struct {
        const char *name, *said, *accepts;
    } variable[] = {
        {"TENSOR_DEVICE", o->device == TN_AUTO ? from->bad_device : NULL, TN_ACCEPTED_DEVICES},
        {"TENSOR_MODE", o->mode == TN_MODE_AUTO ? from->bad_mode : NULL, TN_ACCEPTED_MODES},
    };
    TN_EACH(v, own, sizeof own / sizeof *own) {
        if (v->value >= 0 && v->value <= v->most) continue;
        tn_say(o, TN_LOG_ERROR, "no session: %s is %d, must be %s", v->name, v->value, v->wants);
        return false;
    }
    TN_EACH(v, variable, sizeof variable / sizeof *variable) {
        if (!v->said) continue;
        tn_say(o, TN_LOG_ERROR, "no session: %s is '%.100s', accepted: %s", v->name, v->said, v->accepts);
        return false;
    }
    if (o->device == TN_AUTO) o->device = from->device;
    if (!o->gpu) o->gpu = from->gpu;
    if (o->precision == TN_PRECISION_F32) o->precision = from->precision;
    if (o->mode == TN_MODE_AUTO) o->mode = from->mode == TN_EAGER ? TN_EAGER : TN_FUSED;
    return true;
}

static int open_device(tn_session *s, const char *planned)
{
    tn_errbuf err = {""};
    tn_device_options d = {s->options.threads,  s->options.cache_dir, s->options.log,
                           s->options.log_user, s->options.gpu,       planned};
    int status = TN_E_UNSUPPORTED;
    bool driver = false;
    switch (s->options.device) {
    case TN_AUTO:
        if (!tn_cuda_open(&d, &s->device, &driver, &err)) return TN_OK;
        /* where there is not even a driver, nobody expects a GPU to be used */
        tn_say(&s->options, driver ? TN_LOG_WARN : TN_LOG_INFO, "running on the CPU: %s", err.text);
        status = tn_cpu_open(&d, &s->device, &err);
        break;
    case TN_CPU: status = tn_cpu_open(&d, &s->device, &err); break;
    case TN_REF: status = tn_ref_open(&d, &s->device, &err); break;
    case TN_CUDA: status = tn_cuda_open(&d, &s->device, NULL, &err); break;
    }
    if (status)
        tn_say(&s->options, TN_LOG_ERROR, "cannot open a device: %s",
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

/* Installs those who look on as plans are made and run: TENSOR_DEBUG's output and checked mode. */
static bool look_on(tn_session *s, const tn_settings *from)
{
    s->explain = tn_calloc(1, sizeof *s->explain);
    if (!s->explain) return false;
    tn_debug_open(s->explain, from);
    if (from->check) tn_check_open(s->explain);
    return true;
}

static void look_no_more(tn_session *s)
{
    if (!s->explain) return;
    tn_check_free(s->explain);
    tn_debug_close(s->explain);
    tn_log_free(s);
}

/* Another rank than the first says its errors, and nothing else. */
static void log_rank(int level, const char *text, void *user)
{
    const tn_session *s = user;
    char line[1500];
    if (level > TN_LOG_ERROR) return;
    snprintf(line, sizeof line, "rank %d: %s", tn_rank(s), text);
    s->log(level, line, s->log_user);
}

static bool connect_ranks(tn_session *s)
{
    if (!s->ranks) return true;
    s->log = s->options.log;
    s->log_user = s->options.log_user;
    if (tn_rank(s)) {
        s->options.log = log_rank;
        s->options.log_user = s;
    }
    return !tn_join_device(s);
}

tn_session *tn_session_open(const tn_options *options)
{
    tn_options o = {.size = sizeof o};
    if (options) memcpy(&o, options, options->size && options->size < sizeof o ? options->size : sizeof o);
    if (!o.log) o.log = log_stderr;
    tn_settings from = tn_settings_read(o.log, o.log_user);
    if (!pick(&o, &from)) return NULL;
    if (o.memory_budget < 0) {
        tn_say(&o, TN_LOG_ERROR, "no session: memory_budget is %lld bytes; 0 is any number",
               (long long)o.memory_budget);
        return NULL;
    }
    tn_session *s = tn_calloc(1, sizeof *s);
    if (!s) {
        tn_say(&o, TN_LOG_ERROR, "no memory for a session");
        return NULL;
    }
    s->options = o;
    s->mode = o.mode;
    s->rank_weight = 1;
    s->apart = (size_t)1 << 16;
    s->budget.bytes = o.memory_budget;
    s->graph.session = s;
    s->graph.seed = o.seed;
    s->graph.unpark = unpark;
    s->tape.off = !from.replay;
    tn_graph_init(&s->graph);
    s->plans = tn_plan_cache_new(from.plans);
    const bool room = s->plans && look_on(s, &from);
    if (!room) tn_say(&o, TN_LOG_ERROR, "no memory for a session");
    if (!room || tn_join(&o, from.comm_timeout, &s->ranks) ||
        open_device(s, o.device == TN_CUDA ? from.planned : NULL) || !connect_ranks(s)) {
        if (s->device) s->device->close(s->device);
        tn_ranks_close(s);
        look_no_more(s);
        tn_plan_cache_free(s->plans);
        tn_graph_free(&s->graph);
        tn_free_mem(s);
        return NULL;
    }
    s->graph.device = s->device;
    if (s->device->runs_nothing) s->explain->measure = false;
    s->target = s->device->target;
    s->target.tf32 = o.precision == TN_PRECISION_TF32;
    s->graph.products = tn_products_of(o.precision);
    s->f16 = o.precision == TN_PRECISION_F16;
    tn_profile_choose(s);
    if (tn_tune_open(s)) {
        tn_say(&o, TN_LOG_ERROR, "no memory for a session");
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
    while (s->n_closers) {
        struct tn_closer c = s->closers[--s->n_closers];
        c.fn(c.arg);
    }
    tn_ranks_close(s);
    tn_free_mem(s->closers);
    tn_free_mem(s->watch);
    tn_free_mem(s->scope);
    tn_graph_reset(&s->graph);
    if (s->graph.aside.there) tn_graph_take_back(&s->graph);
    tn_graph_reset(&s->graph);
    tn_tape_free(s);
    tn_state_free(s);
    tn_flush_free(s);
    look_no_more(s);
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
    if (!tn_reserve(&s->closers, &s->cap_closers, s->n_closers + 1, sizeof *s->closers))
        return tn_fail(s, TN_E_NOMEM, "on_close", "no memory");
    s->closers[s->n_closers++] = (struct tn_closer){fn, arg};
    return TN_OK;
}

void *tn_on_close_arg(const tn_session *s, void (*fn)(void *))
{
    for (int i = 0; s && i < s->n_closers; i++)
        if (s->closers[i].fn == fn) return s->closers[i].arg;
    return NULL;
}

/* ---- asking ---- */

tn_session *tn_open_beside(const tn_session *s)
{
    const tn_options o = {.size = sizeof o,
                          .device = s->options.device,
                          .mode = TN_FUSED,
                          .comm = TN_COMM_NONE,
                          .threads = s->device->threads,
                          .cache_dir = s->options.cache_dir,
                          .log = s->options.log,
                          .log_user = s->options.log_user};
    tn_session *m = tn_session_open(&o);
    if (m) tn_look_away(m);
    if (m) tn_profile(m, true);
    return m;
}
