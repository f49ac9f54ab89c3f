/* test_cusim_pipe.c - what warps with work of their own tell each other (kernels/pipe.cuh) on the simulated GPU:
 * mbarriers and barriers of some warps order what they should, and which faults of their use are found. Each
 * fault is planted alone, in a kernel that is right without it.
 *
 * Read first: the texts in front of `faults`.
 */
#include "tests/cusim/rig.h"

#include "tests/cuda_source.h"

enum { SHARED = 64 << 10, WORDS = 1024 };

typedef struct args {
    tn_cu_ptr x, y;
    long n;
} args;
#define KERNEL                                                                                               \
    "struct args { const uint32_t *x; uint32_t *y; long n; };\n"                                             \
    "extern \"C\" __global__ void __launch_bounds__(256) k(const args a)\n"

static tn_cu_result run(rig *r, const char *body, unsigned threads, uint32_t *y)
{
    static const tn_embedded part[] = {TN_EMBED_WGMMA_CUH, TN_EMBED_PIPE_CUH};
    char own[1 << 16];
    const int n =
        snprintf(own, sizeof own, "%s%s%s%s", tn_embed_text(part[0]), tn_embed_text(part[1]), KERNEL, body);
    assert_in_range(n, 1, sizeof own - 1);
    char *text = cuda_source(own, true);
    tn_cu_function f = rig_kernel(r, text, "k");
    free(text);
    OK(r->cu->cuFuncSetAttribute(f, TN_CU_FUNC_DYNAMIC, SHARED));
    args a = {rig_alloc(r, WORDS * 4), rig_alloc(r, WORDS * 4), 0};
    uint32_t x[WORDS];
    for (unsigned i = 0; i < WORDS; i++) x[i] = 7 * i + 1;
    rig_upload(r, a.x, x, sizeof x);
    void *parameters[] = {&a};
    tn_cu_result status =
        r->cu->cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, SHARED, r->stream, parameters, NULL);
    if (!status) status = r->cu->cuStreamSynchronize(r->stream);
    if (!status && y) rig_download(r, y, a.y, WORDS * 4);
    return status;
}

/* One warp brings eight tiles of 32 words, three at a time, another takes them. */
#define BEGIN                                                                                                \
    "{\n"                                                                                                    \
    "    tn_mbarrier *full = (tn_mbarrier *)tn_dynamic_shared(), *empty = full + 4;\n"                       \
    "    uint32_t *s = (uint32_t *)(full + 8);\n"                                                            \
    "    const int lane = threadIdx.x % 32;\n"                                                               \
    "    if (threadIdx.x == 0)\n"                                                                            \
    "        for (int i = 0; i < 3; i++) tn_mbarrier_open(&full[i], 32), tn_mbarrier_open(&empty[i], 1);\n"
#define SYNC  "    __syncthreads();\n"
#define BRING "    if (threadIdx.x / 32 == 0) {\n        for (int t = 0; t < 8; t++) {\n"
#define ROOM  "            tn_mbarrier_wait(&empty[t % 3], t / 3 % 2 ^ 1);\n"
#define COPY  "            tn_copy_async<4>(s + t % 3 * 32 + lane, a.x + t * 32 + lane, true);\n"
#define GIVE  "            tn_mbarrier_arrive_copies(&full[t % 3]);\n        }\n    }\n"
#define TAKE  "    if (threadIdx.x / 32 == 1) {\n        for (int t = 0; t < 8; t++) {\n"
#define COME  "            tn_mbarrier_wait(&full[t % 3], t / 3 % 2);\n"
#define USE   "            a.y[t * 32 + lane] = s[t % 3 * 32 + (lane ^ 1)];\n"
#define LANES "            __syncwarp();\n"
#define FREE  "            if (lane == 0) tn_mbarrier_arrive(&empty[t % 3]);\n        }\n    }\n"
#define END   "}\n"

/* The same by stores, and with a barrier of two warps; a third warp has nothing to do with it. */
#define PAIR                                                                                                 \
    "{\n    uint32_t *s = (uint32_t *)tn_dynamic_shared();\n    const int lane = threadIdx.x % 32, warp = "  \
    "threadIdx.x / 32;\n"                                                                                    \
    "    if (warp == 0) s[lane] = a.x[lane];\n"
#define TELL "    if (warp == 0) tn_barrier_arrive(3, 64);\n"
#define HEAR "    if (warp == 1) tn_barrier_sync(3, 64);\n"
#define READ "    if (warp == 1) a.y[lane] = s[lane ^ 1];\n}\n"

SIM_TEST(ring)
{
    uint32_t y[WORDS];
    OK(run(r, BEGIN SYNC BRING ROOM COPY GIVE TAKE COME USE LANES FREE END, 96, y));
    for (unsigned i = 0; i < 256; i++) assert_int_equal(y[i], 7 * (i ^ 1) + 1);
    OK(run(r, PAIR TELL HEAR READ, 96, y));
    for (unsigned i = 0; i < 32; i++) assert_int_equal(y[i], 7 * (i ^ 1) + 1);
}

SIM_TEST(faults_are_found)
{
    static const struct {
        const char *body, *says; /* NULL: it is right */
    } fault[] = {
        {BEGIN SYNC BRING ROOM COPY GIVE TAKE COME USE LANES FREE END, NULL},
        {BEGIN SYNC BRING ROOM COPY GIVE TAKE USE LANES FREE END, "no wait for it"},
        {BEGIN SYNC BRING COPY GIVE TAKE COME USE LANES FREE END, "cp.async is to fill"},
        {BEGIN SYNC BRING ROOM COPY GIVE TAKE COME USE FREE END,
         "race"}, /* lane 0 speaks for others too early */
        {BEGIN SYNC BRING ROOM COPY GIVE TAKE COME USE LANES "        }\n    }\n" END, "waits forever"},
        {BEGIN SYNC BRING ROOM COPY "        }\n    }\n" TAKE COME USE LANES FREE END, "an mbarrier"},
        /* arrives for copies that have not */
        {BEGIN SYNC BRING ROOM COPY
         "            tn_mbarrier_arrive(&full[t % 3]);\n        }\n    }\n" TAKE COME USE LANES FREE END,
         "no wait for it"},
        {BEGIN BRING ROOM COPY GIVE TAKE COME USE LANES FREE END, "mbarrier"},
        {PAIR TELL HEAR READ, NULL},
        {PAIR READ, "race"},
        {PAIR HEAR READ, "a barrier of some warps"},
        {PAIR "    if (warp == 0) tn_barrier_arrive(3, 96);\n" HEAR READ, "barrier 3 of"},
        {PAIR "    if (warp == 0) tn_barrier_arrive(4, 64);\n" HEAR READ, "waits forever"},
        {"{\n    uint32_t *s = (uint32_t *)tn_dynamic_shared();\n    const int lane = threadIdx.x % 32, warp "
         "= "
         "threadIdx.x / 32;\n" TELL "    if (warp == 0) s[lane] = a.x[lane];\n" HEAR READ,
         "race"}, /* told before */
    };
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) {
        r = *state;
        const tn_cu_result status = run(r, fault[i].body, 96, NULL);
        if (!fault[i].says != !status) fail_msg("fault %d: %s", (int)i, r->sim.report());
        if (fault[i].says && !strstr(r->sim.report(), fault[i].says))
            fail_msg("fault %d: %s", (int)i, r->sim.report());
        rig_close(state);
        rig_open(state);
    }
}

RUN_TESTS(NULL, NULL)
