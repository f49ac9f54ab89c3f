/* alloc.c - malloc with a fuse in it. */
#include "alloc.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The one piece of process-wide state in the library: tests light the fuse, nothing else writes it. */
static atomic_long fuse = -1;
static atomic_long count;

static int burnt(void)
{
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    long f = atomic_load_explicit(&fuse, memory_order_relaxed);
    if (f < 0) return 0;
    if (f == 0) return 1;
    atomic_compare_exchange_strong(&fuse, &f, f - 1);
    return 0;
}

void *tn_malloc(size_t bytes) { return burnt() ? NULL : malloc(bytes ? bytes : 1); }

void *tn_calloc(size_t n, size_t size) { return burnt() ? NULL : calloc(n ? n : 1, size ? size : 1); }

void *tn_realloc(void *p, size_t bytes) { return burnt() ? NULL : realloc(p, bytes ? bytes : 1); }

bool tn_grow(void *array, int *cap, int64_t n, size_t size)
{
    enum { FEWEST = 16 };
    void *p;
    const int64_t more = n * 2 < FEWEST ? FEWEST : n * 2;
    memcpy(&p, array, sizeof p); /* whatever it is a pointer to */
    if (more > INT_MAX || !(p = tn_realloc(p, (size_t)more * size))) return false;
    memcpy(array, &p, sizeof p);
    *cap = (int)more;
    return true;
}

void *tn_aligned_alloc(size_t align, size_t bytes)
{
    void *p = NULL;
    if (burnt() || posix_memalign(&p, align, bytes ? bytes : align)) return NULL;
    return p;
}

char *tn_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = tn_malloc(n);
    return p ? memcpy(p, s, n) : NULL;
}

void tn_free_mem(void *p) { free(p); }

void tn_alloc_fail_after(long n) { atomic_store(&fuse, n); }

long tn_alloc_count(void) { return atomic_load(&count); }
