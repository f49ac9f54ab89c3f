/* plugin.h - what the two ways by which this plugin connects ranks have in common: messages of MPI (mpi.c),
 * and, where all ranks are on one host, memory that MPI has them share (shared.c). Both come to the same
 * bits. Nothing here is of the library: the plugin is built by mpicc alone. */
#pragma once

#include "../comm.h"

#include <mpi.h>
#include <pthread.h>
#include <string.h>

/* What a rank has begun: as it was handed over, with a copy of its cut, NULL where all ranks have as much,
 * and of its note. */
typedef struct job {
    tn_comm_job is;
    tn_comm_note note;
    struct job *next;
    int gone; /* stages that it has gone through (shared.c) */
} job;

/* What both ways are begun with. */
typedef struct door {
    tn_comm c;
    double timeout;
    job *queue, **last;                   /* what has begun and not ended, in order; jobs are of malloc */
    int (*enter)(struct door *d, job *j); /* as c.begin: j is at the end of the queue by the time */
} door;
/* Sets all of d but `wait` and `close`, which are each way's own. */
void tn_mpi_door(door *d, MPI_Comm world, double timeout, int (*enter)(door *, job *));

/* The ranks of `world` by messages. alone: nobody else may call MPI at the same time, and the program does.
 * NULL: no memory. */
tn_comm *tn_messages_open(MPI_Comm world, double timeout, bool alone);
/* The ranks of `world` by memory that they share. Collective. NULL where they are on several hosts, or MPI
 * has no such memory; nothing is wrong then. */
tn_comm *tn_shared_open(MPI_Comm world, double timeout);
/* Gives the memory back, ahead of MPI_Finalize. */
void tn_shared_finalize(void);

extern pthread_mutex_t tn_mpi_caller; /* of MPI, in this process */
/* A rank is missing, and finalising would wait for it. */
extern bool tn_mpi_broken;
double tn_mpi_seconds(void);
long tn_mpi_limit(double timeout); /* as texts tell it */
/* why[TN_COMM_WHY] becomes that those of the `ranks` ranks that are silent have been so for too long. */
void tn_mpi_silent(char *why, const int *silent, int ranks, double timeout);
/* out[], and copy[] where it is not NULL, become the mean of piece[0][], piece[1][], .., added in this order,
 * of n floats or doubles; out may be one of them. */
void tn_mpi_add(void *out, void *copy, const void *const *piece, size_t n, int ranks, bool wide);
