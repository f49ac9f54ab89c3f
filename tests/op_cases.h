/* op_cases.h - what test_ops.c runs: every operator of <tensor.h>, each with operands that exercise it.
 *
 * A case is a function from operands to a result and a description of the operands: kind, the range their
 * values are drawn from, shape. The elementwise rows are not listed here; test_ops.c takes them from ops.def.
 * Read first: the table `cases`.
 */
#ifndef TESTS_OP_CASES_H
#define TESTS_OP_CASES_H

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
        NONE, 0, 0, 0,                                                                                       \
        {                                                                                                    \
            0                                                                                                \
        }                                                                                                    \
    }
#define DIMS(...)                                                                                            \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                                               \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

/* A case's function: `x` are the operands, `s` the session. */
#define F(id, expression)                                                                                    \
    static tn_tensor *f_##id(tn_session *s, tn_tensor **x)                                                   \
    {                                                                                                        \
        (void)s, (void)x;                                                                                    \
        return expression;                                                                                   \
    }

/* ---- elementwise beyond the rows ---- */
F(leaky_relu, tn_leaky_relu(x[0], 0.1))
F(elu, tn_elu(x[0], 0.7))
F(silu, tn_silu(x[0]))
F(gelu, tn_gelu(x[0]))
F(gelu_tanh, tn_gelu_tanh(x[0]))
F(softplus, tn_softplus(x[0]))
F(mish, tn_mish(x[0]))
F(hardswish, tn_hardswish(x[0]))
F(prelu, tn_prelu(x[0], x[1]))
F(glu, tn_glu(x[0], 1))
F(swiglu, tn_swiglu(x[0], x[1]))
F(tril, tn_tril(x[0], 0))
F(triu, tn_triu(x[0], -1))
F(clamp, tn_clamp(x[0], -1.2, 0.9))
F(lerp, tn_lerp(x[0], x[1], x[2]))
F(cast_i32, tn_cast(x[0], TN_I32))
F(cast_u8, tn_cast(x[0], TN_U8))
F(cast_bool, tn_cast(x[0], TN_BOOL))
F(cast_f64, tn_cast(x[0], TN_F64))
F(cast_f16, tn_cast(x[0], TN_F16))
F(cast_bf16, tn_cast(x[0], TN_BF16))
F(cast_index, tn_cast(x[0], TN_F32))
F(add_scalar, tn_add_scalar(x[0], 0.3))
F(sub_scalar, tn_sub_scalar(x[0], 2))
F(rsub_scalar, tn_rsub_scalar(x[0], 0.7))
F(mul_scalar, tn_mul_scalar(x[0], -1.7))
F(div_scalar, tn_div_scalar(x[0], 1.3))
F(rdiv_scalar, tn_rdiv_scalar(x[0], 1.3))
F(pow_2, tn_pow_scalar(x[0], 2))
F(pow_3, tn_pow_scalar(x[0], 3))
F(pow_half, tn_pow_scalar(x[0], 0.5))
F(pow_minus_half, tn_pow_scalar(x[0], -0.5))
F(pow_minus_1, tn_pow_scalar(x[0], -1))
F(pow_any, tn_pow_scalar(x[0], 1.7))
F(maximum_scalar, tn_maximum_scalar(x[0], 0.4))
F(minimum_scalar, tn_minimum_scalar(x[0], 0.4))
F(eq_scalar, tn_eq_scalar(x[0], 1))
F(lt_scalar, tn_lt_scalar(x[0], 0.4))
F(gt_scalar, tn_gt_scalar(x[0], 0.4))
F(add_scalar_int, tn_add_scalar(x[0], 3))
F(mul_scalar_float, tn_mul_scalar(x[0], 0.5))

/* ---- reductions ---- */
F(sum_all, tn_sum(x[0], TN_ALL, false))
F(sum_last, tn_sum(x[0], TN_AXES(-1), true))
F(sum_first, tn_sum(x[0], TN_AXES(0), false))
F(sum_ends, tn_sum(x[0], TN_AXES(0, 2), false))
F(mean_all, tn_mean(x[0], TN_ALL, false))
F(mean_middle, tn_mean(x[0], TN_AXES(1), true))
F(prod, tn_prod(x[0], TN_AXES(1), false))
F(max_all, tn_max(x[0], TN_ALL, false))
F(max_last, tn_max(x[0], TN_AXES(-1), false))
F(min_first, tn_min(x[0], TN_AXES(0), true))
F(var_1, tn_var(x[0], TN_AXES(-1), false, 1))
F(var_0, tn_var(x[0], TN_AXES(0, 1), true, 0))
F(std, tn_std(x[0], TN_AXES(1), false, 1))
F(logsumexp, tn_logsumexp(x[0], TN_AXES(-1), false))
F(logsumexp_all, tn_logsumexp(x[0], TN_ALL, true))
F(any, tn_any(x[0], TN_AXES(0), false))
F(all, tn_all(x[0], TN_AXES(-1), true))
F(argmax, tn_argmax(x[0], 1, false))
F(argmin, tn_argmin(x[0], -1, true))
F(cumsum_first, tn_cumsum(x[0], 0))
F(cumsum_last, tn_cumsum(x[0], -1))

/* ---- views ---- */
F(reshape, tn_reshape(x[0], TN_SHAPE(4, -1)))
F(flatten, tn_flatten(x[0], 1))
F(squeeze, tn_squeeze(x[0], 1))
F(unsqueeze, tn_unsqueeze(x[0], -1))
F(permute, tn_permute(x[0], TN_AXES(2, 0, 1)))
F(transpose, tn_transpose(x[0], 0, -1))
F(transpose_reshape, tn_reshape(tn_transpose(x[0], 0, 2), TN_SHAPE(6, -1)))
F(expand, tn_expand(x[0], TN_SHAPE(2, 3, 4)))
F(slice, tn_slice(x[0], 1, 1, TN_END, 2))
F(slice_back, tn_slice(x[0], 2, -1, 0, -2))
F(narrow, tn_narrow(x[0], 1, 1, 2))
F(narrow_last, tn_narrow(x[0], -1, 2, 2))
F(select, tn_select(x[0], 1, -1))
F(flip, tn_flip(x[0], TN_AXES(0, 2)))
F(pad, tn_pad(x[0], 1, 2, 1, 0.5))
F(concat, tn_concat(3, (tn_tensor *[]){x[0], x[1], x[0]}, 1))
F(stack, tn_stack(2, (tn_tensor *[]){x[0], x[1]}, 1))
F(contiguous, tn_contiguous(x[0]))

static tn_tensor *f_split(tn_session *s, tn_tensor **x)
{
    (void)s;
    tn_tensor *part[2];
    if (tn_split(x[0], 2, 2, part)) return NULL;
    return tn_mul(part[0], tn_exp(part[1]));
}

/* ---- products ---- */
F(matmul, tn_matmul(x[0], x[1]))
F(matmul_left_t, tn_matmul(tn_transpose(x[0], 0, 1), x[1]))
F(matmul_right_t, tn_matmul(x[0], tn_transpose(x[1], -1, -2)))
F(affine, tn_affine(x[0], x[1], x[2]))
F(affine_plain, tn_affine(x[0], x[1], NULL))
F(conv2d, tn_conv2d(x[0], x[1], x[2], .pad = 1))
F(conv2d_stride, tn_conv2d(x[0], x[1], NULL, .stride = 2, .pad = 1))
F(conv2d_dilation, tn_conv2d(x[0], x[1], NULL, .dilation = 2, .pad = 2))
F(conv2d_groups, tn_conv2d(x[0], x[1], x[2], .groups = 2))
F(conv2d_depthwise, tn_conv2d(x[0], x[1], NULL, .groups = 3, .pad = 1))
F(conv2d_uneven, tn_conv2d(x[0], x[1], NULL, .stride_hw = {2, 1}, .pad_hw = {1, 2}))
F(conv2d_point, tn_conv2d(x[0], x[1], NULL, .stride = 1))
F(conv1d, tn_conv1d(x[0], x[1], x[2], .pad = 1, .stride = 2))
F(conv1d_groups, tn_conv1d(x[0], x[1], NULL, .dilation = 2, .groups = 2))
F(conv_transpose2d, tn_conv_transpose2d(x[0], x[1], x[2], .stride = 2, .pad = 1, .output_pad = 1))
F(conv_transpose2d_groups, tn_conv_transpose2d(x[0], x[1], NULL, .dilation = 2, .groups = 2))
F(conv_transpose1d, tn_conv_transpose1d(x[0], x[1], x[2], .stride = 3))
F(resize_twice, tn_resize_nearest(x[0], 6, 4))
F(resize_nearest, tn_resize_nearest(x[0], 7, 2))
F(resize_half, tn_resize_nearest(x[0], 2, 7))
F(resize_bilinear, tn_resize_bilinear(x[0], 7, 3, false))
F(resize_corners, tn_resize_bilinear(x[0], 1, 5, true))
F(max_pool2d, tn_max_pool2d(x[0], 2, .stride = 2))
F(max_pool2d_overlap, tn_max_pool2d(x[0], 3, .stride = 2, .pad = 1))
F(max_pool2d_ceil, tn_max_pool2d(x[0], 2, .stride = 2, .ceil_mode = true))
F(avg_pool2d, tn_avg_pool2d(x[0], 2, .stride = 2))
F(avg_pool2d_pad, tn_avg_pool2d(x[0], 3, .stride = 1, .pad = 1))
F(avg_pool2d_exclude, tn_avg_pool2d(x[0], 3, .stride = 2, .pad = 1, .exclude_pad = true))
F(global_avg_pool2d, tn_global_avg_pool2d(x[0]))

/* ---- indexing ---- */
F(gather, tn_gather(x[0], 1, x[1]))
F(gather_first, tn_gather(x[0], 0, x[1]))
F(scatter_add, tn_scatter_add(x[0], 1, x[1], x[2]))
F(index_select, tn_index_select(x[0], 1, x[1]))
F(index_select_first, tn_index_select(x[0], 0, x[1]))
F(embedding, tn_embedding(x[0], x[1]))
F(one_hot, tn_one_hot(x[0], 5))

/* ---- norms, softmax, losses, attention ---- */
F(softmax, tn_softmax(x[0], -1))
F(softmax_first, tn_softmax(x[0], 0))
F(log_softmax, tn_log_softmax(x[0], -1))
F(log_softmax_middle, tn_log_softmax(x[0], 1))
F(layer_norm, tn_layer_norm(x[0], x[1], x[2], .eps = 0))
F(layer_norm_plain, tn_layer_norm(x[0], NULL, NULL, .ndim = 2))
F(rms_norm, tn_rms_norm(x[0], x[1], .eps = 1e-3))
F(rms_norm_plain, tn_rms_norm(x[0], NULL, .ndim = 1))
F(batch_norm, tn_batch_norm(x[0], x[1], x[2], NULL, NULL, .eps = 1e-3))
F(group_norm, tn_group_norm(x[0], 2, x[1], x[2], .eps = 1e-4))
F(dropout, tn_dropout(x[0], 0.3))
F(cross_entropy, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_MEAN))
F(cross_entropy_sum, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_SUM))
F(cross_entropy_none, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_NONE))
F(cross_entropy_smooth, tn_cross_entropy(x[0], x[1], .label_smoothing = 0.1))
F(cross_entropy_ignore, tn_cross_entropy(x[0], x[1], .use_ignore_index = true, .ignore_index = 2))
F(nll_loss, tn_nll_loss(x[0], x[1], .reduction = TN_REDUCE_MEAN))
F(mse_loss, tn_mse_loss(x[0], x[1], .reduction = TN_REDUCE_MEAN))
F(mse_loss_none, tn_mse_loss(x[0], x[1], .reduction = TN_REDUCE_NONE))
F(l1_loss, tn_l1_loss(x[0], x[1], .reduction = TN_REDUCE_SUM))
F(bce_with_logits, tn_bce_with_logits(x[0], x[1], .reduction = TN_REDUCE_MEAN))
F(huber_loss, tn_huber_loss(x[0], x[1], .delta = 0.7))
F(smooth_l1_loss, tn_smooth_l1_loss(x[0], x[1], .delta = 0.4, .reduction = TN_REDUCE_NONE))
F(kl_div, tn_kl_div(x[0], x[1], .reduction = TN_REDUCE_BATCH_MEAN))
F(kl_div_log, tn_kl_div(x[0], x[1], .log_target = true))
F(cosine_similarity, tn_cosine_similarity(x[0], x[1], 1, 0))
F(triplet, tn_triplet_margin_loss(x[0], x[1], x[2], .margin = 2))
F(triplet_swap, tn_triplet_margin_loss(x[0], x[1], x[2], .margin = 4, .swap = true))
F(accuracy, tn_accuracy(x[0], x[1]))
F(sdpa, tn_scaled_dot_product_attention(x[0], x[1], x[2], .scale = 0))
F(sdpa_causal, tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = true, .scale = 0.5))
F(sdpa_mask, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]))
F(sdpa_bias, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]))
F(sdpa_dropout, tn_scaled_dot_product_attention(x[0], x[1], x[2], .dropout = 0.25))
F(lstm, tn_lstm(x[0], x[1], x[2], x[3], x[4]))
F(lstm_plain, tn_lstm(x[0], x[1], NULL, NULL, NULL))
F(gru, tn_gru(x[0], x[1], x[2], x[3]))
F(gru_plain, tn_gru(x[0], x[1], NULL, NULL))
F(detach, tn_mul(x[0], tn_detach(x[0])))

/* ---- made from nothing ---- */
F(zeros, tn_zeros(s, TN_F32, TN_SHAPE(2, 3)))
F(ones, tn_ones(s, TN_I32, TN_SHAPE(3)))
F(full, tn_full(s, 0.1, TN_F32, TN_SHAPE(2, 2)))
F(arange, tn_arange(s, 2, -3, -0.75, TN_F32))
F(arange_int, tn_arange(s, 1, 8, 2, TN_I64))
F(eye, tn_eye(s, 3, TN_F32))
F(rand, tn_rand(s, TN_F32, TN_SHAPE(5, 7)))
F(rand_f64, tn_rand(s, TN_F64, TN_SHAPE(6)))
F(randn, tn_randn(s, TN_F32, TN_SHAPE(5, 7)))
F(randint, tn_randint(s, -3, 9, TN_I32, TN_SHAPE(4, 5)))
F(rand_chain, tn_sub(tn_rand(s, TN_F32, TN_SHAPE(9)), tn_rand(s, TN_F32, TN_SHAPE(9))))

static const op_case cases[] = {
    {"leaky_relu", f_leaky_relu, {R(2, 3, 4)}, 0},
    {"elu", f_elu, {R(2, 3, 4)}, 0},
    {"silu", f_silu, {R(2, 3, 4)}, 0},
    {"gelu", f_gelu, {R(2, 3, 4)}, 0},
    {"gelu_tanh", f_gelu_tanh, {R(2, 3, 4)}, 0},
    {"softplus", f_softplus, {R(2, 3, 4)}, 0},
    {"softplus/far", f_softplus, {RR(-90, 90, 2, 3, 4)}, 0},
    {"mish", f_mish, {R(2, 3, 4)}, 0},
    {"hardswish", f_hardswish, {RR(-5, 5, 2, 3, 4)}, 0},
    {"prelu", f_prelu, {R(2, 3, 4), R(4)}, 0},
    {"prelu/one", f_prelu, {R(2, 3, 4), R(1)}, 0},
    {"glu", f_glu, {R(2, 4, 3)}, 0},
    {"swiglu", f_swiglu, {R(2, 3, 4), R(2, 3, 4)}, 0},
    {"tril", f_tril, {R(2, 3, 4)}, 0},
    {"triu", f_triu, {R(4, 3)}, 0},
    {"tril/int", f_tril, {I4(-9, 9, 3, 4)}, NO_GRADIENT},
    {"tril/bool", f_tril, {T(3, 3)}, NO_GRADIENT},
    {"clamp", f_clamp, {R(2, 3, 4)}, 0},
    {"lerp", f_lerp, {R(2, 3, 4), R(3, 1), RR(0, 1, 2, 1, 4)}, 0},
    {"cast/i32", f_cast_i32, {RR(-90, 90, 2, 3, 4)}, NO_GRADIENT},
    {"cast/u8", f_cast_u8, {RR(0, 255, 2, 3, 4)}, NO_GRADIENT},
    {"cast/bool", f_cast_bool, {R(2, 3, 4)}, NO_GRADIENT},
    {"cast/f64", f_cast_f64, {R(2, 3, 4)}, 0},
    {"cast/f16", f_cast_f16, {R(2, 3, 4)}, NO_GRADIENT},
    {"cast/bf16", f_cast_bf16, {R(2, 3, 4)}, NO_GRADIENT},
    {"cast/index", f_cast_index, {I(-100, 100, 2, 5)}, NO_GRADIENT},
    {"add_scalar", f_add_scalar, {R(2, 3, 4)}, 0},
    {"sub_scalar", f_sub_scalar, {R(2, 3, 4)}, 0},
    {"rsub_scalar", f_rsub_scalar, {R(2, 3, 4)}, 0},
    {"mul_scalar", f_mul_scalar, {R(2, 3, 4)}, 0},
    {"div_scalar", f_div_scalar, {R(2, 3, 4)}, 0},
    {"rdiv_scalar", f_rdiv_scalar, {RR(0.3, 3, 2, 3, 4)}, 0},
    {"pow_scalar/2", f_pow_2, {R(2, 3, 4)}, 0},
    {"pow_scalar/3", f_pow_3, {R(2, 3, 4)}, 0},
    {"pow_scalar/half", f_pow_half, {RR(0.1, 4, 2, 3, 4)}, 0},
    {"pow_scalar/minus_half", f_pow_minus_half, {RR(0.1, 4, 2, 3, 4)}, 0},
    {"pow_scalar/minus_1", f_pow_minus_1, {RR(0.3, 3, 2, 3, 4)}, 0},
    {"pow_scalar/any", f_pow_any, {RR(0.3, 3, 2, 3, 4)}, 0},
    {"maximum_scalar", f_maximum_scalar, {R(2, 3, 4)}, 0},
    {"minimum_scalar", f_minimum_scalar, {R(2, 3, 4)}, 0},
    {"eq_scalar", f_eq_scalar, {I(0, 3, 2, 3)}, NO_GRADIENT},
    {"lt_scalar", f_lt_scalar, {R(2, 3, 4)}, NO_GRADIENT},
    {"gt_scalar", f_gt_scalar, {R(2, 3, 4)}, NO_GRADIENT},
    {"add_scalar/int", f_add_scalar_int, {I4(-9, 9, 2, 3)}, NO_GRADIENT},
    {"mul_scalar/float", f_mul_scalar_float, {I4(-9, 9, 2, 3)}, NO_GRADIENT},

    {"sum/all", f_sum_all, {R(2, 3, 4)}, 0},
    {"sum/last", f_sum_last, {R(2, 3, 5)}, 0},
    {"sum/first", f_sum_first, {R(3, 2, 4)}, 0},
    {"sum/ends", f_sum_ends, {R(3, 2, 4)}, 0},
    {"sum/long", f_sum_last, {RR(-1, 1, 2, 1000)}, NO_GRADIENT},
    {"sum/int", f_sum_last, {I4(-100, 100, 3, 50)}, NO_GRADIENT},
    {"sum/bool", f_sum_all, {T(7, 9)}, NO_GRADIENT},
    {"mean/all", f_mean_all, {R(2, 3, 4)}, 0},
    {"mean/middle", f_mean_middle, {R(2, 3, 4)}, 0},
    {"prod", f_prod, {RR(0.4, 2, 2, 3, 4)}, 0},
    {"max/all", f_max_all, {D(2, 3, 4)}, 0},
    {"max/last", f_max_last, {D(2, 3, 4)}, 0},
    {"min/first", f_min_first, {D(2, 3, 4)}, 0},
    {"var/1", f_var_1, {R(2, 3, 4)}, 0},
    {"var/0", f_var_0, {R(2, 3, 4)}, 0},
    {"std", f_std, {R(2, 3, 4)}, 0},
    {"logsumexp", f_logsumexp, {R(2, 3, 4)}, 0},
    {"logsumexp/all", f_logsumexp_all, {RR(-90, 90, 2, 3)}, 0},
    {"any", f_any, {T(3, 4)}, NO_GRADIENT},
    {"all", f_all, {T(3, 2)}, NO_GRADIENT},
    {"argmax", f_argmax, {D(2, 5, 3)}, NO_GRADIENT},
    {"argmin", f_argmin, {D(2, 5, 3)}, NO_GRADIENT},
    {"cumsum/first", f_cumsum_first, {R(4, 3)}, 0},
    {"cumsum/last", f_cumsum_last, {R(2, 3, 5)}, 0},
    {"cumsum/int", f_cumsum_last, {I4(-9, 9, 3, 4)}, NO_GRADIENT},

    {"reshape", f_reshape, {R(2, 3, 4)}, 0},
    {"flatten", f_flatten, {R(2, 3, 4)}, 0},
    {"squeeze", f_squeeze, {R(2, 1, 4)}, 0},
    {"unsqueeze", f_unsqueeze, {R(2, 3)}, 0},
    {"permute", f_permute, {R(2, 3, 4)}, 0},
    {"transpose", f_transpose, {R(2, 3, 4)}, 0},
    {"reshape/transposed", f_transpose_reshape, {R(2, 3, 4)}, 0},
    {"expand", f_expand, {R(3, 1)}, 0},
    {"slice", f_slice, {R(2, 5, 2)}, 0},
    {"slice/back", f_slice_back, {R(2, 2, 5)}, 0},
    {"narrow", f_narrow, {R(2, 4, 3)}, 0},
    {"narrow/last", f_narrow_last, {R(2, 3, 4)}, 0},
    {"select", f_select, {R(2, 3, 4)}, 0},
    {"flip", f_flip, {R(2, 3, 4)}, 0},
    {"pad", f_pad, {R(2, 3, 2)}, 0},
    {"concat", f_concat, {R(2, 3, 2), R(2, 1, 2)}, 0},
    {"stack", f_stack, {R(2, 3), R(2, 3)}, 0},
    {"split", f_split, {R(2, 3, 4)}, 0},
    {"contiguous", f_contiguous, {R(2, 3, 4)}, 0},

    {"matmul", f_matmul, {R(3, 4), R(4, 5)}, 0},
    {"matmul/batch", f_matmul, {R(2, 3, 4), R(2, 4, 2)}, 0},
    {"matmul/broadcast", f_matmul, {R(2, 1, 2, 3), R(3, 3, 2)}, 0},
    {"matmul/dot", f_matmul, {R(5), R(5)}, 0},
    {"matmul/vector_left", f_matmul, {R(4), R(4, 3)}, 0},
    {"matmul/vector_right", f_matmul, {R(2, 3, 4), R(4)}, 0},
    {"matmul/left_t", f_matmul_left_t, {R(4, 3), R(4, 5)}, 0},
    {"matmul/right_t", f_matmul_right_t, {R(2, 3, 4), R(2, 5, 4)}, 0},
    {"matmul/large", f_matmul, {R(70, 130), R(130, 33)}, NO_GRADIENT},
    {"affine", f_affine, {R(2, 3, 4), R(5, 4), R(5)}, 0},
    {"affine/plain", f_affine_plain, {R(3, 4), R(2, 4)}, 0},
    {"conv2d", f_conv2d, {R(2, 3, 4, 2), R(3, 3, 3, 2), R(3)}, 0},
    {"conv2d/stride", f_conv2d_stride, {R(1, 5, 4, 2), R(2, 3, 3, 2)}, 0},
    {"conv2d/dilation", f_conv2d_dilation, {R(1, 5, 5, 1), R(2, 3, 2, 1)}, 0},
    {"conv2d/groups", f_conv2d_groups, {R(1, 3, 3, 4), R(4, 2, 2, 2), R(4)}, 0},
    {"conv2d/depthwise", f_conv2d_depthwise, {R(1, 3, 4, 3), R(3, 3, 3, 1)}, 0},
    {"conv2d/uneven", f_conv2d_uneven, {R(1, 5, 4, 2), R(2, 3, 2, 2)}, 0},
    {"conv2d/point", f_conv2d_point, {R(2, 3, 3, 3), R(4, 1, 1, 3)}, 0},
    {"conv2d/large", f_conv2d, {R(2, 9, 11, 16), R(24, 3, 3, 16), R(24)}, NO_GRADIENT},
    {"conv1d", f_conv1d, {R(2, 7, 3), R(4, 3, 3), R(4)}, 0},
    {"conv1d/groups", f_conv1d_groups, {R(1, 6, 4), R(2, 2, 2)}, 0},
    {"conv_transpose2d", f_conv_transpose2d, {R(1, 3, 2, 2), R(2, 3, 3, 3), R(3)}, 0},
    {"conv_transpose2d/groups", f_conv_transpose2d_groups, {R(1, 2, 3, 4), R(4, 2, 2, 1)}, 0},
    {"conv_transpose1d", f_conv_transpose1d, {R(2, 3, 2), R(2, 2, 3), R(3)}, 0},
    {"resize_nearest", f_resize_nearest, {R(1, 5, 4, 2)}, 0},
    {"resize_nearest/twice", f_resize_twice, {R(2, 3, 2, 2)}, 0},
    {"resize_nearest/half", f_resize_half, {R(1, 4, 5, 1)}, 0},
    {"resize_nearest/int", f_resize_nearest, {I4(-9, 9, 1, 5, 4, 2)}, NO_GRADIENT},
    {"resize_bilinear", f_resize_bilinear, {R(1, 4, 5, 2)}, 0},
    {"resize_bilinear/corners", f_resize_corners, {R(2, 3, 4, 2)}, 0},
    {"max_pool2d", f_max_pool2d, {D(1, 4, 4, 2)}, 0},
    {"max_pool2d/overlap", f_max_pool2d_overlap, {D(1, 5, 4, 2)}, 0},
    {"max_pool2d/ceil", f_max_pool2d_ceil, {D(1, 5, 3, 2)}, 0},
    {"avg_pool2d", f_avg_pool2d, {R(1, 4, 5, 2)}, 0},
    {"avg_pool2d/pad", f_avg_pool2d_pad, {R(1, 3, 4, 2)}, 0},
    {"avg_pool2d/exclude", f_avg_pool2d_exclude, {R(1, 4, 5, 2)}, 0},
    {"global_avg_pool2d", f_global_avg_pool2d, {R(2, 3, 2, 4)}, 0},

    {"gather", f_gather, {R(3, 4), I(0, 4, 2, 5)}, 0},
    {"gather/first", f_gather_first, {R(4, 3, 2), I4(0, 4, 3, 2, 2)}, 0},
    {"scatter_add", f_scatter_add, {R(3, 4), I(0, 4, 2, 5), R(2, 5)}, 0},
    {"index_select", f_index_select, {R(2, 4, 3), I(0, 4, 6)}, 0},
    {"index_select/first", f_index_select_first, {R(4, 3), I4(0, 4, 2)}, 0},
    {"embedding", f_embedding, {R(5, 3), I(0, 5, 2, 4)}, 0},
    {"one_hot", f_one_hot, {I(0, 5, 3, 2)}, NO_GRADIENT},

    {"softmax", f_softmax, {R(2, 3, 5)}, 0},
    {"softmax/first", f_softmax_first, {R(3, 4)}, 0},
    {"softmax/far", f_softmax, {RR(-200, 200, 3, 9)}, NO_GRADIENT},
    {"log_softmax", f_log_softmax, {R(2, 3, 5)}, 0},
    {"log_softmax/middle", f_log_softmax_middle, {R(2, 4, 2)}, 0},
    {"layer_norm", f_layer_norm, {R(2, 3, 5), R(5), R(5)}, 0},
    {"layer_norm/plain", f_layer_norm_plain, {R(3, 2, 4)}, 0},
    {"rms_norm", f_rms_norm, {R(2, 3, 5), R(5)}, 0},
    {"rms_norm/plain", f_rms_norm_plain, {R(4, 6)}, 0},
    {"batch_norm", f_batch_norm, {R(2, 2, 3, 3), R(3), R(3)}, 0},
    {"group_norm", f_group_norm, {R(2, 3, 4), R(4), R(4)}, 0},
    {"dropout", f_dropout, {R(4, 9)}, 0},
    {"cross_entropy", f_cross_entropy, {R(4, 5), I(0, 5, 4)}, 0},
    {"cross_entropy/3d", f_cross_entropy, {R(2, 3, 4), I4(0, 4, 2, 3)}, 0},
    {"cross_entropy/sum", f_cross_entropy_sum, {R(4, 5), I(0, 5, 4)}, 0},
    {"cross_entropy/none", f_cross_entropy_none, {R(4, 5), I(0, 5, 4)}, 0},
    {"cross_entropy/smooth", f_cross_entropy_smooth, {R(4, 5), I(0, 5, 4)}, 0},
    {"cross_entropy/ignore", f_cross_entropy_ignore, {R(8, 4), I(0, 4, 8)}, 0},
    {"nll_loss", f_nll_loss, {RR(-4, 0, 4, 5), I(0, 5, 4)}, 0},
    {"mse_loss", f_mse_loss, {R(3, 4), R(3, 4)}, 0},
    {"mse_loss/none", f_mse_loss_none, {R(3, 4), R(3, 4)}, 0},
    {"l1_loss", f_l1_loss, {R(3, 4), R(3, 4)}, 0},
    {"bce_with_logits", f_bce_with_logits, {R(3, 4), {FIXED, 0, 1, DIMS(3, 4)}}, 0},
    {"huber_loss", f_huber_loss, {R(3, 4), R(3, 4)}, 0},
    {"smooth_l1_loss", f_smooth_l1_loss, {R(3, 4), R(3, 4)}, 0},
    {"kl_div", f_kl_div, {RR(-4, 0, 3, 4), RR(0.1, 1, 3, 4)}, 0},
    {"kl_div/log", f_kl_div_log, {RR(-4, 0, 3, 4), RR(-3, 0, 3, 4)}, 0},
    {"cosine_similarity", f_cosine_similarity, {R(3, 4, 2), R(3, 4, 2)}, ONCE},
    {"cosine_similarity/broadcast", f_cosine_similarity, {R(3, 5), R(1, 5)}, ONCE},
    {"triplet_margin_loss", f_triplet, {R(5, 4), R(5, 4), R(5, 4)}, 0},
    {"triplet_margin_loss/swap", f_triplet_swap, {R(5, 4), R(5, 4), R(5, 4)}, 0},
    {"accuracy", f_accuracy, {D(9, 4), I(0, 4, 9)}, NO_GRADIENT},
    {"scaled_dot_product_attention", f_sdpa, {R(2, 2, 3, 4), R(2, 2, 5, 4), R(2, 2, 5, 3)}, 0},
    {"scaled_dot_product_attention/causal", f_sdpa_causal, {R(2, 4, 3), R(2, 4, 3), R(2, 4, 3)}, 0},
    {"scaled_dot_product_attention/mask", f_sdpa_mask, {R(2, 3, 4), R(2, 3, 4), R(2, 3, 4), T1(3, 3)}, 0},
    {"scaled_dot_product_attention/bias", f_sdpa_bias, {R(2, 3, 4), R(2, 5, 4), R(2, 5, 4), R(3, 5)}, 0},
    {"scaled_dot_product_attention/dropout", f_sdpa_dropout, {R(2, 3, 4), R(2, 5, 4), R(2, 5, 4)}, 0},
    {"lstm", f_lstm, {R(3, 2, 8), R(8, 2), R(8), R(2, 2), R(2, 2)}, 0},
    {"lstm/plain", f_lstm_plain, {R(2, 3, 12), R(12, 3)}, 0},
    {"gru", f_gru, {R(3, 2, 6), R(6, 2), R(6), R(2, 2)}, 0},
    {"gru/plain", f_gru_plain, {R(2, 3, 9), R(9, 3)}, 0},
    {"detach", f_detach, {R(2, 3)}, NO_GRADIENT},

    {"zeros", f_zeros, {N}, NO_GRADIENT | NO_STRIDES},
    {"ones", f_ones, {N}, NO_GRADIENT | NO_STRIDES},
    {"full", f_full, {N}, NO_GRADIENT | NO_STRIDES},
    {"arange", f_arange, {N}, NO_GRADIENT | NO_STRIDES},
    {"arange/int", f_arange_int, {N}, NO_GRADIENT | NO_STRIDES},
    {"eye", f_eye, {N}, NO_GRADIENT | NO_STRIDES},
    {"rand", f_rand, {N}, NO_GRADIENT | NO_STRIDES},
    {"rand/f64", f_rand_f64, {N}, NO_GRADIENT | NO_STRIDES},
    {"randn", f_randn, {N}, NO_GRADIENT | NO_STRIDES},
    {"randint", f_randint, {N}, NO_GRADIENT | NO_STRIDES},
    {"rand/chain", f_rand_chain, {N}, NO_GRADIENT | NO_STRIDES},
};

#endif
