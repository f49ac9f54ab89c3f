/* test_recurrent.c - layers that are loaded as PyTorch's users save them, beside PyTorch's results and
 * gradients: LSTM, GRU, and convolutions of rows and back (tests/golden/make_golden.py, make_layers); and of
 * how few kernels a step of a sequence is. Start with like_pytorch. */
#include "tests/golden.h"

typedef struct layers {
    tn_recurrent *lstm, *gru;
    tn_conv *row, *back, *image;
} layers;

static void make(tn_session *s, layers *l)
{
    l->lstm = tn_lstm_new(s, "lstm", 5, 4, .layers = 2, .bidirectional = true);
    l->gru = tn_gru_new(s, "gru", 5, 3, .no_bias = true);
    l->row = tn_conv1d_new(s, "row", 4, 6, 3, .pad = 1, .groups = 2);
    l->back = tn_conv_transpose1d_new(s, "back", 4, 6, 3, .stride = 2, .groups = 2);
    l->image = tn_conv_transpose2d_new(s, "image", 4, 3, 3, .stride = 2, .pad = 1, .output_pad = 1);
}

/* The results of a layer by name, of the inputs in x. */
static int run(const layers *l, const char *name, tn_tensor **x, tn_tensor **out)
{
    if (!strcmp(name, "lstm")) {
        tn_recurrent_state state = {x[1], x[2]};
        out[0] = tn_recurrent_forward(l->lstm, x[0], &state);
        out[1] = state.h;
        out[2] = state.c;
        return 3;
    }
    if (!strcmp(name, "gru")) {
        tn_recurrent_state state = {NULL, NULL};
        out[0] = tn_recurrent_forward(l->gru, x[0], &state);
        out[1] = state.h;
        return 2;
    }
    out[0] = !strcmp(name, "row")    ? tn_conv1d_forward(l->row, x[0])
             : !strcmp(name, "back") ? tn_conv_transpose1d_forward(l->back, x[0])
                                     : tn_conv_transpose2d_forward(l->image, x[0]);
    return 1;
}

/* sum(y * (1, 2, .. 7, 1, ..)) */
static tn_tensor *weighed(tn_session *s, tn_tensor *y)
{
    const int64_t n = tn_numel(y);
    float *w = malloc((size_t)n * sizeof *w);
    assert_non_null(w);
    for (int64_t i = 0; i < n; i++) w[i] = (float)(1 + i % 7);
    tn_tensor *t = tn_from(s, w, TN_F32, 1, &n);
    free(w);
    return tn_sum(tn_mul(tn_reshape(y, 1, &n), t), TN_ALL, false);
}

static void check_layer(tn_session *s, const char *where, const layers *l, const golden *g, const char *name,
                        double within)
{
    static const char *const in[] = {"x", "h", "c"};
    tn_tensor *x[3] = {NULL}, *out[3], *loss = NULL;
    char what[128];
    tn_step_begin(s);
    for (int i = 0; i < (strcmp(name, "lstm") ? 1 : 3); i++) {
        x[i] = golden_tensor(s, golden_find(g, "%s.%s", name, in[i]), TN_F32);
        tn_requires_grad(x[i], true);
    }
    int n = run(l, name, x, out);
    for (int i = 0; i < n; i++) {
        tn_tensor *part = weighed(s, out[i]);
        loss = loss ? tn_add(loss, part) : part;
    }
    tn_backward(loss);
    expect_fine(s, where);
    for (int i = 0; i < n; i++) {
        snprintf(what, sizeof what, "%s.out.%d", name, i);
        golden_close(where, what, out[i], golden_find(g, "%s", what), within);
    }
    for (int i = 0; i < 3 && x[i]; i++) {
        snprintf(what, sizeof what, "%s.gradient.%s", name, in[i]);
        golden_close(where, what, tn_gradient(x[i]), golden_find(g, "%s", what), within);
    }
    for (int i = 0; i < tn_param_count(s); i++) {
        tn_tensor *p = tn_param_at(s, i);
        if (strncmp(tn_name(p), name, strlen(name)) || tn_name(p)[strlen(name)] != '.') continue;
        golden_close(where, tn_name(p), tn_gradient(p), golden_find(g, "gradient.%s", tn_name(p)), within);
    }
    tn_step_end(s);
}

TEST(like_pytorch)
{
    static const char *const name[] = {"lstm", "gru", "row", "back", "image"};
    golden g;
    golden_open(&g, "layers");
    for (int at = 0; at < PLACE_COUNT; at++) {
        layers l;
        tn_session *s = open_place(&PLACES[at], NULL, NULL);
        make(s, &l);
        tn_load(s, "tests/golden/state.safetensors", .layout = TN_LAYOUT_PYTORCH);
        expect_fine(s, PLACES[at].name);
        for (int i = 0; i < 5; i++)
            check_layer(s, PLACES[at].name, &l, &g, name[i], PLACES[at].device == TN_REF ? 1e-12 : 1e-6);
        assert_int_equal(tn_close(s), TN_OK);
    }
    golden_close_file(&g);
}

/* ---- long sequences, kernels, errors ---- */

/* Each step of an LSTM, or a GRU, is a product and one kernel in each direction; the weight's gradient is one
 * product of all steps. */
TEST(few_kernels)
{
    enum { STEPS = 6, BATCH = 8, IN = 12, HIDDEN = 24 };
    for (int lstm = 0; lstm < 2; lstm++) {
        tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 1, .log = quiet);
        tn_recurrent *r = lstm ? tn_lstm_new(s, "r", IN, HIDDEN) : tn_gru_new(s, "r", IN, HIDDEN);
        tn_step_begin(s);
        tn_tensor *x = tn_rand(s, TN_F32, TN_SHAPE(BATCH, STEPS, IN));
        tn_backward(tn_sum(tn_square(tn_recurrent_forward(r, x, NULL)), TN_ALL, false));
        tn_step_end(s);
        expect_fine(s, "recurrent");
        const char *text = tn_plan_text(s), *forward = lstm ? " lstm_24 " : " gru_24 ";
        /* going back, each kernel but the first is part of the product before it */
        if (count_text(text, forward) != STEPS ||
            count_text(text, lstm ? " lstm_bwd_24 " : " gru_bwd_24 ") != 1 ||
            count_text(text, " matmul_24 ") != STEPS - 1)
            fail_msg("not one kernel a step each way:\n%s", text);
        /* one for the inputs, one a step each way, three gradients: W_hh, W_ih, and h's of the first step */
        if (count_text(text, " matmul ") > 1 + 2 * STEPS + 3) fail_msg("too many products:\n%s", text);
        tn_close(s);
    }
}

/* More steps than a concatenation takes operands, fused beside eager; the gradient of what does not move the
 * loss. */
TEST(long_sequence)
{
    enum { STEPS = 300, HIDDEN = 3 };
    double got[2][3 * HIDDEN * HIDDEN];
    for (int eager = 0; eager < 2; eager++) {
        tn_session *s =
            tn_open(.device = TN_CPU, .mode = eager ? TN_EAGER : TN_FUSED, .seed = 1, .log = quiet);
        tn_recurrent *r = tn_gru_new(s, "r", 2, HIDDEN);
        tn_step_begin(s);
        tn_tensor *y = tn_recurrent_forward(r, tn_rand(s, TN_F32, TN_SHAPE(2, STEPS, 2)), NULL);
        tn_backward(tn_sum(tn_square(y), TN_ALL, false));
        tn_read(tn_gradient(r->cell->weight_hh), TN_F64, got[eager], sizeof got[eager]);
        tn_step_end(s);
        expect_fine(s, "long");
        tn_close(s);
    }
    for (int i = 0; i < 3 * HIDDEN * HIDDEN; i++)
        assert_true(fabs(got[0][i] - got[1][i]) <= 1e-4 * (1 + fabs(got[1][i])));
}

/* Of what each layer but the first is given. */
TEST(dropout_stands_between_layers)
{
    enum { N = 2 * 3 * 8 };
    for (int deep = 1; deep <= 2; deep++) {
        double got[2][N];
        tn_session *s = tn_open(.device = TN_CPU, .seed = 1, .log = quiet);
        tn_recurrent *r = tn_gru_new(s, "r", 4, 8, .layers = deep, .dropout = 0.5);
        tn_tensor *x = tn_rand(s, TN_F32, TN_SHAPE(2, 3, 4));
        for (int training = 0; training < 2; training++) {
            tn_train(s, training);
            tn_step_begin(s);
            tn_read(tn_recurrent_forward(r, x, NULL), TN_F64, got[training], sizeof got[training]);
            tn_step_end(s);
        }
        expect_fine(s, "dropout");
        assert_int_equal(!memcmp(got[0], got[1], sizeof got[0]), deep == 1);
        tn_close(s);
    }
}

TEST_ON(errors, tn_open(.device = TN_REF, .seed = 1, .log = quiet))
{
    tn_recurrent *r = tn_lstm_new(s, "r", 3, 4);
    tn_tensor *x = tn_zeros(s, TN_F32, TN_SHAPE(2, 5, 2));
    assert_null(tn_recurrent_forward(r, x, NULL));
    assert_int_equal(tn_error(s), TN_E_SHAPE);
    assert_non_null(strstr(tn_error_text(s), "layer 'r' expects [n, t, 3]"));
    tn_clear_error(s);
    assert_null(tn_gru(x, r->cell->weight_hh, NULL, NULL));
    assert_non_null(strstr(tn_error_text(s), "gates [2, 5, 2], weight 'r.weight_hh_l0' [16, 4]"));
    tn_clear_error(s);
    assert_null(tn_gru_new(s, "g", 3, 0));
    assert_non_null(strstr(tn_error_text(s), "hidden 0"));
    tn_clear_error(s);
}

RUN_TESTS(NULL, NULL)
