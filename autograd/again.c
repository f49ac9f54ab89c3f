/* again.c - what is not kept for gradients, recorded once more when the backward walk comes to it: gradients
 * read the second values, and the first need not be kept.
 *
 *   a checkpoint   all that was recorded between tn_checkpoint_begin and its end, at once; a part of forward
 *                  that a memory budget names is the same (runtime/budget.c)
 *   one value      by itself, with what it is made of (runtime/rematerialize.c), where a gradient reads it
 *
 * Taken as they are, and kept where they have a value: operands from outside, numbers, random draws, whose
 * kernels draw the same numbers again, and what assignments have changed since. Start with tn_read_again. */
#include <string.h>

#include "autograd.h"

static tn_tensor *now(tn_tensor *x, uint32_t region)
{
    return x && x->region == region && x->again ? x->again : x;
}

/* Those of the nodes whose values a second node can make. */
static bool can_be_made(const tn_tensor *n)
{
    if (!(tn_kind_traits(tn_kind_of(n)) & TN_KIND_COMPUTED)) return false;
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

bool tn_backward_call(tn_graph *g, tn_call *of, const char *name, bool again)
{
    tn_call *c = tn_arena_alloc(&g->arena, sizeof *c);
    if (!c) return tn_error_set(g, TN_E_NOMEM, "no memory for the gradient walk") != NULL;
    *c = (tn_call){.name = name, .backward = true, .again = again, .of = of, .first = g->n_nodes};
    g->call = c;
    return true;
}

/* Opens a call for what is made again of `of`, unless that stands open, within `open`. */
static bool open_call(tn_graph *g, tn_call *of, const tn_call *open)
{
    if (!of || (g->call != open && g->call->of == of)) return true;
    return tn_backward_call(g, of, of->name, true);
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

/* ---- a checkpoint ---- */

static bool make_region(tn_graph *g, const tn_tensor *last)
{
    const uint32_t region = last->region;
    tn_call *const open = g->call;
    uint32_t first = last->id;
    bool ok = true;
    while (first && g->nodes[first - 1]->region == region) first--;
    for (uint32_t i = first; i <= last->id && ok; i++) {
        tn_tensor *n = g->nodes[i];
        if (!n->again && can_be_made(n)) ok = open_call(g, n->call, open) && make(g, n);
    }
    g->call = open;
    return ok;
}

/* ---- one value ---- */

static bool is_alone(const tn_tensor *x) { return x && x->region == TN_REGION_AGAIN; }

static bool make_value(tn_graph *g, tn_tensor *x, const tn_call *open)
{
    bool ok = true;
    if (!is_alone(x) || x->again || !can_be_made(x)) return true;
    for (int i = 0; i < x->n_in && ok; i++) ok = make_value(g, x->in[i], open);
    ok = ok && (x->base == x || make_value(g, x->base, open));
    return ok && open_call(g, x->call, open) && make(g, x);
}

/* Makes again what n's gradient reads of such values. *any: there are some. */
static bool make_read(tn_graph *g, const tn_tensor *n, bool *any)
{
    tn_call *const open = g->call;
    const tn_rule *r = n->rule;
    bool ok = true;
    for (int i = 0; i < TN_MAX_ARGS && r && ok; i++) {
        *any = *any || is_alone(r->args[i]) || is_alone(r->saved[i]);
        ok = make_value(g, r->args[i], open) && make_value(g, r->saved[i], open);
    }
    for (int i = 0; r && i < r->n_list && ok; i++) {
        *any = *any || is_alone(r->list[i]);
        ok = make_value(g, r->list[i], open);
    }
    for (int i = 0; !r && i < n->n_in && ok; i++) {
        *any = *any || is_alone(n->in[i]);
        ok = make_value(g, n->in[i], open);
    }
    g->call = open;
    return ok;
}

/* n, but for its operands, which are the second ones: a node that its gradient alone sees. */
static tn_tensor *with_operands(tn_graph *g, tn_tensor *n)
{
    tn_tensor *v = tn_arena_alloc(&g->arena, sizeof *v);
    tn_tensor **in = tn_arena_alloc(&g->arena, ((size_t)n->n_in + 1) * sizeof *in);
    if (!v || !in) return tn_error_set(g, TN_E_NOMEM, "no memory for the gradient walk");
    *v = *n;
    v->in = in;
    for (int i = 0; i < n->n_in; i++) in[i] = now(n->in[i], TN_REGION_AGAIN);
    return !n->rule || (v->rule = rule_again(g, n->rule, n, TN_REGION_AGAIN)) ? v : NULL;
}

tn_tensor *tn_read_again(tn_graph *g, tn_tensor *n)
{
    bool any = false, ok = true;
    tn_call *const open = g->call;
    if (is_alone(n)) {
        ok = make_value(g, n, open);
        g->call = open;
    } else if (n->region)
        ok = n->again || make_region(g, n);
    else if (!n->rule && tn_op_needs(n->op) & TN_NEEDS_OUT)
        return n; /* it reads itself, too, which is the first */
    else
        ok = make_read(g, n, &any);
    return !ok ? NULL : any ? with_operands(g, n) : n->again ? n->again : n;
}
