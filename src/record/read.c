/* read.c - values back to the host: item, read, watch, print, and what a handle can be asked.
 * Start with fetch. */
#include <math.h>

#include "../core/convert.h"
#include "../../include/tensor_extend.h"
#include "../core/print.h"
#include "../runtime/log.h"
#include "../runtime/session.h"

/* ---- questions that need no value ---- */

static const tn_tensor *look(const tn_tensor *h) { return h ? tn_resolve(h) : NULL; }

int tn_ndim(const tn_tensor *x)
{
    const tn_tensor *n = look(x);
    return n ? n->ndim : -1;
}

int64_t tn_dim(const tn_tensor *x, int axis)
{
    const tn_tensor *n = look(x);
    if (!n) return -1;
    if (axis < 0) axis += n->ndim;
    return axis < 0 || axis >= n->ndim ? -1 : n->shape[axis];
}

int64_t tn_numel(const tn_tensor *x)
{
    const tn_tensor *n = look(x);
    return n ? tn_node_numel(n) : -1;
}

tn_dtype tn_dtype_of(const tn_tensor *x)
{
    const tn_tensor *n = look(x);
    return n ? n->dtype : TN_DTYPE_COUNT;
}

const char *tn_name(const tn_tensor *x)
{
    const tn_tensor *n = look(x);
    return n && n->name ? n->name : "";
}

tn_session *tn_session_of(const tn_tensor *x)
{
    const tn_tensor *n = look(x);
    return n ? n->graph->session : NULL;
}

TN_DEFINE(int, set_name, tn_slot_session(x), (x, name), tn_tensor *x, const char *name)
{
    tn_tensor *n = x ? tn_resolve_or_fail(x, "set_name") : NULL;
    if (!n) return x ? TN_E_STALE : TN_E_NULL;
    if (!name) return tn_fail(n->graph->session, TN_E_NULL, "set_name", "name is NULL");
    if (n->flags & TN_F_PARAM)
        return tn_fail(n->graph->session, TN_E_STATE, "set_name", "a parameter keeps its name");
    if (n->flags & TN_F_PERSISTENT) {
        char *copy = tn_strdup(name);
        if (!copy) return tn_fail(n->graph->session, TN_E_NOMEM, "set_name", "no memory");
        tn_node_drop_name(n->graph, n);
        n->name = copy;
    } else if (n->id < n->graph->scope.first)
        return tn_fail(n->graph->session, TN_E_STATE, "set_name",
                       "the tensor was made before tn_scope_begin: name it outside of the scope");
    else if (!(n->name = tn_arena_strdup(&n->graph->arena, name)))
        return tn_fail(n->graph->session, TN_E_NOMEM, "set_name", "no memory");
    return TN_OK;
}

/* ---- values ---- */

/* A host copy of x's elements, row-major, in the dtype they are stored in. Free it with tn_free_mem. */
static void *fetch(tn_scope *sc, tn_tensor *x, tn_dtype *stored)
{
    if ((!sc->ok && !sc->entry) || sc->g->error.status) return NULL;
    tn_graph *g = sc->g;
    tn_session *s = g->session;
    if (sc->entry)
        x = tn_entry_results(&s->tape, sc->entry)[0];
    else {
        if (!tn_node_is_dense(x)) x = tn_mk_contiguous(x);
        if (!x) return NULL;
        tn_tape_done(s, sc->note, 1, &x);
    }
    *stored = tn_stored_dtype(g, x->dtype);
    size_t bytes = (size_t)tn_node_numel(x) * tn_dtype_size(*stored);
    void *host = tn_malloc(bytes); /* first: where there is none, nothing has run */
    if (!host) return tn_error_set(g, TN_E_NOMEM, "no host memory for %zu bytes", bytes);
    if (tn_run(s, 1, &x) || tn_check_fault(s)) {
        tn_free_mem(host);
        return NULL;
    }
    void *data = tn_node_data(x);
    tn_op op = x->base->op;
    if (!data && (op == TN_OP_scalar || op == TN_OP_constant)) { /* a number nothing has stored */
        tn_number v = x->base->attr->number;
        tn_convert(host, *stored, v.is_int ? (const void *)&v.i : &v.f, v.is_int ? TN_I64 : TN_F64, 1);
    } else if (s->device->download(s->device, host, data, bytes)) {
        tn_device_error(s, "the copy from the device failed");
        tn_free_mem(host);
        host = NULL;
    } else if (tn_check_fault(s)) { /* found by then, by what this waited for */
        tn_free_mem(host);
        host = NULL;
    }
    return host;
}

/* A read that finds its entry on the tape opens no call: who asked is noted apart. */
static tn_scope enter_read(const char *name, const char *file, int line, tn_tensor **x)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, name, file, line, 1, 0, x);
    if (sc.entry) *x = tn_entry_results(&sc.g->session->tape, sc.entry)[0];
    if (sc.g) tn_asked_set(sc.g->session, name, file, line);
    if (sc.g && sc.g->error.status) sc.ok = false; /* after an error there are no values to be had */
    return sc;
}

static void leave_read(tn_scope *sc)
{
    if (sc->g) tn_asked_set(sc->g->session, NULL, NULL, 0);
    if (sc->g && !sc->entry) tn_call_end(sc->g);
}

TN_AT(double, item, (x), tn_tensor *x)
{
    double v = NAN;
    tn_scope sc = enter_read("item", file, line, &x);
    if ((sc.ok || sc.entry) && tn_node_numel(x) != 1) {
        sc.ok = false;
        tn_error_set(sc.g, TN_E_SHAPE, "needs one element, shape is %s", TN_TENSOR_TEXT(x));
    }
    tn_dtype d = TN_F32;
    void *host = fetch(&sc, x, &d);
    if (host) v = tn_load_f64(host, d, 0);
    tn_free_mem(host);
    leave_read(&sc);
    return v;
}

static double value_now(const tn_tensor *n)
{
    tn_session *s = n->graph->session;
    tn_dtype stored = tn_stored_dtype(n->graph, n->dtype);
    double raw = 0;
    void *data = tn_node_data(n);
    if (!data || s->device->download(s->device, &raw, data, tn_dtype_size(stored))) return NAN;
    return tn_load_f64(&raw, stored, 0);
}

/* The value of n, which has run, as the number of the k-th call of tn_watch from now on. Where the device
 * runs later than it is told to, the newest that has arrived until then. */
static void watch_value(tn_session *s, int k, const tn_tensor *n)
{
    struct tn_watch_slot *w = &s->watch[k];
    tn_dtype d = n->dtype;
    void *data = s->device->post ? tn_node_data(n) : NULL;
    w->posted = data && !s->device->post(s->device, k, data, tn_dtype_size(d));
    w->dtype = d;
    if (!w->posted) w->value = value_now(n);
}

static double watched(tn_session *s, int k)
{
    struct tn_watch_slot *w = &s->watch[k];
    double raw = 0;
    if (w->posted && s->device->peek(s->device, k, &raw)) w->value = tn_load_f64(&raw, w->dtype, 0);
    return w->value;
}

/* Inside a step in fused mode, where operators wait, the k-th call of the step returns the value that the
 * k-th call of the step before asked for. */
double tn_watch(tn_tensor *x)
{
    tn_tensor *n = x ? tn_resolve(x) : NULL;
    if (!n || n->graph->error.status || tn_node_numel(n) != 1 || n->base->flags & TN_F_REFUSED) return NAN;
    tn_session *s = n->graph->session;
    bool done = n->base->flags & TN_F_DONE && !tn_write_pending(s, n);
    if (done && !(s->device->post && s->in_step)) return value_now(n);
    if (!done && !tn_deferred(s)) return NAN;
    static const char watch[] = "watch";
    if (!done && !tn_tape_match(s, TN_ENTRY_WATCH, watch, TN_NO_ATTR, 1, &n))
        tn_tape_done(s, tn_tape_note(s, TN_ENTRY_WATCH, watch, TN_NO_ATTR, 1, &n, &n, s->graph.n_nodes), 0,
                     NULL);
    const int had = s->cap_watch;
    if (!tn_reserve(&s->watch, &s->cap_watch, s->n_watch + 1, sizeof *s->watch)) return NAN;
    for (int i = had; i < s->cap_watch; i++) s->watch[i] = (struct tn_watch_slot){.value = NAN};
    int k = s->n_watch++;
    if (done) {
        s->watch[k].node = NULL;
        watch_value(s, k, n);
    } else {
        n->flags |= TN_F_WATCHED;
        s->watch[k].node = n;
    }
    return watched(s, k);
}

int tn_watches(const tn_session *s) { return s ? s->n_watch : 0; }

double tn_watched(tn_session *s, int i)
{
    return s && !s->in_step && i >= 0 && i < s->n_watched ? watched(s, i) : NAN;
}

void tn_watch_collect(tn_session *s)
{
    for (int i = 0; i < s->n_watch; i++) {
        struct tn_watch_slot *w = &s->watch[i];
        if (w->node && w->node->base->flags & TN_F_DONE)
            watch_value(s, i, w->node);
        else if (w->node && !w->posted)
            w->value = NAN; /* an error ended the run before it */
        w->node = NULL;
    }
}

TN_AT(int, read, (x, dtype, out, bytes), tn_tensor *x, tn_dtype dtype, void *out, size_t bytes)
{
    tn_scope sc = enter_read("read", file, line, &x);
    tn_dtype d = TN_F32;
    bool ok = sc.ok || sc.entry;
    size_t n = ok ? (size_t)tn_node_numel(x) : 0;
    if (ok && (unsigned)dtype >= TN_DTYPE_COUNT) {
        sc.ok = false;
        tn_error_set(sc.g, TN_E_DTYPE, "unknown dtype %d", (int)dtype);
    } else if (ok && !out && n) {
        sc.ok = false;
        tn_error_set(sc.g, TN_E_NULL, "out is NULL");
    } else if (ok && bytes != n * tn_dtype_size(dtype)) {
        sc.ok = false;
        tn_error_set(sc.g, TN_E_ARG, "%zu bytes given, %zu elements of %s are %zu", bytes, n,
                     tn_dtype_name(dtype), n * tn_dtype_size(dtype));
    }
    void *host = fetch(&sc, x, &d);
    if (host && n) tn_convert(out, dtype, host, d, n);
    int status = host ? TN_OK : sc.g && sc.g->error.status ? sc.g->error.status : TN_E_NULL;
    tn_free_mem(host);
    leave_read(&sc);
    return status;
}

/* ---- printing ---- */

enum { EDGE = 3, LONG_AXIS = 8 };

static void print_one(FILE *out, const void *host, tn_dtype stored, tn_dtype shown, size_t i)
{
    double v = tn_load_f64(host, stored, i);
    if (shown == TN_BOOL)
        fprintf(out, "%s", v != 0 ? "true" : "false");
    else if (tn_dtype_is_float(shown))
        tn_fprintf(out, "%.6g", v);
    else
        fprintf(out, "%lld", (long long)tn_load_i64(host, stored, i));
}

static void print_axis(FILE *out, const tn_tensor *x, const void *host, tn_dtype stored, int axis,
                       size_t first)
{
    if (axis == x->ndim) {
        print_one(out, host, stored, x->dtype, first);
        return;
    }
    size_t span = 1;
    for (int i = axis + 1; i < x->ndim; i++) span *= (size_t)x->shape[i];
    fputc('[', out);
    for (int64_t i = 0; i < x->shape[axis]; i++) {
        if (i && axis + 1 < x->ndim)
            fprintf(out, ",\n%*s", axis + 1, "");
        else if (i)
            fputs(", ", out);
        if (x->shape[axis] > LONG_AXIS && i == EDGE) {
            fputs("...", out);
            i = x->shape[axis] - EDGE - 1;
            continue;
        }
        print_axis(out, x, host, stored, axis + 1, first + (size_t)i * span);
    }
    fputc(']', out);
}

TN_AT(int, print, (x, out), tn_tensor *x, FILE *out)
{
    tn_scope sc = enter_read("print", file, line, &x);
    tn_dtype d = TN_F32;
    if (!out && (sc.ok || sc.entry)) tn_error_set(sc.g, TN_E_NULL, "out is NULL");
    void *host = fetch(&sc, x, &d);
    if (host) {
        fprintf(out, "%s%s%s %s\n", x->name ? x->name : "", x->name ? " " : "", tn_dtype_name(x->dtype),
                TN_SHAPE_TEXT(x->ndim, x->shape));
        print_axis(out, x, host, d, 0, 0);
        fputc('\n', out);
    }
    tn_free_mem(host);
    leave_read(&sc);
    return host ? TN_OK : sc.g && sc.g->error.status ? sc.g->error.status : TN_E_NULL;
}
