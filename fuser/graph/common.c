/* common.c - nodes that compute the same: equal op, attributes, dtype, shape and operands.
 *
 * Operands are equal when they look at the same elements of the same memory - of one node, of one leaf, which
 * stands for one version of its tensor - or are equal constants. Random draws are never equal, and what is
 * written to memory of others is not looked at.
 *
 * The backward pass could take a value from the forward pass instead of computing it again; that keeps it in
 * memory for the whole time between the two. The gradient of a composite computes again those values that it
 * does not want to keep. So two nodes, one of each pass, become one only where the value is much smaller
 * than its operands, or a library computes it (worth_keeping).
 *
 * Start with fu_common. */
#include <string.h>

#include "../../src/core/hash.h"
#include "graph.h"

bool fu_seen_open(fu_ctx *c, fu_seen *s)
{
    uint32_t n = 64;
    while (n < 2 * (uint32_t)c->n_node) n *= 2;
    s->mask = n - 1;
    s->slot = tn_arena_alloc(&c->arena, n * sizeof *s->slot);
    if (s->slot) memset(s->slot, -1, n * sizeof *s->slot);
    return s->slot != NULL;
}

/* What is counted out costs nothing where it is read, and would tie kernels together that share nothing. */
static bool may_be_common(tn_kind kind)
{
    return (tn_kind_traits(kind) & TN_KIND_COMPUTED) && kind != TN_KIND_IOTA;
}

static bool is_constant(const tn_tensor *x) { return x->base->op == TN_OP_constant; }

/* The leaf x is, or the first that is the same: its slot. -1: x is no leaf. */
static int leaf_of(const fu_ctx *c, const tn_tensor *x)
{
    int64_t s = x->slot - c->n_node;
    if (s < 0 || s >= c->n_leaf || c->seg->leaf[s] != x) return -1;
    return c->n_node + (c->seg->twin ? c->seg->twin[s] : (int)s);
}

static bool same_number(const tn_number *a, const tn_number *b)
{
    return a->is_int == b->is_int && a->i == b->i && !memcmp(&a->f, &b->f, sizeof a->f);
}

static bool same_operand(const fu_ctx *c, const tn_tensor *a, const tn_tensor *b)
{
    if (a == b) return true;
    if (!tn_same_type(a, b)) return false;
    if (is_constant(a)) return is_constant(b) && same_number(&a->base->attr->number, &b->base->attr->number);
    int la = leaf_of(c, a), lb = leaf_of(c, b);
    if (la >= 0 || lb >= 0) return la == lb;
    return tn_same_view(a, b);
}

static uint64_t hash_operand(const fu_ctx *c, const tn_tensor *x)
{
    if (is_constant(x)) return (uint64_t)x->base->attr->number.i ^ 0x9e3779b97f4a7c15u;
    int leaf = leaf_of(c, x);
    uint64_t base = (uint64_t)(leaf >= 0 ? leaf : x->base->slot);
    return tn_hash_mix(base ^ 0x8cb92ba72f3d8dd7u,
                       (uint64_t)(leaf >= 0 ? 0 : x->offset) ^ 0xd1b54a32d192ed03u);
}

/* x + y and y + x round alike. */
static bool commutes(const tn_tensor *t) { return t->op == TN_OP_add || t->op == TN_OP_mul; }

static uint64_t hash_node(const fu_ctx *c, const tn_tensor *t)
{
    uint64_t h = (uint64_t)t->op | (uint64_t)t->dtype << 16 | (uint64_t)t->ndim << 24, sum = 0;
    for (int i = 0; i < t->ndim; i++) h = tn_hash_mix(h ^ 0x2545f4914f6cdd1du, (uint64_t)t->shape[i] + 1);
    for (int k = 0; k < t->n_in; k++) {
        uint64_t x = hash_operand(c, fu_value_of(c, t->in[k]));
        if (commutes(t))
            sum += x;
        else
            h = tn_hash_mix(h ^ 0xaef17502108ef2d9u, x ^ 0x8cb92ba72f3d8dd7u);
    }
    return commutes(t) ? tn_hash_mix(h, sum) : h;
}

static bool same_operands(const fu_ctx *c, const tn_tensor *a, const tn_tensor *b)
{
    bool straight = a->n_in == b->n_in, crossed = straight && commutes(a);
    for (int k = 0; k < a->n_in && (straight || crossed); k++) {
        const tn_tensor *x = fu_value_of(c, a->in[k]);
        straight = straight && same_operand(c, x, fu_value_of(c, b->in[k]));
        crossed = crossed && same_operand(c, x, fu_value_of(c, b->in[a->n_in - 1 - k]));
    }
    return straight || crossed;
}

static bool same_node(const fu_ctx *c, const tn_tensor *a, const tn_tensor *b)
{
    return a->op == b->op && tn_same_type(a, b) && !a->attr == !b->attr &&
           (!a->attr || !memcmp(a->attr, b->attr, sizeof *a->attr)) && same_operands(c, a, b);
}

static bool of_backward(const tn_tensor *t) { return t->call && t->call->backward; }

/* Returns true where the backward pass shall read the value that the forward pass has computed, rather than
 * compute it again: where that is expensive, or the value much smaller than its operands. */
static bool worth_keeping(const fu_ctx *c, const fu_node *n)
{
    enum { MUCH = 4 };
    int64_t most = 0;
    if (c->seg->root && c->seg->root[n - c->node] & TN_SEG_AGAIN) return false;
    if (n->kind == TN_KIND_GEMM || n->kind == TN_KIND_CONV || n->kind == TN_KIND_ATTENTION) return true;
    for (int k = 0; k < n->t->n_in; k++) {
        int64_t read = tn_node_numel(fu_value_of(c, n->t->in[k]));
        most = read > most ? read : most;
    }
    return tn_node_numel(n->t) * MUCH <= most;
}

int fu_common(const fu_ctx *c, fu_seen *s, int i)
{
    const fu_node *n = &c->node[i];
    if (!may_be_common(n->kind)) return -1;
    uint32_t at = (uint32_t)hash_node(c, n->t) & s->mask;
    for (; s->slot[at] >= 0; at = (at + 1) & s->mask) {
        const fu_node *o = &c->node[s->slot[at]];
        if (!same_node(c, o->t, n->t)) continue;
        if (of_backward(o->t) == of_backward(n->t) || worth_keeping(c, n)) return s->slot[at];
    }
    s->slot[at] = i;
    return -1;
}
