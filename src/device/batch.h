/* batch.h - the texts of one call that have to be compiled: found in no place, shared out over units.
 *
 * A unit is what a compiler sees at once, and becomes one object with the kernels of its texts. Read first:
 * tn_compiling_find, then tn_compiling_share_out. */
#pragma once

#include <stdio.h>

#include "kcache.h"

/* One text to compile. */
typedef struct tn_pending {
    int index; /* in the call */
    int unit;
    size_t bytes;
    char symbol[256]; /* its entry's name in the unit: its own, where no other there has it */
} tn_pending;

typedef struct tn_compiling {
    tn_kcache *cache;
    void *device; /* of from_disk */
    tn_kernel *(*from_disk)(void *device, const tn_source *src);
    tn_device_stats *stats;
    const tn_source *src;
    int n;
    tn_kernel **out; /* one for each of src; NULL: not there yet */
    tn_pending *pending;
    int count, lock;
} tn_compiling;

/* Fills in those of out that the process has loaded, or that lie on disk, and `pending` with the others, each
 * text once. Where another process compiles at this moment, waits for it and looks again. Anew at each call;
 * tn_compiling_end follows in any case. 0 or TN_E_NOMEM. */
int tn_compiling_find(tn_compiling *b);
/* Gives each pending text one of so many units, and names its symbol. 0 or TN_E_NOMEM. */
int tn_compiling_share_out(tn_compiling *b, int units);
/* Finds the next macro that a text defines from *at on, which moves behind it: its name, *n long; NULL: there is
 * none. Those of TN_ are left out: they are there once for all texts of a unit. */
const char *tn_next_macro(const char **at, size_t *n);
/* Writes a unit: the common text, and those of its kernels, whose lines are told as of ENTRY and the suffix,
 * and whose macros are free again behind each. */
bool tn_compiling_write(const tn_compiling *b, int unit, const char *common, const char *suffix, FILE *f);
/* Takes the unit's object, which is the file `file`, into the cache; as tn_kcache_put. */
int tn_compiling_put(const tn_compiling *b, int unit, const char *file, char path[PATH_MAX]);
/* Leaves in `pending` the texts of units that are not done. */
void tn_compiling_keep(tn_compiling *b, const bool *done);
/* Fills in what came twice in the call, lets others compile, frees what is the batch's. */
void tn_compiling_end(tn_compiling *b);
