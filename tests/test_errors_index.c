/* test_errors_index.c - an index out of range: the error names the operator, the argument, the index, where
 * in it that stands and what is allowed, on each road by which operators run. Start with each_operator. */
#include "errors_rig.h"
#include "include/tensor_nn.h"

static int setup_cpu_eager(void **state)
{
    (void)state;
    return setup_on(TN_CPU, TN_EAGER);
}

static int setup_builtin(void **state)
{
    setenv("TENSOR_CC", "none", 1);
    int status = setup_cpu(state);
    unsetenv("TENSOR_CC");
    return status;
}

#define ON_ALL(name)                                                                                         \
    static void name(void **state);                                                                          \
    TEST_AGAIN(name, setup, teardown)                                                                        \
    TEST_AGAIN(name, setup_cpu, teardown)                                                                    \
    TEST_AGAIN(name, setup_cpu_eager, teardown)                                                              \
    TEST_IN(name, setup_builtin, teardown)

static tn_tensor *whole(tn_dtype dtype, const double *v, int ndim, const int64_t *shape)
{
    return tensor_of(S, v, dtype, ndim, shape);
}

/* The value of t cannot be had; the error is as with expect_error. Nothing is said twice. */
static void expect_bad_index(tn_tensor *t, const char *op, const char *words, int line)
{
    int64_t n = t ? tn_numel(t) : 0;
    float v[64];
    if (t) assert_true(tn_read(t, TN_F32, v, (size_t)n * sizeof *v) < 0);
    const char *first = strstr(tn_error_text(S), op);
    if (!first || strstr(first + 1, op)) fail_msg("\"%s\" does not say %s once", tn_error_text(S), op);
    expect_error(NULL, TN_E_INDEX, op, words, line);
}
#define bad_index(op, words, call) expect_bad_index(call, op, words, __LINE__)

ON_ALL(each_operator)
{
    tn_tensor *x = zeros(TN_SHAPE(3, 2)), *i = whole(TN_I64, (double[]){1, 7}, TN_SHAPE(2));
    tn_tensor *table = whole(TN_I32, (double[]){0, 1, 2, -1, 0, 1}, TN_SHAPE(3, 2));
    bad_index("index_select", "index[1] is 7, must be from 0 to 2", tn_index_select(x, 0, i));
    /* which the kernel that reads it computes: then no place is known */
    const char *words =
        S_fused ? "index 3 is out of range: index must be from 0 to 2" : "index[3] is 3, must be from 0 to 2";
    bad_index("index_select", words, tn_index_select(x, 0, tn_arange(S, 0, 5, 1, TN_I64)));
    bad_index("gather", "index[1, 1] is -1, must be from 0 to 2", tn_gather(x, 0, table));
    bad_index("scatter_add", "index[1, 1] is -1, must be from 0 to 2", tn_scatter_add(x, 0, table, x));
    bad_index("embedding", "index[1, 1] is -1, must be from 0 to 2", tn_embedding(x, table));
    bad_index("embedding", "index is 3, must be from 0 to 2",
              tn_embedding(x, whole(TN_I64, (double[]){3}, TN_SCALAR)));
    tn_tensor *none = zeros(TN_SHAPE(0, 2)), *no_index = zeros(TN_SHAPE(0)), *first = zeros(TN_SHAPE(1));
    no_index = tn_cast(no_index, TN_I64), first = tn_cast(first, TN_I64);
    fails(TN_E_INDEX, "index_select", "nothing to choose from|[0, 2]", tn_index_select(none, 0, first));
    fails(TN_E_INDEX, "gather", "nothing to choose from|[0]", tn_gather(zeros(TN_SHAPE(0)), 0, first));
    fails(TN_E_INDEX, "embedding", "nothing to choose from|[0, 2]", tn_embedding(none, first));
    fails(TN_E_INDEX, "scatter_add", "nothing to choose from|[0]",
          tn_scatter_add(zeros(TN_SHAPE(0)), 0, first, zeros(TN_SHAPE(1))));
    assert_int_equal(tn_numel(tn_index_select(none, 0, no_index)), 0);
    x = zeros(TN_SHAPE(2, 2, 3));
    tn_tensor *y = whole(TN_I64, (double[]){0, -100, 3, 1}, TN_SHAPE(2, 2));
    tn_tensor *u = whole(TN_U8, (double[]){0, 1, 2, 200}, TN_SHAPE(2, 2));
    bad_index("cross_entropy", "labels[1, 0] is 3, must be from 0 to 2", tn_cross_entropy(x, y));
    bad_index("cross_entropy", "labels[1, 1] is 200, must be from 0 to 2", tn_cross_entropy(x, u));
    bad_index("nll_loss", "labels[0, 1] is -100, must be from 0 to 2",
              tn_nll_loss(x, y, .use_ignore_index = true, .ignore_index = 3));
    /* after all that the session does what it should */
    assert_true(tn_item(tn_cross_entropy(x, whole(TN_U8, (double[]){0, 1, 2, 0}, TN_SHAPE(2, 2)))) > 1);
    bad_index("select", "index is 3, must be from -3 to 2", tn_select(x, 2, 3));
}

/* Where operators run as one kernel, and the index is a view, or one of several. */
ON_ALL(the_one_of_several)
{
    tn_tensor *token = zeros(TN_SHAPE(9, 4)), *position = zeros(TN_SHAPE(3, 4)), *a, *b, *sum;
    tn_tensor *i = whole(TN_I32, (double[]){8, 0, 3, 1}, TN_SHAPE(4)), *j;
    j = whole(TN_I32, (double[]){0, 1, 2, 3}, TN_SHAPE(4));
    a = tn_embedding(token, i);
    b = tn_embedding(position, j);
    int line = __LINE__ - 1;
    sum = b ? tn_add(a, b) : NULL;
    expect_bad_index(sum, "embedding", "index[3] is 3, must be from 0 to 2", line);
    j = tn_slice(whole(TN_I32, (double[]){9, 0, 9, 5, 9, 1}, TN_SHAPE(6)), 0, 1, TN_END, 2);
    bad_index("index_select", "index[1] is 5, must be from 0 to 2", tn_index_select(position, 0, j));
}

/* An index that the program computes: its place is known where it stands in memory. */
ON_ALL(computed)
{
    tn_tensor *x = zeros(TN_SHAPE(3, 2)), *i = whole(TN_I64, (double[]){0, 2, 1}, TN_SHAPE(3));
    bad_index("index_select", "3|index|must be from 0 to 2",
              tn_index_select(x, 0, tn_mul_scalar(tn_add_scalar(i, 1), 1)));
}

ON_ALL(in_a_layer)
{
    tn_step_end(S);
    tn_embed *e = tn_embedding_new(S, "e", 5, 3);
    tn_step_begin(S);
    bad_index("embedding", "index[0] is 5, must be from 0 to 4",
              tn_embedding_forward(e, whole(TN_I32, (double[]){5, 4}, TN_SHAPE(2))));
}

/* narrow's start is a run-time number, and refused at the call all the same, when it repeats one that fits.
 */
ON_ALL(narrow)
{
    tn_step_end(S);
    tn_tensor *x = tn_arange(S, 0, 10, 1, TN_F32);
    for (int k = 0; k < 3; k++) {
        float v[2];
        tn_step_begin(S);
        assert_int_equal(tn_read(tn_narrow(x, 0, k, 2), TN_F32, v, sizeof v), 0);
        assert_true(v[1] == (float)k + 1);
        assert_int_equal(tn_step_end(S), 0);
    }
    const int64_t start[] = {-1, 9, INT64_MAX, INT64_MIN};
    for (int k = 0; k < 4; k++) {
        char words[80];
        snprintf(words, sizeof words, "start is %lld, must be from 0 to 8", (long long)start[k]);
        tn_step_begin(S);
        tn_tensor *got = tn_narrow(x, 0, start[k], 2);
        expect_error(got, TN_E_INDEX, "narrow", words, __LINE__ - 1);
        tn_step_end(S);
    }
    tn_step_begin(S);
    fails(TN_E_SHAPE, "narrow", "length is 11, must be from 0 to 10", tn_narrow(x, 0, 0, 11));
    fails(TN_E_SHAPE, "narrow", "length is -1", tn_narrow(x, 0, 0, -1));
    fails(TN_E_ARG, "narrow", "axis 1", tn_narrow(x, 1, 0, 1));
}

RUN_TESTS(NULL, NULL)
