/* test_fuser_kernels.c - kernels of every schedule but those that reduce (test_fuser_reductions.c) against
 * the reference interpreter, with the number of launches each graph may take. Sizes are chosen so that tails,
 * tiles and blocks all occur. Start with any test: each is a graph and a case. */
#include "fuser_graphs.h"

/* ---- pointwise ---- */

GRAPH(chain)
{
    tn_tensor *s = op2(TN_OP_mul, op2(TN_OP_add, in[0], in[1]), num(g, 2));
    root[0] = op2(TN_OP_sub, op1(TN_OP_sigmoid, op1(TN_OP_relu, s)), num(g, 1));
    return 1;
}

TEST(pointwise_chain_is_one_kernel)
{
    CHECK(chain, 1, 1e-6, {TN_F32, 1, {100003}, -3, 3}, {TN_F32, 1, {100003}, -3, 3});
    CHECK(chain, 1, 1e-14, {TN_F64, 2, {37, 11}, -3, 3}, {TN_F64, 2, {37, 11}, -3, 3});
    CHECK(chain, 1, 1e-3, {TN_F16, 2, {37, 11}, -3, 3}, {TN_F16, 2, {37, 11}, -3, 3});
    CHECK(chain, 1, 1e-6, {TN_F32, 1, {1}, -3, 3}, {TN_F32, 1, {1}, -3, 3});
    CHECK(chain, 1, 1e-6, {TN_F32, 0, {0}, -3, 3}, {TN_F32, 0, {0}, -3, 3});
}

GRAPH(siblings)
{
    root[0] = op1(TN_OP_sin, in[0]);
    root[1] = op1(TN_OP_cos, in[0]);
    return 2;
}

TEST(siblings_share_their_reads)
{
    CHECK(siblings, 1, 1e-6, {TN_F32, 2, {65, 129}, -9, 9});
    CHECK(siblings, 1, 1e-3, {TN_F16, 2, {65, 129}, -9, 9});
    CHECK(siblings, 1, 1e-12, {TN_F64, 2, {65, 129}, -9, 9});
}

/* Small arguments have a shorter form: a loop takes it where all of its arguments allow it. Streams decide
 * for each piece, and here some have a large argument and some have none. */
TEST(large_arguments_take_the_long_way)
{
    static const double most[] = {390, 401, 1e6, 1e30};
    for (int stream = 0; stream < 2; stream++) {
        rig_last_bytes = stream;
        for (unsigned i = 0; i < sizeof most / sizeof *most; i++)
            CHECK(siblings, 1, 1e-6, {TN_F32, 1, {5000}, -most[i], most[i]});
    }
    rig_last_bytes = 0;
}

GRAPH(bias_rows)
{
    tn_tensor *scale = op1(TN_OP_rsqrt, in[2]);
    root[0] = op1(TN_OP_relu, op2(TN_OP_add, op2(TN_OP_mul, in[0], scale), in[1]));
    return 1;
}

TEST(rows_of_a_broadcast)
{
    CHECK(bias_rows, 1, 1e-6, {TN_F32, 2, {300, 32}, -3, 3}, {TN_F32, 1, {32}, -1, 1},
          {TN_F32, 1, {32}, 1, 2});
    CHECK(bias_rows, 1, 1e-6, {TN_F32, 3, {5, 3, 9001}, -3, 3}, {TN_F32, 1, {9001}, -1, 1},
          {TN_F32, 2, {3, 1}, 1, 2});
}

GRAPH(crosswise)
{
    root[0] = op2(TN_OP_add, tn_mk_swap(in[0], 0, 1), in[1]);
    root[1] = tn_mk_contiguous(tn_mk_swap(tn_mk_slice1(in[0], 0, 1, 2, in[0]->shape[0] / 2), 0, 1));
    return 2;
}

TEST(transposed_operands_are_read_in_blocks)
{
    CHECK(crosswise, 0, 1e-7, {TN_F32, 2, {70, 131}, -1, 1}, {TN_F32, 2, {131, 70}, -1, 1});
    CHECK(crosswise, 0, 1e-2, {TN_BF16, 2, {64, 8}, -1, 1}, {TN_BF16, 2, {8, 64}, -1, 1});
    CHECK(crosswise, 0, 0, {TN_I64, 2, {9, 1000}, -99, 99}, {TN_I64, 2, {1000, 9}, -99, 99});
}

/* Rows of [n, r, w] of which an operand, and a result, lie as [n, w, r]. */
GRAPH(crosswise_rows)
{
    tn_tensor *x = op2(TN_OP_add, in[0], tn_mk_swap(in[1], 1, 2));
    tn_tensor *less = op2(TN_OP_sub, x, back(tn_mk_reduce(TN_OP_reduce_max, x, 1u << 2), x));
    root[0] = op2(TN_OP_maximum, less, num(g, -1));
    root[1] = tn_mk_contiguous(tn_mk_swap(op2(TN_OP_mul, less, num(g, 2)), 1, 2));
    return 2;
}

/* The same, and sums over the rows. */
GRAPH(crosswise_sums)
{
    tn_tensor *x = op2(TN_OP_add, in[0], tn_mk_swap(in[1], 1, 2));
    root[0] = op2(TN_OP_sub, x, back(tn_mk_reduce(TN_OP_reduce_sum, x, 1u << 2), x));
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, op2(TN_OP_mul, x, num(g, .5)), 1u | 1u << 1);
    return 2;
}

/* Rows that are read twice as they lie, and all of whose results lie crosswise: columns of these. */
GRAPH(crosswise_columns)
{
    tn_tensor *less = op2(TN_OP_sub, in[0], back(tn_mk_reduce(TN_OP_reduce_max, in[0], 1u << 2), in[0]));
    root[0] = tn_mk_contiguous(tn_mk_swap(op2(TN_OP_mul, less, less), 1, 2));
    root[1] = op2(TN_OP_add, tn_mk_swap(less, 1, 2), num(g, 1));
    return 2;
}

/* Whether operands are turned into blocks, and blocks into results, of elements of 4 bytes. */
static void check_blocks(const rig_case *c, bool read, bool written)
{
    tn_session *s = rig_open(TN_CPU);
    tn_plan *p = rig_plan(s, c);
    bool reads = false, writes = false;
    for (int i = 0; i < p->n_step; i++)
        for (const char *at = p->step[i].source.text; at && (at = strstr(at, " tn_turn("));) {
            const char *comma = strchr(at, ',');
            const bool into = !strncmp(comma - 6, "_block", 6);
            reads = reads || into;
            writes = writes || !into;
            at = comma;
        }
    if (reads != read || writes != written) fail_msg("blocks are read: %d, written: %d", reads, writes);
    tn_plan_free(p);
    tn_close(s);
}

TEST(rows_and_columns_go_crosswise_in_blocks)
{
    static const struct {
        tn_dtype dtype;
        int64_t n, r, w;
        double tolerance;
        bool fits;
    } all[] = {
        {TN_F32, 3, 70, 131, 3e-6, true}, {TN_F32, 2, 64, 128, 3e-6, true},
        {TN_F32, 5, 9, 8, 3e-6, true},    {TN_F32, 2, 33, 500, 3e-6, true},
        {TN_F64, 2, 40, 37, 1e-13, true}, {TN_BF16, 2, 45, 64, 4e-2, true},
        {TN_I32, 2, 31, 100, 0, true},    {TN_F32, 1, 200, 48, 3e-6, true},
        {TN_F32, 2, 7, 64, 3e-6, false},  {TN_F32, 1, 16, 3000, 3e-6, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const int64_t n = all[i].n, r = all[i].r, w = all[i].w;
        rig_case c = {2,
                      {{all[i].dtype, 3, {n, r, w}, -9, 9}, {all[i].dtype, 3, {n, w, r}, -9, 9}},
                      crosswise_rows,
                      0,
                      all[i].tolerance};
        rig_check(&c);
        if (i < 2) check_blocks(&c, true, true);
        if (!all[i].fits) check_blocks(&c, false, false);
        c.build = crosswise_sums;
        if (all[i].dtype != TN_I32) rig_check(&c);
        c.build = crosswise_columns;
        rig_check(&c);
        if (i < 2) check_blocks(&c, true, false);
    }
}

/* What jumps along the vector and is contiguous along no long atom: [n, c, groups] that is read as [n, groups,
 * c], as a shuffle of channels leaves it, and every second element, from the end. A few go through a line where there
 * is an exponential for each. */
GRAPH(strided_sums)
{
    tn_tensor *x = tn_mk_contiguous(in[0]), *turned = tn_mk_swap(in[1], 1, 2);
    tn_tensor *chosen = tn_mk3(TN_OP_where, op2(TN_OP_lt, x, num(g, 0)), num(g, 0), turned);
    root[0] = tn_mk_reduce(TN_OP_reduce_sum, op2(TN_OP_mul, chosen, x), 1u);
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, chosen, 1u);
    root[2] = tn_mk_contiguous(chosen);
    return 3;
}

GRAPH(strided_rows)
{
    const int64_t w = in[1]->shape[1];
    tn_tensor *x = op2(TN_OP_add, in[0], tn_mk_swap(in[1], 1, 2));
    tn_tensor *less = op2(TN_OP_sub, x, back(tn_mk_reduce(TN_OP_reduce_max, x, 1u << 2), x));
    root[0] = op1(TN_OP_exp, tn_mk_slice1(less, 2, w - 1, -2, (w + 1) / 2));
    root[1] = tn_mk_contiguous(less);
    return 2;
}

TEST(strided_operands_are_copied_to_lines)
{
    rng r = {31};
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F64, TN_F32};
    for (int round = 0; round < 24; round++) {
        const tn_dtype d = dtypes[round % 4];
        const int64_t n = 1 + rng_below(&r, 70), groups = 2 + rng_below(&r, 6), few = round % 3 == 2;
        const int64_t c = few ? 2 + rng_below(&r, 6) : 8 + rng_below(&r, 90);
        rig_case cases = {2,
                          {{d, 3, {n, groups, c}, -9, 9}, {d, 3, {n, c, groups}, -9, 9}},
                          round % 2 ? strided_sums : strided_rows,
                          0,
                          d == TN_F64   ? 1e-12
                          : d == TN_F32 ? 1e-5
                                        : 6e-2};
        rig_check(&cases);
        const int lines = rig_kernels_with(&cases, "_line[", NULL);
        if ((lines == 0) != (few && round % 2))
            fail_msg("[%d, %d, %d]: lines %d", (int)n, (int)groups, (int)c, lines);
    }
}

/* Where memory is contiguous for a few elements only, the vector runs along a longer atom. */
GRAPH(short_pieces)
{
    tn_tensor *x = op2(TN_OP_mul, in[0], op1(TN_OP_exp, in[0]));
    root[0] = op1(TN_OP_neg, tn_mk_contiguous(tn_mk_swap(x, 1, 2)));
    return 1;
}

TEST(vectors_are_not_short)
{
    rng r = {32};
    for (int round = 0; round < 12; round++) {
        const int64_t n = round % 3 ? 64 + rng_below(&r, 1500) : 8 + rng_below(&r, 54);
        const int64_t groups = 2 + rng_below(&r, 6), c = 2 + rng_below(&r, 6);
        rig_case cases = {1,
                          {{round % 2 ? TN_F32 : TN_BF16, 3, {n, groups, c}, -3, 3}},
                          short_pieces,
                          0,
                          round % 2 ? 1e-6 : 2e-2};
        rig_check(&cases);
        int steps;
        char line[32];
        snprintf(line, sizeof line, "_line[%d]", (int)n);
        const int lines = rig_kernels_with(&cases, line, &steps);
        assert_int_equal(steps, 1);
        if (lines != (n >= 64)) fail_msg("[%d, %d, %d]: lines %d", (int)n, (int)groups, (int)c, lines);
    }
}

/* Where memory jumps so that what the vector gains is lost, a transpose is a kernel of its own. */
TEST(kernels_that_would_jump_stay_apart)
{
    static const struct {
        int64_t n;
        int steps;
    } all[] = {{1500, 1}, {3000, 2}};
    for (int i = 0; i < 2; i++) {
        rig_case c = {1, {{TN_F32, 3, {all[i].n, 6, 6}, -3, 3}}, short_pieces, 0, 1e-6};
        int steps;
        rig_check(&c);
        rig_kernels_with(&c, "_line[", &steps);
        assert_int_equal(steps, all[i].steps);
    }
}

/* Results that lie backwards are written forwards: what is read for them goes through a line. */
GRAPH(backwards)
{
    const int64_t w = in[0]->shape[1];
    tn_tensor *x = op2(TN_OP_mul, in[0], op1(TN_OP_exp, in[1]));
    root[0] = tn_mk_contiguous(tn_mk_slice1(x, 1, w - 1, -1, w));
    return 1;
}

TEST(results_are_written_forwards)
{
    static const int64_t widths[] = {9, 16, 100, 333};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int wide = 0; wide < 2; wide++) {
            const tn_dtype d = wide ? TN_F64 : TN_F32;
            rig_case c = {2,
                          {{d, 2, {37, widths[i]}, -3, 3}, {d, 2, {37, widths[i]}, -3, 3}},
                          backwards,
                          0,
                          wide ? 1e-14 : 1e-6};
            rig_check(&c);
            assert_int_equal(rig_kernels_with(&c, "_line[", NULL), 1);
        }
}

GRAPH(past_the_caches)
{
    root[0] = op2(TN_OP_add, in[0], num(g, 1));
    root[1] = softmax(g, in[0], 1);
    root[2] = op2(TN_OP_lt, in[0], in[1]);
    root[3] = op2(TN_OP_mul, tn_mk_slice1(in[0], 1, 1, 1, in[0]->shape[1] - 1),
                  tn_mk_slice1(in[1], 0, 1, 1, in[1]->shape[0] - 1));
    tn_tensor *turned = tn_mk_slice1(in[0], 0, in[0]->shape[0] - 1, -1, in[0]->shape[0]);
    root[4] = tn_mk_concat(g, 3, (tn_tensor *[]){in[0], tn_mk_slice1(in[0], 1, 1, 1, 60), turned}, 1);
    root[5] = tn_mk_concat(g, 2, (tn_tensor *[]){turned, in[0]}, 0);
    return 6;
}

/* With a last cache of one byte everything is streamed. */
TEST(streamed_results_are_the_same)
{
    static const int64_t width[] = {64, 100, 256, 777, 3000};
    rig_last_bytes = 1;
    for (int i = 0; i < 5; i++)
        CHECK(past_the_caches, 0, 2e-6, {TN_F32, 2, {37, width[i]}, -5, 5}, {TN_F32, 1, {width[i]}, -5, 5});
    CHECK(past_the_caches, 0, 2e-3, {TN_F16, 2, {37, 333}, -5, 5}, {TN_F16, 1, {333}, -5, 5});
    rig_last_bytes = 0;
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

GRAPH(pool)
{
    root[0] = tn_mk_pool(TN_OP_pool_max, in[0], NULL, &pools);
    tn_tensor *at = root[1] = tn_mk_pool(TN_OP_pool_argmax, in[0], NULL, &pools);
    root[2] = tn_mk_pool(TN_OP_pool_sum, in[0], NULL, &pools);
    root[3] = tn_mk_pool(TN_OP_pool_take, in[0], at, &pools);
    root[4] = tn_mk_pool(TN_OP_pool_spread, root[2], NULL, &pools);
    root[5] = tn_mk_pool(TN_OP_pool_put, root[2], at, &pools);
    return 6;
}

TEST(pooling_of_every_geometry)
{
    static const int channels[] = {1, 3, 16, 33};
    for (int c = 0; c < 4; c++) {
        rig_leaf x = {TN_F32, 4, {2, 12, 14, channels[c]}, -2, 3};
        pools = pool_attr(12, 14, 2, 2, 2, 0, false);
        CHECK(pool, 0, 1e-6, x);
        pools = pool_attr(12, 14, 3, 3, 1, 1, false);
        CHECK(pool, 0, 1e-6, x);
        pools = pool_attr(12, 14, 3, 5, 2, 1, true);
        CHECK(pool, 0, 1e-6, x);
        pools = pool_attr(12, 14, 2, 3, 4, 0, false);
        CHECK(pool, 0, 1e-6, x);
    }
    pools = pool_attr(6, 2000, 3, 3, 2, 1, false);
    CHECK(pool, 0, 1e-2, {TN_F16, 4, {1, 6, 2000, 9}, -2, 3});
}

/* A part of x: some of each axis' places, forwards or backwards, and perhaps computed on. */
static tn_tensor *some_of(tn_tensor *x, int axis, int64_t most)
{
    const int64_t n = x->shape[axis], count = 1 + (int64_t)(rig_random() * (double)(n < most ? n : most));
    const int64_t kept = count > n ? n : count, step = kept > 1 && rig_random() < .4 ? -1 : 1;
    const int64_t first = (int64_t)(rig_random() * (double)(n - kept + 1));
    tn_tensor *y = tn_mk_slice1(x, axis, step > 0 ? first : first + kept - 1, step, kept);
    return rig_random() < .5 ? op1(TN_OP_neg, y) : y;
}

/* Joined, surrounded, looked at in part, read: each along axes drawn anew. */
GRAPH(borders)
{
    for (int k = 0; k < 6; k++) {
        tn_tensor *part[5], *x = in[k & 1];
        for (int layer = 0; layer < 2; layer++) {
            const int axis = (int)(rig_random() * x->ndim), n = 2 + (int)(rig_random() * 4);
            for (int i = 0; i < n; i++) part[i] = some_of(x, axis, 1500);
            x = tn_mk_concat(g, n, part, axis);
            int64_t edge[2][3] = {{0}};
            edge[0][axis] = (int64_t)(rig_random() * 3);
            edge[1][(axis + k) % 3] = (int64_t)(rig_random() * 20);
            if (rig_random() < .5) x = tn_mk_pad(x, num(g, layer), edge[0], edge[1]);
            if (rig_random() < .5) x = some_of(x, (axis + (rig_random() < .5)) % 3, 3000);
        }
        root[k] =
            rig_random() < .3 ? tn_mk_reduce(TN_OP_reduce_max, x, 1u << k % 3) : op2(TN_OP_mul, x, num(g, 2));
    }
    return 6;
}

TEST(borders_cut_loops_anywhere)
{
    static const tn_dtype type[] = {TN_F32, TN_U8, TN_BF16, TN_I64};
    for (int i = 0; i < 4; i++) {
        const int64_t last[] = {3, 17, 300, 5000};
        CHECK(borders, 0, 0, {type[i], 3, {4, 5, last[i]}, -3, 3}, {type[i], 3, {2, 3, last[3 - i]}, -3, 3});
    }
}

/* Thirty parts of each kind, some of them computed on, along an axis outside of the loop's or the loop's own.
 */
static int join_axis;
GRAPH(joins_thirty)
{
    tn_tensor *part[30];
    for (int i = 0; i < 30; i++) {
        tn_tensor *x = tn_mk_slice1(in[i & 1], join_axis, i % 3, 1, 1 + i % 2);
        part[i] = i % 5 ? x : op1(TN_OP_neg, x);
    }
    root[0] = tn_mk_concat(g, 30, part, join_axis);
    return 1;
}

TEST(each_of_many_parts_has_its_own_loop)
{
    const rig_case c = {
        2, {{TN_F32, 3, {4, 5, 40}, -1, 1}, {TN_F32, 3, {4, 5, 40}, -1, 1}}, joins_thirty, 0, 0};
    for (join_axis = 0; join_axis < 3; join_axis++) {
        rig_check(&c);
        int steps;
        assert_int_equal(rig_kernels_with(&c, "inside", &steps), 0); /* nothing is tested for each element */
        assert_int_equal(steps, 1);
    }
}

/* ---- random numbers ---- */

GRAPH(dropout)
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

/* Bits are made with each piece of a row, or of a stream, where rows begin at a block of four. */
GRAPH(dropout_by_pieces)
{
    tn_tensor *x = in[0], *p = tn_mk_typed(g, TN_OP_scalar, (tn_number){0.3, 0, false}, TN_F32);
    tn_tensor *keep = tn_mk_cast(tn_mk_random(g, TN_OP_bernoulli, TN_BOOL, x->ndim, x->shape, p), TN_F32);
    tn_tensor *u = tn_mk_random(g, TN_OP_uniform, TN_F32, x->ndim, x->shape, NULL);
    tn_tensor *y = op2(TN_OP_add, op2(TN_OP_mul, keep, x), u);
    root[0] = op2(TN_OP_sub, y, tn_mk_reduce(TN_OP_reduce_max, y, 1u << (x->ndim - 1)));
    root[1] = op2(TN_OP_mul, op2(TN_OP_mul, keep, u), x);
    u = tn_mk_random(g, TN_OP_uniform, TN_F32, x->ndim, x->shape, NULL);
    root[2] = op2(TN_OP_mul, u, root[0]);
    return 3;
}

GRAPH(dropout_alone)
{
    tn_tensor *x = in[0], *p = tn_mk_typed(g, TN_OP_scalar, (tn_number){0.3, 0, false}, TN_F32);
    tn_tensor *keep = tn_mk_cast(tn_mk_random(g, TN_OP_bernoulli, TN_BOOL, x->ndim, x->shape, p), TN_F32);
    root[0] = op2(TN_OP_mul, keep, x);
    return 1;
}

/* Dropout of column sums, and columns dropped from all rows at once. */
GRAPH(dropout_of_columns)
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

TEST(random_columns)
{
    CHECK(dropout_of_columns, 0, 1e-6, {TN_F32, 2, {33, 3}, -1, 1});
    CHECK(dropout_of_columns, 0, 1e-6, {TN_F32, 2, {50, 700}, -1, 1});
    CHECK(dropout_of_columns, 0, 2e-6, {TN_F32, 2, {5000, 70}, -1, 1});
}

/* Rows picked by an index that is the same for all columns, of which columns keep what they sum with. */
GRAPH(columns_of_picked_rows)
{
    tn_tensor *row = tn_mk_index_select(in[0], 0, in[1]), *w = in[2];
    tn_tensor *sum = tn_mk_reduce(TN_OP_reduce_sum, op2(TN_OP_mul, w, back(op1(TN_OP_sin, row), w)), 1);
    root[0] = op1(TN_OP_sin, row);
    root[1] = op2(TN_OP_mul, tn_mk_reshape(sum, row->ndim, row->shape), op1(TN_OP_cos, row));
    return 2;
}

TEST(picked_rows_in_columns)
{
    for (int64_t c = 5; c < 1000; c += 700)
        CHECK(columns_of_picked_rows, 0, 1e-6, {TN_F32, 2, {8, c}, -1, 1}, {TN_I32, 1, {10}, 0, 8},
              {TN_F32, 3, {4, 10, c}, -1, 1});
}

TEST(random_numbers_do_not_depend_on_the_schedule)
{
    CHECK(dropout, 0, 2e-6, {TN_F32, 2, {70, 33}, -1, 1});
    CHECK(dropout, 0, 2e-6, {TN_F32, 2, {5, 3001}, -1, 1});
    CHECK(dropout, 0, 1e-5, {TN_F32, 1, {5003}, -1, 1});
    CHECK(dropout, 0, 2e-6, {TN_F32, 3, {2, 1000, 70}, -1, 1});
    static const int64_t width[] = {20, 64, 72, 96, 101, 1000, 1024, 1064};
    for (size_t i = 0; i < 2 * (sizeof width / sizeof *width); i++) {
        rig_last_bytes = i % 2 ? 4096 : 0; /* written past the caches */
        CHECK(dropout_by_pieces, 0, 1e-6, {TN_F32, 2, {30, width[i / 2]}, -1, 1});
        CHECK(dropout_alone, 0, 0, {TN_F32, 2, {30, width[i / 2]}, -1, 1});
    }
    rig_last_bytes = 0;
}

RUN_TESTS(NULL, NULL)
