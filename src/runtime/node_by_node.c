/* node_by_node.c - running a segment without a plan, in the order of the program: the reference interpreter,
 * and the built-in loops where there is no compiler.
 *
 * As with a plan, what runs together takes effect together or not at all: what assignments overwrite is
 * saved, and put back if a later node fails.
 *
 * Start with tn_run_nodes. */
#include <string.h>

#include "../device/cpu/builtin.h"
#include "../device/ref/ref.h"
#include "log.h"
#include "flush.h"
#include "ranks.h"

/* ---- taking effect together ---- */

bool tn_keep_old(tn_saved *v, const tn_tensor *n)
{
    tn_storage *b = NULL;
    const tn_tensor *to = tn_node_written(n);
    if (!to || !tn_node_home(to, &b) || !b || !b->bytes) return true;
    if (!tn_reserve(&v->region, &v->cap, v->n + 1, sizeof *v->region)) return false;
    void *copy = tn_malloc(b->bytes);
    if (!copy) return false;
    memcpy(copy, b->data, b->bytes);
    v->region[v->n++] = (struct tn_saved_region){b->data, copy, b->bytes};
    return true;
}

void tn_put_back(tn_saved *v, bool back)
{
    while (v->n) {
        const struct tn_saved_region *r = &v->region[--v->n];
        if (back) memcpy(r->at, r->copy, r->bytes);
        tn_free_mem(r->copy);
    }
    tn_free_mem(v->region);
    *v = (tn_saved){0};
}

/* ---- the nodes ---- */

/* An operand must not have been overwritten by the time it is read. */
static int read_in_time(tn_session *s, const tn_tensor *n)
{
    for (int k = tn_kind_of(n) == TN_KIND_ASSIGN ? 1 : 0; k < n->n_in; k++) {
        const tn_tensor *b = n->in[k]->base;
        const tn_tensor *writer = tn_lost_to(b, n->id);
        if (!writer) continue;
        return tn_error_of(&s->graph, NULL, TN_E_NOT_KEPT,
                           "%s reads %s, which %s has assigned to since; tn_keep its value before that",
                           TN_NODE_WHERE(n), b->name ? b->name : "a tensor", TN_NODE_WHERE(writer));
    }
    return TN_OK;
}

/* The error of one node, in the name of the call that made it. */
static int fail_at(tn_session *s, tn_tensor *n, int status, const tn_errbuf *err)
{
    if (status == TN_E_INDEX) n->flags |= TN_F_REFUSED;
    if (status == TN_E_INDEX && tn_node_indexes(n) && tn_index_error(s, n, NULL)) return status;
    return tn_error_of(&s->graph, n->call, status, "%s", err->text[0] ? err->text : tn_status_text(status));
}

/* By the interpreter, which keeps everything, or with the loops that were built in. */
static int compute(tn_session *s, tn_tensor *n)
{
    const bool ref = s->device->is_reference;
    tn_errbuf err = {""};
    if (ref && tn_has_value(n)) return TN_OK; /* one number behind two views */
    int status = ref ? tn_ref_run(n, &err) : tn_builtin_run(s->device, n, &err);
    if (status) return fail_at(s, n, status, &err);
    n->flags |= TN_F_DONE;
    s->stats.kernels += !ref;
    if (!ref || !n->place) return TN_OK;
    memcpy(tn_node_data(n->place), n->buf->data, (size_t)tn_node_numel(n) * sizeof(double));
    tn_storage_release(n->buf);
    n->buf = n->place->base->buf;
    tn_storage_retain(n->buf);
    return TN_OK;
}

/* Finds the last reader of each node. */
static bool find_last(tn_flush_scratch *f)
{
    if (!tn_reserve(&f->last, &f->cap_last, f->node.n, sizeof *f->last)) return false;
    for (int i = 0; i < f->node.n; i++) {
        tn_tensor *n = f->node.at[i];
        f->last[i] = i;
        for (int k = 0; k < n->n_in; k++) {
            tn_tensor *b = n->in[k]->base;
            if (b->slot >= 0 && b->slot < i && f->node.at[b->slot] == b) f->last[b->slot] = i;
        }
    }
    return true;
}

/* Frees the values whose last reader has just run, but for roots and values that a backward will read. */
static void drop_read(tn_flush_scratch *f, int at)
{
    tn_tensor *n = f->node.at[at];
    for (int k = -1; k < n->n_in; k++) {
        tn_tensor *b = k < 0 ? n : n->in[k]->base;
        int slot = (int)b->slot;
        if (slot < 0 || slot >= f->node.n || f->node.at[slot] != b || f->last[slot] != at) continue;
        if (f->root[slot] || (b->flags & TN_F_WANTED) || !b->buf) continue;
        tn_node_drop_value(b);
    }
}

/* Lists in f->stack the nodes that read what another, ahead of them in the program, will have written over.
 */
static bool find_overtaken(tn_flush_scratch *f)
{
    f->stack.n = 0;
    for (int i = 0; i < f->node.n; i++) {
        tn_tensor *n = f->node.at[i];
        const tn_tensor *b = n->n_in && tn_kind_of(n) != TN_KIND_ASSIGN ? n->in[0]->base : NULL;
        if (b && b->flags & TN_F_LOST && b->lost_to->id < n->id && !tn_list_push(&f->stack, n)) return false;
    }
    return true;
}

static tn_part part_of(const tn_session *s, const tn_tensor *n)
{
    const tn_tensor *whole = tn_together_of(n) == TN_SCATTER ? n->in[0] : n;
    const int64_t all = tn_node_numel(whole);
    return (tn_part){
        tn_together_of(n), 0, all, all, whole->ndim ? whole->shape[0] : 1, tn_elem_size(&s->graph, n->dtype)};
}

/* n has been computed as if all ranks had the same. */
static int run_together(tn_session *s, const tn_tensor *n)
{
    const tn_part part = part_of(s, n);
    void *out = tn_node_data(n);
    const int status = tn_ranks_start(s, &part, part.how == TN_MEAN ? out : tn_node_data(n->in[0]), out);
    return status ? status : tn_ranks_wait(s);
}

static int run_one(tn_session *s, tn_flush_scratch *f, tn_saved *kept, tn_tensor *n)
{
    int status = TN_OK;
    if (n->flags & TN_F_DONE) return TN_OK; /* ahead of a writer */
    for (int i = 0; i < f->stack.n && !status;
         i++) { /* a copy of what n will write over reads nothing else */
        tn_tensor *copy = f->stack.at[i];
        if (copy != n && copy->in[0]->base->lost_to == n) status = run_one(s, f, kept, copy);
    }
    if (!status) status = read_in_time(s, n);
    if (!status && !tn_keep_old(kept, n)) status = tn_fail_memory(s);
    if (!status) status = compute(s, n);
    if (!status && tn_kind_of(n) == TN_KIND_RANKS) status = run_together(s, n);
    if (!status && !s->device->is_reference) drop_read(f, (int)n->slot);
    return status;
}

/* All nodes in order. Those that ranks do together, one that fails does with zeros. */
static int run_all(tn_session *s, tn_flush_scratch *f, tn_saved *kept, int status)
{
    int left = 0;
    for (int i = 0; i < f->node.n; i++) left += tn_kind_of(f->node.at[i]) == TN_KIND_RANKS;
    if (left) status = tn_ranks_begin(s, f, NULL, status);
    if (left && status) return status; /* nobody begins */
    for (int i = 0; i < f->node.n && (!status || left); i++) {
        tn_tensor *n = f->node.at[i];
        const bool together = tn_kind_of(n) == TN_KIND_RANKS;
        if (!status)
            status = run_one(s, f, kept, n);
        else if (together) {
            const tn_part part = part_of(s, n);
            tn_ranks_miss(s, &part);
        }
        if (together && !--left) status = tn_ranks_agree(s, status);
    }
    return status;
}

int tn_run_nodes(tn_session *s, tn_flush_scratch *f)
{
    const bool ref = s->device->is_reference;
    tn_saved kept = {0};
    int status = (ref || find_last(f)) && find_overtaken(f) ? TN_OK : tn_fail_memory(s);
    for (int i = 0; i < f->leaf.n && ref && !status; i++) /* numbers get memory too */
        if (!tn_has_value(f->leaf.at[i]->base)) status = compute(s, f->leaf.at[i]->base);
    status = run_all(s, f, &kept, status);
    for (int i = 0; i < f->node.n && status; i++) tn_node_drop_value(f->node.at[i]);
    tn_put_back(&kept, status != TN_OK);
    return status;
}
