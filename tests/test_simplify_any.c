/* test_simplify_any.c - random graphs of few operators over two matrices, so that values are made twice,
 * views lead there and back, and numbers are 0, 1 and -1: what simplifying leaves of them has the values of
 * the reference. How much it found is printed, and asserted. Start with another. */
#include "fuser_rig.h"

static rng dice;

static int roll(int n) { return (int)rng_below(&dice, n); }

/* One of few values made of two others or a view of them, so that many are made twice. */
static tn_tensor *another(tn_graph *g, tn_tensor *x, tn_tensor *y)
{
    static const tn_op two[] = {TN_OP_add, TN_OP_sub, TN_OP_mul, TN_OP_maximum},
                       one[] = {TN_OP_neg, TN_OP_tanh, TN_OP_abs, TN_OP_relu};
    const int64_t flat[] = {64};
    switch (roll(9)) {
    case 0:
    case 1: return tn_mk1(TN_OP_tanh, tn_mk2(two[roll(4)], x, y));
    case 2:
    case 3: return tn_mk1(one[roll(4)], x);
    case 4: return tn_mk_swap(x, 0, 1);
    case 5:
        return tn_mk2(two[roll(3)], x,
                      roll(2) ? tn_mk_num(g, roll(3) - 1) : tn_mk_scalar(g, tn_number_f(roll(3) - 1)));
    case 6: return tn_mk1(TN_OP_tanh, tn_mk_expand(tn_mk_reduce(TN_OP_reduce_sum, x, 2), 2, x->shape));
    case 7: return roll(2) ? tn_mk_contiguous(x) : tn_mk1(TN_OP_tanh, tn_mk_matmul(x, y, NULL));
    default: return tn_mk_reshape(tn_mk1(TN_OP_neg, tn_mk_reshape(x, 1, flat)), 2, x->shape);
    }
}

GRAPH(anything)
{
    enum { MADE = 24 };
    const rng start = dice; /* the same on each device */
    tn_tensor *v[MADE + 2] = {in[0], in[1]};
    for (int i = 2; i < MADE + 2; i++)
        v[i] = another(g, v[roll(3) ? roll(i) : roll(2)], v[roll(3) ? roll(i) : roll(2)]);
    for (int i = 0; i < 4; i++)
        root[i] = tn_mk2(TN_OP_add, v[MADE + 1 - i], tn_mk1(TN_OP_neg, v[2 + roll(MADE)])); /* no views */
    dice = start;
    return 4;
}

TEST(any_graph_keeps_its_values)
{
    enum { GRAPHS = 80 };
    int common = 0, folded = 0, guards = 0;
    setenv("TENSOR_KERNEL_OPT", "0", 1);
    for (int i = 0; i < GRAPHS; i++) {
        rig_case c = CASE(anything, 0, 1e-4, {TN_F32, 2, {8, 8}, -1, 1}, {TN_F32, 2, {8, 8}, -1, 1});
        dice.state = (uint64_t)i;
        rig_check(&c);
        tn_session *s = rig_open(TN_CPU);
        assert_non_null(s);
        tn_plan *p = rig_plan(s, &c);
        common += p->n_common;
        folded += p->n_folded;
        guards += p->n_guard;
        tn_plan_free(p);
        tn_close(s);
    }
    unsetenv("TENSOR_KERNEL_OPT");
    print_message("%d common, %d folded, %d guards in %d graphs\n", common, folded, guards, GRAPHS);
    assert_true(common > GRAPHS && folded > GRAPHS / 2 && guards > GRAPHS / 4);
}

RUN_TESTS(NULL, NULL)
