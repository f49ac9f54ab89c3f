/* simplify.c - what need not run: dead nodes, and nodes whose value another one has already.
 *
 * The user's graph is never changed. A replaced node keeps its place in the segment, and fu_value_of looks
 * through it. Start with fu_simplify.
 */
#include "fuser.h"

const tn_tensor *fu_value_of(const fu_ctx *c, const tn_tensor *t)
{
    for (;;) {
        if (t->slot < 0 || t->slot >= c->n_node || c->node[t->slot].t != t || c->node[t->slot].replaced < 0)
            return t;
        t = t->in[c->node[t->slot].replaced];
    }
}

int fu_node_of(const fu_ctx *c, const tn_tensor *t)
{
    int64_t s = t->base->slot;
    return s >= 0 && s < c->n_node && c->node[s].t == t->base ? (int)s : -1;
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

static bool is_constant(const tn_tensor *t, double v)
{
    return t->base->op == TN_OP_constant &&
           (t->base->attr->number.is_int ? (double)t->base->attr->number.i : t->base->attr->number.f) == v;
}

/* Operand whose value t has, bit for bit, or -1. */
static int same_as(const tn_tensor *t)
{
    switch (t->op) {
    case TN_OP_mul:
        return is_constant(t->in[1], 1) ? 0 : is_constant(t->in[0], 1) ? 1 : -1;
    case TN_OP_div:
        return is_constant(t->in[1], 1) ? 0 : -1;
    case TN_OP_sub:
        return is_constant(t->in[1], 0) ? 0 : -1;
    default:
        return -1;
    }
}

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

static void live(fu_ctx *c, int node)
{
    if (c->node[node].live) return;
    c->node[node].live = true; /* ids fall along edges: the caller walks them from the back */
}

bool fu_note_after(fu_ctx *c, int node, int other)
{
    fu_node *n = &c->node[node];
    return push(c, &n->after, &n->n_after, &n->cap_after, other);
}

int fu_simplify(fu_ctx *c)
{
    for (int i = 0; i < c->n_node; i++) {
        fu_node *n = &c->node[i];
        if (n->kind == TN_KIND_ASSIGN)
            n->replaced = 1; /* readers take the value itself, so that the memory may change later */
        else if (!n->root)
            n->replaced = same_as(n->t);
    }
    /* a view names its base: what is read through one stays */
    for (int i = 0; i < c->n_node; i++)
        for (int k = 0; k < c->node[i].t->n_in; k++) {
            const tn_tensor *t = c->node[i].t->in[k];
            int p = fu_node_of(c, t);
            if (p >= 0 && c->node[p].t != t) c->node[p].replaced = -1;
        }
    for (int i = 0; i < c->n_node; i++)
        if (c->node[i].root || c->node[i].kind == TN_KIND_ASSIGN) live(c, i);
    for (int i = c->n_node - 1; i >= 0; i--) {
        if (!c->node[i].live) continue;
        const tn_tensor *t = c->node[i].t;
        for (int k = t->op == TN_OP_assign ? 1 : 0; k < t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, t->in[k]));
            if (p >= 0) live(c, p);
        }
    }
    for (int i = 0; i < c->n_node; i++) {
        if (!c->node[i].live) continue;
        const tn_tensor *t = c->node[i].t;
        for (int k = t->op == TN_OP_assign ? 1 : 0; k < t->n_in; k++) {
            int p = fu_node_of(c, fu_value_of(c, t->in[k]));
            if (p < 0) continue;
            if (!push(c, &c->node[p].user, &c->node[p].n_user, &c->node[p].cap_user, i) ||
                !fu_note_after(c, i, p))
                return TN_E_NOMEM;
        }
    }
    return fu_order_writers(c);
}
