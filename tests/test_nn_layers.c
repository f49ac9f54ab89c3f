/* test_nn_layers.c - layers: names, shapes, initial values, what they compute, what they refuse; evaluation;
 * learning-rate schedules.
 *
 * Distributions are tested by their bounds and first two moments, at five standard errors of a fixed seed.
 * What attention and the transformer block compute is compared with PyTorch in test_golden.c. Read
 * expect_uniform first. */
#include "tests/golden.h"

static tn_session *S;
static const char *WHERE;

static double *values(tn_tensor *t)
{
    int64_t n = tn_numel(t);
    double *v = calloc((size_t)n + 1, sizeof(*v));
    assert_non_null(v);
    if (tn_read(t, TN_F64, v, (size_t)n * sizeof(*v))) fail_msg("%s: %s", WHERE, tn_error_text(S));
    return v;
}

static void expect_shape(tn_tensor *t, const char *name, int ndim, const int64_t *shape)
{
    if (!t) fail_msg("%s: %s is NULL: %s", WHERE, name, tn_error_text(S));
    assert_string_equal(tn_name(t), name);
    assert_int_equal(tn_ndim(t), ndim);
    for (int i = 0; i < ndim; i++) assert_int_equal(tn_dim(t, i), shape[i]);
    assert_ptr_equal(tn_find(S, name), t);
}

/* Mean and variance of n draws within 5 standard errors of mean 0 and the given variance; `fourth` is the
 * fourth central moment over the squared variance. */
static void expect_moments(const double *v, int64_t n, double variance, double fourth, const char *name)
{
    double mean = 0, var = 0;
    for (int64_t i = 0; i < n; i++) mean += v[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++) var += (v[i] - mean) * (v[i] - mean);
    var /= (double)(n - 1);
    if (fabs(mean) > 5 * sqrt(variance / (double)n)) fail_msg("%s: mean %g of %s", WHERE, mean, name);
    if (fabs(var / variance - 1) > 5 * sqrt((fourth - 1) / (double)n))
        fail_msg("%s: variance %g of %s, %g expected", WHERE, var, name, variance);
}

static void expect_uniform(tn_tensor *t, double bound)
{
    double *v = values(t), low = 0, high = 0;
    int64_t n = tn_numel(t);
    for (int64_t i = 0; i < n; i++) {
        if (v[i] < low) low = v[i];
        if (v[i] > high) high = v[i];
    }
    assert_true(low >= -bound * (1 + 1e-6) && high <= bound * (1 + 1e-6));
    if (n >= 100) assert_true(low < -0.9 * bound && high > 0.9 * bound);
    if (n >= 100) expect_moments(v, n, bound * bound / 3, 9.0 / 5, tn_name(t));
    for (int64_t i = 1; i < n; i++) assert_true(v[i] != v[i - 1]);
    free(v);
}

static void expect_normal(tn_tensor *t, double std)
{
    double *v = values(t);
    expect_moments(v, tn_numel(t), std * std, 3, tn_name(t));
    free(v);
}

static void expect_all(tn_tensor *t, double want)
{
    double *v = values(t);
    for (int64_t i = 0; i < tn_numel(t); i++) assert_true(v[i] == want);
    free(v);
}

/* ---- initial values ---- */

static void initial_values(void)
{
    tn_linear *fc = tn_linear_new(S, "fc", 50, 40);
    expect_shape(fc->weight, "fc.weight", 2, (int64_t[]){40, 50});
    expect_shape(fc->bias, "fc.bias", 1, (int64_t[]){40});
    expect_uniform(fc->weight, 1 / sqrt(50));
    expect_uniform(fc->bias, 1 / sqrt(50));
    tn_linear *bare = tn_linear_new(S, "bare", 50, 40, .no_bias = true, .init_std = 0.02);
    assert_null(bare->bias);
    assert_null(tn_find(S, "bare.bias"));
    expect_normal(bare->weight, 0.02);
    tn_linear *gpt = tn_linear_new(S, "gpt", 50, 40, .init_std = 0.02);
    expect_all(gpt->bias, 0);

    tn_conv *c = tn_conv2d_new(S, "c", 6, 32, 3, .groups = 2, .pad = 1);
    expect_shape(c->weight, "c.weight", 4, (int64_t[]){32, 3, 3, 3});
    expect_shape(c->bias, "c.bias", 1, (int64_t[]){32});
    expect_uniform(c->weight, 1 / sqrt(27));
    expect_uniform(c->bias, 1 / sqrt(27));

    tn_norm *bn = tn_batch_norm_new(S, "bn", 7), *ln = tn_layer_norm_new(S, "ln", 7, .no_bias = true),
            *rms = tn_rms_norm_new(S, "rms", 7), *gn = tn_group_norm_new(S, "gn", 2, 8, .no_affine = true);
    expect_shape(bn->running_var, "bn.running_var", 1, (int64_t[]){7});
    expect_all(bn->weight, 1);
    expect_all(bn->bias, 0);
    expect_all(bn->running_mean, 0);
    expect_all(bn->running_var, 1);
    assert_true(ln->weight && !ln->bias && !ln->running_mean && rms->weight && !rms->bias);
    assert_true(!gn->weight && !gn->bias);

    tn_embed *e = tn_embedding_new(S, "e", 60, 30),
             *small = tn_embedding_new(S, "small", 60, 30, .init_std = 0.02);
    expect_shape(e->weight, "e.weight", 2, (int64_t[]){60, 30});
    expect_normal(e->weight, 1);
    expect_normal(small->weight, 0.02);

    tn_multi_head_attention *a = tn_multi_head_attention_new(S, "a", 24, 4);
    expect_shape(a->in_proj_weight, "a.in_proj_weight", 2, (int64_t[]){72, 24});
    expect_shape(a->in_proj_bias, "a.in_proj_bias", 1, (int64_t[]){72});
    expect_shape(a->out_proj_weight, "a.out_proj.weight", 2, (int64_t[]){24, 24});
    expect_shape(a->out_proj_bias, "a.out_proj.bias", 1, (int64_t[]){24});
    expect_uniform(a->in_proj_weight, sqrt(6.0 / 96));
    expect_uniform(a->out_proj_weight, 1 / sqrt(24));
    expect_all(a->in_proj_bias, 0);
    expect_all(a->out_proj_bias, 0);

    tn_transformer_block *b =
        tn_transformer_block_new(S, "b", 24, 4, .hidden = 50, .init_std = 0.02, .init_out_std = 0.01);
    expect_shape(b->linear1->weight, "b.linear1.weight", 2, (int64_t[]){50, 24});
    expect_shape(b->linear2->bias, "b.linear2.bias", 1, (int64_t[]){24});
    expect_shape(b->norm2->weight, "b.norm2.weight", 1, (int64_t[]){24});
    expect_normal(b->self_attn->in_proj_weight, 0.02);
    expect_normal(b->self_attn->out_proj_weight, 0.01);
    expect_normal(b->linear1->weight, 0.02);
    expect_normal(b->linear2->weight, 0.01);
    tn_transformer_block *lean = tn_transformer_block_new(S, "lean", 24, 4, .no_bias = true);
    assert_true(!lean->linear1->bias && !lean->norm1->bias && !lean->self_attn->in_proj_bias);
    assert_int_equal(lean->linear1->out, 96);
}

/* The first draws, as they are on every device. */
static void same_everywhere(double *first, bool compare)
{
    tn_linear *fc = tn_linear_new(S, "same", 8, 8);
    tn_embed *e = tn_embedding_new(S, "same_embed", 8, 8);
    double *a = values(fc->weight), *b = values(e->weight);
    for (int i = 0; i < 64; i++) {
        if (compare) assert_true(fabs(a[i] - first[i]) <= 1e-7 && fabs(b[i] - first[64 + i]) <= 4e-6);
        first[i] = a[i];
        first[64 + i] = b[i];
    }
    free(a);
    free(b);
}

TEST(distributions)
{
    double first[128];
    for (int at = 0; at < PLACE_COUNT; at++) {
        WHERE = PLACES[at].name;
        S = open_place(&PLACES[at], NULL, NULL);
        same_everywhere(first, at > 0);
        initial_values();
        expect_fine(S, WHERE);
        tn_close(S);
    }
}

/* ---- forward ---- */

static tn_tensor *ramp(int ndim, const int64_t *shape)
{
    float v[4096];
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    assert_true(n <= 4096);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 37 % 101) - 50) / 50;
    return tn_from(S, v, TN_F32, ndim, shape);
}
#define RAMP(...) ramp(TN_SHAPE(__VA_ARGS__))

static void expect_dims(tn_tensor *t, int ndim, const int64_t *shape)
{
    if (!t) fail_msg("%s: %s", WHERE, tn_error_text(S));
    assert_int_equal(tn_ndim(t), ndim);
    for (int i = 0; i < ndim; i++) assert_int_equal(tn_dim(t, i), shape[i]);
}
#define DIMS(t, ...) expect_dims(t, TN_SHAPE(__VA_ARGS__))

static void expect_equal(tn_tensor *x, tn_tensor *y)
{
    double *a = values(x), *b = values(y);
    assert_int_equal(tn_numel(x), tn_numel(y));
    for (int64_t i = 0; i < tn_numel(x); i++)
        if (fabs(a[i] - b[i]) > 1e-5 * (1 + fabs(b[i]))) fail_msg("%s: %g, not %g", WHERE, a[i], b[i]);
    free(a);
    free(b);
}

static void forward_shapes(void)
{
    tn_linear *fc = tn_linear_new(S, "fc", 6, 4);
    tn_conv *c = tn_conv2d_new(S, "c", 3, 8, 3, .stride = 2, .pad = 1),
            *d = tn_conv2d_new(S, "d", 3, 4, 3, .dilation = 2);
    tn_norm *bn = tn_batch_norm_new(S, "bn", 6), *ln = tn_layer_norm_new(S, "ln", 6),
            *rms = tn_rms_norm_new(S, "rms", 6), *gn = tn_group_norm_new(S, "gn", 3, 6);
    tn_embed *e = tn_embedding_new(S, "e", 5, 6);
    tn_transformer_block *b = tn_transformer_block_new(S, "b", 6, 2, .causal = true, .gelu_tanh = true);
    tn_step_begin(S);
    DIMS(tn_linear_forward(fc, RAMP(2, 3, 6)), 2, 3, 4);
    DIMS(tn_conv2d_forward(c, RAMP(2, 7, 9, 3)), 2, 4, 5, 8);
    DIMS(tn_conv2d_forward(d, RAMP(2, 7, 9, 3)), 2, 3, 5, 4);
    tn_norm *norms[] = {bn, ln, rms, gn};
    for (int i = 0; i < 4; i++) DIMS(tn_norm_forward(norms[i], RAMP(2, 5, 6)), 2, 5, 6);
    expect_equal(tn_norm_forward(gn, RAMP(2, 5, 6)), tn_group_norm(RAMP(2, 5, 6), 3, gn->weight, gn->bias));
    tn_tensor *index = tn_from(S, (int32_t[]){0, 4, 2, 2}, TN_I32, TN_SHAPE(2, 2));
    DIMS(tn_embedding_forward(e, index), 2, 2, 6);
    DIMS(tn_multi_head_attention_forward(b->self_attn, RAMP(2, 5, 6)), 2, 5, 6);
    DIMS(tn_transformer_block_forward(b, RAMP(2, 5, 6)), 2, 5, 6);
    expect_fine(S, WHERE);
    tn_step_end(S);
}

/* A layer is its operator with the layer's tensors. */
static void forward_values(void)
{
    tn_linear *fc = tn_linear_new(S, "fv", 6, 4);
    tn_norm *ln = tn_layer_norm_new(S, "lnv", 6, .eps = 0.1);
    tn_step_begin(S);
    tn_tensor *x = RAMP(5, 6);
    expect_equal(tn_linear_forward(fc, x), tn_add(tn_matmul(x, tn_transpose(fc->weight, 0, 1)), fc->bias));
    tn_tensor *mean = tn_mean(x, TN_AXES(-1), true), *var = tn_var(x, TN_AXES(-1), true, 0);
    expect_equal(tn_norm_forward(ln, x), tn_div(tn_sub(x, mean), tn_sqrt(tn_add_scalar(var, 0.1))));
    expect_fine(S, WHERE);
    tn_step_end(S);
}

static void training_and_evaluation(void)
{
    tn_transformer_block *b = tn_transformer_block_new(S, "drop", 6, 2, .dropout = 0.5);
    tn_norm *bn = tn_batch_norm_new(S, "bnm", 2, .momentum = 0.5);
    tn_step_begin(S);
    tn_tensor *x = RAMP(2, 5, 6);
    double *p = values(tn_transformer_block_forward(b, x)), *q = values(tn_transformer_block_forward(b, x));
    assert_true(memcmp(p, q, 60 * sizeof(*p)) != 0);
    free(p);
    free(q);
    tn_tensor *two = tn_from(S, (float[]){1, 10, 3, 30}, TN_F32, TN_SHAPE(2, 2));
    tn_norm_forward(bn, two);
    tn_step_end(S);
    p = values(bn->running_mean); /* half way from 0 to the mean, from 1 to the unbiased variance */
    q = values(bn->running_var);
    assert_true(fabs(p[0] - 1) < 1e-6 && fabs(p[1] - 10) < 1e-6 && fabs(q[0] - 1.5) < 1e-6 &&
                fabs(q[1] - 100.5) < 1e-4);
    free(p);
    free(q);
    tn_train(S, false);
    tn_step_begin(S);
    x = RAMP(2, 5, 6);
    expect_equal(tn_transformer_block_forward(b, x), tn_transformer_block_forward(b, x));
    two = tn_from(S, (float[]){1, 10}, TN_F32, TN_SHAPE(1, 2));
    p = values(tn_norm_forward(bn, two));
    assert_true(fabs(p[0]) < 1e-6 && fabs(p[1]) < 1e-6);
    free(p);
    tn_step_end(S);
    p = values(bn->running_mean); /* evaluation moves nothing */
    assert_true(fabs(p[0] - 1) < 1e-6);
    free(p);
    tn_train(S, true);
    expect_fine(S, WHERE);
}

TEST(forward)
{
    for (int at = 0; at < PLACE_COUNT; at++) {
        WHERE = PLACES[at].name;
        S = open_place(&PLACES[at], NULL, NULL);
        forward_shapes();
        forward_values();
        training_and_evaluation();
        assert_int_equal(tn_close(S), TN_OK);
    }
}

static uint64_t kernels(void)
{
    tn_stats v = stats_of(S);
    return v.kernels + v.copies;
}

/* The product that makes a weight's gradient writes it where it belongs: no copy after it. What is left of
 * the backward of linear -> sum(y * c) beside library calls is c's share of y and the sum for the bias. */
TEST(gradients_are_not_copied)
{
    for (int at = 1; at < PLACE_COUNT; at++) {
        WHERE = PLACES[at].name;
        S = open_place(&PLACES[at], NULL, NULL);
        tn_linear *bias = tn_linear_new(S, "bias", 24, 16),
                  *bare = tn_linear_new(S, "bare", 24, 16, .no_bias = true);
        for (int kind = 0; kind < 2; kind++) {
            tn_step_begin(S);
            tn_tensor *x = RAMP(8, 24), *c = RAMP(8, 16);
            tn_tensor *loss = tn_sum(tn_mul(tn_linear_forward(kind ? bias : bare, x), c), TN_ALL, false);
            tn_flush(S);
            uint64_t before = kernels();
            tn_backward(loss);
            tn_flush(S);
            uint64_t n = kernels() - before;
            expect_fine(S, WHERE);
            if (PLACES[at].mode == TN_EAGER && n > (kind ? 2u : 1u))
                fail_msg("%s: %d kernels beside the products", WHERE, (int)n);
            double *got = values(tn_gradient((kind ? bias : bare)->weight));
            double *want = values(tn_matmul(tn_transpose(c, 0, 1), x));
            for (int i = 0; i < 16 * 24; i++) assert_true(fabs(got[i] - want[i]) <= 1e-5);
            free(got);
            free(want);
            tn_step_end(S);
        }
        tn_close(S);
    }
}

/* ---- refused ---- */

static void expect_error(const void *got, int status, const char *part)
{
    assert_null(got);
    if (tn_error(S) != status)
        fail_msg("status %d instead of %d: '%s'", tn_error(S), status, tn_error_text(S));
    if (!strstr(tn_error_text(S), part)) fail_msg("'%s' does not say '%s'", tn_error_text(S), part);
    tn_clear_error(S);
}

TEST(refused)
{
    char lengthy[300];
    memset(lengthy, 'n', sizeof(lengthy) - 1);
    lengthy[sizeof(lengthy) - 1] = 0;
    WHERE = "ref";
    S = open_place(&PLACES[0], NULL, NULL);
    expect_error(tn_linear_new(S, "fc", 0, 3), TN_E_ARG,
                 "'fc' needs in > 0, out > 0, init_std >= 0; in is 0, out 3, init_std 0");
    expect_error(tn_linear_new(S, NULL, 3, 3), TN_E_NULL, "no name");
    expect_error(tn_linear_new(S, lengthy, 3, 3), TN_E_ARG, "longer than");
    expect_error(tn_conv2d_new(S, "c", 3, 4, 3, .groups = 2), TN_E_ARG, "multiples of groups");
    expect_error(tn_conv2d_new(S, "c", 3, 4, 0), TN_E_ARG, "kernel 0, stride 0");
    expect_error(tn_group_norm_new(S, "g", 3, 4), TN_E_ARG, "multiple of groups");
    expect_error(tn_batch_norm_new(S, "b", 3, .momentum = 2), TN_E_ARG, "momentum 2");
    expect_error(tn_embedding_new(S, "e", 3, -1), TN_E_ARG, "features -1");
    expect_error(tn_multi_head_attention_new(S, "a", 6, 4), TN_E_ARG, "multiple of heads");
    expect_error(tn_transformer_block_new(S, "t", 6, 2, .dropout = 1), TN_E_ARG, "dropout in [0, 1)");
    assert_int_equal(tn_param_count(S), 0);
    assert_non_null(tn_linear_new(S, "fc", 3, 3));
    expect_error(tn_linear_new(S, "fc", 3, 3), TN_E_ARG, "the name 'fc.weight' is taken");
    assert_null(tn_linear_new(NULL, "x", 3, 3));
    assert_null(tn_linear_forward(NULL, NULL));
    assert_null(tn_conv2d_forward(NULL, NULL));
    assert_null(tn_norm_forward(NULL, NULL));
    assert_null(tn_embedding_forward(NULL, NULL));
    assert_null(tn_multi_head_attention_forward(NULL, NULL));
    assert_null(tn_transformer_block_forward(NULL, NULL));
    tn_norm *ln = tn_layer_norm_new(S, "ln", 6);
    tn_multi_head_attention *a = tn_multi_head_attention_new(S, "a", 6, 2);
    tn_step_begin(S);
    expect_error(tn_norm_forward(ln, RAMP(2, 5)), TN_E_SHAPE, "x has 5 features, layer 'ln' 6");
    tn_tensor *flat = RAMP(2, 6);
    null_with(S, TN_E_SHAPE, "", tn_multi_head_attention_forward(a, flat));
    tn_step_end(S);
    tn_close(S);
}

/* Allocation k fails while layers are made, for every k until none does. */
TEST(no_memory)
{
    for (long k = 0;; k++) {
        S = open_place(&PLACES[0], NULL, NULL);
        tn_alloc_fail_after(k);
        tn_transformer_block *b = tn_transformer_block_new(S, "b", 4, 2);
        tn_norm *n = tn_batch_norm_new(S, "n", 3);
        tn_optim *o = b && n ? tn_adamw(S, tn_all_params(S)) : NULL;
        tn_alloc_fail_after(-1);
        int status = tn_error(S);
        tn_close(S);
        if (o) {
            assert_int_equal(status, TN_OK);
            break;
        }
        if (status != TN_E_NOMEM) fail_msg("allocation %ld: status %d", k, status);
        assert_true(k < 100000);
    }
}

/* ---- evaluation ---- */

/* Logits that are right for even items. */
static tn_tensor *half_right(tn_session *s, tn_tensor *x, void *user)
{
    int *calls = user;
    ++*calls;
    assert_false(tn_is_training(s));
    return tn_reshape(x, TN_SHAPE(-1, 3));
}

static tn_tensor *wrong_shape(tn_session *s, tn_tensor *x, void *user)
{
    (void)s, (void)user;
    return x;
}

static tn_tensor *ends_the_step(tn_session *s, tn_tensor *x, void *user)
{
    (void)user;
    tn_tensor *of_the_step = tn_relu(x);
    tn_step_end(s);
    return of_the_step;
}

TEST(evaluation)
{
    enum { N = 600 };
    static float x[N * 3];
    static int32_t y[N];
    for (int i = 0; i < N; i++) {
        y[i] = i % 3;
        x[3 * i + (y[i] + i % 2) % 3] = 1;
    }
    for (int at = 0; at < PLACE_COUNT; at++) {
        int calls = 0;
        WHERE = PLACES[at].name;
        S = open_place(&PLACES[at], NULL, NULL);
        tn_dataset *d = tn_dataset_from(S, x, y, N, TN_SHAPE(3, 1));
        double share = tn_evaluate(S, d, half_right, &calls);
        expect_fine(S, WHERE);
        assert_true(share == 0.5);
        assert_int_equal(calls, 3);
        assert_true(tn_is_training(S));
        assert_true(isnan(tn_evaluate(S, d, wrong_shape, NULL)));
        assert_int_equal(tn_error(S), TN_E_SHAPE);
        assert_true(tn_is_training(S));
        assert_true(isnan(tn_evaluate(S, d, half_right, &calls))); /* the error stays */
        tn_clear_error(S);
        expect_error(isnan(tn_evaluate(S, d, ends_the_step, NULL)) ? NULL : d, TN_E_STALE, "must not end");
        assert_true(isnan(tn_evaluate(S, NULL, half_right, &calls)));
        assert_int_equal(tn_error(S), TN_E_NULL);
        tn_close(S);
    }
}

/* ---- schedules ---- */

static bool near(double a, double b) { return fabs(a - b) < 1e-12; }

TEST(schedules)
{
    assert_true(near(tn_lr_cosine(0, 4, 14, 1, 0.2), 0.25) && near(tn_lr_cosine(3, 4, 14, 1, 0.2), 1));
    assert_true(near(tn_lr_cosine(4, 4, 14, 1, 0.2), 1) && near(tn_lr_cosine(9, 4, 14, 1, 0.2), 0.6));
    assert_true(near(tn_lr_cosine(14, 4, 14, 1, 0.2), 0.2) && near(tn_lr_cosine(99, 4, 14, 1, 0.2), 0.2));
    assert_true(near(tn_lr_linear(1, 2, 12, 1, 0), 1) && near(tn_lr_linear(7, 2, 12, 1, 0), 0.5));
    assert_true(near(tn_lr_linear(12, 2, 12, 1, 0), 0));
    assert_true(near(tn_lr_steps(0, 0, 10, 0.5, 8), 8) && near(tn_lr_steps(9, 0, 10, 0.5, 8), 8));
    assert_true(near(tn_lr_steps(10, 0, 10, 0.5, 8), 4) && near(tn_lr_steps(34, 5, 10, 0.5, 8), 2));
    assert_true(near(tn_lr_cosine(5, 5, 5, 1, 0.1), 0.1)); /* nothing after the warm-up */
}

RUN_TESTS(NULL, NULL)
