/* index.c - reading and adding where an index tensor says; every index is checked.
 *
 * Read first: pick, which turns one element of the index into a coordinate or the error. */
#include "internal.h"

/* Of element k of the index. */
static int pick(const tn_ref_args *a, int64_t k, int64_t bound, int64_t *at)
{
    *at = ((const tn_ref_int *)(const void *)a->in[1])[k];
    if (*at >= 0 && *at < bound) return TN_OK;
    return tn_err(a->err, TN_E_INDEX, "index %lld is out of range for extent %lld", (long long)*at,
                  (long long)bound);
}

static void add(const tn_ref_args *a, int64_t to, int64_t from)
{
    const tn_ref_int *x = tn_ref_ints(a->node->in[0], a->in[0]);
    tn_ref_int *out = tn_ref_out(a);
    if (x)
        out[to] = tn_ref_sum(out[to], x[from]);
    else
        a->out[to] += a->in[0][from];
}

/* gather reads the element of `wide` that index points at for every element of the index, scatter_add adds
 * to it: the same pairs. wide is x or the result; narrow is the result or src. */
typedef struct pairs {
    const tn_tensor *index, *narrow;
    int wide_ndim, axis;
    const int64_t *wide;
} pairs;

static int pair(const tn_ref_args *a, const pairs *p, const int64_t *i, int64_t k, int64_t *narrow_at,
                int64_t *wide_at)
{
    int64_t chosen, wide_stride[TN_MAX_DIMS], narrow_stride[TN_MAX_DIMS];
    int rc = pick(a, k, p->wide[p->axis], &chosen);
    if (rc != TN_OK) return rc;
    tn_dense_strides(p->wide_ndim, p->wide, wide_stride);
    tn_dense_strides(p->narrow->ndim, p->narrow->shape, narrow_stride);
    *narrow_at = *wide_at = 0;
    for (int d = 0; d < p->wide_ndim; d++) {
        *narrow_at += i[d] * narrow_stride[d];
        *wide_at += (d == p->axis ? chosen : i[d]) * wide_stride[d];
    }
    return TN_OK;
}

static int walk(const tn_ref_args *a, const pairs *p, bool adds)
{
    int64_t n = tn_node_numel(p->index), i[TN_MAX_DIMS] = {0}, narrow, wide;
    for (int64_t k = 0; k < n; k++) {
        int rc = pair(a, p, i, k, &narrow, &wide);
        if (rc != TN_OK) return rc;
        if (adds)
            add(a, wide, narrow);
        else
            a->out[narrow] = a->in[0][wide];
        tn_ref_next(p->index->ndim, p->index->shape, i);
    }
    return TN_OK;
}

int tn_ref_gather(const tn_ref_args *a)
{
    const tn_tensor *node = a->node, *x = node->in[0];
    pairs p = {node->in[1], node, x->ndim, node->attr->axis, x->shape};
    return walk(a, &p, false);
}

int tn_ref_scatter_add(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    pairs p = {node->in[1], node->in[0], node->ndim, node->attr->axis, node->shape};
    return walk(a, &p, true);
}

/* index_select copies from lines of x that the index names, index_add adds src's lines to those of the result:
 * `of` has the named lines. */
static int lines(const tn_ref_args *a, const tn_tensor *of, bool adds)
{
    const int axis = a->node->attr->axis;
    int64_t outer = tn_extent(of->shape, 0, axis), inner = tn_extent(of->shape, axis + 1, of->ndim);
    int64_t bound = of->shape[axis], n = a->node->in[1]->shape[0], at;
    for (int64_t k = 0; k < n; k++) {
        int rc = pick(a, k, bound, &at);
        if (rc != TN_OK) return rc;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) {
                const int64_t named = (o * bound + at) * inner + i, own = (o * n + k) * inner + i;
                if (adds)
                    add(a, named, own);
                else
                    a->out[own] = a->in[0][named];
            }
    }
    return TN_OK;
}

int tn_ref_index_select(const tn_ref_args *a) { return lines(a, a->node->in[0], false); }

int tn_ref_index_add(const tn_ref_args *a) { return lines(a, a->node, true); }
