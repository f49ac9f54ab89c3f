/* tensor_nn.h - libtensor: what a training program is made of.
 *
 *   1 Layers    2 Attention    3 Optimizers and schedules    4 Data    5 Evaluation    6 Checkpoints
 *   7 Fused beside eager
 *
 * Chapters 4 and 5 are tensor_data.h, which this header includes.
 *
 * Conventions, beside those of <tensor.h>:
 *  - Ownership. Layers, optimizers, data sets and loaders belong to the session; tn_close frees them.
 *  - Errors. A constructor that cannot do its work returns NULL, a forward function given a NULL layer
 *    returns NULL, and the session keeps the first error: check tn_error once, where it suits.
 *  - Names. A layer's tensors are named by PyTorch's state_dict: "c1.weight", "n1.running_mean". Names are
 *    unique in a session and are what checkpoints go by.
 *  - Initial values have the distribution of PyTorch's defaults, drawn from the session's generator.
 *  - Options are named: tn_conv2d_new(s, "c1", 1, 32, 3, .pad = 1). An option left out is 0, which means
 *    what is said beside it. Without the macros (C++, TN_NO_MACROS) pass a pointer to the option struct, or
 *    NULL, as the last argument; size = sizeof(the struct) has to be set then.
 *  - A function declared by TN_OP or TN_NEW also exists as NAME_at(..., file, line), which the macros call.
 */
#ifndef TENSOR_NN_H
#define TENSOR_NN_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 Layers -------------------------------------------------------------------------------------- */

/* y = x W^T + b: x [.., in] -> [.., out]; weight [out, in], bias [out]. Both uniform in
 * (-1/sqrt(in), 1/sqrt(in)). The struct may be read, not written. */
typedef struct tn_linear {
    tn_tensor *weight, *bias; /* bias is NULL with .no_bias */
    int64_t in, out;
} tn_linear;
typedef struct tn_linear_options {
    bool no_bias;
    double init_std; /* not 0: weight ~ N(0, init_std^2) and bias 0 instead, as GPT-2 does */
    int64_t flattened[3];   /* {h, w, c}: x is a flattened image; matters to tn_load of PyTorch's weights alone */
    int64_t unflattened[3]; /* {h, w, c}: y becomes an image. {1, 1, in} or {1, 1, out} says that there is none */
    size_t size;
} tn_linear_options;
TN_NEW(tn_linear, linear_new, tn_session *s, const char *name, int64_t in, int64_t out,
       const tn_linear_options *options);
TN_OP(linear_forward, tn_linear *layer, tn_tensor *x);

/* x [n, h, w, in] -> [n, oh, ow, out]; weight [out, k, k, in / groups], bias [out]. Both uniform in
 * (-1/sqrt(fan), 1/sqrt(fan)) with fan = k * k * in / groups. */
typedef struct tn_conv {
    tn_tensor *weight, *bias;
    int64_t in, out;
    int kernel, stride, pad, dilation, groups, output_pad;
} tn_conv;
typedef struct tn_conv_options {
    int stride, pad, dilation, groups; /* 0 means 1, 0, 1, 1 */
    int output_pad;                    /* of a transposed one: below stride */
    bool no_bias;
    size_t size;
} tn_conv_options;
TN_NEW(tn_conv, conv2d_new, tn_session *s, const char *name, int64_t in, int64_t out, int kernel,
       const tn_conv_options *options);
TN_OP(conv2d_forward, tn_conv *layer, tn_tensor *x);
/* x [n, t, in] -> [n, ot, out]; weight [out, k, in / groups], and fan = k * in / groups. */
TN_NEW(tn_conv, conv1d_new, tn_session *s, const char *name, int64_t in, int64_t out, int kernel,
       const tn_conv_options *options);
TN_OP(conv1d_forward, tn_conv *layer, tn_tensor *x);
/* torch.nn.ConvTranspose2d and 1d, shapes as in tn_conv_transpose2d; weight [in, k, k, out / groups], or [in, k, out /
 * groups], and fan, as there, of its last axes: k * k * out / groups, or k * out / groups. */
TN_NEW(tn_conv, conv_transpose2d_new, tn_session *s, const char *name, int64_t in, int64_t out, int kernel,
       const tn_conv_options *options);
TN_OP(conv_transpose2d_forward, tn_conv *layer, tn_tensor *x);
TN_NEW(tn_conv, conv_transpose1d_new, tn_session *s, const char *name, int64_t in, int64_t out, int kernel,
       const tn_conv_options *options);
TN_OP(conv_transpose1d_forward, tn_conv *layer, tn_tensor *x);

/* Normalisation; weight starts at 1, bias at 0. eps 0 means 1e-5, momentum 0 means 0.1.
 * batch_norm: per channel (last axis) over all other axes; running_mean (0) and running_var (1) are buffers.
 * layer_norm: over the last axis, of extent `features`. rms_norm: the same without mean and bias.
 * group_norm: over each of `groups` equal parts of the channels of one item. */
typedef enum tn_norm_kind { TN_BATCH_NORM, TN_LAYER_NORM, TN_RMS_NORM, TN_GROUP_NORM } tn_norm_kind;
typedef struct tn_norm {
    tn_tensor *weight, *bias;              /* NULL with .no_affine; an rms_norm has no bias */
    tn_tensor *running_mean, *running_var; /* batch_norm only, NULL with .no_running */
    bool sync;
    tn_norm_kind kind;
    int64_t features;
    int groups;
    double eps, momentum;
} tn_norm;
typedef struct tn_norm_new_options {
    double eps, momentum;
    bool no_affine;
    bool no_bias;    /* layer_norm without its bias */
    bool no_running; /* batch_norm that uses the batch's statistics in evaluation too */
    bool sync;       /* batch_norm of the batches of all ranks (tn_norm_options) */
    int64_t flattened[3]; /* {h, w, c}: the features are a flattened image, as in tn_linear_options */
    size_t size;
} tn_norm_new_options;
TN_NEW(tn_norm, batch_norm_new, tn_session *s, const char *name, int64_t features,
       const tn_norm_new_options *options);
TN_NEW(tn_norm, layer_norm_new, tn_session *s, const char *name, int64_t features,
       const tn_norm_new_options *options);
TN_NEW(tn_norm, rms_norm_new, tn_session *s, const char *name, int64_t features,
       const tn_norm_new_options *options);
TN_NEW(tn_norm, group_norm_new, tn_session *s, const char *name, int groups, int64_t features,
       const tn_norm_new_options *options);
TN_OP(norm_forward, tn_norm *layer, tn_tensor *x); /* same shape as x */

/* index [..] (i32 or i64, below `count`) -> [.., features]; weight [count, features] ~ N(0, 1).
 *
 * With .sparse a step touches the rows that it looks up and no others: weight is then no parameter but a buffer, without a
 * gradient of its own, which no optimizer updates; tn_embedding_step does, between tn_backward and tn_step_end, as
 * torch.optim.SparseAdam or SGD without momentum do - rows that were not looked up keep value and moments, and the
 * gradients of one that was looked up several times are added up. Moments are buffers, NAME.exp_avg, NAME.exp_avg_sq and
 * NAME.updates, which checkpoints have. In evaluation mode nothing is noted for an update. */
typedef enum tn_sparse { TN_DENSE, TN_SPARSE_SGD, TN_SPARSE_ADAM } tn_sparse;
enum { TN_LOOKUPS = 16 }; /* of a sparse table in a step */
typedef struct tn_embed {
    tn_tensor *weight;
    int64_t count, features;
    tn_sparse sparse;
    tn_tensor *exp_avg, *exp_avg_sq, *updates; /* TN_SPARSE_ADAM */
    tn_tensor *index[TN_LOOKUPS], *rows[TN_LOOKUPS]; /* sparse: looked up in this step, */
    int lookups;                                     /* so often */
    uint64_t step;
} tn_embed;
typedef struct tn_embed_options {
    double init_std; /* 0 means 1 */
    tn_sparse sparse;
    size_t size;
} tn_embed_options;
TN_NEW(tn_embed, embedding_new, tn_session *s, const char *name, int64_t count, int64_t features,
       const tn_embed_options *options);
TN_OP(embedding_forward, tn_embed *layer, tn_tensor *index);

/* torch.nn.LSTM and GRU with batch_first: x [n, t, in] -> [n, t, hidden], or [n, t, 2 hidden] of both directions, the
 * second of which runs from the end; one layer goes on with the result of the one before. Parameters are weight_ih_l0
 * [4 hidden, in] (a GRU 3 hidden), weight_hh_l0 [4 hidden, hidden], bias_ih_l0 and bias_hh_l0, weight_ih_l0_reverse ..,
 * weight_ih_l1 .., all uniform in (-1/sqrt(hidden), 1/sqrt(hidden)); gates stand as in tn_lstm and tn_gru. */
typedef struct tn_recurrent_cell {
    tn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh; /* biases are NULL with .no_bias */
} tn_recurrent_cell;
typedef struct tn_recurrent {
    int64_t in, hidden;
    int layers;
    bool bidirectional, lstm;
    double dropout;
    tn_recurrent_cell *cell; /* [layers * directions] */
} tn_recurrent;
typedef struct tn_recurrent_options {
    int layers; /* 0 means 1 */
    bool bidirectional, no_bias;
    double dropout; /* of what each layer but the first is given, in training */
    size_t size;
} tn_recurrent_options;
TN_NEW(tn_recurrent, lstm_new, tn_session *s, const char *name, int64_t in, int64_t hidden,
       const tn_recurrent_options *options);
TN_NEW(tn_recurrent, gru_new, tn_session *s, const char *name, int64_t in, int64_t hidden,
       const tn_recurrent_options *options);
/* States before the first step and, afterwards, behind the last: [layers * directions, n, hidden]. NULL before: 0; a GRU
 * has no c. */
typedef struct tn_recurrent_state {
    tn_tensor *h, *c;
} tn_recurrent_state;
/* state may be NULL: zeros, and the last ones are not told. */
TN_OP(recurrent_forward, tn_recurrent *layer, tn_tensor *x, tn_recurrent_state *state);

/* ---- 2 Attention ----------------------------------------------------------------------------------- */

/* Self-attention with `heads` heads: x [n, t, dim] -> [n, t, dim]. The projections of q, k and v are one
 * product: in_proj_weight [3 dim, dim] (uniform in +-sqrt(6 / (4 dim))), in_proj_bias [3 dim] (0); then
 * out_proj.weight [dim, dim] (as linear), out_proj.bias [dim] (0). Each head attends to
 * softmax(q k^T / sqrt(dim / heads)) v. */
typedef struct tn_multi_head_attention {
    tn_tensor *in_proj_weight, *in_proj_bias, *out_proj_weight, *out_proj_bias;
    int64_t dim;
    int heads;
    bool causal;
    double dropout;
} tn_multi_head_attention;
typedef struct tn_attention_options {
    bool causal;         /* position i sees positions 0..i only */
    bool no_bias;        /* neither in_proj_bias nor out_proj.bias */
    double dropout;      /* of the attention probabilities, in training */
    double init_std;     /* not 0: weights ~ N(0, init_std^2), out_proj with init_out_std, as GPT-2 does */
    double init_out_std; /* 0 means init_std */
    size_t size;
} tn_attention_options;
TN_NEW(tn_multi_head_attention, multi_head_attention_new, tn_session *s, const char *name, int64_t dim,
       int heads, const tn_attention_options *options);
TN_OP(multi_head_attention_forward, tn_multi_head_attention *layer, tn_tensor *x);

/* The pre-norm block: x = x + attention(norm1(x)); x = x + linear2(gelu(linear1(norm2(x)))). Names as in
 * PyTorch's TransformerEncoderLayer: norm1, self_attn, norm2, linear1, linear2. */
typedef struct tn_transformer_block {
    tn_norm *norm1, *norm2;
    tn_multi_head_attention *self_attn;
    tn_linear *linear1, *linear2;
    bool gelu_tanh;
    double dropout;
} tn_transformer_block;
typedef struct tn_transformer_block_options {
    bool causal, no_bias;
    bool gelu_tanh; /* GPT-2's gelu instead of the exact one */
    int64_t hidden; /* of the MLP; 0 means 4 dim */
    double dropout; /* of probabilities and of what each half adds to x */
    double eps;
    double init_std, init_out_std; /* as in tn_attention_options, for linear1 and linear2 too */
    size_t size;
} tn_transformer_block_options;
TN_NEW(tn_transformer_block, transformer_block_new, tn_session *s, const char *name, int64_t dim, int heads,
       const tn_transformer_block_options *options);
TN_OP(transformer_block_forward, tn_transformer_block *block, tn_tensor *x);

/* Keys and values of the positions so far, for a text that is written token by token: k and v [n, heads, capacity, head],
 * zeros at first, which live until tn_cache_free or tn_close and are in no checkpoint. */
typedef struct tn_cache {
    tn_tensor *k, *v, *places;
    int64_t capacity;
} tn_cache;
TN_NEW(tn_cache, cache_new, tn_session *s, int64_t n, int heads, int64_t capacity, int64_t head, tn_dtype dtype);
TN_API void tn_cache_free(tn_cache *cache); /* NULL is allowed */
/* Writes k and v [n, heads, t, head] at the positions at .. at + t - 1 and gives what q [n, h, t, head] attends to: query i
 * sees the positions up to at + i. h may be a multiple of the cache's heads. `at` is a run-time number, and the kernels
 * are those of the whole capacity: a step in which it is another one costs no planning. No gradient goes to k and v. Where
 * there is no room it is TN_E_INDEX. */
TN_OP(cache_attention, tn_cache *cache, tn_tensor *q, tn_tensor *k, tn_tensor *v, int64_t at);
/* The block with such an attention, x [n, t, dim] being the positions at .. at + t - 1. */
TN_OP(transformer_block_cached, tn_transformer_block *block, tn_tensor *x, tn_cache *cache, int64_t at);

/* ---- 3 Optimizers and schedules ---------------------------------------------------------------------- */

typedef struct tn_optim tn_optim;

/* The parameters that an optimizer updates: tn_all_params(s) are all that exist when the optimizer is made, so make
 * the layers first; TN_PARAMS(fc->weight, fc->bias) some of them, of that session. A parameter in no optimizer's list
 * stays as it is. A list with a tensor that is no parameter (TN_E_ARG), is of another session (TN_E_SESSION), is dead
 * (TN_E_STALE) or NULL (TN_E_NULL) makes no optimizer; the error names the tensor and its place. */
typedef struct tn_params {
    int n; /* -1: all */
    tn_tensor *const *list;
} tn_params;
TN_API tn_params tn_all_params(tn_session *s);
/* The parameters that are written down, for the call that it stands in: the list lives to the end of the block around it,
 * and the statement of an `if` is such a block, with braces or without. */
#define TN_PARAMS(...)                                                                                       \
    ((tn_params){(int)(sizeof((tn_tensor *const[]){__VA_ARGS__}) / sizeof(tn_tensor *)),                     \
                 (tn_tensor *const[]){__VA_ARGS__}})

/* torch.optim.SGD. With g = gradient + weight_decay * p:
 *   b = momentum * b + (1 - dampening) * g (first step: b = g);  g = nesterov ? g + momentum * b : b
 *   p = p - lr * g */
typedef struct tn_sgd_options {
    double lr; /* 0 means 1e-3 */
    double momentum, dampening, weight_decay;
    bool nesterov; /* needs momentum > 0 and no dampening */
    int accumulate; /* steps per update, below; 0 means 1 */
    bool shard;     /* each rank keeps its share of the state, below */
    size_t size;
} tn_sgd_options;
TN_NEW(tn_optim, sgd, tn_session *s, tn_params params, const tn_sgd_options *options);

/* torch.optim.Adam and AdamW, t counting a parameter's updates from 1:
 *   adam:  g = gradient + weight_decay * p            adamw:  p = p - lr * weight_decay * p
 *   m = m + (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g * g
 *   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 * weight_decay 0 is none (torch.optim.AdamW would take 0.01). */
typedef struct tn_adam_options {
    double lr;    /* 0 means 1e-3 */
    double beta1; /* 0 means 0.9; a negative number means none */
    double beta2; /* 0 means 0.999 */
    double eps;   /* 0 means 1e-8 */
    double weight_decay;
    int accumulate; /* steps per update, below; 0 means 1 */
    bool shard;
    size_t size;
} tn_adam_options;
TN_NEW(tn_optim, adam, tn_session *s, tn_params params, const tn_adam_options *options);
TN_NEW(tn_optim, adamw, tn_session *s, tn_params params, const tn_adam_options *options);

/* torch.optim.RMSprop, with g = gradient + weight_decay * p:
 *   v = alpha * v + (1 - alpha) * g * g;  root = sqrt(v) + eps
 *   centered: m = m + (1 - alpha) * (g - m);  root = sqrt(v - m * m) + eps
 *   b = momentum * b + g / root;  p = p - lr * b */
typedef struct tn_rmsprop_options {
    double lr;    /* 0 means 1e-2 */
    double alpha; /* 0 means 0.99; a negative number means none */
    double eps;   /* 0 means 1e-8 */
    double momentum, weight_decay;
    bool centered;
    int accumulate;
    bool shard;
    size_t size;
} tn_rmsprop_options;
TN_NEW(tn_optim, rmsprop, tn_session *s, tn_params params, const tn_rmsprop_options *options);

/* torch.optim.Adagrad, with g = gradient + weight_decay * p:
 *   v = v + g * g;  p = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(v) + eps) */
typedef struct tn_adagrad_options {
    double lr; /* 0 means 1e-2 */
    double lr_decay, weight_decay;
    double eps; /* 0 means 1e-10 */
    int accumulate;
    bool shard;
    size_t size;
} tn_adagrad_options;
TN_NEW(tn_optim, adagrad, tn_session *s, tn_params params, const tn_adagrad_options *options);

/* Lion (Chen et al. 2023); lr 0 means 1e-4, beta2 0 means 0.99, and there is no eps:
 *   p = p - lr * weight_decay * p - lr * sign(beta1 * m + (1 - beta1) * gradient)
 *   m = beta2 * m + (1 - beta2) * gradient */
TN_NEW(tn_optim, lion, tn_session *s, tn_params params, const tn_adam_options *options);

/* Moving averages of weights, as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn. tn_optim_step on it,
 * after the optimizer's own, moves each average: a = decay * a + (1 - decay) * p, at first a = p; every parameter takes
 * part, with a gradient or without. tn_ema_swap exchanges weights and averages, to evaluate or save with the averages;
 * until it is called again, tn_optim_step, or another's tn_ema_swap, of any of these weights is TN_E_STATE. A checkpoint
 * has weights and averages, where they stand as it is saved: loaded with its optimizers, it is to be exchanged back as
 * well. */
typedef struct tn_ema_options {
    double decay; /* 0 means 0.999 */
    bool shard;
    size_t size;
} tn_ema_options;
TN_NEW(tn_optim, ema, tn_session *s, tn_params params, const tn_ema_options *options);
TN_FUNCTION(int, ema_swap, tn_optim *ema);

/* One update of the rows of a table made with .sparse; SGD looks at lr alone. weight_decay and accumulate must be 0; where
 * no row has a gradient it is TN_E_STATE. */
TN_FUNCTION(int, embedding_step, tn_embed *layer, const tn_adam_options *options);

/* A parameter group: the optimizer's parameters whose name matches `pattern` (as a shell's: "*.bias",
 * "block?.*"), or, where .match is given, for which it returns true, get this lr factor and weight decay
 * from now on. Returns how many they are; none is an error. */
typedef struct tn_group_options {
    double lr_factor;    /* times the optimizer's lr; 0 means 1 (use tn_requires_grad to freeze) */
    double weight_decay; /* in place of the optimizer's; 0 is none */
    bool (*match)(tn_tensor *param, void *user);
    void *user;
    size_t size;
} tn_group_options;
TN_FUNCTION(int, optim_group_with, tn_optim *opt, const char *pattern, const tn_group_options *options);
/* Freezes the parameters whose name matches (as tn_requires_grad(p, false)), or lets them learn again. Of a frozen one
 * backward makes no gradient, nor of what stands before the first that learns, and no optimizer moves it or its decay,
 * but by what an update over several steps (.accumulate) has gathered for it before. A batch_norm's running statistics
 * are no parameters: they stay where the layer is called after tn_train(s, false). Returns how many match; none is
 * TN_E_ARG. */
TN_FUNCTION(int, freeze, tn_session *s, const char *pattern, bool frozen);

/* Scales the gradients the next tn_optim_step uses so that the norm of all of them together is at most
 * max_norm (torch.nn.utils.clip_grad_norm_: factor min(1, max_norm / (norm + 1e-6))). Nothing is read by
 * the host; tn_gradient still shows the unscaled ones. Returns the norm, a 0-d tensor of this step.
 * Where no parameter has a gradient that is TN_E_STATE; with .accumulate, where one of the k steps may be without,
 * the norm is 0 then. */
TN_OP(clip_grad_norm, tn_optim *opt, double max_norm);
/* One update of every parameter that has a gradient in this step; others are left as they are, moments and
 * step count too, and named in the log where that goes on for 10 steps. Gradients end with their step: those of
 * steps that call tn_backward alone are lost, which a warning says where it happens before each update. Call it
 * after tn_backward, before tn_step_end. After an error it changes nothing and returns that error. In fused mode it
 * waits like any other call, so that a loss read after it is part of the same run; of what the model computed
 * inside, that run leaves only what was kept (tn_keep) or watched (tensor.h, chapter 4).
 *
 * With .accumulate = k a gradient is the mean over k steps: k calls add to a sum of the optimizer's own, the
 * last of them updates. k batches then count as one that is k times as large (where the loss is a mean).
 * tn_clip_grad_norm is about that mean, and clips when it is called before the last of the k.
 *
 * With .shard each of several ranks (tn_ranks) keeps moments of its share of the parameters alone, updates that share,
 * and the ranks exchange what they have updated (ZeRO stage 1): the same bits as without, for a rank's share of the
 * memory. tn_save is then called on all ranks, and writes the same file; it goes on with another number of ranks, and
 * with or without .shard. */
TN_FUNCTION(int, optim_step, tn_optim *opt);
TN_FUNCTION(int, optim_set_lr, tn_optim *opt, double lr);
TN_API double tn_optim_lr(const tn_optim *opt);

/* Loss scaling, as torch.amp.GradScaler's, of sessions that compute in f16 (TN_PRECISION_F16), from the first optimizer on.
 * tn_backward multiplies its loss by the scale, 65536 at first, so that tn_gradient shows gradients times it; tn_optim_step,
 * tn_clip_grad_norm and tn_embedding_step divide by it. Where a gradient of an update is infinite or NaN, that update changes
 * nothing: neither weights and moments nor the counts of updates, averages (tn_ema) do not move in that step, and the running
 * statistics of tn_norm_forward go back to what they were before it. Such a step halves the scale; after `interval` others with
 * an update in a row it is doubled. All of it is in the step's own run: what was found is looked at when the next step calls
 * tn_backward, or here. With .accumulate a mean that is not finite is dropped, and another k steps begin. A checkpoint has
 * these numbers. */
typedef struct tn_scaling {
    double scale;    /* 1 where nothing is computed in f16 */
    int64_t good;    /* steps with an update since it was changed */
    int64_t skipped; /* those that have changed nothing, in all */
} tn_scaling;
TN_API tn_scaling tn_loss_scaling(tn_session *s);
/* Goes on from this scale, an f32 above 0; interval 0 means 2000. */
TN_FUNCTION(int, set_loss_scale, tn_session *s, double scale, int interval);

/* Learning rates as functions of the step, counted from 0: tn_optim_set_lr(opt, tn_lr_cosine(step, ..)).
 * While step < warmup all rise linearly: base * (step + 1) / warmup. Then
 *   cosine: final + (base - final) * (1 + cos(pi * r)) / 2, r = (step - warmup) / (total - warmup) up to 1
 *   linear: base + (final - base) * r
 *   steps:  base * factor^floor((step - warmup) / every) */
TN_API double tn_lr_cosine(int64_t step, int64_t warmup, int64_t total, double base, double final_lr);
TN_API double tn_lr_linear(int64_t step, int64_t warmup, int64_t total, double base, double final_lr);
TN_API double tn_lr_steps(int64_t step, int64_t warmup, int64_t every, double factor, double base);

/* ---- 4 Data, 5 Evaluation: tensor_data.h ---------------------------------------------------------------- */

#include "tensor_data.h"

/* ---- 6 Checkpoints ----------------------------------------------------------------------------------- */

/* Writes parameters, buffers, optimizer state, the random generator and the data sets' positions to a
 * .safetensors file: under a temporary name first (path.RANDOM.part), then renamed, so that `path` is never half
 * written. What a process that was killed meanwhile left there goes with the next save. A file that is replaced gives
 * its permissions to the new one; through a symbolic link the file it leads to is replaced, unless the link is
 * another user's. TN_E_IO where the file cannot be written, or something else, such as a folder or a FIFO, is there. */
typedef struct tn_save_options {
    /* Weights for PyTorch's load_state_dict: parameters and buffers alone, under their names, images [c, h, w] as below,
     * marked "pt". tn_load reads them back. Optimizers, generator, positions and a sparse table's moments are left out. */
    bool for_pytorch;
    bool no_flatten; /* as in tn_load_options, which also says when it is asked for: a save before training finds it out */
    size_t size;
} tn_save_options;
TN_FUNCTION(int, save_with, tn_session *s, const char *path, const tn_save_options *options);
/* Reads such a file back into a session with the same layers, optimizers and data sets made in the same
 * order. Everything is checked first: where a tensor is missing or has another shape, or a number is none that a
 * run can have, nothing is changed and the error names it. Optimizer state in the file is left out where the session
 * has no optimizer; a file without any (weights alone) leaves optimizers, generator and positions as they are.
 *
 * Weights from PyTorch. An image is [c, h, w] there and [h, w, c] here, so that 4-d tensors, which are taken for
 * convolutions' weights, are turned from OIHW to OHWI, and what stands behind a flatten or before an unflatten in the
 * same manner. What is in the file is never guessed:
 *  - whose layout it has says the mark "format" in the file: "libtensor", or "pt" as PyTorch's own tools write.
 *    A file without either, as of save_file(model.state_dict(), path), has to be told by .layout where something
 *    would be turned. What .layout says counts before "pt", but contradicts "libtensor".
 *  - that a layer stands behind a flatten it has to be told: tn_linear_new(.., .flattened = {h, w, c}). A file from
 *    PyTorch is refused where the session has 4-d tensors and a 2-d parameter of a linear layer that was told nothing,
 *    or of none, until .no_flatten says that no other layer stands behind one.
 * Each is TN_E_ARG, and says what to do.
 *
 * Weights of another model. With .partial, load_state_dict's strict = False, what the file and the session both have is
 * loaded, by name; what the session has besides stays as it is, and what the file has besides is left out. With
 * .rename a name in the file is taken for another one: the first `from` that fits all of the name counts, '*' fits
 * any text, as short as it can be, and each '*' in `to` is what that of the same place fitted; where that is no name,
 * as of "", the tensor is left out. Either loads weights alone, whoever wrote the file. Shapes have to fit all
 * the same, and dtypes, of which a floating one becomes the session's; where nothing is in both, or two names become
 * one, it is TN_E_SHAPE. What stayed and what was left out is said in .report, or, without one, by a warning. */
typedef enum tn_layout { TN_LAYOUT_MARKED, TN_LAYOUT_TENSOR, TN_LAYOUT_PYTORCH } tn_layout;
typedef struct tn_rename {
    const char *from, *to; /* {"backbone.*.conv.weight", "trunk.*.weight"} */
} tn_rename;
typedef struct tn_load_report {
    int loaded, missing, left_out; /* tensors in both, in the session alone, in the file alone */
    char text[1024];               /* a sentence with their names, as far as there is room */
} tn_load_report;
enum { TN_RENAMES = 16 };
typedef struct tn_load_options {
    tn_layout layout; /* TN_LAYOUT_MARKED: as the file's mark says */
    bool no_flatten;  /* no layer but those made with .flattened or .unflattened has a flattened image */
    bool partial;
    tn_rename rename[TN_RENAMES]; /* up to the first whose `from` is NULL */
    tn_load_report *report;
    size_t size;
} tn_load_options;
TN_FUNCTION(int, load_with, tn_session *s, const char *path, const tn_load_options *options);

/* ---- 7 Fused beside eager ------------------------------------------------------------------------------ */

/* One step of the program's own, from tn_step_begin to tn_step_end; 0, or a status that ends the comparison. It must not
 * take batches from a loader: give it one in `user`. */
typedef int tn_step_fn(tn_session *s, void *user);
typedef struct tn_comparison {
    double faster, low, high;         /* eager time / fused time: the median of the rounds, and its interval of 95 % */
    double ms[2];                     /* of a step, medians; [0] eager, [1] fused, here and below */
    uint64_t launches[2], bytes[2];   /* of a step: kernels and library calls; what they read and write at least */
    int rounds;
} tn_comparison;
typedef struct tn_compare_options {
    int rounds;            /* 6 to 10000; 0 means 15 */
    double seconds;        /* no more rounds after this, but 6 in any case; 0 means 10 */
    FILE *out;             /* NULL means stdout */
    tn_comparison *result; /* NULL: the sentence alone */
    size_t size;
} tn_compare_options;
/* Runs the step in both modes by turns and writes what came of it, one line:
 *
 *     fused 1.18x (1.14-1.22), 36 > 27 launches, 120 > 66 MB moved
 *
 * In parentheses stands the confidence interval of 95 % of the median of the rounds' ratios, by order statistics (Conover,
 * Practical Nonparametric Statistics). Outside of steps. Afterwards parameters, buffers, optimizers, generator and
 * positions in data sets are what they were, by a checkpoint in TMPDIR or /tmp that is removed, so that training goes on
 * as if nothing had been; what else the step assigns to is not put back. Where the step fails, or no checkpoint can be
 * written or read, that status, also set in s, and the state is that of the failed step. */
TN_FUNCTION(int, compare_with, tn_session *s, tn_step_fn *step, void *user, const tn_compare_options *options);

/* ---- events for TensorBoard ---- */

typedef struct tn_events tn_events; /* owned by the session, closed by tn_close */

/* A new file of events in `folder`, which is made if it is not there (the folder it stands in must be). NULL where
 * it cannot be made: TN_E_IO, TN_E_NULL, TN_E_NOMEM in s. Of several ranks one should have it. */
TN_FUNCTION(tn_events *, events_open, tn_session *s, const char *folder);
/* Adds the point (step, value) to the curve `tag` ("loss", "accuracy/test"; 1 to 200 bytes), kept as f32, with the time
 * of the call. It is in the file when the call returns: `tensorboard --logdir folder` shows runs as they go on. 0,
 * TN_E_ARG, TN_E_IO, TN_E_NULL; an error the session has had before. */
TN_FUNCTION(int, events_scalar, tn_events *e, const char *tag, int64_t step, double value);

#ifdef __cplusplus
}
#endif

#endif
