/* test_leaves.c - which tensors can be told to have a gradient, and that they get it: as in PyTorch, whatever
 * is made of nothing that has one. Start with what_operators_made. */
#include "tests/rig.h"

static void holds(tn_tensor *x, int n, const double *wanted)
{
    double v[16];
    assert_non_null(x);
    assert_int_equal(tn_read(x, TN_F64, v, (size_t)n * sizeof *v), 0);
    for (int i = 0; i < n; i++) assert_float_equal(v[i], wanted[i], 1e-5);
}

/* x has been made in this step of whatever: after a backward of sum(x^2 w) its gradient is 2 x w, and w's
 * x^2. */
static void is_leaf_now(tn_session *s, tn_tensor *x, tn_tensor *w)
{
    double v[4], gx[4], gw[4], half[4];
    assert_int_equal(tn_read(w, TN_F64, half, sizeof half), 0);
    assert_int_equal(tn_requires_grad(x, true), 0);
    assert_true(tn_wants_gradient(x));
    tn_tensor *loss = tn_sum(tn_mul(tn_square(x), w), TN_ALL, false);
    assert_int_equal(tn_backward(loss), 0);
    assert_int_equal(tn_read(x, TN_F64, v, sizeof v), 0);
    for (int i = 0; i < 4; i++) {
        gx[i] = 2 * v[i] * half[i];
        gw[i] = v[i] * v[i];
    }
    holds(tn_gradient(x), 4, gx);
    holds(tn_gradient(w), 4, gw);
    assert_int_equal(tn_error(s), TN_OK);
}

TEST(what_operators_made)
{
    ON_EACH_WAY(s) {
        tn_tensor *w = tn_param(s, "w", tn_full(s, 0.5, TN_F32, TN_SHAPE(4)));
        for (int what = 0; what < 8; what++)
            for (int round = 0; round < 3; round++) {
                tn_step_begin(s);
                tn_tensor *y = tn_mul_scalar(w, 3.0), *x = NULL;
                if (what == 0) x = tn_ones(s, TN_F32, TN_SHAPE(4));
                if (what == 1) x = tn_randn(s, TN_F32, TN_SHAPE(4));
                if (what == 2) x = tn_exp(tn_rand(s, TN_F32, TN_SHAPE(4)));
                if (what == 3) x = tn_detach(w);
                if (what == 4) x = tn_detach(y);
                if (what == 5) x = tn_reshape(tn_detach(tn_reshape(y, TN_SHAPE(2, 2))), TN_SHAPE(4));
                if (what == 6) x = tn_keep(y);
                if (what == 7) {
                    tn_no_grad_begin(s);
                    x = tn_square(y);
                    tn_no_grad_end(s);
                }
                is_leaf_now(s, x, w);
                if (what == 6) tn_free(x);
                assert_int_equal(tn_step_end(s), 0);
            }
    }
}

/* Inside of attention written out, too: it is not taken for one kernel that knows no such value. */
TEST(probabilities)
{
    double grad[2][16];
    for (int i = 0; i < 2; i++) {
        tn_session *s = open_way(i ? CPU_FUSED : CPU_EAGER);
        tn_tensor *q = tn_randn(s, TN_F32, TN_SHAPE(1, 4, 8)), *v = tn_randn(s, TN_F32, TN_SHAPE(1, 4, 8));
        tn_step_begin(s);
        tn_tensor *p = tn_softmax(tn_matmul(q, tn_transpose(q, -1, -2)), -1);
        assert_int_equal(tn_requires_grad(p, true), 0);
        assert_int_equal(tn_backward(tn_sum(tn_square(tn_matmul(p, v)), TN_ALL, false)), 0);
        assert_non_null(tn_gradient(p));
        assert_int_equal(tn_read(tn_gradient(p), TN_F64, grad[i], sizeof grad[0]), 0);
        assert_int_equal(tn_step_end(s), 0);
        assert_int_equal(tn_close(s), 0);
    }
    for (int k = 0; k < 16; k++) assert_float_equal(grad[0][k], grad[1][k], 1e-3);
}

/* What passes a gradient on, or cannot have one, stays as it is and is refused; what was told so can be told
 * off. */
TEST(what_cannot)
{
    ON_EACH_WAY(s) {
        tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(4)));
        tn_step_begin(s);
        tn_tensor *y = tn_exp(w), *x = tn_randn(s, TN_F32, TN_SHAPE(4));
        for (int on = 0; on < 2; on++)
            fails_with(s, TN_E_STATE, "tn_grad|tn_detach", tn_requires_grad(y, on));
        fails_with(s, TN_E_DTYPE, "", tn_requires_grad(tn_gt(y, y), true));
        tn_requires_grad(x, true);
        tn_requires_grad(x, false);
        assert_false(tn_wants_gradient(x));
        fails_with(s, TN_E_GRAD, "", tn_backward(tn_sum(tn_square(x), TN_ALL, false)));
        assert_int_equal(tn_backward(tn_sum(tn_mul(x, y), TN_ALL, false)), 0);
        assert_null(tn_gradient(x));
        assert_non_null(tn_gradient(w));
        tn_step_end(s);
    }
}

RUN_TESTS(NULL, NULL)
