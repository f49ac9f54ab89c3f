/* test_half.c - random cases of f16 and bf16 against the exact answer: no sum, square or statistic is rounded
 * to 16 bits, whichever way a program is run.
 *
 *     test_half [--cases N] [--seed S] [--small] [--one S]
 *
 * A case is an operator that adds something up, with operands of 16 bits of a hard kind: far from zero, all
 * equal, tiny, huge, with an outlier, in rows short and long. The reference computes it in f64 from the same
 * operands, and so it does what each road must come to within two roundings of the type:
 *
 *     |got - want| <= 2 u |want| + a step of the smallest numbers + what rounding in f32 makes of it
 *
 * u is half a unit in the last place of the type. The last summand is found by running the reference with f32
 * operands and noise as large as f32's rounding; it is what a result can lose whose rows cancel. Softmax's
 * gradient is made of its result, which is rounded: its share is two roundings of what is subtracted there.
 *
 * Roads: fused, eager, and eager without a compiler; on the device of TENSOR_DEVICE. `--one` says of one case
 * what it is, `--small` draws sizes for a simulated GPU. Start with check_case.
 */
#include "check.h"

enum { MAX_IN = 4, MAX_RESULT = 8, NOISES = 4 };

static int n_cases = 60;
static uint64_t first_seed = 1, only_seed;
static bool small;

/* ---- operators ---- */

typedef struct half_case half_case;
typedef tn_tensor *op_fn(tn_tensor **x, const half_case *c);

typedef enum shape_of { ROWS, IMAGES, PAIRS, CLASSES, HEADS, PLACES } shape_of;

typedef struct half_op {
    const char *name;
    op_fn *f;
    shape_of shape;
    int n_in;      /* operands with a gradient; ROWS: x, weight, bias */
    double within; /* values are kept below, where the function leaves the type's range; 0: anything */
} half_op;

struct half_case {
    const half_op *op;
    tn_dtype d, weights;
    int64_t rows, n, groups;
    int kind, variant;
    uint64_t seed;
    int64_t numel[MAX_IN + 1];
    int ndim[MAX_IN + 1];
    int64_t shape[MAX_IN + 1][4];
    double *v[MAX_IN + 1]; /* operands, then what the result is weighted with */
    int64_t *label;
};

#define F(id, expression)                                                                                    \
    static tn_tensor *f_##id(tn_tensor **x, const half_case *c)                                              \
    {                                                                                                        \
        (void)c;                                                                                             \
        return expression;                                                                                   \
    }

static tn_tensor *labels(tn_tensor *x, const half_case *c)
{
    return tn_from(tn_session_of(x), c->label, TN_I64, TN_SHAPE(c->rows));
}

F(layer_norm, tn_layer_norm(x[0], x[1], x[2], .eps = 0))
F(rms_norm, tn_rms_norm(x[0], x[1], .eps = 0))
F(group_norm, tn_group_norm(x[0], (int)c->groups, x[1], x[2], .eps = 0))
F(batch_norm, tn_batch_norm(x[0], x[1], x[2], NULL, NULL, .eps = 0))
F(var, c->variant & 1 ? tn_var(x[0], TN_AXES(0), false, 1) : tn_var(x[0], TN_AXES(-1), false, 1))
F(sum, c->variant & 1 ? tn_sum(x[0], TN_AXES(0), false) : tn_sum(x[0], TN_AXES(-1), false))
F(mean, c->variant & 1 ? tn_mean(x[0], TN_AXES(0), false) : tn_mean(x[0], TN_ALL, false))
F(logsumexp, tn_logsumexp(x[0], TN_AXES(-1), false))
F(softmax, tn_softmax(x[0], -1))
F(log_softmax, tn_log_softmax(x[0], -1))
F(cumsum, tn_cumsum(x[0], -1))
F(gelu_tanh, tn_gelu_tanh(x[0]))
F(gelu, tn_gelu(x[0]))
F(silu, tn_silu(x[0]))
F(mish, tn_mish(x[0]))
F(softplus, tn_softplus(x[0]))
F(cube, tn_pow_scalar(x[0], 3))
F(broadcast, tn_mul(x[0], x[1]))
F(avg_pool, tn_avg_pool2d(x[0], 2 + c->variant % 3, .stride = 1 + c->variant % 2))
F(avg_pool_pad,
  tn_avg_pool2d(x[0], 3, .stride = 2, .pad = 1, .ceil_mode = c->variant & 1, .exclude_pad = c->variant & 2))
F(avg_pool_whole, tn_avg_pool2d(x[0], (int)c->shape[0][1]))
F(global_avg_pool, tn_global_avg_pool2d(x[0]))
F(mse, tn_mse_loss(x[0], x[1], .reduction = (tn_reduction)(c->variant % 3)))
F(l1, tn_l1_loss(x[0], x[1], .reduction = (tn_reduction)(c->variant % 3)))
F(bce, tn_bce_with_logits(x[0], x[1], .reduction = (tn_reduction)(c->variant % 3)))
F(lerp, tn_lerp(x[0], x[1], x[0]))
F(cross_entropy, tn_cross_entropy(x[0], labels(x[0], c), .reduction = (tn_reduction)(c->variant % 3)))
F(smoothed, tn_cross_entropy(x[0], labels(x[0], c), .label_smoothing = 0.1))
F(nll, tn_nll_loss(x[0], labels(x[0], c), .reduction = (tn_reduction)(c->variant % 3)))
F(attention, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]))
F(embedding, tn_embedding(x[0], tn_from(tn_session_of(x[0]), c->label, TN_I64, TN_SHAPE(c->rows))))

static const half_op ops[] = {
    {"layer_norm", f_layer_norm, ROWS, 3, 0},
    {"rms_norm", f_rms_norm, ROWS, 2, 0},
    {"group_norm", f_group_norm, ROWS, 3, 0},
    {"batch_norm", f_batch_norm, ROWS, 3, 0},
    {"var", f_var, ROWS, 1, 0},
    {"sum", f_sum, ROWS, 1, 0},
    {"mean", f_mean, ROWS, 1, 0},
    {"logsumexp", f_logsumexp, ROWS, 1, 0},
    {"softmax", f_softmax, ROWS, 1, 0},
    {"log_softmax", f_log_softmax, ROWS, 1, 0},
    {"cumsum", f_cumsum, ROWS, 1, 0},
    {"gelu_tanh", f_gelu_tanh, ROWS, 1, 0},
    {"gelu", f_gelu, ROWS, 1, 0},
    {"silu", f_silu, ROWS, 1, 0},
    {"mish", f_mish, ROWS, 1, 0},
    {"softplus", f_softplus, ROWS, 1, 0},
    {"pow_scalar 3", f_cube, ROWS, 1, 0},
    {"mul", f_broadcast, ROWS, 2, 0},
    {"avg_pool2d", f_avg_pool, IMAGES, 1, 0},
    {"avg_pool2d padded", f_avg_pool_pad, IMAGES, 1, 0},
    {"avg_pool2d of all", f_avg_pool_whole, IMAGES, 1, 0},
    {"global_avg_pool2d", f_global_avg_pool, IMAGES, 1, 0},
    {"mse_loss", f_mse, PAIRS, 2, 0},
    {"l1_loss", f_l1, PAIRS, 2, 0},
    {"bce_with_logits", f_bce, PAIRS, 2, 0},
    {"lerp", f_lerp, PAIRS, 2, 0},
    {"cross_entropy", f_cross_entropy, CLASSES, 1, 0},
    {"cross_entropy smoothed", f_smoothed, CLASSES, 1, 0},
    {"nll_loss", f_nll, CLASSES, 1, 0},
    {"attention, added mask", f_attention, HEADS, 4, 8},
    {"embedding", f_embedding, PLACES, 1, 0},
};
enum { N_OPS = sizeof ops / sizeof *ops };

/* ---- values ---- */

static const char *const kinds[] = {"about 1",    "far from zero", "equal in each row", "+- about a mean",
                                    "tiny",       "huge",          "an outlier",        "all equal",
                                    "everything", "zeros"};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static double as(tn_dtype d, double v)
{
    return d == TN_F16    ? tn_f16_to_f32(tn_f32_to_f16((float)v))
           : d == TN_BF16 ? tn_bf16_to_f32(tn_f32_to_bf16((float)v))
                          : (double)(float)v;
}

static double largest(tn_dtype d)
{
    return d == TN_F16 ? 65504 : 3.3895313892515355e38;
}

static double normal(rng *r)
{
    return sqrt(-2 * log(rng_real(r, 1e-12, 1))) * cos(6.283185307179586 * rng_real(r, 0, 1));
}

/* Element i of a row whose own mean is m. */
static double draw(rng *r, int kind, tn_dtype d, double m, int64_t i, int64_t out)
{
    const bool f16 = d == TN_F16;
    switch (kind) {
    case 0:
        return normal(r);
    case 1:
        return m + normal(r);
    case 2:
        return m;
    case 3:
        return m + (i % 2 ? 1 : -1);
    case 4:
        return normal(r) * (f16 ? 1e-6 : 1e-14);
    case 5:
        return rng_real(r, -1, 1) * (f16 ? 60000 : 1e12);
    case 6:
        return i == out ? (f16 ? 3000 : 1e5) : normal(r);
    case 7:
        return m;
    case 8:
        return (rng_below(r, 2) ? 1 : -1) * exp(rng_real(r, f16 ? -14 : -25, f16 ? 10 : 25));
    default:
        return 0;
    }
}

static void fill(rng *r, const half_case *c, double *v, int64_t n, int64_t width, int kind, tn_dtype d)
{
    const double span = d == TN_F16 ? 200 : 3000;
    double m = rng_real(r, -1, 1) * span;
    int64_t out = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i % width == 0) {
            if (kind != 7) m = rng_below(r, 3) ? rng_real(r, -1, 1) * span : rng_real(r, -1, 1) * 20;
            out = rng_below(r, width);
        }
        v[i] = draw(r, kind, d, m, i, out);
        if (c->op->within) v[i] = fmax(-c->op->within, fmin(c->op->within, v[i]));
        v[i] = as(d, v[i]);
    }
}

/* ---- cases ---- */

static int64_t pick(rng *r, int n, const int64_t *from)
{
    return from[rng_below(r, n)];
}
#define PICK(...)                                                                                            \
    pick(&r, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

static void shape_is(half_case *c, int i, int ndim, int64_t a, int64_t b, int64_t e, int64_t f)
{
    const int64_t s[4] = {a, b, e, f};
    c->ndim[i] = ndim;
    c->numel[i] = 1;
    memcpy(c->shape[i], s, sizeof s);
    for (int k = 0; k < ndim; k++) c->numel[i] *= s[k];
}

/* Widths come from short lists: a width is part of a kernel's text, the number of rows is not. */
static void draw_case(half_case *c, uint64_t seed)
{
    rng r = {seed * 0x9E3779B97F4A7C15u};
    *c = (half_case){.seed = seed, .op = &ops[rng_below(&r, N_OPS)]};
    c->d = rng_below(&r, 2) ? TN_F16 : TN_BF16;
    c->weights = rng_below(&r, 2) ? TN_F32 : c->d;
    c->kind = (int)rng_below(&r, N_KINDS);
    c->variant = (int)rng_below(&r, 12);
    c->n = small ? PICK(5, 53, 96) : PICK(5, 53, 96, 424, 768, 4096);
    c->rows = small ? 1 + rng_below(&r, 6) : c->n < 1000 ? 1 + rng_below(&r, 40) : 1 + rng_below(&r, 6);
    if (!small && rng_below(&r, 40) == 0) c->n = 70000, c->rows = 1 + rng_below(&r, 2);
    if (!small && rng_below(&r, 40) == 0) c->rows = 70000, c->n = 5;
    switch (c->op->shape) {
    case ROWS:
        if (c->op->f == f_group_norm) {
            c->groups = c->n % 4 == 0 ? 4 : 1;
            shape_is(c, 0, 3, 2, c->rows, c->n, 0);
        } else {
            if (c->op->f == f_batch_norm && c->rows < 2) c->rows = 2;
            shape_is(c, 0, 2, c->rows, c->n, 0, 0);
        }
        for (int i = 1; i < c->op->n_in; i++) shape_is(c, i, 1, c->n, 0, 0, 0);
        break;
    case IMAGES: {
        int64_t side = small ? PICK(4, 6) : PICK(4, 6, 12), depth = PICK(1, 3, 16);
        shape_is(c, 0, 4, 1 + rng_below(&r, 3), side, side, depth);
        if (!small && rng_below(&r, 8) == 0) shape_is(c, 0, 4, 1, 64, 64, 2);
        c->n = c->shape[0][2] * c->shape[0][3];
        break;
    }
    case PAIRS:
        shape_is(c, 0, 2, c->rows, c->n, 0, 0);
        shape_is(c, 1, 2, c->rows, c->n, 0, 0);
        break;
    case CLASSES:
        shape_is(c, 0, 2, c->rows, c->n, 0, 0);
        break;
    case HEADS:
        c->rows = 1 + rng_below(&r, 8);
        c->n = PICK(5, 53);
        for (int i = 0; i < 3; i++) shape_is(c, i, 3, 2, i ? c->n : c->rows, 16, 0);
        shape_is(c, 3, 2, c->rows, c->n, 0, 0);
        break;
    case PLACES:
        shape_is(c, 0, 2, 3, 1 + rng_below(&r, 8), 0, 0);
        break;
    }
    for (int i = 0; i < c->op->n_in; i++) {
        c->v[i] = malloc((size_t)c->numel[i] * sizeof **c->v);
        assert_non_null(c->v[i]);
        bool weight = c->op->shape == ROWS && i;
        fill(&r, c, c->v[i], c->numel[i],
             c->op->shape == HEADS ? 16
             : weight              ? c->numel[i]
                                   : c->n,
             weight ? 0 : c->kind, weight ? c->weights : c->d);
    }
    if (c->op->shape == CLASSES || c->op->shape == PLACES) {
        c->label = malloc((size_t)c->rows * sizeof *c->label);
        assert_non_null(c->label);
        for (int64_t i = 0; i < c->rows; i++) c->label[i] = rng_below(&r, c->op->shape == PLACES ? 3 : c->n);
    }
}

static void free_case(half_case *c)
{
    for (int i = 0; i <= MAX_IN; i++) free(c->v[i]);
    free(c->label);
}

/* ---- a case in a session ---- */

typedef struct outcome {
    int n;
    value out[MAX_RESULT]; /* the result, and the gradient of each operand */
    value scale;           /* softmax: what its gradient subtracts */
} outcome;

static void outcome_free(outcome *o)
{
    for (int i = 0; i < o->n; i++) free(o->out[i].v);
    free(o->scale.v);
}

/* What the result is weighted with, so that its gradient is a number of the type. */
static tn_tensor *weights_of(tn_session *s, const half_case *c, tn_tensor *y)
{
    int64_t n = tn_numel(y), shape[TN_MAX_DIMS];
    rng r = {c->seed ^ 0x77};
    double *g = malloc((size_t)n * sizeof *g + 1);
    assert_non_null(g);
    for (int64_t i = 0; i < n; i++) { /* of either type: not below f16's normal numbers */
        double v = as(TN_BF16, rng_below(&r, 8) ? normal(&r) : 1);
        g[i] = fabs(v) < 0x1p-14 ? 0x1p-14 : v;
    }
    if (c->variant >= 8) /* all ones: what a mean over rows sends back */
        for (int64_t i = 0; i < n; i++) g[i] = 1;
    for (int i = 0; i < tn_ndim(y); i++) shape[i] = tn_dim(y, i);
    tn_tensor *t = tensor_of(s, g, TN_F32, tn_ndim(y), shape);
    free(g);
    return t;
}

/* As: the dtype in place of 16 bits, or TN_DTYPE_COUNT. */
static void run_in(tn_session *s, const half_case *c, tn_dtype instead, outcome *o)
{
    tn_tensor *x[MAX_IN + 1] = {NULL};
    *o = (outcome){0};
    tn_step_begin(s);
    for (int i = 0; i < c->op->n_in; i++) {
        tn_dtype d = c->op->shape == ROWS && i ? c->weights : c->d;
        x[i] = tensor_of(s, c->v[i], instead < TN_DTYPE_COUNT ? instead : d, c->ndim[i], c->shape[i]);
        tn_requires_grad(x[i], true);
    }
    tn_tensor *y = c->op->f(x, c);
    if (y && instead == TN_DTYPE_COUNT && c->op->f != f_broadcast && tn_dtype_of(y) != c->d)
        fail_msg("%s of %s is %s", c->op->name, tn_dtype_name(c->d), tn_dtype_name(tn_dtype_of(y)));
    tn_tensor *g = y ? weights_of(s, c, y) : NULL;
    tn_backward(tn_sum(tn_mul(tn_cast(y, TN_F32), g), TN_ALL, false));
    if (y) read_value(y, &o->out[o->n++]);
    for (int i = 0; i < c->op->n_in && !tn_error(s); i++) {
        tn_tensor *dx = tn_gradient(x[i]);
        if (!dx) fail_msg("%s: no gradient of operand %d: %s", c->op->name, i, tn_error_text(s));
        if (tn_dtype_of(dx) != tn_dtype_of(x[i]))
            fail_msg("%s: gradient %d has another dtype", c->op->name, i);
        read_value(dx, &o->out[o->n++]);
    }
    if (c->op->f == f_softmax && instead == TN_F32) {
        tn_tensor *a = tn_abs(g);
        read_value(tn_mul(y, tn_add(a, tn_sum(tn_mul(a, y), TN_AXES(-1), true))), &o->scale);
    }
    tn_step_end(s);
    if (tn_error(s))
        fail_msg("%s, seed %llu: %s", c->op->name, (unsigned long long)c->seed, tn_error_text(s));
}

/* ---- comparison ---- */

typedef struct roads {
    tn_session *ref;
    int n;
    tn_session *s[3];
    const char *name[3];
} roads;

static struct {
    int64_t elements, loose;
    double worst;
    int failed, op[N_OPS], kind[N_KINDS];
} tally;

static double half_ulp(tn_dtype d)
{
    return d == TN_F16 ? 0x1p-11 : d == TN_BF16 ? 0x1p-8 : 0x1p-24;
}

static void describe(const half_case *c, char *out, size_t n)
{
    char shape[64];
    tn_shape_text(shape, sizeof shape, c->ndim[0], c->shape[0]);
    snprintf(out, n, "seed %llu: %s of %s %s (%s), variant %d, weights %s", (unsigned long long)c->seed,
             c->op->name, tn_dtype_name(c->d), shape, kinds[c->kind], c->variant, tn_dtype_name(c->weights));
}

/* The first element that is wrong, or -1. */
static int64_t wrong_element(const half_case *c, const outcome *want, const outcome *noisy, const value *got,
                             int k, double *allowed)
{
    const value *w = &want->out[k];
    const tn_dtype d = got->dtype;
    const double u = half_ulp(d);
    int64_t first = -1;
    if (got->n != w->n) fail_msg("%s: output %d has another shape", c->op->name, k);
    for (int64_t i = 0; i < w->n; i++) {
        double v = w->v[i], spread = 0;
        for (int j = 0; j < NOISES; j++) spread = fmax(spread, fabs(noisy[j].out[k].v[i] - v));
        double bound = 2 * u * fabs(v) + (d == TN_F16 ? 0x1p-24 : 0x1p-132) + 8 * spread;
        if (want->scale.n && k == 1) bound += 2 * u * want->scale.v[i];
        tally.elements++;
        if (!isfinite(v) || !isfinite(spread)) continue; /* not finite in f32, either */
        if (bound > 0.1 * fabs(v) && bound > 100 * u) tally.loose++;
        if (fabs(v) + bound > largest(d) && (isinf(got->v[i]) ? (got->v[i] > 0) == (v > 0) : true) &&
            !isnan(got->v[i]))
            continue;
        double error = fabs(got->v[i] - v);
        if (error <= bound) {
            if (bound > 0) tally.worst = fmax(tally.worst, error / bound);
            continue;
        }
        if (first < 0) {
            first = i;
            *allowed = bound;
        }
    }
    return first;
}

static bool check_case(const roads *r, const half_case *c)
{
    outcome want, noisy[NOISES];
    char text[300];
    bool ok = true;
    tn_ref_set_noise(r->ref->device, 0, 0);
    run_in(r->ref, c, TN_F32, &want);
    for (int j = 0; j < NOISES; j++) {
        tn_ref_set_noise(r->ref->device, 2, noise_seed(j));
        run_in(r->ref, c, TN_F32, &noisy[j]);
    }
    for (int i = 0; i < r->n; i++) {
        outcome got;
        run_in(r->s[i], c, TN_DTYPE_COUNT, &got);
        for (int k = 0; k < want.n && ok; k++) {
            double allowed = 0;
            int64_t at = wrong_element(c, &want, noisy, &got.out[k], k, &allowed);
            if (at < 0) continue;
            ok = false;
            describe(c, text, sizeof text);
            print_error("%s\n    %s, output %d [%lld]: %.9g, expected %.9g, %.3g allowed\n", text, r->name[i],
                        k, (long long)at, got.out[k].v[at], want.out[k].v[at], allowed);
        }
        outcome_free(&got);
    }
    outcome_free(&want);
    for (int j = 0; j < NOISES; j++) outcome_free(&noisy[j]);
    return ok;
}

static tn_session *open_road(tn_device_kind device, tn_mode mode)
{
    tn_session *s = tn_open(.device = device, .mode = mode, .seed = 77, .log = quiet);
    assert_non_null(s);
    return s;
}

static void open_roads(roads *r)
{
    *r =
        (roads){.ref = open_road(TN_REF, TN_EAGER), .n = 2, .name = {"fused", "eager", "without a compiler"}};
    r->s[0] = open_road(subject_device(), TN_FUSED);
    r->s[1] = open_road(subject_device(), TN_EAGER);
    if (subject_device() == TN_CUDA) return;
    char *cc = getenv("TENSOR_CC") ? strdup(getenv("TENSOR_CC")) : NULL;
    setenv("TENSOR_CC", "none", 1);
    r->s[r->n++] = open_road(TN_CPU, TN_EAGER);
    if (cc)
        setenv("TENSOR_CC", cc, 1);
    else
        unsetenv("TENSOR_CC");
    free(cc);
}

static void close_roads(roads *r)
{
    tn_clear_error(r->ref);
    assert_int_equal(tn_close(r->ref), 0);
    for (int i = 0; i < r->n; i++) {
        tn_clear_error(r->s[i]);
        assert_int_equal(tn_close(r->s[i]), 0);
    }
    ahead_close();
}

/* The kernels of many cases are compiled together. */
static void note_kernels_of(const half_case *c)
{
    if (!Ahead.s[0]) ahead_open(subject_device());
    for (int i = 0; i < 2; i++) {
        outcome o;
        run_in(Ahead.s[i], c, TN_DTYPE_COUNT, &o);
        outcome_free(&o);
    }
}

static void sums_and_statistics_are_exact(void **state)
{
    (void)state;
    enum { BATCH = 40 };
    roads r;
    open_roads(&r);
    int failed = 0;
    for (int done = 0; done < n_cases; done += BATCH) {
        half_case c[BATCH];
        int n = n_cases - done < BATCH ? n_cases - done : BATCH;
        for (int k = 0; k < n; k++) {
            draw_case(&c[k], first_seed + (uint64_t)(done + k));
            tally.op[c[k].op - ops]++;
            tally.kind[c[k].kind]++;
            note_kernels_of(&c[k]);
        }
        ahead_compile();
        for (int k = 0; k < n; k++) {
            failed += !check_case(&r, &c[k]);
            free_case(&c[k]);
        }
    }
    close_roads(&r);
    printf("%d cases on %d roads, %d wrong; %lld elements, %.3f %% judged loosely, worst %.2f of what is "
           "allowed\n",
           n_cases, r.n, failed, (long long)tally.elements,
           100.0 * (double)tally.loose / (double)tally.elements, tally.worst);
    for (int i = 0; n_cases >= 50 * N_OPS && i < N_OPS; i++)
        if (tally.op[i] < n_cases / N_OPS / 2) fail_msg("too few cases of %s", ops[i].name);
    assert_int_equal(failed, 0);
}

static void one(void **state)
{
    (void)state;
    roads r;
    half_case c;
    char text[300];
    open_roads(&r);
    draw_case(&c, only_seed);
    describe(&c, text, sizeof text);
    puts(text);
    bool ok = check_case(&r, &c);
    free_case(&c);
    close_roads(&r);
    assert_true(ok);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        unsigned long long v = i + 1 < argc ? strtoull(argv[i + 1], NULL, 10) : 0;
        if (!strcmp(argv[i], "--cases")) n_cases = (int)v;
        if (!strcmp(argv[i], "--seed")) first_seed = v;
        if (!strcmp(argv[i], "--one")) only_seed = v;
        if (!strcmp(argv[i], "--small")) small = true;
    }
    const struct CMUnitTest single[] = {cmocka_unit_test(one)};
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_and_statistics_are_exact)};
    return only_seed ? cmocka_run_group_tests(single, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
