/* test_data.c - the readers of image files, data sets, the loader's order, and the progress line.
 *
 * Readers are tried without a session, over files made here: good ones, then each way of being broken, then
 * bytes changed at random, then memory running out at every allocation. Read `good_files` first.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef TN_HAVE_ZLIB
#include <zlib.h>
#endif

#include "../nn/nn.h"

enum { N = 7, H = 3, W = 5 };
static char dir[] = "/tmp/tn_test_data_XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof(path[0]), "%s/%s", dir, name);
    return path[turn];
}

static void put(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void drop(const char *name)
{
    unlink(in_dir(name));
}

static uint8_t pixel(int i, int k)
{
    return (uint8_t)(i * 31 + k * 7);
}

static size_t idx_images(uint8_t *out)
{
    static const uint8_t head[16] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, H, 0, 0, 0, W};
    memcpy(out, head, 16);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < H * W; k++) out[16 + i * H * W + k] = pixel(i, k);
    return 16 + N * H * W;
}

static size_t idx_labels(uint8_t *out)
{
    static const uint8_t head[8] = {0, 0, 8, 1, 0, 0, 0, N};
    memcpy(out, head, 8);
    for (int i = 0; i < N; i++) out[8 + i] = (uint8_t)(i % 10);
    return 8 + N;
}

static void good_files(void)
{
    uint8_t file[256];
    put("train-images-idx3-ubyte", file, idx_images(file));
    put("train-labels-idx1-ubyte", file, idx_labels(file));
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    static const char *const names[] = {"train-images-idx3-ubyte",
                                        "train-labels-idx1-ubyte",
                                        "x",
                                        "x.gz",
                                        "x.png",
                                        "train-images-idx3-ubyte.gz",
                                        "train.png"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) drop(names[i]);
    return rmdir(dir);
}

/* Reads the file x as images and demands this status, and this piece of text in the reason. */
static void refuse(const char *name, const void *data, size_t n, int status, const char *text)
{
    nn_images images = {0};
    nn_why why = {0};
    put(name, data, n);
    assert_int_equal(tn_nn_idx_images(in_dir(name), &images, &why), status);
    assert_null(images.pixels);
    if (!strstr(why.text, text) || !strstr(why.text, name))
        fail_msg("'%s' lacks '%s' or '%s'", why.text, text, name);
}

static void idx_reads(void **state)
{
    (void)state;
    good_files();
    nn_images images = {0};
    nn_why why = {0};
    uint8_t *labels = NULL;
    int64_t n = 0;
    assert_int_equal(tn_nn_idx_images(in_dir("train-images-idx3-ubyte"), &images, &why), TN_OK);
    assert_int_equal(images.n, N);
    assert_int_equal(images.h, H);
    assert_int_equal(images.w, W);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < H * W; k++) assert_int_equal(images.pixels[i * H * W + k], pixel(i, k));
    assert_int_equal(tn_nn_idx_labels(in_dir("train-labels-idx1-ubyte"), &labels, &n, &why), TN_OK);
    assert_int_equal(n, N);
    assert_int_equal(labels[3], 3);
    tn_free_mem(images.pixels);
    tn_free_mem(labels);
}

static void idx_refuses(void **state)
{
    (void)state;
    uint8_t f[256];
    size_t n = idx_images(f);
    nn_images images = {0};
    nn_why why = {0};
    drop("x");
    assert_int_equal(tn_nn_idx_images(in_dir("x"), &images, &why), TN_E_IO);
    assert_non_null(strstr(why.text, "No such file"));
    memset(&why, 0, sizeof(why));
    assert_int_equal(tn_nn_idx_images(dir, &images, &why), TN_E_IO); /* a folder */

    refuse("x", f, 0, TN_E_FORMAT, "cut off");
    refuse("x", f, 3, TN_E_FORMAT, "cut off");
    refuse("x", f, 15, TN_E_FORMAT, "cut off");
    refuse("x", f, n + 1, TN_E_FORMAT, "too many");
    refuse("x", f, n - 1, TN_E_FORMAT, "cut off");
    f[0] = 'P';
    refuse("x", f, n, TN_E_FORMAT, "not an IDX file");
    idx_images(f);
    f[2] = 0x0d;
    refuse("x", f, n, TN_E_FORMAT, "0x0d");
    idx_images(f);
    f[3] = 1;
    refuse("x", f, n, TN_E_FORMAT, "1 axes, 3 expected");
    idx_images(f);
    f[7] = 0;
    refuse("x", f, n, TN_E_FORMAT, "empty");
    idx_images(f);
    memset(f + 4, 0xff, 12);
    refuse("x", f, n, TN_E_FORMAT, "more elements");
}

#ifdef TN_HAVE_ZLIB
static size_t gzip(uint8_t *out, size_t room, const uint8_t *data, size_t n)
{
    z_stream z;
    memset(&z, 0, sizeof(z));
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (z_const Bytef *)data;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static void gz_reads_and_refuses(void **state)
{
    (void)state;
    uint8_t f[256], g[512], longer[256] = {0};
    size_t n = idx_images(f), m = gzip(g, sizeof(g), f, n);
    nn_images images = {0};
    nn_why why = {0};
    put("x.gz", g, m);
    assert_int_equal(tn_nn_idx_images(in_dir("x.gz"), &images, &why), TN_OK);
    assert_memory_equal(images.pixels, f + 16, N * H * W);
    tn_free_mem(images.pixels);

    /* Every shorter file is refused, whichever part is missing. */
    for (size_t k = 2; k < m; k++) refuse("x.gz", g, k, TN_E_FORMAT, "cut off");
    memset(g + m, 0, 1);
    refuse("x.gz", g, m + 1, TN_E_FORMAT, "too many");
    g[m - 8] ^= 1;
    refuse("x.gz", g, m, TN_E_FORMAT, "corrupt");
    memcpy(longer, f, n);
    refuse("x.gz", g, gzip(g, sizeof(g), longer, n + 1), TN_E_FORMAT, "more data");
    f[8] = 0x10; /* asks for 2^28 times more rows: refused before any memory is wanted */
    refuse("x.gz", g, gzip(g, sizeof(g), f, n), TN_E_FORMAT, "more elements");
}
#endif

/* splitmix64, so that a failure can be repeated */
static uint64_t chance(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Changes 1-3 bytes, or cuts the file; whatever comes out, the reader answers with a status and leaks
 * nothing. */
static void fuzz(const char *name, const uint8_t *good, size_t n, int rounds, bool sheet)
{
    uint64_t seed = 42;
    int refused = 0;
    uint8_t *f = malloc(n);
    for (int round = 0; round < rounds; round++) {
        memcpy(f, good, n);
        size_t size = chance(&seed) % 4 ? n : chance(&seed) % n;
        for (uint64_t k = chance(&seed) % 3 + 1; k; k--) f[chance(&seed) % n] = (uint8_t)chance(&seed);
        put(name, f, size);
        nn_images images = {0};
        nn_why why = {0};
        int status = sheet ? tn_nn_sheet(in_dir(name), 4, 28, 28, &images, &why)
                           : tn_nn_idx_images(in_dir(name), &images, &why);
        assert_int_equal(status, why.status);
        if (status) {
            assert_null(images.pixels);
            assert_true(why.text[0]);
            refused++;
        }
        tn_free_mem(images.pixels);
    }
    free(f);
    assert_true(refused > rounds / 10);
}

static void readers_survive_any_bytes(void **state)
{
    (void)state;
    uint8_t f[256];
    size_t n = idx_images(f);
    fuzz("x", f, n, 1500, false);
#ifdef TN_HAVE_ZLIB
    uint8_t g[512];
    fuzz("x.gz", g, gzip(g, sizeof(g), f, n), 1500, false);
#endif
}

#ifdef TN_HAVE_STB
static size_t small_png(uint8_t *out);

static void sheet_reads_and_refuses(void **state)
{
    (void)state;
    uint8_t png[4096];
    size_t n = small_png(png);
    nn_images images = {0};
    nn_why why = {0};
    put("x.png", png, n);
    assert_int_equal(tn_nn_sheet(in_dir("x.png"), 4, 28, 28, &images, &why), TN_OK);
    assert_int_equal(images.n, 4);
    /* tile i is grey 10 i + 5, but its first pixel is i */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(images.pixels[i * 784], i);
        assert_int_equal(images.pixels[i * 784 + 783], 10 * i + 5);
    }
    tn_free_mem(images.pixels);

    static const struct {
        int tiles, h, w, status;
        const char *text;
    } bad[] = {{5, 28, 28, TN_E_FORMAT, "4 tiles for 5 labels"}, {1, 28, 27, TN_E_FORMAT, "not tiles"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        memset(&why, 0, sizeof(why));
        assert_int_equal(tn_nn_sheet(in_dir("x.png"), bad[i].tiles, bad[i].h, bad[i].w, &images, &why),
                         bad[i].status);
        assert_non_null(strstr(why.text, bad[i].text));
    }
    for (size_t k = 0; k < n - 20; k += 7) { /* cut off: up to there pixels are missing */
        memset(&why, 0, sizeof(why));
        put("x.png", png, k);
        images.pixels = NULL;
        assert_int_equal(tn_nn_sheet(in_dir("x.png"), 4, 28, 28, &images, &why), TN_E_FORMAT);
        assert_null(images.pixels);
    }
    fuzz("x.png", png, n, 1000, true);
}

static void be32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* A 56 x 56 grey PNG with stored blocks; check sums of chunks are left 0, which stb_image does not read. */
static size_t small_png(uint8_t *out)
{
    enum { SIDE = 56, RAW = SIDE * (SIDE + 1) };
    static const uint8_t magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    uint8_t *p = out;
    memcpy(p, magic, 8);
    p += 8;
    be32(p, 13);
    memcpy(p + 4, "IHDR", 4);
    be32(p + 8, SIDE);
    be32(p + 12, SIDE);
    memcpy(p + 16, "\10\0\0\0\0", 5);
    be32(p + 21, 0);
    p += 25;
    be32(p, 2 + 5 + RAW + 4);
    memcpy(p + 4, "IDAT", 4);
    p += 8;
    *p++ = 0x78;
    *p++ = 0x01;
    *p++ = 1;
    *p++ = RAW & 255;
    *p++ = RAW >> 8;
    *p++ = (uint8_t) ~(RAW & 255);
    *p++ = (uint8_t) ~(RAW >> 8);
    uint32_t s1 = 1, s2 = 0;
    for (int y = 0; y < SIDE; y++)
        for (int x = -1; x < SIDE; x++) {
            int tile = y / 28 * 2 + x / 28;
            uint8_t v = x < 0 ? 0 : (uint8_t)(x % 28 || y % 28 ? 10 * tile + 5 : tile);
            *p++ = v;
            s1 = (s1 + v) % 65521;
            s2 = (s2 + s1) % 65521;
        }
    be32(p, s2 << 16 | s1);
    be32(p + 4, 0);
    p += 8;
    memcpy(p, "\0\0\0\0IEND\0\0\0\0", 12);
    return (size_t)(p + 12 - out);
}
#endif

static void readers_report_lack_of_memory(void **state)
{
    (void)state;
    good_files();
    int failed = 0;
    for (long k = 0;; k++) {
        nn_images images = {0};
        nn_why why = {0};
        tn_alloc_fail_after(k);
        int status = tn_nn_idx_images(in_dir("train-images-idx3-ubyte"), &images, &why);
        tn_alloc_fail_after(-1);
        tn_free_mem(images.pixels);
        if (!status) break;
        assert_int_equal(status, TN_E_NOMEM);
        failed++;
    }
    assert_int_equal(failed, 2); /* the file and the pixels */
}

/* ---- with a session ---------------------------------------------------------------------------------------
 */

static void quiet(int level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
}

static tn_session *session(void)
{
    tn_session *s = tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 1, .log = quiet);
    assert_non_null(s);
    return s;
}

static void expect(tn_session *s, int status, const char *text)
{
    assert_int_equal(tn_error(s), status);
    if (!strstr(tn_error_text(s), text)) fail_msg("'%s' lacks '%s'", tn_error_text(s), text);
    tn_clear_error(s);
}

static void dataset_from_a_folder(void **state)
{
    (void)state;
    good_files();
    tn_session *s = session();
    tn_dataset *d = tn_dataset_idx(s, dir, TN_TRAIN, .mean = 0.5, .std = 0.25);
    assert_non_null(d);
    assert_int_equal(tn_dataset_count(d), N);
    tn_batch b;
    int seen = 0;
    for (tn_loader *l = tn_loader_open(d, .batch = 3); tn_next(l, &b); seen++) {
        float x[3 * H * W];
        int32_t y[3];
        assert_int_equal(b.number, seen);
        assert_int_equal(b.n, seen < 2 ? 3 : 1); /* the short last batch is kept */
        assert_int_equal(tn_ndim(b.x), 4);
        assert_int_equal(tn_dim(b.x, 0), b.n);
        assert_int_equal(tn_dim(b.x, 1), H);
        assert_int_equal(tn_dim(b.x, 2), W);
        assert_int_equal(tn_dim(b.x, 3), 1);
        assert_int_equal(tn_read(b.x, TN_F32, x, (size_t)b.n * H * W * sizeof(float)), TN_OK);
        assert_int_equal(tn_read(b.y, TN_I32, y, (size_t)b.n * sizeof(int32_t)), TN_OK);
        for (int i = 0; i < b.n; i++) {
            assert_int_equal(y[i], (3 * seen + i) % 10);
            for (int k = 0; k < H * W; k++)
                assert_true(x[i * H * W + k] == (float)((pixel(3 * seen + i, k) / 255.0 - 0.5) / 0.25));
        }
    }
    assert_int_equal(seen, 3);

    assert_int_equal(tn_dataset_count(tn_dataset_idx(s, dir, TN_TRAIN, .limit = 2)), 2);
    assert_null(tn_dataset_idx(s, dir, TN_TEST));
    expect(s, TN_E_IO, "t10k-labels-idx1-ubyte");
    assert_null(tn_dataset_idx(s, "/nowhere", TN_TRAIN));
    expect(s, TN_E_IO, "/nowhere");
    assert_null(tn_dataset_idx(s, dir, TN_TRAIN, .classes = 4));
    expect(s, TN_E_FORMAT, "label 4 of item 4");
    assert_null(tn_dataset_idx(s, NULL, TN_TRAIN));
    expect(s, TN_E_ARG, "dir");
    uint8_t f[64];
    idx_labels(f);
    f[7] = N - 1;
    put("train-labels-idx1-ubyte", f, 8 + N - 1);
    assert_null(tn_dataset_idx(s, dir, TN_TRAIN));
    expect(s, TN_E_FORMAT, "7 images for 6 labels");
    assert_int_equal(tn_close(s), TN_OK);
}

static void the_shipped_digits(void **state)
{
    (void)state;
#ifdef TN_HAVE_STB
    tn_session *s = session();
    static const struct {
        tn_part part;
        int n;
    } parts[] = {{TN_TRAIN, 6000}, {TN_TEST, 1000}};
    for (int i = 0; i < 2; i++) {
        tn_dataset *d = tn_dataset_idx(s, "data/digits", parts[i].part);
        if (!d) fail_msg("%s", tn_error_text(s));
        assert_int_equal(tn_dataset_count(d), parts[i].n);
        int count[10] = {0};
        double ink = 0;
        for (int64_t k = 0; k < d->n; k++) count[d->labels[k]]++;
        for (int64_t k = 0; k < d->n * d->item; k++) ink += d->bytes[k] / 255.0;
        for (int k = 0; k < 10; k++) assert_int_equal(count[k], parts[i].n / 10);
        ink /= (double)(d->n * d->item);
        assert_true(ink > 0.08 && ink < 0.2); /* strokes, neither blank nor full */
    }
    tn_close(s);
#else
    skip();
#endif
}

static void the_order(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    uint32_t a[COUNT], b[COUNT];
    int seen[COUNT] = {0}, same = 0;
    tn_nn_order(a, COUNT, 1, 0);
    tn_nn_order(b, COUNT, 1, 0);
    assert_memory_equal(a, b, sizeof(a));
    for (int i = 0; i < COUNT; i++) seen[a[i]]++;
    for (int i = 0; i < COUNT; i++) assert_int_equal(seen[i], 1);
    tn_nn_order(b, COUNT, 1, 1);
    for (int i = 0; i < COUNT; i++) same += a[i] == b[i];
    assert_true(same < 12); /* 1 expected */
    tn_nn_order(b, COUNT, 2, 0);
    for (same = 0; same < COUNT && a[same] == b[same];) same++;
    assert_true(same < 5);
    /* The documented algorithm, pinned: these are part of the file format of a training run. */
    uint32_t pinned[8];
    static const uint32_t want[8] = {0, 1, 4, 3, 7, 2, 6, 5};
    tn_nn_order(pinned, 8, 1, 0);
    assert_memory_equal(pinned, want, sizeof(want));
    /* Each place is equally likely: 6 orders of 3, 6000 seeds. */
    int tally[6] = {0};
    for (uint64_t seed = 0; seed < 6000; seed++) {
        uint32_t p[3];
        tn_nn_order(p, 3, seed * 7919, 3);
        tally[p[0] * 2 + (p[1] > p[2])]++;
    }
    for (int i = 0; i < 6; i++) assert_in_range(tally[i], 870, 1130);
}

static tn_dataset *numbers(tn_session *s, int n)
{
    float x[64];
    int32_t y[64];
    for (int i = 0; i < n; i++) {
        x[i] = (float)i;
        y[i] = i % 3;
    }
    return tn_dataset_from(s, x, y, n, 1, (int64_t[]){1});
}

static void passes_and_positions(void **state)
{
    (void)state;
    tn_session *s = session();
    tn_dataset *d = numbers(s, 10);
    tn_batch b;
    uint32_t order[10];
    int64_t epoch, at;
    for (int pass = 0; pass < 3; pass++) {
        assert_int_equal(tn_dataset_epoch(d), pass);
        tn_nn_order(order, 10, 1, pass);
        int k = 0;
        tn_loader *l = tn_loader_open(d, .batch = 4, .shuffle = 1);
        assert_int_equal(tn_loader_batches(l), 3);
        while (tn_next(l, &b)) {
            float x[4];
            assert_int_equal(tn_read(b.x, TN_F32, x, (size_t)b.n * sizeof(float)), TN_OK);
            for (int i = 0; i < b.n; i++) assert_true(x[i] == (float)order[k++]);
            tn_nn_dataset_position(d, &epoch, &at);
            assert_int_equal(epoch, k < 10 ? pass : pass + 1);
            assert_int_equal(at, k < 10 ? k : 0);
        }
        assert_int_equal(k, 10);
    }
    int count = 0;
    for (tn_loader *l = tn_loader_open(d, .batch = 4, .drop_last = 1); tn_next(l, &b); count++)
        assert_int_equal(b.n, 4);
    assert_int_equal(count, 2);
    /* a batch larger than the set, and stopping early */
    tn_loader *l = tn_loader_open(d, .batch = 100);
    assert_int_equal(tn_next(l, &b), 1);
    assert_int_equal(b.n, 10);
    tn_loader_close(l);
    assert_int_equal(tn_dataset_epoch(d), 5);
    count = 0;
    for (l = tn_loader_open(d, .batch = 100, .drop_last = 1); tn_next(l, &b);) count++;
    assert_int_equal(count, 0);
    /* a loader left open belongs to tn_close; nothing leaks */
    assert_int_equal(tn_next(tn_loader_open(d), &b), 1);
    assert_null(tn_loader_open(d, .batch = -1));
    expect(s, TN_E_ARG, "batch -1");
    assert_null(tn_dataset_from(s, NULL, NULL, 1, 0, NULL));
    expect(s, TN_E_ARG, "tn_dataset_from");
    assert_null(tn_loader_open(NULL));
    assert_int_equal(tn_next(NULL, &b), 0);
    assert_int_equal(tn_close(s), TN_OK);
}

static void a_broken_session_ends_the_loop(void **state)
{
    (void)state;
    tn_session *s = session();
    tn_dataset *d = numbers(s, 9);
    tn_batch b;
    int count = 0;
    for (tn_loader *l = tn_loader_open(d, .batch = 1); tn_next(l, &b);)
        if (++count == 4) tn_fail(s, TN_E_ARG, "test", "broken here");
    assert_int_equal(count, 4);
    expect(s, TN_E_ARG, "broken here");
    tn_close(s);
}

static void data_reports_lack_of_memory(void **state)
{
    (void)state;
    good_files();
    int failed = 0;
    for (long k = 0; k < 200; k++) {
        tn_session *s = session();
        tn_batch b;
        tn_alloc_fail_after(k);
        tn_dataset *d = tn_dataset_idx(s, dir, TN_TRAIN);
        tn_loader *l = tn_loader_open(d, .batch = 2, .shuffle = 1);
        int got = tn_next(l, &b);
        tn_alloc_fail_after(-1);
        if (got) {
            tn_close(s);
            break;
        }
        assert_int_equal(tn_error(s), TN_E_NOMEM);
        failed++;
        tn_close(s);
    }
    assert_in_range(failed, 8, 199);
}

static void the_progress_line(void **state)
{
    (void)state;
    nn_progress p = {.steps = 938, .done = 412, .epoch = 0, .n = 2, .start = 100, .terminal = true};
    char line[256];
    strcpy(p.name[0], "loss");
    strcpy(p.name[1], "acc");
    p.value[0] = 0.1234;
    p.value[1] = 0.96875;
    tn_nn_progress_line(&p, 104.12, line, sizeof(line));
    assert_string_equal(
        line, "epoch 1 [========>           ] 412/938  loss 0.1234  acc 0.9688  10.0 ms/step  ETA 5 s");
    p.terminal = false;
    p.value[1] = NAN;
    p.done = 938;
    tn_nn_progress_line(&p, 109.38, line, sizeof(line));
    assert_string_equal(line, "epoch 1 938/938  loss 0.1234  10.0 ms/step  9.4 s");
    for (size_t size = 1; size < 60; size++) { /* never writes past the end */
        memset(line, 'x', sizeof(line));
        tn_nn_progress_line(&p, 109.38, line, size);
        assert_int_equal(line[size], 'x');
        assert_true(strlen(line) < size);
    }
}

static void progress_in_a_file(void **state)
{
    (void)state;
    tn_session *s = session();
    tn_dataset *d = numbers(s, 40);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    tn_batch b;
    for (tn_loader *l = tn_loader_open(d, .batch = 1, .progress = 1, .progress_to = f); tn_next(l, &b);)
        tn_progress(l, "number", b.number == 0 ? NULL : b.x, "acc", b.x);
    fclose(f);
    int lines = 0;
    for (char *c = text; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, 10);
    assert_null(strchr(text, '\r'));
    assert_non_null(strstr(text, "epoch 1 40/40"));
    assert_non_null(strstr(text, "number"));
    free(text);
    tn_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_reads),
        cmocka_unit_test(idx_refuses),
#ifdef TN_HAVE_ZLIB
        cmocka_unit_test(gz_reads_and_refuses),
#endif
        cmocka_unit_test(readers_survive_any_bytes),
#ifdef TN_HAVE_STB
        cmocka_unit_test(sheet_reads_and_refuses),
#endif
        cmocka_unit_test(readers_report_lack_of_memory),
        cmocka_unit_test(dataset_from_a_folder),
        cmocka_unit_test(the_shipped_digits),
        cmocka_unit_test(the_order),
        cmocka_unit_test(passes_and_positions),
        cmocka_unit_test(a_broken_session_ends_the_loop),
        cmocka_unit_test(data_reports_lack_of_memory),
        cmocka_unit_test(the_progress_line),
        cmocka_unit_test(progress_in_a_file),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
