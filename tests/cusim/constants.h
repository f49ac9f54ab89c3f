/* constants.h - constants of CUDA that only the simulator's side needs, beside those of api.h.
 *
 * X(name here, value, name there): tests/test_cusim.c compares them with the toolkit's headers where those
 * are installed. */
#pragma once

#define SIM_CONSTANTS(X)                                                                                     \
    X(SIM_OK, 0, CUDA_SUCCESS)                                                                               \
    X(SIM_NOT_INITIALIZED, 3, CUDA_ERROR_NOT_INITIALIZED)                                                    \
    X(SIM_INVALID_DEVICE, 101, CUDA_ERROR_INVALID_DEVICE)                                                    \
    X(SIM_INVALID_CONTEXT, 201, CUDA_ERROR_INVALID_CONTEXT)                                                  \
    X(SIM_ILLEGAL_ADDRESS, 700, CUDA_ERROR_ILLEGAL_ADDRESS)                                                  \
    X(SIM_MISALIGNED, 716, CUDA_ERROR_MISALIGNED_ADDRESS)                                                    \
    X(SIM_CAPTURE_INVALIDATED, 901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)                                   \
    X(SIM_CAPTURE_UNMATCHED, 903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)                                       \
    X(SIM_CAPTURE_UNJOINED, 904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED)                                         \
    X(SIM_CAPTURE_ISOLATION, 905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)                                       \
    X(SIM_CAPTURE_IMPLICIT, 906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)                                         \
    X(SIM_CAPTURED_EVENT, 907, CUDA_ERROR_CAPTURED_EVENT)                                                    \
    X(SIM_UNKNOWN, 999, CUDA_ERROR_UNKNOWN)                                                                  \
    X(SIM_CAPTURE_RELAXED, 2, CU_STREAM_CAPTURE_MODE_RELAXED)                                                \
    X(SIM_BLOCK_THREADS, 1, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)                                       \
    X(SIM_WARP_SIZE, 10, CU_DEVICE_ATTRIBUTE_WARP_SIZE)                                                      \
    X(SIM_BLOCK_REGISTERS, 12, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)                                  \
    X(SIM_CLOCK, 13, CU_DEVICE_ATTRIBUTE_CLOCK_RATE)                                                         \
    X(SIM_MEMORY_CLOCK, 36, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)                                           \
    X(SIM_MEMORY_BITS, 37, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)                                      \
    X(SIM_NVRTC_INVALID_INPUT, 3, NVRTC_ERROR_INVALID_INPUT)                                                 \
    X(SIM_NVRTC_INVALID_PROGRAM, 4, NVRTC_ERROR_INVALID_PROGRAM)                                             \
    X(SIM_NVRTC_INVALID_OPTION, 5, NVRTC_ERROR_INVALID_OPTION)                                               \
    X(SIM_BLAS_NOT_INITIALIZED, 1, CUBLAS_STATUS_NOT_INITIALIZED)                                            \
    X(SIM_BLAS_INVALID_VALUE, 7, CUBLAS_STATUS_INVALID_VALUE)                                                \
    X(SIM_BLAS_EXECUTION_FAILED, 13, CUBLAS_STATUS_EXECUTION_FAILED)                                         \
    X(SIM_COMPUTE_F32_PEDANTIC, 69, CUBLAS_COMPUTE_32F_PEDANTIC)                                             \
    X(SIM_COMPUTE_F64_PEDANTIC, 71, CUBLAS_COMPUTE_64F_PEDANTIC)                                             \
    X(SIM_COMPUTE_F32_FAST_F16, 74, CUBLAS_COMPUTE_32F_FAST_16F)                                             \
    X(SIM_COMPUTE_F32_FAST_BF16, 75, CUBLAS_COMPUTE_32F_FAST_16BF)                                           \
    X(SIM_DESC_COMPUTE, 0, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE)                                                \
    X(SIM_DESC_SCALE, 1, CUBLASLT_MATMUL_DESC_SCALE_TYPE)                                                    \
    X(SIM_DESC_POINTER_MODE, 2, CUBLASLT_MATMUL_DESC_POINTER_MODE)                                           \
    X(SIM_DESC_BIAS_TYPE, 26, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)                                           \
    X(SIM_LAYOUT_TYPE, 0, CUBLASLT_MATRIX_LAYOUT_TYPE)                                                       \
    X(SIM_LAYOUT_ORDER, 1, CUBLASLT_MATRIX_LAYOUT_ORDER)                                                     \
    X(SIM_LAYOUT_ROWS, 2, CUBLASLT_MATRIX_LAYOUT_ROWS)                                                       \
    X(SIM_LAYOUT_COLUMNS, 3, CUBLASLT_MATRIX_LAYOUT_COLS)                                                    \
    X(SIM_LAYOUT_LEADING, 4, CUBLASLT_MATRIX_LAYOUT_LD)                                                      \
    X(SIM_ORDER_COLUMN, 0, CUBLASLT_ORDER_COL)                                                               \
    X(SIM_ORDER_ROW, 1, CUBLASLT_ORDER_ROW)                                                                  \
    X(SIM_EPILOGUE_GELU, 32, CUBLASLT_EPILOGUE_GELU)                                                         \
    X(SIM_EPILOGUE_GELU_BIAS, 36, CUBLASLT_EPILOGUE_GELU_BIAS)

enum {
#define SIM_X(here, value, there) here = value,
    SIM_CONSTANTS(SIM_X)
#undef SIM_X
};
