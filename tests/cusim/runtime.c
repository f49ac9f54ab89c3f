/* runtime.c - as much of CUDA's runtime as an exported file calls, on top of the simulator's driver.
 *
 * Such a file is compiled as a program is (nvrtc.c, option --cusim-host) and then opened twice: by who calls
 * its functions, and as the module whose kernels run. A kernel is known by its address in the first, under
 * which its name stands in the table that both have.
 *
 * Read first: cudaLaunchKernel. */
#include "include/cuda_runtime_api.h"

#include "nvrtc.h"
#include "sim.h"

#include <stdlib.h>

#pragma GCC visibility push(default)

static _Thread_local cudaError_t last;
static _Thread_local bool entered;
static struct image {
    char *path;
    tn_cu_module module;
    const sim_kernel_info *kernel;
    struct image *next;
} * images;

static cudaError_t note(tn_cu_result e)
{
    const cudaError_t r = !e                         ? cudaSuccess
                          : e == TN_CU_INVALID_VALUE ? cudaErrorInvalidValue
                          : e == TN_CU_OUT_OF_MEMORY ? cudaErrorMemoryAllocation
                          : e == TN_CU_NOT_FOUND     ? cudaErrorInvalidDeviceFunction
                                                     : cudaErrorLaunchFailure;
    if (r) last = r;
    return r;
}

/* The primary context, which the runtime keeps as long as the process lives. */
static tn_cu_result enter(void)
{
    tn_cu_context context;
    if (entered) return SIM_OK;
    tn_cu_result e = cuInit(0);
    if (!e) e = cuDevicePrimaryCtxRetain(&context, 0);
    if (!e) e = cuCtxPushCurrent_v2(context);
    entered = !e;
    return e;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **at, size_t bytes)
{
    tn_cu_ptr p = 0;
    tn_cu_result e = enter();
    if (!e) e = cuMemAlloc_v2(&p, bytes);
    *at = sim_pointer(p);
    return note(e);
}

cudaError_t cudaFree(void *at)
{
    const tn_cu_result e = enter();
    return note(e ? e : cuMemFree_v2((tn_cu_ptr)(uintptr_t)at));
}

static bool on_device(const void *at)
{
    pthread_mutex_lock(&sim.lock);
    const sim_region *r = sim_find((uint64_t)(uintptr_t)at, 1);
    pthread_mutex_unlock(&sim.lock);
    return r && r->kind != SIM_PINNED;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    tn_cu_result e = enter();
    if (e) return note(e);
    const bool to_device = on_device(to), from_device = on_device(from);
    if (kind != cudaMemcpyDefault && kind != (to_device ? 1u : 0u) + (from_device ? 2u : 0u))
        return note(TN_CU_INVALID_VALUE);
    const tn_cu_stream s = (tn_cu_stream)stream;
    const tn_cu_ptr d = (tn_cu_ptr)(uintptr_t)to, f = (tn_cu_ptr)(uintptr_t)from;
    if (to_device && from_device) return note(cuMemcpyDtoDAsync_v2(d, f, bytes, s));
    if (to_device) return note(cuMemcpyHtoDAsync_v2(d, from, bytes, s));
    if (from_device) return note(cuMemcpyDtoHAsync_v2(to, f, bytes, s));
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return e ? e : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    const tn_cu_result e = enter();
    return note(
        e ? e : cuMemsetD8Async((tn_cu_ptr)(uintptr_t)at, (unsigned char)value, bytes, (tn_cu_stream)stream));
}

/* ---- streams ---- */

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    const tn_cu_result e = enter();
    return note(e ? e : cuStreamCreate((tn_cu_stream *)stream, TN_CU_STREAM_NON_BLOCKING));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return note(cuStreamDestroy_v2((tn_cu_stream)stream)); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    const tn_cu_result e = enter();
    return note(e ? e : cuStreamSynchronize((tn_cu_stream)stream));
}

cudaError_t cudaPeekAtLastError(void) { return last; }

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last;
    last = cudaSuccess;
    return e;
}

/* ---- kernels ---- */

static struct image *image_of(const void *kernel)
{
    Dl_info where;
    if (!dladdr(kernel, &where) || !where.dli_fname) return NULL;
    for (struct image *i = images; i; i = i->next)
        if (!strcmp(i->path, where.dli_fname)) return i;
    struct image *i = calloc(1, sizeof *i);
    void *library = dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    size_t bytes;
    char *file = sim_read_file(where.dli_fname, &bytes);
    if (i) i->path = strdup(where.dli_fname);
    if (!i || !library || !file || !i->path || !(i->kernel = dlsym(library, "cusim_kernels")) ||
        cuModuleLoadData(&i->module, file))
        i = NULL; /* a test fails then, and the process ends */
    free(file);
    if (!i) return NULL;
    i->next = images;
    return images = i;
}

static tn_cu_result find(const void *kernel, tn_cu_function *f)
{
    const tn_cu_result e = enter();
    const struct image *i = e ? NULL : image_of(kernel);
    if (!i) return e ? e : TN_CU_NOT_FOUND;
    for (const sim_kernel_info *k = i->kernel; k->name; k++)
        if (k->address == kernel) return cuModuleGetFunction(f, i->module, k->name);
    return TN_CU_NOT_FOUND;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute which, int value)
{
    tn_cu_function f;
    const tn_cu_result e = find(kernel, &f);
    return note(e ? e : cuFuncSetAttribute(f, (tn_cu_function_attribute)which, value));
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    tn_cu_function f;
    const tn_cu_result e = find(kernel, &f);
    return note(e ? e
                  : cuLaunchKernel(f, blocks.x, blocks.y, blocks.z, threads.x, threads.y, threads.z,
                                   (unsigned)shared, (tn_cu_stream)stream, arguments, NULL));
}
