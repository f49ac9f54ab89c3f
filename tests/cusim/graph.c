/* graph.c - stream capture and graphs.
 *
 * While a stream captures, what is submitted to it becomes a node of a graph instead of running, and so does
 * what is submitted to a stream that waits for an event recorded in the capture. The nodes keep the order of
 * the calls. Calls that a capture does not allow fail as the real ones do and spoil it. A graph that runs
 * does so as one piece of work.
 *
 * Read first: cuStreamBeginCapture_v2. */
#include "sim.h"

#include <stdlib.h>

/* Allocation, loading and waiting: forbidden while a stream captures, unless that is in relaxed mode (2), or
 * in thread-local mode (1) in another thread. */
tn_cu_result sim_unsafe_call(void)
{
    tn_cu_result r = SIM_OK;
    for (sim_stream *s = sim.streams; s; s = s->list) {
        if (!s->capture || !s->origin || s->mode == SIM_CAPTURE_RELAXED) continue;
        if (s->mode == TN_CU_CAPTURE_THREAD_LOCAL && !pthread_equal(s->thread, pthread_self())) continue;
        s->invalid = true;
        r = TN_CU_CAPTURE_UNSUPPORTED;
    }
    return r;
}

tn_cu_result sim_capture_event(sim_event *e, sim_stream *s)
{
    e->recorded = false;
    e->in_capture = true;
    e->capture = s->capture;
    e->stream = s;
    e->captured = s->captured;
    return SIM_OK;
}

tn_cu_result sim_capture_wait(sim_stream *s, sim_event *e, bool *handled)
{
    *handled = true;
    if (e->in_capture) {
        if (!e->capture) return SIM_CAPTURED_EVENT; /* of a capture that is over */
        if (s->capture && s->capture != e->capture) return SIM_CAPTURE_ISOLATION;
        if (!s->capture) {
            s->capture = e->capture;
            s->origin = s->invalid = s->joined = false;
            s->captured = 0;
        } else if (e->stream != s && e->captured == e->stream->captured)
            e->stream->joined = true;
        return SIM_OK;
    }
    if (s->capture) {
        if (!e->recorded) return SIM_OK;
        s->invalid = true;
        return SIM_CAPTURE_ISOLATION;
    }
    *handled = false;
    return SIM_OK;
}

void sim_graph_drop(sim_graph *g)
{
    if (--g->references) return;
    sim_graph **link = &sim.graphs;
    while (*link != g) link = &(*link)->list;
    *link = g->list;
    sim_ops_clear(&g->ops, 0);
    free(g);
}

void sim_graph_forget(void)
{
    while (sim.execs) {
        struct CUgraphExec_st *x = sim.execs;
        sim.execs = x->list;
        sim_graph_drop(x->graph);
        free(x);
    }
    while (sim.graphs) {
        sim.graphs->references = 1;
        sim_graph_drop(sim.graphs);
    }
}

static sim_graph *graph_of(tn_cu_graph graph)
{
    for (sim_graph *g = sim.graphs; g; g = g->list)
        if (g == graph && g->handle) return g;
    return NULL;
}

static struct CUgraphExec_st *exec_of(tn_cu_graph_exec exec)
{
    for (struct CUgraphExec_st *x = sim.execs; x; x = x->list)
        if (x == exec) return x;
    return NULL;
}

/* ---- capture ---- */

tn_cu_result cuStreamBeginCapture_v2(tn_cu_stream stream, tn_cu_capture_mode mode)
{
    SIM_ENTER();
    sim_stream *s = sim_stream_of(stream);
    if (!s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (s == &sim.null_stream) return sim_leave(TN_CU_CAPTURE_UNSUPPORTED);
    if (s->capture || mode > SIM_CAPTURE_RELAXED) return sim_leave(TN_CU_INVALID_VALUE);
    sim_graph *g = calloc(1, sizeof *g);
    if (!g) return sim_leave(TN_CU_OUT_OF_MEMORY);
    g->references = 1;
    g->list = sim.graphs;
    sim.graphs = g;
    s->capture = g;
    s->origin = true;
    s->invalid = false;
    s->captured = 0;
    s->mode = mode;
    s->thread = pthread_self();
    return sim_leave(SIM_OK);
}

tn_cu_result cuStreamEndCapture(tn_cu_stream stream, tn_cu_graph *graph)
{
    SIM_ENTER();
    sim_stream *s = sim_stream_of(stream);
    *graph = NULL;
    if (!s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (!s->capture) return sim_leave(TN_CU_INVALID_VALUE);
    if (!s->origin) return sim_leave(SIM_CAPTURE_UNMATCHED);
    sim_graph *g = s->capture;
    tn_cu_result r = s->invalid ? SIM_CAPTURE_INVALIDATED : SIM_OK;
    for (sim_stream *t = sim.streams; t; t = t->list) {
        if (t->capture != g) continue;
        if (t->invalid) r = SIM_CAPTURE_INVALIDATED;
        if (t != s && !t->joined && !r) r = SIM_CAPTURE_UNJOINED;
        t->capture = NULL;
    }
    for (sim_event *e = sim.events; e; e = e->list)
        if (e->capture == g) e->capture = NULL;
    if (r) {
        sim_graph_drop(g);
        return sim_leave(r);
    }
    g->handle = true;
    *graph = g;
    return sim_leave(SIM_OK);
}

/* ---- graphs ---- */

tn_cu_result cuGraphInstantiateWithFlags(tn_cu_graph_exec *exec, tn_cu_graph graph, unsigned long long flags)
{
    SIM_ENTER();
    sim_graph *g = graph_of(graph);
    SIM_PASS(sim_unsafe_call());
    if (!g || flags) return sim_leave(TN_CU_INVALID_VALUE);
    struct CUgraphExec_st *x = calloc(1, sizeof *x);
    if (!x) return sim_leave(TN_CU_OUT_OF_MEMORY);
    x->graph = g;
    g->references++;
    x->list = sim.execs;
    *exec = sim.execs = x;
    sim.count.graphs++;
    return sim_leave(SIM_OK);
}

tn_cu_result cuGraphLaunch(tn_cu_graph_exec exec, tn_cu_stream stream)
{
    SIM_ENTER();
    struct CUgraphExec_st *x = exec_of(exec);
    sim_stream *s = sim_stream_of(stream);
    if (!x || !s) return sim_leave(TN_CU_INVALID_HANDLE);
    sim_op *op = sim_op_new(SIM_GRAPH);
    if (op) {
        op->graph = x->graph;
        op->graph->references++;
    }
    sim.count.graph_launches++;
    return sim_leave(sim_submit(s, op));
}

tn_cu_result cuGraphExecDestroy(tn_cu_graph_exec exec)
{
    SIM_ENTER();
    struct CUgraphExec_st *x = exec_of(exec), **link = &sim.execs;
    if (!x) return sim_leave(TN_CU_INVALID_HANDLE);
    while (*link != x) link = &(*link)->list;
    *link = x->list;
    sim_graph_drop(x->graph);
    free(x);
    return sim_leave(SIM_OK);
}

tn_cu_result cuGraphDestroy(tn_cu_graph graph)
{
    SIM_ENTER();
    sim_graph *g = graph_of(graph);
    if (!g) return sim_leave(TN_CU_INVALID_HANDLE);
    g->handle = false;
    sim_graph_drop(g);
    return sim_leave(SIM_OK);
}

tn_cu_result cuGraphGetNodes(tn_cu_graph graph, tn_cu_graph_node *nodes, size_t *count)
{
    SIM_ENTER();
    sim_graph *g = graph_of(graph);
    if (!g) return sim_leave(TN_CU_INVALID_HANDLE);
    size_t n = g->ops.n;
    for (size_t i = 0; nodes && i < *count && i < n; i++) nodes[i] = (tn_cu_graph_node)(void *)g->ops.op[i];
    if (!nodes || *count > n) *count = n;
    return sim_leave(SIM_OK);
}
