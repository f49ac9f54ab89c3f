/* test_own_host.c - operators of the user's that are C functions: on each device and in each dtype beside the
 * same operators written out, on views, of integers, with shapes of their own, with some gradients or none;
 * how often they are called; and what a failure leaves behind. Start with beside_operators. */
#include <unistd.h>

#include "include/tensor_export.h"
#include "tests/check.h"
#include "tests/rig.h"

static bench Bench;

/* ---- the functions ---- */

typedef struct told {
    int forward, gradient, shapes;
    int fail_at; /* the how-manieth call of forward fails */
} told;

static double at(const tn_host_array *a, int64_t i)
{
    return a->dtype == TN_F64   ? ((const double *)a->data)[i]
           : a->dtype == TN_F32 ? ((const float *)a->data)[i]
           : a->dtype == TN_I64 ? (double)((const int64_t *)a->data)[i]
                                : (double)((const int32_t *)a->data)[i];
}
static void put(const tn_host_array *a, int64_t i, double v)
{
    if (a->dtype == TN_F64)
        ((double *)a->data)[i] = v;
    else
        ((float *)a->data)[i] = (float)v;
}
static int64_t count(const tn_host_array *a)
{
    int64_t n = 1;
    for (int i = 0; i < a->ndim; i++) n *= a->shape[i];
    return n;
}

/* lines(x [n, d], index [m]; a): out[i, k] = a x[index[i], k]^2 */
static int lines_shape(const tn_host_call *c, int *ndim, int64_t *shape)
{
    if (c->user) ((told *)c->user)->shapes++;
    if (c->in[0].ndim != 2 || c->in[1].ndim != 1 || c->in[0].data) {
        snprintf(c->why, TN_HOST_WHY, "lines wants a matrix and a list");
        return TN_E_SHAPE;
    }
    *ndim = 2;
    shape[0] = c->in[1].shape[0];
    shape[1] = c->in[0].shape[1];
    return 0;
}
static int lines_forward(const tn_host_call *c)
{
    told *t = c->user;
    const int64_t d = c->in[0].shape[1], m = c->out->shape[0];
    for (int64_t i = 0; i < m * d; i++)
        if (at(c->out, i) != 0) return 5; /* zeros as it begins */
    if (t && ++t->forward == t->fail_at) {
        snprintf(c->why, TN_HOST_WHY, "no line today");
        return TN_E_DEVICE;
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < d; k++) {
            const double x = at(&c->in[0], (int64_t)at(&c->in[1], i) * d + k);
            put(c->out, i * d + k, c->number[0] * x * x);
        }
    return 0;
}
static int lines_gradient(const tn_host_call *c)
{
    const int64_t d = c->in[0].shape[1], m = c->in[1].shape[0];
    if (c->user) ((told *)c->user)->gradient++;
    if (c->n_in != 4 || c->n_out != 2 || c->out[1].data || count(&c->in[3]) != m * d) return -2;
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < d; k++) {
            const int64_t to = (int64_t)at(&c->in[1], i) * d + k;
            put(c->out, to, at(c->out, to) + 2 * c->number[0] * at(&c->in[0], to) * at(&c->in[3], i * d + k));
        }
    return 0;
}

/* mix(x, y, z): x tanh(y) + z, all of one shape */
static int mix_forward(const tn_host_call *c)
{
    for (int64_t i = 0; i < count(c->out); i++)
        put(c->out, i, at(&c->in[0], i) * tanh(at(&c->in[1], i)) + at(&c->in[2], i));
    return 0;
}
static int mix_gradient(const tn_host_call *c)
{
    for (int64_t i = 0; i < count(&c->in[4]); i++) {
        const double t = tanh(at(&c->in[1], i)), g = at(&c->in[4], i);
        if (fabs(at(&c->in[3], i) - at(&c->in[0], i) * t - at(&c->in[2], i)) > 0.1) return 3; /* the result */
        if (c->out[0].data) put(&c->out[0], i, g * t);
        if (c->out[1].data) put(&c->out[1], i, g * at(&c->in[0], i) * (1 - t * t));
        if (c->out[2].data) put(&c->out[2], i, g);
    }
    return 0;
}

static tn_own *lines(tn_session *s, told *t)
{
    return tn_define_host(s, "lines(x, index; a)", lines_forward, .gradient = lines_gradient,
                          .shape = lines_shape, .user = t);
}
static tn_own *mix(tn_session *s)
{
    return tn_define_host(s, "mix(x, y, z)", mix_forward, .gradient = mix_gradient);
}

/* ---- on each device, in each dtype ---- */

typedef struct use {
    tn_dtype dtype;
    bool written; /* out in operators */
    unsigned wanted;
} use;

/* Chains of norms and activations around two such operators, one of which reads transposed views. */
static void program(tn_session *s, void *user, int *n, tn_tensor **out)
{
    const use *u = user;
    double v[24], w[24], index[5] = {3, 0, 3, 1, 5};
    rng r = {7};
    for (int i = 0; i < 24; i++) v[i] = rng_real(&r, -2, 2), w[i] = rng_real(&r, -2, 2);
    tn_tensor *x = tensor_of(s, v, u->dtype, TN_SHAPE(4, 6)), *y = tensor_of(s, w, u->dtype, TN_SHAPE(6, 4));
    tn_tensor *at = tensor_of(s, index, TN_I32, TN_SHAPE(5));
    tn_requires_grad(x, u->wanted & 1);
    tn_requires_grad(y, u->wanted >> 1 & 1);
    tn_tensor *a = tn_transpose(tn_sigmoid(x), 0, 1), *h, *z;
    if (u->written) {
        h = tn_add(tn_mul(a, tn_tanh(y)), a);
        z = tn_mul_scalar(tn_square(tn_index_select(h, 0, at)), 0.75);
    } else {
        h = tn_apply(mix(s), a, y, a);
        z = tn_apply(lines(s, NULL), h, at, .numbers = {0.75});
    }
    out[(*n)++] = tn_softmax(z, 1);
    out[(*n)++] = tn_gelu(h);
    tn_backward(tn_add(weighted(s, out[0], 1), weighted(s, out[1], 2)));
    if (u->wanted & 1) out[(*n)++] = tn_gradient(x);
    if (u->wanted & 2) out[(*n)++] = tn_gradient(y);
}

TEST(on_each_device)
{
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_F16, TN_BF16};
    char text[640];
    bench_open(&Bench);
    for (int i = 0; i < 12; i++) {
        use u = {dtypes[i % 4], false, 1 + i / 4};
        if (!check_program(&Bench, program, &u, NULL, text)) fail_msg("%s", text);
    }
    bench_close(&Bench);
}

TEST(beside_operators)
{
    ON_EACH_WAY(s) {
        double got[2][4][30] = {{{0}}};
        for (int written = 0; written < 2; written++) {
            use u = {TN_F64, written, 3};
            tn_tensor *out[4];
            int n = 0;
            tn_step_begin(s);
            program(s, &u, &n, out);
            assert_int_equal(n, 4);
            for (int i = 0; i < n; i++) tn_read(out[i], TN_F64, got[written][i], tn_numel(out[i]) * 8);
            tn_step_end(s);
        }
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 30; k++)
                if (fabs(got[0][i][k] - got[1][i][k]) > 1e-6 * (1 + fabs(got[1][i][k])))
                    fail_msg("output %d, element %d: %g, %g written out", i, k, got[0][i][k], got[1][i][k]);
    }
}

static tn_tensor *of_lines(tn_session *s, tn_tensor *const *x, void *user)
{
    double index[4] = {1, 0, 1, 2};
    tn_tensor *y =
        tn_apply(user, tn_mul(x[0], x[1]), tensor_of(s, index, TN_I64, TN_SHAPE(4)), .numbers = {1.5});
    return tn_sum(tn_apply(mix(s), y, tn_expand(x[2], TN_SHAPE(4, 3)), y), TN_ALL, false);
}

TEST(gradients_like_differences)
{
    tn_session *s = tn_open(.device = TN_REF, .log = quiet);
    tn_tensor *x[3] = {tn_randn(s, TN_F64, TN_SHAPE(5, 3)), tn_randn(s, TN_F64, TN_SHAPE(1, 3)),
                       tn_randn(s, TN_F64, TN_SHAPE(3))};
    if (tn_gradcheck(s, of_lines, 3, x, lines(s, NULL), 0)) fail_msg("%s", tn_error_text(s));
    close_clean(s);
}

/* ---- how often ---- */

TEST(called_once_a_step)
{
    ON_EACH_WAY(s) {
        told t = {0};
        tn_own *o = lines(s, &t);
        double index[2] = {1, 0};
        tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(3, 8)));
        for (int step = 1; step <= 5; step++) {
            tn_step_begin(s);
            tn_tensor *i = tensor_of(s, index, TN_I32, TN_SHAPE(2));
            tn_tensor *y = tn_apply(o, w, i, .numbers = {step}), *loss = tn_sum(y, TN_ALL, false);
            tn_backward(loss);
            assert_true(tn_item(loss) == 16. * step);
            double g[24];
            tn_read(tn_gradient(w), TN_F64, g, sizeof g);
            assert_true(g[0] == 2 * step && g[15] == 2 * step && g[16] == 0);
            tn_step_end(s);
            assert_int_equal(t.forward, step);
            assert_int_equal(t.gradient, step);
        }
        assert_true(t.shapes <= 5);
        if (is_fused(way_) && Ways[way_].device == TN_CPU) assert_non_null(strstr(tn_plan_text(s), "lines"));
    }
}

/* What is alike twice is two calls; what is recomputed around it is still one. */
TEST(called_as_the_program_says)
{
    tn_session *s = tn_open(.device = subject_device(), .mode = TN_FUSED, .log = quiet);
    told t = {0};
    tn_own *o = lines(s, &t);
    double index[2] = {1, 0};
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(3, 8)));
    tn_tensor *i = tensor_of(s, index, TN_I32, TN_SHAPE(2));
    tn_step_begin(s);
    tn_tensor *a = tn_apply(o, w, i, .numbers = {1}), *b = tn_apply(o, w, i, .numbers = {1});
    assert_true(tn_item(tn_sum(tn_add(a, b), TN_ALL, false)) == 32);
    tn_step_end(s);
    assert_int_equal(t.forward, 2);
    tn_step_begin(s);
    tn_checkpoint_begin(s);
    tn_tensor *y = tn_exp(tn_apply(o, w, i, .numbers = {1}));
    tn_checkpoint_end(s);
    tn_backward(tn_sum(tn_square(y), TN_ALL, false));
    double g[24];
    tn_read(tn_gradient(w), TN_F64, g, sizeof g);
    assert_true(fabs(g[0] - 4 * exp(2)) < 1e-4);
    tn_step_end(s);
    assert_int_equal(t.forward, 3);
    tn_tensor *none = tn_zeros(s, TN_F32, TN_SHAPE(0, 8));
    assert_int_equal(tn_numel(tn_apply(o, none, tn_zeros(s, TN_I32, TN_SHAPE(0)), .numbers = {1})), 0);
    assert_int_equal(t.forward, 3);
    close_clean(s);
}

/* ---- failing ---- */

/* A run whose function fails assigns nothing, whichever way it is run. */
TEST(a_failure_assigns_nothing)
{
    ON_EACH_WAY(s) {
        if (!is_fused(way_)) continue; /* eagerly what stands ahead has been done */
        told t = {.fail_at = 3};
        tn_own *o = lines(s, &t);
        double index[2] = {1, 0}, got[4];
        tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(3, 8)));
        tn_tensor *mean = tn_buffer(s, "mean", tn_zeros(s, TN_F32, TN_SHAPE(4)));
        for (int step = 1; step <= 3; step++) {
            tn_step_begin(s);
            tn_tensor *i = tensor_of(s, index, TN_I32, TN_SHAPE(2));
            tn_assign(mean, tn_add_scalar(mean, 1));
            tn_backward(tn_sum(tn_apply(o, w, i, .numbers = {1}), TN_ALL, false));
            tn_assign(w, tn_sub(w, tn_mul_scalar(tn_gradient(w), 0.25)));
            tn_step_end(s);
        }
        failed(s, TN_E_DEVICE, "lines|no line today|test_own_host.c");
        tn_read(mean, TN_F64, got, sizeof got);
        assert_true(got[0] == 2);
        double v[24];
        tn_read(w, TN_F64, v, sizeof v);
        assert_true(v[0] == 0.25 && v[23] == 1); /* 1, 0.5, 0.25 */
    }
}

static int returns(const tn_host_call *c) { return *(int *)c->user; }
static int nine_axes(const tn_host_call *c, int *ndim, int64_t *shape)
{
    *ndim = *(int *)c->user;
    shape[0] = -4;
    return 0;
}

TEST(refused)
{
    tn_session *s = tn_open(.device = subject_device(), .log = quiet);
    int code = 7, axes = 9;
    tn_own *f = tn_define_host(s, "f(x)", returns, .user = &code);
    assert_ptr_equal(f, tn_define_host(s, "f(x)", returns, .user = &code));
    null_with(s, TN_E_ARG, "another operator has this name \"f\"", tn_define_host(s, "f(x)", returns));
    null_with(s, TN_E_ARG, "another operator has this name \"f\"", tn_define(s, "f(x)", "x"));
    null_with(s, TN_E_NULL, "the function is NULL", tn_define_host(s, "g(x)", NULL));
    null_with(s, TN_E_NULL, "the signature is NULL", tn_define_host(s, NULL, returns));
    null_with(s, TN_E_ARG, "position 3: wanted a name", tn_define_host(s, "g()", returns));
    tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(3));
    float v[3];
    assert_int_not_equal(tn_read(tn_apply(f, x), TN_F32, v, sizeof v), TN_OK);
    failed(s, TN_E_ARG, "f at|the function returned 7");
    code = TN_E_IO;
    assert_int_not_equal(tn_read(tn_apply(f, x), TN_F32, v, sizeof v), TN_OK);
    failed(s, TN_E_IO, "f at|the function returned -15");
    code = 0;
    assert_int_equal(tn_read(tn_apply(f, x), TN_F32, v, sizeof v), TN_OK);
    assert_true(v[0] == 0 && v[2] == 0);
    tn_own *g = tn_define_host(s, "g(x)", returns, .user = &axes, .shape = nine_axes);
    null_with(s, TN_E_SHAPE, "g at|9 axes", tn_apply(g, x));
    axes = 1;
    null_with(s, TN_E_SHAPE, "g at|[-4]", tn_apply(g, x));
    null_with(s, TN_E_SHAPE, "lines at|its shape: lines wants a matrix", tn_apply(lines(s, NULL), x, x));
    tn_requires_grad(x, true);
    tn_step_begin(s);
    tn_backward(tn_sum(tn_apply(f, x), TN_ALL, false));
    failed(s, TN_E_GRAD, "no .gradient was defined");
    tn_step_end(s);
    tn_clear_error(s);
    tn_step_begin(s);
    tn_tensor *l = tn_sum(tn_apply(mix(s), x, x, x), TN_ALL, false), *gx = NULL;
    tn_grad(l, 1, &x, &gx);
    if (gx) tn_backward(tn_sum(tn_square(gx), TN_ALL, false));
    failed(s, TN_E_GRAD, "its gradient has none");
    tn_step_end(s);
    tn_clear_error(s);
    close_clean(s);
}

/* It has no text that could be written down. */
TEST(not_exported)
{
    tn_session *s = tn_open(.device = subject_device(), .mode = TN_FUSED, .log = quiet);
    if (subject_device() == TN_CPU) {
        assert_int_equal(tn_export_begin(s, "never_written.c"), TN_OK);
        tn_step_begin(s);
        tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(4));
        tn_export_output(tn_exp(tn_apply(mix(s), x, x, x)), "y");
        tn_step_end(s);
        fails_with(s, TN_E_UNSUPPORTED, "mix is a function of the program", tn_export_end(s));
        assert_int_not_equal(access("never_written.c", F_OK), 0);
    }
    close_clean(s);
}

RUN_TESTS(NULL, NULL)
