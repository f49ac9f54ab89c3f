/* weights.c - weights of a forward pass in fewer bits: which parameters they are, their rounding, and how the
 * file writes them. A weight is a constant region that all the plan's steps read as the second operand of a
 * product or as the window of a convolution, in one orientation, so that it has outputs: int8 has a scale for
 * each. The functions of product.h that pack blocks of such an operand take it apart.
 *
 * Start with ex_round_weights. */
#include "export.h"

#include <math.h>

static const struct {
    const char *name, *type, *pack;
    size_t bytes;
} forms[] = {[TN_EXPORT_F32] = {"f32", "float", "pack_f32", 4},
             [TN_EXPORT_F16] = {"f16", "uint16_t", "pack_f16", 2},
             [TN_EXPORT_BF16] = {"bf16", "uint16_t", "pack_bf16", 2},
             [TN_EXPORT_INT8] = {"int8", "int8_t", "pack_int8", 1}};

const char *ex_type(const tn_export *x, tn_dtype d)
{
    static const char *const type[TN_DTYPE_COUNT] = {
        [TN_F32] = "float",   [TN_F64] = "double", [TN_I32] = "int32_t",
        [TN_I64] = "int64_t", [TN_U8] = "uint8_t", [TN_BOOL] = "uint8_t"};
    return x->cuda && tn_dtype_size(d) == 2 ? "uint16_t" : type[d];
}

const char *ex_region_type(const tn_export *x, const ex_region *r)
{
    return r->weights ? forms[r->weights].type : ex_type(x, r->dtype);
}

size_t ex_region_bytes(const ex_region *r)
{
    return r->bytes / 4 * forms[r->weights].bytes +
           (r->weights == TN_EXPORT_INT8 ? (size_t)r->outputs * 4 : 0);
}

const char *ex_pack(const tn_export *x, int slot)
{
    const ex_place *p = slot >= 0 ? &x->place[slot] : NULL;
    return forms[p && p->kind == EX_REGION ? x->region[p->index].weights : TN_EXPORT_F32].pack;
}

/* ---- which they are ---- */

/* Returns true where operand k of st is a whole matrix [outputs, terms]: the distance of two outputs, and of
 * two terms, is told. */
static bool is_weight(const tn_step *st, int k, ex_region *as)
{
    switch (st->kind) {
    case TN_STEP_GEMM:
        as->outputs = st->gemm.n;
        as->terms = st->gemm.k;
        as->by_output = st->gemm.b_col;
        as->by_term = st->gemm.b_row;
        for (int i = 0; i < st->gemm.batch_ndim; i++)
            if (st->gemm.batch[i] != 1 && st->gemm.b_batch[i]) return false;
        return k == 1 && st->gemm.dtype == TN_F32 && !st->offset[k];
    case TN_STEP_CONV:
        as->outputs = st->conv.oc;
        as->terms = st->conv.kh * st->conv.kw * st->conv.c / st->conv.groups;
        as->by_output = as->terms;
        as->by_term = 1;
        return k == 1 && st->conv.pass == TN_CONV_FORWARD && st->conv.dtype == TN_F32 && !st->offset[k];
    case TN_STEP_KERNEL:
    case TN_STEP_HOST:
    case TN_STEP_RANKS: break;
    }
    return false;
}

static bool dense(const ex_region *r)
{
    return (size_t)(r->outputs * r->terms) * 4 == r->bytes &&
           ((r->by_term == 1 && r->by_output == r->terms) || (r->by_output == 1 && r->by_term == r->outputs));
}

static void look_at(tn_export *x, const tn_step *st, int k)
{
    const ex_place *p = st->buf[k] < 0 ? NULL : &x->place[st->buf[k]];
    if (!p || p->kind != EX_REGION) return;
    ex_region *r = &x->region[p->index], as = *r;
    const bool first = !r->outputs;
    if (!is_weight(st, k, &as) || p->offset || r->written || r->dtype != TN_F32 || !dense(&as) ||
        (!first && (as.by_output != r->by_output || as.outputs != r->outputs)))
        as.outputs = -1; /* none, whatever else reads it */
    if (first || as.outputs < 0) *r = as;
}

/* ---- rounding ---- */

static float rounded(tn_export_weights form, float w, float scale, void *code, int64_t i)
{
    switch (form) {
    case TN_EXPORT_F16: return tn_f16_to_f32(((uint16_t *)code)[i] = tn_f32_to_f16(w));
    case TN_EXPORT_BF16: return tn_bf16_to_f32(((uint16_t *)code)[i] = tn_f32_to_bf16(w));
    case TN_EXPORT_INT8:
        return (float)(((int8_t *)code)[i] = (int8_t)(scale > 0 ? rintf(w / scale) : 0)) * scale;
    case TN_EXPORT_F32: break;
    }
    return w;
}

/* r->data become what the codes stand for. */
static int round_region(tn_export *x, ex_region *r)
{
    float *w = r->data;
    double off = 0, all = 0;
    r->weights = x->options.weights;
    r->code = tn_calloc(r->bytes / 4, forms[r->weights].bytes);
    r->scale = tn_calloc((size_t)r->outputs, sizeof *r->scale);
    if (!r->code || !r->scale) return ex_fail(x, TN_E_NOMEM, "no memory for the weights of %s", r->name);
    for (int64_t o = 0; o < r->outputs; o++) {
        float largest = 0;
        for (int64_t t = 0; t < r->terms; t++) {
            const float v = fabsf(w[o * r->by_output + t * r->by_term]);
            if (!(v <= largest)) largest = v; /* a NaN, too */
            if (!isfinite(largest)) break;
        }
        if (!isfinite(largest) || (r->weights == TN_EXPORT_F16 && largest >= 65520))
            return ex_fail(x, TN_E_UNSUPPORTED, "%s holds %g, which %s does not", r->name, (double)largest,
                           forms[r->weights].name);
        r->scale[o] = largest / 127;
        for (int64_t t = 0; t < r->terms; t++) {
            const int64_t i = o * r->by_output + t * r->by_term;
            const float v = rounded(r->weights, w[i], r->scale[o], r->code, i);
            off += ((double)v - (double)w[i]) * ((double)v - (double)w[i]);
            all += (double)w[i] * (double)w[i];
            w[i] = v;
        }
    }
    r->off = all > 0 ? sqrt(off / all) : 0;
    return TN_OK;
}

int ex_round_weights(tn_export *x)
{
    if (x->options.weights == TN_EXPORT_F32) return TN_OK;
    if (x->cuda)
        return ex_fail(x, TN_E_UNSUPPORTED, "weights in %s are of a NAME.c, and this is a NAME.cu",
                       forms[x->options.weights].name);
    if (x->trains)
        return ex_fail(x, TN_E_UNSUPPORTED, "weights in %s are of a forward pass, and this step assigns",
                       forms[x->options.weights].name);
    for (int i = 0; i < x->plan->n_step; i++)
        for (int k = 0; k < x->plan->step[i].n_buf; k++) look_at(x, &x->plan->step[i], k);
    int status = TN_OK;
    for (int i = 0; i < x->n_region && !status; i++)
        if (x->region[i].outputs > 0) status = round_region(x, &x->region[i]);
    return status;
}

/* ---- in the file ---- */

void ex_put_codes(const ex_region *r, int64_t i, char *out, size_t n)
{
    if (r->weights == TN_EXPORT_INT8)
        snprintf(out, n, "%d", ((const int8_t *)r->code)[i]);
    else
        snprintf(out, n, "%u", ((const uint16_t *)r->code)[i]);
}

void ex_put_rounding(const tn_export *x, tn_growing *t)
{
    TN_EACH(r, x->region, x->n_region) {
        if (r->weights && r->read)
            tn_put(t, " *   %-40s %10zu bytes of %s, off by %.2g %%\n", r->name, ex_region_bytes(r),
                   forms[r->weights].name, 100 * r->off);
    }
}

/* ---- in the session ---- */

static int set_param(tn_session *s, tn_tensor *p, const ex_region *r)
{
    int64_t shape[TN_MAX_DIMS];
    for (int i = 0; i < tn_ndim(p); i++) shape[i] = tn_dim(p, i);
    tn_tensor *v = tn_from(s, r->data, TN_F32, tn_ndim(p), shape);
    const int status = v ? tn_assign(p, v) : tn_error(s);
    tn_free(v);
    return status;
}

int ex_set_params(tn_export *x)
{
    int status = TN_OK;
    for (int k = 0; k < x->s->n_params; k++) {
        tn_storage *holder = NULL;
        const char *at = tn_node_home(x->s->params[k], &holder);
        for (int i = 0; i < x->n_region && !status; i++)
            if (x->region[i].weights && x->region[i].low == at)
                status = set_param(x->s, tn_param_at(x->s, k), &x->region[i]);
    }
    return status;
}
