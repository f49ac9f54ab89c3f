/* move.c - the views that strides cannot say: a reshape of a transposed tensor, padding, concatenation. The
 * others are never run. Read first: tn_ref_pad. */
#include "internal.h"

#include <string.h>

int tn_ref_reshape(const tn_ref_args *a)
{
    int64_t n = tn_node_numel(a->node);
    memcpy(a->out, a->in[0], (size_t)n * sizeof(double));
    return TN_OK;
}

/* As if all ranks had the same; whoever connects them writes over it. */
int tn_ref_ranks(const tn_ref_args *a)
{
    const tn_tensor *x = a->node->in[0];
    const int64_t n = tn_node_numel(a->node), m = tn_node_numel(x);
    for (int64_t i = 0; i < n && m; i++) a->out[i] = a->in[0][i % m];
    return TN_OK;
}

int tn_ref_pad(const tn_ref_args *a)
{
    const tn_tensor *node = a->node, *x = node->in[0];
    const int64_t *before = node->attr->v[0];
    int64_t n = tn_node_numel(node), index[TN_MAX_DIMS] = {0}, stride[TN_MAX_DIMS];
    tn_dense_strides(x->ndim, x->shape, stride);
    for (int64_t k = 0; k < n; k++) {
        int64_t at = 0;
        bool inside = true;
        for (int i = 0; i < node->ndim; i++) {
            int64_t j = index[i] - before[i];
            inside = inside && j >= 0 && j < x->shape[i];
            at += j * stride[i];
        }
        a->out[k] = inside ? a->in[0][at] : a->in[1][0];
        tn_ref_next(node->ndim, node->shape, index);
    }
    return TN_OK;
}

int tn_ref_concat(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    int axis = node->attr->axis;
    int64_t outer = tn_extent(node->shape, 0, axis), inner = tn_extent(node->shape, axis + 1, node->ndim);
    int64_t done = 0;
    for (int i = 0; i < node->n_in; i++) {
        int64_t n = node->in[i]->shape[axis] * inner;
        for (int64_t o = 0; o < outer && n > 0; o++) {
            memcpy(a->out + o * node->shape[axis] * inner + done, a->in[i] + o * n,
                   (size_t)n * sizeof(double));
        }
        done += n;
    }
    return TN_OK;
}
