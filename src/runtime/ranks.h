/* ranks.h - a session that is one of several ranks (src/comm/comm.h): what it does together with the others,
 * and what it tells them.
 *
 * Before a run that has something to do together (RANKS nodes), ranks meet: each says that it has come, and a
 * digest of the calls it has recorded. Behind the last mean they meet again and say how it went, and only
 * then a weight moves: an error of one rank refuses the run on all. Weights that each rank has updated its
 * share of are gathered behind that, where they meet once more. A rank that fails between takes part in what
 * is left all the same, with zeros. One that fails elsewhere leaves word, which the others find as they meet.
 *
 * Read first: tn_ranks_begin. */
#pragma once

#include "../comm/comm.h"
#include "flush.h"

/* Ranks that `host` connects, of which there are several; its owner from then on. NULL: no memory, and it is
 * the caller's still. */
struct tn_ranks *tn_ranks_new(tn_comm *host);
tn_comm *tn_ranks_host(const tn_session *s);
/* What the device computes with goes by c, the session's from then on, and notes by the host's. */
void tn_ranks_compute(tn_session *s, tn_comm *c);
/* Leaves: the others are told. */
void tn_ranks_close(tn_session *s);
const char *tn_ranks_name(const tn_session *s); /* "Open MPI v4.1.4", or NULL */

/* Where parameters or buffers are new, they take rank 0's values. 0 or the session's error. */
int tn_ranks_equal(tn_session *s);
/* As the next step begins they do again: running statistics are each rank's own. */
void tn_ranks_part(tn_session *s);

/* Around a run that has something to do together. p: by which it runs; NULL: node by node. status: what has
 * gone wrong before the run began, which the others are told. */
int tn_ranks_begin(tn_session *s, const tn_flush_scratch *f, tn_plan *p, int status);
/* Elements `first` to `first` + n of a whole of `all`, of `size` bytes each, in `lines` lines, of which each
 * rank has its share (tn_rank_share) where they are scattered or gathered. */
typedef struct tn_part {
    tn_together how;
    int64_t first, n, all, lines;
    size_t size;
} tn_part;
/* Begins to make it, and waits for all that was begun. in, out: where the whole, or this rank's lines of it,
 * begins; one place may be both for a mean. */
int tn_ranks_start(tn_session *s, const tn_part *p, const void *in, void *out);
int tn_ranks_wait(tn_session *s);
/* Takes part in the same with zeros: this rank's run has failed. */
void tn_ranks_miss(tn_session *s, const tn_part *p);
/* Behind the last mean, and ahead of what is gathered behind it: 0, or the status of a rank where it has gone
 * wrong, which is every rank's error then. */
int tn_ranks_agree(tn_session *s, int status);

/* A step ends: where it failed here alone, the others are told. */
void tn_ranks_tell(tn_session *s);

/* Random draws of steps differ from rank to rank, others do not. */
uint64_t tn_ranks_salt(const tn_session *s);
