/* whole_file.c - start with tn_whole_open. */
#include "whole_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char ending[] = ".part";

/* The folder a path lies in, open; -1 and errno. *name: what is left of the path. */
static int open_folder(const char *path, const char **name)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    int n = slash ? (int)(slash - path) + 1 : 1;
    snprintf(folder, sizeof folder, "%.*s", n, slash ? path : ".");
    return open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* NAME.PID.part */
static bool is_part_of(const char *file, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(file, name, n) || file[n] != '.') return false;
    const char *digits = file + n + 1;
    size_t k = strspn(digits, "0123456789");
    return k && !strcmp(digits + k, ending);
}

/* Removes what nobody is writing any more. It is locked while it goes, so that whoever has just made it and
 * waits for the lock finds it gone and makes another (lock_own). */
static void remove_leftovers(const char *path)
{
    const char *name;
    int fd = open_folder(path, &name);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0) close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (!is_part_of(e->d_name, name)) continue;
        int left = openat(dirfd(d), e->d_name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (left < 0) continue;
        struct stat st, there; /* by the time it is locked, another may have that name, and a writer */
        if (!fstat(left, &st) && S_ISREG(st.st_mode) && !flock(left, LOCK_EX | LOCK_NB) &&
            !fstatat(dirfd(d), e->d_name, &there, AT_SYMLINK_NOFOLLOW) && st.st_ino == there.st_ino &&
            st.st_dev == there.st_dev)
            unlinkat(dirfd(d), e->d_name, 0);
        close(left);
    }
    closedir(d);
}

/* Whether fd, locked now, is still the file of that name. */
static bool lock_own(int fd, const char *temporary)
{
    struct stat own, there;
    while (flock(fd, LOCK_EX))
        if (errno != EINTR) break; /* no locks here: nobody else removes it either */
    return !fstat(fd, &own) && !stat(temporary, &there) && own.st_ino == there.st_ino &&
           own.st_dev == there.st_dev;
}

int tn_whole_open(tn_whole_file *w, const char *path)
{
    struct stat there;
    w->f = NULL;
    if (!stat(path, &there) && !S_ISREG(there.st_mode)) return EINVAL;
    if (snprintf(w->temporary, sizeof w->temporary, "%s.%ld%s", path, (long)getpid(), ending) >=
        (int)sizeof w->temporary)
        return ENAMETOOLONG;
    remove_leftovers(path);
    int fd = -1;
    for (bool own = false; !own;) {
        fd = open(w->temporary, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) return errno;
        own = lock_own(fd, w->temporary);
        if (!own) close(fd);
    }
    int why = ftruncate(fd, 0) ? errno : 0;
    if (!why && !(w->f = fdopen(fd, "wb"))) why = errno;
    if (!why) return 0;
    unlink(w->temporary);
    close(fd);
    return why;
}

int tn_whole_commit(tn_whole_file *w, const char *path)
{
    errno = EIO; /* of a write that failed earlier */
    bool ok = !ferror(w->f) && !fflush(w->f) && !fsync(fileno(w->f)) && !rename(w->temporary, path);
    int why = ok ? 0 : errno;
    if (why) unlink(w->temporary);
    if (fclose(w->f) && !why) why = errno;
    w->f = NULL;
    if (why) return why;
    const char *name; /* it is in place after a crash only once its folder is on the disk, too; best effort */
    int folder = open_folder(path, &name);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
    return 0;
}

void tn_whole_drop(tn_whole_file *w)
{
    if (!w->f) return;
    unlink(w->temporary);
    fclose(w->f);
    w->f = NULL;
}
