/* kcache.h - compiled kernels kept between runs, and the table of those loaded in this process.
 *
 * Device-neutral: a device says what all its kernels have in common (compiler, flags, processor, prelude: one
 * text that stands before each kernel's own) and what suffix its objects carry. On disk there are
 *
 *   ENTRY-HASH.c      the whole source of one kernel under a first line that names its object, the object's
 *                     length and checksum, and the symbol in it
 *   ENTRY-ID.so       an object; one compile may put several kernels into one
 *
 * The hash only finds the file: the source in it is compared whole. Object names are never used twice, so a
 * loader that knows libraries by path cannot mistake one for another. Everything is written under a temporary
 * name and renamed; what does not match its checksum is a miss. A folder that belongs to somebody else, or
 * that others may write to or exchange (folder.h), is refused: a private temporary one then serves until
 * close, with one line in the log. So it does where the folder cannot be written or the disk is full. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device.h"

typedef struct tn_kcache tn_kcache;
typedef uint64_t tn_kcache_hash(const void *data, size_t bytes, uint64_t seed);

typedef struct tn_kcache_options {
    const char *dir;      /* NULL: TENSOR_CACHE, $XDG_CACHE_HOME/libtensor, ~/.cache/libtensor,
                             /tmp/libtensor-UID: the first that is set and can be made */
    const char *suffix;   /* of objects: ".so" or ".cubin"; "" for who looks at both */
    size_t limit;         /* bytes on disk, the least recently used go first; 0: 512 MiB */
    tn_kcache_hash *hash; /* NULL: the library's own; tests force collisions here */
    tn_log_fn *log;
    void *log_user;
} tn_kcache_options;

int tn_kcache_open(const tn_kcache_options *o, tn_kcache **out); /* 0 or TN_E_NOMEM */
void tn_kcache_close(tn_kcache *c);                              /* NULL is allowed */

/* The text before every kernel's own. Copied; set it once, before find and put. */
int tn_kcache_set_common(tn_kcache *c, const char *common);

typedef struct tn_kcache_hit {
    char path[PATH_MAX]; /* of the object, by way of the open folder: valid until close */
    char symbol[256];
} tn_kcache_hit;

/* 1 and *hit, or 0. */
int tn_kcache_find(tn_kcache *c, const tn_source *src, tn_kcache_hit *hit);

/* Takes in the object at `file`, which holds n kernels; symbol[i] is the name of src[i] in it. Writes the
 * path it has from now on to `path`. 0, TN_E_IO or TN_E_NOMEM. */
int tn_kcache_put(tn_kcache *c, int n, const tn_source *const *src, const char *const *symbol,
                  const char *file, char path[PATH_MAX]);
void tn_kcache_drop(tn_kcache *c, const tn_source *src); /* forgets an entry that turned out to be unusable */

/* What processes want at the same time, as ranks of one host do, one of them compiles while the others wait.
 * A descriptor to close when that is done; -1 where there are no locks, or another has held it for a minute.
 * *waited: what was a miss may be a hit now. */
int tn_kcache_lock(tn_kcache *c, bool *waited);

/* Returns the folder that entries are kept in from run to run; NULL where they are not. Valid until close. */
const char *tn_kcache_folder(const tn_kcache *c);

/* Returns true where a folder of the cache had been removed, and is there again, empty. */
bool tn_kcache_renew(tn_kcache *c);

/* Visits the files in the folder that are the cache's own, sources of its entries (.c) and objects; TN_E_IO
 * where there is no folder. */
typedef void tn_kcache_visit(const char *name, size_t bytes, void *user);
int tn_kcache_each(tn_kcache *c, tn_kcache_visit *visit, void *user);
bool tn_kcache_is_whole(
    tn_kcache *c, const char *name); /* an entry, and the object it names, as it was written; no use of it */
char *tn_kcache_source(tn_kcache *c, const char *name); /* of an entry, tn_free_mem it; or NULL */
bool tn_kcache_remove(tn_kcache *c,
                      const char *name); /* false: no file of the cache's own, or not to be removed */

/* A new empty folder for a compiler to work in, and its removal with all that is in it. */
int tn_kcache_scratch(tn_kcache *c, char path[PATH_MAX]);
void tn_kcache_scratch_done(const char *path);
/* Keeps the source of a kernel that did not compile, for the user to look at. 0 and its path, or TN_E_IO. */
int tn_kcache_keep_failed(tn_kcache *c, const tn_source *src, char path[PATH_MAX]);

/* Returns the object that this process has loaded for the same entry and text; NULL when there is none. */
void *tn_kcache_loaded(const tn_kcache *c, const tn_source *src);
int tn_kcache_remember(tn_kcache *c, const tn_source *src, void *object); /* 0 or TN_E_NOMEM */
