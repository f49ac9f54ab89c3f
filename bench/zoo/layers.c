/* layers.c - layers that are made by their first use and found again, in the order of use, afterwards: the
 * n-th is named "n". Start with LAYER. */
#include "zoo.h"

static const char *name_of(struct net *m)
{
    snprintf(m->name, sizeof m->name, "%d", m->used);
    return m->name;
}

static void *keep(struct net *m, void *made)
{
    if (m->used == MOST_LAYERS_USED) return NULL;
    if (m->making) m->layer[m->used] = made;
    return m->layer[m->used++];
}

/* The layer that is next, which `make` makes where it is not there yet. */
#define LAYER(m, make) keep(m, (m)->making ? (make) : NULL)

tn_tensor *conv(struct net *m, tn_tensor *x, int64_t in, int64_t out, int kernel, tn_conv_options o)
{
    o.size = sizeof o;
    if (!o.pad && kernel % 2) o.pad = kernel / 2;
    tn_conv *l = LAYER(m, (tn_conv2d_new)(m->s, name_of(m), in, out, kernel, &o));
    return x ? tn_conv2d_forward(l, x) : NULL;
}

tn_tensor *conv_transpose(struct net *m, tn_tensor *x, int64_t in, int64_t out, int kernel, tn_conv_options o)
{
    o.size = sizeof o;
    tn_conv *l = LAYER(m, (tn_conv_transpose2d_new)(m->s, name_of(m), in, out, kernel, &o));
    return x ? tn_conv_transpose2d_forward(l, x) : NULL;
}

tn_tensor *conv1d(struct net *m, tn_tensor *x, int64_t in, int64_t out, int kernel, tn_conv_options o)
{
    o.size = sizeof o;
    tn_conv *l = LAYER(m, (tn_conv1d_new)(m->s, name_of(m), in, out, kernel, &o));
    return x ? tn_conv1d_forward(l, x) : NULL;
}

tn_tensor *batch_norm(struct net *m, tn_tensor *x, int64_t features)
{
    tn_norm *l = LAYER(m, tn_batch_norm_new(m->s, name_of(m), features));
    return x ? tn_norm_forward(l, x) : NULL;
}

tn_tensor *group_norm(struct net *m, tn_tensor *x, int groups, int64_t features)
{
    tn_norm *l = LAYER(m, tn_group_norm_new(m->s, name_of(m), groups, features));
    return x ? tn_norm_forward(l, x) : NULL;
}

tn_tensor *layer_norm(struct net *m, tn_tensor *x, int64_t features)
{
    tn_norm *l = LAYER(m, tn_layer_norm_new(m->s, name_of(m), features));
    return x ? tn_norm_forward(l, x) : NULL;
}

tn_tensor *rms_norm(struct net *m, tn_tensor *x, int64_t features)
{
    tn_norm *l = LAYER(m, tn_rms_norm_new(m->s, name_of(m), features));
    return x ? tn_norm_forward(l, x) : NULL;
}

tn_tensor *linear(struct net *m, tn_tensor *x, int64_t in, int64_t out)
{
    tn_linear *l = LAYER(m, tn_linear_new(m->s, name_of(m), in, out));
    return x ? tn_linear_forward(l, x) : NULL;
}

tn_tensor *linear_no_bias(struct net *m, tn_tensor *x, int64_t in, int64_t out)
{
    tn_linear *l = LAYER(m, tn_linear_new(m->s, name_of(m), in, out, .no_bias = true));
    return x ? tn_linear_forward(l, x) : NULL;
}

tn_tensor *embedding(struct net *m, tn_tensor *index, int64_t count, int64_t features, tn_tensor **weight)
{
    tn_embed *l = LAYER(m, tn_embedding_new(m->s, name_of(m), count, features, .init_std = 0.02));
    if (weight) *weight = l ? l->weight : NULL;
    return index ? tn_embedding_forward(l, index) : NULL;
}

tn_tensor *recurrent(struct net *m, tn_tensor *x, int64_t width, bool lstm)
{
    tn_recurrent *l = LAYER(m, lstm ? tn_lstm_new(m->s, name_of(m), width, width)
                                    : tn_gru_new(m->s, name_of(m), width, width));
    return x ? tn_recurrent_forward(l, x, NULL) : NULL;
}

tn_tensor *block(struct net *m, tn_tensor *x, int64_t width, int heads, tn_transformer_block_options o)
{
    o.size = sizeof o;
    tn_transformer_block *l = LAYER(m, (tn_transformer_block_new)(m->s, name_of(m), width, heads, &o));
    return x ? tn_transformer_block_forward(l, x) : NULL;
}

tn_tensor *cached_block(struct net *m, tn_tensor *x, int64_t width, int heads, int i)
{
    tn_transformer_block *l =
        LAYER(m, tn_transformer_block_new(m->s, name_of(m), width, heads, .causal = true, .no_bias = true,
                                          .init_std = 0.02));
    if (m->making) m->cache[i] = tn_cache_new(m->s, 1, heads, CONTEXT, width / heads, TN_F32);
    return x ? tn_transformer_block_cached(l, x, m->cache[i], m->at) : NULL;
}

tn_tensor *weight(struct net *m, int ndim, const int64_t *shape)
{
    char name[sizeof m->name + 8];
    snprintf(name, sizeof name, "%s.weight", name_of(m));
    return LAYER(m, tn_param(m->s, name, tn_mul_scalar(tn_randn(m->s, TN_F32, ndim, shape), 0.02)));
}
