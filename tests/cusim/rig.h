/* rig.h - what the tests of the simulator share: one simulated GPU, opened as the library would open it.
 *
 * A call that must succeed stands in OK(), one that must fail in FAILS(code, ...). Read first: rig_open. */
#pragma once

#include "src/device/cuda/api.h"
#include "tests/cusim/constants.h"
#include "tests/cusim/cusim.h"
#include "tests/test.h"

typedef struct rig {
    tn_cuda_api *cu;
    struct cusim sim;
    tn_cu_context context;
    tn_cu_stream stream;
} rig;

#define OK(call)          assert_int_equal(call, 0)
#define FAILS(code, call) assert_int_equal(call, code)

/* The settings it opens with are the first ones; `quiet` because many tests provoke faults. */
static inline int rig_open(void **state)
{
    char why[512] = "";
    tn_errbuf err;
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    setenv("TENSOR_CUDA_DRIVER", CUSIM_LIBRARY, 1);
    setenv("TENSOR_CUDA_NVRTC", CUSIM_LIBRARY, 1);
    setenv("TENSOR_CUDA_BLASLT", CUSIM_LIBRARY, 1);
    if (cusim_open(&r->sim, CUSIM_LIBRARY, why, sizeof why)) fail_msg("%s: %s", CUSIM_LIBRARY, why);
    r->sim.reset();
    r->sim.set("quiet", 1);
    if (tn_cuda_load(&r->cu, NULL, &err)) fail_msg("%s", err.text);
    OK(r->cu->cuDevicePrimaryCtxRetain(&r->context, 0));
    OK(r->cu->cuCtxPushCurrent_v2(r->context));
    OK(r->cu->cuStreamCreate(&r->stream, TN_CU_STREAM_NON_BLOCKING));
    *state = r;
    return 0;
}

static inline int rig_close(void **state)
{
    rig *r = *state;
    OK(r->cu->cuCtxPopCurrent_v2(NULL));
    OK(r->cu->cuDevicePrimaryCtxRelease_v2(0));
    struct cusim_counters c;
    r->sim.counters(&c);
    assert_int_equal(c.live, 0);
    assert_int_equal(c.bytes_now, 0);
    r->sim.reset();
    tn_cuda_unload(r->cu);
    free(r);
    return 0;
}

/* A test on a GPU of its own, r; in what it does with others the rig is *state. */
#define SIM_TEST(name)                                                                                       \
    static void name##_on(rig *r, void **state);                                                             \
    TEST_IN(name, rig_open, rig_close) { name##_on(*state, state); }                                         \
    static void name##_on(__attribute__((unused)) rig *r, __attribute__((unused)) void **state)

static inline struct cusim_counters rig_count(const rig *r)
{
    struct cusim_counters c;
    r->sim.counters(&c);
    return c;
}

static const char *rig_target = "--gpu-architecture=sm_90a";

/* The compiler's log, or "" where it succeeded; then *function is the kernel. */
static inline const char *rig_compile(rig *r, const char *text, const char *name, tn_cu_function *function)
{
    static char log[65536];
    const char *const option[] = {rig_target};
    tn_nvrtc_program program;
    tn_cu_module module;
    size_t bytes = 0;
    OK(r->cu->nvrtcCreateProgram(&program, text, "kernel.cu", 0, NULL, NULL));
    tn_nvrtc_result status = r->cu->nvrtcCompileProgram(program, 1, option);
    OK(r->cu->nvrtcGetProgramLogSize(program, &bytes));
    assert_true(bytes > 0);
    log[0] = 0;
    if (bytes <= sizeof log) OK(r->cu->nvrtcGetProgramLog(program, log));
    if (!status) {
        OK(r->cu->nvrtcGetCUBINSize(program, &bytes));
        char *cubin = malloc(bytes);
        assert_non_null(cubin);
        OK(r->cu->nvrtcGetCUBIN(program, cubin));
        OK(r->cu->cuModuleLoadData(&module, cubin));
        free(cubin);
        OK(r->cu->cuModuleGetFunction(function, module, name));
    }
    OK(r->cu->nvrtcDestroyProgram(&program));
    return status ? log : "";
}

static inline tn_cu_function rig_kernel(rig *r, const char *text, const char *name)
{
    tn_cu_function f = NULL;
    const char *log = rig_compile(r, text, name, &f);
    if (*log) fail_msg("%s", log);
    return f;
}

static inline tn_cu_ptr rig_alloc(rig *r, size_t bytes)
{
    tn_cu_ptr at = 0;
    OK(r->cu->cuMemAlloc_v2(&at, bytes));
    return at;
}

static inline void rig_upload(rig *r, tn_cu_ptr to, const void *from, size_t bytes)
{
    OK(r->cu->cuMemcpyHtoDAsync_v2(to, from, bytes, r->stream));
}

static inline void rig_download(rig *r, void *to, tn_cu_ptr from, size_t bytes)
{
    OK(r->cu->cuMemcpyDtoHAsync_v2(to, from, bytes, r->stream));
    OK(r->cu->cuStreamSynchronize(r->stream));
}

static inline tn_cu_result rig_launch(rig *r, tn_cu_function f, unsigned blocks, unsigned threads,
                                      void **parameters)
{
    return r->cu->cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, r->stream, parameters, NULL);
}

/* Runs it and waits; what the wait says. */
static inline tn_cu_result rig_run(rig *r, tn_cu_function f, unsigned blocks, unsigned threads,
                                   void **parameters)
{
    tn_cu_result status = rig_launch(r, f, blocks, threads, parameters);
    return status ? status : r->cu->cuStreamSynchronize(r->stream);
}

/* The report holds each of the pieces that follow, which end with NULL. */
static inline void rig_reported(const rig *r, const char *piece, ...)
{
    va_list ap;
    va_start(ap, piece);
    for (; piece; piece = va_arg(ap, const char *))
        if (!strstr(r->sim.report(), piece)) fail_msg("the report lacks '%s': %s", piece, r->sim.report());
    va_end(ap);
}
