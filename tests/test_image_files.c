/* test_image_files.c - the readers of IDX files, packed and not, and of sheets of tiles.
 *
 * They are tried without a session, over files made here: good ones, then each way of being broken, then
 * bytes changed at random, then memory running out at every allocation. Read idx_reads first. */
#include "idx_files.h"

#ifdef TN_HAVE_ZLIB
#include <zlib.h>
#endif

/* Reads the file x as images and demands this status, and this piece of text in the reason. */
static void refuse(const char *name, const void *data, size_t n, int status, const char *text)
{
    nn_images images = {0};
    nn_why why = {0};
    put(name, data, n);
    assert_int_equal(tn_nn_idx_images(in_base(name), &images, &why), status);
    assert_null(images.pixels);
    if (!strstr(why.text, text) || !strstr(why.text, name))
        fail_msg("'%s' lacks '%s' or '%s'", why.text, text, name);
}

TEST(idx_reads)
{
    good_files();
    nn_images images = {0};
    nn_why why = {0};
    uint8_t *labels = NULL;
    int64_t n = 0;
    assert_int_equal(tn_nn_idx_images(in_base("train-images-idx3-ubyte"), &images, &why), TN_OK);
    assert_int_equal(images.n, N);
    assert_int_equal(images.h, H);
    assert_int_equal(images.w, W);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < H * W; k++) assert_int_equal(images.pixels[i * H * W + k], pixel(i, k));
    assert_int_equal(tn_nn_idx_labels(in_base("train-labels-idx1-ubyte"), &labels, &n, &why), TN_OK);
    assert_int_equal(n, N);
    assert_int_equal(labels[3], 3);
    tn_free_mem(images.pixels);
    tn_free_mem(labels);
}

TEST(idx_refuses)
{
    uint8_t f[256];
    size_t n = idx_images(f);
    nn_images images = {0};
    nn_why why = {0};
    drop("x");
    assert_int_equal(tn_nn_idx_images(in_base("x"), &images, &why), TN_E_IO);
    assert_non_null(strstr(why.text, "No such file"));
    memset(&why, 0, sizeof(why));
    assert_int_equal(tn_nn_idx_images(base, &images, &why), TN_E_IO); /* a folder */

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

TEST(gz_reads_and_refuses)
{
    uint8_t f[256], g[512], longer[256] = {0};
    size_t n = idx_images(f), m = gzip(g, sizeof(g), f, n);
    nn_images images = {0};
    nn_why why = {0};
    put("x.gz", g, m);
    assert_int_equal(tn_nn_idx_images(in_base("x.gz"), &images, &why), TN_OK);
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
    refuse("x", (const uint8_t *)"\0\0\10\3\0\0\0\24\0\0\0\0\0\0\0\10", 16, TN_E_FORMAT, "axis 1 is empty");
    f[8] = 0x10; /* asks for 2^28 times more rows: refused before any memory is wanted */
    refuse("x.gz", g, gzip(g, sizeof(g), f, n), TN_E_FORMAT, "more elements");
}
#endif

/* Changes 1-3 bytes, or cuts the file; whatever comes out, the reader answers with a status and leaks
 * nothing. Check sums of most sheets are then made to fit, without which nothing else is looked at. */
static void fuzz(const char *name, const uint8_t *good, size_t n, int rounds, bool sheet)
{
    rng r = {42};
    int refused = 0;
    uint8_t *f = malloc(n);
    for (int round = 0; round < rounds; round++) {
        memcpy(f, good, n);
        size_t size = rng_next(&r) % 4 ? n : rng_next(&r) % n;
        for (uint64_t k = rng_next(&r) % 3 + 1; k; k--) f[rng_next(&r) % n] = (uint8_t)rng_next(&r);
        if (sheet && round % 4) seal_png(f, size);
        put(name, f, size);
        nn_images images = {0};
        nn_why why = {0};
        int status = sheet ? tn_nn_sheet(in_base(name), 4, 28, 28, &images, &why)
                           : tn_nn_idx_images(in_base(name), &images, &why);
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

TEST(readers_survive_any_bytes)
{
    uint8_t f[256];
    size_t n = idx_images(f);
    fuzz("x", f, n, 1500, false);
#ifdef TN_HAVE_ZLIB
    uint8_t g[512];
    fuzz("x.gz", g, gzip(g, sizeof(g), f, n), 1500, false);
#endif
}

#ifdef TN_HAVE_STB
static size_t small_png(uint8_t *out), endless_png(uint8_t *out);

TEST(sheet_reads_and_refuses)
{
    uint8_t png[4096];
    size_t n = small_png(png);
    nn_images images = {0};
    nn_why why = {0};
    put("x.png", png, n);
    assert_int_equal(tn_nn_sheet(in_base("x.png"), 4, 28, 28, &images, &why), TN_OK);
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
        assert_int_equal(tn_nn_sheet(in_base("x.png"), bad[i].tiles, bad[i].h, bad[i].w, &images, &why),
                         bad[i].status);
        assert_non_null(strstr(why.text, bad[i].text));
    }
    for (size_t k = 0; k < n - 20; k += 7) { /* cut off: up to there pixels are missing */
        memset(&why, 0, sizeof(why));
        put("x.png", png, k);
        images.pixels = NULL;
        assert_int_equal(tn_nn_sheet(in_base("x.png"), 4, 28, 28, &images, &why), TN_E_FORMAT);
        assert_null(images.pixels);
    }
    fuzz("x.png", png, n, 1000, true);

    /* Memory is asked for after what the file can hold: a chunk that claims 512 MB, pixels of 64 bits. */
    static const struct {
        size_t at;
        uint8_t with[6];
        const char *text;
    } claim[] = {{33, {0x20, 0, 0, 0, 'I', 'D'}, "corrupt or cut off"},
                 {18, {0x0f, 0xa0, 0, 0, 0x0f, 0xa0}, "4000 x 4000 pixels are more than a file"}};
    for (size_t i = 0; i < sizeof(claim) / sizeof(*claim); i++) {
        small_png(png);
        assert_memory_equal(png + 37, "IDAT", 4);
        memcpy(png + claim[i].at, claim[i].with, sizeof(claim[i].with));
        if (i) memcpy(png + 24, (const uint8_t[]){16, 6}, 2);
        seal_png(png, n);
        put("x.png", png, n);
        memset(&why, 0, sizeof(why));
        assert_int_equal(tn_nn_sheet(in_base("x.png"), 4, 28, 28, &images, &why), TN_E_FORMAT);
        if (!strstr(why.text, claim[i].text)) fail_msg("%s", why.text);
    }
    static uint8_t endless[10200];
    put("x.png", endless, endless_png(endless));
    memset(&why, 0, sizeof(why));
    assert_int_equal(tn_nn_sheet(in_base("x.png"), 1, 1, 1, &images, &why), TN_E_FORMAT);
    if (!strstr(why.text, "more than its header says")) fail_msg("%s", why.text);
}

/* The same of one pixel, with 10 KB that unpack to 1.6 MB of zeros: 13 bits for each 258 of them. */
static size_t endless_png(uint8_t *out)
{
    enum { PACKED = 10000 };
    const uint32_t once = 0xc5u << 5; /* the length 258, from one byte back */
    small_png(out);
    memcpy(out + 16, "\0\0\0\1\0\0\0\1", 8);
    out[33 + 2] = PACKED >> 8, out[33 + 3] = PACKED & 255;
    uint8_t *p = out + 41;
    memset(p, 0, PACKED + 16);
    p[0] = 0x78, p[1] = 1;
    p[2] = 3; /* the last block, of fixed codes; then the literal 0, 00110000 */
    p[2] |= 3 << 5;
    for (int bit = 8 * 2 + 11, k = 0; bit < 8 * PACKED; bit++, k = k == 12 ? 0 : k + 1)
        p[bit / 8] |= (uint8_t)((once >> (12 - k) & 1) << bit % 8);
    p += PACKED;
    memcpy(p + 4, "\0\0\0\0IEND\0\0\0\0", 12);
    seal_png(out, (size_t)(p + 16 - out));
    return (size_t)(p + 16 - out);
}

static void be32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* A 56 x 56 grey PNG with stored blocks. */
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
    seal_png(out, (size_t)(p + 12 - out));
    return (size_t)(p + 12 - out);
}

/* A bit anywhere between the signature and the end mark is noticed. */
TEST(a_bit_that_flipped)
{
    uint8_t png[4096];
    const size_t n = small_png(png);
    for (size_t bit = 8 * 8; bit < (n - 12) * 8; bit += bit % 8 ? 5 : 3) {
        nn_images images = {0};
        nn_why why = {0};
        png[bit / 8] ^= (uint8_t)(1 << bit % 8);
        put("x.png", png, n);
        if (tn_nn_sheet(in_base("x.png"), 4, 28, 28, &images, &why) != TN_E_FORMAT || images.pixels)
            fail_msg("bit %zu of byte %zu: %s", bit % 8, bit / 8, why.text);
        if (bit / 8 >= 41)
            assert_non_null(strstr(why.text, "x.png: corrupt: the check sum of its chunk IDAT at byte 33"));
        png[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* Pixels of colours that a palette lacks are black, whatever was in memory; what follows it, transparency and data,
 * is read as before. */
TEST(colours_that_a_palette_lacks)
{
    enum { SIDE = 16, RAW = SIDE * (SIDE + 1) };
    uint8_t png[2048];
    for (int colours = 1; colours <= 256; colours = colours < 4 ? colours + 1 : colours * 4) {
        uint8_t *p = png;
        memcpy(p, "\x89PNG\r\n\x1a\n\0\0\0\15IHDR\0\0\0\20\0\0\0\20\10\3\0\0\0\0\0\0\0", 33);
        be32(p += 33, 3 * (uint32_t)colours);
        memcpy(p += 4, "PLTE", 4);
        p += 4;
        for (int i = 0; i < 3 * colours; i++) *p++ = (uint8_t)(255 - i);
        memcpy(p, "\0\0\0\0\0\0\0\1tRNS\7\0\0\0\0", 17); /* colour 0 is of alpha 7 */
        be32(p += 17, 2 + 5 + RAW + 4);
        memcpy(p + 4, "IDAT\x78\1\1", 7);
        p += 11;
        const uint8_t stored[4] = {RAW & 255, RAW >> 8, (uint8_t) ~(RAW & 255), (uint8_t) ~(RAW >> 8)};
        memcpy(p, stored, 4);
        p += 4;
        for (int y = 0; y < SIDE; y++)
            for (int x = -1; x < SIDE; x++) *p++ = x < 0 ? 0 : (uint8_t)(y * SIDE + x);
        memcpy(p, "\0\0\0\0\0\0\0\0\0\0\0\0IEND\0\0\0\0", 20);
        seal_png(png, (size_t)(p + 20 - png));
        nn_picture image = {.pixels = NULL};
        nn_why why = {0};
        if (tn_nn_decode("x.png", png, (size_t)(p + 20 - png), 4, &image, &why)) fail_msg("%s", why.text);
        for (int i = 0; i < 4 * 256; i++) {
            const int c = i / 4, want = i % 4 == 3 ? (c ? c < colours ? 255 : -1 : 7)
                                                   : (c < colours ? (uint8_t)(255 - 3 * c - i % 4) : 0);
            if (want >= 0 && image.pixels[i] != want)
                fail_msg("%d colours, channel %d of %d: %d, not %d", colours, i % 4, c, image.pixels[i],
                         want);
        }
        tn_free_mem(image.pixels);
    }
}
#endif

TEST(readers_report_lack_of_memory)
{
    good_files();
    int failed = 0;
    for (long k = 0;; k++) {
        nn_images images = {0};
        nn_why why = {0};
        tn_alloc_fail_after(k);
        int status = tn_nn_idx_images(in_base("train-images-idx3-ubyte"), &images, &why);
        tn_alloc_fail_after(-1);
        tn_free_mem(images.pixels);
        if (!status) break;
        assert_int_equal(status, TN_E_NOMEM);
        failed++;
    }
    assert_int_equal(failed, 2); /* the file and the pixels */
}

RUN_TESTS(make_base, drop_base)
