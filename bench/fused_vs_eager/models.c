/* models.c - the two example models, whole training steps in both modes.
 *
 *   floor        the step's library calls alone, on operands of the same shapes, plus what its kernels must
 *                read and write at the speed of a copy of 16 MB
 *   first step   in a process of its own, the model made before the clock starts: with an empty kernel cache,
 *                and with one that a first run has filled
 *   host cost    of a model of the same graph that is so small that its kernels take next to nothing, on one
 *                thread: the time from the first operator to the loss, over the operators called; and the
 *                whole step, with planning looked up, launches and what the kernels do take: an upper bound
 *
 * Start with measure_model. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "examples/gpt_model.h"
#include "examples/mnist_net.h"
#include "inside.h"

enum { EAGER, FUSED, LIBRARY, COPY, STREAM, N_VARIANT, VOCABULARY = 64, COPIED = 4 << 20 };

struct model {
    bool is_gpt;
    tn_session *s;
    struct net net;
    struct gpt gpt;
    tn_optim *opt;
    tn_tensor *x, *y;
    int64_t batch;
    int calls; /* operators between the step's begin and the loss */
    const struct options *o;
    double recorded_ms; /* of the last step: those operators */
};

static void make_model(struct model *m, tn_session *s, const struct options *o, bool is_gpt, bool tiny)
{
    m->is_gpt = is_gpt;
    m->o = o;
    m->s = s;
    if (is_gpt) {
        struct gpt_shape shape = {.layers = 4, .heads = 4, .dim = tiny ? 8 : 128, .ctx = tiny ? 4 : 64};
        m->batch = tiny ? 1 : 12;
        /* a block: norm, attention (affine, reshape, permute, 3 selects, attention, transpose, reshape,
           affine), add, norm, linear, gelu, linear, add; beside them embedding, add, norm, affine, loss */
        m->calls = 5 + 4 * 17;
        make_gpt(s, &m->gpt, &shape, VOCABULARY);
        m->opt = gpt_optimizer(s, 1e-3);
        m->x = tn_randint(s, 0, VOCABULARY, TN_I32, TN_SHAPE(m->batch, shape.ctx));
        m->y = tn_randint(s, 0, VOCABULARY, TN_I32, TN_SHAPE(m->batch, shape.ctx));
        return;
    }
    int64_t side = tiny ? 4 : 28;
    m->batch = tiny ? 1 : 64;
    m->calls = 12; /* 2 convolutions, 2 norms, 3 relus, pool, flatten, 2 linears, loss */
    make_net(s, &m->net, side, tiny ? 4 : 32);
    m->opt = tn_adamw(s, tn_all_params(s), .lr = 1e-3, .weight_decay = 0.01);
    m->x = tn_randn(s, TN_F32, TN_SHAPE(m->batch, side, side, 1));
    m->y = tn_randint(s, 0, 10, TN_I32, TN_SHAPE(m->batch));
}

static double train_step(struct model *m)
{
    double start = clock_ms(m->o);
    tn_step_begin(m->s);
    tn_tensor *logits = m->is_gpt ? gpt_forward(&m->gpt, m->x) : net_forward(&m->net, m->x);
    tn_tensor *loss = tn_cross_entropy(logits, m->y);
    m->recorded_ms = clock_ms(m->o) - start;
    tn_backward(loss);
    if (m->is_gpt) tn_clip_grad_norm(m->opt, 1.0);
    tn_optim_step(m->opt);
    int status = tn_step_end(m->s);
    if (!status) status = tn_synchronize(m->s);
    return status || tn_error(m->s) ? -1 : clock_ms(m->o) - start;
}

/* ---- speed ---- */

struct setup {
    struct model model[2];
    struct copies copy;
    void *room;
};

static double run_variant(void *arg, int v)
{
    struct setup *u = arg;
    if (v <= FUSED) return train_step(&u->model[v]);
    const struct options *o = u->model[FUSED].o;
    double start = clock_ms(o);
    if (v == LIBRARY) return inside_library_calls(u->model[FUSED].s, &u->room) ? -1 : clock_ms(o) - start;
    return run_copy(&u->copy, v - COPY, o);
}

static void count(struct model *m, unsigned long long *kernels, unsigned long long *bytes,
                  unsigned long long *peak)
{
    struct work before = work_now(m->s);
    train_step(m);
    struct work after = work_now(m->s);
    tn_stats t = {.size = sizeof t};
    tn_get_stats(m->s, &t);
    *kernels = after.kernels - before.kernels;
    *bytes = after.bytes - before.bytes;
    *peak = t.bytes_peak;
}

static bool measure_speed(bool is_gpt, const struct options *o, struct model_row *row)
{
    struct setup *u = calloc(1, sizeof *u);
    double ms[N_VARIANT] = {0};
    bool ok = u && open_copies(&u->copy, o, COPIED);
    for (int m = 0; m < 2 && ok; m++) {
        tn_session *s = open_mode(o, m ? TN_FUSED : TN_EAGER);
        if ((ok = s != NULL)) make_model(&u->model[m], s, o, is_gpt, false);
    }
    ok = ok && train_step(&u->model[FUSED]) >= 0 && meter(run_variant, u, N_VARIANT, o, ms, &row->rounds);
    if (ok) {
        row->batch = (int)u->model[0].batch;
        row->eager_ms = ms[EAGER];
        row->fused_ms = ms[FUSED];
        row->library_ms = ms[LIBRARY];
        row->copy_gbs = COPIED * 8e-6 / fmin(ms[COPY], ms[STREAM]);
        row->floor_ms = ms[LIBRARY] + inside_kernel_bytes(u->model[FUSED].s) / row->copy_gbs * 1e-6;
        count(&u->model[EAGER], &row->eager_kernels, &row->eager_bytes, &row->eager_peak);
        count(&u->model[FUSED], &row->fused_kernels, &row->fused_bytes, &row->fused_peak);
        row->predicted_ms = inside_predicted_ms(u->model[FUSED].s);
        if (o->plans) inside_print_plan(u->model[FUSED].s, stdout);
    }
    for (int m = 0; m < 2 && u; m++) {
        if (!ok && u->model[m].s && tn_error(u->model[m].s))
            fprintf(stderr, "fused_vs_eager: %s: %s\n", row->name, tn_error_text(u->model[m].s));
        tn_close(u->model[m].s);
    }
    if (u) {
        close_copies(&u->copy);
        free(u->room);
    }
    free(u);
    return ok;
}

static bool measure_host(bool is_gpt, const struct options *o, struct model_row *row)
{
    enum { STEPS = 300 };
    struct model *m = calloc(1, sizeof *m);
    struct options one = *o;
    double recorded[STEPS], whole[STEPS];
    one.threads = 1;
    one.cpu_time = true;
    tn_session *s = open_mode(&one, TN_FUSED);
    bool ok = m && s;
    if (ok) make_model(m, s, &one, is_gpt, true);
    for (int i = 0; i < 20 && ok; i++) ok = train_step(m) >= 0;
    for (int i = 0; i < STEPS && ok; i++) {
        ok = (whole[i] = train_step(m)) >= 0;
        recorded[i] = m->recorded_ms;
    }
    if (ok) {
        row->call_ns = middle(recorded, STEPS) * 1e6 / m->calls;
        row->step_us = middle(whole, STEPS) * 1e3;
    } else if (s)
        fprintf(stderr, "fused_vs_eager: small %s: %s\n", row->name, tn_error_text(s));
    tn_close(s);
    free(m);
    return ok;
}

/* ---- the first step ---- */

int first_step(const char *name, const char *cache, const struct options *o)
{
    struct model *m = calloc(1, sizeof *m);
    tn_session *s = tn_open(.mode = TN_FUSED, .seed = 1, .threads = o->threads, .cache_dir = cache);
    double ms = -1;
    if (m && s) {
        make_model(m, s, o, !strcmp(name, "gpt"), false);
        ms = train_step(m);
    }
    printf("%.3f\n", ms);
    tn_close(s);
    free(m);
    return ms >= 0 ? 0 : 1;
}

/* This program again, as `--first-step NAME CACHE`; milliseconds, NAN where it failed. */
static double in_child(const char *name, const char *cache, const struct options *o)
{
    char self[4096], threads[16], line[64] = "";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    int end[2], status = 1;
    if (length <= 0 || pipe(end)) return NAN;
    self[length] = 0;
    snprintf(threads, sizeof threads, "%d", o->threads);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        dup2(end[1], 1);
        close(end[0]);
        close(end[1]);
        execl(self, self, "--first-step", name, cache, "--threads", threads, (char *)NULL);
        _exit(127);
    }
    close(end[1]);
    FILE *f = fdopen(end[0], "r");
    bool got = f && fgets(line, sizeof line, f);
    if (f)
        fclose(f);
    else
        close(end[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return child > 0 && got && !status ? strtod(line, NULL) : NAN;
}

static void measure_first_step(const struct options *o, struct model_row *row)
{
    char dir[] = "/tmp/fused_vs_eager-XXXXXX";
    row->cold_ms = row->warm_ms = NAN;
    if (!mkdtemp(dir)) return;
    row->cold_ms = in_child(row->name, dir, o);
    double warm[3];
    int runs = o->rounds < 5 ? 1 : 3;
    for (int i = 0; i < runs; i++) warm[i] = in_child(row->name, dir, o);
    row->warm_ms = middle(warm, runs);
    pid_t child = fork();
    if (!child) {
        execlp("rm", "rm", "-rf", dir, (char *)NULL);
        _exit(127);
    }
    if (child > 0) waitpid(child, NULL, 0);
}

bool measure_model(const char *name, const struct options *o, struct model_row *row)
{
    bool is_gpt = !strcmp(name, "gpt");
    *row = (struct model_row){.name = name};
    if (!measure_speed(is_gpt, o, row) || !measure_host(is_gpt, o, row)) return false;
    measure_first_step(o, row);
    return true;
}
