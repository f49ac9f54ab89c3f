/* record.c - entering and leaving an operator: handles become nodes, a call opens, what was recorded runs.
 * Start with tn_enter and tn_leave. */
#include <stdarg.h>

#include "session.h"

/* The node a handle stands for, or NULL with the reason in the session it belonged to. A stale handle's slot
 * still knows its graph: slots are never given back before the session closes. */
static tn_tensor *resolve(tn_tensor *handle)
{
    tn_tensor *n = tn_resolve(handle);
    if (n && n->graph) return n;
    tn_tensor *slot = (tn_tensor *)((uintptr_t)handle & ~(uintptr_t)(TN_NODE_ALIGN - 1));
    if (slot->graph) tn_error_set(slot->graph, TN_E_STALE, "a tensor was used after its step ended");
    return NULL;
}

/* In this step, a persistent tensor is stood for by a version node: it keeps what the tensor's memory held
 * when it was first used, so that a later assignment makes a new version and changes no earlier reader. */
tn_tensor *tn_use(tn_tensor *n)
{
    if (!n || !(n->flags & TN_F_PERSISTENT)) return n;
    tn_graph *g = n->graph;
    bool gradient = n->flags & TN_F_GRADIENT; /* a backward writes there without an assignment */
    if (n->of && !(gradient && n->of->id < g->gradients_written)) return n->of;
    /* the whole slab may have an assignment waiting that covers this tensor; where operators wait, the plan
     * puts whoever reads the new version behind it */
    if (g->pending_assigns && tn_run_open_ends(g->session, 0, NULL)) return NULL;
    tn_call *call = g->call;
    g->call = NULL;
    tn_tensor *v = tn_node_new(g, TN_OP_leaf, (tn_dtype)n->dtype, n->ndim, n->shape, 0, NULL);
    g->call = call;
    if (!v) return NULL;
    v->flags |= TN_F_VERSION | TN_F_DONE | (n->flags & (TN_F_REQUIRES_GRAD | TN_F_PARAM));
    for (int i = 0; i < n->ndim; i++) v->stride[i] = n->stride[i];
    v->offset = n->offset;
    v->buf = n->base->buf;
    tn_storage_retain(v->buf);
    v->name = n->name;
    v->of = n;
    n->of = v;
    if (gradient) g->gradients_seen = g->n_nodes;
    return tn_node_hold(v) ? v : NULL;
}

static bool enter_one(tn_scope *sc, tn_tensor **x)
{
    tn_tensor *n = resolve(*x);
    if (!n) {
        sc->ok = false;
        return false;
    }
    if (!sc->g) sc->g = n->graph;
    if (sc->g != n->graph) {
        tn_error_set(sc->g, TN_E_SESSION, "its tensors belong to two sessions");
        sc->ok = false;
        return false;
    }
    *x = n;
    return true;
}

tn_scope tn_enter(const char *name, const char *file, int line, int n, ...)
{
    tn_scope sc = { NULL, true, 0 };
    tn_tensor **x[8];
    int null_arg = 0;
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++) {
        x[i] = va_arg(ap, tn_tensor **);
        if (!*x[i]) null_arg = null_arg ? null_arg : i + 1;
        else if (!sc.g) sc.g = ((tn_tensor *)((uintptr_t)*x[i] & ~(uintptr_t)(TN_NODE_ALIGN - 1)))->graph;
    }
    va_end(ap);
    if (!sc.g) {
        sc.ok = false;
        return sc;
    }
    tn_scope opened = tn_enter_session(sc.g->session, name, file, line);
    if (!opened.ok) return opened;
    sc.first = opened.first;
    if (null_arg) { /* a NULL that follows from an earlier error is not worth another word */
        tn_error_set(sc.g, TN_E_NULL, "argument %d is NULL", null_arg);
        sc.ok = false;
    }
    for (int i = 0; i < n && sc.ok; i++) {
        if (enter_one(&sc, x[i])) *x[i] = tn_use(*x[i]);
        if (!*x[i]) sc.ok = false;
    }
    sc.first = sc.g->n_nodes;
    return sc;
}

tn_scope tn_enter_session(tn_session *s, const char *name, const char *file, int line)
{
    if (!s) return (tn_scope){ NULL, false, 0 };
    bool ok = tn_call_begin(&s->graph, name, file, line) != NULL;
    return (tn_scope){ &s->graph, ok, s->graph.n_nodes };
}

bool tn_enter_optional(tn_scope *sc, tn_tensor **x)
{
    if (!sc->ok || !*x) return sc->ok;
    if (enter_one(sc, x) && !(*x = tn_use(*x))) sc->ok = false;
    return sc->ok;
}

bool tn_enter_list(tn_scope *sc, int n, tn_tensor *const *handles, tn_tensor **nodes)
{
    for (int i = 0; i < n && sc->ok; i++) {
        nodes[i] = handles[i];
        if (!nodes[i]) {
            if (sc->g) tn_error_set(sc->g, TN_E_NULL, "tensor %d of the list is NULL", i);
            sc->ok = false;
            break;
        }
        if (enter_one(sc, &nodes[i]) && !(nodes[i] = tn_use(nodes[i]))) sc->ok = false;
    }
    return sc->ok;
}

tn_tensor *tn_leave(tn_scope *sc, tn_tensor *result)
{
    return tn_leave_many(sc, 1, &result) == TN_OK ? result : NULL;
}

int tn_leave_many(tn_scope *sc, int n, tn_tensor **results)
{
    if (!sc->g) {
        for (int i = 0; i < n; i++) results[i] = NULL;
        return TN_E_NULL;
    }
    tn_graph *g = sc->g;
    bool outermost = g->call_depth == 1, complete = sc->ok;
    for (int i = 0; i < n; i++) complete = complete && results[i];
    int status = complete ? TN_OK : g->error.status ? g->error.status : TN_E_NULL;
    /* Only the outermost call runs: what is inside it is not a framework operator's boundary. */
    if (complete && outermost && !tn_deferred(g->session))
        status = g->pending_assigns ? tn_run_open_ends(g->session, n, results) : tn_run(g->session, n, results);
    tn_call_end(g);
    for (int i = 0; i < n; i++) results[i] = status == TN_OK ? tn_handle(results[i]) : NULL;
    return status;
}
