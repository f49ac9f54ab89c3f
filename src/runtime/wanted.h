/* wanted.h - which values of forward the gradients of a loss will read, asked before its backward is
 * recorded.
 *
 * budget.c, rematerialize.c and peak.c decide by it what need not be kept until then. Start with
 * tn_wanted_open. */
#pragma once

#include "log.h"

typedef struct tn_wanted {
    tn_graph *g;
    uint32_t begin; /* those before belong to backwards that are recorded, or need none */
    uint32_t end;   /* the nodes of forward are those before */
    int64_t *bytes; /* of each: what gradients read of it, or 0 */
    const tn_target *target;
} tn_wanted;

/* False: no memory, which has been said. */
bool tn_wanted_open(tn_wanted *w, tn_session *s, const tn_tensor *loss);
void tn_wanted_close(tn_wanted *w);
int64_t tn_wanted_sum(const tn_wanted *w); /* of all bytes */

double tn_filter_size(const tn_tensor *weight); /* weights of one of a convolution's filters */
double tn_product_terms(const tn_tensor *n); /* operations for an element; 0: no product, or a gradient's */
double tn_product_ns(const tn_target *t, const tn_tensor *n); /* that it takes, about; 0: it is no product */

/* Returns true where n is a node of forward. */
static inline bool tn_wanted_has(const tn_wanted *w, const tn_tensor *n)
{
    return n->id >= w->begin && n->id < w->end && w->g->nodes[n->id] == n;
}

/* Returns true where nothing has been decided about n, and it has no value yet. */
static inline bool tn_is_open(const tn_tensor *n)
{
    return !n->region && !(n->flags & (TN_F_DONE | TN_F_WALKED)) && !tn_has_value(n);
}

/* rematerialize.c: marks what gradients do not read but make again, and takes it from `bytes`. all: also what
 * spares little, or takes longer so. False as above. */
bool tn_rematerialize(tn_wanted *w, bool all);

/* peak.c: of the values that have a price, nanoseconds for making them again, sets `chosen` of those that are
 * worth it. False as above. */
bool tn_lower_peak(const tn_wanted *w, const double *price, uint8_t *chosen);
