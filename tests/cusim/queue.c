/* queue.c - streams and events: work waits in queues until somebody waits for it.
 *
 * Nothing runs at the call that submits it. A stream's work runs, in order, when the program synchronises
 * with the stream or with an event behind that work, frees memory, or asks an event often enough; what it has
 * not waited for has not happened, so that a read which comes too early sees the old bytes, each time. Two
 * streams know of one another only through events and, if they are blocking, through the default stream.
 *
 * Copies to and from pageable memory are as the driver documents them: the source is copied at the call, and
 * a copy to the host is over when the call returns. Pinned memory is read and written when the work runs.
 *
 * Events show a clock of the simulator's own, on which each piece of work takes as long as it has to do, and
 * always the same: a launch, what its blocks have in barriers and warp operations, shared out among the
 * multiprocessors. The host takes time, too, for each call that submits work, and nothing runs before that.
 *
 * Read first: sim_submit, then sim_run_stream. */
#include "sim.h"

#include <stdlib.h>

#define HOST_SECONDS 5e-6 /* that a call takes which submits work */

/* ---- pieces of work ---- */

sim_op *sim_op_new(sim_op_kind kind)
{
    sim_op *op = calloc(1, sizeof *op);
    if (op) {
        op->kind = kind;
        op->references = 1;
    }
    return op;
}

void sim_op_drop(sim_op *op)
{
    if (!op || --op->references) return;
    if (op->launch.parameter) free(op->launch.parameter);
    if (op->launch.function) sim_module_drop(op->launch.function->module);
    if (op->graph) sim_graph_drop(op->graph);
    free(op->copy.staged);
    free(op->product);
    free(op);
}

bool sim_ops_add(sim_ops *l, sim_op *op)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 32;
        sim_op **grown = realloc(l->op, room * sizeof *grown);
        if (!grown) return false;
        l->op = grown;
        l->room = room;
    }
    op->references++;
    l->op[l->n++] = op;
    return true;
}

void sim_ops_clear(sim_ops *l, size_t from)
{
    for (size_t i = from; i < l->n; i++) sim_op_drop(l->op[i]);
    free(l->op);
    *l = (sim_ops){0};
}

/* ---- streams ---- */

sim_stream *sim_stream_of(tn_cu_stream s)
{
    if (!s) return &sim.null_stream;
    for (sim_stream *t = sim.streams; t; t = t->list)
        if (t == s) return t;
    return NULL;
}

tn_cu_result sim_submit(sim_stream *s, sim_op *op)
{
    tn_cu_result r = SIM_OK;
    if (!op) return TN_CU_OUT_OF_MEMORY;
    if (s->capture) {
        s->captured++;
        s->joined = false;
        if (!sim_ops_add(&s->capture->ops, op)) r = TN_CU_OUT_OF_MEMORY;
    } else {
        if (s == &sim.null_stream)
            for (sim_stream *t = sim.streams; t && !r; t = t->list) {
                if (!t->blocking) continue;
                r = t->capture ? SIM_CAPTURE_IMPLICIT : sim_run_stream(t);
            }
        else if (s->blocking)
            r = sim_run_stream(&sim.null_stream);
        if (sim.host < sim.clock) sim.host = sim.clock; /* what has run the host has waited for */
        op->at = sim.host += HOST_SECONDS;
        if (!r && !sim_ops_add(&s->queue, op)) r = TN_CU_OUT_OF_MEMORY;
    }
    sim_op_drop(op);
    return r;
}

static tn_cu_result run_event(sim_event *e, uint64_t ticket)
{
    while (e->done < ticket && e->stream && !sim.sticky) {
        sim_stream *s = e->stream;
        if (s->next == s->queue.n) break;
        sim_op *op = s->queue.op[s->next++];
        sim_run_op(op);
        sim_op_drop(op);
    }
    return sim.sticky;
}

static void copy(const sim_op *op)
{
    const void *from = op->copy.staged ? op->copy.staged : sim_pointer(op->copy.from);
    size_t bytes = op->copy.bytes;
    bool good = (op->copy.kind == SIM_TO_HOST || sim_memory_holds(op->copy.to, bytes)) &&
                (op->copy.kind == SIM_TO_DEVICE || sim_memory_holds(op->copy.from, bytes));
    if (!good) {
        sim_fault(SIM_ILLEGAL_ADDRESS, "a copy of %zu bytes leaves device memory, or its memory was freed",
                  bytes);
        return;
    }
    memmove(sim_pointer(op->copy.to), from, bytes);
    sim.clock += 1e-6 + 1e-10 * (double)bytes;
    switch (op->copy.kind) {
    case SIM_TO_DEVICE: sim.count.copies_to_device++, sim.count.bytes_to_device += bytes; break;
    case SIM_TO_HOST: sim.count.copies_to_host++, sim.count.bytes_to_host += bytes; break;
    case SIM_ON_DEVICE: sim.count.copies_on_device++, sim.count.bytes_on_device += bytes; break;
    }
}

tn_cu_result sim_run_op(const sim_op *op)
{
    if (op->at > sim.clock) sim.clock = op->at; /* with nothing else to do, the GPU has waited for it */
    switch (op->kind) {
    case SIM_LAUNCH: sim_run_launch(op); break;
    case SIM_COPY: copy(op); break;
    case SIM_FILL:
        if (sim_memory_holds(op->copy.to, op->copy.bytes)) {
            memset(sim_pointer(op->copy.to), op->copy.value, op->copy.bytes);
            sim.count.fills++, sim.count.bytes_filled += op->copy.bytes;
            sim.clock += 1e-6 + 1e-12 * (double)op->copy.bytes;
        } else
            sim_fault(SIM_ILLEGAL_ADDRESS, "a fill of %zu bytes leaves device memory, or it was freed",
                      op->copy.bytes);
        break;
    case SIM_MATMUL:
        sim.count.matmuls++;
        sim.clock += 1e-5;
        sim_run_product(op->product);
        break;
    case SIM_RECORD:
        op->event->done = op->ticket;
        op->event->time = sim.clock;
        break;
    case SIM_WAIT: run_event(op->event, op->ticket); break;
    case SIM_HOST:
        op->host.function(op->host.user);
        if (sim.host > sim.clock) sim.clock = sim.host;
        break;
    case SIM_GRAPH:
        for (size_t i = 0; i < op->graph->ops.n && !sim.sticky; i++) sim_run_op(op->graph->ops.op[i]);
        break;
    }
    return sim.sticky;
}

tn_cu_result sim_run_stream(sim_stream *s)
{
    if (s->next == s->queue.n) return sim.sticky;
    sim_memory_open();
    while (s->next < s->queue.n && !sim.sticky) {
        sim_op *op = s->queue.op[s->next++];
        sim_run_op(op);
        sim_op_drop(op);
    }
    if (s->next == s->queue.n) s->next = s->queue.n = 0;
    sim_memory_close();
    return sim.sticky;
}

tn_cu_result sim_run_all(void)
{
    sim_run_stream(&sim.null_stream);
    for (sim_stream *s = sim.streams; s; s = s->list) sim_run_stream(s);
    return sim.sticky;
}

void sim_queue_forget(void)
{
    sim_ops_clear(&sim.null_stream.queue, sim.null_stream.next);
    sim.null_stream.next = 0;
    while (sim.streams) {
        sim_stream *s = sim.streams;
        sim.streams = s->list;
        sim_ops_clear(&s->queue, s->next);
        free(s);
    }
    while (sim.events) {
        sim_event *e = sim.events;
        sim.events = e->list;
        free(e);
    }
    sim_graph_forget();
}

tn_cu_result cuStreamCreate(tn_cu_stream *stream, unsigned flags)
{
    SIM_ENTER();
    sim_stream *s = flags > 1 ? NULL : calloc(1, sizeof *s);
    if (!s) return sim_leave(flags > 1 ? TN_CU_INVALID_VALUE : TN_CU_OUT_OF_MEMORY);
    s->blocking = !(flags & TN_CU_STREAM_NON_BLOCKING);
    s->list = sim.streams;
    *stream = sim.streams = s;
    return sim_leave(SIM_OK);
}

/* Its work is finished first; the real one returns at once and lets it finish, which nobody can tell. */
tn_cu_result cuStreamDestroy_v2(tn_cu_stream stream)
{
    SIM_ENTER();
    sim_stream *s = sim_stream_of(stream);
    if (!stream || !s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (s->capture) return sim_leave(TN_CU_CAPTURE_UNSUPPORTED);
    tn_cu_result status = sim_run_stream(s);
    sim_ops_clear(&s->queue, s->next);
    for (sim_event *e = sim.events; e; e = e->list)
        if (e->stream == s) e->stream = NULL;
    sim_stream **link = &sim.streams;
    while (*link != s) link = &(*link)->list;
    *link = s->list;
    free(s);
    return sim_leave(status);
}

tn_cu_result cuStreamSynchronize(tn_cu_stream stream)
{
    SIM_ENTER();
    sim_stream *s = sim_stream_of(stream);
    if (!s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (s->capture) s->invalid = true;
    SIM_PASS(s->capture ? TN_CU_CAPTURE_UNSUPPORTED : sim_unsafe_call());
    sim.count.stream_syncs++;
    if (s == &sim.null_stream)
        for (sim_stream *t = sim.streams; t; t = t->list)
            if (t->blocking) sim_run_stream(t);
    return sim_leave(sim_run_stream(s));
}

tn_cu_result cuLaunchHostFunc(tn_cu_stream stream, void (*function)(void *user), void *user)
{
    SIM_ENTER();
    sim_stream *s = sim_stream_of(stream);
    if (!s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (!function) return sim_leave(TN_CU_INVALID_VALUE);
    sim_op *op = sim_op_new(SIM_HOST);
    if (op) {
        op->host.function = function;
        op->host.user = user;
    }
    return sim_leave(sim_submit(s, op));
}

/* ---- events ---- */

static sim_event *event_of(tn_cu_event e)
{
    for (sim_event *f = sim.events; f; f = f->list)
        if (f == e) return f;
    return NULL;
}

tn_cu_result cuEventCreate(tn_cu_event *event, unsigned flags)
{
    SIM_ENTER();
    sim_event *e = flags > 7 ? NULL : calloc(1, sizeof *e);
    if (!e) return sim_leave(flags > 7 ? TN_CU_INVALID_VALUE : TN_CU_OUT_OF_MEMORY);
    e->timing = !(flags & TN_CU_EVENT_DISABLE_TIMING);
    e->list = sim.events;
    *event = sim.events = e;
    return sim_leave(SIM_OK);
}

tn_cu_result cuEventDestroy_v2(tn_cu_event event)
{
    SIM_ENTER();
    sim_event *e = event_of(event);
    if (!e) return sim_leave(TN_CU_INVALID_HANDLE);
    sim_run_all(); /* queues hold its address */
    sim_event **link = &sim.events;
    while (*link != e) link = &(*link)->list;
    *link = e->list;
    free(e);
    return sim_leave(SIM_OK);
}

tn_cu_result cuEventRecord(tn_cu_event event, tn_cu_stream stream)
{
    SIM_ENTER();
    sim_event *e = event_of(event);
    sim_stream *s = sim_stream_of(stream);
    if (!e || !s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (s->capture) return sim_leave(sim_capture_event(e, s));
    sim_op *op = sim_op_new(SIM_RECORD);
    if (op) {
        op->event = e;
        op->ticket = ++sim.tickets;
    }
    tn_cu_result r = sim_submit(s, op);
    if (r) return sim_leave(r);
    e->recorded = true;
    e->in_capture = false;
    e->capture = NULL;
    e->stream = s;
    e->ticket = sim.tickets;
    return sim_leave(SIM_OK);
}

tn_cu_result cuStreamWaitEvent(tn_cu_stream stream, tn_cu_event event, unsigned flags)
{
    SIM_ENTER();
    sim_event *e = event_of(event);
    sim_stream *s = sim_stream_of(stream);
    if (!e || !s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (flags) return sim_leave(TN_CU_INVALID_VALUE);
    bool handled = false;
    tn_cu_result r = sim_capture_wait(s, e, &handled);
    if (r || handled || !e->recorded) return sim_leave(r);
    sim_op *op = sim_op_new(SIM_WAIT);
    if (op) {
        op->event = e;
        op->ticket = e->ticket;
    }
    return sim_leave(sim_submit(s, op));
}

tn_cu_result cuEventSynchronize(tn_cu_event event)
{
    SIM_ENTER();
    sim_event *e = event_of(event);
    if (!e) return sim_leave(TN_CU_INVALID_HANDLE);
    if (e->in_capture) return sim_leave(SIM_CAPTURED_EVENT);
    SIM_PASS(sim_unsafe_call());
    sim.count.event_syncs++;
    sim_memory_open();
    tn_cu_result r = run_event(e, e->ticket);
    sim_memory_close();
    return sim_leave(r);
}

/* Each question lets one piece of work happen: a program that polls comes to an end, but not at once. */
tn_cu_result cuEventQuery(tn_cu_event event)
{
    SIM_ENTER();
    sim_event *e = event_of(event);
    if (!e) return sim_leave(TN_CU_INVALID_HANDLE);
    if (e->in_capture) return sim_leave(SIM_CAPTURED_EVENT);
    SIM_PASS(sim_unsafe_call());
    sim.count.event_queries++;
    if (e->done >= e->ticket) return sim_leave(SIM_OK);
    sim_stream *s = e->stream;
    if (s && s->next < s->queue.n) {
        sim_memory_open();
        sim_op *op = s->queue.op[s->next++];
        sim_run_op(op);
        sim_op_drop(op);
        sim_memory_close();
    }
    return sim_leave(sim.sticky ? sim.sticky : TN_CU_NOT_READY);
}

tn_cu_result cuEventElapsedTime(float *ms, tn_cu_event start, tn_cu_event end)
{
    SIM_ENTER();
    sim_event *from = event_of(start), *to = event_of(end);
    if (!from || !to || !from->timing || !to->timing || !from->recorded || !to->recorded)
        return sim_leave(TN_CU_INVALID_HANDLE);
    if (from->done < from->ticket || to->done < to->ticket) return sim_leave(TN_CU_NOT_READY);
    *ms = (float)(1e3 * (to->time - from->time));
    return sim_leave(SIM_OK);
}

/* ---- copies and fills ---- */

static tn_cu_result submit_copy(sim_copy_kind kind, uint64_t to, uint64_t from, size_t bytes,
                                tn_cu_stream stream)
{
    sim_stream *s = sim_stream_of(stream);
    if (!s) return TN_CU_INVALID_HANDLE;
    if (!bytes) return SIM_OK;
    if ((kind != SIM_TO_HOST && !sim_memory_holds(to, bytes)) ||
        (kind != SIM_TO_DEVICE && !sim_memory_holds(from, bytes)))
        return TN_CU_INVALID_VALUE;
    sim_op *op = sim_op_new(SIM_COPY);
    if (!op) return TN_CU_OUT_OF_MEMORY;
    op->copy.kind = kind;
    op->copy.to = to;
    op->copy.from = from;
    op->copy.bytes = bytes;
    bool pageable = !s->capture && ((kind == SIM_TO_DEVICE && !sim_find_pinned(sim_pointer(from), bytes)) ||
                                    (kind == SIM_TO_HOST && !sim_find_pinned(sim_pointer(to), bytes)));
    if (kind == SIM_TO_DEVICE && pageable) {
        if (!(op->copy.staged = malloc(bytes))) {
            sim_op_drop(op);
            return TN_CU_OUT_OF_MEMORY;
        }
        memcpy(op->copy.staged, sim_pointer(from), bytes);
    }
    tn_cu_result r = sim_submit(s, op);
    return !r && kind == SIM_TO_HOST && pageable ? sim_run_stream(s) : r;
}

tn_cu_result cuMemcpyHtoDAsync_v2(tn_cu_ptr to, const void *from, size_t bytes, tn_cu_stream stream)
{
    SIM_ENTER();
    return sim_leave(submit_copy(SIM_TO_DEVICE, to, (uint64_t)(uintptr_t)from, bytes, stream));
}

tn_cu_result cuMemcpyDtoHAsync_v2(void *to, tn_cu_ptr from, size_t bytes, tn_cu_stream stream)
{
    SIM_ENTER();
    return sim_leave(submit_copy(SIM_TO_HOST, (uint64_t)(uintptr_t)to, from, bytes, stream));
}

tn_cu_result cuMemcpyDtoDAsync_v2(tn_cu_ptr to, tn_cu_ptr from, size_t bytes, tn_cu_stream stream)
{
    SIM_ENTER();
    return sim_leave(submit_copy(SIM_ON_DEVICE, to, from, bytes, stream));
}

tn_cu_result cuMemsetD8Async(tn_cu_ptr to, unsigned char value, size_t bytes, tn_cu_stream stream)
{
    SIM_ENTER();
    sim_stream *s = sim_stream_of(stream);
    if (!s) return sim_leave(TN_CU_INVALID_HANDLE);
    if (!bytes) return sim_leave(SIM_OK);
    if (!sim_memory_holds(to, bytes)) return sim_leave(TN_CU_INVALID_VALUE);
    sim_op *op = sim_op_new(SIM_FILL);
    if (op) {
        op->copy.to = to;
        op->copy.value = value;
        op->copy.bytes = bytes;
    }
    return sim_leave(sim_submit(s, op));
}
