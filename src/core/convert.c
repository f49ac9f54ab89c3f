/* convert.c - element conversion on the host. Start with tn_convert. */
#include "convert.h"

#include <string.h>

/* Element i of an array that may stand at any address, as data in a file do: `value` of x. */
#define LOAD(dtype, type, value)                                                                             \
    case dtype: {                                                                                            \
        type x;                                                                                              \
        memcpy(&x, (const char *)p + i * sizeof x, sizeof x);                                                \
        return value;                                                                                        \
    }

double tn_load_f64(const void *p, tn_dtype d, size_t i)
{
    switch (d) {
        LOAD(TN_F32, float, x)
        LOAD(TN_F16, uint16_t, tn_f16_to_f32(x))
        LOAD(TN_BF16, uint16_t, tn_bf16_to_f32(x))
        LOAD(TN_F64, double, x)
        LOAD(TN_I32, int32_t, x)
        LOAD(TN_I64, int64_t, (double)x)
        LOAD(TN_U8, uint8_t, x)
        LOAD(TN_BOOL, uint8_t, x != 0)
    case TN_DTYPE_COUNT: break;
    }
    return 0;
}

int64_t tn_load_i64(const void *p, tn_dtype d, size_t i)
{
    int64_t wide;
    if (d == TN_I64) return memcpy(&wide, (const char *)p + i * sizeof wide, sizeof wide), wide;
    return tn_f64_to_i64(tn_load_f64(p, d, i));
}

static void store_i64(void *p, tn_dtype d, size_t i, int64_t v)
{
    if (d == TN_I64)
        ((int64_t *)p)[i] = v;
    else if (d == TN_I32)
        ((int32_t *)p)[i] = (int32_t)v;
    else if (d == TN_U8)
        ((uint8_t *)p)[i] = (uint8_t)v;
    else
        ((uint8_t *)p)[i] = v != 0;
}

static void store_f64(void *p, tn_dtype d, size_t i, double v)
{
    if (d == TN_F32)
        ((float *)p)[i] = (float)v;
    else if (d == TN_F64)
        ((double *)p)[i] = v;
    else if (tn_dtype_is_half(d))
        ((uint16_t *)p)[i] = d == TN_F16 ? tn_f32_to_f16((float)v) : tn_f32_to_bf16((float)v);
    else if (d == TN_BOOL) /* 0.5, too, is true */
        ((uint8_t *)p)[i] = v != 0;
    else
        store_i64(p, d, i, tn_f64_to_i64(v));
}

static bool whole(tn_dtype d) { return !tn_dtype_is_float(d); }

void tn_convert(void *dst, tn_dtype to, const void *src, tn_dtype from, size_t n)
{
    if (to == from && to != TN_BOOL) { /* any byte but 0 is true, and becomes 1 */
        memcpy(dst, src, n * tn_dtype_size(to));
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (whole(to) && whole(from))
            store_i64(dst, to, i, tn_load_i64(src, from, i));
        else if (whole(from) && to != TN_F64)
            store_f64(dst, to, i, (float)tn_load_i64(src, from, i)); /* rounded once */
        else
            store_f64(dst, to, i, tn_load_f64(src, from, i));
}
