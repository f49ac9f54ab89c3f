/* run.c - trains a scene with a fault and judges what each action makes of it. Read first: run_scene. */
#include "run.h"

#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const verdict_name[VERDICTS] = {
#define X(verdict, name) name,
    VERDICT_LIST(X)
#undef X
};

const limit limits[LIMITS] = {
    {"addresses", RLIMIT_AS, 1 << 20, 1, 200, 2},
    {"descriptors", RLIMIT_NOFILE, 1, 3, 24, 1},
    {"file size", RLIMIT_FSIZE, 512, 0, 400, 8}, /* as a disk that is full */
};

const char *kind_name(int kind)
{
    return kind < CALL_KINDS ? call_name[kind] : limits[kind - CALL_KINDS].name;
}

const char *run_dir = "/tmp";
bool run_verbose;

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
    if (run_verbose) fprintf(stderr, "    log %d: %s\n", level, text);
}

/* An action of s has not done its work (or did): the session must know why. True: go on. */
static bool done(tn_session *s, bool did, const char *action)
{
    if (tn_error(s)) {
        if (!*tn_error_text(s)) judge(SILENT, "%s: error %d without a text", action, tn_error(s));
        if (run_verbose && !me.broke)
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
    tn_session *s = tn_open(.device = TN_CPU, .mode = sc->mode, .precision = sc->precision, .seed = 3,
                            .threads = 2, .cache_dir = cache, .log = take_log);
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
    bool ok = done(s, sc->init(s, &net, run_dir), "layers");
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
    ok = done(s, sc->init(s, &other, run_dir), "layers again") && done(s, !tn_load(s, me.file), "load");
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

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

void remove_all(const char *folder) { nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/* From here on the run has so much of it and no more. */
static void set_limit(const limit *l, long n)
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
    if (run_verbose) backtrace_symbols_fd(frame, backtrace(frame, 48), 2);
}

static void show_crash(int sig)
{
    show_end();
    signal(sig, SIG_DFL);
    raise(sig);
}

void run_point(const point *p, report *out, numbers *right, bool reference, const report *plain)
{
    char own[256], cache[300];
    snprintf(own, sizeof own, "%s/run.%ld", run_dir, (long)getpid());
    snprintf(cache, sizeof cache, "%s/%s", p->cold ? own : run_dir, p->cold ? "cache" : "warm");
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
    blocks_watch(run_verbose && !reference);
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
    /* what the loader has said of its last failure is kept until it has been asked twice */
    dlerror(), dlerror();
    out->blocks = blocks_live(NULL, NULL);
    /* what libraries keep for themselves is made at different times */
    long lost = reference ? 0 : out->blocks - plain->blocks;
    if (lost > 0) judge(LEAK, "%ld blocks of memory", lost);
    if (run_verbose && lost > 0) blocks_live(name_block, NULL);
    if (descriptors() > open_before && p->kind != (int)CALL_close)
        judge(LEAK, "%d descriptors", descriptors() - open_before);
    DIR *d = opendir(own);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strstr(e->d_name, ".part") && p->kind != (int)CALL_unlink) judge(LEAK, "the file %s", e->d_name);
    if (!fired && out->verdict == RIGHT) out->verdict = UNTOUCHED;
    remove_all(own);
    fflush(NULL);
    _exit(0);
}
