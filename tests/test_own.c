/* test_own.c - operators of the user's own: formulas beside a plain evaluation in C, their gradients beside
 * differences, their kernels beside those of the same operators called one by one, and what is refused.
 * Start with any_formula. */
#include "tests/check.h"
#include "tests/rig.h"

static bench Bench;

/* ---- random formulas: printed with no more parentheses than C needs, and evaluated in C ---- */

typedef struct writing {
    char at[2048];
    int n;
} writing;

static void put(writing *t, const char *s)
{
    t->n += snprintf(t->at + t->n, sizeof t->at - (size_t)t->n, "%s", s);
}

/* Prints a random expression of names x, y, b and numbers, and computes it at one point. `level`: how tightly
 * what stands around it binds, 0 to 6 as C has it; bools: a comparison is wanted. */
static double random_formula(rng *r, writing *t, int depth, int level, bool is_bool, const double *v)
{
    static const struct {
        const char *sign;
        int level;
    } op[] = {{" + ", 4}, {"-", 4}, {" * ", 5}, {"/", 5}, {"<", 3}, {" <= ", 3}, {">", 3}, {">=", 3}};
    static const char *const call[] = {"tanh(", "tn_sigmoid( ", "exp(-abs(", "maximum(", "atan("};
    const int what = (int)rng_below(r, depth <= 0 ? 2 : 9);
    char number[32];
    double a, b;
    if (is_bool) {
        const int k = 4 + (int)rng_below(r, 4);
        if (level > 3) put(t, "(");
        a = random_formula(r, t, depth - 1, 4, false, v);
        put(t, op[k].sign);
        b = random_formula(r, t, depth - 1, 4, false, v);
        if (level > 3) put(t, ")");
        return k == 4 ? a < b : k == 5 ? a <= b : k == 6 ? a > b : a >= b;
    }
    if (what == 0) {
        a = (double)(1 + rng_below(r, 40)) / 8;
        snprintf(number, sizeof number, "%.4g", a);
        put(t, number);
        return a;
    }
    if (what == 1) {
        const int k = (int)rng_below(r, 3);
        put(t, k == 0 ? "x" : k == 1 ? "y" : "b");
        return v[k];
    }
    if (what == 2) {
        put(t, level > 4 ? "(-" : " -"); /* the prefix binds tighter than what follows; "--" is none of C's */
        a = -random_formula(r, t, depth - 1, 6, false, v);
        if (level > 4) put(t, ")");
        return a;
    }
    if (what == 3) {
        const int k = (int)rng_below(r, 5);
        put(t, call[k]);
        a = random_formula(r, t, depth - 1, 0, false, v);
        if (k == 3) put(t, ", ");
        b = k == 3 ? random_formula(r, t, depth - 1, 0, false, v) : 0;
        put(t, k == 2 ? "))" : ")");
        return k == 0   ? tanh(a)
               : k == 1 ? 1 / (1 + exp(-a))
               : k == 2 ? exp(-fabs(a))
               : k == 3 ? fmax(a, b)
                        : atan(a);
    }
    if (what == 4) {
        if (level > 0) put(t, "(");
        const bool c = random_formula(r, t, depth - 1, 1, true, v) != 0;
        put(t, " ? ");
        a = random_formula(r, t, depth - 1, 0, false, v);
        put(t, ":");
        b = random_formula(r, t, depth - 1, 0, false, v);
        if (level > 0) put(t, ")");
        return c ? a : b;
    }
    const int k = (int)rng_below(r, 4);
    if (level > op[k].level) put(t, "(");
    a = random_formula(r, t, depth - 1, op[k].level, false, v);
    put(t, op[k].sign);
    if (op[k].sign[0] == '/') put(t, "(4.5 + tanh("); /* away from poles */
    b = random_formula(r, t, depth - 1, op[k].sign[0] == '/' ? 0 : op[k].level + 1, false, v);
    if (op[k].sign[0] == '/') put(t, "))"), b = 4.5 + tanh(b);
    if (level > op[k].level) put(t, ")");
    return k == 0 ? a + b : k == 1 ? a - b : k == 2 ? a * b : a / b;
}

TEST(any_formula)
{
    tn_session *s = tn_open(.device = TN_REF, .mode = TN_EAGER, .log = quiet);
    rng r = {2024};
    for (int round = 0; round < 400; round++) {
        writing t = {.n = 0};
        const double v[3] = {rng_real(&r, -2, 2), rng_real(&r, -2, 2), rng_real(&r, -2, 2)};
        double want = random_formula(&r, &t, 6, 0, false, v), got = NAN;
        want += v[0] + v[1] + v[2];
        put(&t, " + 0");
        char whole[2200], name[64];
        snprintf(whole, sizeof whole, "(%s) + x + y + b", t.at);
        snprintf(name, sizeof name, "f%d(x, y; b)", round);
        tn_own *f = tn_define(s, name, whole);
        if (!f) { /* too deep or too long is no mistake */
            assert_true(strstr(tn_error_text(s), "less nesting") ||
                        strstr(tn_error_text(s), "so many operations"));
            tn_clear_error(s);
            continue;
        }
        tn_step_begin(s);
        tn_tensor *x = tn_full(s, v[0], TN_F64, TN_SHAPE(2)), *y = tn_full(s, v[1], TN_F64, TN_SHAPE(1));
        tn_tensor *out = tn_apply(f, x, y, .numbers = {v[2]});
        got = tn_item(tn_narrow(out, 0, 1, 1));
        tn_step_end(s);
        assert_string_equal(tn_error_text(s), "");
        if (!(fabs(got - want) <= 1e-12 * (1 + fabs(want))))
            fail_msg("%s at x %g, y %g, b %g is %.17g, not %.17g", whole, v[0], v[1], v[2], got, want);
    }
    close_clean(s);
}

/* ---- on each device, in each dtype, beside the same operators called one by one ---- */

static const char *const SWISH = "x / (1 + tn_exp(-b*x))";
static const char *const SLOPE = "g * (sigmoid(b * x) + b * out * (1 - sigmoid(b * x)))";

typedef struct use {
    tn_dtype dtype;
    bool given;
} use;

static void swish(tn_session *s, void *user, int *n, tn_tensor **out)
{
    const use *u = user;
    tn_own *f = u->given ? tn_define(s, "swish_b(x; b)", SWISH, .gradient = {SLOPE})
                         : tn_define(s, "swish(x; b)", SWISH);
    tn_own *mix = tn_define(s, "mix(x, y, c)", "c ? x * tanh(y) : x > y ? y : 2");
    double v[12], w[3] = {.5, -1, 2}, c[4] = {0, 1, 1, 0};
    rng r = {5};
    for (int i = 0; i < 12; i++) v[i] = rng_real(&r, -3, 3);
    tn_tensor *x = tensor_of(s, v, u->dtype, TN_SHAPE(4, 3)), *y = tensor_of(s, w, u->dtype, TN_SHAPE(3));
    tn_tensor *cond = tensor_of(s, c, TN_BOOL, TN_SHAPE(4, 1));
    tn_requires_grad(x, true);
    tn_requires_grad(y, true);
    tn_tensor *h = tn_add(tn_apply(f, x, .numbers = {1.5}), y);
    out[(*n)++] = h;
    out[(*n)++] = tn_apply(mix, h, y, cond);
    tn_backward(tn_add(weighted(s, h, 1), weighted(s, out[1], 2)));
    out[(*n)++] = tn_gradient(x);
    out[(*n)++] = tn_gradient(y);
}

TEST(on_each_device)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_F16, TN_BF16};
    char text[640];
    bench_open(&Bench);
    for (int i = 0; i < 8; i++) {
        use u = {dtypes[i / 2], i % 2};
        if (!check_program(&Bench, swish, &u, NULL, text)) fail_msg("%s", text);
    }
    bench_close(&Bench);
}

/* ---- gradients ---- */

static tn_tensor *by_name(tn_session *s, tn_tensor *const *x, void *user)
{
    (void)s;
    return tn_sum(tn_apply(user, x[0], x[1], x[2], .numbers = {1.3, .4}), TN_ALL, false);
}

TEST(gradients_like_differences)
{
    static const struct {
        const char *name, *formula;
        const char *gradient[3];
    } f[] = {
        {"derived(x, y, z; a, b)",
         "x*exp(-a*y*y) / (1 + z*z) + b*pow(z*z + 1, x) - (x < y ? x*z : log(1 + y*y))",
         {NULL}},
        {"given(x, y, z; a, b)",
         "a * x * y + b * tanh(z)",
         {"g * a * y", "g*a*x", "g * b * (1 - tanh(z) * tanh(z))"}},
        {"of_result(x, y, z; a, b)",
         "exp(a * x * y + b * z)",
         {"a * y * g * out", "a * x * g * out", "b*g*out"}},
    };
    tn_session *s = tn_open(.device = TN_REF, .log = quiet);
    tn_tensor *x[3];
    for (int i = 0; i < 3; i++)
        x[i] = tn_randn(s, TN_F64, i == 1 ? 1 : 2,
                        i == 1 ? (int64_t[]){5} : (int64_t[]){3, 5 * (i == 0) + (i == 2)});
    for (int i = 0; i < 3; i++) {
        tn_own *o = tn_define(s, f[i].name, f[i].formula,
                              .gradient = {f[i].gradient[0], f[i].gradient[1], f[i].gradient[2]});
        if (tn_gradcheck(s, by_name, 3, x, o, 0)) fail_msg("%s: %s", f[i].name, tn_error_text(s));
    }
    tn_own *wrong = tn_define(s, "wrong(x, y, z; a, b)", "a * x * y + b * z",
                              .gradient = {"g * a * y", "g * a", "g * b"});
    fails_with(s, TN_E_GRAD, "gradcheck", tn_gradcheck(s, by_name, 3, x, wrong, 0));
    close_clean(s);
}

/* A gradient that is given is taken: a sign whose gradient is the identity. */
TEST(straight_through)
{
    ON_EACH_WAY(s) {
        tn_own *f = tn_define(s, "binarise(x, y)", "(x > 0 ? 1 : -1) + y*0",
                              .gradient = {"abs(x) <= 1 ? g : 0*g", "0"});
        double got[4], v[4] = {-2, -.5, .5, 3}, w[4] = {1, 2, 3, 4};
        tn_step_begin(s);
        tn_tensor *x = tensor_of(s, v, TN_F32, TN_SHAPE(4)), *y = tensor_of(s, v, TN_F32, TN_SHAPE(4));
        tn_requires_grad(x, true);
        tn_requires_grad(y, true);
        tn_backward(tn_sum(tn_mul(tn_apply(f, x, y), tensor_of(s, w, TN_F32, TN_SHAPE(4))), TN_ALL, false));
        tn_read(tn_gradient(x), TN_F64, got, sizeof got);
        assert_true(got[0] == 0 && got[1] == 2 && got[2] == 3 && got[3] == 0);
        assert_null(tn_gradient(y));
        tn_step_end(s);
    }
}

/* ---- fused, and told of by its name; replayed with another number ---- */

TEST(fused_by_its_name)
{
    tn_session *s = tn_open(.device = subject_device(), .mode = TN_FUSED, .log = quiet);
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(64, 32)));
    tn_stats st = {.size = sizeof st};
    uint64_t plans = 0;
    for (int step = 0; step < 6; step++) {
        tn_own *f = tn_define(s, "swish_b(x; b)", SWISH); /* the same each time */
        tn_step_begin(s);
        tn_require_fused(s);
        tn_tensor *h = tn_mul_scalar(tn_apply(f, tn_mul(w, w), .numbers = {1 + step}), 3.0);
        tn_require_end(s);
        tn_backward(tn_sum(h, TN_ALL, false));
        const double want = 3 / (1 + exp(-1 - step)),
                     got = tn_item(tn_narrow(tn_reshape(h, TN_SHAPE(2048)), 0, 7, 1));
        assert_true(fabs(got - want) < 1e-6);
        tn_step_end(s);
        tn_get_stats(s, &st);
        if (step == 1) plans = st.plans;
    }
    assert_string_equal(tn_error_text(s), "");
    assert_int_equal(st.plans, plans);
    assert_true(st.replayed >= 3);
    assert_non_null(strstr(tn_plan_text(s), "swish_b"));
    close_clean(s);
}

/* ---- what is refused ---- */

TEST(refused)
{
    static const struct {
        const char *signature, *formula, *gradient, *says;
    } bad[] = {
        {"", "x", NULL, "signature \"\"|position 1: wanted the operator's name"},
        {"f", "x", NULL, "position 2: wanted '('"},
        {"f()", "1", NULL, "position 3: wanted a name"},
        {"f(x", "x", NULL, "position 4: wanted ',', ';' or ')'"},
        {"f(x; b; c)", "x", NULL, "position 7: wanted ',' or ')'"},
        {"f(x, x)", "x", NULL, "position 6: wanted another name"},
        {"f(out)", "out", NULL, "position 3: wanted another name"},
        {"f(a, b, c, d, e, f, g)", "a", NULL, "no more names (6 at most)"},
        {"f(x) y", "x", NULL, "position 5: wanted the end"},
        {"f(x)", "", NULL, "f: formula \"\", position 1: wanted a name, a number, '(' or '-', found the end"},
        {"f(x)", "x +", NULL, "position 4: wanted a name"},
        {"f(x)", "(x", NULL, "position 3: wanted ')', found the end"},
        {"f(x)", "x ^ 2", NULL, "position 3: wanted an operator (powers are pow(x, y)), found '^'"},
        {"f(x)", "x x", NULL, "position 3: wanted an operator or the end, found 'x'"},
        {"f(x)", "softmax(x)", NULL, "position 1: wanted an elementwise operator|found 'softmax'"},
        {"f(x)", "pow(x)", NULL, "position 6: wanted ',' and another argument, found ')'"},
        {"f(x)", "exp(x, x)", NULL, "position 6: wanted ')' after the arguments"},
        {"f(x)", "x + y", NULL, "position 5: wanted the name of an operand or a number|found 'y'"},
        {"f(x)", "x + 0x1p4", NULL, "position 5: wanted a decimal number"},
        {"f(x)", "x + 1e999", NULL, "position 5: wanted a decimal number"},
        {"f(x)", "x ? 1", NULL, "position 6: wanted ':'"},
        {"f(x)", "x + \xff", NULL, "position 5|found byte 255"},
        {"f(x, y)", "x", NULL, "operand 'y' does not stand in it"},
        {"f(x; b)", "x", NULL, "number 'b' does not stand in it"},
        {"f(x)", "x", "1", "f: gradient \"1\", g, the gradient of the result, does not stand in it"},
        {"f(x)", "x", "g * y", "position 5"},
        {"f(x, y)", "x + y", "g", "gradient 1 is missing"},
    };
    tn_session *s = tn_open(.device = TN_REF, .log = quiet);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        null_with(s, TN_E_ARG, bad[i].says,
                  tn_define(s, bad[i].signature, bad[i].formula, .gradient = {bad[i].gradient}));
    char deep[4200];
    memset(deep, '(', sizeof deep);
    deep[sizeof deep - 1] = 0;
    null_with(s, TN_E_ARG, "longer than 4096", tn_define(s, "f(x)", deep));
    deep[4000] = 0;
    null_with(s, TN_E_ARG, "less nesting", tn_define(s, "f(x)", deep));
    memset(deep, '-', 4000);
    null_with(s, TN_E_ARG, "less nesting", tn_define(s, "f(x)", deep));
    for (int i = 0; i < 4000; i++) deep[i] = "x+"[i % 2];
    deep[3999] = 0;
    null_with(s, TN_E_ARG, "so many operations (256)", tn_define(s, "f(x)", deep));
    null_with(s, TN_E_NULL, "the formula is NULL", tn_define(s, "f(x)", NULL));
    tn_own *f = tn_define(s, "f(x, y)", "x * y");
    assert_ptr_equal(f, tn_define(s, "f(x, y)", "x * y"));
    null_with(s, TN_E_ARG, "another operator has this name \"f\"", tn_define(s, "f(x, y)", "x + y"));
    tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(2, 3)), *y = tn_ones(s, TN_F32, TN_SHAPE(2));
    null_with(s, TN_E_SHAPE, "f at|[2, 3] and [2] do not broadcast", tn_apply(f, x, y));
    null_with(s, TN_E_NULL, "f at|argument 2 (x1) is NULL", tn_apply(f, x));
    null_with(s, TN_E_ARG, "f at|3 operands are given, and it has 2", tn_apply(f, x, x, x));
    assert_null(tn_apply(NULL, x));
    tn_session *other = tn_open(.device = TN_REF, .log = quiet);
    tn_tensor *z = tn_ones(other, TN_F32, TN_SHAPE(2));
    null_with(other, TN_E_SESSION, "defined in another session", tn_apply(f, z, z));
    close_clean(other);
    close_clean(s);
}

RUN_TESTS(NULL, NULL)
