/* noise.c - rounding as chance: results moved within the precision of their dtype.
 *
 * What its dtype can hold exactly stays, and so does what an op only copies or chooses: zeros, small integers
 * and ties are not blurred. Sums are moved at their summands, because a sum's rounding error goes with the
 * summands' size, not with the result's. A comparison of two values that rounding could make equal or swap
 * comes out true under even seeds and false under odd ones, so that two runs are sure to show that it is
 * open. Under seed 0 results are not moved but rounded: where they saturate (erf far out is 1 and no longer
 * nearly 1) what follows may meet ties that no value moved by chance does. Read first: tn_ref_noise_result.
 */
#include "internal.h"

#include <math.h>

/* Of a node that another device has computed here there is no noise. */
static const tn_ref_device *device_of(const tn_tensor *node)
{
    static const tn_ref_device quiet = {.noise = 0};
    const tn_device *d = node->graph->device;
    return d->is_reference ? (const tn_ref_device *)(const void *)d : &quiet;
}

/* In [-1, -1/2] or [1/2, 1], from a mix of the seed and where the element stands (splitmix64's finalizer).
 * Never near 0: where one rounding matters alone, every run is to show it. */
static double chance(uint64_t seed, uint64_t node, uint64_t operand, uint64_t i)
{
    uint64_t x =
        seed * 0x9E3779B97F4A7C15u + (node * 8 + operand + 1) * 0xD1B54A32D192ED03u + i * 0x8CB92BA72F3D8DD7u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    double size = 0.5 + 0.5 * (double)(x >> 11) * 0x1p-53;
    return x & 1 ? size : -size;
}

/* A unit in the last place of a value in [1, 2). f64 gets more room: the oracle itself rounds there. */
static double ulp(tn_dtype d)
{
    static const double unit[TN_DTYPE_COUNT] = {
        [TN_F32] = 0x1p-23, [TN_F16] = 0x1p-10, [TN_BF16] = 0x1p-7, [TN_F64] = 0x1p-49};
    return unit[d];
}

static double nearest(tn_dtype d, double v)
{
    float f = (float)v;
    return d == TN_F16    ? tn_f16_to_f32(tn_f32_to_f16(f))
           : d == TN_BF16 ? tn_bf16_to_f32(tn_f32_to_bf16(f))
                          : f;
}

static bool exact(tn_dtype d, double v)
{
    if (!isfinite(v)) return true;
    return v == nearest(d, v); /* of f64 that a float holds too: the oracle itself rounds elsewhere */
}

bool tn_ref_noise_adds(const tn_tensor *node)
{
    if (device_of(node)->noise <= 0) return false;
    if (tn_kind_of(node) == TN_KIND_REDUCE)
        return node->op == TN_OP_reduce_sum || node->op == TN_OP_reduce_prod;
    if (tn_kind_of(node) == TN_KIND_WINDOW)
        return node->op == TN_OP_pool_sum || node->op == TN_OP_pool_spread || node->op == TN_OP_pool_put;
    return tn_kind_traits(tn_kind_of(node)) & TN_KIND_ADDS;
}

/* Returns true where the op only moves its operands' values, chooses among them or changes their sign:
 * nothing is rounded, and two ways to the same value stay equal. */
static bool chooses(tn_op op)
{
    switch ((int)op) {
    case TN_OP_neg:
    case TN_OP_abs:
    case TN_OP_relu:
    case TN_OP_floor:
    case TN_OP_ceil:
    case TN_OP_round:
    case TN_OP_trunc:
    case TN_OP_sign:
    case TN_OP_maximum:
    case TN_OP_minimum:
    case TN_OP_where:
    case TN_OP_reduce_max:
    case TN_OP_reduce_min: return true;
    case TN_OP_pool_sum: return false;
    default: /* a scatter's summands were moved, and most of it is zeros and single summands */
        return tn_kind_traits(tn_op_get(op)->kind) & TN_KIND_MOVES;
    }
}

/* About how many summands one element of a sum has. */
static double summands(const tn_tensor *node)
{
    const tn_tensor *x = node->in[0], *y = node->n_in > 1 ? node->in[1] : x;
    int64_t n = tn_node_numel(x), of = tn_node_numel(node);
    if (node->op == TN_OP_matmul) return (double)x->shape[x->ndim - 1];
    if (tn_kind_of(node) == TN_KIND_SCAN) return (double)x->shape[node->attr->axis];
    if (node->op == TN_OP_conv2d) n = tn_node_numel(y), of = y->shape[0];
    if (node->op == TN_OP_conv2d_data_grad) n = tn_node_numel(y), of = y->shape[3];
    if (node->op == TN_OP_conv2d_weight_grad) n = tn_node_numel(y), of = y->shape[3];
    if (tn_kind_of(node) == TN_KIND_ATTENTION) return (double)y->shape[y->ndim - 2];
    if (node->op == TN_OP_pool_sum) return (double)(node->attr->pool.window[0] * node->attr->pool.window[1]);
    return of > 0 ? (double)n / (double)of : 1;
}

/* Sums of f16 and bf16 are carried in f32. A partial sum is rounded at its own size, which grows with the
 * number of summands: long sums are moved more. */
void tn_ref_noise_operand(const tn_tensor *node, int operand, double *v, int64_t n)
{
    const tn_ref_device *d = device_of(node);
    tn_dtype dtype = node->in[operand]->dtype;
    double size = d->noise * ulp(tn_dtype_accumulator(dtype)) * (1 + sqrt(summands(node)) / 8);
    if (!tn_dtype_is_float(dtype)) return;
    for (int64_t i = 0; i < n; i++) {
        if (isinf(v[i])) continue; /* of a mask that is added */
        v[i] += v[i] * size * chance(d->noise_seed, node->id, (uint64_t)operand + 1, (uint64_t)i);
    }
}

enum { FIRST_BETWEEN = 16 }; /* numbers of intermediate values stand behind those of operands */

double tn_ref_noise_between(const tn_tensor *node, int which, int64_t i, double v)
{
    const tn_ref_device *d = device_of(node);
    tn_dtype dtype = node->in[0]->dtype;
    if (d->noise <= 0 || exact(dtype, v)) return v;
    return v + v * d->noise * ulp(dtype) *
                   chance(d->noise_seed, node->id, FIRST_BETWEEN + (uint64_t)which, (uint64_t)i);
}

/* Rounding at this op: not where the value is one of the operands' (x + 0, x * 1), or a cast loses nothing.
 */
static bool rounded(const tn_ref_args *a, int64_t i)
{
    const tn_tensor *node = a->node;
    if (exact(node->dtype, a->out[i])) return false;
    tn_kind kind = tn_kind_of(node);
    if (kind == TN_KIND_CAST) return ulp(node->dtype) > ulp(node->in[0]->dtype);
    if (kind != TN_KIND_ELTWISE) return true;
    for (int k = 0; k < node->n_in; k++)
        if (a->in[k][i] == a->out[i]) return false;
    return true;
}

enum { CLOSE = 16 }; /* units in the last place, over which rounding may have gone wrong before a decision */

/* Of an elementwise op: a comparison of x and y, or a step at x, whose outcome rounding could change. Numbers
 * that the dtype holds exactly are taken for what every device has. */
static bool open_question(const tn_ref_args *a, int64_t i, double size)
{
    double x = a->in[0][i], y;
    tn_dtype dtype = a->node->in[0]->dtype;
    switch ((int)a->node->op) {
    case TN_OP_eq:
    case TN_OP_ne:
    case TN_OP_lt:
    case TN_OP_le:
    case TN_OP_gt:
    case TN_OP_ge:
        y = a->in[1][i];
        if (exact(dtype, x) && exact(dtype, y)) return false;
        return x != y && fabs(x - y) <= CLOSE * size * fmax(fabs(x), fabs(y));
    case TN_OP_floor:
    case TN_OP_ceil:
    case TN_OP_trunc:
        y = nearbyint(x);
        return !exact(dtype, x) && fabs(x - y) <= CLOSE * size * fmax(fabs(x), 1);
    case TN_OP_round:
        y = floor(x) + 0.5;
        return !exact(dtype, x) && fabs(x - y) <= CLOSE * size * fmax(fabs(x), 1);
    default: return false;
    }
}

/* The outcome on either side of the open question. */
static double settled(tn_op op, double x, bool up)
{
    double near = nearbyint(x);
    if (op == TN_OP_round) return up ? ceil(x) : floor(x);
    if (op == TN_OP_floor) return up ? near : near - 1;
    if (op == TN_OP_ceil) return up ? near + 1 : near;
    if (op == TN_OP_trunc) return up ? near : near - copysign(1, x);
    return up;
}

static void settle_questions(const tn_ref_args *a, int64_t n, const tn_ref_device *d)
{
    if (tn_kind_of(a->node) != TN_KIND_ELTWISE) return;
    double size = d->noise * ulp(a->node->in[0]->dtype);
    for (int64_t i = 0; size > 0 && i < n; i++) {
        if (!open_question(a, i, size)) continue;
        a->out[i] = settled(a->node->op, a->in[0][i], d->noise_seed % 2 == 0);
    }
}

void tn_ref_noise_result(const tn_ref_args *a, int64_t n)
{
    const tn_tensor *node = a->node;
    const tn_ref_device *d = device_of(node);
    if (d->noise <= 0) return;
    settle_questions(a, n, d);
    double size = d->noise * ulp(node->dtype);
    if (size <= 0 || chooses(node->op)) return;
    /* Summands that are alike are rounded alike, and chance at the summands cancels where that does not. */
    if (node->op == TN_OP_reduce_sum) size *= 1 + sqrt(summands(node)) / 4;
    /* Sine and cosine of a rounded angle, a probability beside 1/2: errors that do not shrink with the value.
     */
    double at_least = node->op == TN_OP_normal ? 4 : 0;
    if (node->op == TN_OP_ndtr && node->dtype != TN_F64) at_least = 0.5 * ulp(TN_F32) / ulp(node->dtype);
    for (int64_t i = 0; i < n; i++) {
        if (!rounded(a, i)) continue;
        if (!d->noise_seed && node->dtype != TN_F64) {
            a->out[i] = nearest(node->dtype, a->out[i]);
            continue;
        }
        a->out[i] += fmax(fabs(a->out[i]), at_least) * size * chance(d->noise_seed, node->id, 0, (uint64_t)i);
    }
}

void tn_ref_noise_number(const tn_tensor *number, double *v)
{
    const tn_ref_device *d = device_of(number);
    double size = d->noise * ulp(number->dtype);
    if (size > 0 && !exact(number->dtype, *v)) *v += *v * size * chance(d->noise_seed, number->id, 0, 0);
}

void tn_ref_set_noise(tn_device *d, double amplitude, uint64_t seed)
{
    tn_ref_device *r = (tn_ref_device *)(void *)d;
    r->noise = amplitude;
    r->noise_seed = seed;
}
