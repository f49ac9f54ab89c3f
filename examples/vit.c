/* vit.c - trains a small vision transformer on images of digits.
 *
 *   build/vit                                  the digits that are shipped: a minute
 *   build/vit --data data/mnist --epochs 3     MNIST (data/get_data.sh gets it): 97 % and more
 *
 * Each patch of 7 x 7 pixels becomes a token, by a convolution with that stride, and gets a position; blocks
 * of attention and an MLP; the mean of the tokens is classified. AdamW with a warm-up and a cosine decay. It
 * ends with a line like
 *
 *   test accuracy 97.83 % (9783/10000) */
#include "args.h"

enum { PATCH = 7, TOKENS = 28 / PATCH * (28 / PATCH), MOST_BLOCKS = 64 };

struct vit {
    tn_conv *patches;
    tn_embed *position;
    tn_transformer_block *block[MOST_BLOCKS];
    tn_norm *norm;
    tn_linear *head;
    long blocks, width;
};

static void make_vit(tn_session *s, struct vit *m)
{
    char name[32];
    m->patches = tn_conv2d_new(s, "patches", 1, m->width, PATCH, .stride = PATCH);
    m->position = tn_embedding_new(s, "position", TOKENS, m->width, .init_std = 0.02);
    for (int i = 0; i < m->blocks; i++) {
        snprintf(name, sizeof name, "block.%d", i);
        m->block[i] = tn_transformer_block_new(s, name, m->width, 4, .dropout = 0.05, .hidden = 2 * m->width);
    }
    m->norm = tn_layer_norm_new(s, "norm", m->width);
    m->head = tn_linear_new(s, "head", m->width, 10);
}

/* x [n, 28, 28, 1] -> logits [n, 10] */
static tn_tensor *classify(tn_session *s, tn_tensor *x, void *user)
{
    const struct vit *m = user;
    (void)s;
    tn_tensor *h = tn_conv2d_forward(m->patches, x); /* [n, 4, 4, width] */
    h = tn_add(tn_reshape(h, TN_SHAPE(tn_dim(x, 0), TOKENS, m->width)), m->position->weight);
    for (int i = 0; i < m->blocks; i++) h = tn_transformer_block_forward(m->block[i], h);
    return tn_linear_forward(m->head, tn_mean(tn_norm_forward(m->norm, h), TN_AXES(1), false));
}

int main(int argc, char **argv)
{
    struct vit m = {.blocks = 3, .width = 64};
    const struct args_more more[] = {
        {"--blocks", "of attention and an MLP", .whole = &m.blocks, .least = 1, .most = MOST_BLOCKS},
        {"--width", "of a token, a multiple of 4", .whole = &m.width, .least = 4, .most = 4096},
        {.name = NULL}};
    struct args a = {.program = "vit",
                     .purpose = "Trains a small vision transformer on images of digits.",
                     .data = "data/digits",
                     .epochs = 12,
                     .batch = 64,
                     .lr = 2e-3,
                     .more = more};
    tn_session *s = args_begin(&a, argc, argv);
    if (!s) return 1;
    tn_dataset *train = tn_dataset_idx(s, a.data, TN_TRAIN), *test = tn_dataset_idx(s, a.data, TN_TEST);
    make_vit(s, &m);
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = a.lr, .weight_decay = 0.05);
    if (a.resume) tn_load(s, a.resume);

    while (args_pass(&a, train))
        for (tn_batch b; args_next(&a, &b);) {
            tn_optim_set_lr(opt, tn_lr_cosine(a.at, 100, a.total, a.lr, 0.02 * a.lr));
            tn_step_begin(s);
            tn_tensor *logits = classify(s, b.x, &m), *loss = tn_cross_entropy(logits, b.y);
            tn_backward(loss);
            tn_optim_step(opt);
            if (!a.quiet) tn_progress(a.loader, "loss", loss, "acc", tn_accuracy(logits, b.y));
            args_log(&a, loss);
            tn_step_end(s);
        }
    if (!interrupted()) args_accuracy(s, tn_evaluate(s, test, classify, &m), tn_dataset_count(test));
    return args_finish(&a, s);
}
