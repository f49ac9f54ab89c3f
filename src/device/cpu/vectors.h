/* vectors.h - what files that are compiled for several instruction sets have in common: whether this is x86,
 * loops unrolled to the end, and the compiler's own vectors of 16 bytes for any processor. */
#ifndef TN_VECTORS_H
#define TN_VECTORS_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#define X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define X86 0
#endif

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

typedef float vec_f32 __attribute__((vector_size(16)));
typedef int32_t vec_i32 __attribute__((vector_size(16)));

static inline vec_f32 load_f32(const float *p)
{
    vec_f32 v;
    memcpy(&v, p, sizeof v);
    return v;
}

typedef uint32_t vec_u32 __attribute__((vector_size(16)));

static inline vec_f32 widen_bf16(const uint16_t *p)
{
    return (vec_f32)((vec_u32){p[0], p[1], p[2], p[3]} << 16);
}

/* To the nearest, the even one of two, as tn_f32_to_bf16. */
static inline void narrow_bf16(uint16_t *p, vec_f32 v)
{
    const vec_u32 u = (vec_u32)v, nan = (vec_u32)(v != v), even = u >> 16 & 1;
    const vec_u32 h = (nan & (u >> 16 | 0x40)) | (~nan & (u + 0x7fff + even) >> 16);
    for (int i = 0; i < 4; i++) p[i] = (uint16_t)h[i];
}

#if X86
static inline __attribute__((target("avx2"))) __m256 avx2_widen_bf16(const uint16_t *p)
{
    const __m128i h = _mm_loadu_si128((const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline __attribute__((target("avx2"))) void avx2_narrow_bf16(uint16_t *p, __m256 v)
{
    const __m256i u = _mm256_castps_si256(v), half = _mm256_set1_epi32(0x7fff);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(u, _mm256_add_epi32(even, half));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i h = _mm256_srli_epi32(_mm256_blendv_epi8(near, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    _mm_storeu_si128((void *)p, _mm256_castsi256_si128(packed));
}
#endif

#endif
