/* shared.c - ranks of one host, by memory that MPI has them share (MPI_Win_allocate_shared).
 *
 * No thread and no message: what was begun goes on when the program calls, as far as the others have come,
 * and only `wait` waits. So nothing is taken from what computes but the copying itself.
 *
 * All that is begun is cut into chunks, which have the same numbers on all ranks. A rank does three things
 * with each, in order, and counts each where the others see it:
 *
 *     put    its numbers, as far as others need them, into its slot for the chunk
 *     add    its piece of all ranks' numbers, in the order of ranks: the mean goes out, and into the slot
 *     take   the others' pieces from their slots
 *
 * A chunk is added when all ranks have put it, taken when all have added it (or put it, where nothing is
 * added), and its slot is free for the one SLOTS behind it when all have taken it.
 *
 * Read first: advance. */
#include "plugin.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { CHUNK = 1 << 17, SLOTS = 16, LINE = 64 }; /* bytes; of a cache line, to which pieces are rounded */
enum { SPINS = 2000, YIELDS = 4000 }; /* looks in a row, those that give way, and then short sleeps */

typedef enum stage { PUT, ADD, TAKE, STAGES } stage;

/* A rank's own part of the memory. */
typedef struct part {
    struct {
        _Alignas(2 * LINE) atomic_uint_fast64_t n; /* chunks, since the memory is there */
    } done[STAGES];
    struct {
        _Alignas(2 * LINE) char given[CHUNK], mean[CHUNK];
    } slot[SLOTS];
} part;

typedef struct shared {
    door d;
    part **part; /* of each rank */
    const void **piece;
    int *silent;
    struct {
        job *at;
        size_t first; /* element the next chunk begins with */
        uint64_t chunk;
    } stage[STAGES];
    bool failed;
} shared;

/* One memory for a process, of one session at a time: another one does with messages. */
static struct {
    MPI_Win win;
    bool made, never, used;
    int64_t chunk; /* the next; -1: the ranks have parted within one */
} memory;

/* ---- a chunk ---- */

static void *slot(const shared *m, int rank, uint64_t chunk, bool mean)
{
    part *p = m->part[rank];
    return mean ? p->slot[chunk % SLOTS].mean : p->slot[chunk % SLOTS].given;
}

static size_t chunk_of(const job *j, size_t first)
{
    const size_t most = CHUNK / j->is.size;
    return j->is.n - first < most ? j->is.n - first : most;
}

/* Of the n elements from `first` on those that are the rank's, from *low on; both counted from `first`. */
static size_t own(const shared *m, const job *j, size_t first, size_t n, int rank, size_t *low)
{
    const size_t ranks = (size_t)m->d.c.size, r = (size_t)rank, line = LINE / j->is.size;
    const size_t each = ((n + ranks - 1) / ranks + line - 1) / line * line;
    size_t from = j->is.cut ? j->is.cut[r] : first + r * each,
           to = j->is.cut ? j->is.cut[r + 1] : from + each;
    from = from < first ? 0 : from - first < n ? from - first : n;
    to = to < first ? 0 : to - first < n ? to - first : n;
    *low = from;
    return to - from;
}

/* Where the own piece of a scatter is in out[], or of a gather in in[], which begin with cut[rank]. */
static size_t inside(const shared *m, const job *j, size_t first, size_t low)
{
    return first + low - j->is.cut[m->d.c.rank];
}

static void put(const shared *m, const job *j, size_t first, uint64_t chunk)
{
    const size_t n = chunk_of(j, first), size = j->is.size;
    char *to = slot(m, m->d.c.rank, chunk, false);
    const char *in = (const char *)j->is.in + first * size;
    size_t low, mine = own(m, j, first, n, m->d.c.rank, &low);
    switch (j->is.kind) {
    case TN_COMM_MEAN:
    case TN_COMM_SCATTER: /* but what is added here */
        memcpy(to, in, low * size);
        memcpy(to + (low + mine) * size, in + (low + mine) * size, (n - low - mine) * size);
        break;
    case TN_COMM_GATHER:
        if (mine)
            memcpy(to + low * size, (const char *)j->is.in + inside(m, j, first, low) * size, mine * size);
        break;
    case TN_COMM_BROADCAST:
        if (!m->d.c.rank) memcpy(to, (const char *)j->is.out + first * size, n * size);
        break;
    default: memcpy(to, &j->note, sizeof j->note);
    }
}

static void add(const shared *m, const job *j, size_t first, uint64_t chunk)
{
    const bool mean = j->is.kind == TN_COMM_MEAN;
    const size_t n = chunk_of(j, first), size = j->is.size;
    size_t low, mine = own(m, j, first, n, m->d.c.rank, &low);
    if ((!mean && j->is.kind != TN_COMM_SCATTER) || !mine) return;
    for (int r = 0; r < m->d.c.size; r++)
        m->piece[r] = r == m->d.c.rank ? (const char *)j->is.in + (first + low) * size
                                       : (const char *)slot(m, r, chunk, false) + low * size;
    char *out = (char *)j->is.out + (mean ? first + low : inside(m, j, first, low)) * size;
    char *copy = mean ? (char *)slot(m, m->d.c.rank, chunk, true) + low * size : NULL;
    tn_mpi_add(out, copy, m->piece, mine, m->d.c.size, j->is.size == sizeof(double));
}

static void take(const shared *m, const job *j, size_t first, uint64_t chunk)
{
    const size_t n = chunk_of(j, first), size = j->is.size;
    char *out = (char *)j->is.out + first * size;
    for (int r = 0; r < m->d.c.size; r++) {
        const bool self = r == m->d.c.rank;
        const char *from = slot(m, r, chunk, j->is.kind == TN_COMM_MEAN);
        size_t low, theirs = own(m, j, first, n, r, &low);
        switch (j->is.kind) {
        case TN_COMM_MEAN:
            if (!self) memcpy(out + low * size, from + low * size, theirs * size);
            break;
        case TN_COMM_GATHER: memcpy(out + low * size, from + low * size, theirs * size); break;
        case TN_COMM_BROADCAST:
            if (!r && !self) memcpy(out, from, n * size);
            break;
        case TN_COMM_EXCHANGE:
        case TN_COMM_TELL:
            if (j->is.out) memcpy((tn_comm_note *)j->is.out + r, from, sizeof(tn_comm_note));
            break;
        default: break;
        }
    }
}

/* ---- the queue ---- */

/* Whether a rank may take `chunk` through stage s, as far as the others have come. What is not added is there
 * to be taken when all have put it, who may leave then. */
static bool may(const shared *m, stage s, tn_comm_op kind, uint64_t chunk)
{
    const stage behind = s == PUT ? TAKE : s == TAKE && kind == TN_COMM_MEAN ? ADD : PUT;
    for (int r = 0; r < m->d.c.size; r++)
        if (atomic_load_explicit(&m->part[r]->done[behind].n, memory_order_acquire) +
                (s == PUT ? SLOTS : 0) <=
            chunk)
            return false;
    return true;
}

static void leave(shared *m, job *j)
{
    if (++j->gone < STAGES) return;
    m->d.queue = j->next; /* they end in the order in which they began */
    if (!m->d.queue) m->d.last = &m->d.queue;
    free(j);
}

/* One chunk through one stage; false: there is none, or not yet. */
static bool go(shared *m, stage s)
{
    static void (*const does[])(const shared *, const job *, size_t, uint64_t) = {put, add, take};
    job *j = m->stage[s].at;
    if (!j || !may(m, s, j->is.kind, m->stage[s].chunk)) return false;
    if (s == TAKE && m->stage[ADD].chunk <= m->stage[s].chunk) return false; /* it reads the others' slots */
    does[s](m, j, m->stage[s].first, m->stage[s].chunk);
    m->stage[s].first += chunk_of(j, m->stage[s].first);
    atomic_store_explicit(&m->part[m->d.c.rank]->done[s].n, ++m->stage[s].chunk, memory_order_release);
    if (m->stage[s].first < j->is.n) return true;
    m->stage[s].at = j->next;
    m->stage[s].first = 0;
    leave(m, j);
    return true;
}

/* As far as it goes without waiting. */
static bool advance(shared *m)
{
    bool any = false;
    for (bool moved = true; moved; any = any || moved) {
        moved = false;
        for (stage s = PUT; s < STAGES; s++) moved = go(m, s) || moved;
    }
    return any;
}

/* This rank waits to take a chunk: those are silent that could bring it on, and do not. */
static int fail(shared *m)
{
    const uint64_t wanted = m->stage[TAKE].chunk;
    for (int r = 0; r < m->d.c.size; r++) {
        m->silent[r] = false;
        for (stage s = PUT; s < STAGES; s++) {
            const uint64_t next = atomic_load(&m->part[r]->done[s].n);
            m->silent[r] = m->silent[r] || (next <= wanted && may(m, s, m->d.queue->is.kind, next));
        }
    }
    tn_mpi_silent(m->d.c.why, m->silent, m->d.c.size, m->d.timeout);
    m->failed = tn_mpi_broken = true;
    return -1;
}

static void pause_after(int looks)
{
    if (looks < SPINS) return;
    if (looks < YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, 20000}, NULL);
}

/* ---- the door ---- */

static int wait_for_all(tn_comm *c)
{
    shared *m = (shared *)c;
    double since = 0;
    for (int looks = 0; m->d.queue && !m->failed;) {
        if (advance(m)) {
            looks = 0;
            continue;
        }
        if (looks < YIELDS) looks++;
        if (looks == SPINS) since = tn_mpi_seconds();
        if (looks >= SPINS && tn_mpi_seconds() - since > m->d.timeout) fail(m);
        pause_after(looks);
    }
    return m->failed ? -1 : 0;
}

static int enter(door *d, job *j)
{
    shared *m = (shared *)d;
    if (m->failed) {
        free(j);
        return -1;
    }
    *d->last = j;
    d->last = &j->next;
    for (stage s = PUT; s < STAGES; s++)
        if (!m->stage[s].at) m->stage[s].at = j;
    advance(m);
    return 0;
}

static void free_shared(shared *m)
{
    if (!m) return;
    free(m->part);
    free(m->piece);
    free(m->silent);
    free(m);
}

static void close_comm(tn_comm *c)
{
    shared *m = (shared *)c;
    memory.used = false;
    memory.chunk = m->failed || m->d.queue ? -1 : (int64_t)m->stage[PUT].chunk;
    for (job *j = m->d.queue, *next; j; j = next) {
        next = j->next;
        free(j);
    }
    free_shared(m);
}

/* ---- the memory ---- */

static bool all_have(MPI_Comm world, bool mine)
{
    int have = mine, all = 0;
    return !MPI_Allreduce(&have, &all, 1, MPI_INT, MPI_LAND, world) && all;
}

/* Once in a process: MPI_ERRORS_RETURN is the communicator's. */
static bool make_memory(MPI_Comm world)
{
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Info apart = MPI_INFO_NULL;
    part *mine = NULL;
    int size = 0, here = 0, *model = NULL, known = 0;
    MPI_Comm_size(world, &size);
    bool made = !MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) &&
                !MPI_Comm_size(host, &here) && here == size;
    if (host != MPI_COMM_NULL) MPI_Comm_free(&host);
    if (!all_have(world, made)) return false;
    MPI_Info_create(&apart);
    MPI_Info_set(apart, "alloc_shared_noncontig", "true"); /* each rank's on pages of its own */
    made = !MPI_Win_allocate_shared(sizeof *mine, 1, apart, world, (void *)&mine, &memory.win);
    MPI_Info_free(&apart);
    if (!all_have(world, made)) return false;
    made = !MPI_Win_get_attr(memory.win, MPI_WIN_MODEL, (void *)&model, &known) && known &&
           *model == MPI_WIN_UNIFIED;
    for (stage s = PUT; s < STAGES; s++) atomic_init(&mine->done[s].n, 0);
    return all_have(world, made); /* and all have begun with 0 */
}

void tn_shared_finalize(void)
{
    if (memory.made) MPI_Win_free(&memory.win);
    memory.made = false;
}

tn_comm *tn_shared_open(MPI_Comm world, double timeout)
{
    int64_t at[2] = {memory.used ? -1 : memory.chunk, memory.used ? 1 : -memory.chunk}, least[2] = {0, 0};
    int size = 0;
    MPI_Comm_size(world, &size);
    if (size == 1) return NULL;
    if (!memory.made && !memory.never) memory.made = make_memory(world);
    memory.never = !memory.made;
    if (memory.never || MPI_Allreduce(at, least, 2, MPI_INT64_T, MPI_MIN, world)) return NULL;
    shared *m = calloc(1, sizeof *m);
    if (m) {
        tn_mpi_door(&m->d, world, timeout, enter);
        m->part = calloc((size_t)m->d.c.size, sizeof(*m->part));
        m->piece = calloc((size_t)m->d.c.size, sizeof(*m->piece));
        m->silent = calloc((size_t)m->d.c.size, sizeof(*m->silent));
    }
    bool fine = m && m->part && m->piece && m->silent && least[0] >= 0 && least[0] == -least[1];
    for (int r = 0; fine && r < m->d.c.size; r++) {
        MPI_Aint bytes;
        int unit;
        fine = !MPI_Win_shared_query(memory.win, r, &bytes, &unit, (void *)&m->part[r]);
    }
    if (!all_have(world, fine)) {
        free_shared(m);
        return NULL;
    }
    memory.used = true;
    for (stage s = PUT; s < STAGES; s++) m->stage[s].chunk = (uint64_t)memory.chunk;
    m->d.c.wait = wait_for_all;
    m->d.c.close = close_comm;
    return &m->d.c;
}
