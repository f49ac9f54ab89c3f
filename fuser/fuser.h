/* fuser.h - the passes in their order, for plan.c and for tests that run them one by one.
 *
 *   graph/   graph to graph: what need not run, and in which order the rest may      graph.h
 *   loops/   which loops a set of nodes is, and how long they take                    loops.h
 *   group/   which nodes one kernel computes: asks loops/ whether they can be one     group.h
 *   text/    loops to text: steps of the plan and sources of kernels                  text.h
 *
 * Each folder's header says what it takes and gives. Arrows go one way: text and group know loops, loops know
 * graph, and only plan.c knows them all. */
#pragma once

#include "group/group.h"
#include "loops/tile.h"
#include "text/text.h"

/* ---- plan.c ---- */
int fu_begin(fu_ctx *c); /* seg, target, plan and err are set */
int fu_emit_all(fu_ctx *c);
int fu_list_values(fu_ctx *c);

/* ---- begin.c ---- */
/* Marks the groups that means over ranks need, and theirs; where there are none, all. scratch: of all groups.
 */
void fu_mark_means(fu_ctx *c, int *scratch);
/* order: groups as they are to run; what a wait for other ranks does not need moves ahead of the wait, and
 * behind what it waits for. */
void fu_wait_late(fu_ctx *c, int *order, int n);
int fu_begin_early(fu_ctx *c);

/* ---- lives.c ---- */
/* order: groups as they are to run; of neighbours that do not wait for each other, the one that lets more go
 * runs first. */
int fu_shorten_lives(fu_ctx *c, int *order, int n);

/* ---- parts.c ---- */
int fu_list_parts(fu_ctx *c); /* of the plan's values */

/* ---- verify_steps.c ---- */
int fu_verify_steps(fu_ctx *c); /* as fu_verify_graph */
