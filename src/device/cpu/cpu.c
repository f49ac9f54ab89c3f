/* cpu.c - the CPU device: fills struct tn_device from the parts beside it.
 *
 *   memory.c  tensors' memory          kernels.c  texts to functions (compile.c, ../kcache.c)
 *   pool.c    threads                  cpu_lib.h  GEMM and convolution
 *
 * Everything runs at the call and is done when it returns, so sync has nothing to do and a "device" pointer
 * is a plain pointer. Read first: tn_cpu_open, then launch. */
#include "../../core/settings.h"
#include "../device.h"
#include "builtin.h"
#include "cpu_lib.h"
#include "kernels.h"
#include "machine.h"
#include "memory.h"
#include "pool.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COPY_CHUNK = 1 << 20 };

struct cpu_device {
    tn_device base;
    tn_pool *pool;
    tn_memory *memory;
    tn_kernels *kernels;
    tn_cpu_lib *lib;
};

static struct cpu_device *cpu(tn_device *d) { return (struct cpu_device *)d; }

/* ---- memory ---------------------------------------------------------------------------------------- */

tn_pool *tn_cpu_pool(tn_device *d) { return cpu(d)->pool; }

static void note_memory(struct cpu_device *c)
{
    c->base.stats.bytes_now = tn_memory_now(c->memory);
    c->base.stats.bytes_peak = tn_memory_peak(c->memory);
}

static void *cpu_alloc(tn_device *d, size_t bytes)
{
    void *p = tn_memory_alloc(cpu(d)->memory, bytes);
    note_memory(cpu(d));
    return p;
}

static void cpu_free(tn_device *d, void *p)
{
    tn_memory_free(cpu(d)->memory, p);
    note_memory(cpu(d));
}

static void *cpu_reserve(tn_device *d, size_t bytes) { return tn_memory_reserve(cpu(d)->memory, bytes); }

static int cpu_commit(tn_device *d, void *base, size_t first, size_t bytes)
{
    int status = tn_memory_commit(cpu(d)->memory, base, first, bytes);
    note_memory(cpu(d));
    return status;
}

static void cpu_release(tn_device *d, void *base, size_t bytes)
{
    (void)bytes;
    tn_memory_release(cpu(d)->memory, base);
    note_memory(cpu(d));
}

/* ---- kernels and library calls --------------------------------------------------------------------- */

static int cpu_compile(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    int status = tn_kernels_compile(cpu(d)->kernels, src, n, out, &d->stats, err);
    d->no_compiler = status && tn_kernels_no_compiler(cpu(d)->kernels);
    return status;
}

struct call {
    tn_kernel_fn *fn;
    const tn_args *args;
};

static void run_chunk(void *arg, int64_t begin, int64_t end)
{
    const struct call *call = arg;
    call->fn(call->args, begin, end);
}

static int cpu_launch(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid, tn_errbuf *err)
{
    if (!k) return tn_err(err, TN_E_NULL, "launch of a kernel that was not compiled");
    struct call call = {tn_kernel_entry(k), args}, finish = {tn_kernel_finish(k), args};
    if (grid->finish_n > 0 && !finish.fn)
        return tn_err(err, TN_E_ARG, "launch with a finish of a kernel that has none");
    tn_pool_run(cpu(d)->pool, run_chunk, &call, grid->n, grid->chunk);
    if (grid->finish_n > 0) tn_pool_run(cpu(d)->pool, run_chunk, &finish, grid->finish_n, grid->finish_chunk);
    d->stats.launches++;
    return 0;
}

static int cpu_gemm(tn_device *d, const tn_gemm *g, tn_errbuf *err)
{
    return tn_cpu_gemm(cpu(d)->lib, cpu(d)->pool, g, &d->stats, err);
}

static int cpu_conv2d(tn_device *d, const tn_conv2d_desc *c, tn_errbuf *err)
{
    return tn_cpu_conv2d(cpu(d)->lib, cpu(d)->pool, c, &d->stats, err);
}

static int cpu_ready(tn_device *d, const tn_gemm *g, const tn_conv2d_desc *c, tn_errbuf *err)
{
    if (g || c) return tn_cpu_ready(cpu(d)->lib, cpu(d)->pool, g, c, err);
    d->shed += tn_cpu_settle(cpu(d)->lib);
    return TN_OK;
}

/* ---- copies ---------------------------------------------------------------------------------------- */

struct span {
    char *dst;
    const char *src;
};

static void copy_chunk(void *arg, int64_t begin, int64_t end)
{
    const struct span *s = arg;
    memcpy(s->dst + begin, s->src + begin, (size_t)(end - begin));
}

static void move(struct cpu_device *c, void *dst, const void *src, size_t bytes)
{
    uintptr_t a = (uintptr_t)dst, b = (uintptr_t)src;
    if (!bytes) return;
    if ((a > b ? a - b : b - a) < bytes)
        memmove(dst, src, bytes);
    else
        tn_pool_run(c->pool, copy_chunk, &(struct span){dst, src}, (int64_t)bytes, COPY_CHUNK);
}

static int cpu_copy(tn_device *d, void *dst, const void *src, size_t bytes)
{
    move(cpu(d), dst, src, bytes);
    d->stats.copies++;
    return 0;
}

static int cpu_transfer(tn_device *d, void *dst, const void *src, size_t bytes)
{
    move(cpu(d), dst, src, bytes);
    return 0;
}

static int cpu_sync(tn_device *d)
{
    (void)d;
    return 0;
}

/* ---- opening and closing --------------------------------------------------------------------------- */

/* Cores this process may use: its affinity, cut to what a container's quota pays for. */
static int usable_cores(void)
{
    cpu_set_t set;
    long n = sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f) {
        long quota, period;
        if (fscanf(f, "%ld %ld", &quota, &period) == 2 && quota > 0 && period > 0) {
            long paid = (quota + period - 1) / period;
            if (paid < n) n = paid;
        }
        fclose(f);
    }
    return n < 1 ? 1 : n > TN_THREADS_MAX ? TN_THREADS_MAX : (int)n;
}

static int choose_threads(int wanted)
{
    int n = wanted > 0 ? wanted : tn_settings_read(NULL, NULL).threads;
    if (n <= 0) return usable_cores();
    return n > TN_THREADS_MAX ? TN_THREADS_MAX : n;
}

static void cpu_close(tn_device *d)
{
    if (!d) return;
    struct cpu_device *c = cpu(d);
    tn_kernels_close(c->kernels);
    if (c->lib) tn_cpu_lib_close(c->lib);
    tn_pool_close(c->pool);
    tn_memory_close(c->memory);
    tn_free_mem(c);
}

int tn_cpu_open(const tn_device_options *o, tn_device **out, tn_errbuf *err)
{
    *out = NULL;
    struct cpu_device *c = tn_calloc(1, sizeof *c);
    int status = c ? 0 : TN_E_NOMEM;
    tn_errbuf why = {""};
    if (c) {
        c->base = (tn_device){
            .name = "cpu",
            .shares_host_memory = true,
            .threads = choose_threads(o->threads),
            .target = {.vector_bytes = 64, .l1_bytes = 32 << 10, .l2_bytes = 1 << 20},
            .alloc = cpu_alloc,
            .free = cpu_free,
            .reserve = cpu_reserve,
            .commit = cpu_commit,
            .release = cpu_release,
            .compile = cpu_compile,
            .launch = cpu_launch,
            .gemm = cpu_gemm,
            .conv2d = cpu_conv2d,
            .ready = cpu_ready,
            .copy = cpu_copy,
            .upload = cpu_transfer,
            .download = cpu_transfer,
            .sync = cpu_sync,
            .close = cpu_close,
        };
        tn_kernels_options k = {
            .cache = {.dir = o->cache_dir, .suffix = ".so", .log = o->log, .log_user = o->log_user},
            .jobs = c->base.threads,
        };
        status = tn_memory_open(&c->memory);
        if (!status) status = tn_pool_open(c->base.threads, &c->pool);
        if (!status) status = tn_kernels_open(&k, &c->kernels);
        if (!status) status = tn_kernels_named_compiler(c->kernels, &why);
        if (!status) status = tn_cpu_lib_open(&c->lib);
        if (!status) tn_cpu_lib_log(c->lib, o->log, o->log_user);
        if (!status) c->base.folder = tn_kernels_folder(c->kernels);
        c->base.target.cache_bytes = tn_cpu_last_cache();
        tn_cpu_machine(c->base.machine, sizeof c->base.machine);
    }
    if (status) {
        if (c) cpu_close(&c->base);
        return tn_err(err, status, "cpu device: %.1000s",
                      why.text[0]            ? why.text
                      : status == TN_E_NOMEM ? "out of memory"
                                             : "it could not be opened");
    }
    *out = &c->base;
    return 0;
}
