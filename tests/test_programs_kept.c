/* test_programs_kept.c - what outlives a read, a step or a mistake in a training program: tensors kept and
 * watched; values that nobody kept; errors, which refuse the effects of their step. As test_programs.c, on both devices in both modes. Start with run_everywhere in programs.h. */
#include "programs.h"

/* ---- keeping and watching ---- */

/* A GPU works on while the program does: a value is there, and a fault known, when something has waited. */
static bool works_apart(const run *r) { return r->cpu && subject_device() == TN_CUDA; }

/* What came from the host is kept without a kernel: it is there at once, its memory is its own, an assignment
 * moves it as any other, and a step that keeps it runs the plan of one that finds it kept. */
static void keep_host_step(run *r)
{
    const double v[2] = {r->step + 1, -0.5 * r->step};
    tn_step_begin(r->s);
    tn_tensor *given = vector(r->s, 2, v), *kept = tn_keep(given), *once = tn_keep(given);
    note_all(r, tn_mul(kept, r->held[W]), 2, (const double[]){v[0] * r->w[0], v[1] * r->w[1]}, 0);
    tn_assign(kept, tn_add(given, r->held[W]));
    note_all(r, given, 2, v, 0);
    tn_step_end(r->s);
    note_all(r, kept, 2, (const double[]){v[0] + r->w[0], v[1] + r->w[1]}, 0);
    note_all(r, once, 2, v, 0);
    tn_free(kept);
    tn_free(once);
}

TRAINING(what_the_host_gave_is_kept, open_squares, keep_host_step, 6, 2, 0)

TEST_ON(keeping_what_the_host_gave_makes_no_other_plan,
        tn_open(.device = subject_device(), .mode = TN_FUSED, .log = quiet))
{
    tn_tensor *w = tn_keep(tn_ones(s, TN_F32, TN_SHAPE(2))), *column = NULL;
    tn_stats at = {.size = sizeof at}, before = at;
    for (int step = 0; step < 3; step++) {
        before = stats_of(s);
        tn_step_begin(s);
        if (!column) column = tn_keep(vector(s, 2, (const double[]){3, 5}));
        tn_assign(w, tn_mul(w, column));
        assert_int_equal(tn_step_end(s), TN_OK);
        at = stats_of(s);
        assert_int_equal(at.plans - before.plans, step == 0);
        assert_int_equal(at.kernels - before.kernels, 1);
    }
    float v[2];
    assert_int_equal(tn_read(w, TN_F32, v, sizeof v), TN_OK);
    assert_true(v[0] == 27 && v[1] == 125);
    tn_free(w);
    tn_free(column);
}

/* What is kept is what the program has made of it by then, whoever is to write it and under whichever name:
 * an optimizer, an assignment, the statistics of a norm; through the slab, a part of it or the parameter. */
static void keep_late_step(run *r)
{
    const double step = 0.25;
    tn_tensor *p = r->held[0], *values, *gradients;
    assert_int_equal(tn_param_slab(r->s, TN_F32, &values, &gradients), TN_OK);
    tn_step_begin(r->s);
    tn_backward(tn_sum(p, TN_ALL, false));
    tn_tensor *made[8];
    int n = 0;
    made[n++] = tn_keep(gradients);
    tn_optim_step(r->opt[0]);
    made[n++] = tn_keep(p);
    made[n++] = tn_keep(values);
    made[n++] = tn_keep(tn_contiguous(p));
    tn_assign(values, tn_mul_scalar(values, 0.5));
    made[n++] = tn_keep(p);
    tn_assign(p, tn_add_scalar(p, 1.0));
    made[n++] = tn_keep(values);
    tn_tensor *image = tn_mul_scalar(tn_ones(r->s, TN_F32, TN_SHAPE(4, 1, 1, 1)), r->step + 1.0);
    tn_batch_norm(image, NULL, NULL, r->held[1], r->held[2]);
    made[n++] = tn_keep(r->held[1]);
    tn_step_end(r->s);
    const double moved = r->w[0] - step, halved = moved / 2, mean = 0.9 * r->w[1] + 0.1 * (r->step + 1);
    const double want[] = {1, moved, moved, moved, halved, halved + 1, mean};
    for (int i = 0; i < n; i++) {
        note(r, tn_item(tn_select(made[i], 0, 0)), want[i], 1e-6); /* the slab is longer than its parameter */
        tn_free(made[i]);
    }
    r->w[0] = halved + 1;
    r->w[1] = mean;
}

static void open_one(run *r)
{
    r->w[0] = 1;
    r->w[1] = 0;
    r->held[0] = tn_param(r->s, "p", tn_ones(r->s, TN_F32, TN_SHAPE(1)));
    r->held[1] = tn_buffer(r->s, "mean", tn_zeros(r->s, TN_F32, TN_SHAPE(1)));
    r->held[2] = tn_buffer(r->s, "var", tn_ones(r->s, TN_F32, TN_SHAPE(1)));
    r->opt[0] = tn_sgd(r->s, tn_all_params(r->s), .lr = 0.25);
}

TRAINING(what_is_kept_is_what_was_written_by_then, open_one, keep_late_step, 6, 3, 1e-6)

/* Where operators wait, a watched value is that of the step before. */
static void watch_step(run *r)
{
    double before = r->w[6], now = loss_wanted(r);
    tn_step_begin(r->s);
    tn_tensor *loss = loss_of(r);
    if (!r->fused && works_apart(r))
        note(r, tn_item(loss), now, 0);
    else
        note(r, r->fused && !r->step ? now : tn_watch(loss), r->fused && r->step ? before : now, 0);
    r->noted[r->n - 1] = 0; /* not the same in both modes */
    if (r->fused && !r->step) assert_true(isnan(tn_watch(loss)));
    tn_backward(loss);
    tn_optim_step(r->opt[0]);
    tn_step_end(r->s);
    r->w[6] = now;
    moved(r, 0.125);
    note_all(r, r->held[W], 2, r->w, 0);
}

TRAINING(a_watched_value_is_the_step_befores, open_squares, watch_step, 6, 2, 0)

/* ---- what is not kept ---- */

/* What the header says can be read once a read has run an update: what was asked for, what no operator had
 * read, gradients, what was kept, parameters, and what no update has touched; an inner value only if it comes
 * first. */
TEST(what_can_be_read_after_an_update)
{
    for (int way = 0; way < N_WAYS; way++)
        for (int first = 0; first < 2; first++) {
            run r = open_run(way);
            open_squares(&r);
            tn_step_begin(r.s);
            tn_tensor *doubled = tn_mul_scalar(r.held[Y], 2.0); /* made of no parameter */
            tn_tensor *out = tn_matmul(r.held[X], r.held[W]), *e = tn_sub(out, r.held[Y]);
            tn_tensor *kept = tn_keep(e), *most = tn_max(tn_abs(e), TN_ALL, false);
            tn_tensor *loss = tn_sum(tn_square(tn_add(e, tn_mul_scalar(doubled, 0.0))), TN_ALL, false);
            tn_backward(loss);
            tn_optim_step(r.opt[0]);
            const double wrong[2] = {-8, 2};
            if (first)
                note_all(&r, out, 2, (const double[]){0, 0}, 0);
            else
                note(&r, tn_item(loss), loss_wanted(&r), 0);
            note(&r, tn_item(loss), loss_wanted(&r), 0);
            note(&r, tn_item(most), 8, 0);
            note_all(&r, tn_gradient(r.held[W]), 2, (const double[]){-12, 20}, 0);
            note_all(&r, kept, 2, wrong, 0);
            note_all(&r, doubled, 2, (const double[]){16, -4}, 0);
            moved(&r, 0.125);
            note_all(&r, r.held[W], 2, r.w, 0);
            double v[2] = {-77, -77};
            bool there = first || !r.fused || !r.cpu; /* the reference device keeps everything */
            assert_int_equal(tn_read(out, TN_F64, v, sizeof v), there ? TN_OK : TN_E_NOT_KEPT);
            assert_true(v[0] == (there ? 0 : -77));
            if (!there) assert_non_null(strstr(tn_error_text(r.s), "tn_keep"));
            tn_clear_error(r.s);
            tn_step_end(r.s);
            note_all(&r, kept, 2, wrong, 0); /* for as long as one likes */
            tn_free(kept);
            assert_int_equal(tn_close(r.s), 0);
        }
}

/* An intermediate value that nobody asked for is made again after a read, unless what it was made of has been
 * assigned to since: then it is an error which says what to do, never another number. */
TEST(what_was_not_kept_is_made_again_or_an_error)
{
    ON_EACH_RUN(r) {
        tn_tensor *state_of = tn_buffer(r.s, "state", vector(r.s, 2, (const double[]){3, -5}));
        tn_step_begin(r.s);
        tn_tensor *twice = tn_mul_scalar(state_of, 2.0), *total = tn_sum(twice, TN_ALL, false);
        note(&r, tn_item(total), -4, 0);
        note_all(&r, twice, 2, (const double[]){6, -10}, 0); /* made again */
        tn_tensor *half = tn_mul_scalar(state_of, 0.5);
        tn_tensor *third = tn_mul_scalar(state_of, 0.25);
        note(&r, tn_item(tn_sum(tn_add(half, third), TN_ALL, false)), -1.5, 0);
        tn_assign(state_of, tn_add_scalar(state_of, 1.0));
        note_all(&r, half, 2, (const double[]){1.5, -2.5}, 0); /* while the assignment waits */
        note_all(&r, state_of, 2, (const double[]){4, -4}, 0);
        double v[2] = {-77, -77};
        int status = tn_read(third, TN_F64, v, sizeof v);
        if (!r.fused || !r.cpu) { /* the reference device keeps everything */
            assert_int_equal(status, TN_OK);
            assert_true(v[0] == 0.75 && v[1] == -1.25);
        } else {
            assert_int_equal(status, TN_E_NOT_KEPT);
            assert_true(v[0] == -77);
            says(tn_error_text(r.s),
                 "reads state, which assign|tn_keep| by the run that read at |the value of mul_scalar at ",
                 __FILE__, __LINE__);
            tn_clear_error(r.s);
        }
        tn_step_end(r.s);
        note_all(&r, state_of, 2, (const double[]){4, -4}, 0);
    }
}

/* A second backward writes over the first one's gradients, and over nothing that was made of them: that is
 * kept, or there is an error. The gradients are read one by one, or all in their slab as for their norm. */
TEST(what_gradients_were_is_kept_or_an_error)
{
    for (int way = 0; way < N_WAYS; way++)
        for (int slab = 0; slab < 2; slab++) {
            run r = open_run(way);
            tn_tensor *w = tn_param(r.s, "w", vector(r.s, 2, (const double[]){3, 4}));
            tn_optim *o = tn_sgd(r.s, TN_PARAMS(w));
            for (int i = 1; i < 5; i++) { /* again, so that it is answered from the tape */
                const double first = slab ? i * sqrt(2) : (double)i * i;
                tn_step_begin(r.s);
                tn_backward(tn_sum(tn_mul_scalar(w, i), TN_ALL, false));
                tn_tensor *y =
                    slab ? tn_clip_grad_norm(o, 9) : tn_mean(tn_square(tn_gradient(w)), TN_ALL, false);
                tn_tensor *kept = i % 2 ? NULL : tn_keep(y), *more = tn_add_scalar(y, 1.0);
                tn_flush(r.s);
                tn_backward(tn_sum(tn_mul_scalar(w, 5.0), TN_ALL, false));
                tn_flush(r.s);
                if (kept) note(&r, tn_item(kept), first, 1e-6);
                note(&r, tn_item(more), first + 1, 1e-6);
                double v = tn_item(y);
                if (tn_error(r.s) != TN_E_NOT_KEPT) note(&r, v, first, 1e-6);
                const bool gone = r.fused && r.cpu && !kept && !slab; /* a clip keeps what it has made */
                assert_true(gone ? tn_error(r.s) == TN_E_NOT_KEPT : !tn_error(r.s) || kept);
                tn_clear_error(r.s);
                note_all(&r, tn_gradient(w), 2, (const double[]){i + 5, i + 5}, 0);
                tn_free(kept);
                tn_step_end(r.s);
            }
            assert_int_equal(tn_close(r.s), 0);
        }
}

/* What nobody asks for is no error, though it could not be made any more. */
TEST(what_nobody_asks_for_may_go)
{
    ON_EACH_RUN(r) {
        tn_tensor *b = tn_buffer(r.s, "b", vector(r.s, 2, (const double[]){3, -5}));
        tn_step_begin(r.s);
        tn_tensor *y = tn_mul_scalar(b, 2.0);
        tn_assign(b, tn_add_scalar(y, 1.0));
        note_all(&r, b, 2, (const double[]){7, -9}, 0);
        assert_non_null(tn_add_scalar(y, 5.0)); /* read by nothing */
        assert_int_equal(tn_step_end(r.s), TN_OK);
        note_all(&r, b, 2, (const double[]){7, -9}, 0);
    }
}

/* Third and higher derivatives, and gradients of gradients, leave long chains of calls behind them. */
TEST(derivatives_of_derivatives)
{
    ON_EACH_RUN(r) {
        tn_step_begin(r.s);
        tn_tensor *x = vector(r.s, 2, (const double[]){0.5, -0.25}), *f;
        tn_requires_grad(x, true);
        f = tn_sin(x);
        for (int order = 0; order < 6; order++) {
            tn_tensor *g = NULL;
            assert_int_equal(tn_grad(tn_sum(f, TN_ALL, false), 1, &x, &g), TN_OK);
            f = g;
        }
        note_all(&r, f, 2, (const double[]){-sin(0.5), sin(0.25)}, 1e-6); /* the sixth derivative of sin */
        assert_int_equal(tn_step_end(r.s), TN_OK);
    }
}

/* A gradient that reads an old value, recorded after this has been assigned to: where all of it runs at once,
 * the assignment waits for kernels that are recorded after it. L = (sum p b)^2, so that dL/dp = 2 (sum p b) b
 * with the b that was there. */
TEST(an_assignment_waits_for_later_gradients)
{
    run r = open_run(N_WAYS - 1);
    const double p[2] = {2, 1}, b[2] = {3, -1}, q[2] = {5, 7};
    r.held[W] = tn_param(r.s, "p", vector(r.s, 2, p));
    r.held[X] = tn_buffer(r.s, "b", vector(r.s, 2, b));
    r.held[Y] = vector(r.s, 2, q);
    for (r.step = 0; r.step < 3; r.step++) {
        tn_step_begin(r.s);
        tn_tensor *y = tn_mul(r.held[W], r.held[X]), *total = tn_sum(y, TN_ALL, true);
        tn_tensor *loss = tn_sum(tn_mul(y, total), TN_ALL, false);
        tn_backward(tn_sum(r.held[W], TN_ALL, false));
        tn_assign(r.held[X], r.held[Y]);
        tn_backward(loss);
        note_all(&r, tn_gradient(r.held[W]), 2, (const double[]){1 + 2 * 5 * 3, 1 + 2 * 5 * -1}, 0);
        note_all(&r, r.held[X], 2, q, 0);
        tn_step_end(r.s);
        tn_assign(r.held[X], vector(r.s, 2, b));
        assert_string_equal(tn_error_text(r.s), "");
    }
    assert_int_equal(tn_close(r.s), 0);
}

/* After a run that failed, what it was to assign has no value: assigning there again keeps nothing of it for
 * the views that were taken. */
TEST(what_failed_to_be_assigned_is_assigned_again)
{
    run r = open_run(N_WAYS - 1);
    const double v[2] = {2, 3};
    r.held[W] = tn_param(r.s, "p", vector(r.s, 2, v));
    r.held[X] = tn_buffer(r.s, "b", vector(r.s, 2, v));
    for (int view = 0; view < 2; view++) {
        tn_step_begin(r.s);
        tn_tensor *at = tn_from(r.s, (int64_t[]){0, 7}, TN_I64, TN_SHAPE(2));
        tn_tensor *x = tn_index_select(r.held[X], 0, at);
        tn_assign(r.held[X], tn_mul_scalar(r.held[X], 2.0));
        if (view)
            tn_flip(r.held[X], TN_AXES(0));
        else
            tn_mul(r.held[W], r.held[X]);
        double got[2];
        fails_with(r.s, TN_E_INDEX, "", tn_read(x, TN_F64, got, sizeof got));
        tn_assign(r.held[X], tn_mul_scalar(r.held[W], 10.0));
        tn_step_end(r.s);
        tn_clear_error(r.s);
        assert_int_equal(tn_assign(r.held[X], r.held[W]), 0);
        note_all(&r, r.held[X], 2, v, 0);
    }
    assert_int_equal(tn_close(r.s), 0);
}

/* What stands for a tensor in a step is called as the tensor was when it was used, also when that has got
 * another name since, or is gone. */
TEST(names_outlive_their_tensors)
{
    for (int gone = 0; gone < 2; gone++) {
        const double v[2] = {2, 3};
        run r = open_run(N_WAYS - 1);
        tn_tensor *b = tn_buffer(r.s, "as_it_was_called", vector(r.s, 2, v));
        tn_step_begin(r.s);
        tn_tensor *y = tn_mul_scalar(b, 2.0);
        tn_add_scalar(y, 1.0);
        tn_assign(b, tn_add_scalar(b, 1.0));
        tn_flush(r.s);
        if (gone)
            tn_free(b);
        else
            tn_set_name(b, "as_it_is_called_");
        tn_tensor *other = tn_buffer(r.s, "something_beside", vector(r.s, 2, v));
        double got[2];
        fails_with(r.s, TN_E_NOT_KEPT, "reads as_it_was_called", tn_read(y, TN_F64, got, sizeof got));
        tn_step_end(r.s);
        tn_free(other);
        assert_int_equal(tn_close(r.s), 0);
    }
}

/* ---- mistakes ---- */

/* From the mistake on nothing of the step takes effect; once it is cleared all goes on from there. */
TEST(errors_refuse_effects)
{
    ON_EACH_RUN(r) {
        open_squares(&r);
        tn_tensor *count = tn_buffer(r.s, "count", tn_zeros(r.s, TN_F32, TN_SHAPE(1)));
        for (r.step = 0; r.step < 6; r.step++) {
            if (r.step % 2 == 0) {
                plain_step(&r);
                continue;
            }
            tn_step_begin(r.s);
            tn_tensor *loss = loss_of(&r), *wrong = tn_add(loss, tn_reshape(r.held[X], TN_SHAPE(3)));
            assert_null(wrong);
            assert_int_equal(tn_error(r.s), TN_E_SHAPE);
            assert_int_not_equal(tn_backward(loss), TN_OK);
            assert_int_not_equal(tn_optim_step(r.opt[0]), TN_OK);
            assert_int_not_equal(tn_assign(count, tn_add_scalar(count, 1.0)), TN_OK);
            assert_true(isnan(tn_item(loss)));
            fails_with(r.s, TN_E_SHAPE, "", tn_step_end(r.s));
            note_all(&r, r.held[W], 2, r.w, 0);
            note_all(&r, count, 1, (const double[]){0}, 0);
        }
    }
}

RUN_TESTS(NULL, NULL)
