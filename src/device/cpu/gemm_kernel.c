/* gemm_kernel.c - instantiates the register tile for AVX-512, AVX2 and plain 16-byte vectors. The library is
 * compiled for the oldest processor of its kind; functions for newer ones carry their target as an attribute
 * and are chosen by what the processor reports. Read first: tn_gemm_kernel_for, then gemm_micro.h. */
#include "gemm_kernel.h"
#include "vectors.h"

_Static_assert(TN_GEMM_A_BYTES >= TN_GEMM_MAX_MR * (TN_GEMM_KC_F32 + TN_GEMM_A_PAD) * 4,
               "a block of A in f32");

/* ---- any processor: vectors of the compiler ---- */

typedef int64_t vec_i64 __attribute__((vector_size(16)));

#define T  float
#define V  vec_f32
#define MR 4
#define NV 2
#define TARGET
#define NAME(x)      base_f32_##x
#define CALLED       "base f32"
#define SPLAT(x)     ((vec_f32){(x), (x), (x), (x)})
#define FMA(a, b, c) fma_f32(a, b, c)
#define RELU(v)      ((vec_f32)((vec_i32)(v) & ~((v) < (vec_f32){0, 0, 0, 0})))
#include "gemm_micro.h"

#define T  double
#define V  vec_f64
#define MR 4
#define NV 2
#define TARGET
#define NAME(x)      base_f64_##x
#define CALLED       "base f64"
#define SPLAT(x)     ((vec_f64){(x), (x)})
#define FMA(a, b, c) fma_f64(a, b, c)
#define RELU(v)      ((vec_f64)((vec_i64)(v) & ~((v) < (vec_f64){0, 0})))
#include "gemm_micro.h"

/* ---- x86: max(0, v) gives its second operand where either is NaN, which is the relu wanted ---- */

#if X86
#define AVX2         __attribute__((target("avx2,fma")))
#define AVX512       __attribute__((target("avx512f,avx2,fma")))
#define AVX512_PAIRS __attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl,avx2,fma")))

#define T            float
#define V            __m256
#define MR           4
#define NV           3
#define TARGET       AVX2
#define NAME(x)      avx2_f32_##x
#define CALLED       "avx2 f32"
#define SPLAT(x)     _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define RELU(v)      _mm256_max_ps(_mm256_setzero_ps(), v)
#include "gemm_micro.h"

#define T            double
#define V            __m256d
#define MR           4
#define NV           3
#define TARGET       AVX2
#define NAME(x)      avx2_f64_##x
#define CALLED       "avx2 f64"
#define SPLAT(x)     _mm256_set1_pd(x)
#define FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define RELU(v)      _mm256_max_pd(_mm256_setzero_pd(), v)
#include "gemm_micro.h"

#define T            float
#define V            __m512
#define MR           12
#define TALL         24
#define NV           2
#define TARGET       AVX512
#define NAME(x)      avx512_f32_##x
#define CALLED       "avx512 f32"
#define SPLAT(x)     _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define RELU(v)      _mm512_max_ps(_mm512_setzero_ps(), v)
#define SUM(v)       _mm512_reduce_add_ps(v)
#include "gemm_micro.h"

#define T            double
#define V            __m512d
#define MR           12
#define TALL         24
#define NV           2
#define TARGET       AVX512
#define NAME(x)      avx512_f64_##x
#define CALLED       "avx512 f64"
#define SPLAT(x)     _mm512_set1_pd(x)
#define FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#define RELU(v)      _mm512_max_pd(_mm512_setzero_pd(), v)
#define SUM(v)       _mm512_reduce_add_pd(v)
#include "gemm_micro.h"

static inline AVX512_PAIRS __m512bh first_pairs(const uint16_t *p, int64_t n)
{
    return (__m512bh)_mm512_maskz_loadu_epi16((1u << n) - 1, p);
}

/* The bits of a pair of bf16 stand where a float would. */
#define T             float
#define V             __m512
#define MR            12
#define TALL          24
#define NV            2
#define PER           2
#define NUMBER        uint16_t
#define TARGET        AVX512_PAIRS
#define NAME(x)       pairs_##x
#define CALLED        "avx512 bf16"
#define SPLAT(x)      _mm512_set1_ps(x)
#define FMA(a, b, c)  _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
#define REST(a, b, n) _mm512_dpbf16_ps(_mm512_setzero_ps(), first_pairs(a, n), first_pairs(b, n))
#define RELU(v)       _mm512_max_ps(_mm512_setzero_ps(), v)
#define SUM(v)        _mm512_reduce_add_ps(v)
#include "gemm_micro.h"

#endif

const tn_gemm_kernel *tn_gemm_kernel_at(tn_dtype type, int i)
{
    const tn_gemm_kernel *f32[3], *f64[3];
    int n = 0;
#if X86
    if (type == TN_BF16) return i == 0 && __builtin_cpu_supports("avx512bf16") ? &pairs_kernel : NULL;
    if (__builtin_cpu_supports("avx512f")) f32[n] = &avx512_f32_kernel, f64[n++] = &avx512_f64_kernel;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        f32[n] = &avx2_f32_kernel, f64[n++] = &avx2_f64_kernel;
#endif
    f32[n] = &base_f32_kernel, f64[n++] = &base_f64_kernel;
    if (i < 0 || i >= n || type == TN_BF16) return NULL;
    return type == TN_F64 ? f64[i] : f32[i];
}

const tn_gemm_kernel *tn_gemm_kernel_for(tn_dtype type) { return tn_gemm_kernel_at(type, 0); }
