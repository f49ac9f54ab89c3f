/* int64.h - the few functions of sizes that several rooms count with. */
#pragma once

#include <stdint.h>

static inline int64_t tn_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t tn_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tn_max64(int64_t a, int64_t b) { return a > b ? a : b; }
