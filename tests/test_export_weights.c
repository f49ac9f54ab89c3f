/* test_export_weights.c - forward passes whose weights are held in fewer bits: the file computes what the
 * session does with the weights rounded, which parameters those are, what cannot be; and a network for the
 * digits that are shipped on a microcontroller: what int8 costs it, and what it takes. */
#include <tensor_nn.h>

#include "tests/export_rig.h"
#include "tests/check.h"

static const char *const type[] = {"float", "uint16_t", "uint16_t", "int8_t"};
static const double least_off[] = {0, 1e-6, 1e-5, 1e-5}, most_off[] = {0, 2e-3, 2e-2, 3e-2};

/* ---- what is rounded, and how ---- */

typedef struct net {
    tn_conv *c1, *c2;
    tn_linear *fc;
    tn_embed *table;
    tn_tensor *both; /* read by a product and by itself */
} net;

/* 4 images of 6 x 6 in 3 channels */
enum { IMAGES = 4, ELEMENTS = IMAGES * 6 * 6 * 3, RESULTS = IMAGES * 5 };

static tn_tensor *forward(const net *n, tn_tensor *x)
{
    tn_tensor *h = tn_relu(tn_conv2d_forward(n->c1, x));
    h = tn_flatten(tn_gelu(tn_conv2d_forward(n->c2, h)), 1);
    h = tn_add(tn_linear_forward(n->fc, h), tn_narrow(n->table->weight, 0, 2, 1));
    return tn_add(tn_matmul(h, n->both), tn_sum(n->both, TN_AXES(0), true));
}

static int export(tn_session *s, const net *n, const float *image, tn_export_weights weights, bool round,
                  float *values)
{
    tn_export_begin(s, in_base("model.c"), .weights = weights, .round = round);
    tn_step_begin(s);
    tn_tensor *x = tn_from(s, image, TN_F32, TN_SHAPE(IMAGES, 6, 6, 3)), *y = forward(n, x),
              *kept = tn_keep(y);
    tn_export_input(x, "image");
    tn_export_output(y, "result");
    tn_step_end(s);
    tn_read(kept, TN_F32, values, RESULTS * sizeof *values);
    tn_free(kept);
    return tn_export_end(s);
}

static double apart(const float *a, const float *b)
{
    double off = 0, all = 0;
    for (int i = 0; i < RESULTS; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)a[i] * (double)a[i];
    }
    return sqrt(off / all);
}

TEST(a_file_computes_what_its_session_does_with_rounded_weights)
{
    float image[ELEMENTS], exact[RESULTS], again[RESULTS], rounded[RESULTS], its[RESULTS];
    char line[300];
    for (int form = TN_EXPORT_F32; form <= TN_EXPORT_INT8; form++) {
        tn_session *s = tn_open(.device = TN_CPU, .seed = 5, .threads = 2, .log = quiet);
        net n = {.c1 = tn_conv2d_new(s, "c1", 3, 20, 3, .stride = 2, .pad = 1),
                 .c2 = tn_conv2d_new(s, "c2", 20, 12, 3, .groups = 4),
                 .fc = tn_linear_new(s, "fc", 12, 7),
                 .table = tn_embedding_new(s, "table", 4, 7),
                 .both = tn_param(s, "both", tn_randn(s, TN_F32, TN_SHAPE(7, 5)))};
        tn_tensor *x = tn_keep(tn_randn(s, TN_F32, TN_SHAPE(ELEMENTS)));
        assert_int_equal(tn_read(x, TN_F32, image, sizeof image), 0);
        assert_int_equal(export(s, &n, image, form, false, exact), 0);
        assert_int_equal(export(s, &n, image, form, true, again), 0); /* the one before changed nothing */
        if (tn_error(s)) fail_msg("%s", tn_error_text(s));
        assert_memory_equal(exact, again, sizeof exact);
        model m = load(false);
        assert_int_equal(m.forward(m.m, image, its), 0);
        /* with one plan more, and of a file whose weights are rounded already */
        assert_int_equal(export(s, &n, image, TN_EXPORT_F32, false, rounded), 0);
        if (!(apart(rounded, its) < 1e-5))
            fail_msg("form %d: file and session are %g apart", form, apart(rounded, its));
        const double off = apart(exact, its);
        if (form && !(off >= least_off[form] && off <= most_off[form]))
            fail_msg("form %d is off by %g", form, off);
        assert_int_equal(m.get(m.m, "c1.weight", NULL, 0), form ? -1 : 20 * 27);
        assert_int_equal(m.get(m.m, "c1.bias", NULL, 0), 20);
        unload(&m);

        assert_int_equal(export(s, &n, image, form, false, its), 0);
        snprintf(line, sizeof line,
                 "for w in 'c1_weight_data.540' 'c2_weight_data.540' 'fc_weight_data.84'; do grep \"^static "
                 "const %s $w\" "
                 "model.c; done && grep '^static const float table_weight_data' model.c && grep '^static "
                 "const float "
                 "both_data' model.c",
                 type[form]);
        assert_int_equal(run(line), 0);
        needs_nothing();
        tn_free(x);
        assert_int_equal(tn_close(s), 0);
    }
}

TEST_ON(weights_that_cannot_be_rounded_are_an_error, tn_open(.device = TN_CPU, .seed = 5, .log = quiet))
{
    float image[8] = {0};
    tn_linear *fc = tn_linear_new(s, "fc", 8, 4);
    tn_optim *o = tn_adamw(s, tn_all_params(s));
    assert_int_equal(tn_export_begin(s, in_base("model.c"), .weights = (tn_export_weights)4), TN_E_ARG);
    assert_non_null(strstr(tn_error_text(s), ".weights is 4"));
    tn_clear_error(s);
    for (int k = 0; k < 3; k++) { /* a training step, a NaN, more than f16 holds */
        float w[32] = {0};
        w[7] = k == 1 ? NAN : 7e4f;
        tn_tensor *v = tn_from(s, w, TN_F32, TN_SHAPE(4, 8));
        if (k) tn_assign(fc->weight, v);
        tn_free(v);
        assert_int_equal(
            tn_export_begin(s, in_base("model.c"), .weights = k == 2 ? TN_EXPORT_F16 : TN_EXPORT_INT8), 0);
        tn_step_begin(s);
        tn_tensor *y = tn_linear_forward(fc, tn_from(s, image, TN_F32, TN_SHAPE(1, 8)));
        tn_export_output(y, "y");
        if (!k) tn_backward(tn_sum(y, TN_ALL, false));
        if (!k) tn_optim_step(o);
        tn_step_end(s);
        assert_int_equal(tn_export_end(s), TN_E_UNSUPPORTED);
        const char *words = k == 0   ? "this step assigns"
                            : k == 1 ? "fc_weight holds nan, which int8 does not"
                                     : "which f16";
        if (!strstr(tn_error_text(s), words)) fail_msg("%s", tn_error_text(s));
        tn_clear_error(s);
    }
}

/* ---- a microcontroller ---- */

typedef struct digits {
    tn_conv *c1, *c2;
    tn_linear *fc;
} digits;

static tn_tensor *digit(const digits *n, tn_tensor *x)
{
    tn_tensor *h = tn_max_pool2d(tn_relu(tn_conv2d_forward(n->c1, x)), 2, .stride = 2);
    h = tn_max_pool2d(tn_relu(tn_conv2d_forward(n->c2, h)), 2, .stride = 2);
    return tn_linear_forward(n->fc, tn_flatten(h, 1));
}

static tn_tensor *classify(tn_session *s, tn_tensor *x, void *user)
{
    (void)s;
    return digit(user, x);
}

/* How many of the test images the file gets right. */
static int right_in_file(tn_dataset *test, const model *m)
{
    float image[28 * 28], logits[10];
    int right = 0;
    tn_batch b;
    for (tn_loader *l = tn_loader_open(test, .batch = 1); tn_next(l, &b);) {
        int best = 0;
        tn_read(b.x, TN_F32, image, sizeof image);
        assert_int_equal(m->forward(m->m, image, logits), 0);
        for (int k = 1; k < 10; k++)
            if (logits[k] > logits[best]) best = k;
        right += best == (int)tn_item(b.y);
    }
    return right;
}

TEST_ON(digits_are_told_by_int8_as_by_f32, tn_open(.device = TN_CPU, .seed = 1, .threads = 2, .log = quiet))
{
    static float blank[28 * 28];
    tn_dataset *train = tn_dataset_idx(s, "data/digits", TN_TRAIN),
               *test = tn_dataset_idx(s, "data/digits", TN_TEST);
    if (!train) skip();
    digits n = {.c1 = tn_conv2d_new(s, "c1", 1, 8, 3, .pad = 1),
                .c2 = tn_conv2d_new(s, "c2", 8, 16, 3, .pad = 1),
                .fc = tn_linear_new(s, "fc", 7 * 7 * 16, 10)};
    tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 4e-3, .weight_decay = 0.01);
    tn_batch b;
    for (tn_loader *l = tn_loader_open(train, .batch = 32, .shuffle = 1); tn_next(l, &b);) {
        tn_step_begin(s);
        tn_backward(tn_cross_entropy(digit(&n, b.x), b.y));
        tn_optim_step(o);
        tn_step_end(s);
    }
    const int64_t count = tn_dataset_count(test);
    const double f32 = tn_evaluate(s, test, classify, &n);
    tn_train(s, false);
    tn_export_begin(s, in_base("model.c"), .weights = TN_EXPORT_INT8, .round = true);
    tn_step_begin(s);
    tn_tensor *x = tn_from(s, blank, TN_F32, TN_SHAPE(1, 28, 28, 1)), *y = digit(&n, x);
    tn_export_input(x, "image");
    tn_export_output(y, "logits");
    tn_step_end(s);
    if (tn_export_end(s)) fail_msg("%s", tn_error_text(s));
    const double int8 = tn_evaluate(s, test, classify, &n);
    model m = load(false);
    const int right = right_in_file(test, &m);
    unload(&m);
    print_message("test accuracy %.2f %% in f32, %.2f %% in int8, %.2f %% in the file\n", 100 * f32,
                  100 * int8, 100.0 * right / (double)count);
    assert_true(f32 > 0.93);
    assert_true(fabs(int8 - f32) <= 0.005 && fabs((double)right / (double)count - f32) <= 0.005);
}

/* model.c of the test before, with memory for all it needs. The stack is at most what all functions take, of
 * which those with large arrays, conv2d and matmul, do not call each other. */
TEST(which_fits_into_a_microcontroller)
{
    static const char *const compilers[] = {"arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfloat-abi=soft",
                                            "arm-linux-gnueabi-gcc -mfloat-abi=soft"};
    int found = 0;
    if (access(in_base("model.c"), F_OK)) skip();
    for (int i = 0; i < 2; i++) {
        char line[1100];
        long text = 0, bss = 0, stack = 0;
        if (!there_is(compilers[i])) continue;
        found++;
        snprintf(
            line, sizeof line,
            "echo '#include \"model.c\"\nstatic model m;\nstatic float image[784], logits[10];\nint "
            "one(void);\nint "
            "one(void)\n{\n    model_init(&m);\n    return model_forward(&m, image, logits);\n}' >one.c "
            "&& %s -std=c99 -O2 "
            "-Wall -Wextra -Wpedantic -Wconversion -Werror -ffreestanding -fstack-usage -c one.c -o "
            "one.o && size one.o | "
            "tail -n 1 && awk -F '\\t' '{ n += $2; large += $2 > 8192; least = $2 > 8192 && ($2 < least "
            "|| !least) ? $2 : least } END { print (large > 1 ? n - least : n) }' one.su && ! nm -u one.o "
            "| grep -v "
            "-w -E 'memcpy|memset|"
            "__aeabi_[a-z0-9]*'",
            compilers[i]);
        assert_int_equal(run(line), 0);
        FILE *f = fopen(in_base("out"), "r");
        assert_non_null(f);
        assert_int_equal(fscanf(f, "%ld %*d %ld %*[^\n] %ld", &text, &bss, &stack), 3);
        fclose(f);
        print_message("%s: %ld bytes of flash, %ld of RAM, %ld of stack\n", compilers[i], text, bss, stack);
        assert_true(text < 256 * 1024 && bss + stack < 64 * 1024);
    }
    if (!found) print_message("no arm-none-eabi-gcc or arm-linux-gnueabi-gcc is here\n");
    if (!found) skip();
}

RUN_TESTS(make_base, drop_base)
