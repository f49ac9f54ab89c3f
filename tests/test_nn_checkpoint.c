/* test_nn_checkpoint.c - tn_save and tn_load: what comes back.
 *
 *   resume      a run that is saved, loaded into a new session and goes on has the losses of one that was not
 *   foreign     weights alone, PyTorch's layout, other dtypes, numbers at odd addresses
 *
 * Read checkpoint_rig.h and resume first. */
#include "checkpoint_rig.h"

/* ---- resume ---- */

static void resume_on(const place *at, run_kind kind)
{
    enum { BEFORE = 7, AFTER = 6 }; /* five steps are a pass: both stop within one */
    double want[AFTER], got[AFTER];
    run a, b;
    const char *path = in_base("resume");
    open_run(&a, at, kind);
    go_on(&a, BEFORE, NULL);
    assert_int_equal(tn_save(a.s, path), TN_OK);
    go_on(&a, AFTER, want);
    open_run(&b, at, kind);
    go_on(&b, kind == ACCUMULATE ? 4 : 2, NULL); /* whatever it has done before, or not, is replaced */
    tn_loader_close(b.loader);
    b.loader = NULL;
    if (tn_load(b.s, path)) fail_msg("%s: %s", at->name, tn_error_text(b.s));
    go_on(&b, AFTER, got);
    /* the reference device computes in f64 what the file holds as f32 */
    double tolerance = at->device == TN_REF ? 1e-5 : 0;
    for (int i = 0; i < AFTER; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance))
            fail_msg("%s, kind %d: loss %d after the resume is %.17g, not %.17g", at->name, kind, i, got[i],
                     want[i]);
    for (int i = 0; i < tn_param_count(a.s) && !(tolerance > 0); i++) {
        float x[256], y[256];
        size_t n = (size_t)tn_numel(tn_param_at(a.s, i)) * sizeof(float);
        tn_read(tn_param_at(a.s, i), TN_F32, x, n);
        tn_read(tn_param_at(b.s, i), TN_F32, y, n);
        assert_memory_equal(x, y, n);
    }
    close_run(&a);
    close_run(&b);
}

TEST(resume)
{
    needs_cjson();
    for (int at = 0; at < PLACE_COUNT; at++)
        for (int kind = 0; kind < RUN_KINDS; kind++) resume_on(&PLACES[at], (run_kind)kind);
}

/* ---- writing files by hand ---- */

typedef struct entry {
    const char *name, *type;
    int ndim;
    int64_t shape[4];
    const void *data;
    size_t bytes;
} entry;

static void write_file(const char *path, const char *meta, int n, const entry *e, int spaces)
{
    char header[4096];
    size_t at = 0, k = (size_t)snprintf(header, sizeof(header), "{%s", meta);
    for (int i = 0; i < n; i++) {
        k += (size_t)snprintf(header + k, sizeof(header) - k, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                              i || *meta ? "," : "", e[i].name, e[i].type);
        for (int d = 0; d < e[i].ndim; d++)
            k += (size_t)snprintf(header + k, sizeof(header) - k, "%s%lld", d ? "," : "",
                                  (long long)e[i].shape[d]);
        k += (size_t)snprintf(header + k, sizeof(header) - k, "],\"data_offsets\":[%zu,%zu]}", at,
                              at + e[i].bytes);
        at += e[i].bytes;
    }
    k += (size_t)snprintf(header + k, sizeof(header) - k, "}%*s", spaces, "");
    assert_true(k < sizeof(header));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < 8; i++) fputc((int)(k >> (8 * i) & 255), f);
    fwrite(header, 1, k, f);
    for (int i = 0; i < n; i++) fwrite(e[i].data, 1, e[i].bytes, f);
    assert_int_equal(fclose(f), 0);
}

/* ---- foreign ---- */

TEST(pytorch_weights)
{
    needs_cjson();
    const char *path = in_base("pt");
    float weight[2 * 3 * 2 * 2], w[24]; /* OIHW [2, 3, 2, 2]: o * 100 + i * 10 + h * 2 + w */
    for (int i = 0; i < 24; i++) weight[i] = (float)(i / 12 * 100 + i / 4 % 3 * 10 + i % 4);
    uint16_t bias[2] = {0x3c00, 0xc000}; /* f16: 1, -2 */
    double mean[2] = {0.25, 0.5};
    float var[2] = {3, 4}, nw[2] = {5, 6}, nb[2] = {7, 8};
    int64_t batches = 12;
    const entry e[] = {
        {"n.num_batches_tracked", "I64", 0, {0}, &batches, 8},
        {"n.running_mean", "F64", 1, {2}, mean, 16},
        {"c.weight", "F32", 4, {2, 3, 2, 2}, weight, 96},
        {"n.running_var", "F32", 1, {2}, var, 8},
        {"n.weight", "F32", 1, {2}, nw, 8},
        {"n.bias", "F32", 1, {2}, nb, 8},
        {"c.bias", "F16", 1, {2}, bias, 4},
    };
    for (int at = 0; at < PLACE_COUNT; at++)
        for (int spaces = 0; spaces < 5; spaces++) { /* which shift the data to odd addresses */
            write_file(path, "\"__metadata__\":{\"format\":\"pt\"}", 7, e, spaces);
            tn_session *s = open_place(&PLACES[at], NULL, NULL);
            tn_conv *c = tn_conv2d_new(s, "c", 3, 2, 2);
            tn_norm *n = tn_batch_norm_new(s, "n", 2);
            tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 0.25);
            tn_set_rng(s, 3, 44);
            if (tn_load(s, path)) fail_msg("%s", tn_error_text(s));
            tn_read(c->weight, TN_F32, w, sizeof(w));
            for (int i = 0; i < 24; i++) /* OHWI: o, (h, w), i */
                assert_true(w[i] == (float)(i / 12 * 100 + i % 3 * 10 + i / 3 % 4));
            tn_read(c->bias, TN_F32, w, 8);
            assert_true(w[0] == 1 && w[1] == -2);
            tn_read(n->running_mean, TN_F32, w, 8);
            assert_true(w[0] == 0.25f && w[1] == 0.5f);
            tn_read(n->bias, TN_F32, w, 8);
            assert_true(w[0] == 7 && w[1] == 8);
            /* weights alone leave the run as it was */
            assert_true(tn_optim_lr(o) == 0.25 && tn_rng_draw(s) == 44 && tn_seed(s) == 3);
            assert_int_equal(tn_close(s), TN_OK);
        }
}

/* Optimizer state in the file is left out where nobody asks for it. */
TEST(weights_of_a_run)
{
    needs_cjson();
    const char *path = in_base("run");
    run a;
    open_run(&a, &PLACES[0], ADAMW);
    go_on(&a, 3, NULL);
    assert_int_equal(tn_save(a.s, path), TN_OK);
    tn_session *s = open_place(&PLACES[0], NULL, NULL);
    tn_conv *conv = tn_conv2d_new(s, "conv", 1, 4, 3, .pad = 1);
    tn_batch_norm_new(s, "norm", 4);
    tn_linear_new(s, "fc", 3 * 3 * 4, CLASSES);
    tn_param(s, "wide", tn_zeros(s, TN_F64, TN_SHAPE(2)));
    if (tn_load(s, path)) fail_msg("%s", tn_error_text(s));
    float x[36], y[36];
    tn_read(conv->weight, TN_F32, x, sizeof(x));
    tn_read(a.conv->weight, TN_F32, y, sizeof(y));
    assert_memory_equal(x, y, sizeof(x));
    assert_int_equal(tn_rng_draw(s), tn_rng_draw(a.s));
    tn_close(s);
    close_run(&a);
}

/* ---- PyTorch's order ---- */

/* A decoder and an encoder of images: each place that the two orders meet at. What PyTorch's model of these
 * weights gives is worked out by loops over [c, h, w], for random sizes. */
typedef struct image_net {
    int64_t h, w, c, mid,
        out; /* of the image that is flattened, between the linear layers, and of the one made */
    tn_session *s;
    tn_conv *conv;      /* 1x1, 2 -> c */
    tn_norm *norm;      /* over the flattened image */
    tn_linear *in, *to; /* h * w * c -> mid -> h * w * out */
} image_net;

enum { TOLD, UNTOLD };

static void open_images(image_net *m, int told)
{
    tn_session *s = m->s = open_place(&PLACES[PLACE_COUNT - 1], NULL, NULL);
    m->conv = tn_conv2d_new(s, "conv", 2, m->c, 3, .pad = 1);
    int64_t n = m->h * m->w * m->c, k = m->h * m->w * m->out;
    tn_linear_options in = {.flattened = {m->h, m->w, m->c}, .size = sizeof(in)};
    tn_linear_options to = {.unflattened = {m->h, m->w, m->out}, .size = sizeof(to)};
    tn_norm_new_options norm = {.flattened = {m->h, m->w, m->c}, .size = sizeof(norm)};
    m->norm = (tn_batch_norm_new)(s, "norm", n, told == TOLD ? &norm : NULL);
    m->in = (tn_linear_new)(s, "in", n, m->mid, told == TOLD ? &in : NULL);
    m->to = (tn_linear_new)(s, "to", m->mid, k, told == TOLD ? &to : NULL);
    tn_train(s, false);
    expect_fine(s, "images");
}

/* A file as PyTorch writes it: n arrays of random numbers, one after the other in `v`. */
static int image_file(const image_net *m, const char *path, const char *meta, rng *g, float *v, float **part)
{
    int64_t n = m->h * m->w * m->c, k = m->h * m->w * m->out;
    const entry e[] = {
        {"conv.weight", "F32", 4, {m->c, 2, 3, 3}, NULL, 0},
        {"conv.bias", "F32", 1, {m->c}, NULL, 0},
        {"norm.weight", "F32", 1, {n}, NULL, 0},
        {"norm.bias", "F32", 1, {n}, NULL, 0},
        {"norm.running_mean", "F32", 1, {n}, NULL, 0},
        {"norm.running_var", "F32", 1, {n}, NULL, 0},
        {"in.weight", "F32", 2, {m->mid, n}, NULL, 0},
        {"in.bias", "F32", 1, {m->mid}, NULL, 0},
        {"to.weight", "F32", 2, {k, m->mid}, NULL, 0},
        {"to.bias", "F32", 1, {k}, NULL, 0},
    };
    entry full[10];
    for (int i = 0; i < 10; i++) {
        int64_t count = 1;
        full[i] = e[i];
        for (int d = 0; d < e[i].ndim; d++) count *= e[i].shape[d];
        part[i] = v;
        full[i].data = v;
        full[i].bytes = (size_t)count * sizeof(float);
        for (int64_t j = 0; j < count; j++) *v++ = (float)rng_real(g, i == 5 ? 0.5 : -1, i == 5 ? 2 : 1);
    }
    write_file(path, meta, 10, full, 0);
    return 10;
}

/* One image through PyTorch's model, x and the result [c, h, w]. */
static void images_there(const image_net *m, float **p, const double *x, double *y)
{
    double flat[512], mid[16];
    int64_t h = m->h, w = m->w, n = h * w * m->c;
    for (int64_t o = 0; o < m->c; o++)
        for (int64_t i = 0; i < h; i++)
            for (int64_t j = 0; j < w; j++) {
                double sum = p[1][o];
                for (int64_t c = 0; c < 2; c++)
                    for (int64_t a = 0; a < 3; a++)
                        for (int64_t b = 0; b < 3; b++)
                            if (i + a >= 1 && i + a <= h && j + b >= 1 && j + b <= w)
                                sum += p[0][((o * 2 + c) * 3 + a) * 3 + b] *
                                       x[(c * h + i + a - 1) * w + j + b - 1];
                flat[(o * h + i) * w + j] = sum;
            }
    for (int64_t i = 0; i < n; i++) flat[i] = (flat[i] - p[4][i]) / sqrt(p[5][i] + 1e-5) * p[2][i] + p[3][i];
    for (int64_t o = 0; o < m->mid; o++) {
        mid[o] = p[7][o];
        for (int64_t i = 0; i < n; i++) mid[o] += p[6][o * n + i] * flat[i];
    }
    for (int64_t o = 0; o < h * w * m->out; o++) {
        y[o] = p[9][o];
        for (int64_t i = 0; i < m->mid; i++) y[o] += p[8][o * m->mid + i] * mid[i];
    }
}

TEST(pytorch_images)
{
    static const char *const marks[] = {"\"__metadata__\":{\"format\":\"pt\"}", "",
                                        "\"__metadata__\":{\"format\":\"np\"}"};
    rng g = {17};
    const char *path = in_base("images");
    static float v[1 << 14];
    float *p[10];
    for (int round = 0; round < 24; round++) {
        image_net m = {.h = 1 + rng_below(&g, 5),
                       .w = 1 + rng_below(&g, 5),
                       .c = 1 + rng_below(&g, 5),
                       .mid = 1 + rng_below(&g, 9),
                       .out = 1 + rng_below(&g, 4)};
        const char *mark = marks[round % 3];
        image_file(&m, path, mark, &g, v, p);
        open_images(&m, TOLD);
        /* without a mark nothing is loaded, and the error says what to do */
        if (*mark != '"' || !strstr(mark, "pt")) {
            float before[64], after[64];
            size_t bytes = (size_t)m.mid * sizeof(float);
            tn_read(m.in->bias, TN_F32, before, bytes);
            fails_with(m.s, TN_E_ARG, ".layout = TN_LAYOUT_PYTORCH", tn_load(m.s, path));
            tn_read(m.in->bias, TN_F32, after, bytes);
            assert_memory_equal(before, after, bytes);
        }
        if (tn_load(m.s, path,
                    .layout = strstr(mark, "pt") && round % 2 ? TN_LAYOUT_MARKED : TN_LAYOUT_PYTORCH))
            fail_msg("%s", tn_error_text(m.s));
        double there[2 * 25], want[4 * 25], got[4 * 25];
        float here[2 * 25];
        int64_t pixels = m.h * m.w;
        for (int64_t i = 0; i < pixels * 2; i++) {
            there[i] = rng_real(&g, -1, 1);
            here[i % pixels * 2 + i / pixels] = (float)there[i];
        }
        for (int64_t i = 0; i < pixels * 2; i++) there[i] = here[i % pixels * 2 + i / pixels];
        images_there(&m, p, there, want);
        tn_tensor *x = tn_conv2d_forward(m.conv, tn_from(m.s, here, TN_F32, TN_SHAPE(1, m.h, m.w, 2)));
        tn_tensor *y =
            tn_linear_forward(m.to, tn_linear_forward(m.in, tn_norm_forward(m.norm, tn_flatten(x, 1))));
        if (tn_read(tn_reshape(y, TN_SHAPE(m.h, m.w, m.out)), TN_F64, got,
                    (size_t)(pixels * m.out) * sizeof(double)))
            fail_msg("%s", tn_error_text(m.s));
        for (int64_t i = 0; i < pixels * m.out; i++) {
            double w = want[i % m.out * pixels + i / m.out];
            if (!(fabs(got[i] - w) <= 1e-4 * (1 + fabs(w))))
                fail_msg("%lld x %lld x %lld, %lld: %g instead of %g", (long long)m.h, (long long)m.w,
                         (long long)m.c, (long long)i, got[i], w);
        }
        tn_close(m.s);
        /* a layer that was told nothing may stand anywhere */
        open_images(&m, UNTOLD);
        fails_with(m.s, TN_E_ARG, "'in.weight' may stand behind the flatten|.flattened = {h, w, c}",
                   tn_load(m.s, path, .layout = TN_LAYOUT_PYTORCH));
        if (tn_load(m.s, path, .layout = TN_LAYOUT_PYTORCH, .no_flatten = true))
            fail_msg("%s", tn_error_text(m.s));
        float w[16 * 125];
        tn_read(m.in->weight, TN_F32, w, (size_t)tn_numel(m.in->weight) * sizeof(float));
        assert_memory_equal(w, p[6], (size_t)tn_numel(m.in->weight) * sizeof(float));
        tn_close(m.s);
    }
}

/* Where nothing is in another order, nobody is asked; our own files need no mark but their own. */
TEST(layouts)
{
    const char *path = in_base("layouts");
    float w[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, got[12];
    const entry plain[] = {{"fc.weight", "F32", 2, {2, 6}, w, 48}, {"fc.bias", "F32", 1, {2}, w, 8}};
    write_file(path, "", 2, plain, 0);
    tn_session *s = open_place(&PLACES[0], NULL, NULL);
    tn_linear *fc = tn_linear_new(s, "fc", 6, 2);
    if (tn_load(s, path)) fail_msg("%s", tn_error_text(s));
    tn_read(fc->weight, TN_F32, got, sizeof(got));
    assert_memory_equal(w, got, sizeof(w));
    fails_with(s, TN_E_ARG, "layout 7", tn_load(s, path, .layout = (tn_layout)7));
    assert_null(tn_linear_new(s, "bad", 6, 2, .flattened = {2, 2, 2}));
    assert_non_null(strstr(tn_error_text(s), ".flattened of {h, w, c} whose product is 6; it is {2, 2, 2}"));
    tn_clear_error(s);
    assert_null(tn_linear_new(s, "bad", 6, 2, .unflattened = {-1, -2, 1}));
    tn_clear_error(s);
    assert_null(tn_linear_new(s, "bad", 6, 2, .flattened = {INT64_MAX, INT64_MAX, 6}));
    tn_clear_error(s);
    tn_close(s);
    s = open_place(&PLACES[0], NULL, NULL); /* without a convolution, but told */
    fc = tn_linear_new(s, "fc", 6, 2, .flattened = {1, 3, 2});
    fails_with(s, TN_E_ARG, "", tn_load(s, path));
    assert_int_equal(tn_load(s, path, .layout = TN_LAYOUT_TENSOR), TN_OK);
    tn_read(fc->weight, TN_F32, got, sizeof(got));
    assert_memory_equal(w, got, sizeof(w));
    assert_int_equal(tn_load(s, path, .layout = TN_LAYOUT_PYTORCH), TN_OK);
    tn_read(fc->weight, TN_F32, got, sizeof(got));
    const float turned[12] = {1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12};
    assert_memory_equal(turned, got, sizeof(turned));
    assert_int_equal(tn_save(s, path), TN_OK); /* ours, as it is here */
    fails_with(s, TN_E_ARG, "this library has written the file",
               tn_load(s, path, .layout = TN_LAYOUT_PYTORCH));
    assert_int_equal(tn_load(s, path), TN_OK);
    tn_read(fc->weight, TN_F32, got, sizeof(got));
    assert_memory_equal(turned, got, sizeof(turned));
    tn_close(s);
    s = open_place(&PLACES[0], NULL, NULL); /* transformers say themselves that their layers take no images */
    tn_conv2d_new(s, "patch", 3, 8, 4, .stride = 4);
    tn_transformer_block_new(s, "block", 8, 2);
    tn_embedding_new(s, "place", 5, 8);
    nn_turn turn;
    for (int i = 0; i < tn_param_count(s); i++)
        assert_true(tn_nn_turn_of(tn_nn_state(s), tn_param_at(s, i), &turn));
    tn_close(s);
}

RUN_TESTS(make_base, drop_base)
