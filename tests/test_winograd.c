/* test_winograd.c - Winograd's convolutions on the CPU: their transforms on all instruction sets against the
 * definitions in f64, how they round, their errors beside those of sums written out, and where they are made
 * (their results are among those of test_conv.c). Read first: check_transforms. */
#define IMPLS 4
#include "conv_layer.h"

#include "src/device/cpu/winograd.h"
#include "src/device/cpu/winograd_kernel.h"

/* Numbers of the dtype as floats. */
static void widened(tn_dtype d, const void *from, float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = (float)get(d, from, i);
}

/* Winograd's transforms, every instruction set this processor runs, against their definitions in f64:
 * results of a tile, the gradients of filters, and that one is the transpose of the other. Numbers of 16 bits
 * are rounded once, as they are stored, so that what is off by more than that is off by the error of f32. */
static void check_transforms(const tn_winograd_kernel *k, double eps)
{
    enum { N = 32, FAR = N + 16, MOST = TN_WINOGRAD_POSITIONS };
    const int m = k->tile, span = m + 2, positions = span * span;
    const tn_dtype type = k->dtype;
    const int es = (int)tn_dtype_size(type);
    assert_int_equal(N % k->vl, 0);
    char *d_stored = random_array(type, MOST * N), *g_stored = random_array(type, 9 * N),
         *gy_stored = random_array(type, 16 * N), *bias_stored = random_array(type, N);
    float d[MOST * N], g[9 * N], gy[16 * N], bias[N], y[16 * N], gw[9 * N], sum[N], more[N];
    widened(type, d_stored, d, MOST * N), widened(type, g_stored, g, 9 * N);
    widened(type, gy_stored, gy, 16 * N), widened(type, bias_stored, bias, N);
    float v[MOST * FAR], u[MOST * FAR], z[MOST * FAR], p[MOST * FAR];
    char y_stored[16 * N * sizeof(float)], gw_stored[9 * N * sizeof(float)];
    const void *pixel[MOST], *tap[9], *grad[16];
    void *result[16], *gtap[9];
    int64_t at[MOST];
    for (int i = 0; i < positions; i++) pixel[i] = d_stored + i * N * es, at[i] = i * FAR;
    for (int i = 0; i < 9; i++) tap[i] = g_stored + i * N * es, gtap[i] = gw_stored + i * N * es;
    for (int i = 0; i < m * m; i++) grad[i] = gy_stored + i * N * es, result[i] = y_stored + i * N * es;
    k->input(pixel, N, v, at);
    k->filter(tap, N, u, FAR);
    for (int i = 0; i < positions * FAR; i++) p[i] = i % FAR < N ? v[i] * u[i] : 0;
    for (int relu = 0; relu < 2; relu++) {
        k->output(p, FAR, N, relu ? bias_stored : NULL, relu, result);
        widened(type, y_stored, y, m * m * N);
        for (int i = 0; i < m * m; i++) {
            for (int c = 0; c < N; c++) {
                double want = relu ? bias[c] : 0;
                for (int t = 0; t < 9; t++)
                    want += (double)d[((i / m + t / 3) * span + i % m + t % 3) * N + c] * g[t * N + c];
                if (relu && want < 0) want = 0;
                assert_true(fabs(y[i * N + c] - want) < eps + fabs(want) * store_eps(type));
            }
        }
    }
    k->gradient(grad, N, z, FAR);
    for (int i = 0; i < positions * FAR; i++) p[i] = i % FAR < N ? v[i] * z[i] : 0;
    k->filter_gradient(p, FAR, N, gtap);
    widened(type, gw_stored, gw, 9 * N);
    for (int t = 0; t < 9; t++) {
        for (int c = 0; c < N; c++) {
            double want = 0;
            for (int i = 0; i < m * m; i++)
                want += (double)d[((i / m + t / 3) * span + i % m + t % 3) * N + c] * gy[i * N + c];
            assert_true(fabs(gw[t * N + c] - want) < eps + fabs(want) * store_eps(type));
        }
    }
    for (int c = 0; c < N; c++) sum[c] = g[c], more[c] = gy[c];
    k->add(sum, more, N);
    for (int c = 0; c < N; c++) assert_true(sum[c] == g[c] + gy[c]);
    free(d_stored), free(g_stored), free(gy_stored), free(bias_stored);
}

static const tn_dtype tiled[] = {TN_F32, TN_F16, TN_BF16};

TEST(test_transforms)
{
    for (int t = 0; t < 3; t++) {
        const tn_winograd_kernel *k;
        for (int i = 0; (k = tn_winograd_kernel_at(2, tiled[t], i)); i++) check_transforms(k, 4e-6);
        for (int i = 0; (k = tn_winograd_kernel_at(4, tiled[t], i)); i++) check_transforms(k, 2e-5);
        assert_true(tn_winograd_kernel_at(2, tiled[t], -1) == NULL);
    }
}

/* All numbers of 16 bits pass through the transforms of every instruction set as through tn_convert, and so
 * do results that lie between two of them, beyond the largest, below the smallest, or are none: a filter that
 * has nothing but its first tap spreads that as it is, and what stands at a tile's first position alone is a
 * result. */
TEST(test_transforms_round_as_tn_convert)
{
    enum { N = 16, EACH = 1 << 16 };
    for (int t = 1; t < 3; t++) {
        const tn_winograd_kernel *k;
        for (int which = 0; (k = tn_winograd_kernel_at(2, tiled[t], which)); which++) {
            uint16_t zeros[N] = {0}, in[N], out[4][N];
            const void *tap[9];
            void *result[4] = {out[0], out[1], out[2], out[3]};
            for (int i = 0; i < 9; i++) tap[i] = zeros;
            for (int first = 0; first < EACH; first += N) {
                float u[16 * N], p[16 * N] = {0};
                for (int c = 0; c < N; c++) in[c] = (uint16_t)(first + c);
                tap[0] = in;
                k->filter(tap, N, u, N);
                for (int c = 0; c < N; c++) {
                    const float want = (float)get(tiled[t], in, c);
                    assert_true(u[c] == want || (isnan(u[c]) && isnan(want)));
                    /* Sixteen bits of a float and every pattern behind them that decides a rounding. */
                    static const uint16_t behind[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1000, 0x0fff};
                    const uint32_t bits = (uint32_t)(first + c) << 16 | behind[(first / N + c) % 8];
                    memcpy(&p[c], &bits, sizeof bits);
                }
                k->output(p, N, N, NULL, false, result);
                for (int c = 0; c < N; c++) {
                    uint16_t want;
                    const float sum = p[c] + 0;
                    tn_convert(&want, tiled[t], &sum, TN_F32, 1);
                    if (isnan(sum))
                        assert_true(isnan(get(tiled[t], out[0], c)));
                    else
                        assert_int_equal(out[0][c], want);
                }
            }
        }
    }
}

/* The largest error of a pass in roundings of the sum of the products' sizes. */
static double roundings(tn_cpu_impl impl, const layer *l, tn_conv_pass pass)
{
    layer t = *l;
    const int64_t n = pass == TN_CONV_FORWARD ? l->y : pass == TN_CONV_DATA_GRAD ? l->x : l->w;
    seed_now = 5;
    float *in0 = random_array(TN_F32, pass == TN_CONV_DATA_GRAD ? l->y : l->x),
          *in1 = random_array(TN_F32, pass == TN_CONV_WEIGHT_GRAD ? l->y : l->w),
          *out = random_array(TN_F32, n);
    double *sum = calloc((size_t)n, sizeof *sum), *size = calloc((size_t)n, sizeof *size), most = 0;
    t.c.pass = pass, t.c.in0 = in0, t.c.in1 = in1, t.c.out = out;
    reference(&t, sum, size);
    tn_cpu_lib *lib;
    tn_pool *pool;
    assert_int_equal(tn_cpu_lib_open(&lib), TN_OK);
    assert_int_equal(tn_pool_open(1, &pool), TN_OK);
    tn_cpu_lib_prefer(lib, impl);
    assert_int_equal(tn_cpu_conv2d(lib, pool, &t.c, NULL, NULL), TN_OK);
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(out[i] - sum[i]) / (size[i] * 0x1p-24));
    tn_pool_close(pool);
    tn_cpu_lib_close(lib);
    free(in0), free(in1), free(out), free(sum), free(size);
    return most;
}

/* Fewer multiplications cost no accuracy with tiles of 2, and a factor of two to three with tiles of 4. */
TEST(test_roundings)
{
    const int large[16] = {4, 14, 14, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    layer l = make(large, TN_F32);
    for (int pass = 0; pass < 3; pass++) {
        const double two = roundings(TN_CPU_TILES_2, &l, (tn_conv_pass)pass),
                     four = roundings(TN_CPU_TILES_4, &l, (tn_conv_pass)pass),
                     sums = roundings(TN_CPU_PLAIN, &l, (tn_conv_pass)pass);
        print_message("pass %d: %.2f and %.2f roundings of the sum of sizes, %.2f written out\n", pass, two,
                      four, sums);
        assert_true(two < 4 && two < 2.5 * sums && four < 16 && four < 5 * sums);
    }
}

/* Tiles are made where they pay: of 4 on large images, of 2 where those would reach far beyond an image or
 * their filters outweigh what they spare, and none with too few channels, another stride, too small an image.
 */
TEST(test_winograd)
{
    const struct {
        int v[16], tile;
        bool serves;
    } want[] = {{{64, 32, 32, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 4, true},
                {{4, 28, 28, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 4, true},
                {{1, 14, 14, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 2, true},
                {{64, 6, 6, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 2, true},
                {{64, 8, 8, 512, 512, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 2, true},
                {{9, 3, 3, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, true},
                {{4, 14, 14, 3, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, false},
                {{4, 14, 14, 64, 64, 3, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1}, 0, false},
                {{4, 14, 14, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 2}, 0, false},
                {{4, 14, 14, 64, 64, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1}, 0, false},
                {{4, 14, 14, 64, 64, 3, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, false},
                {{4, 14, 14, 64, 64, 3, 3, 1, 1, 1, 3, 1, 1, 1, 1, 1}, 0, false}};
    for (int i = 0; i < (int)(sizeof want / sizeof *want); i++) {
        layer l = make(want[i].v, TN_F32);
        for (int pass = 0; pass < 3; pass++) {
            l.c.pass = (tn_conv_pass)pass;
            assert_int_equal(tn_winograd_tile(&l.c), want[i].tile);
            assert_int_equal(tn_winograd_serves(&l.c), want[i].serves);
        }
    }
    layer l = make(want[0].v, TN_F64);
    assert_false(tn_winograd_serves(&l.c));
    for (int t = 1; t < 3; t++) {
        l = make(want[1].v, tiled[t]);
        assert_true(tn_winograd_serves(&l.c));
    }
}

RUN_TESTS(NULL, NULL)
