/* slow.c - a network that takes its time, as a plugin: one process is the first of two ranks, the other one
 * has the same values. A mean takes SLOW_NS nanoseconds for an element, one mean after the other, and goes on
 * by itself: what a wait sleeps is what the program did not hide, which is written to stderr as it closes.
 * Start with tn_comm_entry. */
#include "../../src/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double due, slept, sent;
static struct begun {
    const void *in;
    void *out;
    size_t bytes;
} begun[4096];
static int n_begun;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int mean(tn_comm *c, const void *in, void *out, size_t n, bool wide)
{
    const char *ns = getenv("SLOW_NS");
    const double now = seconds(), takes = 1e-9 * (ns ? atof(ns) : 0) * (double)n;
    (void)c;
    due = (due > now ? due : now) + takes;
    sent += takes;
    begun[n_begun++] = (struct begun){in, out, n * (wide ? sizeof(double) : sizeof(float))};
    return 0;
}

static int scatter(tn_comm *c, const void *in, void *out, size_t n, bool wide, const size_t *cut)
{
    mean(c, in, out, n, wide);
    begun[n_begun - 1].bytes = cut[1] * (wide ? sizeof(double) : sizeof(float));
    return 0;
}

static int gather(tn_comm *c, const void *in, void *out, const size_t *cut)
{
    mean(c, in, out, cut[2] / sizeof(float), false);
    begun[n_begun - 1].bytes = cut[1];
    return 0;
}

static int broadcast(tn_comm *c, void *data, size_t bytes)
{
    (void)c;
    (void)data;
    (void)bytes;
    return 0;
}

static int wait_for_all(tn_comm *c)
{
    const double now = seconds();
    (void)c;
    while (seconds() < due) nanosleep(&(struct timespec){0, 20000}, NULL);
    if (n_begun) slept += due > now ? due - now : 0;
    for (int i = 0; i < n_begun; i++) memmove(begun[i].out, begun[i].in, begun[i].bytes);
    n_begun = 0;
    return 0;
}

static int exchange(tn_comm *c, const tn_comm_note *mine, tn_comm_note *all)
{
    (void)c;
    all[0] = all[1] = *mine;
    return 0;
}

static void tell(tn_comm *c, const tn_comm_note *mine)
{
    (void)c;
    (void)mine;
}

static void close_comm(tn_comm *c)
{
    (void)c;
    fprintf(stderr, "slow: means took %.3f s, of which %.3f s were waited for\n", sent, slept);
}

__attribute__((visibility("default"))) tn_comm *tn_comm_entry(int version, double timeout, char *why)
{
    static tn_comm c = {.size = 2,
                        .name = "slow",
                        .mean = mean,
                        .scatter = scatter,
                        .gather = gather,
                        .broadcast = broadcast,
                        .wait = wait_for_all,
                        .exchange = exchange,
                        .tell = tell,
                        .close = close_comm};
    (void)timeout;
    if (version != TN_COMM_VERSION) snprintf(why, TN_COMM_WHY, "another version");
    return &c;
}
