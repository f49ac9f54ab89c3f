/* program.c - from placed nodes to the loop program: values in single assignment form with strides over
 * atoms, and what is stored. What no program can do is in program_check.c. Start with fu_program. */
#include "tile.h"

#include <string.h>

typedef struct builder {
    const fu_ctx *c;
    const fu_candidate *cand;
    const fu_domain *d;
    fu_prog *p;
    int value_of[FU_MAX_MEMBERS];
    bool full;
    fu_value sink; /* where values go once there are too many: the attempt has failed then */
} builder;

static fu_value *value_new(builder *b, fu_kind kind, tn_dtype dtype)
{
    b->full = b->full || b->p->n_value == FU_MAX_VALUES;
    fu_value *v = b->full ? &b->sink : &b->p->value[b->p->n_value++];
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->dtype = v->from = dtype;
    v->node = v->stash = v->slot = -1;
    return v;
}

static int id_of(const builder *b, const fu_value *v) { return b->full ? 0 : (int)(v - b->p->value); }

static uint32_t atoms_of(const fu_axis *axis)
{
    uint32_t m = 0;
    for (int i = 0; i < axis->n; i++) m |= fu_bit(axis->atom[i]);
    return m;
}

static uint32_t nonzero(const fu_domain *d, const int64_t *stride)
{
    uint32_t m = 0;
    for (int i = 0; i < d->n_atom; i++)
        if (stride[i]) m |= fu_bit(i);
    return m;
}

static bool same_load(const fu_value *a, const fu_value *b)
{
    return a->kind == b->kind && a->slot == b->slot && a->offset == b->offset && a->pick == b->pick &&
           a->shift == b->shift && a->n_arg == b->n_arg && (a->n_arg < 1 || a->arg[0] == b->arg[0]) &&
           (a->n_arg < 2 || a->arg[1] == b->arg[1]) && !memcmp(a->stride, b->stride, sizeof a->stride);
}

static int number(builder *b, const tn_tensor *t, const tn_tensor *base)
{
    bool scalar = base->op == TN_OP_scalar;
    int slot = -1;
    int64_t offset;
    if (scalar && !fu_place(b->c, t, &slot, &offset)) b->full = true;
    for (int i = 0; i < b->p->n_value; i++) {
        fu_value *v = &b->p->value[i];
        if (scalar && v->kind == FU_SCALAR && v->slot == slot && v->dtype == t->dtype) return i;
    }
    fu_value *v = value_new(b, scalar ? FU_SCALAR : FU_NUMBER, t->dtype);
    v->number = base->attr->number;
    v->slot = slot;
    return id_of(b, v);
}

static int literal(builder *b, tn_dtype dtype, int64_t i)
{
    for (int k = 0; k < b->p->n_value; k++) {
        const fu_value *o = &b->p->value[k];
        if (o->kind == FU_NUMBER && o->dtype == dtype && o->number.is_int && o->number.i == i) return k;
    }
    fu_value *v = value_new(b, FU_NUMBER, dtype);
    v->number.i = i;
    v->number.is_int = true;
    return id_of(b, v);
}

/* A value before v that is the same operation on the same values; -1: there is none. A gradient makes again
 * what forward has made (common.c): once one kernel does both, that is there already. */
static int same_op(const builder *b, int id)
{
    const fu_value *v = &b->p->value[id];
    const bool commutes = v->op == TN_OP_add || v->op == TN_OP_mul;
    for (int i = 0; i < id && fu_can(b->c->target)->meet; i++) {
        const fu_value *o = &b->p->value[i];
        if (o->kind != FU_OP || o->op != v->op || o->dtype != v->dtype || o->from != v->from ||
            o->n_arg != v->n_arg)
            continue;
        if (!memcmp(o->arg, v->arg, (size_t)v->n_arg * sizeof *v->arg) ||
            (commutes && o->arg[0] == v->arg[1] && o->arg[1] == v->arg[0]))
            return i;
    }
    return -1;
}

static int op_of(builder *b, tn_op op, tn_dtype dtype, tn_dtype from, int n, const int *arg)
{
    fu_value *v = value_new(b, FU_OP, dtype);
    v->op = op;
    v->from = from;
    v->n_arg = n;
    for (int k = 0; k < n; k++) {
        v->arg[k] = arg[k];
        v->vary |= b->p->value[arg[k]].vary;
    }
    int id = id_of(b, v), known = same_op(b, id);
    if (known < 0) return id;
    b->p->n_value--;
    return known;
}

/* Returns the id of a test: whether the point of the space is one of the places that axis a owns. */
static int inside_axis(builder *b, const fu_axis *a)
{
    fu_value *v = value_new(b, FU_INSIDE, TN_BOOL);
    fu_spread(b->d, a, 1, v->stride, &v->shift);
    v->extent = a->count;
    v->vary = nonzero(b->d, v->stride);
    int id = id_of(b, v);
    for (int i = 0; i < id; i++) {
        const fu_value *o = &b->p->value[i];
        if (o->kind != FU_INSIDE || o->shift != v->shift || o->extent != v->extent ||
            memcmp(o->stride, v->stride, sizeof o->stride))
            continue;
        b->p->n_value--;
        return i;
    }
    return id;
}

/* Returns the id of a test: whether the point is one of the places that all axes in `which` own; -1: `which`
 * is empty. */
static int inside(builder *b, const fu_axis *axis, uint32_t which)
{
    int all = -1;
    for (int i = 0; which >> i && !b->full; i++) {
        if (!(which >> i & 1)) continue;
        int one = inside_axis(b, &axis[i]), both[2] = {all, one}, known = -1;
        for (int k = 0; k < b->p->n_value && all >= 0 && known < 0; k++) {
            const fu_value *o = &b->p->value[k];
            bool same = o->kind == FU_OP && o->op == TN_OP_logical_and && o->from == TN_BOOL &&
                        o->arg[0] == all && o->arg[1] == one;
            known = same ? k : -1;
        }
        if (all < 0)
            all = one;
        else
            all = known >= 0 ? known : op_of(b, TN_OP_logical_and, TN_BOOL, TN_BOOL, 2, both);
    }
    return all;
}

/* The axes along which there are points that are not theirs. */
static uint32_t bounded(const fu_domain *d, const fu_axis *axis, int ndim)
{
    uint32_t m = 0;
    for (int i = 0; i < ndim; i++)
        if (fu_axis_bounded(d, &axis[i])) m |= 1u << i;
    return m;
}

/* The member of the group that computes t, among the first m; -1: it is read from memory. */
static int made_by(const builder *b, int m, const tn_tensor *t)
{
    return fu_find(m, b->d->member, fu_node_of(b->c, t));
}

/* The value in memory of t, whose axes are `axis`, where those of `edge` say that there is one; elsewhere
 * that of `other`. */
static int load(builder *b, const tn_tensor *t, const fu_axis *axis, uint32_t edge, int other)
{
    fu_value at = {.shift = 0};
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] != 1 && t->stride[i]) fu_spread(b->d, &axis[i], t->stride[i], at.stride, &at.shift);
    uint32_t bounds = bounded(b->d, axis, t->ndim);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 1 || !t->stride[i]) bounds &= ~(1u << i);
    int mask = inside(b, axis, bounds | edge);
    if (mask >= 0 && other < 0) other = literal(b, t->dtype, 0);
    fu_value *v = value_new(b, FU_LOAD, t->dtype);
    memcpy(v->stride, at.stride, sizeof at.stride);
    v->shift = at.shift;
    if (!fu_place(b->c, t, &v->slot, &v->offset)) b->full = true;
    v->vary = nonzero(b->d, v->stride);
    if (mask >= 0) {
        v->n_arg = 2;
        v->arg[0] = mask;
        v->arg[1] = other;
        v->vary |= b->p->value[mask].vary | b->p->value[other].vary;
        v->extent = 1;
        for (int i = 0; i < t->ndim; i++) v->extent *= t->stride[i] ? t->shape[i] : 1;
    }
    fu_hint(t->name ? t->name : t->base->name, v->hint);
    int id = id_of(b, v);
    for (int i = 0; i < id; i++)
        if (same_load(&b->p->value[i], v)) {
            b->p->n_value--;
            return i;
        }
    return id;
}

/* ---- in a convolution's kernel (tile.c) ---- */

/* `of` is the tensor it has the type of; a statistic of f64 is f32, and cast to that. */
static int given(builder *b, fu_gift what, const tn_tensor *of)
{
    for (int i = 0; i < b->p->n_value; i++)
        if (b->p->value[i].kind == FU_GIVEN && b->p->value[i].given == what) return i;
    fu_value *v = value_new(b, FU_GIVEN, what != FU_ELEMENT && of->dtype == TN_F64 ? TN_F32 : of->dtype);
    v->given = what;
    v->op = of->op;
    if (what != FU_ELEMENT) v->vary = fu_bit(0); /* the columns are all there is */
    return id_of(b, v);
}

static int statistic(builder *b, int node);

/* A value of each column, as a summand of a statistic reads it; -1: none. */
static int of_column(builder *b, const tn_tensor *t)
{
    const tn_tensor *base = t->base;
    int node = fu_node_of(b->c, t), axis = t->ndim - 1;
    if (tn_is_number(base)) return number(b, t, base);
    if (node >= 0 && b->c->node[node].statistic) return statistic(b, node);
    int from = made_by(b, b->d->n, t);
    if (from >= 0) return b->value_of[from];
    fu_map map;
    memset(&map, 0, sizeof map);
    map.axis[axis].n = 1;
    return load(b, t, map.axis, 0, -1);
}

static int cast_to(builder *b, tn_dtype d, int id)
{
    const tn_dtype from = id < 0 ? d : b->p->value[id].dtype;
    return from == d ? id : op_of(b, TN_OP_cast, d, from, 1, &id);
}

/* Returns the id of the sum that `node` is, computed from the mean and the squared deviation of the
 * column. */
static int statistic(builder *b, int node)
{
    const fu_node *n = &b->c->node[node];
    tn_dtype d = n->t->dtype;
    int about = n->about ? cast_to(b, d, of_column(b, n->about)) : -1;
    int count = cast_to(b, d, given(b, FU_COUNT, n->t));
    int shift[2] = {cast_to(b, d, given(b, FU_MEAN, n->t)), about};
    int by = about < 0 ? shift[0] : op_of(b, TN_OP_sub, d, d, 2, shift);
    int sum = op_of(b, TN_OP_mul, d, d, 2, (int[]){count, by});
    if (n->statistic == FU_SUM) return sum;
    int more = op_of(b, TN_OP_mul, d, d, 2, (int[]){sum, by});
    return op_of(b, TN_OP_add, d, d, 2, (int[]){cast_to(b, d, given(b, FU_M2, n->t)), more});
}

/* Reductions that the program of the statistics stores. */
static tn_cut_reason store_sums(builder *b)
{
    const fu_tile_parts *parts = b->cand->tile->parts;
    for (int i = 0; i < parts->n_sum && !b->full; i++) {
        int node = parts->sum[i];
        if (!fu_owns(b->c, b->cand, node)) continue;
        if (!b->c->node[node].root && !fu_read_outside(b->c, b->cand, node)) continue;
        if (b->p->n_store == FU_MAX_STORES) return TN_CUT_SIZE;
        fu_store *s = &b->p->store[b->p->n_store++];
        *s = (fu_store){.value = statistic(b, node), .slot = node, .node = node, .mask = -1, .dom = 1};
        s->dtype = b->c->node[node].t->dtype;
        s->stride[0] = 1;
    }
    return TN_CUT_NONE;
}

/* Returns true where the program for the columns reads the value of `node`, which the program for the
 * elements has computed and therefore has to store. */
static bool read_last(const fu_ctx *c, const fu_tile *tile, int node)
{
    const fu_tile_parts *p = tile ? tile->parts : NULL;
    if (!p || tile->last) return false;
    if (p->n_sum && c->node[node].kind == TN_KIND_CONV) return true;
    for (int i = 0; i < p->n_last; i++) {
        const tn_tensor *t = c->node[p->last[i]].t;
        for (int k = tn_kind_of(t) == TN_KIND_ASSIGN ? 1 : 0; k < t->n_in; k++)
            if (fu_node_of(c, fu_value_of(c, t->in[k])) == node) return true;
    }
    for (int i = 0; i < p->n_sum; i++)
        if (c->node[p->sum[i]].about && fu_node_of(c, c->node[p->sum[i]].about) == node) return true;
    return false;
}

/* An element of what a convolution loads, from which its image is computed. */
static int element_of_image(builder *b, const tn_tensor *t, const fu_axis *axis)
{
    fu_value at = {.shift = 0};
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] != 1) fu_spread(b->d, &axis[i], t->stride[i], at.stride, &at.shift);
    int id = given(b, FU_ELEMENT, t);
    fu_value *v = &b->p->value[id];
    if (v->vary && memcmp(v->stride, at.stride, sizeof at.stride)) b->full = true; /* at another place, too */
    memcpy(v->stride, at.stride, sizeof at.stride);
    v->vary = nonzero(b->d, v->stride);
    return id;
}

/* ---- operands ---- */

/* The value that operand t, whose axis i is axis i + shift of member m's space, has. */
static int operand(builder *b, int m, const tn_tensor *t, int shift)
{
    t = fu_value_of(b->c, t);
    if (tn_is_number(t)) return number(b, t, t->base);
    int from = made_by(b, m, t), node = fu_node_of(b->c, t);
    const fu_tile *tile = b->cand->tile;
    if (tile && tile->last && node >= 0 && b->c->node[node].statistic) return statistic(b, node);
    if (tile && tile->before && t == tile->parts->from)
        return element_of_image(b, t, &b->d->map[m].axis[shift]);
    return from >= 0 ? b->value_of[from] : load(b, t, &b->d->map[m].axis[shift], 0, -1);
}

/* Operand k of t, which surrounds it: its value at the places that it has, and `other` elsewhere. */
static int surrounded(builder *b, int m, const tn_tensor *t, int k, int other)
{
    const tn_tensor *x = fu_value_of(b->c, t->in[k]);
    fu_map at = b->d->map[m];
    uint32_t edge = 0;
    for (int i = 0; i < t->ndim; i++) {
        int64_t before, count;
        if (t->shape[i] == 1) at.axis[i] = (fu_axis){.level = 2}; /* no atom counts it */
        if (!fu_part(t, k, i, &before, &count)) continue;
        fu_part_axis(b->d, &at.axis[i], -before, 1, count);
        if (at.axis[i].part) edge |= 1u << i; /* else what is around it is never looked at */
    }
    int from = made_by(b, m, x);
    bool number = tn_is_number(x);
    if (from < 0 && !number) return load(b, x, at.axis, edge, other);
    int value = number ? operand(b, m, x, 0) : b->value_of[from];
    if (!edge || other < 0) return value;
    int arg[3] = {inside(b, at.axis, edge), value, other};
    return op_of(b, TN_OP_where, t->dtype, t->dtype, 3, arg);
}

/* The operands that t joins: each where it has places, or else the one behind it. */
static int concat(builder *b, int m, const tn_tensor *t)
{
    int value = -1;
    for (int k = t->n_in - 1; k >= 0 && !b->full; k--)
        if (tn_node_numel(t->in[k])) value = surrounded(b, m, t, k, value);
    return value;
}

static int unary(builder *b, tn_op op, tn_dtype dtype, int arg)
{
    return op_of(b, op, dtype, b->p->value[arg].dtype, 1, &arg);
}

static int gather(builder *b, int m, const tn_tensor *t)
{
    const tn_tensor *x = fu_value_of(b->c, t->in[0]);
    /* a number stands in no memory, and is the same wherever the index points */
    if (tn_is_number(x)) return number(b, x, x->base);
    int axis = t->attr->axis;
    int index = operand(b, m, t->in[1], tn_kind_of(t) == TN_KIND_ROWS ? axis : 0);
    fu_value *i = value_new(b, FU_INDEX, TN_I64);
    i->n_arg = 1;
    i->arg[0] = index;
    i->from = b->p->value[index].dtype;
    i->vary = b->p->value[index].vary;
    i->extent = x->shape[axis];
    i->asker = b->d->member[m];
    fu_hint(t->in[1]->name, i->hint);
    int at = id_of(b, i);
    for (int k = 0; k < at; k++)
        if (b->p->value[k].kind == FU_INDEX && b->p->value[k].arg[0] == index &&
            b->p->value[k].extent == x->shape[axis]) {
            b->p->n_value--;
            at = k;
        }
    fu_value *v = value_new(b, FU_PICK, t->dtype);
    v->n_arg = 1;
    v->arg[0] = at;
    v->pick = x->stride[axis];
    for (int k = 0; k < x->ndim; k++)
        if (k != axis && x->shape[k] != 1)
            fu_spread(b->d, &b->d->map[m].axis[k], x->stride[k], v->stride, &v->shift);
    if (!fu_place(b->c, x, &v->slot, &v->offset)) b->full = true;
    v->vary = b->p->value[at].vary | nonzero(b->d, v->stride);
    fu_hint(x->name ? x->name : x->base->name, v->hint);
    return id_of(b, v);
}

static int reduce(builder *b, int m, const tn_tensor *t)
{
    int arg = operand(b, m, t->in[0], 0);
    uint32_t atoms = 0;
    for (int i = 0; i < t->in[0]->ndim; i++)
        if ((t->attr->axes >> i & 1) && t->in[0]->shape[i] != 1) atoms |= atoms_of(&b->d->map[m].axis[i]);
    bool chooses = t->op == TN_OP_reduce_argmax || t->op == TN_OP_reduce_argmin;
    if (!atoms && !chooses) return unary(b, TN_OP_contiguous, t->dtype, arg);
    if (!atoms) return literal(b, TN_I64, 0);
    fu_value *v = value_new(b, FU_REDUCE, t->dtype);
    v->op = t->op;
    v->n_arg = 1;
    v->arg[0] = arg;
    v->from = b->p->value[arg].dtype;
    v->reduces = atoms;
    for (int i = 0; i < t->in[0]->ndim; i++)
        if (t->in[0]->shape[i] != 1) v->space |= atoms_of(&b->d->map[m].axis[i]);
    v->vary = b->p->value[arg].vary & ~atoms;
    int64_t step = 1; /* positions are counted along the reduced axes, row by row */
    for (int i = t->in[0]->ndim - 1; chooses && i >= 0; i--)
        if (t->attr->axes >> i & 1) {
            fu_spread(b->d, &b->d->map[m].axis[i], step, v->stride, &v->shift);
            step *= t->in[0]->shape[i];
        }
    return id_of(b, v);
}

/* Row-major position in the member's own shape. */
static void dense(const builder *b, int m, int64_t *stride, int64_t *shift)
{
    int ndim;
    const int64_t *shape;
    const tn_tensor *t = b->c->node[b->d->member[m]].t;
    bool reduced = tn_kind_of(t) == TN_KIND_REDUCE;
    fu_space(t, &ndim, &shape);
    int64_t s = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] == 1 || (reduced && t->shape[i] == 1)) continue;
        fu_spread(b->d, &b->d->map[m].axis[i], s, stride, shift);
        s *= shape[i];
    }
}

/* An element of a convolution or product, as its kernel hands it over, and its bias. */
static int element(builder *b, int m, const tn_tensor *t)
{
    int ndim = t->ndim, id = given(b, FU_ELEMENT, t);
    fu_value *v = &b->p->value[id];
    memset(v->stride, 0, sizeof v->stride);
    dense(b, m, v->stride, &v->shift);
    v->vary = nonzero(b->d, v->stride);
    if (t->n_in < 3) return id;
    int both[2] = {id, operand(b, m, t->in[2], ndim - 1)};
    return op_of(b, TN_OP_add, t->dtype, t->dtype, 2, both);
}

static int member(builder *b, int m)
{
    const tn_tensor *t = b->c->node[b->d->member[m]].t;
    int ndim;
    const int64_t *shape;
    fu_space(t, &ndim, &shape);
    fu_value *v;
    int arg[3];
    switch (tn_kind_of(t)) {
    case TN_KIND_ELTWISE:
        for (int k = 0; k < t->n_in; k++) arg[k] = operand(b, m, t->in[k], 0);
        /* K(..) has the type of the operands that promote: the last one, where the first is a condition */
        return op_of(b, t->op, t->dtype, (tn_dtype)fu_value_of(b->c, t->in[t->n_in - 1])->dtype, t->n_in,
                     arg);
    case TN_KIND_CAST: return unary(b, TN_OP_cast, t->dtype, operand(b, m, t->in[0], 0));
    case TN_KIND_VIEW:
        if (t->op == TN_OP_pad) return surrounded(b, m, t, 0, operand(b, m, t->in[1], 0));
        if (t->op == TN_OP_concat) return concat(b, m, t);
        return unary(b, TN_OP_contiguous, t->dtype, operand(b, m, t->in[0], 0));
    case TN_KIND_ASSIGN:
        if (b->cand->copied) {
            v = value_new(b, FU_LOAD, t->dtype);
            v->slot = b->cand->copied;
            dense(b, m, v->stride, &v->shift);
            v->vary = nonzero(b->d, v->stride);
            return id_of(b, v);
        }
        return unary(b, TN_OP_contiguous, t->dtype, operand(b, m, t->in[1], 0));
    case TN_KIND_REDUCE: return reduce(b, m, t);
    case TN_KIND_GATHER:
    case TN_KIND_ROWS: return gather(b, m, t);
    case TN_KIND_CONV:
    case TN_KIND_GEMM: return element(b, m, t);
    case TN_KIND_IOTA:
        v = value_new(b, FU_IOTA, t->dtype);
        if (shape[t->attr->axis] != 1)
            fu_spread(b->d, &b->d->map[m].axis[t->attr->axis], 1, v->stride, &v->shift);
        v->vary = nonzero(b->d, v->stride);
        return id_of(b, v);
    case TN_KIND_RANDOM:
        if (t->n_in) arg[0] = operand(b, m, t->in[0], 0);
        v = value_new(b, FU_RANDOM, t->dtype);
        v->op = t->op;
        v->n_arg = t->n_in;
        v->slot = b->d->member[m];
        if (t->n_in) v->arg[0] = arg[0];
        dense(b, m, v->stride, &v->shift);
        v->vary = nonzero(b->d, v->stride);
        return id_of(b, v);
    default: b->full = true; return 0;
    }
}

static tn_cut_reason store(builder *b, int m)
{
    const fu_ctx *c = b->c;
    const fu_candidate *cand = b->cand;
    int node = b->d->member[m], ndim;
    const int64_t *shape;
    const tn_tensor *t = c->node[node].t;
    bool outside = fu_owns(c, cand, node) &&
                   (c->node[node].root || fu_read_outside(c, cand, node) || read_last(c, cand->tile, node));
    if (cand->checks || (cand->tile && cand->tile->before))
        outside = m == b->d->n - 1; /* scratch, the tile */
    if (!outside) return TN_CUT_NONE;
    if (b->p->n_store == FU_MAX_STORES) return TN_CUT_SIZE;
    fu_store *s = &b->p->store[b->p->n_store++];
    memset(s, 0, sizeof *s);
    s->value = b->value_of[m];
    s->slot = s->node = node;
    s->dtype = t->dtype;
    fu_space(t, &ndim, &shape);
    if (c->node[node].into >= 0 && !cand->checks) {
        s->slot = c->node[node].into;
        s->offset = c->node[node].into_offset;
        for (int i = 0; i < ndim; i++)
            if (shape[i] != 1)
                fu_spread(b->d, &b->d->map[m].axis[i], c->node[node].into_stride[i], s->stride, &s->shift);
    } else
        dense(b, m, s->stride, &s->shift);
    uint32_t parts = bounded(b->d, b->d->map[m].axis, ndim);
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 1) parts &= ~(1u << i);
        if (shape[i] != 1 && !fu_axis_covered(b->d, &b->d->map[m].axis[i])) return TN_CUT_SLICED;
    }
    s->mask = inside(b, b->d->map[m].axis, parts);
    for (int i = 0; i < ndim; i++)
        if (shape[i] != 1) s->dom |= atoms_of(&b->d->map[m].axis[i]);
    if (tn_kind_of(t) == TN_KIND_REDUCE)
        for (int i = 0; i < ndim; i++)
            if (t->shape[i] == 1 && shape[i] != 1) s->dom &= ~atoms_of(&b->d->map[m].axis[i]);
    return tn_node_written(t) ? fu_overwrites(cand, b->d, b->p, s) : TN_CUT_NONE;
}

tn_cut_reason fu_program(const fu_ctx *c, const fu_candidate *cand, const fu_domain *d, fu_prog *p)
{
    builder b = {.c = c, .cand = cand, .d = d, .p = p};
    memset(p, 0, offsetof(fu_prog, value));
    p->c = c;
    p->n_atom = d->n_atom;
    memcpy(p->extent, d->extent, sizeof p->extent);
    p->n_value = p->n_store = 0;
    p->split = p->second = false;
    p->settled = cand->settled;
    p->last_bytes = fu_last_bytes(c->target);
    for (int m = 0; m < d->n; m++)
        if (!fu_may_be_part(c, d, m)) return TN_CUT_SHAPES;
    for (int m = 0; m < d->n && !b.full; m++) {
        int v = b.value_of[m] = member(&b, m);
        if (b.full) break;
        fu_value *value = &p->value[v];
        if (value->node < 0 || c->node[d->member[m]].t->name) value->node = d->member[m];
        const tn_tensor *t = c->node[d->member[m]].t;
        if (t->name && value->kind != FU_LOAD && value->kind != FU_PICK) fu_hint(t->name, value->hint);
    }
    if (b.full) return TN_CUT_SIZE;
    for (int m = 0; m < d->n; m++) {
        tn_cut_reason why = store(&b, m);
        if (why) return why;
    }
    if (cand->tile && cand->tile->last) {
        tn_cut_reason why = store_sums(&b);
        if (why) return why;
    }
    tn_cut_reason why = cand->checks ? fu_check_indices(p, cand->checks) : TN_CUT_NONE;
    if (b.full || why || !fu_can_be_named(1, &(const fu_prog *){p}, 0)) return TN_CUT_SIZE;
    for (int i = 0; i < p->n_store; i++)
        for (int k = 0; k < p->n_value && p->store[i].mask >= 0; k++)
            if (p->value[k].kind == FU_REDUCE) return TN_CUT_SHAPES; /* their nests store everywhere */
    /* atoms in loop order */
    int pos[FU_MAX_ATOMS];
    for (int i = 0; i < d->n_atom; i++) pos[d->order[i]] = i;
    fu_reorder(p, pos);
    return TN_CUT_NONE;
}
