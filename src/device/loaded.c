/* loaded.c - the table of loaded kernels. Two sources with the same hash are two kernels: texts are compared.
 */
#include "loaded.h"

#include "../core/alloc.h"

#include <string.h>

enum { FIRST_SLOTS = 64 };

typedef struct tn_loaded_kernel {
    uint64_t hash;
    char *entry, *text;
    void *object;
} kernel;

static kernel *slot_of(const tn_loaded *t, const tn_source *src, uint64_t hash)
{
    for (size_t i = (size_t)hash & (t->slots - 1);; i = (i + 1) & (t->slots - 1)) {
        kernel *k = &t->slot[i];
        if (!k->object || (k->hash == hash && !strcmp(k->text, src->text) && !strcmp(k->entry, src->entry)))
            return k;
    }
}

void *tn_loaded_find(const tn_loaded *t, const tn_source *src, uint64_t hash)
{
    return t->slots ? slot_of(t, src, hash)->object : NULL;
}

/* At most half of the slots are ever taken. */
static bool make_room(tn_loaded *t)
{
    if (2 * t->used < t->slots) return true;
    const size_t n = t->slots ? 2 * t->slots : FIRST_SLOTS;
    kernel *bigger = tn_calloc(n, sizeof *bigger);
    if (!bigger) return false;
    for (size_t i = 0; i < t->slots; i++) {
        if (!t->slot[i].object) continue;
        size_t j = (size_t)t->slot[i].hash & (n - 1);
        while (bigger[j].object) j = (j + 1) & (n - 1);
        bigger[j] = t->slot[i];
    }
    tn_free_mem(t->slot);
    t->slot = bigger;
    t->slots = n;
    return true;
}

int tn_loaded_add(tn_loaded *t, const tn_source *src, uint64_t hash, void *object)
{
    if (!make_room(t)) return TN_E_NOMEM;
    kernel new = {hash, tn_strdup(src->entry), tn_strdup(src->text), object};
    if (!new.entry || !new.text) {
        tn_free_mem(new.entry);
        tn_free_mem(new.text);
        return TN_E_NOMEM;
    }
    kernel *at = slot_of(t, src, hash);
    t->used += !at->object;
    *at = new;
    return TN_OK;
}

void tn_loaded_end(tn_loaded *t)
{
    for (size_t i = 0; i < t->slots; i++) {
        tn_free_mem(t->slot[i].entry);
        tn_free_mem(t->slot[i].text);
    }
    tn_free_mem(t->slot);
    *t = (tn_loaded){0};
}
