/* conv_plain.c - our own convolution: three products whose operands are gathered from images while packing.
 *
 *   forward           y[pixel, o]      = sum over (r, s, i)  patch of x [pixel, (r, s, i)] * w[o, (r, s, i)]
 *   data gradient     gx[pixel, i]     = sum over (r, s, o)  patch of gy[pixel, (r, s, o)] * w[o, (r, s), i]
 *   weight gradient   gw[o, (r, s, i)] = sum over pixels     gy[pixel, o] * patch of x[pixel, (r, s, i)]
 *
 * No patch matrix is ever whole in memory; where each patch is one pixel, images are the matrices themselves.
 * Groups are batch entries. The weight gradient is cut into runs of
 * images; each gives a partial sum in the compute type, and they are added in order.
 * Read first: tn_conv2d_plain, then patch. */
#include "cpu_lib.h"
#include "gemm_kernel.h"
#include "pool.h"
#include "../../core/int64.h"

#include <string.h>

enum {
    PARTIALS = 16,
    PARTIAL_PIXELS = 1024,
    PARTIAL_BYTES = 32 << 20,
    SUM_CHUNK = 1 << 13,
};

typedef struct conv {
    const tn_conv2d_desc *c;
    int64_t ci, co; /* channels of one group */
    int64_t es, cs; /* bytes as stored and as computed */
    int64_t first;  /* weight gradient: first image, and images of one entry */
    int64_t images;
    char *partials;
    int64_t parts, weights;
} conv;

/* Returns whether each patch is the pixel at the same place. */
bool tn_conv2d_is_product(const tn_conv2d_desc *c)
{
    return c->kh * c->kw == 1 && c->stride[0] == 1 && c->stride[1] == 1 &&
           !(c->pad[0] | c->pad[1] | c->pad[2] | c->pad[3]);
}

/* One image as a patch reads it. */
typedef struct window {
    const char *image; /* first element of the channels of this group, position (0, 0) */
    int64_t h, w, ch;  /* extents; channels from one position to the next */
    int64_t run;       /* channels of the group */
} window;

/* Elements [q0, q1) of the patch at (row, col), widened. */
static void patch(const conv *v, const window *win, int64_t row, int64_t col, int64_t q0, int64_t q1,
                  char *dst)
{
    const tn_conv2d_desc *c = v->c;
    bool forward = c->pass != TN_CONV_DATA_GRAD;
    /* Side by side taps are side by side in memory: one run per row of the kernel. */
    bool runs = forward && c->dilation[1] == 1 && win->run == win->ch;
    int64_t q = q0, line = c->kw * win->run;
    while (q < q1) {
        int64_t r = q / line, ih = tn_conv2d_tap(c, 0, row, r);
        int64_t end = tn_min64(q1, (r + 1) * line);
        if (ih < 0) {
            memset(dst, 0, (size_t)((end - q) * v->cs));
            dst += (end - q) * v->cs;
            q = end;
            continue;
        }
        const char *src = win->image + ih * win->w * win->ch * v->es;
        if (runs) {
            /* Element q of the line is element q + shift of the image row. */
            int64_t shift = (col * c->stride[1] - c->pad[2]) * win->run - r * line;
            int64_t lo = tn_min64(end, tn_max64(q, -shift)),
                    hi = tn_max64(lo, tn_min64(end, win->w * win->run - shift));
            memset(dst, 0, (size_t)((lo - q) * v->cs));
            if (hi > lo)
                tn_widen_floats(c->dtype, src + (lo + shift) * v->es, dst + (lo - q) * v->cs, hi - lo);
            memset(dst + (hi - q) * v->cs, 0, (size_t)((end - hi) * v->cs));
            dst += (end - q) * v->cs;
            q = end;
            continue;
        }
        while (q < end) {
            int64_t s = q % line / win->run, ch = q % win->run, n = tn_min64(end - q, win->run - ch);
            int64_t iw = tn_conv2d_tap(c, 1, col, s);
            if (iw < 0)
                memset(dst, 0, (size_t)(n * v->cs));
            else
                tn_widen_floats(c->dtype, src + (iw * win->ch + ch) * v->es, dst, n);
            dst += n * v->cs;
            q += n;
        }
    }
}

/* The images patches are read from, for one group: x, or gy in the data gradient. */
static window window_of(const conv *v, int64_t image, int64_t group)
{
    const tn_conv2d_desc *c = v->c;
    bool back = c->pass == TN_CONV_DATA_GRAD;
    window w = {.h = back ? c->oh : c->h,
                .w = back ? c->ow : c->w,
                .ch = back ? c->oc : c->c,
                .run = back ? v->co : v->ci};
    w.image = (const char *)c->in0 + (image * w.h * w.w * w.ch + group * w.run) * v->es;
    return w;
}

/* Forward and data gradient: A is the patches, a row per pixel of the result. */
static bool patches_as_a(const tn_gemm_source *s, const tn_gemm_kernel *kn, int64_t e, int64_t i0, int rows,
                         int64_t p0, int64_t kc, void *dst)
{
    const conv *v = s->ctx;
    const tn_conv2d_desc *c = v->c;
    int64_t height = c->pass == TN_CONV_FORWARD ? c->oh : c->h,
            width = c->pass == TN_CONV_FORWARD ? c->ow : c->w;
    int64_t col = i0 % width, row = i0 / width % height, image = i0 / width / height;
    char *d = dst;
    int up = (rows + 3) / 4 * 4;
    for (int i = 0; i < up; i++, d += kn->a_ld * v->cs) {
        if (i >= rows) {
            memset(d, 0, (size_t)(kc * v->cs));
            continue;
        }
        window win = window_of(v, image, e);
        patch(v, &win, row, col, p0, p0 + kc, d);
        if (++col == width) col = 0, row++;
        if (row == height) row = 0, image++;
    }
    return false;
}

/* Data gradient: B[(r, s, o), i] = w[o, r, s, i]. */
static void weights_as_b(const tn_gemm_source *s, const tn_gemm_kernel *kn, int64_t e, int64_t j0,
                         int64_t cols, void *dst)
{
    const conv *v = s->ctx;
    const tn_conv2d_desc *c = v->c;
    int64_t taps = c->kh * c->kw;
    char *d = dst;
    for (int64_t t = 0; t < taps; t++) {
        for (int64_t o = 0; o < v->co; o++, d += kn->nr * v->cs) {
            int64_t from = ((e * v->co + o) * taps + t) * v->ci + j0;
            tn_widen_floats(c->dtype, (const char *)c->in1 + from * v->es, d, cols);
        }
    }
}

/* Weight gradient: entry e = (run of images, group). A[o, pixel] = gy[pixel, o], by k. */
static bool outputs_as_a(const tn_gemm_source *s, const tn_gemm_kernel *kn, int64_t e, int64_t i0, int rows,
                         int64_t p0, int64_t kc, void *dst)
{
    const conv *v = s->ctx;
    const tn_conv2d_desc *c = v->c;
    int64_t pixel = (v->first + e / c->groups * v->images) * c->oh * c->ow + p0;
    const char *from = (const char *)c->in1 + (pixel * c->oc + e % c->groups * v->co + i0) * v->es;
    char *d = dst;
    int up = (rows + 3) / 4 * 4;
    for (int64_t p = 0; p < kc; p++, from += c->oc * v->es, d += kn->mr * v->cs) {
        tn_widen_floats(c->dtype, from, d, rows);
        if (rows < up) memset(d + rows * v->cs, 0, (size_t)((up - rows) * v->cs));
    }
    return true;
}

static void patches_as_b(const tn_gemm_source *s, const tn_gemm_kernel *kn, int64_t e, int64_t j0,
                         int64_t cols, void *dst)
{
    const conv *v = s->ctx;
    const tn_conv2d_desc *c = v->c;
    char *d = dst;
    for (int64_t image = 0; image < v->images; image++) {
        window win = window_of(v, v->first + e / c->groups * v->images + image, e % c->groups);
        for (int64_t row = 0; row < c->oh; row++) {
            for (int64_t col = 0; col < c->ow; col++, d += kn->nr * v->cs)
                patch(v, &win, row, col, j0, j0 + cols, d);
        }
    }
}

/* Adds the partial sums, in order, into the first. */
static void run_sum(void *arg, int64_t begin, int64_t end)
{
    const conv *v = arg;
    if (v->cs == sizeof(double)) {
        double *sum = (double *)(void *)v->partials;
        for (int64_t q = 1; q < v->parts; q++) {
            for (int64_t i = begin; i < end; i++) sum[i] += sum[q * v->weights + i];
        }
    } else {
        float *sum = (float *)(void *)v->partials;
        for (int64_t q = 1; q < v->parts; q++) {
            for (int64_t i = begin; i < end; i++) sum[i] += sum[q * v->weights + i];
        }
    }
    tn_narrow_floats(v->c->dtype, v->partials + begin * v->cs, (char *)v->c->out + begin * v->es,
                     end - begin);
}

static int weight_grad(tn_cpu_lib *lib, struct tn_pool *pool, conv *v, tn_errbuf *err)
{
    const tn_conv2d_desc *c = v->c;
    int64_t pixels = c->oh * c->ow, k = c->kh * c->kw * v->ci;
    int64_t fewest = tn_max64(tn_ceil_div(c->n, PARTIALS), tn_ceil_div(PARTIAL_PIXELS, pixels));
    int64_t run = tn_min64(c->n, tn_max64(fewest, tn_ceil_div(c->n * v->weights * v->cs, PARTIAL_BYTES)));
    v->parts = tn_ceil_div(c->n, run);
    v->partials = tn_cpu_scratch(lib, TN_SCRATCH_SUM, (size_t)(v->parts * v->weights * v->cs));
    if (!v->partials) return tn_err(err, TN_E_NOMEM, "conv2d: no memory for partial weight gradients");
    tn_gemm_source s = {.ctx = v, .a = outputs_as_a, .b = patches_as_b};
    tn_gemm g = {.dtype = tn_gemm_compute(c->dtype), .m = v->co, .n = k, .c_row = k, .batch_ndim = 2};
    g.batch[1] = c->groups;
    g.c_batch[0] = v->weights;
    g.c_batch[1] = v->co * k;
    if (tn_conv2d_is_product(c) && v->es == v->cs) {
        s = (tn_gemm_source){0};
        g.a_row = 1, g.a_col = c->oc, g.b_row = c->c, g.b_col = 1;
        g.a_batch[1] = v->co, g.b_batch[1] = v->ci;
    }
    int64_t whole = c->n / run;
    for (int last = 0; last < 2; last++) {
        v->first = last ? whole * run : 0;
        v->images = last ? c->n % run : run;
        g.batch[0] = last ? 1 : whole;
        if (!v->images || !g.batch[0]) continue;
        g.k = v->images * pixels;
        g.a_batch[0] = g.k * g.a_col, g.b_batch[0] = g.k * g.b_row;
        g.a = (const char *)c->in1 + v->first * pixels * c->oc * v->es;
        g.b = (const char *)c->in0 + v->first * c->h * c->w * c->c * v->es;
        g.c = v->partials + (last ? whole : 0) * v->weights * v->cs;
        int st = tn_gemm_from(lib, pool, &g, &s, err);
        if (st) return st;
    }
    tn_pool_run(pool, run_sum, v, v->weights, SUM_CHUNK);
    return TN_OK;
}

int tn_conv2d_plain(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    conv v = {
        .c = c, .ci = c->c / c->groups, .co = c->oc / c->groups, .es = (int64_t)tn_dtype_size(c->dtype)};
    v.cs = (int64_t)tn_dtype_size(tn_gemm_compute(c->dtype));
    v.weights = c->oc * c->kh * c->kw * v.ci;
    if (c->pass == TN_CONV_WEIGHT_GRAD) return weight_grad(lib, pool, &v, err);
    bool forward = c->pass == TN_CONV_FORWARD;
    tn_gemm_source s = {.ctx = &v, .a = patches_as_a, .b = forward ? NULL : weights_as_b};
    int64_t taps = c->kh * c->kw;
    tn_gemm g = {.dtype = c->dtype, .c = c->out, .batch_ndim = 1, .batch = {c->groups}};
    if (forward) {
        g.m = c->n * c->oh * c->ow, g.n = v.co, g.k = taps * v.ci;
        g.b = c->in1, g.b_row = 1, g.b_col = g.k, g.b_batch[0] = v.co * g.k;
        g.c_row = c->oc, g.c_batch[0] = v.co;
        g.bias = c->bias, g.epilogue = c->epilogue, s.bias_batch = v.co;
    } else {
        g.m = c->n * c->h * c->w, g.n = v.ci, g.k = taps * v.co;
        g.c_row = c->c, g.c_batch[0] = v.ci;
    }
    if (tn_conv2d_is_product(c)) {
        s = (tn_gemm_source){.bias_batch = s.bias_batch};
        g.a = c->in0, g.a_row = forward ? c->c : c->oc, g.a_col = 1;
        g.a_batch[0] = forward ? v.ci : v.co;
        if (!forward) g.b = c->in1, g.b_row = v.ci, g.b_col = 1, g.b_batch[0] = v.co * v.ci;
    }
    return tn_gemm_from(lib, pool, &g, &s, err);
}
