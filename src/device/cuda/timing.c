/* timing.c - how long a launch takes by the GPU's own clock: an event on either side of it.
 *
 * A GPU with nothing else to do would pass the first event at once and then wait for the host to submit the
 * launch, some microseconds that are not the kernel's. So a gate stands in front: a function of the host's in
 * the stream, which returns when everything behind it has been submitted. Read first: tn_cuda_time.
 */
#include "internal.h"

#include <sched.h>

static void wait_at_gate(void *open)
{
    while (!atomic_load((atomic_bool *)open)) sched_yield();
}

static int between(tn_cuda *c, tn_cu_event *event, tn_kernel *k, const tn_args *args, const tn_grid *grid,
                   double *seconds, tn_errbuf *err)
{
    float ms = 0;
    int status = TN_OK;
    /* where each launch is waited for, it would be for ever */
    if (!c->sync_each) {
        atomic_store(&c->gate, false);
        status = TN_CUDA_DO(c, err, cuLaunchHostFunc, c->stream, wait_at_gate, &c->gate);
    }
    if (!status) status = TN_CUDA_DO(c, err, cuEventRecord, event[0], c->stream);
    if (!status) status = c->base.launch(&c->base, k, args, grid, err);
    if (!status) status = TN_CUDA_DO(c, err, cuEventRecord, event[1], c->stream);
    atomic_store(&c->gate, true);
    if (!status) status = TN_CUDA_DO(c, err, cuEventSynchronize, event[1]);
    if (!status) status = TN_CUDA_DO(c, err, cuEventElapsedTime, &ms, event[0], event[1]);
    *seconds = 1e-3 * (double)ms;
    return status;
}

int tn_cuda_time(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid, double *seconds,
                 tn_errbuf *err)
{
    tn_cuda *c = tn_cuda_of(d);
    tn_cu_event event[2] = {NULL, NULL};
    if (c->recording) return tn_err(err, TN_E_STATE, "nothing is timed while launches are recorded");
    int status = tn_cuda_enter(c, err);
    if (status) return status;
    for (int i = 0; i < 2 && !status; i++) status = TN_CUDA_DO(c, err, cuEventCreate, &event[i], 0);
    if (!status) status = between(c, event, k, args, grid, seconds, err);
    for (int i = 0; i < 2; i++)
        if (event[i]) c->api->cuEventDestroy_v2(event[i]);
    tn_cuda_leave(c);
    return status;
}
