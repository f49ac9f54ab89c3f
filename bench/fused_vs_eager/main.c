/* main.c - measures each fusion, and the two example models, in both modes.
 *
 *   build/fused_vs_eager                                   all, tensors larger than the caches: minutes
 *   build/fused_vs_eager --case softmax --shape cache
 *   build/fused_vs_eager --case gpt --json gpt.json
 *   build/fused_vs_eager --calibrate                       the target profile of this machine, then no more
 *
 * For each case it prints, forward, backward and for the whole step, both times, the kernels and bytes of
 * both modes, the share of a copy's speed the fused mode reaches in moving what it must, and its time beside
 * that of a kernel written by hand and beside what the target profile predicts. Both modes, copy and
 * hand-written kernel alternate in one process; times are medians over rounds in which the machine did
 * nothing else. It ends with a table of the models. What the columns mean: docs/benchmarks.md.
 *
 * Read bench.h first. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "examples/files.h"

enum { MAX_CASES = 64, N_MODELS = 2 };
static const char *const model_name[N_MODELS] = {"mnist_cnn", "gpt"};

static void usage(FILE *out)
{
    fprintf(out, "usage: fused_vs_eager [options]\n"
                 "Measures fused beside eager mode.\n\n"
                 "  --case NAME|all|fusions|models  what to measure (all)\n"
                 "  --shape dram|cache|small        65536x1024, 4096x1024 or 512x256 floats (dram)\n"
                 "  --device auto|cpu|cuda          where to compute (auto)\n"
                 "  --threads N                     0: all there are (0)\n"
                 "  --rounds N                      quiet rounds wanted for each case (7)\n"
                 "  --patience S                    seconds to find them (60)\n"
                 "  --json FILE                     write the figures there too\n"
                 "  --calibrate                     measure the machine's target profile\n"
                 "  --plans                         print fused plans, and where they were cut\n"
                 "  --list                          names of cases and models\n"
                 "  --help\n");
}

static int refuse(const char *option, const char *value, const char *why)
{
    fprintf(stderr, "fused_vs_eager: %s %s: %s (--help lists the options)\n", option, value, why);
    return 2;
}

static bool among(const char *v, const char *a, const char *b, const char *c)
{
    return !strcmp(v, a) || !strcmp(v, b) || !strcmp(v, c);
}

/* What the options that are looked at here take; NULL: there is no such option. */
static const char *wants(const char *option)
{
    static const char *const known[][2] = {{"--shape", "must be dram, cache or small"},
                                           {"--device", "must be auto, cpu or cuda"},
                                           {"--threads", "must be a whole number from 0 to 1000000"},
                                           {"--rounds", "must be a whole number from 1 to 100"},
                                           {"--patience", "must be a number of seconds from 0 to 1e6"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(option, known[i][0])) return known[i][1];
    return NULL;
}

/* Takes one option with its value; an exit status, or -1: go on. */
static int take(struct options *o, const char *option, const char *v)
{
    char *end = NULL;
    double x = strtod(v, &end);
    bool number = end != v && !*end && x >= 0 && x <= 1e6, whole = number && x == (double)(int)x;
    if (!strcmp(option, "--case"))
        o->which = v;
    else if (!strcmp(option, "--json"))
        o->json = v;
    else if (!strcmp(option, "--shape") && among(v, "dram", "cache", "small"))
        o->shape = v;
    else if (!strcmp(option, "--device") && among(v, "auto", "cpu", "cuda"))
        o->device = v;
    else if (!strcmp(option, "--threads") && whole)
        o->threads = (int)x;
    else if (!strcmp(option, "--rounds") && whole && x >= 1 && x <= 100)
        o->rounds = (int)x;
    else if (!strcmp(option, "--patience") && number)
        o->patience = x;
    else
        return refuse(option, wants(option) ? v : "", wants(option) ? wants(option) : "no such option");
    return -1;
}

static bool wanted(const struct options *o, const char *name, const char *kind)
{
    return among(o->which, "all", kind, name);
}

static int list(void)
{
    for (int i = 0; i < n_fusions; i++) puts(fusions[i].name);
    puts("adamw");
    for (int i = 0; i < N_MODELS; i++) puts(model_name[i]);
    return 0;
}

int main(int argc, char **argv)
{
    static struct case_row row[MAX_CASES];
    struct model_row model[N_MODELS];
    char profile[64] = "";
    struct options o = {.which = NULL, .shape = "dram", .device = "auto", .rounds = 7, .patience = 60};
    const char *child = NULL, *cache = NULL;
    int n_row = 0, n_model = 0, status = 0;
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--help")) return usage(stdout), 0;
        if (!strcmp(argv[i], "--list")) return list();
        bool *flag = !strcmp(argv[i], "--plans")       ? &o.plans
                     : !strcmp(argv[i], "--cpu-time")  ? &o.cpu_time
                     : !strcmp(argv[i], "--calibrate") ? &o.calibrate
                                                       : NULL;
        if (flag) {
            *flag = true;
            continue;
        }
        if (!strcmp(argv[i], "--first-step") && i + 2 < argc) {
            child = argv[i + 1];
            cache = argv[i + 2];
            i += 2;
            continue;
        }
        if (!v) return refuse(argv[i], "", "no such option, or it needs a value");
        if ((status = take(&o, argv[i++], v)) >= 0) return status;
        status = 0;
    }
    if (child) return first_step(child, cache, &o);
    const char *why;
    if (o.json && !can_be_written(o.json, &why))
        return fprintf(stderr, "fused_vs_eager: %s cannot be written: %s\n", o.json, why), 1;

    tn_session *s = open_mode(&o, TN_FUSED);
    if (!s) return fprintf(stderr, "fused_vs_eager: no session on the device '%s'\n", o.device), 1;
    if (o.calibrate) {
        if (tn_calibrate(s)) return fprintf(stderr, "fused_vs_eager: %s\n", tn_error_text(s)), tn_close(s), 1;
        tn_close(s);
        if (!(s = open_mode(&o, TN_FUSED))) return 1;
    }
    int threads = tn_threads(s);
    snprintf(profile, sizeof profile, "%s", tn_profile_name(s));
    tn_close(s);
    if (o.calibrate && !o.which) return printf("profile %s\n", profile), 0;
    if (!o.which) o.which = "all";
    for (int i = 0; i <= n_fusions; i++) {
        const char *name = i < n_fusions ? fusions[i].name : "adamw";
        if (!wanted(&o, name, "fusions")) continue;
        if (!n_row) print_case_head();
        bool ok =
            i < n_fusions ? measure_case(&fusions[i], &o, &row[n_row]) : measure_optimizer(&o, &row[n_row]);
        if (ok)
            print_case(&row[n_row++]);
        else
            fprintf(stderr, "fused_vs_eager: %s could not be measured\n", name);
        status |= !ok;
    }
    for (int i = 0; i < N_MODELS; i++) {
        if (!wanted(&o, model_name[i], "models")) continue;
        if (measure_model(model_name[i], &o, &model[n_model]))
            n_model++;
        else
            status = 1;
    }
    if (n_row && n_model) printf("\n");
    if (n_model) print_models(model, n_model);
    print_disturbed(row, n_row, model, n_model);
    if (n_row || n_model) printf("predicted by the target profile %s\n", profile);
    if (!n_row && !n_model && !status) return refuse("--case", o.which, "no such case");
    if (o.json && !write_json(o.json, &o, threads, profile, row, n_row, model, n_model))
        return fprintf(stderr, "fused_vs_eager: %s cannot be written\n", o.json), 1;
    return status;
}
