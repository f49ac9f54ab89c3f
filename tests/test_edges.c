/* test_edges.c - operators where there is little to compute with: empty axes, too few elements for a
 * variance, infinite logits. What is expected is what PyTorch gives, on the reference device, in eager and in
 * fused mode. Start with expect.
 */
#include "rig.h"

enum { MOST = 16 };

static tn_session *S;

static int open_on(tn_device_kind device, tn_mode mode)
{
    S = tn_open(.device = device, .mode = mode, .log = quiet);
    return S ? tn_step_begin(S) : -1;
}

static int open_ref(void **state)
{
    (void)state;
    return open_on(TN_REF, TN_EAGER);
}
static int open_eager(void **state)
{
    (void)state;
    return open_on(TN_CPU, TN_EAGER);
}
static int open_fused(void **state)
{
    (void)state;
    return open_on(TN_CPU, TN_FUSED);
}

static int close_it(void **state)
{
    (void)state;
    tn_step_end(S);
    return tn_close(S);
}

#define EVERYWHERE(name)                                                                                     \
    static void name(void **state);                                                                          \
    TEST_AGAIN(name, open_ref, close_it)                                                                     \
    TEST_AGAIN(name, open_eager, close_it)                                                                   \
    TEST_IN(name, open_fused, close_it)

/* t has the dtype, n elements, and they are these; NaN is any NaN. */
static void expect(tn_tensor *t, tn_dtype dtype, int n, const double *want, int line)
{
    double got[MOST];
    if (!t) fail_msg("line %d: %s", line, tn_error_text(S));
    if (tn_dtype_of(t) != dtype || tn_numel(t) != n)
        fail_msg("line %d: %lld elements of %s", line, (long long)tn_numel(t), tn_dtype_name(tn_dtype_of(t)));
    if (tn_read(t, TN_F64, got, (size_t)n * sizeof *got)) fail_msg("line %d: %s", line, tn_error_text(S));
    for (int i = 0; i < n; i++)
        if (isnan(want[i]) ? !isnan(got[i]) : got[i] != want[i])
            fail_msg("line %d: element %d is %g, %g is right", line, i, got[i], want[i]);
}
#define gives(t, dtype, ...)                                                                                 \
    expect(t, dtype, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__},       \
           __LINE__)
#define gives_nothing(t, dtype) expect(t, dtype, 0, NULL, __LINE__)

static void refuses(tn_tensor *t, const char *op, const char *shape, int line)
{
    const char *text = tn_error_text(S);
    if (t || tn_error(S) != TN_E_SHAPE || !strstr(text, op) || !strstr(text, shape))
        fail_msg("line %d: \"%s\"", line, text);
    tn_clear_error(S);
}

static tn_tensor *zeros(int ndim, const int64_t *shape) { return tn_zeros(S, TN_F32, ndim, shape); }

/* Rounded up, a window may be larger than the image; its gradient goes to the first of NaN. */
EVERYWHERE(windows_beyond_the_image)
{
    const float v[] = {1, 2, 3, 6}, none[] = {1, NAN, 3, NAN};
    tn_tensor *x = tn_from(S, v, TN_F32, TN_SHAPE(1, 2, 2, 1)),
              *y = tn_from(S, none, TN_F32, TN_SHAPE(1, 2, 2, 1));
    gives(tn_max_pool2d(x, 3, .stride = 2, .ceil_mode = true), TN_F32, 6);
    gives(tn_avg_pool2d(x, 3, .stride = 2, .ceil_mode = true), TN_F32, 3);
    gives(tn_avg_pool2d(x, 5, .stride = 2, .pad = 1, .ceil_mode = true), TN_F32, 12.0 / 16);
    gives(tn_avg_pool2d(x, 5, .stride = 2, .pad = 1, .ceil_mode = true, .exclude_pad = true), TN_F32, 3);
    refuses(tn_max_pool2d(x, 3, .stride = 2), "max_pool2d", "[1, 2, 2, 1]", __LINE__);
    refuses(tn_max_pool2d(x, 4, .stride = 2, .ceil_mode = true), "max_pool2d", "[1, 2, 2, 1]", __LINE__);
    tn_tensor *dy;
    tn_requires_grad(y, true);
    assert_int_equal(
        tn_grad(tn_sum(tn_max_pool2d(y, 3, .stride = 2, .ceil_mode = true), TN_ALL, false), 1, &y, &dy), 0);
    gives(dy, TN_F32, 0, 1, 0, 0);
}

EVERYWHERE(empty_axes)
{
    tn_tensor *e = zeros(TN_SHAPE(2, 0)), *z = zeros(TN_SHAPE(0, 3));
    gives(tn_any(e, TN_AXES(1), false), TN_BOOL, 0, 0);
    gives(tn_all(e, TN_AXES(1), false), TN_BOOL, 1, 1);
    gives(tn_any(e, TN_ALL, false), TN_BOOL, 0);
    gives(tn_all(z, TN_ALL, false), TN_BOOL, 1);
    gives(tn_all(z, TN_AXES(0), true), TN_BOOL, 1, 1, 1);
    assert_int_equal(tn_ndim(tn_all(z, TN_AXES(0), true)), 2);
    gives_nothing(tn_any(z, TN_AXES(1), false), TN_BOOL);
    gives(tn_sum(tn_cast(tn_all(z, TN_AXES(0), false), TN_F32), TN_ALL, false), TN_F32,
          3); /* joins a kernel */
    gives(tn_sum(e, TN_AXES(1), false), TN_F32, 0, 0);
    gives(tn_prod(e, TN_AXES(1), false), TN_F32, 1, 1);
    gives(tn_mean(e, TN_AXES(1), false), TN_F32, NAN, NAN);
    gives(tn_logsumexp(e, TN_AXES(1), false), TN_F32, -INFINITY, -INFINITY);
    gives(tn_logsumexp(e, TN_ALL, false), TN_F32, -INFINITY);
    gives_nothing(tn_logsumexp(z, TN_AXES(1), false), TN_F32);
    gives_nothing(tn_softmax(e, 1), TN_F32);
    gives_nothing(tn_log_softmax(e, -1), TN_F32);
    gives_nothing(tn_softmax(z, 1), TN_F32);
    assert_int_equal(tn_dim(tn_softmax(e, 1), 0), 2);
    gives(tn_var(e, TN_AXES(1), false, 0), TN_F32, NAN, NAN);
    gives(tn_var(e, TN_AXES(1), false, 1), TN_F32, NAN, NAN);
    gives_nothing(tn_cumsum(e, 1), TN_F32);
    refuses(tn_max(e, TN_AXES(1), false), "max", "[2, 0]", __LINE__);
    refuses(tn_min(e, TN_ALL, false), "min", "[2, 0]", __LINE__);
    refuses(tn_argmax(e, 1, false), "argmax", "[2, 0]", __LINE__);
    refuses(tn_argmin(e, 1, false), "argmin", "[2, 0]", __LINE__);
    gives_nothing(tn_max(z, TN_AXES(1), false), TN_F32);
    gives(tn_scaled_dot_product_attention(zeros(TN_SHAPE(4, 1, 1)), zeros(TN_SHAPE(2, 0, 1)),
                                          zeros(TN_SHAPE(2, 0, 1))),
          TN_F32, 0, 0, 0, 0); /* of fewer heads, too */
    gives_nothing(tn_scaled_dot_product_attention(zeros(TN_SHAPE(0, 4, 1, 1)), zeros(TN_SHAPE(0, 2, 3, 1)),
                                                  zeros(TN_SHAPE(0, 2, 3, 1))),
                  TN_F32);
    gives(tn_scaled_dot_product_attention(zeros(TN_SHAPE(1, 2, 4)), zeros(TN_SHAPE(1, 0, 4)),
                                          zeros(TN_SHAPE(1, 0, 3)), .causal = false),
          TN_F32, 0, 0, 0, 0, 0, 0);
    refuses(tn_cross_entropy(e, tn_zeros(S, TN_I64, TN_SHAPE(2)), .reduction = TN_REDUCE_MEAN),
            "cross_entropy", "[2, 0] has no classes", __LINE__);
    refuses(tn_accuracy(e, tn_zeros(S, TN_I64, TN_SHAPE(2))), "accuracy", "[2, 0] has no classes", __LINE__);
}

/* An empty axis has a gradient, too: one of no elements. */
EVERYWHERE(empty_axes_backward)
{
    tn_tensor *w = tn_from(S, (float[1]){0}, TN_F32, TN_SHAPE(2, 0)), *g = NULL;
    assert_int_equal(tn_requires_grad(w, true), 0);
    tn_tensor *(*const fn[])(tn_tensor *, int, const char *, int) = {tn_softmax_at, tn_log_softmax_at};
    for (int i = 0; i < 2; i++) {
        tn_tensor *y = tn_sum(fn[i](w, 1, __FILE__, __LINE__), TN_ALL, false);
        assert_int_equal(tn_grad(y, 1, &w, &g), 0);
        gives_nothing(g, TN_F32);
    }
    tn_tensor *y = tn_sum(tn_logsumexp(w, TN_AXES(1), false), TN_ALL, false);
    assert_int_equal(tn_grad(y, 1, &w, &g), 0);
    gives_nothing(g, TN_F32);
}

EVERYWHERE(variance_of_too_few)
{
    tn_tensor *one = tn_from(S, (float[]){3, 4}, TN_F32, TN_SHAPE(2, 1));
    tn_tensor *two = tn_from(S, (float[]){3, 5, 7, 7}, TN_F32, TN_SHAPE(2, 2));
    gives(tn_var(one, TN_AXES(1), false, 1), TN_F32, NAN, NAN);
    gives(tn_std(one, TN_AXES(1), false, 1), TN_F32, NAN, NAN);
    gives(tn_var(two, TN_AXES(1), false, 1), TN_F32, 2, 0);
    for (int correction = 2; correction < 5; correction++) {
        gives(tn_var(two, TN_AXES(1), false, correction), TN_F32, INFINITY, NAN);
        gives(tn_std(two, TN_AXES(1), false, correction), TN_F32, INFINITY, NAN);
    }
}

EVERYWHERE(infinite_logits)
{
    const float x[] = {INFINITY, INFINITY, INFINITY, -INFINITY, -INFINITY, -INFINITY, NAN, 1000, -1000};
    const float y[] = {0, 1, .5f, 0, 1, .5f, 0, 1, 0};
    tn_tensor *in[2] = {tn_from(S, x, TN_F32, TN_SHAPE(9)), tn_from(S, y, TN_F32, TN_SHAPE(9))}, *g[2];
    tn_requires_grad(in[0], true);
    tn_requires_grad(in[1], true);
    gives(tn_bce_with_logits(in[0], in[1], .reduction = TN_REDUCE_NONE), TN_F32, INFINITY, NAN, INFINITY, NAN,
          NAN, NAN, NAN, 0, 0);
    assert_int_equal(tn_grad(tn_bce_with_logits(in[0], in[1], .reduction = TN_REDUCE_SUM), 2, in, g), 0);
    gives(g[0], TN_F32, 1, 0, .5, 0, -1, -.5, NAN, 0, 0);
    gives(g[1], TN_F32, -INFINITY, -INFINITY, -INFINITY, INFINITY, INFINITY, INFINITY, NAN, -1000, 1000);
    const float z[] = {-INFINITY, -INFINITY, INFINITY, 0, NAN, 0, INFINITY, INFINITY};
    tn_tensor *rows = tn_from(S, z, TN_F32, TN_SHAPE(4, 2));
    gives(tn_logsumexp(rows, TN_AXES(1), false), TN_F32, -INFINITY, INFINITY, NAN, INFINITY);
    gives(tn_softmax(rows, 1), TN_F32, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN);
}

/* An axis of one element, turned round: its stride is negative, and means nothing. */
EVERYWHERE(one_column_the_other_way)
{
    const float a[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, b[] = {1, -1, 2, -2};
    tn_tensor *x = tn_from(S, a, TN_F32, TN_SHAPE(2, 3, 2)), *y = tn_from(S, b, TN_F32, TN_SHAPE(2, 1, 2));
    gives(tn_matmul(x, tn_transpose(tn_flip(y, TN_AXES(-2)), -1, -2)), TN_F32, -1, -1, -1, -2, -2, -2);
    gives(tn_matmul(tn_flip(y, TN_AXES(-2)), tn_transpose(x, -1, -2)), TN_F32, -1, -1, -1, -2, -2, -2);
    gives(tn_matmul(x, tn_transpose(y, -1, -2)), TN_F32, -1, -1, -1, -2, -2, -2);
}

/* One point of a border, and a slice that the gradient of a concatenation's other half does not reach. */
EVERYWHERE(nothing_but_border)
{
    const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8, 9, 10};
    tn_tensor *x = tn_from(S, a, TN_F32, TN_SHAPE(4)), *y = tn_from(S, b, TN_F32, TN_SHAPE(3, 2));
    tn_tensor *z = tn_from(S, a, TN_F32, TN_SHAPE(1, 2)), *g;
    tn_tensor *w = tn_from(S, b, TN_F32, TN_SHAPE(3, 2)), *o = tn_from(S, b, TN_F32, TN_SHAPE(4));
    tn_tensor *beside = tn_neg(o), *point = tn_select(tn_add_scalar(tn_pad(x, 0, 1, 1, 0), 1.0), 0, 5);
    gives(beside, TN_F32, -5, -6, -7, -8);
    gives(point, TN_F32, 1);
    gives(tn_mul_scalar(tn_narrow(tn_pad(x, 0, 0, 3, 0), 0, 5, 2), 3.0), TN_F32, 0, 0);
    tn_requires_grad(z, true);
    tn_tensor *part = tn_narrow(tn_concat(2, ((tn_tensor *[]){y, z}), 0), 0, 0, 3);
    assert_int_equal(tn_grad(tn_sum(tn_mul(part, w), TN_ALL, false), 1, &z, &g), 0);
    gives(g, TN_F32, 0, 0);
    gives(part, TN_F32, 5, 6, 7, 8, 9, 10);
}

/* A border around nothing, whose inside something else reads too; a border that is cut off around nothing. */
EVERYWHERE(borders_around_nothing)
{
    const float a[] = {1, 2, 3, 4, 5, 6, 7, 8};
    tn_tensor *q = tn_from(S, a, TN_F32, TN_SHAPE(8)), *x = tn_from(S, a, TN_F32, TN_SHAPE(0, 3));
    tn_tensor *none = tn_tanh(tn_slice(q, 0, 5, 5, 1)), *y = tn_pad(none, 0, 1, 2, .25), *e = tn_exp(none);
    gives(y, TN_F32, .25, .25, .25);
    assert_int_equal(tn_numel(e), 0);
    tn_requires_grad(x, true);
    tn_tensor *cut = tn_slice(tn_relu(tn_pad(x, 0, 1, 0, 2)), 0, 1, 1, 1), *g;
    tn_tensor *sum =
        tn_add(tn_sum(cut, TN_ALL, false), tn_sum(tn_exp(tn_reshape(x, TN_SHAPE(3, 0))), TN_ALL, false));
    if (tn_grad(sum, 1, &x, &g)) fail_msg("%s", tn_error_text(S));
    gives(sum, TN_F32, 0);
    assert_int_equal(tn_numel(g), 0);
}

/* Smoothing takes a share of the mean of logits whose sum is too large for f32: that is finite itself. */
EVERYWHERE(logits_near_the_end)
{
    enum { N = 100 };
    float a[N];
    for (int i = 0; i < N; i++) a[i] = i % 2 ? 1e37f : 1.1e37f;
    const int32_t label = 2;
    tn_tensor *x = tn_from(S, a, TN_F32, TN_SHAPE(1, N)), *y = tn_from(S, &label, TN_I32, TN_SHAPE(1));
    double loss = tn_item(tn_cross_entropy(x, y, .label_smoothing = 0.1));
    if (!(fabs(loss - 0.1 * 0.05e37) < 1e33)) fail_msg("%g", loss); /* 1.1 - 0.9 * 1.1 - 0.1 * 1.05 */
}

EVERYWHERE(everything_dropped)
{
    const float a[] = {1, -2, 3};
    tn_tensor *x = tn_from(S, a, TN_F32, TN_SHAPE(3)), *g;
    tn_requires_grad(x, true);
    tn_tensor *y = tn_dropout(x, 1);
    if (tn_grad(tn_sum(tn_square(tn_add_scalar(y, 1.0)), TN_ALL, false), 1, &x, &g))
        fail_msg("%s", tn_error_text(S));
    gives(y, TN_F32, 0, 0, 0);
    gives(g, TN_F32, 0, 0, 0);
    gives(tn_mul_scalar(x, tn_number_f(0.5)), TN_F32, 0.5, -1, 1.5);
}

/* Windows that tile an image of many channels are reductions of it, those of few have a kernel of their own:
 * both choose the first of the largest, and the first NaN. */
EVERYWHERE(pooling_is_the_same_for_many_channels_and_few)
{
    enum { N = 2, H = 6, W = 8, C = 32, FEW = 4, ALL = N * H * W * C };
    static const float some[] = {-1, 0, 1, 2, 2, 2, NAN, -INFINITY, INFINITY, 0};
    float v[ALL], many[2][ALL], few[2][ALL];
    for (int i = 0; i < ALL; i++) v[i] = some[(unsigned)(i * 7919 + i / C * 104729 + i / 3) % 10];
    for (int mean = 0; mean < 2; mean++)
        for (int c = 0; c < C; c += FEW) {
            const int k = 2;
            tn_tensor *x = tn_from(S, v, TN_F32, TN_SHAPE(N, H, W, C)), *g[2];
            tn_requires_grad(x, true);
            tn_tensor *part = tn_slice(x, 3, c, c + FEW, 1);
            tn_tensor *a = mean ? tn_avg_pool2d(x, k, .stride = k) : tn_max_pool2d(x, k, .stride = k);
            tn_tensor *b = mean ? tn_avg_pool2d(part, k, .stride = k) : tn_max_pool2d(part, k, .stride = k);
            a = tn_slice(a, 3, c, c + FEW, 1);
            const int64_t n = tn_numel(b);
            tn_tensor *w =
                tn_reshape(tn_arange(S, 1, (double)n + 1, 1, TN_F32), TN_SHAPE(N, H / k, W / k, FEW));
            tn_tensor *y[2] = {a, b};
            for (int i = 0; i < 2; i++)
                if (tn_grad(tn_sum(tn_mul(y[i], w), TN_ALL, false), 1, &x, &g[i]))
                    fail_msg("%s", tn_error_text(S));
            for (int i = 0; i < 2; i++) {
                float *to = i ? few[0] : many[0], *gr = i ? few[1] : many[1];
                assert_int_equal(tn_read(y[i], TN_F32, to, (size_t)n * sizeof *to), TN_OK);
                assert_int_equal(tn_read(g[i], TN_F32, gr, sizeof v), TN_OK);
            }
            for (int i = 0; i < n; i++)
                assert_true(many[0][i] == few[0][i] || (isnan(many[0][i]) && isnan(few[0][i])));
            for (int i = 0; i < ALL; i++) assert_true(many[1][i] == few[1][i]);
        }
}

/* What a mean is rounded by is no deviation: rows of equal elements give 0. */
EVERYWHERE(constant_rows)
{
    enum { N = 776 };
    static const float values[] = {7.3f, -1e4f / 3, 1e-3f / 3, 1e8f / 3};
    for (int k = 0; k < 4; k++) {
        tn_tensor *x = tn_full(S, values[k], TN_F32, TN_SHAPE(2, N));
        gives(tn_max(tn_abs(tn_layer_norm(x, NULL, NULL)), TN_ALL, false), TN_F32, 0);
        gives(tn_max(tn_abs(tn_group_norm(x, 2, NULL, NULL)), TN_ALL, false), TN_F32, 0);
    }
}

/* ---- operators that have nothing to do ---- */

/* Of a number x, then of a vector v. */
/* clang-format off */
#define IDLE(X) \
    X(tn_sum(x, TN_ALL, false)) \
    X(tn_mean(x, TN_ALL, false)) \
    X(tn_prod(x, TN_ALL, true)) \
    X(tn_max(x, TN_ALL, false)) \
    X(tn_min(x, TN_ALL, false)) \
    X(tn_cast(x, TN_F32)) \
    X(tn_reshape(x, TN_SCALAR)) \
    X(tn_expand(x, TN_SCALAR)) \
    X(tn_dropout(x, 0)) \
    X(tn_pow_scalar(x, 1)) \
    X(tn_contiguous(x)) \
    X(tn_clamp(x, NAN, NAN)) \
    X(tn_detach(x)) \
    X(tn_reshape(v, TN_SHAPE(-1))) \
    X(tn_flatten(v, 0)) \
    X(tn_permute(v, 1, (int[]){0})) \
    X(tn_transpose(v, 0, 0)) \
    X(tn_slice(v, 0, 0, TN_END, 1)) \
    X(tn_pad(v, 0, 0, 0, 0)) \
    X(tn_concat(1, &v, 0)) \
    X(tn_squeeze(v, 0)) \
    X(tn_expand(v, TN_SHAPE(-1)))
/* clang-format on */
#define X(...) +1
enum { N_IDLE = 0 IDLE(X), FIRST_OF_VECTOR = 13, DETACH = 12 };
#undef X

static tn_tensor *idle(int k, tn_tensor *x, tn_tensor *v)
{
    enum { START = __COUNTER__ + 1 };
    switch (k + START) {
#define X(...)                                                                                               \
    case __COUNTER__: return __VA_ARGS__;
        IDLE(X)
#undef X
    }
    return NULL;
}

/* Its result can be read when that of one which computes something could be: after a run in which another
 * operator has read the operand, and what that was made of has been assigned to. */
EVERYWHERE(nothing_to_do)
{
    tn_step_end(S);
    for (int k = 0; k < N_IDLE; k++) {
        tn_tensor *w = tn_zeros(S, TN_F32, TN_SHAPE(2));
        for (int step = 0; step < 3; step++) {
            assert_int_equal(tn_step_begin(S), 0);
            tn_assign(w, tn_full(S, 2 + step, TN_F32, TN_SHAPE(2)));
            tn_tensor *v = tn_mul_scalar(w, 3), *x = tn_sum(v, TN_ALL, false);
            tn_tensor *y = idle(k, x, v), *zx = tn_add_scalar(x, 1), *zv = tn_add_scalar(v, 1);
            tn_assign(w, tn_zeros(S, TN_F32, TN_SHAPE(2)));
            assert_int_equal(tn_flush(S), 0);
            const double one = 3 * (2 + step);
            if (k < FIRST_OF_VECTOR)
                expect(y, TN_F32, 1, (double[]){2 * one}, k);
            else
                expect(y, TN_F32, 2, (double[]){one, one}, k);
            gives(zx, TN_F32, 2 * one + 1);
            gives(zv, TN_F32, one + 1, one + 1);
            assert_int_equal(tn_step_end(S), 0);
        }
        tn_free(w);
    }
    tn_step_begin(S);
}

/* A gradient goes through them, and they may be what one is asked for. */
EVERYWHERE(gradients_through_nothing)
{
    for (int k = 0; k < N_IDLE; k++) {
        if (k == DETACH) continue;
        tn_tensor *w = tn_from(S, (float[]){1, 2}, TN_F32, TN_SHAPE(2)), *g = NULL;
        tn_requires_grad(w, true);
        tn_tensor *v = tn_square(w), *x = tn_sum(v, TN_ALL, false), *y = idle(k, x, v);
        assert_int_equal(tn_grad(tn_sum(tn_mul_scalar(y, 2), TN_ALL, false), 1, &w, &g), 0);
        expect(g, TN_F32, 2, (double[]){4, 8}, k);
    }
}

EVERYWHERE(nothing_to_read)
{
    assert_int_equal(tn_read(zeros(TN_SHAPE(0)), TN_F32, NULL, 0), 0);
    fails_with(S, TN_E_NULL, "", tn_read(zeros(TN_SHAPE(1)), TN_F32, NULL, 4));
}

EVERYWHERE(no_gradient_passed_on)
{
    tn_tensor *w = tn_ones(S, TN_F32, TN_SHAPE(2)), *other = tn_ones(S, TN_F32, TN_SHAPE(3)), *g[2];
    tn_requires_grad(w, true);
    tn_requires_grad(other, true);
    assert_int_equal(tn_grad(tn_sum(w, TN_ALL, false), 2, (tn_tensor *[]){w, other}, g), 0);
    assert_non_null(g[0]);
    assert_null(g[1]);
    assert_null(tn_mul(w, g[1]));
    if (tn_error(S) != TN_E_NULL || !strstr(tn_error_text(S), "argument 2 (y) is NULL; tn_grad at ") ||
        !strstr(tn_error_text(S), "inputs[1] [3]"))
        fail_msg("\"%s\"", tn_error_text(S));
    tn_clear_error(S);
}

/* ---- statistics ---- */

enum { PIXELS = 4096, CHANNELS = 3 };

/* Columns of which the first element, or another, lies far from the rest, that are far from 0, tiny, huge or
 * nearly constant. */
static float hard(int kind, int i, rng *r)
{
    const double v = rng_real(r, -1, 1), side = i & 1 ? 1 : -1;
    switch (kind) {
    case 0: return i ? (float)side : 100.3f;
    case 1: return i == PIXELS / 3 ? 1e6f : (float)v;
    case 2: return i ? (float)v : -1e6f;
    case 3: return (float)(1e8 + 1000 * v);
    case 4: return (float)(1e-15 * v);
    case 5: return (float)(1e17 * v);
    case 6: return i % 97 ? 0 : 50.7f;
    case 7: return (float)(i < PIXELS / 50 ? 1e4 + v : v);
    default: return 7.3f;
    }
}

/* batch_norm, var and std of such columns beside f64. What is left is a few roundings, and that of the mean,
 * which is an f32. */
EVERYWHERE(hard_columns)
{
    static float x[PIXELS * CHANNELS], y[PIXELS * CHANNELS];
    rng r = {1};
    for (int kind = 0; kind < 9; kind++) {
        double mean[CHANNELS] = {0}, var[CHANNELS] = {0};
        for (int i = 0; i < PIXELS * CHANNELS; i++) x[i] = hard(kind, i / CHANNELS, &r);
        for (int i = 0; i < PIXELS * CHANNELS; i++) mean[i % CHANNELS] += (double)x[i] / PIXELS;
        for (int i = 0; i < PIXELS * CHANNELS; i++) {
            const double d = (double)x[i] - mean[i % CHANNELS];
            var[i % CHANNELS] += d * d / PIXELS;
        }
        tn_tensor *t = tn_from(S, x, TN_F32, TN_SHAPE(PIXELS, CHANNELS));
        tn_tensor *v = tn_var(t, TN_AXES(0), false, 0), *sd = tn_std(t, TN_AXES(0), false, 0);
        tn_tensor *n = tn_batch_norm(t, NULL, NULL, NULL, NULL);
        double got[2][CHANNELS];
        assert_int_equal(tn_read(n, TN_F32, y, sizeof y), 0);
        assert_int_equal(tn_read(v, TN_F64, got[0], sizeof got[0]), 0);
        assert_int_equal(tn_read(sd, TN_F64, got[1], sizeof got[1]), 0);
        for (int c = 0; c < CHANNELS; c++) {
            if (fabs(got[0][c] - var[c]) > 2e-7 * var[c] + 1e-45 ||
                fabs(got[1][c] - sqrt(var[c])) > 2e-7 * sqrt(var[c]) + 1e-12 * fabs(mean[c]))
                fail_msg("kind %d: var %.9g, std %.9g, not %.9g, %.9g", kind, got[0][c], got[1][c], var[c],
                         sqrt(var[c]));
        }
        for (int i = 0; i < PIXELS * CHANNELS; i++) {
            const int c = i % CHANNELS;
            const double inv = 1 / sqrt(var[c] + 1e-5), w = ((double)x[i] - mean[c]) * inv;
            if (!(fabs((double)y[i] - w) <= 4e-7 * (1 + fabs(w)) + fabs(mean[c]) * inv * 6e-8))
                fail_msg("kind %d: element %d is %.9g, not %.9g", kind, i, (double)y[i], w);
        }
    }
}

RUN_TESTS(NULL, NULL)
