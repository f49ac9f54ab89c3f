/* explain_rig.h - a session whose log is kept, a small model to train in it, and what is told about the step.
 * Read first: train. Its lines stand in this file, and the texts name them so. */
#pragma once

#include "tests/test.h"
#include "tests/rig.h"
#include "tests/said.h"

#include "src/check/check.h"
#include "src/report/view.h"

enum { BATCH = 256, WIDTH = 512, CLASSES = 10 };

static inline tn_session *open_as(tn_mode mode, int threads)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .threads = threads, .seed = 4, .log = hear);
    assert_non_null(s);
    forget();
    return s;
}

typedef struct model {
    tn_session *s;
    tn_linear *in, *out;
    tn_norm *norm;
    tn_optim *opt;
    tn_tensor *x, *y;
    int line_of_read; /* 0: the loss is not read */
} model;

static inline model make(tn_session *s)
{
    static int32_t label[BATCH];
    model m = {.s = s};
    for (int i = 0; i < BATCH; i++) label[i] = i % CLASSES;
    m.in = tn_linear_new(s, "in", WIDTH, WIDTH);
    m.norm = tn_layer_norm_new(s, "norm", WIDTH);
    m.out = tn_linear_new(s, "out", WIDTH, CLASSES);
    m.opt = tn_adamw(s, tn_all_params(s), .lr = 1e-3);
    m.x = tn_keep(tn_randn(s, TN_F32, TN_SHAPE(BATCH, WIDTH)));
    m.y = tn_keep(tn_from(s, label, TN_I32, TN_SHAPE(BATCH)));
    tn_set_name(m.x, "batch");
    return m;
}

/* A step; `read`: its loss is read before backward. */
static inline double train(model *m, bool read)
{
    double v = 0;
    tn_step_begin(m->s);
    tn_tensor *z = tn_linear_forward(m->in, m->x);
    tn_set_name(z, "z");
    tn_tensor *h = tn_gelu(tn_norm_forward(m->norm, z));
    tn_tensor *loss = tn_cross_entropy(tn_linear_forward(m->out, h), m->y);
    tn_set_name(loss, "loss");
    m->line_of_read = __LINE__ + 1;
    if (read) v = tn_item(loss);
    tn_backward(loss);
    tn_optim_step(m->opt);
    if (!read) tn_watch(loss);
    tn_step_end(m->s);
    assert_string_equal(tn_error_text(m->s), "");
    return v;
}

static inline char *explained(tn_session *s)
{
    static char *last;
    free(last);
    PRINTED(text, f) assert_int_equal(tn_explain(s, f), 0);
    return last = text;
}

static inline void has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("no '%s' in\n%s", part, text);
}
