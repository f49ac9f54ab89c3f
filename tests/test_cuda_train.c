/* test_cuda_train.c - whole training programs on the simulated GPU: the losses are the CPU's, fused and
 * eager, and in fused mode a step is one recording from its third run on: one launch of a graph, nothing
 * allocated, nothing waited for but the value that is read. Read first: train, then check_steady. */
#include "cuda_rig.h"

#include <math.h>

#include "examples/gpt_model.h"
#include "examples/mnist_net.h"
#include "src/runtime/session.h"

enum { STEPS = 20, MOST_DATA = 4096 };

/* A program: makes its model, then does one step's work and returns the loss. */
typedef struct program {
    const char *name;
    void (*make)(tn_session *s, void *model);
    tn_tensor *(*step)(tn_session *s, void *model, int number);
    int settled; /* from this step on each is one launch */
} program;

static tn_tensor *reals(tn_session *s, int number, int ndim, const int64_t *shape)
{
    float x[MOST_DATA];
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    assert_true(n <= MOST_DATA);
    for (int i = 0; i < n; i++) x[i] = (float)((i * 37 + number * 11) % 19) / 19 - 0.5f;
    return tn_from(s, x, TN_F32, ndim, shape);
}

/* `bad`, where it is not -1, in the place of the last. */
static tn_tensor *labels(tn_session *s, int classes, int number, int64_t bad, int ndim, const int64_t *shape)
{
    int64_t y[MOST_DATA], n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    assert_true(n <= MOST_DATA);
    for (int i = 0; i < n; i++) y[i] = (i * 7 + number * 3) % classes;
    if (bad != -1) y[n - 1] = bad;
    return tn_from(s, y, TN_I64, ndim, shape);
}

/* ---- programs ---- */

struct model {
    tn_linear *a, *b;
    tn_optim *optim;
    struct net net;
    struct gpt gpt;
    tn_tensor *weight;
};

static void make_mlp(tn_session *s, void *model)
{
    struct model *m = model;
    m->a = tn_linear_new(s, "a", 16, 32);
    m->b = tn_linear_new(s, "b", 32, 10);
    m->optim = tn_adamw(s, tn_all_params(s), .lr = 1e-2);
}

static tn_tensor *step_mlp(tn_session *s, void *model, int number)
{
    struct model *m = model;
    tn_tensor *input = reals(s, number, TN_SHAPE(8, 16)), *target = labels(s, 10, number, -1, TN_SHAPE(8));
    tn_tensor *h = tn_dropout(tn_relu(tn_linear_forward(m->a, input)), 0.1);
    tn_tensor *loss = tn_cross_entropy(tn_linear_forward(m->b, h), target);
    tn_backward(loss);
    tn_optim_set_lr(m->optim, 1e-2 / (1 + number)); /* a scalar that changes */
    tn_optim_step(m->optim);
    return loss;
}

static void make_cnn(tn_session *s, void *model)
{
    struct model *m = model;
    make_net(s, &m->net, 8, 4);
    m->optim = tn_adamw(s, tn_all_params(s), .lr = 1e-3, .weight_decay = 0.01);
}

static tn_tensor *step_cnn(tn_session *s, void *model, int number)
{
    struct model *m = model;
    tn_tensor *input = reals(s, number, TN_SHAPE(4, 8, 8, 1)),
              *target = labels(s, 10, number, -1, TN_SHAPE(4));
    tn_tensor *loss = tn_cross_entropy(net_forward(&m->net, input), target);
    tn_backward(loss);
    tn_optim_step(m->optim);
    return loss;
}

static void make_tiny_gpt(tn_session *s, void *model)
{
    struct model *m = model;
    make_gpt(s, &m->gpt, &(struct gpt_shape){.layers = 1, .heads = 2, .dim = 16, .ctx = 8}, 20);
    m->optim = gpt_optimizer(s, 1e-3);
}

static tn_tensor *step_gpt(tn_session *s, void *model, int number)
{
    struct model *m = model;
    return gpt_update(&m->gpt, m->optim, labels(s, 20, number, -1, TN_SHAPE(2, 8)),
                      labels(s, 20, number + 1, -1, TN_SHAPE(2, 8)));
}

/* Values of rows that are made and used up in kernels in whose last warp some threads have no row. */
static void make_z_loss(tn_session *s, void *model)
{
    struct model *m = model;
    m->weight = tn_param(s, "weight", tn_randn(s, TN_F32, 3, (int64_t[]){4, 9, 11}));
    m->optim = tn_adamw(s, tn_all_params(s), .lr = 1e-1);
}

static tn_tensor *step_z_loss(tn_session *s, void *model, int number)
{
    struct model *m = model;
    tn_tensor *logits = tn_matmul(m->weight, tn_eye(s, 11, TN_F32)),
              *rows = tn_logsumexp(logits, TN_AXES(-1), false);
    tn_tensor *loss = tn_add(tn_cross_entropy(logits, labels(s, 11, number, -1, TN_SHAPE(4, 9))),
                             tn_mean(tn_square(rows), TN_ALL, false));
    tn_backward(loss);
    tn_optim_step(m->optim);
    return loss;
}

static const program programs[] = {{"mlp", make_mlp, step_mlp, 3},
                                   {"cnn", make_cnn, step_cnn, 3},
                                   {"gpt", make_tiny_gpt, step_gpt, 3},
                                   {"z_loss", make_z_loss, step_z_loss, 4}};

/* ---- running ---- */

/* From the simulator's counters and the device's own, of one step; the last three are asked for one by one.
 */
#define COSTS(X)                                                                                             \
    X(graphs, c.graph_launches)                                                                              \
    X(allocations, c.allocations)                                                                            \
    X(host_allocations, c.host_allocations)                                                                  \
    X(stream_syncs, c.stream_syncs)                                                                          \
    X(event_syncs, c.event_syncs)                                                                            \
    X(recorded, d->recorded)                                                                                 \
    X(launches, d->launches)                                                                                 \
    X(calls, d->library_calls)                                                                               \
    X(copies, d->copies)
enum cost {
#define X(name, from) COST_##name,
    COSTS(X)
#undef X
        N_COSTS
};
static const char *const cost_name[] = {
#define X(name, from) #name,
    COSTS(X)
#undef X
};
struct step_cost {
    uint64_t of[N_COSTS];
};

static struct step_cost cost_now(const tn_session *s)
{
    struct cusim_counters c = counters();
    const tn_device_stats *d = &s->device->stats;
#define X(name, from) [COST_##name] = from,
    return (struct step_cost){{COSTS(X)}};
#undef X
}

static struct step_cost cost_since(const tn_session *s, struct step_cost before)
{
    struct step_cost now = cost_now(s);
    for (int i = 0; i < N_COSTS; i++) now.of[i] -= before.of[i];
    return now;
}

static void train(const program *p, tn_device_kind device, tn_mode mode, double loss[STEPS],
                  struct step_cost cost[STEPS])
{
    struct model m;
    memset(&m, 0, sizeof m);
    tn_session *s = tn_open(.device = device, .mode = mode, .seed = 3, .threads = 1, .log = log_keep);
    if (!s) fail_msg("%s", logged);
    p->make(s, &m);
    for (int i = 0; i < STEPS; i++) {
        struct step_cost before = cost_now(s);
        tn_step_begin(s);
        loss[i] = tn_item(p->step(s, &m, i));
        tn_step_end(s);
        if (tn_error(s)) fail_msg("%s, step %d: %s; %s", p->name, i, tn_error_text(s), sim.report());
        if (cost) cost[i] = cost_since(s, before);
    }
    if (tn_close(s)) fail_msg("%s: closing", p->name);
}

static void check_same(const program *p, const char *what, const double *a, const double *b)
{
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-4))
            fail_msg("%s, %s: the loss of step %d is %.7f, on the CPU %.7f", p->name, what, i, a[i], b[i]);
}

/* One launch of a graph, one wait for the value, and nothing else. */
static void check_steady(const program *p, const struct step_cost *cost)
{
    for (int i = p->settled; i < STEPS; i++)
        for (int k = 0; k < N_COSTS; k++)
            if (cost[i].of[k] != (k == COST_graphs || k == COST_stream_syncs))
                fail_msg("%s, step %d: %d %s", p->name, i, (int)cost[i].of[k], cost_name[k]);
}

static void run_program(void **state)
{
    const program *p = *state;
    rig_open(NULL);
    double cpu[STEPS], fused[STEPS], eager[STEPS];
    struct step_cost cost[STEPS];
    train(p, TN_CPU, TN_FUSED, cpu, NULL);
    assert_true(fabs(cpu[0] - cpu[STEPS - 1]) > 1e-3); /* something is learnt */
    train(p, TN_CUDA, TN_FUSED, fused, cost);
    check_same(p, "fused", fused, cpu);
    check_steady(p, cost);
    train(p, TN_CUDA, TN_EAGER, eager, NULL);
    check_same(p, "eager", eager, cpu);
    assert_int_equal(counters().live, 0);
}

/* ---- what else a program may do ---- */

static tn_session *open_cuda(void)
{
    tn_session *s = tn_open(.device = TN_CUDA, .seed = 3, .log = log_keep);
    if (!s) fail_msg("%s", logged);
    return s;
}

static double total_of(tn_tensor *x) { return tn_item(tn_sum(x, TN_ALL, false)); }

/* A step of a program, and its loss. */
static double step_of(tn_session *s, const program *p, struct model *m, int number)
{
    tn_step_begin(s);
    const double loss = tn_item(p->step(s, m, number));
    tn_step_end(s);
    return loss;
}
enum { MLP, CNN, GPT, Z_LOSS };

/* An index out of range is found with the next value, and nothing of its run takes effect, nor what stands
 * before it: running statistics, which are made before the labels are read, and a kernel that looks up and
 * assigns. */
CUDA_TEST_ON(test_index_fault_refuses_the_run, open_cuda())
{
    struct model m;
    make_cnn(s, &m);
    tn_tensor *of_norm = tn_buffer_at(s, 0);
    tn_tensor *table = tn_buffer(s, "table", tn_arange(s, 0, 8, 1, TN_F32));
    assert_non_null(of_norm);
    for (int i = 0; i < 8; i++) {
        const bool bad = i == 5;
        int64_t row[8];
        double before[2] = {total_of(of_norm), total_of(table)};
        for (int k = 0; k < 8; k++) row[k] = bad && k == 7 ? 8 : 7 - k;
        tn_step_begin(s);
        tn_tensor *loss = tn_cross_entropy(net_forward(&m.net, reals(s, i, TN_SHAPE(4, 8, 8, 1))),
                                           labels(s, 10, i, bad ? 10 : -1, TN_SHAPE(4)));
        tn_assign(table, tn_add_scalar(tn_index_select(table, 0, tn_from(s, row, TN_I64, 1, (int64_t[]){8})),
                                       tn_number_f(1)));
        tn_tensor *twice = tn_mul_scalar(table, tn_number_f(2));
        assert_int_equal(isnan(tn_item(loss)), bad);
        assert_int_equal(tn_error(s), bad ? TN_E_INDEX : TN_OK);
        tn_clear_error(s);
        total_of(twice);
        assert_int_equal(tn_error(s), bad ? TN_E_NOT_KEPT : TN_OK);
        tn_clear_error(s);
        tn_step_end(s);
        assert_int_equal(tn_error(s), TN_OK);
        assert_int_equal(total_of(of_norm) == before[0], bad);
        assert_int_equal(total_of(table) == before[1], bad);
    }
}

/* A step ends before its kernels do; tn_synchronize waits for them, and finds what they found. */
CUDA_TEST_ON(test_synchronize, tn_open(.device = TN_CUDA, .log = log_keep))
{
    const int32_t index[3] = {0, 5, 9};
    tn_tensor *table = tn_keep(tn_ones(s, TN_F32, TN_SHAPE(8, 4))),
              *sum = tn_buffer(s, "sum", tn_zeros(s, TN_F32, TN_SHAPE(4)));
    assert_int_equal(tn_synchronize(s), 0);
    for (int bad = 0; bad < 2; bad++) {
        const uint64_t before = counters().launches;
        tn_step_begin(s);
        tn_tensor *at = tn_from(s, index + bad, TN_I32, TN_SHAPE(2));
        tn_assign(sum, tn_sum(tn_embedding(table, at), TN_AXES(0), false));
        assert_int_equal(tn_step_end(s), 0);
        assert_int_equal(counters().launches, before);
        assert_int_equal(tn_synchronize(s), bad ? TN_E_INDEX : 0);
        assert_true(counters().launches > before);
    }
    assert_non_null(strstr(tn_error_text(s), "9"));
    assert_int_equal(tn_synchronize(s), TN_E_INDEX); /* as long as nobody has looked at it */
    assert_int_equal(tn_synchronize(NULL), TN_E_NULL);
    tn_clear_error(s);
    assert_int_equal(tn_synchronize(s), 0);
}

/* Values that are watched arrive without a wait. */
CUDA_TEST_ON(test_watch, open_cuda())
{
    struct model m;
    make_mlp(s, &m);
    double seen = NAN, first = NAN;
    for (int i = 0; i < STEPS; i++) {
        uint64_t waits = counters().stream_syncs + counters().event_syncs;
        tn_step_begin(s);
        tn_tensor *loss = step_mlp(s, &m, 0);
        seen = tn_watch(loss);
        tn_step_end(s);
        if (i == 2) first = seen;
        assert_int_equal(counters().stream_syncs + counters().event_syncs, waits);
        assert_int_equal(s->device->sync(s->device),
                         0); /* the simulator gets on with it when it is waited for */
    }
    assert_int_equal(tn_error(s), 0);
    assert_true(isfinite(seen) && isfinite(first) && seen != first);
}

/* Who reads nothing learns of a bad index all the same, a step or so later, and only once. */
CUDA_TEST_ON(test_watch_finds_faults, open_cuda())
{
    struct model m;
    make_tiny_gpt(s, &m);
    int failed_at = -1;
    for (int i = 0; i < STEPS; i++) {
        tn_step_begin(s);
        tn_watch(gpt_update(&m.gpt, m.optim, labels(s, 20, i, -1, TN_SHAPE(2, 8)),
                            labels(s, 20, i, i == 3 ? -7 : -1, TN_SHAPE(2, 8))));
        tn_step_end(s);
        if (!tn_error(s)) assert_int_equal(s->device->sync(s->device), 0);
        if (tn_error(s) && failed_at < 0) {
            failed_at = i;
            assert_int_equal(tn_error(s), TN_E_INDEX);
            assert_non_null(strstr(tn_error_text(s), "cross_entropy"));
            assert_non_null(strstr(tn_error_text(s), "-7 is out of range"));
            tn_clear_error(s);
        } else
            assert_int_equal(tn_error(s), 0);
    }
    assert_true(failed_at >= 3 && failed_at <= 5);
}

/* A device that records nothing: the steps run one by one, the numbers are the same, and it is said why. */
static int refuse_to_record(tn_device *d, tn_errbuf *err)
{
    (void)d;
    return tn_err(err, TN_E_DEVICE, "not today");
}

CUDA_TEST_ON(test_not_recorded, open_cuda())
{
    struct model m;
    double cpu[STEPS];
    train(&programs[0], TN_CPU, TN_FUSED, cpu, NULL);
    s->device->record_begin = refuse_to_record;
    make_mlp(s, &m);
    log_clear();
    for (int i = 0; i < STEPS; i++) assert_true(fabs(step_of(s, &programs[MLP], &m, i) - cpu[i]) <= 1e-4);
    assert_int_equal(tn_error(s), 0);
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_int_equal(tn_explain(s, f), 0);
    fclose(f);
    assert_non_null(strstr(text, "not run as one launch: not today"));
    free(text);
    assert_non_null(strstr(logged, "a step is launched kernel by kernel: not today"));
    assert_int_equal(log_lines, 1);
}

/* A part of a tensor, or a window over it, that begins elsewhere in each step, at multiples of 16 bytes and between
 * them, of all sizes of elements: loads of several elements at once were right for the first and went to where there
 * are none for the next. */
CUDA_TEST(test_moving_views)
{
    enum { N = 320 };
    static const tn_dtype dtypes[] = {TN_F32, TN_F16, TN_F64, TN_U8};
    float v[N];
    for (int i = 0; i < N; i++) v[i] = (float)(i % 16);
    for (int mode = 0; mode < 2; mode++) {
        tn_session *s = tn_open(.device = TN_CUDA, .mode = mode ? TN_EAGER : TN_FUSED, .log = log_keep);
        tn_tensor *all = tn_from(s, v, TN_F32, TN_SHAPE(N)), *kept[4];
        for (int d = 0; d < 4; d++) kept[d] = tn_keep(tn_cast(all, dtypes[d]));
        for (int step = 0; step < 12; step++) {
            const int from = (step * step * 7) % 250, n = 64;
            double want = 0;
            for (int i = 0; i < n; i++) want += 2 * v[from + i] + 1;
            tn_tensor *window[4];
            for (int d = 0; d < 4; d++) window[d] = tn_window(kept[d], from, TN_SHAPE(n));
            tn_step_begin(s);
            for (int d = 0; d < 4; d++) {
                tn_tensor *part = tn_cast(tn_slice(kept[d], 0, from, from + n, 1), TN_F32);
                double got = tn_item(tn_sum(tn_add_scalar(tn_mul_scalar(part, 2.0), 1.0), TN_ALL, false));
                if (got != want)
                    fail_msg("%s from %d: %g, not %g: %s", tn_dtype_name(dtypes[d]), from, got, want,
                             tn_error_text(s));
                tn_assign(window[d], tn_sub_scalar(tn_add_scalar(window[d], 3), 3));
            }
            assert_int_equal(tn_step_end(s), 0);
            for (int d = 0; d < 4; d++) {
                assert_true(tn_item(tn_sum(tn_cast(window[d], TN_F32), TN_ALL, false)) == (want - n) / 2);
                tn_free(window[d]);
            }
        }
        assert_int_equal(tn_close(s), 0);
    }
}

/* What the compiler says of registers comes back to the plan: where kernels spill they are made again with
 * smaller blocks that keep less, the numbers stay, and where that does not help the first plan serves. */
CUDA_TEST(test_spills)
{
    double sum[3];
    int largest[3];
    for (int k = 0; k < 3; k++) {
        sim.reset();
        sim.set("quiet", 1);
        sim.set("spill", k == 1 ? 48 : 0);
        tn_session *s = open_cuda();
        tn_tensor *x = tn_randn(s, TN_F32, 2, (int64_t[]){64, 384});
        tn_step_begin(s);
        sum[k] = total_of(tn_softmax(tn_silu(x), 1));
        tn_step_end(s);
        assert_int_equal(tn_error(s), 0);
        largest[k] = (int)counters().largest_block;
        assert_int_equal(tn_close(s), 0);
    }
    assert_int_equal(largest[0], 256);
    assert_int_equal(largest[1], 128);
    assert_int_equal(largest[2], 256);
    assert_true(fabs(sum[1] - 64) < 1e-3 && fabs(sum[0] - 64) < 1e-3 && sum[2] == sum[0]);
}

/* At the ends of their range, where a GPU's reciprocal is 0 and the sum it is taken of infinite, functions
 * have their limits, as on a CPU. */
CUDA_TEST(test_limits)
{
    static const float x[] = {0,    -0.0f, 5,     -5,     87,     -87,       88.7f,    -89,  100, -104,
                              1e4f, -1e4f, 3e38f, -3e38f, 1e-40f, -INFINITY, INFINITY, 9.5f, NAN};
    enum { N = sizeof x / sizeof *x, OPS = 6 };
    static float y[2][OPS][2][N];
    for (int d = 0; d < 2; d++) {
        tn_session *s = tn_open(.device = d ? TN_CUDA : TN_CPU, .log = log_keep);
        tn_tensor *in = tn_from(s, x, TN_F32, TN_SHAPE(N)), *g;
        tn_requires_grad(in, true);
        for (int op = 0; op < OPS; op++) {
            tn_step_begin(s);
            tn_tensor *of[OPS] = {tn_sigmoid(in),  tn_silu(in), tn_gelu(in),
                                  tn_softplus(in), tn_tanh(in), tn_erf(in)};
            tn_grad(tn_sum(of[op], TN_ALL, false), 1, &in, &g);
            assert_int_equal(tn_read(of[op], TN_F32, y[d][op][0], sizeof x), TN_OK);
            assert_int_equal(tn_read(g, TN_F32, y[d][op][1], sizeof x), TN_OK);
            tn_step_end(s);
        }
        assert_int_equal(tn_close(s), TN_OK);
    }
    for (int op = 0; op < OPS; op++)
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < N; i++) {
                const float due = y[0][op][k][i], is = y[1][op][k][i];
                if (isnan(due) ? isnan(is) : is == due || fabsf(is - due) <= 1e-6f * fabsf(due)) continue;
                fail_msg("operator %d, %s at %g: %g, must be %g", op, k ? "gradient" : "value", (double)x[i],
                         (double)is, (double)due);
            }
}

/* Two sessions on one GPU, taking turns. */
CUDA_TEST(test_two_sessions)
{
    struct model m[2];
    tn_session *s[2];
    double loss[2][STEPS];
    for (int k = 0; k < 2; k++) {
        s[k] = open_cuda();
        make_mlp(s[k], &m[k]);
    }
    for (int i = 0; i < STEPS; i++)
        for (int k = 0; k < 2; k++) loss[k][i] = step_of(s[k], &programs[MLP], &m[k], i);
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    for (int k = 0; k < 2; k++) assert_int_equal(tn_close(s[k]), 0);
    assert_int_equal(counters().live, 0);
}

CUDA_TEST(test_out_of_memory)
{
    sim.set("memory", (long long)256 << 20);
    tn_session *s = tn_open(.device = TN_CUDA, .log = log_keep);
    tn_tensor *big = tn_zeros(s, TN_F32, 1, (int64_t[]){1 << 27});
    assert_null(big);
    assert_int_equal(tn_error(s), TN_E_NOMEM);
    tn_clear_error(s);
    tn_tensor *small = tn_ones(s, TN_F32, 1, (int64_t[]){1000});
    assert_true(total_of(small) == 1000);
    assert_int_equal(tn_error(s), 0);
    assert_int_equal(tn_close(s), 0);
}

CUDA_TEST(test_device_fails)
{
    struct model m;
    tn_session *s = open_cuda();
    make_mlp(s, &m);
    assert_true(isfinite(step_of(s, &programs[MLP], &m, 0)));
    sim.set("launch", 2);
    assert_true(isnan(step_of(s, &programs[MLP], &m, 1)));
    assert_int_equal(tn_error(s), TN_E_DEVICE);
    assert_non_null(strstr(tn_error_text(s), "CUDA_ERROR_LAUNCH_FAILED"));
    tn_clear_error(s);
    tn_step_begin(s);
    assert_true(isnan(tn_item(step_mlp(s, &m, 2)))); /* never a number again */
    assert_int_equal(tn_error(s), TN_E_DEVICE);
    tn_step_end(s);
    assert_int_equal(tn_close(s), TN_E_DEVICE);
    sim.reset();
}

CUDA_TEST(test_two_devices)
{
    tn_session *a = tn_open(.device = TN_CUDA, .log = log_keep),
               *b = tn_open(.device = TN_CPU, .log = log_keep);
    tn_tensor *x = tn_ones(a, TN_F32, 1, (int64_t[]){4}), *y = tn_ones(b, TN_F32, 1, (int64_t[]){4});
    assert_null(tn_add(x, y));
    assert_int_equal(tn_error(a), TN_E_SESSION);
    assert_non_null(strstr(tn_error_text(a), "two sessions, on cuda and on cpu"));
    tn_close(a);
    tn_close(b);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        add_test_row(programs[i].name, run_program, &programs[i]);
    return run_all_tests(NULL, NULL);
}
