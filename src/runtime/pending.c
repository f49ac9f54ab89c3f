/* pending.c - whether what has been recorded, and has not run, writes to memory that others look into. */
#include "flush.h"

struct asking {
    const tn_tensor *of;
    bool found;
};

static bool waits_to_write(tn_tensor *h, void *arg)
{
    struct asking *a = arg;
    const tn_tensor *to = h->flags & TN_F_DONE ? NULL : tn_node_written(h);
    a->found = a->found || (to && tn_node_overlap(to, a->of));
    return true;
}

bool tn_is_awaited(tn_session *s, const tn_tensor *x, uint32_t before)
{
    struct asking a = {.of = x};
    return !tn_graph_meet(&s->graph, &s->graph.writers, x, s->flushed, before, waits_to_write, &a) || a.found;
}

bool tn_write_pending(tn_session *s, const tn_tensor *x) { return tn_is_awaited(s, x, x->base->id); }
