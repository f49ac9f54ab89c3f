/* test_builtin.c - a machine without a C compiler: sessions run on built-in loops, say so once, and give what
 * the reference device gives. Some programs are larger than a tile and a chunk of those loops.
 *
 * The programs stand first, each a function of check.h; then what is said and what does not change with the
 * number of threads. */
#include "check.h"
#include "folder.h"
#include "rig.h"

static tn_tensor *random_of(tn_session *s, int rows, int cols)
{
    return tn_sub(tn_rand(s, TN_F32, TN_SHAPE(rows, cols)), tn_full(s, 0.5, TN_F32, TN_SCALAR));
}

static void put(int *n, tn_tensor **out, tn_tensor *t) { out[(*n)++] = t; }

/* Numbers of the host that gradients are taken of. */
static tn_tensor *leaf(tn_session *s, uint64_t seed, int ndim, const int64_t *shape)
{
    double v[8192];
    int64_t n = 1;
    rng r = {seed};
    for (int i = 0; i < ndim; i++) n *= shape[i];
    assert_true(n <= 8192);
    for (int64_t i = 0; i < n; i++) v[i] = rng_real(&r, -1, 1);
    tn_tensor *x = tensor_of(s, v, TN_F32, ndim, shape);
    tn_requires_grad(x, true);
    return x;
}

/* ---- programs ---- */

static void elementwise(tn_session *s, void *user, int *n, tn_tensor **out)
{
    (void)user;
    tn_tensor *x = random_of(s, 90, 1300), *y = tn_transpose(random_of(s, 1300, 90), 0, 1);
    tn_tensor *row = tn_rand(s, TN_F32, TN_SHAPE(1300)), *col = tn_rand(s, TN_F32, TN_SHAPE(90, 1));
    tn_tensor *z = tn_add(tn_mul(tn_tanh(x), tn_exp(y)), tn_mul(row, col));
    put(n, out, tn_where(tn_gt(x, y), z, tn_sigmoid(tn_neg(z))));
    put(n, out, tn_erf(tn_cast(x, TN_F64)));
    put(n, out,
        tn_floor(tn_mul(tn_cast(tn_mul(x, tn_full(s, 100, TN_F32, TN_SCALAR)), TN_I32),
                        tn_cast(tn_gt(y, x), TN_I32))));
    put(n, out, tn_mul(tn_cast(x, TN_F16), tn_cast(y, TN_F16)));
}

static void reductions(tn_session *s, void *user, int *n, tn_tensor **out)
{
    (void)user;
    tn_tensor *x = random_of(s, 700, 96), *cube = tn_reshape(x, TN_SHAPE(70, 10, 96));
    put(n, out, tn_sum(x, TN_ALL, false));
    put(n, out, tn_sum(x, TN_AXES(0), false));
    put(n, out, tn_sum(x, TN_AXES(1), true));
    put(n, out, tn_sum(cube, TN_AXES(1), false));
    put(n, out, tn_sum(cube, TN_AXES(0, 2), false));
    put(n, out, tn_max(cube, TN_AXES(1), false));
    put(n, out, tn_min(tn_transpose(x, 0, 1), TN_AXES(1), false));
    put(n, out, tn_cumsum(x, 1));
}

static void normalised(tn_session *s, void *user, int *n, tn_tensor **out)
{
    (void)user;
    tn_tensor *x = leaf(s, 9, TN_SHAPE(60, 77));
    tn_tensor *w = leaf(s, 1, TN_SHAPE(77)), *b = tn_rand(s, TN_F32, TN_SHAPE(77));
    tn_tensor *y = tn_softmax(tn_gelu(tn_layer_norm(x, w, b)), -1), *g[2];
    tn_tensor *loss = weighted(s, y, 5), *of[2] = {x, w};
    tn_grad(loss, 2, of, g);
    put(n, out, y);
    put(n, out, g[0]);
    put(n, out, g[1]);
}

static void images(tn_session *s, void *user, int *n, tn_tensor **out)
{
    (void)user;
    tn_tensor *x = leaf(s, 2, TN_SHAPE(3, 9, 8, 2)), *w = leaf(s, 3, TN_SHAPE(4, 3, 3, 2));
    tn_tensor *h = tn_relu(tn_conv2d(x, w, NULL, .stride = 1, .pad = 1)), *of[2] = {x, w}, *g[2];
    tn_tensor *y = tn_add(tn_max_pool2d(h, 2, .stride = 2), tn_avg_pool2d(h, 2, .stride = 2));
    tn_grad(weighted(s, y, 6), 2, of, g);
    put(n, out, y);
    put(n, out, g[0]);
    put(n, out, g[1]);
}

static void looked_up(tn_session *s, void *user, int *n, tn_tensor **out)
{
    (void)user;
    const int32_t id[] = {4, 0, 4, 2, 1, 4};
    tn_tensor *table = leaf(s, 4, TN_SHAPE(5, 33)), *index = tn_from(s, id, TN_I32, TN_SHAPE(2, 3));
    tn_tensor *y = tn_matmul(tn_embedding(table, index), tn_transpose(tn_embedding(table, index), 1, 2)), *g;
    tn_grad(weighted(s, y, 7), 1, &table, &g);
    put(n, out, y);
    put(n, out, g);
    put(n, out, tn_dropout(table, 0.3));
}

static void check(program_fn *program)
{
    bench b = {0};
    char text[640];
    b.ref = tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 77, .log = quiet);
    assert_non_null(b.ref);
    bench_add(&b, "built-in eager", tn_open(.device = TN_CPU, .mode = TN_EAGER, .seed = 77, .log = quiet));
    bench_add(&b, "built-in fused", tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 77, .log = quiet));
    if (!check_program(&b, program, NULL, NULL, text)) fail_msg("%s", text);
    assert_true(b.elements > 0);
    for (int i = 0; i < b.n; i++) {
        tn_stats v = {.size = sizeof v};
        tn_get_stats(b.subject[i], &v);
        assert_int_equal(v.compiled + v.cache_hits, 0);
    }
    bench_close(&b);
}

TEST(test_elementwise) { check(elementwise); }

TEST(test_reductions) { check(reductions); }

TEST(test_norms) { check(normalised); }

TEST(test_images) { check(images); }

TEST(test_embedding) { check(looked_up); }

/* ---- training, and what is said ---- */

enum { STEPS = 12 };

static void count(int level, const char *text, void *user)
{
    if (level <= TN_LOG_WARN && strstr(text, "built-in loops")) ++*(int *)user;
}

/* An MLP with dropout on two classes of noise; the losses. */
static void train(tn_device_kind device, tn_mode mode, int threads, double *loss, int *warned)
{
    tn_session *s = tn_open(.device = device, .mode = mode, .seed = 5, .threads = threads, .log = count,
                            .log_user = warned);
    assert_non_null(s);
    tn_linear *a = tn_linear_new(s, "a", 40, 64), *b = tn_linear_new(s, "b", 64, 2);
    tn_norm *norm = tn_layer_norm_new(s, "norm", 64);
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2, .weight_decay = 0.01);
    rng r = {11};
    for (int k = 0; k < STEPS; k++) {
        float x[16 * 40];
        int32_t y[16];
        for (int i = 0; i < 16; i++) {
            y[i] = i % 2;
            for (int j = 0; j < 40; j++) x[i * 40 + j] = (float)rng_real(&r, -1, 1) + 0.3f * (float)y[i];
        }
        tn_step_begin(s);
        tn_tensor *h = tn_linear_forward(a, tn_from(s, x, TN_F32, TN_SHAPE(16, 40)));
        h = tn_dropout(tn_relu(tn_norm_forward(norm, h)), 0.1);
        tn_tensor *l = tn_cross_entropy(tn_linear_forward(b, h), tn_from(s, y, TN_I32, TN_SHAPE(16)));
        tn_backward(l);
        tn_clip_grad_norm(opt, 1.0);
        tn_optim_step(opt);
        loss[k] = tn_item(l);
        tn_step_end(s);
    }
    assert_string_equal(tn_error_text(s), "");
    assert_int_equal(tn_close(s), TN_OK);
}

TEST(test_training)
{
    double want[STEPS], got[STEPS], other[STEPS];
    int warned = 0;
    train(TN_REF, TN_EAGER, 1, want, &warned);
    assert_int_equal(warned, 0);
    assert_true(want[STEPS - 1] < want[0]);
    for (int mode = TN_FUSED; mode <= TN_EAGER; mode++) {
        warned = 0;
        train(TN_CPU, (tn_mode)mode, 1, got, &warned);
        assert_int_equal(warned, 1);
        for (int k = 0; k < STEPS; k++)
            if (fabs(got[k] - want[k]) > 1e-4 * (1 + fabs(want[k])))
                fail_msg("step %d: loss %.9g, reference %.9g", k, got[k], want[k]);
        for (int threads = 2; threads <= 3; threads++) {
            train(TN_CPU, (tn_mode)mode, threads, other, &warned);
            assert_memory_equal(got, other, sizeof got);
        }
    }
}

static void run(const char *format)
{
    char line[300];
    snprintf(line, sizeof line, format, base, base);
    assert_int_equal(system(line), 0);
}

/* A cache that was filled elsewhere serves in the place of a compiler, of which none is on the PATH; where a
 * kernel is missing it is the loops. */
TEST(test_a_filled_cache_serves_without_a_compiler)
{
    double want[STEPS], got[STEPS];
    char folder[100], *path = strdup(getenv("PATH")), *cache = strdup(getenv("TENSOR_CACHE"));
    int warned = 0;
    unsetenv("CC");
    for (int k = 0; k < 3; k++) {
        snprintf(folder, sizeof folder, "%s/%s", base, k ? "copy" : "filled");
        setenv("TENSOR_CACHE", folder, 1);
        if (k == 0) unsetenv("TENSOR_CC");
        if (k == 1) run("cp -r '%s/filled' '%s/copy'");
        if (k == 2) run("rm '%s'/copy/adamw*.c");
        if (k)
            setenv(strchr(TN_BUILD_CC, '/') ? "TENSOR_CC" : "PATH", strchr(TN_BUILD_CC, '/') ? "kept" : base,
                   1);
        train(TN_CPU, TN_FUSED, 2, k ? got : want, &warned);
        setenv("PATH", path, 1);
        if (k < 2) assert_int_equal(warned, 0);
        if (k == 1) assert_memory_equal(got, want, sizeof got);
    }
    assert_int_equal(warned, 1);
    for (int k = 0; k < STEPS; k++) assert_true(fabs(got[k] - want[k]) < 1e-5);
    setenv("TENSOR_CC", "none", 1);
    setenv("TENSOR_CACHE", cache, 1);
    free(path);
    free(cache);
}

TEST_ON(test_index_out_of_range_is_an_error, tn_open(.device = TN_CPU, .log = quiet))
{
    const int32_t id[] = {0, 9};
    tn_tensor *y = tn_embedding(tn_ones(s, TN_F32, TN_SHAPE(5, 3)), tn_from(s, id, TN_I32, TN_SHAPE(2)));
    float v[6];
    tn_read(y, TN_F32, v, sizeof v);
    failed(s, TN_E_INDEX, "");
    assert_true(tn_item(tn_sum(tn_ones(s, TN_F32, TN_SHAPE(7)), TN_ALL, false)) == 7);
}

static int no_compiler(void **state) { return make_base(state) || setenv("TENSOR_CC", "none", 1); }

RUN_TESTS(no_compiler, drop_base)
