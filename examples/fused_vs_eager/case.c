/* case.c - one fusion measured: eager, fused, a copy by a kernel of the library, a kernel written by hand.
 *
 * Forward is a step under tn_no_grad whose outs nobody consumes, so that they are computed and nothing else
 * is kept. The whole step adds the loss and tn_backward. Fused, one plan holds all of a step, and a kernel
 * may serve both directions: backward is the whole step less a step of forward and loss alone, in time,
 * kernels and bytes, for both modes; read it together with the row of the whole step.
 *
 * Both modes read the same host memory. Start with measure_case.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tests/bench/inside.h"
#include "tests/bench/yardstick.h"

enum variant {
    FORWARD_EAGER,
    FORWARD_FUSED,
    LOSS_EAGER,
    LOSS_FUSED,
    STEP_EAGER,
    STEP_FUSED,
    COPY_PLAIN,
    COPY_STREAM,
    HAND_FORWARD,
    HAND_STEP,
    N_VARIANT
};
enum { CHECK_DRAW = 1000 };

struct setup {
    const struct options *o;
    const struct fusion *f;
    struct in in[2]; /* eager, fused */
    int n_field;
    struct field field[MAX_INPUTS], g;
    void *host[MAX_INPUTS], *host_g;
    tn_session *copy[2]; /* plain, streaming */
    tn_tensor *from[2], *to[2];
    const yardstick *hand;
    yard forward, step;
    int variant[N_VARIANT], n_variant; /* those that this case has */
};

/* ---- host memory ---- */

int64_t count_of(const struct field *f)
{
    int64_t n = 1;
    for (int i = 0; i < f->ndim; i++) n *= f->dim[i];
    return n;
}

void *host_array(int64_t bytes)
{
    return aligned_alloc(4096, ((size_t)bytes + 8191) & ~(size_t)4095);
}

/* Numbers that depend on seed alone; a normal one is the sum of four uniform ones. */
void fill(void *p, const struct field *f, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    int64_t n = count_of(f);
    for (int64_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint64_t four = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
        if (f->kind == 'i')
            ((int32_t *)p)[i] = (int32_t)(x % (uint64_t)f->below);
        else if (f->kind == 'u')
            ((float *)p)[i] = 0.5f + (float)(x >> 40) * 0x1p-24f;
        else
            ((float *)p)[i] = ((float)four * 0x1p-16f - 2) * 1.7320508f;
    }
}

static tn_tensor *borrow(tn_session *s, void *p, const struct field *f)
{
    tn_tensor *t = tn_borrow(s, p, f->kind == 'i' ? TN_I32 : TN_F32, f->ndim, f->dim, NULL, NULL);
    if (f->gradient) tn_requires_grad(t, true);
    return t;
}

bool shape_of(const char *shape, int64_t *n, int64_t *c)
{
    *c = 1024;
    *n = !strcmp(shape, "dram") ? 65536 : !strcmp(shape, "cache") ? 4096 : 512;
    if (!strcmp(shape, "small")) *c = 256;
    return true;
}

tn_session *open_mode(const struct options *o, tn_mode mode)
{
    return tn_open(.device = !strcmp(o->device, "cuda")  ? TN_CUDA
                             : !strcmp(o->device, "cpu") ? TN_CPU
                                                         : TN_AUTO,
                   .mode = mode, .seed = 1, .threads = o->threads);
}

struct work work_now(const tn_session *s)
{
    tn_stats t = {.size = sizeof t};
    tn_get_stats(s, &t);
    return (struct work){t.kernels + t.library_calls + t.copies + t.reorders, t.bytes_moved};
}

/* ---- one run ---- */

static tn_tensor *loss_of(const struct fusion *f, struct in *i, tn_tensor **out, int n)
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
    return status || tn_error(i->s) ? -1 : clock_ms(u->o) - start;
}

static double run_copy(struct setup *u, int k)
{
    double start = clock_ms(u->o);
    tn_step_begin(u->copy[k]);
    tn_assign(u->to[k], u->from[k]);
    return tn_step_end(u->copy[k]) ? -1 : clock_ms(u->o) - start;
}

static double run_variant(void *arg, int index)
{
    struct setup *u = arg;
    int v = u->variant[index];
    double start = clock_ms(u->o);
    switch (v) {
    case FORWARD_EAGER:
    case FORWARD_FUSED:
        return run_step(u, &u->in[v - FORWARD_EAGER], false, false);
    case LOSS_EAGER:
    case LOSS_FUSED:
        return run_step(u, &u->in[v - LOSS_EAGER], true, false);
    case STEP_EAGER:
    case STEP_FUSED:
        return run_step(u, &u->in[v - STEP_EAGER], true, true);
    case COPY_PLAIN:
    case COPY_STREAM:
        return run_copy(u, v - COPY_PLAIN);
    case HAND_FORWARD:
        u->hand->forward(&u->forward);
        return clock_ms(u->o) - start;
    default:
        u->hand->step(&u->step);
        return clock_ms(u->o) - start;
    }
}

/* ---- making and unmaking ---- */

static bool make_inputs(struct setup *u, const struct options *o)
{
    int64_t n, c;
    shape_of(o->shape, &n, &c);
    u->n_field = u->f->fields(n, c, u->field, &u->g);
    for (int k = 0; k <= u->n_field; k++) {
        const struct field *f = k < u->n_field ? &u->field[k] : &u->g;
        void **p = k < u->n_field ? &u->host[k] : &u->host_g;
        if (!(*p = host_array(count_of(f) * 4))) return false;
        fill(*p, f, (uint64_t)k + 1);
    }
    u->g.gradient = false;
    for (int m = 0; m < 2; m++) {
        struct in *i = &u->in[m];
        if (!(i->s = open_mode(o, m ? TN_FUSED : TN_EAGER))) return false;
        for (int k = 0; k < u->n_field; k++) i->t[k] = borrow(i->s, u->host[k], &u->field[k]);
        i->g = borrow(i->s, u->host_g, &u->g);
    }
    return true;
}

/* As many bytes read and written as the forward must move. */
static bool make_copy(struct setup *u, const struct options *o)
{
    int64_t n, c;
    shape_of(o->shape, &n, &c);
    int64_t elements = u->f->forward > 0 ? (int64_t)(u->f->forward * (double)(n * c) / 2) : n * c;
    for (int k = 0; k < 2; k++) {
        if (!(u->copy[k] = inside_open(o->threads, k == 1))) return false;
        u->from[k] = tn_ones(u->copy[k], TN_F32, TN_SHAPE(elements));
        u->to[k] = tn_zeros(u->copy[k], TN_F32, TN_SHAPE(elements));
    }
    return true;
}

/* With the kind of stores that is faster here. */
static void choose_stores(yard *y, yard_fn *fn)
{
    double best[2] = {1e300, 1e300};
    for (int round = 0; round < 6; round++) {
        double start = now_ms();
        y->stream = round & 1;
        fn(y);
        double ms = now_ms() - start;
        if (ms < best[round & 1]) best[round & 1] = ms;
    }
    y->stream = best[1] < best[0];
}

static bool make_hand(struct setup *u, const struct options *o)
{
    int64_t n, c;
    if (!(u->hand = yard_find(u->f->name))) return true;
    shape_of(o->shape, &n, &c);
    yard y = {.n = n, .c = c, .g = u->host_g, .p = 0.1, .seed = 1, .draw = CHECK_DRAW};
    for (int k = 0; k < u->n_field; k++) y.in[k] = u->host[k];
    y.pool = yard_pool_new(tn_threads(u->in[0].s));
    y.scratch = malloc((size_t)yard_scratch_bytes());
    u->forward = u->step = y;
    if (!y.pool || !y.scratch) return false;
    for (int k = 0; k < u->hand->outs; k++)
        if (!(u->forward.out[k] = host_array(n * c * 4))) return false;
    for (int k = 0, at = 0; k < u->n_field; k++)
        if (u->field[k].gradient && !(u->step.out[at++] = host_array(count_of(&u->field[k]) * 4)))
            return false;
    choose_stores(&u->forward, u->hand->forward);
    choose_stores(&u->step, u->hand->step);
    return true;
}

static void unmake(struct setup *u)
{
    for (int m = 0; m < 2; m++) {
        tn_close(u->in[m].s);
        tn_close(u->copy[m]);
    }
    for (int k = 0; k < MAX_INPUTS; k++) free(u->host[k]);
    for (int k = 0; k < YARD_BUFS; k++) {
        free(u->forward.out[k]);
        free(u->step.out[k]);
    }
    free(u->host_g);
    yard_pool_free(u->forward.pool);
    free(u->forward.scratch);
}

/* ---- are they right? ---- */

/* The largest |a - b| / (1 + |a|). */
static double difference(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]) / (1 + fabs((double)a[i]));
        if (!(d <= most)) most = d;
    }
    return most;
}

/* The share of elements that differ by more than 1e-3. Rounding may take an element over the kink of a relu,
 * and a sum over a column with it, so that a few may. */
static double share_off(const float *a, const float *b, int64_t n)
{
    int64_t off = 0;
    for (int64_t i = 0; i < n; i++)
        off += !(fabs((double)a[i] - (double)b[i]) <= 1e-3 * (1 + fabs((double)a[i])));
    return (double)off / (double)n;
}

/* Out or gradient number `which` of a step, in host memory; NULL when there is none. */
static float *value_of(struct setup *u, struct in *i, bool gradient, int which, int64_t *count)
{
    tn_tensor *out[MAX_OUTS], *t = NULL;
    float *p = NULL;
    tn_set_rng(i->s, 1, CHECK_DRAW);
    tn_step_begin(i->s);
    int n = u->f->run(i, out);
    if (gradient) {
        tn_backward(loss_of(u->f, i, out, n));
        for (int k = 0, at = 0; k < u->n_field && !t; k++)
            if (u->field[k].gradient && at++ == which) t = tn_gradient(i->t[k]);
    } else if (which < n)
        t = out[which];
    if (t && (p = host_array((*count = tn_numel(t)) * 4))) tn_read(t, TN_F32, p, (size_t)*count * 4);
    tn_step_end(i->s);
    return p;
}

/* The largest difference between the modes; a kernel by hand that is wrong is not measured. */
static double compare(struct setup *u, bool gradient)
{
    double most = 0, hand = 0;
    for (int which = 0; which < MAX_INPUTS; which++) {
        int64_t n = 0;
        float *a = value_of(u, &u->in[0], gradient, which, &n),
              *b = a ? value_of(u, &u->in[1], gradient, which, &n) : NULL;
        const float *h = u->hand ? (gradient ? u->step.out[which] : u->forward.out[which]) : NULL;
        if (a && b) most = fmax(most, difference(a, b, n));
        if (a && h) hand = fmax(hand, share_off(a, h, n));
        free(b);
        free(a);
        if (!a) break;
    }
    if (hand > 1e-2) {
        fprintf(stderr, "fused_vs_eager: %s: %g of what the kernel written by hand computes is wrong\n",
                u->f->name, hand);
        u->hand = NULL;
    }
    return most;
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
    return (struct figures){.eager_kernels = e.kernels,
                            .fused_kernels = f.kernels,
                            .eager_bytes = e.bytes,
                            .fused_bytes = f.bytes,
                            .yardstick_ms = NAN,
                            .max_err = NAN,
                            .share = NAN};
}

static void finish(struct figures *f, double must_bytes, double gbs, double bar)
{
    f->share = must_bytes > 0 ? must_bytes / (f->fused_ms * 1e-3) / (gbs * 1e9) : NAN;
    f->predicted_ms = (double)f->fused_bytes / (gbs * 1e9) * 1e3;
    f->bar = bar;
}

static void take_away(struct figures *f, const struct figures *step, const struct figures *loss)
{
    *f = *step;
    f->eager_ms -= loss->eager_ms;
    f->fused_ms -= loss->fused_ms;
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
        if (u->hand || v < HAND_FORWARD) u->variant[u->n_variant++] = v;
    if (!meter(run_variant, u, u->n_variant, o, ms, &row->rounds)) return false;
    for (int k = 0; k < u->n_variant; k++) of[u->variant[k]] = ms[k];
    double moved = (double)tn_numel(u->to[0]) * 8e-6; /* / ms = GB/s */
    row->copy_plain_gbs = moved / of[COPY_PLAIN];
    row->copy_gbs = fmax(row->copy_plain_gbs, moved / of[COPY_STREAM]);

    struct figures loss = count(u, true, false);
    row->forward = count(u, false, false);
    row->step = count(u, true, true);
    row->forward.eager_ms = of[FORWARD_EAGER];
    row->forward.fused_ms = of[FORWARD_FUSED];
    loss.eager_ms = of[LOSS_EAGER];
    loss.fused_ms = of[LOSS_FUSED];
    row->step.eager_ms = of[STEP_EAGER];
    row->step.fused_ms = of[STEP_FUSED];
    row->forward.max_err = error[0];
    row->step.max_err = error[1];
    if (u->hand) { /* by hand a backward that makes what it needs again differs from a whole step by the loss
                    */
        row->forward.yardstick_ms = of[HAND_FORWARD];
        row->step.yardstick_ms = of[HAND_STEP];
    }
    take_away(&row->backward, &row->step, &loss);
    finish(&row->forward, u->f->forward * tensor, row->copy_gbs, u->f->bar_forward);
    finish(&row->backward, u->f->backward * tensor, row->copy_gbs, u->f->bar_backward);
    finish(&row->step, u->f->step * tensor, row->copy_gbs, 0);
    row->has_backward = true;
    if (o->plans) print_plans(u);
    return true;
}

bool measure_case(const struct fusion *f, const struct options *o, struct case_row *row)
{
    struct setup u = {.o = o, .f = f};
    *row = (struct case_row){.name = f->name, .footprint = o->shape};
    bool ok = make_inputs(&u, o) && make_copy(&u, o) && make_hand(&u, o) && measure(&u, o, row);
    for (int k = 0, at = 0; ok && k < u.field[0].ndim; k++)
        at += snprintf(row->shape + at, sizeof row->shape - (size_t)at, "%s%lld", k ? "x" : "",
                       (long long)u.field[0].dim[k]);
    for (int m = 0; m < 2 && !ok; m++)
        if (u.in[m].s && tn_error(u.in[m].s))
            fprintf(stderr, "fused_vs_eager: %s: %s\n", f->name, tn_error_text(u.in[m].s));
    unmake(&u);
    return ok;
}
