/* half_cases.h - random cases of operators on f16 and bf16: which operators, of what shapes, on what values.
 *
 * Start with draw_case. */
#pragma once

#include "check.h"

enum { MAX_IN = 4 };

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

static tn_tensor *labels(tn_tensor *x, const half_case *c)
{
    return tn_from(tn_session_of(x), c->label, TN_I64, TN_SHAPE(c->rows));
}

/* Of rows of an odd length all but the last column, so that they have halves. */
static tn_tensor *even(tn_tensor *x) { return tn_slice(x, -1, 0, tn_dim(x, -1) / 2 * 2, 1); }

/* name, in words, shape, operands with a gradient, within, expression */
/* clang-format off */
#define HALF_OPS(X) \
    X(layer_norm, "layer_norm", ROWS, 3, 0, tn_layer_norm(x[0], x[1], x[2], .eps = 0)) \
    X(rms_norm, "rms_norm", ROWS, 2, 0, tn_rms_norm(x[0], x[1], .eps = 0)) \
    X(group_norm, "group_norm", ROWS, 3, 0, tn_group_norm(x[0], (int)c->groups, x[1], x[2], .eps = 0)) \
    X(batch_norm, "batch_norm", ROWS, 3, 0, tn_batch_norm(x[0], x[1], x[2], NULL, NULL, .eps = 0)) \
    X(var, "var", ROWS, 1, 0, c->variant & 1 ? tn_var(x[0], TN_AXES(0), false, 1) : tn_var(x[0], TN_AXES(-1), false, 1)) \
    X(sum, "sum", ROWS, 1, 0, c->variant & 1 ? tn_sum(x[0], TN_AXES(0), false) : tn_sum(x[0], TN_AXES(-1), false)) \
    X(mean, "mean", ROWS, 1, 0, c->variant & 1 ? tn_mean(x[0], TN_AXES(0), false) : tn_mean(x[0], TN_ALL, false)) \
    X(logsumexp, "logsumexp", ROWS, 1, 0, tn_logsumexp(x[0], TN_AXES(-1), false)) \
    X(softmax, "softmax", ROWS, 1, 0, tn_softmax(x[0], -1)) \
    X(log_softmax, "log_softmax", ROWS, 1, 0, tn_log_softmax(x[0], -1)) \
    X(cumsum, "cumsum", ROWS, 1, 0, tn_cumsum(x[0], -1)) \
    X(gelu_tanh, "gelu_tanh", ROWS, 1, 0, tn_gelu_tanh(x[0])) \
    X(gelu, "gelu", ROWS, 1, 0, tn_gelu(x[0])) \
    X(silu, "silu", ROWS, 1, 0, tn_silu(x[0])) \
    X(mish, "mish", ROWS, 1, 0, tn_mish(x[0])) \
    X(softplus, "softplus", ROWS, 1, 0, tn_softplus(x[0])) \
    X(cube, "pow_scalar 3", ROWS, 1, 0, tn_pow_scalar(x[0], 3)) \
    X(broadcast, "mul", ROWS, 2, 0, tn_mul(x[0], x[1])) \
    X(avg_pool, "avg_pool2d", IMAGES, 1, 0, tn_avg_pool2d(x[0], 2 + c->variant % 3, .stride = 1 + c->variant % 2)) \
    X(avg_pool_pad, "avg_pool2d padded", IMAGES, 1, 0, tn_avg_pool2d(x[0], 3, .stride = 2, .pad = 1, .ceil_mode = c->variant & 1, .exclude_pad = c->variant & 2)) \
    X(avg_pool_whole, "avg_pool2d of all", IMAGES, 1, 0, tn_avg_pool2d(x[0], (int)c->shape[0][1])) \
    X(global_avg_pool, "global_avg_pool2d", IMAGES, 1, 0, tn_global_avg_pool2d(x[0])) \
    X(mse, "mse_loss", PAIRS, 2, 0, tn_mse_loss(x[0], x[1], .reduction = (tn_reduction)(c->variant % 3))) \
    X(l1, "l1_loss", PAIRS, 2, 0, tn_l1_loss(x[0], x[1], .reduction = (tn_reduction)(c->variant % 3))) \
    X(bce, "bce_with_logits", PAIRS, 2, 0, tn_bce_with_logits(x[0], x[1], .reduction = (tn_reduction)(c->variant % 3))) \
    X(lerp, "lerp", PAIRS, 2, 0, tn_lerp(x[0], x[1], x[0])) \
    X(cross_entropy, "cross_entropy", CLASSES, 1, 0, tn_cross_entropy(x[0], labels(x[0], c), .reduction = (tn_reduction)(c->variant % 3))) \
    X(smoothed, "cross_entropy smoothed", CLASSES, 1, 0, tn_cross_entropy(x[0], labels(x[0], c), .label_smoothing = 0.1)) \
    X(nll, "nll_loss", CLASSES, 1, 0, tn_nll_loss(x[0], labels(x[0], c), .reduction = (tn_reduction)(c->variant % 3))) \
    X(attention, "attention, added mask", HEADS, 4, 8, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3])) \
    X(embedding, "embedding", PLACES, 1, 0, tn_embedding(x[0], tn_from(tn_session_of(x[0]), c->label, TN_I64, TN_SHAPE(c->rows)))) \
    X(atan, "atan", ROWS, 1, 0, tn_atan(x[0])) \
    X(hardswish, "hardswish", ROWS, 1, 0, tn_hardswish(x[0])) \
    X(glu, "glu", ROWS, 1, 0, tn_glu(even(x[0]), -1)) \
    X(swiglu, "swiglu", PAIRS, 2, 0, tn_swiglu(x[0], x[1])) \
    X(tril, "tril", PAIRS, 2, 0, tn_mul(tn_tril(x[0], c->variant - 6), tn_triu(x[1], c->variant - 8))) \
    X(sort, "sort", ROWS, 1, 0, sorted_values(x[0], -1, c->variant & 1)) \
    X(rotary, "rotary", ROWS, 1, 0, tn_rotary(even(x[0]), c->variant * 100, .interleaved = c->variant & 1)) \
    X(concat, "concat", PAIRS, 2, 0, tn_concat(2, (tn_tensor *[]){tn_gelu(x[0]), x[1]}, -1)) \
    X(huber, "huber_loss", PAIRS, 2, 0, tn_huber_loss(x[0], x[1], .delta = 0.5 + c->variant, .reduction = (tn_reduction)(c->variant % 3))) \
    X(smooth_l1, "smooth_l1_loss", PAIRS, 2, 0, tn_smooth_l1_loss(x[0], x[1], .reduction = (tn_reduction)(c->variant % 3))) \
    X(kl_div, "kl_div", PAIRS, 2, 8, tn_kl_div(x[0], x[1], .log_target = true, .reduction = (tn_reduction)(c->variant % 3))) \
    X(cosine, "cosine_similarity", PAIRS, 2, 0, tn_cosine_similarity(x[0], x[1], -1, 0)) \
    X(triplet, "triplet_margin_loss", PAIRS, 3, 0, tn_triplet_margin_loss(x[0], x[1], x[2], .reduction = (tn_reduction)(c->variant % 3))) \
    X(resize_nearest, "resize_nearest", IMAGES, 1, 0, tn_resize_nearest(x[0], 3 + c->variant, 9)) \
    X(resize_bilinear, "resize_bilinear", IMAGES, 1, 0, tn_resize_bilinear(x[0], 3 + c->variant, 9, c->variant & 1))
/* clang-format on */

#define X(id, words, shape, n_in, within, expression)                                                        \
    static tn_tensor *f_##id(tn_tensor **x, const half_case *c)                                              \
    {                                                                                                        \
        (void)c;                                                                                             \
        return expression;                                                                                   \
    }
HALF_OPS(X)
#undef X
#define X(id, words, shape, n_in, within, expression) {words, f_##id, shape, n_in, within},
static const half_op ops[] = {HALF_OPS(X)};
#undef X
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

static double largest(tn_dtype d) { return d == TN_F16 ? 65504 : 3.3895313892515355e38; }

static double normal(rng *r)
{
    return sqrt(-2 * log(rng_real(r, 1e-12, 1))) * cos(6.283185307179586 * rng_real(r, 0, 1));
}

/* Element i of a row whose own mean is m. */
static double draw(rng *r, int kind, tn_dtype d, double m, int64_t i, int64_t out)
{
    const bool f16 = d == TN_F16;
    switch (kind) {
    case 0: return normal(r);
    case 1: return m + normal(r);
    case 2: return m;
    case 3: return m + (i % 2 ? 1 : -1);
    case 4: return normal(r) * (f16 ? 1e-6 : 1e-14);
    case 5: return rng_real(r, -1, 1) * (f16 ? 60000 : 1e12);
    case 6: return i == out ? (f16 ? 3000 : 1e5) : normal(r);
    case 7: return m;
    case 8: return (rng_below(r, 2) ? 1 : -1) * exp(rng_real(r, f16 ? -14 : -25, f16 ? 10 : 25));
    default: return 0;
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

static int64_t pick(rng *r, int n, const int64_t *from) { return from[rng_below(r, n)]; }
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
static void draw_case(half_case *c, uint64_t seed, bool small)
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
        for (int i = 0; i < c->op->n_in; i++) shape_is(c, i, 2, c->rows, c->n, 0, 0);
        break;
    case CLASSES: shape_is(c, 0, 2, c->rows, c->n, 0, 0); break;
    case HEADS:
        c->rows = 1 + rng_below(&r, 8);
        c->n = PICK(5, 53);
        for (int i = 0; i < 3; i++) shape_is(c, i, 3, 2, i ? c->n : c->rows, 16, 0);
        shape_is(c, 3, 2, c->rows, c->n, 0, 0);
        break;
    case PLACES: shape_is(c, 0, 2, 3, 1 + rng_below(&r, 8), 0, 0); break;
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
