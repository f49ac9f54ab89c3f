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

GRAPH(views)
{
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

TEST(strided_operands)
{
    CHECK(views, 0, 1e-6, {TN_F32, 3, {6, 8, 10}, -2, 2});
    CHECK(views, 0, 1e-6, {TN_I32, 3, {6, 8, 10}, -20, 20});
}

GRAPH(mixed_types)
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

TEST(types_mix_in_one_kernel)
{
    CHECK(mixed_types, 1, 1e-6, {TN_F32, 1, {1001}, -3, 3}, {TN_I32, 1, {1001}, -100, 100},
          {TN_BOOL, 1, {1001}, 0, 1});
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
        {TN_F32, 2, 7, 64, 3e-6, false},  {TN_F32, 2, 16, 3000, 3e-6, false},
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
 * c], as a shuffle of channels leaves it, and every second element, from the end. */
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
        tn_session *s = rig_open(TN_CPU);
        tn_plan *p = rig_plan(s, &cases);
        bool lines = false;
        for (int i = 0; i < p->n_step; i++)
            lines = lines || (p->step[i].source.text && strstr(p->step[i].source.text, "_line["));
        if (lines == few) fail_msg("[%d, %d, %d]: lines %d", (int)n, (int)groups, (int)c, lines);
        tn_plan_free(p);
        tn_close(s);
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
        const int64_t n = round % 3 ? 64 + rng_below(&r, 5000) : 2 + rng_below(&r, 60);
        const int64_t groups = 2 + rng_below(&r, 6), c = 2 + rng_below(&r, 6);
        rig_case cases = {1,
                          {{round % 2 ? TN_F32 : TN_BF16, 3, {n, groups, c}, -3, 3}},
                          short_pieces,
                          0,
                          round % 2 ? 1e-6 : 2e-2};
        rig_check(&cases);
        tn_session *s = rig_open(TN_CPU);
        tn_plan *p = rig_plan(s, &cases);
        assert_int_equal(p->n_step, 1);
        const bool lines = strstr(p->step[0].source.text, "_line[") != NULL;
        if (lines != (n >= 64)) fail_msg("[%d, %d, %d]: lines %d", (int)n, (int)groups, (int)c, lines);
        tn_plan_free(p);
        tn_close(s);
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

/* ---- indices ---- */

GRAPH(embed)
{
    root[0] = op2(TN_OP_add, tn_mk_index_select(in[0], 0, in[1]), in[2]);
    root[1] = tn_mk_index_select(in[2], 1, in[3]);
    root[2] = tn_mk_gather(in[2], 0, in[4]);
    return 3;
}

GRAPH(scatter)
{
    root[0] = tn_mk_index_add(in[0], 0, in[1], 2, (int64_t[]){50, 24});
    root[1] = tn_mk_index_add(in[0], 1, in[2], 2, (int64_t[]){90, 7});
    root[2] = tn_mk_scatter_add(in[0], 0, in[3], 2, (int64_t[]){13, 30});
    root[3] = tn_mk_scatter_add(in[0], 1, in[3], 2, (int64_t[]){90, 13});
    return 4;
}

TEST(gathers_and_scatters)
{
    CHECK(embed, 0, 1e-6, {TN_F32, 2, {50, 24}, -1, 1}, {TN_I64, 1, {90}, 0, 50},
          {TN_F32, 2, {90, 24}, -1, 1}, {TN_I32, 1, {11}, 0, 24}, {TN_I64, 2, {5, 20}, 0, 90});
    for (int i = 0; i < 2; i++)
        CHECK(scatter, 0, i ? 1e-2 : 1e-6, {i ? TN_BF16 : TN_F32, 2, {90, 24}, -1, 1},
              {TN_I64, 1, {90}, 0, 50}, {TN_I32, 1, {24}, 0, 7}, {TN_I64, 2, {90, 24}, 0, 13});
}

TEST(a_bad_index_is_reported)
{
    static const int64_t bad[] = {50, -1};
    for (int b = 0; b < 4; b++) {
        tn_session *s = tn_open_with(&(tn_options){
            .size = sizeof(tn_options), .device = TN_CPU, .mode = TN_EAGER, .seed = 5, .log = quiet});
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

GRAPH(scans)
{
    for (int i = 0; i < 3; i++) root[i] = tn_mk_scan(TN_OP_cumsum, in[0], i, i == 1);
    root[3] = tn_mk_scan(TN_OP_cumsum, tn_mk_permute(in[0], (int[]){2, 1, 0}), 1, true);
    return 4;
}

TEST(cumsum_along_every_axis)
{
    CHECK(scans, 4, 1e-6, {TN_F32, 3, {7, 9, 300}, -1, 1});
    CHECK(scans, 0, 0, {TN_I32, 3, {7, 9, 5}, -10, 10});
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

/* ---- copies ---- */

GRAPH(joins)
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

TEST(pad_and_concat)
{
    CHECK(joins, 0, 0, {TN_F32, 3, {4, 5, 6}, -1, 1});
    CHECK(joins, 0, 0, {TN_BF16, 3, {4, 5, 6}, -1, 1});
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
        tn_session *s = rig_open(TN_CPU);
        tn_plan *p = rig_plan(s, &c);
        assert_int_equal(p->n_step, 1);
        assert_null(strstr(p->step[0].source.text, "inside")); /* nothing is tested for each element */
        tn_plan_free(p);
        tn_close(s);
    }
}

/* ---- library steps ---- */

GRAPH(products)
{
    tn_tensor *x = in[0], *w = in[1]; /* [3, 5, 16], [8, 16] */
    root[0] = tn_mk_matmul(x, tn_mk_swap(w, 0, 1), in[2]);
    root[1] = tn_mk_matmul(tn_mk_swap(x, 1, 2), x, NULL);
    root[2] = tn_mk_matmul(tn_mk_slice1(x, 2, 0, 2, 8), tn_mk_slice1(tn_mk_swap(x, 1, 2), 1, 1, 2, 8), NULL);
    root[3] = tn_mk_matmul(op1(TN_OP_relu, tn_mk_slice1(x, 1, 0, 1, 1)), tn_mk_swap(w, 0, 1), NULL);
    return 4;
}

TEST(matrix_products_take_strides)
{
    CHECK(products, 0, 2e-6, {TN_F32, 3, {3, 5, 16}, -1, 1}, {TN_F32, 2, {8, 16}, -1, 1},
          {TN_F32, 1, {8}, -1, 1});
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

/* ---- other ---- */

GRAPH(empties)
{
    root[0] = op2(TN_OP_add, in[0], num(g, 1));
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 1);
    root[2] = tn_mk_reduce(TN_OP_reduce_sum, in[0], 2);
    root[3] = tn_mk_reduce(TN_OP_reduce_prod, in[0], 3);
    return 4;
}

TEST(tensors_without_elements)
{
    CHECK(empties, 0, 0, {TN_F32, 2, {0, 5}, 0, 1});
    CHECK(empties, 0, 0, {TN_F32, 2, {5, 0}, 0, 1});
}

GRAPH(positions)
{
    const int64_t *shape = in[0]->shape;
    tn_tensor *row = tn_mk_iota(g, 0, 2, shape, TN_I64), *col = tn_mk_iota(g, 1, 2, shape, TN_I64);
    tn_tensor *causal = op2(TN_OP_le, col, row);
    root[0] = softmax(g, tn_mk3(TN_OP_where, causal, in[0], num(g, -(double)INFINITY)), 1);
    root[1] = tn_mk_iota(g, 1, 2, shape, TN_F32);
    return 2;
}

TEST(positions_are_computed) { CHECK(positions, 0, 1e-6, {TN_F32, 2, {70, 90}, -1, 1}); }

RUN_TESTS(NULL, NULL)
