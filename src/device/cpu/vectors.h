/* vectors.h - what files that are compiled for several instruction sets have in common: whether this is x86,
 * loops unrolled to the end, and the compiler's own vectors of 16 bytes for any processor. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../device.h"

#if defined(__x86_64__)
#define X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define X86 0
#endif

#ifdef __clang__
#define UNROLL(...) _Pragma("unroll") for (__VA_ARGS__)
#else
#define UNROLL(...) _Pragma("GCC unroll 32") for (__VA_ARGS__)
#endif

typedef float vec_f32 __attribute__((vector_size(16)));
typedef double vec_f64 __attribute__((vector_size(16)));
typedef int32_t vec_i32 __attribute__((vector_size(16)));

static inline vec_f32 load_f32(const float *p)
{
    vec_f32 v;
    memcpy(&v, p, sizeof v);
    return v;
}

typedef uint32_t vec_u32 __attribute__((vector_size(16)));

/* a b + c, rounded once where every processor of the kind can, as those for x86 that follow are. */
#if defined(__aarch64__) || (defined(__FP_FAST_FMAF) && defined(__FP_FAST_FMA))
static inline vec_f32 fma_f32(vec_f32 a, vec_f32 b, vec_f32 c)
{
    UNROLL(int i = 0; i < 4; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}

static inline vec_f64 fma_f64(vec_f64 a, vec_f64 b, vec_f64 c)
{
    UNROLL(int i = 0; i < 2; i++) c[i] = __builtin_fma(a[i], b[i], c[i]);
    return c;
}
#else
static inline vec_f32 fma_f32(vec_f32 a, vec_f32 b, vec_f32 c) { return a * b + c; }
static inline vec_f64 fma_f64(vec_f64 a, vec_f64 b, vec_f64 c) { return a * b + c; }
#endif

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

/* ---- AVX-512: numbers of f32, f16 or bf16, 16 at a time, of which `lanes` are there ---- */

#define AVX512_TARGET "avx512f,avx512bw,avx512vl,avx2,fma"
#define AVX512_INLINE static inline __attribute__((always_inline, target(AVX512_TARGET)))

static inline bool avx512_there(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

/* The first n of a vector; n may be more. */
AVX512_INLINE __mmask16 avx512_first_of(int64_t n) { return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff); }

AVX512_INLINE __m512 avx512_widen_bf16(__m256i h)
{
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}

AVX512_INLINE __m512 avx512_load_floats(tn_dtype t, const void *p, __mmask16 lanes)
{
    if (t == TN_F32) return _mm512_maskz_loadu_ps(lanes, p);
    const __m256i h = _mm256_maskz_loadu_epi16(lanes, p);
    return t == TN_BF16 ? avx512_widen_bf16(h) : _mm512_cvtph_ps(h);
}

AVX512_INLINE __m256i avx512_narrow_bf16(__m512 v)
{
    const __m512i u = (__m512i)v, even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(u, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __m512i h = _mm512_mask_mov_epi32(near, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(h, 16));
}

/* Whole vectors by another instruction: a masked store is slow. */
AVX512_INLINE void avx512_store_floats(tn_dtype t, void *p, __m512 v, __mmask16 lanes)
{
    if (t == TN_F32) {
        if (lanes == 0xffff)
            _mm512_storeu_ps(p, v);
        else
            _mm512_mask_storeu_ps(p, lanes, v);
        return;
    }
    const __m256i h = t == TN_BF16 ? avx512_narrow_bf16(v) : _mm512_cvtps_ph(v, 0);
    if (lanes == 0xffff)
        _mm256_storeu_si256(p, h);
    else
        _mm256_mask_storeu_epi16(p, lanes, h);
}
#endif
