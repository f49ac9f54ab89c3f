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

/* Error of y in ulp of f32 at `exact` (never less than the smallest denormal); infinity where y is wrong in
 * kind: NaN, infinity, or its sign, be it only that of a zero. An overflow is compared as if it were 2^128.
 */
static inline double tn_ulp_error(float y, double exact)
{
    if (isnan(exact) || isnan(y)) return isnan(exact) && isnan(y) ? 0 : INFINITY;
    float nearest = (float)exact;
    if (!signbit(y) != !signbit(nearest)) return INFINITY;
    if (isinf(exact) || (isinf(nearest) && isinf(y))) return y == nearest ? 0 : INFINITY;
    double ulp = ldexp(1, (fabs(exact) < 0x1p-126 ? -126 : ilogb(exact)) - 23);
    return fabs((isinf(y) ? copysign(0x1p128, (double)y) : (double)y) - exact) / ulp;
}

static inline double tn_exact_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static inline double tn_exact_rsqrt(double x) { return 1 / sqrt(x); }

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
