/* test_cuda_tiles.c - convolutions by our own kernel on the simulated GPU: what joins it, forward and
 * backward, how many kernels a program becomes, what stands in the kernel's text and in the reasons for cuts;
 * and that results and gradients are the CPU's. `test_cuda_tiles programs_by_chance 100` runs more programs
 * of the random kind.
 *
 * A case records operators on inputs. The plan of its forward part is looked at before it runs, then that of
 * its gradients alone. Read first: struct tiled, then check_case. */
#include "cuda_traced.h"

/* ---- cases ---- */

static void plain(traced *t)
{
    give(t, tn_conv2d(input(t, 2, 6, 6, 4), input(t, 8, 3, 3, 4), NULL, .pad = 1));
}

static void bias_relu(traced *t)
{
    tn_tensor *x = input(t, 2, 6, 7, 3), *w = input(t, 6, 3, 3, 3), *b = input(t, 6);
    give(t, tn_relu(tn_conv2d(x, w, b, .pad = 1, .stride = 2)));
}

static void bias_gelu(traced *t)
{
    tn_tensor *x = input(t, 2, 5, 6, 4), *w = input(t, 8, 3, 3, 4), *b = input(t, 8);
    give(t, tn_gelu(tn_conv2d(x, w, b, .pad = 1)));
}

static void residual(traced *t)
{
    tn_tensor *x = input(t, 2, 5, 6, 8), *w = input(t, 8, 3, 3, 8), *b = input(t, 8);
    give(t, tn_relu(tn_add(tn_conv2d(x, w, b, .pad = 1), x)));
}

static void dropped(traced *t)
{
    tn_tensor *x = input(t, 2, 5, 6, 4), *w = input(t, 8, 1, 1, 4), *y = input(t, 2, 5, 6, 8);
    give(t, tn_add(tn_dropout(tn_silu(tn_conv2d(x, w, NULL)), 0.25), y));
}

static void several(traced *t)
{
    tn_tensor *y = tn_conv2d(input(t, 2, 5, 6, 4), input(t, 8, 3, 3, 4), NULL);
    give(t, tn_tanh(y));
    give(t, tn_square(y));
}

static void grouped(traced *t)
{
    tn_tensor *x = input(t, 2, 6, 6, 8), *w = input(t, 12, 3, 3, 2);
    give(t, tn_sigmoid(tn_conv2d(x, w, NULL, .groups = 4, .pad = 1, .dilation = 2)));
}

/* Its channels come first: read crosswise by what follows. */
static void permuted(traced *t)
{
    tn_tensor *y = tn_conv2d(input(t, 2, 5, 6, 4), input(t, 8, 3, 3, 4), NULL);
    give(t, tn_exp(tn_permute(y, 4, (const int[]){0, 3, 1, 2})));
}

static tn_tensor *norm(traced *t, tn_tensor *x, int64_t c)
{
    tn_tensor *w = input_at(t, 1, c), *b = input(t, c);
    return tn_batch_norm(x, w, b, t->mean, t->var);
}

static void batch_norm_relu(traced *t)
{
    tn_tensor *x = input(t, 4, 6, 6, 4), *w = input(t, 8, 3, 3, 4);
    give(t, tn_relu(norm(t, tn_conv2d(x, w, NULL, .pad = 1), 8)));
}

/* The mean is far from zero: hundreds of deviations. */
static void batch_norm_far(traced *t)
{
    tn_tensor *x = input(t, 4, 6, 6, 4), *w = input(t, 8, 3, 3, 4), *b = input_at(t, 300, 8);
    give(t, norm(t, tn_conv2d(x, w, b, .pad = 1), 8));
}

/* mean and variance by hand, in two passes */
static void moments(traced *t)
{
    tn_tensor *y = tn_conv2d(input(t, 4, 6, 6, 4), input(t, 8, 3, 3, 4), NULL, .pad = 1);
    tn_tensor *mean = tn_mean(y, TN_AXES(0, 1, 2), true), *d = tn_sub(y, mean);
    give(t, mean);
    give(t, tn_mean(tn_square(d), TN_AXES(0, 1, 2), true));
}

/* pooled by a mean: it is another reduction */
static void pooled(traced *t)
{
    tn_tensor *y = tn_relu(tn_conv2d(input(t, 4, 6, 6, 4), input(t, 8, 3, 3, 4), NULL, .pad = 1));
    give(t, tn_mean(y, TN_AXES(1, 2), false));
}

/* Sums of 16 bits that were widened, about a value of each channel that others read first, or too. */
static void about_read(traced *t, bool first, bool kept)
{
    tn_tensor *y = tn_conv2d(input(t, 4, 6, 6, 4), input(t, 8, 3, 3, 4), NULL, .pad = 1);
    tn_tensor *x = tn_cast(y, TN_F32), *k = tn_slice(y, 0, 0, 1, 1);
    k = tn_cast(tn_slice(tn_slice(k, 1, 2, 3, 1), 2, 3, 4, 1), TN_F32);
    if (first) t->out[t->n_out++] = tn_tanh(k);
    tn_tensor *d = tn_sub(x, k), *s = tn_mean(d, TN_AXES(0, 1, 2), true);
    t->out[t->n_out++] = s;
    t->out[t->n_out++] = tn_mean(tn_square(d), TN_AXES(0, 1, 2), true);
    if (kept) t->out[t->n_out++] = tn_add(x, s);
    if (kept && first) t->out[t->n_out++] = x;
    if (kept) t->out[t->n_out++] = k;
}

static void about(traced *t) { about_read(t, false, false); }

static void about_kept(traced *t) { about_read(t, false, true); }

static void about_first(traced *t) { about_read(t, true, false); }

static void about_first_kept(traced *t) { about_read(t, true, true); }

static const tiled Cases[] = {
    {"plain", plain, 1, 2, TN_F32, false, "tn_epilogue", 0},
    {"bias + relu", bias_relu, 1, 4, TN_F32, false, "tn_load", 0},
    {"bias + gelu", bias_gelu, 1, 4, TN_F32, false, "tn_ndtr", 0},
    {"bias + gelu, bf16", bias_gelu, 4, 8, TN_BF16, false, "tn_ndtr", 0},
    {"bias + relu, f16", bias_relu, 4, 8, TN_F16, false, "tn_epilogue", 0},
    {"residual + relu", residual, 1, 4, TN_F32, false, "tn_load", 0},
    {"silu + dropout + residual", dropped, 1, 3, TN_F32, false, "tn_random_pack", 0},
    {"several results", several, 1, 3, TN_F32, false, "tn_tanh", 0},
    {"groups and dilation", grouped, 1, 3, TN_F32, false, "tn_epilogue", 0},
    {"permuted", permuted, 1, 3, TN_F32, false, "tn_exp", 0},
    {"batch_norm + relu", batch_norm_relu, 2, 4, TN_F32, false, "tn_statistics", 0},
    /* its values have 2e-5 of rounding to begin with, of deviations of about 0.5 */
    {"batch_norm, mean far from 0", batch_norm_far, 2, 5, TN_F32, false, "tn_statistics", 2e-3},
    {"batch_norm + relu, evaluation", batch_norm_relu, 1, 5, TN_F32, true, "tn_rsqrt", 0},
    {"moments", moments, 1, 4, TN_F32, false, "tn_statistics", 0},
    {"batch_norm + relu, f16", batch_norm_relu, 4, 3, TN_F16, false, "count)\n{", 0},
    {"batch_norm + relu, bf16", batch_norm_relu, 4, 3, TN_BF16, false, "count)\n{", 0},
    {"batch_norm + relu, evaluation, f16", batch_norm_relu, 3, 3, TN_F16, true, "tn_rsqrt", 0},
    {"moments, bf16", moments, 4, 3, TN_BF16, false, "count)\n{", 0},
    {"about a channel's value, f16", about, 3, 4, TN_F16, false, "count)\n{", 0},
    {"and others read it, f16", about_kept, 4, 4, TN_F16, false, "count)\n{", 0},
    {"about one that is read before, f16", about_first, 3, 4, TN_F16, false, "count)\n{", 0},
    {"about one that all read, bf16", about_first_kept, 4, 4, TN_BF16, false, "tn_epilogue", 0},
    {"relu + mean", pooled, 2, 4, TN_F32, false, "tn_epilogue", 0},
};
enum { N_CASES = sizeof Cases / sizeof *Cases };

/* ---- looking at a plan ---- */

static void expect(const tiled *c, const char *what, const seen *v, int kernels)
{
    bool library = false;
    for (int i = 0; i < v->plan->n_step; i++) library |= v->plan->step[i].kind == TN_STEP_CONV;
    if (v->plan->n_step <= kernels && !library) return;
    print_plan(v);
    fail_msg("%s, %s: %d kernels, expected %d%s", c->name, what, v->plan->n_step, kernels,
             library ? "; one is the library's" : "");
}

/* ---- one case ---- */

static void check_case(void **state)
{
    const tiled *c = *state;
    rig_open(NULL);
    tn_session *s = open_on(TN_CUDA);
    traced t = begin(s, c);
    seen v = look(s);
    expect(c, "forward", &v, c->forward);
    const tn_step *conv = step_named(&v, "conv2d");
    assert_non_null(conv);
    if (!strstr(conv->source.text, c->has)) fail_msg("%s: no %s in\n%s", c->name, c->has, conv->source.text);
    forget(&v);
    v = look_backward(&t);
    expect(c, "backward", &v, c->backward);
    forget(&v);
    close_step(s);
    compare(c);
}

/* ---- random programs ---- */

static rng dice;

static int below(int n) { return (int)rng_below(&dice, n); }

/* Up to six operators behind a convolution, some of which it can take along and some not, and some that read
 * a value from further back. */
static void chance(traced *t)
{
    static const int channels[] = {2, 3, 4, 8};
    const int64_t c = channels[below(4)], oc = 8, side = 4 + below(4);
    const int k = below(2) ? 3 : 1;
    tn_tensor *x = input(t, 2, side, side, c), *w = input(t, oc, k, k, c);
    tn_tensor *y = tn_conv2d(x, w, below(2) ? input(t, oc) : NULL, .pad = k / 2, .stride = 1 + below(2));
    tn_tensor *kept = y;
    int norms = 0;
    for (int n = 1 + below(6); n > 0 && y; n--) {
        const int64_t h = tn_dim(y, 1);
        switch (below(12)) {
        case 0: y = tn_tanh(y); break;
        case 1: y = tn_mul(y, input_at(t, 1, oc)); break;
        case 2: y = tn_add(y, input(t, 2, h, h, oc)); break;
        case 3: /* one value a row, and then one a column */ y = tn_mul(y, input_at(t, 1, 2, h, h, 1)); break;
        case 4: y = tn_dropout(y, 0.25); break;
        case 5:
            if (!norms++ && tn_numel(y) > 2 * oc)
                y = tn_batch_norm(y, input_at(t, 1, oc), input(t, oc), t->mean, t->var);
            break;
        case 6: y = tn_add(y, tn_mean(y, TN_AXES(1, 2), true)); break;
        case 7:
            y = tn_relu(tn_permute(y, 4, (const int[]){0, 2, 1, 3}));
            kept = y;
            break;
        case 8:
            if (tn_numel(kept) == tn_numel(y)) y = tn_add(y, tn_sigmoid(kept));
            break;
        case 9:
            y = tn_conv2d(tn_relu(y), input(t, oc, 1, 1, oc), NULL);
            kept = y;
            break;
        case 10:
            y = tn_slice(y, 3, 0, TN_END, 1);
            give(t, tn_sum(tn_square(y), TN_AXES(0, 1, 2), false));
            break;
        case 11: y = tn_sub(y, tn_mean(y, TN_AXES(0, 1, 2), true)); break;
        }
        if (t->n_wrt > MOST - 3 || t->n_out > MOST - 2) break;
    }
    give(t, y);
}

static int random_programs = 8;

CUDA_TEST(programs_by_chance)
{
    for (int i = 0; i < random_programs; i++) {
        char name[32];
        snprintf(name, sizeof name, "seed %d", i);
        tiled c = {name, chance, 0, 0, TN_F32, below(4) == 0, "", 5e-4};
        const uint32_t seed = 77u * (uint32_t)i + 5;
        dice.state = seed;
        float *cpu, *cuda;
        int64_t n = values_of(&c, TN_CPU, &cpu);
        dice.state = seed;
        assert_int_equal(values_of(&c, TN_CUDA, &cuda), n);
        compare_values(&c, n, cuda, cpu);
        free(cuda);
        free(cpu);
    }
}

/* ---- what a kernel must not do, and what is said of it ---- */

static tn_tensor *kept(tn_session *s, const char *name, int ndim, const int64_t *shape)
{
    return tn_param(s, name, filled(s, TN_F32, 0, 37, ndim, shape));
}

enum { STATE = 2 * 5 * 6 * 8, WEIGHT = 8 * 3 * 3 * 8 };

/* What the kernel is of (pixels, or with `product` the rows of a linear layer) is replaced by what is
 * computed of it, and the weights are in the same step: all of it is read before. */
static void overwrite(tn_device_kind device, bool product, float *image, float *weight)
{
    tn_session *s = open_on(device);
    tn_tensor *x = product ? kept(s, "x", TN_SHAPE(24, 16)) : kept(s, "x", TN_SHAPE(2, 5, 6, 8)),
              *w = product ? kept(s, "w", TN_SHAPE(16, 16)) : kept(s, "w", TN_SHAPE(8, 3, 3, 8));
    for (int i = 0; i < 3; i++) {
        tn_step_begin(s);
        tn_tensor *y = tn_tanh(product ? tn_affine(x, w, NULL) : tn_conv2d(x, w, NULL, .pad = 1));
        assert_int_equal(tn_assign(x, tn_add(y, x)), 0);
        assert_int_equal(tn_assign(w, tn_mul_scalar(w, 0.5)), 0);
        tn_step_end(s);
    }
    read_into(x, TN_F32, image);
    read_into(w, TN_F32, weight);
    assert_int_equal(tn_close(s), 0);
}

TEST(operands_are_read_before_they_are_overwritten)
{
    static float x[2][STATE], w[2][WEIGHT];
    for (int product = 0; product < 2; product++) {
        rig_open(state);
        overwrite(TN_CPU, product, x[0], w[0]);
        overwrite(TN_CUDA, product, x[1], w[1]);
        for (int i = 0; i < STATE; i++) assert_true(fabsf(x[0][i] - x[1][i]) < 1e-5f);
        for (int i = 0; i < WEIGHT; i++) assert_true(w[0][i] == w[1][i]);
    }
}

CUDA_TEST(doubles_are_left_to_the_library)
{
    tn_session *s = open_on(TN_CUDA);
    tn_tensor *x = kept(s, "x", TN_SHAPE(2, 5, 6, 8)), *w = kept(s, "w", TN_SHAPE(8, 3, 3, 8));
    tn_step_begin(s);
    tn_tensor *y = tn_tanh(tn_conv2d(tn_cast(x, TN_F64), tn_cast(w, TN_F64), NULL, .pad = 1));
    assert_non_null(y);
    seen v = look(s);
    int conv = -1;
    for (int i = 0; i < v.plan->n_step; i++)
        if (v.plan->step[i].kind == TN_STEP_CONV) conv = i;
    assert_true(conv >= 0);
    assert_string_equal(v.plan->step[conv].name, "conv2d_im2col");
    bool said = false;
    for (int i = 0; i < v.plan->n_cut; i++) said |= v.plan->cut[i].reason == TN_CUT_LIBRARY;
    assert_true(said);
    forget(&v);
    close_step(s);
}

/* A window of 1 x 1 is a product, at which the library is faster where its operands are rounded once. */
static void one_by_one(traced *t) { give(t, tn_conv2d(input(t, 2, 5, 6, 8), input(t, 16, 1, 1, 8), NULL)); }

CUDA_TEST(a_window_of_one_is_the_librarys_product)
{
    const tiled c = {"one by one", one_by_one, 0, 0, TN_F32, false, NULL, 5e-3};
    setenv("TENSOR_PRECISION", "tf32", 1);
    tn_session *s = open_on(TN_CUDA);
    traced t = begin(s, &c);
    float y[2 * 5 * 6 * 16];
    seen v = look(s);
    if (v.plan->n_step != 1 || v.plan->step[0].kind != TN_STEP_CONV) {
        print_plan(&v);
        fail_msg("not one call of the library");
    }
    forget(&v);
    const uint64_t products = counters().matmuls;
    read_into(t.out[0], TN_F32, y);
    assert_int_equal(counters().matmuls - products, 1);
    assert_int_equal(tn_close(s), 0);
    compare(&c);
    unsetenv("TENSOR_PRECISION");
}

/* conv - gelu - conv with a bias each: the first one's gradient is made as the second one's data gradient is,
 * and only then summed for the bias. */
static void two_layers(traced *t)
{
    tn_tensor *x = input(t, 2, 5, 6, 4), *w = input(t, 8, 3, 3, 4), *b = input(t, 8),
              *v = input(t, 8, 3, 3, 8);
    give(t, tn_conv2d(tn_gelu(tn_conv2d(x, w, b, .pad = 1)), v, NULL, .pad = 1));
}

CUDA_TEST(gradients_of_activations_are_made_with_the_data_gradient)
{
    const tiled c = {"two layers", two_layers, 2, 5, TN_F32, false, "tn_ndtr", 0};
    tn_session *s = open_on(TN_CUDA);
    traced t = begin(s, &c);
    seen v = look_backward(&t);
    expect(&c, "backward", &v, c.backward + 1);
    bool joined = false;
    for (int i = 0; i < v.plan->n_step; i++)
        joined |= !strncmp(v.plan->step[i].name, "conv2d_data_grad", 16) &&
                  strstr(v.plan->step[i].source.text, "tn_ndtr") != NULL;
    if (!joined) {
        print_plan(&v);
        fail_msg("the gradient of gelu is not in the data gradient's kernel");
    }
    forget(&v);
    close_step(s);
    compare(&c);
}

enum { PIXELS = 2 * 12 * 12 * 64, SEEN = 2 * 96 * 64 };

/* A convolution's and an attention's results; *most: the largest block's shared memory. */
static void use_shared(tn_device_kind device, float *conv, float *attention, int64_t *most)
{
    tn_session *s = open_on(device);
    tn_tensor *x = kept(s, "x", TN_SHAPE(2, 12, 12, 64)), *w = kept(s, "w", TN_SHAPE(64, 3, 3, 64)),
              *q = kept(s, "q", TN_SHAPE(1, 2, 96, 64));
    tn_step_begin(s);
    tn_tensor *y = tn_relu(tn_conv2d(x, w, NULL, .pad = 1)), *o = tn_scaled_dot_product_attention(q, q, q);
    if (device == TN_CUDA) {
        seen v = look(s);
        for (int i = 0; i < v.plan->n_step; i++)
            if (v.plan->step[i].grid.shared > *most) *most = v.plan->step[i].grid.shared;
        forget(&v);
    }
    read_into(y, TN_F32, conv);
    read_into(o, TN_F32, attention);
    close_step(s);
}

/* A block has 99 KiB on an RTX 4090, 163 on an A100, 227 on an H100: tiles are as large as that lets them be.
 */
CUDA_TEST(shared_memory_of_each_generation)
{
    static const int kib[] = {99, 163, 227}, capability[] = {89, 80, 90};
    static float conv[2][PIXELS], attention[2][SEEN];
    int64_t most[3] = {0};
    use_shared(TN_CPU, conv[0], attention[0], NULL);
    for (int i = 0; i < 3; i++) {
        sim.set("shared-most", kib[i] << 10);
        sim.set("capability", capability[i]);
        use_shared(TN_CUDA, conv[1], attention[1], &most[i]);
        for (int k = 0; k < PIXELS; k++) assert_true(fabsf(conv[0][k] - conv[1][k]) < 1e-3f);
        for (int k = 0; k < SEEN; k++) assert_true(fabsf(attention[0][k] - attention[1][k]) < 1e-4f);
        /* with the kernel's own word, which takes what stands before a multiple of 1024 */
        assert_true(most[i] > 48 << 10 && most[i] + 1024 <= kib[i] << 10);
        assert_true(!i || most[i] >= most[i - 1]);
    }
    assert_true(most[2] > most[0]);
}

/* One product with operands rounded to TF32, or the three that make up for the rounding. */
CUDA_TEST(the_session_says_how_precise)
{
    for (int i = 0; i < 2; i++) {
        tn_session *s = tn_open(.device = TN_CUDA, .log = log_keep,
                                .precision = i ? TN_PRECISION_TF32 : TN_PRECISION_F32);
        float fine[4 * 8], one[8 * 8], y[4 * 8];
        for (int k = 0; k < 32; k++) fine[k] = 1 + 0x1p-12f; /* more digits than TF32 has */
        for (int k = 0; k < 64; k++) one[k] = k % 9 == 0;
        tn_step_begin(s);
        tn_tensor *x = tn_from(s, fine, TN_F32, TN_SHAPE(1, 2, 2, 8)),
                  *w = tn_from(s, one, TN_F32, TN_SHAPE(8, 1, 1, 8));
        tn_tensor *out = tn_relu(tn_conv2d(x, w, NULL));
        seen v = look(s);
        const tn_step *conv = step_named(&v, "conv2d");
        assert_non_null(conv);
        assert_non_null(strstr(conv->source.text, i ? "#define PRODUCTS 1" : "#define PRODUCTS 3"));
        forget(&v);
        read_into(out, TN_F32, y);
        for (int k = 0; k < 32; k++) assert_true(i ? y[k] == 1 : fabsf(y[k] - fine[k]) < 1e-6f);
        close_step(s);
    }
}

CUDA_TEST_ON(the_plan_says_what_a_convolution_took_along, open_on(TN_CUDA))
{
    tn_tensor *x = kept(s, "x", TN_SHAPE(2, 6, 6, 8)), *w = kept(s, "w", TN_SHAPE(16, 3, 3, 8));
    tn_step_begin(s);
    tn_tensor *y = tn_max_pool2d(tn_gelu(tn_conv2d(x, w, NULL, .pad = 1)), 2, .stride = 1);
    tn_backward(tn_sum(y, TN_ALL, false));
    tn_step_end(s);
    const char *text = tn_plan_text(s);
    if (!strstr(text, "conv2d_gelu_16") || !strstr(text, "conv2d + gelu")) fail_msg("%s", text);
    char *explained = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&explained, &n);
    assert_non_null(f);
    tn_explain(s, f);
    fclose(f);
    if (!strstr(explained, "a convolution's kernel takes along only")) fail_msg("%s", explained);
    /* of each kernel what is known once it is compiled */
    int kernels = 0, tiles = 0;
    kernels += count_text(explained, " registers, ");
    for (const char *at = explained; (at = strstr(at, "        tile ")); at++) {
        int bm, bn, bk, stages, registers, at_peak = -1, read = 0;
        long long shared = 0, spilled = -1;
        char splits[32] = "";
        assert_int_equal(sscanf(at, " tile %d x %d x %d, %d stages%n", &bm, &bn, &bk, &stages, &read), 4);
        const char *rest = at + read;
        if (sscanf(rest, ", %31[0-9] splits%n", splits, &read) == 1) rest += read;
        if (sscanf(rest,
                   ", predicted %d %% of peak; %d registers, %lld bytes of shared memory, %lld bytes spilled",
                   &at_peak, &registers, &shared, &spilled) != 4)
            fail_msg("%.200s", at);
        assert_true(at_peak >= 0 && at_peak <= 100 && registers > 0 && spilled == 0);
        assert_true(shared >= (long long)stages * (bm + bn) * bk * 4);
        tiles++;
    }
    if (tiles != 3 || kernels != 8) fail_msg("%d tiles, %d kernels in\n%s", tiles, kernels, explained);
    free(explained);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) random_programs = atoi(argv[2]);
    for (int i = 0; i < N_CASES; i++) add_test_row(Cases[i].name, check_case, &Cases[i]);
    return run_all_tests(NULL, NULL);
}
