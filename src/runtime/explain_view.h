/* explain_view.h - what the files that make a view share: explain_view.c has launches and rows,
 * explain_eager.c what eager mode would have run in their place, explain_borders.c what crosses from one
 * kernel, direction or segment to another. Memory is the view's arena; a step that gets none sets `failed`,
 * and all later ones may be called or not. Read first: tn_making.
 */
#ifndef TN_EXPLAIN_VIEW_H
#define TN_EXPLAIN_VIEW_H

#include "explain.h"

/* Of a node: an earlier segment has computed it, it is made of gradients, gradients are made of it. */
enum { TN_TRAIT_REPEATED = 1, TN_TRAIT_AFTER = 2, TN_TRAIT_LEADS = 4 };

typedef struct tn_making {
    tn_view *v;
    int *first;      /* first launch of each segment */
    uint8_t **trait; /* of each segment's nodes */
    uint8_t **how;   /* of each segment's values: what the ledger says */
    bool failed;
} tn_making;

/* Whether the launch is the one that stores the node, rather than one that computes it again. */
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
/* The value of another segment's note that is slot i of this one; -1: none is. */
int tn_same_value(const tn_note *n, int i, const tn_note *other, bool nodes_only);

/* ---- explain_eager.c ---- */
/* How eager mode would run the calls of a segment. */
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
void tn_eager_count(tn_launch *l, const tn_eager *e);

/* ---- explain_borders.c ---- */
void tn_view_ledger(tn_making *m, int segment);
void tn_view_boundaries(tn_making *m, int segment);
void tn_view_breaks(tn_making *m);
void tn_view_unread(tn_making *m);
void tn_view_sort(tn_view *v); /* what weighs most comes first */

#endif
