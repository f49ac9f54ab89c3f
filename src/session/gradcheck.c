/* gradcheck.c - tn_gradcheck: a user's gradients against central differences.
 *
 * Each element of each input is moved by h both ways and the function evaluated again, in steps of its own;
 * (f(x+h) - f(x-h)) / 2h with h = 1e-5 (1 + |x|) leaves an error near 1e-10 in f64. Written on the public
 * header alone. Start with tn_gradcheck. */
#include <math.h>
#include <string.h>

#include "../../include/tensor.h"
#include "../../include/tensor_extend.h"

typedef struct check {
    tn_session *s;
    tn_gradcheck_fn *f;
    int n;
    tn_tensor *const *xs;
    void *user;
    double *value[TN_GRADCHECK_MAX], *grad[TN_GRADCHECK_MAX];
    int64_t count[TN_GRADCHECK_MAX];
} check;

/* f at the values now in c->value; with gradients into c->grad when asked. NaN on error. */
static double evaluate(check *c, bool with_grad)
{
    tn_tensor *x[TN_GRADCHECK_MAX], *g[TN_GRADCHECK_MAX];
    uint64_t draw = tn_rng_draw(c->s), seed = tn_seed(c->s);
    double out = NAN;
    if (tn_step_begin(c->s)) return NAN;
    for (int i = 0; i < c->n; i++) {
        int64_t shape[TN_MAX_DIMS];
        for (int a = 0; a < tn_ndim(c->xs[i]); a++) shape[a] = tn_dim(c->xs[i], a);
        x[i] = tn_from(c->s, c->value[i], TN_F64, tn_ndim(c->xs[i]), shape);
        if (x[i]) tn_requires_grad(x[i], true);
    }
    tn_tensor *y = c->f(c->s, x, c->user);
    if (with_grad && y && !tn_grad(y, c->n, x, g))
        for (int i = 0; i < c->n; i++) {
            size_t bytes = (size_t)c->count[i] * sizeof(double);
            if (g[i])
                tn_read(g[i], TN_F64, c->grad[i], bytes);
            else
                memset(c->grad[i], 0, bytes);
        }
    out = tn_item(y);
    tn_step_end(c->s);
    tn_set_rng(c->s, seed, draw); /* every evaluation draws the same random numbers */
    return out;
}

static int compare(check *c, double tolerance)
{
    for (int i = 0; i < c->n; i++)
        for (int64_t k = 0; k < c->count[i]; k++) {
            double x = c->value[i][k], h = 1e-5 * (1 + fabs(x));
            c->value[i][k] = x + h;
            double up = evaluate(c, false), high = c->value[i][k];
            c->value[i][k] = x - h;
            double down = evaluate(c, false), low = c->value[i][k];
            c->value[i][k] = x;
            if (tn_error(c->s)) return tn_error(c->s);
            double want = (up - down) / (high - low), got = c->grad[i][k];
            double bound = tolerance * (1 + fabs(want));
            if (!(fabs(got - want) <= bound))
                return tn_fail(c->s, TN_E_GRAD, "gradcheck",
                               "input %d, element %lld: gradient %.10g, difference %.10g", i, (long long)k,
                               got, want);
        }
    return TN_OK;
}

TN_DEFINE(int, gradcheck, s, (s, f, n, xs, user, tolerance), tn_session *s, tn_gradcheck_fn *f, int n,
          tn_tensor *const *xs, void *user, double tolerance)
{
    check c = {.s = s, .f = f, .n = n, .xs = xs, .user = user};
    if (!s || !f || (n && !xs)) return tn_fail(s, TN_E_NULL, "gradcheck", "an argument is NULL");
    if (n < 1 || n > TN_GRADCHECK_MAX)
        return tn_fail(s, TN_E_ARG, "gradcheck", "%d inputs; 1 to %d are possible", n, TN_GRADCHECK_MAX);
    int status = TN_OK;
    for (int i = 0; i < n && !status; i++) {
        if (!xs[i] || tn_dtype_of(xs[i]) != TN_F64) {
            status = xs[i] ? tn_fail(s, TN_E_DTYPE, "gradcheck", "input %d must be a live f64 tensor", i)
                           : tn_fail(s, TN_E_NULL, "gradcheck", "input %d is NULL", i);
            break;
        }
        c.count[i] = tn_numel(xs[i]);
        size_t bytes = (size_t)c.count[i] * sizeof(double);
        c.value[i] = tn_malloc(bytes);
        c.grad[i] = tn_malloc(bytes);
        if (!c.value[i] || !c.grad[i])
            status = tn_fail(s, TN_E_NOMEM, "gradcheck", "no memory");
        else
            status = tn_read(xs[i], TN_F64, c.value[i], bytes);
    }
    if (!status) {
        evaluate(&c, true);
        status = tn_error(s);
    }
    if (!status) status = compare(&c, tolerance > 0 ? tolerance : 1e-6);
    for (int i = 0; i < n; i++) {
        tn_free_mem(c.value[i]);
        tn_free_mem(c.grad[i]);
    }
    return status;
}
