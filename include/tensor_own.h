/* tensor_own.h - libtensor: operators of one's own, chapter 15 of <tensor.h>, which includes this.
 *
 *   tn_own *swish = tn_define(s, "swish(x; b)", "x / (1 + exp(-b * x))");
 *   tn_tensor *y = tn_apply(swish, x, .numbers = {1.5});
 *
 * An elementwise operator by formula: fused with what stands around it like any other, in C and in CUDA C, with a gradient
 * that is derived or given. And, where no formula says it, a function in C that reads and writes arrays of the host:
 *
 *   tn_own *solve = tn_define_host(s, "solve(a, b)", solve_forward, .gradient = solve_backward, .shape = like_b);
 *   tn_tensor *x = tn_apply(solve, a, b);
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

/* An array of the host: row-major, without gaps. */
typedef struct tn_host_array {
    void *data;
    tn_dtype dtype;
    int ndim;
    const int64_t *shape;
} tn_host_array;

enum { TN_HOST_WHY = 200 };

/* What a function of the host is given; all of it ends with the call. */
typedef struct tn_host_call {
    int n_in, n_out;
    const tn_host_array *in;   /* the operands, in the order of the signature; not to be written to */
    const tn_host_array *out;  /* forward: the result. Zeros as the function begins */
    const double *number; /* the numbers, in the order of the signature */
    void *user;
    char *why; /* where the function fails, a text of less than TN_HOST_WHY bytes for the error, if it likes */
} tn_host_call;
typedef int tn_host_fn(const tn_host_call *call);
typedef int tn_host_shape_fn(const tn_host_call *call, int *ndim, int64_t *shape);

typedef struct tn_host_options {
    tn_host_fn *gradient;    /* NULL: a backward through it is TN_E_GRAD */
    tn_host_shape_fn *shape; /* NULL: the result has the shape of the first operand */
    void *user;              /* for all three; must live as long as the session */
    size_t size;
} tn_host_options;
/* Defines an operator by a function in C; signature as in tn_define. `forward` is called once for each call in the
 * program whose result something reads, and again only in checked mode: between tn_checkpoint_begin and its end, too, its
 * result is kept. It gets the operands' values, on a CPU where they lie and on a GPU by way of copies, which the step
 * waits for; nothing fuses with it. It may use threads and whatever else C has, but not the session.
 *
 * Floating operands come in f32, or all of them in f64 where one is f64; integers and bool as they are. The result is
 * floating likewise, and rounded to 16 bits where the operands promote to a 16-bit type.
 *
 * .gradient gets the operands, then the result, then the result's gradient in `in`, and writes in `out` the gradient of
 * each operand in that operand's shape; `data` is NULL for those nobody asks for. .shape is called as the operator is,
 * with arrays that have no data, and sets the result's extents: up to 8 of them. All three return 0, or what becomes
 * the session's error: a negative tn_status; any other number is TN_E_ARG. A step whose function fails assigns nothing.
 *
 * The same definition again gives the same operator; another one of its name is TN_E_ARG. A step with such an operator
 * cannot be exported. */
TN_FUNCTION(tn_own *, define_host_with, tn_session *s, const char *signature, tn_host_fn *forward,
            const tn_host_options *options);

typedef struct tn_operands {
    tn_tensor *x0, *x1, *x2, *x3, *x4, *x5; /* in the order of the signature */
    double numbers[TN_OWN_MAX];             /* by formula: another value compiles and plans nothing anew */
    size_t size;
} tn_operands;
/* What op makes of the operands, a tensor like any operator's. */
TN_FUNCTION(tn_tensor *, apply_with, tn_own *op, const tn_operands *operands);

#endif
