/* checkpoint_rig.h - a training run of a small net, which can be saved and go on: with one optimizer, with
 * two, with gradients that are summed.
 *
 * Read first: struct run and go_on. */
#pragma once

#include "tests/folder.h"
#include "tests/golden.h"

enum { ITEMS = 40, SIDE = 6, CLASSES = 3, BATCH = 8 };

typedef enum run_kind { ADAMW, SGD, TWO, ACCUMULATE, RUN_KINDS } run_kind;

typedef struct run {
    tn_session *s;
    tn_conv *conv;
    tn_norm *norm;
    tn_linear *fc;
    tn_tensor *wide; /* an f64 parameter */
    tn_optim *o[2];
    tn_dataset *data;
    tn_loader *loader; /* the pass that is under way */
    run_kind kind;
} run;

static inline tn_tensor *forward(const run *r, tn_tensor *x)
{
    tn_tensor *h = tn_relu(tn_norm_forward(r->norm, tn_conv2d_forward(r->conv, x)));
    h = tn_dropout(tn_flatten(tn_max_pool2d(h, 2), 1), 0.2);
    return tn_linear_forward(r->fc, h);
}

static inline void open_run(run *r, const place *at, run_kind kind)
{
    static float x[ITEMS * SIDE * SIDE];
    static int32_t y[ITEMS];
    rng g = {5};
    for (int i = 0; i < ITEMS * SIDE * SIDE; i++) x[i] = (float)rng_real(&g, -1, 1);
    for (int i = 0; i < ITEMS; i++) y[i] = (int32_t)rng_below(&g, CLASSES);
    *r = (run){.kind = kind, .s = open_place(at, NULL, NULL)};
    tn_session *s = r->s;
    r->data = tn_dataset_from(s, x, y, ITEMS, TN_SHAPE(SIDE, SIDE, 1));
    r->conv = tn_conv2d_new(s, "conv", 1, 4, 3, .pad = 1);
    r->norm = tn_batch_norm_new(s, "norm", 4);
    r->fc = tn_linear_new(s, "fc", 3 * 3 * 4, CLASSES);
    r->wide = tn_param(s, "wide", tn_full(s, 1.5, TN_F64, TN_SHAPE(2)));
    if (kind == SGD) {
        r->o[0] = tn_sgd(s, tn_all_params(s), .lr = 0.05, .momentum = 0.9, .dampening = 0.1);
    } else if (kind == TWO) {
        r->o[0] = tn_adamw(s, TN_PARAMS(r->fc->weight, r->fc->bias, r->wide), .lr = 0.01);
        r->o[1] = tn_sgd(s, TN_PARAMS(r->conv->weight, r->conv->bias), .lr = 0.05, .momentum = 0.5);
    } else {
        r->o[0] = tn_adamw(s, tn_all_params(s), .lr = 0.01, .weight_decay = 0.1,
                           .accumulate = kind == ACCUMULATE ? 4 : 1);
        tn_optim_group(r->o[0], "*.bias", .lr_factor = 2);
    }
    expect_fine(s, at->name);
}

static inline void close_run(run *r) { assert_int_equal(tn_close(r->s), TN_OK); }

/* n steps of passes over the data, going on within the open one; the loss of each into `loss` (NULL:
 * nowhere). */
static inline void go_on(run *r, int n, double *loss)
{
    tn_batch b;
    for (int done = 0; done < n;) {
        if (!r->loader) r->loader = tn_loader_open(r->data, .batch = BATCH, .shuffle = true);
        assert_non_null(r->loader);
        if (!tn_next(r->loader, &b)) {
            r->loader = NULL;
            continue;
        }
        tn_step_begin(r->s);
        tn_tensor *e = tn_cross_entropy(forward(r, b.x), b.y);
        if ((b.number + 1) % 3) e = tn_add(e, tn_cast(tn_sum(tn_square(r->wide), TN_ALL, false), TN_F32));
        tn_backward(e);
        for (int k = 0; k < 2; k++)
            if (r->o[k]) tn_optim_step(r->o[k]);
        if (loss) loss[done] = tn_item(e);
        tn_step_end(r->s);
        expect_fine(r->s, "a step");
        done++;
    }
}
