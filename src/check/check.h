/* check.h - who looks on as plans are made and run, by the hooks of src/runtime/log.h: what they find stops
 * the step.
 *
 *   check.c          TENSOR_CHECK: each new group also unfused and in f64
 *   check_finite.c   the same variable: losses that are not finite
 *   require.c        tn_require_fused
 *   debug.c          TENSOR_DEBUG and TENSOR_DUMP, which only tell
 *
 * Read first: tn_check_open. */
#pragma once

#include "../runtime/log.h"

/* ---- debug.c ---- */
void tn_debug_open(tn_explain_state *x, const tn_settings *from);
void tn_debug_close(tn_explain_state *x);

/* ---- require.c ---- */
/* The step is about to end: a tn_require_fused that was not closed is an error, so that it takes no effect.
 */
void tn_require_left_open(tn_session *s);

/* ---- check.c ---- */
void tn_check_open(tn_explain_state *x); /* TENSOR_CHECK */
void tn_check_free(tn_explain_state *x);
/* ---- check_finite.c ---- */
int tn_finite_begin(tn_session *s, const tn_flush_scratch *f);
/* TN_E_NONFINITE where the step has made a loss that is not finite. */
int tn_finite_after(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step);
/* tn_backward is called on it: likewise where it has been made already, else it will be looked at. */
int tn_finite_loss(tn_session *s, tn_tensor *loss);

/* Test hook: the first result of every group of at least `least` nodes is made wrong while it is checked; 0
 * turns it off. */
void tn_check_plant(tn_session *s, int least);
