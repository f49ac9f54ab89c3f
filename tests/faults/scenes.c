/* scenes.c - a convolutional network and a transformer, in fused and eager mode, in f32 and bf16,
 * on data of their own. */
#include "scenes.h"

#include <stdio.h>

enum { IMAGES = 24, SIDE = 8, CLASSES = 10, TEXT = 600 };

/* ---- a convolutional network ---- */

static bool cnn_init(tn_session *s, scene_net *n, const char *dir)
{
    n->data = tn_dataset_idx(s, dir, TN_TRAIN);
    n->c1 = tn_conv2d_new(s, "c1", 1, 16, 3, .pad = 1,
                          .no_bias = true); /* a bias before a norm moves by rounding alone */
    n->n1 = tn_batch_norm_new(s, "n1", 16);
    n->c2 = tn_conv2d_new(s, "c2", 16, 16, 5, .pad = 2, .stride = 2, .no_bias = true);
    n->n2 = tn_batch_norm_new(s, "n2", 16);
    n->fc = tn_linear_new(s, "fc", SIDE / 4 * (SIDE / 4) * 16, CLASSES);
    n->opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2, .weight_decay = 0.01);
    return n->opt && n->data;
}

static tn_tensor *cnn_logits(tn_session *s, tn_tensor *x, void *user)
{
    const scene_net *n = user;
    (void)s;
    tn_tensor *h =
        tn_max_pool2d(tn_relu(tn_norm_forward(n->n1, tn_conv2d_forward(n->c1, x))), 2, .stride = 2);
    h = tn_relu(tn_norm_forward(n->n2, tn_conv2d_forward(n->c2, h)));
    return tn_linear_forward(n->fc, tn_flatten(tn_dropout(h, 0.1), 1));
}

static void cnn_step(tn_session *s, const scene_net *n, const tn_batch *b)
{
    tn_tensor *loss = tn_cross_entropy(cnn_logits(s, b->x, (void *)(uintptr_t)n), b->y);
    tn_backward(loss);
    tn_clip_grad_norm(n->opt, 1.0);
    tn_optim_step(n->opt);
    tn_watch(loss);
    tn_item(loss);
}

/* ---- a transformer ---- */

static bool gpt_init(tn_session *s, scene_net *n, const char *dir)
{
    char path[300];
    snprintf(path, sizeof path, "%s/text", dir);
    n->data = tn_dataset_text(s, path, TN_TRAIN, .ctx = 16);
    n->embed = tn_embedding_new(s, "embed", 26, 16);
    n->block = tn_transformer_block_new(s, "block", 16, 2, .causal = true);
    n->n1 = tn_layer_norm_new(s, "norm", 16);
    n->fc = tn_linear_new(s, "fc", 16, 26);
    n->opt = tn_sgd(s, tn_all_params(s), .lr = 0.05, .momentum = 0.9, .accumulate = 2);
    if (n->opt) tn_optim_group(n->opt, "*.bias", .lr_factor = 0.5);
    return n->opt && n->data;
}

static tn_tensor *gpt_logits(tn_session *s, tn_tensor *x, void *user)
{
    const scene_net *n = user;
    (void)s;
    tn_tensor *h = tn_transformer_block_forward(n->block, tn_embedding_forward(n->embed, x));
    return tn_linear_forward(n->fc, tn_norm_forward(n->n1, h));
}

static void gpt_step(tn_session *s, const scene_net *n, const tn_batch *b)
{
    tn_tensor *loss = tn_cross_entropy(gpt_logits(s, b->x, (void *)(uintptr_t)n), b->y);
    tn_backward(loss);
    tn_optim_step(n->opt);
    tn_item(loss);
}

const scene scenes[] = {
    {"cnn", TN_FUSED, cnn_init, cnn_step, cnn_logits, TN_PRECISION_F32},
    {"gpt", TN_FUSED, gpt_init, gpt_step, gpt_logits, TN_PRECISION_F32},
    {"cnn-eager", TN_EAGER, cnn_init, cnn_step, cnn_logits, TN_PRECISION_F32},
    {"cnn-bf16", TN_FUSED, cnn_init, cnn_step, cnn_logits, TN_PRECISION_BF16},
    {"gpt-bf16", TN_FUSED, gpt_init, gpt_step, gpt_logits, TN_PRECISION_BF16},
    {NULL, TN_FUSED, NULL, NULL, NULL, TN_PRECISION_F32},
};

/* ---- data ---- */

static bool put(const char *dir, const char *name, const unsigned char *bytes, size_t n)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = fwrite(bytes, 1, n, f) == n;
    return !fclose(f) && ok;
}

bool scene_files(const char *dir)
{
    static unsigned char image[16 + IMAGES * SIDE * SIDE] = {0, 0, 8, 3,    0, 0, 0, IMAGES,
                                                             0, 0, 0, SIDE, 0, 0, 0, SIDE};
    static unsigned char label[8 + IMAGES] = {0, 0, 8, 1, 0, 0, 0, IMAGES};
    static unsigned char text[TEXT];
    uint32_t r = 1;
    for (int i = 0; i < IMAGES * SIDE * SIDE; i++)
        image[16 + i] = (unsigned char)((r = r * 1664525u + 1013904223u) >> 24);
    for (int i = 0; i < IMAGES; i++) label[8 + i] = (unsigned char)(i % CLASSES);
    for (int i = 0; i < TEXT; i++)
        text[i] = (unsigned char)('a' + ((r = r * 1664525u + 1013904223u) >> 24) % 26);
    return put(dir, "train-images-idx3-ubyte", image, sizeof image) &&
           put(dir, "train-labels-idx1-ubyte", label, sizeof label) && put(dir, "text", text, sizeof text);
}
