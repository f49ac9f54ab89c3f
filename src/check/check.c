/* check.c - checked mode, TENSOR_CHECK=1: the groups of each new plan against the same nodes run one by one.
 *
 * Before a new plan runs for the first time, its segment runs three times from a snapshot of the memory it
 * reads, node by node in the program's order and with the same random counters: in f64 on the reference
 * interpreter, and unfused on the device by the built-in loops. Effects stay in the snapshot. A third run, in
 * f64 with every value moved within the precision of its dtype, shows how far rounding carries where
 * differences cancel or a dtype is coarse. Then, as each group of the plan has run, its results are compared:
 * they may be as far from f64 as four times the unfused ones and the moved ones are, and a tolerance. A group
 * that is further off is named in the log; its results are replaced by the unfused ones, so that what follows
 * is judged by itself; and from the next step on its nodes share no kernel with others. A number that the
 * integer type it is cast to does not hold (NaN, too large) becomes no particular value of that type, as in
 * C, so what is made of such casts is not compared; a line in the log says so. On every run, memory of the
 * arena that holds no live value is filled with NaN.
 *
 *   world    the segment once more: clones of its nodes over a copy of the memory
 *   region   one block of that memory: what leaves look into, and what is assigned to
 *
 * Start with begin and after.
 */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../core/convert.h"
#include "../core/hash.h"
#include "../device/cpu/builtin.h"
#include "../device/ref/ref.h"

typedef struct region {
    const tn_storage *of;
    tn_dtype dtype;
    char *copy;
} region;

typedef struct world {
    tn_graph graph;
    bool exact;        /* f64 on the reference device */
    tn_tensor **clone; /* by slot */
    tn_tensor **view, **viewed;
    int n_view, cap_view, cap_viewed, n_region;
    region *region;
    bool failed;
} world;

enum { MOVED_ULPS = 2 };

struct tn_check {
    bool compare;
    int n;           /* slots */
    uint64_t record; /* without what was found wrong before */
    tn_device *ref;
    world exact, plain, moved;
};

/* ---- a world ---- */

static const tn_storage *whole(const tn_storage *b)
{
    while (b && b->within) b = b->within;
    return b;
}

static tn_storage *home_of(const tn_tensor *t, char **at)
{
    tn_storage *b = NULL;
    *at = tn_node_home(t, &b);
    return *at ? b : NULL;
}

static void add_region(world *w, const tn_tensor *t)
{
    char *at;
    const tn_storage *b = whole(home_of(t, &at));
    if (!b || w->failed) return;
    for (int i = 0; i < w->n_region; i++)
        if (w->region[i].of == b) {
            w->failed = w->failed || w->region[i].dtype != t->dtype;
            return;
        }
    region *r = &w->region[w->n_region];
    tn_dtype d = t->dtype;
    size_t n = b->bytes / tn_dtype_size(d);
    *r = (region){b, d, w->graph.device->alloc(w->graph.device, n * tn_elem_size(&w->graph, d) + 64)};
    if (!(w->failed = !r->copy)) w->n_region++;
    if (w->failed) return;
    if (w->exact)
        tn_convert(r->copy, tn_stored_dtype(&w->graph, d), b->data, d, n);
    else
        memcpy(r->copy, b->data, b->bytes);
}

/* Gives c, a clone that stands for memory, its place in the copy of it. */
static void look_into(world *w, tn_tensor *c, const tn_tensor *t)
{
    char *at;
    const tn_storage *b = whole(home_of(t, &at));
    c->base = c;
    c->offset = 0;
    for (int i = 0; i < w->n_region && b; i++) {
        if (w->region[i].of != b) continue;
        int64_t first = (at - (const char *)b->data) / (int64_t)tn_dtype_size(t->dtype);
        c->buf = tn_storage_wrap(
            &w->graph, w->region[i].copy + first * (int64_t)tn_elem_size(&w->graph, t->dtype), b->bytes);
        break;
    }
    w->failed = w->failed || !c->buf;
}

static tn_tensor *copy_node(world *w, const tn_tensor *t)
{
    tn_tensor *c = tn_arena_alloc(&w->graph.arena, sizeof *c);
    if (!c) {
        w->failed = true;
        return NULL;
    }
    *c = *t;
    c->graph = &w->graph;
    c->buf = NULL;
    c->place = c->of = c->lost_to = c->lost = c->views = NULL;
    c->rule = c->inside = NULL;
    c->mark = 0; /* 1: not compared */
    c->n_in = 0;
    return c;
}

static tn_tensor *remember(world *w, const tn_tensor *t, tn_tensor *c)
{
    if (!tn_reserve(&w->view, &w->cap_view, w->n_view + 1, sizeof *w->view) ||
        !tn_reserve(&w->viewed, &w->cap_viewed, w->n_view + 1, sizeof *w->viewed)) {
        w->failed = true;
        return c;
    }
    w->view[w->n_view] = c;
    w->viewed[w->n_view++] = (tn_tensor *)(uintptr_t)t;
    return c;
}

/* Of an operand: a node of the segment, one of its leaves, or a view of a node. */
static tn_tensor *operand(world *w, const tn_flush_scratch *f, const tn_tensor *t)
{
    int n = f->node.n + f->leaf.n;
    if (t->slot >= 0 && t->slot < n && tn_node_at(f, (int)t->slot) == t) return w->clone[t->slot];
    for (int i = w->n_view - 1; i >= 0; i--)
        if (w->viewed[i] == t) return w->view[i];
    tn_tensor *c = copy_node(w, t);
    if (!c) return NULL;
    remember(w, t, c);
    if (tn_is_number(t) && t->base != t)
        c->base = operand(w, f, t->base);
    else if (t->base == t)
        c->base = c; /* a number */
    else
        c->base = operand(w, f, t->base);
    return c;
}

static void add_leaf(world *w, const tn_flush_scratch *f, int slot)
{
    const tn_tensor *t = tn_node_at(f, slot);
    tn_tensor *c = w->clone[slot] = copy_node(w, t);
    if (!c) return;
    if (!tn_is_number(t))
        look_into(w, c, t);
    else
        c->base = t->base == t ? c : operand(w, f, t->base);
}

static void add_node(world *w, const tn_flush_scratch *f, int slot)
{
    const tn_tensor *t = f->node.at[slot];
    tn_tensor *c = w->clone[slot] = copy_node(w, t);
    if (!c) return;
    c->base = c;
    c->in = t->n_in > 3 ? tn_arena_alloc(&w->graph.arena, t->n_in * sizeof *c->in) : c->in_;
    for (int i = 0; c->in && i < t->n_in; i++)
        w->failed = !(c->in[c->n_in++] = operand(w, f, t->in[i])) || w->failed;
    w->failed = w->failed || !c->in;
    if (!t->place) return;
    c->place = copy_node(w, t->place);
    if (c->place) look_into(w, c->place, t->place);
}

static void run_world(world *w, const tn_session *s, const tn_flush_scratch *f)
{
    for (int i = 0; i < f->node.n && !w->failed; i++) {
        tn_errbuf err = {""};
        tn_tensor *n = w->clone[i];
        w->failed = (w->exact ? tn_ref_run(n, &err) : tn_builtin_run(s->device, n, &err)) != TN_OK;
        n->flags |= TN_F_DONE;
        if (w->failed || !w->exact || !n->place) continue;
        memcpy(tn_node_data(n->place), n->buf->data, (size_t)tn_node_numel(n) * sizeof(double));
    }
}

static void make_world(world *w, tn_session *s, const tn_flush_scratch *f, tn_device *d, bool exact)
{
    int n = f->node.n + f->leaf.n;
    w->exact = exact;
    w->graph.device = d;
    w->graph.session = s;
    w->graph.seed = s->graph.seed;
    w->graph.salt = s->graph.salt;
    w->graph.training = s->graph.training;
    w->clone = tn_calloc((size_t)n + 1, sizeof(tn_tensor *));
    w->region = tn_calloc((size_t)n + 1, sizeof *w->region);
    w->failed = !w->clone || !w->region;
    for (int i = 0; i < TN_DTYPE_COUNT && !w->failed; i++) /* memory is copied by whole slabs */
        w->failed = s->slab[i].gradients && tn_gradient_room(s, s->slab[i].gradients);
    for (int i = 0; i < n && !w->failed; i++) {
        const tn_tensor *t = tn_node_at(f, i);
        const tn_tensor *memory = i < f->node.n ? t->place : tn_is_number(t) ? NULL : t;
        if (memory) add_region(w, memory);
    }
    for (int i = f->node.n; i < n && !w->failed; i++) add_leaf(w, f, i);
    for (int i = 0; i < f->node.n && !w->failed; i++) add_node(w, f, i);
    if (!w->failed) run_world(w, s, f);
}

/* Elements in memory, by logical index. */
typedef struct elements {
    char *data;
    tn_dtype dtype;
    int ndim;
    const int64_t *shape, *stride;
} elements;

static size_t place_of(const elements *e, int64_t i)
{
    int64_t at = 0;
    for (int k = e->ndim - 1; k >= 0; k--) {
        at += i % e->shape[k] * e->stride[k];
        i /= e->shape[k];
    }
    return (size_t)at;
}

/* Returns true where an element of the operand lies outside the range of the integer type that it is cast
 * to. */
static bool casts_too_much(const tn_tensor *c)
{
    const tn_tensor *x = c->n_in == 1 ? c->in[0] : NULL;
    if (!x || tn_kind_of(c) != TN_KIND_CAST || !tn_dtype_is_int(c->dtype) || !tn_dtype_is_float(x->dtype) ||
        !tn_node_data(x))
        return false;
    int bits = 8 * (int)tn_dtype_size(c->dtype);
    double low = c->dtype == TN_U8 ? 0 : -ldexp(1, bits - 1),
           end = ldexp(1, c->dtype == TN_U8 ? 8 : bits - 1);
    elements e = {tn_node_data(x), TN_F64, x->ndim, x->shape, x->stride};
    for (int64_t i = 0, n = tn_node_numel(x); i < n; i++) {
        double v = trunc(tn_load_f64(e.data, TN_F64, place_of(&e, i)));
        if (!(v >= low && v < end)) return true;
    }
    return false;
}

/* Marks in the exact world the results of such casts, and the nodes that depend on them. */
static void mark_undefined(const tn_session *s, const world *w, const tn_flush_scratch *f)
{
    const tn_tensor *first = NULL;
    for (int i = 0; i < f->node.n; i++) {
        tn_tensor *c = w->clone[i];
        bool here = casts_too_much(c);
        for (int k = 0; k < c->n_in; k++) c->mark |= c->in[k]->base->mark;
        if (here && !first) first = f->node.at[i];
        c->mark |= here;
    }
    const tn_call *call = first ? first->call : NULL;
    if (first)
        tn_warn(s,
                "checked mode: %s at %s:%d is given numbers that %s does not hold; what is made of them is "
                "not compared",
                call ? call->name : "cast", call && call->file ? tn_short_file(call->file) : "?",
                call ? call->line : 0, tn_dtype_name(first->dtype));
}

static void free_world(world *w, int n)
{
    for (int i = 0; i < n && w->clone; i++) {
        tn_tensor *c = w->clone[i];
        if (!c) continue;
        if (c->place) tn_storage_release(c->place->buf);
        tn_storage_release(c->buf);
    }
    for (int i = 0; i < w->n_region; i++) w->graph.device->free(w->graph.device, w->region[i].copy);
    tn_free_mem(w->clone);
    tn_free_mem(w->region);
    tn_free_mem(w->view);
    tn_free_mem(w->viewed);
    tn_arena_free(&w->graph.arena);
}

/* ---- what went wrong before ---- */

static bool ban_known(tn_session *s, tn_flush_scratch *f)
{
    const tn_explain_state *x = s->explain;
    uint64_t record = x->n_ban ? tn_hash_bytes(f->key, f->n_key) : 0;
    bool any = false;
    for (int i = 0; i < x->n_ban; i++)
        for (int k = 0; x->ban[i].record == record && k < x->ban[i].n; k++) {
            if (x->ban[i].node[k] >= f->node.n) continue;
            f->root[x->ban[i].node[k]] |= TN_SEG_ALONE;
            any = true;
        }
    return any;
}

static void ban_group(tn_session *s, uint64_t record, const tn_plan *p, const tn_step *st)
{
    tn_explain_state *x = s->explain;
    tn_ban *list = tn_realloc(x->ban, (size_t)(x->n_ban + 1) * sizeof *list);
    if (!list) return; /* it is named in any case, and found again in the next plan */
    x->ban = list;
    int *node = tn_malloc((size_t)(st->n_nodes + 1) * sizeof *node);
    if (!node) return;
    memcpy(node, p->node_of + st->first_node, (size_t)st->n_nodes * sizeof *node);
    x->ban[x->n_ban++] = (tn_ban){record, st->n_nodes, node};
}

/* ---- around a run ---- */

static uint64_t plain_record(tn_session *s, tn_flush_scratch *f, bool *ok)
{
    uint8_t *marks = tn_malloc((size_t)f->node.n + 1);
    if (!(*ok = marks != NULL)) return 0;
    memcpy(marks, f->root, (size_t)f->node.n);
    for (int i = 0; i < f->node.n; i++) f->root[i] &= (uint8_t)~TN_SEG_ALONE;
    *ok = tn_segment_record(s, f);
    uint64_t h = *ok ? tn_hash_bytes(f->key, f->n_key) : 0;
    memcpy(f->root, marks, (size_t)f->node.n);
    tn_free_mem(marks);
    return h;
}

static void end(tn_session *s)
{
    struct tn_check *c = s->explain->checking;
    if (!c) return;
    free_world(&c->exact, c->n);
    free_world(&c->plain, c->n);
    free_world(&c->moved, c->n);
    if (c->ref) c->ref->close(c->ref);
    tn_free_mem(c);
    s->explain->checking = NULL;
}

static int begin(tn_session *s, tn_flush_scratch *f, tn_plan *p, bool fresh)
{
    tn_explain_state *x = s->explain;
    bool ok = true;
    end(s);
    if (tn_finite_begin(s, f)) return s->graph.error.status;
    if (!(x->checking = tn_calloc(1, sizeof *x->checking))) return tn_fail_memory(s);
    struct tn_check *c = x->checking;
    if (!fresh || p->together || !s->device->shares_host_memory || strcmp(s->device->name, "cpu"))
        return TN_OK;
    c->n = f->node.n + f->leaf.n;
    c->record = plain_record(s, f, &ok);
    tn_errbuf err = {""};
    tn_device_options o = {.threads = 1};
    if (!ok || tn_ref_open(&o, &c->ref, &err)) return tn_fail_memory(s);
    make_world(&c->exact, s, f, c->ref, true);
    if (!c->exact.failed) make_world(&c->plain, s, f, s->device, false);
    tn_ref_set_noise(c->ref, MOVED_ULPS, 1);
    if (!c->exact.failed && !c->plain.failed) make_world(&c->moved, s, f, c->ref, true);
    tn_ref_set_noise(c->ref, 0, 0);
    c->compare = !c->exact.failed && !c->plain.failed && !c->moved.failed;
    if (c->compare) mark_undefined(s, &c->exact, f);
    if (!c->compare && !s->graph.error.status)
        tn_warn(s, "checked mode: a plan of %d nodes could not be run unfused and is not checked", f->node.n);
    return TN_OK;
}

void tn_check_free(tn_explain_state *x)
{
    for (int i = 0; i < x->n_ban; i++) tn_free_mem(x->ban[i].node);
    tn_free_mem(x->ban);
    tn_free_mem(x->grade);
}

void tn_check_plant(tn_session *s, int least) { s->explain->plant = least; }

/* ---- comparing ---- */

static elements clone_elements(const world *w, int slot)
{
    const tn_tensor *c = w->clone[slot];
    return (elements){tn_node_data(c), tn_stored_dtype(&w->graph, c->dtype), c->ndim, c->shape, c->stride};
}

static elements result_elements(const tn_flush_scratch *f, int slot, int64_t *dense)
{
    const tn_tensor *t = f->node.at[slot], *to = tn_node_written(t);
    tn_dense_strides(t->ndim, t->shape, dense);
    return (elements){f->address[slot], t->dtype, t->ndim, t->shape, to ? to->stride : dense};
}

static double tolerance_of(tn_dtype d)
{
    static const double share[TN_DTYPE_COUNT] = {
        [TN_F64] = 1e-12, [TN_F32] = 1e-5, [TN_F16] = 2e-3, [TN_BF16] = 2e-2};
    return share[d];
}

static double distance(double a, double b)
{
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b) ? 0 : INFINITY;
    return a == b ? 0 : fabs(a - b);
}

typedef struct finding {
    int64_t at;
    double value, want;
} finding;

typedef struct answers {
    elements got, exact, plain, moved;
} answers;

static double value_at(const elements *e, int64_t i)
{
    return tn_load_f64(e->data, e->dtype, place_of(e, i));
}

/* Returns true where the kernel's result is wrong, and sets *found. Where rounding decides (a comparison, a
 * kink), single elements may fall the other way: one in a thousand, and to a value of the size of the others.
 * The moved run counts by its mean, which those do not make large, and by the element itself. */
static bool is_wrong(const answers *a, int64_t n, finding *found)
{
    double spread = 0, scale = 0, moved = 0;
    for (int64_t i = 0; i < n; i++) {
        double w = value_at(&a->exact, i);
        double d = distance(value_at(&a->plain, i), w), m = distance(value_at(&a->moved, i), w);
        if (isfinite(d)) spread = fmax(spread, d);
        if (isfinite(m)) moved += m / (double)n;
        if (isfinite(w)) scale = fmax(scale, fabs(w));
    }
    double limit = 4 * spread + 8 * moved + tolerance_of(a->got.dtype) * scale;
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        double w = value_at(&a->exact, i), v = value_at(&a->got, i), p = value_at(&a->plain, i);
        double here = limit + 4 * distance(value_at(&a->moved, i), w);
        if (distance(v, w) <= here || distance(v, p) <= here) continue;
        bool absurd = !(distance(v, w) <= 2 * scale + limit);
        if (!bad || absurd) *found = (finding){i, v, w};
        if (absurd) return true;
        bad++;
    }
    return bad > n / 1000;
}

/* Returns true where a node recorded later writes to the same memory: then the clones hold its value. */
static bool overwritten(const tn_flush_scratch *f, int slot)
{
    const tn_tensor *to = tn_node_written(f->node.at[slot]);
    for (int i = slot + 1; to && i < f->node.n; i++) {
        const tn_tensor *later = tn_node_written(f->node.at[i]);
        if (later && tn_node_overlap(later, to)) return true;
    }
    return false;
}

static void report(tn_session *s, const tn_plan *p, const tn_step *st, int slot, const finding *found)
{
    char name[160], where[200] = "";
    const tn_note *n = p->note;
    int call = n->value[slot].call;
    if (call >= 0 && n->call[call].of >= 0) call = n->call[call].of;
    if (call >= 0) tn_note_where(&n->call[call], where, sizeof where);
    tn_warn(
        s,
        "checked mode: kernel %s (%d nodes, %s) makes %.9g of element %lld of %s where %.9g is right; its "
        "operators run apart from the next step on",
        st->name, st->n_nodes, where, found->value, (long long)found->at,
        tn_note_name(n, slot, name, sizeof name), found->want);
}

static void spoil(const elements *e)
{
    if (e->dtype == TN_F32) *(float *)(void *)e->data = *(float *)(void *)e->data * 2 + 1000;
}

static bool compare_result(tn_session *s, const tn_flush_scratch *f, int slot, finding *found)
{
    const struct tn_check *c = s->explain->checking;
    int64_t dense[TN_MAX_DIMS], n = tn_node_numel(f->node.at[slot]);
    answers a = {result_elements(f, slot, dense), clone_elements(&c->exact, slot),
                 clone_elements(&c->plain, slot), clone_elements(&c->moved, slot)};
    elements got = a.got, plain = a.plain;
    if (!n || !got.data || !a.exact.data || !plain.data || !a.moved.data || !is_wrong(&a, n, found))
        return false;
    size_t size = tn_dtype_size(got.dtype);
    for (int64_t i = 0; i < n; i++)
        memcpy(got.data + place_of(&got, i) * size, plain.data + place_of(&plain, i) * size, size);
    return true;
}

static void compare_group(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step)
{
    const tn_step *st = &p->step[step];
    bool wrong = false;
    int64_t dense[TN_MAX_DIMS];
    for (int i = 0; i < st->n_nodes; i++) {
        int slot = p->node_of[st->first_node + i];
        bool stored = false;
        for (int k = step; k >= 0 && p->step[k].first_node == st->first_node && !stored; k--)
            for (int b = p->step[k].n_buf - p->step[k].n_out; b < p->step[k].n_buf; b++)
                stored = stored || p->step[k].buf[b] == slot;
        finding found = {0};
        if (!stored || overwritten(f, slot) || s->explain->checking->exact.clone[slot]->mark) continue;
        elements e = result_elements(f, slot, dense);
        if (s->explain->plant && st->n_nodes >= s->explain->plant && !wrong &&
            tn_node_numel(f->node.at[slot]))
            spoil(&e);
        if (!compare_result(s, f, slot, &found)) continue;
        if (!wrong) report(s, p, st, slot, &found);
        wrong = true;
    }
    if (!wrong) return;
    s->explain->found++;
    tn_tape_end(s); /* the next step is not to repeat this one */
    ban_group(s, s->explain->checking->record, p, st);
}

static void poison(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step)
{
    TN_EACH(v, p->value, p->n_value) {
        const tn_tensor *n = v->slot < f->node.n ? f->node.at[v->slot] : NULL;
        const bool stays = v->root || v->keep || v->alias >= 0 || v->taken || (n && tn_node_written(n));
        if (stays || step < v->first || step > v->last) continue;
        char *room = tn_plan_room(s, p, v);
        if (!v->n_part && v->last == step) memset(room, 0xff, v->elems * tn_dtype_size(v->dtype));
        for (const tn_plan_part *t = p->part + v->part; t < p->part + v->part + v->n_part; t++)
            if (t->last == step) memset(room + t->low, 0xff, t->high - t->low);
    }
}

static int after(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step)
{
    const tn_step *st = &p->step[step], *next = step + 1 < p->n_step ? st + 1 : NULL;
    bool last = !next || next->first_node != st->first_node || next->n_nodes != st->n_nodes;
    if (s->explain->checking->compare && last) compare_group(s, f, p, step);
    int status = tn_finite_after(s, f, p, step);
    if (s->device->shares_host_memory) poison(s, f, p, step);
    return status;
}

void tn_check_open(tn_explain_state *x)
{
    x->check = true;
    x->looks.banned = ban_known;
    x->looks.begin = begin;
    x->looks.after = after;
    x->looks.end = end;
    x->looks.loss = tn_finite_loss;
}
