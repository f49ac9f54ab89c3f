/* test_integers.c - random programs of integers and bool, of the hardest values there are, against exact
 * arithmetic written down here: fused, operator by operator, without a compiler, and by the reference
 * interpreter.
 *
 *     test_integers [--programs N] [--seed S]
 *
 *   node      one operator, its operands (earlier nodes) and numbers, and what it is: two axes, a dtype, the
 * values program   a few leaves and some twenty nodes; what no node reads is compared
 *
 * Read first: the list of operators, then work_out, which is the answer.
 */
#include "check.h"

enum { MAX_NODES = 48, MAX_ELEMENTS = 256, BATCH = 10 };

#define OPS(X)                                                                                               \
    X(leaf)                                                                                                  \
    X(full)                                                                                                  \
    X(arange)                                                                                                \
    X(neg)                                                                                                   \
    X(abs) X(square) X(relu) X(sign) X(logical_not) X(add) X(sub) X(mul) X(maximum) X(minimum) X(eq) X(ne)   \
        X(lt) X(le) X(gt) X(ge) X(logical_and) X(logical_or) X(logical_xor) X(where) X(clamp) X(add_scalar)  \
            X(rsub_scalar) X(mul_scalar) X(maximum_scalar) X(minimum_scalar) X(eq_scalar) X(lt_scalar)       \
                X(gt_scalar) X(pow_scalar) X(sum) X(prod) X(max) X(min) X(any) X(all) X(argmax) X(argmin)    \
                    X(cumsum) X(cast) X(by_f64) X(by_f32) X(transpose) X(reshape) X(flip) X(slice) X(pad)    \
                        X(concat) X(gather) X(index_select) X(scatter_add) X(matmul)
typedef enum opcode {
#define X(name) OP_##name,
    OPS(X)
#undef X
        N_OPS
} opcode;
static const char *const op_name[] = {
#define X(name) #name,
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
    case OP_sum:
        return wrap(TN_I64, a + v);
    case OP_prod:
        return wrap(TN_I64, a * v);
    case OP_max:
        return v > a ? v : a;
    case OP_min:
        return v < a ? v : a;
    case OP_any:
        return a || v;
    default:
        return a && v;
    }
}

/* One element of an elementwise operator. */
static wide element(const node *n, tn_dtype d, wide x, wide y, wide z)
{
    wide p = n->p;
    switch (n->op) {
    case OP_neg:
        return -x;
    case OP_abs:
        return x < 0 ? -x : x;
    case OP_square:
        return x * x;
    case OP_relu:
        return x < 0 ? 0 : x;
    case OP_sign:
        return (x > 0) - (x < 0);
    case OP_logical_not:
        return !x;
    case OP_add:
        return x + y;
    case OP_sub:
        return x - y;
    case OP_mul:
        return x * y;
    case OP_maximum:
        return x > y ? x : y;
    case OP_minimum:
        return x < y ? x : y;
    case OP_eq:
        return x == y;
    case OP_ne:
        return x != y;
    case OP_lt:
        return x < y;
    case OP_le:
        return x <= y;
    case OP_gt:
        return x > y;
    case OP_ge:
        return x >= y;
    case OP_logical_and:
        return x && y;
    case OP_logical_or:
        return x || y;
    case OP_logical_xor:
        return !x != !y;
    case OP_where:
        return x ? y : z;
    case OP_clamp: {
        wide low = bound(d, n->f[0], true), high = bound(d, n->f[1], false), least = x < low ? low : x;
        return least > high ? high : least;
    }
    case OP_add_scalar:
        return x + p;
    case OP_rsub_scalar:
        return p - x;
    case OP_mul_scalar:
        return x * p;
    case OP_maximum_scalar:
        p = nearest(d, p);
        return x > p ? x : p;
    case OP_minimum_scalar:
        p = nearest(d, p);
        return x < p ? x : p;
    case OP_eq_scalar:
        return x == p;
    case OP_lt_scalar:
        return x < p;
    case OP_gt_scalar:
        return x > p;
    case OP_pow_scalar:
        return wrap(d, x * x) * (p == 3 ? x : 1);
    default: /* casts */
        return x;
    }
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
    int64_t inner = n->op >= OP_sum && n->op <= OP_argmin ? (n->p ? x->c : x->r) : 0;
    for (int64_t i = 0; i < n->r; i++)
        for (int64_t j = 0; j < n->c; j++) {
            wide v;
            switch (n->op) {
            case OP_leaf:
                continue;
            case OP_full:
                v = (int64_t)n->f[0];
                break;
            case OP_arange:
                v = (wide)n->f[0] + j * n->p;
                break;
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
            case OP_transpose:
                v = x->v[j * x->c + i];
                break;
            case OP_reshape:
                v = x->v[i * n->c + j];
                break;
            case OP_flip:
                v = n->p ? x->v[i * x->c + n->c - 1 - j] : x->v[(n->r - 1 - i) * x->c + j];
                break;
            case OP_slice:
                v = x->v[i * x->c + 2 * j];
                break;
            case OP_pad:
                v = j < 2 || j >= x->c + 2 ? (int64_t)n->f[0] : x->v[i * x->c + j - 2];
                break;
            case OP_concat:
                v = i < x->r ? x->v[i * x->c + j] : y->v[(i - x->r) * x->c + j];
                break;
            case OP_gather:
                v = x->v[n->index[i * n->c + j] * x->c + j];
                break;
            case OP_index_select:
                v = x->v[n->index[i] * x->c + j];
                break;
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
            default:
                if (n->op >= OP_maximum_scalar && n->op <= OP_minimum_scalar) d = n->dtype;
                v = element(n, d, at(x, i, j), at(y, i, j), at(z, i, j));
            }
            n->v[i * n->c + j] = wrap(n->dtype, v);
        }
}

/* ---- drawing ---- */

static const tn_dtype types[] = {TN_BOOL, TN_U8, TN_I32,
                                 TN_I64}; /* each holds all of the ones before, but signs */

static int rank_of(tn_dtype d)
{
    return d == TN_BOOL ? 0 : d == TN_U8 ? 1 : d == TN_I32 ? 2 : 3;
}

static int64_t hard(rng *r)
{
    static const int64_t v[] = {0,
                                1,
                                -1,
                                2,
                                -3,
                                INT64_MIN,
                                INT64_MAX,
                                255,
                                256,
                                -255,
                                128,
                                INT32_MAX,
                                INT32_MIN,
                                INT64_MIN + 1,
                                INT64_C(1) << 53,
                                (INT64_C(1) << 53) + 1,
                                -(INT64_C(1) << 53) - 1,
                                INT64_C(1) << 32,
                                (INT64_C(1) << 31),
                                (1 << 24) + 1,
                                46341,
                                INT64_C(3037000500),
                                INT64_C(1) << 62};
    return rng_below(r, 4) ? v[rng_below(r, (int64_t)(sizeof v / sizeof *v))] : (int64_t)rng_next(r);
}

static int64_t extent(rng *r)
{
    return (const int64_t[]){1, 3, 8, 8}[rng_below(r, 4)];
}

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
    case OP_neg:
    case OP_abs:
    case OP_square:
    case OP_relu:
    case OP_add_scalar:
    case OP_rsub_scalar:
    case OP_mul_scalar:
    case OP_maximum_scalar:
    case OP_minimum_scalar:
        n->dtype = number;
        return true;
    case OP_pow_scalar:
        n->dtype = number;
        n->p = 2 + rng_below(r, 2);
        return x->dtype != TN_BOOL;
    case OP_sign:
        return true;
    case OP_logical_not:
    case OP_eq_scalar:
    case OP_lt_scalar:
    case OP_gt_scalar:
        n->dtype = TN_BOOL;
        return true;
    case OP_clamp:
        n->dtype = number;
        n->f[0] = some_bound(r), n->f[1] = some_bound(r);
        return true;
    case OP_add:
    case OP_sub:
    case OP_mul:
    case OP_maximum:
    case OP_minimum:
        n->dtype = both == TN_BOOL && n->op == OP_sub ? TN_I64 : both;
        spread(n, y);
        return like(x, y);
    case OP_eq:
    case OP_ne:
    case OP_lt:
    case OP_le:
    case OP_gt:
    case OP_ge:
    case OP_logical_and:
    case OP_logical_or:
    case OP_logical_xor:
        n->dtype = TN_BOOL;
        spread(n, y);
        return like(x, y);
    case OP_where:
        n->dtype = rank_of(y->dtype) > rank_of(z->dtype) ? y->dtype : z->dtype;
        if (x->dtype != TN_BOOL || !like(x, y)) return false;
        spread(n, y);
        if (!like(n, z)) return false;
        spread(n, z);
        return true;
    case OP_sum:
    case OP_prod:
    case OP_max:
    case OP_min:
    case OP_any:
    case OP_all:
    case OP_argmax:
    case OP_argmin:
        n->p = rng_below(r, 2);
        *(n->p ? &n->c : &n->r) = 1;
        if (n->op == OP_any || n->op == OP_all)
            n->dtype = TN_BOOL;
        else if (n->op != OP_max && n->op != OP_min)
            n->dtype = TN_I64;
        return true;
    case OP_cumsum:
        n->p = rng_below(r, 2);
        n->dtype = TN_I64;
        return true;
    case OP_cast:
        n->dtype = types[rng_below(r, 4)];
        return true;
    case OP_by_f64:
        return x->dtype != TN_I64;
    case OP_by_f32: /* which is exact that far; the reference rounds nothing */
        n->dtype = TN_I64;
        for (int64_t i = 0; i < x->r * x->c; i++)
            if (x->v[i] > 1 << 24 || x->v[i] < -(1 << 24)) return false;
        return true;
    case OP_transpose:
    case OP_reshape:
        n->r = x->c, n->c = x->r;
        return true;
    case OP_flip:
        n->p = rng_below(r, 2);
        return true;
    case OP_slice:
        n->c = (x->c + 1) / 2;
        return true;
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
    case N_OPS:
        break;
    }
    return false;
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

static tn_tensor *record(tn_session *s, const program *p, const node *n, tn_tensor **v)
{
    tn_tensor *x = v[n->in[0]], *y = v[n->in[1]], *z = v[n->in[2]];
    const node *src = &p->v[n->in[1]];
    unsigned char raw[8 * MAX_ELEMENTS];
    int axis = (int)n->p;
    switch (n->op) {
    case OP_leaf:
        tn_convert(raw, n->dtype, n->v, TN_I64, (size_t)(n->r * n->c));
        return tn_from(s, raw, n->dtype, TN_SHAPE(n->r, n->c));
    case OP_full:
        return tn_full(s, n->f[0], n->dtype, TN_SHAPE(n->r, n->c));
    case OP_arange:
        return tn_reshape(tn_arange(s, n->f[0], n->f[0] + 8 * (double)n->p, (double)n->p, n->dtype),
                          TN_SHAPE(1, 8));
#define ONE(name)                                                                                            \
    case OP_##name:                                                                                          \
        return tn_##name(x);
        ONE(neg)
        ONE(abs)
        ONE(square)
        ONE(relu)
        ONE(sign) ONE(logical_not)
#define TWO(name)                                                                                            \
    case OP_##name:                                                                                          \
        return tn_##name(x, y);
            TWO(add) TWO(sub) TWO(mul) TWO(maximum) TWO(minimum) TWO(eq) TWO(ne) TWO(lt) TWO(le) TWO(gt)
                TWO(ge) TWO(logical_and) TWO(logical_or) TWO(logical_xor) TWO(matmul)
#define NUMBER(name)                                                                                         \
    case OP_##name:                                                                                          \
        return tn_##name(x, n->p);
                    NUMBER(add_scalar) NUMBER(rsub_scalar) NUMBER(mul_scalar) NUMBER(maximum_scalar)
                        NUMBER(minimum_scalar) NUMBER(eq_scalar) NUMBER(lt_scalar) NUMBER(gt_scalar)
                            NUMBER(pow_scalar)
#define REDUCE(name)                                                                                         \
    case OP_##name:                                                                                          \
        return tn_##name(x, 1, &axis, true);
                                REDUCE(sum) REDUCE(prod) REDUCE(max) REDUCE(min) REDUCE(any)
                                    REDUCE(all) case OP_where : return tn_where(x, y, z);
    case OP_clamp:
        return tn_clamp(x, n->f[0], n->f[1]);
    case OP_argmax:
        return tn_argmax(x, axis, true);
    case OP_argmin:
        return tn_argmin(x, axis, true);
    case OP_cumsum:
        return tn_cumsum(x, axis);
    case OP_cast:
        return tn_cast(x, n->dtype);
    case OP_by_f64:
        return tn_cast(tn_cast(x, TN_F64), n->dtype);
    case OP_by_f32:
        return tn_cast(tn_cast(x, TN_F32), TN_I64);
    case OP_transpose:
        return tn_transpose(x, 0, 1);
    case OP_reshape:
        return tn_reshape(x, TN_SHAPE(n->r, n->c));
    case OP_flip:
        return tn_flip(x, 1, &axis);
    case OP_slice:
        return tn_slice(x, 1, 0, TN_END, 2);
    case OP_pad:
        return tn_pad(x, 1, 2, 1, n->f[0]);
    case OP_concat:
        return tn_concat(2, (tn_tensor *[]){x, y}, 0);
    case OP_gather:
        return tn_gather(x, 0, index_of(s, n, n->r, n->c));
    case OP_index_select:
        return tn_index_select(x, 0, index_of(s, n, n->r, 0));
    case OP_scatter_add:
        return tn_scatter_add(x, 0, index_of(s, n, src->r, n->c), y);
    case N_OPS:
        break;
    }
    return NULL;
}

static void print(const program *p, int last)
{
    for (int i = 0; i <= last; i++) {
        const node *n = &p->v[i];
        print_message("  v%d = %s(v%d, v%d, v%d) %s [%d, %d]  %lld, %g, %g\n", i, op_name[n->op], n->in[0],
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
        fail_msg("seed %llu, %s, v%d = %s: %s", (unsigned long long)p->seed, road, i, op_name[n->op],
                 tn_error_text(s));
    }
    if (tn_dtype_of(t) != n->dtype || tn_dim(t, 0) != n->r || tn_dim(t, 1) != n->c) {
        print(p, p->n - 1);
        fail_msg("seed %llu, %s, v%d = %s: %s [%d, %d]", (unsigned long long)p->seed, road, i, op_name[n->op],
                 tn_dtype_name(tn_dtype_of(t)), (int)tn_dim(t, 0), (int)tn_dim(t, 1));
    }
    for (int64_t k = 0; k < count; k++) {
        if (got[k] == n->v[k]) continue;
        print(p, p->n - 1);
        fail_msg("seed %llu, %s, v%d = %s, element %d: %lld is right, got %lld", (unsigned long long)p->seed,
                 road, i, op_name[n->op], (int)k, (long long)n->v[k], (long long)got[k]);
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

static void interpreted(void **state)
{
    (void)state;
    check_road("the reference", TN_REF, TN_EAGER, 10 * programs, true);
}

static void without_a_compiler(void **state)
{
    (void)state;
    setenv("TENSOR_CC", "none", 1);
    check_road("without a compiler", TN_CPU, TN_FUSED, 5 * programs, true);
    unsetenv("TENSOR_CC");
}

static void fused(void **state)
{
    (void)state;
    check_road("fused", subject_device(), TN_FUSED, programs, false);
}

static void eager(void **state)
{
    (void)state;
    check_road("eager", subject_device(), TN_EAGER, programs / 8, true);
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--programs")) programs = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--seed")) first_seed = strtoull(argv[i + 1], NULL, 10);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interpreted),
        cmocka_unit_test(without_a_compiler),
        cmocka_unit_test(fused),
        cmocka_unit_test(eager),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
