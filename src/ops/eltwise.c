/* eltwise.c - the public elementwise operators: one per row of ops.def, those with a C number, and the
 * composites (activations, lerp, clamp). Start with the expansion of ops.def below. */
#include <math.h>

#include "ops.h"

#define TN_UNARY(name, ...)                                                                                  \
    TN_AT(tn_tensor *, name, (x), tn_tensor *x)                                                              \
    {                                                                                                        \
        tn_scope sc = tn_enter_as(TN_NO_ATTR, #name, file, line, 1, 0, &x);                                  \
        return tn_leave(&sc, sc.ok ? tn_mk1(TN_OP_##name, x) : NULL);                                        \
    }
#define TN_BINARY(name, ...)                                                                                 \
    TN_AT(tn_tensor *, name, (x, y), tn_tensor *x, tn_tensor *y)                                             \
    {                                                                                                        \
        tn_scope sc = tn_enter_as(TN_NO_ATTR, #name, file, line, 2, 0, &x, &y);                              \
        return tn_leave(&sc, sc.ok ? tn_mk2(TN_OP_##name, x, y) : NULL);                                     \
    }
#define TN_TERNARY(name, type, expression, dx, dy, dz, low, high, formula, work, names)                      \
    TN_AT(tn_tensor *, name, (x, y, z), tn_tensor *x, tn_tensor *y, tn_tensor *z)                            \
    {                                                                                                        \
        tn_scope sc = tn_enter_named(TN_NO_ATTR, #name, file, line, names, 3, 0, &x, &y, &z);                \
        return tn_leave(&sc, sc.ok ? tn_mk3(TN_OP_##name, x, y, z) : NULL);                                  \
    }
#include "../core/ops.def"

TN_AT(tn_tensor *, cast, (x, dtype), tn_tensor *x, tn_dtype dtype)
{
    tn_scope sc = tn_enter_as(TN_ATTR(dtype), "cast", file, line, 1, 0, &x);
    if (sc.ok && (unsigned)dtype >= TN_DTYPE_COUNT)
        return tn_leave_error(&sc, TN_E_DTYPE, "unknown dtype %d", (int)dtype);
    return tn_leave(&sc, sc.ok ? tn_mk_cast(x, dtype) : NULL);
}

/* ---- with a C number ---- */

#define WITH_NUMBER(name, op, a, b)                                                                          \
    TN_AT(tn_tensor *, name, (x, v), tn_tensor *x, tn_number v)                                              \
    {                                                                                                        \
        tn_scope sc = tn_enter_as(TN_ATTR_NUMBER(&v), #name, file, line, 1, 0, &x);                          \
        if (!sc.ok) return tn_leave(&sc, NULL);                                                              \
        tn_tensor *n = tn_mk_scalar(sc.g, v);                                                                \
        return tn_leave(&sc, tn_mk2(TN_OP_##op, a, b));                                                      \
    }
/* Sums and products of integers wrap around, and so does a number on its way into them. */
WITH_NUMBER(add_scalar, add, x, n)
WITH_NUMBER(sub_scalar, sub, x, n)
WITH_NUMBER(rsub_scalar, sub, n, x)
WITH_NUMBER(mul_scalar, mul, x, n)
WITH_NUMBER(div_scalar, div, x, n)
WITH_NUMBER(rdiv_scalar, div, n, x)

/* x's dtype may not hold the number: the larger, or smaller, of the two is then that of x and the nearest it
 * does. */
static tn_number held(const tn_tensor *x, tn_number v)
{
    if (v.is_int) v.i = tn_dtype_nearest(tn_dtype_of(x), v.i);
    return v;
}

#define WITH_HELD(name, op)                                                                                  \
    TN_AT(tn_tensor *, name, (x, v), tn_tensor *x, tn_number v)                                              \
    {                                                                                                        \
        v = held(x, v);                                                                                      \
        tn_scope sc = tn_enter_as(TN_ATTR_NUMBER(&v), #name, file, line, 1, 0, &x);                          \
        return tn_leave(&sc, sc.ok ? tn_mk2(TN_OP_##op, x, tn_mk_scalar(sc.g, v)) : NULL);                   \
    }
WITH_HELD(maximum_scalar, maximum)
WITH_HELD(minimum_scalar, minimum)

/* And a comparison is one of i64. */
#define COMPARED(name, op)                                                                                   \
    TN_AT(tn_tensor *, name, (x, v), tn_tensor *x, tn_number v)                                              \
    {                                                                                                        \
        bool wider = held(x, v).i != v.i;                                                                    \
        tn_op_key key = {.part = {&wider}, .bytes = {sizeof wider}, .number = &v};                           \
        tn_scope sc = tn_enter_as(&key, #name, file, line, 1, 0, &x);                                        \
        if (!sc.ok) return tn_leave(&sc, NULL);                                                              \
        tn_tensor *left = wider ? tn_mk_cast(x, TN_I64) : x;                                                 \
        return tn_leave(&sc, tn_mk2(TN_OP_##op, left, tn_mk_scalar(sc.g, v)));                               \
    }
COMPARED(eq_scalar, eq)
COMPARED(lt_scalar, lt)
COMPARED(gt_scalar, gt)

/* Exponents that have an operator of their own are structure; any other is a run-time number. */
static tn_tensor *power(tn_tensor *x, tn_number v)
{
    double e = v.f;
    bool floating = tn_dtype_is_float(x->dtype);
    if (e == 1) return x;
    if (e == 2) return square(x);
    if (e == 3) return narrow(mul(wide(x), square(wide(x))), x->dtype);
    if (e == 0.5) return tn_mk1(TN_OP_sqrt, x);
    if (e == -0.5) return tn_mk1(TN_OP_rsqrt, x);
    if (e == -1 && floating) return tn_mk1(TN_OP_reciprocal, x);
    return tn_mk2(TN_OP_pow, x, tn_mk_scalar(x->graph, v));
}

TN_AT(tn_tensor *, pow_scalar, (x, v), tn_tensor *x, tn_number v)
{
    tn_scope sc = tn_enter_as(TN_ATTR(tn_bits(v.f), v.i, v.is_int), "pow_scalar", file, line, 1, 0, &x);
    return tn_leave(&sc, sc.ok ? power(x, v) : NULL);
}

/* ---- composites. A rule of their own, from x alone, spares the values that the gradient derived row by row
 * would have forward write and backward read. Both see x wide. ---- */

#define COMPOSITE1(name)                                                                                     \
    static bool name##_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)                                       \
    {                                                                                                        \
        return (gin[0] = mul(wide(g), name##_slope(wide(r->args[0])))) != NULL;                              \
    }                                                                                                        \
    TN_AT(tn_tensor *, name, (x), tn_tensor *x)                                                              \
    {                                                                                                        \
        tn_scope sc = tn_enter_as(TN_NO_ATTR, #name, file, line, 1, 0, &x);                                  \
        tn_tensor *out = sc.ok ? narrow(name(wide(x)), x->dtype) : NULL;                                     \
        tn_rule_set(out, sc.first, name##_rule, 1, &x);                                                      \
        return tn_leave(&sc, out);                                                                           \
    }

/* max(x, 0) + ln(1 + e^-|x|): no overflow on either side. Its slope is sigmoid, exact also at 0. */
static tn_tensor *softplus(tn_tensor *x)
{
    return add(tn_mk1(TN_OP_relu, x), tn_mk1(TN_OP_log1p, tn_mk1(TN_OP_exp, neg(tn_mk1(TN_OP_abs, x)))));
}
static tn_tensor *softplus_slope(tn_tensor *x) { return tn_mk1(TN_OP_sigmoid, x); }
COMPOSITE1(softplus)

/* x t, t = tanh(softplus(x)) = p (2 - p) / (1 + (1 - p)^2), p = sigmoid(x), in which no part has a corner that
 * a derivative of the slope would see: t + x (1 - t^2) p */
static tn_tensor *mish_gate(tn_tensor *x, tn_tensor *p)
{
    tn_tensor *rest = sub(constant(x, 1), p), *over = add(square(rest), constant(x, 1));
    return tn_mk2(TN_OP_div, mul(p, add(rest, constant(x, 1))), over);
}
static tn_tensor *mish(tn_tensor *x) { return mul(x, mish_gate(x, tn_mk1(TN_OP_sigmoid, x))); }
static tn_tensor *mish_slope(tn_tensor *x)
{
    tn_tensor *p = tn_mk1(TN_OP_sigmoid, x), *t = mish_gate(x, p);
    return add(t, mul(mul(x, sub(constant(x, 1), square(t))), p));
}
COMPOSITE1(mish)

/* x s, s = sigmoid(x): s (1 + x (1 - s)) */
static tn_tensor *silu(tn_tensor *x) { return mul(x, tn_mk1(TN_OP_sigmoid, x)); }
static tn_tensor *silu_slope(tn_tensor *x)
{
    tn_tensor *s = tn_mk1(TN_OP_sigmoid, x);
    return mul(s, add(mul(x, sub(constant(x, 1), s)), constant(x, 1)));
}
COMPOSITE1(silu)

/* x P(x), P the normal distribution: P + x p, p = e^(-x^2 / 2) / sqrt(2 pi) */
static tn_tensor *gelu(tn_tensor *x) { return mul(x, tn_mk1(TN_OP_ndtr, x)); }
static tn_tensor *gelu_slope(tn_tensor *x)
{
    tn_tensor *p = tn_mk1(TN_OP_exp, mul(square(x), constant(x, -0.5)));
    return add(tn_mk1(TN_OP_ndtr, x), mul(mul(x, constant(x, 0.39894228040143268)), p));
}
COMPOSITE1(gelu)

/* x/2 (1 + t), t = tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3): (1 + t)/2 + x/2 (1 - t^2) u'
 * (Hendrycks and Gimpel 2016) */
static tn_tensor *gelu_tanh_of(tn_tensor *x)
{
    tn_tensor *u = add(x, mul(mul(x, square(x)), constant(x, 0.044715)));
    return tn_mk1(TN_OP_tanh, mul(u, constant(x, 0.79788456080286536)));
}
static tn_tensor *gelu_tanh(tn_tensor *x)
{
    return mul(mul(x, constant(x, 0.5)), add(gelu_tanh_of(x), constant(x, 1)));
}
static tn_tensor *gelu_tanh_slope(tn_tensor *x)
{
    tn_tensor *t = gelu_tanh_of(x);
    tn_tensor *du = add(mul(square(x), constant(x, 0.10703222440890037)), constant(x, 0.79788456080286536));
    tn_tensor *d = mul(mul(mul(x, constant(x, 0.5)), sub(constant(x, 1), square(t))), du);
    return add(mul(add(t, constant(x, 1)), constant(x, 0.5)), d);
}
COMPOSITE1(gelu_tanh)

/* x min(max(x + 3, 0), 6) / 6, whose slope is 0 up to -3, 1 from 3 on, and at NaN */
static tn_tensor *hardswish(tn_tensor *x)
{
    tn_tensor *t = tn_mk2(TN_OP_maximum, add(x, constant(x, 3)), constant(x, 0));
    return mul(mul(x, tn_mk2(TN_OP_minimum, t, constant(x, 6))), constant(x, 1.0 / 6));
}
static tn_tensor *hardswish_slope(tn_tensor *x)
{
    tn_tensor *line = add(mul(x, constant(x, 1.0 / 3)), constant(x, 0.5));
    return where(le(x, constant(x, -3)), constant(x, 0), where(lt(x, constant(x, 3)), line, constant(x, 1)));
}
COMPOSITE1(hardswish)

/* The gate's slope is silu's. */
static bool swiglu_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *gate = wide(r->args[0]), *y = wide(r->args[1]);
    g = wide(g);
    if (!gate || !y) return false;
    if (r->args[0]->flags & TN_F_REQUIRES_GRAD) gin[0] = mul(mul(g, y), silu_slope(gate));
    if (r->args[1]->flags & TN_F_REQUIRES_GRAD) gin[1] = mul(g, silu(gate));
    return !gate->graph->error.status;
}

TN_AT(tn_tensor *, swiglu, (gate, x), tn_tensor *gate, tn_tensor *x)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "swiglu", file, line, 2, 0, &gate, &x);
    if (sc.ok && !tn_same_shape(gate, x))
        return tn_leave_error(&sc, TN_E_SHAPE, "gate %s and x %s differ", TN_TENSOR_TEXT(gate),
                              TN_TENSOR_TEXT(x));
    if (!sc.ok) return tn_leave(&sc, NULL);
    tn_dtype d = tn_common_dtype(2, (tn_tensor *[]){floating(gate), floating(x)});
    tn_tensor *out = narrow(mul(silu(wide(gate)), wide(x)), d);
    tn_rule_set(out, sc.first, swiglu_rule, 2, (tn_tensor *[]){gate, x});
    return tn_leave(&sc, out);
}

/* a sigmoid(b), the halves of x */
TN_AT(tn_tensor *, glu, (x, axis), tn_tensor *x, int axis)
{
    tn_scope sc = tn_enter_as(TN_ATTR(axis), "glu", file, line, 1, 0, &x);
    int a = sc.ok ? tn_axis(sc.g, x, axis) : -1;
    if (a < 0) return tn_leave(&sc, NULL);
    if (x->shape[a] % 2)
        return tn_leave_error(&sc, TN_E_SHAPE, "axis %d of %s has no two halves", axis, TN_TENSOR_TEXT(x));
    int64_t half = x->shape[a] / 2;
    tn_tensor *left = tn_mk_slice1(x, a, 0, 1, half), *right = tn_mk_slice1(x, a, half, 1, half);
    tn_tensor *gate = tn_mk1(TN_OP_sigmoid, wide(right));
    return tn_leave(&sc, narrow(mul(wide(left), gate), x->dtype));
}

/* The product is taken of min(x, 0) only, as in elu: where x is infinite its derivative would be NaN. */
TN_AT(tn_tensor *, prelu, (x, weight), tn_tensor *x, tn_tensor *weight)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "prelu", file, line, 2, 0, &x, &weight);
    if (!sc.ok) return tn_leave(&sc, NULL);
    int64_t n = tn_node_numel(weight);
    if (weight->ndim > 1 || (n != 1 && (!x->ndim || n != x->shape[x->ndim - 1])))
        return tn_leave_error(&sc, TN_E_SHAPE,
                              "weight %s must have one element, or one for each channel of x %s",
                              TN_TENSOR_TEXT(weight), TN_TENSOR_TEXT(x));
    if (!x->ndim) weight = tn_mk_reshape(weight, 0, NULL);
    tn_tensor *up = gt(x, constant(x, 0));
    return tn_leave(&sc, where(up, x, mul(where(up, constant(x, 0), x), weight)));
}

/* x where column - row <= k, or >= k, else 0 */
static tn_tensor *triangle(const char *name, tn_op keep, tn_tensor *x, int64_t k, const char *file, int line)
{
    tn_scope sc = tn_enter_as(TN_ATTR(k), name, file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (x->ndim < 2)
        return tn_leave_error(&sc, TN_E_SHAPE, "x %s: wanted two axes or more", TN_TENSOR_TEXT(x));
    tn_tensor *column = tn_mk_iota(sc.g, x->ndim - 1, x->ndim, x->shape, TN_I64);
    tn_tensor *row = tn_mk_iota(sc.g, x->ndim - 2, x->ndim, x->shape, TN_I64);
    tn_tensor *kept = tn_mk2(keep, sub(column, row), tn_mk_scalar(sc.g, tn_number_i(k)));
    return tn_leave(&sc, where(kept, x, tn_mk_typed(sc.g, TN_OP_constant, tn_number_i(0), x->dtype)));
}

#define TRIANGLE(name, keep)                                                                                 \
    TN_AT(tn_tensor *, name, (x, diagonal), tn_tensor *x, int64_t diagonal)                                  \
    {                                                                                                        \
        return triangle(#name, keep, x, diagonal, file, line);                                               \
    }
TRIANGLE(tril, TN_OP_le)
TRIANGLE(triu, TN_OP_ge)

TN_AT(tn_tensor *, leaky_relu, (x, slope), tn_tensor *x, double slope)
{
    tn_scope sc = tn_enter_as(TN_ATTR(tn_bits(slope)), "leaky_relu", file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    tn_tensor *a = num(x, slope);
    return tn_leave(&sc, where(gt(x, constant(x, 0)), x, mul(x, a)));
}

/* The exponent is taken of min(x, 0) only: where x is large e^x is not chosen, but its derivative times zero
 * would be NaN. */
TN_AT(tn_tensor *, elu, (x, alpha), tn_tensor *x, double alpha)
{
    tn_scope sc = tn_enter_as(TN_ATTR(tn_bits(alpha)), "elu", file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    tn_tensor *a = num(x, alpha), *up = gt(x, constant(x, 0));
    tn_tensor *low = where(up, constant(x, 0), x);
    return tn_leave(&sc, where(up, x, mul(a, tn_mk1(TN_OP_expm1, low))));
}

/* A bound that an integer dtype can have: what lies beyond it is the last that it holds, no number is no
 * bound. */
static bool is_whole(double v) { return v != v || v == trunc(v); /* infinity too */ }

static tn_number bound(const tn_tensor *x, double v, bool whole, double none)
{
    if (!whole) return tn_number_f(v);
    return tn_number_i(tn_dtype_nearest(x->dtype, tn_f64_to_i64(v != v ? none : v)));
}

/* 1 between the bounds, 0 at them, outside, and at NaN: PyTorch's choice */
static bool clamp_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *x = r->args[0], *none = constant(x, 0);
    if (r->saved[0]) g = where(lt(r->saved[0], x), g, none);
    if (r->saved[1]) g = where(lt(x, r->saved[1]), g, none);
    return (gin[0] = g) != NULL;
}

/* where(x < low, low, where(x > high, high, x)): NaN passes */
TN_AT(tn_tensor *, clamp, (x, low, high), tn_tensor *x, double low, double high)
{
    tn_scope sc = tn_enter_as(TN_ATTR(tn_bits(low), tn_bits(high)), "clamp", file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    bool whole = !tn_dtype_is_float(x->dtype) && is_whole(low) && is_whole(high);
    tn_tensor *lo = tn_mk_scalar(sc.g, bound(x, low, whole, -INFINITY));
    tn_tensor *hi = tn_mk_scalar(sc.g, bound(x, high, whole, INFINITY));
    tn_tensor *n = where(lt(x, lo), lo, x);
    tn_tensor *out = where(gt(n, hi), hi, n);
    tn_rule *r = tn_rule_set(out, sc.first, clamp_rule, 1, &x);
    if (!r) return tn_leave(&sc, NULL);
    if (!isnan(low)) tn_rule_save(r, 0, lo);
    if (!isnan(high)) tn_rule_save(r, 1, hi);
    return tn_leave(&sc, out);
}

TN_AT(tn_tensor *, lerp, (x, y, weight), tn_tensor *x, tn_tensor *y, tn_tensor *weight)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "lerp", file, line, 3, 0, &x, &y, &weight);
    if (!sc.ok) return tn_leave(&sc, NULL);
    tn_dtype d = tn_common_dtype(3, (tn_tensor *[]){x, y, weight});
    tn_tensor *from = wide(x), *far = mul(wide(weight), sub(wide(y), from));
    return tn_leave(&sc, narrow(add(from, far), d));
}

TN_AT(tn_tensor *, detach, (x), tn_tensor *x)
{
    tn_scope sc = tn_enter_as(TN_NO_ATTR, "detach", file, line, 1, 0, &x);
    if (!sc.ok) return tn_leave(&sc, NULL);
    sc.g->no_grad++;
    tn_tensor *n = tn_mk_alias(x);
    sc.g->no_grad--;
    return tn_leave(&sc, n);
}
