/* winograd_kernel.c - instantiates the transforms for AVX-512, AVX2 and plain 16-byte vectors. Read first:
 * winograd_kernel.h, then winograd_micro.h. */
#include "winograd_kernel.h"
#include "vectors.h"

/* The points beside 0 of tiles of 4, P1, -P1, P2 and -P2, and 1 / N of 0 and of these. */
#define P1 0.625f
#define P2 1.5f
#define N0 (1 / (P1 * P1 * P2 * P2))
#define N1 (1 / (2 * P1 * P1 * (P1 * P1 - P2 * P2)))
#define N2 (1 / (2 * P2 * P2 * (P2 * P2 - P1 * P1)))

static inline void store_f32(float *p, vec_f32 v)
{
    memcpy(p, &v, sizeof v);
}

#define V  vec_f32
#define VL 4
#define TARGET
#define NAME(x)      base_##x
#define SPLAT(x)     ((vec_f32){(x), (x), (x), (x)})
#define LOAD(p)      load_f32(p)
#define STORE(p, v)  store_f32(p, v)
#define MUL(a, b)    ((a) * (b))
#define ADD(a, b)    ((a) + (b))
#define SUB(a, b)    ((a) - (b))
#define FMA(a, b, c) ((a) * (b) + (c))
#define RELU(v)      ((vec_f32)((vec_i32)(v) & ~((v) < (vec_f32){0, 0, 0, 0})))
#include "winograd_micro.h"

#if X86
#define V            __m256
#define VL           8
#define TARGET       __attribute__((target("avx2,fma")))
#define NAME(x)      avx2_##x
#define SPLAT(x)     _mm256_set1_ps(x)
#define LOAD(p)      _mm256_loadu_ps(p)
#define STORE(p, v)  _mm256_storeu_ps(p, v)
#define MUL(a, b)    _mm256_mul_ps(a, b)
#define ADD(a, b)    _mm256_add_ps(a, b)
#define SUB(a, b)    _mm256_sub_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define RELU(v)      _mm256_max_ps(_mm256_setzero_ps(), v)
#include "winograd_micro.h"

#define V            __m512
#define VL           16
#define TARGET       __attribute__((target("avx512f,avx2,fma")))
#define NAME(x)      avx512_##x
#define SPLAT(x)     _mm512_set1_ps(x)
#define LOAD(p)      _mm512_loadu_ps(p)
#define STORE(p, v)  _mm512_storeu_ps(p, v)
#define MUL(a, b)    _mm512_mul_ps(a, b)
#define ADD(a, b)    _mm512_add_ps(a, b)
#define SUB(a, b)    _mm512_sub_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define RELU(v)      _mm512_max_ps(_mm512_setzero_ps(), v)
#include "winograd_micro.h"

#endif

const tn_winograd_kernel *tn_winograd_kernel_at(int tile, int i)
{
    const tn_winograd_kernel *all[3];
    int n = 0;
#if X86
    if (__builtin_cpu_supports("avx512f")) all[n++] = tile == 2 ? &avx512_tile_2 : &avx512_tile_4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        all[n++] = tile == 2 ? &avx2_tile_2 : &avx2_tile_4;
#endif
    all[n++] = tile == 2 ? &base_tile_2 : &base_tile_4;
    return i < 0 || i >= n ? NULL : all[i];
}

const tn_winograd_kernel *tn_winograd_kernel_best(int tile)
{
    return tn_winograd_kernel_at(tile, 0);
}
