/* test_nn_weights.c - weights that travel: to PyTorch and back, from one model to another, and those that
 * stay.
 *
 *   as_pytorch_has_them   files of PyTorch's state_dicts (tests/golden), loaded and saved again, byte for
 *                         byte
 *   round_trips           the same with PyTorch itself, where there is one: PYTHON, or python3, has to
 *                         have torch and safetensors; a model with the weights, and one whose weights
 *                         come back, computes the same
 *   renamed               random names and rules, beside a plain matcher; what is said of them
 *   frozen                what is frozen costs nothing in backward, and stays
 *   sparse_state          the moments of a sparse table are in a checkpoint of a run, and in no file of
 *                         weights */
#include <unistd.h>

#include "checkpoint_rig.h"
#include "said.h"

static void fine(tn_session *s) { expect_fine(s, "weights"); }

/* ---- as PyTorch has them ---- */

static void make_state(tn_session *s)
{
    tn_lstm_new(s, "lstm", 5, 4, .layers = 2, .bidirectional = true);
    tn_gru_new(s, "gru", 5, 3, .no_bias = true);
    tn_conv1d_new(s, "row", 4, 6, 3, .pad = 1, .groups = 2);
    tn_conv_transpose1d_new(s, "back", 4, 6, 3, .stride = 2, .groups = 2);
    tn_conv_transpose2d_new(s, "image", 4, 3, 3, .stride = 2, .pad = 1, .output_pad = 1);
}

static void make_cnn(tn_session *s)
{
    tn_conv2d_new(s, "c1", 2, 6, 3, .pad = 1, .no_bias = true);
    tn_batch_norm_new(s, "norm1", 6);
    tn_conv2d_new(s, "c2", 6, 8, 3, .pad = 1, .stride = 2, .no_bias = true);
    tn_batch_norm_new(s, "norm2", 8);
    tn_linear_new(s, "fc", 72, 5, .flattened = {3, 3, 8});
}

static void make_transformer(tn_session *s)
{
    tn_embedding_new(s, "tok", 29, 24);
    tn_embedding_new(s, "pos", 16, 24);
    tn_transformer_block_new(s, "block", 24, 3, .causal = true);
    tn_layer_norm_new(s, "norm", 24);
    tn_linear_new(s, "head", 24, 29, .no_bias = true);
}

/* Of a session's tensors, how many are in both files, bit for bit; all must be in `path`. */
static int same_in_both(tn_session *s, const char *path, const nn_safetensors *want)
{
    nn_safetensors got;
    nn_why why = {0};
    if (tn_nn_safetensors_read(path, &got, &why)) fail_msg("%s", why.text);
    assert_string_equal(tn_nn_safetensors_meta(&got, "format"), "pt");
    assert_int_equal(got.n, tn_param_count(s) + tn_buffer_count(s));
    int same = 0;
    for (int i = 0; i < got.n; i++) {
        const nn_saved *a = &got.saved[i], *b = tn_nn_safetensors_find(want, a->name);
        if (!b) continue;
        if (a->ndim != b->ndim || memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim) ||
            strcmp(a->type, b->type) || memcmp(a->data, b->data, a->bytes))
            fail_msg("'%s' is not what it was", a->name);
        same++;
    }
    tn_nn_safetensors_free(&got);
    return same;
}

TEST(as_pytorch_has_them)
{
    static const struct {
        const char *file;
        void (*make)(tn_session *s);
        int tensors; /* in both */
    } models[] = {{"state", make_state, 24}, {"cnn", make_cnn, 12}, {"transformer", make_transformer, 17}};
    for (int m = 0; m < 3; m++)
        for (int at = 0; at < PLACE_COUNT; at++) {
            char path[128];
            golden g;
            golden_open(&g, models[m].file);
            snprintf(path, sizeof path, "tests/golden/%s.safetensors", models[m].file);
            tn_session *s = open_place(&PLACES[at], NULL, NULL);
            models[m].make(s);
            tn_load_report r;
            tn_load(s, path, .layout = TN_LAYOUT_PYTORCH, .partial = m > 0,
                    .report = &r); /* batches are left out */
            fine(s);
            if (r.loaded != models[m].tensors || r.missing || !r.left_out != !m)
                fail_msg("%s: %s", path, r.text);
            const char *saved = in_base("there");
            tn_save(s, saved, .for_pytorch = true);
            fine(s);
            assert_int_equal(same_in_both(s, saved, &g.file), r.loaded);
            /* and here again */
            tn_session *t = open_place(&PLACES[at], NULL, NULL);
            models[m].make(t);
            assert_int_equal(tn_load(t, saved), TN_OK);
            for (int i = 0; i < tn_param_count(s); i++) {
                static float x[8192], y[8192];
                const size_t n = (size_t)tn_numel(tn_param_at(s, i)) * sizeof(float);
                tn_read(tn_param_at(s, i), TN_F32, x, n);
                tn_read(tn_param_at(t, i), TN_F32, y, n);
                assert_memory_equal(x, y, n);
            }
            tn_close(t);
            tn_close(s);
            golden_close_file(&g);
        }
}

/* What may stand behind a flatten is not guessed, either way. */
TEST_ON(untold, open_place(&PLACES[0], NULL, NULL))
{
    needs_cjson();
    tn_conv2d_new(s, "c", 1, 2, 3);
    tn_linear_new(s, "fc", 8, 2);
    const char *path = in_base("untold");
    fails_with(s, TN_E_ARG, "'fc.weight' may stand behind the flatten|save with .no_flatten",
               tn_save(s, path, .for_pytorch = true));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(tn_save(s, path, .for_pytorch = true, .no_flatten = true), TN_OK);
    fails_with(s, TN_E_ARG, "load with .no_flatten", tn_load(s, path));
    assert_int_equal(tn_load(s, path, .no_flatten = true), TN_OK);
}

/* ---- with PyTorch ---- */

/* The model of tests/weights_torch.py. */
typedef struct everything {
    tn_session *s;
    tn_conv *c1, *c2;
    tn_norm *bn;
    tn_linear *fc, *head;
    tn_embed *table;
    tn_recurrent *gru, *lstm;
    tn_multi_head_attention *attn;
} everything;

enum { IMAGES = 3, EDGE = 8, TEXTS = 3, LENGTH = 5, WORDS = 11, OUT = 4 };

static void open_everything(everything *m, uint64_t seed)
{
    tn_session *s = m->s = tn_open(.device = TN_CPU, .mode = seed % 2 ? TN_FUSED : TN_EAGER, .seed = seed,
                                   .threads = 2, .log = quiet);
    m->c1 = tn_conv2d_new(s, "c1", 3, 6, 3, .pad = 1);
    m->bn = tn_batch_norm_new(s, "bn", 6);
    m->c2 = tn_conv2d_new(s, "c2", 6, 4, 3, .pad = 1, .groups = 2, .no_bias = true);
    m->fc = tn_linear_new(s, "fc", EDGE * EDGE / 4 * 4, OUT, .flattened = {EDGE / 2, EDGE / 2, 4});
    m->table = tn_embedding_new(s, "table", WORDS, 8);
    m->gru = tn_gru_new(s, "gru", 8, 8);
    m->lstm = tn_lstm_new(s, "lstm", 8, 4, .bidirectional = true);
    m->attn = tn_multi_head_attention_new(s, "attn", 8, 2);
    m->head = tn_linear_new(s, "head", 8, OUT, .flattened = {1, 1, 8});
    fine(s);
}

/* [IMAGES + TEXTS * LENGTH, OUT] */
static tn_tensor *all_of(const everything *m, tn_tensor *image, tn_tensor *word)
{
    tn_tensor *h = tn_relu(tn_norm_forward(m->bn, tn_conv2d_forward(m->c1, image)));
    h = tn_linear_forward(m->fc, tn_flatten(tn_max_pool2d(tn_conv2d_forward(m->c2, h), 2), 1));
    tn_tensor *t = tn_recurrent_forward(m->gru, tn_embedding_forward(m->table, word), NULL);
    t = tn_multi_head_attention_forward(m->attn, tn_recurrent_forward(m->lstm, t, NULL));
    t = tn_reshape(tn_linear_forward(m->head, t), TN_SHAPE(TEXTS * LENGTH, OUT));
    return tn_concat(2, (tn_tensor *[]){h, t}, 0);
}

typedef struct inputs {
    float image[IMAGES * EDGE * EDGE * 3];
    int64_t word[TEXTS * LENGTH];
} inputs;
enum { RESULTS = (IMAGES + TEXTS * LENGTH) * OUT };

static void compute(const everything *m, const inputs *in, float *out)
{
    tn_train(m->s, false);
    tn_step_begin(m->s);
    tn_tensor *y = all_of(m, tn_from(m->s, in->image, TN_F32, TN_SHAPE(IMAGES, EDGE, EDGE, 3)),
                          tn_from(m->s, in->word, TN_I64, TN_SHAPE(TEXTS, LENGTH)));
    tn_read(y, TN_F32, out, RESULTS * sizeof *out);
    tn_step_end(m->s);
    fine(m->s);
}

static void move_statistics(const everything *m)
{
    tn_train(m->s, true);
    for (int i = 0; i < 3; i++) {
        tn_step_begin(m->s);
        tn_norm_forward(m->bn, tn_mul_scalar(tn_randn(m->s, TN_F32, TN_SHAPE(4, EDGE, EDGE, 6)), 1 + i));
        tn_step_end(m->s);
    }
    fine(m->s);
}

static void put(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void expect_close(const char *what, const float *got, const double *want)
{
    for (int i = 0; i < RESULTS; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-6 * (1 + fabs(want[i]))))
            fail_msg("%s: result %d is %.9g here, %.9g in PyTorch", what, i, got[i], want[i]);
}

static void round_trip(const char *python, uint64_t seed)
{
    char folder[128], line[512], path[3][256];
    snprintf(folder, sizeof folder, "%s", fresh_dir());
    assert_int_equal(mkdir(folder, 0700), 0);
    static const char *const name[] = {"here.safetensors", "with.safetensors", "without.safetensors"};
    for (int i = 0; i < 3; i++) snprintf(path[i], sizeof path[i], "%s/%s", folder, name[i]);
    inputs in;
    rng g = {seed};
    for (size_t i = 0; i < sizeof in.image / sizeof *in.image; i++) in.image[i] = (float)rng_real(&g, -1, 1);
    for (int i = 0; i < TEXTS * LENGTH; i++) in.word[i] = rng_below(&g, WORDS);
    float here[RESULTS];
    double there[2][RESULTS];
    everything m;
    open_everything(&m, seed);
    move_statistics(&m);
    compute(&m, &in, here);
    assert_int_equal(tn_save(m.s, path[0], .for_pytorch = true), TN_OK);
    put(folder, "image", in.image, sizeof in.image);
    put(folder, "word", in.word, sizeof in.word);
    snprintf(line, sizeof line, "%s tests/weights_torch.py %s", python, folder);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line, "%s/there", folder);
    FILE *f = fopen(line, "rb");
    assert_non_null(f);
    assert_int_equal(fread(there, 1, sizeof there, f), sizeof there);
    fclose(f);
    expect_close("weights from here", here, there[0]);
    for (int mark = 0; mark < 2; mark++) { /* what PyTorch has written, with metadata and without */
        everything n;
        open_everything(&n, seed + 2);
        if (mark) fails_with(n.s, TN_E_ARG, ".layout = TN_LAYOUT_PYTORCH", tn_load(n.s, path[1 + mark]));
        tn_load(n.s, path[1 + mark], .layout = mark ? TN_LAYOUT_PYTORCH : TN_LAYOUT_MARKED);
        fine(n.s);
        compute(&n, &in, here);
        expect_close(name[1 + mark], here, there[1]);
        tn_close(n.s);
    }
    tn_close(m.s);
}

TEST(round_trips)
{
    needs_cjson();
    const char *python = getenv("PYTHON");
    char line[256];
    if (!python) python = "python3";
    snprintf(line, sizeof line, "%s -c 'import torch, safetensors.torch' >/dev/null 2>&1", python);
    if (system(line)) {
        print_message("%s has no torch and safetensors; PYTHON= names one that has\n", python);
        skip();
    }
    for (uint64_t seed = 1; seed <= 2; seed++) round_trip(python, seed);
}

/* ---- another model ---- */

/* Whether `name` fits, by trying every end of what the first star catches; what it becomes goes to `out`. */
static bool plainly_fits(const char *from, const char *to, const char *name, char *out)
{
    const char *star = strchr(from, '*'), *put = strchr(to, '*');
    if (!star) return !strcmp(from, name) && strcpy(out, to);
    const size_t head = (size_t)(star - from);
    if (strncmp(from, name, head)) return false;
    for (size_t n = 0; n <= strlen(name + head); n++) {
        char rest[64];
        if (!plainly_fits(star + 1, put ? put + 1 : "", name + head + n, rest)) continue;
        if (put)
            sprintf(out, "%.*s%.*s%s", (int)(put - to), to, (int)n, name + head, rest);
        else
            strcpy(out, to);
        return true;
    }
    return false;
}

static void random_word(rng *g, char *out, int most, const char *letters)
{
    const int n = 1 + (int)rng_below(g, most);
    for (int i = 0; i < n; i++) out[i] = letters[rng_below(g, (int)strlen(letters))];
    out[n] = '\0';
}

/* Files of a few names of a, b and dots; rules; a session with some of the names. */
TEST(renamed)
{
    needs_cjson();
    enum { NAMES = 6, RULES = 3 };
    rng g = {99};
    int done = 0, refused = 0, changed = 0;
    const char *path = in_base("names");
    for (int round = 0; round < 200; round++) {
        char name[NAMES][64], becomes[NAMES][64], from[RULES][16], to[RULES][16];
        tn_load_options o = {.partial = true, .size = sizeof o};
        tn_load_report r = {0};
        o.report = &r;
        tn_session *a = tn_open(.device = TN_REF, .log = quiet), *b = tn_open(.device = TN_REF, .log = quiet);
        for (int i = 0; i < NAMES; i++) {
            random_word(&g, name[i], 5, "ab.");
            if (tn_find(a, name[i])) {
                i--;
                continue;
            }
            tn_param(a, name[i], tn_full(a, i + 1, TN_F32, TN_SHAPE(1)));
        }
        for (int k = 0; k < RULES; k++) {
            random_word(&g, from[k], 4, "ab.**");
            random_word(&g, to[k], 4, "abc.*");
            if (!rng_below(&g, 6)) *to[k] = '\0';
            for (char *c = to[k], *star = from[k]; *c; c++)
                if (*c == '*' && !(star = strchr(star, '*') ? strchr(star, '*') + 1 : NULL)) {
                    *c = '\0';
                    break;
                }
            o.rename[k] = (tn_rename){from[k], to[k]};
        }
        bool twice = false;
        int common = 0, left = 0;
        for (int i = 0; i < NAMES; i++) {
            strcpy(becomes[i], name[i]);
            for (int k = 0; k < RULES; k++)
                if (plainly_fits(from[k], to[k], name[i], becomes[i])) break;
            changed += strcmp(becomes[i], name[i]) != 0;
            for (int j = 0; j < i; j++) twice |= *becomes[i] && !strcmp(becomes[i], becomes[j]);
        }
        for (int i = 0; i < NAMES; i++) {
            const bool in = *becomes[i] && rng_below(&g, 3);
            if (in && !tn_find(b, becomes[i])) tn_param(b, becomes[i], tn_full(b, -1, TN_F32, TN_SHAPE(1)));
        }
        for (int i = 0; i < NAMES; i++) {
            common += *becomes[i] && tn_find(b, becomes[i]);
            left += !*becomes[i] || !tn_find(b, becomes[i]);
        }
        tn_param(b, "here", tn_full(b, -2, TN_F32, TN_SHAPE(1)));
        tn_save(a, path);
        fine(a);
        if (twice || !common) {
            fails_with(b, TN_E_SHAPE, twice ? "is there twice" : "none of its tensors",
                       tn_load_with(b, path, &o));
            refused++;
        } else {
            tn_load_with(b, path, &o);
            fine(b);
            if (r.loaded != common || r.left_out != left || r.missing != 1 || !strstr(r.text, "here"))
                fail_msg("%d in both, %d left out: %s", common, left, r.text);
            for (int i = 0; i < NAMES; i++)
                if (*becomes[i] && tn_find(b, becomes[i]) && tn_item(tn_find(b, becomes[i])) != i + 1)
                    fail_msg("'%s' has another's value as '%s'", name[i], becomes[i]);
            assert_true(tn_item(tn_find(b, "here")) == -2);
            done++;
        }
        tn_close(a);
        tn_close(b);
    }
    assert_true(done > 50 && refused > 25 && changed > 200);
}

/* A warning says what is not asked for by .report; weights alone are loaded; bad rules are refused. */
TEST(said_of_a_part)
{
    needs_cjson();
    const char *path = in_base("part");
    tn_session *a = tn_open(.device = TN_REF, .log = quiet), *b = tn_open(.device = TN_REF, .log = hear);
    tn_linear_new(a, "trunk", 3, 4);
    tn_linear_new(a, "fc", 4, 2);
    tn_adamw(a, tn_all_params(a), .lr = 0.5);
    assert_int_equal(tn_save(a, path), TN_OK);
    tn_linear_new(b, "body", 3, 4);
    tn_linear *head = tn_linear_new(b, "head", 4, 5);
    tn_optim *o =
        tn_sgd(b, tn_all_params(b), .lr = 0.25); /* another optimizer than the file's is no matter */
    tn_set_rng(b, 3, 44);
    forget();
    float before[5], after[5];
    tn_read(head->bias, TN_F32, before, sizeof before);
    assert_int_equal(tn_load(b, path, .partial = true, .rename = {{"trunk.*", "body.*"}}), TN_OK);
    if (!strstr(said,
                "2 tensors loaded; not in the file, as they were: head.weight, head.bias; left out of the "
                "file: fc.bias, fc.weight"))
        fail_msg("%s", said);
    tn_read(head->bias, TN_F32, after, sizeof after);
    assert_memory_equal(before, after, sizeof before);
    assert_true(tn_optim_lr(o) == 0.25 && tn_rng_draw(b) == 44 && tn_seed(b) == 3);
    fails_with(b, TN_E_SHAPE, "'body.weight' is missing", tn_load(b, path));
    fails_with(b, TN_E_SHAPE, "'head.weight' is missing",
               tn_load(b, path, .rename = {{"trunk.*", "body.*"}}));
    fails_with(b, TN_E_SHAPE, "'head.weight' has the shape [2, 4], [5, 4] expected",
               tn_load(b, path, .rename = {{"trunk.*", "body.*"}, {"fc.*", "head.*"}}));
    fails_with(b, TN_E_SHAPE, "none of its tensors", tn_load(b, path, .partial = true));
    fails_with(b, TN_E_ARG, ".rename of 'a*' to 'b*c*'", tn_load(b, path, .rename = {{"a*", "b*c*"}}));
    fails_with(b, TN_E_NULL, "`to` is NULL", tn_load(b, path, .rename = {{"a*", NULL}}));
    tn_close(a);
    tn_close(b);
}

/* ---- frozen ---- */

typedef struct deep {
    tn_session *s;
    tn_conv *conv[2];
    tn_norm *norm;
    tn_linear *mid, *head;
    tn_optim *o;
} deep;

static void open_deep(deep *d, const place *at)
{
    tn_session *s = d->s = open_place(at, NULL, NULL);
    d->conv[0] = tn_conv2d_new(s, "trunk.0", 2, 4, 3, .pad = 1);
    d->norm = tn_batch_norm_new(s, "trunk.norm", 4);
    d->conv[1] = tn_conv2d_new(s, "trunk.1", 4, 4, 3, .pad = 1);
    d->mid = tn_linear_new(s, "mid", 4 * 6 * 6, 8);
    d->head = tn_linear_new(s, "head", 8, 3);
    d->o = tn_adamw(s, tn_all_params(s), .lr = 0.1, .weight_decay = 0.1);
}

static void step_of(const deep *d)
{
    tn_step_begin(d->s);
    tn_tensor *h = tn_conv2d_forward(d->conv[0], tn_randn(d->s, TN_F32, TN_SHAPE(4, 6, 6, 2)));
    h = tn_relu(tn_conv2d_forward(d->conv[1], tn_relu(tn_norm_forward(d->norm, h))));
    h = tn_relu(tn_linear_forward(d->mid, tn_flatten(h, 1)));
    tn_tensor *y = tn_linear_forward(d->head, h);
    tn_backward(tn_cross_entropy(y, tn_from(d->s, (int32_t[]){0, 1, 2, 1}, TN_I32, TN_SHAPE(4))));
    tn_optim_step(d->o);
    tn_step_end(d->s);
    fine(d->s);
}

/* How often the plan of a step has `part`. */
static int times(const deep *d, const char *part)
{
    int n = 0;
    for (int i = 0; i < 6; i++)
        step_of(d); /* such steps are the usual ones from then on, which are told of */
    PRINTED(text, f) tn_explain(d->s, f);
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    free(text);
    return n;
}

TEST(frozen)
{
    for (int at = 0; at < PLACE_COUNT; at++) {
        deep d;
        open_deep(&d, &PLACES[at]);
        fails_with(d.s, TN_E_ARG, "no parameter matches 'trunk'", tn_freeze(d.s, "trunk", true));
        fails_with(d.s, TN_E_NULL, "pattern is NULL", tn_freeze(d.s, NULL, true));
        const bool plans = PLACES[at].device != TN_REF;
        if (plans) assert_true(times(&d, "conv2d'") > 0 && times(&d, "batch_norm'") > 0);
        const int products = plans ? times(&d, "matmul                         affine'") : 0;
        float before[8][1024], after[1024];
        int frozen = tn_freeze(d.s, "trunk.*", true);
        assert_int_equal(frozen, 6);
        for (int i = 0; i < frozen; i++)
            tn_read(tn_param_at(d.s, i), TN_F32, before[i], (size_t)tn_numel(tn_param_at(d.s, i)) * 4);
        float mid[8], moved[8];
        tn_read(d.mid->bias, TN_F32, mid, sizeof mid);
        for (int i = 0; i < 3; i++) step_of(&d);
        for (int i = 0; i < frozen; i++) {
            const size_t n = (size_t)tn_numel(tn_param_at(d.s, i)) * 4;
            tn_read(tn_param_at(d.s, i), TN_F32, after, n);
            assert_memory_equal(before[i], after, n);
        }
        tn_read(d.mid->bias, TN_F32, moved, sizeof moved);
        assert_true(memcmp(mid, moved, sizeof mid));
        /* no gradient passes into the trunk; a weight alone is one product less */
        if (plans) {
            assert_true(!times(&d, "conv2d'") && !times(&d, "batch_norm'"));
            assert_int_equal(times(&d, "matmul                         affine'"), products - 1);
            tn_freeze(d.s, "mid.weight", true);
            assert_int_equal(times(&d, "matmul                         affine'"), products - 2);
        }
        assert_int_equal(tn_freeze(d.s, "*", false), 10);
        step_of(&d);
        tn_read(d.conv[0]->bias, TN_F32, after, 16);
        assert_true(memcmp(before[1], after, 16));
        assert_int_equal(tn_close(d.s), TN_OK);
    }
}

/* ---- moments of a sparse table ---- */

static double sparse_step(tn_session *s, tn_embed *e, int64_t first)
{
    tn_step_begin(s);
    tn_tensor *rows = tn_embedding_forward(e, tn_from(s, (int64_t[]){first, 2, first}, TN_I64, TN_SHAPE(3)));
    tn_tensor *loss = tn_sum(tn_square(rows), TN_ALL, false);
    tn_backward(loss);
    tn_embedding_step(e, .lr = 0.05);
    double v = tn_item(loss);
    tn_step_end(s);
    fine(s);
    return v;
}

TEST(sparse_state)
{
    needs_cjson();
    const char *whole = in_base("sparse"), *weights = in_base("sparse-pt");
    for (int at = 0; at < PLACE_COUNT; at++) {
        tn_session *s[3];
        tn_embed *e[3];
        for (int i = 0; i < 3; i++) {
            s[i] = open_place(&PLACES[at], NULL, NULL);
            e[i] = tn_embedding_new(s[i], "e", 6, 3, .sparse = TN_SPARSE_ADAM, .init_std = 1 + i);
        }
        for (int i = 0; i < 5; i++) sparse_step(s[0], e[0], i);
        assert_int_equal(tn_save(s[0], whole), TN_OK);
        assert_int_equal(tn_save(s[0], weights, .for_pytorch = true), TN_OK);
        assert_int_equal(tn_load(s[1], whole), TN_OK);
        assert_int_equal(tn_load(s[2], weights), TN_OK);
        nn_safetensors f;
        nn_why why = {0};
        assert_int_equal(tn_nn_safetensors_read(weights, &f, &why), TN_OK);
        assert_int_equal(f.n, 1);
        tn_nn_safetensors_free(&f);
        const double close = PLACES[at].device == TN_REF ? 1e-5 : 0;
        bool differs = false;
        for (int i = 0; i < 4; i++) {
            const double want = sparse_step(s[0], e[0], i), got = sparse_step(s[1], e[1], i);
            if (!(fabs(want - got) <= close * want)) fail_msg("step %d: %.9g instead of %.9g", i, got, want);
            const double other = sparse_step(s[2], e[2], i);
            if (!i) assert_true(fabs(other - want) <= 1e-5 * want); /* the weights, */
            differs |= fabs(other - want) > 1e-3 * want;            /* without moments */
        }
        assert_true(differs);
        for (int i = 0; i < 3; i++) assert_int_equal(tn_close(s[i]), TN_OK);
    }
}

RUN_TESTS(make_base, drop_base)
