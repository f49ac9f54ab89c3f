/* conv_tile.h - how a convolution is cut into tiles for our own kernel on tensor cores
 * (src/device/cuda/kernels/conv2d.cu), and what has to stand around it.
 *
 * A kernel's text is defines, "#define ENTRY name", "#define PARTIALS i" (the buffer that is scratch, where
 * there is any), before, the two functions that the text calls, text. Read first: fu_conv_tile.
 */
#pragma once

#include "../../src/device/device.h"

/* A convolution, and the sizes that decide how it is cut into tiles. */
typedef struct fu_conv_way {
    tn_conv2d_desc d; /* pointers unset */
    bool stats;
    int bm, bn, bk, stages, warps_m, warps_n;
    int64_t splits;
    bool halo;
} fu_conv_way;

/* Tiles that were found to be the fastest by running them: tn_target.tuned. */
typedef struct fu_tuned {
    int n, cap;
    fu_conv_way *way;
} fu_tuned;

struct fu_conv_tile {
    char defines[1536];
    const char *before, *text; /* part of the library */
    int n_dim;
    int64_t dim[32];
    int64_t columns; /* that tn_epilogue is told of: channels of y or gx, or the length of a row of gweight */
    int pack;        /* columns in each of its calls */
    int align[2];    /* the addresses of in0 and in1 have to be multiples of so many bytes */
    int64_t scratch; /* bytes of the buffer PARTIALS; 0: none */
    tn_grid grid;
    bool stats, tuned; /* with statistics; found by running it */
    bool wgmma;        /* by warpgroups: 12 or 8 warps along M, of 64 rows each four */
    bool halo;         /* these, and the image stays while the taps change: kernels/conv_halo.cu */
    int row; /* columns of a window that a thread sums for pixels side by side: kernels/conv_depthwise.cu; or 0 */
    bool few;     /* these, of rows of windows of few channels: kernels/conv_few.cu; bk 8 */
    bool product; /* no more than a product of matrices, at which the library is as good */
    /* how: */
    int bm, bn, bk, stages, warps_m, warps_n, vec_a, vec_b, products;
    int64_t splits;
    double cycles; /* that it is predicted to take, */
    double share;  /* and how much of that its tensor cores are busy; */
    const char
        *bound; /* what that takes: tensor, issue, shared, L2, DRAM; lanes where there are no products */
};

/* Chooses the tile for the convolution d, whose pointers, bias and epilogue are not looked at, on the target;
 * `stats`: with statistics of its columns, which is for a forward pass. false: there is no kernel for it
 * (dtype, GPU, size), and *out is not to be used. */
bool fu_conv_tile(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out);

/* The `most` that are predicted to be the fastest, that one first and no two of a size beyond its share: how
 * many. */
int fu_conv_tiles(const tn_conv2d_desc *d, const tn_target *t, bool stats, int most,
                  struct fu_conv_tile *out);

/* The same as fu_conv_tile, but for a convolution that t->tuned knows the tile it names. */
bool fu_conv_tile_tuned(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out);

/* The same of a kernel with a prologue (conv_begin.cuh): of the tiles that leave registers for one.
 * false: there is no form of the kernel with one. */
bool fu_conv_tile_loading(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out);

/* Returns true where a kernel cut as *o can have a prologue. */
bool fu_conv_can_load(const tn_conv2d_desc *d, const struct fu_conv_tile *o);

/* Returns what t has found out about the convolution; NULL: nothing. */
const fu_conv_way *fu_conv_known(const fu_tuned *t, const tn_conv2d_desc *d, bool stats);

/* Clocks that a prologue adds to the kernel cut as *o, which can have one, where it computes `work`
 * instructions for an element and reads `operands` more of x's size. */
double fu_conv_before(const tn_conv2d_desc *d, const tn_target *t, const struct fu_conv_tile *o, double work,
                      int operands);

/* The i-th size of a tile that the choice is among: bm, bn, warps_m, warps_n and halo of *out. false: there
 * are no more. */
bool fu_conv_size(int i, struct fu_conv_tile *out);

/* fu_conv_tile with bm, bn, bk, stages, warps_m, warps_n, splits and halo as they are in *out. false: that
 * cannot be.
 */
bool fu_conv_tile_as(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out);
