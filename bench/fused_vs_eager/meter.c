/* meter.c - rounds of alternating measurements.
 *
 * A round runs every variant several times, in an order that turns round by round, and lasts at least 0.3 s:
 * the system counts processor time in hundredths. A round in which other processes took over 5 % of the
 * machine's processor time (/proc/stat, less our own) does not count. Where too few are left, the best single
 * times of all rounds have to do, as a disturbance only ever adds to a time. Start with meter. */
#include <sys/resource.h>
#include <unistd.h>

#include "bench.h"

enum { MAX_ROUNDS = 400, MAX_REPS = 400 };
static const double ROUND_MS = 300, FOREIGN = 0.05;

double clock_ms(const struct options *o)
{
    return o->cpu_time ? clock_of(CLOCK_PROCESS_CPUTIME_ID) / (o->threads ? o->threads : 1) : now_ms();
}

/* Seconds in which processors were busy since the machine started, waiting not counted; negative: unknown. */
static double busy_seconds(void)
{
    unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
    FILE *f = fopen("/proc/stat", "r");
    if (!f) return -1;
    int got = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait,
                     &irq, &softirq, &steal);
    fclose(f);
    return got == 8 ? (double)(user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK)
                    : -1;
}

static double own_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

struct round {
    double foreign; /* share of the machine that others took */
    double ms[MAX_VARIANTS], best[MAX_VARIANTS];
};

static bool run_round(meter_fn *fn, void *arg, int variants, int reps, int number, struct round *r)
{
    double *sample = malloc((size_t)(variants * reps) * sizeof *sample);
    double busy = busy_seconds(), own = own_seconds(), start = now_ms();
    bool ok = sample != NULL;
    for (int i = 0; i < reps && ok; i++)
        for (int k = 0; k < variants && ok; k++) {
            int v = (number + i) % 2 ? variants - 1 - k : k;
            sample[v * reps + i] = fn(arg, v);
            ok = sample[v * reps + i] >= 0;
        }
    double wall = (now_ms() - start) * 1e-3, others = busy_seconds() - busy - (own_seconds() - own);
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    r->foreign = busy < 0 ? 0 : others / (wall * (double)(processors > 0 ? processors : 1));
    for (int v = 0; v < variants && ok; v++) {
        r->ms[v] = middle(sample + v * reps, reps);
        r->best[v] = sample[v * reps]; /* middle has sorted them */
    }
    free(sample);
    return ok;
}

/* Sleeps until nobody else is at work, or `until` has come. */
static void wait_for_quiet(double until)
{
    const struct timespec nap = {.tv_nsec = 100000000};
    for (double others = 1; others > FOREIGN && now_ms() < until;) {
        double busy = busy_seconds(), start = now_ms();
        nanosleep(&nap, NULL);
        others = busy < 0 ? 0 : (busy_seconds() - busy) / ((now_ms() - start) * 1e-3);
    }
}

bool meter(meter_fn *fn, void *arg, int variants, const struct options *o, double *median, struct rounds *r)
{
    static const struct rounds none;
    struct round *round = calloc(MAX_ROUNDS, sizeof *round);
    *r = none;
    bool ok = round != NULL;
    for (int warm = 0; warm < 2 && ok; warm++)
        for (int v = 0; v < variants && ok; v++) ok = fn(arg, v) >= 0;
    double start = now_ms();
    for (int v = 0; v < variants && ok; v++) ok = fn(arg, v) >= 0;
    double once = now_ms() - start;
    int reps = once < ROUND_MS ? (int)(ROUND_MS / (once + 1e-3)) + 1 : 1, n = 0;
    if (reps > MAX_REPS) reps = MAX_REPS;
    while (ok && n < MAX_ROUNDS && r->kept < o->rounds) {
        double until = start + o->patience * 1e3;
        if (n >= o->rounds && (o->cpu_time || now_ms() > until)) break;
        if (!o->cpu_time) wait_for_quiet(n < o->rounds ? now_ms() + o->patience * 1e3 / o->rounds : until);
        ok = run_round(fn, arg, variants, reps, n, &round[n]);
        if (round[n++].foreign <= FOREIGN) r->kept++;
    }
    r->discarded = n - r->kept;
    r->quiet = r->kept >= (o->rounds + 1) / 2;
    bool middles = r->quiet || o->cpu_time;
    for (int v = 0; v < variants && ok; v++) {
        double ms[MAX_ROUNDS], best = round[0].best[v];
        int used = 0;
        for (int i = 0; i < n; i++) {
            if (o->cpu_time || round[i].foreign <= FOREIGN) ms[used++] = round[i].ms[v];
            if (round[i].best[v] < best) best = round[i].best[v];
        }
        median[v] = middles ? middle(ms, used) : best;
    }
    free(round);
    return ok && n > 0;
}
