/* test_special.c - each elementwise operator and its gradient at zeros, infinities, NaN, bounds, ties and at
 * the ends of f32, and reductions of rows with such elements, beside what PyTorch gives in f32
 * (tests/golden/special.safetensors).
 *
 * What is NaN or infinite must be it in both; of other numbers the relative error counts, but in rows of the
 * table with a number: there errors up to it are none. Start with `rows`. */
#include <float.h>

#include "golden.h"

typedef tn_tensor *special_fn(tn_tensor *x, tn_tensor *y);

#define FN(id, expression)                                                                                   \
    static tn_tensor *f_##id(tn_tensor *x, tn_tensor *y)                                                     \
    {                                                                                                        \
        (void)y;                                                                                             \
        return expression;                                                                                   \
    }
/* X(name in the file, identifier, expression, absolute error that is none). tanh and sigmoid are flat where
 * their gradient is small; ndtr is good to 1.2e-7 of 1, and gelu to that times x. */
#define ROWS_OF_ONE(X)                                                                                       \
    X("neg", neg, tn_neg(x), 0)                                                                              \
    X("abs", abs, tn_abs(x), 0)                                                                              \
    X("exp", exp, tn_exp(x), 0)                                                                              \
    X("log", log, tn_log(x), 0)                                                                              \
    X("log1p", log1p, tn_log1p(x), 0)                                                                        \
    X("expm1", expm1, tn_expm1(x), 1e-7)                                                                     \
    X("sqrt", sqrt, tn_sqrt(x), 0)                                                                           \
    X("rsqrt", rsqrt, tn_rsqrt(x), 0)                                                                        \
    X("reciprocal", reciprocal, tn_reciprocal(x), 0)                                                         \
    X("square", square, tn_square(x), 0)                                                                     \
    X("sin", sin, tn_sin(x), 1e-6)                                                                           \
    X("cos", cos, tn_cos(x), 1e-6)                                                                           \
    X("tanh", tanh, tn_tanh(x), 3e-7)                                                                        \
    X("erf", erf, tn_erf(x), 0)                                                                              \
    X("ndtr", ndtr, tn_ndtr(x), 1.2e-7)                                                                      \
    X("sigmoid", sigmoid, tn_sigmoid(x), 1.2e-7)                                                             \
    X("relu", relu, tn_relu(x), 0)                                                                           \
    X("floor", floor, tn_floor(x), 0)                                                                        \
    X("ceil", ceil, tn_ceil(x), 0)                                                                           \
    X("round", round, tn_round(x), 0)                                                                        \
    X("trunc", trunc, tn_trunc(x), 0)                                                                        \
    X("sign", sign, tn_sign(x), 0)                                                                           \
    X("silu", silu, tn_silu(x), 1e-6)                                                                        \
    X("gelu", gelu, tn_gelu(x), 1e-6)                                                                        \
    X("gelu_tanh", gelu_tanh, tn_gelu_tanh(x), 1e-6)                                                         \
    X("mish", mish, tn_mish(x), 1e-6)                                                                        \
    X("elu", elu, tn_elu(x, 1), 0)                                                                           \
    X("softplus", softplus, tn_softplus(x), 1e-7)                                                            \
    X("leaky_relu", leaky_relu, tn_leaky_relu(x, 0.25), 0)                                                   \
    X("clamp", clamp, tn_clamp(x, -1, 2), 0)                                                                 \
    X("clamp_low", clamp_low, tn_clamp(x, -1, NAN), 0)                                                       \
    X("clamp_high", clamp_high, tn_clamp(x, NAN, 2), 0)                                                      \
    X("pow_-3", pow_m3, tn_pow_scalar(x, -3.0), 0)                                                           \
    X("pow_-1", pow_m1, tn_pow_scalar(x, -1.0), 0)                                                           \
    X("pow_-0.5", pow_mh, tn_pow_scalar(x, -0.5), 0)                                                         \
    X("pow_0", pow_0, tn_pow_scalar(x, 0.0), 0)                                                              \
    X("pow_0.5", pow_h, tn_pow_scalar(x, 0.5), 0)                                                            \
    X("pow_1", pow_1, tn_pow_scalar(x, 1.0), 0)                                                              \
    X("pow_1.5", pow_1h, tn_pow_scalar(x, 1.5), 0)                                                           \
    X("pow_2", pow_2, tn_pow_scalar(x, 2.0), 0)                                                              \
    X("pow_3", pow_3, tn_pow_scalar(x, 3.0), 0)                                                              \
    X("pow_4", pow_4, tn_pow_scalar(x, 4.0), 0)
#define ROWS_OF_TWO(X)                                                                                       \
    X("add", add, tn_add(x, y), 0)                                                                           \
    X("sub", sub, tn_sub(x, y), 0)                                                                           \
    X("mul", mul, tn_mul(x, y), 0)                                                                           \
    X("div", div, tn_div(x, y), 0)                                                                           \
    X("pow", pow, tn_pow(x, y), 0)                                                                           \
    X("maximum", maximum, tn_maximum(x, y), 0)                                                               \
    X("minimum", minimum, tn_minimum(x, y), 0)                                                               \
    X("where", where, tn_where(tn_gt_scalar(x, 0), x, y), 0)
#define ROWS_OF_ROWS(X)                                                                                      \
    X("sum_row", sum, tn_sum(x, TN_AXES(1), false), 0)                                                       \
    X("mean_row", mean, tn_mean(x, TN_AXES(1), false), 0)                                                    \
    X("prod_row", prod, tn_prod(x, TN_AXES(1), false), 0)                                                    \
    X("amax_row", max, tn_max(x, TN_AXES(1), false), 0)                                                      \
    X("amin_row", min, tn_min(x, TN_AXES(1), false), 0)                                                      \
    X("logsumexp_row", logsumexp, tn_logsumexp(x, TN_AXES(1), false), 1e-6)                                  \
    X("var_row", var, tn_var(x, TN_AXES(1), false, 1), 0)                                                    \
    X("std_row", std, tn_std(x, TN_AXES(1), false, 1), 0)                                                    \
    X("std_0_row", std_0, tn_std(x, TN_AXES(1), false, 0), 0)

#define DEFINE(name, id, expression, none) FN(id, expression)
ROWS_OF_ONE(DEFINE)
ROWS_OF_TWO(DEFINE)
ROWS_OF_ROWS(DEFINE)

typedef struct row {
    const char *name;
    special_fn *f;
    double none;
    const char *in[2];
} row;

#define OF_ONE(name, id, expression, none)  {name, f_##id, none, {"x", NULL}},
#define OF_TWO(name, id, expression, none)  {name, f_##id, none, {"a", "b"}},
#define OF_ROWS(name, id, expression, none) {name, f_##id, none, {"rows", NULL}},
static const row rows[] = {ROWS_OF_ONE(OF_ONE) ROWS_OF_TWO(OF_TWO) ROWS_OF_ROWS(OF_ROWS)};

/* Where this library has chosen otherwise, or goes further. */
static bool chosen(const char *what, double x)
{
    if (!strcmp(what, "gelu")) return x == INFINITY || x > 1e38;      /* inf and x, PyTorch NaN and inf */
    if (!strcmp(what, "pow_-0.5.0")) return x == -INFINITY || x == 0; /* that of x^(-1/2) */
    if (!strcmp(what, "pow_1.5.0")) return x == -INFINITY;            /* that of x^(1/2) in C */
    return false;
}

static int wrong;

static void check_values(const row *r, const char *what, const char *where, tn_tensor *got,
                         const nn_saved *want, const double *x)
{
    int64_t n = golden_count(want);
    double *w = golden_values(want), *v = calloc((size_t)n + 1, sizeof *v);
    assert_non_null(v);
    if (!got || tn_numel(got) != n) fail_msg("%s on %s: no result, or of another size", what, where);
    assert_int_equal(tn_read(got, TN_F64, v, (size_t)n * sizeof *v), 0);
    for (int64_t i = 0; i < n; i++) {
        bool plain = isfinite(v[i]) && isfinite(w[i]);
        bool same = isnan(v[i]) && isnan(w[i]);
        double off = plain ? fabs(v[i] - w[i]) : 0;
        if (same || v[i] == w[i] || chosen(what, x[i])) continue;
        if (plain && off <= 1e-5 * fabs(w[i]) + r->none + FLT_MIN) continue;
        print_error("%s on %s: element %lld, of %g, is %.9g, PyTorch's %.9g\n", what, where, (long long)i,
                    x[i], v[i], w[i]);
        wrong++;
    }
    free(v);
    free(w);
}

TEST(like_pytorch)
{
    golden g;
    golden_open(&g, "special");
    for (int p = 1; p < PLACE_COUNT; p++) { /* the reference does not overflow where f32 does */
        tn_session *s = open_place(&PLACES[p], NULL, NULL);
        TN_EACH(r, rows, sizeof rows / sizeof *rows) {
            tn_tensor *in[2] = {NULL}, *gin[2] = {NULL};
            int n = r->in[1] ? 2 : 1;
            double *x = golden_values(golden_find(&g, "%s", r->in[0]));
            tn_step_begin(s);
            for (int k = 0; k < n; k++) {
                in[k] = golden_tensor(s, golden_find(&g, "%s", r->in[k]), TN_F32);
                tn_requires_grad(in[k], true);
            }
            tn_tensor *y = r->f(in[0], in[1]);
            tn_grad(tn_sum(y, TN_ALL, false), n, in, gin);
            check_values(r, r->name, PLACES[p].name, y, golden_find(&g, "%s", r->name), x);
            for (int k = 0; k < n; k++) {
                char what[40];
                snprintf(what, sizeof what, "%s.%d", r->name, k);
                check_values(r, what, PLACES[p].name, gin[k], golden_find(&g, "%s", what), x);
            }
            tn_step_end(s);
            expect_fine(s, r->name);
            free(x);
        }
        tn_close(s);
    }
    golden_close_file(&g);
    assert_int_equal(wrong, 0);
}

RUN_TESTS(NULL, NULL)
