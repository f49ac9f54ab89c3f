/* log.h - what a session remembers of the last step, so that it can be told to the user (src/report), and who
 * looks on as it runs (src/check).
 *
 *   note    the nodes a plan was made from, in words that outlive the step: calls, names, lines. Made once
 *           with the plan, in the plan's own memory
 *   run     one segment of a step: its plan, what ended it, and where the time went
 *   log     the runs of a step. Kept: of the step now running, of the last one, and of the last one that
 *           went backward - after training and an evaluation, it is training that is asked about
 *
 * Read first: struct tn_note. */
#pragma once

#include "../../fuser/plan.h"
#include "../core/growing.h"
#include "../core/settings.h"
#include "flush.h"

/* ---- notes ---- */

typedef struct tn_note_call {
    const char *name, *file; /* file: NULL where the program did not say */
    int line;
    bool backward, again; /* again: what a checkpoint did not keep of `of` */
    int of;               /* of a backward call: the forward one, which may have no nodes here; else -1 */
    uint32_t key;         /* the same for one call in all segments of a step */
} tn_note_call;

typedef struct tn_note_value {
    const char *name; /* NULL: none was given */
    uint16_t op;
    uint8_t dtype, ndim;
    bool number, kept; /* kept, of a leaf: an earlier segment of the step made it */
    bool written;      /* to memory that outlives the step: an assignment, a gradient, tn_keep */
    bool gradient;     /* of a leaf: a gradient */
    int64_t shape[TN_MAX_DIMS];
    int64_t numel;
    int call;      /* -1: none */
    uint32_t at;   /* which of the call's nodes it is: with the call, the same in all segments of a step */
    int memory;    /* of a leaf: the first one that looks into the same memory; of a node itself */
    int64_t held;  /* elements of that memory */
    int n_in, *in; /* slots of the operands' memory */
    int64_t *read; /* elements of it that are read */
    int step;      /* of a node: the first that computes it; -1: none does */
} tn_note_value;

/* What becomes of a gradient that its parameter's update reads as it is made (spare.c): one kernel does both;
 * it dies behind the update; it is in the slab. */
typedef enum tn_spared { TN_NEVER_STORED, TN_GONE_EARLY, TN_IN_SLAB, TN_SPARED } tn_spared;

typedef struct tn_note {
    int64_t gradients[TN_SPARED]; /* bytes */
    int n_node, n_value;          /* nodes come first, then leaves: by slot */
    tn_note_value *value;
    int n_call;
    tn_note_call *call;
    int number;    /* of the plan in its session, from 1 */
    bool backward; /* some of it is a gradient */
} tn_note;

/* ---- logs ---- */

enum { TN_UNREAD = 8 }; /* so many are named */

typedef struct tn_run_log {
    tn_plan *plan;            /* held */
    const char *ender, *file; /* the call that made it run */
    int line;
    char what[64];              /* what that call asked for */
    double start, planned, end; /* seconds */
    double *kernel;             /* start and end of each step; NULL: not measured */
    int n_unread;          /* of the run that ends a step: values the program called for and used nowhere */
    int unread[TN_UNREAD]; /* the first of them, by slot */
} tn_run_log;

typedef struct tn_step_log {
    int n, cap;
    tn_run_log *run;
    bool backward, fused; /* fused: the session's mode as the step began */
    uint64_t number;
    double start, end;
} tn_step_log;

typedef struct tn_require {
    uint32_t first, end; /* ids of the nodes between begin and end */
    const char *file;
    int line;
    int segment; /* that ran them, from 1; 0: none so far */
} tn_require;

typedef struct tn_ban {
    uint64_t record; /* hash of the record a group went wrong under */
    int n, *node;
} tn_ban;

/* Copies that others are compared with: of 2^16 bytes moved, 2^18 .. 2^26, and of more than caches hold. */
enum { TN_COPIES = 7 };

/* Functions of rooms above this one that are called as plans are made and run: for TENSOR_DEBUG and
 * TENSOR_CHECK, which a session is opened with, and for tn_require_fused. A NULL is not called. */
typedef struct tn_looks {
    void (*planned)(tn_session *s, const tn_plan *p);
    /* Bytes that threads spill by the plan as it was made first, and made again to keep less in registers. */
    void (*spilled)(const tn_session *s, int64_t before, int64_t after);
    void (*launched)(const tn_session *s, const tn_plan *p, int step, double seconds);
    /* An error where the program forbids to run what it has recorded as it was planned (tn_require_fused). */
    int (*required)(tn_session *s, const tn_flush_scratch *f, const tn_plan *p);
    /* Marks what has gone wrong before (TN_SEG_ALONE); true: the record has to be made anew. */
    bool (*banned)(tn_session *s, tn_flush_scratch *f);
    int (*begin)(tn_session *s, tn_flush_scratch *f, tn_plan *p, bool fresh);
    int (*after)(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step);
    void (*end)(tn_session *s);
    /* tn_backward is called on it. */
    int (*loss)(tn_session *s, tn_tensor *loss);
} tn_looks;

struct tn_explain_state {
    tn_looks looks;
    int level;          /* TENSOR_DEBUG */
    const char *folder; /* TENSOR_DUMP is a folder */
    FILE *out;
    bool dump, measure;
    int plans;
    tn_step_log now, last, trained; /* the newest with a backward, */
    tn_step_log usual;              /* and where that is an unusual one, the newest of the usual ones */
    int alike;                      /* how often those were seen, up to a few */
    struct tn_asked {
        const char *name, *file;
        int line;
        const tn_tensor *root; /* whose value is asked for; NULL: all that waits */
    } asked;                   /* who makes it run */
    char *text;                /* of tn_plan_text */
    struct tn_churn {
        uint64_t first; /* step that counting began with */
        int made;       /* plans since that took another's place */
        bool told;
    } churn;
    double copy_gbs[TN_COPIES];
    char profile[64]; /* name and digest of the target profile, once it is asked for */
    tn_require *require;
    int n_require, cap_require;
    bool require_open;
    /* check.c */
    bool check;
    struct tn_check *checking; /* the run now being compared */
    tn_ban *ban;
    int n_ban;
    int plant; /* test hook: see tn_check_plant */
    int found; /* groups switched off */
    /* check_finite.c: of each slot of the plan that runs; in words, where the first such number of the step
     * came from, by grade */
    uint8_t *grade;
    int cap_grade;
    char origin[3][240];
};
typedef struct tn_explain_state tn_explain_state;

/* ---- log.c ---- */
void tn_log_free(tn_session *s);
/* For a session that measures on behalf of another: its plans are nobody's, and are neither shown nor
 * checked. */
void tn_look_away(tn_session *s);
/* src/session/open.c: such a session, fused and timed, with the device, threads, cache and log of s; NULL is
 * said in the log. */
tn_session *tn_open_beside(const tn_session *s);
/* tn_open_with, but for what it does with TENSOR_REPORT (src/report). */
tn_session *tn_session_open(const tn_options *options);
double tn_clock(void); /* seconds */
/* Notes the plan that has just been made from f, and shows what TENSOR_DEBUG asks for. */
int tn_note_plan(tn_session *s, const tn_flush_scratch *f, tn_plan *p);
void tn_asked_set(tn_session *s, const char *name, const char *file, int line);
/* Note that a segment begins, and that it ends. */
int tn_run_log_begin(tn_session *s, const tn_flush_scratch *f, tn_plan *p, double start);
void tn_run_log_end(tn_session *s, const tn_plan *p, int status);
/* Around each step of a plan, where someone wants to know. */
static inline bool tn_probing(const tn_session *s) { return s->explain->measure || s->explain->checking; }
void tn_probe_before(tn_session *s, int step);
int tn_probe_after(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step);
void tn_step_log_begin(tn_session *s);
void tn_step_log_end(tn_session *s);
const tn_step_log *tn_step_log_told(const tn_session *s); /* the one to tell about */

/* ---- budget.c ---- */
/* As a backward of `loss` is about to be recorded: what of forward is made again for it, as that costs
 * nothing (rematerialize.c) or the step shall stay within its budget. False: no memory, which has been said.
 */
bool tn_budget_choose(tn_session *s, const tn_tensor *loss);
/* As a step ends. */
void tn_budget_learn(tn_session *s);

/* ---- note.c ---- */
const char *tn_note_where(const tn_note_call *c, char *out, size_t n); /* "gelu at train.c:41" */
/* The same of a node: "the gradient of gelu at train.c:41". */
const char *tn_node_where(const tn_tensor *n, char *out, size_t size);
/* The same in memory that lasts to the end of the block they stand in. */
#define TN_NOTE_WHERE(c) tn_note_where(c, (char[200]){0}, 200)
#define TN_NODE_WHERE(n) tn_node_where(n, (char[200]){0}, 200)
const char *tn_note_name(const tn_note *n, int slot, char *out, size_t size);
size_t tn_note_bytes(const tn_note_value *v);
const char *tn_short_file(const char *file); /* without its folders */

/* ---- files.c ---- */
int tn_put_file(const char *path,
                const tn_growing *t); /* whole or not at all; 0 or an errno (tn_whole_why) */
int tn_write_file(tn_session *s, const char *op, const char *path, const tn_growing *t);

/* ---- plan_churn.c ---- */
/* Looks at a plan that has just been made in a step, notes and all, and warns once of a program whose
 * steps keep changing. */
void tn_plan_made(tn_session *s, const tn_plan *p);
