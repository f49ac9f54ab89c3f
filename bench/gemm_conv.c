/* gemm_conv.c - GFLOP/s of products and convolutions: the library as it chooses, as sums written out, and by
 * Winograd's tiles of 2x2 and 4x4 where they serve (else as sums written out).
 *
 *   gemm_conv [--threads N] [--seconds S] [--dtype f32|f16|bf16] [--csv] [filter]
 *
 * The implementations of a row are timed in turn, round after round, so that a busy machine slows all of
 * them; the figures are medians. Read first: main, then time_row. */
#include <stdio.h>
#include <string.h>

#include "bench/clock.h"
#include "src/core/convert.h"
#include "src/device/cpu/cpu_lib.h"
#include "src/device/cpu/pool.h"
#include "tests/conv_desc.h"

enum { ROUNDS = 4000, IMPLS = 4 };

static double seconds_per_row = 0.4;
static int csv;
static tn_dtype dtype = TN_F32;

static void *filled(int64_t n)
{
    const size_t es = tn_dtype_size(dtype);
    char *p = aligned_alloc(64, ((size_t)n * es + 63) / 64 * 64);
    if (!p) exit(1);
    for (int64_t i = 0; i < n; i++) {
        const float v = (float)(i * 2654435761 % 1000) / 1000 - 0.5f;
        tn_convert(p + (size_t)i * es, dtype, &v, TN_F32, 1);
    }
    return p;
}

static tn_dtype dtype_named(const char *name)
{
    for (int d = 0; d < TN_DTYPE_COUNT; d++)
        if (!strcmp(name, tn_dtype_name((tn_dtype)d))) return (tn_dtype)d;
    fprintf(stderr, "gemm_conv: no dtype is called %s\n", name);
    exit(64);
}

typedef struct row {
    tn_gemm g;
    tn_conv2d_desc c;
    int conv;
    char name[64];
    double flops;
} row;

static int run(tn_cpu_lib *lib, tn_pool *pool, const row *r)
{
    tn_errbuf err = {""};
    int s = r->conv ? tn_cpu_conv2d(lib, pool, &r->c, NULL, &err) : tn_cpu_gemm(lib, pool, &r->g, NULL, &err);
    if (s) fprintf(stderr, "%s: %s\n", r->name, err.text);
    return s;
}

static void time_row(tn_cpu_lib *lib, tn_pool *pool, const row *r)
{
    static double t[IMPLS][ROUNDS];
    const tn_cpu_impl impls[IMPLS] = {TN_CPU_AUTO, TN_CPU_PLAIN, TN_CPU_TILES_2, TN_CPU_TILES_4};
    int n = 0;
    for (double end = now_ms() + 1e3 * seconds_per_row; n < ROUNDS && (n < 7 || now_ms() < end); n++) {
        for (int i = 0; i < IMPLS; i++) {
            tn_cpu_lib_prefer(lib, impls[i]);
            double start = now_ms();
            if (run(lib, pool, r)) return;
            t[i][n] = now_ms() - start;
        }
    }
    double gflops[IMPLS];
    for (int i = 0; i < IMPLS; i++)
        gflops[i] = r->flops / middle(t[i] + 1, n - 1) / 1e6; /* the first asks for memory */
    printf(csv ? "%s,%.1f,%.1f,%.1f,%.1f\n" : "%-34s %8.1f %8.1f %8.1f %8.1f\n", r->name, gflops[0],
           gflops[1], gflops[2], gflops[3]);
    fflush(stdout);
}

static void gemm_row(tn_cpu_lib *lib, tn_pool *pool, const char *filter, int64_t batch, int64_t m, int64_t n,
                     int64_t k, int ta, int tb, int epilogue)
{
    row r = {.flops = 2.0 * (double)batch * (double)m * (double)n * (double)k};
    snprintf(r.name, sizeof r.name, "%c%c %dx%dx%dx%d%s", ta ? 'T' : 'N', tb ? 'T' : 'N', (int)batch, (int)m,
             (int)n, (int)k, epilogue ? " bias relu" : "");
    if (!strstr(r.name, filter)) return;
    void *a = filled(batch * m * k), *b = filled(batch * n * k), *bias = filled(n),
         *c = filled(batch * m * n);
    r.g = (tn_gemm){.dtype = dtype, .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .c_row = n};
    r.g.a_row = ta ? 1 : k, r.g.a_col = ta ? m : 1, r.g.b_row = tb ? 1 : n, r.g.b_col = tb ? k : 1;
    if (epilogue) r.g.bias = bias, r.g.epilogue = TN_EPI_RELU;
    if (batch > 1) {
        r.g.batch_ndim = 1;
        r.g.batch[0] = batch, r.g.a_batch[0] = m * k, r.g.b_batch[0] = n * k, r.g.c_batch[0] = m * n;
    }
    time_row(lib, pool, &r);
    free(a), free(b), free(bias), free(c);
}

typedef struct layer {
    int n, h, w, c, oc, k, stride, dilation, groups, pad;
} layer;

static void conv_row(tn_cpu_lib *lib, tn_pool *pool, const char *filter, const layer *l, tn_conv_pass pass)
{
    static const char *const names[] = {"forward", "data", "weight"};
    const int64_t kh = l->h == 1 ? 1 : l->k, span = l->dilation * (l->k - 1) + 1,
                  pad = l->pad < 0 ? span / 2 : l->pad, pad_h = kh == 1 ? 0 : pad;
    row r = {.conv = 1};
    r.c = conv_desc(dtype, pass, l->n, l->h, l->c, l->oc, l->k);
    r.c.w = l->w, r.c.kh = kh, r.c.groups = l->groups;
    for (int i = 0; i < 4; i++) r.c.pad[i] = i < 2 ? pad_h : pad;
    for (int i = 0; i < 2; i++) r.c.stride[i] = l->stride, r.c.dilation[i] = l->dilation;
    r.c.oh = (l->h + 2 * pad_h - (kh == 1 ? 1 : span)) / l->stride + 1;
    r.c.ow = (l->w + 2 * pad - span) / l->stride + 1;
    const int64_t weights = kh * l->k * l->c * l->oc / l->groups, pixels = l->n * r.c.oh * r.c.ow;
    r.flops = 2.0 * (double)pixels * (double)weights;
    char more[32] = "";
    if (l->stride > 1) snprintf(more, sizeof more, "/%d", l->stride);
    if (l->dilation > 1) snprintf(more, sizeof more, "*%d", l->dilation);
    if (l->groups > 1) snprintf(more + strlen(more), sizeof more - strlen(more), " g%d", l->groups);
    snprintf(r.name, sizeof r.name, "conv%d%s %dx%dx%dx%d->%d %s", l->k, more, l->n, l->h, l->w, l->c, l->oc,
             names[pass]);
    if (!strstr(r.name, filter)) return;
    void *x = filled((int64_t)l->n * l->h * l->w * l->c), *y = filled(pixels * l->oc), *w = filled(weights);
    r.c.in0 = pass == TN_CONV_DATA_GRAD ? y : x;
    r.c.in1 = pass == TN_CONV_WEIGHT_GRAD ? y : w;
    r.c.out = pass == TN_CONV_FORWARD ? y : pass == TN_CONV_DATA_GRAD ? x : w;
    time_row(lib, pool, &r);
    free(x), free(y), free(w);
}

int main(int argc, char **argv)
{
    int threads = 2;
    const char *filter = "";
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            seconds_per_row = atof(argv[++i]);
        else if (!strcmp(argv[i], "--dtype") && i + 1 < argc)
            dtype = dtype_named(argv[++i]);
        else if (!strcmp(argv[i], "--csv"))
            csv = 1;
        else
            filter = argv[i];
    tn_pool *pool;
    tn_cpu_lib *lib;
    if (tn_pool_open(threads, &pool) || tn_cpu_lib_open(&lib)) return 1;
    if (!csv)
        printf("%d threads, %-4s, GFLOP/s%16s %8s %8s %8s\n", threads, tn_dtype_name(dtype), "library",
               "sums", "2x2", "4x4");
    static const int shapes[][3] = {{768, 384, 128},   {768, 128, 128},   {768, 128, 512},
                                    {768, 512, 128},   {2048, 384, 384},  {2048, 1536, 384},
                                    {2048, 384, 1536}, {4096, 1024, 1024}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
        gemm_row(lib, pool, filter, 1, m, n, k, 0, 0, 0);
        gemm_row(lib, pool, filter, 1, m, n, k, 0, 1, 0);
        gemm_row(lib, pool, filter, 1, m, n, k, 0, 1, 1);
        gemm_row(lib, pool, filter, 1, n, k, m, 1, 0, 0);
    }
    gemm_row(lib, pool, filter, 1, 64, 10, 128, 0, 1, 1);
    gemm_row(lib, pool, filter, 1, 64, 128, 6272, 0, 1, 1);
    gemm_row(lib, pool, filter, 1, 128, 6272, 64, 1, 0, 0);
    gemm_row(lib, pool, filter, 1, 768, 1000, 128, 0, 1, 0);
    gemm_row(lib, pool, filter, 48, 64, 64, 32, 0, 1, 0);
    gemm_row(lib, pool, filter, 48, 64, 32, 64, 0, 0, 0);
    gemm_row(lib, pool, filter, 48, 64, 32, 64, 1, 0, 0);
    gemm_row(lib, pool, filter, 48, 256, 256, 64, 0, 1, 0);
    gemm_row(lib, pool, filter, 48, 256, 64, 256, 0, 0, 0);
    gemm_row(lib, pool, filter, 48, 256, 64, 256, 1, 0, 0);
    /* n h w c oc, window, stride, dilation, groups, padding (-1: as much as keeps the size) */
    static const layer layers[] = {{64, 28, 28, 1, 32, 3, 1, 1, 1, -1},
                                   {64, 28, 28, 32, 64, 3, 1, 1, 1, -1},
                                   {64, 32, 32, 3, 64, 3, 1, 1, 1, -1},
                                   {64, 14, 14, 64, 128, 3, 1, 1, 1, -1},
                                   {64, 8, 8, 128, 256, 3, 1, 1, 1, -1},
                                   {16, 32, 32, 16, 16, 3, 1, 1, 1, -1},
                                   {4, 56, 56, 64, 64, 3, 1, 1, 1, -1},
                                   {4, 28, 28, 128, 128, 3, 1, 1, 1, -1},
                                   {4, 14, 14, 256, 256, 3, 1, 1, 1, -1},
                                   {4, 7, 7, 512, 512, 3, 1, 1, 1, -1},
                                   {32, 7, 7, 512, 512, 3, 1, 1, 1, -1},
                                   {64, 32, 32, 16, 16, 3, 1, 1, 1, -1},
                                   {64, 16, 16, 32, 32, 3, 1, 1, 1, -1},
                                   {64, 8, 8, 64, 64, 3, 1, 1, 1, -1},
                                   {8, 64, 64, 32, 32, 3, 1, 1, 1, -1},
                                   {8, 32, 32, 64, 64, 3, 1, 1, 1, -1},
                                   {8, 16, 16, 128, 128, 3, 1, 1, 1, -1},
                                   /* first layers */
                                   {64, 32, 32, 3, 16, 3, 1, 1, 1, -1},
                                   {64, 28, 28, 1, 16, 5, 1, 1, 1, -1},
                                   {64, 28, 28, 1, 32, 5, 1, 1, 1, -1},
                                   {4, 112, 112, 3, 64, 7, 2, 1, 1, -1},
                                   {64, 32, 32, 3, 32, 3, 1, 1, 1, -1},
                                   {8, 64, 64, 3, 32, 3, 1, 1, 1, -1},
                                   {64, 28, 28, 1, 32, 3, 2, 1, 1, -1},
                                   {64, 32, 32, 3, 192, 4, 4, 1, 1, 0},
                                   {8, 64, 64, 32, 3, 3, 1, 1, 1, -1},
                                   /* strided, and transposed by their data's gradient */
                                   {64, 32, 32, 16, 32, 3, 2, 1, 1, -1},
                                   {64, 16, 16, 32, 64, 3, 2, 1, 1, -1},
                                   {64, 32, 32, 16, 32, 1, 2, 1, 1, 0},
                                   {64, 16, 16, 32, 64, 1, 2, 1, 1, 0},
                                   {4, 56, 56, 64, 128, 3, 2, 1, 1, -1},
                                   {4, 14, 14, 256, 512, 3, 2, 1, 1, -1},
                                   {64, 14, 14, 32, 64, 3, 2, 1, 1, -1},
                                   {8, 32, 32, 64, 128, 2, 2, 1, 1, 0},
                                   {8, 64, 64, 32, 64, 2, 2, 1, 1, 0},
                                   /* dilated, grouped, one dimension */
                                   {4, 28, 28, 64, 64, 3, 1, 2, 1, -1},
                                   {32, 1, 256, 64, 64, 3, 1, 4, 1, -1},
                                   {32, 1, 256, 64, 64, 5, 1, 1, 1, -1},
                                   {16, 28, 28, 64, 64, 3, 1, 1, 4, -1},
                                   {16, 28, 28, 40, 40, 3, 1, 1, 40, -1},
                                   {64, 32, 32, 32, 32, 3, 1, 1, 32, -1},
                                   {64, 32, 32, 64, 64, 3, 2, 1, 64, -1},
                                   {64, 16, 16, 128, 128, 3, 1, 1, 128, -1},
                                   {64, 8, 8, 256, 256, 3, 1, 1, 256, -1},
                                   {8, 28, 28, 32, 32, 5, 1, 1, 1, -1},
                                   {64, 4, 4, 64, 64, 3, 1, 1, 1, -1},
                                   {256, 2, 2, 64, 64, 3, 1, 1, 1, -1},
                                   {1, 32, 32, 16, 32, 3, 2, 1, 1, -1},
                                   {1, 56, 56, 64, 128, 3, 2, 1, 1, -1}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int p = 0; p < 3; p++) conv_row(lib, pool, filter, &layers[i], (tn_conv_pass)p);
    tn_cpu_lib_close(lib);
    tn_pool_close(pool);
    return 0;
}
