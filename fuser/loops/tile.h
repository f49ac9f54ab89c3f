/* tile.h - a convolution or product that our own tensor-core kernel computes, and what it does besides
 * (tile.c).
 *
 * Such a kernel has four kinds of members beside the convolution or product itself:
 *   before  computed for each element of a convolution's image as it is loaded, from one value of that size
 *           and others, each time anew: these nodes belong to other groups
 *   each    computed for each element as the product is handed over: bias, activation, residual, dropout
 *   last    computed for each column when all of it is done, from its statistics: running ones, 1 / deviation
 *   within  what the statistics take the place of: differences from a value of the column, and their squares
 * A reduction that statistics give is a node with `statistic` set, and counts among the last ones. */
#pragma once

#include "loops.h"

typedef struct fu_tile_parts {
    int n_before, n_each, n_last, n_sum;
    int before[FU_MAX_MEMBERS]; /* the last one is the convolution's image */
    const tn_tensor *from;      /* the tensor that is loaded in the place of that image */
    int each[FU_MAX_MEMBERS];   /* in id order, the convolution among them */
    int last[FU_MAX_MEMBERS];   /* in id order, without the reductions */
    int sum[FU_MAX_MEMBERS];    /* the reductions */
} fu_tile_parts;

/* Tells program.c which of the programs of a group with a convolution or product it writes. */
typedef struct fu_tile {
    const fu_tile_parts *parts;
    bool last;   /* the program of the `last` members: over the columns alone */
    bool before; /* the program of the `before` members */
} fu_tile;

/* Marks the convolutions that have a kernel of our own, and the reductions that their statistics give. */
void fu_tile_mark(fu_ctx *c);
/* Marks the products that could have one: those that the library writes as they are. */
void fu_tile_mark_products(fu_ctx *c);
/* Returns true where the product `node` and the members that fu_tile_try has just put beside it take less
 * time in one kernel than as a library call and a pass; `kept`: the product's own value is written as
 * well. */
bool fu_tile_pays(const fu_ctx *c, int node, bool kept);
/* Returns the nanoseconds that the convolution's kernel takes longer where it computes its image: `work`
 * instructions for an element, which read `operands` more values of that size. Negative: it cannot. */
double fu_tile_before_ns(const fu_ctx *c, int conv, double work, int operands);
/* The programs of a group: that of each element into c->prog, that of the statistics into c->prog2, that of
 * what is loaded into c->prog3. */
tn_cut_reason fu_tile_try(fu_ctx *c, const fu_candidate *k, fu_tile_parts *parts);
int fu_tile_conv(const fu_ctx *c, int n, const int *member); /* the convolution or product among them */
bool fu_tile_waits(const fu_ctx *c, const fu_candidate *k);  /* some of them are for each element */
/* Schedules the loops of a program inside of a tile: the last atom counts the columns, `pack` of them at
 * once. */
tn_cut_reason fu_schedule_tile(fu_prog *p, int64_t columns, int pack);
/* Returns the position of element `offset` of a slot, counted in elements from where its memory was
 * allocated. */
int64_t fu_position(const fu_ctx *c, int slot, int64_t offset);
int fu_emit_tile(fu_ctx *c, const fu_group *g);
void fu_conv_desc(const fu_ctx *c, int node, tn_conv2d_desc *d);
