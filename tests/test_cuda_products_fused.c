/* test_cuda_products_fused.c - linear layers by our own kernel on the simulated GPU: which products take
 * along what follows them and which stay with the library, what stands in the plan and in the reasons for
 * cuts, and that values are the f64 reference's and gradients the CPU's.
 *
 * Read first: struct layer, then decisions. */
#include "cuda_traced.h"
#include "src/core/alloc.h"

/* A linear layer and what follows it. */
typedef struct layer {
    const char *name;
    tn_tensor *(*after)(tn_tensor *y, tn_tensor *residual);
    int64_t rows, in, out;
    tn_dtype dtype;
    enum {
        AFFINE,
        LEADING,
        PLAIN,
        BATCHED
    } how; /* LEADING: of several axes of rows; PLAIN: B is [in, out] */
    bool fuses;
    const char *has; /* in the fused kernel's text */
    bool saves;      /* backward reads what the product has come to */
} layer;

/* What follows the product y: `r` is a residual of its shape. */
#define AFTER(name, expression)                                                                              \
    static tn_tensor *name(tn_tensor *y, __attribute__((unused)) tn_tensor *r) { return expression; }
AFTER(nothing, y)
AFTER(gelu, tn_gelu(y))
AFTER(relu, tn_relu(y))
AFTER(silu, tn_silu(y))
AFTER(residual_added, tn_add(y, r))
AFTER(dropped, tn_add(tn_dropout(y, 0.25), r))
AFTER(long_epilogue, tn_add(tn_dropout(tn_mul(tn_gelu(y), tn_sigmoid(y)), 0.25), r))
AFTER(softmax, tn_softmax(y, -1))

static const layer Layers[] = {
    {"gelu", gelu, 64, 32, 48, TN_F32, AFFINE, true, "tn_ndtr", true},
    {"silu", silu, 64, 32, 48, TN_F32, AFFINE, true, "tn_exp", true},
    {"residual", residual_added, 64, 32, 48, TN_F32, AFFINE, true, "tn_load", false},
    {"dropout + residual", dropped, 64, 32, 48, TN_F32, AFFINE, true, "tn_random_pack", false},
    {"long", long_epilogue, 40, 24, 20, TN_F32, AFFINE, true, "tn_ndtr", true},
    {"long, bf16", long_epilogue, 64, 32, 48, TN_BF16, AFFINE, true, "tn_ndtr", true},
    {"odd sizes", gelu, 37, 19, 21, TN_F32, AFFINE, true, "tn_ndtr", true},
    {"rows of two axes", gelu, 32, 32, 48, TN_F32, LEADING, true, "tn_ndtr", true},
    {"alone", nothing, 64, 32, 48, TN_F32, AFFINE, false, NULL, false},
    {"large alone", nothing, 512, 512, 512, TN_F32, AFFINE, false, NULL, false},
    {"large, bf16", gelu, 2048, 2048, 2048, TN_BF16, AFFINE, true, "#define WGMMA 1", false},
    {"large and odd, bf16", gelu, 2048, 2046, 2046, TN_BF16, AFFINE, false, NULL, false},
    {"relu is the library's", relu, 64, 32, 48, TN_F32, AFFINE, false, NULL, false},
    {"softmax reduces", softmax, 64, 32, 48, TN_F32, AFFINE, false, NULL, false},
    {"not transposed", gelu, 64, 32, 48, TN_F32, PLAIN, false, NULL, false},
    {"batched", gelu, 64, 32, 48, TN_F32, BATCHED, false, NULL, false},
    {"f64", gelu, 64, 32, 48, TN_F64, AFFINE, false, NULL, false},
};
enum { N_LAYERS = sizeof Layers / sizeof *Layers };

/* ---- plans ---- */

/* `hopper`: for an H100. */
static seen look_at(tn_session *s, bool ending, bool hopper)
{
    const tn_target t = hopper ? like_h100(s) : s->target;
    return look_for(s, ending, &t);
}

static tn_tensor *record(tn_session *s, const layer *l, tn_tensor **product)
{
    const int64_t m = l->rows, k = l->in, n = l->out;
    const bool plain = l->how == PLAIN || l->how == BATCHED;
    const int64_t shape[3] = {2, m, k}, result[3] = {2, m, n};
    const int ndim = l->how == LEADING || l->how == BATCHED ? 3 : 2;
    tn_tensor *x = filled(s, l->dtype, 0, 37, ndim, shape + 3 - ndim),
              *w = filled(s, l->dtype, 0, 43, TN_SHAPE(n, k)), *b = filled(s, l->dtype, 0, 49, TN_SHAPE(n)),
              *r = filled(s, l->dtype, 0, 55, ndim, result + 3 - ndim), *y;
    if (l->how == BATCHED) w = filled(s, l->dtype, 0, 43, TN_SHAPE(2, k, n));
    if (l->how == PLAIN) w = filled(s, l->dtype, 0, 43, TN_SHAPE(k, n));
    if (l->saves) tn_requires_grad(w, true);
    y = *product = plain ? tn_matmul(x, w) : tn_affine(x, w, b);
    tn_tensor *out = l->after(y, r);
    if (!out) fail_msg("%s: %s", l->name, tn_error_text(s));
    return out;
}

/* As on an H100, by the reference profile, which is of one. */
CUDA_TEST(decisions)
{
    TN_EACH(l, Layers, N_LAYERS) {
        tn_session *s = open_on(TN_CUDA);
        tn_step_begin(s);
        tn_tensor *y;
        record(s, l, &y);
        seen v = look_at(s, true, true);
        const tn_step *product = step_named(&v, "matmul");
        if (!product || (product->kind == TN_STEP_KERNEL) != l->fuses)
            fail_msg("%s: %s", l->name, l->fuses ? "the product does not fuse" : "the product fuses");
        if (l->fuses && (v.plan->n_step != 1 || !strstr(product->source.text, l->has)))
            fail_msg("%s: %d kernels; %s in\n%s", l->name, v.plan->n_step, l->has, product->source.text);
        bool said = l->fuses || v.plan->n_step == 1;
        for (int k = 0; k < v.plan->n_cut; k++) said |= v.plan->cut[k].reason == TN_CUT_LIBRARY;
        if (!said) fail_msg("%s: no cut is for the library", l->name);
        forget(&v);
        close_step(s);
    }
}

/* ---- values ---- */

/* The result, and what backward reads besides. */
static int64_t answers_of(const layer *l, tn_device_kind device, double *v)
{
    tn_session *s = open_on(device);
    tn_step_begin(s);
    tn_tensor *all[2], *y;
    all[0] = record(s, l, &y);
    all[1] = y;
    if (device == TN_CUDA) {
        seen plan = look_at(s, false, false);
        const tn_step *product = step_named(&plan, "matmul");
        if (!product || product->kind != TN_STEP_KERNEL || plan.plan->n_step != 1)
            fail_msg("%s: the product does not fuse", l->name);
        if (product->n_out < 1 + l->saves) fail_msg("%s: it keeps nothing for backward", l->name);
        forget(&plan);
    }
    assert_int_equal(tn_flush(s), 0);
    int64_t count = 0;
    for (int i = 0; i < 1 + l->saves; count += tn_numel(all[i++])) read_into(all[i], TN_F64, v + count);
    close_step(s);
    return count;
}

TEST(values_are_the_references)
{
    static double want[2 * 64 * 48], got[2 * 64 * 48];
    rig_open(state);
    TN_EACH(l, Layers, N_LAYERS) {
        if (!l->fuses || l->rows > 512) continue; /* which are long on a simulated GPU */
        answers_of(l, TN_REF, want);
        int64_t n = answers_of(l, TN_CUDA, got);
        const double slack = l->dtype == TN_F32 ? 1e-5 : 3e-2;
        for (int64_t k = 0; k < n; k++)
            if (!(fabs(got[k] - want[k]) < slack * fmax(1, fabs(want[k]))))
                fail_msg("%s: value %lld of %lld is %g, should be %g", l->name, (long long)k, (long long)n,
                         got[k], want[k]);
    }
    assert_int_equal(counters().live, 0);
}

/* ---- gradients ---- */

/* x - linear - gelu - dropout - linear + a part of x, and how far it is from zero. */
static void mlp(traced *t)
{
    enum { BATCH = 24, IN = 16, HIDDEN = 32, OUT = 12 };
    tn_tensor *x = input(t, 2, BATCH / 2, IN);
    tn_tensor *h = tn_dropout(tn_gelu(tn_affine(x, input(t, HIDDEN, IN), input(t, HIDDEN))), 0.25);
    tn_tensor *y = tn_add(tn_affine(h, input(t, OUT, HIDDEN), input(t, OUT)), tn_slice(x, 2, 0, OUT, 1));
    give(t, tn_square(y));
}

TEST(gradients_are_the_cpus)
{
    const tiled c = {.name = "mlp", .record = mlp, .dtype = TN_F32};
    tn_tensor *grad[MOST];
    rig_open(state);
    tn_session *s = open_on(TN_CUDA);
    traced t = begin(s, &c);
    take_gradients(&t, loss_of(&t), grad);
    seen v = look_at(s, true, false);
    const tn_step *first = step_named(&v, "matmul_gelu");
    if (!first) first = step_named(&v, "matmul_dropout");
    if (!first || first->kind != TN_STEP_KERNEL) fail_msg("the first layer does not fuse");
    forget(&v);
    close_step(s);
    compare(&c);
}

RUN_TESTS(NULL, NULL)
