/* export_digits.c - trains a network small enough for a microcontroller, and writes it as one file of C.
 *
 *   build/export_digits                        model.c and model.h in build, weights in int8: seconds
 *   build/export_digits --weights f32          (also f16, bf16)
 *   cd build && arm-none-eabi-gcc -mcpu=cortex-m4 -O2 -c model.c
 *
 * conv 8 - relu - max pool - conv 16 - relu - max pool - linear 10. It prints what the session's weights of
 * f32 reach on images that they have not seen, and what those of the file do:
 *
 *   test accuracy 98.40 % (984/1000)
 *   weights in int8: test accuracy 98.40 % (984/1000)
 *
 * The file needs no library, memory or operating system; its opening tells how much it takes. A program calls
 * model_init once, and for each image, of 28 * 28 floats from 0 to 1, model_forward. Read write_file first.
 */
#include "args.h"

#include <tensor_export.h>

struct net {
    tn_conv *c1, *c2;
    tn_linear *fc;
};

/* x [n, 28, 28, 1] -> logits [n, 10] */
static tn_tensor *classify(tn_session *s, tn_tensor *x, void *user)
{
    const struct net *net = user;
    (void)s;
    tn_tensor *h = tn_max_pool2d(tn_relu(tn_conv2d_forward(net->c1, x)), 2, .stride = 2);
    h = tn_max_pool2d(tn_relu(tn_conv2d_forward(net->c2, h)), 2, .stride = 2);
    return tn_linear_forward(net->fc, tn_flatten(h, 1));
}

/* One image's forward pass; .round gives the session the file's weights. */
static void write_file(tn_session *s, struct net *net, const char *path, int weights)
{
    static const float image[28 * 28];
    tn_train(s, false);
    tn_export_begin(s, path, .weights = (tn_export_weights)weights, .round = true);
    tn_step_begin(s);
    tn_no_grad_begin(s);
    tn_tensor *x = tn_from(s, image, TN_F32, TN_SHAPE(1, 28, 28, 1)), *logits = classify(s, x, net);
    tn_export_input(x, "image");
    tn_export_output(logits, "logits");
    tn_no_grad_end(s);
    tn_step_end(s);
    tn_export_end(s);
}

int main(int argc, char **argv)
{
    static const struct args_name forms[] = {{"f32", TN_EXPORT_F32},
                                             {"f16", TN_EXPORT_F16},
                                             {"bf16", TN_EXPORT_BF16},
                                             {"int8", TN_EXPORT_INT8},
                                             {NULL, 0}};
    const char *path = "build/model.c", *weights = "int8";
    const struct args_more more[] = {
        {"--out", "the file, whose name its functions begin with", .text = &path, .label = "NAME.c"},
        {"--weights", "how it holds them", .text = &weights, .names = forms},
        {.name = NULL}};
    struct args a = {.program = "export_digits",
                     .purpose = "Trains a small network on images of digits and writes it as one file of C.",
                     .data = "data/digits",
                     .epochs = 4,
                     .batch = 32,
                     .lr = 3e-3,
                     .more = more};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    tn_dataset *train = tn_dataset_idx(s, a.data, TN_TRAIN), *test = tn_dataset_idx(s, a.data, TN_TEST);
    struct net net = {.c1 = tn_conv2d_new(s, "c1", 1, 8, 3, .pad = 1),
                      .c2 = tn_conv2d_new(s, "c2", 8, 16, 3, .pad = 1),
                      .fc = tn_linear_new(s, "fc", 7 * 7 * 16, 10)};
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = a.lr, .weight_decay = 0.01);
    if (a.resume) tn_load(s, a.resume);

    while (args_pass(&a, train))
        for (tn_batch b; args_next(&a, &b);) {
            tn_optim_set_lr(opt, tn_lr_cosine(a.at, 50, a.total, a.lr, 0.02 * a.lr));
            tn_step_begin(s);
            tn_tensor *loss = tn_cross_entropy(classify(s, b.x, &net), b.y);
            tn_backward(loss);
            tn_optim_step(opt);
            if (!a.quiet) tn_progress(a.loader, "loss", loss);
            args_log(&a, loss);
            tn_step_end(s);
        }
    if (!interrupted()) {
        args_accuracy(s, tn_evaluate(s, test, classify, &net), tn_dataset_count(test));
        write_file(s, &net, path, args_choice(&a, "--weights", weights, forms)->value);
        const double accuracy = tn_evaluate(s, test, classify, &net);
        if (!tn_error(s)) printf("weights in %s: ", weights);
        args_accuracy(s, accuracy, tn_dataset_count(test));
    }
    return args_finish(&a, s);
}
