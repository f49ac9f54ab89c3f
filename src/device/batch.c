/* batch.c - start with tn_compiling_find. */
#include "batch.h"

#include "../core/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what is there already --------------------------------------------------------------------------- */

static bool is_pending(const tn_compiling *b, const tn_source *s)
{
    for (int i = 0; i < b->count; i++) {
        const tn_source *p = &b->src[b->pending[i].index];
        if (!strcmp(p->entry, s->entry) && !strcmp(p->text, s->text)) return true;
    }
    return false;
}

static void look(tn_compiling *b)
{
    b->count = 0;
    for (int i = 0; i < b->n; i++) {
        if (b->out[i]) continue;
        b->out[i] = tn_kcache_loaded(b->cache, &b->src[i]);
        if (!b->out[i] && is_pending(b, &b->src[i])) continue;
        if (!b->out[i]) b->out[i] = b->from_disk(b->device, &b->src[i]);
        b->stats->cache_hits += b->out[i] != NULL;
        if (b->out[i]) continue;
        b->pending[b->count++] = (tn_pending){.index = i, .bytes = strlen(b->src[i].text)};
    }
}

int tn_compiling_find(tn_compiling *b)
{
    b->lock = -1;
    b->pending = tn_calloc((size_t)b->n + 1, sizeof *b->pending);
    if (!b->pending) return TN_E_NOMEM;
    look(b);
    bool waited = false;
    if (b->count) b->lock = tn_kcache_lock(b->cache, &waited);
    if (waited) look(b);
    return 0;
}

void tn_compiling_end(tn_compiling *b)
{
    for (int i = 0; i < b->n; i++)
        if (!b->out[i]) b->out[i] = tn_kcache_loaded(b->cache, &b->src[i]);
    if (b->lock >= 0) close(b->lock);
    tn_free_mem(b->pending);
    b->pending = NULL;
}

/* ---- units ------------------------------------------------------------------------------------------- */

static int longest_first(const void *a, const void *b)
{
    const tn_pending *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->index - y->index;
}

static void name_symbol(tn_compiling *b, int which)
{
    tn_pending *p = &b->pending[which];
    const char *entry = b->src[p->index].entry;
    int turn = 0;
    snprintf(p->symbol, sizeof p->symbol, "%s", entry);
    for (int i = 0; i < which; i++)
        if (b->pending[i].unit == p->unit && !strcmp(b->pending[i].symbol, p->symbol)) {
            snprintf(p->symbol, sizeof p->symbol, "%.200s__%d", entry, ++turn);
            i = -1;
        }
}

int tn_compiling_share_out(tn_compiling *b, int units)
{
    size_t *load = tn_calloc((size_t)units, sizeof *load);
    if (!load) return TN_E_NOMEM;
    qsort(b->pending, (size_t)b->count, sizeof *b->pending, longest_first);
    for (int i = 0; i < b->count; i++) {
        int least = 0;
        for (int u = 1; u < units; u++)
            if (load[u] < load[least]) least = u;
        b->pending[i].unit = least;
        load[least] += b->pending[i].bytes;
        name_symbol(b, i);
    }
    tn_free_mem(load);
    return 0;
}

const char *tn_next_macro(const char **at, size_t *n)
{
    static const char word[] = "#define ";
    for (const char *s; (s = strstr(*at, word));) {
        const bool first = s == *at || s[-1] == '\n';
        const char *name = *at = s + sizeof word - 1;
        *n = strcspn(name, "( \n");
        if (first && strncmp(name, "TN_", 3) != 0) return name;
    }
    return NULL;
}

bool tn_compiling_write(const tn_compiling *b, int unit, const char *common, const char *suffix, FILE *f)
{
    fputs(common, f);
    for (int i = 0; i < b->count; i++) {
        const tn_pending *p = &b->pending[i];
        if (p->unit != unit) continue;
        const tn_source *s = &b->src[p->index];
        const bool renamed = strcmp(p->symbol, s->entry) != 0;
        if (renamed) fprintf(f, "#define %s %s\n", s->entry, p->symbol);
        if (renamed) fprintf(f, "#define %s%s %s%s\n", s->entry, TN_FINISH, p->symbol, TN_FINISH);
        fprintf(f, "#line 1 \"%s%s\"\n%s\n", s->entry, suffix, s->text);
        if (renamed) fprintf(f, "#undef %s\n", s->entry);
        if (renamed) fprintf(f, "#undef %s%s\n", s->entry, TN_FINISH);
        size_t n;
        for (const char *at = s->text, *name; (name = tn_next_macro(&at, &n));)
            fprintf(f, "#undef %.*s\n", (int)n, name);
    }
    return !ferror(f);
}

int tn_compiling_put(const tn_compiling *b, int unit, const char *file, char path[PATH_MAX])
{
    const tn_source **src = tn_calloc((size_t)b->count, sizeof *src);
    const char **symbol = tn_calloc((size_t)b->count, sizeof *symbol);
    int n = 0;
    for (int i = 0; src && symbol && i < b->count; i++) {
        if (b->pending[i].unit != unit) continue;
        src[n] = &b->src[b->pending[i].index];
        symbol[n++] = b->pending[i].symbol;
    }
    int status = src && symbol ? tn_kcache_put(b->cache, n, src, symbol, file, path) : TN_E_NOMEM;
    tn_free_mem(src);
    tn_free_mem(symbol);
    return status;
}

void tn_compiling_keep(tn_compiling *b, const bool *done)
{
    int left = 0;
    for (int i = 0; i < b->count; i++)
        if (!done[b->pending[i].unit]) b->pending[left++] = b->pending[i];
    b->count = left;
}
