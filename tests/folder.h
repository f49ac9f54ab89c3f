/* folder.h - a folder of the test run's own, and folders within it for single tests.
 *
 * make_base and drop_base are the set-up and clean-up of a cmocka group. Read first: fresh_dir. */
#pragma once

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>

#include "tests/test.h"

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

/* A path of this name in the run's folder; valid until the fourth call from now. */
static inline const char *in_base(const char *name)
{
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[0], "%s/%s", base, name);
    return path[turn];
}

/* One that nothing stands at yet; valid as long. */
static inline const char *fresh_dir(void)
{
    static int n;
    char name[16];
    snprintf(name, sizeof name, "%d", n++);
    return in_base(name);
}

/* Writes a file of these bytes, or of this text. */
static inline void spill(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static inline void spill_text(const char *path, const char *text) { spill(path, text, strlen(text)); }

/* The bytes of a file and a zero behind them, the caller's to free; NULL where there is none. */
static inline char *slurp(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    struct stat st;
    assert_int_equal(fstat(fileno(f), &st), 0);
    char *data = malloc((size_t)st.st_size + 1);
    assert_non_null(data);
    const size_t n = fread(data, 1, (size_t)st.st_size, f);
    data[n] = 0;
    if (bytes) *bytes = n;
    fclose(f);
    return data;
}

/* The file is this text. */
static inline bool holds(const char *path, const char *text)
{
    size_t n = 0;
    char *is = slurp(path, &n);
    const bool yes = is && n == strlen(text) && !memcmp(is, text, n);
    free(is);
    return yes;
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
