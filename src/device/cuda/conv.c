/* conv.c - convolutions as products around two kernels of our own (kernels/own.cu).
 *
 *   forward          rows = windows of x (im2col);          y = act(rows weight^T + bias)
 *   data gradient    rows = gy weight;                      gx = rows summed where they came from (col2im)
 *   weight gradient  rows = windows of x;                   gweight = gy^T rows
 *
 * The rows stand in the device's workspace, of bounded size: a batch that needs more goes in parts, which the
 * weight gradient adds up in their order. Groups are a batch of products. A convolution of 1 x 1, stride 1
 * and no padding needs no rows: x is what they would be. f16 and bf16 sums that are rounded more than once
 * otherwise (over the windows of an element, over parts) are kept in f32.
 *
 * Read first: tn_cuda_conv2d.
 */
#include "internal.h"
#include "../../core/int64.h"

#include <string.h>

enum { THREADS = 256, CHUNK = 2048 };

typedef struct work {
    tn_cuda *c;
    const tn_conv2d_desc *d;
    tn_errbuf *err;
    size_t size;       /* of an element */
    int64_t per_group; /* kh * kw * channels of a group: depth of the product */
    int64_t in, out;   /* channels of a group */
    int64_t pixels;    /* of one image's output */
    int64_t part;      /* images at once */
    bool direct;       /* rows are the image itself */
} work;

static int dtype_variant(tn_dtype d) { return d == TN_F64 ? 1 : d == TN_F16 ? 2 : d == TN_BF16 ? 3 : 0; }

static bool is_narrow(tn_dtype d) { return d == TN_F16 || d == TN_BF16; }

/* ---- the two kernels ---- */

static void set_dims(const tn_conv2d_desc *d, int64_t unit, tn_cuda_args *a)
{
    const int64_t dim[] = {d->h,      d->w,           d->c / unit,    d->oh,        d->ow,
                           d->kh,     d->kw,          d->stride[0],   d->stride[1], d->pad[0],
                           d->pad[2], d->dilation[0], d->dilation[1], d->groups,    d->c / d->groups / unit};
    memcpy(a->dim, dim, sizeof dim);
}

static int im2col(const work *w, const char *image, int64_t images, void *rows)
{
    size_t bytes = (size_t)w->in * w->size, unit = 16;
    while (bytes % unit || (uintptr_t)image % unit) unit /= 2;
    tn_cuda_args a = {.chunk = CHUNK};
    int64_t per = (int64_t)(unit / w->size), log = 0;
    if (unit < w->size) { /* elements always stand at multiples of their size */
        return tn_err(w->err, TN_E_ARG, "conv2d: an operand is not aligned to its elements");
    }
    while ((size_t)1 << log < unit) log++;
    set_dims(w->d, per, &a);
    a.n = images * w->pixels * w->d->groups * w->per_group / per;
    a.buf[0] = (void *)(uintptr_t)image;
    a.buf[1] = rows;
    return tn_cuda_start_own(w->c, TN_OWN_IM2COL, (int)log, &a, THREADS, w->err);
}

static int col2im(const work *w, void *rows, int64_t images, char *image)
{
    tn_cuda_args a = {.chunk = CHUNK};
    set_dims(w->d, 1, &a);
    a.n = images * w->d->h * w->d->w * w->d->c;
    a.buf[0] = rows;
    a.buf[1] = image;
    return tn_cuda_start_own(w->c, TN_OWN_COL2IM, dtype_variant(w->d->dtype), &a, THREADS, w->err);
}

/* ---- the three passes, over images [first, first + images) ---- */

/* Where a matrix stands, and the strides of its rows, columns and groups. */
typedef struct matrix {
    const void *at;
    int64_t row, column, group;
} matrix;

static tn_gemm product(const work *w, int64_t m, int64_t n, int64_t k, matrix a, matrix b, matrix c)
{
    return (tn_gemm){
        .dtype = w->d->dtype,
        .batch_ndim = 1,
        .batch = {w->d->groups},
        .tf32 = w->d->tf32,
        .m = m,
        .n = n,
        .k = k,
        .a = a.at,
        .a_row = a.row,
        .a_col = a.column,
        .a_batch = {a.group},
        .b = b.at,
        .b_row = b.row,
        .b_col = b.column,
        .b_batch = {b.group},
        .c = (void *)(uintptr_t)c.at,
        .c_row = c.row,
        .c_batch = {c.group},
    };
}

/* The rows that windows are, or what they are read from, and where those of groups begin. */
static matrix rows_of(const work *w, const void *image)
{
    return (matrix){w->direct ? image : w->c->workspace, w->d->groups * w->per_group, 1, w->per_group};
}

static int forward(const work *w, int64_t first, int64_t images)
{
    const tn_conv2d_desc *d = w->d;
    const char *x = (const char *)d->in0 + (size_t)(first * d->h * d->w * d->c) * w->size;
    char *y = (char *)d->out + (size_t)(first * w->pixels * d->oc) * w->size;
    int status = w->direct ? TN_OK : im2col(w, x, images, w->c->workspace);
    bool one = d->groups == 1; /* several share no bias: it is added to all of them afterwards */
    const matrix weight = {d->in1, 1, w->per_group, w->out * w->per_group}, to = {y, d->oc, 1, w->out};
    tn_gemm g = product(w, images * w->pixels, w->out, w->per_group, rows_of(w, x), weight, to);
    g.bias = one ? d->bias : NULL;
    g.epilogue = one || !d->bias ? d->epilogue : TN_EPI_NONE;
    if (!status) status = tn_cuda_gemm(w->c, &g, false, false, w->err);
    if (!status && !one && d->bias)
        status = tn_cuda_epilogue(w->c, d->dtype, y, false, d->bias, y, g.m, d->oc, d->oc, d->oc,
                                  d->epilogue == TN_EPI_RELU, w->err);
    return status;
}

static int data_gradient(const work *w, int64_t first, int64_t images)
{
    const tn_conv2d_desc *d = w->d;
    char *gx = (char *)d->out + (size_t)(first * d->h * d->w * d->c) * w->size;
    bool wide = is_narrow(d->dtype) && !w->direct;
    const char *gy = (const char *)d->in0 + (size_t)(first * w->pixels * d->oc) * w->size;
    const matrix from = {gy, d->oc, 1, w->out}, weight = {d->in1, w->per_group, 1, w->out * w->per_group};
    const tn_gemm g = product(w, images * w->pixels, w->per_group, w->out, from, weight, rows_of(w, gx));
    int status = tn_cuda_gemm(w->c, &g, false, wide, w->err);
    return status || w->direct ? status : col2im(w, w->c->workspace, images, gx);
}

/* `sum`: where the f32 sums of f16 and bf16 parts stand, or NULL. */
static int weight_gradient(const work *w, int64_t first, int64_t images, void *sum)
{
    const tn_conv2d_desc *d = w->d;
    const char *x = (const char *)d->in0 + (size_t)(first * d->h * d->w * d->c) * w->size;
    int status = w->direct ? TN_OK : im2col(w, x, images, w->c->workspace);
    const char *gy = (const char *)d->in1 + (size_t)(first * w->pixels * d->oc) * w->size;
    const matrix from = {gy, 1, d->oc, w->out},
                 to = {sum ? sum : d->out, w->per_group, 1, w->out * w->per_group};
    const tn_gemm g = product(w, w->out, w->per_group, images * w->pixels, from, rows_of(w, x), to);
    return status ? status : tn_cuda_gemm(w->c, &g, first > 0, sum != NULL, w->err);
}

/* ---- one call ---- */

/* Decides how many images are done at once, and gets the workspace that their rows need. */
static int plan(work *w, size_t *rows_bytes)
{
    const tn_conv2d_desc *d = w->d;
    int64_t of_image = w->pixels * d->groups * w->per_group, most = d->h * d->w * d->c;
    size_t each = d->pass == TN_CONV_DATA_GRAD && is_narrow(d->dtype) ? sizeof(float) : w->size;
    *rows_bytes = 0;
    w->part = d->n;
    if (!w->direct) {
        if (of_image > most) most = of_image;
        if (most > INT32_MAX)
            return tn_err(w->err, TN_E_SHAPE, "conv2d: windows of one image with %lld elements in all",
                          (long long)of_image);
        w->part = (int64_t)(w->c->workspace_limit / ((size_t)of_image * each));
        w->part = tn_min64(tn_min64(w->part > 0 ? w->part : 1, d->n), INT32_MAX / most);
        *rows_bytes = ((size_t)(w->part * of_image) * each + 255) / 256 * 256;
    }
    return tn_cuda_workspace(w->c, *rows_bytes, w->err);
}

int tn_cuda_conv2d(tn_cuda *c, const tn_conv2d_desc *d, tn_errbuf *err)
{
    work w = {.c = c, .d = d, .err = err, .size = tn_dtype_size(d->dtype)};
    int status = tn_conv2d_check(d, err);
    if (status) return status;
    w.in = d->c / d->groups;
    w.out = d->oc / d->groups;
    w.per_group = d->kh * d->kw * w.in;
    w.pixels = d->oh * d->ow;
    w.direct = d->kh == 1 && d->kw == 1 && d->stride[0] == 1 && d->stride[1] == 1 && !d->pad[0] &&
               !d->pad[1] && !d->pad[2] && !d->pad[3];
    int64_t weights = d->oc * w.per_group;
    bool is_weight = d->pass == TN_CONV_WEIGHT_GRAD;
    if (d->n == 0) {
        if (!is_weight) return TN_OK;
        if (c->told) return tn_err(err, TN_E_UNSUPPORTED, "a convolution's weight gradient of no images");
        return TN_CUDA_DO(c, err, cuMemsetD8Async, tn_cuda_ptr(d->out), 0, (size_t)weights * w.size,
                          c->stream);
    }
    size_t rows = 0;
    status = plan(&w, &rows);
    char *sum = NULL;
    if (!status && is_weight && w.part < d->n && is_narrow(d->dtype)) {
        status = tn_cuda_workspace(c, rows + (size_t)weights * sizeof(float), err);
        sum = (char *)c->workspace + rows;
    }
    for (int64_t first = 0; first < d->n && !status; first += w.part) {
        int64_t images = tn_min64(w.part, d->n - first);
        switch (d->pass) {
        case TN_CONV_FORWARD: status = forward(&w, first, images); break;
        case TN_CONV_DATA_GRAD: status = data_gradient(&w, first, images); break;
        case TN_CONV_WEIGHT_GRAD: status = weight_gradient(&w, first, images, sum); break;
        }
    }
    if (!status && sum)
        status = tn_cuda_epilogue(c, d->dtype, sum, true, NULL, d->out, d->oc, w.per_group, w.per_group,
                                  w.per_group, false, err);
    return status;
}
