/* cuda_conv.h - running our own convolution kernels (kernels/conv2d.cu) on the simulated GPU, which watches
 * races, bounds and what cp.async has not delivered, against a convolution in f64.
 *
 * Cases are of small images: what matters are tiles that the extents do not fill. Those of small whole
 * numbers, whose sums every format holds, have to be equal; the others have to lie within what the roundings
 * can come to. Kernels differ by what is compiled into them (dtype, pass, tile, vectors, splits, statistics,
 * prologue), so cases share them.
 *
 * Read first: struct test_case, then run_cases.
 */
#pragma once

#include "cuda_rig.h"

#include "fuser/loops/conv_tile.h"
#include "src/core/alloc.h"
#include "src/core/convert.h"
#include "tests/conv_desc.h"

#include <math.h>

/* ---- cases ---- */

typedef struct tiling {
    int bm, bn, warps_m, warps_n, bk_words, stages;
    bool halo;
} tiling;
static const tiling tilings[] = {
    {32, 32, 2, 1, 16, 3, false},   {64, 32, 2, 1, 32, 4, false},   {32, 64, 1, 4, 16, 2, false},
    {64, 64, 2, 2, 16, 3, false},   {128, 128, 8, 1, 32, 4, false}, {128, 256, 8, 1, 32, 3, false},
    {256, 128, 8, 1, 32, 4, false}, {256, 64, 8, 1, 32, 4, false},  {128, 64, 8, 1, 32, 3, false},
    {384, 128, 12, 1, 32, 4, true}, {256, 128, 8, 1, 32, 4, true},  {256, 64, 8, 1, 32, 3, true},
    {128, 128, 8, 1, 32, 4, true},  {64, 576, 12, 1, 32, 4, true},  {64, 576, 12, 1, 32, 3, true}};
enum { WARPGROUPS = 4, HALOS = 9, TURNED = 13, TILINGS = sizeof tilings / sizeof *tilings, CHOSEN };
/* the first of the tilings that are by them, that keep a part of the image, and that do for the weights; the one
 * that is chosen */

typedef struct test_case {
    tn_conv2d_desc d;
    bool tf32, stats, whole; /* whole: numbers whose sums are exact */
    bool prologue;           /* of x goes in: relu(x scale + shift + more), scale and shift of each channel */
    int tiling;
    int64_t splits;
    struct fu_conv_tile tile;
    char *text, name[64];
    int kernel; /* its place in the list of kernels */
} test_case;

typedef struct cases {
    test_case *c;
    int n, room;
    tn_source *source; /* of different texts */
    tn_kernel **kernel;
    int n_kernel;
} cases;

static uint32_t seed;

static inline int64_t below(int64_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int64_t)((seed >> 8) % (uint32_t)n);
}

static const char epilogue[] =
    "TN_FN void tn_epilogue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[EPI_VEC])\n"
    "{\n"
    "    float *out = (float *)a.buf[2] + row * a.dim[31] + column;\n"
    "    for (int i = 0; i < EPI_VEC; i++) out[i] += v[i];\n" /* once: it was 0 */
    "    for (int i = 0; i < EPI_VEC; i++) v[i] += 100.0f;\n" /* what statistics are of */
    "}\n"
    "TN_FN void tn_statistics(const tn_cuda_args &a, int32_t column, float mean, float m2, int64_t count)\n"
    "{\n"
    "    float *out = (float *)a.buf[4] + column * 3;\n"
    "    out[0] += mean;\n"
    "    out[1] += m2;\n"
    "    out[2] += (float)count;\n"
    "}\n";

/* 0 does not become 0. */
static const char prologue[] =
    "TN_FN void tn_prologue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[PASS == 0 ? VEC_A "
    ": "
    "VEC_B])\n"
    "{\n"
    "    const int64_t c = a.dim[3];\n"
    "    const float *scale = (const float *)a.buf[5] + column, *shift = scale + c;\n"
    "    const float *more = (const float *)a.buf[6] + row * c + column;\n"
    "    for (int i = 0; i < (PASS == 0 ? VEC_A : VEC_B); i++)\n"
    "        v[i] = fmaxf(fmaf(v[i], scale[i], shift[i]) + more[i], 0);\n"
    "}\n";

static inline char *text_of(const test_case *c, const char *entry, const char *text)
{
    size_t room = strlen(c->tile.before) + strlen(text) + sizeof epilogue + sizeof prologue + 2048;
    char *all = malloc(room);
    assert_non_null(all);
    snprintf(all, room, "%s#define ENTRY %s\n#define PARTIALS 3\n%s%s%s%s%s", c->tile.defines, entry,
             c->prologue ? "#define PROLOGUE\n" : "", c->tile.before, epilogue, c->prologue ? prologue : "",
             text);
    return all;
}

/* Of channels so few that they have a kernel without tensor cores. */
static inline bool small_groups(const tn_conv2d_desc *d)
{
    return d->groups > 1 && d->c / d->groups <= 8 && d->oc / d->groups <= 8;
}

/* Adds the case where the tile can be had. */
static inline bool add(cases *l, const tn_target *target, test_case c)
{
    const int64_t reach_y = c.d.dilation[0] * (c.d.kh - 1), reach_x = c.d.dilation[1] * (c.d.kw - 1);
    const int64_t free_y = c.d.h + c.d.pad[0] + c.d.pad[1] - reach_y - 1;
    const int64_t free_x = c.d.w + c.d.pad[2] + c.d.pad[3] - reach_x - 1;
    if (free_y < 0 || free_x < 0) return false;
    c.d.oh = free_y / c.d.stride[0] + 1;
    c.d.ow = free_x / c.d.stride[1] + 1;
    tn_target t = *target;
    t.tf32 = c.tf32;
    const tiling *w = &tilings[c.tiling % TILINGS];
    c.tile.bm = w->bm, c.tile.bn = w->bn, c.tile.warps_m = w->warps_m, c.tile.warps_n = w->warps_n;
    c.tile.bk = c.d.dtype == TN_F32 ? w->bk_words : 2 * w->bk_words;
    c.tile.stages = w->stages, c.tile.splits = c.splits, c.tile.halo = w->halo;
    if (!(c.tiling == CHOSEN ? fu_conv_tile : fu_conv_tile_as)(&c.d, &t, c.stats, &c.tile)) return false;
    const bool alone = c.d.groups > 1 && c.d.groups == c.d.c;
    char kind[32] = "conv";
    if (alone) snprintf(kind, sizeof kind, "depthwise");
    if (!alone && small_groups(&c.d))
        snprintf(kind, sizeof kind, "grouped_%d_%d", (int)(c.d.c / c.d.groups), (int)(c.d.oc / c.d.groups));
    const int64_t deep = (c.d.pass == TN_CONV_DATA_GRAD ? c.d.oc : c.d.c) / c.d.groups;
    snprintf(c.name, sizeof c.name, "%s_%d_%d_%d_%d_%d%d%d_%d%d%d%d%d", kind, (int)c.d.pass, (int)c.d.dtype,
             c.tf32, c.tiling, c.tile.vec_a, c.tile.vec_b, c.tile.pack, c.tile.splits > 1, c.stats,
             c.prologue, w->halo && deep > c.tile.bk, deep % c.tile.bk == 0);
    if (c.tiling == CHOSEN)
        snprintf(c.name + strlen(c.name), sizeof c.name - strlen(c.name), "_%d_%d_%d", c.tile.bm, c.tile.bn,
                 c.tile.row);
    if (c.tile.few) snprintf(c.name, sizeof c.name, "few_%d", l->n); /* most of it is compiled in */
    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 64;
        l->c = realloc(l->c, (size_t)l->room * sizeof *l->c);
        l->source = realloc(l->source, (size_t)l->room * sizeof *l->source);
        assert_true(l->c && l->source);
    }
    c.kernel = -1;
    for (int i = 0; i < l->n && c.kernel < 0; i++)
        if (!strcmp(l->c[i].name, c.name)) c.kernel = l->c[i].kernel, c.text = NULL;
    if (c.kernel < 0) {
        c.text = text_of(&c, c.name, c.tile.text);
        c.kernel = l->n_kernel++;
    }
    l->c[l->n++] = c;
    return true;
}

/* ---- numbers ---- */

typedef struct numbers {
    float *value; /* as the dtype holds them */
    void *device;
    int64_t n;
} numbers;

/* As the dtype holds it. */
static inline float rounded(tn_dtype dtype, float v)
{
    uint64_t held = 0;
    tn_convert(&held, dtype, &v, TN_F32, 1);
    tn_convert(&v, TN_F32, &held, dtype, 1);
    return v;
}

static inline numbers make(tn_device *d, tn_dtype dtype, int64_t n, bool whole)
{
    const size_t bytes = (size_t)n * tn_dtype_size(dtype);
    numbers x = {malloc((size_t)n * sizeof(float)), d->alloc(d, bytes), n};
    void *held = malloc(bytes);
    assert_true(x.value && x.device && held);
    for (int64_t i = 0; i < n; i++) {
        float v = whole ? (float)(below(7) - 3) : (float)(below(1 << 20) - (1 << 19)) / (float)(1 << 19);
        x.value[i] = !whole && below(8) == 0 ? v * 1024 : v;
    }
    tn_convert(held, dtype, x.value, TN_F32, (size_t)n);
    tn_convert(x.value, TN_F32, held, dtype, (size_t)n);
    assert_int_equal(d->upload(d, x.device, held, bytes), 0);
    free(held);
    return x;
}

/* ---- the oracle ---- */

/* Sums, and sums of magnitudes, of the pass. */
static inline void oracle(const tn_conv2d_desc *d, const float *in0, const float *in1, double *sum,
                          double *magnitude)
{
    const int64_t in = d->c / d->groups, out = d->oc / d->groups;
    for (int64_t n = 0; n < d->n; n++)
        for (int64_t y = 0; y < d->oh; y++)
            for (int64_t x = 0; x < d->ow; x++)
                for (int64_t o = 0; o < d->oc; o++)
                    for (int64_t i = 0; i < d->kh; i++)
                        for (int64_t j = 0; j < d->kw; j++) {
                            const int64_t row = y * d->stride[0] + i * d->dilation[0] - d->pad[0];
                            const int64_t column = x * d->stride[1] + j * d->dilation[1] - d->pad[2];
                            if (row < 0 || row >= d->h || column < 0 || column >= d->w) continue;
                            const int64_t at_y = ((n * d->oh + y) * d->ow + x) * d->oc + o;
                            for (int64_t c = 0; c < in; c++) {
                                const int64_t at_x =
                                    ((n * d->h + row) * d->w + column) * d->c + o / out * in + c;
                                const int64_t at_w = ((o * d->kh + i) * d->kw + j) * in + c;
                                double p = 0;
                                int64_t to = 0;
                                switch (d->pass) {
                                case TN_CONV_FORWARD:
                                    p = (double)in0[at_x] * (double)in1[at_w], to = at_y;
                                    break;
                                case TN_CONV_DATA_GRAD:
                                    p = (double)in0[at_y] * (double)in1[at_w], to = at_x;
                                    break;
                                case TN_CONV_WEIGHT_GRAD:
                                    p = (double)in0[at_x] * (double)in1[at_y], to = at_w;
                                    break;
                                }
                                sum[to] += p;
                                magnitude[to] += fabs(p);
                            }
                        }
}

/* What of the sum of magnitudes the roundings can come to: of operands to TF32 or to its two parts; of the
 * sum after each instruction of 8 (16) products, which drops what does not fit; of adding the splits up. */
static inline double bound(const test_case *c)
{
    const double operands = c->d.dtype != TN_F32 ? 0 : c->tf32 ? 0x1.01p-10 : 3.1 * 0x1p-22;
    const double k = (double)c->tile.dim[24] + 64,
                 steps = k / (c->d.dtype == TN_F32 ? 8 : 16) * c->tile.products;
    return operands + (steps + (double)c->tile.splits + 2) * 0x1p-23;
}

/* ---- running one ---- */

static inline void describe(const test_case *c, char *text, size_t n)
{
    const tn_conv2d_desc *d = &c->d;
    snprintf(
        text, n,
        "%s: x [%d %d %d %d], weight [%d %d %d], groups %d, stride %d %d, pad %d %d %d %d, dilation %d %d, "
        "%d splits",
        c->name, (int)d->n, (int)d->h, (int)d->w, (int)d->c, (int)d->oc, (int)d->kh, (int)d->kw,
        (int)d->groups, (int)d->stride[0], (int)d->stride[1], (int)d->pad[0], (int)d->pad[1], (int)d->pad[2],
        (int)d->pad[3], (int)d->dilation[0], (int)d->dilation[1], (int)c->tile.splits);
}

static inline int64_t elements(const tn_conv2d_desc *d, int which) /* 0 x  1 weight  2 y */
{
    return which == 0   ? d->n * d->h * d->w * d->c
           : which == 1 ? d->oc * d->kh * d->kw * (d->c / d->groups)
                        : d->n * d->oh * d->ow * d->oc;
}

/* What the prologue reads: scale and shift, the rest. */
typedef struct before {
    numbers of_channel, more;
} before;

static inline before make_before(tn_device *d, const test_case *c)
{
    before b = {{NULL, NULL, 0}, {NULL, NULL, 0}};
    if (!c->prologue) return b;
    b.of_channel = make(d, TN_F32, 2 * c->d.c, true); /* f16 holds no large ones */
    b.more = make(d, TN_F32, elements(&c->d, 0), c->whole);
    return b;
}

static inline void put_before(const test_case *c, const before *b, numbers *x)
{
    const float *scale = b->of_channel.value, *shift = scale + c->d.c;
    for (int64_t i = 0; i < x->n && c->prologue; i++) {
        const int64_t k = i % c->d.c;
        x->value[i] = rounded(c->d.dtype, fmaxf(fmaf(x->value[i], scale[k], shift[k]) + b->more.value[i], 0));
    }
}

/* Launches the case's kernel; what it wrote. */
static inline int launch(tn_device *d, tn_kernel *kernel, const test_case *c, void *in0, void *in1,
                         const before *b, float *out, int64_t n, float *statistics, tn_errbuf *err)
{
    void *buf[7] = {in0,
                    in1,
                    d->alloc(d, (size_t)n * 4),
                    d->alloc(d, (size_t)c->tile.scratch + 4),
                    d->alloc(d, (size_t)c->d.oc * 12),
                    b ? b->of_channel.device : NULL,
                    b ? b->more.device : NULL};
    int64_t dim[32];
    memcpy(dim, c->tile.dim, sizeof dim);
    dim[31] = c->tile.columns;
    assert_true(buf[2] && buf[3] && buf[4]);
    assert_int_equal(d->zero(d, buf[2], (size_t)n * 4), 0);
    assert_int_equal(d->zero(d, buf[4], (size_t)c->d.oc * 12), 0);
    const tn_args args = {.buf = buf, .dim = dim, .n_buf = 7, .n_dim = 32};
    int status = d->launch(d, kernel, &args, &c->tile.grid, err);
    if (!status) status = d->download(d, out, buf[2], (size_t)n * 4);
    if (!status && c->stats) status = d->download(d, statistics, buf[4], (size_t)c->d.oc * 12);
    for (int i = 2; i < 5; i++) d->free(d, buf[i]);
    return status;
}

static inline void check_statistics(const test_case *c, const char *what, const float *out,
                                    const float *statistics)
{
    const int64_t rows = c->d.n * c->d.oh * c->d.ow;
    for (int64_t o = 0; o < c->d.oc; o++) {
        double mean = 0, m2 = 0, most = 0;
        for (int64_t r = 0; r < rows; r++) {
            const double v = (double)(out[r * c->d.oc + o] + 100.0f); /* as the epilogue left it */
            mean += v;
            if (fabs(v) > most) most = fabs(v);
        }
        mean /= (double)rows;
        for (int64_t r = 0; r < rows; r++) {
            const double v = (double)(out[r * c->d.oc + o] + 100.0f) - mean;
            m2 += v * v;
        }
        const float *s = statistics + o * 3;
        if (s[2] != (float)rows || fabs((double)s[0] - mean) > 2e-6 * most ||
            fabs((double)s[1] - m2) > 1e-5 * m2 + (double)rows * 1e-11 * most * most)
            fail_msg("%s: column %d: mean %g (%g), m2 %g (%g), count %g (%d)", what, (int)o, (double)s[0],
                     mean, (double)s[1], m2, (double)s[2], (int)rows);
    }
}

static inline void run_case(tn_device *d, tn_kernel *kernel, const test_case *c, bool again, double *worst)
{
    const tn_conv2d_desc *v = &c->d;
    char what[256];
    describe(c, what, sizeof what);
    static const int in[3][2] = {{0, 1}, {2, 1}, {0, 2}}, to[3] = {2, 0, 1};
    numbers a = make(d, v->dtype, elements(v, in[v->pass][0]), c->whole);
    numbers b = make(d, v->dtype, elements(v, in[v->pass][1]), c->whole);
    const before b0 = make_before(d, c);
    const int64_t n = elements(v, to[v->pass]);
    float *out = calloc((size_t)n, sizeof *out), *out2 = calloc((size_t)n, sizeof *out);
    float *statistics = calloc((size_t)v->oc * 6, sizeof *statistics), *statistics2 = statistics + v->oc * 3;
    double *sum = calloc((size_t)n * 2, sizeof *sum), *magnitude = sum + n;
    tn_errbuf err = {""};
    assert_true(out && out2 && statistics && sum);
    put_before(c, &b0, &a); /* forward and for the weights, x is the first */
    oracle(v, a.value, b.value, sum, magnitude);
    int status = launch(d, kernel, c, a.device, b.device, &b0, out, n, statistics, &err);
    if (status) fail_msg("%s: %s %s %s", what, err.text, d->failure.text, sim.report());
    const double most = c->whole ? 0 : bound(c);
    for (int64_t i = 0; i < n; i++) {
        const double apart = fabs((double)out[i] - sum[i]), allowed = most * magnitude[i];
        if (!(apart <= allowed))
            fail_msg("%s: element %d is %.9g, not %.9g; %.3g is allowed", what, (int)i, (double)out[i],
                     sum[i], allowed);
        if (allowed > 0 && apart / allowed > *worst) *worst = apart / allowed;
    }
    if (c->stats) check_statistics(c, what, out, statistics);
    if (again) { /* blocks in another order, the same bits */
        sim.set("seed", 4711);
        status = launch(d, kernel, c, a.device, b.device, &b0, out2, n, statistics2, &err);
        sim.set("seed", 1);
        if (status) fail_msg("%s: %s", what, err.text);
        assert_memory_equal(out, out2, (size_t)n * sizeof *out);
        assert_memory_equal(statistics, statistics2, (size_t)v->oc * 3 * sizeof *statistics);
    }
    d->free(d, a.device);
    d->free(d, b.device);
    if (c->prologue) {
        d->free(d, b0.of_channel.device);
        d->free(d, b0.more.device);
        free(b0.of_channel.value);
        free(b0.more.value);
    }
    free(a.value);
    free(b.value);
    free(out);
    free(out2);
    free(statistics);
    free(sum);
}

static inline void compile(tn_device *d, cases *l)
{
    tn_errbuf err = {""};
    l->kernel = calloc((size_t)l->n_kernel + 1, sizeof *l->kernel);
    assert_non_null(l->kernel);
    for (int i = 0; i < l->n; i++)
        if (l->c[i].text) l->source[l->c[i].kernel] = (tn_source){l->c[i].name, l->c[i].text};
    if (d->compile(d, l->source, l->n_kernel, l->kernel, &err)) fail_msg("%s", err.text);
}

static inline void drop_cases(cases *l)
{
    for (int i = 0; i < l->n; i++) free(l->c[i].text);
    free(l->c);
    free(l->source);
    free(l->kernel);
}

static inline void run_cases(tn_device *d, cases *l)
{
    double worst = 0;
    int passes[3] = {0};
    compile(d, l);
    for (int i = 0; i < l->n; i++) {
        const test_case *c = &l->c[i];
        passes[c->d.pass]++;
        run_case(d, l->kernel[c->kernel], c, c->tile.splits > 1 || c->stats || i % 8 == 0, &worst);
    }
    print_message(
        "%d forward, %d data gradients, %d weight gradients; %d kernels; at most %.2f of the bound\n",
        passes[0], passes[1], passes[2], l->n_kernel, worst);
    drop_cases(l);
}

/* ---- lists of cases ---- */

static const struct {
    tn_dtype dtype;
    bool tf32;
} kinds[] = {{TN_F32, false}, {TN_F32, true}, {TN_F16, false}, {TN_BF16, false}};
/* Channels of a group, in and out: what may be loaded at once follows from them. */
static const struct {
    int64_t in[4], out[4];
} channels[] = {{{1, 3, 5, 7}, {1, 3, 5, 9}},
                {{8, 16, 24, 8}, {8, 16, 40, 24}},
                {{3, 1, 3, 5}, {8, 16, 8, 24}},
                {{4, 12, 4, 20}, {4, 12, 20, 4}}};

static inline test_case draw(tn_conv_pass pass, int kind, int set)
{
    test_case c = {.tf32 = kinds[kind].tf32, .splits = 1};
    tn_conv2d_desc *d = &c.d;
    d->pass = pass;
    d->dtype = kinds[kind].dtype;
    d->groups = below(4) == 0 ? 2 + below(2) : 1;
    d->c = channels[set].in[below(4)] * d->groups;
    d->oc = channels[set].out[below(4)] * d->groups;
    d->n = 1 + below(3);
    d->h = 1 + below(9), d->w = 1 + below(9);
    d->kh = 1 + below(3), d->kw = 1 + below(3);
    for (int i = 0; i < 2; i++) {
        d->stride[i] = below(2) ? 1 : 1 + below(3);
        d->dilation[i] = below(3) ? 1 : 1 + below(2);
    }
    for (int i = 0; i < 4; i++) d->pad[i] = below(3);
    c.whole = below(2);
    return c;
}

/* n h w, channels in and out of a group, groups, window, stride, padding, dilation. */
static const struct {
    int64_t n, h, w, in, out, groups, kh, kw, stride[2], pad[4], dilation[2];
    int64_t splits;
    bool stats;
} corners[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, 1, false},
    {1, 1, 1, 8, 8, 1, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1, true},  /* most of the window is padding */
    {2, 4, 8, 8, 32, 1, 1, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, 1, true}, /* tiles that are full */
    {1, 7, 9, 8, 8, 1, 1, 1, {2, 3}, {0, 0, 0, 0}, {1, 1}, 1, false}, /* pixels that no window sees */
    {1, 9, 9, 8, 8, 1, 2, 2, {3, 3}, {1, 0, 0, 1}, {1, 1}, 1, false},
    {1, 11, 11, 3, 8, 1, 7, 7, {2, 2}, {3, 3, 3, 3}, {1, 1}, 1, false},
    {1, 9, 8, 8, 8, 1, 3, 3, {2, 2}, {2, 2, 2, 2}, {2, 2}, 1, false}, /* taps that share a factor with the
                                                                         stride */
    {1, 9, 8, 8, 8, 1, 3, 3, {2, 3}, {2, 1, 0, 2}, {3, 2}, 1, false},
    {2, 6, 5, 8, 40, 1, 2, 3, {1, 2}, {2, 1, 1, 0}, {2, 2}, 3, false}, /* all taps meet one phase of the
                                                                          splits */
    {1, 12, 10, 8, 8, 1, 2, 3, {4, 1}, {0, 3, 2, 0}, {2, 3}, 1, false},
    {1, 5, 5, 1, 1, 8, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1, false}, /* each channel alone */
    {1, 5, 5, 1, 2, 3, 3, 3, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1, false},
    {2, 9, 7, 1, 1, 40, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 3, true},
    {1, 8, 9, 1, 1, 24, 5, 4, {2, 3}, {2, 1, 0, 3}, {2, 1}, 4, true},
    {1, 6, 5, 1, 3, 12, 3, 2, {2, 1}, {1, 1, 1, 0}, {1, 2}, 2, true},
    {1, 3, 4, 40, 72, 1, 1, 3, {1, 1}, {0, 0, 1, 1}, {1, 1}, 1, true}, /* several tiles of channels */
    {1, 3, 4, 72, 40, 1, 2, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, 3, false},
    {2, 6, 5, 16, 40, 2, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2, true},
    {2, 12, 12, 8, 8, 1, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 7, false},
    {1, 6, 6, 8, 8, 1, 6, 6, {1, 1}, {0, 0, 0, 0}, {1, 1}, 3, true}, /* one window */
    {1, 4, 6, 7, 5, 1, 5, 4, {1, 2}, {4, 4, 3, 3}, {1, 1}, 1, false},
    {2, 7, 6, 4, 4, 9, 3, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}, 3, true}, /* small groups */
    {1, 6, 7, 8, 8, 5, 3, 2, {2, 1}, {1, 0, 1, 1}, {1, 2}, 2, true},
    {1, 5, 5, 2, 1, 40, 3, 3, {1, 1}, {1, 1, 1, 1}, {2, 1}, 1, true},
    {2, 4, 5, 3, 7, 3, 2, 3, {1, 2}, {1, 1, 0, 2}, {1, 1}, 4, false},
    {1, 9, 8, 2, 4, 17, 3, 3, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1, true},
};

static inline test_case corner(size_t i, tn_conv_pass pass, int kind)
{
    test_case c = {.tf32 = kinds[kind].tf32, .whole = true, .splits = corners[i].splits};
    c.stats = corners[i].stats && pass == 0;
    c.d = (tn_conv2d_desc){.dtype = kinds[kind].dtype,
                           .pass = pass,
                           .n = corners[i].n,
                           .h = corners[i].h,
                           .w = corners[i].w,
                           .c = corners[i].in * corners[i].groups,
                           .oc = corners[i].out * corners[i].groups,
                           .kh = corners[i].kh,
                           .kw = corners[i].kw,
                           .groups = corners[i].groups};
    memcpy(c.d.stride, corners[i].stride, sizeof c.d.stride);
    memcpy(c.d.pad, corners[i].pad, sizeof c.d.pad);
    memcpy(c.d.dilation, corners[i].dilation, sizeof c.d.dilation);
    return c;
}

/* All corners that the kernels have a form for, each of two kinds or, with `all`, of every one. */
static inline void run_corners(bool all, uint32_t first, bool prologues)
{
    tn_device *d = device_open();
    cases l = {.n = 0};
    seed = first;
    for (size_t i = 0; i < sizeof corners / sizeof *corners; i++)
        for (int pass = 0; pass < 3; pass++)
            for (int kind = 0; kind < 4; kind++) {
                test_case c = corner(i, (tn_conv_pass)pass, kind);
                if (prologues && (pass == TN_CONV_DATA_GRAD || small_groups(&c.d))) continue;
                if (!all && kind != (int)(i % 2) * 2 && !(i == 6 && kind == 3)) continue;
                c.prologue = prologues;
                assert_true(add(&l, &d->target, c));
            }
    run_cases(d, &l);
    device_close(d);
}

/* The text with `to` in the place of `from`, which has to be there; freed by the caller. */
static inline char *with_fault(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *changed = malloc(strlen(text) + strlen(to) + 1);
    if (!at) fail_msg("no place for the fault: %s", from);
    if (!changed) abort();
    sprintf(changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return changed;
}
