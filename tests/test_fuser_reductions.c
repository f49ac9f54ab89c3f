/* test_fuser_reductions.c - kernels that reduce rows, columns, both and everything, against the reference
 * interpreter, with the number of launches each graph may take. Sizes are chosen so that tails, tiles, parts
 * and second stages all occur. Start with any test: each is a graph and a case. */
#include "fuser_graphs.h"

/* ---- rows ---- */

GRAPH(softmax_last)
{
    root[0] = softmax(g, in[0], in[0]->ndim - 1);
    return 1;
}

GRAPH(softmax_first)
{
    root[0] = softmax(g, in[0], 0);
    return 1;
}

GRAPH(softmax_middle)
{
    root[0] = softmax(g, in[0], 1);
    return 1;
}

TEST(softmax_is_one_kernel)
{
    static const int64_t width[] = {1, 2, 7, 10, 31, 32, 33, 64, 100, 1000, 4097, 20000};
    for (size_t i = 0; i < sizeof width / sizeof *width; i++)
        CHECK(softmax_last, 1, 2e-6, {TN_F32, 2, {33, width[i]}, -5, 5});
    /* rows that lie within what the short form of exp serves, rows that do not, and both */
    CHECK(softmax_last, 1, 2e-6, {TN_F32, 2, {33, 1000}, -40, 40});
    CHECK(softmax_last, 1, 2e-6, {TN_F32, 2, {33, 1000}, -200, 200});
    CHECK(softmax_last, 1, 2e-6, {TN_F32, 2, {99, 300}, -43.7, 43.7});
    CHECK(softmax_last, 1, 1e-2, {TN_BF16, 2, {9, 50}, -5, 5});
    CHECK(softmax_last, 1, 1e-2, {TN_BF16, 2, {9, 500}, -5, 5});
    CHECK(softmax_last, 1, 1e-14, {TN_F64, 3, {3, 4, 70}, -5, 5});
    CHECK(softmax_middle, 1, 2e-6, {TN_F32, 3, {5, 17, 300}, -5, 5});
    CHECK(softmax_first, 1, 2e-6, {TN_F32, 2, {50, 600}, -5, 5});
    CHECK(softmax_last, 1, 2e-6, {TN_F32, 1, {513}, -5, 5});
}

/* layer_norm over the last axis, then gelu; statistics and the normed value are outputs too */
GRAPH(norm_gelu)
{
    tn_tensor *x = in[0];
    uint32_t last = 1u << (x->ndim - 1);
    tn_tensor *m = mean(g, x, last), *d = op2(TN_OP_sub, x, back(m, x));
    tn_tensor *r = op1(TN_OP_rsqrt, op2(TN_OP_add, mean(g, op1(TN_OP_square, d), last), num(g, 1e-5)));
    tn_tensor *y = op2(TN_OP_add, op2(TN_OP_mul, op2(TN_OP_mul, d, back(r, x)), in[1]), in[2]);
    tn_tensor *e = op1(TN_OP_erf, op2(TN_OP_mul, y, num(g, 0.70710678118654752)));
    root[0] = op2(TN_OP_mul, op2(TN_OP_mul, y, num(g, 0.5)), op2(TN_OP_add, e, num(g, 1)));
    root[1] = m;
    root[2] = r;
    root[3] = y;
    return 4;
}

TEST(norm_and_activation_are_one_kernel)
{
    static const int64_t width[] = {6, 48, 768, 1021, 9000};
    for (size_t i = 0; i < sizeof width / sizeof *width; i++)
        CHECK(norm_gelu, 1, 4e-6, {TN_F32, 2, {19, width[i]}, -2, 3}, {TN_F32, 1, {width[i]}, 0.5, 1.5},
              {TN_F32, 1, {width[i]}, -1, 1});
    CHECK(norm_gelu, 1, 4e-6, {TN_F32, 3, {4, 5, 96}, -2, 3}, {TN_F32, 1, {96}, 0.5, 1.5},
          {TN_F32, 1, {96}, -1, 1});
}

/* groups of channels: reduce two axes that are not neighbours, reshape inside the kernel */
GRAPH(group_norm)
{
    tn_tensor *x = in[0]; /* [n, h, w, c] */
    int64_t n = x->shape[0], hw = x->shape[1] * x->shape[2], c = x->shape[3];
    tn_tensor *s = tn_mk_reshape(x, 4, (int64_t[]){n, hw, 4, c / 4});
    tn_tensor *m = mean(g, s, 2 | 8), *d = op2(TN_OP_sub, s, back(m, s));
    tn_tensor *r = op1(TN_OP_rsqrt, op2(TN_OP_add, mean(g, op1(TN_OP_square, d), 2 | 8), num(g, 1e-5)));
    tn_tensor *y = tn_mk_reshape(op2(TN_OP_mul, d, back(r, s)), 4, x->shape);
    root[0] = op1(TN_OP_relu, op2(TN_OP_mul, y, in[1]));
    root[1] = m;
    root[2] = tn_mk_reduce(TN_OP_reduce_sum, root[0], 2 | 4); /* of single channels */
    root[3] = tn_mk_reduce(TN_OP_reduce_max, y, 2 | 4);
    return 2;
}

GRAPH(group_norm_and_channels) { return 2 + group_norm(g, in, root); }

/* Whatever a group has of channels, sums of groups and of single channels are had in the same pass: groups
 * that are shorter than a vector, no multiple of one, longer. */
TEST(group_norm_reshapes_inside_one_kernel)
{
    static const int64_t channels[] = {4, 8, 20, 32, 52, 64, 96, 272};
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        const int64_t c = channels[i];
        for (int k = 0; k < 2; k++)
            CHECK(k ? group_norm_and_channels : group_norm, 1, 4e-6, {TN_F32, 4, {3, 5, 7 + c % 5, c}, -2, 3},
                  {TN_F32, 1, {c}, 0.5, 1.5});
    }
}

/* What is known of groups, over windows: read for each column, not walked for each group. */
GRAPH(group_windows)
{
    tn_tensor *d = op2(TN_OP_mul, op2(TN_OP_sub, in[0], in[1]), in[2]); /* [n, h, 2, w, 2, groups, c] */
    root[0] = tn_mk_reduce(TN_OP_reduce_max, d, 4 | 16);
    root[1] = op2(TN_OP_sub, d, back(root[0], d));
    return 2;
}

TEST(windows_read_what_is_known_of_groups_for_each_column)
{
    for (int c = 3; c < 6; c++)
        CHECK(group_windows, 1, 4e-6, {TN_F32, 7, {2, 3, 2, 5, 2, 7, c}, -2, 3},
              {TN_F32, 7, {2, 1, 1, 1, 1, 7, 1}, -1, 1}, {TN_F32, 7, {2, 1, 1, 1, 1, 7, 1}, 0.5, 1});
}

/* gradients of layer_norm: dx by rows, those of weight and bias by columns, nothing full-size in between */
GRAPH(norm_backward)
{
    tn_tensor *x = in[0], *gy = in[1], *w = in[2], *m = in[3], *r = in[4];
    tn_tensor *xhat = op2(TN_OP_mul, op2(TN_OP_sub, x, m), r), *gw = op2(TN_OP_mul, gy, w);
    tn_tensor *a = mean(g, gw, 2), *b = mean(g, op2(TN_OP_mul, gw, xhat), 2);
    tn_tensor *d = op2(TN_OP_sub, op2(TN_OP_sub, gw, back(a, x)), op2(TN_OP_mul, xhat, back(b, x)));
    root[0] = op2(TN_OP_mul, d, r);
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, op2(TN_OP_mul, gy, xhat), 1);
    root[2] = tn_mk_reduce(TN_OP_reduce_sum, gy, 1);
    return 3;
}

TEST(norm_backward_adds_up_its_columns_as_it_walks_the_rows)
{
    for (int i = 0; i < 2; i++) {
        int64_t n = i ? 3000 : 50, c = i ? 200 : 36;
        CHECK(norm_backward, i ? 1 : 2, /* few rows are walked twice */
              4e-6, {TN_F32, 2, {n, c}, -2, 3}, {TN_F32, 2, {n, c}, -1, 1}, {TN_F32, 1, {c}, 0.5, 1.5},
              {TN_F32, 2, {n, 1}, -1, 1}, {TN_F32, 2, {n, 1}, 0.5, 1});
    }
}

/* Softmax of rows, the mean over the rows of what they come to, and sums of columns: the last two are
 * finished by a loop each. And a group that only adds up over its rows is a kernel too. */
GRAPH(rows_and_their_sums)
{
    tn_tensor *x = in[0];
    tn_tensor *e = op1(TN_OP_exp, op2(TN_OP_sub, x, back(tn_mk_reduce(TN_OP_reduce_max, x, 2), x)));
    tn_tensor *total = tn_mk_reduce(TN_OP_reduce_sum, e, 2), *y = op2(TN_OP_div, e, back(total, x));
    tn_tensor *row = op1(TN_OP_log, total);
    root[0] = op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, row, 1), num(g, 0.01));
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, op2(TN_OP_mul, y, in[1]), 1);
    root[2] = y;
    return 3;
}

GRAPH(rows_that_only_add_up)
{
    tn_tensor *row = tn_mk_reduce(TN_OP_reduce_max, in[0], 2);
    root[0] = op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, op1(TN_OP_exp, row), 1), num(g, 0.5));
    return 1;
}

/* A loss over what a norm makes: the sum of everything beside sums of rows. */
GRAPH(rows_and_the_sum_of_everything)
{
    tn_tensor *x = in[0];
    tn_tensor *total = tn_mk_reduce(TN_OP_reduce_sum, op1(TN_OP_exp, x), 2);
    tn_tensor *y = op2(TN_OP_div, op1(TN_OP_exp, x), back(total, x));
    root[0] = op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, op2(TN_OP_mul, y, y), 3), num(g, 0.25));
    root[1] = y;
    return 2;
}

/* Many rows that leave some of a vector are computed side by side, and summed by kernels of their own. */
TEST(rows_add_up_as_they_are_walked)
{
    static const int64_t n[][2] = {{64, 37}, {100, 37}, {1500, 37}, {20000, 48}, {20000, 37}};
    for (int i = 0; i < 5; i++) {
        const rig_leaf x = {TN_F32, 2, {n[i][0], n[i][1]}, -2, 3};
        const bool apart = i == 4;
        CHECK(rows_and_their_sums, apart ? 3 : 1, 4e-6, x, x);
        CHECK(rows_that_only_add_up, apart ? 2 : 1, 4e-6, x);
        CHECK(rows_and_the_sum_of_everything, apart ? 2 : 1, 4e-6, x);
    }
}

/* A number and a row of numbers that are results too, beside the large value made from them. */
GRAPH(small_and_large)
{
    tn_tensor *x = in[0];
    root[0] = op2(TN_OP_mul, in[1], num(g, 3));
    root[1] = op1(TN_OP_exp, in[2]);
    tn_tensor *flat = tn_mk_reshape(root[0], 2, (int64_t[]){1, 1});
    root[2] = op2(TN_OP_add, op2(TN_OP_mul, x, back(flat, x)), back(root[1], x));
    return 3;
}

TEST(small_results_are_stored_once)
{
    CHECK(small_and_large, 1, 1e-6, {TN_F32, 2, {300, 70}, -1, 1}, {TN_F32, 0, {0}, 1, 2},
          {TN_F32, 2, {300, 1}, -1, 1});
    CHECK(small_and_large, 1, 1e-6, {TN_F32, 2, {7, 20000}, -1, 1}, {TN_F32, 0, {0}, 1, 2},
          {TN_F32, 2, {7, 1}, -1, 1});
}

GRAPH(cross_entropy)
{
    tn_tensor *x = in[0], *m = tn_mk_reduce(TN_OP_reduce_max, x, 2);
    tn_tensor *l =
        op1(TN_OP_log, tn_mk_reduce(TN_OP_reduce_sum, op1(TN_OP_exp, op2(TN_OP_sub, x, back(m, x))), 2));
    tn_tensor *at = tn_mk_gather(x, 1, tn_mk_reshape(in[1], 2, (int64_t[]){x->shape[0], 1}));
    root[0] = op2(TN_OP_sub, op2(TN_OP_add, l, m), at);
    return 1;
}

TEST(cross_entropy_is_one_kernel)
{
    CHECK(cross_entropy, 1, 1e-6, {TN_F32, 2, {40, 257}, -5, 5}, {TN_I64, 1, {40}, 0, 257});
    CHECK(cross_entropy, 1, 1e-6, {TN_F32, 2, {64, 10}, -5, 5}, {TN_I32, 1, {64}, 0, 10});
}

GRAPH(all_reductions)
{
    uint32_t last = 1u << (in[0]->ndim - 1);
    static const tn_op op[] = {TN_OP_reduce_sum, TN_OP_reduce_prod,   TN_OP_reduce_max,
                               TN_OP_reduce_min, TN_OP_reduce_argmax, TN_OP_reduce_argmin};
    for (int i = 0; i < 6; i++) root[i] = tn_mk_reduce(op[i], in[0], last);
    return 6;
}

GRAPH(all_reductions_down)
{
    static const tn_op op[] = {TN_OP_reduce_sum, TN_OP_reduce_prod,   TN_OP_reduce_max,
                               TN_OP_reduce_min, TN_OP_reduce_argmax, TN_OP_reduce_argmin};
    for (int i = 0; i < 6; i++) root[i] = tn_mk_reduce(op[i], in[0], 1);
    return 6;
}

TEST(every_reduction)
{
    static const tn_dtype dtype[] = {TN_F32, TN_F64, TN_I64, TN_I32};
    for (int i = 0; i < 4; i++) {
        CHECK(all_reductions, 0, 1e-5, {dtype[i], 2, {13, 45}, 0.9, 1.1});
        CHECK(all_reductions, 0, 1e-5, {dtype[i], 2, {13, 10}, -4, 4});
        CHECK(all_reductions_down, 0, 1e-5, {dtype[i], 2, {13, 300}, -1.2, 1.2});
    }
    CHECK(all_reductions, 0, 1e-5, {TN_U8, 2, {13, 45}, 0, 3});
    CHECK(all_reductions, 0, 1e-5, {TN_BOOL, 2, {13, 45}, 0, 1});
}

/* ---- columns and full ---- */

GRAPH(bias_gradient)
{
    tn_tensor *gx = tn_mk3(TN_OP_where, op2(TN_OP_gt, in[1], num(g, 0)), in[0], num(g, 0));
    root[0] = gx;
    root[1] = op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, gx, 1), num(g, 0.5));
    root[2] = tn_mk_reduce(TN_OP_reduce_sum, op1(TN_OP_square, gx), 1);
    return 3;
}

TEST(column_sums_share_reads_and_write_rows)
{
    static const int64_t shape[][2] = {{7, 5}, {300, 1}, {64, 100}, {4096, 33}, {3000, 700}, {70000, 3}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        rig_leaf l = {TN_F32, 2, {shape[i][0], shape[i][1]}, -2, 3};
        CHECK(bias_gradient, 1, 2e-6, l, l); /* the long ones in parts and a finish */
    }
}

GRAPH(batch_norm)
{
    tn_tensor *x = in[0]; /* [n, c] */
    tn_tensor *m = mean(g, x, 1), *sq = mean(g, op1(TN_OP_square, x), 1);
    tn_tensor *r = op1(TN_OP_rsqrt, op2(TN_OP_add, op2(TN_OP_sub, sq, op1(TN_OP_square, m)), num(g, 1e-5)));
    root[0] = op1(TN_OP_relu, op2(TN_OP_mul, op2(TN_OP_sub, x, back(m, x)), back(r, x)));
    return 1;
}

TEST(batch_statistics_then_the_rows)
{
    CHECK(batch_norm, 2, 1e-5, {TN_F32, 2, {20000, 24}, -2, 3});
    CHECK(batch_norm, 1, 1e-5, {TN_F32, 2, {100, 24}, -2, 3});
}

GRAPH(full)
{
    tn_tensor *x = in[0];
    uint32_t all = (1u << x->ndim) - 1;
    root[0] = mean(g, op1(TN_OP_square, op2(TN_OP_sub, x, in[1])), all);
    root[1] = tn_mk_reduce(TN_OP_reduce_max, x, all);
    return 2;
}

TEST(full_reductions)
{
    rig_leaf small = {TN_F32, 2, {30, 40}, -2, 3}, large = {TN_F32, 2, {1000, 333}, -2, 3};
    CHECK(full, 1, 1e-6, small, small);
    CHECK(full, 1, 1e-6, large, large);
}

GRAPH(few_rows)
{
    root[0] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 2);
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 1 | 4);
    return 2;
}

TEST(sums_of_every_layout)
{
    CHECK(few_rows, 0, 1e-5, {TN_F32, 3, {2, 5000, 60}, -2, 3});
    CHECK(few_rows, 0, 1e-5, {TN_F32, 3, {3, 4, 90000}, -2, 3});
    CHECK(few_rows, 0, 1e-5, {TN_F32, 3, {600, 3, 70}, -2, 3});
    CHECK(few_rows, 0, 1e-5, {TN_F32, 3, {70000, 2, 2}, -2, 3});
}

/* A sum of ones loses nothing: accumulators never run into the limit of f32. */
GRAPH(ones)
{
    tn_tensor *one = op2(TN_OP_add, op2(TN_OP_mul, in[0], num(g, 0)), num(g, 1.1));
    root[0] = tn_mk_reduce(TN_OP_reduce_sum, one, 1);
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, one, 2);
    root[2] = tn_mk_reduce(TN_OP_reduce_sum, one, 3);
    return 3;
}

TEST(long_sums_stay_accurate)
{
    CHECK(ones, 0, 2e-6, {TN_F32, 2, {3, 1000000}, 0, 1});
    CHECK(ones, 0, 2e-6, {TN_F32, 2, {500000, 4}, 0, 1});
    CHECK(ones, 0, 2e-6, {TN_F32, 2, {40, 65000}, 0, 1});
}

GRAPH(down_the_columns)
{
    root[0] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 1);
    return 1;
}

/* One after the other in f32, 2000 rows would err by 25 units in the last place. */
TEST(short_columns_are_summed_as_well)
{
    for (int64_t rows = 100; rows <= 6400; rows *= 2)
        for (int64_t columns = 1; columns <= 256; columns *= 4)
            CHECK(down_the_columns, 0, rows < 128 ? 5e-7 : 1.2e-7, {TN_F32, 2, {rows + 3, columns}, 0, 1});
}

RUN_TESTS(NULL, NULL)
