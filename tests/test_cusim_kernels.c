/* test_cusim_kernels.c - CUDA text on the simulated GPU: what it computes, and which of its faults are found.
 *
 * The texts are written by hand. Each fault is planted alone, in a kernel that is right without it. */
#include "tests/cusim/rig.h"

#include <math.h>

enum { N = 1000 };

SIM_TEST(pointwise)
{
    tn_cu_function f = rig_kernel(r,
                                  "struct args { long n; const float *x; float *y; float scale; };\n"
                                  "extern \"C\" __global__ void __launch_bounds__(128) scaled(const args a)\n"
                                  "{\n"
                                  "    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;\n"
                                  "    if (i < a.n) a.y[i] = fmaf(a.x[i], a.scale, 1.0f);\n"
                                  "}\n",
                                  "scaled");
    float host[N];
    for (int i = 0; i < N; i++) host[i] = (float)i;
    struct {
        long n;
        tn_cu_ptr x, y;
        float scale;
    } a = {N, rig_alloc(r, sizeof host), rig_alloc(r, sizeof host), 0.5f};
    void *parameters[] = {&a};
    rig_upload(r, a.x, host, sizeof host);
    OK(rig_launch(r, f, (N + 127) / 128, 128, parameters));
    a.scale = 7; /* copied at the call */
    rig_download(r, host, a.y, sizeof host);
    for (int i = 0; i < N; i++) assert_true(host[i] == 0.5f * (float)i + 1);
    struct cusim_counters c = rig_count(r);
    assert_int_equal(c.launches, 1);
    assert_int_equal(c.blocks, 8);
    assert_int_equal(c.threads, 1024);
    assert_int_equal(c.reports, 0);
}

/* ---- threads together ---- */

/* A kernel takes n, x, y and one word of zeros. */
typedef struct args {
    long n;
    tn_cu_ptr x, y, word;
} args;
#define ARGS "struct args { long n; float *x; float *y; unsigned *word; };\n"

static args make_args(rig *r, long n)
{
    args a = {n, rig_alloc(r, (size_t)n * 4), rig_alloc(r, (size_t)n * 4), rig_alloc(r, 4)};
    float *host = malloc((size_t)n * 4);
    assert_non_null(host);
    for (long i = 0; i < n; i++) host[i] = (float)(i % 97);
    rig_upload(r, a.x, host, (size_t)n * 4);
    OK(r->cu->cuMemsetD8Async(a.y, 0, (size_t)n * 4, r->stream));
    OK(r->cu->cuMemsetD8Async(a.word, 0, 4, r->stream));
    OK(r->cu->cuStreamSynchronize(r->stream));
    free(host);
    return a;
}

static float sum_to(long n)
{
    float sum = 0;
    for (long i = 0; i < n; i++) sum += (float)(i % 97);
    return sum;
}

static float first_of(rig *r, tn_cu_ptr y)
{
    float value;
    rig_download(r, &value, y, sizeof value);
    return value;
}

/* Sums within the warp, then over warps, then over blocks by the one that arrives last. */
#define SUM(fence, barrier)                                                                                  \
    ARGS "__device__ float warp_sum(float v)\n"                                                              \
         "{\n"                                                                                               \
         "    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);\n"                    \
         "    return v;\n"                                                                                   \
         "}\n"                                                                                               \
         "__device__ float block_sum(float v)\n"                                                             \
         "{\n"                                                                                               \
         "    __shared__ float part[32];\n"                                                                  \
         "    v = warp_sum(v);\n"                                                                            \
         "    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;\n"                                      \
         "    " barrier "\n"                                                                                 \
         "    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;\n"                                  \
         "    __syncthreads();\n"                                                                            \
         "    return threadIdx.x < 32 ? warp_sum(v) : 0;\n"                                                  \
         "}\n"                                                                                               \
         "extern \"C\" __global__ void __launch_bounds__(256) sum(const args a)\n"                           \
         "{\n"                                                                                               \
         "    __shared__ bool last;\n"                                                                       \
         "    float v = 0;\n"                                                                                \
         "    for (long i = threadIdx.x + 256l * blockIdx.x; i < a.n; i += 256l * gridDim.x) v += a.x[i];\n" \
         "    v = block_sum(v);\n"                                                                           \
         "    if (threadIdx.x == 0) {\n"                                                                     \
         "        a.y[1 + blockIdx.x] = v;\n"                                                                \
         "        " fence "\n"                                                                               \
         "        last = atomicAdd(a.word, 1u) == gridDim.x - 1;\n"                                          \
         "    }\n"                                                                                           \
         "    __syncthreads();\n"                                                                            \
         "    if (!last) return;\n"                                                                          \
         "    v = 0;\n"                                                                                      \
         "    for (unsigned b = threadIdx.x; b < gridDim.x; b += 256) v += a.y[1 + b];\n"                    \
         "    v = block_sum(v);\n"                                                                           \
         "    if (threadIdx.x == 0) a.y[0] = v, *a.word = 0;\n"                                              \
         "}\n"

SIM_TEST(reduction)
{
    tn_cu_function f = rig_kernel(r, SUM("__threadfence();", "__syncthreads();"), "sum");
    args a = make_args(r, 20000);
    void *parameters[] = {&a};
    for (int seed = 1; seed < 6; seed++) { /* in whatever order they run, and again: the word is zero again */
        r->sim.set("seed", seed);
        OK(rig_run(r, f, 10, 256, parameters));
        assert_true(first_of(r, a.y) == sum_to(20000));
    }
    assert_string_equal(r->sim.report(), "");
}

SIM_TEST(missing_barrier)
{
    tn_cu_function f = rig_kernel(r, SUM("__threadfence();", ""), "sum");
    args a = make_args(r, 20000);
    void *parameters[] = {&a};
    FAILS(TN_CU_LAUNCH_FAILED, rig_run(r, f, 10, 256, parameters));
    rig_reported(r, "kernel sum", "race", "shared memory", "no barrier lies between", NULL);
    const char *text = NULL;
    OK(r->cu->cuGetErrorString(TN_CU_LAUNCH_FAILED, &text));
    assert_string_equal(text, r->sim.report());
    FAILS(TN_CU_LAUNCH_FAILED, r->cu->cuStreamSynchronize(r->stream)); /* it stays */
}

SIM_TEST(missing_fence)
{
    tn_cu_function f = rig_kernel(r, SUM("", "__syncthreads();"), "sum");
    args a = make_args(r, 20000);
    void *parameters[] = {&a};
    FAILS(TN_CU_LAUNCH_FAILED, rig_run(r, f, 10, 256, parameters));
    rig_reported(r, "kernel sum", "race", "bytes into an allocation of 80000 bytes", "no __threadfence()",
                 NULL);
}

/* Runs a body with 64 threads a block over `blocks`; what the wait says. */
static tn_cu_result run_body(rig *r, args *a, unsigned blocks, const char *body)
{
    char text[4096];
    *a = make_args(r, 4096);
    snprintf(text, sizeof text, ARGS "extern \"C\" __global__ void body(const args a)\n{\n%s}\n", body);
    tn_cu_function f = rig_kernel(r, text, "body");
    void *parameters[] = {a};
    return rig_run(r, f, blocks, 64, parameters);
}

SIM_TEST(neighbours_do_not_race)
{
    args a;
    OK(run_body(r, &a, 4,
                "unsigned char *bytes = (unsigned char *)a.y;\n"
                "bytes[threadIdx.x + 64 * blockIdx.x] = (unsigned char)(threadIdx.x + 64 * blockIdx.x);\n"));
    unsigned char host[256];
    rig_download(r, host, a.y, sizeof host);
    for (int i = 0; i < 256; i++) assert_int_equal(host[i], i);
}

SIM_TEST(warps_are_ordered_by_their_collectives)
{
    args a;
    OK(run_body(r, &a, 1,
                "__shared__ float s[64];\n"
                "s[threadIdx.x] = a.x[threadIdx.x];\n"
                "__syncwarp();\n"
                "a.y[threadIdx.x] = s[threadIdx.x ^ 1];\n"));
    float host[64];
    rig_download(r, host, a.y, sizeof host);
    for (int i = 0; i < 64; i++) assert_true(host[i] == (float)(i ^ 1));
}

SIM_TEST(shuffles)
{
    args a;
    OK(run_body(r, &a, 1,
                "int l = (int)threadIdx.x % 32, v = 100 + l, got[8];\n"
                "got[0] = __shfl_sync(0xffffffffu, v, 3);\n"
                "got[1] = __shfl_down_sync(0xffffffffu, v, 5);\n"
                "got[2] = __shfl_xor_sync(0xffffffffu, v, 9);\n"
                "got[3] = __shfl_sync(0xffffffffu, v, 2, 8);\n"
                "got[4] = (int)__ballot_sync(0xffffffffu, l % 3 == 0);\n"
                "got[5] = __any_sync(0xffffffffu, l == 31);\n"
                "got[6] = (int)__shfl_xor_sync(0xffffffffu, (double)v, 1);\n"
                "got[7] = 0;\n"
                "if (l < 8) got[7] = __shfl_xor_sync(0xffu, v, 7);\n"
                "for (int i = 0; i < 8; i++) ((int *)a.y)[threadIdx.x * 8 + i] = got[i];\n"));
    int host[64][8];
    rig_download(r, host, a.y, sizeof host);
    for (int t = 0; t < 64; t++) {
        int l = t % 32, *got = host[t];
        assert_int_equal(got[0], 103);
        assert_int_equal(got[1], l + 5 < 32 ? 105 + l : 100 + l);
        assert_int_equal(got[2], 100 + (l ^ 9));
        assert_int_equal(got[3], 102 + l / 8 * 8);
        assert_int_equal(got[4], 0x49249249);
        assert_int_equal(got[5], 1);
        assert_int_equal(got[6], 100 + (l ^ 1));
        assert_int_equal(got[7], l < 8 ? 100 + (l ^ 7) : 0);
    }
}

/* Lanes of one warp that part and come together again, each half by its own mask. */
SIM_TEST(halves_of_a_warp)
{
    args a;
    OK(run_body(r, &a, 1,
                "const int l = (int)threadIdx.x % 32, half = l / 16;\n"
                "const unsigned lanes = 0xffffu << 16 * half;\n"
                "float v = 1;\n"
                "for (int i = 0; i <= 2 * half; i++)\n"
                "    for (int d = 8; d > 0; d /= 2) v += __shfl_xor_sync(lanes, v, d);\n"
                "a.y[threadIdx.x] = v + __shfl_down_sync(0xffffffffu, v, 16);\n"));
    float host[64];
    rig_download(r, host, a.y, sizeof host);
    for (int t = 0; t < 64; t++) assert_true(host[t] == (t % 32 < 16 ? 16 + 4096 : 2 * 4096));
}

/* ---- faults ---- */

/* Bodies that the simulator stops, and pieces of what it reports. */
static const struct {
    tn_cu_result code;
    unsigned blocks;
    const char *body, *says[4];
} faults[] = {
    {TN_CU_LAUNCH_FAILED,
     2,
     "a.y[threadIdx.x] = (float)blockIdx.x;\n",
     {"kernel body, block", "race: this thread writes", "wrote", "nothing orders the two blocks"}},
    {TN_CU_LAUNCH_FAILED, /* of what others have read */
     1,
     "const float v = a.x[0];\n"
     "a.y[threadIdx.x] = v;\n"
     "if (threadIdx.x == 40) a.x[0] = v + 1;\n",
     {"kernel body", "race"}},
    {TN_CU_LAUNCH_FAILED, /* a warp's operation orders that warp alone */
     1,
     "__shared__ float s[64];\n"
     "s[threadIdx.x] = a.x[threadIdx.x];\n"
     "__syncwarp();\n"
     "a.y[threadIdx.x] = s[threadIdx.x ^ 32];\n",
     {"race", "shared memory"}},
    {TN_CU_LAUNCH_FAILED,
     1,
     "if (threadIdx.x < 16) a.y[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 16);\n",
     {"shuffle in line 4", "does not take part"}},
    {TN_CU_LAUNCH_FAILED, 1, "__syncwarp(0xffffu);\n", {"line 4", "without the lane that calls it"}},
    {TN_CU_LAUNCH_FAILED,
     1,
     "if (threadIdx.x == 5) return;\n__syncthreads();\n",
     {"kernel body", "divergent barrier", "line 5"}},
    {TN_CU_LAUNCH_FAILED,
     1,
     "if (threadIdx.x < 32)\n"
     "    __syncthreads();\n"
     "else\n"
     "    __syncthreads();\n",
     {"divergent barrier", "line 5", "line 7"}},
    {TN_CU_LAUNCH_FAILED,
     1,
     "if (threadIdx.x != 3)\n"
     "    __syncwarp();\n"
     "__syncthreads();\n",
     {"waits forever", "__syncthreads() in line 6", "warp operation in line 5"}},
    {SIM_ILLEGAL_ADDRESS,
     1,
     "a.y[threadIdx.x * 65 + 1] = 1;\n",
     {"kernel body", "write of 4 bytes", "0 bytes past the end of an allocation of 16384 bytes",
      "thread 63"}},
    {SIM_ILLEGAL_ADDRESS,
     1,
     "a.y[threadIdx.x] = a.x[(long)threadIdx.x - 1];\n",
     {"read of 4 bytes", "4 bytes before an allocation", "thread 0"}},
    {SIM_ILLEGAL_ADDRESS,
     1,
     "__shared__ float s[64], t[64];\n"
     "t[threadIdx.x] = 1;\n"
     "s[threadIdx.x + 1] = 2;\n"
     "__syncthreads();\n"
     "a.y[threadIdx.x] = s[threadIdx.x] + t[threadIdx.x];\n",
     {"index 64 out of bounds", "float [64]", "line 6"}},
    {SIM_ILLEGAL_ADDRESS, /* through a pointer: 4096 % 7 is 1 */
     1,
     "__shared__ float s[64];\n"
     "float *p = s + a.n % 7;\n"
     "p[threadIdx.x] = 2;\n"
     "__syncthreads();\n"
     "a.y[threadIdx.x] = p[threadIdx.x];\n",
     {"past the end of the block's", "shared memory"}},
    {SIM_MISALIGNED,
     1,
     "struct __attribute__((aligned(16))) four { float v[4]; };\n"
     "const four f = *(const four *)(a.x + 1);\n"
     "a.y[threadIdx.x] = f.v[0] + f.v[3];\n",
     {"misaligned address", "multiple of 16", "line 5"}},
};

SIM_TEST(faults_are_found)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        args a;
        r = *state;
        const tn_cu_result code = run_body(r, &a, faults[i].blocks, faults[i].body);
        if (code != faults[i].code) fail_msg("%d after\n%s", (int)code, faults[i].body);
        for (int k = 0; k < 4 && faults[i].says[k]; k++) rig_reported(r, faults[i].says[k], NULL);
        FAILS(faults[i].code, r->cu->cuStreamSynchronize(r->stream)); /* until the context goes */
        rig_close(state);
        rig_open(state);
    }
}

SIM_TEST(freed)
{
    tn_cu_function f = rig_kernel(r,
                                  ARGS "extern \"C\" __global__ void copy(const args a)\n"
                                       "{\n"
                                       "    a.y[threadIdx.x] = a.x[threadIdx.x];\n"
                                       "}\n",
                                  "copy");
    args a = make_args(r, 64);
    void *parameters[] = {&a};
    OK(rig_run(r, f, 1, 64, parameters));
    OK(r->cu->cuMemFree_v2(a.x));
    FAILS(SIM_ILLEGAL_ADDRESS, rig_run(r, f, 1, 64, parameters));
    rig_reported(r, "kernel copy", "read", "256 bytes that was freed", NULL);
}

SIM_TEST(shared_memory_is_nan)
{
    args a;
    OK(run_body(r, &a, 2,
                "__shared__ float s[64];\n"
                "if (threadIdx.x % 2) s[threadIdx.x] = 1;\n"
                "__syncthreads();\n"
                "a.y[threadIdx.x + 64 * blockIdx.x] = s[threadIdx.x];\n"));
    float host[128];
    rig_download(r, host, a.y, sizeof host);
    for (int i = 0; i < 128; i++) assert_true(i % 2 ? host[i] == 1 : isnan(host[i]));
}

/* The same kernels without checks: right where they are right, and no fault is found. */
SIM_TEST(without_checks)
{
    r->sim.set("check", 0);
    reduction_on(r, state);
    args a;
    OK(run_body(r, &a, 2, "a.y[threadIdx.x] = (float)blockIdx.x;\n"));
    assert_int_equal(rig_count(r).reports, 0);
}

/* ---- compiling ---- */

SIM_TEST(texts_that_do_not_compile)
{
    tn_cu_function f;
    const char *log =
        rig_compile(r, "extern \"C\" __global__ void k(int *p)\n{\n    *p = wrong;\n}\n", "k", &f);
    assert_non_null(strstr(log, "kernel.cu:3"));
    assert_non_null(strstr(log, "wrong"));
    log =
        rig_compile(r, "#include <stdint.h>\nextern \"C\" __global__ void k(int *p) { *p = 1; }\n", "k", &f);
    assert_non_null(strstr(log, "include"));
}

SIM_TEST(kernels_that_macros_make)
{
    const char *text = ARGS "#define FILL(name, value)                                       \\\n"
                            "    extern \"C\" __global__ void __launch_bounds__(64) name(const args a) \\\n"
                            "    {                                                           \\\n"
                            "        a.y[threadIdx.x] = value;                               \\\n"
                            "    }\n"
                            "FILL(fill_one, 1)\n"
                            "FILL(fill_two, 2)\n";
    args a = make_args(r, 64);
    void *parameters[] = {&a};
    OK(rig_run(r, rig_kernel(r, text, "fill_two"), 1, 64, parameters));
    assert_true(first_of(r, a.y) == 2);
    tn_cu_function f = rig_kernel(r, text, "fill_one");
    int threads = 0;
    OK(r->cu->cuFuncGetAttribute(&threads, TN_CU_FUNC_THREADS, f));
    assert_int_equal(threads, 64);
    FAILS(TN_CU_OUT_OF_RESOURCES, rig_launch(r, f, 1, 128, parameters)); /* more than its launch bounds */
}

/* ---- the real compiler ---- */

/* The texts above are CUDA, not something that only the simulator takes. */
SIM_TEST(texts_are_cuda)
{
    struct cusim_text_report report;
    const char *text = SUM("__threadfence();", "__syncthreads();");
    for (int arch = 80; arch <= 90; arch += 10) {
        int status = r->sim.check_text(text, arch, &report);
        if (status < 0) {
            print_message("%s\n", report.log);
            skip();
        }
        if (status) fail_msg("sm_%d: %s", arch, report.log);
        assert_int_equal(report.of.kernels, 1);
        assert_true(report.of.registers > 8 && report.of.registers <= 255);
        assert_int_equal(report.of.spilling, 0);
    }
}

SIM_TEST(spills_and_errors_are_seen)
{
    struct cusim_text_report report;
    const char *spills = "extern \"C\" __global__ void __launch_bounds__(1024) spills(float *x, int n)\n"
                         "{\n"
                         "    float a[100];\n"
                         "    for (int i = 0; i < 100; i++) a[i] = x[i * threadIdx.x];\n"
                         "    for (int j = 0; j < n; j++)\n"
                         "        for (int i = 0; i < 100; i++) a[i] = a[i] * a[(i + 7) % 100] + 1;\n"
                         "    for (int i = 0; i < 100; i++) x[i] = a[i];\n"
                         "}\n";
    int status = r->sim.check_text(spills, 90, &report);
    if (status < 0) {
        print_message("%s\n", report.log);
        skip();
    }
    assert_int_equal(status, 0);
    assert_int_equal(report.of.spilling, 1);
    assert_string_equal(report.of.spiller, "spills");
    assert_true(report.of.spilled_bytes > 0);
    r->sim.set("real", 1); /* a g++ extension */
    tn_cu_function f;
    const char *log = rig_compile(
        r, "extern \"C\" __global__ void k(int *p, int n) { int a[n]; a[0] = 1; *p = a[0]; }\n", "k", &f);
    assert_non_null(strstr(log, "NVRTC for sm_80"));
    assert_int_equal(rig_count(r).real_checks, 1);
    assert_string_equal(rig_compile(r, spills, "spills", &f), "");
    assert_int_equal(rig_count(r).real_checks, 3);
    assert_true(rig_count(r).real_spilling > 0);
}

RUN_TESTS(NULL, NULL)
