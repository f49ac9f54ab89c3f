/* run.h - one run of a scene with a fault, in a process of its own, and what is found of it. Read first:
 * run_point. */
#pragma once

#include <sys/resource.h>

#include "calls.h"
#include "scenes.h"

enum { SECONDS = 20, STEPS = 3, NUMBERS_MAX = 1 << 20 };

/* X(name, what it is called): the better first. */
#define VERDICT_LIST(X)                                                                                      \
    X(UNTOUCHED, "untouched") /* there were fewer calls */                                                   \
    X(RIGHT, "right")         /* the numbers of the run without a fault */                                   \
    X(SLOWER, "slower")       /* nearly, by another road that the log tells of */                            \
    X(REFUSED, "refused")     /* an error, and everything as it was before */                                \
    X(WRONG, "wrong")                                                                                        \
    X(BETWEEN, "in between")                                                                                 \
    X(SILENT, "silent")                                                                                      \
    X(STUCK, "stuck")                                                                                        \
    X(LEAK, "leak")                                                                                          \
    X(CRASH, "crash")                                                                                        \
    X(HANG, "hang")
typedef enum verdict {
#define X(verdict, name) verdict,
    VERDICT_LIST(X)
#undef X
        VERDICTS
} verdict;
extern const char *const verdict_name[VERDICTS];

/* What a run leaves for the parent: shared memory. */
typedef struct report {
    long calls[CALL_KINDS]; /* made */
    long blocks;            /* left */
    verdict verdict;
    char text[600];
} report;

/* The state after each step of the run without a fault. */
typedef struct numbers {
    size_t n[STEPS + 1];
    unsigned char state[STEPS + 1][NUMBERS_MAX / 4];
} numbers;

/* What the system gives a process so much of and no more: points beside those of the calls. The n-th allows n
 * units, for addresses on top of what the process has before the run. */
typedef struct limit {
    const char *name;
    int resource;
    rlim_t unit;
    long least, most, step;
} limit;
enum { LIMITS = 3, KINDS = CALL_KINDS + LIMITS };
extern const limit limits[LIMITS];

typedef struct point {
    const scene *scene;
    int kind; /* call_kind, or CALL_KINDS + a limit */
    bool cold, for_good;
    long n;
} point;

const char *kind_name(int kind);
extern const char *run_dir; /* where all of it happens */
extern bool run_verbose;

/* Runs it, and leaves what came of it in *out; does not return. `right`: the numbers of the run without a
 * fault, which the run of `reference` makes; plain: what that has left. */
void run_point(const point *p, report *out, numbers *right, bool reference, const report *plain)
    __attribute__((noreturn));
void remove_all(const char *folder);
