/* cuda_attention.h - what a problem for the attention kernels on tensor cores is, and what is right: for
 * test_cuda_attention.c. The problems themselves are in cuda_attention_cases.h.
 *
 * A config is a problem: dtype, head, masks, extents, where the operands lie. Its inputs are rounded to the
 * dtype; the oracle (attend) knows them as doubles, rounded to TF32 where the kernel multiplies such, and
 * computes, beside each result, what the kernels' number formats allow it to be wrong by, to first order:
 * errors of the scores go through the exponential, those of P and of the scores' gradient are what the tensor
 * cores round them to, sums lose a bit for each instruction. Gradients are those of o and lse as forward has
 * left them, which have been compared by then: else what o is rounded by, along a row and always to the wrong
 * side, would be all of their bounds.
 *
 * Read first: struct config, then attend. */
#pragma once

#include "cuda_rig.h"

#include <math.h>

#include "fuser/text/attention_cuda.h"
#include "src/core/convert.h"

typedef enum layout {
    HEADS,
    PACKED,
    ODD
} layout; /* [b, h, t, d]; [b, t, 3 h d]; rows 2 bytes off the grid */
typedef enum extent {
    FULL,
    PLAIN,
    KEYS,
    COLUMN
} extent; /* of a mask: all axes; [tq, tk]; [b, 1, 1, tk]; [h, tq, 1] */
typedef enum pattern {
    SOME,
    LATE,
    BLIND
} pattern; /* hidden keys: some; all of early tiles; all of some rows */

typedef struct config {
    tn_dtype dtype;
    bool tf32;
    int head;
    bool causal;
    fu_flash_mask mask;
    bool dropout;
    int batch, heads, tq, tk;
    layout layout;
    extent extent;
    pattern pattern;
    double scale, size; /* 0: 1 / sqrt(head), 1; of the elements of q */
    bool strict;        /* what sees nothing is NaN, not 0 */
} config;

#define DROP_P .2

/* ---- numbers ---- */

static rng dice;

static double uniform(void) { return rng_real(&dice, 0, 1); }

static double element(void) { return uniform() + uniform() + uniform() + uniform() - 2; }

static void put(tn_dtype d, void *p, int64_t i, double v)
{
    tn_convert((char *)p + (size_t)i * tn_dtype_size(d), d, &v, TN_F64, 1);
}

static double get(tn_dtype d, const void *p, int64_t i)
{
    double v;
    tn_convert(&v, TN_F64, (const char *)p + (size_t)i * tn_dtype_size(d), d, 1);
    return v;
}

/* ---- operands ---- */

/* [batch, heads, rows, columns] somewhere in a block of memory. */
typedef struct operand {
    tn_dtype dtype;
    int64_t n, stride[4], offset; /* elements of the block; of the view */
    int extent[4];
    void *host, *device;
} operand;

static operand operand_of(tn_dtype d, layout l, int part, int batch, int heads, int rows, int columns)
{
    operand o = {.dtype = d, .extent = {batch, heads, rows, columns}};
    if (l == PACKED) { /* part: which third, -1: nothing lies beside it */
        int64_t width = (int64_t)heads * columns * (part < 0 ? 1 : 3);
        o.stride[0] = width * rows, o.stride[1] = columns, o.stride[2] = width;
        o.offset = part < 0 ? 0 : (int64_t)part * heads * columns;
        o.n = width * rows * batch;
    } else {
        int64_t width = columns + (l == ODD), off = l == ODD;
        o.stride[2] = width, o.stride[1] = width * rows, o.stride[0] = width * rows * heads;
        o.offset = off;
        o.n = width * rows * heads * batch + off;
    }
    o.stride[3] = 1;
    o.host = calloc((size_t)o.n + 1, tn_dtype_size(d));
    assert_non_null(o.host);
    return o;
}

static int64_t place(const operand *o, int b, int h, int i, int j)
{
    return o->offset + b * o->stride[0] + h * o->stride[1] + i * o->stride[2] + j * o->stride[3];
}

/* To 11 digits, the nearest, ties away from zero. */
static double to_tf32(double x)
{
    const float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u = (u + 0x1000u) & 0xffffe000u;
    float y;
    memcpy(&y, &u, sizeof y);
    return y;
}

static double at(const operand *o, int b, int h, int i, int j)
{
    return get(o->dtype, o->host, place(o, b, h, i, j));
}

static void fill(operand *o, double size)
{
    for (int b = 0; b < o->extent[0]; b++)
        for (int h = 0; h < o->extent[1]; h++)
            for (int i = 0; i < o->extent[2]; i++)
                for (int j = 0; j < o->extent[3]; j++)
                    put(o->dtype, o->host, place(o, b, h, i, j), size * element());
}

static operand mask_of(const config *c)
{
    const int wide[4] = {c->extent == FULL || c->extent == KEYS, c->extent == FULL || c->extent == COLUMN,
                         c->extent != KEYS, c->extent != COLUMN};
    const int size[4] = {c->batch, c->heads, c->tq, c->tk};
    operand o = {.dtype = c->mask == FU_FLASH_BOOL_MASK ? TN_BOOL : c->dtype, .n = 1};
    for (int a = 3; a >= 0; a--) {
        o.extent[a] = size[a];
        o.stride[a] = wide[a] ? o.n : 0;
        if (wide[a]) o.n *= size[a];
    }
    o.host = calloc((size_t)o.n, tn_dtype_size(o.dtype));
    assert_non_null(o.host);
    const bool numbers = c->mask == FU_FLASH_ADDED_MASK;
    for (int b = 0; b < c->batch; b++)
        for (int h = 0; h < c->heads; h++)
            for (int i = 0; i < c->tq; i++)
                for (int j = 0; j < c->tk; j++) {
                    bool seen = uniform() > .25;
                    if (c->pattern == SOME && c->extent != COLUMN) seen |= j == 0;
                    if (c->pattern == SOME && c->extent == COLUMN) seen = true;
                    if (c->pattern == LATE) seen = i % 3 == 1 ? j >= c->tk - 3 : seen || j == 0;
                    if (c->pattern == BLIND) seen = i % 7 != 3 && (seen || j == 0);
                    double v = numbers ? (seen ? 2 * element() : -INFINITY) : seen;
                    put(o.dtype, o.host, place(&o, b, h, i, j), v);
                }
    return o;
}

/* ---- the oracle ---- */

/* A result and its bound, dense [b, h, rows, columns]. */
typedef struct result {
    int rows, columns;
    double *value, *bound;
} result;

static result result_of(const config *c, int rows, int columns)
{
    size_t n = (size_t)c->batch * (size_t)c->heads * (size_t)rows * (size_t)columns;
    result r = {rows, columns, calloc(n, sizeof(double)), calloc(n, sizeof(double))};
    assert_non_null(r.value);
    assert_non_null(r.bound);
    return r;
}

static void result_drop(result *r)
{
    free(r->value);
    free(r->bound);
}

typedef struct problem {
    operand q, k, v, mask, o, go, dq, dk, dv;
    uint64_t seed, draw;
    double scale, drop;
} problem;

typedef struct oracle {
    result o, lse, dq, dk, dv;
} oracle;

/* How much the kernels' arithmetic may lose. */
typedef struct losses {
    double unit;          /* of rounding to the dtype */
    double tiny;          /* of rounding what is too small for the dtype */
    double held;          /* of P and dS as operands */
    double product, step; /* of a product, relative; of one more instruction */
    double depth, times;  /* of an instruction; instructions for one product */
} losses;

/* The head's rows, as tensor cores multiply them: [rows, head], to be freed. */
static double *factors(const config *c, const operand *o, int b, int h)
{
    const int d = o->extent[3];
    double *x = malloc((size_t)o->extent[2] * (size_t)d * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < o->extent[2]; i++)
        for (int j = 0; j < d; j++) x[i * d + j] = c->tf32 ? to_tf32(at(o, b, h, i, j)) : at(o, b, h, i, j);
    return x;
}

static losses losses_of(const config *c)
{
    if (c->dtype == TN_F16) return (losses){0x1p-11, 0x1p-25, 0x1p-11, 0, 0x1p-23, 16, 1};
    if (c->dtype == TN_BF16) return (losses){0x1p-8, 0x1p-126, 0x1p-8, 0, 0x1p-23, 16, 1};
    if (c->tf32) return (losses){0x1p-24, 0x1p-126, 0x1p-11, 0, 0x1p-23, 8, 1};
    return (losses){0x1p-24, 0x1p-126, 0, 0x1p-20, 0x1p-23, 8, 3}; /* in two parts: the product's */
}

/* The error of a sum of n products, relative to the sum of their magnitudes. */
static double sum_loss(const losses *l, int n)
{
    return l->product + (ceil(n / l->depth) * l->times + 1) * l->step;
}

static uint32_t philox(uint64_t seed, uint64_t draw, uint64_t index)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c[4] = {(uint32_t)(index / 4), (uint32_t)(index / 4 >> 32), (uint32_t)draw,
                     (uint32_t)(draw >> 32)};
    for (int r = 0; r < 10; r++) {
        uint64_t p0 = (uint64_t)c[0] * 0xd2511f53u, p1 = (uint64_t)c[2] * 0xcd9e8d57u;
        uint32_t n[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k1,
                         (uint32_t)p0};
        memcpy(c, n, sizeof c);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c[index % 4];
}

static bool hidden(const config *c, const problem *p, int b, int h, int i, int j)
{
    if (c->causal && j > i) return true;
    return c->mask == FU_FLASH_BOOL_MASK && at(&p->mask, b, h, i, j) == 0;
}

/* The larger; a NaN, which comes with a value that is one, is no bound. */
static double wider(double a, double b) { return b > a ? b : a; }

/* One head: everything in doubles, row by row; `s` holds tq * tk numbers of several kinds. given: lse, as
 * forward left it beside p->o. */
static void attend(const config *c, const problem *p, const float *given, oracle *out, int b, int h)
{
    const int tq = c->tq, tk = c->tk, d = c->head;
    const losses l = losses_of(c);
    const int64_t pair = (int64_t)b * c->heads + h;
    const double inner = sum_loss(&l, d), along_k = sum_loss(&l, tk), along_q = sum_loss(&l, tq);
    double *s = calloc((size_t)tk * 8, sizeof *s), *dp = s + tk, *ds = s + 2 * tk, *keep = s + 3 * tk,
           *loss = s + 4 * tk, *ds_loss = s + 5 * tk, *prob = s + 6 * tk, *dp_size = s + 7 * tk;
    double *qs = factors(c, &p->q, b, h), *ks = factors(c, &p->k, b, h), *vs = factors(c, &p->v, b, h),
           *gos = factors(c, &p->go, b, h);
    assert_non_null(s);
    for (int i = 0; i < tq; i++) {
        double most = -INFINITY, sum = 0, worst = 0, delta = 0, delta_loss = 0;
        for (int j = 0; j < tk; j++) {
            double size = 0, added = 0;
            s[j] = dp[j] = dp_size[j] = 0;
            for (int x = 0; x < d; x++) {
                double qk = qs[i * d + x] * ks[j * d + x];
                double gv = gos[i * d + x] * vs[j * d + x];
                s[j] += qk, size += fabs(qk);
                dp[j] += gv, dp_size[j] += fabs(gv);
            }
            s[j] *= p->scale;
            if (c->mask == FU_FLASH_ADDED_MASK) added = at(&p->mask, b, h, i, j);
            loss[j] =
                fabs(p->scale) * size * inner + 0x1p-22 * (fabs(s[j]) + (isfinite(added) ? fabs(added) : 0));
            s[j] += added;
            if (hidden(c, p, b, h, i, j)) s[j] = -INFINITY;
            if (s[j] > most) most = s[j];
            keep[j] = 1;
            if (c->dropout) {
                uint64_t index = ((uint64_t)pair * (uint64_t)tq + (uint64_t)i) * (uint64_t)tk + (uint64_t)j;
                keep[j] = philox(p->seed, p->draw, index) < (uint32_t)((float)p->drop * 0x1p32)
                              ? 0
                              : 1 / (1 - p->drop);
            }
        }
        const bool blind = most == -INFINITY && !c->strict;
        for (int j = 0; j < tk; j++) {
            sum += prob[j] = blind ? 0 : exp(s[j] - most); /* NaN where nothing is seen */
            if (s[j] - most > -40) worst = wider(worst, loss[j]);
        }
        const double top = isfinite(most) ? fabs(most) : 0, row_loss = worst + 0x1p-21 * (1 + top);
        out->lse.value[pair * tq + i] = blind ? INFINITY : most + log(sum);
        out->lse.bound[pair * tq + i] = row_loss;
        for (int j = 0; j < tk; j++) {
            if (!blind) prob[j] /= sum;
            loss[j] += 0x1p-22 * (isfinite(s[j]) ? fabs(s[j]) : 0); /* now relative, of P but for the sum's */
        }
        for (int x = 0; x < d; x++) {
            double y = 0, e = 0;
            for (int j = 0; j < tk; j++) {
                double v = vs[j * d + x];
                y += prob[j] * keep[j] * v;
                e += keep[j] * fabs(v) * (prob[j] * (loss[j] + row_loss + l.held + along_k) + l.tiny);
            }
            e += l.unit * fabs(y) + l.tiny;
            out->o.value[(pair * tq + i) * d + x] = y;
            out->o.bound[(pair * tq + i) * d + x] = e;
            const double was = at(&p->go, b, h, i, x) * at(&p->o, b, h, i, x);
            delta += was;
            delta_loss += 0x1p-19 * fabs(was); /* sums of up to 24, added up by lanes */
        }
        const double lse = (double)given[pair * tq + i];
        for (int j = 0; j < tk; j++) {
            prob[j] = exp(s[j] - lse);
            loss[j] += 0x1p-21 + (isfinite(lse) ? 0x1p-22 * fabs(lse) : 0);
            const double each = dp[j] * keep[j] - delta;
            ds[j] = prob[j] * each;
            ds_loss[j] = fabs(ds[j]) * (loss[j] + l.held) + l.tiny +
                         prob[j] * (keep[j] * dp_size[j] * inner + delta_loss +
                                    0x1p-22 * (fabs(dp[j] * keep[j]) + fabs(delta)));
            if (hidden(c, p, b, h, i, j)) ds[j] = ds_loss[j] = 0;
        }
        for (int x = 0; x < d; x++) {
            double *dq = &out->dq.value[(pair * tq + i) * d + x],
                   *dq_bound = &out->dq.bound[(pair * tq + i) * d + x];
            const double g = gos[i * d + x], q = qs[i * d + x];
            for (int j = 0; j < tk; j++) {
                const double k = ks[j * d + x];
                const int64_t key = (pair * tk + j) * d + x;
                *dq += p->scale * ds[j] * k;
                *dq_bound += fabs(p->scale * k) * (ds_loss[j] + fabs(ds[j]) * along_k);
                out->dk.value[key] += p->scale * ds[j] * q;
                out->dk.bound[key] += fabs(p->scale * q) * (ds_loss[j] + fabs(ds[j]) * along_q);
                out->dv.value[key] += prob[j] * keep[j] * g;
                out->dv.bound[key] += keep[j] * fabs(g) * (prob[j] * (loss[j] + l.held + along_q) + l.tiny);
            }
        }
    }
    double *all[] = {s, qs, ks, vs, gos};
    for (int i = 0; i < 5; i++) free(all[i]);
    for (int x = 0; x < d; x++) { /* what is stored is rounded */
        for (int64_t i = pair * tq; i < (pair + 1) * tq; i++)
            out->dq.bound[i * d + x] += (l.unit + 0x1p-22) * fabs(out->dq.value[i * d + x]) + l.tiny;
        for (int64_t j = pair * tk; j < (pair + 1) * tk; j++) {
            out->dk.bound[j * d + x] += (l.unit + 0x1p-22) * fabs(out->dk.value[j * d + x]) + l.tiny;
            out->dv.bound[j * d + x] += (l.unit + 0x1p-22) * fabs(out->dv.value[j * d + x]) + l.tiny;
        }
    }
}

static inline void problem_open(const config *c, problem *p)
{
    const tn_dtype d = c->dtype;
    const layout l = c->layout;
    dice.state = (uint64_t)(c->head * 1000 + c->tq * 100 + c->tk);
    *p = (problem){.seed = 0x123456789abcdefu, .draw = 77, .drop = DROP_P};
    p->scale = c->scale != 0 ? c->scale : 1 / sqrt(c->head);
    p->q = operand_of(d, l, 0, c->batch, c->heads, c->tq, c->head);
    p->k = operand_of(d, l, 1, c->batch, c->heads, c->tk, c->head);
    p->v = operand_of(d, l, 2, c->batch, c->heads, c->tk, c->head);
    p->o = operand_of(d, l, -1, c->batch, c->heads, c->tq, c->head);
    p->go = operand_of(d, l, -1, c->batch, c->heads, c->tq, c->head);
    p->dq = operand_of(d, l, 0, c->batch, c->heads, c->tq, c->head);
    p->dk = operand_of(d, l, 1, c->batch, c->heads, c->tk, c->head);
    p->dv = operand_of(d, l, 2, c->batch, c->heads, c->tk, c->head);
    fill(&p->q, c->size != 0 ? c->size : 1);
    fill(&p->k, c->size != 0 ? c->size : 1);
    fill(&p->v, 1);
    fill(&p->go, 1);
    if (c->mask) p->mask = mask_of(c);
}

static inline void problem_close(problem *p)
{
    operand *all[] = {&p->q, &p->k, &p->v, &p->mask, &p->o, &p->go, &p->dq, &p->dk, &p->dv};
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) free(all[i]->host);
}

/* Of a problem that has run: o is forward's, and lse. */
static inline void oracle_open(const config *c, const problem *p, const float *lse, oracle *r)
{
    r->o = result_of(c, c->tq, c->head);
    r->lse = result_of(c, c->tq, 1);
    r->dq = result_of(c, c->tq, c->head);
    r->dk = result_of(c, c->tk, c->head);
    r->dv = result_of(c, c->tk, c->head);
    for (int b = 0; b < c->batch; b++)
        for (int h = 0; h < c->heads; h++) attend(c, p, lse, r, b, h);
}

static inline void oracle_close(oracle *r)
{
    result_drop(&r->o);
    result_drop(&r->lse);
    result_drop(&r->dq);
    result_drop(&r->dk);
    result_drop(&r->dv);
}

/* ---- comparing ---- */

static void describe(const config *c, char *out, size_t room)
{
    snprintf(out, room, "%s%s head %d%s mask %d%s, %d x %d x [%d, %d], layout %d extent %d pattern %d",
             tn_dtype_name(c->dtype), c->tf32 ? " tf32" : "", c->head, c->causal ? " causal" : "",
             (int)c->mask, c->dropout ? " dropout" : "", c->batch, c->heads, c->tq, c->tk, (int)c->layout,
             (int)c->extent, (int)c->pattern);
}

/* The largest error as a part of its bound; what was wrong. */
static double worst_share;
static char complaint[512];

static inline bool compare(const config *c, const char *what, const result *r, const operand *o,
                           const float *dense)
{
    char name[256];
    double wide = 0, all = 0;
    describe(c, name, sizeof name);
    for (int b = 0; b < c->batch; b++)
        for (int h = 0; h < c->heads; h++)
            for (int i = 0; i < r->rows; i++)
                for (int x = 0; x < r->columns; x++) {
                    const int64_t n = (((int64_t)b * c->heads + h) * r->rows + i) * r->columns + x;
                    const double got = dense ? (double)dense[n] : at(o, b, h, i, x), want = r->value[n];
                    const double error = fabs(got - want);
                    if ((isnan(want) && isnan(got)) || (isinf(want) && got == want)) continue;
                    if (!(error <= r->bound[n])) {
                        snprintf(complaint, sizeof complaint,
                                 "%s of %s at [%d, %d, %d, %d]: %.9g, wanted %.9g within %.3g", what, name, b,
                                 h, i, x, got, want, r->bound[n]);
                        return false;
                    }
                    if (r->bound[n] > 0 && error / r->bound[n] > worst_share)
                        worst_share = error / r->bound[n];
                    wide += r->bound[n] * r->bound[n];
                    all += want * want;
                }
    /* Bounds that would let anything pass are no test: they grow with a sum's length, and the sum, of either
       sign, with its root. Scores of one key have no gradient, but for what o was rounded by; and where they
       are large, one exponential is all. */
    const double each = c->dtype == TN_BF16 ? 4.5e-3 : c->dtype == TN_F16 || c->tf32 ? 6e-4 : 1e-4;
    const double limit = each * (1 + sqrt(c->tq > c->tk ? c->tq : c->tk));
    const bool one_key = c->tk == 1 || (c->causal && c->tq == 1);
    if (dense || all == 0 || c->size > 1 || one_key || sqrt(wide) <= limit * sqrt(all)) return true;
    snprintf(complaint, sizeof complaint, "%s of %s: the bounds are %.3g of the values", what, name,
             sqrt(wide / all));
    return false;
}
