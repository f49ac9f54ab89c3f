/* program_check.c - what a loop program may not do: run a kind of node over parts of axes that wants them
 * whole, overwrite what the group still reads, or want more of memory than a kernel has names for. Each is
 * asked while program.c builds, or once it has. Start with fu_overwrites. */
#include "loops.h"

#include <string.h>

/* Returns true unless member m runs over parts of axes, and its kind of node cannot: one that numbers its
 * elements, sums them up or looks for indices needs whole axes. */
bool fu_may_be_part(const fu_ctx *c, const fu_domain *d, int m)
{
    const tn_tensor *t = c->node[d->member[m]].t;
    int ndim;
    const int64_t *shape;
    bool part = false;
    fu_space(t, &ndim, &shape);
    for (int i = 0; i < ndim; i++) part = part || (shape[i] != 1 && d->map[m].axis[i].part);
    switch (tn_kind_of(t)) {
    case TN_KIND_ELTWISE:
    case TN_KIND_CAST:
    case TN_KIND_IOTA:
    case TN_KIND_VIEW: return !part || !tn_node_written(t);
    default: return !part;
    }
}

/* A store that overwrites memory: whatever the group reads there must be the very element it then writes, and
 * nothing may want to read it afterwards. */
tn_cut_reason fu_overwrites(const fu_candidate *cand, const fu_domain *d, const fu_prog *p, fu_store *s)
{
    const fu_ctx *c = p->c;
    const tn_tensor *t = c->node[s->node].t;
    const tn_tensor *to = tn_node_written(t);
    for (const fu_store *other = p->store; other < s; other++) {
        const tn_tensor *w = tn_node_written(c->node[other->node].t);
        if (w && tn_node_overlap(w, to)) return TN_CUT_ALIAS;
    }
    if (cand->copied) return TN_CUT_NONE;
    for (int i = 0; i < d->n; i++) {
        const tn_tensor *r = c->node[d->member[i]].t;
        for (int k = tn_kind_of(r) == TN_KIND_ASSIGN ? 1 : 0; k < r->n_in; k++) {
            const tn_tensor *o = fu_value_of(c, r->in[k]);
            fu_sight sight = fu_reads(c, o, t);
            if (sight == FU_UNSEEN) continue;
            int of = fu_node_of(c, o); /* a value of this group is not read from memory */
            bool inside = false;
            for (int a = 0; a < d->n && of >= 0; a++) inside = inside || d->member[a] == of;
            if (inside) continue;
            int64_t stride[FU_MAX_ATOMS] = {0}, moved = 0;
            if (sight == FU_NEW || !fu_pointwise_operand(r, k)) return TN_CUT_ALIAS;
            int shift = tn_kind_of(r) == TN_KIND_ROWS ? r->attr->axis : 0;
            for (int a = 0; a < o->ndim; a++)
                if (o->shape[a] != 1) fu_spread(d, &d->map[i].axis[a + shift], o->stride[a], stride, &moved);
            if (tn_node_home(o, NULL) != tn_node_home(to, NULL) || o->dtype != t->dtype || moved ||
                memcmp(stride, s->stride, sizeof stride))
                return TN_CUT_ALIAS;
            s->late = true;
        }
    }
    return TN_CUT_NONE;
}

/* Run-time numbers of the program, each once; a random draw has a seed and a counter. */
static int count_scalars(const fu_prog *p)
{
    int n = 0;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        bool known = v->kind != FU_SCALAR && v->kind != FU_RANDOM;
        for (int k = 0; k < i && !known; k++)
            known = p->value[k].kind == v->kind && p->value[k].slot == v->slot;
        n += known ? 0 : v->kind == FU_RANDOM ? 2 : 1;
    }
    return n;
}

/* What the program reads and writes, and the partial results of its sums. */
static int count_names(const fu_prog *p)
{
    int n = p->n_store;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        bool named = v->kind == FU_REDUCE;
        if (v->kind == FU_LOAD || v->kind == FU_PICK) {
            named = true;
            for (int k = 0; k < i && named; k++) {
                const fu_value *o = &p->value[k];
                named = (o->kind != FU_LOAD && o->kind != FU_PICK) || o->slot != v->slot ||
                        o->offset != v->offset;
            }
        }
        n += named;
    }
    return n;
}

bool fu_can_be_named(int n, const fu_prog *const *p, int others)
{
    int names = others, scalars = 0;
    for (int i = 0; i < n; i++) {
        names += count_names(p[i]);
        scalars += count_scalars(p[i]);
    }
    return names <= FU_MAX_BUFS && scalars <= FU_MAX_SCALARS;
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
