/* fusion_cases.h - programs that are recorded to look at their kernels: the fusions of the design at the
 * sizes that matter, and any case of op_cases.h with its gradient, dense or strided, in any floating dtype.
 *
 * Read first: record, then the rows FUSION(..). */
#pragma once

#include "op_cases.h"

typedef struct program {
    char name[80];
    const op_case *c;
    tn_dtype dtype;
    bool strided;
    tn_tensor *(*fusion)(tn_session *s, tn_tensor **leaf, int *n_leaf);
} program;

static double *some_numbers(const operand *o, int64_t n)
{
    double *v = malloc((size_t)n * sizeof *v + 1);
    assert_non_null(v);
    bool whole = o->kind == INDEX || o->kind == INDEX32;
    for (int64_t i = 0; i < n; i++) {
        double t = (double)((i * 37 + 11) % 101) / 101;
        v[i] = whole ? o->low + (double)(int64_t)(t * (o->high - o->low)) : o->low + t * (o->high - o->low);
        if (o->kind == TRUTH) v[i] = t < 0.5;
    }
    return v;
}

/* Operand i: dense, or every second of what is twice as long. */
static tn_tensor *operand_of(tn_session *s, const program *p, int i, tn_tensor **leaf, int *n_leaf)
{
    const operand *o = &p->c->in[i];
    int64_t shape[TN_MAX_DIMS], n = 1;
    bool real = o->kind == REAL || o->kind == DISTINCT, strided = p->strided && o->ndim > 0;
    for (int k = 0; k < o->ndim; k++) shape[k] = o->shape[k] * (strided && k == o->ndim - 1 ? 2 : 1);
    for (int k = 0; k < o->ndim; k++) n *= shape[k];
    tn_dtype d = o->kind == INDEX     ? TN_I64
                 : o->kind == INDEX32 ? TN_I32
                 : o->kind == TRUTH   ? TN_BOOL
                                      : p->dtype;
    double *v = some_numbers(o, n);
    tn_tensor *x = tensor_of(s, v, d, o->ndim, shape);
    free(v);
    if (real && !(p->c->flags & NO_GRADIENT)) tn_requires_grad(leaf[(*n_leaf)++] = x, true);
    return strided ? tn_slice(x, -1, 0, TN_END, 2) : x;
}

/* The result, and the gradients of its weighted sum. */
static void record(tn_session *s, void *user, int *n, tn_tensor **out)
{
    const program *p = user;
    tn_tensor *x[MAX_OPERANDS] = {NULL}, *leaf[MAX_OPERANDS + 4], *grad[MAX_OPERANDS + 4];
    int n_leaf = 0;
    for (int i = 0; p->c && i < MAX_OPERANDS && p->c->in[i].kind != NONE; i++)
        x[i] = operand_of(s, p, i, leaf, &n_leaf);
    tn_tensor *y = p->c ? p->c->f(s, x) : p->fusion(s, leaf, &n_leaf);
    out[(*n)++] = y;
    if (!n_leaf) return;
    if (tn_grad(weighted(s, y, 11), n_leaf, leaf, grad)) fail_msg("%s: %s", p->name, tn_error_text(s));
    for (int i = 0; i < n_leaf; i++)
        if (grad[i]) out[(*n)++] = grad[i];
}

/* ---- the fusions ---- */

static tn_tensor *input_of(tn_session *s, tn_tensor **leaf, int *n_leaf, int ndim, const int64_t *shape)
{
    static const operand o = {REAL, 0.1, 1, 0, {0}};
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    double *v = some_numbers(&o, n);
    tn_tensor *x = tensor_of(s, v, TN_F32, ndim, shape);
    free(v);
    tn_requires_grad(leaf[(*n_leaf)++] = x, true);
    return x;
}
#define input(...) input_of(s, leaf, n_leaf, TN_SHAPE(__VA_ARGS__))

static tn_tensor *some_indices(tn_session *s, int64_t n, double below)
{
    const operand o = {INDEX32, 0, below, 0, {0}};
    double *v = some_numbers(&o, n);
    tn_tensor *x = tensor_of(s, v, TN_I32, 1, &n);
    free(v);
    return x;
}

#define FUSION(name, ...)                                                                                    \
    static tn_tensor *fusion_##name(tn_session *s, tn_tensor **leaf, int *n_leaf) { __VA_ARGS__ }            \
    __attribute__((constructor)) static void add_##name(void)                                                \
    {                                                                                                        \
        Fusions[N_fusions++] = (program){#name, NULL, TN_F32, false, fusion_##name};                         \
    }

static program Fusions[64];
static int N_fusions;

enum { ROWS = 512, COLS = 1024 };

FUSION(softmax_odd, return tn_softmax(input(ROWS, 1023), -1);)
FUSION(softmax_short, return tn_softmax(input(4096, 10), -1);)
FUSION(softmax_long, return tn_softmax(input(40, 50000), -1);)
FUSION(softmax_columns, return tn_softmax(input(32, ROWS, 33), 1);)
FUSION(layer_norm_short, tn_tensor *x = input(ROWS, 64), *w = input(64), *b = input(64);
       return tn_layer_norm(x, w, b);)
FUSION(layer_norm_long, tn_tensor *x = input(256, 12288), *w = input(12288), *b = input(12288);
       return tn_layer_norm(x, w, b);)
FUSION(layer_norm_odd, tn_tensor *x = input(ROWS, 33), *w = input(33), *b = input(33);
       return tn_layer_norm(x, w, b);)
FUSION(row_sum, tn_tensor *x = input(ROWS, COLS); return tn_div(x, tn_sum(x, TN_AXES(-1), true));)
FUSION(residual_dropout_norm, tn_tensor *x = input(ROWS, COLS), *y = input(ROWS, COLS), *w = input(COLS),
       *b = input(COLS);
       tn_tensor *sum = tn_add(x, tn_dropout(y, 0.1)); return tn_mul(sum, tn_layer_norm(sum, w, b));)
FUSION(batch_norm_relu, tn_tensor *x = input(64, 28, 28, 32), *w = input(32), *b = input(32);
       return tn_relu(tn_batch_norm(x, w, b, NULL, NULL));)
FUSION(batch_norm_small, tn_tensor *x = input(4, 3, 3, 12), *w = input(12), *b = input(12);
       return tn_relu(tn_batch_norm(x, w, b, NULL, NULL));)
FUSION(cross_entropy_wide, return tn_cross_entropy(input(128, 50257), some_indices(s, 128, 50257));)
FUSION(conv_bias_relu, tn_tensor *x = input(8, 14, 14, 16), *w = input(32, 3, 3, 16), *b = input(32);
       return tn_max_pool2d(tn_relu(tn_conv2d(x, w, b, .pad = 1)), 2, .stride = 2);)
FUSION(conv_batch_norm_relu, tn_tensor *x = input(64, 28, 28, 32), *w = input(64, 3, 3, 32), *a = input(64),
       *b = input(64);
       return tn_relu(tn_batch_norm(tn_conv2d(x, w, NULL, .pad = 1), a, b, NULL, NULL));)
FUSION(conv_gelu_dropout, tn_tensor *x = input(32, 14, 14, 128), *w = input(128, 3, 3, 128), *b = input(128);
       return tn_add(tn_dropout(tn_gelu(tn_conv2d(x, w, b, .pad = 1)), 0.1), x);)
FUSION(conv_bf16, tn_tensor *x = tn_cast(input(32, 14, 14, 128), TN_BF16),
       *w = tn_cast(input(256, 3, 3, 128), TN_BF16), *b = tn_cast(input(256), TN_BF16);
       return tn_silu(tn_conv2d(x, w, b, .pad = 1, .stride = 2));)
FUSION(batch_norm_pool_bf16, tn_tensor *x = tn_cast(input(32, 8, 8, 64), TN_BF16), *w = input(64),
       *b = input(64);
       return tn_max_pool2d(tn_relu(tn_batch_norm(x, w, b, NULL, NULL)), 2);)
FUSION(group_norm_silu_bf16, tn_tensor *x = tn_cast(input(8, 32, 32, 32), TN_BF16), *w = input(32),
       *b = input(32);
       return tn_silu(tn_group_norm(x, 8, w, b));)
FUSION(conv_depthwise, tn_tensor *x = input(32, 14, 14, 128), *w = input(128, 3, 3, 1), *b = input(128);
       return tn_silu(tn_conv2d(x, w, b, .pad = 1, .groups = 128));)
FUSION(affine_gelu, tn_tensor *x = input(256, 384), *w = input(512, 384), *b = input(512),
       *v = input(64, 512);
       return tn_affine(tn_gelu(tn_affine(x, w, b)), v, NULL);)
FUSION(affine_silu_bf16, tn_tensor *x = tn_cast(input(256, 384), TN_BF16),
       *w = tn_cast(input(512, 384), TN_BF16), *b = tn_cast(input(512), TN_BF16),
       *v = tn_cast(input(64, 512), TN_BF16);
       return tn_affine(tn_silu(tn_affine(x, w, b)), v, NULL);)
FUSION(affine_dropout_residual, tn_tensor *x = input(4, 64, 256), *w = input(256, 256), *b = input(256),
       *v = input(64, 256);
       return tn_affine(tn_add(tn_dropout(tn_gelu(tn_affine(x, w, b)), 0.1), x), v, NULL);)
FUSION(affine_odd, tn_tensor *x = input(100, 33), *w = input(77, 33), *b = input(77), *v = input(64, 77);
       return tn_affine(tn_silu(tn_gelu(tn_affine(x, w, b))), v, NULL);)
FUSION(views, tn_tensor *x = input(8, 16, 32), *y = input(32, 128);
       return tn_add(tn_relu(tn_permute(tn_reshape(x, TN_SHAPE(128, 32)), 2, (const int[]){1, 0})), y);)
FUSION(transpose, tn_tensor *x = input(1000, 600), *y = input(600, 1000);
       return tn_add(tn_transpose(x, 0, 1), y);)
FUSION(slice, tn_tensor *x = input(ROWS, COLS), *y = input(ROWS / 2, COLS);
       return tn_add(tn_slice(x, 0, 0, TN_END, 2), y);)
FUSION(pad, tn_tensor *x = input(30, 64), *y = input(32, 64); return tn_add(tn_pad(x, 0, 1, 1, 0.0), y);)
FUSION(embedding, tn_tensor *w = input(1000, 64), *position = input(32, 64);
       return tn_add(tn_embedding(w, tn_reshape(some_indices(s, 256, 1000), TN_SHAPE(8, 32))), position);)
FUSION(gather, tn_tensor *x = input(100, 64), *y = input(256, 64);
       return tn_add(tn_index_select(x, 0, some_indices(s, 256, 100)), y);)
FUSION(clip_norm, tn_tensor *x = input(1000000); return tn_sqrt(tn_sum(tn_mul(x, x), TN_ALL, false));)
FUSION(column_sums, return tn_sum(tn_exp(input(4096, 96)), TN_AXES(0), false);)
FUSION(both_ends, return tn_sum(tn_exp(input(64, 32, 50)), TN_AXES(0, 2), false);)
FUSION(far_argmax, tn_tensor *x = input(300, 70, 5);
       return tn_mul(x, tn_cast(tn_argmax(x, 1, true), TN_F32));)
