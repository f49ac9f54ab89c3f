/* hash.h - 64 bits from bytes, for tables whose hits are compared in full. Multiply-and-fold over 16-byte
 * blocks; fast on the few hundred bytes of a record, of no cryptographic use. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t tn_hash_mix(uint64_t a, uint64_t b)
{
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t ll = al * bl, lh = al * bh, hl = ah * bl, hh = ah * bh;
    uint64_t mid = (ll >> 32) + (uint32_t)lh + (uint32_t)hl;
    uint64_t low = (mid << 32) | (uint32_t)ll, high = hh + (lh >> 32) + (hl >> 32) + (mid >> 32);
    return low ^ high;
}

static inline uint64_t tn_hash_bytes(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t h = 0x9e3779b97f4a7c15u ^ n, a, b;
    for (; n >= 16; n -= 16, p += 16) {
        memcpy(&a, p, 8);
        memcpy(&b, p + 8, 8);
        h = tn_hash_mix(a ^ h ^ 0xd1b54a32d192ed03u, b ^ 0x8cb92ba72f3d8dd7u);
    }
    a = b = 0;
    memcpy(&a, p, n < 8 ? n : 8);
    if (n > 8) memcpy(&b, p + 8, n - 8);
    return tn_hash_mix(a ^ h ^ 0xaef17502108ef2d9u, b ^ h ^ 0x2545f4914f6cdd1du);
}
