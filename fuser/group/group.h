/* group.h - what the parts of grouping share: group.c joins groups, recompute.c has values computed again by
 * the groups that read them, early.c makes sums early that gradients wait for, tiles.c gives readers to
 * the kernels of convolutions and products. Groups are numbers into fu_ctx.group; one that has been merged
 * stays there, dead. Read first: fu_merge.
 */
#ifndef TN_FUSER_GROUP_H
#define TN_FUSER_GROUP_H

#include "../loops/loops.h"

/* ---- group.c ---- */
int fu_group_all(fu_ctx *c);

/* ---- merge.c ---- */
/* Group b becomes part of group a, or the reason why not. What reads an element of a convolution joins it
 * last, when all other groups are what they will be. */
tn_cut_reason fu_merge(fu_ctx *c, int a, int b);
tn_cut_reason fu_merge_last(fu_ctx *c, int a, int b);
/* Two groups that one kernel of its own makes, such as that of an attention, become one. */
bool fu_join(fu_ctx *c, int a, int b);
/* What statistics take the place of is a difference from a value of each column. Where that is one of the
 * convolution's own, widened, it needs the convolution, and the difference needs it: all three become one, or
 * none. */
void fu_join_difference(fu_ctx *c, int node);

/* ---- order.c ---- */
/* Whether a group stands between a and b: it needs one and the other needs it. */
bool fu_between(fu_ctx *c, int a, int b);
void fu_merge_ranks(fu_ctx *c, int a, int b); /* b is about to become part of a; none is between */
/* Gives each group a rank above what it needs (ctx->ranked). False: no memory, or groups need each other. */
bool fu_rank(fu_ctx *c);
/* Sets `first` of the lookups. 0 or TN_E_NOMEM. */
int fu_find_first(fu_ctx *c);
void fu_unrank(fu_ctx *c); /* groups have changed in other ways than by becoming one */

/* ---- early.c ---- */
/* Makes of g, the node's group, one that computes all the node is made of, where the node is a sum of
 * something small that gradients wait for. */
bool fu_early_sum(fu_ctx *c, int node, int g);
/* Gives those back to the loss where that is made without gradients. */
void fu_settle_early(fu_ctx *c);

/* ---- recompute.c ---- */
/* Has the readers of the node compute it again, where that is legal for all of them and pays. */
void fu_recompute(fu_ctx *c, int node);
/* Has convolutions, and whoever else reads what they are of, compute it again in the same way. */
void fu_recompute_for_tiles(fu_ctx *c);

/* ---- tiles.c ---- */
/* Lets what reads convolutions and products with kernels of their own join these. */
void fu_join_tiles(fu_ctx *c);

#endif
