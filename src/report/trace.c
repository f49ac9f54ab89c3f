/* trace.c - pictures of a step for other programs: its graph for Graphviz, its time for trace viewers.
 * Start with tn_graphviz and tn_trace. */
#include "../../include/tensor_extend.h"
#include "view.h"

/* ---- the graph ---- */

static void put_quoted(tn_growing *t, const char *s)
{
    for (; *s; s++) tn_put(t, *s == '"' || *s == '\\' ? "\\%c" : *s == '\n' ? " " : "%c", *s);
}

static void put_node(tn_growing *t, const tn_note *n, int r, int node)
{
    const tn_note_value *v = &n->value[node];
    tn_put(t, "    s%dn%d [label=\"%s\\n%s %s", r, node, tn_op_get(v->op)->name, tn_dtype_name(v->dtype),
           TN_SHAPE_TEXT(v->ndim, v->shape));
    if (v->name) {
        tn_put(t, "\\n");
        put_quoted(t, v->name);
    }
    tn_put(t, v->call >= 0 && n->call[v->call].backward ? "\" color=\"#d08020\"];\n" : "\"];\n");
}

static void put_groups(tn_growing *t, const tn_view *v, int r)
{
    const tn_note *n = v->log->run[r].plan->note;
    for (int i = 0; i < v->n_launch; i++) {
        const tn_launch *l = &v->launch[i];
        if (l->segment != r || l->again) continue;
        tn_put(t, "  subgraph cluster_%d { label=\"%d %s: ", i, i + 1, l->of->name);
        put_quoted(t, l->ops);
        tn_put(t, "\\n%.3f MB\" style=rounded\n", (double)l->of->bytes * 1e-6);
        for (int k = 0; k < n->n_node; k++)
            if (n->value[k].step == l->step) put_node(t, n, r, k);
        tn_put(t, "  }\n");
    }
}

static void put_edges(tn_growing *t, const tn_note *n, int r)
{
    for (int i = 0; i < n->n_node; i++) {
        if (n->value[i].step < 0) continue;
        for (int k = 0; k < n->value[i].n_in; k++) {
            int from = n->value[i].in[k];
            if (!n->value[from].number && (from >= n->n_node || n->value[from].step >= 0))
                tn_put(t, "  s%dn%d -> s%dn%d;\n", r, from, r, i);
        }
    }
}

TN_DEFINE(int, graphviz, s, (s, out), tn_session *s, FILE *out)
{
    if (!s) return TN_E_NULL;
    if (!out) return tn_fail(s, TN_E_NULL, "graphviz", "out is NULL");
    tn_view v;
    tn_growing t = {0};
    if (tn_view_make(s, &v) == TN_E_NOMEM) return TN_E_NOMEM;
    tn_put(&t, "digraph step {\n  rankdir=TB; node [shape=box fontsize=10 fontname=sans]; graph "
               "[fontname=sans fontsize=10];\n");
    for (int r = 0; v.log && r < v.log->n; r++) {
        const tn_note *n = v.log->run[r].plan->note;
        put_groups(&t, &v, r);
        for (int i = n->n_node; i < n->n_value; i++) {
            if (n->value[i].number) continue;
            char name[160];
            tn_put(&t, "  s%dn%d [shape=ellipse label=\"", r, i);
            put_quoted(&t, tn_note_name(n, i, name, sizeof name));
            tn_put(&t, "\"];\n");
        }
        put_edges(&t, n, r);
    }
    tn_put(&t, "}\n");
    tn_view_free(&v);
    return tn_put_out(&t, TN_OK, out);
}

/* ---- the time ---- */

/* The event is left open, for more of it. */
static void put_event(tn_growing *t, const char *name, const char *kind, int row, double start, double end,
                      double zero)
{
    tn_put(t, "%s\n{\"name\":\"", t->n && t->p[t->n - 1] != '[' ? "}," : "");
    put_quoted(t, name);
    tn_put(t, "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", kind, row,
           (start - zero) * 1e6, (end - start) * 1e6);
}

TN_DEFINE(int, trace, s, (s, path), tn_session *s, const char *path)
{
    if (!s) return TN_E_NULL;
    if (!path) return tn_fail(s, TN_E_NULL, "trace", "path is NULL");
    tn_view v;
    tn_growing t = {0};
    if (tn_view_make(s, &v) == TN_E_NOMEM) return tn_fail(s, TN_E_NOMEM, "trace", "no memory");
    tn_put(&t, "{\"traceEvents\":[");
    double last = v.log ? v.log->start : 0, zero = last;
    for (int r = 0; v.log && r < v.log->n; r++) {
        const tn_run_log *run = &v.log->run[r];
        put_event(&t, "record", "host", 1, last, run->start, zero);
        put_event(&t, "plan", "host", 1, run->start, run->planned, zero);
        put_event(&t, "run", "host", 1, run->planned, run->end, zero);
        tn_put(&t, ",\"args\":{\"ended by\":\"%s\"}", run->ender);
        last = run->end;
    }
    if (v.log) put_event(&t, "end", "host", 1, last, v.log->end, zero);
    TN_EACH(l, v.launch, v.n_launch) {
        const double *at = v.log->run[l->segment].kernel;
        if (!at) continue;
        put_event(&t, l->of->name, tn_way_name(l->way), 2, at[2 * l->step], at[2 * l->step + 1], zero);
        tn_put(&t, ",\"args\":{\"ops\":\"");
        put_quoted(&t, l->ops);
        tn_put(&t, "\",\"lines\":\"");
        put_quoted(&t, l->lines);
        tn_put(&t, "\",\"bytes\":%lld}", (long long)l->of->bytes);
    }
    tn_put(&t, t.n && t.p[t.n - 1] == '[' ? "]}\n" : "}]}\n");
    int status =
        t.failed ? tn_fail(s, TN_E_NOMEM, "trace", "no memory") : tn_write_file(s, "trace", path, &t);
    tn_growing_free(&t);
    tn_view_free(&v);
    return status;
}
