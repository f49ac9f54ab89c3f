/* raw.h - helpers for kernels whose loops are written out one by one: windows, scatters, scans. One text
 * serves both dialects: an item is a turn of a loop, with many elements that vectors compute, or on a grid of
 * threads one element. */
#pragma once

#include "text.h"

enum { FU_RAW_THREADS = 256 }; /* of a block */

typedef struct fu_raw {
    fu_ctx *c;
    tn_step *s;
    tn_growing t;
    const fu_dialect *lang;
    int node;
    bool grid;  /* an item is a thread's */
    bool fault; /* the text calls index_fault */
} fu_raw;

/* An operand where it lies. A number is written out into scratch first, and t is then `dense`. */
typedef struct fu_stored {
    const tn_tensor *t;
    tn_tensor dense;
    int slot;
    int64_t offset;
} fu_stored;
int fu_raw_find(fu_ctx *c, const tn_tensor *t, fu_stored *out);
int fu_raw_copy(fu_ctx *c, const tn_tensor *t, fu_stored *out); /* what it is by now, in scratch */
/* Where t lies, if it can be read there, or a dense copy. */
int fu_take(fu_ctx *c, const tn_tensor *t, bool lies, int *slot, int64_t *offset);
int fu_dense_operand(fu_ctx *c, const tn_tensor *t, int *slot, int64_t *offset);

int fu_raw_open(fu_raw *k, fu_ctx *c, const fu_group *g, const char *what, int64_t width);
void fu_raw_operand(fu_raw *k, int slot, int64_t offset, tn_dtype d, const char *name, bool out);
void fu_raw_input(fu_raw *k, const fu_stored *x, const char *name);
void fu_raw_output(fu_raw *k, const char *name); /* the node's own value */
int fu_raw_dim(fu_raw *k, int64_t v);
/* Opens what is done for each of `items`; the name of its number. */
const char *fu_raw_each(fu_raw *k, int64_t items);
/* A processor's thread takes items of `per_item` steps; a block of threads takes `in_block` of them. */
int fu_raw_close(fu_raw *k, const char *comment, int64_t items, int64_t per_item, int64_t in_block);

/* Sum of coordinate * stride over axes from .. to - 1; coordinates are named by a prefix and the axis. */
void fu_raw_index(const tn_tensor *t, int from, int to, const char *coordinate, char *out, size_t n);
void fu_raw_decode(fu_raw *k, const tn_tensor *t, int from, int to, const char *what);
/* The value of the element name[at], and the line that stores a value as one. */
void fu_raw_value(const fu_raw *k, tn_dtype d, const char *name, const char *at, char *out, size_t n);
void fu_raw_store(fu_raw *k, tn_dtype d, const char *element, const char *value);

/* A scatter: of the target, lines along the scattered axis, what is outside and inside of one; of the source,
 * n lines. */
typedef struct fu_scatter {
    int node;
    const tn_tensor *t;
    fu_stored index;
    int64_t outer, lines, inner, n;
} fu_scatter;

/* ---- scatter_cuda.c ---- */
bool fu_scatter_sorts(
    const fu_scatter *s); /* the index has one entry a line, and so many that it is sorted */
int fu_emit_scatter_sorted(fu_ctx *c, const fu_scatter *s);
double fu_wait_work(const tn_target *t, double turns); /* instructions that take as long as so many waits */

/* Pooling, or a transpose of it. */
typedef struct fu_window {
    fu_raw k;
    const tn_tensor *t;
    const tn_pool_attr *p;
    tn_dtype d, acc, to;    /* of what is read, added up, and written beside places */
    bool back;              /* a transpose: from windows to the image */
    bool max;               /* of the windows: the largest element is written, */
    bool chosen;            /* and which one it is */
    int64_t rows, width, c; /* of the result: rows, columns, channels */
    int64_t tx, tiles;      /* result columns an item makes; items a row */
    int64_t shift;          /* where operands and results begin, or-ed */
    bool flat;              /* the loops now open are one */
} fu_window;

/* ---- window_cuda.c ---- */
int64_t fu_window_cuda(fu_window *w); /* leaves the item's scope open; the number of items */

int fu_emit_sort(fu_ctx *c, const fu_group *g); /* sort.c */
int fu_emit_rows(fu_ctx *c, const fu_group *g); /* rows.c */
