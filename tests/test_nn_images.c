/* test_nn_images.c - folders of images: names, sizes, kinds of files, damage, what is kept; and CIFAR-10's files.
 *
 * What is read is compared with pictures drawn here, scaled by `scaled`, which knows nothing but the definition. Files are
 * written by stb_image_write, or were once by another program. Read images_of_any_size first. */
#include "idx_files.h"
#include "rig.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#ifdef TN_HAVE_STB
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wdouble-promotion"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#include <stb/stb_image_write.h>

static char said[512];

static void note(int level, const char *text, void *user)
{
    (void)level, (void)user;
    snprintf(said, sizeof(said), "%s", text);
}

static tn_session *session(void)
{
    tn_session *s = tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 1, .threads = 3, .log = note);
    assert_non_null(s);
    return s;
}

static void fits(tn_session *s, const void *d)
{
    if (!d) fail_msg("%s", tn_error_text(s));
}

/* ---- pictures ---- */

enum { MOST = 48 };

typedef struct picture {
    int h, w, c;
    unsigned char p[MOST * MOST * 4];
} picture;

static void draw(picture *q, int h, int w, int c, int k)
{
    *q = (picture){.h = h, .w = w, .c = c};
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int i = 0; i < c; i++)
                q->p[(y * w + x) * c + i] =
                    (unsigned char)(125 + 70 * sin(0.5 * (x + k) + i) + 50 * cos((0.3 + 0.01 * k) * y - i));
}

/* A path in the run's folder, with the folders on the way there. */
static const char *at(const char *name)
{
    const char *path = in_base(name);
    for (const char *p = name; (p = strchr(p, '/')); p++) {
        char folder[128];
        snprintf(folder, sizeof folder, "%.*s", (int)(p - name), name);
        mkdir(in_base(folder), 0700);
        path = in_base(name);
    }
    return path;
}

static void write_png(const char *name, const picture *q)
{
    assert_int_equal(stbi_write_png(at(name), q->w, q->h, q->c, q->p, q->w * q->c), 1);
}

static void write_bytes(const char *name, const void *data, size_t n) { spill(at(name), data, n); }

/* One value of the box scaled to h x w: the mean of what lies around its centre, weighted with a triangle. */
static double scaled(const picture *q, const double box[4], int h, int w, int y, int x, int i)
{
    const double sy = (box[2] - box[0]) / h, sx = (box[3] - box[1]) / w, cy = box[0] + (y + .5) * sy,
                 cx = box[1] + (x + .5) * sx;
    double sum = 0, weights = 0;
    for (int r = 0; r < q->h; r++)
        for (int k = 0; k < q->w; k++) {
            const double wy = 1 - fabs(r + .5 - cy) / fmax(sy, 1), wx = 1 - fabs(k + .5 - cx) / fmax(sx, 1);
            if (wy <= 0 || wx <= 0) continue;
            sum += wy * wx * q->p[(r * q->w + k) * q->c + i];
            weights += wy * wx;
        }
    return sum / weights;
}

/* The next item of the loader, by itself, in 0..255. */
static int32_t item(tn_session *s, tn_loader *l, int64_t elements, float *x)
{
    tn_batch b;
    int32_t y;
    if (!tn_next(l, &b)) fail_msg("no item: %s", tn_error_text(s));
    assert_int_equal(tn_numel(b.x), elements);
    tn_read(b.x, TN_F32, x, (size_t)elements * sizeof(*x));
    tn_read(b.y, TN_I32, &y, sizeof(y));
    for (int64_t i = 0; i < elements; i++) x[i] *= 255;
    return y;
}

TEST(images_of_any_size)
{
    static const int size[][2] = {{20, 20}, {40, 31}, {17, 48}, {1, 1}, {48, 48}, {5, 7}, {1, 40}, {32, 32}};
    enum { COUNT = sizeof(size) / sizeof(*size) };
    static picture q[COUNT];
    char name[64];
    for (int k = 0; k < COUNT; k++) {
        draw(&q[k], size[k][0], size[k][1], 3, k);
        snprintf(name, sizeof(name), "sizes/a/%d.png", k);
        write_png(name, &q[k]);
    }
    static const struct {
        int height, width, resize;
        bool stretch;
    } want[] = {{16, 16, 0, false},  {12, 30, 0, false}, {16, 12, 20, false}, {15, 12, 20, false},
                {32, 31, 49, false}, {7, 13, 18, false}, {9, 25, 0, true},    {0, 0, 0, false}};
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        tn_session *s = session();
        tn_dataset *d = tn_dataset_images(s, at("sizes/"), .height = want[i].height, .width = want[i].width,
                                          .resize = want[i].resize, .stretch = want[i].stretch);
        fits(s, d);
        const int h = want[i].height ? want[i].height : 20, w = want[i].width ? want[i].width : 20;
        tn_loader *l = tn_loader_open(d, .batch = 1);
        for (int k = 0; k < COUNT; k++) {
            static float x[48 * 48 * 3];
            double box[4] = {0, 0, q[k].h, q[k].w};
            item(s, l, h * w * 3, x);
            if (want[i].resize) {
                /* torchvision: the longer side is cut to whole pixels, then int(round((it - h) / 2)) are left out before */
                const int least = q[k].h < q[k].w ? q[k].h : q[k].w;
                const int high = want[i].resize * q[k].h / least, wide = want[i].resize * q[k].w / least;
                const int top = (high - h) / 2 + ((high - h) % 4 == 3),
                          left = (wide - w) / 2 + ((wide - w) % 4 == 3);
                const double by = (double)q[k].h / high, across = (double)q[k].w / wide;
                memcpy(box, (double[4]){top * by, left * across, (top + h) * by, (left + w) * across},
                       sizeof(box));
            } else if (!want[i].stretch) {
                const double by = fmin((double)q[k].h / h, (double)q[k].w / w);
                box[0] = (q[k].h - by * h) / 2;
                box[1] = (q[k].w - by * w) / 2;
                box[2] = box[0] + by * h;
                box[3] = box[1] + by * w;
            }
            for (int j = 0; j < h * w * 3; j++) {
                const double wanted = scaled(&q[k], box, h, w, j / 3 / w, j / 3 % w, j % 3);
                if (!(fabs((double)x[j] - wanted) < 0.51))
                    fail_msg("%d of %d x %d, way %d: %g, not %g", j, q[k].h, q[k].w, (int)i, (double)x[j],
                             wanted);
            }
        }
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* Files of other programs: 16 bits, alpha, CMYK, one pixel each or one colour. */
static const char grey16[] =
    "\211PNG\015\012\032\012\000\000\000\015IHDR\000\000\000\001\000\000\000\001\020\000\000\000"
    "\000j\356G\026\000\000\000\013IDATx\332cHi\000\000\001K\000\345\365P\354\310\000\000\000\000IE"
    "ND\256B`\202";
static const char rgb16[] =
    "\211PNG\015\012\032\012\000\000\000\015IHDR\000\000\000\001\000\000\000\001\020\002\000\000\000"
    "\300\347\217\235\000\000\000\017IDATx\332c`\374\317\304\300\334\000\000\005\226\001\2060\034\370"
    "\036\000\000\000\000IEND\256B`\202";
static const char rgba[] =
    "\211PNG\015\012\032\012\000\000\000\015IHDR\000\000\000\001\000\000\000\001\010\006\000\000\000"
    "\037\025\304\211\000\000\000\015IDATx\332c\340\022\221K\006\000\001\010\000\240{oH\345\000\000\000"
    "\000IEND\256B`\202";
static const char grey_alpha[] =
    "\211PNG\015\012\032\012\000\000\000\015IHDR\000\000\000\001\000\000\000\001\010\004\000\000"
    "\000\265\034\014\002\000\000\000\013IDATx\332c\360e\005\000\000\242\000S[\243@\356\000\000\000"
    "\000IEND\256B`\202";
static const char cmyk[] =
    "\377\330\377\356\000\016\101\144\157\142\145\000\144\000\000\000\000\000\377\333\000\103\000\033\022\024"
    "\027\024\021\033\027\026\027\036\034\033\040\050\102\053\050\045\045\050\121\072\075\060\102\140\125\145"
    "\144\137\125\135\133\152\170\231\201\152\161\220\163\133\135\205\265\206\220\236\243\253\255\253\147\200"
    "\274\311\272\246\307\231\250\253\244\377\300\000\024\010\000\010\000\010\004\103\021\000\115\021\000\131"
    "\021\000\113\021\000\377\304\000\026\000\001\001\001\000\000\000\000\000\000\000\000\000\000\000\000\000"
    "\005\002\006\377\304\000\024\020\001\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\377"
    "\332\000\016\004\103\000\115\000\131\000\113\000\000\077\000\321\224\121\327\377\331";

TEST(other_kinds_of_files)
{
    write_bytes("kinds/a/0.png", grey16, sizeof(grey16) - 1);
    write_bytes("kinds/a/1.PNG", rgb16, sizeof(rgb16) - 1);
    write_bytes("kinds/a/2.png", rgba, sizeof(rgba) - 1);
    write_bytes("kinds/a/3.png", grey_alpha, sizeof(grey_alpha) - 1);
    write_bytes("kinds/a/4.JPeG", cmyk, sizeof(cmyk) - 1);
    static const int want[5][4] = {
        {100, 100, 100, 255}, {1, 2, 3, 255}, {10, 20, 30, 99}, {77, 77, 77, 5}, {218, 174, 120, 255}};
    static const int channels[] = {1, 3, 4};
    for (int i = 0; i < 3; i++) {
        tn_session *s = session();
        tn_dataset *d = tn_dataset_images(s, at("kinds/"), .height = 1, .channels = channels[i]);
        fits(s, d);
        tn_loader *l = tn_loader_open(d, .batch = 1);
        for (int k = 0; k < 5; k++) {
            float x[4];
            item(s, l, channels[i], x);
            const double grey = .299 * want[k][0] + .587 * want[k][1] + .114 * want[k][2];
            for (int c = 0; c < channels[i]; c++)
                if (!(fabs((double)x[c] - (channels[i] == 1 ? grey : want[k][c])) < (k < 4 ? 1.1 : 4)))
                    fail_msg("file %d, %d channels: %g in channel %d", k, channels[i], (double)x[c], c);
        }
        assert_int_equal(tn_close(s), TN_OK);
    }
    write_bytes("empty/a/0.png", "", 0); /* the first says how large items are */
    tn_session *s = session();
    null_with(s, TN_E_FORMAT, "empty//a/0.png: not a PNG or JPEG", tn_dataset_images(s, at("empty/")));
    tn_close(s);
}

/* ---- names ---- */

TEST(classes_and_names)
{
    /* As the bytes of names stand in order; what does not count stands between. */
    static const char *const file[] = {
        "Zebra/b.png", "a b/x.jpeg.png", "a b/deep/in/y.png", "a b/zz.PNG",
        "katze/1.png", "katze/10.png",   "katze/2.png",       "\xc3\xa9t\xc3\xa9/\xe2\x98\x83.png"};
    static const int label[] = {0, 1, 1, 1, 2, 2, 2, 3};
    static const int order[] = {0, 2, 1, 3, 4, 5, 6, 7}; /* folders stand in the same order with files */
    char name[128];
    picture q;
    for (int k = 0; k < 8; k++) {
        draw(&q, 2, 2, 3, 0);
        memset(q.p, 10 * k + 5, 12);
        snprintf(name, sizeof(name), "names/%s", file[k]);
        write_png(name, &q);
    }
    write_bytes("names/katze/notes.txt", "x", 1);
    write_bytes("names/katze/.hidden.png", "x", 1);
    write_bytes("names/.git/x.png", "x", 1);
    write_bytes("names/readme.png", "x", 1);
    unlink(at("names/katze/2.png")); /* a link to a file, and a class that is a link */
    draw(&q, 2, 2, 3, 0);
    memset(q.p, 65, 12);
    write_png("elsewhere/two.png", &q);
    assert_int_equal(symlink("../../elsewhere/two.png", at("names/katze/2.png")), 0);
    tn_session *s = session();
    tn_dataset *d = tn_dataset_images(s, at("names/"));
    fits(s, d);
    assert_int_equal(tn_dataset_count(d), 8);
    assert_int_equal(tn_dataset_classes(d), 4);
    assert_string_equal(tn_dataset_class(d, 0), "Zebra");
    assert_string_equal(tn_dataset_class(d, 1), "a b");
    assert_string_equal(tn_dataset_class(d, 3), "\xc3\xa9t\xc3\xa9");
    assert_null(tn_dataset_class(d, 4));
    assert_null(tn_dataset_class(d, -1));
    assert_null(tn_dataset_class(NULL, 0));
    tn_loader *l = tn_loader_open(d, .batch = 1);
    for (int k = 0; k < 8; k++) {
        float x[12];
        assert_int_equal(item(s, l, 12, x), label[k]);
        assert_int_equal(lround((double)x[0]), 10 * order[k] + 5);
    }
    /* a part with fewer classes keeps their numbers, size and colours */
    draw(&q, 5, 9, 3, 0);
    write_png("part/katze/1.png", &q);
    tn_dataset *part = tn_dataset_images(s, at("part/"), .like = d);
    fits(s, part);
    float x[12];
    assert_int_equal(item(s, tn_loader_open(part), 12, x), 2);
    assert_int_equal(tn_dataset_classes(part), 4);
    assert_string_equal(tn_dataset_class(part, 2), "katze");
    write_png("strange/hund/1.png", &q);
    null_with(s, TN_E_FORMAT, "hund: a class that", tn_dataset_images(s, at("strange/"), .like = d));
    tn_session *other = session();
    null_with(other, TN_E_SESSION, "another session", tn_dataset_images(other, at("part/"), .like = d));
    tn_close(other);
    assert_int_equal(tn_close(s), TN_OK);
}

TEST_ON(folders_refused, session())
{
    picture q;
    draw(&q, 4, 4, 3, 0);
    null_with(s, TN_E_NULL, "dir", tn_dataset_images(s, NULL));
    assert_null(tn_dataset_images(NULL, "x"));
    null_with(s, TN_E_IO, "/nowhere: No such file", tn_dataset_images(s, "/nowhere"));
    write_png("flat/1.png", &q);
    null_with(s, TN_E_IO, "1.png", tn_dataset_images(s, at("flat/1.png")));
    null_with(s, TN_E_FORMAT, "no folders", tn_dataset_images(s, at("flat/")));
    write_png("bare/a/1.png", &q);
    write_bytes("bare/b/1.gif", "x", 1);
    null_with(s, TN_E_FORMAT, "/b: no .jpg", tn_dataset_images(s, at("bare/")));
    write_png("loop/a/1.png", &q);
    assert_int_equal(symlink(".", at("loop/a/again")), 0);
    null_with(s, TN_E_IO, "a link lead back", tn_dataset_images(s, at("loop/")));
    write_png("good/a/1.png", &q);
    const tn_images_options bad[] = {{.height = -1},
                                     {.resize = 40, .stretch = true},
                                     {.width = 1 << 20},
                                     {.channels = 2},
                                     {.channels = 5},
                                     {.resize = -4},
                                     {.height = 9, .resize = 8},
                                     {.std = {1, 1, 0}},
                                     {.std = {1, 1, 1}, .mean = {0, NAN}}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        tn_images_options o = bad[i];
        o.size = sizeof(o);
        null_with(s, TN_E_ARG, "", tn_dataset_images_with(s, at("good/"), &o));
    }
    if (geteuid()) { /* root reads everything */
        write_png("shut/a/1.png", &q);
        chmod(at("shut/a"), 0);
        null_with(s, TN_E_IO, "Permission denied", tn_dataset_images(s, at("shut/")));
        chmod(at("shut/a"), 0700);
    }
}

/* ---- damage ---- */

TEST(damaged_files)
{
    picture q;
    unsigned char file[2][8192];
    size_t size[2];
    draw(&q, 40, 40, 3, 1);
    for (int k = 0; k < 3; k++) {
        char name[64];
        snprintf(name, sizeof(name), "damage/a/%d.png", k);
        write_png(name, &q);
    }
    for (int kind = 0; kind < 2; kind++) {
        if (kind)
            assert_int_equal(stbi_write_jpg(at("whole"), 40, 40, 3, q.p, 80), 1);
        else
            write_png("whole", &q);
        FILE *f = fopen(at("whole"), "rb");
        size[kind] = fread(file[kind], 1, sizeof(file[0]), f);
        fclose(f);
        assert_in_range(size[kind], 500, sizeof(file[0]) - 1);
    }
    for (int kind = 0; kind < 2; kind++)
        for (size_t n = 0; n < size[kind] - 12;
             n +=
             1 + n / 4) { /* cut off: the end mark, and of a PNG its empty chunk, alone are missing last */
            const char *name = kind ? "damage/a/1.jpg" : "damage/a/1.png";
            unlink(at("damage/a/1.png"));
            unlink(at("damage/a/1.jpg"));
            write_bytes(name, file[kind], n);
            for (int skip = 0; skip < 2; skip++) {
                tn_session *s = session();
                tn_dataset *d = tn_dataset_images(s, at("damage/"), .skip_damaged = skip, .height = 40);
                fits(s, d);
                for (int pass = 0; pass < 2; pass++) {
                    tn_batch b;
                    *said = 0;
                    tn_loader *l = tn_loader_open(d, .batch = 3, .workers = 2 * pass - 1);
                    const int got = tn_next(l, &b);
                    assert_int_equal(got, skip);
                    if (!skip) {
                        failed(s, TN_E_FORMAT, name + 9);
                        continue;
                    }
                    float x[3 * 4800], most = 0;
                    int32_t y[3];
                    tn_read(b.x, TN_F32, x, sizeof(x));
                    tn_read(b.y, TN_I32, y, sizeof(y));
                    for (int i = 0; i < 4800; i++) most += fabsf(x[4800 + i]);
                    assert_true(most == 0 && x[0] > 0 && x[9600] > 0);
                    assert_int_equal(y[0] + y[2], 0);
                    assert_int_equal(y[1], -100);
                    assert_int_equal(tn_dataset_damaged(d), 1); /* once, however often it is met */
                    assert_int_equal(strstr(said, name + 9) != NULL, pass == 0);
                    tn_loader_close(l);
                }
                assert_int_equal(tn_close(s), TN_OK);
            }
        }
}

/* One that is damaged leaves those that it would be mixed with as they are, and is what they are: the two that are
 * whole and meet whole ones, the first and the last, are mixed. */
TEST(damaged_files_are_not_mixed)
{
    picture q;
    draw(&q, 4, 4, 1, 0);
    for (int k = 0; k < 4; k++) {
        char name[64];
        memset(q.p, 60 * (k + 1), 16);
        snprintf(name, sizeof(name), "mixed/%d/x.png", k);
        write_png(name, &q);
    }
    write_bytes("mixed/1/x.png", "junk", 4);
    write_bytes("mixed/1/y.png", "junk", 4);
    for (int workers = -1; workers < 3; workers += 3) {
        static const float want[5] = {240, 180, 0, 180, 240};
        tn_session *s = session();
        tn_dataset *d = tn_dataset_images(s, at("mixed/"), .height = 1, .channels = 1, .skip_damaged = true);
        fits(s, d);
        tn_batch b;
        float x[5], y[20];
        assert_int_equal(
            tn_next(tn_loader_open(d, .batch = 5, .workers = workers, .augment = {.mixup = 1}), &b), 1);
        tn_read(b.x, TN_F32, x, sizeof(x));
        tn_read(b.y, TN_F32, y, sizeof(y));
        for (int i = 0; i < 5; i++) {
            const float *of = y + 4 * i;
            const double value = 60 * (double)(of[0] + 3 * of[2] + 4 * of[3]),
                         sum = (double)(of[0] + of[2] + of[3]);
            assert_true(fabs(sum - (i != 2)) < 1e-6 && of[1] == 0);
            assert_true(fabs(value - (double)x[i] * 255) < 1e-3);
            if (i % 4 && !(value == (double)want[i])) fail_msg("item %d: %g", i, value);
        }
        assert_non_null(strstr(said, "2 damaged, and left out of what is mixed, one of them: "));
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* The decoder alone would take it, with tables that nobody has looked at. */
TEST(no_jpeg_behind_filling_bytes)
{
    picture q;
    unsigned char file[8192] = {0xff};
    nn_picture image = {.pixels = NULL};
    draw(&q, 40, 40, 3, 1);
    assert_int_equal(stbi_write_jpg(at("whole"), 40, 40, 3, q.p, 80), 1);
    FILE *f = fopen(at("whole"), "rb");
    const size_t n = fread(file + 1, 1, sizeof(file) - 1, f);
    fclose(f);
    for (int before = 0; before < 2; before++) {
        nn_why why = {0};
        const int status = tn_nn_decode("x", file + 1 - before, n + (size_t)before, 3, &image, &why);
        assert_int_equal(status, before ? TN_E_FORMAT : TN_OK);
        assert_int_equal(strstr(why.text, "not a PNG or JPEG") != NULL, before);
        if (!before) tn_free_mem(image.pixels);
    }
}

/* Whatever memory was used for before, an image that lacks a Huffman table is the same. It is a grey one of a
 * block for each colour, whose first codes leave something for the missing table to be asked about. */
TEST(a_table_that_is_missing)
{
#if defined(__GLIBC__) && defined(M_PERTURB) && !defined(TN_ASAN)
    enum { TABLES = 4, LAST = 237 }; /* where tables begin, and from there to the second of two for AC */
    picture q;
    unsigned char file[8192];
    nn_picture image[2] = {{.pixels = NULL}, {.pixels = NULL}};
    memset(q.p, 100, sizeof(q.p));
    assert_int_equal(stbi_write_jpg(at("whole"), 8, 8, 3, q.p, 95), 1);
    FILE *f = fopen(at("whole"), "rb");
    const size_t n = fread(file, 1, sizeof(file), f);
    fclose(f);
    size_t k = 2;
    while (file[k + 1] != 0xc4) k += 2 + ((size_t)file[k + 2] << 8 | file[k + 3]);
    assert_int_equal(file[k + TABLES + LAST], 0x11);
    file[k + TABLES + LAST] = 0x13;
    for (int dirty = 0; dirty < 2; dirty++) {
        nn_why why = {0};
        mallopt(M_PERTURB, dirty ? 0xf8 : 0);
        const int status = tn_nn_decode("x", file, n, 3, &image[dirty], &why);
        mallopt(M_PERTURB, 0);
        assert_int_equal(status, TN_OK);
    }
    assert_memory_equal(image[0].pixels, image[1].pixels, 8 * 8 * 3);
    for (int i = 0; i < 2; i++) tn_free_mem(image[i].pixels);
#endif
}

static tn_tensor *first_pixel(tn_session *s, tn_tensor *x, void *user)
{
    (void)s;
    return tn_linear_forward(user, tn_narrow(tn_flatten(x, 1), 1, 0, 2));
}

/* What fits is read once, what does not each time; both are the same, and evaluated the same. */
TEST(what_is_kept)
{
    enum { COUNT = 40 };
    picture q;
    char name[64];
    static float first[2][COUNT * 16 * 16 * 3], again[COUNT * 16 * 16 * 3];
    double accuracy[2];
    for (int k = 0; k < COUNT; k++) {
        draw(&q, 20 + k % 7, 20 + k % 5, 3, k);
        snprintf(name, sizeof(name), "kept/%d/%02d.png", k % 2, k);
        write_png(name, &q);
    }
    for (int kept = 0; kept < 2; kept++) {
        tn_session *s = session();
        tn_linear *fc = tn_linear_new(s, "fc", 2, 2);
        tn_dataset *d =
            tn_dataset_images(s, at("kept/"), .height = 16,
                              .cache_bytes = kept ? COUNT * 16 * 16 * 3 : COUNT * 16 * 16 * 3 - 1);
        fits(s, d);
        tn_batch b;
        accuracy[kept] = tn_evaluate(s, d, first_pixel, fc);
        assert_int_equal(tn_error(s), TN_OK);
        assert_int_equal(tn_next(tn_loader_open(d, .batch = COUNT), &b), 1);
        tn_read(b.x, TN_F32, first[kept], sizeof(first[0]));
        if (kept) rename(at("kept/0"), at("gone")); /* the files are not asked for any more */
        tn_loader *l = tn_loader_open(d, .batch = COUNT);
        assert_int_equal(tn_next(l, &b), 1);
        tn_read(b.x, TN_F32, again, sizeof(again));
        assert_memory_equal(first[kept], again, sizeof(again));
        if (!kept) {
            rename(at("kept/0"), at("gone"));
            assert_int_equal(tn_next(tn_loader_open(d, .batch = COUNT), &b), 0);
            failed(s, TN_E_IO, "No such file");
            rename(at("gone"), at("kept/0"));
        }
        assert_int_equal(tn_close(s), TN_OK);
    }
    assert_memory_equal(first[0], first[1], sizeof(first[0]));
    assert_true(accuracy[0] == accuracy[1] && accuracy[0] > 0 && accuracy[0] < 1);
}

TEST(images_report_lack_of_memory)
{
    picture q;
    for (int k = 0; k < 4; k++) {
        char name[64];
        draw(&q, 9, 9 + k, 3, k);
        snprintf(name, sizeof(name), "memory/%d/1.png", k);
        write_png(name, &q);
    }
    assert_int_equal(stbi_write_jpg(at("memory/3/2.jpg"), 9, 9, 3, q.p, 80), 1);
    int failed = 0;
    for (long k = 0; k < 400; k++) {
        tn_session *s = session();
        tn_batch b = {0};
        tn_alloc_fail_after(k);
        tn_dataset *d = tn_dataset_images(s, at("memory/"), .height = 4);
        tn_loader *l = tn_loader_open(d, .batch = 5, .workers = k % 2 ? -1 : 2,
                                      .augment = {.crop = {.5, 1}, .mixup = .5});
        int got = tn_next(l, &b);
        tn_alloc_fail_after(-1);
        const int status = tn_error(s);
        if (!got && status != TN_E_NOMEM) fail_msg("%ld: %d %s", k, status, tn_error_text(s));
        tn_close(s);
        if (got) break;
        failed++;
    }
    assert_in_range(failed, 30, 399);
}
#endif

/* ---- CIFAR-10 ---- */

static void put_cifar(const char *name, int n, int bad)
{
    unsigned char record[3073];
    FILE *f = fopen(in_base(name), "wb");
    assert_non_null(f);
    for (int i = 0; i < n; i++) {
        record[0] = i == bad ? 10 : (unsigned char)(i % 10);
        for (int k = 0; k < 3072; k++) record[1 + k] = (unsigned char)(k / 1024 * 80 + k % 1024 % 77 + i);
        assert_int_equal(fwrite(record, 1, sizeof(record), f), sizeof(record));
    }
    fclose(f);
}

TEST_ON(files_of_cifar10, tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 1))
{
    assert_null(tn_dataset_cifar10(s, base, TN_TRAIN));
    assert_non_null(strstr(tn_error_text(s), "get_data.sh cifar10"));
    tn_clear_error(s);
    put_cifar("data_batch_1.bin", 3, -1);
    put_cifar("data_batch_3.bin", 4, -1);
    put_cifar("test_batch.bin", 2, 1);
    tn_dataset *d = tn_dataset_cifar10(s, base, TN_TRAIN, .mean = {.5, .5, .5}, .std = {1, 2, 4});
    if (!d) fail_msg("%s", tn_error_text(s));
    assert_int_equal(tn_dataset_count(d), 7);
    assert_int_equal(tn_dataset_classes(d), 10);
    assert_string_equal(tn_dataset_class(d, 9), "truck");
    static float x[7 * 3072];
    int32_t y[7];
    tn_batch b;
    assert_int_equal(tn_next(tn_loader_open(d, .batch = 7), &b), 1);
    tn_read(b.x, TN_F32, x, sizeof(x));
    tn_read(b.y, TN_I32, y, sizeof(y));
    for (int i = 0; i < 7; i++) {
        assert_int_equal(y[i], i < 3 ? i : i - 3);
        for (int k = 0; k < 3072; k++) {
            const double want = ((unsigned char)(k % 3 * 80 + k / 3 % 77 + y[i]) / 255.0 - .5) / (1 << k % 3);
            if (!(fabs((double)x[i * 3072 + k] - want) < 1e-6)) fail_msg("%d of %d", k, i);
        }
    }
    assert_null(tn_dataset_cifar10(s, base, TN_TEST));
    assert_non_null(strstr(tn_error_text(s), "test_batch.bin: label 10 of item 1"));
    tn_clear_error(s);
    put("test_batch.bin", x, 3072);
    assert_null(tn_dataset_cifar10(s, base, TN_TEST));
    assert_non_null(strstr(tn_error_text(s), "3072 bytes are not records"));
    tn_clear_error(s);
    assert_null(tn_dataset_cifar10(s, NULL, TN_TEST));
    tn_clear_error(s);
}

RUN_TESTS(make_base, drop_base)
