/* draw.c - splitmix64, and the orders of passes that are drawn with it: part of what a training run is, so
 * that they must not change. */
#include "draw.h"
#include "nn.h"

uint64_t tn_nn_splitmix(uint64_t *state)
{
    uint64_t z = (*state += NN_GOLDEN);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in 0..n-1 without bias (Lemire, "Fast random integer generation in an interval", 2019, with 32-bit
 * draws): the high half of a product, redrawn in the rare case that the low half says the bucket is short. */
static uint32_t below(uint64_t *state, uint32_t n)
{
    uint64_t m = (tn_nn_splitmix(state) >> 32) * n;
    if ((uint32_t)m < n) {
        uint32_t least = (0u - n) % n;
        while ((uint32_t)m < least) m = (tn_nn_splitmix(state) >> 32) * n;
    }
    return (uint32_t)(m >> 32);
}

void tn_nn_order(uint32_t *order, int64_t n, uint64_t seed, int64_t epoch)
{
    uint64_t state = seed + NN_GOLDEN * ((uint64_t)epoch + 1);
    for (int64_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t j = below(&state, (uint32_t)(i + 1)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* Windows are drawn with replacement, so a pass needs no list of them: draw i starts a generator of its own.
 * The pass's state is drawn, not counted up, since those of neighbouring passes would overlap. */
void tn_nn_places(uint32_t *places, int64_t first, int64_t n, uint32_t end, uint64_t seed, int64_t epoch)
{
    uint64_t state = seed + NN_GOLDEN * ((uint64_t)epoch + 1), pass = tn_nn_splitmix(&state);
    for (int64_t i = 0; i < n; i++) {
        state = pass + NN_GOLDEN * (uint64_t)(first + i);
        places[i] = below(&state, end);
    }
}
