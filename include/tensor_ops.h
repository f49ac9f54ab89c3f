/* tensor_ops.h - chapters 5 to 10 of <tensor.h>, which includes it and says what holds of each: the operators.
 *
 *   5 Elementwise    6 Reductions    7 Shapes and views    8 Products, convolution, pooling    9 Indexing
 *  10 Norms, softmax, losses, attention
 */
#ifndef TENSOR_H
#include "tensor.h" /* and that, in its place, this */
#elif !defined(TENSOR_OPS_H)
#define TENSOR_OPS_H

/* ---- 5 Elementwise ---------------------------------------------------------------------------------
 *
 * Integers are exact, i64 too, and wrap around. bool with bool is bool in add (or), mul (and), maximum, minimum and
 * sign; other arithmetic makes it i64 first.
 *
 * Gradients at kinks, at bounds, at infinities and at NaN are PyTorch's where nothing else is said. Those of exp,
 * tanh, sigmoid, sqrt, rsqrt and reciprocal are taken from the result, as PyTorch's: of tanh and sigmoid they are
 * good to 3e-7 of the largest slope, absolutely, where the function is flat. The others are taken from x. */

TN_OP(neg, tn_tensor *x);        /* -x */
TN_OP(abs, tn_tensor *x);        /* |x|, subgradient 0 at 0 and at NaN */
TN_OP(exp, tn_tensor *x);        /* e^x; integers become f32, here and below */
TN_OP(log, tn_tensor *x);        /* ln x */
TN_OP(log1p, tn_tensor *x);      /* ln(1 + x) */
TN_OP(expm1, tn_tensor *x);      /* e^x - 1 */
TN_OP(sqrt, tn_tensor *x);       /* x^(1/2) */
TN_OP(rsqrt, tn_tensor *x);      /* x^(-1/2) */
TN_OP(reciprocal, tn_tensor *x); /* 1 / x */
TN_OP(square, tn_tensor *x);     /* x * x */
TN_OP(sin, tn_tensor *x);
TN_OP(cos, tn_tensor *x);
TN_OP(atan, tn_tensor *x);
TN_OP(tanh, tn_tensor *x);
TN_OP(erf, tn_tensor *x);     /* 2/sqrt(pi) * integral of e^(-t^2) from 0 to x */
TN_OP(ndtr, tn_tensor *x);    /* (1 + erf(x / sqrt 2)) / 2, the normal distribution up to x; in f32 to 1.2e-7, absolutely */
TN_OP(sigmoid, tn_tensor *x); /* 1 / (1 + e^-x) */
TN_OP(relu, tn_tensor *x);    /* max(x, 0), derivative 0 at 0; NaN stays NaN */
TN_OP(floor, tn_tensor *x);
TN_OP(ceil, tn_tensor *x);
TN_OP(round, tn_tensor *x); /* half to even */
TN_OP(trunc, tn_tensor *x);
TN_OP(sign, tn_tensor *x);     /* -1, 0, 1; 0 of NaN */
TN_OP(isnan, tn_tensor *x);    /* bool */
TN_OP(isfinite, tn_tensor *x); /* bool */
TN_OP(logical_not, tn_tensor *x);

TN_OP(leaky_relu, tn_tensor *x, double slope); /* x > 0 ? x : slope * x */
TN_OP(elu, tn_tensor *x, double alpha);        /* x > 0 ? x : alpha * (e^x - 1) */
TN_OP(silu, tn_tensor *x);                     /* x * sigmoid(x) */
TN_OP(gelu, tn_tensor *x);                     /* x/2 * (1 + erf(x / sqrt 2)) */
TN_OP(gelu_tanh, tn_tensor *x);                /* x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) */
TN_OP(softplus, tn_tensor *x);                 /* ln(1 + e^x) */
TN_OP(mish, tn_tensor *x);                     /* x * tanh(softplus(x)) */
TN_OP(hardswish, tn_tensor *x);                /* x * min(max(x + 3, 0), 6) / 6 */
TN_OP(prelu, tn_tensor *x, tn_tensor *weight); /* x > 0 ? x : weight * x; weight has one element or [channels], x's
                                                  last axis */
TN_OP(glu, tn_tensor *x, int axis);            /* a * sigmoid(b), a and b the halves of x along axis */
TN_OP(swiglu, tn_tensor *gate, tn_tensor *x);  /* silu(gate) * x, of one shape */
/* The last two axes are matrices: what lies up to, or from, the diagonal column - row = diagonal, and 0 elsewhere. */
TN_OP(tril, tn_tensor *x, int64_t diagonal);
TN_OP(triu, tn_tensor *x, int64_t diagonal);
/* min(max(x, low), high), NaN: no bound; gradient 1 between them, 0 at them, beyond, and at NaN. An integer x keeps its
 * dtype where both bounds are whole or infinite - what it does not hold is the last that it does - and becomes f32 for
 * others. */
TN_OP(clamp, tn_tensor *x, double low, double high);

TN_OP(add, tn_tensor *x, tn_tensor *y);
TN_OP(sub, tn_tensor *x, tn_tensor *y);
TN_OP(mul, tn_tensor *x, tn_tensor *y);
TN_OP(div, tn_tensor *x, tn_tensor *y); /* true division: integers become f32 */
TN_OP(pow, tn_tensor *x, tn_tensor *y); /* x^y; integers become f32, here and in tn_pow_scalar */
TN_OP(maximum, tn_tensor *x, tn_tensor *y); /* ties share the gradient equally; NaN wins */
TN_OP(minimum, tn_tensor *x, tn_tensor *y);
TN_OP(eq, tn_tensor *x, tn_tensor *y); /* comparisons give bool */
TN_OP(ne, tn_tensor *x, tn_tensor *y);
TN_OP(lt, tn_tensor *x, tn_tensor *y);
TN_OP(le, tn_tensor *x, tn_tensor *y);
TN_OP(gt, tn_tensor *x, tn_tensor *y);
TN_OP(ge, tn_tensor *x, tn_tensor *y);
TN_OP(logical_and, tn_tensor *x, tn_tensor *y);
TN_OP(logical_or, tn_tensor *x, tn_tensor *y);
TN_OP(logical_xor, tn_tensor *x, tn_tensor *y);
TN_OP(where, tn_tensor *condition, tn_tensor *x, tn_tensor *y); /* condition ? x : y; condition is bool */
TN_OP(lerp, tn_tensor *x, tn_tensor *y, tn_tensor *weight);     /* x + weight * (y - x) */
/* Floating to integer cuts off; a number the type does not hold (NaN, infinite, too large) becomes some value
 * of it, not always the same, as in C. */
TN_OP(cast, tn_tensor *x, tn_dtype dtype);

/* A C number as the second operand: a run-time value, never part of a kernel's text. It keeps a floating
 * tensor's dtype. With an integer tensor an integer C type keeps the dtype and a floating one gives f32; one that the
 * dtype does not hold wraps around in sums and products, and is taken as it is where it is compared. */
typedef struct tn_number {
    double f;
    int64_t i;
    bool is_int;
} tn_number;
TN_API tn_number tn_number_f(double v);
TN_API tn_number tn_number_i(int64_t v);
static inline tn_number tn_number_as_is(tn_number v) /* for the macros, which take a tn_number too */
{
    return v;
}
TN_OP(add_scalar, tn_tensor *x, tn_number v);
TN_OP(sub_scalar, tn_tensor *x, tn_number v);  /* x - v */
TN_OP(rsub_scalar, tn_tensor *x, tn_number v); /* v - x */
TN_OP(mul_scalar, tn_tensor *x, tn_number v);
TN_OP(div_scalar, tn_tensor *x, tn_number v);
TN_OP(rdiv_scalar, tn_tensor *x, tn_number v); /* v / x */
TN_OP(pow_scalar, tn_tensor *x, tn_number v);  /* exponents 2, 3, 1/2, -1/2, -1 are taken as structure:
                                                  below 0, -inf too, x^(1/2) and x^(-1/2) and their gradients are NaN */
TN_OP(maximum_scalar, tn_tensor *x, tn_number v);
TN_OP(minimum_scalar, tn_tensor *x, tn_number v);
TN_OP(eq_scalar, tn_tensor *x, tn_number v);
TN_OP(lt_scalar, tn_tensor *x, tn_number v);
TN_OP(gt_scalar, tn_tensor *x, tn_number v);

/* ---- 6 Reductions: over `axes` (TN_AXES or TN_ALL); keepdim leaves extents of 1 ----------------------
 *
 * Of nothing the sum is 0, the product 1, any false, all true, the mean NaN and logsumexp -inf; there is no
 * max, min, argmax or argmin (TN_E_SHAPE). var and std divide by n - correction, or by 0 where that is less: they are
 * infinite then, NaN of equal elements, and so are their gradients. They are computed in f64, whatever x is: of f32
 * std has all its digits wherever it is an f32 itself. Where all elements are equal its gradient is 0. That of prod is
 * the product of the other elements, also where some are 0, infinite or NaN. */

TN_OP(sum, tn_tensor *x, int naxes, const int *axes, bool keepdim); /* bool and u8, i32 sum to i64 */
TN_OP(mean, tn_tensor *x, int naxes, const int *axes, bool keepdim);
TN_OP(prod, tn_tensor *x, int naxes, const int *axes, bool keepdim);
TN_OP(max, tn_tensor *x, int naxes, const int *axes, bool keepdim); /* ties share the gradient equally */
TN_OP(min, tn_tensor *x, int naxes, const int *axes, bool keepdim);
TN_OP(var, tn_tensor *x, int naxes, const int *axes, bool keepdim, int correction); /* / (n - correction) */
TN_OP(std, tn_tensor *x, int naxes, const int *axes, bool keepdim, int correction);
TN_OP(logsumexp, tn_tensor *x, int naxes, const int *axes, bool keepdim);
TN_OP(any, tn_tensor *x, int naxes, const int *axes, bool keepdim); /* bool */
TN_OP(all, tn_tensor *x, int naxes, const int *axes, bool keepdim);
TN_OP(argmax, tn_tensor *x, int axis, bool keepdim); /* i64; the first of equals */
TN_OP(argmin, tn_tensor *x, int axis, bool keepdim);
TN_OP(cumsum, tn_tensor *x, int axis);
/* The mean of what x is on each rank (tn_ranks); x itself where there is one. Of a floating dtype, f32 for an integer x; of
 * one shape on all ranks, which all have to call it. f16 and bf16 are sent as f32. Sums run in the order of ranks. Its
 * gradient is the mean of theirs: the right one where the loss is the mean of all ranks' losses, as optimizers take it. */
TN_OP(mean_over_ranks, tn_tensor *x);
/* Along an axis, in rising order or falling: NaN is greater than all, equal elements stay in their order. indices, i64, are
 * places along the axis; values have a gradient. values or indices may be NULL. Return 0 or a status. */
TN_FUNCTION(int, sort, tn_tensor *x, int axis, bool descending, tn_tensor **values, tn_tensor **indices);
TN_OP(argsort, tn_tensor *x, int axis, bool descending);
/* The k largest, or smallest, along an axis, the first of them first. */
TN_FUNCTION(int, topk, tn_tensor *x, int64_t k, int axis, bool smallest, tn_tensor **values, tn_tensor **indices);

/* ---- 7 Shapes and views: no data moves where strides can say it --------------------------------------- */

TN_OP(reshape, tn_tensor *x, int ndim, const int64_t *shape); /* one extent may be -1 */
TN_OP(flatten, tn_tensor *x, int start_axis);                 /* axes start.. become one */
TN_OP(squeeze, tn_tensor *x, int axis);
TN_OP(unsqueeze, tn_tensor *x, int axis);
TN_OP(permute, tn_tensor *x, int ndim, const int *order);
TN_OP(transpose, tn_tensor *x, int axis0, int axis1);
TN_OP(expand, tn_tensor *x, int ndim, const int64_t *shape); /* extents of 1 repeat; -1 keeps */
/* Elements start, start+step, ... below end along one axis. Negative start and end count from the back,
 * both are clamped, step may be negative (then end is the bound below; TN_END means "past the first"). */
#define TN_END INT64_MAX
TN_OP(slice, tn_tensor *x, int axis, int64_t start, int64_t end, int64_t step);
/* Elements start .. start + length - 1 along one axis, but start is a run-time number: a step in which it is another
 * one each time, such as generation with a cache of keys and values, keeps its plan. Not a view: what is taken is
 * read like tn_index_select's rows. start counts from the front and must leave room for length, else TN_E_INDEX. */
TN_OP(narrow, tn_tensor *x, int axis, int64_t start, int64_t length);
TN_OP(select, tn_tensor *x, int axis, int64_t index); /* one index; the axis goes */
TN_OP(flip, tn_tensor *x, int naxes, const int *axes);
/* value as in tn_full. */
TN_OP(pad, tn_tensor *x, int axis, int64_t before, int64_t after, double value);
/* The n tensors of xs, 1 to 255, after one another along axis, or along a new one. A list without any tensor -
 * n below 1, xs NULL, each xs[i] NULL - tells no session, so that there is none to report to: the result is NULL and
 * no error is recorded. With one that there is, a NULL among them is TN_E_NULL and more than 255 are TN_E_ARG. */
TN_OP(concat, int n, tn_tensor *const *xs, int axis);
TN_OP(stack, int n, tn_tensor *const *xs, int axis);
/* n equal parts along axis, into out[0..n). Returns 0 or a status. */
TN_FUNCTION(int, split, tn_tensor *x, int n, int axis, tn_tensor **out);
TN_OP(contiguous, tn_tensor *x); /* x itself when it is dense, else a dense copy */

/* ---- 8 Products, convolution, pooling ------------------------------------------------------------------ */

/* [.., m, k] x [.., k, n] -> [.., m, n]; batch axes broadcast; 1-d operands as in PyTorch. Transposed and
 * strided operands cost no copy. Integers give integers, which wrap around; bool is TN_E_DTYPE. Sums of f16 and bf16 are
 * f32; where the processor multiplies pairs of bf16 (AVX512_BF16), operands and sums below 1.2e-38 count as 0. */
TN_OP(matmul, tn_tensor *x, tn_tensor *y);
/* torch.einsum of n tensors, up to 8: "bij,bjk->bik"; without "->" the result has the letters that stand once, in order
 * of the alphabet. "..." stands for the axes that have no letter, counted from the last; these broadcast, and stand
 * first in a result that is not named. Letters alike have extents alike. A letter twice in one operand is TN_E_ARG. */
TN_OP(einsum, const char *equation, int n, tn_tensor *const *xs);
/* x [.., in] * weight [out, in]^T + bias [out] -> [.., out]; bias may be NULL. */
TN_OP(affine, tn_tensor *x, tn_tensor *weight, tn_tensor *bias);

typedef struct tn_conv2d_options {
    int stride, pad, dilation, groups;         /* 0 means 1, 0, 1, 1; both axes alike */
    int stride_hw[2], pad_hw[2], dilation_hw[2]; /* where not 0, win over the above */
    int output_pad; /* transposed ones alone: lines added at the far ends of the result; below stride */
    size_t size;
} tn_conv2d_options;
/* x [n, h, w, c], weight [oc, kh, kw, c / groups], bias [oc] or NULL -> [n, oh, ow, oc]. On the CPU windows of 3x3,
 * f32 or of 16 bits, may go through Winograd's tiles: results two by two or four by four are then computed in f32 from the
 * same 4x4 or 6x6 inputs, with up to three times the error of the sums written out - and one rounding of the result where
 * that has 16 bits -, and what is infinite or NaN in one of these may make all of them NaN. The
 * zeros of padding, and those that strides leave in gradients, may be multiplied: a weight, a pixel or a gradient that is
 * infinite or NaN may make NaN where it meets them. */
TN_OP(conv2d, tn_tensor *x, tn_tensor *weight, tn_tensor *bias, const tn_conv2d_options *options);
/* x [n, t, c], weight [oc, k, c / groups], bias [oc] or NULL -> [n, ot, oc]. */
TN_OP(conv1d, tn_tensor *x, tn_tensor *weight, tn_tensor *bias, const tn_conv2d_options *options);
/* What a convolution's gradient does to its image: x [n, h, w, c], weight [c, kh, kw, oc / groups], bias [oc] or NULL ->
 * [n, oh, ow, oc], oh = (h - 1) * stride - 2 * pad + dilation * (kh - 1) + output_pad + 1; 1d likewise, of [n, t, c]. Of 16
 * bits a bias is added to the sums as they are stored: two roundings. */
TN_OP(conv_transpose2d, tn_tensor *x, tn_tensor *weight, tn_tensor *bias, const tn_conv2d_options *options);
TN_OP(conv_transpose1d, tn_tensor *x, tn_tensor *weight, tn_tensor *bias, const tn_conv2d_options *options);

typedef struct tn_pool2d_options {
    int stride, pad;      /* 0 means the window's size, 0 */
    bool ceil_mode;
    bool exclude_pad;     /* average over real elements only (PyTorch: count_include_pad = False) */
    size_t size;
} tn_pool2d_options;
/* x [n, h, w, c] -> [n, oh, ow, c], in x's dtype, but the average of integers is f32. Of equal elements, and of NaN, the
 * first one is the maximum that has the gradient. A window may hang over the padded image where ceil_mode rounds up, by up
 * to stride - 1 lines, also one that is larger than it. */
TN_OP(max_pool2d, tn_tensor *x, int window, const tn_pool2d_options *options);
TN_OP(avg_pool2d, tn_tensor *x, int window, const tn_pool2d_options *options);
TN_OP(global_avg_pool2d, tn_tensor *x); /* [n, h, w, c] -> [n, c] */

/* x [n, h, w, c] -> [n, height, width, c], as torch.nn.functional.interpolate. Nearest: pixel floor(i * old / new) along
 * each axis, of any dtype. Bilinear: between the pixels around (i + 1/2) * old / new - 1/2, or, with align_corners,
 * around i * (old - 1) / (new - 1); floating, integers become f32. */
TN_OP(resize_nearest, tn_tensor *x, int64_t height, int64_t width);
TN_OP(resize_bilinear, tn_tensor *x, int64_t height, int64_t width, bool align_corners);

/* ---- 9 Indexing: indices are i32 or i64 --------------------------------------------------------------
 *
 * One that is out of range is found when the operator runs, and is the error TN_E_INDEX then, which names the index
 * that is, its value and what is allowed - on a device with memory of its own, all but the place. */

TN_OP(gather, tn_tensor *x, int axis, tn_tensor *index); /* out[i][j] = x[index[i][j]][j] for axis 0 */
TN_OP(scatter_add, tn_tensor *x, int axis, tn_tensor *index, tn_tensor *src); /* x with src added; fixed order */
TN_OP(index_select, tn_tensor *x, int axis, tn_tensor *index); /* index is 1-d */
TN_OP(embedding, tn_tensor *weight, tn_tensor *index);         /* [v, d], any shape -> [.., d] */
TN_OP(one_hot, tn_tensor *index, int64_t classes); /* [..] -> [.., classes], f32; zeros for an index of no class */

/* ---- 10 Norms, softmax, losses, attention ---------------------------------------------------------------- */

TN_OP(softmax, tn_tensor *x, int axis);
TN_OP(log_softmax, tn_tensor *x, int axis);

typedef struct tn_norm_options {
    double eps;      /* 0 means 1e-5 */
    double momentum; /* batch_norm: running += momentum * (batch - running); 0 means 0.1 */
    int ndim;        /* layer_norm, rms_norm: how many trailing axes form a row; 0 means weight's, or 1 */
    bool sync;       /* batch_norm: the batch's statistics are those of all ranks (tn_ranks), by their items */
    size_t size;
} tn_norm_options;
/* Norms have x's dtype, f32 where it is no floating one, whatever those of weight and bias: f16 and bf16 may have
 * parameters of f32. Variances are, too: beyond its range, some 1e19 away from the mean, what comes out is bias.
 * (x - mean) / sqrt(var + eps) * weight + bias, biased variance, over the trailing axes. */
TN_OP(layer_norm, tn_tensor *x, tn_tensor *weight, tn_tensor *bias, const tn_norm_options *options);
/* x / sqrt(mean(x^2) + eps) * weight. */
TN_OP(rms_norm, tn_tensor *x, tn_tensor *weight, const tn_norm_options *options);
/* Per channel (the last axis) over all others. In training the batch's own statistics, and running_mean and
 * running_var (persistent, f32, may be NULL) are moved towards them, the variance unbiased; else those. The batch's are
 * summed in f64: outliers, at whatever place, a mean far from 0 and tiny or huge elements cost no digits. */
TN_OP(batch_norm, tn_tensor *x, tn_tensor *weight, tn_tensor *bias, tn_tensor *running_mean,
      tn_tensor *running_var, const tn_norm_options *options);
/* x [n, .., c]; each group of c / groups channels of one n is normalised together. */
TN_OP(group_norm, tn_tensor *x, int groups, tn_tensor *weight, tn_tensor *bias, const tn_norm_options *options);
/* In training zeroes each element with probability p, in [0, 1], and scales the rest by 1 / (1 - p); else x. */
TN_OP(dropout, tn_tensor *x, double p);

/* BATCH_MEAN, of kl_div alone: the sum divided by x's first extent. */
typedef enum tn_reduction {
    TN_REDUCE_MEAN,
    TN_REDUCE_SUM,
    TN_REDUCE_NONE,
    TN_REDUCE_BATCH_MEAN
} tn_reduction;
typedef struct tn_loss_options {
    tn_reduction reduction;
    double label_smoothing;    /* cross_entropy: in [0, 1) */
    bool use_ignore_index;     /* false: -100 is ignored, as in PyTorch */
    int64_t ignore_index;
    double delta;    /* huber_loss, and smooth_l1_loss, where PyTorch calls it beta: above 0; 0 means 1 */
    double margin;   /* triplet_margin_loss: 0 means 1 */
    bool swap;       /* triplet_margin_loss: the negative's distance is the smaller of those to the other two */
    bool log_target; /* kl_div: the target, too, is a logarithm */
    size_t size;
} tn_loss_options;
/* logits [.., classes], labels [..] of any integer type. The mean is over labels that are not ignored. cross_entropy also
 * takes floating labels of the logits' shape: shares of the classes, as mixup makes them, -sum(share * log_softmax(logits))
 * of each row, whose mean is over all rows; they may want a gradient, and there is no ignore_index. */
TN_OP(cross_entropy, tn_tensor *logits, tn_tensor *labels, const tn_loss_options *options);
TN_OP(nll_loss, tn_tensor *log_probs, tn_tensor *labels, const tn_loss_options *options);
TN_OP(mse_loss, tn_tensor *x, tn_tensor *target, const tn_loss_options *options);
TN_OP(l1_loss, tn_tensor *x, tn_tensor *target, const tn_loss_options *options);
TN_OP(bce_with_logits, tn_tensor *x, tn_tensor *target, const tn_loss_options *options);
/* With a = |x - target|: a^2 / 2 where a <= delta, else delta (a - delta / 2); smooth_l1_loss is that divided by
 * delta. */
TN_OP(huber_loss, tn_tensor *x, tn_tensor *target, const tn_loss_options *options);
TN_OP(smooth_l1_loss, tn_tensor *x, tn_tensor *target, const tn_loss_options *options);
/* target (ln target - x), x being a logarithm of probabilities; 0 where target is 0. */
TN_OP(kl_div, tn_tensor *x, tn_tensor *target, const tn_loss_options *options);
/* x y / (max(|x|, eps) max(|y|, eps)) along an axis, which goes; x and y broadcast. eps 0 means 1e-8. */
TN_OP(cosine_similarity, tn_tensor *x, tn_tensor *y, int axis, double eps);
/* max(d(anchor, positive) - d(anchor, negative) + margin, 0), d(x, y) = |x - y + 1e-6| along the last axis; all of one
 * shape. */
TN_OP(triplet_margin_loss, tn_tensor *anchor, tn_tensor *positive, tn_tensor *negative,
      const tn_loss_options *options);
/* Share of rows whose largest logit is at the label, a 0-d f32 without gradient. */
TN_OP(accuracy, tn_tensor *logits, tn_tensor *labels);

typedef struct tn_sdpa_options {
    bool causal;
    tn_tensor *mask;  /* broadcasts to [.., tq, tk]: bool (true takes part) or floating (added) */
    double scale;     /* 0 means 1 / sqrt(head size) */
    double dropout;
    size_t size;
} tn_sdpa_options;
/* softmax(q k^T * scale + mask) v, q [.., tq, d], k [.., tk, d], v [.., tk, dv]; causal: query i sees the keys up
 * to i. A query that sees nothing, because the mask hides all keys or adds -inf to them, gives zeros and passes no
 * gradient on, as in PyTorch. k and v may have fewer heads than q, [.., h, t, d]: a divisor of q's, whose head i goes by
 * their head i / (h / theirs) (grouped queries; PyTorch's enable_gqa). A scale that changes from step to step
 * compiles and plans nothing anew.
 *
 * One kernel, whose scores are in memory at no time, where d = dv, the mask wants no gradient, at most two axes stand
 * in front of the last two, and there is one for the dtype and d; else two products with a softmax between.
 *
 * In fused mode the same written out becomes that kernel: softmax over the last axis of a product with k's transpose,
 * mul_scalar or div_scalar, a where of a bool mask and -inf in either order or (on the CPU) an added mask, each of which
 * may be missing, then dropout or not, then the product with v. What sees nothing is NaN there, as softmax gives. It is
 * left as it is where the scale comes after the mask, or the mask wants a gradient, something else stands between,
 * the softmax has a value already, or a detach or a scope without gradients cuts a gradient off on the way; eager
 * mode never looks. A gradient by a value in between is TN_E_UNSUPPORTED. */
TN_OP(scaled_dot_product_attention, tn_tensor *q, tn_tensor *k, tn_tensor *v, const tn_sdpa_options *options);

typedef struct tn_rotary_options {
    double base;      /* 0 means 10000 */
    bool interleaved; /* pairs are elements 2 i and 2 i + 1, else i and i + d / 2 */
    size_t size;
} tn_rotary_options;
/* Rotary positions: x [.., t, d], in whose row j each pair (a, b), i from 0 to d / 2 - 1, becomes (a cos - b sin, b cos +
 * a sin) of the angle (start + j) base^(-2 i / d), an f32, of f64 an f64. start is a run-time number. */
TN_OP(rotary, tn_tensor *x, int64_t start, const tn_rotary_options *options);

/* The recurrence of torch.nn.LSTM over a sequence. gates [t, n, 4 h] is x W_ih^T + b_ih of all steps, weight [4 h, h]
 * and bias [4 h] are W_hh and b_hh, h and c [n, h] the first states; bias may be NULL, and the states, which are 0 then.
 * With i f g o the four parts of a step's gates + h weight^T + bias:
 *   c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c)
 * -> [t + 2, n, h]: h_0, h_1 .. h_t, and c_t. A step is a product and a kernel in each direction. */
TN_OP(lstm, tn_tensor *gates, tn_tensor *weight, tn_tensor *bias, tn_tensor *h, tn_tensor *c);
/* Of torch.nn.GRU: gates [t, n, 3 h], weight [3 h, h], bias [3 h] -> [t + 1, n, h]: h_0, h_1 .. h_t. With r z n the parts
 * of the gates and R Z N those of h weight^T + bias:
 *   z = sigmoid(z + Z);  n = tanh(n + sigmoid(r + R) N);  h = n + z (h - n) */
TN_OP(gru, tn_tensor *gates, tn_tensor *weight, tn_tensor *bias, tn_tensor *h);

#endif
