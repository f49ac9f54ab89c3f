/* test_optimizers.c - each optimizer and option over six steps, beside PyTorch's numbers
 * (tests/golden/optim.safetensors). What else tn_optim_step promises is in test_nn_optim.c.
 *
 * A gradient is given by the loss sum(p * g). Read run_case first. */
#include "tests/golden.h"

enum { STEPS = 6, PARAMS = 3 };
static const char *const NAME[PARAMS] = {"a", "b", "c"};

/* X(name, the optimizer, what the test does beside) */
/* clang-format off */
#define CASES(X) \
    X(sgd, tn_sgd(s, all, .lr = 0.1), .clip = 0) \
    X(sgd_decay, tn_sgd(s, all, .lr = 0.1, .weight_decay = 0.1), .clip = 0) \
    X(sgd_momentum, tn_sgd(s, all, .lr = 0.1, .momentum = 0.9), .clip = 0) \
    X(sgd_dampening, tn_sgd(s, all, .lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05), \
      .clip = 0) \
    X(sgd_nesterov, tn_sgd(s, all, .lr = 0.1, .momentum = 0.8, .nesterov = true, .weight_decay = 0.05), \
      .clip = 0) \
    X(adam, tn_adam(s, all, .lr = 0.01), .clip = 0) \
    X(adam_decay, tn_adam(s, all, .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, \
      .weight_decay = 0.1), .clip = 0) \
    X(adamw, tn_adamw(s, all, .lr = 0.01, .weight_decay = 0.1), .clip = 0) \
    X(adamw_no_decay, tn_adamw(s, all, .lr = 0.01), .clip = 0) \
    X(adamw_groups, tn_adamw(s, all, .lr = 0.01, .weight_decay = 0.1), .groups = true) \
    X(adamw_missing, tn_adamw(s, all, .lr = 0.01, .weight_decay = 0.1), .missing = true) \
    X(sgd_missing, tn_sgd(s, all, .lr = 0.1, .momentum = 0.9, .dampening = 0.3), .missing = true) \
    X(adamw_clip, tn_adamw(s, all, .lr = 0.01, .weight_decay = 0.1), .clip = 2) \
    X(adamw_clip_missing, tn_adamw(s, all, .lr = 0.01), .clip = 2, .missing = true) \
    X(sgd_clip_loose, tn_sgd(s, all, .lr = 0.1), .clip = 1e3) \
    X(adamw_schedule, tn_adamw(s, all, .lr = 0.01, .weight_decay = 0.1), .schedule = true) \
    X(adamw_accumulate, tn_adamw(s, all, .lr = 0.01, .weight_decay = 0.1, .accumulate = 3), .clip = 0) \
    X(rmsprop, tn_rmsprop(s, all), .clip = 0) \
    X(rmsprop_momentum, tn_rmsprop(s, all, .lr = 0.01, .alpha = 0.9, .momentum = 0.8, \
      .weight_decay = 0.1), .clip = 0) \
    X(rmsprop_centered, tn_rmsprop(s, all, .eps = 1e-3, .centered = true), .missing = true) \
    X(rmsprop_both, tn_rmsprop(s, all, .eps = 1e-3, .centered = true, .momentum = 0.9), .clip = 0) \
    X(adagrad, tn_adagrad(s, all), .clip = 0) \
    X(adagrad_decay, tn_adagrad(s, all, .lr = 0.1, .lr_decay = 0.2, .weight_decay = 0.1), .missing = true) \
    X(lion, tn_lion(s, all, .lr = 0.01), .clip = 0) \
    X(lion_decay, tn_lion(s, all, .lr = 0.01, .beta1 = 0.8, .beta2 = 0.7, .weight_decay = 0.1), \
      .missing = true, .clip = 1) \
    X(sgd_accumulate, tn_sgd(s, all, .lr = 0.1, .momentum = 0.9, .accumulate = 2), .missing = true, \
      .clip = 0.5)
/* clang-format on */
enum {
#define X(id, ...) CASE_##id,
    CASES(X)
#undef X
        CASE_COUNT
};

typedef struct optim_case {
    const char *name;
    bool groups, missing, schedule;
    double clip;
} optim_case;

static const optim_case Cases[] = {
#define X(id, made, ...) {.name = #id, __VA_ARGS__},
    CASES(X)
#undef X
};

static tn_optim *make_optim(tn_session *s, int which)
{
    const tn_params all = tn_all_params(s);
    tn_optim *o = NULL;
    switch (which) {
#define X(id, made, ...)                                                                                     \
    case CASE_##id: o = made; break;
        CASES(X)
#undef X
    }
    if (Cases[which].groups)
        assert_int_equal(tn_optim_group(o, "[ac]", .lr_factor = 0.5, .weight_decay = 0.02), 2);
    return o;
}

/* The rule of make_golden.py. */
static bool has_gradient(const optim_case *c, int k, int step)
{
    return !c->missing || (!(k == 1 && (step == 1 || step == 2)) && !(k == 2 && (step == 0 || step == 4)));
}

static tn_tensor *loss_of(tn_session *s, const golden *g, const optim_case *c, tn_tensor *const *p, int step,
                          tn_dtype dtype)
{
    tn_tensor *loss = NULL;
    for (int k = 0; k < PARAMS; k++) {
        if (!has_gradient(c, k, step)) continue;
        tn_tensor *all = golden_tensor(s, golden_find(g, "gradient.%s", NAME[k]), dtype);
        tn_tensor *part = tn_sum(tn_mul(p[k], tn_select(all, 0, step)), TN_ALL, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    return loss;
}

static void run_case(const place *at, const golden *g, int which, tn_dtype dtype)
{
    const optim_case *c = &Cases[which];
    char where[128], what[64];
    tn_tensor *p[PARAMS];
    bool exact = at->device == TN_REF || dtype == TN_F64;
    bool columns = c->groups || c->missing; /* factors that stand in tensors are of the parameters' dtype */
    double tolerance = !exact ? 1e-6 : columns && dtype == TN_F32 ? 1e-8 : 1e-12;
    tn_session *s = open_place(at, NULL, NULL);
    snprintf(where, sizeof(where), "%s %s on %s", c->name, tn_dtype_name(dtype), at->name);
    for (int k = 0; k < PARAMS; k++)
        p[k] = tn_param(s, NAME[k], golden_tensor(s, golden_find(g, "init.%s", NAME[k]), dtype));
    tn_optim *o = make_optim(s, which);
    expect_fine(s, where);
    int every = o->accumulate;
    for (int step = 0; step < STEPS; step++) {
        tn_step_begin(s);
        tn_backward(loss_of(s, g, c, p, step, dtype));
        if (c->schedule) tn_optim_set_lr(o, 0.01 / (1 + step));
        tn_tensor *norm = c->clip > 0 ? tn_clip_grad_norm(o, c->clip) : NULL;
        if (norm && (step + 1) % every == 0) {
            double *norms = golden_values(golden_find(g, "%s.norms", c->name)), want = norms[step / every];
            if (fabs(tn_item(norm) - want) > tolerance * want)
                fail_msg("%s: the norm of step %d is %.17g, not %.17g", where, step, tn_item(norm), want);
            free(norms);
        }
        tn_optim_step(o);
        tn_step_end(s);
        expect_fine(s, where);
        for (int k = 0; k < PARAMS && (step == 0 || step == STEPS - 1); k++) {
            snprintf(what, sizeof(what), "%s after step %d", NAME[k], step);
            golden_close(where, what, p[k], golden_find(g, "%s.%d.%s", c->name, step, NAME[k]), tolerance);
        }
    }
    assert_int_equal(tn_close(s), TN_OK);
}

TEST(against_pytorch)
{
    golden g;
    golden_open(&g, "optim");
    for (int at = 0; at < PLACE_COUNT; at++)
        for (int c = 0; c < CASE_COUNT; c++) {
            run_case(&PLACES[at], &g, c, TN_F32);
            run_case(&PLACES[at], &g, c, TN_F64);
        }
    golden_close_file(&g);
}

RUN_TESTS(NULL, NULL)
