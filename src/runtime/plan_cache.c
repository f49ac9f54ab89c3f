/* plan_cache.c - plans by record. A hit compares the whole record, so two records with one hash are two
 * plans. When full, the plan used least recently goes, with all that it has on the device; one that a tape or
 * a log still holds lives on there. A plan with guards is good for some run-time numbers
 * only; once others come, one without takes its place for good. Start with tn_plan_cache_find. */
#include <string.h>

#include "../core/hash.h"
#include "session.h"

typedef struct entry {
    struct entry *next; /* in its bucket */
    uint64_t hash;
    size_t bytes;
    tn_plan *plan;
    unsigned char key[];
} entry;

struct tn_plan_cache {
    entry **bucket;
    int n_bucket, n, max;
    uint64_t clock;
};

tn_plan_cache *tn_plan_cache_new(int max_plans)
{
    tn_plan_cache *c = tn_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->max = max_plans;
    for (c->n_bucket = 64; c->n_bucket < max_plans; c->n_bucket *= 2) {
    }
    c->bucket = tn_calloc((size_t)c->n_bucket, sizeof *c->bucket);
    if (!c->bucket) {
        tn_free_mem(c);
        return NULL;
    }
    return c;
}

void tn_plan_cache_free(tn_plan_cache *c)
{
    if (!c) return;
    for (int i = 0; i < c->n_bucket; i++)
        for (entry *e = c->bucket[i], *next; e; e = next) {
            next = e->next;
            tn_plan_free(e->plan);
            tn_free_mem(e);
        }
    tn_free_mem(c->bucket);
    tn_free_mem(c);
}

static entry *entry_of(const tn_plan_cache *c, uint64_t h, const void *key, size_t bytes)
{
    for (entry *e = c->bucket[h & (uint64_t)(c->n_bucket - 1)]; e; e = e->next)
        if (e->hash == h && e->bytes == bytes && !memcmp(e->key, key, bytes)) return e;
    return NULL;
}

void tn_plan_cache_touch(tn_plan_cache *c, tn_plan *p) { p->used = ++c->clock; }

tn_plan *tn_plan_cache_find(tn_plan_cache *c, const void *key, size_t bytes, tn_tensor *const *leaf,
                            bool *other)
{
    const uint64_t h = tn_hash_bytes(key, bytes);
    entry *e = entry_of(c, h, key, bytes);
    if (!e) return NULL;
    if (leaf && !tn_plan_serves(e->plan, leaf)) {
        *other = true;
        return NULL;
    }
    tn_plan_cache_touch(c, e->plan);
    return e->plan;
}

static void evict_oldest(tn_plan_cache *c)
{
    entry **oldest = NULL;
    for (int i = 0; i < c->n_bucket; i++)
        for (entry **e = &c->bucket[i]; *e; e = &(*e)->next)
            if (!oldest || (*e)->plan->used < (*oldest)->plan->used) oldest = e;
    if (!oldest) return;
    entry *e = *oldest;
    *oldest = e->next;
    tn_plan_free(e->plan);
    tn_free_mem(e);
    c->n--;
}

int tn_plan_cache_count(const tn_plan_cache *c) { return c->n; }

size_t tn_plan_cache_arena(const tn_plan_cache *c)
{
    size_t most = 0;
    for (int i = 0; i < c->n_bucket; i++)
        for (const entry *e = c->bucket[i]; e; e = e->next)
            most = e->plan->arena_bytes > most ? e->plan->arena_bytes : most;
    return most;
}

int tn_plan_cache_add(tn_plan_cache *c, const void *key, size_t bytes, tn_plan *p)
{
    uint64_t h = tn_hash_bytes(key, bytes);
    entry *e = entry_of(c, h, key, bytes);
    if (e) {
        tn_plan_free(e->plan);
        e->plan = p;
        tn_plan_cache_touch(c, p);
        return TN_OK;
    }
    if (!(e = tn_malloc(sizeof *e + bytes))) {
        tn_plan_free(p);
        return TN_E_NOMEM;
    }
    if (c->n >= c->max) evict_oldest(c);
    entry **b = &c->bucket[h & (uint64_t)(c->n_bucket - 1)];
    *e = (entry){.next = *b, .hash = h, .bytes = bytes, .plan = p};
    tn_plan_cache_touch(c, p);
    memcpy(e->key, key, bytes);
    *b = e;
    c->n++;
    return TN_OK;
}
