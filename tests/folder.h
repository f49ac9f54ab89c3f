/* folder.h - a folder of the test run's own, and folders within it for single tests.
 *
 * make_base and drop_base are the set-up and clean-up of a cmocka group. Read first: fresh_dir.
 */
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char base[64];

static inline int make_base(void **state)
{
    (void)state;
    strcpy(base, "/tmp/tn-test-XXXXXX");
    return mkdtemp(base) ? 0 : 1;
}

static inline int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path);
}

static inline int open_folder(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)where;
    return kind == FTW_D ? chmod(path, 0700) : 0;
}

/* The folder with all that is in it, also where a test took the right to write away. */
static inline int remove_tree(const char *path)
{
    nftw(path, open_folder, 16, FTW_PHYS);
    return nftw(path, remove_entry, 16, FTW_PHYS | FTW_DEPTH);
}

static inline int drop_base(void **state)
{
    (void)state;
    return remove_tree(base);
}

/* A path in the run's folder that nothing stands at yet; valid until the next call. */
static inline const char *fresh_dir(void)
{
    static char path[128];
    static int n;
    snprintf(path, sizeof path, "%s/%d", base, n++);
    return path;
}

/* Files whose names end so; hidden ones do not count. */
static inline int count_files(const char *dir, const char *ending)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t a = strlen(e->d_name), b = strlen(ending);
        n += a >= b && !strcmp(e->d_name + a - b, ending) && e->d_name[0] != '.';
    }
    if (d) closedir(d);
    return n;
}

#endif
