/* test_errors.c - what a user's mistake with an operator leads to: a status, one line that says where, and
 * nothing else. The operator returns NULL, and everything made from NULL is NULL without replacing the first
 * error. Start with shapes. */
#include <limits.h>

#include "errors_rig.h"
#include "include/tensor_nn.h"

TEST_IN(composites, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3)), *b = zeros(TN_SHAPE(2, 4)), *v = zeros(TN_SHAPE(7)), *t[2] = {a, b};
    tn_tensor *row = zeros(TN_SHAPE(1, 5, 3)), *image = zeros(TN_SHAPE(1, 4, 4, 3)), *got;
    fails(TN_E_SHAPE, "prelu", "weight [7]|x [2, 3]", tn_prelu(a, v));
    fails(TN_E_SHAPE, "glu", "[2, 3]|no two halves", tn_glu(a, 1));
    fails(TN_E_SHAPE, "swiglu", "gate [2, 3]|x [2, 4]", tn_swiglu(a, b));
    fails(TN_E_SHAPE, "tril", "[7]", tn_tril(v, 0));
    fails(TN_E_SHAPE, "huber_loss", "[2, 3]|[2, 4]", tn_huber_loss(a, b));
    fails(TN_E_ARG, "huber_loss", "delta is -1", tn_huber_loss(a, a, .delta = -1));
    fails(TN_E_ARG, "mse_loss", "reduction is 3", tn_mse_loss(a, a, .reduction = TN_REDUCE_BATCH_MEAN));
    fails(TN_E_SHAPE, "cosine_similarity", "[2, 3]|[2, 4]", tn_cosine_similarity(a, b, 1, 0));
    fails(TN_E_SHAPE, "triplet_margin_loss", "anchor [2, 3], positive [2, 3], negative [2, 4]",
          tn_triplet_margin_loss(a, a, b));
    fails(TN_E_SHAPE, "conv1d", "[1, 5, 3]|[4, 3, 2]", tn_conv1d(row, zeros(TN_SHAPE(4, 3, 2)), NULL));
    fails(TN_E_SHAPE, "conv1d", "[2, 3]|[n, t, c]", tn_conv1d(a, row, NULL));
    fails(TN_E_SHAPE, "conv_transpose2d", "[1, 4, 4, 3]|[2, 3, 3, 4]",
          tn_conv_transpose2d(image, zeros(TN_SHAPE(2, 3, 3, 4)), NULL));
    fails(TN_E_ARG, "conv_transpose2d", "output_pad 2|below stride",
          tn_conv_transpose2d(image, zeros(TN_SHAPE(3, 3, 3, 4)), NULL, .stride = 2, .output_pad = 2));
    fails(TN_E_SHAPE, "resize_nearest", "[2, 3]", tn_resize_nearest(a, 4, 4));
    fails(TN_E_SHAPE, "resize_bilinear", "[1, 4, 4, 3]|0 high", tn_resize_bilinear(image, 0, 4, false));
    fails(TN_E_SHAPE, "rotary", "[2, 3]|d even", tn_rotary(a, 0));
    fails(TN_E_ARG, "einsum", "ij,jk|2 tensors", tn_einsum("ij,jk,kl", 2, t));
    fails(TN_E_ARG, "einsum", "'ii,jk->k'|no letter twice", tn_einsum("ii,jk->k", 2, t));
    fails(TN_E_ARG, "einsum", "'ij,jk->il': 'l' of the result stands in no operand",
          tn_einsum("ij,jk->il", 2, t));
    fails(TN_E_SHAPE, "einsum", "operand 1 [2, 4]|jk", tn_einsum("ij,jk->ik", 2, t));
    fails(TN_E_ARG, "topk", "k is 4|[2, 3]", (tn_topk(a, 4, 1, false, &got, NULL), got));
    tn_tensor *kept = tn_keep(a);
    fails(TN_E_SHAPE, "assign_rows", "target [2, 3]|source [2, 4]",
          (tn_assign_rows(kept, 0, ints(TN_SHAPE(2)), b) ? NULL : a));
    tn_free(kept);
}

TEST_IN(shapes, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3)), *b = zeros(TN_SHAPE(2, 4)), *c = zeros(TN_SHAPE(5, 2, 3));
    tn_tensor *image = zeros(TN_SHAPE(1, 4, 4, 3)), *weight = zeros(TN_SHAPE(8, 3, 3, 2)),
              *v = zeros(TN_SHAPE(7));
    fails(TN_E_SHAPE, "add", "[2, 3]|[2, 4]", tn_add(a, b));
    fails(TN_E_SHAPE, "where", "[2, 3]|[2, 4]", tn_where(tn_gt(a, a), a, b));
    fails(TN_E_SHAPE, "matmul", "[2, 3]|[2, 4]", tn_matmul(a, b));
    fails(TN_E_SHAPE, "matmul", "[5, 2, 3]|[4, 3, 2]", tn_matmul(c, zeros(TN_SHAPE(4, 3, 2))));
    fails(TN_E_SHAPE, "affine", "[2, 3]|[2, 4]", tn_affine(a, b, NULL));
    fails(TN_E_SHAPE, "affine", "[7]", tn_affine(a, a, v));
    fails(TN_E_SHAPE, "reshape", "[2, 3]|[4, 2]", tn_reshape(a, TN_SHAPE(4, 2)));
    fails(TN_E_SHAPE, "reshape", "[2, 3]", tn_reshape(a, TN_SHAPE(-1, -1)));
    fails(TN_E_SHAPE, "reshape", "[2, 3]", tn_reshape(a, TN_SHAPE(4, -1)));
    fails(TN_E_SHAPE, "expand", "[2, 3]|[2, 6]", tn_expand(a, TN_SHAPE(2, 6)));
    fails(TN_E_SHAPE, "expand", "[5, 2, 3]", tn_expand(c, TN_SHAPE(2, 3)));
    fails(TN_E_SHAPE, "expand", "[5, 2, 3]|[]", tn_expand(c, TN_SCALAR)); /* no axis to compare */
    fails(TN_E_SHAPE, "expand", "-1 keeps|axis 0 is new|[2, 3]", tn_expand(a, TN_SHAPE(-1, 2, 3)));
    fails(TN_E_SHAPE, "expand", "axis 1 is new|[2, 3]", tn_expand(a, TN_SHAPE(4, -1, 2, 3)));
    fails(TN_E_SHAPE, "expand", "extent -2 of axis 1|-1", tn_expand(a, TN_SHAPE(2, -2)));
    assert_int_equal(tn_dim(tn_expand(a, TN_SHAPE(4, -1, -1)), 1), 2);
    fails(TN_E_SHAPE, "concat", "[2, 3]|[2, 4]", tn_concat(2, (tn_tensor *[]){a, b}, 0));
    fails(TN_E_SHAPE, "stack", "[2, 3]|[2, 4]", tn_stack(2, (tn_tensor *[]){a, b}, 0));
    fails(TN_E_SHAPE, "conv2d", "[1, 4, 4, 3]|[8, 3, 3, 2]|wanted [n, h, w, c]",
          tn_conv2d(image, weight, NULL, .pad = 1));
    fails(TN_E_SHAPE, "conv2d", "[2, 3]", tn_conv2d(a, weight, NULL, .pad = 1));
    fails(TN_E_SHAPE, "conv2d", "[1, 4, 4, 3]|[8, 0, 3, 3]",
          tn_conv2d(image, zeros(TN_SHAPE(8, 0, 3, 3)), NULL, .pad = 1));
    fails(TN_E_SHAPE, "conv2d", "[1, 4, 4, 0]|[8, 3, 3, 0]",
          tn_conv2d(zeros(TN_SHAPE(1, 4, 4, 0)), zeros(TN_SHAPE(8, 3, 3, 0)), NULL, .pad = 1));
    fails(TN_E_SHAPE, "conv2d", "[1, 4, 4, 3]",
          tn_conv2d(image, zeros(TN_SHAPE(2, 7, 7, 3)), NULL, .stride = 1));
    fails(TN_E_SHAPE, "max_pool2d", "[2, 3]", tn_max_pool2d(a, 2, .stride = 1));
    fails(TN_E_SHAPE, "layer_norm", "[2, 3]|[7]", tn_layer_norm(a, v, NULL, .eps = 0));
    fails(TN_E_SHAPE, "cross_entropy", "[2, 3]|[7]",
          tn_cross_entropy(a, ints(TN_SHAPE(7)), .reduction = TN_REDUCE_MEAN));
    fails(TN_E_SHAPE, "gather", "[2, 3]|[4]", tn_gather(a, 0, ints(TN_SHAPE(4))));
    fails(TN_E_SHAPE, "index_select", "[2, 2]", tn_index_select(a, 0, ints(TN_SHAPE(2, 2))));
    fails(TN_E_SHAPE, "mse_loss", "[2, 3]|[2, 4]", tn_mse_loss(a, b, .reduction = TN_REDUCE_MEAN));
    fails(TN_E_SHAPE, "scaled_dot_product_attention", "[2, 3]|[2, 4]",
          tn_scaled_dot_product_attention(a, b, b, .scale = 0));
    fails(TN_E_SHAPE, "max", "[0, 3]", tn_max(zeros(TN_SHAPE(0, 3)), TN_AXES(0), false));
}

TEST_IN(arguments, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3)), *parts[2];
    fails(TN_E_ARG, "sum", "2|[2, 3]", tn_sum(a, TN_AXES(2), false));
    fails(TN_E_ARG, "sum", "twice", tn_sum(a, TN_AXES(0, -2), false));
    fails(TN_E_ARG, "softmax", "-3|[2, 3]", tn_softmax(a, -3));
    fails(TN_E_ARG, "transpose", "5|[2, 3]", tn_transpose(a, 0, 5));
    fails(TN_E_ARG, "permute", "2", tn_permute(a, TN_AXES(0, 0)));
    fails(TN_E_ARG, "permute", "2", tn_permute(a, TN_AXES(1, 0, 2)));
    fails(TN_E_ARG, "slice", "step", tn_slice(a, 0, 0, 2, 0));
    fails(TN_E_INDEX, "select", "2|2", tn_select(a, 0, 2));
    fails(TN_E_ARG, "unsqueeze", "4", tn_unsqueeze(a, 4));
    fails(TN_E_ARG, "pad", "-1", tn_pad(a, 0, -1, 0, 0));
    fails(TN_E_ARG, "dropout", "1.5", tn_dropout(a, 1.5));
    fails(TN_E_ARG, "layer_norm", "weight|[2, 3]", tn_layer_norm(a, zeros(TN_SCALAR), NULL));
    fails(TN_E_ARG, "rms_norm", "3 trailing|[2, 3]", tn_rms_norm(a, NULL, .ndim = 3));
    fails(TN_E_SHAPE, "group_norm", "2|[1, 2, 3]",
          tn_group_norm(zeros(TN_SHAPE(1, 2, 3)), 2, NULL, NULL, .eps = 0));
    fails(TN_E_ARG, "max_pool2d", "0", tn_max_pool2d(zeros(TN_SHAPE(1, 2, 2, 1)), 0, .stride = 1));
    fails(TN_E_ARG, "conv2d", "stride",
          tn_conv2d(zeros(TN_SHAPE(1, 2, 2, 1)), zeros(TN_SHAPE(1, 1, 1, 1)), NULL, .stride = -1));
    fails(TN_E_ARG, "arange", "0", tn_arange(S, 0, 1, 0, TN_F32));
    fails(TN_E_SHAPE, "zeros", "-1", tn_zeros(S, TN_F32, TN_SHAPE(2, -1)));
    fails(TN_E_SHAPE, "zeros", "9", tn_zeros(S, TN_F32, TN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1)));
    fails(TN_E_DTYPE, "cast", "99", tn_cast(a, (tn_dtype)99));
    assert_true(tn_split(a, 2, 1, parts) < 0);
    says(tn_error_text(S), "split|[2, 3]", __FILE__, __LINE__);
}

/* Values that no enumeration has, lists that are not there, numbers that mean nothing. */
TEST_IN(nonsense, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3)), *v = zeros(TN_SHAPE(2)), *labels = ints(TN_SHAPE(2));
    const tn_reduction strange = (tn_reduction)77;
    fails(TN_E_ARG, "cross_entropy", "reduction|77", tn_cross_entropy(a, labels, .reduction = strange));
    fails(TN_E_ARG, "nll_loss", "reduction|77", tn_nll_loss(a, labels, .reduction = strange));
    fails(TN_E_ARG, "mse_loss", "reduction|77", tn_mse_loss(v, v, .reduction = strange));
    fails(TN_E_ARG, "l1_loss", "reduction|-1", tn_l1_loss(v, v, .reduction = (tn_reduction)-1));
    fails(TN_E_ARG, "bce_with_logits", "reduction|77", tn_bce_with_logits(v, v, .reduction = strange));
    fails(TN_E_NULL, "sum", "axes is NULL|2", tn_sum(a, 2, NULL, false));
    fails(TN_E_ARG, "mean", "naxes is -1", tn_mean(a, -1, NULL, false));
    fails(TN_E_ARG, "var", "naxes is 9", tn_var(a, 9, (const int[9]){0}, false, 1));
    fails(TN_E_NULL, "flip", "axes is NULL|1", tn_flip(a, 1, NULL));
    fails(TN_E_ARG, "flip", "axis -1 is named twice", tn_flip(a, TN_AXES(1, -1)));
    fails(TN_E_NULL, "reshape", "2 axes|NULL", tn_reshape(a, 2, NULL));
    fails(TN_E_NULL, "permute", "2 axes|NULL", tn_permute(a, 2, NULL));
    fails(TN_E_NULL, "zeros", "2 axes|NULL", tn_zeros(S, TN_F32, 2, NULL));
    fails(TN_E_ARG, "layer_norm", "eps|-1", tn_layer_norm(a, NULL, NULL, .eps = -1));
    fails(TN_E_ARG, "rms_norm", "eps|-1e-05", tn_rms_norm(a, NULL, .eps = -1e-5));
    fails(TN_E_ARG, "group_norm", "eps|nan", tn_group_norm(a, 1, NULL, NULL, .eps = (double)NAN));
    fails(TN_E_ARG, "batch_norm", "eps|-1", tn_batch_norm(a, NULL, NULL, NULL, NULL, .eps = -1));
    fails(TN_E_ARG, "batch_norm", "momentum|-2", tn_batch_norm(a, NULL, NULL, NULL, NULL, .momentum = -2));
    fails(TN_E_DTYPE, "scaled_dot_product_attention", "mask|i64",
          tn_scaled_dot_product_attention(a, a, a, .mask = ints(TN_SHAPE(2, 2))));
    fails(TN_E_ARG, "full", "1e+30|i32", tn_full(S, 1e30, TN_I32, TN_SHAPE(2)));
    fails(TN_E_ARG, "full", "nan|i64", tn_full(S, NAN, TN_I64, TN_SHAPE(2)));
    fails(TN_E_ARG, "full", "9.22337e+18|i64", tn_full(S, 0x1p63, TN_I64, TN_SHAPE(2)));
    fails(TN_E_ARG, "full", "256|u8", tn_full(S, 256, TN_U8, TN_SHAPE(2)));
    assert_true(tn_item(tn_full(S, -2.5, TN_I32, TN_SHAPE(1))) == -2);
    assert_true(tn_item(tn_full(S, -1, TN_U8, TN_SHAPE(1))) == 255);
    assert_true(tn_item(tn_full(S, NAN, TN_BOOL, TN_SHAPE(1))) == 1);
    assert_true(tn_item(tn_full(S, -0x1p63, TN_I64, TN_SHAPE(1))) == -0x1p63);
    fails(TN_E_ARG, "randint", "1000|u8", tn_randint(S, 0, 1000, TN_U8, TN_SHAPE(2)));
    fails(TN_E_ARG, "randint", "-1|u8", tn_randint(S, -1, 2, TN_U8, TN_SHAPE(2)));
    fails(TN_E_ARG, "randint", "3|bool", tn_randint(S, 0, 3, TN_BOOL, TN_SHAPE(2)));
    fails(TN_E_ARG, "randint", "i32", tn_randint(S, INT32_MAX, (int64_t)INT32_MAX + 2, TN_I32, TN_SHAPE(2)));
    fails(TN_E_ARG, "randint", "2^24", tn_randint(S, INT64_MIN, INT64_MAX, TN_I64, TN_SHAPE(2)));
    assert_non_null(tn_randint(S, 0, 256, TN_U8, TN_SHAPE(2)));
    assert_true(tn_item(tn_clamp(tn_full(S, 7, TN_I32, TN_SHAPE(1)), -INFINITY, 1e30)) == 7);
    assert_non_null(tn_randint(S, INT64_MAX - 3, INT64_MAX, TN_I64, TN_SHAPE(2)));
}

TEST_IN(dtypes, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3)), *i = ints(TN_SHAPE(2, 3));
    fails(TN_E_DTYPE, "matmul", "bool", tn_matmul(i, tn_ones(S, TN_BOOL, TN_SHAPE(3, 2))));
    fails(TN_E_DTYPE, "gather", "f32", tn_gather(a, 0, a));
    fails(TN_E_DTYPE, "embedding", "f32", tn_embedding(a, a));
    fails(TN_E_DTYPE, "cross_entropy", "f32",
          tn_cross_entropy(a, zeros(TN_SHAPE(2)), .reduction = TN_REDUCE_MEAN));
    fails(TN_E_ARG, "cross_entropy", "shares|ignore_index", tn_cross_entropy(a, a, .use_ignore_index = true));
    fails(TN_E_DTYPE, "one_hot", "f32", tn_one_hot(a, 3));
    fails(TN_E_DTYPE, "where", "condition must be bool|f32", tn_where(a, a, a));
    fails(TN_E_DTYPE, "where", "condition must be bool|i64", tn_where(i, a, a));
    fails(TN_E_DTYPE, "rand", "i32", tn_rand(S, TN_I32, TN_SHAPE(2)));
}

/* An operator given NULL returns NULL; the first NULL is reported, those that follow from it are not. */
TEST_IN(nulls, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2));
    fails(TN_E_NULL, "add", "2", tn_add(a, NULL));
    fails(TN_E_NULL, "matmul", "1", tn_matmul(NULL, a));
    fails(TN_E_NULL, "where", "argument 1 (condition)", tn_where(NULL, a, a));
    fails(TN_E_NULL, "where", "argument 2 (x)", tn_where(tn_gt(a, a), NULL, a));
    fails(TN_E_NULL, "where", "argument 3 (y)", tn_where(tn_gt(a, a), a, NULL));
    fails(TN_E_NULL, "concat", "tensor 1 of xs is NULL", tn_concat(3, (tn_tensor *[]){a, NULL, a}, 0));
    fails(TN_E_NULL, "stack", "tensor 2 of xs is NULL", tn_stack(3, (tn_tensor *[]){a, a, NULL}, 0));
    assert_null(tn_relu(NULL));
    assert_null(tn_add(NULL, NULL));
    /* a list without a tensor tells no session: NULL, and nobody to report to, as the header says */
    assert_null(tn_concat(0, (tn_tensor *[]){a}, 0));
    assert_null(tn_concat(-1, (tn_tensor *[]){a}, 0));
    assert_null(tn_stack(2, NULL, 0));
    assert_null(tn_stack(2, (tn_tensor *[]){NULL, NULL}, 0));
    assert_int_equal(tn_error(S), TN_OK);
    tn_tensor *many[256];
    for (int i = 0; i < 256; i++) many[i] = a;
    fails(TN_E_ARG, "concat", "256 tensors", tn_concat(256, many, 0));
    assert_int_equal(tn_ndim(NULL), -1);
    assert_int_equal(tn_numel(NULL), -1);
    assert_int_equal(tn_dtype_of(NULL), TN_DTYPE_COUNT);
    assert_string_equal(tn_name(NULL), "");
    assert_true(isnan(tn_item(NULL)));
    assert_true(tn_read(NULL, TN_F32, &(float){0}, 4) < 0);
    assert_true(tn_backward(NULL) < 0);
    assert_true(tn_assign(NULL, NULL) < 0);
    tn_free(NULL);
    assert_int_equal(tn_close(NULL), 0);
    assert_null(tn_zeros(NULL, TN_F32, TN_SHAPE(2)));
    tn_clear_error(S);

    tn_tensor *bad = tn_add(a, zeros(TN_SHAPE(3)));
    int line = __LINE__ - 1;
    tn_tensor *after = tn_mul(tn_relu(bad), a);
    assert_null(after);
    expect_error(after, TN_E_SHAPE, "add", "[2]|[3]", line);
}

TEST_IN(stale, setup, teardown)
{
    tn_tensor *kept = tn_exp(zeros(TN_SHAPE(2)));
    assert_non_null(kept);
    tn_step_end(S);
    tn_step_begin(S);
    fails(TN_E_STALE, "relu", "argument 1 (x)", tn_relu(kept));
    fails(TN_E_STALE, "affine", "argument 2 (weight)", tn_affine(zeros(TN_SHAPE(2)), kept, NULL));
    fails(TN_E_STALE, "layer_norm", "argument 3 (bias)", tn_layer_norm(zeros(TN_SHAPE(2)), NULL, kept));
    fails(TN_E_STALE, "concat", "tensor 1 of xs", tn_concat(2, (tn_tensor *[]){zeros(TN_SHAPE(2)), kept}, 0));
    fails(TN_E_STALE, "stack", "tensor 0 of xs", tn_stack(2, (tn_tensor *[]){kept, zeros(TN_SHAPE(2))}, 0));
    tn_set_name(kept, "x");
    expect_error(NULL, TN_E_STALE, "set_name", "", __LINE__ - 1);
    tn_requires_grad(kept, true);
    expect_error(NULL, TN_E_STALE, "requires_grad", "", __LINE__ - 1);
    tn_assign(kept, zeros(TN_SHAPE(2)));
    expect_error(NULL, TN_E_STALE, "assign", "argument 1 (target)", __LINE__ - 1);
    assert_int_equal(tn_ndim(kept), -1);
    for (int i = 0; i < 50; i++) assert_non_null(zeros(TN_SHAPE(2))); /* its slot serves another by now */
    fails(TN_E_STALE, "add", "argument 2 (y)", tn_add(zeros(TN_SHAPE(2)), kept));
    assert_true(isnan(tn_item(kept)));
    failed(S, TN_E_STALE, "");

    tn_step_end(S);
    tn_tensor *p = tn_zeros(S, TN_F32, TN_SHAPE(2));
    tn_free(p);
    tn_step_begin(S);
    fails(TN_E_STALE, "exp", "argument 1 (x) was used after it was freed", tn_exp(p));
    tn_tensor *gone = tn_exp(zeros(TN_SHAPE(2)));
    tn_step_end(S);
    tn_step_begin(S);
    fails(TN_E_STALE, "exp", "argument 1 (x) was used after its step ended", tn_exp(gone));
    tn_step_end(S);
    tn_tensor *init = tn_zeros(S, TN_F32, TN_SHAPE(2));
    assert_non_null(tn_param(S, "w", init));
    tn_set_name(init, "x");
    expect_error(NULL, TN_E_STALE, "set_name", "by what took it over, or, of a batch", __LINE__ - 1);
    tn_step_begin(S);
}

/* What an operator makes between two steps goes when the next one begins: nobody ended a step then. */
TEST_IN(made_outside_a_step, setup, teardown)
{
    tn_tensor *w = NULL;
    for (int k = 0; k < 4; k++) { /* the later ones with a step before that may be repeated */
        tn_step_end(S);
        if (!w) w = tn_ones(S, TN_F32, TN_SHAPE(2));
        tn_tensor *doubled = tn_mul_scalar(w, 2), *kept = tn_keep(doubled);
        assert_true(tn_item(tn_sum(doubled, TN_ALL, false)) == 4);
        tn_step_begin(S);
        assert_non_null(tn_exp(kept));
        fails(TN_E_STALE, "exp", "argument 1 (x) was made by an operator outside a step|tn_keep",
              tn_exp(doubled));
        tn_step_end(S);
        tn_free(kept);
        tn_step_begin(S);
        tn_tensor *inside = tn_mul_scalar(w, 2);
        assert_true(tn_item(tn_sum(inside, TN_ALL, false)) == 4);
        assert_int_equal(tn_step_end(S), 0);
        fails(TN_E_STALE, "exp", "argument 1 (x) was used after its step ended", tn_exp(inside));
        tn_step_begin(S);
    }
}

/* A tensor's name stands beside its shape, and with it a layer's. */
TEST_IN(names, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3)), *b = zeros(TN_SHAPE(2, 4));
    assert_int_equal(tn_set_name(a, "hidden"), 0);
    assert_int_equal(tn_set_name(b, "query"), 0);
    fails(TN_E_SHAPE, "add", "'hidden' [2, 3]|'query' [2, 4]", tn_add(a, b));
    fails(TN_E_SHAPE, "matmul", "'hidden' [2, 3]|'query' [2, 4]", tn_matmul(a, b));
    fails(TN_E_SHAPE, "reshape", "'hidden' [2, 3]|[4, 2]", tn_reshape(a, TN_SHAPE(4, 2)));
    fails(TN_E_SHAPE, "concat", "'hidden' [2, 3]|'query' [2, 4]", tn_concat(2, (tn_tensor *[]){a, b}, 0));
    fails(TN_E_SHAPE, "mse_loss", "'hidden' [2, 3]|'query' [2, 4]",
          tn_mse_loss(a, b, .reduction = TN_REDUCE_SUM));
    fails(TN_E_ARG, "softmax", "'hidden' [2, 3]", tn_softmax(a, 2));
    tn_step_end(S);
    tn_linear *fc = tn_linear_new(S, "fc", 5, 2);
    tn_conv *conv = tn_conv2d_new(S, "conv", 3, 8, 3);
    tn_norm *norm = tn_layer_norm_new(S, "block.norm", 4);
    tn_multi_head_attention *mha = tn_multi_head_attention_new(S, "mha", 8, 2);
    tn_step_begin(S);
    a = zeros(TN_SHAPE(2, 3));
    fails(TN_E_SHAPE, "affine", "[2, 3]|'fc.weight' [2, 5]", tn_linear_forward(fc, a));
    fails(TN_E_SHAPE, "conv2d", "[1, 4, 4, 2]|'conv.weight'",
          tn_conv2d_forward(conv, zeros(TN_SHAPE(1, 4, 4, 2))));
    fails(TN_E_SHAPE, "norm_forward", "3 features|layer 'block.norm' 4", tn_norm_forward(norm, a));
    fails(TN_E_SHAPE, "multi_head_attention_forward", "layer 'mha'|8",
          tn_multi_head_attention_forward(mha, zeros(TN_SHAPE(1, 2, 3))));
}

TEST_IN(two_sessions, setup, teardown)
{
    tn_session *other = tn_open(.device = TN_REF, .mode = TN_EAGER, .log = quiet);
    assert_non_null(other);
    tn_tensor *a = zeros(TN_SHAPE(2)), *b = tn_zeros(other, TN_F32, TN_SHAPE(2));
    fails(TN_E_SESSION, "add", "two sessions: argument 2 (y)|tn_from", tn_add(a, b));
    fails(TN_E_SESSION, "concat", "two sessions: tensor 1 of xs", tn_concat(2, (tn_tensor *[]){a, b}, 0));
    assert_int_equal(tn_error(other), TN_OK);
    assert_int_equal(tn_close(other), 0);
}

TEST_IN(reading, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3));
    float v[6];
    assert_true(isnan(tn_item(a)));
    failed(S, TN_E_SHAPE, "[2, 3]");
    assert_true(tn_read(a, TN_F32, v, 20) < 0);
    assert_non_null(strstr(tn_error_text(S), "20"));
    tn_clear_error(S);
    tn_read(a, TN_F32, NULL, 24);
    expect_error(NULL, TN_E_NULL, "read", "out is NULL", __LINE__ - 1);
    assert_int_equal(tn_read(a, TN_F32, v, 24), 0);
}

TEST_IN(differentiation, setup, teardown)
{
    tn_tensor *a, *i = ints(TN_SHAPE(2)), *g = NULL;
    const double six[6] = {0};
    a = tensor_of(S, six, TN_F32, TN_SHAPE(2, 3));
    assert_int_equal(tn_requires_grad(a, true), 0);
    assert_true(tn_backward(tn_exp(a)) < 0); /* not one element */
    failed(S, TN_E_SHAPE, "[2, 3]|test_errors.c");
    assert_true(tn_backward(tn_sum(zeros(TN_SHAPE(2)), TN_ALL, false)) < 0); /* nothing requires a gradient */
    tn_clear_error(S);
    assert_true(tn_requires_grad(tn_exp(a), true) < 0); /* not a leaf */
    tn_clear_error(S);
    assert_true(tn_requires_grad(i, true) < 0); /* integers have no gradient */
    tn_clear_error(S);
    tn_grad(tn_sum(a, TN_ALL, false), 1, NULL, &g);
    expect_error(NULL, TN_E_NULL, "grad", "inputs is NULL", __LINE__ - 1);
    tn_grad(tn_sum(a, TN_ALL, false), 1, &a, NULL);
    expect_error(NULL, TN_E_NULL, "grad", "grads is NULL", __LINE__ - 1);
    tn_grad(tn_sum(a, TN_ALL, false), 2, (tn_tensor *[]){a, NULL}, (tn_tensor *[2]){NULL, NULL});
    expect_error(NULL, TN_E_NULL, "grad", "tensor 1 of inputs is NULL", __LINE__ - 1);
    assert_int_equal(tn_grad(tn_sum(a, TN_ALL, false), 1, &a, &g), 0);
    assert_non_null(g);
}

/* More elements, or bytes, than can be counted: an operator's result as much as a new tensor's shape. */
TEST_IN(shapes_that_cannot_be_counted, setup, teardown)
{
    const int64_t wide = (int64_t)1 << 31;
    tn_tensor *one = tn_ones(S, TN_F32, TN_SHAPE(1)), *got[5];
    got[0] = tn_expand(tn_ones(S, TN_F32, TN_SCALAR), TN_SHAPE(wide, wide));
    null_with(S, TN_E_SHAPE, "is not possible", got[0]);
    got[1] = tn_one_hot(tn_zeros(S, TN_I32, TN_SHAPE(4)), (int64_t)1 << 60);
    got[2] = tn_error(S) == TN_E_SHAPE ? NULL : one;
    tn_clear_error(S);
    got[3] = tn_pad(one, 0, (int64_t)1 << 61, (int64_t)1 << 61, 0);
    tn_clear_error(S);
    got[4] = tn_mul(tn_expand(one, TN_SHAPE(wide, 1)), tn_expand(one, TN_SHAPE(1, wide)));
    tn_clear_error(S);
    for (int i = 1; i < 5; i++) assert_null(got[i]);
}

/* Arguments near the ends of their types: an error or the right answer, and no sum that wraps around. */
TEST_IN(ends_of_the_integers, setup, teardown)
{
    const double values[4] = {1, 2, 3, 4};
    double got[4];
    tn_tensor *x = tensor_of(S, values, TN_F32, TN_SHAPE(4)), *image = zeros(TN_SHAPE(1, 4, 4, 1));
    assert_int_equal(tn_read(tn_slice(x, 0, 1, TN_END, INT64_MAX), TN_F64, got, 8), 0);
    assert_true(got[0] == 2);
    assert_int_equal(tn_read(tn_slice(x, 0, 2, TN_END, INT64_MIN), TN_F64, got, 8), 0);
    assert_true(got[0] == 3);
    assert_int_equal(tn_numel(tn_slice(x, 0, INT64_MIN, INT64_MAX - 1, 1)), 4);
    assert_int_equal(tn_numel(tn_slice(x, 0, INT64_MAX, INT64_MIN, -1)), 4);
    assert_int_equal(tn_numel(tn_slice(x, 0, INT64_MAX, INT64_MIN, INT64_MIN)), 1);
    assert_int_equal(tn_numel(tn_slice(x, 0, 3, 3, INT64_MIN)), 0);
    tn_tensor *whole = tn_full(S, 3, TN_I32, TN_SHAPE(4));
    fails(TN_E_ARG, "pad", "1e+10|i32", tn_pad(whole, 0, 1, 1, 1e10));
    fails(TN_E_ARG, "pad", "nan|i32", tn_pad(whole, 0, 1, 1, NAN));
    fails(TN_E_SHAPE, "pad", "[4]|9223372036854775807", tn_pad(x, 0, INT64_MAX, INT64_MAX, 0));
    fails(TN_E_SHAPE, "pad", "9223372036854775804", tn_pad(x, 0, 0, INT64_MAX - 3, 0));
    fails(TN_E_SHAPE, "reshape", "[0]",
          tn_reshape(zeros(TN_SHAPE(0)), TN_SHAPE(INT64_MAX, INT64_MAX, INT64_MAX)));
    fails(TN_E_ARG, "max_pool2d", "2147483647", tn_max_pool2d(image, 3, .pad = INT_MAX));
    fails(TN_E_ARG, "max_pool2d", "1073741824", tn_max_pool2d(image, 2, .pad = 1 << 30));
    fails(TN_E_ARG, "avg_pool2d", "2147483647", tn_avg_pool2d(image, INT_MAX, .pad = INT_MAX / 2));
    tn_tensor *far = tn_max_pool2d(image, 2, .stride = INT_MAX, .ceil_mode = true);
    assert_int_equal(tn_numel(far), 1);
    assert_true(tn_item(far) == 0);
    tn_tensor *w = zeros(TN_SHAPE(1, 2, 2, 1));
    fails(TN_E_SHAPE, "conv2d", "larger", tn_conv2d(image, w, NULL, .dilation = INT_MAX));
    assert_int_equal(tn_dim(tn_conv2d(image, w, NULL, .stride = INT_MAX), 1), 1);
    tn_tensor *long_window = tn_expand(zeros(TN_SHAPE(1, 1, 1, 1)), TN_SHAPE(1, (int64_t)1 << 40, 1, 1));
    fails(TN_E_SHAPE, "conv2d", "larger", tn_conv2d(image, long_window, NULL, .dilation = INT_MAX));
}

TEST_AGAIN(made_outside_a_step, setup_cpu, teardown)
TEST_AGAIN(names, setup_cpu, teardown)
TEST_AGAIN(shapes_that_cannot_be_counted, setup_cpu, teardown)
TEST_AGAIN(ends_of_the_integers, setup_cpu, teardown)
RUN_TESTS(NULL, NULL)
