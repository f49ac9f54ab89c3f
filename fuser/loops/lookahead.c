/* lookahead.c - indices that are computed from memory that is there before the run, and the programs that
 * look them through before anything is assigned (graph/lookups.c says why). Also the program of a dense copy.
 * Start with fu_order_lookups. */
#include "loops.h"

#include <string.h>

enum { MOST = 12 }; /* nodes between memory and an index */

typedef struct chain {
    int n, node[MOST];
} chain;

/* Adds the node and the nodes that it depends on, operands first, down to memory that can be read before
 * the run. */
static bool collect(const fu_ctx *c, int node, chain *s)
{
    const fu_node *m = &c->node[node];
    if (fu_find(s->n, s->node, node) >= 0) return true;
    if (m->kind != TN_KIND_ELTWISE && m->kind != TN_KIND_CAST && m->kind != TN_KIND_IOTA) return false;
    if (tn_node_written(m->t) || m->spared || m->into >= 0) return false;
    for (int k = 0; k < m->t->n_in; k++) {
        const tn_tensor *x = fu_value_of(c, m->t->in[k]);
        const int p = fu_node_of(c, x);
        if (tn_is_number(x)) continue;
        if (p < 0 ? !fu_lasting(c, x) : !collect(c, p, s)) return false;
    }
    if (s->n == MOST) return false;
    s->node[s->n++] = node;
    return true;
}

int64_t fu_copy_program(fu_ctx *c, const tn_tensor *t, const int64_t *whole)
{
    fu_prog *p = c->prog;
    memset(p, 0, offsetof(fu_prog, value));
    p->c = c;
    p->n_value = p->n_store = 1;
    p->last_bytes = fu_last_bytes(c->target);
    fu_value *v = &p->value[0];
    fu_store *s = &p->store[0];
    memset(v, 0, sizeof *v);
    memset(s, 0, sizeof *s);
    bool number = tn_is_number(t);
    v->kind = !number ? FU_LOAD : t->base->op == TN_OP_scalar ? FU_SCALAR : FU_NUMBER;
    v->dtype = v->from = s->dtype = t->dtype;
    v->node = v->stash = -1;
    s->node = s->mask = -1;
    if (number) v->number = t->base->attr->number;
    if (!fu_place(c, t, &v->slot, &v->offset) && v->kind != FU_NUMBER)
        return fu_fail(c, TN_E_INTERNAL, "an operand has no memory");
    fu_hint(t->name ? t->name : t->base->name, v->hint);
    int64_t below = 1;
    for (int i = 0; i < t->ndim; i++) {
        p->n_atom += t->shape[i] != 1;
        below *= whole[i];
    }
    for (int i = 0, a = 0; i < t->ndim; i++) {
        below = whole[i] ? below / whole[i] : 0;
        if (t->shape[i] == 1) continue;
        p->extent[a] = t->shape[i];
        if (!number) v->stride[a] = t->stride[i];
        if (!number && t->stride[i]) v->vary |= fu_bit(a);
        s->stride[a] = below;
        s->dom |= fu_bit(a++);
    }
    return tn_node_numel(t);
}

bool fu_lookahead_program(fu_ctx *c, const fu_lookup *l)
{
    const fu_candidate k = {FU_NO_GROUP, FU_NO_GROUP, l->n, l->member, .settled = true, .checks = l};
    bool made;
    if (l->n)
        made = !fu_domain_build(c, c->domain, l->n, l->member) && !fu_program(c, &k, c->domain, c->prog);
    else
        made = fu_copy_program(c, l->index, l->index->shape) >= 0 && !fu_check_indices(c->prog, l);
    return made && !fu_schedule(c->prog) && !c->prog->split && !c->prog->cross;
}

static bool sort_chain(fu_ctx *c, const chain *s, fu_lookup *l)
{
    l->n = s->n;
    l->member = tn_arena_alloc(&c->arena, (size_t)(s->n + 1) * sizeof *l->member);
    if (!l->member) return false;
    memcpy(l->member, s->node, (size_t)s->n * sizeof *l->member);
    fu_by_id(l->n, l->member);
    return true;
}

/* Of a view of what the run computes only one that shows all of it once, in its order. */
static bool see_ahead(fu_ctx *c, fu_lookup *l)
{
    const tn_tensor *x = l->index;
    const int node = fu_node_of(c, x);
    chain s = {0};
    l->ahead = true;
    if (node >= 0) {
        const bool whole = tn_node_is_dense(x) && tn_node_numel(x) == tn_node_numel(c->node[node].t);
        l->ahead = whole && collect(c, node, &s) && sort_chain(c, &s, l);
    } else
        l->ahead = tn_is_number(x) || fu_lasting(c, x);
    l->ahead = l->ahead && fu_lookahead_program(c, l);
    return l->ahead;
}

/* The n-th node that assignments wait for, each of which is looked for through the program: so many that they
 * are rather taken back. */
static bool many_wait(fu_ctx *c, int *n)
{
    enum { MANY = 24 };
    const bool undone = fu_can(c->target)->undo && (*n)++ >= MANY;
    c->plan->undo = c->plan->undo || undone;
    return undone;
}

int fu_order_lookups(fu_ctx *c)
{
    int status = fu_list_lookups(c), n = 0;
    for (int i = 0; i < c->n_lookup && !status; i++) {
        fu_lookup *l = &c->lookup[i];
        if (l->known || see_ahead(c, l)) continue;
        l->undone = many_wait(c, &n);
        if (!l->undone) status = fu_put_behind(c, l->node);
    }
    for (int i = 0; i < c->n_node && !status; i++)
        if (c->node[i].live && c->node[i].kind == TN_KIND_HOST && !many_wait(c, &n))
            status = fu_put_behind(c, i);
    return status;
}
