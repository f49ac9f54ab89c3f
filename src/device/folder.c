/* folder.c - start with tn_folder_open. */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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

static bool make_parents(const char *path)
{
    char part[PATH_MAX];
    for (size_t i = 1; path[i]; i++) {
        if (path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0700) && errno != EEXIST && errno != EROFS && errno != EACCES) return false;
    }
    return true;
}

const char *tn_folder_open(tn_folder *f, const char *path, int flags, bool *missing)
{
    *missing = true;
    if (strlen(path) >= sizeof f->path - NAME_MAX - 2) return "its name is too long";
    if (!make_parents(path)) return strerror(errno);
    if (mkdir(path, 0700) && errno != EEXIST && errno != EROFS && errno != EACCES) return strerror(errno);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    if (fd < 0) return strerror(errno);
    *missing = false;
    struct stat st;
    const char *why = NULL;
    if (fstat(fd, &st))
        why = strerror(errno);
    else if (st.st_uid != geteuid())
        why = "it belongs to another user";
    else if (st.st_mode & (S_IWGRP | S_IWOTH))
        why = "others may write to it";
    else if (!realpath(path, f->path))
        why = strerror(errno);
    if (why) {
        close(fd);
        return why;
    }
    f->fd = fd;
    f->flags = flags;
    return NULL;
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
