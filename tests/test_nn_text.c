/* test_nn_text.c - texts as data sets: vocabulary and parts, windows as they stand and drawn, where a run
 * goes on, and accuracy and loss over a whole part.
 *
 * Each test writes the file it is about; what windows must hold is worked out here from its bytes. Read
 * `text` and windows_cover_the_part first. */
#include "folder.h"
#include "rig.h"
#include "said.h"
#include "../nn/nn.h"
#include "../src/core/alloc.h"

static char dir[] = "/tmp/tn_test_text_XXXXXX";
static char path[64], saved[64];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof(path), "%s/text", dir);
    snprintf(saved, sizeof(saved), "%s/saved.safetensors", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    unlink(saved);
    return rmdir(dir);
}

/* N bytes of SIZE kinds that no short period repeats; the last kind stands in the last tenth alone. */
enum { N = 1003, SPLIT = 902, SIZE = 12 };
static const unsigned char kinds[SIZE] = {0, '\n', ' ', 'A', 'b', 'c', 'x', 'y', 'z', 128, 200, 255};
static unsigned char text[N];

static void put_text(void)
{
    rng r = {12345};
    for (int i = 0; i < N; i++) text[i] = kinds[rng_below(&r, SIZE - 1)];
    text[N - 2] = kinds[SIZE - 1];
    spill(path, text, N);
}

static int token_of(int byte)
{
    for (int i = 0; i < SIZE; i++)
        if (kinds[i] == byte) return i;
    return -1;
}

static tn_session *session(tn_device_kind device, uint64_t seed)
{
    tn_session *s = tn_open(.device = device, .mode = TN_EAGER, .seed = seed, .log = hear_warnings);
    assert_non_null(s);
    return s;
}

static void close_well(tn_session *s)
{
    if (tn_error(s)) fail_msg("%s", tn_error_text(s));
    assert_int_equal(tn_close(s), TN_OK);
}

/* ---- files and windows ---- */

TEST(the_vocabulary)
{
    put_text();
    tn_session *s = session(TN_REF, 1);
    for (int part = TN_TRAIN; part <= TN_TEST; part++) {
        tn_dataset *d = tn_dataset_text(s, path, (tn_part)part, .ctx = 10);
        assert_int_equal(tn_text_vocabulary(d), SIZE); /* of the whole file */
        for (int b = -1; b <= 256; b++) assert_int_equal(tn_text_token(d, b), token_of(b));
        for (int i = 0; i < SIZE; i++) assert_int_equal(tn_text_byte(d, i), kinds[i]);
        assert_int_equal(tn_text_byte(d, SIZE), -1);
        assert_int_equal(tn_text_byte(d, -1), -1);
    }
    tn_dataset *images = tn_dataset_from(s, (float[]){1}, (int32_t[]){0}, 1, 1, (int64_t[]){1});
    assert_int_equal(tn_text_vocabulary(images) + tn_text_vocabulary(NULL), 0);
    assert_int_equal(tn_text_token(images, 'A'), -1);
    assert_int_equal(tn_text_byte(NULL, 0), -1);
    close_well(s);
}

/* Reads a batch of windows and checks its shapes. */
static void read_batch(const tn_batch *b, int64_t n, int64_t ctx, int32_t *x, int32_t *y)
{
    assert_int_equal(b->n, n);
    for (int i = 0; i < 2; i++) {
        const tn_tensor *t = i ? b->y : b->x;
        assert_int_equal(tn_ndim(t), 2);
        assert_int_equal(tn_dim(t, 0), n);
        assert_int_equal(tn_dim(t, 1), ctx);
        assert_int_equal(tn_dtype_of(t), TN_I32);
    }
    assert_int_equal(tn_read(b->x, TN_I32, x, (size_t)(n * ctx) * sizeof(*x)), TN_OK);
    assert_int_equal(tn_read(b->y, TN_I32, y, (size_t)(n * ctx) * sizeof(*y)), TN_OK);
}

TEST(windows_cover_the_part)
{
    put_text();
    for (int64_t ctx = 1; ctx <= 130; ctx = ctx < 8 ? ctx + 1 : ctx * 2 - 3) {
        tn_session *s = session(TN_REF, 1);
        for (int part = TN_TRAIN; part <= TN_TEST; part++) {
            const unsigned char *from = part == TN_TRAIN ? text : text + SPLIT;
            int64_t labels = (part == TN_TRAIN ? SPLIT : N - SPLIT) - 1, k = 0;
            int32_t x[3 * 200], y[3 * 200];
            tn_dataset *d = tn_dataset_text(s, path, (tn_part)part, .ctx = ctx);
            assert_int_equal(tn_dataset_count(d), (labels + ctx - 1) / ctx);
            tn_batch b;
            for (tn_loader *l = tn_loader_open(d, .batch = 3); tn_next(l, &b);) {
                read_batch(&b, b.n, ctx, x, y);
                for (int64_t i = 0; i < b.n * ctx; i++, k++) {
                    assert_int_equal(x[i], k < labels ? token_of(from[k]) : 0);
                    assert_int_equal(y[i], k < labels ? token_of(from[k + 1]) : -100);
                }
            }
            assert_in_range(k, labels, labels + ctx - 1);
        }
        close_well(s);
    }
}

TEST(drawn_windows)
{
    enum { CTX = 7, DRAWN = 4000 };
    static uint32_t place[DRAWN], again[DRAWN];
    put_text();
    tn_session *s = session(TN_REF, 9);
    tn_dataset *d = tn_dataset_text(s, path, TN_TRAIN, .ctx = CTX);
    int32_t x[DRAWN], y[DRAWN];
    tn_batch b;
    for (int pass = 0; pass < 3; pass++) {
        int64_t k = 0;
        tn_nn_places(place, 0, tn_dataset_count(d), SPLIT - CTX, 9, pass);
        for (tn_loader *l = tn_loader_open(d, .batch = 4 + pass, .shuffle = 1); tn_next(l, &b);) {
            read_batch(&b, b.n, CTX, x, y);
            for (int64_t i = 0; i < b.n; i++, k++)
                for (int t = 0; t < CTX; t++) {
                    assert_int_equal(x[i * CTX + t], token_of(text[place[k] + t]));
                    assert_int_equal(y[i * CTX + t], token_of(text[place[k] + t + 1]));
                }
        }
        assert_int_equal(k, tn_dataset_count(d));
    }
    close_well(s);
    /* window i is a function of i, whatever stands before it; neighbouring passes and seeds are others */
    tn_nn_places(place, 0, DRAWN, 1 << 30, 9, 0);
    tn_nn_places(again, 100, DRAWN - 100, 1 << 30, 9, 0);
    assert_memory_equal(place + 100, again, (DRAWN - 100) * sizeof(*place));
    for (int other = 0; other < 2; other++) {
        tn_nn_places(again, 0, DRAWN, 1 << 30, other ? 10 : 9, other ? 0 : 1);
        for (int shift = -2; shift <= 2; shift++)
            for (int i = 2; i < DRAWN - 2; i++) assert_int_not_equal(place[i], again[i + shift]);
    }
    /* every place as often as every other: 4000 draws of 8, expected 500 each, 5 sigma is 105 */
    int tally[8] = {0};
    tn_nn_places(place, 0, DRAWN, 8, 3, 0);
    for (int i = 0; i < DRAWN; i++) {
        assert_in_range(place[i], 0, 7);
        tally[place[i]]++;
    }
    for (int i = 0; i < 8; i++) assert_in_range(tally[i], 395, 605);
}

TEST(refused)
{
    tn_session *s = session(TN_REF, 1);
    unlink(path);
    null_with(s, TN_E_IO, path, tn_dataset_text(s, path, TN_TRAIN));
    null_with(s, TN_E_IO, "not a plain file", tn_dataset_text(s, dir, TN_TRAIN));
    put_text();
    null_with(s, TN_E_NULL, "path NULL", tn_dataset_text(s, NULL, TN_TRAIN));
    null_with(s, TN_E_ARG, "part 7", tn_dataset_text(s, path, (tn_part)7));
    null_with(s, TN_E_ARG, "ctx -1", tn_dataset_text(s, path, TN_TRAIN, .ctx = -1));
    assert_null(tn_dataset_text(s, path, TN_TRAIN, .ctx = SPLIT));
    failed(s, TN_E_FORMAT, "1003 characters are too few");
    assert_non_null(tn_dataset_text(s, path, TN_TRAIN, .ctx = SPLIT - 1));
    for (size_t n = 0; n < 20; n++) {
        spill(path, text, n);
        tn_dataset *d = tn_dataset_text(s, path, TN_TEST, .ctx = 2);
        if (n - n * 9 / 10 >= 2 && n * 9 / 10 >= 2) {
            assert_non_null(d);
        } else {
            assert_null(d);
            failed(s, TN_E_FORMAT, "too few");
        }
    }
    assert_null(tn_dataset_text(NULL, path, TN_TRAIN));
    /* a part shorter than a window has one, filled up, and drawing finds it */
    tn_dataset *d = tn_dataset_text(s, path, TN_TEST, .ctx = 5);
    int32_t x[10], y[10];
    tn_batch b;
    assert_int_equal(tn_dataset_count(d), 1);
    assert_int_equal(tn_next(tn_loader_open(d, .batch = 2, .shuffle = 1, .batches = 1), &b), 1);
    read_batch(&b, 2, 5, x, y);
    for (int i = 0; i < 10; i++) assert_int_equal(y[i], i % 5 ? -100 : tn_text_token(d, text[18]));
    null_with(s, TN_E_ARG, "batches -1", tn_loader_open(d, .batches = -1));
    null_with(s, TN_E_NOMEM, "no memory", tn_loader_open(d, .batch = INT64_MAX / 16, .shuffle = 1));
    close_well(s);
}

TEST(lack_of_memory)
{
    put_text();
    int failed = 0;
    for (long k = 0; k < 200; k++) {
        tn_session *s = session(TN_REF, 1);
        tn_batch b;
        tn_alloc_fail_after(k);
        tn_dataset *d = tn_dataset_text(s, path, TN_TRAIN, .ctx = 8);
        tn_loader *l = tn_loader_open(d, .batch = 2, .shuffle = 1);
        int got = tn_next(l, &b);
        tn_alloc_fail_after(-1);
        int status = tn_error(s);
        tn_close(s);
        if (got) break;
        assert_int_equal(status, TN_E_NOMEM);
        failed++;
    }
    assert_in_range(failed, 8, 199);
}

/* ---- cutting a pass short, and going on
 * -------------------------------------------------------------------- */

TEST(passes_cut_short)
{
    enum { CTX = 90, BATCH = 4 }; /* 11 windows */
    put_text();
    forget();
    tn_session *s = session(TN_REF, 5);
    tn_dataset *d = tn_dataset_text(s, path, TN_TRAIN, .ctx = CTX);
    tn_batch b;
    int64_t number = 0, epoch, at;
    int32_t x[BATCH * CTX], y[BATCH * CTX];
    uint32_t place[100 * BATCH];
    assert_int_equal(tn_dataset_count(d), 11);
    tn_nn_places(place, 0, 100 * BATCH, SPLIT - CTX, 5, 0);
    /* windows that are drawn have no end: one pass, in three pieces, many times longer than the text */
    static const int64_t until[] = {1, 20, 100, 100, 50};
    for (int piece = 0; piece < 5; piece++) {
        tn_loader *l = tn_loader_open(d, .batch = BATCH, .shuffle = 1, .batches = until[piece]);
        assert_int_equal(tn_loader_batches(l), until[piece]);
        while (tn_next(l, &b)) {
            assert_int_equal(b.number, number);
            read_batch(&b, BATCH, CTX, x, y);
            for (int i = 0; i < BATCH; i++)
                assert_int_equal(x[i * CTX], token_of(text[place[number * BATCH + i]]));
            number++;
            tn_nn_dataset_position(d, &epoch, &at);
            assert_int_equal(epoch, 0);
            assert_int_equal(at, number * BATCH);
        }
        assert_int_equal(number, until[piece] > number ? until[piece] : number);
        assert_int_equal(tn_dataset_epoch(d), 0);
    }
    assert_int_equal(number, 100);
    assert_int_equal(tn_next(tn_loader_open(d, .batch = BATCH, .shuffle = 1), &b), 0); /* past the pass */
    assert_int_equal(tn_dataset_epoch(d), 1);
    /* as they stand: 3 batches of 4, 4 and 3 in a pass, taken two at a time */
    tn_dataset *e = tn_dataset_text(s, path, TN_TRAIN, .ctx = CTX);
    int64_t taken = 0;
    for (tn_loader *l = tn_loader_open(e, .batch = BATCH, .batches = 2); tn_next(l, &b);) taken += b.n;
    assert_int_equal(taken, 8);
    assert_int_equal(tn_dataset_epoch(e), 0);
    assert_int_equal(n_said,
                     3); /* of d, above: to 100 batches for the second time, to 50, and past the pass */
    assert_non_null(strstr(said, "no batch is left of this pass, which has come to 100"));
    forget();
    assert_int_equal(tn_next(tn_loader_open(e, .batch = BATCH, .batches = 2), &b), 0);
    assert_int_equal(n_said, 1);
    assert_non_null(strstr(
        said, "no batch is left: .batches = 2 counts from where the pass began, which has come to 2; 2 "
              "more of this pass are .batches = 4"));
    assert_int_equal(tn_dataset_epoch(e), 0);
    for (tn_loader *l = tn_loader_open(e, .batch = BATCH, .batches = 9); tn_next(l, &b);) taken += b.n;
    assert_int_equal(taken, 11);
    assert_int_equal(tn_dataset_epoch(e), 1);
    assert_int_equal(n_said, 1);
    assert_int_equal(tn_next(tn_loader_open(e, .batch = 12, .drop_last = true), &b), 0);
    assert_int_equal(n_said, 2);
    assert_non_null(strstr(said, "no batch: .drop_last leaves out the 11 items"));
    close_well(s);
}

TEST(a_checkpoint_knows_the_window)
{
    enum { CTX = 8, BATCH = 5, BATCHES = 300 }; /* far beyond the 113 windows of a pass */
    static int32_t want[BATCHES][BATCH * CTX];
    int32_t x[BATCH * CTX], y[BATCH * CTX];
    tn_batch b;
    put_text();
    for (int stop = 1; stop <= BATCHES; stop += 149) {
        tn_session *s = session(TN_REF, 5);
        tn_dataset *d = tn_dataset_text(s, path, TN_TRAIN, .ctx = CTX);
        assert_non_null(tn_linear_new(s, "fc", 2, 2));
        for (tn_loader *l = tn_loader_open(d, .batch = BATCH, .shuffle = 1, .batches = BATCHES);
             tn_next(l, &b);) {
            read_batch(&b, BATCH, CTX, want[b.number], y);
            if (b.number + 1 == stop) assert_int_equal(tn_save(s, saved), TN_OK);
        }
        close_well(s);
        s = session(TN_REF, 77); /* the seed comes with the checkpoint */
        d = tn_dataset_text(s, path, TN_TRAIN, .ctx = CTX);
        assert_non_null(tn_linear_new(s, "fc", 2, 2));
        assert_int_equal(tn_load(s, saved), TN_OK);
        int64_t number = stop;
        for (tn_loader *l = tn_loader_open(d, .batch = BATCH, .shuffle = 1, .batches = BATCHES);
             tn_next(l, &b);) {
            assert_int_equal(b.number, number);
            read_batch(&b, BATCH, CTX, x, y);
            assert_memory_equal(x, want[number], sizeof(x));
            number++;
        }
        assert_int_equal(number, BATCHES);
        close_well(s);
    }
}

/* ---- evaluation
 * -------------------------------------------------------------------------------------------- */

/* Logits that depend on the token alone: row x of a table. */
static tn_tensor *bigram(tn_session *s, tn_tensor *x, void *user)
{
    (void)s;
    return tn_embedding_forward(user, x);
}

TEST(loss_and_accuracy)
{
    put_text();
    for (int64_t ctx = 1; ctx <= 200; ctx = ctx * 5 + 2) { /* the last is longer than the part */
        tn_session *s = session(TN_CPU, 3);
        tn_dataset *d = tn_dataset_text(s, path, TN_TEST, .ctx = ctx);
        tn_embed *table = tn_embedding_new(s, "table", SIZE, SIZE);
        double t[SIZE * SIZE], loss = 0, right = 0;
        assert_int_equal(tn_read(table->weight, TN_F64, t, sizeof(t)), TN_OK);
        for (int k = SPLIT; k + 1 < N; k++) {
            const double *row = t + token_of(text[k]) * SIZE;
            double sum = 0;
            int best = 0, y = token_of(text[k + 1]);
            for (int i = 0; i < SIZE; i++) {
                sum += exp(row[i]);
                if (row[i] > row[best]) best = i;
            }
            loss += log(sum) - row[y];
            right += best == y;
        }
        double labels = N - SPLIT - 1, got = tn_evaluate_loss(s, d, bigram, table);
        if (!(fabs(got - loss / labels) < 1e-5))
            fail_msg("ctx %d: %.9g, not %.9g", (int)ctx, got, loss / labels);
        got = tn_evaluate(s, d, bigram, table);
        if (!(fabs(got - right / labels) < 1e-12)) fail_msg("ctx %d: %.9g right", (int)ctx, got);
        assert_true(tn_is_training(s));
        close_well(s);
    }
}

static tn_tensor *apply(tn_session *s, tn_tensor *x, void *user)
{
    (void)s;
    return tn_linear_forward(user, x);
}

/* Labels that are ignored do not count; images have one label each. */
TEST(loss_of_other_data)
{
    enum { ITEMS = 300, CLASSES = 3 };
    float x[ITEMS * CLASSES];
    int32_t y[ITEMS];
    double loss = 0, right = 0, count = 0;
    for (int i = 0; i < ITEMS; i++) {
        y[i] = i % 7 == 3 ? -100 : i % CLASSES;
        double sum = 0;
        for (int c = 0; c < CLASSES; c++) {
            x[i * CLASSES + c] = (float)((i * 5 + c * 3) % 11) / 4;
            sum += exp((double)x[i * CLASSES + c]);
        }
        if (y[i] < 0) continue;
        const float *row = x + i * CLASSES;
        loss += log(sum) - (double)row[y[i]];
        int best = row[1] > row[0];
        if (row[2] > row[best]) best = 2;
        right += best == y[i];
        count++;
    }
    tn_session *s = session(TN_CPU, 3);
    tn_dataset *d = tn_dataset_from(s, x, y, ITEMS, 1, (int64_t[]){CLASSES});
    tn_linear *same = tn_linear_new(s, "same", CLASSES, CLASSES, .no_bias = true);
    tn_assign(same->weight, tn_eye(s, CLASSES, TN_F32));
    tn_flush(s);
    double got = tn_evaluate_loss(s, d, apply, same);
    if (!(fabs(got - loss / count) < 1e-5)) fail_msg("%.9g, not %.9g", got, loss / count);
    got = tn_evaluate(s, d, apply, same);
    if (!(fabs(got - right / count) < 1e-12)) fail_msg("%.9g right, not %.9g", got, right / count);
    tn_embed *table = tn_embedding_new(s, "table", 4, 4);
    assert_true(isnan(tn_evaluate_loss(s, d, bigram, table))); /* f32 values are no indices */
    assert_int_not_equal(tn_error(s), TN_OK);
    tn_clear_error(s);
    assert_true(isnan(tn_evaluate_loss(s, NULL, bigram, table)));
    failed(s, TN_E_NULL, "evaluate_loss");
    assert_true(isnan(tn_evaluate_loss(s, d, NULL, table)));
    failed(s, TN_E_NULL, "evaluate_loss");
    close_well(s);
}

RUN_TESTS(setup, teardown)
