/* test_fusion.c - what fuses with what, forward and backward: how many kernels a program becomes, and which
 * of its values reach memory. Of whole steps, see test_fusion_steps.c.
 *
 * A case records a few operators on inputs. Their plan is looked at as it would be made at the end of a step
 * without a gradient (`forward`); then they are run, and the plan of their gradients alone is (`backward`).
 * In one step the two may share kernels and must not need more. Kernels are launches and library calls. What
 * the fused step gives is then compared, results and gradients, with what eager mode does.
 *
 * Read first: struct fusion, then check_fusion. */
#include "fusion_rig.h"

typedef struct fusion {
    const char *name;
    void (*record)(traced *t);
    bound forward, backward;               /* what is to be reached */
    bound forward_so_far, backward_so_far; /* where it is not: what is; kernels 0: it is */
} fusion;

/* ---- one case ---- */

static void check_backward(const fusion *c)
{
    tn_session *s = open_mode(TN_FUSED);
    traced t = {.s = s, .gradients = true};
    tn_step_begin(s);
    c->record(&t);
    assert_int_equal(tn_flush(s), 0);
    uint64_t forward = launched(s);
    tn_tensor *loss = loss_of(&t);
    assert_int_equal(tn_flush(s), 0);
    uint64_t before = launched(s);
    take_gradients(&t, loss);
    seen v = look(s);
    expect(c->name, "backward", &v, c->backward, c->backward_so_far);
    end_step(s, v.kernels);
    uint64_t backward = launched(s) - before;
    forget(&v);

    t = (traced){.s = s, .gradients = true};
    tn_step_begin(s);
    c->record(&t);
    take_gradients(&t, loss_of(&t));
    v = look(s);
    /* the loss of this test is a sum over everything: two kernels */
    expect(c->name, "both in one step", &v, (bound){(int)(forward + backward) + 2, 1000}, (bound){0});
    end_step(s, v.kernels);
    forget(&v);
    assert_int_equal(tn_close(s), 0);
}

/* Results and gradients of the case, one after the other: returns how many, *v is the caller's. */
static int64_t values_of(const fusion *c, tn_mode mode, float **v)
{
    tn_session *s = open_mode(mode);
    traced t = {.s = s, .gradients = true};
    tn_tensor *all[MAX_CASE_OUT + MAX_CASE_IN];
    int n = 0;
    int64_t count = 0, at = 0;
    tn_step_begin(s);
    c->record(&t);
    for (int i = 0; i < t.n_out; i++) all[n++] = t.out[i];
    if (tn_grad(loss_of(&t), t.n_wrt, t.wrt, all + n)) fail_msg("%s", tn_error_text(s));
    n += t.n_wrt;
    for (int i = 0; i < n; i++) count += tn_numel(all[i]);
    assert_non_null(*v = malloc((size_t)count * sizeof **v));
    for (int i = 0; i < n; i++) {
        int64_t k = tn_numel(all[i]);
        if (tn_read(all[i], TN_F32, *v + at, (size_t)k * sizeof **v)) fail_msg("%s", tn_error_text(s));
        at += k;
    }
    tn_step_end(s);
    assert_int_equal(tn_close(s), 0);
    return count;
}

static void compare_modes(const fusion *c)
{
    float *fused, *eager;
    int64_t n = values_of(c, TN_FUSED, &fused);
    assert_int_equal(values_of(c, TN_EAGER, &eager), n);
    for (int64_t i = 0; i < n; i++) {
        double scale = fabs((double)eager[i]) > 1 ? fabs((double)eager[i]) : 1;
        double off = fabs((double)fused[i] - (double)eager[i]) / scale;
        if (!(off < 1e-4)) /* sums are added up in another order */
            fail_msg("%s: value %lld is %g fused, %g eager", c->name, (long long)i, (double)fused[i],
                     (double)eager[i]);
    }
    free(fused);
    free(eager);
}

static void check_fusion(void **state)
{
    const fusion *c = *state;
    tn_session *s = open_mode(TN_FUSED);
    traced t = {.s = s};
    tn_step_begin(s);
    c->record(&t);
    seen v = look(s);
    expect(c->name, "forward", &v, c->forward, c->forward_so_far);
    end_step(s, v.kernels);
    forget(&v);
    assert_int_equal(tn_close(s), 0);
    check_backward(c);
    compare_modes(c);
}

/* ---- cases ---- */

/* FUSION(name, in words, bounds forward, backward): a block follows that records it. Where a second pair of
 * bounds follows, the first is the aim and the second what the fuser does so far. */
#define PAIR(kernels, written)                                                                               \
    {                                                                                                        \
        kernels, written                                                                                     \
    }
#define FUSION(...) FUSION_OF(__VA_ARGS__, (0, 0), (0, 0), end)
#define FUSION_OF(name, words, forward, backward, forward_so_far, backward_so_far, ...)                      \
    static void name(traced *t);                                                                             \
    __attribute__((constructor)) static void add_##name(void)                                                \
    {                                                                                                        \
        Cases[N_cases++] =                                                                                   \
            (fusion){words, name, PAIR forward, PAIR backward, PAIR forward_so_far, PAIR backward_so_far};   \
    }                                                                                                        \
    static void name(traced *t)

static fusion Cases[MOST_TESTS];
static int N_cases;

/* The same of one expression, of inputs x[0], x[1], .. with these shapes. */
#define LIST(...) __VA_ARGS__
#define ROW(name, words, forward, backward, shapes, ...)                                                     \
    FUSION(name, words, forward, backward)                                                                   \
    {                                                                                                        \
        static const int64_t shape[MAX_CASE_IN][4] = {LIST shapes};                                          \
        tn_tensor *x[MAX_CASE_IN];                                                                           \
        inputs_of(t, shape, x);                                                                              \
        give(t, __VA_ARGS__);                                                                                \
    }

static void inputs_of(traced *t, const int64_t shape[][4], tn_tensor **x)
{
    for (int i = 0, n; i < MAX_CASE_IN && shape[i][0]; i++) {
        for (n = 0; n < 4 && shape[i][n];) n++;
        x[i] = input_of(t, n, shape[i]);
    }
}

static tn_tensor *joined(tn_tensor *a, tn_tensor *b) { return tn_concat(2, (tn_tensor *[]){a, b}, -1); }

/* clang-format off */
ROW(chain, "chain", (1, 0), (1, 0), ({ROWS, COLS}, {ROWS, COLS}),
    tn_sigmoid(tn_add_scalar(tn_relu(tn_mul_scalar(tn_add(x[0], x[1]), 2.0)), -1.0)))
ROW(chain_reduce, "chain into reduction", (2, 0), (1, 0), ({ROWS, COLS}, {ROWS, COLS}),
    tn_mean(tn_square(tn_sub(x[0], x[1])), TN_ALL, false))
ROW(softmax, "softmax", (1, 0), (1, 0), ({ROWS, COLS}), tn_softmax(x[0], -1))
/* At most one for x and one for weight and bias together; here the rows are walked once for all three */
ROW(layer_norm_gelu, "layer_norm + gelu", (1, 0), (2, 0), ({ROWS, COLS}, {COLS}, {COLS}),
    tn_gelu(tn_layer_norm(x[0], x[1], x[2])))
ROW(rms_norm_silu, "rms_norm + silu", (1, 0), (2, 0), ({ROWS, COLS}, {COLS}),
    tn_silu(tn_rms_norm(x[0], x[1])))
ROW(by_row_sum, "x / sum(x) by row", (1, 0), (1, 0), ({ROWS, COLS}),
    tn_div(x[0], tn_sum(x[0], TN_AXES(-1), true)))
ROW(batch_norm_relu, "batch_norm + relu", (2, 0), (2, 0), ({16, 8, 8, 32}, {32}, {32}),
    tn_relu(tn_batch_norm(x[0], x[1], x[2], NULL, NULL)))
ROW(gelu_pool, "gelu + avg_pool2d", (1, 0), (1, 0), ({16, 8, 8, 32}),
    tn_avg_pool2d(tn_gelu(x[0]), 2, .stride = 2))
/* Training keeps what gelu is taken of */
ROW(linear_gelu, "linear + gelu", (2, 1), (4, 1), ({64, 96}, {128, 96}, {128}),
    tn_gelu(tn_affine(x[0], x[1], x[2])))
/* The loss of this test gives 1 * c, read through transposes: a kernel of its own. No copies else */
ROW(transposed_product, "transpose + product", (1, 0), (3, 1), ({64, 96}, {80, 64}),
    tn_matmul(tn_transpose(x[0], 0, 1), tn_transpose(x[1], 0, 1)))
ROW(reshaped, "reshape + permute", (1, 0), (1, 0), ({8, 16, 32}, {32, 8 * 16}),
    tn_add(tn_relu(tn_permute(tn_reshape(x[0], TN_SHAPE(128, 32)), 2, (const int[]){1, 0})), x[1]))
ROW(expanded, "expand", (1, 0), (1, 0), ({64, 1}, {64, 96}),
    tn_mul(tn_expand(tn_exp(x[0]), TN_SHAPE(64, 96)), x[1]))
ROW(sliced, "slice", (1, 0), (1, 0), ({ROWS, COLS}, {ROWS / 2, COLS}),
    tn_add(tn_slice(x[0], 0, 0, TN_END, 2), x[1]))
ROW(padded, "pad", (1, 0), (1, 0), ({30, 64}, {32, 64}), tn_add(tn_pad(x[0], 0, 1, 1, 0.0), x[1]))
ROW(padded_gelu, "pad + gelu", (1, 0), (1, 0), ({30, 64}),
    tn_gelu(tn_pad(tn_pad(x[0], 0, 1, 1, 0.5), 1, 3, 0, -1.0)))
/* What is padded is computed by the same kernel, where there is something to compute. Backward: the second's
 * gradient over all of the padded space, and the first's over the part inside */
ROW(gelu_padded, "gelu + pad", (1, 0), (2, 0), ({30, 64}, {32, 67}),
    tn_mul(tn_pad(tn_pad(tn_gelu(x[0]), 0, 1, 1, 0.5), 1, 3, 0, -1.0), x[1]))
ROW(padded_image, "pad of an image", (1, 0), (2, 1), ({4, 6, 5, 3}, {3}),
    tn_relu(tn_add(tn_pad(tn_pad(x[0], 1, 1, 1, 0), 2, 2, 2, 0), x[1])))
ROW(sliced_columns, "x[:, 3::4] * y", (1, 0), (1, 0), ({ROWS, COLS}, {ROWS, COLS / 4}),
    tn_mul(tn_slice(x[0], 1, 3, TN_END, 4), x[1]))
ROW(flipped, "flip", (1, 0), (1, 0), ({ROWS, COLS}, {ROWS, COLS}),
    tn_mul(tn_flip(tn_gelu(x[0]), TN_AXES(-1)), x[1]))
ROW(joined_chains, "concat of chains", (2, 0), (2, 0), ({ROWS, COLS}, {ROWS, COLS}),
    joined(tn_relu(tn_add_scalar(x[0], 1.0)), tn_sigmoid(x[1])))
/* A vector's halves are turned: a rotary embedding. */
ROW(turned_halves, "rotary embedding", (1, 0), (2, 1), ({ROWS, 64}, {ROWS, 64}, {ROWS, 64}),
    tn_add(tn_mul(x[0], x[1]),
           tn_mul(joined(tn_neg(tn_slice(x[0], 1, 32, 64, 1)), tn_slice(x[0], 1, 0, 32, 1)), x[2])))
ROW(joined_rows, "concat of rows", (2, 0), (2, 0), ({ROWS, COLS}, {ROWS, 64}),
    joined(tn_softmax(x[0], -1), tn_tanh(x[1])))
/* Four products, two of which are added up */
ROW(joined_products, "concat of products", (2, 0), (5, 2), ({ROWS, 64}, {64, 32}, {64, 48}),
    joined(tn_matmul(x[0], x[1]), tn_matmul(x[0], x[2])))
/* The sum itself, one number, is written */
ROW(by_whole_sum, "x / sum(x)", (2, 1), (3, 1), ({1024, 1024}), tn_div(x[0], tn_sum(x[0], TN_ALL, false)))
ROW(norm_of_row, "sqrt(sum(x * x)) by row", (1, 0), (1, 0), ({ROWS, COLS}),
    tn_sqrt(tn_sum(tn_mul(x[0], x[0]), TN_AXES(-1), false)))
ROW(norm_of_all, "sqrt(sum(x * x))", (2, 0), (1, 0), ({1024, 1024}),
    tn_sqrt(tn_sum(tn_mul(x[0], x[0]), TN_ALL, false)))
/* clang-format on */

/* ---- of several results, or of what is no input ---- */

FUSION(siblings, "siblings", (1, 0), (1, 0))
{
    tn_tensor *x = input(t, ROWS, COLS);
    give(t, tn_sin(x));
    give(t, tn_cos(x));
}

FUSION(several_consumers, "several consumers", (1, 0), (1, 0))
{
    tn_tensor *a = tn_exp(input(t, ROWS, COLS));
    give(t, tn_add_scalar(tn_mul_scalar(a, 2.0), 1.0));
    give(t, tn_tanh(a));
}

FUSION(residual_norm, "residual + dropout + norm", (1, 0), (2, 0))
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS), *w = input(t, COLS), *b = input(t, COLS);
    tn_tensor *sum = tn_add(x, tn_dropout(y, 0.1));
    give(t, tn_mul_scalar(sum, 1.0));
    give(t, tn_layer_norm(sum, w, b));
}

/* Windows that tile the image are a reshape and a reduction: neither what is pooled nor its gradient, four
 * times the size of what comes out, is written. Each channel's mean and deviation are written, nothing of the
 * image's size. By itself backward has to find the largest first; in a step forward does, see
 * test_fusion_steps.c */
FUSION(batch_norm_relu_pool, "batch_norm + relu + max_pool2d", (2, 2), (3, 1), (0, 0), (4, 2))
{
    tn_tensor *x = input(t, 16, 32, 32, 32), *w = input(t, 32), *b = input(t, 32);
    give(t, tn_max_pool2d(tn_relu(tn_batch_norm(x, w, b, NULL, NULL)), 2, .stride = 2));
}

/* The loss of each row is written, the probabilities are not */
FUSION(cross_entropy, "cross_entropy", (2, 1), (1, 0))
{
    tn_tensor *x = input(t, ROWS, COLS);
    give(t, tn_cross_entropy(x, indices(t, ROWS, COLS)));
}

/* The gradients of x's two slices lie over each other: a sum of two pads. Two results of different shapes;
 * their gradients meet in one */
FUSION(overlapping_slices, "overlapping slices", (2, 0), (1, 0))
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, 300);
    give(t, tn_mul(tn_slice(x, 1, 0, 300, 1), y));
    give(t, tn_tanh(tn_slice(x, 1, 200, TN_END, 1)));
}

FUSION(embedding, "embedding + position", (1, 0), (2, 1))
{
    tn_tensor *w = input(t, 100, 64), *position = input(t, 32, 64);
    tn_tensor *tokens = tn_reshape(indices(t, 8 * 32, 100), TN_SHAPE(8, 32));
    give(t, tn_add(tn_embedding(w, tokens), position));
}

/* One for y, which is a product with 1 here, and one that adds up the rows of x */
FUSION(gathered, "gather", (1, 0), (2, 0))
{
    tn_tensor *x = input(t, 100, 64), *y = input(t, 256, 64);
    give(t, tn_add(tn_index_select(x, 0, indices(t, 256, 100)), y));
}

/* All parts are written in place, or none: where one has to be copied the other is, too */
FUSION(joined_with_what_is_there, "concat of an input", (2, 0), (2, 0), (2, 1), (0, 0))
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS);
    give(t, joined(x, tn_sigmoid(y)));
}

int main(void)
{
    for (int i = 0; i < N_cases; i++)
        Tests[N_tests++] = (struct CMUnitTest){Cases[i].name, check_fusion, NULL, NULL, &Cases[i]};
    return run_all_tests(NULL, NULL);
}
