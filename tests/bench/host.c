/* host.c - what a replayed training step costs the host: a GPT so small that its kernels take next to
 * nothing, on one thread, the same step again and again, and where the time goes.
 *
 *   parts      tn_step_begin; the operators, from the first to the loss; tn_backward; clipping; the update;
 *              tn_step_end, which runs the plan
 *   variants   the step as it is; without its library calls; with launches of empty kernels; without any
 *              device: what is left is the library's own
 *
 * Medians of 2000 steps. Start with main.
 */
#include <stdlib.h>
#include <time.h>

#include "examples/gpt_model.h"
#include "src/device/cpu/builtin.h"
#include "src/device/cpu/pool.h"
#include "src/runtime/session.h"

enum { STEPS = 2000, PARTS = 6, CALLS = 5 + 4 * 17, VOCABULARY = 64 };
static const char *const part_name[PARTS] = {"begin", "operators", "backward", "clip", "update", "end"};
enum { WHOLE, NO_LIBRARY, EMPTY, NO_DEVICE, VARIANTS };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int no_launch(tn_device *d, tn_kernel *k, const tn_args *a, const tn_grid *g, tn_errbuf *e)
{
    (void)d, (void)k, (void)a, (void)g, (void)e;
    return 0;
}

static void nothing(void *arg, int64_t begin, int64_t end)
{
    (void)arg, (void)begin, (void)end;
}

static int empty_launch(tn_device *d, tn_kernel *k, const tn_args *a, const tn_grid *g, tn_errbuf *e)
{
    (void)k, (void)a, (void)e;
    tn_pool_run(tn_cpu_pool(d), nothing, NULL, g->n, g->chunk);
    if (g->finish_n > 0) tn_pool_run(tn_cpu_pool(d), nothing, NULL, g->finish_n, g->finish_chunk);
    return 0;
}

static int no_gemm(tn_device *d, const tn_gemm *g, tn_errbuf *e)
{
    (void)d, (void)g, (void)e;
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs the steps, the last of them timed into us[part][step]. */
static int measure(tn_session *s, struct gpt *m, tn_optim *opt, tn_tensor *x, tn_tensor *y,
                   double (*us)[STEPS])
{
    for (int i = -50; i < STEPS && !tn_error(s); i++) {
        double t[PARTS + 1];
        t[0] = now();
        tn_step_begin(s);
        t[1] = now();
        tn_tensor *loss = tn_cross_entropy(gpt_forward(m, x), y);
        t[2] = now();
        tn_backward(loss);
        t[3] = now();
        tn_clip_grad_norm(opt, 1.0);
        t[4] = now();
        tn_optim_step(opt);
        t[5] = now();
        tn_step_end(s);
        t[6] = now();
        for (int p = 0; p < PARTS && i >= 0; p++) us[p][i] = t[p + 1] - t[p];
    }
    return tn_error(s);
}

int main(void)
{
    static double us[VARIANTS][PARTS][STEPS];
    double sum[VARIANTS] = {0};
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .threads = 1, .seed = 1);
    if (!s) return 1;
    struct gpt m;
    struct gpt_shape shape = {.layers = 4, .heads = 4, .dim = 8, .ctx = 4};
    make_gpt(s, &m, &shape, VOCABULARY);
    tn_optim *opt = gpt_optimizer(s, 1e-3);
    tn_tensor *x = tn_randint(s, 0, VOCABULARY, TN_I32, TN_SHAPE(1, 4));
    tn_tensor *y = tn_randint(s, 0, VOCABULARY, TN_I32, TN_SHAPE(1, 4));
    tn_stats v = {.size = sizeof v};
    int status = tn_error(s);
    for (int k = 0; k < VARIANTS && !status; k++) {
        if (k >= NO_LIBRARY) s->device->gemm = no_gemm;
        if (k >= EMPTY) s->device->launch = k == EMPTY ? empty_launch : no_launch;
        status = measure(s, &m, opt, x, y, us[k]);
    }
    if (status) fprintf(stderr, "host: %s\n", tn_error_text(s));
    tn_get_stats(s, &v);
    printf("us         whole  no library  empty kernels  no device\n");
    for (int p = 0; p < PARTS; p++) {
        printf("%-9s", part_name[p]);
        for (int k = 0; k < VARIANTS; k++) {
            qsort(us[k][p], STEPS, sizeof us[k][p][0], compare);
            sum[k] += us[k][p][STEPS / 2];
            printf("  %8.2f", us[k][p][STEPS / 2]);
        }
        printf("\n");
    }
    printf("step     ");
    for (int k = 0; k < VARIANTS; k++) printf("  %8.2f", sum[k]);
    printf("\n%.0f ns for each of %d operators; %.0f kernels and %.0f library calls a step; %d of %d steps "
           "replayed\n",
           1e3 * us[NO_DEVICE][1][STEPS / 2] / CALLS, (int)CALLS, (double)v.kernels / (double)v.steps,
           (double)v.library_calls / (double)v.steps, (int)v.replayed, (int)v.steps);
    tn_close(s);
    return status != 0;
}
