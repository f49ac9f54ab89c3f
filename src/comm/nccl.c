/* nccl.c - what ranks do together on GPUs: calls of NCCL on the device's second stream. Start with
 * tn_nccl_open, then launch. */
#include "nccl.h"

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

typedef struct call {
    nccl *n;
    const tn_comm_job *job; /* NULL: the ranks meet */
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

static tn_nccl_type type_of(const tn_comm_job *j)
{
    return j->size == sizeof(double) ? TN_NCCL_F64 : TN_NCCL_F32;
}

/* Parts of many lengths, each of one rank: NCCL makes one launch of a group. */
static tn_nccl_result launch_parts(nccl *n, const tn_comm_job *j, tn_nccl_stream stream)
{
    const tn_nccl_api *a = &n->api;
    tn_nccl_result r = a->ncclGroupStart();
    for (int i = 0; i < n->c.size && !r; i++) {
        const size_t count = j->cut[i + 1] - j->cut[i], at = j->cut[i] * j->size;
        if (!count) continue;
        if (j->kind == TN_COMM_GATHER)
            r = a->ncclBroadcast(j->in, (char *)j->out + at, count, TN_NCCL_BYTE, i, n->comm, stream);
        else
            r = a->ncclReduce((const char *)j->in + at, j->out, count, type_of(j), TN_NCCL_AVG, i, n->comm,
                              stream);
    }
    const tn_nccl_result ended = a->ncclGroupEnd();
    return r ? r : ended;
}

_Static_assert(offsetof(tn_fault, where) == sizeof(int32_t) &&
                   offsetof(tn_fault, value) == 2 * sizeof(int32_t),
               "merged as two words and a long one");

static tn_nccl_result launch_job(nccl *n, const tn_comm_job *j, tn_nccl_stream s)
{
    tn_fault *fault = j->out;
    tn_nccl_result r;
    switch (j->kind) {
    case TN_COMM_MEAN: return n->api.ncclAllReduce(j->in, j->out, j->n, type_of(j), TN_NCCL_AVG, n->comm, s);
    case TN_COMM_BROADCAST: return n->api.ncclBroadcast(j->out, j->out, j->n, TN_NCCL_BYTE, 0, n->comm, s);
    case TN_COMM_MERGE: /* where one rank has a fault it is that; all ranks run the same plan */
        r = n->api.ncclAllReduce(fault, fault, 2, TN_NCCL_I32, TN_NCCL_MAX, n->comm, s);
        return r ? r
                 : n->api.ncclAllReduce(&fault->value, &fault->value, 1, TN_NCCL_I64, TN_NCCL_SUM, n->comm,
                                        s);
    default: return launch_parts(n, j, s);
    }
}

/* With the device's context current. */
static int launch(void *queue, void *arg)
{
    call *k = arg;
    k->result = k->job ? launch_job(k->n, k->job, queue)
                       : k->n->api.ncclCommInitRank(&k->n->comm, k->n->c.size, *k->id, k->n->c.rank);
    return k->result == TN_NCCL_SUCCESS ? TN_OK : TN_E_DEVICE;
}

static int start(nccl *n, const tn_comm_job *job, const tn_nccl_id *id)
{
    tn_errbuf err = {""};
    call k = {.n = n, .job = job, .id = id};
    if (n->failed) return -1;
    if (!n->device->beside(n->device, launch, &k, &err)) return 0;
    n->failed = true;
    snprintf(n->c.why, sizeof n->c.why, "NCCL: %.300s",
             k.result ? n->api.ncclGetErrorString(k.result) : err.text);
    return -1;
}

static int begin(tn_comm *c, const tn_comm_job *job) { return start((nccl *)c, job, NULL); }

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
    if (!all || host->begin(host, &(tn_comm_job){.kind = TN_COMM_EXCHANGE, .in = &mine, .out = all})) {
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
                     .merges = true,
                     .begin = begin,
                     .wait = wait_for_all,
                     .close = close_comm};
    snprintf(n->c.name, sizeof n->c.name, "NCCL and %.80s", host->name);
    const tn_comm_job ids = {.kind = TN_COMM_BROADCAST, .out = &id, .n = sizeof id, .size = 1};
    const bool told = !host->begin(host, &ids) && !host->wait(host);
    if (!told) snprintf(why, TN_COMM_WHY, "%s", host->why);
    if (told && start(n, NULL, &id)) snprintf(why, TN_COMM_WHY, "%.390s", n->c.why);
    if (all_have(host, why)) return &n->c;
    n->failed = true;
    close_comm(&n->c);
    return NULL;
}
