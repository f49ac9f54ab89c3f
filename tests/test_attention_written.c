/* test_attention_written.c - attention that a program writes out, and what it is given at run time.
 *
 *   written  softmax(q k^T scale + mask) v as a program has it: found in fused mode, with the same numbers
 *            as in eager mode, which leaves it alone
 *   scale    a run-time number of the kernel, called as written out
 *   words    what explain says of the kernel
 *
 * Read first: struct at in attention_rig.h, then a_second_reader_of_the_probabilities. */
#include "tests/attention_rig.h"
#include "tests/said.h"

#include <float.h>

/* ---- written out ---- */

/* The probabilities are read once more: that reader, and both gradients, are as in eager mode. */
TEST(a_second_reader_of_the_probabilities)
{
    enum { N = 2 * 33 * 16, M = 2 * 70 * 16 };
    static double got[2][N + M + M + 1];
    for (int k = 0; k < 2; k++) {
        at c = {"twice", 1, 2, 33, 70, 16, false, false, BOOLS, 0, TN_F32, 1};
        tn_tensor *leaf[3], *x[3], *p;
        tn_session *s = enter(k ? TN_FUSED : TN_EAGER, &c, leaf, x);
        tn_tensor *o = written(s, &c, x, mask_of(s, &c), &p);
        tn_tensor *loss = tn_add(weighted(s, o, 3), weighted(s, p, 8));
        tn_backward(loss);
        tn_read(loss, TN_F64, got[k], sizeof(double));
        tn_read(tn_gradient(leaf[0]), TN_F64, got[k] + 1, N * sizeof(double));
        tn_read(tn_gradient(leaf[1]), TN_F64, got[k] + 1 + N, M * sizeof(double));
        tn_read(tn_gradient(leaf[2]), TN_F64, got[k] + 1 + N + M, M * sizeof(double));
        leave(s);
    }
    for (int i = 0; i < 1 + N + M + M; i++)
        if (!(fabs(got[0][i] - got[1][i]) <= 2e-5 * fmax(1, fabs(got[0][i]))))
            fail_msg("element %d: %g in eager mode, %g in fused mode", i, got[0][i], got[1][i]);
}

/* A detach, or a scope without gradients, stays one where the chain around it could be one node; and a
 * gradient by a value in between is refused rather than left out. */
TEST(gradients_stop_where_they_are_told_to)
{
    for (int k = 0; k < 5; k++) {
        at c = {"stopped", 1, 2, 64, 64, 32, false, false, NO_MASK, 0, TN_F32, 1};
        tn_tensor *leaf[3], *x[3];
        tn_session *s = enter(TN_FUSED, &c, leaf, x);
        if (k == 3) tn_no_grad_begin(s);
        tn_tensor *t = tn_matmul(x[0], tn_transpose(x[1], -1, -2));
        if (k == 3) tn_no_grad_end(s);
        if (k == 0) t = tn_detach(t);
        t = tn_mul_scalar(t, 0.2);
        if (k == 1) t = tn_detach(t);
        tn_tensor *p = tn_softmax(t, -1), *loss, *g = NULL;
        loss = tn_sum(tn_square(tn_matmul(k == 2 ? tn_detach(p) : p, x[2])), TN_ALL, false);
        if (k == 4) {
            fails_with(s, TN_E_UNSUPPORTED, "inputs[0] stands inside of attention", tn_grad(loss, 1, &p, &g));
        } else {
            assert_int_equal(tn_backward(loss), 0);
            assert_null(tn_gradient(leaf[0]));
            assert_null(tn_gradient(leaf[1]));
            assert_non_null(tn_gradient(leaf[2]));
        }
        leave(s);
    }
}

/* The lowest numbers as a mask hide keys as -inf does; where nothing else is left all keys count alike. */
TEST(masks_of_the_lowest_numbers)
{
    enum { T = 40, D = 32 };
    static double q[T * D], m[T * T], o[2][2 * T * D];
    for (int i = 0; i < T * D; i++) q[i] = (i * 37 % 101 - 50) / 50.0;
    for (int k = 0; k < 2; k++) {
        tn_session *s = open_session(TN_FUSED, 2);
        for (int i = 0; i < T * T; i++) m[i] = i / T == 3 || i % T > i / T ? (double)-FLT_MAX : 0;
        tn_step_begin(s);
        tn_tensor *x = tensor_of(s, q, k ? TN_F64 : TN_F32, 2, (int64_t[]){T, D});
        tn_tensor *mask = tensor_of(s, m, k ? TN_F64 : TN_F32, 2, (int64_t[]){T, T});
        tn_requires_grad(x, true);
        tn_tensor *y = tn_scaled_dot_product_attention(x, x, x, .mask = mask);
        tn_backward(tn_sum(tn_square(y), TN_ALL, false));
        tn_read(y, TN_F64, o[k], sizeof o[k] / 2);
        tn_read(tn_gradient(x), TN_F64, o[k] + T * D, sizeof o[k] / 2);
        leave(s);
    }
    for (int i = 0; i < 2 * T * D; i++)
        if (!(fabs(o[0][i] - o[1][i]) <= 2e-5 * fmax(1, fabs(o[1][i]))))
            fail_msg("element %d: %g, not %g", i, o[0][i], o[1][i]);
}

/* What only looks like attention is left as it is. */
TEST(what_is_no_attention)
{
    for (int k = 0; k < 5; k++) {
        at c = {"other", 1, 2, 64, 64, 32, false, false, NO_MASK, 0, TN_F32, 1};
        tn_tensor *leaf[3], *x[3], *y;
        tn_session *s = enter(TN_FUSED, &c, leaf, x);
        tn_tensor *t = tn_matmul(x[0], tn_transpose(x[1], 2, 3)),
                  *m = drawn(s, 8, TN_F32, 4, (int64_t[]){1, 2, 64, 64});
        tn_requires_grad(m, k == 0);
        if (k == 0) t = tn_add(t, m);                     /* a mask with a gradient */
        if (k == 1) t = tn_mul_scalar(tn_add(t, m), 0.5); /* scaled after the mask */
        if (k == 2) t = tn_relu(t);                       /* something between */
        if (k == 3) t = tn_softmax(t, 2);                 /* over the queries */
        if (k != 3) t = tn_softmax(t, 3);
        y = tn_matmul(t,
                      k == 4 ? drawn(s, 8, TN_F32, 4, (int64_t[]){1, 2, 64, 48}) : x[2]); /* another width */
        assert_non_null(y);
        assert_int_equal(look(s).attentions, 0);
        leave(s);
    }
}

/* A later step with another scale runs the plan of the first: the number is the kernel's argument, and may have been
 * given by tn_full, of any shape, in front or behind. */
TEST_ON(the_scale_is_an_argument, open_session(TN_FUSED, 2))
{
    float sum[6];
    for (int k = 0; k < 6; k++) {
        at c = {"scale", 1, 2, 64, 64, 32, false, false, NO_MASK, 0, TN_F32, 1};
        tn_step_begin(s);
        tn_tensor *leaf[3], *x[3];
        operands(s, &c, leaf, x);
        tn_tensor *t = tn_matmul(x[0], tn_transpose(x[1], 2, 3));
        if (k < 3) t = tn_mul_scalar(t, k == 1 ? 0.5 : 0.25);
        if (k == 3) t = tn_div(t, tn_full(s, 4, TN_F32, TN_SCALAR));
        if (k == 4) t = tn_mul(t, tn_full(s, 0.25, TN_F32, TN_SHAPE(64, 64)));
        if (k == 5) t = tn_mul(tn_full(s, 0.25, TN_F32, TN_SHAPE(2, 1, 1)), t);
        tn_tensor *y = tn_matmul(tn_softmax(t, 3), x[2]);
        assert_int_equal(look(s).attentions, 1);
        sum[k] = (float)tn_item(tn_sum(tn_square(y), TN_ALL, false));
        tn_step_end(s);
        assert_int_equal(tn_error(s), 0);
    }
    assert_true(sum[0] != sum[1]);
    for (int k = 2; k < 6; k++) assert_true(sum[k] == sum[0]);
}

/* With scores of 0 all keys count alike; those that are not there, or hidden, do not. */
TEST(a_scale_of_zero)
{
    enum { TQ = 40, TK = 70, D = 32 };
    static double o[TQ * D], v[TK * D], m[TQ * TK];
    for (int masked = 0; masked < 2; masked++) {
        at c = {"zero", 1, 1, TQ, TK, D, false, false, NO_MASK, 0, TN_F32, 0};
        tn_tensor *leaf[3], *x[3];
        tn_session *s = enter(TN_FUSED, &c, leaf, x);
        for (int i = 0; i < TQ * TK; i++) m[i] = i % TK != 3;
        tn_tensor *t = tn_mul_scalar(tn_matmul(x[0], tn_transpose(x[1], 2, 3)), 0.0);
        if (masked)
            t = tn_where(tensor_of(s, m, TN_BOOL, 2, (int64_t[]){TQ, TK}), t,
                         tn_full(s, -INFINITY, TN_F32, 0, NULL));
        t = tn_matmul(tn_softmax(t, 3), x[2]);
        assert_int_equal(look(s).attentions, 1);
        tn_read(t, TN_F64, o, sizeof o);
        tn_read(x[2], TN_F64, v, sizeof v);
        leave(s);
        for (int i = 0; i < TQ * D; i++) {
            double mean = 0;
            for (int j = 0; j < TK; j++) mean += masked && j == 3 ? 0 : v[j * D + i % D] / (TK - masked);
            if (!(fabs(o[i] - mean) <= 1e-5)) fail_msg("element %d: %g, not %g", i, o[i], mean);
        }
    }
}

/* One that changes from step to step is neither compiled nor planned again, forward and backward, as one node
 * and as the composite (values of another width), and what comes of it is that of a session that knows no
 * other. */
TEST(a_scale_that_is_annealed)
{
    enum { T = 64, D = 32, N = 2 * T * D, STEPS = 6 };
    static float got[N], want[N];
    for (int way = 0; way < 3; way++) {
        tn_stats first = {.size = sizeof first}, last = {.size = sizeof last};
        for (int fresh = 0; fresh < 2; fresh++) {
            const at c = {"annealed", 1, 2, T, T, D, false, false, NO_MASK, 0, TN_F32, 0};
            tn_session *s = tn_open(.mode = TN_FUSED, .seed = 77, .log = quiet);
            tn_tensor *leaf[3], *x[3], *o;
            assert_non_null(s);
            operands(s, &c, leaf, x);
            for (int step = fresh ? STEPS - 1 : 0; step < STEPS; step++) {
                tn_step_begin(s);
                o = tn_scaled_dot_product_attention(x[0], x[1],
                                                    way == 1 ? tn_slice(x[2], 3, 0, D / 2, 1) : x[2],
                                                    .scale = 1.0 / (1 + step), .causal = way == 2);
                tn_backward(tn_sum(tn_square(o), TN_ALL, false));
                tn_read(tn_gradient(leaf[0]), TN_F32, fresh ? want : got, sizeof got);
                tn_step_end(s);
                if (tn_error(s)) fail_msg("%s", tn_error_text(s));
                if (!fresh) tn_get_stats(s, step <= 1 ? &first : &last);
            }
            tn_close(s);
        }
        assert_int_equal(last.compiled + last.cache_hits, first.compiled + first.cache_hits);
        assert_int_equal(last.plans, first.plans);
        assert_true(last.replayed >= STEPS - 2);
        for (int i = 0; i < N; i++)
            if (got[i] != want[i])
                fail_msg("way %d, element %d: %g, not %g", way, i, (double)got[i], (double)want[i]);
    }
}

/* ---- in words ---- */

/* Explain says what the kernel does and what it saves, called as written out. */
TEST(what_explain_says)
{
    static const char *const forward[2] = {
        "q k^T, scale, causal mask, mask, softmax, v in one kernel: the 128 x 256 scores of 4 heads are "
        "never "
        "written, which saves 0.52 MB written and as much read",
        "q k^T, scale, mask, softmax, v in one kernel: the 128 x 256 scores of 4 heads are never written, "
        "which saves 0.52 MB written and as much read"};
    for (int is_written = 0; is_written < 2; is_written++) {
        const at c = {"said", 2, 2, 128, 256, 32, !is_written, false, BOOLS, 0, TN_F32, is_written};
        tn_tensor *leaf[3], *x[3];
        tn_session *s = enter(TN_FUSED, &c, leaf, x);
        tn_backward(tn_sum(tn_square(attend(s, &c, x)), TN_ALL, false));
        tn_step_end(s);
        PRINTED(text, f) assert_int_equal(tn_explain(s, f), 0);
        if (tn_error(s)) fail_msg("%s", tn_error_text(s));
        const char *place = strstr(text, forward[is_written]);
        if (!place || !strstr(place, "softmax, the gradient")) fail_msg("%s", text);
        free(text);
        tn_close(s);
    }
}

/* And where none takes it, why. */
TEST(what_explain_says_of_several_kernels)
{
    for (int is_written = 0; is_written < 2; is_written++) {
        const at c = {"wider", 1, 2, 64, 64, 32, false, false, NO_MASK, 0, TN_F32, 1};
        tn_session *s = tn_open(.mode = TN_FUSED, .seed = 77, .log = quiet);
        assert_non_null(s);
        tn_tensor *leaf[3], *x[3], *p;
        tn_step_begin(s);
        operands(s, &c, leaf, x);
        x[2] = drawn(s, 8, TN_F32, 4, (int64_t[]){1, 2, 64, 48});
        tn_tensor *o =
            is_written ? written(s, &c, x, NULL, &p) : tn_scaled_dot_product_attention(x[0], x[1], x[2]);
        assert_non_null(o);
        tn_step_end(s);
        PRINTED(text, f) assert_int_equal(tn_explain(s, f), 0);
        if (!strstr(text, "attention that its one kernel does not take")) fail_msg("%s", text);
        free(text);
        tn_close(s);
    }
}

RUN_TESTS(NULL, NULL)
