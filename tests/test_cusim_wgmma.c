/* test_cusim_wgmma.c - products of a warpgroup (kernels/wgmma.cuh) on the simulated GPU: what their twins
 * compute, and which faults of their use are found.
 *
 * Operands are laid out here as the ISA draws them, atom by atom: an atom is eight lines of W chunks of 16
 * bytes (W 8, 4, 2 with a swizzle of 128, 64, 32 bytes, 1 without), atoms follow one another at strides that
 * the descriptor names. The twin has a formula from an element to its byte, this test a walk over atoms,
 * lines and chunks; and accumulators are read through the place of each (row, column) among the threads. Each
 * fault is planted alone, in a kernel that is right without it. */
#include "tests/cusim/rig.h"

#include <math.h>

#include "src/core/dtype.h"
#include "tests/cuda_source.h"

enum { SHARED = 96 << 10, A_AT = 0, B_AT = 32 << 10, THREADS = 128, DEPTH = 16, MOST_N = 128 };

typedef struct args {
    tn_cu_ptr x, y;
    long n;
} args;
#define KERNEL                                                                                               \
    "struct args { const uint32_t *x; uint32_t *y; long n; };\n"                                             \
    "extern \"C\" __global__ void __launch_bounds__(256) k(const args a)\n"

/* The kernel `body` behind the prelude, ptx.cuh and wgmma.cuh. */
static tn_cu_function kernel(rig *r, const char *body)
{
    const char *wgmma = tn_embed_text(TN_EMBED_WGMMA_CUH);
    const size_t room = strlen(wgmma) + strlen(body) + sizeof KERNEL + 1;
    char *own = malloc(room);
    assert_non_null(own);
    snprintf(own, room, "%s%s%s", wgmma, KERNEL, body);
    char *text = cuda_source(own, true);
    tn_cu_function f = rig_kernel(r, text, "k");
    OK(r->cu->cuFuncSetAttribute(f, TN_CU_FUNC_DYNAMIC, SHARED));
    free(text);
    free(own);
    return f;
}

static tn_cu_result run(rig *r, const char *body, unsigned threads, const void *x, float *y)
{
    args a = {rig_alloc(r, SHARED), rig_alloc(r, 256 * MOST_N / 2 * 4), 0};
    static const char zeros[SHARED];
    rig_upload(r, a.x, x ? x : zeros, SHARED);
    void *parameters[] = {&a};
    tn_cu_result status =
        r->cu->cuLaunchKernel(kernel(r, body), 1, 1, 1, threads, 1, 1, SHARED, r->stream, parameters, NULL);
    if (!status) status = r->cu->cuStreamSynchronize(r->stream);
    if (!status && y) rig_download(r, y, a.y, (size_t)THREADS * MOST_N / 2 * 4);
    return status;
}

/* ---- layouts ---- */

typedef struct layout {
    int mode;    /* as descriptors have it: 0 none, 1 128 bytes, 2 64, 3 32 */
    bool turned; /* MN-major */
    int step[2]; /* bytes from an atom to the next: along mn, along k */
} layout;

/* Puts m[mn][k] into memory, atom by atom. A K-major atom is 8 mn by 8 W k, an MN-major one 8 W mn by 8 k. */
static void put(uint16_t *memory, const layout *l, int extent, uint16_t (*m)[DEPTH])
{
    static const int wides[] = {1, 8, 4, 2};
    const int wide = wides[l->mode], mn_atom = l->turned ? 8 * wide : 8, k_atom = l->turned ? 8 : 8 * wide;
    for (int i = 0; i * mn_atom < extent; i++)
        for (int j = 0; j * k_atom < DEPTH; j++)
            for (int line = 0; line < 8; line++)
                for (int chunk = 0; chunk < wide; chunk++)
                    for (int e = 0; e < 8; e++) {
                        const int along = chunk * 8 + e;
                        const int mn = i * mn_atom + (l->turned ? along : line);
                        const int k = j * k_atom + (l->turned ? line : along);
                        /* of an atom's chunks in a row, eight share a line of banks: the chunk's place within
                           its W is turned by that line's number */
                        const int serial = line * wide + chunk, place = serial ^ (serial / 8 % wide);
                        const int byte = i * l->step[0] + j * l->step[1] + place * 16 + e * 2;
                        if (mn < extent && k < DEPTH) memory[byte / 2] = m[mn][k];
                    }
}

/* A descriptor's offsets of such a layout, in the words of the ISA's tables. */
static void offsets(const layout *l, int *leading, int *stride)
{
    if (l->mode == 0 ||
        !l->turned) { /* stride: along mn; leading: along k, looked at without a swizzle alone */
        *stride = l->step[0];
        *leading = l->mode == 0 ? l->step[1] : 16;
    } else {
        *leading = l->step[0];
        *stride = l->step[1];
    }
}

static rng dice = {5};
static int next_number(void) { return (int)rng_below(&dice, 256) - 128; }

/* Two products in a chain: d = a b, then d += a b. */
static void products(rig *r, int n, bool f16, bool registers, const layout *la, const layout *lb)
{
    static uint16_t memory[SHARED / 2], a[64][DEPTH], b[MOST_N][DEPTH];
    static float y[THREADS * MOST_N / 2];
    static double av[64][DEPTH], bv[MOST_N][DEPTH];
    char body[3000], what[128];
    int leading[2], stride[2];
    memset(memory, 0x7f, sizeof memory); /* large numbers or NaN: whoever reads beside is found */
#define FILL(value, bits, rows)                                                                              \
    for (int i = 0; i < (rows); i++)                                                                         \
        for (int k = 0; k < DEPTH; k++) {                                                                    \
            value[i][k] = next_number() / 32.;                                                               \
            bits[i][k] = f16 ? tn_f32_to_f16((float)value[i][k]) : tn_f32_to_bf16((float)value[i][k]);       \
        }
    FILL(av, a, 64)
    FILL(bv, b, n)
    put(memory + A_AT / 2, la, 64, a);
    put(memory + B_AT / 2, lb, n, b);
    offsets(la, &leading[0], &stride[0]);
    offsets(lb, &leading[1], &stride[1]);
    /* A as registers: of lane 4 g + t of warp w, words of rows 16 w + g and + 8, columns 2 t and 2 t + 8 */
    if (registers)
        for (int t = 0; t < THREADS; t++)
            for (int i = 0; i < 8; i++)
                memory[A_AT / 2 + t * 8 + i] =
                    a[t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8][t % 4 * 2 + i % 2 + i / 4 * 8];
    const char *a_turned = registers ? "" : la->turned ? ", true" : ", false";
    snprintf(what, sizeof what, "n %d, f16 %d, registers %d, a of mode %d, b of mode %d turned %d", n, f16,
             registers, la->mode, lb->mode, lb->turned);
    snprintf(
        body, sizeof body,
        "{\n"
        "    uint32_t *s = (uint32_t *)tn_dynamic_shared();\n"
        "    for (int i = threadIdx.x; i < %d; i += 128) s[i] = a.x[i];\n"
        "    float d[%d][4];\n"
        "    const uint64_t left = (uint64_t)%d << 62 | (uint64_t)%d << 32 | (uint64_t)%d << 16 | %d;\n"
        "    const uint64_t right = (uint64_t)%d << 62 | (uint64_t)%d << 32 | (uint64_t)%d << 16 | %d;\n"
        "    tn_wgmma_show();\n"
        "    __syncthreads();\n"
        "    const uint32_t own[4] = {s[threadIdx.x * 4], s[threadIdx.x * 4 + 1], s[threadIdx.x * 4 + 2],\n"
        "                             s[threadIdx.x * 4 + 3]};\n"
        "    tn_wgmma_open();\n"
        "    tn_wgmma_%s<false%s, %s>(d, %s, right);\n"
        "    tn_wgmma_close();\n"
        "    tn_wgmma_%s<true%s, %s>(d, %s, right);\n"
        "    tn_wgmma_close();\n"
        "    tn_wgmma_wait<1>();\n"
        "    tn_wgmma_wait<0>();\n"
        "    tn_wgmma_hold(d);\n"
        "    for (int i = 0; i < %d; i++) ((float *)a.y)[threadIdx.x * %d + i] = d[i / 4][i %% 4];\n"
        "}\n",
        SHARED / 4, n / 8, la->mode, stride[0] >> 4, leading[0] >> 4, A_AT >> 4, lb->mode, stride[1] >> 4,
        leading[1] >> 4, B_AT >> 4, f16 ? "f16" : "bf16", a_turned, lb->turned ? "true" : "false",
        registers ? "own" : "left", f16 ? "f16" : "bf16", a_turned, lb->turned ? "true" : "false",
        registers ? "own" : "left", n / 2, n / 2);
    if (run(r, body, THREADS, memory, y)) fail_msg("%s: %s", what, r->sim.report());
    static bool taken[THREADS * MOST_N / 2];
    memset(taken, 0, sizeof taken);
    for (int row = 0; row < 64; row++)
        for (int column = 0; column < n; column++) {
            const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
            const int at = thread * n / 2 + column / 8 * 4 + row / 8 % 2 * 2 + column % 2;
            double sum = 0;
            for (int k = 0; k < DEPTH; k++)
                sum += 2 * av[row][k] * bv[column][k]; /* exact: few digits each */
            assert_false(taken[at]);
            taken[at] = true;
            if (y[at] != (float)sum)
                fail_msg("%s: row %d, column %d: %g, not %g", what, row, column, (double)y[at], sum);
        }
}

SIM_TEST(layouts)
{
    /* a's and b's atoms stand apart: no stride is another by chance */
    static const layout left[] = {{0, false, {512, 256}}, {1, false, {2048, 0}},  {2, false, {1024, 0}},
                                  {3, false, {512, 0}},   {0, true, {256, 8192}}, {1, true, {0, 2048}},
                                  {2, true, {1024, 512}}, {3, true, {512, 4096}}};
    static const layout right[] = {{0, false, {512, 256}},  {1, false, {3072, 0}},  {2, false, {1536, 0}},
                                   {3, false, {256, 0}},    {0, true, {256, 8192}}, {1, true, {4096, 1024}},
                                   {2, true, {1024, 8192}}, {3, true, {2048, 256}}};
    for (int n = 64; n <= 128; n += 64)
        for (int b = 0; b < 8; b++)
            products(r, n, (b + n / 64) % 2, b % 3 == 2, &left[(b + n / 16) % 8], &right[b]);
    products(r, 128, false, true, &left[1], &right[5]);
    products(r, 64, true, true, &left[1], &right[1]);
}

/* What this library's kernels go by: a panel's element stands where its descriptor says. */
SIM_TEST(panels)
{
    static const layout panel = {1, false, {1024, 0}};
    static float y[THREADS * MOST_N / 2];
    uint16_t m[24][DEPTH], drawn[24 * 64] = {0};
    int32_t apart;
    for (int i = 0; i < 24 * DEPTH; i++) m[i / DEPTH][i % DEPTH] = (uint16_t)(i + 1);
    put(drawn, &panel, 24, m);
    OK(run(r,
           "{\n"
           "    uint16_t *y = (uint16_t *)a.y;\n"
           "    if (threadIdx.x) return;\n"
           "    for (int i = 0; i < 24 * 64; i++) y[i] = 0;\n"
           "    for (int i = 0; i < 24 * 16; i++) y[tn_panel_place(24, i / 16, i % 16)] = i + 1;\n"
           "    a.y[24 * 64 / 2] = tn_panel_place(24, 3, 64 + 5) - tn_panel_place(24, 3, 5);\n"
           "}\n",
           32, NULL, y));
    assert_memory_equal(y, drawn, sizeof drawn);
    memcpy(&apart, (char *)y + sizeof drawn, sizeof apart);
    assert_int_equal(apart, 24 * 64); /* a panel behind the other */
}

/* ---- faults ---- */

#define BEGIN                                                                                                \
    "{\n"                                                                                                    \
    "    float d[8][4] = {{0}};\n"                                                                           \
    "    uint32_t *s = (uint32_t *)tn_dynamic_shared();\n"                                                   \
    "    const uint64_t left = tn_panel(s, 0), right = tn_panel(s + 8192, 0);\n"                             \
    "    for (int i = threadIdx.x; i < 16384; i += blockDim.x) s[i] = 0;\n"
#define READY   "    tn_wgmma_show();\n    __syncthreads();\n    tn_wgmma_open();\n"
#define PRODUCT "    tn_wgmma_bf16<true, false, false>(d, left, right);\n"
#define DONE    "    tn_wgmma_close();\n    tn_wgmma_wait<0>();\n"
#define END     "    a.y[threadIdx.x] = __float_as_uint(d[0][0]);\n}\n"

SIM_TEST(faults_are_found)
{
    static const struct {
        unsigned threads;
        const char *body, *says;
    } fault[] = {
        {128, BEGIN READY PRODUCT DONE END, NULL},
        {256, BEGIN READY PRODUCT PRODUCT DONE "    tn_wgmma_open();\n" PRODUCT DONE END, NULL},
        {128, BEGIN "    tn_wgmma_show();\n    __syncthreads();\n" PRODUCT DONE END, "without a wgmma.fence"},
        {128, BEGIN READY PRODUCT DONE PRODUCT DONE END, "without a wgmma.fence"},
        {128, BEGIN "    __syncthreads();\n    tn_wgmma_open();\n" PRODUCT DONE END, "no fence.proxy.async"},
        /* shown, and then written once more */
        {128,
         BEGIN
         "    tn_wgmma_show();\n    s[threadIdx.x] = 1;\n    __syncthreads();\n    tn_wgmma_open();\n" PRODUCT
             DONE END,
         "no fence.proxy.async"},
        {128, BEGIN "    tn_wgmma_show();\n    tn_wgmma_open();\n" PRODUCT DONE END, "race"},
        /* written while a product reads */
        {128,
         BEGIN READY PRODUCT "    tn_wgmma_close();\n    __syncthreads();\n    s[8192 + threadIdx.x] = 1;\n"
                             "    tn_wgmma_wait<0>();\n" END,
         "race"},
        {128, BEGIN READY PRODUCT "    tn_wgmma_close();\n" END, "before its wgmma were waited for"},
        /* what was asked for since the last group is in none */
        {128, BEGIN READY "    tn_wgmma_close();\n" PRODUCT "    tn_wgmma_wait<0>();\n" END,
         "before its wgmma were"},
        {64, BEGIN READY PRODUCT DONE END, "fewer than four warps"},
        {128,
         BEGIN READY "    if (threadIdx.x / 32 == 2) right;\n" PRODUCT
                     "    if (threadIdx.x / 32 != 1) { " PRODUCT " }\n" DONE END,
         "asked for"},
        {128,
         BEGIN READY
         "    tn_wgmma_bf16<true, false, false>(d, left, right + (threadIdx.x / 64) * 64);\n" DONE END,
         "ask for different wgmma"},
        {128, BEGIN READY "    if (threadIdx.x == 7) return;\n" PRODUCT DONE END, "for all lanes of a warp"},
        {128,
         BEGIN READY "    tn_wgmma_bf16<true, false, false>(d, left, right | (uint64_t)1 << 49);\n" DONE END,
         "base offset"},
        {128, BEGIN READY "    tn_wgmma_bf16<true, false, false>(d, left, right + 4096);\n" DONE END,
         "where none is"},
    };
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) {
        r = *state;
        const tn_cu_result status = run(r, fault[i].body, fault[i].threads, NULL, NULL);
        if (!fault[i].says != !status) fail_msg("fault %d: %s", (int)i, r->sim.report());
        if (fault[i].says && !strstr(r->sim.report(), fault[i].says))
            fail_msg("fault %d: %s", (int)i, r->sim.report());
        rig_close(state);
        rig_open(state);
    }
}

/* Not waited for, not there: NaN. */
SIM_TEST(accumulators_are_late)
{
    static float y[THREADS * MOST_N / 2];
    OK(run(r,
           BEGIN READY PRODUCT "    tn_wgmma_close();\n    a.y[threadIdx.x] = __float_as_uint(d[0][0]);\n"
                               "    tn_wgmma_wait<0>();\n}\n",
           128, NULL, y));
    for (int i = 0; i < 128; i++) assert_true(isnan(y[i]));
}

SIM_TEST(other_targets)
{
    const char *before = rig_target;
    rig_target = "--gpu-architecture=sm_90";
    assert_int_not_equal(run(r, BEGIN READY PRODUCT DONE END, 128, NULL, NULL), 0);
    rig_target = before;
    rig_reported(r, "not compiled for sm_90a", NULL);
}

RUN_TESTS(NULL, NULL)
