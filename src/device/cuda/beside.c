/* beside.c - a stream beside the one that computes, for work that others put there (what ranks send each
 * other). Two events tie them together, while a step is captured as well: then both are parts of one graph.
 * Start with tn_cuda_beside.
 */
#include "internal.h"

static int open_beside(tn_cuda *c, tn_errbuf *err)
{
    int status = TN_OK;
    if (!c->beside) status = TN_CUDA_DO(c, err, cuStreamCreate, &c->beside, TN_CU_STREAM_NON_BLOCKING);
    if (!status && !c->forked)
        status = TN_CUDA_DO(c, err, cuEventCreate, &c->forked, TN_CU_EVENT_DISABLE_TIMING);
    if (!status && !c->joined)
        status = TN_CUDA_DO(c, err, cuEventCreate, &c->joined, TN_CU_EVENT_DISABLE_TIMING);
    return status;
}

static int tie(tn_cuda *c, tn_cu_event e, tn_cu_stream first, tn_cu_stream then, tn_errbuf *err)
{
    int status = TN_CUDA_DO(c, err, cuEventRecord, e, first);
    return status ? status : TN_CUDA_DO(c, err, cuStreamWaitEvent, then, e, 0);
}

int tn_cuda_beside(tn_device *d, int (*begin)(void *queue, void *arg), void *arg, tn_errbuf *err)
{
    tn_cuda *c = tn_cuda_of(d);
    int status = tn_cuda_enter(c, err);
    if (status) return status;
    status = open_beside(c, err);
    if (!status) status = tie(c, c->forked, c->stream, c->beside, err);
    if (!status) status = begin(c->beside, arg);
    tn_cuda_leave(c);
    return status;
}

int tn_cuda_join(tn_device *d, tn_errbuf *err)
{
    tn_cuda *c = tn_cuda_of(d);
    int status = c->joined ? tn_cuda_enter(c, err) : TN_OK;
    if (status || !c->joined) return status;
    status = tie(c, c->joined, c->beside, c->stream, err);
    tn_cuda_leave(c);
    return status;
}

void tn_cuda_beside_close(tn_cuda *c)
{
    if (c->forked) c->api->cuEventDestroy_v2(c->forked);
    if (c->joined) c->api->cuEventDestroy_v2(c->joined);
    if (c->beside) c->api->cuStreamDestroy_v2(c->beside);
}
