/* pack.c - how operands get into the layout of gemm_kernel.h: conversions between 16-bit floats and f32,
 * transposes, pairs. Read first: tn_widen_floats. */
#include "gemm_kernel.h"
#include "vectors.h"

/* ---- conversions ---- */

#if X86
#define AVX2   __attribute__((target("avx2,f16c")))
#define AVX512 __attribute__((target(AVX512_TARGET)))

static bool have_avx2(void) { return __builtin_cpu_supports("avx2"); /* no processor has it without F16C */ }

static AVX2 void avx2_widen(tn_dtype t, const uint16_t *s, float *d, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(d + i, t == TN_BF16 ? avx2_widen_bf16(s + i)
                                             : _mm256_cvtph_ps(_mm_loadu_si128((const void *)(s + i))));
    for (; i < n; i++) d[i] = t == TN_BF16 ? tn_bf16_to_f32(s[i]) : _cvtsh_ss(s[i]);
}

static AVX2 void avx2_narrow(tn_dtype t, const float *s, uint16_t *d, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        if (t == TN_BF16)
            avx2_narrow_bf16(d + i, _mm256_loadu_ps(s + i));
        else
            _mm_storeu_si128((void *)(d + i), _mm256_cvtps_ph(_mm256_loadu_ps(s + i), 0));
    for (; i < n; i++) d[i] = t == TN_BF16 ? tn_f32_to_bf16(s[i]) : (uint16_t)_cvtss_sh(s[i], 0);
}

static AVX512 void avx512_widen(tn_dtype t, const uint16_t *s, float *d, int64_t n)
{
    int64_t i = 0;
    for (; t == TN_BF16 && i + 16 <= n; i += 16)
        _mm512_storeu_ps(d + i, avx512_widen_bf16(_mm256_loadu_si256((const void *)(s + i))));
    for (; t == TN_F16 && i + 16 <= n; i += 16)
        _mm512_storeu_ps(d + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(s + i))));
    if (i < n) {
        const __mmask16 rest = avx512_first_of(n - i);
        _mm512_mask_storeu_ps(d + i, rest, avx512_load_floats(t, s + i, rest));
    }
}

static AVX512 void avx512_narrow(tn_dtype t, const float *s, uint16_t *d, int64_t n)
{
    int64_t i = 0;
    for (; t == TN_BF16 && i + 16 <= n; i += 16)
        avx512_store_floats(TN_BF16, d + i, _mm512_loadu_ps(s + i), 0xffff);
    for (; t == TN_F16 && i + 16 <= n; i += 16)
        avx512_store_floats(TN_F16, d + i, _mm512_loadu_ps(s + i), 0xffff);
    if (i < n) {
        const __mmask16 rest = avx512_first_of(n - i);
        avx512_store_floats(t, d + i, _mm512_maskz_loadu_ps(rest, s + i), rest);
    }
}
#endif

void tn_widen_floats(tn_dtype t, const void *src, void *dst, int64_t n)
{
    if (t == TN_F32 || t == TN_F64) {
        memcpy(dst, src, (size_t)n * tn_dtype_size(t));
        return;
    }
    const uint16_t *s = src;
    float *d = dst;
    int64_t i = 0;
#if X86
    if (avx512_there() || have_avx2()) {
        (avx512_there() ? avx512_widen : avx2_widen)(t, s, d, n);
        return;
    }
#endif
    for (; t == TN_BF16 && i + 4 <= n; i += 4) {
        const vec_f32 v = widen_bf16(s + i);
        memcpy(d + i, &v, sizeof v);
    }
    for (; i < n; i++) d[i] = t == TN_BF16 ? tn_bf16_to_f32(s[i]) : tn_f16_to_f32(s[i]);
}

void tn_narrow_floats(tn_dtype t, const void *src, void *dst, int64_t n)
{
    if (t == TN_F32 || t == TN_F64) {
        memcpy(dst, src, (size_t)n * tn_dtype_size(t));
        return;
    }
    const float *s = src;
    uint16_t *d = dst;
    int64_t i = 0;
#if X86
    if (avx512_there() || have_avx2()) {
        (avx512_there() ? avx512_narrow : avx2_narrow)(t, s, d, n);
        return;
    }
#endif
    for (; t == TN_BF16 && i + 4 <= n; i += 4) narrow_bf16(d + i, load_f32(s + i));
    for (; i < n; i++) d[i] = t == TN_BF16 ? tn_f32_to_bf16(s[i]) : tn_f32_to_f16(s[i]);
}

/* ---- pairs ---- */

#if X86
AVX512 void tn_pack_pairs(const uint16_t *src, int64_t lds, int64_t cols, int64_t k, uint32_t *dst,
                          int64_t ldd)
{
    for (int64_t p = 0; p < k; p += 2, src += 2 * lds, dst += ldd) {
        for (int64_t j = 0; j < cols; j += 16) {
            const __mmask16 there = avx512_first_of(cols - j), up = avx512_first_of((cols - j + 3) / 4 * 4);
            const __m256i lo = _mm256_maskz_loadu_epi16(there, src + j);
            const __m256i hi =
                _mm256_maskz_loadu_epi16(p + 1 < k ? there : 0, src + (p + 1 < k ? lds : 0) + j);
            _mm512_mask_storeu_epi32(
                dst + j, up,
                _mm512_or_si512(_mm512_cvtepu16_epi32(lo), _mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16)));
        }
    }
}
#else
void tn_pack_pairs(const uint16_t *src, int64_t lds, int64_t cols, int64_t k, uint32_t *dst, int64_t ldd)
{
    (void)src, (void)lds, (void)cols, (void)k, (void)dst, (void)ldd;
}
#endif

/* ---- transpose ---- */

/* A line of each row at a time, so that rows of dst are whole when they leave the nearest cache. */
static void transpose_f32(const float *src, int64_t lds, int64_t cols, int64_t k, float *dst, int64_t ldd)
{
    int64_t j = 0;
#if X86
    enum { LINE = 16, AHEAD = 4 * LINE };
    const int64_t fours = cols / 4 * 4, whole = k / 4 * 4;
    for (int64_t p0 = 0; p0 < whole; p0 += LINE) {
        const int64_t p1 = p0 + LINE < whole ? p0 + LINE : whole;
        for (j = 0; j < fours; j += 4) {
            const float *s = src + j * lds;
            for (int64_t i = 0; i < 4; i++) __builtin_prefetch(s + i * lds + p0 + AHEAD);
            for (int64_t p = p0; p < p1; p += 4) {
                __m128 r0 = _mm_loadu_ps(s + p), r1 = _mm_loadu_ps(s + lds + p);
                __m128 r2 = _mm_loadu_ps(s + 2 * lds + p), r3 = _mm_loadu_ps(s + 3 * lds + p);
                _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
                _mm_storeu_ps(dst + p * ldd + j, r0);
                _mm_storeu_ps(dst + (p + 1) * ldd + j, r1);
                _mm_storeu_ps(dst + (p + 2) * ldd + j, r2);
                _mm_storeu_ps(dst + (p + 3) * ldd + j, r3);
            }
        }
    }
    for (j = 0; j < fours; j++)
        for (int64_t p = whole; p < k; p++) dst[p * ldd + j] = src[j * lds + p];
#endif
    for (; j < cols; j++)
        for (int64_t p = 0; p < k; p++) dst[p * ldd + j] = src[j * lds + p];
}

static void transpose_16(const uint16_t *src, int64_t lds, int64_t cols, int64_t k, uint16_t *dst,
                         int64_t ldd)
{
    int64_t j = 0;
#if X86
    enum { SIDE = 8 };
    for (; j + SIDE <= cols; j += SIDE) {
        const uint16_t *s = src + j * lds;
        int64_t p = 0;
        for (; p + SIDE <= k; p += SIDE) {
            __m128i r[SIDE], t[SIDE];
            UNROLL(int i = 0; i < SIDE; i++) r[i] = _mm_loadu_si128((const void *)(s + i * lds + p));
            /* Three times the halves of rows i and i + 4 are interleaved. */
            UNROLL(int turn = 0; turn < 3; turn++) {
                UNROLL(int i = 0; i < SIDE / 2; i++) {
                    t[2 * i] = _mm_unpacklo_epi16(r[i], r[i + SIDE / 2]);
                    t[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + SIDE / 2]);
                }
                UNROLL(int i = 0; i < SIDE; i++) r[i] = t[i];
            }
            UNROLL(int i = 0; i < SIDE; i++) _mm_storeu_si128((void *)(dst + (p + i) * ldd + j), r[i]);
        }
        for (; p < k; p++)
            for (int i = 0; i < SIDE; i++) dst[p * ldd + j + i] = s[i * lds + p];
    }
#endif
    for (; j < cols; j++)
        for (int64_t p = 0; p < k; p++) dst[p * ldd + j] = src[j * lds + p];
}

void tn_pack_transpose(tn_dtype d, const void *src, int64_t lds, int64_t cols, int64_t k, void *dst,
                       int64_t ldd)
{
    if (d == TN_F32) {
        transpose_f32(src, lds, cols, k, dst, ldd);
    } else if (d != TN_F64) {
        transpose_16(src, lds, cols, k, dst, ldd);
    } else {
        const double *from = src;
        double *to = dst;
        for (int64_t j = 0; j < cols; j++)
            for (int64_t p = 0; p < k; p++) to[p * ldd + j] = from[j * lds + p];
    }
}
