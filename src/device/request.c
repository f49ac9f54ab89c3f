/* request.c - what a device is asked for, a product or a convolution, looked at before anything is computed. */
#include "device.h"

int tn_gemm_check(const tn_gemm *g, int64_t *batches, tn_errbuf *err)
{
    if (g->m < 0 || g->n < 0 || g->k < 0 || g->batch_ndim < 0 || g->batch_ndim > TN_GEMM_BATCH_DIMS)
        return tn_err(err, TN_E_ARG, "gemm: extents %lld x %lld x %lld with %d batch dimensions",
                      (long long)g->m, (long long)g->n, (long long)g->k, g->batch_ndim);
    if (g->bias && !tn_dtype_is_float(g->dtype))
        return tn_err(err, TN_E_DTYPE, "gemm: a bias of %s is not supported", tn_dtype_name(g->dtype));
    *batches = g->m && g->n;
    for (int d = 0; d < g->batch_ndim; d++) *batches *= g->batch[d];
    return TN_OK;
}

int tn_conv2d_check(const tn_conv2d_desc *c, tn_errbuf *err)
{
    static const char *const names[] = {"forward", "data gradient", "weight gradient"};
    if ((int)c->pass < 0 || c->pass > TN_CONV_WEIGHT_GRAD)
        return tn_err(err, TN_E_ARG, "conv2d: unknown pass %d", (int)c->pass);
    const char *pass = names[c->pass];
    if (!tn_dtype_is_float(c->dtype))
        return tn_err(err, TN_E_DTYPE, "conv2d %s: %s is not supported", pass, tn_dtype_name(c->dtype));
    if (c->n < 0 || c->h < 1 || c->w < 1 || c->c < 1 || c->oc < 1 || c->kh < 1 || c->kw < 1 ||
        c->groups < 1 || c->stride[0] < 1 || c->stride[1] < 1 || c->dilation[0] < 1 || c->dilation[1] < 1)
        return tn_err(err, TN_E_ARG, "conv2d %s: an extent, stride or dilation is below 1", pass);
    for (int i = 0; i < 4; i++)
        if (c->pad[i] < 0) return tn_err(err, TN_E_ARG, "conv2d %s: negative padding", pass);
    if (c->c % c->groups || c->oc % c->groups)
        return tn_err(err, TN_E_SHAPE, "conv2d %s: %lld groups do not divide %lld and %lld channels", pass,
                      (long long)c->groups, (long long)c->c, (long long)c->oc);
    const int64_t oh = c->h + c->pad[0] + c->pad[1] - c->dilation[0] * (c->kh - 1) - 1;
    const int64_t ow = c->w + c->pad[2] + c->pad[3] - c->dilation[1] * (c->kw - 1) - 1;
    if (oh < 0 || ow < 0 || c->oh != oh / c->stride[0] + 1 || c->ow != ow / c->stride[1] + 1)
        return tn_err(err, TN_E_SHAPE, "conv2d %s: an output of %lld x %lld does not follow from the input",
                      pass, (long long)c->oh, (long long)c->ow);
    return TN_OK;
}
