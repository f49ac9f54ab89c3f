/* test_warnings.c - what a session says unasked of the steps it runs: memory that grows from step to step, and steps
 * that are planned anew again and again. Each is said once, and not where nothing is wrong. */
#include "rig.h"

#include "src/runtime/session.h"

static void count_growth(int level, const char *text, void *user)
{
    if (level != TN_LOG_WARN || !strstr(text, "device memory has grown in ")) return;
    assert_non_null(strstr(text, "made outside of steps, and by tn_keep wherever that is"));
    ++*(int *)user;
}

/* Tensors that are kept in each step are named as what fills the memory, once; shapes that become larger step
 * by step, or come and go, are not, in either mode. */
TEST(what_grows_says_so)
{
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++)
        for (int kind = 0; kind < 4; kind++) {
            const bool leaks = kind % 2;
            int said = 0;
            tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .log = count_growth, .log_user = &said);
            tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(6)));
            for (int i = 1; i <= (kind == 2 ? 36 : 12); i++) {
                const int rows = kind == 0 ? 1000 * i : leaks ? 1000 : 1000 + 1000 * (i % 6);
                tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(rows, 6));
                tn_step_begin(s);
                tn_tensor *y = tn_mul(x, w);
                tn_backward(tn_mean(tn_square(y), TN_ALL, false));
                if (kind == 3) tn_keep(y);
                assert_int_equal(tn_step_end(s), 0);
                if (kind != 1) tn_free(x);
                if (leaks) assert_int_equal(said, i >= 4);
            }
            assert_int_equal(said, leaks);
            assert_int_equal(tn_close(s), 0);
        }
}

/* What an optimizer makes for parameters that are frozen now and then is little by little, and comes to an end:
 * nothing is said. A scalar that each step leaves is little as well, and is told once there are many. */
TEST(what_grows_a_little_says_so_when_it_is_much)
{
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++)
        for (int leaks = 0; leaks < 2; leaks++) {
            int said = 0, highest = 0;
            tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .log = count_growth, .log_user = &said);
            tn_tensor *a = tn_param(s, "a", tn_ones(s, TN_F32, TN_SHAPE(30, 50)));
            tn_tensor *b = tn_param(s, "b", tn_ones(s, TN_F32, TN_SHAPE(50)));
            tn_optim *o = tn_adam(s, tn_all_params(s), .accumulate = 2);
            size_t before = 0;
            for (int i = 0, grown = 0; i < (leaks ? 400 : 24); i++) {
                if (!leaks && i % 2 == 0) tn_freeze(s, "a", i % 4 == 2);
                tn_step_begin(s);
                tn_tensor *loss = tn_mean(tn_square(tn_mul(a, b)), TN_ALL, false);
                tn_backward(loss);
                tn_optim_step(o);
                for (int k = 0; leaks && k < 64; k++) tn_keep(tn_add_scalar(loss, (double)k));
                assert_int_equal(tn_step_end(s), 0);
                const size_t now = stats_of(s).bytes_now;
                grown = before && now > before ? grown + 1 : 0;
                if (grown > highest) highest = grown;
                before = now;
                if (i < 100) assert_int_equal(said, 0);
            }
            assert_true(highest >= 3);
            assert_int_equal(said, leaks);
            assert_int_equal(tn_close(s), 0);
        }
}

static void keep_churn(int level, const char *text, void *user)
{
    char *kept = user;
    if (level != TN_LOG_WARN || !strstr(text, "plans made anew")) return;
    if (kept[0]) fail_msg("said twice: %s", text);
    snprintf(kept, 600, "%s", text);
}

/* A step that is another one again and again is named with what differs; as often as one has to look, once.
 * Not where two kinds of step take turns, nor where the changes are far apart. */
TEST(changing_steps_are_named)
{
    for (int kind = 0; kind < 4; kind++) {
        char said[600] = "";
        int line = 0;
        tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .log = keep_churn, .log_user = said);
        for (int i = 0; i < (kind == 3 ? 300 : 24); i++) {
            int n = kind == 1 ? 30 + i : kind == 2 ? 30 + i % 2 : kind == 3 ? 30 + i / 30 : 30;
            tn_step_begin(s);
            tn_tensor *x = tn_ones(s, TN_F32, TN_SHAPE(n, 5));
            line = __LINE__, x = kind == 0 && i % 2 ? tn_relu(x) : tn_tanh(x);
            for (int k = 0; kind == 0 && k < i; k++) x = tn_neg(x);
            tn_item(tn_sum(x, TN_ALL, false));
            assert_int_equal(tn_step_end(s), 0);
            assert_int_equal(said[0] != 0, kind < 2 && i >= 9);
        }
        char where[64];
        snprintf(where, sizeof where, "test_warnings.c:%d", line);
        if (kind == 0 && !strstr(said, where)) fail_msg("%s, expected %s", said, where);
        if (kind == 0) assert_non_null(strstr(said, "differs from the step before in relu of f32 [30, 5]"));
        if (kind == 1) assert_non_null(strstr(said, "of f32 [39, 5] in ones at test_warnings.c:"));
        if (kind == 1) assert_non_null(strstr(said, "which was contiguous of f32 [38, 5] in ones"));
        assert_int_equal(tn_close(s), 0);
    }
}

int main(void)
{
    setenv("TENSOR_KERNEL_OPT", "1", 0); /* much is compiled and little computed */
    return run_all_tests(NULL, NULL);
}
