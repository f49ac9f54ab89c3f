/* test_cuda_cases.c - what fused_vs_eager measures and what the two example models train with, as kernels for
 * a GPU: NVRTC takes all of them, and none spills. The cases are those of the benchmark, at its sizes;
 * nothing runs. A case must become no more kernels and library calls than on the CPU.
 *
 * `test_cuda_cases softmax` compiles the cases whose name contains "softmax", --all (make test-long) all of
 * them for both GPUs, where otherwise they take turns. Where NVRTC is not installed the tests are skipped.
 *
 * Read first: run_case. */
#include "cuda_text.h"

#include "bench/fused_vs_eager/bench.h"
#include "examples/gpt_model.h"
#include "examples/mnist_net.h"

static const char *Filter;
static void *Memory; /* what every input borrows: never touched, so it costs only addresses */
enum { MOST_BYTES = 1 << 29 };

static int open_all(void **state)
{
    Memory = calloc(1, MOST_BYTES);
    assert_non_null(Memory);
    return open_sessions(state);
}

static int close_all(void **state)
{
    int failed = close_sessions(state);
    free(Memory);
    return failed;
}

static tn_tensor *borrowed(tn_session *s, const struct field *f)
{
    int64_t n = 1;
    for (int i = 0; i < f->ndim; i++) n *= f->dim[i];
    assert_true(n * 4 <= MOST_BYTES);
    tn_tensor *t = tn_borrow(s, Memory, f->kind == 'i' ? TN_I32 : TN_F32, f->ndim, f->dim, NULL, NULL);
    assert_non_null(t);
    if (f->gradient) tn_requires_grad(t, true);
    return t;
}

static uint64_t work_of(const tn_session *s)
{
    tn_stats t = {.size = sizeof t};
    tn_get_stats(s, &t);
    return t.kernels + t.library_calls + t.copies;
}

/* Forward alone, or a whole step; how many kernels and calls. */
static uint64_t run_case(tn_session *s, const struct fusion *f, int64_t n, int64_t c, bool backward)
{
    struct field field[MAX_INPUTS], g;
    struct in in = {.s = s};
    tn_tensor *out[MAX_OUTS], *loss = NULL, *leaf[MAX_INPUTS], *grad[MAX_INPUTS];
    int fields = f->fields(n, c, field, &g), n_leaf = 0;
    g.gradient = false;
    tn_clear_error(s);
    for (int k = 0; k < fields; k++) {
        in.t[k] = borrowed(s, &field[k]);
        if (field[k].gradient) leaf[n_leaf++] = in.t[k];
    }
    in.g = borrowed(s, &g);
    uint64_t before = work_of(s);
    tn_step_begin(s);
    int outs = f->run(&in, out);
    for (int k = 0; k < outs && backward; k++) {
        tn_tensor *part = f->is_loss ? out[k] : tn_sum(tn_mul(out[k], in.g), TN_ALL, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    if (backward) tn_grad(loss, n_leaf, leaf, grad);
    tn_step_end(s);
    if (tn_error(s)) fail_msg("%s: %s", f->name, tn_error_text(s));
    uint64_t work = work_of(s) - before;
    for (int k = 0; k < fields; k++) tn_free(in.t[k]);
    tn_free(in.g);
    return work;
}

TEST(cases)
{
    static const int64_t n = 65536, c = 1024;
    if (!nvrtc_open(&Nvrtc)) skip();
    for (int i = 0; i < n_fusions; i++)
        for (int k = 0; k < 2; k++) {
            const struct fusion *f = &fusions[i];
            if (Filter && !strstr(f->name, Filter)) continue;
            uint64_t cpu = run_case(Cpu, f, n, c, k), cuda = run_case(Ahead.s[0], f, n, c, k);
            uint64_t more =
                !strcmp(f->name, "attention") ? 2 : 0;     /* backward: one on a CPU, three on a GPU */
            more += 2 * (k && !strcmp(f->name, "gather")); /* its index is sorted by two digits first */
            more += k; /* a CPU may finish a loss's sum and the gradients' in one kernel */
            if (cuda > cpu + more)
                fail_msg("%s, %d rows, %s: %d kernels, but %d on the CPU", f->name, (int)n,
                         k ? "step" : "forward", (int)cuda, (int)cpu);
            run_case(Ahead.s[1], f, n, c, k);
        }
    check();
}

/* ---- the examples ---- */

static void train_cnn(tn_session *s)
{
    static const int64_t images[] = {64, 28, 28, 1}, labels[] = {64};
    struct net net;
    make_net(s, &net, 28, 32);
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 1e-3, .weight_decay = 0.01);
    tn_step_begin(s);
    tn_tensor *x = tn_borrow(s, Memory, TN_F32, 4, images, NULL, NULL);
    tn_tensor *y = tn_borrow(s, Memory, TN_I64, 1, labels, NULL, NULL);
    tn_backward(tn_cross_entropy(net_forward(&net, x), y));
    tn_optim_step(opt);
    tn_step_end(s);
    tn_train(s, false);
    tn_step_begin(s);
    x = tn_borrow(s, Memory, TN_F32, 4, images, NULL, NULL);
    y = tn_borrow(s, Memory, TN_I64, 1, labels, NULL, NULL);
    tn_accuracy(net_forward(&net, x), y);
    tn_step_end(s);
    tn_train(s, true);
}

static void train_gpt(tn_session *s)
{
    static const struct gpt_shape shape = {4, 4, 128, 64, 0};
    static const int64_t tokens[] = {12, 64};
    static struct gpt m;
    make_gpt(s, &m, &shape, 65);
    tn_optim *opt = gpt_optimizer(s, 1e-3);
    tn_step_begin(s);
    gpt_update(&m, opt, tn_borrow(s, Memory, TN_I64, 2, tokens, NULL, NULL),
               tn_borrow(s, Memory, TN_I64, 2, tokens, NULL, NULL));
    tn_step_end(s);
}

TEST(examples)
{
    static void (*const train[])(tn_session * s) = {train_cnn, train_gpt};
    static const char *const name[] = {"mnist_cnn", "gpt"};
    if (!nvrtc_open(&Nvrtc)) skip();
    for (int i = 0; i < 2; i++)
        for (int mode = 0; mode < 2; mode++) {
            if (Filter && !strstr(name[i], Filter)) continue;
            const int before = Seen.kernels + Ahead.n;
            train[i](Ahead.s[mode]);
            if (tn_error(Ahead.s[mode])) fail_msg("%s: %s", name[i], tn_error_text(Ahead.s[mode]));
            assert_true(Seen.kernels + Ahead.n > before + 10);
        }
    check();
}

int main(int argc, char **argv)
{
    Both = argc > 1 && !strcmp(argv[1], "--all");
    Filter = argc > 1 && !Both ? argv[1] : NULL;
    return run_all_tests(open_all, close_all);
}
