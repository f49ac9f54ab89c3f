/* args.h - the command line the examples share.
 *
 * Fill a struct args with the example's defaults, and a list of struct args_more with options of its own,
 * call args_begin for a session, or args_parse and then args_open. Train as long as there is an args_pass
 * over the data, and in each an args_next batch. Exit status of an example: 0 done, 1 failed (one line on
 * stderr says what and where), 2 usage, 130 ended by Ctrl-C, with what --save and
 * --report ask for written. */
#pragma once

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensor_nn.h>

#include "files.h"
#include "interrupt.h"

/* What a name on the command line stands for; a list ends with a NULL. */
struct args_name {
    const char *name;
    int value;
};
static const struct args_name args_devices[] = {
    {"auto", TN_AUTO}, {"cpu", TN_CPU}, {"cuda", TN_CUDA}, {"ref", TN_REF}, {NULL, 0}};
static const struct args_name args_modes[] = {{"fused", TN_FUSED}, {"eager", TN_EAGER}, {NULL, 0}};

/* An option and where its value goes, with the default in place: a whole number, a number above 0, or a text,
 * which may have to be one of `names`. */
struct args_more {
    const char *name, *help;
    long *whole, least, most;
    double *positive;
    const char **text, *label; /* label: "FILE" */
    const struct args_name *names;
};

struct args {
    const char *program, *purpose;
    const char *device, *mode; /* by name; device NULL: "auto", mode NULL: TENSOR_MODE decides */
    long threads, seed;        /* seed 0: 1 */
    const char *data;
    long epochs, steps; /* steps 0: as many as the epochs have */
    long batch;
    double lr;
    const char *log, *events, *save, *resume, *report; /* files, or NULL */
    bool quiet;
    const struct args_more *more; /* until one without a name; NULL: none */
    tn_augment augment;
    bool one_pass; /* all steps are one pass, of windows of a text */
    /* the rest is theirs */
    tn_session *session;
    tn_loader *loader;
    int64_t first, at, total; /* steps: the first of the pass, this one, and all, from 0 */
    FILE *log_file;
    tn_events *curves;
    double clock;
    int64_t step; /* the last that was logged, from 1 */
};

/* The i-th option of all, the example's own behind the common ones; one without a name behind the last. */
static inline struct args_more args_option(struct args *a, int i)
{
    const struct args_more common[] = {
        {"--device", "where to compute; ref: a slow one, in double precision", .text = &a->device,
         .names = args_devices},
        {"--mode", "(TENSOR_MODE, else fused)", .text = &a->mode, .names = args_modes},
        {"--threads", "0: all there are", .whole = &a->threads, .most = 4096},
        {"--seed", "of the initial weights and the order of the data", .whole = &a->seed, .most = LONG_MAX},
        {"--data", "", .text = &a->data, .label = "PATH"},
        {"--epochs", "passes over the data", .whole = &a->epochs, .most = 1000000},
        {"--steps", "stop after so many steps; 0: no limit", .whole = &a->steps, .most = 1L << 40},
        {"--batch", "", .whole = &a->batch, .least = 1, .most = 1 << 24},
        {"--lr", "learning rate", .positive = &a->lr},
        {"--log", "one line a step: {\"step\":1,\"loss\":2.31,\"ms\":4.2}", .text = &a->log,
         .label = "FILE.jsonl"},
        {"--events", "the losses for TensorBoard", .text = &a->events, .label = "FOLDER"},
        {"--save", "write a checkpoint (.safetensors) at the end", .text = &a->save, .label = "FILE"},
        {"--resume", "go on from a checkpoint", .text = &a->resume, .label = "FILE"},
        {"--report", ".html, .json or .txt: what was fused, and why not more", .text = &a->report,
         .label = "FILE"}};
    const int n = (int)(sizeof(common) / sizeof(*common));
    return i < n ? common[i] : a->more ? a->more[i - n] : (struct args_more){.name = NULL};
}

static inline void args_usage(struct args *a, FILE *out)
{
    fprintf(out, "usage: %s [options]\n%s\n\n", a->program, a->purpose);
    struct args_more o;
    for (int i = 0; (o = args_option(a, i)).name; i++) {
        int n = fprintf(out, "  %s %s", o.name, o.names ? "" : o.whole ? "N" : o.positive ? "X" : o.label);
        for (int k = 0; o.names && o.names[k].name; k++)
            n += fprintf(out, "%s%s", k ? "|" : "", o.names[k].name);
        fprintf(out, "%*s%s%s", 30 - n, "", o.help, *o.help && (!o.text || *o.text) ? " " : "");
        if (o.whole) fprintf(out, "(%ld)", *o.whole);
        if (o.positive) fprintf(out, "(%g)", *o.positive);
        if (o.text && *o.text) fprintf(out, "(%s)", *o.text);
        fprintf(out, "\n");
    }
    fprintf(out, "  --quiet                     no progress\n"
                 "  --help\n");
}

static inline void args_refuse(const struct args *a, const char *option, const char *value, const char *wants)
{
    fprintf(stderr, "%s: %s %s: %s (--help lists the options)\n", a->program, option, value ? value : "",
            wants);
    exit(2);
}

/* The one of `names` that is called `value`. */
static inline const struct args_name *args_choice(const struct args *a, const char *option, const char *value,
                                                  const struct args_name *names)
{
    char wants[80] = "must be";
    for (int i = 0; names[i].name; i++) {
        size_t n = strlen(wants);
        if (!strcmp(value, names[i].name)) return &names[i];
        snprintf(wants + n, sizeof(wants) - n, "%s %s", i ? " or" : "", names[i].name);
    }
    args_refuse(a, option, value, wants);
    return NULL;
}

/* Puts an option's value where it goes, or ends the program. */
static inline void args_take(const struct args *a, const struct args_more *o, const char *value)
{
    char *end, wants[80];
    errno = 0;
    if (o->text) {
        *o->text = o->names ? args_choice(a, o->name, value, o->names)->name : value;
    } else if (o->whole) {
        *o->whole = strtol(value, &end, 10);
        snprintf(wants, sizeof(wants), "must be a whole number from %ld to %ld", o->least, o->most);
        if (*value < '0' || *value > '9' || *end || errno || *o->whole < o->least || *o->whole > o->most)
            args_refuse(a, o->name, value, wants);
    } else {
        *o->positive = strtod(value, &end);
        if (end == value || *end || !(*o->positive > 0) || *o->positive > 1e6)
            args_refuse(a, o->name, value, "must be a number above 0, up to 1e6");
    }
}

/* Reads the options into `a`, or ends the program. */
static inline void args_parse(struct args *a, int argc, char **argv)
{
    interrupt_watch();
    if (!a->device) a->device = "auto";
    if (!a->seed) a->seed = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            args_usage(a, stdout);
            exit(0);
        }
        if (!strcmp(argv[i], "--quiet")) {
            a->quiet = true;
            continue;
        }
        struct args_more o;
        for (int k = 0; (o = args_option(a, k)).name && strcmp(argv[i], o.name);) k++;
        if (!o.name) args_refuse(a, argv[i], "", "no such option");
        if (i + 1 == argc) args_refuse(a, argv[i], "", "needs a value");
        args_take(a, &o, argv[++i]);
    }
    if (a->report && !is_report(a->report))
        args_refuse(a, "--report", a->report, "must end in .html, .json or .txt");
}

static inline double args_clock(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6; /* ms */
}

/* A session as asked for, with the log file open; NULL after saying why. */
static inline tn_session *args_open(struct args *a)
{
    const char *const path[] = {a->save, a->report}, *why;
    for (int i = 0; i < 2; i++) { /* noticed now, not after training; the log is opened now */
        if (!path[i] || can_be_written(path[i], &why)) continue;
        fprintf(stderr, "%s: %s cannot be written: %s\n", a->program, path[i], why);
        return NULL;
    }
    const int device = args_choice(a, "--device", a->device, args_devices)->value;
    const int mode = a->mode ? args_choice(a, "--mode", a->mode, args_modes)->value : TN_MODE_AUTO;
    tn_session *s = tn_open(.device = (tn_device_kind)device, .mode = (tn_mode)mode,
                            .seed = (uint64_t)a->seed, .threads = (int)a->threads);
    if (!s) {
        const char *other = getenv("TENSOR_DEVICE");
        bool by_variable = !strcmp(a->device, "auto") && other && *other;
        fprintf(stderr, "%s: no session on the device '%s'%s\n", a->program, by_variable ? other : a->device,
                by_variable ? ", which TENSOR_DEVICE names" : "");
        return NULL;
    }
    if (tn_rank(s) && !freopen("/dev/null", "w", stdout)) a->quiet = true; /* the first rank's says it all */
    if (a->log && !tn_rank(s) && !(a->log_file = fopen(a->log, "w"))) {
        fprintf(stderr, "%s: %s cannot be written: %s\n", a->program, a->log, strerror(errno));
        tn_close(s);
        return NULL;
    }
    if (a->log_file) setvbuf(a->log_file, NULL, _IOLBF, BUFSIZ); /* to be followed, and kept if interrupted */
    if (a->events && !tn_rank(s) && !(a->curves = tn_events_open(s, a->events))) {
        fprintf(stderr, "%s: %s\n", a->program, tn_error_text(s));
        if (a->log_file) fclose(a->log_file);
        tn_close(s);
        return NULL;
    }
    if (a->report) tn_profile(s, true);
    a->clock = args_clock();
    return a->session = s;
}

static inline tn_session *args_begin(struct args *a, int argc, char **argv)
{
    args_parse(a, argc, argv);
    return args_open(a);
}

/* Begins the first pass over the data, or the next; with --resume what --steps has left of one. False: that
 * was the last. */
static inline bool args_pass(struct args *a, tn_dataset *d)
{
    const int64_t batch = a->batch * tn_ranks(a->session);
    int64_t pass = (tn_dataset_count(d) + batch - 1) / batch;
    const bool begun = a->total > 0;
    if (!begun) a->total = a->epochs * pass;
    if (!begun && a->steps && (a->steps < a->total || (a->one_pass && !a->total))) a->total = a->steps;
    if (a->one_pass) pass = a->total;
    a->first = begun ? a->first + pass : a->one_pass ? 0 : tn_dataset_epoch(d) * pass;
    const int64_t left = a->total - a->first;
    if (left <= 0 || interrupted() || tn_error(a->session)) return false;
    a->loader = tn_loader_open(d, .batch = a->batch, .batches = a->one_pass || left < pass ? left : 0,
                               .shuffle = 1, .progress = !a->quiet, .augment = a->augment);
    return true;
}

/* The pass's next batch; false: it is over, or interrupted. */
static inline bool args_next(struct args *a, tn_batch *b)
{
    if (interrupted() || !tn_next(a->loader, b)) return false;
    a->at = a->first + b->number;
    return true;
}

/* Once in each step. One line of the log, one event; reads the loss, which waits for it, so only where one of
 * them is asked for. */
static inline void args_log(struct args *a, tn_tensor *loss)
{
    a->step = a->at + 1;
    if (!a->log && !a->events) return;
    double value = tn_item(tn_mean_over_ranks(loss)), now = args_clock();
    if (a->curves) tn_events_scalar(a->curves, "loss", a->step, value);
    if (!a->log_file) return;
    fprintf(a->log_file, "{\"step\":%lld,\"loss\":", (long long)a->step);
    fprintf(a->log_file, isfinite(value) ? "%.6g" : "null", value); /* JSON has no NaN */
    fprintf(a->log_file, ",\"ms\":%.3f}\n", now - a->clock);
    a->clock = now;
}

/* The share of n items that are right, as the examples print it; nothing after an error. */
static inline void args_accuracy(const tn_session *s, double accuracy, int64_t n)
{
    if (tn_error(s)) return;
    printf("test accuracy %.2f %% (%lld/%lld)\n", 100 * accuracy, llround(accuracy * (double)n),
           (long long)n);
    fflush(stdout);
}

/* Saves, reports and closes as asked; the program's exit status. A run that was interrupted before its first
 * step has nothing to save: a file that is there may be of a run that had. */
static inline int args_finish(struct args *a, tn_session *s)
{
    int failed = 0;
    const bool save = a->save && (a->step || !interrupted());
    if (save && !tn_error(s)) tn_save(s, a->save);
    if (a->report && !tn_error(s)) tn_report(s, a->report);
    if (!a->quiet && !tn_error(s)) tn_curves(s, stderr);
    if (a->log_file && fclose(a->log_file)) {
        fprintf(stderr, "%s: %s cannot be written\n", a->program, a->log);
        failed = 1;
    }
    if (tn_error(s)) {
        fprintf(stderr, "%s: %s\n", a->program, tn_error_text(s));
        failed = 1;
    } else if (interrupted()) {
        fprintf(stderr, "%s%s: interrupted ", isatty(2) ? "\n" : "", a->program);
        if (a->step)
            fprintf(stderr, "after step %lld, ", (long long)a->step);
        else
            fprintf(stderr, "before its first step, ");
        fprintf(stderr, "%s%s\n", save ? "which is saved: go on with --resume " : "nothing is saved",
                save ? a->save : "");
    }
    tn_close(s);
    return interrupted() ? 130 : failed;
}
