/* test_golden.c - whole models and single operators against PyTorch's numbers (tests/golden/).
 *
 *   models      the same weights and batches: every gradient of the first step, the losses of 20 AdamW steps,
 *               running statistics and what evaluation mode gives at the end
 *   operators   those whose semantics are easy to get wrong: result, and the gradients of
 *               sum(result * weight)
 *   promotion   result dtypes
 *
 * On the reference device what is left is the rounding of the stored numbers. Read train and op_case first.
 */
#include "src/core/sanitized.h"
#include "tests/golden.h"

enum { TRAIN_STEPS = 20 };
#if defined(TN_ASAN)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* ---- models ---- */

typedef struct model {
    const char *file;
    void (*make)(tn_session *s, void *net);
    tn_tensor *(*forward)(void *net, tn_tensor *x);
    double lr, decay;
} model;

static void expect_losses(const char *where, const golden *g, const double *loss, double tolerance)
{
    double *want = golden_values(golden_find(g, "losses"));
    for (int i = 0; i < TRAIN_STEPS; i++)
        if (!(fabs(loss[i] - want[i]) <= tolerance * fabs(want[i])))
            fail_msg("%s: the loss of step %d is %.9g, PyTorch's %.9g", where, i, loss[i], want[i]);
    free(want);
}

static void train(tn_session *s, const char *where, const golden *g, const model *m, void *net, bool exact)
{
    char path[128];
    double loss[TRAIN_STEPS];
    m->make(s, net);
    expect_fine(s, where);
    snprintf(path, sizeof(path), "tests/golden/%s.safetensors", m->file);
    tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = m->lr, .weight_decay = m->decay);
    for (int i = 0; i < tn_param_count(s); i++) {
        tn_tensor *p = tn_param_at(s, i), *v = NULL;
        const nn_saved *e = golden_find(g, "%s", tn_name(p));
        tn_tensor *made = golden_tensor(s, e, tn_dtype_of(p));
        v = e->ndim == 4 ? tn_permute(made, 4, (const int[]){0, 2, 3, 1}) : made; /* OIHW -> OHWI */
        tn_assign(p, v);
        tn_free(made);
    }
    for (int i = 0; i < TRAIN_STEPS; i++) {
        tn_step_begin(s);
        tn_tensor *x = golden_tensor(s, golden_find(g, "batch.%d.x", i % 4), TN_F32);
        const nn_saved *ids = golden_find(g, "batch.%d.x", i % 4);
        if (ids->dtype == TN_I64) x = golden_tensor(s, ids, TN_I64);
        tn_tensor *y = golden_tensor(s, golden_find(g, "batch.%d.y", i % 4), TN_I64);
        tn_tensor *l = tn_cross_entropy(m->forward(net, x), y);
        tn_backward(l);
        expect_fine(s, where);
        for (int k = 0; i == 0 && k < tn_param_count(s); k++) {
            tn_tensor *p = tn_param_at(s, k);
            golden_close(where, tn_name(p), tn_gradient(p), golden_find(g, "gradient.%s", tn_name(p)),
                         exact ? 1e-10 : 1e-5);
        }
        tn_optim_step(o);
        loss[i] = tn_item(l);
        tn_step_end(s);
        expect_fine(s, where);
    }
    expect_losses(where, g, loss, exact ? 1e-8 : 1e-4);
}

typedef struct cnn {
    tn_conv *c1, *c2;
    tn_norm *n1, *n2;
    tn_linear *fc;
} cnn;

static void cnn_make(tn_session *s, void *user)
{
    cnn *net = user;
    net->c1 = tn_conv2d_new(s, "c1", 2, 6, 3, .pad = 1, .no_bias = true);
    net->n1 = tn_batch_norm_new(s, "norm1", 6);
    net->c2 = tn_conv2d_new(s, "c2", 6, 8, 3, .pad = 1, .stride = 2, .no_bias = true);
    net->n2 = tn_batch_norm_new(s, "norm2", 8);
    net->fc = tn_linear_new(s, "fc", 72, 5);
}

static tn_tensor *cnn_forward(void *user, tn_tensor *x)
{
    cnn *net = user;
    tn_tensor *h = tn_relu(tn_norm_forward(net->n1, tn_conv2d_forward(net->c1, x)));
    h = tn_max_pool2d(tn_relu(tn_norm_forward(net->n2, tn_conv2d_forward(net->c2, h))), 2);
    return tn_linear_forward(net->fc, tn_flatten(h, 1));
}

TEST(cnn_like_pytorch)
{
    const model m = {"cnn", cnn_make, cnn_forward, 1e-2, 0.05};
    golden g;
    golden_open(&g, m.file);
    for (int at = 0; at < PLACE_COUNT; at++) {
        bool exact = PLACES[at].device == TN_REF;
        cnn net;
        tn_session *s = open_place(&PLACES[at], NULL, NULL);
        train(s, PLACES[at].name, &g, &m, &net, exact);
        for (int i = 0; i < tn_buffer_count(s); i++) {
            tn_tensor *b = tn_buffer_at(s, i);
            golden_close(PLACES[at].name, tn_name(b), b, golden_find(&g, "after.%s", tn_name(b)),
                         exact ? 1e-7 : 2e-3);
        }
        tn_train(s, false);
        tn_step_begin(s);
        tn_tensor *x = golden_tensor(s, golden_find(&g, "batch.0.x"), TN_F32);
        golden_close(PLACES[at].name, "logits", cnn_forward(&net, x), golden_find(&g, "after.logits"),
                     exact ? 1e-7 : 2e-3);
        tn_step_end(s);
        assert_int_equal(tn_close(s), TN_OK);
    }
    golden_close_file(&g);
}

enum { VOCAB = 29, DIM = 24, HEADS = 3, TIME = 16 };

typedef struct transformer {
    tn_embed *tok, *pos;
    tn_transformer_block *block;
    tn_norm *norm;
    tn_linear *head;
} transformer;

static void transformer_make(tn_session *s, void *user)
{
    transformer *net = user;
    net->tok = tn_embedding_new(s, "tok", VOCAB, DIM);
    net->pos = tn_embedding_new(s, "pos", TIME, DIM);
    net->block = tn_transformer_block_new_at(
        s, "block", DIM, HEADS,
        &(const tn_transformer_block_options){.causal = true, .size = sizeof(tn_transformer_block_options)},
        __FILE__, __LINE__);
    net->norm = tn_layer_norm_new(s, "norm", DIM);
    net->head = tn_linear_new(s, "head", DIM, VOCAB, .no_bias = true);
}

static tn_tensor *transformer_forward(void *user, tn_tensor *x)
{
    transformer *net = user;
    tn_tensor *h = tn_add(tn_embedding_forward(net->tok, x), net->pos->weight);
    return tn_linear_forward(net->head,
                             tn_norm_forward(net->norm, tn_transformer_block_forward(net->block, h)));
}

TEST(transformer_like_pytorch)
{
    const model m = {"transformer", transformer_make, transformer_forward, 3e-3, 0.1};
    golden g;
    golden_open(&g, m.file);
    for (int at = 0; at < PLACE_COUNT; at++) {
        transformer net;
        tn_session *s = open_place(&PLACES[at], NULL, NULL);
        train(s, PLACES[at].name, &g, &m, &net, PLACES[at].device == TN_REF);
        assert_int_equal(tn_close(s), TN_OK);
    }
    golden_close_file(&g);
}

/* ---- operators ---- */

enum { MAX_IN = 4 };

typedef struct op_case {
    const char *name;
    const char *in[MAX_IN]; /* as in make_golden.py */
    tn_tensor *(*fn)(tn_tensor **x);
    double tolerance; /* of f32; 0 means 2e-6 */
} op_case;

#define OP(...)    OP_AT(__COUNTER__, __VA_ARGS__)
#define OP_AT(...) OP_ADD(__VA_ARGS__)
#define OP_ADD(id, name, tolerance, expression, ...)                                                         \
    static tn_tensor *op_##id(tn_tensor **x) { return expression; }                                          \
    __attribute__((constructor)) static void add_op_##id(void)                                               \
    {                                                                                                        \
        OPS[OP_COUNT++] = (op_case){name, {__VA_ARGS__}, op_##id, tolerance};                                \
    }

static op_case OPS[160];
static int OP_COUNT;

static tn_tensor *top(tn_tensor *x, int64_t k, int axis, bool smallest)
{
    tn_tensor *values = NULL;
    tn_topk(x, k, axis, smallest, &values, NULL);
    return values;
}

OP("cross_entropy", 0, tn_cross_entropy(x[0], x[1]), "x", "y")
OP("cross_entropy_sum", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_SUM), "x", "y")
OP("cross_entropy_none", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_NONE), "x", "y")
OP("cross_entropy_smooth", 0, tn_cross_entropy(x[0], x[1], .label_smoothing = 0.2), "x", "y")
OP("cross_entropy_ignore", 0,
   tn_cross_entropy(x[0], x[1], .use_ignore_index = true, .ignore_index = 2, .label_smoothing = 0.1), "x",
   "y")
OP("cross_entropy_soft", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_MEAN), "x", "y")
OP("cross_entropy_soft_smooth", 0, tn_cross_entropy(x[0], x[1], .label_smoothing = 0.2), "x", "y")
OP("cross_entropy_ignored_all", 0, tn_cross_entropy(x[0], x[1], .reduction = TN_REDUCE_SUM), "x", "y")
OP("nll_loss", 0, tn_nll_loss(x[0], x[1]), "x", "y")
OP("mse_loss", 0, tn_mse_loss(x[0], x[1]), "x", "y")
OP("l1_loss", 0, tn_l1_loss(x[0], x[1]), "x", "y")
OP("bce_with_logits", 0, tn_bce_with_logits(x[0], x[1]), "x", "y")
OP("group_norm", 0, tn_group_norm(x[0], 3, x[1], x[2]), "x", "w", "b")
OP("layer_norm_2", 0, tn_layer_norm(x[0], x[1], x[2], .eps = 1e-3, .ndim = 2), "x", "w", "b")
OP("rms_norm", 0, tn_rms_norm(x[0], x[1], .eps = 1e-5), "x", "w")
OP("batch_norm", 0, tn_batch_norm(x[0], x[1], x[2], NULL, NULL), "x", "w", "b")
OP("max_pool_ceil", 0, tn_max_pool2d(x[0], 3, .stride = 2, .pad = 1, .ceil_mode = true), "x")
OP("max_pool_ties", 0, tn_max_pool2d(x[0], 2, .stride = 1), "x")
OP("avg_pool", 0, tn_avg_pool2d(x[0], 3, .stride = 2, .pad = 1), "x")
OP("avg_pool_ceil", 0, tn_avg_pool2d(x[0], 3, .stride = 2, .pad = 1, .ceil_mode = true), "x")
OP("avg_pool_ceil_2", 0, tn_avg_pool2d(x[0], 2, .stride = 2, .ceil_mode = true), "x")
OP("avg_pool_exclude", 0,
   tn_avg_pool2d(x[0], 3, .stride = 2, .pad = 1, .ceil_mode = true, .exclude_pad = true), "x")
OP("conv", 0, tn_conv2d(x[0], x[1], x[2], .stride = 2, .pad = 1), "x", "w", "b")
OP("conv_dilated", 0, tn_conv2d(x[0], x[1], x[2], .dilation = 2, .pad = 2), "x", "w", "b")
OP("conv_groups", 0, tn_conv2d(x[0], x[1], x[2], .groups = 2, .pad = 1), "x", "w", "b")
OP("conv_depthwise", 0, tn_conv2d(x[0], x[1], x[2], .groups = 3), "x", "w", "b")
OP("conv1d", 0, tn_conv1d(x[0], x[1], x[2], .stride = 2, .pad = 1), "x", "w", "b")
OP("conv1d_groups", 0, tn_conv1d(x[0], x[1], x[2], .dilation = 3, .groups = 2), "x", "w", "b")
OP("transpose2d", 0, tn_conv_transpose2d(x[0], x[1], x[2], .stride = 2, .pad = 1, .output_pad = 1), "x", "w",
   "b")
OP("transpose2d_groups", 0, tn_conv_transpose2d(x[0], x[1], x[2], .stride = 3, .dilation = 2, .groups = 2),
   "x", "w", "b")
OP("transpose1d", 0, tn_conv_transpose1d(x[0], x[1], x[2], .stride = 2, .pad = 1), "x", "w", "b")
OP("nearest_up", 0, tn_resize_nearest(x[0], 14, 18), "x")
OP("nearest_odd", 0, tn_resize_nearest(x[0], 10, 4), "x")
OP("nearest_down", 0, tn_resize_nearest(x[0], 1, 3), "x")
OP("bilinear_up", 0, tn_resize_bilinear(x[0], 14, 18, false), "x")
OP("bilinear_odd", 0, tn_resize_bilinear(x[0], 10, 4, false), "x")
OP("bilinear_down", 0, tn_resize_bilinear(x[0], 1, 3, false), "x")
OP("corners_up", 0, tn_resize_bilinear(x[0], 14, 18, true), "x")
OP("corners_odd", 0, tn_resize_bilinear(x[0], 10, 4, true), "x")
OP("corners_down", 0, tn_resize_bilinear(x[0], 1, 3, true), "x")
OP("var_0", 0, tn_var(x[0], TN_AXES(1, 3), false, 0), "x")
OP("var_1", 0, tn_var(x[0], TN_AXES(1, 3), false, 1), "x")
OP("var_2", 0, tn_var(x[0], TN_AXES(1, 3), false, 2), "x")
OP("std", 0, tn_std(x[0], TN_AXES(1), false, 1), "x")
OP("std_constant", 0, tn_std(x[0], TN_AXES(1), false, 1), "x")
/* the result, 1e4, has no more digits left */
OP("logsumexp", 1e-3, tn_logsumexp(x[0], TN_AXES(1), false), "x")
OP("prod_zeros", 0, tn_prod(x[0], TN_AXES(1), false), "x")
OP("cumsum", 0, tn_cumsum(x[0], 1), "x")
OP("amax_ties", 0, tn_max(x[0], TN_AXES(1), false), "x")
OP("amin_ties", 0, tn_min(x[0], TN_ALL, false), "x")
OP("argmax_ties", 0, tn_argmax(x[0], 1, false), "x")
OP("argmin_nan", 0, tn_argmin(x[0], 1, false), "x")
OP("argsort_up", 0, tn_argsort(x[0], 1, false), "x")
OP("argsort_down", 0, tn_argsort(x[0], 1, true), "x")
OP("sort_up", 0, sorted_values(x[0], 0, false), "x")
OP("sort_down", 0, sorted_values(x[0], 0, true), "x")
OP("topk", 0, top(x[0], 4, 1, false), "x")
OP("topk_smallest", 0, top(x[0], 2, 0, true), "x")
OP("attention_grouped", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2]), "q", "k", "v")
OP("einsum", 0, tn_einsum("bhtd,bshd->bhts", 2, x), "x", "y")
OP("einsum_implicit", 0, tn_einsum("ca,bc", 2, x), "x", "y")
OP("einsum_three", 0, tn_einsum("ij,j,kj->ki", 3, x), "x", "y", "z")
OP("rotary", 0, tn_rotary(x[0], 9), "x")
OP("rotary_pairs", 0, tn_rotary(x[0], 0, .base = 500, .interleaved = true), "x")
OP("maximum", 0, tn_maximum(x[0], x[1]), "input", "other")
OP("minimum", 0, tn_minimum(x[0], x[1]), "input", "other")
OP("pow", 0, tn_pow(x[0], x[1]), "input", "exponent")
OP("pow_scalar_2.0", 0, tn_pow_scalar(x[0], 2.0), "x")
OP("pow_scalar_3.0", 0, tn_pow_scalar(x[0], 3.0), "x")
OP("pow_scalar_0.5", 0, tn_pow_scalar(x[0], 0.5), "x")
OP("pow_scalar_-0.5", 0, tn_pow_scalar(x[0], -0.5), "x")
OP("pow_scalar_-1.0", 0, tn_pow_scalar(x[0], -1.0), "x")
OP("pow_scalar_0.0", 0, tn_pow_scalar(x[0], 0.0), "x")
OP("pow_scalar_1.0", 0, tn_pow_scalar(x[0], 1.0), "x")
OP("pow_scalar_2.5", 0, tn_pow_scalar(x[0], 2.5), "x")
OP("relu", 0, tn_relu(x[0]), "input")
OP("abs", 0, tn_abs(x[0]), "input")
OP("clamp", 0, tn_clamp(x[0], -1, 1), "x")
OP("sign", 0, tn_sign(x[0]), "input")
OP("round", 0, tn_round(x[0]), "input")
OP("elu", 0, tn_elu(x[0], 1.5), "x")
OP("leaky_relu", 0, tn_leaky_relu(x[0], 0.1), "x")
OP("gelu", 0, tn_gelu(x[0]), "x")
OP("gelu_tanh", 0, tn_gelu_tanh(x[0]), "x")
OP("silu", 0, tn_silu(x[0]), "x")
OP("mish", 0, tn_mish(x[0]), "x")
OP("softplus", 0, tn_softplus(x[0]), "x")
OP("sigmoid", 0, tn_sigmoid(x[0]), "x")
OP("tanh", 0, tn_tanh(x[0]), "x")
OP("softmax", 0, tn_softmax(x[0], 1), "x")
OP("log_softmax", 0, tn_log_softmax(x[0], 0), "x")
OP("where", 0, tn_where(x[0], x[1], x[2]), "c", "x", "y")
OP("embedding", 0, tn_embedding(x[1], x[0]), "i", "w")
OP("gather", 0, tn_gather(x[0], 1, x[1]), "x", "i")
OP("scatter_add", 0, tn_scatter_add(x[0], 1, x[1], x[2]), "x", "i", "y")
OP("atan", 0, tn_atan(x[0]), "input")
OP("hardswish", 0, tn_hardswish(x[0]), "input")
OP("prelu", 0, tn_prelu(x[0], x[1]), "x", "w")
OP("prelu_channels", 0, tn_prelu(x[0], x[1]), "x", "w")
OP("glu", 0, tn_glu(x[0], 1), "x")
OP("swiglu", 0, tn_swiglu(x[0], x[1]), "x", "y")
OP("tril_-2", 0, tn_tril(x[0], -2), "x")
OP("tril_0", 0, tn_tril(x[0], 0), "x")
OP("tril_1", 0, tn_tril(x[0], 1), "x")
OP("triu_-2", 0, tn_triu(x[0], -2), "x")
OP("triu_0", 0, tn_triu(x[0], 0), "x")
OP("triu_1", 0, tn_triu(x[0], 1), "x")
OP("huber", 0, tn_huber_loss(x[0], x[1], .delta = 0.5, .reduction = TN_REDUCE_SUM), "x", "y")
OP("smooth_l1", 0, tn_smooth_l1_loss(x[0], x[1], .delta = 0.5), "x", "y")
OP("kl_div", 0, tn_kl_div(x[0], x[1], .reduction = TN_REDUCE_BATCH_MEAN), "x", "y")
OP("kl_div_mean", 0, tn_kl_div(x[0], x[1]), "x", "y")
OP("kl_div_log", 0, tn_kl_div(x[0], x[1], .log_target = true, .reduction = TN_REDUCE_SUM), "x", "y")
OP("cosine", 0, tn_cosine_similarity(x[0], x[1], 1, 0), "x", "y")
OP("cosine_broadcast", 0, tn_cosine_similarity(x[0], x[1], 0, 0.5), "x", "y")
OP("triplet", 0, tn_triplet_margin_loss(x[0], x[1], x[2]), "a", "p", "n")
OP("triplet_swap", 0,
   tn_triplet_margin_loss(x[0], x[1], x[2], .margin = 0.7, .swap = true, .reduction = TN_REDUCE_NONE), "a",
   "p", "n")
OP("attention", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2]), "q", "k", "v")
OP("attention_causal", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2], .causal = true), "q", "k", "v")
OP("attention_mask", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3], .scale = 0.3), "q",
   "k", "v", "m")
OP("attention_blind", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]), "q", "k", "v", "m")
OP("attention_blind_added", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]), "q", "k", "v",
   "m")
OP("attention_blind_fixed", 0, tn_scaled_dot_product_attention(x[0], x[1], x[2], .mask = tn_detach(x[3])),
   "q", "k", "v", "m")

static void run_op(tn_session *s, const char *where, const golden *g, const op_case *c, tn_dtype dtype,
                   double tolerance)
{
    char what[128];
    tn_tensor *x[MAX_IN] = {NULL};
    tn_clear_error(s);
    tn_step_begin(s);
    for (int i = 0; i < MAX_IN && c->in[i]; i++) {
        const nn_saved *e = golden_find(g, "%s.%s", c->name, c->in[i]);
        bool floating = e->dtype == TN_F32;
        x[i] = golden_tensor(s, e, floating ? dtype : e->dtype);
        if (floating) tn_requires_grad(x[i], true);
    }
    tn_tensor *out = c->fn(x);
    if (!out) fail_msg("%s: %s: %s", where, c->name, tn_error_text(s));
    golden_close(where, c->name, out, golden_find(g, "%s.out", c->name), tolerance);
    if (tn_dtype_of(out) == dtype) {
        tn_tensor *w = golden_tensor(s, golden_find(g, "%s.weight", c->name), dtype);
        if (tn_backward(tn_sum(tn_mul(out, w), TN_ALL, false)))
            fail_msg("%s: %s: %s", where, c->name, tn_error_text(s));
    }
    for (int i = 0; i < MAX_IN && c->in[i]; i++) {
        char name[128];
        snprintf(name, sizeof(name), "%s.gradient.%s", c->name, c->in[i]);
        if (!tn_nn_safetensors_find(&g->file, name)) continue;
        snprintf(what, sizeof(what), "the gradient of %s to %s", c->name, c->in[i]);
        golden_close(where, what, tn_gradient(x[i]), golden_find(g, "%s", name), tolerance);
    }
    tn_step_end(s);
    expect_fine(s, where);
}

TEST(operators_like_pytorch)
{
    golden g;
    golden_open(&g, "ops");
    for (int at = 0; at < PLACE_COUNT; at++) {
        tn_session *s = open_place(&PLACES[at], NULL, NULL);
        for (int i = 0; i < OP_COUNT; i++) {
            bool exact = PLACES[at].device == TN_REF;
            double f32 = OPS[i].tolerance > 0 ? OPS[i].tolerance : 2e-6;
            /* what the sanitizers watch is the same for both types */
            if (!SANITIZED || i % 2 == 0)
                run_op(s, PLACES[at].name, &g, &OPS[i], TN_F32, exact ? 1e-12 : f32);
            if (!SANITIZED || i % 2) run_op(s, PLACES[at].name, &g, &OPS[i], TN_F64, 1e-12);
        }
        tn_close(s);
    }
    golden_close_file(&g);
}

/* ---- promotion ---- */

static tn_tensor *ones_of(tn_session *s, int d, int ndim)
{
    return tn_ones(s, (tn_dtype)d, ndim, (const int64_t[]){2});
}

/* Entry `at` of the table of that name, unless PyTorch refuses there. */
static void expect_dtype(tn_session *s, const golden *g, const char *name, int at, tn_tensor *got)
{
    const nn_saved *table = golden_find(g, name);
    double *want = golden_values(table);
    int wanted = (int)want[at];
    free(want);
    if (wanted < 0) {
        tn_clear_error(s);
        return;
    }
    if (!got) fail_msg("%s, entry %d: %s", name, at, tn_error_text(s));
    if ((int)tn_dtype_of(got) != wanted)
        fail_msg("%s, entry %d (%s): %s, PyTorch's is %s", name, at,
                 tn_dtype_name((tn_dtype)(at % TN_DTYPE_COUNT)), tn_dtype_name(tn_dtype_of(got)),
                 tn_dtype_name((tn_dtype)wanted));
}

/* Powers of integers are f32 here, and integers of it in PyTorch. */
static bool alike(const char *name, int a, int b)
{
    const tn_dtype both = tn_dtype_promote((tn_dtype)a, (tn_dtype)b);
    return strcmp(name, "pow") || tn_dtype_is_float(both);
}

TEST(promotion_like_pytorch)
{
    static const struct {
        const char *name;
        tn_tensor *(*f)(tn_tensor *x, tn_tensor *y);
    } pairs[] = {{"add", tn_add},
                 {"sub", tn_sub},
                 {"mul", tn_mul},
                 {"div", tn_div},
                 {"maximum", tn_maximum},
                 {"minimum", tn_minimum},
                 {"pow", tn_pow},
                 {"eq", tn_eq},
                 {"ne", tn_ne},
                 {"lt", tn_lt},
                 {"le", tn_le},
                 {"gt", tn_gt},
                 {"ge", tn_ge},
                 {"logical_and", tn_logical_and},
                 {"logical_or", tn_logical_or},
                 {"logical_xor", tn_logical_xor}};
    static const struct {
        const char *name;
        tn_tensor *(*f)(tn_tensor *x);
    } rows[] = {{"exp", tn_exp},   {"square", tn_square},           {"sign", tn_sign},  {"neg", tn_neg},
                {"relu", tn_relu}, {"logical_not", tn_logical_not}, {"isnan", tn_isnan}};
    golden g;
    golden_open(&g, "promotion");
    tn_session *s = open_place(&PLACES[0], NULL, NULL);
    tn_step_begin(s);
    for (int a = 0; a < TN_DTYPE_COUNT; a++) {
        tn_tensor *x = ones_of(s, a, 1), *square = tn_ones(s, (tn_dtype)a, TN_SHAPE(2, 2));
        for (int b = 0; b < TN_DTYPE_COUNT; b++) {
            int at = a * TN_DTYPE_COUNT + b;
            tn_tensor *y = ones_of(s, b, 1), *none = ones_of(s, b, 0);
            for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
                char name[32];
                snprintf(name, sizeof name, "%s.0d", pairs[k].name);
                if (!alike(pairs[k].name, a, b)) {
                    assert_int_equal(tn_dtype_of(tn_pow(x, y)), TN_F32);
                    continue;
                }
                expect_dtype(s, &g, pairs[k].name, at, pairs[k].f(x, y));
                expect_dtype(s, &g, name, at, pairs[k].f(x, none));
            }
            tn_tensor *other = tn_ones(s, (tn_dtype)b, TN_SHAPE(2, 2));
            expect_dtype(s, &g, "matmul", at, tn_matmul(square, other));
            expect_dtype(s, &g, "matmul", at, tn_affine(square, other, x));
            expect_dtype(s, &g, "where", at, tn_where(ones_of(s, TN_BOOL, 1), x, y));
            expect_dtype(s, &g, "where", at, tn_concat(2, (tn_tensor *[]){x, y}, 0));
            expect_dtype(s, &g, "where", at, ones_of(s, (int)tn_dtype_promote((tn_dtype)a, (tn_dtype)b), 1));
            assert_int_equal(tn_dtype_of(tn_cast(x, (tn_dtype)b)), b);
        }
        tn_tensor *const same[] = {tn_flip(x, TN_AXES(0)), tn_tril(square, 0),
                                   tn_triu(square, 1),     tn_pad(x, 0, 1, 1, 0),
                                   tn_narrow(x, 0, 1, 1),  tn_stack(2, (tn_tensor *[]){x, x}, 0)};
        for (size_t k = 0; k < sizeof same / sizeof *same; k++) expect_dtype(s, &g, "max", a, same[k]);
        expect_dtype(s, &g, "exp", a, tn_mean(x, TN_ALL, false));
        expect_dtype(s, &g, "exp", a, tn_sigmoid(x));
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            expect_dtype(s, &g, rows[k].name, a, rows[k].f(x));
        expect_dtype(s, &g, "sum", a, tn_sum(x, TN_ALL, false));
        expect_dtype(s, &g, "prod", a, tn_prod(x, TN_ALL, false));
        expect_dtype(s, &g, "max", a, tn_max(x, TN_ALL, false));
        expect_dtype(s, &g, "argmax", a, tn_argmax(x, 0, false));
        if (a != TN_U8) { /* which PyTorch leaves u8 */
            expect_dtype(s, &g, "any", a, tn_any(x, TN_ALL, false));
            expect_dtype(s, &g, "all", a, tn_all(x, TN_ALL, false));
        }
        expect_dtype(s, &g, "cumsum", a, tn_cumsum(x, 0));
        expect_dtype(s, &g, "clamp", a, tn_clamp(x, 0, 1));
        expect_dtype(s, &g, "clamp_float", a, tn_clamp(x, 0.5, 1.5));
        expect_dtype(s, &g, "add_int", a, tn_add_scalar(x, 2));
        expect_dtype(s, &g, "add_float", a, tn_add_scalar(x, 2.5));
        expect_dtype(s, &g, "add_float", a, tn_rsub_scalar(x, 1.0f));
        expect_dtype(s, &g, "div_int", a, tn_div_scalar(x, 2));
        expect_dtype(s, &g, "gt_int", a, tn_gt_scalar(x, 2));
    }
    tn_step_end(s);
    tn_close(s);
    golden_close_file(&g);
}

/* ---- the files ---- */

TEST(files_say_where_they_are_from)
{
    static const char *const names[] = {"cnn", "ops", "optim", "transformer"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        golden g;
        golden_open(&g, names[i]);
        const char *by = tn_nn_safetensors_meta(&g.file, "made_by");
        assert_non_null(by);
        assert_int_equal(strncmp(by, "torch 2.", 8), 0);
        golden_close_file(&g);
    }
}

RUN_TESTS(NULL, NULL)
