/* mpi.c - the plugin libtensor_mpi.so, built by mpicc for the MPI of this machine, as no two MPIs share a
 * binary interface: how it begins and ends, and what the two ways to connect ranks have in common. Start with
 * tn_comm_entry. */
#include "plugin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

pthread_mutex_t tn_mpi_caller = PTHREAD_MUTEX_INITIALIZER;
bool tn_mpi_broken;
static bool ours; /* initialised here */

double tn_mpi_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

long tn_mpi_limit(double timeout) { return (long)(timeout + 0.999); }

void tn_mpi_silent(char *why, const int *silent, int ranks, double timeout)
{
    char who[100] = "";
    int n = 0, missing = 0;
    for (int r = 0; r < ranks; r++)
        if (silent[r] && missing++ < 8)
            n += snprintf(who + n, sizeof who - (size_t)n, "%s%d", n ? ", " : "", r);
    snprintf(why, TN_COMM_WHY, "rank %s%s ha%s said nothing for %ld s (TENSOR_COMM_TIMEOUT)", who,
             missing > 8 ? ", .." : "", missing > 1 ? "ve" : "s", tn_mpi_limit(timeout));
}

/* In loops that compilers make vectors of; a power of two divides as its inverse multiplies. */
#define ADD(type)                                                                                            \
    static void add_##type(type *out, type *copy, const void *const *piece, size_t n, int ranks)             \
    {                                                                                                        \
        enum { MOST = 1024 };                                                                                \
        const type *one = piece[0], *two = piece[1], by = 1 / (type)ranks, half = ranks == 2 ? by : 1;       \
        type sum[MOST];                                                                                      \
        for (size_t at = 0, k; at < n; at += k) {                                                            \
            k = n - at < MOST ? n - at : MOST;                                                               \
            for (size_t i = 0; i < k; i++) sum[i] = (one[at + i] + two[at + i]) * half;                      \
            for (int r = 2; r < ranks; r++)                                                                  \
                for (size_t i = 0; i < k; i++) sum[i] += ((const type *)piece[r])[at + i];                   \
            for (size_t i = 0; i < k && ranks > 2; i++)                                                      \
                sum[i] = ranks & (ranks - 1) ? sum[i] / (type)ranks : sum[i] * by;                           \
            memcpy(out + at, sum, k * sizeof *sum);                                                          \
            if (copy) memcpy(copy + at, sum, k * sizeof *sum);                                               \
        }                                                                                                    \
    }
ADD(float)
ADD(double)

void tn_mpi_add(void *out, void *copy, const void *const *piece, size_t n, int ranks, bool wide)
{
    if (wide)
        add_double(out, copy, piece, n, ranks);
    else
        add_float(out, copy, piece, n, ranks);
}

static int begin(tn_comm *c, const tn_comm_job *what)
{
    door *d = (door *)c;
    const bool note = what->kind >= TN_COMM_EXCHANGE;
    const size_t cut = what->cut ? ((size_t)c->size + 1) * sizeof *what->cut : 0;
    job *j = calloc(1, sizeof *j + cut);
    if (!j) {
        snprintf(c->why, sizeof c->why, "no memory");
        return -1;
    }
    j->is = *what;
    if (cut) j->is.cut = memcpy(j + 1, what->cut, cut);
    if (note) memcpy(&j->note, what->in, sizeof j->note);
    if (note) j->is.n = j->is.size = 1;
    const int status = d->enter(d, j);
    return status || what->kind != TN_COMM_EXCHANGE ? status : c->wait(c);
}

void tn_mpi_door(door *d, MPI_Comm world, double timeout, int (*enter)(door *, job *))
{
    MPI_Comm_rank(world, &d->c.rank);
    MPI_Comm_size(world, &d->c.size);
    d->timeout = timeout;
    d->last = &d->queue;
    d->enter = enter;
    d->c.begin = begin;
}

/* MPI begins once in a process and ends with it, as it could not begin again for another session. */
static void finalize(void)
{
    int over = 0;
    if (tn_mpi_broken || MPI_Finalized(&over) || over) return;
    tn_shared_finalize();
    MPI_Finalize();
}

/* Returns MPI's level of threads, -1 where it cannot be had. */
static int initialize(char *why)
{
    int there = 0, over = 0, level = -1;
    if (MPI_Finalized(&over) || over)
        snprintf(why, TN_COMM_WHY, "the program has ended MPI (MPI_Finalize)");
    else if (!MPI_Initialized(&there) && there)
        MPI_Query_thread(&level);
    else if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level))
        snprintf(why, TN_COMM_WHY, "MPI could not be initialised");
    else
        ours = !atexit(finalize);
    if (level < MPI_THREAD_SERIALIZED && !*why)
        snprintf(why, TN_COMM_WHY,
                 "MPI serves one thread alone here; MPI_Init_thread has to ask for MPI_THREAD_SERIALIZED");
    return *why ? -1 : level;
}

__attribute__((visibility("default"))) tn_comm *tn_comm_entry(int version, double timeout, char *why)
{
    char name[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
    int n = 0;
    *why = 0;
    if (version != TN_COMM_VERSION) {
        snprintf(why, TN_COMM_WHY, "libtensor_mpi.so is of another libtensor");
        return NULL;
    }
    MPI_Comm world = MPI_COMM_NULL;
    tn_comm *c = NULL;
    pthread_mutex_lock(&tn_mpi_caller);
    const int level = initialize(why);
    /* of its own, so that the program's messages and those of another session are not taken for ours */
    const int code = level < 0 ? 0 : MPI_Comm_dup(MPI_COMM_WORLD, &world);
    if (level >= 0 && !code) {
        MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
        MPI_Get_library_version(name, &n);
        c = tn_shared_open(world, timeout);
    }
    pthread_mutex_unlock(&tn_mpi_caller);
    if (level < 0) return NULL;
    const bool one_host = c != NULL;
    if (!c && !code) c = tn_messages_open(world, timeout, !ours && level < MPI_THREAD_MULTIPLE);
    if (!c) {
        snprintf(why, TN_COMM_WHY,
                 code ? "the ranks cannot reach each other" : "no memory for what ranks send each other");
        return NULL;
    }
    name[strcspn(name, ",\n")] = 0;
    snprintf(c->name, sizeof c->name, "%.70s%s", name, one_host ? ", shared memory" : "");
    return c;
}
