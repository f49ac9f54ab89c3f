/* test_failed_steps.c - a step that fails leaves nothing behind: trainings in which steps with a label out of
 * range stand between the good ones end with the same checkpoint, to the last byte, as without them: weights,
 * moments, running statistics, averages, sums of gradients, counts of updates, random numbers, loss scale.
 *
 *   test_failed_steps --runs N --seed S    N random trainings on the cpu in place of the few of the suite
 *
 * On the simulated GPU nobody may look for some steps: those behind the failing one do nothing either, and
 * the program goes back to where it failed. Read first: train. */
#include "include/tensor_nn.h"
#include "tests/cuda_rig.h"
#include "tests/folder.h"

enum { STEPS = 9, ROWS = 4, WIDTH = 3, CLASSES = 5 };

/* How a step fails, and when that is found. */
typedef enum failure {
    WHOLE, /* in its one run; found as the step ends, or later */
    READ,  /* as the loss is read */
    TWICE, /* two updates, a run each, the first of which fails; the second is refused */
    HALF,  /* the second fails, the first has taken place */
    FAILURES
} failure;

typedef struct training {
    tn_device_kind device;
    int accumulate;
    bool f16, sgd, clip, sparse, average;
    int fails[STEPS]; /* before the good step a failing one: enum failure, or -1 */
    int late;         /* steps that nobody looks for */
} training;

typedef struct model {
    tn_session *s;
    tn_linear *a, *b;
    tn_norm *norm;
    tn_embed *table;
    tn_optim *optim, *average;
} model;

static void make(model *m, const training *t)
{
    tn_session *s = tn_open(.device = t->device, .mode = TN_FUSED, .seed = 5, .threads = 1, .log = log_keep);
    assert_non_null(s);
    if (t->f16) assert_int_equal(tn_set_precision(s, TN_PRECISION_F16), TN_OK);
    *m = (model){.s = s};
    m->table = t->sparse ? tn_embedding_new(s, "table", 8, WIDTH, .sparse = true) : NULL;
    m->a = tn_linear_new(s, "a", WIDTH, 4);
    m->norm = tn_batch_norm_new(s, "norm", 4);
    m->b = tn_linear_new(s, "b", 4, CLASSES);
    const tn_params all =
        TN_PARAMS(m->a->weight, m->a->bias, m->norm->weight, m->norm->bias, m->b->weight, m->b->bias);
    m->optim = t->sgd ? tn_sgd(s, all, .lr = 0.1, .momentum = 0.9, .accumulate = t->accumulate)
                      : tn_adamw(s, all, .lr = 0.1, .accumulate = t->accumulate);
    if (t->average) m->average = tn_ema(s, all, .decay = 0.5);
    assert_string_equal(tn_error_text(s), "");
}

/* Forward, backward and update. */
static tn_tensor *update(model *m, const training *t, int number, bool bad)
{
    float x[ROWS * WIDTH];
    int32_t y[ROWS], row[ROWS];
    tn_session *s = m->s;
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)((i * 37 + number * 11) % 19) / 19 - 0.5f;
    for (int i = 0; i < ROWS; i++)
        y[i] = bad && i == 2 ? CLASSES : (i * 7 + number * 3) % CLASSES, row[i] = (i + number) % 8;
    tn_tensor *h = tn_from(s, x, TN_F32, TN_SHAPE(ROWS, WIDTH));
    if (m->table) h = tn_add(h, tn_embedding_forward(m->table, tn_from(s, row, TN_I32, TN_SHAPE(ROWS))));
    h = tn_dropout(tn_relu(tn_norm_forward(m->norm, tn_linear_forward(m->a, h))), 0.25);
    tn_tensor *loss = tn_cross_entropy(tn_linear_forward(m->b, h), tn_from(s, y, TN_I32, TN_SHAPE(ROWS)));
    tn_backward(loss);
    if (t->clip) tn_clip_grad_norm(m->optim, 0.5);
    tn_optim_step(m->optim);
    if (m->table) tn_embedding_step(m->table, .lr = 0.1);
    if (m->average) tn_optim_step(m->average);
    return loss;
}

/* Returns whether the step's good update has taken place, of one that fails. */
static bool step_of(model *m, const training *t, int number, int fails)
{
    tn_step_begin(m->s);
    tn_tensor *loss = update(m, t, number, fails >= 0 && fails != HALF);
    if (fails == READ) tn_item(loss);
    if (fails == TWICE || fails == HALF) {
        tn_flush(m->s);
        update(m, t, number + 1, fails == HALF);
    }
    tn_step_end(m->s);
    return fails == HALF;
}

/* A checkpoint's bytes after all good steps. */
static char *train(const training *t, bool failing, size_t *size)
{
    const char *path = in_base("state.safetensors");
    model m;
    make(&m, t);
    for (int i = 0; i < STEPS; i++) {
        bool done = false;
        if (failing && t->fails[i] >= 0) {
            done = step_of(&m, t, i, t->fails[i]);
            for (int k = 0; k < t->late && !tn_error(m.s); k++) step_of(&m, t, i + k, -1); /* in vain */
            if (tn_synchronize(m.s) != TN_E_INDEX) fail_msg("step %d: %s", i, tn_error_text(m.s));
            tn_clear_error(m.s);
        }
        if (!done) step_of(&m, t, i, -1);
        assert_string_equal(tn_error_text(m.s), "");
    }
    assert_int_equal(tn_save(m.s, path), TN_OK);
    assert_int_equal(tn_close(m.s), TN_OK);
    return slurp(path, size);
}

static void compare(const training *t, uint64_t seed)
{
    size_t n = 0, n_plain = 0;
    char *plain = train(t, false, &n_plain), *got = train(t, true, &n);
    assert_non_null(plain);
    assert_non_null(got);
    if (n != n_plain || memcmp(plain, got, n)) {
        const char *a = strstr(plain + 8, "__metadata__"), *b = strstr(got + 8, "__metadata__");
        fail_msg("seed %llu: the failed steps have left something behind (fails %d %d %d %d %d %d %d %d %d, "
                 "accumulate %d, f16 %d, sgd %d, "
                 "clip %d, sparse %d, average %d, late %d)\n%.300s\n%.300s",
                 (unsigned long long)seed, t->fails[0], t->fails[1], t->fails[2], t->fails[3], t->fails[4],
                 t->fails[5], t->fails[6], t->fails[7], t->fails[8], t->accumulate, t->f16, t->sgd, t->clip,
                 t->sparse, t->average, t->late, a ? a : "", b ? b : "");
    }
    free(plain);
    free(got);
}

static training random_training(uint64_t seed, tn_device_kind device)
{
    rng r = {seed};
    training t = {.device = device,
                  .accumulate = 1 + (int)rng_below(&r, 3),
                  .f16 = rng_below(&r, 3) == 0,
                  .sgd = rng_below(&r, 2),
                  .clip = rng_below(&r, 2),
                  .sparse = rng_below(&r, 2),
                  .average = rng_below(&r, 2),
                  .late = (int)rng_below(&r, 4)};
    for (int i = 0; i < STEPS; i++) t.fails[i] = rng_below(&r, 3) ? -1 : (int)rng_below(&r, FAILURES);
    return t;
}

static uint64_t Runs = 12, Seed = 1;

static void on_the_cpu(void **state)
{
    (void)state;
    for (uint64_t k = 0; k < Runs; k++) {
        const training t = random_training(Seed + k, TN_CPU);
        compare(&t, Seed + k);
    }
}

/* Few kinds, as kernels are compiled for each. */
CUDA_TEST(on_a_gpu_that_tells_late)
{
    for (int kind = 0; kind < 2; kind++)
        for (uint64_t k = 0; k < 6; k++) {
            training t = random_training(Seed + k, TN_CUDA);
            t.accumulate = 2 - kind;
            t.f16 = t.sgd = kind;
            t.clip = t.sparse = t.average = !kind;
            compare(&t, Seed + k);
        }
}

/* What runs behind a failed step does nothing, and so a checkpoint is not loaded there as if it had been. */
CUDA_TEST(a_load_finds_what_failed_before_it)
{
    const training t = {.device = TN_CUDA, .accumulate = 1};
    const char *path = in_base("first.safetensors"), *again = in_base("again.safetensors");
    size_t n = 0, n_again = 0;
    model m;
    make(&m, &t);
    step_of(&m, &t, 0, -1);
    assert_int_equal(tn_save(m.s, path), TN_OK);
    step_of(&m, &t, 1, -1);
    step_of(&m, &t, 2, WHOLE);
    assert_int_equal(tn_load(m.s, path), TN_E_INDEX);
    tn_clear_error(m.s);
    step_of(&m, &t, 2, WHOLE);
    assert_int_equal(tn_set_rng(m.s, 7, 100), TN_E_INDEX);
    tn_clear_error(m.s);
    assert_int_equal(tn_load(m.s, path), TN_OK);
    assert_int_equal(tn_save(m.s, again), TN_OK);
    char *a = slurp(path, &n), *b = slurp(again, &n_again);
    assert_non_null(a);
    assert_int_equal(n, n_again);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
    assert_int_equal(tn_close(m.s), TN_OK);
}

int main(int argc, char **argv)
{
    OPTION(Runs, "runs");
    OPTION(Seed, "seed");
    add_test("on_the_cpu", on_the_cpu, NULL, NULL);
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    return run_all_tests(make_base, drop_base);
}
