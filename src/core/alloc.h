/* alloc.h - host memory. Every allocation of the library goes through here, so that a test can make any of
 * them fail and see an error code come out at the top. tn_malloc and its like are public. */
#ifndef TN_ALLOC_H
#define TN_ALLOC_H

#include "../../include/tensor_extend.h"

void *tn_aligned_alloc(size_t align, size_t bytes);
char *tn_strdup(const char *s);

/* Test hook: the (n+1)-th allocation from now on, and all after it, fail; n < 0 turns it off. */
void tn_alloc_fail_after(long n);
/* Allocations asked for since the program began. */
long tn_alloc_count(void);

#endif
