/* cuda_runtime_api.h - in the place of CUDA's own: as much of the runtime as a file of src/export/cuda.c
 * calls. What it does is tests/cusim/runtime.c. */
#ifndef CUSIM_CUDA_RUNTIME_API_H
#define CUSIM_CUDA_RUNTIME_API_H

#include <stddef.h>

#if !defined(__align__)
#define __align__(n) __attribute__((aligned(n)))
#endif

typedef enum cudaError {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorLaunchFailure = 719,
    cudaErrorMisalignedAddress = 716
} cudaError_t;
typedef enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
} cudaMemcpyKind;
typedef enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 } cudaFuncAttribute;
typedef struct CUstream_st *cudaStream_t;

#if defined(__cplusplus)
extern "C" {
#else
typedef struct dim3 {
    unsigned x, y, z;
} dim3;
#endif

cudaError_t cudaMalloc(void **at, size_t bytes);
cudaError_t cudaFree(void *at);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute which, int value);
cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments, size_t shared,
                             cudaStream_t stream);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

#if defined(__cplusplus)
}
#endif

#endif
