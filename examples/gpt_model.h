/* gpt_model.h - the model of gpt.c, which bench/fused_vs_eager measures too: tokens and positions are
 * embedded; blocks of causal attention and an MLP; layer norm; the output weights are the embedding's. No
 * biases, weights drawn as GPT-2's. */
#pragma once

#include <math.h>

#include <tensor_nn.h>

enum { MOST_LAYERS = 256 };

struct gpt_shape {
    long layers, heads, dim, ctx;
    long checkpoint; /* 1: what a block computes is computed again for its gradient, and not kept */
};

struct gpt {
    tn_embed *token, *position;
    tn_transformer_block *block[MOST_LAYERS];
    tn_norm *norm;
    struct gpt_shape shape;
};

static inline void make_gpt(tn_session *s, struct gpt *m, const struct gpt_shape *c, int64_t vocabulary)
{
    char name[32];
    m->shape = *c;
    m->token = tn_embedding_new(s, "token", vocabulary, c->dim, .init_std = 0.02);
    m->position = tn_embedding_new(s, "position", c->ctx, c->dim, .init_std = 0.02);
    for (int i = 0; i < c->layers; i++) {
        snprintf(name, sizeof(name), "block.%d", i);
        m->block[i] =
            tn_transformer_block_new(s, name, c->dim, (int)c->heads, .causal = true, .no_bias = true,
                                     .init_std = 0.02, .init_out_std = 0.02 / sqrt(2.0 * (double)c->layers));
    }
    m->norm = tn_layer_norm_new(s, "norm", c->dim, .no_bias = true);
}

/* x [n, ctx] tokens -> [n, ctx, dim] */
static inline tn_tensor *gpt_encode(const struct gpt *m, tn_tensor *x)
{
    tn_tensor *h = tn_add(tn_embedding_forward(m->token, x), m->position->weight);
    for (int i = 0; i < m->shape.layers; i++) {
        if (m->shape.checkpoint) tn_checkpoint_begin(tn_session_of(h));
        h = tn_transformer_block_forward(m->block[i], h);
        if (m->shape.checkpoint) tn_checkpoint_end(tn_session_of(h));
    }
    return tn_norm_forward(m->norm, h);
}

/* The same for a token at position `at` behind those that the caches hold, one for each block: x [1, 1] ->
 * [1, 1, dim] */
static inline tn_tensor *gpt_encode_next(const struct gpt *m, tn_cache *const *cache, tn_tensor *x,
                                         int64_t at)
{
    tn_tensor *h = tn_add(tn_embedding_forward(m->token, x), tn_narrow(m->position->weight, 0, at, 1));
    for (int i = 0; i < m->shape.layers; i++) h = tn_transformer_block_cached(m->block[i], h, cache[i], at);
    return tn_norm_forward(m->norm, h);
}

/* -> [n, ctx, vocabulary]: the logits of the token that follows each */
static inline tn_tensor *gpt_forward(const struct gpt *m, tn_tensor *x)
{
    return tn_affine(gpt_encode(m, x), m->token->weight, NULL);
}

/* AdamW with weight decay on matrices alone. */
static inline bool gpt_is_vector(tn_tensor *param, void *user)
{
    (void)user;
    return tn_ndim(param) < 2;
}

static inline tn_optim *gpt_optimizer(tn_session *s, double lr)
{
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = lr, .beta2 = 0.99, .weight_decay = 0.1);
    tn_optim_group(opt, "*", .weight_decay = 0, .match = gpt_is_vector);
    return opt;
}

/* One update from the windows x and the tokens y that follow; the loss. Gradients are clipped to norm 1. */
static inline tn_tensor *gpt_update(const struct gpt *m, tn_optim *opt, tn_tensor *x, tn_tensor *y)
{
    tn_tensor *loss = tn_cross_entropy(gpt_forward(m, x), y);
    tn_backward(loss);
    tn_clip_grad_norm(opt, 1.0);
    tn_optim_step(opt);
    return loss;
}
