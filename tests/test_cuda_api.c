/* test_cuda_api.c - the CUDA libraries' types, constants and functions as src/device/cuda/api.h has them,
 * compared with the toolkit's own headers by the compiler. Without those headers there is nothing to compare
 * and the test says that it is skipped. */
#include "tests/test.h"

#include "src/comm/nccl.h"
#include "src/device/cuda/api.h"

#if defined(TN_HAVE_CUDA_HEADERS)
#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>

#define TN_X(here, value, there) _Static_assert((int)here == (int)there, #there);
TN_CU_CONSTANTS(TN_X)
#undef TN_X

#define SAME_SIZE(here, there) _Static_assert(sizeof(here) == sizeof(there), #there)
#define SAME_PLACE(here, member, there, their_member)                                                        \
    _Static_assert(offsetof(here, member) == offsetof(there, their_member), #there "." #their_member)
SAME_SIZE(tn_cu_result, CUresult);
SAME_SIZE(tn_cu_attribute, CUdevice_attribute);
SAME_SIZE(tn_cu_function_attribute, CUfunction_attribute);
SAME_SIZE(tn_cu_capture_mode, CUstreamCaptureMode);
SAME_SIZE(tn_cu_granularity, CUmemAllocationGranularity_flags);
SAME_SIZE(tn_cu_device, CUdevice);
SAME_SIZE(tn_cu_ptr, CUdeviceptr);
SAME_SIZE(tn_cu_memory, CUmemGenericAllocationHandle);
SAME_SIZE(tn_cu_location, CUmemLocation);
SAME_PLACE(tn_cu_location, id, CUmemLocation, id);
SAME_SIZE(tn_cu_mem_prop, CUmemAllocationProp);
SAME_PLACE(tn_cu_mem_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(tn_cu_mem_prop, location, CUmemAllocationProp, location);
SAME_PLACE(tn_cu_mem_prop, unused, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(tn_cu_mem_prop, flags, CUmemAllocationProp, allocFlags);
SAME_SIZE(tn_cu_mem_access, CUmemAccessDesc);
SAME_PLACE(tn_cu_mem_access, flags, CUmemAccessDesc, flags);
SAME_SIZE(tn_nvrtc_result, nvrtcResult);
SAME_SIZE(tn_cublas_result, cublasStatus_t);
SAME_SIZE(tn_cublas_compute, cublasComputeType_t);
SAME_SIZE(tn_cublas_type, cudaDataType_t);
SAME_SIZE(tn_cublas_desc_attribute, cublasLtMatmulDescAttributes_t);
SAME_SIZE(tn_cublas_layout_attribute, cublasLtMatrixLayoutAttribute_t);
SAME_SIZE(tn_cublas_preference_attribute, cublasLtMatmulPreferenceAttributes_t);
SAME_SIZE(tn_cublas_algo, cublasLtMatmulAlgo_t);
SAME_SIZE(tn_cublas_choice, cublasLtMatmulHeuristicResult_t);
SAME_PLACE(tn_cublas_choice, workspace, cublasLtMatmulHeuristicResult_t, workspaceSize);
SAME_PLACE(tn_cublas_choice, state, cublasLtMatmulHeuristicResult_t, state);
SAME_PLACE(tn_cublas_choice, waves, cublasLtMatmulHeuristicResult_t, wavesCount);

/* Function types, with the toolkit's names put in for the types compared above. */
#define tn_cu_result                   CUresult
#define tn_cu_attribute                CUdevice_attribute
#define tn_cu_function_attribute       CUfunction_attribute
#define tn_cu_capture_mode             CUstreamCaptureMode
#define tn_cu_granularity              CUmemAllocationGranularity_flags
#define tn_cu_mem_prop                 CUmemAllocationProp
#define tn_cu_mem_access               CUmemAccessDesc
#define tn_nvrtc_result                nvrtcResult
#define tn_cublas_result               cublasStatus_t
#define tn_cublas_compute              cublasComputeType_t
#define tn_cublas_type                 cudaDataType
#define tn_cublas_desc                 cublasLtMatmulDesc_t
#define tn_cublas_layout               cublasLtMatrixLayout_t
#define tn_cublas_preference           cublasLtMatmulPreference_t
#define tn_cublas_desc_attribute       cublasLtMatmulDescAttributes_t
#define tn_cublas_layout_attribute     cublasLtMatrixLayoutAttribute_t
#define tn_cublas_preference_attribute cublasLtMatmulPreferenceAttributes_t
#define tn_cublas_algo                 cublasLtMatmulAlgo_t
#define tn_cublas_choice               cublasLtMatmulHeuristicResult_t
#define TN_CU(library, result, name, parameters)                                                             \
    _Static_assert(_Generic(&name, result(*) parameters : 1, default : 0), #name);
#include "src/device/cuda/api.def"
#endif

#if defined(TN_HAVE_NCCL_HEADER)
#include <nccl.h>

#define TN_X(here, value, there) _Static_assert((int)here == (int)there, #there);
TN_NCCL_CONSTANTS(TN_X)
#undef TN_X
SAME_SIZE(tn_nccl_result, ncclResult_t);
SAME_SIZE(tn_nccl_type, ncclDataType_t);
SAME_SIZE(tn_nccl_op, ncclRedOp_t);
SAME_SIZE(tn_nccl_id, ncclUniqueId);
#define tn_nccl_result ncclResult_t
#define tn_nccl_type   ncclDataType_t
#define tn_nccl_op     ncclRedOp_t
#define tn_nccl_id     ncclUniqueId
#define tn_nccl_stream cudaStream_t
#define TN_NCCL(result, name, parameters)                                                                    \
    _Static_assert(_Generic(&name, result(*) parameters : 1, default : 0), #name);
#include "src/comm/nccl.def"
#endif

TEST(test_headers)
{
    int functions = 0;
#define TN_CU(library, result, name, parameters) functions++;
#include "src/device/cuda/api.def"
    assert_true(functions > 60);
#if defined(TN_HAVE_CUDA_HEADERS)
    print_message("compared with the headers of CUDA %d.%d\n", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
#else
    print_message("no CUDA headers here: nothing to compare with\n");
    skip();
#endif
}

RUN_TESTS(NULL, NULL)
