/* idx_files.h - IDX files of 7 images of 3 x 5 with labels, in the test run's folder.
 * And check sums for PNGs that a test makes or changes: seal_png.
 *
 * Read first: good_files. */
#pragma once

#include "../nn/nn.h"
#include "../src/core/alloc.h"
#include "folder.h"

enum { N = 7, H = 3, W = 5 };

static inline void put(const char *name, const void *data, size_t n) { spill(in_base(name), data, n); }

static inline void drop(const char *name) { unlink(in_base(name)); }

static inline uint8_t pixel(int i, int k) { return (uint8_t)(i * 31 + k * 7); }

static inline size_t idx_images(uint8_t *out)
{
    static const uint8_t head[16] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, H, 0, 0, 0, W};
    memcpy(out, head, 16);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < H * W; k++) out[16 + i * H * W + k] = pixel(i, k);
    return 16 + N * H * W;
}

static inline size_t idx_labels(uint8_t *out)
{
    static const uint8_t head[8] = {0, 0, 8, 1, 0, 0, 0, N};
    memcpy(out, head, 8);
    for (int i = 0; i < N; i++) out[8 + i] = (uint8_t)(i % 10);
    return 8 + N;
}

static inline void good_files(void)
{
    uint8_t file[256];
    put("train-images-idx3-ubyte", file, idx_images(file));
    put("train-labels-idx1-ubyte", file, idx_labels(file));
}

/* The PNG with the check sums that its chunks should have, up to one that is cut off. */
static inline void seal_png(uint8_t *p, size_t n)
{
    for (size_t at = 8, bytes; at + 12 <= n; at += bytes + 12) {
        uint32_t crc = ~0u;
        bytes = (size_t)p[at] << 24 | (size_t)p[at + 1] << 16 | (size_t)p[at + 2] << 8 | p[at + 3];
        if (bytes > n - at - 12) return;
        for (size_t i = 0; i < bytes + 4; i++) {
            crc ^= p[at + 4 + i];
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
        }
        for (size_t i = 0; i < 4; i++) p[at + 8 + bytes + i] = (uint8_t)(~crc >> (24 - 8 * i));
    }
}
