/* cuda.h - what the CUDA nests share. All of a kernel is one function; each nest writes the work of one
 * block.
 *
 *   cuda.c         the function: operands, body, finish    (start here: fu_cuda_kernel)
 *   cuda_pack.c    one pack of elements: loads, random numbers, the body for each element, stores;
 *                       and the pointwise nest, which is little else
 *   cuda_row.c     a team of threads for each row
 *   cuda_column.c  a block for a tile of columns
 *   cuda_block.c   pointwise, where something is read crosswise
 */
#pragma once

#include "nest.h"

/* ---- cuda.c ---- */
/* The kernel's text, into e->head; and the line that a kernel of these nodes begins with. The first n_in
 * operands are only read. */
const char *fu_cuda_guard(const fu_ctx *c, int n, const int *member, bool faults);
void fu_cuda_kernel(fu_em *e, const fu_group *g, fu_prog *p, fu_prog *second, int n_in, const int *scratch);

/* ---- cuda_pack.c ---- */
typedef struct fu_pack {
    int phase;
    int n;             /* elements: p->pack, or 1 in what is left over at the end of a range */
    const char *stash; /* index of what is kept between phases, with `l` for the element, or NULL */
    const char *lane;  /* element's place in a tile that was read crosswise, or NULL */
    int leave;         /* 1 + the value that v[l] is set to, or 0 */
    const char *ahead; /* in front of the element's index where it was read ahead, or NULL */
} fu_pack;
/* Everything the phase does with the elements of one pack; v0 is the coordinate of its first. */
void fu_cuda_pack(fu_em *e, const fu_pack *k);
/* The packs that the phase reads, or with phase -1 those that all rows share: arrays, of as many packs as
 * `turns` says, "" or "[2]"; and what is loaded, to `at` in them. Either may be NULL. False: there are none. */
bool fu_cuda_packs(fu_em *e, int phase, const char *turns, const char *at);
bool fu_cuda_stores(const fu_prog *p, int phase); /* whether the phase's loop writes anything */
void fu_cuda_pointwise(fu_em *e);
/* Declares the coordinates of `atoms` from the row-major number `from`, which counts `below` for each step of
 * the last of them. */
void fu_cuda_decode(fu_em *e, uint32_t atoms, const char *from, int64_t below);
const char *fu_cuda_reducer(const fu_value *v); /* tn_sum_of, ... */
void fu_cuda_random(fu_em *e, fu_value *v, int n);

/* ---- the other nests ---- */
void fu_cuda_row(fu_em *e, const int *scratch);
bool fu_cuda_several(const fu_prog *p); /* a warp has several rows */
void fu_cuda_column(fu_em *e, const int *scratch);
void fu_cuda_block(fu_em *e);
