/* arena.h - the two kinds of memory a step uses up and gives back at once.
 *
 *   tn_arena   bump allocation in chunks, forgotten whole by tn_arena_reset (chunks are kept)
 *   tn_slots   equal-sized aligned slots, first in first out, so that a slot is reused as late as possible */
#pragma once

#include <stddef.h>

typedef struct tn_arena_chunk tn_arena_chunk;
typedef struct tn_arena {
    tn_arena_chunk *first, *now;
} tn_arena;

void *tn_arena_alloc(tn_arena *a, size_t bytes); /* zeroed, 16-byte aligned; NULL when there is none */
char *tn_arena_strdup(tn_arena *a, const char *s);
void tn_arena_reset(tn_arena *a);
/* What was allocated since the mark is forgotten; one that is all zero is the beginning. */
typedef struct tn_arena_mark {
    tn_arena_chunk *chunk;
    size_t used;
} tn_arena_mark;
tn_arena_mark tn_arena_here(const tn_arena *a);
void tn_arena_back_to(tn_arena *a, tn_arena_mark m);
void tn_arena_free(tn_arena *a);

typedef struct tn_slots {
    size_t size, align;
    void **blocks; /* what was asked from the system */
    int n_blocks, cap_blocks;
    void *head, *tail; /* free slots, linked through their last pointer-sized bytes */
    size_t n_slots, n_free;
} tn_slots;

void tn_slots_init(tn_slots *s, size_t size, size_t align);
void *tn_slots_take(tn_slots *s); /* not cleared: a slot keeps its generation; NULL when there is no memory */
void tn_slots_give(tn_slots *s, void *slot);
void tn_slots_free(tn_slots *s);
