/* cuda.c - the CUDA device: fills struct tn_device from the parts beside it (internal.h lists them). One
 * fault word in device memory is seen by all kernels; download and sync fetch it. Read first: tn_cuda_open.
 */
#include "internal.h"

#include "../../core/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the device's context, where it can be entered: the status of what is done there, of c, or of entering. */
#define WITHIN(d, err, call)                                                                                 \
    tn_cuda *c = tn_cuda_of(d);                                                                              \
    int status = tn_cuda_enter(c, err);                                                                      \
    if (status) return status;                                                                               \
    status = (call);                                                                                         \
    tn_cuda_leave(c);                                                                                        \
    return status

/* ---- memory ---------------------------------------------------------------------------------------- */

static void *cuda_alloc(tn_device *d, size_t bytes)
{
    tn_cuda *c = tn_cuda_of(d);
    if (tn_cuda_enter(c, &d->failure)) return NULL;
    void *p = tn_cuda_alloc(c, bytes, &d->failure);
    tn_cuda_leave(c);
    return p;
}

/* Gives back to the cache, so the driver is not asked. */
static void cuda_free(tn_device *d, void *p) { tn_cuda_free(tn_cuda_of(d), p); }

static void *cuda_reserve(tn_device *d, size_t bytes)
{
    tn_cuda *c = tn_cuda_of(d);
    if (tn_cuda_enter(c, &d->failure)) return NULL;
    void *p = tn_cuda_reserve(c, bytes, &d->failure);
    tn_cuda_leave(c);
    return p;
}

static int cuda_commit(tn_device *d, void *base, size_t first, size_t bytes)
{
    WITHIN(d, &d->failure, tn_cuda_commit(c, base, first + bytes, &d->failure));
}

static void cuda_release(tn_device *d, void *base, size_t bytes)
{
    (void)bytes;
    tn_cuda *c = tn_cuda_of(d);
    if (c->base.lost || c->api->cuCtxPushCurrent_v2(c->context)) return; /* close takes it */
    tn_cuda_release(c, base);
    tn_cuda_leave(c);
}

/* ---- kernels --------------------------------------------------------------------------------------- */

static int cuda_compile(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err)
{
    WITHIN(d, err, tn_cuda_compile(c, src, n, out, err));
}

static bool cuda_kernel_info(tn_device *d, const tn_kernel *k, tn_kernel_info *out)
{
    (void)d;
    if (k) *out = k->info;
    return k != NULL;
}

/* A kernel gets more than the usual amount of shared memory only when it has asked. */
static int allow_shared(tn_cuda *c, tn_kernel *k, int64_t bytes, tn_errbuf *err)
{
    const tn_target *t = &c->base.target;
    if (bytes < 0 ||
        bytes + k->info.shared_bytes > (t->shared_most > t->shared_bytes ? t->shared_most : t->shared_bytes))
        return tn_err(err, TN_E_ARG, "%s: %lld bytes of dynamic shared memory, beside %lld of its own",
                      k->name, (long long)bytes, (long long)k->info.shared_bytes);
    if (bytes + k->info.shared_bytes <= t->shared_bytes || bytes <= k->shared_allowed) return TN_OK;
    int status = TN_CUDA_DO(c, err, cuFuncSetAttribute, k->fn, TN_CU_FUNC_DYNAMIC, (int)bytes);
    if (!status) k->shared_allowed = bytes;
    return status;
}

static int cuda_launch(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid, tn_errbuf *err)
{
    tn_cuda *c = tn_cuda_of(d);
    if (!k) return tn_err(err, TN_E_NULL, "launch of a kernel that was not compiled");
    if (grid->chunk < 1 || grid->threads < 1 || args->n_buf > TN_MAX_KERNEL_BUFS ||
        args->n_dim > TN_MAX_KERNEL_DIMS)
        return tn_err(err, TN_E_ARG, "%s: %d threads, chunks of %lld, %d buffers and %d numbers", k->name,
                      grid->threads, (long long)grid->chunk, args->n_buf, args->n_dim);
    if (grid->finish_n > 0 && (!k->finish || grid->finish_chunk < 1 || grid->finish_threads < 1))
        return tn_err(err, TN_E_ARG, "%s: a finish of %d threads and chunks of %lld, which it %s", k->name,
                      grid->finish_threads, (long long)grid->finish_chunk,
                      k->finish ? "cannot run" : "has not");
    tn_cuda_args a;
    a.n = grid->n;
    a.chunk = grid->chunk;
    a.scalar = args->scalar;
    memset(a.buf, 0, sizeof a.buf);
    memset(a.dim, 0, sizeof a.dim);
    if (args->n_buf) memcpy(a.buf, args->buf, (size_t)args->n_buf * sizeof *a.buf);
    if (args->n_dim) memcpy(a.dim, args->dim, (size_t)args->n_dim * sizeof *a.dim);
    int status = tn_cuda_enter(c, err);
    if (status) return status;
    status = allow_shared(c, k, grid->shared, err);
    if (!status) status = tn_cuda_start(c, k->name, k->fn, &a, grid->threads, grid->shared, err);
    a.n = grid->finish_n;
    a.chunk = grid->finish_chunk;
    if (!status && a.n > 0) status = tn_cuda_start(c, k->name, k->finish, &a, grid->finish_threads, 0, err);
    tn_cuda_leave(c);
    d->stats.launches++;
    return status;
}

/* ---- library calls --------------------------------------------------------------------------------- */

static int called(tn_cuda *c, int status, tn_errbuf *err)
{
    if (!status && c->sync_each && !c->recording) status = tn_cuda_wait(c, err);
    c->base.stats.library_calls++;
    return status;
}

static int cuda_gemm(tn_device *d, const tn_gemm *g, tn_errbuf *err)
{
    WITHIN(d, err, called(c, tn_cuda_gemm(c, g, false, false, err), err));
}

static int cuda_conv2d(tn_device *d, const tn_conv2d_desc *v, tn_errbuf *err)
{
    WITHIN(d, err, called(c, tn_cuda_conv2d(c, v, err), err));
}

/* ---- copies ---------------------------------------------------------------------------------------- */

static int cuda_copy(tn_device *d, void *dst, const void *src, size_t bytes)
{
    d->stats.copies++;
    WITHIN(d, &d->failure,
           bytes ? TN_CUDA_DO(c, &d->failure, cuMemcpyDtoDAsync_v2, tn_cuda_ptr(dst), tn_cuda_ptr(src), bytes,
                              c->stream)
                 : TN_OK);
}

static int cuda_zero(tn_device *d, void *dst, size_t bytes)
{
    WITHIN(d, &d->failure,
           bytes ? TN_CUDA_DO(c, &d->failure, cuMemsetD8Async, tn_cuda_ptr(dst), 0, bytes, c->stream)
                 : TN_OK);
}

static int cuda_upload(tn_device *d, void *dst, const void *host, size_t bytes)
{
    WITHIN(d, &d->failure, tn_cuda_upload(c, dst, host, bytes, &d->failure));
}

static int cuda_download(tn_device *d, void *host, const void *src, size_t bytes)
{
    WITHIN(d, &d->failure, tn_cuda_download(c, host, src, bytes, &d->failure));
}

static int cuda_post(tn_device *d, int number, const void *src, size_t bytes)
{
    WITHIN(d, &d->failure, tn_cuda_post(c, number, src, bytes, &d->failure));
}

static bool cuda_peek(tn_device *d, int number, void *out)
{
    tn_cuda *c = tn_cuda_of(d);
    if (tn_cuda_enter(c, &d->failure)) return false;
    bool has = tn_cuda_peek(c, number, out);
    tn_cuda_leave(c);
    return has;
}

static int cuda_sync(tn_device *d) { return cuda_download(d, NULL, NULL, 0); /* the fault word alone */ }

static bool cuda_take_fault(tn_device *d, tn_fault *out)
{
    tn_cuda *c = tn_cuda_of(d);
    if (!c->fault.code) return false;
    *out = c->fault;
    c->fault = (tn_fault){0};
    c->faults++;
    if (tn_cuda_enter(c, &d->failure)) return true;
    TN_CUDA_DO(c, &d->failure, cuMemsetD8Async, c->words, 0, TN_CUDA_WORD_BYTES, c->stream);
    tn_cuda_leave(c);
    return true;
}

/* ---- opening and closing --------------------------------------------------------------------------- */

static int attribute(tn_cuda *c, tn_cu_attribute which)
{
    int v = 0;
    return c->api->cuDeviceGetAttribute(&v, which, c->device) ? 0 : v;
}

static int pick_device(tn_cuda *c, int gpu, tn_errbuf *err)
{
    int count = 0, status = TN_CUDA_DO(c, err, cuDeviceGetCount, &count);
    if (!status && gpu >= count)
        return tn_err(err, TN_E_UNSUPPORTED,
                      "there is no GPU cuda:%d: this process sees %d, counted from cuda:0; see nvidia-smi -L "
                      "and CUDA_VISIBLE_DEVICES",
                      gpu, count);
    if (!status) status = TN_CUDA_DO(c, err, cuDeviceGet, &c->device, gpu);
    if (!status) status = TN_CUDA_DO(c, err, cuDeviceGetName, c->name, sizeof c->name, c->device);
    if (status) return status;
    c->capability = attribute(c, TN_CU_CAPABILITY_MAJOR) * 10 + attribute(c, TN_CU_CAPABILITY_MINOR);
    if (c->capability < TN_CUDA_MIN_CAPABILITY)
        return tn_err(err, TN_E_UNSUPPORTED,
                      "%s has compute capability %d.%d, below %d.%d; a GPU of the Volta generation or "
                      "later is needed",
                      c->name, c->capability / 10, c->capability % 10, TN_CUDA_MIN_CAPABILITY / 10,
                      TN_CUDA_MIN_CAPABILITY % 10);
    status = tn_cuda_pick_arch(c, err);
    if (status) return status;
    return TN_CUDA_DO(c, err, cuDevicePrimaryCtxRetain, &c->context, c->device);
}

static int make_streams(tn_cuda *c, tn_errbuf *err)
{
    int status = TN_CUDA_DO(c, err, cuStreamCreate, &c->stream, TN_CU_STREAM_NON_BLOCKING);
    if (!status) status = TN_CUDA_DO(c, err, cuStreamCreate, &c->uploads, TN_CU_STREAM_NON_BLOCKING);
    if (!status) status = TN_CUDA_DO(c, err, cuMemAlloc_v2, &c->words, TN_CUDA_WORD_BYTES);
    if (!status) status = TN_CUDA_DO(c, err, cuMemsetD8Async, c->words, 0, TN_CUDA_WORD_BYTES, c->stream);
    return status;
}

static void cuda_close(tn_device *d)
{
    if (!d) return;
    tn_cuda *c = tn_cuda_of(d);
    if (c->context && !c->api->cuCtxPushCurrent_v2(c->context)) {
        if (c->stream) c->api->cuStreamSynchronize(c->stream);
        tn_cuda_blas_close(c);
        tn_cuda_code_close(c);
        tn_cuda_ring_close(c);
        tn_cuda_memory_close(c);
        if (c->words) c->api->cuMemFree_v2(c->words);
        if (c->uploads) c->api->cuStreamDestroy_v2(c->uploads);
        tn_cuda_beside_close(c);
        if (c->stream) c->api->cuStreamDestroy_v2(c->stream);
        tn_cuda_leave(c);
    }
    if (c->context) c->api->cuDevicePrimaryCtxRelease_v2(c->device);
    tn_cuda_unload(c->api);
    tn_free_mem(c);
}

static void fill(tn_cuda *c)
{
    c->base = (tn_device){
        .name = "cuda",
        .threads = 1,
        .folder = tn_cuda_code_folder(c),
        .target = {.dialect = TN_DIALECT_CUDA,
                   .vector_bytes = 16,
                   .l1_bytes = attribute(c, TN_CU_PROCESSOR_SHARED),
                   .l2_bytes = attribute(c, TN_CU_L2_BYTES),
                   .last_bytes = attribute(c, TN_CU_L2_BYTES),
                   .capability = c->arch, /* what kernels may use */
                   .processors = attribute(c, TN_CU_PROCESSORS),
                   .max_threads = attribute(c, TN_CU_PROCESSOR_THREADS),
                   .shared_bytes = attribute(c, TN_CU_SHARED_BYTES),
                   .shared_most = attribute(c, TN_CU_SHARED_MOST),
                   .wgmma = tn_cuda_has_wgmma(c)},
        .stats = c->base.stats,
        .alloc = cuda_alloc,
        .free = cuda_free,
        .reserve = cuda_reserve,
        .commit = cuda_commit,
        .release = cuda_release,
        .compile = cuda_compile,
        .launch = cuda_launch,
        .gemm = cuda_gemm,
        .conv2d = cuda_conv2d,
        .copy = cuda_copy,
        .upload = cuda_upload,
        .download = cuda_download,
        .sync = cuda_sync,
        .close = cuda_close,
        .zero = cuda_zero,
        .kernel_info = cuda_kernel_info,
        .tell = tn_cuda_tell,
        .time = tn_cuda_time,
        .take_fault = cuda_take_fault,
        .post = cuda_post,
        .peek = cuda_peek,
        .beside = tn_cuda_beside,
        .join = tn_cuda_join,
        .fault_word = (void *)(uintptr_t)c->words,
        .record_begin = tn_cuda_record_begin,
        .record_end = tn_cuda_record_end,
        .replay = tn_cuda_replay,
        .forget = tn_cuda_forget,
    };
    snprintf(c->base.machine, sizeof c->base.machine, "cuda %d processors of %d threads, last cache %lld KiB",
             c->base.target.processors, c->base.target.max_threads,
             (long long)(c->base.target.l2_bytes >> 10));
}

/* The device was lost before anything was launched. */
static int say_unusable(const tn_cuda *c, tn_errbuf *err)
{
    return tn_err(err, TN_E_DEVICE,
                  "%s cannot be used: %s. If a fault came before in this process, something still holds the "
                  "GPU's primary context: close what uses CUDA here, or start a new process",
                  c->name, c->why_lost);
}

int tn_cuda_open(const tn_device_options *o, tn_device **out, bool *driver, tn_errbuf *err)
{
    *out = NULL;
    if (driver) *driver = false;
    if (o->planned) return tn_cuda_open_planned(o, out, err);
    tn_cuda *c = tn_calloc(1, sizeof *c);
    if (!c) return tn_err(err, TN_E_NOMEM, "out of memory");
    c->log = o->log;
    c->workspace_limit = TN_CUDA_WORKSPACE;
    c->log_user = o->log_user;
    const char *each = tn_setting("TENSOR_CUDA_SYNC");
    c->sync_each = each && strcmp(each, "0");
    int status = tn_cuda_load(&c->api, driver, err);
    if (!status) status = pick_device(c, o->gpu, err);
    if (!status) status = tn_cuda_enter(c, err);
    if (status) {
        if (c->base.lost) status = say_unusable(c, err);
        cuda_close(&c->base);
        return status;
    }
    status = make_streams(c, err);
    if (!status) status = tn_cuda_memory_open(c, err);
    if (!status && tn_cuda_ring_open(c)) status = tn_err(err, TN_E_NOMEM, "out of memory");
    if (!status) status = tn_cuda_code_open(c, o, err);
    const bool was_lost = c->base.lost;
    fill(c);
    tn_cuda_leave(c);
    if (status) {
        if (was_lost) status = say_unusable(c, err);
        cuda_close(&c->base);
        return status;
    }
    *out = &c->base;
    return TN_OK;
}
