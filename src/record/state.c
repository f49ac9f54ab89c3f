/* state.c - what outlives a step: parameters in their slab, buffers, kept tensors.
 *
 *   slab      one address range per dtype, reserved once, grown without moving; a parameter is a segment of
 *             it from birth, and its gradient the same segment of a second range, which takes memory where
 *             one is written or looked at
 *
 * What is assigned to them is in assign.c. Read first: tn_param. */
#include <stdio.h>
#include <string.h>

#include "../core/hash.h"
#include "../../include/tensor_extend.h"
#include "../runtime/log.h"

/* ---- slab ---- */

static int slab_open(tn_session *s, tn_slab *b)
{
    tn_device *d = s->device;
    for (b->reserved = (size_t)1 << 36; b->reserved >= (size_t)1 << 24; b->reserved >>= 1) {
        b->value_base = d->reserve(d, b->reserved);
        b->gradient_base = b->value_base ? d->reserve(d, b->reserved) : NULL;
        if (b->gradient_base) return TN_OK;
        if (b->value_base) d->release(d, b->value_base, b->reserved);
        b->value_base = NULL;
    }
    return TN_E_NOMEM;
}

/* The flat tensor over one of the slab's ranges. */
static tn_tensor *slab_flat(tn_session *s, tn_dtype dtype, char *base, const char *name)
{
    tn_tensor *t = tn_node_new_persistent(&s->graph, dtype, 1, (const int64_t[]){0});
    if (!t) return NULL;
    t->name = name;
    t->flags |= TN_F_BORROWS_NAME;
    t->buf = tn_storage_wrap(&s->graph, base, 0);
    if (t->buf) return t;
    tn_node_free_persistent(&s->graph, t);
    return NULL;
}

/* A slab has its ranges and both flat tensors, or is as if nobody had asked for it. */
static int slab_begin(tn_session *s, tn_dtype dtype)
{
    tn_slab *b = &s->slab[dtype];
    if (b->values) return TN_OK;
    if (!b->value_base && slab_open(s, b)) return TN_E_NOMEM;
    tn_tensor *v = slab_flat(s, dtype, b->value_base, "parameters");
    tn_tensor *g = v ? slab_flat(s, dtype, b->gradient_base, "gradients") : NULL;
    if (!g) {
        if (v) tn_node_free_persistent(&s->graph, v);
        return TN_E_NOMEM;
    }
    g->flags |= TN_F_GRADIENT;
    b->values = v;
    b->gradients = g;
    return TN_OK;
}

/* Its first `count` elements are handed out. */
static void slab_set(tn_session *s, tn_dtype dtype, int64_t count)
{
    tn_slab *b = &s->slab[dtype];
    b->count = count;
    b->values->shape[0] = b->gradients->shape[0] = count;
    b->values->buf->bytes = b->gradients->buf->bytes = (size_t)count * tn_elem_size(&s->graph, dtype);
    /* what was read of the whole so far in this step was of another length */
    b->values->of = NULL;
    b->gradients->of = NULL;
}

/* Room for n more elements: the first's index, or -1 with the error set. */
static int64_t slab_take(tn_session *s, tn_dtype dtype, int64_t n)
{
    tn_slab *b = &s->slab[dtype];
    tn_device *d = s->device;
    if (slab_begin(s, dtype))
        return tn_error_set(&s->graph, TN_E_NOMEM, "no memory or addresses for parameters"), -1;
    int64_t first = b->count, count = (first + n + TN_SLAB_ALIGN - 1) / TN_SLAB_ALIGN * TN_SLAB_ALIGN;
    size_t bytes = (size_t)count * tn_elem_size(&s->graph, dtype);
    if (bytes > b->reserved || d->commit(d, b->value_base, 0, bytes))
        return tn_error_set(&s->graph, TN_E_NOMEM, "no memory for %zu bytes of parameters", bytes), -1;
    slab_set(s, dtype, count);
    return first;
}

TN_DEFINE(int, param_slab, s, (s, dtype, values, gradients), tn_session *s, tn_dtype dtype,
          tn_tensor **values, tn_tensor **gradients)
{
    if (!s) return TN_E_NULL;
    if ((unsigned)dtype >= TN_DTYPE_COUNT)
        return tn_fail(s, TN_E_DTYPE, "param_slab", "unknown dtype %d", (int)dtype);
    if (values) *values = tn_handle(s->slab[dtype].values);
    if (gradients) *gradients = tn_handle(s->slab[dtype].gradients);
    return TN_OK;
}

int tn_param_segment(const tn_tensor *param, int64_t *first, int64_t *count)
{
    const tn_tensor *p = param ? tn_resolve(param) : NULL;
    if (!p || !(p->flags & TN_F_PARAM)) return TN_E_ARG;
    const tn_slab *b = &p->graph->session->slab[p->dtype];
    size_t bytes = (size_t)((const char *)p->buf->data - b->value_base);
    if (first) *first = (int64_t)(bytes / tn_elem_size(p->graph, p->dtype));
    if (count) *count = tn_node_numel(p);
    return TN_OK;
}

/* ---- making persistent tensors ---- */

static bool list_add(tn_tensor ***list, int *n, int *cap, tn_tensor *t)
{
    if (!tn_reserve(list, cap, *n + 1, sizeof **list)) return false;
    (*list)[(*n)++] = t;
    return true;
}

/* A handle of its own over elements of `whole`, from `first` on. */
static tn_tensor *window(tn_session *s, const tn_tensor *whole, int64_t first, int ndim, const int64_t *shape)
{
    tn_tensor *p = tn_node_new_persistent(&s->graph, whole->dtype, ndim, shape);
    if (!p) return NULL;
    const size_t size = tn_elem_size(&s->graph, whole->dtype);
    p->buf = tn_storage_window(whole->buf, (size_t)first * size, (size_t)tn_node_numel(p) * size);
    p->kept = s->n_kept;
    if (p->buf && list_add(&s->kept, &s->n_kept, &s->cap_kept, p)) return p;
    tn_node_free_persistent(&s->graph, p);
    return tn_error_set(&s->graph, TN_E_NOMEM, "no memory for a tensor");
}

tn_tensor *tn_window(tn_tensor *persistent, int64_t first, int ndim, const int64_t *shape)
{
    tn_tensor *p = persistent ? tn_resolve_or_fail(persistent, "window") : NULL;
    if (!p) return NULL;
    tn_session *s = p->graph->session;
    int64_t n = 1;
    bool fits = p->flags & TN_F_PERSISTENT && p->buf && tn_node_is_dense(p) && first >= 0 && ndim >= 0 &&
                ndim <= TN_MAX_DIMS && first <= tn_node_numel(p);
    for (int i = 0; i < ndim && fits; i++) {
        fits = shape[i] >= 0 && (!shape[i] || n <= tn_node_numel(p) / shape[i]);
        n *= fits ? shape[i] : 1;
    }
    if (!fits || n > tn_node_numel(p) - first) {
        tn_fail(s, TN_E_SHAPE, "window", "%lld elements from %lld on are not all of %s", (long long)n,
                (long long)first, TN_TENSOR_TEXT(p));
        return NULL;
    }
    return tn_handle(window(s, p, first, ndim, shape));
}

/* Over some blocks of the slab's flat tensor `whole`. */
static tn_tensor *slab_part(tn_session *s, const tn_tensor *whole, int64_t first, int64_t blocks)
{
    tn_tensor *p = window(s, whole, first * TN_SLAB_ALIGN, 2, (const int64_t[]){blocks, TN_SLAB_ALIGN});
    if (!p) return NULL;
    p->flags |= TN_F_BORROWS_NAME | (whole->flags & TN_F_GRADIENT);
    p->name = whole->flags & TN_F_GRADIENT ? "gradients" : "parameters";
    return p;
}

TN_DEFINE(int, param_range, s, (s, dtype, first_block, blocks, values, gradients), tn_session *s,
          tn_dtype dtype, int64_t first_block, int64_t blocks, tn_tensor **values, tn_tensor **gradients)
{
    if (!s) return TN_E_NULL;
    if (!values || !gradients)
        return tn_fail(s, TN_E_NULL, "param_range", "%s is NULL", values ? "gradients" : "values");
    *values = *gradients = NULL;
    int64_t count = (unsigned)dtype < TN_DTYPE_COUNT ? s->slab[dtype].count / TN_SLAB_ALIGN : 0;
    if (first_block < 0 || blocks < 1 || first_block > count || blocks > count - first_block)
        return tn_fail(s, TN_E_ARG, "param_range", "%lld blocks from %lld on, there are %lld",
                       (long long)blocks, (long long)first_block, (long long)count);
    tn_tensor *v = slab_part(s, s->slab[dtype].values, first_block, blocks);
    tn_tensor *g = v ? slab_part(s, s->slab[dtype].gradients, first_block, blocks) : NULL;
    *values = tn_handle(v);
    *gradients = tn_handle(g);
    if (g) return TN_OK;
    tn_free(*values);
    *values = NULL;
    return s->graph.error.status;
}

/* Writes node's value into the persistent tensor p's memory: now, or with the rest of what is recorded; until
 * then whoever uses p reads that value. */
static int store(tn_session *s, tn_tensor *p, tn_tensor *node, bool wait)
{
    s->graph.no_grad++; /* p is no function of anything */
    tn_tensor *copy = tn_mk_contiguous(tn_mk_cast(node, p->dtype));
    s->graph.no_grad--;
    if (copy) copy->place = p;
    if (!copy || !tn_node_hold(copy)) {
        if (copy) copy->place = NULL;
        return s->graph.error.status;
    }
    if (!wait) return tn_run(s, 1, &copy);
    copy->of = p;
    p->of = copy;
    return TN_OK;
}

/* ---- names ---- */

/* Returns the place of the table that holds the name, or would. */
static tn_tensor **named_at(const tn_session *s, const char *name)
{
    const uint32_t mask = (uint32_t)s->cap_named - 1;
    uint32_t i = (uint32_t)tn_hash_bytes(name, strlen(name)) & mask;
    while (s->named[i] && strcmp(s->named[i]->name, name)) i = (i + 1) & mask;
    return &s->named[i];
}

/* Of the table: whether it holds all that have names. Without memory for one, or while one that was freed is
 * in it, names are looked for one by one. */
static bool all_named(const tn_session *s) { return s->n_named == s->n_params + s->n_buffers; }

/* p is the newest that has a name. */
static void note_name(tn_session *s, tn_tensor *p)
{
    const int n = s->n_params + s->n_buffers;
    s->n_named++;
    if (all_named(s) && 2 * n <= s->cap_named) {
        *named_at(s, p->name) = p;
        return;
    }
    tn_free_mem(s->named);
    for (s->cap_named = 64; s->cap_named < 4 * n;) s->cap_named *= 2;
    s->named = tn_calloc((size_t)s->cap_named, sizeof *s->named);
    s->n_named = s->named ? n : -1;
    for (int i = 0; i < s->n_named; i++) {
        tn_tensor *x = i < s->n_params ? s->params[i] : s->buffers[i - s->n_params];
        *named_at(s, x->name) = x;
    }
    if (!s->named) s->cap_named = 0;
}

static bool name_is_free(tn_session *s, const char *name)
{
    if (!name || !*name) return tn_error_set(&s->graph, TN_E_ARG, "needs a name") != NULL;
    if (!tn_find(s, name)) return true;
    tn_error_set(&s->graph, TN_E_ARG, "the name '%s' is taken", name);
    return false;
}

/* A persistent handle given to tn_param or tn_buffer is taken over: its own memory is not needed any more. */
static void take_over(tn_tensor *handle)
{
    tn_tensor *n = handle ? tn_resolve(handle) : NULL;
    if (n && (n->flags & TN_F_PERSISTENT) && !(n->flags & TN_F_PARAM)) tn_free(handle);
}

static void take_back_param(tn_session *s);

static tn_tensor *tn_param_new(tn_session *s, const char *name, tn_tensor *init)
{
    tn_tensor *handle = init, *p = NULL;
    tn_scope sc = tn_enter("param", NULL, 0, 1, &init);
    if (!sc.g && s) tn_fail(s, TN_E_NULL, "param", "'%s': init is NULL", name ? name : "");
    if (sc.g && !s) tn_error_set(sc.g, TN_E_NULL, "the session is NULL");
    if (!s || !sc.ok || !name_is_free(s, name)) {
        sc.ok = false;
        return tn_leave(&sc, NULL);
    }
    if (sc.g != &s->graph) {
        tn_fail(s, TN_E_SESSION, "param", "'%s': the tensor is of another session", name);
    } else if (init->dtype != TN_F32 && init->dtype != TN_F64)
        tn_error_set(sc.g, TN_E_DTYPE, "'%s' must be f32 or f64, got %s", name, tn_dtype_name(init->dtype));
    else {
        tn_dtype d = init->dtype;
        int64_t first = slab_take(s, d, tn_node_numel(init));
        p = first < 0 ? NULL : tn_node_new_persistent(sc.g, d, init->ndim, init->shape);
        size_t at = (size_t)first * tn_elem_size(sc.g, d),
               bytes = (size_t)tn_node_numel(init) * tn_elem_size(sc.g, d);
        if (p) p->place = tn_node_new_persistent(sc.g, d, init->ndim, init->shape);
        char *copy = p ? tn_strdup(name) : NULL;
        if (p) p->buf = tn_storage_window(s->slab[d].values->buf, at, bytes);
        if (p && p->place) {
            p->place->buf = tn_storage_window(s->slab[d].gradients->buf, at, bytes);
            p->place->flags |= TN_F_GRADIENT;
        }
        bool whole = p && copy && p->buf && p->place && p->place->buf;
        if (p && (!whole || !list_add(&s->params, &s->n_params, &s->cap_params, p))) {
            tn_free_mem(copy);
            if (p->place) tn_node_free_persistent(sc.g, p->place);
            tn_node_free_persistent(sc.g, p);
            p = tn_error_set(sc.g, TN_E_NOMEM, "no memory for parameter '%s'", name);
        }
        if (!p && first >= 0) slab_set(s, d, first);
        if (p) {
            p->name = copy;
            p->flags |= TN_F_PARAM | TN_F_REQUIRES_GRAD | TN_F_USER;
            note_name(s, p);
            if (store(s, p, init, false)) { /* it has no value, and its name is free */
                take_back_param(s);
                p = NULL;
            }
        }
    }
    tn_call_end(sc.g);
    if (p) take_over(handle);
    return tn_handle(p);
}

TN_PLACED(tn_tensor *, param_new, s ? s : tn_session_of(init), (s, name, init), tn_session *s,
          const char *name, tn_tensor *init)

tn_tensor *tn_param(tn_session *s, const char *name, tn_tensor *init) { return tn_param_new(s, name, init); }

/* Zero until its value has run. */
static tn_tensor *kept_like(tn_session *s, const tn_tensor *x)
{
    const bool host = s->device->shares_host_memory || s->device->is_reference;
    tn_tensor *p = tn_persist(s, x->dtype, x->ndim, x->shape);
    if (p && tn_deferred(s) && host) memset(p->buf->data, 0, p->buf->bytes);
    if (p && tn_deferred(s) && s->device->zero && s->device->zero(s->device, p->buf->data, p->buf->bytes))
        return tn_device_error(s, "a new tensor could not be set to zero");
    return p;
}

/* Returns true where x is all zeros, as tn_zeros makes it: persistent memory is zero from the start. */
static bool is_zero(const tn_tensor *x)
{
    if (x->op != TN_OP_contiguous || !tn_is_number(x->in[0])) return false;
    const tn_number *v = &x->in[0]->base->attr->number;
    return v->is_int ? !v->i : v->f == 0;
}

/* Zeros and host data are known when they are recorded and need no kernel to be kept: a step that keeps what
 * it was given runs the plan of the steps after it that find it kept, and so gives the same bits. A version
 * is not: what is to be written to its tensor's memory may still wait. */
static bool is_known(const tn_tensor *x)
{
    const uint32_t not_given = TN_F_PERSISTENT | TN_F_VERSION;
    if (is_zero(x)) return true;
    return tn_kind_of(x) == TN_KIND_LEAF && x->flags & TN_F_DONE && !(x->flags & not_given) && x->buf &&
           tn_node_is_dense(x);
}

static tn_tensor *keep_known(tn_session *s, tn_tensor *x)
{
    x->flags |= TN_F_CONSUMED;
    if (is_zero(x)) return kept_like(s, x);
    tn_tensor *p = tn_persist(s, x->dtype, x->ndim, x->shape);
    if (!p || !p->buf->bytes) return p;
    if (!s->device->copy(s->device, p->buf->data, x->buf->data, p->buf->bytes)) return p;
    return tn_device_error(s, "the copy of a tensor failed");
}

/* The copy that the step before made is written to another tensor now, and so is what is assigned to it. */
static tn_tensor *keep_again(const tn_scope *sc, tn_tensor *x)
{
    tn_graph *g = sc->g;
    if (!sc->entry->n_result) return tn_handle(keep_known(g->session, tn_resolve(x)));
    tn_tensor *copy = tn_entry_results(&g->session->tape, sc->entry)[0], *before = copy->of;
    tn_tensor *p = kept_like(g->session, copy);
    for (uint32_t i = 0; i < g->n_holders && before && p; i++) {
        tn_tensor *h = g->holder[i];
        if (h->id > copy->id && h->of == before && tn_kind_of(h) == TN_KIND_ASSIGN) h->of = p;
    }
    copy->place = copy->of = p;
    g->writers.stale = true;
    if (p) p->of = copy;
    return tn_handle(p);
}

TN_AT(tn_tensor *, keep, (x), tn_tensor *x)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "keep", file, line, 1, 0, &x);
    if (sc.entry) return keep_again(&sc, x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    tn_session *s = sc.g->session;
    bool known = tn_deferred(s) && is_known(x);
    tn_tensor *p = known ? keep_known(s, x) : kept_like(s, x);
    if (p && !known && store(s, p, x, tn_deferred(s))) p = NULL;
    if (p) tn_tape_done(s, sc.note, !known, &p->of);
    tn_call_end(sc.g);
    return tn_handle(p);
}

static tn_tensor *tn_buffer_new(tn_session *s, const char *name, tn_tensor *init)
{
    tn_tensor *handle = init;
    if (!s) return NULL;
    if (!init) {
        tn_fail(s, TN_E_NULL, "buffer", "'%s': init is NULL", name ? name : "");
        return NULL;
    }
    if (!name || !*name || tn_find(s, name)) {
        tn_fail(s, TN_E_ARG, "buffer", name && *name ? "the name '%s' is taken" : "needs a name", name);
        return NULL;
    }
    tn_tensor *h = tn_keep(init), *p = h ? tn_resolve(h) : NULL;
    if (!p) return NULL;
    if (p->graph != &s->graph) {
        tn_fail(s, TN_E_SESSION, "buffer", "'%s': the tensor is of another session", name);
        tn_free(h);
        return NULL;
    }
    char *copy = tn_strdup(name);
    if (!copy || !list_add(&s->buffers, &s->n_buffers, &s->cap_buffers, p)) {
        tn_free_mem(copy);
        tn_free(h);
        tn_fail(s, TN_E_NOMEM, "buffer", "no memory for '%s'", name);
        return NULL;
    }
    p->name = copy;
    note_name(s, p);
    take_over(handle);
    return h;
}

TN_PLACED(tn_tensor *, buffer_new, s, (s, name, init), tn_session *s, const char *name, tn_tensor *init)

tn_tensor *tn_buffer(tn_session *s, const char *name, tn_tensor *init)
{
    return tn_buffer_new(s, name, init);
}

/* ---- freeing ---- */

static void drop_persistent(tn_session *s, tn_tensor *p)
{
    tn_node_drop_name(&s->graph, p);
    if (p->flags & TN_F_PARAM) tn_node_free_persistent(&s->graph, p->place);
    tn_node_free_persistent(&s->graph, p);
}

static void list_remove(tn_tensor **list, int *n, const tn_tensor *p)
{
    int i = *n - 1;
    while (i >= 0 && list[i] != p) i--;
    if (i >= 0) memmove(list + i, list + i + 1, (size_t)(--*n - i) * sizeof *list);
}

/* Returns true where p's first value and an assignment to p both wait: if p were freed, the assignment would
 * not know where to write. */
static bool assigned_while_made(const tn_session *s, const tn_tensor *p)
{
    if (!s->in_step) return false;
    bool found = false;
    for (uint32_t i = s->flushed; i < s->graph.n_nodes && !found; i++) {
        const tn_tensor *v = s->graph.nodes[i];
        found = v->place == p && v->flags & TN_F_LOST && !(v->flags & TN_F_DONE);
    }
    return found;
}

/* Returns true where p's first value has been recorded in this step and waits. The tape of the step cannot
 * know that this value has no place to go to any more. */
static bool made_now(const tn_session *s, const tn_tensor *p)
{
    const tn_tape *t = &s->tape;
    uint32_t end = t->active && t->cursor < t->n ? t->entry[t->cursor].first : s->graph.n_nodes;
    bool found = false;
    for (uint32_t i = 0; i < s->graph.n_holders && s->in_step && !found; i++) {
        const tn_tensor *h = s->graph.holder[i];
        found = h->place == p && h->id < end && !(h->flags & TN_F_DONE);
    }
    return found;
}

/* Reports that a tensor of the session is not freed: it is freed with the session. A program that counts on
 * its memory is told once in the log, as it does no harm; where mistakes are looked for (TENSOR_CHECK), by an
 * error. */
static void refuse_to_free(tn_session *s, const tn_tensor *p, const char *file, int line)
{
    static const char why[] = "'%s' belongs to the session and lives until tn_close: nothing is freed";
    char text[200], at[160] = "";
    snprintf(text, sizeof text, why, p->name ? p->name : "");
    if (file) snprintf(at, sizeof at, " at %s:%d", file, line);
    if (s->explain->check) {
        tn_place_begin(s, file, line);
        tn_fail(s, TN_E_STATE, "free", "%s", text);
        tn_place_end(s);
    } else if (!s->told_to_free)
        tn_warn(s, "free%s: %s", at, text);
    s->told_to_free = true;
}

void tn_free_at(tn_tensor *persistent, const char *file, int line)
{
    tn_tensor *p = persistent ? tn_resolve(persistent) : NULL;
    if (!p) return;
    tn_session *s = p->graph->session;
    if (!(p->flags & TN_F_PERSISTENT)) {
        tn_outside_free(s, p);
        return;
    }
    if (p->kept >= s->n_kept || s->kept[p->kept] != p) { /* a parameter, or all of the slab */
        refuse_to_free(s, p, file, line);
        return;
    }
    tn_tensor *last = s->kept[--s->n_kept];
    s->kept[last->kept = p->kept] = last;
    if (p->name && !(p->flags & TN_F_BORROWS_NAME)) list_remove(s->buffers, &s->n_buffers, p);
    if (made_now(s, p)) tn_tape_end(s);
    if (assigned_while_made(s, p)) tn_flush(s);
    tn_outside_let_go(s, p);
    drop_persistent(s, p);
}

void tn_free(tn_tensor *persistent) { tn_free_at(persistent, NULL, 0); }

/* The last parameter goes, and its segment of the slab, zero as it was, is the next one's. */
static void take_back_param(tn_session *s)
{
    tn_tensor *p = s->params[--s->n_params];
    tn_slab *b = &s->slab[p->dtype];
    size_t at = (size_t)((const char *)p->buf->data - b->value_base);
    if (s->device->shares_host_memory)
        memset(p->buf->data, 0, p->buf->bytes);
    else if (s->device->zero)
        s->device->zero(s->device, p->buf->data, p->buf->bytes);
    slab_set(s, p->dtype, (int64_t)(at / tn_elem_size(&s->graph, p->dtype)));
    drop_persistent(s, p);
}

void tn_take_back(tn_session *s, int params, int buffers)
{
    if (!s || params < 0 || buffers < 0) return;
    while (s->n_params > params) take_back_param(s);
    while (s->n_buffers > buffers) tn_free(tn_handle(s->buffers[s->n_buffers - 1]));
}

void tn_state_free(tn_session *s)
{
    for (int i = 0; i < s->n_kept; i++) drop_persistent(s, s->kept[i]);
    for (int i = 0; i < s->n_params; i++) drop_persistent(s, s->params[i]);
    TN_EACH(b, s->slab, TN_DTYPE_COUNT) {
        if (b->values) drop_persistent(s, b->values);
        if (b->gradients) drop_persistent(s, b->gradients);
        if (b->value_base) s->device->release(s->device, b->value_base, b->reserved);
        if (b->gradient_base) s->device->release(s->device, b->gradient_base, b->reserved);
    }
    tn_free_mem(s->kept);
    tn_free_mem(s->params);
    tn_free_mem(s->buffers);
    tn_free_mem(s->named);
}

/* ---- finding ---- */

int tn_param_count(const tn_session *s) { return s ? s->n_params : 0; }

int tn_buffer_count(const tn_session *s) { return s ? s->n_buffers : 0; }

tn_tensor *tn_param_at(const tn_session *s, int i)
{
    return s && i >= 0 && i < s->n_params ? tn_handle(s->params[i]) : NULL;
}

tn_tensor *tn_buffer_at(const tn_session *s, int i)
{
    return s && i >= 0 && i < s->n_buffers ? tn_handle(s->buffers[i]) : NULL;
}

tn_tensor *tn_find(const tn_session *s, const char *name)
{
    if (!s || !name) return NULL;
    if (all_named(s)) return s->n_named ? tn_handle(*named_at(s, name)) : NULL;
    for (int i = 0; i < s->n_params; i++)
        if (!strcmp(s->params[i]->name, name)) return tn_handle(s->params[i]);
    for (int i = 0; i < s->n_buffers; i++)
        if (!strcmp(s->buffers[i]->name, name)) return tn_handle(s->buffers[i]);
    return NULL;
}
