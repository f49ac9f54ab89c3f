/* walk.c - the walk from a loss back to its leaves.
 *
 *   plan      the nodes between the loss and what requires a gradient, and how many times each is used
 *   visit     newest first: the gradient of a node is complete when the walk reaches it. A composite with a
 *             rule of its own is crossed in one stride, from its result to its arguments
 *   slices    a value that is read through slices alone gets its gradient in one piece: theirs, joined
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

/* The counts and lists that the walk keeps for a node that it will visit. */
typedef struct entry {
    int uses;           /* edges to it that have not been crossed yet */
    int n_use, n_slice; /* edges to it; those that are slices of unit step along one axis */
    tn_tensor *slices;  /* visited slices whose gradients wait to be joined, linked by `next` */
    tn_tensor *next;    /* of this node, when it is such a slice */
} entry;

typedef struct walk {
    tn_graph *g;
    const tn_walk_options *o;
    list nodes;   /* to visit, sorted by id */
    entry *entry; /* one for each, at node->walk */
    int cap_entry;
    list fresh; /* nodes whose gradient was touched since the last run */
    list spent; /* gradients that nothing will read any more */
    list stack;
} walk;

static bool push(walk *w, list *l, tn_tensor *n)
{
    if (!tn_reserve(&l->at, &l->cap, l->n + 1, sizeof *l->at))
        return tn_error_set(w->g, TN_E_NOMEM, "no memory for the gradient walk") != NULL;
    l->at[l->n++] = n;
    return true;
}

static bool is_leaf(const tn_tensor *n)
{
    return tn_kind_of(n) == TN_KIND_LEAF || tn_kind_of(n) == TN_KIND_ASSIGN || n->flags & TN_F_WISHED;
}

/* A leaf that stands for a tensor which an assignment gives another version. */
static bool has_versions(const tn_tensor *n) { return is_leaf(n) && n->of; }

static int edge_count(const tn_tensor *n) { return n->rule ? n->rule->n_args : n->n_in; }

static tn_tensor *edge(const tn_tensor *n, int i)
{
    tn_tensor *x = n->rule ? n->rule->args[i] : n->in[i];
    return x && x->flags & TN_F_REQUIRES_GRAD ? x : NULL;
}

static entry *entry_of(walk *w, const tn_tensor *n) { return &w->entry[n->walk]; }

static bool discover(walk *w, tn_tensor *n)
{
    if (!tn_reserve(&w->entry, &w->cap_entry, w->nodes.n + 1, sizeof *w->entry))
        return tn_error_set(w->g, TN_E_NOMEM, "no memory for the gradient walk") != NULL;
    n->mark = w->g->mark;
    n->cot = NULL;
    n->walk = w->nodes.n;
    w->entry[n->walk] = (entry){0};
    return push(w, &w->nodes, n) && push(w, &w->stack, n);
}

/* The axis that a slice of unit step cuts; -1 when it is none of that kind. */
static int cut_axis(const tn_tensor *n)
{
    if (n->op != TN_OP_slice || n->rule) return -1;
    int axis = -1;
    for (int i = 0; i < n->ndim; i++) {
        if (n->attr->v[1][i] != 1 || n->shape[i] == 0) return -1;
        if (n->shape[i] == n->in[0]->shape[i]) continue;
        if (axis >= 0) return -1;
        axis = i;
    }
    return axis;
}

static bool plan(walk *w, tn_tensor *loss)
{
    uint32_t mark = ++w->g->mark;
    if (!discover(w, loss)) return false;
    for (int i = 0; i < w->o->n_wanted; i++) {
        tn_tensor *x = w->o->wanted[i]; /* where none but its other versions may have been read */
        if (has_versions(x) && x->mark != mark && !discover(w, x)) return false;
    }
    while (w->stack.n) {
        tn_tensor *n = w->stack.at[--w->stack.n];
        if (is_leaf(n)) continue;
        for (int i = 0; i < edge_count(n); i++) {
            tn_tensor *x = edge(n, i);
            if (!x) continue;
            if (x->mark != mark && !discover(w, x)) return false;
            entry *e = entry_of(w, x);
            e->uses++;
            e->n_use++;
            e->n_slice += cut_axis(n) >= 0;
        }
    }
    qsort(w->nodes.at, (size_t)w->nodes.n, sizeof *w->nodes.at, tn_by_id);
    return true;
}

/* ---- calls and running ---- */

static void release(tn_tensor *g)
{
    tn_tensor *b = g->base;
    if (--b->uses > 0 || b->flags & (TN_F_USER | TN_F_VERSION | TN_F_PERSISTENT) || b->place || !b->buf)
        return;
    if (tn_kind_of(b) == TN_KIND_LEAF) return;
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
        if (g && tn_kind_of(g->base) != TN_KIND_NUMBER) w->fresh.at[n++] = g;
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
    if (!run_fresh(w) || !tn_backward_call(w->g, c ? c->of : NULL, "accumulate", false)) return NULL;
    tn_tensor *s = tn_mk2(TN_OP_add, a, b);
    w->g->call = c;
    return s;
}

/* What was broadcast has a gradient that is summed next: its summands are not rounded to 16 bits. */
static bool is_summed(const tn_tensor *x, const tn_tensor *g)
{
    return x->op == TN_OP_expand && !x->rule && !is_leaf(x) && g->dtype == TN_F32 &&
           tn_dtype_is_half(x->dtype);
}

static bool contribute(walk *w, tn_tensor *x, tn_tensor *g)
{
    if (g && g->dtype != x->dtype && !is_summed(x, g)) g = tn_mk_cast(g, x->dtype);
    if (g && !tn_same_shape(g, x))
        return tn_error_set(w->g, TN_E_GRAD, "the gradient is %s, the value %s",
                            TN_SHAPE_TEXT(g->ndim, g->shape), TN_SHAPE_TEXT(x->ndim, x->shape)) != NULL;
    if (g && x->cot) {
        tn_tensor *old = x->cot;
        if (!push(w, &w->fresh, x)) return false;
        tn_tensor *pending[2] = {g, old};
        const tn_call *call = w->g->call;
        if (call && g->base->id >= call->first && old->base->id >= call->first) {
            g = tn_mk2(TN_OP_add, old, g); /* two paths inside one operator */
        } else {
            /* both summands belong to operators that are complete: run them before they are added */
            if (w->o->run && tn_kind_of(g->base) != TN_KIND_NUMBER && w->o->run(w->g->session, 1, pending))
                return false;
            g = add_up(w, old, g);
        }
        if (!g || !push(w, &w->spent, old)) return false;
    }
    if (g) {
        set_cot(x, g);
        if (!push(w, &w->fresh, x)) return false;
    }
    return !w->g->error.status;
}

/* ---- leaves ---- */

/* A wanted tensor's gradient is that of all of its versions: this one's is added to that of the one asked for. */
static bool add_version(walk *w, tn_tensor *leaf)
{
    for (int i = 0; i < w->o->n_wanted && has_versions(leaf); i++) {
        tn_tensor *x = w->o->wanted[i];
        if (has_versions(x) && x->of == leaf->of) return x == leaf || contribute(w, x, leaf->cot);
    }
    return true;
}

/* The gradient of a leaf is complete. A parameter's is placed in the slab: by telling its last producer,
 * where that has not run and makes nothing but this, else by a copy. */
static bool finish_leaf(walk *w, tn_tensor *leaf)
{
    if (w->o->n_wanted) return add_version(w, leaf);
    if (!leaf->cot) return true;
    tn_tensor *p = leaf->of ? leaf->of : NULL, *home = p && leaf->flags & TN_F_PARAM ? p->place : NULL;
    tn_tensor *holder = p ? p : leaf;
    tn_tensor *g = leaf->cot, *before = holder->grad_step == w->g->generation ? holder->grad : NULL;
    /* only the sum has to be in the slab, unless what came before it has been looked at there */
    if (before && !(before->flags & TN_F_DONE) && before->id >= w->g->gradients_seen) {
        before->place = NULL;
        w->g->unrepeatable = true; /* a node of an earlier call has changed */
    }
    if (before && !(g = add_up(w, before, g))) return false;
    if (home) {
        bool whole = g->base == g && !(g->flags & (TN_F_DONE | TN_F_USER)) && !g->place &&
                     tn_kind_of(g) != TN_KIND_NUMBER && tn_kind_of(g) != TN_KIND_LEAF &&
                     g->id >= w->g->gradients_seen;
        if (!whole) g = tn_mk_contiguous(g);
        if (!g) return false;
        g->place = home;
        if (!tn_node_hold(g)) return false;
        w->g->gradients_written = w->g->n_nodes;
    }
    if (g != leaf->cot) {
        if (!push(w, &w->spent, leaf->cot)) return false;
        set_cot(leaf, g);
        if (!push(w, &w->fresh, leaf)) return false;
    }
    g->base->flags |= TN_F_USER; /* tn_gradient may give it out */
    holder->grad = g;
    holder->grad_step = w->g->generation;
    return tn_graph_grade(w->g, leaf, g);
}

/* ---- slices ---- */

static int64_t cut_start(const tn_tensor *n, int axis) { return n->attr->v[0][axis]; }

/* The gradients of x's slices side by side, where they cover x exactly; NULL where they do not. */
static tn_tensor *joined(walk *w, tn_tensor *x)
{
    enum { MANY = 64 };
    tn_tensor *part[MANY];
    int n = 0, axis = cut_axis(entry_of(w, x)->slices);
    for (tn_tensor *s = entry_of(w, x)->slices; s; s = entry_of(w, s)->next) {
        if (n == MANY || cut_axis(s) != axis) return NULL;
        int i = n++;
        for (; i && cut_start(part[i - 1], axis) > cut_start(s, axis); i--) part[i] = part[i - 1];
        part[i] = s;
    }
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (cut_start(part[i], axis) != at) return NULL;
        at += part[i]->shape[axis];
        part[i] = part[i]->cot;
    }
    return n && at == x->shape[axis] ? tn_mk_concat(w->g, n, part, axis) : NULL;
}

/* Before x is visited: what its slices have put aside becomes its gradient. */
static bool collect_slices(walk *w, tn_tensor *x)
{
    if (!entry_of(w, x)->slices) return true;
    tn_tensor *g = joined(w, x);
    if (w->g->error.status) return false;
    if (g && !contribute(w, x, g)) return false;
    for (tn_tensor *s = entry_of(w, x)->slices; s; s = entry_of(w, s)->next) {
        tn_tensor *gin[1] = {NULL};
        if (!g && (!tn_backward_of(s, s->cot, gin) || !contribute(w, x, gin[0]))) return false;
        if (!push(w, &w->spent, s->cot)) return false;
    }
    entry_of(w, x)->slices = NULL;
    return true;
}

/* ---- visiting ---- */

/* One edge to x has been crossed; after the last one a leaf's gradient is complete. */
static bool crossed(walk *w, tn_tensor *x)
{
    if (--entry_of(w, x)->uses > 0 || !is_leaf(x)) return true;
    return collect_slices(w, x) && finish_leaf(w, x);
}

static bool visit(walk *w, tn_tensor *n)
{
    enum { MANY = UINT8_MAX };
    tn_tensor *gin[MANY] = {NULL};
    tn_tensor *g = n->cot;
    if (cut_axis(n) >= 0 && edge(n, 0)) {
        entry *e = entry_of(w, n->in[0]);
        if (e->n_slice == e->n_use && e->n_use > 1) {
            entry_of(w, n)->next = e->slices;
            e->slices = n;
            return crossed(w, n->in[0]);
        }
    }
    n->flags |= TN_F_WALKED;
    n->walked = w->g->n_nodes;
    tn_tensor *v =
        w->o->run || w->o->keep ? n : tn_read_again(w->g, n); /* the values that the gradient reads */
    bool ok = v && (v->rule ? v->rule->fn(v->rule, g, gin) : tn_backward_of(v, g, gin));
    for (int i = 0; ok && i < edge_count(n); i++) {
        tn_tensor *x = edge(n, i);
        if (x) ok = contribute(w, x, gin[i]) && crossed(w, x);
    }
    return ok && push(w, &w->spent, g);
}

/* A node no gradient reaches still releases its hold on what it used. */
static bool skip(walk *w, tn_tensor *n)
{
    for (int i = 0; i < edge_count(n); i++)
        if (edge(n, i) && !crossed(w, edge(n, i))) return false;
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
            if (!run_fresh(w) ||
                !tn_backward_call(w->g, n->call, n->call ? n->call->name : "gradient", false))
                return false;
            of = n->call;
            first = false;
        }
        if (!collect_slices(w, n) || (n->cot ? !visit(w, n) : !skip(w, n))) return false;
    }
    return run_fresh(w);
}

int tn_walk(tn_tensor *loss, const tn_walk_options *options)
{
    tn_graph *g = loss->graph;
    walk w = {.g = g, .o = options};
    tn_call *call = g->call;
    const uint32_t region = g->region;
    g->region = 0;
    if (!options->keep) g->no_grad++;
    bool ok = plan(&w, loss);
    tn_tensor *one = ok ? tn_mk_like(loss, 1) : NULL;
    ok = one != NULL;
    if (ok) set_cot(loss, one);
    if (ok && is_leaf(loss)) ok = finish_leaf(&w, loss);
    ok = ok && walk_nodes(&w);
    for (int i = 0; i < options->n_wanted; i++) {
        tn_tensor *x = options->wanted[i];
        const bool reached = bsearch(&x, w.nodes.at, (size_t)w.nodes.n, sizeof x, tn_by_id) != NULL;
        options->grads[i] = ok && reached ? x->cot : NULL;
    }
    if (!options->keep) g->no_grad--;
    g->region = region;
    g->call = call;
    tn_free_mem(w.entry);
    tn_free_mem(w.nodes.at);
    tn_free_mem(w.fresh.at);
    tn_free_mem(w.spent.at);
    tn_free_mem(w.stack.at);
    return ok ? TN_OK : g->error.status ? g->error.status : TN_E_GRAD;
}
