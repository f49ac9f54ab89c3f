/* test_nn_checkpoint.c - tn_save and tn_load: what comes back, what is refused, what a broken file does.
 *
 *   resume      a run that is saved, loaded into a new session and goes on has the losses of one that was not
 *   foreign     weights alone, PyTorch's layout, other dtypes, numbers at odd addresses
 *   refused     every mismatch is an error that names the tensor, and changes nothing
 *   broken      truncated and mutated files; a host without memory
 *
 * Read struct run and resume first.
 */
#include "tests/golden.h"

#include <dirent.h>
#include <sys/stat.h>

/* ---- a training run ---- */

enum { ITEMS = 40, SIDE = 6, CLASSES = 3, BATCH = 8 };

typedef enum run_kind { ADAMW, SGD, TWO, ACCUMULATE, RUN_KINDS } run_kind;

typedef struct run {
    tn_session *s;
    tn_conv *conv;
    tn_norm *norm;
    tn_linear *fc;
    tn_tensor *wide; /* an f64 parameter */
    tn_optim *o[2];
    tn_dataset *data;
    tn_loader *loader; /* the pass that is under way */
    run_kind kind;
} run;

static tn_tensor *forward(const run *r, tn_tensor *x)
{
    tn_tensor *h = tn_relu(tn_norm_forward(r->norm, tn_conv2d_forward(r->conv, x)));
    h = tn_dropout(tn_flatten(tn_max_pool2d(h, 2), 1), 0.2);
    return tn_linear_forward(r->fc, h);
}

static void open_run(run *r, const place *at, run_kind kind)
{
    static float x[ITEMS * SIDE * SIDE];
    static int32_t y[ITEMS];
    rng g = {5};
    for (int i = 0; i < ITEMS * SIDE * SIDE; i++) x[i] = (float)rng_real(&g, -1, 1);
    for (int i = 0; i < ITEMS; i++) y[i] = (int32_t)rng_below(&g, CLASSES);
    *r = (run){.kind = kind, .s = open_place(at, NULL, NULL)};
    tn_session *s = r->s;
    r->data = tn_dataset_from(s, x, y, ITEMS, TN_SHAPE(SIDE, SIDE, 1));
    r->conv = tn_conv2d_new(s, "conv", 1, 4, 3, .pad = 1);
    r->norm = tn_batch_norm_new(s, "norm", 4);
    r->fc = tn_linear_new(s, "fc", 3 * 3 * 4, CLASSES);
    r->wide = tn_param(s, "wide", tn_full(s, 1.5, TN_F64, TN_SHAPE(2)));
    if (kind == SGD) {
        r->o[0] = tn_sgd(s, tn_all_params(s), .lr = 0.05, .momentum = 0.9, .dampening = 0.1);
    } else if (kind == TWO) {
        r->o[0] = tn_adamw(s, TN_PARAMS(r->fc->weight, r->fc->bias, r->wide), .lr = 0.01);
        r->o[1] = tn_sgd(s, TN_PARAMS(r->conv->weight, r->conv->bias), .lr = 0.05, .momentum = 0.5);
    } else {
        r->o[0] = tn_adamw(s, tn_all_params(s), .lr = 0.01, .weight_decay = 0.1,
                           .accumulate = kind == ACCUMULATE ? 4 : 1);
        tn_optim_group(r->o[0], "*.bias", .lr_factor = 2);
    }
    expect_fine(s, at->name);
}

static void close_run(run *r)
{
    assert_int_equal(tn_close(r->s), TN_OK);
}

/* n steps of passes over the data, going on within the open one; the loss of each into `loss` (NULL:
 * nowhere). */
static void go_on(run *r, int n, double *loss)
{
    tn_batch b;
    for (int done = 0; done < n;) {
        if (!r->loader) r->loader = tn_loader_open(r->data, .batch = BATCH, .shuffle = true);
        assert_non_null(r->loader);
        if (!tn_next(r->loader, &b)) {
            r->loader = NULL;
            continue;
        }
        tn_step_begin(r->s);
        tn_tensor *e = tn_cross_entropy(forward(r, b.x), b.y);
        if (b.number % 3) e = tn_add(e, tn_cast(tn_sum(tn_square(r->wide), TN_ALL, false), TN_F32));
        tn_backward(e);
        for (int k = 0; k < 2; k++)
            if (r->o[k]) tn_optim_step(r->o[k]);
        if (loss) loss[done] = tn_item(e);
        tn_step_end(r->s);
        expect_fine(r->s, "a step");
        done++;
    }
}

static void path_of(char *out, size_t n, const char *name)
{
    snprintf(out, n, "/tmp/tn_test_checkpoint_%ld_%s", (long)getpid(), name);
}

/* ---- resume ---- */

static void resume_on(const place *at, run_kind kind)
{
    enum { BEFORE = 7, AFTER = 6 }; /* five steps are a pass: both stop within one */
    double want[AFTER], got[AFTER];
    char path[256];
    run a, b;
    path_of(path, sizeof(path), "resume");
    open_run(&a, at, kind);
    go_on(&a, BEFORE, NULL);
    assert_int_equal(tn_save(a.s, path), TN_OK);
    go_on(&a, AFTER, want);
    open_run(&b, at, kind);
    go_on(&b, 2, NULL); /* whatever it has done before is replaced */
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
    unlink(path);
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
    char path[256];
    path_of(path, sizeof(path), "pt");
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
    unlink(path);
}

/* Optimizer state in the file is left out where nobody asks for it. */
TEST(weights_of_a_run)
{
    needs_cjson();
    char path[256];
    path_of(path, sizeof(path), "run");
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
    unlink(path);
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
    char path[256];
    path_of(path, sizeof(path), "images");
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
    unlink(path);
}

/* Where nothing is in another order, nobody is asked; our own files need no mark but their own. */
TEST(layouts)
{
    char path[256];
    path_of(path, sizeof(path), "layouts");
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
    unlink(path);
}

/* ---- refused ---- */

typedef struct snapshot {
    double v[512];
    int n;
    double lr;
    int64_t steps;
    uint64_t draw;
} snapshot;

static void take(const run *r, snapshot *p)
{
    memset(p, 0, sizeof(*p));
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < (kind ? tn_buffer_count(r->s) : tn_param_count(r->s)); i++) {
            tn_tensor *t = kind ? tn_buffer_at(r->s, i) : tn_param_at(r->s, i);
            assert_true(p->n + tn_numel(t) <= 512);
            tn_read(t, TN_F64, p->v + p->n, (size_t)tn_numel(t) * sizeof(double));
            p->n += (int)tn_numel(t);
        }
    double m[256];
    const nn_optim_entry *e = &r->o[0]->entries[0];
    assert_int_equal(tn_read(r->o[0]->rows[0].state[0], TN_F64, m, 0) == 0, 0);
    tn_clear_error(r->s);
    float moment[256];
    assert_int_equal(tn_nn_optim_read(r->o[0], e, 0, moment), TN_OK);
    for (int64_t i = 0; i < e->count; i++) p->v[p->n++] = (double)moment[i];
    p->lr = tn_optim_lr(r->o[0]);
    p->steps = e->steps;
    p->draw = tn_rng_draw(r->s);
}

static void expect_refused(run *r, const char *path, int status, const char *part)
{
    snapshot before, after;
    take(r, &before);
    int got = tn_load(r->s, path);
    if (got != status)
        fail_msg("status %d instead of %d (%s), waiting for '%s'", got, status, tn_error_text(r->s), part);
    if (!strstr(tn_error_text(r->s), part)) fail_msg("'%s' does not say '%s'", tn_error_text(r->s), part);
    tn_clear_error(r->s);
    take(r, &after);
    assert_memory_equal(&before, &after, sizeof(before));
}

/* A copy of the file with every `from` in its header replaced by `to`, of the same length. */
static void edit(const char *from_path, const char *to_path, const char *from, const char *to)
{
    static char text[1 << 20];
    FILE *f = fopen(from_path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof(text), f), k = strlen(from);
    fclose(f);
    assert_int_equal(k, strlen(to));
    int found = 0;
    for (size_t i = 8; i + k <= n; i++)
        if (!memcmp(text + i, from, k)) memcpy(text + i, to, k), found++;
    if (!found) fail_msg("'%s' is not in the file", from);
    f = fopen(to_path, "wb");
    assert_non_null(f);
    fwrite(text, 1, n, f);
    assert_int_equal(fclose(f), 0);
}

TEST(mismatches)
{
    needs_cjson();
    char good[256], bad[256];
    path_of(good, sizeof(good), "good");
    path_of(bad, sizeof(bad), "bad");
    for (int at = 0; at < PLACE_COUNT; at++) {
        run r;
        open_run(&r, &PLACES[at], ADAMW);
        go_on(&r, 4, NULL);
        assert_int_equal(tn_save(r.s, good), TN_OK);
        go_on(&r, 2, NULL);
        expect_refused(&r, "/dev/null/file", TN_E_IO, "/dev/null/file");
        static const struct {
            const char *from, *to;
            int status;
            const char *says;
        } edits[] = {
            {"\"fc.bias\"", "\"fc.bios\"", TN_E_SHAPE, "'fc.bias' is missing"},
            {"\"norm.running_var\"", "\"norm.running_vax\"", TN_E_SHAPE, "'norm.running_var' is missing"},
            {"exp_avg.fc.bias", "exp_avg.fc.bios", TN_E_SHAPE, "'optimizer.0.exp_avg.fc.bias' is missing"},
            {"\"shape\":[4,3,3,1]", "\"shape\":[4,3,1,3]", TN_E_SHAPE, "[4, 3, 1, 3], [4, 3, 3, 1] expected"},
            {"method\":\"adamw\"", "method\":\"adamx\"", TN_E_SHAPE, "'adamx', 'adamw' expected"},
            {"\"optimizer.0.step\":{\"dtype\":\"I64\"", "\"optimizer.0.step\":{\"dtype\":\"F64\"", TN_E_DTYPE,
             "is F64"},
            {"\"shape\":[2]", "\"shape\":[3]", TN_E_FORMAT, "data_offsets"},
            {"\"dtype\":\"F32\"", "\"dtype\":\"F31\"", TN_E_FORMAT, "unknown dtype 'F31'"},
            {"\"data.0.at\":\"32\"", "\"data.0.at\":\"41\"", TN_E_FORMAT, "'data.0.at' is 41, of 40 items"},
            {"\"data.0.epoch\":\"0\"", "\"data.0.epoch\":\"-\"", TN_E_FORMAT, "no count"},
            {"optimizer.0.lr\":\"0", "optimizer.0.lr\":\"-", TN_E_FORMAT, "no rate"},
            {"optimizer.0.gathered\":\"0", "optimizer.0.gathered\":\"x", TN_E_FORMAT, "no count"},
            {"{\"__metadata__\"", "x\"__metadata__\"", TN_E_FORMAT, "not a safetensors file"},
        };
        for (size_t i = 0; i < sizeof(edits) / sizeof(*edits); i++) {
            edit(good, bad, edits[i].from, edits[i].to);
            expect_refused(&r, bad, edits[i].status, edits[i].says);
        }
        FILE *f = fopen(bad, "wb"), *g = fopen(good, "rb"); /* one byte too many */
        assert_true(f && g);
        for (int c; (c = fgetc(g)) != EOF;) fputc(c, f);
        fputc(0, f);
        fclose(f);
        fclose(g);
        expect_refused(&r, bad, TN_E_FORMAT, "bytes of data");
        if (tn_load(r.s, good)) fail_msg("%s", tn_error_text(r.s)); /* and the good one still is */
        close_run(&r);
    }
    unlink(good);
    unlink(bad);
}

/* A file of a model with one more layer. */
TEST(another_model)
{
    needs_cjson();
    char path[256];
    path_of(path, sizeof(path), "other");
    run r, more;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 1, NULL);
    open_run(&more, &PLACES[0], ADAMW);
    tn_linear_new(more.s, "extra", 2, 2);
    assert_int_equal(tn_save(more.s, path), TN_OK);
    expect_refused(&r, path, TN_E_SHAPE, "is in the file only");
    unlink(path);
    close_run(&r);
    close_run(&more);
}

static int files_like(const char *prefix)
{
    DIR *d = opendir("/tmp");
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += !strncmp(e->d_name, prefix, strlen(prefix));
    closedir(d);
    return n;
}

TEST(saving_fails_cleanly)
{
    needs_cjson();
    char path[256], prefix[128];
    path_of(path, sizeof(path), "save");
    run r;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 1, NULL);
    fails_with(r.s, TN_E_IO, "/dev/null/file", tn_save(r.s, "/dev/null/file"));
    fails_with(r.s, TN_E_NULL, "", tn_save(r.s, NULL));
    assert_int_equal(tn_save(NULL, path), TN_E_NULL);
    assert_int_equal(tn_load(NULL, path), TN_E_NULL);
    /* a folder stands where the file should go: the temporary file goes again */
    assert_int_equal(mkdir(path, 0700), 0);
    fails_with(r.s, TN_E_IO, "", tn_save(r.s, path));
    snprintf(prefix, sizeof(prefix), "%s", strrchr(path, '/') + 1);
    assert_int_equal(files_like(prefix), 1);
    assert_int_equal(rmdir(path), 0);
    /* a session with an error saves nothing */
    assert_null(tn_add(r.fc->weight, r.fc->bias));
    assert_int_equal(tn_save(r.s, path), TN_E_SHAPE);
    assert_int_equal(access(path, F_OK), -1);
    tn_clear_error(r.s);
    /* reserved names */
    tn_param(r.s, "optimizer.7", tn_zeros(r.s, TN_F32, TN_SHAPE(1)));
    assert_int_equal(tn_save(r.s, path), TN_E_ARG);
    assert_non_null(strstr(tn_error_text(r.s), "'optimizer.7'"));
    tn_close(r.s);
}

/* ---- broken ---- */

static size_t slurp(const char *path, unsigned char **out)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    *out = malloc((size_t)st.st_size);
    assert_non_null(*out);
    assert_int_equal(fread(*out, 1, (size_t)st.st_size, f), st.st_size);
    fclose(f);
    return (size_t)st.st_size;
}

static void spill(const char *path, const unsigned char *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* How often each parameter was updated decides what else the file must have, and where it goes. */
TEST(update_counts)
{
    needs_cjson();
    static const int64_t count[] = {0, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 53 | 1, 1, INT64_C(1) << 53};
    char path[256];
    path_of(path, sizeof(path), "counts");
    for (int kind = ADAMW; kind <= ACCUMULATE; kind++) {
        if (kind == TWO) continue;
        run r;
        open_run(&r, &PLACES[0], (run_kind)kind);
        go_on(&r, 6, NULL);
        assert_int_equal(tn_save(r.s, path), TN_OK);
        unsigned char *file;
        size_t n = slurp(path, &file);
        nn_safetensors f;
        nn_why why = {0};
        assert_int_equal(tn_nn_safetensors_read(path, &f, &why), TN_OK);
        const nn_saved *steps = tn_nn_safetensors_find(&f, "optimizer.0.step");
        size_t at = (size_t)(steps->data - f.file);
        int params = (int)steps->shape[0];
        tn_nn_safetensors_free(&f);
        for (int k = 0; k < params; k++) {
            unsigned char was[8];
            memcpy(was, file + at + 8 * k, 8);
            for (int c = 0; c < 7; c++) {
                memcpy(file + at + 8 * k, &count[c], 8);
                spill(path, file, n);
                if (c < 5)
                    expect_refused(&r, path, TN_E_FORMAT, "has been updated");
                else if (tn_load(r.s, path))
                    fail_msg("%s", tn_error_text(r.s));
            }
            memcpy(file + at + 8 * k, was, 8);
        }
        free(file);
        unlink(path);
        close_run(&r);
    }
}

/* Mutated files: the reader says what is wrong or delivers tensors inside the file; a session refuses without
 * effect, or takes it. Mutations sit mostly in the header. */
TEST(any_bytes)
{
    needs_cjson();
    enum { PARSED = 4000, LOADED = 400 };
    char path[256];
    path_of(path, sizeof(path), "fuzz");
    run r;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 2, NULL);
    assert_int_equal(tn_save(r.s, path), TN_OK);
    unsigned char *good, *bad;
    size_t n = slurp(path, &good);
    bad = malloc(n);
    assert_non_null(bad);
    rng g = {11};
    int refused = 0, taken = 0;
    for (int i = 0; i < PARSED; i++) {
        memcpy(bad, good, n);
        size_t size = rng_below(&g, 4) ? n : (size_t)rng_below(&g, (int64_t)n);
        int flips = (int)rng_below(&g, 4) + (size == n);
        for (int k = 0; k < flips; k++) {
            size_t at = (size_t)rng_below(&g, rng_below(&g, 8) ? 3000 : (int64_t)n);
            bad[at] = rng_below(&g, 2) ? (unsigned char)rng_below(&g, 256)
                                       : (unsigned char)"0123456789,:[]{}\"-e."[rng_below(&g, 20)];
        }
        spill(path, bad, size);
        nn_safetensors f;
        nn_why why = {0};
        int status = tn_nn_safetensors_read(path, &f, &why);
        assert_true(status == TN_OK || (status == TN_E_FORMAT && *why.text));
        for (int k = 0; !status && k < f.n; k++)
            assert_true(f.saved[k].data + f.saved[k].bytes <= f.file + size);
        refused += status != TN_OK;
        taken += status == TN_OK;
        if (!status) tn_nn_safetensors_free(&f);
        if (i >= LOADED) continue;
        snapshot before, after;
        take(&r, &before);
        if (tn_load(r.s, path)) {
            tn_clear_error(r.s);
            take(&r, &after);
            assert_memory_equal(&before, &after, sizeof(before));
        }
    }
    assert_true(refused > PARSED / 2 && taken > 50);
    free(good);
    free(bad);
    unlink(path);
    close_run(&r);
}

/* A key of the metadata whose name is damaged is missed, and not taken for a file that never had it. */
TEST(damaged_keys)
{
    needs_cjson();
    static const char *const key[] = {"optimizer.0.method", "optimizer.0.lr", "seed", "draw"};
    char path[256], quoted[64];
    path_of(path, sizeof(path), "keys");
    run r;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 2, NULL);
    assert_int_equal(tn_save(r.s, path), TN_OK);
    unsigned char *file;
    const size_t n = slurp(path, &file);
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        snprintf(quoted, sizeof quoted, "\"%s\":", key[i]);
        unsigned char *at = memmem(file, n, quoted, strlen(quoted));
        assert_non_null(at);
        at[strlen(quoted) - 3] ^= 1;
        spill(path, file, n);
        snapshot before, after;
        take(&r, &before);
        if (!tn_load(r.s, path)) fail_msg("loaded without %s", key[i]);
        tn_clear_error(r.s);
        take(&r, &after);
        assert_memory_equal(&before, &after, sizeof(before));
        at[strlen(quoted) - 3] ^= 1;
    }
    free(file);
    unlink(path);
    close_run(&r);
}

/* Allocation k fails, for every k until none does. */
TEST(no_memory)
{
    needs_cjson();
    char path[256], other[256];
    path_of(path, sizeof(path), "memory");
    path_of(other, sizeof(other), "memory2");
    run r;
    open_run(&r, &PLACES[0], ADAMW);
    go_on(&r, 2, NULL);
    assert_int_equal(tn_save(r.s, path), TN_OK);
    for (long k = 0;; k++) {
        snapshot before, after;
        go_on(&r, 1, NULL);
        take(&r, &before);
        tn_alloc_fail_after(k);
        int status = tn_load(r.s, path);
        tn_alloc_fail_after(-1);
        if (!status) break;
        if (status != TN_E_NOMEM) fail_msg("allocation %ld: %d, %s", k, status, tn_error_text(r.s));
        failed(r.s, TN_E_NOMEM, "");
        take(&r, &after);
        assert_true(before.draw == after.draw && before.steps == after.steps && before.lr == after.lr);
        assert_true(k < 100000);
    }
    for (long k = 0;; k++) {
        tn_alloc_fail_after(k);
        int status = tn_save(r.s, other);
        tn_alloc_fail_after(-1);
        if (!status) break;
        if (status != TN_E_NOMEM) fail_msg("allocation %ld: %d, %s", k, status, tn_error_text(r.s));
        assert_int_equal(access(other, F_OK), -1);
        tn_clear_error(r.s);
        assert_true(k < 100000);
    }
    unlink(path);
    unlink(other);
    close_run(&r);
}

RUN_TESTS(NULL, NULL)
