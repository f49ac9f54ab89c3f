/* ops.h - what the files of this room are written in.
 *
 * A file here holds public operators: each checks its arguments in the user's terms, then builds nodes. An
 * operator of several nodes is a composite; where the gradient derived node by node would read more than it
 * must, it carries a rule of its own (tn_rule_set). Read first: norm.c, softmax and its rule. */
#pragma once

#include <math.h>

#include "../core/notation.h"
#include "../runtime/session.h"

/* A number that is an argument of the kernel: its text does not depend on it, nor does the plan. */
static inline tn_tensor *num(const tn_tensor *x, double v)
{
    return x ? tn_mk_scalar(x->graph, tn_number_f(v)) : NULL;
}

/* a / b, infinite where b is 0: a host that traps divisions by zero is to see none while a program is
 * recorded. */
static inline double ratio(double a, double b) { return b != 0 ? a / b : INFINITY; }

/* A number that is part of the text. */
static inline tn_tensor *constant(const tn_tensor *x, double v) { return x ? tn_mk_num(x->graph, v) : NULL; }

static inline tn_tensor *floating(tn_tensor *x)
{
    return x && tn_dtype_is_float(x->dtype) ? x : tn_mk_cast(x, TN_F32);
}

/* What came of a product of a shorter type, as f32: sums, softmaxes and losses take it so. */
static inline tn_tensor *exact(tn_tensor *x)
{
    const bool shorter = x && x->graph->products != TN_F32 && x->dtype == x->graph->products;
    return shorter ? tn_mk_cast(x, TN_F32) : x;
}

/* Sums keep the axes of the mask as extents of 1; those of f16 and bf16 are f32. */
static inline tn_tensor *total(tn_tensor *x, uint32_t axes)
{
    return tn_mk_reduce(TN_OP_reduce_sum, x, axes);
}
static inline uint32_t all_axes(const tn_tensor *x) { return (1u << x->ndim) - 1; }

/* The bit mask of a list of axes, all of them for an empty list; false with the error set. */
static inline bool axis_mask(tn_tensor *x, int naxes, const int *axes, uint32_t *mask)
{
    if (naxes < 0 || naxes > TN_MAX_DIMS || (naxes && !axes)) {
        tn_error_set(x->graph, naxes > 0 && !axes ? TN_E_NULL : TN_E_ARG,
                     "naxes is %d%s; 0 to %d are possible", naxes, axes || !naxes ? "" : " and axes is NULL",
                     TN_MAX_DIMS);
        return false;
    }
    *mask = naxes ? 0 : (1u << x->ndim) - 1;
    for (int i = 0; i < naxes; i++) {
        int a = tn_axis(x->graph, x, axes[i]);
        if (a < 0) return false;
        if (*mask >> a & 1) {
            tn_error_set(x->graph, TN_E_ARG, "axis %d is named twice", axes[i]);
            return false;
        }
        *mask |= 1u << a;
    }
    return true;
}

/* Returns how many elements each sum over the axes of the mask adds. */
static inline int64_t count_of(const tn_tensor *x, uint32_t axes)
{
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++)
        if (axes >> i & 1) n *= x->shape[i];
    return n;
}

/* Without the axes of the mask, which have one element each. */
static inline tn_tensor *drop_axes(tn_tensor *x, uint32_t axes)
{
    int64_t s[TN_MAX_DIMS];
    int n = 0;
    if (!x) return NULL;
    for (int i = 0; i < x->ndim; i++)
        if (!(axes >> i & 1)) s[n++] = x->shape[i];
    return tn_mk_reshape(x, n, s);
}

/* With an axis of one element before `axis`, which is not negative here. */
static inline tn_tensor *unsqueeze(tn_tensor *x, int axis)
{
    int64_t s[TN_MAX_DIMS];
    if (!x) return NULL;
    for (int i = 0, k = 0; i <= x->ndim; i++) s[i] = i == axis ? 1 : x->shape[k++];
    return tn_mk_reshape(x, x->ndim + 1, s);
}

/* ---- view.c: opens a call of a list of tensors; in: room for UINT8_MAX nodes ---- */
tn_scope tn_enter_join(const tn_op_key *key, const char *name, int n, tn_tensor *const *xs, tn_tensor **in,
                       const char *file, int line);

/* ---- norm.c, attention.c: what other files of this room build on ---- */
tn_tensor *tn_softmax_of(tn_tensor *x, int axis);         /* axis not negative */
tn_tensor *tn_log_softmax_of(tn_tensor *x, int axis);     /* likewise */
tn_tensor *tn_softmax_or_zero_of(tn_tensor *x, int axis); /* the same, but 0 where all of a row is -inf */
bool tn_is_softmax(const tn_tensor *x, int axis);         /* x was made by it */
/* x y, where x was made by softmax of scores: the attention that they are together. NULL: it is no such
 * product, or better made as it is written; nothing was recorded then, or an error is set. */
tn_tensor *tn_attention_written(tn_tensor *x, tn_tensor *y);
