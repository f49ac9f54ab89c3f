/* tensor_report.h - chapter 14 of <tensor.h>, which includes it: what the session has done with a step. */
#ifndef TENSOR_H
#include "tensor.h" /* and that, in its place, this */
#elif !defined(TENSOR_REPORT_H)
#define TENSOR_REPORT_H

/* ---- counts ---- */

/* Counts of all that the session has done since it was opened, for benchmarks and tests. */
typedef struct tn_stats {
    size_t size;
    uint64_t steps, nodes;                               /* steps ended; nodes recorded */
    uint64_t kernels, library_calls, copies;             /* launches of each kind */
    uint64_t bytes_moved;                                /* what those launches must read and write at least */
    uint64_t plans, plan_hits, compiled, cache_hits;     /* plans made / found again; kernels compiled / found */
    size_t bytes_now, bytes_peak;                        /* device memory handed out */
    uint64_t failed;                                     /* runs that an error ended, or that were refused after one */
    uint64_t replayed;                                   /* steps that were the same as the one before to their end */
    uint64_t backward_steps;                             /* steps with a tn_backward and no tn_gradient after it */
    uint64_t runs;                                       /* begun or refused */
} tn_stats;
TN_API int tn_get_stats(const tn_session *s, tn_stats *out);
/* Returns true where the run that was number `run` of tn_stats.runs failed, so that none of its effects took
 * place. A GPU tells late, and of all runs of a step. Only the last failures are known: at least 256 that were not
 * in a row. */
TN_API bool tn_run_failed(const tn_session *s, uint64_t run);

/* ---- the last step ----
 *
 * All of these tell about the last step that called tn_backward; where none did, about the last step. Where several of
 * that kind have run and then a few others, as an epoch ends with a short batch, about the last of the several. They
 * cost nothing until they are asked, and no time is taken unless tn_profile or TENSOR_DEBUG=2 ask for it.
 * A tensor is called by the name of tn_set_name, tn_param or tn_buffer, else by the call that made it.
 * In eager mode, where there are no groups, kernels and bytes are those of the calls themselves.
 * "Before" is what the same calls move each by itself: every call reads its operands from memory once and
 * writes its results once. Bytes are those a launch must read and write at least. */

/* From now on each launch is timed (it waits for the launch to end), or no longer. Off at first. */
TN_API int tn_profile(tn_session *s, bool on);

/* The kernels of the step, one a line, as small text that is the same in each run and for any number of
 * threads: commit it, and see in the diff what a change did to your step. Before them, where there was any, what
 * did not have to be computed: "simplified: 3 common, 2 folded, 1 guard" are values that another call has made,
 * values that an operand has already or that are numbers, and run-time numbers of 1 or 0 that the plan was made
 * for (a second plan, for any number, is made when one changes). "" when no step has run; NULL when
 * there is no memory. Owned by the session, valid until the next call or tn_close. */
TN_API const char *tn_plan_text(tn_session *s);

/* The same at length, for reading: per group, forward beside backward, calls, the layers whose parameters they
 * read (what stands before the last point of a name), lines of the program, kernels and bytes before and after,
 * the milliseconds that the target profile predicts (tn_profile_name), and with tn_profile those measured and the
 * share of the bandwidth of a copy (measured then, which takes up to a second); what forward keeps for backward, what is
 * computed again and in which time, by the share in its kernel that the arithmetic has, and the first kernel that needs it;
 * why groups end where they do, what would help and what it would save, values of less than 1 % of the step's
 * bytes as one line; which line cut the step into segments; what the step's end computed though nothing uses it.
 * 0, TN_E_NULL or TN_E_NOMEM. */
TN_FUNCTION(int, explain, tn_session *s, FILE *out);

/* The same as a file: .html to look at, kernels' sources in it, .json for programs, .txt as tn_explain, .plan as
 * tn_plan_text. The file appears whole or not at all. 0, TN_E_ARG (another ending), TN_E_IO, TN_E_NOMEM; also set
 * in the session. */
TN_FUNCTION(int, report, tn_session *s, const char *path);

/* A point of the curve of this name, a loss or an accuracy, at the step that runs or has just ended: tn_curves draws
 * it, tn_explain too, tn_report as a picture. tn_progress adds one of each value that it shows. However
 * many there are, little is kept: 256 means of neighbours. A value that is not finite is counted, and left out. Names
 * differ in their first 31 bytes. 0, TN_E_NULL or TN_E_NOMEM. */
TN_FUNCTION(int, curve_point, tn_session *s, const char *name, double value);
/* Draws the curves in characters, 66 columns wide: for the terminal, as a training ends. 0, TN_E_NULL, TN_E_NOMEM or
 * TN_E_IO. */
TN_FUNCTION(int, curves, tn_session *s, FILE *out);

/* The graph of the step for Graphviz (dot -Tsvg), groups as boxes. */
TN_FUNCTION(int, graphviz, tn_session *s, FILE *out);
/* Writes where the time of the step went, as a trace for chrome://tracing or Perfetto: recording, planning, and with
 * tn_profile each launch. Statuses as tn_report's. */
TN_FUNCTION(int, trace, tn_session *s, const char *path);

/* The operators recorded between tn_require_fused and tn_require_end must become one kernel, and their backward
 * another one (kernels that only make gradients of parameters are not counted): else the step fails with TN_E_STATE
 * before anything of it runs, and the error names the two calls and the reason. Inside a step; the step may have
 * several such parts, not within each other. Looked at in fused mode only, and not where kernels cannot be compiled.
 * One that is still open when the step ends is TN_E_STATE, too, in every mode. */
TN_FUNCTION(int, require_fused, tn_session *s);
TN_FUNCTION(int, require_end, tn_session *s);

/* ---- the target profile ---- */

/* The target profile that the session's choices go by, name and digest: "reference 1f0c2a9b"; with TENSOR_TUNE=1
 * also a digest of what has been chosen by timing so far: "reference 1f0c2a9b, tuned 77c01d3e". Owned by s. */
TN_API const char *tn_profile_name(tn_session *s);
/* Measures this machine - bandwidth by footprint, cost of a launch, speed of products - with kernels of the
 * library, for some seconds, and leaves the profile beside the compiled kernels, where sessions opened
 * afterwards with as many threads find it. Numbers are rounded to a grid of 10 %, and those that an earlier
 * calibration has found within 20 % stay as they are. s lends device, threads and folder and is not changed.
 * 0, TN_E_UNSUPPORTED (the device ref, or no folder to keep it in), TN_E_IO, TN_E_NOMEM; also set in s. */
TN_API int tn_calibrate(tn_session *s);

#endif
