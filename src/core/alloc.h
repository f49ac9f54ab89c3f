/* alloc.h - host memory. Every allocation of the library goes through here, so that a test can make any of
 * them fail and see an error code come out at the top. tn_malloc and its like are public. */
#pragma once

#include "../../include/tensor_extend.h"

void *tn_aligned_alloc(size_t align, size_t bytes);
char *tn_strdup(const char *s);

bool tn_grow(void *array, int *cap, int64_t n, size_t size);
/* Room for n elements of `size` bytes in *array, the address of a pointer, which has room for *cap. false: no
 * memory, and all is as it was. */
static inline bool tn_reserve(void *array, int *cap, int64_t n, size_t size)
{
    return n <= *cap || tn_grow(array, cap, n, size);
}

/* Test hook: the (n+1)-th allocation from now on, and all after it, fail; n < 0 turns it off. */
void tn_alloc_fail_after(long n);
/* Allocations asked for since the program began. */
long tn_alloc_count(void);

/* x runs over the n elements of a list, which does not grow meanwhile. */
#define TN_EACH(x, list, n)                                                                                  \
    for (__typeof__((list) + 0) x = (list), x##_end = (n) > 0 ? x + (n) : x; x < x##_end; x++)
