/* device.c - the reference device's table of functions: plain host memory.
 *
 * It compiles and launches nothing: the runtime gives its nodes to tn_ref_run one by one. Blocks carry their
 * size in a header of 64 bytes, so that what is handed out stays 64-byte aligned and can be counted.
 * Read first: tn_ref_open. */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>

enum { HEADER = 64 };

static void count(tn_device *d, size_t bytes)
{
    d->stats.bytes_now += bytes;
    if (d->stats.bytes_now > d->stats.bytes_peak) d->stats.bytes_peak = d->stats.bytes_now;
}

static void *ref_alloc(tn_device *d, size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * HEADER) return NULL;
    size_t room = (bytes + 2 * HEADER - 1) / HEADER * HEADER;
    char *block = tn_aligned_alloc(HEADER, room);
    if (!block) return NULL;
    memcpy(block, &bytes, sizeof bytes);
    count(d, bytes);
    return block + HEADER;
}

static void ref_free(tn_device *d, void *p)
{
    if (!p) return;
    char *block = (char *)p - HEADER;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    d->stats.bytes_now -= bytes;
    tn_free_mem(block);
}

/* Addresses alone: pages become memory, zeroed, when they are committed and touched. */
static void *ref_reserve(tn_device *d, size_t bytes)
{
    (void)d;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int ref_commit(tn_device *d, void *base, size_t first, size_t bytes)
{
    (void)d;
    return mprotect(base, first + bytes, PROT_READ | PROT_WRITE) == 0 ? TN_OK : TN_E_NOMEM;
}

static void ref_release(tn_device *d, void *base, size_t bytes)
{
    (void)d;
    munmap(base, bytes);
}

static int unsupported(tn_errbuf *err, const char *what)
{
    return tn_err(err, TN_E_UNSUPPORTED, "the reference device has no %s", what);
}

static int ref_compile(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    (void)d, (void)src, (void)n, (void)out;
    return unsupported(err, "compile");
}

static int ref_launch(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid, tn_errbuf *err)
{
    (void)d, (void)k, (void)args, (void)grid;
    return unsupported(err, "launch");
}

static int ref_gemm(tn_device *d, const tn_gemm *g, tn_errbuf *err)
{
    (void)d, (void)g;
    return unsupported(err, "gemm");
}

static int ref_conv2d(tn_device *d, const tn_conv2d_desc *c, tn_errbuf *err)
{
    (void)d, (void)c;
    return unsupported(err, "conv2d");
}

static int ref_copy(tn_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes > 0) memmove(dst, src, bytes);
    return TN_OK;
}

static int ref_sync(tn_device *d)
{
    (void)d;
    return TN_OK;
}

static void ref_close(tn_device *d) { tn_free_mem(d); }

int tn_ref_open(const tn_device_options *o, tn_device **out, tn_errbuf *err)
{
    (void)o;
    *out = NULL;
    tn_ref_device *d = tn_calloc(1, sizeof *d);
    if (!d) return tn_err(err, TN_E_NOMEM, "no memory for the reference device");
    d->device = (tn_device){.name = "ref",
                            .threads = 1,
                            .is_reference = true,
                            .alloc = ref_alloc,
                            .free = ref_free,
                            .reserve = ref_reserve,
                            .commit = ref_commit,
                            .release = ref_release,
                            .compile = ref_compile,
                            .launch = ref_launch,
                            .gemm = ref_gemm,
                            .conv2d = ref_conv2d,
                            .copy = ref_copy,
                            .upload = ref_copy,
                            .download = ref_copy,
                            .sync = ref_sync,
                            .close = ref_close};
    *out = &d->device;
    return TN_OK;
}
