/* builtin_eltwise.c - elementwise nodes on a machine without a compiler.
 *
 * Every row of ops.def becomes a loop over dense arrays, for f32 and f64 and, on x86, for three kinds of
 * processor, of which the best is taken at run time. Operands that are not dense pass through a small
 * array; f16 and bf16 become f32 there, and the result is rounded as it is written. Read first:
 * tn_bl_eltwise. */
#if defined(__GNUC__) && !defined(__clang__) /* clang vectorises as it is */
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#endif
#include "../../core/convert.h"
#include "builtin.h"
#include "pool.h"

#include "../prelude/math.h"

typedef void loop(void *out, const void *x, const void *y, const void *z, int64_t n);

enum { TILE = 1024, CHUNK = 1 << 15 };

#define T         float
#define NAME(row) f32_##row##_any
#define TABLE     f32_any
#define ATTR
#include "builtin_rows.h"
#define T         double
#define NAME(row) f64_##row##_any
#define TABLE     f64_any
#define ATTR
#include "builtin_rows.h"
#if defined(__x86_64__) && defined(__GNUC__)
#define T         float
#define NAME(row) f32_##row##_avx2
#define TABLE     f32_avx2
#define ATTR      __attribute__((target("avx2,fma")))
#include "builtin_rows.h"
#define T         double
#define NAME(row) f64_##row##_avx2
#define TABLE     f64_avx2
#define ATTR      __attribute__((target("avx2,fma")))
#include "builtin_rows.h"
#define T         float
#define NAME(row) f32_##row##_avx512
#define TABLE     f32_avx512
#define ATTR      __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")))
#include "builtin_rows.h"
#define T         double
#define NAME(row) f64_##row##_avx512
#define TABLE     f64_avx512
#define ATTR      __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")))
#include "builtin_rows.h"
#endif

static loop *loop_of(tn_op op, bool single)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return single ? f32_avx512[op] : f64_avx512[op];
    if (avx2) return single ? f32_avx2[op] : f64_avx2[op];
#endif
    return single ? f32_any[op] : f64_any[op];
}

bool tn_bl_has_eltwise(const tn_tensor *node)
{
    const tn_op_info *info = tn_op_get(node->op);
    bool choice = node->op == TN_OP_where;
    tn_dtype d = node->in[choice]->dtype;
    if (info->kind != TN_KIND_ELTWISE || !tn_dtype_is_float(d)) return false;
    for (int i = choice; i < node->n_in; i++)
        if (node->in[i]->dtype != d) return false;
    if (choice && node->in[0]->dtype != TN_BOOL) return false;
    return node->dtype == (info->type == TN_TYPE_TEST ? TN_BOOL : d);
}

struct work {
    loop *fn;
    int n_in;
    const tn_bl_operand *in;
    char *out;
    tn_dtype to;
};

static void chunk(void *arg, int64_t begin, int64_t end)
{
    const struct work *w = arg;
    _Alignas(64) char tile[3][TILE * sizeof(double)], narrow[TILE * sizeof(uint16_t)];
    _Alignas(64) float result[TILE];
    const bool rounds = tn_dtype_is_half(w->to);
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t n = end - at < TILE ? end - at : TILE;
        const void *p[3] = {NULL};
        for (int i = 0; i < w->n_in; i++) {
            const tn_bl_operand *o = &w->in[i];
            p[i] = o->data + at * (int64_t)o->size;
            const bool half = tn_dtype_is_half(o->dtype);
            if (o->dense && !half) continue;
            bool repeats = o->ndim == 0 || (o->ndim == 1 && o->stride[0] == 0);
            p[i] = tile[i];
            if (repeats && at != begin) continue;
            tn_bl_gather(o, at, repeats ? TILE : n, half ? narrow : tile[i]);
            if (half) tn_convert(tile[i], TN_F32, narrow, o->dtype, (size_t)(repeats ? TILE : n));
        }
        for (int i = w->n_in; i < 3; i++) p[i] = p[0];
        char *out = w->out + at * (int64_t)tn_dtype_size(w->to);
        w->fn(rounds ? (void *)result : out, p[0], p[1], p[2], n);
        if (rounds) tn_convert(out, w->to, result, TN_F32, (size_t)n);
    }
}

void tn_bl_eltwise(tn_pool *pool, const tn_tensor *node, const tn_bl_operand *in, int64_t n, void *out)
{
    bool single = node->in[node->op == TN_OP_where]->dtype != TN_F64;
    struct work w = {loop_of(node->op, single), node->n_in, in, out, node->dtype};
    tn_pool_run(pool, chunk, &w, n, CHUNK);
}
