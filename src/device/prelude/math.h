/* math.h - elementary functions for generated kernels, one text for C and for CUDA C.
 *
 * This text stands at the top of every generated kernel, behind exact.h, and is included by library C files
 * that expand src/core/ops.def.
 *
 * Every f32 function is branch-free straight-line code (selects only), so that a loop over it vectorises
 * with gcc and clang; none relies on -ffast-math, on contractions other than the tn_fma it names, or on
 * flush-to-zero. Errors are at most 2 ulp over all 2^32 arguments (tests/long/ulp.c walks them), of erf 2.11
 * on a processor that cannot multiply and add in one rounding; of ndtr ulp are those of 1/2. NaN,
 * infinities, signed zeros and denormals are as in C's libm. f64 functions are the platform's own.
 *
 * Names: tn_exp_f32, tn_exp_f64, ..., and the generic tn_exp(x), which chooses by the type of its first
 * argument: with _Generic in C, by overloading in C++. In C the generic names are function-like macros, so
 * a file that also needs the public functions of the same name includes <tensor.h> before this.
 *
 * Coefficients: Remez exchange in 40-digit arithmetic on the form given at each polynomial, weighted so
 * that the minimised quantity is the function's relative error; then rounded to f32 one by one from the
 * lowest power, refitting the remaining ones each time. The relative error reached is noted beside each.
 *
 * Read first: tn_exp_f32, then tn_turns (the argument reduction of sin and cos).
 */
#ifndef TN_PRELUDE_MATH_H
#define TN_PRELUDE_MATH_H

#if !defined(__CUDACC_RTC__) && !defined(TN_PRELUDE_EXACT_H) /* a kernel has it in front of this */
#include "exact.h"
#endif

/* ---------------------------------------------------------------------------------- exp and its relatives */

/* x = n*ln2 + r, n the integer nearest to t. Adding 1.5*2^23 to t leaves n in the low bits of the sum, and
 * n*TN_LN2_HI is exact for every n used (16 bits by 8). For a NaN n is meaningless and r is NaN.
 *
 * Callers pass t = x/ln2 -+ 0.14: r then lies in [-0.25, 0.4437] or its mirror image. An error in r weighs
 * most where e^r < 1, or for e^r - 1 where n first leaves 0, and so both stay within about 0.75 and 1 ulp. */
#define TN_SHIFT      0x1.8p23f
#define TN_SHIFT_BITS 0x4b400000
#define TN_LOG2E      0x1.715476p0f
#define TN_LN2_HI     0x1.62e4p-1f
#define TN_LN2_LO     0x1.7f7d1cp-20f

TN_FN int32_t tn_exp_split(float x, float t, float *r)
{
    t = t + TN_SHIFT;
    float n = t - TN_SHIFT;
    *r = tn_fma_f32(-n, TN_LN2_LO, tn_fma_f32(-n, TN_LN2_HI, x));
    return (int32_t)(tn_bits_f32(t) - tn_bits_f32(TN_SHIFT));
}

TN_FN float tn_pow2i(int32_t n) /* 2^n, -126 <= n <= 127 */
{
    return tn_from_bits_f32((uint32_t)(n + 127) << 23);
}

/* e^r for -0.25 <= r <= 0.4437, as 1 + r + r^2 Q(r), 2^-28.6. */
TN_FN float tn_exp_poly(float r)
{
    float q = 0x1.8e2e6cp-10f;
    q = tn_fma_f32(q, r, 0x1.11540ap-7f);
    q = tn_fma_f32(q, r, 0x1.553a82p-5f);
    q = tn_fma_f32(q, r, 0x1.55556cp-3f);
    q = tn_fma_f32(q, r, 0x1.00000ap-1f);
    return 1 + tn_fma_f32(r * r, q, r);
}

/* e^r - 1 for |r| <= 0.3468, as r + r^2 Q(r), 2^-28.2 of e^r: where r is that of the nearest n, so for exp
 * and sigmoid, which ask for nothing better. Here and below two short chains, not a long one: a processor
 * sees only a few iterations of a vector loop at once. */
TN_FN float tn_exp_less_1(float r)
{
    float r2 = r * r, q = tn_fma_f32(r2, 0x1.6ab8dap-10f, tn_fma_f32(r, 0x1.123d70p-7f, 0x1.55585ap-5f));
    q = tn_fma_f32(r2, q, tn_fma_f32(r, 0x1.55548cp-3f, 0x1.fffffcp-2f));
    return tn_fma_f32(r2, q, r);
}

/* e^r * 2^n, -252 <= n <= 254. The power is applied in two halves, the first of them exact, so that overflow
 * and denormal results come out rounded once. */
TN_FN float tn_exp_join(float r, int32_t n)
{
    int32_t half = n >> 1;
    return tn_exp_poly(r) * tn_pow2i(half) * tn_pow2i(n - half);
}

/* e^r - 1 for |r| <= 0.4437, as r + r^2 Q(r), 2^-26. */
TN_FN float tn_expm1_poly(float r)
{
    float r2 = r * r, q = tn_fma_f32(r, 0x1.3c71bep-13f, 0x1.6dde80p-10f);
    q = tn_fma_f32(r2, q, tn_fma_f32(r, 0x1.117fcep-7f, 0x1.555478p-5f));
    q = tn_fma_f32(r2, q, tn_fma_f32(r, 0x1.5554e8p-3f, 0.5f));
    return tn_fma_f32(r2, q, r);
}

/* e^x - 1 for -87 <= x <= 87, but for the sign of a zero; t as for tn_exp_split. */
TN_FN float tn_expm1_core(float x, float t)
{
    float r, s = tn_pow2i(tn_exp_split(x, t, &r));
    return tn_fma_f32(s, tn_expm1_poly(r), s - 1);
}

TN_FN float tn_copysign_f32(float magnitude, float sign)
{
    return tn_from_bits_f32((tn_bits_f32(magnitude) & 0x7fffffffu) | (tn_bits_f32(sign) & 0x80000000u));
}

/* For |r| <= pi/4 and z = r^2: sin r = r + r^3 S(r^2), 2^-27.9; cos r = 1 - r^2/2 + r^4 C(r^2), 2^-33. */
TN_FN float tn_sin_poly(float r, float z)
{
    float s = -0x1.9951eap-13f;
    s = tn_fma_f32(s, z, 0x1.110774p-7f);
    s = tn_fma_f32(s, z, -0x1.555546p-3f);
    return tn_fma_f32(r * z, s, r);
}

TN_FN float tn_cos_poly(float z)
{
    float c = 0x1.99e0eep-16f;
    c = tn_fma_f32(c, z, -0x1.6c0c1ap-10f);
    c = tn_fma_f32(c, z, 0x1.55554ap-5f);
    return 1 + tn_fma_f32(z * z, c, -0.5f * z);
}

/* m = 2^e (1 + f) with f in [sqrt(1/2) - 1, sqrt(2) - 1]: subtracting the bits of sqrt(1/2) carries into the
 * exponent field exactly where the mantissa passes sqrt(2). For normal m > 0. */
#define TN_SQRT_HALF 0x3f3504f3u

TN_FN int32_t tn_log_split(uint32_t bits, float *f)
{
    uint32_t i = bits - TN_SQRT_HALF;
    *f = tn_from_bits_f32((i & 0x7fffffu) + TN_SQRT_HALF) - 1;
    return (int32_t)i >> 23;
}

/* |x|, at most the float with bits `end`; a NaN stays one. It is clamped as an integer, for which compilers
 * have a minimum: `wrap` takes a NaN past the largest integer, to the smallest, which the clamp leaves alone.
 */
TN_FN float tn_erf_clamp(float x, uint32_t end)
{
    const uint32_t wrap = 0x007fffffu;
    uint32_t k = (tn_bits_f32(x) & 0x7fffffffu) + wrap;
    return tn_from_bits_f32((uint32_t)tn_min_i32((int32_t)k, (int32_t)(end + wrap)) - wrap);
}

/* erf(a) = 1 - (1 - s/8)^8 with s = a + a R(a) on [0, 3.93], where 1 - erf < 2^-25; R of degree 7, weighted
 * by erf's error, 2^-27. What falls as fast as e^-(a^2) does so slowly under an eighth root, and squarings
 * cost less than an exponential. With d = 2 - 2 (1 - s/8)^4 = s - s^2 c(s), erf = d - d^2/4 errs little near
 * 1; near 0 one rounding less is what d = a - (s^2 c(s) - a R(a)) is for. */
TN_FN float tn_erf_f32(float x)
{
    uint32_t bits = tn_bits_f32(x);
    float a = tn_erf_clamp(x, 0x407b851fu), a2 = a * a; /* 3.93 */
    float r = tn_fma_f32(a, 0x1.41c602p-15f, -0x1.7488dap-11f);
    r = tn_fma_f32(a2, r, tn_fma_f32(a, 0x1.0cc628p-8f, -0x1.866afap-10f));
    r = tn_fma_f32(a2, r, tn_fma_f32(a, -0x1.afda56p-5f, 0x1.11d4a4p-6f));
    r = tn_fma_f32(a2, r, tn_fma_f32(a, 0x1.1d34b6p-1f, 0x1.06eba8p-3f));
    float ar = a * r, s = tn_fma_f32(a, r, a),
          c = tn_fma_f32(tn_fma_f32(s, 0x1p-11f, -0x1p-6f), s, 0x1.8p-3f);
    float d = a - tn_fma_f32(s * s, c, -ar), y = tn_fma_f32(-0.25f * d, d, d); /* y is not negative */
    return tn_from_bits_f32(tn_bits_f32(y) | (bits & 0x80000000u));
}

/* The normal distribution up to x, 1/2 + erf(x / sqrt 2) / 2. Its error counts beside 1/2, so that erf here
 * is 1 - (1 + w)^8 with w = a R(a) on [0, 5.56], R of degree 7, 2^-27.7, squared as (1 + w)^2 - 1 = w (w +
 * 2). From 5.56 on the eighth power is lost beside 1: 0 and 1 are met exactly. R is a weighted least-squares
 * fit, its weights raised where the error is largest until that is level, rounded from the highest power. */
TN_FN float tn_ndtr_f32(float x)
{
    float a = tn_erf_clamp(x, 0x40b1eb85u), a2 = a * a; /* 5.56 */
    float r = tn_fma_f32(a, -0x1.4a486cp-22f, 0x1.0ab31ap-17f);
    r = tn_fma_f32(a2, r, tn_fma_f32(a, -0x1.0ebf0cp-14f, 0x1.1d83ep-15f));
    r = tn_fma_f32(a2, r, tn_fma_f32(a, 0x1.af7b56p-10f, -0x1.82c84cp-11f));
    r = tn_fma_f32(a2, r, tn_fma_f32(a, -0x1.1d353ep-5f, -0x1.98844ep-4f));
    float w = a * r, v = w * (w + 2), u = v * (v + 2), y = u * (u + 2); /* -erf(a / sqrt 2) */
    return tn_fma_f32(-tn_copysign_f32(0.5f, x), y, 0.5f);
}

#if defined(__CUDACC__)

/* The device library's functions with an error of at most 2 ulp by its manual, all ranges included. */
TN_PLATFORM(f32, float, TN_M32)

#else

/* The low bits of k are n + 254. 2^n is applied in two factors, a = 2^(n>>1) and b, the first exactly, so
 * that denormal results are rounded once. From n = 129 on all is infinite, by a power or by u; a minimum of
 * integers and a choice at the very end are what compilers make least code of. */
TN_FN float tn_exp_f32(float x)
{
    float t = tn_fma_f32(x, TN_LOG2E, TN_SHIFT + 254);
    int32_t k = tn_min_i32((int32_t)tn_bits_f32(t), TN_SHIFT_BITS + 254 + 129);
    float n = tn_from_bits_f32((uint32_t)k) - (TN_SHIFT + 254);
    float u = tn_exp_less_1(tn_fma_f32(-n, TN_LN2_LO, tn_fma_f32(-n, TN_LN2_HI, x)));
    uint32_t half = (uint32_t)k << 22 & 0x7f800000u;
    float a = tn_from_bits_f32(half), b = tn_from_bits_f32(((uint32_t)k << 23) - half);
    float y = tn_fma_f32(a, u, a) * b;
    return x < -104 ? 0 : y;
}

/* tn_exp_f32 to the bit where e^x is a normal number that is not next to overflow: TN_EXP_LEAST <= x <= 88.
 * The power of two goes into the exponent at once. */
#define TN_EXP_LEAST (-87.0f)

TN_FN float tn_exp_low_f32(float x)
{
    float t = tn_fma_f32(x, TN_LOG2E, TN_SHIFT), n = t - TN_SHIFT;
    float u = tn_exp_less_1(tn_fma_f32(-n, TN_LN2_LO, tn_fma_f32(-n, TN_LN2_HI, x)));
    return tn_from_bits_f32(tn_bits_f32(1 + u) + (tn_bits_f32(t) << 23));
}

TN_FN float tn_expm1_f32(float x)
{
    float a = x > 89.0f ? 89.0f : x, r;
    a = a < -18.0f ? -18.0f : a;
    int32_t n = tn_exp_split(a, tn_fma_f32(a, TN_LOG2E, -tn_copysign_f32(0.14f, a)), &r);
    float s = tn_pow2i(n - 1); /* half of 2^n, which may be 2^128 */
    float y = 2 * tn_fma_f32(s, tn_expm1_poly(r), s - 0.5f);
    return tn_copysign_f32(y, x); /* r loses the sign of -0 */
}

/* q = t / (t + 2) with t = e^(2|x|) - 1: no cancellation anywhere. From |x| = 10 on it rounds to 1. Rounding
 * t + 2 may cost one ulp of q; for small t, where that and the error of t weigh most, t/2 - q t/2 is the same
 * and hides it. */
TN_FN float tn_tanh_f32(float x)
{
    float a = tn_abs_f32(x);
    a = a > 10.0f ? 10.0f : a;
    float t = tn_expm1_core(2 * a, tn_fma_f32(a, 2 * TN_LOG2E, -0.14f));
    float q = t / (t + 2), y = t < 1 ? tn_fma_f32(-0.5f * t, q, 0.5f * t) : q;
    return tn_copysign_f32(y, x);
}

/* On [0, 1] atan u = u + u^3 P(u^2), P of degree 9, 2^-31.1; beyond, pi/2 - atan(1/u), which begins with
 * pi/2's high part and adds the low one where the rest is small. Fitted as ndtr is. */
TN_FN float tn_atan_f32(float x)
{
    float a = tn_abs_f32(x);
    bool far = a > 1;
    float u = (far ? 1.0f : a) / (far ? a : 1.0f), z = u * u, z2 = z * z;
    float odd = tn_fma_f32(z2, 0x1.29687ep-10f, 0x1.75304p-6f),
          even = tn_fma_f32(z2, -0x1.e6a0ecp-8f, -0x1.7080bap-5f);
    odd = tn_fma_f32(z2, odd, 0x1.150ap-4f);
    even = tn_fma_f32(z2, even, -0x1.6953bcp-4f);
    odd = tn_fma_f32(z2, odd, 0x1.c51170p-4f);
    even = tn_fma_f32(z2, even, -0x1.24762p-3f);
    odd = tn_fma_f32(z2, odd, 0x1.99981cp-3f);
    even = tn_fma_f32(z2, even, -0x1.555552p-2f);
    float s = u * z * tn_fma_f32(z, odd, even);
    float y = far ? 0x1.921fb6p0f - (u + (s + 0x1.777a5cp-25f)) : u + s;
    return tn_copysign_f32(y, x);
}

/* ------------------------------------------------------------------------------------------ logarithms */

/* e ln2 + log(1 + f), log(1 + f) = f - f^2/2 + f^3 R(f), 2^-27.2. */
TN_FN float tn_log_join(float f, float e)
{
    float f2 = f * f, odd = -0x1.3901b8p-4f, even = 0x1.057f2ap-3f; /* two short chains, not a long one */
    odd = tn_fma_f32(odd, f2, -0x1.0d8656p-3f);
    even = tn_fma_f32(even, f2, 0x1.22d48ep-3f);
    odd = tn_fma_f32(odd, f2, -0x1.547184p-3f);
    even = tn_fma_f32(even, f2, 0x1.99a03cp-3f);
    odd = tn_fma_f32(odd, f2, -0x1.00022ap-2f);
    even = tn_fma_f32(even, f2, 0x1.555554p-2f);
    float q = tn_fma_f32(odd, f, even), w = tn_fma_f32(f2, tn_fma_f32(q, f, -0.5f), e * TN_LN2_LO);
    return tn_fma_f32(e, TN_LN2_HI, f + w);
}

/* The logarithm of u where that is no finite number above 0; x is what infinity and NaN come back as. */
TN_FN float tn_log_special(float x, float u)
{
    float y = u == 0 ? -TN_INF : x;
    return u < 0 ? TN_NAN : y;
}

TN_FN float tn_log_f32(float x)
{
    bool small = x < 0x1p-126f;
    float f;
    int32_t e = tn_log_split(tn_bits_f32(x * (small ? 0x1p23f : 1.0f)), &f);
    float y = tn_log_join(f, (float)e - (small ? 23.0f : 0.0f)), z = tn_log_special(x, x);
    bool ordinary = (x > 0) & (x < TN_INF);
    return ordinary ? y : z;
}

/* log(1 + x) without rounding 1 + x away: e is that of the rounded sum, but f = x 2^-e + (2^-e - 1), which
 * is x itself for e = 0 and exact or rounded once, well away from zero, for the others. */
TN_FN float tn_log1p_f32(float x)
{
    float u = 1 + x;
    int32_t e = (int32_t)(tn_bits_f32(u) - TN_SQRT_HALF) >> 23;
    int32_t inv = 127 - e; /* biased exponent of 2^-e; from e = 127 on, 2^-e counts for nothing */
    float scale = tn_from_bits_f32((uint32_t)(inv < 0 ? 0 : inv) << 23);
    float f = tn_from_bits_f32(tn_bits_f32(x) - ((uint32_t)e << 23)) + (scale - 1);
    f = e == 0 ? x : f;
    float y = tn_log_join(f, (float)e), z = tn_log_special(x, u);
    bool ordinary = (u > 0) & (x < TN_INF);
    y = ordinary ? y : z;
    return x == 0 ? x : y;
}

/* ---------------------------------------------------------------------------------------- sine, cosine */

/* |x| / 2pi modulo 1, as `quarter` (0..3 in its low bits) and the angle left over, in [-pi/4, pi/4].
 *
 * Done in f64, where an f32 times a piece of 29 bits is exact. 1/2pi is cut into such pieces; the four that
 * matter depend on the size of x: higher ones give whole turns, lower ones less than 2^-59. The first three
 * products are reduced modulo 1 turn exactly, and subtracting whole quarters before adding the smaller
 * products keeps every later sum either exact or free of cancellation. Good for every finite x. */
TN_FN int32_t tn_turns(float ax, float *angle)
{
    double x = (double)ax;
    bool huge = x >= 0x1p81; /* the second piece ends in two zero bits: its products are whole from here */
    double c1 = huge ? 0x1.4fe13abp-61 : 0x1.45f306dp-3;
    double c2 = huge ? 0x1.d1f534dp-90 : 0x1.9391054p-32;
    double c3 = huge ? 0x1.b81b6c5p-119 : 0x1.4fe13abp-61;
    double c4 = huge ? 0x1.5993c439041fep-150 : 0x1.d1f534ddc0db6p-90; /* all the bits an f64 holds */
    double p1 = x * c1, p2 = x * c2, p3 = x * c3, p4 = x * c4;
    p1 = p1 - TN_M64(rint)(p1);
    p2 = p2 - TN_M64(rint)(p2);
    p3 = p3 - TN_M64(rint)(p3);
    double q = TN_M64(rint)(4 * (p1 + p2 + p3));
    *angle = (float)((((tn_fma_f64(-0.25, q, p1) + p2) + p3) + p4) * 0x1.921fb54442d18p+2);
    return (int32_t)(tn_bits_f32((float)q + TN_SHIFT) - tn_bits_f32(TN_SHIFT));
}

TN_FN float tn_sin_of(float x, int32_t quarter, float r)
{
    uint32_t q = (uint32_t)quarter;
    float z = r * r, y = q & 1 ? tn_cos_poly(z) : tn_sin_poly(r, z);
    return tn_from_bits_f32(tn_bits_f32(y) ^ (q & 2) << 30 ^ (tn_bits_f32(x) & 0x80000000u));
}

TN_FN float tn_cos_of(int32_t quarter, float r)
{
    uint32_t q = (uint32_t)quarter;
    float z = r * r, y = q & 1 ? tn_sin_poly(r, z) : tn_cos_poly(z);
    return tn_from_bits_f32(tn_bits_f32(y) ^ ((q + 1) & 2) << 30);
}

TN_FN float tn_sin_f32(float x)
{
    float r;
    int32_t q = tn_turns(tn_abs_f32(x), &r);
    return tn_sin_of(x, q, r);
}

TN_FN float tn_cos_f32(float x)
{
    float r;
    int32_t q = tn_turns(tn_abs_f32(x), &r);
    return tn_cos_of(q, r);
}

/* For |x| of at most TN_NEAR, whole quarters of a turn can be taken off in f32: 255 of them at most, times
 * two pieces of pi/2 of 16 bits and a last one; the first difference is exact. Loops that know their
 * arguments to be such call these. */
#define TN_NEAR      400.0f

TN_FN int32_t tn_turns_near(float ax, float *angle)
{
    float t = tn_fma_f32(ax, 0x1.45f306p-1f, TN_SHIFT), n = t - TN_SHIFT;
    float whole = tn_fma_f32(-n, 0x1.921ep0f, ax), part = tn_fma_f32(-n, 0x1.b544p-16f, whole);
    float lost = tn_fma_f32(-n, 0x1.b544p-16f, whole - part); /* what rounding takes from part */
    *angle = part + tn_fma_f32(-n, 0x1.0b4612p-34f, lost);
    return (int32_t)tn_bits_f32(t);
}

TN_FN float tn_sin_near_f32(float x)
{
    float r;
    int32_t q = tn_turns_near(tn_abs_f32(x), &r);
    return tn_sin_of(x, q, r);
}

TN_FN float tn_cos_near_f32(float x)
{
    float r;
    int32_t q = tn_turns_near(tn_abs_f32(x), &r);
    return tn_cos_of(q, r);
}

#endif /* __CUDACC__ */

/* c / d where c is a power of two, far from the ends of f32, and d positive, infinite or NaN. A GPU divides
 * in many instructions and a branch; its approximate reciprocal, of which one step of Newton's leaves at most
 * half an ulp, takes four, and a choice where it is 0: infinity times that would be NaN. */
#if defined(__CUDA_ARCH__) || defined(TN_CUSIM)
TN_FN float tn_power_over(float c, float d)
{
    float r;
#if defined(TN_CUSIM)
    r = 1 / d;
    if (r < 0x1p-126f) r = 0; /* as .ftz */
#else
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
#endif
    return r == 0 ? 0.0f : c * tn_fma_f32(tn_fma_f32(-d, r, 1), r, r);
}
#else
TN_FN float tn_power_over(float c, float d) { return c / d; }
#endif

/* 1 / (1 + e^-x) = c / (c + s (1 + u)) with c = 2^-64, e^-x = 2^n (1 + u) and s = 2^(n-64), which leaves room
 * for every n: a denormal result is rounded once, by the division. Where s and c are too far apart for their
 * sum, `lost` is what it drops of c. */
TN_FN float tn_sigmoid_f32(float x)
{
    float t = tn_fma_f32(x, -TN_LOG2E, TN_SHIFT + 63); /* the low bits of k are those of s */
    int32_t k = tn_min_i32((int32_t)tn_bits_f32(t), TN_SHIFT_BITS + 63 + 152);
    float n = tn_from_bits_f32((uint32_t)k) - (TN_SHIFT + 63);
    float u = tn_exp_less_1(tn_fma_f32(-n, TN_LN2_LO, tn_fma_f32(-n, TN_LN2_HI, -x)));
    float c = 0x1p-64f, s = tn_from_bits_f32((uint32_t)k << 23), sum = s + c, lost = c - (sum - s);
    float w = tn_power_over(c, tn_fma_f32(s, u, lost) + sum);
    return x > 30 ? 1 : w;
}

/* ------------------------------------------------------------------------------------------------ power */

/* |x|^y = 2^(y log2|x|). The product may be 150, so log2 needs 2^-35 of relative accuracy: f64 inside.
 * log2(1 + f) = f P(f), 2^-35.8. */
TN_FN float tn_pow_f32(float x, float y)
{
    float ax = tn_abs_f32(x);
    bool small = ax < 0x1p-126f;
    float f32;
    int32_t e = tn_log_split(tn_bits_f32(ax * (small ? 0x1p23f : 1.0f)), &f32) - (small ? 23 : 0);
    double f = (double)f32;
    double f2 = f * f; /* two short chains of operations, not a long one */
    double even = 0x1.3ce76e2c89916p-4, odd = -0x1.248955058e279p-3;
    even = tn_fma_f64(even, f2, 0x1.287280d6099fcp-3);
    odd = tn_fma_f64(odd, f2, -0x1.252f37c2f1540p-3);
    even = tn_fma_f64(even, f2, 0x1.4528fde61a56ep-3);
    odd = tn_fma_f64(odd, f2, -0x1.71416ecfbfbf2p-3);
    even = tn_fma_f64(even, f2, 0x1.a63f463ab695ap-3);
    odd = tn_fma_f64(odd, f2, -0x1.ec72b5bea6e13p-3);
    even = tn_fma_f64(even, f2, 0x1.277651f576f6dp-2);
    odd = tn_fma_f64(odd, f2, -0x1.715470972a85bp-2);
    even = tn_fma_f64(even, f2, 0x1.ec709ebba5c81p-2);
    odd = tn_fma_f64(odd, f2, -0x1.715476565d86ap-1);
    even = tn_fma_f64(even, f2, 0x1.71547652a1e7bp+0);
    double p = tn_fma_f64(odd, f, even);
    double l = tn_fma_f64(f, p, (double)e);
    l = ax < TN_INF ? l : (double)ax; /* infinity or NaN */
    l = ax == 0 ? (double)-TN_INF : l;

    /* pow(x, 0) = pow(+-1, +-inf) = pow(1, NaN) = 1; pow(-1, NaN) is caught below as not an integer. */
    double t = ax == 1 || y == 0 ? 0.0 : (double)y * l;
    t = t > 200 ? 200 : t;
    t = t < -200 ? -200 : t;
    double n = (t - 0.14 + 0x1.8p52) - 0x1.8p52;
    float r = (float)((t - n) * 0x1.62e42fefa39efp-1);
    float z = tn_exp_join(r, (int32_t)(tn_bits_f32((float)n + TN_SHIFT) - tn_bits_f32(TN_SHIFT)));

    /* Of a negative base: NaN unless y is an integer (or x infinite), the sign of x if y is odd. */
    float half = 0.5f * y;
    bool whole = TN_M32(rint)(y) == y, flip = whole && TN_M32(rint)(half) != half;
    z = flip ? tn_from_bits_f32(tn_bits_f32(z) | (tn_bits_f32(x) & 0x80000000u)) : z;
    return x < 0 && !whole && x > -TN_INF ? TN_NAN : z;
}

/* ------------------------------------------------------------------------------------ generic names */

#if defined(__cplusplus)

#define TN_OVERLOAD1(R, name, S, T) TN_FN1(R, tn_##name, T, tn_##name##_##S(x))
#define TN_OVERLOAD2(name, S, T)    TN_FN2(tn_##name, T, tn_##name##_##S(a, b))
#define TN_OVERLOAD_FLOATING(name)                                                                           \
    TN_OVERLOAD1(float, name, f32, float)                                                                    \
    TN_OVERLOAD1(double, name, f64, double)
#define TN_OVERLOAD_ALL(S, T)                                                                                \
    TN_OVERLOAD1(T, abs, S, T)                                                                               \
    TN_OVERLOAD1(T, sign, S, T)                                                                              \
    TN_OVERLOAD2(max, S, T)                                                                                  \
    TN_OVERLOAD2(min, S, T)

TN_OVERLOAD_FLOATING(exp)
TN_OVERLOAD_FLOATING(expm1)
TN_OVERLOAD_FLOATING(log)
TN_OVERLOAD_FLOATING(log1p)
TN_OVERLOAD_FLOATING(sqrt)
TN_OVERLOAD_FLOATING(rsqrt)
TN_OVERLOAD_FLOATING(sin)
TN_OVERLOAD_FLOATING(cos)
TN_OVERLOAD_FLOATING(atan)
TN_OVERLOAD_FLOATING(tanh)
TN_OVERLOAD_FLOATING(erf)
TN_OVERLOAD_FLOATING(ndtr)
TN_OVERLOAD_FLOATING(sigmoid)
TN_OVERLOAD_FLOATING(floor)
TN_OVERLOAD_FLOATING(ceil)
TN_OVERLOAD_FLOATING(trunc)
TN_OVERLOAD_FLOATING(round)
TN_OVERLOAD1(bool, isnan, f32, float)
TN_OVERLOAD1(bool, isnan, f64, double)
TN_OVERLOAD1(bool, isfinite, f32, float)
TN_OVERLOAD1(bool, isfinite, f64, double)
TN_OVERLOAD2(pow, f32, float)
TN_OVERLOAD2(pow, f64, double)
TN_OVERLOAD_ALL(f32, float)
TN_OVERLOAD_ALL(f64, double)
TN_OVERLOAD_ALL(i32, int32_t)
TN_OVERLOAD_ALL(i64, int64_t)
TN_OVERLOAD_ALL(u8, uint8_t)
TN_OVERLOAD_ALL(bool, bool)

#else

#define TN_GENERIC_FLOATING(name, x) _Generic((x), float : tn_##name##_f32, double : tn_##name##_f64)
#define TN_GENERIC_ALL(name, x)                                                                              \
    _Generic((x), float                                                                                      \
             : tn_##name##_f32, double                                                                       \
             : tn_##name##_f64, int32_t                                                                      \
             : tn_##name##_i32, int64_t                                                                      \
             : tn_##name##_i64, uint8_t                                                                      \
             : tn_##name##_u8, bool                                                                          \
             : tn_##name##_bool)

#define tn_exp(x)      TN_GENERIC_FLOATING(exp, x)(x)
#define tn_expm1(x)    TN_GENERIC_FLOATING(expm1, x)(x)
#define tn_log(x)      TN_GENERIC_FLOATING(log, x)(x)
#define tn_log1p(x)    TN_GENERIC_FLOATING(log1p, x)(x)
#define tn_sqrt(x)     TN_GENERIC_FLOATING(sqrt, x)(x)
#define tn_rsqrt(x)    TN_GENERIC_FLOATING(rsqrt, x)(x)
#define tn_sin(x)      TN_GENERIC_FLOATING(sin, x)(x)
#define tn_cos(x)      TN_GENERIC_FLOATING(cos, x)(x)
#define tn_atan(x)     TN_GENERIC_FLOATING(atan, x)(x)
#define tn_tanh(x)     TN_GENERIC_FLOATING(tanh, x)(x)
#define tn_erf(x)      TN_GENERIC_FLOATING(erf, x)(x)
#define tn_ndtr(x)     TN_GENERIC_FLOATING(ndtr, x)(x)
#define tn_sigmoid(x)  TN_GENERIC_FLOATING(sigmoid, x)(x)
#define tn_floor(x)    TN_GENERIC_FLOATING(floor, x)(x)
#define tn_ceil(x)     TN_GENERIC_FLOATING(ceil, x)(x)
#define tn_trunc(x)    TN_GENERIC_FLOATING(trunc, x)(x)
#define tn_round(x)    TN_GENERIC_FLOATING(round, x)(x)
#define tn_isnan(x)    TN_GENERIC_FLOATING(isnan, x)(x)
#define tn_isfinite(x) TN_GENERIC_FLOATING(isfinite, x)(x)
#define tn_pow(x, y)   TN_GENERIC_FLOATING(pow, x)(x, y)
#define tn_abs(x)      TN_GENERIC_ALL(abs, x)(x)
#define tn_sign(x)     TN_GENERIC_ALL(sign, x)(x)
#define tn_max(x, y)   TN_GENERIC_ALL(max, x)(x, y)
#define tn_min(x, y)   TN_GENERIC_ALL(min, x)(x, y)

#endif

#endif
