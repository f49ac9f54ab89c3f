/* domain.c - the iteration space of a set of nodes.
 *
 * Every member has its own loop space (fu_space): a list of axes with extents. The axes of all members are
 * expressed in common atoms by propagation: the largest member gets fresh atoms, and each edge hands lists of
 * atoms on in both directions, through expand, permute and reshape. A reshape that cuts an axis splits the
 * atom everywhere. An axis of extent 1 may carry a guess: the atoms it had before a reduction, which tells a
 * later expand where to put it back. Behind a pad stands a part of the pad's axis, behind a flip the axis
 * read backwards: such axes are handed on whole.
 *
 * Start with fu_domain_build, then pass_edge. */
#include "loops.h"

#include <string.h>

/* Views whose own coordinates are the space: what they show, or each of what they join, is a part of it. */
static bool surrounds(const tn_tensor *t) { return t->op == TN_OP_pad || t->op == TN_OP_concat; }

void fu_space(const tn_tensor *t, int *ndim, const int64_t **shape)
{
    tn_kind k = tn_kind_of(t);
    bool input = k == TN_KIND_REDUCE || (k == TN_KIND_VIEW && !surrounds(t));
    const tn_tensor *s = input ? t->in[0] : t;
    *ndim = s->ndim;
    *shape = s->shape;
}

bool fu_pointwise_operand(const tn_tensor *t, int k)
{
    tn_kind kind = tn_kind_of(t);
    return kind != TN_KIND_CONV && kind != TN_KIND_GEMM &&
           !((tn_kind_looks_up(kind) || kind == TN_KIND_ASSIGN || t->op == TN_OP_pad) && k == 0) &&
           t->op != TN_OP_concat;
}

bool fu_part(const tn_tensor *t, int k, int i, int64_t *before, int64_t *count)
{
    if (t->op == TN_OP_concat) {
        *before = 0;
        for (int o = 0; o < k && i == t->attr->axis; o++) *before += t->in[o]->shape[i];
    } else if (t->op == TN_OP_pad && !k) {
        *before = t->attr->v[0][i];
    } else {
        return false;
    }
    *count = t->in[k]->shape[i];
    return *before || *count != t->shape[i];
}

typedef enum result { SAME, CHANGED, AGAIN, CONFLICT } result;

static int64_t places(const fu_domain *d, const fu_axis *a)
{
    int64_t p = 1;
    for (int i = 0; i < a->n; i++) p *= d->extent[a->atom[i]];
    return p;
}

static int64_t extent_of(const fu_domain *d, const fu_axis *a) { return a->part ? a->count : places(d, a); }

void fu_part_axis(const fu_domain *d, fu_axis *a, int64_t start, int64_t step, int64_t count)
{
    a->step = step * (a->part ? a->step : 1);
    a->shift = step * a->shift - start;
    a->part = a->step != 1 || a->shift || count != places(d, a);
    a->count = a->part ? count : 0;
}

void fu_spread(const fu_domain *d, const fu_axis *axis, int64_t stride, int64_t *out, int64_t *shift)
{
    *shift -= stride * axis->shift;
    if (axis->part) stride *= axis->step;
    for (int i = axis->n - 1; i >= 0; i--) {
        out[axis->atom[i]] += stride;
        stride *= d->extent[axis->atom[i]];
    }
}

bool fu_axis_bounded(const fu_domain *d, const fu_axis *a)
{
    int64_t first = -a->shift, last = a->step * (places(d, a) - 1) - a->shift;
    int64_t low = first < last ? first : last, high = first < last ? last : first;
    return a->part && (low < 0 || high >= a->count);
}

bool fu_axis_covered(const fu_domain *d, const fu_axis *a)
{
    int64_t first = -a->shift, last = a->step * (places(d, a) - 1) - a->shift;
    int64_t low = first < last ? first : last, high = first < last ? last : first;
    return !a->part || ((a->step == 1 || a->step == -1) && low <= 0 && high >= a->count - 1);
}

static bool same_axis(const fu_axis *a, const fu_axis *b)
{
    bool list = a->n == b->n && !memcmp(a->atom, b->atom, a->n);
    bool part = a->part ? a->step == b->step && a->shift == b->shift && a->count == b->count : true;
    return list && a->part == b->part && part;
}

/* Writes src, which an edge says is the list of an axis of `extent`, into dst. */
static result put(const fu_domain *d, fu_axis *dst, const fu_axis *src, int64_t extent, bool ghost)
{
    if (!src->level) return SAME;
    uint8_t level = ghost || extent == 1 ? 1 : src->level;
    if (extent != 1 && extent_of(d, src) != extent) return src->level == 2 && !ghost ? CONFLICT : SAME;
    if (dst->level >= level) {
        bool wrong = d->strict ? extent != 1 && !ghost : dst->level == 2 && level == 2;
        return wrong && !same_axis(dst, src) ? CONFLICT : SAME;
    }
    *dst = *src;
    dst->level = level;
    return CHANGED;
}

/* Atom a becomes (a of extent outer, a new one right inside it). */
static bool split_atom(fu_domain *d, int a, int64_t outer)
{
    if (d->n_atom == FU_MAX_ATOMS) return false;
    int b = d->n_atom++;
    d->extent[b] = d->extent[a] / outer;
    d->extent[a] = outer;
    for (int i = b; i > 0; i--) {
        d->order[i] = d->order[i - 1];
        if (d->order[i] == a) {
            d->order[i] = (uint8_t)b;
            /* everything from here to the front stays where it is */
            break;
        }
    }
    for (int m = 0; m < d->n; m++)
        TN_EACH(l, d->map[m].axis, TN_MAX_DIMS) {
            for (int i = 0; i < l->n; i++)
                if (l->atom[i] == a) {
                    if (l->n == FU_MAX_ATOMS) return false;
                    memmove(l->atom + i + 2, l->atom + i + 1, (size_t)(l->n - i - 1));
                    l->atom[i + 1] = (uint8_t)b;
                    l->n++;
                    break;
                }
        }
    return true;
}

/* Lists of the axes of shape `b` from those of shape `a` with as many elements, both row-major. */
static result reshape_map(fu_domain *d, int na, const int64_t *a, const fu_map *ma, int nb, const int64_t *b,
                          fu_map *mb)
{
    struct {
        uint8_t atom;
        const fu_axis *part; /* in its place: an axis that is handed on whole */
    } flat[TN_MAX_DIMS * FU_MAX_ATOMS];
    int n = 0;
    uint8_t level = 2;
    memset(mb, 0, sizeof *mb);
    for (int i = 0; i < na; i++) {
        if (a[i] == 1) continue;
        if (!ma->axis[i].level || a[i] == 0) return SAME;
        if (ma->axis[i].level < level) level = ma->axis[i].level;
        if (ma->axis[i].part) flat[n++].part = &ma->axis[i];
        for (int k = 0; k < ma->axis[i].n && !ma->axis[i].part; k++) {
            flat[n].part = NULL;
            flat[n++].atom = ma->axis[i].atom[k];
        }
    }
    int at = 0;
    for (int i = 0; i < nb; i++) {
        if (b[i] == 1) continue;
        fu_axis *l = &mb->axis[i];
        int64_t p = 1;
        while (p < b[i] && at < n) {
            if (flat[at].part) {
                if (p != 1 || flat[at].part->count != b[i]) return CONFLICT;
                *l = *flat[at++].part;
                p = b[i];
                break;
            }
            int64_t e = d->extent[flat[at].atom];
            if (p * e > b[i]) {
                if (b[i] % p || e % (b[i] / p)) return CONFLICT;
                return split_atom(d, flat[at].atom, b[i] / p) ? AGAIN : CONFLICT;
            }
            p *= e;
            if (l->n == FU_MAX_ATOMS) return CONFLICT;
            l->atom[l->n++] = flat[at++].atom;
        }
        if (p != b[i]) return CONFLICT;
        l->level = level;
    }
    return SAME;
}

/* The axes of what slice v is taken of, from its own. */
static result slice_in(const fu_domain *d, const tn_tensor *v, const fu_map *out, fu_map *in)
{
    *in = *out;
    for (int i = 0; i < v->ndim; i++) {
        int64_t start = v->attr->v[0][i], step = v->attr->v[1][i], count = v->in[0]->shape[i];
        if (v->shape[i] == 1 && count != 1) { /* one place, whatever atoms a guess may have put there */
            in->axis[i] = (fu_axis){.level = 2};
            step = 1;
        }
        if (in->axis[i].level) fu_part_axis(d, &in->axis[i], start, step, count);
    }
    return SAME;
}

/* Those of slice v from its operand's: where it takes all of an axis, in either direction. */
static result slice_out(const fu_domain *d, const tn_tensor *v, const fu_map *in, fu_map *out)
{
    *out = *in;
    for (int i = 0; i < v->ndim; i++) {
        int64_t start = v->attr->v[0][i], step = v->attr->v[1][i], n = v->shape[i];
        bool same = !start && (step == 1 || n == 1), turned = step == -1 && start == n - 1;
        if (n != v->in[0]->shape[i] || (!same && !turned))
            out->axis[i] = (fu_axis){0};
        else if (!same && out->axis[i].level)
            fu_part_axis(d, &out->axis[i], n - 1, -1, n);
    }
    return SAME;
}

/* Through one VIEW node v: the map of v's own shape from that of its input, or the other way round. */
static result view_out(fu_domain *d, const tn_tensor *v, const fu_map *in, fu_map *out)
{
    const tn_tensor *x = v->in[0];
    switch (v->op) {
    case TN_OP_expand:
        memset(out, 0, sizeof *out);
        for (int i = 0; i < v->ndim && x->ndim; i++) {
            result r = put(d, &out->axis[i], &in->axis[i], v->shape[i], x->shape[i] != v->shape[i]);
            if (r == CONFLICT) return r;
        }
        return SAME;
    case TN_OP_permute:
        memset(out, 0, sizeof *out);
        for (int i = 0; i < v->ndim; i++) out->axis[i] = in->axis[v->attr->v[0][i]];
        return SAME;
    case TN_OP_contiguous: *out = *in; return SAME;
    case TN_OP_slice: return slice_out(d, v, in, out);
    case TN_OP_reshape: return reshape_map(d, x->ndim, x->shape, in, v->ndim, v->shape, out);
    default: return CONFLICT;
    }
}

static result view_in(fu_domain *d, const tn_tensor *v, const fu_map *out, fu_map *in)
{
    const tn_tensor *x = v->in[0];
    switch (v->op) {
    case TN_OP_expand:
        memset(in, 0, sizeof *in);
        for (int i = 0; i < v->ndim && x->ndim; i++) {
            in->axis[i] = out->axis[i];
            if (x->shape[i] == 1 && in->axis[i].level) in->axis[i].level = 1;
        }
        return SAME;
    case TN_OP_permute:
        memset(in, 0, sizeof *in);
        for (int i = 0; i < v->ndim; i++) in->axis[v->attr->v[0][i]] = out->axis[i];
        return SAME;
    case TN_OP_contiguous: *in = *out; return SAME;
    case TN_OP_slice: return slice_in(d, v, out, in);
    case TN_OP_reshape: return reshape_map(d, v->ndim, v->shape, out, x->ndim, x->shape, in);
    default: return CONFLICT;
    }
}

/* The map of a member's own shape from that of its space. */
static result own_from_space(fu_domain *d, const tn_tensor *t, const fu_map *space, fu_map *own)
{
    *own = *space;
    tn_kind k = tn_kind_of(t);
    if (k == TN_KIND_REDUCE)
        for (int i = 0; i < t->ndim; i++)
            if (t->shape[i] == 1 && own->axis[i].level) own->axis[i].level = 1;
    return k == TN_KIND_VIEW && !surrounds(t) ? view_out(d, t, space, own) : SAME;
}

/* Both directions over the edge by which member m reads operand k. */
static result pass_edge(const fu_ctx *c, fu_domain *d, int m, int k, int producer)
{
    const tn_tensor *t = c->node[d->member[m]].t, *operand = fu_value_of(c, t->in[k]);
    const tn_tensor *chain[24];
    int n = 0;
    const tn_tensor *base = c->node[d->member[producer]].t;
    for (const tn_tensor *v = operand; v != base; v = v->in[0]) {
        if (n == 24 || tn_kind_of(v) != TN_KIND_VIEW || !v->n_in) return CONFLICT;
        chain[n++] = v;
    }
    int ndim, shift = 0;
    int64_t before, count;
    const int64_t *shape;
    bool changed = false;
    result r;
    fu_map a, b;

    /* forward: the producer's own shape, then outwards, then into the consumer's space */
    fu_space(t, &ndim, &shape);
    if (tn_kind_of(t) == TN_KIND_ROWS) shift = t->attr->axis;
    if ((r = own_from_space(d, base, &d->map[producer], &a)) != SAME) return r;
    for (int i = n - 1; i >= 0; i--) {
        if ((r = view_out(d, chain[i], &a, &b)) != SAME) return r;
        a = b;
    }
    for (int i = 0; i < operand->ndim; i++) {
        if (fu_part(t, k, i, &before, &count)) continue; /* a part does not say what surrounds it */
        r = put(d, &d->map[m].axis[i + shift], &a.axis[i], shape[i + shift], false);
        if (r == CONFLICT) return r;
        changed |= r == CHANGED;
    }

    /* backward */
    memset(&a, 0, sizeof a);
    for (int i = 0; i < operand->ndim; i++) {
        a.axis[i] = d->map[m].axis[i + shift];
        if (!fu_part(t, k, i, &before, &count)) continue;
        if (before < 0 || before + count > t->shape[i]) return CONFLICT; /* not all of the operand */
        if (a.axis[i].level) fu_part_axis(d, &a.axis[i], -before, 1, count);
    }
    for (int i = 0; i < n; i++) {
        if ((r = view_in(d, chain[i], &a, &b)) != SAME) return r;
        a = b;
    }
    tn_kind kind = tn_kind_of(base);
    if (kind == TN_KIND_VIEW && !surrounds(base)) {
        if ((r = view_in(d, base, &a, &b)) != SAME) return r;
        a = b;
    }
    fu_space(base, &ndim, &shape);
    for (int i = 0; i < ndim; i++) {
        bool ghost = kind == TN_KIND_REDUCE && base->shape[i] == 1;
        r = put(d, &d->map[producer].axis[i], &a.axis[i], shape[i], ghost);
        if (r == CONFLICT) return r;
        changed |= r == CHANGED;
    }
    return changed ? CHANGED : SAME;
}

static int64_t space_size(const fu_ctx *c, int node)
{
    int ndim;
    const int64_t *shape, *end;
    int64_t k = 1;
    fu_space(c->node[node].t, &ndim, &shape);
    for (end = shape + ndim; shape < end; shape++) k *= *shape;
    return k;
}

static bool placed(const fu_ctx *c, const fu_domain *d, int m)
{
    int ndim;
    const int64_t *shape;
    fu_space(c->node[d->member[m]].t, &ndim, &shape);
    for (int i = 0; i < ndim; i++)
        if (shape[i] != 1 && !d->map[m].axis[i].level) return false;
    return true;
}

/* Nothing connects member m with what is placed: align it with a member of the same space. */
static bool place_beside(const fu_ctx *c, fu_domain *d, int m)
{
    int ndim, ndim2;
    const int64_t *shape, *shape2;
    fu_space(c->node[d->member[m]].t, &ndim, &shape);
    for (int o = 0; o < d->n; o++) {
        fu_space(c->node[d->member[o]].t, &ndim2, &shape2);
        if (o == m || !placed(c, d, o) || ndim2 != ndim ||
            memcmp(shape, shape2, (size_t)ndim * sizeof *shape))
            continue;
        for (int i = 0; i < ndim; i++)
            if (!d->map[m].axis[i].level) {
                d->map[m].axis[i] = d->map[o].axis[i];
                if (shape[i] == 1 && d->map[m].axis[i].level) d->map[m].axis[i].level = 1;
            }
        return true;
    }
    return false;
}

/* Member m reads, as its operand k, what member p gives. */
typedef struct edge {
    uint8_t m, k, p;
    bool gathers;
    int passed; /* when it changed nothing: it will not again, before one of the two changes */
} edge;

static int list_edges(const fu_ctx *c, const fu_domain *d, edge *list, int most)
{
    int n = 0;
    for (int m = 0; m < d->n; m++) {
        const tn_tensor *t = c->node[d->member[m]].t;
        for (int k = 0; k < t->n_in; k++) {
            const int node = fu_node_of(c, fu_value_of(c, t->in[k])), p = fu_find(d->n, d->member, node);
            if (p < 0) continue;
            if (n == most) return -1;
            list[n++] =
                (edge){(uint8_t)m, (uint8_t)k, (uint8_t)p, !fu_pointwise_operand(t, k) && !surrounds(t), 0};
        }
    }
    return n;
}

static tn_cut_reason conflict_at(const fu_ctx *c, const fu_domain *d, const edge *e)
{
    const tn_tensor *v = fu_value_of(c, c->node[d->member[e->m]].t->in[e->k]);
    for (; v != c->node[d->member[e->p]].t && v->n_in; v = v->in[0])
        if (v->op == TN_OP_slice) return TN_CUT_SLICED;
    return TN_CUT_SHAPES;
}

static tn_cut_reason propagate(const fu_ctx *c, fu_domain *d)
{
    enum { MOST = FU_MAX_MEMBERS * FU_MAX_JOINED };
    edge list[MOST];
    int changed[FU_MAX_MEMBERS] = {0}, now = 0; /* when each member's map changed last */
    const int n = list_edges(c, d, list, MOST);
    if (n < 0) return TN_CUT_SIZE;
    for (bool again = true; again;) {
        again = false;
        for (edge *e = list; e < list + n; e++) {
            if (e->gathers) return TN_CUT_GATHERED;
            if (e->passed > changed[e->m] && e->passed > changed[e->p]) continue;
            const int atoms = d->n_atom;
            const result r = pass_edge(c, d, e->m, e->k, e->p);
            now++;
            if (r == CONFLICT) return conflict_at(c, d, e);
            if (r == SAME) e->passed = now;
            if (r == CHANGED) changed[e->m] = changed[e->p] = now;
            for (int m = 0; m < d->n && d->n_atom != atoms; m++) changed[m] = now; /* split in all maps */
            again |= r != SAME;
        }
    }
    return TN_CUT_NONE;
}

/* Returns true where a member would run along one atom on two of its axes, as an outer product of a value
 * with itself does: only the diagonal would be computed. */
static bool on_diagonal(const fu_ctx *c, const fu_domain *d)
{
    for (int m = 0; m < d->n; m++) {
        uint32_t seen = 0;
        int ndim;
        const int64_t *shape;
        fu_space(c->node[d->member[m]].t, &ndim, &shape);
        for (int i = 0; i < ndim; i++)
            for (int k = 0; k < d->map[m].axis[i].n && shape[i] != 1; k++) {
                uint32_t bit = fu_bit(d->map[m].axis[i].atom[k]);
                if (seen & bit) return true;
                seen |= bit;
            }
    }
    return false;
}

/* Marks the members that others read through a slice, and the members that those depend on. */
static void find_sliced(const fu_ctx *c, const fu_domain *d, bool *sliced)
{
    memset(sliced, 0, (size_t)d->n);
    for (int m = d->n - 1; m >= 0; m--) {
        const tn_tensor *t = c->node[d->member[m]].t;
        for (int k = 0; k < t->n_in; k++) {
            const tn_tensor *operand = fu_value_of(c, t->in[k]);
            int p = fu_node_of(c, operand), at = fu_find(d->n, d->member, p);
            if (at < 0) continue;
            sliced[at] = sliced[at] || sliced[m];
            for (const tn_tensor *v = operand; v != c->node[p].t && v->n_in; v = v->in[0])
                sliced[at] = sliced[at] || v->op == TN_OP_slice;
        }
    }
}

static tn_cut_reason build_from(const fu_ctx *c, fu_domain *d, int seed)
{
    int ndim;
    const int64_t *shape;
    fu_space(c->node[d->member[seed]].t, &ndim, &shape);
    for (int i = 0; i < ndim; i++) {
        d->map[seed].axis[i].level = shape[i] == 1 ? 0 : 2;
        if (shape[i] == 1) continue;
        int a = d->n_atom++;
        d->extent[a] = shape[i];
        d->order[a] = (uint8_t)a;
        d->map[seed].axis[i].atom[0] = (uint8_t)a;
        d->map[seed].axis[i].n = 1;
    }
    for (;;) {
        tn_cut_reason why = propagate(c, d);
        if (why) return why;
        int open = -1;
        for (int m = 0; m < d->n && open < 0; m++)
            if (!placed(c, d, m)) open = m;
        if (open < 0) {
            d->strict = true; /* guesses were never compared: do it now that all are final */
            why = propagate(c, d);
            return !why && on_diagonal(c, d) ? TN_CUT_SHAPES : why;
        }
        bool any = false;
        for (int m = open; m < d->n && !any; m++)
            if (!placed(c, d, m)) any = place_beside(c, d, m);
        if (!any) return TN_CUT_SHAPES;
    }
}

tn_cut_reason fu_domain_build(const fu_ctx *c, fu_domain *d, int n, const int *member)
{
    bool sliced[FU_MAX_MEMBERS];
    tn_cut_reason why = TN_CUT_SIZE;
    if (n > FU_MAX_MEMBERS) return why;
    for (int m = 0; m < n && n > 1; m++)
        if (!space_size(c, member[m])) return TN_CUT_EMPTY; /* what lies where in no elements, none can say */
    for (int pass = 0; pass < 2;
         pass++) { /* from the largest; from the largest that is looked at as a whole */
        memset(d, 0, sizeof *d);
        d->n = n;
        d->member = member;
        int seed = -1, skipped = 0;
        if (pass) find_sliced(c, d, sliced);
        for (int m = 0; m < n; m++)
            if (pass && sliced[m])
                skipped++;
            else if (seed < 0 || space_size(c, member[m]) > space_size(c, member[seed]))
                seed = m;
        if (pass && (!skipped || seed < 0)) return why;
        tn_cut_reason first = why;
        if (!(why = build_from(c, d, seed))) return why;
        if (pass) why = first;
    }
    return why;
}
