/* test_nn_optim.c - what tn_optim_step promises beside its numbers (test_optimizers.c): averages, missing
 * gradients, several optimizers, frozen and late parameters, what is logged, errors, one kernel a step. */
#include "tests/folder.h"
#include "tests/golden.h"
#include "tests/said.h"

/* Averages beside a second computation in C: parameters with gradients or none, a parameter that is not
 * averaged, the exchange there and back. */
TEST(averages)
{
    enum { N = 70 };
    static const char *const name[] = {"a", "b", "c"};
    for (int at = 0; at < PLACE_COUNT; at++) {
        tn_session *s = open_place(&PLACES[at], NULL, NULL);
        tn_tensor *p[3];
        double want[3][N] = {{0}}, got[N];
        for (int k = 0; k < 3; k++) p[k] = tn_param(s, name[k], tn_full(s, k + 1, TN_F32, TN_SHAPE(N)));
        tn_optim *o = tn_sgd(s, TN_PARAMS(p[0], p[1]), .lr = 0.1);
        tn_optim *ema = tn_ema(s, TN_PARAMS(p[0], p[2]), .decay = 0.9);
        for (int step = 0; step < 4; step++) {
            tn_step_begin(s);
            tn_backward(tn_sum(tn_mul(p[0], tn_add(p[0], p[1])), TN_ALL, false));
            tn_optim_step(o);
            tn_optim_step(ema);
            tn_step_end(s);
            for (int k = 0; k < 3; k += 2) {
                tn_read(p[k], TN_F64, got, sizeof got);
                for (int i = 0; i < N; i++) want[k][i] = step ? 0.9 * want[k][i] + 0.1 * got[i] : got[i];
            }
        }
        tn_read(p[1], TN_F64, want[1], sizeof want[1]); /* stays */
        double before[N];
        tn_read(p[0], TN_F64, before, sizeof before);
        assert_int_equal(tn_ema_swap(ema), TN_OK);
        for (int k = 0; k < 3; k++) {
            tn_read(p[k], TN_F64, got, sizeof got);
            for (int i = 0; i < N; i++)
                if (!(fabs(got[i] - want[k][i]) <= 1e-6 * fabs(want[k][i])))
                    fail_msg("%s: %s[%d] is %.9g, not %.9g", PLACES[at].name, name[k], i, got[i], want[k][i]);
        }
        assert_int_equal(tn_ema_swap(ema), TN_OK);
        tn_read(p[0], TN_F64, got, sizeof got);
        assert_memory_equal(got, before, sizeof got);
        expect_fine(s, PLACES[at].name);
        assert_int_equal(tn_ema_swap(o), TN_E_ARG);
        tn_close(s);
    }
}

/* ---- rules ---- */

static tn_tensor *param(tn_session *s, const char *name, tn_dtype dtype, int64_t n, double all)
{
    return tn_param(s, name, tn_full(s, all, dtype, TN_SHAPE(n)));
}

static double first_of(tn_tensor *x)
{
    double v[4096];
    int64_t n = tn_numel(x);
    assert_true(n <= 4096);
    assert_int_equal(tn_read(x, TN_F64, v, (size_t)n * sizeof(*v)), TN_OK);
    for (int64_t i = 1; i < n; i++) assert_true(v[i] == v[0] || (isnan(v[i]) && isnan(v[0])));
    return v[0];
}

/* One step in which the n parameters get the gradient 1. */
static int ones_step(tn_session *s, tn_optim *o, int n, tn_tensor *const *p)
{
    tn_step_begin(s);
    tn_tensor *loss = NULL;
    for (int i = 0; i < n; i++)
        loss = i ? tn_add(loss, tn_sum(p[i], TN_ALL, false)) : tn_sum(p[i], TN_ALL, false);
    if (n) tn_backward(loss);
    int status = tn_optim_step(o);
    tn_step_end(s);
    return status;
}

/* While averages are in the weights' place nothing is updated, in a session that loads them neither; what shares
 * no weight with them is, and an exchange whose step fails has not been. */
TEST(no_updates_of_averages)
{
    const char *const file = in_base("swapped.safetensors");
    ON_EACH_WAY(s) {
        tn_tensor *a = param(s, "a", TN_F32, 3, 1), *b = param(s, "b", TN_F32, 3, 1);
        tn_optim *o = tn_sgd(s, TN_PARAMS(a), .lr = 1), *rest = tn_sgd(s, TN_PARAMS(b), .lr = 1),
                 *ema = tn_ema(s, TN_PARAMS(a), .decay = 0.5), *other = tn_ema(s, TN_PARAMS(a));
        for (int i = 0; i < 2; i++) { /* a 0, -1; average 0, -0.5 */
            assert_int_equal(ones_step(s, o, 1, &a), TN_OK);
            tn_step_begin(s);
            tn_optim_step(ema);
            tn_step_end(s);
        }
        assert_int_equal(tn_ema_swap(ema), TN_OK);
        for (int again = 0; again < 2; again++) {
            assert_true(first_of(a) == -0.5);
            fails_with(s, TN_E_STATE, "sgd|'a'|tn_ema_swap", ones_step(s, o, 1, &a));
            fails_with(s, TN_E_STATE, "ema|'a'|tn_ema_swap", tn_optim_step(ema));
            fails_with(s, TN_E_STATE, "ema|'a'|tn_ema_swap", tn_ema_swap(other));
            assert_int_equal(ones_step(s, rest, 1, &b), TN_OK);
            assert_true(first_of(a) == -0.5 && first_of(b) == -again);
            if (again) break;
            assert_int_equal(tn_save(s, file), TN_OK);
            assert_int_equal(tn_ema_swap(ema), TN_OK);
            assert_true(first_of(a) == -1);
            assert_int_equal(tn_load(s, file), TN_OK);
        }
        assert_int_equal(tn_ema_swap(ema), TN_OK);
        tn_step_begin(s); /* a step that fails exchanges nothing */
        tn_ema_swap(ema);
        tn_gather(b, 0, tn_full(s, 7, TN_I64, TN_SHAPE(1)));
        tn_step_end(s);
        const bool failed = tn_synchronize(s) && is_fused(way_);
        tn_clear_error(s);
        assert_true(failed == is_fused(way_));
        if (!failed) assert_int_equal(tn_ema_swap(ema), TN_OK);
        assert_true(first_of(a) == -1);
        assert_int_equal(ones_step(s, o, 1, &a), TN_OK);
        assert_true(first_of(a) == -2);
    }
}

/* Rows cover what has had gradients, and grow to both sides without losing what they hold. */
TEST(rows_grow)
{
    ON_EACH_WAY(s) {
        tn_tensor *p[5];
        for (int i = 0; i < 5; i++) p[i] = param(s, (const char[]){(char)('a' + i), 0}, TN_F32, 70, 0);
        tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 1, .momentum = 0.5);
        tn_tensor *late = param(s, "late", TN_F32, 70, 0); /* not the optimizer's */
        assert_int_equal(ones_step(s, o, 1, &p[2]), TN_OK);
        assert_int_equal(o->rows[0].blocks, 2);
        assert_int_equal(ones_step(s, o, 2, (tn_tensor *[]){p[2], p[4]}), TN_OK);
        assert_int_equal(o->rows[0].blocks, 6);
        assert_int_equal(ones_step(s, o, 3, (tn_tensor *[]){p[1], p[2], late}), TN_OK);
        assert_int_equal(o->rows[0].blocks, 8);
        assert_int_equal(o->rows[0].first, 2);
        expect_fine(s, Ways[way_].name);
        /* momentum 1, 1.5, 1.75 */
        assert_true(first_of(p[0]) == 0 && first_of(p[1]) == -1 && first_of(p[2]) == -4.25);
        assert_true(first_of(p[3]) == 0 && first_of(p[4]) == -1 && first_of(late) == 0);
    }
}

static void expect_near(double got, double want) { assert_true(fabs(got - want) <= 1e-6 * fabs(want)); }

/* A weight is looked into while optimizers of interleaved parameters update, and the row of one of them grows:
 * what is in memory is copied and read as it stands, and the step stays one run, behind which a loss and what it
 * is made of can be had. */
TEST(updates_run_nothing)
{
    enum { N = 64, GROWS = 2 };
    ON_EACH_WAY(s) {
        tn_tensor *a = param(s, "a", TN_F32, N, 1), *b = param(s, "b", TN_F32, N, 1),
                  *c = param(s, "c", TN_F32, N, 1), *d = param(s, "d", TN_F32, N, 1);
        tn_optim *o1 = tn_sgd(s, TN_PARAMS(b), .lr = 0.5, .momentum = 0.5),
                 *o2 = tn_sgd(s, TN_PARAMS(a, c, d), .lr = 0.5, .momentum = 0.5);
        double w[3] = {1, 1, 1}, v[3] = {0};
        for (int i = 0; i <= GROWS; i++) {
            tn_step_begin(s);
            tn_tensor *held = tn_slice(c, 0, N - 1, N, 1), *square = tn_square(c),
                      *loss = tn_sum(tn_add(tn_mul(a, b), square), TN_ALL, false);
            tn_backward(i == GROWS ? tn_add(loss, tn_sum(d, TN_ALL, false)) : loss);
            const uint64_t runs = stats_of(s).runs;
            tn_optim_step(o1);
            tn_optim_step(o2);
            if (is_fused(way_)) assert_true(stats_of(s).runs == runs);
            tn_tensor *more = tn_add(loss, tn_select(square, 0, 0)), *was = tn_add_scalar(held, 1);
            expect_near(tn_item(more), N * (w[0] * w[1] + w[2] * w[2]) + w[2] * w[2]);
            expect_near(first_of(was), w[2] + 1);
            tn_step_end(s);
            expect_fine(s, Ways[way_].name);
            const double g[3] = {w[1], w[0], 2 * w[2]};
            for (int k = 0; k < 3; k++) w[k] -= 0.5 * (v[k] = 0.5 * v[k] + g[k]);
            tn_tensor *const p[] = {a, b, c};
            for (int k = 0; k < 3; k++) expect_near(first_of(p[k]), w[k]);
        }
        expect_near(first_of(d), 0.5);
    }
}

/* Memory of a step does not grow; a frozen part costs none. */
TEST(frozen_costs_nothing)
{
    ON_EACH_WAY(s) {
        tn_tensor *big = param(s, "big", TN_F32, 4096, 1), *small = param(s, "small", TN_F32, 10, 1);
        tn_requires_grad(big, false);
        tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 0.1, .weight_decay = 0.1);
        tn_stats before = {.size = sizeof(before)}, after = before;
        for (int i = 0; i < 8; i++) {
            tn_step_begin(s);
            tn_backward(tn_sum(tn_mul(tn_sum(big, TN_ALL, 0), small), TN_ALL, 0));
            tn_optim_step(o);
            tn_step_end(s);
            if (i == 2) before = stats_of(s);
        }
        after = stats_of(s);
        expect_fine(s, Ways[way_].name);
        assert_true(first_of(big) == 1);
        assert_true(first_of(small) < 1);
        assert_int_equal(o->rows[0].blocks, 1);
        assert_true(after.bytes_now == before.bytes_now);
    }
}

/* A gradient an earlier step left in the slab, even NaN, is not looked at. */
TEST(stale_gradients)
{
    for (int at = 0; at < PLACE_COUNT; at++)
        for (int accumulate = 1; accumulate <= 2; accumulate++) {
            tn_session *s = open_place(&PLACES[at], NULL, NULL);
            tn_tensor *a = param(s, "a", TN_F32, 10, 0), *b = param(s, "b", TN_F32, 200, 0);
            tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 1, .accumulate = accumulate);
            tn_step_begin(s);
            tn_backward(tn_add(tn_sum(a, TN_ALL, 0), tn_sum(tn_mul_scalar(b, NAN), TN_ALL, 0)));
            tn_step_end(s);
            for (int i = 0; i < accumulate; i++) {
                tn_step_begin(s);
                tn_backward(tn_sum(tn_mul_scalar(a, 2.0), TN_ALL, 0));
                double norm = tn_item(tn_clip_grad_norm(o, 1));
                double want = sqrt(40) * (i + 1) / accumulate;
                if (fabs(norm - want) > 1e-5)
                    fail_msg("%s: norm %.9g, not %.9g", PLACES[at].name, norm, want);
                tn_optim_step(o);
                tn_step_end(s);
            }
            expect_fine(s, PLACES[at].name);
            assert_true(fabs(first_of(a) + 1 / sqrt(10)) < 1e-5 && first_of(b) == 0);
            tn_close(s);
        }
}

/* ---- the log ---- */

TEST_ON(idle_parameters_are_named, open_place(&PLACES[0], hear_warnings, NULL))
{
    forget();
    tn_tensor *a = param(s, "a", TN_F32, 3, 0), *b = param(s, "b", TN_F32, 3, 0),
              *c = param(s, "c", TN_F32, 3, 0);
    tn_requires_grad(c, false);
    tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 1);
    for (int i = 0; i < 9; i++) ones_step(s, o, 1, &a);
    ones_step(s, o, 2, (tn_tensor *[]){a, b}); /* the count starts again */
    for (int i = 0; i < 9; i++) ones_step(s, o, 1, &a);
    assert_int_equal(n_said, 0);
    ones_step(s, o, 1, &a);
    assert_int_equal(n_said, 1);
    assert_non_null(strstr(said, "1 parameter had no gradient in 10 steps"));
    assert_non_null(strstr(said, "b"));
    for (int i = 0; i < 20; i++) ones_step(s, o, 1, &a);
    assert_int_equal(n_said, 1); /* once */
    assert_true(first_of(b) == -1);
}

/* Gradients summed over steps as in PyTorch, without .accumulate, are lost, and that is said once. Not where
 * two optimizers take turns, each step brings an update, steps without a backward lie between, or somebody
 * reads the gradients. */
TEST(gradients_that_no_update_uses)
{
    for (int what = 0; what < 6; what++) {
        forget();
        tn_session *s = open_place(&PLACES[0], hear_warnings, NULL);
        tn_tensor *a = param(s, "a", TN_F32, 3, 0);
        const int k = what == 4 ? 3 : 1;
        tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 1, .accumulate = k),
                 *other = tn_sgd(s, tn_all_params(s));
        for (int i = 0; i < 30; i++) {
            const bool update = (what != 0 && what != 3 && what != 5) || i % 3 == 2;
            tn_step_begin(s);
            tn_tensor *loss = tn_sum(a, TN_ALL, false);
            if (what != 3 || update) tn_backward(loss);
            if (what == 5) assert_non_null(tn_gradient(a));
            if (update) tn_optim_step(what == 2 && i % 2 ? other : o);
            if (update && what == 1) tn_optim_step(other);
            assert_int_equal(tn_step_end(s), 0);
            assert_int_equal(n_said, what == 0 && i >= 11);
        }
        if (!what) assert_non_null(strstr(said, "came 2 steps with a tn_backward"));
        if (!what) assert_non_null(strstr(said, ".accumulate = 3"));
        tn_stats v = stats_of(s);
        assert_int_equal(v.backward_steps, what == 3 ? 10 : what == 5 ? 0 : 30);
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* Who trains without steps is told, once, what they are for. */
TEST_ON(training_without_steps, open_place(&PLACES[0], hear_warnings, NULL))
{
    forget();
    tn_tensor *a = param(s, "a", TN_F32, 3, 0);
    tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 1);
    for (int i = 0; i < 12; i++) { /* two, a step, and ten */
        if (i == 2) ones_step(s, o, 1, &a);
        tn_backward(tn_sum(a, TN_ALL, false));
        assert_int_equal(tn_optim_step(o), 0);
        assert_int_equal(n_said, i >= 4);
    }
    assert_non_null(strstr(said, "test_nn_optim.c:"));
    assert_non_null(strstr(said, "tn_step_begin and tn_step_end around each iteration"));
}

/* ---- errors ---- */

TEST(errors_have_no_effect)
{
    ON_EACH_WAY(s) {
        tn_tensor *a = param(s, "a", TN_F32, 3, 0);
        tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 1);
        assert_int_equal(ones_step(s, o, 1, &a), TN_OK);
        double before = first_of(a);
        assert_true(fabs(before + 1) < 1e-6); /* adam's first step is lr */
        tn_step_begin(s);
        tn_backward(tn_sum(a, TN_ALL, 0));
        assert_null(tn_add(a, tn_zeros(s, TN_F32, TN_SHAPE(2))));
        assert_int_equal(tn_optim_step(o), TN_E_SHAPE);
        tn_step_end(s);
        assert_int_equal(tn_error(s), TN_E_SHAPE);
        assert_int_equal(o->entries[0].steps, 1);
        tn_clear_error(s);
        assert_true(first_of(a) == before);
        assert_int_equal(ones_step(s, o, 1, &a), TN_OK);
        assert_true(fabs(first_of(a) + 2) < 1e-6);
        /* a label out of range breaks the loss: nothing is updated */
        tn_step_begin(s);
        tn_tensor *y = tn_from(s, (int32_t[]){7}, TN_I32, TN_SHAPE(1));
        tn_tensor *loss = tn_cross_entropy(tn_reshape(a, TN_SHAPE(1, 3)), y);
        tn_backward(loss);
        tn_optim_step(o);
        tn_step_end(s);
        failed(s, TN_E_INDEX, "");
        assert_true(fabs(first_of(a) + 2) < 1e-6);
        /* nor by two updates of one step */
        tn_step_begin(s);
        for (int k = 0; k < 2; k++) {
            y = tn_from(s, (int32_t[]){7}, TN_I32, TN_SHAPE(1));
            tn_backward(tn_cross_entropy(tn_reshape(a, TN_SHAPE(1, 3)), y));
            tn_optim_step(o);
        }
        tn_step_end(s);
        failed(s, TN_E_INDEX, "");
        assert_int_equal(ones_step(s, o, 1, &a), TN_OK);
        assert_int_equal(o->entries[0].steps, 3);
        assert_true(fabs(first_of(a) + 3) < 1e-6);
        /* an update that has run counts, whatever fails later in its step: a run, or a call */
        for (int call = 0; call < 2; call++) {
            tn_step_begin(s);
            tn_backward(tn_sum(a, TN_ALL, 0));
            tn_optim_step(o);
            assert_int_equal(tn_flush(s), TN_OK);
            assert_int_equal(tn_synchronize(s), TN_OK); /* that it has run is known from here on */
            y = tn_from(s, (int32_t[]){7}, TN_I32, TN_SHAPE(1));
            if (call)
                tn_add(a, tn_zeros(s, TN_F32, TN_SHAPE(2)));
            else
                tn_cross_entropy(tn_reshape(a, TN_SHAPE(1, 3)), y);
            tn_step_end(s);
            failed(s, call ? TN_E_SHAPE : TN_E_INDEX, "");
            assert_int_equal(ones_step(s, o, 1, &a), TN_OK);
            assert_int_equal(o->entries[0].steps, 5 + 2 * call);
        }
    }
}

TEST(bad_arguments)
{
    tn_session *s = open_place(&PLACES[0], NULL, NULL), *other = open_place(&PLACES[0], NULL, NULL);
    null_with(s, TN_E_ARG, "no parameters yet", tn_sgd(s, tn_all_params(s)));
    tn_tensor *a = param(s, "a", TN_F32, 3, 0), *foreign = param(other, "a", TN_F32, 3, 0);
    tn_tensor *plain = tn_zeros(s, TN_F32, TN_SHAPE(3)), *taken = tn_zeros(s, TN_F32, TN_SHAPE(3));
    assert_non_null(tn_param(s, "b", taken));
    null_with(s, TN_E_ARG, "lr -1", tn_sgd(s, tn_all_params(s), .lr = -1));
    null_with(s, TN_E_ARG, "lr nan", tn_sgd(s, tn_all_params(s), .lr = NAN));
    null_with(s, TN_E_ARG, "accumulate -2", tn_sgd(s, tn_all_params(s), .accumulate = -2));
    null_with(s, TN_E_ARG, "nesterov", tn_sgd(s, tn_all_params(s), .nesterov = true));
    null_with(s, TN_E_ARG, "beta2 1", tn_adam(s, tn_all_params(s), .beta2 = 1));
    null_with(s, TN_E_NULL, "parameter 1 is NULL", tn_adamw(s, TN_PARAMS(a, NULL)));
    null_with(s, TN_E_SESSION, "parameter 1, 'a', belongs to another session",
              tn_adamw(s, TN_PARAMS(a, foreign)));
    null_with(s, TN_E_ARG, "tensor 1, '', is not a parameter: tn_param", tn_adamw(s, TN_PARAMS(a, plain)));
    null_with(s, TN_E_STALE, "what it returns is the parameter", tn_adamw(s, TN_PARAMS(taken)));
    null_with(s, TN_E_ARG, "the list is empty", tn_adamw(s, ((tn_params){0, NULL})));
    null_with(s, TN_E_ARG, "'a' is listed twice", tn_adamw(s, TN_PARAMS(a, a)));
    tn_tensor *empty = tn_param(s, "empty", tn_zeros(s, TN_F32, TN_SHAPE(0, 3)));
    tn_tensor *behind = tn_param(s, "behind", tn_zeros(s, TN_F32, TN_SHAPE(4)));
    null_with(s, TN_E_ARG, "'behind' is listed twice", tn_sgd(s, TN_PARAMS(behind, empty, behind)));
    assert_non_null(tn_sgd(s, TN_PARAMS(empty, behind)));
    tn_optim *o = tn_adamw(s, tn_all_params(s));
    assert_non_null(o);
    fails_with(s, TN_E_ARG, "", tn_optim_group(o, "z*"));
    fails_with(s, TN_E_ARG, "", tn_optim_set_lr(o, INFINITY));
    tn_step_begin(s);
    null_with(s, TN_E_STATE, "no parameter has a gradient; call tn_backward first", tn_clip_grad_norm(o, 1));
    null_with(s, TN_E_ARG, "max_norm -1", tn_clip_grad_norm(o, -1));
    assert_int_equal(tn_optim_step(o), TN_OK); /* nothing to do */
    assert_true(!tn_item(tn_clip_grad_norm(tn_sgd(s, tn_all_params(s), .accumulate = 2), 1)));
    tn_step_end(s);
    assert_int_equal(tn_optim_step(NULL), TN_E_NULL);
    assert_null(tn_clip_grad_norm(NULL, 1));
    assert_true(isnan(tn_optim_lr(NULL)));
    assert_int_equal(tn_close(s), TN_OK);
    tn_close(other);
}

/* A clip whose step ended without an update does not clip the next one. */
TEST(old_clip_is_forgotten)
{
    ON_EACH_WAY(s) {
        tn_tensor *a = param(s, "a", TN_F32, 4, 0);
        tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 1);
        tn_step_begin(s);
        tn_backward(tn_sum(a, TN_ALL, 0));
        assert_true(fabs(tn_item(tn_clip_grad_norm(o, 0.5)) - 2) < 1e-6);
        tn_step_end(s);
        assert_int_equal(ones_step(s, o, 1, &a), TN_OK);
        assert_true(first_of(a) == -1);
    }
}

/* Whoever else reads the norm, and whatever is written to the gradients and runs behind the clip, the update clips by
 * what the norm was. */
TEST(a_clip_outlives_its_gradients)
{
    ON_EACH_WAY(s)
        for (int how = 0; how < 8; how++) {
            char name[8];
            snprintf(name, sizeof name, "a%d", how);
            tn_tensor *a = param(s, name, TN_F32, 4, 0), *values, *gradients;
            tn_optim *o = tn_sgd(s, ((tn_params){1, &a}), .lr = 1);
            assert_int_equal(tn_param_range(s, TN_F32, how, 1, &values, &gradients), TN_OK);
            tn_step_begin(s);
            tn_tensor *loss = tn_sum(a, TN_ALL, 0);
            tn_backward(loss);
            tn_tensor *norm = tn_clip_grad_norm(o, 1), *kept = how & 1 ? tn_keep(norm) : tn_add(norm, norm);
            if (how & 2)
                tn_assign(gradients, tn_mul_scalar(gradients, 3));
            else
                tn_backward(tn_mul_scalar(tn_sum(a, TN_ALL, 0), 2));
            assert_int_equal(how & 4 ? tn_flush(s) : tn_item(loss) != 0, TN_OK);
            if (!(how & 1)) assert_true(fabs(tn_item(kept) - 4) < 1e-6);
            assert_int_equal(tn_optim_step(o), TN_OK);
            tn_step_end(s);
            expect_fine(s, Ways[way_].name);
            if (how & 1) assert_true(fabs(tn_item(kept) - 2) < 1e-6);
            assert_true(fabs(first_of(a) + 1.5) < 1e-5);
        }
}

/* An update outside of a step works and leaves nothing behind. */
TEST(outside_of_steps)
{
    ON_EACH_WAY(s) {
        tn_tensor *a = param(s, "a", TN_F32, 100, 0), *b = param(s, "b", TN_F32, 10, 0);
        tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 1, .weight_decay = 0.1);
        tn_optim_group(o, "b", .lr_factor = 0.5);
        size_t now = 0;
        for (int i = 0; i < 6; i++) {
            tn_backward(tn_add(tn_sum(a, TN_ALL, 0), i % 2 ? tn_sum(a, TN_ALL, 0) : tn_sum(b, TN_ALL, 0)));
            tn_clip_grad_norm(o, 1);
            tn_optim_step(o);
            expect_fine(s, Ways[way_].name);
            tn_step_begin(s); /* results outside of a step live until here */
            tn_step_end(s);
            tn_stats v = stats_of(s);
            if (i == 3) now = v.bytes_now;
            if (i > 3) assert_int_equal(v.bytes_now, now);
        }
        assert_int_equal(o->entries[0].steps, 6);
        assert_int_equal(o->entries[1].steps, 3);
    }
}

/* ---- kernels ---- */

static uint64_t launches(const tn_session *s)
{
    tn_stats v = stats_of(s);
    return v.kernels + v.library_calls + v.copies;
}

/* However many parameters: an update is one kernel, with clipping a norm before it; no new plans. */
TEST(one_kernel)
{
    for (int kind = 0; kind < 3; kind++) { /* uniform, groups, groups with one parameter left out */
        tn_session *s = open_place(&PLACES[1], NULL, NULL);
        tn_tensor *p[9];
        for (int i = 0; i < 9; i++)
            p[i] = param(s, (const char[]){(char)('a' + i), 0}, TN_F32, 50 + 40 * i, 1);
        tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 0.1, .weight_decay = 0.1);
        if (kind) tn_optim_group(o, "[abc]", .lr_factor = 2);
        uint64_t plans = 0, kernels[6] = {0};
        for (int i = 0; i < 6; i++) {
            tn_step_begin(s);
            tn_tensor *loss = NULL;
            for (int k = 0; k < 9; k++) {
                if (kind == 2 && i && k == 4) continue;
                loss = loss ? tn_add(loss, tn_sum(p[k], TN_ALL, 0)) : tn_sum(p[k], TN_ALL, 0);
            }
            tn_backward(loss);
            uint64_t before = launches(s);
            if (i >= 3) tn_clip_grad_norm(o, 1);
            uint64_t between = launches(s);
            tn_optim_step(o);
            kernels[i] = launches(s) - between;
            if (i >= 3 && between - before > 2)
                fail_msg("the norm takes %d kernels", (int)(between - before));
            tn_step_end(s);
            expect_fine(s, "one kernel");
            tn_stats v = stats_of(s);
            if (i == 2 || i == 4) plans = v.plans;
            if (i == 5) assert_int_equal(v.plans, plans);
        }
        if (kernels[2] != 1) fail_msg("kind %d: an update is %d kernels", kind, (int)kernels[2]);
        if (kernels[5] > 2) fail_msg("kind %d: a clipped update is %d kernels", kind, (int)kernels[5]);
        tn_close(s);
    }
}

RUN_TESTS(make_base, drop_base)
