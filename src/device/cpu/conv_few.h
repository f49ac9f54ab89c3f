/* conv_few.h - windows of many channels for results of few: vectors along the windows, where those of a
 * product's kernel, along the results' channels, would be nearly empty. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TN_FEW_LANES = 16, TN_FEW_RESULTS = 3 };

/* out[p * out_step + o] = act(bias[o] + sum over (r, s, i) of a[p * pixel + r * down + s * along + i] *
 * w[o * w_step + (r * columns + s) * run + i]) for p < pixels, o < results. run is a multiple of the lanes.
 */
typedef struct tn_few {
    const float *a, *w, *bias;
    float *out;
    int64_t pixels, pixel, out_step, rows, down, columns, along, run, results, w_step;
    bool relu;
} tn_few;

void tn_few_results(const tn_few *f);
