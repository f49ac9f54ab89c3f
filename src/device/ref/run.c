/* run.c - one node at a time: operands made dense, the op's function called, the result rounded.
 *
 * Which function that is says the row of the operator in ops.def. Read first: tn_ref_run. */
#include "internal.h"

#include <string.h>

/* A number is never run: every element of x, a view of it, is the number. */
static int load_number(const tn_tensor *x, int64_t n, const double **value, double **owned, tn_errbuf *err)
{
    double v;
    tn_ref_store(x->dtype, x->base->attr->number, &v);
    tn_ref_noise_number(x->base, &v);
    *owned = tn_malloc((size_t)n * sizeof(double));
    if (!*owned) return tn_err(err, TN_E_NOMEM, "no memory for %lld elements", (long long)n);
    for (int64_t i = 0; i < n; i++) (*owned)[i] = v;
    *value = *owned;
    return TN_OK;
}

/* Operand i's value as a dense array: its own memory where that can serve, else a copy in *owned. */
static int load(const tn_tensor *node, int i, const double **value, double **owned, tn_errbuf *err)
{
    const tn_tensor *x = node->in[i];
    bool noisy = tn_ref_noise_adds(node);
    int64_t n = tn_node_numel(x);
    const double *data = tn_node_data(x);
    *owned = NULL;
    *value = data;
    if (n == 0) return TN_OK;
    bool number = x->base && tn_is_number(x);
    if (!data && number) return load_number(x, n, value, owned, err);
    if (!data) return tn_err(err, TN_E_STATE, "%s has not been computed", tn_op_get(x->op)->name);
    if (tn_node_is_dense(x) && !noisy) return TN_OK;
    *owned = tn_malloc((size_t)n * sizeof(double));
    if (!*owned) return tn_err(err, TN_E_NOMEM, "no memory for %lld elements", (long long)n);
    tn_ref_copy(*owned, data, x->ndim, x->shape, x->stride);
    if (noisy) tn_ref_noise_operand(node, i, *owned, n);
    *value = *owned;
    return TN_OK;
}

static int tn_ref_nothing(const tn_ref_args *a)
{
    return tn_err(a->err, TN_E_STATE, "op %d is not computed from operands", a->node->op);
}

int tn_ref_compute(const tn_ref_args *a)
{
    static tn_ref_rule *const rule[TN_OP_COUNT] = {
#define TN_ROW(name, ...)                                   [TN_OP_##name] = tn_ref_eltwise,
#define TN_OTHER(name, kind, inputs, needs, reference, ...) [TN_OP_##name] = tn_ref_##reference,
#include "../../core/ops.def"
    };
    return rule[a->node->op](a);
}

/* The source was loaded before anything is written, but a dense one is still its own memory, which may
 * overlap the target: it is copied once more, and so are indices. */
static int assign(tn_tensor *node, const double *const *in, tn_errbuf *err)
{
    tn_tensor *target = node->in[0], *source = node->in[node->n_in - 1];
    const bool rows = node->op == TN_OP_assign_rows;
    const tn_ref_int *line = (const tn_ref_int *)(const void *)in[1];
    const int axis = rows ? node->attr->axis : 0;
    int64_t n = tn_node_numel(source), index[TN_MAX_DIMS] = {0};
    double *to = tn_node_data(target);
    if (n > 0 && !to) return tn_err(err, TN_E_STATE, "assign: the target has no memory");
    for (int64_t k = 0; rows && k < source->shape[axis]; k++)
        if (line[k] < 0 || line[k] >= target->shape[axis])
            return tn_err(err, TN_E_INDEX, "index %lld is out of range for extent %lld", (long long)line[k],
                          (long long)target->shape[axis]);
    const size_t lines = rows ? (size_t)source->shape[axis] : 0;
    double *copy = tn_malloc(((size_t)n + lines) * sizeof(double));
    if (!copy) return tn_err(err, TN_E_NOMEM, "assign: no memory for %lld elements", (long long)n);
    if (n > 0) memcpy(copy, in[node->n_in - 1], (size_t)n * sizeof(double));
    if (lines) line = memcpy(copy + n, line, lines * sizeof *line);
    for (int64_t k = 0; k < n; k++) {
        int64_t at = 0;
        for (int i = 0; i < target->ndim; i++)
            at += (rows && i == axis ? (int64_t)line[index[i]] : index[i]) * target->stride[i];
        to[at] = copy[k];
        tn_ref_next(source->ndim, source->shape, index);
    }
    tn_free_mem(copy);
    if (node->base == node && !node->buf && target->base && target->base->buf) tn_node_stand_in(node, target);
    return TN_OK;
}

static int run_on(tn_tensor *node, const double *const *in, tn_errbuf *err)
{
    if (tn_kind_of(node) == TN_KIND_ASSIGN) return assign(node, in, err);
    int64_t n = tn_node_numel(node);
    size_t bytes = (size_t)n * sizeof(double);
    tn_storage *out = tn_storage_new(node->graph, bytes);
    if (!out) return tn_err(err, TN_E_NOMEM, "no memory for %lld elements", (long long)n);
    if (bytes > 0) memset(out->data, 0, bytes);
    tn_ref_args args = {.node = node, .in = in, .out = out->data, .err = err};
    int rc = n > 0 ? tn_ref_compute(&args) : TN_OK;
    if (rc != TN_OK) {
        tn_storage_release(out);
        return rc;
    }
    tn_ref_settle(node->dtype, args.out, n);
    tn_ref_noise_result(&args, n);
    if (node->buf) tn_storage_release(node->buf);
    node->buf = out;
    node->base = node;
    node->offset = 0;
    tn_dense_strides(node->ndim, node->shape, node->stride);
    return TN_OK;
}

int tn_ref_run(tn_tensor *node, tn_errbuf *err)
{
    if (node->op == TN_OP_leaf) return TN_OK;
    if (tn_kind_of(node) != TN_KIND_ASSIGN && node->base && node->base != node) return TN_OK;

    int n = node->n_in;
    const double **in = tn_calloc((size_t)n + 1, sizeof *in);
    double **owned = tn_calloc((size_t)n + 1, sizeof *owned);
    int rc = in && owned ? TN_OK : tn_err(err, TN_E_NOMEM, "no memory for the list of operands");
    /* An assign only writes its target. */
    for (int i = tn_kind_of(node) == TN_KIND_ASSIGN; rc == TN_OK && i < n; i++)
        rc = load(node, i, &in[i], &owned[i], err);
    if (rc == TN_OK) rc = run_on(node, in, err);
    for (int i = 0; owned && i < n; i++) tn_free_mem(owned[i]);
    tn_free_mem(owned);
    tn_free_mem(in);
    return rc;
}
