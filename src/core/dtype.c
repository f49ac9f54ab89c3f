/* dtype.c - element types: names, sizes, promotion, and conversion of the 16-bit formats. */
#include "dtype.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} info[TN_DTYPE_COUNT] = {
#define TN_X(id, text, bytes) [id] = {text, bytes},
    TN_DTYPES(TN_X)
#undef TN_X
};

static bool valid(tn_dtype d) { return (unsigned)d < TN_DTYPE_COUNT; }

const char *tn_dtype_name(tn_dtype d) { return valid(d) ? info[d].name : "none"; }

size_t tn_dtype_size(tn_dtype d) { return valid(d) ? info[d].size : 0; }

bool tn_dtype_is_float(tn_dtype d) { return d == TN_F32 || d == TN_F64 || d == TN_F16 || d == TN_BF16; }

bool tn_dtype_is_half(tn_dtype d) { return d == TN_F16 || d == TN_BF16; }

bool tn_dtype_is_int(tn_dtype d) { return d == TN_I32 || d == TN_I64 || d == TN_U8; }

/* PyTorch's table: a floating type wins over any integer; f16 with bf16 gives f32; integers widen (u8 is the
 * narrowest here, so no signed/unsigned case needs a wider third type); bool is below everything. */
tn_dtype tn_dtype_promote(tn_dtype a, tn_dtype b)
{
    static const int rank[TN_DTYPE_COUNT] = {[TN_BOOL] = 0, [TN_U8] = 1,   [TN_I32] = 2, [TN_I64] = 3,
                                             [TN_F16] = 4,  [TN_BF16] = 4, [TN_F32] = 5, [TN_F64] = 6};
    if (a == b) return a;
    if (rank[a] == rank[b]) return TN_F32;
    return rank[a] > rank[b] ? a : b;
}

tn_dtype tn_dtype_widest(tn_dtype d) { return tn_dtype_is_int(d) ? TN_I64 : TN_F64; }

tn_dtype tn_dtype_accumulator(tn_dtype d)
{
    return d == TN_F64 || !valid(d) ? d : tn_dtype_is_float(d) ? TN_F32 : TN_I64;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t tn_f32_to_f16(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);  /* NaN */
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and up rounds to infinity */
    if (a < 0x38800000) { /* below 2^-14: denormal. Adding 0.5 leaves the rounded result in the low bits. */
        float f = float_of(a) + 0.5f;
        return (uint16_t)(sign | (bits_of(f) - 0x3f000000));
    }
    uint32_t odd = a >> 13 & 1;
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + odd) >> 13));
}

float tn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    if (e == 31) return float_of(sign | 0x7f800000 | m << 13);
    if (e) return float_of(sign | (e + 112) << 23 | m << 13);
    float v = (float)m * 0x1p-24f;
    return sign ? -v : v;
}

uint16_t tn_f32_to_bf16(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float tn_bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }

bool tn_dtype_holds(tn_dtype d, double v)
{
    if (!tn_dtype_is_int(d)) return true;
    double end = ldexp(1, 8 * (int)tn_dtype_size(d) - (d == TN_U8 ? 0 : 1));
    v = trunc(v);
    return (d == TN_U8 ? v > -end : v >= -end) && v < end;
}

int64_t tn_dtype_nearest(tn_dtype d, int64_t v)
{
    if (d != TN_I32 && d != TN_U8) return v;
    int64_t low = d == TN_U8 ? 0 : INT32_MIN, high = d == TN_U8 ? UINT8_MAX : INT32_MAX;
    return v < low ? low : v > high ? high : v;
}

int64_t tn_f64_to_i64(double v)
{
    if (v != v) return 0;
    if (v >= 0x1p63) return INT64_MAX;
    if (v <= -0x1p63) return INT64_MIN;
    return (int64_t)v;
}
