/* test_fusion_composites.c - operators that are made of others are few kernels: a loss sum(f(x) * w) with the
 * gradients of f's operands, and how many kernels stand forward and backward. Start with the table. */
#include "check.h"

/* X(name, kernels of the step with the scalar's, the operands' shapes, the composite). */
/* clang-format off */
#define ROWS(X)                                                                                              \
    X(swiglu, 3, ({64, 96}, {64, 96}), tn_swiglu(x[0], x[1]))                                                \
    X(glu, 3, ({64, 96}), tn_glu(x[0], -1))                                                                  \
    X(hardswish, 3, ({64, 96}), tn_hardswish(x[0]))                                                          \
    X(prelu, 3, ({64, 96}, {96}), tn_prelu(x[0], x[1]))                                                      \
    X(tril, 3, ({64, 96}), tn_tril(x[0], 0))                                                                 \
    X(rotary, 4, ({2, 4, 32, 16}), tn_rotary(x[0], 5))                                                       \
    X(huber, 3, ({64, 96}, {64, 96}), tn_huber_loss(x[0], x[1]))                                             \
    X(kl, 3, ({64, 96}, {64, 96}), tn_kl_div(x[0], x[1], .reduction = TN_REDUCE_SUM))                        \
    X(cosine, 3, ({64, 96}, {64, 96}), tn_cosine_similarity(x[0], x[1], -1, 0))                              \
    X(triplet, 3, ({64, 96}, {64, 96}, {64, 96}), tn_triplet_margin_loss(x[0], x[1], x[2]))                  \
    X(nearest, 3, ({2, 8, 8, 4}), tn_resize_nearest(tn_relu(x[0]), 16, 16))                                  \
    X(groups, 5, ({3, 8, 8, 12}, {12}, {12}), tn_silu(tn_group_norm(x[0], 4, x[1], x[2])))                   \
    X(pooled_groups, 7, ({3, 8, 8, 12}, {12}, {12}),                                                         \
      tn_max_pool2d(tn_silu(tn_group_norm(x[0], 4, x[1], x[2])), 2, .stride = 2))
#define LIST(...) __VA_ARGS__
#define X(name, kernels, shapes, ...)                                                                        \
    static tn_tensor *f_##name(tn_tensor **x) { return __VA_ARGS__; }
ROWS(X)
#undef X
static const struct {
    const char *name;
    tn_tensor *(*f)(tn_tensor **x);
    int kernels;
    int64_t shape[3][4];
} rows[] = {
#define X(name, kernels, shapes, ...) {#name, f_##name, kernels, {LIST shapes}},
    ROWS(X)
#undef X
};
/* clang-format on */

TEST(few_kernels)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 1, .threads = 1, .log = quiet);
        tn_tensor *x[3] = {NULL};
        tn_step_begin(s);
        for (int k = 0; k < 3 && rows[i].shape[k][0]; k++) {
            int n = 0;
            while (n < 4 && rows[i].shape[k][n]) n++;
            int64_t count = 1;
            for (int d = 0; d < n; d++) count *= rows[i].shape[k][d];
            float *v = malloc((size_t)count * sizeof *v);
            for (int64_t j = 0; j < count; j++) v[j] = (float)(j * 37 % 101 + 1) / 101;
            x[k] = tn_from(s, v, TN_F32, n, rows[i].shape[k]);
            free(v);
            tn_requires_grad(x[k], true);
        }
        tn_backward(tn_sum(tn_square(rows[i].f(x)), TN_ALL, false));
        tn_step_end(s);
        if (tn_error(s)) fail_msg("%s: %s", rows[i].name, tn_error_text(s));
        int kernels = 0;
        const char *text = tn_plan_text(s);
        assert_int_equal(sscanf(text, "step: %d kernel", &kernels), 1);
        if (kernels > rows[i].kernels)
            fail_msg("%s: %d kernels, not %d:\n%s", rows[i].name, kernels, rows[i].kernels, text);
        tn_close(s);
    }
}

RUN_TESTS(NULL, NULL)
