/* planned.c - a GPU that is not there: steps are planned for it, explained, predicted and dumped as CUDA C,
 * and nothing is run. TENSOR_DEVICE=cuda:h100 and the like open it; it needs no driver. Its memory is
 * addresses that hold nothing, so that what is read from it is an error.
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
#include "../../core/print.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    tn_device base;
    char name[64];
    tn_kernel kernel; /* all of them: none is looked into */
} planned;

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
    if (p) d->stats.bytes_now -= unmap(p);
}

static void *planned_reserve(tn_device *d, size_t bytes)
{
    (void)d;
    return map(bytes);
}

static int planned_commit(tn_device *d, void *base, size_t bytes)
{
    (void)d, (void)base, (void)bytes;
    return TN_OK;
}

static void planned_release(tn_device *d, void *base, size_t bytes)
{
    (void)d, (void)bytes;
    if (base) unmap(base);
}

static int planned_copy(tn_device *d, void *dst, const void *src, size_t bytes)
{
    (void)dst, (void)src, (void)bytes;
    d->stats.copies++;
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
    (void)src, (void)err;
    for (int i = 0; i < n; i++) out[i] = &((planned *)(void *)d)->kernel;
    return TN_OK;
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
    tn_free_mem(d);
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
    return tn_err(
        err, TN_E_UNSUPPORTED,
        "'cuda:%.60s' is no GPU: a number, cuda:0; one to plan for, a100, h100, h200 or rtx4090; or a file "
        "of its numbers, whose path has a slash",
        of);
}

int tn_cuda_open_planned(const char *of, tn_device **out, tn_errbuf *err)
{
    numbers n = {0};
    *out = NULL;
    const int status = find(&n, of, err);
    if (status) return status;
    planned *p = tn_calloc(1, sizeof *p);
    if (!p) return tn_err(err, TN_E_NOMEM, "out of memory");
    snprintf(p->name, sizeof p->name, "cuda:%s", n.name);
    p->kernel.name = p->name;
    p->base = (tn_device){
        .name = p->name,
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
                   .shared_most = n.shared_most},
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
        .upload = planned_copy,
        .download = planned_download,
        .sync = planned_sync,
        .close = planned_close,
        .zero = planned_zero,
        .post = planned_post,
        .peek = planned_peek,
    };
    snprintf(p->base.machine, sizeof p->base.machine, "%s, planned for and not there", p->name);
    *out = &p->base;
    return TN_OK;
}
