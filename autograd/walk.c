/* walk.c - the walk from a loss back to its leaves.
 *
 *   plan      the nodes between the loss and what requires a gradient, and how many times each is used
 *   visit     newest first: the gradient of a node is complete when the walk reaches it. A composite with a
 *             rule of its own is crossed in one stride, from its result to its arguments
 *   leaf      a parameter's gradient is told, before it runs, to write into its segment of the slab
 *
 * Gradient nodes belong to a call of their own, "softmax backward", one per forward call. Start with tn_walk.
 */
#include <stdlib.h>

#include "autograd.h"

typedef struct list {
    tn_tensor **at;
    int n, cap;
} list;

typedef struct walk {
    tn_graph *g;
    const tn_walk_options *o;
    list nodes;  /* to visit, sorted by id */
    list fresh;  /* nodes whose gradient was touched since the last run */
    list spent;  /* gradients that nothing will read any more */
    list stack;
} walk;

static bool push(walk *w, list *l, tn_tensor *n)
{
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 64;
        tn_tensor **p = tn_realloc(l->at, (size_t)cap * sizeof *p);
        if (!p) return tn_error_set(w->g, TN_E_NOMEM, "no memory for the gradient walk") != NULL;
        l->at = p;
        l->cap = cap;
    }
    l->at[l->n++] = n;
    return true;
}

static tn_kind kind_of(const tn_tensor *n) { return tn_op_get((tn_op)n->op)->kind; }

static bool is_leaf(const tn_tensor *n) { return kind_of(n) == TN_KIND_LEAF || kind_of(n) == TN_KIND_ASSIGN; }

static int edge_count(const tn_tensor *n) { return n->rule ? n->rule->n_args : n->n_in; }

static tn_tensor *edge(const tn_tensor *n, int i)
{
    tn_tensor *x = n->rule ? n->rule->args[i] : n->in[i];
    return x && x->flags & TN_F_REQUIRES_GRAD ? x : NULL;
}

static int by_id(const void *a, const void *b)
{
    const tn_tensor *x = *(tn_tensor *const *)a, *y = *(tn_tensor *const *)b;
    return (x->id > y->id) - (x->id < y->id);
}

static bool plan(walk *w, tn_tensor *loss)
{
    uint32_t mark = ++w->g->mark;
    loss->mark = mark;
    loss->uses = 0;
    loss->cot = NULL;
    if (!push(w, &w->stack, loss)) return false;
    while (w->stack.n) {
        tn_tensor *n = w->stack.at[--w->stack.n];
        if (!push(w, &w->nodes, n)) return false;
        if (is_leaf(n)) continue;
        for (int i = 0; i < edge_count(n); i++) {
            tn_tensor *x = edge(n, i);
            if (!x) continue;
            if (x->mark != mark) {
                x->mark = mark;
                x->uses = 0;
                x->cot = NULL;
                if (!push(w, &w->stack, x)) return false;
            }
            x->uses++;
        }
    }
    qsort(w->nodes.at, (size_t)w->nodes.n, sizeof *w->nodes.at, by_id);
    return true;
}

/* ---- calls and running ---- */

static bool begin_call(walk *w, tn_call *of, const char *name)
{
    tn_call *c = tn_arena_alloc(&w->g->arena, sizeof *c);
    if (!c) return tn_error_set(w->g, TN_E_NOMEM, "no memory for the gradient walk") != NULL;
    c->name = name;
    c->backward = true;
    c->of = of;
    c->first = w->g->n_nodes;
    w->g->call = c;
    return true;
}

static void release(tn_tensor *g)
{
    tn_tensor *b = g->base;
    if (--b->uses > 0 || b->flags & (TN_F_USER | TN_F_VERSION | TN_F_PERSISTENT) || b->place || !b->buf) return;
    if (kind_of(b) == TN_KIND_LEAF) return;
    tn_storage_release(b->buf);
    b->buf = NULL;
    b->flags &= ~(uint32_t)TN_F_DONE;
}

/* Runs the gradients recorded since the last time, then gives back the memory of those that are used up. */
static bool run_fresh(walk *w)
{
    int n = 0;
    for (int i = 0; i < w->fresh.n; i++) {
        tn_tensor *x = w->fresh.at[i], *g = x->cot;
        if (g && kind_of(g->base) != TN_KIND_NUMBER) w->fresh.at[n++] = g;
    }
    w->fresh.n = 0;
    if (n && w->o->run && w->o->run(w->g->session, n, w->fresh.at)) return false;
    for (int i = 0; i < w->spent.n && w->o->run && !w->o->keep; i++) release(w->spent.at[i]);
    w->spent.n = 0;
    return true;
}

/* ---- adding up ---- */

static void set_cot(tn_tensor *x, tn_tensor *g)
{
    x->cot = g;
    g->base->uses++;
}

/* What runs in eager mode between two calls: adding two gradients of one value is an operator of its own. */
static tn_tensor *add_up(walk *w, tn_tensor *a, tn_tensor *b)
{
    tn_call *c = w->g->call;
    if (!run_fresh(w) || !begin_call(w, c ? c->of : NULL, "accumulate")) return NULL;
    tn_tensor *s = tn_mk2(TN_OP_add, a, b);
    w->g->call = c;
    return s;
}

static bool contribute(walk *w, tn_tensor *x, tn_tensor *g)
{
    if (g && g->dtype != x->dtype) g = tn_mk_cast(g, (tn_dtype)x->dtype);
    if (g && !tn_same_shape(g, x)) {
        char a[128], b[128];
        return tn_error_set(w->g, TN_E_GRAD, "the gradient is %s, the value %s",
                            tn_shape_text(a, sizeof a, g->ndim, g->shape),
                            tn_shape_text(b, sizeof b, x->ndim, x->shape)) != NULL;
    }
    if (g && x->cot) {
        tn_tensor *old = x->cot;
        if (!push(w, &w->fresh, x)) return false;
        tn_tensor *pending[2] = { g, old };
        /* both summands belong to operators that are complete: run them before they are added */
        if (w->o->run && kind_of(g->base) != TN_KIND_NUMBER && w->o->run(w->g->session, 1, pending)) return false;
        g = add_up(w, old, g);
        if (!g || !push(w, &w->spent, old)) return false;
    }
    if (g) {
        set_cot(x, g);
        if (!push(w, &w->fresh, x)) return false;
    }
    return !w->g->error.status;
}

/* ---- leaves ---- */

/* The gradient of a leaf is complete. A parameter's is placed in the slab: by telling its last producer, where
 * that has not run and makes nothing but this, else by a copy. */
static bool finish_leaf(walk *w, tn_tensor *leaf)
{
    if (w->o->n_wanted || !leaf->cot) return true;
    tn_tensor *p = leaf->of ? leaf->of : NULL, *home = p && leaf->flags & TN_F_PARAM ? p->place : NULL;
    tn_tensor *holder = p ? p : leaf;
    tn_tensor *g = leaf->cot, *before = holder->grad_step == w->g->generation ? holder->grad : NULL;
    if (before && !(g = add_up(w, before, g))) return false;
    if (home) {
        bool whole = g->base == g && !(g->flags & (TN_F_DONE | TN_F_USER)) && !g->place && g->uses <= 1 &&
                     kind_of(g) != TN_KIND_NUMBER && kind_of(g) != TN_KIND_LEAF;
        if (!whole) g = tn_mk_contiguous(g);
        if (!g) return false;
        g->place = home;
    }
    if (g != leaf->cot) {
        if (!push(w, &w->spent, leaf->cot)) return false;
        set_cot(leaf, g);
        if (!push(w, &w->fresh, leaf)) return false;
    }
    g->base->flags |= TN_F_USER; /* tn_gradient may give it out */
    holder->grad = g;
    holder->grad_step = w->g->generation;
    return true;
}

/* ---- visiting ---- */

static bool visit(walk *w, tn_tensor *n)
{
    enum { MANY = UINT8_MAX };
    tn_tensor *gin[MANY] = { NULL };
    tn_tensor *g = n->cot;
    bool ok = n->rule ? n->rule->fn(n->rule, g, gin) : tn_backward_of(n, g, gin);
    for (int i = 0; ok && i < edge_count(n); i++) {
        tn_tensor *x = edge(n, i);
        if (!x) continue;
        ok = contribute(w, x, gin[i]);
        if (ok && --x->uses == 0 && is_leaf(x)) ok = finish_leaf(w, x);
    }
    return ok && push(w, &w->spent, g);
}

/* A node no gradient reaches still releases its hold on what it used. */
static bool skip(walk *w, tn_tensor *n)
{
    for (int i = 0; i < edge_count(n); i++) {
        tn_tensor *x = edge(n, i);
        if (x && --x->uses == 0 && is_leaf(x) && !finish_leaf(w, x)) return false;
    }
    return true;
}

static bool walk_nodes(walk *w)
{
    tn_call *of = NULL;
    bool first = true;
    for (int i = w->nodes.n; i-- > 0;) {
        tn_tensor *n = w->nodes.at[i];
        if (is_leaf(n)) continue;
        if (first || n->call != of) {
            if (!run_fresh(w) || !begin_call(w, n->call, n->call ? n->call->name : "gradient")) return false;
            of = n->call;
            first = false;
        }
        if (n->cot ? !visit(w, n) : !skip(w, n)) return false;
    }
    return run_fresh(w);
}

static tn_tensor *one_like(tn_tensor *x)
{
    tn_tensor *one = tn_mk_typed(x->graph, TN_OP_constant, tn_number_i(1), (tn_dtype)x->dtype);
    return tn_mk_expand(one, x->ndim, x->shape);
}

int tn_walk(tn_tensor *loss, const tn_walk_options *options)
{
    tn_graph *g = loss->graph;
    walk w = { .g = g, .o = options };
    tn_call *call = g->call;
    if (!options->keep) g->no_grad++;
    bool ok = plan(&w, loss);
    tn_tensor *one = ok ? one_like(loss) : NULL;
    ok = one != NULL;
    if (ok) set_cot(loss, one);
    if (ok && is_leaf(loss)) ok = finish_leaf(&w, loss);
    ok = ok && walk_nodes(&w);
    for (int i = 0; i < options->n_wanted; i++) {
        tn_tensor *x = options->wanted[i];
        bool reached = false;
        for (int k = 0; k < w.nodes.n && !reached; k++) reached = w.nodes.at[k] == x;
        options->grads[i] = ok && reached ? x->cot : NULL;
    }
    if (!options->keep) g->no_grad--;
    g->call = call;
    tn_free_mem(w.nodes.at);
    tn_free_mem(w.fresh.at);
    tn_free_mem(w.spent.at);
    tn_free_mem(w.stack.at);
    return ok ? TN_OK : g->error.status ? g->error.status : TN_E_GRAD;
}
