/* cifar_resnet.c - trains a small residual network on folders of photographs.
 *
 *   data/get_data.sh cifar10 && build/make_folders data/cifar10 data/cifar10-images
 *   build/cifar_resnet --data data/cifar10-images
 *
 * The folder has train/CLASS/ and test/CLASS/ with .jpg or .png files of any sizes, which become 32 x 32.
 * Images are flipped and moved by up to 4 pixels; three stages of residual blocks, of --width, 2 and 4 times
 * as many channels, see them at 32 x 32, 16 x 16 and 8 x 8. SGD with Nesterov momentum, a warm-up and a
 * cosine decay. It prints the test accuracy after each epoch, and ends with a line like
 *
 *   test accuracy 68.30 % (1366/2000)
 *
 * Read train_step first; the rest is plumbing. */
#include "args.h"

enum { STAGES = 3, MOST_BLOCKS = 9, SIDE = 32 };

struct block {
    tn_conv *c1, *c2, *skip; /* skip: where the shape changes, else NULL */
    tn_norm *n1, *n2, *n3;
};

struct net {
    tn_conv *c;
    tn_norm *n;
    struct block block[STAGES][MOST_BLOCKS];
    tn_linear *fc;
    long blocks, width;
};

static void make_net(tn_session *s, struct net *net, int64_t classes)
{
    char name[32];
    int64_t in = net->width;
    net->c = tn_conv2d_new(s, "c", 3, in, 3, .pad = 1, .no_bias = true);
    net->n = tn_batch_norm_new(s, "n", in);
    for (int i = 0; i < STAGES; i++)
        for (int k = 0; k < net->blocks; k++) {
            struct block *b = &net->block[i][k];
            int64_t out = net->width << i;
#define NAME(part) (snprintf(name, sizeof(name), "s%d.%d." part, i, k), name)
            b->c1 = tn_conv2d_new(s, NAME("c1"), in, out, 3, .pad = 1, .stride = in == out ? 1 : 2,
                                  .no_bias = true);
            b->n1 = tn_batch_norm_new(s, NAME("n1"), out);
            b->c2 = tn_conv2d_new(s, NAME("c2"), out, out, 3, .pad = 1, .no_bias = true);
            b->n2 = tn_batch_norm_new(s, NAME("n2"), out);
            b->skip =
                in == out ? NULL : tn_conv2d_new(s, NAME("skip"), in, out, 1, .stride = 2, .no_bias = true);
            b->n3 = in == out ? NULL : tn_batch_norm_new(s, NAME("n3"), out);
#undef NAME
            in = out;
        }
    net->fc = tn_linear_new(s, "fc", in, classes);
}

/* x [n, h, w, 3] -> logits [n, classes] */
static tn_tensor *classify(tn_session *s, tn_tensor *x, void *user)
{
    const struct net *net = user;
    (void)s;
    x = tn_relu(tn_norm_forward(net->n, tn_conv2d_forward(net->c, x)));
    for (int i = 0; i < STAGES; i++)
        for (int k = 0; k < net->blocks; k++) {
            const struct block *b = &net->block[i][k];
            tn_tensor *h = tn_relu(tn_norm_forward(b->n1, tn_conv2d_forward(b->c1, x)));
            h = tn_norm_forward(b->n2, tn_conv2d_forward(b->c2, h));
            if (b->skip) x = tn_norm_forward(b->n3, tn_conv2d_forward(b->skip, x));
            x = tn_relu(tn_add(h, x));
        }
    return tn_linear_forward(net->fc, tn_flatten(tn_global_avg_pool2d(x), 1));
}

static void train_step(tn_session *s, struct net *net, tn_optim *opt, const tn_batch *b, struct args *a)
{
    tn_step_begin(s);
    tn_tensor *logits = classify(s, b->x, net);
    tn_tensor *loss = tn_cross_entropy(logits, b->y);
    tn_backward(loss);
    tn_optim_step(opt);
    if (!a->quiet) tn_progress(a->loader, "loss", loss, "acc", tn_accuracy(logits, b->y));
    args_log(a, loss);
    tn_step_end(s);
}

int main(int argc, char **argv)
{
    struct net net = {.blocks = 2, .width = 16};
    const struct args_more more[] = {
        {"--blocks", "in each of 3 stages", .whole = &net.blocks, .least = 1, .most = MOST_BLOCKS},
        {"--width", "channels of the first stage", .whole = &net.width, .least = 1, .most = 1024},
        {.name = NULL}};
    struct args a = {.program = "cifar_resnet",
                     .purpose = "Trains a small residual network on folders of photographs.",
                     .data = "data/cifar10-images",
                     .epochs = 10,
                     .batch = 64,
                     .lr = 0.05,
                     .augment = {.flip = true, .pad = 4},
                     .more = more};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    char part[2][4096];
    snprintf(part[0], sizeof(part[0]), "%s/train", a.data);
    snprintf(part[1], sizeof(part[1]), "%s/test", a.data);
    tn_dataset *train = tn_dataset_images(s, part[0], .height = SIDE, .width = SIDE,
                                          .mean = {0.491, 0.482, 0.447}, .std = {0.247, 0.243, 0.262}),
               *test = tn_dataset_images(s, part[1], .like = train);
    if (tn_error(s)) return args_finish(&a, s);
    make_net(s, &net, tn_dataset_classes(train));
    tn_optim *opt =
        tn_sgd(s, tn_all_params(s), .lr = a.lr, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4);
    if (a.resume) tn_load(s, a.resume);

    while (args_pass(&a, train)) {
        for (tn_batch b; args_next(&a, &b);) {
            tn_optim_set_lr(opt, tn_lr_cosine(a.at, 100, a.total, a.lr, 0));
            train_step(s, &net, opt, &b, &a);
        }
        if (a.step < a.total && !interrupted())
            args_accuracy(s, tn_evaluate(s, test, classify, &net), tn_dataset_count(test));
    }
    if (!interrupted()) args_accuracy(s, tn_evaluate(s, test, classify, &net), tn_dataset_count(test));
    return args_finish(&a, s);
}
