/* slots.h - as many blocks of scratch memory as threads may run at a time, one taken by each while it runs a
 * chunk: a pool's chunks do not know which thread has them. Read first: tn_open_slots. */
#pragma once

#include <stdatomic.h>

#include "cpu_lib.h"

typedef struct tn_slots {
    char *first;
    size_t bytes; /* of each */
    int n;
    atomic_flag taken[64];
} tn_slots;

/* `more` bytes are had behind the last. Returns false where there is no memory. */
static inline bool tn_open_slots(tn_slots *s, tn_cpu_lib *lib, tn_scratch use, int threads, int64_t bytes,
                                 int64_t more)
{
    enum { MOST = sizeof s->taken / sizeof *s->taken };
    s->n = threads < MOST ? threads : MOST;
    s->bytes = (size_t)(bytes + 63) / 64 * 64;
    for (int i = 0; i < s->n; i++) atomic_flag_clear(&s->taken[i]);
    s->first = tn_cpu_scratch(lib, use, (size_t)s->n * s->bytes + (size_t)more);
    return s->first != NULL;
}

static inline int tn_take_slot(tn_slots *s)
{
    for (int i = 0;; i = (i + 1) % s->n)
        if (!atomic_flag_test_and_set_explicit(&s->taken[i], memory_order_acquire)) return i;
}

static inline void *tn_slot(const tn_slots *s, int i) { return s->first + (size_t)i * s->bytes; }

static inline void tn_give_slot(tn_slots *s, int i)
{
    atomic_flag_clear_explicit(&s->taken[i], memory_order_release);
}
