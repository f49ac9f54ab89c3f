/* dnnl_versions.h - what oneDNN 2.x and 3.x call differently: descriptors of memory and of primitives. For
 * dnnl.c alone. */
#ifndef TN_DNNL_VERSIONS_H
#define TN_DNNL_VERSIONS_H

#include "cpu_lib.h"

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t md;
typedef const_dnnl_memory_desc_t md_ref;
typedef const_dnnl_primitive_desc_t pd_ref;
#define REF(m) (m)

static bool md_strided(md *m, int nd, const dnnl_dims_t dims, dnnl_data_type_t t, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(m, nd, dims, t, strides) == dnnl_success;
}

static bool md_any(md *m, int nd, const dnnl_dims_t dims, dnnl_data_type_t t)
{
    return dnnl_memory_desc_create_with_tag(m, nd, dims, t, dnnl_format_tag_any) == dnnl_success;
}

static void md_clear(md *m)
{
    if (*m) dnnl_memory_desc_destroy(*m);
}
#else
typedef dnnl_memory_desc_t md;
typedef const dnnl_memory_desc_t *md_ref;
typedef const_dnnl_primitive_desc_t pd_ref;
#define REF(m) (&(m))

static bool md_strided(md *m, int nd, const dnnl_dims_t dims, dnnl_data_type_t t, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(m, nd, dims, t, strides) == dnnl_success;
}

static bool md_any(md *m, int nd, const dnnl_dims_t dims, dnnl_data_type_t t)
{
    return dnnl_memory_desc_init_by_tag(m, nd, dims, t, dnnl_format_tag_any) == dnnl_success;
}

static void md_clear(md *m)
{
    (void)m;
}
#endif

/* These three return NULL where oneDNN has no such primitive. bias may be NULL. */
static dnnl_primitive_desc_t matmul_pd(dnnl_engine_t e, md *a, md *b, md *bias, md *c,
                                       dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_matmul_primitive_desc_create(&pd, e, *a, *b, bias ? *bias : NULL, *c, attr);
#else
    dnnl_matmul_desc_t op;
    if (dnnl_matmul_desc_init(&op, a, b, bias, c) == dnnl_success)
        dnnl_primitive_desc_create(&pd, &op, attr, e, NULL);
#endif
    return pd;
}

typedef struct conv_shape {
    dnnl_dims_t stride, dilation, pad_l, pad_r;
} conv_shape;

/* The backward passes need the forward one's descriptor as a hint. */
static dnnl_primitive_desc_t conv_pd(dnnl_engine_t e, tn_conv_pass pass, md *x, md *w, md *bias, md *y,
                                     const conv_shape *s, dnnl_primitive_desc_t hint,
                                     dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    const dnnl_alg_kind_t alg = dnnl_convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
    if (pass == TN_CONV_FORWARD)
        dnnl_convolution_forward_primitive_desc_create(&pd, e, dnnl_forward_training, alg, *x, *w,
                                                       bias ? *bias : NULL, *y, s->stride, s->dilation,
                                                       s->pad_l, s->pad_r, attr);
    else if (pass == TN_CONV_DATA_GRAD)
        dnnl_convolution_backward_data_primitive_desc_create(&pd, e, alg, *x, *w, *y, s->stride, s->dilation,
                                                             s->pad_l, s->pad_r, hint, attr);
    else
        dnnl_convolution_backward_weights_primitive_desc_create(&pd, e, alg, *x, *w, NULL, *y, s->stride,
                                                                s->dilation, s->pad_l, s->pad_r, hint, attr);
#else
    dnnl_convolution_desc_t op;
    dnnl_status_t st;
    if (pass == TN_CONV_FORWARD)
        st = dnnl_dilated_convolution_forward_desc_init(&op, dnnl_forward_training, alg, x, w, bias, y,
                                                        s->stride, s->dilation, s->pad_l, s->pad_r);
    else if (pass == TN_CONV_DATA_GRAD)
        st = dnnl_dilated_convolution_backward_data_desc_init(&op, alg, x, w, y, s->stride, s->dilation,
                                                              s->pad_l, s->pad_r);
    else
        st = dnnl_dilated_convolution_backward_weights_desc_init(&op, alg, x, w, NULL, y, s->stride,
                                                                 s->dilation, s->pad_l, s->pad_r);
    if (st == dnnl_success) dnnl_primitive_desc_create(&pd, &op, attr, e, hint);
#endif
    return pd;
}

static dnnl_primitive_desc_t reorder_pd(dnnl_engine_t e, md_ref from, md_ref to, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_reorder_primitive_desc_create(&pd, from, e, to, e, attr);
    return pd;
}

#endif
