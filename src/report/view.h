/* view.h - one view of a step, made of its log (src/runtime/log.h) when someone asks: launches, rows (forward
 * paired with backward), the ledger of what backward keeps, and what cut the step. All that is told is
 * printed from it.
 *
 *   view.c, eager.c, borders.c, view_parts.c    log -> view
 *   explain.c        view -> text, tn_explain
 *   report.c, html.c, json.c    view -> files
 *   ranks.c          what ranks send each other, for text and json
 *   drawn.c          the graph, for the page
 *   put.c            texts in HTML and in JSON
 *   curve.c          the curves of a training, which are no view of a step
 *   trace.c          time as a trace, the graph as a picture
 *
 * Read first: struct tn_view, then tn_view_make. */
#pragma once

#include "../runtime/log.h"

/* Update: launches that read gradients and make none, which is the work of an optimizer. */
typedef enum tn_way { TN_WAY_FORWARD, TN_WAY_BACKWARD, TN_WAY_BOTH, TN_WAY_UPDATE, TN_WAYS } tn_way;

typedef struct tn_launch {
    int segment, step;
    const tn_plan *plan;
    const tn_note *note;
    const tn_step *of;
    tn_way way;
    bool again;    /* another launch of the group before */
    bool repeated; /* all of it was computed in an earlier segment, which did not keep it */
    int before;    /* launches in eager mode for the same work */
    int64_t bytes_before;
    double ms;      /* negative: not measured */
    double copy_ms; /* what a copy that moves as many bytes takes; 0: not measured */
    int row, next;  /* next: of the launches of the row, -1 behind the last */
    char *ops;      /* "gelu + layer_norm" */
    char *lines;    /* "train.c:41 42" */
    char *layers; /* those whose parameters it reads: "block0.norm, fc"; "" for an update, which reads all */
} tn_launch;

typedef struct tn_sums {
    int kernels, before;
    int64_t bytes, bytes_before;
    double ms, predicted_ms, flops;
    double copy_ms;
} tn_sums;

/* A value that is kept for backward, or a boundary that one goes through. */
typedef struct tn_told {
    union {
        const char *name, *from;
    };
    union {
        const char *how, *to; /* how: "kept", "computed again", "never stored" */
    };
    union {
        const char *reader, *reason; /* reader: the first kernel of backward that needs it */
    };
    const char *remedy;
    int64_t bytes;
    double ms; /* predicted: of computing it again; less without the boundary, negative: cannot be told */
    int n;
} tn_told;

typedef struct tn_view {
    tn_arena arena;
    const tn_step_log *log;
    bool unusual; /* newer steps ran other plans */
    int n_launch, n_row, n_kept, n_boundary;
    tn_launch *launch;
    int *first_of; /* first launch of each row */
    tn_told *kept;
    tn_told *boundary;
    tn_sums total, way[TN_WAYS];
    int64_t kept_bytes, again_bytes, never_bytes;
    double again_ms;
    int n_break;
    char **breaks; /* one line for each segment that ended before the step did */
    char *unread;  /* what was computed and used nowhere; NULL: nothing */
    size_t arena_bytes, naive_bytes, least_bytes; /* of the largest segment */
    int64_t gradients[TN_SPARED];                 /* of all segments (struct tn_note) */
    int common, folded, guards;                   /* of all segments: what simplifying has found (plan.h) */
    double gbs;                                   /* of a copy from and to memory; 0: not measured */
} tn_view;

/* 0 or TN_E_NOMEM; TN_E_STATE: no step has run. Free with tn_view_free. */
int tn_view_make(tn_session *s, tn_view *v);
void tn_view_free(tn_view *v);
const char *tn_view_mode(const tn_session *s,
                         const tn_view *v);  /* "fused" or "eager": the step's; none: the session's */
const char *tn_view_which(const tn_view *v); /* of the session's steps it is: "the last that trained" */
void tn_view_add_up(tn_view *v);             /* the totals, of the launches */
/* Fills the times of copies, where launches were timed: measures those that the session has not measured yet.
 */
void tn_view_copies(tn_session *s, tn_view *v);
/* The share of a copy's speed; negative: not measured. */
static inline double tn_sums_share(const tn_sums *s)
{
    return s->ms > 0 && s->copy_ms > 0 ? s->copy_ms / s->ms : -1;
}
/* Gets the registers and memory of the launch's kernel, shared memory given at the launch included; false:
 * not known, or no kernel. */
bool tn_launch_info(const tn_session *s, const tn_launch *l, tn_kernel_info *out);
tn_sums tn_view_row(const tn_view *v, int row, tn_way way);
/* The name of the row's launches that are backward's, or of the others: forward, or update where all are. */
const char *tn_view_way(const tn_view *v, int row, bool backward);
/* Boundaries that are worth a line: those of 1 % of the bytes the step moves, or more. They come first; the
 * rest is told in one line, as `rest`. */
int tn_view_told(const tn_view *v, tn_told *rest);
const char *tn_way_name(tn_way w);

/* ---- writers ---- */
/* Writes the text of a report in the format that the path's ending names. TN_E_ARG: another ending. */
int tn_report_text(tn_session *s, const char *path, tn_growing *t);
void tn_report_html(tn_session *s, const tn_view *v, tn_growing *t);
/* What ranks send each other: nothing where there is one, and no network is given. */
void tn_ranks_text(tn_session *s, const tn_view *v, tn_growing *t);
void tn_ranks_json(tn_session *s, const tn_view *v, tn_growing *t);
void tn_ranks_html(tn_session *s, const tn_view *v, tn_growing *t);
void tn_report_json(tn_session *s, const tn_view *v, tn_growing *t);

/* ---- put.c ---- */
/* Words of HTML and, in turn with them, texts: TN_PUT_HTML(t, "<p>", text, "</p>"). */
#define TN_PUT_HTML(t, ...) tn_put_parts(t, (const char *[]){__VA_ARGS__, NULL})
/* Names of members and, in turn with them, their texts; a comma follows each. */
#define TN_PUT_JSON(t, ...) tn_put_members(t, (const char *[]){__VA_ARGS__, NULL})
void tn_put_parts(tn_growing *t, const char *const *part);
void tn_put_members(tn_growing *t, const char *const *part);
void tn_put_string(tn_growing *t, const char *s); /* in JSON */
/* Prints t and frees it: status, or what went wrong meanwhile. */
int tn_put_out(tn_growing *t, int status, FILE *out);

/* ---- drawn.c ---- */
void tn_drawn_html(const tn_view *v, tn_growing *t);

/* ---- curve.c ---- */
void tn_curves_text(tn_session *s, tn_growing *t);
void tn_curves_json(tn_session *s, tn_growing *t);
void tn_curves_html(tn_session *s, tn_growing *t);
