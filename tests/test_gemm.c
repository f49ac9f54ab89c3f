/* test_gemm.c - products on the CPU against sums in f64: shapes, strides, batches, epilogues, dtypes, both
 * implementations, every instruction set, any number of threads. Read first: check_case. */
#include "cpu_lib_rig.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "src/core/sanitized.h"

typedef struct operands {
    tn_gemm g;
    int64_t a_size, b_size, c_size;
    void *a, *b, *bias, *c;
} operands;

/* A product of these extents with random strides; transposed operands and padded rows as the bits of `how`
 * say: 1 A read along columns, 2 B so, 4 gaps between rows, 8 batch of A broadcast, 16 batch of B broadcast,
 * 32 bias, 64 relu, 128 heads side by side in a row as attention has them. */
static operands make(tn_dtype d, int64_t m, int64_t n, int64_t k, int64_t b0, int64_t b1, int how)
{
    operands o = {.g = {.dtype = d, .m = m, .n = n, .k = k}};
    tn_gemm *g = &o.g;
    int64_t gap = how & 4 ? 1 + up_to(9) : 0;
    int64_t ar = how & 1 ? k : m, ac = how & 1 ? m : k, br = how & 2 ? n : k, bc = how & 2 ? k : n;
    int64_t lda = ac + gap, ldb = bc + 2 * gap, ldc = n + gap;
    bool heads = how & 128;
    g->batch_ndim = b0 > 1 || b1 > 1 ? 2 : 0;
    g->batch[0] = b0, g->batch[1] = b1;
    /* heads: [b0, rows, b1, columns], else [b0, b1, rows, columns] */
    int64_t asz = ar * lda, bsz = br * ldb, csz = m * ldc;
    g->a_batch[1] = heads ? lda : asz, g->b_batch[1] = heads ? ldb : bsz, g->c_batch[1] = heads ? ldc : csz;
    g->a_batch[0] = b1 * asz, g->b_batch[0] = b1 * bsz, g->c_batch[0] = b1 * csz;
    if (heads) lda *= b1, ldb *= b1, ldc *= b1;
    if (how & 8) g->a_batch[0] = g->a_batch[1] = 0;
    if (how & 16) g->b_batch[0] = 0;
    g->a_row = how & 1 ? 1 : lda, g->a_col = how & 1 ? lda : 1;
    g->b_row = how & 2 ? 1 : ldb, g->b_col = how & 2 ? ldb : 1;
    g->c_row = ldc;
    o.a_size = b0 * b1 * asz, o.b_size = b0 * b1 * bsz, o.c_size = b0 * b1 * csz;
    g->a = o.a = random_array(d, o.a_size);
    g->b = o.b = random_array(d, o.b_size);
    g->bias = o.bias = how & 32 ? random_array(d, n) : NULL;
    g->c = o.c = malloc((size_t)(o.c_size + 1) * tn_dtype_size(d));
    if (how & 64) g->epilogue = TN_EPI_RELU;
    return o;
}

static void drop(operands *o) { free(o->a), free(o->b), free(o->bias), free(o->c); }

static void compare(const operands *o, const char *what)
{
    const tn_gemm *g = &o->g;
    bool *written = calloc((size_t)o->c_size + 1, 1);
    int64_t b0 = g->batch_ndim ? g->batch[0] : 1, b1 = g->batch_ndim ? g->batch[1] : 1;
    /* Of a large product every so manieth element, in all rows and columns. */
    int64_t step = 1 + b0 * b1 * g->m * g->n * g->k / 4000000, turn = 0;
    while (g->n % step == 0 && step > 1) step++;
    for (int64_t e = 0; e < b0 * b1; e++) {
        int64_t e0 = e / b1, e1 = e % b1;
        int64_t a = e0 * g->a_batch[0] + e1 * g->a_batch[1], b = e0 * g->b_batch[0] + e1 * g->b_batch[1];
        int64_t c = e0 * g->c_batch[0] + e1 * g->c_batch[1];
        for (int64_t i = 0; i < g->m; i++) {
            for (int64_t j = 0; j < g->n; j++) {
                written[c + i * g->c_row + j] = true;
                if (turn++ % step) continue;
                double sum = g->bias ? get(g->dtype, g->bias, j) : 0, size = fabs(sum);
                for (int64_t p = 0; p < g->k; p++) {
                    double t = get(g->dtype, g->a, a + i * g->a_row + p * g->a_col) *
                               get(g->dtype, g->b, b + p * g->b_row + j * g->b_col);
                    sum += t, size += fabs(t);
                }
                if (g->epilogue == TN_EPI_RELU && sum < 0) sum = 0;
                int64_t at = c + i * g->c_row + j;
                double got = get(g->dtype, g->c, at);
                double tol = tn_dtype_is_float(g->dtype)
                                 ? size * sum_eps(g->dtype) * (4 + 2 * sqrt((double)g->k)) +
                                       fabs(sum) * store_eps(g->dtype) * 1.001 +
                                       (g->dtype == TN_F16) * 0x1p-24
                                 : 0;
                if (g->dtype == TN_U8) sum = (uint8_t)(int64_t)sum;
                if (!(fabs(got - sum) <= tol))
                    fail_msg("%s: entry %d C[%d,%d] is %.9g, not %.9g (tolerance %.3g)", what, (int)e, (int)i,
                             (int)j, got, sum, tol);
            }
        }
    }
    size_t es = tn_dtype_size(g->dtype);
    for (int64_t i = 0; i < o->c_size; i++) {
        for (size_t q = 0; !written[i] && q < es; q++)
            if (((unsigned char *)o->c)[(size_t)i * es + q] != 0xA5)
                fail_msg("%s: element %d between the rows of C was written", what, (int)i);
    }
    free(written);
}

static int call(tn_cpu_lib *lib, tn_pool *pool, void *user, tn_device_stats *stats, tn_errbuf *err)
{
    return tn_cpu_gemm(lib, pool, &((operands *)user)->g, stats, err);
}

static void judge(void *user, int impl, const tn_device_stats *stats, const char *what)
{
    (void)impl, (void)stats;
    compare(user, what);
}

/* All implementations give the right numbers, each the same bits on 1, 2 and 3 threads and once more. */
static void check_case(tn_dtype d, int64_t m, int64_t n, int64_t k, int64_t b0, int64_t b1, int how)
{
    operands o = make(d, m, n, k, b0, b1, how);
    char name[120];
    snprintf(name, sizeof name, "%s %dx%dx%d batch %dx%d how %d", tn_dtype_name(d), (int)m, (int)n, (int)k,
             (int)b0, (int)b1, how);
    same_bits(call, judge, &o, o.c, (size_t)o.c_size * tn_dtype_size(d), name);
    drop(&o);
}

TEST(test_f32_shapes)
{
    static const int shapes[][3] = {
        {1, 1, 1},    {1, 17, 33},  {5, 1, 9},      {12, 32, 384},   {13, 33, 385}, {48, 10, 784},
        {7, 300, 2},  {64, 64, 64}, {96, 100, 31},  {100, 257, 129}, {1, 1000, 64}, {257, 65, 40},
        {3, 90, 401}, {8, 50, 77},  {300, 320, 70}, {2, 3, 1000},    {33, 48, 768}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 8; how++)
            check_case(TN_F32, shapes[i][0], shapes[i][1], shapes[i][2], 1, 1, how | (int)up_to(4) << 5);
}

/* Large enough that each way of cutting is taken: B in place and packed, tiles of uneven heights, all of B in
 * one piece and in several, odd ends of each. */
TEST(test_f32_large)
{
    for (int t = 0; t < 4; t++) {
        check_case(TN_F32, 400, 256, 200, 1, 1, t | 96);
        check_case(TN_F32, 130, 530, 410, 1, 1, t | 4 | 96);
    }
    check_case(TN_F32, 600, 64, 900, 1, 1, 1);
    for (int t = 0; t < 4; t++) check_case(TN_F32, 517, 101, 391, 1, 1, t | 4 | 96);
    check_case(TN_F32, 131, 500, 780, 1, 1, 1);
    for (int t = 0; t < 4; t++) check_case(TN_F32, 530, 1601, 70, 1, 1, t | 96);
    check_case(TN_F32, 1024, 260, 50, 1, 1, 1 | 96);
    check_case(TN_F32, 1024, 260, 50, 1, 1, 3 | 96);
    check_case(TN_F32, 256, 300, 40000, 1, 1, 2 | 32);
    check_case(TN_F32, 1024, 256, 10000, 1, 1, 1 | 64);
}

TEST(test_f32_batches)
{
    for (int how = 0; how < 256; how++) {
        int64_t m = 1 + up_to(70), n = 1 + up_to(70), k = 1 + up_to(70);
        check_case(TN_F32, m, n, k, 1 + up_to(4), 2 + up_to(4), how);
    }
    check_case(TN_F32, 64, 64, 32, 12, 4, 128 | 2);
    check_case(TN_F32, 64, 32, 64, 12, 4, 128);
    check_case(TN_F32, 64, 32, 64, 12, 4, 128 | 1);
    check_case(TN_F32, 260, 260, 260, 1, 2, 2);
    check_case(TN_F32, 260, 260, 260, 2, 1, 0);
}

TEST(test_dtypes)
{
    static const tn_dtype types[] = {TN_F64, TN_F16, TN_BF16, TN_I32, TN_I64, TN_U8};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (int i = 0; i < 24; i++) {
            int how = (int)up_to(256);
            if (!tn_dtype_is_float(types[t])) how &= ~32;
            int64_t b = i % 3 ? 1 : 3;
            check_case(types[t], 1 + up_to(90), 1 + up_to(90), 1 + up_to(i % 4 ? 100 : 800), b, b, how);
        }
    }
    check_case(TN_BF16, 200, 300, 400, 1, 1, 96);
    for (int i = 0; i < 6; i++) /* A transposed: whole and other numbers of lines and of eights */
        check_case(i % 2 ? TN_BF16 : TN_F16, 30 + up_to(70), 32 + up_to(40), 32 + up_to(60), 1, 1,
                   1 | 32 * (i % 4));
    check_case(TN_F16, 200, 300, 400, 1, 1, 96 | 2);
    check_case(TN_F64, 200, 300, 400, 1, 1, 96 | 1);
}

/* 16 bits, from views that begin at any number, be it half of a pair; odd extents, one of each; rows that are
 * all alike and numbers far from 0, whose sums grow. */
TEST(test_halves_of_hard_kinds)
{
    for (int i = 0; i < 90; i++) {
        const tn_dtype d = i % 3 ? TN_BF16 : TN_F16;
        const int64_t m = i % 7 ? 1 + up_to(60) : 1, n = i % 5 ? 1 + up_to(90) : 1,
                      k = i % 11 ? 1 + up_to(900) : 1;
        operands o = make(d, m, n, k + 1, 1, 1 + i % 2, (int)up_to(8) | (int)up_to(4) << 5);
        o.g.k = k;
        o.g.a = (const char *)o.a + o.g.a_col * 2, o.g.b = (const char *)o.b + o.g.b_row * 2;
        for (int64_t q = 0; i % 4 == 1 && q < o.a_size; q++) set(d, o.a, q, 8 + get(d, o.a, q) / 32);
        for (int64_t q = 0; i % 4 == 2 && q < o.b_size; q++) set(d, o.b, q, -0.75);
        char name[100];
        snprintf(name, sizeof name, "%s %dx%dx%d, kind %d", tn_dtype_name(d), (int)m, (int)n, (int)k, i % 4);
        same_bits(call, judge, &o, o.c, (size_t)o.c_size * 2, name);
        drop(&o);
    }
}

/* A processor that multiplies pairs takes denormals for 0: no result is larger for that, nor of another sign.
 */
TEST(test_denormals_of_bf16)
{
    operands o = make(TN_BF16, 20, 40, 33, 1, 1, 0);
    for (int64_t q = 0; q < o.a_size; q++) set(TN_BF16, o.a, q, (double)(1 + q % 100) * 0x1p-133);
    for (int64_t q = 0; q < o.b_size; q++) set(TN_BF16, o.b, q, 1);
    tn_cpu_lib *lib;
    tn_pool *pool;
    assert_int_equal(tn_cpu_lib_open(&lib), TN_OK);
    assert_int_equal(tn_pool_open(2, &pool), TN_OK);
    for (int im = 0; im < IMPLS; im++) {
        tn_cpu_lib_prefer(lib, impls[im]);
        memset(o.c, 0xA5, (size_t)o.c_size * 2);
        assert_int_equal(tn_cpu_gemm(lib, pool, &o.g, NULL, NULL), TN_OK);
        for (int64_t i = 0; i < 20; i++) {
            double sum = 0;
            for (int64_t p = 0; p < 33; p++) sum += get(TN_BF16, o.a, i * o.g.a_row + p);
            for (int64_t j = 0; j < 40; j++) {
                const double got = get(TN_BF16, o.c, i * o.g.c_row + j);
                assert_true(got >= 0 && got <= sum * (1 + 0x1p-7));
                if (impls[im] == TN_CPU_PLAIN) assert_true(got >= sum * (1 - 0x1p-7));
            }
        }
    }
    tn_cpu_lib_close(lib);
    tn_pool_close(pool);
    drop(&o);
}

typedef struct fixture {
    tn_cpu_lib *lib;
    tn_pool *pool;
    tn_errbuf err;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    return !f || tn_cpu_lib_open(&f->lib) || tn_pool_open(2, &f->pool);
}

static int teardown(void **state)
{
    fixture *f = *state;
    tn_cpu_lib_close(f->lib);
    tn_pool_close(f->pool);
    free(f);
    return 0;
}

TEST_IN(test_empty, setup, teardown)
{
    fixture *f = *state;
    static const tn_dtype types[] = {TN_F32, TN_F64, TN_F16, TN_BF16};
    for (int t = 0; t < 4; t++) {
        for (int how = 0; how < 128; how += 32) {
            operands o = make(types[t], 3, 5, 0, 2, 2, how | 4);
            memset(o.c, 0xA5, (size_t)o.c_size * tn_dtype_size(types[t]));
            assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &o.g, NULL, &f->err), TN_OK);
            compare(&o, "k = 0");
            drop(&o);
        }
    }
    for (int z = 0; z < 3; z++) {
        operands o = make(TN_F32, z == 0 ? 0 : 4, z == 1 ? 0 : 4, 4, 2, 2, 32);
        if (z == 2) o.g.batch[1] = 0;
        unsigned char before = 0xA5;
        memset(o.c, before, (size_t)o.c_size * 4 + 4);
        assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &o.g, NULL, &f->err), TN_OK);
        for (int64_t i = 0; i < o.c_size * 4; i++) assert_int_equal(((unsigned char *)o.c)[i], before);
        drop(&o);
    }
}

/* A stride along an extent of 1 carries no information, whatever stands there. */
TEST_IN(test_meaningless_strides, setup, teardown)
{
    fixture *f = *state;
    for (size_t im = 0; im < IMPLS; im++) {
        tn_cpu_lib_prefer(f->lib, impls[im]);
        for (int i = 0; i < 4; i++) {
            operands o = make(TN_F32, i == 0 ? 1 : 20, i == 1 ? 1 : 30, i >= 2 ? 1 : 40, 1, 1, 0);
            if (i == 0) o.g.a_row = 0;
            if (i == 1) o.g.b_col = 77;
            if (i == 2) o.g.a_col = 9999, o.g.b_row = 0;
            if (i == 3) o.g.a_row = 1, o.g.a_col = 0, o.g.b_row = -5;
            memset(o.c, 0xA5, (size_t)o.c_size * 4);
            assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &o.g, NULL, &f->err), TN_OK);
            compare(&o, "extent 1");
            drop(&o);
        }
    }
    tn_cpu_lib_prefer(f->lib, TN_CPU_AUTO);
}

TEST_IN(test_nan_and_inf, setup, teardown)
{
    fixture *f = *state;
    static const tn_dtype types[] = {TN_F32, TN_F64, TN_F16, TN_BF16};
    for (int t = 0; t < 4; t++) {
        for (size_t im = 0; im < IMPLS; im++) {
            for (int batch = 1; batch <= 3; batch += 2) {
                tn_cpu_lib_prefer(f->lib, impls[im]);
                operands o = make(types[t], 40, 40, 40, 1, batch, 64);
                set(types[t], o.a, 7 * o.g.a_row + 3, NAN);
                set(types[t], o.a, 9 * o.g.a_row + 3, INFINITY);
                assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &o.g, NULL, &f->err), TN_OK);
                for (int j = 0; j < 40; j++) {
                    assert_true(isnan(get(types[t], o.c, 7 * o.g.c_row + j)));
                    assert_true(isfinite(get(types[t], o.c, 8 * o.g.c_row + j)));
                    double v = get(types[t], o.c, 9 * o.g.c_row + j);
                    assert_true(isinf(v) || v == 0 || isnan(v));
                }
                drop(&o);
            }
        }
    }
    tn_cpu_lib_prefer(f->lib, TN_CPU_AUTO);
}

TEST_IN(test_errors, setup, teardown)
{
    fixture *f = *state;
    operands o = make(TN_F32, 4, 5, 6, 1, 1, 32);
    tn_gemm g = o.g;
    g.dtype = TN_BOOL;
    assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &g, NULL, &f->err), TN_E_DTYPE);
    assert_string_equal(f->err.text, "gemm: bool is not supported");
    g.dtype = TN_I32;
    assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &g, NULL, &f->err), TN_E_DTYPE);
    assert_string_equal(f->err.text, "gemm: a bias of i32 is not supported");
    g = o.g, g.a_row = 12, g.a_col = 2;
    assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &g, NULL, &f->err), TN_E_ARG);
    assert_non_null(strstr(f->err.text, "strides of A (12, 2)"));
    g = o.g, g.n = -1;
    assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &g, NULL, NULL), TN_E_ARG);
    g = o.g, g.batch_ndim = TN_GEMM_BATCH_DIMS + 1;
    assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &g, NULL, &f->err), TN_E_ARG);
    drop(&o);
}

/* Every instruction set this processor has, every height and width of tile, both layouts of A; of one vector
 * also heights beyond a packed block's, whose rows begin anywhere in threes. */
TEST(test_kernels)
{
    static const tn_dtype types[] = {TN_F32, TN_F64, TN_BF16};
    for (int t = 0; t < 3; t++) {
        const tn_dtype type = types[t], d = tn_gemm_compute(type);
        const tn_gemm_kernel *kn;
        for (int i = 0; (kn = tn_gemm_kernel_at(type, i)) != NULL; i++) {
            const int per = kn->per;
            for (int rows = 1; rows <= kn->tall; rows++) {
                const bool tall = rows > kn->mr;
                for (int cols = 1; cols <= (tall ? kn->nr / 2 : 2 * kn->nr + 1); cols += 1 + cols % 3) {
                    enum { THREE = TN_GEMM_APART };
                    const int by_k = (rows + cols) % 2, up = (kn->tall + THREE) / THREE * THREE,
                              row = by_k ? 1 : kn->a_ld,
                              column = !by_k  ? 1
                                       : tall ? up
                                              : kn->mr;
                    int64_t at[TN_GEMM_AT];
                    for (int q = 0; q < TN_GEMM_AT; q++) at[q] = (up - THREE - q * THREE) * row;
                    int kc = 1 + (rows * 7 + cols) % 40, ld = cols + 3;
                    int panels = (cols + kn->nr - 1) / kn->nr;
                    void *a = random_array(type, per * (int64_t)up * kn->a_ld);
                    void *b = random_array(type, per * (int64_t)panels * kc * kn->nr);
                    void *c = random_array(d, rows * ld), *bias = random_array(d, cols);
                    double *old = malloc((size_t)(rows * ld) * sizeof *old);
                    for (int q = 0; q < rows * ld; q++) old[q] = get(d, c, q);
                    tn_gemm_block blk = {.rows = rows,
                                         .a_by_k = by_k,
                                         .a_step = !tall  ? 0
                                                   : by_k ? column
                                                          : row,
                                         .a_at = tall ? at : NULL,
                                         .cols = cols,
                                         .kc = kc,
                                         .a = a,
                                         .b = b,
                                         .ldb = kn->nr,
                                         .b_step = (int64_t)kc * kn->nr,
                                         .c = c,
                                         .ldc = ld,
                                         .accumulate = cols % 2,
                                         .bias = rows % 2 ? bias : NULL,
                                         .relu = rows % 3 == 0,
                                         .next = cols % 5 ? a : NULL,
                                         .next_rows = cols % 7,
                                         .next_bytes = 40 * (rows % 4),
                                         .next_ld = 64,
                                         .next_tile = rows % 2};
                    kn->block(&blk);
                    for (int r = 0; r < rows; r++) {
                        const int64_t first = tall ? at[r / THREE] + r % THREE * row : r * row;
                        for (int j = 0; j < ld; j++) {
                            double want = old[r * ld + j];
                            if (j < cols) {
                                want = (cols % 2 ? want : 0) + (rows % 2 ? get(d, bias, j) : 0);
                                for (int p = 0; p < kc * per; p++) {
                                    const int q = p / per, h = p % per;
                                    double x = get(type, a, (first + q * column) * per + h);
                                    want += x * get(type, b,
                                                    ((j / kn->nr * kc + q) * kn->nr + j % kn->nr) * per + h);
                                }
                                if (rows % 3 == 0 && want < 0) want = 0;
                            }
                            if (fabs(get(d, c, r * ld + j) - want) > (t == 1 ? 1e-13 : 2e-5))
                                fail_msg("%s: rows %d cols %d kc %d: C[%d,%d]", kn->name, rows, cols, kc, r,
                                         j);
                        }
                    }
                    free(a), free(b), free(c), free(bias), free(old);
                }
            }
        }
        assert_true(type == TN_BF16 || tn_gemm_kernel_at(type, 0) != NULL);
    }
}

/* The same for few rows, whose B stands as it is. */
TEST(test_few_rows)
{
    static const tn_dtype types[] = {TN_F32, TN_F64, TN_BF16};
    for (int t = 0; t < 3; t++) {
        const tn_dtype type = types[t], d = tn_gemm_compute(type);
        const tn_gemm_kernel *kn;
        for (int i = 0; (kn = tn_gemm_kernel_at(type, i)) != NULL; i++)
            for (int q = 0; q < 60; q++) {
                const int rows = 1 + q % 9, cols = 1 + q % 7, k = 1 + q * 3;
                void *a = random_array(type, rows * (k + 1)), *b = random_array(type, cols * (k + 2));
                void *c = random_array(d, rows * cols), *bias = random_array(d, cols);
                kn->dots(&(tn_gemm_dots){rows, cols, k, a, b, k + 1, k + 2, c, cols, q % 2 ? bias : NULL,
                                         q % 3 == 0});
                for (int j = 0; j < rows * cols; j++) {
                    double want = q % 2 ? get(d, bias, j % cols) : 0;
                    for (int p = 0; p < k; p++)
                        want += get(type, a, j / cols * (k + 1) + p) * get(type, b, j % cols * (k + 2) + p);
                    if (q % 3 == 0 && want < 0) want = 0;
                    if (fabs(get(d, c, j) - want) > (t == 1 ? 1e-13 : 5e-5))
                        fail_msg("%s: rows %d cols %d k %d: element %d", kn->name, rows, cols, k, j);
                }
                free(a), free(b), free(c), free(bias);
            }
    }
}

/* More shapes than the library keeps primitives for, and then the first again. */
TEST_IN(test_many_shapes, setup, teardown)
{
    fixture *f = *state;
    for (int i = 0; i < 230; i++) {
        operands o = make(TN_F32, 3 + i % 15, 4 + i / 15 % 16, 5, 1, 3, 0);
        memset(o.c, 0xA5, (size_t)o.c_size * 4);
        assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &o.g, NULL, &f->err), TN_OK);
        compare(&o, "many shapes");
        drop(&o);
    }
    operands o = make(TN_F32, 3, 4, 5, 1, 3, 0);
    memset(o.c, 0xA5, (size_t)o.c_size * 4);
    assert_int_equal(tn_cpu_gemm(f->lib, f->pool, &o.g, NULL, &f->err), TN_OK);
    compare(&o, "first again");
    drop(&o);
}

/* Whichever allocation fails, the answer is an error code, and the next call works. */
TEST(test_allocation_failures)
{
    for (int c = 0; c < 3; c++) {
        for (int im = 0; im < IMPLS; im++) {
            bool done = false;
            for (long n = 0; !done; n++) {
                assert_true(n < 100);
                tn_pool *pool;
                tn_cpu_lib *lib = NULL;
                assert_int_equal(tn_pool_open(2, &pool), TN_OK);
                operands o = c == 0   ? make(TN_F32, 300, 40, 50, 1, 1, 2)
                             : c == 1 ? make(TN_F32, 20, 30, 40, 2, 3, 0)
                                      : make(TN_F16, 100, 40, 30, 1, 1, 0);
                memset(o.c, 0xA5, (size_t)o.c_size * tn_dtype_size(o.g.dtype));
                tn_errbuf err = {""};
                tn_alloc_fail_after(n);
                int s = tn_cpu_lib_open(&lib);
                if (lib) {
                    tn_cpu_lib_prefer(lib, impls[im]);
                    s = tn_cpu_gemm(lib, pool, &o.g, NULL, &err);
                }
                tn_alloc_fail_after(-1);
                if (s) {
                    assert_int_equal(s, TN_E_NOMEM);
                    if (lib) {
                        assert_true(err.text[0] != 0);
                        assert_int_equal(tn_cpu_gemm(lib, pool, &o.g, NULL, &err), TN_OK);
                    }
                }
                if (lib) compare(&o, "after a failed allocation");
                done = !s && n > 8;
                drop(&o);
                tn_cpu_lib_close(lib);
                tn_pool_close(pool);
            }
        }
    }
}

/* The host takes all memory there is before a product that has been made ready: exit status 0 where it is
 * right. */
static int run_out(int how, int64_t m, int64_t n, int64_t k, int64_t batches)
{
    tn_pool *pool;
    tn_cpu_lib *lib = NULL;
    tn_errbuf err = {""};
    operands o = make(TN_F32, m, n, k, 1, batches, how);
    float *first = malloc((size_t)o.c_size * sizeof *first), *c = o.c;
    if (!first || tn_pool_open(2, &pool) || tn_cpu_lib_open(&lib)) return 1;
    tn_cpu_lib_prefer(lib, TN_CPU_PLAIN);
    if (tn_cpu_gemm(lib, pool, &o.g, NULL, &err)) return 2;
    tn_cpu_lib_prefer(lib, TN_CPU_AUTO);
    if (tn_cpu_ready(lib, pool, &o.g, NULL, &err)) return 2;
    memcpy(first, c, (size_t)o.c_size * sizeof *first);
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld", &pages) != 1 || fclose(f)) return 3;
    rlim_t now = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
    if (setrlimit(RLIMIT_AS, &(struct rlimit){now, now})) return 4;
    for (size_t bytes = 1 << 20; bytes >= 16; bytes /= 2)
        while (malloc(bytes)) {
        }
    if (tn_cpu_gemm(lib, pool, &o.g, NULL, &err)) return 5;
    for (int64_t i = 0; i < o.c_size; i++)
        if (fabsf(first[i] - c[i]) > 1e-3f) return 6;
    return 0;
}

TEST(test_memory_runs_out)
{
#if defined(TN_ASAN)
    skip(); /* it takes more addresses than any limit leaves */
#endif
    static const int64_t shape[][4] = {{300, 200, 300, 1}, {192, 1024, 1024, 1}, {64, 64, 64, 6}};
    for (int how = 0; how < 3; how++) {
        for (int i = 0; i < 3; i++) {
            const int64_t *x = shape[i];
            pid_t pid = fork();
            if (!pid) _exit(run_out(how, x[0], x[1], x[2], x[3]));
            int status = 0;
            assert_int_equal(waitpid(pid, &status, 0), pid);
            if (status) fail_msg("%d of kind %d: status %#x", i, how, (unsigned)status);
        }
    }
}

RUN_TESTS(NULL, NULL)
