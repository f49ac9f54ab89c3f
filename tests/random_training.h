/* random_training.h - random training runs: what one is made of, how it is drawn, and a step of it.
 *
 *   recipe   what is drawn once: layers, dtypes, optimizers; everything else is drawn from the seed as
 *            it goes
 *   run      a recipe in a session
 *
 * Read first: step. */
#pragma once

#define MAX_OUT 240
#include "check.h"

#include <tensor_extend.h>
#include <tensor_nn.h>

enum { LAYERS = 4, STEPS = 5, CLASSES = 4, VIEWS = 6 };

/* X(name, how it is made, how it is applied) */
/* clang-format off */
#define LAYER_KINDS(X) \
    X(linear, tn_linear_new(s, name, p->c, p->c), tn_linear_forward(layer, x)) \
    X(layer_norm, tn_layer_norm_new(s, name, p->c), tn_norm_forward(layer, x)) \
    X(rms_norm, tn_rms_norm_new(s, name, p->c), tn_norm_forward(layer, x)) \
    X(batch_norm, tn_batch_norm_new(s, name, p->c), tn_norm_forward(layer, x)) \
    X(group_norm, tn_group_norm_new(s, name, 2, p->c), tn_norm_forward(layer, x)) \
    X(attention, tn_multi_head_attention_new(s, name, p->c, 2, .causal = 1), tn_multi_head_attention_forward(layer, x)) \
    X(conv, tn_conv2d_new(s, name, p->c, p->c, 1), tn_squeeze(tn_conv2d_forward(layer, tn_unsqueeze(x, 2)), 2))
/* clang-format on */
typedef enum layer_kind {
#define X(name, ...) L_##name,
    LAYER_KINDS(X)
#undef X
        KINDS
} layer_kind;

static const char *const layer_names[] = {
#define X(name, ...) #name,
    LAYER_KINDS(X)
#undef X
};

/* What is drawn once. */
typedef struct recipe {
    uint64_t seed;
    int64_t n, t, c;
    int layers, steps, accumulate, optims, save_at;
    layer_kind kind[LAYERS];
    tn_dtype carried, data; /* between layers; of the input */
    double scale;           /* of the loss; the rate is divided by it, a decay multiplied */
    bool adam, ema, wide, second, clipped, tied, embedded, nesterov, slow_bias;
    bool mixed; /* layers take what is carried as it is, beside parameters in f32 */
    bool again; /* some layers stand between tn_checkpoint_begin and its end */
    int64_t budget;
    int view;
    double dropout;
} recipe;

typedef struct run {
    const recipe *p;
    tn_session *s;
    void *layer[LAYERS];
    tn_linear *head;
    tn_embed *table;
    tn_tensor *gain, *average, *count, *kept, *old;
    tn_optim *opt[2];
    result *out;
    int step;
} run;

static const tn_dtype halves[] = {TN_F32, TN_F32, TN_F16, TN_BF16};

static recipe draw(uint64_t seed)
{
    rng r = {seed * 7919};
    recipe p = {.seed = seed};
    p.n = 3 + rng_below(&r, 3);
    p.t = rng_below(&r, 2) ? 3 + rng_below(&r, 3) : 1;
    p.c = 8 << rng_below(&r, 2);
    p.layers = 1 + (int)rng_below(&r, LAYERS);
    p.steps = STEPS;
    for (int k = 0; k < p.layers; k++) p.kind[k] = (layer_kind)rng_below(&r, KINDS);
    p.carried = halves[rng_below(&r, 4)];
    p.data = halves[rng_below(&r, 4)];
    static const double scales[] = {1, 1, 1, 1e8, 1e-8, 1024};
    p.scale = scales[rng_below(&r, p.carried == TN_F16 || p.data == TN_F16 ? 3 : 6)];
    p.adam = p.scale == 1 && rng_below(&r, 2);
    p.accumulate = rng_below(&r, 4) ? 1 : 2;
    p.optims = 1 + (rng_below(&r, 4) == 0);
    p.ema = rng_below(&r, 2);
    p.wide = rng_below(&r, 4) == 0;
    p.second = rng_below(&r, 5) == 0 && p.carried == TN_F32 && p.data == TN_F32;
    p.clipped = rng_below(&r, 3) == 0;
    p.dropout = rng_below(&r, 3) ? 0 : 0.3;
    p.save_at = 1 + (int)rng_below(&r, STEPS - 1);
    p.tied = rng_below(&r, 4) == 0;
    p.embedded = rng_below(&r, 4) == 0;
    p.nesterov = rng_below(&r, 3) == 0;
    p.slow_bias = rng_below(&r, 3) == 0;
    p.view = (int)rng_below(&r, VIEWS);
    p.mixed = rng_below(&r, 2);
    return p;
}

static void say(run *r, tn_tensor *x)
{
    if (x && r->out->n < MAX_OUT) read_value(x, &r->out->out[r->out->n++]);
}

static void make(run *r, tn_session *s)
{
    const recipe *p = r->p;
    r->s = s;
    for (int k = 0; k < p->layers; k++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", k);
        switch (p->kind[k]) {
#define X(kind, made, applied)                                                                               \
    case L_##kind: r->layer[k] = made; break;
            LAYER_KINDS(X)
#undef X
        case KINDS: break;
        }
    }
    if (p->embedded) r->table = tn_embedding_new(s, "table", CLASSES, p->c);
    r->head = tn_linear_new(s, "head", p->c, CLASSES);
    r->gain = tn_param(s, "gain", tn_full(s, 1, p->wide ? TN_F64 : TN_F32, TN_SHAPE(p->c)));
    r->average = tn_buffer(s, "average", tn_zeros(s, TN_F32, TN_SHAPE(CLASSES, p->c)));
    r->count = tn_buffer(s, "count", tn_zeros(s, TN_I64, TN_SCALAR));
    double lr = (p->adam ? 1e-3 : 0.05) / p->scale;
    tn_tensor *first[64], *second[64];
    int nf = 0, ns = 0;
    for (int i = 0; i < tn_param_count(s); i++) {
        tn_tensor *x = tn_param_at(s, i);
        if (p->optims == 2 && strstr(tn_name(x), "weight"))
            second[ns++] = x;
        else
            first[nf++] = x;
    }
    tn_params a = {nf, first}, b = {ns, second};
    for (int k = 0; k < p->optims; k++)
        r->opt[k] = p->adam ? tn_adamw(s, k ? b : a, .lr = lr, .weight_decay = 0.1, .eps = 0.01,
                                       .accumulate = p->accumulate)
                            : tn_sgd(s, k ? b : a, .lr = lr, .momentum = k ? 0 : 0.5,
                                     .nesterov = !k && p->nesterov, .accumulate = p->accumulate);
    if (p->slow_bias) tn_optim_group(r->opt[0], "*bias", .lr_factor = 0.5, .weight_decay = 0.01 * p->scale);
}

static tn_tensor *apply(run *r, int k, tn_tensor *x)
{
    void *layer = r->layer[k];
    switch (r->p->kind[k]) {
#define X(kind, made, applied)                                                                               \
    case L_##kind: return applied;
        LAYER_KINDS(X)
#undef X
    case KINDS: break;
    }
    return NULL;
}

static tn_tensor *act(rng *g, tn_tensor *x)
{
    switch (rng_below(g, 8)) {
    case 0: return tn_gelu(x);
    case 1: return tn_tanh(x);
    case 2: return tn_silu(x);
    case 3: return tn_softplus(x);
    case 4: return tn_elu(x, 1.0);
    case 5: return tn_add(x, tn_sigmoid(x));
    default: return x;
    }
}

/* n items; f16 and bf16 hold each number. */
static tn_tensor *data(run *r, rng *g, int64_t n, tn_dtype dtype)
{
    float v[5 * 5 * 16];
    int64_t count = n * r->p->t * r->p->c;
    for (int64_t i = 0; i < count; i++) v[i] = (float)(rng_below(g, 65) - 32) / 16; /* in 16 bits, too */
    return tn_cast(tn_from(r->s, v, TN_F32, TN_SHAPE(n, r->p->t, r->p->c)), dtype);
}

static tn_tensor *forward(run *r, rng *structure, tn_tensor *x)
{
    const recipe *p = r->p;
    tn_tensor *h = tn_mul(p->mixed ? x : tn_cast(x, TN_F32), r->gain);
    if (p->wide) h = tn_cast(h, p->mixed ? p->carried : TN_F32);
    rng pairs = {p->again && tn_in_step(r->s) ? p->seed : 0};
    for (int l = 0; l < p->layers + p->tied; l++) {
        const int k = l % p->layers;
        const int begins = pairs.state ? (int)rng_below(&pairs, 3) : 0; /* two: one within the other */
        for (int i = 0; i < begins; i++) tn_checkpoint_begin(r->s);
        tn_tensor *y = act(structure, apply(r, k, h));
        if (p->dropout > 0 && rng_below(structure, 2)) y = tn_dropout(y, p->dropout);
        if (rng_below(structure, 2)) y = tn_add(tn_mul_scalar(y, 0.5), h);
        h = rng_below(structure, 2) ? tn_cast(tn_cast(y, p->carried), p->mixed ? p->carried : TN_F32) : y;
        for (int i = 0; i < begins; i++) tn_checkpoint_end(r->s);
    }
    return h;
}

/* Of a matrix; what it shows does not move with what is assigned to x later. */
static tn_tensor *view_of(int which, tn_tensor *x)
{
    switch (which) {
    case 0: return tn_slice(x, 1, 1, TN_END, 2);
    case 1: return tn_select(x, 0, 2);
    case 2: return tn_flip(tn_reshape(x, TN_SHAPE(-1)), 1, &(const int){0});
    case 3: return tn_detach(x);
    case 4: return tn_expand(tn_unsqueeze(x, 0), TN_SHAPE(3, -1, -1));
    default: return tn_transpose(x, 0, 1);
    }
}

enum { FINE, BAD_LABEL, BAD_SHAPES, BAD_LOSS, SAID_SO, FAULTS };

static void fail_at(run *r, int fault)
{
    if (fault == BAD_SHAPES) tn_add(r->head->weight, tn_ones(r->s, TN_F32, TN_SHAPE(3, 5)));
    if (fault == BAD_LOSS) tn_backward(r->head->weight);
    if (fault == SAID_SO) tn_fail(r->s, TN_E_ARG, "step", "no more of this");
}

/* With a fault it ends with an error, and none of what it does takes effect. */
static void step(run *r, int fault)
{
    const recipe *p = r->p;
    tn_session *s = r->s;
    /* What the program is: in most steps the same, so that tapes are answered from; what it is given: another
     * one. */
    rng structure = {p->seed}, once = {p->seed * 31 + (uint64_t)r->step},
        g = {p->seed * 131 + (uint64_t)r->step};
    bool odd = rng_below(&once, 3) == 0; /* something is unlike other steps */
    int what = odd ? (int)rng_below(&once, 16) : -1;
    int64_t n = what == 0 ? p->n - 1 : p->n;
    tn_tensor *frozen = what == 1 ? tn_param_at(s, (int)rng_below(&once, tn_param_count(s))) : NULL;
    if (frozen) tn_requires_grad(frozen, false);
    for (int k = 0; k < p->optims; k++)
        tn_optim_set_lr(r->opt[k], tn_lr_cosine(r->step, 2, 8, p->adam ? 1e-3 : 0.05 / p->scale, 0));

    if (what == 10 && !fault) tn_assign(r->gain, tn_mul_scalar(r->gain, 0.75));
    /* What stands before a call that fails by itself takes effect, and keeps its draws, where it has an
     * effect: before forward it fails, or before backward or the update where these are the first to have
     * one. */
    bool moves = what == 3 || what == 4 || what == 7 || what == 8 || what == 11;
    for (int k = 0; k < p->layers; k++) moves = moves || p->kind[k] == L_batch_norm;
    rng place = {p->seed + (uint64_t)r->step};
    const int where = fault && !moves ? (int)rng_below(&place, p->dropout > 0 ? 2 : 3) : 0;

    tn_step_begin(s);
    if (what == 11) tn_assign(r->gain, tn_add_scalar(r->gain, 0.125));
    if (where == 0) fail_at(r, fault);
    tn_tensor *x = data(r, &g, n, p->data);
    if (what == 12) tn_requires_grad(x, true);
    if (what == 2) { /* an evaluation without gradients first */
        tn_train(s, false);
        tn_no_grad_begin(s);
        say(r, tn_mean(forward(r, &(rng){p->seed}, x), TN_ALL, false));
        tn_no_grad_end(s);
        tn_train(s, true);
    }
    tn_tensor *h = forward(r, &structure, x), *view = view_of(p->view, r->head->weight);
    int32_t y[25];
    for (int64_t i = 0; i < n * p->t; i++)
        y[i] = (int32_t)rng_below(&g, CLASSES) - (rng_below(&g, 9) ? 0 : 200);
    for (int64_t i = 0; i < n * p->t; i++) y[i] = y[i] < 0 ? -100 : y[i];
    y[0] = fault == BAD_LABEL ? CLASSES + 2 : 1;
    tn_tensor *labels = tn_from(s, y, TN_I32, TN_SHAPE(n, p->t));
    if (p->embedded) h = tn_add(h, tn_embedding_forward(r->table, tn_maximum_scalar(labels, 0)));
    tn_tensor *logits = tn_linear_forward(r->head, h);
    tn_tensor *loss = tn_cross_entropy(logits, labels, .label_smoothing = rng_below(&structure, 2) ? 0.1 : 0);
    tn_tensor *valid = tn_ge(labels, tn_zeros(s, TN_I64, TN_SCALAR)); /* bool and integers mixed */
    tn_tensor *known = tn_cast(valid, p->carried);
    tn_tensor *extra = tn_mean(tn_mul(tn_square(h), tn_unsqueeze(known, -1)), TN_ALL, false);
    if (r->old) loss = tn_add(loss, tn_mse_loss(r->head->weight, r->old));
    if (what == 13) { /* what the model says without gradients is what it is to say */
        tn_no_grad_begin(s);
        tn_no_grad_begin(s);
        tn_tensor *target = tn_mul_scalar(h, 0.5);
        tn_no_grad_end(s);
        target = tn_add(target, forward(r, &(rng){p->seed}, x));
        tn_no_grad_end(s);
        loss = tn_add(loss, tn_mse_loss(h, target));
    }
    int ways = (int)rng_below(&structure, 4);
    if (where == 1) fail_at(r, fault);
    if (what == 3) tn_flush(s);
    if (what == 4) say(r, loss);
    if (what == 5) tn_watch(loss);
    if (what == 6 && !fault) {
        tn_tensor *old = r->kept;
        r->kept = tn_keep(tn_mul_scalar(logits, 2.0));
        tn_free(old);
    }
    if (what == 14 && !fault) {
        tn_tensor *old = r->old;
        r->old = tn_keep(r->head->weight);
        tn_free(old);
    }
    if (p->second) {
        tn_tensor *in = r->gain, *by;
        if (!tn_grad(loss, 1, &in, &by) && by)
            loss = tn_add(loss, tn_mul_scalar(tn_cast(tn_sum(tn_square(by), TN_ALL, false), TN_F32), 0.1));
    }
    if (what == 9) {
    } else if (ways == 0) {
        tn_backward(tn_mul_scalar(loss, p->scale));
    } else if (ways == 1) {
        tn_backward(tn_mul_scalar(tn_add(loss, tn_mul_scalar(extra, 0.1)), p->scale));
    } else { /* two, the second seen by some parameters only */
        tn_backward(tn_mul_scalar(loss, p->scale));
        if (what == 7) tn_flush(s);
        if (ways == 3) say(r, tn_gradient(r->gain));
        tn_backward(tn_mul_scalar(extra, 0.1 * p->scale));
    }
    if (what == 8) say(r, tn_gradient(r->head->weight));
    if (where == 2) fail_at(r, fault);
    tn_tensor *norm = NULL;
    for (int k = 0; k < p->optims; k++) {
        if (p->clipped && (what != 9 || p->accumulate > 1))
            norm = tn_clip_grad_norm(r->opt[k], 0.1 * p->scale);
        if (what != 9 || rng_below(&once, 2)) tn_optim_step(r->opt[k]);
    }
    if (what == 15) { /* again, with the new weights; gradients add up */
        tn_tensor *again = tn_linear_forward(r->head, tn_detach(h));
        tn_backward(tn_mul_scalar(tn_cross_entropy(again, labels), p->scale));
        tn_optim_step(r->opt[0]);
    }
    tn_assign(r->count, tn_add(r->count, tn_sum(valid, TN_ALL, false)));
    if (p->ema)
        tn_assign(r->average, tn_lerp(r->average, r->head->weight, tn_full(s, 0.25, TN_F32, TN_SCALAR)));
    /* The view was made before the update, and shows what was there. */
    tn_tensor *before = tn_sum(tn_mul(view, view_of(p->view, r->average)), TN_ALL, false);
    say(r, tn_add(loss, tn_mul_scalar(before, 0.0)));
    say(r, before);
    if (norm && what != 15) say(r, norm); /* the gradients it was made of are overwritten in 15 */
    if (what != 9) say(r, tn_gradient(r->gain));
    if (what == 12) say(r, tn_gradient(x));
    tn_step_end(s);
    if (frozen) tn_requires_grad(frozen, true);
}
