/* test_nn_compare.c - tn_compare leaves no trace in a training run, tells of both modes, and refuses what it
 * cannot do; the mode of a session can be changed between steps. */
#include "check.h"

#include "../include/tensor_nn.h"

enum { STEPS = 6, BATCH = 16, IN = 12 };

typedef struct model {
    tn_linear *a, *b;
    tn_norm *norm;
    tn_optim *opt;
    tn_tensor *x, *y;
    int calls, fail_at;
    double loss;
} model;

static model open_model(tn_session *s)
{
    model m = {.fail_at = -1};
    m.a = tn_linear_new(s, "a", IN, 20);
    m.norm = tn_batch_norm_new(s, "norm", 20);
    m.b = tn_linear_new(s, "b", 20, 5);
    m.opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2, .weight_decay = 0.1);
    m.x = tn_randn(s, TN_F32, TN_SHAPE(BATCH, IN));
    m.y = tn_randint(s, 0, 5, TN_I32, TN_SHAPE(BATCH));
    return m;
}

static int step(tn_session *s, void *user)
{
    model *m = user;
    if (m->calls++ == m->fail_at) return TN_E_UNSUPPORTED;
    tn_step_begin(s);
    tn_tensor *h = tn_dropout(tn_gelu(tn_norm_forward(m->norm, tn_linear_forward(m->a, m->x))), 0.1);
    tn_tensor *loss = tn_cross_entropy(tn_linear_forward(m->b, h), m->y);
    tn_backward(loss);
    tn_optim_step(m->opt);
    m->loss = tn_item(loss);
    return tn_step_end(s);
}

/* The losses of a run that stops to compare behind step `at`, if that is one. */
static void losses(double *out, int at, tn_comparison *found)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 7);
    model m = open_model(s);
    FILE *quiet = tmpfile();
    char line[200];
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(step(s, &m), 0);
        out[i] = m.loss;
        if (i != at) continue;
        char plan[4096]; /* what is told of the last step, too, is as it was */
        snprintf(plan, sizeof(plan), "%s", tn_plan_text(s));
        assert_int_equal(tn_compare(s, step, &m, .rounds = 7, .seconds = 1e-6, .out = quiet, .result = found),
                         0);
        assert_int_equal(tn_get_mode(s), TN_FUSED);
        assert_string_equal(tn_plan_text(s), plan);
        rewind(quiet);
        assert_non_null(fgets(line, sizeof(line), quiet));
        double faster, low, high, before, after;
        unsigned eager, fused;
        assert_int_equal(sscanf(line, "fused %lfx (%lf-%lf), %u > %u launches, %lf > %lf MB moved\n", &faster,
                                &low, &high, &eager, &fused, &before, &after),
                         7);
        assert_true(low <= faster && faster <= high && eager == found->launches[0] &&
                    fused == found->launches[1]);
    }
    fclose(quiet);
    assert_int_equal(tn_close(s), 0);
}

static void leaves_no_trace(void **state)
{
    (void)state;
#ifndef TN_HAVE_CJSON
    skip();
#endif
    double alone[STEPS], stopped[STEPS];
    tn_comparison c;
    losses(alone, -1, NULL);
    for (int at = 0; at < 3; at += 2) {
        losses(stopped, at, &c);
        for (int i = 0; i < STEPS; i++) assert_true(alone[i] == stopped[i]);
        assert_int_equal(c.rounds, 6); /* time was up long before */
        assert_true(c.launches[0] > c.launches[1] && c.launches[1] > 0 && c.bytes[0] > c.bytes[1]);
        assert_true(c.ms[0] > 0 && c.ms[1] > 0 && c.low > 0);
    }
}

/* Steps of both modes in any order compute what those of one do, up to rounding. */
static void modes_take_turns(void **state)
{
    (void)state;
    double one[STEPS], both[STEPS];
    char plan[2][8192] = {"", ""};
    losses(one, -1, NULL);
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 7);
    model m = open_model(s);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(tn_set_mode(s, i == 1 || i == 4 ? TN_EAGER : TN_FUSED), 0);
        tn_tensor *outside = tn_add_scalar(m.x, 1); /* lives on until the step */
        assert_int_equal(step(s, &m), 0);
        assert_int_equal(tn_ndim(outside), -1);
        both[i] = m.loss;
        assert_true(fabs(both[i] - one[i]) < 1e-4);
        /* A step is told as one of its own mode, and at once. */
        assert_int_equal(tn_set_mode(s, TN_FUSED), 0);
        const bool eager = i == 1 || i == 4;
        if (i == 0 || eager) snprintf(plan[eager], sizeof(plan[eager]), "%s", tn_plan_text(s));
        assert_string_equal(tn_plan_text(s), plan[eager]);
        assert_true(!strstr(plan[eager], "segment") && (strcmp(plan[0], plan[1]) || !i));
    }
    tn_step_begin(s);
    assert_int_equal(tn_set_mode(s, TN_EAGER), TN_E_STATE);
    assert_int_equal(tn_compare(s, step, &m), TN_E_STATE);
    tn_step_end(s);
    tn_clear_error(s);
    assert_int_equal(tn_set_mode(s, TN_MODE_AUTO), TN_E_ARG);
    tn_close(s);
}

static void refuses(void **state)
{
    (void)state;
    tn_session *s = tn_open(.device = TN_CPU, .log = quiet);
    model m = open_model(s);
    assert_int_equal(tn_compare(NULL, step, &m), TN_E_NULL);
    assert_int_equal(tn_compare(s, NULL, &m), TN_E_NULL);
    tn_clear_error(s);
    assert_int_equal(tn_compare(s, step, &m, .rounds = 5), TN_E_ARG);
    tn_clear_error(s);
    m.fail_at = 3;
    assert_int_equal(tn_compare(s, step, &m), TN_E_UNSUPPORTED);
    assert_non_null(strstr(tn_error_text(s), "the step has returned -17"));
    tn_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(leaves_no_trace), cmocka_unit_test(modes_take_turns),
                                       cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
