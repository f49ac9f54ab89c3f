/* kernels.c - looks a text up in the process, then on disk, then compiles it.
 *
 * What is on neither is shared out over as many units as compilers may run at once, longest text first to the
 * unit that is shortest so far, and each unit becomes one object of several kernels. A kernel's object stays
 * loaded until close. Read first: tn_kernels_compile. */
#include "kernels.h"

#include "../../core/alloc.h"
#include "../../core/settings.h"
#include "../batch.h"
#include "compile.h"
#include "kept.h"

#include <errno.h>
#include <dlfcn.h>
#include <stdio.h>
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

struct batch {
    tn_compiling is;
    tn_kernels *k;
    tn_errbuf *err;
    int status; /* the first failure, which is also in err */
    char dir[PATH_MAX];
};

tn_kernel_fn *tn_kernel_entry(const tn_kernel *kernel) { return kernel->fn; }

tn_kernel_fn *tn_kernel_finish(const tn_kernel *kernel) { return kernel->finish; }

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

static tn_kernel *from_disk(void *of, const tn_source *src)
{
    tn_kernels *k = of;
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

static bool write_unit(struct batch *b, int unit)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%d.c", PATH_MAX - 32, b->dir, unit);
    FILE *f = fopen(path, "we");
    if (!f) return false;
    const bool ok = tn_compiling_write(&b->is, unit, tn_cc_common(b->k->cc), ".c", f);
    return fclose(f) == 0 && ok;
}

/* Takes in one compiled unit. */
static void take_unit(struct batch *b, int unit)
{
    char object[PATH_MAX], path[PATH_MAX], why[512];
    snprintf(object, sizeof object, "%.*s/%d.so", PATH_MAX - 32, b->dir, unit);
    int status = tn_compiling_put(&b->is, unit, object, path);
    if (status && !b->status)
        fail(b, tn_err(b->err, status, "compiled kernels cannot be stored: %s",
                       status == TN_E_NOMEM ? "out of memory" : strerror(errno)));
    for (int i = 0; !status && i < b->is.count; i++) {
        const tn_pending *p = &b->is.pending[i];
        if (p->unit != unit) continue;
        const tn_source *src = &b->is.src[p->index];
        int load;
        tn_kernel *kernel = load_kernel(b->k, src, path, p->symbol, &load, why, sizeof why);
        if (kernel) {
            b->is.out[p->index] = kernel;
            b->is.stats->compiled++;
        } else if (load == TN_E_NOMEM) {
            if (!b->status) fail(b, tn_err(b->err, TN_E_NOMEM, "out of memory"));
        } else {
            tn_kcache_drop(b->k->cache, src);
            report(b, src, why);
        }
    }
}

/* Compiles all of b->pending in `units` units; those of units that fail are left in b->pending. */
static void build(struct batch *b, int units)
{
    bool *ok = tn_calloc((size_t)units, sizeof *ok);
    if (!ok || tn_compiling_share_out(&b->is, units)) {
        fail(b, tn_err(b->err, TN_E_NOMEM, "out of memory"));
        tn_free_mem(ok);
        return;
    }
    bool written = true;
    for (int u = 0; written && u < units; u++) written = write_unit(b, u);
    if (!written) {
        fail(b, tn_err(b->err, TN_E_IO, "cannot write to %.300s: %s", b->dir, strerror(errno)));
    } else {
        int status = tn_cc_build(b->k->cc, b->dir, units, b->k->jobs, ok, b->err);
        if (status) fail(b, status);
        for (int u = 0; u < units; u++)
            if (ok[u]) take_unit(b, u);
    }
    tn_compiling_keep(&b->is, ok);
    tn_free_mem(ok);
}

static void compile_pending(struct batch *b)
{
    if (tn_kcache_scratch(b->k->cache, b->dir)) {
        fail(b, tn_err(b->err, TN_E_IO, "no folder to compile in: %s", strerror(errno)));
        return;
    }
    enum { MOST = 32 }; /* kernels of an object, which is looked through for each of them */
    const int count = b->is.count;
    int units = count < b->k->jobs ? count : b->k->jobs;
    if (units < count / MOST) units = count / MOST;
    build(b, units);
    if (b->is.count && units < count && !b->status) /* one spoils the others of its unit: find it */
        build(b, b->is.count);
    for (int i = 0; i < b->is.count && !b->status; i++) {
        char what[512];
        read_log(b->dir, b->is.pending[i].unit, what, sizeof what);
        report(b, &b->is.src[b->is.pending[i].index], what);
    }
    tn_kcache_scratch_done(b->dir);
}

/* Loads those of b's sources that are not loaded yet: from disk, or by compiling them. */
static void compile_missing(struct batch *b)
{
    if (tn_compiling_find(&b->is)) fail(b, tn_err(b->err, TN_E_NOMEM, "out of memory"));
    if (b->is.count && b->k->kept) fail(b, tn_cc_probe(b->k->cc, b->err)); /* which says that there is none */
    if (b->is.count && !b->status) compile_pending(b);
    tn_compiling_end(&b->is);
}

/* ---- without a compiler ---------------------------------------------------------------------------- */

static int take_kept(tn_kernels *k, int status, tn_errbuf *err)
{
    if (k->kept) return 0;
    char *common = tn_cc_takes_kept(k->cc) ? tn_kept_common(k->cache) : NULL;
    if (!common) return status;
    status = tn_kcache_set_common(k->cache, common) ? tn_err(err, TN_E_NOMEM, "out of memory") : 0;
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
    if (!k->ready && tn_kcache_set_common(k->cache, tn_cc_common(k->cc)))
        return tn_err(err, TN_E_NOMEM, "out of memory");
    k->ready = true;

    struct batch b = {.k = k, .err = err};
    b.is = (tn_compiling){.cache = k->cache,
                          .device = k,
                          .from_disk = from_disk,
                          .stats = stats,
                          .src = src,
                          .n = n,
                          .out = out};
    compile_missing(&b);
    if (b.status && tn_kcache_renew(k->cache)) { /* somebody has removed the folder meanwhile */
        b.status = 0;
        compile_missing(&b);
    }
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
