/* compare.c - tn_compare: a program's own step, fused beside eager, in rounds of both.
 *
 * A round runs some steps in each mode, by turns the one first and the other, so that what slows the machine
 * for a while slows both. Each round gives a ratio; told are their median and its confidence interval of 95 %
 * by order statistics, which asks nothing of how times are distributed: with n rounds the median lies between
 * the k-th smallest and the k-th largest ratio with probability 1 - 2 P(X < k), X binomial of n and 1/2
 * (Conover, Practical Nonparametric Statistics, section 3.2). The state of the run is put away as a
 * checkpoint and taken back. Read tn_compare_with first. */
#include "nn.h"

#include <stdlib.h>
#include <unistd.h>

static const char op[] = "compare";

enum {
    FEWEST = 6, /* rounds: with less no interval is of 95 % */
    USUAL = 15,
    UNMEASURED =
        2, /* of a mode's steps: the first is recorded anew, and what it makes is seen in the second */
    MOST_STEPS = 100,
};
static const double PART = 0.02; /* seconds that the steps of a mode shall take in a round */

typedef struct comparing {
    tn_session *s;
    tn_step_fn *step;
    void *user;
    int steps; /* measured, of each mode in a round */
    tn_comparison *out;
} comparing;

static int run(const comparing *c, int n)
{
    int status = TN_OK;
    for (int i = 0; i < n && !status; i++) {
        status = c->step(c->s, c->user);
        if (!status) status = tn_error(c->s);
    }
    if (status && !tn_error(c->s)) tn_fail(c->s, status, op, "the step has returned %d", status);
    return status;
}

/* Seconds of a step in that mode. */
static int measure(const comparing *c, tn_mode mode, double *seconds)
{
    int status = tn_set_mode(c->s, mode);
    if (!status) status = run(c, UNMEASURED);
    if (!status) status = tn_synchronize(c->s);
    const tn_stats before = tn_nn_stats(c->s);
    const double start = tn_nn_seconds();
    if (!status) status = run(c, c->steps);
    if (!status) status = tn_synchronize(c->s);
    *seconds = (tn_nn_seconds() - start) / c->steps;
    const tn_stats after = tn_nn_stats(c->s);
    const uint64_t launches = after.kernels + after.library_calls + after.copies - before.kernels -
                              before.library_calls - before.copies;
    c->out->launches[mode == TN_FUSED] = launches / (uint64_t)c->steps;
    c->out->bytes[mode == TN_FUSED] = (after.bytes_moved - before.bytes_moved) / (uint64_t)c->steps;
    return status;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *sorted, int n) { return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2; }

/* The largest k with 2 P(X < k) <= 5 %; 0 where there is none. */
static int bound(int n)
{
    double term = 1, below = 0;
    int k = 0;
    for (int i = 0; i < n; i++) term /= 2; /* P(X = 0) */
    while (k < n && 2 * (below + term) <= 0.05) {
        below += term;
        term *= (double)(n - k) / (k + 1);
        k++;
    }
    return k;
}

static void conclude(tn_comparison *out, double *eager, double *fused, double *ratio, int n)
{
    const int k = bound(n);
    qsort(ratio, (size_t)n, sizeof(*ratio), by_size);
    qsort(eager, (size_t)n, sizeof(*eager), by_size);
    qsort(fused, (size_t)n, sizeof(*fused), by_size);
    out->rounds = n;
    out->faster = median(ratio, n);
    out->low = ratio[k ? k - 1 : 0];
    out->high = ratio[n - (k ? k : 1)];
    out->ms[0] = 1e3 * median(eager, n);
    out->ms[1] = 1e3 * median(fused, n);
}

static int all_rounds(comparing *c, int rounds, double seconds)
{
    double *time = tn_malloc(3 * (size_t)rounds * sizeof(*time)), first[2] = {0, 0};
    double *of[2] = {time, time + rounds}, *ratio = time + 2 * rounds;
    if (!time) return tn_fail(c->s, TN_E_NOMEM, op, "no memory for %d rounds", rounds);
    int status = TN_OK, n = 0;
    for (int f = 0; f < 2 && !status; f++)
        status = measure(c, f ? TN_FUSED : TN_EAGER, &first[f]); /* compiles, plans */
    if (!status) {
        const double steps = PART / (first[0] > first[1] ? first[0] : first[1]);
        c->steps = steps < 1 ? 1 : steps > MOST_STEPS ? MOST_STEPS : (int)steps;
    }
    for (const double start = tn_nn_seconds();
         !status && n < rounds && (n < FEWEST || tn_nn_seconds() - start < seconds); n++) {
        for (int k = 0; k < 2 && !status; k++) {
            const int f = (n + k) % 2;
            status = measure(c, f ? TN_FUSED : TN_EAGER, &of[f][n]);
        }
        if (!status) ratio[n] = of[0][n] / of[1][n];
    }
    if (!status) conclude(c->out, of[0], of[1], ratio, n);
    tn_free_mem(time);
    return status;
}

static int put_away(tn_session *s, char *path, size_t size)
{
    const char *place = tn_setting("TMPDIR");
    if (snprintf(path, size, "%s/libtensor-compare-XXXXXX", place ? place : "/tmp") >= (int)size)
        return tn_fail(s, TN_E_IO, op, "TMPDIR is too long a name");
    const int fd = mkstemp(path);
    if (fd < 0) return tn_fail(s, TN_E_IO, op, "%s cannot be made, to put the state of the run away", path);
    close(fd);
    const int status = tn_save_with(s, path, NULL);
    if (status) unlink(path);
    return status;
}

TN_DEFINE(int, compare_with, s, (s, step, user, options), tn_session *s, tn_step_fn *step, void *user,
          const tn_compare_options *options)
{
    NN_OPTIONS(tn_compare_options, o, options);
    if (!s) return TN_E_NULL;
    if (!step) return tn_fail(s, TN_E_NULL, op, "step is NULL");
    if (o->rounds && (o->rounds < FEWEST || o->rounds > 10000))
        return tn_fail(s, TN_E_ARG, op, "%d rounds, %d to 10000 needed", o->rounds, FEWEST);
    if (!(o->seconds >= 0)) return tn_fail(s, TN_E_ARG, op, "%g seconds", o->seconds);
    char path[4096];
    const tn_mode mode = tn_get_mode(s);
    tn_comparison result = {.rounds = 0};
    comparing c = {.s = s, .step = step, .user = user, .steps = 1, .out = &result};
    int status = tn_error(s);
    if (status) return status;
    if ((status = tn_set_mode(s, mode))) return status; /* in a step */
    status = put_away(s, path, sizeof(path));
    if (!status) {
        status = all_rounds(&c, o->rounds ? o->rounds : USUAL, o->seconds > 0 ? o->seconds : 10);
        tn_set_mode(s, mode);
        if (!status) status = run(&c, 1); /* reports then tell of a step in the program's own mode */
        if (!status) status = tn_load_with(s, path, NULL);
        unlink(path);
    }
    if (status) return status;
    FILE *out = o->out ? o->out : stdout;
    char line[200];
    tn_snprintf(line, sizeof(line), "fused %.2fx (%.2f-%.2f), %llu > %llu launches, %.3g > %.3g MB moved",
                result.faster, result.low, result.high, (unsigned long long)result.launches[0],
                (unsigned long long)result.launches[1], 1e-6 * (double)result.bytes[0],
                1e-6 * (double)result.bytes[1]);
    fprintf(out, "%s\n", line);
    if (o->result) *o->result = result;
    return TN_OK;
}
