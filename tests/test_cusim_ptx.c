/* test_cusim_ptx.c - the instructions of kernels/ptx.cuh on the simulated GPU: what their twins compute,
 * dynamic shared memory, and which faults of their use are found.
 *
 * A kernel takes x, y and n; each fault is planted alone, in a kernel that is right without it. */
#include "tests/cusim/rig.h"

#include <math.h>

#include "src/core/dtype.h"
#include "tests/cuda_source.h"
#include "tests/long/ulp_error.h"

enum { WORDS = 4096 }; /* of x and of y */

typedef struct args {
    tn_cu_ptr x, y;
    long n;
} args;
#define KERNEL                                                                                               \
    "struct args { const uint32_t *x; uint32_t *y; long n; };\n"                                             \
    "extern \"C\" __global__ void __launch_bounds__(64) k(const args a)\n"

/* The kernel `body` behind the prelude and ptx.cuh. */
static tn_cu_function kernel(rig *r, const char *body)
{
    char kernel[4096];
    snprintf(kernel, sizeof kernel, KERNEL "%s", body);
    char *text = cuda_source(kernel, true);
    tn_cu_function f = rig_kernel(r, text, "k");
    free(text);
    return f;
}

static args make_args(rig *r, const uint32_t *x)
{
    args a = {rig_alloc(r, WORDS * 4), rig_alloc(r, WORDS * 4), 0};
    if (x) rig_upload(r, a.x, x, WORDS * 4);
    OK(r->cu->cuStreamSynchronize(r->stream));
    return a;
}

/* Runs `body` with 32 threads over x into y, after the real NVRTC, where there is one, has taken it. */
static void run(rig *r, const char *body, const uint32_t *x, uint32_t *y)
{
    args a = make_args(r, x);
    void *parameters[] = {&a};
    r->sim.set("real", 1);
    OK(rig_run(r, kernel(r, body), 1, 32, parameters));
    rig_download(r, y, a.y, WORDS * 4);
}

static tn_cu_result run_shared(rig *r, tn_cu_function f, args *a, unsigned threads, unsigned shared)
{
    void *parameters[] = {a};
    tn_cu_result status =
        r->cu->cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, shared, r->stream, parameters, NULL);
    return status ? status : r->cu->cuStreamSynchronize(r->stream);
}

/* ---- matrices ---- */

/* A [16][k], B [k][8] of random numbers that the type holds, as words of the lanes; D = C + A B. */
static void products(rig *r, const char *name, tn_dtype dtype)
{
    const int per = dtype == TN_F32 ? 1 : 2, k = 8 * per;
    double a[16][16], b[16][8], c[16][8];
    uint32_t x[WORDS] = {0}, y[WORDS];
    rng dice = {7};
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < k; j++) a[i][j] = (double)rng_below(&dice, 255) / 64 - 2;
    for (int i = 0; i < k; i++)
        for (int j = 0; j < 8; j++) b[i][j] = (double)rng_below(&dice, 255) / 64 - 2;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) c[i][j] = (double)rng_below(&dice, 255) / 8;
#define WORD(at)                                                                                             \
    (dtype == TN_F32   ? tn_test_bits((float)at(0))                                                          \
     : dtype == TN_F16 ? (uint32_t)tn_f32_to_f16((float)at(1)) << 16 | tn_f32_to_f16((float)at(0))           \
                       : (uint32_t)tn_f32_to_bf16((float)at(1)) << 16 | tn_f32_to_bf16((float)at(0)))
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
#define A_AT(e) a[g + i % 2 * 8][(t + i / 2 * 4) * per + (e)]
            x[lane * 12 + i] = WORD(A_AT);
            x[lane * 12 + 6 + i] = tn_test_bits((float)c[g + i / 2 * 8][2 * t + i % 2]);
        }
        for (int i = 0; i < 2; i++) {
#define B_AT(e) b[(t + i * 4) * per + (e)][g]
            x[lane * 12 + 4 + i] = WORD(B_AT);
        }
    }
    char body[1024];
    snprintf(body, sizeof body,
             "{\n"
             "    const uint32_t *x = a.x + threadIdx.x * 12;\n"
             "    uint32_t m[4] = {x[0], x[1], x[2], x[3]}, n[2] = {x[4], x[5]};\n"
             "    float d[4];\n"
             "    for (int i = 0; i < 4; i++) d[i] = __uint_as_float(x[6 + i]);\n"
             "    %s(d, m, n);\n"
             "    for (int i = 0; i < 4; i++) a.y[threadIdx.x * 4 + i] = __float_as_uint(d[i]);\n"
             "}\n",
             name);
    run(r, body, x, y);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            double sum = c[row][column];
            for (int j = 0; j < k; j++) sum += a[row][j] * b[j][column]; /* exact: few digits each */
            assert_true(tn_test_float(y[lane * 4 + i]) == (float)sum);
        }
}

SIM_TEST(mma_tf32) { products(*state, "tn_mma_tf32", TN_F32); }

SIM_TEST(mma_f16) { products(*state, "tn_mma_f16", TN_F16); }

SIM_TEST(mma_bf16) { products(*state, "tn_mma_bf16", TN_BF16); }

SIM_TEST(matrices_from_shared_memory)
{
    uint32_t x[WORDS], y[WORDS];
    uint16_t element[4][8][8];
    for (int i = 0; i < 256; i++) ((uint16_t *)element)[i] = (uint16_t)(i * 259 + 17);
    memset(x, 0, sizeof x);
    memcpy(x, element, sizeof element);
    run(r,
        "{\n"
        "    __shared__ __align__(16) uint32_t s[128];\n"
        "    for (int i = threadIdx.x; i < 128; i += 32) s[i] = a.x[i];\n"
        "    __syncwarp();\n"
        "    uint32_t one[1], two[2], four[4], turned[4];\n"
        "    tn_ldmatrix(one, s + threadIdx.x % 8 * 4);\n"
        "    tn_ldmatrix(two, s + threadIdx.x % 16 * 4);\n"
        "    tn_ldmatrix(four, s + threadIdx.x * 4);\n"
        "    tn_ldmatrix_trans(turned, s + threadIdx.x * 4);\n"
        "    uint32_t *y = a.y + threadIdx.x * 11;\n"
        "    y[0] = one[0], y[1] = two[0], y[2] = two[1];\n"
        "    for (int i = 0; i < 4; i++) y[3 + i] = four[i], y[7 + i] = turned[i];\n"
        "}\n",
        x, y);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4 * 2;
        const uint32_t *own = y + lane * 11;
        for (int i = 0; i < 4; i++) {
            const uint32_t plain = element[i][g][t] | (uint32_t)element[i][g][t + 1] << 16;
            if (i < 1) assert_int_equal(own[i], plain);
            if (i < 2) assert_int_equal(own[1 + i], plain);
            assert_int_equal(own[3 + i], plain);
            assert_int_equal(own[7 + i], element[i][t][g] | (uint32_t)element[i][t + 1][g] << 16);
        }
    }
}

/* ---- asynchronous copies ---- */

#define COPY(wait, barrier)                                                                                  \
    "{\n"                                                                                                    \
    "    uint32_t *s = (uint32_t *)tn_dynamic_shared();\n"                                                   \
    "    tn_copy_async<4>(s + threadIdx.x, a.x + threadIdx.x, threadIdx.x % 3 != 0);\n"                      \
    "    tn_copy_commit();\n"                                                                                \
    "    tn_copy_async<16>(s + 64 + threadIdx.x * 4, a.x + 64 + threadIdx.x * 4, true);\n"                   \
    "    tn_copy_commit();\n" wait barrier "    a.y[threadIdx.x] = s[63 - threadIdx.x];\n"                   \
    "    tn_copy_wait<0>();\n"                                                                               \
    "    __syncthreads();\n"                                                                                 \
    "    for (int i = 0; i < 4; i++) a.y[64 + i * 64 + threadIdx.x] = s[64 + i * 64 + threadIdx.x];\n"       \
    "}\n"

static tn_cu_result copy(rig *r, const char *text, unsigned shared, uint32_t *y)
{
    uint32_t x[WORDS];
    for (uint32_t i = 0; i < WORDS; i++) x[i] = i + 1;
    args a = make_args(r, x);
    tn_cu_result status = run_shared(r, kernel(r, text), &a, 64, shared);
    if (!status) rig_download(r, y, a.y, WORDS * 4);
    return status;
}

SIM_TEST(copies_arrive)
{
    uint32_t y[WORDS];
    r->sim.set("real", 1);
    OK(copy(r, COPY("    tn_copy_wait<1>();\n", "    __syncthreads();\n"), 320 * 4, y));
    for (uint32_t i = 0; i < 64; i++) assert_int_equal(y[i], (63 - i) % 3 ? 64 - i : 0);
    for (uint32_t i = 64; i < 320; i++) assert_int_equal(y[i], i + 1);
}

/* A wait is for the thread's own copies: what others asked for needs a barrier too. */
SIM_TEST(copies_without_a_barrier)
{
    assert_int_not_equal(copy(r, COPY("    tn_copy_wait<1>();\n", ""), 320 * 4, NULL), 0);
    const char *report = r->sim.report();
    assert_true(strstr(report, "race") || strstr(report, "that a cp.async is to fill"));
}

SIM_TEST(copies_are_late_without_checks_too)
{
    uint32_t y[WORDS];
    r->sim.set("check", 0);
    OK(copy(r, COPY("", "    __syncthreads();\n"), 320 * 4, y));
    int missing = 0; /* what a thread reads before the copy's own thread has come to its last wait */
    for (uint32_t i = 0; i < 64; i++) missing += y[i] == 0xffffffffu;
    assert_true(missing > 0);
}

/* ---- dynamic shared memory ---- */

SIM_TEST(dynamic_shared_memory)
{
    uint32_t y[WORDS];
    args a = make_args(r, NULL);
    tn_cu_function f = kernel(r, "{\n"
                                 "    uint32_t *s = (uint32_t *)tn_dynamic_shared();\n"
                                 "    a.y[threadIdx.x] = s[threadIdx.x];\n"
                                 "    s[100 * 256 - 1 - threadIdx.x] = threadIdx.x;\n"
                                 "    __syncthreads();\n"
                                 "    a.y[64 + threadIdx.x] = s[100 * 256 - 64 + threadIdx.x];\n"
                                 "}\n");
    FAILS(TN_CU_INVALID_VALUE, run_shared(r, f, &a, 64, 100 << 10)); /* it has not asked */
    FAILS(TN_CU_INVALID_VALUE, r->cu->cuFuncSetAttribute(f, TN_CU_FUNC_DYNAMIC, 164 << 10));
    OK(r->cu->cuFuncSetAttribute(f, TN_CU_FUNC_DYNAMIC, 100 << 10));
    OK(run_shared(r, f, &a, 64, 100 << 10));
    rig_download(r, y, a.y, WORDS * 4);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(y[i], 0xffffffffu); /* NaN */
        assert_int_equal(y[64 + i], 63 - i);
    }
    assert_int_not_equal(run_shared(r, f, &a, 64, (100 << 10) - 4), 0);
    rig_reported(r, "past the end of the block's", "dynamic shared memory", NULL);
}

/* ---- faults ---- */

SIM_TEST(faults_are_found)
{
    static const struct {
        unsigned threads, shared;
        const char *body, *says[2];
    } fault[] = {
        {32,
         0, /* a matrix instruction that a lane does not come to */
         "{\n"
         "    uint32_t m[4] = {0}, n[2] = {0};\n"
         "    float d[4] = {0};\n"
         "    if (threadIdx.x == 5) return;\n"
         "    tn_mma_tf32(d, m, n);\n"
         "    a.y[threadIdx.x] = __float_as_uint(d[0]);\n"
         "}\n",
         {"for all lanes of a warp"}},
        {64, 320 * 4, COPY("", "    __syncthreads();\n"), {"that a cp.async is to fill"}},
        {64,
         320 * 4,
         COPY("    tn_copy_wait<2>();\n", "    __syncthreads();\n"),
         {"that a cp.async is to fill"}},
        {1,
         16,
         "{\n"
         "    tn_copy_async<16>(tn_dynamic_shared(), a.x + 4096, threadIdx.x == 0);\n"
         "    tn_copy_commit();\n"
         "    tn_copy_wait<0>();\n"
         "}\n",
         {"read of 16 bytes", "past the end"}},
        {1,
         16,
         "{\n"
         "    tn_copy_async<8>(tn_dynamic_shared(), a.x + 1, true);\n"
         "    tn_copy_commit();\n"
         "    tn_copy_wait<0>();\n"
         "}\n",
         {"cp.async of 8 bytes"}},
        {64,
         256,
         "{\n"
         "    uint32_t *s = (uint32_t *)tn_dynamic_shared();\n"
         "    s[threadIdx.x] = threadIdx.x;\n"
         "    a.y[threadIdx.x] = s[63 - threadIdx.x];\n"
         "}\n",
         {"race", "into dynamic shared memory"}},
    };
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) {
        r = *state;
        args a = make_args(r, NULL);
        assert_int_not_equal(run_shared(r, kernel(r, fault[i].body), &a, fault[i].threads, fault[i].shared),
                             0);
        rig_reported(r, fault[i].says[0], fault[i].says[1], NULL);
        rig_close(state);
        rig_open(state);
    }
}

/* ---- conversions ---- */

SIM_TEST(conversions)
{
    uint32_t x[WORDS] = {0}, y[WORDS];
    const float value[16] = {1.0f,
                             1.0f + 0x1p-11f,
                             1.0f + 0x1.8p-11f,
                             -3.14159f,
                             1e-30f,
                             INFINITY,
                             1e30f,
                             0.1f,
                             NAN,
                             -INFINITY,
                             tn_test_float(0x7fffffff),
                             tn_test_float(0x7f7fffff),
                             -0x1p-149f,
                             0,
                             0x1.fffffep-1f,
                             -0x1.801ffep3f};
    for (int i = 0; i < 32; i++) x[i] = tn_test_bits(value[i % 16]);
    run(r,
        "{\n"
        "    uint32_t hi, lo, i = threadIdx.x;\n"
        "    const float x = __uint_as_float(a.x[i]);\n"
        "    tn_split_tf32(x, hi, lo);\n"
        "    a.y[i] = hi, a.y[32 + i] = lo;\n"
        "    a.y[64 + i] = tn_pack_f16(x, 2.0f), a.y[96 + i] = tn_pack_bf16(x, 2.0f);\n"
        "    a.y[128 + i] = __float_as_uint(tn_exp2_fast(tn_log2_fast(4.0f)));\n"
        "}\n",
        x, y);
    assert_int_equal(y[1], tn_test_bits(1.0f + 0x1p-10f)); /* a tie goes away from zero */
    for (int i = 0; i < 16; i++) {                         /* of both, products look at the upper 19 bits */
        const double hi = tn_test_float(y[i]), lo = tn_test_float(y[32 + i] & 0xffffe000u);
        assert_int_equal(y[i] & 0x1fff, 0);
        if (isnan(value[i]))
            assert_true(isnan(hi) || isnan(lo));
        else if (fabsf(value[i]) > 0x1.ffep127f)
            assert_true(isinf(hi) && lo == 0 && (hi < 0) == (value[i] < 0));
        else
            assert_true(fabs(hi + lo - (double)value[i]) <=
                        0x1p-22 * fabs((double)value[i]) + 0x1p-136); /* a denormal has fewer digits */
        if (isnan(value[i])) continue;
        assert_int_equal(y[64 + i], 0x40000000u | tn_f32_to_f16(value[i]));
        assert_int_equal(y[96 + i], 0x40000000u | tn_f32_to_bf16(value[i]));
        assert_true(fabsf(tn_test_float(y[128 + i]) - 4.0f) < 1e-5f);
    }
}

RUN_TESTS(NULL, NULL)
