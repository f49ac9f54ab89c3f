/* test_promotion.c - the dtype of every result, against PyTorch's tables as printed in the manual.
 *
 * Read first: `table`, which is torch.promote_types for the eight dtypes the library has. */
#include "check.h"

static const tn_dtype order[8] = {TN_F32, TN_F16, TN_BF16, TN_F64, TN_I32, TN_I64, TN_U8, TN_BOOL};
static const char *const table[8][8] = {
    /*           f32    f16    bf16    f64    i32    i64    u8     bool */
    /* f32 */ {"f32", "f32", "f32", "f64", "f32", "f32", "f32", "f32"},
    /* f16 */ {"f32", "f16", "f32", "f64", "f16", "f16", "f16", "f16"},
    /* bf16 */ {"f32", "f32", "bf16", "f64", "bf16", "bf16", "bf16", "bf16"},
    /* f64 */ {"f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64"},
    /* i32 */ {"f32", "f16", "bf16", "f64", "i32", "i64", "i32", "i32"},
    /* i64 */ {"f32", "f16", "bf16", "f64", "i64", "i64", "i64", "i64"},
    /* u8 */ {"f32", "f16", "bf16", "f64", "i32", "i64", "u8", "u8"},
    /* bool */ {"f32", "f16", "bf16", "f64", "i32", "i64", "u8", "bool"},
};

static tn_session *S;
static const double ONES[4] = {1, 0, 1, 1};

static tn_tensor *make(tn_dtype d) { return tensor_of(S, ONES, d, 1, (const int64_t[]){4}); }

static int setup(void **state)
{
    (void)state;
    S = tn_open(.device = TN_REF, .mode = TN_EAGER, .log = quiet);
    return S ? tn_step_begin(S) : -1;
}

static int teardown(void **state)
{
    (void)state;
    tn_step_end(S);
    return tn_close(S);
}

static void expect_dtype(tn_tensor *t, const char *want, const char *what, tn_dtype a, tn_dtype b)
{
    if (!t) fail_msg("%s of %s and %s: %s", what, tn_dtype_name(a), tn_dtype_name(b), tn_error_text(S));
    if (!strcmp(tn_dtype_name(tn_dtype_of(t)), want)) return;
    fail_msg("%s of %s and %s is %s, expected %s", what, tn_dtype_name(a), tn_dtype_name(b),
             tn_dtype_name(tn_dtype_of(t)), want);
}

/* Rows of type FLT make f32 of integers and bool; those of type NUM make i64 of bool. */
static const char *floating(const char *d) { return strchr("iub", d[0]) && strcmp(d, "bf16") ? "f32" : d; }
static const char *numeric(const char *d) { return strcmp(d, "bool") ? d : "i64"; }

TEST_IN(pairs, setup, teardown)
{
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            tn_dtype a = order[i], b = order[j];
            tn_tensor *x = make(a), *y = make(b), *c = make(TN_BOOL);
            const char *want = table[i][j];
            assert_string_equal(tn_dtype_name(tn_dtype_promote(a, b)), want);
            expect_dtype(tn_where(c, x, y), want, "where", a, b);
            expect_dtype(tn_add(x, y), want, "add", a, b);
            expect_dtype(tn_mul(x, y), want, "mul", a, b);
            expect_dtype(tn_maximum(x, y), want, "maximum", a, b);
            expect_dtype(tn_minimum(x, y), want, "minimum", a, b);
            expect_dtype(tn_sub(x, y), numeric(want), "sub", a, b);
            expect_dtype(tn_div(x, y), floating(want), "div", a, b);
            expect_dtype(tn_pow(x, y), floating(want), "pow", a, b);
            expect_dtype(tn_lt(x, y), "bool", "lt", a, b);
            expect_dtype(tn_logical_and(x, y), "bool", "logical_and", a, b);
            expect_dtype(tn_concat(2, (tn_tensor *[]){x, y}, 0), want, "concat", a, b);
            if (a == TN_BOOL || b == TN_BOOL) continue;
            expect_dtype(tn_matmul(x, y), want, "matmul", a, b);
            expect_dtype(tn_affine(tn_reshape(x, 2, (const int64_t[]){2, 2}),
                                   tn_reshape(y, 2, (const int64_t[]){2, 2}), tn_slice(x, 0, 0, 2, 1)),
                         want, "affine", a, b);
        }
    }
}

/* A C number takes the tensor's dtype unless its category is higher. */
TEST_IN(numbers, setup, teardown)
{
    static const struct {
        tn_dtype x;
        const char *with_int, *with_float;
    } want[] = {{TN_F32, "f32", "f32"}, {TN_F16, "f16", "f16"}, {TN_BF16, "bf16", "bf16"},
                {TN_F64, "f64", "f64"}, {TN_I32, "i32", "f32"}, {TN_I64, "i64", "f32"},
                {TN_U8, "u8", "f32"},   {TN_BOOL, "i64", "f32"}};
    for (int i = 0; i < 8; i++) {
        tn_tensor *x = make(want[i].x);
        expect_dtype(tn_add_scalar(x, 2), want[i].with_int, "add_scalar 2", want[i].x, TN_I64);
        expect_dtype(tn_mul_scalar(x, 2.5), want[i].with_float, "mul_scalar 2.5", want[i].x, TN_F64);
        expect_dtype(tn_rsub_scalar(x, 1.0f), want[i].with_float, "rsub_scalar 1.0f", want[i].x, TN_F32);
        expect_dtype(tn_div_scalar(x, 2), floating(want[i].with_int), "div_scalar 2", want[i].x, TN_I64);
        expect_dtype(tn_eq_scalar(x, 1), "bool", "eq_scalar 1", want[i].x, TN_I64);
    }
}

/* Operators of one tensor. NULL: the operator refuses the dtype. */
TEST_IN(single, setup, teardown)
{
    for (int i = 0; i < 8; i++) {
        tn_dtype d = order[i];
        const char *self = tn_dtype_name(d);
        bool whole = strcmp(floating(self), self) != 0;
        tn_tensor *x = make(d);
        expect_dtype(tn_exp(x), floating(self), "exp", d, d);
        expect_dtype(tn_sigmoid(x), floating(self), "sigmoid", d, d);
        expect_dtype(tn_neg(x), numeric(self), "neg", d, d);
        expect_dtype(tn_relu(x), numeric(self), "relu", d, d);
        expect_dtype(tn_square(x), numeric(self), "square", d, d);
        expect_dtype(tn_sign(x), self, "sign", d, d);
        expect_dtype(tn_clamp(x, -INFINITY, 1e30), numeric(self), "clamp", d, d);
        expect_dtype(tn_clamp(x, 0.5, 1), whole ? "f32" : self, "clamp to 0.5", d, d);
        expect_dtype(tn_isnan(x), "bool", "isnan", d, d);
        expect_dtype(tn_sum(x, TN_ALL, false), whole ? "i64" : self, "sum", d, d);
        expect_dtype(tn_prod(x, TN_ALL, false), whole ? "i64" : self, "prod", d, d);
        expect_dtype(tn_cumsum(x, 0), whole ? "i64" : self, "cumsum", d, d);
        expect_dtype(tn_max(x, TN_ALL, false), self, "max", d, d);
        expect_dtype(tn_mean(x, TN_ALL, false), floating(self), "mean", d, d);
        expect_dtype(tn_argmax(x, 0, false), "i64", "argmax", d, d);
        expect_dtype(tn_any(x, TN_ALL, false), "bool", "any", d, d);
        expect_dtype(tn_flip(x, TN_AXES(0)), self, "flip", d, d);
        expect_dtype(tn_tril(tn_reshape(x, 2, (const int64_t[]){2, 2}), 0), self, "tril", d, d);
        expect_dtype(tn_triu(tn_reshape(x, 2, (const int64_t[]){2, 2}), 1), self, "triu", d, d);
        expect_dtype(tn_pad(x, 0, 1, 1, 0), self, "pad", d, d);
        expect_dtype(tn_narrow(x, 0, 1, 2), self, "narrow", d, d);
        expect_dtype(tn_stack(2, (tn_tensor *[]){x, x}, 0), self, "stack", d, d);
        for (int j = 0; j < 8; j++)
            expect_dtype(tn_cast(x, order[j]), tn_dtype_name(order[j]), "cast", d, order[j]);
    }
}

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

/* The promoted arithmetic itself, by hand: 200 + 100 wraps in u8 and not in i32. */
TEST_IN(wrapping, setup, teardown)
{
    const double a[1] = {200}, b[1] = {100};
    tn_tensor *u = tensor_of(S, a, TN_U8, 1, (const int64_t[]){1}),
              *v = tensor_of(S, b, TN_U8, 1, (const int64_t[]){1});
    tn_tensor *w = tensor_of(S, b, TN_I32, 1, (const int64_t[]){1});
    assert_true(tn_item(tn_add(u, v)) == 44);
    assert_true(tn_item(tn_sub(v, u)) == 156);
    assert_true(tn_item(tn_add(u, w)) == 300);
    assert_true(tn_item(tn_add_scalar(u, 100)) == 44);
    assert_true(tn_item(tn_add_scalar(u, 100.0)) == 300);
    assert_true(tn_item(tn_sum(tn_concat(2, (tn_tensor *[]){u, v}, 0), TN_ALL, false)) == 300);
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
