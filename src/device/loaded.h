/* loaded.h - which kernels this process has loaded: a hash table from a kernel's source to what its loader
 * gave. */
#pragma once

#include "device.h"

#include <stddef.h>
#include <stdint.h>

/* Begins as zeros. */
typedef struct tn_loaded {
    struct tn_loaded_kernel *slot; /* open addressing on the hash; empty where object is NULL */
    size_t slots, used;
} tn_loaded;

/* Returns the object kept for a source, whose hash the caller knows; NULL: none. */
void *tn_loaded_find(const tn_loaded *t, const tn_source *src, uint64_t hash);

/* Keeps it; the source is copied. TN_E_NOMEM: nothing has changed. */
int tn_loaded_add(tn_loaded *t, const tn_source *src, uint64_t hash, void *object);

void tn_loaded_end(tn_loaded *t); /* objects are their loader's to close */
