/* test_nn_augment.c - what a loader's .augment does to images: each view is one that may be, as often as
 * every other, and the same whatever the number of threads and wherever a run is cut in two.
 *
 * Images are drawn so that a view tells how it was made; colours and mixtures are worked out here. Read
 * one_of_the_views first. */
#include "idx_files.h"
#include "rig.h"
#include "../nn/augment.h"

static tn_session *session(uint64_t seed)
{
    tn_session *s = tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = seed, .log = quiet);
    assert_non_null(s);
    return s;
}

enum { COUNT = 60, TALL = 7, WIDE = 5, ITEM = TALL * WIDE * 3 };
static unsigned char pixels[COUNT * ITEM];
static int32_t labels[COUNT], masks[COUNT * TALL * WIDE];

static void draw(void)
{
    uint32_t r = 1;
    for (int i = 0; i < COUNT * ITEM; i++)
        pixels[i] = (unsigned char)(40 + ((r = r * 1664525u + 1013904223u) >> 24) * 200 / 256);
    for (int i = 0; i < COUNT * TALL * WIDE; i++) masks[i] = pixels[3 * i];
    for (int i = 0; i < COUNT; i++) labels[i] = i % 4;
}

static tn_dataset *images(tn_session *s, bool with_masks)
{
    draw();
    const tn_array a[] = {{.data = pixels, .dtype = TN_U8, .shape = {TALL, WIDE, 3}, .std = {1, 1, 1}},
                          {.data = labels, .dtype = TN_I32},
                          {.data = masks, .dtype = TN_I32, .shape = {TALL, WIDE}}};
    return tn_dataset_arrays(s, COUNT, with_masks ? 3 : 2, a);
}

/* The pixel (or 0 beyond the edge) that a view has at (y, x). */
static int seen(int k, int y, int x, int c, bool flip, int dy, int dx)
{
    const int sy = y + dy, sx = (flip ? WIDE - 1 - x : x) + dx;
    return sy < 0 || sy >= TALL || sx < 0 || sx >= WIDE ? 0 : pixels[k * ITEM + (sy * WIDE + sx) * 3 + c];
}

static bool is_view(const float *x, int k, bool flip, int dy, int dx)
{
    for (int i = 0; i < ITEM; i++)
        if (lround((double)x[i] * 255) != seen(k, i / 3 / WIDE, i / 3 % WIDE, i % 3, flip, dy, dx))
            return false;
    return true;
}

/* Each item is flipped or not and moved by up to .pad; its mask goes with it; and every view comes as often
 * as every other: 60 items in 30 passes are 1800 views, of 2 x 5 x 5 ways, or 36 a way. */
TEST_ON(one_of_the_views, session(1))
{
    enum { PAD = 2, SIDES = 2 * PAD + 1, PASSES = 30 };
    tn_dataset *d = images(s, true);
    int tally[2][SIDES][SIDES] = {{{0}}};
    for (int pass = 0; pass < PASSES; pass++) {
        tn_batch b;
        tn_loader *l = tn_loader_open(d, .batch = COUNT, .augment = {.flip = true, .pad = PAD});
        assert_int_equal(tn_next(l, &b), 1);
        static float x[COUNT * ITEM];
        static int32_t mask[COUNT * TALL * WIDE];
        tn_read(b.x, TN_F32, x, sizeof(x));
        tn_read(b.of[2], TN_I32, mask, sizeof(mask));
        for (int k = 0; k < COUNT; k++) {
            int way = 0;
            while (way < 2 * SIDES * SIDES &&
                   !is_view(x + k * ITEM, k, way & 1, way / 2 / SIDES - PAD, way / 2 % SIDES - PAD))
                way++;
            if (way == 2 * SIDES * SIDES) fail_msg("item %d of pass %d is no view", k, pass);
            tally[way & 1][way / 2 / SIDES][way / 2 % SIDES]++;
            for (int i = 0; i < TALL * WIDE; i++) {
                const int v =
                    seen(k, i / WIDE, i % WIDE, 0, way & 1, way / 2 / SIDES - PAD, way / 2 % SIDES - PAD);
                assert_int_equal(mask[k * TALL * WIDE + i], v ? v : -100);
            }
        }
        tn_loader_close(l);
    }
    double chi = 0; /* of 49 degrees: above 95 once in 10000 */
    for (int i = 0; i < 2 * SIDES * SIDES; i++) chi += pow((&tally[0][0][0])[i] - 36, 2) / 36;
    if (!(chi < 95)) fail_msg("chi square %g", chi);
}

/* All of it at once, as bytes of two passes. */
static const tn_augment everything = {
    .flip = true, .crop = {0.3, 1}, .brightness = 0.3, .contrast = 0.3, .saturation = 0.3, .mixup = 0.4};

static void two_passes(tn_session *s, int workers, int64_t batch, float *x, float *y)
{
    tn_dataset *d = images(s, false);
    int64_t k = 0;
    for (int pass = 0; pass < 2; pass++) {
        tn_batch b;
        for (tn_loader *l =
                 tn_loader_open(d, .batch = batch, .shuffle = 1, .workers = workers, .augment = everything);
             tn_next(l, &b); k += b.n) {
            assert_int_equal(tn_dim(b.y, 1), 4);
            tn_read(b.x, TN_F32, x + k * ITEM, (size_t)(b.n * ITEM) * sizeof(*x));
            tn_read(b.y, TN_F32, y + k * 4, (size_t)b.n * 4 * sizeof(*y));
        }
    }
    assert_int_equal(k, 2 * COUNT);
    if (tn_error(s)) fail_msg("%s", tn_error_text(s));
}

TEST(any_number_of_threads)
{
    static float x[3][2 * COUNT * ITEM], y[3][2 * COUNT * 4];
    for (int i = 0; i < 3; i++) {
        tn_session *s = session(i ? 7 : 8);
        two_passes(s, i == 1 ? -1 : 4, 16, x[i], y[i]);
        assert_int_equal(tn_close(s), TN_OK);
    }
    assert_memory_equal(x[1], x[2], sizeof(x[1]));
    assert_memory_equal(y[1], y[2], sizeof(y[1]));
    assert_memory_not_equal(x[0], x[1], sizeof(x[1])); /* another seed */
    assert_memory_not_equal(x[1], x[1] + COUNT * ITEM, sizeof(x[1]) / 2);
}

TEST(a_run_that_goes_on)
{
#ifdef TN_HAVE_CJSON
    static float whole[2][2 * COUNT * ITEM], parts[2 * COUNT * ITEM];
    tn_session *s = session(3);
    two_passes(s, 0, 16, whole[0], whole[1]);
    tn_close(s);
    for (int stop = 1; stop < 8; stop += 2) { /* batches; 4 a pass */
        int64_t k = 0;
        tn_batch b;
        for (int part = 0; part < 2; part++) {
            s = session(part ? 99 : 3); /* the seed comes with the checkpoint */
            tn_linear_new(s, "fc", 2, 2);
            tn_dataset *d = images(s, false);
            if (part) assert_int_equal(tn_load(s, in_base("run.safetensors")), TN_OK);
            for (int taken = part ? stop : 0; tn_dataset_epoch(d) < 2 && !(taken == stop && !part);) {
                for (tn_loader *l =
                         tn_loader_open(d, .batch = 16, .shuffle = 1, .workers = 2, .augment = everything);
                     tn_next(l, &b); k += b.n) {
                    tn_read(b.x, TN_F32, parts + k * ITEM, (size_t)(b.n * ITEM) * sizeof(*parts));
                    if (++taken == stop && !part) {
                        k += b.n;
                        assert_int_equal(tn_save(s, in_base("run.safetensors")),
                                         TN_OK); /* others are ready already */
                        break;
                    }
                }
            }
            tn_close(s);
        }
        assert_int_equal(k, 2 * COUNT);
        assert_memory_equal(parts, whole[0], sizeof(parts));
    }
#else
    skip();
#endif
}

/* ---- numbers that are drawn ---- */

TEST(boxes)
{
    enum { DRAWS = 4000, HIGH = 300, BROAD = 400 };
    double share = 0, least = 1, most = 0, middle = 0;
    for (int k = 0; k < DRAWS; k++) {
        nn_draw draw = {.how = {.crop = {.1, .5}}, .key = tn_nn_key(5, 0)};
        double box[4];
        tn_nn_crop_box(&draw, k, HIGH, BROAD, box);
        assert_true(box[0] >= 0 && box[1] >= 0 && box[2] <= HIGH && box[3] <= BROAD);
        const double h = box[2] - box[0], w = box[3] - box[1], of = h * w / (HIGH * BROAD);
        assert_true(w / h < 1.35 && h / w < 1.35);
        share += of / DRAWS;
        least = fmin(least, of);
        most = fmax(most, of);
        middle += (box[0] + box[2]) / 2 / HIGH / DRAWS;
        for (int side = 1; side <= 40; side += 13) { /* boxes that cannot be are none */
            draw.how.crop[0] = draw.how.crop[1] = 1;
            tn_nn_crop_box(&draw, k, side, 1, box);
            assert_true(box[0] >= 0 && box[1] == 0 && box[2] <= side && box[3] == 1 && box[2] > box[0]);
        }
    }
    assert_true(fabs(share - .3) < .01 && least < .102 && most > .498 && fabs(middle - .5) < .01);
}

/* Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1)). */
TEST(shares)
{
    static const double alpha[] = {0.01, 0.2, 1, 2.5, 4};
    for (int i = 0; i < 5; i++) {
        enum { DRAWS = 20000 };
        const nn_draw draw = {.how = {.mixup = alpha[i]}, .key = tn_nn_key(5, i)};
        double sum = 0, square = 0;
        for (int k = 0; k < DRAWS; k++) {
            const double r = tn_nn_share(&draw, k);
            assert_true(r >= 0 && r <= 1);
            sum += r;
            square += (r - .5) * (r - .5);
        }
        const double var = 1 / (4 * (2 * alpha[i] + 1));
        if (!(fabs(sum / DRAWS - .5) < 5 * sqrt(var / DRAWS)) || !(fabs(square / DRAWS - var) < .05 * var))
            fail_msg("alpha %g: mean %g, variance %g, not %g", alpha[i], sum / DRAWS, square / DRAWS, var);
    }
}

/* Of images that are all of one value, that of their class, x says what y must be. */
TEST(mixtures)
{
    enum { CLASSES = 5, ITEMS = 37 };
    unsigned char grey[ITEMS];
    int32_t y[ITEMS];
    for (int i = 0; i < ITEMS; i++) grey[i] = (unsigned char)(50 * (y[i] = i % CLASSES));
    y[3] = y[9] = y[14] = y[34] = -100; /* no class: one of a pair, both of one, one with itself */
    tn_session *s = session(1);
    tn_dataset *d =
        tn_dataset_arrays(s, ITEMS,
                          TN_ARRAYS({.data = grey, .dtype = TN_U8, .shape = {1, 1, 1}, .std = {1}},
                                    {.data = y, .dtype = TN_I32}));
    int mixed = 0;
    for (int pass = 0; pass < 20; pass++) {
        tn_batch b;
        for (tn_loader *l = tn_loader_open(d, .batch = 8, .augment = {.mixup = 1}); tn_next(l, &b);) {
            float x[8], soft[8 * CLASSES];
            tn_read(b.x, TN_F32, x, (size_t)b.n * sizeof(*x));
            tn_read(b.y, TN_F32, soft, (size_t)b.n * CLASSES * sizeof(*soft));
            for (int i = 0; i < b.n; i++) {
                double sum = 0, value = 0;
                for (int c = 0; c < CLASSES; c++) {
                    sum += (double)soft[i * CLASSES + c];
                    value += c * 50 / 255.0 * (double)soft[i * CLASSES + c];
                    mixed += soft[i * CLASSES + c] > .1f && soft[i * CLASSES + c] < .9f;
                }
                const int64_t at = b.number * 8 + i, other = b.number * 8 + b.n - 1 - i;
                const int want = y[at] >= 0 || y[other] >= 0;
                if (want && (y[at] < 0 || y[other] < 0))
                    assert_true(soft[i * CLASSES + (y[at] < 0 ? y[other] : y[at])] == 1);
                if (!(fabs(sum - want) < 1e-6) || !(fabs(value - (double)x[i]) < 1e-5))
                    fail_msg("item %d: %g of %g", i, value, sum);
            }
        }
    }
    assert_true(mixed > 300);
    /* The loss that the header names: of equal logits that of each class. */
    tn_batch b;
    assert_int_equal(tn_next(tn_loader_open(d, .batch = 2, .augment = {.mixup = 1}), &b), 1);
    tn_tensor *logits = tn_zeros(s, TN_F32, TN_SHAPE(2, CLASSES));
    const double loss = tn_item(
        tn_neg(tn_mean(tn_sum(tn_mul(b.y, tn_log_softmax(logits, -1)), TN_AXES(-1), false), TN_ALL, false)));
    assert_true(fabs(loss - log(CLASSES)) < 1e-6);
    const int32_t bad[] = {-5, -1, CLASSES, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; i++) {
        char text[64];
        y[2] = bad[i];
        snprintf(text, sizeof(text), "labels[2] is %d, must be from 0 to 4", bad[i]);
        assert_int_equal(tn_next(tn_loader_open(d, .batch = 8, .augment = {.mixup = 1}), &b), 0);
        failed(s, TN_E_INDEX, text);
    }
    assert_int_equal(tn_close(s), TN_OK);
}

/* Brightness, contrast and saturation as torchvision defines them, of the factors that a view says. */
TEST_ON(colours, session(1))
{
    tn_dataset *d = images(s, false);
    const tn_augment how = {.brightness = .6, .contrast = .7, .saturation = 1.5};
    const nn_draw drawn = {.how = how, .key = tn_nn_key(1, 0)};
    static float x[COUNT * ITEM];
    double least[3] = {9, 9, 9}, most[3] = {0, 0, 0};
    tn_batch b;
    assert_int_equal(tn_next(tn_loader_open(d, .batch = COUNT, .augment = how), &b), 1);
    tn_read(b.x, TN_F32, x, sizeof(x));
    for (int k = 0; k < COUNT; k++) {
        nn_view v;
        tn_nn_view_of(&drawn, k, &v);
        const double f[3] = {(double)v.brightness, (double)v.contrast, (double)v.saturation};
        for (int i = 0; i < 3; i++) least[i] = fmin(least[i], f[i]), most[i] = fmax(most[i], f[i]);
        double p[ITEM], mean = 0;
        for (int i = 0; i < ITEM; i++) p[i] = fmin(1, pixels[k * ITEM + i] / 255.0 * f[0]);
        for (int i = 0; i < ITEM; i += 3)
            mean += (.299 * p[i] + .587 * p[i + 1] + .114 * p[i + 2]) / (ITEM / 3.0);
        for (int i = 0; i < ITEM; i++) p[i] = fmax(0, fmin(1, f[1] * p[i] + (1 - f[1]) * mean));
        for (int i = 0; i < ITEM; i++) {
            const double *q = p + i / 3 * 3, grey = .299 * q[0] + .587 * q[1] + .114 * q[2],
                         want = fmax(0, fmin(1, f[2] * p[i] + (1 - f[2]) * grey));
            if (!(fabs((double)x[k * ITEM + i] - want) < 2e-6))
                fail_msg("%d: %g, not %g", i, (double)x[k * ITEM + i], want);
        }
    }
    const double by[3] = {.6, .7, 1.5};
    for (int i = 0; i < 3; i++)
        assert_true(least[i] >= fmax(0, 1 - by[i]) && least[i] < 1 - by[i] + .3 + fmax(0, by[i] - 1) &&
                    most[i] <= 1 + by[i] && most[i] > 1 + by[i] - .3);
}

static int drawn(int64_t index, void *const *out, void *user)
{
    (void)user;
    memcpy(out[0], pixels + index * ITEM, ITEM);
    return TN_OK;
}

/* Images that a function makes are seen as those in an array. */
TEST(images_of_a_function)
{
    static float x[2][COUNT * ITEM];
    for (int made = 0; made < 2; made++) {
        tn_session *s = session(1);
        tn_dataset *d = images(s, false);
        if (made)
            d = tn_dataset_fn(s, COUNT, drawn, NULL,
                              TN_ARRAYS({.dtype = TN_U8, .shape = {TALL, WIDE, 3}, .std = {1, 1, 1}},
                                        {.data = labels, .dtype = TN_I32}));
        tn_batch b;
        if (!tn_next(tn_loader_open(d, .batch = COUNT, .augment = everything), &b))
            fail_msg("%s", tn_error_text(s));
        tn_read(b.x, TN_F32, x[made], sizeof(x[0]));
        assert_int_equal(tn_close(s), TN_OK);
    }
    assert_memory_equal(x[0], x[1], sizeof(x[0]));
}

/* ---- ahead of the step ---- */

typedef struct counting {
    _Atomic int made;
} counting;

static int count(int64_t index, void *const *out, void *user)
{
    *(float *)out[0] = (float)index;
    ((counting *)user)->made++;
    return TN_OK;
}

/* Two batches are the most that stand ready, however long nobody asks. */
TEST_ON(memory_is_bounded, session(1))
{
    counting c = {.made = 0};
    tn_dataset *d = tn_dataset_fn(s, 1000, count, &c, 1, &(tn_array){.dtype = TN_F32});
    tn_batch b;
    tn_loader *l = tn_loader_open(d, .batch = 10, .workers = 3);
    for (int taken = 1; taken <= 3; taken++) {
        assert_int_equal(tn_next(l, &b), 1);
        for (int wait = 0; wait < 200 && c.made < 10 * (taken + 2); wait++) usleep(1000);
        usleep(2000);
        assert_int_equal(c.made, 10 * (taken + 2));
    }
}

TEST_ON(refused, session(1))
{
    tn_dataset *d = images(s, false), *m = images(s, true);
    const float x[4] = {0};
    tn_dataset *plain = tn_dataset_from(s, x, labels, 4, 0, NULL);
    const struct {
        tn_dataset *d;
        tn_augment how;
        int status;
        const char *text;
    } bad[] = {{plain, {.flip = true}, TN_E_ARG, "no images"},
               {d, {.pad = -1}, TN_E_ARG, "-1"},
               {d, {.brightness = NAN}, TN_E_ARG, "nan"},
               {d, {.mixup = 5}, TN_E_ARG, "5"},
               {d, {.crop = {0, 1}}, TN_E_ARG, "crop"},
               {d, {.crop = {.5, 1.5}}, TN_E_ARG, "crop"},
               {d, {.crop = {.5, .4}}, TN_E_ARG, "crop"},
               {d, {.crop = {.5, 1}, .pad = 1}, TN_E_ARG, "without pad"},
               {m, {.crop = {.5, 1}}, TN_E_UNSUPPORTED, "array 2"},
               {m, {.mixup = 1}, TN_E_ARG, "mixup"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_null(tn_loader_open(bad[i].d, .augment = bad[i].how));
        failed(s, bad[i].status, bad[i].text);
    }
}

RUN_TESTS(make_base, drop_base)
