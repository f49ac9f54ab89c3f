/* test_long_programs.c - steps of thousands of operators: what no kernel can hold at once is cut into
 * several, and the numbers are those of the program. Start with many_numbers. */
#include "check.h"
#include "subject.h"

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

/* ---- as many operands as a kernel can name ---- */

enum { ROWS = 6, COLS = 16, MOST = 66 };
typedef enum beside {
    PRODUCT,
    ACTIVATED,
    NORM,
    SUM,
    CONV,
    ATTENTION,
    CUMSUM,
    CONCAT,
    GATHER,
    POOL,
    KINDS
} beside;

/* What tensors are added to. x, w: [ROWS, COLS], [COLS, COLS] */
static tn_tensor *computed(tn_session *s, beside kind, tn_tensor *x, tn_tensor *w)
{
    static const int32_t rows[ROWS] = {5, 3, 3, 0, 1, 2};
    tn_tensor *image = tn_reshape(x, TN_SHAPE(1, ROWS, 1, COLS));
    switch (kind) {
    case PRODUCT: return tn_matmul(x, w);
    case ACTIVATED: return tn_tanh(tn_matmul(x, w));
    case NORM: return tn_mul(tn_layer_norm(x, NULL, NULL), tn_mean(w, TN_AXES(0), false));
    case SUM: return tn_mul(x, tn_sum(x, TN_AXES(0), true));
    case CONV:
        image = tn_conv2d(image, tn_reshape(w, TN_SHAPE(COLS, 1, 1, COLS)), NULL);
        return tn_reshape(image, TN_SHAPE(ROWS, COLS));
    case ATTENTION:
        image = tn_scaled_dot_product_attention(image, image, image);
        return tn_reshape(image, TN_SHAPE(ROWS, COLS));
    case CUMSUM: return tn_cumsum(x, 1);
    case CONCAT:
        return tn_slice(tn_concat(2, (tn_tensor *[]){tn_exp(x), tn_matmul(x, w)}, 0), 0, 3, 3 + ROWS, 1);
    case GATHER: return tn_index_select(x, 0, tn_from(s, rows, TN_I32, TN_SHAPE(ROWS)));
    case POOL:
        image = tn_max_pool2d(image, 3, .stride = 1, .pad = 1);
        return tn_reshape(image, TN_SHAPE(ROWS, COLS));
    case KINDS: break;
    }
    return NULL;
}

/* The loss and the gradients of x and w. */
static void run_with(tn_mode mode, beside kind, int n, float *out)
{
    tn_session *s = tn_open(.device = subject_device(), .mode = mode, .threads = 1, .seed = 5, .log = quiet);
    assert_non_null(s);
    tn_tensor *x = tn_param(s, "x", tn_randn(s, TN_F32, TN_SHAPE(ROWS, COLS)));
    tn_tensor *w = tn_param(s, "w", tn_randn(s, TN_F32, TN_SHAPE(COLS, COLS))), *add[MOST];
    for (int i = 0; i < n; i++) add[i] = tn_keep(tn_randn(s, TN_F32, TN_SHAPE(ROWS, COLS)));
    tn_step_begin(s);
    tn_tensor *y = computed(s, kind, x, w);
    for (int i = 0; i < n; i++) y = tn_add(y, add[i]);
    tn_tensor *loss = tn_mean(tn_mul(y, y), TN_ALL, false), *gw;
    tn_backward(loss);
    out[0] = (float)tn_item(loss);
    if (tn_read(tn_gradient(x), TN_F32, out + 1, ROWS * COLS * sizeof *out))
        fail_msg("%d operands beside %d: %s", n, kind, tn_error_text(s));
    if ((gw = tn_gradient(w))) tn_read(gw, TN_F32, out + 1 + ROWS * COLS, COLS * COLS * sizeof *out);
    tn_step_end(s);
    assert_string_equal(tn_error_text(s), "");
    assert_int_equal(tn_close(s), 0);
}

TEST(operands_beside_all_kinds_of_kernels)
{
    enum { ALL = 1 + ROWS * COLS + COLS * COLS };
    static float fused[ALL], eager[ALL];
    for (beside kind = 0; kind < KINDS; kind++)
        for (int n = 56; n <= MOST; n++) {
            memset(fused, 0, sizeof fused);
            memset(eager, 0, sizeof eager);
            run_with(TN_FUSED, kind, n, fused);
            run_with(TN_EAGER, kind, n, eager);
            for (int i = 0; i < ALL; i++)
                if (!(fabsf(fused[i] - eager[i]) <= 1e-4f * (1 + fabsf(eager[i]))))
                    fail_msg("%d operands beside %d: %d is %g, eager %g", n, kind, i, fused[i], eager[i]);
        }
}

RUN_TESTS(NULL, NULL)
