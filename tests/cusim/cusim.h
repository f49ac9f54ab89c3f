/* cusim.h - what a test may ask of the simulated GPU beside the CUDA functions it exports.
 *
 * The simulator is one shared library that stands in for the CUDA driver, NVRTC and cuBLASLt; README.md tells
 * how it works. A test opens it with dlopen, like the library under test does, and looks these functions up
 * (cusim_open below does both). Everything here counts or changes the one simulated GPU of the process.
 *
 * Read first: struct cusim_counters. */
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../nvrtc.h"

/* What happened since the process began or since cusim_reset. Work inside a graph counts when it runs. */
struct cusim_counters {
    uint64_t launches;                                                  /* kernels run */
    uint64_t blocks, threads;                                           /* of these */
    uint64_t largest_block;                                             /* in threads, since cusim_reset */
    uint64_t graph_launches;                                            /* cuGraphLaunch calls */
    uint64_t graphs;                                                    /* instantiated */
    uint64_t matmuls;                                                   /* cuBLASLt products run */
    uint64_t copies_to_device, copies_to_host, copies_on_device, fills; /* run */
    uint64_t bytes_to_device, bytes_to_host, bytes_on_device, bytes_filled;
    uint64_t allocations, frees;    /* of device memory: cuMemAlloc and cuMemCreate */
    uint64_t host_allocations;      /* pinned */
    uint64_t bytes_now, bytes_peak; /* device memory handed out */
    uint64_t live;                  /* device and pinned allocations, streams, events, modules, graphs */
    uint64_t stream_syncs, event_syncs, event_queries; /* calls that wait or ask */
    uint64_t compilations, compiler_runs; /* nvrtcCompileProgram calls, and those that no cache answered */
    uint64_t modules;                     /* loaded */
    uint64_t real_checks,
        real_missing; /* texts put to the real NVRTC, each architecture; where there is none */
    uint64_t real_spilling, real_registers; /* kernels among them that spill; the most registers of one */
    uint64_t reports;                       /* faults of kernels found: cusim_report says the last */
};

/* Names for cusim_set, and for TENSOR_CUSIM_FAIL="name=value,name=value" (no value: 1). All are 0 at first
 * except where noted; counts are from now on.
 *   no-device        cuDeviceGetCount says 0, cuInit fails with CUDA_ERROR_NO_DEVICE
 *   driver           cuDriverGetVersion's answer; first 13000
 *   nvrtc            nvrtcVersion's answer, in the same form; first 13000
 *   compile          the n-th nvrtcCompileProgram from now on fails with a log
 *   launch           the n-th kernel from now on fails when it runs, CUDA_ERROR_LAUNCH_FAILED
 *   lost             from the n-th kernel on the device is gone: CUDA_ERROR_UNKNOWN from everything
 *   matmul           the n-th cublasLtMatmul fails with CUBLAS_STATUS_EXECUTION_FAILED
 *   unsupported      cuBLASLt has no algorithm for one product in so many, by its shape and epilogue;
 *                    1: for none
 *   memory           bytes of device memory there are; first 8 GiB
 *   host-memory      bytes of pinned memory there may be; first 8 GiB
 *   no-virtual       1: no virtual memory management
 *   shared-most      bytes of shared memory that a block can have when it asks, 227 KiB at most; first 163 KiB
 *   processors       multiprocessors; first 4
 *   capability       compute capability times 10; first 90
 *   check            0: kernels are compiled without checks and run faster; first 1
 *   seed             of the order of blocks and threads; first 1, or TENSOR_CUSIM_SEED
 *   order            1: blocks and threads run in ascending order
 *   real             1: each text is first compiled by the real NVRTC too, if there is one (real.c);
 *                    first TENSOR_CUSIM_REAL
 *   quiet            1: reports are not printed to stderr
 *   spill            bytes that each thread is said to spill in kernels with blocks of more than 128
 *   devices          GPUs there are, all alike; first 1, 8 at most
 *   oldest-arch, newest-arch   what NVRTC compiles for; first 70 and 129
 *   slow             kernels with as much dynamic shared memory or more, in bytes, take a thousand times
 *                    as long, by what events show */

/* What the real NVRTC said of one text. */
struct cusim_text_report {
    nvrtc_said of;
    char log[8192];
};

struct cusim {
    void (*counters)(struct cusim_counters *out);
    int (*set)(const char *name, long long value); /* 0, or -1: no such name */
    const char *(*report)(
        void); /* the last fault of a kernel that was found, "" if none; overwritten by the next */
    /* The real NVRTC on a text, for sm_`arch`: 0 it takes it, 1 it does not (log), -1 there is none. */
    int (*check_text)(const char *text, int arch, struct cusim_text_report *out);
    void (*reset)(void); /* counters to zero, settings to their first values; memory and streams stay */
};

/* 0, or -1 with a line in `why`. The library stays open. */
static inline int cusim_open(struct cusim *c, const char *path, char *why, size_t bytes)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *name[] = {"cusim_counters", "cusim_set", "cusim_report", "cusim_reset", "cusim_check_text"};
    void *at[5] = {NULL};
    for (int i = 0; i < 5 && lib; i++)
        if (!(at[i] = dlsym(lib, name[i]))) lib = NULL;
    if (!lib) {
        snprintf(why, bytes, "%s", dlerror());
        return -1;
    }
    memcpy(&c->counters, &at[0], sizeof at[0]);
    memcpy(&c->set, &at[1], sizeof at[1]);
    memcpy(&c->report, &at[2], sizeof at[2]);
    memcpy(&c->reset, &at[3], sizeof at[3]);
    memcpy(&c->check_text, &at[4], sizeof at[4]);
    return 0;
}
