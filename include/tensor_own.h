/* tensor_own.h - libtensor: operators of one's own, chapter 15 of <tensor.h>, which includes this.
 *
 *   tn_own *swish = tn_define(s, "swish(x; b)", "x / (1 + exp(-b * x))");
 *   tn_tensor *y = tn_apply(swish, x, .numbers = {1.5});
 *
 * An elementwise operator by formula: fused with what stands around it like any other, in C and in CUDA C, with a gradient
 * that is derived or given.
 */
#ifndef TENSOR_H
#include "tensor.h" /* and that, in its place, this */
#elif !defined(TENSOR_OWN_H)
#define TENSOR_OWN_H

typedef struct tn_own tn_own; /* owned by the session, lives until tn_close */

enum { TN_OWN_MAX = 6 }; /* operands, and numbers */

typedef struct tn_define_options {
    const char *gradient[TN_OWN_MAX]; /* of each operand; NULL: all are derived */
    size_t size;
} tn_define_options;
/* Defines an operator: `signature` is its name and, in parentheses, its operands and after a ';' its numbers, 1 to 6
 * and 0 to 6 names; `formula` is made of these names, of decimal numbers, of C's operators + - * / < <= > >= == != && ||
 * ! and ?: with C's precedence, of parentheses, and of calls of the library's elementwise operators with or without tn_
 * before them (exp, log, tanh, erf, sigmoid, sin, sqrt, pow, maximum, where, .. those with tensors alone as arguments).
 *
 * Operands broadcast. It is computed as one would be that called these operators one by one: in f64 where an operand is
 * f64, else in f32, with one rounding at the end where the operands are of 16 bits, whose common dtype the result then
 * has; integers count as f32, a condition that is no bool is compared with 0, a comparison gives bool. In eager mode it
 * is one operator, in errors, reports and plans it has its own name.
 *
 * The gradient is derived from the formula by those operators' own. Where one that reads less, or is finite where the
 * derived one is inf / inf, is known, give it for each operand, and all of them: formulas of the same names, of g, the
 * result's gradient, and of out, the result; "0" for an operand that gets none:
 *
 *   tn_define(s, "swish(x; b)", "x * sigmoid(b * x)", .gradient = {"g * (sigmoid(b * x) + b * out * (1 - sigmoid(b * x)))"});
 *
 * tn_gradcheck compares it with differences. The same definition again gives the same operator; another one of its name
 * is TN_E_ARG. TN_E_ARG also for what cannot be read: the text names formula and position, and what was wanted there. */
TN_FUNCTION(tn_own *, define_with, tn_session *s, const char *signature, const char *formula,
            const tn_define_options *options);

typedef struct tn_operands {
    tn_tensor *x0, *x1, *x2, *x3, *x4, *x5; /* in the order of the signature */
    double numbers[TN_OWN_MAX];             /* run-time numbers: another value compiles and plans nothing anew */
    size_t size;
} tn_operands;
/* What op makes of the operands, a tensor like any operator's. */
TN_FUNCTION(tn_tensor *, apply_with, tn_own *op, const tn_operands *operands);

#endif
