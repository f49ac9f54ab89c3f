/* test_precision.c - mixed precision: TN_PRECISION_BF16 means what casts written by hand mean, in what has it
 * and what has not, in both modes, layer by layer, and from step to step.
 *
 * Start with written_by_hand. */
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tensor_nn.h>

#include "tests/subject.h"

static void dtypes(void **state)
{
    (void)state;
    tn_session *s = tn_open(.device = subject_device(), .precision = TN_PRECISION_BF16);
    tn_linear *fc = tn_linear_new(s, "fc", 8, 6);
    tn_conv *conv = tn_conv2d_new(s, "conv", 3, 8, 3, .pad = 1);
    tn_norm *norm = tn_batch_norm_new(s, "norm", 8);
    tn_tensor *image = tn_randn(s, TN_F32, TN_SHAPE(2, 5, 5, 3)), *label = tn_zeros(s, TN_I32, TN_SHAPE(2));
    tn_tensor *wide = tn_ones(s, TN_F64, TN_SHAPE(8, 8)), *half = tn_ones(s, TN_F16, TN_SHAPE(8, 8));
    tn_step_begin(s);
    tn_tensor *y = tn_norm_forward(norm, tn_conv2d_forward(conv, image));
    tn_tensor *flat = tn_mean(y, TN_AXES(1, 2), false), *z = tn_linear_forward(fc, flat);
    tn_tensor *loss = tn_cross_entropy(z, label);
    const struct {
        tn_tensor *x;
        tn_dtype is;
    } all[] = {{y, TN_BF16},
               {tn_relu(y), TN_BF16},
               {flat, TN_F32}, /* a reduction */
               {z, TN_BF16},
               {tn_add(z, tn_ones(s, TN_F32, TN_SHAPE(6))), TN_F32},
               {tn_softmax(z, -1), TN_F32},
               {tn_log_softmax(z, -1), TN_F32},
               {loss, TN_F32},
               {tn_mse_loss(z, tn_zeros(s, TN_F32, TN_SHAPE(2, 6))), TN_F32},
               {tn_matmul(wide, wide), TN_F64},
               {tn_matmul(half, half), TN_F16},
               {fc->weight, TN_F32},
               {norm->running_mean, TN_F32}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].x || tn_dtype_of(all[i].x) != all[i].is)
            fail_msg("%zu: %s, should be %s (%s)", i,
                     all[i].x ? tn_dtype_name(tn_dtype_of(all[i].x)) : "NULL", tn_dtype_name(all[i].is),
                     tn_error_text(s));
    }
    tn_backward(loss);
    assert_int_equal(tn_dtype_of(tn_gradient(fc->weight)), TN_F32);
    assert_int_equal(tn_dtype_of(tn_gradient(conv->weight)), TN_F32);
    assert_int_equal(tn_step_end(s), 0);
    assert_int_equal(tn_close(s), 0);
}

/* ---- the same by hand ---- */

typedef enum way { HAND, PRECISION, BY_CALLS } way;

static tn_tensor *half(tn_tensor *x) { return tn_cast(x, TN_BF16); }

/* Two layers, attention and a loss, with all casts written out, or by the session's precision, or where the
 * session is of f32 by tn_set_precision around them. */
static tn_tensor *model(tn_session *s, way w, tn_tensor *x, tn_tensor *a, tn_tensor *bias, tn_tensor *k,
                        tn_tensor *label)
{
    if (w == BY_CALLS) assert_int_equal(tn_set_precision(s, TN_PRECISION_BF16), 0);
    const bool hand = w == HAND;
    tn_tensor *h = hand ? tn_affine(half(x), half(a), half(bias)) : tn_affine(x, a, bias);
    h = tn_reshape(tn_gelu(h), TN_SHAPE(2, 2, 6, 16));
    tn_tensor *kk = tn_expand(tn_reshape(k, TN_SHAPE(1, 1, 16, 16)), TN_SHAPE(2, 2, 16, 16));
    h = hand ? tn_scaled_dot_product_attention(h, half(kk), half(kk))
             : tn_scaled_dot_product_attention(h, kk, kk);
    h = tn_reshape(h, TN_SHAPE(24, 16));
    h = hand ? tn_matmul(h, half(k)) : tn_matmul(h, k);
    tn_tensor *loss = tn_cross_entropy(hand ? tn_cast(h, TN_F32) : h, label);
    if (w == BY_CALLS) assert_int_equal(tn_set_precision(s, TN_PRECISION_F32), 0);
    return tn_add(loss, tn_mean(tn_square(tn_matmul(hand || w == PRECISION ? tn_cast(a, TN_F64) : a,
                                                    hand || w == PRECISION ? tn_cast(k, TN_F64) : k)),
                                0, NULL, false));
}

enum { STEPS = 4, PARAMS = 3 };

static void train(way w, tn_mode mode, double *loss, float *end)
{
    tn_session *s = tn_open(.device = subject_device(), .mode = mode, .seed = 5,
                            .precision = w == PRECISION ? TN_PRECISION_BF16 : TN_PRECISION_F32);
    tn_tensor *p[PARAMS] = {tn_param(s, "a", tn_randn(s, TN_F32, TN_SHAPE(16, 16))),
                            tn_param(s, "bias", tn_randn(s, TN_F32, TN_SHAPE(16))),
                            tn_param(s, "k", tn_randn(s, TN_F32, TN_SHAPE(16, 16)))};
    tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(24, 16)), *label = tn_zeros(s, TN_I32, TN_SHAPE(24));
    tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 0.1);
    for (int i = 0; i < STEPS; i++) {
        tn_step_begin(s);
        tn_tensor *l = model(s, w, x, p[0], p[1], p[2], label);
        tn_backward(l);
        tn_optim_step(o);
        loss[i] = tn_item(l);
        if (tn_step_end(s)) fail_msg("%s", tn_error_text(s));
    }
    for (int i = 0, at = 0; i < PARAMS; at += (int)tn_numel(p[i++]))
        assert_int_equal(tn_read(p[i], TN_F32, end + at, (size_t)tn_numel(p[i]) * sizeof *end), 0);
    assert_int_equal(tn_close(s), 0);
}

static void written_by_hand(void **state)
{
    (void)state;
    enum { ALL = 16 * 16 + 16 + 16 * 16 };
    static double loss[2][STEPS];
    static float end[2][ALL];
    /* a GPU's kernel for a product may hand on more digits than bf16 has to what it is one kernel with */
    const double off = subject_device() == TN_CPU ? 1e-6 : 4e-3;
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++) {
        train(HAND, (tn_mode)mode, loss[0], end[0]);
        train(PRECISION, (tn_mode)mode, loss[1], end[1]);
        for (int i = 0; i < STEPS; i++) assert_true(fabs(loss[0][i] - loss[1][i]) < off * fabs(loss[0][i]));
        for (int i = 0; i < ALL; i++)
            if (!(fabs(end[0][i] - end[1][i]) < 10 * off))
                fail_msg("%d: %.8g and %.8g", i, end[0][i], end[1][i]);
    }
    /* the last term in f32 instead of f64: nearly the same */
    train(BY_CALLS, TN_FUSED, loss[1], end[1]);
    for (int i = 0; i < STEPS; i++) assert_true(fabs(loss[0][i] - loss[1][i]) < 1e-3 * fabs(loss[0][i]));
}

/* ---- from step to step ---- */

/* A step that makes the same calls at another precision is no repetition of the one before. */
static void changes_between_steps(void **state)
{
    (void)state;
    tn_session *s = tn_open(.device = subject_device());
    tn_tensor *x = tn_full(s, 1 + 0x1p-10, TN_F32, TN_SHAPE(4, 4)), *one = tn_ones(s, TN_F32, TN_SHAPE(4, 4));
    for (int i = 0; i < 6; i++) {
        const bool low = i & 1;
        assert_int_equal(tn_set_precision(s, low ? TN_PRECISION_BF16 : TN_PRECISION_F32), 0);
        assert_int_equal(tn_get_precision(s), low ? TN_PRECISION_BF16 : TN_PRECISION_F32);
        tn_step_begin(s);
        tn_tensor *y = tn_matmul(x, one);
        assert_int_equal(tn_dtype_of(y), low ? TN_BF16 : TN_F32);
        assert_true(tn_item(tn_max(y, TN_ALL, false)) == (low ? 4 : 4 + 0x1p-8));
        assert_int_equal(tn_step_end(s), 0);
    }
    assert_int_equal(tn_set_precision(s, TN_PRECISION_TF32), TN_E_ARG);
    assert_non_null(strstr(tn_error_text(s), "set_precision"));
    tn_clear_error(s);
    assert_int_equal(tn_set_precision(NULL, TN_PRECISION_F32), TN_E_NULL);
    assert_int_equal(tn_close(s), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(dtypes), cmocka_unit_test(written_by_hand),
                                       cmocka_unit_test(changes_between_steps)};
    return cmocka_run_group_tests_name("precision", tests, NULL, NULL);
}
