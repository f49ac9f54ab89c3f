/* test_misuse.c - calls in no sensible order, on handles of any age and of two sessions: none may bring the
 * program down, each that fails says so in the session's error, and once that is cleared both sessions
 * compute as ever.
 *
 *   misuse [--rounds N] [--seed N]
 *
 * A round is some hundred calls drawn at random from the list in `act`, on handles drawn from all that were
 * ever given out. Steps begin and end as it comes. Start with play. */
#include "check.h"
#include "include/tensor_nn.h"
#include "src/core/sanitized.h"

#if defined(TN_ASAN)
static int n_rounds = 12;
#else
static int n_rounds = 30;
#endif
static uint64_t first_seed = 1;
static int refused, went; /* calls that failed, and that did not while no error was in the way */

enum { HANDLES = 64, CALLS = 150, SESSIONS = 2 };

typedef struct game {
    rng r;
    tn_session *s[SESSIONS];
    tn_tensor *h[HANDLES]; /* of either session, alive or not; NULL among them */
    tn_optim *opt[SESSIONS];
    int n, names;
} game;

static tn_tensor *any(game *g)
{
    int64_t k = rng_below(&g->r, g->n + 2);
    return k < g->n ? g->h[k] : NULL;
}

static void hold(game *g, tn_tensor *t) { g->h[g->n < HANDLES ? g->n++ : rng_below(&g->r, HANDLES)] = t; }

static int small(game *g) { return (int)rng_below(&g->r, 6) - 2; }

static tn_tensor *make(game *g, tn_session *s)
{
    static const int64_t shape[][3] = {{2, 3, 0}, {3, 2, 0}, {3, 0, 0}, {1, 0, 0}, {2, 2, 3}, {0, 0, 0}};
    static const int ndim[] = {2, 2, 1, 1, 3, 1};
    int64_t k = rng_below(&g->r, 6);
    switch (rng_below(&g->r, 4)) {
    case 0: return tn_randn(s, TN_F32, ndim[k], shape[k]);
    case 1: return tn_full(s, small(g), TN_I64, ndim[k], shape[k]);
    case 2: return tn_full(s, small(g), rng_below(&g->r, 2) ? TN_BOOL : TN_F64, ndim[k], shape[k]);
    default: return tn_ones(s, TN_F32, ndim[k], shape[k]);
    }
}

static tn_tensor *part_of(game *g, tn_tensor *a)
{
    tn_tensor *part[3] = {NULL};
    tn_split(a, small(g), small(g), small(g) > 2 ? NULL : part);
    return part[0];
}

/* X(an operator on the handles a, b and c) */
/* clang-format off */
#define OPERATORS(X) \
    X(tn_add(a, b)) \
    X(tn_matmul(a, b)) \
    X(tn_where(a, b, c)) \
    X(tn_softmax(a, small(g))) \
    X(tn_sum(a, TN_ALL, false)) \
    X(tn_transpose(a, small(g), small(g))) \
    X(tn_slice(a, small(g), small(g), small(g), small(g))) \
    X(tn_gather(a, small(g), b)) \
    X(tn_embedding(a, b)) \
    X(tn_cross_entropy(a, b)) \
    X(tn_narrow(a, small(g), small(g), small(g))) \
    X(tn_concat(2, (tn_tensor *[]){a, b}, small(g))) \
    X(tn_layer_norm(a, b, c)) \
    X(tn_dropout(a, 0.5)) \
    X(tn_index_select(a, small(g), b)) \
    X(tn_detach(a)) \
    X(tn_reshape(a, TN_SHAPE(small(g), small(g)))) \
    X(tn_cast(a, (tn_dtype)rng_below(&g->r, TN_DTYPE_COUNT + 1))) \
    X(tn_exp(a)) \
    X(part_of(g, a))

/* X(another call; s: a session) */
#define ACTIONS(X) \
    X(tn_step_begin(s)) \
    X(tn_step_end(s)) \
    X(hold(g, tn_keep(a))) \
    X(tn_free(a)) \
    X(tn_assign(a, b)) \
    X(hold(g, tn_param(s, new_name(g, name), a))) \
    X(tn_backward(a)) \
    X(hold(g, tn_gradient(a))) \
    X(tn_requires_grad(a, rng_below(&g->r, 2))) \
    X(tn_item(a)) \
    X(read_some(a)) \
    X(tn_watch(a)) \
    X(tn_grad(a, 1, &b, &grad) ? (void)0 : hold(g, grad)) \
    X(tn_optim_step(g->opt[which])) \
    X(optimize(g, which, a, b)) \
    X(tn_flush(s)) \
    X(tn_op_begin(s, "together")) \
    X(tn_op_end(s)) \
    X(tn_no_grad_begin(s)) \
    X(tn_no_grad_end(s)) \
    X(tn_require_fused(s)) \
    X(tn_require_end(s)) \
    X(tn_set_name(a, "named")) \
    X(tn_train(s, rng_below(&g->r, 2))) \
    X(hold(g, make(g, s))) \
    X(hold(g, make(g, s))) \
    X(hold(g, make(g, s)))
/* clang-format on */

static const char *new_name(game *g, char name[16])
{
    snprintf(name, 16, "p%d", g->names++);
    return name;
}

static void read_some(tn_tensor *a)
{
    float v[32];
    const int64_t n = tn_numel(a);
    tn_read(a, TN_F32, v, n >= 0 && n <= 32 ? (size_t)n * sizeof *v : 4);
}

static void optimize(game *g, int64_t which, tn_tensor *a, tn_tensor *b)
{
    tn_session *s = g->s[which];
    if (g->opt[which])
        tn_clip_grad_norm(g->opt[which], 1);
    else
        g->opt[which] = rng_below(&g->r, 2) ? tn_adamw(s, tn_all_params(s)) : tn_sgd(s, TN_PARAMS(a, b));
}

/* The list is counted once and then one of it is drawn. */
#define COUNTED(...) +1

static void operate(game *g)
{
    tn_tensor *a = any(g), *b = any(g), *c = any(g);
    enum { START = __COUNTER__ + 1 };
    switch (rng_below(&g->r, 0 OPERATORS(COUNTED)) + START) {
#define X(...)                                                                                               \
    case __COUNTER__: hold(g, __VA_ARGS__); break;
        OPERATORS(X)
#undef X
    }
}

static void act(game *g)
{
    int64_t which = rng_below(&g->r, SESSIONS);
    tn_session *s = g->s[which];
    char name[16];
    tn_tensor *a = any(g), *b = any(g), *grad = NULL;
    enum { START = __COUNTER__ + 1 };
    switch (rng_below(&g->r, 0 ACTIONS(COUNTED)) + START) {
#define X(...)                                                                                               \
    case __COUNTER__: __VA_ARGS__; break;
        ACTIONS(X)
#undef X
    }
}

/* Whatever happened: a step from the start gives what it gives in a session that nothing happened to. */
static void still_computes(tn_session *s)
{
    tn_clear_error(s);
    if (tn_step_end(s)) tn_clear_error(s);
    for (int open = 1; open; tn_clear_error(s)) open = !tn_op_end(s);
    for (int open = 1; open; tn_clear_error(s)) open = !tn_no_grad_end(s);
    tn_train(s, true);
    tn_tensor *w = tn_ones(s, TN_F32, TN_SHAPE(4));
    tn_requires_grad(w, true);
    for (int i = 0; i < 3; i++) {
        tn_step_begin(s);
        tn_tensor *loss = tn_sum(tn_square(tn_mul_scalar(w, 3.0)), TN_ALL, false);
        tn_backward(loss);
        double slope = tn_item(tn_sum(tn_gradient(w), TN_ALL, false)), sum = tn_item(loss);
        tn_step_end(s);
        if (tn_error(s) || sum != 36 || slope != 72)
            fail_msg("afterwards %g and %g instead of 36 and 72: %s", sum, slope, tn_error_text(s));
    }
    tn_free(w);
}

static void play(tn_mode mode, uint64_t seed)
{
    game g = {.r = {seed}};
    for (int i = 0; i < SESSIONS; i++) {
        g.s[i] = tn_open(.device = TN_CPU, .mode = mode, .seed = seed, .log = quiet);
        assert_non_null(g.s[i]);
    }
    for (int i = 0; i < 16; i++) hold(&g, make(&g, g.s[i % SESSIONS]));
    for (int call = 0; call < CALLS; call++) {
        if (rng_below(&g.r, 3))
            operate(&g);
        else
            act(&g);
        for (int i = 0; i < SESSIONS; i++) {
            went += !tn_error(g.s[0]) && !tn_error(g.s[1]) && !i;
            if (!tn_error(g.s[i])) continue;
            refused++;
            if (!*tn_error_text(g.s[i]) || tn_error(g.s[i]) == TN_E_INTERNAL ||
                tn_error(g.s[i]) == TN_E_COMPILE)
                fail_msg("seed %llu, call %d: %d \"%s\"", (unsigned long long)seed, call, tn_error(g.s[i]),
                         tn_error_text(g.s[i]));
            if (rng_below(&g.r, 3)) tn_clear_error(g.s[i]); /* else it is what follows that is refused */
        }
    }
    for (int i = 0; i < SESSIONS; i++) still_computes(g.s[i]);
    for (int i = 0; i < SESSIONS; i++) assert_int_equal(tn_close(g.s[i]), 0);
}

TEST(nothing_brings_it_down)
{
    for (int i = 0; i < n_rounds; i++) play(i & 1 ? TN_EAGER : TN_FUSED, first_seed + (uint64_t)i);
    print_message("%d calls went well, %d were refused\n", went, refused);
    assert_true(went > 20 * n_rounds && refused > 20 * n_rounds);
}

int main(int argc, char **argv)
{
    OPTION(n_rounds, "rounds");
    OPTION(first_seed, "seed");
    setenv("TENSOR_KERNEL_OPT", "0", 0);
    return run_all_tests(NULL, NULL);
}
