/* walk.c - what every rule of the interpreter uses: how elements lie, one after the other, and how a value is
 * rounded to the dtype it has. Start with tn_ref_next. */
#include "internal.h"

static int64_t wrap(tn_dtype d, int64_t v)
{
    if (d == TN_U8) return (uint8_t)v;
    return d == TN_I32 ? (int32_t)(uint32_t)v : v;
}

void tn_ref_settle(tn_dtype d, double *v, int64_t n)
{
    tn_ref_int *whole = (tn_ref_int *)(void *)v;
    for (int64_t i = 0; i < n && tn_dtype_is_int(d); i++) whole[i] = wrap(d, whole[i]);
    for (int64_t i = 0; i < n && d == TN_BOOL; i++) v[i] = v[i] != 0;
}

void tn_ref_store(tn_dtype d, tn_number v, double *out)
{
    if (tn_dtype_is_int(d))
        *(tn_ref_int *)(void *)out = v.is_int ? v.i : tn_f64_to_i64(v.f);
    else
        *out = v.is_int ? (double)v.i : v.f;
    tn_ref_settle(d, out, 1);
}

void tn_ref_next(int ndim, const int64_t *shape, int64_t *index)
{
    for (int i = ndim - 1; i >= 0; i--) {
        if (++index[i] < shape[i]) return;
        index[i] = 0;
    }
}

void tn_ref_copy(double *out, const double *in, int ndim, const int64_t *shape, const int64_t *stride)
{
    int64_t n = tn_extent(shape, 0, ndim), index[TN_MAX_DIMS] = {0};
    for (int64_t k = 0; k < n; k++) {
        int64_t at = 0;
        for (int i = 0; i < ndim; i++) at += index[i] * stride[i];
        out[k] = in[at];
        tn_ref_next(ndim, shape, index);
    }
}
