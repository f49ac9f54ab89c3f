/* test_integers.c - random programs of integers and bool, of the hardest values there are, against exact
 * arithmetic written down here: fused, operator by operator, without a compiler, and by the reference
 * interpreter.
 *
 *     test_integers [--programs N] [--seed S]
 *
 *   node      one operator, its operands (earlier nodes) and numbers, and what it is: two axes, a dtype,
 *             values
 *   program   a few leaves and some twenty nodes; what no node reads is compared
 *
 * Read first: the list of operators, then work_out, which is the answer. */
#include "check.h"

enum { MAX_NODES = 48, MAX_ELEMENTS = 256, BATCH = 10 };

/* X(name, kind, an element of it where it is elementwise, how it is recorded). An element is made of x, y and
 * z, the dtype d and the number p, in arithmetic of 128 bits; tensors are a, b and c. */
/* clang-format off */
#define OPS(X)                                                                                               \
    X(leaf, OTHER, 0, leaf_of(s, n))                                                                         \
    X(full, OTHER, 0, tn_full(s, n->f[0], n->dtype, TN_SHAPE(n->r, n->c)))                                   \
    X(arange, OTHER, 0, range_of(s, n))                                                                      \
    X(neg, NUMERIC, -x, tn_neg(a))                                                                           \
    X(abs, NUMERIC, x < 0 ? -x : x, tn_abs(a))                                                               \
    X(square, NUMERIC, x * x, tn_square(a))                                                                  \
    X(relu, NUMERIC, x < 0 ? 0 : x, tn_relu(a))                                                              \
    X(sign, SELF, (x > 0) - (x < 0), tn_sign(a))                                                             \
    X(logical_not, TEST, !x, tn_logical_not(a))                                                              \
    X(add, PAIR, x + y, tn_add(a, b))                                                                        \
    X(sub, PAIR, x - y, tn_sub(a, b))                                                                        \
    X(mul, PAIR, x * y, tn_mul(a, b))                                                                        \
    X(maximum, PAIR, x > y ? x : y, tn_maximum(a, b))                                                        \
    X(minimum, PAIR, x < y ? x : y, tn_minimum(a, b))                                                        \
    X(eq, PAIR_TEST, x == y, tn_eq(a, b))                                                                    \
    X(ne, PAIR_TEST, x != y, tn_ne(a, b))                                                                    \
    X(lt, PAIR_TEST, x < y, tn_lt(a, b))                                                                     \
    X(le, PAIR_TEST, x <= y, tn_le(a, b))                                                                    \
    X(gt, PAIR_TEST, x > y, tn_gt(a, b))                                                                     \
    X(ge, PAIR_TEST, x >= y, tn_ge(a, b))                                                                    \
    X(logical_and, PAIR_TEST, x && y, tn_logical_and(a, b))                                                  \
    X(logical_or, PAIR_TEST, x || y, tn_logical_or(a, b))                                                    \
    X(logical_xor, PAIR_TEST, !x != !y, tn_logical_xor(a, b))                                                \
    X(where, OTHER, x ? y : z, tn_where(a, b, c))                                                            \
    X(clamp, OTHER, clamped(n, d, x), tn_clamp(a, n->f[0], n->f[1]))                                         \
    X(add_scalar, NUMERIC, x + p, tn_add_scalar(a, n->p))                                                    \
    X(rsub_scalar, NUMERIC, p - x, tn_rsub_scalar(a, n->p))                                                  \
    X(mul_scalar, NUMERIC, x * p, tn_mul_scalar(a, n->p))                                                    \
    X(maximum_scalar, NUMERIC, x > nearest(d, p) ? x : nearest(d, p), tn_maximum_scalar(a, n->p))            \
    X(minimum_scalar, NUMERIC, x < nearest(d, p) ? x : nearest(d, p), tn_minimum_scalar(a, n->p))            \
    X(eq_scalar, TEST, x == p, tn_eq_scalar(a, n->p))                                                        \
    X(lt_scalar, TEST, x < p, tn_lt_scalar(a, n->p))                                                         \
    X(gt_scalar, TEST, x > p, tn_gt_scalar(a, n->p))                                                         \
    X(pow_scalar, OTHER, wrap(d, x * x) * (p == 3 ? x : 1), tn_pow_scalar(a, n->p))                          \
    X(sum, REDUCE, 0, tn_sum(a, 1, &axis, true))                                                             \
    X(prod, REDUCE, 0, tn_prod(a, 1, &axis, true))                                                           \
    X(max, REDUCE, 0, tn_max(a, 1, &axis, true))                                                             \
    X(min, REDUCE, 0, tn_min(a, 1, &axis, true))                                                             \
    X(any, REDUCE, 0, tn_any(a, 1, &axis, true))                                                             \
    X(all, REDUCE, 0, tn_all(a, 1, &axis, true))                                                             \
    X(argmax, REDUCE, 0, tn_argmax(a, axis, true))                                                           \
    X(argmin, REDUCE, 0, tn_argmin(a, axis, true))                                                           \
    X(cumsum, OTHER, 0, tn_cumsum(a, axis))                                                                  \
    X(cast, OTHER, x, tn_cast(a, n->dtype))                                                                  \
    X(by_f64, OTHER, x, tn_cast(tn_cast(a, TN_F64), n->dtype))                                               \
    X(by_f32, OTHER, x, tn_cast(tn_cast(a, TN_F32), TN_I64))                                                 \
    X(transpose, OTHER, 0, tn_transpose(a, 0, 1))                                                            \
    X(reshape, OTHER, 0, tn_reshape(a, TN_SHAPE(n->r, n->c)))                                                \
    X(flip, OTHER, 0, tn_flip(a, 1, &axis))                                                                  \
    X(slice, OTHER, 0, tn_slice(a, 1, 0, TN_END, 2))                                                         \
    X(pad, OTHER, 0, tn_pad(a, 1, 2, 1, n->f[0]))                                                            \
    X(concat, OTHER, 0, tn_concat(2, (tn_tensor *[]){a, b}, 0))                                              \
    X(gather, OTHER, 0, tn_gather(a, 0, index_of(s, n, n->r, n->c)))                                         \
    X(index_select, OTHER, 0, tn_index_select(a, 0, index_of(s, n, n->r, 0)))                                \
    X(scatter_add, OTHER, 0, tn_scatter_add(a, 0, index_of(s, n, src->r, n->c), b))                          \
    X(matmul, OTHER, 0, tn_matmul(a, b))
/* clang-format on */
typedef enum opcode {
#define X(name, ...) OP_##name,
    OPS(X)
#undef X
        N_OPS
} opcode;

/* What operands it takes, and of which dtype the result is: its own; as numbers, so not bool; a truth; of
 * both. */
typedef enum kind { SELF, NUMERIC, TEST, PAIR, PAIR_TEST, REDUCE, OTHER } kind;
static const struct {
    const char *name;
    kind kind;
} Ops[] = {
#define X(name, kind, ...) {#name, kind},
    OPS(X)
#undef X
};

typedef struct node {
    opcode op;
    int in[3];
    tn_dtype dtype;
    int64_t r, c, p; /* p: a number, an axis, a place */
    double f[2];
    int64_t index[MAX_ELEMENTS]; /* of gather and its like: rows of the operand */
    int64_t v[MAX_ELEMENTS];
} node;

typedef struct program {
    uint64_t seed;
    int n;
    node v[MAX_NODES];
    bool read[MAX_NODES]; /* by another */
} program;

/* ---- exact arithmetic ---- */

__extension__ typedef __int128 wide;

static int64_t wrap(tn_dtype d, wide v)
{
    unsigned long long u = (unsigned long long)v;
    return d == TN_BOOL  ? v != 0
           : d == TN_U8  ? (int64_t)(u & 255)
           : d == TN_I32 ? (int32_t)(uint32_t)u
                         : (int64_t)u;
}

static const wide lowest[TN_DTYPE_COUNT] = {[TN_I32] = INT32_MIN, [TN_I64] = INT64_MIN},
                  highest[TN_DTYPE_COUNT] = {
                      [TN_I32] = INT32_MAX, [TN_I64] = INT64_MAX, [TN_U8] = 255, [TN_BOOL] = 1};

static wide nearest(tn_dtype d, wide v)
{
    return v < lowest[d] ? lowest[d] : v > highest[d] ? highest[d] : v;
}

static wide bound(tn_dtype d, double v, bool low)
{
    if (v != v) return low ? lowest[d] : highest[d];
    return v <= -1e30 ? lowest[d] : v >= 1e30 ? highest[d] : nearest(d, (wide)v);
}

static wide fold(opcode op, wide a, wide v)
{
    switch (op) {
    case OP_sum: return wrap(TN_I64, a + v);
    case OP_prod: return wrap(TN_I64, a * v);
    case OP_max: return v > a ? v : a;
    case OP_min: return v < a ? v : a;
    case OP_any: return a || v;
    default: return a && v;
    }
}

static wide clamped(const node *n, tn_dtype d, wide x)
{
    const wide low = bound(d, n->f[0], true), high = bound(d, n->f[1], false), least = x < low ? low : x;
    return least > high ? high : least;
}

/* One element of an elementwise operator. */
static wide element(const node *n, tn_dtype d, wide x, wide y, wide z)
{
    const wide p = n->p;
    switch (n->op) {
#define X(name, kind, element, ...)                                                                          \
    case OP_##name: return element;
        OPS(X)
#undef X
    case N_OPS: break;
    }
    return 0;
}

static int64_t at(const node *n, int64_t i, int64_t j)
{
    return n->v[(n->r == 1 ? 0 : i) * n->c + (n->c == 1 ? 0 : j)];
}

static void work_out(program *p, node *n)
{
    const node *x = &p->v[n->in[0]], *y = &p->v[n->in[1]], *z = &p->v[n->in[2]];
    tn_dtype d = n->dtype; /* of the arithmetic: a comparison's is its operands' */
    bool extreme = n->op == OP_argmax || n->op == OP_argmin;
    int64_t inner = Ops[n->op].kind == REDUCE ? (n->p ? x->c : x->r) : 0;
    for (int64_t i = 0; i < n->r; i++)
        for (int64_t j = 0; j < n->c; j++) {
            wide v;
            switch (n->op) {
            case OP_leaf: continue;
            case OP_full: v = (int64_t)n->f[0]; break;
            case OP_arange: v = (wide)n->f[0] + j * n->p; break;
            case OP_sum:
            case OP_prod:
            case OP_max:
            case OP_min:
            case OP_any:
            case OP_all:
            case OP_argmax:
            case OP_argmin: {
                wide best = 0;
                v = n->op == OP_prod;
                for (int64_t k = 0; k < inner; k++) {
                    wide e = n->p ? x->v[i * x->c + k] : x->v[k * x->c + j];
                    if (extreme) {
                        if (k == 0 || (n->op == OP_argmax ? e > best : e < best)) best = e, v = k;
                    } else
                        v = k == 0 && n->op != OP_sum && n->op != OP_prod ? (n->op >= OP_any ? e != 0 : e)
                                                                          : fold(n->op, v, e);
                }
                break;
            }
            case OP_cumsum:
                v = 0;
                for (int64_t k = 0; k <= (n->p ? j : i); k++)
                    v += n->p ? x->v[i * x->c + k] : x->v[k * x->c + j];
                break;
            case OP_transpose: v = x->v[j * x->c + i]; break;
            case OP_reshape: v = x->v[i * n->c + j]; break;
            case OP_flip: v = n->p ? x->v[i * x->c + n->c - 1 - j] : x->v[(n->r - 1 - i) * x->c + j]; break;
            case OP_slice: v = x->v[i * x->c + 2 * j]; break;
            case OP_pad: v = j < 2 || j >= x->c + 2 ? (int64_t)n->f[0] : x->v[i * x->c + j - 2]; break;
            case OP_concat: v = i < x->r ? x->v[i * x->c + j] : y->v[(i - x->r) * x->c + j]; break;
            case OP_gather: v = x->v[n->index[i * n->c + j] * x->c + j]; break;
            case OP_index_select: v = x->v[n->index[i] * x->c + j]; break;
            case OP_scatter_add:
                v = x->v[i * x->c + j];
                for (int64_t k = 0; k < y->r; k++)
                    if (n->index[k * n->c + j] == i) v += y->v[k * n->c + j];
                break;
            case OP_matmul:
                v = 0;
                for (int64_t k = 0; k < x->c; k++)
                    v = wrap(TN_I64, v + (wide)x->v[i * x->c + k] * y->v[k * n->c + j]);
                break;
            default: v = element(n, d, at(x, i, j), at(y, i, j), at(z, i, j));
            }
            n->v[i * n->c + j] = wrap(n->dtype, v);
        }
}

/* ---- drawing ---- */

static const tn_dtype types[] = {TN_BOOL, TN_U8, TN_I32,
                                 TN_I64}; /* each holds all of the ones before, but signs */

static int rank_of(tn_dtype d) { return d == TN_BOOL ? 0 : d == TN_U8 ? 1 : d == TN_I32 ? 2 : 3; }

static int64_t hard(rng *r)
{
    /* clang-format off */
    static const int64_t v[] = {
        0, 1, -1, 2, -3, 128, 255, 256, -255, 46341, (1 << 24) + 1, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX,
        INT64_MIN + 1, INT64_C(1) << 53, (INT64_C(1) << 53) + 1, -(INT64_C(1) << 53) - 1, INT64_C(1) << 31,
        INT64_C(1) << 32, INT64_C(1) << 62, INT64_C(3037000500)};
    /* clang-format on */
    return rng_below(r, 4) ? v[rng_below(r, (int64_t)(sizeof v / sizeof *v))] : (int64_t)rng_next(r);
}

static int64_t extent(rng *r) { return (const int64_t[]){1, 3, 8, 8}[rng_below(r, 4)]; }

static void draw_leaf(rng *r, node *n)
{
    n->r = extent(r), n->c = extent(r);
    for (int64_t i = 0; i < n->r * n->c; i++) n->v[i] = wrap(n->dtype, hard(r));
}

static bool like(const node *x, const node *y)
{
    return (x->r == y->r || x->r == 1 || y->r == 1) && (x->c == y->c || x->c == 1 || y->c == 1);
}

static void spread(node *n, const node *y)
{
    if (n->r == 1) n->r = y->r;
    if (n->c == 1) n->c = y->c;
}

/* A later node more often than not. */
static int pick(const program *p, rng *r)
{
    int a = (int)rng_below(r, p->n), b = (int)rng_below(r, p->n);
    return a > b ? a : b;
}

static double some_bound(rng *r)
{
    static const double v[] = {-INFINITY, INFINITY, NAN, -1e19, 1e19,   1e10,   -1e10,
                               0,         1,        -5,  300,   0x1p31, 0x1p53, -0x1p63};
    return v[rng_below(r, (int64_t)(sizeof v / sizeof *v))];
}

/* What the operator is applied to, and what comes out; false: it does not suit these operands. */
static bool draw_node(program *p, rng *r, node *n)
{
    const node *x = &p->v[n->in[0] = pick(p, r)], *y = &p->v[n->in[1] = pick(p, r)],
               *z = &p->v[n->in[2] = pick(p, r)];
    tn_dtype both = rank_of(x->dtype) > rank_of(y->dtype) ? x->dtype : y->dtype,
             number = x->dtype == TN_BOOL ? TN_I64 : x->dtype;
    n->r = x->r, n->c = x->c, n->dtype = x->dtype, n->p = hard(r);
    switch (Ops[n->op].kind) {
    case SELF: return true;
    case NUMERIC: n->dtype = number; return true;
    case TEST: n->dtype = TN_BOOL; return true;
    case PAIR:
        n->dtype = both == TN_BOOL && n->op == OP_sub ? TN_I64 : both;
        spread(n, y);
        return like(x, y);
    case PAIR_TEST:
        n->dtype = TN_BOOL;
        spread(n, y);
        return like(x, y);
    case REDUCE:
        n->p = rng_below(r, 2);
        *(n->p ? &n->c : &n->r) = 1;
        if (n->op == OP_any || n->op == OP_all)
            n->dtype = TN_BOOL;
        else if (n->op != OP_max && n->op != OP_min)
            n->dtype = TN_I64;
        return true;
    case OTHER: break;
    }
    switch (n->op) {
    case OP_leaf:
        n->dtype = types[rng_below(r, 4)];
        draw_leaf(r, n);
        return true;
    case OP_full:
        n->f[0] = n->dtype == TN_U8 ? 200 : n->dtype == TN_I64 ? -0x1p63 : n->dtype == TN_I32 ? INT32_MIN : 1;
        return true;
    case OP_arange:
        n->dtype = rng_below(r, 2) ? TN_I32 : TN_I64;
        n->r = 1, n->c = 8, n->p = rng_below(r, 2) ? 3 : -7;
        n->f[0] = (double)rng_below(r, 1000);
        return true;
    case OP_pow_scalar:
        n->dtype = number;
        n->p = 2 + rng_below(r, 2);
        return x->dtype != TN_BOOL;
    case OP_clamp:
        n->dtype = number;
        n->f[0] = some_bound(r), n->f[1] = some_bound(r);
        return true;
    case OP_where:
        n->dtype = rank_of(y->dtype) > rank_of(z->dtype) ? y->dtype : z->dtype;
        if (x->dtype != TN_BOOL || !like(x, y)) return false;
        spread(n, y);
        if (!like(n, z)) return false;
        spread(n, z);
        return true;
    case OP_cumsum:
        n->p = rng_below(r, 2);
        n->dtype = TN_I64;
        return true;
    case OP_cast: n->dtype = types[rng_below(r, 4)]; return true;
    case OP_by_f64: return x->dtype != TN_I64;
    case OP_by_f32: /* which is exact that far; the reference rounds nothing */
        n->dtype = TN_I64;
        for (int64_t i = 0; i < x->r * x->c; i++)
            if (x->v[i] > 1 << 24 || x->v[i] < -(1 << 24)) return false;
        return true;
    case OP_transpose:
    case OP_reshape: n->r = x->c, n->c = x->r; return true;
    case OP_flip: n->p = rng_below(r, 2); return true;
    case OP_slice: n->c = (x->c + 1) / 2; return true;
    case OP_pad:
        n->c = x->c + 3;
        n->f[0] = n->dtype == TN_BOOL  ? 1
                  : n->dtype == TN_U8  ? 255
                  : n->dtype == TN_I32 ? INT32_MIN
                                       : -0x1p63;
        return n->c <= 16;
    case OP_concat:
        n->r = x->r + y->r;
        n->dtype = both;
        return x->c == y->c && n->r <= 16;
    case OP_gather:
    case OP_index_select:
        n->r = extent(r);
        for (int i = 0; i < MAX_ELEMENTS; i++) n->index[i] = rng_below(r, x->r);
        return true;
    case OP_scatter_add:
        for (int i = 0; i < MAX_ELEMENTS; i++) n->index[i] = rng_below(r, x->r);
        return x->c == y->c && x->dtype == y->dtype && x->dtype != TN_BOOL;
    case OP_matmul:
        n->dtype = both;
        n->c = y->c;
        return x->c == y->r && x->dtype != TN_BOOL && y->dtype != TN_BOOL;
    default: return false;
    }
}

static void draw_program(program *p, uint64_t seed)
{
    rng r = {seed};
    memset(p, 0, sizeof *p);
    p->seed = seed;
    for (; p->n < 4; p->n++) {
        p->v[p->n] = (node){.op = OP_leaf, .dtype = types[p->n]};
        draw_leaf(&r, &p->v[p->n]);
    }
    int nodes = 12 + (int)rng_below(&r, MAX_NODES - 16);
    for (int tries = 0; tries < 1000 && p->n < nodes; tries++) {
        node *n = &p->v[p->n];
        n->op = (opcode)rng_below(&r, N_OPS);
        if (!draw_node(p, &r, n)) continue;
        work_out(p, n);
        if (n->op > OP_arange)
            for (int k = 0; k < 3; k++) p->read[n->in[k]] = true;
        p->n++;
    }
}

/* ---- running ---- */

static tn_tensor *index_of(tn_session *s, const node *n, int64_t rows, int64_t columns)
{
    return columns ? tn_from(s, n->index, TN_I64, TN_SHAPE(rows, columns))
                   : tn_from(s, n->index, TN_I64, TN_SHAPE(rows));
}

static tn_tensor *leaf_of(tn_session *s, const node *n)
{
    unsigned char raw[8 * MAX_ELEMENTS];
    tn_convert(raw, n->dtype, n->v, TN_I64, (size_t)(n->r * n->c));
    return tn_from(s, raw, n->dtype, TN_SHAPE(n->r, n->c));
}

static tn_tensor *range_of(tn_session *s, const node *n)
{
    tn_tensor *t = tn_arange(s, n->f[0], n->f[0] + 8 * (double)n->p, (double)n->p, n->dtype);
    return tn_reshape(t, TN_SHAPE(1, 8));
}

static tn_tensor *record(tn_session *s, const program *p, const node *n, tn_tensor **v)
{
    tn_tensor *a = v[n->in[0]], *b = v[n->in[1]], *c = v[n->in[2]];
    const node *src = &p->v[n->in[1]];
    const int axis = (int)n->p;
    switch (n->op) {
#define X(name, kind, element, recorded)                                                                     \
    case OP_##name: return recorded;
        OPS(X)
#undef X
    case N_OPS: break;
    }
    return NULL;
}

static void print(const program *p, int last)
{
    for (int i = 0; i <= last; i++) {
        const node *n = &p->v[i];
        print_message("  v%d = %s(v%d, v%d, v%d) %s [%d, %d]  %lld, %g, %g\n", i, Ops[n->op].name, n->in[0],
                      n->in[1], n->in[2], tn_dtype_name(n->dtype), (int)n->r, (int)n->c, (long long)n->p,
                      n->f[0], n->f[1]);
    }
}

static void check_node(tn_session *s, const program *p, int i, tn_tensor *t, const char *road)
{
    const node *n = &p->v[i];
    int64_t got[MAX_ELEMENTS], count = n->r * n->c;
    int status = t ? tn_read(t, TN_I64, got, (size_t)count * sizeof *got) : TN_E_NULL;
    if (status) {
        print(p, p->n - 1);
        fail_msg("seed %llu, %s, v%d = %s: %s", (unsigned long long)p->seed, road, i, Ops[n->op].name,
                 tn_error_text(s));
    }
    if (tn_dtype_of(t) != n->dtype || tn_dim(t, 0) != n->r || tn_dim(t, 1) != n->c) {
        print(p, p->n - 1);
        fail_msg("seed %llu, %s, v%d = %s: %s [%d, %d]", (unsigned long long)p->seed, road, i,
                 Ops[n->op].name, tn_dtype_name(tn_dtype_of(t)), (int)tn_dim(t, 0), (int)tn_dim(t, 1));
    }
    for (int64_t k = 0; k < count; k++) {
        if (got[k] == n->v[k]) continue;
        print(p, p->n - 1);
        fail_msg("seed %llu, %s, v%d = %s, element %d: %lld is right, got %lld", (unsigned long long)p->seed,
                 road, i, Ops[n->op].name, (int)k, (long long)n->v[k], (long long)got[k]);
    }
}

static void run(tn_session *s, const program *p, int n, bool every, const char *road)
{
    static tn_tensor *v[BATCH][MAX_NODES];
    tn_step_begin(s);
    for (int b = 0; b < n; b++)
        for (int i = 0; i < p[b].n; i++) v[b][i] = record(s, &p[b], &p[b].v[i], v[b]);
    for (int b = 0; b < n; b++)
        for (int i = 0; i < p[b].n; i++)
            if (every || !p[b].read[i]) check_node(s, &p[b], i, v[b][i], road);
    tn_step_end(s);
    if (tn_error(s)) fail_msg("%s: %s", road, tn_error_text(s));
}

static int programs = 40;
static uint64_t first_seed = 1;

static void check_road(const char *road, tn_device_kind device, tn_mode mode, int count, bool every)
{
    static program p[BATCH];
    tn_session *s = tn_open(.device = device, .mode = mode, .log = quiet);
    assert_non_null(s);
    for (int done = 0; done < count; done += BATCH) {
        int n = count - done < BATCH ? count - done : BATCH;
        for (int i = 0; i < n; i++) draw_program(&p[i], first_seed + (uint64_t)(done + i));
        run(s, p, n, every, road);
    }
    assert_int_equal(tn_close(s), TN_OK);
}

TEST(interpreted) { check_road("the reference", TN_REF, TN_EAGER, 10 * programs, true); }

TEST(without_a_compiler)
{
    setenv("TENSOR_CC", "none", 1);
    check_road("without a compiler", TN_CPU, TN_FUSED, 5 * programs, true);
    unsetenv("TENSOR_CC");
}

TEST(fused) { check_road("fused", subject_device(), TN_FUSED, programs, false); }

TEST(eager) { check_road("eager", subject_device(), TN_EAGER, programs / 8, true); }

int main(int argc, char **argv)
{
    OPTION(programs, "programs");
    OPTION(first_seed, "seed");
    return run_all_tests(NULL, NULL);
}
