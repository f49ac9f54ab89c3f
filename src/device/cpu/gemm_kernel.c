/* gemm_kernel.c - instantiates the register tile for AVX-512, AVX2 and plain 16-byte vectors, and holds the
 * conversions and the transpose that packing needs. The library is compiled for the oldest processor of its
 * kind; functions for newer ones carry their target as an attribute and are chosen by what the processor
 * reports. Read first: tn_gemm_kernel_for, then gemm_micro.h. */
#include "gemm_kernel.h"
#include "vectors.h"

_Static_assert(TN_GEMM_A_BYTES >= TN_GEMM_MAX_MR * (TN_GEMM_KC_F32 + TN_GEMM_A_PAD) * 4,
               "a block of A in f32");

/* ---- any processor: vectors of the compiler ---- */

typedef double vec_f64 __attribute__((vector_size(16)));
typedef int64_t vec_i64 __attribute__((vector_size(16)));

static inline vec_f64 load_f64(const double *p)
{
    vec_f64 v;
    memcpy(&v, p, sizeof v);
    return v;
}

#define T  float
#define V  vec_f32
#define VL 4
#define MR 4
#define NV 2
#define KC TN_GEMM_KC_F32
#define TARGET
#define NAME(x)      base_f32_##x
#define SPLAT(x)     ((vec_f32){(x), (x), (x), (x)})
#define LOAD(p)      load_f32(p)
#define STORE(p, v)  memcpy((p), &(v), sizeof(vec_f32))
#define FMA(a, b, c) ((a) * (b) + (c))
#define RELU(v)      ((vec_f32)((vec_i32)(v) & ~((v) < (vec_f32){0, 0, 0, 0})))
#include "gemm_micro.h"

#define T  double
#define V  vec_f64
#define VL 2
#define MR 4
#define NV 2
#define KC TN_GEMM_KC_F64
#define TARGET
#define NAME(x)      base_f64_##x
#define SPLAT(x)     ((vec_f64){(x), (x)})
#define LOAD(p)      load_f64(p)
#define STORE(p, v)  memcpy((p), &(v), sizeof(vec_f64))
#define FMA(a, b, c) ((a) * (b) + (c))
#define RELU(v)      ((vec_f64)((vec_i64)(v) & ~((v) < (vec_f64){0, 0})))
#include "gemm_micro.h"

static const tn_gemm_kernel base_f32 = {
    "base f32", 4, base_f32_NR, TN_GEMM_KC_F32, base_f32_A_LD, base_f32_block, base_f32_dots};
static const tn_gemm_kernel base_f64 = {
    "base f64", 4, base_f64_NR, TN_GEMM_KC_F64, base_f64_A_LD, base_f64_block, base_f64_dots};

/* ---- x86: max(0, v) gives its second operand where either is NaN, which is the relu wanted ---- */

#if X86
#define AVX2   __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx2,fma")))

#define T            float
#define V            __m256
#define VL           8
#define MR           4
#define NV           3
#define KC           TN_GEMM_KC_F32
#define TARGET       AVX2
#define NAME(x)      avx2_f32_##x
#define SPLAT(x)     _mm256_set1_ps(x)
#define LOAD(p)      _mm256_loadu_ps(p)
#define STORE(p, v)  _mm256_storeu_ps(p, v)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define RELU(v)      _mm256_max_ps(_mm256_setzero_ps(), v)
#include "gemm_micro.h"

#define T            double
#define V            __m256d
#define VL           4
#define MR           4
#define NV           3
#define KC           TN_GEMM_KC_F64
#define TARGET       AVX2
#define NAME(x)      avx2_f64_##x
#define SPLAT(x)     _mm256_set1_pd(x)
#define LOAD(p)      _mm256_loadu_pd(p)
#define STORE(p, v)  _mm256_storeu_pd(p, v)
#define FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define RELU(v)      _mm256_max_pd(_mm256_setzero_pd(), v)
#include "gemm_micro.h"

#define T            float
#define V            __m512
#define VL           16
#define MR           12
#define NV           2
#define KC           TN_GEMM_KC_F32
#define TARGET       AVX512
#define NAME(x)      avx512_f32_##x
#define SPLAT(x)     _mm512_set1_ps(x)
#define LOAD(p)      _mm512_loadu_ps(p)
#define STORE(p, v)  _mm512_storeu_ps(p, v)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define RELU(v)      _mm512_max_ps(_mm512_setzero_ps(), v)
#define SUM(v)       _mm512_reduce_add_ps(v)
#include "gemm_micro.h"

#define T            double
#define V            __m512d
#define VL           8
#define MR           12
#define NV           2
#define KC           TN_GEMM_KC_F64
#define TARGET       AVX512
#define NAME(x)      avx512_f64_##x
#define SPLAT(x)     _mm512_set1_pd(x)
#define LOAD(p)      _mm512_loadu_pd(p)
#define STORE(p, v)  _mm512_storeu_pd(p, v)
#define FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#define RELU(v)      _mm512_max_pd(_mm512_setzero_pd(), v)
#define SUM(v)       _mm512_reduce_add_pd(v)
#include "gemm_micro.h"

static const tn_gemm_kernel avx2_f32 = {
    "avx2 f32", 4, avx2_f32_NR, TN_GEMM_KC_F32, avx2_f32_A_LD, avx2_f32_block, avx2_f32_dots};
static const tn_gemm_kernel avx2_f64 = {
    "avx2 f64", 4, avx2_f64_NR, TN_GEMM_KC_F64, avx2_f64_A_LD, avx2_f64_block, avx2_f64_dots};
static const tn_gemm_kernel avx512_f32 = {
    "avx512 f32", 12, avx512_f32_NR, TN_GEMM_KC_F32, avx512_f32_A_LD, avx512_f32_block, avx512_f32_dots};
static const tn_gemm_kernel avx512_f64 = {
    "avx512 f64", 12, avx512_f64_NR, TN_GEMM_KC_F64, avx512_f64_A_LD, avx512_f64_block, avx512_f64_dots};
#endif

const tn_gemm_kernel *tn_gemm_kernel_at(tn_dtype compute, int i)
{
    const tn_gemm_kernel *f32[3], *f64[3];
    int n = 0;
#if X86
    if (__builtin_cpu_supports("avx512f")) f32[n] = &avx512_f32, f64[n++] = &avx512_f64;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        f32[n] = &avx2_f32, f64[n++] = &avx2_f64;
#endif
    f32[n] = &base_f32, f64[n++] = &base_f64;
    if (i < 0 || i >= n) return NULL;
    return compute == TN_F64 ? f64[i] : f32[i];
}

const tn_gemm_kernel *tn_gemm_kernel_for(tn_dtype compute)
{
    return tn_gemm_kernel_at(compute, 0);
}

/* ---- conversions ---- */

#if X86
static __attribute__((target("avx,f16c"))) void f16_to_f32(const uint16_t *s, float *d, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h;
        memcpy(&h, s + i, sizeof h);
        _mm256_storeu_ps(d + i, _mm256_cvtph_ps(h));
    }
    for (; i < n; i++) d[i] = _cvtsh_ss(s[i]);
}

static __attribute__((target("avx,f16c"))) void f32_to_f16(const float *s, uint16_t *d, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(s + i), 0);
        memcpy(d + i, &h, sizeof h);
    }
    for (; i < n; i++) d[i] = (uint16_t)_cvtss_sh(s[i], 0);
}

static AVX2 void bf16_to_f32(const uint16_t *s, float *d, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(d + i, avx2_widen_bf16(s + i));
    for (; i < n; i++) d[i] = tn_bf16_to_f32(s[i]);
}

static AVX2 void f32_to_bf16(const float *s, uint16_t *d, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) avx2_narrow_bf16(d + i, _mm256_loadu_ps(s + i));
    for (; i < n; i++) d[i] = tn_f32_to_bf16(s[i]);
}

static bool have_f16c(void)
{
    return __builtin_cpu_supports("avx2"); /* no processor has one without the other */
}
#endif

void tn_widen_floats(tn_dtype d, const void *src, void *dst, int64_t n)
{
    float *out = dst;
    if (d == TN_BF16) {
        const uint16_t *s = src;
        int64_t i = 0;
#if X86
        if (have_f16c()) {
            bf16_to_f32(s, out, n);
            return;
        }
#endif
        for (; i + 4 <= n; i += 4) {
            const vec_f32 v = widen_bf16(s + i);
            memcpy(out + i, &v, sizeof v);
        }
        for (; i < n; i++) out[i] = tn_bf16_to_f32(s[i]);
    } else if (d == TN_F16) {
        const uint16_t *s = src;
#if X86
        if (have_f16c()) {
            f16_to_f32(s, out, n);
            return;
        }
#endif
        for (int64_t i = 0; i < n; i++) out[i] = tn_f16_to_f32(s[i]);
    } else {
        memcpy(dst, src, (size_t)n * tn_dtype_size(d));
    }
}

void tn_narrow_floats(tn_dtype d, const void *src, void *dst, int64_t n)
{
    const float *s = src;
    if (d == TN_BF16) {
        uint16_t *out = dst;
        int64_t i = 0;
#if X86
        if (have_f16c()) {
            f32_to_bf16(s, out, n);
            return;
        }
#endif
        for (; i + 4 <= n; i += 4) narrow_bf16(out + i, load_f32(s + i));
        for (; i < n; i++) out[i] = tn_f32_to_bf16(s[i]);
    } else if (d == TN_F16) {
        uint16_t *out = dst;
#if X86
        if (have_f16c()) {
            f32_to_f16(s, out, n);
            return;
        }
#endif
        for (int64_t i = 0; i < n; i++) out[i] = tn_f32_to_f16(s[i]);
    } else {
        memcpy(dst, src, (size_t)n * tn_dtype_size(d));
    }
}

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
    for (j = 0; j < fours; j++) {
        for (int64_t p = whole; p < k; p++) dst[p * ldd + j] = src[j * lds + p];
    }
#endif
    for (; j < cols; j++) {
        for (int64_t p = 0; p < k; p++) dst[p * ldd + j] = src[j * lds + p];
    }
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
            UNROLL for (int i = 0; i < SIDE; i++) r[i] = _mm_loadu_si128((const void *)(s + i * lds + p));
            /* Three times the halves of rows i and i + 4 are interleaved. */
            UNROLL for (int turn = 0; turn < 3; turn++)
            {
                UNROLL for (int i = 0; i < SIDE / 2; i++)
                {
                    t[2 * i] = _mm_unpacklo_epi16(r[i], r[i + SIDE / 2]);
                    t[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + SIDE / 2]);
                }
                UNROLL for (int i = 0; i < SIDE; i++) r[i] = t[i];
            }
            UNROLL for (int i = 0; i < SIDE; i++) _mm_storeu_si128((void *)(dst + (p + i) * ldd + j), r[i]);
        }
        for (; p < k; p++)
            for (int i = 0; i < SIDE; i++) dst[p * ldd + j + i] = s[i * lds + p];
    }
#endif
    for (; j < cols; j++) {
        for (int64_t p = 0; p < k; p++) dst[p * ldd + j] = src[j * lds + p];
    }
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
