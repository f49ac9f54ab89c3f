/* test_robust.c - what must hold around training, whatever is trained: replay, memory over many steps, the
 * host's floating-point state, failing allocations, a full disk.
 *
 * One small network serves all of it (small_net.h). Read first: train there, then the allocator's test at the
 * end.
 */
#include <signal.h>
#include <sys/resource.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "folder.h"
#include "rig.h"
#include "small_net.h"
#include "src/core/alloc.h"
#include "src/core/sanitized.h"

/* ---- replay ---- */

static double evaluate(tn_session *s, const struct net *n, int items)
{
    float x[BATCH * SIDE * SIDE];
    int32_t y[BATCH];
    make_batch(0, items, x, y);
    tn_train(s, false);
    tn_no_grad_begin(s);
    tn_step_begin(s);
    tn_tensor *logits = forward(s, n, tn_from(s, x, TN_F32, TN_SHAPE(items, SIDE, SIDE, 1)));
    double value = tn_item(tn_accuracy(logits, tn_from(s, y, TN_I32, TN_SHAPE(items))));
    tn_step_end(s);
    tn_no_grad_end(s);
    tn_train(s, true);
    return value;
}

TEST_ON(test_equal_steps_compile_and_plan_once,
        tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 3, .log = quiet))
{
    struct net n;
    make_net(s, &n);
    train_step(s, &n, 0, BATCH);
    train_step(s, &n, 1, BATCH);
    tn_stats a = stats_of(s);
    for (int i = 2; i < 6; i++) train_step(s, &n, i, BATCH);
    tn_stats b = stats_of(s);
    assert_int_equal(b.compiled, a.compiled);
    assert_int_equal(b.cache_hits, a.cache_hits); /* kernels are not even looked up */
    assert_int_equal(b.plans, a.plans);
    assert_true(b.plan_hits >= a.plan_hits + 4);

    /* a short last batch: a plan of its own, the kernels are there already, but for cross-entropy over so few
     * classes that the batch is what its vectors run along */
    train_step(s, &n, 6, BATCH - 3);
    tn_stats c = stats_of(s);
    assert_true(c.compiled <= b.compiled + 1);
    assert_true(c.plans > b.plans);
    train_step(s, &n, 7, BATCH - 3);
    tn_stats d = stats_of(s);
    assert_int_equal(d.plans, c.plans);

    /* the first evaluation computes other things; a second and a short one find them */
    evaluate(s, &n, BATCH);
    tn_stats e = stats_of(s);
    printf("  the first evaluation brings %d kernels, %d of them compiled now\n",
           (int)(e.compiled + e.cache_hits - d.compiled - d.cache_hits), (int)(e.compiled - d.compiled));
    evaluate(s, &n, BATCH);
    tn_stats f = stats_of(s);
    assert_int_equal(f.compiled, e.compiled);
    assert_int_equal(f.plans, e.plans);
    evaluate(s, &n, BATCH - 3);
    tn_stats g = stats_of(s);
    assert_true(g.compiled <= e.compiled + 1); /* the accuracy, for the same reason */
    evaluate(s, &n, BATCH - 3);
    train_step(s, &n, 8, BATCH);
    assert_int_equal(stats_of(s).compiled, g.compiled);
    assert_int_equal(stats_of(s).plans, g.plans);
    assert_string_equal(tn_error_text(s), "");
}

/* ---- what lies where gradients will be written ---- */

enum { WIDE = 96, ROUNDS = 4 };

static tn_tensor *perceptron_loss(tn_session *s, tn_linear *const *layer, int round)
{
    float x[BATCH * WIDE];
    int32_t y[BATCH];
    for (int i = 0; i < BATCH * WIDE; i++) x[i] = (float)((i * 37 + round * 101) % 199) / 199 - 0.5f;
    for (int i = 0; i < BATCH; i++) y[i] = (i * 5 + round) % WIDE;
    tn_tensor *h = tn_from(s, x, TN_F32, TN_SHAPE(BATCH, WIDE));
    for (int i = 0; i < 4; i++) h = tn_gelu(tn_linear_forward(layer[i], h));
    return tn_cross_entropy(h, tn_from(s, y, TN_I32, TN_SHAPE(BATCH)));
}

/* Two networks alike make their gradients one after the other, the second in every other round a sum of two;
 * then both learn. Each backward has a plan of its own. Returns losses and the sizes of gradients. */
static void learn_in_turns(tn_mode mode, double *out)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = mode, .seed = 3, .log = quiet);
    assert_non_null(s);
    tn_linear *layer[2][4];
    tn_optim *opt[2];
    for (int n = 0; n < 2; n++) {
        tn_tensor *own[8];
        for (int i = 0; i < 4; i++) {
            char name[16];
            snprintf(name, sizeof name, "n%d.fc%d", n, i);
            layer[n][i] = tn_linear_new(s, name, WIDE, WIDE);
            own[2 * i] = layer[n][i]->weight, own[2 * i + 1] = layer[n][i]->bias;
        }
        opt[n] = tn_adamw(s, ((tn_params){8, own}), .lr = 1e-2);
    }
    for (int round = 0; round < ROUNDS; round++) {
        tn_step_begin(s);
        for (int n = 0; n < 2; n++)
            for (int more = 0; more <= n * round % 2; more++) {
                tn_tensor *loss = perceptron_loss(s, layer[n], round + 50 * more);
                tn_backward(loss);
                *out++ = tn_item(loss); /* a plan of its own */
            }
        for (int i = 0; i < 8; i++)
            *out++ =
                1e4 * tn_item(tn_sum(tn_square(tn_gradient(layer[i / 4][i % 4]->weight)), TN_ALL, false));
        for (int n = 0; n < 2; n++) tn_optim_step(opt[n]);
        tn_step_end(s);
    }
    assert_string_equal(tn_error_text(s), "");
    assert_int_equal(tn_close(s), TN_OK);
}

TEST(test_gradients_memory_serves_until_they_are_written)
{
    double fused[11 * ROUNDS] = {0}, eager[11 * ROUNDS] = {0};
    learn_in_turns(TN_FUSED, fused);
    learn_in_turns(TN_EAGER, eager);
    for (int i = 0; i < 11 * ROUNDS; i++)
        if (!(fabs(fused[i] - eager[i]) <= 2e-4 * (1 + fabs(eager[i]))))
            fail_msg("number %d is %.9g, in eager mode %.9g", i, fused[i], eager[i]);
}

/* ---- memory and the host's state ---- */

static long resident_kb(void)
{
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %ld kB", &kb) == 1) break;
    if (f) fclose(f);
    return kb;
}

TEST_ON(test_memory_stays, tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 3, .log = quiet))
{
    struct net n;
    make_net(s, &n);
    long early = 0;
    size_t bytes = 0;
    for (int i = 1; i <= 2000; i++) {
        train_step(s, &n, i, BATCH);
        if (i != 20) continue;
        early = resident_kb();
        bytes = stats_of(s).bytes_now;
    }
    assert_string_equal(tn_error_text(s), "");
    assert_int_equal(stats_of(s).bytes_now, bytes);
    long late = resident_kb();
    assert_true(early > 0);
#if !defined(TN_ASAN) /* which keeps what was freed for a while */
    if (late > early + 1024) fail_msg("resident memory went from %ld to %ld kB", early, late);
#else
    (void)late;
#endif
}

TEST(test_float_state_is_left_alone)
{
#if defined(__x86_64__)
    for (unsigned extra = 0; extra <= 0x8040; extra += 0x8040) { /* the host's own flush-to-zero stays, too */
        unsigned before = _mm_getcsr(), flags = 0x3f;            /* what happened, which is not a setting */
        _mm_setcsr(before | extra);
        struct run r = {.threads = 2};
        train(&r);
        unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        assert_int_equal(r.status, TN_OK);
        assert_int_equal(after & ~flags, (before | extra) & ~flags);
    }
#else
    skip();
#endif
}

/* ---- folders ---- */

/* A full disk, as a limit on the size of files says it: no wrong result, no crash; an error that can be
 * cleared, or the result; and nothing half written that the next session would trip over. */
TEST(test_disk_full)
{
    struct run good = {.threads = 1};
    train(&good);
    char cache[128], path[128];
    snprintf(cache, sizeof cache, "%s/full", base);
    snprintf(path, sizeof path, "%s/full.safetensors", base);
    setenv("TENSOR_CACHE", cache, 1);
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    const rlim_t sizes[] = {0, 1000, 8192, 30000};
    int refused = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        small = limit;
        small.rlim_cur = sizes[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        struct run r = {.threads = 1};
        train(&r);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        if (r.status) {
            refused++;
            assert_true(r.status == TN_E_COMPILE || r.status == TN_E_IO);
            assert_true(strlen(r.text) > 20);
            for (int k = 0; k < STEPS; k++) assert_true(isnan(r.loss[k]));
        } else {
            assert_same_run(&good, &r);
        }
    }
    struct run again = {.threads = 1};
    train(&again);
    assert_same_run(&good, &again);

    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 3, .log = quiet);
    struct net n;
    make_net(s, &n);
    double first = train_step(s, &n, 0, BATCH);
    assert_int_equal(tn_save(s, path), TN_OK);
    small = limit;
    small.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    train_step(s, &n, 1, BATCH);
    int saved = tn_save(s, path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(saved, TN_E_IO);
    tn_clear_error(s);
    assert_int_equal(tn_load(s, path), TN_OK); /* the file from before */
    assert_true(isfinite(train_step(s, &n, 1, BATCH)) && isfinite(first));
    assert_int_equal(tn_close(s), TN_OK);
    printf("  %d of %d sessions on a full disk were refused, the others found a way\n", refused,
           (int)(sizeof sizes / sizeof *sizes));
    snprintf(cache, sizeof cache, "%s/cache", base);
    setenv("TENSOR_CACHE", cache, 1);
}

/* ---- allocations that fail ---- */

/* Everything from opening to closing. true: it ran to its end without an error. */
static bool whole_run(double *loss, int *logged, int *status, char *text, size_t room)
{
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 3, .threads = 1, .log = quiet,
                            .log_user = logged);
    *status = TN_E_NOMEM;
    text[0] = 0;
    if (!s) return false;
    struct net n;
    make_net(s, &n);
    *loss = train_step(s, &n, 0, BATCH);
    float weight[4] = {0};
    int read = n.norm ? tn_read(n.norm->weight, TN_F32, weight, sizeof weight) : TN_E_NULL;
    *status = tn_error(s);
    snprintf(text, room, "%s", tn_error_text(s));
    if (!*status && read) *status = read;
    int closed = tn_close(s);
    if (!*status && closed) *status = closed;
    return !*status;
}

TEST(test_every_allocation_can_fail)
{
    double good = 0, loss;
    int logged = 0, status;
    char text[512];
    assert_true(whole_run(&good, &logged, &status, text, sizeof text)); /* kernels are in the cache now */
    long from = tn_alloc_count();
    assert_true(whole_run(&good, &logged, &status, text, sizeof text));
    long total = tn_alloc_count() - from, runs = 0, survived = 0, wrong = 0;
    for (long n = 0; n < total; n += n < 300 ? 1 : 7) {
        logged = 0;
        loss = -1;
        tn_alloc_fail_after(n);
        bool ok = whole_run(&loss, &logged, &status, text, sizeof text);
        tn_alloc_fail_after(-1);
        runs++;
        survived += ok;
        bool right = loss == -1 || !isfinite(loss) || !memcmp(&loss, &good, sizeof good);
        if (ok ? !memcmp(&loss, &good, sizeof good) : right && status == TN_E_NOMEM) continue;
        if (wrong++ < 10)
            printf("  allocation %ld fails: loss %g, status %d, \"%s\"\n", n, loss, status, text);
    }
    printf("  %ld allocations, %ld of them failed in turn, %ld of which were not needed\n", total, runs,
           survived);
    assert_true(whole_run(&loss, &logged, &status, text, sizeof text));
    assert_memory_equal(&loss, &good, sizeof good);
}

/* ---- */

/* The kernel cache stands in the run's folder. */
static int make_folder(void **state)
{
    if (make_base(state)) return -1;
    char cache[128];
    snprintf(cache, sizeof cache, "%s/cache", base);
    return setenv("TENSOR_CACHE", cache, 1);
}

RUN_TESTS(make_folder, drop_base)
