/* random.c - Philox4x32-10 and what is drawn from it.
 *
 * key = the seed's low and high word; counter = (row-major index / 4 as two words, draw as two words);
 * element i uses word i % 4 of its block. So an element depends on seed, draw and its place alone. Read
 * first: words. */
#include "internal.h"

#include <math.h>

static void words(uint64_t seed, uint64_t draw, uint64_t block, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)draw, (uint32_t)(draw >> 32)};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = n0, c[1] = (uint32_t)p1, c[2] = n2, c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++) out[i] = c[i];
}

static double unit(uint32_t word) { return (double)(word >> 8) * 0x1p-24; }

/* Box-Muller on a pair of words: elements 0 and 2 of a block take the cosine, 1 and 3 the sine. The first
 * uniform is moved to (0, 1], so that its logarithm exists. */
static double gauss(const uint32_t w[4], int64_t i)
{
    double radius = sqrt(-2 * log(unit(w[i & 2]) + 0x1p-24)),
           angle = 2 * 3.14159265358979323846 * unit(w[(i & 2) + 1]);
    return radius * (i & 1 ? sin(angle) : cos(angle));
}

int tn_ref_random(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    int64_t n = tn_node_numel(node);
    uint64_t threshold = 0;
    if (node->op == TN_OP_bernoulli) {
        double p = a->in[0][0];
        /* p is an f32: the devices compare with the float nearest to what the user gave. */
        if (node->in[0]->dtype == TN_F32) p = (double)(float)p;
        threshold = p >= 1 ? (uint64_t)1 << 32 : p > 0 ? (uint64_t)floor(p * 0x1p32) : 0;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t w[4];
        words(node->graph->seed ^ node->graph->salt, node->attr->draw, (uint64_t)i / 4, w);
        if (node->op == TN_OP_uniform)
            a->out[i] = unit(w[i % 4]);
        else if (node->op == TN_OP_normal)
            a->out[i] = gauss(w, i % 4);
        else
            a->out[i] = w[i % 4] >= threshold;
    }
    return TN_OK;
}
