/* test_fusion.c - what fuses with what, forward and backward: how many kernels a program becomes, which of
 * its values reach memory, and how many bytes move.
 *
 * A case records a few operators on inputs. Their plan is looked at as it would be made at the end of a step
 * without a gradient (`forward`); then they are run, and the plan of their gradients alone is (`backward`).
 * In one step the two may share kernels and must not need more. Kernels are launches and library calls. What
 * the fused step gives is then compared, results and gradients, with what eager mode does.
 *
 * Read first: struct fusion, then check_fusion.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tensor_nn.h>

#include "plan_checks.h"

enum { MAX_CASE_OUT = 4, MAX_CASE_IN = 6, ROWS = 256, COLS = 512 };

typedef struct traced {
    tn_session *s;
    bool gradients; /* of this recording's inputs */
    int n_out, n_wrt;
    tn_tensor *out[MAX_CASE_OUT], *wrt[MAX_CASE_IN];
} traced;

/* Kernels, and values in memory that nobody asked for, at most. */
typedef struct bound {
    int kernels, written;
} bound;

typedef struct fusion {
    const char *name;
    void (*record)(traced *t);
    bound forward, backward;               /* what is to be reached */
    bound forward_so_far, backward_so_far; /* where it is not: what is; kernels 0: it is */
} fusion;

static void quiet(int level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
}

static tn_session *open_mode(tn_mode mode)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .seed = 9, .log = quiet);
    assert_non_null(s);
    return s;
}

static float *numbers(int64_t n)
{
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 37 + 11) % 1009 + 1) / 1009.0f;
    return v;
}

/* An input of the case, with a gradient where the recording is for one. */
static tn_tensor *input_of(traced *t, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    float *v = numbers(n);
    tn_tensor *x = tn_from(t->s, v, TN_F32, ndim, shape);
    free(v);
    assert_non_null(x);
    if (t->gradients) tn_requires_grad(t->wrt[t->n_wrt++] = x, true);
    return x;
}
#define input(t, ...) input_of(t, TN_SHAPE(__VA_ARGS__))

static tn_tensor *indices(traced *t, int64_t n, int below)
{
    int32_t v[4096];
    for (int64_t i = 0; i < n; i++) v[i] = (int32_t)(i * 7 % below);
    return tn_from(t->s, v, TN_I32, TN_SHAPE(n));
}

static void give(traced *t, tn_tensor *out)
{
    if (!out) fail_msg("%s", tn_error_text(t->s));
    t->out[t->n_out++] = out;
}

/* ---- looking at a plan ---- */

static void expect(const char *name, const char *what, const seen *v, bound wanted, bound so_far)
{
    if (v->kernels <= wanted.kernels && v->written <= wanted.written) {
        if (so_far.kernels) print_message("%s, %s: what is to be reached is reached\n", name, what);
        return;
    }
    if (v->kernels <= so_far.kernels && v->written <= so_far.written) return;
    print_plan(v);
    if (so_far.kernels) wanted = so_far;
    fail_msg("%s, %s: %d kernels and %d values written, expected %d and %d", name, what, v->kernels,
             v->written, wanted.kernels, wanted.written);
}

static uint64_t launched(const tn_session *s)
{
    tn_stats v = {.size = sizeof v};
    tn_get_stats(s, &v);
    assert_int_equal(v.copies, 0);
    assert_int_equal(v.reorders, 0);
    return v.kernels + v.library_calls;
}

/* ---- one case ---- */

static void end_step(tn_session *s, int kernels)
{
    uint64_t before = launched(s);
    assert_int_equal(tn_step_end(s), 0);
    assert_int_equal(launched(s) - before, kernels); /* what was looked at is what runs */
}

static tn_tensor *loss_of(const traced *t)
{
    tn_tensor *loss = NULL;
    for (int i = 0; i < t->n_out; i++) {
        int64_t shape[TN_MAX_DIMS], n = tn_numel(t->out[i]);
        for (int k = 0; k < tn_ndim(t->out[i]); k++) shape[k] = tn_dim(t->out[i], k);
        float *v = numbers(n);
        tn_tensor *c = tn_from(t->s, v, TN_F32, tn_ndim(t->out[i]), shape);
        tn_tensor *part = tn_sum(tn_mul(t->out[i], c), TN_ALL, false);
        free(v);
        loss = loss ? tn_add(loss, part) : part;
    }
    return loss;
}

static void take_gradients(traced *t, tn_tensor *loss)
{
    tn_tensor *grad[MAX_CASE_IN];
    if (tn_grad(loss, t->n_wrt, t->wrt, grad)) fail_msg("%s", tn_error_text(t->s));
    for (int i = 0; i < t->n_wrt; i++) assert_non_null(grad[i]);
}

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

/* ---- bytes ---- */

static uint64_t bytes_of(const tn_session *s)
{
    tn_stats v = {.size = sizeof v};
    tn_get_stats(s, &v);
    return v.bytes_moved;
}

/* relu(x * 2 + b) over n floats: eager reads and writes 8n, 12n and 8n bytes, fused 12n in one kernel. */
static void a_chain_moves_its_ends_only(void **state)
{
    (void)state;
    const uint64_t n = ROWS * COLS;
    for (int fused = 0; fused < 2; fused++) {
        tn_session *s = open_mode(fused ? TN_FUSED : TN_EAGER);
        for (int step = 0; step < 3; step++) {
            traced t = {.s = s};
            uint64_t bytes = bytes_of(s), kernels = launched(s);
            tn_step_begin(s);
            tn_tensor *x = input(&t, ROWS, COLS), *b = input(&t, ROWS, COLS);
            give(&t, tn_relu(tn_add(tn_mul_scalar(x, 2.0), b)));
            tn_step_end(s);
            assert_int_equal(bytes_of(s) - bytes, (fused ? 12 : 28) * n);
            assert_int_equal(launched(s) - kernels, fused ? 1 : 3);
        }
        assert_int_equal(tn_close(s), 0);
    }
}

/* ---- forward and backward in one kernel ---- */

/* A gradient that somebody asked for, or that a product reads, is written whenever it is made: made where the
 * loss is, it spares reading forward's operands again. */
static void a_loss_and_its_gradient_are_one_kernel(void **state)
{
    (void)state;
    for (int product = 0; product < 2; product++) {
        tn_session *s = open_mode(TN_FUSED);
        traced t = {.s = s, .gradients = true};
        tn_step_begin(s);
        tn_tensor *x = input(&t, 300, 70), *w = product ? input(&t, 70, 50) : NULL;
        tn_tensor *y = tn_silu(product ? tn_matmul(x, w) : x);
        take_gradients(&t, tn_sum(tn_square(y), TN_ALL, false));
        seen v = look(s);
        /* the product, silu's sum and the gradient that two products read */
        expect("loss", product ? "of a product" : "of a chain", &v, (bound){product ? 4 : 1, product ? 2 : 0},
               (bound){0});
        end_step(s, v.kernels);
        forget(&v);
        assert_int_equal(tn_close(s), 0);
    }
}

/* ---- limits ---- */

/* Neighbours that share an operand fuse until one kernel could not name all that is read and written. */
static void more_operands_than_a_kernel_can_name(void **state)
{
    (void)state;
    enum { N = 41 };
    tn_session *s = open_mode(TN_FUSED);
    traced t = {.s = s};
    tn_tensor *x[N];
    tn_step_begin(s);
    for (int i = 0; i < N; i++) x[i] = input(&t, 40, 40);
    for (int i = 0; i < N - 1; i++) assert_non_null(tn_mul(x[i], x[i + 1]));
    seen v = look(s);
    if (v.kernels != 2) {
        print_plan(&v);
        fail_msg("%d kernels", v.kernels);
    }
    end_step(s, 2);
    forget(&v);
    assert_int_equal(tn_close(s), 0);
}

/* ---- optimizer ---- */

/* Three parameters of different shapes and an update of all: one kernel that reads gradient, parameter and
 * two moments and writes three; with clipping the norm is read before. */
static void an_update_is_one_kernel(void **state)
{
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        tn_session *s = open_mode(TN_FUSED);
        tn_tensor *p[3] = {tn_param(s, "a", tn_ones(s, TN_F32, TN_SHAPE(33, 7))),
                           tn_param(s, "b", tn_ones(s, TN_F32, TN_SHAPE(129))),
                           tn_param(s, "c", tn_ones(s, TN_F32, TN_SHAPE(2, 3, 50)))};
        tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 0.01, .weight_decay = 0.1);
        for (int step = 0; step < 3; step++) {
            tn_step_begin(s);
            tn_tensor *loss = NULL;
            for (int i = 0; i < 3; i++) {
                tn_tensor *part = tn_sum(tn_square(p[i]), TN_ALL, false);
                loss = loss ? tn_add(loss, part) : part;
            }
            tn_backward(loss);
            assert_int_equal(tn_flush(s), 0);
            if (clip) tn_clip_grad_norm(opt, 0.5);
            tn_optim_step(opt);
            seen v = look(s);
            if (step) /* the first makes the moments */
                expect("adamw", clip ? "with clipping" : "update", &v, (bound){1 + clip, 0}, (bound){0});
            if (step && !clip) { /* blocks of 64 floats: 256 + 192 + 320 */
                const int64_t row = (256 + 192 + 320) * 4;
                if (v.bytes > 7 * row)
                    fail_msg("%lld bytes, expected %lld", (long long)v.bytes, (long long)(7 * row));
            }
            end_step(s, v.kernels);
            forget(&v);
        }
        assert_int_equal(tn_close(s), 0);
    }
}

int main(void)
{
    setenv("TENSOR_PROFILE", "reference", 1);
    struct CMUnitTest tests[N_CASES + 4];
    for (int i = 0; i < N_CASES; i++)
        tests[i] = (struct CMUnitTest){Cases[i].name, check_fusion, NULL, NULL, &Cases[i]};
    tests[N_CASES] = (struct CMUnitTest)cmocka_unit_test(a_chain_moves_its_ends_only);
    tests[N_CASES + 1] = (struct CMUnitTest)cmocka_unit_test(an_update_is_one_kernel);
    tests[N_CASES + 2] = (struct CMUnitTest)cmocka_unit_test(a_loss_and_its_gradient_are_one_kernel);
    tests[N_CASES + 3] = (struct CMUnitTest)cmocka_unit_test(more_operands_than_a_kernel_can_name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
