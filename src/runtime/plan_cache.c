/* plan_cache.c - plans by record. A hit compares the whole record, so two records with one hash are two
 * plans. When full, the plan used least recently goes. A plan with guards is good for some run-time numbers
 * only; once others come, one without takes its place for good. Start with tn_plan_cache_find. */
#include <string.h>

#include "../core/hash.h"
#include "session.h"

typedef struct entry {
    struct entry *next; /* in its bucket */
    uint64_t hash, used;
    size_t bytes;
    tn_plan *plan;
    unsigned char key[];
} entry;

struct tn_plan_cache {
    entry **bucket;
    int n_bucket, n, max;
    uint64_t clock, evictions;
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
    e->used = ++c->clock;
    return e->plan;
}

static void evict_oldest(tn_plan_cache *c)
{
    entry **oldest = NULL;
    for (int i = 0; i < c->n_bucket; i++)
        for (entry **e = &c->bucket[i]; *e; e = &(*e)->next)
            if (!oldest || (*e)->used < (*oldest)->used) oldest = e;
    if (!oldest) return;
    entry *e = *oldest;
    *oldest = e->next;
    tn_plan_free(e->plan);
    tn_free_mem(e);
    c->n--;
    c->evictions++;
}

uint64_t tn_plan_cache_evictions(const tn_plan_cache *c)
{
    return c->evictions;
}

int tn_plan_cache_add(tn_plan_cache *c, const void *key, size_t bytes, tn_plan *p)
{
    uint64_t h = tn_hash_bytes(key, bytes);
    entry *e = entry_of(c, h, key, bytes);
    if (e) {
        tn_plan_free(e->plan);
        e->plan = p;
        e->used = ++c->clock;
        c->evictions++;
        return TN_OK;
    }
    if (!(e = tn_malloc(sizeof *e + bytes))) {
        tn_plan_free(p);
        return TN_E_NOMEM;
    }
    if (c->n >= c->max) evict_oldest(c);
    entry **b = &c->bucket[h & (uint64_t)(c->n_bucket - 1)];
    *e = (entry){.next = *b, .hash = h, .used = ++c->clock, .bytes = bytes, .plan = p};
    memcpy(e->key, key, bytes);
    *b = e;
    c->n++;
    return TN_OK;
}
