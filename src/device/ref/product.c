/* product.c - matrix products and convolution with its two gradients, by the definition.
 *
 * All three convolution passes are the same sum over (image, output pixel, window element, channels) with the
 * three tensors in different roles; `sweep` walks it once and `pass` says what is added to what.
 * Read first: tn_ref_conv2d. */
#include "internal.h"

static void whole_matmul(const tn_ref_int *x, const tn_ref_int *y, const tn_ref_int *bias, tn_ref_int *out,
                         int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t sum = bias ? bias[j] : 0;
            for (int64_t p = 0; p < k; p++) sum = tn_ref_sum(sum, tn_ref_product(x[i * k + p], y[p * n + j]));
            out[i * n + j] = sum;
        }
}

int tn_ref_matmul(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    int nd = node->ndim;
    int64_t m = node->shape[nd - 2], n = node->shape[nd - 1], k = node->in[0]->shape[nd - 1];
    int64_t batch = tn_extent(node->shape, 0, nd - 2);
    const double *bias = node->n_in > 2 ? a->in[2] : NULL;
    for (int64_t b = 0; b < batch; b++) {
        const double *x = k > 0 ? a->in[0] + b * m * k : NULL, *y = k > 0 ? a->in[1] + b * k * n : NULL;
        double *out = a->out + b * m * n;
        if (tn_ref_out(a)) {
            whole_matmul(tn_ref_ints(node, x), tn_ref_ints(node, y), tn_ref_ints(node, bias),
                         tn_ref_out(a) + b * m * n, m, n, k);
            continue;
        }
        for (int64_t i = 0; i < m; i++) {
            for (int64_t p = 0; p < k; p++) {
                double v = x[i * k + p];
                for (int64_t j = 0; j < n; j++) out[i * n + j] += v * y[p * n + j];
            }
            for (int64_t j = 0; bias && j < n; j++) out[i * n + j] += bias[j];
        }
    }
    return TN_OK;
}

typedef struct conv {
    tn_op op;
    int64_t n, h, w, c, oc, kh, kw, oh, ow, groups;
    const tn_conv_attr *attr;
    const double *x, *weight, *gy; /* the two that are read; of the other, out is written */
    double *out;
} conv;

/* All products that belong to one output pixel and one window element; x_at and y_at are where the channels
 * of the input and output pixel begin. */
static void products(const conv *v, int64_t x_at, int64_t y_at, int64_t kh, int64_t kw)
{
    int64_t cg = v->c / v->groups, og = v->oc / v->groups;
    for (int64_t oc = 0; oc < v->oc; oc++) {
        int64_t xs = x_at + oc / og * cg, ws = ((oc * v->kh + kh) * v->kw + kw) * cg;
        if (v->op == TN_OP_conv2d) {
            double sum = 0;
            for (int64_t i = 0; i < cg; i++) sum += v->x[xs + i] * v->weight[ws + i];
            v->out[y_at + oc] += sum;
        } else if (v->op == TN_OP_conv2d_data_grad) {
            for (int64_t i = 0; i < cg; i++) v->out[xs + i] += v->gy[y_at + oc] * v->weight[ws + i];
        } else {
            for (int64_t i = 0; i < cg; i++) v->out[ws + i] += v->gy[y_at + oc] * v->x[xs + i];
        }
    }
}

static void pixel(const conv *v, int64_t n, int64_t oh, int64_t ow)
{
    int64_t y_at = ((n * v->oh + oh) * v->ow + ow) * v->oc;
    for (int64_t kh = 0; kh < v->kh; kh++) {
        int64_t ih = oh * v->attr->stride[0] - v->attr->pad[0] + kh * v->attr->dilation[0];
        if (ih < 0 || ih >= v->h) continue;
        for (int64_t kw = 0; kw < v->kw; kw++) {
            int64_t iw = ow * v->attr->stride[1] - v->attr->pad[2] + kw * v->attr->dilation[1];
            if (iw < 0 || iw >= v->w) continue;
            products(v, ((n * v->h + ih) * v->w + iw) * v->c, y_at, kh, kw);
        }
    }
}

static void sweep(const conv *v)
{
    for (int64_t n = 0; n < v->n; n++) {
        for (int64_t oh = 0; oh < v->oh; oh++)
            for (int64_t ow = 0; ow < v->ow; ow++) pixel(v, n, oh, ow);
    }
}

int tn_ref_conv2d(const tn_ref_args *a)
{
    const tn_tensor *node = a->node;
    conv v = {.op = node->op, .attr = &node->attr->conv, .groups = node->attr->conv.groups, .out = a->out};
    const int64_t *x, *weight, *y;
    if (v.op == TN_OP_conv2d) {
        x = node->in[0]->shape, weight = node->in[1]->shape, y = node->shape;
        v.x = a->in[0], v.weight = a->in[1];
    } else if (v.op == TN_OP_conv2d_data_grad) {
        x = node->shape, weight = node->in[1]->shape, y = node->in[0]->shape;
        v.gy = a->in[0], v.weight = a->in[1];
    } else {
        x = node->in[0]->shape, weight = node->shape, y = node->in[1]->shape;
        v.x = a->in[0], v.gy = a->in[1];
    }
    v.n = x[0], v.h = x[1], v.w = x[2], v.c = x[3];
    v.oc = weight[0], v.kh = weight[1], v.kw = weight[2];
    v.oh = y[1], v.ow = y[2];
    sweep(&v);
    if (v.op == TN_OP_conv2d && node->n_in > 2) {
        int64_t n = tn_extent(node->shape, 0, 4);
        for (int64_t i = 0; i < n; i++) a->out[i] += a->in[2][i % v.oc];
    }
    return TN_OK;
}
