/* ulp_error.h - how far an f32 is from an exact value, for the tests of the prelude.
 *
 * Read first: tn_ulp_error.
 */
#ifndef TN_ULP_ERROR_H
#define TN_ULP_ERROR_H

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

/* Error of y in ulp of f32 at `exact` (never less than the smallest denormal); infinity where y is wrong in
 * kind: NaN, infinity, or its sign, be it only that of a zero. An overflow is compared as if it were 2^128.
 * Selects only, so that a loop over it vectorises. */
static inline double tn_ulp_error(float y, double exact)
{
    const uint64_t inf64 = 0x7ff0000000000000u, sign64 = 0x8000000000000000u;
    uint64_t bits = tn_test_bits64(exact), size = bits & ~sign64, e = size >> 52;
    uint32_t got = tn_test_bits(y), nearest = tn_test_bits((float)exact);
    uint32_t got_size = got & 0x7fffffffu, nearest_size = nearest & 0x7fffffffu;
    e = e < 1023 - 126 ? 1023 - 126 : e;
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

static inline double tn_exact_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}
static inline double tn_exact_rsqrt(double x)
{
    return 1 / sqrt(x);
}

/* Every f32 function of one argument with its reference; exact ones from floor on. */
#define TN_EACH_FUNCTION(X)                                                                                  \
    X(exp, exp)                                                                                              \
    X(expm1, expm1)                                                                                          \
    X(log, log)                                                                                              \
    X(log1p, log1p)                                                                                          \
    X(sin, sin)                                                                                              \
    X(cos, cos)                                                                                              \
    X(tanh, tanh)                                                                                            \
    X(erf, erf)                                                                                              \
    X(sigmoid, tn_exact_sigmoid)                                                                             \
    X(sqrt, sqrt)                                                                                            \
    X(rsqrt, tn_exact_rsqrt)                                                                                 \
    X(floor, floor)                                                                                          \
    X(ceil, ceil)                                                                                            \
    X(trunc, trunc)                                                                                          \
    X(round, rint)

#endif
