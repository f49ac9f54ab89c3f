/* test_fuser_plans.c - what a plan is beside its numbers: text that does not depend on the batch, names,
 * assignments in place and through copies, results in the place of operands, dead and needless nodes, reasons
 * for cuts, failing allocations.
 * Start with adamw_is_one_kernel_in_place. */
#include "fuser_rig.h"

#include "src/runtime/flush.h"

static tn_tensor *num(tn_graph *g, double v) { return tn_mk_num(g, v); }

GRAPH(gelu)
{
    tn_tensor *x = in[0], *e = tn_mk1(TN_OP_erf, tn_mk2(TN_OP_mul, x, num(g, 0.70710678118654752)));
    root[0] = tn_mk2(TN_OP_mul, tn_mk2(TN_OP_mul, x, num(g, 0.5)), tn_mk2(TN_OP_add, e, num(g, 1)));
    return 1;
}

GRAPH(norm)
{
    tn_tensor *x = in[0], *m = tn_mk_reduce(TN_OP_reduce_sum, x, 2);
    tn_tensor *d = tn_mk2(TN_OP_sub, x, tn_mk_expand(tn_mk2(TN_OP_mul, m, num(g, 1.0 / 48)), 2, x->shape));
    root[0] = tn_mk2(TN_OP_mul, d, in[1]);
    root[1] = tn_mk_reduce(TN_OP_reduce_sum, root[0], 1);
    return 2;
}

TEST_ON(a_new_batch_compiles_nothing, rig_open(TN_CPU))
{
    for (int c = 0; c < 2; c++) {
        rig_case a = {2, {{TN_F32, 2, {4000, 48}, -1, 1}, {TN_F32, 1, {48}, -1, 1}}, c ? norm : gelu, 0, 0},
                 b = a;
        b.leaf[0].shape[0] = 3777;
        tn_plan *p = rig_plan(s, &a), *q = rig_plan(s, &b);
        assert_int_equal(p->n_step, q->n_step);
        for (int i = 0; i < p->n_step; i++) {
            assert_int_equal(p->step[i].kind, TN_STEP_KERNEL);
            assert_string_equal(p->step[i].source.text, q->step[i].source.text);
            assert_null(strstr(p->step[i].source.text, "4000"));
        }
        tn_plan *again = rig_plan(s, &a); /* and the same plan has the same text */
        for (int i = 0; i < p->n_step; i++)
            assert_string_equal(p->step[i].source.text, again->step[i].source.text);
        tn_plan_free(p);
        tn_plan_free(q);
        tn_plan_free(again);
    }
}

GRAPH(sum_of_two)
{
    root[0] = tn_mk2(TN_OP_add, in[0], in[1]);
    return 1;
}

/* Nobody will find a result in a cache that cannot hold it, nor one that holds less than its loop touches. */
TEST_ON(what_no_cache_keeps_is_written_past_it, rig_open(TN_CPU))
{
    static const struct {
        int64_t rows, cache;
        bool past;
    } of[] = {{1000, 64000, true},   /* the result alone is larger */
              {1000, 190000, true},  /* 192 kB in all */
              {1000, 195000, false}, /* all of it fits */
              {10, 1900, true}};
    const int64_t last = s->target.last_bytes;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        rig_leaf l = {TN_F32, 2, {of[i].rows, 16}, -1, 1};
        rig_case c = {2, {l, l}, sum_of_two, 0, 0};
        s->target.last_bytes = of[i].cache;
        tn_plan *p = rig_plan(s, &c);
        assert_int_equal(p->n_step, 1);
        assert_int_equal(strstr(p->step[0].source.text, "tn_stream(") != NULL, of[i].past);
        bool past = false;
        for (int k = 0; k < p->step[0].n_buf; k++) past = past || p->step[0].traffic[k].past;
        assert_int_equal(past, of[i].past);
        tn_plan_free(p);
    }
    s->target.last_bytes = last;
}

GRAPH(cuts)
{
    tn_tensor *x = in[0], *e = tn_mk1(TN_OP_exp, x);
    root[0] = tn_mk1(TN_OP_neg, tn_mk_slice1(e, 1, 1, 1, 3)); /* sliced */
    tn_tensor *total = tn_mk_reduce(TN_OP_reduce_sum, e, 3);  /* split, and needed by every element */
    root[1] = tn_mk2(TN_OP_div, e, tn_mk_expand(total, 2, x->shape));
    tn_tensor *unused = tn_mk1(TN_OP_log, tn_mk2(TN_OP_mul, x, num(g, 2)));
    (void)unused;
    root[2] = tn_mk2(TN_OP_add, tn_mk2(TN_OP_mul, x, num(g, 1)), num(g, 3)); /* times one: nothing */
    return 3;
}

TEST_ON(cuts_have_reasons_and_dead_nodes_do_not_run, rig_open(TN_CPU))
{
    rig_case c = {1, {{TN_F32, 2, {3000, 48}, -1, 1}}, cuts, 0, 0};
    tn_plan *p = rig_plan(s, &c);
    bool sliced = false, split = false;
    for (int i = 0; i < p->n_cut; i++) {
        sliced |= p->cut[i].reason == TN_CUT_SLICED;
        split |= p->cut[i].reason == TN_CUT_SPLIT;
        assert_true(p->cut[i].from < p->cut[i].to);
        assert_true(strlen(tn_cut_text(p->cut[i].reason)) > 5);
    }
    assert_true(sliced);
    assert_true(split);
    for (int i = 0; i < p->n_step; i++) {
        assert_null(strstr(p->step[i].source.text, "tn_log"));
        assert_null(strstr(p->step[i].source.text, "* 1.0f"));
        assert_non_null(strstr(p->step[i].source.text, p->step[i].source.entry));
        assert_true(p->step[i].bytes > 0);
    }
    tn_plan_free(p);
    CHECK(cuts, 0, 1e-6, {TN_F32, 2, {3000, 48}, -1, 1});
}

/* ---- assignment ---- */

enum { N = 5000 };

static tn_tensor *leaf(tn_session *s, float *data)
{
    return tn_from_at(s, data, TN_F32, 1, (int64_t[]){N}, "here", 1);
}

static float *numbers(float scale)
{
    float *v = malloc(N * sizeof *v);
    assert_non_null(v);
    for (int i = 0; i < N; i++) v[i] = scale * (float)((i * 37 + 11) % 1009) / 1009.0f;
    return v;
}

TEST(adamw_is_one_kernel_in_place)
{
    tn_session *s = rig_open(TN_CPU);
    float *p0 = numbers(1), *m0 = numbers(0.3f), *v0 = numbers(0.2f), *g0 = numbers(-2);
    tn_tensor *hp = leaf(s, p0), *hm = leaf(s, m0), *hv = leaf(s, v0), *hg = leaf(s, g0);
    tn_step_begin(s);
    tn_graph *g = &s->graph;
    tn_tensor *p = tn_use(tn_resolve(hp)), *m = tn_use(tn_resolve(hm)), *v = tn_use(tn_resolve(hv)),
              *d = tn_use(tn_resolve(hg));
    tn_tensor *lr = tn_mk_scalar(g, (tn_number){0.01, 0, false});
    tn_tensor *m1 = tn_mk2(TN_OP_add, tn_mk2(TN_OP_mul, m, num(g, 0.9)), tn_mk2(TN_OP_mul, d, num(g, 0.1)));
    tn_tensor *v1 = tn_mk2(TN_OP_add, tn_mk2(TN_OP_mul, v, num(g, 0.99)),
                           tn_mk2(TN_OP_mul, tn_mk1(TN_OP_square, d), num(g, 0.01)));
    tn_tensor *step = tn_mk2(TN_OP_div, m1, tn_mk2(TN_OP_add, tn_mk1(TN_OP_sqrt, v1), num(g, 1e-8)));
    tn_tensor *p1 = tn_mk2(TN_OP_sub, tn_mk2(TN_OP_mul, p, num(g, 0.999)), tn_mk2(TN_OP_mul, step, lr));
    tn_tensor *seen = tn_mk2(TN_OP_mul, p, num(g, 2)); /* reads the old value */
    tn_tensor *root[4] = {tn_mk_assign(m, m1), tn_mk_assign(v, v1), tn_mk_assign(p, p1), seen};
    uint64_t before = s->stats.kernels;
    if (tn_run(s, 4, root)) fail_msg("%s", s->graph.error.text);
    assert_int_equal(s->stats.kernels - before, 1);
    const float *np = tn_node_data(p), *nm = tn_node_data(m), *nv = tn_node_data(v),
                *old = tn_node_data(seen);
    for (int i = 0; i < N; i++) {
        double wm = 0.9 * (double)m0[i] + 0.1 * (double)g0[i],
               wv = 0.99 * (double)v0[i] + 0.01 * (double)g0[i] * (double)g0[i];
        double wp = 0.999 * (double)p0[i] - 0.01 * wm / (sqrt(wv) + 1e-8);
        assert_true(fabs(wm - (double)nm[i]) < 1e-6);
        assert_true(fabs(wv - (double)nv[i]) < 1e-6);
        assert_true(fabs(wp - (double)np[i]) < 1e-5);
        assert_true(fabsf(old[i] - 2 * p0[i]) < 1e-6f);
    }
    tn_close(s);
    free(p0);
    free(m0);
    free(v0);
    free(g0);
}

/* Source and target overlap at other places, two targets change places, and both old and new are read. */
TEST(assignments_read_before_they_write)
{
    tn_session *s = rig_open(TN_CPU);
    float *a0 = numbers(1), *b0 = numbers(-3);
    tn_tensor *ha = leaf(s, a0), *hb = leaf(s, b0);
    tn_step_begin(s);
    tn_graph *g = &s->graph;
    tn_tensor *a = tn_use(tn_resolve(ha)), *b = tn_use(tn_resolve(hb));
    tn_tensor *root[3];
    root[0] = tn_mk_assign(a, tn_mk_slice1(a, 0, N - 1, -1, N));
    root[1] = tn_mk2(TN_OP_add, root[0], num(g, 1));
    root[2] = tn_mk2(TN_OP_sub, a, tn_mk_slice1(a, 0, N - 1, -1, N));
    if (tn_run(s, 3, root)) fail_msg("%s", s->graph.error.text);
    const float *x = tn_node_data(a), *y = tn_node_data(root[1]), *z = tn_node_data(root[2]);
    for (int i = 0; i < N; i++) {
        assert_true(x[i] == a0[N - 1 - i]);
        assert_true(y[i] == a0[N - 1 - i] + 1);
        assert_true(z[i] == a0[i] - a0[N - 1 - i]);
    }
    tn_step_end(s);
    tn_step_begin(s);
    a = tn_use(tn_resolve(ha));
    b = tn_use(tn_resolve(hb));
    root[0] = tn_mk_assign(a, b);
    root[1] = tn_mk_assign(b, a);
    root[2] = tn_mk2(TN_OP_sub, a, root[0]);
    int status = tn_run(s, 3, root);
    if (!status) { /* done right, or refused: never done wrong */
        const float *p = tn_node_data(a), *q = tn_node_data(b);
        for (int i = 0; i < N; i++) {
            assert_true(p[i] == b0[i]);
            assert_true(q[i] == a0[N - 1 - i]);
        }
    } else {
        assert_int_equal(status, TN_E_UNSUPPORTED);
        tn_clear_error(s);
    }
    tn_close(s);
    free(a0);
    free(b0);
}

/* ---- failing allocations ---- */

TEST_ON(every_failing_allocation_is_an_error, rig_open(TN_CPU))
{
    rig_case c = {1, {{TN_F32, 2, {3000, 48}, -1, 1}}, cuts, 0, 0};
    rig_segment r;
    rig_record(s, &c, &r);
    int failed = 0;
    for (long k = 0;; k++) {
        tn_plan *p = NULL;
        tn_errbuf err = {""};
        tn_alloc_fail_after(k);
        int status = tn_plan_build(&r.seg, &s->target, &p, &err);
        tn_alloc_fail_after(-1);
        if (!status) {
            tn_plan_free(p);
            break;
        }
        assert_null(p);
        assert_true(status == TN_E_NOMEM || status == TN_E_UNSUPPORTED);
        assert_true(err.text[0] != 0);
        failed++;
    }
    assert_true(failed > 5);
}

/* ---- results in the place of operands ---- */

/* A running sum has a kernel of its own: what it makes, and what it takes, is in memory. */
static tn_tensor *running_sum(tn_tensor *x)
{
    tn_tensor *n = tn_node_new(x->graph, TN_OP_cumsum, TN_F32, x->ndim, x->shape, 1, &x);
    tn_attr *a = n ? tn_node_attr(n) : NULL;
    if (a) a->axis = 1;
    return n;
}

static int between_sums(tn_tensor **root, tn_tensor *middle)
{
    root[0] = running_sum(middle);
    return 1;
}

GRAPH(same_points)
{
    tn_tensor *x = running_sum(in[0]);
    return between_sums(root, tn_mk2(TN_OP_mul, tn_mk1(TN_OP_tanh, x), num(g, 2)));
}

GRAPH(same_points_of_rows)
{
    tn_tensor *x = running_sum(in[0]), *most = tn_mk_reduce(TN_OP_reduce_max, x, 2);
    return between_sums(root, tn_mk2(TN_OP_sub, x, tn_mk_expand(most, 2, x->shape)));
}

GRAPH(crosswise)
{
    tn_tensor *x = running_sum(in[0]);
    return between_sums(root, tn_mk2(TN_OP_sub, x, tn_mk_swap(x, 0, 1)));
}

GRAPH(another_row)
{
    tn_tensor *x = running_sum(in[0]), *first = tn_mk_slice1(x, 0, 0, 1, 1);
    return between_sums(root, tn_mk2(TN_OP_sub, x, tn_mk_expand(first, 2, x->shape)));
}

GRAPH(shifted)
{
    const int64_t before[2] = {0, 1}, after[2] = {0, 0};
    tn_tensor *x = running_sum(in[0]), *most = tn_mk_slice1(x, 1, 0, 1, x->shape[1] - 1);
    return between_sums(root, tn_mk2(TN_OP_sub, x, tn_mk_pad(most, num(g, 0), before, after)));
}

GRAPH(read_later)
{
    tn_tensor *x = running_sum(in[0]);
    between_sums(root, tn_mk2(TN_OP_mul, x, num(g, 2)));
    root[1] = running_sum(x);
    return 2;
}

static tn_tensor *joined(tn_tensor *a, tn_tensor *b)
{
    tn_tensor *const parts[2] = {a, b};
    return tn_mk_concat(a ? a->graph : NULL, 2, parts, 1);
}

GRAPH(joined_where_it_was)
{
    tn_tensor *x = running_sum(in[0]);
    return between_sums(root, joined(tn_mk_slice1(x, 1, 0, 1, 40), tn_mk_slice1(in[0], 1, 40, 1, 56)));
}

GRAPH(joined_elsewhere)
{
    tn_tensor *x = running_sum(in[0]);
    return between_sums(root, joined(tn_mk_slice1(in[0], 1, 0, 1, 40), tn_mk_slice1(x, 1, 20, 1, 56)));
}

GRAPH(beside_a_product)
{
    tn_tensor *x = running_sum(in[0]), *y = tn_mk_matmul(in[0], in[0], NULL);
    return between_sums(root, tn_mk2(TN_OP_mul, y, tn_mk1(TN_OP_tanh, x)));
}

GRAPH(of_its_own_product)
{
    tn_tensor *x = running_sum(in[0]), *y = tn_mk_matmul(x, in[0], NULL);
    return between_sums(root, tn_mk2(TN_OP_mul, y, tn_mk1(TN_OP_tanh, x)));
}

/* Of a running sum, a kernel and a running sum of that, the second value lies over the first where that is
 * not read elsewhere, and the numbers are right in any case. */
TEST_ON(results_take_the_place_of_operands, rig_open(TN_CPU))
{
    static const struct {
        int (*build)(tn_graph *g, tn_tensor *const *in, tn_tensor **root);
        bool shared;
    } cases[] = {{same_points, true},
                 {same_points_of_rows, true},
                 {crosswise, false},
                 {another_row, false},
                 {shifted, false},
                 {read_later, false},
                 {beside_a_product, true},
                 {of_its_own_product, false},
                 {joined_where_it_was, true},
                 {joined_elsewhere, false}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rig_case c = {1, {{TN_F32, 2, {96, 96}, -1, 1}}, cases[k].build, 0, 1e-5};
        tn_plan *p = rig_plan(s, &c);
        assert_int_equal(tn_plan_memory(p), 0);
        bool shared = false;
        for (int i = 0; i < p->n_value; i++) shared = shared || p->value[i].taken;
        if (shared != cases[k].shared) fail_msg("case %zu: shared %d", k, shared);
        assert_true(p->arena_bytes <= p->naive_bytes && p->least_bytes <= p->arena_bytes);
        const size_t one = 96 * 96 * 4;
        if (shared) assert_int_equal(p->arena_bytes, one);
        if (shared) assert_int_equal(p->least_bytes, one);
        if (shared) assert_int_equal(p->naive_bytes, 2 * one);
        tn_plan_free(p);
        rig_check(&c);
    }
}

static const tn_plan_value *value_at(const tn_plan *p, int slot)
{
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].slot == slot) return &p->value[i];
    return NULL;
}

/* Of a layer's two gradients the weight's comes first: what it alone has read makes room for the other, which
 * is the last that reads the gradient of the layer's result. */
TEST_ON(values_die_before_others_are_born, rig_open(TN_CPU))
{
    enum { LAYERS = 4, SIDE = 256 };
    tn_tensor *w[LAYERS];
    const char *const name[LAYERS] = {"a", "b", "c", "d"};
    for (int i = 0; i < LAYERS; i++) w[i] = tn_param(s, name[i], tn_randn(s, TN_F32, TN_SHAPE(SIDE, SIDE)));
    tn_step_begin(s);
    tn_tensor *h = tn_randn(s, TN_F32, TN_SHAPE(SIDE, SIDE));
    for (int i = 0; i < LAYERS; i++) h = tn_matmul(h, w[i]);
    tn_backward(tn_sum(tn_square(h), TN_ALL, false));
    tn_step_end(s);
    const tn_plan *p = tn_plan_cache_find(s->plans, s->scratch->key, s->scratch->n_key, NULL, NULL);
    assert_non_null(p);
    int forward = 0, seen = 0;
    for (int i = 0; i < p->n_step; i++) {
        const tn_step *st = &p->step[i];
        if (st->kind != TN_STEP_GEMM || forward++ < LAYERS) continue;
        const tn_plan_value *made = value_at(p, st->buf[3]), *of = value_at(p, st->buf[0]);
        if (!made || made->alias >= 0 || made->last == i) continue;
        seen++;
        if (of->last != i) fail_msg("step %d: what it reads is read until %d", i, of->last);
    }
    assert_int_equal(seen, LAYERS - 1);
}

/* Pieces of lent memory, some of which begin where the one before ends. */
static void lend(tn_plan *p, tn_lent *lent, int n, rng *r)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        at += TN_PLAN_ALIGN * rng_below(r, 3) * rng_below(r, 2);
        lent[i].low = at;
        lent[i].high = at += 1 + TN_PLAN_ALIGN * rng_below(r, 9) + (i % 3 ? TN_PLAN_ALIGN - 1 : 0);
        at = (at + TN_PLAN_ALIGN - 1) / TN_PLAN_ALIGN * TN_PLAN_ALIGN;
        lent[i].until = (int)rng_below(r, (uint64_t)p->n_step);
    }
    p->lent = lent, p->n_lent = n;
}

/* Values that live at once lie apart, but for those that a step writes over each other; in lent memory none
 * lies longer than it may, and there is need for it. */
enum { MOST_PARTS = 4 };

/* Cuts a value into parts that are read last at steps of its life; one of them as it dies. */
static void cut(tn_plan *p, int value, rng *r)
{
    tn_plan_value *v = &p->value[value];
    const size_t bytes = 4 * v->elems;
    const int n = 2 + (int)rng_below(r, MOST_PARTS - 1), longest = (int)rng_below(r, (uint64_t)n);
    if (bytes < (size_t)n * TN_PLAN_ALIGN) return;
    v->part = p->n_part;
    v->n_part = n;
    for (int k = 0; k < n; k++) {
        const size_t low = k ? p->part[p->n_part - 1].high : 0, each = bytes / (size_t)n / TN_PLAN_ALIGN;
        const uint64_t life = (uint64_t)(v->last - v->first + 1);
        const int one = v->first + (int)rng_below(r, life), other = v->first + (int)rng_below(r, life);
        p->part[p->n_part++] = (tn_plan_part){low, k + 1 < n ? low + each * TN_PLAN_ALIGN : bytes,
                                              k == longest  ? v->first
                                              : one < other ? one
                                                            : other,
                                              k == longest  ? v->last
                                              : one < other ? other
                                                            : one};
    }
}

/* Part k of a value, or all of it. */
static tn_plan_part part_of(const tn_plan *p, const tn_plan_value *v, int k)
{
    return v->n_part ? p->part[v->part + k] : (tn_plan_part){0, 4 * v->elems, v->first, v->last};
}

/* Returns true where some byte of both is needed at some step. */
static bool collide(const tn_plan *p, const tn_plan_value *a, const tn_plan_value *b)
{
    for (int i = 0; i < (a->n_part ? a->n_part : 1); i++)
        for (int k = 0; k < (b->n_part ? b->n_part : 1); k++) {
            const tn_plan_part x = part_of(p, a, i), y = part_of(p, b, k);
            if (x.first <= y.last && y.first <= x.last && a->offset + x.low < b->offset + y.high &&
                b->offset + y.low < a->offset + x.high)
                return true;
        }
    return false;
}

/* What a recurrence has read of its inputs makes room for what it keeps; gradients that are joined lie where
 * they were, one by one. */
TEST(parts_live_one_by_one)
{
    enum { PARTS = 8, ONE = 4 * TN_PLAN_ALIGN };
    tn_plan_value v[1 + PARTS] = {{.elems = PARTS * ONE / 4, .alias = -1, .last = PARTS, .n_part = PARTS}};
    tn_plan_part part[PARTS];
    tn_step step[PARTS + 2] = {{.n_buf = 0}};
    tn_plan p = {
        .value = v, .n_value = 1 + PARTS, .step = step, .n_step = PARTS + 2, .part = part, .n_part = PARTS};
    for (int i = 0; i < PARTS; i++) {
        part[i] = (tn_plan_part){(size_t)i * ONE, (size_t)(i + 1) * ONE, 0, 1 + i};
        v[1 + i] =
            (tn_plan_value){.slot = 1 + i, .elems = ONE / 4, .alias = -1, .first = 2 + i, .last = PARTS + 1};
    }
    assert_int_equal(tn_plan_memory(&p), 0);
    assert_int_equal(p.arena_bytes, PARTS * ONE);
    assert_int_equal(p.least_bytes, PARTS * ONE);
    for (int i = 0; i < PARTS; i++) { /* what is joined piece by piece, the newest first */
        part[i] = (tn_plan_part){(size_t)i * ONE, (size_t)(i + 1) * ONE, PARTS - i, PARTS + 1};
        v[1 + i] = (tn_plan_value){.slot = 1 + i, .elems = ONE / 4, .alias = -1, .last = PARTS - i};
    }
    v[0].first = 1;
    v[0].last = PARTS + 1;
    assert_int_equal(tn_plan_memory(&p), 0);
    assert_int_equal(p.arena_bytes, (PARTS + 1) * ONE);
    assert_int_equal(p.least_bytes, (PARTS + 1) * ONE);
    tn_session *s = rig_open(TN_CPU);
    enum { STEPS = 36, WIDTH = 32, BATCH = 8 }; /* more than one kernel joins */
    tn_tensor *w = tn_param(s, "w", tn_randn(s, TN_F32, TN_SHAPE(4 * WIDTH, WIDTH)));
    tn_tensor *in = tn_param(s, "in", tn_randn(s, TN_F32, TN_SHAPE(STEPS * BATCH, 64)));
    tn_tensor *to = tn_param(s, "to", tn_randn(s, TN_F32, TN_SHAPE(64, 4 * WIDTH)));
    tn_step_begin(s);
    tn_tensor *gates = tn_reshape(tn_matmul(in, to), TN_SHAPE(STEPS, BATCH, 4 * WIDTH));
    tn_backward(tn_sum(tn_square(tn_lstm(gates, w, NULL, NULL, NULL)), TN_ALL, false));
    tn_step_end(s);
    const tn_plan *q = tn_plan_cache_find(s->plans, s->scratch->key, s->scratch->n_key, NULL, NULL);
    assert_non_null(q);
    int die = 0, join = 0; /* values of which all parts do so one after the other */
    for (int i = 0; i < q->n_value; i++) {
        const tn_plan_value *parted = &q->value[i];
        int dead = 0, born = 0;
        for (int k = 1; k < parted->n_part; k++) {
            const tn_plan_part *a = &q->part[parted->part + k];
            const bool whole = a->low == (size_t)(4 * WIDTH * BATCH * 4 * k);
            dead += whole && a->last > a[-1].last && a->first == a[-1].first;
            born += whole && a->first > a[-1].first && a->last == a[-1].last;
        }
        die += dead == STEPS - 1;
        join += born == STEPS - 1;
    }
    if (die != 1 || join != 1) fail_msg("%d die and %d are joined step by step", die, join);
    tn_close(s);
}

TEST(values_that_live_at_once_lie_apart)
{
    enum { VALUES = 40, STEPS = 12, LENT = 9 };
    rng r = {1};
    int inside = 0;
    for (int round = 0; round < 400; round++) {
        tn_lent lent[LENT];
        tn_plan_value v[VALUES] = {0};
        tn_step step[STEPS] = {0};
        struct tn_over over[STEPS][VALUES];
        tn_plan_part part[VALUES * MOST_PARTS];
        tn_plan p = {.value = v, .n_value = VALUES, .step = step, .n_step = STEPS, .part = part};
        if (round % 2) lend(&p, lent, LENT, &r);
        for (int i = 0; i < VALUES; i++) {
            const int first = (int)rng_below(&r, STEPS), more = (int)rng_below(&r, 3 + STEPS / (1 + i % 5));
            v[i] = (tn_plan_value){.slot = i,
                                   .alias = -1,
                                   .elems = (size_t)(64 * rng_below(&r, 2 << i % 4)),
                                   .first = first,
                                   .last = first + more < STEPS ? first + more : STEPS - 1};
            if (round % 4 > 1 && i % 3 == 0) cut(&p, i, &r);
        }
        for (int k = 0; k < STEPS; k++) {
            step[k].over = over[k];
            for (int tries = 0; tries < VALUES; tries++) {
                const int a = (int)rng_below(&r, VALUES), b = (int)rng_below(&r, VALUES);
                if (v[a].last == k && v[b].first == k && a != b && v[a].elems == v[b].elems)
                    over[k][step[k].n_over++] = (struct tn_over){a, b};
            }
        }
        assert_int_equal(tn_plan_memory(&p), 0);
        assert_true(p.least_bytes <= p.arena_bytes && p.arena_bytes <= p.naive_bytes);
        for (int a = 0; a < VALUES; a++) {
            if (v[a].offset >= p.lent_bytes || !v[a].elems) continue;
            inside++;
            for (int k = 0; k < (v[a].n_part ? v[a].n_part : 1); k++) {
                const tn_plan_part t = part_of(&p, &v[a], k);
                const size_t low = v[a].offset + t.low, high = v[a].offset + t.high;
                if (high > p.lent_bytes || !tn_plan_lends(&p, low, high, t.last))
                    fail_msg("round %d: value %d lies in memory that is not lent", round, a);
            }
        }
        for (int a = 0; a < VALUES; a++)
            for (int b = 0; b < VALUES; b++) {
                bool may = a == b || !collide(&p, &v[a], &v[b]);
                for (int side = 0; side < 2 && !may; side++) {
                    const int from = side ? b : a, to = side ? a : b, k = v[to].first;
                    for (int i = 0; i < step[k].n_over && !may; i++)
                        may = over[k][i].from == from && over[k][i].to == to && v[a].offset == v[b].offset;
                }
                if (!may) fail_msg("round %d: values %d and %d share memory", round, a, b);
            }
    }
    assert_true(inside > 1000);
}

RUN_TESTS(NULL, NULL)
