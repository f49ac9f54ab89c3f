/* philox.h - counter-based random numbers for generated kernels, one text for C and for CUDA C.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011). There is no
 * state: key = seed, counter = (block, draw), where `draw` numbers the random ops of a session in program
 * order and element i of a tensor (logical row-major index) takes word i % 4 of block i / 4. The bits are
 * therefore the same on every device, in every tiling and order, and when a value is recomputed.
 *
 * A block costs ten rounds and serves four elements: code that walks contiguous elements fills a small
 * buffer with tn_philox_take, vectorised across blocks, instead of calling tn_philox_u32 on each.
 *
 * Comes after math.h. Read first: tn_philox_block, then tn_philox_take.
 */
#ifndef TN_PRELUDE_PHILOX_H
#define TN_PRELUDE_PHILOX_H

#ifndef TN_FN_LARGE /* for functions with loops, which gain nothing from being inlined */
#if defined(__CUDACC__)
#define TN_FN_LARGE static __device__ __attribute__((unused))
#elif defined(__GNUC__)
#ifdef __OPTIMIZE__
#define TN_FN_LARGE static __attribute__((unused))
#else /* as code that is not optimised keeps what is unused unless it is inline, at twice the time */
#define TN_FN_LARGE static inline __attribute__((unused))
#endif
#else
#define TN_FN_LARGE static
#endif
#endif

/* A word of the counter. On a CPU it travels in 64 bits, of which only the lower half means anything: the
 * product wants its factors there, and vector code is spared the unpacking. */
#if defined(__CUDACC__)
typedef uint32_t tn_philox_word;
#else
typedef uint64_t tn_philox_word;
#endif

/* The key grows by two odd constants (the golden ratio and sqrt(3) - 1) from round to round. */
#define TN_PHILOX_ROUND(n)                                                                                   \
    {                                                                                                        \
        uint64_t p0 = (uint64_t)(uint32_t)c0 * 0xd2511f53u, p1 = (uint64_t)(uint32_t)c2 * 0xcd9e8d57u;       \
        c0 = (tn_philox_word)(p1 >> 32) ^ c1 ^ (k0 + n * 0x9e3779b9u);                                       \
        c2 = (tn_philox_word)(p0 >> 32) ^ c3 ^ (k1 + n * 0xbb67ae85u);                                       \
        c1 = (tn_philox_word)p1;                                                                             \
        c3 = (tn_philox_word)p0;                                                                             \
    }

TN_FN void tn_philox_block(uint64_t seed, uint64_t draw, uint64_t block, uint32_t *out)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    tn_philox_word c0 = (tn_philox_word)block, c1 = (tn_philox_word)(block >> 32);
    tn_philox_word c2 = (tn_philox_word)draw, c3 = (tn_philox_word)(draw >> 32);
    TN_PHILOX_ROUND(0u)
    TN_PHILOX_ROUND(1u)
    TN_PHILOX_ROUND(2u)
    TN_PHILOX_ROUND(3u)
    TN_PHILOX_ROUND(4u)
    TN_PHILOX_ROUND(5u)
    TN_PHILOX_ROUND(6u)
    TN_PHILOX_ROUND(7u)
    TN_PHILOX_ROUND(8u)
    TN_PHILOX_ROUND(9u)
    out[0] = (uint32_t)c0;
    out[1] = (uint32_t)c1;
    out[2] = (uint32_t)c2;
    out[3] = (uint32_t)c3;
}

/* The word of one element. */
TN_FN uint32_t tn_philox_u32(uint64_t seed, uint64_t draw, uint64_t index)
{
    uint32_t w[4];
    tn_philox_block(seed, draw, index / 4, w);
    return index & 2 ? (index & 1 ? w[3] : w[2]) : (index & 1 ? w[1] : w[0]);
}

/* Eight blocks side by side, one in each 64-bit lane. Of the products compilers make no more than the general
 * one of 64 bits, which is twice the work; here they are those of the lower halves, as tn_philox_word wants.
 */
#if defined(__AVX512F__) && !defined(__CUDACC__)
#define TN_PHILOX_WIDE
typedef uint64_t tn_philox_lanes __attribute__((vector_size(64)));
typedef uint64_t tn_philox_out __attribute__((vector_size(64), aligned(4), may_alias));

TN_FN tn_philox_lanes tn_philox_times(tn_philox_lanes a, tn_philox_lanes b)
{
#if defined(__clang__)
    return (a & 0xffffffffu) * (b & 0xffffffffu); /* which it sees through */
#else
    typedef int halves __attribute__((vector_size(64)));
    typedef long long product __attribute__((vector_size(64)));
    return (tn_philox_lanes)__builtin_ia32_pmuludq512_mask((halves)a, (halves)b, (product)a,
                                                           (unsigned char)-1);
#endif
}

/* The sixteen blocks from `block` on, in two groups: the rounds of one wait for one another, those of two
 * fill each other's gaps. The keys of all rounds stand ready as vectors: those of the one word, then those of
 * the other. */
TN_FN void tn_philox_blocks(const tn_philox_lanes *key, uint64_t draw, uint64_t block, uint32_t *out)
{
    const tn_philox_lanes none = {0}, each = {0, 1, 2, 3, 4, 5, 6, 7}, low = none + 0xffffffffu;
    const tn_philox_lanes m0 = none + 0xd2511f53u, m1 = none + 0xcd9e8d57u;
    tn_philox_lanes c0[2], c1[2], c2[2], c3[2];
    tn_philox_out *o = (tn_philox_out *)out;
    for (int g = 0; g < 2; g++) {
        c0[g] = each + (block + 8 * (uint64_t)g);
        c1[g] = c0[g] >> 32;
        c2[g] = none + draw;
        c3[g] = c2[g] >> 32;
    }
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++)
        for (int g = 0; g < 2; g++) {
            tn_philox_lanes p0 = tn_philox_times(c0[g], m0), p1 = tn_philox_times(c2[g], m1);
            c0[g] = (p1 >> 32) ^ c1[g] ^ key[round];
            c2[g] = (p0 >> 32) ^ c3[g] ^ key[10 + round];
            c1[g] = p1;
            c3[g] = p0;
        }
    for (int g = 0; g < 2; g++) {
        c0[g] = (c0[g] & low) | c1[g] << 32;
        c2[g] = (c2[g] & low) | c3[g] << 32;
#if defined(__clang__)
        o[2 * g] = __builtin_shufflevector(c0[g], c2[g], 0, 8, 1, 9, 2, 10, 3, 11);
        o[2 * g + 1] = __builtin_shufflevector(c0[g], c2[g], 4, 12, 5, 13, 6, 14, 7, 15);
#else
        o[2 * g] = __builtin_shuffle(c0[g], c2[g], (tn_philox_lanes){0, 8, 1, 9, 2, 10, 3, 11});
        o[2 * g + 1] = __builtin_shuffle(c0[g], c2[g], (tn_philox_lanes){4, 12, 5, 13, 6, 14, 7, 15});
#endif
    }
}
#endif

/* One draw, from which code that walks a tensor takes words piece by piece. */
typedef struct tn_philox_draw {
    uint64_t seed, draw;
#if defined(TN_PHILOX_WIDE)
    tn_philox_lanes key[20];
#endif
} tn_philox_draw;

TN_FN void tn_philox_open(tn_philox_draw *d, uint64_t seed, uint64_t draw)
{
    d->seed = seed;
    d->draw = draw;
#if defined(TN_PHILOX_WIDE)
    for (uint32_t round = 0; round < 10; round++) {
        const tn_philox_lanes none = {0};
        d->key[round] = none + (uint64_t)((uint32_t)seed + round * 0x9e3779b9u);
        d->key[10 + round] = none + (uint64_t)((uint32_t)(seed >> 32) + round * 0xbb67ae85u);
    }
#endif
}

/* The words of elements first .. first + n - 1. Wide code computes sixteen blocks even where fewer are
 * wanted: a second form for those would double what is compiled for each kernel. */
TN_FN_LARGE void tn_philox_take(const tn_philox_draw *d, uint64_t first, int64_t n, uint32_t *out)
{
#if defined(TN_PHILOX_WIDE)
    enum { WORDS = 64 };
    uint32_t some[WORDS];
    uint64_t block = first / 4;
    int64_t skip = (int64_t)(first % 4);
    for (int64_t i = 0; i < n; block += WORDS / 4) {
        const bool all = !skip && n - i >= WORDS;
        int64_t count = n - i < WORDS - skip ? n - i : WORDS - skip;
        tn_philox_blocks(d->key, d->draw, block, all ? out + i : some);
        if (!all) __builtin_memcpy(out + i, some + skip, (uint64_t)count * sizeof *out);
        i += count;
        skip = 0;
    }
#else
    int64_t i = 0;
    for (; i < n && (first + (uint64_t)i) % 4; i++)
        out[i] = tn_philox_u32(d->seed, d->draw, first + (uint64_t)i);
    uint64_t block = (first + (uint64_t)i) / 4;
    int64_t blocks = (n - i) / 4;
    uint32_t *o = out + i;
    for (int64_t b = 0; b < blocks; b++) tn_philox_block(d->seed, d->draw, block + (uint64_t)b, o + 4 * b);
    for (i += 4 * blocks; i < n; i++) out[i] = tn_philox_u32(d->seed, d->draw, first + (uint64_t)i);
#endif
}

TN_FN void tn_philox_fill(uint64_t seed, uint64_t draw, uint64_t first, int64_t n, uint32_t *out)
{
    tn_philox_draw d;
    tn_philox_open(&d, seed, draw);
    tn_philox_take(&d, first, n, out);
}

/* ------------------------------------------------------------------------------------- distributions */

/* [0, 1), 24 bits. */
TN_FN float tn_uniform(uint32_t u) { return (float)(int32_t)(u >> 8) * 0x1p-24f; }

/* Returns true where an element is dropped with probability p: u < floor(p * 2^32). */
TN_FN bool tn_dropped(uint32_t u, double p)
{
    double t = p * 0x1p32;
    uint32_t bound = t > 0 ? t < 0x1p32 ? (uint32_t)t : 0xffffffffu : 0;
    return u < bound || p >= 1;
}

/* Box-Muller: words a and b give sqrt(-2 log u) times cos and sin of 2 pi v, with u = ((a >> 8) + 1) 2^-24 in
 * (0, 1] and v = (b >> 8) 2^-24. The angle is reduced to a quarter in integers, so without error. */
TN_FN void tn_normal_pair(uint32_t a, uint32_t b, float *z0, float *z1)
{
    float u = (float)(int32_t)((a >> 8) + 1) * 0x1p-24f, radius = tn_sqrt_f32(-2 * tn_log_f32(u));
    uint32_t v = b >> 8, quarter = (v + 0x200000u) >> 22;
    float r = (float)((int32_t)v - (int32_t)(quarter << 22)) * 0x1.921fb6p-22f, z = r * r;
    float s = tn_sin_poly(r, z), c = tn_cos_poly(z);
    float x = quarter & 1 ? s : c, y = quarter & 1 ? c : s;
    x = tn_from_bits_f32(tn_bits_f32(x) ^ ((quarter + 1) & 2) << 30);
    y = tn_from_bits_f32(tn_bits_f32(y) ^ (quarter & 2) << 30);
    *z0 = radius * x;
    *z1 = radius * y;
}

/* A standard normal for one element: words (0, 1) of its block serve its elements 0 and 1, words (2, 3) the
 * elements 2 and 3. */
TN_FN float tn_philox_normal(uint64_t seed, uint64_t draw, uint64_t index)
{
    uint32_t w[4];
    float z0, z1;
    tn_philox_block(seed, draw, index / 4, w);
    tn_normal_pair(index & 2 ? w[2] : w[0], index & 2 ? w[3] : w[1], &z0, &z1);
    return index & 1 ? z1 : z0;
}

/* Standard normals of elements first .. first + n - 1. */
TN_FN_LARGE void tn_normal_fill(uint64_t seed, uint64_t draw, uint64_t first, int64_t n, float *out)
{
    enum { TILE = 256 };
    uint32_t w[TILE];
    float z[TILE];
    uint64_t end = first + (uint64_t)(n < 0 ? 0 : n);
    for (uint64_t base = first & ~(uint64_t)3; base < end; base += TILE) {
        uint64_t left = (end - base + 3) & ~(uint64_t)3;
        int64_t m = left < TILE ? (int64_t)left : TILE;
        tn_philox_fill(seed, draw, base, m, w);
        for (int64_t j = 0; j < m / 2; j++) tn_normal_pair(w[2 * j], w[2 * j + 1], &z[2 * j], &z[2 * j + 1]);
        int64_t from = base < first ? (int64_t)(first - base) : 0;
        int64_t to = end - base < (uint64_t)m ? (int64_t)(end - base) : m;
        for (int64_t j = from; j < to; j++) out[(int64_t)(base - first) + j] = z[j];
    }
}

#endif
