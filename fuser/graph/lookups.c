/* lookups.c - a run that meets an index out of range assigns nothing: indices are known to be in range before
 * the first assignment.
 *
 * Most assignments stand behind all lookups anyway, as an optimizer's do: what they write is made of
 * gradients of a loss that its labels were looked up for. Some do not: running statistics of batch_norm are
 * assigned while the labels have yet to be read. Then
 *
 *   ahead   an index that comes of what is in memory before the run, as labels and tokens do, is looked
 *           through by a small kernel before all others
 *   order   of an index that the run computes, assignments wait for whoever looks it up, and are made by
 *           other kernels
 *   undo    an assignment that such a lookup itself waits for, as it looks into what is assigned, is taken
 *           back where memory is the host's (tn_plan.undo); on a GPU it takes effect
 *
 * Start with fu_order_lookups, then fu_emit_checks.
 */
#include "../fuser.h"

#include <stdio.h>
#include <string.h>

/* ---- who looks up what ---- */

static bool looks_up(const fu_ctx *c, int i)
{
    const fu_node *n = &c->node[i];
    if (!n->live || (n->kind != TN_KIND_GATHER && n->kind != TN_KIND_SCATTER)) return false;
    /* a number is the same wherever the index points */
    const tn_tensor *x = fu_value_of(c, n->t->in[0]);
    const bool any = n->kind == TN_KIND_GATHER && tn_op_get((tn_op)x->base->op)->kind == TN_KIND_NUMBER;
    return !any && tn_node_numel(n->t) > 0 && tn_node_numel(fu_value_of(c, n->t->in[1])) > 0;
}

bool fu_lasts(const fu_ctx *c, int i)
{
    const tn_tensor *t = c->node[i].t, *to = tn_node_written(t);
    bool adds = false; /* to what is there, as a second backward does */
    if (!c->node[i].live || !to) return false;
    for (int k = 0; k < t->n_in && !adds; k++) {
        const tn_tensor *x = fu_value_of(c, t->in[k]);
        adds = fu_node_of(c, x) < 0 && tn_node_overlap(x, to);
    }
    return adds || c->node[i].kind == TN_KIND_ASSIGN;
}

static const tn_tensor *index_of(const fu_ctx *c, int i)
{
    return fu_value_of(c, c->node[i].t->in[1]);
}

static int64_t lines_of(const fu_ctx *c, int i)
{
    const tn_tensor *t = c->node[i].t;
    return (c->node[i].kind == TN_KIND_GATHER ? t->in[0] : t)->shape[t->attr->axis];
}

static bool is_use(const fu_ctx *c, int i, const fu_lookup *l)
{
    if (!looks_up(c, i) || lines_of(c, i) != l->extent) return false;
    const tn_tensor *a = index_of(c, i), *b = l->index;
    const size_t bytes = a->ndim * sizeof(int64_t);
    return a->base == b->base && a->offset == b->offset && a->ndim == b->ndim && a->dtype == b->dtype &&
           !memcmp(a->shape, b->shape, bytes) && !memcmp(a->stride, b->stride, bytes);
}

/* Positions that an operator has made are in range where there are not more of them than lines. */
static bool counts_lines(const fu_ctx *c, const fu_lookup *l)
{
    const int i = fu_node_of(c, l->index);
    if (i < 0) return false;
    const tn_tensor *t = c->node[i].t;
    int64_t most = 1;
    if (c->node[i].kind == TN_KIND_IOTA) return t->shape[t->attr->axis] <= l->extent;
    if (t->op != TN_OP_reduce_argmax && t->op != TN_OP_reduce_argmin) return false;
    for (int a = 0; a < t->in[0]->ndim; a++)
        if (t->attr->axes >> a & 1) most *= t->in[0]->shape[a];
    return most <= l->extent;
}

/* ---- ahead ---- */

enum { MOST = 12 }; /* nodes between memory and an index */

typedef struct chain {
    int n, node[MOST];
} chain;

/* Adds the node and what it is made of, operands first, down to what can be read before the run. */
static bool collect(const fu_ctx *c, int node, chain *s)
{
    const fu_node *m = &c->node[node];
    for (int i = 0; i < s->n; i++)
        if (s->node[i] == node) return true;
    if (m->kind != TN_KIND_ELTWISE && m->kind != TN_KIND_CAST && m->kind != TN_KIND_IOTA) return false;
    if (tn_node_written(m->t) || m->spared || m->into >= 0) return false;
    for (int k = 0; k < m->t->n_in; k++) {
        const tn_tensor *x = fu_value_of(c, m->t->in[k]);
        const int p = fu_node_of(c, x);
        if (tn_op_get((tn_op)x->base->op)->kind == TN_KIND_NUMBER) continue;
        if (p < 0 ? !fu_lasting(c, x) : !collect(c, p, s)) return false;
    }
    if (s->n == MOST) return false;
    s->node[s->n++] = node;
    return true;
}

tn_cut_reason fu_check_indices(fu_prog *p, const fu_lookup *l)
{
    fu_store *s = &p->store[0];
    if (p->n_store != 1 || p->n_value == FU_MAX_VALUES) return TN_CUT_SIZE;
    const fu_value *raw = &p->value[s->value];
    fu_value *v = &p->value[p->n_value];
    memset(v, 0, sizeof *v);
    v->kind = FU_INDEX;
    v->dtype = TN_I64;
    v->from = raw->dtype;
    v->n_arg = 1;
    v->arg[0] = s->value;
    v->vary = raw->vary;
    v->extent = l->extent;
    v->asker = l->node;
    v->node = v->stash = v->slot = -1;
    s->value = p->n_value++;
    s->node = -1;
    s->dtype = TN_I64;
    s->offset = 0;
    p->checks = l;
    return TN_CUT_NONE;
}

/* The program that looks l through, into c->prog. */
static bool program_of(fu_ctx *c, const fu_lookup *l)
{
    const fu_candidate k = {FU_NO_GROUP, FU_NO_GROUP, l->n, l->member, .settled = true, .checks = l};
    bool made;
    if (l->n)
        made = !fu_domain_build(c, c->domain, l->n, l->member) && !fu_program(c, &k, c->domain, c->prog);
    else
        made = fu_dense_program(c, l->index) >= 0 && !fu_check_indices(c->prog, l);
    return made && !fu_schedule(c->prog) && !c->prog->split && !c->prog->cross;
}

static bool sort_chain(fu_ctx *c, const chain *s, fu_lookup *l)
{
    l->member = tn_arena_alloc(&c->arena, (size_t)(s->n + 1) * sizeof *l->member);
    if (!l->member) return false;
    for (l->n = 0; l->n < s->n; l->n++) {
        int i = l->n;
        for (; i > 0 && l->member[i - 1] > s->node[l->n]; i--) l->member[i] = l->member[i - 1];
        l->member[i] = s->node[l->n];
    }
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
        l->ahead = tn_op_get((tn_op)x->base->op)->kind == TN_KIND_NUMBER || fu_lasting(c, x);
    l->ahead = l->ahead && program_of(c, l);
    return l->ahead;
}

/* ---- order ---- */

/* Whether node a waits for b, through whatever others. */
static bool waits_for(const fu_ctx *c, int a, int b, bool *seen)
{
    const fu_node *n = &c->node[a];
    for (int k = 0; k < n->n_after; k++) {
        const int d = n->after[k];
        if (d == b) return true;
        if (seen[d]) continue;
        seen[d] = true;
        if (waits_for(c, d, b, seen)) return true;
    }
    return false;
}

static int put_behind(fu_ctx *c, fu_lookup *l)
{
    enum { MANY = 24 }; /* each looks through the program */
    bool *seen = tn_arena_alloc(&c->arena, (size_t)c->n_node + 1);
    if (!seen) return TN_E_NOMEM;
    l->undone = c->target->dialect == TN_DIALECT_C && l - c->lookup >= MANY;
    c->plan->undo = c->plan->undo || l->undone;
    if (l->undone) return 0;
    for (int w = 0; w < c->n_node; w++) {
        if (!fu_lasts(c, w)) continue;
        memset(seen, 0, (size_t)c->n_node);
        bool settled = waits_for(c, w, l->node, seen);
        if (settled) continue;
        memset(seen, 0, (size_t)c->n_node);
        settled = waits_for(c, l->node, w, seen);
        c->plan->undo = c->plan->undo || settled;
        if (!settled && !fu_note_after(c, w, l->node)) return TN_E_NOMEM;
    }
    return 0;
}

static int note_lookup(fu_ctx *c, int i)
{
    for (int k = 0; k < c->n_lookup; k++)
        if (is_use(c, i, &c->lookup[k])) {
            c->lookup[k].known = c->lookup[k].known || c->node[i].t->attr->in_range;
            return 0;
        }
    fu_lookup *list = fu_grow(&c->arena, c->lookup, c->n_lookup, &c->cap_lookup, sizeof *list);
    if (!list) return TN_E_NOMEM;
    c->lookup = list;
    fu_lookup *l = &list[c->n_lookup++];
    *l = (fu_lookup){.index = index_of(c, i), .extent = lines_of(c, i), .node = i};
    l->known = c->node[i].t->attr->in_range || counts_lines(c, l);
    return 0;
}

int fu_order_lookups(fu_ctx *c)
{
    bool any = false;
    int status = 0;
    for (int i = 0; i < c->n_node && !any; i++) any = fu_lasts(c, i);
    for (int i = 0; i < c->n_node && any && !status; i++)
        if (looks_up(c, i)) status = note_lookup(c, i);
    for (int i = 0; i < c->n_lookup && !status; i++) {
        fu_lookup *l = &c->lookup[i];
        if (!l->known && !see_ahead(c, l)) status = put_behind(c, l);
    }
    return status;
}

static const fu_lookup *lookup_of(const fu_ctx *c, int i)
{
    for (int k = 0; k < c->n_lookup; k++)
        if (is_use(c, i, &c->lookup[k])) return &c->lookup[k];
    return NULL;
}

bool fu_looks_too_late(const fu_ctx *c, int n, const int *member)
{
    bool writes = false, late = false;
    for (int i = 0; i < n && c->n_lookup; i++) writes = writes || fu_lasts(c, member[i]);
    for (int i = 0; i < n && writes && !late; i++) {
        const fu_lookup *l = looks_up(c, member[i]) ? lookup_of(c, member[i]) : NULL;
        late = l && !l->known && !l->ahead && !l->undone;
    }
    return late;
}

/* ---- the checks ---- */

static void mark_awaited(fu_ctx *c, int g)
{
    fu_group *a = &c->group[g];
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < c->node[a->member[i]].n_after; k++) {
            const int d = fu_awaited(c, g, a->member[i], k);
            if (d == g || c->group[d].mark == c->mark) continue;
            c->group[d].mark = c->mark;
            mark_awaited(c, d);
        }
}

/* Whether every assignment waits for a kernel that looks l through. */
static bool is_first(fu_ctx *c, const fu_lookup *l)
{
    for (int w = 0; w < c->n_node; w++) {
        if (!fu_lasts(c, w)) continue;
        const int own = fu_group_of(c, w);
        bool before = false;
        c->mark++;
        mark_awaited(c, own);
        for (int i = 0; i < c->n_node && !before; i++)
            before =
                is_use(c, i, l) && fu_group_of(c, i) != own && c->group[fu_group_of(c, i)].mark == c->mark;
        if (!before) return false;
    }
    return true;
}

static int emit_check(fu_ctx *c, const fu_lookup *l)
{
    if (!program_of(c, l)) return fu_fail(c, TN_E_INTERNAL, "an index can no longer be looked through");
    const int slot = fu_scratch_slot(c, tn_node_numel(l->index), TN_I64), at = c->plan->n_step;
    if (slot < 0) return slot;
    fu_group none = {0};
    c->prog->store[0].slot = slot;
    const int status = fu_emit(c, &none, c->prog);
    if (status) return status;
    const tn_tensor *t = c->node[l->node].t;
    char text[160];
    snprintf(text, sizeof text, "looks whether all %s are from 0 to %lld, before anything is assigned",
             t->attr->indexed_by ? t->attr->indexed_by : "indices", (long long)l->extent - 1);
    tn_step *s = &c->plan->step[at];
    s->first_node = at; /* none, but not those of the step before */
    s->does = tn_arena_strdup(&c->plan->arena, text);
    return s->does ? 0 : fu_fail(c, TN_E_NOMEM, "no memory for a plan");
}

int fu_emit_checks(fu_ctx *c)
{
    int status = 0;
    for (int i = 0; i < c->n_lookup && !status; i++) {
        const fu_lookup *l = &c->lookup[i];
        if (!l->known && l->ahead && !is_first(c, l)) status = emit_check(c, l);
    }
    return status;
}
