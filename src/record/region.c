/* region.c - the user's own composites: the operators between tn_op_begin and tn_op_end are one call, for
 * errors, for what is told, and in eager mode for what runs together. Start with tn_op_begin. */
#include "../runtime/session.h"

#include "../../include/tensor_extend.h"

#include <string.h>

TN_DEFINE(int, op_begin, s, (s, name), tn_session *s, const char *name)
{
    if (!s) return TN_E_NULL;
    if (!name) return tn_fail(s, TN_E_NULL, "op_begin", "name is NULL");
    tn_tape *t = &s->tape;
    bool outer = s->graph.call_depth == t->region;
    static const char region[] = "region";
    const tn_op_key key = {.part = {name}, .bytes = {strlen(name)}}; /* wherever the text stands */
    tn_entry *e = outer ? tn_tape_match(s, TN_ENTRY_OPEN, region, &key, 0, NULL) : NULL;
    if (e) {
        t->region++;
        s->graph.call_depth++;
        s->graph.call = e->call;
        return TN_OK;
    }
    if (outer && tn_call_begin(&s->graph, name, NULL, 0)) {
        int at = tn_tape_note(s, TN_ENTRY_OPEN, region, &key, 0, NULL, NULL, s->graph.n_nodes);
        tn_tape_done(s, at, 0, NULL);
        t->region++;
        return TN_OK;
    }
    if (outer) return s->graph.error.status;
    return tn_call_begin(&s->graph, name, NULL, 0) ? TN_OK : s->graph.error.status;
}

int tn_run_open_ends(tn_session *s, int n, tn_tensor *const *results)
{
    tn_graph *g = &s->graph;
    uint32_t first = g->call ? g->call->first : g->n_nodes;
    uint32_t mark = ++g->mark;
    for (uint32_t i = first; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i]->n_in; k++) g->nodes[i]->in[k]->mark = mark;
    tn_tensor **root = tn_malloc((g->n_nodes - first + (uint32_t)n + 1) * sizeof *root);
    if (!root) return tn_fail(s, TN_E_NOMEM, "op_end", "no memory");
    for (int i = 0; i < n; i++) root[i] = results[i];
    for (uint32_t i = first; i < g->n_nodes; i++) {
        tn_tensor *t = g->nodes[i];
        bool assigns = tn_kind_of(t) == TN_KIND_ASSIGN && !(t->flags & TN_F_REFUSED);
        if (assigns || ((t->flags & TN_F_USER) && t->mark != mark)) root[n++] = t;
    }
    g->pending_assigns = 0;
    int status = n ? tn_run(s, n, root) : TN_OK;
    tn_free_mem(root);
    return status;
}

TN_DEFINE(int, op_end, s, (s), tn_session *s)
{
    if (!s) return TN_E_NULL;
    if (!s->graph.call_depth) return tn_fail(s, TN_E_STATE, "op_end", "without tn_op_begin");
    int status = s->graph.error.status;
    tn_tape *t = &s->tape;
    if (t->region == s->graph.call_depth) {
        static const char end[] = "end";
        if (!tn_tape_match(s, TN_ENTRY_CLOSE, end, TN_NO_ATTR, 0, NULL))
            tn_tape_done(s, tn_tape_note(s, TN_ENTRY_CLOSE, end, TN_NO_ATTR, 0, NULL, NULL, s->graph.n_nodes),
                         0, NULL);
        t->region--;
    }
    if (s->graph.call_depth == 1 && !status && !tn_deferred(s)) {
        s->region_ends = true;
        status = tn_run_open_ends(s, 0, NULL);
        s->region_ends = false;
    }
    tn_call_end(&s->graph);
    return status;
}
