/* device_run.h - what a plan keeps on a device with memory of its own: the block of its run-time scalars, and
 * the recordings in which the device repeats it as one launch. Read first: tn_device_run. */
#pragma once

#include "flush.h"

/* Of a device that does not share the host's memory: the plan's state there, made at the first call; the
 * words are on the device when it returns. NULL: the error is set. */
struct tn_plan_run *tn_device_run(tn_session *s, const tn_flush_scratch *f, tn_plan *p, const tn_word *word,
                                  int n_word);

/* Runs the plan's steps one by one. Returns 0, or a status with a line in err, *at the step that failed. */
typedef int tn_steps_fn(tn_session *s, tn_flush_scratch *f, tn_plan *p, const tn_word *word, int *at,
                        tn_errbuf *err);

/* Runs the plan: a recording where it was made with the same addresses, one being made where they came for
 * the second time, else step by step through `steps`. */
int tn_device_run_steps(tn_session *s, tn_flush_scratch *f, tn_plan *p, struct tn_plan_run *r, int n_slot,
                        tn_steps_fn *steps, int *at, tn_errbuf *err);

/* The call whose index a kernel found out of range, and which of its arguments that is, from what has run
 * since the last look; false: none is known. */
bool tn_device_fault_site(const tn_session *s, const tn_fault *fault, tn_index_site *index, tn_call *call);
void tn_device_forget_runs(tn_session *s);
