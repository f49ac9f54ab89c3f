/* builtin_move.c - copies, casts and reductions on a machine without a compiler.
 *
 * A strided operand is read in its logical order by tn_bl_gather, line by line. Reductions are cut into parts
 * that depend on the shape alone, each summed in f64, and the parts are put together in order: the bits do
 * not depend on the thread count. Read first: tn_bl_gather. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#endif
#include "../../core/convert.h"
#include "builtin.h"
#include "pool.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 15, TILE = 1024, PART = 1 << 14, LANES = 16 };

bool tn_bl_open(const tn_tensor *x, tn_bl_operand *o)
{
    o->dtype = x->dtype;
    o->size = tn_dtype_size(o->dtype);
    o->ndim = 0;
    o->data = tn_node_data(x);
    bool number = !o->data && tn_is_number(x);
    for (int i = 0; i < x->ndim; i++) {
        int64_t extent = x->shape[i], stride = number ? 0 : x->stride[i];
        if (extent == 1) continue;
        int last = o->ndim - 1;
        if (last >= 0 && o->stride[last] == stride * extent) {
            o->extent[last] *= extent;
            o->stride[last] = stride;
        } else {
            o->extent[o->ndim] = extent;
            o->stride[o->ndim++] = stride;
        }
    }
    if (number) {
        tn_number v = x->base->attr->number;
        tn_convert(&o->number, o->dtype, v.is_int ? (const void *)&v.i : &v.f, v.is_int ? TN_I64 : TN_F64, 1);
        o->data = (const char *)&o->number;
    }
    o->dense = !number && (o->ndim == 0 || (o->ndim == 1 && o->stride[0] == 1));
    return o->data || tn_node_numel(x) == 0;
}

void tn_bl_widen_number(const tn_tensor *x, tn_bl_operand *o)
{
    if (o->data != (const char *)&o->number || !tn_dtype_is_half(o->dtype)) return;
    tn_number v = x->base->attr->number;
    const float f = v.is_int ? (float)v.i : (float)v.f;
    memcpy(&o->number, &f, sizeof f);
    o->dtype = TN_F32;
    o->size = sizeof f;
}

#define LINE(type)                                                                                           \
    do {                                                                                                     \
        type *restrict to = out;                                                                             \
        const type *from = (const type *)p;                                                                  \
        for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];                                            \
    } while (0)

static void line(void *out, const char *p, int64_t n, int64_t stride, size_t size)
{
    if (stride == 1)
        memcpy(out, p, (size_t)n * size);
    else if (size == 4)
        LINE(uint32_t);
    else if (size == 8)
        LINE(uint64_t);
    else if (size == 2)
        LINE(uint16_t);
    else
        LINE(uint8_t);
}

void tn_bl_gather(const tn_bl_operand *o, int64_t begin, int64_t n, void *out)
{
    char *to = out;
    if (o->ndim == 0) {
        line(to, o->data, n, 0, o->size);
        return;
    }
    int64_t index[TN_MAX_DIMS], left = begin, at = 0;
    int last = o->ndim - 1;
    for (int i = last; i >= 0; i--) {
        index[i] = i ? left % o->extent[i] : left;
        left /= o->extent[i];
        at += index[i] * o->stride[i];
    }
    while (n > 0) {
        int64_t run = o->extent[last] - index[last];
        if (run > n || !last) run = n; /* a repeated number may be asked for beyond its extent */
        line(to, o->data + at * (int64_t)o->size, run, o->stride[last], o->size);
        to += run * (int64_t)o->size;
        n -= run;
        at -= index[last] * o->stride[last];
        index[last] = 0;
        for (int i = last - 1; i >= 0; i--) {
            at += o->stride[i];
            if (++index[i] < o->extent[i]) break;
            at -= index[i] * o->stride[i];
            index[i] = 0;
        }
    }
}

struct move {
    const tn_bl_operand *x;
    char *out;
    tn_dtype to;
};

static void copy_chunk(void *arg, int64_t begin, int64_t end)
{
    const struct move *m = arg;
    tn_bl_gather(m->x, begin, end - begin, m->out + begin * (int64_t)m->x->size);
}

void tn_bl_copy(tn_pool *pool, const tn_bl_operand *x, int64_t n, void *out)
{
    tn_pool_run(pool, copy_chunk, &(struct move){x, out, x->dtype}, n, CHUNK);
}

static void to_f32(float *restrict out, const void *in, tn_dtype from, int64_t n)
{
    const uint8_t *byte = in;
    const int32_t *whole = in;
    if (from == TN_I32)
        for (int64_t i = 0; i < n; i++) out[i] = (float)whole[i];
    else
        for (int64_t i = 0; i < n; i++) out[i] = byte[i];
}

static void cast_chunk(void *arg, int64_t begin, int64_t end)
{
    const struct move *m = arg;
    _Alignas(64) char tile[TILE * sizeof(double)];
    tn_dtype from = m->x->dtype;
    bool quick = m->to == TN_F32 && (from == TN_I32 || from == TN_U8 || from == TN_BOOL);
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t n = end - at < TILE ? end - at : TILE;
        char *out = m->out + at * (int64_t)tn_dtype_size(m->to);
        tn_bl_gather(m->x, at, n, tile);
        if (quick)
            to_f32((float *)(void *)out, tile, from, n);
        else
            tn_convert(out, m->to, tile, from, (size_t)n);
    }
}

void tn_bl_cast(tn_pool *pool, const tn_bl_operand *x, int64_t n, tn_dtype to, void *out)
{
    tn_pool_run(pool, cast_chunk, &(struct move){x, out, to}, n, CHUNK);
}

/* ---- reductions ---- */

bool tn_bl_has_reduce(const tn_tensor *node, int64_t *outer, int64_t *red, int64_t *inner)
{
    const tn_tensor *x = node->in[0];
    if (node->dtype != TN_F32 || x->dtype != TN_F32) return false;
    if (node->op != TN_OP_reduce_sum && node->op != TN_OP_reduce_max && node->op != TN_OP_reduce_min)
        return false;
    *outer = *red = *inner = 1;
    int stage = 0; /* before, among and behind the axes reduced */
    for (int i = 0; i < x->ndim; i++) {
        if (x->shape[i] == 1) continue;
        bool reduced = node->attr->axes >> i & 1;
        if (reduced && stage == 2) return false;
        if (reduced)
            stage = 1;
        else if (stage == 1)
            stage = 2;
        *(stage == 0 ? outer : stage == 1 ? red : inner) *= x->shape[i];
    }
    return true;
}

struct reduce {
    tn_op op;
    const float *x;
    double *part; /* [outer, parts, inner] */
    float *out;
    int64_t red, inner, parts, rows;
};

static inline double fold(tn_op op, double a, double v)
{
    if (op == TN_OP_reduce_sum) return a + v;
    if (op == TN_OP_reduce_max) return v > a || v != v ? v : a;
    return v < a || v != v ? v : a;
}

static double start_of(tn_op op)
{
    return op == TN_OP_reduce_sum ? 0 : op == TN_OP_reduce_max ? -INFINITY : INFINITY;
}

#define FOLD(op)                                                                                             \
    do {                                                                                                     \
        if (inner == 1) {                                                                                    \
            double lane[LANES];                                                                              \
            for (int l = 0; l < LANES; l++) lane[l] = start_of(op);                                          \
            int64_t i = 0;                                                                                   \
            for (; i + LANES <= rows; i += LANES)                                                            \
                for (int l = 0; l < LANES; l++) lane[l] = fold(op, lane[l], x[i + l]);                       \
            for (int l = 0; i + l < rows; l++) lane[l] = fold(op, lane[l], x[i + l]);                        \
            for (int l = 0; l < LANES; l++) acc[0] = fold(op, acc[0], lane[l]);                              \
        } else {                                                                                             \
            for (int64_t i = 0; i < rows; i++)                                                               \
                for (int64_t j = 0; j < inner; j++) acc[j] = fold(op, acc[j], x[i * inner + j]);             \
        }                                                                                                    \
    } while (0)

static void reduce_part(tn_op op, const float *restrict x, double *restrict acc, int64_t rows, int64_t inner)
{
    for (int64_t j = 0; j < inner; j++) acc[j] = start_of(op);
    if (op == TN_OP_reduce_sum)
        FOLD(TN_OP_reduce_sum);
    else if (op == TN_OP_reduce_max)
        FOLD(TN_OP_reduce_max);
    else
        FOLD(TN_OP_reduce_min);
}

static void reduce_chunk(void *arg, int64_t begin, int64_t end)
{
    const struct reduce *r = arg;
    for (int64_t item = begin; item < end; item++) {
        int64_t o = item / r->parts, from = item % r->parts * r->rows;
        int64_t rows = r->red - from < r->rows ? r->red - from : r->rows;
        reduce_part(r->op, r->x + (o * r->red + from) * r->inner, r->part + item * r->inner, rows, r->inner);
    }
}

static void join_chunk(void *arg, int64_t begin, int64_t end)
{
    const struct reduce *r = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t o = i / r->inner, j = i % r->inner;
        double a = start_of(r->op);
        for (int64_t p = 0; p < r->parts; p++) a = fold(r->op, a, r->part[(o * r->parts + p) * r->inner + j]);
        r->out[i] = (float)a;
    }
}

int tn_bl_reduce(tn_device *d, tn_op op, const float *x, int64_t outer, int64_t red, int64_t inner,
                 float *out)
{
    struct reduce r = {.op = op, .x = x, .out = out, .red = red, .inner = inner};
    r.rows = inner < PART ? PART / inner : 1;
    r.parts = red ? (red + r.rows - 1) / r.rows : 1;
    int64_t each = (red < r.rows ? red : r.rows) * inner;
    r.part = d->alloc(d, (size_t)(outer * r.parts * inner) * sizeof *r.part);
    if (!r.part) return TN_E_NOMEM;
    tn_pool_run(tn_cpu_pool(d), reduce_chunk, &r, outer * r.parts, each < CHUNK ? CHUNK / (each + 1) + 1 : 1);
    tn_pool_run(tn_cpu_pool(d), join_chunk, &r, outer * inner, 4096);
    d->free(d, r.part);
    return TN_OK;
}
