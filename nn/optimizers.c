/* optimizers.c - SGD, Adam, AdamW, RMSprop, Adagrad, Lion, and averages of weights: of each the row, the
 * formula and the constructor.
 *
 * The formulas are PyTorch's single-tensor ones (torch/optim/sgd.py, adam.py, adamw.py); they stand in
 * <tensor_nn.h>. Another optimizer is another section here, and its declarations there. Read the last one
 * first. */
#include "optim.h"

#include <math.h>

/* ---- sgd ---- */

enum { MOMENTUM, DAMPENING, NESTEROV };

/* Returns the factor of the gradient as it is added to the momentum. */
static double push(const double *number, double t) { return t > 1 ? 1 - number[DAMPENING] : 1; }

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
                           o->accumulate, o->shard, number);
}

/* ---- adam, adamw ---- */

enum { BETA1, BETA2, EPS };

static double unbias1(const double *number, double t) { return 1 / (1 - pow(number[BETA1], t)); }

static double unbias2(const double *number, double t) { return 1 / sqrt(1 - pow(number[BETA2], t)); }

static tn_tensor *adam_step(const nn_update *u, const double *number, tn_tensor *g, tn_tensor **state)
{
    tn_tensor *m = tn_add(state[0], tn_nn_times(tn_sub(g, state[0]), 1 - number[BETA1]));
    tn_tensor *v = tn_add(tn_nn_times(state[1], number[BETA2]), tn_nn_times(tn_square(g), 1 - number[BETA2]));
    tn_tensor *root = tn_add_scalar(tn_nn_gained(u, tn_sqrt(v)), tn_number_f(number[EPS]));
    state[0] = m;
    state[1] = v;
    return tn_div(m, root);
}

#define UNBIASED .rate = unbias1, .gain = unbias2, .rate_as = {BETA1, -1}, .gain_as = {BETA2, -0.5}

static const nn_method adam = {
    .name = "adam", .state = {"exp_avg", "exp_avg_sq"}, UNBIASED, .step = adam_step};
static const nn_method adamw = {
    .name = "adamw", .state = {"exp_avg", "exp_avg_sq"}, .decoupled = true, UNBIASED, .step = adam_step};

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
    if (!(number[BETA1] < 1 && number[BETA2] < 1) || tn_nn_bad_number(number[EPS]))
        return tn_nn_fail(s, TN_E_ARG, method->name,
                          "beta1 %g and beta2 %g must be below 1, eps %g finite and not below 0",
                          number[BETA1], number[BETA2], number[EPS]);
    return tn_nn_optim_new(s, method, params, o->lr, o->weight_decay, o->accumulate, o->shard, number);
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

/* ---- rmsprop ---- */

enum { ALPHA, RMS_EPS, RMS_MOMENTUM };

/* With a momentum the second state is the buffer; centered, it is the third that is the gradient's mean. */
static tn_tensor *rms_root(const double *number, tn_tensor *square, tn_tensor *mean)
{
    if (mean) square = tn_sub(square, tn_square(mean));
    return tn_add_scalar(tn_sqrt(square), tn_number_f(number[RMS_EPS]));
}

static tn_tensor *rms_step(const double *number, tn_tensor *g, tn_tensor **state, tn_tensor **mean,
                           tn_tensor **push)
{
    state[0] = tn_add(tn_nn_times(state[0], number[ALPHA]), tn_nn_times(tn_square(g), 1 - number[ALPHA]));
    if (mean) *mean = tn_add(*mean, tn_nn_times(tn_sub(g, *mean), 1 - number[ALPHA]));
    tn_tensor *d = tn_div(g, rms_root(number, state[0], mean ? *mean : NULL));
    return push ? *push = tn_add(tn_nn_times(*push, number[RMS_MOMENTUM]), d) : d;
}

#define RMS(name_, ...)                                                                                      \
    static tn_tensor *name_##_step(const nn_update *u, const double *number, tn_tensor *g,                   \
                                   tn_tensor **state)                                                        \
    {                                                                                                        \
        (void)u;                                                                                             \
        return rms_step(number, g, state, __VA_ARGS__);                                                      \
    }
RMS(rms_plain, NULL, NULL)
RMS(rms_mean, &state[1], NULL)
RMS(rms_push, NULL, &state[1])
RMS(rms_both, &state[2], &state[1])

TN_DEFINE(tn_optim *, rmsprop, s, (s, params, options), tn_session *s, tn_params params,
          const tn_rmsprop_options *options)
{
    static const nn_method methods[2][2] = {
        {{.name = "rmsprop", .state = {"square_avg"}, .step = rms_plain_step},
         {.name = "rmsprop", .state = {"square_avg", "momentum_buffer"}, .step = rms_push_step}},
        {{.name = "rmsprop", .state = {"square_avg", "grad_avg"}, .step = rms_mean_step},
         {.name = "rmsprop", .state = {"square_avg", "momentum_buffer", "grad_avg"}, .step = rms_both_step}}};
    NN_OPTIONS(tn_rmsprop_options, o, options);
    const double number[NN_NUMBERS] = {[ALPHA] = beta(o->alpha, 0.99),
                                       [RMS_EPS] = o->eps != 0 ? o->eps : 1e-8,
                                       [RMS_MOMENTUM] = o->momentum};
    if (!s) return NULL;
    if (!(number[ALPHA] < 1) || tn_nn_bad_number(number[RMS_EPS]) || tn_nn_bad_number(o->momentum))
        return tn_nn_fail(s, TN_E_ARG, "rmsprop",
                          "alpha %g must be below 1, eps %g and momentum %g finite and not below 0",
                          number[ALPHA], number[RMS_EPS], o->momentum);
    return tn_nn_optim_new(s, &methods[o->centered][o->momentum > 0], params, o->lr != 0 ? o->lr : 1e-2,
                           o->weight_decay, o->accumulate, o->shard, number);
}

/* ---- adagrad ---- */

enum { LR_DECAY, ADA_EPS };

static double slower(const double *number, double t) { return 1 / (1 + (t - 1) * number[LR_DECAY]); }

static tn_tensor *adagrad_step(const nn_update *u, const double *number, tn_tensor *g, tn_tensor **state)
{
    (void)u;
    state[0] = tn_add(state[0], tn_square(g));
    return tn_div(g, tn_add_scalar(tn_sqrt(state[0]), tn_number_f(number[ADA_EPS])));
}

static const nn_method adagrad = {.name = "adagrad", .state = {"sum"}, .rate = slower, .step = adagrad_step};

TN_DEFINE(tn_optim *, adagrad, s, (s, params, options), tn_session *s, tn_params params,
          const tn_adagrad_options *options)
{
    NN_OPTIONS(tn_adagrad_options, o, options);
    const double number[NN_NUMBERS] = {[LR_DECAY] = o->lr_decay, [ADA_EPS] = o->eps != 0 ? o->eps : 1e-10};
    if (!s) return NULL;
    if (tn_nn_bad_number(o->lr_decay) || tn_nn_bad_number(number[ADA_EPS]))
        return tn_nn_fail(s, TN_E_ARG, "adagrad", "lr_decay %g and eps %g must be finite and not below 0",
                          o->lr_decay, number[ADA_EPS]);
    return tn_nn_optim_new(s, &adagrad, params, o->lr != 0 ? o->lr : 1e-2, o->weight_decay, o->accumulate,
                           o->shard, number);
}

/* ---- lion (Chen et al. 2023) ---- */

enum { MIX, KEEP };

static tn_tensor *lion_step(const nn_update *u, const double *number, tn_tensor *g, tn_tensor **state)
{
    (void)u;
    tn_tensor *m = state[0];
    state[0] = tn_add(m, tn_nn_times(tn_sub(g, m), 1 - number[KEEP]));
    return tn_sign(tn_add(m, tn_nn_times(tn_sub(g, m), 1 - number[MIX])));
}

static const nn_method lion = {.name = "lion", .state = {"exp_avg"}, .decoupled = true, .step = lion_step};

TN_DEFINE(tn_optim *, lion, s, (s, params, options), tn_session *s, tn_params params,
          const tn_adam_options *options)
{
    NN_OPTIONS(tn_adam_options, o, options);
    const double number[NN_NUMBERS] = {[MIX] = beta(o->beta1, 0.9), [KEEP] = beta(o->beta2, 0.99)};
    if (!s) return NULL;
    if (!(number[MIX] < 1 && number[KEEP] < 1))
        return tn_nn_fail(s, TN_E_ARG, "lion", "beta1 %g and beta2 %g must be below 1", number[MIX],
                          number[KEEP]);
    return tn_nn_optim_new(s, &lion, params, o->lr != 0 ? o->lr : 1e-4, o->weight_decay, o->accumulate,
                           o->shard, number);
}

/* ---- averages of weights ---- */

enum { EMA_DECAY };

/* The first average is the weight itself. */
static double share(const double *number, double t) { return t > 1 ? 1 - number[EMA_DECAY] : 1; }

static tn_tensor *ema_step(const nn_update *u, const double *number, tn_tensor *p, tn_tensor **state)
{
    (void)number;
    return state[0] = tn_add(state[0], tn_nn_gained(u, tn_sub(p, state[0])));
}

static const nn_method ema = {
    .name = "ema", .state = {"average"}, .follows = true, .gain = share, .step = ema_step};

TN_DEFINE(tn_optim *, ema, s, (s, params, options), tn_session *s, tn_params params,
          const tn_ema_options *options)
{
    NN_OPTIONS(tn_ema_options, o, options);
    const double number[NN_NUMBERS] = {[EMA_DECAY] = beta(o->decay, 0.999)};
    if (!s) return NULL;
    if (!(number[EMA_DECAY] < 1))
        return tn_nn_fail(s, TN_E_ARG, "ema", "decay %g must be below 1", number[EMA_DECAY]);
    return tn_nn_optim_new(s, &ema, params, 1, 0, 1, o->shard, number);
}
