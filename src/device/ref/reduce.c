/* reduce.c - reductions over a set of axes and cumulative sums.
 *
 * Sums and products of integers wrap at 64 bits; the rounding that follows narrows them to the result's
 * dtype. Read first: tn_ref_reduce, which visits each result once and walks the elements that fold into it.
 */
#include "internal.h"

#include <math.h>

/* One result: the elements x[at], at = start + sum i*stride over `shape`. */
typedef struct fold {
    const double *x;
    int64_t start, n;
    int ndim;
    int64_t shape[TN_MAX_DIMS], stride[TN_MAX_DIMS];
} fold;

static double lowest(tn_dtype d, bool of_max)
{
    switch (d) {
    case TN_F32:
    case TN_F16:
    case TN_BF16:
    case TN_F64:
        return of_max ? -INFINITY : INFINITY;
    case TN_I32:
        return of_max ? (double)INT32_MIN : (double)INT32_MAX;
    case TN_I64:
        return of_max ? (double)INT64_MIN : (double)INT64_MAX;
    case TN_U8:
        return of_max ? 0 : UINT8_MAX;
    case TN_BOOL:
        return of_max ? 0 : 1;
    case TN_DTYPE_COUNT:
        break;
    }
    return NAN;
}

static bool beats(double v, double best, bool of_max)
{
    if (isnan(best)) return false;
    return isnan(v) || (of_max ? v > best : v < best);
}

static double fold_all(const fold *f, tn_op op, tn_dtype dtype)
{
    bool integer = tn_dtype_is_int(dtype), product = op == TN_OP_reduce_prod;
    bool of_max = op == TN_OP_reduce_max || op == TN_OP_reduce_argmax;
    bool extreme = op != TN_OP_reduce_sum && op != TN_OP_reduce_prod;
    double acc = extreme ? lowest(dtype, of_max) : product ? 1 : 0;
    uint64_t bits = product ? 1 : 0;
    int64_t index[TN_MAX_DIMS] = {0}, best = 0;
    for (int64_t k = 0; k < f->n; k++) {
        int64_t at = f->start;
        for (int i = 0; i < f->ndim; i++) at += index[i] * f->stride[i];
        double v = f->x[at];
        if (extreme) {
            if (k == 0 || beats(v, acc, of_max)) {
                acc = v;
                best = k;
            }
        } else if (integer) {
            uint64_t u = (uint64_t)(int64_t)v;
            bits = product ? bits * u : bits + u;
        } else {
            acc = product ? acc * v : acc + v;
        }
        tn_ref_next(f->ndim, f->shape, index);
    }
    if (op == TN_OP_reduce_argmax || op == TN_OP_reduce_argmin) return (double)best;
    return integer && !extreme ? tn_ref_wrap(dtype, bits) : acc;
}

int tn_ref_reduce(const tn_ref_args *a)
{
    const tn_tensor *node = a->node, *x = node->in[0];
    int64_t stride[TN_MAX_DIMS], index[TN_MAX_DIMS] = {0};
    tn_ref_strides(x->ndim, x->shape, stride);
    fold f = {.x = a->in[0], .n = 1};
    for (int i = 0; i < x->ndim; i++) {
        if (!(node->attr->axes >> i & 1)) continue;
        f.shape[f.ndim] = x->shape[i];
        f.stride[f.ndim++] = stride[i];
        f.n *= x->shape[i];
    }
    int64_t n = tn_ref_extent(node->shape, 0, node->ndim);
    for (int64_t k = 0; k < n; k++) {
        f.start = 0;
        for (int i = 0; i < x->ndim; i++) f.start += index[i] * stride[i];
        a->out[k] = fold_all(&f, (tn_op)node->op, (tn_dtype)node->dtype);
        tn_ref_next(node->ndim, node->shape, index);
    }
    return TN_OK;
}

int tn_ref_cumsum(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    int axis = node->attr->axis;
    bool integer = tn_dtype_is_int((tn_dtype)node->dtype);
    int64_t n = node->shape[axis], inner = tn_ref_extent(node->shape, axis + 1, node->ndim);
    int64_t outer = tn_ref_extent(node->shape, 0, axis);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < inner; i++) {
            double sum = 0;
            uint64_t bits = 0;
            for (int64_t k = 0; k < n; k++) {
                int64_t at = (o * n + (node->attr->reverse ? n - 1 - k : k)) * inner + i;
                sum += a->in[0][at];
                if (integer) bits += (uint64_t)(int64_t)a->in[0][at];
                a->out[at] = integer ? tn_ref_wrap((tn_dtype)node->dtype, bits) : sum;
            }
        }
    }
    return TN_OK;
}
