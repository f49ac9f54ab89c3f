/* kcache.c - a folder of sources and objects; what of it is in this process is a table of its own (loaded.c).
 *
 * There are two folders: the shared one, and the private one that stands in when the
 * shared one is refused or cannot be written. No lock is needed: files appear whole by rename, and a reader
 * that finds a source without its object (another process removed it) has a miss, and so has one that finds
 * files that are links, of another user, or that others may write to. A folder that is removed while it is in
 * use is made again (tn_kcache_renew). Read first: tn_kcache_find, then tn_kcache_put. */
#include "kcache.h"

#include "../core/alloc.h"
#include "../core/settings.h"
#include "../core/whole_file.h"
#include "folder.h"
#include "loaded.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    FORMAT = 1,
    HEADER_MAX = 1024,
    NAME_ENTRY = 80,      /* characters of an entry's name that show in file names */
    TOUCH_SECONDS = 60,   /* a use is noted on disk at most this often */
    YOUNG_SECONDS = 10,   /* never evicted: it may be on its way into a process */
    STALE_SECONDS = 3600, /* temporary files older than this were left by a crash */
};
#define DEFAULT_LIMIT ((size_t)512 << 20)
#define HEADER        "/* libtensor kernel cache %d: object %s bytes %zu sum %016llx symbol %s source %zu */\n"
#define HEADER_SCAN   "/* libtensor kernel cache %d: object %255s bytes %zu sum %llx symbol %255s source %zu */"

struct tn_kcache {
    tn_folder shared, private;
    bool shared_is_readonly; /* a write failed: look things up there, put them elsewhere */
    pid_t owner;             /* the process that may remove the private folder */
    char suffix[16];
    size_t limit, on_disk;
    bool counted; /* on_disk was measured */
    tn_kcache_hash *hash;
    uint64_t common_hash;
    char *common;
    size_t common_bytes;
    tn_log_fn *log;
    void *log_user;
    tn_loaded loaded;
};

/* ---- hashes and names ------------------------------------------------------------------------------ */

__extension__ typedef unsigned __int128 wide;

static uint64_t fold(uint64_t a, uint64_t b)
{
    wide p = (wide)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Multiply-and-fold over 16 bytes at a time. */
static uint64_t default_hash(const void *data, size_t bytes, uint64_t seed)
{
    const uint64_t k0 = 0x9e3779b97f4a7c15u, k1 = 0xbf58476d1ce4e5b9u;
    const unsigned char *p = data;
    uint64_t h = fold(seed ^ k0, bytes ^ k1), w[2];
    for (; bytes >= 16; p += 16, bytes -= 16) {
        memcpy(w, p, 16);
        h = fold(w[0] ^ k0 ^ h, w[1] ^ k1 ^ (h << 32 | h >> 32));
    }
    w[0] = w[1] = 0;
    memcpy(w, p, bytes);
    h = fold(w[0] ^ k0 ^ h, w[1] ^ k1 ^ (h << 32 | h >> 32));
    return fold(h ^ k1, k0);
}

static uint64_t hash_source(const tn_kcache *c, const tn_source *src, uint64_t seed)
{
    return c->hash(src->text, strlen(src->text), c->hash(src->entry, strlen(src->entry), seed));
}

/* Of an object, and of the name to look up in it. */
static uint64_t checksum(const void *object, size_t bytes, const char *symbol)
{
    return default_hash(object, bytes, default_hash(symbol, strlen(symbol), FORMAT));
}

/* "gelu_768-0123456789abcdef0123456789abcdef.c" */
static void entry_name(const tn_kcache *c, const tn_source *src, const char *prefix, char out[NAME_MAX])
{
    snprintf(out, NAME_MAX, "%s%.*s-%016llx%016llx.c", prefix, NAME_ENTRY, src->entry,
             (unsigned long long)hash_source(c, src, c->common_hash),
             (unsigned long long)hash_source(c, src, ~c->common_hash));
}

static uint64_t new_id(void)
{
    uint64_t id = 0;
    if (getrandom(&id, sizeof id, GRND_NONBLOCK) != sizeof id) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        id = fold((uint64_t)t.tv_nsec ^ (uint64_t)t.tv_sec << 30, (uint64_t)getpid() << 1 | 1);
    }
    return id;
}

static bool is_object(const tn_kcache *c, const char *dot)
{
    return *c->suffix ? !strcmp(dot, c->suffix) : !strcmp(dot, ".so") || !strcmp(dot, ".cubin");
}

/* Returns true where a file is one of ours: NAME-, 16 or 32 hex digits, .c or the suffix. Only those are ever
 * removed. */
static bool is_ours(const tn_kcache *c, const char *name)
{
    const char *dot = strrchr(name, '.'), *dash = strrchr(name, '-');
    if (!dot || !dash || dash > dot || (strcmp(dot, ".c") && !is_object(c, dot))) return false;
    size_t digits = strspn(dash + 1, "0123456789abcdef");
    return dash + 1 + digits == dot && (digits == 16 || digits == 32);
}

/* ---- files ----------------------------------------------------------------------------------------- */

/* The whole file, NUL-terminated, where it is the user's own and, as an entry, nobody else may write to it.
 * NULL and an errno: ENOMEM is for want of memory. */
static char *read_file(int dir, const char *name, bool entry, size_t *bytes)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return NULL;
    struct stat st;
    char *buf = NULL;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
                   !(entry && st.st_mode & (S_IWGRP | S_IWOTH));
    if (regular && (buf = tn_malloc((size_t)st.st_size + 1))) {
        size_t n = 0;
        while (n < (size_t)st.st_size) {
            ssize_t r = read(fd, buf + n, (size_t)st.st_size - n);
            if (r < 0 && errno == EINTR) continue;
            if (r <= 0) break;
            n += (size_t)r;
        }
        buf[n] = 0;
        *bytes = n;
    }
    close(fd);
    if (!buf) errno = regular ? ENOMEM : EINVAL;
    return buf;
}

/* What has not been used for longest goes first when the folder is full. */
static void note_use(int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || time(NULL) - st.st_mtime <= TOUCH_SECONDS) return;
    utimensat(dir, name, NULL, AT_SYMLINK_NOFOLLOW);
}

struct piece {
    const char *data;
    size_t bytes;
};

/* Under a temporary name, then renamed: readers see the whole file or none. Nothing waits for the disk, which
 * took milliseconds a kernel: what a crash leaves behind does not match its text or checksum and is a miss.
 */
static int write_file(int dir, const char *name, const struct piece *piece, int n)
{
    char temp[40];
    snprintf(temp, sizeof temp, "tmp-%016llx", (unsigned long long)new_id());
    int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return TN_E_IO;
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        for (size_t at = 0; at < piece[i].bytes && ok;) {
            ssize_t w = write(fd, piece[i].data + at, piece[i].bytes - at);
            if (w < 0 && errno == EINTR) continue;
            ok = w > 0;
            at += ok ? (size_t)w : 0;
        }
    }
    if (close(fd)) ok = false;
    if (ok && renameat(dir, temp, dir, name) == 0) return 0;
    int why = errno;
    unlinkat(dir, temp, 0);
    errno = why;
    return TN_E_IO;
}

/* ---- folders --------------------------------------------------------------------------------------- */

static void say(const tn_kcache *c, const char *what, const char *path, const char *why, const char *instead)
{
    char line[2 * PATH_MAX + 256];
    snprintf(line, sizeof line, "kernel cache: %s %s: %s; %s%s", what, path, why,
             *instead ? "kernels of this process go to " : "kernels cannot be compiled", instead);
    if (c->log) c->log(TN_LOG_WARN, line, c->log_user);
}

/* The private folder, made at the first need: where there is room, for a full disk is one such need. */
static tn_folder *private_folder(tn_kcache *c)
{
    tn_folder *f = &c->private;
    for (int i = 0; f->fd < 0 && tn_folder_next_place(&i, f->path);) {
        strcat(f->path, "/libtensor-XXXXXX");
        if (!mkdtemp(f->path)) continue;
        if (tn_folder_has_room(f->path))
            f->fd = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (f->fd < 0) rmdir(f->path);
    }
    if (f->fd < 0) f->path[0] = 0;
    return f->fd < 0 ? NULL : f;
}

bool tn_kcache_renew(tn_kcache *c)
{
    bool any = false, missing;
    if (tn_folder_is_gone(&c->shared)) {
        tn_folder again = {.fd = -1};
        tn_errbuf why;
        if (tn_folder_open(&again, c->shared.path, c->shared.flags, &missing, &why)) {
            close(c->shared.fd);
            c->shared = again;
            c->shared_is_readonly = c->counted = false;
            any = true;
        }
    }
    if (tn_folder_is_gone(&c->private)) {
        close(c->private.fd);
        c->private.fd = -1;
        any = private_folder(c) != NULL || any;
    }
    return any;
}

/* Returns the folder that new files go to: the shared one until a write there fails. */
static tn_folder *writable_folder(tn_kcache *c)
{
    return c->shared.fd >= 0 && !c->shared_is_readonly ? &c->shared : private_folder(c);
}

static bool fall_back(tn_kcache *c, const tn_folder *failed, const char *why)
{
    if (failed != &c->shared) return false;
    c->shared_is_readonly = true;
    tn_folder *f = private_folder(c);
    say(c, "cannot write to", c->shared.path, why, f ? f->path : "");
    return f != NULL;
}

static void choose_folder(tn_kcache *c, const char *dir)
{
    const char *home = tn_setting("HOME"), *xdg = tn_setting("XDG_CACHE_HOME"),
               *set = tn_settings_read(NULL, NULL).cache;
    bool missing = true, good = false;
    char path[PATH_MAX] = "";
    tn_errbuf why;
    if (!dir) dir = set;
    if (dir) {
        snprintf(path, sizeof path, "%s", dir);
        good = tn_folder_open(&c->shared, path, 0, &missing, &why);
    } else {
        if (xdg && *xdg == '/') {
            snprintf(path, sizeof path, "%s/libtensor", xdg);
            good = tn_folder_open(&c->shared, path, 0, &missing, &why);
        }
        if (missing && home && *home == '/') {
            snprintf(path, sizeof path, "%s/.cache/libtensor", home);
            good = tn_folder_open(&c->shared, path, 0, &missing, &why);
        }
        if (missing) { /* in a folder all can write to: no link laid by somebody else is followed */
            snprintf(path, sizeof path, "/tmp/libtensor-%lu", (unsigned long)geteuid());
            good = tn_folder_open(&c->shared, path, O_NOFOLLOW, &missing, &why);
        }
    }
    if (good) return;
    tn_folder *f = private_folder(c);
    say(c, "will not use", path, why.text, f ? f->path : "");
}

/* ---- eviction -------------------------------------------------------------------------------------- */

struct file {
    struct timespec used;
    size_t bytes;
    char name[NAME_MAX + 1];
};

static int by_use(const void *a, const void *b)
{
    const struct timespec *x = &((const struct file *)a)->used, *y = &((const struct file *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static void remove_leftover(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) tn_folder_empty(fd);
    unlinkat(dir, name, fd >= 0 ? AT_REMOVEDIR : 0);
}

/* Measures the shared folder and, over the limit, removes the least recently used down to 7/8 of it. */
static void evict(tn_kcache *c)
{
    const int fd = c->shared.fd;
    DIR *d = tn_names_in(fd);
    if (!d) return;
    struct file *file = NULL;
    size_t n = 0;
    int room = 0;
    time_t now = time(NULL);
    c->on_disk = 0;
    c->counted = true;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        if (!strncmp(e->d_name, "tmp-", 4) && now - st.st_mtime > STALE_SECONDS)
            remove_leftover(fd, e->d_name);
        if (!S_ISREG(st.st_mode) || !is_ours(c, e->d_name)) continue;
        c->on_disk += (size_t)st.st_size;
        if (now - st.st_mtime <= YOUNG_SECONDS) continue;
        if (!tn_reserve(&file, &room, (int64_t)n + 1, sizeof *file)) break;
        file[n].used = st.st_mtim;
        file[n].bytes = (size_t)st.st_size;
        snprintf(file[n++].name, sizeof file->name, "%s", e->d_name);
    }
    if (c->on_disk > c->limit) {
        qsort(file, n, sizeof *file, by_use);
        for (size_t i = 0; i < n && c->on_disk > c->limit / 8 * 7; i++)
            if (unlinkat(fd, file[i].name, 0) == 0) c->on_disk -= file[i].bytes;
    }
    tn_free_mem(file);
    closedir(d);
}

/* ---- looking at it ---------------------------------------------------------------------------------- */

/* What the first line of an entry says, which is cut off; true where the object that it names is there and
 * whole. */
struct entry {
    char object[256], symbol[256], *source;
    size_t object_bytes, source_bytes;
};

static bool read_entry(const tn_kcache *c, const tn_folder *f, char *file, size_t bytes, struct entry *e)
{
    int format = 0;
    unsigned long long sum = 0;
    char *end = memchr(file, '\n', bytes < HEADER_MAX ? bytes : HEADER_MAX);
    if (!end) return false;
    *end = 0;
    e->source = end + 1;
    if (sscanf(file, HEADER_SCAN, &format, e->object, &e->object_bytes, &sum, e->symbol, &e->source_bytes) !=
            6 ||
        format != FORMAT || bytes != (size_t)(e->source - file) + e->source_bytes || !is_ours(c, e->object))
        return false;
    size_t n = 0;
    char *content = read_file(f->fd, e->object, true, &n);
    const bool whole = content && n == e->object_bytes && checksum(content, n, e->symbol) == sum;
    tn_free_mem(content);
    return whole;
}

int tn_kcache_each(tn_kcache *c, tn_kcache_visit *visit, void *user)
{
    const int fd = c->shared.fd;
    DIR *d = fd < 0 ? NULL : tn_names_in(fd);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (!is_ours(c, e->d_name) || fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        if (S_ISREG(st.st_mode)) visit(e->d_name, (size_t)st.st_size, user);
    }
    if (d) closedir(d);
    return d ? TN_OK : TN_E_IO;
}

bool tn_kcache_is_whole(tn_kcache *c, const char *name)
{
    size_t bytes = 0;
    char *file = read_file(c->shared.fd, name, true, &bytes);
    struct entry e;
    const bool whole = file && read_entry(c, &c->shared, file, bytes, &e);
    tn_free_mem(file);
    return whole;
}

char *tn_kcache_source(tn_kcache *c, const char *name)
{
    size_t bytes = 0;
    char *file = read_file(c->shared.fd, name, true, &bytes);
    const char *end = file ? strchr(file, '\n') : NULL;
    if (end) memmove(file, end + 1, strlen(end));
    if (end) return file;
    tn_free_mem(file);
    return NULL;
}

bool tn_kcache_remove(tn_kcache *c, const char *name)
{
    return is_ours(c, name) && unlinkat(c->shared.fd, name, 0) == 0;
}

/* ---- finding and keeping --------------------------------------------------------------------------- */

/* Writes a path by which a loader opens the file in the folder that is open here, even if another folder has
 * come to its path since; without /proc, by its name. */
static void object_path(const tn_folder *f, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "/proc/self/fd/%d/%.*s", f->fd, NAME_MAX, name);
    if (access(path, F_OK))
        snprintf(path, PATH_MAX, "%.*s/%.*s", PATH_MAX - NAME_MAX - 2, f->path, NAME_MAX, name);
}

int tn_kcache_find(tn_kcache *c, const tn_source *src, tn_kcache_hit *hit)
{
    if (c->shared.fd < 0 || !c->common) return 0;
    char name[NAME_MAX];
    entry_name(c, src, "", name);
    size_t bytes = 0, text_bytes = strlen(src->text);
    char *file = read_file(c->shared.fd, name, true, &bytes);
    if (!file) return 0;
    struct entry e;
    const bool found = read_entry(c, &c->shared, file, bytes, &e) &&
                       e.source_bytes == c->common_bytes + text_bytes &&
                       !memcmp(e.source, c->common, c->common_bytes) &&
                       !memcmp(e.source + c->common_bytes, src->text, text_bytes);
    if (found) {
        note_use(c->shared.fd, name);
        note_use(c->shared.fd, e.object);
        snprintf(hit->symbol, sizeof hit->symbol, "%s", e.symbol);
        object_path(&c->shared, e.object, hit->path);
    }
    tn_free_mem(file);
    return found;
}

static int put_in(tn_kcache *c, const tn_folder *f, int n, const tn_source *const *src,
                  const char *const *symbol, const struct piece *object, char path[PATH_MAX])
{
    char name[NAME_MAX], header[HEADER_MAX];
    snprintf(name, sizeof name, "%.*s-%016llx%s", NAME_ENTRY, src[0]->entry, (unsigned long long)new_id(),
             c->suffix);
    if (write_file(f->fd, name, object, 1)) return TN_E_IO;
    object_path(f, name, path);
    c->on_disk += object->bytes;
    if (f == &c->private) return 0; /* nobody will look there */
    for (int i = 0; i < n; i++) {
        char entry[NAME_MAX];
        entry_name(c, src[i], "", entry);
        size_t text = strlen(src[i]->text);
        int h = snprintf(header, sizeof header, HEADER, FORMAT, name, object->bytes,
                         (unsigned long long)checksum(object->data, object->bytes, symbol[i]), symbol[i],
                         c->common_bytes + text);
        if (h >= (int)sizeof header) continue;
        struct piece piece[] = {{header, (size_t)h}, {c->common, c->common_bytes}, {src[i]->text, text}};
        if (write_file(f->fd, entry, piece, 3)) return TN_E_IO;
        c->on_disk += (size_t)h + c->common_bytes + text;
    }
    if (!c->counted || c->on_disk > c->limit) evict(c);
    return 0;
}

int tn_kcache_put(tn_kcache *c, int n, const tn_source *const *src, const char *const *symbol,
                  const char *file, char path[PATH_MAX])
{
    struct piece object = {0};
    char *content = read_file(AT_FDCWD, file, false, &object.bytes);
    if (!content) return errno == ENOMEM ? TN_E_NOMEM : TN_E_IO;
    object.data = content;
    tn_folder *f = writable_folder(c);
    int status = f ? put_in(c, f, n, src, symbol, &object, path) : TN_E_IO;
    if (status && f && fall_back(c, f, strerror(errno)))
        status = put_in(c, &c->private, n, src, symbol, &object, path);
    tn_free_mem(content);
    return status;
}

void tn_kcache_drop(tn_kcache *c, const tn_source *src)
{
    char name[NAME_MAX];
    entry_name(c, src, "", name);
    if (c->shared.fd >= 0) unlinkat(c->shared.fd, name, 0);
}

const char *tn_kcache_folder(const tn_kcache *c)
{
    return c->shared.fd >= 0 && !c->shared_is_readonly ? c->shared.path : NULL;
}

int tn_kcache_scratch(tn_kcache *c, char path[PATH_MAX])
{
    tn_kcache_renew(c);
    for (tn_folder *f; (f = writable_folder(c));) {
        snprintf(path, PATH_MAX, "%.*s/tmp-XXXXXX", PATH_MAX - 16, f->path);
        bool made = mkdtemp(path) != NULL;
        if (made && (f == &c->private || tn_folder_has_room(path))) return 0;
        const char *why = strerror(errno);
        if (made && !private_folder(c)) return 0; /* little room is better than none */
        if (made) rmdir(path);
        if (!fall_back(c, f, why)) break;
    }
    return TN_E_IO;
}

void tn_kcache_scratch_done(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) tn_folder_empty(fd);
    rmdir(path);
}

int tn_kcache_lock(tn_kcache *c, bool *waited) { return tn_folder_lock(&c->shared, 60, waited); }

int tn_kcache_keep_failed(tn_kcache *c, const tn_source *src, char path[PATH_MAX])
{
    tn_folder *f = writable_folder(c);
    char name[NAME_MAX];
    entry_name(c, src, "failed-", name);
    struct piece piece[] = {{c->common, c->common_bytes}, {src->text, strlen(src->text)}};
    if (!f || write_file(f->fd, name, piece, 2)) return TN_E_IO;
    snprintf(path, PATH_MAX, "%.*s/%s", (int)(PATH_MAX - NAME_MAX - 2), f->path, name);
    return 0;
}

/* ---- what is loaded -------------------------------------------------------------------------------- */

void *tn_kcache_loaded(const tn_kcache *c, const tn_source *src)
{
    return tn_loaded_find(&c->loaded, src, hash_source(c, src, 0));
}

int tn_kcache_remember(tn_kcache *c, const tn_source *src, void *object)
{
    return tn_loaded_add(&c->loaded, src, hash_source(c, src, 0), object);
}

/* ---- the whole ------------------------------------------------------------------------------------- */

int tn_kcache_open(const tn_kcache_options *o, tn_kcache **out)
{
    tn_kcache *c = *out = tn_calloc(1, sizeof *c);
    if (!c) return TN_E_NOMEM;
    c->shared.fd = c->private.fd = -1;
    c->owner = getpid();
    c->hash = o->hash ? o->hash : default_hash;
    c->limit = o->limit ? o->limit : DEFAULT_LIMIT;
    c->log = o->log;
    c->log_user = o->log_user;
    snprintf(c->suffix, sizeof c->suffix, "%s", o->suffix);
    choose_folder(c, o->dir);
    return 0;
}

int tn_kcache_set_common(tn_kcache *c, const char *common)
{
    char *copy = tn_strdup(common);
    if (!copy) return TN_E_NOMEM;
    tn_free_mem(c->common);
    c->common = copy;
    c->common_bytes = strlen(copy);
    c->common_hash = c->hash(copy, c->common_bytes, FORMAT);
    return 0;
}

void tn_kcache_close(tn_kcache *c)
{
    if (!c) return;
    if (c->shared.fd >= 0) close(c->shared.fd);
    if (c->private.fd >= 0 && c->owner == getpid()) {
        tn_folder_empty(c->private.fd);
        rmdir(c->private.path);
    } else if (c->private.fd >= 0) {
        close(c->private.fd);
    }
    tn_loaded_end(&c->loaded);
    tn_free_mem(c->common);
    tn_free_mem(c);
}
