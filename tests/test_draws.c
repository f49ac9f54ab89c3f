/* test_draws.c - random numbers are a function of the seed and of their place in the program, on every device and in both
 * modes, and a mask is the same in backward. */
#include "rig.h"

TEST(draws_follow_the_program_and_the_seed)
{
    float a[100], b[100], c[100];
    for (int d = 0; d < 2; d++) {
        tn_session *s = open_way(d ? CPU_EAGER : REF_EAGER);
        tn_step_begin(s);
        float *out[2] = {d ? b : a, c};
        for (int i = 0; i < 2; i++) tn_read(tn_rand(s, TN_F32, TN_SHAPE(100)), TN_F32, out[i], sizeof a);
        assert_memory_not_equal(out[0], c, sizeof a);
        assert_int_equal(tn_rng_draw(s), 2);
        tn_set_rng(s, 3, 1);
        float again[100];
        tn_read(tn_rand(s, TN_F32, TN_SHAPE(100)), TN_F32, again, sizeof again);
        assert_memory_equal(again, c, sizeof again);
        tn_step_end(s);
        close_clean(s);
    }
    assert_memory_equal(a, b, sizeof a); /* bit-equal on both devices */
}

/* A mask that backward makes again is the one there was, or an error. */
TEST(another_seed_changes_no_mask)
{
    for (int other = 0; other < 2; other++)
        ON_EACH_WAY(s) {
            tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(100)));
            float y[100], g[100];
            tn_step_begin(s);
            tn_tensor *x = tn_dropout(w, 0.5);
            tn_read(x, TN_F32, y, sizeof y);
            tn_set_rng(s, other ? 5 : 3, 9);
            tn_backward(tn_sum(x, TN_ALL, false));
            const int status = tn_read(tn_gradient(w), TN_F32, g, sizeof g);
            if (!status) assert_memory_equal(y, g, sizeof y);
            assert_true(!status || (other && status == TN_E_STATE));
            tn_clear_error(s);
            tn_step_end(s);
        }
}

TEST(dropout_keeps_its_mask_in_backward_and_rests_in_evaluation)
{
    ON_EACH_WAY(s) {
        enum { N = 4096 };
        static float x[N], y[N], g[N];
        for (int i = 0; i < N; i++) x[i] = 1;
        tn_step_begin(s);
        tn_tensor *t = tn_from(s, x, TN_F32, TN_SHAPE(N));
        tn_requires_grad(t, 1);
        tn_tensor *o = tn_dropout(t, 0.25), *grad;
        tn_tensor *loss = tn_sum(o, TN_ALL, 0);
        assert_int_equal(tn_grad(loss, 1, &t, &grad), 0);
        tn_read(o, TN_F32, y, sizeof y);
        tn_read(grad, TN_F32, g, sizeof g);
        int kept = 0;
        for (int i = 0; i < N; i++) {
            assert_true(y[i] == 0 || fabsf(y[i] - 4.0f / 3) < 1e-6f);
            assert_true(y[i] == g[i]);
            kept += y[i] != 0;
        }
        assert_in_range(kept, N * 3 / 4 - 120, N * 3 / 4 + 120);
        tn_train(s, 0);
        tn_read(tn_dropout(t, 0.25), TN_F32, y, sizeof y);
        assert_memory_equal(x, y, sizeof x);
        tn_step_end(s);
    }
}

RUN_TESTS(NULL, NULL)