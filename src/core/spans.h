/* spans.h - nodes by the memory they look into or write: which of them meet that of another.
 *
 * A search tree over first addresses, balanced by chance: a node stands above those of a smaller number that
 * is drawn from its id. Each subtree knows how far its memory reaches and which ids it has, so that what
 * cannot meet is not looked at. Start with tn_spans_meet. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"

struct tn_tensor;
typedef struct tn_span tn_span;

typedef struct tn_spans {
    tn_arena arena;
    tn_span *root;
    bool stale; /* something is missing, or lies elsewhere by now: it is to be filled anew */
} tn_spans;

/* Called by tn_spans_meet for each node that it finds. false: the node is removed from the set; the call may
 * not add it or move it itself. */
typedef bool tn_span_fn(struct tn_tensor *n, void *arg);

void tn_spans_clear(tn_spans *s); /* empty, and not stale */
void tn_spans_free(tn_spans *s);
/* n, of this id, has the bytes from low up to high. Without memory for this the set is stale; nothing is
 * added to one that is. */
void tn_spans_add(tn_spans *s, struct tn_tensor *n, uint32_t id, uintptr_t low, uintptr_t high);
/* Calls fn for the nodes with ids in [from, end) that have some of the bytes from low up to high. */
void tn_spans_meet(tn_spans *s, uintptr_t low, uintptr_t high, uint32_t from, uint32_t end, tn_span_fn *fn,
                   void *arg);
