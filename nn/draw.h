/* draw.h - random numbers of data: splitmix64, whose state is one number, so that whatever is drawn for an
 * item is a function of seed, pass and item, and neither of what was drawn before nor of the thread that
 * draws. */
#pragma once

#include <stdint.h>

#define NN_GOLDEN UINT64_C(0x9e3779b97f4a7c15)

uint64_t tn_nn_splitmix(uint64_t *state);
