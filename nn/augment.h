/* augment.h - what a loader's .augment does to an image on its way into a batch. */
#pragma once

#include "nn.h"

/* How one item is seen in one pass. */
typedef struct nn_view {
    bool flip;
    int64_t dy, dx; /* what is seen at the upper left is the pixel (dy, dx) */
    bool colours;
    float brightness, contrast, saturation; /* factors */
} nn_view;

uint64_t tn_nn_key(uint64_t seed, int64_t epoch); /* of a pass */
void tn_nn_view_of(const nn_draw *draw, int64_t k, nn_view *out);
/* Pixels of the first array as its values. */
void tn_nn_show(const tn_dataset *d, const unsigned char *from, const nn_view *v, float *to);
/* An item of another array a that is a map of the image's pixels, moved and flipped with it. */
void tn_nn_follow(const nn_array *a, const unsigned char *from, const nn_view *v, unsigned char *to);
bool tn_nn_follows(const tn_dataset *d, int i); /* whether array i is such a map */
/* The box {y0, x0, y1, x1} that .crop draws of an image. */
void tn_nn_crop_box(const nn_draw *draw, int64_t k, int64_t h, int64_t w, double box[4]);
double tn_nn_share(const nn_draw *draw, int64_t k); /* of item k where it is mixed with another */
