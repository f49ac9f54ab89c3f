/* files.c - the folder in which compiled kernels are kept, whole files, a hash, growing strings.
 *
 * TENSOR_CUSIM_CACHE names the folder; else it is cusim in TENSOR_CACHE, else cusim-UID in the folder for
 * temporary files. */
#include "nvrtc.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool make_folders(char *path)
{
    for (char *c = path + 1;; c++) {
        if (*c && *c != '/') continue;
        char kept = *c;
        *c = 0;
        bool made = !mkdir(path, 0700) || errno == EEXIST;
        *c = kept;
        if (!kept) return made;
    }
}

bool sim_cache_folder(char path[])
{
    const char *own = getenv("TENSOR_CUSIM_CACHE"), *common = getenv("TENSOR_CACHE"), *tmp = getenv("TMPDIR");
    int n;
    if (own && *own)
        n = snprintf(path, PATH_MAX, "%s", own);
    else if (common && *common)
        n = snprintf(path, PATH_MAX, "%s/cusim", common);
    else
        n = snprintf(path, PATH_MAX, "%s/cusim-%d", tmp && *tmp ? tmp : "/tmp", (int)getuid());
    if (n >= PATH_MAX - 100 || !make_folders(path)) return false;
    if (*path == '/') return true;
    char here[PATH_MAX], relative[PATH_MAX];
    memcpy(relative, path, (size_t)n + 1);
    return getcwd(here, sizeof here) && snprintf(path, PATH_MAX, "%s/%s", here, relative) < PATH_MAX - 100;
}

char *sim_read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rbe");
    if (!f) return NULL;
    char *text = NULL;
    if (!fseek(f, 0, SEEK_END)) {
        long n = ftell(f);
        rewind(f);
        text = n >= 0 ? malloc((size_t)n + 1) : NULL;
        if (text && fread(text, 1, (size_t)n, f) == (size_t)n) {
            text[n] = 0;
            *bytes = (size_t)n;
        } else {
            free(text);
            text = NULL;
        }
    }
    fclose(f);
    return text;
}

bool sim_write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wbe");
    if (!f) return false;
    bool good = fwrite(data, 1, bytes, f) == bytes;
    return !fclose(f) && good;
}

/* Two runs of FNV-1a over the bytes, eight at a time, that begin apart. */
void sim_hash_begin(unsigned long long hash[2])
{
    hash[0] = 14695981039346656037u;
    hash[1] = 0x9e3779b97f4a7c15u;
}

void sim_hash_add(unsigned long long hash[2], const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i += 8) {
        unsigned long long word = bytes - i;
        memcpy(&word, p + i, bytes - i < 8 ? bytes - i : 8);
        for (int k = 0; k < 2; k++) {
            hash[k] = (hash[k] ^ word) * (k ? 0xff51afd7ed558ccdu : 1099511628211u);
            hash[k] ^= hash[k] >> 32;
        }
    }
}

void sim_text_add(sim_text *t, const char *s, size_t n)
{
    if (t->failed) return;
    if (t->n + n + 1 > t->room) {
        size_t room = 2 * (t->n + n + 1);
        char *grown = realloc(t->s, room);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->s = grown;
        t->room = room;
    }
    memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

void sim_text_put(sim_text *t, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof line)
        t->failed = true;
    else
        sim_text_add(t, line, (size_t)n);
}
