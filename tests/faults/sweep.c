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
 * oneDNN allocates some ten thousand times to make a kernel: there one call is made to fail for each way
 * through it, with a warm cache. It survives most of these, but not all (src/device/cpu/dnnl.c). Where the
 * first call that failed was its own, and it is oneDNN that ends the process, loses memory or takes a slower
 * road without a word, the point has a column of its own and is not counted as wrong.
 *
 * Every kind of call has a line in the summary; every point that is not right has a line before it. Exit
 * status 1 where there are such. --every M takes one point of M, from a place that depends on the kind alone.
 * Read first: run_scene. */
#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "include/tensor_nn.h"
#include "scenes.h"
#include "calls.h"

enum { SECONDS = 20, STEPS = 3, NUMBERS_MAX = 1 << 20, MOST_JOBS = 16 };

typedef enum verdict {
    UNTOUCHED, /* there were fewer calls */
    RIGHT,     /* the numbers of the run without a fault */
    SLOWER,    /* nearly, by another road that the log tells of */
    REFUSED,   /* an error, and everything as it was before */
    ITS_NULL,  /* the failed call was oneDNN's own, which went on with NULL */
    ITS_END,   /* the same, and it has ended the process itself */
    ITS_LEAK,  /* the same, and it has lost memory */
    ITS_ROAD,  /* the same, and it has taken another road, with nearly the same numbers, without saying so */
    WRONG,
    BETWEEN,
    SILENT,
    STUCK,
    LEAK,
    CRASH,
    HANG,
    VERDICTS
} verdict;
static const char *const verdict_name[VERDICTS] = {
    "untouched", "right",      "slower", "refused", "its NULL", "its end", "its leak", "its road",
    "wrong",     "in between", "silent", "stuck",   "leak",     "crash",   "hang"};

/* What a run leaves for the parent: shared memory. */
typedef struct report {
    long calls[CALL_KINDS];  /* made */
    long blocks, of_library; /* left: by us, and by oneDNN */
    verdict verdict;
    char text[600];
    unsigned long in_library; /* calls_where_library_ends, at a signal */
} report;

/* The state after each step of the run without a fault. */
enum { MOST_CALLS = 1 << 20 };
typedef struct numbers {
    unsigned char whose[MOST_CALLS]; /* calls of the kind that was counted last */
    size_t n[STEPS + 1];
    unsigned char state[STEPS + 1][NUMBERS_MAX / 4];
} numbers;

/* What the system gives a process so much of and no more: points beside those of the calls. The n-th allows n
 * units, for addresses on top of what the process has before the run. */
static const struct limit {
    const char *name;
    int resource;
    rlim_t unit;
    long least, most, step;
} limits[] = {
    {"addresses", RLIMIT_AS, 1 << 20, 1, 200, 2},
    {"descriptors", RLIMIT_NOFILE, 1, 3, 24, 1},
    {"file size", RLIMIT_FSIZE, 512, 0, 400, 8}, /* as a disk that is full */
};
enum { LIMITS = sizeof limits / sizeof *limits, KINDS = CALL_KINDS + LIMITS };

typedef struct point {
    const scene *scene;
    int kind; /* call_kind, or CALL_KINDS + a limit */
    bool cold, for_good;
    long n;
} point;

static const char *kind_name(int kind)
{
    return kind < CALL_KINDS ? call_name[kind] : limits[kind - CALL_KINDS].name;
}

static const char *dir = "/tmp", *self_cc = "cc";
static bool verbose;

/* ---- one run ---- */

static struct {
    report *out;
    numbers *right; /* filled by the run without a fault */
    bool reference;
    char file[256]; /* a checkpoint of the scene's, and one for looking at the state */
    char peek[256];
    char warned[300]; /* the last warning */
    char error[300];  /* the last line of an error */
    bool broke;       /* an action was refused */
    bool twice;       /* a part of a step was done again, in eager mode */
    int resource;     /* that is limited; -1: none */
    rlim_t limit;
} me;

static void judge(verdict v, const char *format, ...)
{
    if (me.out->verdict >= WRONG) return; /* the first counts */
    me.out->verdict = v;
    va_list ap;
    va_start(ap, format);
    vsnprintf(me.out->text, sizeof me.out->text, format, ap);
    va_end(ap);
}

static void take_log(int level, const char *text, void *user)
{
    (void)user;
    char *to = level == TN_LOG_ERROR ? me.error : me.warned;
    if (level != TN_LOG_INFO) snprintf(to, sizeof me.error, "%s", text);
    if (verbose) fprintf(stderr, "    log %d: %s\n", level, text);
}

/* An action of s has not done its work (or did): the session must know why. True: go on. */
static bool done(tn_session *s, bool did, const char *action)
{
    if (tn_error(s)) {
        if (!*tn_error_text(s)) judge(SILENT, "%s: error %d without a text", action, tn_error(s));
        if (verbose && !me.broke)
            fprintf(stderr, "    %s: error %d %s\n", action, tn_error(s), tn_error_text(s));
        if (me.out->verdict < REFUSED) judge(REFUSED, "%s: %s", action, tn_error_text(s));
        me.broke = true;
        return false;
    }
    if (!did) {
        judge(SILENT, "%s: nothing came of it, and there is no error", action);
        me.broke = true;
    }
    return did;
}

/* What is looked at is looked at without a fault. */
static void pause_fault(bool pause)
{
    calls_pause(pause);
    if (me.resource < 0) return;
    struct rlimit r = {0, 0};
    getrlimit((unsigned)me.resource, &r);
    r.rlim_cur = pause ? r.rlim_max : me.limit;
    if (setrlimit((unsigned)me.resource, &r) && !pause) exit(3);
}

/* Everything that training moves, as a checkpoint has it. */
static size_t look(tn_session *s, unsigned char *to, size_t room)
{
    pause_fault(true);
    size_t n = 0;
    unsigned char head[8];
    if (tn_save(s, me.peek)) judge(STUCK, "the state cannot be saved after an error: %s", tn_error_text(s));
    FILE *f = fopen(me.peek, "rb");
    if (f && fread(head, 1, 8, f) == 8) {
        uint64_t bytes;
        memcpy(&bytes, head, 8);
        fseek(f, (long)bytes, SEEK_CUR);
        n = fread(to, 1, room, f);
    }
    if (f) fclose(f);
    unlink(me.peek);
    pause_fault(false);
    return n;
}

/* After step k (0: before the first) the state must be that of the run without a fault. near: as f32, nearly.
 */
static bool same(const unsigned char *state, size_t n, int k, bool near)
{
    if (n != me.right->n[k]) return false;
    if (!memcmp(state, me.right->state[k], n)) return true;
    for (size_t i = 0; near && i + 4 <= n; i += 4) {
        float a, b;
        memcpy(&a, state + i, 4);
        memcpy(&b, me.right->state[k] + i, 4);
        if (memcmp(&a, &b, 4) && !(fabsf(a - b) <= 3e-3f + 1e-2f * fabsf(b))) near = false;
    }
    return near;
}

static void compare(tn_session *s, int k, const char *when)
{
    static unsigned char state[NUMBERS_MAX / 4];
    if (me.twice) return;
    if (me.reference) {
        me.right->n[k] = look(s, me.right->state[k], sizeof *me.right->state);
        return;
    }
    size_t n = look(s, state, sizeof state);
    if (same(state, n, k, false)) return;
    if (*me.warned && same(state, n, k, true))
        judge(SLOWER, "%s", me.warned);
    else if (calls_library_failed() && same(state, n, k, true))
        judge(ITS_ROAD, "nearly the same numbers");
    else
        judge(WRONG, "%s: other numbers than without a fault%s%s", when, *me.warned ? "; the log: " : "",
              me.warned);
}

/* In eager mode what stands before the failing call is done: each number is that of one side of the step. */
static bool before_or_after(const unsigned char *state, size_t n, int k)
{
    const size_t one = sizeof(float);
    bool whole = n == me.right->n[k] || n == me.right->n[k - 1];
    if (me.right->n[k] != me.right->n[k - 1]) return whole; /* the first step makes moments */
    for (size_t i = 0; whole && i + one <= n; i += one) {
        float is, before, after;
        memcpy(&is, state + i, one), memcpy(&before, me.right->state[k - 1] + i, one);
        memcpy(&after, me.right->state[k] + i, one);
        float slack = *me.warned ? 3e-3f + 1e-2f * fabsf(after) : 0;
        whole = !(fabsf(is - before) > slack && fabsf(is - after) > slack);
    }
    return whole;
}

/* A step has failed: it has had no effect. */
static void as_before(tn_session *s, int k, bool eager)
{
    static unsigned char state[NUMBERS_MAX / 4];
    char why[300];
    snprintf(why, sizeof why, "%s", tn_error_text(s));
    pause_fault(true);
    tn_clear_error(s);
    size_t n = look(s, state, sizeof state);
    if (eager) {
        if (!me.twice && !before_or_after(state, n, k))
            judge(BETWEEN, "step %d failed (%s) within an operator", k, why);
        me.twice = true;
    } else if (!same(state, n, k - 1, *me.warned))
        judge(BETWEEN, "step %d failed (%s) and %s", k, why,
              same(state, n, k, *me.warned) ? "took place all the same" : "left an effect");
    pause_fault(false);
}

static bool train(tn_session *s, const scene *sc, void *net, int k, const tn_batch *b)
{
    char name[32];
    snprintf(name, sizeof name, "step %d", k);
    for (int again = 0;; again++) {
        tn_step_begin(s);
        sc->step(s, net, b);
        int status = tn_step_end(s);
        if (done(s, !status, name)) break;
        if (status != tn_error(s)) judge(SILENT, "%s: status %d, error %d", name, status, tn_error(s));
        as_before(s, k, sc->mode == TN_EAGER);
        if (again == 1) {
            if (calls_failed() == 1 && me.out->verdict < WRONG)
                judge(STUCK, "%s: fails for ever: %s", name, me.out->text);
            return false;
        }
    }
    if (me.reference || k == STEPS) compare(s, k, name);
    return true;
}

static tn_session *open_session(const scene *sc, const char *cache)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = sc->mode, .seed = 3, .threads = 2, .cache_dir = cache,
                            .log = take_log);
    if (s) return s;
    if (*me.error)
        judge(REFUSED, "open: %s", me.error);
    else
        judge(SILENT, "tn_open gave NULL and the log says nothing");
    me.broke = true;
    return NULL;
}

static void finish(tn_session *s)
{
    if (s && tn_error(s)) done(s, false, "the run");
    int status = s ? tn_close(s) : TN_OK;
    if (status && !me.broke) judge(SILENT, "close: status %d", status);
}

static void run_scene(const scene *sc, const char *cache)
{
    tn_session *s = open_session(sc, cache);
    if (!s) return;
    static scene_net net, other;
    memset(&net, 0, sizeof net);
    memset(&other, 0, sizeof other);
    bool ok = done(s, sc->init(s, &net, dir), "layers");
    if (ok && me.reference) compare(s, 0, "layers");
    tn_batch b;
    tn_loader *l = ok ? tn_loader_open(net.data, .batch = 8, .shuffle = true) : NULL;
    ok = ok && done(s, l != NULL, "loader");
    for (int k = 1; ok && k <= STEPS; k++) {
        if (!(ok = done(s, tn_next(l, &b) == 1, "next")))
            l = NULL; /* it has closed itself */
        else
            ok = train(s, sc, &net, k, &b);
        if (k == 2 && ok) { /* what is done beside training must not be in its way */
            int status = tn_save(s, me.file);
            done(s, !status, "save");
            if (status) tn_clear_error(s);
        }
    }
    tn_loader_close(l);
    bool whole = ok && !me.broke;
    if (ok) done(s, isfinite(tn_evaluate(s, net.data, sc->classify, &net)), "evaluate");
    if (tn_error(s)) tn_clear_error(s);
    FILE *to = NULL;
    pause_fault(true);
    to = fopen("/dev/null", "w");
    pause_fault(false);
    if (to) {
        tn_explain(s, to);
        pause_fault(true);
        fclose(to);
        pause_fault(false);
        if (tn_error(s)) done(s, false, "explain");
    }
    finish(s);
    /* a run that goes on from the file */
    if (!whole || !(s = open_session(sc, cache))) return;
    ok = done(s, sc->init(s, &other, dir), "layers again") && done(s, !tn_load(s, me.file), "load");
    if (ok && (l = tn_loader_open(other.data, .batch = 8, .shuffle = true))) {
        if (done(s, tn_next(l, &b) == 1, "next again")) {
            train(s, sc, &other, STEPS, &b);
            tn_loader_close(l);
        }
    }
    finish(s);
}

/* ---- what is left over ---- */

static int descriptors(void)
{
    int n = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct stat st;
        n += !fstat(fd, &st);
    }
    return n;
}

static void name_block(void *const from[], int n, void *user)
{
    (void)user;
    fprintf(stderr, "    a block asked for at");
    for (int i = 0; i < n && from[i]; i++) fprintf(stderr, " %p", from[i]);
    fprintf(stderr, "\n");
}

static void remove_all(const char *folder, bool itself)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[1024];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (!lstat(path, &st) && S_ISDIR(st.st_mode))
            remove_all(path, true);
        else
            unlink(path);
    }
    if (d) closedir(d);
    if (itself) rmdir(folder);
}

/* From here on the run has so much of it and no more. */
static void set_limit(const struct limit *l, long n)
{
    unsigned long pages = 0;
    FILE *f = l->resource == RLIMIT_AS ? fopen("/proc/self/statm", "r") : NULL;
    if (f && fscanf(f, "%lu", &pages) != 1) pages = 0;
    if (f) fclose(f);
    me.resource = l->resource;
    me.limit = (rlim_t)n * l->unit + (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
    signal(SIGXFSZ, SIG_IGN); /* the write fails instead */
    pause_fault(false);
}

static void show_end(void)
{
    void *frame[48];
    calls_disarm();
    int n = backtrace(frame, 48);
    me.out->in_library = calls_where_library_ends(frame, n);
    if (verbose) backtrace_symbols_fd(frame, n, 2);
}

static void show_crash(int sig)
{
    show_end();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void child(const point *p, report *out, numbers *right, bool reference, const report *plain)
{
    char own[256], cache[300];
    snprintf(own, sizeof own, "%s/run.%ld", dir, (long)getpid());
    snprintf(cache, sizeof cache, "%s/%s", p->cold ? own : dir, p->cold ? "cache" : "warm");
    snprintf(me.file, sizeof me.file, "%.200s/net.safetensors", own);
    snprintf(me.peek, sizeof me.peek, "%.200s/peek", own);
    mkdir(own, 0700);
    me.out = out;
    me.right = right;
    me.reference = reference;
    struct rlimit cpu = {SECONDS, SECONDS + 1}, none = {0, 0};
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &none);
    alarm(10 * SECONDS);
    out->verdict = RIGHT;
    atexit(show_end);
    signal(SIGSEGV, show_crash);
    signal(SIGABRT, show_crash);
    int open_before = descriptors();
    blocks_watch(verbose && !reference);
    calls_whose(p->n ? NULL : right->whose, MOST_CALLS);
    me.resource = -1;
    if (p->kind < CALL_KINDS)
        calls_arm((call_kind)p->kind, p->n, p->for_good);
    else
        set_limit(&limits[p->kind - CALL_KINDS], p->n);
    run_scene(p->scene, cache);
    pause_fault(true);
    for (int k = 0; k < CALL_KINDS; k++) out->calls[k] = calls_made((call_kind)k);
    bool fired = calls_failed() > 0 || p->kind >= CALL_KINDS;
    calls_disarm();
    out->blocks = blocks_live(&out->of_library, NULL, NULL);
    /* what libraries keep for themselves is made at different times */
    long lost = reference ? 0 : out->blocks - plain->blocks;
    long its = reference ? 0 : out->of_library - plain->of_library;
    if (its > 0) judge(calls_library_failed() ? ITS_LEAK : LEAK, "%ld blocks of oneDNN's", its);
    if (lost > 0) judge(LEAK, "%ld blocks of memory", lost);
    if (verbose && (lost > 0 || its > 0)) blocks_live(&its, name_block, NULL);
    if (descriptors() > open_before && p->kind != (int)CALL_close)
        judge(LEAK, "%d descriptors", descriptors() - open_before);
    DIR *d = opendir(own);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strstr(e->d_name, ".part") && p->kind != (int)CALL_unlink) judge(LEAK, "the file %s", e->d_name);
    if (!fired && out->verdict == RIGHT) out->verdict = UNTOUCHED;
    remove_all(own, true);
    fflush(NULL);
    _exit(0);
}

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
        snprintf(own, sizeof own, "%s/run.%ld", dir, (long)j->pid);
        remove_all(own, true);
    } else if (WEXITSTATUS(status)) {
        j->out->verdict = CRASH;
        snprintf(j->out->text, sizeof j->out->text, "exit status %d", WEXITSTATUS(status));
    }
    if (j->out->verdict == CRASH && j->out->in_library) {
        j->out->verdict = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? ITS_NULL : ITS_END;
        snprintf(j->out->text, sizeof j->out->text, "at %#lx", j->out->in_library);
    }
    verdict v = j->out->verdict;
    if (v != UNTOUCHED) points++;
    tally[j->p.kind][v]++;
    wrong += v >= WRONG;
    if (v >= WRONG || verbose)
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
    if (!j->pid) child(p, j->out, right, reference, plain);
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
    const struct limit *l = p.kind < CALL_KINDS ? NULL : &limits[p.kind - CALL_KINDS];
    for (p.n = l ? l->least : 1 + (every > 1 ? p.kind * 7 % every : 0);
         p.n <= (l ? l->most : plain->calls[p.kind]); p.n += l ? l->step * every : every)
        for (int good = l != NULL; good < 2; good++) {
            p.for_good = good;
            const int whose = p.kind == (int)CALL_malloc && p.n < MOST_CALLS ? right->whose[p.n] : CALL_OURS;
            if (whose == CALL_OURS || (whose == CALL_NEW_WAY && !p.cold))
                start(&p, (numbers *)(uintptr_t)right, false, plain);
        }
}

int main(int argc, char **argv)
{
    const char *only_scene = NULL, *only_kind = NULL, *only_cache = NULL;
    long every = 1, only = 0;
    bool good = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(a, "--dir"))
            dir = v, i++;
        else if (!strcmp(a, "--cc"))
            self_cc = v, i++;
        else if (!strcmp(a, "--scene"))
            only_scene = v, i++;
        else if (!strcmp(a, "--kind"))
            only_kind = v, i++;
        else if (!strcmp(a, "--cache"))
            only_cache = v, i++;
        else if (!strcmp(a, "--every"))
            every = atol(v), i++;
        else if (!strcmp(a, "--jobs"))
            n_jobs = atoi(v), i++;
        else if (!strcmp(a, "--point"))
            only = atol(v), good = i + 2 < argc && !strcmp(argv[i + 2], "good"), i += 2;
        else if (!strcmp(a, "--verbose"))
            verbose = true;
        else
            return fprintf(stderr, "sweep: %s?\n", a), 2;
    }
    if (n_jobs < 1 || n_jobs > MOST_JOBS || every < 1) return 2;
    char path[300];
    snprintf(path, sizeof path, "%s/store", dir);
    mkdir(path, 0700);
    setenv("FAULTS_STORE", path, 1);
    setenv("TENSOR_CC", self_cc, 1);
    setenv("TENSOR_PROFILE", "reference", 1);
    setenv("TENSOR_KERNEL_OPT", "1", 1);
    if (!scene_files(dir)) return fprintf(stderr, "sweep: cannot write to %s\n", dir), 2;
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
