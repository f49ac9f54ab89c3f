/* test_ops.c - every operator: its value on each device, its gradient, and the gradient of its gradient.
 *
 * For each row of ops.def and each case of op_cases.h:
 *   - the reference's own gradients, and those of the gradients, against central differences in f64;
 *   - the value and the gradients on the devices against the reference: eager in f32, fused in every floating
 *     dtype and with transposed, stepped, reversed and expanded operands.
 * `test_ops relu` runs the cases whose name contains "relu". The last test lists operators that no case ran.
 * Read first: run_case. */
#include "op_rows.h"

#include "src/core/graph.h"

/* What f32 can hold; f16 and bf16 see some of them as infinity or zero. */
static const double special_values[] = {0.0,   -0.0,   1,       -1,   INFINITY, -INFINITY, NAN,
                                        1e-40, -1e-40, 1.2e-38, 1e38, -3e38,    1e10,      -1e10,
                                        88.5,  -88.5,  -104,    0.5,  2,        -3};
enum { N_SPECIAL = sizeof special_values / sizeof *special_values };

/* ---- the rows as cases ---- */

static case_fn *const row_fn[TN_OP_COUNT] = {
#define TN_ROW(name, ...) [TN_OP_##name] = row_##name,
#include "src/core/ops.def"
};

enum { MAX_CASES = 512 };
static op_case every[MAX_CASES];
static char names[MAX_CASES][64];
static int n_every;

static void add_op_row(tn_op op, const char *variant, operand x, operand y, operand z)
{
    const tn_op_info *o = tn_op_get(op);
    bool valueless = x.kind == INDEX32 || x.kind == SPECIAL;
    op_case c = {.name = names[n_every], .f = row_fn[op], .in = {x, y, z}};
    for (int i = 0; i < o->arity; i++)
        if (!strcmp(o->back[i], "NOGRAD") && c.in[i].kind == REAL) c.in[i].kind = FIXED;
    bool any = false;
    for (int i = 0; i < o->arity; i++) any = any || strcmp(o->back[i], "NOGRAD") != 0;
    c.flags = any && !valueless ? 0 : NO_GRADIENT;
    snprintf(names[n_every], sizeof names[0], "%s%s%s", o->name, *variant ? "/" : "", variant);
    every[n_every++] = c;
}

static void add_rows(void)
{
    const operand none = N;
    for (int op = 0; op < TN_OP_COUNT; op++) {
        const tn_op_info *o = tn_op_get((tn_op)op);
        if (o->kind != TN_KIND_ELTWISE) continue;
        operand whole = {REAL, o->low, o->high, DIMS(2, 3, 4)}, column = {REAL, o->low, o->high, DIMS(3, 1)};
        operand row = {REAL, o->low, o->high, DIMS(2, 1, 4)}, number = {REAL, o->low, o->high, 0, {0}};
        operand truth = {TRUTH, 0, 0, DIMS(3, 4)}, integer = {INDEX32, -4, 5, DIMS(3, 4)};
        operand special = {SPECIAL, 0, 0, 1, {N_SPECIAL}},
                special_column = {SPECIAL, 0, 0, DIMS(N_SPECIAL, 1)};
        if (o->arity == 1) {
            add_op_row((tn_op)op, "", whole, none, none);
            if (o->type != TN_TYPE_FLT) add_op_row((tn_op)op, "int", integer, none, none);
            add_op_row((tn_op)op, "special", special, none, none);
        } else if (o->arity == 2) {
            add_op_row((tn_op)op, "", whole, whole, none);
            add_op_row((tn_op)op, "broadcast", column, row, none);
            add_op_row((tn_op)op, "number", whole, number, none);
            if (o->type != TN_TYPE_FLT) add_op_row((tn_op)op, "int", integer, integer, none);
            add_op_row((tn_op)op, "special", special_column, special, none);
        } else {
            add_op_row((tn_op)op, "", truth, whole, whole);
            add_op_row((tn_op)op, "broadcast", truth, column, row);
            add_op_row((tn_op)op, "int", truth, integer, integer);
        }
    }
}

/* ---- operands ---- */

typedef enum layout { DENSE, TRANSPOSED, STEPPED, REVERSED, EXPANDED, N_LAYOUTS } layout;
static const char *const layout_name[] = {"dense", "transposed", "stepped", "reversed", "expanded"};

typedef struct source {
    layout layout;
    int ndim;
    int64_t shape[TN_MAX_DIMS], n; /* of the leaf that the operand is a view of */
    double *v;
} source;

typedef struct run {
    const op_case *c;
    tn_dtype dtype;
    layout layout;
    int order; /* 0: the value; 1: and the gradients; 2: and the gradients of their weighted sum */
    source in[MAX_OPERANDS];
} run;

/* In the range, but not near a multiple of 1/2, where rows have their kinks and steps. */
static double draw_real(rng *r, const operand *o)
{
    double v = rng_real(r, o->low, o->high), kink = round(2 * v) / 2;
    if (fabs(v - kink) < 0.02) v = kink + (kink + 0.03 < o->high ? 0.03 : -0.03);
    return v;
}

static void draw_distinct(rng *r, const operand *o, source *s)
{
    for (int64_t i = 0; i < s->n; i++)
        s->v[i] = o->low + (o->high - o->low) * ((double)i + rng_real(r, 0.3, 0.7)) / (double)s->n;
    for (int64_t i = s->n - 1; i > 0; i--) {
        int64_t j = rng_below(r, i + 1);
        double t = s->v[i];
        s->v[i] = s->v[j];
        s->v[j] = t;
    }
}

static void make_source(source *s, const operand *o, layout l, rng *r)
{
    *s = (source){.layout = l, .ndim = o->ndim, .n = 1};
    for (int i = 0; i < o->ndim; i++) s->shape[i] = o->shape[l == TRANSPOSED ? o->ndim - 1 - i : i];
    if (l == STEPPED && o->ndim > 0) s->shape[o->ndim - 1] = 2 * s->shape[o->ndim - 1] + 1;
    if (l == EXPANDED && o->ndim > 0) s->shape[0] = 1;
    for (int i = 0; i < o->ndim; i++) s->n *= s->shape[i];
    s->v = calloc((size_t)s->n + 1, sizeof *s->v);
    assert_non_null(s->v);
    if (o->kind == DISTINCT) {
        draw_distinct(r, o, s);
        return;
    }
    int64_t last = o->ndim > 0 ? s->shape[o->ndim - 1] : 1;
    for (int64_t i = 0; i < s->n; i++)
        if (o->kind == SPECIAL)
            s->v[i] = special_values[i % N_SPECIAL];
        else if (o->kind == TRUTH)
            s->v[i] = (o->low > 0 && i % last == 0) || rng_below(r, 2);
        else if (o->kind == INDEX || o->kind == INDEX32)
            s->v[i] = o->low + (double)rng_below(r, (int64_t)(o->high - o->low));
        else
            s->v[i] = draw_real(r, o);
}

static void make_run(run *q, const op_case *c, layout l, tn_dtype dtype, int order)
{
    *q = (run){.c = c, .dtype = dtype, .layout = l, .order = order};
    rng r = {hash_text(c->name)};
    for (int i = 0; i < MAX_OPERANDS && c->in[i].kind != NONE; i++) {
        layout mine = l == DENSE ? DENSE : (layout)(1 + ((int)l - 1 + i) % (N_LAYOUTS - 1));
        bool plain = c->in[i].ndim == 0 || (c->in[i].kind == DISTINCT && mine == EXPANDED) ||
                     (c->in[i].kind == TRUTH && c->in[i].low > 0);
        make_source(&q->in[i], &c->in[i], plain ? DENSE : mine, &r);
    }
}

static void free_run(run *q)
{
    for (int i = 0; i < MAX_OPERANDS; i++) free(q->in[i].v);
}

static tn_dtype operand_dtype(const run *q, int i)
{
    operand_kind k = q->c->in[i].kind;
    return k == INDEX ? TN_I64 : k == INDEX32 ? TN_I32 : k == TRUTH ? TN_BOOL : q->dtype;
}

static tn_tensor *view_of(tn_tensor *leaf, const operand *o, layout l)
{
    int axes[TN_MAX_DIMS];
    for (int i = 0; i < o->ndim; i++) axes[i] = l == TRANSPOSED ? o->ndim - 1 - i : i;
    switch (l) {
    case TRANSPOSED: return tn_permute(leaf, o->ndim, axes);
    case STEPPED: return tn_slice(leaf, -1, 1, TN_END, 2);
    case REVERSED: return tn_flip(leaf, o->ndim, axes);
    case EXPANDED: return tn_expand(leaf, o->ndim, o->shape);
    case DENSE:
    case N_LAYOUTS: break;
    }
    return leaf;
}

/* ---- programs ---- */

typedef struct recorded {
    tn_tensor *out, *loss;
    int n;
    tn_tensor *leaf[MAX_OPERANDS], *grad[MAX_OPERANDS];
} recorded;

/* Up to the scalar whose gradient is of interest: the weighted sum of the result, or of its gradients. */
static void record(tn_session *s, const run *q, recorded *m)
{
    tn_tensor *x[MAX_OPERANDS] = {NULL};
    *m = (recorded){0};
    for (int i = 0; i < MAX_OPERANDS && q->c->in[i].kind != NONE; i++) {
        const source *src = &q->in[i];
        tn_tensor *leaf = tensor_of(s, src->v, operand_dtype(q, i), src->ndim, src->shape);
        if (q->order > 0 && (q->c->in[i].kind == REAL || q->c->in[i].kind == DISTINCT)) {
            tn_requires_grad(leaf, true);
            m->leaf[m->n++] = leaf;
        }
        x[i] = view_of(leaf, &q->c->in[i], src->layout);
    }
    m->out = q->c->f(s, x);
    if (q->order == 0) return;
    /* The square makes the gradient of a linear operator depend on its operands. */
    m->loss = weighted(s, q->order == 1 ? m->out : tn_square(m->out), 11);
    if (q->order == 1) return;
    tn_tensor *total = NULL;
    tn_grad(m->loss, m->n, m->leaf, m->grad);
    for (int i = 0; i < m->n; i++) {
        /* Where the gradient is constant nothing would be left to differentiate but for the square. */
        tn_tensor *part = weighted(s, tn_square(m->leaf[i]), 40 + (uint64_t)i);
        total = total ? tn_add(total, part) : part;
        if (m->grad[i]) total = tn_add(total, weighted(s, m->grad[i], 12 + (uint64_t)i));
    }
    m->loss = total;
}

/* Several runs of one case as one program: what can be compiled together is. */
typedef struct runs {
    int n;
    run q[8];
    int owner[MAX_OUT]; /* which run an output is of */
} runs;

static void value_program(tn_session *s, void *user, int *n, tn_tensor **out)
{
    runs *set = user;
    for (int k = 0; k < set->n; k++) {
        recorded m;
        int first = *n;
        record(s, &set->q[k], &m);
        out[(*n)++] = m.out;
        if (m.loss) tn_grad(m.loss, m.n, m.leaf, m.grad);
        for (int i = 0; m.loss && i < m.n; i++) out[(*n)++] = m.grad[i];
        for (int i = first; i < *n; i++) set->owner[i] = k;
    }
}

static void loss_program(tn_session *s, void *user, int *n, tn_tensor **out)
{
    recorded m;
    record(s, user, &m);
    out[(*n)++] = m.loss;
}

/* A gradient that does not depend on a leaf counts as zero. */
static void gradient_program(tn_session *s, void *user, int *n, tn_tensor **out)
{
    recorded m;
    record(s, user, &m);
    tn_grad(m.loss, m.n, m.leaf, m.grad);
    for (int i = 0; i < m.n; i++) out[(*n)++] = m.grad[i] ? m.grad[i] : tn_mul_scalar(m.leaf[i], 0.0);
}

/* ---- checks ---- */

static bench B;
static bool ran[TN_OP_COUNT];

static void note_ops(tn_session *s, void *user)
{
    (void)user;
    for (uint32_t i = 0; i < s->graph.n_nodes; i++) ran[s->graph.nodes[i]->op] = true;
}

static double loss_at(run *q, bool *ok)
{
    result r = run_program(B.ref, loss_program, q, NULL);
    *ok = r.status == TN_OK && r.out[0].n == 1;
    double v = *ok ? r.out[0].v[0] : NAN;
    result_free(&r);
    return v;
}

/* d loss / d v[i] by central differences, against `want`. */
static bool difference(run *q, double *v, double want, double *got)
{
    double at = *v, h = 1e-5 * fmax(1, fabs(at));
    bool ok_up, ok_down;
    *v = at + h;
    double up = loss_at(q, &ok_up);
    *v = at - h;
    double down = loss_at(q, &ok_down);
    *v = at;
    *got = (up - down) / (2 * h);
    return ok_up && ok_down && fabs(*got - want) <= 2e-6 * fmax(1, fabs(want));
}

static void check_differences(const op_case *c, layout l, int order)
{
    run q;
    make_run(&q, c, l, TN_F64, order);
    result r = run_program(B.ref, gradient_program, &q, note_ops);
    if (r.status != TN_OK) fail_msg("%s, %s, order %d: %s", c->name, layout_name[l], order, r.text);
    int k = 0;
    for (int i = 0; i < MAX_OPERANDS && c->in[i].kind != NONE; i++) {
        if (c->in[i].kind != REAL && c->in[i].kind != DISTINCT) continue;
        const value *g = &r.out[k++];
        assert_int_equal(g->n, q.in[i].n);
        for (int64_t e = 0; e < g->n; e++) {
            double got;
            if (difference(&q, &q.in[i].v[e], g->v[e], &got)) continue;
            fail_msg("%s, %s operands, order %d: gradient %d of operand %d is %.12g, differences give %.12g",
                     c->name, layout_name[l], order, (int)e, i, g->v[e], got);
        }
    }
    result_free(&r);
    free_run(&q);
}

static void check_devices(runs *set)
{
    char text[640];
    if (!check_program(&B, value_program, set, note_ops, text)) {
        const run *q = &set->q[B.failed_output < 0 ? 0 : set->owner[B.failed_output]];
        fail_msg("%s, %s operands, %s, order %d: %s", q->c->name, layout_name[q->layout],
                 tn_dtype_name(q->dtype), q->order, text);
    }
    for (int k = 0; k < set->n; k++) free_run(&set->q[k]);
}

static bool has_reals(const op_case *c)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        if (c->in[i].kind == REAL || c->in[i].kind == DISTINCT || c->in[i].kind == FIXED ||
            c->in[i].kind == SPECIAL)
            return true;
    return false;
}

/* Eager mode compiles call by call: f32 and dense only. */
static void make_both_modes(runs *set, const op_case *c)
{
    set->n = 0;
    make_run(&set->q[set->n++], c, DENSE, TN_F32, !(c->flags & NO_GRADIENT));
    B.skip = 0;
}

/* Fused mode compiles all the rest at once. */
static void make_fused_only(runs *set, const op_case *c)
{
    bool gradient = !(c->flags & NO_GRADIENT), strided = !(c->flags & NO_STRIDES) && c->in[0].kind != SPECIAL;
    set->n = 0;
    for (tn_dtype d = TN_F16; has_reals(c) && d <= TN_F64; d++)
        make_run(&set->q[set->n++], c, DENSE, d, gradient && d == TN_F64);
    for (layout l = TRANSPOSED; strided && l < N_LAYOUTS; l++)
        make_run(&set->q[set->n++], c, l, TN_F32, gradient);
    B.skip = 1;
}

static void run_case(void **state)
{
    const op_case *c = *state;
    bool gradient = !(c->flags & NO_GRADIENT);
    for (layout l = DENSE; gradient && l < N_LAYOUTS; l++) check_differences(c, l, 1);
    if (gradient && !(c->flags & ONCE)) check_differences(c, DENSE, 2);
    runs set;
    make_both_modes(&set, c);
    check_devices(&set);
    make_fused_only(&set, c);
    if (set.n > 0) check_devices(&set);
}

/* The kernels of all cases that will run, many to a run of the compiler. */
static void prepare(const struct CMUnitTest *test, size_t n)
{
    runs set;
    for (size_t i = 0; i < n; i++) {
        if (test[i].test_func != run_case) continue;
        for (int fused_only = 0; fused_only < 2; fused_only++) {
            (fused_only ? make_fused_only : make_both_modes)(&set, test[i].initial_state);
            if (set.n > 0) note_ahead(&B, value_program, &set);
            for (int k = 0; k < set.n; k++) free_run(&set.q[k]);
        }
    }
}

/* ---- what was covered ---- */

static bool has_case(const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < n_every; i++)
        if (!strncmp(every[i].name, name, n) && (every[i].name[n] == 0 || every[i].name[n] == '/'))
            return true;
    return false;
}

/* Every TN_OP of the public headers has a case; from and borrow are how cases get their operands, and keep
 * computes nothing (test_programs_kept.c). */
static void every_public_operator_has_a_case(void **state)
{
    (void)state;
    static const char *const apart[] = {"from", "borrow", "keep"};
    static const char *const headers[] = {"include/tensor.h", "include/tensor_ops.h"};
    char line[512], missing[1024] = "";
    int found = 0;
    for (int h = 0; h < 2; h++) {
        FILE *f = fopen(headers[h], "r");
        if (!f) skip();
        while (fgets(line, sizeof line, f)) {
            char name[64];
            if (sscanf(line, "TN_OP(%63[a-z0-9_],", name) != 1) continue;
            bool is_apart = false;
            for (int i = 0; i < 3; i++) is_apart = is_apart || !strcmp(name, apart[i]);
            found++;
            if (is_apart || has_case(name)) continue;
            size_t at = strlen(missing);
            snprintf(missing + at, sizeof missing - at, " %s", name);
        }
        fclose(f);
    }
    assert_true(found > 100);
    if (*missing) fail_msg("no case for:%s", missing);
}

static void every_opcode_ran(void **state)
{
    (void)state;
    char missing[1024] = "";
    int n = 0;
    for (int op = 0; op < TN_OP_COUNT; op++) {
        /* what they leave in memory is seen by test_semantics and test_rows, what ranks do by test_ranks, and
         * functions of the program's by test_own_host */
        const tn_kind kind = tn_op_get((tn_op)op)->kind;
        if (ran[op] || kind == TN_KIND_ASSIGN || kind == TN_KIND_RANKS || kind == TN_KIND_HOST) {
            n++;
            continue;
        }
        size_t at = strlen(missing);
        snprintf(missing + at, sizeof missing - at, " %s", tn_op_get((tn_op)op)->name);
    }
    print_message(
        "coverage: %d of %d opcodes, %lld elements compared, %lld undecided, worst error %.2f of its bound\n",
        n, TN_OP_COUNT, (long long)B.elements, (long long)B.undecided, B.worst);
    if (*missing) fail_msg("never ran:%s", missing);
    assert_true(B.undecided * 100 <= B.elements);
}

static struct CMUnitTest tests[MAX_CASES + 2];
static size_t n_tests;

static int open_bench(void **state)
{
    (void)state;
    bench_open(&B);
    prepare(tests, n_tests);
    return 0;
}

static int close_bench(void **state)
{
    (void)state;
    bench_close(&B);
    return 0;
}

int main(int argc, char **argv)
{
    add_rows();
    for (int i = 0; i < n_cases; i++) every[n_every++] = cases[i];
    for (int i = 0; i < n_every; i++) {
        bool named = argc == 1;
        for (int k = 1; k < argc; k++) named |= strstr(every[i].name, argv[k]) != NULL;
        if (!named) continue;
        tests[n_tests++] = (struct CMUnitTest){every[i].name, run_case, NULL, NULL, &every[i]};
    }
    if (argc == 1) {
        tests[n_tests++] = (struct CMUnitTest)cmocka_unit_test(every_public_operator_has_a_case);
        tests[n_tests++] = (struct CMUnitTest)cmocka_unit_test(every_opcode_ran);
    }
    if (!n_tests) {
        fprintf(stderr, "no case has '%s' in its name\n", argv[1]);
        return 1;
    }
    return _cmocka_run_group_tests("ops", tests, n_tests, open_bench, close_bench);
}
