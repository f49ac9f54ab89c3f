/* winograd_kernel.c - instantiates the transforms for AVX-512, AVX2 and plain 16-byte vectors. Read first:
 * winograd_kernel.h, then winograd_micro.h. */
#include "winograd_kernel.h"
#include "gemm_kernel.h"
#include "vectors.h"

/* The points beside 0 of tiles of 4, P1, -P1, P2 and -P2, and 1 / N of 0 and of these. */
#define P1 0.625f
#define P2 1.5f
#define N0 (1 / (P1 * P1 * P2 * P2))
#define N1 (1 / (2 * P1 * P1 * (P1 * P1 - P2 * P2)))
#define N2 (1 / (2 * P2 * P2 * (P2 * P2 - P1 * P1)))

static inline vec_f32 widen_f16(const uint16_t *p)
{
    float f[4];
    tn_widen_floats(TN_F16, p, f, 4);
    return load_f32(f);
}

static inline void narrow_f16(uint16_t *p, vec_f32 v) { tn_narrow_floats(TN_F16, &v, p, 4); }

#define V vec_f32
#define TARGET
#define NAME(x)           base_##x
#define SPLAT(x)          ((vec_f32){(x), (x), (x), (x)})
#define FMA(a, b, c)      fma_f32(a, b, c)
#define RELU(v)           ((vec_f32)((vec_i32)(v) & ~((v) < (vec_f32){0, 0, 0, 0})))
#define WIDEN_F16(p)      widen_f16(p)
#define NARROW_F16(p, v)  narrow_f16(p, v)
#define WIDEN_BF16(p)     widen_bf16(p)
#define NARROW_BF16(p, v) narrow_bf16(p, v)
#include "winograd_micro.h"

#if X86
#define AVX2   __attribute__((target("avx2,fma,f16c")))
#define AVX512 __attribute__((target(AVX512_TARGET)))

#define V                 __m256
#define TARGET            AVX2
#define NAME(x)           avx2_##x
#define SPLAT(x)          _mm256_set1_ps(x)
#define FMA(a, b, c)      _mm256_fmadd_ps(a, b, c)
#define RELU(v)           _mm256_max_ps(_mm256_setzero_ps(), v)
#define WIDEN_F16(p)      _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p)))
#define NARROW_F16(p, v)  _mm_storeu_si128((void *)(p), _mm256_cvtps_ph(v, 0))
#define WIDEN_BF16(p)     avx2_widen_bf16(p)
#define NARROW_BF16(p, v) avx2_narrow_bf16(p, v)
#include "winograd_micro.h"

#define V                 __m512
#define TARGET            AVX512
#define NAME(x)           avx512_##x
#define SPLAT(x)          _mm512_set1_ps(x)
#define FMA(a, b, c)      _mm512_fmadd_ps(a, b, c)
#define RELU(v)           _mm512_max_ps(_mm512_setzero_ps(), v)
#define WIDEN_F16(p)      _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p)))
#define NARROW_F16(p, v)  _mm256_storeu_si256((void *)(p), _mm512_cvtps_ph(v, 0))
#define WIDEN_BF16(p)     avx512_widen_bf16(_mm256_loadu_si256((const void *)(p)))
#define NARROW_BF16(p, v) _mm256_storeu_si256((void *)(p), avx512_narrow_bf16(v))
#include "winograd_micro.h"

#endif

const tn_winograd_kernel *tn_winograd_kernel_at(int tile, tn_dtype dtype, int i)
{
    const tn_winograd_kernel *all[3];
    int n = 0;
#if X86
    if (avx512_there()) all[n++] = avx512_kernels;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all[n++] = avx2_kernels;
#endif
    all[n++] = base_kernels;
    if (i < 0 || i >= n) return NULL;
    const tn_winograd_kernel *k = all[i];
    while (k->tile != tile || k->dtype != dtype) k++;
    return k;
}

const tn_winograd_kernel *tn_winograd_kernel_best(int tile, tn_dtype dtype)
{
    return tn_winograd_kernel_at(tile, dtype, 0);
}
