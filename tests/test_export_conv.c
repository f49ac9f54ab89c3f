/* test_export_conv.c - convolutions and products of exported files, of which there are several forms and
 * blocks, beside the reference device: a step of gradient descent shows their results and both gradients. And
 * what values may be called. */
#include <tensor_nn.h>

#include "tests/export_rig.h"

typedef struct shape {
    int n, h, w, c, oc, kernel, stride, pad, dilation, groups;
    bool tiled; /* by Winograd's algorithm */
    int more;   /* lines of zeros above, and columns of them behind, which the convolution takes over */
} shape;

static const shape shapes[] = {
    {40, 13, 11, 16, 32, 3, 1, 1, 1, 1, true, 0}, {64, 16, 15, 32, 16, 3, 1, 0, 1, 1, true, 0},
    {40, 9, 14, 16, 16, 3, 1, 2, 1, 1, true, 0},  {8, 13, 11, 16, 20, 3, 1, 1, 1, 1, false, 0},
    {3, 9, 7, 5, 21, 3, 2, 1, 1, 1, false, 0},    {2, 6, 7, 48, 3, 3, 1, 1, 1, 1, false, 0}, /* 432 terms */
    {1, 5, 5, 4, 300, 2, 1, 0, 1, 1, false, 0},   {2, 11, 9, 12, 18, 3, 1, 2, 2, 3, false, 0},
    {1, 9, 9, 40, 35, 5, 3, 2, 1, 5, false, 0},   {3, 1, 1, 700, 5, 1, 1, 0, 1, 1, false, 0},
    {40, 13, 11, 16, 32, 3, 1, 0, 1, 1, true, 2}, {40, 9, 14, 16, 16, 3, 1, 1, 1, 1, true, 1},
    {2, 11, 9, 12, 18, 3, 1, 1, 2, 3, false, 2},  {3, 9, 7, 5, 21, 3, 2, 0, 1, 1, false, 1},
};

enum { PARAMS = 3 };
static const char *const names[PARAMS] = {"image", "filter", "bias"};

static tn_tensor *noise(tn_session *s, uint64_t seed, int ndim, const int64_t *shape_of)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape_of[i];
    float *v = malloc((size_t)count * sizeof *v);
    rng r = {seed};
    for (int64_t i = 0; i < count; i++) v[i] = (float)rng_real(&r, -0.5, 0.5);
    tn_tensor *x = tn_from(s, v, TN_F32, ndim, shape_of);
    free(v);
    return x;
}

/* image, filter and bias after `steps` of them; the last one is exported. */
static tn_session *descend(const shape *p, tn_device_kind device, int steps)
{
    tn_session *s = tn_open(.device = device, .seed = 1, .threads = 1, .log = quiet);
    tn_tensor *x = tn_param(s, names[0], noise(s, 1, 4, (int64_t[]){p->n, p->h, p->w, p->c}));
    tn_tensor *w =
        tn_param(s, names[1], noise(s, 2, 4, (int64_t[]){p->oc, p->kernel, p->kernel, p->c / p->groups}));
    tn_tensor *b = tn_param(s, names[2], noise(s, 3, 1, (int64_t[]){p->oc}));
    tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 0.01);
    for (int i = 0; i < steps; i++) {
        if (device == TN_CPU && i == steps - 1) tn_export_begin(s, in_base("model.c"));
        tn_step_begin(s);
        tn_tensor *image = tn_pad(tn_pad(x, 1, p->more, 0, 0), 2, 0, p->more, 0);
        tn_tensor *y = tn_relu(tn_conv2d(image, w, b, .stride = p->stride, .pad = p->pad,
                                         .dilation = p->dilation, .groups = p->groups));
        tn_tensor *loss = tn_sum(tn_mul(y, y), TN_ALL, false);
        tn_export_output(loss, "loss");
        tn_backward(loss);
        tn_optim_step(o);
        tn_step_end(s);
    }
    if (device == TN_CPU) tn_export_end(s);
    if (tn_error(s)) fail_msg("%s", tn_error_text(s));
    return s;
}

static void goes_on(const shape *p)
{
    tn_session *own = descend(p, TN_CPU, 1), *exact = descend(p, TN_REF, 2);
    char line[60];
    snprintf(line, sizeof line, "%sgrep -q 'conv2d_3x3(&call' model.c", p->tiled ? "" : "! ");
    if (run(line)) fail_msg("%d x %d: %s", p->h, p->w, line);
    model m = load(true);
    (void)((float (*)(void *))(void (*)(void))m.step)(m.m);
    for (int i = 0; i < PARAMS; i++) {
        tn_tensor *t = tn_param_at(exact, i);
        const int64_t count = tn_numel(t);
        float *a = malloc((size_t)count * sizeof *a), *b = malloc((size_t)count * sizeof *b);
        assert_int_equal(tn_read(t, TN_F32, a, (size_t)count * sizeof *a), 0);
        assert_int_equal(m.get(m.m, names[i], b, count), count);
        double largest = 0, apart = 0;
        for (int64_t k = 0; k < count; k++) {
            largest = fmax(largest, fabs((double)a[k]));
            if (!(fabs((double)a[k] - (double)b[k]) <= apart)) apart = fabs((double)a[k] - (double)b[k]);
        }
        if (!(apart <= 2e-6 * largest))
            fail_msg("%d x %d, %d channels to %d, kernel %d: %s is off by %g of %g", p->h, p->w, p->c, p->oc,
                     p->kernel, names[i], apart, largest);
        free(a);
        free(b);
    }
    unload(&m);
    if (p->tiled && p->pad == 1) needs_nothing();
    tn_close(own);
    tn_close(exact);
}

TEST(convolutions_of_all_forms_and_their_gradients_are_right)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) goes_on(&shapes[i]);
}

/* A file compiles whatever its values are called, or the name is refused. */
TEST_ON(names_are_c_or_refused, tn_open(.device = TN_CPU, .seed = 1, .log = quiet))
{
    static const char *const words[] = {"int", "if",   "NULL", "size_t", "int32_t", "arena",
                                        "run", "copy", "m",    "model",  "_Bool",   "main",
                                        "asm", "tn_x", "same", "class",  "2x",      "x y"};
    static const char *const free_words[] = {
        "x",   "a",    "i0",    "out",      "in",   "begin", "relu_elements", "exp_elements", "to",
        "row", "data", "_low_", "matmul_3", "item", "Int"};
    const float v[6] = {1, 2, 3, 4, 5, 6};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        char file[40];
        snprintf(file, sizeof file, "%s.c", words[k]);
        if (strcmp(words[k], "model") && tn_export_begin(s, in_base(file)) != TN_E_ARG) fail_msg("%s", file);
        tn_clear_error(s);
        assert_int_equal(tn_export_begin(s, in_base("model.c")), 0);
        tn_step_begin(s);
        if (tn_export_input(tn_from(s, v, TN_F32, TN_SHAPE(2, 3)), words[k]) != TN_E_ARG)
            fail_msg("%s", words[k]);
        tn_clear_error(s);
        tn_step_end(s);
        tn_export_end(s);
        tn_clear_error(s);
    }
    for (size_t k = 0; k < sizeof free_words / sizeof *free_words; k++) {
        const char *other = free_words[(k + 1) % (sizeof free_words / sizeof *free_words)];
        assert_int_equal(tn_export_begin(s, in_base("model.c")), 0);
        tn_step_begin(s);
        tn_tensor *x = tn_from(s, v, TN_F32, TN_SHAPE(2, 3));
        if (tn_export_input(x, free_words[k])) fail_msg("%s", tn_error_text(s));
        tn_tensor *y = tn_matmul(tn_exp(x), tn_relu(tn_transpose(x, 0, 1)));
        if (tn_export_output(y, other)) fail_msg("%s: %s", other, tn_error_text(s));
        tn_step_end(s);
        if (tn_export_end(s)) fail_msg("%s", tn_error_text(s));
        model m = load(false);
        unload(&m);
    }
}

RUN_TESTS(make_base, drop_base)
