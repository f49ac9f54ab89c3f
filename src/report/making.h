/* making.h - what the files that make a view share: view.c has launches and rows, eager.c what eager mode
 * would have run in their place, borders.c what crosses from one kernel, direction or segment to another.
 * Memory is the view's arena; a step that gets none sets `failed`, and all later ones may be called or not.
 * Read first: tn_making. */
#pragma once

#include "view.h"

/* Traits of a node: an earlier segment has computed it (REPEATED), it depends on gradients (AFTER),
 * gradients depend on it (LEADS). */
enum { TN_TRAIT_REPEATED = 1, TN_TRAIT_AFTER = 2, TN_TRAIT_LEADS = 4 };

/* A value of a run: which of a call's it is. */
typedef struct tn_part {
    uint32_t key; /* the call's in all runs of the step */
    int run, call;
    uint32_t at;
    int slot;
} tn_part;

typedef struct tn_making {
    tn_view *v;
    tn_part *part; /* all that calls have made, in the order of the members */
    int n_part;
    int *first;      /* first launch of each segment */
    uint8_t **trait; /* of each segment's nodes */
    uint8_t **how;   /* of each segment's values: what the ledger says */
    bool failed;
} tn_making;

/* Returns true where the launch is the one that stores the node, rather than one that computes it again. */
static inline bool tn_launch_owns(const tn_launch *l, int node)
{
    return l->note->value[node].step == l->step;
}

/* Node i of those that the launch computes. */
static inline int tn_launch_node(const tn_launch *l, int i)
{
    return l->plan->node_of[l->of->first_node + i];
}

static inline const tn_note_call *tn_note_call_of(const tn_note *n, int slot)
{
    int c = n->value[slot].call;
    return c < 0 ? NULL : &n->call[c];
}

/* ---- view_parts.c ---- */
bool tn_same_call(const tn_note_call *a, const tn_note_call *b);
void *tn_view_take(tn_making *m, size_t n, size_t size); /* zeroed */
char *tn_view_text(tn_making *m, tn_growing *t);         /* takes the text over */
const tn_note *tn_view_note(const tn_making *m, int run);
void tn_view_parts(tn_making *m, size_t values); /* so many at most */
/* The first part that is not before this one. */
int tn_part_at(const tn_making *m, uint32_t key, int run, int call, uint32_t at);
/* The value that is slot i of run r, in the first run from *run on, and before r, that has it; -1: none has.
 */
int tn_same_value(const tn_making *m, int r, int i, int *run, bool nodes_only);

/* ---- eager.c ---- */
/* The launches with which eager mode would run the calls of a segment. */
typedef struct tn_eager {
    struct tn_eager_call {
        bool simple; /* it only loops over elements: one kernel, wherever its nodes went */
        int last;    /* simple: the launch that makes its last value */
    } * call;
    bool *outside;   /* of each node: some other call, or a launch of its own, reads it */
    bool *elsewhere; /* some other call reads it, or nothing does */
    int64_t *seen;   /* scratch, by slot: elements read */
} tn_eager;

void tn_eager_make(tn_making *m, const tn_plan *p, tn_eager *e);
/* Sets what the launch counts for: kernels and bytes in eager mode. */
void tn_eager_count(const tn_making *m, tn_launch *l, const tn_eager *e);

/* ---- borders.c ---- */
void tn_view_ledger(tn_making *m, int segment);
void tn_view_boundaries(tn_making *m, int segment);
void tn_view_breaks(tn_making *m);
void tn_view_unread(tn_making *m);
void tn_view_sort(tn_view *v); /* what weighs most comes first */
