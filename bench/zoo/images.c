/* images.c - networks of convolutions, and what else looks at images. Start with resnet. */
#include "zoo.h"

static tn_tensor *conv_norm(struct net *m, tn_tensor *x, int64_t in, int64_t out, int kernel, int stride,
                            int groups)
{
    const tn_conv_options o = {.stride = stride, .groups = groups, .no_bias = true};
    return batch_norm(m, conv(m, x, in, out, kernel, o), out);
}

static tn_tensor *classify(struct net *m, tn_tensor *x, int64_t features)
{
    return linear(m, tn_flatten(tn_global_avg_pool2d(x), 1), features, 10);
}

/* ResNet-20 of 32 x 32 pixels: 3 stages of 3 blocks. */
static tn_tensor *resnet(struct net *m)
{
    int64_t in = 16;
    tn_tensor *x = tn_relu(conv_norm(m, m->in[0], 3, in, 3, 1, 1));
    for (int stage = 0; stage < 3; stage++)
        for (int k = 0; k < 3; k++) {
            const int64_t out = 16 << stage;
            const int stride = in == out ? 1 : 2;
            tn_tensor *h = tn_relu(conv_norm(m, x, in, out, 3, stride, 1));
            h = conv_norm(m, h, out, out, 3, 1, 1);
            if (in != out) x = conv_norm(m, x, in, out, 1, stride, 1);
            x = tn_relu(tn_add(h, x));
            in = out;
        }
    return classify(m, x, in);
}

/* ResNet-50 of 224 x 224 pixels, strides in the 3 x 3; its pool is 2 x 2. */
static tn_tensor *resnet50(struct net *m)
{
    static const int blocks[] = {3, 4, 6, 3};
    int64_t in = 64;
    tn_tensor *x = tn_max_pool2d(tn_relu(conv_norm(m, m->in[0], 3, in, 7, 2, 1)), 2);
    for (int stage = 0; stage < 4; stage++)
        for (int k = 0; k < blocks[stage]; k++) {
            const int64_t width = 64 << stage, out = 4 * width;
            const int stride = stage && !k ? 2 : 1;
            tn_tensor *h = tn_relu(conv_norm(m, x, in, width, 1, 1, 1));
            h = tn_relu(conv_norm(m, h, width, width, 3, stride, 1));
            h = conv_norm(m, h, width, out, 1, 1, 1);
            if (!k) x = conv_norm(m, x, in, out, 1, stride, 1);
            x = tn_relu(tn_add(h, x));
            in = out;
        }
    return classify(m, x, in);
}

static tn_tensor *twice(struct net *m, tn_tensor *x, int64_t in, int64_t out)
{
    for (int i = 0; i < 2; i++)
        x = tn_silu(group_norm(m, conv(m, x, i ? out : in, out, 3, (tn_conv_options){0}), 8, out));
    return x;
}

/* U-Net: down from 64 x 64 to 16 x 16 and up again, each level beside what it was on the way down. */
static tn_tensor *unet(struct net *m)
{
    enum { WIDTH = 32 };
    const tn_conv_options up = {.stride = 2};
    tn_tensor *a = twice(m, m->in[0], 3, WIDTH);
    tn_tensor *b = twice(m, tn_max_pool2d(a, 2), WIDTH, 2 * WIDTH);
    tn_tensor *c = twice(m, tn_max_pool2d(b, 2), 2 * WIDTH, 4 * WIDTH);
    tn_tensor *d[] = {conv_transpose(m, c, 4 * WIDTH, 2 * WIDTH, 2, up), b};
    b = twice(m, tn_concat(2, d, -1), 4 * WIDTH, 2 * WIDTH);
    tn_tensor *e[] = {conv_transpose(m, b, 2 * WIDTH, WIDTH, 2, up), a};
    a = twice(m, tn_concat(2, e, -1), 2 * WIDTH, WIDTH);
    return conv(m, a, WIDTH, 3, 1, (tn_conv_options){0});
}

static tn_tensor *mobilenet(struct net *m)
{
    static const int out[] = {64, 128, 128, 256, 256}, stride[] = {1, 2, 1, 2, 1};
    int in = 32;
    tn_tensor *x = tn_relu(conv_norm(m, m->in[0], 3, in, 3, 1, 1));
    for (int i = 0; i < 5; i++) {
        x = tn_relu(conv_norm(m, x, in, in, 3, stride[i], in));
        x = tn_relu(conv_norm(m, x, in, out[i], 1, 1, 1));
        in = out[i];
    }
    return classify(m, x, in);
}

/* The examples' network of digits. */
static tn_tensor *mnist_cnn(struct net *m)
{
    tn_tensor *x = m->in[0];
    for (int i = 0; i < 2; i++) {
        const int in = i ? 32 : 1, out = i ? 64 : 32;
        x = tn_relu(batch_norm(m, conv(m, x, in, out, 3, (tn_conv_options){0}), out));
    }
    x = tn_relu(linear(m, tn_flatten(tn_max_pool2d(x, 2), 1), 14 * 14 * 64, 128));
    return linear(m, x, 128, 10);
}

static tn_tensor *mlp(struct net *m)
{
    tn_tensor *x = m->in[0];
    for (int i = 0; i < 2; i++)
        x = tn_dropout(tn_relu(batch_norm(m, linear(m, x, i ? 1024 : 784, 1024), 1024)), m->is->dropout);
    return linear(m, x, 1024, 10);
}

/* Its loss, of an image on average: pixels by their logits, and the code's divergence from normal numbers. */
static tn_tensor *vae(struct net *m)
{
    enum { CODE = 16 };
    const tn_conv_options down = {.stride = 2}, up = {.stride = 2, .pad = 1, .output_pad = 1};
    tn_tensor *x = tn_relu(conv(m, m->in[0], 1, 32, 3, down));
    x = tn_relu(conv(m, x, 32, 64, 3, down));
    tn_tensor *code = linear(m, tn_flatten(x, 1), 7 * 7 * 64, 2 * CODE);
    tn_tensor *mean = tn_slice(code, 1, 0, CODE, 1), *log_var = tn_slice(code, 1, CODE, 2 * CODE, 1),
              *z = mean;
    if (mean && tn_is_training(m->s))
        z = tn_add(mean, tn_mul(tn_exp(tn_mul_scalar(log_var, 0.5)),
                                tn_randn(m->s, TN_F32, TN_SHAPE(tn_dim(mean, 0), CODE))));
    x = tn_reshape(tn_relu(linear(m, z, CODE, 7 * 7 * 64)), TN_SHAPE(-1, 7, 7, 64));
    x = tn_relu(conv_transpose(m, x, 64, 32, 3, up));
    x = conv_transpose(m, x, 32, 1, 3, up);
    tn_tensor *pixels = tn_bce_with_logits(x, tn_sigmoid(m->in[0]), .reduction = TN_REDUCE_SUM);
    tn_tensor *far = tn_sub(tn_add(tn_square(mean), tn_exp(log_var)), tn_add_scalar(log_var, 1.0));
    return tn_div_scalar(tn_add(pixels, tn_mul_scalar(tn_sum(far, TN_ALL, false), 0.5)), 64.0);
}

/* A vision transformer: 64 patches and a token that learns the class. */
static tn_tensor *vit(struct net *m)
{
    enum { WIDTH = 192, LAYERS = 6 };
    tn_tensor *x = conv(m, m->in[0], 3, WIDTH, 4, (tn_conv_options){.stride = 4});
    tn_tensor *class = weight(m, TN_SHAPE(1, 1, WIDTH)), *position = weight(m, TN_SHAPE(65, WIDTH));
    if (x) {
        tn_tensor *tokens[] = {tn_expand(class, TN_SHAPE(tn_dim(x, 0), 1, WIDTH)),
                               tn_reshape(x, TN_SHAPE(tn_dim(x, 0), 64, WIDTH))};
        x = tn_add(tn_concat(2, tokens, 1), position);
    }
    for (int i = 0; i < LAYERS; i++)
        x = block(m, x, WIDTH, 3, (tn_transformer_block_options){.dropout = m->is->dropout});
    return linear(m, tn_select(layer_norm(m, x, WIDTH), 1, 0), WIDTH, 10);
}

/* An MLP-Mixer: products along the patches and along their features by turns. */
static tn_tensor *mixer(struct net *m)
{
    enum { TOKENS = 64, WIDTH = 128, LAYERS = 4 };
    tn_tensor *x = conv(m, m->in[0], 3, WIDTH, 4, (tn_conv_options){.stride = 4});
    x = tn_reshape(x, TN_SHAPE(-1, TOKENS, WIDTH));
    for (int i = 0; i < LAYERS; i++) {
        tn_tensor *h = tn_transpose(layer_norm(m, x, WIDTH), 1, 2);
        h = linear(m, tn_gelu(linear(m, h, TOKENS, 2 * TOKENS)), 2 * TOKENS, TOKENS);
        x = tn_add(x, tn_transpose(h, 1, 2));
        h = linear(m, tn_gelu(linear(m, layer_norm(m, x, WIDTH), WIDTH, 4 * WIDTH)), 4 * WIDTH, WIDTH);
        x = tn_add(x, h);
    }
    return linear(m, tn_mean(layer_norm(m, x, WIDTH), TN_AXES(1), false), WIDTH, 10);
}

#define IMAGES(n, side, channels)                                                                            \
    {                                                                                                        \
        4, {n, side, side, channels}, 0                                                                      \
    }
#define CLASSES(n)                                                                                           \
    {                                                                                                        \
        1, {n}, 10                                                                                           \
    }
const struct model images[] = {
    {"mnist_cnn", mnist_cnn, CROSS_ENTROPY, .in = {IMAGES(64, 28, 1), CLASSES(64)}},
    {"resnet20", resnet, CROSS_ENTROPY, .in = {IMAGES(64, 32, 3), CLASSES(64)}},
    {"unet", unet, SQUARES, .in = {IMAGES(8, 64, 3), IMAGES(8, 64, 3)}},
    {"mobilenet", mobilenet, CROSS_ENTROPY, .in = {IMAGES(64, 32, 3), CLASSES(64)}},
    {"vit", vit, CROSS_ENTROPY, .in = {IMAGES(32, 32, 3), CLASSES(32)}},
    {"vit_dropout", vit, CROSS_ENTROPY, .in = {IMAGES(32, 32, 3), CLASSES(32)}, .dropout = 0.1,
     .random = true},
    {"mixer", mixer, CROSS_ENTROPY, .in = {IMAGES(64, 32, 3), CLASSES(64)}},
    {"mlp", mlp, CROSS_ENTROPY, .in = {{2, {256, 784}, 0}, CLASSES(256)}, .dropout = 0.1, .random = true},
    {"vae", vae, ITS_OWN, .in = {IMAGES(64, 28, 1)}, .random = true},
    {"resnet50", resnet50, CROSS_ENTROPY, .in = {IMAGES(128, 224, 3), CLASSES(128)}},
    {"resnet20_infer", resnet, INFERENCE, .in = {IMAGES(1, 32, 3)}},
    {"vit_infer", vit, INFERENCE, .in = {IMAGES(1, 32, 3)}},
    {.name = NULL}};
