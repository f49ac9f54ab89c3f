/* make_digits.c - draws the hand-written-looking digits that are shipped in data/digits.
 *
 *   make_digits DIR [seed [idx [part]]]
 *
 * writes DIR/train.png (6000 digits), DIR/test.png (1000) and their labels as IDX files. A sheet holds
 * tiles of 28x28 grey pixels, 100 to a row, and is read from left to right and top to bottom. With idx the
 * images are IDX files as well, which take no decoder to read; a part of 20 is a twentieth of them.
 *
 * A digit is a path: a string in a tiny language (`glyphs` below). Each copy of it gets its control points
 * jittered, then an affine map (size, slant, rotation, place), a slow sine warp, a pen of its own width that
 * gets thicker or thinner along the way, and some noise. Read `draw` first.
 *
 * Data: `path` is the list of short straight segments one digit comes down to; a pixel's grey is how deep
 * it lies inside the pen stroke around the nearest of them, which is anti-aliasing for free. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TN_HAVE_ZLIB
#include <zlib.h>
#endif

enum { TILE = 28, COLUMNS = 100, MAX_SEGMENTS = 512, MAX_CONTROL = 32 };

/* m x y: lift the pen and put it down there. l x y ...: straight lines through these points.
 * s x y ...: one smooth curve from the pen through these points. The box is 0..100, y downwards. */
static const char *const glyphs[10][4] = {
    {"m 50 3 s 22 18 11 50 22 82 50 97 78 82 89 50 78 18 50 3",
     "m 62 8 s 34 6 14 42 20 82 50 97 82 80 88 42 70 10 44 6",
     "m 52 2 s 30 26 26 56 36 88 54 98 72 80 76 44 68 14 46 4",
     "m 36 8 s 12 40 18 76 44 97 76 86 90 52 78 16 48 2 30 14"},
    {"m 50 2 l 50 98", "m 30 24 l 53 3 53 97", "m 30 22 l 52 3 52 97 m 27 97 l 77 97",
     "m 54 2 s 50 34 48 66 46 98"},
    {"m 15 25 s 28 6 52 2 78 14 80 34 62 58 36 80 12 96 l 90 96",
     "m 16 26 s 34 4 66 4 80 26 68 54 40 82 22 93 12 84 24 74 52 86 92 95",
     "m 20 10 s 56 0 82 22 66 54 14 95 l 88 97",
     "m 14 30 s 22 8 50 3 76 16 72 42 44 70 16 94 s 40 84 64 90 90 92"},
    {"m 16 12 s 42 2 74 8 80 26 66 42 40 47 m 40 47 s 70 50 86 66 78 88 50 98 14 86",
     "m 16 4 l 82 4 44 42 s 74 46 88 68 72 92 42 98 14 88",
     "m 18 16 s 40 0 76 10 72 36 38 46 s 80 50 84 86 48 100 16 84",
     "m 22 8 s 60 2 80 20 62 40 36 46 s 74 48 80 70 66 94 34 98 12 90"},
    {"m 22 4 l 14 58 88 58 m 70 6 l 66 98", "m 66 2 l 10 66 90 66 m 66 2 l 66 98",
     "m 20 4 s 14 40 26 54 50 55 76 44 m 78 4 s 74 50 70 98", "m 60 3 s 36 34 12 62 l 88 60 m 64 30 l 60 98"},
    {"m 80 4 l 26 4 20 44 s 50 34 82 48 84 76 60 96 14 90",
     "m 84 6 s 56 4 30 6 l 24 42 s 60 36 84 58 72 90 40 98 14 84",
     "m 28 4 l 22 46 s 56 36 80 54 78 86 46 98 16 88 m 28 5 l 82 3",
     "m 78 2 s 52 10 32 8 s 28 26 26 44 s 66 42 78 66 62 94 20 96"},
    {"m 74 4 s 38 20 16 54 18 84 48 98 80 84 78 60 50 50 20 66",
     "m 60 2 s 30 30 18 66 34 96 66 94 78 70 60 54 34 62 22 80",
     "m 46 2 s 24 40 20 72 36 97 64 96 80 76 66 56 40 58 22 76",
     "m 80 8 s 46 2 20 36 16 76 44 98 76 88 76 62 46 54 20 74"},
    {"m 12 6 l 86 6 42 97", "m 12 6 l 86 6 40 97 m 28 50 l 78 50",
     "m 12 12 s 40 6 66 8 86 8 s 62 40 48 70 42 98", "m 14 22 l 16 6 84 6 s 64 40 52 66 48 98"},
    {"m 74 16 s 50 2 24 14 28 34 50 47 76 62 78 86 50 98 22 86 26 62 50 46 74 32 74 16",
     "m 50 3 s 28 8 24 24 34 40 50 46 68 40 76 24 70 8 50 3 m 50 46 s 24 56 18 74 28 92 50 98 74 92 82 74 74 "
     "56 50 46",
     "m 70 8 s 36 0 24 22 44 44 70 64 72 90 42 98 22 80 38 58 66 40 80 20 66 6",
     "m 54 46 s 26 34 30 10 56 2 76 14 70 34 46 50 22 72 32 94 60 97 76 78 66 56 44 42"},
    {"m 78 30 s 62 6 36 4 20 24 30 46 54 48 76 30 m 78 22 s 76 60 66 98",
     "m 76 24 s 52 2 24 16 24 42 52 50 76 26 s 80 60 62 92 26 97",
     "m 70 12 s 38 2 20 30 38 50 64 42 74 16 l 72 98",
     "m 80 14 s 46 0 22 22 32 46 62 44 80 14 s 74 50 58 76 44 98"},
};

struct point {
    double x, y;
};

struct path {
    int n;
    struct point a[MAX_SEGMENTS], b[MAX_SEGMENTS];
};

/* splitmix64: small, seedable by any number, good enough for pen strokes. */
static uint64_t state;
static uint64_t next64(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static double uniform(double low, double high)
{
    return low + (high - low) * ((double)(next64() >> 11) * 0x1p-53);
}
static double normal(void)
{
    double u = uniform(0x1p-53, 1), v = uniform(0, 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static void segment(struct path *p, struct point a, struct point b)
{
    if (p->n == MAX_SEGMENTS) return;
    p->a[p->n] = a;
    p->b[p->n++] = b;
}

/* A Catmull-Rom curve through c[0..n): passes through its points, which makes glyphs easy to write down. */
static void curve(struct path *p, const struct point *c, int n)
{
    enum { PIECES = 7 };
    for (int i = 0; i + 1 < n; i++) {
        struct point b = c[i], d = c[i + 1], last = b;
        struct point a = i ? c[i - 1] : (struct point){2 * b.x - d.x, 2 * b.y - d.y};
        struct point e = i + 2 < n ? c[i + 2] : (struct point){2 * d.x - b.x, 2 * d.y - b.y};
        for (int k = 1; k <= PIECES; k++) {
            double t = (double)k / PIECES, t2 = t * t, t3 = t2 * t;
            double wa = -t3 + 2 * t2 - t, wb = 3 * t3 - 5 * t2 + 2, wd = -3 * t3 + 4 * t2 + t, we = t3 - t2;
            struct point q = {(wa * a.x + wb * b.x + wd * d.x + we * e.x) / 2,
                              (wa * a.y + wb * b.y + wd * d.y + we * e.y) / 2};
            segment(p, last, q);
            last = q;
        }
    }
}

static struct point jittered(double x, double y, double amount)
{
    return (struct point){x + amount * normal(), y + amount * normal()};
}

static void trace(struct path *p, const char *glyph, double jitter)
{
    struct point control[MAX_CONTROL];
    int n = 0;
    char mode = 'm';
    p->n = 0;
    for (const char *c = glyph;;) {
        while (*c == ' ') c++;
        int command = *c == 'm' || *c == 'l' || *c == 's';
        if ((command || !*c) && mode == 's' && n > 1) {
            curve(p, control, n);
            control[0] = control[n - 1];
            n = 1;
        }
        if (!*c) return;
        if (command) {
            mode = *c++;
            continue;
        }
        char *end;
        double x = strtod(c, &end);
        double y = strtod(end, &end);
        c = end;
        struct point q = jittered(x, y, jitter);
        if (mode == 'm') {
            control[0] = q;
            n = 1;
        } else if (mode == 'l') {
            segment(p, control[0], q);
            control[0] = q;
            n = 1;
        } else if (n < MAX_CONTROL) {
            control[n++] = q;
        }
    }
}

/* Moves the glyph from its box to pixels: size, slant, rotation, place, and a slow wave across it. */
static void place(struct path *p)
{
    double width = uniform(11.0, 20.0), height = uniform(16.5, 21.5);
    double slant = 0.22 * normal() - 0.12, turn = 0.11 * normal();
    double cx = TILE / 2.0 + 0.9 * normal(), cy = TILE / 2.0 + 0.9 * normal();
    double wave_x = 0.55 * normal(), wave_y = 0.55 * normal(), fx = uniform(2, 5), fy = uniform(2, 5);
    double px = uniform(0, 6.3), py = uniform(0, 6.3);
    double c = cos(turn), s = sin(turn);
    for (int i = 0; i < 2 * p->n; i++) {
        struct point *q = i < p->n ? &p->a[i] : &p->b[i - p->n];
        double u = q->x / 100 - 0.5, v = q->y / 100 - 0.5;
        double x = u * width - slant * v * height + wave_x * sin(fx * v * 2 + px);
        double y = v * height + wave_y * sin(fy * u * 2 + py);
        q->x = cx + c * x - s * y;
        q->y = cy + s * x + c * y;
    }
}

static double distance(struct point q, struct point a, struct point b)
{
    double dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
    double t = length2 > 0 ? ((q.x - a.x) * dx + (q.y - a.y) * dy) / length2 : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return hypot(q.x - a.x - t * dx, q.y - a.y - t * dy);
}

/* One digit into the tile at out, whose rows are `stride` bytes apart. */
static void draw(int digit, uint8_t *out, int stride)
{
    struct path p;
    trace(&p, glyphs[digit][next64() % 4], uniform(1.5, 5.5));
    place(&p);
    double pen = uniform(0.55, 1.75), taper = uniform(-0.45, 0.45), ink = uniform(0.8, 1.0);
    /* A pen that skips: part of the stroke is missing now and then. */
    int gap = next64() % 5 == 0 ? (int)(next64() % (uint64_t)(p.n + 1)) : -100;
    for (int y = 0; y < TILE; y++)
        for (int x = 0; x < TILE; x++) {
            struct point q = {x + 0.5, y + 0.5};
            double grey = 0;
            for (int i = 0; i < p.n; i++) {
                if (p.n > 8 && i >= gap && i < gap + 3) continue;
                double radius = pen * (1 + taper * (2.0 * i / p.n - 1));
                double g = (radius + 0.5 - distance(q, p.a[i], p.b[i])) / 1.1;
                if (g > grey) grey = g;
            }
            if (grey > 1) grey = 1;
            if (grey > 0) grey = ink * grey + 0.04 * normal();
            /* 16 levels look the same and make the sheets half as large. */
            int level = (int)lrint(grey * 15);
            level = level < 0 ? 0 : level > 15 ? 15 : level;
            out[y * stride + x] = (uint8_t)(level * 17);
        }
}

/* ---- files ------------------------------------------------------------------------------------------ */

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static uint32_t checksum(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

static int chunk(FILE *f, const char type[4], const uint8_t *data, size_t n)
{
    uint8_t head[8], tail[4];
    put32(head, (uint32_t)n);
    memcpy(head + 4, type, 4);
    put32(tail, checksum(checksum(0, head + 4, 4), data, n));
    return fwrite(head, 1, 8, f) == 8 && fwrite(data, 1, n, f) == n && fwrite(tail, 1, 4, f) == 4;
}

/* A zlib stream of n bytes; *size is its length. NULL when there is no memory. */
static uint8_t *pack(const uint8_t *data, size_t n, size_t *size)
{
#ifdef TN_HAVE_ZLIB
    uLongf room = compressBound((uLong)n);
    uint8_t *out = malloc(room);
    if (!out || compress2(out, &room, data, (uLong)n, 9) != Z_OK) {
        free(out);
        return NULL;
    }
    *size = room;
#else /* stored blocks: any reader takes them, they are only larger */
    uint8_t *out = malloc(n + n / 65535 * 5 + 16), *p = out;
    uint32_t s1 = 1, s2 = 0;
    if (!out) return NULL;
    *p++ = 0x78;
    *p++ = 0x01;
    for (size_t i = 0; i < n || i == 0;) {
        size_t k = n - i < 65535 ? n - i : 65535;
        *p++ = i + k == n;
        *p++ = (uint8_t)k;
        *p++ = (uint8_t)(k >> 8);
        *p++ = (uint8_t)~k;
        *p++ = (uint8_t)(~k >> 8);
        memcpy(p, data + i, k);
        p += k;
        i += k;
        if (!k) break;
    }
    for (size_t i = 0; i < n; i++) {
        s1 = (s1 + data[i]) % 65521;
        s2 = (s2 + s1) % 65521;
    }
    put32(p, s2 << 16 | s1);
    *size = (size_t)(p + 4 - out);
#endif
    return out;
}

static int write_png(FILE *f, const uint8_t *pixels, int width, int height)
{
    static const uint8_t magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    /* 4 bits a pixel, each row preceded by filter type 0. */
    size_t row = (size_t)width / 2 + 1, n = row * (size_t)height, size = 0;
    uint8_t *raw = calloc(n, 1), head[13] = {0};
    if (!raw) return 0;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            raw[(size_t)y * row + 1 + (size_t)x / 2] |=
                (uint8_t)((pixels[(size_t)y * (size_t)width + (size_t)x] / 17) << (x % 2 ? 0 : 4));
    uint8_t *packed = pack(raw, n, &size);
    put32(head, (uint32_t)width);
    put32(head + 4, (uint32_t)height);
    head[8] = 4; /* bits, grey; the rest is zero */
    int ok = packed && fwrite(magic, 1, 8, f) == 8 && chunk(f, "IHDR", head, 13) &&
             chunk(f, "IDAT", packed, size) && chunk(f, "IEND", head, 0);
    free(packed);
    free(raw);
    return ok;
}

static int write_idx(FILE *f, const uint8_t *pixels, int n)
{
    uint8_t head[16];
    put32(head, 0x803);
    put32(head + 4, (uint32_t)n);
    put32(head + 8, TILE);
    put32(head + 12, TILE);
    int ok = fwrite(head, 1, sizeof(head), f) == sizeof(head);
    for (int i = 0; ok && i < n * TILE; i++) {
        const int tile = i / TILE, y = tile / COLUMNS * TILE + i % TILE, x = tile % COLUMNS * TILE;
        ok = fwrite(pixels + (size_t)y * COLUMNS * TILE + x, 1, TILE, f) == TILE;
    }
    return ok;
}

static int write_sheet(const char *dir, const char *part, int n, int idx)
{
    char name[2][4096];
    const char *prefix = strcmp(part, "train") ? "t10k" : "train";
    snprintf(name[0], sizeof(name[0]), idx ? "%s/%s-images-idx3-ubyte" : "%s/%s.png", dir,
             idx ? prefix : part);
    snprintf(name[1], sizeof(name[1]), "%s/%s-labels-idx1-ubyte", dir, prefix);
    int width = COLUMNS * TILE, height = (n + COLUMNS - 1) / COLUMNS * TILE;
    uint8_t *pixels = calloc((size_t)width * (size_t)height, 1), *labels = calloc((size_t)n + 8, 1);
    int ok = pixels && labels;
    if (ok) {
        put32(labels, 0x801);
        put32(labels + 4, (uint32_t)n);
        for (int i = 0; i < n; i++) {
            labels[8 + i] = (uint8_t)(i % 10);
            draw(i % 10, pixels + (size_t)(i / COLUMNS * TILE) * (size_t)width + i % COLUMNS * TILE, width);
        }
    }
    for (int k = 0; ok && k < 2; k++) {
        FILE *f = fopen(name[k], "wb");
        ok = f && (k     ? fwrite(labels, 1, (size_t)n + 8, f) == (size_t)n + 8
                   : idx ? write_idx(f, pixels, n)
                         : write_png(f, pixels, width, height));
        if (f && fclose(f)) ok = 0;
        if (!ok) fprintf(stderr, "make_digits: %s: %s\n", name[k], strerror(errno));
    }
    free(pixels);
    free(labels);
    return ok;
}

int main(int argc, char **argv)
{
    const int idx = argc >= 4 && !strcmp(argv[3], "idx"), part = argc == 5 ? atoi(argv[4]) : 1;
    if (argc < 2 || argc > 3 + 2 * idx || part < 1 || part > 100) {
        fprintf(stderr, "usage: make_digits DIR [seed [idx [part]]]\n");
        return 2;
    }
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    return write_sheet(argv[1], "train", 6000 / part, idx) && write_sheet(argv[1], "test", 1000 / part, idx)
               ? 0
               : 1;
}
