/* group.h - what the parts of grouping share: group.c joins groups, recompute.c has values computed again by
 * the groups that read them, early.c makes sums early that gradients wait for, tiles.c gives readers to
 * the kernels of convolutions and products. Groups are numbers into fu_ctx.group; one that has been merged
 * stays there, dead. Read first: fu_merge.
 */
#ifndef TN_FUSER_GROUP_H
#define TN_FUSER_GROUP_H

#include "../fuser.h"

/* ---- group.c ---- */
int fu_alive(const fu_ctx *c, int g);              /* what g has become part of: g while it is not dead */
bool fu_alone(const fu_ctx *c, const fu_group *g); /* a node of it is to have no company */
int64_t fu_bytes(const tn_tensor *t);              /* of all its elements */
/* Whether the candidate can be one kernel: its programs into c->prog, prog2 and prog3. */
tn_cut_reason fu_try_groups(fu_ctx *c, const fu_candidate *k);
/* Group b becomes part of group a, or the reason why not. What reads an element of a convolution joins it
 * last, when all other groups are what they will be. */
tn_cut_reason fu_merge(fu_ctx *c, int a, int b);
tn_cut_reason fu_merge_last(fu_ctx *c, int a, int b);

/* ---- order.c ---- */
/* Whether a group stands between a and b: it needs one and the other needs it. */
bool fu_between(fu_ctx *c, int a, int b);
void fu_merge_ranks(fu_ctx *c, int a, int b); /* b is about to become part of a; none is between */
void fu_unrank(fu_ctx *c);                    /* groups have changed in other ways than by becoming one */

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
