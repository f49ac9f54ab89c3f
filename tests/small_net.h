/* small_net.h - a small network that is trained to see what holds around training, whatever is trained: it
 * has a convolution, batch norm, dropout, linear, cross-entropy and AdamW. A run is a few of its steps in a
 * session of its own; two runs of the same options must read the same losses, bit for bit. Read first: train.
 */
#pragma once

#include "tests/test.h"
#include "include/tensor_nn.h"

enum { BATCH = 8, SIDE = 6, CLASSES = 3, STEPS = 6 };

/* ---- the network ---- */

struct net {
    tn_conv *conv;
    tn_norm *norm;
    tn_linear *fc;
    tn_optim *opt;
};

static inline void make_net(tn_session *s, struct net *n)
{
    n->conv = tn_conv2d_new(s, "conv", 1, 4, 3, .pad = 1);
    n->norm = tn_batch_norm_new(s, "norm", 4);
    n->fc = tn_linear_new(s, "fc", SIDE * SIDE * 4, CLASSES);
    n->opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2, .weight_decay = 0.01);
}

/* Images and labels of step i, the same for everyone. */
static inline void make_batch(int step, int items, float *x, int32_t *y)
{
    rng r = {(uint64_t)step};
    for (int i = 0; i < items * SIDE * SIDE; i++) x[i] = (float)rng_real(&r, -0.5, 0.5);
    for (int i = 0; i < items; i++) y[i] = (i + step) % CLASSES;
}

static inline tn_tensor *forward(tn_session *s, const struct net *n, tn_tensor *x)
{
    (void)s;
    tn_tensor *h = tn_relu(tn_norm_forward(n->norm, tn_conv2d_forward(n->conv, x)));
    return tn_linear_forward(n->fc, tn_flatten(tn_dropout(h, 0.2), 1));
}

/* One training step; NaN when something failed. */
static inline double train_step(tn_session *s, const struct net *n, int step, int items)
{
    float x[BATCH * SIDE * SIDE];
    int32_t y[BATCH];
    make_batch(step, items, x, y);
    tn_step_begin(s);
    tn_tensor *logits = forward(s, n, tn_from(s, x, TN_F32, TN_SHAPE(items, SIDE, SIDE, 1)));
    tn_tensor *loss = tn_cross_entropy(logits, tn_from(s, y, TN_I32, TN_SHAPE(items)));
    tn_backward(loss);
    tn_optim_step(n->opt);
    double value = tn_item(loss);
    tn_step_end(s);
    return value;
}

struct run {
    int threads;
    tn_mode mode;
    double loss[STEPS];
    int status, closed;
    char text[512];
};

static inline void *train(void *arg)
{
    struct run *r = arg;
    tn_session *s =
        tn_open(.device = TN_CPU, .mode = r->mode, .seed = 3, .threads = r->threads, .log = quiet);
    if (!s) {
        r->status = TN_E_NOMEM;
        return NULL;
    }
    struct net n;
    make_net(s, &n);
    for (int i = 0; i < STEPS; i++) r->loss[i] = train_step(s, &n, i, BATCH);
    r->status = tn_error(s);
    snprintf(r->text, sizeof r->text, "%s", tn_error_text(s));
    r->closed = tn_close(s);
    return NULL;
}

static inline void assert_same_run(const struct run *a, const struct run *b)
{
    assert_string_equal(b->text, "");
    assert_int_equal(b->status, TN_OK);
    assert_int_equal(b->closed, TN_OK);
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_true(isfinite(b->loss[STEPS - 1]));
}
