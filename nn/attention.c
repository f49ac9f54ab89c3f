/* attention.c - multi-head self-attention and the transformer block made of it.
 *
 * Names, initial values and arithmetic are those of PyTorch's MultiheadAttention (torch/nn/modules/
 * activation.py) and TransformerEncoderLayer with norm_first and gelu (torch/nn/modules/transformer.py), so
 * their weights can be loaded as they are. Read tn_multi_head_attention_forward_at first.
 */
#include "layers.h"

#include <math.h>
#include <string.h>

tn_multi_head_attention *tn_multi_head_attention_new_at(tn_session *s, const char *name, int64_t dim,
                                                        int heads, const tn_attention_options *options,
                                                        const char *file, int line)
{
    static const char op[] = "multi_head_attention_new";
    const tn_attention_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    bool ok =
        dim > 0 && heads > 0 && dim % heads == 0 && o->dropout >= 0 && o->dropout < 1 && o->init_std >= 0;
    if (!tn_nn_check(
            s, op, name, ok, file, line,
            "dim > 0, a multiple of heads > 0, dropout in [0, 1) and init_std >= 0; dim is %lld, heads %d, "
            "dropout %g, init_std %g",
            (long long)dim, heads, o->dropout, o->init_std))
        return NULL;
    const tn_nn_mark from = tn_nn_begin(s);
    tn_multi_head_attention *a = tn_nn_own(s, sizeof(*a), op);
    if (!a) return NULL;
    a->dim = dim;
    a->heads = heads;
    a->causal = o->causal;
    a->dropout = o->dropout;
    int64_t in[] = {3 * dim, dim}, out[] = {dim, dim};
    double std = o->init_std, out_std = o->init_out_std > 0 ? o->init_out_std : std;
    bool bias = !o->no_bias;
    /* xavier_uniform of [3 dim, dim]: sqrt(6 / (fan_in + fan_out)) */
    a->in_proj_weight =
        tn_nn_named(s, op, file, line, name, "in_proj_weight",
                    std > 0 ? tn_nn_normal(s, std, 2, in, file, line)
                            : tn_nn_uniform(s, sqrt(6.0 / (4.0 * (double)dim)), 2, in, file, line),
                    true);
    if (bias)
        a->in_proj_bias =
            tn_nn_named(s, op, file, line, name, "in_proj_bias", tn_nn_full(s, 0, *in, file, line), true);
    a->out_proj_weight = tn_nn_named(s, op, file, line, name, "out_proj.weight",
                                     std > 0 ? tn_nn_normal(s, out_std, 2, out, file, line)
                                             : tn_nn_uniform(s, 1 / sqrt((double)dim), 2, out, file, line),
                                     true);
    if (bias)
        a->out_proj_bias =
            tn_nn_named(s, op, file, line, name, "out_proj.bias", tn_nn_full(s, 0, *out, file, line), true);
    ok = a->in_proj_weight && a->out_proj_weight && (!bias || (a->in_proj_bias && a->out_proj_bias));
    ok = ok && tn_nn_tell(s, a->in_proj_weight, true, NULL, NULL, op) &&
         tn_nn_tell(s, a->out_proj_weight, true, NULL, NULL, op);
    return tn_nn_whole(s, from, ok) ? a : NULL;
}

tn_multi_head_attention *tn_multi_head_attention_new(tn_session *s, const char *name, int64_t dim, int heads,
                                                     const tn_attention_options *options)
{
    return tn_multi_head_attention_new_at(s, name, dim, heads, options, NULL, 0);
}

tn_tensor *tn_multi_head_attention_forward_at(tn_multi_head_attention *a, tn_tensor *x, const char *file,
                                              int line)
{
    if (!a || !x) return NULL;
    if (tn_ndim(x) != 3 || tn_dim(x, 2) != a->dim) {
        char layer[256];
        tn_nn_fail(tn_session_of(x), TN_E_SHAPE, "multi_head_attention_forward", file, line,
                   "x has %d axes, the last of %lld; %s expects [n, t, %lld]", tn_ndim(x),
                   (long long)tn_dim(x, -1), tn_nn_layer(a->in_proj_weight, layer, sizeof(layer)),
                   (long long)a->dim);
        return NULL;
    }
    int64_t n = tn_dim(x, 0), t = tn_dim(x, 1), split[] = {n, t, 3, a->heads, a->dim / a->heads};
    int64_t joined[] = {n, t, a->dim};
    const int order[] = {2, 0, 3, 1, 4}; /* -> [3, n, heads, t, d]: views only */
    const tn_sdpa_options o = {.causal = a->causal, .dropout = a->dropout, .size = sizeof(o)};
    tn_tensor *qkv = tn_affine_at(x, a->in_proj_weight, a->in_proj_bias, file, line);
    qkv = tn_permute_at(tn_reshape_at(qkv, 5, split, file, line), 5, order, file, line);
    tn_tensor *q = tn_select_at(qkv, 0, 0, file, line), *k = tn_select_at(qkv, 0, 1, file, line);
    tn_tensor *v = tn_select_at(qkv, 0, 2, file, line);
    tn_tensor *y = tn_scaled_dot_product_attention_at(q, k, v, &o, file, line);
    y = tn_reshape_at(tn_transpose_at(y, 1, 2, file, line), 3, joined, file, line);
    return tn_affine_at(y, a->out_proj_weight, a->out_proj_bias, file, line);
}

tn_tensor *tn_multi_head_attention_forward(tn_multi_head_attention *a, tn_tensor *x)
{
    return tn_multi_head_attention_forward_at(a, x, NULL, 0);
}

/* ---- the block
 * --------------------------------------------------------------------------------------------- */

tn_transformer_block *tn_transformer_block_new_at(tn_session *s, const char *name, int64_t dim, int heads,
                                                  const tn_transformer_block_options *options,
                                                  const char *file, int line)
{
    static const char op[] = "transformer_block_new";
    const tn_transformer_block_options none = {.size = sizeof(none)}, *o = options ? options : &none;
    if (!tn_nn_check(s, op, name,
                     strlen(name ? name : "") < 200 && o->hidden >= 0 && o->dropout >= 0 && o->dropout < 1,
                     file, line,
                     "a name of less than 200 characters, hidden >= 0 and dropout in [0, 1); hidden is %lld, "
                     "dropout %g",
                     (long long)o->hidden, o->dropout))
        return NULL;
    const tn_nn_mark from = tn_nn_begin(s);
    tn_transformer_block *b = tn_nn_own(s, sizeof(*b), op);
    if (!b) return NULL;
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
    b->norm1 = tn_layer_norm_new_at(s, PART("norm1"), dim, &norm, file, line);
    b->self_attn = tn_multi_head_attention_new_at(s, PART("self_attn"), dim, heads, &attention, file, line);
    b->norm2 = tn_layer_norm_new_at(s, PART("norm2"), dim, &norm, file, line);
    b->linear1 = tn_linear_new_at(s, PART("linear1"), dim, hidden, &first, file, line);
    b->linear2 = tn_linear_new_at(s, PART("linear2"), hidden, dim, &second, file, line);
#undef PART
    bool whole = b->norm1 && b->self_attn && b->norm2 && b->linear1 && b->linear2;
    return tn_nn_whole(s, from, whole) ? b : NULL;
}

tn_transformer_block *tn_transformer_block_new(tn_session *s, const char *name, int64_t dim, int heads,
                                               const tn_transformer_block_options *options)
{
    return tn_transformer_block_new_at(s, name, dim, heads, options, NULL, 0);
}

tn_tensor *tn_transformer_block_forward_at(tn_transformer_block *b, tn_tensor *x, const char *file, int line)
{
    if (!b || !x) return NULL;
    tn_tensor *h = tn_multi_head_attention_forward_at(
        b->self_attn, tn_norm_forward_at(b->norm1, x, file, line), file, line);
    if (b->dropout > 0) h = tn_dropout_at(h, b->dropout, file, line);
    x = tn_add_at(x, h, file, line);
    h = tn_linear_forward_at(b->linear1, tn_norm_forward_at(b->norm2, x, file, line), file, line);
    h = b->gelu_tanh ? tn_gelu_tanh_at(h, file, line) : tn_gelu_at(h, file, line);
    if (b->dropout > 0) h = tn_dropout_at(h, b->dropout, file, line);
    h = tn_linear_forward_at(b->linear2, h, file, line);
    if (b->dropout > 0) h = tn_dropout_at(h, b->dropout, file, line);
    return tn_add_at(x, h, file, line);
}

tn_tensor *tn_transformer_block_forward(tn_transformer_block *b, tn_tensor *x)
{
    return tn_transformer_block_forward_at(b, x, NULL, 0);
}
