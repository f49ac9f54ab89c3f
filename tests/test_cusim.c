/* test_cusim.c - the simulated driver: what runs when, what is refused, faults on demand.
 *
 * These are the rules that the library relies on, or would break unnoticed on a machine that forgives more.
 */
#include "tests/cusim/rig.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(TN_HAVE_CUDA_HEADERS)
#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>

#define SIM_X(here, value, there) _Static_assert((int)here == (int)there, #there);
SIM_CONSTANTS(SIM_X)
#undef SIM_X
#endif

#define ADD                                                                                                  \
    "struct args { int *x; int by; };\n"                                                                     \
    "extern \"C\" __global__ void add(const args a) { a.x[threadIdx.x] += a.by; }\n"

typedef struct args {
    tn_cu_ptr x;
    int by;
} args;

static tn_cu_ptr zeros(rig *r, size_t bytes)
{
    tn_cu_ptr at = rig_alloc(r, bytes);
    OK(r->cu->cuMemsetD8Async(at, 0, bytes, r->stream));
    OK(r->cu->cuStreamSynchronize(r->stream));
    return at;
}

static tn_cu_stream other_stream(rig *r)
{
    tn_cu_stream s;
    OK(r->cu->cuStreamCreate(&s, TN_CU_STREAM_NON_BLOCKING));
    return s;
}

static tn_cu_event event(rig *r)
{
    tn_cu_event e;
    OK(r->cu->cuEventCreate(&e, TN_CU_EVENT_DISABLE_TIMING));
    return e;
}

static int *pinned(rig *r, size_t bytes)
{
    void *at = NULL;
    OK(r->cu->cuMemHostAlloc(&at, bytes, 0));
    return memset(at, 0, bytes);
}

/* ---- order ---- */

SIM_TEST(a_read_without_waiting_shows_the_old_bytes)
{
    args a = {zeros(r, 4), 5};
    void *parameters[] = {&a};
    int *host = pinned(r, 4);
    OK(rig_launch(r, rig_kernel(r, ADD, "add"), 1, 1, parameters));
    OK(r->cu->cuMemcpyDtoHAsync_v2(host, a.x, 4, r->stream));
    assert_int_equal(*host, 0);
    assert_int_equal(rig_count(r).launches, 0);
    OK(r->cu->cuStreamSynchronize(r->stream));
    assert_int_equal(*host, 5);
}

SIM_TEST(pinned_memory_is_read_late_and_pageable_at_once)
{
    tn_cu_ptr at = zeros(r, 8);
    int *slow = pinned(r, 4), fast = 1, back[2];
    *slow = 1;
    OK(r->cu->cuMemcpyHtoDAsync_v2(at, slow, 4, r->stream));
    OK(r->cu->cuMemcpyHtoDAsync_v2(at + 4, &fast, 4, r->stream));
    *slow = 2, fast = 2;
    OK(r->cu->cuMemcpyDtoHAsync_v2(back, at, 8, r->stream)); /* pageable: over when it returns */
    assert_int_equal(back[0], 2);
    assert_int_equal(back[1], 1);
}

SIM_TEST(streams_meet_at_events)
{
    tn_cu_stream other = other_stream(r);
    tn_cu_event e = event(r);
    args a = {zeros(r, 4), 5};
    void *parameters[] = {&a};
    int *host = pinned(r, 8);
    tn_cu_function f = rig_kernel(r, ADD, "add");
    OK(rig_launch(r, f, 1, 1, parameters));
    OK(r->cu->cuMemcpyDtoHAsync_v2(host, a.x, 4, other));
    OK(r->cu->cuStreamSynchronize(other));
    assert_int_equal(host[0], 0); /* nothing made it wait for the kernel */
    OK(r->cu->cuEventRecord(e, r->stream));
    OK(rig_launch(r, f, 1, 1, parameters)); /* behind the event */
    OK(r->cu->cuStreamWaitEvent(other, e, 0));
    OK(r->cu->cuMemcpyDtoHAsync_v2(host, a.x, 4, other));
    OK(r->cu->cuStreamSynchronize(other));
    assert_int_equal(host[0], 5);
    OK(r->cu->cuStreamSynchronize(r->stream));
    assert_int_equal(rig_count(r).launches, 2);
}

SIM_TEST(an_event_is_asked_until_it_is_there)
{
    tn_cu_event e = event(r);
    args a = {zeros(r, 4), 5};
    void *parameters[] = {&a};
    OK(rig_launch(r, rig_kernel(r, ADD, "add"), 1, 1, parameters));
    OK(r->cu->cuEventRecord(e, r->stream));
    int asked = 0;
    while (r->cu->cuEventQuery(e) == TN_CU_NOT_READY) assert_true(++asked < 10);
    assert_true(asked > 0);
    OK(r->cu->cuEventSynchronize(e));
    assert_int_equal(rig_count(r).launches, 1);
}

/* ---- memory ---- */

/* What a program does wrong, in a process of its own: the signal that ends it. */
static int signal_of(rig *r, void (*wrong)(rig *r, tn_cu_ptr at), tn_cu_ptr at)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        wrong(r, at);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void read_it(rig *r, tn_cu_ptr at)
{
    (void)r;
    *(volatile char *)(uintptr_t)at;
}

SIM_TEST(the_host_cannot_touch_device_memory)
{
    tn_cu_ptr at = zeros(r, 1000);
    assert_int_equal(signal_of(r, read_it, at), SIGSEGV);
    char back;
    rig_download(r, &back, at, 1);
    assert_int_equal(signal_of(r, read_it, at), SIGSEGV); /* closed again */
}

SIM_TEST(new_memory_is_nan)
{
    float host[4];
    rig_download(r, host, rig_alloc(r, sizeof host), sizeof host);
    for (int i = 0; i < 4; i++) assert_true(host[i] != host[i]);
}

SIM_TEST(copies_stay_inside)
{
    tn_cu_ptr at = zeros(r, 1000);
    char host[1001] = {0};
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemcpyHtoDAsync_v2(at, host, 1001, r->stream));
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemcpyDtoHAsync_v2(host, at + 1, 1000, r->stream));
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemsetD8Async(at, 0, 1001, r->stream));
    OK(r->cu->cuMemcpyDtoDAsync_v2(at + 500, at, 500, r->stream));
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemFree_v2(at + 1));
    OK(r->cu->cuMemFree_v2(at));
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemFree_v2(at));
}

SIM_TEST(a_range_is_reserved_and_mapped)
{
    const tn_cu_mem_prop prop = {.type = TN_CU_MEM_PINNED, .location = {TN_CU_MEM_ON_DEVICE, 0}};
    const tn_cu_mem_access access = {{TN_CU_MEM_ON_DEVICE, 0}, TN_CU_MEM_READ_WRITE};
    size_t grain = 0;
    tn_cu_ptr at = 0;
    tn_cu_memory memory[2];
    OK(r->cu->cuMemGetAllocationGranularity(&grain, &prop, TN_CU_GRANULARITY_MINIMUM));
    assert_true(grain > 0);
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemAddressReserve(&at, grain + 1, 0, 0, 0));
    OK(r->cu->cuMemAddressReserve(&at, 8 * grain, 0, 0, 0));
    for (int i = 0; i < 2; i++) OK(r->cu->cuMemCreate(&memory[i], grain, &prop, 0));
    OK(r->cu->cuMemMap(at, grain, 0, memory[0], 0));
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemMap(at, grain, 0, memory[1], 0));
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemsetD8Async(at, 1, grain, r->stream)); /* no access yet */
    OK(r->cu->cuMemMap(at + grain, grain, 0, memory[1], 0));
    OK(r->cu->cuMemSetAccess(at, 2 * grain, &access, 1));
    OK(r->cu->cuMemsetD8Async(at, 1, 2 * grain, r->stream));
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemsetD8Async(at, 1, 2 * grain + 1, r->stream));
    args a = {at + 2 * grain - 4, 1};
    void *parameters[] = {&a};
    OK(rig_run(r, rig_kernel(r, ADD, "add"), 1, 1, parameters));
    int back = 0;
    rig_download(r, &back, a.x, 4);
    assert_int_equal(back, 0x01010102);
    OK(r->cu->cuMemUnmap(at, grain));
    OK(r->cu->cuMemMap(at, grain, 0, memory[0], 0)); /* and what it holds is still there */
    OK(r->cu->cuMemSetAccess(at, grain, &access, 1));
    rig_download(r, &back, at, 4);
    assert_int_equal(back, 0x01010101);
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuMemAddressFree(at, 8 * grain)); /* still mapped */
    OK(r->cu->cuMemUnmap(at, 2 * grain));
    for (int i = 0; i < 2; i++) OK(r->cu->cuMemRelease(memory[i]));
    OK(r->cu->cuMemAddressFree(at, 8 * grain));
    assert_int_equal(rig_count(r).bytes_now, 0);
}

/* ---- graphs ---- */

SIM_TEST(captured_work_runs_with_the_graph)
{
    args a = {zeros(r, 4), 5};
    void *parameters[] = {&a};
    tn_cu_function f = rig_kernel(r, ADD, "add");
    tn_cu_graph graph;
    tn_cu_graph_exec exec;
    size_t n = 0;
    int back = -1;
    OK(r->cu->cuStreamBeginCapture_v2(r->stream, TN_CU_CAPTURE_THREAD_LOCAL));
    for (int i = 0; i < 3; i++) OK(rig_launch(r, f, 1, 1, parameters));
    OK(r->cu->cuStreamEndCapture(r->stream, &graph));
    OK(r->cu->cuGraphGetNodes(graph, NULL, &n));
    assert_int_equal(n, 3);
    OK(r->cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(r->cu->cuGraphDestroy(graph));
    rig_download(r, &back, a.x, 4);
    assert_int_equal(back, 0);
    a.by = 100; /* the graph has its own copy */
    for (int i = 0; i < 2; i++) OK(r->cu->cuGraphLaunch(exec, r->stream));
    rig_download(r, &back, a.x, 4);
    assert_int_equal(back, 30);
    struct cusim_counters c = rig_count(r);
    assert_int_equal(c.launches, 6);
    assert_int_equal(c.graph_launches, 2);
    assert_int_equal(c.graphs, 1);
    OK(r->cu->cuGraphExecDestroy(exec));
}

SIM_TEST(captures_forbid_waiting_and_allocating)
{
    tn_cu_graph graph;
    tn_cu_ptr at;
    OK(r->cu->cuStreamBeginCapture_v2(r->stream, TN_CU_CAPTURE_THREAD_LOCAL));
    FAILS(TN_CU_CAPTURE_UNSUPPORTED, r->cu->cuMemAlloc_v2(&at, 4));
    FAILS(SIM_CAPTURE_INVALIDATED, r->cu->cuStreamEndCapture(r->stream, &graph));
    OK(r->cu->cuStreamBeginCapture_v2(r->stream, TN_CU_CAPTURE_THREAD_LOCAL));
    FAILS(TN_CU_CAPTURE_UNSUPPORTED, r->cu->cuStreamSynchronize(r->stream));
    FAILS(SIM_CAPTURE_INVALIDATED, r->cu->cuStreamEndCapture(r->stream, &graph));
    OK(r->cu->cuMemAlloc_v2(&at, 4));
}

SIM_TEST(a_capture_takes_other_streams_in)
{
    tn_cu_stream other = other_stream(r);
    tn_cu_event fork_event = event(r), join = event(r);
    tn_cu_graph graph;
    size_t n = 0;
    args a = {zeros(r, 4), 5};
    void *parameters[] = {&a};
    tn_cu_function f = rig_kernel(r, ADD, "add");
    for (int joined = 0; joined < 2; joined++) {
        OK(r->cu->cuStreamBeginCapture_v2(r->stream, TN_CU_CAPTURE_THREAD_LOCAL));
        OK(r->cu->cuEventRecord(fork_event, r->stream));
        OK(r->cu->cuStreamWaitEvent(other, fork_event, 0));
        OK(r->cu->cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, other, parameters, NULL));
        OK(r->cu->cuEventRecord(join, other));
        if (joined) OK(r->cu->cuStreamWaitEvent(r->stream, join, 0));
        FAILS(joined ? 0 : SIM_CAPTURE_UNJOINED, r->cu->cuStreamEndCapture(r->stream, &graph));
    }
    OK(r->cu->cuGraphGetNodes(graph, NULL, &n));
    assert_int_equal(n, 1);
    OK(r->cu->cuGraphDestroy(graph));
}

/* ---- refusals and faults on demand ---- */

SIM_TEST(bad_images_are_refused)
{
    tn_cu_module m;
    char text[256] = "no image at all";
    FAILS(TN_CU_INVALID_IMAGE, r->cu->cuModuleLoadData(&m, text));
    memcpy(text, "\177ELF\2\1\1", 7);
    FAILS(TN_CU_INVALID_IMAGE, r->cu->cuModuleLoadData(&m, text));
}

SIM_TEST(parameters_are_checked)
{
    args a = {zeros(r, 4), 5};
    void *parameters[] = {&a};
    tn_cu_function f = rig_kernel(r, ADD, "add");
    FAILS(TN_CU_INVALID_VALUE, rig_launch(r, f, 0, 1, parameters));
    FAILS(TN_CU_INVALID_VALUE, rig_launch(r, f, 1, 1025, parameters));
    FAILS(TN_CU_INVALID_VALUE, rig_launch(r, f, 1, 1, NULL));
    FAILS(TN_CU_INVALID_HANDLE, rig_launch(r, NULL, 1, 1, parameters));
}

/* The same names in the environment, for programs that know nothing of the simulator. */
SIM_TEST(faults_by_environment)
{
    int version = 0, count = 0;
    setenv("TENSOR_CUSIM_FAIL", "driver=12020,no-device", 1);
    r->sim.reset();
    unsetenv("TENSOR_CUSIM_FAIL");
    OK(r->cu->cuDriverGetVersion(&version));
    OK(r->cu->cuDeviceGetCount(&count));
    assert_int_equal(version, 12020);
    assert_int_equal(count, 0);
    r->sim.reset();
    OK(r->cu->cuDeviceGetCount(&count));
    assert_int_equal(count, 1);
    assert_int_equal(r->sim.set("no-such-setting", 1), -1);
}

SIM_TEST(compilation_fails_on_demand)
{
    tn_cu_function f;
    r->sim.set("compile", 2);
    assert_string_equal(rig_compile(r, ADD, "add", &f), "");
    assert_non_null(strstr(rig_compile(r, ADD, "add", &f), "error"));
    assert_string_equal(rig_compile(r, ADD, "add", &f), "");
}

SIM_TEST(a_launch_fails_on_demand)
{
    args a = {zeros(r, 4), 5};
    void *parameters[] = {&a};
    tn_cu_function f = rig_kernel(r, ADD, "add");
    r->sim.set("launch", 3);
    for (int i = 0; i < 2; i++) OK(rig_run(r, f, 1, 1, parameters));
    FAILS(TN_CU_LAUNCH_FAILED, rig_run(r, f, 1, 1, parameters));
    FAILS(TN_CU_LAUNCH_FAILED, rig_run(r, f, 1, 1, parameters)); /* until the context is gone */
}

SIM_TEST(the_device_is_lost_on_demand)
{
    args a = {zeros(r, 4), 5};
    void *parameters[] = {&a};
    tn_cu_function f = rig_kernel(r, ADD, "add");
    r->sim.set("lost", 2);
    OK(rig_run(r, f, 1, 1, parameters));
    OK(rig_run(r, f, 1, 1, parameters));
    FAILS(SIM_UNKNOWN, rig_run(r, f, 1, 1, parameters));
    FAILS(SIM_UNKNOWN, r->cu->cuMemFree_v2(a.x));
    r->sim.set("lost", 0);
}

SIM_TEST(memory_ends)
{
    tn_cu_ptr at, more;
    r->sim.set("memory", 1 << 20);
    OK(r->cu->cuMemAlloc_v2(&at, 600000));
    FAILS(TN_CU_OUT_OF_MEMORY, r->cu->cuMemAlloc_v2(&more, 600000));
    OK(r->cu->cuMemFree_v2(at));
    OK(r->cu->cuMemAlloc_v2(&more, 600000));
    void *host;
    r->sim.set("host-memory", 1000);
    FAILS(TN_CU_OUT_OF_MEMORY, r->cu->cuMemHostAlloc(&host, 1001, 0));
}

SIM_TEST(calls_need_a_context)
{
    tn_cu_ptr at;
    OK(r->cu->cuCtxPopCurrent_v2(NULL));
    FAILS(SIM_INVALID_CONTEXT, r->cu->cuMemAlloc_v2(&at, 4));
    OK(r->cu->cuCtxPushCurrent_v2(r->context));
    OK(r->cu->cuMemAlloc_v2(&at, 4));
}

RUN_TESTS(NULL, NULL)
