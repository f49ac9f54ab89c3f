/* arena.c - bump chunks and first-in-first-out slots. Start with tn_arena_alloc and tn_slots_take. */
#include "arena.h"

#include <string.h>

#include "alloc.h"
#include "sanitized.h"

#if defined(TN_ASAN)
enum { GAP = 16 }; /* behind each part, so that what runs over its end is seen */
#else
enum { GAP = 0 };
#endif

enum { CHUNK = 64 * 1024 };

struct tn_arena_chunk {
    tn_arena_chunk *next;
    size_t size, used;
    _Alignas(16) char data[];
};

void *tn_arena_alloc(tn_arena *a, size_t bytes)
{
    const size_t asked = bytes;
    bytes = ((bytes + 15) & ~(size_t)15) + GAP;
    for (;;) {
        tn_arena_chunk *c = a->now;
        if (c && c->size - c->used >= bytes) {
            void *p = c->data + c->used;
            c->used += bytes;
            TN_UNPOISON(p, bytes);
            memset(p, 0, bytes);
            TN_POISON((char *)p + asked, bytes - asked);
            return p;
        }
        if (c && c->next) {
            a->now = c->next;
            continue;
        }
        size_t size = bytes > CHUNK ? bytes : CHUNK;
        tn_arena_chunk *n = tn_malloc(sizeof *n + size);
        if (!n) return NULL;
        n->next = NULL;
        n->size = size;
        n->used = 0;
        if (c)
            c->next = n;
        else
            a->first = n;
        a->now = n;
    }
}

char *tn_arena_strdup(tn_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = tn_arena_alloc(a, n);
    return p ? memcpy(p, s, n) : NULL;
}

tn_arena_mark tn_arena_here(const tn_arena *a) { return (tn_arena_mark){a->now, a->now ? a->now->used : 0}; }

void tn_arena_back_to(tn_arena *a, tn_arena_mark m)
{
    a->now = m.chunk ? m.chunk : a->first;
    for (tn_arena_chunk *c = a->now; c; c = c->next) {
        const size_t used = c == m.chunk ? m.used : 0;
        TN_POISON(c->data + used, c->used - used);
        c->used = used;
    }
}

void tn_arena_reset(tn_arena *a) { tn_arena_back_to(a, (tn_arena_mark){NULL, 0}); }

void tn_arena_free(tn_arena *a)
{
    for (tn_arena_chunk *c = a->first, *next; c; c = next) {
        next = c->next;
        tn_free_mem(c);
    }
    a->first = a->now = NULL;
}

/* A free slot's link lives in its last bytes, because its first hold the generation that stale handles are
 * compared with. */
static void **link_of(const tn_slots *s, void *slot)
{
    return (void **)((char *)slot + s->size - sizeof(void *));
}

void tn_slots_init(tn_slots *s, size_t size, size_t align)
{
    memset(s, 0, sizeof *s);
    s->align = align;
    s->size = (size + align - 1) / align * align;
}

static int grow(tn_slots *s)
{
    enum { PER_BLOCK = 64 };
    if (!tn_reserve(&s->blocks, &s->cap_blocks, s->n_blocks + 1, sizeof *s->blocks)) return -1;
    char *block = tn_aligned_alloc(s->align, s->size * PER_BLOCK);
    if (!block) return -1;
    memset(block, 0, s->size * PER_BLOCK);
    s->blocks[s->n_blocks++] = block;
    for (int i = 0; i < PER_BLOCK; i++) tn_slots_give(s, block + (size_t)i * s->size);
    s->n_slots += PER_BLOCK;
    return 0;
}

void *tn_slots_take(tn_slots *s)
{
    if (!s->head && grow(s)) return NULL;
    void *p = s->head;
    s->head = *link_of(s, p);
    if (!s->head) s->tail = NULL;
    s->n_free--;
    return p;
}

void tn_slots_give(tn_slots *s, void *slot)
{
    *link_of(s, slot) = NULL;
    if (s->tail)
        *link_of(s, s->tail) = slot;
    else
        s->head = slot;
    s->tail = slot;
    s->n_free++;
}

void tn_slots_free(tn_slots *s)
{
    for (int i = 0; i < s->n_blocks; i++) tn_free_mem(s->blocks[i]);
    tn_free_mem(s->blocks);
    memset(s, 0, sizeof *s);
}
