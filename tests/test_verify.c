/* test_verify.c - the checks between the passes find what they are for. Small graphs go through the passes
 * one by one; each case breaks one rule behind a pass, and the check must name that pass and that rule.
 * Unbroken, they all pass. Start with every_rule_is_named. */
#include "fuser/fuser.h"
#include "fuser_rig.h"
#include "src/runtime/flush.h"

enum { GRAPH, FOLDED, GROUPS, PROGRAM, STEPS, MEMORY };

typedef struct bed {
    tn_session *s;
    rig_segment r;
    tn_errbuf err;
    fu_ctx c;
} bed;

/* ---- graphs: node 0 .. in the order they are made ---- */

/* 0 e = exp(x), 1 m = e @ w, 2 relu(m), which the product applies, 3 s = sum of e's rows, 4 e / s */
GRAPH(chain)
{
    tn_tensor *e = tn_mk1(TN_OP_exp, in[0]), *m = tn_mk_matmul(e, in[1], NULL);
    root[0] = tn_mk1(TN_OP_relu, m);
    root[1] = tn_mk2(TN_OP_div, e, tn_mk_expand(tn_mk_reduce(TN_OP_reduce_sum, e, 2), 2, e->shape));
    return 2;
}

/* 0 sum of x's rows, 1 x / sum, 2 sin(y), 3 x = sin(y): one kernel of two phases reads x and overwrites it */
GRAPH(in_place)
{
    tn_tensor *x = in[0];
    root[0] = tn_mk2(TN_OP_div, x, tn_mk_expand(tn_mk_reduce(TN_OP_reduce_sum, x, 2), 2, x->shape));
    root[1] = tn_mk_assign(x, tn_mk1(TN_OP_sin, in[2]));
    return 2;
}

/* 0 x @ w, 1 x + y, 2 x = x + y: the product reads what is then overwritten */
GRAPH(overwritten)
{
    root[0] = tn_mk_matmul(in[0], in[1], NULL);
    root[1] = tn_mk_assign(in[0], tn_mk2(TN_OP_add, in[0], in[2]));
    return 2;
}

/* 0 x @ w, 1 exp, 2 @ w, 3 exp, 4 @ w: products with what follows them in a row, and memory for what is
 * between them */
GRAPH(row)
{
    tn_tensor *a = tn_mk1(TN_OP_exp, tn_mk_matmul(in[0], in[1], NULL));
    tn_tensor *b = tn_mk1(TN_OP_exp, tn_mk_matmul(a, in[1], NULL));
    root[0] = tn_mk_matmul(b, in[1], NULL);
    return 1;
}

typedef int build_fn(tn_graph *g, tn_tensor *const *in, tn_tensor **root);

static void lay_out(bed *b, build_fn *build)
{
    memset(b, 0, sizeof *b);
    b->s = rig_open(TN_CPU);
    const rig_leaf l = {TN_F32, 2, {48, 48}, -1, 1};
    rig_record(b->s, &(rig_case){.n_leaf = 3, .leaf = {l, l, l}, .build = build}, &b->r);
    b->c = (fu_ctx){.seg = &b->r.seg, .target = &b->s->target, .err = &b->err};
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
    case GRAPH: return fu_verify_graph(c, "simplify");
    case FOLDED: return fu_verify_graph(c, "fold");
    case GROUPS: return fu_verify_groups(c);
    case PROGRAM: return fu_verify_program(c, c->prog);
    case STEPS: return fu_verify_steps(c);
    default: return tn_plan_verify_memory(c->plan, &b->err);
    }
}

/* ---- what can be wrong ---- */

typedef struct broken {
    build_fn *build;
    int stage, node; /* PROGRAM: whose */
    void (*break_it)(fu_ctx *c);
    const char *pass, *rule;
} broken;

static broken cases[64];
static int n_cases;

/* BREAK(graph, stage, whose program, pass, rule, what breaks it) */
#define BREAK(...)    BREAK_AT(__COUNTER__, __VA_ARGS__)
#define BREAK_AT(...) BREAK_ADD(__VA_ARGS__)
#define BREAK_ADD(id, build, stage, node, pass, rule, ...)                                                   \
    static void break_##id(fu_ctx *c) { __VA_ARGS__ }                                                        \
    __attribute__((constructor)) static void add_break_##id(void)                                            \
    {                                                                                                        \
        cases[n_cases++] = (broken){build, stage, node, break_##id, pass, rule};                             \
    }

BREAK(chain, GRAPH, 0, "simplify", "is not older than its reader", c->node[0].same = c->node[4].t;)
BREAK(chain, GRAPH, 0, "simplify", "another dtype or shape", c->node[0].same = c->node[3].t;)
BREAK(chain, GRAPH, 0, "simplify", "something else standing for it", c->node[0].same = c->node[4].t;
      c->node[4].same = c->seg->leaf[0];)
BREAK(chain, GRAPH, 0, "simplify", "a node that does not run", c->node[0].live = false;
      c->node[0].n_user = 0;)
BREAK(chain, GRAPH, 0, "simplify", "not among the users", c->node[0].n_user = 0;)
BREAK(chain, GRAPH, 0, "simplify", "does not wait for what it reads", c->node[1].n_after = 0;)
BREAK(chain, GRAPH, 0, "simplify", "a root does not run", c->node[2].live = false;)
BREAK(chain, GRAPH, 0, "simplify", "not that of its op", c->node[1].kind = TN_KIND_CONV;)
BREAK(chain, GRAPH, 0, "simplify", "a user is older", assert_true(c->node[4].n_user == 0);
      c->node[3].user[0] = 0;)
BREAK(chain, GRAPH, 0, "simplify", "nodes wait for each other", assert_true(fu_note_after(c, 0, 4));)
BREAK(chain, GRAPH, 0, "simplify", "no run-time number", static tn_guard g; g.leaf = 0; c->plan->guard = &g;
      c->plan->n_guard = 1;)

BREAK(chain, FOLDED, 0, "fold", "nobody writes all of it", c->node[1].into = -1;)
BREAK(chain, FOLDED, 0, "fold", "outside of the node", c->node[1].into_offset = 1;)
BREAK(chain, FOLDED, 0, "fold", "a node that is not spared", c->node[2].spared = false;)

BREAK(chain, GROUPS, 0, "group", "no group stores it", c->node[0].group = -1;)
BREAK(chain, GROUPS, 0, "group", "does not belong into its group's room",
      c->group[fu_group_of(c, 1)].room = FU_CONV;)
BREAK(chain, GROUPS, 0, "group", "its group is not", c->group[fu_group_of(c, 2)].room = FU_LOOPS;)
BREAK(chain, GROUPS, 0, "group", "can only compute one node", fu_group *g = &c->group[fu_group_of(c, 1)];
      static int two[2]; two[0] = 1; two[1] = 2; g->n = 2; g->member = two;)
BREAK(chain, GROUPS, 0, "group", "not in order", fu_group *g = &c->group[fu_group_of(c, 4)];
      int t = g->member[0]; assert_true(g->n > 1); g->member[0] = g->member[1]; g->member[1] = t;)
BREAK(chain, GROUPS, 0, "group", "does not belong into its group's room",
      fu_group *g = &c->group[fu_group_of(c, 4)];
      static int more[8]; more[0] = 0; more[1] = 1; for (int i = 1; i < g->n; i++) more[i + 1] = g->member[i];
      g->member = more; g->n++;)
BREAK(chain, GROUPS, 0, "group", "groups wait for each other", assert_true(fu_note_after(c, 0, 1));)

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

BREAK(chain, PROGRAM, 4, "schedule", "reads one behind it", fu_value *v = find(c, FU_OP);
      v->arg[0] = (int)(v - c->prog->value);)
BREAK(chain, PROGRAM, 4, "schedule", "too few or too many operands", find(c, FU_OP)->n_arg = 0;)
BREAK(chain, PROGRAM, 4, "schedule", "operands of another type", find(c, FU_OP)->from = TN_I32;)
BREAK(chain, PROGRAM, 4, "schedule", "does not change as its operands do", find(c, FU_OP)->vary = 0;)
BREAK(chain, PROGRAM, 4, "schedule", "an address outside of its buffer", find(c, FU_LOAD)->offset = -1;)
BREAK(chain, PROGRAM, 4, "schedule", "an address outside of its buffer", find(c, FU_LOAD)->stride[0] *= 2;)
BREAK(chain, PROGRAM, 4, "schedule", "outside of its space", find(c, FU_REDUCE)->reduces = ~0u;)
BREAK(chain, PROGRAM, 4, "schedule", "over before its operand's", find(c, FU_REDUCE)->phase = 0;)
BREAK(chain, PROGRAM, 4, "schedule", "a phase that does not compute it",
      c->prog->value[store_of(c, 4)->value].need = 0;)
BREAK(chain, PROGRAM, 4, "schedule", "an address outside of its buffer", store_of(c, 4)->offset = 1;)
BREAK(chain, PROGRAM, 4, "schedule", "more or fewer elements", store_of(c, 4)->dom &= ~1u;)
BREAK(chain, PROGRAM, 4, "schedule", "stores an element twice",
      memset(store_of(c, 4)->stride, 0, sizeof c->prog->store[0].stride);)
BREAK(chain, PROGRAM, 4, "schedule", "another type than its buffer's", store_of(c, 4)->dtype = TN_F64;)
BREAK(chain, PROGRAM, 4, "schedule", "a store before its value is there", store_of(c, 4)->phase = 0;)
BREAK(chain, PROGRAM, 4, "schedule", "a column that is reduced along the vector", c->prog->form = FU_COLUMN;)
BREAK(in_place, PROGRAM, 3, "schedule", "overwrites what it has yet to read", store_of(c, 3)->late = false;)
BREAK(in_place, PROGRAM, 3, "schedule", "before the last phase", store_of(c, 3)->phase = 0;)
BREAK(in_place, PROGRAM, 3, "schedule", "overwrites other elements than it reads",
      fu_store *s = store_of(c, 3);
      int64_t t = s->stride[0]; s->stride[0] = s->stride[1]; s->stride[1] = t;)

static void swap_steps(fu_ctx *c, int a, int b)
{
    tn_step t = c->plan->step[a];
    c->plan->step[a] = c->plan->step[b];
    c->plan->step[b] = t;
}
static void write_too(fu_ctx *c, int step, int slot)
{
    tn_step *s = &c->plan->step[step];
    int *buf = tn_arena_alloc(&c->plan->arena, (size_t)(s->n_buf + 1) * sizeof *buf);
    int64_t *offset = tn_arena_alloc(&c->plan->arena, (size_t)(s->n_buf + 1) * sizeof *offset);
    memcpy(buf, s->buf, (size_t)s->n_buf * sizeof *buf);
    memcpy(offset, s->offset, (size_t)s->n_buf * sizeof *offset);
    buf[s->n_buf++] = slot;
    s->n_out++;
    s->buf = buf;
    s->offset = offset;
}
BREAK(row, STEPS, 0, "emit", "is read before it is written", swap_steps(c, 0, 1);)
BREAK(overwritten, STEPS, 0, "emit", "overwrites what a later step reads",
      swap_steps(c, 0, c->plan->n_step - 1);)
BREAK(row, STEPS, 0, "emit", "a root, and no step writes it", c->plan->n_step--;)
BREAK(row, STEPS, 0, "emit", "a step that writes nothing", c->plan->step[0].n_out = 0;)
BREAK(row, STEPS, 0, "emit", "an operand nowhere", c->plan->step[0].buf[0] = 99;)
BREAK(row, STEPS, 0, "emit", "a step that writes a leaf", tn_step *s = &c->plan->step[0];
      s->buf[s->n_buf - 1] = c->n_node;)
BREAK(row, STEPS, 0, "emit", "is read before it is written", c->plan->step[1].buf[0] = 3;)
BREAK(chain, STEPS, 0, "emit", "is written by two groups", write_too(c, 1, 4);)

static tn_plan_value *value_of(fu_ctx *c, int slot)
{
    for (int i = 0; i < c->plan->n_value; i++)
        if (c->plan->value[i].slot == slot) return &c->plan->value[i];
    fail_msg("slot %d has no value", slot);
    return NULL;
}
BREAK(row, MEMORY, 0, "memory", "a value that lives at the same time",
      value_of(c, 3)->offset = value_of(c, 1)->offset + 64;)
BREAK(row, MEMORY, 0, "memory", "outside of the arena", value_of(c, 1)->offset = c->plan->arena_bytes;)
BREAK(row, MEMORY, 0, "memory", "not lent", c->plan->lent_bytes = TN_PLAN_ALIGN;)
BREAK(row, MEMORY, 0, "memory", "outside of its life", value_of(c, 3)->last = value_of(c, 3)->first;)
static void cut_in_two(fu_ctx *c, tn_plan_value *v, size_t at, int last)
{
    static tn_plan_part part[2];
    c->plan->part = part;
    part[0] = (tn_plan_part){0, at, v->first, last};
    part[1] = (tn_plan_part){at, v->elems * tn_dtype_size(v->dtype), v->first, v->last};
    v->part = 0;
    v->n_part = 2;
}

BREAK(row, MEMORY, 0, "memory", "is not the sum of its parts",
      cut_in_two(c, value_of(c, 3), TN_PLAN_ALIGN, value_of(c, 3)->last);
      c->plan->part[1].low += TN_PLAN_ALIGN;)
BREAK(row, MEMORY, 0, "memory", "a part outlives it",
      cut_in_two(c, value_of(c, 3), TN_PLAN_ALIGN, value_of(c, 3)->last + 1);)
BREAK(row, MEMORY, 0, "memory", "dies before it is made", value_of(c, 3)->last = value_of(c, 3)->first - 1;)

TEST(every_rule_is_named)
{
    for (int i = 0; i < n_cases; i++) {
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
            fail_msg("case %d: %d \"%s\", expected \"%s .. %s\"", i, status, b.err.text, pass, k->rule);
        clear(&b);
    }
}

/* The error says which node of which line it is about. */
TEST(the_line_is_named)
{
    bed b;
    lay_out(&b, chain);
    tn_call call = {.name = "exp", .file = "train.c", .line = 41};
    b.r.node[0]->call = &call;
    pass_until(&b, GROUPS, 0);
    b.c.node[0].group = -1;
    assert_int_equal(fu_verify_groups(&b.c), TN_E_INTERNAL);
    assert_string_equal(b.err.text, "after group: node 0 (exp of exp at train.c:41): no group stores it");
    clear(&b);
}

TEST(what_is_right_passes)
{
    build_fn *all[] = {chain, in_place, overwritten, row};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bed b;
        lay_out(&b, all[i]);
        pass_until(&b, MEMORY, 0);
        assert_string_equal(b.err.text, "");
        clear(&b);
    }
}

RUN_TESTS(NULL, NULL)
