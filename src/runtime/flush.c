/* flush.c - running what was recorded: roots -> segment -> plan -> launches.
 *
 *   collect   the nodes without a value that the roots need, in id order, and the leaves they read
 *   key       the segment as bytes: everything a plan depends on, nothing it does not (no pointers, names,
 *             run-time numbers, draws)
 *   plan      found by key, or made by the fuser and compiled
 *   execute   memory for each value at its first step, back at its last; the steps in order
 *
 * Read first: tn_run.
 */
#include <stdlib.h>
#include <string.h>

#include "../device/cpu/builtin.h"
#include "../device/ref/ref.h"
#include "session.h"

typedef struct tn_list {
    tn_tensor **at;
    int n, cap;
} tn_list;

struct tn_flush_scratch {
    tn_list node, leaf, stack;
    uint8_t *root;
    int cap_root;
    unsigned char *key;
    size_t n_key, cap_key;
    void **address;      /* of each slot */
    size_t *size;        /* of one element there */
    tn_storage **hold;   /* storage made for each value */
    int cap_address, cap_size, cap_hold;
    void **buf;          /* of one launch */
    tn_word *word;
    int cap_buf, cap_word;
    int *last;           /* run_builtin: last reader of each node */
    int cap_last;
};

static bool push(tn_list *l, tn_tensor *n)
{
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 64;
        tn_tensor **p = tn_realloc(l->at, (size_t)cap * sizeof *p);
        if (!p) return false;
        l->at = p;
        l->cap = cap;
    }
    l->at[l->n++] = n;
    return true;
}

static bool reserve(void *array, int *cap, int n, size_t size)
{
    if (n <= *cap) return true;
    void *p;
    memcpy(&p, array, sizeof p);
    p = tn_realloc(p, (size_t)n * 2 * size);
    if (!p) return false;
    memcpy(array, &p, sizeof p);
    *cap = n * 2;
    return true;
}

static int fail_memory(tn_session *s)
{
    tn_error_set(&s->graph, TN_E_NOMEM, "no host memory to run the step");
    return s->graph.error.status;
}

void tn_flush_free(tn_session *s)
{
    struct tn_flush_scratch *f = s->scratch;
    if (!f) return;
    void *all[] = { f->node.at, f->leaf.at, f->stack.at, f->root, f->key, f->address, f->size, f->hold, f->buf, f->word, f->last };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tn_free_mem(all[i]);
    tn_free_mem(f);
    s->scratch = NULL;
}

static tn_kind kind_of(const tn_tensor *n) { return tn_op_get((tn_op)n->op)->kind; }

static bool has_value(const tn_tensor *base) { return (base->flags & TN_F_DONE) != 0; }

/* ---- collect ---- */

static int by_id(const void *a, const void *b)
{
    const tn_tensor *x = *(tn_tensor *const *)a, *y = *(tn_tensor *const *)b;
    return (x->id > y->id) - (x->id < y->id);
}

/* What a derived backward will read of n's operands and of n itself. */
static void mark_wanted(tn_tensor *n)
{
    if (!(n->flags & TN_F_REQUIRES_GRAD) || n->inside) return;
    unsigned needs = tn_op_needs((tn_op)n->op);
    if (!needs) return;
    for (int i = 0; i < n->n_in && i < 3; i++)
        if (needs >> i & 1) n->in[i]->base->flags |= TN_F_WANTED;
    if (needs & TN_NEEDS_OUT) n->flags |= TN_F_WANTED;
}

static int collect(tn_session *s, struct tn_flush_scratch *f, int n, tn_tensor *const *roots)
{
    tn_graph *g = &s->graph;
    uint32_t mark = ++g->mark;
    f->node.n = f->leaf.n = f->stack.n = 0;
    for (int i = 0; i < n; i++) {
        tn_tensor *b = roots[i]->base;
        if (!has_value(b) && b->mark != mark && kind_of(b) != TN_KIND_NUMBER) {
            b->mark = mark;
            if (!push(&f->stack, b)) return fail_memory(s);
        }
    }
    while (f->stack.n) {
        tn_tensor *v = f->stack.at[--f->stack.n];
        if (!push(&f->node, v)) return fail_memory(s);
        mark_wanted(v);
        for (int i = 0; i < v->n_in; i++) {
            tn_tensor *x = v->in[i], *b = x->base;
            if ((b->flags & TN_F_LOST) && b->call != g->call) {
                tn_error_set(g, TN_E_NOT_KEPT,
                             "%s was assigned to after it was read and before it was needed again; assign later, "
                             "or tn_keep a copy first",
                             b->name ? b->name : "a tensor");
                return TN_E_NOT_KEPT;
            }
            if (has_value(b) || kind_of(b) == TN_KIND_NUMBER) {
                if (x->mark == mark) continue;
                x->mark = mark;
                if (!push(&f->leaf, x)) return fail_memory(s);
            } else if (b->mark != mark) {
                b->mark = mark;
                if (!push(&f->stack, b)) return fail_memory(s);
            }
        }
    }
    if (f->node.n) qsort(f->node.at, (size_t)f->node.n, sizeof *f->node.at, by_id);
    if (f->leaf.n) qsort(f->leaf.at, (size_t)f->leaf.n, sizeof *f->leaf.at, by_id);
    if (f->cap_root < f->node.n && !reserve(&f->root, &f->cap_root, f->node.n, 1)) return fail_memory(s);
    for (int i = 0; i < f->node.n; i++) {
        tn_tensor *v = f->node.at[i];
        v->slot = i;
        f->root[i] = (v->flags & (TN_F_USER | TN_F_SAVED)) || kind_of(v) == TN_KIND_ASSIGN || v->place;
    }
    for (int i = 0; i < n; i++)
        if (roots[i]->base->mark == mark && !has_value(roots[i]->base)) f->root[roots[i]->base->slot] = 1;
    for (int i = 0; i < f->leaf.n; i++) {
        tn_tensor *x = f->leaf.at[i];
        x->slot = f->node.n + i;
        if (kind_of(x->base) == TN_KIND_NUMBER) x->base->slot = x->slot; /* a number is known by any view of it */
    }
    return TN_OK;
}

/* ---- key ---- */

static bool put(struct tn_flush_scratch *f, const void *p, size_t n)
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

static bool put_shape(struct tn_flush_scratch *f, const tn_tensor *n, bool strides)
{
    size_t bytes = n->ndim * sizeof(int64_t);
    return put(f, n->shape, bytes) && (!strides || put(f, n->stride, bytes));
}

static bool put_attr(struct tn_flush_scratch *f, const tn_tensor *n)
{
    if (!n->attr) return true;
    tn_attr a;
    tn_number v; /* made of its members: the bytes between them are anything */
    memcpy(&a, n->attr, sizeof a);
    memset(&v, 0, sizeof v);
    if (n->op == TN_OP_constant) {
        v.f = a.number.f;
        v.i = a.number.i;
        v.is_int = a.number.is_int;
    }
    memcpy(&a.number, &v, sizeof v);
    a.draw = 0;
    return put(f, &a, sizeof a);
}

static bool put_head(struct tn_flush_scratch *f, const tn_tensor *n, unsigned extra)
{
    const uint16_t head[4] = { n->op, (uint16_t)(n->dtype | n->ndim << 8), n->n_in, (uint16_t)extra };
    return put(f, head, sizeof head);
}

/* An operand that is a view of a node in this segment: the chain of views down to that node. */
static bool put_chain(struct tn_flush_scratch *f, const tn_tensor *x, uint32_t mark)
{
    while (x->base != x) {
        if (!put_head(f, x, 1) || !put_shape(f, x, true) || !put(f, &x->offset, sizeof x->offset)) return false;
        x = x->in[0];
    }
    (void)mark;
    return put(f, &x->slot, sizeof x->slot);
}

/* Whether an assignment may write in place depends on which leaves look into the same memory, and where. */
static bool put_sharing(struct tn_flush_scratch *f)
{
    bool assigns = false;
    for (int i = 0; i < f->node.n && !assigns; i++) assigns = kind_of(f->node.at[i]) == TN_KIND_ASSIGN;
    for (int i = 0; i < f->leaf.n && assigns; i++) {
        const tn_tensor *x = f->leaf.at[i], *y = x;
        int64_t first = i;
        for (int k = 0; k < i && y == x; k++)
            if (x->base->buf && f->leaf.at[k]->base->buf == x->base->buf) y = f->leaf.at[first = k];
        const int64_t where[2] = { first, x->offset - y->offset };
        if (!put(f, where, sizeof where)) return false;
    }
    return true;
}

static bool make_key(tn_session *s, struct tn_flush_scratch *f)
{
    uint32_t mark = s->graph.mark;
    f->n_key = 0;
    const int32_t counts[4] = { f->node.n, f->leaf.n, s->graph.training, 0 };
    if (!put(f, counts, sizeof counts)) return false;
    for (int i = 0; i < f->leaf.n; i++) {
        const tn_tensor *n = f->leaf.at[i], *b = n->base;
        if (!put_head(f, n, b->op) || !put_shape(f, n, true)) return false;
        if (kind_of(b) == TN_KIND_NUMBER && !put_attr(f, b)) return false;
    }
    if (!put_sharing(f)) return false;
    for (int i = 0; i < f->node.n; i++) {
        const tn_tensor *n = f->node.at[i];
        if (!put_head(f, n, f->root[i]) || !put_shape(f, n, false) || !put_attr(f, n)) return false;
        for (int k = 0; k < n->n_in; k++) {
            const tn_tensor *x = n->in[k];
            bool direct = x->base == x || x->mark == mark;
            if (direct ? !put(f, &x->slot, sizeof x->slot) : !put_chain(f, x, mark)) return false;
        }
    }
    return true;
}

/* ---- plan ---- */

static int make_plan(tn_session *s, struct tn_flush_scratch *f, tn_plan **out)
{
    tn_errbuf err = { "" };
    tn_segment seg = { &s->graph, f->node.at, f->node.n, f->leaf.at, f->leaf.n, f->root };
    tn_plan *p = NULL;
    int status = tn_plan_build(&seg, &s->target, &p, &err);
    if (status) {
        tn_error_set(&s->graph, status, "%s", err.text[0] ? err.text : "no plan could be made");
        return status;
    }
    int n = 0;
    tn_source *src = tn_malloc((size_t)p->n_step * sizeof *src);
    tn_kernel **kernel = tn_malloc((size_t)p->n_step * sizeof *kernel);
    status = src && kernel ? TN_OK : TN_E_NOMEM;
    for (int i = 0; i < p->n_step && !status; i++)
        if (p->step[i].kind == TN_STEP_KERNEL) src[n++] = p->step[i].source;
    if (!status && n) status = s->device->compile(s->device, src, n, kernel, &err);
    for (int i = 0, k = 0; i < p->n_step && !status; i++)
        if (p->step[i].kind == TN_STEP_KERNEL) p->step[i].kernel = kernel[k++];
    tn_free_mem(src);
    tn_free_mem(kernel);
    if (status) {
        if (s->device->no_compiler) /* not an error: run_builtin takes over, and says so once */
            tn_warn(s, "%s: running built-in loops, slower than compiled kernels", err.text);
        else tn_error_set(&s->graph, status, "%s", err.text[0] ? err.text : tn_status_text(status));
        tn_plan_free(p);
        return status;
    }
    s->stats.plans++;
    status = tn_plan_cache_add(s->plans, f->key, f->n_key, p);
    if (status) tn_error_set(&s->graph, status, "no memory for the plan cache");
    *out = p;
    return status;
}

/* ---- execute ---- */

static tn_tensor *node_at(struct tn_flush_scratch *f, int slot)
{
    return slot < f->node.n ? f->node.at[slot] : f->leaf.at[slot - f->node.n];
}

static int bind_value(tn_session *s, struct tn_flush_scratch *f, const tn_plan_value *v, int index)
{
    tn_storage *b;
    tn_tensor *n = v->slot < f->node.n + f->leaf.n ? node_at(f, v->slot) : NULL;
    if (v->alias >= 0) { /* an assignment: the target's own memory */
        tn_tensor *target = node_at(f, v->alias);
        b = target->base->buf;
        tn_storage_retain(b);
        f->address[v->slot] = tn_node_data(target);
        if (n) n->offset = target->offset;
    } else if (n && n->place) {
        b = n->place->base->buf;
        tn_storage_retain(b);
        n->offset = n->place->offset;
        f->address[v->slot] = tn_node_data(n->place);
    } else {
        b = tn_storage_new(&s->graph, v->elems * tn_dtype_size(v->dtype));
        if (!b) {
            tn_error_set(&s->graph, TN_E_NOMEM, "no device memory for %zu bytes",
                         v->elems * tn_dtype_size(v->dtype));
            return TN_E_NOMEM;
        }
        f->address[v->slot] = b->data;
    }
    f->hold[index] = b;
    return TN_OK;
}

static tn_word word_of(tn_session *s, tn_tensor *n, int what)
{
    const tn_number v = n->base->attr->number;
    switch (what) {
    case TN_WORD_F64: return (tn_word){ .f = v.f };
    case TN_WORD_I64: return (tn_word){ .i = v.is_int ? v.i : (int64_t)v.f };
    case TN_WORD_SEED: return (tn_word){ .u = s->graph.seed };
    case TN_WORD_DRAW: return (tn_word){ .u = n->attr->draw };
    }
    return (tn_word){ .u = 0 };
}

static int run_step(tn_session *s, struct tn_flush_scratch *f, tn_step *st)
{
    tn_errbuf err = { "" };
    int status = TN_OK;
    if (!reserve(&f->buf, &f->cap_buf, st->n_buf, sizeof *f->buf) ||
        !reserve(&f->word, &f->cap_word, st->n_scalar, sizeof *f->word))
        return fail_memory(s);
    for (int i = 0; i < st->n_buf; i++) {
        int slot = st->buf[i];
        f->buf[i] = slot < 0 ? NULL : (char *)f->address[slot] + st->offset[i] * (int64_t)f->size[slot];
    }
    switch (st->kind) {
    case TN_STEP_KERNEL: {
        for (int i = 0; i < st->n_scalar; i++)
            f->word[i] = word_of(s, node_at(f, st->scalar[i].slot), (int)st->scalar[i].what);
        tn_args a = { f->buf, st->dim, f->word, &s->fault };
        status = s->device->launch(s->device, st->kernel, &a, &st->grid, &err);
        s->stats.kernels++;
        break;
    }
    case TN_STEP_GEMM:
        st->gemm.a = f->buf[0];
        st->gemm.b = f->buf[1];
        st->gemm.bias = f->buf[2];
        st->gemm.c = f->buf[3];
        status = s->device->gemm(s->device, &st->gemm, &err);
        s->stats.library_calls++;
        break;
    case TN_STEP_CONV:
        st->conv.in0 = f->buf[0];
        st->conv.in1 = f->buf[1];
        st->conv.bias = f->buf[2];
        st->conv.out = f->buf[3];
        status = s->device->conv2d(s->device, &st->conv, &err);
        s->stats.library_calls++;
        break;
    }
    s->stats.bytes_moved += (uint64_t)st->bytes;
    if (status)
        tn_error_set(&s->graph, status, "%s: %s", st->name, err.text[0] ? err.text : tn_status_text(status));
    return status;
}

static int execute(tn_session *s, struct tn_flush_scratch *f, tn_plan *p)
{
    int n_slot = f->node.n + f->leaf.n + p->n_scratch;
    if (!reserve(&f->address, &f->cap_address, n_slot, sizeof *f->address) ||
        !reserve(&f->size, &f->cap_size, n_slot, sizeof *f->size) ||
        !reserve(&f->hold, &f->cap_hold, p->n_value, sizeof *f->hold))
        return fail_memory(s);
    memset(f->address, 0, (size_t)n_slot * sizeof *f->address);
    if (p->n_value) memset(f->hold, 0, (size_t)p->n_value * sizeof *f->hold);
    for (int i = 0; i < f->leaf.n; i++) f->address[f->node.n + i] = tn_node_data(f->leaf.at[i]);
    for (int i = 0; i < f->node.n + f->leaf.n; i++) f->size[i] = tn_dtype_size((tn_dtype)node_at(f, i)->dtype);
    for (int i = 0; i < p->n_value; i++) f->size[p->value[i].slot] = tn_dtype_size(p->value[i].dtype);
    int status = TN_OK;
    for (int i = 0; i < p->n_step && !status; i++) {
        for (int v = 0; v < p->n_value && !status; v++)
            if (p->value[v].first == i) status = bind_value(s, f, &p->value[v], v);
        if (!status) status = run_step(s, f, &p->step[i]);
        for (int v = 0; v < p->n_value; v++) {
            const tn_plan_value *pv = &p->value[v];
            if (pv->last != i || pv->root || !f->hold[v]) continue;
            if (!status && pv->slot < f->node.n && (node_at(f, pv->slot)->flags & TN_F_WANTED)) continue;
            tn_storage_release(f->hold[v]);
            f->hold[v] = NULL;
        }
    }
    for (int v = 0; v < p->n_value; v++) {
        if (!f->hold[v]) continue;
        tn_tensor *n = p->value[v].slot < f->node.n ? node_at(f, p->value[v].slot) : NULL;
        if (status || !n) {
            tn_storage_release(f->hold[v]);
            continue;
        }
        n->buf = f->hold[v];
        n->flags |= TN_F_DONE;
    }
    return status;
}

/* The reference device runs node by node and keeps everything. */
static int interpret(tn_session *s, struct tn_flush_scratch *f)
{
    tn_errbuf err = { "" };
    int n_number = 0;
    for (int i = 0; i < f->leaf.n; i++) /* numbers get memory too */
        if (!has_value(f->leaf.at[i]->base)) f->leaf.at[n_number++] = f->leaf.at[i]->base;
    for (int i = 0; i < n_number + f->node.n; i++) {
        tn_tensor *n = i < n_number ? f->leaf.at[i] : f->node.at[i - n_number];
        if (has_value(n)) continue; /* one number behind two views */
        int status = tn_ref_run(n, &err);
        if (status) {
            tn_error_set(&s->graph, status, "%s", err.text);
            return status;
        }
        n->flags |= TN_F_DONE;
        if (n->place) {
            memcpy(tn_node_data(n->place), n->buf->data, (size_t)tn_node_numel(n) * sizeof(double));
            tn_storage_release(n->buf);
            n->buf = n->place->base->buf;
            n->offset = n->place->offset;
            tn_storage_retain(n->buf);
        }
    }
    return TN_OK;
}

/* What is not a root and not wanted by a backward goes after its last reader. */
static void drop_read(struct tn_flush_scratch *f, int at)
{
    tn_tensor *n = f->node.at[at];
    for (int k = -1; k < n->n_in; k++) {
        tn_tensor *b = k < 0 ? n : n->in[k]->base;
        int slot = (int)b->slot;
        if (slot < 0 || slot >= f->node.n || f->node.at[slot] != b || f->last[slot] != at) continue;
        if (f->root[slot] || (b->flags & TN_F_WANTED) || !b->buf) continue;
        tn_storage_release(b->buf);
        b->buf = NULL;
        b->flags &= ~(uint32_t)TN_F_DONE;
    }
}

/* Without a compiler: node by node with the loops that were built in. */
static int run_builtin(tn_session *s, struct tn_flush_scratch *f)
{
    if (!reserve(&f->last, &f->cap_last, f->node.n, sizeof *f->last)) return fail_memory(s);
    for (int i = 0; i < f->node.n; i++) {
        tn_tensor *n = f->node.at[i];
        f->last[i] = i;
        for (int k = 0; k < n->n_in; k++) {
            tn_tensor *b = n->in[k]->base;
            if (b->slot >= 0 && b->slot < i && f->node.at[b->slot] == b) f->last[b->slot] = i;
        }
    }
    int status = TN_OK;
    for (int i = 0; i < f->node.n && !status; i++) {
        tn_errbuf err = { "" };
        tn_tensor *n = f->node.at[i];
        status = tn_builtin_run(s->device, n, &err);
        if (status) {
            tn_error_set(&s->graph, status, "%s", err.text[0] ? err.text : tn_status_text(status));
            continue;
        }
        n->flags |= TN_F_DONE;
        s->stats.kernels++;
        drop_read(f, i);
    }
    return status;
}

int tn_check_fault(tn_session *s)
{
    if (!s->fault.code) return TN_OK;
    tn_error_set(&s->graph, TN_E_INDEX, "%s %lld is out of range",
                 s->fault.code == TN_FAULT_LABEL ? "label" : "index", (long long)s->fault.value);
    s->fault = (tn_fault){ 0 };
    return TN_E_INDEX;
}

int tn_run(tn_session *s, int n, tn_tensor *const *roots)
{
    bool all = true;
    for (int i = 0; i < n; i++) all = all && has_value(roots[i]->base);
    if (all) return TN_OK;
    if (!s->scratch && !(s->scratch = tn_calloc(1, sizeof *s->scratch))) return fail_memory(s);
    struct tn_flush_scratch *f = s->scratch;
    int status = collect(s, f, n, roots);
    if (status || !f->node.n) return status;
    if (s->device->is_reference) return interpret(s, f);
    if (s->device->no_compiler) return run_builtin(s, f);
    if (!make_key(s, f)) return fail_memory(s);
    tn_plan *p = tn_plan_cache_find(s->plans, f->key, f->n_key);
    if (p) s->stats.plan_hits++;
    else status = make_plan(s, f, &p);
    if (status && s->device->no_compiler) return run_builtin(s, f);
    if (!status) status = execute(s, f, p);
    return status ? status : tn_check_fault(s);
}
