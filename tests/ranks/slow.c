/* slow.c - a network by model, as a plugin: one process is the first of two ranks, the other one has the same
 * values. As it closes it writes to stderr how long means take at SLOW_NS nanoseconds an element, and, of a
 * network whose means take as long as what the program computes beside them, how much it would wait for. Time
 * is the calling thread's own, so that nothing else on the machine counts. Start with tn_comm_entry. */
#include "../../src/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double sent, beside, waited; /* seconds */
static struct begun {
    const void *in;
    void *out;
    size_t bytes, n;
    double at;
} begun[4096];
static int n_begun;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int begin(tn_comm *c, const tn_comm_job *j)
{
    const char *ns = getenv("SLOW_NS");
    const size_t n = j->kind == TN_COMM_GATHER ? j->n / sizeof(float) : j->n;
    (void)c;
    if (j->kind == TN_COMM_EXCHANGE)
        for (int i = 0; i < 2; i++) memcpy((tn_comm_note *)j->out + i, j->in, sizeof(tn_comm_note));
    if (j->kind > TN_COMM_GATHER) return 0;
    sent += 1e-9 * (ns ? atof(ns) : 0) * (double)n;
    begun[n_begun++] = (struct begun){j->in, j->out, (j->cut ? j->cut[1] : n) * j->size, n, seconds()};
    return 0;
}

/* One mean after the other, each from when it began on; all of them together take as long as from the first
 * one's beginning to now. */
static void take_as_long(void)
{
    const double span = seconds() - begun->at;
    double all = 0, due = 0;
    for (int i = 0; i < n_begun; i++) all += (double)begun[i].n;
    for (int i = 0; i < n_begun; i++) {
        const double at = begun[i].at - begun->at;
        due = (due > at ? due : at) + span * (double)begun[i].n / all;
    }
    beside += span;
    waited += due - span;
}

static int wait_for_all(tn_comm *c)
{
    (void)c;
    if (n_begun > 1) take_as_long();
    for (int i = 0; i < n_begun; i++) memmove(begun[i].out, begun[i].in, begun[i].bytes);
    n_begun = 0;
    return 0;
}

static void close_comm(tn_comm *c)
{
    (void)c;
    fprintf(stderr, "slow: means take %.3f s; %.4f s beside a program, of which it waits for %.4f s\n", sent,
            beside, waited);
}

__attribute__((visibility("default"))) tn_comm *tn_comm_entry(int version, double timeout, char *why)
{
    static tn_comm c = {.size = 2, .name = "slow", .begin = begin, .wait = wait_for_all, .close = close_comm};
    (void)timeout;
    if (version != TN_COMM_VERSION) snprintf(why, TN_COMM_WHY, "another version");
    return &c;
}
