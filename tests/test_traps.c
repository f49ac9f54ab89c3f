/* test_traps.c - a host that has floating-point traps on: nothing that the library computes ends it, and its
 * traps and flags are afterwards what they were. */
#include <fenv.h>

#include "check.h"

#if defined(__x86_64__)
enum { TRAPS = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW };

static tn_tensor *numbers(tn_session *s, int rows, int columns, double scale)
{
    float v[1024];
    rng r = {(uint64_t)rows};
    for (int i = 0; i < rows * columns; i++) v[i] = (float)rng_real(&r, -scale, scale);
    return tn_from(s, v, TN_F32, TN_SHAPE(rows, columns));
}

static void keep(tn_tensor *x) { tn_requires_grad(x, true); }

/* Overflows, divides by 0, compares NaN, converts what does not fit, and masks with infinities. */
static void computes_badly(tn_session *s)
{
    tn_tensor *x = numbers(s, 5, 13, 1e30), *zero = tn_zeros(s, TN_F32, TN_SHAPE(5, 13));
    keep(x);
    tn_tensor *bad[] = {tn_square(x), tn_div(x, zero), tn_log(tn_neg(tn_abs(x))),
                        tn_sqrt(x),   tn_exp(x),       tn_pow(zero, x)};
    tn_tensor *sum = tn_sum(zero, TN_ALL, false);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sum = tn_add(sum, tn_sum(tn_where(tn_gt(bad[i], x), bad[i], tn_maximum(bad[i], x)), TN_ALL, false));
        sum = tn_add(sum, tn_sum(tn_softmax(bad[i], -1), TN_ALL, false));
        tn_keep(tn_cast(bad[i], TN_I32));
        tn_keep(tn_cast(bad[i], TN_F16));
        tn_keep(tn_argmax(bad[i], 1, false));
    }
    tn_tensor *nothing = tn_zeros(s, TN_F32, TN_SHAPE(0, 3));
    tn_keep(tn_mean(nothing, TN_ALL, false));
    tn_keep(tn_var(zero, TN_ALL, false, 100));
    tn_backward(sum);
}

static void attends(tn_session *s)
{
    tn_tensor *q = numbers(s, 21, 16, 3), *k = numbers(s, 21, 16, 3), *v = numbers(s, 21, 16, 3);
    tn_tensor *mask = tn_mul_scalar(
        tn_cast(tn_gt(numbers(s, 21, 21, 1), tn_zeros(s, TN_F32, TN_SHAPE(21, 21))), TN_F32), -INFINITY);
    keep(q), keep(k), keep(v);
    tn_tensor *a = tn_scaled_dot_product_attention(
        q, k, v, &(tn_sdpa_options){.causal = true, .size = sizeof(tn_sdpa_options)});
    tn_tensor *b = tn_scaled_dot_product_attention(
        q, k, v, &(tn_sdpa_options){.mask = mask, .dropout = 0.25, .size = sizeof(tn_sdpa_options)});
    tn_backward(tn_add(tn_sum(a, TN_ALL, false), tn_sum(tn_gelu(b), TN_ALL, false)));
}

static void ends(tn_session *s)
{
    for (int step = 0; step < 2; step++) {
        tn_step_begin(s);
        computes_badly(s);
        attends(s);
        tn_step_end(s);
    }
    if (tn_error(s)) fail_msg("%s", tn_error_text(s));
}

static void survives(tn_device_kind device, tn_mode mode, int threads)
{
    feenableexcept(TRAPS);
    feraiseexcept(FE_INEXACT);
    tn_session *s = tn_open(.device = device, .mode = mode, .threads = threads);
    ends(s);
    int status = tn_close(s), traps = fegetexcept(), flags = fetestexcept(FE_ALL_EXCEPT);
    fedisableexcept(TRAPS);
    feclearexcept(FE_ALL_EXCEPT);
    assert_int_equal(status, 0);
    assert_int_equal(traps, TRAPS);
    assert_int_equal(flags & ~FE_UNDERFLOW & ~FE_INEXACT, 0);
}

TEST(compiled)
{
    survives(TN_CPU, TN_FUSED, 3);
    survives(TN_CPU, TN_EAGER, 1);
}

TEST(without_a_compiler)
{
    setenv("TENSOR_CC", "none", 1);
    survives(TN_CPU, TN_FUSED, 2);
    unsetenv("TENSOR_CC");
}

TEST(interpreted) { survives(TN_REF, TN_EAGER, 1); }
#else
static void compiled(void **state)
{
    (void)state;
    skip();
}
#define without_a_compiler compiled
#define interpreted        compiled
#endif

RUN_TESTS(NULL, NULL)
