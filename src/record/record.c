/* record.c - entering and leaving an operator: handles become nodes, a call opens, what was recorded runs.
 * Start with tn_enter and tn_leave. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../runtime/session.h"

/* A stale handle's slot still knows its graph: slots are never given back before the session closes. */
static tn_graph *slot_graph(const tn_tensor *handle)
{
    return ((const tn_tensor *)((uintptr_t)handle & ~(uintptr_t)(TN_NODE_ALIGN - 1)))->graph;
}

tn_session *tn_slot_session(const tn_tensor *handle)
{
    tn_graph *g = handle ? slot_graph(handle) : NULL;
    return g ? g->session : NULL;
}

tn_tensor *tn_resolve_or_fail(const tn_tensor *handle, const char *op)
{
    tn_tensor *n = tn_resolve(handle);
    if (!n && handle)
        tn_fail(tn_slot_session(handle), TN_E_STALE, op, "the tensor %s", tn_stale_text(handle));
    return n;
}

/* Writes the name of the i-th of `args`: "argument 2 (weight)"; from an array "inputs[]" on, "tensor 2 of
 * inputs". */
static const char *argument(const char *args, int i, char *out, size_t size)
{
    const char *at = args;
    int k = 0;
    for (const char *next; k < i && (next = strchr(at, ',')); k++) at = next + 1;
    at += strspn(at, " &");
    int n = (int)strcspn(at, ",[");
    if (at[n] == '[')
        snprintf(out, size, "tensor %d of %.*s", i - k, n, at);
    else
        snprintf(out, size, "argument %d (%.*s)", i + 1, n, at);
    return out;
}

/* In this step, a persistent tensor is stood for by a version node: it keeps what the tensor's memory held
 * when it was first used, so that a later assignment makes a new version and changes no earlier reader. */
tn_tensor *tn_use(tn_tensor *n)
{
    if (!n || !(n->flags & TN_F_PERSISTENT)) return n;
    tn_graph *g = n->graph;
    bool gradient = n->flags & TN_F_GRADIENT; /* a backward writes there without an assignment */
    if (n->of && !(gradient && n->of->id < g->gradients_written)) return n->of;
    if (gradient && tn_gradient_room(g->session, n)) return NULL;
    /* the whole slab may have an assignment waiting that covers this tensor; where operators wait, the plan
     * puts whoever reads the new version behind it */
    if (g->pending_assigns && tn_run_open_ends(g->session, 0, NULL)) return NULL;
    tn_call *call = g->call;
    g->call = NULL;
    tn_tensor *v = tn_node_new(g, TN_OP_leaf, n->dtype, n->ndim, n->shape, 0, NULL);
    g->call = call;
    if (!v) return NULL;
    v->flags |= TN_F_VERSION | TN_F_DONE | (n->flags & (TN_F_REQUIRES_GRAD | TN_F_PARAM | TN_F_REFUSED));
    tn_node_stand_in(v, n);
    v->name = n->name;
    v->of = n;
    n->of = v;
    if (gradient) g->gradients_seen = g->n_nodes;
    return tn_node_hold(v) ? v : NULL;
}

/* The node a handle stands for; else the reason is in the session it belonged to. */
static bool enter_one(tn_scope *sc, tn_tensor **x, const char *args, int i)
{
    tn_tensor *n = tn_resolve(*x);
    if (!n || !n->graph) {
        char what[80];
        tn_graph *g = slot_graph(*x);
        if (g) tn_error_set(g, TN_E_STALE, "%s %s", argument(args, i, what, sizeof what), tn_stale_text(*x));
        sc->ok = false;
        return false;
    }
    if (!sc->g) sc->g = n->graph;
    if (sc->g != n->graph) {
        const char *here = sc->g->device->name, *there = n->graph->device->name;
        char devices[80] = "", what[80];
        if (strcmp(here, there)) snprintf(devices, sizeof devices, ", on %s and on %s", here, there);
        tn_error_set(
            sc->g, TN_E_SESSION,
            "its tensors belong to two sessions%s: %s is not of the session of those before it; tn_read it "
            "and make it anew with tn_from",
            devices, argument(args, i, what, sizeof what));
        sc->ok = false;
        return false;
    }
    *x = n;
    return true;
}

static const tn_scope none = {.entry = NULL, .note = -1};

/* The session is the first tensor's that is there, stale or not. */
static tn_graph *graph_of(int n, tn_tensor *const *x)
{
    for (int i = 0; i < n; i++)
        if (x[i]) return slot_graph(x[i]);
    return NULL;
}

/* Returns the tape's entry where the call repeats the one of the step before; else NULL. A call that is wrong
 * is no repetition: recording it reports the error. */
static tn_entry *repeats(tn_session *s, const tn_op_key *key, const char *name, int n, int n_all,
                         tn_tensor *const *x)
{
    tn_tensor *node[TN_MAX_OPERANDS];
    for (int i = 0; i < n_all; i++) {
        node[i] = x[i] ? tn_resolve(x[i]) : NULL;
        if ((!x[i] && i < n) || (x[i] && (!node[i] || node[i]->graph != &s->graph))) {
            tn_tape_cut(s);
            return NULL;
        }
    }
    return tn_tape_match(s, TN_ENTRY_OP, name, key, n_all, node);
}

/* Returns true where x looks into memory that an assignment which still waits will take. A copy is put ahead
 * of that assignment, whatever else this call reads: what it reads besides may come of the new value. */
static bool is_overtaken(const tn_tensor *x)
{
    const tn_tensor *b = x->base;
    return b->flags & TN_F_LOST && b->lost_to && !(b->lost_to->flags & TN_F_DONE);
}

/* Begins a recorded call on n_all handles, of which the first n must be there, and takes them to their nodes.
 * args names them (argument). *sc is the caller's result, so that it is not copied as soon as it is written.
 */
static void enter(tn_scope *sc, tn_graph *g, const tn_op_key *key, const char *name, const char *file,
                  int line, const char *args, int n, int n_all, tn_tensor **x)
{
    *sc = none;
    if (!g) return;
    tn_session *s = g->session;
    bool outer = g->call_depth == s->tape.region;
    sc->g = g;
    if (outer && s->tape.active) {
        sc->entry = key ? repeats(s, key, name, n, n_all, x) : NULL;
        if (sc->entry) {
            sc->first = sc->entry->first;
            return;
        }
    }
    if (outer && !key) tn_tape_end(s);
    const bool placed = !file && !g->call_depth; /* by tn_place_begin, if at all */
    sc->ok = tn_call_begin(g, name, placed ? g->place.file : file, placed ? g->place.line : line) != NULL;
    sc->first = g->n_nodes;
    if (!sc->ok) return;
    tn_tensor *given[TN_MAX_OPERANDS];
    char what[80];
    for (int i = 0; i < n; i++) /* a NULL that follows from an earlier error is not worth another word */
        if (!x[i] && sc->ok) {
            tn_error_set(g, TN_E_NULL, "%s is NULL%s", argument(args, i, what, sizeof what), s->no_gradient);
            sc->ok = false;
        }
    for (int i = 0; i < n_all && sc->ok; i++) {
        given[i] = NULL;
        if (!x[i]) continue;
        if (!enter_one(sc, &x[i], args, i)) break;
        given[i] = x[i];
        x[i] = tn_use(x[i]);
        sc->ok = x[i] != NULL;
    }
    if (outer && key && sc->ok)
        sc->note = tn_tape_note(s, TN_ENTRY_OP, name, key, n_all, given, x, sc->first);
    for (int i = 0; i < n_all && sc->ok; i++) {
        if (x[i] && is_overtaken(x[i])) x[i] = tn_mk_contiguous(x[i]);
        sc->ok = sc->ok && (!given[i] || x[i]);
    }
    sc->first = g->n_nodes;
}

tn_scope tn_enter_named(const tn_op_key *key, const char *name, const char *file, int line, const char *args,
                        int n, int n_optional, ...)
{
    enum { MOST = 8 };
    tn_scope sc;
    tn_tensor **at[MOST], *x[MOST];
    int n_all = n + n_optional;
    va_list ap;
    va_start(ap, n_optional);
    for (int i = 0; i < n_all; i++) x[i] = *(at[i] = va_arg(ap, tn_tensor **));
    va_end(ap);
    enter(&sc, graph_of(n, x), key, name, file, line, args, n, n_all, x);
    for (int i = 0; i < n_all; i++) *at[i] = x[i];
    return sc;
}

tn_scope tn_enter_list_as(const tn_op_key *key, const char *name, const char *file, int line,
                          const char *args, int n, tn_tensor **x)
{
    tn_scope sc;
    enter(&sc, graph_of(n, x), key, name, file, line, args, n, n, x);
    return sc;
}

tn_scope tn_enter_session_as(const tn_op_key *key, tn_session *s, const char *name, const char *file,
                             int line)
{
    tn_scope sc;
    enter(&sc, s ? &s->graph : NULL, key, name, file, line, NULL, 0, 0, NULL);
    return sc;
}

tn_scope tn_enter_session(tn_session *s, const char *name, const char *file, int line)
{
    return tn_enter_session_as(NULL, s, name, file, line);
}

tn_tensor *tn_leave(tn_scope *sc, tn_tensor *result)
{
    return tn_leave_many(sc, 1, &result) == TN_OK ? result : NULL;
}

int tn_leave_many(tn_scope *sc, int n, tn_tensor **results)
{
    if (sc->entry) { /* the nodes of the step before */
        tn_tensor **made = tn_entry_results(&sc->g->session->tape, sc->entry);
        for (int i = 0; i < n; i++) results[i] = tn_handle(made[i]);
        return TN_OK;
    }
    if (!sc->g) {
        for (int i = 0; i < n; i++) results[i] = NULL;
        return TN_E_NULL;
    }
    tn_graph *g = sc->g;
    bool outermost = g->call_depth == 1, complete = sc->ok;
    for (int i = 0; i < n; i++) { /* an operator that has nothing to do gives a result like any other */
        if (complete && results[i] && results[i]->id < sc->first) results[i] = tn_mk_alias(results[i]);
        complete = complete && results[i];
    }
    int status = complete ? TN_OK : g->error.status ? g->error.status : TN_E_NULL;
    /* Only the outermost call runs: what is inside it is not a framework operator's boundary. */
    if (complete && outermost && !tn_deferred(g->session))
        status =
            g->pending_assigns ? tn_run_open_ends(g->session, n, results) : tn_run(g->session, n, results);
    if (status == TN_OK) tn_tape_done(g->session, sc->note, n, results);
    tn_call_end(g);
    for (int i = 0; i < n; i++) results[i] = status == TN_OK ? tn_handle(results[i]) : NULL;
    if (outermost && g->outside) tn_outside_made(g->session);
    return status;
}
