/* report.c - the table for people, the JSON for programs. Rows that lose are printed like the others: '!'
 * marks a share below what is aimed at, fused slower than eager, or more than 1.1 times the time of the
 * kernel by hand; 'pred' is the fused time over the one that the target profile predicts; '~' best
 * times instead of medians, for want of quiet rounds: what compares times that were taken one after the other
 * is left out for a model then, and a line below the table says why. */
#include <math.h>
#include <string.h>

#include "bench.h"

/* In 80 columns, as all that is printed here: a case's name, and a row for each direction. */
void print_case_head(void)
{
    printf("%-8s %8s %8s %6s %7s %10s %7s %5s %5s %5s\n", "case", "eager ms", "fused ms", "faster", "kernels",
           "MB", "% copy", "limit", "hand", "pred");
}

/* A ratio in at most four places, whatever a disturbed machine made of it; none where it says nothing. */
static void write_ratio(char *text, size_t size, double ratio)
{
    if (ratio < 9999) snprintf(text, size, "%.*f", ratio < 9.995 ? 2 : ratio < 99.95 ? 1 : 0, ratio);
}

static void print_figures(const char *direction, const struct figures *f, bool quiet)
{
    const double eager = (double)f->eager_bytes * 1e-6, fused = (double)f->fused_bytes * 1e-6;
    const bool some = f->fused_ms > 0; /* a difference of two times that were disturbed may be none */
    char kernels[24], bytes[40], share[24] = "", aim[8] = "", limit[16] = "", hand[16] = "", said[16] = "";
    char faster[16] = "";
    bool low = f->bar > 0 && f->share<f->bar, slow = f->fused_ms> f->eager_ms;
    bool beaten = f->fused_ms > 1.1 * f->yardstick_ms;
    snprintf(kernels, sizeof kernels, "%llu > %llu", f->eager_kernels, f->fused_kernels);
    snprintf(bytes, sizeof bytes, "%.*f > %.*f", eager < 10, eager, fused < 10, fused);
    if (f->bar > 0) snprintf(aim, sizeof aim, "/%.0f", 100 * f->bar);
    if (!isnan(f->share)) snprintf(share, sizeof share, "%.0f%s%s", 100 * f->share, aim, low ? "!" : " ");
    if (!isnan(f->limit)) snprintf(limit, sizeof limit, "%.0f", 100 * f->limit);
    if (some) write_ratio(faster, sizeof faster, f->eager_ms / f->fused_ms);
    if (some && !isnan(f->yardstick_ms)) {
        write_ratio(hand, sizeof hand - 1, f->fused_ms / f->yardstick_ms);
        strcat(hand, beaten ? "!" : " ");
    }
    if (some && f->predicted_ms > 0) write_ratio(said, sizeof said, f->fused_ms / f->predicted_ms);
    printf("%-8s %8.3f %8.3f %5s%s %7s %10s %7s %5s %5s %5s%s\n", direction, f->eager_ms, f->fused_ms, faster,
           slow ? "!" : " ", kernels, bytes, share, limit, hand, said, quiet ? "" : " ~");
}

void print_case(const struct case_row *r)
{
    printf("%s, %s\n", r->name, r->shape);
    print_figures("forward", &r->forward, r->rounds.quiet);
    if (r->has_backward) {
        print_figures("backward", &r->backward, r->rounds.quiet);
        print_figures("step", &r->step, r->rounds.quiet);
    }
    fflush(stdout);
}

/* What fusing does to a training step in a row, and what the step could be below it. */
void print_models(const struct model_row *m, int n)
{
    printf("%-14s %9s %9s %7s  %-11s %s\n", "training step", "eager ms", "fused ms", "faster", "kernels",
           "peak MB");
    for (int i = 0; i < n; i++) {
        char kernels[48];
        snprintf(kernels, sizeof kernels, "%llu > %llu", m[i].eager_kernels, m[i].fused_kernels);
        printf("%-14s %9.3f %9.3f %6.2f%s  %-11s %.1f > %.1f%s\n", m[i].name, m[i].eager_ms, m[i].fused_ms,
               m[i].eager_ms / m[i].fused_ms, m[i].fused_ms > m[i].eager_ms ? "!" : " ", kernels,
               (double)m[i].eager_peak * 1e-6, (double)m[i].fused_peak * 1e-6, m[i].rounds.quiet ? "" : " ~");
    }
    for (int i = 0; i < n; i++) {
        const double over = m[i].fused_ms / m[i].floor_ms;
        printf("\n%s\n  library calls alone: %.3f ms; with what kernels must move: %.3f ms\n", m[i].name,
               m[i].library_ms, m[i].floor_ms);
        if (m[i].rounds.quiet) /* else they compare times of different moments */
            printf("  the fused step takes %.2f%s times that, and %.2f times the predicted %.3f ms\n", over,
                   over > 1.35 ? "!" : "", m[i].fused_ms / m[i].predicted_ms, m[i].predicted_ms);
        printf("  first step: %.0f ms with an empty kernel cache, %.0f ms with a full one\n", m[i].cold_ms,
               m[i].warm_ms);
        printf("  the program's side: %.0f ns a call, at most %.0f us a step\n", m[i].call_ns, m[i].step_us);
    }
    fflush(stdout);
}

void print_disturbed(const struct case_row *c, int n_case, const struct model_row *m, int n_model)
{
    int rows = 0, rounds = 0, disturbed = 0;
    for (int i = 0; i < n_case + n_model; i++) {
        const struct rounds *r = i < n_case ? &c[i].rounds : &m[i - n_case].rounds;
        if (r->quiet) continue;
        rows++;
        rounds += r->kept + r->discarded;
        disturbed += r->discarded;
    }
    if (rows)
        printf("~ disturbed: in %d of %d rounds of %d row%s other programs took over 5 %% of the\n"
               "  processors; best times, not medians, are shown. A quiet machine is wanted,\n"
               "  or more --patience\n",
               disturbed, rounds, rows, rows > 1 ? "s" : "");
}

/* ---- JSON ---- */

static void number(FILE *f, const char *key, double v)
{
    fprintf(f, "\"%s\":", key);
    fprintf(f, isfinite(v) ? "%.6g" : "null", v); /* JSON has no NaN */
}

static void numbers(FILE *f, int n, const char *const *key, const double *v)
{
    for (int i = 0; i < n; i++) {
        number(f, key[i], v[i]);
        if (i + 1 < n) fputc(',', f);
    }
}

static void json_figures(FILE *f, const char *name, const struct figures *g)
{
    static const char *const key[] = {"eager_ms",     "fused_ms",     "eager_kernels", "fused_kernels",
                                      "eager_bytes",  "fused_bytes",  "fused_share",   "limit_share",
                                      "predicted_ms", "yardstick_ms", "compute_ms",    "max_err"};
    const double count[] = {(double)g->eager_kernels, (double)g->fused_kernels, (double)g->eager_bytes,
                            (double)g->fused_bytes};
    const double v[] = {g->eager_ms,     g->fused_ms,     count[0],      count[1],
                        count[2],        count[3],        g->share,      g->limit,
                        g->predicted_ms, g->yardstick_ms, g->compute_ms, g->max_err};
    fprintf(f, ",\n   \"%s\":{", name);
    numbers(f, sizeof v / sizeof *v, key, v);
    fputc('}', f);
}

static void json_rounds(FILE *f, const struct rounds *r)
{
    fprintf(f, "\"rounds\":%d,\"discarded_rounds\":%d,\"quiet\":%s", r->kept, r->discarded,
            r->quiet ? "true" : "false");
}

static void json_model(FILE *f, const struct model_row *m)
{
    static const char *const key[] = {"batch",
                                      "eager_ms",
                                      "fused_ms",
                                      "predicted_ms",
                                      "library_ms",
                                      "floor_ms",
                                      "copy_gbs",
                                      "eager_kernels",
                                      "fused_kernels",
                                      "eager_bytes",
                                      "fused_bytes",
                                      "eager_peak_bytes",
                                      "fused_peak_bytes",
                                      "first_step_cold_ms",
                                      "first_step_warm_ms",
                                      "host_ns_per_call",
                                      "host_us_per_step"};
    const double kernels[] = {(double)m->eager_kernels, (double)m->fused_kernels};
    const double bytes[] = {(double)m->eager_bytes, (double)m->fused_bytes, (double)m->eager_peak,
                            (double)m->fused_peak};
    const double v[] = {m->batch,    m->eager_ms, m->fused_ms, m->predicted_ms, m->library_ms, m->floor_ms,
                        m->copy_gbs, kernels[0],  kernels[1],  bytes[0],        bytes[1],      bytes[2],
                        bytes[3],    m->cold_ms,  m->warm_ms,  m->call_ns,      m->step_us};
    fprintf(f, "  {\"name\":\"%s\",", m->name);
    numbers(f, sizeof v / sizeof *v, key, v);
    fputc(',', f);
    json_rounds(f, &m->rounds);
    fputc('}', f);
}

bool write_json(const char *path, const struct options *o, int threads, const char *profile,
                const struct case_row *c, int n_case, const struct model_row *m, int n_model)
{
    FILE *f = fopen(path, "w");
    if (!f) return false;
    fprintf(f, "{\"device\":\"%s\",\"threads\":%d,\"profile\":\"%s\",\"rounds\":%d,\n \"cases\":[",
            strcmp(o->device, "cuda") ? "cpu" : "cuda", threads, profile, o->rounds);
    for (int i = 0; i < n_case; i++) {
        fprintf(f, "%s\n  {\"name\":\"%s\",\"shape\":\"%s\",\"footprint\":\"%s\",", i ? "," : "", c[i].name,
                c[i].shape, c[i].footprint);
        number(f, "copy_gbs", c[i].copy_gbs);
        fputc(',', f);
        number(f, "copy_plain_gbs", c[i].copy_plain_gbs);
        fputc(',', f);
        number(f, "read_gbs", c[i].read_gbs);
        fputc(',', f);
        json_rounds(f, &c[i].rounds);
        json_figures(f, "forward", &c[i].forward);
        if (c[i].has_backward) {
            json_figures(f, "backward", &c[i].backward);
            json_figures(f, "step", &c[i].step);
        }
        fputc('}', f);
    }
    fprintf(f, "],\n \"models\":[");
    for (int i = 0; i < n_model; i++) {
        fputs(i ? ",\n" : "\n", f);
        json_model(f, &m[i]);
    }
    fprintf(f, "]}\n");
    return !fclose(f);
}
