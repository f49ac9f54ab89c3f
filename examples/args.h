/* args.h - the command line the examples share.
 *
 * Fill a struct args with the example's defaults, and a list of struct args_more with options of its own,
 * call args_parse, then args_open for a session. Exit status of an example: 0 done, 1 failed (one line on
 * stderr says what and where), 2 usage, 130 ended by Ctrl-C, with what --save and --report ask for written.
 */
#ifndef ARGS_H
#define ARGS_H

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensor_nn.h>

#include "files.h"
#include "interrupt.h"

/* An option of one example: a whole number or a number above 0, with its default in place. */
struct args_more {
    const char *name, *help;
    long *whole, least, most;
    double *positive;
};

/* What a name on the command line stands for; a list ends with a NULL. */
struct args_name {
    const char *name;
    int value;
};
static const struct args_name args_devices[] = {
    {"auto", TN_AUTO}, {"cpu", TN_CPU}, {"cuda", TN_CUDA}, {"ref", TN_REF}, {NULL, 0}};
static const struct args_name args_modes[] = {{"fused", TN_FUSED}, {"eager", TN_EAGER}, {NULL, 0}};

struct args {
    const char *program, *purpose;
    const char *device, *mode; /* by name; mode NULL: TENSOR_MODE decides */
    int threads;
    uint64_t seed;
    const char *data;
    long epochs, steps; /* steps 0: as many as the epochs have */
    long batch;
    double lr;
    const char *log, *save, *resume, *report; /* files, or NULL */
    bool quiet;
    const struct args_more *more; /* until one without a name; NULL: none */
    FILE *log_file;
    double clock;
    long step; /* the last that was logged */
};

/* "--device auto|cpu", and what it is in the column of the others. */
static inline void args_help_names(FILE *out, const char *option, const struct args_name *names,
                                   const char *help)
{
    int n = fprintf(out, "  %s ", option);
    for (int i = 0; names[i].name; i++) n += fprintf(out, "%s%s", i ? "|" : "", names[i].name);
    fprintf(out, "%*s%s\n", 30 - n, "", help);
}

static inline void args_usage(const struct args *a, FILE *out)
{
    fprintf(out, "usage: %s [options]\n%s\n\n", a->program, a->purpose);
    args_help_names(out, "--device", args_devices,
                    "where to compute; ref: a slow one, in double precision (auto)");
    args_help_names(out, "--mode", args_modes, "(TENSOR_MODE, else fused)");
    fprintf(out,
            "  --threads N                 0: all there are (%d)\n"
            "  --seed N                    of the initial weights and the order of the data (%llu)\n"
            "  --data PATH                 (%s)\n"
            "  --epochs N                  passes over the data (%ld)\n"
            "  --steps N                   stop after so many steps; 0: no limit (%ld)\n"
            "  --batch N                   (%ld)\n"
            "  --lr X                      learning rate (%g)\n"
            "  --log FILE.jsonl            one line a step: {\"step\":1,\"loss\":2.31,\"ms\":4.2}\n"
            "  --save FILE                 write a checkpoint (.safetensors) at the end\n"
            "  --resume FILE               go on from a checkpoint\n"
            "  --report FILE               .html, .json or .txt: what was fused, and why not more\n",
            a->threads, (unsigned long long)a->seed, a->data, a->epochs, a->steps, a->batch, a->lr);
    for (const struct args_more *m = a->more; m && m->name; m++) {
        int pad = 24 - (int)strlen(m->name);
        fprintf(out, "  %s %c%*s  %s (", m->name, m->whole ? 'N' : 'X', pad > 0 ? pad : 0, "", m->help);
        fprintf(out, m->whole ? "%.0f)\n" : "%g)\n", m->whole ? (double)*m->whole : *m->positive);
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

static inline long args_whole(const struct args *a, const char *option, const char *value, long least,
                              long most)
{
    char *end, wants[80];
    errno = 0;
    long n = strtol(value, &end, 10);
    if (*value >= '0' && *value <= '9' && !*end && !errno && n >= least && n <= most) return n;
    snprintf(wants, sizeof(wants), "must be a whole number from %ld to %ld", least, most);
    args_refuse(a, option, value, wants);
    return 0;
}

static inline double args_positive(const struct args *a, const char *option, const char *value)
{
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end || !(x > 0) || x > 1e6)
        args_refuse(a, option, value, "must be a number above 0, up to 1e6");
    return x;
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

/* An option from the example's list, likewise. */
static inline bool args_own_option(const struct args *a, const char *o, const char *v)
{
    for (const struct args_more *m = a->more; m && m->name; m++) {
        if (strcmp(o, m->name)) continue;
        if (m->whole)
            *m->whole = args_whole(a, o, v, m->least, m->most);
        else
            *m->positive = args_positive(a, o, v);
        return true;
    }
    return false;
}

/* One option with its value; false when there is no such option. */
static inline bool args_option(struct args *a, const char *o, const char *v)
{
    if (!strcmp(o, "--device"))
        a->device = args_choice(a, o, v, args_devices)->name;
    else if (!strcmp(o, "--mode"))
        a->mode = args_choice(a, o, v, args_modes)->name;
    else if (!strcmp(o, "--threads"))
        a->threads = (int)args_whole(a, o, v, 0, 4096);
    else if (!strcmp(o, "--seed"))
        a->seed = (uint64_t)args_whole(a, o, v, 0, (long)(~0UL >> 1));
    else if (!strcmp(o, "--data"))
        a->data = v;
    else if (!strcmp(o, "--epochs"))
        a->epochs = args_whole(a, o, v, 0, 1000000);
    else if (!strcmp(o, "--steps"))
        a->steps = args_whole(a, o, v, 0, 1L << 40);
    else if (!strcmp(o, "--batch"))
        a->batch = args_whole(a, o, v, 1, 1 << 24);
    else if (!strcmp(o, "--lr"))
        a->lr = args_positive(a, o, v);
    else if (!strcmp(o, "--log"))
        a->log = v;
    else if (!strcmp(o, "--save"))
        a->save = v;
    else if (!strcmp(o, "--resume"))
        a->resume = v;
    else if (!strcmp(o, "--report"))
        a->report = v;
    else
        return args_own_option(a, o, v);
    return true;
}

/* Reads the options into `a`, or ends the program. */
static inline void args_parse(struct args *a, int argc, char **argv)
{
    interrupt_watch();
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            args_usage(a, stdout);
            exit(0);
        }
        if (!strcmp(argv[i], "--quiet")) {
            a->quiet = true;
        } else {
            if (!args_option(a, argv[i], i + 1 < argc ? argv[i + 1] : ""))
                args_refuse(a, argv[i], "", "no such option");
            if (i + 1 == argc) args_refuse(a, argv[i], "", "needs a value");
            i++;
        }
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
    tn_session *s = tn_open(.device = (tn_device_kind)device, .mode = (tn_mode)mode, .seed = a->seed,
                            .threads = a->threads);
    if (!s) {
        const char *other = getenv("TENSOR_DEVICE");
        bool by_variable = !strcmp(a->device, "auto") && other && *other;
        fprintf(stderr, "%s: no session on the device '%s'%s\n", a->program, by_variable ? other : a->device,
                by_variable ? ", which TENSOR_DEVICE names" : "");
        return NULL;
    }
    if (a->log && !(a->log_file = fopen(a->log, "w"))) {
        fprintf(stderr, "%s: %s cannot be written: %s\n", a->program, a->log, strerror(errno));
        tn_close(s);
        return NULL;
    }
    if (a->log_file) setvbuf(a->log_file, NULL, _IOLBF, BUFSIZ); /* to be followed, and kept if interrupted */
    if (a->report) tn_profile(s, true);
    a->clock = args_clock();
    return s;
}

/* Once in each step. One line of the log; reads the loss, which waits for it, so only with --log. */
static inline void args_log(struct args *a, long step, tn_tensor *loss)
{
    a->step = step;
    if (!a->log_file) return;
    double value = tn_item(loss), now = args_clock();
    fprintf(a->log_file, "{\"step\":%ld,\"loss\":", step);
    fprintf(a->log_file, isfinite(value) ? "%.6g" : "null", value); /* JSON has no NaN */
    fprintf(a->log_file, ",\"ms\":%.3f}\n", now - a->clock);
    a->clock = now;
}

/* Saves, reports and closes as asked; the program's exit status. A run that was interrupted before its first
 * step has nothing to save: a file that is there may be of a run that had. */
static inline int args_finish(struct args *a, tn_session *s)
{
    int failed = 0;
    const bool save = a->save && (a->step || !interrupted());
    if (save && !tn_error(s)) tn_save(s, a->save);
    if (a->report && !tn_error(s)) tn_report(s, a->report);
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
            fprintf(stderr, "after step %ld, ", a->step);
        else
            fprintf(stderr, "before its first step, ");
        fprintf(stderr, "%s%s\n", save ? "which is saved: go on with --resume " : "nothing is saved",
                save ? a->save : "");
    }
    tn_close(s);
    return interrupted() ? 130 : failed;
}

#endif
