/* planned.c - a GPU that is not there: steps are planned for it, explained, predicted and dumped as CUDA C,
 * and nothing is run. TENSOR_DEVICE=cuda:h100 and the like open it; it needs no driver. Its memory is
 * addresses that hold nothing, so that what is read from it is an error. Where NVRTC is, kernels are compiled
 * by it and kept as ever, so that their registers are known, and one that spills is planned again.
 *
 * The numbers that the fuser goes by are those of a name, or of a file (a path with a slash) of lines such as
 *
 *   capability 90         compute capability times 10
 *   processors 132        multiprocessors, and
 *   max_threads 2048      the threads of one of them,
 *   l1_bytes 233472       its shared memory,
 *   shared_bytes 49152    that which a block can have, and
 *   shared_most 232448    that when it asks
 *   l2_bytes 52428800
 *
 * Read first: tn_cuda_open_planned.
 */
#include "internal.h"

#include "../../core/alloc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

/* X(name, smallest, largest) of those lines, all of which are in a file */
#define NUMBERS(X)                                                                                           \
    X(capability, TN_CUDA_MIN_CAPABILITY, 999)                                                               \
    X(processors, 1, 4096)                                                                                   \
    X(max_threads, 32, 65536)                                                                                \
    X(l1_bytes, 1 << 10, 1 << 30)                                                                            \
    X(l2_bytes, 1 << 10, 1 << 30)                                                                            \
    X(shared_bytes, 1 << 10, 1 << 30)                                                                        \
    X(shared_most, 1 << 10, 1 << 30)

typedef struct numbers {
    const char *name;
#define X(name, least, most) long name;
    NUMBERS(X)
#undef X
} numbers;

static const numbers known[] = {
    {"a100", 80, 108, 2048, 164 << 10, 40 << 20, 48 << 10, 163 << 10},
    {"h100", 90, 132, 2048, 228 << 10, 50 << 20, 48 << 10, 227 << 10},
    {"h200", 90, 132, 2048, 228 << 10, 50 << 20, 48 << 10, 227 << 10},
    {"rtx4090", 89, 128, 1536, 100 << 10, 72 << 20, 48 << 10, 99 << 10},
};

typedef struct planned {
    tn_cuda cuda; /* api: of NVRTC and cubin.c, or NULL */
    char name[64];
    struct upload {
        char *at;
        size_t bytes;
        void *copy;
        struct upload *next;
    } * uploads;
    tn_kernel kernel; /* all of them, where none is compiled */
} planned;

static planned *planned_of(tn_device *d) { return (planned *)(void *)d; }

/* ---- memory: a header, and a range that nothing may touch ---- */

enum { PAGE = 4096 };

static void *map(size_t bytes)
{
    const size_t all = (bytes + 2 * PAGE - 1) / PAGE * PAGE;
    if (all < bytes) return NULL;
    size_t *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (mprotect(p, PAGE, PROT_READ | PROT_WRITE)) {
        munmap(p, all);
        return NULL;
    }
    p[0] = all;
    p[1] = bytes;
    return (char *)p + PAGE;
}

/* Forgets what was uploaded to some of these addresses. */
static void drop_uploads(planned *p, const char *at, size_t bytes)
{
    for (struct upload **u = &p->uploads, *is; (is = *u);) {
        if (is->at >= at + bytes || at >= is->at + is->bytes) {
            u = &is->next;
            continue;
        }
        *u = is->next;
        tn_free_mem(is->copy);
        tn_free_mem(is);
    }
}

static size_t unmap(void *p)
{
    size_t *head = (size_t *)(void *)((char *)p - PAGE);
    const size_t bytes = head[1];
    munmap(head, head[0]);
    return bytes;
}

static void *planned_alloc(tn_device *d, size_t bytes)
{
    void *p = map(bytes);
    if (!p) return NULL;
    d->stats.bytes_now += bytes;
    if (d->stats.bytes_now > d->stats.bytes_peak) d->stats.bytes_peak = d->stats.bytes_now;
    return p;
}

static void planned_free(tn_device *d, void *p)
{
    if (!p) return;
    const size_t bytes = unmap(p);
    d->stats.bytes_now -= bytes;
    drop_uploads(planned_of(d), p, bytes);
}

static void *planned_reserve(tn_device *d, size_t bytes)
{
    (void)d;
    return map(bytes);
}

static int planned_commit(tn_device *d, void *base, size_t first, size_t bytes)
{
    (void)d, (void)base, (void)first, (void)bytes;
    return TN_OK;
}

static void planned_release(tn_device *d, void *base, size_t bytes)
{
    (void)d, (void)bytes;
    if (base) unmap(base);
}

static int planned_upload(tn_device *d, void *dst, const void *host, size_t bytes)
{
    planned *p = planned_of(d);
    d->stats.copies++;
    drop_uploads(p, dst, bytes);
    struct upload *u = bytes ? tn_calloc(1, sizeof *u) : NULL;
    if (u) *u = (struct upload){dst, bytes, tn_malloc(bytes), p->uploads};
    if (u && u->copy) {
        memcpy(u->copy, host, bytes);
        p->uploads = u;
        return TN_OK;
    }
    tn_free_mem(u);
    return bytes ? tn_err(&d->failure, TN_E_NOMEM, "out of memory") : TN_OK;
}

static const void *planned_uploaded(tn_device *d, const void *at, size_t bytes)
{
    for (const struct upload *u = planned_of(d)->uploads; u; u = u->next)
        if (u->at == at && u->bytes == bytes) return u->copy;
    return NULL;
}

static int planned_copy(tn_device *d, void *dst, const void *src, size_t bytes)
{
    const void *data = planned_uploaded(d, src, bytes);
    if (data) return planned_upload(d, dst, data, bytes);
    d->stats.copies++;
    drop_uploads(planned_of(d), dst, bytes);
    return TN_OK;
}

static int planned_zero(tn_device *d, void *dst, size_t bytes)
{
    (void)d, (void)dst, (void)bytes;
    return TN_OK;
}

static int planned_download(tn_device *d, void *host, const void *src, size_t bytes)
{
    (void)host, (void)src;
    return bytes
               ? tn_err(&d->failure, TN_E_UNSUPPORTED,
                        "%s is planned for and not there: nothing is computed, so that no value can be read",
                        d->name)
               : TN_OK;
}

/* ---- what would be launched ---- */

static int planned_compile(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    planned *p = planned_of(d);
    if (p->cuda.code) return tn_cuda_compile(&p->cuda, src, n, out, err);
    for (int i = 0; i < n; i++) out[i] = &p->kernel;
    return TN_OK;
}

static bool planned_info(tn_device *d, const tn_kernel *k, tn_kernel_info *out)
{
    if (!k || k == &planned_of(d)->kernel) return false;
    *out = k->info;
    return true;
}

static int planned_launch(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid,
                          tn_errbuf *err)
{
    (void)k, (void)args, (void)grid, (void)err;
    d->stats.launches++;
    return TN_OK;
}

static int planned_gemm(tn_device *d, const tn_gemm *g, tn_errbuf *err)
{
    (void)g, (void)err;
    d->stats.library_calls++;
    return TN_OK;
}

static int planned_conv2d(tn_device *d, const tn_conv2d_desc *c, tn_errbuf *err)
{
    (void)c, (void)err;
    d->stats.library_calls++;
    return TN_OK;
}

static int planned_sync(tn_device *d)
{
    (void)d;
    return TN_OK;
}

static int planned_post(tn_device *d, int number, const void *src, size_t bytes)
{
    (void)d, (void)number, (void)src, (void)bytes;
    return TN_OK;
}

static bool planned_peek(tn_device *d, int number, void *out)
{
    (void)d, (void)number, (void)out;
    return false;
}

static void planned_close(tn_device *d)
{
    planned *p = planned_of(d);
    tn_cuda_code_close(&p->cuda);
    tn_cuda_unload(p->cuda.api);
    while (p->uploads) drop_uploads(p, p->uploads->at, p->uploads->bytes);
    tn_free_mem(p);
}

/* ---- numbers ---- */

static bool take(numbers *n, const char *name, long value)
{
#define X(field, least, most)                                                                                \
    if (!strcmp(name, #field)) {                                                                             \
        n->field = value;                                                                                    \
        return value >= (least) && value <= (most);                                                          \
    }
    NUMBERS(X)
#undef X
    return false;
}

static int read_file(numbers *n, const char *path, tn_errbuf *err)
{
    FILE *f = fopen(path, "r");
    char line[200], name[40];
    long value;
    int at = 0;
    if (!f) return tn_err(err, TN_E_UNSUPPORTED, "%s: %s", path, strerror(errno));
    *n = (numbers){.name = "file"};
    while (fgets(line, sizeof line, f)) {
        at++;
        if (line[strspn(line, " \n")] == 0 || *line == '#') continue;
        if (sscanf(line, "%39s %ld", name, &value) == 2 && take(n, name, value)) continue;
        fclose(f);
        return tn_err(err, TN_E_UNSUPPORTED, "%s: line %d is no number of a GPU, or out of its range", path,
                      at);
    }
    fclose(f);
#define X(field, least, most)                                                                                \
    if (!n->field) return tn_err(err, TN_E_UNSUPPORTED, "%s: no line '" #field " ..'", path);
    NUMBERS(X)
#undef X
    return TN_OK;
}

static int find(numbers *n, const char *of, tn_errbuf *err)
{
    if (strchr(of, '/')) return read_file(n, of, err);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(of, known[i].name)) continue;
        *n = known[i];
        return TN_OK;
    }
    if (!strncasecmp(of, "MIG-", 4) || !strncasecmp(of, "GPU-", 4))
        return tn_err(err, TN_E_UNSUPPORTED,
                      "'cuda:%.60s' is a GPU's or a MIG slice's name: CUDA_VISIBLE_DEVICES takes it, and the "
                      "device is cuda then",
                      of);
    return tn_err(
        err, TN_E_UNSUPPORTED,
        "'cuda:%.60s' is no GPU: a number, cuda:0; one to plan for, a100, h100, h200 or rtx4090; or a file "
        "of its numbers, whose path has a slash",
        of);
}

/* NVRTC, if there is one that compiles for this GPU. */
static int open_compiler(planned *p, const tn_device_options *o, tn_errbuf *err)
{
    tn_cuda *c = &p->cuda;
    tn_errbuf why = {""};
    int status = tn_cuda_load_nvrtc(&c->api, &why);
    if (!status) tn_cuda_fill_unloaded(c->api);
    if (!status) status = tn_cuda_pick_arch(c, &why);
    if (!status && c->arch != c->capability)
        status = tn_err(&why, TN_E_UNSUPPORTED, "NVRTC compiles for none newer than sm_%d", c->arch);
    if (!status) return tn_cuda_code_open(c, o, err);
    tn_cuda_unload(c->api);
    c->api = NULL;
    tn_cuda_log(c, TN_LOG_INFO, "%s: kernels are written and not compiled: %s", p->name, why.text);
    return TN_OK;
}

int tn_cuda_open_planned(const tn_device_options *o, tn_device **out, tn_errbuf *err)
{
    numbers n = {0};
    *out = NULL;
    int status = find(&n, o->planned, err);
    if (status) return status;
    planned *p = tn_calloc(1, sizeof *p);
    if (!p) return tn_err(err, TN_E_NOMEM, "out of memory");
    snprintf(p->name, sizeof p->name, "cuda:%s", n.name);
    p->kernel.name = p->name;
    p->cuda.log = o->log;
    p->cuda.log_user = o->log_user;
    p->cuda.capability = (int)n.capability;
    snprintf(p->cuda.name, sizeof p->cuda.name, "%s", p->name);
    status = open_compiler(p, o, err);
    if (status) {
        planned_close(&p->cuda.base);
        return status;
    }
    p->cuda.base = (tn_device){
        .name = p->name,
        .folder = p->cuda.code ? tn_cuda_code_folder(&p->cuda) : NULL,
        .threads = 1,
        .target = {.dialect = TN_DIALECT_CUDA,
                   .vector_bytes = 16,
                   .l1_bytes = n.l1_bytes,
                   .l2_bytes = n.l2_bytes,
                   .last_bytes = n.l2_bytes,
                   .capability = (int)n.capability,
                   .processors = (int)n.processors,
                   .max_threads = (int)n.max_threads,
                   .shared_bytes = n.shared_bytes,
                   .shared_most = n.shared_most,
                   .wgmma = n.capability == 90},
        .runs_nothing = true,
        .alloc = planned_alloc,
        .free = planned_free,
        .reserve = planned_reserve,
        .commit = planned_commit,
        .release = planned_release,
        .compile = planned_compile,
        .launch = planned_launch,
        .gemm = planned_gemm,
        .conv2d = planned_conv2d,
        .copy = planned_copy,
        .upload = planned_upload,
        .uploaded = planned_uploaded,
        .download = planned_download,
        .sync = planned_sync,
        .close = planned_close,
        .zero = planned_zero,
        .kernel_info = planned_info,
        .tell = tn_cuda_tell,
        .post = planned_post,
        .peek = planned_peek,
    };
    snprintf(p->cuda.base.machine, sizeof p->cuda.base.machine, "%s, planned for and not there", p->name);
    *out = &p->cuda.base;
    return TN_OK;
}
