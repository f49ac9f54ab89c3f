/* yard_vec.h - vectors of 16 floats (AVX-512) or 8 (AVX2), and the few functions of them the yardsticks call.
 * Accuracy is that of a careful benchmark (about 1e-6 relative), not of the library's own functions. */
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <stdbool.h>
#include <stdint.h>

#if defined(__AVX512F__)
enum { W = 16 };
typedef __m512 V;
typedef __m512i VI;
#define vload(p)           _mm512_loadu_ps(p)
#define vstore(p, x)       _mm512_storeu_ps(p, x)
#define vstream(p, x)      _mm512_stream_ps(p, x)
#define vset(x)            _mm512_set1_ps(x)
#define vzero()            _mm512_setzero_ps()
#define vfma(a, b, c)      _mm512_fmadd_ps(a, b, c)
#define vmax(a, b)         _mm512_max_ps(a, b)
#define vsqrt(x)           _mm512_sqrt_ps(x)
#define vround(x)          _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define vint(x)            _mm512_cvtps_epi32(x)
#define vscale(x, n)       _mm512_scalef_ps(x, n)
#define vadd(x)            _mm512_reduce_add_ps(x)
#define vtop(x)            _mm512_reduce_max_ps(x)
#define vpositive(x, a, b) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, vzero(), _CMP_GT_OQ), b, a)
#define vodd(i, a, b)      _mm512_mask_blend_ps(_mm512_test_epi32_mask(i, _mm512_set1_epi32(1)), b, a)
#define vflip(x, bits)                                                                                       \
    _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_slli_epi32(bits, 31)))
#define vihalf(i)   _mm512_srli_epi32(i, 1)
#define viadd(i, n) _mm512_add_epi32(i, _mm512_set1_epi32(n))
#define vsign(x)                                                                                             \
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000u)))
#define vor(a, b) _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)))
#define vabs(x)   _mm512_abs_ps(x)
/* x where the word is not below `bound`, else 0 */
#define vkeep(x, word, bound)                                                                                \
    _mm512_maskz_mov_ps(                                                                                     \
        _mm512_cmp_epu32_mask(_mm512_loadu_si512(word), _mm512_set1_epi32((int)(bound)), _MM_CMPINT_NLT), x)
#elif defined(__AVX2__) && defined(__FMA__)
enum { W = 8 };
typedef __m256 V;
typedef __m256i VI;
#define vload(p)      _mm256_loadu_ps(p)
#define vstore(p, x)  _mm256_storeu_ps(p, x)
#define vstream(p, x) _mm256_stream_ps(p, x)
#define vset(x)       _mm256_set1_ps(x)
#define vzero()       _mm256_setzero_ps()
#define vfma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vmax(a, b)    _mm256_max_ps(a, b)
#define vsqrt(x)      _mm256_sqrt_ps(x)
#define vround(x)     _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define vint(x)       _mm256_cvtps_epi32(x)
#define vscale(x, n)                                                                                         \
    ((x)*_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(vint(n), _mm256_set1_epi32(127)), 23)))
static inline float vadd(V x)
{
    float f[8];
    _mm256_storeu_ps(f, x);
    return f[0] + f[1] + f[2] + f[3] + f[4] + f[5] + f[6] + f[7];
}
static inline float vtop(V x)
{
    float f[8], m;
    _mm256_storeu_ps(f, x);
    m = f[0];
    for (int i = 1; i < 8; i++) m = f[i] > m ? f[i] : m;
    return m;
}
#define vpositive(x, a, b)    _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, vzero(), _CMP_GT_OQ))
#define vodd(i, a, b)         _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_slli_epi32(i, 31)))
#define vflip(x, bits)        _mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 31)))
#define vihalf(i)             _mm256_srli_epi32(i, 1)
#define viadd(i, n)           _mm256_add_epi32(i, _mm256_set1_epi32(n))
#define vsign(x)              _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)0x80000000u)))
#define vor(a, b)             _mm256_or_ps(a, b)
#define vabs(x)               _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_set1_epi32((int)0x80000000u)), x)
static inline V vkeep_(V x, const uint32_t *word, uint32_t bound)
{
    VI w = _mm256_loadu_si256((const void *)word), b = _mm256_set1_epi32((int)bound);
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(w, b), w)));
}
#define vkeep(x, word, bound) vkeep_(x, word, bound)
#else
#define YARD_NO_VECTORS
#endif

#if !defined(YARD_NO_VECTORS)
/* e^x for x in about [-87, 88]; below, a tiny number. */
static inline V vexp(V x)
{
    x = vmax(x, vset(-87.0f));
    V n = vround(x * vset(1.44269504f));
    V r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    V p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(0.5f));
    p = vfma(p, r * r, r + vset(1.0f));
    return vscale(p, n);
}

static inline V vsigmoid(V x) { return vset(1.0f) / (vset(1.0f) + vexp(vzero() - x)); }

/* Abramowitz and Stegun 7.1.26, absolute error 1.5e-7; *gauss is e^(-x^2). */
static inline V verf(V x, V *gauss)
{
    V a = vabs(x), t = vset(1.0f) / vfma(vset(0.3275911f), a, vset(1.0f)), e = vexp(vzero() - x * x);
    V p = vset(1.061405429f);
    p = vfma(p, t, vset(-1.453152027f));
    p = vfma(p, t, vset(1.421413741f));
    p = vfma(p, t, vset(-0.284496736f));
    p = vfma(p, t, vset(0.254829592f)) * t;
    *gauss = e;
    return vor(vset(1.0f) - p * e, vsign(x));
}

/* gelu(x), and its derivative. */
static inline V vgelu(V x, V *slope)
{
    V gauss, half = vfma(vset(0.5f), verf(x * vset(0.70710678f), &gauss), vset(0.5f));
    *slope = vfma(x * vset(0.39894228f), gauss, half);
    return x * half;
}

/* Both, for |x| below some thousands. */
static inline void vsincos(V x, V *s, V *c)
{
    V n = vround(x * vset(0.63661977f));
    VI q = vint(n);
    V r = vfma(n, vset(-1.5703125f), x);
    r = vfma(n, vset(-4.8375129699707031e-4f), r);
    r = vfma(n, vset(-7.5497899548918861e-8f), r);
    V z = r * r, a = vset(-1.9515295891e-4f), b = vset(2.443315711809948e-5f);
    a = vfma(a, z, vset(8.3321608736e-3f));
    a = vfma(a, z, vset(-1.6666654611e-1f));
    a = vfma(a * z, r, r);
    b = vfma(b, z, vset(-1.388731625493765e-3f));
    b = vfma(b, z, vset(4.166664568298827e-2f));
    b = vfma(b * z, z, vfma(vset(-0.5f), z, vset(1.0f)));
    *s = vflip(vodd(q, b, a), vihalf(q));
    *c = vflip(vodd(q, a, b), vihalf(viadd(q, 1)));
}
#endif
