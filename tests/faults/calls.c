/* calls.c - each wrapper asks `fails` and otherwise calls what it stands for. Start with fails. */
#include "calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const call_name[CALL_KINDS] = {
#define KIND(name) [CALL_##name] = #name,
#include "kinds.def"
#undef KIND
};

static atomic_long made[CALL_KINDS], failed;
static atomic_int armed = -1, paused;
static long at;
static bool for_good;
static _Thread_local int inside; /* a wrapper of ours: what it calls counts as part of it */

void calls_arm(call_kind kind, long n, bool on)
{
    at = n;
    for_good = on;
    for (int i = 0; i < CALL_KINDS; i++) atomic_store(&made[i], 0);
    atomic_store(&failed, 0);
    atomic_store(&paused, 0);
    atomic_store(&armed, (int)kind);
}

void calls_disarm(void) { atomic_store(&armed, -1); }

void calls_pause(bool pause) { atomic_store(&paused, pause); }

long calls_made(call_kind kind) { return atomic_load(&made[kind]); }

long calls_failed(void) { return atomic_load(&failed); }

static bool fails(call_kind kind, int why)
{
    int watched = atomic_load(&armed);
    if (watched < 0 || (at && watched != (int)kind) || atomic_load(&paused) || inside) return false;
    long n = atomic_fetch_add(&made[kind], 1) + 1;
    if (!at || (for_good ? n < at : n != at)) return false;
    atomic_fetch_add(&failed, 1);
    errno = why;
    return true;
}

/* ---- memory ---- */

extern void *__libc_malloc(size_t bytes), *__libc_calloc(size_t n, size_t size),
    *__libc_realloc(void *p, size_t bytes), *__libc_memalign(size_t align, size_t bytes);
extern void __libc_free(void *p);

enum { SLOTS = 1 << 15, FRAMES = 8 };
static void **table; /* open addressing, without gaps; small, as each page of it is a page's fault */
static void *(*from_whom)[FRAMES]; /* of the block in the same slot, where that is traced */
static long n_blocks;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static uint32_t slot_of(const void *p)
{
    return (uint32_t)((uintptr_t)p >> 4) * 2654435761u >> 17 & (SLOTS - 1);
}

static void note(void *p, void *from)
{
    if (!table || !p || inside) return;
    inside++;
    void *frame[FRAMES + 2] = {NULL};
    int frames = from_whom ? backtrace(frame, FRAMES + 2) : 0;
    while (atomic_flag_test_and_set(&busy)) {
    }
    if (++n_blocks == SLOTS) abort();
    uint32_t i = slot_of(p);
    while (table[i]) i = (i + 1) & (SLOTS - 1);
    table[i] = p;
    if (from_whom) {
        from_whom[i][0] = from;
        for (int k = 2; k < frames; k++) from_whom[i][k - 2] = frame[k];
        for (int k = frames > 2 ? frames - 2 : 1; k < FRAMES; k++) from_whom[i][k] = NULL;
    }
    atomic_flag_clear(&busy);
    inside--;
}

static void forget(const void *p)
{
    if (!table || !p) return;
    while (atomic_flag_test_and_set(&busy)) {
    }
    uint32_t i = slot_of(p);
    while (table[i] && table[i] != p) i = (i + 1) & (SLOTS - 1);
    if (table[i]) n_blocks--;
    for (uint32_t k = i; table[i];) { /* what stands behind and could stand here moves up */
        k = (k + 1) & (SLOTS - 1);
        if (table[k] && ((k - slot_of(table[k])) & (SLOTS - 1)) < ((k - i) & (SLOTS - 1))) continue;
        table[i] = table[k];
        if (table[k] && from_whom) memcpy(from_whom[i], from_whom[k], sizeof *from_whom);
        i = k;
    }
    atomic_flag_clear(&busy);
}

static void *pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void blocks_watch(bool trace)
{
    void *frame[1];
    if (trace) backtrace(frame, 1); /* it loads a library the first time */
    if (trace) from_whom = pages(SLOTS * sizeof *from_whom);
    table = pages(SLOTS * sizeof *table);
}

long blocks_live(void (*each)(void *const from[], int n, void *user), void *user)
{
    inside++;
    for (uint32_t i = 0; each && from_whom && i < SLOTS; i++)
        if (table[i]) each(from_whom[i], FRAMES, user);
    inside--;
    return n_blocks;
}

#define FROM __builtin_return_address(0)

void *malloc(size_t bytes)
{
    void *p = fails(CALL_malloc, ENOMEM) ? NULL : __libc_malloc(bytes);
    note(p, FROM);
    return p;
}

void *calloc(size_t n, size_t size)
{
    void *p = fails(CALL_malloc, ENOMEM) ? NULL : __libc_calloc(n, size);
    note(p, FROM);
    return p;
}

void *realloc(void *p, size_t bytes)
{
    if (fails(CALL_malloc, ENOMEM)) return NULL;
    forget(p);
    void *q = __libc_realloc(p, bytes);
    note(q ? q : bytes ? p : NULL, FROM);
    return q;
}

static void *aligned(size_t align, size_t bytes, void *from)
{
    void *p = fails(CALL_malloc, ENOMEM) ? NULL : __libc_memalign(align, bytes);
    note(p, from);
    return p;
}

int posix_memalign(void **p, size_t align, size_t bytes)
{
    void *q = aligned(align, bytes, FROM);
    if (q) *p = q;
    return q ? 0 : ENOMEM;
}

void *aligned_alloc(size_t align, size_t bytes) { return aligned(align, bytes, FROM); }

void *memalign(size_t align, size_t bytes);
void *memalign(size_t align, size_t bytes) { return aligned(align, bytes, FROM); }

void free(void *p)
{
    forget(p);
    __libc_free(p);
}

/* ---- the system ---- */

#define REAL(type, name, ...)                                                                                \
    static type (*real)(__VA_ARGS__);                                                                        \
    if (!real) {                                                                                             \
        inside++;                                                                                            \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                                                           \
        inside--;                                                                                            \
    }

/* What libc allocates inside is its own: a failure there is one of malloc's. */
#define WRAP(kind, why, failure, type, name, params, args)                                                   \
    type name params                                                                                         \
    {                                                                                                        \
        static type(*real) params;                                                                           \
        if (!real) {                                                                                         \
            inside++;                                                                                        \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                                       \
            inside--;                                                                                        \
        }                                                                                                    \
        return fails(CALL_##kind, why) ? failure : real args;                                                \
    }

WRAP(mmap, ENOMEM, MAP_FAILED, void *, mmap, (void *a, size_t n, int p, int f, int fd, off_t o),
     (a, n, p, f, fd, o))
WRAP(mprotect, ENOMEM, -1, int, mprotect, (void *a, size_t n, int p), (a, n, p))
WRAP(madvise, EINVAL, -1, int, madvise, (void *a, size_t n, int w), (a, n, w))
WRAP(munmap, ENOMEM, -1, int, munmap, (void *a, size_t n), (a, n))
WRAP(fopen, EMFILE, NULL, FILE *, fopen, (const char *p, const char *m), (p, m))
WRAP(fdopen, ENOMEM, NULL, FILE *, fdopen, (int fd, const char *m), (fd, m))
WRAP(opendir, EMFILE, NULL, DIR *, opendir, (const char *p), (p))
WRAP(opendir, EMFILE, NULL, DIR *, fdopendir, (int fd), (fd))
WRAP(mkdir, ENOSPC, -1, int, mkdir, (const char *p, mode_t m), (p, m))
WRAP(mkdir, ENOSPC, -1, int, mkdirat, (int d, const char *p, mode_t m), (d, p, m))
WRAP(mkdir, ENOSPC, NULL, char *, mkdtemp, (char *p), (p))
WRAP(mkostemp, EMFILE, -1, int, mkostemp, (char *p, int f), (p, f))
WRAP(memfd_create, EMFILE, -1, int, memfd_create, (const char *p, unsigned f), (p, f))
WRAP(ftruncate, EIO, -1, int, ftruncate, (int fd, off_t n), (fd, n))
WRAP(stat, EIO, -1, int, stat, (const char *p, struct stat *s), (p, s))
WRAP(stat, EIO, -1, int, lstat, (const char *p, struct stat *s), (p, s))
WRAP(stat, EIO, -1, int, fstatat, (int d, const char *p, struct stat *s, int f), (d, p, s, f))
WRAP(fstat, EIO, -1, int, fstat, (int fd, struct stat *s), (fd, s))
WRAP(access, EIO, -1, int, access, (const char *p, int m), (p, m))
WRAP(realpath, EIO, NULL, char *, realpath, (const char *p, char *q), (p, q))
WRAP(read, EIO, -1, ssize_t, read, (int fd, void *b, size_t n), (fd, b, n))
WRAP(read, EIO, -1, ssize_t, pread, (int fd, void *b, size_t n, off_t o), (fd, b, n, o))
WRAP(read, EIO, -1, ssize_t, getdelim, (char **l, size_t *n, int d, FILE *f), (l, n, d, f))
WRAP(read, EIO, -1, ssize_t, __getdelim, (char **l, size_t *n, int d, FILE *f), (l, n, d, f))
WRAP(read, EIO, NULL, char *, fgets, (char *b, int n, FILE *f), (b, n, f))
WRAP(fread, EIO, 0, size_t, fread, (void *p, size_t s, size_t n, FILE *f), (p, s, n, f))
WRAP(write, ENOSPC, -1, ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n))
WRAP(write, ENOSPC, -1, ssize_t, pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
WRAP(fwrite, ENOSPC, 0, size_t, fwrite, (const void *p, size_t s, size_t n, FILE *f), (p, s, n, f))
WRAP(fflush, ENOSPC, EOF, int, fflush, (FILE * f), (f))
WRAP(fclose, ENOSPC, (real(f), errno = ENOSPC, EOF), int, fclose, (FILE * f), (f))
WRAP(close, EIO, (real(fd), errno = EIO, -1), int, close, (int fd), (fd))
WRAP(fsync, EIO, -1, int, fsync, (int fd), (fd))
WRAP(rename, EIO, -1, int, rename, (const char *a, const char *b), (a, b))
WRAP(rename, EIO, -1, int, renameat, (int d, const char *a, int e, const char *b), (d, a, e, b))
WRAP(rename, EIO, -1, int, linkat, (int d, const char *a, int e, const char *b, int f), (d, a, e, b, f))
WRAP(unlink, EACCES, -1, int, unlink, (const char *p), (p))
WRAP(unlink, EACCES, -1, int, unlinkat, (int d, const char *p, int f), (d, p, f))
WRAP(flock, ENOLCK, -1, int, flock, (int fd, int how), (fd, how))
WRAP(futimens, EPERM, -1, int, futimens, (int fd, const struct timespec t[2]), (fd, t))
WRAP(readdir, EIO, NULL, struct dirent *, readdir, (DIR * d), (d))
WRAP(posix_spawn, EAGAIN, EAGAIN, int, posix_spawnp,
     (pid_t * p, const char *f, const posix_spawn_file_actions_t *a, const posix_spawnattr_t *b,
      char *const v[], char *const e[]),
     (p, f, a, b, v, e))
WRAP(waitpid, ECHILD, -1, pid_t, waitpid, (pid_t p, int *s, int o), (p, s, o))
WRAP(pthread_create, EAGAIN, EAGAIN, int, pthread_create,
     (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *u), (t, a, f, u))
WRAP(getrandom, ENOSYS, -1, ssize_t, getrandom, (void *p, size_t n, unsigned f), (p, n, f))

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = (mode_t)va_arg(ap, int);
    va_end(ap);
    REAL(int, open, const char *, int, ...)
    return fails(CALL_open, EMFILE) ? -1 : real(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = (mode_t)va_arg(ap, int);
    va_end(ap);
    REAL(int, openat, int, const char *, int, ...)
    return fails(CALL_openat, EMFILE) ? -1 : real(folder, path, flags, mode);
}

/* What dlerror says afterwards is of a file that is not there. */
void *dlopen(const char *path, int flags)
{
    REAL(void *, dlopen, const char *, int)
    return real(fails(CALL_dlopen, ENOMEM) ? "/no/such/object" : path, flags);
}
