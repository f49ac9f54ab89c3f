/* notation.h - short names for rows of ops.def, so that formulas read as formulas: mul(g, sub(p, y)).
 *
 * Composites (src/ops) and backward rules (autograd/rules.c) are written in these. Rows that C has functions
 * of the same name for (exp, log, div, ...) are not among them. */
#pragma once

#include "build.h"

/* f16 and bf16 as f32. A composite is computed in it from entry to exit, so that no sum, square or statistic
 * is ever rounded to 16 bits, and neither is what lies between two rows of a formula; in kernels that carry
 * both alike the casts cost nothing. */
static inline tn_tensor *wide(tn_tensor *x)
{
    return x && tn_dtype_is_half(x->dtype) ? tn_mk_cast(x, TN_F32) : x;
}

/* Returns y, a result computed from a tensor of dtype d by way of `wide`, as a d: this is the one
 * rounding. */
static inline tn_tensor *narrow(tn_tensor *y, tn_dtype d)
{
    return y && y->dtype == TN_F32 && tn_dtype_is_half(d) ? tn_mk_cast(y, d) : y;
}

#define TN_NOTATION1(name)                                                                                   \
    static inline tn_tensor *name(tn_tensor *x) { return tn_mk1(TN_OP_##name, x); }
#define TN_NOTATION2(name)                                                                                   \
    static inline tn_tensor *name(tn_tensor *x, tn_tensor *y) { return tn_mk2(TN_OP_##name, x, y); }
TN_NOTATION1(neg)
TN_NOTATION1(sign)
TN_NOTATION1(square)
TN_NOTATION2(add)
TN_NOTATION2(sub)
TN_NOTATION2(mul)
TN_NOTATION2(eq)
TN_NOTATION2(gt)
TN_NOTATION2(lt)
TN_NOTATION2(le)
static inline tn_tensor *where(tn_tensor *c, tn_tensor *x, tn_tensor *y)
{
    return tn_mk3(TN_OP_where, c, x, y);
}
