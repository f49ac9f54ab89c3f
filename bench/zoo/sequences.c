/* sequences.c - language models, a temporal convolution, and a recommender. Start with gpt. */
#include "zoo.h"

enum { VOCABULARY = 64 };

/* Pre-norm without biases; the output weights are those of the tokens. */
static tn_tensor *gpt_of(struct net *m, int layers, int64_t width, int heads, int64_t context)
{
    tn_tensor *tokens, *x = embedding(m, m->in[0], VOCABULARY, width, &tokens);
    tn_tensor *position = weight(m, TN_SHAPE(context, width));
    if (x) x = tn_add(x, position);
    for (int i = 0; i < layers; i++)
        x = block(m, x, width, heads,
                  (tn_transformer_block_options){.causal = true, .no_bias = true, .init_std = 0.02});
    x = layer_norm(m, x, width);
    return x ? tn_affine(x, tokens, NULL) : NULL;
}

static tn_tensor *gpt_small(struct net *m) { return gpt_of(m, 4, 128, 4, 64); }

static tn_tensor *gpt(struct net *m) { return gpt_of(m, 6, 384, 6, CONTEXT); }

static tn_tensor *gpt_large(struct net *m) { return gpt_of(m, 12, 768, 12, 4 * CONTEXT); }

/* The model of gpt at position m->at, behind what the caches hold. */
static tn_tensor *gpt_next(struct net *m)
{
    enum { WIDTH = 384 };
    tn_tensor *tokens, *x = embedding(m, m->in[0], VOCABULARY, WIDTH, &tokens);
    tn_tensor *position = weight(m, TN_SHAPE(CONTEXT, WIDTH));
    if (x) x = tn_add(x, tn_narrow(position, 0, m->at, 1));
    for (int i = 0; i < 6; i++) x = cached_block(m, x, WIDTH, 6, i);
    x = layer_norm(m, x, WIDTH);
    return x ? tn_affine(x, tokens, NULL) : NULL;
}

/* [n, t, width] -> [n, heads, t, width / heads] */
static tn_tensor *heads_of(tn_tensor *x, int64_t t, int64_t heads, int64_t width)
{
    return tn_transpose(tn_reshape(x, TN_SHAPE(-1, t, heads, width / heads)), 1, 2);
}

static tn_tensor *llama(struct net *m)
{
    enum { LAYERS = 4, WIDTH = 256, HEADS = 4, HIDDEN = 704, T = 128 };
    tn_tensor *x = embedding(m, m->in[0], VOCABULARY, WIDTH, NULL);
    for (int i = 0; i < LAYERS; i++) {
        tn_tensor *h = rms_norm(m, x, WIDTH), *qkv[3];
        for (int k = 0; k < 3; k++) qkv[k] = heads_of(linear_no_bias(m, h, WIDTH, WIDTH), T, HEADS, WIDTH);
        for (int k = 0; k < 2; k++) qkv[k] = tn_rotary(qkv[k], 0);
        h = tn_scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], .causal = true);
        h = tn_reshape(tn_transpose(h, 1, 2), TN_SHAPE(-1, T, WIDTH));
        x = tn_add(x, linear_no_bias(m, h, WIDTH, WIDTH));
        h = rms_norm(m, x, WIDTH);
        tn_tensor *gate = linear_no_bias(m, h, WIDTH, HIDDEN), *up = linear_no_bias(m, h, WIDTH, HIDDEN);
        x = tn_add(x, linear_no_bias(m, tn_swiglu(gate, up), HIDDEN, WIDTH));
    }
    return linear_no_bias(m, rms_norm(m, x, WIDTH), WIDTH, VOCABULARY);
}

static tn_tensor *recurrent_lm(struct net *m, bool lstm)
{
    tn_tensor *x = embedding(m, m->in[0], VOCABULARY, 256, NULL);
    return linear(m, recurrent(m, x, 256, lstm), 256, VOCABULARY);
}

static tn_tensor *gru(struct net *m) { return recurrent_lm(m, false); }

static tn_tensor *lstm(struct net *m) { return recurrent_lm(m, true); }

/* A temporal convolutional network: what a step sees of the past doubles from layer to layer. */
static tn_tensor *tcn(struct net *m)
{
    enum { WIDTH = 64 };
    tn_tensor *x = conv1d(m, m->in[0], 16, WIDTH, 1, (tn_conv_options){0});
    for (int d = 1; d <= 16; d *= 2) {
        const tn_conv_options o = {.dilation = d};
        tn_tensor *h = tn_relu(conv1d(m, tn_pad(x, 1, 2 * d, 0, 0), WIDTH, WIDTH, 3, o));
        h = tn_relu(conv1d(m, tn_pad(h, 1, 2 * d, 0, 0), WIDTH, WIDTH, 3, o));
        x = tn_relu(tn_add(x, h));
    }
    return conv1d(m, x, WIDTH, 1, 1, (tn_conv_options){0});
}

/* A recommender: categories are looked up, all pairs of them and the dense features are multiplied, and an
 * MLP looks at the products. */
static tn_tensor *dlrm(struct net *m)
{
    enum { ROWS = 32000, WIDTH = 32, DENSE = 13, ALL = 9 };
    tn_tensor *dense = tn_relu(linear(m, tn_relu(linear(m, m->in[1], DENSE, 128)), 128, WIDTH));
    tn_tensor *parts[] = {tn_unsqueeze(dense, 1), embedding(m, m->in[0], ROWS, WIDTH, NULL)};
    tn_tensor *z = dense ? tn_concat(2, parts, 1) : NULL;
    tn_tensor *all[] = {dense, tn_reshape(tn_matmul(z, tn_transpose(z, 1, 2)), TN_SHAPE(-1, ALL * ALL))};
    tn_tensor *x = dense ? tn_concat(2, all, 1) : NULL;
    x = tn_relu(linear(m, x, WIDTH + ALL * ALL, 256));
    return linear(m, tn_relu(linear(m, x, 256, 128)), 128, 2);
}

#define TOKENS(n, t)                                                                                         \
    {                                                                                                        \
        2, {n, t}, VOCABULARY                                                                                \
    }
#define TEXT(n, t)                                                                                           \
    {                                                                                                        \
        TOKENS(n, t), TOKENS(n, t)                                                                           \
    }
const struct model sequences[] = {
    {"gpt_small", gpt_small, CROSS_ENTROPY, TEXT(12, 64), .clip = true},
    {"gpt", gpt, CROSS_ENTROPY, TEXT(8, CONTEXT), .clip = true},
    {"llama", llama, CROSS_ENTROPY, TEXT(8, 128), .clip = true},
    {"gru", gru, CROSS_ENTROPY, TEXT(32, 64), .clip = true},
    {"lstm", lstm, CROSS_ENTROPY, TEXT(32, 64), .clip = true},
    {"tcn", tcn, SQUARES, .in = {{3, {32, 256, 16}, 0}, {3, {32, 256, 1}, 0}}},
    {"dlrm", dlrm, CROSS_ENTROPY, .in = {{2, {1024, 8}, 32000}, {2, {1024, 13}, 0}, {1, {1024}, 2}}},
    {"gpt_large", gpt_large, CROSS_ENTROPY, .in = TEXT(8, 4 * CONTEXT), .clip = true},
    {"gpt_generate", gpt_next, GENERATION, .in = {{2, {1, 1}, VOCABULARY}}},
    {.name = NULL}};
