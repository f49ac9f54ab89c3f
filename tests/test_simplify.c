/* test_simplify.c - what need not run: values computed twice, algebra that is exact, numbers, and the guards
 * under which run-time numbers are folded. Each case asserts what was found, what is launched, and the values
 * bit by bit. Start with a_value_is_computed_once. */
#include "fuser_rig.h"
#include "rig.h"
#include "said.h"
#include "src/runtime/flush.h"

enum { N = 4096 };

/* The plan of the last flush. */
static const tn_plan *last_plan(tn_session *s)
{
    const tn_plan *p = tn_plan_cache_find(s->plans, s->scratch->key, s->scratch->n_key, NULL, NULL);
    assert_non_null(p);
    return p;
}

static int launches(const tn_session *s) { return (int)(s->stats.kernels + s->stats.library_calls); }

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

static int in_kernels(const tn_plan *p, const char *what)
{
    int n = 0;
    for (int i = 0; i < p->n_step; i++)
        if (p->step[i].kind == TN_STEP_KERNEL) n += count(p->step[i].source.text, what);
    return n;
}

static void close_to(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.9g, expected %.9g", got, want);
}

static tn_tensor *ramp(tn_session *s, int n, float from, float step)
{
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int i = 0; i < n; i++) v[i] = from + step * (float)i;
    tn_tensor *t = tn_from(s, v, TN_F32, TN_SHAPE(n));
    free(v);
    assert_non_null(t);
    return t;
}

/* ---- common values ---- */

TEST_ON(a_value_is_computed_once, rig_open(TN_CPU))
{
    tn_tensor *x = tn_keep(ramp(s, N, -2, 0.001f));
    tn_step_begin(s);
    tn_tensor *y = tn_add(tn_exp(x), tn_exp(x));
    float got[N];
    int before = launches(s);
    assert_int_equal(tn_read(y, TN_F32, got, sizeof got), 0);
    const tn_plan *p = last_plan(s);
    assert_int_equal(launches(s) - before, 1);
    assert_int_equal(p->n_common, 1);
    assert_int_equal(in_kernels(p, "tn_exp("), 1);
    for (int i = 0; i < N; i++)
        close_to((double)got[i], 2 * exp((double)(-2 + 0.001f * (float)i)), 1e-5 * (double)got[i]);
    tn_step_end(s);
}

/* Zeros around an image are the convolution's own padding: forward and both gradients are those of the padded
 * copy, which is not made. Not where it is asked for, where it is not of zeros, or reaches further than the
 * window. */
TEST(convolutions_pad_by_themselves)
{
    static const struct {
        bool row;
        int64_t pad[4]; /* top, bottom, left, right */
        int window, stride, dilation, own, groups;
        float fill;
        bool keep, taken;
    } rows[] = {
        {true, {0, 0, 4, 0}, 3, 1, 2, 0, 1, 0, false, true},
        {true, {0, 0, 0, 2}, 3, 1, 1, 0, 8, 0, false, true},
        {true, {0, 0, 3, 1}, 3, 2, 2, 1, 1, 0, false, true},
        {false, {1, 0, 0, 2}, 3, 1, 1, 0, 1, 0, false, true},
        {false, {2, 1, 1, 0}, 3, 1, 1, 0, 1, 0, false, true},
        {false, {0, 1, 2, 1}, 3, 2, 1, 0, 2, 0, false, true},
        {false, {3, 0, 1, 4}, 5, 1, 1, 0, 1, 0, false, true},
        {false, {2, 0, 0, 2}, 3, 1, 1, 0, 8, 0, false, true},
        {false, {1, 1, 1, 1}, 3, 1, 1, 1, 1, 0, false, true},
        {false, {1, 1, 1, 1}, 3, 1, 1, 0, 1, 1, false, false},
        {true, {0, 0, 3, 0}, 3, 1, 1, 0, 1, 0, false, false},
        {true, {0, 0, 2, 0}, 3, 1, 1, 0, 1, 0, true, false},
    };
    enum { C = 8, OC = 16, SIDE = 14, MOST = 2 * SIDE * SIDE * OC * 2 };
    float *got = malloc(6 * (size_t)MOST * sizeof *got);
    assert_non_null(got);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int h = rows[i].row ? 1 : SIDE, k = rows[i].window;
        int64_t n[3];
        for (int way = 0; way < 2; way++) { /* the second in f64, operator by operator */
            tn_session *s = rig_open(way ? TN_REF : TN_CPU);
            float v[2 * SIDE * SIDE * C], u[OC * 25 * C];
            for (int e = 0; e < 2 * h * SIDE * C; e++) v[e] = (float)sin(e * 1.7);
            for (int e = 0; e < OC * k * k * C; e++) u[e] = (float)cos(e * 2.3);
            const int64_t c = C / rows[i].groups;
            tn_tensor *x = rows[i].row ? tn_from(s, v, TN_F32, TN_SHAPE(2, SIDE, C))
                                       : tn_from(s, v, TN_F32, TN_SHAPE(2, SIDE, SIDE, C));
            tn_tensor *w = rows[i].row ? tn_from(s, u, TN_F32, TN_SHAPE(OC, k, c))
                                       : tn_from(s, u, TN_F32, TN_SHAPE(OC, k, k, c));
            x = tn_param(s, "x", x);
            w = tn_param(s, "w", w);
            tn_step_begin(s);
            const double fill = (double)rows[i].fill;
            tn_tensor *y = tn_mul_scalar(x, 1.5);
            if (!rows[i].row) y = tn_pad(y, 1, rows[i].pad[0], rows[i].pad[1], fill);
            y = tn_pad(y, rows[i].row ? 1 : 2, rows[i].pad[2], rows[i].pad[3], fill);
            if (rows[i].keep) tn_keep(y);
            tn_conv2d_options o = {.stride = rows[i].stride,
                                   .dilation = rows[i].dilation,
                                   .pad = rows[i].own,
                                   .groups = rows[i].groups,
                                   .size = sizeof o};
            tn_tensor *z = rows[i].row ? (tn_conv1d)(y, w, NULL, &o) : (tn_conv2d)(y, w, NULL, &o);
            if (tn_backward(tn_sum(tn_sin(z), TN_ALL, false)))
                fail_msg("row %d: %s", (int)i, tn_error_text(s));
            tn_tensor *all[] = {tn_keep(z), tn_gradient(x), tn_gradient(w)};
            tn_flush(s);
            for (int q = 0; q < 3; q++) {
                n[q] = tn_numel(all[q]);
                assert_true(n[q] <= MOST);
                if (tn_read(all[q], TN_F32, got + (3 * way + q) * MOST, (size_t)n[q] * 4))
                    fail_msg("row %d: %s", (int)i, tn_error_text(s));
            }
            tn_step_end(s);
            if (!way) {
                const bool taken = !strstr(tn_plan_text(s), " pad");
                if (taken != rows[i].taken) fail_msg("row %d: %s", (int)i, tn_plan_text(s));
            }
            if (rows[i].keep) tn_free(y);
            tn_close(s);
        }
        for (int q = 0; q < 3; q++)
            for (int64_t e = 0; e < n[q]; e++)
                close_to((double)got[q * MOST + e], (double)got[(3 + q) * MOST + e], 2e-3);
    }
    free(got);
}

/* Each use of a vector along rows is a view of its own, and so is each transpose. */
TEST_ON(views_of_one_tensor_are_one, rig_open(TN_CPU))
{
    tn_tensor *x = tn_keep(tn_randn(s, TN_F32, TN_SHAPE(64, 64))), *b = tn_keep(ramp(s, 64, 0, 0.1f));
    tn_step_begin(s);
    tn_tensor *p = tn_tanh(tn_add(x, b)), *q = tn_tanh(tn_add(x, b));
    tn_tensor *m = tn_matmul(x, tn_transpose(x, 0, 1)), *n = tn_matmul(x, tn_transpose(x, 0, 1));
    tn_tensor *sum = tn_sum(tn_add(tn_mul(p, q), tn_mul(m, n)), TN_ALL, 0);
    int before = (int)s->stats.library_calls;
    double got = tn_item(sum);
    assert_int_equal((int)s->stats.library_calls - before, 1);
    assert_int_equal(last_plan(s)->n_common, 3); /* x + b, its tanh, the product */
    assert_int_equal(in_kernels(last_plan(s), "tn_tanh("), 1);
    tn_step_end(s);
    tn_step_begin(s);
    tn_tensor *h = tn_tanh(tn_add(x, b)), *w = tn_matmul(x, tn_transpose(x, 0, 1));
    assert_true(got == tn_item(tn_sum(tn_add(tn_mul(h, h), tn_mul(w, w)), TN_ALL, 0)));
    tn_step_end(s);
}

/* The user holds two tensors: they have one value, and memory of their own. */
TEST_ON(two_results_are_two_tensors, rig_open(TN_CPU))
{
    tn_tensor *x = tn_keep(ramp(s, N, 0, 0.001f));
    for (int round = 0; round < 3; round++) {
        tn_step_begin(s);
        tn_tensor *a = tn_keep(tn_exp(x)), *b = tn_keep(tn_exp(x)), *view = tn_reshape(b, TN_SHAPE(64, 64));
        float was[N], got[N], seen[N];
        int before = launches(s);
        assert_int_equal(tn_read(b, TN_F32, was, sizeof was), 0);
        assert_int_equal(launches(s) - before, round ? 1 : launches(s) - before);
        assert_int_equal(tn_assign(a, tn_zeros(s, TN_F32, TN_SHAPE(N))), 0);
        assert_int_equal(tn_read(b, TN_F32, got, sizeof got), 0);
        assert_int_equal(tn_read(view, TN_F32, seen, sizeof seen), 0);
        assert_memory_equal(got, was, sizeof got);
        assert_memory_equal(seen, was, sizeof got);
        assert_int_equal(tn_read(a, TN_F32, got, sizeof got), 0);
        for (int i = 0; i < N; i++) assert_true(got[i] == 0);
        close_to((double)was[N - 1], exp(0.001 * (N - 1)), 1e-3);
        tn_step_end(s);
        tn_free(a);
        tn_free(b);
    }
}

TEST_ON(results_are_written_by_one_kernel, rig_open(TN_CPU))
{
    tn_tensor *x = tn_keep(ramp(s, N, 0, 0.001f));
    tn_step_begin(s);
    tn_tensor *a = tn_sin(tn_exp(x)), *b = tn_sin(tn_exp(x)),
              *c = tn_reshape(tn_sin(tn_exp(x)), TN_SHAPE(64, 64));
    float one[N], two[N], three[N];
    int before = launches(s);
    assert_int_equal(tn_read(a, TN_F32, one, sizeof one), 0);
    assert_int_equal(launches(s) - before, 1);
    assert_int_equal(in_kernels(last_plan(s), "tn_sin("), 1);
    assert_int_equal(tn_read(b, TN_F32, two, sizeof two), 0);
    assert_int_equal(tn_read(c, TN_F32, three, sizeof three), 0);
    assert_int_equal(launches(s) - before, 1);
    assert_true(tn_node_data(tn_resolve(a)) != tn_node_data(tn_resolve(b)));
    assert_memory_equal(one, two, sizeof one);
    assert_memory_equal(one, three, sizeof one);
    tn_step_end(s);
}

TEST_ON(draws_are_never_common, rig_open(TN_CPU))
{
    tn_step_begin(s);
    tn_tensor *d = tn_sub(tn_rand(s, TN_F32, TN_SHAPE(N)), tn_rand(s, TN_F32, TN_SHAPE(N)));
    double far = tn_item(tn_sum(tn_abs(d), TN_ALL, 0));
    assert_true(far > N / 4.0);
    assert_int_equal(last_plan(s)->n_common, 0);
    tn_step_end(s);
}

TEST_ON(versions_are_not_common, rig_open(TN_CPU))
{
    tn_tensor *w = tn_keep(ramp(s, N, 0, 0.001f));
    tn_step_begin(s);
    tn_tensor *old = tn_exp(w), *again = tn_exp(w);
    assert_int_equal(tn_assign(w, tn_add_scalar(w, 1.0)), 0);
    tn_tensor *now = tn_exp(w);
    tn_tensor *ratio = tn_div(now, tn_mul_scalar(tn_add(old, again), 0.5));
    close_to(tn_item(tn_mean(ratio, TN_ALL, 0)), exp(1), 1e-5);
    assert_int_equal(last_plan(s)->n_common, 1);
    tn_step_end(s);
}

/* The record tells whether two operands are one: the plan of one case is not found in the other. */
TEST_ON(one_operand_twice_is_not_two, rig_open(TN_CPU))
{
    tn_tensor *x = tn_keep(ramp(s, N, 0, 0.001f)), *y = tn_keep(ramp(s, N, 1, 0.001f));
    for (int round = 0; round < 4; round++) {
        tn_step_begin(s);
        tn_tensor *a = tn_slice(x, 0, 0, 8, 1), *b = tn_slice(round % 2 ? y : x, 0, 0, 8, 1);
        float got[8];
        assert_int_equal(tn_read(tn_sub(tn_exp(a), tn_exp(b)), TN_F32, got, sizeof got), 0);
        for (int i = 0; i < 8; i++)
            close_to((double)got[i], round % 2 ? exp(0.001 * i) - exp(1 + 0.001 * i) : 0, 1e-5);
        if (round < 2) assert_int_equal(last_plan(s)->n_common, !round);
        tn_step_end(s);
    }
}

TEST_ON(a_gradient_shares_what_it_makes_twice, rig_open(TN_CPU))
{
    tn_tensor *w = tn_param(s, "w", ramp(s, N, -1, 0.0005f));
    tn_step_begin(s);
    tn_tensor *loss = tn_sum(tn_mul(tn_exp(w), tn_exp(w)), TN_ALL, 0);
    assert_int_equal(tn_backward(loss), 0);
    float g[N];
    int before = launches(s);
    assert_int_equal(tn_read(tn_gradient(w), TN_F32, g, sizeof g), 0);
    assert_int_equal(launches(s) - before, 1); /* the loss, which reduces, and the gradient with it */
    assert_true(last_plan(s)->n_common >= 2);  /* exp(w) twice, and what flows back to each */
    assert_int_equal(in_kernels(last_plan(s), "float exp2 ="), 0);
    for (int i = 0; i < N; i++) {
        double x = -1 + 0.0005 * i;
        close_to((double)g[i], 2 * exp(2 * x), 1e-4 * exp(2 * x));
    }
    tn_step_end(s);
}

/* ---- algebra ---- */

typedef tn_tensor *rule_fn(tn_graph *g, tn_tensor *x);

static tn_tensor *num(tn_graph *g, double v)
{
    return tn_mk_typed(g, TN_OP_constant, (tn_number){.f = v}, TN_F32);
}

/* There as columns, and back. */
static tn_tensor *turned_twice(tn_graph *g, tn_tensor *x)
{
    x = tn_mk_swap(tn_mk_reshape(tn_mk2(TN_OP_mul, x, num(g, 1)), 2, (int64_t[]){4, 2}), 0, 1);
    return tn_mk_reshape(tn_mk_swap(tn_mk_contiguous(x), 0, 1), 1, (int64_t[]){8});
}

/* X(how many rules apply, what an element v becomes, the graph over x): what is exact is folded, what is
 * multiplied with -1 is negated without a number in the kernel, and the rest is computed. */
/* clang-format off */
#define RULES(X) \
    X(1, v, tn_mk2(TN_OP_mul, x, num(g, 1))) \
    X(1, v, tn_mk2(TN_OP_mul, num(g, 1), x)) \
    X(1, v, tn_mk2(TN_OP_div, x, num(g, 1))) \
    X(1, v, tn_mk2(TN_OP_pow, x, num(g, 1))) \
    X(1, v, tn_mk2(TN_OP_sub, x, num(g, 0))) \
    X(1, v, tn_mk2(TN_OP_add, x, num(g, -0.0))) \
    X(1, v, tn_mk1(TN_OP_neg, tn_mk1(TN_OP_neg, x))) \
    X(1, v, tn_mk_cast(tn_mk_cast(x, TN_F64), TN_F32)) \
    X(1, v, tn_mk2(TN_OP_maximum, x, x)) \
    X(1, v, tn_mk2(TN_OP_minimum, x, x)) \
    X(1, v, tn_mk3(TN_OP_where, tn_mk2(TN_OP_gt, x, num(g, 0)), x, x)) \
    X(1, v, turned_twice(g, x)) \
    X(1, -v, tn_mk2(TN_OP_mul, x, num(g, -1))) \
    X(1, -v, tn_mk2(TN_OP_mul, num(g, -1), x)) \
    X(1, -v, tn_mk2(TN_OP_div, x, num(g, -1))) \
    X(2, v, tn_mk2(TN_OP_div, tn_mk2(TN_OP_mul, x, num(g, -1)), num(g, -1))) \
    X(2, v, tn_mk1(TN_OP_neg, tn_mk2(TN_OP_mul, x, num(g, -1)))) \
    X(0, v * 0.0f, tn_mk2(TN_OP_mul, x, num(g, 0))) \
    X(0, v - v, tn_mk2(TN_OP_sub, x, x)) \
    X(0, v + 0.0f, tn_mk2(TN_OP_add, x, num(g, 0))) \
    X(0, v - -0.0f, tn_mk2(TN_OP_sub, x, num(g, -0.0))) \
    X(0, v * (float)(1 + 1e-6), tn_mk2(TN_OP_mul, x, num(g, 1 + 1e-6))) \
    X(0, v / v, tn_mk2(TN_OP_div, x, x)) \
    X(0, 1 / (v * 0.0f) - 1 / (v * -0.0f), \
      tn_mk2(TN_OP_sub, tn_mk2(TN_OP_div, num(g, 1), tn_mk2(TN_OP_mul, x, num(g, 0))), \
             tn_mk2(TN_OP_div, num(g, 1), tn_mk2(TN_OP_mul, x, num(g, -0.0))))) \
    X(0, fabsf(v) < 1e-30f ? 0 * v : v, tn_mk_cast(tn_mk_cast(x, TN_F16), TN_F32))
/* clang-format on */
static const int Folded[] = {
#define X(folded, ...) folded,
    RULES(X)
#undef X
};
enum { N_RULES = sizeof Folded / sizeof *Folded };
static int Rule; /* which of them */

static tn_tensor *rule(tn_graph *g, tn_tensor *x)
{
    enum { START = __COUNTER__ + 1 };
    switch (Rule + START) {
#define X(folded, becomes, ...)                                                                              \
    case __COUNTER__: return __VA_ARGS__;
        RULES(X)
#undef X
    }
    return NULL;
}

static float rule_gives(float v)
{
    enum { START = __COUNTER__ + 1 };
    switch (Rule + START) {
#define X(folded, becomes, ...)                                                                              \
    case __COUNTER__: return becomes;
        RULES(X)
#undef X
    }
    return v;
}

static const float special[8] = {0.0f, -0.0f, 1.5f, -2.25f, INFINITY, -INFINITY, NAN, 3e-39f};

/* What the rule makes of the special values, times a tensor of ones: the result itself would be a root. */
static void run_rule(rule_fn *f, float *out, int *folded, int *guards)
{
    tn_session *s = rig_open(TN_CPU);
    const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    tn_tensor *hx = tn_keep(tn_from(s, special, TN_F32, TN_SHAPE(8)));
    tn_tensor *h1 = tn_keep(tn_from(s, ones, TN_F32, TN_SHAPE(8)));
    tn_step_begin(s);
    tn_tensor *x = tn_use(tn_resolve(hx)), *one = tn_use(tn_resolve(h1));
    tn_tensor *root = tn_mk2(TN_OP_mul, f(&s->graph, x), one);
    if (tn_run(s, 1, &root)) fail_msg("%s", s->graph.error.text);
    memcpy(out, tn_node_data(root), 8 * sizeof *out);
    *folded = last_plan(s)->n_folded;
    *guards = last_plan(s)->n_guard;
    tn_step_end(s);
    tn_close(s);
}

static void same_bits(const float *a, const float *b)
{
    for (int i = 0; i < 8; i++)
        if (!(isnan(a[i]) && isnan(b[i])) && memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("element %d: %g, expected %g", i, (double)a[i], (double)b[i]);
}

TEST(algebra)
{
    for (Rule = 0; Rule < N_RULES; Rule++) {
        float got[8], want[8];
        int folded, guards;
        run_rule(rule, got, &folded, &guards);
        if (folded != Folded[Rule] || guards) fail_msg("rule %d: %d folded, %d guards", Rule, folded, guards);
        for (int i = 0; i < 8; i++) want[i] = rule_gives(special[i]);
        same_bits(got, want);
    }
}

/* Rows of constants become one constant, rounded as a kernel would have. */
static tn_tensor *sum_of_numbers(tn_graph *g, tn_tensor *x)
{
    tn_tensor *third = tn_mk2(TN_OP_div, num(g, 1), num(g, 3)), *c = tn_mk2(TN_OP_mul, third, num(g, 0.1));
    c = tn_mk1(TN_OP_sqrt, tn_mk2(TN_OP_add, c, num(g, 7)));
    return tn_mk2(TN_OP_add, x, tn_mk_expand(c, 1, x->shape));
}

static tn_tensor *sine_of_a_number(tn_graph *g, tn_tensor *x)
{
    return tn_mk2(TN_OP_add, x, tn_mk_expand(tn_mk1(TN_OP_sin, num(g, 1)), 1, x->shape));
}

static tn_tensor *byte_that_wraps(tn_graph *g, tn_tensor *x)
{
    tn_tensor *sum = tn_mk2(TN_OP_add, tn_mk_cast(num(g, 255), TN_U8), tn_mk_cast(num(g, 1), TN_U8));
    return tn_mk2(TN_OP_add, x, tn_mk_expand(tn_mk_cast(sum, TN_F32), 1, x->shape));
}

TEST(numbers_are_worked_out)
{
    float got[8], want[8];
    int folded, guards;
    run_rule(sum_of_numbers, got, &folded, &guards);
    volatile float third = 1.0f / 3.0f, tenth = third * 0.1f, sum = tenth + 7.0f;
    float c = sqrtf(sum);
    for (int i = 0; i < 8; i++) want[i] = special[i] + c;
    assert_int_equal(folded, 4);
    same_bits(got, want);
    run_rule(sine_of_a_number, got, &folded, &guards); /* whose last bit is the device's */
    assert_int_equal(folded, 0);
    close_to((double)got[0], sin(1), 1e-6);
    run_rule(byte_that_wraps, got, &folded, &guards);
    for (int i = 0; i < 8; i++) want[i] = special[i] + 0.0f;
    same_bits(got, want);
}

/* An operand that is overwritten later is copied as it was written: to be had then. */
TEST_ON(what_is_overwritten_is_copied, rig_open(TN_CPU))
{
    tn_tensor *w = tn_keep(ramp(s, N, 1, 1));
    for (int round = 0; round < 4; round++) {
        tn_step_begin(s);
        tn_tensor *old = tn_mul_scalar(w, 1.0);
        assert_int_equal(tn_assign(w, tn_add_scalar(w, 2.0)), 0);
        tn_tensor *diff = tn_sub(tn_reshape(w, TN_SHAPE(64, 64)), tn_reshape(old, TN_SHAPE(64, 64)));
        tn_tensor *low = tn_min(diff, TN_ALL, 0), *high = tn_max(diff, TN_ALL, 0);
        assert_true(tn_item(low) == 2);
        assert_true(tn_item(high) == 2);
        tn_step_end(s);
    }
}

/* ---- guards ---- */

/* sum(x * v + x) in a step of its own. */
static double times(tn_session *s, tn_tensor *x, double v)
{
    tn_step_begin(s);
    double sum = tn_item(tn_sum(tn_add(tn_sin(tn_mul_scalar(x, v)), x), TN_ALL, 0));
    tn_step_end(s);
    assert_int_equal(tn_error(s), 0);
    return sum;
}

/* 1 and -1, replayed or not. */
TEST(a_number_that_stays_is_folded)
{
    for (int kind = 0; kind < 4; kind++) {
        int replay = kind & 1, sign = kind & 2 ? -1 : 1;
        setenv("TENSOR_REPLAY", replay ? "on" : "off", 1);
        tn_session *s = rig_open(TN_CPU);
        unsetenv("TENSOR_REPLAY");
        tn_tensor *x = tn_keep(ramp(s, N, -1, 0.0004f));
        double want[3] = {0};
        for (int i = 0; i < N; i++) {
            double v = (double)(-1 + 0.0004f * (float)i);
            want[1] += sin(sign * v) + v;
            want[2] += sin(2 * v) + v;
        }
        const int script[] = {1, 1, 1, 2, 1, 1, 2, 2, 1};
        uint64_t plans = s->stats.plans, kernels = s->stats.kernels;
        double first = 0;
        for (int i = 0; i < 9; i++) {
            double got = times(s, x, script[i] == 1 ? sign : script[i]);
            close_to(got, want[script[i]], 1e-3);
            assert_int_equal(s->stats.plans - plans, i < 3 ? 1 : 2);
            assert_int_equal(s->stats.kernels - kernels, i + 1);
            if (i < 3) {
                assert_int_equal(last_plan(s)->n_guard, 1);
                assert_int_equal(last_plan(s)->n_folded, 1);
                assert_int_equal(last_plan(s)->step[0].n_scalar, 0);
                if (i)
                    assert_true(got == first);
                else
                    first = got;
            } else {
                assert_int_equal(last_plan(s)->n_guard, 0);
                assert_int_equal(last_plan(s)->step[0].n_scalar, 1);
            }
        }
        tn_stats now = stats_of(s);
        /* those that do as the step before: all but the first, and the one that finds its plan gone and is
         * noted anew */
        if (replay)
            assert_true(now.replayed >= 5);
        else
            assert_int_equal(now.replayed, 0);
        tn_close(s);
    }
}

/* A number that is never 0, 1 or another that folds keeps one plan whatever it is. */
TEST_ON(numbers_that_change_make_no_plans, rig_open(TN_CPU))
{
    tn_tensor *x = tn_keep(ramp(s, N, -1, 0.0004f));
    for (int i = 0; i < 6; i++) times(s, x, 2.0 - 0.2 * i); /* 1.0 comes last, when the plan is made */
    uint64_t plans = s->stats.plans;
    times(s, x, 1);
    times(s, x, 0);
    times(s, x, -3);
    assert_int_equal(s->stats.plans, plans);
    assert_int_equal(last_plan(s)->n_guard, 0);
}

/* The sign of a zero counts: x - 0 is x, x - -0 is not. */
TEST_ON(a_guard_is_for_one_number, rig_open(TN_CPU))
{
    const float v[4] = {-0.0f, 0.0f, 1, -1};
    tn_tensor *x = tn_keep(tn_from(s, v, TN_F32, TN_SHAPE(4))),
              *one = tn_keep(tn_ones(s, TN_F32, TN_SHAPE(4)));
    for (int round = 0; round < 4; round++) {
        float got[4];
        tn_step_begin(s);
        assert_int_equal(
            tn_read(tn_mul(tn_sub_scalar(x, round % 2 ? -0.0 : 0.0), one), TN_F32, got, sizeof got), 0);
        assert_int_equal(signbit(got[0]) != 0, round % 2 == 0);
        assert_false(signbit(got[1]));
        assert_int_equal(last_plan(s)->n_guard, round == 0);
        tn_step_end(s);
    }
}

/* Two flushes of one step with one record: the second finds the plan of the first, or another. */
TEST_ON(two_segments_share_a_record, rig_open(TN_CPU))
{
    tn_tensor *x = tn_keep(ramp(s, N, -1, 0.0004f));
    double one = 0, three = 0;
    for (int i = 0; i < N; i++) {
        double v = (double)(-1 + 0.0004f * (float)i);
        one += exp(v) + v;
        three += exp(3 * v) + v;
    }
    uint64_t plans = s->stats.plans;
    for (int round = 0; round < 5; round++) {
        tn_step_begin(s);
        double a = tn_item(tn_sum(tn_add(tn_exp(tn_mul_scalar(x, 1.0)), x), TN_ALL, 0));
        double b = tn_item(tn_sum(tn_add(tn_exp(tn_mul_scalar(x, round < 2 ? 1.0 : 3.0)), x), TN_ALL, 0));
        close_to(a, one, 1e-3 * one);
        close_to(b, round < 2 ? one : three, 1e-3 * three);
        tn_step_end(s);
        assert_int_equal(tn_error(s), 0);
    }
    assert_int_equal(s->stats.plans - plans, 2);
}

TEST_ON(the_plan_text_counts_them, rig_open(TN_CPU))
{
    tn_tensor *w = tn_keep(ramp(s, N, -1, 0.0005f));
    tn_step_begin(s);
    tn_tensor *y = tn_mul_scalar(tn_add(tn_exp(w), tn_exp(w)), 1.0);
    tn_item(tn_sum(tn_sin(y), TN_ALL, 0));
    tn_step_end(s);
    assert_non_null(strstr(tn_plan_text(s), "\nsimplified: 1 common, 1 folded, 1 guard\n"));
    PRINTED(text, f) assert_int_equal(tn_explain(s, f), 0);
    assert_non_null(strstr(text, "  simplified: 1 common, 1 folded, 1 guard\n"));
    free(text);
    tn_step_begin(s);
    tn_item(tn_sum(tn_sin(w), TN_ALL, 0));
    tn_step_end(s);
    assert_null(strstr(tn_plan_text(s), "simplified"));
}

RUN_TESTS(NULL, NULL)
