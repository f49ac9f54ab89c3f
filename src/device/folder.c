/* folder.c - start with tn_folder_open. */
#include "folder.h"

#include "../core/settings.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define ROOM ((uint64_t)8 << 20) /* free bytes that compiling a batch may take for a while */

void tn_folder_empty(int fd)
{
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
}

/* ---- whether others can interfere --------------------------------------------------------------------- */

/* Many systems give each user a group of his own, to which his files may be writable. */
static bool is_own_group(gid_t gid)
{
    char of_user[4096], of_group[4096];
    struct passwd user, *u = NULL;
    struct group group, *g = NULL;
    if (getpwuid_r(geteuid(), &user, of_user, sizeof of_user, &u) || !u || u->pw_gid != gid ||
        getgrgid_r(gid, &group, of_group, sizeof of_group, &g) || !g || strcmp(g->gr_name, u->pw_name))
        return false;
    for (char **member = g->gr_mem; *member; member++)
        if (strcmp(*member, u->pw_name)) return false;
    return true;
}

/* A folder above that others may write to would let them put another one in the place of what is below it.
 * Root is whoever owns "/": in a user namespace both may go by another number. */
static bool is_safe_above(const struct stat *st)
{
    struct stat root;
    bool trusted = !st->st_uid || st->st_uid == geteuid() || (!stat("/", &root) && st->st_uid == root.st_uid);
    bool others = st->st_mode & S_IWOTH || (st->st_mode & S_IWGRP && !is_own_group(st->st_gid));
    return trusted && (!others || st->st_mode & S_ISVTX);
}

/* Looks at each folder of an absolute path without links, from the root down to the last. */
static bool all_safe(const char *path, tn_errbuf *why)
{
    char part[PATH_MAX];
    struct stat st;
    for (size_t i = 1, n = strlen(path); i <= n; i++) {
        if (i < n && path[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        bool known = !stat(part, &st);
        if (known && is_safe_above(&st)) continue;
        snprintf(why->text, sizeof why->text,
                 known ? "others may write to %.300s" : "%.300s cannot be looked at", part);
        return false;
    }
    return true;
}

bool tn_folder_next_place(int *i, char path[PATH_MAX])
{
    static const char *const usual[] = {"/tmp", "/var/tmp", "/dev/shm"};
    tn_errbuf why;
    while (*i <= (int)(sizeof usual / sizeof *usual)) {
        const char *place = *i ? usual[*i - 1] : tn_setting("TMPDIR");
        ++*i;
        if (place && *place == '/' && realpath(place, path) && strlen(path) < PATH_MAX - 64 &&
            all_safe(path, &why))
            return true;
    }
    return false;
}

/* ---- the folder itself -------------------------------------------------------------------------------- */

static bool refused(tn_errbuf *why, const char *text)
{
    snprintf(why->text, sizeof why->text, "%s", text);
    return false;
}

/* Makes what is missing of the path, where what is there is safe. */
static bool make(const char *path, tn_errbuf *why)
{
    char part[PATH_MAX], above[PATH_MAX];
    struct stat st;
    snprintf(above, sizeof above, *path == '/' ? "/" : ".");
    bool checked = false;
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] && path[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (stat(part, &st)) {
            char whole[PATH_MAX];
            if (!checked && !realpath(above, whole)) return refused(why, strerror(errno));
            if (!checked && !all_safe(whole, why)) return false;
            checked = true;
            if (mkdir(part, 0700) && errno != EEXIST) return refused(why, strerror(errno));
        }
        strcpy(above, part);
    }
    return true;
}

bool tn_folder_open(tn_folder *f, const char *path, int flags, bool *missing, tn_errbuf *why)
{
    *missing = true;
    if (strlen(path) >= sizeof f->path - NAME_MAX - 2) return refused(why, "its name is too long");
    if (!make(path, why)) return false;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    if (fd < 0) return refused(why, strerror(errno));
    *missing = false;
    struct stat st, there;
    bool good = false;
    if (fstat(fd, &st) || !realpath(path, f->path) || stat(f->path, &there))
        refused(why, strerror(errno));
    else if (st.st_uid != geteuid())
        refused(why, "it belongs to another user");
    else if (st.st_mode & (S_IWGRP | S_IWOTH))
        refused(why, "others may write to it");
    else if (st.st_ino != there.st_ino || st.st_dev != there.st_dev)
        refused(why, "another one came into its place");
    else
        good = all_safe(f->path, why);
    f->fd = good ? fd : -1;
    f->flags = flags;
    if (!good) close(fd);
    return good;
}

bool tn_folder_has_room(const char *path)
{
    struct statvfs v;
    if (statvfs(path, &v) == 0 && v.f_blocks && (uint64_t)v.f_bavail * v.f_frsize < ROOM) {
        errno = ENOSPC;
        return false;
    }
    static const char page[4096]; /* quotas, and disks gone bad, show in a write only */
    char file[PATH_MAX];
    errno = ENOSPC; /* for a write that stops half way */
    snprintf(file, sizeof file, "%.*s/room", PATH_MAX - 16, path);
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, page, sizeof page) == (ssize_t)sizeof page;
    int why = errno;
    if (fd >= 0) close(fd);
    if (fd >= 0) unlink(file);
    errno = why;
    return ok;
}

bool tn_folder_is_gone(const tn_folder *f)
{
    struct stat own, there;
    return f->fd >= 0 && !fstat(f->fd, &own) &&
           (stat(f->path, &there) || there.st_ino != own.st_ino || there.st_dev != own.st_dev);
}

int tn_folder_lock(const tn_folder *f, int seconds, bool *waited)
{
    const struct timespec moment = {0, 10000000};
    int fd = f->fd < 0 ? -1 : openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *waited = false;
    for (int64_t turns = seconds * INT64_C(100); fd >= 0; turns--) {
        if (!flock(fd, LOCK_EX | LOCK_NB)) return fd;
        if (errno != EWOULDBLOCK || turns <= 0) break;
        *waited = true;
        nanosleep(&moment, NULL);
    }
    if (fd >= 0) close(fd);
    return -1;
}
