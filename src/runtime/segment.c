/* segment.c - what one flush runs, and the record by which its plan is found again.
 *
 *   collect   the nodes without a value that the seeds need, in id order, and the leaves they read
 *   record    the segment as bytes: everything a plan depends on, nothing it does not (no pointers, names,
 *             run-time numbers, draws)
 *
 * Start with tn_segment_collect.
 */
#include "../core/int64.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/hash.h"
#include "log.h"

/* ---- collect ---- */

/* Marks those of n's operands, and n itself, that a derived backward will read. */
static void mark_wanted(tn_tensor *n)
{
    if (n->region == TN_REGION_AGAIN) return;     /* what it is made of is kept for others */
    if (n->region && !(n->flags & TN_F_WALKED)) { /* will be computed again from what comes from outside */
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i]->region != n->region) n->in[i]->base->flags |= TN_F_WANTED;
        return;
    }
    if (!(n->flags & TN_F_REQUIRES_GRAD) || n->flags & TN_F_WALKED) return;
    for (int i = 0; n->rule && n->rule == n->inside && i < n->rule->n_args; i++)
        if (n->rule->args[i]) n->rule->args[i]->base->flags |= TN_F_WANTED;
    if (n->inside) return;
    unsigned needs = tn_op_needs(n->op);
    if (!needs) return;
    for (int i = 0; i < n->n_in && i < 3; i++)
        if (needs >> i & 1) n->in[i]->base->flags |= TN_F_WANTED;
    if (needs & TN_NEEDS_OUT) n->flags |= TN_F_WANTED;
}

/* Returns true where computing `seed` anew has to compute v. */
static bool comes_to(tn_session *s, tn_flush_scratch *f, tn_tensor *seed, const tn_tensor *v)
{
    const uint32_t mark = ++s->graph.mark;
    f->stack.n = 0;
    for (tn_tensor *x = seed->base; x != v; x = f->stack.at[--f->stack.n]) {
        for (int i = 0; i < x->n_in; i++) {
            tn_tensor *b = x->in[i]->base;
            if (b->mark == mark || tn_has_value(b)) continue;
            b->mark = mark;
            if (!tn_list_push(&f->stack, b)) return false;
        }
        if (!f->stack.n) return false;
    }
    return true;
}

/* Names the value that is asked for in the user's terms: not the copy that a read makes of it first. */
static const char *asked_text(const tn_session *s, const tn_tensor *x, char *out, size_t size)
{
    char where[160];
    while (x->n_in && x->call == s->graph.call) x = x->in[0];
    tn_node_where(x, where, sizeof where);
    if (tn_kind_of(x) == TN_KIND_ASSIGN)
        snprintf(out, size, "what %s assigns", where);
    else if (x->name)
        snprintf(out, size, "the value of '%s', %s,", x->name, where);
    else
        snprintf(out, size, "the value of %s", where);
    return out;
}

/* v is to be made again, and reads what `to` has overwritten since. The user knows nothing of v but
 * asked for another value, perhaps, which is named first. */
static int not_kept(tn_session *s, tn_flush_scratch *f, const tn_tensor *v, const tn_tensor *lost,
                    const tn_tensor *to)
{
    char ran[200] = "", wanted[240] = "a value", reads[200];
    const tn_step_log *l = &s->explain->now;
    const tn_run_log *r = l->n ? &l->run[l->n - 1] : NULL;
    const tn_tensor *x = NULL;
    for (int i = 0; i < f->seed.n && !x; i++)
        if (comes_to(s, f, f->seed.at[i], v)) x = f->seed.at[i];
    if (x) asked_text(s, x, wanted, sizeof wanted);
    tn_node_where(v, reads, sizeof reads);
    bool itself = x && strstr(wanted, reads);
    if (r && r->file)
        snprintf(ran, sizeof ran, " by the run that %s at %s:%d asked for", r->ender, tn_short_file(r->file),
                 r->line);
    else if (r)
        snprintf(ran, sizeof ran, " by the run that %s asked for", r->ender);
    tn_error_set(&s->graph, TN_E_NOT_KEPT,
                 "%s was not kept%s, and cannot be made again: %s reads %s, which %s has assigned to since; "
                 "tn_keep the value before that run, or assign later",
                 wanted, ran, itself ? "it" : reads,
                 lost->name                         ? lost->name
                 : tn_kind_of(to) == TN_KIND_ASSIGN ? "a tensor"
                                                    : "gradients",
                 TN_NODE_WHERE(to));
    return TN_E_NOT_KEPT;
}

/* A kernel knows one seed. What was drawn under another, and is to be drawn again, would be other numbers. */
static int other_seed(tn_session *s, const tn_tensor *v)
{
    tn_error_set(&s->graph, TN_E_STATE,
                 "the numbers of %s are needed again, as in backward, and tn_set_rng has changed the seed "
                 "since; change it between steps",
                 TN_NODE_WHERE(v));
    return TN_E_STATE;
}

static bool meet(tn_flush_scratch *f, tn_tensor *v, uint32_t mark)
{
    v->mark = mark;
    return tn_list_push(&f->marked, v);
}

/* Visits the values that v's gradient will read: they are computed with v, also where v itself does not need
 * them. */
static int visit_saved(tn_session *s, tn_flush_scratch *f, const tn_tensor *v, uint32_t mark)
{
    if (!v->rule || v->region || !(v->flags & TN_F_REQUIRES_GRAD) || v->flags & TN_F_WALKED) return TN_OK;
    for (int i = 0; i < TN_MAX_ARGS; i++) {
        tn_tensor *b = v->rule->saved[i] ? v->rule->saved[i]->base : NULL;
        if (!b || b->mark == mark || tn_has_value(b) || tn_is_number(b)) continue;
        if (!meet(f, b, mark) || !tn_list_push(&f->stack, b)) return tn_fail_memory(s);
    }
    return TN_OK;
}

static int visit(tn_session *s, tn_flush_scratch *f, tn_tensor *v, uint32_t mark)
{
    if (tn_kind_of(v) == TN_KIND_RANDOM && v->attr->seed != s->graph.seed) return other_seed(s, v);
    if (!s->ending) {
        mark_wanted(v);
        int status = visit_saved(s, f, v, mark);
        if (status) return status;
    }
    for (int i = 0; i < v->n_in; i++) {
        tn_tensor *x = v->in[i], *b = x->base;
        const bool target = !i && tn_kind_of(v) == TN_KIND_ASSIGN;
        if (b->flags & TN_F_REFUSED && !target) return tn_refused(s, b);
        const tn_tensor *writer = tn_lost_to(b, v->id);
        if (writer) return not_kept(s, f, v, b, writer);
        if (tn_has_value(b) || tn_is_number(b)) {
            if (x->mark != mark && !meet(f, x, mark)) return tn_fail_memory(s); /* a leaf */
            continue;
        }
        if (b->mark == mark) continue;
        if (!meet(f, b, mark) || !tn_list_push(&f->stack, b)) return tn_fail_memory(s);
    }
    return TN_OK;
}

/* Decides whether v is a root. Where each call runs by itself (eager mode), values that the user holds or a
 * backward asks for are roots; where a whole step runs, those that were asked for, and those that a backward
 * that has not been recorded yet could need. */
static unsigned root_bits(const tn_session *s, const tn_tensor *v)
{
    bool effect = tn_kind_of(v) == TN_KIND_ASSIGN || v->place;
    if (!tn_deferred(s)) {
        /* between tn_op_begin and tn_op_end what an operator has read is an inner result */
        bool inner = s->region_ends && v->flags & TN_F_CONSUMED;
        bool held = (v->flags & TN_F_USER && !inner) || v->flags & TN_F_SAVED;
        return (effect || held ? TN_SEG_ROOT : 0u) | (v->flags & TN_F_WANTED ? TN_SEG_KEEP : 0u);
    }
    bool saved = v->flags & TN_F_SAVED && !v->region && !(v->saver->out->flags & TN_F_WALKED);
    return (effect || (!s->ending && (saved || v->flags & TN_F_WANTED)) ? TN_SEG_ROOT : 0u) |
           (v->flags & TN_F_AGAIN ? TN_SEG_AGAIN : 0u);
}

/* Puts what was marked in the order of its ids: sorted where it is little of the graph, as where each call
 * runs by itself, else as the graph has it. A handle that stands for itself outside the graph is no node of
 * it. */
static bool take_marked(const tn_graph *g, tn_flush_scratch *f, uint32_t mark)
{
    const bool few = f->marked.n < (int)(g->n_nodes / 16) || f->marked.n < 32;
    tn_tensor **at = few ? f->marked.at : g->nodes;
    const int n = few ? f->marked.n : (int)g->n_nodes;
    if (few && n > 1) qsort(at, (size_t)n, sizeof *at, tn_by_id);
    for (int i = 0; i < n; i++) {
        tn_tensor *v = at[i];
        if (few ? v->id >= g->n_nodes || g->nodes[v->id] != v : v->mark != mark) continue;
        const bool leaf = tn_has_value(v->base) || tn_is_number(v);
        if (!tn_list_push(leaf ? &f->leaf : &f->node, v)) return false;
    }
    return true;
}

int tn_segment_collect(tn_session *s, tn_flush_scratch *f)
{
    uint32_t mark = ++s->graph.mark;
    f->node.n = f->leaf.n = f->stack.n = f->marked.n = 0;
    for (int i = 0; i < f->seed.n; i++) {
        tn_tensor *b = f->seed.at[i]->base;
        if (tn_has_value(b) || tn_is_number(b)) continue;
        if (b->flags & TN_F_REFUSED) return tn_refused(s, b);
        if (b->mark == mark) continue;
        if (!meet(f, b, mark) || !tn_list_push(&f->stack, b)) return tn_fail_memory(s);
    }
    while (f->stack.n) {
        int status = visit(s, f, f->stack.at[--f->stack.n], mark);
        if (status) return status;
    }
    if (!take_marked(&s->graph, f, mark)) return tn_fail_memory(s);
    if (f->cap_root < f->node.n && !tn_reserve(&f->root, &f->cap_root, f->node.n, 1))
        return tn_fail_memory(s);
    for (int i = 0; i < f->node.n; i++) {
        tn_tensor *v = f->node.at[i];
        v->slot = i;
        f->root[i] = (uint8_t)root_bits(s, v);
    }
    for (int i = 0; i < f->seed.n; i++) {
        tn_tensor *b = f->seed.at[i]->base;
        if (b->mark == mark && !tn_has_value(b) && tn_kind_of(b) != TN_KIND_NUMBER)
            f->root[b->slot] |= TN_SEG_ROOT;
    }
    for (int i = 0; i < f->leaf.n; i++) {
        tn_tensor *x = f->leaf.at[i];
        x->slot = f->node.n + i;
        if (tn_is_number(x)) x->base->slot = x->slot; /* a number is known by any view of it */
    }
    return TN_OK;
}

/* ---- leaves that are the same ---- */

/* For each leaf the first that is the same view: an operator broadcasts anew each time it is called. */
static bool find_twins(tn_flush_scratch *f)
{
    uint32_t n = 16;
    while (n < 2 * (uint32_t)f->leaf.n) n *= 2;
    if (!tn_reserve(&f->twin, &f->cap_twin, f->leaf.n, sizeof *f->twin) ||
        !tn_reserve(&f->seen, &f->cap_seen, (int)n, sizeof *f->seen))
        return false;
    memset(f->seen, -1, n * sizeof *f->seen);
    for (int i = 0; i < f->leaf.n; i++) {
        const tn_tensor *x = f->leaf.at[i];
        uint64_t h = tn_hash_mix((uint64_t)(uintptr_t)x->base, (uint64_t)x->offset ^ 0x9e3779b97f4a7c15u);
        for (int k = 0; k < x->ndim; k++) h = tn_hash_mix(h ^ (uint64_t)x->shape[k], 0xd1b54a32d192ed03u);
        uint32_t at = (uint32_t)h & (n - 1);
        while (f->seen[at] >= 0 && !tn_same_view(f->leaf.at[f->seen[at]], x)) at = (at + 1) & (n - 1);
        if (f->seen[at] < 0) f->seen[at] = i;
        f->twin[i] = f->seen[at];
    }
    return true;
}

/* ---- record ---- */

static bool put(tn_flush_scratch *f, const void *p, size_t n)
{
    if (f->n_key + n > f->cap_key) {
        size_t cap = 2 * (f->n_key + n) + 1024;
        unsigned char *k = tn_realloc(f->key, cap);
        if (!k) return false;
        f->key = k;
        f->cap_key = cap;
    }
    memcpy(f->key + f->n_key, p, n);
    f->n_key += n;
    return true;
}

static bool put_shape(tn_flush_scratch *f, const tn_tensor *n, bool strides)
{
    size_t bytes = n->ndim * sizeof(int64_t);
    return put(f, n->shape, bytes) && (!strides || put(f, n->stride, bytes));
}

static bool put_attr(tn_flush_scratch *f, const tn_tensor *n)
{
    if (!n->attr) return true;
    tn_attr a;
    tn_number v; /* set member by member: the bytes between them are undefined */
    memcpy(&a, n->attr, sizeof a);
    memset(&v, 0, sizeof v);
    if (n->op == TN_OP_constant) {
        v.f = a.number.f;
        v.i = a.number.i;
        v.is_int = a.number.is_int;
    }
    memcpy(&a.number, &v, sizeof v);
    a.draw = a.seed = 0;
    a.indexed_by = NULL;
    return put(f, &a, sizeof a);
}

static bool put_head(tn_flush_scratch *f, const tn_tensor *n, unsigned extra)
{
    const uint16_t head[4] = {n->op, (uint16_t)(n->dtype | n->ndim << 8), n->n_in, (uint16_t)extra};
    return put(f, head, sizeof head);
}

/* An operand that is a view of a node in this segment: the chain of views down to that node. */
static bool put_chain(tn_flush_scratch *f, const tn_tensor *x)
{
    while (x->base != x) {
        if (!put_head(f, x, 1) || !put_shape(f, x, true) || !put(f, &x->offset, sizeof x->offset))
            return false;
        x = x->in[0];
    }
    return put(f, &x->slot, sizeof x->slot);
}

static tn_storage *region(tn_storage *b)
{
    while (b && b->within) b = b->within;
    return b;
}

static bool ranges_meet(const tn_storage *a, const tn_storage *b)
{
    const char *x = a->data, *y = b->data;
    return x < y + b->bytes && y < x + a->bytes;
}

/* The first leaf that looks into the memory of `whole`: host memory may have been borrowed twice. */
static int first_leaf(const tn_flush_scratch *f, const tn_storage *whole, int leaf)
{
    for (int i = 0; i < leaf && whole->borrowed; i++) {
        tn_storage *other = NULL;
        tn_node_home(f->leaf.at[i], &other);
        other = region(other);
        if (other && other->borrowed && ranges_meet(other, whole)) return i;
    }
    return leaf;
}

static bool is_to_write(const tn_tensor *h)
{
    return tn_node_written(h) && !(h->flags & (TN_F_DONE | TN_F_REFUSED));
}

/* For each holder from g->n_settled on, and behind the last, how many before it are to write: how far the
 * memory has come by then. */
static bool count_writes(tn_graph *g, tn_flush_scratch *f)
{
    int n = 0;
    while (g->n_settled < g->n_holders && !is_to_write(g->holder[g->n_settled])) g->n_settled++;
    const uint32_t first = g->n_settled, count = g->n_holders - first;
    if (!tn_reserve(&f->writes, &f->cap_writes, (int)count + 1, sizeof *f->writes)) return false;
    for (uint32_t i = 0; i < count; i++) {
        f->writes[i] = n;
        n += is_to_write(g->holder[first + i]);
    }
    f->writes[count] = n;
    return true;
}

/* Of those recorded before id. */
static int64_t writes_before(const tn_graph *g, const tn_flush_scratch *f, uint32_t id)
{
    uint32_t low = g->n_settled, high = g->n_holders;
    TN_BISECT(low, high, g->holder[middle]->id < id)
    return f->writes[low - g->n_settled];
}

/* Adds the memory that is written in place to the plan's key: for each leaf, and for each node that is
 * written to a place, which earlier leaf looks into the same memory, how far apart they are, how many writers
 * were recorded before it, and where among gradients a place is. */
static bool put_memory(tn_session *s, tn_flush_scratch *f)
{
    tn_graph *g = &s->graph;
    uint32_t mark = g->mark;
    if (!count_writes(g, f)) return false;
    if (!f->writes[g->n_holders - g->n_settled]) return true;
    for (int i = 0; i < f->leaf.n + f->node.n; i++) {
        const tn_tensor *x = i < f->leaf.n ? f->leaf.at[i] : f->node.at[i - f->leaf.n];
        if (i >= f->leaf.n && !x->place) continue;
        tn_storage *holder = NULL;
        const char *home = tn_node_home(x, &holder);
        tn_storage *whole = region(holder);
        int64_t where[4] = {-1, 0, writes_before(g, f, x->base->id), -1};
        if (whole && whole->mark != mark && i < f->leaf.n) {
            whole->mark = mark;
            whole->first = first_leaf(f, whole, i);
        }
        if (whole && whole->mark == mark) {
            where[0] = whole->first;
            where[1] = home - (const char *)tn_node_home(f->leaf.at[whole->first], NULL);
        }
        const tn_slab *slab = &s->slab[TN_F32];
        const uintptr_t at = (uintptr_t)home - (uintptr_t)slab->gradient_base;
        if (i >= f->leaf.n && slab->gradient_base && at < slab->reserved)
            where[3] = (int64_t)at; /* other values may lie there: lend.c */
        if (!put(f, where, sizeof where)) return false;
    }
    return true;
}

bool tn_segment_record(tn_session *s, tn_flush_scratch *f)
{
    uint32_t mark = s->graph.mark;
    f->n_key = 0;
    const int32_t counts[5] = {f->node.n, f->leaf.n, s->graph.training, tn_deferred(s), s->target.tf32};
    if (!find_twins(f) || !put(f, counts, sizeof counts)) return false;
    /* A thread of a GPU loads several elements at once where they begin at a multiple of so many bytes: which
     * operands do is part of a plan. To a CPU all are the same. */
    const int64_t load = s->target.dialect == TN_DIALECT_C ? 1 : s->target.vector_bytes;
    for (int i = 0; i < f->leaf.n; i++) {
        const tn_tensor *n = f->leaf.at[i], *b = n->base;
        const int64_t past = load == 1 ? 0 : tn_node_first(n) * (int64_t)tn_dtype_size(n->dtype) % load;
        if (!put(f, &past, sizeof past) || !put_head(f, n, b->op) || !put_shape(f, n, true) ||
            !put(f, &f->twin[i], sizeof *f->twin))
            return false;
        if (tn_is_number(b) && !put_attr(f, b)) return false;
    }
    if (!put_memory(s, f)) return false;
    for (int i = 0; i < f->node.n; i++) {
        const tn_tensor *n = f->node.at[i];
        if (!put_head(f, n, f->root[i] | (n->place ? 8u : 0u)) || !put_shape(f, n, false) || !put_attr(f, n))
            return false;
        for (int k = 0; k < n->n_in; k++) {
            const tn_tensor *x = n->in[k];
            bool direct = x->base == x || x->mark == mark;
            if (direct ? !put(f, &x->slot, sizeof x->slot) : !put_chain(f, x)) return false;
        }
    }
    return true;
}
