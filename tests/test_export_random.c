/* test_export_random.c - models that are drawn by chance - layers, activations, losses, optimizers -, as
 * training steps and as forward passes in files of C, beside the sessions that wrote them: losses, and what
 * comes back.
 *
 *     test_export_random [--models N] [--seed S] [--tcc 1]
 *
 * Read first: trains_on. */
#include <tensor_nn.h>

#include "tests/export_rig.h"
#include "tests/check.h"

enum { MOST_LAYERS = 7, N = 4, CLASSES = 5, VALUES = N * 12 * 12 * 16, BEFORE = 2, STEPS = 6 };

#if defined(TN_ASAN)
static int n_models = 2;
#else
static int n_models = 8;
#endif
static uint64_t first_seed = 1;

typedef enum kind {
    CONV,
    POOL,
    MEANS,
    NORM,
    ACT,
    DROPOUT,
    BESIDE, /* x + an activation of x */
    LINEAR,
    ATTENTION,
    BLOCK,
    RECURRENT,
    KINDS
} kind;

typedef struct layer {
    kind kind;
    int how, window, stride, pad;
    void *at;
} layer;

/* Images [N, h, w, c], or sequences of tokens [N, h], which become [N, h, c]. */
typedef struct net {
    tn_session *s;
    uint64_t seed;
    bool tokens, clipped, squares;
    int64_t h, w, c, labels;
    int n;
    layer layer[MOST_LAYERS];
    tn_embed *table;
    tn_linear *last;
    tn_optim *optim;
} net;

static void *make_layer(net *m, rng *g, layer *l, int64_t *h, int64_t *w, int64_t *c)
{
    char name[16];
    const int64_t wide[] = {3, 8, 16, 16, 20};
    snprintf(name, sizeof name, "l%d", (int)(l - m->layer));
    switch (l->kind) {
    case CONV: {
        const int64_t in = *c, groups = in % 4 == 0 && !rng_below(g, 4) ? 4 : 1;
        *c = groups > 1 ? in : wide[rng_below(g, 5)];
        l->window = *h > 4 ? 1 + 2 * (int)rng_below(g, 2) : 1;
        l->stride = *h > 4 && l->window > 1 && !rng_below(g, 3) ? 2 : 1;
        l->pad = l->window > 1 ? (int)rng_below(g, 2) : 0;
        *h = (*h + 2 * l->pad - l->window) / l->stride + 1;
        *w = (*w + 2 * l->pad - l->window) / l->stride + 1;
        return tn_conv2d_new(m->s, name, in, *c, l->window, .stride = l->stride, .pad = l->pad,
                             .groups = (int)groups, .no_bias = rng_below(g, 2));
    }
    case POOL:
        l->window = 2;
        l->stride = 1 + (int)rng_below(g, 2);
        *h = (*h - 2) / l->stride + 1;
        *w = (*w - 2) / l->stride + 1;
        return NULL;
    case NORM:
        return l->how == 0   ? tn_batch_norm_new(m->s, name, *c)
               : l->how == 1 ? tn_layer_norm_new(m->s, name, *c)
               : l->how == 2 ? tn_rms_norm_new(m->s, name, *c)
                             : tn_group_norm_new(m->s, name, *c % 4 ? 1 : 4, *c);
    case LINEAR: {
        const int64_t in = *c;
        *c = wide[rng_below(g, 5)];
        return tn_linear_new(m->s, name, in, *c, .no_bias = rng_below(g, 2));
    }
    case ATTENTION:
        return tn_multi_head_attention_new(m->s, name, *c, 2, .causal = l->how % 2,
                                           .dropout = l->how == 3 ? 0.1 : 0);
    case BLOCK: return tn_transformer_block_new(m->s, name, *c, 2, .causal = true, .gelu_tanh = l->how % 2);
    case RECURRENT: {
        const int64_t in = *c;
        *c = 8;
        return l->how % 2 ? tn_lstm_new(m->s, name, in, *c) : tn_gru_new(m->s, name, in, *c);
    }
    case MEANS:
    case ACT:
    case DROPOUT:
    case BESIDE:
    case KINDS: break;
    }
    return NULL;
}

static tn_optim *make_optim(net *m, rng *g)
{
    const tn_params all = tn_all_params(m->s);
    switch (rng_below(g, 5)) {
    case 0: return tn_sgd(m->s, all, .lr = 0.02);
    case 1: return tn_rmsprop(m->s, all, .lr = 1e-3, .eps = 0.01);
    case 2: return tn_lion(m->s, all, .lr = 1e-5);
    case 3: return tn_adam(m->s, all, .lr = 1e-3, .eps = 0.01);
    default: return tn_adamw(m->s, all, .lr = 1e-3, .weight_decay = 0.1, .eps = 0.01);
    }
}

static void make_model(net *m, uint64_t seed)
{
    static const kind image[] = {CONV, CONV, CONV,    POOL,   NORM,  NORM,
                                 ACT,  ACT,  DROPOUT, BESIDE, MEANS, LINEAR},
                      token[] = {LINEAR, NORM,      NORM,      ACT,   DROPOUT,
                                 BESIDE, ATTENTION, ATTENTION, BLOCK, RECURRENT};
    rng g = {seed * 7919};
    *m = (net){.seed = seed, .s = tn_open(.device = TN_CPU, .seed = seed, .threads = 2, .log = quiet)};
    m->tokens = rng_below(&g, 3) == 0;
    m->h = m->tokens ? 3 + rng_below(&g, 8) : 6 + rng_below(&g, 7);
    m->w = m->tokens ? 1 : 6 + rng_below(&g, 7);
    m->c = m->tokens ? 16 : (const int64_t[]){1, 3, 16}[rng_below(&g, 3)];
    m->n = 2 + (int)rng_below(&g, MOST_LAYERS - 1);
    m->clipped = rng_below(&g, 3) == 0;
    m->squares = rng_below(&g, 4) == 0;
    int64_t h = m->h, w = m->w, c = m->c;
    if (m->tokens) m->table = tn_embedding_new(m->s, "table", CLASSES, c);
    TN_EACH(l, m->layer, m->n) {
        l->kind = m->tokens ? token[rng_below(&g, 10)] : image[rng_below(&g, 12)];
        l->how = (int)rng_below(&g, 4);
        if (l->kind == POOL && (h < 4 || w < 4)) l->kind = ACT;
        if ((l->kind == ATTENTION || l->kind == BLOCK) && c % 2) l->kind = ACT;
        if (l->kind == CONV && w <= 4) l->kind = ACT;
        l->at = make_layer(m, &g, l, &h, &w, &c);
    }
    const int64_t in = m->tokens ? c : h * w * c;
    m->last = tn_linear_new(m->s, "last", in, CLASSES);
    m->labels = m->tokens ? N * m->h : N;
    m->optim = make_optim(m, &g);
}

static tn_tensor *act(int how, tn_tensor *x)
{
    return how == 0 ? tn_relu(x) : how == 1 ? tn_gelu(x) : how == 2 ? tn_silu(x) : tn_tanh(x);
}

static tn_tensor *apply(const layer *l, tn_tensor *x)
{
    switch (l->kind) {
    case CONV: return tn_conv2d_forward(l->at, x);
    case POOL:
        return l->how % 2 ? tn_max_pool2d(x, 2, .stride = l->stride)
                          : tn_avg_pool2d(x, 2, .stride = l->stride);
    case MEANS: return tn_sub(x, tn_mean(x, TN_AXES(-1), true));
    case NORM: return tn_norm_forward(l->at, x);
    case ACT: return act(l->how, x);
    case DROPOUT: return tn_dropout(x, 0.2);
    case BESIDE: return tn_add(x, act(l->how, x));
    case LINEAR: return tn_linear_forward(l->at, x);
    case ATTENTION: return tn_multi_head_attention_forward(l->at, x);
    case BLOCK: return tn_transformer_block_forward(l->at, x);
    case RECURRENT: return tn_recurrent_forward(l->at, x, NULL);
    case KINDS: break;
    }
    return NULL;
}

/* Images or tokens, and labels; of step `at`. */
typedef struct batch {
    float image[VALUES];
    int32_t token[N * 16], label[N * 16];
} batch;

static void draw(const net *m, int at, batch *b)
{
    rng g = {m->seed * 1000 + (uint64_t)at};
    for (int64_t i = 0; i < N * m->h * m->w * m->c && !m->tokens; i++)
        b->image[i] = (float)rng_real(&g, -1, 1);
    for (int i = 0; i < N * 16; i++) b->token[i] = (int32_t)rng_below(&g, CLASSES);
    for (int i = 0; i < N * 16; i++) b->label[i] = (int32_t)rng_below(&g, CLASSES);
}

/* The logits; what the file is given is named. */
static tn_tensor *forward(const net *m, const batch *b)
{
    tn_tensor *x = m->tokens ? tn_from(m->s, b->token, TN_I32, TN_SHAPE(N, m->h))
                             : tn_from(m->s, b->image, TN_F32, TN_SHAPE(N, m->h, m->w, m->c));
    tn_export_input(x, "x");
    if (m->tokens) x = tn_embedding_forward(m->table, x);
    for (int i = 0; i < m->n; i++) x = apply(&m->layer[i], x);
    x = m->tokens ? tn_reshape(x, TN_SHAPE(m->labels, -1)) : tn_flatten(x, 1);
    return tn_linear_forward(m->last, x);
}

static double step(const net *m, const batch *b)
{
    tn_step_begin(m->s);
    tn_tensor *y = tn_from(m->s, b->label, TN_I32, TN_SHAPE(m->labels)), *x = forward(m, b);
    tn_export_input(y, "label");
    tn_tensor *loss = m->squares ? tn_mse_loss(x, tn_one_hot(y, CLASSES)) : tn_cross_entropy(x, y);
    tn_export_output(loss, "loss");
    tn_backward(loss);
    if (m->clipped) tn_clip_grad_norm(m->optim, 0.5);
    tn_optim_step(m->optim);
    tn_tensor *kept = tn_keep(loss);
    tn_step_end(m->s);
    const double v = tn_item(kept);
    tn_free(kept);
    return v;
}

#define OF "seed %llu: "
#define CHECK(m)                                                                                             \
    do {                                                                                                     \
        if (tn_error((m)->s)) fail_msg(OF "%s", (unsigned long long)(m)->seed, tn_error_text((m)->s));       \
    } while (0)

static const void *given(const net *m, const batch *b)
{
    return m->tokens ? (const void *)b->token : (const void *)b->image;
}

/* The session's further steps beside the file's; then a session that takes over from the file. */
static void trains_on(net *m)
{
    static batch b;
    for (int i = 0; i < BEFORE; i++) {
        draw(m, i, &b);
        if (i == BEFORE - 1) tn_export_begin(m->s, in_base("model.c"));
        step(m, &b);
    }
    tn_export_end(m->s);
    CHECK(m);
    model file = load(true);
    for (int i = BEFORE; i < BEFORE + STEPS; i++) {
        draw(m, i, &b);
        if (i == BEFORE + 2 && (m->tokens || !m->squares)) { /* an index out of range, which moves nothing */
            int32_t *bad = m->tokens ? &b.token[1] : &b.label[1], right = *bad;
            for (*bad = -1; *bad <= CLASSES; *bad += CLASSES + 1)
                assert_true(isnan(file.step(file.m, given(m, &b), b.label)));
            *bad = right;
        }
        const double own = step(m, &b), its = (double)file.step(file.m, given(m, &b), b.label);
        if (!(fabs(own - its) <= 1e-4 * (1 + fabs(own))))
            fail_msg(OF "step %d: the file's loss is %.9g, the session's %.9g", (unsigned long long)m->seed,
                     i, its, own);
    }
    save_checkpoint(&file, "back.safetensors");
    unload(&file);
    net back;
    make_model(&back, m->seed);
    tn_load(back.s, in_base("back.safetensors"));
    CHECK(&back);
    draw(m, BEFORE + STEPS, &b);
    for (int i = 0; i < 2; i++) {
        const double own = step(m, &b), its = step(&back, &b);
        if (!(fabs(own - its) <= 1e-4 * (1 + fabs(own))))
            fail_msg(OF "back again: the loss is %.9g, not %.9g", (unsigned long long)m->seed, its, own);
    }
    assert_int_equal(tn_rng_draw(back.s), tn_rng_draw(m->s));
    tn_save(m->s, in_base("stayed.safetensors")); /* the counts are the same */
    tn_save(back.s, in_base("back.safetensors"));
    assert_int_equal(run("head -c 300 stayed.safetensors >a && head -c 300 back.safetensors >b && cmp a b"),
                     0);
    tn_close(back.s);
}

static void infers(net *m)
{
    static batch b;
    float own[N * 16 * CLASSES], its[N * 16 * CLASSES];
    draw(m, 100, &b);
    tn_train(m->s, false);
    tn_export_begin(m->s, in_base("model.c"));
    tn_step_begin(m->s);
    tn_tensor *y = forward(m, &b), *kept = tn_keep(y);
    tn_export_output(y, "logits");
    tn_step_end(m->s);
    tn_export_end(m->s);
    tn_read(kept, TN_F32, own, (size_t)(m->labels * CLASSES) * sizeof *own);
    CHECK(m);
    model file = load(false);
    assert_int_equal(file.forward(file.m, given(m, &b), its), 0);
    for (int i = 0; i < m->labels * CLASSES; i++)
        if (!(fabsf(own[i] - its[i]) <= 1e-4f * (1 + fabsf(own[i]))))
            fail_msg(OF "logit %d is %.9g, the session's %.9g", (unsigned long long)m->seed, i,
                     (double)its[i], (double)own[i]);
    b.token[0] = -1;
    if (m->tokens) assert_int_equal(file.forward(file.m, given(m, &b), its), 1);
    unload(&file);
}

TEST(random_models_train_on_and_infer_as_their_sessions_do)
{
    for (int i = 0; i < n_models; i++) {
        net m;
        make_model(&m, first_seed + (uint64_t)i);
        CHECK(&m);
        trains_on(&m);
        infers(&m);
        assert_int_equal(tn_close(m.s), 0);
    }
}

int main(int argc, char **argv)
{
    OPTION(n_models, "models");
    OPTION(first_seed, "seed");
    choose_compiler(argc, argv);
    return run_all_tests(make_base, drop_base);
}
