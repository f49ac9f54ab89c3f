/* fpu.h - the floating-point control word: rounding, flush-to-zero, denormals-are-zero.
 *
 * Two uses: workers take over the caller's mode, so that a chunk's bits do not depend on who ran it; and the
 * mode is put back after a library is loaded, whatever its start-up code did to it. */
#pragma once

#include <stdint.h>

#if defined(__SSE__)
#include <xmmintrin.h>
enum { TN_FPU_CONTROL = 0xffc0 }; /* without the sticky exception flags */
static inline uint64_t tn_fpu_get(void) { return _mm_getcsr() & TN_FPU_CONTROL; }
static inline void tn_fpu_set(uint64_t mode)
{
    if ((_mm_getcsr() & TN_FPU_CONTROL) != mode) _mm_setcsr((unsigned)mode);
}
#elif defined(__aarch64__)
static inline uint64_t tn_fpu_get(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void tn_fpu_set(uint64_t mode)
{
    if (tn_fpu_get() != mode) __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#else
static inline uint64_t tn_fpu_get(void) { return 0; }
static inline void tn_fpu_set(uint64_t mode) { (void)mode; }
#endif
