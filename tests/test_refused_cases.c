/* test_refused_cases.c - what a plan does so that a run which fails takes no effect, what the errors say of
 * what was refused, and how updates, kept tensors and gradients go on afterwards. Random programs against a
 * model are in test_refused.c. */
#include "tests/plan_checks.h"

#include "rig.h"

/* ---- what a plan does for it ---- */

static tn_session *open_cpu(void) { return tn_open(.device = TN_CPU, .mode = TN_FUSED, .log = quiet); }

static tn_tensor *numbers(tn_session *s, const char *name, int n)
{
    float v[16];
    for (int i = 0; i < n; i++) v[i] = (float)i;
    return tn_buffer(s, name, tn_from(s, v, TN_F32, TN_SHAPE(n)));
}

/* Labels are looked through first where running statistics would be assigned before the loss reads them;
 * where every assignment is made of gradients of that loss, they are not. */
TEST(labels_are_checked_where_something_is_assigned_before)
{
    for (int norm = 0; norm < 2; norm++) {
        tn_session *s = open_cpu();
        tn_tensor *w = tn_param(s, "w", tn_ones(s, TN_F32, TN_SHAPE(3, 5))),
                  *mean = tn_buffer(s, "mean", tn_zeros(s, TN_F32, TN_SHAPE(3))),
                  *variance = tn_buffer(s, "variance", tn_ones(s, TN_F32, TN_SHAPE(3)));
        tn_optim *o = tn_adam(s, tn_all_params(s), .lr = 0.1);
        for (int step = 0; step < 2; step++) {
            tn_step_begin(s);
            tn_tensor *x = tn_add_scalar(tn_zeros(s, TN_F32, TN_SHAPE(8, 3)), 1.0);
            if (norm)
                x = tn_reshape(tn_batch_norm(tn_reshape(x, TN_SHAPE(8, 1, 1, 3)), NULL, NULL, mean, variance),
                               TN_SHAPE(8, 3));
            int32_t label[8] = {0, 1, 2, 3, 4, 0, 1, 2};
            tn_backward(tn_cross_entropy(tn_matmul(x, w), tn_from(s, label, TN_I32, TN_SHAPE(8))));
            tn_optim_step(o);
            seen v = look(s);
            if (steps_named(&v, "check_") != norm) print_plan(&v);
            assert_int_equal(steps_named(&v, "check_"), norm);
            assert_int_equal(steps_named(&v, "check_labels"), norm);
            if (norm) assert_true(!strncmp(v.plan->step[0].name, "check_labels", 12));
            forget(&v);
            assert_int_equal(tn_step_end(s), TN_OK);
        }
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* Rows at a place that the host has seen to be there need no check, nor does what argmax has chosen; several
 * readers of one index need one. */
TEST_ON(what_is_known_is_not_checked, open_cpu())
{
    tn_tensor *cache = numbers(s, "cache", 8), *other = numbers(s, "other", 8);
    tn_step_begin(s);
    tn_assign(cache, tn_add_scalar(cache, 1.0));
    tn_tensor *window = tn_narrow(cache, 0, 2, 3), *best = tn_argmax(other, 0, true);
    tn_add(tn_sum(window, TN_ALL, false), tn_index_select(other, 0, best));
    seen v = look(s);
    assert_int_equal(steps_named(&v, "check_"), 0);
    forget(&v);
    int64_t at[3] = {1, 2, 3};
    tn_tensor *index = tn_from(s, at, TN_I64, TN_SHAPE(3));
    tn_add(tn_index_select(cache, 0, index), tn_index_select(other, 0, index));
    v = look(s);
    assert_int_equal(steps_named(&v, "check_index"), 1);
    forget(&v);
    assert_int_equal(tn_step_end(s), TN_OK);
}

/* An index that the run computes is looked up by another kernel than the one that assigns. */
TEST_ON(a_computed_index_and_an_assignment_are_apart, open_cpu())
{
    tn_tensor *b = numbers(s, "b", 4), *c = numbers(s, "c", 4);
    for (int bad = 0; bad < 2; bad++) {
        float v[4];
        tn_step_begin(s);
        tn_tensor *place = tn_cast(tn_add_scalar(tn_cumsum(b, 0), bad ? 9.0 : -3.0), TN_I64);
        tn_assign(c, tn_index_select(c, 0, tn_maximum_scalar(place, 0)));
        seen p = look(s);
        assert_int_equal(steps_named(&p, "check_"), 0);
        assert_true(p.kernels >= 3);
        forget(&p);
        assert_int_equal(tn_step_end(s), bad ? TN_E_INDEX : TN_OK);
        tn_clear_error(s);
        tn_read(c, TN_F32, v, sizeof v);
        for (int k = 0; k < 4; k++) assert_true(v[k] == (k < 3 ? 0.0f : 3.0f));
    }
}

/* An index that is looked through beforehand, and is written into a larger tensor besides. */
TEST_ON(an_index_that_stands_in_another_tensor_is_checked, open_cpu())
{
    tn_tensor *b = numbers(s, "b", 4), *places = numbers(s, "places", 6);
    for (int bad = 0; bad < 2; bad++) {
        float v[4];
        int64_t both[9];
        tn_step_begin(s);
        tn_tensor *half = tn_cast(tn_mul_scalar(tn_slice(places, 0, 1, 4, 1), bad ? 2.0 : 1.0), TN_I64);
        tn_tensor *joined = tn_concat(2, ((tn_tensor *[]){half, tn_cast(places, TN_I64)}), 0);
        tn_assign(b, tn_mul_scalar(b, 2.0));
        tn_tensor *sum = tn_sum(tn_index_select(b, 0, half), TN_ALL, false);
        seen p = look(s);
        assert_int_equal(steps_named(&p, "check_index"), 1);
        forget(&p);
        if (!bad) {
            assert_int_equal(tn_read(joined, TN_I64, both, sizeof both), TN_OK);
            for (int k = 0; k < 9; k++) assert_int_equal(both[k], k < 3 ? k + 1 : k - 3);
            assert_true(tn_item(sum) == 12);
        }
        assert_int_equal(tn_step_end(s), bad ? TN_E_INDEX : TN_OK);
        tn_clear_error(s);
        tn_read(b, TN_F32, v, sizeof v);
        for (int k = 0; k < 4; k++) assert_true(v[k] == (float)(2 * k));
    }
}

/* ---- what is said, and what waits on ---- */

TEST_ON(what_was_refused_has_no_value, open_cpu())
{
    tn_tensor *b = numbers(s, "b", 4), *c = numbers(s, "c", 4);
    int64_t at[2] = {1, 7};
    float v[4];
    tn_step_begin(s);
    tn_tensor *x = tn_index_select(c, 0, tn_from(s, at, TN_I64, TN_SHAPE(2)));
    tn_assign(b, tn_add_scalar(b, 1.0));
    tn_tensor *y = tn_mul_scalar(b, 2.0), *before = tn_mul_scalar(c, 3.0);
    assert_true(isnan(tn_item(tn_sum(x, TN_ALL, false))));
    assert_non_null(strstr(tn_error_text(s), "index[1] is 7"));
    tn_clear_error(s);
    fails_with(s, TN_E_NOT_KEPT, "assign at test_refused_cases.c|to b, did not take place",
               tn_read(y, TN_F32, v, sizeof v));
    fails_with(s, TN_E_INDEX, "index_select at test_refused_cases.c", tn_read(x, TN_F32, v, 2 * sizeof *v));
    assert_int_equal(tn_read(before, TN_F32, v, sizeof v), TN_OK);
    assert_true(v[3] == 9);
    /* another assignment, beside a value of the first that nobody asks for */
    tn_add(y, tn_sum(x, TN_ALL, false));
    tn_assign(b, tn_add_scalar(b, 10.0));
    assert_int_equal(tn_read(b, TN_F32, v, sizeof v), TN_OK);
    assert_true(v[3] == 13);
    assert_int_equal(tn_step_end(s), TN_OK);
    assert_int_equal(tn_read(b, TN_F32, v, sizeof v), TN_OK);
    assert_true(v[0] == 10 && v[3] == 13);
}

/* Asking for what cannot be had is no run: what waits goes on waiting, and counts once. */
TEST(asking_in_vain_refuses_nothing)
{
    float plain[3], asked[3];
    for (int late = 0; late < 2; late++) {
        tn_session *s = open_cpu();
        tn_tensor *p = tn_param(s, "p", tn_ones(s, TN_F32, TN_SHAPE(3))), *b = numbers(s, "b", 3);
        tn_optim *o = tn_adam(s, tn_all_params(s), .lr = 0.1);
        for (int step = 0; step < 3; step++) {
            tn_step_begin(s);
            int64_t at = late ? 5 : 1;
            tn_tensor *x = tn_index_select(b, 0, tn_from(s, &at, TN_I64, TN_SHAPE(1)));
            tn_item(x);
            tn_clear_error(s);
            tn_assign(b, tn_add_scalar(b, 1.0));
            tn_backward(tn_sum(tn_square(p), TN_ALL, false));
            tn_optim_step(o);
            if (late) tn_item(x);
            assert_int_equal(tn_error(s), late ? TN_E_INDEX : TN_OK);
            tn_clear_error(s);
            assert_int_equal(tn_step_end(s), TN_OK);
        }
        assert_true(tn_item(tn_select(b, 0, 0)) == 3);
        assert_int_equal(tn_read(p, TN_F32, late ? asked : plain, sizeof plain), TN_OK);
        assert_int_equal(tn_close(s), TN_OK);
    }
    assert_memory_equal(plain, asked, sizeof plain);
}

/* An update that was refused does not count, and its gradient is none: the next one is as without it. */
TEST(an_update_that_was_refused_does_not_count)
{
    float plain[3], refused[3];
    for (int late = 0; late < 2; late++) {
        tn_session *s = open_cpu();
        tn_tensor *p = tn_param(s, "p", tn_ones(s, TN_F32, TN_SHAPE(3)));
        tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 0.1, .weight_decay = 0.2);
        for (int step = 0; step < 4; step++) {
            tn_step_begin(s);
            for (int time = 0; time < 2; time++) {
                const bool bad = step == 2 && !time;
                if (bad && !late) continue;
                int64_t at[2] = {time, bad ? 3 : 2};
                tn_tensor *picked = tn_index_select(tn_square(p), 0, tn_from(s, at, TN_I64, TN_SHAPE(2)));
                tn_backward(tn_sum(picked, TN_ALL, false));
                tn_optim_step(o);
                tn_flush(s);
                assert_int_equal(tn_error(s), bad ? TN_E_INDEX : TN_OK);
                tn_clear_error(s);
                assert_int_equal(tn_has_gradient(p), !bad);
            }
            assert_int_equal(tn_step_end(s), TN_OK);
        }
        assert_int_equal(tn_read(p, TN_F32, late ? refused : plain, sizeof plain), TN_OK);
        assert_int_equal(tn_close(s), TN_OK);
    }
    assert_memory_equal(plain, refused, sizeof plain);
}

/* Whoever asked first, whatever failed since, and however late the error is cleared. A frozen part of the
 * model joins in the step that fails, so that the optimizer's state has to move. */
TEST(a_refused_update_is_found_whatever_fails_after_it)
{
    enum { KINDS = 6, STEPS_OF = 9, BAD = 5 };
    for (int accumulate = 1; accumulate <= 3; accumulate += 2) {
        float plain[128] = {0}, got[128];
        for (int kind = 0; kind < KINDS; kind++) {
            static float one[64];
            for (int i = 0; i < 64; i++) one[i] = 1;
            tn_session *s = open_cpu();
            tn_tensor *a = tn_param(s, "a", tn_from(s, one, TN_F32, TN_SHAPE(64))),
                      *b = tn_param(s, "b", tn_from(s, one, TN_F32, TN_SHAPE(64)));
            tn_optim *o = tn_adam(s, tn_all_params(s), .lr = 0.1, .accumulate = accumulate);
            tn_requires_grad(b, false);
            for (int step = 0; step < STEPS_OF; step++) {
                const bool bad = step == BAD;
                if (bad) tn_requires_grad(b, true);
                if (bad && !kind) continue;
                const int32_t at[2] = {1, bad ? 64 : 63};
                tn_step_begin(s);
                tn_tensor *y = tn_add(tn_square(a), tn_square(b));
                tn_tensor *index = tn_from(s, at, TN_I32, TN_SHAPE(2));
                tn_tensor *loss = tn_sum(tn_index_select(y, 0, index), TN_ALL, false);
                tn_backward(loss);
                tn_clip_grad_norm(o, 0.5);
                tn_optim_step(o);
                if (bad && kind >= 2) tn_item(loss);
                if (bad && kind == 3) tn_clear_error(s);
                if (bad && kind == 3) tn_item(tn_sum(tn_index_select(y, 0, index), TN_ALL, false));
                tn_step_end(s);
                assert_int_equal(tn_error(s) != TN_OK, bad);
                if (bad && kind == 4) { /* a step that is refused altogether, with the error standing */
                    tn_step_begin(s);
                    tn_square(a);
                    tn_step_end(s);
                }
                tn_clear_error(s);
                if (bad && kind == 5) { /* an evaluation with a bad label */
                    tn_step_begin(s);
                    tn_item(tn_sum(tn_index_select(a, 0, index = tn_from(s, at, TN_I32, TN_SHAPE(2))), TN_ALL,
                                   false));
                    tn_step_end(s);
                    tn_clear_error(s);
                }
            }
            assert_int_equal(tn_read(a, TN_F32, got, 64 * sizeof *got), TN_OK);
            assert_int_equal(tn_read(b, TN_F32, got + 64, 64 * sizeof *got), TN_OK);
            if (!kind) memcpy(plain, got, sizeof plain);
            if (memcmp(plain, got, sizeof plain))
                fail_msg("accumulate %d, kind %d: %g is not %g", accumulate, kind, got[1], plain[1]);
            assert_int_equal(tn_close(s), TN_OK);
        }
    }
}

/* What was to be kept has no value, in the step and after it, until it is assigned one. */
TEST_ON(what_was_to_be_kept_has_no_value, open_cpu())
{
    float v[4];
    tn_tensor *c = numbers(s, "c", 4);
    for (int late = 0; late < 3; late++) {
        tn_step_begin(s);
        int32_t at = 9;
        tn_tensor *kept = tn_keep(tn_mul_scalar(c, 1.0)),
                  *named = tn_buffer(s, "named", tn_mul_scalar(c, 3.0));
        tn_index_select(c, 0, tn_from(s, &at, TN_I32, TN_SHAPE(1)));
        assert_int_equal(late ? tn_flush(s) : tn_step_end(s), TN_E_INDEX);
        tn_clear_error(s);
        for (int time = 0; time < 2; time++) {
            fails_with(s, TN_E_NOT_KEPT, "", tn_read(kept, TN_F32, v, sizeof v));
            assert_int_equal(tn_read(named, TN_F32, v, sizeof v), TN_E_NOT_KEPT);
            if (!late || time) assert_non_null(strstr(tn_error_text(s), "named has no value"));
            tn_clear_error(s);
            assert_true(isnan(tn_watch(tn_select(kept, 0, 0))));
            tn_clear_error(s);
            if (late == 2 && !time) assert_int_equal(tn_assign(kept, tn_add_scalar(c, 1.0)), TN_OK);
            if (late && !time) assert_int_equal(tn_step_end(s), TN_OK);
            if (late == 2) break;
        }
        if (late < 2) assert_int_equal(tn_assign(kept, tn_add_scalar(c, 1.0)), TN_OK);
        assert_int_equal(tn_read(kept, TN_F32, v, sizeof v), TN_OK);
        for (int k = 0; k < 4; k++) assert_true(v[k] == (float)(k + 1));
        tn_free(kept);
        tn_free(named);
    }
}

/* What a run before has made of a gradient stays, though the one that fails adds to it in its place; a norm
 * of the sum is none. */
TEST_ON(gradients_of_earlier_runs_stay, open_cpu())
{
    tn_tensor *p = tn_param(s, "p", tn_ones(s, TN_F32, TN_SHAPE(3)));
    tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 0.125);
    for (int step = 0; step < 3; step++) {
        float v[3];
        int32_t at = 7;
        tn_step_begin(s);
        tn_backward(tn_mul_scalar(tn_sum(p, TN_ALL, false), 2.0));
        assert_int_equal(tn_flush(s), TN_OK);
        tn_tensor *extra = tn_index_select(p, 0, tn_from(s, &at, TN_I32, TN_SHAPE(1)));
        tn_backward(tn_add(tn_sum(p, TN_ALL, false), tn_sum(extra, TN_ALL, false)));
        tn_tensor *norm = tn_clip_grad_norm(o, 1.0);
        fails_with(s, TN_E_INDEX, "", tn_flush(s));
        assert_true(isnan(tn_item(norm)));
        failed(s, TN_E_NOT_KEPT, "");
        assert_int_equal(tn_read(tn_gradient(p), TN_F32, v, sizeof v), TN_OK);
        for (int k = 0; k < 3; k++) assert_true(v[k] == 2);
        tn_backward(tn_mul_scalar(tn_sum(p, TN_ALL, false), 6.0));
        tn_clip_grad_norm(o, 1e6);
        tn_optim_step(o);
        assert_int_equal(tn_step_end(s), TN_OK);
        assert_int_equal(tn_read(p, TN_F32, v, sizeof v), TN_OK);
        for (int k = 0; k < 3; k++) assert_true(v[k] == (float)-step);
    }
}

/* An update that the lookup itself waits for, as it looks into what is updated, is taken back; so is
 * everything where lookups are many. */
TEST(what_cannot_wait_is_taken_back)
{
    for (int many = 0; many < 2; many++) {
        tn_session *s = open_cpu();
        tn_tensor *p = tn_param(s, "p", tn_ones(s, TN_F32, TN_SHAPE(4))), *c = numbers(s, "c", 4);
        tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 0.125);
        for (int bad = 0; bad < 2; bad++) {
            float v[4];
            tn_step_begin(s);
            tn_backward(tn_sum(p, TN_ALL, false));
            tn_optim_step(o);
            tn_tensor *sum = tn_zeros(s, TN_F32, TN_SHAPE(4));
            for (int i = 0; i < (many ? 40 : 1); i++) {
                tn_tensor *place = tn_cumsum(tn_mul_scalar(c, bad ? 1.0 : 0.4 / (i + 1)), 0);
                sum = tn_add(sum, tn_index_select(p, 0, tn_cast(place, TN_I64)));
            }
            tn_assign(c, tn_add(c, tn_mul_scalar(sum, 0.0)));
            seen plan = look(s);
            assert_true(plan.plan->undo);
            forget(&plan);
            assert_int_equal(tn_step_end(s), bad ? TN_E_INDEX : TN_OK);
            tn_clear_error(s);
            assert_int_equal(tn_read(p, TN_F32, v, sizeof v), TN_OK);
            for (int k = 0; k < 4; k++) assert_true(v[k] == 0.875f);
            assert_int_equal(tn_read(c, TN_F32, v, sizeof v), TN_OK);
            for (int k = 0; k < 4; k++) assert_true(v[k] == (float)k);
        }
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* A refused update, and then a checkpoint is loaded, or saved while another one waits: the counts are those
 * of the file, and of what has run. */
TEST(checkpoints_count_what_has_run)
{
    enum { PLAIN, LOADED, SAVED, WAYS };
    char path[] = "/tmp/refused-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    float want[3] = {0};
    for (int kind = 0; kind < WAYS; kind++) {
        float v[3];
        tn_session *s = open_cpu();
        tn_tensor *p = tn_param(s, "p", tn_ones(s, TN_F32, TN_SHAPE(3)));
        tn_optim *o = tn_adam(s, tn_all_params(s), .lr = 0.1);
        for (int step = 0; step < 6; step++) {
            const bool bad = step == 3;
            if (bad && kind == PLAIN) continue;
            tn_step_begin(s);
            const int32_t at = bad ? 3 : 1;
            tn_tensor *index = tn_from(s, &at, TN_I32, TN_SHAPE(1));
            tn_backward(tn_sum(tn_index_select(tn_square(p), 0, index), TN_ALL, false));
            tn_optim_step(o);
            if (bad && kind == SAVED) assert_int_equal(tn_save(s, path), TN_E_INDEX);
            assert_int_equal(tn_step_end(s), bad ? TN_E_INDEX : TN_OK);
            tn_clear_error(s);
            if (step == 2 && kind == LOADED) assert_int_equal(tn_save(s, path), TN_OK);
            if (bad && kind == LOADED) assert_int_equal(tn_load(s, path), TN_OK);
        }
        assert_int_equal(tn_read(p, TN_F32, kind == PLAIN ? want : v, sizeof v), TN_OK);
        if (kind != PLAIN) assert_memory_equal(v, want, sizeof v);
        assert_int_equal(tn_close(s), TN_OK);
    }
    unlink(path);
}

/* Two updates of a step, and a parameter that joins in the second: moving the moments runs the first. */
TEST(an_update_that_ran_counts_though_the_next_is_refused)
{
    float want[128] = {0}, v[128];
    static float one[64];
    for (int i = 0; i < 64; i++) one[i] = 1;
    for (int refused = 0; refused < 2; refused++) {
        tn_session *s = open_cpu();
        tn_tensor *p = tn_param(s, "p", tn_from(s, one, TN_F32, TN_SHAPE(64))),
                  *q = tn_param(s, "q", tn_from(s, one, TN_F32, TN_SHAPE(64)));
        tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 0.125, .momentum = 0.5, .dampening = 0.5);
        tn_requires_grad(q, false);
        for (int step = 0; step < 4; step++) {
            tn_step_begin(s);
            tn_backward(tn_sum(p, TN_ALL, false));
            tn_optim_step(o);
            if (step == 1) tn_requires_grad(q, true);
            if (step > 1 || (step == 1 && refused)) {
                const int32_t at = 64;
                tn_backward(tn_sum(tn_square(q), TN_ALL, false));
                tn_optim_step(o);
                if (step == 1) tn_index_select(q, 0, tn_from(s, &at, TN_I32, TN_SHAPE(1)));
            }
            assert_int_equal(tn_step_end(s), step == 1 && refused ? TN_E_INDEX : TN_OK);
            tn_clear_error(s);
        }
        assert_int_equal(tn_read(p, TN_F32, refused ? v : want, 64 * sizeof *v), TN_OK);
        assert_int_equal(tn_read(q, TN_F32, (refused ? v : want) + 64, 64 * sizeof *v), TN_OK);
        if (refused) assert_memory_equal(v, want, sizeof v);
        assert_int_equal(tn_close(s), TN_OK);
    }
}

/* A view of a parameter is held that an update waits for: the next one runs that first, and is whole or none.
 */
TEST_ON(an_update_is_refused_whole, open_cpu())
{
    tn_tensor *p = tn_param(s, "p", tn_ones(s, TN_F32, TN_SHAPE(4))),
              *q = tn_param(s, "q", tn_ones(s, TN_F64, TN_SHAPE(4)));
    tn_optim *o = tn_sgd(s, tn_all_params(s), .lr = 0.125);
    for (int step = 0; step < 3; step++) {
        double v[2][4];
        const int32_t at = 9;
        tn_step_begin(s);
        tn_tensor *view = NULL;
        for (int time = 0; time < 2; time++) {
            tn_backward(tn_add(tn_sum(p, TN_ALL, false), tn_sum(q, TN_ALL, false)));
            tn_optim_step(o);
            if (!view) view = tn_slice(q, 0, 0, 2, 1);
        }
        if (step == 1) tn_index_select(p, 0, tn_from(s, &at, TN_I32, TN_SHAPE(1)));
        assert_int_equal(tn_step_end(s), step == 1 ? TN_E_INDEX : TN_OK);
        tn_clear_error(s);
        assert_int_equal(tn_read(p, TN_F64, v[0], sizeof *v), TN_OK);
        assert_int_equal(tn_read(q, TN_F64, v[1], sizeof *v), TN_OK);
        const double want[3] = {1 - 0.375, 1 - 0.5, 1 - 0.875}; /* 1 + 2 eighths, or the first alone */
        for (int k = 0; k < 8; k++) assert_true(v[k / 4][k % 4] == want[step]);
    }
}

/* Its name is free, and no optimizer will meet it. */
TEST_ON(a_parameter_of_what_was_refused_is_none, open_cpu())
{
    float v[4];
    const int64_t at[4] = {1, 9, 1, 1};
    tn_step_begin(s);
    tn_tensor *from = tn_from(s, (float[]){1, 2, 3, 4}, TN_F32, TN_SHAPE(4));
    null_with(s, TN_E_INDEX, "",
              tn_param(s, "w", tn_index_select(from, 0, tn_from(s, at, TN_I64, TN_SHAPE(4)))));
    assert_int_equal(tn_param_count(s), 0);
    assert_null(tn_find(s, "w"));
    tn_tensor *w = tn_param(s, "w", from);
    assert_non_null(w);
    assert_int_equal(tn_step_end(s), TN_OK);
    assert_int_equal(tn_read(w, TN_F32, v, sizeof v), TN_OK);
    for (int k = 0; k < 4; k++) assert_true(v[k] == (float)(k + 1));
}

RUN_TESTS(NULL, NULL)
