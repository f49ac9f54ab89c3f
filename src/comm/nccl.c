/* nccl.c - what ranks do together on GPUs: calls of NCCL on the device's second stream. Start with
 * tn_nccl_open, then launch.
 */
#include "nccl.h"

#include "../core/alloc.h"
#include "../core/settings.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct nccl {
    tn_comm c;
    tn_device *device;
    tn_nccl_api api;
    tn_nccl_comm comm;
    bool failed;
} nccl;

typedef enum call_kind {
    CALL_INIT,
    CALL_MEAN,
    CALL_SCATTER,
    CALL_GATHER,
    CALL_BROADCAST,
    CALL_MERGE
} call_kind;

typedef struct call {
    nccl *n;
    call_kind kind;
    const void *in;
    void *out;
    size_t count;
    bool wide;
    const size_t *cut;
    const tn_nccl_id *id;
    tn_nccl_result result;
} call;

/* ---- the library ---- */

static bool load(tn_nccl_api *api, int *version, char *why)
{
    const char *said = tn_setting("TENSOR_NCCL");
    void *h = tn_setting_is_foreign()
                  ? NULL
                  : dlopen(said ? said : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!h) {
        snprintf(why, TN_COMM_WHY, "ranks on GPUs need NCCL (TENSOR_NCCL names another file): %s", dlerror());
        return false;
    }
    const char *missing = NULL;
#define TN_NCCL(result_, name_, parameters_)                                                                 \
    {                                                                                                        \
        union { /* ISO C has no cast from one to the other */                                                \
            void *data;                                                                                      \
            result_(*fn) parameters_;                                                                        \
        } u = {dlsym(h, #name_)};                                                                            \
        if (!u.data) missing = #name_;                                                                       \
        api->name_ = u.fn;                                                                                   \
    }
#include "nccl.def"
    if (missing)
        snprintf(why, TN_COMM_WHY, "libnccl has no %s", missing);
    else if (api->ncclGetVersion(version) || *version < TN_NCCL_MIN_VERSION)
        snprintf(why, TN_COMM_WHY, "libnccl is of version %d, 2.10 is the oldest that serves", *version);
    return !*why;
}

void tn_nccl_found(char *text)
{
    tn_nccl_api api;
    int version = 0;
    *text = 0;
    if (load(&api, &version, text))
        snprintf(text, TN_COMM_WHY, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* ---- calls ---- */

/* Parts of many lengths, each of one rank: NCCL makes one launch of a group. */
static tn_nccl_result launch_parts(const call *k, tn_nccl_stream stream)
{
    nccl *n = k->n;
    const tn_nccl_api *a = &n->api;
    const size_t size = k->kind == CALL_GATHER ? 1 : k->wide ? sizeof(double) : sizeof(float);
    tn_nccl_result r = a->ncclGroupStart();
    for (int i = 0; i < n->c.size && !r; i++) {
        const size_t count = k->cut[i + 1] - k->cut[i], at = k->cut[i] * size;
        if (!count) continue;
        if (k->kind == CALL_GATHER)
            r = a->ncclBroadcast(k->in, (char *)k->out + at, count, TN_NCCL_BYTE, i, n->comm, stream);
        else
            r = a->ncclReduce((const char *)k->in + at, k->out, count, k->wide ? TN_NCCL_F64 : TN_NCCL_F32,
                              TN_NCCL_AVG, i, n->comm, stream);
    }
    const tn_nccl_result ended = a->ncclGroupEnd();
    return r ? r : ended;
}

_Static_assert(offsetof(tn_fault, where) == sizeof(int32_t) &&
                   offsetof(tn_fault, value) == 2 * sizeof(int32_t),
               "merged as two words and a long one");

/* With the device's context current. */
static int launch(void *queue, void *arg)
{
    call *k = arg;
    nccl *n = k->n;
    tn_nccl_stream s = queue;
    tn_fault *fault = k->out;
    switch (k->kind) {
    case CALL_INIT:
        k->result = n->api.ncclCommInitRank(&n->comm, n->c.size, *k->id, n->c.rank);
        break;
    case CALL_MEAN:
        k->result = n->api.ncclAllReduce(k->in, k->out, k->count, k->wide ? TN_NCCL_F64 : TN_NCCL_F32,
                                         TN_NCCL_AVG, n->comm, s);
        break;
    case CALL_SCATTER:
    case CALL_GATHER:
        k->result = launch_parts(k, s);
        break;
    case CALL_BROADCAST:
        k->result = n->api.ncclBroadcast(k->out, k->out, k->count, TN_NCCL_BYTE, 0, n->comm, s);
        break;
    case CALL_MERGE: /* where one rank has a fault it is that; all ranks run the same plan */
        k->result = n->api.ncclAllReduce(fault, fault, 2, TN_NCCL_I32, TN_NCCL_MAX, n->comm, s);
        if (!k->result)
            k->result =
                n->api.ncclAllReduce(&fault->value, &fault->value, 1, TN_NCCL_I64, TN_NCCL_SUM, n->comm, s);
        break;
    }
    return k->result == TN_NCCL_SUCCESS ? TN_OK : TN_E_DEVICE;
}

static int start(nccl *n, call k)
{
    tn_errbuf err = {""};
    k.n = n;
    if (n->failed) return -1;
    if (!n->device->beside(n->device, launch, &k, &err)) return 0;
    n->failed = true;
    snprintf(n->c.why, sizeof n->c.why, "NCCL: %.300s",
             k.result ? n->api.ncclGetErrorString(k.result) : err.text);
    return -1;
}

static int mean(tn_comm *c, const void *in, void *out, size_t n, bool wide)
{
    return start((nccl *)c, (call){.kind = CALL_MEAN, .in = in, .out = out, .count = n, .wide = wide});
}

static int scatter(tn_comm *c, const void *in, void *out, size_t n, bool wide, const size_t *cut)
{
    return start((nccl *)c,
                 (call){.kind = CALL_SCATTER, .in = in, .out = out, .count = n, .wide = wide, .cut = cut});
}

static int gather(tn_comm *c, const void *in, void *out, const size_t *cut)
{
    return start((nccl *)c, (call){.kind = CALL_GATHER, .in = in, .out = out, .cut = cut});
}

static int broadcast(tn_comm *c, void *data, size_t bytes)
{
    return start((nccl *)c, (call){.kind = CALL_BROADCAST, .out = data, .count = bytes});
}

static int merge(tn_comm *c, void *fault)
{
    return start((nccl *)c, (call){.kind = CALL_MERGE, .out = fault});
}

static int wait_for_all(tn_comm *c)
{
    nccl *n = (nccl *)c;
    tn_errbuf err = {""};
    tn_nccl_result r = TN_NCCL_SUCCESS;
    if (n->failed) return -1;
    const int status = n->device->join(n->device, &err);
    if (!status && !n->api.ncclCommGetAsyncError(n->comm, &r) &&
        (r == TN_NCCL_SUCCESS || r == TN_NCCL_IN_PROGRESS))
        return 0;
    n->failed = true;
    snprintf(c->why, sizeof c->why, "NCCL: %.300s", status ? err.text : n->api.ncclGetErrorString(r));
    return -1;
}

static void close_comm(tn_comm *c)
{
    nccl *n = (nccl *)c;
    if (n->comm) (n->failed ? n->api.ncclCommAbort : n->api.ncclCommDestroy)(n->comm);
    tn_free_mem(n);
}

/* All ranks have come so far: one that has not says why. */
static bool all_have(tn_comm *host, char *why)
{
    tn_comm_note mine = {""}, *all = tn_calloc((size_t)host->size, sizeof *all);
    bool fine = all != NULL;
    snprintf(mine.bytes, sizeof mine.bytes, "%.400s", why);
    if (!all || host->exchange(host, &mine, all)) {
        snprintf(why, TN_COMM_WHY, "%s", all ? host->why : "no memory");
        fine = false;
    }
    for (int i = 0; i < host->size && fine; i++) {
        if (!all[i].bytes[0]) continue;
        snprintf(why, TN_COMM_WHY, "rank %d: %.350s", i, all[i].bytes);
        fine = false;
    }
    tn_free_mem(all);
    return fine;
}

tn_comm *tn_nccl_open(tn_comm *host, tn_device *d, char *why)
{
    tn_nccl_id id = {""};
    int version = 0;
    nccl *n = tn_calloc(1, sizeof *n);
    *why = 0;
    if (!n)
        snprintf(why, TN_COMM_WHY, "no memory");
    else if (load(&n->api, &version, why) && !host->rank && n->api.ncclGetUniqueId(&id))
        snprintf(why, TN_COMM_WHY, "NCCL makes no id");
    if (!all_have(host, why) || !n) {
        tn_free_mem(n);
        return NULL;
    }
    n->device = d;
    n->c = (tn_comm){.rank = host->rank,
                     .size = host->size,
                     .mean = mean,
                     .scatter = scatter,
                     .gather = gather,
                     .broadcast = broadcast,
                     .merge = merge,
                     .wait = wait_for_all,
                     .close = close_comm};
    snprintf(n->c.name, sizeof n->c.name, "NCCL and %.80s", host->name);
    const bool told = !host->broadcast(host, &id, sizeof id) && !host->wait(host);
    if (!told) snprintf(why, TN_COMM_WHY, "%s", host->why);
    if (told && start(n, (call){.kind = CALL_INIT, .id = &id}))
        snprintf(why, TN_COMM_WHY, "%.390s", n->c.why);
    if (all_have(host, why)) return &n->c;
    n->failed = true;
    close_comm(&n->c);
    return NULL;
}
