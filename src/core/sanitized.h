/* sanitized.h - TN_ASAN is defined where this is compiled for AddressSanitizer. */
#pragma once

#if defined(__SANITIZE_ADDRESS__) /* gcc; headers of its may define __has_feature as 0 */
#define TN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TN_ASAN 1
#endif
#endif

/* Parts of a block that nobody may touch for now: the sanitizer itself sees only past the ends of blocks. */
#if defined(TN_ASAN)
#include <sanitizer/asan_interface.h>
#define TN_POISON(p, n)   __asan_poison_memory_region(p, n)
#define TN_UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define TN_POISON(p, n)   ((void)(p), (void)(n))
#define TN_UNPOISON(p, n) ((void)(p), (void)(n))
#endif
