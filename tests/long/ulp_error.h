/* ulp_error.h - how far an f32 is from an exact value, for the tests of the prelude.
 *
 * Read first: tn_ulp_error. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float tn_test_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t tn_test_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline uint64_t tn_test_bits64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double tn_test_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Error of y in ulp of f32 at `exact`, or at 2^least where that is larger; least is at least -126, as the
 * smallest denormal is the ulp of all that is smaller. Infinity where y is wrong in
 * kind: NaN, infinity, or its sign, be it only that of a zero. An overflow is compared as if it were 2^128.
 * Selects only, so that a loop over it vectorises. */
static inline double tn_ulp_error(float y, double exact, int least)
{
    const uint64_t inf64 = 0x7ff0000000000000u, sign64 = 0x8000000000000000u;
    uint64_t bits = tn_test_bits64(exact), size = bits & ~sign64, e = size >> 52;
    uint32_t got = tn_test_bits(y), nearest = tn_test_bits((float)exact);
    uint32_t got_size = got & 0x7fffffffu, nearest_size = nearest & 0x7fffffffu;
    const uint64_t lowest = (uint64_t)(1023 + least);
    e = e < lowest ? lowest : e;
    double per_ulp = tn_test_double((2046 + 23 - e) << 52);
    double value = got_size == 0x7f800000u
                       ? tn_test_double((uint64_t)(got >> 31) << 63 | (uint64_t)(1023 + 128) << 52)
                       : (double)y;
    double error = fabs(value - exact) * per_ulp;
    int infinite = size == inf64 || (nearest_size == 0x7f800000u && got_size == 0x7f800000u);
    error = infinite ? (got == nearest ? 0 : (double)INFINITY) : error;
    error = (got ^ nearest) >> 31 ? (double)INFINITY : error;
    int exact_nan = size > inf64, got_nan = got_size > 0x7f800000u;
    return exact_nan | got_nan ? (exact_nan & got_nan ? 0 : (double)INFINITY) : error;
}

static inline double tn_exact_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static inline double tn_exact_rsqrt(double x) { return 1 / sqrt(x); }

static inline double tn_exact_ndtr(double x) { return 0.5 * erfc(x * -0.70710678118654752); }

enum { TN_RELATIVE = -126, TN_OF_HALF = -1 };

/* Every f32 function of one argument with its reference and what its error is in proportion to: the value, or
 * at least 1/2; exact ones from floor on. */
#define TN_EACH_FUNCTION(X)                                                                                  \
    X(exp, exp, TN_RELATIVE)                                                                                 \
    X(expm1, expm1, TN_RELATIVE)                                                                             \
    X(log, log, TN_RELATIVE)                                                                                 \
    X(log1p, log1p, TN_RELATIVE)                                                                             \
    X(sin, sin, TN_RELATIVE)                                                                                 \
    X(cos, cos, TN_RELATIVE)                                                                                 \
    X(atan, atan, TN_RELATIVE)                                                                               \
    X(tanh, tanh, TN_RELATIVE)                                                                               \
    X(erf, erf, TN_RELATIVE)                                                                                 \
    X(ndtr, tn_exact_ndtr, TN_OF_HALF)                                                                       \
    X(sigmoid, tn_exact_sigmoid, TN_RELATIVE)                                                                \
    X(sqrt, sqrt, TN_RELATIVE)                                                                               \
    X(rsqrt, tn_exact_rsqrt, TN_RELATIVE)                                                                    \
    X(floor, floor, TN_RELATIVE)                                                                             \
    X(ceil, ceil, TN_RELATIVE)                                                                               \
    X(trunc, trunc, TN_RELATIVE)                                                                             \
    X(round, rint, TN_RELATIVE)
