/* make_folders.c - class folders of PNG files, as build/cifar_resnet and tn_dataset_images read them.
 *
 *   make_folders data/cifar10 OUT     from CIFAR-10's binary files (data/get_data.sh cifar10):
 * OUT/train/airplane/00000.png .. make_folders --shapes N OUT       N made-up images of each of three shapes,
 * of several sizes, and as many to test with
 *
 * Exit status: 0 done, 1 something could not be read or written, 2 usage. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef TN_HAVE_STB
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#include <stb/stb_image_write.h>

enum { SIDE = 32, PLANE = SIDE * SIDE, CLASSES = 10, SHAPES = 3, MOST = 48 };
static const char *const cifar[CLASSES] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                           "dog",      "frog",       "horse", "ship", "truck"};
static const char *const shapes[SHAPES] = {"bar", "cross", "disc"};

/* OUT/PART/CLASS/NUMBER.png, with the folders on the way there. */
static int write_image(const char *out, const char *part, const char *name, long number,
                       const uint8_t *pixels, int h, int w)
{
    char path[4096];
    int at = snprintf(path, sizeof(path), "%s", out);
    mkdir(path, 0777);
    at += snprintf(path + at, sizeof(path) - (size_t)at, "/%s", part);
    mkdir(path, 0777);
    at += snprintf(path + at, sizeof(path) - (size_t)at, "/%s", name);
    mkdir(path, 0777);
    snprintf(path + at, sizeof(path) - (size_t)at, "/%05ld.png", number);
    if (stbi_write_png(path, w, h, 3, pixels, w * 3)) return 0;
    fprintf(stderr, "make_folders: %s cannot be written: %s\n", path, strerror(errno));
    return 1;
}

static int of_cifar(const char *in, const char *out)
{
    long number = 0;
    for (int i = 1; i <= 6; i++) {
        char path[4096];
        uint8_t record[1 + 3 * PLANE], pixels[3 * PLANE];
        if (i < 6)
            snprintf(path, sizeof(path), "%s/data_batch_%d.bin", in, i);
        else
            snprintf(path, sizeof(path), "%s/test_batch.bin", in);
        FILE *f = fopen(path, "rb");
        int failed = !f;
        if (i == 6) number = 0;
        for (; f && !failed && fread(record, 1, sizeof(record), f) == sizeof(record); number++) {
            for (int k = 0; k < 3 * PLANE; k++) pixels[k] = record[1 + k % 3 * PLANE + k / 3];
            failed = record[0] >= CLASSES ||
                     write_image(out, i < 6 ? "train" : "test", cifar[record[0]], number, pixels, SIDE, SIDE);
        }
        if (failed) fprintf(stderr, "make_folders: stopped at %s%s\n", path, f ? "" : ", which is not there");
        if (f) fclose(f);
        if (failed) return 1;
    }
    return 0;
}

static uint32_t draw(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 16) % n;
}

static int of_shapes(long n, const char *out)
{
    uint32_t r = 1;
    for (long i = 0; i < 2 * n * SHAPES; i++) {
        const int h = 24 + (int)draw(&r, MOST - 23), w = 24 + (int)draw(&r, MOST - 23),
                  shape = (int)(i % SHAPES);
        const int cy = h / 2 + (int)draw(&r, 7) - 3, cx = w / 2 + (int)draw(&r, 7) - 3,
                  size = 6 + (int)draw(&r, 5);
        uint8_t pixels[MOST * MOST * 3], ink[3], paper[3];
        for (int c = 0; c < 3; c++) {
            ink[c] = (uint8_t)(150 + draw(&r, 100));
            paper[c] = (uint8_t)draw(&r, 100);
        }
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) {
                const int dy = abs(y - cy), dx = abs(x - cx);
                const int inside = shape == 0   ? dy < 3 && dx < size
                                   : shape == 1 ? (dy < 2 && dx < size) || (dx < 2 && dy < size)
                                                : dy * dy + dx * dx < size * size;
                for (int c = 0; c < 3; c++)
                    pixels[(y * w + x) * 3 + c] = (uint8_t)((inside ? ink : paper)[c] + (int)draw(&r, 6));
            }
        if (write_image(out, i < n * SHAPES ? "train" : "test", shapes[shape], i, pixels, h, w)) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    if (argc == 3 && argv[1][0] != '-') return of_cifar(argv[1], argv[2]);
    if (argc == 4 && !strcmp(argv[1], "--shapes")) {
        const long n = strtol(argv[2], &end, 10);
        if (n > 0 && n <= 100000 && !*end) return of_shapes(n, argv[3]);
    }
    fprintf(stderr, "usage: make_folders CIFAR10 OUT | make_folders --shapes N OUT\n");
    return 2;
}
#else
int main(void)
{
    fprintf(stderr, "make_folders: built without stb_image_write (Debian: libstb-dev)\n");
    return 1;
}
#endif
