/* test_attention.c - attention as one kernel in each direction: its numbers, its plan, its memory.
 *
 *   numbers  sizes around the edges of a tile, strides of a packed projection, masks, dropout, dtypes:
 *            values and gradients against the f64 reference with its error bounds, eager and fused
 *   plans    how many kernels, that nothing as large as the scores is in memory, that memory grows as
 *            the rows do
 *
 * Read first: struct at in attention_rig.h, then numbers. */
#include "tests/attention_rig.h"
#include "tests/one_bench.h"

static void program(tn_session *s, void *user, int *n, tn_tensor **out)
{
    const at *c = user;
    tn_tensor *leaf[3], *x[3], *grad[3] = {NULL};
    int leaves = operands(s, c, leaf, x);
    tn_tensor *o = out[(*n)++] = attend(s, c, x);
    tn_tensor *loss = weighted(s, o, 3);
    if (loss) tn_backward(loss);
    for (int i = 0; i < leaves; i++) out[(*n)++] = grad[i] = tn_gradient(leaf[i]);
}

/* ---- numbers ---- */

static at Numbers[] = {
    {"one tile", 2, 2, 64, 64, 32, false, true, NO_MASK, 0, TN_F32, 0},
    {"causal", 2, 2, 64, 64, 32, true, true, NO_MASK, 0, TN_F32, 0},
    {"a row over a tile", 1, 2, 65, 65, 16, true, true, NO_MASK, 0, TN_F32, 0},
    {"odd sizes", 1, 3, 37, 71, 20, false, false, NO_MASK, 0, TN_F32, 0},
    {"more queries than keys, causal", 1, 2, 90, 40, 8, true, false, NO_MASK, 0, TN_F32, 0},
    {"more keys than queries, causal", 1, 2, 40, 150, 8, true, false, NO_MASK, 0, TN_F32, 0},
    {"one key", 2, 2, 5, 1, 4, false, false, NO_MASK, 0, TN_F32, 0},
    {"one query", 1, 4, 1, 130, 16, false, false, NO_MASK, 0, TN_F32, 0},
    {"narrow", 1, 1, 9, 9, 1, false, false, NO_MASK, 0, TN_F32, 0},
    {"wide", 1, 1, 20, 70, 130, true, false, NO_MASK, 0, TN_F32, 0},
    {"parts of the keys", 1, 1, 100, 260, 16, false, false, NO_MASK, 0, TN_F32, 0},
    {"parts of the keys, causal", 1, 1, 260, 260, 16, true, true, NO_MASK, 0, TN_F32, 0},
    {"bools", 1, 2, 70, 70, 16, false, false, BOOLS, 0, TN_F32, 0},
    {"bools, causal", 1, 2, 70, 70, 16, true, true, BOOLS, 0, TN_F32, 0},
    {"bools of a batch", 2, 2, 20, 70, 16, false, false, BY_BATCH, 0, TN_F32, 0},
    {"added", 2, 2, 33, 70, 16, false, false, ADDED, 0, TN_F32, 0},
    {"dropout", 1, 2, 66, 67, 16, true, false, NO_MASK, 0.3, TN_F32, 0},
    {"f16", 1, 2, 40, 70, 16, true, false, NO_MASK, 0, TN_F16, 0},
    {"bf16", 1, 2, 40, 70, 16, false, false, ADDED, 0, TN_BF16, 0},
    {"f64", 1, 2, 20, 30, 8, true, false, NO_MASK, 0, TN_F64, 0},
    {"one over", 1, 1, 129, 137, 16, true, false, BOOLS, 0, TN_F32, 0},
    {"one over, added", 1, 1, 145, 129, 16, false, false, ADDED, 0, TN_F32, 0},
    {"keys that nobody sees", 1, 1, 9, 300, 16, true, false, NO_MASK, 0, TN_F32, 0},
    {"triangle", 1, 1, 140, 140, 16, false, false, TRIANGLE, 0, TN_F32, 0},
    {"written", 2, 2, 33, 70, 16, false, false, NO_MASK, 0, TN_F32, 1},
    {"written, packed", 2, 2, 64, 64, 32, false, true, NO_MASK, 0, TN_F32, 1},
    {"written, bools", 1, 2, 33, 70, 16, false, false, BOOLS, 0, TN_F32, 1},
    {"written, divided", 1, 2, 33, 70, 16, false, false, NO_MASK, 0, TN_F32, 2},
    {"written, hidden", 2, 2, 33, 70, 16, false, false, BY_BATCH, 0, TN_F32, 2},
    {"written, added", 1, 2, 33, 70, 16, false, false, ADDED, 0, TN_F32, 1},
    {"written, dropout", 1, 2, 33, 70, 16, false, false, NO_MASK, 0.3, TN_F32, 1},
};
enum { N_NUMBERS = sizeof Numbers / sizeof *Numbers };

TEST(numbers)
{
    char text[640];
    for (int i = 0; i < N_NUMBERS; i++)
        if (!check_program(&B, program, &Numbers[i], NULL, text)) fail_msg("%s: %s", Numbers[i].name, text);
}

static void same_bits(const at *c, tn_session *a, tn_session *b, const char *what)
{
    result x = run_program(a, program, (void *)(uintptr_t)c, NULL),
           y = run_program(b, program, (void *)(uintptr_t)c, NULL);
    if (x.status || y.status) fail_msg("%s: %s%s", c->name, x.text, y.text);
    for (int i = 0; i < x.n; i++)
        if (memcmp(x.out[i].v, y.out[i].v, (size_t)x.out[i].n * sizeof(double)))
            fail_msg("%s: output %d differs %s", c->name, i, what);
    result_free(&x);
    result_free(&y);
}

TEST(bits_do_not_depend_on_threads)
{
    tn_session *a = open_session(TN_FUSED, 1), *b = open_session(TN_FUSED, 3), *e = open_session(TN_EAGER, 2);
    for (int i = 0; i < N_NUMBERS; i++) {
        same_bits(&Numbers[i], a, b, "between one thread and three");
        if (!Numbers[i].variant) same_bits(&Numbers[i], a, e, "between fused and eager mode");
    }
    tn_close(a);
    tn_close(b);
    tn_close(e);
}

/* A query that sees nothing gives zeros and passes nothing on, in the composite (whose mask wants a gradient)
 * as in the kernel; written out it is no number, in eager mode as in fused mode, which makes it a kernel. */
TEST(a_blind_query)
{
    enum { T = 70, D = 32, BLIND = 40, N = T * D };
    static double got[4][4][N];
    for (int k = 0; k < 4; k++) { /* call: composite, kernel; written: composite, kernel */
        const bool call = k < 2, kernel = k & 1;
        at c = {"blind", 1, 1, T, T, D, false, false, NO_MASK, 0, TN_F32, 0};
        tn_tensor *leaf[3], *x[3], *p, *o;
        tn_session *s = enter(kernel ? TN_FUSED : TN_EAGER, &c, leaf, x);
        double m[T * T];
        for (int i = 0; i < T * T; i++) m[i] = i / T != BLIND;
        tn_tensor *mask = tensor_of(s, m, TN_BOOL, 2, (int64_t[]){T, T});
        if (k == 0) {
            for (int i = 0; i < T * T; i++) m[i] = m[i] != 0 ? 0 : -INFINITY;
            mask = tensor_of(s, m, TN_F32, 2, (int64_t[]){T, T});
            tn_requires_grad(mask, true);
        }
        o = call ? tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = mask)
                 : written(s, &c, x, mask, &p);
        if (kernel) assert_int_equal(look(s).attentions, 1);
        tn_backward(tn_sum(tn_square(o), TN_ALL, false));
        tn_read(o, TN_F64, got[k][3], sizeof got[k][3]);
        for (int i = 0; i < 3; i++) tn_read(tn_gradient(leaf[i]), TN_F64, got[k][i], sizeof got[k][i]);
        leave(s);
    }
    for (int k = 1; k < 4; k += 2)
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < N; i++) {
                double a = got[k - 1][w][i], b = got[k][w][i];
                bool same = isnan(a) ? isnan(b) : fabs(a - b) <= 2e-5 * fmax(1, fabs(a));
                if (!same)
                    fail_msg("%d: output %d, element %d: %g in the composite, %g in the kernel", k, w, i, a,
                             b);
            }
    for (int i = 0; i < N; i++) {
        const bool blind = i / D == BLIND;
        assert_true(blind == (got[1][3][i] == 0) && blind == (got[1][0][i] == 0)); /* o, dq */
        assert_true(blind == isnan(got[3][3][i]));
    }
}

/* Composite, kernel and what is written out drop the same: seen where v is the identity. */
TEST(all_drop_the_same)
{
    enum { T = 32 };
    static float eye[T * T], got[3][T * T];
    for (int i = 0; i < T; i++) eye[i * T + i] = 1;
    for (int k = 0; k < 3; k++) {
        at c = {"drops", 1, 1, T, T, T, false, false, NO_MASK, 0.5, TN_F32, k < 2};
        tn_tensor *leaf[3], *x[3];
        tn_session *s = enter(k == 0 ? TN_EAGER : TN_FUSED, &c, leaf, x);
        x[2] = tn_from(s, eye, TN_F32, TN_SHAPE(1, 1, T, T));
        tn_read(attend(s, &c, x), TN_F32, got[k], sizeof got[k]);
        leave(s);
    }
    int dropped = 0;
    for (int i = 0; i < T * T; i++) {
        dropped += got[0][i] == 0;
        for (int k = 1; k < 3; k++)
            if ((got[0][i] == 0) != (got[k][i] == 0) || fabsf(got[0][i] - got[k][i]) > 1e-6f)
                fail_msg("way %d, element %d: %g, expected %g", k, i, (double)got[k][i], (double)got[0][i]);
    }
    assert_in_range(dropped, T * T / 3, 2 * T * T / 3);
}

/* Whichever of q, k, v want a gradient, theirs are those of all three. */
TEST(any_may_want_a_gradient)
{
    enum { T = 66, D = 32, N = 2 * T * D, ALL = 7 };
    static float want[3][N], got[N];
    for (int set = ALL; set > 0; set--) {
        at c = {"wanted", 1, 2, T, T, D, false, false, NO_MASK, 0, TN_F32, 0};
        tn_tensor *leaf[3], *x[3];
        tn_session *s = enter(TN_FUSED, &c, leaf, x);
        for (int i = 0; i < 3; i++) tn_requires_grad(leaf[i], set >> i & 1);
        tn_backward(tn_sum(tn_square(attend(s, &c, x)), TN_ALL, false));
        for (int i = 0; i < 3; i++) {
            if (!(set >> i & 1)) continue;
            float *to = set == ALL ? want[i] : got;
            tn_read(tn_gradient(leaf[i]), TN_F32, to, sizeof got);
            for (int e = 0; e < N; e++)
                if (!(fabsf(to[e] - want[i][e]) <= 1e-5f * (1 + fabsf(want[i][e]))))
                    fail_msg("set %d, operand %d, element %d: %g, expected %g", set, i, e, (double)to[e],
                             (double)want[i][e]);
        }
        leave(s);
    }
}

/* ---- plans ---- */

/* Forward, then backward, of a case as the plans have them. `leaves` is all that stands before the attention.
 */
static void plans_of(const at *c, seen *forward, seen *backward)
{
    tn_session *s = open_session(TN_FUSED, 2);
    tn_tensor *leaf[3], *x[3], *grad[3];
    tn_step_begin(s);
    int n = operands(s, c, leaf, x);
    tn_tensor *o = attend(s, c, x);
    if (!o) fail_msg("%s", tn_error_text(s));
    *forward = look(s);
    int64_t shape[] = {c->batch, c->heads, c->tq, c->d};
    tn_tensor *g = drawn(s, 4, c->dtype, 4, shape), *loss = tn_sum(tn_mul(o, g), TN_ALL, false);
    tn_flush(s);
    assert_int_equal(tn_grad(loss, n, leaf, grad), 0);
    *backward = look(s);
    leave(s);
}

TEST(one_kernel_each_way)
{
    TN_EACH(c, Numbers, N_NUMBERS) {
        seen forward, backward;
        if (c->dtype == TN_F64 || c->tq < 20 || c->tk < 60) continue; /* the composite serves, or may */
        plans_of(c, &forward, &backward);
        int64_t scores = c->batch * c->heads * c->tq * c->tk,
                rows = c->batch * c->heads * (c->tq > c->tk ? c->tq : c->tk);
        const int negates = c->variant == 2 && c->mask != NO_MASK; /* the mask, before it is broadcast */
        if (forward.kernels != 1 + negates || forward.attentions != 1)
            fail_msg("%s: %d kernels forward", c->name, forward.kernels);
        /* and what the weights of the loss take: the gradient of o is theirs */
        if (backward.attentions != 1 || backward.kernels > 3)
            fail_msg("%s: %d kernels backward, %d of them attention", c->name, backward.kernels,
                     backward.attentions);
        int64_t most = 3 * rows * ((c->d + 15) / 16 * 16) * (c->batch * c->heads < 16 ? 16 : 1);
        if (forward.most >= scores && forward.most > rows * c->d) fail_msg("%s: scores are written", c->name);
        if (backward.most > most) fail_msg("%s: %lld elements in memory", c->name, (long long)backward.most);
    }
}

TEST(memory_grows_as_the_rows_do)
{
    seen before[2] = {{0}};
    for (int64_t t = 1024; t <= 8192; t *= 2) {
        at c = {"long", 1, 1, t, t, 64, true, true, NO_MASK, 0, TN_F32, 0};
        seen now[2];
        tn_tensor *leaf[3], *x[3];
        tn_session *s = enter(TN_FUSED, &c, leaf, x);
        tn_tensor *o = attend(s, &c, x);
        now[0] = look(s);
        tn_backward(tn_sum(o, TN_ALL, false));
        now[1] = look(s);
        leave(s);
        for (int k = 0; k < 2; k++) {
            if (before[k].all && now[k].all > before[k].all * 21 / 10)
                fail_msg("%lld elements for %lld rows, %lld for half of them", (long long)now[k].all,
                         (long long)t, (long long)before[k].all);
            assert_true(now[k].most < t * t / 3);
            before[k] = now[k];
        }
    }
}

RUN_TESTS(open_bench, close_bench)
