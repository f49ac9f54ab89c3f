/* simplify.c - what need not run: dead nodes, and nodes whose value something else has already.
 *
 * The user's graph is never changed. A node that is not needed keeps its place in the segment; those who read
 * it take what has its value instead (fu_node.same), which is an operand, a number or an older node. Where a
 * view of such a node is read, a view of the other is made (fu_ctx.view). fu_value_of looks both up, and all
 * passes ask it for their operands.
 *
 *   same value    algebra.c: x * 1, neg(neg x), numbers of numbers
 *                 common.c: the same op on the same operands
 *   negative      algebra.c: x * -1 becomes neg(x), which takes no number along
 *   copy          a root whose value another node has becomes a copy of it: each has
 *                 memory of its own, so that what happens to one does not to the other
 *   assignment    readers take the source, so that the memory may change later
 *
 * Start with fu_simplify.
 */
#include "../src/core/build.h"
#include "fuser.h"

#include <string.h>

/* ---- who stands for what ---- */

static int index_of(const fu_ctx *c, const tn_tensor *t)
{
    int64_t s = t->slot;
    return s >= 0 && s < c->n_node && c->seg->node[s] == t ? (int)s : -1;
}

const tn_tensor *fu_value_of(const fu_ctx *c, const tn_tensor *t)
{
    int64_t v = FU_VIEW - t->slot;
    if (v >= 0) return v < c->n_view && c->view[v].of == t ? c->view[v].same : t;
    int i = index_of(c, t);
    return i < 0 ? t : c->node[i].same ? c->node[i].same : c->node[i].t;
}

int fu_node_of(const fu_ctx *c, const tn_tensor *t)
{
    int64_t s = t->base->slot;
    return s >= 0 && s < c->n_node && (c->node[s].t == t->base || c->seg->node[s] == t->base) ? (int)s : -1;
}

bool fu_place(const fu_ctx *c, const tn_tensor *t, int *slot, int64_t *offset)
{
    int64_t s = t->slot;
    *offset = 0;
    if (s >= c->n_node && s < c->n_node + c->n_leaf && c->seg->leaf[s - c->n_node] == t) {
        *slot = (int)s;
        return true;
    }
    s = t->base->slot;
    *offset = t->offset - t->base->offset;
    *slot = (int)s;
    return (s >= 0 && s < c->n_node && c->node[s].t == t->base) ||
           (s >= c->n_node && s < c->n_node + c->n_leaf && c->seg->leaf[s - c->n_node] == t->base);
}

bool fu_lasting(const fu_ctx *c, const tn_tensor *x)
{
    int i = fu_node_of(c, x);
    if (i >= 0) return !tn_node_written(c->node[i].t);
    for (int w = 0; w < c->n_writer; w++)
        if (tn_node_overlap(x, tn_node_written(c->node[c->writer[w]].t))) return false;
    return true;
}

/* ---- lists ---- */

static bool push(fu_ctx *c, int **list, int *n, int *cap, int v)
{
    if (*n && (*list)[*n - 1] == v) return true;
    if (*n == *cap) {
        int more = *cap ? *cap * 2 : 4;
        int *p = tn_arena_alloc(&c->arena, (size_t)more * sizeof *p);
        if (!p) return false;
        for (int i = 0; i < *n; i++) p[i] = (*list)[i];
        *list = p;
        *cap = more;
    }
    (*list)[(*n)++] = v;
    return true;
}

bool fu_note_copy(fu_ctx *c, int node, int group)
{
    fu_node *n = &c->node[node];
    c->n_copy++;
    return push(c, &n->copy, &n->n_copy, &n->cap_copy, group);
}

bool fu_note_after(fu_ctx *c, int node, int other)
{
    fu_node *n = &c->node[node];
    return push(c, &n->after, &n->n_after, &n->cap_after, other);
}

/* ---- views ---- */

static bool is_number(const tn_tensor *t)
{
    return tn_op_get((tn_op)t->base->op)->kind == TN_KIND_NUMBER;
}

static bool same_elements(const tn_tensor *a, const tn_tensor *b)
{
    if (a->base != b->base || a->offset != b->offset || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || (a->shape[i] != 1 && a->stride[i] != b->stride[i])) return false;
    return true;
}

/* A view like x, whose operand is now `in`: memory that is laid out as that of x's own was, or a number. */
static const tn_tensor *view_like(fu_ctx *c, const tn_tensor *x, const tn_tensor *in)
{
    tn_tensor *v = tn_arena_alloc(&c->arena, sizeof *v);
    if (!v) return NULL;
    *v = *x;
    v->base = in->base;
    v->in = v->in_;
    v->in_[0] = (tn_tensor *)(uintptr_t)in; /* passes only read */
    v->slot = -1;
    if (is_number(in)) {
        v->offset = 0;
        memset(v->stride, 0, sizeof v->stride);
    }
    return v;
}

static bool note_view(fu_ctx *c, const tn_tensor *of, const tn_tensor *same)
{
    if (c->n_view == c->cap_view) {
        int cap = c->cap_view ? 2 * c->cap_view : 32;
        struct fu_view *p = tn_arena_alloc(&c->arena, (size_t)cap * sizeof *p);
        if (!p) return false;
        if (c->n_view) memcpy(p, c->view, (size_t)c->n_view * sizeof *p);
        c->view = p;
        c->cap_view = cap;
    }
    ((tn_tensor *)(uintptr_t)of)->slot = FU_VIEW - c->n_view;
    c->view[c->n_view++] = (struct fu_view){of, same};
    return true;
}

/* Whether views of `in` can as well be views of `same`: of a number in the text, or of dense memory. */
static bool can_stand(const tn_tensor *same)
{
    if (is_number(same)) return same->base->op == TN_OP_constant;
    return same->base == same && !same->offset && tn_node_is_dense(same);
}

/* There and back again: the first of what x was made of that looks at the same elements. */
static const tn_tensor *shortest(const fu_ctx *c, const tn_tensor *x)
{
    const tn_tensor *best = x;
    for (const tn_tensor *v = x; v->n_in && v->base != v; v = v->in[0])
        if (same_elements(v->in[0], x) && fu_value_of(c, v->in[0]) == v->in[0]) best = v->in[0];
    return best;
}

/* Sets what stands for x, a view of a node of this segment; views it is a view of come first. */
static bool resolve_view(fu_ctx *c, const tn_tensor *x)
{
    if (fu_value_of(c, x) != x) return true;
    const tn_tensor *in = x->in[0];
    if (in->base != in && !resolve_view(c, in)) return false;
    const tn_tensor *of = fu_value_of(c, in), *same = x;
    if (of != in && (in->base != in || can_stand(of)) && !(same = view_like(c, x, of))) return false;
    same = shortest(c, same);
    return same == x || note_view(c, x, same);
}

/* ---- the pass ---- */

/* A value that is read through a view is read from memory where an assignment has put it. */
static void find_writers(fu_ctx *c)
{
    for (int i = 0; i < c->n_node; i++) {
        fu_node *n = &c->node[i];
        if (tn_node_written(n->t)) c->writer[c->n_writer++] = i;
        if (n->kind == TN_KIND_ASSIGN) n->same = n->t->in[1];
    }
    for (int i = 0; i < c->n_node; i++)
        for (int k = 0; k < c->node[i].t->n_in; k++) {
            const tn_tensor *t = c->node[i].t->in[k];
            int p = t->base == t ? -1 : fu_node_of(c, t);
            if (p >= 0 && c->node[p].kind == TN_KIND_ASSIGN) c->node[p].same = NULL;
        }
}

/* Node i is `op` of one operand from now on, with memory of its own. */
static bool make_unary(fu_ctx *c, int i, tn_op op, const tn_tensor *operand)
{
    fu_node *n = &c->node[i];
    tn_tensor *t = tn_arena_alloc(&c->arena, sizeof *t);
    if (!t) return false;
    *t = *n->t;
    t->op = op;
    t->base = t;
    t->n_in = 1;
    t->in = t->in_;
    t->in_[0] = (tn_tensor *)(uintptr_t)operand;
    t->attr = NULL;
    n->t = t;
    n->kind = tn_op_get(op)->kind;
    return true;
}

static int find_same(fu_ctx *c)
{
    fu_seen seen;
    if (!fu_seen_open(c, &seen)) return TN_E_NOMEM;
    for (int i = 0; i < c->n_node; i++) {
        fu_node *n = &c->node[i];
        const tn_tensor *t = n->t;
        for (int k = 0; k < t->n_in; k++)
            if (t->in[k]->base != t->in[k] && fu_node_of(c, t->in[k]) >= 0 && !resolve_view(c, t->in[k]))
                return TN_E_NOMEM;
        if (n->kind == TN_KIND_ASSIGN) {
            if (n->same) n->same = fu_value_of(c, n->same);
            continue;
        }
        if (tn_node_written(t)) continue;
        int status = 0;
        const tn_tensor *opposite = fu_negated(c, i, &status);
        if (status || (opposite && !make_unary(c, i, TN_OP_neg, opposite))) return TN_E_NOMEM;
        if (!n->root) n->same = fu_algebra(c, i, &status);
        c->plan->n_folded += opposite || n->same;
        if (n->same) continue;
        if (status) return status;
        int twin = fu_common(c, &seen, i);
        if (twin < 0) continue;
        c->plan->n_common++;
        n->same = c->node[twin].t;
        if (n->root && !make_unary(c, i, TN_OP_contiguous, n->same)) return TN_E_NOMEM;
    }
    return 0;
}

bool fu_draws(const fu_ctx *c, const tn_tensor *t, int k)
{
    return fu_node_of(c, t->in[k]) >= 0 && tn_attention_draws(t, k);
}

/* Ids fall along edges: from the back, all readers of a node come before it. */
static void find_live(fu_ctx *c)
{
    for (int i = c->n_node - 1; i >= 0; i--) {
        fu_node *n = &c->node[i];
        n->live = n->live || n->root || n->kind == TN_KIND_ASSIGN;
        for (int k = n->t->op == TN_OP_assign ? 1 : 0; n->live && k < n->t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
            if (p >= 0 && !fu_draws(c, n->t, k)) c->node[p].live = true;
        }
    }
}

int fu_simplify(fu_ctx *c)
{
    c->writer = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *c->writer);
    if (!c->writer) return TN_E_NOMEM;
    find_writers(c);
    int status = find_same(c);
    if (status) return status;
    find_live(c);
    for (int i = 0; i < c->n_node; i++) {
        const tn_tensor *t = c->node[i].t;
        for (int k = t->op == TN_OP_assign ? 1 : 0; c->node[i].live && k < t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, t->in[k]));
            if (p < 0 || fu_draws(c, t, k)) continue;
            if (!push(c, &c->node[p].user, &c->node[p].n_user, &c->node[p].cap_user, i) ||
                !fu_note_after(c, i, p))
                return TN_E_NOMEM;
        }
    }
    return fu_order_writers(c);
}
