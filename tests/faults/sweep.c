/* sweep.c - trains small models with every call of every kind failing, one after the other.
 *
 *   sweep --dir FOLDER --cc COMPILER [--scene S] [--kind K] [--cache cold|warm] [--every M] [--jobs J]
 *         [--point N once|good] [--verbose]
 *
 * A point is one run of a scene in a process of its own, with the n-th call of one kind failing, once or for
 * good, its kernels in an empty folder (cold) or in one that has them (warm). Each action of a run must do
 * its work or say why not: an error code with a text, or a line in the log where there is no session. A step
 * that has failed must have left parameters, running statistics, moments and update counts as they were
 * before it; after tn_clear_error the same step must run where the fault was for once. A run without an error
 * must end with the numbers of the run without a fault, to the bit, or, where the log has told of another
 * road, nearly. At the end no memory, no descriptor and no file is left over. A run may neither end by a
 * signal nor take longer than SECONDS.
 *
 * In eager mode a failed step has done what stands before the failing call: each number is that of one side.
 *
 * Every kind of call has a line in the summary; every point that is not right has a line before it. Exit
 * status 1 where there are such. --every M takes one point of M, from a place that depends on the kind alone.
 * Read first: run_scene in run.c, then sweep. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

enum { MOST_JOBS = 16 };
static const char *self_cc = "cc";

/* ---- many runs ---- */

typedef struct job {
    pid_t pid;
    point p;
    report *out;
} job;

static long tally[KINDS][VERDICTS], points, wrong;
static job jobs[MOST_JOBS];
static int n_jobs = 2;

static void end_job(job *j, int status)
{
    if (WIFSIGNALED(status)) {
        int sig = WTERMSIG(status);
        bool hang = sig == SIGALRM || sig == SIGXCPU || sig == SIGKILL;
        j->out->verdict = hang ? HANG : CRASH;
        snprintf(j->out->text, sizeof j->out->text, "%s", strsignal(sig));
        char own[256];
        snprintf(own, sizeof own, "%s/run.%ld", run_dir, (long)j->pid);
        remove_all(own);
    } else if (WEXITSTATUS(status)) {
        j->out->verdict = CRASH;
        snprintf(j->out->text, sizeof j->out->text, "exit status %d", WEXITSTATUS(status));
    }
    verdict v = j->out->verdict;
    if (v != UNTOUCHED) points++;
    tally[j->p.kind][v]++;
    wrong += v >= WRONG;
    if (v >= WRONG || run_verbose)
        printf("%s %s %s %ld %s: %s%s%s\n", j->p.scene->name, j->p.cold ? "cold" : "warm",
               kind_name(j->p.kind), j->p.n, j->p.for_good ? "good" : "once", verdict_name[v],
               *j->out->text ? ": " : "", j->out->text);
    j->pid = 0;
}

static void wait_one(void)
{
    int status;
    pid_t pid = wait(&status);
    for (int i = 0; i < n_jobs; i++)
        if (pid > 0 && jobs[i].pid == pid) end_job(&jobs[i], status);
}

static void wait_all(void)
{
    for (int i = 0; i < n_jobs; i++)
        while (jobs[i].pid) wait_one();
}

static report *start(const point *p, numbers *right, bool reference, const report *plain)
{
    job *j = NULL;
    while (!j) {
        for (int i = 0; i < n_jobs && !j; i++)
            if (!jobs[i].pid) j = &jobs[i];
        if (!j) wait_one();
    }
    memset(j->out, 0, sizeof *j->out);
    j->p = *p;
    fflush(NULL);
    j->pid = fork();
    if (!j->pid) run_point(p, j->out, right, reference, plain);
    return j->out;
}

static void *shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) exit(2);
    return p;
}

/* Runs a scene without a fault, for the calls it makes, the blocks of memory that libraries keep, and its
 * numbers. */
static bool count(const scene *s, bool cold, numbers *right, report *out)
{
    const point p = {.scene = s, .cold = cold};
    wait_all();
    long before = wrong;
    const report *r = start(&p, right, true, NULL);
    wait_all();
    *out = *r;
    if (wrong == before && r->verdict == UNTOUCHED) return true;
    printf("%s does not run without a fault: %s\n", s->name, r->text);
    wrong++;
    return false;
}

/* All points of one kind. */
static void sweep(point p, const report *plain, const numbers *right, long every)
{
    const limit *l = p.kind < CALL_KINDS ? NULL : &limits[p.kind - CALL_KINDS];
    for (p.n = l ? l->least : 1 + (every > 1 ? p.kind * 7 % every : 0);
         p.n <= (l ? l->most : plain->calls[p.kind]); p.n += l ? l->step * every : every)
        for (int good = l != NULL; good < 2; good++) {
            p.for_good = good;
            start(&p, (numbers *)(uintptr_t)right, false, plain);
        }
}

int main(int argc, char **argv)
{
    const char *only_scene = NULL, *only_kind = NULL, *only_cache = NULL;
    long every = 1, only = 0;
    long jobs_wanted = 2;
    bool good = false;
    const struct {
        const char *name, **text;
        long *number;
    } option[] = {{"--dir", &run_dir, NULL},      {"--cc", &self_cc, NULL},
                  {"--scene", &only_scene, NULL}, {"--kind", &only_kind, NULL},
                  {"--cache", &only_cache, NULL}, {"--every", NULL, &every},
                  {"--jobs", NULL, &jobs_wanted}, {"--point", NULL, &only}};
    enum { OPTIONS = sizeof option / sizeof *option };
    for (int i = 1; i < argc; i++) {
        int o = 0;
        while (o < OPTIONS && strcmp(argv[i], option[o].name)) o++;
        if (!strcmp(argv[i], "--verbose")) {
            run_verbose = true;
        } else if (o < OPTIONS && i + 1 < argc) {
            const char *value = argv[++i];
            if (option[o].text) *option[o].text = value;
            if (option[o].number) *option[o].number = atol(value);
            if (option[o].number == &only) good = i + 1 < argc && !strcmp(argv[++i], "good");
        } else
            return fprintf(stderr, "sweep: %s?\n", argv[i]), 2;
    }
    n_jobs = (int)jobs_wanted;
    if (n_jobs < 1 || n_jobs > MOST_JOBS || every < 1) return 2;
    char path[300];
    snprintf(path, sizeof path, "%s/store", run_dir);
    mkdir(path, 0700);
    setenv("FAULTS_STORE", path, 1);
    setenv("TENSOR_CC", self_cc, 1);
    setenv("TENSOR_PROFILE", "reference", 1);
    setenv("TENSOR_KERNEL_OPT", "1", 1);
    if (!scene_files(run_dir)) return fprintf(stderr, "sweep: cannot write to %s\n", run_dir), 2;
    for (int i = 0; i < n_jobs; i++) jobs[i].out = shared(sizeof *jobs[i].out);
    numbers *right = shared(sizeof *right);
    for (const scene *s = scenes; s->name; s++) {
        if (only_scene && strcmp(s->name, only_scene)) continue;
        for (int warm = 0; warm < 2; warm++) {
            if (only_cache && strcmp(only_cache, warm ? "warm" : "cold")) continue;
            report plain;
            if (!count(s, false, right, &plain)) continue; /* fills the folder, too */
            if (!count(s, !warm, right, &plain)) continue;
            for (int k = 0; k < KINDS; k++) {
                point p = {.scene = s, .cold = !warm, .kind = k, .n = only, .for_good = good};
                if (only_kind && strcmp(only_kind, kind_name(k))) continue;
                if (only)
                    start(&p, right, false, &plain);
                else
                    sweep(p, &plain, right, every);
            }
            wait_all();
        }
    }
    wait_all();
    printf("%-15s", "call");
    for (int v = RIGHT; v < VERDICTS; v++) printf(" %10s", verdict_name[v]);
    printf("\n");
    for (int k = 0; k < KINDS; k++) {
        long all = 0;
        for (int v = RIGHT; v < VERDICTS; v++) all += tally[k][v];
        if (!all) continue;
        printf("%-15s", kind_name(k));
        for (int v = RIGHT; v < VERDICTS; v++) printf(" %10ld", tally[k][v]);
        printf("\n");
    }
    printf("%ld points, %ld wrong\n", points, wrong);
    return wrong != 0;
}
