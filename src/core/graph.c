/* graph.c - nodes, handles and calls. Start with tn_node_new. */
#include "graph.h"

#include <string.h>

int tn_graph_init(tn_graph *g)
{
    tn_slots_init(&g->slots, sizeof(tn_tensor), TN_NODE_ALIGN);
    g->generation = 1;
    g->training = true;
    g->outside = true;
    g->reads = 1;
    return 0;
}

static void node_drop(tn_graph *g, tn_tensor *n)
{
    tn_storage_release(n->buf);
    n->buf = NULL;
    n->generation++; /* every handle of it is stale from here on */
    n->was = n->flags & TN_F_PERSISTENT ? TN_WAS_PERSISTENT
             : g->scope.ends            ? TN_WAS_OF_SCOPE
             : g->outside               ? TN_WAS_OUTSIDE
                                        : TN_WAS_OF_STEP;
    tn_slots_give(&g->slots, n);
}

void tn_node_drop_value(tn_tensor *n)
{
    tn_storage_release(n->buf);
    n->buf = NULL;
    n->flags &= ~(uint32_t)TN_F_DONE;
}

/* Of b's views that the user has got those with ids below cut stay. */
static void cut_views(tn_tensor *b, uint32_t cut)
{
    for (tn_tensor **at = &b->views; *at;) {
        tn_tensor *v = *at;
        if (v->id < cut) {
            at = &v->views;
            continue;
        }
        v->flags &= ~(uint32_t)TN_F_LISTED;
        *at = v->views;
    }
}

void tn_graph_truncate(tn_graph *g, uint32_t cut)
{
    uint32_t kept = 0;
    g->n_settled = g->n_decided = 0;
    g->writers.stale = g->sights.stale = true;
    while (g->n_holders && g->holder[g->n_holders - 1]->id >= cut) g->n_holders--;
    for (uint32_t i = cut; i < g->n_nodes; i++)
        if (g->nodes[i]->flags & TN_F_LISTED && g->nodes[i]->base->id < cut)
            cut_views(g->nodes[i]->base, cut);
    for (uint32_t i = 0; i < g->n_given; i++)
        if (g->given[i]->id < cut) g->given[kept++] = g->given[i];
    g->n_given = kept;
    for (uint32_t i = cut; i < g->n_nodes; i++) {
        tn_tensor *n = g->nodes[i];
        if (n->of && n->of->of == n) n->of->of = NULL;
        node_drop(g, n);
    }
    g->n_nodes = cut;
}

static void drop(tn_graph *g)
{
    tn_graph_truncate(g, 0);
    g->n_nodes = g->gradients_seen = g->gradients_written = 0;
    g->n_graded = 0;
    g->pending_assigns = 0;
    g->parked = g->unrepeatable = false;
    tn_arena_reset(&g->arena);
}

void tn_graph_reset(tn_graph *g)
{
    drop(g);
    g->call = NULL;
    g->call_depth = 0;
    g->generation++;
}

void tn_graph_park(tn_graph *g)
{
    for (uint32_t i = 0; i < g->n_given; i++) {
        g->given[i]->generation++;
        g->given[i]->was = TN_WAS_OF_STEP;
    }
    g->pending_assigns = 0;
    g->gradients_seen = g->gradients_written = 0;
    g->parked = true;
    g->generation++;
}

#define SWAP(type, name)                                                                                     \
    do {                                                                                                     \
        type was = g->name;                                                                                  \
        g->name = g->aside.name;                                                                             \
        g->aside.name = was;                                                                                 \
    } while (0)

static void swap_aside(tn_graph *g)
{
    SWAP(tn_tensor **, nodes);
    SWAP(tn_tensor **, holder);
    SWAP(tn_tensor **, given);
    SWAP(struct tn_graded *, graded);
    SWAP(uint32_t, n_nodes);
    SWAP(uint32_t, n_holders);
    SWAP(uint32_t, n_given);
    SWAP(uint32_t, n_graded);
    SWAP(uint32_t, cap_nodes);
    SWAP(uint32_t, cap_holders);
    SWAP(uint32_t, cap_given);
    SWAP(uint32_t, cap_graded);
    SWAP(tn_arena, arena);
}

void tn_graph_set_aside(tn_graph *g)
{
    g->n_settled = g->n_decided = 0;
    g->writers.stale = g->sights.stale = true;
    swap_aside(g);
    g->parked = false;
    g->aside.there = true;
}

void tn_graph_take_back(tn_graph *g)
{
    g->n_settled = g->n_decided = 0;
    g->writers.stale = g->sights.stale = true;
    swap_aside(g);
    g->parked = true;
    g->aside.there = false;
}

bool tn_graph_grade(tn_graph *g, tn_tensor *leaf, tn_tensor *grad)
{
    if (!tn_reserve(&g->graded, &g->cap_graded, (int64_t)g->n_graded + 1, sizeof *g->graded))
        return tn_error_set(g, TN_E_NOMEM, "no memory for the graph") != NULL;
    g->graded[g->n_graded++] = (struct tn_graded){leaf, grad};
    return true;
}

void tn_graph_free(tn_graph *g)
{
    for (int i = 0; i < 2; i++) { /* the one that is set aside, too */
        tn_graph_reset(g);
        tn_arena_free(&g->arena);
        void *all[] = {g->nodes, g->holder, g->given, g->graded};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) tn_free_mem(all[k]);
        g->nodes = g->holder = g->given = NULL;
        g->graded = NULL;
        g->cap_nodes = g->cap_holders = g->cap_given = g->cap_graded = 0;
        swap_aside(g);
    }
    tn_spans_free(&g->writers);
    tn_spans_free(&g->sights);
    tn_slots_free(&g->slots);
}

/* Those that the user can hold must go stale when a step is kept to be repeated. */
static void give(tn_graph *g, tn_tensor *n)
{
    if (n->flags & (TN_F_GIVEN | TN_F_PERSISTENT)) return;
    if (!tn_reserve(&g->given, &g->cap_given, (int64_t)g->n_given + 1, sizeof *g->given)) {
        g->unrepeatable = true;
        return;
    }
    n->flags |= TN_F_GIVEN;
    g->given[g->n_given++] = n;
}

tn_tensor *tn_handle(tn_tensor *n)
{
    if (!n) return NULL;
    n->flags |= TN_F_USER;
    if (n->base != n && !(n->flags & TN_F_LISTED)) {
        n->flags |= TN_F_LISTED;
        n->views = n->base->views;
        n->base->views = n;
    }
    give(n->graph, n);
    return (tn_tensor *)((uintptr_t)n + (n->generation & (TN_NODE_ALIGN - 1)));
}

tn_tensor *tn_resolve(const tn_tensor *handle)
{
    uintptr_t tag = (uintptr_t)handle & (TN_NODE_ALIGN - 1);
    tn_tensor *n = (tn_tensor *)((uintptr_t)handle - tag);
    return n && (n->generation & (TN_NODE_ALIGN - 1)) == tag ? n : NULL;
}

const char *tn_stale_text(const tn_tensor *handle)
{
    uintptr_t tag = (uintptr_t)handle & (TN_NODE_ALIGN - 1);
    const tn_tensor *n = (const tn_tensor *)((uintptr_t)handle - tag);
    bool last = tag == ((n->generation - 1) & (TN_NODE_ALIGN - 1));
    if (!last)
        return "was used after its step ended or it was freed"; /* of an earlier one nothing is known */
    switch ((tn_was)n->was) {
    case TN_WAS_PERSISTENT:
        return "was used after it was freed: by tn_free, by what took it over, or, of a batch, by the next "
               "tn_next";
    case TN_WAS_OUTSIDE:
        return "was made by an operator outside a step, or in a tn_scope_begin, and goes when the next step "
               "begins: make it inside the step, or keep it with tn_keep";
    case TN_WAS_OF_SCOPE:
        return "was made between tn_scope_begin and tn_scope_end, and used after that; what tn_keep makes of "
               "it stays";
    case TN_WAS_OF_STEP: break;
    }
    return "was used after its step ended; what tn_keep makes of it stays";
}

static void node_clear(tn_tensor *n)
{
    uint32_t generation = n->generation;
    uint8_t was = n->was;
    memset(n, 0, sizeof *n);
    n->generation = generation;
    n->was = was;
}

int tn_by_id(const void *a, const void *b)
{
    const tn_tensor *x = *(tn_tensor *const *)a, *y = *(tn_tensor *const *)b;
    return (x->id > y->id) - (x->id < y->id);
}

bool tn_countable(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0 || (shape[i] && n > INT64_MAX / 64 / shape[i])) return false;
        n *= shape[i] ? shape[i] : 1;
    }
    return true;
}

tn_tensor *tn_node_new(tn_graph *g, tn_op op, tn_dtype dtype, int ndim, const int64_t *shape, int n_in,
                       tn_tensor *const *in)
{
    if (g->parked) g->unpark(g);
    if (!tn_reserve(&g->nodes, &g->cap_nodes, (int64_t)g->n_nodes + 1, sizeof *g->nodes))
        return tn_error_set(g, TN_E_NOMEM, "no memory for the graph");
    if (!tn_countable(ndim, shape))
        return tn_error_set(g, TN_E_SHAPE, "shape %s is not possible", TN_SHAPE_TEXT(ndim, shape));
    tn_tensor **list = NULL;
    if (n_in > 3 && !(list = tn_arena_alloc(&g->arena, (size_t)n_in * sizeof *list)))
        return tn_error_set(g, TN_E_NOMEM, "no memory for the graph");
    tn_tensor *n = tn_slots_take(&g->slots);
    if (!n) return tn_error_set(g, TN_E_NOMEM, "no memory for the graph");
    node_clear(n);
    n->graph = g;
    n->id = g->n_nodes;
    n->op = (uint16_t)op;
    n->dtype = (uint8_t)dtype;
    n->ndim = (uint8_t)ndim;
    n->n_in = (uint8_t)n_in;
    n->in = list ? list : n->in_;
    n->call = g->call;
    n->region = g->region;
    n->slot = -1;
    for (int i = 0; i < ndim; i++) n->shape[i] = shape[i];
    bool floating = tn_dtype_is_float(dtype);
    for (int i = 0; i < n_in; i++) {
        n->in[i] = in[i];
        if (floating && !g->no_grad) n->flags |= in[i]->flags & TN_F_REQUIRES_GRAD;
    }
    for (int i = 0; i < n_in && n->flags & TN_F_REQUIRES_GRAD; i++) in[i]->base->read = g->reads;
    if (!g->call || !g->call->backward)
        for (int i = 0; i < n_in; i++) in[i]->flags |= TN_F_CONSUMED;
    tn_dense_strides(ndim, shape, n->stride);
    n->base = n;
    g->nodes[g->n_nodes++] = n;
    g->total_nodes++;
    return n;
}

tn_attr *tn_node_attr(tn_tensor *n)
{
    if (!n->attr) n->attr = tn_arena_alloc(&n->graph->arena, sizeof *n->attr);
    if (!n->attr) tn_error_set(n->graph, TN_E_NOMEM, "no memory for the graph");
    return n->attr;
}

tn_tensor *tn_node_new_persistent(tn_graph *g, tn_dtype dtype, int ndim, const int64_t *shape)
{
    tn_tensor *n = tn_slots_take(&g->slots);
    if (!n) return tn_error_set(g, TN_E_NOMEM, "no memory for a tensor");
    node_clear(n);
    n->graph = g;
    n->id = UINT32_MAX;
    n->op = TN_OP_leaf;
    n->dtype = (uint8_t)dtype;
    n->ndim = (uint8_t)ndim;
    n->in = n->in_;
    n->flags = TN_F_PERSISTENT | TN_F_DONE;
    n->base = n;
    n->slot = -1;
    for (int i = 0; i < ndim; i++) n->shape[i] = shape[i];
    tn_dense_strides(ndim, shape, n->stride);
    return n;
}

static void forget_persistent(tn_tensor *const *holder, uint32_t n_holders, const tn_tensor *n)
{
    for (uint32_t i = 0; i < n_holders; i++) { /* its versions live on with their own hold on the memory */
        if (holder[i]->of == n) holder[i]->of = NULL;
        if (holder[i]->place == n) holder[i]->place = NULL;
    }
}

/* Copies the name of a persistent tensor that goes for the nodes that stand for it in a step, which borrow
 * it: those from id `first` on, as `a` does not last as long as the others. */
static void keep_name(tn_arena *a, tn_tensor *const *holder, uint32_t n_holders, uint32_t first,
                      const char *name)
{
    const char *copy = NULL;
    for (uint32_t i = 0; i < n_holders; i++) {
        if (holder[i]->name != name) continue;
        if (!copy && holder[i]->id >= first) copy = tn_arena_strdup(a, name);
        holder[i]->name = holder[i]->id >= first ? copy : NULL; /* without memory, by none */
    }
}

void tn_node_drop_name(tn_graph *g, tn_tensor *n)
{
    if (n->name && !(n->flags & TN_F_BORROWS_NAME)) {
        keep_name(&g->arena, g->holder, g->n_holders, g->scope.first, n->name);
        keep_name(&g->aside.arena, g->aside.holder, g->aside.n_holders, 0, n->name);
        tn_free_mem((void *)(uintptr_t)n->name);
    }
    n->name = NULL;
    n->flags &= ~(uint32_t)TN_F_BORROWS_NAME;
}

void tn_node_free_persistent(tn_graph *g, tn_tensor *n)
{
    forget_persistent(g->holder, g->n_holders, n);
    forget_persistent(g->aside.holder, g->aside.n_holders, n);
    node_drop(g, n);
}

/* ---- calls ---- */

tn_call *tn_call_begin(tn_graph *g, const char *name, const char *file, int line)
{
    if (g->call_depth++ > 0) {
        if (file && !g->inner.depth && g->call && !g->call->file) {
            g->inner.name = name;
            g->inner.file = file;
            g->inner.line = line;
            g->inner.depth = g->call_depth;
        }
        return g->call;
    }
    if (g->parked) g->unpark(g);
    tn_call *c = tn_arena_alloc(&g->arena, sizeof *c);
    if (!c) return tn_error_set(g, TN_E_NOMEM, "no memory for the graph");
    c->name = name;
    c->file = file;
    c->line = line;
    c->first = g->n_nodes;
    c->backward = false;
    c->of = NULL;
    return g->call = c;
}

void tn_call_end(tn_graph *g)
{
    if (g->call_depth == g->inner.depth) g->inner.depth = 0;
    if (--g->call_depth == 0) g->call = NULL;
}

tn_rule *tn_rule_set(tn_tensor *out, uint32_t first, tn_rule_fn *fn, int n, tn_tensor *const *args)
{
    if (!out) return NULL;
    tn_graph *g = out->graph;
    tn_rule *r = tn_arena_alloc(&g->arena, sizeof *r);
    if (!r) return tn_error_set(g, TN_E_NOMEM, "no memory for the graph");
    r->fn = fn;
    r->out = out;
    r->n_args = n;
    for (int i = 0; i < n; i++) r->args[i] = args[i];
    for (uint32_t i = first; i < g->n_nodes; i++) g->nodes[i]->inside = r;
    out->rule = r;
    return r;
}

static void mark_saved(tn_rule *r, const tn_tensor *value)
{
    if (!(r->out->flags & TN_F_REQUIRES_GRAD)) return;
    value->base->flags |= TN_F_SAVED;
    value->base->saver = r;
}

void tn_rule_save(tn_rule *r, int i, tn_tensor *value)
{
    if (!r || !value) return;
    r->saved[i] = value;
    mark_saved(r, value);
}

void tn_rule_save_list(tn_rule *r, int n, tn_tensor **values)
{
    r->list = values;
    r->n_list = n;
    for (int i = 0; i < n; i++) mark_saved(r, values[i]);
}

unsigned tn_kind_traits(tn_kind kind)
{
    static const unsigned traits[] = {
#define TN_X(name, traits) [TN_KIND_##name] = traits,
        TN_KINDS(TN_X)
#undef TN_X
    };
    return traits[kind];
}
