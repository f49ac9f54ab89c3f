/* ranks.c - what ranks do together in a run, and how they stay together. ranks.h says what for. Start with
 * tn_ranks_begin. */
#include "ranks.h"

#include "../core/hash.h"
#include "log.h"

#include <string.h>

typedef enum note_kind { NOTE_RUN = 1, NOTE_DONE, NOTE_EQUAL, NOTE_SAME, NOTE_CALL, NOTE_CLOSE } note_kind;

typedef struct note {
    int32_t kind, status; /* status: not 0 where this rank has failed, which `text` explains */
    uint64_t digest, step;
    char text[TN_COMM_NOTE - 24];
} note;
_Static_assert(sizeof(note) == sizeof(tn_comm_note), "a note of its own size");

struct tn_ranks {
    tn_comm *host; /* notes, and memory of the host */
    tn_comm *comm; /* what the device computes with: the same, or GPUs' */
    note *heard;   /* of all */
    size_t *cut;   /* scratch: of each rank, and the end */
    int equal;     /* parameters and buffers that are */
    bool told;     /* what this rank's error is, or it comes from another one */
    bool lost;     /* a rank cannot be reached any more */
};

/* ---- who they are ---- */

static void free_ranks(struct tn_ranks *r)
{
    tn_free_mem(r->heard);
    tn_free_mem(r->cut);
    tn_free_mem(r);
}

struct tn_ranks *tn_ranks_new(tn_comm *host)
{
    struct tn_ranks *r = tn_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->host = r->comm = host;
    r->heard = tn_calloc((size_t)host->size, sizeof *r->heard);
    r->cut = tn_calloc((size_t)host->size + 1, sizeof *r->cut);
    if (r->heard && r->cut) return r;
    free_ranks(r);
    return NULL;
}

tn_comm *tn_ranks_host(const tn_session *s) { return s->ranks->host; }

void tn_ranks_compute(tn_session *s, tn_comm *c) { s->ranks->comm = c; }

int tn_rank(const tn_session *s) { return s && s->ranks ? s->ranks->comm->rank : 0; }
int tn_ranks(const tn_session *s) { return s && s->ranks ? s->ranks->comm->size : 1; }
const char *tn_ranks_name(const tn_session *s) { return s->ranks ? s->ranks->comm->name : NULL; }

uint64_t tn_ranks_salt(const tn_session *s)
{
    return s->in_step && tn_rank(s) ? tn_hash_mix((uint64_t)tn_rank(s), 0x9e3779b97f4a7c15u) : 0;
}

/* ---- meeting ---- */

static note note_of(const tn_session *s, note_kind kind, uint64_t digest, int status)
{
    note n = {.kind = kind, .status = status, .digest = digest, .step = s->stats.steps + 1};
    if (status)
        snprintf(n.text, sizeof n.text, "%.480s",
                 s->graph.error.status ? s->graph.error.text : tn_status_text(status));
    return n;
}

/* The session's error, which needs not be told to the others. */
static int fail(tn_session *s, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(tn_session *s, int status, const char *format, ...)
{
    char text[1000];
    va_list ap;
    va_start(ap, format);
    tn_vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    s->ranks->told = true;
    if (!s->graph.error.status) tn_fail(s, status, "ranks", "%s", text);
    return s->graph.error.status;
}

static int lost(tn_session *s)
{
    s->ranks->lost = true;
    return fail(s, TN_E_COMM, "rank %d, step %llu: %s", tn_rank(s), (unsigned long long)s->stats.steps + 1,
                s->ranks->comm->why[0] ? s->ranks->comm->why : s->ranks->host->why);
}

/* Sends all ranks a note; `heard`: and gets theirs. */
static int send(struct tn_ranks *r, const note *n, note *heard)
{
    const tn_comm_op kind = heard ? TN_COMM_EXCHANGE : TN_COMM_TELL;
    return r->host->begin(r->host, &(tn_comm_job){.kind = kind, .in = n, .out = heard});
}

static int broadcast(tn_comm *c, void *data, size_t bytes)
{
    return c->begin(c, &(tn_comm_job){.kind = TN_COMM_BROADCAST, .out = data, .n = bytes, .size = 1});
}

/* Meets the others. 0, or the error of a rank that has failed. *differs, where it is asked for: the first
 * rank that says otherwise than rank 0, or -1. */
static int meet(tn_session *s, note mine, int *differs)
{
    struct tn_ranks *r = s->ranks;
    if (send(r, &mine, r->heard)) return lost(s);
    if (differs) *differs = -1;
    for (int i = 0; i < r->comm->size; i++) {
        const note *n = &r->heard[i];
        if (n->status) return fail(s, n->status, "rank %d: %.450s", i, n->text);
        if (n->kind == NOTE_CLOSE && mine.kind != NOTE_CLOSE)
            return fail(s, TN_E_COMM, "rank %d has closed its session, rank %d is in step %llu", i,
                        tn_rank(s), (unsigned long long)mine.step);
    }
    for (int i = 1; i < r->comm->size && differs; i++)
        if (*differs < 0 && (r->heard[i].kind != r->heard->kind || r->heard[i].digest != r->heard->digest))
            *differs = i;
    return TN_OK;
}

void tn_ranks_tell(tn_session *s)
{
    if (!s->ranks) return;
    if (!s->graph.error.status) { /* none any more */
        s->ranks->told = false;
        return;
    }
    const note n = note_of(s, NOTE_DONE, 0, s->graph.error.status);
    if (!s->ranks->told && !s->ranks->lost) send(s->ranks, &n, NULL);
    s->ranks->told = true;
}

void tn_ranks_close(tn_session *s)
{
    struct tn_ranks *r = s->ranks;
    if (!r) return;
    const note n = note_of(s, NOTE_CLOSE, 0, TN_OK);
    if (!s->graph.error.status && !r->lost) /* they end together, as their programs do */
        send(r, &n, r->heard);
    else
        tn_ranks_tell(s);
    if (r->comm != r->host) r->comm->close(r->comm);
    r->host->close(r->host);
    free_ranks(r);
    s->ranks = NULL;
}

/* ---- whether all have recorded the same ---- */

/* A line for each call: its name and place, and of what is done together how much that is. */
typedef struct listing {
    tn_growing text;
    const tn_call *call;
} listing;

/* Such as masks and states of optimizers, which are made once: a rank whose error has ended an earlier step makes
 * them later than the others, and it is the same step all the same. */
static bool made_of_nothing(const tn_tensor *n)
{
    if (!n->n_in) return true;
    while (n->n_in == 1) n = n->in[0];
    return tn_kind_of(n) == TN_KIND_NUMBER;
}

static void list_node(listing *l, const tn_tensor *n)
{
    char at[200];
    if (!n->call || made_of_nothing(n)) return;
    if (n->call != l->call) tn_put(&l->text, "%s\n", tn_node_where(n, at, sizeof at));
    l->call = n->call;
    if (tn_kind_of(n) != TN_KIND_RANKS) return;
    const tn_together how = tn_together_of(n);
    tn_put(&l->text, "the %s of %lld %s in %s\n",
           how == TN_MEAN      ? "mean"
           : how == TN_SCATTER ? "scattered mean"
                               : "gathering",
           (long long)tn_node_numel(how == TN_SCATTER ? n->in[0] : n), tn_dtype_name(n->dtype),
           tn_node_where(n, at, sizeof at));
}

/* In a step all of its calls so far, whatever reads have run of them already; else those of the run. */
static void list_calls(const tn_session *s, const tn_flush_scratch *f, const tn_plan *p, listing *l)
{
    uint32_t end = 0;
    for (int i = 0; i < f->node.n; i++)
        if (tn_kind_of(f->node.at[i]) == TN_KIND_RANKS) end = f->node.at[i]->id + 1;
    for (uint32_t i = 0; i < end && s->in_step; i++) list_node(l, s->graph.nodes[i]);
    for (int i = 0; i < f->node.n && !s->in_step; i++) list_node(l, f->node.at[i]);
    for (int i = 0; p && i < p->n_begin; i++) /* machines unlike each other may plan another order */
        tn_put(&l->text, "%lld numbers from %lld on, %s\n", (long long)p->begin[i].n,
               (long long)p->begin[i].first, p->step[p->begin[i].step].name);
}

/* The line at *at, which moves on; an end is an empty one. */
static void next_line(const char **at, char *out, size_t size)
{
    const size_t n = strcspn(*at, "\n");
    snprintf(out, size, "%.*s", (int)n, *at);
    *at += n + (*at)[n] / '\n';
}

/* All ranks find out together where rank `who` left the way of rank 0. */
static int tell_difference(tn_session *s, const char *mine, int who, const char *what)
{
    struct tn_ranks *r = s->ranks;
    note n = note_of(s, NOTE_CALL, strlen(mine) + 1, TN_OK);
    int status = meet(s, n, NULL);
    if (status) return status;
    const size_t bytes = r->heard->digest;
    char *theirs = tn_malloc(bytes), one[160] = "", two[160] = "";
    if (!theirs) return tn_fail_memory(s);
    if (!tn_rank(s)) memcpy(theirs, mine, bytes);
    if (broadcast(r->host, theirs, bytes) || r->host->wait(r->host)) {
        tn_free_mem(theirs);
        return lost(s);
    }
    const char *a = theirs, *b = mine;
    n.digest = 0;
    do {
        next_line(&a, one, sizeof one);
        next_line(&b, two, sizeof two);
        n.digest++;
    } while (!strcmp(one, two) && *one);
    snprintf(n.text, sizeof n.text, "rank %d %s %llu is %s, on rank 0 %s", who, what,
             (unsigned long long)n.digest, *two ? two : "none", *one ? one : "none");
    tn_free_mem(theirs);
    status = meet(s, n, NULL);
    return status ? status : fail(s, TN_E_COMM, "%s", r->heard[who].text);
}

int tn_ranks_begin(tn_session *s, const tn_flush_scratch *f, tn_plan *p, int status)
{
    uint64_t none = 0, *digest = p ? &p->digest : &none;
    listing l = {{0}, NULL};
    int who = -1;
    if (!status && !s->in_step) status = tn_ranks_equal(s);
    if (s->ranks->told && status) return status;
    if (!*digest && !status) {
        list_calls(s, f, p, &l);
        *digest = tn_hash_bytes(l.text.p ? l.text.p : "", l.text.n) | 1;
    }
    const int met = meet(s, note_of(s, NOTE_RUN, *digest, status), &who);
    if (!met && who >= 0) {
        if (!l.text.p) list_calls(s, f, p, &l);
        status =
            tell_difference(s, l.text.p ? l.text.p : "", who, "has recorded another step than rank 0: call");
    } else if (!status)
        status = met;
    tn_growing_free(&l.text);
    return status;
}

int tn_same_on_ranks(tn_session *s, const char *op, const char *text)
{
    char what[120];
    int who = -1, status = s ? s->graph.error.status : TN_E_NULL;
    if (status || !s->ranks) return status;
    status = meet(s, note_of(s, NOTE_SAME, tn_hash_bytes(text, strlen(text)), TN_OK), &who);
    if (status || who < 0) return status;
    snprintf(what, sizeof what, "has another %.40s than rank 0: line", op);
    return tell_difference(s, text, who, what);
}

/* ---- together ---- */

int64_t tn_rank_share(const tn_session *s, int64_t lines, int64_t *first)
{
    const int64_t ranks = tn_ranks(s), rank = tn_rank(s), low = lines * rank / ranks;
    if (first) *first = low;
    return lines * (rank + 1) / ranks - low;
}

/* Where in the part each rank's lines begin, in units of `unit` bytes or elements. */
static const size_t *cut_of(struct tn_ranks *r, const tn_part *p, size_t unit)
{
    const int64_t ranks = r->comm->size, line = p->lines ? p->all / p->lines : 0;
    for (int64_t i = 0; i <= ranks; i++) {
        const int64_t at = p->lines * i / ranks * line - p->first;
        r->cut[i] = (size_t)(at < 0 ? 0 : at < p->n ? at : p->n) * unit;
    }
    return r->cut;
}

int tn_ranks_start(tn_session *s, const tn_part *p, const void *in, void *out)
{
    static const tn_comm_op kind[] = {
        [TN_MEAN] = TN_COMM_MEAN, [TN_SCATTER] = TN_COMM_SCATTER, [TN_GATHER] = TN_COMM_GATHER};
    tn_comm *c = s->ranks->comm;
    int64_t own;
    tn_rank_share(s, p->lines, &own);
    own = p->lines ? p->first - own * (p->all / p->lines) : 0;
    const bool gather = p->how == TN_GATHER;
    const size_t at = (size_t)p->first * p->size, mine = own > 0 ? (size_t)own * p->size : 0;
    tn_comm_job job = {.kind = kind[p->how],
                       .in = (const char *)in + (gather ? mine : at),
                       .out = (char *)out + (p->how == TN_SCATTER ? mine : at),
                       .n = (size_t)p->n * (gather ? p->size : 1),
                       .size = gather ? 1 : p->size};
    if (p->how != TN_MEAN) job.cut = cut_of(s->ranks, p, gather ? p->size : 1);
    return c->begin(c, &job) ? lost(s) : TN_OK;
}

int tn_ranks_wait(tn_session *s) { return s->ranks->comm->wait(s->ranks->comm) ? lost(s) : TN_OK; }

void tn_ranks_miss(tn_session *s, const tn_part *p)
{
    char *zero = s->ranks->lost || s->ranks->comm->merges ? NULL : tn_calloc(2 * (size_t)p->all, p->size);
    if (zero && !tn_ranks_start(s, p, zero, zero + (size_t)p->all * p->size))
        tn_ranks_wait(s);
    else
        s->ranks->lost = true; /* the others will find this rank silent */
    tn_free_mem(zero);
}

/* A device that runs later finds out there, and its kernels behind it do nothing: the host does not wait. */
static int merge_faults(tn_session *s, int status)
{
    tn_comm *c = s->ranks->comm;
    if (status) s->ranks->lost = true; /* the others find this rank silent */
    if (status) return status;
    return c->begin(c, &(tn_comm_job){.kind = TN_COMM_MERGE, .out = s->device->fault_word}) || c->wait(c)
               ? lost(s)
               : TN_OK;
}

int tn_ranks_agree(tn_session *s, int status)
{
    if (s->ranks->lost) return status ? status : TN_E_COMM;
    if (s->ranks->told && status) return status; /* all know */
    if (s->ranks->comm->merges) return merge_faults(s, status);
    const int met = meet(s, note_of(s, NOTE_DONE, 0, status), NULL);
    s->ranks->told = s->graph.error.status != TN_OK;
    return status ? status : met;
}

/* ---- equal ---- */

static void list_parameters(const tn_session *s, tn_growing *t)
{
    for (int i = 0; i < s->n_params + s->n_buffers; i++) {
        const tn_tensor *p = i < s->n_params ? s->params[i] : s->buffers[i - s->n_params];
        tn_put(t, "%s %s %s\n", p->name ? p->name : "", tn_dtype_name(p->dtype),
               TN_SHAPE_TEXT(p->ndim, p->shape));
    }
}

void tn_ranks_part(tn_session *s)
{
    if (s->ranks && s->ranks->equal) s->ranks->equal = -1;
}

int tn_ranks_equal(tn_session *s)
{
    struct tn_ranks *r = s->ranks;
    const int now = s->n_params + s->n_buffers;
    if (!r || r->equal == now || s->graph.error.status) return s->graph.error.status;
    tn_growing t = {0};
    int who, status;
    list_parameters(s, &t);
    status = t.failed ? tn_fail_memory(s)
                      : meet(s, note_of(s, NOTE_EQUAL, tn_hash_bytes(t.p ? t.p : "", t.n), TN_OK), &who);
    if (!status && who >= 0)
        status = tell_difference(s, t.p ? t.p : "", who, "has other parameters than rank 0: number");
    tn_growing_free(&t);
    bool fine = true;
    for (int d = 0; d < TN_DTYPE_COUNT && !status; d++) {
        tn_slab *b = &s->slab[d];
        const size_t bytes = (size_t)b->count * tn_elem_size(&s->graph, (tn_dtype)d);
        if (bytes) fine = fine && !broadcast(r->comm, b->value_base, bytes);
    }
    for (int i = 0; i < s->n_buffers && !status; i++) {
        const tn_tensor *b = s->buffers[i];
        const size_t bytes = (size_t)tn_node_numel(b) * tn_elem_size(&s->graph, b->dtype);
        if (bytes) fine = fine && !broadcast(r->comm, tn_node_data(b), bytes);
    }
    if (!status && (!fine || r->comm->wait(r->comm))) status = lost(s);
    if (!status) r->equal = now;
    return status;
}
