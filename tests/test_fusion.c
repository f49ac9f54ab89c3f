/* test_fusion.c - what fuses with what, forward and backward: how many kernels a program becomes, and which
 * of its values reach memory. Of whole steps, see test_fusion_steps.c.
 *
 * A case records a few operators on inputs. Their plan is looked at as it would be made at the end of a step
 * without a gradient (`forward`); then they are run, and the plan of their gradients alone is (`backward`).
 * In one step the two may share kernels and must not need more. Kernels are launches and library calls. What
 * the fused step gives is then compared, results and gradients, with what eager mode does.
 *
 * Read first: struct fusion, then check_fusion.
 */
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

static void chain(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS);
    give(t, tn_sigmoid(tn_add_scalar(tn_relu(tn_mul_scalar(tn_add(x, y), 2.0)), -1.0)));
}

static void siblings(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS);
    give(t, tn_sin(x));
    give(t, tn_cos(x));
}

static void several_consumers(traced *t)
{
    tn_tensor *a = tn_exp(input(t, ROWS, COLS));
    give(t, tn_add_scalar(tn_mul_scalar(a, 2.0), 1.0));
    give(t, tn_tanh(a));
}

static void chain_reduce(traced *t)
{
    tn_tensor *a = input(t, ROWS, COLS), *b = input(t, ROWS, COLS);
    give(t, tn_mean(tn_square(tn_sub(a, b)), TN_ALL, false));
}

static void softmax(traced *t)
{
    give(t, tn_softmax(input(t, ROWS, COLS), -1));
}

static void layer_norm_gelu(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *w = input(t, COLS), *b = input(t, COLS);
    give(t, tn_gelu(tn_layer_norm(x, w, b)));
}

static void rms_norm_silu(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *w = input(t, COLS);
    give(t, tn_silu(tn_rms_norm(x, w)));
}

static void by_row_sum(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS);
    give(t, tn_div(x, tn_sum(x, TN_AXES(-1), true)));
}

static void residual_norm(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS), *w = input(t, COLS), *b = input(t, COLS);
    tn_tensor *sum = tn_add(x, tn_dropout(y, 0.1));
    give(t, tn_mul_scalar(sum, 1.0));
    give(t, tn_layer_norm(sum, w, b));
}

static void batch_norm_relu(traced *t)
{
    tn_tensor *x = input(t, 16, 8, 8, 32), *w = input(t, 32), *b = input(t, 32);
    give(t, tn_relu(tn_batch_norm(x, w, b, NULL, NULL)));
}

/* Windows that tile the image are a reshape and a reduction: neither what is pooled nor its gradient, four
 * times the size of what comes out, is written. */
static void batch_norm_relu_pool(traced *t)
{
    tn_tensor *x = input(t, 16, 32, 32, 32), *w = input(t, 32), *b = input(t, 32);
    give(t, tn_max_pool2d(tn_relu(tn_batch_norm(x, w, b, NULL, NULL)), 2, .stride = 2));
}

static void gelu_pool(traced *t)
{
    give(t, tn_avg_pool2d(tn_gelu(input(t, 16, 8, 8, 32)), 2, .stride = 2));
}

static void cross_entropy(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS);
    give(t, tn_cross_entropy(x, indices(t, ROWS, COLS)));
}

static void linear_gelu(traced *t)
{
    tn_tensor *x = input(t, 64, 96), *w = input(t, 128, 96), *b = input(t, 128);
    give(t, tn_gelu(tn_affine(x, w, b)));
}

static void transposed_product(traced *t)
{
    tn_tensor *x = input(t, 64, 96), *y = input(t, 80, 64);
    give(t, tn_matmul(tn_transpose(x, 0, 1), tn_transpose(y, 0, 1)));
}

static void reshaped(traced *t)
{
    tn_tensor *x = input(t, 8, 16, 32), *y = input(t, 32, 8 * 16);
    tn_tensor *turned = tn_permute(tn_reshape(x, TN_SHAPE(128, 32)), 2, (const int[]){1, 0});
    give(t, tn_add(tn_relu(turned), y));
}

static void expanded(traced *t)
{
    tn_tensor *x = input(t, 64, 1), *y = input(t, 64, 96);
    give(t, tn_mul(tn_expand(tn_exp(x), TN_SHAPE(64, 96)), y));
}

static void sliced(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS / 2, COLS);
    give(t, tn_add(tn_slice(x, 0, 0, TN_END, 2), y));
}

static void padded(traced *t)
{
    tn_tensor *x = input(t, 30, 64), *y = input(t, 32, 64);
    give(t, tn_add(tn_pad(x, 0, 1, 1, 0.0), y));
}

static void padded_gelu(traced *t)
{
    give(t, tn_gelu(tn_pad(tn_pad(input(t, 30, 64), 0, 1, 1, 0.5), 1, 3, 0, -1.0)));
}

/* What is padded is computed by the same kernel, where there is something to compute. */
static void gelu_padded(traced *t)
{
    tn_tensor *x = input(t, 30, 64), *y = input(t, 32, 67);
    give(t, tn_mul(tn_pad(tn_pad(tn_gelu(x), 0, 1, 1, 0.5), 1, 3, 0, -1.0), y));
}

static void padded_image(traced *t)
{
    tn_tensor *x = input(t, 4, 6, 5, 3), *b = input(t, 3);
    give(t, tn_relu(tn_add(tn_pad(tn_pad(x, 1, 1, 1, 0), 2, 2, 2, 0), b)));
}

/* The gradients of x's two slices lie over each other: a sum of two pads. */
static void overlapping_slices(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, 300);
    give(t, tn_mul(tn_slice(x, 1, 0, 300, 1), y));
    give(t, tn_tanh(tn_slice(x, 1, 200, TN_END, 1)));
}

static void sliced_columns(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS / 4);
    give(t, tn_mul(tn_slice(x, 1, 3, TN_END, 4), y));
}

static void flipped(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS);
    give(t, tn_mul(tn_flip(tn_gelu(x), TN_AXES(-1)), y));
}

static void embedding(traced *t)
{
    tn_tensor *w = input(t, 100, 64), *position = input(t, 32, 64);
    tn_tensor *tokens = tn_reshape(indices(t, 8 * 32, 100), TN_SHAPE(8, 32));
    give(t, tn_add(tn_embedding(w, tokens), position));
}

static void gathered(traced *t)
{
    tn_tensor *x = input(t, 100, 64), *y = input(t, 256, 64);
    give(t, tn_add(tn_index_select(x, 0, indices(t, 256, 100)), y));
}

/* ---- parts of a whole ---- */

static tn_tensor *joined(tn_tensor *a, tn_tensor *b)
{
    return tn_concat(2, (tn_tensor *[]){a, b}, -1);
}

static void joined_chains(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS);
    give(t, joined(tn_relu(tn_add_scalar(x, 1.0)), tn_sigmoid(y)));
}

/* A vector's halves are turned: a rotary embedding. */
static void turned_halves(traced *t)
{
    tn_tensor *x = input(t, ROWS, 64), *c = input(t, ROWS, 64), *s = input(t, ROWS, 64);
    tn_tensor *turned = joined(tn_neg(tn_slice(x, 1, 32, 64, 1)), tn_slice(x, 1, 0, 32, 1));
    give(t, tn_add(tn_mul(x, c), tn_mul(turned, s)));
}

static void joined_rows(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, 64);
    give(t, joined(tn_softmax(x, -1), tn_tanh(y)));
}

static void joined_products(traced *t)
{
    tn_tensor *x = input(t, ROWS, 64), *a = input(t, 64, 32), *b = input(t, 64, 48);
    give(t, joined(tn_matmul(x, a), tn_matmul(x, b)));
}

static void joined_with_what_is_there(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS);
    give(t, joined(x, tn_sigmoid(y)));
}

/* ---- the questions one asks first ---- */

static void scalar_chain(traced *t)
{
    give(t, tn_mul_scalar(tn_relu(tn_add_scalar(input(t, ROWS, COLS), 1.0)), 2.0));
}

static void by_whole_sum(traced *t)
{
    tn_tensor *x = input(t, 1024, 1024);
    give(t, tn_div(x, tn_sum(x, TN_ALL, false)));
}

static void norm_of_row(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS);
    give(t, tn_sqrt(tn_sum(tn_mul(x, x), TN_AXES(-1), false)));
}

static void norm_of_all(traced *t)
{
    tn_tensor *x = input(t, 1024, 1024);
    give(t, tn_sqrt(tn_sum(tn_mul(x, x), TN_ALL, false)));
}

static void two_chains(traced *t)
{
    tn_tensor *x = input(t, ROWS, COLS), *y = input(t, ROWS, COLS);
    give(t, tn_add(tn_relu(x), tn_sigmoid(y)));
}

/* Where a case has a second pair of bounds, the first is the aim and the second what the fuser does so far.
 */
static fusion Cases[] = {
    {"chain", chain, {1, 0}, {1, 0}, {0}, {0}},
    {"siblings", siblings, {1, 0}, {1, 0}, {0}, {0}},
    {"several consumers", several_consumers, {1, 0}, {1, 0}, {0}, {0}},
    {"chain into reduction", chain_reduce, {2, 0}, {1, 0}, {0}, {0}},
    {"softmax", softmax, {1, 0}, {1, 0}, {0}, {0}},
    /* at most one for x and one for weight and bias together; here the rows are walked once for all three */
    {"layer_norm + gelu", layer_norm_gelu, {1, 0}, {2, 0}, {0}, {0}},
    {"rms_norm + silu", rms_norm_silu, {1, 0}, {2, 0}, {0}, {0}},
    {"x / sum(x) by row", by_row_sum, {1, 0}, {1, 0}, {0}, {0}},
    {"residual + dropout + norm", residual_norm, {1, 0}, {2, 0}, {0}, {0}},
    {"batch_norm + relu", batch_norm_relu, {2, 0}, {2, 0}, {0}, {0}},
    /* each channel's mean and deviation are written, nothing of the image's size. By itself backward has to
     * find the largest first; in a step forward does, see test_fusion_steps.c */
    {"batch_norm + relu + max_pool2d", batch_norm_relu_pool, {2, 2}, {3, 1}, {0}, {4, 2}},
    {"gelu + avg_pool2d", gelu_pool, {1, 0}, {1, 0}, {0}, {0}},
    /* the loss of each row is written, the probabilities are not */
    {"cross_entropy", cross_entropy, {2, 1}, {1, 0}, {0}, {0}},
    /* training keeps what gelu is taken of */
    {"linear + gelu", linear_gelu, {2, 1}, {4, 1}, {0}, {0}},
    /* the loss of this test gives 1 * c, read through transposes: a kernel of its own. No copies else */
    {"transpose + product", transposed_product, {1, 0}, {3, 1}, {0}, {0}},
    {"reshape + permute", reshaped, {1, 0}, {1, 0}, {0}, {0}},
    {"expand", expanded, {1, 0}, {1, 0}, {0}, {0}},
    {"slice", sliced, {1, 0}, {1, 0}, {0}, {0}},
    {"pad", padded, {1, 0}, {1, 0}, {0}, {0}},
    {"pad + gelu", padded_gelu, {1, 0}, {1, 0}, {0}, {0}},
    /* backward: y's gradient over all of the padded space, and x's over the part inside */
    {"gelu + pad", gelu_padded, {1, 0}, {2, 0}, {0}, {0}},
    {"pad of an image", padded_image, {1, 0}, {2, 1}, {0}, {0}},
    /* two results of different shapes; their gradients meet in one */
    {"overlapping slices", overlapping_slices, {2, 0}, {1, 0}, {0}, {0}},
    {"x[:, 3::4] * y", sliced_columns, {1, 0}, {1, 0}, {0}, {0}},
    {"flip", flipped, {1, 0}, {1, 0}, {0}, {0}},
    {"embedding + position", embedding, {1, 0}, {2, 1}, {0}, {0}},
    /* one for y, which is a product with 1 here, and one that adds up the rows of x */
    {"gather", gathered, {1, 0}, {2, 0}, {0}, {0}},
    {"concat of chains", joined_chains, {2, 0}, {2, 0}, {0}, {0}},
    {"rotary embedding", turned_halves, {1, 0}, {2, 1}, {0}, {0}},
    {"concat of rows", joined_rows, {2, 0}, {2, 0}, {0}, {0}},
    /* four products, two of which are added up */
    {"concat of products", joined_products, {2, 0}, {5, 2}, {0}, {0}},
    /* all parts are written in place, or none: where one has to be copied the other is, too */
    {"concat of an input", joined_with_what_is_there, {2, 0}, {2, 0}, {2, 1}, {0}},
    {"(x + 1).relu() * 2", scalar_chain, {1, 0}, {1, 0}, {0}, {0}},
    /* the sum itself, one number, is written */
    {"x / sum(x)", by_whole_sum, {2, 1}, {3, 1}, {0}, {0}},
    {"sqrt(sum(x * x)) by row", norm_of_row, {1, 0}, {1, 0}, {0}, {0}},
    {"sqrt(sum(x * x))", norm_of_all, {2, 0}, {1, 0}, {0}, {0}},
    {"relu(x) + sigmoid(y)", two_chains, {1, 0}, {1, 0}, {0}, {0}},
};
enum { N_CASES = sizeof Cases / sizeof *Cases };

int main(void)
{
    setenv("TENSOR_PROFILE", "reference", 1);
    struct CMUnitTest tests[N_CASES];
    for (int i = 0; i < N_CASES; i++)
        tests[i] = (struct CMUnitTest){Cases[i].name, check_fusion, NULL, NULL, &Cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
