/* test_subgradients.c - gradients where there is a choice: kinks, ties, zeros, NaN; the choice is PyTorch's.
 *
 * Each row gives operands, the result and the gradients of the result's sum. Values were worked out from
 * PyTorch's documented conventions. Read first: ROWS. */
#include "tests/one_bench.h"

typedef struct row {
    const char *name;
    int n;
    double x[4], y[4], gx[4], gy[4]; /* y unused: gy is not looked at */
    bool two;
} row;

/* X(what, the operator, how many elements, x, y, the gradients of x and y, whether y is used) */
/* clang-format off */
#define ROWS(X) \
    X("relu", tn_relu(x), 4, {-1, 0, -0.0, 2}, {0}, {0, 0, 0, 1}, {0}, false) \
    X("relu of NaN", tn_relu(x), 2, {NAN, 1}, {0}, {1, 1}, {0}, false) \
    X("abs of NaN", tn_abs(x), 2, {NAN, -1}, {0}, {0, -1}, {0}, false) \
    X("abs", tn_abs(x), 3, {-2, 0, 2}, {0}, {-1, 0, 1}, {0}, false) \
    X("leaky_relu", tn_leaky_relu(x, 0.25), 3, {-1, 0, 1}, {0}, {0.25, 0.25, 1}, {0}, false) \
    X("elu", tn_elu(x, 0.5), 3, {-200, 0, 500}, {0}, {0, 0.5, 1}, {0}, false) \
    X("elu far down", tn_elu(x, 0.5), \
      2, {-8, -17}, {0}, {0.5 * 3.3546262790e-4, 0.5 * 4.1399377188e-8}, {0}, false) \
    X("expm1 far down", tn_expm1(x), \
      3, {-8, -17, -0.0}, {0}, {3.3546262790e-4, 4.1399377188e-8, 1}, {0}, false) \
    X("clamp of NaN", tn_clamp(x, -1, 1), 3, {NAN, 0.5, INFINITY}, {0}, {0, 1, 0}, {0}, false) \
    X("clamp from below", tn_clamp(x, -1, NAN), 4, {NAN, -1, -2, INFINITY}, {0}, {0, 0, 0, 1}, {0}, false) \
    X("clamp at its ends", tn_clamp(x, -1, 1), 4, {-2, -1, 1, 3}, {0}, {0, 0, 0, 0}, {0}, false) \
    X("sign", tn_sign(x), 3, {-2, 0, 2}, {0}, {0, 0, 0}, {0}, false) \
    X("floor", tn_floor(x), 3, {-2, 0, 2.5}, {0}, {0, 0, 0}, {0}, false) \
    X("sqrt of 0", tn_sqrt(x), 2, {0, 4}, {0}, {INFINITY, 0.25}, {0}, false) \
    X("square of 0", tn_pow_scalar(x, 2), 3, {0, -1, 3}, {0}, {0, -2, 6}, {0}, false) \
    X("0^1.5", tn_pow_scalar(x, 1.5), 2, {0, 4}, {0}, {0, 3}, {0}, false) \
    X("0^0 and 0^2", tn_pow(x, y), 3, {0, 0, 1}, {0, 2, 5}, {0, 0, 5}, {-INFINITY, 0, 0}, true) \
    X("maximum of equals", tn_maximum(x, y), 3, {1, 2, 3}, {1, 1, 4}, {0.5, 1, 0}, {0.5, 0, 1}, true) \
    X("minimum of equals", tn_minimum(x, y), 3, {1, 2, 3}, {1, 1, 4}, {0.5, 0, 1}, {0.5, 1, 0}, true) \
    X("max of equals", tn_max(x, TN_ALL, false), 4, {3, 1, 3, 2}, {0}, {0.5, 0, 0.5, 0}, {0}, false) \
    X("min of equals", tn_min(x, TN_ALL, false), \
      4, {1, 1, 3, 1}, {0}, {1 / 3., 1 / 3., 0, 1 / 3.}, {0}, false) \
    X("prod with a zero", tn_prod(x, TN_ALL, false), 3, {2, 0, 5}, {0}, {0, 10, 0}, {0}, false) \
    X("prod with two zeros", tn_prod(x, TN_ALL, false), 3, {0, 0, 5}, {0}, {0, 0, 0}, {0}, false) \
    X("prod with NaN", tn_prod(x, TN_ALL, false), 4, {1, NAN, 0, 2}, {0}, {NAN, 0, NAN, NAN}, {0}, false) \
    X("prod that overflows", tn_prod(x, TN_ALL, false), 2, {1e20, -1e20}, {0}, {-1e20, 1e20}, {0}, false) \
    X("std of equals", tn_std(x, TN_ALL, false, 1), 3, {2, 2, 2}, {0}, {0, 0, 0}, {0}, false) \
    X("std of one", tn_std(x, TN_ALL, false, 0), 1, {2}, {0}, {0}, {0}, false) \
    X("std of tiny ones", tn_std(x, TN_ALL, false, 1), \
      2, {1e-24, 3e-24}, {0}, {-0.70710678, 0.70710678}, {0}, false) \
    X("std of huge ones", tn_std(x, TN_ALL, false, 1), \
      2, {1e20, 3e20}, {0}, {-0.70710678, 0.70710678}, {0}, false) \
    X("std far from 0", tn_std(x, TN_ALL, false, 1), \
      2, {1e8, 1e8 + 8}, {0}, {-0.70710678, 0.70710678}, {0}, false) \
    X("var of what leaves none", tn_var(x, TN_ALL, false, 4), \
      3, {1, 2, 4}, {0}, {-INFINITY, -INFINITY, INFINITY}, {0}, false) \
    X("rsqrt", tn_rsqrt(x), 3, {0, -0.0, 4}, {0}, {-INFINITY, INFINITY, -0.0625}, {0}, false) \
    X("max_pool2d of equals", tn_max_pool2d(tn_reshape(x, TN_SHAPE(1, 2, 2, 1)), 2, .stride = 2), \
      4, {1, 3, 3, 2}, {0}, {0, 1, 0, 0}, {0}, false) \
    X("logsumexp far out", tn_logsumexp(x, TN_ALL, false), 2, {90, 90}, {0}, {0.5, 0.5}, {0}, false) \
    X("logsumexp of -inf", tn_logsumexp(x, TN_ALL, false), 2, {-INFINITY, 0}, {0}, {0, 1}, {0}, false) \
    X("maximum_scalar at a tie", tn_maximum_scalar(x, 1), 3, {0, 1, 2}, {0}, {0, 0.5, 1}, {0}, false) \
    X("l1_loss of equals", tn_l1_loss(x, y, .reduction = TN_REDUCE_SUM), \
      3, {1, 2, 3}, {1, 1, 5}, {0, 1, -1}, {0, -1, 1}, true) \
    X("softplus far out", tn_softplus(x), 3, {-200, 0, 200}, {0}, {0, 0.5, 1}, {0}, false) \
    X("x * x", tn_mul(x, x), 2, {3, -2}, {0}, {6, -4}, {0}, false)
/* clang-format on */
static const row rows[] = {
#define X(what, made, ...) {what, __VA_ARGS__},
    ROWS(X)
#undef X
};

static tn_tensor *made_by(int which, tn_tensor *x, tn_tensor *y)
{
    enum { START = __COUNTER__ + 1 };
    switch (which + START) {
#define X(what, made, ...)                                                                                   \
    case __COUNTER__: return made;
        ROWS(X)
#undef X
    }
    return NULL;
}

static void expect_grad(const row *r, const char *where, const char *which, tn_tensor *g, const double *want)
{
    double got[4] = {0};
    if (!g) fail_msg("%s on %s: no gradient of %s", r->name, where, which);
    assert_int_equal(tn_read(g, TN_F64, got, (size_t)r->n * sizeof *got), 0);
    for (int i = 0; i < r->n; i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
        if (fabs(got[i] - want[i]) <= 1e-5 * fabs(want[i]) + 1e-30) continue;
        fail_msg("%s on %s: gradient of %s[%d] is %g, expected %g", r->name, where, which, i, got[i],
                 want[i]);
    }
}

static void check_row(const row *r, tn_session *s, const char *where)
{
    tn_tensor *in[2], *g[2] = {NULL};
    const int64_t shape[1] = {r->n};
    tn_step_begin(s);
    in[0] = tensor_of(s, r->x, TN_F32, 1, shape);
    in[1] = tensor_of(s, r->y, TN_F32, 1, shape);
    tn_requires_grad(in[0], true);
    tn_requires_grad(in[1], true);
    tn_tensor *out = made_by((int)(r - rows), in[0], in[1]);
    tn_grad(tn_sum(out, TN_ALL, false), r->two ? 2 : 1, in, g);
    if (tn_error(s)) fail_msg("%s on %s: %s", r->name, where, tn_error_text(s));
    expect_grad(r, where, "x", g[0], r->gx);
    if (r->two) expect_grad(r, where, "y", g[1], r->gy);
    tn_step_end(s);
}

TEST(table)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], B.ref, "ref");
        for (int k = 0; k < B.n; k++) check_row(&rows[i], B.subject[k], B.name[k]);
    }
}

/* where passes no gradient to what it did not choose, even if that was not finite. PyTorch multiplies the
 * chosen side's zero by an infinite derivative and answers NaN; so does this library, and the way round it is
 * to choose before the function is taken. */
TEST(choosing_before)
{
    tn_session *s = B.ref;
    const double v[2] = {-1, 2};
    tn_step_begin(s);
    tn_tensor *x = tensor_of(s, v, TN_F64, TN_SHAPE(2)), *g = NULL;
    tn_requires_grad(x, true);
    tn_tensor *positive = tn_gt_scalar(x, 0), *safe = tn_where(positive, x, tn_ones(s, TN_F64, TN_SHAPE(2)));
    tn_tensor *y = tn_where(positive, tn_log(safe), x);
    assert_int_equal(tn_grad(tn_sum(y, TN_ALL, false), 1, &x, &g), 0);
    double got[2];
    assert_int_equal(tn_read(g, TN_F64, got, sizeof got), 0);
    assert_true(got[0] == 1 && got[1] == 0.5);
    tn_step_end(s);
}

/* Equal elements have no deviation, not a small one, and its gradient is 0: the mean is that of the elements
 * to the last bit, however many there are and however many digits they have. Rows and columns of random
 * numbers, 64 at a time, whose extents each fuse in their own way. */
static void equal_elements(tn_session *s, const char *where, tn_dtype dtype, int axis, int64_t n, int seed)
{
    enum { LINES = 64, MOST = 300 };
    static double v[LINES * MOST], got[LINES * MOST];
    for (int64_t i = 0; i < LINES; i++)
        for (int64_t j = 0; j < n; j++)
            v[axis ? i * n + j : j * LINES + i] = 1000 * sin((double)(i + 1) * (double)(seed + 2));
    tn_step_begin(s);
    tn_tensor *g = NULL, *x = axis ? tensor_of(s, v, dtype, TN_SHAPE(LINES, n))
                                   : tensor_of(s, v, dtype, TN_SHAPE(n, LINES));
    tn_requires_grad(x, true);
    tn_tensor *std = tn_std(x, TN_AXES(axis), false, 0), *var = tn_var(x, TN_AXES(axis), false, 1);
    tn_grad(tn_sum(tn_add(std, var), TN_ALL, false), 1, &x, &g);
    if (tn_error(s)) fail_msg("%s: %s", where, tn_error_text(s));
    tn_tensor *all[] = {std, var, g};
    for (int k = 0; k < 3; k++) {
        const size_t count = (size_t)(k < 2 ? LINES : LINES * n);
        assert_int_equal(tn_read(all[k], TN_F64, got, count * sizeof *got), 0);
        for (size_t i = 0; i < count; i++)
            if (got[i] != 0)
                fail_msg("%s, %s of %d equal %s along axis %d: %g", where,
                         (const char *[]){"std", "var", "gradient"}[k], (int)n, tn_dtype_name(dtype), axis,
                         got[i]);
    }
    tn_step_end(s);
}

TEST(spread_of_equal_elements)
{
    for (int i = 0; i < 8; i++) {
        const int64_t n = (const int64_t[]){3, 5, 49, 6, 7, 11, 100, 299}[i];
        const tn_dtype dtype = i % 4 == 3 ? TN_F16 : i % 2 ? TN_F64 : TN_F32;
        for (int axis = 0; axis < 2; axis++) {
            equal_elements(B.ref, "ref", dtype, axis, n, i);
            for (int k = 0; k < B.n; k++) equal_elements(B.subject[k], B.name[k], dtype, axis, n, i);
        }
    }
}

/* What is derived once more where the first derivative has a case of its own: by x, of the gradient's sum with
 * weights. */
static void derived_twice(tn_session *s, const char *where)
{
    static const double weight[3] = {1, 2, 4}, equal[3] = {2, 2, 2}, at_zero[3] = {0, 0, 0};
    const struct {
        const char *what;
        const double *x;
        double want; /* before the weight */
    } twice[] = {{"std of equals", equal, 0}, {"mish at 0", at_zero, 0.64},
                 {"x^0 at 0", at_zero, 0},    {"softplus at 0", at_zero, 0.25},
                 {"silu at 0", at_zero, 0.5}, {"gelu at 0", at_zero, 0.79788456},
                 {"x^2 at 0", at_zero, 2},    {"abs at 0", at_zero, 0}};
    for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
        const int64_t shape[1] = {3};
        double got[3];
        tn_step_begin(s);
        tn_tensor *x = tensor_of(s, twice[i].x, TN_F32, 1, shape), *g, *h;
        tn_requires_grad(x, true);
        tn_tensor *y[] = {tn_std(x, TN_ALL, false, 1),
                          tn_mish(x),
                          tn_pow_scalar(x, 0),
                          tn_softplus(x),
                          tn_silu(x),
                          tn_gelu(x),
                          tn_pow_scalar(x, 2),
                          tn_mul(x, tn_abs(x))};
        tn_grad(tn_sum(y[i], TN_ALL, false), 1, &x, &g);
        tn_grad(tn_sum(tn_mul(g, tensor_of(s, weight, TN_F32, 1, shape)), TN_ALL, false), 1, &x, &h);
        if (tn_error(s) || tn_read(h, TN_F64, got, sizeof got))
            fail_msg("%s on %s: %s", twice[i].what, where, tn_error_text(s));
        for (int k = 0; k < 3; k++)
            if (!(fabs(got[k] - twice[i].want * weight[k]) <= 1e-6))
                fail_msg("%s on %s: second derivative %g, expected %g", twice[i].what, where, got[k],
                         twice[i].want * weight[k]);
        tn_step_end(s);
    }
}

TEST(second_derivatives)
{
    derived_twice(B.ref, "ref");
    for (int k = 0; k < B.n; k++) derived_twice(B.subject[k], B.name[k]);
}

RUN_TESTS(open_bench, close_bench)
