/* half.h - the 16-bit floating formats of generated kernels, one text for C and for CUDA C.
 *
 * tn_half is IEEE binary16, tn_bfloat16 the upper half of an f32. They are storage only: a kernel converts on
 * load and on store and computes in f32. Conversions round to nearest even, overflow to infinity and keep
 * NaN; bits agree with src/core/dtype.c (but for a NaN's payload). All are branch-free and vectorise; a GPU
 * has instructions for them.
 *
 * Comes after math.h. Read first: tn_half_to_f32.
 */
#ifndef TN_PRELUDE_HALF_H
#define TN_PRELUDE_HALF_H

typedef struct tn_half {
    uint16_t bits;
} tn_half;

typedef struct tn_bfloat16 {
    uint16_t bits;
} tn_bfloat16;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !defined(TN_CUSIM)

TN_FN tn_bfloat16 tn_f32_to_bfloat16(float x)
{
    tn_bfloat16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
}

/* One instruction: the upper half of a pair of which the lower is 0. */
TN_FN float tn_rounded_bfloat16(float x)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x), "f"(0.0f));
    return tn_from_bits_f32(pair);
}

#else

/* The bits of the nearest one above 16 others, which are left over. */
TN_FN uint32_t tn_near_bfloat16(float x)
{
    const uint32_t u = tn_bits_f32(x);
    return x != x ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1);
}

TN_FN tn_bfloat16 tn_f32_to_bfloat16(float x)
{
    tn_bfloat16 h;
    h.bits = (uint16_t)(tn_near_bfloat16(x) >> 16);
    return h;
}

/* There and back, without the narrow vectors in between. */
TN_FN float tn_rounded_bfloat16(float x) { return tn_from_bits_f32(tn_near_bfloat16(x) & 0xffff0000u); }

#endif

TN_FN float tn_bfloat16_to_f32(tn_bfloat16 h) { return tn_from_bits_f32((uint32_t)h.bits << 16); }

#if defined(__CUDA_ARCH__) && !defined(TN_CUSIM)

TN_FN float tn_half_to_f32(tn_half h)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
    return x;
}

TN_FN tn_half tn_f32_to_half(float x)
{
    tn_half h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
}

#else

/* Placed in an f32's fields as it stands, a half is too small by 2^112; the product is exact and makes a
 * denormal half a normal float. Infinity and NaN need their exponent completed. */
TN_FN float tn_half_to_f32(tn_half h)
{
    uint32_t a = ((uint32_t)h.bits & 0x7fffu) << 13, sign = ((uint32_t)h.bits & 0x8000u) << 16;
    uint32_t y = tn_bits_f32(tn_from_bits_f32(a) * 0x1p112f);
    return tn_from_bits_f32(sign | y | (a >= 0x0f800000u ? 0x7f800000u : 0));
}

/* Three roundings, of which one holds: in the normal range add half a unit to the bits; below 2^-14 let the
 * addition of 0.5 leave the rounded denormal in the low bits; from 65520 on, infinity. */
TN_FN tn_half tn_f32_to_half(float x)
{
    uint32_t u = tn_bits_f32(x), a = u & 0x7fffffffu;
    uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13;
    uint32_t denormal = tn_bits_f32(tn_from_bits_f32(a) + 0.5f) - 0x3f000000u;
    uint32_t y = a < 0x38800000u ? denormal : normal;
    y = a >= 0x477ff000u ? 0x7c00u : y;
    y = a > 0x7f800000u ? 0x7e00u : y;
    tn_half h;
    h.bits = (uint16_t)((u >> 16 & 0x8000u) | y);
    return h;
}

#endif

TN_FN float tn_rounded_half(float x) { return tn_half_to_f32(tn_f32_to_half(x)); }

#endif
