/* conv_slide.h - depthwise windows of 3 x 3 that slide along a line: what a window has in common with the one
 * before stays in registers, and 16-bit numbers are widened there. For processors with AVX-512. */
#pragma once

#include "../device.h"

/* Of each channel by itself. A line has `count` results, pixels of `channels` numbers side by side; result o
 * reads columns o * step + first .. + 2 of three lines of `width` pixels, those outside as zeros. */
typedef struct tn_slide {
    tn_dtype dtype; /* of what lines hold: f32, f16, bf16 */
    int64_t channels, count, width, step, first;
    int64_t ahead;       /* bytes from what a line reads to what the next one does, which is asked for */
    const char *line[3]; /* NULL: outside */
    float *taps;         /* [3][3][channels] */
    const float *bias;   /* or NULL */
    bool relu;
} tn_slide;

/* step: from one result to the next along a line. */
bool tn_slide_serves(tn_dtype dtype, int64_t step);
/* One line of results: act(bias + sum over taps of what they read times their weights). */
void tn_slide_results(const tn_slide *s, char *results);
/* Adds to the taps what a line's gradients give. */
void tn_slide_weights(const tn_slide *s, const char *gradients);
