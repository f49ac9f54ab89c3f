/* optimizer.c - AdamW over 16 parameters of n x c elements together. Gradients are made and run before the
 * clock starts; what is timed is tn_optim_step and the step's end. It must read parameter, gradient and two
 * moments, and write all but the gradient: 7 tensors. Start with measure_optimizer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "inside.h"

enum { PARAMS = 16, EAGER = 0, FUSED, COPY, STREAM, HAND, N_VARIANT };

struct setup {
    const struct options *o;
    tn_session *s[2];
    struct copies copy;
    tn_tensor *param[2][PARAMS], *grad[2];
    tn_optim *opt[2];
    struct work work[2]; /* of the last run */
    float *host;
    const yardstick *hand;
    yard y;
};

static double update(struct setup *u, int m)
{
    tn_session *s = u->s[m];
    tn_step_begin(s);
    tn_tensor *loss = NULL;
    for (int k = 0; k < PARAMS; k++) {
        tn_tensor *part = tn_sum(tn_mul(u->param[m][k], u->grad[m]), TN_ALL, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    tn_backward(loss);
    tn_flush(s);
    tn_synchronize(s);
    struct work before = work_now(s);
    double start = clock_ms(u->o);
    tn_optim_step(u->opt[m]);
    int status = tn_step_end(s);
    if (!status) status = tn_synchronize(s);
    double ms = clock_ms(u->o) - start;
    struct work after = work_now(s);
    u->work[m] = (struct work){after.kernels - before.kernels, after.bytes - before.bytes};
    return status || tn_error(s) ? -1 : ms;
}

static double run_variant(void *arg, int v)
{
    struct setup *u = arg;
    if (v <= FUSED) return update(u, v);
    double start = clock_ms(u->o);
    if (v == HAND) {
        u->hand->forward(&u->y);
        return clock_ms(u->o) - start;
    }
    return run_copy(&u->copy, v - COPY, u->o);
}

static bool make(struct setup *u, const struct options *o, int64_t n, int64_t c)
{
    const struct field part = {.kind = 'n', .ndim = 2, .dim = {n / PARAMS, c}};
    char name[16];
    if (!(u->host = host_array(n / PARAMS * c * 4))) return false;
    fill(u->host, &part, 1);
    for (int m = 0; m < 2; m++) {
        if (!(u->s[m] = open_mode(o, m ? TN_FUSED : TN_EAGER))) return false;
        u->grad[m] = tn_borrow(u->s[m], u->host, TN_F32, 2, part.dim, NULL, NULL);
        for (int k = 0; k < PARAMS; k++) {
            snprintf(name, sizeof name, "p%d", k);
            tn_tensor *init = tn_borrow(u->s[m], u->host, TN_F32, 2, part.dim, NULL, NULL);
            u->param[m][k] = tn_param(u->s[m], name, init); /* which takes it over */
        }
        u->opt[m] = tn_adamw(u->s[m], tn_all_params(u->s[m]), .lr = 1e-3, .weight_decay = 0.01);
    }
    if (!open_copies(&u->copy, o, n * c * 7 / 2)) return false;
    if (!strcmp(tn_device_name(u->s[0]), "cuda") || !(u->hand = yard_find("adamw"))) return true;
    u->y = (yard){.n = n, .c = c, .pool = yard_pool_new(tn_threads(u->s[0]))};
    float *all = host_array(n * c * 4);
    for (int k = 0; k < 3; k++)
        if ((u->y.out[k] = host_array(n * c * 4))) memset(u->y.out[k], 0, (size_t)(n * c * 4));
    if (!(u->y.g = all) || !u->y.pool || !u->y.out[0] || !u->y.out[1] || !u->y.out[2]) return false;
    for (int k = 0; k < PARAMS; k++)
        memcpy(all + k * (n / PARAMS * c), u->host, (size_t)(n / PARAMS * c * 4));
    return true;
}

static void unmake(struct setup *u)
{
    for (int m = 0; m < 2; m++) tn_close(u->s[m]);
    close_copies(&u->copy);
    yard_pool_free(u->y.pool);
    for (int k = 0; k < 3; k++) free(u->y.out[k]);
    free((void *)(uintptr_t)u->y.g);
    free(u->host);
}

static double difference_of_modes(struct setup *u, int64_t count)
{
    float *p[2] = {host_array(count * 4), host_array(count * 4)};
    double most = p[0] && p[1] ? 0 : NAN;
    for (int m = 0; m < 2 && p[m]; m++) tn_read(u->param[m][0], TN_F32, p[m], (size_t)count * 4);
    for (int64_t i = 0; i < count && p[0] && p[1]; i++)
        most = fmax(most, fabs((double)p[0][i] - (double)p[1][i]) / (1 + fabs((double)p[0][i])));
    free(p[0]);
    free(p[1]);
    return most;
}

bool measure_optimizer(const struct options *o, struct case_row *row)
{
    struct setup u = {.o = o};
    double ms[N_VARIANT] = {0};
    int64_t n, c;
    shape_of(o->shape, &n, &c);
    *row = (struct case_row){.name = "adamw", .footprint = o->shape, .read_gbs = NAN};
    snprintf(row->shape, sizeof row->shape, "%lldx%lld", (long long)n, (long long)c);
    bool ok = make(&u, o, n, c);
    for (int i = 0; i < 2 && ok; i++) ok = update(&u, EAGER) >= 0 && update(&u, FUSED) >= 0;
    double error = ok ? difference_of_modes(&u, n / PARAMS * c) : NAN;
    if (ok && u.hand) choose_stores(&u.y, u.hand->forward);
    ok = ok && meter(run_variant, &u, u.hand ? N_VARIANT : HAND, o, ms, &row->rounds);
    if (ok) {
        double bytes = (double)(n * c) * 28;
        row->copy_plain_gbs = bytes / ms[COPY] * 1e-6;
        row->copy_gbs = fmax(row->copy_plain_gbs, bytes / ms[STREAM] * 1e-6);
        row->forward = (struct figures){.eager_ms = ms[EAGER],
                                        .fused_ms = ms[FUSED],
                                        .yardstick_ms = u.hand ? ms[HAND] : NAN,
                                        .eager_kernels = u.work[0].kernels,
                                        .fused_kernels = u.work[1].kernels,
                                        .eager_bytes = u.work[0].bytes,
                                        .fused_bytes = u.work[1].bytes,
                                        .predicted_ms = inside_predicted_ms(u.s[1]),
                                        .share = bytes / ms[FUSED] * 1e-6 / row->copy_gbs,
                                        .limit = NAN, /* in place: what is written is at hand */
                                        .bar = .90,
                                        .max_err = error};
        if (o->plans) {
            printf("  adamw\n");
            inside_print_plan(u.s[1], stdout);
        }
    }
    for (int m = 0; m < 2 && !ok; m++)
        if (u.s[m] && tn_error(u.s[m])) fprintf(stderr, "fused_vs_eager: adamw: %s\n", tn_error_text(u.s[m]));
    unmake(&u);
    return ok;
}
