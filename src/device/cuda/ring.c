/* ring.c - host memory to the device and back.
 *
 *   up     The host's bytes are copied into pinned memory, so the caller may use his own again when the call
 *          returns. Pinned memory is a ring of SLOTS slots filled from front to back; a slot is used again
 *          once the event behind its last copy has come, so the host runs ahead of the device without
 *          waiting. Small pieces (scalars, labels) go straight to their place on the stream that computes.
 *          Large ones go on a second stream into the slot's device side, while kernels run, and from there by
 *          a fast copy to their place, in order with the kernels that read what was there before.
 *   down   Through one pinned buffer, and waits. The fault word comes along.
 *   cells  Numbers that are looked at without waiting: each has 8 pinned bytes and an event behind its copy.
 *          The fault word comes with the first.
 *
 * Read first: tn_cuda_upload.
 */
#include "internal.h"

#include "../../core/alloc.h"

#include <string.h>

enum { CELLS = 64 };
enum { SLOTS = 3, SLOT_BYTES = 4 << 20, ALIGN = 256, SMALL = 64 << 10, DOWN_BYTES = 1 << 20 };

struct slot {
    char *host;
    tn_cu_ptr device;
    size_t used;
    tn_cu_event arrived; /* on the second stream: the newest large piece is on the device */
    tn_cu_event done;    /* on the computing stream: nothing reads the slot any more */
    bool pending;        /* done was recorded and not waited for */
};

struct cell {
    tn_cu_event ready;
    bool pending, has;
    uint64_t faults; /* tn_cuda.faults when the copy was asked for */
    double value;    /* 8 bytes of anything */
};

struct tn_cuda_ring {
    struct cell cell[CELLS];
    double *cells; /* pinned */
    struct slot slot[SLOTS];
    int now;
    char *down;
    tn_fault *fault; /* pinned */
};

static int make_slot(tn_cuda *c, struct slot *s, tn_errbuf *err)
{
    void *host = NULL;
    int status = TN_CUDA_DO(c, err, cuMemHostAlloc, &host, SLOT_BYTES, 0);
    s->host = host;
    if (!status) status = TN_CUDA_DO(c, err, cuMemAlloc_v2, &s->device, SLOT_BYTES);
    if (!status) status = TN_CUDA_DO(c, err, cuEventCreate, &s->arrived, TN_CU_EVENT_DISABLE_TIMING);
    if (!status) status = TN_CUDA_DO(c, err, cuEventCreate, &s->done, TN_CU_EVENT_DISABLE_TIMING);
    return status;
}

static void drop_slot(tn_cuda *c, struct slot *s)
{
    const tn_cuda_api *a = c->api;
    if (s->done) a->cuEventDestroy_v2(s->done);
    if (s->arrived) a->cuEventDestroy_v2(s->arrived);
    if (s->device) a->cuMemFree_v2(s->device);
    if (s->host) a->cuMemFreeHost(s->host);
    memset(s, 0, sizeof *s);
}

int tn_cuda_ring_open(tn_cuda *c)
{
    c->ring = tn_calloc(1, sizeof *c->ring);
    return c->ring ? TN_OK : TN_E_NOMEM;
}

void tn_cuda_ring_close(tn_cuda *c)
{
    tn_cuda_ring *r = c->ring;
    if (!r) return;
    for (int i = 0; i < SLOTS; i++) drop_slot(c, &r->slot[i]);
    for (int i = 0; i < CELLS; i++)
        if (r->cell[i].ready) c->api->cuEventDestroy_v2(r->cell[i].ready);
    if (r->cells) c->api->cuMemFreeHost(r->cells);
    if (r->down) c->api->cuMemFreeHost(r->down);
    if (r->fault) c->api->cuMemFreeHost(r->fault);
    tn_free_mem(r);
    c->ring = NULL;
}

/* ---- up ---- */

/* A slot with room for `bytes`: the one in use, or the next after its last reader. */
static int find_room(tn_cuda *c, size_t bytes, struct slot **out, tn_errbuf *err)
{
    tn_cuda_ring *r = c->ring;
    struct slot *s = &r->slot[r->now];
    int status = TN_OK;
    if (s->host && s->used + bytes > SLOT_BYTES) {
        status = TN_CUDA_DO(c, err, cuEventRecord, s->done, c->stream);
        s->pending = true;
        r->now = (r->now + 1) % SLOTS;
        s = &r->slot[r->now];
        if (!status && s->pending) status = TN_CUDA_DO(c, err, cuEventSynchronize, s->done);
        s->pending = false;
        s->used = 0;
    }
    if (!status && !s->done) {
        status = make_slot(c, s, err);
        if (status) drop_slot(c, s);
    }
    *out = s;
    return status;
}

static int upload_piece(tn_cuda *c, tn_cu_ptr dst, const char *from, size_t bytes, tn_errbuf *err)
{
    struct slot *s;
    int status = find_room(c, bytes, &s, err);
    if (status) return status;
    char *host = s->host + s->used;
    tn_cu_ptr device = s->device + s->used;
    s->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    memcpy(host, from, bytes);
    if (bytes <= SMALL) return TN_CUDA_DO(c, err, cuMemcpyHtoDAsync_v2, dst, host, bytes, c->stream);
    status = TN_CUDA_DO(c, err, cuMemcpyHtoDAsync_v2, device, host, bytes, c->uploads);
    if (!status) status = TN_CUDA_DO(c, err, cuEventRecord, s->arrived, c->uploads);
    if (!status) status = TN_CUDA_DO(c, err, cuStreamWaitEvent, c->stream, s->arrived, 0);
    if (!status) status = TN_CUDA_DO(c, err, cuMemcpyDtoDAsync_v2, dst, device, bytes, c->stream);
    return status;
}

int tn_cuda_upload(tn_cuda *c, void *dst, const void *host, size_t bytes, tn_errbuf *err)
{
    if (c->recording) return tn_err(err, TN_E_STATE, "a copy from the host cannot be recorded");
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        int status = upload_piece(c, tn_cuda_ptr(dst) + at, (const char *)host + at, n, err);
        if (status) return status;
        at += n;
    }
    return TN_OK;
}

/* ---- down ---- */

static int make_down(tn_cuda *c, tn_errbuf *err)
{
    tn_cuda_ring *r = c->ring;
    void *p = NULL;
    int status = TN_OK;
    if (!r->down) {
        status = TN_CUDA_DO(c, err, cuMemHostAlloc, &p, DOWN_BYTES, 0);
        r->down = p;
    }
    if (!status && !r->fault) {
        p = NULL;
        status = TN_CUDA_DO(c, err, cuMemHostAlloc, &p, sizeof *r->fault, 0);
        r->fault = p;
    }
    return status;
}

static void take_fault(tn_cuda *c, const tn_fault *seen)
{
    if (seen->code && !c->fault.code) c->fault = *seen;
}

int tn_cuda_download(tn_cuda *c, void *host, const void *src, size_t bytes, tn_errbuf *err)
{
    tn_cuda_ring *r = c->ring;
    if (c->recording) return tn_err(err, TN_E_STATE, "a copy to the host cannot be recorded");
    int status = make_down(c, err);
    size_t at = 0;
    do {
        size_t n = bytes - at < DOWN_BYTES ? bytes - at : DOWN_BYTES;
        bool last = at + n == bytes;
        if (!status && n)
            status = TN_CUDA_DO(c, err, cuMemcpyDtoHAsync_v2, r->down, tn_cuda_ptr(src) + at, n, c->stream);
        if (!status && last)
            status =
                TN_CUDA_DO(c, err, cuMemcpyDtoHAsync_v2, r->fault, c->words, sizeof *r->fault, c->stream);
        if (!status) status = tn_cuda_wait(c, err);
        if (!status && n) memcpy((char *)host + at, r->down, n);
        at += n;
    } while (!status && at < bytes);
    if (!status) take_fault(c, r->fault);
    return status;
}

/* ---- cells ---- */

/* Takes over what has come. A copy still on its way stays pending. */
static int harvest(tn_cuda *c, int number, tn_errbuf *err)
{
    struct cell *v = &c->ring->cell[number];
    if (!v->pending) return TN_OK;
    tn_cu_result e = c->api->cuEventQuery(v->ready);
    if (e == TN_CU_NOT_READY) return TN_OK;
    v->pending = false;
    if (e) return tn_cuda_check(c, e, err, "cuEventQuery");
    memcpy(&v->value, &c->ring->cells[number], sizeof v->value);
    v->has = true;
    if (!number && v->faults == c->faults)
        take_fault(c, (const tn_fault *)(const void *)(c->ring->cells + CELLS));
    return TN_OK;
}

int tn_cuda_post(tn_cuda *c, int number, const void *src, size_t bytes, tn_errbuf *err)
{
    tn_cuda_ring *r = c->ring;
    if (number < 0 || number >= CELLS) return TN_E_ARG;
    struct cell *v = &r->cell[number];
    int status = TN_OK;
    if (!r->cells) {
        void *p = NULL;
        status = TN_CUDA_DO(c, err, cuMemHostAlloc, &p, CELLS * sizeof *r->cells + sizeof *r->fault, 0);
        r->cells = p;
    }
    if (!status && !v->ready)
        status = TN_CUDA_DO(c, err, cuEventCreate, &v->ready, TN_CU_EVENT_DISABLE_TIMING);
    if (!status) status = harvest(c, number, err);
    if (status || v->pending) return status;
    status = TN_CUDA_DO(c, err, cuMemcpyDtoHAsync_v2, &r->cells[number], tn_cuda_ptr(src), bytes, c->stream);
    if (!status && !number) /* who only watches learns of a fault too */
        status =
            TN_CUDA_DO(c, err, cuMemcpyDtoHAsync_v2, r->cells + CELLS, c->words, sizeof *r->fault, c->stream);
    if (!status) status = TN_CUDA_DO(c, err, cuEventRecord, v->ready, c->stream);
    v->pending = !status;
    v->faults = c->faults;
    return status;
}

bool tn_cuda_peek(tn_cuda *c, int number, void *out)
{
    if (number < 0 || number >= CELLS) return false;
    struct cell *v = &c->ring->cell[number];
    if (harvest(c, number, &c->base.failure) || !v->has) return false;
    memcpy(out, &v->value, sizeof v->value);
    return true;
}
