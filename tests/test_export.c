/* test_export.c - an exported file beside the session that wrote it: losses of a hundred steps, outputs,
 * weights; what compilers and the linker say of it; pointers and labels that are wrong; random programs; what
 * cannot be exported. Models of all layers are in test_export_random.c. */
#include <tensor_nn.h>

#include "tests/export_rig.h"
#include "tests/random_graphs.h"

enum { SIDE = 8, BATCH = 8, CLASSES = 4, PIXELS = SIDE * SIDE };

/* ---- a network ---- */

typedef struct net {
    tn_session *s;
    tn_conv *conv;
    tn_norm *norm;
    tn_linear *first, *last;
    tn_optim *optim;
    uint32_t random;
} net;

static net make(void)
{
    net n = {.s = tn_open(.device = TN_CPU, .seed = 7, .threads = 2, .log = quiet), .random = 1};
    n.conv = tn_conv2d_new(n.s, "conv", 1, 5, 3, .pad = 1, .no_bias = true);
    n.norm = tn_batch_norm_new(n.s, "norm", 5);
    n.first = tn_linear_new(n.s, "first", PIXELS / 4 * 5, 19);
    n.last = tn_linear_new(n.s, "last", 19, CLASSES);
    n.optim = tn_adamw(n.s, tn_all_params(n.s), .lr = 1e-2, .weight_decay = 0.1);
    return n;
}

static tn_tensor *forward(const net *n, tn_tensor *x)
{
    tn_tensor *h = tn_relu(tn_norm_forward(n->norm, tn_conv2d_forward(n->conv, x)));
    h = tn_relu(tn_linear_forward(n->first, tn_flatten(tn_max_pool2d(h, 2, .stride = 2), 1)));
    return tn_linear_forward(n->last, tn_dropout(h, 0.25));
}

/* The next batch: a class is a bright quarter of the image. */
static void draw(net *n, float *image, int32_t *label)
{
    for (int b = 0; b < BATCH; b++) {
        label[b] = (int32_t)((n->random = n->random * 1664525u + 1013904223u) >> 30);
        for (int i = 0; i < PIXELS; i++) {
            n->random = n->random * 1664525u + 1013904223u;
            const int quarter = i / SIDE / (SIDE / 2) * 2 + i % SIDE / (SIDE / 2);
            image[b * PIXELS + i] = (float)(n->random >> 8) * 0x1p-24f + (quarter == label[b] ? 0.5f : 0.0f);
        }
    }
}

static double step(net *n, const float *image, const int32_t *label)
{
    tn_step_begin(n->s);
    tn_tensor *x = tn_from(n->s, image, TN_F32, TN_SHAPE(BATCH, SIDE, SIDE, 1));
    tn_tensor *y = tn_from(n->s, label, TN_I32, TN_SHAPE(BATCH));
    tn_export_input(x, "image");
    tn_export_input(y, "label");
    tn_tensor *loss = tn_cross_entropy(forward(n, x), y);
    return learn(loss, n->optim);
}

/* ---- exported ---- */

/* The largest distance of a parameter or buffer from the session's, by all their names. */
static double weights_apart(const net *n, const model *m)
{
    double worst = 0;
    const int params = tn_param_count(n->s);
    for (int i = 0; i < params + tn_buffer_count(n->s); i++) {
        tn_tensor *p = i < params ? tn_param_at(n->s, i) : tn_buffer_at(n->s, i - params);
        const int64_t count = tn_numel(p);
        float *a = malloc((size_t)count * sizeof *a), *b = malloc((size_t)count * sizeof *b);
        assert_int_equal(m->get(m->m, tn_name(p), a, count), count);
        if (tn_read(p, TN_F32, b, (size_t)count * sizeof *b))
            fprintf(stderr, "%s: %s\n", tn_name(p), tn_error_text(n->s));
        for (int64_t k = 0; k < count; k++)
            if (!(fabs((double)a[k] - (double)b[k]) <= worst)) worst = fabs((double)a[k] - (double)b[k]);
        free(a);
        free(b);
    }
    return worst;
}

static void exports_forward(net *n, const float *image, float *logits)
{
    tn_train(n->s, false);
    tn_export_begin(n->s, in_base("model.c"));
    tn_step_begin(n->s);
    tn_tensor *x = tn_from(n->s, image, TN_F32, TN_SHAPE(BATCH, SIDE, SIDE, 1)), *y = forward(n, x);
    tn_export_input(x, "image");
    tn_export_output(y, "logits");
    tn_tensor *kept = tn_keep(y);
    tn_step_end(n->s);
    assert_int_equal(tn_export_end(n->s), 0);
    assert_int_equal(tn_read(kept, TN_F32, logits, BATCH * CLASSES * sizeof *logits), 0);
}

static void infers_alike(net *n)
{
    float image[BATCH * PIXELS], a[BATCH * CLASSES], b[BATCH * CLASSES];
    int32_t label[BATCH];
    draw(n, image, label);
    exports_forward(n, image, a);
    model m = load(false);
    assert_int_equal(m.forward(m.m, image, b), 0);
    for (int i = 0; i < BATCH * CLASSES; i++) assert_true(fabsf(a[i] - b[i]) < 1e-4f);
    assert_int_equal(m.forward(m.m, NULL, b), 1);
    assert_int_equal(m.forward(m.m, image, (float *)(void *)((char *)b + 2)), 1);
    unload(&m);
}

TEST(a_convolutional_network_trains_on_in_its_file)
{
    enum { BEFORE = 5, STEPS = 100 };
    float image[BATCH * PIXELS];
    int32_t label[BATCH];
    net n = make();
    for (int i = 0; i < BEFORE; i++) {
        draw(&n, image, label);
        if (i == BEFORE - 1) assert_int_equal(tn_export_begin(n.s, in_base("model.c")), 0);
        step(&n, image, label);
    }
    if (tn_export_end(n.s)) fprintf(stderr, "%s\n", tn_error_text(n.s));
    assert_int_equal(tn_error(n.s), 0);
    model m = load(true);
    assert_true(weights_apart(&n, &m) == 0);
    double worst = 0, first = 0, last = 0;
    for (int i = 0; i < STEPS; i++) {
        draw(&n, image, label);
        const double own = step(&n, image, label), its = (double)m.step(m.m, image, label);
        if (!(fabs(own - its) <= worst)) worst = fabs(own - its);
        if (i == 0) first = own;
        last = own;
    }
    if (!(worst < 1e-5)) fprintf(stderr, "losses are %g apart\n", worst);
    assert_true(worst < 1e-5);
    assert_true(last < first / 2);
    const double apart = weights_apart(&n, &m);
    if (!(apart < 1e-3)) fprintf(stderr, "weights are %g apart\n", apart);
    assert_true(apart < 1e-3);

    /* a label that is out of range moves nothing, nor do pointers that are none */
    const int32_t right = label[2];
    label[2] = CLASSES;
    assert_true(isnan(m.step(m.m, image, label)));
    label[2] = -1;
    assert_true(isnan(m.step(m.m, image, label)));
    label[2] = right;
    assert_true(isnan(m.step(m.m, NULL, label)) && isnan(m.step(m.m, image, NULL)) &&
                isnan(m.step(NULL, image, label)));
    assert_true(isnan(m.step(m.m, (const float *)(const void *)((const char *)image + 1), label)));
    assert_true(weights_apart(&n, &m) == apart);
    const double own = step(&n, image, label), its = (double)m.step(m.m, image, label);
    assert_true(fabs(own - its) < 1e-5);

    float some[19];
    assert_int_equal(m.get(m.m, "first.bias", NULL, 0), 19);
    assert_int_equal(m.get(m.m, "none", some, 19), -1);
    for (int i = 0; i < 19; i++) some[i] = (float)i;
    assert_int_equal(m.set(m.m, "first.bias", some, 18), 19);
    m.get(m.m, "first.bias", some + 1, 1);
    assert_true(some[1] != 0 || some[0] == 0);
    assert_int_equal(m.set(m.m, "first.bias", some, 19), 19);
    unload(&m);
    needs_nothing();
    assert_int_equal(run("mkdir -p other && mv model.h other/model.h"), 0);
    infers_alike(&n);
    assert_int_equal(run("cp model.c other && ! cc -c other/model.c -o other/model.o 2>said && grep 'of "
                         "another export' said"),
                     0);
    assert_int_equal(tn_close(n.s), 0);
}

/* Two optimizers of one method, of which one began later: their biases are corrected by powers of their own. */
TEST(updates_of_two_ages)
{
    enum { LATER = 3, BEFORE = 5, STEPS = 20 };
    float image[BATCH * PIXELS];
    int32_t label[BATCH];
    net n = {.s = tn_open(.device = TN_CPU, .seed = 7, .threads = 2, .log = quiet), .random = 1};
    n.first = tn_linear_new(n.s, "first", PIXELS, 19);
    tn_optim *old = tn_adamw(n.s, TN_PARAMS(n.first->weight, n.first->bias), .lr = 1e-2);
    n.last = tn_linear_new(n.s, "last", 19, CLASSES);
    n.optim = tn_adamw(n.s, TN_PARAMS(n.last->weight, n.last->bias), .lr = 1e-2);
    model m;
    for (int i = 0; i < BEFORE + STEPS; i++) {
        draw(&n, image, label);
        const double its = i < BEFORE ? 0 : (double)m.step(m.m, image, label);
        if (i == BEFORE - 1) assert_int_equal(tn_export_begin(n.s, in_base("model.c")), 0);
        tn_step_begin(n.s);
        tn_tensor *x = tn_from(n.s, image, TN_F32, TN_SHAPE(BATCH, SIDE, SIDE, 1));
        tn_tensor *y = tn_from(n.s, label, TN_I32, TN_SHAPE(BATCH));
        tn_export_input(x, "image");
        tn_export_input(y, "label");
        tn_tensor *h = tn_relu(tn_linear_forward(n.first, tn_flatten(x, 1)));
        tn_tensor *loss = tn_cross_entropy(tn_linear_forward(n.last, h), y);
        tn_export_output(loss, "loss");
        tn_backward(loss);
        tn_optim_step(old);
        if (i >= LATER) tn_optim_step(n.optim);
        tn_tensor *kept = tn_keep(loss);
        tn_step_end(n.s);
        if (i >= BEFORE) assert_true(fabs(tn_item(kept) - its) < 1e-5);
        tn_free(kept);
        if (i != BEFORE - 1) continue;
        assert_int_equal(tn_export_end(n.s), 0);
        m = load(true);
    }
    assert_true(weights_apart(&n, &m) < 1e-4);
    unload(&m);
    assert_int_equal(tn_close(n.s), 0);
}

/* ---- random programs ---- */

#if defined(TN_ASAN)
static int n_programs = 3;
#else
static int n_programs = 8;
#endif
static uint64_t first_seed = 1;

/* The session's next step beside the file's first, whose random numbers are the same. False: it cannot be
 * exported. */
static bool is_the_same(const program *p, char *why, size_t size)
{
    tn_session *s = tn_open(.device = TN_CPU, .seed = 1, .threads = 2, .log = quiet);
    tn_tensor *kept[MOST_RESULTS];
    assert_int_equal(tn_export_begin(s, in_base("model.c")), 0);
    exported_step(p, s, true, kept);
    const int status = tn_export_end(s);
    if (status) {
        snprintf(why, size, "%s", tn_error_text(s));
        assert_int_equal(status, TN_E_UNSUPPORTED);
        tn_clear_error(s);
        assert_int_equal(tn_close(s), 0);
        return false;
    }
    const int n = exported_step(p, s, false, kept);
    model m = load(false);
    double *its[MOST_RESULTS] = {NULL};
    for (int i = 0; i < n; i++) its[i] = calloc((size_t)tn_numel(kept[i]) + 1, sizeof *its[i]);
    typedef int function(void *, ...);
    assert_int_equal(((function *)(void (*)(void))m.forward)(m.m, its[0], its[1], its[2], its[3], its[4],
                                                             its[5], its[6], its[7], its[8]),
                     0);
    for (int i = 0; i < n; i++) {
        compare_exported(p, i, kept[i], its[i], 2e-4, 1e-2);
        free(its[i]);
    }
    unload(&m);
    assert_int_equal(tn_close(s), 0);
    return true;
}

/* Operators of all kinds and their gradients; what stands in them is part of the file. */
TEST(random_programs_are_the_same_in_their_files)
{
    program p;
    int refused = 0;
    char why[300];
    for (int i = 0; i < n_programs; i++) {
        draw_program(&p, first_seed + (uint64_t)i);
        if (is_the_same(&p, why, sizeof why)) continue;
        refused++;
        if (p.dtype == TN_F32 && !strstr(why, "f64"))
            fail_msg("seed %llu: %s", (unsigned long long)p.seed, why);
    }
    print_message("%d programs, %d of them refused\n", n_programs, refused);
    assert_true(refused * 4 <= n_programs);
}

/* ---- what cannot be exported ---- */

/* Optimizers of which the next step is not this one over again. */
TEST(steps_that_differ_from_each_other_are_refused)
{
    static const char *const words[] = {"sgd: its numbers", "adam: with .accumulate", "adagrad: its numbers",
                                        "adam: its parameters have had different numbers"};
    float image[BATCH * PIXELS];
    int32_t label[BATCH];
    for (int k = 0; k < 4; k++) {
        net n = make();
        tn_params all = tn_all_params(n.s);
        n.optim = k == 0   ? tn_sgd(n.s, all, .lr = 0.1, .momentum = 0.9)
                  : k == 1 ? tn_adam(n.s, all, .accumulate = 2)
                  : k == 2 ? tn_adagrad(n.s, all)
                           : tn_adam(n.s, all);
        assert_int_equal(tn_freeze(n.s, "first.*", k == 3), 2);
        for (int i = 0; i < 3; i++) {
            draw(&n, image, label);
            if (i == 1 && k == 3) tn_freeze(n.s, "first.*", false);
            if (i == 2) assert_int_equal(tn_export_begin(n.s, in_base("model.c")), 0);
            tn_step_begin(n.s);
            tn_tensor *x = tn_from(n.s, image, TN_F32, TN_SHAPE(BATCH, SIDE, SIDE, 1));
            tn_backward(tn_cross_entropy(forward(&n, x), tn_from(n.s, label, TN_I32, TN_SHAPE(BATCH))));
            tn_optim_step(n.optim);
            tn_step_end(n.s);
        }
        assert_int_equal(tn_export_end(n.s), TN_E_UNSUPPORTED);
        if (!strstr(tn_error_text(n.s), words[k])) fail_msg("%d: %s", k, tn_error_text(n.s));
        tn_clear_error(n.s);
        assert_int_equal(tn_close(n.s), 0);
    }
}

static const char *said(tn_session *s)
{
    static char text[512];
    snprintf(text, sizeof text, "%s", tn_error_text(s) ? tn_error_text(s) : "");
    tn_clear_error(s);
    return text;
}

TEST_ON(what_cannot_be_exported_is_an_error_that_says_why, tn_open(.device = TN_CPU, .seed = 1, .log = quiet))
{
    float v[4] = {1, 2, 3, 4};
    assert_int_equal(tn_export_end(s), TN_E_STATE);
    assert_non_null(strstr(said(s), "no export was begun"));
    assert_int_equal(tn_export_begin(s, in_base("no identifier.c")), TN_E_ARG);
    assert_non_null(strstr(said(s), "NAME.c"));
    assert_int_equal(tn_export_begin(s, in_base("model")), TN_E_ARG);
    said(s);

    /* a value that is read in the middle of the step */
    assert_int_equal(tn_export_begin(s, in_base("middle.c")), 0);
    assert_int_equal(tn_export_begin(s, in_base("middle.c")), TN_E_STATE);
    said(s);
    tn_step_begin(s);
    tn_tensor *x = tn_from(s, v, TN_F32, TN_SHAPE(4));
    tn_export_input(x, "x");
    tn_tensor *y = tn_exp(x);
    (void)tn_item(tn_sum(y, TN_ALL, false));
    tn_tensor *z = tn_relu(y);
    tn_export_output(z, "z");
    tn_step_end(s);
    assert_int_not_equal(tn_export_end(s), 0);
    const char *text = said(s);
    if (!strstr(text, "test_export.c")) fprintf(stderr, "%s\n", text);
    assert_non_null(strstr(text, "test_export.c"));
    assert_int_not_equal(access(in_base("middle.c"), F_OK), 0);

    /* two steps, and one that computes nothing */
    assert_int_equal(tn_export_begin(s, in_base("twice.c")), 0);
    for (int k = 0; k < 2; k++) {
        tn_step_begin(s);
        x = tn_from(s, v, TN_F32, TN_SHAPE(4));
        tn_export_input(x, "x");
        tn_export_output(tn_exp(x), "y");
        assert_int_equal(tn_step_end(s), k ? TN_E_STATE : 0);
    }
    assert_non_null(strstr(said(s), "a second step"));
    assert_int_not_equal(tn_export_end(s), 0);
    said(s);
    assert_int_equal(tn_export_begin(s, in_base("nothing.c")), 0);
    tn_step_begin(s);
    tn_step_end(s);
    assert_int_equal(tn_export_end(s), TN_E_STATE);
    assert_non_null(strstr(said(s), "computed"));

    /* names and tensors that do not fit */
    assert_int_equal(tn_export_begin(s, in_base("names.c")), 0);
    tn_step_begin(s);
    x = tn_from(s, v, TN_F32, TN_SHAPE(2, 2));
    assert_int_equal(tn_export_input(x, "2x"), TN_E_ARG);
    said(s);
    tn_step_end(s);
    tn_export_end(s);
    said(s);
    assert_int_equal(tn_export_begin(s, in_base("names.c")), 0);
    tn_step_begin(s);
    x = tn_from(s, v, TN_F32, TN_SHAPE(2, 2));
    y = tn_exp(x);
    assert_int_equal(tn_export_input(y, "y"), TN_E_ARG);
    assert_non_null(strstr(said(s), "exp at test_export.c"));
    tn_step_end(s);
    tn_export_end(s);
    said(s);

    /* elements that have no type in C */
    assert_int_equal(tn_export_begin(s, in_base("half.c")), 0);
    tn_step_begin(s);
    x = tn_from(s, v, TN_F16, TN_SHAPE(4));
    y = tn_exp(x);
    assert_int_equal(tn_export_output(y, "y"), TN_E_UNSUPPORTED);
    said(s);
    tn_step_end(s);
    assert_int_not_equal(tn_export_end(s), 0);
    said(s);

    /* they are named by the program's calls in the middle of a step, too */
    for (int k = 0; k < 2; k++) {
        assert_int_equal(tn_export_begin(s, in_base("half.c")), 0);
        tn_step_begin(s);
        x = tn_cast(tn_from(s, v, TN_F32, TN_SHAPE(2, 2)), k ? TN_F64 : TN_F16);
        tn_export_output(tn_cast(k ? tn_matmul(x, x) : tn_sum(tn_exp(x), TN_AXES(0), true), TN_F32), "y");
        tn_step_end(s);
        assert_int_equal(tn_export_end(s), TN_E_UNSUPPORTED);
        text = said(s);
        if (!strstr(text, "test_export.c:") || !strstr(text, "f32")) fail_msg("%s", text);
    }

    /* outside of an export the calls do nothing; one that is not ended goes with the session */
    tn_step_begin(s);
    x = tn_from(s, v, TN_F32, TN_SHAPE(4));
    assert_int_equal(tn_export_input(x, "x"), 0);
    tn_step_end(s);
    assert_int_equal(tn_export_begin(s, in_base("left.c")), 0);
}

int main(int argc, char **argv)
{
    OPTION(n_programs, "programs");
    OPTION(first_seed, "seed");
    choose_compiler(argc, argv);
    return run_all_tests(make_base, drop_base);
}
