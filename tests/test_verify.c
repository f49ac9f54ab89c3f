/* test_verify.c - the checks between the passes find what they are for. Small graphs go through the passes
 * one by one; each case breaks one rule behind a pass, and the check must name that pass and that rule.
 * Unbroken, they all pass. Start with every_rule_is_named. */
#include "fuser/fuser.h"
#include "fuser_rig.h"
#include "src/runtime/flush.h"

enum { GRAPH, FOLDED, GROUPS, PROGRAM, STEPS, MEMORY };
enum { MAX = 16 };

typedef struct bed {
    tn_session *s;
    tn_tensor *node[MAX], *leaf[MAX];
    uint8_t root[MAX];
    tn_segment seg;
    tn_errbuf err;
    fu_ctx c;
} bed;

/* ---- graphs: node 0 .. in the order they are made ---- */

/* 0 e = exp(x), 1 m = e @ w, 2 relu(m), which the product applies, 3 s = sum of e's rows, 4 e / s */
static int chain(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    tn_tensor *e = tn_mk1(TN_OP_exp, in[0]), *m = tn_mk_matmul(e, in[1], NULL);
    root[0] = tn_mk1(TN_OP_relu, m);
    root[1] = tn_mk2(TN_OP_div, e, tn_mk_expand(tn_mk_reduce(TN_OP_reduce_sum, e, 2), 2, e->shape));
    return 2;
}

/* 0 sum of x's rows, 1 x / sum, 2 sin(y), 3 x = sin(y): one kernel of two phases reads x and overwrites it */
static int in_place(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    tn_tensor *x = in[0];
    root[0] = tn_mk2(TN_OP_div, x, tn_mk_expand(tn_mk_reduce(TN_OP_reduce_sum, x, 2), 2, x->shape));
    root[1] = tn_mk_assign(x, tn_mk1(TN_OP_sin, in[2]));
    return 2;
}

/* 0 x @ w, 1 x + y, 2 x = x + y: the product reads what is then overwritten */
static int overwritten(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    root[0] = tn_mk_matmul(in[0], in[1], NULL);
    root[1] = tn_mk_assign(in[0], tn_mk2(TN_OP_add, in[0], in[2]));
    return 2;
}

/* 0 x @ w, 1 exp, 2 @ w, 3 exp, 4 @ w: five kernels in a row, and memory for what is between them */
static int row(tn_graph *g, tn_tensor *const *in, tn_tensor **root)
{
    (void)g;
    tn_tensor *a = tn_mk1(TN_OP_exp, tn_mk_matmul(in[0], in[1], NULL));
    tn_tensor *b = tn_mk1(TN_OP_exp, tn_mk_matmul(a, in[1], NULL));
    root[0] = tn_mk_matmul(b, in[1], NULL);
    return 1;
}

typedef int build_fn(tn_graph *g, tn_tensor *const *in, tn_tensor **root);

static void lay_out(bed *b, build_fn *build)
{
    memset(b, 0, sizeof *b);
    b->s = tn_open_with(&(tn_options){
        .size = sizeof(tn_options), .device = TN_CPU, .mode = TN_FUSED, .seed = 5, .log = rig_quiet});
    assert_non_null(b->s);
    const rig_leaf l = {TN_F32, 2, {48, 48}, -1, 1};
    tn_tensor *h[3], *in[3], *root[MAX];
    for (int i = 0; i < 3; i++) h[i] = rig_make(b->s, &l);
    assert_int_equal(tn_step_begin(b->s), 0);
    for (int i = 0; i < 3; i++) in[i] = tn_use(tn_resolve(h[i]));
    int n = build(&b->s->graph, in, root), n_node = 0, n_leaf = 0;
    for (uint32_t i = 0; i < b->s->graph.n_nodes; i++) {
        tn_tensor *t = b->s->graph.nodes[i];
        if (t->base->flags & TN_F_DONE)
            b->leaf[n_leaf++] = t;
        else if (t->base == t) {
            for (int r = 0; r < n; r++) b->root[n_node] |= root[r] == t;
            b->node[n_node++] = t;
        }
        assert_true(n_node < MAX && n_leaf < MAX);
    }
    b->seg = (tn_segment){.graph = &b->s->graph,
                          .node = b->node,
                          .n_node = n_node,
                          .leaf = b->leaf,
                          .n_leaf = n_leaf,
                          .root = b->root};
    b->c = (fu_ctx){.seg = &b->seg, .target = &b->s->target, .err = &b->err};
    b->c.plan = tn_calloc(1, sizeof *b->c.plan);
    assert_non_null(b->c.plan);
}

static void clear(bed *b)
{
    tn_arena_free(&b->c.arena);
    tn_plan_free(b->c.plan);
    tn_step_end(b->s);
    tn_close(b->s);
}

/* The program of the group that stores the node. */
static void schedule(fu_ctx *c, int node)
{
    const fu_group *g = &c->group[fu_group_of(c, node)];
    const fu_candidate k = fu_candidate_of(c, g);
    assert_int_equal(fu_try(c, &k), TN_CUT_NONE);
}

/* Up to a stage, all of it right. node: whose program is looked at. */
static void pass_until(bed *b, int stage, int node)
{
    fu_ctx *c = &b->c;
    assert_int_equal(fu_begin(c), 0);
    assert_int_equal(fu_simplify(c), 0);
    assert_int_equal(fu_order_lookups(c), 0);
    assert_int_equal(fu_verify_graph(c, "simplify"), 0);
    if (stage == GRAPH) return;
    fu_tile_mark(c);
    fu_fold(c);
    fu_tile_mark_products(c);
    assert_int_equal(fu_verify_graph(c, "fold"), 0);
    if (stage == FOLDED) return;
    assert_int_equal(fu_group_all(c), 0);
    assert_int_equal(fu_verify_groups(c), 0);
    if (stage == GROUPS) return;
    if (stage == PROGRAM) {
        schedule(c, node);
        assert_int_equal(fu_verify_program(c, c->prog), 0);
        return;
    }
    assert_int_equal(fu_emit_all(c), 0);
    assert_int_equal(fu_list_values(c), 0);
    assert_int_equal(fu_verify_steps(c), 0);
    if (stage == STEPS) return;
    assert_int_equal(tn_plan_memory(c->plan), 0);
    assert_int_equal(tn_plan_verify_memory(c->plan, &b->err), 0);
}

static int verify(bed *b, int stage)
{
    fu_ctx *c = &b->c;
    switch (stage) {
    case GRAPH:
        return fu_verify_graph(c, "simplify");
    case FOLDED:
        return fu_verify_graph(c, "fold");
    case GROUPS:
        return fu_verify_groups(c);
    case PROGRAM:
        return fu_verify_program(c, c->prog);
    case STEPS:
        return fu_verify_steps(c);
    default:
        return tn_plan_verify_memory(c->plan, &b->err);
    }
}

/* ---- what can be wrong ---- */

#define BREAK(name, ...)                                                                                     \
    static void name(fu_ctx *c)                                                                              \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

BREAK(stands_younger, c->node[0].same = c->node[4].t;)
BREAK(stands_shape, c->node[0].same = c->node[3].t;)
BREAK(stands_twice, c->node[0].same = c->node[4].t; c->node[4].same = c->seg->leaf[0];)
BREAK(operand_dead, c->node[0].live = false; c->node[0].n_user = 0;)
BREAK(no_users, c->node[0].n_user = 0;)
BREAK(no_waiting, c->node[1].n_after = 0;)
BREAK(root_dead, c->node[2].live = false;)
BREAK(wrong_kind, c->node[1].kind = TN_KIND_CONV;)
BREAK(user_dead, assert_true(c->node[4].n_user == 0); c->node[3].user[0] = 0;)
BREAK(waits_itself, assert_true(fu_note_after(c, 0, 4));)
BREAK(bad_guard, static tn_guard g; g.leaf = 0; c->plan->guard = &g; c->plan->n_guard = 1;)

BREAK(nobody_writes, c->node[1].into = -1;)
BREAK(writes_beyond, c->node[1].into_offset = 1;)
BREAK(writes_unspared, c->node[2].spared = false;)

BREAK(no_group, c->node[0].group = -1;)
BREAK(other_room, c->group[fu_group_of(c, 1)].room = FU_CONV;)
BREAK(not_spared, c->group[fu_group_of(c, 2)].room = FU_LOOPS;)
BREAK(crowded, fu_group *g = &c->group[fu_group_of(c, 1)]; static int two[2]; two[0] = 1; two[1] = 2;
      g->n = 2; g->member = two;)
BREAK(disordered, fu_group *g = &c->group[fu_group_of(c, 4)]; int t = g->member[0]; assert_true(g->n > 1);
      g->member[0] = g->member[1]; g->member[1] = t;)
BREAK(stranger, fu_group *g = &c->group[fu_group_of(c, 4)]; static int more[8]; more[0] = 0; more[1] = 1;
      for (int i = 1; i < g->n; i++) more[i + 1] = g->member[i]; g->member = more; g->n++;)
BREAK(circle, assert_true(fu_note_after(c, 0, 1));)

static fu_value *find(fu_ctx *c, fu_kind kind)
{
    for (int i = 0; i < c->prog->n_value; i++)
        if (c->prog->value[i].kind == kind) return &c->prog->value[i];
    fail_msg("no value of kind %d", kind);
    return NULL;
}
static fu_store *store_of(fu_ctx *c, int node)
{
    for (int i = 0; i < c->prog->n_store; i++)
        if (c->prog->store[i].node == node) return &c->prog->store[i];
    fail_msg("node %d is not stored", node);
    return NULL;
}

BREAK(reads_behind, fu_value *v = find(c, FU_OP); v->arg[0] = (int)(v - c->prog->value);)
BREAK(too_few_operands, find(c, FU_OP)->n_arg = 0;)
BREAK(other_type, find(c, FU_OP)->from = TN_I32;)
BREAK(does_not_change, find(c, FU_OP)->vary = 0;)
BREAK(reads_below, find(c, FU_LOAD)->offset = -1;)
BREAK(reads_beyond, find(c, FU_LOAD)->stride[0] *= 2;)
BREAK(reduces_more, find(c, FU_REDUCE)->reduces = ~0u;)
BREAK(over_early, find(c, FU_REDUCE)->phase = 0;)
BREAK(not_computed, c->prog->value[store_of(c, 4)->value].need = 0;)
BREAK(writes_past, store_of(c, 4)->offset = 1;)
BREAK(writes_part, store_of(c, 4)->dom &= ~1u;)
BREAK(writes_twice, memset(store_of(c, 4)->stride, 0, sizeof c->prog->store[0].stride);)
BREAK(writes_type, store_of(c, 4)->dtype = TN_F64;)
BREAK(writes_early, store_of(c, 4)->phase = 0;)
BREAK(no_form, c->prog->form = FU_COLUMN;)
BREAK(not_late, store_of(c, 3)->late = false;)
BREAK(before_readers, store_of(c, 3)->phase = 0;)
BREAK(elsewhere, fu_store *s = store_of(c, 3); int64_t t = s->stride[0]; s->stride[0] = s->stride[1];
      s->stride[1] = t;)

static void swap_steps(fu_ctx *c, int a, int b)
{
    tn_step t = c->plan->step[a];
    c->plan->step[a] = c->plan->step[b];
    c->plan->step[b] = t;
}
BREAK(read_first, swap_steps(c, 0, 1);)
BREAK(overwritten_first, swap_steps(c, 0, c->plan->n_step - 1);)
BREAK(root_missing, c->plan->n_step--;)
BREAK(writes_nothing, c->plan->step[0].n_out = 0;)
BREAK(nowhere, c->plan->step[0].buf[0] = 99;)
BREAK(writes_leaf, tn_step *s = &c->plan->step[0]; s->buf[s->n_buf - 1] = c->n_node;)
BREAK(never_written, c->plan->step[1].buf[0] = 3;)
BREAK(two_writers, tn_step *s = &c->plan->step[2]; s->buf[s->n_buf - 1] = 0;)

static tn_plan_value *value_of(fu_ctx *c, int slot)
{
    for (int i = 0; i < c->plan->n_value; i++)
        if (c->plan->value[i].slot == slot) return &c->plan->value[i];
    fail_msg("slot %d has no value", slot);
    return NULL;
}
BREAK(shares, value_of(c, 1)->offset = value_of(c, 0)->offset + 64;)
BREAK(outside, value_of(c, 0)->offset = c->plan->arena_bytes;)
BREAK(dies_early, value_of(c, 2)->last = value_of(c, 2)->first;)
BREAK(backwards, value_of(c, 2)->last = value_of(c, 2)->first - 1;)

typedef struct broken {
    build_fn *build;
    int stage, node; /* PROGRAM: whose */
    void (*break_it)(fu_ctx *c);
    const char *pass, *rule;
} broken;

static const broken cases[] = {
    {chain, GRAPH, 0, stands_younger, "simplify", "is not older than its reader"},
    {chain, GRAPH, 0, stands_shape, "simplify", "another dtype or shape"},
    {chain, GRAPH, 0, stands_twice, "simplify", "something else standing for it"},
    {chain, GRAPH, 0, operand_dead, "simplify", "a node that does not run"},
    {chain, GRAPH, 0, no_users, "simplify", "not among the users"},
    {chain, GRAPH, 0, no_waiting, "simplify", "does not wait for what it reads"},
    {chain, GRAPH, 0, root_dead, "simplify", "a root does not run"},
    {chain, GRAPH, 0, wrong_kind, "simplify", "not that of its op"},
    {chain, GRAPH, 0, user_dead, "simplify", "a user is older"},
    {chain, GRAPH, 0, waits_itself, "simplify", "nodes wait for each other"},
    {chain, GRAPH, 0, bad_guard, "simplify", "no run-time number"},
    {chain, FOLDED, 0, nobody_writes, "fold", "nobody writes all of it"},
    {chain, FOLDED, 0, writes_beyond, "fold", "outside of the node"},
    {chain, FOLDED, 0, writes_unspared, "fold", "a node that is not spared"},
    {chain, GROUPS, 0, no_group, "group", "no group stores it"},
    {chain, GROUPS, 0, other_room, "group", "does not belong into its group's room"},
    {chain, GROUPS, 0, not_spared, "group", "its group is not"},
    {chain, GROUPS, 0, crowded, "group", "can only compute one node"},
    {chain, GROUPS, 0, disordered, "group", "not in order"},
    {chain, GROUPS, 0, stranger, "group", "does not belong into its group's room"},
    {chain, GROUPS, 0, circle, "group", "groups wait for each other"},
    {chain, PROGRAM, 4, reads_behind, "schedule", "reads one behind it"},
    {chain, PROGRAM, 4, too_few_operands, "schedule", "too few or too many operands"},
    {chain, PROGRAM, 4, other_type, "schedule", "operands of another type"},
    {chain, PROGRAM, 4, does_not_change, "schedule", "does not change as its operands do"},
    {chain, PROGRAM, 4, reads_below, "schedule", "an address outside of its buffer"},
    {chain, PROGRAM, 4, reads_beyond, "schedule", "an address outside of its buffer"},
    {chain, PROGRAM, 4, reduces_more, "schedule", "outside of its space"},
    {chain, PROGRAM, 4, over_early, "schedule", "over before its operand's"},
    {chain, PROGRAM, 4, not_computed, "schedule", "a phase that does not compute it"},
    {chain, PROGRAM, 4, writes_past, "schedule", "an address outside of its buffer"},
    {chain, PROGRAM, 4, writes_part, "schedule", "more or fewer elements"},
    {chain, PROGRAM, 4, writes_twice, "schedule", "stores an element twice"},
    {chain, PROGRAM, 4, writes_type, "schedule", "another type than its buffer's"},
    {chain, PROGRAM, 4, writes_early, "schedule", "a store before its value is there"},
    {chain, PROGRAM, 4, no_form, "schedule", "a column that is reduced along the vector"},
    {in_place, PROGRAM, 3, not_late, "schedule", "overwrites what it has yet to read"},
    {in_place, PROGRAM, 3, before_readers, "schedule", "before the last phase"},
    {in_place, PROGRAM, 3, elsewhere, "schedule", "overwrites other elements than it reads"},
    {row, STEPS, 0, read_first, "emit", "is read before it is written"},
    {overwritten, STEPS, 0, overwritten_first, "emit", "overwrites what a later step reads"},
    {row, STEPS, 0, root_missing, "emit", "a root, and no step writes it"},
    {row, STEPS, 0, writes_nothing, "emit", "a step that writes nothing"},
    {row, STEPS, 0, nowhere, "emit", "an operand nowhere"},
    {row, STEPS, 0, writes_leaf, "emit", "a step that writes a leaf"},
    {row, STEPS, 0, never_written, "emit", "is read before it is written"},
    {row, STEPS, 0, two_writers, "emit", "is written"},
    {row, MEMORY, 0, shares, "memory", "a value that lives at the same time"},
    {row, MEMORY, 0, outside, "memory", "outside of the arena"},
    {row, MEMORY, 0, dies_early, "memory", "outside of its life"},
    {row, MEMORY, 0, backwards, "memory", "dies before it is made"},
};

static void every_rule_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const broken *k = &cases[i];
        bed b;
        char pass[32];
        lay_out(&b, k->build);
        pass_until(&b, k->stage, k->node);
        k->break_it(&b.c);
        int status = verify(&b, k->stage);
        snprintf(pass, sizeof pass, "after %s: ", k->pass);
        if (status != TN_E_INTERNAL || strncmp(b.err.text, pass, strlen(pass)) ||
            !strstr(b.err.text, k->rule))
            fail_msg("case %zu: %d \"%s\", expected \"%s .. %s\"", i, status, b.err.text, pass, k->rule);
        clear(&b);
    }
}

/* The error says which node of which line it is about. */
static void the_line_is_named(void **state)
{
    (void)state;
    bed b;
    lay_out(&b, chain);
    tn_call call = {.name = "exp", .file = "train.c", .line = 41};
    b.node[0]->call = &call;
    pass_until(&b, GROUPS, 0);
    b.c.node[0].group = -1;
    assert_int_equal(fu_verify_groups(&b.c), TN_E_INTERNAL);
    assert_string_equal(b.err.text, "after group: node 0 (exp of exp at train.c:41): no group stores it");
    clear(&b);
}

static void what_is_right_passes(void **state)
{
    (void)state;
    build_fn *all[] = {chain, in_place, overwritten, row};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bed b;
        lay_out(&b, all[i]);
        pass_until(&b, MEMORY, 0);
        assert_string_equal(b.err.text, "");
        clear(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_right_passes),
        cmocka_unit_test(every_rule_is_named),
        cmocka_unit_test(the_line_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
