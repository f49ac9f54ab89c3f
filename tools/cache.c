/* cache.c - compiled kernels that are kept between runs: what there is, whether it is as it was written, and
 * its removal. Profiles and choices by timing, which stand in the same folder, are left alone. Start with
 * tool_cache. */
#include "tool.h"

#include "../src/device/kcache.h"

#include <stdlib.h>
#include <string.h>

typedef struct kept {
    char *name;
    size_t bytes;
} kept;

typedef struct listing {
    kept *file;
    size_t n, room;
    bool failed;
} listing;

static void note(const char *name, size_t bytes, void *user)
{
    listing *l = user;
    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 256;
        kept *grown = tn_realloc(l->file, l->room * sizeof(*l->file));
        if (!grown) {
            l->failed = true;
            return;
        }
        l->file = grown;
    }
    char *copy = tn_malloc(strlen(name) + 1);
    if (!copy) {
        l->failed = true;
        return;
    }
    strcpy(copy, name);
    l->file[l->n++] = (kept){copy, bytes};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const kept *)a)->name, ((const kept *)b)->name);
}

static void drop(listing *l)
{
    for (size_t i = 0; i < l->n; i++) tn_free_mem(l->file[i].name);
    tn_free_mem(l->file);
}

static void say_warning(int level, const char *text, void *user)
{
    (void)level, (void)user;
    tool_say("%s", text);
}

static bool is_entry(const char *name)
{
    const size_t n = strlen(name);
    return n > 2 && !strcmp(name + n - 2, ".c");
}

typedef enum what { LIST, VERIFY, CLEAR } what;

/* What is told is counted, too. */
static void look(tn_kcache *c, const listing *l, what w, size_t *entries, size_t *bytes, size_t *bad)
{
    for (size_t i = 0; i < l->n; i++) {
        const kept *k = &l->file[i];
        const bool entry = is_entry(k->name);
        if (w == CLEAR && !tn_kcache_remove(c, k->name)) continue;
        if (w != CLEAR && entry && !tn_kcache_is_whole(c, k->name)) {
            printf("%10zu  %s  damaged: it will be compiled anew\n", k->bytes, tool_clean(k->name));
            ++*bad;
        } else if (w == LIST && entry) {
            printf("%10zu  %s\n", k->bytes, tool_clean(k->name));
        }
        *entries += entry;
        *bytes += k->bytes;
    }
}

static int cache(const char *dir, what w)
{
    static const char *const verb[] = {"kept", "verified", "removed"};
    size_t entries = 0, bytes = 0, bad = 0;
    const tn_kcache_options o = {.dir = dir, .suffix = "", .log = say_warning};
    tn_kcache *c = NULL;
    listing l = {.n = 0};
    if (tn_kcache_open(&o, &c)) return tool_say("out of memory");
    const char *folder = tn_kcache_folder(c); /* else the log has said why not */
    int status = folder ? tn_kcache_each(c, note, &l) : TN_E_IO;
    if (folder && (status || l.failed))
        status = tool_say("%s: %s", folder, l.failed ? "out of memory" : "cannot be read");
    if (!status) {
        if (l.n) qsort(l.file, l.n, sizeof(*l.file), by_name);
        look(c, &l, w, &entries, &bytes, &bad);
        printf("%s: %zu kernels %s, %.1f MB", tool_clean(folder), entries, verb[w], (double)bytes * 1e-6);
        if (bad) printf(", %zu damaged", bad);
        printf("\n");
    }
    drop(&l);
    tn_kcache_close(c);
    return status ? TOOL_TROUBLE : bad ? TOOL_DIFFERS : TOOL_OK;
}

int tool_cache_list(const char *dir) { return cache(dir, LIST); }

int tool_cache(int n, char **arg)
{
    static const char *const name[] = {"list", "verify", "clear"};
    const char *dir = tool_option(&n, arg, "--dir");
    const int status = tool_operands(n, arg, 1, 1, "cache: list, verify or clear?");
    for (int w = 0; !status && w < 3; w++)
        if (!strcmp(arg[0], name[w])) return cache(dir, (what)w);
    return status ? status : tool_misused("cache: list, verify or clear?");
}
