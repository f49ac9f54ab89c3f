/* optimizers.c - SGD, Adam and AdamW: of each the row, the formula and the constructor.
 *
 * The formulas are PyTorch's single-tensor ones (torch/optim/sgd.py, adam.py, adamw.py); they stand in
 * <tensor_nn.h>. Another optimizer is another section here, and its declarations there. Read the last one
 * first.
 */
#include "optim.h"

#include <math.h>

/* ---- sgd ---- */

enum { MOMENTUM, DAMPENING, NESTEROV };

/* Returns the factor of the gradient as it is added to the momentum. */
static double push(const double *number, double t)
{
    return t > 1 ? 1 - number[DAMPENING] : 1;
}

static tn_tensor *plain_step(const nn_update *u, const double *number, tn_tensor *g, tn_tensor **state)
{
    (void)u, (void)number, (void)state;
    return g;
}

static tn_tensor *momentum_step(const nn_update *u, const double *number, tn_tensor *g, tn_tensor **state)
{
    tn_tensor *b = tn_add(tn_nn_times(state[0], number[MOMENTUM]), tn_nn_gained(u, g));
    state[0] = b;
    return number[NESTEROV] != 0 ? tn_add(g, tn_nn_times(b, number[MOMENTUM])) : b;
}

static const nn_method sgd = {.name = "sgd", .step = plain_step};
static const nn_method sgd_momentum = {
    .name = "sgd", .state = {"momentum_buffer"}, .gain = push, .step = momentum_step};

TN_DEFINE(tn_optim *, sgd, s, (s, params, options), tn_session *s, tn_params params,
          const tn_sgd_options *options)
{
    NN_OPTIONS(tn_sgd_options, o, options);
    const double number[NN_NUMBERS] = {
        [MOMENTUM] = o->momentum, [DAMPENING] = o->dampening, [NESTEROV] = o->nesterov};
    if (!s) return NULL;
    const bool bad = tn_nn_bad_number(o->momentum);
    if (bad || (o->nesterov && (!(o->momentum > 0) || o->dampening != 0))) {
        tn_fail(s, TN_E_ARG, "sgd",
                bad ? "momentum %g must be finite and not below 0"
                    : "nesterov needs momentum > 0 and no dampening; momentum is %g",
                o->momentum);
        return NULL;
    }
    return tn_nn_optim_new(s, o->momentum > 0 ? &sgd_momentum : &sgd, params, o->lr, o->weight_decay,
                           o->accumulate, number);
}

/* ---- adam, adamw ---- */

enum { BETA1, BETA2, EPS };

static double unbias1(const double *number, double t)
{
    return 1 / (1 - pow(number[BETA1], t));
}

static double unbias2(const double *number, double t)
{
    return 1 / sqrt(1 - pow(number[BETA2], t));
}

static tn_tensor *adam_step(const nn_update *u, const double *number, tn_tensor *g, tn_tensor **state)
{
    tn_tensor *m = tn_add(state[0], tn_nn_times(tn_sub(g, state[0]), 1 - number[BETA1]));
    tn_tensor *v = tn_add(tn_nn_times(state[1], number[BETA2]), tn_nn_times(tn_square(g), 1 - number[BETA2]));
    tn_tensor *root = tn_add_scalar(tn_nn_gained(u, tn_sqrt(v)), tn_number_f(number[EPS]));
    state[0] = m;
    state[1] = v;
    return tn_div(m, root);
}

static const nn_method adam = {
    .name = "adam", .state = {"exp_avg", "exp_avg_sq"}, .rate = unbias1, .gain = unbias2, .step = adam_step};
static const nn_method adamw = {.name = "adamw",
                                .state = {"exp_avg", "exp_avg_sq"},
                                .decoupled = true,
                                .rate = unbias1,
                                .gain = unbias2,
                                .step = adam_step};

/* An option that is 0 where it means `standard`, and negative where it means 0. */
static double beta(double option, double standard)
{
    return option < 0 ? 0 : option != 0 ? option : standard;
}

static tn_optim *adam_new(tn_session *s, const nn_method *method, tn_params params,
                          const tn_adam_options *options)
{
    NN_OPTIONS(tn_adam_options, o, options);
    const double number[NN_NUMBERS] = {
        [BETA1] = beta(o->beta1, 0.9), [BETA2] = beta(o->beta2, 0.999), [EPS] = o->eps != 0 ? o->eps : 1e-8};
    if (!s) return NULL;
    if (!(number[BETA1] < 1 && number[BETA2] < 1) || tn_nn_bad_number(number[EPS])) {
        tn_fail(s, TN_E_ARG, method->name,
                "beta1 %g and beta2 %g must be below 1, eps %g finite and not below 0", number[BETA1],
                number[BETA2], number[EPS]);
        return NULL;
    }
    return tn_nn_optim_new(s, method, params, o->lr, o->weight_decay, o->accumulate, number);
}

TN_DEFINE(tn_optim *, adam, s, (s, params, options), tn_session *s, tn_params params,
          const tn_adam_options *options)
{
    return adam_new(s, &adam, params, options);
}

TN_DEFINE(tn_optim *, adamw, s, (s, params, options), tn_session *s, tn_params params,
          const tn_adam_options *options)
{
    return adam_new(s, &adamw, params, options);
}
