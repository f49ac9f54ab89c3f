/* whole_file.c - start with tn_whole_open. Every name is looked up in a folder that is held open, so that
 * nobody can put another in its place meanwhile. */
#include "whole_file.h"

#include "../../include/tensor_extend.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINKS = 40, TRIES = 100, DIGITS = 16 };
static const char ending[] = ".part";

/* NAME.RANDOM.part */
static bool is_part_of(const char *file, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(file, name, n) || file[n] != '.') return false;
    const char *digits = file + n + 1;
    return strspn(digits, "0123456789abcdef") == DIGITS && !strcmp(digits + DIGITS, ending);
}

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

DIR *tn_names_in(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0) close(fd);
    return d;
}

/* Removes what nobody is writing any more. It is locked while it goes, so that whoever has just made it finds
 * the lock taken, or the file gone, and makes another. */
static void remove_leftovers(int folder, const char *name)
{
    DIR *d = tn_names_in(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st, there; /* by the time it is locked, another may have that name, and a writer */
        if (!is_part_of(e->d_name, name) || fstatat(folder, e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
            !S_ISREG(st.st_mode) || st.st_uid != geteuid())
            continue;
        int left = openat(folder, e->d_name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (left < 0) continue;
        if (!fstat(left, &st) && !flock(left, LOCK_EX | LOCK_NB) &&
            !fstatat(folder, e->d_name, &there, AT_SYMLINK_NOFOLLOW) && same(&st, &there))
            unlinkat(folder, e->d_name, 0);
        close(left);
    }
    closedir(d);
}

/* Goes from w->folder (or AT_FDCWD) to the folder of `path`, and takes what is left as the name. */
static int enter(tn_whole_file *w, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char part[PATH_MAX] = ".";
    if (slash && snprintf(part, sizeof part, "%.*s", (int)(slash - path) + 1, path) >= (int)sizeof part)
        return ENAMETOOLONG;
    if (snprintf(w->name, sizeof w->name, "%s", name) >= (int)sizeof w->name) return ENAMETOOLONG;
    int fd = openat(w->folder, part, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    if (w->folder >= 0) close(w->folder);
    w->folder = fd;
    return !*name || !strcmp(name, ".") || !strcmp(name, "..") ? EINVAL : 0;
}

/* Finds the folder and the name of the file that `path` stands for, past all links, and what is there. */
static int find(tn_whole_file *w, const char *path)
{
    char text[PATH_MAX];
    struct stat *st = &w->old;
    for (int i = 0; i < LINKS; i++) {
        struct stat folder;
        int why = enter(w, path);
        if (why) return why;
        if (fstatat(w->folder, w->name, st, AT_SYMLINK_NOFOLLOW)) {
            st->st_mode = 0;
            return errno == ENOENT ? 0 : errno;
        }
        if (!S_ISLNK(st->st_mode)) return 0;
        if (fstat(w->folder, &folder)) return errno;
        if (st->st_uid && st->st_uid != geteuid() && st->st_uid != folder.st_uid) return EACCES;
        ssize_t n = readlinkat(w->folder, w->name, text, sizeof text - 1);
        if (n < 0) return errno;
        text[n] = 0;
        path = text;
    }
    return ELOOP;
}

/* Locks the file just made and checks that it is still ours: 0, EAGAIN where another process removes it
 * (remove_leftovers), else an errno. */
static int lock_own(const tn_whole_file *w, int fd)
{
    struct stat own, there;
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) return EAGAIN; /* no locks: no remover either */
    if (fstat(fd, &own)) return errno;
    if (fstatat(w->folder, w->temporary, &there, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? EAGAIN : errno;
    return same(&own, &there) ? 0 : EAGAIN;
}

/* A new file of w's, open and locked, as *out. */
static int make(tn_whole_file *w, int *out)
{
    int why = EAGAIN;
    for (int i = 0; i < TRIES && why == EAGAIN; i++) {
        struct timespec now = {0};
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t r = (uint64_t)now.tv_nsec << 32 ^ (uint64_t)getpid() ^ (uint64_t)i << 24;
        (void)!getrandom(&r, sizeof r, GRND_NONBLOCK); /* without it: O_EXCL is what makes it safe */
        if (snprintf(w->temporary, sizeof w->temporary, "%s.%016" PRIx64 "%s", w->name, r, ending) >=
            (int)sizeof w->temporary)
            return ENAMETOOLONG;
        int fd = openat(w->folder, w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                        w->old.st_mode ? 0600 : 0666);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return errno;
        why = lock_own(w, fd);
        if (!why) {
            *out = fd;
            return 0;
        }
        unlinkat(w->folder, w->temporary, 0);
        close(fd);
    }
    return why;
}

static int open_in_folder(tn_whole_file *w, const char *path)
{
    int fd = -1, why = find(w, path);
    if (why) return why;
    if (w->old.st_mode && !S_ISREG(w->old.st_mode)) return EINVAL;
    if (w->old.st_mode && faccessat(w->folder, w->name, W_OK, AT_EACCESS)) return errno;
    remove_leftovers(w->folder, w->name);
    if ((why = make(w, &fd))) return why;
    if ((w->f = fdopen(fd, "wb"))) return 0;
    why = errno;
    unlinkat(w->folder, w->temporary, 0);
    close(fd);
    return why;
}

int tn_whole_open(tn_whole_file *w, const char *path)
{
    struct stat there;
    *w = (tn_whole_file){.folder = AT_FDCWD};
    if (!stat(path, &there) && !S_ISREG(there.st_mode)) return EINVAL; /* also what /dev/stdout leads to */
    int why = open_in_folder(w, path);
    if (why && w->folder >= 0) close(w->folder);
    return why;
}

/* Gives the new file what the old one had. Where its group cannot be kept, the new group gets no more than
 * others have. */
static int take_over(const tn_whole_file *w)
{
    const struct stat *old = &w->old;
    struct stat own;
    mode_t mode = old->st_mode & 0777;
    int fd = fileno(w->f);
    if (!mode) return 0;
    if (fstat(fd, &own)) return errno;
    if (old->st_gid != own.st_gid && fchown(fd, (uid_t)-1, old->st_gid)) mode &= 0707 | (mode & 07) << 3;
    if (old->st_uid != own.st_uid) (void)!fchown(fd, old->st_uid, (gid_t)-1);
    return fchmod(fd, mode) ? errno : 0;
}

static void done(tn_whole_file *w)
{
    fclose(w->f);
    close(w->folder);
    w->f = NULL;
}

static int synced(int fd)
{
    while (fsync(fd))
        if (errno != EINTR) return -1;
    return 0;
}

int tn_whole_commit(tn_whole_file *w)
{
    errno = EIO; /* of a write that failed earlier */
    int why = ferror(w->f) || fflush(w->f) ? errno : take_over(w);
    if (!why && (synced(fileno(w->f)) || renameat(w->folder, w->temporary, w->folder, w->name))) why = errno;
    if (why) {
        tn_whole_drop(w);
        return why;
    }
    /* It is in place after a crash only once its folder is on the disk, too; best effort. */
    int folder = openat(w->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        (void)synced(folder);
        close(folder);
    }
    done(w);
    return 0;
}

void tn_whole_drop(tn_whole_file *w)
{
    if (!w->f) return;
    unlinkat(w->folder, w->temporary, 0);
    done(w);
}

const char *tn_whole_why(int why) { return why == EINVAL ? "not a regular file" : strerror(why); }

int tn_write_whole(const char *path, int (*write)(FILE *f, void *user), void *user, const char **why)
{
    tn_whole_file w;
    int number = tn_whole_open(&w, path), status = TN_OK;
    if (!number) {
        status = write(w.f, user);
        number = status ? errno : tn_whole_commit(&w);
        if (status) tn_whole_drop(&w);
    }
    if (number && !status) status = number == ENAMETOOLONG ? TN_E_ARG : TN_E_IO;
    *why = status ? tn_whole_why(number) : "";
    return status;
}
