/* test_fuser_kernels.c - kernels of every schedule against the reference interpreter, with the number of
 * launches each graph may take. Sizes are chosen so that tails, tiles, blocks, parts and second stages all
 * occur. Start with any test: each is a graph and a case. */
#include "fuser_rig.h"

static tn_tensor *op1(tn_op op, tn_tensor *x)
{
    return tn_mk1(op, x);
}
static tn_tensor *op2(tn_op op, tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(op, x, y);
}
static tn_tensor *num(tn_graph *g, double v)
{
    return tn_mk_num(g, v);
}
static tn_tensor *back(tn_tensor *x, const tn_tensor *like)
{
    return tn_mk_expand(x, like->ndim, like->shape);
}

/* ---- pointwise ---- */

static int chain(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *s = op2(TN_OP_mul, op2(TN_OP_add, in[0], in[1]), num(g, 2));
    root[0] = op2(TN_OP_sub, op1(TN_OP_sigmoid, op1(TN_OP_relu, s)), num(g, 1));
    return 1;
}

static void pointwise_chain_is_one_kernel(void **state)
{
    (void)state;
    rig_check(&(rig_case){2, {{TN_F32, 1, {100003}, -3, 3}, {TN_F32, 1, {100003}, -3, 3}}, chain, 1, 1e-6});
    rig_check(&(rig_case){2, {{TN_F64, 2, {37, 11}, -3, 3}, {TN_F64, 2, {37, 11}, -3, 3}}, chain, 1, 1e-14});
    rig_check(&(rig_case){2, {{TN_F16, 2, {37, 11}, -3, 3}, {TN_F16, 2, {37, 11}, -3, 3}}, chain, 1, 1e-3});
    rig_check(&(rig_case){2, {{TN_F32, 1, {1}, -3, 3}, {TN_F32, 1, {1}, -3, 3}}, chain, 1, 1e-6});
    rig_check(&(rig_case){2, {{TN_F32, 0, {0}, -3, 3}, {TN_F32, 0, {0}, -3, 3}}, chain, 1, 1e-6});
}

static int siblings(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    root[0] = op1(TN_OP_sin, in[0]);
    root[1] = op1(TN_OP_cos, in[0]);
    return 2;
}

static void siblings_share_their_reads(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 2, {65, 129}, -9, 9}}, siblings, 1, 1e-6});
    rig_check(&(rig_case){1, {{TN_F16, 2, {65, 129}, -9, 9}}, siblings, 1, 1e-3});
    rig_check(&(rig_case){1, {{TN_F64, 2, {65, 129}, -9, 9}}, siblings, 1, 1e-12});
}

/* Small arguments have a shorter form: a loop takes it where all of its arguments allow it. Streams decide
 * for each piece, and here some have a large argument and some have none. */
static void large_arguments_take_the_long_way(void **state)
{
    (void)state;
    static const double most[] = {390, 401, 1e6, 1e30};
    for (int stream = 0; stream < 2; stream++) {
        rig_last_bytes = stream;
        for (unsigned i = 0; i < sizeof most / sizeof *most; i++)
            rig_check(&(rig_case){1, {{TN_F32, 1, {5000}, -most[i], most[i]}}, siblings, 1, 1e-6});
    }
    rig_last_bytes = 0;
}

static int bias_rows(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    tn_tensor *scale = op1(TN_OP_rsqrt, in[2]);
    root[0] = op1(TN_OP_relu, op2(TN_OP_add, op2(TN_OP_mul, in[0], scale), in[1]));
    return 1;
}

static void rows_of_a_broadcast(void **state)
{
    (void)state;
    rig_check(&(rig_case){3,
                          {{TN_F32, 2, {300, 32}, -3, 3}, {TN_F32, 1, {32}, -1, 1}, {TN_F32, 1, {32}, 1, 2}},
                          bias_rows,
                          1,
                          1e-6});
    rig_check(
        &(rig_case){3,
                    {{TN_F32, 3, {5, 3, 9001}, -3, 3}, {TN_F32, 1, {9001}, -1, 1}, {TN_F32, 2, {3, 1}, 1, 2}},
                    bias_rows,
                    1,
                    1e-6});
}

static int views(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    tn_tensor *x = in[0]; /* [6, 8, 10] */
    tn_tensor *p = tn_mk_permute(x, (int[]){2, 0, 1});
    tn_tensor *flip = tn_mk_slice1(tn_mk_slice1(x, 2, 9, -1, 10), 0, 0, 2, 3);
    root[0] = op2(TN_OP_mul, op1(TN_OP_exp, p), tn_mk_permute(op1(TN_OP_neg, x), (int[]){2, 0, 1}));
    root[1] = op1(TN_OP_exp, flip);
    root[2] = tn_mk_contiguous(p);
    /* merged and split inside one kernel: neither copies */
    root[3] = op1(TN_OP_neg, tn_mk_reshape(op1(TN_OP_square, tn_mk_reshape(x, 2, (int64_t[]){48, 10})), 4,
                                           (int64_t[]){6, 2, 4, 10}));
    /* a reshape that strides cannot say */
    root[4] = tn_mk_reshape(p, 2, (int64_t[]){20, 24});
    root[5] = tn_mk_reshape(op1(TN_OP_abs, p), 1, (int64_t[]){480});
    return 6;
}

static void strided_operands(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 3, {6, 8, 10}, -2, 2}}, views, 0, 1e-6});
    rig_check(&(rig_case){1, {{TN_I32, 3, {6, 8, 10}, -20, 20}}, views, 0, 1e-6});
}

static int mixed_types(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *less = op2(TN_OP_lt, in[0], num(g, 0.5));
    root[0] = tn_mk3(TN_OP_where, less, in[1], num(g, 7));
    root[1] = tn_mk_cast(in[1], TN_F32);
    root[2] = op2(TN_OP_logical_and, less, in[2]);
    root[3] = tn_mk_cast(in[0], TN_I64);
    root[4] = op2(TN_OP_add, tn_mk_cast(in[2], TN_I64), in[1]);
    root[5] = tn_mk_cast(op2(TN_OP_mul, in[0], num(g, 3)), TN_BOOL);
    root[6] = op2(TN_OP_maximum, in[0], num(g, (double)NAN));
    return 7;
}

static void types_mix_in_one_kernel(void **state)
{
    (void)state;
    rig_check(
        &(rig_case){3,
                    {{TN_F32, 1, {1001}, -3, 3}, {TN_I32, 1, {1001}, -100, 100}, {TN_BOOL, 1, {1001}, 0, 1}},
                    mixed_types,
                    1,
                    1e-6});
}

/* ---- rows ---- */

static tn_tensor *softmax(tn_graph *g, tn_tensor *x, int axis)
{
    (void)g;
    tn_tensor *m = tn_mk_reduce(TN_OP_reduce_max, x, 1u << axis);
    tn_tensor *e = op1(TN_OP_exp, op2(TN_OP_sub, x, back(m, x)));
    return op2(TN_OP_div, e, back(tn_mk_reduce(TN_OP_reduce_sum, e, 1u << axis), x));
}

static int softmax_last(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    root[0] = softmax(g, in[0], in[0]->ndim - 1);
    return 1;
}

static int softmax_first(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    root[0] = softmax(g, in[0], 0);
    return 1;
}

static int softmax_middle(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    root[0] = softmax(g, in[0], 1);
    return 1;
}

static void softmax_is_one_kernel(void **state)
{
    (void)state;
    static const int64_t width[] = {1, 2, 7, 10, 31, 32, 33, 64, 100, 1000, 4097, 20000};
    for (size_t i = 0; i < sizeof width / sizeof *width; i++)
        rig_check(&(rig_case){1, {{TN_F32, 2, {33, width[i]}, -5, 5}}, softmax_last, 1, 2e-6});
    rig_check(&(rig_case){1, {{TN_BF16, 2, {9, 50}, -5, 5}}, softmax_last, 1, 1e-2});
    rig_check(&(rig_case){1, {{TN_F64, 3, {3, 4, 70}, -5, 5}}, softmax_last, 1, 1e-14});
    rig_check(&(rig_case){1, {{TN_F32, 3, {5, 17, 300}, -5, 5}}, softmax_middle, 1, 2e-6});
    rig_check(&(rig_case){1, {{TN_F32, 2, {50, 600}, -5, 5}}, softmax_first, 1, 2e-6});
    rig_check(&(rig_case){1, {{TN_F32, 1, {513}, -5, 5}}, softmax_last, 1, 2e-6});
}

static tn_tensor *mean(tn_graph *g, tn_tensor *x, uint32_t axes)
{
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++)
        if (axes >> i & 1) n *= x->shape[i];
    return op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, x, axes), num(g, 1.0 / (double)n));
}

/* layer_norm over the last axis, then gelu; statistics and the normed value are outputs too */
static int norm_gelu(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
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

static void norm_and_activation_are_one_kernel(void **state)
{
    (void)state;
    static const int64_t width[] = {6, 48, 768, 1021, 9000};
    for (size_t i = 0; i < sizeof width / sizeof *width; i++)
        rig_check(&(rig_case){3,
                              {{TN_F32, 2, {19, width[i]}, -2, 3},
                               {TN_F32, 1, {width[i]}, 0.5, 1.5},
                               {TN_F32, 1, {width[i]}, -1, 1}},
                              norm_gelu,
                              1,
                              4e-6});
    rig_check(
        &(rig_case){3,
                    {{TN_F32, 3, {4, 5, 96}, -2, 3}, {TN_F32, 1, {96}, 0.5, 1.5}, {TN_F32, 1, {96}, -1, 1}},
                    norm_gelu,
                    1,
                    4e-6});
}

/* groups of channels: reduce two axes that are not neighbours, reshape inside the kernel */
static int group_norm(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *x = in[0]; /* [n, h, w, c] */
    int64_t n = x->shape[0], hw = x->shape[1] * x->shape[2], c = x->shape[3];
    tn_tensor *s = tn_mk_reshape(x, 4, (int64_t[]){n, hw, 4, c / 4});
    tn_tensor *m = mean(g, s, 2 | 8), *d = op2(TN_OP_sub, s, back(m, s));
    tn_tensor *r = op1(TN_OP_rsqrt, op2(TN_OP_add, mean(g, op1(TN_OP_square, d), 2 | 8), num(g, 1e-5)));
    tn_tensor *y = tn_mk_reshape(op2(TN_OP_mul, d, back(r, s)), 4, x->shape);
    root[0] = op1(TN_OP_relu, op2(TN_OP_mul, y, in[1]));
    return 1;
}

static void group_norm_reshapes_inside_one_kernel(void **state)
{
    (void)state;
    rig_check(&(rig_case){
        1 + 1, {{TN_F32, 4, {3, 5, 7, 32}, -2, 3}, {TN_F32, 1, {32}, 0.5, 1.5}}, group_norm, 1, 4e-6});
}

/* gradients of layer_norm: dx by rows, those of weight and bias by columns, nothing full-size in between */
static int norm_backward(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
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

static void norm_backward_adds_up_its_columns_as_it_walks_the_rows(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        int64_t n = i ? 3000 : 50, c = i ? 200 : 36;
        rig_check(&(rig_case){5,
                              {{TN_F32, 2, {n, c}, -2, 3},
                               {TN_F32, 2, {n, c}, -1, 1},
                               {TN_F32, 1, {c}, 0.5, 1.5},
                               {TN_F32, 2, {n, 1}, -1, 1},
                               {TN_F32, 2, {n, 1}, 0.5, 1}},
                              norm_backward,
                              i ? 1 : 2, /* few rows are walked twice */
                              4e-6});
    }
}

/* Softmax of rows, the mean over the rows of what they come to, and sums of columns: the last two are not
 * finished by one loop, and a group that only adds up over its rows is a kernel too. */
static int rows_and_their_sums(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
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

static int rows_that_only_add_up(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *row = tn_mk_reduce(TN_OP_reduce_max, in[0], 2);
    root[0] = op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, op1(TN_OP_exp, row), 1), num(g, 0.5));
    return 1;
}

/* A loss over what a norm makes: the sum of everything beside sums of rows. */
static int rows_and_the_sum_of_everything(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *x = in[0];
    tn_tensor *total = tn_mk_reduce(TN_OP_reduce_sum, op1(TN_OP_exp, x), 2);
    tn_tensor *y = op2(TN_OP_div, op1(TN_OP_exp, x), back(total, x));
    root[0] = op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, op2(TN_OP_mul, y, y), 3), num(g, 0.25));
    root[1] = y;
    return 2;
}

static void rows_add_up_as_they_are_walked(void **state)
{
    (void)state;
    static const int64_t n[] = {64, 100, 1500, 20000};
    for (int i = 0; i < 4; i++) {
        const rig_leaf x = {TN_F32, 2, {n[i], 37}, -2, 3};
        rig_check(&(rig_case){2, {x, x}, rows_and_their_sums, 2, 4e-6});
        rig_check(&(rig_case){1, {x}, rows_that_only_add_up, 1, 4e-6});
        rig_check(&(rig_case){1, {x}, rows_and_the_sum_of_everything, 1, 4e-6});
    }
}

/* A number and a row of numbers that are results too, beside the large value made from them. */
static int small_and_large(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *x = in[0];
    root[0] = op2(TN_OP_mul, in[1], num(g, 3));
    root[1] = op1(TN_OP_exp, in[2]);
    tn_tensor *flat = tn_mk_reshape(root[0], 2, (int64_t[]){1, 1});
    root[2] = op2(TN_OP_add, op2(TN_OP_mul, x, back(flat, x)), back(root[1], x));
    return 3;
}

static void small_results_are_stored_once(void **state)
{
    (void)state;
    rig_check(
        &(rig_case){3,
                    {{TN_F32, 2, {300, 70}, -1, 1}, {TN_F32, 0, {0}, 1, 2}, {TN_F32, 2, {300, 1}, -1, 1}},
                    small_and_large,
                    1,
                    1e-6});
    rig_check(
        &(rig_case){3,
                    {{TN_F32, 2, {7, 20000}, -1, 1}, {TN_F32, 0, {0}, 1, 2}, {TN_F32, 2, {7, 1}, -1, 1}},
                    small_and_large,
                    1,
                    1e-6});
}

static int crosswise(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    root[0] = op2(TN_OP_add, tn_mk_swap(in[0], 0, 1), in[1]);
    root[1] = tn_mk_contiguous(tn_mk_swap(tn_mk_slice1(in[0], 0, 1, 2, in[0]->shape[0] / 2), 0, 1));
    return 2;
}

static void transposed_operands_are_read_in_blocks(void **state)
{
    (void)state;
    rig_check(
        &(rig_case){2, {{TN_F32, 2, {70, 131}, -1, 1}, {TN_F32, 2, {131, 70}, -1, 1}}, crosswise, 0, 1e-7});
    rig_check(
        &(rig_case){2, {{TN_BF16, 2, {64, 8}, -1, 1}, {TN_BF16, 2, {8, 64}, -1, 1}}, crosswise, 0, 1e-2});
    rig_check(
        &(rig_case){2, {{TN_I64, 2, {9, 1000}, -99, 99}, {TN_I64, 2, {1000, 9}, -99, 99}}, crosswise, 0, 0});
}

static int past_the_caches(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    root[0] = op2(TN_OP_add, in[0], num(g, 1));
    root[1] = softmax(g, in[0], 1);
    root[2] = op2(TN_OP_lt, in[0], in[1]);
    root[3] = op2(TN_OP_mul, tn_mk_slice1(in[0], 1, 1, 1, in[0]->shape[1] - 1),
                  tn_mk_slice1(in[1], 0, 1, 1, in[1]->shape[0] - 1));
    return 4;
}

/* With a last cache of one byte everything is streamed. */
static void streamed_results_are_the_same(void **state)
{
    (void)state;
    static const int64_t width[] = {64, 100, 256, 777, 3000};
    rig_last_bytes = 1;
    for (int i = 0; i < 5; i++)
        rig_check(&(rig_case){2,
                              {{TN_F32, 2, {37, width[i]}, -5, 5}, {TN_F32, 1, {width[i]}, -5, 5}},
                              past_the_caches,
                              0,
                              2e-6});
    rig_check(
        &(rig_case){2, {{TN_F16, 2, {37, 333}, -5, 5}, {TN_F16, 1, {333}, -5, 5}}, past_the_caches, 0, 2e-3});
    rig_last_bytes = 0;
}

static int cross_entropy(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    tn_tensor *x = in[0], *m = tn_mk_reduce(TN_OP_reduce_max, x, 2);
    tn_tensor *l =
        op1(TN_OP_log, tn_mk_reduce(TN_OP_reduce_sum, op1(TN_OP_exp, op2(TN_OP_sub, x, back(m, x))), 2));
    tn_tensor *at = tn_mk_gather(x, 1, tn_mk_reshape(in[1], 2, (int64_t[]){x->shape[0], 1}));
    root[0] = op2(TN_OP_sub, op2(TN_OP_add, l, m), at);
    return 1;
}

static void cross_entropy_is_one_kernel(void **state)
{
    (void)state;
    rig_check(
        &(rig_case){2, {{TN_F32, 2, {40, 257}, -5, 5}, {TN_I64, 1, {40}, 0, 257}}, cross_entropy, 1, 1e-6});
    rig_check(
        &(rig_case){2, {{TN_F32, 2, {64, 10}, -5, 5}, {TN_I32, 1, {64}, 0, 10}}, cross_entropy, 1, 1e-6});
}

static int all_reductions(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    uint32_t last = 1u << (in[0]->ndim - 1);
    static const tn_op op[] = {TN_OP_reduce_sum, TN_OP_reduce_prod,   TN_OP_reduce_max,
                               TN_OP_reduce_min, TN_OP_reduce_argmax, TN_OP_reduce_argmin};
    for (int i = 0; i < 6; i++) root[i] = tn_mk_reduce(op[i], in[0], last);
    return 6;
}

static int all_reductions_down(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    static const tn_op op[] = {TN_OP_reduce_sum, TN_OP_reduce_prod,   TN_OP_reduce_max,
                               TN_OP_reduce_min, TN_OP_reduce_argmax, TN_OP_reduce_argmin};
    for (int i = 0; i < 6; i++) root[i] = tn_mk_reduce(op[i], in[0], 1);
    return 6;
}

static void every_reduction(void **state)
{
    (void)state;
    static const tn_dtype dtype[] = {TN_F32, TN_F64, TN_I64, TN_I32};
    for (int i = 0; i < 4; i++) {
        rig_check(&(rig_case){1, {{dtype[i], 2, {13, 45}, 0.9, 1.1}}, all_reductions, 0, 1e-5});
        rig_check(&(rig_case){1, {{dtype[i], 2, {13, 10}, -4, 4}}, all_reductions, 0, 1e-5});
        rig_check(&(rig_case){1, {{dtype[i], 2, {13, 300}, -1.2, 1.2}}, all_reductions_down, 0, 1e-5});
    }
    rig_check(&(rig_case){1, {{TN_U8, 2, {13, 45}, 0, 3}}, all_reductions, 0, 1e-5});
    rig_check(&(rig_case){1, {{TN_BOOL, 2, {13, 45}, 0, 1}}, all_reductions, 0, 1e-5});
}

/* ---- columns and full ---- */

static int bias_gradient(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *gx = tn_mk3(TN_OP_where, op2(TN_OP_gt, in[1], num(g, 0)), in[0], num(g, 0));
    root[0] = gx;
    root[1] = op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, gx, 1), num(g, 0.5));
    root[2] = tn_mk_reduce(TN_OP_reduce_sum, op1(TN_OP_square, gx), 1);
    return 3;
}

static void column_sums_share_reads_and_write_rows(void **state)
{
    (void)state;
    static const int64_t shape[][2] = {{7, 5}, {300, 1}, {64, 100}, {4096, 33}, {3000, 700}, {70000, 3}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        rig_leaf l = {TN_F32, 2, {shape[i][0], shape[i][1]}, -2, 3};
        rig_check(&(rig_case){2, {l, l}, bias_gradient, 1, 2e-6}); /* the long ones in parts and a finish */
    }
}

static int batch_norm(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *x = in[0]; /* [n, c] */
    tn_tensor *m = mean(g, x, 1), *sq = mean(g, op1(TN_OP_square, x), 1);
    tn_tensor *r = op1(TN_OP_rsqrt, op2(TN_OP_add, op2(TN_OP_sub, sq, op1(TN_OP_square, m)), num(g, 1e-5)));
    root[0] = op1(TN_OP_relu, op2(TN_OP_mul, op2(TN_OP_sub, x, back(m, x)), back(r, x)));
    return 1;
}

static void batch_statistics_then_the_rows(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 2, {20000, 24}, -2, 3}}, batch_norm, 2, 1e-5});
    rig_check(&(rig_case){1, {{TN_F32, 2, {100, 24}, -2, 3}}, batch_norm, 1, 1e-5});
}

static int full(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *x = in[0];
    uint32_t all = (1u << x->ndim) - 1;
    root[0] = mean(g, op1(TN_OP_square, op2(TN_OP_sub, x, in[1])), all);
    root[1] = tn_mk_reduce(TN_OP_reduce_max, x, all);
    return 2;
}

static void full_reductions(void **state)
{
    (void)state;
    rig_leaf small = {TN_F32, 2, {30, 40}, -2, 3}, large = {TN_F32, 2, {1000, 333}, -2, 3};
    rig_check(&(rig_case){2, {small, small}, full, 1, 1e-6});
    rig_check(&(rig_case){2, {large, large}, full, 1, 1e-6});
}

static int few_rows(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    root[0] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 2);
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 1 | 4);
    return 2;
}

static void sums_of_every_layout(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 3, {2, 5000, 60}, -2, 3}}, few_rows, 0, 1e-5});
    rig_check(&(rig_case){1, {{TN_F32, 3, {3, 4, 90000}, -2, 3}}, few_rows, 0, 1e-5});
    rig_check(&(rig_case){1, {{TN_F32, 3, {600, 3, 70}, -2, 3}}, few_rows, 0, 1e-5});
    rig_check(&(rig_case){1, {{TN_F32, 3, {70000, 2, 2}, -2, 3}}, few_rows, 0, 1e-5});
}

/* A sum of ones loses nothing: accumulators never run into the limit of f32. */
static int ones(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    tn_tensor *one = op2(TN_OP_add, op2(TN_OP_mul, in[0], num(g, 0)), num(g, 1.1));
    root[0] = tn_mk_reduce(TN_OP_reduce_sum, one, 1);
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, one, 2);
    root[2] = tn_mk_reduce(TN_OP_reduce_sum, one, 3);
    return 3;
}

static void long_sums_stay_accurate(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 2, {3, 1000000}, 0, 1}}, ones, 0, 2e-6});
    rig_check(&(rig_case){1, {{TN_F32, 2, {500000, 4}, 0, 1}}, ones, 0, 2e-6});
    rig_check(&(rig_case){1, {{TN_F32, 2, {40, 65000}, 0, 1}}, ones, 0, 2e-6});
}

/* ---- indices ---- */

static int embed(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    root[0] = op2(TN_OP_add, tn_mk_index_select(in[0], 0, in[1]), in[2]);
    root[1] = tn_mk_index_select(in[2], 1, in[3]);
    root[2] = tn_mk_gather(in[2], 0, in[4]);
    return 3;
}

static int scatter(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    root[0] = tn_mk_index_add(in[0], 0, in[1], 2, (int64_t[]){50, 24});
    root[1] = tn_mk_index_add(in[0], 1, in[2], 2, (int64_t[]){90, 7});
    root[2] = tn_mk_scatter_add(in[0], 0, in[3], 2, (int64_t[]){13, 30});
    root[3] = tn_mk_scatter_add(in[0], 1, in[3], 2, (int64_t[]){90, 13});
    return 4;
}

static void gathers_and_scatters(void **state)
{
    (void)state;
    rig_check(&(rig_case){5,
                          {{TN_F32, 2, {50, 24}, -1, 1},
                           {TN_I64, 1, {90}, 0, 50},
                           {TN_F32, 2, {90, 24}, -1, 1},
                           {TN_I32, 1, {11}, 0, 24},
                           {TN_I64, 2, {5, 20}, 0, 90}},
                          embed,
                          0,
                          1e-6});
    for (int i = 0; i < 2; i++)
        rig_check(&(rig_case){4,
                              {{i ? TN_BF16 : TN_F32, 2, {90, 24}, -1, 1},
                               {TN_I64, 1, {90}, 0, 50},
                               {TN_I32, 1, {24}, 0, 7},
                               {TN_I64, 2, {90, 24}, 0, 13}},
                              scatter,
                              0,
                              i ? 1e-2 : 1e-6});
}

static void a_bad_index_is_reported(void **state)
{
    (void)state;
    static const int64_t bad[] = {50, -1};
    for (int b = 0; b < 4; b++) {
        tn_session *s = tn_open_with(&(tn_options){
            .size = sizeof(tn_options), .device = TN_CPU, .mode = TN_EAGER, .seed = 5, .log = rig_quiet});
        float x[50 * 4] = {0};
        int64_t index[6] = {1, 2, 3, 4, 5, bad[b % 2]};
        tn_tensor *t = tn_from_at(s, x, TN_F32, 2, (int64_t[]){50, 4}, "here", 1);
        tn_tensor *i = tn_from_at(s, index, TN_I64, 1, (int64_t[]){6}, "here", 1);
        tn_tensor *src = tn_from_at(s, x, TN_F32, 2, (int64_t[]){6, 4}, "here", 1), *out;
        tn_step_begin(s);
        if (b < 2)
            out = tn_mk_index_select(tn_use(tn_resolve(t)), 0, tn_use(tn_resolve(i)));
        else
            out = tn_mk_index_add(tn_use(tn_resolve(src)), 0, tn_use(tn_resolve(i)), 2, (int64_t[]){50, 4});
        assert_int_equal(tn_run(s, 1, &out), TN_E_INDEX);
        assert_non_null(strstr(s->graph.error.text, bad[b % 2] < 0 ? "-1" : "50"));
        tn_clear_error(s);
        tn_close(s);
    }
}

static int scans(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    for (int i = 0; i < 3; i++) root[i] = tn_mk_cumsum(in[0], i, i == 1);
    root[3] = tn_mk_cumsum(tn_mk_permute(in[0], (int[]){2, 1, 0}), 1, true);
    return 4;
}

static void cumsum_along_every_axis(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 3, {7, 9, 300}, -1, 1}}, scans, 4, 1e-6});
    rig_check(&(rig_case){1, {{TN_I32, 3, {7, 9, 5}, -10, 10}}, scans, 0, 0});
}

/* ---- windows ---- */

static tn_pool_attr pool_attr(int64_t h, int64_t w, int64_t kh, int64_t kw, int64_t s, int64_t pad,
                              bool ceil_mode)
{
    tn_pool_attr p = {.window = {kh, kw}, .stride = {s, s}, .pad = {pad, pad, pad, pad}, .h = h, .w = w};
    p.oh = (h + 2 * pad - kh + (ceil_mode ? s - 1 : 0)) / s + 1;
    p.ow = (w + 2 * pad - kw + (ceil_mode ? s - 1 : 0)) / s + 1;
    return p;
}

static tn_pool_attr pools;

static int pool(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    root[0] = tn_mk_pool(TN_OP_pool_max, in[0], NULL, &pools);
    tn_tensor *at = root[1] = tn_mk_pool(TN_OP_pool_argmax, in[0], NULL, &pools);
    root[2] = tn_mk_pool(TN_OP_pool_sum, in[0], NULL, &pools);
    root[3] = tn_mk_pool(TN_OP_pool_take, in[0], at, &pools);
    root[4] = tn_mk_pool(TN_OP_pool_spread, root[2], NULL, &pools);
    root[5] = tn_mk_pool(TN_OP_pool_put, root[2], at, &pools);
    return 6;
}

static void pooling_of_every_geometry(void **state)
{
    (void)state;
    static const int channels[] = {1, 3, 16, 33};
    for (int c = 0; c < 4; c++) {
        rig_leaf x = {TN_F32, 4, {2, 12, 14, channels[c]}, -2, 3};
        pools = pool_attr(12, 14, 2, 2, 2, 0, false);
        rig_check(&(rig_case){1, {x}, pool, 0, 1e-6});
        pools = pool_attr(12, 14, 3, 3, 1, 1, false);
        rig_check(&(rig_case){1, {x}, pool, 0, 1e-6});
        pools = pool_attr(12, 14, 3, 5, 2, 1, true);
        rig_check(&(rig_case){1, {x}, pool, 0, 1e-6});
        pools = pool_attr(12, 14, 2, 3, 4, 0, false);
        rig_check(&(rig_case){1, {x}, pool, 0, 1e-6});
    }
    pools = pool_attr(6, 2000, 3, 3, 2, 1, false);
    rig_check(&(rig_case){1, {{TN_F16, 4, {1, 6, 2000, 9}, -2, 3}}, pool, 0, 1e-2});
}

/* ---- copies ---- */

static int joins(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *t = tn_mk_permute(in[0], (int[]){1, 0, 2});
    root[0] = tn_mk_pad(in[0], num(g, -1.5), (int64_t[]){1, 0, 2}, (int64_t[]){0, 2, 3});
    root[1] = tn_mk_pad(t, num(g, 0), (int64_t[]){0, 1, 0}, (int64_t[]){1, 1, 0});
    for (int a = 0; a < 3; a++)
        root[2 + a] = tn_mk_concat(g, 3, (tn_tensor *[]){in[0], in[0], tn_mk_slice1(in[0], a, 1, 1, 2)}, a);
    root[5] = tn_mk_concat(g, 2, (tn_tensor *[]){t, tn_mk_contiguous(t)}, 2);
    tn_tensor *many[70];
    for (int i = 0; i < 70; i++) many[i] = in[0];
    root[6] = tn_mk_concat(g, 70, many, 1);
    return 7;
}

static void pad_and_concat(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 3, {4, 5, 6}, -1, 1}}, joins, 0, 0});
    rig_check(&(rig_case){1, {{TN_BF16, 3, {4, 5, 6}, -1, 1}}, joins, 0, 0});
}

/* ---- library steps ---- */

static int products(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    tn_tensor *x = in[0], *w = in[1]; /* [3, 5, 16], [8, 16] */
    root[0] = tn_mk_matmul(x, tn_mk_swap(w, 0, 1), in[2]);
    root[1] = tn_mk_matmul(tn_mk_swap(x, 1, 2), x, NULL);
    root[2] = tn_mk_matmul(tn_mk_slice1(x, 2, 0, 2, 8), tn_mk_slice1(tn_mk_swap(x, 1, 2), 1, 1, 2, 8), NULL);
    root[3] = tn_mk_matmul(op1(TN_OP_relu, tn_mk_slice1(x, 1, 0, 1, 1)), tn_mk_swap(w, 0, 1), NULL);
    return 4;
}

static void matrix_products_take_strides(void **state)
{
    (void)state;
    rig_check(
        &(rig_case){3,
                    {{TN_F32, 3, {3, 5, 16}, -1, 1}, {TN_F32, 2, {8, 16}, -1, 1}, {TN_F32, 1, {8}, -1, 1}},
                    products,
                    0,
                    2e-6});
}

/* ---- random numbers ---- */

static int dropout(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *p = tn_mk_typed(g, TN_OP_scalar, (tn_number){0.3, 0, false}, TN_F32);
    tn_tensor *keep = tn_mk_random(g, TN_OP_bernoulli, TN_BOOL, in[0]->ndim, in[0]->shape, p);
    tn_tensor *y = op2(TN_OP_mul, tn_mk_cast(keep, TN_F32), in[0]);
    root[0] = softmax(g, y, in[0]->ndim - 1);
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, op2(TN_OP_mul, tn_mk_cast(keep, TN_F32), in[0]), 1);
    root[2] = tn_mk_random(g, TN_OP_uniform, TN_F32, in[0]->ndim, in[0]->shape, NULL);
    root[3] = tn_mk_random(g, TN_OP_normal, TN_F32, in[0]->ndim, in[0]->shape, NULL);
    root[4] = keep;
    return 5;
}

/* Dropout of column sums, and columns dropped from all rows at once. */
static int dropout_of_columns(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    tn_tensor *x = in[0], *p = tn_mk_typed(g, TN_OP_scalar, (tn_number){0.4, 0, false}, TN_F32);
    int64_t shape[] = {1, x->shape[1]};
    tn_tensor *kept = tn_mk_cast(tn_mk_random(g, TN_OP_bernoulli, TN_BOOL, 2, shape, p), TN_F32);
    tn_tensor *column = tn_mk_cast(tn_mk_random(g, TN_OP_bernoulli, TN_BOOL, 2, shape, p), TN_F32);
    root[0] = op2(TN_OP_mul, tn_mk_reduce(TN_OP_reduce_sum, x, 1), kept);
    tn_tensor *some = op2(TN_OP_mul, x, back(column, x));
    root[1] = op2(TN_OP_sub, some, back(tn_mk_reduce(TN_OP_reduce_max, some, 1), x));
    return 2;
}

static void random_columns(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 2, {33, 3}, -1, 1}}, dropout_of_columns, 0, 1e-6});
    rig_check(&(rig_case){1, {{TN_F32, 2, {50, 700}, -1, 1}}, dropout_of_columns, 0, 1e-6});
    rig_check(&(rig_case){1, {{TN_F32, 2, {5000, 70}, -1, 1}}, dropout_of_columns, 0, 2e-6});
}

static void random_numbers_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 2, {70, 33}, -1, 1}}, dropout, 0, 2e-6});
    rig_check(&(rig_case){1, {{TN_F32, 2, {5, 3001}, -1, 1}}, dropout, 0, 2e-6});
    rig_check(&(rig_case){1, {{TN_F32, 1, {5003}, -1, 1}}, dropout, 0, 1e-5});
    rig_check(&(rig_case){1, {{TN_F32, 3, {2, 1000, 70}, -1, 1}}, dropout, 0, 2e-6});
}

/* ---- other ---- */

static int empties(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    root[0] = op2(TN_OP_add, in[0], num(g, 1));
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 1);
    root[2] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 2);
    root[3] = tn_mk_reduce(TN_OP_reduce_prod, in[0], 3);
    return 4;
}

static void tensors_without_elements(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 2, {0, 5}, 0, 1}}, empties, 0, 0});
    rig_check(&(rig_case){1, {{TN_F32, 2, {5, 0}, 0, 1}}, empties, 0, 0});
}

static int positions(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    const int64_t *shape = in[0]->shape;
    tn_tensor *row = tn_mk_iota(g, 0, 2, shape, TN_I64), *col = tn_mk_iota(g, 1, 2, shape, TN_I64);
    tn_tensor *causal = op2(TN_OP_le, col, row);
    root[0] = softmax(g, tn_mk3(TN_OP_where, causal, in[0], num(g, -(double)INFINITY)), 1);
    root[1] = tn_mk_iota(g, 1, 2, shape, TN_F32);
    return 2;
}

static void positions_are_computed(void **state)
{
    (void)state;
    rig_check(&(rig_case){1, {{TN_F32, 2, {70, 90}, -1, 1}}, positions, 0, 1e-6});
}

int main(void)
{
    setenv("TENSOR_PROFILE", "reference", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pointwise_chain_is_one_kernel),
        cmocka_unit_test(siblings_share_their_reads),
        cmocka_unit_test(large_arguments_take_the_long_way),
        cmocka_unit_test(rows_of_a_broadcast),
        cmocka_unit_test(strided_operands),
        cmocka_unit_test(types_mix_in_one_kernel),
        cmocka_unit_test(softmax_is_one_kernel),
        cmocka_unit_test(norm_and_activation_are_one_kernel),
        cmocka_unit_test(group_norm_reshapes_inside_one_kernel),
        cmocka_unit_test(norm_backward_adds_up_its_columns_as_it_walks_the_rows),
        cmocka_unit_test(rows_add_up_as_they_are_walked),
        cmocka_unit_test(small_results_are_stored_once),
        cmocka_unit_test(transposed_operands_are_read_in_blocks),
        cmocka_unit_test(streamed_results_are_the_same),
        cmocka_unit_test(cross_entropy_is_one_kernel),
        cmocka_unit_test(every_reduction),
        cmocka_unit_test(column_sums_share_reads_and_write_rows),
        cmocka_unit_test(batch_statistics_then_the_rows),
        cmocka_unit_test(full_reductions),
        cmocka_unit_test(sums_of_every_layout),
        cmocka_unit_test(long_sums_stay_accurate),
        cmocka_unit_test(gathers_and_scatters),
        cmocka_unit_test(a_bad_index_is_reported),
        cmocka_unit_test(cumsum_along_every_axis),
        cmocka_unit_test(pooling_of_every_geometry),
        cmocka_unit_test(pad_and_concat),
        cmocka_unit_test(matrix_products_take_strides),
        cmocka_unit_test(random_columns),
        cmocka_unit_test(random_numbers_do_not_depend_on_the_schedule),
        cmocka_unit_test(tensors_without_elements),
        cmocka_unit_test(positions_are_computed),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
