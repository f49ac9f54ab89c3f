/* library.c - start with tn_gemm_of. */
#include "library.h"

#include <string.h>

static bool readable(int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    if (rows > 1 && cols > 1) return (col == 1 && row >= cols) || (row == 1 && col >= rows);
    return (rows <= 1 || row > 0) && (cols <= 1 || col > 0) && (rows <= 1 || cols <= 1);
}

bool tn_matrix_of(const tn_tensor *x, bool copied, tn_matrix *m)
{
    const int axes = x->ndim - 2;
    const int64_t rows = x->shape[axes], cols = x->shape[axes + 1];
    int64_t dense[TN_MAX_DIMS];
    tn_dense_strides(x->ndim, x->shape, dense);
    const int64_t *stride = copied ? dense : x->stride;
    if (!copied && !readable(rows, cols, stride[axes], stride[axes + 1])) return false;
    m->row = stride[axes];
    m->col = stride[axes + 1];
    for (int i = 0; i < axes; i++) m->batch[i] = x->shape[i] == 1 ? 0 : stride[i];
    /* an axis of one element may have any stride: name one the library takes */
    if (cols <= 1) m->col = m->row == 1 && rows > 1 ? rows : 1;
    if (cols <= 1 && m->row < 1) m->row = 1;
    if (rows <= 1) m->row = m->col == 1 ? cols : 1;
    return true;
}

bool tn_gemm_of(const tn_tensor *t, const tn_matrix *a, const tn_matrix *b, const tn_matrix *c, tn_gemm *g)
{
    const int axes = t->ndim - 2;
    int64_t extent[TN_MAX_DIMS], of_a[TN_MAX_DIMS], of_b[TN_MAX_DIMS], of_c[TN_MAX_DIMS];
    int n = 0;
    *g = (tn_gemm){.dtype = t->dtype,
                   .m = t->shape[axes],
                   .n = t->shape[axes + 1],
                   .k = t->in[0]->shape[axes + 1],
                   .a_row = a->row,
                   .a_col = a->col,
                   .b_row = b->row,
                   .b_col = b->col,
                   .c_row = c->row};
    for (int i = 0; i < axes; i++) {
        int64_t e = t->shape[i];
        if (e == 1) continue;
        bool one = n && of_a[n - 1] == a->batch[i] * e && of_b[n - 1] == b->batch[i] * e &&
                   of_c[n - 1] == c->batch[i] * e;
        if (one) e *= extent[--n];
        extent[n] = e;
        of_a[n] = a->batch[i];
        of_b[n] = b->batch[i];
        of_c[n++] = c->batch[i];
    }
    /* batches over one B, whose rows follow each other in A and C, are more rows of A */
    while (n && of_b[n - 1] == 0 && a->col == 1 && of_a[n - 1] == a->row * g->m &&
           of_c[n - 1] == c->row * g->m)
        g->m *= extent[--n];
    if (n > TN_GEMM_BATCH_DIMS) return false;
    g->batch_ndim = n;
    memcpy(g->batch, extent, (size_t)n * sizeof *extent);
    memcpy(g->a_batch, of_a, (size_t)n * sizeof *of_a);
    memcpy(g->b_batch, of_b, (size_t)n * sizeof *of_b);
    memcpy(g->c_batch, of_c, (size_t)n * sizeof *of_c);
    return true;
}

tn_conv2d_desc tn_conv2d_of(const tn_tensor *t)
{
    const tn_tensor *x = t->in[0], *y = t->in[1], *out = t; /* of the convolution's result */
    const tn_conv_attr *p = &t->attr->conv;
    tn_conv2d_desc d = {.dtype = t->dtype,
                        .pass = TN_CONV_FORWARD,
                        .h = p->h,
                        .w = p->w,
                        .c = x->shape[3],
                        .oc = y->shape[0],
                        .kh = p->kh,
                        .kw = p->kw,
                        .groups = p->groups};
    memcpy(d.stride, p->stride, sizeof d.stride);
    memcpy(d.pad, p->pad, sizeof d.pad);
    memcpy(d.dilation, p->dilation, sizeof d.dilation);
    if (t->op == TN_OP_conv2d_data_grad) {
        d.pass = TN_CONV_DATA_GRAD;
        d.c = y->shape[3] * p->groups;
        out = x;
    } else if (t->op == TN_OP_conv2d_weight_grad) {
        d.pass = TN_CONV_WEIGHT_GRAD;
        d.oc = y->shape[3];
        out = y;
    }
    d.n = out->shape[0];
    d.oh = out->shape[1];
    d.ow = out->shape[2];
    return d;
}
