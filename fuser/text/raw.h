/* raw.h - helpers for kernels whose loops are written out one by one: windows, scatters, scans. */
#ifndef TN_FUSER_RAW_H
#define TN_FUSER_RAW_H

#include "text.h"

typedef struct fu_raw {
    fu_ctx *c;
    tn_step *s;
    tn_growing t;
    const fu_dialect *lang;
    int node;
    bool fault; /* the text calls index_fault */
} fu_raw;

int fu_raw_open(fu_raw *k, fu_ctx *c, const fu_group *g, const char *what, int64_t width);
void fu_raw_operand(fu_raw *k, int slot, int64_t offset, tn_dtype d, const char *name, bool out);
int fu_raw_input(fu_raw *k, const tn_tensor *t, const char *name);
void fu_raw_output(fu_raw *k, const char *name); /* the node's own value */
int fu_raw_dim(fu_raw *k, int64_t v);
int fu_raw_close(fu_raw *k, const char *comment, int64_t items, int64_t per_item);
/* Sum of coordinate * stride over axes from .. to - 1; coordinates are named by a prefix and the axis. */
void fu_raw_index(const tn_tensor *t, int from, int to, const char *coordinate, char *out, size_t n);
void fu_raw_decode(fu_raw *k, const tn_tensor *t, int from, int to, const char *what);
int64_t fu_raw_count(const tn_tensor *t, int from, int to);
int fu_dense_operand(fu_ctx *c, const tn_tensor *t, int *slot, int64_t *offset);

/* ---- window.c ---- */
/* A kernel that pools, or that carries gradients back through pooling. */
typedef struct fu_window {
    fu_raw k;
    const tn_tensor *t;
    const tn_pool_attr *p;
    tn_dtype d, acc, to; /* of what is read, added up, and written beside places */
    bool back;           /* a transpose: from windows to the image */
    bool max;            /* of the windows: the largest element is written, */
    bool chosen;         /* and which one it is */
} fu_window;
/* Declares operands and results: x or g, index; out, place. */
int fu_window_open(fu_window *w, fu_ctx *c, const fu_group *g);

/* ---- in CUDA C ---- */
/* The place of operand t. A number is written out into scratch first, and *t is then *dense. */
typedef struct fu_place_of {
    const tn_tensor *t;
    tn_tensor dense;
    int slot;
    int64_t offset;
} fu_place_of;
int fu_cuda_place(fu_ctx *c, const tn_tensor *t, fu_place_of *out);
void fu_cuda_operand(fu_raw *k, const fu_place_of *x, const char *name);
const char *fu_cuda_guard(const fu_ctx *c, int n, const int *member, bool faults);
/* `threads` of a block, each block `chunk` of the items. */
int fu_cuda_close(fu_raw *k, const char *comment, int64_t items, int threads, int64_t chunk);
/* One thread for each element of `numel`: opens `if (item < a.n)`; its number is called by the text returned.
 */
const char *fu_cuda_each(fu_raw *k, int64_t numel);
int fu_cuda_window(fu_ctx *c, const fu_group *g);
int fu_cuda_scan(fu_ctx *c, const fu_group *g);
int fu_cuda_scatter(fu_ctx *c, const fu_group *g);

#endif
