/* blaslt.c - the simulator's cuBLASLt: descriptors, what is accepted, the one algorithm there is.
 *
 * Combinations that the manual does not list are refused with the statuses that it names, and the algorithm
 * that the heuristic returns holds the caller to what it promised: the alignments, and the workspace, which
 * is overwritten with garbage because the real library would.
 *
 * Read first: cublasLtMatmul. */
#include "sim.h"

#include <stdlib.h>

enum {
    ALIGNMENT_ANY = 256,  /* what a preference promises unless it says less */
    WORKSPACE = 64 << 10, /* the algorithm's, where the preference allows as much */
    MAGIC = 0x63756c74
};

struct cublasLtContext {
    int magic;
};

typedef struct descriptor {
    tn_cublas_compute compute;
    tn_cublas_type scale, bias_type;
    int32_t pointer_mode, transpose_a, transpose_b;
    uint32_t epilogue;
    const void *bias;
} descriptor;

typedef struct layout {
    tn_cublas_type type;
    int32_t order, batch;
    uint64_t rows, columns;
    int64_t leading, stride;
} layout;

typedef struct preference {
    uint64_t workspace;
    uint32_t alignment[4]; /* of A, B, C, D */
} preference;

typedef struct algorithm { /* in the caller's tn_cublas_algo */
    uint64_t magic, workspace;
    uint32_t alignment[4];
} algorithm;
_Static_assert(sizeof(algorithm) <= sizeof(tn_cublas_algo), "fits");

tn_cublas_result cublasLtCreate(tn_cublas_handle *handle)
{
    if (!handle) return SIM_BLAS_INVALID_VALUE;
    if (!sim_has_context()) return SIM_BLAS_NOT_INITIALIZED;
    if (!(*handle = calloc(1, sizeof **handle))) return TN_CUBLAS_ALLOC_FAILED;
    (*handle)->magic = MAGIC;
    return SIM_OK;
}

tn_cublas_result cublasLtDestroy(tn_cublas_handle handle)
{
    if (!handle || handle->magic != MAGIC) return SIM_BLAS_INVALID_VALUE;
    free(handle);
    return SIM_OK;
}

/* ---- descriptors ---- */

/* A member that an attribute sets. */
typedef struct member {
    unsigned attribute;
    size_t at, size;
} member;
#define MEMBER(attribute, type, name)                                                                        \
    {                                                                                                        \
        attribute, offsetof(type, name), sizeof((type *)0)->name                                             \
    }

static tn_cublas_result put(void *object, const member *m, size_t n, unsigned attribute, const void *value,
                            size_t bytes)
{
    for (; n; m++, n--) {
        if (m->attribute != attribute) continue;
        if (!value || bytes != m->size) return SIM_BLAS_INVALID_VALUE;
        memcpy((char *)object + m->at, value, bytes);
        return SIM_OK;
    }
    return SIM_BLAS_INVALID_VALUE;
}

tn_cublas_result cublasLtMatmulDescCreate(tn_cublas_desc *desc, tn_cublas_compute compute,
                                          tn_cublas_type scale)
{
    descriptor *d = calloc(1, sizeof *d);
    if (!d) return TN_CUBLAS_ALLOC_FAILED;
    *d = (descriptor){
        .compute = compute, .scale = scale, .bias_type = UINT32_MAX, .epilogue = TN_CUBLAS_EPILOGUE_DEFAULT};
    *desc = d;
    return SIM_OK;
}

tn_cublas_result cublasLtMatmulDescDestroy(tn_cublas_desc desc)
{
    free(desc);
    return SIM_OK;
}

tn_cublas_result cublasLtMatmulDescSetAttribute(tn_cublas_desc desc, tn_cublas_desc_attribute which,
                                                const void *value, size_t bytes)
{
    static const member members[] = {MEMBER(SIM_DESC_COMPUTE, descriptor, compute),
                                     MEMBER(SIM_DESC_SCALE, descriptor, scale),
                                     MEMBER(SIM_DESC_POINTER_MODE, descriptor, pointer_mode),
                                     MEMBER(TN_CUBLAS_DESC_TRANSA, descriptor, transpose_a),
                                     MEMBER(TN_CUBLAS_DESC_TRANSB, descriptor, transpose_b),
                                     MEMBER(TN_CUBLAS_DESC_EPILOGUE, descriptor, epilogue),
                                     MEMBER(TN_CUBLAS_DESC_BIAS, descriptor, bias),
                                     MEMBER(SIM_DESC_BIAS_TYPE, descriptor, bias_type)};
    return put(desc, members, sizeof members / sizeof *members, which, value, bytes);
}

tn_cublas_result cublasLtMatrixLayoutCreate(tn_cublas_layout *out, tn_cublas_type type, uint64_t rows,
                                            uint64_t columns, int64_t leading)
{
    layout *l = calloc(1, sizeof *l);
    if (!l) return TN_CUBLAS_ALLOC_FAILED;
    *l = (layout){.type = type, .rows = rows, .columns = columns, .leading = leading, .batch = 1};
    *out = l;
    return SIM_OK;
}

tn_cublas_result cublasLtMatrixLayoutDestroy(tn_cublas_layout l)
{
    free(l);
    return SIM_OK;
}

tn_cublas_result cublasLtMatrixLayoutSetAttribute(tn_cublas_layout matrix, tn_cublas_layout_attribute which,
                                                  const void *value, size_t bytes)
{
    static const member members[] = {
        MEMBER(SIM_LAYOUT_TYPE, layout, type),          MEMBER(SIM_LAYOUT_ORDER, layout, order),
        MEMBER(SIM_LAYOUT_ROWS, layout, rows),          MEMBER(SIM_LAYOUT_COLUMNS, layout, columns),
        MEMBER(SIM_LAYOUT_LEADING, layout, leading),    MEMBER(TN_CUBLAS_LAYOUT_BATCH, layout, batch),
        MEMBER(TN_CUBLAS_LAYOUT_STRIDE, layout, stride)};
    return put(matrix, members, sizeof members / sizeof *members, which, value, bytes);
}

tn_cublas_result cublasLtMatmulPreferenceCreate(tn_cublas_preference *out)
{
    preference *p = calloc(1, sizeof *p);
    if (!p) return TN_CUBLAS_ALLOC_FAILED;
    for (int i = 0; i < 4; i++) p->alignment[i] = ALIGNMENT_ANY;
    *out = p;
    return SIM_OK;
}

tn_cublas_result cublasLtMatmulPreferenceDestroy(tn_cublas_preference p)
{
    free(p);
    return SIM_OK;
}

tn_cublas_result cublasLtMatmulPreferenceSetAttribute(tn_cublas_preference pref,
                                                      tn_cublas_preference_attribute which, const void *value,
                                                      size_t bytes)
{
    static const member members[] = {MEMBER(TN_CUBLAS_PREF_WORKSPACE, preference, workspace),
                                     MEMBER(TN_CUBLAS_PREF_ALIGN_A, preference, alignment[0]),
                                     MEMBER(TN_CUBLAS_PREF_ALIGN_B, preference, alignment[1]),
                                     MEMBER(TN_CUBLAS_PREF_ALIGN_C, preference, alignment[2]),
                                     MEMBER(TN_CUBLAS_PREF_ALIGN_D, preference, alignment[3])};
    return put(pref, members, sizeof members / sizeof *members, which, value, bytes);
}

/* ---- what is accepted ---- */

static size_t type_bytes(tn_cublas_type type)
{
    switch (type) {
    case TN_CUBLAS_F32: return 4;
    case TN_CUBLAS_F64: return 8;
    case TN_CUBLAS_F16:
    case TN_CUBLAS_BF16: return 2;
    }
    return 0;
}

/* The manual's table of types: A and B alike, and what C, D and the bias may then be. */
static bool types_fit(const descriptor *d, const layout *a, const layout *b, const layout *c,
                      const layout *out)
{
    bool f64 = d->compute == TN_CUBLAS_COMPUTE_F64 || d->compute == SIM_COMPUTE_F64_PEDANTIC;
    bool f32 = d->compute == TN_CUBLAS_COMPUTE_F32 || d->compute == SIM_COMPUTE_F32_PEDANTIC;
    bool fast = d->compute == SIM_COMPUTE_F32_FAST_F16 || d->compute == SIM_COMPUTE_F32_FAST_BF16 ||
                d->compute == TN_CUBLAS_COMPUTE_TF32;
    if (a->type != b->type || c->type != out->type || !type_bytes(a->type) || !type_bytes(out->type))
        return false;
    if (f64) return d->scale == TN_CUBLAS_F64 && a->type == TN_CUBLAS_F64 && out->type == TN_CUBLAS_F64;
    if (fast && (a->type != TN_CUBLAS_F32 || out->type != TN_CUBLAS_F32)) return false;
    return (f32 || fast) && d->scale == TN_CUBLAS_F32 && a->type != TN_CUBLAS_F64 &&
           (out->type == a->type || out->type == TN_CUBLAS_F32);
}

static bool layout_fits(const layout *l)
{
    uint64_t low = l->order == SIM_ORDER_ROW ? l->columns : l->rows;
    return (l->order == SIM_ORDER_COLUMN || l->order == SIM_ORDER_ROW) && l->rows && l->columns &&
           l->batch >= 1 && l->leading >= (int64_t)low;
}

static bool epilogue_fits(const descriptor *d, const layout *out)
{
    switch (d->epilogue) {
    case TN_CUBLAS_EPILOGUE_DEFAULT: return true;
    case TN_CUBLAS_EPILOGUE_BIAS:
    case TN_CUBLAS_EPILOGUE_RELU_BIAS:
    case SIM_EPILOGUE_GELU_BIAS: /* the bias is as long as D has rows, and of D's type */
        return out->type != TN_CUBLAS_F64 && out->order == SIM_ORDER_COLUMN &&
               (d->bias_type == UINT32_MAX || d->bias_type == out->type);
    case TN_CUBLAS_EPILOGUE_RELU:
    case SIM_EPILOGUE_GELU: return out->type != TN_CUBLAS_F64;
    }
    return false;
}

static tn_cublas_result examine(const descriptor *d, const layout *a, const layout *b, const layout *c,
                                const layout *out)
{
    if (!d || !a || !b || !c || !out) return SIM_BLAS_INVALID_VALUE;
    uint64_t m = d->transpose_a ? a->columns : a->rows, k = d->transpose_a ? a->rows : a->columns;
    uint64_t k2 = d->transpose_b ? b->columns : b->rows, n = d->transpose_b ? b->rows : b->columns;
    if (!layout_fits(a) || !layout_fits(b) || !layout_fits(c) || !layout_fits(out))
        return SIM_BLAS_INVALID_VALUE;
    if (k != k2 || out->rows != m || out->columns != n || c->rows != m || c->columns != n)
        return SIM_BLAS_INVALID_VALUE;
    if (a->batch != out->batch || b->batch != out->batch || c->batch != out->batch)
        return SIM_BLAS_INVALID_VALUE;
    if (d->pointer_mode != 0 || d->transpose_a > 1 || d->transpose_b > 1) return TN_CUBLAS_NOT_SUPPORTED;
    return types_fit(d, a, b, c, out) && epilogue_fits(d, out) ? SIM_OK : TN_CUBLAS_NOT_SUPPORTED;
}

/* What no manual tells: for some products the real one finds nothing. */
static bool happens_to_have_none(const descriptor *d, const layout *a, const layout *out)
{
    const uint64_t number = ((out->rows * 31 + out->columns) * 31 + a->rows + a->columns) * 31 + d->epilogue;
    return sim.set.unsupported && (number * 0x9e3779b97f4a7c15u >> 32) % (uint64_t)sim.set.unsupported == 0;
}

tn_cublas_result cublasLtMatmulAlgoGetHeuristic(tn_cublas_handle handle, tn_cublas_desc desc,
                                                tn_cublas_layout a, tn_cublas_layout b, tn_cublas_layout c,
                                                tn_cublas_layout d, tn_cublas_preference pref, int wanted,
                                                tn_cublas_choice *choices, int *found)
{
    const preference *p = pref;
    if (!handle || handle->magic != MAGIC || !p || wanted < 1 || !choices || !found)
        return SIM_BLAS_INVALID_VALUE;
    *found = 0;
    tn_cublas_result status = examine(desc, a, b, c, d);
    if (status) return status;
    if (happens_to_have_none(desc, a, d)) return TN_CUBLAS_NOT_SUPPORTED;
    const layout *const of[] = {a, b, c, d};
    algorithm chosen = {.magic = MAGIC, .workspace = p->workspace >= WORKSPACE ? WORKSPACE : 0};
    for (int i = 0; i < 4; i++) {
        if (p->alignment[i] < type_bytes(of[i]->type)) return TN_CUBLAS_NOT_SUPPORTED;
        chosen.alignment[i] = p->alignment[i];
    }
    memset(choices, 0, sizeof *choices);
    memcpy(&choices->algo, &chosen, sizeof chosen);
    choices->workspace = chosen.workspace;
    choices->waves = 1;
    *found = 1;
    return SIM_OK;
}

/* ---- the call ---- */

static double scalar(const void *p, tn_cublas_type type)
{
    double f64;
    float f32;
    if (type == TN_CUBLAS_F64)
        memcpy(&f64, p, sizeof f64);
    else
        memcpy(&f32, p, sizeof f32), f64 = (double)f32;
    return f64;
}

static sim_matrix matrix(const layout *l, const void *at)
{
    return (sim_matrix){.at = (uint64_t)(uintptr_t)at,
                        .type = l->type,
                        .rows = (int64_t)l->rows,
                        .columns = (int64_t)l->columns,
                        .leading = l->leading,
                        .batch = l->batch,
                        .stride = l->stride,
                        .row_order = l->order == SIM_ORDER_ROW};
}

static tn_cublas_result promises_kept(const tn_cublas_algo *algo, const void *const at[4],
                                      const void *workspace, size_t workspace_bytes, uint64_t *used)
{
    algorithm chosen;
    *used = 0;
    if (!algo) return SIM_OK;
    memcpy(&chosen, algo, sizeof chosen);
    if (chosen.magic != MAGIC || workspace_bytes < chosen.workspace) return SIM_BLAS_INVALID_VALUE;
    if (chosen.workspace && (!workspace || (uintptr_t)workspace % 16)) return SIM_BLAS_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)at[i] % chosen.alignment[i]) return TN_CUBLAS_NOT_SUPPORTED;
    *used = chosen.workspace;
    return SIM_OK;
}

tn_cublas_result cublasLtMatmul(tn_cublas_handle handle, tn_cublas_desc desc, const void *alpha,
                                const void *a, tn_cublas_layout a_layout, const void *b,
                                tn_cublas_layout b_layout, const void *beta, const void *c,
                                tn_cublas_layout c_layout, void *d, tn_cublas_layout d_layout,
                                const tn_cublas_algo *algo, void *workspace, size_t workspace_bytes,
                                tn_cu_stream stream)
{
    const descriptor *how = desc;
    const layout *out = d_layout;
    const void *const at[] = {a, b, c, d};
    uint64_t used = 0;
    if (!handle || handle->magic != MAGIC || !alpha || !beta || !a || !b || !d) return SIM_BLAS_INVALID_VALUE;
    tn_cublas_result status = examine(how, a_layout, b_layout, c_layout, out);
    if (!status) status = promises_kept(algo, at, workspace, workspace_bytes, &used);
    if (status) return status;
    const bool biased = how->epilogue & TN_CUBLAS_EPILOGUE_BIAS;
    if (biased && (!how->bias || (uintptr_t)how->bias % type_bytes(out->type))) return SIM_BLAS_INVALID_VALUE;
    if (c == d && memcmp(c_layout, d_layout, sizeof(layout)) != 0) return SIM_BLAS_INVALID_VALUE;
    if (sim_enter(true)) return sim_leave(SIM_BLAS_EXECUTION_FAILED);
    sim_stream *s = sim_stream_of(stream);
    bool fail = sim_setting_due(sim.set.matmul, sim.matmul_from, ++sim.matmuls_ever);
    if (!s || fail) return sim_leave(s ? SIM_BLAS_EXECUTION_FAILED : SIM_BLAS_INVALID_VALUE);
    sim_op *op = sim_op_new(SIM_MATMUL);
    if (!op || !(op->product = calloc(1, sizeof *op->product))) {
        sim_op_drop(op);
        return sim_leave(TN_CUBLAS_ALLOC_FAILED);
    }
    double plus = scalar(beta, how->scale);
    if (plus != 0 && !c) {
        sim_op_drop(op);
        return sim_leave(SIM_BLAS_INVALID_VALUE);
    }
    *op->product = (sim_product){.a = matrix(a_layout, a),
                                 .b = matrix(b_layout, b),
                                 .c = matrix(c_layout, c),
                                 .d = matrix(out, d),
                                 .transpose_a = how->transpose_a,
                                 .transpose_b = how->transpose_b,
                                 .double_precision = how->scale == TN_CUBLAS_F64,
                                 .tf32 = how->compute == TN_CUBLAS_COMPUTE_TF32,
                                 .epilogue = how->epilogue,
                                 .bias = biased ? (uint64_t)(uintptr_t)how->bias : 0,
                                 .bias_type = out->type,
                                 .alpha = scalar(alpha, how->scale),
                                 .beta = plus,
                                 .workspace = (uint64_t)(uintptr_t)workspace,
                                 .workspace_bytes = used};
    return sim_leave(sim_submit(s, op) ? SIM_BLAS_EXECUTION_FAILED : SIM_OK);
}
