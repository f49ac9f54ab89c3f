/* files.h - names of files, looked at before an hour of training and not after it. */
#pragma once

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A name with one of the endings tn_report knows. */
static inline bool is_report(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (!strcmp(dot, ".html") || !strcmp(dot, ".json") || !strcmp(dot, ".txt"));
}

/* Whether a file can be written there. What is at `path`, or where a link leads, stays as it is: a file is
 * made beside it, and removed. Else *why says what is wrong. */
static inline bool can_be_written(const char *path, const char **why)
{
    char beside[PATH_MAX], real[PATH_MAX];
    struct stat st;
    *why = "not a regular file";
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) return false;
    *why = "it has no name";
    size_t n = strlen(path);
    if (!n || path[n - 1] == '/') return false;
    *why = "the name is too long";
    if (snprintf(beside, sizeof(beside), "%s.XXXXXX", realpath(path, real) ? real : path) >=
        (int)sizeof(beside))
        return false;
    int fd = mkstemp(beside);
    *why = strerror(errno);
    if (fd < 0) return false;
    close(fd);
    remove(beside);
    return true;
}
