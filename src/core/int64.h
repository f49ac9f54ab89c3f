/* int64.h - the few functions of sizes that several rooms count with. */
#pragma once

#include <stdint.h>

static inline int64_t tn_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t tn_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tn_max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Finds by halving where `before`, which is true of the first numbers from low up to high and of no other, ends to be
 * true of `middle`: low and high are that number then. */
#define TN_BISECT(low, high, before)                                                                         \
    while (low < high) {                                                                                     \
        const __typeof__(low) middle = (low + high) / 2;                                                     \
        if (before)                                                                                          \
            low = middle + 1;                                                                                \
        else                                                                                                 \
            high = middle;                                                                                   \
    }
