/* exact.h - what the prelude's functions are built from, one text for C and for CUDA C: the bits of an f32,
 * functions that round at most once, and the platform's functions of f64.
 *
 * It stands in front of math.h at the top of every generated kernel, and math.h includes it elsewhere. It
 * includes nothing under NVRTC, where it comes after abi.h, and only what a C compiler ships elsewhere.
 *
 * Read first: tn_bits_f32, then TN_FLOATING.
 */
#ifndef TN_PRELUDE_EXACT_H
#define TN_PRELUDE_EXACT_H

#if !defined(__CUDACC_RTC__) /* which has bool, and the types of abi.h in front of this */
#include <stdbool.h>
#include <stdint.h>
#endif

#ifndef TN_FN
#if defined(__CUDACC__)
#define TN_FN static __device__ __forceinline__ __attribute__((unused))
#elif defined(__GNUC__) && defined(__OPTIMIZE__)
#define TN_FN static inline __attribute__((always_inline, unused))
#else /* without optimisation a call takes less time to compile than a copy */
#define TN_FN static inline
#endif
#endif

/* A function of one argument, x, or of two, a and b, all of type T: its result in one expression. */
#define TN_FN1(R, name, T, result)                                                                           \
    TN_FN R name(T x) { return result; }
#define TN_FN2(name, T, result)                                                                              \
    TN_FN T name(T a, T b) { return result; }

/* ------------------------------------------------------------------------------------- bits and names */

#if defined(__CUDACC__)
#define TN_M32(name) name##f /* the device library's accurate f32 function */
#define TN_M64(name) name
TN_FN1(uint32_t, tn_bits_f32, float, __float_as_uint(x))
TN_FN float tn_from_bits_f32(uint32_t u) { return __uint_as_float(u); }
#else
#define TN_M32(name) __builtin_##name##f
#define TN_M64(name) __builtin_##name
typedef union tn_pun32 {
    float f;
    uint32_t u;
} tn_pun32;
TN_FN uint32_t tn_bits_f32(float x)
{
    tn_pun32 p;
    p.f = x;
    return p.u;
}
TN_FN float tn_from_bits_f32(uint32_t u)
{
    tn_pun32 p;
    p.u = u;
    return p.f;
}
#endif

/* a b + c with one rounding, or with two on a processor that knows no such instruction. Nothing is contracted
 * so where it is not written (-ffp-contract=off, --fmad=false): a value that two loops or two kernels make
 * each for itself has the same bits in both, and a minimum equals one of the values it was taken of. */
#if defined(__CUDACC__) || defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
#define TN_ONE_ROUNDING(M, a, b, c) M(fma)(a, b, c)
#else
#define TN_ONE_ROUNDING(M, a, b, c) ((a) * (b) + (c))
#endif
TN_FN float tn_fma_f32(float a, float b, float c) { return TN_ONE_ROUNDING(TN_M32, a, b, c); }
TN_FN double tn_fma_f64(double a, double b, double c) { return TN_ONE_ROUNDING(TN_M64, a, b, c); }

#define TN_INF tn_from_bits_f32(0x7f800000u)
#define TN_NAN tn_from_bits_f32(0x7fc00000u)

/* -------------------------------------------------------------------- exact functions, comparisons, signs */

/* a and b are evaluated once: these are functions. max and min propagate NaN from either side, sign maps
 * it and both zeros to +0 (all as PyTorch). */
#define TN_ORDERED(S, T)                                                                                     \
    TN_FN2(tn_max_##S, T, (T)(a > b ? a : b))                                                                \
    TN_FN2(tn_min_##S, T, (T)(a < b ? a : b))
#define TN_SIGNED(S, T)                                                                                      \
    TN_FN1(T, tn_abs_##S, T, x < 0 ? (T)(0 - x) : x)                                                         \
    TN_FN1(T, tn_sign_##S, T, (T)((x > 0) - (x < 0)))
#define TN_UNSIGNED(S, T)                                                                                    \
    TN_FN1(T, tn_abs_##S, T, x)                                                                              \
    TN_FN1(T, tn_sign_##S, T, (T)(x != 0))
/* round: half to even */
#define TN_FLOATING(S, T, M)                                                                                 \
    TN_FN T tn_max_##S(T a, T b) /* with an accumulator as `a`, whether b is a NaN is off the long chain */  \
    {                                                                                                        \
        T larger = b > a ? b : a;                                                                            \
        return b != b ? b : larger;                                                                          \
    }                                                                                                        \
    TN_FN T tn_min_##S(T a, T b)                                                                             \
    {                                                                                                        \
        T smaller = b < a ? b : a;                                                                           \
        return b != b ? b : smaller;                                                                         \
    }                                                                                                        \
    TN_FN1(T, tn_abs_##S, T, M(fabs)(x))                                                                     \
    TN_FN1(T, tn_sign_##S, T, (T)((x > 0) - (x < 0)))                                                        \
    TN_FN1(bool, tn_isnan_##S, T, x != x)                                                                    \
    TN_FN1(bool, tn_isfinite_##S, T, x - x == 0)                                                             \
    TN_FN1(T, tn_floor_##S, T, M(floor)(x))                                                                  \
    TN_FN1(T, tn_ceil_##S, T, M(ceil)(x))                                                                    \
    TN_FN1(T, tn_trunc_##S, T, M(trunc)(x))                                                                  \
    TN_FN1(T, tn_round_##S, T, M(rint)(x))                                                                   \
    TN_FN1(T, tn_sqrt_##S, T, M(sqrt)(x))                                                                    \
    TN_FN1(T, tn_rsqrt_##S, T, 1 / M(sqrt)(x))

TN_ORDERED(i32, int32_t)
TN_ORDERED(i64, int64_t)
TN_ORDERED(u8, uint8_t)
TN_ORDERED(bool, bool)
TN_SIGNED(i32, int32_t)
TN_SIGNED(i64, int64_t)
TN_UNSIGNED(u8, uint8_t)
TN_UNSIGNED(bool, bool)
TN_FLOATING(f32, float, TN_M32)
TN_FLOATING(f64, double, TN_M64)

/* ---------------------------------------------------------------------------------- f64, the platform's */

#define TN_PLATFORM(S, T, M)                                                                                 \
    TN_FN1(T, tn_exp_##S, T, M(exp)(x))                                                                      \
    TN_FN1(T, tn_expm1_##S, T, M(expm1)(x))                                                                  \
    TN_FN1(T, tn_log_##S, T, M(log)(x))                                                                      \
    TN_FN1(T, tn_log1p_##S, T, M(log1p)(x))                                                                  \
    TN_FN1(T, tn_sin_##S, T, M(sin)(x))                                                                      \
    TN_FN1(T, tn_cos_##S, T, M(cos)(x))                                                                      \
    TN_FN1(T, tn_atan_##S, T, M(atan)(x))                                                                    \
    TN_FN1(T, tn_tanh_##S, T, M(tanh)(x))
TN_PLATFORM(f64, double, TN_M64)
TN_FN1(double, tn_erf_f64, double, TN_M64(erf)(x))
TN_FN1(double, tn_ndtr_f64, double, 0.5 * TN_M64(erfc)(x * -0.70710678118654752))
TN_FN2(tn_pow_f64, double, TN_M64(pow)(a, b))
TN_FN double tn_sigmoid_f64(double x)
{
    double z = TN_M64(exp)(-TN_M64(fabs)(x)); /* never overflows; see tn_sigmoid_f32 */
    return (x < 0 ? z : 1) / (1 + z);
}

#endif
