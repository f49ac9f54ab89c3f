/* profile.h - the target profile: what a machine can do, in a few rounded numbers.
 *
 * The fuser predicts times from it (fuser/loops/cost.c) and lets them decide, so its choices are a function
 * of graph and profile alone. Two profiles are part of the library, `reference` for processors and
 * `reference-cuda`; others come from a calibration (src/session/calibrate.c), which writes them as text:
 *
 *   target profile 1
 *   name calibrated
 *   machine cpu AMD EPYC, family 25, model 17, vectors of 64 bytes
 *   threads 2
 *   band 1e+06 90 70 24         footprint in bytes; GB/s that are read, copied (read + written) with plain
 *                               and with streaming stores
 *   gemm 3.3e+07 210            a product of so many operations: GFLOP/s; conv likewise
 *
 * Every number is rounded to a grid of 10 %. Read first: struct tn_target_profile. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "device.h"

enum { TN_PROFILE_POINTS = 8 };

/* Numbers of a profile, each a line "name value". X(name, smallest, largest, what it is) */
#define TN_PROFILE_NUMBERS(X)                                                                                \
    X(threads, 1, 4096, "that share the work")                                                               \
    X(stream_bytes, 0, 1e15, "results from so many bytes on are written past the caches; 0: none")           \
    X(launch_us, 1e-3, 1e5, "of a kernel that does nothing")                                                 \
    X(library_us, 1e-3, 1e5, "of a library call that does next to nothing")                                  \
    X(instruction_ps, 1e-4, 1e6, "of one simple f32 instruction for one element, all threads at work")

typedef struct tn_profile_band {
    double bytes;              /* that a kernel and what ran since its operands were last used have touched */
    double read, copy, stream; /* GB/s */
} tn_profile_band;

typedef struct tn_profile_rate {
    double flops, gflops; /* of a call of that size */
} tn_profile_rate;

typedef struct tn_target_profile {
    char name[32], machine[128];
#define TN_X(name, least, most, what) double name;
    TN_PROFILE_NUMBERS(TN_X)
#undef TN_X
    int n_band, n_gemm, n_conv; /* at least one each; by size */
    tn_profile_band band[TN_PROFILE_POINTS];
    tn_profile_rate gemm[TN_PROFILE_POINTS], conv[TN_PROFILE_POINTS];
} tn_target_profile;

/* The one that is part of the library, for a target that has no other. */
const tn_target_profile *tn_profile_reference(tn_dialect dialect);
const tn_target_profile *tn_target_rates(const tn_target *t); /* its own or the reference */

/* Returns the rates for a footprint between or beyond the bands. */
tn_profile_band tn_profile_at(const tn_target_profile *p, double bytes);
double tn_profile_gflops(const tn_profile_rate *rate, int n, double flops);

/* false: line `*line` (from 1) is the first that is not understood, out of range or missing; *out is not
 * changed. */
bool tn_profile_parse(const char *text, tn_target_profile *out, int *line);
/* The text of a profile: its length, or that which it would have. */
int tn_profile_print(const tn_target_profile *p, char *out, size_t n);
/* Rounds to the grid; what is within two tenths of `before`'s number, where there is a before, becomes that.
 */
void tn_profile_round(tn_target_profile *p, const tn_target_profile *before);
/* "reference 1f0c2a9b": its name and eight digits of its text's hash. */
void tn_profile_digest(const tn_target_profile *p, char *out, size_t n);
