/* test_conv.c - the three passes of a convolution on the CPU against sums in f64: a list of configurations,
 * dtypes, all implementations, any number of threads. Read first: configs, then check_pass. */
#define IMPLS 4
#include "conv_layer.h"

#include <limits.h>

#include "src/device/cpu/winograd.h"

/* n h w c oc kh kw groups, stride, pad (top bottom left right), dilation */
static const int configs[][16] = {
    /* the layers of small networks, less high */
    {4, 9, 9, 1, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {3, 14, 14, 32, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {5, 12, 12, 3, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {7, 7, 7, 64, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 16, 16, 3, 16, 7, 7, 1, 2, 2, 3, 3, 3, 3, 1, 1},
    {2, 14, 14, 16, 32, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1},
    {2, 14, 14, 16, 32, 1, 1, 1, 2, 2, 0, 0, 0, 0, 1, 1},
    {1, 28, 28, 1, 8, 5, 5, 1, 1, 1, 0, 0, 0, 0, 1, 1},
    {6, 8, 8, 6, 16, 5, 5, 1, 1, 1, 2, 2, 2, 2, 1, 1},
    {3, 10, 10, 16, 16, 4, 4, 1, 2, 2, 1, 1, 1, 1, 1, 1},
    /* no channel count a vector likes */
    {2, 7, 6, 5, 7, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 5, 9, 2, 3, 2, 3, 1, 1, 1, 0, 0, 1, 1, 1, 1},
    {3, 6, 6, 17, 19, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 8, 8, 33, 10, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 8, 8, 10, 33, 3, 3, 1, 2, 2, 1, 1, 1, 1, 1, 1},
    {1, 6, 6, 100, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 6, 6, 1, 100, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1},
    {9, 1, 1, 20, 30, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1},
    {2, 3, 3, 4, 4, 3, 3, 1, 1, 1, 0, 0, 0, 0, 1, 1},
    /* one dimension long */
    {2, 1, 40, 8, 8, 1, 5, 1, 1, 1, 0, 0, 2, 2, 1, 1},
    {2, 40, 1, 8, 8, 5, 1, 1, 1, 1, 2, 2, 0, 0, 1, 1},
    {2, 40, 1, 8, 8, 5, 1, 1, 2, 1, 4, 0, 0, 0, 1, 1},
    {1, 3, 50, 3, 5, 3, 9, 1, 1, 2, 1, 1, 0, 4, 1, 1},
    /* strides */
    {2, 9, 9, 8, 8, 3, 3, 1, 2, 2, 1, 1, 1, 1, 1, 1},
    {2, 9, 10, 8, 8, 3, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1},
    {2, 10, 9, 8, 8, 3, 3, 1, 1, 2, 1, 1, 1, 1, 1, 1},
    {2, 11, 11, 8, 16, 3, 3, 1, 3, 3, 0, 0, 0, 0, 1, 1},
    {2, 11, 11, 16, 8, 2, 2, 1, 3, 3, 0, 0, 0, 0, 1, 1},
    {2, 8, 8, 16, 16, 2, 2, 1, 2, 2, 0, 0, 0, 0, 1, 1},
    {1, 13, 13, 4, 4, 3, 3, 1, 4, 5, 1, 1, 1, 1, 1, 1},
    {1, 7, 7, 3, 8, 3, 3, 1, 7, 7, 1, 1, 1, 1, 1, 1},
    /* padding, even past the kernel */
    {2, 6, 6, 8, 8, 3, 3, 1, 1, 1, 0, 1, 0, 1, 1, 1},
    {2, 6, 6, 8, 8, 3, 3, 1, 1, 1, 1, 0, 1, 0, 1, 1},
    {2, 6, 6, 8, 8, 3, 3, 1, 1, 1, 2, 2, 2, 2, 1, 1},
    {2, 6, 6, 8, 8, 3, 3, 1, 1, 1, 4, 4, 4, 4, 1, 1},
    {1, 4, 4, 3, 5, 1, 1, 1, 1, 1, 1, 2, 2, 1, 1, 1},
    {1, 4, 4, 3, 5, 3, 3, 1, 2, 2, 0, 1, 2, 3, 1, 1},
    {1, 5, 5, 16, 16, 5, 5, 1, 1, 1, 0, 3, 1, 2, 1, 1},
    {2, 8, 8, 3, 16, 2, 2, 1, 2, 2, 1, 1, 1, 1, 1, 1},
    {2, 8, 8, 3, 16, 4, 4, 1, 3, 3, 1, 2, 2, 1, 1, 1},
    /* dilation */
    {2, 10, 10, 8, 8, 3, 3, 1, 1, 1, 2, 2, 2, 2, 2, 2},
    {2, 10, 10, 3, 16, 3, 3, 1, 1, 1, 0, 0, 0, 0, 2, 3},
    {2, 12, 12, 16, 16, 3, 3, 1, 2, 2, 2, 2, 2, 2, 2, 2},
    {1, 9, 12, 5, 6, 2, 3, 1, 1, 2, 1, 0, 0, 3, 3, 2},
    {1, 9, 9, 1, 4, 3, 3, 1, 1, 1, 4, 4, 4, 4, 4, 4},
    /* of a kernel that has nothing to dilate */
    {2, 1, 1, 2, 2, 1, 1, 1, 1, 1, 64, 64, 0, 0, INT_MAX, INT_MAX},
    /* groups */
    {2, 8, 8, 16, 32, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 8, 8, 32, 32, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 8, 8, 12, 8, 3, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 7, 7, 6, 9, 3, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1},
    {1, 7, 7, 6, 9, 1, 1, 3, 1, 1, 0, 0, 0, 0, 1, 1},
    {2, 9, 9, 8, 8, 3, 3, 2, 1, 1, 2, 2, 2, 2, 2, 2},
    {1, 5, 5, 10, 10, 3, 2, 5, 1, 1, 1, 0, 0, 1, 1, 1},
    /* depthwise */
    {2, 8, 8, 16, 16, 3, 3, 16, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 9, 9, 32, 32, 3, 3, 32, 2, 2, 1, 1, 1, 1, 1, 1},
    {1, 8, 8, 7, 7, 3, 3, 7, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 8, 8, 5, 10, 3, 3, 5, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 12, 12, 16, 16, 5, 5, 16, 1, 1, 2, 2, 2, 2, 1, 1},
    {1, 9, 9, 4, 4, 3, 3, 4, 1, 1, 2, 2, 2, 2, 2, 2},
    {3, 7, 19, 112, 112, 3, 5, 112, 1, 1, 0, 2, 1, 3, 1, 1},
    {2, 11, 12, 80, 80, 3, 3, 80, 2, 3, 1, 0, 2, 1, 1, 2},
    {7, 20, 23, 16, 16, 3, 4, 16, 1, 1, 2, 2, 0, 3, 2, 1},
    {1, 3, 2, 32, 32, 5, 5, 32, 1, 1, 4, 4, 4, 4, 1, 1},
    {3, 9, 8, 40, 40, 3, 3, 40, 1, 2, 1, 1, 0, 2, 1, 1},
    {2, 6, 7, 17, 17, 4, 2, 17, 2, 1, 2, 0, 1, 1, 1, 2},
    {2, 5, 1, 33, 33, 3, 3, 33, 1, 1, 1, 1, 1, 1, 1, 1},
    {3, 4, 2, 17, 17, 3, 3, 17, 2, 2, 1, 1, 2, 2, 1, 1},
    {1, 19, 9, 50, 50, 3, 3, 50, 1, 1, 0, 1, 0, 0, 2, 1},
    {2, 21, 7, 20, 20, 3, 3, 20, 1, 2, 2, 1, 0, 2, 3, 1},
    {1, 3, 4, 16, 16, 3, 3, 16, 1, 1, 4, 3, 4, 5, 1, 1},
    /* results of few channels from many, strided so that some phases have no taps, windows larger than what
     * is left of an image, lines longer than a band, images read where they stand */
    {2, 9, 11, 32, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 9, 11, 1, 32, 3, 3, 1, 2, 2, 1, 1, 1, 1, 1, 1},
    {3, 8, 7, 2, 16, 3, 2, 1, 3, 2, 2, 0, 1, 1, 2, 3},
    {1, 7, 7, 96, 6, 3, 3, 2, 1, 1, 2, 2, 2, 2, 2, 2},
    {2, 13, 9, 20, 12, 1, 1, 1, 3, 2, 0, 0, 0, 0, 1, 1},
    {2, 12, 12, 24, 40, 2, 2, 1, 4, 4, 0, 0, 0, 0, 1, 1},
    {1, 2, 3, 5, 9, 4, 5, 1, 1, 1, 3, 3, 3, 3, 1, 1},
    {1, 3, 700, 64, 5, 2, 3, 1, 1, 1, 1, 0, 1, 1, 1, 2},
    {1, 1, 900, 40, 36, 1, 5, 1, 1, 2, 0, 0, 0, 8, 1, 4},
    {3, 14, 13, 48, 20, 3, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1},
    {5, 12, 12, 36, 33, 1, 3, 1, 1, 1, 0, 0, 0, 0, 1, 1},
    {9, 5, 5, 12, 50, 3, 3, 1, 2, 2, 1, 1, 1, 1, 1, 1},
    /* runs of images that do not come out even, more partial sums, larger products */
    {11, 16, 16, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {13, 20, 20, 3, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {19, 8, 8, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {17, 13, 13, 16, 24, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 13, 13, 48, 80, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 6, 6, 130, 270, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    /* lines of an odd number of pixels, some longer than a band */
    {5, 14, 14, 32, 64, 4, 4, 1, 2, 2, 1, 1, 1, 1, 1, 1},
    {70, 15, 13, 8, 36, 3, 3, 1, 2, 2, 1, 1, 1, 1, 1, 1},
    {1, 4, 901, 24, 40, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 3, 1803, 20, 33, 1, 5, 1, 1, 2, 0, 0, 1, 1, 1, 1},
    /* whole vectors of channels: tiles that reach beyond the image, several blocks and partial sums, more
     * channels than a block of a product, channels split */
    {2, 9, 7, 16, 48, 3, 3, 1, 1, 1, 0, 2, 2, 1, 1, 1},
    {2, 7, 9, 48, 16, 3, 3, 1, 1, 1, 2, 0, 0, 2, 1, 1},
    {3, 5, 4, 16, 16, 3, 3, 1, 1, 1, 2, 2, 2, 2, 1, 1},
    {1, 3, 3, 16, 16, 3, 3, 1, 1, 1, 0, 0, 0, 0, 1, 1},
    {13, 15, 15, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 6, 5, 400, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 5, 6, 32, 400, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {2, 6, 6, 16, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
};
enum {
    CONFIGS = sizeof configs / sizeof *configs,
    PAST = 64 /* bytes behind the result, to stay as they are */
};

/* The largest sum of sizes among the results of the same image and channel, or the taps of the same filter
 * and channel: tiles share what they are computed from, and so the roundings. They compute with whole
 * filters, however little of these an image meets that is smaller. */
static double size_nearby(const layer *l, const double *size, int64_t at)
{
    const tn_conv2d_desc *c = &l->c;
    const bool forward = c->pass == TN_CONV_FORWARD, weights = c->pass == TN_CONV_WEIGHT_GRAD;
    const int64_t step = forward ? c->oc : c->c / (weights ? c->groups : 1);
    const int64_t count = forward ? c->oh * c->ow : weights ? c->kh * c->kw : c->h * c->w;
    const int64_t first = at / (count * step) * count * step + at % step;
    double most = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, size[first + i * step]);
    if (c->h < c->kh) most *= (double)c->kh / (double)c->h;
    if (c->w < c->kw) most *= (double)c->kw / (double)c->w;
    return most;
}

/* A pass, its exact result, and what the first call did. */
typedef struct trial {
    layer l;
    const double *sum, *size;
} trial;

static int call(tn_cpu_lib *lib, tn_pool *pool, void *user, tn_device_stats *stats, tn_errbuf *err)
{
    return tn_cpu_conv2d(lib, pool, &((trial *)user)->l.c, stats, err);
}

static void judge(void *user, int impl, const tn_device_stats *stats, const char *what)
{
    trial *t = user;
    const tn_conv2d_desc *c = &t->l.c;
    tn_dtype d = c->dtype;
    int64_t n = c->pass == TN_CONV_FORWARD ? t->l.y : c->pass == TN_CONV_DATA_GRAD ? t->l.x : t->l.w;
    (void)stats;
    const unsigned char *past = (const unsigned char *)c->out + (size_t)n * tn_dtype_size(d);
    for (int i = 0; i < PAST; i++) assert_int_equal(past[i], 0xA5);
    for (int64_t i = 0; i < n; i++) {
        double add = c->bias ? get(d, c->bias, i % c->oc) : 0, want = t->sum[i] + add,
               got = get(d, c->out, i);
        if (c->epilogue == TN_EPI_RELU && want < 0) want = 0;
        const bool tiles = impls[impl] == TN_CPU_TILES_2 || impls[impl] == TN_CPU_TILES_4 ||
                           (impls[impl] == TN_CPU_AUTO && tn_winograd_tile(c));
        double size = tiles ? size_nearby(&t->l, t->size, i) : t->size[i];
        /* one tile alone: its transforms' coefficients add up beside a single product a tap */
        const double most = tiles && c->oh * c->ow < 16 ? 100 : 40;
        double tol = (size + fabs(add)) * sum_eps(d) * most + fabs(want) * store_eps(d) * 1.001 +
                     (d == TN_F16) * 0x1p-24;
        if (!(fabs(got - want) <= tol)) fail_msg("%s: element %d is %.9g, not %.9g", what, (int)i, got, want);
    }
}

static double mean; /* of both operands, in -1 to 1 */

/* Around the mean, and small beside it where that is not 0. */
static void *operand(tn_dtype d, int64_t n)
{
    void *p = random_array(d, n);
    for (int64_t i = 0; mean != 0 && i < n; i++) set(d, p, i, mean + get(d, p, i) / 32);
    return p;
}

static void check_pass(const int *v, tn_dtype d, tn_conv_pass pass, bool bias, bool relu)
{
    trial t = {.l = make(v, d)};
    tn_conv2d_desc *c = &t.l.c;
    bool forward = pass == TN_CONV_FORWARD, data = pass == TN_CONV_DATA_GRAD;
    int64_t n = forward ? t.l.y : data ? t.l.x : t.l.w;
    size_t bytes = (size_t)n * tn_dtype_size(d) + PAST;
    void *in0 = operand(d, data ? t.l.y : t.l.x), *in1 = operand(d, forward || data ? t.l.w : t.l.y);
    void *b = bias ? random_array(d, c->oc) : NULL, *out = malloc(bytes);
    double *sum = calloc((size_t)n, sizeof *sum), *size = calloc((size_t)n, sizeof *size);
    c->pass = pass, c->in0 = in0, c->in1 = in1, c->out = out, c->bias = b;
    c->epilogue = relu ? TN_EPI_RELU : TN_EPI_NONE;
    reference(&t.l, sum, size);
    t.sum = sum, t.size = size;
    char name[120];
    snprintf(name, sizeof name, "dtype %d, pass %d, %d x %d x %d x %d to %d, mean %g", (int)d, (int)pass,
             v[0], v[1], v[2], v[3], v[4], mean);
    same_bits(call, judge, &t, out, bytes, name);
    free(in0), free(in1), free(b), free(out), free(sum), free(size);
}

TEST(test_forward)
{
    for (int i = 0; i < CONFIGS; i++) check_pass(configs[i], TN_F32, TN_CONV_FORWARD, i % 2, i % 3 == 0);
}

TEST(test_data_grad)
{
    for (int i = 0; i < CONFIGS; i++) check_pass(configs[i], TN_F32, TN_CONV_DATA_GRAD, false, false);
}

TEST(test_weight_grad)
{
    for (int i = 0; i < CONFIGS; i++) check_pass(configs[i], TN_F32, TN_CONV_WEIGHT_GRAD, false, false);
}

TEST(test_dtypes)
{
    static const tn_dtype types[] = {TN_F64, TN_F16, TN_BF16};
    for (int t = 0; t < 3; t++) {
        for (int i = t; i < CONFIGS; i += 3) {
            check_pass(configs[i], types[t], TN_CONV_FORWARD, i % 2, i % 4 == 0);
            check_pass(configs[i], types[t], TN_CONV_DATA_GRAD, false, false);
            check_pass(configs[i], types[t], TN_CONV_WEIGHT_GRAD, false, false);
        }
    }
}

/* Windows, strides, dilations, paddings, groups and channels of any kind, of numbers around 0 and far from
 * it. */
TEST(test_any_kind)
{
    static const tn_dtype types[] = {TN_F32, TN_F32, TN_F32, TN_BF16, TN_F64, TN_F16};
    static const int channels[] = {1, 1, 2, 3, 5, 8, 12, 16, 17, 32, 48};
    for (int i = 0, done = 0; done < 90; i++) {
        const int groups = up_to(4) ? 1 : 1 + (int)up_to(3);
        const int size[] = {1 + (int)up_to(15), 1 + (int)up_to(15)},
                  window[] = {1 + (int)up_to(5), 1 + (int)up_to(5)};
        int v[16] = {1 + (int)up_to(4), size[0], size[1]};
        v[3] = groups * channels[up_to(11)], v[4] = groups * channels[up_to(11)];
        v[5] = window[0], v[6] = window[1], v[7] = groups;
        for (int a = 0; a < 2; a++) {
            v[8 + a] = up_to(2) ? 1 : 1 + (int)up_to(5);
            v[10 + 2 * a] = (int)up_to(4), v[11 + 2 * a] = (int)up_to(4);
            v[14 + a] = up_to(2) ? 1 : 1 + (int)up_to(3);
        }
        bool fits = true;
        for (int a = 0; a < 2; a++)
            fits = fits && size[a] + v[10 + 2 * a] + v[11 + 2 * a] > v[14 + a] * (window[a] - 1);
        if (!fits) continue;
        mean = done % 3 ? 0 : 1;
        const tn_dtype d = types[done++ % 6];
        check_pass(v, d, TN_CONV_FORWARD, up_to(2), up_to(2));
        check_pass(v, d, TN_CONV_DATA_GRAD, false, false);
        check_pass(v, d, TN_CONV_WEIGHT_GRAD, false, false);
    }
    mean = 0;
}

/* A value that is not finite reaches what is summed from it, and nothing else; the sums of others stand. */
TEST(test_not_finite)
{
    static const int kinds[][16] = {{2, 9, 10, 3, 20, 3, 3, 1, 2, 2, 1, 1, 1, 1, 1, 1},
                                    {2, 9, 10, 32, 2, 3, 2, 1, 2, 1, 1, 1, 1, 1, 1, 2},
                                    {2, 5, 3, 6, 34, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1},
                                    {1, 8, 8, 16, 16, 5, 5, 1, 1, 1, 0, 0, 0, 0, 1, 1}};
    for (int k = 0; k < 4; k++) {
        for (int pass = 0; pass < 2; pass++) {
            layer l = make(kinds[k], TN_F32);
            const int64_t n = pass ? l.x : l.y, m = pass ? l.y : l.x;
            float *in0 = random_array(TN_F32, m), *w = random_array(TN_F32, l.w),
                  *out = random_array(TN_F32, n);
            double *sum = calloc((size_t)n, sizeof *sum), *size = calloc((size_t)n, sizeof *size);
            in0[m / 2] = k % 2 ? INFINITY : NAN;
            l.c.pass = (tn_conv_pass)pass, l.c.in0 = in0, l.c.in1 = w, l.c.out = out;
            reference(&l, sum, size);
            tn_cpu_lib *lib;
            tn_pool *pool;
            assert_int_equal(tn_cpu_lib_open(&lib), TN_OK);
            assert_int_equal(tn_pool_open(2, &pool), TN_OK);
            assert_int_equal(tn_cpu_conv2d(lib, pool, &l.c, NULL, NULL), TN_OK);
            int64_t odd = 0;
            for (int64_t i = 0; i < n; i++) {
                odd += !isfinite(sum[i]);
                if (isfinite(sum[i]) ? !(fabs(out[i] - sum[i]) <= 1e-5 * (size[i] + 1)) : isfinite(out[i]))
                    fail_msg("kind %d, pass %d: element %d is %g, not %g", k, pass, (int)i, out[i], sum[i]);
            }
            assert_true(odd > 0 && odd < n);
            tn_pool_close(pool);
            tn_cpu_lib_close(lib);
            free(in0), free(w), free(out), free(sum), free(size);
        }
    }
}

/* Windows of 3x3 of any size that tiles serve, of numbers around 0 and of such as lie close together far from
 * it, where a sum that were ever rounded to 16 bits would show. */
TEST(test_tiles_of_all_dtypes)
{
    static const tn_dtype types[] = {TN_F32, TN_F16, TN_BF16};
    for (int i = 0; i < 24; i++) {
        int v[16] = {1 + (int)up_to(3),
                     1 + (int)up_to(9),
                     1 + (int)up_to(9),
                     16 * (1 + (int)up_to(3)),
                     16 * (1 + (int)up_to(3)),
                     3,
                     3,
                     1,
                     1,
                     1,
                     0,
                     0,
                     0,
                     0,
                     1,
                     1};
        for (int p = 10; p < 14; p++) v[p] = 1 + (int)up_to(2);
        mean = i % 2 ? 0 : 1;
        for (int pass = 0; pass < 3; pass++)
            check_pass(v, types[i / 2 % 3], (tn_conv_pass)pass, i % 4 < 2 && pass == 0,
                       i % 5 == 0 && pass == 0);
    }
    mean = 0;
}

/* relu keeps NaN; bias and relu belong to the forward pass only; no images leave a gradient of zero. */
TEST(test_edges)
{
    tn_cpu_lib *lib;
    tn_pool *pool;
    assert_int_equal(tn_cpu_lib_open(&lib), TN_OK);
    assert_int_equal(tn_pool_open(2, &pool), TN_OK);
    for (int im = 0; im < IMPLS; im++) {
        tn_cpu_lib_prefer(lib, impls[im]);
        layer l = make(configs[1], TN_F32);
        tn_conv2d_desc c = l.c;
        float *x = random_array(TN_F32, l.x), *w = random_array(TN_F32, l.w), *y = random_array(TN_F32, l.y);
        x[5 * c.c] = NAN; /* image 0, row 0, column 5 */
        c.in0 = x, c.in1 = w, c.out = y, c.epilogue = TN_EPI_RELU;
        assert_int_equal(tn_cpu_conv2d(lib, pool, &c, NULL, NULL), TN_OK);
        for (int64_t o = 0; o < c.oc; o++) {
            assert_true(isnan(y[5 * c.oc + o]) && isnan(y[4 * c.oc + o]));
            assert_true(y[8 * c.oc + o] >= 0);
        }
        c.n = 0;
        memset(w, 0xA5, (size_t)l.w * 4);
        c.pass = TN_CONV_WEIGHT_GRAD, c.out = w, c.in1 = y;
        assert_int_equal(tn_cpu_conv2d(lib, pool, &c, NULL, NULL), TN_OK);
        for (int64_t i = 0; i < l.w; i++) assert_true(w[i] == 0);
        free(x), free(w), free(y);
    }
    tn_pool_close(pool);
    tn_cpu_lib_close(lib);
}

TEST(test_errors)
{
    tn_cpu_lib *lib;
    tn_pool *pool;
    tn_errbuf err = {""};
    assert_int_equal(tn_cpu_lib_open(&lib), TN_OK);
    assert_int_equal(tn_pool_open(1, &pool), TN_OK);
    layer l = make(configs[0], TN_I32);
    assert_int_equal(tn_cpu_conv2d(lib, pool, &l.c, NULL, &err), TN_E_DTYPE);
    assert_string_equal(err.text, "conv2d forward: i32 is not supported");
    l = make(configs[0], TN_F32);
    l.c.groups = 2, l.c.pass = TN_CONV_DATA_GRAD;
    assert_int_equal(tn_cpu_conv2d(lib, pool, &l.c, NULL, &err), TN_E_SHAPE);
    assert_string_equal(err.text, "conv2d data gradient: 2 groups do not divide 1 and 32 channels");
    l = make(configs[0], TN_F32);
    l.c.oh++, l.c.pass = TN_CONV_WEIGHT_GRAD;
    assert_int_equal(tn_cpu_conv2d(lib, pool, &l.c, NULL, &err), TN_E_SHAPE);
    assert_non_null(strstr(err.text, "an output of 10 x 9"));
    l = make(configs[0], TN_F32);
    l.c.stride[1] = 0;
    assert_int_equal(tn_cpu_conv2d(lib, pool, &l.c, NULL, &err), TN_E_ARG);
    l = make(configs[0], TN_F32);
    l.c.pad[2] = -1;
    assert_int_equal(tn_cpu_conv2d(lib, pool, &l.c, NULL, NULL), TN_E_ARG);
    l = make(configs[0], TN_F32);
    l.c.kh = 20;
    assert_int_equal(tn_cpu_conv2d(lib, pool, &l.c, NULL, &err), TN_E_SHAPE);
    tn_pool_close(pool);
    tn_cpu_lib_close(lib);
}

TEST(test_allocation_failures)
{
    for (int pass = 0; pass < 3; pass++) {
        for (int im = 0; im < IMPLS; im++) {
            layer l = make(configs[1], TN_F32);
            float *in0 = random_array(TN_F32, l.x + l.y), *in1 = random_array(TN_F32, l.w + l.y);
            float *out = random_array(TN_F32, l.x + l.w + l.y);
            l.c.in0 = in0, l.c.in1 = in1, l.c.out = out, l.c.pass = (tn_conv_pass)pass;
            bool done = false;
            for (long n = 0; !done; n++) {
                assert_true(n < 100);
                tn_pool *pool;
                tn_cpu_lib *lib = NULL;
                tn_errbuf err = {""};
                assert_int_equal(tn_pool_open(2, &pool), TN_OK);
                tn_alloc_fail_after(n);
                int s = tn_cpu_lib_open(&lib);
                if (lib) {
                    tn_cpu_lib_prefer(lib, impls[im]);
                    s = tn_cpu_conv2d(lib, pool, &l.c, NULL, &err);
                }
                tn_alloc_fail_after(-1);
                if (s) assert_int_equal(s, TN_E_NOMEM);
                if (s && lib) {
                    assert_true(err.text[0] != 0);
                    assert_int_equal(tn_cpu_conv2d(lib, pool, &l.c, NULL, &err), TN_OK);
                }
                done = !s && n > 8;
                tn_cpu_lib_close(lib);
                tn_pool_close(pool);
            }
            free(in0), free(in1), free(out);
        }
    }
}

/* Where the weight gradient of one pixel's window is a product of pairs of pixels, be they odd in number. */
TEST(test_products_of_pixels)
{
    static const int wide[][16] = {{3, 9, 7, 90, 97, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1},
                                   {1, 1, 1, 128, 64, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1},
                                   {2, 20, 41, 96, 100, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1}};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        check_pass(wide[i], TN_BF16, TN_CONV_WEIGHT_GRAD, false, false);
        check_pass(wide[i], TN_F16, TN_CONV_WEIGHT_GRAD, false, false);
    }
}

/* Taps far outside of a small image, with more between them than memory has, and an image that no tap
 * reaches. */
TEST(test_far_and_near)
{
    static const int kinds[][16] = {
        {1, 4, 5, 2, 3, 3, 3, 1, 1, 1, 9000, 9000, 9000, 9000, 9000, 9000},
        {2, 5, 4, 4, 16, 3, 2, 1, 1, 1, 9000, 9000, 0, 9000, 9000, 9000},
        {2, 1, 5, 4, 4, 1, 1, 1, 3, 1, 1, 1, 0, 0, 1, 1},
    };
    for (int i = 0; i < 3; i++)
        for (int p = 0; p < 3; p++)
            check_pass(kinds[i], i % 2 ? TN_BF16 : TN_F32, (tn_conv_pass)p, false, false);
}

RUN_TESTS(NULL, NULL)
