/* op_cases.h - what test_ops.c runs: every operator of <tensor.h>, each with operands that exercise it.
 *
 * A case is a function from operands to a result and a description of the operands: kind, the range their
 * values are drawn from, shape. The elementwise rows are not listed here; test_ops.c takes them from ops.def.
 * Read first: the rows OP(..).
 */
#pragma once

#include "check.h"

typedef enum operand_kind {
    NONE,
    REAL,     /* of the run's dtype, differentiated */
    FIXED,    /* of the run's dtype, not differentiated */
    INDEX,    /* i64, whole numbers in [low, high) */
    INDEX32,  /* i32 likewise */
    TRUTH,    /* bool */
    SPECIAL,  /* infinities, NaN, zeros, very large and very small numbers */
    DISTINCT, /* as REAL, values further apart than the differences of the gradient check reach */
} operand_kind;

enum { MAX_OPERANDS = 5 };

typedef struct operand {
    operand_kind kind;
    double low, high;
    int ndim;
    int64_t shape[6];
} operand;

typedef tn_tensor *case_fn(tn_session *s, tn_tensor **x);

enum {
    NO_GRADIENT = 1, /* integer or bool result, or one without a gradient by definition */
    NO_STRIDES = 2,  /* takes no operands worth striding */
    ONCE = 4,        /* the gradient itself has none */
    WHOLE = 8        /* no two elements may be equal: operands are never expanded */
};

typedef struct op_case {
    const char *name; /* "softmax", or "softmax/axis0": the operator's name up to the slash */
    case_fn *f;
    operand in[MAX_OPERANDS];
    unsigned flags;
} op_case;

#define R(...)                                                                                               \
    {                                                                                                        \
        REAL, -3, 3, DIMS(__VA_ARGS__)                                                                       \
    }
#define RR(l, h, ...)                                                                                        \
    {                                                                                                        \
        REAL, l, h, DIMS(__VA_ARGS__)                                                                        \
    }
#define D(...)                                                                                               \
    {                                                                                                        \
        DISTINCT, -3, 3, DIMS(__VA_ARGS__)                                                                   \
    }
#define C(...)                                                                                               \
    {                                                                                                        \
        FIXED, -3, 3, DIMS(__VA_ARGS__)                                                                      \
    }
#define I(l, h, ...)                                                                                         \
    {                                                                                                        \
        INDEX, l, h, DIMS(__VA_ARGS__)                                                                       \
    }
#define I4(l, h, ...)                                                                                        \
    {                                                                                                        \
        INDEX32, l, h, DIMS(__VA_ARGS__)                                                                     \
    }
#define T(...)                                                                                               \
    {                                                                                                        \
        TRUTH, 0, 1, DIMS(__VA_ARGS__)                                                                       \
    }
/* The first of each row is true. */
#define T1(...)                                                                                              \
    {                                                                                                        \
        TRUTH, 1, 1, DIMS(__VA_ARGS__)                                                                       \
    }
#define N                                                                                                    \
    {                                                                                                        \
        NONE, 0, 0, 0, { 0 }                                                                                 \
    }
#define DIMS(...)                                                                                            \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), { __VA_ARGS__ }

/* The operand list follows the expression, in which `x` are the operands and `s` the session. */
#define OP(...)    OP_AT(__COUNTER__, __VA_ARGS__)
#define OP_AT(...) OP_ADD(__VA_ARGS__)
#define OP_ADD(id, name, flags, expression, ...)                                                             \
    static tn_tensor *case_##id(tn_session *s, tn_tensor **x)                                                \
    {                                                                                                        \
        (void)s, (void)x;                                                                                    \
        return expression;                                                                                   \
    }                                                                                                        \
    __attribute__((constructor)) static void add_case_##id(void)                                             \
    {                                                                                                        \
        cases[n_cases++] = (op_case){name, case_##id, {__VA_ARGS__}, flags};                                 \
    }

enum { MOST_CASES = 256 };
static op_case cases[MOST_CASES];
static int n_cases;

static tn_tensor *sorted(tn_tensor *x, int axis)
{
    tn_tensor *values = NULL;
    return tn_sort(x, axis, true, &values, NULL) ? NULL : values;
}

/* The values of the largest, or the places of the smallest. */
static tn_tensor *top(tn_tensor *x, int64_t k, int axis, bool smallest)
{
    tn_tensor *values = NULL, *places = NULL;
    if (tn_topk(x, k, axis, smallest, &values, &places)) return NULL;
    return smallest ? places : values;
}

static tn_tensor *split_parts(tn_tensor **x)
{
    tn_tensor *part[2];
    if (tn_split(x[0], 2, 2, part)) return NULL;
    return tn_mul(part[0], tn_exp(part[1]));
}

/* ---- elementwise beyond the rows ---- */
OP("leaky_relu", 0, tn_leaky_relu(x[0], 0.1), R(2, 3, 4))
OP("elu", 0, tn_elu(x[0], 0.7), R(2, 3, 4))
OP("silu", 0, tn_silu(x[0]), R(2, 3, 4))
OP("gelu", 0, tn_gelu(x[0]), R(2, 3, 4))
OP("gelu_tanh", 0, tn_gelu_tanh(x[0]), R(2, 3, 4))
OP("softplus", 0, tn_softplus(x[0]), R(2, 3, 4))
OP("softplus/far", 0, tn_softplus(x[0]), RR(-90, 90, 2, 3, 4))
OP("mish", 0, tn_mish(x[0]), R(2, 3, 4))
OP("hardswish", 0, tn_hardswish(x[0]), RR(-5, 5, 2, 3, 4))
OP("prelu", 0, tn_prelu(x[0], x[1]), R(2, 3, 4), R(4))
OP("prelu/one", 0, tn_prelu(x[0], x[1]), R(2, 3, 4), R(1))
OP("glu", 0, tn_glu(x[0], 1), R(2, 4, 3))
OP("swiglu", 0, tn_swiglu(x[0], x[1]), R(2, 3, 4), R(2, 3, 4))
OP("tril", 0, tn_tril(x[0], 0), R(2, 3, 4))
OP("triu", 0, tn_triu(x[0], -1), R(4, 3))
OP("tril/int", NO_GRADIENT, tn_tril(x[0], 0), I4(-9, 9, 3, 4))
OP("tril/bool", NO_GRADIENT, tn_tril(x[0], 0), T(3, 3))
OP("clamp", 0, tn_clamp(x[0], -1.2, 0.9), R(2, 3, 4))
OP("lerp", 0, tn_lerp(x[0], x[1], x[2]), R(2, 3, 4), R(3, 1), RR(0, 1, 2, 1, 4))
OP("cast/i32", NO_GRADIENT, tn_cast(x[0], TN_I32), RR(-90, 90, 2, 3, 4))
OP("cast/u8", NO_GRADIENT, tn_cast(x[0], TN_U8), RR(0, 255, 2, 3, 4))
OP("cast/bool", NO_GRADIENT, tn_cast(x[0], TN_BOOL), R(2, 3, 4))
OP("cast/f64", 0, tn_cast(x[0], TN_F64), R(2, 3, 4))
OP("cast/f16", NO_GRADIENT, tn_cast(x[0], TN_F16), R(2, 3, 4))
OP("cast/bf16", NO_GRADIENT, tn_cast(x[0], TN_BF16), R(2, 3, 4))
OP("cast/index", NO_GRADIENT, tn_cast(x[0], TN_F32), I(-100, 100, 2, 5))
OP("add_scalar", 0, tn_add_scalar(x[0], 0.3), R(2, 3, 4))
OP("sub_scalar", 0, tn_sub_scalar(x[0], 2), R(2, 3, 4))
OP("rsub_scalar", 0, tn_rsub_scalar(x[0], 0.7), R(2, 3, 4))
OP("mul_scalar", 0, tn_mul_scalar(x[0], -1.7), R(2, 3, 4))
OP("div_scalar", 0, tn_div_scalar(x[0], 1.3), R(2, 3, 4))
OP("rdiv_scalar", 0, tn_rdiv_scalar(x[0], 1.3), RR(0.3, 3, 2, 3, 4))
OP("pow_scalar/2", 0, tn_pow_scalar(x[0], 2), R(2, 3, 4))
OP("pow_scalar/3", 0, tn_pow_scalar(x[0], 3), R(2, 3, 4))
OP("pow_scalar/half", 0, tn_pow_scalar(x[0], 0.5), RR(0.1, 4, 2, 3, 4))
OP("pow_scalar/minus_half", 0, tn_pow_scalar(x[0], -0.5), RR(0.1, 4, 2, 3, 4))
OP("pow_scalar/minus_1", 0, tn_pow_scalar(x[0], -1), RR(0.3, 3, 2, 3, 4))
OP("pow_scalar/any", 0, tn_pow_scalar(x[0], 1.7), RR(0.3, 3, 2, 3, 4))
OP("maximum_scalar", 0, tn_maximum_scalar(x[0], 0.4), R(2, 3, 4))
OP("minimum_scalar", 0, tn_minimum_scalar(x[0], 0.4), R(2, 3, 4))
OP("eq_scalar", NO_GRADIENT, tn_eq_scalar(x[0], 1), I(0, 3, 2, 3))
OP("lt_scalar", NO_GRADIENT, tn_lt_scalar(x[0], 0.4), R(2, 3, 4))
OP("gt_scalar", NO_GRADIENT, tn_gt_scalar(x[0], 0.4), R(2, 3, 4))
OP("add_scalar/int", NO_GRADIENT, tn_add_scalar(x[0], 3), I4(-9, 9, 2, 3))
OP("mul_scalar/float", NO_GRADIENT, tn_mul_scalar(x[0], 0.5), I4(-9, 9, 2, 3))

/* ---- reductions ---- */
OP("sum/all", 0, tn_sum(x[0], TN_ALL, false), R(2, 3, 4))
OP("sum/last", 0, tn_sum(x[0], TN_AXES(-1), true), R(2, 3, 5))
OP("sum/first", 0, tn_sum(x[0], TN_AXES(0), false), R(3, 2, 4))
OP("sum/ends", 0, tn_sum(x[0], TN_AXES(0, 2), false), R(3, 2, 4))
OP("sum/long", NO_GRADIENT, tn_sum(x[0], TN_AXES(-1), true), RR(-1, 1, 2, 1000))
OP("sum/int", NO_GRADIENT, tn_sum(x[0], TN_AXES(-1), true), I4(-100, 100, 3, 50))
OP("sum/bool", NO_GRADIENT, tn_sum(x[0], TN_ALL, false), T(7, 9))
OP("mean/all", 0, tn_mean(x[0], TN_ALL, false), R(2, 3, 4))
OP("mean/middle", 0, tn_mean(x[0], TN_AXES(1), true), R(2, 3, 4))
OP("prod", 0, tn_prod(x[0], TN_AXES(1), false), RR(0.4, 2, 2, 3, 4))
OP("max/all", 0, tn_max(x[0], TN_ALL, false), D(2, 3, 4))
OP("max/last", 0, tn_max(x[0], TN_AXES(-1), false), D(2, 3, 4))
OP("min/first", 0, tn_min(x[0], TN_AXES(0), true), D(2, 3, 4))
OP("var/1", 0, tn_var(x[0], TN_AXES(-1), false, 1), R(2, 3, 4))
OP("var/0", 0, tn_var(x[0], TN_AXES(0, 1), true, 0), R(2, 3, 4))
OP("std", 0, tn_std(x[0], TN_AXES(1), false, 1), R(2, 3, 4))
OP("logsumexp", 0, tn_logsumexp(x[0], TN_AXES(-1), false), R(2, 3, 4))
OP("logsumexp/all", 0, tn_logsumexp(x[0], TN_ALL, true), RR(-90, 90, 2, 3))
OP("any", NO_GRADIENT, tn_any(x[0], TN_AXES(0), false), T(3, 4))
OP("all", NO_GRADIENT, tn_all(x[0], TN_AXES(-1), true), T(3, 2))
OP("argmax", NO_GRADIENT, tn_argmax(x[0], 1, false), D(2, 5, 3))
OP("argmin", NO_GRADIENT, tn_argmin(x[0], -1, true), D(2, 5, 3))
OP("cumsum/first", 0, tn_cumsum(x[0], 0), R(4, 3))
OP("cumsum/last", 0, tn_cumsum(x[0], -1), R(2, 3, 5))
OP("cumsum/int", NO_GRADIENT, tn_cumsum(x[0], -1), I4(-9, 9, 3, 4))

/* ---- views ---- */
OP("reshape", 0, tn_reshape(x[0], TN_SHAPE(4, -1)), R(2, 3, 4))
OP("flatten", 0, tn_flatten(x[0], 1), R(2, 3, 4))
OP("squeeze", 0, tn_squeeze(x[0], 1), R(2, 1, 4))
OP("unsqueeze", 0, tn_unsqueeze(x[0], -1), R(2, 3))
OP("permute", 0, tn_permute(x[0], TN_AXES(2, 0, 1)), R(2, 3, 4))
OP("transpose", 0, tn_transpose(x[0], 0, -1), R(2, 3, 4))
OP("reshape/transposed", 0, tn_reshape(tn_transpose(x[0], 0, 2), TN_SHAPE(6, -1)), R(2, 3, 4))
OP("expand", 0, tn_expand(x[0], TN_SHAPE(2, 3, 4)), R(3, 1))
OP("slice", 0, tn_slice(x[0], 1, 1, TN_END, 2), R(2, 5, 2))
OP("slice/back", 0, tn_slice(x[0], 2, -1, 0, -2), R(2, 2, 5))
OP("narrow", 0, tn_narrow(x[0], 1, 1, 2), R(2, 4, 3))
OP("narrow/last", 0, tn_narrow(x[0], -1, 2, 2), R(2, 3, 4))
OP("select", 0, tn_select(x[0], 1, -1), R(2, 3, 4))
OP("flip", 0, tn_flip(x[0], TN_AXES(0, 2)), R(2, 3, 4))
OP("pad", 0, tn_pad(x[0], 1, 2, 1, 0.5), R(2, 3, 2))
OP("concat", 0, tn_concat(3, (tn_tensor *[]){x[0], x[1], x[0]}, 1), R(2, 3, 2), R(2, 1, 2))
OP("stack", 0, tn_stack(2, (tn_tensor *[]){x[0], x[1]}, 1), R(2, 3), R(2, 3))
OP("split", 0, split_parts(x), R(2, 3, 4))
OP("contiguous", 0, tn_contiguous(x[0]), R(2, 3, 4))

/* ---- products ---- */
OP("matmul", 0, tn_matmul(x[0], x[1]), R(3, 4), R(4, 5))
OP("matmul/batch", 0, tn_matmul(x[0], x[1]), R(2, 3, 4), R(2, 4, 2))
OP("matmul/broadcast", 0, tn_matmul(x[0], x[1]), R(2, 1, 2, 3), R(3, 3, 2))
OP("matmul/dot", 0, tn_matmul(x[0], x[1]), R(5), R(5))
OP("matmul/vector_left", 0, tn_matmul(x[0], x[1]), R(4), R(4, 3))
OP("matmul/vector_right", 0, tn_matmul(x[0], x[1]), R(2, 3, 4), R(4))
OP("matmul/left_t", 0, tn_matmul(tn_transpose(x[0], 0, 1), x[1]), R(4, 3), R(4, 5))
OP("matmul/right_t", 0, tn_matmul(x[0], tn_transpose(x[1], -1, -2)), R(2, 3, 4), R(2, 5, 4))
OP("matmul/large", NO_GRADIENT, tn_matmul(x[0], x[1]), R(70, 130), R(130, 33))
OP("affine", 0, tn_affine(x[0], x[1], x[2]), R(2, 3, 4), R(5, 4), R(5))
OP("affine/plain", 0, tn_affine(x[0], x[1], NULL), R(3, 4), R(2, 4))
OP("conv2d", 0, tn_conv2d(x[0], x[1], x[2], .pad = 1), R(2, 3, 4, 2), R(3, 3, 3, 2), R(3))
OP("conv2d/stride", 0, tn_conv2d(x[0], x[1], NULL, .stride = 2, .pad = 1), R(1, 5, 4, 2), R(2, 3, 3, 2))
OP("conv2d/dilation", 0, tn_conv2d(x[0], x[1], NULL, .dilation = 2, .pad = 2), R(1, 5, 5, 1), R(2, 3, 2, 1))
OP("conv2d/groups", 0, tn_conv2d(x[0], x[1], x[2], .groups = 2), R(1, 3, 3, 4), R(4, 2, 2, 2), R(4))
OP("conv2d/depthwise", 0, tn_conv2d(x[0], x[1], NULL, .groups = 3, .pad = 1), R(1, 3, 4, 3), R(3, 3, 3, 1))
OP("conv2d/uneven", 0, tn_conv2d(x[0], x[1], NULL, .stride_hw = {2, 1}, .pad_hw = {1, 2}), R(1, 5, 4, 2),
   R(2, 3, 2, 2))
OP("conv2d/point", 0, tn_conv2d(x[0], x[1], NULL, .stride = 1), R(2, 3, 3, 3), R(4, 1, 1, 3))
OP("conv2d/large", NO_GRADIENT, tn_conv2d(x[0], x[1], x[2], .pad = 1), R(2, 9, 11, 16), R(24, 3, 3, 16),
   R(24))
OP("conv1d", 0, tn_conv1d(x[0], x[1], x[2], .pad = 1, .stride = 2), R(2, 7, 3), R(4, 3, 3), R(4))
OP("conv1d/groups", 0, tn_conv1d(x[0], x[1], NULL, .dilation = 2, .groups = 2), R(1, 6, 4), R(2, 2, 2))
OP("conv_transpose2d", 0, tn_conv_transpose2d(x[0], x[1], x[2], .stride = 2, .pad = 1, .output_pad = 1),
   R(1, 3, 2, 2), R(2, 3, 3, 3), R(3))
OP("conv_transpose2d/groups", 0, tn_conv_transpose2d(x[0], x[1], NULL, .dilation = 2, .groups = 2),
   R(1, 2, 3, 4), R(4, 2, 2, 1))
OP("conv_transpose1d", 0, tn_conv_transpose1d(x[0], x[1], x[2], .stride = 3), R(2, 3, 2), R(2, 2, 3), R(3))
OP("resize_nearest", 0, tn_resize_nearest(x[0], 7, 2), R(1, 5, 4, 2))
OP("resize_nearest/twice", 0, tn_resize_nearest(x[0], 6, 4), R(2, 3, 2, 2))
OP("resize_nearest/half", 0, tn_resize_nearest(x[0], 2, 7), R(1, 4, 5, 1))
OP("resize_nearest/int", NO_GRADIENT, tn_resize_nearest(x[0], 7, 2), I4(-9, 9, 1, 5, 4, 2))
OP("resize_bilinear", 0, tn_resize_bilinear(x[0], 7, 3, false), R(1, 4, 5, 2))
OP("resize_bilinear/corners", 0, tn_resize_bilinear(x[0], 1, 5, true), R(2, 3, 4, 2))
OP("max_pool2d", 0, tn_max_pool2d(x[0], 2, .stride = 2), D(1, 4, 4, 2))
OP("max_pool2d/overlap", 0, tn_max_pool2d(x[0], 3, .stride = 2, .pad = 1), D(1, 5, 4, 2))
OP("max_pool2d/ceil", 0, tn_max_pool2d(x[0], 2, .stride = 2, .ceil_mode = true), D(1, 5, 3, 2))
OP("max_pool2d/third", 0, tn_max_pool2d(x[0], 3, .stride = 3, .pad = 1), D(1, 7, 5, 2))
OP("max_pool2d/wide", 0, tn_max_pool2d(x[0], 4, .stride = 3, .ceil_mode = true), D(2, 3, 2, 2))
OP("avg_pool2d", 0, tn_avg_pool2d(x[0], 2, .stride = 2), R(1, 4, 5, 2))
OP("avg_pool2d/wide", 0, tn_avg_pool2d(x[0], 4, .stride = 3, .ceil_mode = true), R(2, 3, 2, 2))
OP("avg_pool2d/pad", 0, tn_avg_pool2d(x[0], 3, .stride = 1, .pad = 1), R(1, 3, 4, 2))
OP("avg_pool2d/exclude", 0, tn_avg_pool2d(x[0], 3, .stride = 2, .pad = 1, .exclude_pad = true), R(1, 4, 5, 2))
OP("global_avg_pool2d", 0, tn_global_avg_pool2d(x[0]), R(2, 3, 2, 4))

/* ---- indexing ---- */
OP("gather", 0, tn_gather(x[0], 1, x[1]), R(3, 4), I(0, 4, 2, 5))
OP("gather/first", 0, tn_gather(x[0], 0, x[1]), R(4, 3, 2), I4(0, 4, 3, 2, 2))
OP("scatter_add", 0, tn_scatter_add(x[0], 1, x[1], x[2]), R(3, 4), I(0, 4, 2, 5), R(2, 5))
OP("index_select", 0, tn_index_select(x[0], 1, x[1]), R(2, 4, 3), I(0, 4, 6))
OP("index_select/first", 0, tn_index_select(x[0], 0, x[1]), R(4, 3), I4(0, 4, 2))
OP("embedding", 0, tn_embedding(x[0], x[1]), R(5, 3), I(0, 5, 2, 4))
OP("one_hot", NO_GRADIENT, tn_one_hot(x[0], 5), I(0, 5, 3, 2))

/* ---- norms, softmax, losses, attention ---- */
OP("softmax", 0, tn_softmax(x[0], -1), R(2, 3, 5))
OP("softmax/first", 0, tn_softmax(x[0], 0), R(3, 4))
OP("softmax/far", NO_GRADIENT, tn_softmax(x[0], -1), RR(-200, 200, 3, 9))
OP("log_softmax", 0, tn_log_softmax(x[0], -1), R(2, 3, 5))
OP("log_softmax/middle", 0, tn_log_softmax(x[0], 1), R(2, 4, 2))
OP("layer_norm", 0, tn_layer_norm(x[0], x[1], x[2], .eps = 0), R(2, 3, 5), R(5), R(5))
OP("layer_norm/plain", 0, tn_layer_norm(x[0], NULL, NULL, .ndim = 2), R(3, 2, 4))
OP("rms_norm", 0, tn_rms_norm(x[0], x[1], .eps = 1e-3), R(2, 3, 5), R(5))
OP("rms_norm/plain", 0, tn_rms_norm(x[0], NULL, .ndim = 1), R(4, 6))
OP("batch_norm", 0, tn_batch_norm(x[0], x[1], x[2], NULL, NULL, .eps = 1e-3), R(2, 2, 3, 3), R(3), R(3))
OP("group_norm", 0, tn_group_norm(x[0], 2, x[1], x[2], .eps = 1e-4), R(2, 3, 4), R(4), R(4))
OP("dropout", 0, tn_dropout(x[0], 0.3), R(4, 9))
OP("cross_entropy", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_MEAN), R(4, 5), I(0, 5, 4))
OP("cross_entropy/3d", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_MEAN), R(2, 3, 4),
   I4(0, 4, 2, 3))
OP("cross_entropy/sum", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_SUM), R(4, 5), I(0, 5, 4))
OP("cross_entropy/none", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_NONE), R(4, 5), I(0, 5, 4))
OP("cross_entropy/smooth", 0, tn_cross_entropy(x[0], x[1], .label_smoothing = 0.1), R(4, 5), I(0, 5, 4))
OP("cross_entropy/soft", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_MEAN), R(4, 5), R(4, 5))
OP("cross_entropy/soft_3d", 0,
   tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_NONE, .label_smoothing = 0.1), R(2, 3, 4), R(2, 3, 4))
OP("cross_entropy/soft_row", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_SUM), R(6), R(6))
OP("cross_entropy/ignore", 0, tn_cross_entropy(x[0], x[1], .use_ignore_index = true, .ignore_index = 2),
   R(8, 4), I(0, 4, 8))
OP("nll_loss", 0, tn_nll_loss(x[0], x[1], .reduction = TN_REDUCE_MEAN), RR(-4, 0, 4, 5), I(0, 5, 4))
OP("mse_loss", 0, tn_mse_loss(x[0], x[1], .reduction = TN_REDUCE_MEAN), R(3, 4), R(3, 4))
OP("mse_loss/none", 0, tn_mse_loss(x[0], x[1], .reduction = TN_REDUCE_NONE), R(3, 4), R(3, 4))
OP("l1_loss", 0, tn_l1_loss(x[0], x[1], .reduction = TN_REDUCE_SUM), R(3, 4), R(3, 4))
OP("bce_with_logits", 0, tn_bce_with_logits(x[0], x[1], .reduction = TN_REDUCE_MEAN), R(3, 4),
   {FIXED, 0, 1, DIMS(3, 4)})
OP("huber_loss", 0, tn_huber_loss(x[0], x[1], .delta = 0.7), R(3, 4), R(3, 4))
OP("smooth_l1_loss", 0, tn_smooth_l1_loss(x[0], x[1], .delta = 0.4, .reduction = TN_REDUCE_NONE), R(3, 4),
   R(3, 4))
OP("kl_div", 0, tn_kl_div(x[0], x[1], .reduction = TN_REDUCE_BATCH_MEAN), RR(-4, 0, 3, 4), RR(0.1, 1, 3, 4))
OP("kl_div/log", 0, tn_kl_div(x[0], x[1], .log_target = true), RR(-4, 0, 3, 4), RR(-3, 0, 3, 4))
OP("cosine_similarity", ONCE, tn_cosine_similarity(x[0], x[1], 1, 0), R(3, 4, 2), R(3, 4, 2))
OP("cosine_similarity/broadcast", ONCE, tn_cosine_similarity(x[0], x[1], 1, 0), R(3, 5), R(1, 5))
OP("triplet_margin_loss", 0, tn_triplet_margin_loss(x[0], x[1], x[2], .margin = 2), R(5, 4), R(5, 4), R(5, 4))
OP("triplet_margin_loss/swap", 0, tn_triplet_margin_loss(x[0], x[1], x[2], .margin = 4, .swap = true),
   R(5, 4), R(5, 4), R(5, 4))
OP("accuracy", NO_GRADIENT, tn_accuracy(x[0], x[1]), D(9, 4), I(0, 4, 9))
OP("scaled_dot_product_attention", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2], .scale = 0),
   R(2, 2, 3, 4), R(2, 2, 5, 4), R(2, 2, 5, 3))
OP("scaled_dot_product_attention/causal", 0,
   tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = true, .scale = 0.5), R(2, 4, 3), R(2, 4, 3),
   R(2, 4, 3))
OP("scaled_dot_product_attention/mask", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]),
   R(2, 3, 4), R(2, 3, 4), R(2, 3, 4), T1(3, 3))
OP("scaled_dot_product_attention/bias", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]),
   R(2, 3, 4), R(2, 5, 4), R(2, 5, 4), R(3, 5))
OP("scaled_dot_product_attention/dropout", 0,
   tn_scaled_dot_product_attention(x[0], x[1], x[2], .dropout = 0.25), R(2, 3, 4), R(2, 5, 4), R(2, 5, 4))
OP("scaled_dot_product_attention/grouped", 0,
   tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = true, .scale = 0.5), R(2, 4, 3, 2),
   R(2, 2, 5, 2), R(2, 2, 5, 2))
OP("scaled_dot_product_attention/grouped_mask", 0,
   tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]), R(6, 3, 2), R(2, 4, 2), R(2, 4, 3),
   T1(6, 3, 4))
OP("rotary", 0, tn_rotary(x[0], 3, .base = 50), R(2, 2, 3, 4))
OP("rotary/pairs", 0, tn_rotary(x[0], 0, .interleaved = true), R(3, 6))
OP("einsum", 0, tn_einsum("bij,bjk->bik", 2, x), R(2, 3, 4), R(2, 4, 2))
OP("einsum/sum", 0, tn_einsum("ijk,k->ji", 2, x), R(2, 3, 4), R(4))
OP("einsum/three", 0, tn_einsum("ab,cb,cd->da", 3, x), R(2, 3), R(4, 3), R(4, 2))
OP("einsum/one", 0, tn_einsum("iaj -> ja", 1, x), R(2, 3, 4))
OP("einsum/dots", 0, tn_einsum("...ij,...jk->k...i", 2, x), R(3, 1, 2, 4), R(5, 4, 3))
OP("einsum/dots_last", 0, tn_einsum("i...,ji", 2, x), R(2, 3, 4), R(3, 2))
OP("einsum/outer", 0, tn_einsum("b,a", 2, x), R(2), R(3))
OP("mean_over_ranks", 0, tn_mean_over_ranks(x[0]), D(2, 9, 3)) /* of one: what ranks do is in test_ranks */
OP("argsort", NO_GRADIENT, tn_argsort(x[0], 1, false), D(2, 9, 3))
OP("argsort/down", NO_GRADIENT, tn_argsort(x[0], -1, true), I4(-3, 3, 4, 17))
OP("argsort/bool", NO_GRADIENT, tn_argsort(x[0], 1, false), T(3, 9))
OP("argsort/special", NO_GRADIENT, tn_argsort(x[0], -1, true), {SPECIAL, 0, 0, 1, {20}})
OP("argsort/long", NO_GRADIENT, tn_argsort(x[0], 1, false), I(0, 500, 2, 700))
OP("sort", WHOLE, sorted(x[0], 1), D(2, 5, 3))
OP("topk", WHOLE, top(x[0], 3, -1, false), D(3, 7))
OP("topk/smallest", NO_GRADIENT, top(x[0], 2, 0, true), I(-9, 9, 6, 4))
OP("lstm", 0, tn_lstm(x[0], x[1], x[2], x[3], x[4]), R(3, 2, 8), R(8, 2), R(8), R(2, 2), R(2, 2))
OP("lstm/plain", 0, tn_lstm(x[0], x[1], NULL, NULL, NULL), R(2, 3, 12), R(12, 3))
OP("gru", 0, tn_gru(x[0], x[1], x[2], x[3]), R(3, 2, 6), R(6, 2), R(6), R(2, 2))
OP("gru/plain", 0, tn_gru(x[0], x[1], NULL, NULL), R(2, 3, 9), R(9, 3))
OP("detach", NO_GRADIENT, tn_mul(x[0], tn_detach(x[0])), R(2, 3))

/* ---- made from nothing ---- */
OP("zeros", NO_GRADIENT | NO_STRIDES, tn_zeros(s, TN_F32, TN_SHAPE(2, 3)), N)
OP("ones", NO_GRADIENT | NO_STRIDES, tn_ones(s, TN_I32, TN_SHAPE(3)), N)
OP("full", NO_GRADIENT | NO_STRIDES, tn_full(s, 0.1, TN_F32, TN_SHAPE(2, 2)), N)
OP("arange", NO_GRADIENT | NO_STRIDES, tn_arange(s, 2, -3, -0.75, TN_F32), N)
OP("arange/int", NO_GRADIENT | NO_STRIDES, tn_arange(s, 1, 8, 2, TN_I64), N)
OP("eye", NO_GRADIENT | NO_STRIDES, tn_eye(s, 3, TN_F32), N)
OP("rand", NO_GRADIENT | NO_STRIDES, tn_rand(s, TN_F32, TN_SHAPE(5, 7)), N)
OP("rand/f64", NO_GRADIENT | NO_STRIDES, tn_rand(s, TN_F64, TN_SHAPE(6)), N)
OP("randn", NO_GRADIENT | NO_STRIDES, tn_randn(s, TN_F32, TN_SHAPE(5, 7)), N)
OP("randint", NO_GRADIENT | NO_STRIDES, tn_randint(s, -3, 9, TN_I32, TN_SHAPE(4, 5)), N)
OP("rand/chain", NO_GRADIENT | NO_STRIDES,
   tn_sub(tn_rand(s, TN_F32, TN_SHAPE(9)), tn_rand(s, TN_F32, TN_SHAPE(9))), N)
