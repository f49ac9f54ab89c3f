/* test_gradients.c - gradients that nobody asks for (src/runtime/spare.c): they take no memory of their own,
 * the weights come to the bits that they come to with all gradients kept, and whoever asks for one gets it.
 *
 * A run is one of `ways`, which say in what steps something looks at a gradient. Start with train. */
#include "src/runtime/session.h"
#include "tests/subject.h"
#include "tests/test.h"

#include <tensor_nn.h>

enum { WIDE = 192, STEPS = 6, BATCH = 8, BYTES = WIDE * WIDE * 4 };

typedef enum way { NOBODY, CLIPPED, BEFORE, AFTER, FLUSHED, READ, KEPT, VIEWED, SLAB, TWICE, N_WAYS } way;

typedef struct net {
    tn_session *s;
    tn_linear *a, *b;
    tn_norm *norm;
    tn_optim *opt;
    float gradient[WIDE * WIDE], weight[2][WIDE * WIDE];
    double loss;
    size_t bytes; /* behind the last step */
    char text[8192];
} net;

static tn_tensor *input(tn_session *s, int step)
{
    static float x[BATCH * WIDE];
    for (int i = 0; i < BATCH * WIDE; i++) x[i] = (float)((i * 7 + step * 13) % 31 - 15) / 16;
    return tn_from(s, x, TN_F32, TN_SHAPE(BATCH, WIDE));
}

static tn_tensor *loss_of(net *n, int step)
{
    tn_tensor *h = tn_relu(tn_norm_forward(n->norm, tn_linear_forward(n->a, input(n->s, step))));
    return tn_mean(tn_square(tn_linear_forward(n->b, h)), TN_ALL, false);
}

static void read_all(tn_tensor *x, float *to) { assert_int_equal(tn_read(x, TN_F32, to, BYTES), 0); }

/* `at`: the step in which somebody looks, -1: each. What a's gradient is in step `at` (or the last) goes to
 * n->gradient. */
static void train(net *n, tn_mode mode, way w, int at)
{
    *n = (net){.s = tn_open(.device = subject_device(), .mode = mode, .seed = 3, .log = quiet)};
    tn_session *s = n->s;
    assert_non_null(s);
    n->a = tn_linear_new(s, "a", WIDE, WIDE);
    n->norm = tn_layer_norm_new(s, "norm", WIDE);
    n->b = tn_linear_new(s, "b", WIDE, WIDE);
    n->opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2, .weight_decay = 0.1);
    tn_optim_group(n->opt, "*bias", .lr_factor = 0.5);
    tn_tensor *kept = NULL, *weight = tn_find(s, "a.weight"), *slab;
    for (int step = 0; step < STEPS; step++) {
        const bool now = at < 0 || step == at, last = now && (at >= 0 || step == STEPS - 1);
        tn_step_begin(s);
        tn_tensor *loss = loss_of(n, step), *g = NULL;
        tn_backward(loss);
        if (w == TWICE && now) tn_backward(tn_mul_scalar(loss, 0.5));
        if (w == CLIPPED && now) tn_clip_grad_norm(n->opt, 1e30);
        if (w == BEFORE && now) g = tn_gradient(weight);
        if (w == SLAB && now) {
            assert_int_equal(tn_param_slab(s, TN_F32, NULL, &slab), 0);
            g = tn_reshape(tn_slice(slab, 0, 0, WIDE * WIDE, 1), TN_SHAPE(WIDE, WIDE));
            g = tn_mul_scalar(g, 1);
        }
        if (w == VIEWED && now) g = tn_transpose(tn_transpose(tn_gradient(weight), 0, 1), 0, 1);
        if (w == FLUSHED && now) tn_flush(s);
        if (w == KEPT && now) kept = tn_keep(tn_gradient(weight));
        tn_optim_step(n->opt);
        if (w == READ && now) n->loss = tn_item(loss);
        if ((w == AFTER || w == READ || w == FLUSHED || w == CLIPPED) && now) g = tn_gradient(weight);
        if (g && last) read_all(g, n->gradient);
        tn_step_end(s);
        if (kept && last) read_all(kept, n->gradient);
        if (kept) tn_free(kept);
        kept = NULL;
    }
    tn_stats st = {.size = sizeof st};
    assert_int_equal(tn_get_stats(s, &st), 0);
    n->bytes = st.bytes_now;
    FILE *f = tmpfile();
    tn_explain(s, f);
    rewind(f);
    n->text[fread(n->text, 1, sizeof n->text - 1, f)] = 0;
    fclose(f);
    read_all(weight, n->weight[0]);
    read_all(tn_find(s, "b.weight"), n->weight[1]);
    assert_string_equal(tn_error_text(s), "");
    assert_int_equal(tn_close(s), 0);
}

static const net *eager_at(int at)
{
    static net n;
    train(&n, TN_EAGER, AFTER, at);
    return &n;
}

static void near(const float *x, const float *want)
{
    double off = 0, size = 0;
    for (int i = 0; i < WIDE * WIDE; i++) {
        off = fabs((double)x[i] - want[i]) > off ? fabs((double)x[i] - want[i]) : off;
        size = fabs(want[i]) > size ? fabs(want[i]) : size;
    }
    assert_true(size > 0 && off <= 1e-4 * size);
}

/* Whoever looks, at a gradient of whichever step: it is the right one, and the weights have the same bits. */
TEST(whoever_asks_for_a_gradient_gets_it)
{
    static net nobody, n;
    train(&nobody, TN_FUSED, NOBODY, -1);
    for (int k = 0; k < 2; k++) {
        const int at = k ? 3 : 0;
        const net *eager = eager_at(at);
        near(nobody.weight[0], eager->weight[0]);
        for (way w = CLIPPED; w < TWICE; w++) {
            train(&n, TN_FUSED, w, at);
            near(n.gradient, eager->gradient);
            assert_memory_equal(n.weight, nobody.weight, sizeof n.weight);
        }
    }
    for (way w = CLIPPED; w < TWICE; w++) {
        train(&n, TN_FUSED, w, -1);
        near(n.gradient, eager_at(STEPS - 1)->gradient);
        assert_memory_equal(n.weight, nobody.weight, sizeof n.weight);
    }
}

/* A second backward adds to a gradient that an update may have been meant to read. */
TEST(gradients_add_up)
{
    static net n, eager;
    for (int at = -1; at < 4; at += 2) {
        train(&n, TN_FUSED, TWICE, at);
        train(&eager, TN_EAGER, TWICE, at);
        near(n.weight[0], eager.weight[0]);
        near(n.weight[1], eager.weight[1]);
    }
}

TEST(they_take_no_memory)
{
    static net nobody, n;
    train(&nobody, TN_FUSED, NOBODY, -1);
    if (subject_device() != TN_CPU) return;
    assert_non_null(strstr(nobody.text, "gradients of large parameters: 0.29 MB never stored"));
    assert_null(strstr(nobody.text, "MB kept for tn_gradient"));
    for (way w = CLIPPED; w < TWICE; w++) {
        train(&n, TN_FUSED, w, -1);
        assert_true(n.bytes >= nobody.bytes + BYTES);
        /* what has run before the update is in the slab as ever: its update reads that */
        const bool ran = w == CLIPPED || w == FLUSHED || w == VIEWED;
        assert_int_equal(!ran, strstr(n.text, "gradients of large parameters:") != NULL);
        assert_int_equal(!ran, strstr(n.text, "MB kept for tn_gradient") != NULL);
    }
}

/* What a kernel of its own kind makes is in memory until its update, and no longer. */
TEST_ON(those_of_tables_and_convolutions_die_with_their_update,
        tn_open(.device = subject_device(), .seed = 3, .log = quiet))
{
    tn_embed *table = tn_embedding_new(s, "table", 500, 64);
    tn_conv *conv = tn_conv2d_new(s, "conv", 64, 64, 3, .pad = 1);
    tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = 0.1, .momentum = 0.9);
    const int64_t index[6] = {3, 499, 3, 17, 0, 3};
    for (int step = 0; step < 4; step++) {
        tn_step_begin(s);
        tn_tensor *x = tn_embedding_forward(table, tn_from(s, index, TN_I64, TN_SHAPE(1, 2, 3)));
        tn_backward(tn_sum(tn_square(tn_conv2d_forward(conv, x)), TN_ALL, false));
        tn_optim_step(opt);
        tn_step_end(s);
    }
    tn_stats st = {.size = sizeof st};
    assert_int_equal(tn_get_stats(s, &st), 0);
    const size_t values = (500 * 64 + 64 * 64 * 9) * 4;
    if (subject_device() == TN_CPU) assert_true(st.bytes_now < 3 * values);
}

/* Where the last line of `text` with this word begins; -1: there is none. */
static long last_of(const char *text, const char *word)
{
    long at = -1;
    for (const char *p = text; (p = strstr(p, word)); p++) at = p - text;
    return at;
}

/* A table's gradient is as large as the table: it waits until what the other gradients read is gone. */
TEST(the_gradient_of_a_table_comes_last)
{
    static float x[512 * 256];
    int64_t index[512];
    for (int i = 0; i < 512 * 256; i++) x[i] = (float)(i * 7 % 31 - 15) / 16;
    for (int i = 0; i < 512; i++) index[i] = i * 37 % 4096;
    for (int swapped = 0; swapped < 2; swapped++) {
        tn_session *s = tn_open(.device = TN_CPU, .seed = 3, .log = quiet);
        tn_embed *table = tn_embedding_new(s, "table", 4096, 64);
        tn_linear *a = tn_linear_new(s, "a", 256, 256), *b = tn_linear_new(s, "b", 256, 64);
        tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2);
        for (int step = 0; step < 4; step++) {
            tn_step_begin(s);
            tn_tensor *h = tn_from(s, x, TN_F32, TN_SHAPE(512, 256));
            h = tn_relu(tn_linear_forward(b, tn_relu(tn_linear_forward(a, h))));
            tn_tensor *e = tn_relu(tn_embedding_forward(table, tn_from(s, index, TN_I64, TN_SHAPE(512))));
            tn_tensor *both[2] = {swapped ? e : h, swapped ? h : e};
            tn_backward(tn_mean(tn_square(tn_concat(2, both, 1)), TN_ALL, false));
            tn_optim_step(opt);
            tn_step_end(s);
        }
        const char *plan = tn_plan_text(s);
        assert_true(last_of(plan, "index_add") > last_of(plan, "matmul"));
        assert_true(last_of(plan, "matmul") > 0);
        assert_int_equal(tn_close(s), 0);
    }
}

/* The products that make a gradient read the parameter that its update writes: no part of it may move before all
 * have been read. */
TEST(a_parameter_that_its_own_gradient_reads)
{
    static float w[2][WIDE * WIDE];
    for (int mode = 0; mode < 2; mode++) {
        tn_session *s =
            tn_open(.device = subject_device(), .mode = mode ? TN_EAGER : TN_FUSED, .seed = 5, .log = quiet);
        tn_tensor *p = tn_param(s, "p", tn_mul_scalar(tn_randn(s, TN_F32, TN_SHAPE(WIDE, WIDE)), 0.05));
        tn_tensor *q = tn_param(s, "q", tn_mul_scalar(tn_randn(s, TN_F32, TN_SHAPE(WIDE, WIDE)), 0.05));
        tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = 0.5);
        for (int step = 0; step < 4; step++) {
            tn_step_begin(s);
            tn_tensor *loss = tn_sum(tn_square(tn_matmul(tn_matmul(p, p), q)), TN_ALL, false);
            tn_backward(tn_add(loss, tn_sum(tn_square(tn_matmul(q, tn_transpose(q, 0, 1))), TN_ALL, false)));
            tn_optim_step(opt);
            tn_step_end(s);
        }
        read_all(p, w[mode]);
        assert_int_equal(tn_close(s), 0);
    }
    near(w[0], w[1]);
}

TEST_ON(windows_are_checked, tn_open(.device = subject_device(), .log = quiet))
{
    tn_tensor *x = tn_zeros(s, TN_F32, TN_SHAPE(4, 4)), *w = tn_window(x, 4, TN_SHAPE(2, 3));
    float v[16];
    assert_non_null(w);
    assert_int_equal(tn_assign(w, tn_full(s, 2, TN_F32, TN_SHAPE(2, 3))), 0);
    assert_int_equal(tn_read(x, TN_F32, v, sizeof v), 0);
    for (int i = 0; i < 16; i++) assert_true(v[i] == (i >= 4 && i < 10 ? 2.f : 0.f));
    assert_null(tn_window(NULL, 0, TN_SHAPE(1)));
    assert_null(tn_window(x, 11, TN_SHAPE(2, 3)));
    assert_int_equal(tn_error(s), TN_E_SHAPE);
    tn_clear_error(s);
    assert_null(tn_window(x, -1, TN_SHAPE(2)));
    tn_clear_error(s);
    assert_null(tn_window(x, 0, TN_SHAPE(INT64_MAX, INT64_MAX)));
    tn_clear_error(s);
    tn_free(x); /* the window has the memory still */
    assert_int_equal(tn_read(w, TN_F32, v, 6 * sizeof *v), 0);
    assert_true(v[5] == 2.f);
}

/* Gradients that are scaled by hand where they stand are what the update reads, whatever their size. */
TEST(who_assigns_to_the_slab_is_heard)
{
    for (int how = 0; how < 4; how++) {
        tn_session *s = tn_open(.device = subject_device(), .mode = how % 2 ? TN_FUSED : TN_EAGER, .seed = 3,
                                .log = quiet);
        tn_tensor *w = tn_param(s, "w", tn_zeros(s, TN_F32, TN_SHAPE(WIDE, WIDE))), *values, *gradients;
        tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 1);
        assert_int_equal(tn_param_slab(s, TN_F32, &values, &gradients), 0);
        float got[WIDE * WIDE];
        for (int step = 1; step < 4; step++) {
            tn_step_begin(s);
            tn_backward(tn_sum(tn_matmul(input(s, 0), w), TN_ALL, false));
            if (how / 2 || step == 2) tn_assign(gradients, tn_mul_scalar(gradients, 0.25));
            tn_optim_step(o);
            tn_step_end(s);
        }
        read_all(w, got);
        for (int i = 0; i < WIDE; i++) {
            double sum = 0;
            for (int k = 0; k < BATCH; k++) sum += ((i + k * WIDE) * 7 % 31 - 15) / 16.0;
            assert_true(fabs(got[i * WIDE] + (how / 2 ? 0.75 : 2.25) * sum) < 1e-4);
        }
        assert_int_equal(tn_close(s), 0);
    }
}

/* Behind an assignment tn_gradient gives what was assigned, another backward adds to that, and the update reads the
 * sum, in both modes and whatever has run before: of one parameter that it covers, and one that it does not. */
TEST(what_is_assigned_is_the_gradient)
{
    enum { N = 100 };
    for (int how = 0; how < 16; how++) {
        const bool whole = how & 4;
        tn_session *s =
            tn_open(.device = subject_device(), .mode = how & 8 ? TN_FUSED : TN_EAGER, .log = quiet);
        tn_tensor *w[2] = {tn_param(s, "a", tn_full(s, 1, TN_F32, TN_SHAPE(N))),
                           tn_param(s, "b", tn_full(s, 2, TN_F32, TN_SHAPE(N)))};
        tn_tensor *values, *gradients;
        tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 0.5);
        if (whole)
            assert_int_equal(tn_param_slab(s, TN_F32, &values, &gradients), 0);
        else
            assert_int_equal(tn_param_range(s, TN_F32, 2, 2, &values, &gradients), 0); /* b's blocks */
        double want[2] = {1, 2};
        for (int step = 0; step < STEPS; step++) {
            tn_tensor *kept[2][2], *loss = NULL;
            tn_step_begin(s);
            for (int k = 0; k < 2; k++) {
                tn_tensor *half = tn_mul_scalar(tn_sum(tn_square(w[k]), TN_ALL, false), 0.5);
                loss = k ? tn_add(loss, half) : half;
            }
            tn_backward(loss);
            tn_tensor *before[2] = {tn_gradient(w[0]), tn_gradient(w[1])};
            if (how & 1) tn_flush(s);
            tn_assign(gradients, tn_mul_scalar(gradients, 0.25));
            for (int k = 0; k < 2; k++) before[k] = tn_keep(before[k]); /* as it was */
            if (how & 2) tn_flush(s);
            for (int k = 0; k < 2; k++) kept[0][k] = tn_keep(tn_gradient(w[k]));
            tn_backward(tn_add(tn_sum(w[0], TN_ALL, false), tn_sum(w[1], TN_ALL, false)));
            for (int k = 0; k < 2; k++) kept[1][k] = tn_keep(tn_gradient(w[k]));
            tn_optim_step(o);
            tn_step_end(s);
            assert_string_equal(tn_error_text(s), "");
            for (int k = 0; k < 2; k++) {
                const double g = want[k] * (whole || k ? 0.25 : 1);
                const double was = want[k];
                float got[4][N];
                want[k] -= 0.5 * (g + 1);
                tn_tensor *const all[4] = {kept[0][k], kept[1][k], w[k], before[k]};
                for (int i = 0; i < 4; i++) tn_read(all[i], TN_F32, got[i], sizeof got[i]);
                assert_string_equal(tn_error_text(s), "");
                for (int i = 0; i < N; i++)
                    assert_true(fabs(got[0][i] - g) < 1e-6 && fabs(got[1][i] - g - 1) < 1e-6 &&
                                fabs(got[2][i] - want[k]) < 1e-6 && fabs(got[3][i] - was) < 1e-6);
                for (int i = 0; i < 2; i++) tn_free(kept[i][k]);
                tn_free(before[k]);
            }
        }
        tn_step_begin(s); /* where they stand, and not where they are handed out */
        tn_backward(tn_sum(w[0], TN_ALL, false));
        assert_int_equal(tn_assign(tn_gradient(w[0]), w[1]), TN_E_STATE);
        assert_non_null(strstr(tn_error_text(s), "where they stand: tn_param_slab, tn_param_range"));
        tn_step_end(s);
        assert_int_equal(tn_close(s), TN_E_STATE);
    }
}

/* Checked mode, which copies what a run reads and writes, by whole slabs. */
TEST(checked_where_a_slab_has_memory_in_part)
{
    static net n[2];
    setenv("TENSOR_CHECK", "1", 1);
    train(&n[0], TN_EAGER, NOBODY, -1);
    train(&n[1], TN_FUSED, NOBODY, -1);
    unsetenv("TENSOR_CHECK");
    near(n[1].weight[0], n[0].weight[0]);
}

RUN_TESTS(NULL, NULL)
