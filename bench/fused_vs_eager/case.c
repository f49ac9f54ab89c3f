/* case.c - one fusion measured: eager, fused, a copy by a kernel of the library, a kernel written by hand.
 *
 * Forward is a step under tn_no_grad whose outs nobody consumes, so that they are computed and nothing else
 * is kept. The whole step adds the loss and tn_backward. Fused, one plan holds all of a step, and a kernel
 * may serve both directions: backward is the whole step less a step of forward and loss alone, in time,
 * kernels and bytes, for both modes; read it together with the row of the whole step.
 *
 * Both modes read the same host memory. Start with measure_case. */
#include <math.h>

#include "case.h"

/* ---- one run ---- */

tn_tensor *loss_of(const struct fusion *f, struct in *i, tn_tensor **out, int n)
{
    tn_tensor *loss = f->is_loss ? out[0] : tn_sum(tn_mul(out[0], i->g), TN_ALL, false);
    for (int k = 1; k < n; k++) loss = tn_add(loss, tn_sum(tn_mul(out[k], i->g), TN_ALL, false));
    return loss;
}

static double run_step(const struct setup *u, struct in *i, bool with_loss, bool with_backward)
{
    tn_tensor *out[MAX_OUTS];
    double start = clock_ms(u->o);
    tn_step_begin(i->s);
    if (!with_backward) tn_no_grad_begin(i->s);
    int n = u->f->run(i, out);
    tn_tensor *loss = with_loss ? loss_of(u->f, i, out, n) : NULL;
    if (!with_backward) tn_no_grad_end(i->s);
    if (with_backward) tn_backward(loss);
    int status = tn_step_end(i->s);
    if (!status) status = tn_synchronize(i->s);
    return status || tn_error(i->s) ? -1 : clock_ms(u->o) - start;
}

/* All of what the copy reads, and nothing written but the sum. */
static double run_read(struct setup *u)
{
    double start = clock_ms(u->o);
    tn_step_begin(u->copy.s[0]);
    tn_sum(u->copy.from[0], TN_ALL, false);
    return tn_step_end(u->copy.s[0]) || tn_synchronize(u->copy.s[0]) ? -1 : clock_ms(u->o) - start;
}

/* What all rows would take if they were in the caches: the time of some rows less that of next to none, over
 * their share. */
static double run_cached(struct setup *u, bool with_loss, bool with_backward)
{
    enum { TIMES = 24 };
    double ms[2][TIMES];
    for (int i = 0; i < TIMES; i++)
        for (int k = 0; k < 2; k++) {
            ms[k][i] = run_step(u, &u->few[k].in, with_loss, with_backward);
            if (ms[k][i] < 0) return -1;
        }
    return fmax(middle(ms[0], TIMES) - middle(ms[1], TIMES), 0) / (u->few[0].share - u->few[1].share);
}

static double run_variant(void *arg, int index)
{
    struct setup *u = arg;
    int v = u->variant[index];
    double start = clock_ms(u->o);
    switch (v) {
    case FORWARD_EAGER:
    case FORWARD_FUSED: return run_step(u, &u->in[v - FORWARD_EAGER], false, false);
    case LOSS_EAGER:
    case LOSS_FUSED: return run_step(u, &u->in[v - LOSS_EAGER], true, false);
    case STEP_EAGER:
    case STEP_FUSED: return run_step(u, &u->in[v - STEP_EAGER], true, true);
    case COPY_PLAIN:
    case COPY_STREAM: return run_copy(&u->copy, v - COPY_PLAIN, u->o);
    case READ_ONLY: return run_read(u);
    case FORWARD_CACHED: return run_cached(u, false, false);
    case LOSS_CACHED: return run_cached(u, true, false);
    case STEP_CACHED: return run_cached(u, true, true);
    case HAND_FORWARD: u->hand->forward(&u->forward); return clock_ms(u->o) - start;
    default: u->hand->step(&u->step); return clock_ms(u->o) - start;
    }
}

/* ---- figures ---- */

static struct work work_of(struct setup *u, int m, bool loss, bool backward)
{
    struct work before = work_now(u->in[m].s);
    run_step(u, &u->in[m], loss, backward);
    struct work after = work_now(u->in[m].s);
    return (struct work){after.kernels - before.kernels, after.bytes - before.bytes};
}

static struct figures count(struct setup *u, bool loss, bool backward)
{
    struct work e = work_of(u, 0, loss, backward), f = work_of(u, 1, loss, backward);
    return (struct figures){.predicted_ms = inside_predicted_ms(u->in[1].s),
                            .eager_kernels = e.kernels,
                            .fused_kernels = f.kernels,
                            .eager_bytes = e.bytes,
                            .fused_bytes = f.bytes,
                            .yardstick_ms = NAN,
                            .compute_ms = NAN,
                            .max_err = NAN,
                            .share = NAN,
                            .limit = NAN};
}

/* The limit is what a kernel without any arithmetic would reach, or one without any memory, whichever is
 * slower. A byte read costs 1 / read_gbs, and a byte written what is left of a copy's time when its reads are
 * taken away: where reading alone is slower than a copy, by what moves in total, a kernel that mostly reads
 * cannot reach the copy. */
static void finish(struct figures *f, struct moved must, double tensor, const struct case_row *r, double bar)
{
    double bytes = (must.reads + must.writes) * tensor;
    f->bar = bar;
    if (bytes <= 0) return;
    double read = 1 / r->read_gbs, write = fmax(2 / r->copy_gbs - read, 0);
    f->share = bytes / (f->fused_ms * 1e-3) / (r->copy_gbs * 1e9);
    double memory_ms = (must.reads * read + must.writes * write) * tensor * 1e-6;
    f->limit = bytes / (fmax(memory_ms, f->compute_ms) * 1e-3) / (r->copy_gbs * 1e9);
}

static void take_away(struct figures *f, const struct figures *step, const struct figures *loss)
{
    *f = *step;
    f->eager_ms -= loss->eager_ms;
    f->fused_ms -= loss->fused_ms;
    f->predicted_ms -= loss->predicted_ms;
    f->compute_ms -= loss->compute_ms;
    f->eager_kernels -= loss->eager_kernels;
    f->fused_kernels -= loss->fused_kernels;
    f->eager_bytes -= loss->eager_bytes;
    f->fused_bytes -= loss->fused_bytes;
}

static void print_plans(struct setup *u)
{
    for (int kind = 0; kind < 2; kind++) {
        printf("  %s, %s\n", u->f->name, kind ? "whole step" : "forward");
        run_step(u, &u->in[1], kind, kind);
        inside_print_plan(u->in[1].s, stdout);
    }
}

static bool measure(struct setup *u, const struct options *o, struct case_row *row)
{
    double ms[N_VARIANT] = {0}, of[N_VARIANT] = {0};
    int64_t n, c;
    shape_of(o->shape, &n, &c);
    double tensor = (double)(n * c) * 4;
    double error[2] = {compare(u, false), compare(u, true)};
    for (int v = 0; v < N_VARIANT; v++)
        if (v >= HAND_FORWARD ? u->hand != NULL : v < FORWARD_CACHED || u->few[0].in.s)
            u->variant[u->n_variant++] = v;
    if (!meter(run_variant, u, u->n_variant, o, ms, &row->rounds)) return false;
    for (int k = 0; k < u->n_variant; k++) of[u->variant[k]] = ms[k];
    double moved = (double)tn_numel(u->copy.to[0]) * 8e-6; /* / ms = GB/s */
    row->copy_plain_gbs = moved / of[COPY_PLAIN];
    row->copy_gbs = fmax(row->copy_plain_gbs, moved / of[COPY_STREAM]);
    row->read_gbs = moved / 2 / of[READ_ONLY];

    struct figures loss = count(u, true, false);
    row->forward = count(u, false, false);
    row->step = count(u, true, true);
    row->forward.eager_ms = of[FORWARD_EAGER];
    row->forward.fused_ms = of[FORWARD_FUSED];
    loss.eager_ms = of[LOSS_EAGER];
    loss.fused_ms = of[LOSS_FUSED];
    row->step.eager_ms = of[STEP_EAGER];
    row->step.fused_ms = of[STEP_FUSED];
    if (u->few[0].in.s) {
        row->forward.compute_ms = of[FORWARD_CACHED];
        loss.compute_ms = of[LOSS_CACHED];
        row->step.compute_ms = of[STEP_CACHED];
    }
    row->forward.max_err = error[0];
    row->step.max_err = error[1];
    /* By hand a backward that makes what it needs again differs from a whole step by the loss. */
    if (u->hand) {
        row->forward.yardstick_ms = of[HAND_FORWARD];
        row->step.yardstick_ms = of[HAND_STEP];
    }
    take_away(&row->backward, &row->step, &loss);
    finish(&row->forward, u->f->forward, tensor, row, u->f->bar_forward);
    /* Where gradients are made while the loss is, it is the whole step that can be judged. */
    const struct moved *must = &u->f->backward;
    bool apart = (double)row->backward.fused_bytes >= (must->reads + must->writes) * tensor;
    if (apart) finish(&row->backward, u->f->backward, tensor, row, u->f->bar_backward);
    finish(&row->step, u->f->step, tensor, row, apart ? 0 : u->f->bar_backward);
    row->has_backward = true;
    if (o->plans) print_plans(u);
    return true;
}

bool measure_case(const struct fusion *f, const struct options *o, struct case_row *row)
{
    struct setup u = {.o = o, .f = f};
    *row = (struct case_row){.name = f->name, .footprint = o->shape};
    bool ok = set_up(&u, o) && measure(&u, o, row);
    for (int k = 0, at = 0; ok && k < u.field[0].ndim; k++)
        at += snprintf(row->shape + at, sizeof row->shape - (size_t)at, "%s%lld", k ? "x" : "",
                       (long long)u.field[0].dim[k]);
    for (int m = 0; m < 2 && !ok; m++)
        if (u.in[m].s && tn_error(u.in[m].s))
            fprintf(stderr, "fused_vs_eager: %s: %s\n", f->name, tn_error_text(u.in[m].s));
    unmake(&u);
    return ok;
}
