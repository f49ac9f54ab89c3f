/* test_fusion_steps.c - what fusion makes of whole steps: how many bytes move, a loss and its gradient in one
 * kernel, an optimizer's update of all parameters in one, and where fusing has to end. */
#include "fusion_rig.h"

/* ---- bytes ---- */

static uint64_t bytes_of(const tn_session *s)
{
    tn_stats v = stats_of(s);
    return v.bytes_moved;
}

/* relu(x * 2 + b) over n floats: eager reads and writes 8n, 12n and 8n bytes, fused 12n in one kernel. */
TEST(a_chain_moves_its_ends_only)
{
    const uint64_t n = ROWS * COLS;
    for (int fused = 0; fused < 2; fused++) {
        tn_session *s = open_mode(fused ? TN_FUSED : TN_EAGER);
        for (int step = 0; step < 3; step++) {
            traced t = {.s = s};
            uint64_t bytes = bytes_of(s), kernels = launched(s);
            tn_step_begin(s);
            tn_tensor *x = input(&t, ROWS, COLS), *b = input(&t, ROWS, COLS);
            give(&t, tn_relu(tn_add(tn_mul_scalar(x, 2.0), b)));
            tn_step_end(s);
            assert_int_equal(bytes_of(s) - bytes, (fused ? 12 : 28) * n);
            assert_int_equal(launched(s) - kernels, fused ? 1 : 3);
        }
        assert_int_equal(tn_close(s), 0);
    }
}

/* ---- what a kernel makes again is what memory holds ---- */

/* A largest element that comes from memory, in 16 bits, is found in its row, whose cast is made again. */
TEST(truths_of_16_bits_are_of_stored_values)
{
    enum { N = 9, C = 23 };
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++)
        for (int narrow = 0; narrow < 2; narrow++) {
            const tn_dtype d = narrow ? TN_BF16 : TN_F16;
            tn_session *s = open_mode((tn_mode)mode);
            tn_step_begin(s);
            tn_tensor *x = tn_rand(s, TN_F32, TN_SHAPE(N, C));
            tn_tensor *top = tn_max(tn_cast(x, d), 1, (int[]){1}, true);
            assert_int_equal(tn_flush(s), 0);
            tn_tensor *largest = tn_eq(tn_cast(x, d), top),
                      *less = tn_lt(tn_mul_scalar(tn_cast(x, d), 1.0), top);
            assert_true(tn_item(tn_sum(tn_cast(largest, TN_F32), TN_ALL, false)) >= N);
            tn_tensor *both = tn_add(tn_cast(largest, TN_F32), tn_cast(less, TN_F32));
            assert_true(tn_item(tn_sum(both, TN_ALL, false)) == N * C);
            assert_int_equal(tn_step_end(s), 0);
            assert_int_equal(tn_close(s), 0);
        }
}

/* Means of 16 bits whose sums lie beyond what 16 bits hold: those are kept between kernels all the same. */
TEST(means_of_16_bits_have_wide_sums)
{
    enum { N = 20000, C = 10 };
    int32_t label[N];
    float grad[2][C];
    double loss[2];
    for (int i = 0; i < N; i++) label[i] = i % C;
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++) {
        tn_session *s = open_mode((tn_mode)mode);
        tn_step_begin(s);
        tn_tensor *x = tn_rand(s, TN_F32, TN_SHAPE(N, C));
        tn_requires_grad(x, true);
        tn_tensor *h = tn_cast(tn_mul_scalar(x, 9.0), TN_F16);
        tn_tensor *mean = tn_mean(h, TN_ALL, false), *square = tn_mean(tn_square(h), TN_ALL, false);
        tn_tensor *ce = tn_cross_entropy(h, tn_from(s, label, TN_I32, TN_SHAPE(N)));
        tn_tensor *mse = tn_mse_loss(h, tn_full(s, TN_F16, 0.5, TN_SHAPE(N, C)));
        tn_tensor *l = tn_add(tn_add(tn_mul(ce, mean), mse), square);
        tn_backward(tn_cast(l, TN_F32));
        loss[mode == TN_EAGER] = tn_item(l);
        tn_tensor *first = tn_slice(tn_gradient(x), 0, 0, 1, 1);
        assert_int_equal(tn_read(first, TN_F32, grad[mode == TN_EAGER], sizeof grad[0]), 0);
        assert_int_equal(tn_step_end(s), 0);
        assert_int_equal(tn_close(s), 0);
    }
    assert_true(loss[1] > 60 && loss[1] < 80 && fabs(loss[0] - loss[1]) < 0.05 * loss[1]);
    for (int i = 0; i < C; i++) assert_true(fabs(grad[0][i] - grad[1][i]) < 2e-5);
}

/* ---- forward and backward in one kernel ---- */

/* A gradient that somebody asked for, or that a product reads, is written whenever it is made: made where the
 * loss is, it spares reading forward's operands again. */
TEST(a_loss_and_its_gradient_are_one_kernel)
{
    for (int product = 0; product < 2; product++) {
        tn_session *s = open_mode(TN_FUSED);
        traced t = {.s = s, .gradients = true};
        tn_step_begin(s);
        tn_tensor *x = input(&t, 300, 70), *w = product ? input(&t, 70, 50) : NULL;
        tn_tensor *y = tn_silu(product ? tn_matmul(x, w) : x);
        take_gradients(&t, tn_sum(tn_square(y), TN_ALL, false));
        seen v = look(s);
        /* the product, silu's sum and the gradient that two products read */
        expect("loss", product ? "of a product" : "of a chain", &v, (bound){product ? 4 : 1, product ? 2 : 0},
               (bound){0});
        end_step(s, v.kernels);
        forget(&v);
        assert_int_equal(tn_close(s), 0);
    }
}

/* Rows of 300, 230 of them: more than a few parts of a long sum; parts, and vectors, that end early. */
typedef struct whole_step {
    const char *name;
    tn_tensor *(*loss)(traced *t);
    bound most; /* what is written besides: how many rows count */
} whole_step;

enum { STEP_ROWS = 230, STEP_COLS = 300, STEP_SIZE = STEP_ROWS * STEP_COLS };

static tn_tensor *both_functions(traced *t)
{
    tn_tensor *x = input(t, STEP_ROWS, STEP_COLS);
    give(t, tn_sin(x));
    give(t, tn_cos(x));
    return loss_of(t);
}

static tn_tensor *chain_of_two(traced *t)
{
    give(t, tn_sigmoid(tn_relu(tn_mul(input(t, STEP_ROWS, STEP_COLS), input(t, STEP_ROWS, STEP_COLS)))));
    return loss_of(t);
}

static tn_tensor *normed_silu(traced *t)
{
    tn_tensor *x = input(t, STEP_ROWS, STEP_COLS), *w = input(t, STEP_COLS);
    give(t, tn_silu(tn_rms_norm(x, w)));
    return loss_of(t);
}

static tn_tensor *normed_gelu(traced *t)
{
    tn_tensor *x = input(t, STEP_ROWS, STEP_COLS), *w = input(t, STEP_COLS), *b = input(t, STEP_COLS);
    give(t, tn_gelu(tn_layer_norm(x, w, b)));
    return loss_of(t);
}

static tn_tensor *residual(traced *t)
{
    tn_tensor *x = input(t, STEP_ROWS, STEP_COLS), *z = input(t, STEP_ROWS, STEP_COLS);
    tn_tensor *w = input(t, STEP_COLS), *b = input(t, STEP_COLS);
    give(t, tn_add(x, tn_dropout(z, 0.25)));
    give(t, tn_layer_norm(t->out[0], w, b));
    return loss_of(t);
}

static tn_tensor *classes(traced *t)
{
    tn_tensor *x = input(t, STEP_ROWS, STEP_COLS);
    return tn_cross_entropy(x, indices(t, STEP_ROWS, STEP_COLS), .use_ignore_index = true, .ignore_index = 7);
}

/* Records the step; the loss and the gradients, one behind the other, into out, which has room for all. */
static int run_whole(const whole_step *c, tn_mode mode, bool stream, float *out)
{
    tn_session *s = open_mode(mode);
    traced t = {.s = s, .gradients = true};
    if (stream) s->target.last_bytes = 1; /* no cache is large enough for anything */
    tn_step_begin(s);
    tn_tensor *loss = c->loss(&t), *grad[MAX_CASE_IN];
    assert_int_equal(tn_grad(loss, t.n_wrt, t.wrt, grad), 0);
    if (mode == TN_FUSED) {
        seen v = look(s);
        expect(c->name, stream ? "whole step past the caches" : "whole step", &v, c->most, (bound){0});
        uint64_t before = launched(s);
        assert_int_equal(tn_flush(s), 0);
        assert_int_equal(launched(s) - before, v.kernels);
        forget(&v);
    }
    int n = 1;
    assert_int_equal(tn_read(loss, TN_F32, out, sizeof *out), 0);
    for (int i = 0; i < t.n_wrt; n += (int)tn_numel(grad[i++]))
        assert_int_equal(tn_read(grad[i], TN_F32, out + n, (size_t)tn_numel(grad[i]) * sizeof *out), 0);
    assert_int_equal(tn_step_end(s), 0);
    assert_int_equal(tn_close(s), 0);
    return n;
}

/* Where rows or elements have nothing to do with each other, one pass over them makes a loss and the
 * gradients of it, sums over the rows included. */
TEST(rows_make_loss_and_gradients_at_once)
{
    static const whole_step all[] = {
        {"siblings", both_functions, {1, 0}},
        {"chain", chain_of_two, {1, 0}},
        {"rms_norm and silu", normed_silu, {1, 0}},
        {"layer_norm and gelu", normed_gelu, {1, 0}},
        {"residual", residual, {1, 0}},
        {"cross_entropy", classes, {2, 1}},
    };
    static float want[2 * STEP_SIZE + 2 * STEP_COLS + 1], got[2 * STEP_SIZE + 2 * STEP_COLS + 1];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int n = run_whole(&all[i], TN_EAGER, false, want);
        for (int stream = 0; stream < 2; stream++) {
            assert_int_equal(run_whole(&all[i], TN_FUSED, stream, got), n);
            for (int k = 0; k < n; k++)
                if (!(fabsf(got[k] - want[k]) <= 2e-5f + 2e-5f * fabsf(want[k])))
                    fail_msg("%s: element %d is %.9g fused and %.9g eager", all[i].name, k, (double)got[k],
                             (double)want[k]);
        }
    }
}

/* Forward chooses the largest of each window while it norms, keeps a byte for each and nothing of the image's
 * size: backward makes the mask of the relu again, and puts each gradient in its place as it is read. */
TEST_ON(pooling_keeps_nothing_of_the_images_size, open_mode(TN_FUSED))
{
    enum { IMAGES = 16, SIDE = 32, CHANNELS = 32, ALL = IMAGES * SIDE * SIDE * CHANNELS };
    traced t = {.s = s, .gradients = true};
    tn_step_begin(s);
    tn_tensor *x = input(&t, IMAGES, SIDE, SIDE, CHANNELS), *w = input(&t, CHANNELS),
              *b = input(&t, CHANNELS);
    give(&t, tn_max_pool2d(tn_relu(tn_batch_norm(x, w, b, NULL, NULL)), 2, .stride = 2));
    take_gradients(&t, loss_of(&t));
    seen v = look(s);
    int large = 0, bytes = 0;
    TN_EACH(p, v.plan->value, v.plan->n_value) {
        large += p->elems >= ALL && !p->root && p->alias < 0;
        bytes += p->elems == ALL / 4 && p->dtype == TN_U8;
    }
    if (v.kernels > 5 || large || bytes != 1) {
        print_plan(&v);
        fail_msg("%d kernels, %d large values, %d of a byte for each window", v.kernels, large, bytes);
    }
    end_step(s, v.kernels);
    forget(&v);
}

/* What backward reads of relus behind each other's sums: of a value that a weight's gradient reads anyway its own
 * elements, else a byte for each; and a sum's gradient is stored over what it is of, which nobody reads again. */
TEST_ON(sums_of_relus_keep_little_beside_what_products_read, open_mode(TN_FUSED))
{
    enum { BLOCKS = 5, WIDTH = 64, IMAGES = 8, ALL = IMAGES * ROWS * WIDTH };
    traced t = {.s = s, .gradients = true};
    tn_step_begin(s);
    tn_tensor *x = input(&t, IMAGES, ROWS, WIDTH), *w = input(&t, WIDTH, 3, WIDTH),
              *last = input(&t, 1, 1, WIDTH);
    for (int i = 0; i < BLOCKS; i++) {
        tn_tensor *h = tn_relu(tn_conv1d(tn_pad(x, 1, 2, 0, 0), w, NULL));
        x = tn_relu(tn_add(x, tn_relu(tn_conv1d(tn_pad(h, 1, 2, 0, 0), w, NULL))));
    }
    give(&t, tn_conv1d(x, last, NULL));
    take_gradients(&t, loss_of(&t));
    seen v = look(s);
    size_t most = 0;
    for (int i = 0; i < v.plan->n_step; i++) {
        size_t now = 0;
        TN_EACH(p, v.plan->value, v.plan->n_value)
            if (p->first <= i && i <= p->last && !p->root && p->alias < 0)
                now += p->elems * tn_dtype_size(p->dtype);
        most = now > most ? now : most;
    }
    if (most > (2 * BLOCKS + 3) * ALL * sizeof(float)) {
        print_plan(&v);
        fail_msg("%zu bytes are alive", most);
    }
    end_step(s, v.kernels);
    forget(&v);
}

/* What a product of one term gives back to its larger operand is elementwise, and made where it is read; a
 * convolution's is where its window is one place and steps over none. */
TEST(a_product_of_one_term_is_elementwise)
{
    enum { SIDE = 6, CHANNELS = 24, ALL = SIDE * SIDE * CHANNELS };
    for (int i = 0; i < 4; i++) {
        const int pad = i == 1, stride = 1 + (i == 2), to = (SIDE + 2 * pad - 1) / stride + 1;
        tn_session *s = open_mode(TN_FUSED);
        traced t = {.s = s, .gradients = true};
        tn_step_begin(s);
        tn_tensor *x = i < 3 ? input(&t, 1, SIDE, SIDE, CHANNELS) : input(&t, SIDE * SIDE, CHANNELS);
        tn_tensor *w = i < 3 ? input(&t, 1, 1, 1, CHANNELS) : input(&t, 1, CHANNELS), *y;
        y = i < 3 ? tn_conv2d(x, w, NULL, .pad = pad, .stride = stride) : tn_affine(x, w, NULL);
        float *g = numbers(to * to), *v = numbers(CHANNELS), got[ALL];
        tn_tensor *weighed =
            tn_mul(tn_reshape(y, TN_SHAPE(to * to)), tn_from(s, g, TN_F32, TN_SHAPE(to * to)));
        tn_tensor *grad;
        if (tn_grad(tn_sum(weighed, TN_ALL, false), 1, &x, &grad)) fail_msg("%s", tn_error_text(s));
        seen plan = look(s);
        const bool one = !pad && stride == 1;
        assert_int_equal(steps_named(&plan, "conv2d_data_grad"), !one);
        assert_int_equal(steps_named(&plan, "matmul"), i == 3); /* y */
        forget(&plan);
        assert_int_equal(tn_read(grad, TN_F32, got, sizeof got), 0);
        for (int k = 0; k < ALL; k++) {
            const int line = k / CHANNELS / SIDE + pad, column = k / CHANNELS % SIDE + pad;
            const bool seen_by = line % stride == 0 && column % stride == 0;
            const float want = seen_by ? g[line / stride * to + column / stride] * v[k % CHANNELS] : 0;
            assert_true(fabsf(got[k] - want) < 1e-6f);
        }
        free(g);
        free(v);
        tn_step_end(s);
        tn_close(s);
    }
}

/* The gradient of a loss over single numbers is made with the loss, for the weight's and the bias' gradients, and
 * read where a larger one is made of it: that takes none of them along. */
TEST_ON(small_gradients_stay_with_their_loss, open_mode(TN_FUSED))
{
    traced t = {.s = s, .gradients = true};
    tn_step_begin(s);
    tn_tensor *x = input(&t, 32 * ROWS, 64), *v = input(&t, 64, 64), *w = input(&t, 1, 64), *b = input(&t, 1);
    t.gradients = false;
    tn_tensor *h = tn_relu(tn_affine(x, v, NULL)), *y = tn_affine(h, w, b);
    give(&t, tn_mse_loss(y, input(&t, 32 * ROWS, 1)));
    take_gradients(&t, t.out[0]);
    seen plan = look(s);
    if (plan.kernels > 7) {
        print_plan(&plan);
        fail_msg("%d kernels", plan.kernels);
    }
    end_step(s, plan.kernels);
    forget(&plan);
}

/* A value that two loops of a kernel make each for itself has the same bits in both, though one of them does
 * more with the product in it: else nothing equals the maximum of its own row, whose gradient is then 0 / 0.
 */
TEST(a_maximum_equals_one_of_its_values)
{
    enum { LINES = 16, N = 1000 };
    static float v[3][LINES * N], hits[LINES];
    rng r = {5};
    for (int i = 0; i < 3 * LINES * N; i++) v[i / (LINES * N)][i % (LINES * N)] = (float)rng_real(&r, -2, 2);
    tn_session *s = open_mode(TN_FUSED);
    for (int turn = 0; turn < 3; turn++) {
        tn_step_begin(s);
        tn_tensor *x[3];
        for (int k = 0; k < 3; k++) x[k] = tn_from(s, v[k], TN_F32, TN_SHAPE(LINES, N));
        tn_tensor *product = tn_mul(x[0], x[1]), *both = tn_add(product, x[2]);
        tn_tensor *most = tn_max(both, TN_AXES(1), true), *is = tn_cast(tn_eq(both, most), TN_F32);
        tn_tensor *more = tn_mul_scalar(tn_tanh(tn_mul(product, most)), 1e-9);
        assert_int_equal(tn_read(tn_sum(tn_add(is, more), TN_AXES(1), false), TN_F32, hits, sizeof hits), 0);
        for (int i = 0; i < LINES; i++) assert_true(fabsf(hits[i] - 1) < 1e-6f);
        tn_step_end(s);
    }
    assert_int_equal(tn_close(s), 0);
}

/* The same of 16-bit floats, which one kernel has from memory, rounded, and another has just made: a largest
 * value of the rows, or of the columns, and one of all, ask two kernels for the same values. */
TEST(a_maximum_of_halves_has_a_gradient)
{
    enum { LINES = 33, N = 300 };
    static float x[LINES * N], rows[LINES], columns[N], g[LINES * N];
    rng r = {5};
    for (int i = 0; i < LINES * N; i++) x[i] = (float)rng_real(&r, -2, 2);
    for (int i = 0; i < LINES; i++) rows[i] = x[7 * i];
    for (int i = 0; i < N; i++) columns[i] = x[11 * i];
    tn_session *s = open_mode(TN_FUSED);
    for (int how = 0; how < 8; how++) {
        const tn_dtype d = how & 1 ? TN_BF16 : TN_F16;
        const int along = how >> 1 & 1, wide = how >> 2;
        tn_step_begin(s);
        tn_tensor *a = tn_cast(tn_from(s, x, TN_F32, TN_SHAPE(LINES, N)), d);
        tn_tensor *b = tn_cast(tn_from(s, columns, TN_F32, TN_SHAPE(1, N)), d);
        tn_tensor *c = tn_cast(tn_from(s, rows, TN_F32, TN_SHAPE(LINES, 1)), d);
        assert_int_equal(tn_requires_grad(a, true), 0);
        tn_tensor *t = tn_mul(tn_sub(a, b), c), *sum = tn_sum(t, TN_AXES(along), true);
        tn_tensor *y = along ? tn_mul(sum, tn_add(b, c)) : tn_add(tn_mul_scalar(sum, 0.3), tn_mul(t, b));
        if (wide) y = tn_mul(tn_cast(y, TN_F32), tn_from(s, columns, TN_F32, TN_SHAPE(1, N)));
        tn_tensor *loss = tn_sum(tn_cast(tn_max(y, TN_AXES(along), false), TN_F32), TN_ALL, false);
        loss = tn_add(loss, tn_mul_scalar(tn_sum(tn_tanh(tn_cast(t, TN_F32)), TN_ALL, false), 1e-3));
        assert_int_equal(tn_backward(tn_add(loss, tn_cast(tn_max(tn_relu(y), TN_ALL, false), TN_F32))), 0);
        assert_int_equal(tn_read(tn_gradient(a), TN_F32, g, sizeof g), 0);
        for (int i = 0; i < LINES * N; i++)
            if (!isfinite(g[i])) fail_msg("%s, axis %d: gradient %g", tn_dtype_name(d), along, (double)g[i]);
        tn_step_end(s);
    }
    assert_int_equal(tn_close(s), 0);
}

/* A largest or least value of one alone is that value, however many digits it is made with: its gradient is the
 * value's own. */
TEST(an_extreme_of_one_half_has_its_gradient)
{
    enum { N = 70 };
    static float x[N], g[2][N];
    rng r = {6};
    for (int i = 0; i < N; i++) x[i] = (float)rng_real(&r, -2, 2);
    tn_session *s = open_mode(TN_FUSED);
    for (int how = 0; how < 48; how++) {
        const tn_dtype d = how & 1 ? TN_BF16 : TN_F16;
        const int along = how >> 1 & 1, least = how >> 2 & 1, of = how / 8;
        for (int with = 0; with < 2; with++) {
            tn_step_begin(s);
            tn_tensor *a = tn_from(s, x, TN_F32, TN_SHAPE(along ? N : 1, along ? 1 : N));
            assert_int_equal(tn_requires_grad(a, true), 0);
            tn_tensor *y = tn_cast(a, d);
            if (of == 0 || of == 1) y = tn_gelu(y);
            if (of == 1) y = tn_gelu(tn_mul_scalar(y, 1.1));
            if (of == 2) y = tn_mul(y, tn_sigmoid(y));
            if (of == 3) y = tn_mean(tn_mul(y, tn_tanh(y)), TN_AXES(along), true);
            if (of == 4) y = tn_contiguous(tn_silu(y));
            if (of == 5) y = tn_transpose(tn_softplus(tn_transpose(y, 0, 1)), 0, 1);
            if (with) y = least ? tn_min(y, TN_AXES(along), true) : tn_max(y, TN_AXES(along), true);
            assert_int_equal(tn_backward(tn_sum(tn_cast(y, TN_F32), TN_ALL, false)), 0);
            assert_int_equal(tn_read(tn_gradient(a), TN_F32, g[with], sizeof g[with]), 0);
            tn_step_end(s);
        }
        for (int i = 0; i < N; i++)
            if (!(fabsf(g[0][i] - g[1][i]) <= 0x1p-6f))
                fail_msg("%s, case %d: %g for %g", tn_dtype_name(d), how, (double)g[1][i], (double)g[0][i]);
    }
    assert_int_equal(tn_close(s), 0);
}

/* Elementwise values are rounded operator by operator, whatever runs with them: fused, next to one's own row,
 * read or not, they are eager mode's to the bit. x x + z, for an x whose square is 2^-24 more than its
 * nearest float, would show a product that is not. */
TEST(elementwise_values_have_the_bits_of_eager_mode)
{
    enum { LINES = 3, N = 1000 };
    static float x[N], z[LINES], got[LINES * N];
    for (int i = 0; i < N; i++) x[i] = 1 + 0x1p-12f;
    for (int i = 0; i < LINES; i++) z[i] = -(1 + 0x1p-11f);
    tn_session *s = open_mode(TN_FUSED);
    for (int how = 0; how < 4; how++) {
        tn_step_begin(s);
        tn_tensor *a = tn_from(s, x, TN_F32, TN_SHAPE(1, N)), *b = tn_from(s, z, TN_F32, TN_SHAPE(LINES, 1));
        tn_tensor *square = tn_mul(a, tn_expand(a, TN_SHAPE(LINES, N))), *y = tn_add(square, b);
        if (how == 1) y = tn_sub(y, tn_slice(y, 0, 1, 2, 1)); /* a row beside all */
        if (how == 2) y = tn_add(y, tn_relu(tn_neg(square))); /* the product has another reader */
        if (how == 3) {                                       /* made again in a second run */
            tn_tensor *most = tn_max(y, TN_AXES(1), true);
            assert_int_equal(tn_read(most, TN_F32, got, LINES * sizeof *got), 0);
            y = tn_sub(y, most);
        }
        assert_int_equal(tn_read(y, TN_F32, got, sizeof got), 0);
        for (int i = 0; i < LINES * N; i++) assert_true(got[i] == 0);
        tn_step_end(s);
    }
    assert_int_equal(tn_close(s), 0);
}

/* ---- limits ---- */

/* Neighbours that share an operand fuse until one kernel could not name all that is read and written. */
TEST_ON(more_operands_than_a_kernel_can_name, open_mode(TN_FUSED))
{
    enum { N = 41 };
    traced t = {.s = s};
    tn_tensor *x[N];
    tn_step_begin(s);
    for (int i = 0; i < N; i++) x[i] = input(&t, 40, 40);
    for (int i = 0; i < N - 1; i++) assert_non_null(tn_mul(x[i], x[i + 1]));
    seen v = look(s);
    if (v.kernels != 2) {
        print_plan(&v);
        fail_msg("%d kernels", v.kernels);
    }
    end_step(s, 2);
    forget(&v);
}

/* ---- optimizer ---- */

/* Three parameters of different shapes and an update of all: one kernel that reads gradient, parameter and
 * two moments and writes three; with clipping the norm is read before. */
TEST(an_update_is_one_kernel)
{
    for (int clip = 0; clip < 2; clip++) {
        tn_session *s = open_mode(TN_FUSED);
        tn_tensor *p[3] = {tn_param(s, "a", tn_ones(s, TN_F32, TN_SHAPE(33, 7))),
                           tn_param(s, "b", tn_ones(s, TN_F32, TN_SHAPE(129))),
                           tn_param(s, "c", tn_ones(s, TN_F32, TN_SHAPE(2, 3, 50)))};
        tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 0.01, .weight_decay = 0.1);
        for (int step = 0; step < 3; step++) {
            tn_step_begin(s);
            tn_tensor *loss = NULL;
            for (int i = 0; i < 3; i++) {
                tn_tensor *part = tn_sum(tn_square(p[i]), TN_ALL, false);
                loss = loss ? tn_add(loss, part) : part;
            }
            tn_backward(loss);
            assert_int_equal(tn_flush(s), 0);
            if (clip) tn_clip_grad_norm(opt, 0.5);
            tn_optim_step(opt);
            seen v = look(s);
            if (step) /* the first makes the moments */
                expect("adamw", clip ? "with clipping" : "update", &v, (bound){1 + clip, 0}, (bound){0});
            if (step && !clip) { /* blocks of 64 floats: 256 + 192 + 320 */
                const int64_t row = (256 + 192 + 320) * 4;
                if (v.bytes > 7 * row)
                    fail_msg("%lld bytes, expected %lld", (long long)v.bytes, (long long)(7 * row));
            }
            end_step(s, v.kernels);
            forget(&v);
        }
        assert_int_equal(tn_close(s), 0);
    }
}

RUN_TESTS(NULL, NULL)
