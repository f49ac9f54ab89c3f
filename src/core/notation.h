/* notation.h - short names for rows of ops.def, so that formulas read as formulas: mul(g, sub(p, y)).
 *
 * Composites (src/ops) and backward rules (autograd/rules.c) are written in these. Rows that C has functions
 * of the same name for (exp, log, div, ...) are not among them.
 */
#ifndef TN_NOTATION_H
#define TN_NOTATION_H

#include "build.h"

static inline tn_tensor *neg(tn_tensor *x)
{
    return tn_mk1(TN_OP_neg, x);
}
static inline tn_tensor *sign(tn_tensor *x)
{
    return tn_mk1(TN_OP_sign, x);
}
static inline tn_tensor *square(tn_tensor *x)
{
    return tn_mk1(TN_OP_square, x);
}
static inline tn_tensor *add(tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(TN_OP_add, x, y);
}
static inline tn_tensor *sub(tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(TN_OP_sub, x, y);
}
static inline tn_tensor *mul(tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(TN_OP_mul, x, y);
}
static inline tn_tensor *eq(tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(TN_OP_eq, x, y);
}
static inline tn_tensor *gt(tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(TN_OP_gt, x, y);
}
static inline tn_tensor *lt(tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(TN_OP_lt, x, y);
}
static inline tn_tensor *le(tn_tensor *x, tn_tensor *y)
{
    return tn_mk2(TN_OP_le, x, y);
}
static inline tn_tensor *where(tn_tensor *c, tn_tensor *x, tn_tensor *y)
{
    return tn_mk3(TN_OP_where, c, x, y);
}

#endif
