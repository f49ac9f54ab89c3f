/* eltwise.c - the elementwise rows of ops.def, evaluated in double, and the ops that make or convert numbers.
 *
 * Every row becomes a function of three doubles, and those that take integers (all but type FLT) a second one
 * of 128-bit integers, which hold every result of two i64 before it wraps. Read first: tn_ref_eltwise. */
#include "internal.h"

#include <math.h>

/* The functions rows may use, from libm: the devices' own approximations are what is being tested. */
static double larger(double x, double y) { return isnan(x) ? x : isnan(y) ? y : x > y ? x : y; }
static double smaller(double x, double y) { return isnan(x) ? x : isnan(y) ? y : x < y ? x : y; }

#define K(v)           (v)
#define tn_abs(x)      fabs(x)
#define tn_exp(x)      exp(x)
#define tn_log(x)      log(x)
#define tn_log1p(x)    log1p(x)
#define tn_expm1(x)    expm1(x)
#define tn_sqrt(x)     sqrt(x)
#define tn_rsqrt(x)    (1 / sqrt(x))
#define tn_sin(x)      sin(x)
#define tn_cos(x)      cos(x)
#define tn_atan(x)     atan(x)
#define tn_tanh(x)     tanh(x)
#define tn_erf(x)      erf(x)
#define tn_ndtr(x)     (0.5 * erfc((x) * -0.70710678118654752))
#define tn_sigmoid(x)  (1 / (1 + exp(-(x))))
#define tn_floor(x)    floor(x)
#define tn_ceil(x)     ceil(x)
#define tn_round(x)    nearbyint(x)
#define tn_trunc(x)    trunc(x)
#define tn_sign(x)     ((double)(((x) > 0) - ((x) < 0)))
#define tn_isfinite(x) (isfinite(x) != 0)
#define tn_pow(x, y)   pow(x, y)
#define tn_max(x, y)   larger(x, y)
#define tn_min(x, y)   smaller(x, y)

typedef double real_fn(double x, double y, double z);

#define TN_UNARY(name, type, expression, ...)                                                                \
    static double real_##name(double x, double y, double z)                                                  \
    {                                                                                                        \
        (void)y, (void)z;                                                                                    \
        return expression;                                                                                   \
    }
#define TN_BINARY(name, type, expression, ...)                                                               \
    static double real_##name(double x, double y, double z)                                                  \
    {                                                                                                        \
        (void)z;                                                                                             \
        return expression;                                                                                   \
    }
#define TN_TERNARY(name, type, expression, ...)                                                              \
    static double real_##name(double condition, double y, double z)                                          \
    {                                                                                                        \
        bool x = condition != 0;                                                                             \
        return expression;                                                                                   \
    }
#include "../../core/ops.def"

#undef tn_abs
#undef tn_isfinite
#undef tn_floor
#undef tn_ceil
#undef tn_round
#undef tn_trunc
#undef tn_sign
#undef tn_max
#undef tn_min
#define tn_abs(x)      ((x) < 0 ? -(x) : (x))
#define tn_isfinite(x) true
#define tn_floor(x)    (x)
#define tn_ceil(x)     (x)
#define tn_round(x)    (x)
#define tn_trunc(x)    (x)
#define tn_sign(x)     (((x) > 0) - ((x) < 0))
#define tn_max(x, y)   ((x) > (y) ? (x) : (y))
#define tn_min(x, y)   ((x) < (y) ? (x) : (y))

__extension__ typedef __int128 wide;
typedef wide wide_fn(wide x, wide y);

#define WIDE_NUM(name, expression)                                                                           \
    static wide wide_##name(wide x, wide y)                                                                  \
    {                                                                                                        \
        (void)x, (void)y;                                                                                    \
        return expression;                                                                                   \
    }
#define WIDE_FLT(name, expression)
#define WIDE_ANY                                WIDE_NUM
#define WIDE_TEST                               WIDE_NUM
#define TN_UNARY(name, type, expression, ...)   WIDE_##type(name, expression)
#define TN_BINARY(name, type, expression, ...)  WIDE_##type(name, expression)
#define TN_TERNARY(name, type, expression, ...) /* chooses, whatever the elements are */
#include "../../core/ops.def"

typedef struct row {
    real_fn *real;
    wide_fn *integer; /* NULL: the row takes none */
} row;

#define ROW_NUM(name) {real_##name, wide_##name},
#define ROW_FLT(name) {real_##name, NULL},
#define ROW_ANY       ROW_NUM
#define ROW_TEST      ROW_NUM
static const row rows[TN_OP_COUNT] = {
#define TN_UNARY(name, type, ...)   [TN_OP_##name] = ROW_##type(name)
#define TN_BINARY(name, type, ...)  [TN_OP_##name] = ROW_##type(name)
#define TN_TERNARY(name, type, ...) [TN_OP_##name] = ROW_FLT(name)
#include "../../core/ops.def"
};

int tn_ref_eltwise(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    const row *r = &rows[node->op];
    int64_t n = tn_node_numel(node);
    const double *x = a->in[0], *y = node->n_in > 1 ? a->in[1] : x, *z = node->n_in > 2 ? a->in[2] : x;
    for (int i = 0; i < node->n_in; i++) {
        if (tn_node_numel(node->in[i]) != n) {
            return tn_err(a->err, TN_E_SHAPE, "%s: operand %d has another shape than the result",
                          tn_op_get(node->op)->name, i);
        }
    }
    const tn_ref_int *xi = r->integer ? tn_ref_ints(node->in[0], x) : NULL, *yi = tn_ref_ints(node->in[0], y);
    tn_ref_int *out = tn_ref_out(a);
    for (int64_t i = 0; i < n; i++)
        if (!xi)
            a->out[i] = r->real(x[i], y[i], z[i]);
        else if (out)
            out[i] = (int64_t)(uint64_t)r->integer(xi[i], yi[i]);
        else
            a->out[i] = (double)r->integer(xi[i], yi[i]);
    return TN_OK;
}

int tn_ref_number(const tn_ref_args *a)
{
    tn_ref_store(a->node->dtype, a->node->attr->number, a->out);
    return TN_OK;
}

int tn_ref_iota(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    int64_t n = tn_node_numel(node), index[TN_MAX_DIMS] = {0};
    for (int64_t i = 0; i < n; i++) {
        tn_ref_store(node->dtype, tn_number_i(index[node->attr->axis]), &a->out[i]);
        tn_ref_next(node->ndim, node->shape, index);
    }
    return TN_OK;
}

int tn_ref_cast(const tn_ref_args *a)
{
    int64_t n = tn_node_numel(a->node);
    const tn_ref_int *x = tn_ref_ints(a->node->in[0], a->in[0]);
    for (int64_t i = 0; i < n; i++) {
        tn_number v = x ? tn_number_i(x[i]) : tn_number_f(a->in[0][i]);
        tn_ref_store(a->node->dtype, v, &a->out[i]);
    }
    return TN_OK;
}
