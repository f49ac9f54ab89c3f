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
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vec_f32 __attribute__((vector_size(16)));
typedef int32_t vec_i32 __attribute__((vector_size(16)));

static inline vec_f32 load_f32(const float *p)
{
    vec_f32 v;
    memcpy(&v, p, sizeof v);
    return v;
}

#endif
