/* kernels.c - looks a text up in the process, then on disk, then compiles it.
 *
 * What is on neither is shared out over as many units as compilers may run at once, longest text first to the
 * unit that is shortest so far, and each unit becomes one object of several kernels. A kernel's object stays
 * loaded until close. Read first: tn_kernels_compile. */
#include "kernels.h"

#include "../../core/alloc.h"
#include "../../core/settings.h"
#include "compile.h"
#include "kept.h"

#include <errno.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tn_kernel {
    tn_kernel_fn *fn, *finish; /* finish: NULL where the kernel has none */
    struct tn_kernel *next;
};

struct opened {
    char *path;
    tn_object object;
    struct opened *next;
};

struct tn_kernels {
    tn_kcache *cache;
    tn_cc *cc;
    bool ready; /* the cache knows the common text */
    bool kept;  /* there is no compiler, and that text is of kernels that another run has kept */
    int jobs;
    bool refuse_folder;
    struct opened *opened;
    tn_kernel *all;
};

/* One text to compile. */
struct pending {
    int index; /* in the call */
    int unit;
    size_t bytes;
    char symbol[256];
};

struct batch {
    tn_kernels *k;
    const tn_source *src;
    tn_kernel **out;
    tn_device_stats *stats;
    tn_errbuf *err;
    struct pending *pending;
    int count;
    int status; /* the first failure, which is also in err */
    char dir[PATH_MAX];
};

tn_kernel_fn *tn_kernel_entry(const tn_kernel *kernel) { return kernel->fn; }

tn_kernel_fn *tn_kernel_finish(const tn_kernel *kernel) { return kernel->finish; }

static int out_of_memory(tn_errbuf *err)
{
    snprintf(err->text, sizeof err->text, "out of memory");
    return TN_E_NOMEM;
}

/* ---- loading --------------------------------------------------------------------------------------- */

static void *open_object(tn_kernels *k, const char *path, int *status, char *why, size_t why_bytes)
{
    for (struct opened *o = k->opened; o; o = o->next)
        if (!strcmp(o->path, path)) return o->object.handle;
    struct opened *o = tn_calloc(1, sizeof *o);
    if (o) o->path = tn_strdup(path);
    if (!o || !o->path || tn_object_load(path, k->refuse_folder, &o->object, why, why_bytes)) {
        if (!o || !o->path) {
            *status = TN_E_NOMEM;
            snprintf(why, why_bytes, "out of memory");
        }
        if (o) tn_free_mem(o->path);
        tn_free_mem(o);
        return NULL;
    }
    o->next = k->opened;
    k->opened = o;
    return o->object.handle;
}

/* The kernel `symbol` of the object at `path`, known to the process from now on. NULL and why not; *status
 * tells want of memory from all else. */
static tn_kernel *load_kernel(tn_kernels *k, const tn_source *src, const char *path, const char *symbol,
                              int *status, char *why, size_t why_bytes)
{
    *status = TN_E_COMPILE;
    void *handle = open_object(k, path, status, why, why_bytes);
    if (!handle) return NULL;
    char second[300];
    snprintf(second, sizeof second, "%s%s", symbol, TN_FINISH);
    void *address = dlsym(handle, symbol), *finish = dlsym(handle, second);
    if (!address) {
        snprintf(why, why_bytes, "its text does not define %s", symbol);
        return NULL;
    }
    tn_kernel *kernel = tn_calloc(1, sizeof *kernel);
    if (!kernel || tn_kcache_remember(k->cache, src, kernel)) {
        *status = TN_E_NOMEM;
        snprintf(why, why_bytes, "out of memory");
        tn_free_mem(kernel);
        return NULL;
    }
    memcpy(&kernel->fn, &address, sizeof address); /* POSIX allows what ISO C has no cast for */
    memcpy(&kernel->finish, &finish, sizeof finish);
    kernel->next = k->all;
    k->all = kernel;
    return kernel;
}

static tn_kernel *from_disk(tn_kernels *k, const tn_source *src)
{
    tn_kcache_hit hit;
    char why[256];
    if (!tn_kcache_find(k->cache, src, &hit)) return NULL;
    int status;
    tn_kernel *kernel = load_kernel(k, src, hit.path, hit.symbol, &status, why, sizeof why);
    if (!kernel && status != TN_E_NOMEM && !k->kept)
        tn_kcache_drop(k->cache, src); /* whole but of no use here: made anew */
    return kernel;
}

/* ---- errors ---------------------------------------------------------------------------------------- */

static void fail(struct batch *b, int status)
{
    if (!b->status) b->status = status;
}

/* The first lines of the compiler's messages, on one line. */
static void read_log(const char *dir, int unit, char *out, size_t room)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%d.log", PATH_MAX - 32, dir, unit);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(out, 1, room - 1, f) : 0;
    if (f) fclose(f);
    while (n && out[n - 1] == '\n') n--;
    out[n] = 0;
    int lines = 0;
    for (char *p = out; *p; p++)
        if (*p == '\n') *p = ++lines < 6 ? '|' : 0;
    if (!*out) snprintf(out, room, "it wrote no object and no message");
}

static void report(struct batch *b, const tn_source *src, const char *what)
{
    if (b->status) return;
    char path[PATH_MAX] = "nowhere: the folder cannot be written";
    tn_kcache_keep_failed(b->k->cache, src, path);
    int n = snprintf(b->err->text, sizeof b->err->text, "kernel %.80s: %s%.420s; source kept in %.300s",
                     src->entry, tn_cc_chosen(b->k->cc), what, path);
    if (n < (int)sizeof b->err->text)
        snprintf(b->err->text + n, sizeof b->err->text - (size_t)n, "; command: %s", tn_cc_command(b->k->cc));
    fail(b, TN_E_COMPILE);
}

/* ---- compiling ------------------------------------------------------------------------------------- */

static int longest_first(const void *a, const void *b)
{
    const struct pending *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->index - y->index;
}

static int share_out(struct batch *b, int units)
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
    }
    tn_free_mem(load);
    return 0;
}

/* The entry's own name where it is the only one in its unit. */
static void name_symbol(struct batch *b, int which)
{
    struct pending *p = &b->pending[which];
    int turn = 0;
    snprintf(p->symbol, sizeof p->symbol, "%s", b->src[p->index].entry);
    for (int i = 0; i < which; i++)
        if (b->pending[i].unit == p->unit && !strcmp(b->pending[i].symbol, p->symbol)) {
            snprintf(p->symbol, sizeof p->symbol, "%.200s__%d", b->src[p->index].entry, ++turn);
            i = -1;
        }
}

static bool write_unit(struct batch *b, int unit)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%d.c", PATH_MAX - 32, b->dir, unit);
    FILE *f = fopen(path, "we");
    if (!f) return false;
    fputs(tn_cc_common(b->k->cc), f);
    for (int i = 0; i < b->count; i++) {
        const struct pending *p = &b->pending[i];
        if (p->unit != unit) continue;
        const tn_source *s = &b->src[p->index];
        bool renamed = strcmp(p->symbol, s->entry) != 0;
        if (renamed) fprintf(f, "#define %s %s\n", s->entry, p->symbol);
        if (renamed) fprintf(f, "#define %s%s %s%s\n", s->entry, TN_FINISH, p->symbol, TN_FINISH);
        fprintf(f, "#line 1 \"%s.c\"\n%s\n", s->entry, s->text);
        if (renamed) fprintf(f, "#undef %s\n", s->entry);
        if (renamed) fprintf(f, "#undef %s%s\n", s->entry, TN_FINISH);
    }
    bool ok = !ferror(f);
    return fclose(f) == 0 && ok;
}

/* Takes in one compiled unit. */
static void take_unit(struct batch *b, int unit)
{
    const tn_source **src = tn_calloc((size_t)b->count, sizeof *src);
    const char **symbol = tn_calloc((size_t)b->count, sizeof *symbol);
    char object[PATH_MAX], path[PATH_MAX], why[512];
    int n = 0;
    for (int i = 0; src && symbol && i < b->count; i++) {
        if (b->pending[i].unit != unit) continue;
        src[n] = &b->src[b->pending[i].index];
        symbol[n++] = b->pending[i].symbol;
    }
    snprintf(object, sizeof object, "%.*s/%d.so", PATH_MAX - 32, b->dir, unit);
    int status = src && symbol ? tn_kcache_put(b->k->cache, n, src, symbol, object, path) : TN_E_NOMEM;
    if (status && !b->status) {
        snprintf(b->err->text, sizeof b->err->text, "compiled kernels cannot be stored: %s",
                 status == TN_E_NOMEM ? "out of memory" : strerror(errno));
        fail(b, status);
    }
    for (int i = 0; !status && i < b->count; i++) {
        if (b->pending[i].unit != unit) continue;
        int at = b->pending[i].index;
        int load;
        b->out[at] = load_kernel(b->k, &b->src[at], path, b->pending[i].symbol, &load, why, sizeof why);
        if (b->out[at]) {
            b->stats->compiled++;
            continue;
        }
        if (load == TN_E_NOMEM) {
            if (!b->status) fail(b, out_of_memory(b->err));
            continue;
        }
        tn_kcache_drop(b->k->cache, &b->src[at]);
        report(b, &b->src[at], why);
    }
    tn_free_mem(src);
    tn_free_mem(symbol);
}

/* Compiles all of b->pending in `units` units; those of units that fail are left in b->pending. */
static void build(struct batch *b, int units)
{
    bool *ok = tn_calloc((size_t)units, sizeof *ok);
    if (!ok || share_out(b, units)) {
        fail(b, out_of_memory(b->err));
        tn_free_mem(ok);
        return;
    }
    for (int i = 0; i < b->count; i++) name_symbol(b, i);
    bool written = true;
    for (int u = 0; written && u < units; u++) written = write_unit(b, u);
    if (!written) {
        snprintf(b->err->text, sizeof b->err->text, "cannot write to %.300s: %s", b->dir, strerror(errno));
        fail(b, TN_E_IO);
    } else {
        int status = tn_cc_build(b->k->cc, b->dir, units, b->k->jobs, ok, b->err);
        if (status) fail(b, status);
        for (int u = 0; u < units; u++)
            if (ok[u]) take_unit(b, u);
    }
    int left = 0;
    for (int i = 0; i < b->count; i++)
        if (!ok[b->pending[i].unit]) b->pending[left++] = b->pending[i];
    b->count = left;
    tn_free_mem(ok);
}

static void compile_pending(struct batch *b)
{
    if (tn_kcache_scratch(b->k->cache, b->dir)) {
        snprintf(b->err->text, sizeof b->err->text, "no folder to compile in: %s", strerror(errno));
        fail(b, TN_E_IO);
        return;
    }
    enum { MOST = 32 }; /* kernels of an object, which is looked through for each of them */
    int units = b->count < b->k->jobs ? b->count : b->k->jobs;
    if (units < b->count / MOST) units = b->count / MOST;
    bool alone = units == b->count;
    build(b, units);
    if (b->count && !alone && !b->status) /* one spoils the others of its unit: find it */
        build(b, b->count);
    if (!b->status)
        for (int i = 0; i < b->count; i++) {
            char what[512];
            read_log(b->dir, b->pending[i].unit, what, sizeof what);
            report(b, &b->src[b->pending[i].index], what);
        }
    tn_kcache_scratch_done(b->dir);
}

static bool same(const tn_source *a, const tn_source *b)
{
    return !strcmp(a->entry, b->entry) && !strcmp(a->text, b->text);
}

/* Loads those of n sources that are not loaded yet: from disk, or by compiling them. */
static void compile_missing(struct batch *b, int n)
{
    tn_kernel **out = b->out;
    b->count = 0;
    for (int i = 0; i < n; i++) {
        if (out[i]) continue;
        bool twice = false;
        for (int j = 0; j < b->count && !twice; j++) twice = same(&b->src[b->pending[j].index], &b->src[i]);
        if (twice) continue;
        out[i] = tn_kcache_loaded(b->k->cache, &b->src[i]); /* an equal one earlier in this call */
        if (!out[i]) out[i] = from_disk(b->k, &b->src[i]);
        b->stats->cache_hits += out[i] != NULL;
        if (!out[i]) b->pending[b->count++] = (struct pending){.index = i, .bytes = strlen(b->src[i].text)};
    }
    if (b->count && b->k->kept) fail(b, tn_cc_probe(b->k->cc, b->err)); /* which says that there is none */
    if (b->count && !b->k->kept) compile_pending(b);
    for (int i = 0; i < n; i++)
        if (!out[i]) out[i] = tn_kcache_loaded(b->k->cache, &b->src[i]);
}

/* ---- without a compiler ---------------------------------------------------------------------------- */

static int take_kept(tn_kernels *k, int status, tn_errbuf *err)
{
    if (k->kept) return 0;
    char *common = tn_cc_takes_kept(k->cc) ? tn_kept_common(k->cache) : NULL;
    if (!common) return status;
    status = tn_kcache_set_common(k->cache, common) ? out_of_memory(err) : 0;
    tn_free_mem(common);
    k->kept = k->ready = !status;
    return status;
}

int tn_kernels_compile(tn_kernels *k, const tn_source *src, int n, tn_kernel **out, tn_device_stats *stats,
                       tn_errbuf *err)
{
    int missing = 0;
    for (int i = 0; i < n; i++) {
        out[i] = tn_kcache_loaded(k->cache, &src[i]);
        missing += !out[i];
        stats->cache_hits += out[i] != NULL;
    }
    if (!missing) return 0;

    int status = tn_cc_probe(k->cc, err);
    if (status == TN_E_COMPILE) status = take_kept(k, status, err);
    if (status) return status;
    if (!k->ready && tn_kcache_set_common(k->cache, tn_cc_common(k->cc))) return out_of_memory(err);
    k->ready = true;

    struct batch b = {.k = k, .src = src, .out = out, .stats = stats, .err = err};
    b.pending = tn_calloc((size_t)missing, sizeof *b.pending);
    if (!b.pending) return out_of_memory(err);
    compile_missing(&b, n);
    if (b.status && tn_kcache_renew(k->cache)) { /* somebody has removed the folder meanwhile */
        b.status = 0;
        compile_missing(&b, n);
    }
    tn_free_mem(b.pending);
    return b.status;
}

/* ---- the whole ------------------------------------------------------------------------------------- */

const char *tn_kernels_folder(const tn_kernels *k) { return tn_kcache_folder(k->cache); }

int tn_kernels_named_compiler(tn_kernels *k, tn_errbuf *err)
{
    const char *named = tn_settings_read(NULL, NULL).cc;
    return named && strcmp(named, "none") && strcmp(named, "kept") ? tn_cc_probe(k->cc, err) : 0;
}

bool tn_kernels_no_compiler(const tn_kernels *k) { return tn_cc_missing(k->cc); }

int tn_kernels_open(const tn_kernels_options *o, tn_kernels **out)
{
    tn_kernels *k = *out = tn_calloc(1, sizeof *k);
    if (!k) return TN_E_NOMEM;
    k->jobs = o->jobs > 0 ? o->jobs : 1;
    k->refuse_folder = o->refuse_folder;
    if (tn_kcache_open(&o->cache, &k->cache) || tn_cc_open(&k->cc)) {
        tn_kernels_close(k);
        *out = NULL;
        return TN_E_NOMEM;
    }
    return 0;
}

void tn_kernels_close(tn_kernels *k)
{
    if (!k) return;
    for (struct opened *o; (o = k->opened);) {
        k->opened = o->next;
        tn_object_unload(&o->object);
        tn_free_mem(o->path);
        tn_free_mem(o);
    }
    for (tn_kernel *kernel; (kernel = k->all);) {
        k->all = kernel->next;
        tn_free_mem(kernel);
    }
    tn_kcache_close(k->cache);
    tn_cc_close(k->cc);
    tn_free_mem(k);
}
