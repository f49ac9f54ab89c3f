/* test_explain_check.c - checked mode (TENSOR_CHECK): it compares each new group with the same nodes run
 * apart, changes nothing that a program can see, and names a kernel that is wrong. Start with
 * checked_mode_catches_a_planted_fault. */
#include "explain_rig.h"

static void weights(model *m, float *out)
{
    assert_int_equal(tn_read(m->in->weight, TN_F32, out, sizeof(float) * WIDTH * WIDTH), 0);
}

TEST(checked_mode_finds_nothing_where_nothing_is_wrong)
{
    setenv("TENSOR_CHECK", "1", 1);
    tn_session *s = open_as(TN_FUSED, 2);
    unsetenv("TENSOR_CHECK");
    model m = make(s);
    for (int i = 0; i < 3; i++) train(&m, i == 1);
    enum { STEPS = 40, LINES = 8, HIDDEN = 32 }; /* parts of what is dead are others' already */
    tn_tensor *x = tn_param(s, "x", tn_randn(s, TN_F32, TN_SHAPE(STEPS, LINES, 4 * HIDDEN)));
    tn_tensor *w = tn_param(s, "w", tn_randn(s, TN_F32, TN_SHAPE(4 * HIDDEN, HIDDEN)));
    tn_step_begin(s);
    tn_backward(tn_mean(tn_square(tn_lstm(tn_mul_scalar(x, 0.5), w, NULL, NULL, NULL)), TN_ALL, false));
    assert_int_equal(tn_step_end(s), 0);
    assert_string_equal(said, "");
    assert_int_equal(s->explain->found, 0);
    tn_close(s);
}

enum { OBSERVED = 32 * 96 };

/* Two steps whose gradients are easily taken for wrong: those of a norm in f64 that cancel all but wholly,
 * behind a loss in f32; of a cross entropy in f16. With them dropout's draws and an assignment. */
static void observed_steps(tn_session *s, double *out)
{
    int32_t label[32];
    for (int i = 0; i < 32; i++) label[i] = i * 3;
    tn_tensor *w = tn_param(s, "w", tn_randn(s, TN_F32, TN_SHAPE(32, 96)));
    tn_tensor *v = tn_param(s, "v", tn_ones(s, TN_F64, TN_SHAPE(96)));
    tn_tensor *y = tn_keep(tn_from(s, label, TN_I32, TN_SHAPE(32)));
    tn_tensor *count = tn_zeros(s, TN_F32, TN_SHAPE(1));
    for (int i = 0; i < 2; i++) {
        tn_step_begin(s);
        tn_tensor *h = tn_layer_norm(tn_cast(w, TN_F64), v, NULL, .eps = 1e-5);
        tn_backward(tn_mean(tn_square(tn_cast(h, TN_F32)), TN_ALL, false));
        tn_tensor *half = tn_cast(tn_mul_scalar(tn_dropout(w, 0.3), 5.0), TN_F16);
        tn_backward(tn_cast(tn_cross_entropy(half, y), TN_F32));
        tn_assign(count, tn_add_scalar(count, 1.0));
        tn_assign(w, tn_sub(w, tn_mul_scalar(tn_gradient(w), 0.1)));
        assert_int_equal(tn_read(tn_gradient(w), TN_F64, out + i * OBSERVED, OBSERVED * sizeof *out), 0);
        assert_int_equal(tn_step_end(s), 0);
    }
    assert_int_equal(tn_read(w, TN_F64, out + 2 * OBSERVED, OBSERVED * sizeof *out), 0);
    out[3 * OBSERVED] = tn_item(count);
    out[3 * OBSERVED + 1] = (double)tn_rng_draw(s);
}

TEST(checked_mode_only_observes)
{
    static double out[2][3 * OBSERVED + 2];
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++) {
        for (int checked = 0; checked < 2; checked++) {
            if (checked) setenv("TENSOR_CHECK", "1", 1);
            tn_session *s = open_as((tn_mode)mode, 2);
            unsetenv("TENSOR_CHECK");
            observed_steps(s, out[checked]);
            assert_string_equal(said, "");
            assert_int_equal(s->explain->found, 0);
            tn_close(s);
        }
        assert_memory_equal(out[0], out[1], sizeof out[0]);
    }
}

/* A kernel that is wrong is named with its line; the step's results are right all the same; and from the next
 * step on its operators run apart, so that it is not there any more. */
TEST(checked_mode_catches_a_planted_fault)
{
    static float want[WIDTH * WIDTH], got[WIDTH * WIDTH];
    for (int checked = 0; checked < 2; checked++) {
        if (checked) setenv("TENSOR_CHECK", "1", 1);
        tn_session *s = open_as(TN_FUSED, 2);
        unsetenv("TENSOR_CHECK");
        model m = make(s);
        forget();
        if (checked) tn_check_plant(s, 8);
        train(&m, false);
        if (checked) {
            has(said, "checked mode: kernel ");
            has(said, "explain_rig.h:");
            assert_true(s->explain->found > 0);
        }
        for (int i = 0; i < 2; i++)
            train(&m, false); /* the second has a new plan: the moments are there now */
        int found = s->explain->found;
        forget();
        for (int i = 0; i < 2; i++) train(&m, false);
        assert_int_equal(s->explain->found, found);
        assert_string_equal(said, "");
        if (checked) has(explained(s), "checked mode found their kernel wrong");
        weights(&m, checked ? got : want);
        tn_close(s);
    }
    for (int i = 0; i < WIDTH * WIDTH; i++)
        if (!(fabsf(got[i] - want[i]) < 2e-3F)) fail_msg("%d: %g %g", i, (double)got[i], (double)want[i]);
}

/* w - lr * gradient of mean(log(x w)) in two steps: all is well, then x has a negative number. */
static tn_tensor *log_step(tn_session *s, tn_tensor *w, float third, int *line)
{
    const float x[4] = {1, 2, third, 4};
    tn_step_begin(s);
    tn_tensor *h = tn_mul(tn_from(s, x, TN_F32, TN_SHAPE(4)), w);
    tn_tensor *l = tn_log(h);
    *line = __LINE__ - 1;
    tn_tensor *loss = tn_mean(tn_square(l), TN_ALL, false);
    if (!tn_backward(loss)) tn_assign(w, tn_sub(w, tn_mul_scalar(tn_gradient(w), 0.1)));
    tn_step_end(s);
    return w;
}

/* A loss that is not finite ends the step before anything is updated, and the call it comes from is named, in
 * a plan that is new as in one that has run before; without checked mode it is trained with, as in PyTorch.
 */
TEST(a_loss_that_is_not_finite)
{
    const float bad[] = {-1, 0, NAN};
    const char *const words[] = {"the loss is nan|came out of|log at test_explain_check.c:",
                                 "the loss is inf|came out of|log at test_explain_check.c:",
                                 "the loss is nan|, which was there before, holds such already"};
    for (int way = 0; way < 12; way++) {
        bool checked = way & 1, fused = way & 2;
        int k = way / 4, line;
        char place[16];
        if (checked) setenv("TENSOR_CHECK", "1", 1);
        tn_session *s = open_as(fused ? TN_FUSED : TN_EAGER, 2);
        unsetenv("TENSOR_CHECK");
        tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(1)));
        for (int i = 0; i < 3; i++) log_step(s, w, 3, &line);
        assert_int_equal(tn_error(s), 0);
        double before = tn_item(w);
        log_step(s, w, bad[k], &line);
        snprintf(place, sizeof place, ":%d", line);
        if (!checked) {
            assert_int_equal(tn_error(s), 0);
            assert_false(isfinite(tn_item(w)));
        } else {
            assert_int_equal(tn_error(s), TN_E_NONFINITE);
            char copy[160], *part = strcpy(copy, words[k]), *rest;
            for (part = strtok_r(copy, "|", &rest); part; part = strtok_r(NULL, "|", &rest))
                has(tn_error_text(s), part);
            if (k < 2) has(tn_error_text(s), place);
            tn_clear_error(s);
            assert_true(tn_item(w) == before);
            log_step(s, w, 3, &line);
            assert_int_equal(tn_error(s), 0);
        }
        tn_close(s);
    }
    /* where it is new, too */
    setenv("TENSOR_CHECK", "1", 1);
    tn_session *s = open_as(TN_FUSED, 2);
    unsetenv("TENSOR_CHECK");
    int line;
    log_step(s, tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(1))), -1, &line);
    assert_int_equal(tn_close(s), TN_E_NONFINITE);
}

/* Many operands are joined by several kernels: what the last of them has yet to write is nobody's fault. */
TEST(what_is_not_joined_yet_is_not_blamed)
{
    enum { STEPS = 80 };
    for (int way = 0; way < 3; way++) {
        setenv("TENSOR_CHECK", "1", 1);
        tn_session *s = open_as(TN_FUSED, 1);
        unsetenv("TENSOR_CHECK");
        tn_tensor *x = tn_keep(tn_randn(s, TN_F32, TN_SHAPE(STEPS, 64, 8))), *h[STEPS];
        tn_tensor *w = tn_param(s, "w", tn_randn(s, TN_F32, TN_SHAPE(8, 8)));
        int at[2];
        char place[16];
        tn_step_begin(s);
        for (int t = 0; t < STEPS; t++) {
            h[t] = tn_add(tn_select(x, 0, t), tn_matmul(t ? h[t - 1] : tn_select(x, 0, t), w));
            h[t] = way == 1 && t == 40 ? tn_log(tn_sub_scalar(tn_tanh(h[t]), 9)) : tn_tanh(h[t]);
            if (t == 40) at[0] = __LINE__ - 1;
        }
        tn_tensor *y = way == 2 ? tn_stack(STEPS, h, 1) : tn_concat(STEPS, h, 1);
        tn_tensor *z = tn_sub_scalar(tn_matmul(tn_reshape(y, TN_SHAPE(STEPS * 64, 8)), w), 1e9);
        at[1] = __LINE__ + 1;
        tn_backward(tn_mean(tn_log(z), TN_ALL, false));
        tn_step_end(s);
        assert_int_equal(tn_error(s), TN_E_NONFINITE);
        snprintf(place, sizeof place, ":%d", at[way != 1]);
        has(tn_error_text(s), "log at");
        has(strstr(tn_error_text(s), "log at"), place);
        tn_close(s);
    }
}

RUN_TESTS(NULL, NULL)
