/* test_products.c - products that hand their result to a kernel: what is written with plain operators behind
 * a product is one launch with it, gives the reference's numbers, and the same bits for any number of
 * threads.
 *
 * Read first: the forms, then check_form. */
#include "tests/rig.h"

typedef struct operands {
    tn_tensor *a, *w, *bias, *like; /* a [.., k], w [n, k], bias [n], like [.., n] */
} operands;

static tn_tensor *product(const operands *o) { return tn_matmul(o->a, tn_transpose(o->w, 0, 1)); }

/* ---- the forms ---- */

static tn_tensor *relu(const operands *o) { return tn_relu(tn_add(product(o), o->bias)); }
static tn_tensor *gelu(const operands *o) { return tn_gelu(tn_affine(o->a, o->w, o->bias)); }
static tn_tensor *residual(const operands *o) { return tn_add(tn_add(product(o), o->bias), o->like); }
static tn_tensor *dropped(const operands *o)
{
    return tn_add(tn_dropout(tn_affine(o->a, o->w, o->bias), 0.3), o->like);
}
static tn_tensor *gated(const operands *o)
{
    return tn_mul(tn_silu(product(o)), tn_mul_scalar(o->like, 0.5));
}
static tn_tensor *in_place(const operands *o) /* over what it reads */
{
    tn_assign(o->like, tn_add(tn_mul_scalar(product(o), 0.25), o->like));
    return o->like;
}

static const struct form {
    const char *name;
    tn_tensor *(*of)(const operands *o);
} forms[] = {{"relu", relu},       {"gelu", gelu},   {"residual", residual},
             {"dropout", dropped}, {"gated", gated}, {"in place", in_place}};

enum { FORMS = sizeof forms / sizeof *forms };

/* ---- running ---- */

static const struct size {
    int64_t batch, m, n, k;
    tn_dtype dtype;
} sizes[] = {
    {1, 1, 16, 5, TN_F32},   {1, 5, 40, 70, TN_F32},   {1, 61, 530, 401, TN_F32},
    {3, 17, 48, 33, TN_F32}, {1, 130, 257, 9, TN_F64}, {2, 7, 100, 900, TN_F32},
};

enum { SIZES = sizeof sizes / sizeof *sizes, MOST = 130 * 257 };

static tn_tensor *drawn(tn_session *s, const struct size *z, int64_t rows, int64_t cols, int which)
{
    const int64_t batch = which ? 1 : z->batch, n = batch * rows * cols;
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 7919 + which * 31) % 2003) / 1001.5f - 1;
    tn_tensor *x = tn_from(s, v, TN_F32, TN_SHAPE(batch, rows, cols));
    if (batch == 1) x = tn_reshape(x, TN_SHAPE(rows, cols));
    free(v);
    return tn_keep(tn_contiguous(tn_cast(x, z->dtype)));
}

static uint64_t launches(const tn_session *s)
{
    tn_stats v = {.size = sizeof v};
    tn_get_stats(s, &v);
    return v.kernels + v.library_calls;
}

/* The result, and behind it a sum of each gradient. Returns how many launches the forward pass took. */
static int run_form(tn_session *s, int f, const struct size *z, double *out, int64_t *count)
{
    operands o = {.a = drawn(s, z, z->m, z->k, 0), .w = drawn(s, z, z->n, z->k, 1)};
    o.bias = tn_keep(tn_contiguous(tn_select(drawn(s, z, 1, z->n, 2), 0, 0)));
    o.like = tn_keep(tn_mul_scalar(drawn(s, z, z->m, z->n, 0), 0.5));
    *count = z->batch * z->m * z->n;
    assert_true(*count <= MOST);
    const uint64_t before = launches(s);
    tn_step_begin(s);
    tn_tensor *y = forms[f].of(&o);
    if (tn_read(y, TN_F64, out, (size_t)*count * sizeof *out))
        fail_msg("%s: %s", forms[f].name, tn_error_text(s));
    const int n = (int)(launches(s) - before);
    tn_step_end(s);
    if (forms[f].of == in_place) return n;
    tn_tensor *wrt[2] = {o.a, o.w}, *grad[2];
    for (int i = 0; i < 2; i++) tn_requires_grad(wrt[i], true);
    tn_step_begin(s);
    assert_int_equal(tn_grad(tn_sum(tn_square(forms[f].of(&o)), TN_ALL, false), 2, wrt, grad), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            tn_read(tn_sum(tn_abs(grad[i]), TN_ALL, false), TN_F64, out + (*count)++, sizeof *out), 0);
    tn_step_end(s);
    return n;
}

static void check_form(int f, const struct size *z)
{
    static double want[MOST + 2], got[MOST + 2], first[MOST + 2];
    int64_t n;
    for (int threads = 0; threads <= 3; threads++) {
        tn_session *s =
            threads ? tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 5, .threads = threads, .log = quiet)
                    : tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 5, .log = quiet);
        assert_non_null(s);
        const int launched = run_form(s, f, z, threads ? got : want, &n);
        tn_close(s);
        if (!threads) continue;
        if (launched != 1)
            fail_msg("%s of %d x %d x %d: %d launches", forms[f].name, (int)z->m, (int)z->n, (int)z->k,
                     launched);
        for (int64_t i = 0; i < n; i++)
            if (!(fabs(got[i] - want[i]) <= 1e-4 + 1e-4 * fabs(want[i])))
                fail_msg("%s of %d x %d x %d: element %d is %.9g, not %.9g", forms[f].name, (int)z->m,
                         (int)z->n, (int)z->k, (int)i, got[i], want[i]);
        if (threads == 1)
            memcpy(first, got, sizeof first);
        else
            assert_memory_equal(first, got, (size_t)n * sizeof *got);
    }
}

TEST(what_follows_a_product_is_one_launch_with_it)
{
    for (int f = 0; f < FORMS; f++)
        for (int k = 0; k < 2; k++) check_form(f, &sizes[(f + k * 2) % SIZES]);
}

/* Turned operands are copied first, in each of the two places; then the product takes along what follows it.
 */
TEST(what_follows_a_product_of_copied_operands)
{
    enum { N = 16 };
    double want[N * N], got[N * N];
    const struct size z = {1, N, N, N, TN_F32};
    for (int turned = 1; turned < 4; turned++) {
        for (int cpu = 0; cpu < 2; cpu++) {
            tn_session *s = tn_open(.device = cpu ? TN_CPU : TN_REF, .seed = 5, .log = quiet);
            assert_non_null(s);
            tn_tensor *x = drawn(s, &z, N, N, 0), *y = drawn(s, &z, N, N, 1);
            tn_step_begin(s);
            if (turned & 1) x = tn_flip(x, TN_AXES(0));
            if (turned & 2) y = tn_flip(y, TN_AXES(1));
            tn_tensor *out = tn_mul_scalar(tn_matmul(x, y), 0.0625);
            if (tn_read(out, TN_F64, cpu ? got : want, sizeof want)) fail_msg("%s", tn_error_text(s));
            tn_step_end(s);
            assert_int_equal(tn_close(s), TN_OK);
        }
        for (int i = 0; i < N * N; i++) assert_true(fabs(got[i] - want[i]) <= 1e-5);
    }
}

/* ---- one weight for many products ---- */

enum { STEPS = 5, HIDDEN = 48, BATCH = 20 };

/* A recurrence whose weight is also moved within the step, and once more each time it is run. */
static void run_recurrence(tn_session *s, double *out)
{
    const struct size z = {1, BATCH, HIDDEN, HIDDEN, TN_F32};
    tn_tensor *x = drawn(s, &z, BATCH, HIDDEN, 0), *w = drawn(s, &z, HIDDEN, HIDDEN, 1);
    tn_assign(w, tn_mul_scalar(w, 0.3));
    for (int run = 0; run < 3; run++) {
        tn_step_begin(s);
        tn_tensor *h = x;
        for (int half = 0; half < 2; half++) {
            for (int t = 0; t < STEPS; t++) {
                tn_tensor *p = tn_matmul(h, half ? w : tn_transpose(w, 0, 1));
                h = tn_tanh(tn_add(tn_matmul(tn_tanh(p), tn_transpose(w, 0, 1)), x));
            }
            tn_assign(w, tn_mul_scalar(w, -0.9));
        }
        if (tn_read(h, TN_F64, out, (size_t)(BATCH * HIDDEN) * sizeof *out)) fail_msg("%s", tn_error_text(s));
        out += BATCH * HIDDEN;
        tn_step_end(s);
    }
}

TEST(products_by_one_weight)
{
    static double want[3 * BATCH * HIDDEN], got[3 * BATCH * HIDDEN], first[3 * BATCH * HIDDEN];
    for (int threads = 0; threads <= 3; threads++) {
        tn_session *s =
            threads ? tn_open(.device = TN_CPU, .mode = TN_FUSED, .seed = 5, .threads = threads, .log = quiet)
                    : tn_open(.device = TN_REF, .mode = TN_EAGER, .seed = 5, .log = quiet);
        assert_non_null(s);
        run_recurrence(s, threads ? got : want);
        tn_close(s);
        for (int i = 0; threads && i < 3 * BATCH * HIDDEN; i++)
            if (!(fabs(got[i] - want[i]) <= 1e-4))
                fail_msg("element %d is %.9g, not %.9g", i, got[i], want[i]);
        if (threads == 1) memcpy(first, got, sizeof first);
        if (threads) assert_memory_equal(first, got, sizeof got);
    }
}

RUN_TESTS(NULL, NULL)
