/* door.c - what ranks begin becomes jobs, whichever way connects them. Start with tn_mpi_door. */
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>

static int begin(tn_comm *c, const job *what)
{
    door *d = (door *)c;
    const size_t cut = what->cut ? ((size_t)c->size + 1) * sizeof *what->cut : 0;
    job *j = malloc(sizeof *j + cut);
    if (!j) {
        snprintf(c->why, sizeof c->why, "no memory");
        return -1;
    }
    *j = *what;
    if (cut) j->cut = memcpy(j + 1, what->cut, cut);
    return d->enter(d, j);
}

static size_t size_of(bool wide)
{
    return wide ? sizeof(double) : sizeof(float);
}

static int mean(tn_comm *c, const void *in, void *out, size_t n, bool wide)
{
    return begin(c, &(job){.kind = JOB_MEAN, .in = in, .out = out, .n = n, .size = size_of(wide)});
}

static int scatter(tn_comm *c, const void *in, void *out, size_t n, bool wide, const size_t *cut)
{
    return begin(
        c, &(job){.kind = JOB_SCATTER, .in = in, .out = out, .n = n, .size = size_of(wide), .cut = cut});
}

static int gather(tn_comm *c, const void *in, void *out, const size_t *cut)
{
    return begin(c,
                 &(job){.kind = JOB_GATHER, .in = in, .out = out, .n = cut[c->size], .size = 1, .cut = cut});
}

static int broadcast(tn_comm *c, void *data, size_t bytes)
{
    return begin(c, &(job){.kind = JOB_BROADCAST, .in = data, .out = data, .n = bytes, .size = 1});
}

static int exchange(tn_comm *c, const tn_comm_note *mine, tn_comm_note *all)
{
    const int status = begin(c, &(job){.kind = JOB_EXCHANGE, .out = all, .n = 1, .size = 1, .note = *mine});
    return status ? status : c->wait(c);
}

static void tell(tn_comm *c, const tn_comm_note *mine)
{
    begin(c, &(job){.kind = JOB_TELL, .n = 1, .size = 1, .note = *mine});
}

void tn_mpi_door(door *d, MPI_Comm world, double timeout, int (*enter)(door *, job *))
{
    MPI_Comm_rank(world, &d->c.rank);
    MPI_Comm_size(world, &d->c.size);
    d->timeout = timeout;
    d->last = &d->queue;
    d->enter = enter;
    d->c.mean = mean;
    d->c.scatter = scatter;
    d->c.gather = gather;
    d->c.broadcast = broadcast;
    d->c.exchange = exchange;
    d->c.tell = tell;
}
