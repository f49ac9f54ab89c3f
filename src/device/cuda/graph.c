/* graph.c - a run of launches, library calls and copies on the device, captured from the stream as one CUDA
 * graph and launched as one from then on.
 *
 * Capture is confined to this thread, so other sessions go on. While it lasts nothing may be allocated,
 * loaded, waited for or copied from the host: those calls fail, and what was captured is dropped. The runtime
 * then runs the steps one by one. Read first: tn_cuda_record_end.
 */
#include "internal.h"

#include "../../core/alloc.h"

struct tn_recording {
    tn_cu_graph_exec exec;
    size_t nodes;
    bool is_empty; /* nothing had to be launched */
};

int tn_cuda_record_begin(tn_device *d, tn_errbuf *err)
{
    tn_cuda *c = tn_cuda_of(d);
    int status = tn_cuda_enter(c, err);
    if (status) return status;
    status = TN_CUDA_DO(c, err, cuStreamBeginCapture_v2, c->stream, TN_CU_CAPTURE_THREAD_LOCAL);
    c->recording = !status;
    tn_cuda_leave(c);
    return status;
}

static int instantiate(tn_cuda *c, tn_cu_graph graph, tn_recording **out, tn_errbuf *err)
{
    tn_recording *r = tn_calloc(1, sizeof *r);
    if (!r) return tn_err(err, TN_E_NOMEM, "out of host memory");
    int status = TN_CUDA_DO(c, err, cuGraphGetNodes, graph, NULL, &r->nodes);
    r->is_empty = !r->nodes;
    if (!status && !r->is_empty) status = TN_CUDA_DO(c, err, cuGraphInstantiateWithFlags, &r->exec, graph, 0);
    if (status) {
        tn_free_mem(r);
        return status;
    }
    c->base.stats.recorded++;
    *out = r;
    return TN_OK;
}

int tn_cuda_record_end(tn_device *d, tn_recording **out, tn_errbuf *err)
{
    tn_cuda *c = tn_cuda_of(d);
    tn_cu_graph graph = NULL;
    if (out) *out = NULL;
    if (!c->recording) return tn_err(err, TN_E_STATE, "nothing is being recorded");
    c->recording = false;
    int status = tn_cuda_enter(c, err);
    if (status) return status;
    status = TN_CUDA_DO(c, err, cuStreamEndCapture, c->stream, &graph);
    if (!status && out) status = instantiate(c, graph, out, err);
    if (graph) c->api->cuGraphDestroy(graph);
    tn_cuda_leave(c);
    return status;
}

int tn_cuda_replay(tn_device *d, tn_recording *r, tn_errbuf *err)
{
    tn_cuda *c = tn_cuda_of(d);
    if (r->is_empty) return TN_OK;
    int status = tn_cuda_enter(c, err);
    if (status) return status;
    status = TN_CUDA_DO(c, err, cuGraphLaunch, r->exec, c->stream);
    if (!status) tn_cuda_note(c, "a recorded step");
    if (!status && c->sync_each) status = tn_cuda_wait(c, err);
    tn_cuda_leave(c);
    d->stats.replays++;
    return status;
}

void tn_cuda_forget(tn_device *d, tn_recording *r)
{
    tn_cuda *c = tn_cuda_of(d);
    if (!r) return;
    if (r->exec && !c->api->cuCtxPushCurrent_v2(c->context)) {
        c->api->cuGraphExecDestroy(r->exec);
        tn_cuda_leave(c);
    }
    tn_free_mem(r);
}
