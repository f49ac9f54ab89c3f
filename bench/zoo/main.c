/* main.c - training steps of one model of the zoo.
 *
 *   build/zoo resnet20                          fused: milliseconds of a step, loss, peak memory, first step
 *   build/zoo unet --mode eager
 *   build/zoo gru --profile                     and the launches that lose most beside their floor
 *   build/zoo vit --save FILE --serve           for bench/zoo.py: weights and inputs go to FILE, then each
 *                                             line on stdin, "check N", "steps N", "peak" or "floor", is
 *                                             answered by one of numbers
 *
 * Read zoo.h first, then make and step here. */
#include <stdlib.h>
#include <string.h>

#include "bench/clock.h"
#include "zoo.h"

enum { MOST_STEPS = 10000 };

struct options {
    const char *model, *save;
    tn_mode mode;
    int threads, steps;
    bool profile, serve;
};

static double opened_ms; /* when the program began */

/* ---- a model ---- */

static const struct model *find(const char *name)
{
    const struct model *const tables[] = {images, sequences};
    for (int t = 0; t < 2; t++)
        for (const struct model *m = tables[t]; m->name; m++) {
            if (!name) puts(m->name);
            if (name && !strcmp(m->name, name)) return m;
        }
    return NULL;
}

static tn_optim *optimizer;   /* of the one model of this process */
static tn_tensor *loss_value; /* of the newest step, read behind its end */

static int make(struct net *m)
{
    static const char *const name[INPUTS] = {"x0", "x1", "x2"};
    tn_tensor *in[INPUTS] = {NULL};
    for (int i = 0; i < INPUTS && m->is->in[i].ndim; i++) {
        const struct input *d = &m->is->in[i];
        tn_tensor *x = d->below ? tn_randint(m->s, 0, d->below, TN_I64, d->ndim, d->dim)
                                : tn_randn(m->s, TN_F32, d->ndim, d->dim);
        in[i] = tn_buffer(m->s, name[i], x);
    }
    m->making = true;
    m->is->forward(m);
    m->making = false;
    memcpy(m->in, in, sizeof in);
    if (m->is->loss >= INFERENCE) {
        tn_train(m->s, false);
        tn_no_grad_begin(m->s);
    } else {
        loss_value = tn_zeros(m->s, TN_F32, TN_SCALAR);
        optimizer = tn_adamw(m->s, tn_all_params(m->s), .lr = 1e-3, .weight_decay = 0.01);
    }
    return tn_error(m->s);
}

static tn_tensor *loss_of(struct net *m)
{
    m->used = 0;
    tn_tensor *y = m->is->forward(m);
    tn_tensor *target = m->in[2] ? m->in[2] : m->in[1];
    if (m->is->loss == CROSS_ENTROPY) return tn_cross_entropy(y, target);
    return m->is->loss == SQUARES ? tn_mse_loss(y, target) : y;
}

/* Reads what the model has to say of its input: sum over i of (i + 1) y[i]. best: where the largest is. */
static double answer(struct net *m, int64_t *best)
{
    float y[1024];
    tn_step_begin(m->s);
    tn_tensor *out = loss_of(m);
    const int64_t n = tn_numel(out);
    double sum = 0;
    if (n > 0 && n <= 1024 && !tn_read(out, TN_F32, y, (size_t)n * sizeof *y))
        for (int64_t i = *best = 0; i < n; i++) {
            sum += (double)(i + 1) * y[i];
            if (y[i] > y[*best]) *best = i;
        }
    tn_step_end(m->s);
    return sum;
}

static double last_loss;

/* One update, one answer, or NEW_TOKENS tokens; 0 or a status. */
static int step(struct net *m)
{
    int64_t best = 0;
    if (m->is->loss == GENERATION) {
        for (m->at = 0, last_loss = 0; m->at < NEW_TOKENS && !tn_error(m->s); m->at++) {
            m->in[0] = tn_from(m->s, &best, TN_I64, TN_SHAPE(1, 1));
            last_loss += answer(m, &best) / NEW_TOKENS;
            tn_free(m->in[0]);
        }
    } else if (m->is->loss == INFERENCE)
        last_loss = answer(m, &best);
    else {
        tn_step_begin(m->s);
        tn_tensor *loss = loss_of(m);
        tn_backward(loss);
        if (m->is->clip) tn_clip_grad_norm(optimizer, 1.0);
        tn_optim_step(optimizer);
        tn_assign(loss_value, loss);
        tn_step_end(m->s);
        last_loss = tn_item(loss_value);
    }
    return tn_error(m->s);
}

/* The loss that all frameworks must agree on: of a step, or without what is random. */
static int check(struct net *m)
{
    if (!m->is->random) return step(m);
    tn_train(m->s, false);
    tn_step_begin(m->s);
    last_loss = tn_item(loss_of(m));
    tn_step_end(m->s);
    tn_train(m->s, true);
    return tn_error(m->s);
}

static size_t peak(const struct net *m)
{
    tn_stats t = {.size = sizeof t};
    return tn_get_stats(m->s, &t) ? 0 : t.bytes_peak;
}

/* ---- what is asked ---- */

static int serve(struct net *m)
{
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        const int n = (int)strtol(line + strcspn(line, " \n"), NULL, 10);
        printf("[");
        if (!strncmp(line, "peak", 4))
            printf("%zu", peak(m));
        else if (!strncmp(line, "floor", 5))
            printf("%.4f", zoo_floor(m, step, 0, NULL));
        for (int i = 0; i < n; i++) {
            const bool compared = !strncmp(line, "check", 5);
            const double start = now_ms();
            if (compared ? check(m) : step(m)) return tn_error(m->s);
            printf("%s%.9g", i ? ", " : "", compared ? last_loss : now_ms() - start);
        }
        printf("]\n");
        fflush(stdout);
    }
    return 0;
}

static int measure(struct net *m, const struct options *o)
{
    static double ms[MOST_STEPS];
    if (step(m)) return tn_error(m->s);
    const double first = now_ms() - opened_ms, first_loss = last_loss;
    for (int i = -2; i < o->steps; i++) {
        const double start = now_ms();
        if (step(m)) return tn_error(m->s);
        if (i >= 0) ms[i] = now_ms() - start;
    }
    printf("%-16s %-5s %9.2f ms  loss %.6g > %.6g  peak %7.1f MB  first step %5.2f s\n", m->is->name,
           o->mode == TN_EAGER ? "eager" : "fused", middle(ms, o->steps), first_loss, last_loss,
           (double)peak(m) * 1e-6, first * 1e-3);
    return o->profile && zoo_floor(m, step, 24, stdout) < 0 ? TN_E_STATE : 0;
}

static int run(const struct options *o)
{
    struct net m = {.is = find(o->model)};
    if (!m.is) return fprintf(stderr, "zoo: no model '%s' (--list names them)\n", o->model), 2;
    if (!(m.s = tn_open(.mode = o->mode, .seed = 1, .threads = o->threads))) return 1;
    int status = make(&m);
    if (!status && o->save) status = tn_save(m.s, o->save, .for_pytorch = true, .no_flatten = true);
    if (!status) status = o->serve ? serve(&m) : measure(&m, o);
    if (tn_error(m.s)) fprintf(stderr, "zoo: %s: %s\n", o->model, tn_error_text(m.s));
    tn_close(m.s);
    return status != 0;
}

int main(int argc, char **argv)
{
    struct options o = {.mode = TN_FUSED, .steps = 11};
    opened_ms = now_ms();
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--list")) return find(NULL), 0;
        if (!strcmp(argv[i], "--profile"))
            o.profile = true;
        else if (!strcmp(argv[i], "--serve"))
            o.serve = true;
        else if (!strcmp(argv[i], "--mode") && (!strcmp(v, "eager") || !strcmp(v, "fused")))
            o.mode = argv[++i][0] == 'e' ? TN_EAGER : TN_FUSED;
        else if (!strcmp(argv[i], "--threads"))
            o.threads = atoi(argv[++i] ? v : "0");
        else if (!strcmp(argv[i], "--steps") && atoi(v) > 0 && atoi(v) <= MOST_STEPS)
            o.steps = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--save") && *v)
            o.save = argv[++i];
        else if (argv[i][0] != '-' && !o.model)
            o.model = argv[i];
        else
            return fprintf(stderr, "zoo: %s: not understood; zoo.h and main.c tell\n", argv[i]), 2;
    }
    return o.model ? run(&o)
                   : (fprintf(stderr, "usage: zoo MODEL [--mode fused|eager] [--threads N] [--steps N] "
                                      "[--profile] [--save FILE] [--serve], or --list\n"),
                      2);
}
