/* test_promotion.c - values of operands of two dtypes, and of 16 bits that a step widens. Which dtype a result
 * has is compared with PyTorch's tables in test_golden.c. Read first: add_all. */
#include "check.h"

static const tn_dtype order[8] = {TN_F32, TN_F16, TN_BF16, TN_F64, TN_I32, TN_I64, TN_U8, TN_BOOL};

/* Every pair of dtypes on every device: the conversion and the arithmetic, wrapping included. */
static void add_all(tn_session *s, void *user, int *n, tn_tensor **out)
{
    int i = *(const int *)user;
    static const double a[4] = {200, 3, 0, 77}, b[4] = {100, 1, 1, 0};
    tn_tensor *x = tensor_of(s, a, order[i], 1, (const int64_t[]){4});
    for (int j = 0; j < 8; j++) {
        tn_tensor *y = tensor_of(s, b, order[j], 1, (const int64_t[]){4});
        out[(*n)++] = tn_add(x, y);
        out[(*n)++] = tn_where(tn_gt(x, y), x, y);
    }
}

static void casts(tn_session *s, void *user, int *n, tn_tensor **out)
{
    int i = *(const int *)user;
    static const double a[6] = {1.75, 3, 0, 77.25, 200, 0.5};
    tn_tensor *x = tensor_of(s, a, order[i], 1, (const int64_t[]){6});
    for (int j = 0; j < 8; j++) out[(*n)++] = tn_cast(x, order[j]);
}

TEST(values)
{
    bench b;
    char text[640];
    bench_open(&b);
    for (int i = 0; i < 8; i++) {
        if (!check_program(&b, add_all, &i, NULL, text)) fail_msg("%s: %s", tn_dtype_name(order[i]), text);
        if (!check_program(&b, casts, &i, NULL, text))
            fail_msg("cast of %s: %s", tn_dtype_name(order[i]), text);
    }
    assert_int_equal(b.undecided, 0);
    bench_close(&b);
}

/* Values of 16 bits that a step makes are rounded alike wherever they are widened: a cast there and back
 * takes digits away in each mode, and a norm of a norm has the gradient of the reference, which what forward
 * has rounded and backward has not does not give: of a row with one element above zero it nearly cancels. */
TEST(widened)
{
    static const float x[3] = {-0.09716796875f, -0.09710693359375f, -0.093994140625f}, big[2] = {0.1f, 70000};
    static const double weight[3] = {-0.27517211, -0.84659255, -1.14283073},
                        bias[3] = {-1.5190469, 0.88468444, -0.31553549},
                        factor[3] = {45.875, -27.09375, -19.703125};
    const int64_t three[1] = {3}, row[2] = {1, 3};
    const tn_dtype halves[2] = {TN_F16, TN_BF16};
    for (int h = 0; h < 2; h++) {
        float rounded[2][2], gradient[2][3];
        for (int mode = 0; mode < 2; mode++) {
            tn_session *s = tn_open(.device = TN_CPU, .mode = mode ? TN_EAGER : TN_FUSED, .log = quiet);
            tn_step_begin(s);
            tn_tensor *v = tn_from(s, big, TN_F32, TN_SHAPE(2));
            tn_tensor *left = tn_sub(v, tn_cast(tn_cast(v, halves[h]), TN_F32));
            assert_int_equal(tn_read(left, TN_F32, rounded[mode], sizeof rounded[mode]), 0);
            tn_tensor *leaf = tn_cast(tn_from(s, x, TN_F32, 2, row), halves[h]);
            tn_requires_grad(leaf, true);
            tn_tensor *w = tensor_of(s, weight, TN_F32, 1, three), *b = tensor_of(s, bias, TN_F32, 1, three);
            tn_tensor *y = tn_layer_norm(tn_relu(tn_layer_norm(leaf, w, b)), w, b);
            tn_backward(
                tn_sum(tn_mul(tn_cast(y, TN_F32), tensor_of(s, factor, TN_F32, 1, three)), TN_ALL, false));
            assert_int_equal(tn_read(tn_gradient(leaf), TN_F32, gradient[mode], sizeof gradient[mode]), 0);
            tn_step_end(s);
            assert_int_equal(tn_close(s), 0);
        }
        assert_memory_equal(rounded[0], rounded[1], sizeof rounded[0]);
        assert_true(rounded[0][0] != 0);
        for (int i = 0; i < 3; i++)
            if (fabsf(gradient[0][i] - gradient[1][i]) > 0.05f * fabsf(gradient[1][i]))
                fail_msg("gradient %d is %g fused and %g in eager mode", i, (double)gradient[0][i],
                         (double)gradient[1][i]);
    }
}

enum { ROWS = 6, WIDTH = 40 };

/* The gradient through a norm of what a step has made of a moved view of 16 bits: one chain for each seed. */
static void chain(tn_mode mode, int seed, float *gradient)
{
    static const double mean[] = {0, 20, 100, 0.01}, scale[] = {1, 0.01, 30};
    const tn_dtype half = seed % 2 ? TN_F16 : TN_BF16;
    rng g = {(uint64_t)seed + 1};
    float x[ROWS * WIDTH], factor[ROWS * WIDTH], w[WIDTH], b[WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) {
        const double at = mean[seed / 2 % 4], by = i % 7 == 2 ? 0 : scale[seed / 8 % 3];
        x[i] = (float)(at + by * ((double)rng_below(&g, 1000) / 1000 - 0.5));
        factor[i] = (float)rng_below(&g, 1000) / 1000 - 0.5f;
    }
    for (int i = 0; i < WIDTH; i++) {
        w[i] = (float)rng_below(&g, 1000) / 1000 + 0.5f;
        b[i] = (float)rng_below(&g, 1000) / 1000 - 0.5f;
    }
    tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .log = quiet);
    tn_step_begin(s);
    tn_tensor *leaf = tn_cast(tn_from(s, x, TN_F32, TN_SHAPE(WIDTH, ROWS)), half), *made = NULL;
    tn_requires_grad(leaf, true);
    tn_tensor *v = tn_slice(tn_transpose(leaf, 0, 1), 0, 1, ROWS, 1),
              *weight = tn_from(s, w, TN_F32, TN_SHAPE(WIDTH)),
              *bias = tn_from(s, b, TN_F32, TN_SHAPE(WIDTH));
    switch (seed % 4) {
    case 0: made = tn_gelu(tn_layer_norm(v, weight, bias)); break;
    case 1: made = tn_relu(tn_add(v, v)); break;
    case 2: made = tn_softmax(v, -1); break;
    default: made = tn_cast(tn_cast(tn_mul(v, v), TN_F32), half);
    }
    tn_tensor *y = seed / 3 % 2 ? tn_rms_norm(made, weight) : tn_layer_norm(made, weight, bias);
    tn_tensor *f = tn_slice(tn_from(s, factor, TN_F32, TN_SHAPE(ROWS, WIDTH)), 0, 1, ROWS, 1);
    tn_backward(tn_sum(tn_mul(tn_cast(y, TN_F32), f), TN_ALL, false));
    assert_int_equal(tn_read(tn_gradient(leaf), TN_F32, gradient, sizeof x), 0);
    tn_step_end(s);
    assert_int_equal(tn_close(s), 0);
}

TEST(chains)
{
    for (int seed = 0; seed < 48; seed++) {
        float fused[ROWS * WIDTH], eager[ROWS * WIDTH];
        double apart = 0, size = 1e-30;
        chain(TN_FUSED, seed, fused);
        chain(TN_EAGER, seed, eager);
        for (int i = 0; i < ROWS * WIDTH; i++) {
            if (!isfinite(fused[i]) || !isfinite(eager[i]))
                fail_msg("seed %d: element %d is not finite", seed, i);
            apart += pow((double)fused[i] - eager[i], 2);
            size += pow(eager[i], 2);
        }
        if (sqrt(apart / size) > 0.05)
            fail_msg("seed %d: fused and eager are %.3g apart", seed, sqrt(apart / size));
    }
}

RUN_TESTS(NULL, NULL)
