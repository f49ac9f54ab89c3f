/* builtin.c - one node at a time, without generated kernels: memory for the result, operands, and the choice
 * between a loop of our own, the device's products and convolutions, and the reference interpreter.
 *
 * Read first: tn_builtin_run, then compute. */
#include "builtin.h"

#include "../../core/convert.h"
#include "../../core/library.h"
#include "../ref/internal.h"
#include "pool.h"

#include <string.h>

enum { MAX_TEMPS = 4 };

/* Memory that lasts as long as the node is being computed. */
struct temps {
    tn_device *d;
    int n;
    void *at[MAX_TEMPS];
};

static int fail(tn_errbuf *err, int status, const char *what, const tn_tensor *node)
{
    return tn_err(err, status, "%s: %s", tn_op_get(node->op)->name, what);
}

static int no_memory(tn_errbuf *err, const tn_tensor *node)
{
    return fail(err, TN_E_NOMEM, "no memory", node);
}

static void *temp(struct temps *t, size_t bytes)
{
    return t->n < MAX_TEMPS ? t->at[t->n++] = t->d->alloc(t->d, bytes) : NULL;
}

static void free_temps(struct temps *t)
{
    while (t->n)
        if (t->at[--t->n]) t->d->free(t->d, t->at[t->n]);
}

static size_t bytes_of(const tn_tensor *x) { return (size_t)tn_node_numel(x) * tn_dtype_size(x->dtype); }

/* x's elements in a row: its own memory where they lie so, else a copy. NULL: no memory. */
static const void *dense(struct temps *t, const tn_tensor *x, bool copy)
{
    tn_bl_operand o;
    if (!tn_bl_open(x, &o)) return NULL;
    if (o.dense && !copy) return o.data;
    void *p = temp(t, bytes_of(x));
    if (p) tn_bl_copy(tn_cpu_pool(t->d), &o, tn_node_numel(x), p);
    return p;
}

/* ---- the device's products and convolutions ---- */

/* Where x lies, or a copy of it. NULL: no memory. */
static const void *take_matrix(struct temps *t, const tn_tensor *x, bool copy, tn_matrix *m)
{
    const void *data = copy ? NULL : tn_node_data(x);
    if (data && tn_matrix_of(x, false, m)) return data;
    tn_matrix_of(x, true, m);
    return dense(t, x, copy);
}

static int run_gemm(struct temps *t, const tn_tensor *node, void *out, tn_errbuf *err)
{
    tn_gemm g;
    tn_matrix a, b, c;
    bool fits = false;
    tn_matrix_of(node, true, &c);
    for (int copied = 0; copied < 2 && !fits;
         copied++) { /* axes that do not join do so once they are dense */
        free_temps(t);
        const void *at_a = take_matrix(t, node->in[0], copied, &a), *at_b = NULL;
        if (at_a) at_b = take_matrix(t, node->in[1], copied, &b);
        if (!at_b) return no_memory(err, node);
        fits = tn_gemm_of(node, &a, &b, &c, &g);
        g.a = at_a, g.b = at_b;
    }
    if (!fits) return fail(err, TN_E_UNSUPPORTED, "too many batch axes", node);
    g.c = out;
    if (node->n_in > 2 && !(g.bias = dense(t, node->in[2], false))) return no_memory(err, node);
    return t->d->gemm(t->d, &g, err);
}

static int run_conv(struct temps *t, const tn_tensor *node, void *out, tn_errbuf *err)
{
    tn_conv2d_desc d = tn_conv2d_of(node);
    d.out = out;
    if (!(d.in0 = dense(t, node->in[0], false)) || !(d.in1 = dense(t, node->in[1], false)))
        return no_memory(err, node);
    if (node->n_in > 2 && !(d.bias = dense(t, node->in[2], false))) return no_memory(err, node);
    return t->d->conv2d(t->d, &d, err);
}

/* ---- everything else: as the reference does it ---- */

struct widen {
    const tn_bl_operand *x;
    double *out;
};

static void widen_chunk(void *arg, int64_t begin, int64_t end)
{
    const struct widen *w = arg;
    _Alignas(64) char tile[1024 * sizeof(double)];
    for (int64_t at = begin; at < end; at += 1024) {
        int64_t n = end - at < 1024 ? end - at : 1024;
        tn_bl_gather(w->x, at, n, tile);
        tn_convert(w->out + at, tn_dtype_widest(w->x->dtype), tile, w->x->dtype, (size_t)n);
    }
}

static int run_reference(tn_device *d, const tn_tensor *node, void *out, tn_errbuf *err)
{
    int64_t n = tn_node_numel(node);
    const double **in = tn_calloc((size_t)node->n_in + 1, sizeof *in);
    double *result = d->alloc(d, (size_t)n * sizeof *result);
    int status = in && result ? TN_OK : no_memory(err, node);
    for (int i = 0; i < node->n_in && !status; i++) {
        tn_bl_operand o;
        int64_t count = tn_node_numel(node->in[i]);
        double *wide = d->alloc(d, (size_t)count * sizeof *wide);
        in[i] = wide;
        if (!wide)
            status = no_memory(err, node);
        else if (!tn_bl_open(node->in[i], &o))
            status = fail(err, TN_E_STATE, "an operand has no value", node);
        else
            tn_pool_run(tn_cpu_pool(d), widen_chunk, &(struct widen){&o, wide}, count, 1 << 15);
    }
    if (!status) {
        memset(result, 0, (size_t)n * sizeof *result);
        status = tn_ref_compute(&(tn_ref_args){.node = node, .in = in, .out = result, .err = err});
    }
    if (!status) {
        tn_dtype to = node->dtype;
        tn_ref_settle(to, result, n);
        tn_convert(out, to, result, tn_dtype_widest(to), (size_t)n);
    }
    for (int i = 0; in && i < node->n_in; i++)
        if (in[i]) d->free(d, (void *)(uintptr_t)in[i]);
    if (result) d->free(d, result);
    tn_free_mem(in);
    return status;
}

/* ---- the choice ---- */

static int compute(struct temps *t, const tn_tensor *node, void *out, tn_errbuf *err)
{
    tn_device *d = t->d;
    tn_pool *pool = tn_cpu_pool(d);
    int64_t n = tn_node_numel(node), outer, red, inner;
    tn_bl_operand o[3];
    switch (tn_kind_of(node)) {
    case TN_KIND_GEMM: return run_gemm(t, node, out, err);
    case TN_KIND_CONV: return run_conv(t, node, out, err);
    case TN_KIND_ELTWISE:
        if (!tn_bl_has_eltwise(node)) break;
        for (int i = 0; i < node->n_in; i++)
            if (!tn_bl_open(node->in[i], &o[i]))
                return fail(err, TN_E_STATE, "an operand has no value", node);
        for (int i = 0; i < node->n_in; i++) tn_bl_widen_number(node->in[i], &o[i]);
        tn_bl_eltwise(pool, node, o, n, out);
        return TN_OK;
    case TN_KIND_CAST:
        if (!tn_bl_open(node->in[0], &o[0])) return fail(err, TN_E_STATE, "an operand has no value", node);
        tn_bl_cast(pool, &o[0], n, node->dtype, out);
        return TN_OK;
    case TN_KIND_VIEW:
        if (node->op != TN_OP_contiguous && node->op != TN_OP_reshape) break;
        if (!tn_bl_open(node->in[0], &o[0])) return fail(err, TN_E_STATE, "an operand has no value", node);
        tn_bl_copy(pool, &o[0], n, out);
        return TN_OK;
    case TN_KIND_REDUCE:
        if (!tn_bl_has_reduce(node, &outer, &red, &inner)) break;
        const void *x = dense(t, node->in[0], false);
        if (!x || tn_bl_reduce(d, node->op, x, outer, red, inner, out)) return no_memory(err, node);
        return TN_OK;
    default: break;
    }
    return run_reference(d, node, out, err);
}

static int assign_rows(struct temps *t, tn_tensor *node, tn_errbuf *err)
{
    const tn_tensor *target = node->in[0], *source = node->in[2];
    const int axis = node->attr->axis;
    const int64_t rows = source->shape[axis], lines = target->shape[axis];
    const size_t inner =
        (size_t)tn_extent(target->shape, axis + 1, target->ndim) * tn_dtype_size(target->dtype);
    const int64_t outer = tn_extent(target->shape, 0, axis);
    if (!tn_node_numel(source)) return TN_OK;
    const char *index = dense(t, node->in[1], true), *from = dense(t, node->in[2], true);
    char *to = tn_node_data(target);
    if (!to) return fail(err, TN_E_STATE, "the target has no memory", node);
    if (!index || !from) return no_memory(err, node);
    for (int64_t pass = 0; pass < 2; pass++)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t line = tn_load_i64(index, node->in[1]->dtype, (size_t)r);
            if (line < 0 || line >= lines) return fail(err, TN_E_INDEX, "an index is out of range", node);
            for (int64_t o = 0; pass && o < outer; o++)
                memcpy(to + (size_t)(o * lines + line) * inner, from + (size_t)(o * rows + r) * inner, inner);
        }
    return TN_OK;
}

/* The source is read to its end before the target is written: they may overlap. */
static int assign(struct temps *t, tn_tensor *node, tn_errbuf *err)
{
    tn_tensor *target = node->in[0];
    int64_t n = tn_node_numel(target), index[TN_MAX_DIMS] = {0};
    char *to = tn_node_data(target);
    size_t size = tn_dtype_size(target->dtype);
    if (n && !to) return fail(err, TN_E_STATE, "the target has no memory", node);
    const bool rows = node->op == TN_OP_assign_rows;
    const char *from = n && !rows ? dense(t, node->in[1], !tn_node_is_dense(target)) : to;
    if (n && !from) return no_memory(err, node);
    if (rows) {
        const int status = assign_rows(t, node, err);
        if (status) return status;
    } else if (tn_node_is_dense(target)) {
        if (n) memmove(to, from, (size_t)n * size);
    } else {
        for (int64_t k = 0; k < n; k++) {
            int64_t at = 0;
            for (int i = 0; i < target->ndim; i++) at += index[i] * target->stride[i];
            memcpy(to + at * (int64_t)size, from + k * (int64_t)size, size);
            tn_ref_next(target->ndim, target->shape, index);
        }
    }
    if (!node->buf) tn_node_stand_in(node, target);
    return TN_OK;
}

int tn_builtin_run(tn_device *d, tn_tensor *node, tn_errbuf *err)
{
    struct temps t = {.d = d};
    int status = TN_OK;
    if (tn_kind_of(node) == TN_KIND_ASSIGN) {
        status = assign(&t, node, err);
        free_temps(&t);
        return status;
    }
    tn_storage *b = node->place ? node->place->base->buf : tn_storage_new(node->graph, bytes_of(node));
    if (!b) return no_memory(err, node);
    if (node->place) tn_storage_retain(b);
    void *out = node->place ? tn_node_data(node->place) : b->data;
    if (tn_node_numel(node)) status = compute(&t, node, out, err);
    free_temps(&t);
    if (status) {
        tn_storage_release(b);
        return status;
    }
    node->buf = b;
    if (node->place) node->offset = node->place->offset;
    return TN_OK;
}
