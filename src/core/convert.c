/* convert.c - element conversion on the host. Start with tn_convert. */
#include "convert.h"

#include <string.h>

double tn_load_f64(const void *p, tn_dtype d, size_t i)
{
    switch (d) {
    case TN_F32: return ((const float *)p)[i];
    case TN_F16: return tn_f16_to_f32(((const uint16_t *)p)[i]);
    case TN_BF16: return tn_bf16_to_f32(((const uint16_t *)p)[i]);
    case TN_F64: return ((const double *)p)[i];
    case TN_I32: return ((const int32_t *)p)[i];
    case TN_I64: return (double)((const int64_t *)p)[i];
    case TN_U8: return ((const uint8_t *)p)[i];
    case TN_BOOL: return ((const uint8_t *)p)[i] != 0;
    case TN_DTYPE_COUNT: break;
    }
    return 0;
}

static int64_t saturate(double v)
{
    if (v != v) return 0;
    if (v >= 0x1p63) return INT64_MAX;
    if (v <= -0x1p63) return INT64_MIN;
    return (int64_t)v;
}

int64_t tn_load_i64(const void *p, tn_dtype d, size_t i)
{
    if (d == TN_I64) return ((const int64_t *)p)[i];
    return saturate(tn_load_f64(p, d, i));
}

static void store_f64(void *p, tn_dtype d, size_t i, double v)
{
    switch (d) {
    case TN_F32: ((float *)p)[i] = (float)v; break;
    case TN_F16: ((uint16_t *)p)[i] = tn_f32_to_f16((float)v); break;
    case TN_BF16: ((uint16_t *)p)[i] = tn_f32_to_bf16((float)v); break;
    case TN_F64: ((double *)p)[i] = v; break;
    case TN_I32: ((int32_t *)p)[i] = (int32_t)saturate(v); break;
    case TN_I64: ((int64_t *)p)[i] = saturate(v); break;
    case TN_U8: ((uint8_t *)p)[i] = (uint8_t)saturate(v); break;
    case TN_BOOL: ((uint8_t *)p)[i] = v != 0; break;
    case TN_DTYPE_COUNT: break;
    }
}

static void store_i64(void *p, tn_dtype d, size_t i, int64_t v)
{
    if (d == TN_I64) ((int64_t *)p)[i] = v;
    else if (d == TN_I32) ((int32_t *)p)[i] = (int32_t)v;
    else if (d == TN_U8) ((uint8_t *)p)[i] = (uint8_t)v;
    else ((uint8_t *)p)[i] = v != 0;
}

static bool whole(tn_dtype d) { return !tn_dtype_is_float(d); }

void tn_convert(void *dst, tn_dtype to, const void *src, tn_dtype from, size_t n)
{
    if (to == from) {
        memcpy(dst, src, n * tn_dtype_size(to));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (whole(to) && whole(from)) store_i64(dst, to, i, tn_load_i64(src, from, i));
        else store_f64(dst, to, i, tn_load_f64(src, from, i));
    }
}
