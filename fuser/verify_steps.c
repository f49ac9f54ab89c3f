/* verify_steps.c - what the runtime may take for granted about a plan's launches and its memory.
 *
 *   steps    each slot is written by one group, all of it before any step reads it; each root is written; old
 *            values are read before, and new ones after, the step that overwrites their memory
 *   memory   values that live at once share no byte of the arena, unless a step writes one of them over the
 *            other as it may; all lie within it, or where gradients will be written when they are dead
 *
 * Start with fu_verify_steps, and tn_plan_verify_memory for when offsets are known.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../src/core/range_max.h"
#include "fuser.h"

typedef struct uses {
    int first_write, last_write, first_read, last_read; /* steps, -1: none */
} uses;

static int n_slots(const fu_ctx *c) { return c->n_node + c->n_leaf + c->plan->n_scratch; }

static bool is_leaf(const fu_ctx *c, int slot) { return slot >= c->n_node && slot < c->n_node + c->n_leaf; }

static int collect(fu_ctx *c, uses *of)
{
    const tn_plan *p = c->plan;
    for (int i = 0; i < n_slots(c); i++) of[i] = (uses){-1, -1, -1, -1};
    for (int s = 0; s < p->n_step; s++) {
        const tn_step *st = &p->step[s];
        if (st->n_out < 1 || st->n_out > st->n_buf)
            return fu_broken(c, "emit", -1, "a step that writes nothing");
        for (int b = 0; b < st->n_buf; b++) {
            int slot = st->buf[b];
            bool optional = slot == -1 && st->kind != TN_STEP_KERNEL && b == 2; /* bias */
            if (optional) continue;
            if (slot < 0 || slot >= n_slots(c))
                return fu_broken(c, "emit", -1, "a step with an operand nowhere");
            uses *u = &of[slot];
            bool out = b >= st->n_buf - st->n_out;
            if (out && is_leaf(c, slot)) return fu_broken(c, "emit", -1, "a step that writes a leaf");
            int *first = out ? &u->first_write : &u->first_read, *last = out ? &u->last_write : &u->last_read;
            if (*first < 0) *first = s;
            *last = s;
        }
    }
    return 0;
}

static const char *wrong_slot(const fu_ctx *c, int slot, const uses *u)
{
    const fu_node *n = slot < c->n_node ? &c->node[slot] : NULL;
    if (is_leaf(c, slot)) return NULL;
    /* no elements: no step has to make it */
    bool nothing = n ? !tn_node_numel(n->t) : !c->scratch[slot - c->n_node - c->n_leaf].elems;
    if (u->first_read >= 0 && u->first_write < 0 && !nothing) return "is read, and no step writes it";
    if (u->first_read >= 0 && u->first_read <= u->last_write) return "is read before it is written";
    bool one_group = u->first_write == u->last_write || /* or several kernels of a group of its own */
                     c->plan->step[u->first_write].first_node == c->plan->step[u->last_write].first_node;
    if (!one_group && !(n && n->spared)) return "is written by two groups";
    if (n && (n->root || n->kind == TN_KIND_ASSIGN) && u->first_write < 0 && !nothing)
        return "is a root, and no step writes it";
    return NULL;
}

/* Steps that read memory on the wrong side of the step that overwrites it: of the writers before and after
 * what is read. All others are before and after these. */
static int check_overwritten(fu_ctx *c, const uses *of)
{
    const fu_written *m = &c->written;
    for (int slot = 0; slot < c->n_node + c->n_leaf && m->n_edge; slot++) {
        if (of[slot].first_read < 0) continue;
        const tn_tensor *x = slot < c->n_node ? c->node[slot].t : c->seg->leaf[slot - c->n_node];
        int piece, end;
        if (slot < c->n_node && !tn_node_written(x)) continue;
        x = fu_value_of(c, x);
        for (fu_written_pieces(c, x, &piece, &end); piece < end; piece++) {
            const int before = fu_writer_near(c, piece, x->base->id, false),
                      after = fu_writer_near(c, piece, x->base->id, true);
            if (after >= 0 && after != slot && of[after].first_write >= 0 &&
                of[slot].last_read > of[after].first_write)
                return fu_broken(c, "emit", after, "overwrites what a later step reads");
            if (before >= 0 && before != slot && c->node[before].t != x->base &&
                of[slot].first_read < of[before].first_write)
                return fu_broken(c, "emit", before, "is read before it is written");
        }
    }
    for (int k = 0; k + 1 < m->n_edge; k++)
        for (int i = m->begin[k], before = -1; i < m->begin[k + 1]; i++) {
            const int w = m->by[i];
            if (!c->node[w].live || of[w].first_write < 0) continue;
            if (before >= 0 && of[w].first_write < of[before].first_write)
                return fu_broken(c, "emit", w, "overwrites what a later step writes");
            before = w;
        }
    return 0;
}

int fu_verify_steps(fu_ctx *c)
{
    uses *of = tn_arena_alloc(&c->arena, (size_t)(n_slots(c) + 1) * sizeof *of);
    if (!of) return TN_E_NOMEM;
    int status = collect(c, of);
    for (int i = 0; i < n_slots(c) && !status; i++) {
        const char *why = wrong_slot(c, i, &of[i]);
        if (why) status = fu_broken(c, "emit", i, why);
    }
    return status ? status : check_overwritten(c, of);
}

/* ---- memory ---- */

static bool in_arena(const tn_plan_value *v) { return !v->root && !v->keep && v->alias < 0; }

static size_t end_of(const tn_plan_value *v) { return v->offset + v->elems * tn_dtype_size(v->dtype); }

static int wrong_memory(tn_errbuf *err, int slot, const char *rule)
{
    return tn_err(err, TN_E_INTERNAL, "after memory: slot %d: %s", slot, rule);
}

/* Returns the end of the memory that is set aside for the value. */
static size_t room_end(const tn_plan_value *v)
{
    return v->offset + (end_of(v) - v->offset + TN_PLAN_ALIGN - 1) / TN_PLAN_ALIGN * TN_PLAN_ALIGN;
}

/* Returns true where the step that is the last to read a may write b over it, and does so. */
static bool written_over(const tn_plan *p, const tn_plan_value *a, const tn_plan_value *b)
{
    const tn_step *s = &p->step[a->last];
    bool listed = false;
    for (int i = 0; i < s->n_over; i++) listed |= s->over[i].from == a->slot && s->over[i].to == b->slot;
    return listed && a->last == b->first && a->offset == b->offset && a->taken &&
           room_end(b) <= room_end(a) && tn_dtype_size(a->dtype) == tn_dtype_size(b->dtype);
}

/* A value, or a part of one that dies by itself, in its place. */
typedef struct laid {
    size_t offset, end;
    int first, last, value;
} laid;

static int by_offset(const void *a, const void *b)
{
    const laid *x = a, *y = b;
    return x->offset != y->offset ? (x->offset > y->offset) - (x->offset < y->offset) : x->value - y->value;
}

/* Returns true where, in steps first to last, what begins before a (by its offset) reaches into a. If
 * `shared`, a value that a is written over, or that is written over a, does not count. */
static bool lies_on(const tn_plan *p, const tn_range_max *ends, int first, int last, const laid *a,
                    bool shared)
{
    int by;
    if (tn_range_most(ends, first, last, &by) <= a->offset) return false;
    const tn_plan_value *v = &p->value[a->value], *b = &p->value[by];
    return !shared || (!written_over(p, v, b) && !written_over(p, b, v));
}

bool tn_plan_lends(const tn_plan *p, size_t low, size_t high, int last)
{
    for (int i = 0; i < p->n_lent && low < high; i++)
        if (p->lent[i].low <= low && low < p->lent[i].high && last < p->lent[i].until) low = p->lent[i].high;
    return low >= high;
}

/* By their offsets, values are laid over the steps they live in. at: as many as there are values and parts. */
static int check_shared(const tn_plan *p, tn_errbuf *err, tn_range_max *ends, laid *at)
{
    int n = 0;
    for (int i = 0; i < p->n_value; i++) {
        const tn_plan_value *a = &p->value[i];
        const size_t end = end_of(a);
        if (a->first > a->last) return wrong_memory(err, a->slot, "dies before it is made");
        if (!in_arena(a)) continue;
        if (end > p->lent_bytes + p->arena_bytes)
            return wrong_memory(err, a->slot, "lies outside of the arena");
        if (end > a->offset && !a->n_part) at[n++] = (laid){a->offset, end, a->first, a->last, i};
        for (int k = 0; k < a->n_part; k++) {
            const tn_plan_part *t = &p->part[a->part + k];
            if (t->low != (k ? t[-1].high : 0) || t->high < t->low ||
                (k + 1 == a->n_part && t->high != end - a->offset))
                return wrong_memory(err, a->slot, "is not the sum of its parts");
            if (t->first < a->first || t->last < t->first || t->last > a->last)
                return wrong_memory(err, a->slot, "a part outlives it");
            if (t->high > t->low)
                at[n++] = (laid){a->offset + t->low, a->offset + t->high, t->first, t->last, i};
        }
    }
    for (int i = 0; i < n; i++)
        if (at[i].offset < p->lent_bytes && !tn_plan_lends(p, at[i].offset, at[i].end, at[i].last))
            return wrong_memory(err, p->value[at[i].value].slot,
                                "lies in a gradient's memory that is not lent");
    if (n) qsort(at, (size_t)n, sizeof *at, by_offset);
    for (int i = 0; i < n; i++) {
        const laid *a = &at[i];
        if (lies_on(p, ends, a->first, a->first, a, true) || lies_on(p, ends, a->last, a->last, a, true) ||
            lies_on(p, ends, a->first + 1, a->last - 1, a, false))
            return wrong_memory(err, p->value[a->value].slot,
                                "shares memory with a value that lives at the same time");
        tn_range_raise(ends, a->first, a->last, a->end, a->value);
    }
    return TN_OK;
}

static int check_lives(const tn_plan *p, tn_errbuf *err, const int *value_of, int n_slot)
{
    for (int s = 0; s < p->n_step; s++)
        for (int b = 0; b < p->step[s].n_buf; b++) {
            const int slot = p->step[s].buf[b], i = slot >= 0 && slot < n_slot ? value_of[slot] : -1;
            if (i >= 0 && (s < p->value[i].first || s > p->value[i].last))
                return wrong_memory(err, slot, "is used outside of its life");
        }
    return TN_OK;
}

int tn_plan_verify_memory(const tn_plan *p, tn_errbuf *err)
{
    tn_range_max ends = {0};
    int n_slot = 0;
    for (int i = 0; i < p->n_value; i++) n_slot = p->value[i].slot >= n_slot ? p->value[i].slot + 1 : n_slot;
    laid *at = tn_malloc((size_t)(p->n_value + p->n_part + 1) * sizeof *at);
    int *value_of = tn_malloc((size_t)(n_slot + 1) * sizeof *value_of);
    const bool ready = tn_range_max_open(&ends, p->n_step) && at && value_of;
    for (int i = 0; i < n_slot && ready; i++) value_of[i] = -1;
    for (int i = 0; i < p->n_value && ready; i++) value_of[p->value[i].slot] = i;
    int status = ready ? check_shared(p, err, &ends, at) : TN_E_NOMEM;
    if (!status) status = check_lives(p, err, value_of, n_slot);
    if (!ready) snprintf(err->text, sizeof err->text, "no memory for a plan");
    tn_range_max_close(&ends);
    tn_free_mem(at);
    tn_free_mem(value_of);
    return status;
}
