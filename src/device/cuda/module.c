/* module.c - looks a text up in the process, then on disk, then has it compiled (compile.c).
 *
 * What is on neither is shared out over as many programs as may be compiled at once (../batch.h): many
 * kernels in one program cost a third of as many programs. Where one program does not compile, its kernels
 * are compiled each alone, so that the error names the right one. The objects on disk are cubins, each with
 * the kernels of one program. A module stays loaded until close.
 *
 * Read first: tn_cuda_compile.
 */
#include "internal.h"

#include "../../core/alloc.h"
#include "../batch.h"
#include "../embed.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPTIONS_MAX = 512 };

struct loaded {
    char *path; /* NULL: it is in no file */
    tn_cu_module module;
    struct loaded *next;
};

struct tn_cuda_code {
    tn_kcache *cache;
    char *common;
    int jobs;
    struct loaded *loaded;
    tn_kernel *all;
};

struct batch {
    tn_compiling is;
    tn_cuda *c;
    tn_errbuf *err;
    int status; /* the first failure, which is also in err */
};

/* ---- loading --------------------------------------------------------------------------------------- */

/* The module in `image`, which stays loaded; `path` may be NULL. */
static int load_image(tn_cuda *c, const void *image, const char *path, tn_cu_module *out, tn_errbuf *err)
{
    struct loaded *l = tn_calloc(1, sizeof *l);
    if (l && path) l->path = tn_strdup(path);
    int status = l && (!path || l->path) ? TN_OK : tn_err(err, TN_E_NOMEM, "out of memory");
    if (!status) status = TN_CUDA_DO(c, err, cuModuleLoadData, &l->module, image);
    if (status) {
        if (l) tn_free_mem(l->path);
        tn_free_mem(l);
        return status;
    }
    l->next = c->code->loaded;
    c->code->loaded = l;
    *out = l->module;
    return TN_OK;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f) return NULL;
    struct stat st;
    char *text = fstat(fileno(f), &st) ? NULL : tn_calloc(1, (size_t)st.st_size + 1);
    if (text && fread(text, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
        tn_free_mem(text);
        text = NULL;
    }
    fclose(f);
    return text;
}

static int load_file(tn_cuda *c, const char *path, tn_cu_module *out, tn_errbuf *err)
{
    for (struct loaded *l = c->code->loaded; l; l = l->next)
        if (l->path && !strcmp(l->path, path)) {
            *out = l->module;
            return TN_OK;
        }
    char *image = read_file(path);
    if (!image) return tn_err(err, TN_E_IO, "%s cannot be read", path);
    int status = load_image(c, image, path, out, err);
    tn_free_mem(image);
    return status;
}

static void ask_info(tn_cuda *c, tn_kernel *k)
{
    int value[4] = {0};
    static const tn_cu_function_attribute which[4] = {TN_CU_FUNC_REGISTERS, TN_CU_FUNC_THREADS,
                                                      TN_CU_FUNC_LOCAL, TN_CU_FUNC_SHARED};
    for (int i = 0; i < 4; i++)
        if (c->api->cuFuncGetAttribute(&value[i], which[i], k->fn)) value[i] = 0;
    k->info = (tn_kernel_info){value[0], value[1], value[2], value[3]};
}

/* Asked for only where the text names it: compute-sanitizer tells of each request that a driver refuses. */
static int find_finish(tn_cuda *c, tn_kernel *k, const tn_source *src, tn_cu_module module,
                       const char *symbol, tn_errbuf *err)
{
    if (!strstr(src->text, TN_FINISH)) return TN_OK;
    const size_t room = strlen(symbol) + sizeof TN_FINISH;
    char *name = tn_malloc(room);
    if (!name) return tn_err(err, TN_E_NOMEM, "out of memory");
    snprintf(name, room, "%s%s", symbol, TN_FINISH);
    const tn_cu_result e = c->api->cuModuleGetFunction(&k->finish, module, name);
    tn_free_mem(name);
    if (!e) return TN_OK;
    k->finish = NULL;
    return e == TN_CU_NOT_FOUND ? TN_OK : tn_cuda_check(c, e, err, "cuModuleGetFunction");
}

/* The kernel `symbol` of a module, known to the process from now on. */
static int take_kernel(tn_cuda *c, const tn_source *src, tn_cu_module module, const char *symbol,
                       tn_kernel **out, tn_errbuf *err)
{
    *out = NULL;
    tn_kernel *k = tn_calloc(1, sizeof *k);
    if (k) k->name = tn_strdup(src->entry);
    int status = k && k->name ? TN_OK : tn_err(err, TN_E_NOMEM, "out of memory");
    if (!status) {
        tn_cu_result e = c->api->cuModuleGetFunction(&k->fn, module, symbol);
        status = e == TN_CU_NOT_FOUND ? tn_err(err, TN_E_COMPILE, "its text does not define %s", symbol)
                                      : tn_cuda_check(c, e, err, "cuModuleGetFunction");
    }
    if (!status) status = find_finish(c, k, src, module, symbol, err);
    if (!status && tn_kcache_remember(c->code->cache, src, k))
        status = tn_err(err, TN_E_NOMEM, "out of memory");
    if (status) {
        if (k) tn_free_mem(k->name);
        tn_free_mem(k);
        return status;
    }
    ask_info(c, k);
    k->next = c->code->all;
    c->code->all = k;
    *out = k;
    return TN_OK;
}

static tn_kernel *from_disk(void *of, const tn_source *src)
{
    tn_cuda *c = of;
    tn_kcache_hit hit;
    tn_errbuf why = {""};
    tn_cu_module module = NULL;
    tn_kernel *k = NULL;
    if (c->recording || !tn_kcache_find(c->code->cache, src, &hit)) return NULL;
    int status = load_file(c, hit.path, &module, &why);
    if (!status) status = take_kernel(c, src, module, hit.symbol, &k, &why);
    if (status && status != TN_E_NOMEM && !c->base.lost)
        tn_kcache_drop(c->code->cache, src); /* whole but of no use here: made anew */
    return k;
}

/* ---- errors ---------------------------------------------------------------------------------------- */

static void report(struct batch *b, const tn_source *src, const char *log)
{
    if (b->status) return;
    char path[PATH_MAX] = "nowhere: the folder cannot be written", what[480], options[OPTIONS_MAX];
    int lines = 0;
    snprintf(what, sizeof what, "%s", log && log[0] ? log : "no message");
    for (char *p = what; *p; p++) /* the first lines, on one */
        if (*p == '\n') *p = p[1] && ++lines < 6 ? '|' : 0;
    tn_kcache_keep_failed(b->c->code->cache, src, path);
    tn_cuda_options(b->c, options, sizeof options);
    b->status = tn_err(b->err, TN_E_COMPILE, "kernel %.80s: %.420s; source kept in %.300s; with %.160s",
                       src->entry, what, path, options);
}

/* ---- compiling ------------------------------------------------------------------------------------- */

static char *unit_text(struct batch *b, int unit)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return NULL;
    bool ok = tn_compiling_write(&b->is, unit, b->c->code->common, ".cu", f);
    ok = fclose(f) == 0 && ok;
    char *copy = ok ? tn_strdup(text) : NULL; /* so that all memory of the library comes from one place */
    free(text);
    return copy;
}

/* Puts one compiled program on disk, where that is possible: it runs without too. */
static bool store(struct batch *b, int unit, const tn_cuda_unit *u, char path[PATH_MAX])
{
    char dir[PATH_MAX], file[PATH_MAX + 16];
    if (tn_kcache_scratch(b->c->code->cache, dir)) return false;
    snprintf(file, sizeof file, "%s/0.cubin", dir);
    FILE *f = fopen(file, "we");
    bool ok = f && fwrite(u->cubin, 1, u->cubin_bytes, f) == u->cubin_bytes;
    if (f) ok = fclose(f) == 0 && ok;
    ok = ok && !tn_compiling_put(&b->is, unit, file, path);
    tn_kcache_scratch_done(dir);
    return ok;
}

static void take_unit(struct batch *b, int unit, const tn_cuda_unit *u)
{
    char path[PATH_MAX];
    tn_errbuf why = {""};
    bool stored = store(b, unit, u, path);
    tn_cu_module module = NULL;
    int loaded = load_image(b->c, u->cubin, stored ? path : NULL, &module, &why);
    for (int i = 0; i < b->is.count; i++) {
        const tn_pending *p = &b->is.pending[i];
        if (p->unit != unit) continue;
        const tn_source *src = &b->is.src[p->index];
        int status = loaded;
        if (!status) status = take_kernel(b->c, src, module, p->symbol, &b->is.out[p->index], &why);
        b->is.stats->compiled += !status;
        if (!status) continue;
        if (b->c->base.lost || status == TN_E_NOMEM) { /* that says nothing about the text */
            if (!b->status) b->status = tn_err(b->err, status, "%s", why.text);
            continue;
        }
        tn_kcache_drop(b->c->code->cache, src);
        report(b, src, why.text);
    }
}

/* Compiles all that is pending as `units` programs; what of programs that fail is left, or reported where it
 * is alone in one. */
static void build(struct batch *b, int units)
{
    const bool alone = units == b->is.count;
    tn_cuda_unit *unit = tn_calloc((size_t)units, sizeof *unit);
    bool *done = tn_calloc((size_t)units, sizeof *done);
    bool ready = unit && done && !tn_compiling_share_out(&b->is, units);
    for (int u = 0; u < units && ready; u++) {
        unit[u].name = "kernels.cu";
        unit[u].text = unit_text(b, u);
        ready = unit[u].text != NULL;
    }
    if (ready) {
        tn_cuda_build(b->c, unit, units, b->c->code->jobs);
    } else {
        b->status = tn_err(b->err, TN_E_NOMEM, "out of memory");
        b->is.count = 0;
    }
    for (int u = 0; u < units && ready; u++) {
        done[u] = unit[u].cubin != NULL;
        if (done[u]) take_unit(b, u, &unit[u]);
        if (unit[u].status == TN_E_NOMEM && !b->status)
            b->status = tn_err(b->err, TN_E_NOMEM, "out of memory while compiling");
    }
    if (ready) tn_compiling_keep(&b->is, done);
    for (int i = 0; i < b->is.count && alone; i++)
        report(b, &b->is.src[b->is.pending[i].index], unit[b->is.pending[i].unit].log);
    for (int u = 0; unit && u < units; u++) {
        tn_free_mem(unit[u].text);
        tn_free_mem(unit[u].cubin);
        tn_free_mem(unit[u].log);
    }
    tn_free_mem(unit);
    tn_free_mem(done);
}

int tn_cuda_compile(tn_cuda *c, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    struct batch b = {.c = c, .err = err};
    b.is = (tn_compiling){.cache = c->code->cache,
                          .device = c,
                          .from_disk = from_disk,
                          .stats = &c->base.stats,
                          .src = src,
                          .n = n,
                          .out = out};
    memset(out, 0, (size_t)n * sizeof *out);
    if (tn_compiling_find(&b.is)) b.status = tn_err(err, TN_E_NOMEM, "out of memory");
    if (b.is.count && c->recording)
        b.status = tn_err(err, TN_E_STATE, "kernels cannot be loaded while launches are recorded");
    if (b.is.count && !b.status) build(&b, b.is.count < c->code->jobs ? b.is.count : c->code->jobs);
    if (b.is.count && !b.status) build(&b, b.is.count);
    tn_compiling_end(&b.is);
    return b.status;
}

/* ---- the whole ------------------------------------------------------------------------------------- */

/* Returns the text that every kernel's source begins with: the compiler and its options, as a comment, and
 * the prelude. */
static char *common_text(const tn_cuda *c)
{
    char options[OPTIONS_MAX], *text = NULL, *copy = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return NULL;
    tn_cuda_options(c, options, sizeof options);
    fprintf(f, "/* %s", options);
    Dl_info where;
    struct stat st;
    void *address;
    memcpy(&address, &c->api->nvrtcVersion, sizeof address);
    if (dladdr(address, &where) && where.dli_fname &&
        !stat(where.dli_fname, &st)) /* releases share versions */
        fprintf(f, ", %s of %lld bytes, %lld", where.dli_fname, (long long)st.st_size,
                (long long)st.st_mtim.tv_sec);
    fputs(" */\n", f);
    for (int i = 0; i < TN_PRELUDE_FILES; i++)
        fprintf(f, "#line 1 \"%s\"\n%s\n", tn_embed_name(tn_prelude_cuda[i]),
                tn_embed_text(tn_prelude_cuda[i]));
    bool ok = !ferror(f);
    ok = fclose(f) == 0 && ok;
    if (ok) copy = tn_strdup(text);
    free(text);
    return copy;
}

int tn_cuda_code_open(tn_cuda *c, const tn_device_options *o, tn_errbuf *err)
{
    tn_kcache_options k = {.dir = o->cache_dir, .suffix = ".cubin", .log = o->log, .log_user = o->log_user};
    tn_cuda_code *code = c->code = tn_calloc(1, sizeof *code);
    if (!code) return tn_err(err, TN_E_NOMEM, "out of memory");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    code->jobs = o->threads > 0 ? o->threads : cores > 0 ? (int)cores : 1;
    code->common = common_text(c);
    if (!code->common || tn_kcache_open(&k, &code->cache) || tn_kcache_set_common(code->cache, code->common))
        return tn_err(err, TN_E_NOMEM, "out of memory");
    return TN_OK;
}

const char *tn_cuda_code_folder(const tn_cuda *c)
{
    return c->code && c->code->cache ? tn_kcache_folder(c->code->cache) : NULL;
}

void tn_cuda_code_close(tn_cuda *c)
{
    tn_cuda_code *code = c->code;
    if (!code) return;
    for (struct loaded *l; (l = code->loaded);) {
        code->loaded = l->next;
        c->api->cuModuleUnload(l->module);
        tn_free_mem(l->path);
        tn_free_mem(l);
    }
    for (tn_kernel *k; (k = code->all);) {
        code->all = k->next;
        tn_free_mem(k->name);
        tn_free_mem(k);
    }
    tn_kcache_close(code->cache);
    tn_free_mem(code->common);
    tn_free_mem(code);
    c->code = NULL;
}
