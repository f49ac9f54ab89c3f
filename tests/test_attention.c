/* test_attention.c - attention as one kernel in each direction: its numbers, its plan, its memory.
 *
 *   numbers  sizes around the edges of a tile, strides of a packed projection, masks, dropout, dtypes: values
 * and gradients against the f64 reference with its error bounds, eager and fused plans    how many kernels,
 * that nothing as large as the scores is in memory, that memory grows as the rows do written  softmax(q k^T
 * scale + mask) v as a program has it: found in fused mode, with the same numbers as in eager mode, which
 * leaves it alone
 *
 * Read first: struct at, then numbers.
 */
#include "tests/check.h"

#include <float.h>

#include <tensor_nn.h>

#include "src/runtime/flush.h"

enum mask_kind { NO_MASK, BOOLS, ADDED, BY_BATCH };

/* One attention. */
typedef struct at {
    const char *name;
    int64_t batch, heads, tq, tk, d;
    bool causal, packed; /* q, k, v are slices of one projection [batch, t, 3, heads, d] */
    enum mask_kind mask;
    double dropout;
    tn_dtype dtype;
    int variant; /* 1: written out */
} at;

static bench B;

static tn_tensor *drawn(tn_session *s, uint64_t seed, tn_dtype d, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    double *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    rng r = {seed};
    for (int64_t i = 0; i < n; i++) v[i] = rng_real(&r, -1.5, 1.5);
    tn_tensor *t = tensor_of(s, v, d, ndim, shape);
    free(v);
    assert_non_null(t);
    return t;
}

/* Every query sees its first key. */
static tn_tensor *bools(tn_session *s, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    double *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    rng r = {5};
    for (int64_t i = 0; i < n; i++) v[i] = i % shape[ndim - 1] == 0 || rng_below(&r, 3) > 0;
    tn_tensor *t = tensor_of(s, v, TN_BOOL, ndim, shape);
    free(v);
    return t;
}

static tn_tensor *mask_of(tn_session *s, const at *c)
{
    switch (c->mask) {
    case BOOLS:
        return bools(s, 2, (int64_t[]){c->tq, c->tk});
    case ADDED:
        return drawn(s, 9, c->dtype, 3, (int64_t[]){c->heads, c->tq, c->tk});
    case BY_BATCH:
        return bools(s, 4, (int64_t[]){c->batch, 1, 1, c->tk});
    case NO_MASK:
        break;
    }
    return NULL;
}

/* Leaves that want a gradient, and q, k, v made of them. */
static int operands(tn_session *s, const at *c, tn_tensor **leaf, tn_tensor **x)
{
    if (!c->packed) {
        for (int i = 0; i < 3; i++) {
            const int64_t shape[] = {c->batch, c->heads, i ? c->tk : c->tq, c->d};
            x[i] = leaf[i] = drawn(s, 1 + (uint64_t)i, c->dtype, 4, shape);
            tn_requires_grad(leaf[i], true);
        }
        return 3;
    }
    const int64_t shape[] = {c->batch, c->tq, 3, c->heads, c->d};
    leaf[0] = drawn(s, 1, c->dtype, 5, shape);
    tn_requires_grad(leaf[0], true);
    tn_tensor *p = tn_permute(leaf[0], 5, (const int[]){2, 0, 3, 1, 4});
    for (int i = 0; i < 3; i++) x[i] = tn_select(p, 0, i);
    return 1;
}

static tn_tensor *written(tn_session *s, const at *c, tn_tensor **x, tn_tensor *mask, tn_tensor **p)
{
    (void)s;
    tn_tensor *t = tn_matmul(x[0], tn_transpose(x[1], 2, 3));
    t = tn_mul_scalar(t, 1 / sqrt((double)c->d));
    if (mask && tn_dtype_of(mask) == TN_BOOL)
        t = tn_where(mask, t, tn_full(s, -INFINITY, c->dtype, 0, NULL));
    else if (mask)
        t = tn_add(t, mask);
    *p = tn_softmax(t, 3);
    return tn_matmul(c->dropout > 0 ? tn_dropout(*p, c->dropout) : *p, x[2]);
}

static tn_tensor *attend(tn_session *s, const at *c, tn_tensor **x)
{
    tn_tensor *mask = mask_of(s, c), *p;
    if (c->variant) return written(s, c, x, mask, &p);
    return tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = c->causal, .mask = mask,
                                           .dropout = c->dropout);
}

static void program(tn_session *s, void *user, int *n, tn_tensor **out)
{
    const at *c = user;
    tn_tensor *leaf[3], *x[3], *grad[3] = {NULL};
    int leaves = operands(s, c, leaf, x);
    tn_tensor *o = out[(*n)++] = attend(s, c, x);
    tn_tensor *loss = weighted(s, o, 3);
    if (loss) tn_backward(loss);
    for (int i = 0; i < leaves; i++) out[(*n)++] = grad[i] = tn_gradient(leaf[i]);
}

/* ---- what a plan has ---- */

typedef struct seen {
    int kernels, attentions;
    int64_t most, all; /* elements of the largest value, and of all, in memory that the plan makes */
} seen;

/* What waits in the step, as its end would run it. */
static seen look(tn_session *s)
{
    tn_flush_scratch f = {0};
    for (uint32_t i = 0; i < s->graph.n_nodes; i++) {
        tn_tensor *n = s->graph.nodes[i];
        bool done = n->base->flags & TN_F_DONE || tn_kind_of(n->base) == TN_KIND_NUMBER;
        bool asked = tn_node_written(n) || (n->flags & (TN_F_USER | TN_F_CONSUMED)) == TN_F_USER;
        if (!done && asked) assert_true(tn_list_push(&f.seed, n));
    }
    s->ending = true;
    assert_int_equal(tn_segment_collect(s, &f), 0);
    s->ending = false;
    tn_segment seg = {.graph = &s->graph,
                      .node = f.node.at,
                      .n_node = f.node.n,
                      .leaf = f.leaf.at,
                      .n_leaf = f.leaf.n,
                      .root = f.root};
    tn_plan *p;
    tn_errbuf err = {""};
    seen v = {0};
    if (tn_plan_build(&seg, &s->target, &p, &err)) fail_msg("%s", err.text);
    v.kernels = p->n_step;
    for (int i = 0; i < p->n_step; i++) v.attentions += !strncmp(p->step[i].name, "attention", 9);
    for (int i = 0; i < p->n_value; i++) {
        int64_t n = (int64_t)p->value[i].elems;
        v.all += n;
        v.most = n > v.most ? n : v.most;
    }
    tn_plan_free(p);
    void *all[] = {f.seed.at, f.node.at, f.leaf.at, f.stack.at, f.root};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tn_free_mem(all[i]);
    return v;
}

/* ---- numbers ---- */

static at Numbers[] = {
    {"one tile", 2, 2, 64, 64, 32, false, true, NO_MASK, 0, TN_F32, 0},
    {"causal", 2, 2, 64, 64, 32, true, true, NO_MASK, 0, TN_F32, 0},
    {"a row over a tile", 1, 2, 65, 65, 16, true, true, NO_MASK, 0, TN_F32, 0},
    {"odd sizes", 1, 3, 37, 71, 20, false, false, NO_MASK, 0, TN_F32, 0},
    {"more queries than keys, causal", 1, 2, 90, 40, 8, true, false, NO_MASK, 0, TN_F32, 0},
    {"more keys than queries, causal", 1, 2, 40, 150, 8, true, false, NO_MASK, 0, TN_F32, 0},
    {"one key", 2, 2, 5, 1, 4, false, false, NO_MASK, 0, TN_F32, 0},
    {"one query", 1, 4, 1, 130, 16, false, false, NO_MASK, 0, TN_F32, 0},
    {"narrow", 1, 1, 9, 9, 1, false, false, NO_MASK, 0, TN_F32, 0},
    {"wide", 1, 1, 20, 70, 130, true, false, NO_MASK, 0, TN_F32, 0},
    {"parts of the keys", 1, 1, 100, 260, 16, false, false, NO_MASK, 0, TN_F32, 0},
    {"parts of the keys, causal", 1, 1, 260, 260, 16, true, true, NO_MASK, 0, TN_F32, 0},
    {"bools", 1, 2, 70, 70, 16, false, false, BOOLS, 0, TN_F32, 0},
    {"bools, causal", 1, 2, 70, 70, 16, true, true, BOOLS, 0, TN_F32, 0},
    {"bools of a batch", 2, 2, 20, 70, 16, false, false, BY_BATCH, 0, TN_F32, 0},
    {"added", 2, 2, 33, 70, 16, false, false, ADDED, 0, TN_F32, 0},
    {"dropout", 1, 2, 66, 67, 16, true, false, NO_MASK, 0.3, TN_F32, 0},
    {"f16", 1, 2, 40, 70, 16, true, false, NO_MASK, 0, TN_F16, 0},
    {"bf16", 1, 2, 40, 70, 16, false, false, ADDED, 0, TN_BF16, 0},
    {"f64", 1, 2, 20, 30, 8, true, false, NO_MASK, 0, TN_F64, 0},
    {"written", 2, 2, 33, 70, 16, false, false, NO_MASK, 0, TN_F32, 1},
    {"written, packed", 2, 2, 64, 64, 32, false, true, NO_MASK, 0, TN_F32, 1},
    {"written, bools", 1, 2, 33, 70, 16, false, false, BOOLS, 0, TN_F32, 1},
    {"written, dropout", 1, 2, 33, 70, 16, false, false, NO_MASK, 0.3, TN_F32, 1},
};
enum { N_NUMBERS = sizeof Numbers / sizeof *Numbers };

static void numbers(void **state)
{
    (void)state;
    char text[640];
    for (int i = 0; i < N_NUMBERS; i++)
        if (!check_program(&B, program, &Numbers[i], NULL, text)) fail_msg("%s: %s", Numbers[i].name, text);
}

static tn_session *open_session(tn_mode mode, int threads)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .threads = threads, .seed = 77, .log = quiet);
    assert_non_null(s);
    return s;
}

static void same_bits(const at *c, tn_session *a, tn_session *b, const char *what)
{
    result x = run_program(a, program, (void *)(uintptr_t)c, NULL),
           y = run_program(b, program, (void *)(uintptr_t)c, NULL);
    if (x.status || y.status) fail_msg("%s: %s%s", c->name, x.text, y.text);
    for (int i = 0; i < x.n; i++)
        if (memcmp(x.out[i].v, y.out[i].v, (size_t)x.out[i].n * sizeof(double)))
            fail_msg("%s: output %d differs %s", c->name, i, what);
    result_free(&x);
    result_free(&y);
}

static void bits_do_not_depend_on_threads(void **state)
{
    (void)state;
    tn_session *a = open_session(TN_FUSED, 1), *b = open_session(TN_FUSED, 3), *e = open_session(TN_EAGER, 2);
    for (int i = 0; i < N_NUMBERS; i++) {
        same_bits(&Numbers[i], a, b, "between one thread and three");
        if (!Numbers[i].variant) same_bits(&Numbers[i], a, e, "between fused and eager mode");
    }
    tn_close(a);
    tn_close(b);
    tn_close(e);
}

/* A query that sees nothing gives zeros and passes nothing on, in the composite (whose mask wants a gradient)
 * as in the kernel; written out it is no number, in eager mode as in fused mode, which makes it a kernel. */
static void a_blind_query(void **state)
{
    (void)state;
    enum { T = 70, D = 32, BLIND = 40, N = T * D };
    static double got[4][4][N];
    for (int k = 0; k < 4; k++) { /* call: composite, kernel; written: composite, kernel */
        const bool call = k < 2, kernel = k & 1;
        tn_session *s = tn_open(.mode = kernel ? TN_FUSED : TN_EAGER, .seed = 77, .log = quiet);
        assert_non_null(s);
        at c = {"blind", 1, 1, T, T, D, false, false, NO_MASK, 0, TN_F32, 0};
        tn_step_begin(s);
        tn_tensor *leaf[3], *x[3], *p, *o;
        operands(s, &c, leaf, x);
        double m[T * T];
        for (int i = 0; i < T * T; i++) m[i] = i / T != BLIND;
        tn_tensor *mask = tensor_of(s, m, TN_BOOL, 2, (int64_t[]){T, T});
        if (k == 0) {
            for (int i = 0; i < T * T; i++) m[i] = m[i] != 0 ? 0 : -INFINITY;
            mask = tensor_of(s, m, TN_F32, 2, (int64_t[]){T, T});
            tn_requires_grad(mask, true);
        }
        o = call ? tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = mask)
                 : written(s, &c, x, mask, &p);
        if (kernel) assert_int_equal(look(s).attentions, 1);
        tn_backward(tn_sum(tn_square(o), TN_ALL, false));
        tn_read(o, TN_F64, got[k][3], sizeof got[k][3]);
        for (int i = 0; i < 3; i++) tn_read(tn_gradient(leaf[i]), TN_F64, got[k][i], sizeof got[k][i]);
        tn_step_end(s);
        if (tn_error(s)) fail_msg("%s", tn_error_text(s));
        tn_close(s);
    }
    for (int k = 1; k < 4; k += 2)
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < N; i++) {
                double a = got[k - 1][w][i], b = got[k][w][i];
                bool same = isnan(a) ? isnan(b) : fabs(a - b) <= 2e-5 * fmax(1, fabs(a));
                if (!same)
                    fail_msg("%d: output %d, element %d: %g in the composite, %g in the kernel", k, w, i, a,
                             b);
            }
    for (int i = 0; i < N; i++) {
        const bool blind = i / D == BLIND;
        assert_true(blind == (got[1][3][i] == 0) && blind == (got[1][0][i] == 0)); /* o, dq */
        assert_true(blind == isnan(got[3][3][i]));
    }
}

/* Composite, kernel and what is written out drop the same: seen where v is the identity. */
static void all_drop_the_same(void **state)
{
    (void)state;
    enum { T = 32 };
    static float eye[T * T], got[3][T * T];
    for (int i = 0; i < T; i++) eye[i * T + i] = 1;
    for (int k = 0; k < 3; k++) {
        tn_session *s = open_session(k == 0 ? TN_EAGER : TN_FUSED, 2);
        at c = {"drops", 1, 1, T, T, T, false, false, NO_MASK, 0.5, TN_F32, k < 2};
        tn_step_begin(s);
        tn_tensor *leaf[3], *x[3];
        operands(s, &c, leaf, x);
        x[2] = tn_from(s, eye, TN_F32, TN_SHAPE(1, 1, T, T));
        tn_read(attend(s, &c, x), TN_F32, got[k], sizeof got[k]);
        tn_step_end(s);
        assert_int_equal(tn_error(s), 0);
        tn_close(s);
    }
    int dropped = 0;
    for (int i = 0; i < T * T; i++) {
        dropped += got[0][i] == 0;
        for (int k = 1; k < 3; k++)
            if ((got[0][i] == 0) != (got[k][i] == 0) || fabsf(got[0][i] - got[k][i]) > 1e-6f)
                fail_msg("way %d, element %d: %g, expected %g", k, i, (double)got[k][i], (double)got[0][i]);
    }
    assert_in_range(dropped, T * T / 3, 2 * T * T / 3);
}

/* Whichever of q, k, v want a gradient, theirs are those of all three. */
static void any_may_want_a_gradient(void **state)
{
    (void)state;
    enum { T = 66, D = 32, N = 2 * T * D, ALL = 7 };
    static float want[3][N], got[N];
    for (int set = ALL; set > 0; set--) {
        tn_session *s = tn_open(.mode = TN_FUSED, .seed = 77, .log = quiet);
        assert_non_null(s);
        at c = {"wanted", 1, 2, T, T, D, false, false, NO_MASK, 0, TN_F32, 0};
        tn_step_begin(s);
        tn_tensor *leaf[3], *x[3];
        operands(s, &c, leaf, x);
        for (int i = 0; i < 3; i++) tn_requires_grad(leaf[i], set >> i & 1);
        tn_backward(tn_sum(tn_square(attend(s, &c, x)), TN_ALL, false));
        for (int i = 0; i < 3; i++) {
            if (!(set >> i & 1)) continue;
            float *to = set == ALL ? want[i] : got;
            tn_read(tn_gradient(leaf[i]), TN_F32, to, sizeof got);
            for (int e = 0; e < N; e++)
                if (!(fabsf(to[e] - want[i][e]) <= 1e-5f * (1 + fabsf(want[i][e]))))
                    fail_msg("set %d, operand %d, element %d: %g, expected %g", set, i, e, (double)to[e],
                             (double)want[i][e]);
        }
        tn_step_end(s);
        if (tn_error(s)) fail_msg("%s", tn_error_text(s));
        tn_close(s);
    }
}

/* ---- plans ---- */

/* Forward, then backward, of a case as the plans have them. `leaves` is all that stands before the attention.
 */
static void plans_of(const at *c, seen *forward, seen *backward)
{
    tn_session *s = open_session(TN_FUSED, 2);
    tn_tensor *leaf[3], *x[3], *grad[3];
    tn_step_begin(s);
    int n = operands(s, c, leaf, x);
    tn_tensor *o = attend(s, c, x);
    if (!o) fail_msg("%s", tn_error_text(s));
    *forward = look(s);
    int64_t shape[] = {c->batch, c->heads, c->tq, c->d};
    tn_tensor *g = drawn(s, 4, c->dtype, 4, shape), *loss = tn_sum(tn_mul(o, g), TN_ALL, false);
    tn_flush(s);
    assert_int_equal(tn_grad(loss, n, leaf, grad), 0);
    *backward = look(s);
    tn_step_end(s);
    assert_int_equal(tn_error(s), 0);
    tn_close(s);
}

static void one_kernel_each_way(void **state)
{
    (void)state;
    for (int i = 0; i < N_NUMBERS; i++) {
        const at *c = &Numbers[i];
        seen forward, backward;
        if (c->dtype == TN_F64 || c->tq < 20 || c->tk < 60) continue; /* the composite serves, or may */
        plans_of(c, &forward, &backward);
        int64_t scores = c->batch * c->heads * c->tq * c->tk,
                rows = c->batch * c->heads * (c->tq > c->tk ? c->tq : c->tk);
        if (forward.kernels != 1 || forward.attentions != 1)
            fail_msg("%s: %d kernels forward", c->name, forward.kernels);
        /* and what the weights of the loss take: the gradient of o is theirs */
        if (backward.attentions != 1 || backward.kernels > 3)
            fail_msg("%s: %d kernels backward, %d of them attention", c->name, backward.kernels,
                     backward.attentions);
        int64_t most = 3 * rows * ((c->d + 15) / 16 * 16) * (c->batch * c->heads < 16 ? 16 : 1);
        if (forward.most >= scores && forward.most > rows * c->d) fail_msg("%s: scores are written", c->name);
        if (backward.most > most) fail_msg("%s: %lld elements in memory", c->name, (long long)backward.most);
    }
}

static void memory_grows_as_the_rows_do(void **state)
{
    (void)state;
    seen before[2] = {{0}};
    for (int64_t t = 1024; t <= 8192; t *= 2) {
        at c = {"long", 1, 1, t, t, 64, true, true, NO_MASK, 0, TN_F32, 0};
        seen now[2];
        tn_session *s = open_session(TN_FUSED, 2);
        tn_step_begin(s);
        tn_tensor *leaf[3], *x[3];
        operands(s, &c, leaf, x);
        tn_tensor *o = attend(s, &c, x);
        now[0] = look(s);
        tn_backward(tn_sum(o, TN_ALL, false));
        now[1] = look(s);
        tn_step_end(s);
        assert_int_equal(tn_error(s), 0);
        tn_close(s);
        for (int k = 0; k < 2; k++) {
            if (before[k].all && now[k].all > before[k].all * 21 / 10)
                fail_msg("%lld elements for %lld rows, %lld for half of them", (long long)now[k].all,
                         (long long)t, (long long)before[k].all);
            assert_true(now[k].most < t * t / 3);
            before[k] = now[k];
        }
    }
}

/* ---- written out ---- */

/* The probabilities are read once more: that reader, and both gradients, are as in eager mode. */
static void a_second_reader_of_the_probabilities(void **state)
{
    (void)state;
    enum { N = 2 * 33 * 16, M = 2 * 70 * 16 };
    static double got[2][N + M + M + 1];
    for (int k = 0; k < 2; k++) {
        tn_session *s = open_session(k ? TN_FUSED : TN_EAGER, 2);
        at c = {"twice", 1, 2, 33, 70, 16, false, false, BOOLS, 0, TN_F32, 1};
        tn_step_begin(s);
        tn_tensor *leaf[3], *x[3], *p;
        operands(s, &c, leaf, x);
        tn_tensor *o = written(s, &c, x, mask_of(s, &c), &p);
        tn_tensor *loss = tn_add(weighted(s, o, 3), weighted(s, p, 8));
        tn_backward(loss);
        tn_read(loss, TN_F64, got[k], sizeof(double));
        tn_read(tn_gradient(leaf[0]), TN_F64, got[k] + 1, N * sizeof(double));
        tn_read(tn_gradient(leaf[1]), TN_F64, got[k] + 1 + N, M * sizeof(double));
        tn_read(tn_gradient(leaf[2]), TN_F64, got[k] + 1 + N + M, M * sizeof(double));
        tn_step_end(s);
        if (tn_error(s)) fail_msg("%s", tn_error_text(s));
        tn_close(s);
    }
    for (int i = 0; i < 1 + N + M + M; i++)
        if (!(fabs(got[0][i] - got[1][i]) <= 2e-5 * fmax(1, fabs(got[0][i]))))
            fail_msg("element %d: %g in eager mode, %g in fused mode", i, got[0][i], got[1][i]);
}

/* A detach, or a scope without gradients, stays one where the chain around it could be one node; and a
 * gradient by a value in between is refused rather than left out. */
static void gradients_stop_where_they_are_told_to(void **state)
{
    (void)state;
    for (int k = 0; k < 5; k++) {
        tn_session *s = open_session(TN_FUSED, 2);
        tn_step_begin(s);
        at c = {"stopped", 1, 2, 64, 64, 32, false, false, NO_MASK, 0, TN_F32, 1};
        tn_tensor *leaf[3], *x[3];
        operands(s, &c, leaf, x);
        if (k == 3) tn_no_grad_begin(s);
        tn_tensor *t = tn_matmul(x[0], tn_transpose(x[1], -1, -2));
        if (k == 3) tn_no_grad_end(s);
        if (k == 0) t = tn_detach(t);
        t = tn_mul_scalar(t, 0.2);
        if (k == 1) t = tn_detach(t);
        tn_tensor *p = tn_softmax(t, -1), *loss, *g = NULL;
        loss = tn_sum(tn_square(tn_matmul(k == 2 ? tn_detach(p) : p, x[2])), TN_ALL, false);
        if (k == 4) {
            assert_int_equal(tn_grad(loss, 1, &p, &g), TN_E_UNSUPPORTED);
            assert_non_null(strstr(tn_error_text(s), "inputs[0] stands inside of attention"));
            tn_clear_error(s);
        } else {
            assert_int_equal(tn_backward(loss), 0);
            assert_null(tn_gradient(leaf[0]));
            assert_null(tn_gradient(leaf[1]));
            assert_non_null(tn_gradient(leaf[2]));
        }
        tn_step_end(s);
        tn_close(s);
    }
}

/* The lowest numbers as a mask hide keys as -inf does; where nothing else is left all keys count alike. */
static void masks_of_the_lowest_numbers(void **state)
{
    (void)state;
    enum { T = 40, D = 32 };
    static double q[T * D], m[T * T], o[2][T * D];
    for (int i = 0; i < T * D; i++) q[i] = (i * 37 % 101 - 50) / 50.0;
    for (int k = 0; k < 2; k++) {
        tn_session *s = open_session(TN_FUSED, 2);
        for (int i = 0; i < T * T; i++) m[i] = i / T == 3 || i % T > i / T ? (double)-FLT_MAX : 0;
        tn_step_begin(s);
        tn_tensor *x = tensor_of(s, q, k ? TN_F64 : TN_F32, 2, (int64_t[]){T, D});
        tn_tensor *mask = tensor_of(s, m, k ? TN_F64 : TN_F32, 2, (int64_t[]){T, T});
        tn_read(tn_scaled_dot_product_attention(x, x, x, .mask = mask), TN_F64, o[k], sizeof o[k]);
        tn_step_end(s);
        if (tn_error(s)) fail_msg("%s", tn_error_text(s));
        tn_close(s);
    }
    for (int i = 0; i < T * D; i++)
        if (!(fabs(o[0][i] - o[1][i]) <= 1e-5)) fail_msg("element %d: %g, not %g", i, o[0][i], o[1][i]);
}

/* What only looks like attention is left as it is. */
static void what_is_no_attention(void **state)
{
    (void)state;
    for (int k = 0; k < 5; k++) {
        tn_session *s = open_session(TN_FUSED, 2);
        tn_step_begin(s);
        at c = {"other", 1, 2, 64, 64, 32, false, false, NO_MASK, 0, TN_F32, 1};
        tn_tensor *leaf[3], *x[3], *y;
        operands(s, &c, leaf, x);
        tn_tensor *t = tn_matmul(x[0], tn_transpose(x[1], 2, 3)),
                  *m = drawn(s, 8, TN_F32, 4, (int64_t[]){1, 2, 64, 64});
        tn_requires_grad(m, k == 0);
        if (k == 0) t = tn_add(t, m);                     /* a mask with a gradient */
        if (k == 1) t = tn_mul_scalar(tn_add(t, m), 0.5); /* scaled after the mask */
        if (k == 2) t = tn_relu(t);                       /* something between */
        if (k == 3) t = tn_softmax(t, 2);                 /* over the queries */
        if (k != 3) t = tn_softmax(t, 3);
        y = tn_matmul(t,
                      k == 4 ? drawn(s, 8, TN_F32, 4, (int64_t[]){1, 2, 64, 48}) : x[2]); /* another width */
        assert_non_null(y);
        assert_int_equal(look(s).attentions, 0);
        tn_step_end(s);
        assert_int_equal(tn_error(s), 0);
        tn_close(s);
    }
}

/* A later step with another scale runs the plan of the first: the number is the kernel's argument. */
static void the_scale_is_an_argument(void **state)
{
    (void)state;
    tn_session *s = open_session(TN_FUSED, 2);
    float sum[3];
    for (int k = 0; k < 3; k++) {
        at c = {"scale", 1, 2, 64, 64, 32, false, false, NO_MASK, 0, TN_F32, 1};
        tn_step_begin(s);
        tn_tensor *leaf[3], *x[3];
        operands(s, &c, leaf, x);
        tn_tensor *t = tn_mul_scalar(tn_matmul(x[0], tn_transpose(x[1], 2, 3)), k == 1 ? 0.5 : 0.25);
        tn_tensor *y = tn_matmul(tn_softmax(t, 3), x[2]);
        assert_int_equal(look(s).attentions, 1);
        sum[k] = (float)tn_item(tn_sum(tn_square(y), TN_ALL, false));
        tn_step_end(s);
        assert_int_equal(tn_error(s), 0);
    }
    assert_true(sum[0] == sum[2] && sum[0] != sum[1]);
    tn_close(s);
}

/* With scores of 0 all keys count alike; those that are not there, or hidden, do not. */
static void a_scale_of_zero(void **state)
{
    (void)state;
    enum { TQ = 40, TK = 70, D = 32 };
    static double o[TQ * D], v[TK * D], m[TQ * TK];
    for (int masked = 0; masked < 2; masked++) {
        tn_session *s = tn_open(.mode = TN_FUSED, .seed = 77, .log = quiet);
        assert_non_null(s);
        at c = {"zero", 1, 1, TQ, TK, D, false, false, NO_MASK, 0, TN_F32, 0};
        tn_tensor *leaf[3], *x[3];
        tn_step_begin(s);
        operands(s, &c, leaf, x);
        for (int i = 0; i < TQ * TK; i++) m[i] = i % TK != 3;
        tn_tensor *t = tn_mul_scalar(tn_matmul(x[0], tn_transpose(x[1], 2, 3)), 0.0);
        if (masked)
            t = tn_where(tensor_of(s, m, TN_BOOL, 2, (int64_t[]){TQ, TK}), t,
                         tn_full(s, -INFINITY, TN_F32, 0, NULL));
        t = tn_matmul(tn_softmax(t, 3), x[2]);
        assert_int_equal(look(s).attentions, 1);
        tn_read(t, TN_F64, o, sizeof o);
        tn_read(x[2], TN_F64, v, sizeof v);
        tn_step_end(s);
        if (tn_error(s)) fail_msg("%s", tn_error_text(s));
        tn_close(s);
        for (int i = 0; i < TQ * D; i++) {
            double mean = 0;
            for (int j = 0; j < TK; j++) mean += masked && j == 3 ? 0 : v[j * D + i % D] / (TK - masked);
            if (!(fabs(o[i] - mean) <= 1e-5)) fail_msg("element %d: %g, not %g", i, o[i], mean);
        }
    }
}

/* One that changes from step to step is neither compiled nor planned again, forward and backward, as one node
 * and as the composite (values of another width), and what comes of it is that of a session that knows no
 * other. */
static void a_scale_that_is_annealed(void **state)
{
    (void)state;
    enum { T = 64, D = 32, N = 2 * T * D, STEPS = 6 };
    static float got[N], want[N];
    for (int way = 0; way < 3; way++) {
        tn_stats first = {.size = sizeof first}, last = {.size = sizeof last};
        for (int fresh = 0; fresh < 2; fresh++) {
            const at c = {"annealed", 1, 2, T, T, D, false, false, NO_MASK, 0, TN_F32, 0};
            tn_session *s = tn_open(.mode = TN_FUSED, .seed = 77, .log = quiet);
            tn_tensor *leaf[3], *x[3], *o;
            assert_non_null(s);
            operands(s, &c, leaf, x);
            for (int step = fresh ? STEPS - 1 : 0; step < STEPS; step++) {
                tn_step_begin(s);
                o = tn_scaled_dot_product_attention(x[0], x[1],
                                                    way == 1 ? tn_slice(x[2], 3, 0, D / 2, 1) : x[2],
                                                    .scale = 1.0 / (1 + step), .causal = way == 2);
                tn_backward(tn_sum(tn_square(o), TN_ALL, false));
                tn_read(tn_gradient(leaf[0]), TN_F32, fresh ? want : got, sizeof got);
                tn_step_end(s);
                if (tn_error(s)) fail_msg("%s", tn_error_text(s));
                if (!fresh) tn_get_stats(s, step <= 1 ? &first : &last);
            }
            tn_close(s);
        }
        assert_int_equal(last.compiled + last.cache_hits, first.compiled + first.cache_hits);
        assert_int_equal(last.plans, first.plans);
        assert_true(last.replayed >= STEPS - 2);
        for (int i = 0; i < N; i++)
            if (got[i] != want[i])
                fail_msg("way %d, element %d: %g, not %g", way, i, (double)got[i], (double)want[i]);
    }
}

/* ---- in words ---- */

/* Explain says what the kernel does and what it saves, called as written out. */
static void what_explain_says(void **state)
{
    (void)state;
    static const char *const forward[2] = {
        "q k^T, scale, causal mask, mask, softmax, v in one kernel: the 128 x 256 scores of 4 heads are "
        "never "
        "written, which saves 0.52 MB written and as much read",
        "q k^T, scale, mask, softmax, v in one kernel: the 128 x 256 scores of 4 heads are never written, "
        "which saves 0.52 MB written and as much read"};
    for (int is_written = 0; is_written < 2; is_written++) {
        const at c = {"said", 2, 2, 128, 256, 32, !is_written, false, BOOLS, 0, TN_F32, is_written};
        tn_session *s = tn_open(.mode = TN_FUSED, .seed = 77, .log = quiet);
        assert_non_null(s);
        tn_tensor *leaf[3], *x[3];
        char *text = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&text, &size);
        assert_non_null(f);
        tn_step_begin(s);
        operands(s, &c, leaf, x);
        tn_backward(tn_sum(tn_square(attend(s, &c, x)), TN_ALL, false));
        tn_step_end(s);
        assert_int_equal(tn_explain(s, f), 0);
        fclose(f);
        if (tn_error(s)) fail_msg("%s", tn_error_text(s));
        const char *said = strstr(text, forward[is_written]);
        if (!said || !strstr(said, "softmax, the gradient")) fail_msg("%s", text);
        free(text);
        tn_close(s);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    setenv("TENSOR_PROFILE", "reference", 1);
    bench_open(&B);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(a_blind_query),
        cmocka_unit_test(all_drop_the_same),
        cmocka_unit_test(any_may_want_a_gradient),
        cmocka_unit_test(one_kernel_each_way),
        cmocka_unit_test(memory_grows_as_the_rows_do),
        cmocka_unit_test(a_second_reader_of_the_probabilities),
        cmocka_unit_test(gradients_stop_where_they_are_told_to),
        cmocka_unit_test(masks_of_the_lowest_numbers),
        cmocka_unit_test(what_is_no_attention),
        cmocka_unit_test(the_scale_is_an_argument),
        cmocka_unit_test(a_scale_of_zero),
        cmocka_unit_test(a_scale_that_is_annealed),
        cmocka_unit_test(what_explain_says),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_close(&B);
    return failed;
}
