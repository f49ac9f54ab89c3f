/* test_cusim_blaslt.c - the simulated cuBLASLt: what it computes, and what it refuses.
 *
 * Each product is compared with one written down here in double precision over the same, already rounded,
 * operands; what may differ is the order of a sum of f32 and the rounding of the result. */
#include "tests/cusim/rig.h"

#include "src/core/convert.h"

#include <math.h>

typedef struct product {
    int m, n, k, batch;
    bool ta, tb, row_order, broadcast_b, in_place;
    tn_cublas_type type, out;
    unsigned epilogue;
    float alpha, beta;
} product;

/* One matrix on the device and what it holds. */
typedef struct operand {
    tn_cu_ptr at;
    tn_cublas_layout layout;
    double *v;
    int64_t rows, columns, leading, stride;
    bool row_order;
} operand;

static tn_dtype dtype_of(tn_cublas_type t)
{
    return t == TN_CUBLAS_F64 ? TN_F64 : t == TN_CUBLAS_F16 ? TN_F16 : t == TN_CUBLAS_BF16 ? TN_BF16 : TN_F32;
}

static int64_t place(const operand *o, int64_t b, int64_t i, int64_t j)
{
    return b * o->stride + (o->row_order ? i * o->leading + j : i + j * o->leading);
}

static operand make(rig *r, tn_cublas_type type, int rows, int columns, int batch, bool row_order,
                    bool broadcast, unsigned seed)
{
    operand o = {.rows = rows,
                 .columns = columns,
                 .leading = (row_order ? columns : rows) + 8,
                 .row_order = row_order};
    o.stride = broadcast ? 0 : o.leading * (row_order ? rows : columns);
    size_t n = (size_t)(o.leading * (row_order ? rows : columns)) * (size_t)batch,
           size = tn_dtype_size(dtype_of(type));
    int32_t count = batch, order = row_order;
    o.v = calloc(n, sizeof *o.v);
    void *host = calloc(n, size);
    assert_true(o.v && host);
    for (size_t i = 0; i < n; i++)
        o.v[i] = (double)((i * 37 + seed * 11) % 65) / 32 - 1; /* exact in all types */
    tn_convert(host, dtype_of(type), o.v, TN_F64, n);
    o.at = rig_alloc(r, n * size);
    rig_upload(r, o.at, host, n * size);
    free(host);
    OK(r->cu->cublasLtMatrixLayoutCreate(&o.layout, type, (uint64_t)rows, (uint64_t)columns, o.leading));
    OK(r->cu->cublasLtMatrixLayoutSetAttribute(o.layout, TN_CUBLAS_LAYOUT_BATCH, &count, sizeof count));
    OK(r->cu->cublasLtMatrixLayoutSetAttribute(o.layout, TN_CUBLAS_LAYOUT_STRIDE, &o.stride,
                                               sizeof o.stride));
    OK(r->cu->cublasLtMatrixLayoutSetAttribute(o.layout, SIM_LAYOUT_ORDER, &order, sizeof order));
    return o;
}

static void drop(rig *r, operand *o)
{
    OK(r->cu->cublasLtMatrixLayoutDestroy(o->layout));
    OK(r->cu->cuMemFree_v2(o->at));
    free(o->v);
}

static double expected(const product *p, const operand *a, const operand *b, const operand *c,
                       const operand *bias, int64_t l, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t x = 0; x < p->k; x++)
        sum += a->v[p->ta ? place(a, l, x, i) : place(a, l, i, x)] *
               b->v[p->tb ? place(b, l, j, x) : place(b, l, x, j)];
    sum = (double)p->alpha * sum + (double)p->beta * c->v[place(c, l, i, j)];
    if (p->epilogue & TN_CUBLAS_EPILOGUE_BIAS) sum += bias->v[i];
    if (p->epilogue & TN_CUBLAS_EPILOGUE_RELU) sum = sum > 0 ? sum : 0;
    if (p->epilogue & SIM_EPILOGUE_GELU)
        sum = 0.5 * sum * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
    return sum;
}

static void check(rig *r, product p)
{
    tn_cublas_handle handle;
    tn_cublas_desc desc;
    tn_cublas_preference pref;
    tn_cublas_choice choice;
    int found = 0;
    int32_t ta = p.ta, tb = p.tb;
    size_t room = 4 << 20;
    uint32_t align = 256;
    const bool f64 = p.type == TN_CUBLAS_F64;
    const double alpha64 = (double)p.alpha, beta64 = (double)p.beta;
    const void *alpha = f64 ? (const void *)&alpha64 : &p.alpha,
               *beta = f64 ? (const void *)&beta64 : &p.beta;
    if (!p.batch) p.batch = 1;
    operand a = make(r, p.type, p.ta ? p.k : p.m, p.ta ? p.m : p.k, p.batch, p.row_order, false, 1);
    operand b = make(r, p.type, p.tb ? p.n : p.k, p.tb ? p.k : p.n, p.batch, p.row_order, p.broadcast_b, 2);
    operand c = make(r, p.out, p.m, p.n, p.batch, p.row_order, false, 3);
    operand d = make(r, p.out, p.m, p.n, p.batch, p.row_order, false, 4);
    operand bias = make(r, p.out, p.m, 1, 1, false, false, 5);
    tn_cu_ptr to = p.in_place ? c.at : d.at, workspace = rig_alloc(r, room);
    OK(r->cu->cublasLtCreate(&handle));
    OK(r->cu->cublasLtMatmulDescCreate(&desc, f64 ? TN_CUBLAS_COMPUTE_F64 : TN_CUBLAS_COMPUTE_F32,
                                       f64 ? TN_CUBLAS_F64 : TN_CUBLAS_F32));
    OK(r->cu->cublasLtMatmulDescSetAttribute(desc, TN_CUBLAS_DESC_TRANSA, &ta, sizeof ta));
    OK(r->cu->cublasLtMatmulDescSetAttribute(desc, TN_CUBLAS_DESC_TRANSB, &tb, sizeof tb));
    OK(r->cu->cublasLtMatmulDescSetAttribute(desc, TN_CUBLAS_DESC_EPILOGUE, &p.epilogue, sizeof p.epilogue));
    OK(r->cu->cublasLtMatmulDescSetAttribute(desc, TN_CUBLAS_DESC_BIAS, &bias.at, sizeof bias.at));
    OK(r->cu->cublasLtMatmulPreferenceCreate(&pref));
    OK(r->cu->cublasLtMatmulPreferenceSetAttribute(pref, TN_CUBLAS_PREF_WORKSPACE, &room, sizeof room));
    OK(r->cu->cublasLtMatmulPreferenceSetAttribute(pref, TN_CUBLAS_PREF_ALIGN_A, &align, sizeof align));
    OK(r->cu->cublasLtMatmulAlgoGetHeuristic(handle, desc, a.layout, b.layout, c.layout, d.layout, pref, 1,
                                             &choice, &found));
    assert_int_equal(found, 1);
    assert_true(choice.workspace > 0 && choice.workspace <= room);
    OK(r->cu->cublasLtMatmul(handle, desc, alpha, (void *)(uintptr_t)a.at, a.layout, (void *)(uintptr_t)b.at,
                             b.layout, beta, (void *)(uintptr_t)c.at, c.layout, (void *)(uintptr_t)to,
                             d.layout, &choice.algo, (void *)(uintptr_t)workspace, choice.workspace,
                             r->stream));

    size_t n = (size_t)(d.leading * (p.row_order ? p.m : p.n) * p.batch),
           size = tn_dtype_size(dtype_of(p.out));
    void *host = calloc(n, size);
    double *got = calloc(n, sizeof *got);
    assert_true(host && got);
    rig_download(r, host, to, n * size);
    tn_convert(got, TN_F64, host, dtype_of(p.out), n);
    double rounding = p.out == TN_CUBLAS_F64   ? 1e-14
                      : p.out == TN_CUBLAS_F32 ? 1e-6
                      : p.out == TN_CUBLAS_F16 ? 6e-4
                                               : 5e-3;
    for (int64_t l = 0; l < p.batch; l++)
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                double want = expected(&p, &a, &b, &c, &bias, l, i, j), is = got[place(&d, l, i, j)];
                if (!(fabs(is - want) <= rounding * (1 + fabs(want))))
                    fail_msg("[%d][%d][%d]: %.9g, expected %.9g", (int)l, (int)i, (int)j, is, want);
            }
    free(host);
    free(got);
    OK(r->cu->cuMemFree_v2(workspace));
    OK(r->cu->cublasLtMatmulPreferenceDestroy(pref));
    OK(r->cu->cublasLtMatmulDescDestroy(desc));
    OK(r->cu->cublasLtDestroy(handle));
    operand *const all[] = {&a, &b, &c, &d, &bias};
    for (int i = 0; i < 5; i++) drop(r, all[i]);
}

/* Without an epilogue, alpha 1. */
static product plain(int m, int n, int k, tn_cublas_type type)
{
    return (product){.m = m,
                     .n = n,
                     .k = k,
                     .type = type,
                     .out = type,
                     .epilogue = TN_CUBLAS_EPILOGUE_DEFAULT,
                     .alpha = 1};
}

SIM_TEST(products)
{
    static const tn_cublas_type type[] = {TN_CUBLAS_F32, TN_CUBLAS_F64, TN_CUBLAS_F16, TN_CUBLAS_BF16};
    for (int t = 0; t < 4; t++)
        for (int how = 0; how < 8; how++) {
            product p = plain(70, 9, 33, type[t]);
            p.ta = how & 1, p.tb = how & 2, p.row_order = how & 4;
            check(*state, p);
        }
    check(*state, plain(300, 130, 17, TN_CUBLAS_F32));
}

SIM_TEST(scaled_and_added)
{
    for (int in_place = 0; in_place < 2; in_place++)
        for (int half = 0; half < 2; half++) {
            product p = plain(20, 30, 8, half ? TN_CUBLAS_F16 : TN_CUBLAS_F32);
            p.in_place = in_place, p.out = TN_CUBLAS_F32;
            p.alpha = half ? 1 : 0.5f, p.beta = half ? 1 : -2;
            check(*state, p);
        }
}

SIM_TEST(batches)
{
    for (int broadcast = 0; broadcast < 2; broadcast++) {
        product p = plain(12, 7, 5, TN_CUBLAS_F32);
        p.batch = 3, p.broadcast_b = broadcast;
        check(*state, p);
    }
}

SIM_TEST(epilogues)
{
    static const unsigned epilogue[] = {TN_CUBLAS_EPILOGUE_BIAS, TN_CUBLAS_EPILOGUE_RELU,
                                        TN_CUBLAS_EPILOGUE_RELU_BIAS, SIM_EPILOGUE_GELU,
                                        SIM_EPILOGUE_GELU_BIAS};
    static const tn_cublas_type type[] = {TN_CUBLAS_F32, TN_CUBLAS_F16, TN_CUBLAS_BF16};
    for (int e = 0; e < 5; e++)
        for (int t = 0; t < 3; t++) {
            product p = plain(33, 6, 11, type[t]);
            p.epilogue = epilogue[e];
            check(*state, p);
        }
}

/* ---- refusals ---- */

typedef struct setting {
    tn_cublas_handle handle;
    tn_cublas_desc desc;
    tn_cublas_layout a, b, d;
    tn_cublas_preference pref;
} setting;

static setting open_setting(rig *r, tn_cublas_type type, tn_cublas_compute compute, tn_cublas_type scale)
{
    setting s;
    OK(r->cu->cublasLtCreate(&s.handle));
    OK(r->cu->cublasLtMatmulDescCreate(&s.desc, compute, scale));
    OK(r->cu->cublasLtMatrixLayoutCreate(&s.a, type, 8, 4, 8));
    OK(r->cu->cublasLtMatrixLayoutCreate(&s.b, type, 4, 16, 4));
    OK(r->cu->cublasLtMatrixLayoutCreate(&s.d, type, 8, 16, 8));
    OK(r->cu->cublasLtMatmulPreferenceCreate(&s.pref));
    return s;
}

static tn_cublas_result ask(rig *r, const setting *s, tn_cublas_choice *choice)
{
    int found = 0;
    tn_cublas_result status = r->cu->cublasLtMatmulAlgoGetHeuristic(s->handle, s->desc, s->a, s->b, s->d,
                                                                    s->d, s->pref, 1, choice, &found);
    assert_int_equal(found, status == 0);
    return status;
}

static void close_setting(rig *r, setting *s)
{
    OK(r->cu->cublasLtMatmulPreferenceDestroy(s->pref));
    OK(r->cu->cublasLtMatrixLayoutDestroy(s->a));
    OK(r->cu->cublasLtMatrixLayoutDestroy(s->b));
    OK(r->cu->cublasLtMatrixLayoutDestroy(s->d));
    OK(r->cu->cublasLtMatmulDescDestroy(s->desc));
    OK(r->cu->cublasLtDestroy(s->handle));
}

SIM_TEST(what_there_is_no_algorithm_for)
{
    tn_cublas_choice choice;
    const int32_t one = 1;
    const int64_t seven = 7;
    const uint32_t relu = TN_CUBLAS_EPILOGUE_RELU, bias = TN_CUBLAS_EPILOGUE_BIAS, two = 2;

    setting s = open_setting(r, TN_CUBLAS_F64, TN_CUBLAS_COMPUTE_F64, TN_CUBLAS_F64);
    OK(ask(r, &s, &choice));
    OK(r->cu->cublasLtMatmulDescSetAttribute(s.desc, TN_CUBLAS_DESC_EPILOGUE, &relu, sizeof relu));
    FAILS(TN_CUBLAS_NOT_SUPPORTED, ask(r, &s, &choice));
    close_setting(r, &s);

    s = open_setting(r, TN_CUBLAS_F32, TN_CUBLAS_COMPUTE_F64, TN_CUBLAS_F64);
    FAILS(TN_CUBLAS_NOT_SUPPORTED, ask(r, &s, &choice));
    close_setting(r, &s);

    s = open_setting(r, TN_CUBLAS_F32, TN_CUBLAS_COMPUTE_F32, TN_CUBLAS_F32);
    OK(r->cu->cublasLtMatmulPreferenceSetAttribute(s.pref, TN_CUBLAS_PREF_ALIGN_B, &two, sizeof two));
    FAILS(TN_CUBLAS_NOT_SUPPORTED, ask(r, &s, &choice));
    OK(r->cu->cublasLtMatrixLayoutSetAttribute(s.a, SIM_LAYOUT_LEADING, &seven, sizeof seven));
    FAILS(SIM_BLAS_INVALID_VALUE, ask(r, &s, &choice)); /* less than the rows */
    close_setting(r, &s);

    s = open_setting(r, TN_CUBLAS_F32, TN_CUBLAS_COMPUTE_F32, TN_CUBLAS_F32);
    OK(r->cu->cublasLtMatmulDescSetAttribute(s.desc, TN_CUBLAS_DESC_TRANSA, &one, sizeof one));
    FAILS(SIM_BLAS_INVALID_VALUE, ask(r, &s, &choice)); /* the extents do not fit */
    FAILS(SIM_BLAS_INVALID_VALUE, r->cu->cublasLtMatmulDescSetAttribute(s.desc, TN_CUBLAS_DESC_TRANSA, &one,
                                                                        8)); /* the size of the value */
    close_setting(r, &s);

    s = open_setting(r, TN_CUBLAS_F32, TN_CUBLAS_COMPUTE_F32, TN_CUBLAS_F32);
    const int64_t sixteen = 16;
    OK(r->cu->cublasLtMatmulDescSetAttribute(s.desc, TN_CUBLAS_DESC_EPILOGUE, &bias, sizeof bias));
    OK(ask(r, &s, &choice));
    OK(r->cu->cublasLtMatrixLayoutSetAttribute(s.d, SIM_LAYOUT_ORDER, &one, sizeof one));
    OK(r->cu->cublasLtMatrixLayoutSetAttribute(s.d, SIM_LAYOUT_LEADING, &sixteen, sizeof sixteen));
    FAILS(TN_CUBLAS_NOT_SUPPORTED, ask(r, &s, &choice)); /* a bias along rows */
    close_setting(r, &s);
}

SIM_TEST(promises_are_held)
{
    tn_cublas_choice choice;
    const float one = 1, zero = 0;
    const size_t room = 4 << 20;
    setting s = open_setting(r, TN_CUBLAS_F32, TN_CUBLAS_COMPUTE_F32, TN_CUBLAS_F32);
    OK(r->cu->cublasLtMatmulPreferenceSetAttribute(s.pref, TN_CUBLAS_PREF_WORKSPACE, &room, sizeof room));
    OK(ask(r, &s, &choice));
    char *at = (char *)(uintptr_t)rig_alloc(r, 4096), *workspace = (char *)(uintptr_t)rig_alloc(r, room);
#define RUN(left, with, bytes)                                                                               \
    r->cu->cublasLtMatmul(s.handle, s.desc, &one, left, s.a, at + 512, s.b, &zero, at + 1024, s.d,           \
                          at + 1024, s.d, &choice.algo, with, bytes, r->stream)
    OK(RUN(at, workspace, room));
    FAILS(TN_CUBLAS_NOT_SUPPORTED, RUN(at + 4, workspace, room)); /* aligned to 256 bytes, as was said */
    FAILS(SIM_BLAS_INVALID_VALUE, RUN(at, workspace, choice.workspace - 1));
    FAILS(SIM_BLAS_INVALID_VALUE, RUN(at, NULL, room));
    FAILS(SIM_BLAS_INVALID_VALUE, RUN(NULL, workspace, room));
    OK(r->cu->cuStreamSynchronize(r->stream));
    OK(RUN(at + 4096 - 256, workspace, room)); /* 8 x 4 f32 fit there exactly: 128 bytes */
    OK(r->cu->cuStreamSynchronize(r->stream));
    OK(RUN(at + 4096, workspace, room));
    FAILS(SIM_ILLEGAL_ADDRESS, r->cu->cuStreamSynchronize(r->stream));
    rig_reported(r, "a product of 8 x 16 x 4 leaves device memory", NULL);
    close_setting(r, &s);
}

SIM_TEST(a_product_fails_on_demand)
{
    const float one = 1, zero = 0;
    setting s = open_setting(r, TN_CUBLAS_F32, TN_CUBLAS_COMPUTE_F32, TN_CUBLAS_F32);
    char *at = (char *)(uintptr_t)rig_alloc(r, 4096);
    r->sim.set("matmul", 2);
    for (int i = 1; i < 4; i++)
        FAILS(i == 2 ? SIM_BLAS_EXECUTION_FAILED : 0,
              r->cu->cublasLtMatmul(s.handle, s.desc, &one, at, s.a, at + 512, s.b, &zero, at + 1024, s.d,
                                    at + 1024, s.d, NULL, NULL, 0, r->stream));
    OK(r->cu->cuStreamSynchronize(r->stream));
    assert_int_equal(rig_count(r).matmuls, 2);
    close_setting(r, &s);
}

RUN_TESTS(NULL, NULL)
