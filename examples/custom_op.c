/* custom_op.c - an activation that the library does not have, and a loss, as formulas.
 *
 *   build/custom_op          the digits that are shipped: seconds
 *
 * tn_define takes an elementwise operator as a formula; here swish with a slope of its own, x sigmoid(b x),
 * whose b is a number of the call, once with the gradient that is derived and once with one that is given;
 * and the pseudo-Huber loss with d as operand that learns. Their gradients are compared with differences, a
 * network is trained with them, and the plan of a step shows that they are in one kernel with what stands
 * around them. It ends with a line like
 *
 *   test accuracy 97.60 % (976/1000) */
#include "args.h"

struct own {
    tn_own *derived, *given, *huber;
};

struct model {
    struct own op;
    tn_linear *fc1, *fc2;
    tn_norm *norm;
    tn_tensor *delta; /* of the loss */
};

static struct own define(tn_session *s)
{
    return (struct own){
        .derived = tn_define(s, "swish_derived(x; b)", "x / (1 + exp(-b * x))"),
        .given = tn_define(s, "swish(x; b)", "x * sigmoid(b * x)",
                           .gradient = {"g * (sigmoid(b * x) + b * out * (1 - sigmoid(b * x)))"}),
        .huber = tn_define(s, "pseudo_huber(x, target, d)",
                           "d * d * (sqrt(1 + (x - target) / d * ((x - target) / d)) - 1)"),
    };
}

/* What tn_gradcheck differentiates: one number that depends on all three. */
static tn_tensor *all_of(tn_session *s, tn_tensor *const *x, void *user)
{
    const struct own *op = user;
    (void)s;
    tn_tensor *a = tn_apply(op->derived, x[0], .numbers = {1.5}),
              *b = tn_apply(op->given, x[0], .numbers = {1.5});
    return tn_sum(tn_apply(op->huber, tn_add(a, tn_square(b)), x[1], x[2]), TN_ALL, false);
}

static int check_gradients(tn_session *s, struct own *op)
{
    tn_tensor *x[3] = {tn_randn(s, TN_F64, TN_SHAPE(3, 4)), tn_randn(s, TN_F64, TN_SHAPE(4)),
                       tn_full(s, 0.7, TN_F64, TN_SHAPE(1))};
    const int status = tn_gradcheck(s, all_of, 3, x, op, 0);
    if (!status) printf("gradients agree with differences\n");
    for (int i = 0; i < 3; i++) tn_free(x[i]);
    return status;
}

/* x [n, 28, 28, 1] -> scores [n, 10] */
static tn_tensor *classify(tn_session *s, tn_tensor *x, void *user)
{
    const struct model *m = user;
    (void)s;
    tn_tensor *h = tn_norm_forward(m->norm, tn_linear_forward(m->fc1, tn_flatten(x, 1)));
    return tn_linear_forward(m->fc2, tn_apply(m->op.given, h, .numbers = {1.5}));
}

static void train_step(tn_session *s, const struct model *m, tn_optim *opt, const tn_batch *b, struct args *a)
{
    tn_step_begin(s);
    tn_tensor *scores = classify(s, b->x, (void *)m), *wanted = tn_cast(tn_one_hot(b->y, 10), TN_F32);
    tn_tensor *loss =
        tn_mean(tn_apply(m->op.huber, scores, wanted, tn_add_scalar(tn_exp(m->delta), 0.1)), TN_ALL, false);
    tn_backward(loss);
    tn_optim_step(opt);
    if (!a->quiet) tn_progress(a->loader, "loss", loss, "acc", tn_accuracy(scores, b->y));
    args_log(a, loss);
    tn_step_end(s);
}

int main(int argc, char **argv)
{
    struct args a = {.program = "custom_op",
                     .purpose = "Trains a network whose activation and loss are formulas.",
                     .data = "data/digits",
                     .epochs = 15,
                     .batch = 64,
                     .lr = 2e-3};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    struct model m = {.op = define(s)};
    if (check_gradients(s, &m.op)) return args_finish(&a, s);
    tn_dataset *train = tn_dataset_idx(s, a.data, TN_TRAIN), *test = tn_dataset_idx(s, a.data, TN_TEST);
    m.fc1 = tn_linear_new(s, "fc1", 28 * 28, 128);
    m.norm = tn_layer_norm_new(s, "norm", 128);
    m.fc2 = tn_linear_new(s, "fc2", 128, 10);
    m.delta = tn_param(s, "delta", tn_zeros(s, TN_F32, TN_SHAPE(1)));
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = a.lr, .weight_decay = 0.01);
    if (a.resume) tn_load(s, a.resume);

    while (args_pass(&a, train))
        for (tn_batch b; args_next(&a, &b);) train_step(s, &m, opt, &b, &a);
    if (interrupted()) return args_finish(&a, s);
    const char *plan = tn_plan_text(s), *line = plan ? strstr(plan, "layer_norm + swish") : NULL;
    while (line && line > plan && line[-1] != '\n') line--;
    if (line) printf("%.*s\n", (int)strcspn(line, "\n"), line);
    args_accuracy(s, tn_evaluate(s, test, classify, &m), tn_dataset_count(test));
    return args_finish(&a, s);
}
