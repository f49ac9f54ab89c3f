/* test_long_programs.c - steps of thousands of operators: what no kernel can hold at once is cut into
 * several, and the numbers are those of the program. Start with many_numbers.
 */
#include "check.h"

/* A chain of n products with numbers, each its own; then backward: more numbers than one kernel can be given.
 */
TEST(many_numbers)
{
    for (int n = 60; n <= 2000; n = n * 5 / 2) {
        tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .threads = 1, .log = quiet);
        assert_non_null(s);
        tn_tensor *w = tn_param(s, "w", tn_full(s, 0.75, TN_F64, TN_SHAPE(3)));
        double slope = 1, add = 0, g[3], v;
        tn_step_begin(s);
        tn_tensor *x = w;
        for (int i = 0; i < n; i++) {
            const double by = 1 + 0.001 * (i % 17 - 8), plus = 0.01 * (i % 5);
            x = tn_add_scalar(tn_mul_scalar(x, by), plus);
            slope *= by;
            add = add * by + plus;
        }
        tn_tensor *loss = tn_sum(x, TN_ALL, false);
        assert_int_equal(tn_backward(loss), 0);
        assert_int_equal(tn_read(tn_gradient(w), TN_F64, g, sizeof g), 0);
        v = tn_item(loss);
        assert_int_equal(tn_step_end(s), 0);
        assert_true(fabs(g[1] - slope) < 1e-9 * (1 + fabs(slope)));
        assert_true(fabs(v - 3 * (0.75 * slope + add)) < 1e-9 * (1 + fabs(v)));
        assert_int_equal(tn_close(s), 0);
    }
}

RUN_TESTS(NULL, NULL)
