/* test_signals.c - a timer of the host's runs its handler every 200 us, and all comes out as without it, to
 * the bit.
 *
 * The handler runs on a stack of its own and looks where the code it interrupts has its stack pointer:
 * anywhere but in that thread's stack, a handler without a stack of its own would write over somebody's
 * memory. Then it runs without one, and writes a large frame. System calls are restarted in one round and end
 * with EINTR in the other. Read first: tick, then same_with_signals. */
#include "tests/test.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

#include "folder.h"
#include "include/tensor_nn.h"

enum { PERIOD_US = 200, RESULTS = 64 };

/* ---- the timer ---- */

static volatile sig_atomic_t ticks, astray, elsewhere;
static pthread_t host;
static uintptr_t lowest, highest; /* of the host thread's stack */
static volatile unsigned char sink;

static uintptr_t stack_pointer(const void *context)
{
#if defined(__x86_64__)
    return (uintptr_t)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    return (uintptr_t)((const ucontext_t *)context)->uc_mcontext.sp;
#else
    (void)context;
    return lowest;
#endif
}

static void tick(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    uintptr_t at = stack_pointer(context);
    ticks++;
    if (!pthread_equal(pthread_self(), host))
        elsewhere++;
    else if (at < lowest || at >= highest)
        astray++;
    volatile unsigned char frame[2048];
    for (size_t i = 0; i < sizeof frame; i++) frame[i] = 0xa5;
    sink = frame[ticks % sizeof frame];
}

static void timer(bool on, int flags)
{
    struct itimerval period = {{0, on ? PERIOD_US : 0}, {0, on ? PERIOD_US : 0}};
    if (!on) setitimer(ITIMER_REAL, &period, NULL);
    struct sigaction how = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | flags};
    sigemptyset(&how.sa_mask);
    assert_int_equal(sigaction(SIGALRM, &how, NULL), 0);
    if (on) setitimer(ITIMER_REAL, &period, NULL);
}

/* ---- what is run ---- */

struct results {
    double at[RESULTS];
    int n;
};

/* All of a tensor's bits, as one number. */
static void note(struct results *r, tn_tensor *x)
{
    assert_non_null(x);
    size_t n = (size_t)tn_numel(x);
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    assert_int_equal(tn_read(x, TN_F32, values, n * sizeof *values), 0);
    uint32_t sum = 1, bits;
    for (size_t k = 0; k < n; k++) {
        memcpy(&bits, &values[k], sizeof bits);
        sum = (sum ^ bits) * 16777619u;
    }
    free(values);
    r->at[r->n++] = sum;
}

static rng dice;

static int64_t up_to(int64_t n) { return 1 + rng_below(&dice, n); }

/* Products of any shape, long sums among them, and batches of small ones; each shape is planned anew. */
static void products(tn_session *s, struct results *r)
{
    for (int i = 0; i < 24; i++) {
        int64_t m = up_to(90), n = up_to(90), k = up_to(i % 4 ? 160 : 1500), b = i % 5 ? 1 : up_to(12);
        bool ta = i & 1, tb = i & 2;
        tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(b, ta ? k : m, ta ? m : k)),
                  *y = tn_randn(s, TN_F32, TN_SHAPE(b, tb ? n : k, tb ? k : n));
        if (ta) x = tn_transpose(x, 1, 2);
        if (tb) y = tn_transpose(y, 1, 2);
        note(r, tn_matmul(x, y));
    }
    tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(300, 400)), *y = tn_randn(s, TN_F32, TN_SHAPE(400, 500));
    note(r, tn_matmul(x, y));
    note(r, tn_matmul(tn_cast(x, TN_BF16), tn_cast(y, TN_BF16)));
}

/* A network with what has a library call or a kernel of its own, trained for a few steps. */
static void training(tn_session *s, struct results *r)
{
    enum { N = 4, SIDE = 13, TOKENS = 25, DIM = 64 };
    tn_conv *wide = tn_conv2d_new(s, "wide", 3, 16, 3, .pad = 1),
            *down = tn_conv2d_new(s, "down", 16, 24, 5, .stride = 2);
    tn_norm *norm = tn_batch_norm_new(s, "norm", 16);
    tn_linear *in = tn_linear_new(s, "in", 24, DIM), *out = tn_linear_new(s, "out", DIM, 5);
    tn_transformer_block *block =
        tn_transformer_block_new(s, "block", DIM, 4, .causal = true, .dropout = 0.1);
    tn_optim *opt = tn_adamw(s, tn_all_params(s), .lr = 1e-2);
    for (int step = 0; step < 4; step++) {
        tn_step_begin(s);
        tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(N, SIDE, SIDE, 3)),
                  *y = tn_randint(s, 0, 5, TN_I32, TN_SHAPE(N * TOKENS));
        tn_tensor *h = tn_relu(tn_norm_forward(norm, tn_conv2d_forward(wide, x)));
        h = tn_reshape(tn_conv2d_forward(down, h), TN_SHAPE(N, TOKENS, 24));
        h = tn_transformer_block_forward(block, tn_gelu(tn_linear_forward(in, h)));
        tn_tensor *loss = tn_cross_entropy(tn_reshape(tn_linear_forward(out, h), TN_SHAPE(N * TOKENS, 5)), y);
        tn_backward(loss);
        tn_optim_step(opt);
        r->at[r->n++] = tn_item(loss);
        tn_step_end(s);
    }
    note(r, out->weight);
    note(r, wide->weight);
}

/* With an empty cache, so that compilers are started and waited for, and with what they made. */
static void run(struct results *r, void (*what)(tn_session *s, struct results *r), tn_mode mode,
                const char *cache)
{
    r->n = 0;
    dice.state = 1;
    setenv("TENSOR_CACHE", cache, 1);
    tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .seed = 3, .threads = 2);
    assert_non_null(s);
    what(s, r);
    assert_string_equal(tn_error_text(s), "");
    assert_int_equal(tn_close(s), 0);
}

static void same_with_signals(void (*what)(tn_session *s, struct results *r))
{
    static struct results without, with;
    const struct {
        tn_mode mode;
        bool cold;
        int flags;
    } rounds[] = {{TN_FUSED, true, SA_ONSTACK},
                  {TN_FUSED, false, 0},
                  {TN_EAGER, false, SA_ONSTACK | SA_RESTART},
                  {TN_EAGER, false, SA_RESTART}};
    char warm[128];
    snprintf(warm, sizeof warm, "%s", fresh_dir());
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        run(&without, what, rounds[i].mode, warm);
        ticks = 0;
        timer(true, rounds[i].flags);
        run(&with, what, rounds[i].mode, rounds[i].cold ? fresh_dir() : warm);
        timer(false, 0);
        print_message("%d signals\n", (int)ticks);
        assert_int_equal(elsewhere, 0); /* the pool's threads take none */
        assert_int_equal(astray, 0);
        assert_true(ticks > 10);
        assert_int_equal(with.n, without.n);
        assert_memory_equal(with.at, without.at, (size_t)with.n * sizeof *with.at);
    }
}

TEST(products_are_as_without_signals) { same_with_signals(products); }

TEST(training_is_as_without_signals) { same_with_signals(training); }

/* What a call holds back is back when it returns, and what came meanwhile has been delivered. */
TEST(the_hosts_mask_stays)
{
    sigset_t before, after;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    static struct results r;
    run(&r, products, TN_FUSED, fresh_dir());
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int i = 1; i < NSIG; i++) assert_int_equal(sigismember(&after, i), i == SIGUSR2);
    sigemptyset(&before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* File systems over a network or in a process may end it so. */
static int interruptions;
int fsync(int fd)
{
    if (interruptions) {
        interruptions--;
        errno = EINTR;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

TEST_ON(a_save_goes_on_after_interruptions, tn_open(.device = TN_CPU))
{
    const char *path = fresh_dir();
    assert_non_null(tn_param(s, "w", tn_full(s, 1, TN_F32, TN_SHAPE(4))));
    interruptions = 5;
    assert_int_equal(tn_save(s, path), 0);
    assert_int_equal(interruptions, 0);
    assert_int_equal(tn_load(s, path), 0);
}

static int prepare(void **state)
{
    pthread_attr_t a;
    void *stack;
    size_t bytes;
    setenv("TENSOR_KERNEL_OPT", "0", 1); /* what is timed here is nobody's concern */
    host = pthread_self();
    if (pthread_getattr_np(host, &a) || pthread_attr_getstack(&a, &stack, &bytes)) return 1;
    pthread_attr_destroy(&a);
    lowest = (uintptr_t)stack;
    highest = lowest + bytes;
    stack_t own = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    if (!own.ss_sp || sigaltstack(&own, NULL)) return 1;
    return make_base(state);
}

static int tidy(void **state)
{
    stack_t own, none = {.ss_flags = SS_DISABLE};
    sigaltstack(&none, &own);
    free(own.ss_sp);
    return drop_base(state);
}

RUN_TESTS(prepare, tidy)
