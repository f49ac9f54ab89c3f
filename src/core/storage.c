/* storage.c - memory: where a value lies, which nodes write to it or look into it, and how long it lives.
 * Start with tn_node_home and tn_graph_meet. */

#include "../device/device.h"
#include "alloc.h"
#include "dtype.h"
#include "graph.h"

#include <string.h>

void *tn_node_data(const tn_tensor *n)
{
    if (!n->base || !n->base->buf) return NULL;
    return (char *)n->base->buf->data + n->offset * (int64_t)tn_elem_size(n->graph, n->dtype);
}

const tn_tensor *tn_node_written(const tn_tensor *n)
{
    return tn_kind_of(n) == TN_KIND_ASSIGN ? n->in[0] : n->place;
}

static void add_span(tn_spans *s, tn_tensor *n)
{
    uintptr_t low, high;
    if (tn_node_bytes(n, &low, &high)) tn_spans_add(s, n, n->id, low, high);
}

bool tn_node_hold(tn_tensor *n)
{
    tn_graph *g = n->graph;
    if (!tn_reserve(&g->holder, &g->cap_holders, (int64_t)g->n_holders + 1, sizeof *g->holder))
        return tn_error_set(g, TN_E_NOMEM, "no memory for the graph") != NULL;
    uint32_t i = g->n_holders++;
    for (; i && g->holder[i - 1]->id > n->id; i--) g->holder[i] = g->holder[i - 1];
    g->holder[i] = n;
    if (i < g->n_settled) g->n_settled = i;
    add_span(&g->sights, n);
    if (tn_node_written(n)) add_span(&g->writers, n);
    return true;
}

bool tn_graph_meet(tn_graph *g, tn_spans *s, const tn_tensor *x, uint32_t from, uint32_t end, tn_span_fn *fn,
                   void *arg)
{
    uintptr_t low = 0, high = UINTPTR_MAX;
    if (s->stale) {
        tn_spans_clear(s);
        for (uint32_t i = 0; i < g->n_holders; i++)
            if (s == &g->writers ? tn_node_written(g->holder[i]) != NULL : !(g->holder[i]->flags & TN_F_LOST))
                add_span(s, g->holder[i]);
    }
    if (s->stale) return tn_error_set(g, TN_E_NOMEM, "no memory for the graph") != NULL;
    if (!x || tn_node_bytes(x, &low, &high)) tn_spans_meet(s, low, high, from, end, fn, arg);
    return true;
}

void tn_node_lose(tn_tensor *v, tn_tensor *writer)
{
    v->flags |= TN_F_LOST;
    if (v->lost_to) return;
    v->lost_to = writer;
    v->lost_next = writer->lost;
    writer->lost = v;
}

void *tn_node_home(const tn_tensor *n, tn_storage **holder)
{
    int64_t bytes = 0;
    for (;;) { /* an assignment to a value that is itself assigned: down to the memory of both */
        const tn_tensor *b = n->base;
        bytes += n->offset * (int64_t)tn_elem_size(n->graph, n->dtype);
        const tn_tensor *next = b->buf ? NULL : tn_node_written(b);
        if (!next) break;
        if (b->of && next == b->in[0]) next = b->of; /* what all of them are assigned to */
        n = next;
    }
    if (holder) *holder = n->base->buf;
    return n->base->buf ? (char *)n->base->buf->data + bytes : NULL;
}

bool tn_node_bytes(const tn_tensor *n, uintptr_t *low, uintptr_t *high)
{
    int64_t e = (int64_t)tn_elem_size(n->graph, n->dtype);
    const char *p = tn_node_home(n, NULL);
    if (!p || !tn_node_numel(n)) return false;
    *low = *high = (uintptr_t)p;
    for (int k = 0; k < n->ndim; k++) {
        int64_t far = (n->shape[k] - 1) * n->stride[k] * e;
        *(far < 0 ? low : high) += (uintptr_t)far;
    }
    *high += (uintptr_t)e;
    return true;
}

bool tn_node_overlap(const tn_tensor *a, const tn_tensor *b)
{
    uintptr_t low[2], high[2];
    return tn_node_bytes(a, &low[0], &high[0]) && tn_node_bytes(b, &low[1], &high[1]) && low[0] < high[1] &&
           low[1] < high[0];
}

int64_t tn_node_first(const tn_tensor *n)
{
    const tn_storage *b = n->base->buf, *whole = b;
    const int64_t size = (int64_t)tn_elem_size(n->graph, n->dtype);
    while (whole && whole->within) whole = whole->within;
    return n->offset + (b ? ((const char *)b->data - (const char *)whole->data) / size : 0);
}

tn_storage *tn_storage_new(tn_graph *g, size_t bytes)
{
    tn_storage *b = tn_calloc(1, sizeof *b);
    if (!b) return NULL;
    b->data = g->device->alloc(g->device, bytes);
    if (!b->data) {
        tn_free_mem(b);
        return NULL;
    }
    b->bytes = bytes;
    b->refs = 1;
    b->device = g->device;
    return b;
}

tn_storage *tn_storage_wrap(tn_graph *g, void *data, size_t bytes)
{
    tn_storage *b = tn_calloc(1, sizeof *b);
    if (!b) return NULL;
    *b = (tn_storage){.data = data, .bytes = bytes, .refs = 1, .borrowed = true, .device = g->device};
    return b;
}

tn_storage *tn_storage_window(tn_storage *whole, size_t offset, size_t bytes)
{
    tn_storage *b = tn_calloc(1, sizeof *b);
    if (!b) return NULL;
    *b = (tn_storage){.data = (char *)whole->data + offset,
                      .bytes = bytes,
                      .refs = 1,
                      .borrowed = true,
                      .within = whole,
                      .device = whole->device};
    tn_storage_retain(whole);
    return b;
}

void tn_storage_retain(tn_storage *b) { b->refs++; }

void tn_storage_release(tn_storage *b)
{
    if (!b || --b->refs > 0) return;
    if (!b->borrowed) b->device->free(b->device, b->data);
    if (b->release) b->release(b->release_data, b->release_user);
    tn_storage_release(b->within);
    tn_free_mem(b);
}

int64_t tn_node_numel(const tn_tensor *n) { return tn_extent(n->shape, 0, n->ndim); }

int64_t tn_extent(const int64_t *shape, int from, int to)
{
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= shape[i];
    return n;
}

void tn_dense_strides(int ndim, const int64_t *shape, int64_t *stride)
{
    int64_t n = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = n;
        n *= shape[i];
    }
}

bool tn_node_is_dense(const tn_tensor *n)
{
    int64_t s = 1;
    if (!n->base) return false;
    for (int i = n->ndim - 1; i >= 0; i--) {
        if (n->shape[i] != 1 && n->stride[i] != s) return false;
        s *= n->shape[i];
    }
    return true;
}

bool tn_same_shape(const tn_tensor *a, const tn_tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

bool tn_same_type(const tn_tensor *a, const tn_tensor *b)
{
    return a->dtype == b->dtype && tn_same_shape(a, b);
}

bool tn_same_view(const tn_tensor *a, const tn_tensor *b)
{
    return a->base == b->base && a->offset == b->offset && tn_same_type(a, b) &&
           !memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride);
}

void tn_node_stand_in(tn_tensor *n, const tn_tensor *target)
{
    n->buf = target->base->buf;
    tn_storage_retain(n->buf);
    n->offset = target->offset;
    memcpy(n->stride, target->stride, sizeof n->stride);
}

tn_dtype tn_stored_dtype(const tn_graph *g, tn_dtype d)
{
    return g->device && g->device->is_reference ? tn_dtype_widest(d) : d;
}

size_t tn_elem_size(const tn_graph *g, tn_dtype d) { return tn_dtype_size(tn_stored_dtype(g, d)); }
