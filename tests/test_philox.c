/* test_philox.c - random numbers against published vectors and plain arithmetic, and the 16-bit formats
 * against src/core/dtype.c.
 *
 * Read first: test_known_answers. */

#define TN_NO_MACROS /* the prelude has its own tn_exp, ... */
#include "tests/test.h"
#include "tests/long/ulp_error.h"
#include "../src/core/dtype.h"
#include "../src/device/prelude/math.h"
#include "../src/device/prelude/philox.h"
#include "../src/device/prelude/half.h"

static uint64_t join(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }

/* The reference vectors that accompany the paper: counter, key, output. */
TEST(test_known_answers)
{
    static const uint32_t v[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e,
         0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t w[4];
        tn_philox_block(join(v[i][4], v[i][5]), join(v[i][2], v[i][3]), join(v[i][0], v[i][1]), w);
        assert_memory_equal(w, &v[i][6], sizeof w);
    }
}

/* The definition once more, written as in the paper, with none of the prelude's shortcuts. */
static uint32_t plain(uint64_t seed, uint64_t draw, uint64_t index)
{
    uint64_t block = index / 4;
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)draw, (uint32_t)(draw >> 32)};
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                            (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return c[index % 4];
}

TEST(test_fill)
{
    static const uint64_t starts[] = {
        0, 1, 2, 3, 4, 1021, 0x3fffffffeu, 0x7ffffffffffffff0u, UINT64_MAX - 1027};
    static const int counts[] = {0, 1, 2, 3, 4, 5, 7, 31, 64, 1000, 1024};
    static uint32_t w[1026];
    for (unsigned s = 0; s < sizeof starts / sizeof *starts; s++)
        for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
            uint64_t seed = 0x0123456789abcdefu * (s + 1), draw = join(c, s);
            memset(w, 0xa5, sizeof w);
            tn_philox_fill(seed, draw, starts[s], counts[c], w + 1);
            for (int i = 0; i < counts[c]; i++) {
                assert_int_equal(w[i + 1], plain(seed, draw, starts[s] + (uint64_t)i));
                assert_int_equal(w[i + 1], tn_philox_u32(seed, draw, starts[s] + (uint64_t)i));
            }
            assert_int_equal(w[0], 0xa5a5a5a5u);
            assert_int_equal(w[counts[c] + 1], 0xa5a5a5a5u);
        }
}

TEST(test_uniform_and_dropout)
{
    assert_true(tn_uniform(0) == 0 && tn_uniform(0xff) == 0 && tn_uniform(0x100) == 0x1p-24f);
    assert_true(tn_uniform(0xffffffffu) == 1 - 0x1p-24f && tn_uniform(0x80000000u) == 0.5f);
    static const double ps[] = {0, 1e-12, 0x1p-32, 0.1, 0.5, 0.9, 1 - 0x1p-32, 1};
    static const uint32_t us[] = {0,          1,          2,          0x19999998, 0x19999999,
                                  0x1999999a, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    for (unsigned i = 0; i < sizeof ps / sizeof *ps; i++)
        for (unsigned j = 0; j < sizeof us / sizeof *us; j++)
            assert_int_equal(tn_dropped(us[j], ps[i]), (double)us[j] < floor(ps[i] * 4294967296.0));
    assert_true(!tn_dropped(0, -1.0) && tn_dropped(0xffffffffu, 2.0) && !tn_dropped(0, NAN));
}

static double exact_normal(uint32_t a, uint32_t b, int second)
{
    double u = ((double)(a >> 8) + 1) / 16777216,
           v = 2 * 3.14159265358979323846 * ((double)(b >> 8) / 16777216);
    return sqrt(-2 * log(u)) * (second ? sin(v) : cos(v));
}

TEST(test_normal)
{
    enum { N = 1 << 18 };
    float *z = malloc(N * sizeof *z);
    assert_non_null(z);
    double sum = 0, squares = 0, worst = 0;
    tn_normal_fill(42, 7, 0, N, z);
    for (int i = 0; i < N; i++) {
        uint64_t pair = (uint64_t)i & ~UINT64_C(1);
        double e = exact_normal(plain(42, 7, pair), plain(42, 7, pair + 1), i & 1);
        worst = fmax(worst, fabs((double)z[i] - e));
        sum += (double)z[i];
        squares += (double)z[i] * (double)z[i];
    }
    assert_true(worst <= 1e-6);
    assert_true(fabs(sum / N) < 0.01 && fabs(squares / N - 1) < 0.02);

    /* The corners: the smallest and largest u, every eighth turn and its neighbours. */
    static const uint32_t as[] = {0, 0xff, 0x100, 0x1000, 0x7fffffff, 0xfffffe00, 0xffffffff};
    for (unsigned i = 0; i < sizeof as / sizeof *as; i++)
        for (uint32_t eighth = 0; eighth < 8; eighth++)
            for (uint32_t d = 0; d < 9; d++) {
                uint32_t b = (eighth << 29) + (d - 4) * 256;
                float z0, z1;
                tn_normal_pair(as[i], b, &z0, &z1);
                assert_true(fabs((double)z0 - exact_normal(as[i], b, 0)) <= 1e-6);
                assert_true(fabs((double)z1 - exact_normal(as[i], b, 1)) <= 1e-6);
            }

    /* Any window of the sequence is the same numbers. */
    for (uint64_t first = 0; first < 9; first++)
        for (int64_t n = 0; n < 600; n += 37) {
            float part[600 + 1];
            part[n] = 12345;
            tn_normal_fill(42, 7, first, n, part);
            assert_memory_equal(part, z + first, (size_t)n * sizeof *part);
            assert_true(part[n] == 12345);
            if (n) assert_true(part[n - 1] == tn_philox_normal(42, 7, first + (uint64_t)n - 1));
        }
    free(z);
}

TEST(test_widen)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = tn_half_to_f32((tn_half){h}), b = tn_bfloat16_to_f32((tn_bfloat16){h});
        float ef = tn_f16_to_f32(h), eb = tn_bf16_to_f32(h);
        assert_true(isnan(ef) ? isnan(f) : tn_test_bits(f) == tn_test_bits(ef));
        assert_true(isnan(eb) ? isnan(b) : tn_test_bits(b) == tn_test_bits(eb));
        if (isnan(ef))
            assert_true(isnan(tn_half_to_f32(tn_f32_to_half(f))));
        else
            assert_int_equal(tn_f32_to_half(f).bits, h);
        if (isnan(eb))
            assert_true(isnan(tn_bfloat16_to_f32(tn_f32_to_bfloat16(b))));
        else
            assert_int_equal(tn_f32_to_bfloat16(b).bits, h);
    }
}

static void check_narrow(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    if (isnan(x)) {
        assert_true(isnan(tn_half_to_f32(tn_f32_to_half(x))));
        assert_true(isnan(tn_bfloat16_to_f32(tn_f32_to_bfloat16(x))));
    } else {
        assert_int_equal(tn_f32_to_half(x).bits, tn_f32_to_f16(x));
        assert_int_equal(tn_f32_to_bfloat16(x).bits, tn_f32_to_bf16(x));
    }
}

TEST(test_narrow)
{
    for (uint64_t u = 0; u < 0x100000000u; u += 1021) check_narrow((uint32_t)u);
    for (uint32_t h = 0; h < 65536; h++) { /* each value, and half way to the next, with neighbours */
        uint32_t f = tn_test_bits(tn_f16_to_f32((uint16_t)h));
        for (uint32_t d = 0; d < 3; d++) {
            check_narrow(f + d - 1);
            check_narrow(f + 0x1000 + d - 1);
            check_narrow((h << 16) + d - 1);
            check_narrow((h << 16) + 0x8000 + d - 1);
        }
        float half_way = (float)(h & 0x7ff) * 0x1p-25f; /* between denormals */
        for (uint32_t d = 0; d < 3; d++) check_narrow(tn_test_bits(half_way) + d - 1);
    }
}

RUN_TESTS(NULL, NULL)
