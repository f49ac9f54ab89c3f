/* group.h - what the parts of grouping share: group.c joins groups, recompute.c has values computed again by
 * the groups that read them, early.c makes sums early that gradients wait for, tiles.c gives readers to
 * the kernels of convolutions and products. Groups are numbers into fu_ctx.group; one that has been merged
 * stays there, dead. Read first: fu_merge. */
#pragma once

#include "../loops/loops.h"

/* ---- group.c ---- */
int fu_group_all(fu_ctx *c);

/* ---- merge.c ---- */
/* Merges group b into group a, or returns the reason why not. Readers of a convolution's elements join it by
 * fu_merge_last, when all other groups are settled. */
tn_cut_reason fu_merge(fu_ctx *c, int a, int b);
tn_cut_reason fu_merge_last(fu_ctx *c, int a, int b);
/* Two groups that one kernel of its own makes, such as that of an attention, become one. */
bool fu_join(fu_ctx *c, int a, int b);
/* A convolution's statistics stand for differences x - k from a value k of each column. Where k comes from
 * the convolution's own kernel and is widened to f32 on the way, the widening reads the convolution and the
 * difference reads the widening: these three become one group, or none of them do. */
void fu_join_difference(fu_ctx *c, int node);

/* ---- slower.c ---- */
/* Returns true where c->prog, which is to replace the kernels of n groups and what takes more_ns besides, is clearly
 * slower, because its loops are short or jump in memory and theirs do not. Leaves another program in c->prog. */
bool fu_slower(fu_ctx *c, const int *group, int n, double more_ns);

/* ---- order.c ---- */
/* Returns true where a third group stands between a and b: it needs one of them, and the other needs it. */
bool fu_between(fu_ctx *c, int a, int b);
void fu_merge_ranks(fu_ctx *c, int a, int b); /* b is about to become part of a; none is between */
/* Sets `first` of the lookups. 0 or TN_E_NOMEM. */
int fu_find_first(fu_ctx *c);
void fu_unrank(fu_ctx *c); /* groups have changed in other ways than by becoming one */
/* Gives each group a rank above those of what it needs, unless they have such. False: no memory, or groups need each other. */
bool fu_rank(fu_ctx *c);
bool fu_rank_holds(const fu_ctx *c, int g); /* g, which needs more than before, has such a rank still */

/* ---- early.c ---- */
/* Where the node is a sum of something small that gradients wait for, makes its group g compute all that the
 * sum is computed from. */
bool fu_early_sum(fu_ctx *c, int node, int g);
/* Gives those back to the loss where that is made without gradients. */
void fu_settle_early(fu_ctx *c);

/* ---- recompute.c ---- */
/* Has the readers of the node compute it again for themselves, where that is legal for all of them and
 * pays. */
void fu_recompute(fu_ctx *c, int node);
/* Does the same for the images of convolutions: a convolution computes its image as it loads it, and other
 * readers of the image compute it again as well. */
void fu_recompute_for_tiles(fu_ctx *c);
/* Returns true where the group can be one kernel with the members that it has now, whatever it was before. */
bool fu_still_can(fu_ctx *c, int g);

/* ---- late.c ---- */
/* Lets a later group make the node, over what that one is the last to read. */
void fu_make_late(fu_ctx *c, int node);

/* ---- tiles.c ---- */
/* Lets the readers of a convolution or product that has a kernel of its own join that kernel. */
void fu_join_tiles(fu_ctx *c);
