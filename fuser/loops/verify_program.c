/* verify_program.c - what the emitter may take for granted about a scheduled loop program.
 *
 *   values   in single assignment: operands stand before what reads them, and are of its type; a value
 *            changes with the atoms its operands change with, less those it reduces
 *   memory   the smallest and the largest address of each load and store lie in its buffer; a store
 *            writes each element of its node once
 *   phases   nothing is computed before the reductions it reads are over; memory that is overwritten is read
 *            at the same element, and by then
 *
 * Start with fu_verify_program. */
#include <stdlib.h>
#include <string.h>

#include "loops.h"

/* Elements that may be touched, relative to the first one of a slot. */
static bool room_of(const fu_ctx *c, int slot, int64_t *low, int64_t *high)
{
    *low = 0;
    if (slot >= 0 && slot < c->n_node) {
        *high = tn_node_numel(c->seg->node[slot]) - 1;
        return true;
    }
    slot -= c->n_node;
    if (slot >= 0 && slot < c->n_leaf) {
        const tn_tensor *t = c->seg->leaf[slot];
        *high = 0;
        for (int i = 0; i < t->ndim; i++) {
            int64_t far = (t->shape[i] - 1) * t->stride[i];
            *(far < 0 ? low : high) += far;
        }
        return true;
    }
    slot -= c->n_leaf;
    if (slot < 0 || slot >= c->plan->n_scratch) return false;
    *high = c->scratch[slot].elems - 1;
    return true;
}

static tn_dtype dtype_of(const fu_ctx *c, int slot)
{
    if (slot < c->n_node) return c->seg->node[slot]->dtype;
    slot -= c->n_node;
    return slot < c->n_leaf ? c->seg->leaf[slot]->dtype : c->scratch[slot - c->n_leaf].dtype;
}

/* Checks that the addresses at + stride * i, over the atoms, lie in the slot. Returns the rule that is
 * broken, or NULL. */
static const char *wrong_address(const fu_ctx *c, const fu_prog *p, int slot, int64_t at,
                                 const int64_t *stride, uint32_t over, int64_t more)
{
    int64_t low, high, first = at, last = at + (more > 0 ? more : 0);
    if (more < 0) first += more;
    if (!room_of(c, slot, &low, &high)) return "an operand in no buffer";
    for (int a = 0; a < p->n_atom + (p->fold > 0); a++) {
        if (!(over >> (a < p->n_atom ? a : fu_vec(p)) & 1)) continue;
        if (!p->extent[a]) return NULL; /* touches nothing */
        int64_t far = (p->extent[a] - 1) * stride[a];
        *(far < 0 ? &first : &last) += far;
    }
    return first < low || last > high ? "an address outside of its buffer" : NULL;
}

/* Returns true where no point of the loops passes the test: all of them lie in a border. */
static bool never_true(const fu_prog *p, const fu_value *test)
{
    int64_t first = test->shift, last = test->shift;
    for (int a = 0; a < p->n_atom; a++) {
        int64_t far = (p->extent[a] - 1) * test->stride[a];
        *(far < 0 ? &first : &last) += far;
    }
    return last < 0 || first >= test->extent;
}

/* Likewise where `mask` is true. A test of a coordinate bounds what the atoms it counts add to the address,
 * if that is a multiple of the coordinate. */
static const char *wrong_masked_address(const fu_ctx *c, const fu_prog *p, int slot, int64_t at,
                                        const int64_t *stride, uint32_t over, int mask)
{
    int64_t rest[FU_MAX_ATOMS], low = at, more = 0;
    memcpy(rest, stride, sizeof rest);
    for (int i = mask; i >= 0;) {
        const fu_value *m = &p->value[i];
        bool both = m->kind == FU_OP && m->op == TN_OP_logical_and;
        const fu_value *test = both ? &p->value[m->arg[1]] : m;
        if (test->kind != FU_INSIDE) return "a mask that is no test of a coordinate";
        i = both ? m->arg[0] : -1;
        int64_t by = 0;
        bool multiple = true;
        for (int a = 0; a < p->n_atom; a++)
            if (test->stride[a] && !by) by = rest[a] / test->stride[a];
        for (int a = 0; a < p->n_atom; a++)
            multiple = multiple && (!test->stride[a] || rest[a] == by * test->stride[a]);
        if (never_true(p, test)) return NULL;
        if (!multiple || !by) continue;
        for (int a = 0; a < p->n_atom; a++)
            if (test->stride[a]) rest[a] = 0;
        low -= by * test->shift;
        if (by < 0) low += by * (test->extent - 1);
        more += llabs(by) * (test->extent - 1);
    }
    return wrong_address(c, p, slot, low, rest, over, more);
}

/* ---- values ---- */

static const char *wrong_op(const fu_prog *p, const fu_value *v)
{
    const fu_value *last = v->n_arg ? &p->value[v->arg[v->n_arg - 1]] : NULL;
    bool copies = v->op == TN_OP_cast || v->op == TN_OP_contiguous;
    const tn_op_info *o = tn_op_get(v->op);
    if (v->n_arg != (copies ? 1 : o->arity)) return "an operation with too few or too many operands";
    if (!copies && o->kind != TN_KIND_ELTWISE) return "an operation that is no row";
    return last->dtype != v->from ? "an operation on operands of another type" : NULL;
}

static const char *wrong_reduction(const fu_prog *p, const fu_value *v)
{
    const fu_value *x = &p->value[v->arg[0]];
    if (v->n_arg != 1 || x->dtype != v->from) return "a reduction of operands of another type";
    if (!v->reduces || v->reduces & ~v->space) return "a reduction over atoms outside of its space";
    if (v->reduces != (v->cross ? p->cross : p->red)) return "a reduction over other atoms than the loops'";
    if (x->vary & ~v->space) return "a reduction of what changes outside of its space";
    return v->cross || v->phase > x->phase ? NULL : "a reduction that is over before its operand's";
}

static const char *wrong_value(const fu_ctx *c, const fu_prog *p, int id)
{
    const fu_value *v = &p->value[id];
    uint32_t vary = 0;
    if (v->n_arg < 0 || v->n_arg > 3) return "a value of too many operands";
    for (int k = 0; k < v->n_arg; k++) {
        if (v->arg[k] < 0 || v->arg[k] >= id) return "a value that reads one behind it";
        const fu_value *x = &p->value[v->arg[k]];
        vary |= x->vary;
        if (v->kind != FU_REDUCE && x->phase > v->phase) return "a value before its operand's phase";
    }
    if (v->kind == FU_REDUCE) vary &= ~v->reduces;
    if ((v->vary | vary) & ~fu_all_atoms(p)) return "a value changing with an atom that is not there";
    if (vary & ~v->vary) return "a value that does not change as its operands do";
    for (int a = 0; a < p->n_atom; a++)
        if (v->stride[a] && !(v->vary >> a & 1) && v->kind != FU_REDUCE && p->extent[a] > 1)
            return "a stride along an atom the value does not change with";
    switch (v->kind) {
    case FU_NUMBER: return v->n_arg ? "a number with operands" : NULL;
    case FU_SCALAR:
        return v->n_arg || v->slot < c->n_node || v->slot >= c->n_node + c->n_leaf
                   ? "a run-time number that is no leaf"
                   : NULL;
    case FU_LOAD:
        if (v->staged && (p->block < 0 || v->stride[p->block] != 1)) return "a block that nothing runs along";
        if (!v->n_arg) return wrong_address(c, p, v->slot, v->offset + v->shift, v->stride, v->vary, 0);
        if (v->n_arg != 2 || p->value[v->arg[0]].dtype != TN_BOOL || p->value[v->arg[1]].dtype != v->dtype)
            return "a load with operands of other types";
        if (!v->extent) return NULL; /* an empty operand */
        return wrong_masked_address(c, p, v->slot, v->offset + v->shift, v->stride, v->vary, v->arg[0]);
    case FU_INSIDE:
        return v->n_arg || v->extent < 0 || v->dtype != TN_BOOL ? "a test of no coordinate" : NULL;
    case FU_PICK:
        if (v->n_arg != 1 || p->value[v->arg[0]].kind != FU_INDEX) return "a load at what is no index";
        if (!p->value[v->arg[0]].extent) return NULL;
        return wrong_address(c, p, v->slot, v->offset, v->stride, v->vary,
                             v->pick * (p->value[v->arg[0]].extent - 1));
    case FU_OP: return wrong_op(p, v);
    case FU_REDUCE: return wrong_reduction(p, v);
    case FU_GIVEN: return v->n_arg || v->slot >= 0 ? "what is given, with operands" : NULL;
    case FU_IOTA: return v->n_arg ? "a position with operands" : NULL;
    case FU_RANDOM:
        return v->slot < 0 || v->slot >= c->n_node || c->node[v->slot].kind != TN_KIND_RANDOM
                   ? "a draw that no node asked for"
                   : NULL;
    case FU_INDEX: return v->n_arg != 1 || v->extent < 0 ? "an index of no or too many operands" : NULL;
    }
    return "a value of no kind";
}

/* Phases in which the value is computed anew: all it needs is computed then, too. */
static const char *wrong_phases(const fu_prog *p, int id)
{
    const fu_value *v = &p->value[id];
    if (!fu_full(p, v) || !v->used) return NULL;
    for (int phase = 0; phase < p->n_phase; phase++) {
        if (!(v->need >> phase & 1) || (v->stash >= 0 && phase > v->stash)) continue;
        if (phase < v->phase) return "a value computed before the reductions it needs are over";
        for (int k = 0; k < v->n_arg; k++) {
            const fu_value *x = &p->value[v->arg[k]];
            if (fu_full(p, x) && !(x->need >> phase & 1))
                return "an operand that is not computed in the phase";
        }
    }
    return NULL;
}

/* ---- stores ---- */

/* Elements over the store's atoms, each at an address of its own. */
static bool writes_once(const fu_prog *p, const fu_store *s)
{
    int order[FU_MAX_ATOMS], n = 0;
    const bool once = p->fold && s->stride[p->n_atom]; /* by all columns of a sum, and the same */
    for (int a = 0; a < p->n_atom + once; a++) {
        const bool there = a < p->n_atom ? s->dom >> a & 1 && (!once || a != fu_vec(p)) : true;
        if (!there || p->extent[a] <= 1) continue;
        int k = n++;
        for (; k && llabs(s->stride[order[k - 1]]) > llabs(s->stride[a]); k--) order[k] = order[k - 1];
        order[k] = a;
    }
    int64_t reach = 0;
    for (int k = 0; k < n; k++) {
        int64_t stride = llabs(s->stride[order[k]]);
        if (stride <= reach) return false;
        reach += (p->extent[order[k]] - 1) * stride;
    }
    return true;
}

/* Checks that the program reads nothing of the memory that the store overwrites but the same elements, in
 * time. Returns the rule that is broken, or NULL. */
static const char *wrong_overwrite(const fu_ctx *c, const fu_prog *p, const fu_store *s)
{
    const tn_tensor *writer = s->node < 0 ? NULL : c->node[s->node].t;
    const tn_tensor *to = writer ? tn_node_written(writer) : NULL;
    for (int i = 0; i < p->n_value && to; i++) {
        const fu_value *v = &p->value[i];
        if ((v->kind != FU_LOAD && v->kind != FU_PICK) || v->slot >= c->n_node + c->n_leaf || !v->used)
            continue;
        const tn_tensor *x = v->slot < c->n_node ? c->node[v->slot].t : c->seg->leaf[v->slot - c->n_node];
        fu_sight sight = fu_reads(c, x, writer);
        if (sight == FU_UNSEEN) continue;
        if (sight == FU_NEW) return "reads what it writes itself";
        const char *from = tn_node_home(x, NULL), *at = tn_node_home(to, NULL);
        if (from + v->offset * (int64_t)tn_dtype_size(v->dtype) != at ||
            memcmp(v->stride, s->stride, sizeof v->stride) || v->shift != s->shift || v->n_arg ||
            s->mask >= 0)
            return "overwrites other elements than it reads";
        if (!s->late) return "overwrites what it has yet to read";
        if (fu_full(p, v) && v->need >> (s->phase + 1))
            return "overwrites memory before the last phase that reads it";
    }
    return NULL;
}

static const char *wrong_store(const fu_ctx *c, const fu_prog *p, const fu_store *s, bool after)
{
    if (s->value < 0 || s->value >= p->n_value) return "a store of no value";
    const fu_value *v = &p->value[s->value];
    if (s->dom & ~fu_all_atoms(p)) return "a store over an atom that is not there";
    if (s->mask >= p->n_value || (s->mask >= 0 && p->value[s->mask].dtype != TN_BOOL))
        return "a store where no condition says";
    const char *why =
        s->mask < 0 ? wrong_address(c, p, s->slot, s->offset + s->shift, s->stride, s->dom, 0)
                    : wrong_masked_address(c, p, s->slot, s->offset + s->shift, s->stride, s->dom, s->mask);
    if (why) return why;
    if (s->staged && (p->block < 0 || s->stride[p->block] != 1)) return "a block that nothing runs along";
    if (s->dtype != dtype_of(c, s->slot)) return "a store of another type than its buffer's";
    int64_t count = fu_elements(p, s->stride, s->dom);
    int64_t there = s->node >= 0 ? tn_node_numel(c->node[s->node].t) : count;
    if (s->mask < 0 ? count != there : count < there) return "stores more or fewer elements than there are";
    if (s->mask < 0 && count > 1 && !writes_once(p, s)) return "stores an element twice";
    bool full = fu_store_full(p, s);
    if (!after && !p->split && (s->phase < v->phase || s->phase > p->n_phase - full))
        return "a store before its value is there";
    if (s->late && s->phase != p->n_phase - full) return "overwrites memory before the last phase";
    if (full && !after && !(v->need >> s->phase & 1) && fu_full(p, v))
        return "stores in a phase that does not compute it";
    return wrong_overwrite(c, p, s);
}

/* ---- the whole ---- */

static const char *wrong_form(const fu_prog *p)
{
    int vec = fu_vec(p);
    if (p->n_atom < 1 || p->n_atom > FU_MAX_ATOMS) return "no loops, or too many";
    for (int a = 0; a < p->n_atom; a++)
        if (p->extent[a] < 0) return "a loop of a negative extent";
    if (p->n_value < 1 || p->n_value > FU_MAX_VALUES || p->n_store + p->n_after > FU_MAX_STORES)
        return "no values, or too many values or stores";
    if (p->n_phase < 0 || p->n_phase > FU_MAX_PHASES) return "too many phases";
    if ((p->red | p->cross) & ~fu_all_atoms(p) || p->red & p->cross)
        return "reduced atoms that are not there";
    switch (p->form) {
    case FU_POINTWISE: return p->red ? "reduces, and its loops do not" : NULL;
    case FU_ROW: return p->red >> vec & 1 ? NULL : "a row that is not reduced along the vector";
    case FU_COLUMN:
        return p->red && !(p->red >> vec & 1) ? NULL : "a column that is reduced along the vector";
    }
    return "a program of no form";
}

int fu_verify_program(fu_ctx *c, const fu_prog *p)
{
    const char *why = wrong_form(p);
    int node = -1;
    for (int i = 0; i < p->n_store; i++)
        if (p->store[i].node >= 0) node = p->store[i].node;
    for (int i = 0; i < p->n_value && !why; i++) {
        why = wrong_value(c, p, i);
        if (!why) why = wrong_phases(p, i);
        if (why && p->value[i].node >= 0) node = p->value[i].node;
    }
    for (int i = 0; i < p->n_store + p->n_after && !why; i++) {
        why = wrong_store(c, p, &p->store[i], i >= p->n_store);
        if (why && p->store[i].node >= 0) node = p->store[i].node;
    }
    return why ? fu_broken(c, "schedule", node, why) : 0;
}
