/* test_cuda_products.c - products and convolutions of the CUDA device on the simulated GPU, compared with the
 * CPU's: shapes, strides, batches, epilogues, dtypes; what cuBLASLt does and what our own kernels do.
 * Read first: run_gemm, then configs. */
#include "cuda_rig.h"

#include <math.h>

#include "conv_desc.h"
#include "src/core/convert.h"
#include "src/core/dtype.h"

static rng dice;

static double next_number(void) { return (double)rng_below(&dice, 17) / 8 - 1; }

static double slack(tn_dtype d)
{
    return d == TN_F64 ? 1e-12 : d == TN_F16 ? 2e-3 : d == TN_BF16 ? 1.6e-2 : d == TN_F32 ? 1e-5 : 0;
}

typedef struct rig {
    tn_device *cuda, *cpu;
} rig;

static int open_both(void **state)
{
    static rig r;
    tn_errbuf err = {""};
    rig_open(state);
    r.cuda = device_open();
    if (tn_cpu_open(&(tn_device_options){.threads = 1}, &r.cpu, &err)) fail_msg("%s", err.text);
    *state = &r;
    dice.state = 1;
    return 0;
}

static int close_both(void **state)
{
    rig *r = *state;
    device_close(r->cuda);
    r->cpu->close(r->cpu);
    return 0;
}

/* An operand on both devices. */
typedef struct operand {
    void *host, *device;
    int64_t n;
} operand;

static operand make(rig *r, tn_dtype d, int64_t n, bool random)
{
    operand o = {.n = n};
    size_t bytes = (size_t)n * tn_dtype_size(d);
    o.host = calloc(1, bytes + 64);
    o.device = r->cuda->alloc(r->cuda, bytes);
    /* integers are eighths */
    const bool real = tn_dtype_is_float(d);
    for (int64_t i = 0; i < n; i++) {
        double v = random ? next_number() : 0.25;
        if (!real) v = v * 8 + (d == TN_U8 ? 8 : 0);
        tn_convert((char *)o.host + (size_t)i * tn_dtype_size(d), d, &v, TN_F64, 1);
    }
    assert_int_equal(r->cuda->upload(r->cuda, o.device, o.host, bytes), 0);
    return o;
}

static void drop(rig *r, operand *o)
{
    free(o->host);
    r->cuda->free(r->cuda, o->device);
}

static void compare(rig *r, tn_dtype d, const operand *o, double scale, const char *what)
{
    size_t bytes = (size_t)o->n * tn_dtype_size(d);
    void *back = malloc(bytes + 1);
    if (r->cuda->download(r->cuda, back, o->device, bytes))
        fail_msg("%s: %s; %s", what, r->cuda->failure.text, sim.report());
    for (int64_t i = 0; i < o->n; i++) {
        const size_t at = (size_t)i * tn_dtype_size(d);
        double a, b;
        tn_convert(&a, TN_F64, (char *)back + at, d, 1);
        tn_convert(&b, TN_F64, (char *)o->host + at, d, 1);
        if (!(fabs(a - b) <= slack(d) * (scale + fabs(b))))
            fail_msg("%s, %s: element %lld is %.9g, on the CPU %.9g", what, tn_dtype_name(d), (long long)i, a,
                     b);
    }
    free(back);
}

/* ---- products ---- */

/* `g` has extents, strides and the sizes of the operands in elements; pointers are set here. */
static void run_gemm(rig *r, tn_gemm g, int64_t na, int64_t nb, int64_t nc, bool bias, const char *what)
{
    operand a = make(r, g.dtype, na, true), b = make(r, g.dtype, nb, true), c = make(r, g.dtype, nc, false),
            v = make(r, g.dtype, g.n + 1, true);
    tn_errbuf err = {""};
    g.a = a.host, g.b = b.host, g.c = c.host, g.bias = bias ? v.host : NULL;
    if (r->cpu->gemm(r->cpu, &g, &err)) fail_msg("cpu, %s: %s", what, err.text);
    g.a = a.device, g.b = b.device, g.c = c.device, g.bias = bias ? v.device : NULL;
    for (int round = 0; round < 2; round++) /* the second takes what the first has pinned */
        if (r->cuda->gemm(r->cuda, &g, &err)) fail_msg("cuda, %s: %s", what, err.text);
    compare(r, g.dtype, &c, (double)g.k, what);
    drop(r, &a), drop(r, &b), drop(r, &c), drop(r, &v);
}

static const tn_dtype floats[] = {TN_F32, TN_F64, TN_F16, TN_BF16};

TEST_IN(test_orders, open_both, close_both)
{
    rig *r = *state;
    static const int64_t size[][3] = {{5, 7, 9},    {1, 16, 8}, {16, 1, 8}, {8, 16, 1},
                                      {33, 17, 40}, {1, 1, 3},  {1, 1, 1}};
    char what[64];
    for (int f = 0; f < 4; f++)
        for (int s = 0; s < 7; s++)
            for (int way = 0; way < 4; way++)
                for (int epilogue = 0; epilogue < 4; epilogue++) {
                    int64_t m = size[s][0], n = size[s][1], k = size[s][2];
                    tn_gemm g = gemm_desc(floats[f], m, n, k);
                    g.epilogue = epilogue & 1 ? TN_EPI_RELU : TN_EPI_NONE;
                    g.c_row = n + 2;
                    g.a_row = way & 1 ? 1 : k + 3;
                    g.a_col = way & 1 ? m + 1 : 1;
                    g.b_row = way & 2 ? 1 : n;
                    g.b_col = way & 2 ? k + 4 : 1;
                    snprintf(what, sizeof what, "%lld x %lld x %lld, way %d, epilogue %d", (long long)m,
                             (long long)n, (long long)k, way, epilogue);
                    run_gemm(r, g, (m + 3) * (k + 3), (n + 4) * (k + 4), m * (n + 2), epilogue & 2, what);
                }
    assert_true(counters().matmuls > 0);
}

TEST_IN(test_batches, open_both, close_both)
{
    rig *r = *state;
    enum { M = 6, N = 5, K = 7 };
    tn_gemm g = gemm_desc(TN_F32, M, N, K), v = g;
    v.batch_ndim = 1, v.batch[0] = 3, v.a_batch[0] = M * K, v.b_batch[0] = K * N, v.c_batch[0] = M * N;
    run_gemm(r, v, 3 * M * K, 3 * K * N, 3 * M * N, true, "a batch");
    v.b_batch[0] = 0;
    uint64_t before = counters().matmuls;
    run_gemm(r, v, 3 * M * K, K * N, 3 * M * N, false, "a batch that shares B");
    assert_int_equal(counters().matmuls - before, 2);
    v.a_batch[0] = 0, v.b_batch[0] = K * N;
    run_gemm(r, v, M * K, 3 * K * N, 3 * M * N, false, "a batch that shares A");
    v = g, v.batch_ndim = 3; /* [2, 3, 2], B broadcast along the middle, A's first two swapped */
    int64_t batch[3] = {2, 3, 2}, sa[3] = {2 * M * K, 4 * M * K, M * K}, sb[3] = {2 * K * N, 0, K * N},
            sc[3] = {6 * M * N, 2 * M * N, M * N};
    for (int i = 0; i < 3; i++)
        v.batch[i] = batch[i], v.a_batch[i] = sa[i], v.b_batch[i] = sb[i], v.c_batch[i] = sc[i];
    run_gemm(r, v, 12 * M * K, 4 * K * N, 12 * M * N, true, "three extents");
    v = g, v.batch_ndim = 2; /* heads of attention: [batch, heads] of a [batch, time, heads, width] */
    v.batch[0] = 2, v.batch[1] = 3, v.a_row = 3 * K, v.a_batch[0] = 3 * K * M, v.a_batch[1] = K;
    v.b_row = 3 * N, v.b_batch[0] = 3 * K * N, v.b_batch[1] = N, v.c_batch[0] = 3 * M * N,
    v.c_batch[1] = M * N;
    run_gemm(r, v, 6 * M * K, 6 * K * N, 6 * M * N, false, "heads");
    v = g, v.batch_ndim = 1, v.batch[0] = 0;
    run_gemm(r, v, M * K, K * N, M * N, false, "an empty batch");
}

TEST_IN(test_own_kernel, open_both, close_both)
{
    rig *r = *state;
    static const tn_dtype whole[] = {TN_I32, TN_I64, TN_U8};
    tn_gemm g = {.m = 35, .n = 40, .k = 37, .a_row = 37, .a_col = 1, .b_row = 1, .b_col = 37, .c_row = 40};
    uint64_t before = counters().matmuls;
    for (int i = 0; i < 3; i++) {
        g.dtype = whole[i];
        run_gemm(r, g, 35 * 37, 37 * 40, 35 * 40, false, "integers");
    }
    tn_gemm v = g;
    v.dtype = TN_F32, v.batch_ndim = 2, v.batch[0] = v.batch[1] = 2, v.b_batch[1] = 0, v.b_batch[0] = 0;
    v.m = 3, v.k = 0, v.a_batch[0] = v.a_batch[1] = 0, v.c_batch[1] = 120, v.c_batch[0] = 240;
    for (int f = 0; f < 4; f++) {
        v.dtype = floats[f];
        run_gemm(r, v, 1, 1, 480, true, "a depth of 0");
    }
    assert_int_equal(counters().matmuls, before);
    tn_errbuf err = {""};
    tn_gemm bad = {.dtype = TN_I32, .m = 1, .n = 1, .k = 1, .bias = &bad};
    assert_int_equal(r->cuda->gemm(r->cuda, &bad, &err), TN_E_DTYPE);
    bad.m = -1;
    assert_int_equal(r->cuda->gemm(r->cuda, &bad, &err), TN_E_ARG);
    sim.set("matmul", 1);
    g.dtype = TN_F32;
    operand o = make(r, TN_F32, 2000, true);
    g.a = g.b = o.device, g.c = o.device;
    assert_int_equal(r->cuda->gemm(r->cuda, &g, &err), TN_E_DEVICE);
    assert_non_null(strstr(err.text, "cublasLtMatmul: cuBLASLt status 13"));
    drop(r, &o);
}

/* Whatever cuBLASLt has no algorithm for, with an epilogue or at all, is computed otherwise. */
TEST_IN(test_what_cublaslt_has_not, open_both, close_both)
{
    rig *r = *state;
    for (int one_in = 1; one_in <= 3; one_in++) {
        const uint64_t before = counters().matmuls;
        sim.set("unsupported", one_in);
        for (int i = 0; i < 48; i++) {
            const int64_t m = 3 + 5 * one_in, n = 8 + i % 4, k = 4 + i / 4 % 3;
            tn_gemm g = gemm_desc(floats[i % 4], m, n, k);
            g.epilogue = i / 12 & 1 ? TN_EPI_RELU : TN_EPI_NONE;
            run_gemm(r, g, m * k, k * n, m * n, i / 24, "a product that cuBLASLt may not have");
        }
        assert_true(one_in == 1 ? counters().matmuls == before : counters().matmuls > before);
    }
}

/* ---- convolutions ---- */

/* n h w c oc kh kw groups, stride, pad (top bottom left right), dilation */
static const int configs[][16] = {
    {2, 6, 6, 4, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},  {3, 7, 5, 3, 5, 3, 2, 1, 2, 1, 0, 1, 2, 0, 1, 1},
    {2, 5, 5, 8, 6, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1},  {2, 5, 5, 8, 6, 1, 1, 1, 2, 2, 0, 0, 0, 0, 1, 1},
    {2, 6, 6, 8, 12, 3, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 6, 6, 6, 6, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 9, 9, 4, 4, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2},  {1, 8, 7, 5, 3, 2, 3, 1, 3, 2, 1, 0, 0, 1, 2, 1},
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1},  {2, 4, 4, 6, 4, 1, 1, 2, 1, 1, 0, 0, 0, 0, 1, 1},
    {2, 6, 6, 16, 8, 2, 2, 1, 3, 3, 0, 0, 0, 0, 1, 1},
};
enum { CONFIGS = sizeof configs / sizeof *configs };

static void run_conv(rig *r, tn_conv2d_desc c, bool bias, const char *what)
{
    int64_t nx = c.n * c.h * c.w * c.c, ny = c.n * c.oh * c.ow * c.oc,
            nw = c.oc * c.kh * c.kw * c.c / c.groups;
    int64_t in0 = c.pass == TN_CONV_DATA_GRAD ? ny : nx, in1 = c.pass == TN_CONV_WEIGHT_GRAD ? ny : nw;
    int64_t out = c.pass == TN_CONV_FORWARD ? ny : c.pass == TN_CONV_DATA_GRAD ? nx : nw;
    operand a = make(r, c.dtype, in0, true), b = make(r, c.dtype, in1, true),
            o = make(r, c.dtype, out, false), v = make(r, c.dtype, c.oc, true);
    tn_errbuf err = {""};
    c.in0 = a.host, c.in1 = b.host, c.out = o.host, c.bias = bias ? v.host : NULL;
    if (r->cpu->conv2d(r->cpu, &c, &err)) fail_msg("cpu, %s: %s", what, err.text);
    c.in0 = a.device, c.in1 = b.device, c.out = o.device, c.bias = bias ? v.device : NULL;
    if (r->cuda->conv2d(r->cuda, &c, &err)) fail_msg("cuda, %s: %s", what, err.text);
    double terms = c.pass == TN_CONV_WEIGHT_GRAD ? (double)(c.n * c.oh * c.ow) : (double)(c.kh * c.kw * c.c);
    compare(r, c.dtype, &o, terms, what);
    drop(r, &a), drop(r, &b), drop(r, &o), drop(r, &v);
}

TEST_IN(test_convolutions, open_both, close_both)
{
    rig *r = *state;
    static const char *const pass[] = {"forward", "data gradient", "weight gradient"};
    char what[64];
    for (int f = 0; f < 4; f++)
        for (int i = 0; i < CONFIGS; i++)
            for (int p = 0; p < 3; p++) {
                tn_conv2d_desc c = conv_desc_of(floats[f], configs[i]);
                c.pass = (tn_conv_pass)p;
                snprintf(what, sizeof what, "configuration %d, %s", i, pass[p]);
                run_conv(r, c, false, what);
                if (p) continue;
                c.epilogue = TN_EPI_RELU;
                run_conv(r, c, true, what);
            }
}

/* Windows of the whole batch that would not fit the workspace: it goes in parts. */
TEST_IN(test_parts, open_both, close_both)
{
    rig *r = *state;
    tn_cuda *cuda = tn_cuda_of(r->cuda);
    cuda->workspace_limit = 11000;
    for (int i = 0; i < 6; i++) {
        tn_conv2d_desc c = conv_desc_of(i / 3 ? TN_BF16 : TN_F32, configs[0]);
        c.pass = (tn_conv_pass)(i % 3);
        c.n = 5;
        size_t whole = (size_t)(c.n * c.oh * c.ow * c.kh * c.kw * c.c) * tn_dtype_size(c.dtype);
        assert_true(whole > cuda->workspace_limit);
        run_conv(r, c, false, "parts");
    }
    assert_true(cuda->workspace_bytes <= cuda->workspace_limit + 4096); /* and the f32 sums of its weights */
}

TEST_IN(test_bad_convolutions, open_both, close_both)
{
    rig *r = *state;
    tn_errbuf err = {""};
    tn_conv2d_desc c = conv_desc_of(TN_F32, configs[0]), v = c;
    v.groups = 3;
    assert_int_equal(r->cuda->conv2d(r->cuda, &v, &err), TN_E_SHAPE);
    v = c, v.oh++;
    assert_int_equal(r->cuda->conv2d(r->cuda, &v, &err), TN_E_SHAPE);
    v = c, v.stride[0] = 0;
    assert_int_equal(r->cuda->conv2d(r->cuda, &v, &err), TN_E_ARG);
    v = c, v.dtype = TN_I32;
    assert_int_equal(r->cuda->conv2d(r->cuda, &v, &err), TN_E_DTYPE);
    operand w = make(r, TN_F32, 8 * 9 * 4, true);
    v = c, v.n = 0, v.pass = TN_CONV_WEIGHT_GRAD, v.out = w.device;
    assert_int_equal(r->cuda->conv2d(r->cuda, &v, &err), 0);
    memset(w.host, 0, (size_t)w.n * 4);
    compare(r, TN_F32, &w, 0, "no images");
    drop(r, &w);
}

/* ---- precision ---- */

/* 1 + 2^-12 has more digits than TF32 holds. */
static float product_of_fine_numbers(tn_precision said, const char *set)
{
    const float x[4] = {1 + 0x1p-12f, 0, 0, 1}, y[4] = {1, 0, 0, 1};
    float z[4];
    if (set) setenv("TENSOR_PRECISION", set, 1);
    tn_session *s = tn_open(.device = TN_CUDA, .log = log_keep, .precision = said);
    unsetenv("TENSOR_PRECISION");
    assert_non_null(s);
    tn_step_begin(s);
    tn_tensor *a = tn_from(s, x, TN_F32, 2, (int64_t[]){2, 2}),
              *b = tn_from(s, y, TN_F32, 2, (int64_t[]){2, 2});
    assert_int_equal(tn_read(tn_matmul(a, b), TN_F32, z, sizeof z), 0);
    tn_step_end(s);
    if (tn_close(s)) fail_msg("%s", logged);
    return z[0];
}

CUDA_TEST(test_precision)
{
    const float fine = 1 + 0x1p-12f;
    assert_true(product_of_fine_numbers(TN_PRECISION_F32, NULL) == fine);
    assert_true(product_of_fine_numbers(TN_PRECISION_F32, "f32") == fine);
    assert_true(product_of_fine_numbers(TN_PRECISION_TF32, NULL) == 1);
    assert_true(product_of_fine_numbers(TN_PRECISION_F32, "tf32") == 1);
    assert_true(product_of_fine_numbers(TN_PRECISION_TF32, "f32") == 1); /* the program's word comes first */
}

RUN_TESTS(NULL, NULL)
