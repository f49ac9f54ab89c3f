/* attention.c - multi-head self-attention and the transformer block made of it.
 *
 * Names, initial values and arithmetic are those of PyTorch's MultiheadAttention (torch/nn/modules/
 * activation.py) and TransformerEncoderLayer with norm_first and gelu (torch/nn/modules/transformer.py), so
 * their weights can be loaded as they are. Read tn_multi_head_attention_forward first. */
#include "layers.h"

#include <math.h>
#include <string.h>

TN_DEFINE(tn_multi_head_attention *, multi_head_attention_new, s, (s, name, dim, heads, options),
          tn_session *s, const char *name, int64_t dim, int heads, const tn_attention_options *options)
{
    static const char op[] = "multi_head_attention_new";
    NN_OPTIONS(tn_attention_options, o, options);
    bool ok =
        dim > 0 && heads > 0 && dim % heads == 0 && o->dropout >= 0 && o->dropout < 1 && o->init_std >= 0;
    if (!tn_nn_check(
            s, op, name, ok,
            "dim > 0, a multiple of heads > 0, dropout in [0, 1) and init_std >= 0; dim is %lld, heads %d, "
            "dropout %g, init_std %g",
            (long long)dim, heads, o->dropout, o->init_std))
        return NULL;
    tn_multi_head_attention *a = tn_nn_own(s, sizeof(*a), NULL, op);
    if (!a) return NULL;
    a->dim = dim;
    a->heads = heads;
    a->causal = o->causal;
    a->dropout = o->dropout;
    const double std = o->init_std, out_std = o->init_out_std > 0 ? o->init_out_std : std;
    const nn_init init = std > 0 ? NN_NORMAL : NN_UNIFORM;
    /* xavier_uniform of [3 dim, dim]: sqrt(6 / (fan_in + fan_out)) */
    const double in_bound = sqrt(6.0 / (4.0 * (double)dim)), out_bound = 1 / sqrt((double)dim);
    const nn_part parts[] = {
        NN_PART("in_proj_weight", a->in_proj_weight, init, std > 0 ? std : in_bound, {3 * dim, dim}),
        NN_PART(o->no_bias ? NULL : "in_proj_bias", a->in_proj_bias, NN_FULL, 0, {3 * dim}),
        NN_PART("out_proj.weight", a->out_proj_weight, init, std > 0 ? out_std : out_bound, {dim, dim}),
        NN_PART(o->no_bias ? NULL : "out_proj.bias", a->out_proj_bias, NN_FULL, 0, {dim}),
    };
    return NN_MAKE(s, op, name, parts) ? a : NULL;
}

/* q, k and v [n, heads, t, d] of x, and what its heads make of them; with a cache what it holds counts, too.
 */
static tn_tensor *attend(const tn_multi_head_attention *a, tn_tensor *x, tn_cache *cache, int64_t at)
{
    if (tn_ndim(x) != 3 || tn_dim(x, 2) != a->dim) {
        char layer[256];
        return tn_nn_fail(tn_session_of(x), TN_E_SHAPE, "multi_head_attention_forward",
                          "x has %d axes, the last of %lld; %s expects [n, t, %lld]", tn_ndim(x),
                          (long long)tn_dim(x, -1), tn_nn_layer(a->in_proj_weight, layer, sizeof(layer)),
                          (long long)a->dim);
    }
    int64_t n = tn_dim(x, 0), t = tn_dim(x, 1), split[] = {n, t, 3, a->heads, a->dim / a->heads};
    int64_t joined[] = {n, t, a->dim};
    const int order[] = {2, 0, 3, 1, 4}; /* -> [3, n, heads, t, d]: views only */
    const tn_sdpa_options o = {.causal = a->causal, .dropout = a->dropout, .size = sizeof(o)};
    tn_tensor *qkv = tn_affine(x, a->in_proj_weight, a->in_proj_bias);
    qkv = tn_permute(tn_reshape(qkv, 5, split), 5, order);
    tn_tensor *q = tn_select(qkv, 0, 0), *k = tn_select(qkv, 0, 1), *v = tn_select(qkv, 0, 2);
    tn_tensor *y =
        cache ? tn_cache_attention(cache, q, k, v, at) : tn_scaled_dot_product_attention(q, k, v, &o);
    y = tn_reshape(tn_transpose(y, 1, 2), 3, joined);
    return tn_affine(y, a->out_proj_weight, a->out_proj_bias);
}

NN_FORWARD(multi_head_attention_forward, tn_multi_head_attention, a, x, in_proj_weight)
{
    return a && x ? attend(a, x, NULL, 0) : NULL;
}

/* ---- the block ---- */

TN_DEFINE(tn_transformer_block *, transformer_block_new, s, (s, name, dim, heads, options), tn_session *s,
          const char *name, int64_t dim, int heads, const tn_transformer_block_options *options)
{
    static const char op[] = "transformer_block_new";
    NN_OPTIONS(tn_transformer_block_options, o, options);
    if (!tn_nn_check(s, op, name,
                     strlen(name ? name : "") < 200 && o->hidden >= 0 && o->dropout >= 0 && o->dropout < 1,
                     "a name of less than 200 characters, hidden >= 0 and dropout in [0, 1); hidden is %lld, "
                     "dropout %g",
                     (long long)o->hidden, o->dropout))
        return NULL;
    tn_transformer_block *b = tn_nn_own(s, sizeof(*b), NULL, op);
    if (!b) return NULL;
    const int params = tn_param_count(s), buffers = tn_buffer_count(s);
    int64_t hidden = o->hidden ? o->hidden : 4 * dim;
    char part[256];
    const tn_norm_new_options norm = {.eps = o->eps, .no_bias = o->no_bias, .size = sizeof(norm)};
    const tn_attention_options attention = {.causal = o->causal,
                                            .no_bias = o->no_bias,
                                            .dropout = o->dropout,
                                            .init_std = o->init_std,
                                            .init_out_std = o->init_out_std,
                                            .size = sizeof(attention)};
    const tn_linear_options first = {
        .no_bias = o->no_bias, .init_std = o->init_std, .flattened = {1, 1, dim}, .size = sizeof(first)};
    const tn_linear_options second = {.no_bias = o->no_bias,
                                      .flattened = {1, 1, hidden},
                                      .init_std = o->init_std > 0 && o->init_out_std > 0 ? o->init_out_std
                                                                                         : o->init_std,
                                      .size = sizeof(second)};
    b->gelu_tanh = o->gelu_tanh;
    b->dropout = o->dropout;
#define PART(text) (snprintf(part, sizeof(part), "%s." text, name), part)
    b->norm1 = tn_layer_norm_new(s, PART("norm1"), dim, &norm);
    b->self_attn = tn_multi_head_attention_new(s, PART("self_attn"), dim, heads, &attention);
    b->norm2 = tn_layer_norm_new(s, PART("norm2"), dim, &norm);
    b->linear1 = tn_linear_new(s, PART("linear1"), dim, hidden, &first);
    b->linear2 = tn_linear_new(s, PART("linear2"), hidden, dim, &second);
#undef PART
    if (b->norm1 && b->self_attn && b->norm2 && b->linear1 && b->linear2) return b;
    tn_take_back(s, params, buffers);
    return NULL;
}

static tn_tensor *through(const tn_transformer_block *b, tn_tensor *x, tn_cache *cache, int64_t at)
{
    tn_tensor *h = tn_norm_forward(b->norm1, x);
    h = cache && h ? attend(b->self_attn, h, cache, at) : tn_multi_head_attention_forward(b->self_attn, h);
    if (b->dropout > 0) h = tn_dropout(h, b->dropout);
    x = tn_add(x, h);
    h = tn_linear_forward(b->linear1, tn_norm_forward(b->norm2, x));
    h = b->gelu_tanh ? tn_gelu_tanh(h) : tn_gelu(h);
    if (b->dropout > 0) h = tn_dropout(h, b->dropout);
    h = tn_linear_forward(b->linear2, h);
    if (b->dropout > 0) h = tn_dropout(h, b->dropout);
    return tn_add(x, h);
}

NN_FORWARD(transformer_block_forward, tn_transformer_block, b, x, linear1->weight)
{
    return b && x ? through(b, x, NULL, 0) : NULL;
}

TN_DEFINE(tn_tensor *, transformer_block_cached, tn_nn_session(b ? b->linear1->weight : NULL, x),
          (b, x, cache, at), tn_transformer_block *b, tn_tensor *x, tn_cache *cache, int64_t at)
{
    return b && x && cache ? through(b, x, cache, at) : NULL;
}

/* ---- the cache ---- */

TN_DEFINE(tn_cache *, cache_new, s, (s, n, heads, capacity, head, dtype), tn_session *s, int64_t n, int heads,
          int64_t capacity, int64_t head, tn_dtype dtype)
{
    static const char op[] = "cache_new";
    if (!tn_nn_check(
            s, op, "cache", n > 0 && heads > 0 && capacity > 0 && head > 0 && tn_dtype_is_float(dtype),
            "n, heads, capacity and head > 0 and a floating dtype; they are %lld, %d, %lld, %lld and %s",
            (long long)n, heads, (long long)capacity, (long long)head, tn_dtype_name(dtype)))
        return NULL;
    tn_cache *c = tn_nn_own(s, sizeof(*c), NULL, op);
    if (!c) return NULL;
    c->capacity = capacity;
    tn_tensor *made[] = {tn_zeros(s, dtype, TN_SHAPE(n, heads, capacity, head)),
                         tn_zeros(s, dtype, TN_SHAPE(n, heads, capacity, head)),
                         tn_arange(s, 0, (double)capacity, 1, TN_I32)};
    tn_tensor **kept[] = {&c->k, &c->v, &c->places};
    for (int i = 0; i < 3; i++) {
        *kept[i] = tn_keep(made[i]);
        tn_free(made[i]);
    }
    return c->k && c->v && c->places ? c : NULL;
}

void tn_cache_free(tn_cache *c)
{
    if (!c) return;
    tn_session *s = tn_session_of(c->k);
    tn_free(c->k);
    tn_free(c->v);
    tn_free(c->places);
    tn_nn_drop(s, c);
}

TN_DEFINE(tn_tensor *, cache_attention, c ? tn_session_of(c->k) : NULL, (c, q, k, v, at), tn_cache *c,
          tn_tensor *q, tn_tensor *k, tn_tensor *v, int64_t at)
{
    if (!c || !q || !k || !v) return NULL;
    const int64_t t = tn_dim(q, -2);
    if (t < 0 || at < 0 || at > c->capacity - t || tn_dim(k, -2) != t)
        return tn_nn_fail(
            tn_session_of(c->k), TN_E_INDEX, "cache_attention",
            "%lld queries and %lld keys at %lld, in a cache of %lld: wanted as many of both, and room "
            "for them",
            (long long)t, (long long)tn_dim(k, -2), (long long)at, (long long)c->capacity);
    tn_tensor *rows = tn_add_scalar(tn_slice(c->places, 0, 0, t, 1), tn_number_i(at));
    if (tn_assign_rows(c->k, 2, rows, k) || tn_assign_rows(c->v, 2, rows, v)) return NULL;
    const tn_sdpa_options o = {.mask = tn_le(c->places, tn_unsqueeze(rows, 1)), .size = sizeof(o)};
    return tn_scaled_dot_product_attention(q, c->k, c->v, &o);
}
