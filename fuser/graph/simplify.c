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
 *   padding       pads.c: a convolution does it itself
 *   assignment    readers take the source, so that the memory may change later
 *
 * Beside that it marks what must have the same bits wherever it is made (find_strict).
 *
 * Start with fu_simplify. */
#include "graph.h"

#include <string.h>

/* ---- views ---- */

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
    if (tn_is_number(in)) {
        v->offset = 0;
        memset(v->stride, 0, sizeof v->stride);
    }
    return v;
}

static bool note_view(fu_ctx *c, const tn_tensor *of, const tn_tensor *same)
{
    struct fu_view *list = fu_grow(&c->arena, c->view, c->n_view, &c->cap_view, sizeof *list);
    if (!list) return false;
    c->view = list;
    ((tn_tensor *)(uintptr_t)of)->slot = FU_VIEW - c->n_view;
    c->view[c->n_view++] = (struct fu_view){of, same};
    return true;
}

/* Returns true where a view can look at `same` in the place of the tensor that `same` replaces: `same` is a
 * number that stands in the kernel's text, or dense memory. */
static bool can_stand(const tn_tensor *same)
{
    if (tn_is_number(same)) return same->base->op == TN_OP_constant;
    return same->base == same && !same->offset && tn_node_is_dense(same);
}

/* Returns the oldest tensor on the way from which x was made by views that looks at the same elements as x
 * does: views there and back again cancel. */
static const tn_tensor *shortest(const fu_ctx *c, const tn_tensor *x)
{
    const tn_tensor *best = x;
    for (const tn_tensor *v = x; v->n_in && v->base != v; v = v->in[0])
        if (same_elements(v->in[0], x) && fu_value_of(c, v->in[0]) == v->in[0]) best = v->in[0];
    return best;
}

/* Sets the tensor that readers of x take instead, where x is a view of a node of this segment. The views
 * that x is a view of are done first. */
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
static void find_sources(fu_ctx *c)
{
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].t->op == TN_OP_assign) c->node[i].same = c->node[i].t->in[1];
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
    t->op = (uint16_t)op;
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
            if (n->same && !fu_lasting(c, n->same)) n->same = NULL; /* a swap: then its target has it */
            continue;
        }
        int status = fu_take_padding(c, i);
        if (status) return status;
        if (tn_node_written(t)) continue;
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

/* Ids fall along edges: from the back, all readers of a node come before it. */
static void find_live(fu_ctx *c)
{
    for (int i = c->n_node - 1; i >= 0; i--) {
        fu_node *n = &c->node[i];
        n->live = n->live || n->root || n->kind == TN_KIND_ASSIGN;
        for (int k = tn_kind_of(n->t) == TN_KIND_ASSIGN ? 1 : 0; n->live && k < n->t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
            if (p >= 0 && !fu_draws(c, n->t, k)) c->node[p].live = true;
        }
    }
}

static bool is_extreme(const fu_ctx *c, int i)
{
    return i >= 0 && (c->node[i].t->op == TN_OP_reduce_max || c->node[i].t->op == TN_OP_reduce_min);
}

static int operand_node(const fu_ctx *c, int i, int k)
{
    return fu_node_of(c, fu_value_of(c, c->node[i].t->in[k]));
}

/* Of a comparison: an extreme, or one that was widened for it. */
static bool of_extreme(const fu_ctx *c, int i, int k)
{
    int x = operand_node(c, i, k);
    return is_extreme(c, x >= 0 && c->node[x].kind == TN_KIND_CAST ? operand_node(c, x, 0) : x);
}

/* 16-bit floats keep f32's digits inside of a kernel. Of what is compared with an extreme, as the gradient of
 * the extreme does, one kernel would make it from such digits and another from memory, where they are
 * rounded, and nothing would equal the extreme: what leads there is rounded in both. Sums are made but once.
 *
 * So is what is widened to f32, as norms and losses do where they begin: forward takes the mean of values
 * that it has just made, backward the differences from that mean of values from memory, which nearly cancel.
 * And whoever casts to 16 bits and back wants the rounding. */
static void find_strict(fu_ctx *c)
{
    for (int i = 0; i < c->n_node; i++) {
        const tn_tensor *t = c->node[i].t;
        if (!c->node[i].live || t->dtype != TN_BOOL || c->node[i].kind != TN_KIND_ELTWISE) continue;
        for (int k = 0; k < t->n_in; k++)
            for (int j = 0, x; j < t->n_in && of_extreme(c, i, k); j++)
                if ((x = operand_node(c, i, j)) >= 0) c->node[x].strict = true;
    }
    for (int i = 0; i < c->n_node; i++) {
        const int x = c->node[i].live && fu_widens(&c->node[i]) ? operand_node(c, i, 0) : -1;
        if (x >= 0) c->node[x].strict = true;
    }
    for (int i = c->n_node - 1; i >= 0; i--) {
        const fu_node *n = &c->node[i];
        if (!n->strict || (n->kind == TN_KIND_REDUCE && !is_extreme(c, i))) continue;
        for (int k = 0, x; k < n->t->n_in; k++)
            if ((x = operand_node(c, i, k)) >= 0) c->node[x].strict = true;
    }
}

int fu_simplify(fu_ctx *c)
{
    int status = fu_list_writers(c);
    if (status) return status;
    find_sources(c);
    if ((status = find_same(c))) return status;
    find_live(c);
    find_strict(c);
    int before[2] = {-1,
                     -1}; /* what ranks do together: means, and gatherings, which means need not wait for */
    for (int i = 0; i < c->n_node; i++) {
        const tn_tensor *t = c->node[i].t;
        if (c->node[i].live && c->node[i].kind == TN_KIND_RANKS) { /* in this order on each rank */
            int *last = &before[tn_together_of(t) == TN_GATHER];
            if (*last >= 0 && !fu_note_after(c, i, *last)) return TN_E_NOMEM;
            *last = i;
        }
        for (int k = tn_kind_of(t) == TN_KIND_ASSIGN ? 1 : 0; c->node[i].live && k < t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, t->in[k]));
            if (p < 0 || fu_draws(c, t, k)) continue;
            if (!fu_note_user(c, p, i) || !fu_note_after(c, i, p)) return TN_E_NOMEM;
        }
    }
    return fu_order_writers(c);
}
