/* messages.c - ranks by messages of MPI, for those on several hosts.
 *
 * A thread of its own makes all calls of MPI once it has been initialised (MPI_THREAD_SERIALIZED is enough),
 * so that what was begun goes on while the program computes. It works through a queue, one job after the
 * other, and looks again and again whether MPI is done: so a rank that is dead or silent is found, and named.
 *
 * A mean is an all-to-all, by which each rank gets its piece of all ranks' values, their sum in the order of
 * ranks, and an all-gather: twice the traffic of the values, as in a ring, and the same bits whatever
 * algorithm MPI takes, and whoever gets which piece (scatter).
 *
 * Read first: work, then run_pieces. */
#include "plugin.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TAG = 1, CHUNK = 1 << 22, MOST_BYTES = 1 << 28 };

typedef struct mpi {
    door d;
    MPI_Comm world;
    bool
        alone; /* nobody else may call MPI meanwhile, and the program does: every job is waited for at once */
    int owed;  /* exchanges in which this rank has spoken and not listened */
    char *piece;                   /* scratch of CHUNK elements for the pieces of all ranks */
    const void **from;             /* each of them */
    int *count, *first, *got, *at; /* of each rank */
    MPI_Request *request;
    tn_comm_note *heard;
    atomic_bool waited; /* the program has nothing else to do by now: every look counts, and costs nobody */
    bool ending;
    bool failed; /* for good */
    char trouble[TN_COMM_WHY];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less;
} mpi;

/* ---- the thread ---- */

static int fail(mpi *m, const char *why)
{
    if (!m->failed) snprintf(m->trouble, sizeof m->trouble, "%s", why);
    m->failed = tn_mpi_broken = true;
    return -1;
}

static int fail_mpi(mpi *m, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "", why[TN_COMM_WHY];
    int n = 0;
    MPI_Error_string(code, text, &n);
    snprintf(why, sizeof why, "%s: %.300s", what, text);
    return fail(m, why);
}

/* A short while between two looks, and longer ones by and by, if the program computes meanwhile. */
static void pause_for(const mpi *m, double since)
{
    if (atomic_load(&m->waited)) {
        sched_yield();
        return;
    }
    const double waited = tn_mpi_seconds() - since;
    struct timespec t = {0, waited < 1e-3 ? 5000 : waited < 1e-2 ? 50000 : 200000};
    if (waited < 5e-5) return;
    nanosleep(&t, NULL);
}

#if defined(__GNUC__) &&                                                                                     \
    !defined(__clang__) /* takes the address that MPICH has for no statuses for an array of none */
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#endif
/* Waits for n requests, up to the timeout: 0, or the index of one that is not done + 1, or -1. */
static int await(mpi *m, int n, MPI_Request *r, double timeout)
{
    const double start = tn_mpi_seconds();
    for (int done = 0;;) {
        pthread_mutex_lock(&tn_mpi_caller);
        int code = MPI_Testall(n, r, &done, MPI_STATUSES_IGNORE), late = -1;
        const bool over = !done && tn_mpi_seconds() - start > timeout;
        for (int i = 0, one = 0; over && !code && i < n; i++) {
            code = MPI_Test(&r[i], &one, MPI_STATUS_IGNORE);
            if (!one && late < 0) late = i;
        }
        pthread_mutex_unlock(&tn_mpi_caller);
        if (code) return fail_mpi(m, "a rank cannot be reached", code);
        if (done) return 0;
        if (late >= 0) return late + 1;
        pause_for(m, start);
    }
}

/* A call that begins something, and its end. */
static int finish(mpi *m, int code, MPI_Request *r)
{
    char why[TN_COMM_WHY];
    pthread_mutex_unlock(&tn_mpi_caller);
    if (code) return fail_mpi(m, "a rank cannot be reached", code);
    const int left = await(m, 1, r, m->d.timeout);
    if (left <= 0) return left;
    snprintf(why, sizeof why, "a rank has fallen silent for %ld s (TENSOR_COMM_TIMEOUT)",
             tn_mpi_limit(m->d.timeout));
    return fail(m, why);
}

/* Which of the n elements from `from` on are whose. */
static void divide(mpi *m, const job *j, size_t from, size_t n)
{
    const size_t ranks = (size_t)m->d.c.size, each = (n + ranks - 1) / ranks;
    for (size_t r = 0; r < ranks; r++) {
        size_t low = j->is.cut ? j->is.cut[r] : from + r * each,
               high = j->is.cut ? j->is.cut[r + 1] : low + each;
        low = low < from ? 0 : low - from < n ? low - from : n;
        high = high < from ? 0 : high - from < n ? high - from : n;
        m->first[r] = (int)low;
        m->count[r] = (int)(high - low);
    }
    for (int r = 0; r < m->d.c.size; r++) {
        m->got[r] = m->count[m->d.c.rank];
        m->at[r] = r * m->got[r];
    }
}

/* This rank's piece of the mean goes to `out`. */
static int add_pieces(mpi *m, bool wide, const void *in, void *out)
{
    const MPI_Datatype type = wide ? MPI_DOUBLE : MPI_FLOAT;
    const size_t mine = (size_t)m->got[0], size = wide ? sizeof(double) : sizeof(float);
    pthread_mutex_lock(&tn_mpi_caller);
    const int code =
        MPI_Ialltoallv(in, m->count, m->first, type, m->piece, m->got, m->at, type, m->world, m->request);
    const int status = finish(m, code, m->request);
    if (status) return status;
    for (int r = 0; r < m->d.c.size; r++) m->from[r] = m->piece + (size_t)m->at[r] * size;
    tn_mpi_add(out, NULL, m->from, mine, m->d.c.size, wide);
    return 0;
}

/* Each rank's piece is in its place in `out`, and comes to all. */
static int hand_out(mpi *m, MPI_Datatype type, void *out)
{
    pthread_mutex_lock(&tn_mpi_caller);
    const int code =
        MPI_Iallgatherv(MPI_IN_PLACE, 0, type, out, m->count, m->first, type, m->world, m->request);
    return finish(m, code, m->request);
}

/* A mean, or a scatter or gather: this rank's own piece then lies from cut[rank] on, at the beginning of
 * `out` or `in`. */
static int run_pieces(mpi *m, const job *j)
{
    const bool gather = j->is.kind == TN_COMM_GATHER, mean = j->is.kind == TN_COMM_MEAN;
    const size_t size = j->is.size;
    const MPI_Datatype type = gather ? MPI_BYTE : size == sizeof(double) ? MPI_DOUBLE : MPI_FLOAT;
    int status = 0;
    for (size_t from = 0; from < j->is.n && !status; from += CHUNK) {
        const size_t n = j->is.n - from < CHUNK ? j->is.n - from : CHUNK;
        const char *in = (const char *)j->is.in + (gather ? 0 : from * size);
        char *out = (char *)j->is.out + (j->is.kind == TN_COMM_SCATTER ? 0 : from * size);
        divide(m, j, from, n);
        const size_t own = (size_t)m->first[m->d.c.rank], mine = (size_t)m->count[m->d.c.rank],
                     at = j->is.cut && mine ? from + own - j->is.cut[m->d.c.rank] : 0;
        if (gather && mine) memcpy(out + own, in + at, mine);
        if (!gather) status = add_pieces(m, size == sizeof(double), in, out + (mean ? own : at) * size);
        if (!status && j->is.kind != TN_COMM_SCATTER) status = hand_out(m, type, out);
    }
    return status;
}

static int run_broadcast(mpi *m, const job *j)
{
    int status = 0;
    for (size_t from = 0; from < j->is.n && !status; from += MOST_BYTES) {
        const size_t n = j->is.n - from < MOST_BYTES ? j->is.n - from : MOST_BYTES;
        pthread_mutex_lock(&tn_mpi_caller);
        const int code = MPI_Ibcast((char *)j->is.out + from, (int)n, MPI_BYTE, 0, m->world, m->request);
        status = finish(m, code, m->request);
    }
    return status;
}

/* To each other rank; requests 0 to n - 1, the own one none. */
static int send_notes(mpi *m, const tn_comm_note *note)
{
    int code = 0;
    for (int r = 0; r < m->d.c.size; r++) {
        m->request[r] = MPI_REQUEST_NULL;
        if (r != m->d.c.rank && !code)
            code = MPI_Isend(note, TN_COMM_NOTE, MPI_BYTE, r, TAG, m->world, &m->request[r]);
    }
    return code;
}

/* Those whose note has not come by now. */
static int name_silent(mpi *m, int rounds)
{
    char why[TN_COMM_WHY];
    for (int r = 0; r < m->d.c.size; r++) {
        m->count[r] = 0;
        for (int k = 1; k <= rounds; k++)
            m->count[r] = m->count[r] || m->request[k * m->d.c.size + r] != MPI_REQUEST_NULL;
    }
    tn_mpi_silent(why, m->count, m->d.c.size, m->d.timeout);
    return fail(m, why);
}

static int run_exchange(mpi *m, const job *j)
{
    const int n = m->d.c.size, rounds = m->owed + 1;
    tn_comm_note *all = j->is.out;
    MPI_Request *r = realloc(m->request, (size_t)((rounds + 1) * n) * sizeof *r);
    if (!r) return fail(m, "no memory");
    m->request = r;
    tn_comm_note *heard = realloc(m->heard, (size_t)(rounds * n) * sizeof *heard);
    if (!heard) return fail(m, "no memory");
    m->heard = heard;
    pthread_mutex_lock(&tn_mpi_caller);
    int code = send_notes(m, &j->note);
    for (int k = 0; k < rounds; k++)
        for (int i = 0; i < n; i++) {
            const int at = (k + 1) * n + i;
            r[at] = MPI_REQUEST_NULL;
            if (i != m->d.c.rank && !code)
                code = MPI_Irecv(&heard[k * n + i], TN_COMM_NOTE, MPI_BYTE, i, TAG, m->world, &r[at]);
        }
    pthread_mutex_unlock(&tn_mpi_caller);
    if (code) return fail_mpi(m, "a rank cannot be reached", code);
    m->owed = 0;
    const int left = await(m, (rounds + 1) * n, r, m->d.timeout);
    if (left < 0) return left;
    if (left) return name_silent(m, rounds);
    memcpy(all, &heard[(rounds - 1) * n], (size_t)n * sizeof *all);
    all[m->d.c.rank] = j->note;
    return 0;
}

/* Small notes are on their way at once; one that is not goes with the process. */
static int run_tell(mpi *m, const job *j)
{
    tn_comm_note *kept = malloc(sizeof *kept);
    if (!kept) return fail(m, "no memory");
    *kept = j->note;
    pthread_mutex_lock(&tn_mpi_caller);
    const int code = send_notes(m, kept);
    pthread_mutex_unlock(&tn_mpi_caller);
    m->owed++;
    if (code) return fail_mpi(m, "a rank cannot be reached", code);
    if (!await(m, m->d.c.size, m->request, 1)) free(kept);
    return 0;
}

static int (*const run[])(mpi *m, const job *j) = {
    [TN_COMM_MEAN] = run_pieces,         [TN_COMM_SCATTER] = run_pieces,    [TN_COMM_GATHER] = run_pieces,
    [TN_COMM_BROADCAST] = run_broadcast, [TN_COMM_EXCHANGE] = run_exchange, [TN_COMM_TELL] = run_tell};

static void *work(void *arg)
{
    mpi *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->d.queue && !m->ending) pthread_cond_wait(&m->more, &m->lock);
        job *j = m->d.queue;
        if (!j) break;
        pthread_mutex_unlock(&m->lock);
        if (!m->failed) run[j->is.kind](m, j);
        pthread_mutex_lock(&m->lock);
        m->d.queue = j->next;
        if (!m->d.queue) m->d.last = &m->d.queue;
        pthread_cond_signal(&m->less);
        free(j);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- the door ---- */

static int wait_for_all(tn_comm *c)
{
    mpi *m = (mpi *)c;
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->waited, true);
    while (m->d.queue) pthread_cond_wait(&m->less, &m->lock);
    atomic_store(&m->waited, false);
    pthread_mutex_unlock(&m->lock);
    if (m->failed) memcpy(c->why, m->trouble, sizeof c->why);
    return m->failed ? -1 : 0;
}

static int enter(door *d, job *j)
{
    mpi *m = (mpi *)d;
    const bool at_once = m->alone || j->is.kind == TN_COMM_TELL;
    pthread_mutex_lock(&m->lock);
    *d->last = j;
    d->last = &j->next;
    pthread_cond_signal(&m->more);
    pthread_mutex_unlock(&m->lock);
    return at_once ? wait_for_all(&d->c) : 0;
}

static void destroy(mpi *m)
{
    free(m->piece);
    free(m->from);
    free(m->count);
    free(m->request);
    free(m->heard);
    free(m);
}

static void close_comm(tn_comm *c)
{
    mpi *m = (mpi *)c;
    pthread_mutex_lock(&m->lock);
    m->ending = true;
    pthread_cond_signal(&m->more);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->more);
    pthread_cond_destroy(&m->less);
    destroy(m);
}

static bool start_thread(mpi *m)
{
    sigset_t all, old;
    sigfillset(&all); /* the program's signals are for its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->more, NULL);
    pthread_cond_init(&m->less, NULL);
    const bool started = !pthread_create(&m->thread, NULL, work, m);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

tn_comm *tn_messages_open(MPI_Comm world, double timeout, bool alone)
{
    mpi *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    tn_mpi_door(&m->d, world, timeout, enter);
    const size_t ranks = (size_t)m->d.c.size;
    m->world = world;
    m->alone = alone;
    m->piece = malloc((CHUNK + 2 * ranks) * sizeof(double));
    m->from = malloc(ranks * sizeof *m->from);
    m->count = malloc(4 * ranks * sizeof *m->count);
    m->request = malloc(ranks * sizeof *m->request);
    m->d.c.wait = wait_for_all;
    m->d.c.close = close_comm;
    if (!m->piece || !m->from || !m->count || !m->request || !start_thread(m)) {
        destroy(m);
        return NULL;
    }
    m->first = m->count + ranks;
    m->got = m->first + ranks;
    m->at = m->got + ranks;
    return &m->d.c;
}
