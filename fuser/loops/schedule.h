/* schedule.h - what the schedules share. Passes call fu_schedule (fuser.h) or fu_schedule_tile (tile.h): both
 * order and merge atoms, then tell phases apart, then decide what their kind of kernel has to have decided.
 */
#pragma once

#include "loops.h"

/* ---- atoms.c ---- */
void fu_merge_atoms(fu_prog *p); /* neighbours that everything walks as one become one */
int fu_choose_vector(
    const fu_prog *p,
    bool
        dear); /* the atom along which most of what is read and written lies, of `dear` programs as vectors */
void fu_move_last(fu_prog *p, int a); /* atom a behind the others */
void fu_fold_columns(fu_prog *p);     /* short rows that lie side by side become columns */

/* ---- blocks.c ---- */
void fu_choose_block(fu_prog *p); /* whether something is read or written crosswise */

/* ---- phases.c ---- */
bool fu_set_phases(fu_prog *p);                              /* false: there are too many */
void fu_mark_needs(fu_prog *p);                              /* which phases compute a value */
void fu_choose_stash(fu_prog *p);                            /* what is kept from one to the next */
int fu_again_cost(const fu_prog *p, int id, uint64_t *seen); /* of computing a value in a later phase anew */

/* ---- cross.c ---- */
tn_cut_reason fu_cross_sets(fu_prog *p);     /* which atoms are reduced, and which crosswise */
tn_cut_reason fu_cross_schedule(fu_prog *p); /* parts, and what the finish makes */

/* ---- schedule_cuda.c ---- */
tn_cut_reason fu_schedule_cuda(fu_prog *p); /* what is left once the phases are known */
void fu_mark_packs(fu_prog *p);             /* what is read and written p->pack elements at once */
