/* test_errors_calls.c - what a user's mistake with a function that is no operator leads to: opening a
 * session, steps, state, differentiation, training, layers. Each names itself and the line it stands at,
 * takes no effect, and leaves nothing half made. Start with functions_that_are_no_operators_name_the_line. */
#include "errors_rig.h"
#include "include/tensor_nn.h"
#include "said.h"

/* After an error no assignment takes effect until it is cleared. */
TEST_IN(effects_are_refused, setup, teardown)
{
    tn_step_end(S);
    tn_tensor *w = tn_ones(S, TN_F32, TN_SHAPE(2));
    tn_step_begin(S);
    tn_tensor *two = tn_add_scalar(w, 1.0);
    assert_null(tn_add(two, zeros(TN_SHAPE(3))));
    assert_true(tn_assign(w, two) < 0);
    assert_true(tn_step_end(S) < 0);
    failed(S, TN_E_SHAPE, "");
    float v[2] = {0};
    assert_int_equal(tn_read(w, TN_F32, v, sizeof v), 0);
    assert_true(v[0] == 1 && v[1] == 1);
    tn_step_begin(S);
    assert_int_equal(tn_assign(w, tn_add_scalar(w, 1.0)), 0);
    assert_int_equal(tn_step_end(S), 0);
    assert_int_equal(tn_read(w, TN_F32, v, sizeof v), 0);
    assert_true(v[0] == 2);
    tn_step_begin(S);
}

TEST_IN(states, setup, teardown)
{
    assert_true(tn_step_begin(S) < 0); /* one is open */
    failed(S, TN_E_STATE, "");
    assert_int_equal(tn_step_end(S), 0);
    assert_true(tn_step_end(S) < 0);
    failed(S, TN_E_STATE, "");
    tn_tensor *z = tn_zeros(S, TN_F32, TN_SHAPE(2));
    assert_non_null(tn_param(S, "w", z));
    assert_null(tn_param(S, "w", tn_zeros(S, TN_F32, TN_SHAPE(2))));
    assert_non_null(strstr(tn_error_text(S), "'w'"));
    tn_clear_error(S);
    null_with(S, TN_E_DTYPE, "", tn_param(S, "i", tn_zeros(S, TN_I32, TN_SHAPE(2))));
    tn_step_begin(S);
    assert_true(tn_assign(tn_exp(zeros(TN_SHAPE(2))), zeros(TN_SHAPE(2))) < 0); /* not persistent */
    failed(S, TN_E_STATE, "");
    assert_true(tn_assign(tn_find(S, "w"), zeros(TN_SHAPE(3))) < 0);
    assert_int_equal(tn_error(S), TN_E_SHAPE);
}

/* The call, which is no operator, fails with the status, and its error names the line it stands at. */
#define says_where(wanted, op, words, call)                                                                  \
    do {                                                                                                     \
        (void)(call);                                                                                        \
        expect_error(NULL, wanted, op, words, __LINE__);                                                     \
    } while (0)

static tn_tensor *classify_nothing(tn_session *s, tn_tensor *x, void *user)
{
    (void)s, (void)x, (void)user;
    return NULL;
}

static tn_tensor *first_of(tn_session *s, tn_tensor *const *xs, void *user)
{
    (void)s, (void)user;
    return xs[0];
}

TEST_IN(functions_that_are_no_operators_name_the_line, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3)), *part[2], *one[1] = {a}, *nothing = NULL;
    tn_tensor *graded = zeros(TN_SHAPE(2));
    assert_int_equal(tn_requires_grad(graded, true), 0);
    says_where(TN_E_SHAPE, "split", "[2, 3]|2", tn_split(a, 2, 1, part));
    says_where(TN_E_ARG, "split", "0 parts", tn_split(a, 0, 1, part));
    says_where(TN_E_NULL, "split", "out", tn_split(a, 2, 0, NULL));
    says_where(TN_E_STATE, "assign", "target", tn_assign(a, a));
    says_where(TN_E_NULL, "assign", "argument 2 (source)", tn_assign(a, NULL));
    says_where(TN_E_NULL, "param", "'w'", tn_param(S, "w", NULL));
    says_where(TN_E_DTYPE, "param", "i64", tn_param(S, "w", ints(TN_SHAPE(2))));
    says_where(TN_E_ARG, "param", "name", tn_param(S, "", a));
    says_where(TN_E_NULL, "buffer", "'b'", tn_buffer(S, "b", NULL));
    says_where(TN_E_ARG, "buffer", "name", tn_buffer(S, NULL, a));
    says_where(TN_E_STATE, "step_begin", "step", tn_step_begin(S));
    says_where(TN_E_NULL, "op_begin", "name", tn_op_begin(S, NULL));
    says_where(TN_E_STATE, "op_end", "op_begin", tn_op_end(S));
    says_where(TN_E_STATE, "no_grad_end", "no_grad_begin", tn_no_grad_end(S));
    says_where(TN_E_STATE, "requires_grad", "operator", tn_requires_grad(tn_exp(graded), true));
    says_where(TN_E_DTYPE, "requires_grad", "i64",
               tn_requires_grad(tn_from(S, (int64_t[2]){0}, TN_I64, TN_SHAPE(2)), true));
    says_where(TN_E_NULL, "set_name", "name", tn_set_name(a, NULL));
    says_where(TN_E_DTYPE, "param_slab", "77", tn_param_slab(S, (tn_dtype)77, NULL, NULL));
    says_where(TN_E_NULL, "param_range", "values", tn_param_range(S, TN_F32, 0, 1, NULL, part));
    says_where(TN_E_ARG, "param_range", "5", tn_param_range(S, TN_F32, 5, 1, part, part + 1));
    says_where(TN_E_NULL, "grad", "argument 1 (loss)", tn_grad(NULL, 1, one, part));
    says_where(TN_E_NULL, "grad", "tensor 1 of inputs", tn_grad(a, 2, (tn_tensor *[]){a, NULL}, part));
    says_where(TN_E_ARG, "grad", "300", tn_grad(a, 300, one, part));
    says_where(TN_E_NULL, "gradcheck", "NULL", tn_gradcheck(S, NULL, 1, one, NULL, 0));
    says_where(TN_E_DTYPE, "gradcheck", "f64", tn_gradcheck(S, first_of, 1, one, NULL, 0));
    says_where(TN_E_NULL, "gradcheck", "input 0 is NULL", tn_gradcheck(S, first_of, 1, &nothing, NULL, 0));
    says_where(TN_E_NULL, "gradcheck", "NULL", tn_gradcheck(S, first_of, 1, NULL, NULL, 0));
    says_where(TN_E_NULL, "grad", "inputs is NULL", tn_grad(a, 1, NULL, part));
    says_where(TN_E_NULL, "grad", "grads is NULL", tn_grad(a, 1, one, NULL));
    says_where(TN_E_NULL, "sgd", "0|NULL", tn_sgd(S, ((tn_params){1, &nothing}), .lr = 1));
    says_where(TN_E_ARG, "sgd", "the list is empty", tn_sgd(S, ((tn_params){1, NULL}), .lr = 1));
    says_where(TN_E_STATE, "require_end", "require_fused", tn_require_end(S));
    says_where(TN_E_NULL, "report", "path is NULL", tn_report(S, NULL));
    says_where(TN_E_ARG, "report", ".html", tn_report(S, "step.pdf"));
    says_where(TN_E_IO, "report", "/dev/null/step.txt", tn_report(S, "/dev/null/step.txt"));
    says_where(TN_E_NULL, "trace", "path is NULL", tn_trace(S, NULL));
    says_where(TN_E_NULL, "explain", "out is NULL", tn_explain(S, NULL));
    says_where(TN_E_NULL, "graphviz", "out is NULL", tn_graphviz(S, NULL));
    says_where(TN_E_NULL, "print", "out is NULL", tn_print(a, NULL));
    assert_int_equal(tn_step_end(S), 0);
    says_where(TN_E_STATE, "step_end", "begun", tn_step_end(S));
    says_where(TN_E_STATE, "require_fused", "step", tn_require_fused(S));
    tn_step_begin(S);
}

TEST_IN(training_functions_name_the_line, setup, teardown)
{
    const float x[4] = {0};
    const int32_t y[2] = {0};
    tn_linear *fc = tn_linear_new(S, "fc", 2, 2);
    tn_optim *o = tn_sgd(S, tn_all_params(S), .lr = 0.1);
    tn_dataset *d = tn_dataset_from(S, x, y, 2, TN_SHAPE(2));
    assert_true(fc && o && d);
    says_where(TN_E_ARG, "param", "'fc.weight' is taken", tn_linear_new(S, "fc", 2, 2));
    says_where(TN_E_ARG, "linear_new", "'big'", tn_linear_new(S, "big", 0, 2));
    says_where(TN_E_NULL, "conv2d_new", "no name", tn_conv2d_new(S, NULL, 1, 1, 3));
    says_where(TN_E_SHAPE, "norm_forward", "3 features",
               tn_norm_forward(tn_layer_norm_new(S, "n", 4), zeros(TN_SHAPE(2, 3))));
    says_where(TN_E_ARG, "sgd", "lr -1", tn_sgd(S, tn_all_params(S), .lr = -1));
    says_where(TN_E_ARG, "optim_group", "*.scale", tn_optim_group(o, "*.scale", .lr_factor = 2));
    says_where(TN_E_ARG, "optim_set_lr", "nan", tn_optim_set_lr(o, NAN));
    says_where(TN_E_STATE, "clip_grad_norm", "tn_backward", tn_clip_grad_norm(o, 1));
    tn_clip_grad_norm(o, 1);
    const char *place = strstr(tn_error_text(S), ".c:");
    assert_true(place && !strstr(place + 1, ".c:")); /* said once, in front as everywhere */
    tn_clear_error(S);
    says_where(TN_E_IO, "dataset_idx", "/nowhere", tn_dataset_idx(S, "/nowhere", TN_TRAIN));
    says_where(TN_E_IO, "dataset_text", "/nowhere", tn_dataset_text(S, "/nowhere", TN_TRAIN));
    says_where(TN_E_ARG, "dataset_from", "n 0", tn_dataset_from(S, x, y, 0, TN_SHAPE(2)));
    says_where(TN_E_ARG, "loader_open", "batch -1", tn_loader_open(d, .batch = -1));
    says_where(TN_E_NULL, "next", "batch is NULL", tn_next(tn_loader_open(d), NULL));
    says_where(TN_E_NULL, "save", "path is NULL", tn_save(S, NULL));
    says_where(TN_E_IO, "save", "/dev/null/a", tn_save(S, "/dev/null/a"));
    says_where(TN_E_IO, "load", "/nowhere", tn_load(S, "/nowhere"));
    says_where(TN_E_NULL, "evaluate", "data set", tn_evaluate(S, NULL, classify_nothing, NULL));
    tn_step_end(S);
    says_where(TN_E_NULL, "evaluate_loss", "classify", tn_evaluate_loss(S, d, classify_nothing, NULL));
    tn_step_begin(S);
}

/* What is still open when the step ends is named where it was opened, and nothing of the step takes place. */
TEST_IN(require_fused_left_open, setup, teardown)
{
    tn_step_end(S);
    tn_tensor *w = tn_ones(S, TN_F32, TN_SHAPE(2));
    tn_step_begin(S);
    tn_require_fused(S);
    int line = __LINE__ - 1;
    tn_assign(w, tn_add_scalar(w, 1.0));
    assert_int_equal(tn_step_end(S), TN_E_STATE);
    expect_error(NULL, TN_E_STATE, "require_fused", "tn_require_end", line);
    float v[2];
    assert_int_equal(tn_read(w, TN_F32, v, sizeof v), 0);
    assert_true(v[0] == (S_fused ? 1 : 2));
    tn_step_begin(S); /* the next step knows nothing of it */
    assert_int_equal(tn_require_fused(S), 0);
    tn_exp(w);
    assert_int_equal(tn_require_end(S), 0);
}

/* So does an operator of one's own, in every mode; the steps after it are as if it had not been. */
TEST_IN(op_left_open, setup, teardown)
{
    tn_step_end(S);
    tn_tensor *w = tn_ones(S, TN_F32, TN_SHAPE(2));
    for (int i = 0; i < 3; i++) { /* the steps before and after it are alike */
        tn_step_begin(S);
        tn_assign(w, tn_add_scalar(w, 1.0));
        if (i == 1) tn_op_begin(S, "blend");
        tn_assign(w, tn_mul_scalar(w, 1.0));
        if (i != 1) {
            assert_int_equal(tn_step_end(S), 0);
            continue;
        }
        says_where(TN_E_STATE, "step_end", "'blend'|tn_op_end", tn_step_end(S));
    }
    float v[2];
    assert_int_equal(tn_read(w, TN_F32, v, sizeof v), 0);
    assert_true(v[0] == (S_fused ? 3 : 4));
    tn_op_begin(S, "outside");
    says_where(TN_E_STATE, "step_begin", "'outside'", tn_step_begin(S));
    fails_with(S, TN_E_STATE, "", tn_op_end(S));
}

/* A mistake within one names both: the user's and the operator that refused, at its line; for a composite of
 * the library, that one. After the end of the operator that was right, the name of it is forgotten. */
TEST_IN(mistakes_within_an_operator_of_ones_own, setup, teardown)
{
    tn_tensor *a = zeros(TN_SHAPE(2, 3)), *b = zeros(TN_SHAPE(7));
    tn_op_begin(S, "blend");
    tn_exp(a);
    fails(TN_E_SHAPE, "blend, add at", "[2, 3]|[7]", tn_add(a, b));
    fails(TN_E_SHAPE, "blend, layer_norm at", "[2, 3]|[7]", tn_layer_norm(a, b, NULL));
    tn_op_begin(S, "inner");
    fails(TN_E_SHAPE, "blend, matmul at", "[2, 3]|[7, 1]", tn_matmul(a, b));
    tn_op_end(S);
    tn_op_end(S);
    fails(TN_E_SHAPE, "add at", "[2, 3]|[7]", tn_add(a, b));

    tn_session *other = tn_open(.device = TN_REF);
    says_where(TN_E_SESSION, "param", "'w'|another session",
               tn_param(S, "w", tn_zeros(other, TN_F32, TN_SHAPE(2))));
    assert_int_equal(tn_close(other), 0);
}

/* A parameter is not freed by hand, and that is said: once in the log, and where mistakes are looked for by
 * an error. What has gone already, or goes by itself, is left alone. */
TEST(freeing_what_is_not_ours)
{
    for (int check = 0; check < 2; check++) {
        setenv("TENSOR_CHECK", check ? "1" : "0", 1);
        tn_session *s = S = tn_open(.device = TN_CPU, .log = hear);
        unsetenv("TENSOR_CHECK");
        assert_non_null(s);
        forget();
        tn_linear *fc = tn_linear_new(s, "fc", 2, 2);
        tn_tensor *made = tn_ones(s, TN_F32, TN_SHAPE(2)), *own = tn_param(s, "own", made), *slab = NULL;
        tn_param_slab(s, TN_F32, &slab, NULL);
        tn_free(NULL);
        tn_free(made); /* taken over */
        tn_step_begin(s);
        tn_free(tn_exp(own));
        assert_int_equal(tn_step_end(s), 0);
        assert_int_equal(n_said, 0);
        tn_tensor *all[] = {fc->weight, own, slab};
        for (int i = 0; i < 3; i++) {
            if (check)
                says_where(TN_E_STATE, "free", i == 0 ? "'fc.weight'|tn_close" : "tn_close", tn_free(all[i]));
            if (!check) tn_free(all[i]);
            assert_int_equal(n_said, !check);
            assert_int_equal(tn_error(s), TN_OK);
        }
        if (!check) assert_int_equal(last_level, TN_LOG_WARN);
        if (!check) assert_non_null(strstr(said, "'fc.weight'"));
        if (!check) assert_non_null(strstr(said, "test_errors_calls.c:"));
        assert_true(tn_item(tn_sum(own, TN_ALL, false)) == 2);
        assert_int_equal(tn_close(s), 0);
    }
}

/* The error names the value that was read, what cannot be made again on the way to it, which assignment that
 * is due to and what to do; also where the value read is that one itself, has a name, or is a view. */
TEST_IN(what_was_read_and_is_not_kept, setup_cpu, teardown)
{
    tn_step_end(S);
    tn_tensor *w = tn_param(S, "w", tn_ones(S, TN_F32, TN_SHAPE(2, 2)));
    tn_optim *o = tn_sgd(S, tn_all_params(S), .lr = 1e-3);
    for (int what = 0; what < 4; what++) {
        tn_step_begin(S);
        tn_tensor *y = tn_matmul(w, w);
        tn_tensor *h = tn_relu(y), *turned = tn_transpose(h, 0, 1);
        const int made = __LINE__ - 2;
        tn_tensor *loss = tn_sum(tn_square(tn_mul(h, turned)), TN_ALL, false);
        if (what == 2) tn_set_name(h, "hidden");
        tn_backward(loss);
        tn_optim_step(o);
        assert_true(isfinite(tn_item(loss)));
        const int ran = __LINE__ - 1;
        float v[4];
        tn_tensor *wanted = what == 0 ? y : what == 3 ? turned : h;
        const char *const name[] = {"matmul", "relu", "'hidden', relu", "transpose"};
        char words[256];
        snprintf(words, sizeof words,
                 "the value of %s at test_errors_calls.c:%d|was not kept by the run that item at "
                 "test_errors_calls.c:%d|cannot be made again: %s",
                 name[what], what == 0 ? made : made + 1, ran, what == 0 ? "it reads w" : "matmul at");
        says_where(TN_E_NOT_KEPT, "read", words, tn_read(wanted, TN_F32, v, sizeof v));
        tn_read(wanted, TN_F32, v, sizeof v);
        says(tn_error_text(S), "reads w, which sgd|tn_keep the value before that run", __FILE__, __LINE__);
        tn_clear_error(S);
        tn_step_end(S);
    }
    tn_step_begin(S);
}

TEST(opening)
{
    tn_session *s = tn_open(.device = (tn_device_kind)77, .log = hear);
    assert_null(s);
    assert_int_equal(last_level, TN_LOG_ERROR);
    assert_non_null(strstr(said, "device"));
    assert_null(tn_open(.device = TN_CPU, .precision = (tn_precision)7, .log = hear));
    assert_non_null(strstr(said, "precision is 7"));
    assert_null(tn_open(.device = TN_CPU, .threads = -5, .log = hear));
    assert_non_null(strstr(said, "threads is -5"));
    assert_null(tn_open(.device = (tn_device_kind)77, .log = hear));
    assert_non_null(strstr(said, "device is 77"));
    assert_null(tn_open(.device = TN_CPU, .mode = (tn_mode)77, .log = hear));
    assert_non_null(strstr(said, "mode is 77"));
    s = tn_open(.device = TN_REF, .log = hear);
    assert_non_null(s);
    assert_null(tn_add(tn_zeros(s, TN_F32, TN_SHAPE(2)), tn_zeros(s, TN_F32, TN_SHAPE(3))));
    assert_int_equal(tn_close(s), TN_E_SHAPE); /* the status it still held */
}

/* A layer is made whole or not at all: sizes that cannot be, and a name that is taken, leave no parameter,
 * nor memory, and the names stay free. */
TEST_IN(a_layer_that_fails, setup, teardown)
{
    tn_step_end(S);
    tn_stats before, after;
    before.size = after.size = sizeof before;
    before = stats_of(S);
    const int64_t wide = (int64_t)1 << 31;
    null_with(S, TN_E_SHAPE, "", tn_linear_new(S, "fc", wide, wide, .no_bias = false));
    assert_null(tn_conv2d_new(S, "fc", wide, wide, 1, .pad = 0));
    tn_clear_error(S);
    assert_null(tn_embedding_new(S, "fc", wide, wide, .init_std = 1));
    tn_clear_error(S);
    assert_null(tn_multi_head_attention_new(S, "fc", wide, 2, .causal = true));
    tn_clear_error(S);
    after = stats_of(S);
    assert_int_equal(tn_param_count(S), 0);
    assert_true(after.bytes_peak < before.bytes_peak + (1 << 20));

    assert_non_null(tn_buffer(S, "fc.bias", tn_zeros(S, TN_F32, TN_SHAPE(1))));
    assert_non_null(tn_buffer(S, "n.running_var", tn_zeros(S, TN_F32, TN_SHAPE(1))));
    assert_null(tn_linear_new(S, "fc", 70, 3, .no_bias = false));
    assert_non_null(strstr(tn_error_text(S), "fc.bias"));
    tn_clear_error(S);
    assert_null(tn_batch_norm_new(S, "n", 3, .eps = 0));
    tn_clear_error(S);
    assert_int_equal(tn_param_count(S), 0);
    assert_int_equal(tn_buffer_count(S), 2);
    assert_null(tn_find(S, "fc.weight"));

    tn_linear *fc = tn_linear_new(S, "fc", 70, 3, .no_bias = true);
    assert_non_null(fc);
    int64_t first = -1;
    assert_int_equal(tn_param_segment(fc->weight, &first, NULL), 0);
    assert_int_equal(first, 0);
    tn_step_begin(S);
    assert_int_equal(tn_numel(tn_linear_forward(fc, tn_zeros(S, TN_F32, TN_SHAPE(2, 70)))), 6);
}

TEST_AGAIN(effects_are_refused, setup_cpu, teardown)
TEST_AGAIN(functions_that_are_no_operators_name_the_line, setup_cpu, teardown)
TEST_AGAIN(require_fused_left_open, setup_cpu, teardown)
TEST_AGAIN(op_left_open, setup_cpu, teardown)
TEST_AGAIN(mistakes_within_an_operator_of_ones_own, setup_cpu, teardown)
TEST_AGAIN(a_layer_that_fails, setup_cpu, teardown)
RUN_TESTS(NULL, NULL)
