/* reduce.c - reductions over a set of axes and cumulative sums.
 *
 * Sums and products of integers wrap at 64 bits; what follows narrows them to the result's dtype. Read first:
 * tn_ref_reduce, which visits each result once and walks the elements that fold into it. */
#include "internal.h"

#include <math.h>

/* One result: the elements x[at], at = start + sum i*stride over `shape`. */
typedef struct fold {
    const double *x;
    int64_t start, n;
    int ndim;
    int64_t shape[TN_MAX_DIMS], stride[TN_MAX_DIMS];
} fold;

static bool beats(double v, double best, bool of_max)
{
    if (isnan(best)) return false;
    return isnan(v) || (of_max ? v > best : v < best);
}

/* The k-th of the elements that fold into one, k counting up from 0. */
static int64_t place(const fold *f, int64_t *index)
{
    int64_t at = f->start;
    for (int i = 0; i < f->ndim; i++) at += index[i] * f->stride[i];
    tn_ref_next(f->ndim, f->shape, index);
    return at;
}

/* The result, or of argmax and argmin which element it is. */
static double fold_reals(const fold *f, tn_op op)
{
    bool of_max = op == TN_OP_reduce_max || op == TN_OP_reduce_argmax;
    double acc = op == TN_OP_reduce_prod ? 1 : 0;
    int64_t index[TN_MAX_DIMS] = {0}, best = 0;
    for (int64_t k = 0; k < f->n; k++) {
        double v = f->x[place(f, index)];
        if (op == TN_OP_reduce_sum) {
            acc += v;
        } else if (op == TN_OP_reduce_prod) {
            acc *= v;
        } else if (k == 0 || beats(v, acc, of_max)) {
            acc = v;
            best = k;
        }
    }
    return op == TN_OP_reduce_argmax || op == TN_OP_reduce_argmin ? (double)best : acc;
}

static int64_t fold_integers(const fold *f, const tn_ref_int *x, tn_op op)
{
    bool of_max = op == TN_OP_reduce_max || op == TN_OP_reduce_argmax;
    int64_t acc = op == TN_OP_reduce_prod, index[TN_MAX_DIMS] = {0}, best = 0;
    for (int64_t k = 0; k < f->n; k++) {
        int64_t v = x[place(f, index)];
        if (op == TN_OP_reduce_sum) {
            acc = tn_ref_sum(acc, v);
        } else if (op == TN_OP_reduce_prod) {
            acc = tn_ref_product(acc, v);
        } else if (k == 0 || (of_max ? v > acc : v < acc)) {
            acc = v;
            best = k;
        }
    }
    return op == TN_OP_reduce_argmax || op == TN_OP_reduce_argmin ? best : acc;
}

int tn_ref_reduce(const tn_ref_args *a)
{
    const tn_tensor *node = a->node, *x = node->in[0];
    int64_t stride[TN_MAX_DIMS], index[TN_MAX_DIMS] = {0};
    tn_dense_strides(x->ndim, x->shape, stride);
    fold f = {.x = a->in[0], .n = 1};
    for (int i = 0; i < x->ndim; i++) {
        if (!(node->attr->axes >> i & 1)) continue;
        f.shape[f.ndim] = x->shape[i];
        f.stride[f.ndim++] = stride[i];
        f.n *= x->shape[i];
    }
    int64_t n = tn_node_numel(node);
    for (int64_t k = 0; k < n; k++) {
        f.start = 0;
        for (int i = 0; i < x->ndim; i++) f.start += index[i] * stride[i];
        const tn_ref_int *whole = tn_ref_ints(x, f.x);
        tn_op op = node->op;
        tn_number v = whole ? tn_number_i(fold_integers(&f, whole, op)) : tn_number_f(fold_reals(&f, op));
        tn_ref_store(node->dtype, v, &a->out[k]);
        tn_ref_next(node->ndim, node->shape, index);
    }
    return TN_OK;
}

typedef double scan_real(double sum, double x);
typedef uint64_t scan_integer(uint64_t sum, uint64_t x); /* wraps */

#define TN_SCAN(name, start, by, ...)                                                                        \
    static double real_##name(double sum, double x) { return sum by x; }                                     \
    static uint64_t integer_##name(uint64_t sum, uint64_t x) { return sum by x; }
#include "../../core/ops.def"

int tn_ref_scan(const tn_ref_args *a)
{
    static const struct {
        scan_real *real;
        scan_integer *integer;
    } step[TN_OP_COUNT] = {
#define TN_SCAN(name, ...) [TN_OP_##name] = {real_##name, integer_##name},
#include "../../core/ops.def"
    };
    const tn_tensor *node = a->node;
    const tn_ref_int *x = tn_ref_ints(node->in[0], a->in[0]);
    tn_ref_int *out = tn_ref_out(a);
    int axis = node->attr->axis, start = tn_op_get(node->op)->start;
    int64_t n = node->shape[axis], inner = tn_extent(node->shape, axis + 1, node->ndim);
    int64_t outer = tn_extent(node->shape, 0, axis);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < inner; i++) {
            double sum = start;
            uint64_t whole = (uint64_t)start;
            for (int64_t k = 0; k < n; k++) {
                int64_t at = (o * n + (node->attr->reverse ? n - 1 - k : k)) * inner + i;
                if (x)
                    out[at] = (int64_t)(whole = step[node->op].integer(whole, (uint64_t)x[at]));
                else
                    a->out[at] = sum = step[node->op].real(sum, a->in[0][at]);
            }
        }
    }
    return TN_OK;
}

/* Whether element j of a line comes before element i: NaN is the greatest, and of equals the first comes
 * first. */
static bool comes_before(const tn_ref_args *a, int64_t base, int64_t step, int64_t j, int64_t i)
{
    const tn_ref_int *x = tn_ref_ints(a->node->in[0], a->in[0]);
    const int64_t at[2] = {base + j * step, base + i * step};
    int order;
    if (x)
        order = (x[at[0]] > x[at[1]]) - (x[at[0]] < x[at[1]]);
    else {
        const double v = a->in[0][at[0]], w = a->in[0][at[1]];
        order = isnan(v) || isnan(w) ? isnan(v) - isnan(w) : (v > w) - (v < w);
    }
    if (a->node->attr->reverse) order = -order;
    return order ? order < 0 : j < i;
}

int tn_ref_sort(const tn_ref_args *a)
{
    const tn_tensor *node = a->node, *x = node->in[0];
    const int axis = node->attr->axis;
    const int64_t n = x->shape[axis], k = node->shape[axis], inner = tn_extent(x->shape, axis + 1, x->ndim);
    const int64_t lines = tn_extent(x->shape, 0, axis) * inner;
    tn_ref_int *out = tn_ref_out(a);
    for (int64_t l = 0; l < lines; l++) {
        const int64_t base = l / inner * n * inner + l % inner;
        for (int64_t i = 0; i < n; i++) {
            int64_t rank = 0;
            for (int64_t j = 0; j < n; j++) rank += comes_before(a, base, inner, j, i);
            if (rank < k) out[(l / inner * k + rank) * inner + l % inner] = i;
        }
    }
    return TN_OK;
}
