/* nccl.h - ranks whose memory is a GPU's, by NCCL. libnccl is opened at run time: it is what TENSOR_NCCL
 * names, else libnccl.so.2 where the system's loader looks. What is used of it stands here and in nccl.def;
 * tests/test_cuda_api.c compares it with NCCL's own header where that is installed.
 *
 * Read first: tn_nccl_open. */
#pragma once

#include "../device/device.h"
#include "comm.h"

typedef unsigned tn_nccl_result, tn_nccl_type, tn_nccl_op;
typedef struct ncclComm *tn_nccl_comm;
typedef struct CUstream_st *tn_nccl_stream;
typedef struct tn_nccl_id {
    char bytes[128];
} tn_nccl_id;

#define TN_NCCL_CONSTANTS(X)                                                                                 \
    X(TN_NCCL_SUCCESS, 0, ncclSuccess)                                                                       \
    X(TN_NCCL_IN_PROGRESS, 7, ncclInProgress)                                                                \
    X(TN_NCCL_BYTE, 1, ncclUint8)                                                                            \
    X(TN_NCCL_I32, 2, ncclInt32)                                                                             \
    X(TN_NCCL_I64, 4, ncclInt64)                                                                             \
    X(TN_NCCL_F32, 7, ncclFloat32)                                                                           \
    X(TN_NCCL_F64, 8, ncclFloat64)                                                                           \
    X(TN_NCCL_SUM, 0, ncclSum)                                                                               \
    X(TN_NCCL_MAX, 2, ncclMax)                                                                               \
    X(TN_NCCL_AVG, 4, ncclAvg)

enum {
#define TN_X(here, value, there) here = value,
    TN_NCCL_CONSTANTS(TN_X)
#undef TN_X
        TN_NCCL_MIN_VERSION = 21000 /* the oldest that serves: 2.10, which has ncclAvg */
};

typedef struct tn_nccl_api {
#define TN_NCCL(result, name, parameters) result(*name) parameters;
#include "nccl.def"
} tn_nccl_api;

/* text[TN_COMM_WHY] becomes the version of the libnccl that is here, "2.18.3", or why there is none. */
void tn_nccl_found(char *text);
/* The ranks of `host`, all of which call this, for the memory of d: a mean and the like are launched beside
 * the device's other work, and `wait` makes that wait for them, not the caller. Has no exchange and tell,
 * which are the host's. The host outlives it. NULL, with the reason in why[TN_COMM_WHY], on all ranks where
 * one cannot. */
tn_comm *tn_nccl_open(tn_comm *host, tn_device *d, char *why);
