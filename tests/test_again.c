/* test_again.c - checkpoints of tn_checkpoint_begin: the same losses and gradients to the bit, draws and
 * running statistics included, from less memory. Start with the_same_bits. */
#include "tests/rig.h"
#include "tests/said.h"
#include "tests/long/ulp_error.h"

enum { STEPS = 4, LAYERS = 3, BATCH = 4, TIME = 32, WIDTH = 32 };

typedef struct model {
    tn_transformer_block *block[LAYERS];
    tn_conv *conv[LAYERS];
    tn_norm *norm[LAYERS];
    tn_recurrent *lstm;
    tn_linear *out;
    tn_optim *opt;
} model;

typedef struct way {
    bool again, nested, read, change; /* change: only every second step has checkpoints */
    int steps;                        /* 0: STEPS */
    double budget;                    /* MB; 0: none */
} way;

enum { BLOCKS, IMAGES, SEQUENCE, KINDS };

static void make(tn_session *s, model *m, int kind)
{
    char name[32];
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "b%d", i);
        if (kind == BLOCKS)
            m->block[i] = tn_transformer_block_new(s, name, WIDTH, 4, .dropout = .2, .causal = true);
        if (kind == IMAGES) m->conv[i] = tn_conv2d_new(s, name, i ? 16 : 3, 16, 3, .pad = 1);
        snprintf(name, sizeof name, "n%d", i);
        if (kind == IMAGES) m->norm[i] = tn_batch_norm_new(s, name, 16);
    }
    if (kind == SEQUENCE) m->lstm = tn_lstm_new(s, "lstm", 24, 48);
    m->out = tn_linear_new(s, "out", kind == BLOCKS ? WIDTH : kind == IMAGES ? 16 : 48, 10);
    m->opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2);
}

static tn_tensor *forward(tn_session *s, const model *m, int kind, const way *w, tn_tensor *x, double *seen)
{
    for (int i = 0; i < (kind == SEQUENCE ? 1 : LAYERS); i++) {
        if (w->again) tn_checkpoint_begin(s);
        if (w->again && w->nested) tn_checkpoint_begin(s);
        if (kind == BLOCKS) x = tn_transformer_block_forward(m->block[i], x);
        if (kind == IMAGES)
            x = tn_dropout(tn_gelu(tn_norm_forward(m->norm[i], tn_conv2d_forward(m->conv[i], x))), .1);
        if (kind == SEQUENCE) x = tn_recurrent_forward(m->lstm, x, NULL);
        if (w->again && w->nested) tn_checkpoint_end(s);
        if (w->again && w->nested) x = tn_mul_scalar(x, 1.25);
        if (!w->again && w->nested) x = tn_mul_scalar(x, 1.25);
        if (w->again) tn_checkpoint_end(s);
        if (w->read && i == 1) *seen += tn_item(tn_mean(x, TN_ALL, false)); /* runs what waits */
    }
    return x;
}

static int Warned; /* of the budget */
static void count_warnings(int level, const char *text, void *user)
{
    (void)user;
    Warned += level == TN_LOG_WARN && strstr(text, "memory budget") != NULL;
}

/* What a training comes to: the losses, the parameters and buffers, each to the bit; and the largest arena.
 */
static uint64_t train(int kind, const way *w, double *arena, double *loss)
{
    tn_session *s = tn_open(.device = subject_device(), .mode = TN_FUSED, .seed = 7, .threads = 2,
                            .log = count_warnings, .memory_budget = (int64_t)(w->budget * 1e6));
    Warned = 0;
    model m = {.opt = NULL};
    make(s, &m, kind);
    double seen = 0;
    uint64_t bits = 0;
    for (int step = 0; step < (w->steps ? w->steps : STEPS); step++) {
        way now = *w;
        now.again = w->again && !(w->change && step % 2);
        tn_step_begin(s);
        tn_tensor *x = kind == BLOCKS   ? tn_randn(s, TN_F32, TN_SHAPE(BATCH, TIME, WIDTH))
                       : kind == IMAGES ? tn_randn(s, TN_F32, TN_SHAPE(8, 16, 16, 3))
                                        : tn_randn(s, TN_F32, TN_SHAPE(8, 6, 24));
        tn_tensor *h = forward(s, &m, kind, &now, x, &seen);
        h = tn_linear_forward(m.out, h);
        tn_tensor *l = tn_mean(tn_square(tn_sub(h, tn_sin(h))), TN_ALL, false);
        tn_backward(l);
        tn_optim_step(m.opt);
        *loss = tn_item(l) + seen;
        bits = bits * 31 + (uint64_t)tn_test_bits64(*loss);
        tn_step_end(s);
    }
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < (k ? tn_buffer_count(s) : tn_param_count(s)); i++) {
            tn_tensor *p = k ? tn_buffer_at(s, i) : tn_param_at(s, i);
            double *v = calloc((size_t)tn_numel(p), sizeof *v);
            tn_read(p, TN_F64, v, (size_t)tn_numel(p) * sizeof *v);
            for (int64_t e = 0; e < tn_numel(p); e++) bits = bits * 31 + (uint64_t)tn_test_bits64(v[e]);
            free(v);
        }
    const char *at = strstr(tn_plan_text(s), "moved, ");
    assert_true(at && sscanf(at, "moved, %lf MB arena", arena) == 1);
    close_clean(s);
    return bits;
}

TEST(the_same_bits)
{
    static const struct {
        int kind;
        way kept;
        double most; /* of the arena that keeping takes; a read makes two plans, whose arenas lack what is
                        kept between them; of a recurrence backward reads gates alone, and what is made
                        again is all of it there at once */
    } rows[] = {{BLOCKS, {0}, .6},
                {BLOCKS, {.nested = true}, .6},
                {BLOCKS, {.read = true}, 1.6},
                {BLOCKS, {.change = true}, 1},
                {IMAGES, {0}, .8},
                {IMAGES, {.read = true}, 1.5},
                {SEQUENCE, {0}, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        way again = rows[i].kept;
        again.again = true;
        double kept, least, a, b;
        const uint64_t want = train(rows[i].kind, &rows[i].kept, &kept, &a),
                       got = train(rows[i].kind, &again, &least, &b);
        printf("  row %d: arena %.2f MB instead of %.2f\n", (int)i, least, kept);
        /* A GPU may sum in another order: gradients then differ in the last place, which AdamW enlarges. */
        const bool order = subject_device() == TN_CUDA && fabs(a - b) <= 1e-4 * fabs(a);
        if (want != got && !order) fail_msg("row %d: another training: %.17g, not %.17g", (int)i, b, a);
        if (least > rows[i].most * kept)
            fail_msg("row %d: the arena is %.2f MB, without checkpoints %.2f", (int)i, least, kept);
    }
}

/* A budget of fewer bytes than a step takes is met after a few steps, or is said to be impossible, and the
 * training is the same but for the order of sums, also beside checkpoints of the program's own and reads in
 * its midst. */
TEST(within_a_budget)
{
    enum { MANY = 9 };
    static const double share[] = {1.5, .7, .5, .01};
    static const way ways[] = {
        {.steps = MANY}, {.steps = MANY, .read = true}, {.steps = MANY, .again = true}};
    for (int kind = 0; kind < KINDS; kind++)
        for (int k = 0; k < (kind == BLOCKS ? 3 : 1); k++) {
            double all, taken, a, b;
            const uint64_t want = train(kind, &ways[k], &all, &a);
            for (size_t i = 0; i < sizeof share / sizeof *share; i++) {
                way w = ways[k];
                w.budget = share[i] * all;
                const uint64_t got = train(kind, &w, &taken, &b);
                const int warned = Warned;
                printf("  kind %d, way %d: %.2f of %.2f MB asked for, %.2f taken, %d warnings\n", kind, k,
                       w.budget, all, taken, warned);
                const bool order = fabs(a - b) <= 1e-4 * fabs(a); /* of sums */
                if (want != got && !order) fail_msg("another training: %.17g, not %.17g", b, a);
                assert_true(warned <= 1);
                if (!warned && taken > w.budget + .005)
                    fail_msg("over, and nothing is said of it"); /* two digits */
                if (taken > all * 1.0001) fail_msg("more than without a budget");
                if (share[i] > 1 && taken != all) fail_msg("there is room, and it is not used");
                if (kind == BLOCKS && k == 0 && share[i] >= .5) assert_true(taken <= w.budget && !warned);
                if (share[i] < .1) assert_true(warned == 1);
            }
        }
}

/* What products read of norms, activations and dropouts is made again for backward, where it comes of what
 * other gradients read: by the kernels that make those gradients, to the same bits as where it was kept,
 * which a flush before backward has it be. */
TEST(made_again_by_itself)
{
    double arena[2];
    uint64_t bits[2] = {0, 0};
    for (int kept = 0; kept < 2; kept++) {
        tn_session *s =
            tn_open(.device = subject_device(), .mode = TN_FUSED, .seed = 7, .threads = 2, .log = quiet);
        tn_linear *a = tn_linear_new(s, "a", 96, 256), *b = tn_linear_new(s, "b", 256, 96);
        tn_norm *n = tn_layer_norm_new(s, "n", 96);
        tn_conv *c = tn_conv2d_new(s, "c", 3, 8, 3, .pad = 1), *d = tn_conv2d_new(s, "d", 8, 4, 3, .pad = 1);
        tn_norm *e = tn_batch_norm_new(s, "e", 8);
        tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2);
        for (int step = 0; step < STEPS; step++) {
            tn_step_begin(s);
            tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(192, 96)),
                      *image = tn_randn(s, TN_F32, TN_SHAPE(4, 16, 16, 3));
            tn_tensor *h = tn_linear_forward(a, tn_norm_forward(n, x));
            tn_tensor *y = tn_linear_forward(b, tn_dropout(tn_gelu(h), .2));
            tn_tensor *z = tn_conv2d_forward(d, tn_relu(tn_norm_forward(e, tn_conv2d_forward(c, image))));
            tn_tensor *l =
                tn_add(tn_mean(tn_square(tn_add(x, y)), TN_ALL, false), tn_mean(tn_square(z), TN_ALL, false));
            if (kept) tn_flush(s);
            tn_backward(l);
            tn_optim_step(opt);
            bits[kept] = bits[kept] * 31 + tn_test_bits64(tn_item(l));
            tn_step_end(s);
        }
        const char *plan = tn_plan_text(s);
        const int again = strstr(plan, "gelu again + dropout again + dropout' + gelu'") &&
                          strstr(plan, "relu again + relu' + batch_norm'");
        if (again == kept)
            fail_msg("%s:\n%s", kept ? "kept, and made again" : "not made again beside the gradient", plan);
        assert_int_equal(sscanf(strstr(plan, "moved, "), "moved, %lf MB arena", &arena[kept]), 1);
        close_clean(s);
    }
    assert_true(bits[0] == bits[1] || subject_device() == TN_CUDA);
}

/* What a weight's gradient reads is made again by the second kernel of a batch norm's gradient, over what that
 * is the last to read, and not by the first. */
TEST(made_again_late)
{
    enum { N = 256, WIDE = 1024, ONE = N * WIDE * 4 };
    static float weight[2][WIDE * WIDE];
    double arena = 0;
    for (int kept = 1; kept >= 0; kept--) {
        tn_session *s =
            tn_open(.device = subject_device(), .mode = TN_FUSED, .seed = 7, .threads = 2, .log = quiet);
        tn_linear *a = tn_linear_new(s, "a", 64, WIDE), *b = tn_linear_new(s, "b", WIDE, WIDE),
                  *c = tn_linear_new(s, "c", WIDE, 8);
        tn_norm *n = tn_batch_norm_new(s, "n", WIDE), *m = tn_batch_norm_new(s, "m", WIDE);
        tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 1e-4);
        tn_tensor *x = tn_keep(tn_randn(s, TN_F32, TN_SHAPE(N, 64)));
        for (int step = 0; step < STEPS; step++) {
            tn_step_begin(s);
            tn_tensor *h = tn_dropout(tn_relu(tn_norm_forward(n, tn_linear_forward(a, x))), .5);
            tn_tensor *l = tn_linear_forward(c, tn_relu(tn_norm_forward(m, tn_linear_forward(b, h))));
            l = tn_mean(tn_square(l), TN_ALL, false);
            if (kept) tn_flush(s);
            tn_backward(l);
            tn_optim_step(opt);
            tn_step_end(s);
        }
        assert_int_equal(tn_read(b->weight, TN_F32, weight[kept], sizeof weight[kept]), 0);
        const char *plan = tn_plan_text(s);
        if (!kept && !strstr(plan, "dropout again + dropout' + relu' + batch_norm'")) fail_msg("%s", plan);
        if (!kept) assert_int_equal(sscanf(strstr(plan, "moved, "), "moved, %lf MB arena", &arena), 1);
        close_clean(s);
    }
    for (int i = 0; i < WIDE * WIDE; i++) /* sums in another order */
        if (!(fabsf(weight[0][i] - weight[1][i]) <= 1e-5f)) fail_msg("%g for %g", weight[0][i], weight[1][i]);
    /* what both norms read, one more, and masks */
    if (subject_device() == TN_CPU && arena > 3.95 * ONE * 1e-6) fail_msg("the arena is %.2f MB", arena);
}

/* What convolutions of one channel read or make is made again where it lowers what is alive at most: of
 * depthwise layers, in the midst of backward, half of what forward would keep, and of a first layer that
 * nothing normalizes the convolution itself. Where little would be spared of what a step holds, it is kept.
 */
TEST(made_again_for_the_peak)
{
    enum { DEPTH = 4, CHANNELS = 32, N = 4, SIDE = 16, ONE = N * SIDE * SIDE * CHANNELS * 4 };
    double arena[2];
    for (int large = 0; large < 2; large++) { /* a table that is trained beside it */
        uint64_t bits[2] = {0, 0};
        for (int kept = 0; kept < 2; kept++) {
            tn_session *s =
                tn_open(.device = subject_device(), .mode = TN_FUSED, .seed = 7, .threads = 2, .log = quiet);
            tn_conv *first = tn_conv2d_new(s, "first", 1, CHANNELS, 3, .pad = 1), *deep[DEPTH];
            tn_norm *norm[DEPTH];
            char name[16];
            for (int i = 0; i < DEPTH; i++) {
                snprintf(name, sizeof name, "c%d", i);
                deep[i] = tn_conv2d_new(s, name, CHANNELS, CHANNELS, 3, .pad = 1, .groups = CHANNELS);
                snprintf(name, sizeof name, "n%d", i);
                norm[i] = tn_batch_norm_new(s, name, CHANNELS);
            }
            tn_conv *wide = tn_conv2d_new(s, "wide", CHANNELS, CHANNELS, 3, .pad = 1);
            tn_linear *out = tn_linear_new(s, "out", SIDE * SIDE * CHANNELS, large ? 1024 : 2);
            tn_optim *opt = tn_sgd(s, tn_all_params(s), .lr = 1e-2);
            for (int step = 0; step < STEPS; step++) {
                tn_step_begin(s);
                tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(N, SIDE, SIDE, 1));
                x = tn_relu(tn_conv2d_forward(first, x));
                for (int i = 0; i < DEPTH; i++)
                    x = tn_relu(tn_norm_forward(norm[i], tn_conv2d_forward(deep[i], x)));
                x = tn_conv2d_forward(wide, x);
                x = tn_linear_forward(out, tn_reshape(x, TN_SHAPE(N, SIDE * SIDE * CHANNELS)));
                tn_tensor *l = tn_mean(tn_square(x), TN_ALL, false);
                if (kept) tn_flush(s);
                tn_backward(l);
                tn_optim_step(opt);
                bits[kept] = bits[kept] * 31 + tn_test_bits64(tn_item(l));
                tn_step_end(s);
            }
            const char *plan = tn_plan_text(s);
            const int again = strstr(plan, "conv2d again") && strstr(plan, "relu again");
            if (again == (kept || large)) fail_msg("%s:\n%s", again ? "made again" : "not made again", plan);
            if (!kept)
                assert_int_equal(sscanf(strstr(plan, "moved, "), "moved, %lf MB arena", &arena[large]), 1);
            close_clean(s);
        }
        assert_true(bits[0] == bits[1] || subject_device() == TN_CUDA);
    }
    /* an image of each layer, what relu gives of the first two, and gradients; not of all layers */
    if (arena[0] > (DEPTH + 3.2) * ONE * 1e-6) fail_msg("the arena is %.2f MB", arena[0]);
}

static uint64_t nodes_of_step(bool kept)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 7, .log = quiet);
    tn_linear *a = tn_linear_new(s, "a", 96, 256), *b = tn_linear_new(s, "b", 256, 96);
    tn_flush(s); /* where there is no compiler, that is known by now */
    tn_stats before = {.size = sizeof before}, after = before;
    assert_int_equal(tn_get_stats(s, &before), 0);
    tn_step_begin(s);
    tn_tensor *y =
        tn_linear_forward(b, tn_gelu(tn_linear_forward(a, tn_randn(s, TN_F32, TN_SHAPE(192, 96)))));
    if (kept) tn_flush(s);
    tn_backward(tn_mean(tn_square(y), TN_ALL, false));
    tn_step_end(s);
    assert_int_equal(tn_get_stats(s, &after), 0);
    close_clean(s);
    return after.nodes - before.nodes;
}

/* Without a compiler each node is run by itself: nothing is made again, as that would be nodes more. */
TEST(not_where_nothing_fuses)
{
    if (subject_device() != TN_CPU) skip();
    assert_true(nodes_of_step(false) > nodes_of_step(true));
    char was[256];
    const char *cc = getenv("TENSOR_CC");
    snprintf(was, sizeof was, "%s", cc ? cc : "");
    setenv("TENSOR_CC", "none", 1);
    const uint64_t plain = nodes_of_step(false), kept = nodes_of_step(true);
    if (cc)
        setenv("TENSOR_CC", was, 1);
    else
        unsetenv("TENSOR_CC");
    assert_true(plain == kept);
}

/* What is computed again is told with who needs it and what it costs, and what became of a budget. */
TEST(told)
{
    for (int again = 0; again < 2; again++) {
        tn_session *s = tn_open(.device = subject_device(), .mode = TN_FUSED, .seed = 7, .log = quiet,
                                .memory_budget = again ? 0 : 1000);
        model m = {.opt = NULL};
        make(s, &m, BLOCKS);
        double seen = 0;
        for (int step = 0; step < 5; step++) {
            tn_step_begin(s);
            tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(BATCH, TIME, WIDTH));
            tn_tensor *h = forward(s, &m, BLOCKS, &(way){.again = again}, x, &seen);
            tn_backward(tn_mean(tn_square(tn_linear_forward(m.out, h)), TN_ALL, false));
            tn_optim_step(m.opt);
            tn_step_end(s);
        }
        PRINTED(text, f) assert_int_equal(tn_explain(s, f), 0);
        const char *row = strstr(text, "computed again  a result of gelu at ");
        double ms = 0, all = 0;
        char kernel[64];
        if (!row || sscanf(strstr(row, ", for "), ", for %63[^:]: %lf ms", kernel, &ms) != 2)
            fail_msg("no row of the gelu that is computed again:\n%s", text);
        assert_non_null(strstr(text, "MB computed again (predicted "));
        assert_int_equal(sscanf(strstr(text, "(predicted "), "(predicted %lf ms)", &all), 1);
        assert_true(ms > 0 && ms < all && strstr(text, kernel) < row);
        assert_non_null(strstr(text, "affine again"));
        assert_true(again == !strstr(text, "of the memory budget of 0.00 MB the arena takes "));
        assert_true(again == !strstr(text, " parts of forward computed again; it cannot be met\n"));
        free(text);
        close_clean(s);
    }
}

/* Steps with checkpoints are replayed, and draw anew each time. */
TEST(replayed)
{
    tn_session *s = tn_open(.device = subject_device(), .mode = TN_FUSED, .seed = 7, .log = quiet);
    tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(400)));
    double sums[6];
    tn_stats st = {.size = sizeof st};
    for (int i = 0; i < 6; i++) {
        tn_step_begin(s);
        tn_checkpoint_begin(s);
        tn_tensor *h = tn_exp(tn_dropout(tn_mul(w, w), .5));
        tn_checkpoint_end(s);
        tn_tensor *l = tn_sum(tn_square(h), TN_ALL, false);
        tn_backward(l);
        const double loss = tn_item(l);
        float g[400];
        tn_read(tn_gradient(w), TN_F32, g, sizeof g);
        sums[i] = 0;
        for (int k = 0; k < 400; k++) sums[i] += g[k];
        /* what is dropped is e^0 and has no gradient, what is not is e^2, with 2 * (e^2)^2 * 4 w */
        const double few = (exp(4) * 400 - loss) / (exp(4) - 1), want = (400 - few) * 8 * exp(4);
        if (!(fabs(sums[i] - want) < 1e-3 * want)) fail_msg("step %d: %g, not %g", i, sums[i], want);
        tn_step_end(s);
    }
    tn_get_stats(s, &st);
    assert_true(st.replayed >= 2 && sums[4] != sums[5]);
    close_clean(s);
}

TEST(refused)
{
    tn_session *s = tn_open(.device = TN_REF, .log = quiet);
    fails_with(s, TN_E_STATE, "checkpoint_begin at|outside of a step", tn_checkpoint_begin(s));
    tn_step_begin(s);
    fails_with(s, TN_E_STATE, "checkpoint_end at|without tn_checkpoint_begin", tn_checkpoint_end(s));
    assert_int_equal(tn_checkpoint_begin(s), TN_OK);
    fails_with(s, TN_E_STATE, "step_end at|a tn_checkpoint_begin has no tn_checkpoint_end", tn_step_end(s));
    tn_step_begin(s);
    fails_with(s, TN_E_STATE, "without tn_checkpoint_begin", tn_checkpoint_end(s));
    tn_step_end(s);
    assert_int_equal((tn_checkpoint_begin)(NULL), TN_E_NULL);
    close_clean(s);
}

RUN_TESTS(NULL, NULL)
