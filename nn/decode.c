/* decode.c - a PNG or JPEG image as bytes. The decoder is stb_image, kept to these formats in memory; what it
 * would let pass is looked for here: headers and chunks that ask for more than a file can hold, a JPEG that is
 * cut off, whose missing part it takes for grey, chunks of a PNG whose check sums are wrong, and palettes that
 * lack colours. Read tn_nn_decode first. */
#include "nn.h"

#ifdef TN_HAVE_STB
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_NO_STDIO
/* It does not always say that it failed for want of memory; and it reads what it has not written where a JPEG
 * names a Huffman table that it does not bring: zeros are harmless there. */
static _Thread_local bool starved, greedy;
static _Thread_local size_t most; /* bytes that it may ask for at once */
static void *noted(void *p, size_t size)
{
    const bool fits = size <= most;
    void *q = !fits ? NULL : p ? tn_realloc(p, size) : tn_calloc(1, size);
    starved = starved || (fits && !q);
    greedy = greedy || !fits;
    return q;
}
#define STBI_MALLOC(size)     noted(NULL, size)
#define STBI_REALLOC(p, size) noted(p, size)
#define STBI_FREE(p)          tn_free_mem(p)
/* Not popped: gcc reports unused static functions at the end of the file. */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#include <stb/stb_image.h>

enum { MOST_SIDE = 1 << 16, MOST_PIXELS = 1 << 28 };
/* Of a byte of the file, as bits of pixels: deflate packs 1032 to 1 at best, and a JPEG has a bit for 64 pixels at
 * least. A header that wants more is lying. */
enum { MOST_OF_PNG = 8 * 1032, MOST_OF_JPEG = 8 * 64 };
enum { WHOLE_PALETTE = 3 * 256 };

/* By how they begin, to the byte: the decoder also takes for a JPEG what has filling bytes before it, and
 * would get one that has not been looked through. */
static bool is_jpeg(const unsigned char *p, size_t size)
{
    return size > 3 && p[0] == 0xff && p[1] == 0xd8 && p[2] == 0xff;
}

static bool is_png(const unsigned char *p, size_t size)
{
    static const unsigned char first[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    return size > sizeof first && !memcmp(p, first, sizeof first);
}

/* Whether the Huffman tables in the next `bytes` of p, which has `size`, have at most 256 codes: versions of
 * stb_image take that for granted, and write over what lies behind them. */
static bool tables_fit(const unsigned char *p, size_t size, int64_t bytes)
{
    while (bytes > 0) {
        size_t codes = 0;
        for (int i = 1; i <= 16 && size >= 17; i++) codes += p[i];
        if (size < 17 + codes || codes > 256) return false;
        p += 17 + codes;
        size -= 17 + codes;
        bytes -= 17 + (int64_t)codes;
    }
    return true;
}

/* Goes over a JPEG from marker to marker, and the data between them, for its size; false where it has no end.
 */
static bool whole_jpeg(const unsigned char *p, size_t size, int *w, int *h)
{
    size_t at = 2;
    while (at + 2 <= size) {
        const unsigned char marker = p[at + 1];
        if (p[at] != 0xff || marker == 0xff) {
            at++; /* data of a scan, in which 0xff is followed by 0 or a restart marker; or a filling byte */
        } else if (marker == 0xd9) {
            return true;
        } else if (!marker || marker == 1 || (marker >= 0xd0 && marker <= 0xd7)) {
            at += 2;
        } else {
            if (at + 9 > size) return false;
            if (marker >= 0xc0 && marker <= 0xc2) {
                *h = p[at + 5] << 8 | p[at + 6];
                *w = p[at + 7] << 8 | p[at + 8];
            }
            const size_t bytes = (size_t)p[at + 2] << 8 | p[at + 3];
            if (marker == 0xc4 && !tables_fit(p + at + 4, size - at - 4, (int64_t)bytes - 2)) return false;
            at += 2 + bytes;
        }
    }
    return false;
}

static uint32_t big_endian(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* CRC-32, four bytes at a time: table[k] is what a byte does with k bytes behind it. */
typedef struct crc32 {
    uint32_t table[4][256];
} crc32;

static void crc32_begin(crc32 *t)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (0xedb88320u & -(c & 1));
        t->table[0][i] = c;
    }
    for (int k = 1; k < 4; k++)
        for (int i = 0; i < 256; i++) {
            const uint32_t c = t->table[k - 1][i];
            t->table[k][i] = c >> 8 ^ t->table[0][c & 255];
        }
}

static uint32_t crc32_of(const crc32 *t, const unsigned char *p, size_t n)
{
    uint32_t c = ~0u;
    for (; n >= 4; n -= 4, p += 4) {
        c ^= (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
        c = t->table[3][c & 255] ^ t->table[2][c >> 8 & 255] ^ t->table[1][c >> 16 & 255] ^
            t->table[0][c >> 24];
    }
    for (; n; n--) c = c >> 8 ^ t->table[0][(c ^ *p++) & 255];
    return ~c;
}

static int bad_chunk(const char *path, const unsigned char *p, size_t at, nn_why *why)
{
    char kind[4];
    for (int i = 0; i < 4; i++) {
        const unsigned char c = p[at + 4 + (size_t)i];
        kind[i] = (c | 32) >= 'a' && (c | 32) <= 'z' ? (char)c : '?';
    }
    return tn_nn_why(why, TN_E_FORMAT, "%s: corrupt: the check sum of its chunk %.4s at byte %zu is wrong",
                     path, kind, at);
}

/* Goes over a PNG from chunk to chunk, none of which may claim more than there is: the decoder takes memory for
 * what a chunk claims, and looks at no check sum. *palette is where a palette of less than 256 colours begins, or
 * 0. */
static int whole_png(const char *path, const unsigned char *p, size_t size, size_t *palette, nn_why *why)
{
    crc32 sums;
    crc32_begin(&sums);
    *palette = 0;
    for (size_t at = 8; at + 8 <= size;) {
        const size_t bytes = big_endian(p + at);
        if (!memcmp(p + at + 4, "IEND", 4)) return TN_OK;
        if (bytes > size - at - 8 || size - at - 8 - bytes < 4) break;
        if (crc32_of(&sums, p + at + 4, bytes + 4) != big_endian(p + at + 8 + bytes))
            return bad_chunk(path, p, at, why);
        if (!memcmp(p + at + 4, "PLTE", 4) && bytes && bytes < WHOLE_PALETTE && bytes % 3 == 0) *palette = at;
        at += bytes + 12;
    }
    return tn_nn_why(why, TN_E_FORMAT, "%s: corrupt or cut off", path);
}

/* The PNG with black for the colours that its palette, at `at`, lacks: the decoder would give pixels that name one
 * of them whatever stands in memory. NULL: no memory. */
static unsigned char *with_palette(const unsigned char *p, size_t *size, size_t at)
{
    const size_t before = at + 8 + big_endian(p + at), more = WHOLE_PALETTE - big_endian(p + at);
    unsigned char *q = tn_calloc(1, *size + more);
    if (!q) return NULL;
    memcpy(q, p, before);
    memcpy(q + before + more, p + before, *size - before);
    q[at + 2] = WHOLE_PALETTE >> 8;
    q[at + 3] = WHOLE_PALETTE & 255;
    *size += more;
    return q;
}

/* Bits of a pixel, one at least. */
static unsigned png_bits(const unsigned char *p, size_t size)
{
    static const unsigned char samples[] = {1, 0, 3, 1, 2, 0, 4}; /* grey, -, colours, palette, with alpha */
    const bool said = size > 25 && !memcmp(p + 12, "IHDR", 4) && p[25] < sizeof samples;
    return said && samples[p[25]] ? samples[p[25]] * p[24] : 1;
}

int tn_nn_decode(const char *path, const unsigned char *file, size_t size, int channels, nn_picture *out,
                 nn_why *why)
{
    const bool jpeg = is_jpeg(file, size);
    int w = 0, h = 0, found = 0, status = TN_OK;
    size_t palette = 0;
    unsigned char *filled = NULL;
    most = SIZE_MAX;
    if (size > INT32_MAX ||
        (!jpeg && (!is_png(file, size) || !stbi_info_from_memory(file, (int)size, &w, &h, &found))))
        return tn_nn_why(why, TN_E_FORMAT, "%s: not a PNG or JPEG image", path);
    if (jpeg && !whole_jpeg(file, size, &w, &h))
        return tn_nn_why(why, TN_E_FORMAT, "%s: corrupt or cut off", path);
    if (!jpeg && (status = whole_png(path, file, size, &palette, why))) return status;
    const uint64_t bits = (uint64_t)w * (uint64_t)h * (jpeg ? 1 : png_bits(file, size));
    if (w > MOST_SIDE || h > MOST_SIDE || (int64_t)w * h > MOST_PIXELS ||
        bits / (jpeg ? MOST_OF_JPEG : MOST_OF_PNG) > size)
        return tn_nn_why(why, TN_E_FORMAT, "%s: %d x %d pixels are more than a file of this size holds", path,
                         w, h);
    /* Rows of samples, twice where they are unpacked and grow, beside the file: what goes on unpacking beyond its
     * header is stopped, and so is a JPEG that has a second one. */
    most = 2 * size + 16 * ((size_t)w + 64) * ((size_t)h + 64);
    starved = greedy = false;
    if (palette && !(filled = with_palette(file, &size, palette)))
        return tn_nn_why(why, TN_E_NOMEM, "%s: no memory to unpack it", path);
    out->pixels = stbi_load_from_memory(filled ? filled : file, (int)size, &w, &h, &found, channels);
    tn_free_mem(filled);
    out->w = w;
    out->h = h;
    if (out->pixels) return TN_OK;
    if (greedy) return tn_nn_why(why, TN_E_FORMAT, "%s: corrupt, it holds more than its header says", path);
    return starved ? tn_nn_why(why, TN_E_NOMEM, "%s: no memory to unpack it", path)
                   : tn_nn_why(why, TN_E_FORMAT, "%s: corrupt or cut off (%s)", path, stbi_failure_reason());
}
#else
int tn_nn_decode(const char *path, const unsigned char *file, size_t size, int channels, nn_picture *out,
                 nn_why *why)
{
    (void)file, (void)size, (void)channels, (void)out;
    return tn_nn_why(why, TN_E_UNSUPPORTED, "%s: this build has no reader of images (stb_image)", path);
}
#endif
