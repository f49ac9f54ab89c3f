/* finetune.c - a network that has learned one task learns another: weights of another model, a frozen trunk,
 * a new head.
 *
 *   build/finetune                                   learns to tell small digits from large ones first
 *   build/finetune --weights w.safetensors           begins with a state_dict of PyTorch
 *
 * The first model calls its layers features.* and classifier; this one trunk.* and head, and has ten classes
 * instead of two. The file is loaded in part and under other names; while the trunk is frozen, a step
 * computes the head's gradients alone. Then all of it learns, at a tenth of the rate. Read finetune first. */
#include "args.h"

struct net {
    tn_conv *c1, *c2;
    tn_norm *n1, *n2;
    tn_linear *fc, *head;
};

static const char *name(const char *layers, const char *layer)
{
    static char text[64];
    snprintf(text, sizeof text, "%s.%s", layers, layer);
    return text;
}

static void make_net(tn_session *s, struct net *net, const char *trunk, const char *head, int64_t classes)
{
    net->c1 = tn_conv2d_new(s, name(trunk, "c1"), 1, 8, 3, .pad = 1);
    net->n1 = tn_batch_norm_new(s, name(trunk, "n1"), 8);
    net->c2 = tn_conv2d_new(s, name(trunk, "c2"), 8, 16, 3, .pad = 1);
    net->n2 = tn_batch_norm_new(s, name(trunk, "n2"), 16);
    net->fc = tn_linear_new(s, name(trunk, "fc"), 7 * 7 * 16, 64, .flattened = {7, 7, 16});
    net->head = tn_linear_new(s, head, 64, classes, .flattened = {1, 1, 64});
}

/* x [n, 28, 28, 1] -> [n, 64] */
static tn_tensor *trunk_forward(const struct net *net, tn_tensor *x)
{
    x = tn_max_pool2d(tn_relu(tn_norm_forward(net->n1, tn_conv2d_forward(net->c1, x))), 2);
    x = tn_max_pool2d(tn_relu(tn_norm_forward(net->n2, tn_conv2d_forward(net->c2, x))), 2);
    return tn_relu(tn_linear_forward(net->fc, tn_flatten(x, 1)));
}

static tn_tensor *classify(tn_session *s, tn_tensor *x, void *user)
{
    (void)s;
    const struct net *net = user;
    return tn_linear_forward(net->head, trunk_forward(net, x));
}

/* The other task: is it 5 or more? */
static tn_tensor *large(tn_tensor *digit) { return tn_cast(tn_gt_scalar(digit, 4), TN_I32); }

static void train(tn_session *s, struct net *net, tn_dataset *d, const struct args *a, double lr, bool frozen,
                  tn_tensor *(*task)(tn_tensor *))
{
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = lr, .weight_decay = 0.01);
    tn_batch b;
    tn_loader *l =
        tn_loader_open(d, .batch = a->batch, .batches = a->steps, .shuffle = 1, .progress = !a->quiet);
    while (!interrupted() && tn_next(l, &b)) {
        tn_step_begin(s);
        tn_train(s, !frozen); /* statistics of a frozen trunk stay */
        tn_tensor *x = trunk_forward(net, b.x);
        tn_train(s, true);
        tn_tensor *loss = tn_cross_entropy(tn_linear_forward(net->head, x), task ? task(b.y) : b.y);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_progress(l, "loss", loss);
        tn_step_end(s);
    }
}

/* The first model, for who brings none: written as for PyTorch. */
static int pretrain(struct args *a, const char *path)
{
    tn_session *s = args_open(a);
    if (!s) return 1;
    struct net net;
    make_net(s, &net, "features", "classifier", 2);
    train(s, &net, tn_dataset_idx(s, a->data, TN_TRAIN), a, a->lr, false, large);
    tn_save(s, path, .for_pytorch = true);
    return args_finish(a, s);
}

static void show(tn_session *s, const char *what, struct net *net, tn_dataset *test)
{
    printf("%s: test accuracy %.1f %%\n", what, 100 * tn_evaluate(s, test, classify, net));
}

static int finetune(struct args *a, const char *path)
{
    tn_session *s = args_open(a);
    if (!s) return 1;
    struct net net;
    make_net(s, &net, "trunk", "head", 10);
    tn_load_report report;
    if (!tn_load(s, path, .layout = TN_LAYOUT_PYTORCH, .partial = true, .rename = {{"features.*", "trunk.*"}},
                 .report = &report))
        printf("%s\n", report.text);
    printf("%d parameters are frozen\n", tn_freeze(s, "trunk.*", true));
    tn_dataset *d = tn_dataset_idx(s, a->data, TN_TRAIN), *test = tn_dataset_idx(s, a->data, TN_TEST);
    show(s, "new head", &net, test);
    train(s, &net, d, a, a->lr, true, NULL);
    show(s, "head trained", &net, test);
    tn_freeze(s, "trunk.*", false);
    train(s, &net, d, a, a->lr / 10, false, NULL);
    show(s, "all trained", &net, test);
    return args_finish(a, s);
}

int main(int argc, char **argv)
{
    const char *weights = NULL, *made = "build/features.safetensors";
    const struct args_more more[] = {
        {"--weights", "of the first model; without, it is trained first", .text = &weights, .label = "FILE"},
        {"--features", "where the first model's weights go", .text = &made, .label = "FILE"},
        {.name = NULL}};
    struct args a = {.program = "finetune",
                     .purpose = "Trains a new head, and then all, of a network that knows another task.",
                     .data = "data/digits",
                     .epochs = 1,
                     .batch = 64,
                     .lr = 2e-3,
                     .more = more};
    args_parse(&a, argc, argv);
    if (!weights && pretrain(&a, made)) return 1;
    return finetune(&a, weights ? weights : made);
}
