/* fuzz.h - what fuzz targets share: good inputs to start from, and how bytes are changed.
 *
 * A target is a function of bytes that must neither crash nor leak nor break what it asserts, whatever they
 * are, and a maker of good inputs. Inputs are made on the spot and given to the readers from memory:
 * tn_nn_slurp and tn_nn_map are this program's own, which deliver `served` in place of any file.
 *
 * Two programs run targets: tests/test_fuzz.c with mutations of its own, everywhere and the same each time;
 * and tests/fuzz/libfuzzer.c, where clang has libFuzzer, which follows what the code does with them (make
 * fuzz). Read first: fuzz_mutate. */
#pragma once

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "include/tensor_nn.h"
#include "nn/optim.h"

typedef struct fuzz_target {
    const char *name;
    void (*one)(const uint8_t *data, size_t size);
    size_t (*good)(unsigned k, uint8_t *out, size_t room); /* the k-th good input; any k means one */
    size_t most;                                           /* bytes of an input */
    bool text;                                             /* numbers in it stand as digits */
} fuzz_target;

/* Beside assert(), which builds may leave out. */
#define FUZZ_CHECK(what)                                                                                     \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                               \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* ---- files from memory ---- */

static struct {
    const uint8_t *data;
    size_t size;
} served;

int tn_nn_slurp(const char *path, size_t most, unsigned char **data, size_t *size, nn_why *why)
{
    if (served.size > most) return tn_nn_why(why, TN_E_FORMAT, "%s: too long", path);
    *data = tn_malloc(served.size + 1); /* as large as it is, so that a byte too far is seen */
    if (!*data) return tn_nn_why(why, TN_E_NOMEM, "%s: no memory", path);
    if (served.size) memcpy(*data, served.data, served.size);
    (*data)[served.size] = 0;
    *size = served.size;
    return TN_OK;
}

int tn_nn_map(const char *path, nn_file *out, nn_why *why)
{
    unsigned char *data = NULL;
    int status = tn_nn_slurp(path, SIZE_MAX, &data, &out->size, why);
    out->data = data;
    return status;
}

void tn_nn_unmap(nn_file *f)
{
    tn_free_mem((void *)(uintptr_t)f->data);
    f->data = NULL;
}

static void fuzz_quiet(int level, const char *text, void *user) { (void)level, (void)text, (void)user; }

/* ---- random numbers ---- */

static uint64_t fuzz_next(uint64_t *r)
{
    uint64_t z = (*r += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t fuzz_below(uint64_t *r, size_t n) { return n ? (size_t)(fuzz_next(r) % n) : 0; }

/* clang-format off: a row for each neighbourhood */
#define FUZZ_BIT(n) (INT64_C(1) << (n))
static const int64_t fuzz_hostile[] = {0,
                                       1,
                                       2,
                                       3,
                                       -1,
                                       -2,
                                       7,
                                       8,
                                       9,
                                       63,
                                       64,
                                       65,
                                       100,
                                       127,
                                       128,
                                       255,
                                       256,
                                       FUZZ_BIT(10),
                                       INT16_MAX,
                                       FUZZ_BIT(16),
                                       FUZZ_BIT(24),
                                       FUZZ_BIT(30),
                                       INT32_MAX,
                                       INT32_MIN,
                                       FUZZ_BIT(31),
                                       FUZZ_BIT(32),
                                       UINT32_MAX,
                                       FUZZ_BIT(32) + 1,
                                       FUZZ_BIT(40),
                                       FUZZ_BIT(53),
                                       FUZZ_BIT(53) + 1,
                                       FUZZ_BIT(61),
                                       FUZZ_BIT(62),
                                       INT64_MAX - 1,
                                       INT64_MAX,
                                       INT64_MIN,
                                       INT64_MIN + 1};
/* clang-format on */
enum { FUZZ_HOSTILE = sizeof fuzz_hostile / sizeof *fuzz_hostile };

/* ---- mutations ---- */

/* In place of n bytes at `at` the k bytes of `with`; the size afterwards, or before where there is no room.
 */
static size_t fuzz_splice(uint8_t *d, size_t size, size_t room, size_t at, size_t n, const void *with,
                          size_t k)
{
    if (at + n > size || size - n + k > room) return size;
    memmove(d + at + k, d + at + n, size - at - n);
    memcpy(d + at, with, k);
    return size - n + k;
}

/* Another number in place of one that stands as digits somewhere behind `from`. */
static size_t fuzz_digits(uint8_t *d, size_t size, size_t room, size_t from, uint64_t *r)
{
    static const char *const odd[] = {"1e308",
                                      "1e-308",
                                      "0.5",
                                      "-0",
                                      "1e400",
                                      "nan",
                                      "inf",
                                      "9999999999999999999999",
                                      "0x10",
                                      "00",
                                      "1.",
                                      "9007199254740993",
                                      "18446744073709551615",
                                      "18446744073709551616"};
    char text[32];
    while (from < size && (d[from] < '0' || d[from] > '9')) from++;
    size_t n = 0;
    while (from + n < size && d[from + n] >= '0' && d[from + n] <= '9') n++;
    if (!n) return size;
    if (fuzz_below(r, 4))
        snprintf(text, sizeof text, "%" PRId64, fuzz_hostile[fuzz_below(r, FUZZ_HOSTILE)]);
    else
        snprintf(text, sizeof text, "%s", odd[fuzz_below(r, sizeof odd / sizeof *odd)]);
    return fuzz_splice(d, size, room, from, n, text, strlen(text));
}

/* Of a safetensors file the first eight bytes say how long the header is: right again, most of the time. */
static void fuzz_length(uint8_t *d, size_t size, size_t before, uint64_t *r)
{
    uint64_t n = 0;
    for (int i = 7; size >= 8 && i >= 0; i--) n = n << 8 | d[i];
    if (size < 8 || n > 1 << 20 || fuzz_below(r, 16) == 0) return;
    n += (uint64_t)size - before;
    for (int i = 0; i < 8; i++) d[i] = (uint8_t)(n >> 8 * i);
}

static size_t fuzz_once(const fuzz_target *t, uint8_t *d, size_t size, size_t room, uint64_t *r)
{
    size_t at = fuzz_below(r, size), before = size;
    uint8_t bytes[8];
    int64_t v = fuzz_hostile[fuzz_below(r, FUZZ_HOSTILE)];
    switch (fuzz_below(r, t->text ? 12 : 8)) {
    case 0:
        if (size) d[at] ^= (uint8_t)(1 << fuzz_below(r, 8));
        return size;
    case 1:
        if (size) d[at] = (uint8_t)fuzz_next(r);
        return size;
    case 2: /* a number, in either order of bytes */
    case 3: {
        size_t n = (size_t)1 << fuzz_below(r, 4);
        bool big = fuzz_below(r, 2);
        for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)((uint64_t)v >> 8 * (big ? n - 1 - i : i));
        if (size > 8 && fuzz_below(r, 2)) at &= ~(n - 1); /* where numbers stand */
        return fuzz_splice(d, size, room, at, n <= size - at ? n : size - at, bytes,
                           n <= size - at ? n : size - at);
    }
    case 4: /* cut off */ return fuzz_below(r, 4) ? at : size;
    case 5: { /* a piece again, elsewhere */
        uint8_t piece[64];
        size_t n = fuzz_below(r, size - at < 64 ? size - at + 1 : 65);
        memcpy(piece, d + at, n);
        return fuzz_splice(d, size, room, fuzz_below(r, size + 1), 0, piece, n);
    }
    case 6: /* a piece less */
        return fuzz_splice(d, size, room, at, fuzz_below(r, size - at < 64 ? size - at + 1 : 65), bytes, 0);
    case 7: { /* a piece over another */
        size_t n = fuzz_below(r, 65), to = fuzz_below(r, size);
        if (at + n <= size && to + n <= size) memmove(d + to, d + at, n);
        return size;
    }
    case 8: /* a character that texts are made of */
        if (size) d[at] = (uint8_t) "0123456789,:[]{}\"-e.\\\n "[fuzz_below(r, 23)];
        return size;
    default:
        size = fuzz_digits(d, size, room, at, r);
        if (fuzz_below(r, 8)) fuzz_length(d, size, before, r);
        return size;
    }
}

/* Some changes on what is there, or on a good input. */
static size_t fuzz_mutate(const fuzz_target *t, uint8_t *d, size_t size, size_t room, uint64_t *r)
{
    if (room > t->most) room = t->most;
    if (!size || size > room || fuzz_below(r, 8) == 0) size = t->good((unsigned)fuzz_below(r, 64), d, room);
    for (size_t n = 1 + fuzz_below(r, 4); n; n--) size = fuzz_once(t, d, size, room, r);
    return size;
}
