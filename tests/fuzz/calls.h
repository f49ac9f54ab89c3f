/* calls.h - a fuzz target that calls operators with hostile shapes, axes, steps, pads, strides and indices.
 *
 * Each byte of an input chooses: the operator, the tensors it is given, its numbers (fuzz_number). What is
 * made stays in eight registers for the calls after it. A call that is refused gives NULL and an error, one
 * that is not gives a tensor whose extents are counted right; nothing else is compared here. The calls of a
 * step wait and run at its end, so that one whose result would be too large to compute in this life is told,
 * and its step is left with the session. Read first: fuzz_one_calls. */
#pragma once

#include <math.h>

#include "fuzz.h"

enum { FUZZ_REGISTERS = 8, FUZZ_LARGE = 1 << 12 };

typedef struct fuzz_calls {
    const uint8_t *at, *end;
    tn_session *s;
    tn_tensor *r[FUZZ_REGISTERS];
    bool large; /* a result that nobody should compute */
} fuzz_calls;

static uint8_t fuzz_byte(fuzz_calls *c) { return c->at < c->end ? *c->at++ : 0; }

/* Mostly small, else one of the hostile. */
static int64_t fuzz_number(fuzz_calls *c)
{
    uint8_t b = fuzz_byte(c);
    return b < 160 ? b % 8 - 2 : fuzz_hostile[b % FUZZ_HOSTILE];
}

static int fuzz_int(fuzz_calls *c)
{
    int64_t v = fuzz_number(c);
    return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int)v;
}

static double fuzz_real(fuzz_calls *c)
{
    static const double odd[] = {0.0,       -0.0, .5,  1,   -1,   1e-300, 1e300,  INFINITY,
                                 -INFINITY, NAN,  255, 256, -256, 0x1p31, 0x1p63, -0x1p63};
    return odd[fuzz_byte(c) % 16];
}

static tn_tensor *fuzz_x(fuzz_calls *c) { return c->r[fuzz_byte(c) % FUZZ_REGISTERS]; }

/* A shape of one axis more than there can be, or less; *n elements, or -1 where that is no number. */
static int fuzz_shape(fuzz_calls *c, int64_t *shape, double *n)
{
    int ndim = fuzz_byte(c) % 16;
    ndim = ndim < 12 ? ndim % 5 : ndim < 14 ? TN_MAX_DIMS : ndim == 14 ? TN_MAX_DIMS + 1 : -1;
    *n = 1;
    for (int i = 0; i < ndim; i++) {
        shape[i] = fuzz_number(c);
        *n *= (double)shape[i];
    }
    return ndim;
}

/* Some axes, four at most; fewer than none, too. */
static int fuzz_axes(fuzz_calls *c, int axis[4])
{
    const int n = fuzz_byte(c) % 6 - 1;
    for (int i = 0; i < n && i < 4; i++) axis[i] = fuzz_int(c);
    return n > 4 ? 4 : n;
}

/* What is too large to make and small enough to be tried is left out: so much memory may be there. */
static bool fuzz_too_much(double n) { return n > FUZZ_LARGE && n < 0x1p44; }

static tn_tensor *fuzz_create(fuzz_calls *c, int which)
{
    int64_t shape[TN_MAX_DIMS + 1];
    double n = 0;
    const tn_dtype d = (tn_dtype)(fuzz_byte(c) % (TN_DTYPE_COUNT + 1));
    if (which == 3) {
        double a = fuzz_real(c), b = fuzz_real(c), step = fuzz_real(c);
        return fuzz_too_much(fabs((b - a) / step)) ? NULL : tn_arange(c->s, a, b, step, d);
    }
    if (which == 4) {
        int64_t e = fuzz_number(c);
        return fuzz_too_much((double)e * (double)e) ? NULL : tn_eye(c->s, e, d);
    }
    int ndim = fuzz_shape(c, shape, &n);
    if (fuzz_too_much(n)) return NULL;
    int64_t low = fuzz_number(c), high = fuzz_number(c);
    switch (which) {
    case 0: return tn_full(c->s, fuzz_real(c), d, ndim, shape);
    case 1: return tn_randn(c->s, d, ndim, shape);
    case 2: return tn_randint(c->s, low, high, d, ndim, shape);
    default: return tn_rand(c->s, d, ndim, shape);
    }
}

static tn_tensor *fuzz_reduce(fuzz_calls *c, int which, tn_tensor *x)
{
    static tn_tensor *(*const over_axes[])(tn_tensor *, int, const int *,
                                           bool) = {tn_sum, tn_mean, tn_prod, tn_max, tn_logsumexp, tn_any};
    enum { OVER_AXES = sizeof over_axes / sizeof *over_axes };
    int axis[4], n = fuzz_axes(c, axis);
    const bool keep = fuzz_byte(c) & 1;
    which %= OVER_AXES + 4;
    if (which < OVER_AXES) return over_axes[which](x, n, axis, keep);
    const int number = fuzz_int(c);
    return which == OVER_AXES       ? tn_var(x, n, axis, keep, number)
           : which == OVER_AXES + 1 ? tn_std(x, n, axis, keep, number)
           : which == OVER_AXES + 2 ? tn_argmax(x, number, keep)
                                    : tn_cumsum(x, number);
}

static tn_tensor *fuzz_view(fuzz_calls *c, int which, tn_tensor *x)
{
    int64_t shape[TN_MAX_DIMS + 1];
    int axis[4], n;
    double count;
    tn_tensor *list[4], *part[4] = {NULL};
    switch (which % 14) {
    case 0: n = fuzz_shape(c, shape, &count); return tn_reshape(x, n, shape);
    case 1: return tn_flatten(x, fuzz_int(c));
    case 2: return tn_squeeze(x, fuzz_int(c));
    case 3: return tn_unsqueeze(x, fuzz_int(c));
    case 4: n = fuzz_axes(c, axis); return tn_permute(x, n, axis);
    case 5: n = fuzz_int(c); return tn_transpose(x, n, fuzz_int(c));
    case 6: n = fuzz_shape(c, shape, &count); return tn_expand(x, n, shape);
    case 7: {
        n = fuzz_int(c);
        int64_t a = fuzz_number(c), b = fuzz_number(c);
        return tn_slice(x, n, a, b, fuzz_number(c));
    }
    case 8:
        n = fuzz_int(c);
        shape[0] = fuzz_number(c);
        return tn_narrow(x, n, shape[0], fuzz_number(c));
    case 9: n = fuzz_int(c); return tn_select(x, n, fuzz_number(c));
    case 10: n = fuzz_axes(c, axis); return tn_flip(x, n, axis);
    case 11: {
        n = fuzz_int(c);
        int64_t a = fuzz_number(c), b = fuzz_number(c);
        return tn_pad(x, n, a, b, fuzz_real(c));
    }
    case 12:
        n = fuzz_byte(c) % 5;
        for (int i = 0; i < n; i++) list[i] = fuzz_x(c);
        return fuzz_byte(c) & 1 ? tn_concat(n, list, fuzz_int(c)) : tn_stack(n, list, fuzz_int(c));
    default:
        n = fuzz_byte(c) % 6 - 1;
        tn_split(x, n > 4 ? 4 : n, fuzz_int(c), part);
        return part[0];
    }
}

static tn_tensor *fuzz_window(fuzz_calls *c, int which, tn_tensor *x)
{
    tn_tensor *w = fuzz_x(c), *b = fuzz_byte(c) & 1 ? fuzz_x(c) : NULL;
    if (which % 3) {
        int window = fuzz_int(c), stride = fuzz_int(c), pad = fuzz_int(c), how = fuzz_byte(c);
        tn_tensor *made = which % 3 == 1
                              ? tn_max_pool2d(x, window, .stride = stride, .pad = pad, .ceil_mode = how & 1)
                              : tn_avg_pool2d(x, window, .stride = stride, .pad = pad, .ceil_mode = how & 1,
                                              .exclude_pad = how & 2);
        c->large |= made && window > 64; /* a small result, but seconds for each element of it */
        return made;
    }
    int stride = fuzz_int(c), pad = fuzz_int(c), dilation = fuzz_int(c), groups = fuzz_int(c),
        one = fuzz_int(c);
    return tn_conv2d(x, w, b, .stride = stride, .pad = pad, .dilation = dilation, .groups = groups,
                     .pad_hw = {one, 0}, .stride_hw = {0, fuzz_byte(c) & 1 ? one : 0});
}

static tn_tensor *fuzz_other(fuzz_calls *c, int which, tn_tensor *x)
{
    static tn_tensor *(*const of_two[])(tn_tensor *, tn_tensor *) = {tn_add, tn_matmul, tn_embedding,
                                                                     tn_accuracy, tn_minimum};
    enum { OF_TWO = sizeof of_two / sizeof *of_two };
    tn_tensor *y = fuzz_x(c), *z = fuzz_x(c);
    which %= 24;
    if (which < OF_TWO) return of_two[which](x, y);
    switch (which - OF_TWO) {
    case 0: return tn_affine(x, y, fuzz_byte(c) & 1 ? z : NULL);
    case 1: return tn_where(x, y, z);
    case 2: return tn_cast(x, (tn_dtype)(fuzz_byte(c) % (TN_DTYPE_COUNT + 1)));
    case 3: return tn_mul_scalar(x, fuzz_number(c));
    case 4: return tn_pow_scalar(x, fuzz_real(c));
    case 5: {
        double low = fuzz_real(c);
        return tn_clamp(x, low, fuzz_real(c));
    }
    case 6: return tn_gather(x, fuzz_int(c), y);
    case 7: return tn_scatter_add(x, fuzz_int(c), y, z);
    case 8: return tn_index_select(x, fuzz_int(c), y);
    case 9: return tn_one_hot(x, fuzz_number(c));
    case 10: return tn_softmax(x, fuzz_int(c));
    case 11:
        return tn_layer_norm(x, y, fuzz_byte(c) & 1 ? z : NULL, .ndim = fuzz_int(c), .eps = fuzz_real(c));
    case 12: return tn_group_norm(x, fuzz_int(c), y, z);
    case 13: return tn_dropout(x, fuzz_real(c));
    case 14:
        return tn_cross_entropy(x, y, .ignore_index = fuzz_number(c), .use_ignore_index = fuzz_byte(c) & 1,
                                .reduction = (tn_reduction)(fuzz_byte(c) % 4),
                                .label_smoothing = fuzz_real(c));
    case 15: {
        tn_tensor *made =
            tn_scaled_dot_product_attention(x, y, z, .causal = fuzz_byte(c) & 1, .scale = fuzz_real(c));
        double scores =
            made ? (double)tn_dim(y, -2) : 0; /* made on the way, and many where heads are empty */
        for (int i = 0; scores > 0 && i < tn_ndim(x) - 1; i++) scores *= (double)tn_dim(x, i);
        c->large |= scores > FUZZ_LARGE;
        return made;
    }
    case 16: return tn_batch_norm(x, y, z, NULL, NULL, .eps = fuzz_real(c));
    case 17: return tn_exp(x);
    default: return tn_contiguous(x);
    }
}

static void fuzz_call(fuzz_calls *c)
{
    uint8_t which = fuzz_byte(c), to = fuzz_byte(c) % FUZZ_REGISTERS;
    int kind = which % 16, detail = which / 16 + 16 * (fuzz_byte(c) % 3);
    tn_tensor *x = kind < 3 ? NULL : fuzz_x(c), *made;
    if (kind < 3)
        made = fuzz_create(c, detail % 6);
    else if (kind < 6)
        made = fuzz_reduce(c, detail, x);
    else if (kind < 10)
        made = fuzz_view(c, detail, x);
    else if (kind < 12)
        made = fuzz_window(c, detail, x);
    else
        made = fuzz_other(c, detail, x);
    tn_clear_error(c->s);
    if (!made) return;
    int64_t n = 1;
    double beside = 1; /* elements beside an empty extent, which what is made on the way has */
    bool empty = false;
    FUZZ_CHECK(tn_ndim(made) >= 0 && tn_ndim(made) <= TN_MAX_DIMS);
    for (int i = 0; i < tn_ndim(made); i++) empty |= tn_dim(made, i) == 0;
    for (int i = 0; i < tn_ndim(made); i++)
        FUZZ_CHECK(tn_dim(made, i) >= 0 && (empty || !__builtin_mul_overflow(n, tn_dim(made, i), &n)));
    FUZZ_CHECK(tn_numel(made) == (empty ? 0 : n));
    for (int i = 0; i < tn_ndim(made); i++) beside *= fmax(1, (double)tn_dim(made, i));
    c->large |= beside > FUZZ_LARGE;
    c->r[to] = made;
}

static void fuzz_one_calls(const uint8_t *data, size_t size)
{
    static tn_session *session[2];
    static int steps[2];
    if (!session[0]) setenv("TENSOR_CC", "none", 1);
    int k = size ? data[0] & 1 : 0;
    if (!session[k])
        session[k] = tn_open(.device = k ? TN_CPU : TN_REF, .mode = TN_FUSED, .threads = 1, .seed = 3,
                             .log = fuzz_quiet);
    tn_session *s = session[k];
    FUZZ_CHECK(s);
    fuzz_calls c = {.at = data + (size > 0), .end = data + size, .s = s};
    tn_step_begin(s);
    for (int i = 0; i < FUZZ_REGISTERS; i++) /* something to begin with */
        c.r[i] = i & 1 ? tn_randint(s, 0, 3, i & 2 ? TN_I64 : TN_I32, i / 2, (const int64_t[]){2, 3, 4})
                 : tn_requires_grad(c.r[i] = tn_randn(s, TN_F32, TN_SHAPE(2, 4, 3, 4 - i / 2)), true)
                     ? NULL
                     : c.r[i];
    for (int i = 0; i < 12 && c.at < c.end && !c.large; i++) fuzz_call(&c);
    if (!c.large && fuzz_byte(&c) & 1) {
        tn_tensor *x = fuzz_x(&c);
        tn_tensor *loss = x && tn_numel(x) ? tn_sum(x, TN_ALL, false) : NULL;
        if (loss) tn_backward(loss);
        tn_clear_error(s);
    }
    if (!c.large) {
        tn_step_end(s);
        tn_clear_error(s);
    }
    if (c.large || ++steps[k] >= 500) {
        tn_close(s);
        session[k] = NULL;
        steps[k] = 0;
    }
}

static size_t fuzz_good_calls(unsigned k, uint8_t *out, size_t room)
{
    uint64_t r = k * 977;
    size_t n = 8 + fuzz_below(&r, 80);
    for (size_t i = 0; i < n && i < room; i++) out[i] = (uint8_t)fuzz_next(&r);
    return n < room ? n : room;
}

static const fuzz_target fuzz_calls_target = {"calls", fuzz_one_calls, fuzz_good_calls, 256, false};
