/* test_replay.c - a step that repeats the one before is not recorded again, and means the same.
 *
 * One random script of operators is run as a training step again and again; now and then a step departs from
 * it at a random place: another attribute, another number, an operator more or less, a read in the middle, an
 * assignment, another batch, evaluation mode. A session that replays and one that does not must read the same
 * bits throughout, and see the same draws; --rounds N tries N scripts. Start with run_step. */
#include <malloc.h>
#include "rig.h"

#include "src/core/sanitized.h"
#include "src/runtime/session.h"

enum { POOL = 8, SCRIPT = 24, READS = 64, STEPS = 14 };
#if defined(TN_ASAN)
static uint64_t n_rounds = 6;
#else
static uint64_t n_rounds = 16;
#endif

enum { KEPT = 40 };

typedef struct run {
    tn_session *s;
    tn_tensor *w, *v, *state, *mean, *var;
    tn_tensor *last, *kept[KEPT]; /* of the step before; of this one, in order */
    int n_kept, lent;             /* lent: borrowed memory that is not back yet */
    tn_optim *opt;
    double seen[STEPS][READS];
    int n_seen[STEPS];
} run;

static void open_run(run *r, bool replay)
{
    setenv("TENSOR_REPLAY", replay ? "on" : "off", 1);
    memset(r, 0, sizeof *r);
    r->s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 11, .log = quiet);
    unsetenv("TENSOR_REPLAY");
    assert_non_null(r->s);
    r->w = tn_param(r->s, "w", tn_mul_scalar(tn_randn(r->s, TN_F32, TN_SHAPE(6, 6)), 0.4));
    r->v = tn_param(r->s, "v", tn_ones(r->s, TN_F32, TN_SHAPE(6)));
    r->state = tn_keep(tn_zeros(r->s, TN_F32, TN_SHAPE(4, 6)));
    r->mean = tn_buffer(r->s, "mean", tn_zeros(r->s, TN_F32, TN_SHAPE(6)));
    r->var = tn_buffer(r->s, "var", tn_ones(r->s, TN_F32, TN_SHAPE(6)));
    r->opt = tn_adamw(r->s, tn_all_params(r->s), .lr = 0.01);
}

static void see(run *r, int step, double v)
{
    assert_true(r->n_seen[step] < READS);
    r->seen[step][r->n_seen[step]++] = v;
}

static void take_back(void *data, void *user)
{
    (void)data;
    --*(int *)user;
}

/* A gradient inside the step that is differentiated again. */
static tn_tensor *inner_gradient(run *r, tn_tensor *x)
{
    tn_tensor *in[2] = {r->w, r->v}, *g[2] = {NULL, NULL};
    if (!r->w || tn_grad(tn_mean(tn_square(tn_affine(x, r->w, r->v)), TN_ALL, false), 2, in, g)) return NULL;
    return tn_add(tn_matmul(x, g[0]), g[1]);
}

/* A value carried to the next step: what was kept there joins in, and a new one is kept, which may be
 * assigned to at once, or looked at, or given up. */
static tn_tensor *carry(run *r, tn_tensor *x, uint32_t what)
{
    if (r->n_kept == KEPT) return x;
    if (r->last && tn_dim(r->last, 0) == tn_dim(x, 0)) x = tn_add(x, tn_mul_scalar(r->last, 0.5));
    tn_tensor *h = tn_keep(tn_tanh(x));
    if (what % 5 == 0) tn_assign(h, tn_mul_scalar(x, 0.25));
    tn_tensor *y = tn_sub(x, h);
    if (what % 5 == 1) tn_assign(h, tn_square(h));
    if (what % 7 == 0 && what % 5 > 1)
        tn_free(h);
    else
        r->kept[r->n_kept++] = h;
    return y;
}

static tn_tensor *exchanged(tn_tensor *x)
{
    tn_tensor *part[2];
    tn_split(x, 2, 1, part);
    return tn_concat(2, (tn_tensor *[]){part[1], tn_mul(part[0], part[1])}, -1);
}

static tn_tensor *lent(run *r, tn_tensor *x)
{
    static float host[24] __attribute__((aligned(64))) = {1, -1, .5F, 2, 0, .25F, 3};
    r->lent++;
    return tn_mul(x, tn_borrow(r->s, host, TN_F32, TN_SHAPE(tn_dim(x, 0), 6), take_back, &r->lent));
}

/* The operators, over the pool, whose tensors are all [rows, 6]. */
/* clang-format off */
#define MENU(X) \
    X(tn_add(x, y)) \
    X(tn_mul_scalar(x, number)) \
    X(tn_gelu(x)) \
    X(tn_layer_norm(x, r->v, NULL)) \
    X(tn_softmax(x, 1)) \
    X(tn_affine(x, r->w, r->v)) \
    X(tn_dropout(x, 0.25)) \
    X(tn_sub(x, tn_mean(x, TN_AXES(1), true))) \
    X(tn_flip(tn_mul(x, y), TN_AXES(1))) \
    X(tn_batch_norm(x, NULL, NULL, r->mean, r->var)) \
    X(tn_where(tn_gt_scalar(x, number), x, y)) \
    X(tn_add(x, tn_mul_scalar(tn_randn(r->s, TN_F32, TN_SHAPE(tn_dim(x, 0), 6)), 0.1))) \
    X(tn_maximum(x, tn_clamp(y, -0.5, 0.5))) \
    X(tn_concat(2, (tn_tensor *[]){tn_slice(x, 1, 0, 3, 1), tn_slice(y, 1, 3, 6, 1)}, 1)) \
    X(tn_mean(tn_stack(3, (tn_tensor *[]){x, y, r->v ? tn_add(x, r->v) : x}, 0), TN_AXES(0), false)) \
    X(exchanged(x)) \
    X(inner_gradient(r, x)) \
    X(carry(r, x, (uint32_t)(17 + r->n_kept))) \
    X(carry(r, x, (uint32_t)(18 + r->n_kept))) \
    X(lent(r, x)) \
    X(tn_tanh(tn_matmul(x, r->w)))
/* clang-format on */
#define X(...) +1
enum { MENU_SIZE = 0 MENU(X) };
#undef X

static tn_tensor *operate(run *r, int what, tn_tensor *x, tn_tensor *y, double number)
{
    enum { START = __COUNTER__ + 1 };
    switch (what + START) {
#define X(...)                                                                                               \
    case __COUNTER__: return __VA_ARGS__;
        MENU(X)
#undef X
    }
    return NULL;
}

/* Step `step` of the program that `seed` stands for. */
static void run_step(run *r, uint64_t seed, int step)
{
    rng script = {seed}, chance = {seed * 31 + (uint64_t)step};
    bool departs = step > 3 && rng_below(&chance, 3) == 0;
    int64_t where = rng_below(&chance, SCRIPT), how = rng_below(&chance, 8);
    int64_t rows = departs && how == 5 ? 3 : 4;
    float host[4 * 6];
    for (int i = 0; i < 24; i++) host[i] = (float)sin(i * 0.7 + step);
    tn_step_begin(r->s);
    if (departs && how == 6) tn_train(r->s, false);
    tn_tensor *pool[POOL], *x = tn_from(r->s, host, TN_F32, TN_SHAPE(rows, 6));
    for (int i = 0; i < POOL; i++) pool[i] = i % 2 || rows != 4 ? x : tn_add(x, r->state);
    for (int i = 0; i < SCRIPT; i++) {
        int what = (int)rng_below(&script, MENU_SIZE), a = (int)rng_below(&script, POOL),
            b = (int)rng_below(&script, POOL), to = (int)rng_below(&script, POOL);
        double number = 0.5 + 0.01 * step; /* changes with each step, which is no departure */
        bool here = departs && i == where;
        if (here && how == 0) what = (what + 1) % MENU_SIZE;
        if (here && how == 1) a = (a + 1) % POOL;
        if (here && how == 2) continue;
        if (here && how == 3) see(r, step, tn_item(tn_sum(pool[a], TN_ALL, false)));
        if (here && how == 4 && rows == 4) tn_assign(r->state, pool[b]);
        pool[to] = operate(r, what, pool[a], pool[b], number);
        if (here && how == 7) pool[to] = tn_sum(tn_unsqueeze(pool[to], 0), TN_AXES(0), false);
    }
    tn_tensor *loss = tn_mean(tn_square(tn_add(pool[0], tn_add(pool[1], pool[2]))), TN_ALL, false);
    tn_tensor *other = tn_mean(pool[3], TN_ALL, false);
    bool learns = tn_wants_gradient(loss) && tn_is_training(r->s);
    if (learns) {
        tn_backward(loss);
        if (seed % 2) tn_clip_grad_norm(r->opt, 0.5);
        tn_optim_step(r->opt);
    }
    if (rows == 4) tn_assign(r->state, tn_mul_scalar(tn_detach(pool[4]), 0.1));
    double newest = tn_watch(other);
    see(r, step, isnan(newest) ? -1 : newest);
    see(r, step, tn_item(loss));
    see(r, step, tn_item(other));
    if (learns && tn_gradient(r->w)) see(r, step, tn_item(tn_sum(tn_gradient(r->w), TN_ALL, false)));
    see(r, step, tn_item(tn_sum(r->w, TN_ALL, false)));
    see(r, step, tn_item(tn_sum(r->state, TN_ALL, false)));
    if (tn_step_end(r->s))
        fail_msg("seed %llu, step %d: %s", (unsigned long long)seed, step, tn_error_text(r->s));
    assert_int_equal(r->lent, 0);
    for (int i = 0; i < r->n_kept; i++) see(r, step, tn_item(tn_sum(r->kept[i], TN_ALL, false)));
    tn_free(r->last);
    r->last = NULL;
    for (int i = 0; i < r->n_kept; i++)
        if (i + 1 < r->n_kept)
            tn_free(r->kept[i]);
        else
            r->last = r->kept[i];
    r->n_kept = 0;
    tn_train(r->s, true);
    see(r, step, (double)tn_rng_draw(r->s));
}

TEST(a_replayed_step_means_the_same)
{
    uint64_t hits = 0;
    static run a, b;
    for (uint64_t seed = 1; seed <= n_rounds; seed++) {
        open_run(&a, true);
        open_run(&b, false);
        for (int step = 0; step < STEPS; step++) {
            run_step(&a, seed, step);
            run_step(&b, seed, step);
            assert_string_equal(tn_error_text(a.s), "");
            assert_int_equal(a.n_seen[step], b.n_seen[step]);
            for (int i = 0; i < a.n_seen[step]; i++)
                if (memcmp(&a.seen[step][i], &b.seen[step][i], sizeof(double)))
                    fail_msg("seed %llu, step %d, read %d: %.17g replayed, %.17g recorded",
                             (unsigned long long)seed, step, i, a.seen[step][i], b.seen[step][i]);
        }
        assert_int_equal(stats_of(b.s).replayed, 0);
        hits += stats_of(a.s).replayed;
        assert_int_equal(tn_close(a.s), 0);
        assert_int_equal(tn_close(b.s), 0);
    }
    printf("%llu of %llu steps were replayed to their end\n", (unsigned long long)hits,
           (unsigned long long)n_rounds * STEPS);
    assert_true(hits > n_rounds * STEPS / 4);
}

/* A handle of the step before is stale although its node is used again. */
TEST_ON(handles_go_stale_all_the_same, tn_open(.device = TN_CPU, .mode = TN_FUSED, .log = quiet))
{
    tn_tensor *k = tn_keep(tn_ones(s, TN_F32, TN_SHAPE(3))), *old = NULL;
    for (int i = 0; i < 4; i++) {
        tn_step_begin(s);
        if (old) {
            assert_int_equal(tn_ndim(old), -1);
            null_with(s, TN_E_STALE, "relu", tn_relu(old));
        }
        old = tn_mul_scalar(k, i + 1.0);
        assert_true(tn_item(tn_sum(old, TN_ALL, false)) == 3.0 * (i + 1));
        assert_int_equal(tn_step_end(s), 0);
        assert_int_equal(tn_ndim(old), -1);
    }
}

/* The next batch is another tensor: its values count, and the one before may be gone. */
TEST_ON(the_next_batch_takes_the_place_of_the_last, tn_open(.device = TN_CPU, .mode = TN_FUSED, .log = quiet))
{
    tn_tensor *w = tn_param(s, "w", tn_full(s, 2, TN_F32, TN_SHAPE(3)));
    tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = 0.5);
    double want = 2;
    for (int i = 0; i < 6; i++) {
        const float host[3] = {(float)i, (float)i, (float)i};
        tn_tensor *batch = tn_from(s, host, TN_F32, TN_SHAPE(3));
        tn_step_begin(s);
        tn_tensor *loss = tn_sum(tn_mul(w, batch), TN_ALL, false);
        tn_backward(loss);
        tn_optim_step(opt);
        assert_float_equal((float)tn_item(loss), (float)(3 * want * i), 1e-5f);
        want -= 0.5 * i;
        assert_float_equal((float)tn_item(tn_sum(w, TN_ALL, false)), (float)(3 * want), 1e-5f);
        assert_int_equal(tn_step_end(s), 0);
        tn_free(batch);
    }
    tn_stats v = stats_of(s);
    assert_int_equal(v.replayed, 5);
}

/* ---- what a tape can hold ---- */

enum { EACH = 6 };

typedef struct part {
    tn_tensor *w, *x, *last;
    int lent, round;
} part;

static tn_tensor *joins(tn_session *s, part *p)
{
    (void)s;
    tn_tensor *h = tn_concat(2, (tn_tensor *[]){tn_mul(p->x, p->w), p->x}, 0);
    return tn_stack(3, (tn_tensor *[]){h, tn_neg(h), h}, 1);
}

static tn_tensor *parts(tn_session *s, part *p)
{
    tn_tensor *out[2];
    (void)s;
    return tn_split(tn_mul(p->x, p->w), 2, 0, out) ? NULL : tn_sub(out[0], out[1]);
}

static tn_tensor *gradients(tn_session *s, part *p)
{
    tn_tensor *in[2] = {p->w, p->x}, *g[2];
    (void)s;
    tn_tensor *loss = tn_sum(tn_square(tn_mul(p->x, p->w)), TN_ALL, false);
    return tn_grad(loss, 2, in, g) || g[1] ? NULL : g[0]; /* x wants none */
}

static tn_tensor *carried(tn_session *s, part *p)
{
    (void)s;
    tn_tensor *was = p->last, *y = tn_mul(p->x, p->w);
    p->last = tn_keep(was ? tn_add(was, y) : tn_square(y));
    tn_assign(p->last, tn_mul_scalar(p->last, 0.5));
    tn_free(was);
    return tn_add_scalar(p->last, 1.0);
}

static tn_tensor *borrowed(tn_session *s, part *p)
{
    static float host[4] __attribute__((aligned(64)));
    for (int i = 0; i < 4; i++) host[i] = (float)(i + p->round);
    p->lent++;
    return tn_mul(tn_borrow(s, host, TN_F32, TN_SHAPE(4), take_back, &p->lent), p->w);
}

/* The name of a region counts by what it says. */
static tn_tensor *regions(tn_session *s, part *p)
{
    static char name[2][8] = {"swish", "swish"};
    tn_op_begin(s, name[p->round % 2]);
    tn_tensor *y = tn_mul(p->x, tn_sigmoid(p->w));
    tn_op_end(s);
    return y;
}

/* An operator between two steps, on a value of its own and on the parameter, disturbs neither of them. */
static tn_tensor *between(tn_session *s, part *p)
{
    (void)s;
    return tn_mul(p->x, p->w);
}

static tn_tensor *(*const held[])(tn_session *, part *) = {joins,    parts,   gradients, carried,
                                                           borrowed, regions, between};
enum { HELD = sizeof held / sizeof *held };

TEST(each_of_them_is_replayed)
{
    for (int which = 0; which < HELD; which++) {
        double seen[2][EACH][2];
        for (int replays = 0; replays < 2; replays++) {
            setenv("TENSOR_REPLAY", replays ? "on" : "off", 1);
            tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .log = quiet);
            unsetenv("TENSOR_REPLAY");
            part p = {.w = tn_param(s, "w", tn_full(s, 0.5, TN_F32, TN_SHAPE(4)))};
            p.x = tn_keep(tn_arange(s, 1, 5, 1, TN_F32));
            tn_requires_grad(p.w, held[which] == gradients);
            for (p.round = 0; p.round < EACH; p.round++) {
                if (held[which] == carried && p.round == 0)
                    p.last = tn_keep(tn_zeros(s, TN_F32, TN_SHAPE(4)));
                tn_step_begin(s);
                tn_tensor *y = held[which](s, &p);
                if (held[which] != gradients) /* which still wants it */
                    tn_assign(p.w, tn_add_scalar(tn_mul_scalar(p.w, 0.5), 0.1 * p.round));
                seen[replays][p.round][0] = tn_item(tn_sum(y, TN_ALL, false));
                if (tn_step_end(s)) fail_msg("%d, round %d: %s", which, p.round, tn_error_text(s));
                assert_int_equal(p.lent, 0);
                if (held[which] == gradients) tn_assign(p.w, tn_mul_scalar(p.w, 1.25));
                tn_tensor *look = held[which] == between ? tn_add(tn_rand(s, TN_F32, TN_SHAPE(4)), p.w) : p.w;
                seen[replays][p.round][1] = tn_item(tn_sum(look, TN_ALL, false));
            }
            tn_stats v = stats_of(s);
            if (v.replayed != (replays ? EACH - 1 : 0))
                fail_msg("%d: %d of %d steps were replayed", which, (int)v.replayed, (int)EACH);
            assert_int_equal(tn_close(s), 0);
        }
        assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    }
}

/* From the fourth step on nothing is to have a gradient. */
TEST_ON(without_gradients_is_another_step, tn_open(.device = TN_CPU, .mode = TN_FUSED, .log = quiet))
{
    tn_tensor *w = tn_param(s, "w", tn_full(s, 2, TN_F32, TN_SHAPE(3)));
    for (int i = 0; i < 6; i++) {
        tn_step_begin(s);
        if (i > 2) tn_no_grad_begin(s);
        tn_tensor *y = tn_add_scalar(w, 1.0);
        assert_int_equal(tn_wants_gradient(y), i <= 2);
        if (i > 2) tn_no_grad_end(s);
        assert_true(tn_item(tn_sum(y, TN_ALL, false)) == 9);
        assert_int_equal(tn_step_end(s), 0);
    }
}

/* ---- steps that are alike but for one thing ---- */

static tn_session *open_fused(void) { return tn_open(.device = TN_CPU, .mode = TN_FUSED, .log = quiet); }

/* Four steps that are the same, and two that are not quite. */
enum { ALIKE = 4, ROUNDS = 6 };

TEST_ON(a_number_of_another_kind, open_fused())
{
    tn_tensor *x = tn_full(s, 3, TN_I64, TN_SHAPE(2));
    for (int i = 0; i < ROUNDS; i++) {
        tn_step_begin(s);
        tn_tensor *y = i < ALIKE ? tn_add_scalar(x, 2) : tn_add_scalar(x, 2.5);
        assert_int_equal(tn_dtype_of(y), i < ALIKE ? TN_I64 : TN_F32);
        assert_true(tn_item(tn_sum(y, TN_ALL, false)) == (i < ALIKE ? 10 : 11));
        assert_int_equal(tn_step_end(s), 0);
    }
}

/* The step goes another way behind the draw: what was drawn by then is of the new seed. */
TEST_ON(another_seed, open_fused())
{
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(64)));
    for (int i = 0; i < ROUNDS; i++) {
        if (i == ALIKE) assert_int_equal(tn_set_rng(s, 77, 0), 0);
        tn_step_begin(s);
        tn_tensor *y = tn_mul(tn_dropout(w, 0.5), w);
        tn_tensor *loss = tn_sum(i < ALIKE ? tn_sin(y) : tn_cos(y), TN_ALL, false);
        assert_false(isnan(tn_item(loss)));
        assert_int_equal(tn_backward(loss), 0);
        assert_false(isnan(tn_item(tn_sum(tn_gradient(w), TN_ALL, false))));
        assert_int_equal(tn_step_end(s), 0);
    }
}

/* ---- the plans that are remembered ---- */

static tn_session *open_with_plans(const char *most)
{
    setenv("TENSOR_PLANS", most, 1);
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .threads = 1, .seed = 3, .log = quiet);
    unsetenv("TENSOR_PLANS");
    assert_non_null(s);
    return s;
}

/* Of a batch of n rows; the rows are all alike, and so is the sum of each of them. */
static double evaluate(tn_session *s, int64_t n)
{
    tn_step_begin(s);
    tn_tensor *x = tn_add_scalar(tn_zeros(s, TN_F32, TN_SHAPE(n, 5)), 2.0);
    double v = tn_item(tn_mean(tn_sum(tn_relu(x), TN_AXES(1), false), TN_ALL, false));
    assert_int_equal(tn_step_end(s), 0);
    return v;
}

static size_t allocated(void) { return mallinfo2().uordblks; }

/* A thousand shapes leave the plans of the last ones, their arena, and no more memory than a few did. */
TEST_ON(shapes_without_end, open_with_plans("32"))
{
    enum { PLANS = 32, SHAPES = 1000, SETTLED = 200 };
    size_t settled = 0;
    tn_stats a = {.size = sizeof a}, b = a;
    for (int i = 1; i <= SHAPES; i++) {
        assert_true(fabs(evaluate(s, i) - 10) < 1e-5);
        if (i != SETTLED) continue;
        settled = allocated();
        a = stats_of(s);
    }
    b = stats_of(s);
    assert_int_equal(tn_plan_cache_count(s->plans), PLANS);
    assert_true(b.plans >= SHAPES);
    assert_true(allocated() < settled + (1 << 18));
    assert_true(b.bytes_now < a.bytes_now + (1 << 20));
    evaluate(s, 1 << 20); /* one that wants much memory for its values ... */
    assert_true(s->arena_bytes == tn_plan_cache_arena(s->plans));
    for (int i = 1; i <= 2 * PLANS; i++) evaluate(s, i); /* ... gives it back when it goes */
    b = stats_of(s);
    assert_true(b.bytes_now < a.bytes_now + (1 << 20));
    uint64_t plans = b.plans;
    for (int i = PLANS + 1; i <= 2 * PLANS; i++) evaluate(s, i); /* the newest ones are still there */
    b = stats_of(s);
    assert_int_equal(b.plans, plans);
}

/* A step that repeats itself keeps its plan, and goes on repeating, whatever comes and goes between; and one
 * of more segments than there may be plans is right. */
TEST(what_is_used_stays)
{
    double seen[2][30] = {{0}};
    for (int few = 0; few < 2; few++) {
        tn_session *s = open_with_plans(few ? "4" : "256");
        tn_tensor *w = tn_param(s, "w", tn_randn(s, TN_F32, TN_SHAPE(6, 6)));
        tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = 0.01);
        tn_stats a = {.size = sizeof a}, b = a;
        for (int i = 0; i < 20; i++) {
            if (i == 3) a = stats_of(s);
            tn_step_begin(s);
            tn_tensor *loss = tn_mean(tn_square(tn_add_scalar(w, 1.0)), TN_ALL, false);
            tn_backward(loss);
            tn_optim_step(opt);
            tn_watch(loss);
            assert_int_equal(tn_step_end(s), 0);
            for (int k = 0; k < 6; k++) /* between the steps, each of another shape */
                tn_item(tn_sum(tn_relu(tn_zeros(s, TN_F32, TN_SHAPE(100 + 6 * i + k, 5))), TN_ALL, false));
            seen[few][i] = tn_item(tn_sum(w, TN_ALL, false));
        }
        b = stats_of(s);
        assert_int_equal(b.replayed - a.replayed, 17);
        for (int i = 0; i < 2; i++) {
            tn_step_begin(s);
            tn_tensor *x = w;
            for (int k = 0; k < 8; k++) {
                x = tn_concat(2, (tn_tensor *[]){x, w}, 0);
                seen[few][20 + k] += tn_item(tn_sum(tn_exp(x), TN_ALL, false));
            }
            assert_int_equal(tn_step_end(s), 0);
        }
        if (few) assert_int_equal(tn_plan_cache_count(s->plans), 4);
        assert_int_equal(tn_close(s), 0);
    }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
}

/* A plan that each round takes stays, however many come and go beside it. */
TEST(a_plan_that_is_used_outlives_newer_ones)
{
    setenv("TENSOR_REPLAY", "off", 1);
    tn_session *s = open_with_plans("4");
    unsetenv("TENSOR_REPLAY");
    evaluate(s, 1);
    for (int i = 2; i < 20; i++) {
        const uint64_t plans = stats_of(s).plans;
        evaluate(s, 1);
        assert_int_equal(stats_of(s).plans, plans);
        evaluate(s, i);
    }
    tn_close(s);
}

int main(int argc, char **argv)
{
    OPTION(n_rounds, "rounds");
    setenv("TENSOR_KERNEL_OPT", "1", 0); /* much is compiled and little computed */
    return run_all_tests(NULL, NULL);
}
