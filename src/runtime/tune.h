/* tune.h - with TENSOR_TUNE=1: tiles of convolutions, and of products that run as such, chosen by timing
 * (tune.c). */
#pragma once

#include "session.h"

/* Of a session whose device is open: s->target.tuned is set from now on where the device can tell time.
 * TN_OK, or TN_E_NOMEM. */
int tn_tune_open(tn_session *s);
void tn_tune_close(tn_session *s);

/* Finds out, from what earlier sessions have left or by timing, which tiles are the fastest for what p
 * computes. true: p has others, and is to be made again. */
bool tn_tune_plan(tn_session *s, const tn_plan *p);

/* Returns a digest of the choices of this session that were found by timing: 32 bits, whatever the order; 0:
 * there are none. */
uint32_t tn_tune_digest(const tn_session *s);
/* Returns how many shapes this session has timed. */
int tn_tune_measured(const tn_session *s);
