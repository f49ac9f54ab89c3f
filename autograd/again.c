/* again.c - what was recorded between tn_checkpoint_begin and tn_checkpoint_end, recorded once more when the
 * backward walk comes to it: gradients read the second values, and the first need not be kept.
 *
 * Taken as they are, and kept where they have a value: operands from outside, numbers, random draws, whose
 * kernels draw the same numbers again, and what assignments have changed since. Start with tn_again.
 */
#include <string.h>

#include "autograd.h"

static tn_tensor *now(tn_tensor *x, uint32_t region)
{
    return x && x->region == region && x->again ? x->again : x;
}

/* Those of the nodes whose values a second node can make. */
static bool can_be_made(const tn_tensor *n)
{
    if (!tn_kind_is_computed(tn_kind_of(n))) return false;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]->base->flags & TN_F_LOST) return false;
    return true;
}

static tn_rule *rule_again(tn_graph *g, const tn_rule *of, tn_tensor *out, uint32_t region)
{
    tn_rule *r = tn_arena_alloc(&g->arena, sizeof *r);
    if (!r) return tn_error_set(g, TN_E_NOMEM, "no memory for the gradient walk");
    *r = *of;
    r->out = out;
    for (int i = 0; i < TN_MAX_ARGS; i++) {
        r->args[i] = now(of->args[i], region);
        r->saved[i] = now(of->saved[i], region);
    }
    if (!of->list) return r;
    r->list = tn_arena_alloc(&g->arena, (size_t)of->n_list * sizeof *r->list + 1);
    if (!r->list) return tn_error_set(g, TN_E_NOMEM, "no memory for the gradient walk");
    for (int i = 0; i < of->n_list; i++) r->list[i] = now(of->list[i], region);
    return r;
}

static bool make(tn_graph *g, tn_tensor *n)
{
    tn_tensor *in[UINT8_MAX];
    for (int i = 0; i < n->n_in; i++) in[i] = now(n->in[i], n->region);
    tn_tensor *m = tn_node_new(g, n->op, n->dtype, n->ndim, n->shape, n->n_in, in);
    if (!m) return false;
    m->attr = n->attr;
    m->base = n->base == n ? m : now(n->base, n->region);
    m->offset = n->offset;
    memcpy(m->stride, n->stride, sizeof m->stride);
    m->flags |= TN_F_AGAIN | TN_F_WALKED | (n->flags & TN_F_REQUIRES_GRAD);
    m->walked = g->n_nodes;
    n->again = m;
    return !n->rule || (m->rule = rule_again(g, n->rule, m, n->region));
}

bool tn_again(tn_graph *g, const tn_tensor *last)
{
    const uint32_t region = last->region;
    tn_call *const open = g->call;
    uint32_t first = last->id;
    bool ok = true;
    while (first && g->nodes[first - 1]->region == region) first--;
    for (uint32_t i = first; i <= last->id && ok; i++) {
        tn_tensor *n = g->nodes[i];
        if (n->again || !can_be_made(n)) continue;
        if (n->call && (g->call == open || g->call->of != n->call)) {
            tn_call *c = tn_arena_alloc(&g->arena, sizeof *c);
            if (!c) return tn_error_set(g, TN_E_NOMEM, "no memory for the gradient walk") != NULL;
            *c = (tn_call){
                .name = n->call->name, .backward = true, .again = true, .of = n->call, .first = g->n_nodes};
            g->call = c;
        }
        ok = make(g, n);
    }
    g->call = open;
    return ok;
}
