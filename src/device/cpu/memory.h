/* memory.h - the CPU device's memory: a caching allocator, and ranges of addresses that never move.
 *
 * Blocks given back are kept, by size class where small and whole where large, so that a step's second run
 * asks the system for nothing. One thread at a time, as its device. */
#pragma once

#include <stddef.h>

typedef struct tn_memory tn_memory;

enum { TN_MEMORY_ALIGN = 64 };

int tn_memory_open(tn_memory **out);
void tn_memory_close(tn_memory *m); /* frees everything, handed out or not; NULL is allowed */

/* `bytes` (0 counts as 1) of undefined contents, 64-byte aligned, from 2 MiB on aligned to 2 MiB. NULL when
 * the system has none, even after everything kept was given back to it. */
void *tn_memory_alloc(tn_memory *m, size_t bytes);
void tn_memory_free(tn_memory *m, void *p); /* NULL and pointers not from here are ignored */
void tn_memory_trim(tn_memory *m);          /* gives what is kept back to the system */

/* A range of `bytes` addresses, 2 MiB aligned; nothing in it is usable until committed. What is committed
 * already keeps its contents; new parts are zero. 0, TN_E_ARG or TN_E_NOMEM. */
void *tn_memory_reserve(tn_memory *m, size_t bytes);
int tn_memory_commit(tn_memory *m, void *base, size_t first, size_t bytes);
void tn_memory_release(tn_memory *m, void *base);

size_t tn_memory_now(const tn_memory *m);  /* bytes handed out and committed */
size_t tn_memory_peak(const tn_memory *m); /* their maximum since open */
size_t tn_memory_kept(const tn_memory *m); /* bytes given back but not returned to the system */
