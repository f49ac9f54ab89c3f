/* test_scaling.c - loss scaling: a step whose gradients overflow leaves no trace but the scale.
 *
 * A run in which some steps have an infinite or a NaN loss is set beside one that never takes these steps:
 * bit for bit they have the same weights, moments, counts, sums and running statistics, whatever the
 * optimizer, and the scale goes as a few lines of plain C say. Start with the_same. */
#include <math.h>

#include <tensor_nn.h>

#include "tests/folder.h"
#include "tests/golden.h"

enum { STEPS = 18, BATCH = 6, IN = 5, HIDDEN = 8, CLASSES = 3, WORDS = 7, INTERVAL = 3, START = 4096 };

typedef enum kind { SGD, ADAMW, ACCUMULATED, CLIPPED, TWO, AVERAGED, LOOKED_UP, LION, KINDS } kind;

typedef struct net {
    tn_session *s;
    kind kind;
    tn_embed *table;
    tn_linear *in, *out;
    tn_norm *norm;
    tn_optim *o[2], *ema;
} net;

static void open_net(net *m, const place *at, kind k, tn_precision precision)
{
    tn_session *s = tn_open(.device = at->device == TN_CPU ? subject_device() : at->device, .mode = at->mode,
                            .seed = 3, .threads = 2, .log = quiet, .precision = precision);
    *m = (net){.s = s, .kind = k};
    m->table = tn_embedding_new(s, "table", WORDS, IN, .sparse = k == LOOKED_UP ? TN_SPARSE_ADAM : TN_DENSE);
    m->in = tn_linear_new(s, "in", IN, HIDDEN);
    m->norm = tn_batch_norm_new(s, "norm", HIDDEN);
    m->out = tn_linear_new(s, "out", HIDDEN, CLASSES);
    if (k == TWO) {
        m->o[0] = tn_adam(s, TN_PARAMS(m->in->weight, m->in->bias), .lr = 0.02);
        m->o[1] = tn_rmsprop(s, TN_PARAMS(m->out->weight, m->norm->weight), .lr = 0.02, .momentum = 0.5);
    } else if (k == SGD) {
        m->o[0] = tn_sgd(s, tn_all_params(s), .lr = 0.1, .momentum = 0.9, .dampening = 0.1);
    } else if (k == LION) {
        m->o[0] = tn_lion(s, tn_all_params(s), .lr = 0.01, .weight_decay = 0.1);
    } else {
        m->o[0] = tn_adamw(s, tn_all_params(s), .lr = 0.02, .weight_decay = 0.1,
                           .accumulate = k == ACCUMULATED ? 2 : 1);
    }
    if (k == AVERAGED) m->ema = tn_ema(s, tn_all_params(s), .decay = 0.5);
    tn_set_loss_scale(s, START, INTERVAL);
    expect_fine(s, at->name);
}

/* Step i, whose loss is multiplied by `times`, a value, as plans may depend on numbers. */
static void step(const net *m, int i, double times)
{
    int64_t word[BATCH];
    int32_t label[BATCH];
    rng g = {(uint64_t)i + 100};
    for (int k = 0; k < BATCH; k++) {
        word[k] = rng_below(&g, WORDS);
        label[k] = (int32_t)rng_below(&g, CLASSES);
    }
    tn_step_begin(m->s);
    tn_tensor *x = tn_embedding_forward(m->table, tn_from(m->s, word, TN_I64, TN_SHAPE(BATCH)));
    x = tn_relu(tn_norm_forward(m->norm, tn_linear_forward(m->in, x)));
    tn_tensor *y = tn_linear_forward(m->out, x);
    tn_tensor *loss = tn_cross_entropy(y, tn_from(m->s, label, TN_I32, TN_SHAPE(BATCH)));
    tn_backward(tn_mul(loss, tn_from(m->s, &(float){(float)times}, TN_F32, TN_SCALAR)));
    if (m->kind == CLIPPED) tn_clip_grad_norm(m->o[0], 0.1);
    for (int k = 0; k < 2; k++)
        if (m->o[k]) tn_optim_step(m->o[k]);
    if (m->kind == LOOKED_UP) tn_embedding_step(m->table, .lr = 0.05);
    if (m->ema) tn_optim_step(m->ema);
    tn_step_end(m->s);
    expect_fine(m->s, "a step");
}

/* All that a checkpoint has of the two, but for the scale and the generator. */
static void expect_same(const char *where, const net *a, const net *b)
{
    nn_safetensors f[2];
    nn_why why = {0};
    const char *path[2] = {in_base("a"), in_base("b")};
    tn_save(a->s, path[0]);
    tn_save(b->s, path[1]);
    expect_fine(a->s, where);
    expect_fine(b->s, where);
    for (int i = 0; i < 2; i++)
        if (tn_nn_safetensors_read(path[i], &f[i], &why)) fail_msg("%s", why.text);
    assert_int_equal(f[0].n, f[1].n);
    for (int i = 0; i < f[0].n; i++) {
        const nn_saved *x = &f[0].saved[i], *y = &f[1].saved[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->bytes, y->bytes);
        if (memcmp(x->data, y->data, x->bytes)) fail_msg("%s: '%s' differs", where, x->name);
    }
    for (int i = 0; i < 2; i++) tn_nn_safetensors_free(&f[i]);
}

static void the_same_on(const place *at, kind k, uint64_t seed)
{
    char where[80];
    rng g = {seed * KINDS + k};
    net a, b, c;
    tn_stats before = {.size = sizeof before}, after = before;
    double scale = START;
    int good = 0, skipped = 0;
    snprintf(where, sizeof where, "%s, kind %d", at->name, k);
    open_net(&a, at, k, TN_PRECISION_F16);
    open_net(&b, at, k, TN_PRECISION_F16);
    open_net(&c, at, k, TN_PRECISION_F16);
    for (int i = 0; i < STEPS; i++) {
        const bool window =
            k == ACCUMULATED && i % 2 == 0; /* the first of two, whose sum is dropped with it */
        const double bad[] = {1, 1, 1, 1, INFINITY, NAN};
        const double times = window ? 1 : bad[rng_below(&g, 6)];
        const tn_scaling was = tn_loss_scaling(a.s);
        tn_get_stats(a.s, &before);
        step(&a, i, times);
        tn_get_stats(a.s, &after);
        if (at->mode == TN_FUSED && i > 6) { /* no sync in the middle, nothing planned anew */
            assert_int_equal(after.runs - before.runs, 1);
            if (after.plans != before.plans) fail_msg("%s, step %d: planned anew", where, i);
        }
        if (was.scale != (i ? scale : 1) || was.skipped != skipped || (i && was.good != good))
            fail_msg("%s, step %d: scale %g, %lld good, %lld skipped; should be %g, %d, %d", where, i,
                     was.scale, (long long)was.good, (long long)was.skipped, scale, good, skipped);
        const bool fine = isfinite(times);
        if (fine && !(k == ACCUMULATED && i + 1 < STEPS && i % 2 == 0)) {
            const int from = k == ACCUMULATED ? i - 1 : i;
            for (int j = from < 0 ? 0 : from; j <= i; j++) {
                tn_set_loss_scale(b.s, scale, 1000);
                step(&b, j, 1);
            }
        }
        if (!window && !fine) {
            scale /= 2;
            good = 0;
            skipped++;
        } else if (!window && ++good == INTERVAL) {
            scale *= 2;
            good = 0;
        }
        if (i == STEPS / 2 + 1) { /* a run that goes on from a checkpoint */
            assert_int_equal(tn_save(a.s, in_base("half")), TN_OK);
            assert_int_equal(tn_load(c.s, in_base("half")), TN_OK);
        } else if (i > STEPS / 2 + 1) {
            step(&c, i, times);
        }
    }
    assert_true(skipped > 2);
    const tn_scaling x = tn_loss_scaling(a.s), y = tn_loss_scaling(c.s);
    assert_true(x.scale == scale && y.scale == scale && x.good == y.good && x.skipped == y.skipped);
    if (k != ACCUMULATED) expect_same(where, &a, &b); /* there the first of two has moved statistics */
    expect_same(where, &a, &c);
    assert_int_equal(tn_close(a.s), 0);
    assert_int_equal(tn_close(b.s), 0);
    assert_int_equal(tn_close(c.s), 0);
}

TEST(the_same)
{
    needs_cjson();
    for (int at = 1; at < PLACE_COUNT; at++)
        for (int k = 0; k < KINDS; k += PLACES[at].mode == TN_EAGER ? 3 : 1)
            the_same_on(&PLACES[at], (kind)k, 1);
}

/* In f32 and bf16 nothing is scaled; f16 gives nearly what f32 gives; what cannot be is refused. */
TEST(beside_f32)
{
    static const tn_precision all[] = {TN_PRECISION_F32, TN_PRECISION_BF16, TN_PRECISION_F16};
    float w[3][HIDDEN * CLASSES];
    for (int k = 0; k < 3; k++) {
        net m;
        open_net(&m, &PLACES[2], SGD, all[k]);
        for (int i = 0; i < 8; i++) step(&m, i, 1);
        const tn_scaling c = tn_loss_scaling(m.s);
        assert_true(k < 2 ? c.scale == 1 && !c.good : c.scale == 4 * START && c.good == 2);
        tn_read(m.out->weight, TN_F32, w[k], sizeof w[k]);
        fails_with(m.s, TN_E_ARG, "scale 0 must be above 0", tn_set_loss_scale(m.s, 0, 0));
        fails_with(m.s, TN_E_ARG, "scale 1e+99", tn_set_loss_scale(m.s, 1e99, 0));
        fails_with(m.s, TN_E_ARG, "interval -1", tn_set_loss_scale(m.s, 1, -1));
        assert_int_equal(tn_close(m.s), 0);
    }
    double off[3] = {0};
    for (int k = 1; k < 3; k++)
        for (int i = 0; i < HIDDEN * CLASSES; i++) off[k] = fmax(off[k], fabs(w[k][i] - w[0][i]));
    if (!(off[2] > 0 && off[2] < 0.004 && off[2] < off[1]))
        fail_msg("f16 is off by %g, bf16 by %g", off[2], off[1]);
}

RUN_TESTS(make_base, drop_base)
