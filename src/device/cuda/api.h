/* api.h - the CUDA driver, NVRTC and cuBLASLt as this library sees them.
 *
 * The three are opened at run time, so that one binary runs with and without a GPU and no CUDA header is
 * needed to build it. What they agree on with their callers (a few types, constants and function types)
 * stands here and in api.def; tests/test_cuda_api.c compares all of it with the toolkit's own headers where
 * those are installed.
 *
 * Read first: tn_cuda_load.
 */
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "../device.h"

/* ---- types: handles carry the libraries' own struct tags; enumerations are unsigned ---- */

typedef unsigned tn_cu_result, tn_cu_attribute, tn_cu_function_attribute, tn_cu_capture_mode,
    tn_cu_granularity;
typedef int tn_cu_device;
typedef unsigned long long tn_cu_ptr, tn_cu_memory;
typedef struct CUctx_st *tn_cu_context;
typedef struct CUmod_st *tn_cu_module;
typedef struct CUfunc_st *tn_cu_function;
typedef struct CUstream_st *tn_cu_stream;
typedef struct CUevent_st *tn_cu_event;
typedef struct CUgraph_st *tn_cu_graph;
typedef struct CUgraphNode_st *tn_cu_graph_node;
typedef struct CUgraphExec_st *tn_cu_graph_exec;

typedef struct tn_cu_location {
    unsigned type;
    int id;
} tn_cu_location;

typedef struct tn_cu_mem_prop {
    unsigned type, handle_types;
    tn_cu_location location;
    void *unused;
    unsigned char flags[8];
} tn_cu_mem_prop;

typedef struct tn_cu_mem_access {
    tn_cu_location location;
    unsigned flags;
} tn_cu_mem_access;

typedef unsigned tn_nvrtc_result;
typedef struct _nvrtcProgram *tn_nvrtc_program;

typedef unsigned tn_cublas_result, tn_cublas_compute, tn_cublas_type, tn_cublas_desc_attribute,
    tn_cublas_layout_attribute, tn_cublas_preference_attribute;
typedef struct cublasLtContext *tn_cublas_handle;
typedef void *tn_cublas_desc, *tn_cublas_layout,
    *tn_cublas_preference; /* pointers to what only it looks into */

typedef struct tn_cublas_algo {
    uint64_t data[8];
} tn_cublas_algo;

typedef struct tn_cublas_choice {
    tn_cublas_algo algo;
    size_t workspace;
    tn_cublas_result state;
    float waves;
    int reserved[4];
} tn_cublas_choice;

/* ---- constants: X(name here, value, name there) ---- */

#define TN_CU_CONSTANTS(X)                                                                                   \
    X(TN_CU_OUT_OF_MEMORY, 2, CUDA_ERROR_OUT_OF_MEMORY)                                                      \
    X(TN_CU_STUB, 34, CUDA_ERROR_STUB_LIBRARY)                                                               \
    X(TN_CU_NO_DEVICE, 100, CUDA_ERROR_NO_DEVICE)                                                            \
    X(TN_CU_INVALID_VALUE, 1, CUDA_ERROR_INVALID_VALUE)                                                      \
    X(TN_CU_NOT_FOUND, 500, CUDA_ERROR_NOT_FOUND)                                                            \
    X(TN_CU_NOT_READY, 600, CUDA_ERROR_NOT_READY)                                                            \
    X(TN_CU_INVALID_IMAGE, 200, CUDA_ERROR_INVALID_IMAGE)                                                    \
    X(TN_CU_NO_BINARY, 209, CUDA_ERROR_NO_BINARY_FOR_GPU)                                                    \
    X(TN_CU_INVALID_HANDLE, 400, CUDA_ERROR_INVALID_HANDLE)                                                  \
    X(TN_CU_OUT_OF_RESOURCES, 701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)                                       \
    X(TN_CU_LAUNCH_FAILED, 719, CUDA_ERROR_LAUNCH_FAILED)                                                    \
    X(TN_CU_NOT_SUPPORTED, 801, CUDA_ERROR_NOT_SUPPORTED)                                                    \
    X(TN_CU_CAPTURE_UNSUPPORTED, 900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)                                 \
    X(TN_CU_CAPTURE_LAST, 908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)                                       \
    X(TN_CU_GRID_X, 5, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)                                                   \
    X(TN_CU_SHARED_BYTES, 8, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)                                \
    X(TN_CU_PROCESSORS, 16, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                                        \
    X(TN_CU_L2_BYTES, 38, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)                                                 \
    X(TN_CU_PROCESSOR_THREADS, 39, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)                       \
    X(TN_CU_CAPABILITY_MAJOR, 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                              \
    X(TN_CU_CAPABILITY_MINOR, 76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                              \
    X(TN_CU_PROCESSOR_SHARED, 81, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)                  \
    X(TN_CU_SHARED_MOST, 97, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)                          \
    X(TN_CU_VIRTUAL_MEMORY, 102, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)                    \
    X(TN_CU_FUNC_THREADS, 0, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)                                        \
    X(TN_CU_FUNC_SHARED, 1, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)                                             \
    X(TN_CU_FUNC_LOCAL, 3, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)                                               \
    X(TN_CU_FUNC_REGISTERS, 4, CU_FUNC_ATTRIBUTE_NUM_REGS)                                                   \
    X(TN_CU_FUNC_DYNAMIC, 8, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)                                \
    X(TN_CU_STREAM_NON_BLOCKING, 1, CU_STREAM_NON_BLOCKING)                                                  \
    X(TN_CU_EVENT_DISABLE_TIMING, 2, CU_EVENT_DISABLE_TIMING)                                                \
    X(TN_CU_CAPTURE_THREAD_LOCAL, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)                                    \
    X(TN_CU_MEM_PINNED, 1, CU_MEM_ALLOCATION_TYPE_PINNED)                                                    \
    X(TN_CU_MEM_ON_DEVICE, 1, CU_MEM_LOCATION_TYPE_DEVICE)                                                   \
    X(TN_CU_MEM_READ_WRITE, 3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                                           \
    X(TN_CU_GRANULARITY_MINIMUM, 0, CU_MEM_ALLOC_GRANULARITY_MINIMUM)                                        \
    X(TN_NVRTC_OUT_OF_MEMORY, 1, NVRTC_ERROR_OUT_OF_MEMORY)                                                  \
    X(TN_NVRTC_COMPILATION, 6, NVRTC_ERROR_COMPILATION)                                                      \
    X(TN_CUBLAS_ALLOC_FAILED, 3, CUBLAS_STATUS_ALLOC_FAILED)                                                 \
    X(TN_CUBLAS_INVALID_VALUE, 7, CUBLAS_STATUS_INVALID_VALUE)                                               \
    X(TN_CUBLAS_NOT_SUPPORTED, 15, CUBLAS_STATUS_NOT_SUPPORTED)                                              \
    X(TN_CUBLAS_OP_N, 0, CUBLAS_OP_N)                                                                        \
    X(TN_CUBLAS_OP_T, 1, CUBLAS_OP_T)                                                                        \
    X(TN_CUBLAS_COMPUTE_F32, 68, CUBLAS_COMPUTE_32F)                                                         \
    X(TN_CUBLAS_COMPUTE_F64, 70, CUBLAS_COMPUTE_64F)                                                         \
    X(TN_CUBLAS_COMPUTE_TF32, 77, CUBLAS_COMPUTE_32F_FAST_TF32)                                              \
    X(TN_CUBLAS_F32, 0, CUDA_R_32F)                                                                          \
    X(TN_CUBLAS_F64, 1, CUDA_R_64F)                                                                          \
    X(TN_CUBLAS_F16, 2, CUDA_R_16F)                                                                          \
    X(TN_CUBLAS_BF16, 14, CUDA_R_16BF)                                                                       \
    X(TN_CUBLAS_LAYOUT_BATCH, 5, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)                                         \
    X(TN_CUBLAS_LAYOUT_STRIDE, 6, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)                               \
    X(TN_CUBLAS_DESC_TRANSA, 3, CUBLASLT_MATMUL_DESC_TRANSA)                                                 \
    X(TN_CUBLAS_DESC_TRANSB, 4, CUBLASLT_MATMUL_DESC_TRANSB)                                                 \
    X(TN_CUBLAS_DESC_EPILOGUE, 7, CUBLASLT_MATMUL_DESC_EPILOGUE)                                             \
    X(TN_CUBLAS_DESC_BIAS, 8, CUBLASLT_MATMUL_DESC_BIAS_POINTER)                                             \
    X(TN_CUBLAS_PREF_WORKSPACE, 1, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)                                 \
    X(TN_CUBLAS_PREF_ALIGN_A, 5, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)                                 \
    X(TN_CUBLAS_PREF_ALIGN_B, 6, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)                                 \
    X(TN_CUBLAS_PREF_ALIGN_C, 7, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)                                 \
    X(TN_CUBLAS_PREF_ALIGN_D, 8, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)                                 \
    X(TN_CUBLAS_EPILOGUE_DEFAULT, 1, CUBLASLT_EPILOGUE_DEFAULT)                                              \
    X(TN_CUBLAS_EPILOGUE_RELU, 2, CUBLASLT_EPILOGUE_RELU)                                                    \
    X(TN_CUBLAS_EPILOGUE_BIAS, 4, CUBLASLT_EPILOGUE_BIAS)                                                    \
    X(TN_CUBLAS_EPILOGUE_RELU_BIAS, 6, CUBLASLT_EPILOGUE_RELU_BIAS)

enum {
#define TN_X(here, value, there) here = value,
    TN_CU_CONSTANTS(TN_X)
#undef TN_X
};

/* ---- the table ---- */

typedef enum tn_cuda_library {
    TN_CUDA_DRIVER,
    TN_CUDA_NVRTC,
    TN_CUDA_BLASLT,
    TN_CUDA_LIBRARIES
} tn_cuda_library;

/* Oldest that serve, as CUDA releases: 1000 * major + 10 * minor. */
enum { TN_CUDA_MIN_DRIVER = 12000, TN_CUDA_MIN_NVRTC = 12000, TN_CUDA_MIN_CAPABILITY = 70 };

typedef struct tn_cuda_api {
    void *library[TN_CUDA_LIBRARIES];
    char path[TN_CUDA_LIBRARIES][PATH_MAX]; /* what was given to the loader */
    int driver_version, nvrtc_version;      /* as above */
#define TN_CU(library, result, name, parameters) result(*name) parameters;
#include "api.def"
} tn_cuda_api;

/* Opens the three libraries and looks up all functions. TN_E_UNSUPPORTED: err says what is missing, then
 * "; " and the remedy; *driver (may be NULL) tells whether a driver was there, so that a GPU probably is. */
int tn_cuda_load(tn_cuda_api **out, bool *driver, tn_errbuf *err);
/* NVRTC alone, of whatever release, for a machine without a driver. TN_E_UNSUPPORTED, TN_E_NOMEM. */
int tn_cuda_load_nvrtc(tn_cuda_api **out, tn_errbuf *err);
/* Takes NVRTC of an older major release, for a GPU that the one taken compiles nothing for. False: there is
 * none, or TENSOR_CUDA_NVRTC says which to take; then api is as it was. */
bool tn_cuda_older_nvrtc(tn_cuda_api *api);
void tn_cuda_unload(tn_cuda_api *api); /* NULL is allowed */
