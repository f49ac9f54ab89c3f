/* gemm.c - products through cuBLASLt.
 *
 * cuBLASLt thinks in columns. A row-major matrix is its own transpose in columns, and C = A B is the same as
 * C^T = B^T A^T, so the operands change places and nothing is copied. Batch extents are brought down to one
 * strided batch where strides allow, and looped over where not; a batch that shares B is one taller product.
 *
 * For each shape the algorithm is asked for once and kept, with the descriptors, so that every run of a
 * program takes the same one and a captured product has nothing left to ask. f32 is f32 throughout, or
 * TF32 where a product says it may be; f16 and bf16 accumulate in f32. What cuBLASLt has no algorithm for
 * (integers, strides of 0, a depth of 0) runs on our own kernel (kernels/own.cu).
 *
 * Read first: tn_cuda_gemm.
 */
#include "internal.h"

#include "../../core/alloc.h"
#include "../../core/hash.h"

#include <string.h>

enum { SLOTS = 1024, MOST = 4096, OWN_TILE = 32, EPILOGUE_CHUNK = 2048 };
#define WORKSPACE ((size_t)32 << 20)

/* All that an algorithm depends on; compared byte by byte. A, B, C here are the column-major ones. */
typedef struct shape {
    int64_t rows, columns, depth, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
    int32_t dtype, transpose_a, transpose_b, epilogue, add, wide;
    int32_t align_a, align_b, align_c, tf32;
} shape;

typedef struct product {
    shape key;
    bool own;   /* cuBLASLt has none */
    bool apart; /* it has one without the epilogue, which our own kernel does afterwards */
    tn_cublas_desc desc;
    tn_cublas_layout a, b, c;
    tn_cublas_algo algo;
    struct product *next;
} product;

struct tn_cuda_blas {
    tn_cublas_handle handle;
    product *slot[SLOTS];
    int n;
    void *workspace;
};

static int blas_check(tn_cublas_result e, const char *what, tn_errbuf *err)
{
    if (!e) return TN_OK;
    return tn_err(err, e == TN_CUBLAS_ALLOC_FAILED ? TN_E_NOMEM : TN_E_DEVICE, "%s: cuBLASLt status %u", what,
                  e);
}

/* ---- the table ---- */

static void undescribe(tn_cuda *c, product *p)
{
    if (p->c) c->api->cublasLtMatrixLayoutDestroy(p->c);
    if (p->b) c->api->cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) c->api->cublasLtMatrixLayoutDestroy(p->a);
    if (p->desc) c->api->cublasLtMatmulDescDestroy(p->desc);
    p->a = p->b = p->c = p->desc = NULL;
}

static void drop(tn_cuda *c, product *p)
{
    undescribe(c, p);
    tn_free_mem(p);
}

static void drop_all(tn_cuda *c)
{
    for (int i = 0; i < SLOTS; i++)
        for (product *p; (p = c->blas->slot[i]);) {
            c->blas->slot[i] = p->next;
            drop(c, p);
        }
    c->blas->n = 0;
}

void tn_cuda_blas_close(tn_cuda *c)
{
    if (!c->blas) return;
    drop_all(c);
    if (c->blas->handle) c->api->cublasLtDestroy(c->blas->handle);
    tn_cuda_free(c, c->blas->workspace);
    tn_free_mem(c->blas);
    c->blas = NULL;
}

static int open_blas(tn_cuda *c, tn_errbuf *err)
{
    if (c->blas && c->blas->workspace) return TN_OK;
    if (!c->blas) c->blas = tn_calloc(1, sizeof *c->blas);
    if (!c->blas) return tn_err(err, TN_E_NOMEM, "out of host memory");
    if (!c->blas->handle) {
        int status = blas_check(c->api->cublasLtCreate(&c->blas->handle), "cublasLtCreate", err);
        if (status) return status;
    }
    c->blas->workspace = tn_cuda_alloc(c, WORKSPACE, err);
    return c->blas->workspace ? TN_OK : TN_E_NOMEM;
}

static tn_cublas_type type_of(tn_dtype d)
{
    return d == TN_F64    ? TN_CUBLAS_F64
           : d == TN_F16  ? TN_CUBLAS_F16
           : d == TN_BF16 ? TN_CUBLAS_BF16
                          : TN_CUBLAS_F32;
}

static int make_layout(tn_cuda *c, tn_cublas_layout *out, tn_cublas_type type, int64_t rows, int64_t columns,
                       int64_t leading, int64_t batch, int64_t stride)
{
    const tn_cuda_api *a = c->api;
    int32_t count = (int32_t)batch;
    tn_cublas_result e = a->cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)columns, leading);
    if (!e && batch > 1)
        e = a->cublasLtMatrixLayoutSetAttribute(*out, TN_CUBLAS_LAYOUT_BATCH, &count, sizeof count);
    if (!e && batch > 1)
        e = a->cublasLtMatrixLayoutSetAttribute(*out, TN_CUBLAS_LAYOUT_STRIDE, &stride, sizeof stride);
    return (int)e;
}

static int describe(tn_cuda *c, product *p)
{
    const tn_cuda_api *a = c->api;
    const shape *k = &p->key;
    tn_dtype d = k->dtype;
    tn_cublas_type type = type_of(d), out = k->wide ? TN_CUBLAS_F32 : type;
    tn_cublas_compute compute = d == TN_F64 ? TN_CUBLAS_COMPUTE_F64
                                : k->tf32   ? TN_CUBLAS_COMPUTE_TF32
                                            : TN_CUBLAS_COMPUTE_F32;
    int32_t ta = k->transpose_a, tb = k->transpose_b;
    uint32_t epilogue = p->apart ? TN_CUBLAS_EPILOGUE_DEFAULT : (uint32_t)k->epilogue;
    tn_cublas_result e =
        a->cublasLtMatmulDescCreate(&p->desc, compute, d == TN_F64 ? TN_CUBLAS_F64 : TN_CUBLAS_F32);
    if (!e) e = a->cublasLtMatmulDescSetAttribute(p->desc, TN_CUBLAS_DESC_TRANSA, &ta, sizeof ta);
    if (!e) e = a->cublasLtMatmulDescSetAttribute(p->desc, TN_CUBLAS_DESC_TRANSB, &tb, sizeof tb);
    if (!e)
        e = a->cublasLtMatmulDescSetAttribute(p->desc, TN_CUBLAS_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (e) return (int)e;
    int s = make_layout(c, &p->a, type, ta ? k->depth : k->rows, ta ? k->rows : k->depth, k->lda, k->batch,
                        k->stride_a);
    if (!s)
        s = make_layout(c, &p->b, type, tb ? k->columns : k->depth, tb ? k->depth : k->columns, k->ldb,
                        k->batch, k->stride_b);
    if (!s) s = make_layout(c, &p->c, out, k->rows, k->columns, k->ldc, k->batch, k->stride_c);
    return s;
}

/* Asks for the algorithm. */
static int choose(tn_cuda *c, product *p)
{
    const tn_cuda_api *a = c->api;
    tn_cublas_preference pref = NULL;
    tn_cublas_choice choice;
    size_t room = WORKSPACE;
    const int32_t align[4] = {p->key.align_a, p->key.align_b, p->key.align_c, p->key.align_c};
    static const tn_cublas_preference_attribute which[4] = {TN_CUBLAS_PREF_ALIGN_A, TN_CUBLAS_PREF_ALIGN_B,
                                                            TN_CUBLAS_PREF_ALIGN_C, TN_CUBLAS_PREF_ALIGN_D};
    int found = 0;
    memset(&choice, 0, sizeof choice);
    tn_cublas_result e = a->cublasLtMatmulPreferenceCreate(&pref);
    if (!e) e = a->cublasLtMatmulPreferenceSetAttribute(pref, TN_CUBLAS_PREF_WORKSPACE, &room, sizeof room);
    for (int i = 0; i < 4 && !e; i++) {
        uint32_t bytes = (uint32_t)align[i];
        e = a->cublasLtMatmulPreferenceSetAttribute(pref, which[i], &bytes, sizeof bytes);
    }
    if (!e)
        e = a->cublasLtMatmulAlgoGetHeuristic(c->blas->handle, p->desc, p->a, p->b, p->c, p->c, pref, 1,
                                              &choice, &found);
    if (pref) a->cublasLtMatmulPreferenceDestroy(pref);
    if (!e && (!found || choice.state)) e = TN_CUBLAS_NOT_SUPPORTED;
    p->algo = choice.algo;
    return (int)e;
}

static bool has_none(tn_cublas_result e)
{
    return e == TN_CUBLAS_NOT_SUPPORTED || e == TN_CUBLAS_INVALID_VALUE;
}

/* The product of this shape. */
static int look_up(tn_cuda *c, const shape *k, product **out, tn_errbuf *err)
{
    product **slot = &c->blas->slot[tn_hash_bytes(k, sizeof *k) % SLOTS], *p = *slot;
    while (p && memcmp(&p->key, k, sizeof *k)) p = p->next;
    *out = p;
    if (p) return TN_OK;
    if (c->blas->n >= MOST) drop_all(c);
    p = tn_calloc(1, sizeof *p);
    if (!p) return tn_err(err, TN_E_NOMEM, "out of host memory");
    p->key = *k;
    tn_cublas_result e = (tn_cublas_result)describe(c, p);
    if (!e) e = (tn_cublas_result)choose(c, p);
    if (has_none(e) && k->epilogue != TN_CUBLAS_EPILOGUE_DEFAULT) {
        p->apart = true;
        undescribe(c, p);
        e = (tn_cublas_result)describe(c, p);
        if (!e) e = (tn_cublas_result)choose(c, p);
    }
    p->own = has_none(e);
    if (e && !p->own) {
        drop(c, p);
        return blas_check(e, "choosing an algorithm", err);
    }
    if (p->own)
        tn_cuda_log(c, TN_LOG_INFO,
                    "cuBLASLt has no algorithm for a %s product of %lld x %lld x %lld: own kernel",
                    tn_dtype_name(k->dtype), (long long)k->columns, (long long)k->rows, (long long)k->depth);
    p->next = *slot;
    *slot = *out = p;
    c->blas->n++;
    return TN_OK;
}

/* ---- our own kernels ---- */

static int variant_of(tn_dtype d)
{
    switch (d) {
    case TN_F32: return 0;
    case TN_F64: return 1;
    case TN_F16: return 2;
    case TN_BF16: return 3;
    case TN_I32: return 4;
    case TN_I64: return 5;
    case TN_U8:
    case TN_BOOL:
    case TN_DTYPE_COUNT: break;
    }
    return 6;
}

static int run_own(tn_cuda *c, const tn_gemm *g, bool add, bool wide, tn_errbuf *err)
{
    tn_cuda_args a = {.chunk = 1};
    int64_t batches = 1, down = (g->m + OWN_TILE - 1) / OWN_TILE, across = (g->n + OWN_TILE - 1) / OWN_TILE;
    const int64_t dim[] = {g->m,     g->n,     g->k,
                           g->a_row, g->a_col, g->b_row,
                           g->b_col, g->c_row, g->epilogue == TN_EPI_RELU,
                           add,      wide,     g->batch_ndim};
    memcpy(a.dim, dim, sizeof dim);
    for (int d = 0; d < g->batch_ndim; d++) {
        batches *= g->batch[d];
        a.dim[12 + d] = g->batch[d];
        a.dim[16 + d] = g->a_batch[d];
        a.dim[20 + d] = g->b_batch[d];
        a.dim[24 + d] = g->c_batch[d];
    }
    const void *buf[] = {g->a, g->b, g->bias, g->c};
    memcpy(a.buf, buf, sizeof buf);
    a.n = batches * down * across;
    return tn_cuda_start_own(c, TN_OWN_PRODUCT, variant_of(g->dtype), &a, 256, err);
}

int tn_cuda_epilogue(tn_cuda *c, tn_dtype d, const void *in, bool wide, const void *bias, void *out,
                     int64_t rows, int64_t columns, int64_t in_row, int64_t out_row, bool relu,
                     tn_errbuf *err)
{
    tn_cuda_args a = {.n = rows * columns, .chunk = EPILOGUE_CHUNK};
    const int64_t dim[] = {columns, in_row, out_row, relu, wide};
    const void *buf[] = {in, bias, out};
    memcpy(a.dim, dim, sizeof dim);
    memcpy(a.buf, buf, sizeof buf);
    return tn_cuda_start_own(c, TN_OWN_EPILOGUE, variant_of(d), &a, 256, err);
}

/* ---- one call ---- */

static int32_t alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & (~(uintptr_t)p + 1);
    return low >= 16 || !low ? 16 : (int32_t)low;
}

/* Leading dimension and transposition of a row-major operand [rows, columns] seen as columns. False: its
 * strides are none that cuBLASLt knows. A stride along an extent of 1 says nothing. */
static bool operand(int64_t rows, int64_t columns, int64_t row, int64_t column, int64_t *leading,
                    int32_t *transpose)
{
    *transpose = TN_CUBLAS_OP_N;
    *leading = rows > 1 ? row : columns;
    if ((column == 1 || columns == 1) && *leading >= columns) return true;
    *transpose = TN_CUBLAS_OP_T;
    *leading = columns > 1 ? column : rows;
    return (row == 1 || rows == 1) && *leading >= rows;
}

/* Returns true where cuBLASLt can apply the epilogue. */
static bool epilogue_fits(const tn_gemm *g) { return g->dtype != TN_F64 && alignment(g->bias) == 16; }

static bool make_shape(const tn_gemm *g, bool add, bool wide, int batch_dim, shape *k)
{
    memset(k, 0, sizeof *k);
    k->rows = g->n;
    k->columns = g->m;
    k->depth = g->k;
    k->ldc = g->m > 1 ? g->c_row : g->n;
    k->dtype = (int32_t)g->dtype;
    k->add = add;
    k->wide = wide;
    k->tf32 = g->tf32 && g->dtype == TN_F32;
    k->batch = 1;
    if (batch_dim >= 0) {
        k->batch = g->batch[batch_dim];
        k->stride_a = g->b_batch[batch_dim];
        k->stride_b = g->a_batch[batch_dim];
        k->stride_c = g->c_batch[batch_dim];
    }
    bool relu = g->epilogue == TN_EPI_RELU;
    k->epilogue = !epilogue_fits(g) ? TN_CUBLAS_EPILOGUE_DEFAULT
                  : g->bias         ? (relu ? TN_CUBLAS_EPILOGUE_RELU_BIAS : TN_CUBLAS_EPILOGUE_BIAS)
                                    : (relu ? TN_CUBLAS_EPILOGUE_RELU : TN_CUBLAS_EPILOGUE_DEFAULT);
    k->align_a = alignment(g->b);
    k->align_b = alignment(g->a);
    k->align_c = alignment(g->c);
    return tn_dtype_is_float(g->dtype) && g->k > 0 && k->ldc >= g->n && k->batch <= INT32_MAX &&
           operand(g->k, g->n, g->b_row, g->b_col, &k->lda, &k->transpose_a) &&
           operand(g->m, g->k, g->a_row, g->a_col, &k->ldb, &k->transpose_b);
}

static void take_batch(tn_gemm *to, int i, const tn_gemm *from, int d)
{
    to->batch[i] = from->batch[d];
    to->a_batch[i] = from->a_batch[d];
    to->b_batch[i] = from->b_batch[d];
    to->c_batch[i] = from->c_batch[d];
}

/* The operands as they stand, along at most one batch extent. */
static int run_strided(tn_cuda *c, const tn_gemm *g, bool add, bool wide, int batch_dim, tn_errbuf *err)
{
    shape k;
    tn_gemm one = *g;
    one.batch_ndim = batch_dim >= 0;
    if (batch_dim >= 0) take_batch(&one, 0, g, batch_dim);
    if (!make_shape(g, add, wide, batch_dim, &k)) return run_own(c, &one, add, wide, err);
    product *p;
    int status = look_up(c, &k, &p, err);
    if (status) return status;
    if (p->own) return run_own(c, &one, add, wide, err);
    float alpha_f = 1, beta_f = add;
    double alpha_d = 1, beta_d = add;
    bool is_f64 = g->dtype == TN_F64, fits = !p->apart && epilogue_fits(g);
    if (g->bias && fits) {
        status = blas_check(
            c->api->cublasLtMatmulDescSetAttribute(p->desc, TN_CUBLAS_DESC_BIAS, &g->bias, sizeof g->bias),
            "the bias", err);
        if (status) return status;
    }
    status = blas_check(
        c->api->cublasLtMatmul(c->blas->handle, p->desc, is_f64 ? (const void *)&alpha_d : &alpha_f, g->b,
                               p->a, g->a, p->b, is_f64 ? (const void *)&beta_d : &beta_f, g->c, p->c, g->c,
                               p->c, &p->algo, c->blas->workspace, WORKSPACE, c->stream),
        "cublasLtMatmul", err);
    if (!status) tn_cuda_note(c, "matmul");
    size_t size = tn_dtype_size(g->dtype);
    for (int64_t i = 0; i < k.batch && !status && !fits && (g->bias || g->epilogue == TN_EPI_RELU); i++) {
        char *at = (char *)g->c + (size_t)(i * k.stride_c) * size;
        status = tn_cuda_epilogue(c, g->dtype, at, false, g->bias, at, g->m, g->n, g->c_row, g->c_row,
                                  g->epilogue == TN_EPI_RELU, err);
    }
    return status;
}

/* ---- batches ---- */

static void remove_batch(tn_gemm *g, int d)
{
    for (g->batch_ndim--; d < g->batch_ndim; d++) take_batch(g, d, g, d + 1);
}

/* Fewer batch extents: those of 1 go, neighbours that step evenly become one, and one that shares B and whose
 * matrices touch in A and C makes the product taller. */
static void collapse(tn_gemm *g)
{
    for (int d = g->batch_ndim; d-- > 0;)
        if (g->batch[d] == 1) remove_batch(g, d);
    for (int d = g->batch_ndim - 1; d > 0; d--) {
        int64_t n = g->batch[d];
        if (g->a_batch[d - 1] != g->a_batch[d] * n || g->b_batch[d - 1] != g->b_batch[d] * n ||
            g->c_batch[d - 1] != g->c_batch[d] * n)
            continue;
        g->a_batch[d - 1] = g->a_batch[d];
        g->b_batch[d - 1] = g->b_batch[d];
        g->c_batch[d - 1] = g->c_batch[d];
        g->batch[d - 1] *= n;
        remove_batch(g, d);
    }
    int last = g->batch_ndim - 1;
    if (last >= 0 && g->b_batch[last] == 0 && g->a_col == 1 && g->a_batch[last] == g->m * g->a_row &&
        g->c_batch[last] == g->m * g->c_row) {
        g->m *= g->batch[last];
        remove_batch(g, last);
    }
}

int tn_cuda_gemm(tn_cuda *c, const tn_gemm *request, bool add, bool wide, tn_errbuf *err)
{
    tn_gemm g = *request;
    size_t size = tn_dtype_size(g.dtype), out_size = wide ? sizeof(float) : size;
    int64_t batches = 0;
    int status = tn_gemm_check(&g, &batches, err);
    if (status || batches <= 0) return status;
    if (c->told) return run_own(c, &g, add, wide, err);
    collapse(&g);
    status = open_blas(c, err);
    int strided = -1; /* the largest extent is the batch, the others are looped over */
    for (int d = 0; d < g.batch_ndim; d++)
        if (strided < 0 || g.batch[d] > g.batch[strided]) strided = d;
    batches = 1;
    for (int d = 0; d < g.batch_ndim; d++) batches *= d == strided ? 1 : g.batch[d];
    for (int64_t i = 0; i < batches && !status; i++) {
        tn_gemm one = g;
        int64_t at = i, a = 0, b = 0, o = 0;
        for (int d = g.batch_ndim - 1; d >= 0; d--) {
            if (d == strided) continue;
            a += at % g.batch[d] * g.a_batch[d];
            b += at % g.batch[d] * g.b_batch[d];
            o += at % g.batch[d] * g.c_batch[d];
            at /= g.batch[d];
        }
        one.a = (const char *)g.a + a * (int64_t)size;
        one.b = (const char *)g.b + b * (int64_t)size;
        one.c = (char *)g.c + o * (int64_t)out_size;
        status = run_strided(c, &one, add, wide, strided, err);
    }
    return status;
}
