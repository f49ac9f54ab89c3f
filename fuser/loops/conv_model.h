/* conv_model.h - a convolution as a product on tensor cores: its sizes, how its image lies in shared memory
 * (conv_shape.c), and how long a tile takes (conv_model.c). Read first: fu_conv_shape. */
#pragma once

#include "conv_tile.h"

enum {
    FU_CONV_WINDOW = 3,         /* conv_halo_weights.cu: its rows and columns, */
    FU_CONV_WIDE = 64,          /* channels of x in a tile, */
    FU_CONV_PIXELS = 128,       /* and of a buffer */
    FU_CONV_BLOCK_SHARED = 1024 /* of shared memory, that a block has beside the kernel's own */
};

typedef struct fu_conv_shape {
    int64_t m, n, k; /* of one group and phase */
    int64_t phases, groups;
    int64_t width, pixels, channels; /* of rows, images and taps: what indices are divided by */
    int size;
    int64_t taps;
    bool direct;               /* not by tensor cores: either of the two below */
    bool forward, weights;     /* the pass: forward, weight gradient */
    int64_t in_each, out_each; /* of groups of few channels: gathered and made of them; else 0 */
    int64_t multiplier; /* of a convolution of each channel alone: channels of y for one of x; else 0 */
    int64_t halo; /* rows that a block keeps of the image while taps change, or of few channels; else 0 */
    struct few {
        int64_t rows, run, shift, left, pitch, tall, reach, down, pieces;
        bool odd;
    } few; /* as conv_few.cu names them */
} fu_conv_shape;

/* false: it is none that our kernels compute. */
bool fu_conv_shape_of(const tn_conv2d_desc *d, fu_conv_shape *s);

/* Numbers pixels as conv_halo.cu has it, so that windows across a border see pixels that do not exist. false:
 * it has no form of the convolution. */
bool fu_conv_lay_halo(const tn_conv2d_desc *d, const struct fu_conv_tile *o, fu_conv_shape *s);

/* Lays rows of the image as conv_few.cu has it. false: it has no form of the convolution. */
bool fu_conv_lay_few(const tn_conv2d_desc *d, const struct fu_conv_tile *o, fu_conv_shape *s);

/* Writes cycles, share and bound of o, which is filled in but for these. */
void fu_conv_predict(struct fu_conv_tile *o, const fu_conv_shape *s, const tn_target *t);
