/* conv_tile.c - chooses the tile of a convolution on tensor cores by a model of what a multiprocessor does.
 *
 * A block goes through K in buffers. Of each, the tensor cores multiply BM x BN x BK, shared memory is read
 * by each warp (its rows of A, its columns of B), the L2 cache sends both parts, and four schedulers issue an
 * instruction a clock; the four overlap, so the longest counts, and a barrier. To that come the first
 * buffer's way and writing the results. Blocks go over the multiprocessors in turns: the last one is as long
 * as a full one, which is what splits are for. Where too few warps live on a multiprocessor to hide the
 * instructions' way, everything takes longer.
 *
 * Read first: fu_conv_tile, then predict.
 */
#include "conv_tile.h"

#include "../../src/core/int64.h"
#include "../../src/device/embed.h"

#include <stdio.h>
#include <string.h>

enum {
    STATS_TILES = 64, /* as conv2d.cu has it */
    ROOM = 8,         /* likewise: more than a tile's columns in a row of results */
    BLOCK_SHARED = 1024,
    WORD_SHARED = 1024,
    REGISTERS = 65536,
    WINDOW = 3,   /* conv_halo_weights.cu: its rows and columns, */
    WIDE = 64,    /* channels of x in a tile, */
    PIXELS = 128, /* and of a buffer */
    FINISH_THREADS = 256,
    MOST_SPLITS = 256,
    MOST_UNITS = 16, /* that a thread copies of one buffer's A, and of B */
    TAPS = 1 << 15,
    MOST_FEW = 4,     /* channels of conv_few.cu, */
    MOST_PIECES = 32, /* pieces of a window, */
    FEW_PIXELS = 128, /* pixels of a tile */
    FEW = 8           /* channels of a group: a tile of tensor cores would be a fourth full at best */
};

/* The throughput of a multiprocessor per clock: multiply-adds of 16-bit elements (half as many of TF32),
 * bytes from shared memory, bytes from L2, and bytes of device memory. */
static const double mma_per_clock = 1024, wgmma_per_clock = 2048, shared_per_clock = 128, l2_per_clock = 28,
                    wgmma_l2_per_clock = 44, memory_per_clock = 14;
static const double barrier_clocks = 40, start_clocks = 1500, warps_that_hide = 8;

typedef struct shape {
    int64_t m, n, k; /* of one group and phase */
    int64_t phases, groups;
    int64_t width, pixels,
        channels; /* of the pixels' rows and images, of a tap: what indices are divided by */
    int size;
    int64_t taps;
    bool direct;               /* not by tensor cores: either of the two below */
    bool forward, weights;     /* the pass: forward, weight gradient */
    int64_t in_each, out_each; /* of groups of few channels: gathered and made of them; else 0 */
    int64_t multiplier; /* of a convolution of each channel alone: channels of y for one of x; else 0 */
    int64_t halo; /* rows that a block keeps of the image while taps change, or of few channels; else 0 */
    struct few {
        int64_t rows, run, shift, left, pitch, tall, reach, down, pieces;
        bool odd;
    } few; /* as conv_few.cu names them */
} shape;

/* ---- the three products ---- */

static bool fits(int64_t a, int64_t b, int64_t c, int64_t d)
{
    double all = (double)a * (double)b * (double)c * (double)d;
    return a > 0 && b > 0 && c > 0 && d > 0 && all < (double)(INT32_MAX - (1 << 16));
}

/* Of the phase of a data gradient that sees most: those a whole number of strides apart. */
static int64_t most_taps(int64_t taps, int64_t stride, int64_t dilation)
{
    int64_t step = 1;
    while (step * dilation % stride) step++;
    return tn_ceil_div(taps, step);
}

static bool shape_of(const tn_conv2d_desc *d, shape *s)
{
    if (d->dtype != TN_F32 && d->dtype != TN_F16 && d->dtype != TN_BF16) return false;
    if (d->groups < 1 || d->c % d->groups || d->oc % d->groups) return false;
    const int64_t in = d->c / d->groups, out = d->oc / d->groups;
    if (!fits(d->n, d->h, d->w, d->c) || !fits(d->n, d->oh, d->ow, d->oc) || !fits(d->oc, d->kh, d->kw, in))
        return false;
    if (d->kh * d->kw > TAPS || d->stride[0] * d->stride[1] > TAPS) return false;
    /* positions in the image and around it, and products of stride and tap */
    if (!fits(d->h + d->pad[0] + d->pad[1], d->stride[0], d->dilation[0] * d->kh, 1) ||
        !fits(d->w + d->pad[2] + d->pad[3], d->stride[1], d->dilation[1] * d->kw, 1))
        return false;
    *s = (shape){.groups = d->groups,
                 .phases = 1,
                 .size = d->dtype == TN_F32 ? 4 : 2,
                 .taps = d->kh * d->kw,
                 .forward = d->pass == TN_CONV_FORWARD,
                 .weights = d->pass == TN_CONV_WEIGHT_GRAD};
    s->width = d->ow;
    s->pixels = d->oh * d->ow;
    s->channels = in;
    switch (d->pass) {
    case TN_CONV_FORWARD: s->m = d->n * s->pixels, s->n = out, s->k = d->kh * d->kw * in; break;
    case TN_CONV_DATA_GRAD:
        s->phases = d->stride[0] * d->stride[1];
        s->width = tn_ceil_div(d->w, d->stride[1]);
        s->pixels = tn_ceil_div(d->h, d->stride[0]) * s->width;
        s->channels = out;
        s->m = d->n * s->pixels, s->n = in;
        s->k = most_taps(d->kh, d->stride[0], d->dilation[0]) *
               most_taps(d->kw, d->stride[1], d->dilation[1]) * out;
        break;
    case TN_CONV_WEIGHT_GRAD: s->m = out, s->n = d->kh * d->kw * in, s->k = d->n * s->pixels; break;
    }
    if (d->groups > 1 && in == 1) { /* all channels are one group's */
        s->multiplier = out;
        s->groups = 1;
        s->m = d->pass == TN_CONV_WEIGHT_GRAD ? 1 : s->m;
        s->n = d->pass == TN_CONV_DATA_GRAD ? d->c : d->oc;
    } else if (d->groups > 1 && in <= FEW && out <= FEW) { /* likewise, of tiles that are whole groups */
        s->in_each = d->pass == TN_CONV_DATA_GRAD ? out : in;
        s->out_each = d->pass == TN_CONV_DATA_GRAD ? in : out;
        s->groups = 1;
        s->m = d->pass == TN_CONV_WEIGHT_GRAD ? 1 : s->m;
        s->n = d->pass == TN_CONV_DATA_GRAD ? d->c : d->oc;
    }
    s->direct = s->multiplier || s->in_each;
    return fits(s->m, 1, 1, 1) && fits(s->k, 1, 1, 1);
}

/* The largest power of two that divides all channels and moves 16 bytes at most. */
static int vector_of(int64_t channels, int size)
{
    int v = 16 / size;
    while (channels % v) v /= 2;
    return v;
}

/* multiplier + 2^32 shift of a division of numbers below 2^31: n d^-1 = n multiplier 2^-(31 + shift), where
 * the multiplier, rounded up, is too large by less than one part in 2^31. */
static int64_t reciprocal(int64_t d)
{
    int64_t shift = 0;
    while ((int64_t)1 << shift < d) shift++;
    uint64_t power = (uint64_t)1 << (31 + shift);
    return (int64_t)((power + (uint64_t)d - 1) / (uint64_t)d) + (shift << 32);
}

/* ---- one tile ---- */

static bool valid(const struct fu_conv_tile *o, const shape *s)
{
    if (o->halo && s->weights) return o->splits >= 1;
    const int chunk = 16 / s->size, threads = o->warps_m * o->warps_n * 32;
    if (s->in_each)
        return o->bn % s->out_each == 0 && o->bn % 8 == 0 && threads % (o->bn / s->out_each) == 0 &&
               o->splits >= 1;
    if (s->multiplier)
        return o->bm >= 1 && o->bn >= 8 && o->splits >= 1 && threads >= 32 && threads <= 1024 &&
               o->bn / o->vec_a <= threads;
    if (o->bm < 32 || o->bn < 32 || o->bk < 4 * chunk || o->stages < 2 || o->splits < 1) return false;
    if (threads < 32 || threads > 1024 || o->bm % (16 * o->warps_m) || o->bn % (16 * o->warps_n))
        return false;
    /* units of a row that are copied: no more than threads */
    int longest = o->bk / (o->vec_a < o->vec_b ? o->vec_a : o->vec_b);
    if (o->bm / o->vec_a > longest) longest = o->bm / o->vec_a;
    if (o->bn / o->vec_b > longest) longest = o->bn / o->vec_b;
    if (longest > threads) return false;
    /* sums of a thread: f32 operands, in two parts, leave room for fewer */
    if (o->bm * o->bn > (s->size == 2 ? 128 : 64) * threads) return false;
    /* each thread knows the place of every row it copies from: in registers, which are few */
    return o->bm * o->bk <= MOST_UNITS * threads * o->vec_a &&
           o->bn * o->bk <= MOST_UNITS * threads * o->vec_b;
}

/* Halos that a block keeps: the next one comes while taps are multiplied with the one before. */
static int halos_of(const struct fu_conv_tile *o, const shape *s) { return s->channels > o->bk ? 2 : 1; }

static int64_t shared_of(const struct fu_conv_tile *o, const shape *s, bool stats)
{
    const int threads = o->warps_m * o->warps_n * 32;
    if (s->in_each && s->weights) return (s->taps * o->bn + threads) * s->in_each * 4;
    if (s->multiplier && s->weights) /* sums of the taps, of the threads */
        return s->taps * o->bn * 4 + (int64_t)threads * o->vec_a * 4;
    if (o->few) {
        const int64_t halo = (s->halo * s->few.pitch * 2 + 1023) / 1024 * 1024;
        if (s->weights) return 2 * (((int64_t)o->bm * o->bn * 2 + halo + o->bm * 4 + 1023) / 1024 * 1024);
        const int64_t depth = (s->few.pieces * s->few.rows + 1) / 2 * 16;
        return (depth + 63) / 64 * o->bn * 128 + 2 * halo + o->bm * (o->bn + ROOM) * 4 +
               (stats ? 3 * 4 * (int64_t)(threads > o->bn ? threads : o->bn) : 0);
    }
    int64_t buffers = (int64_t)o->stages * (o->bm + o->bn) * o->bk * s->size;
    if (o->halo) buffers = ((int64_t)o->stages * o->bn + halos_of(o, s) * s->halo) * o->bk * s->size;
    if (o->halo && s->weights) return o->stages * ((int64_t)o->bm * PIXELS + s->halo * WIDE) * s->size;
    int64_t results = (int64_t)o->bm * (o->bn + ROOM) * 4;
    if (stats) results += 3 * 4 * (int64_t)(threads > o->bn ? threads : o->bn);
    if (s->in_each) return results + s->taps * o->bn * s->in_each * 4;
    if (s->multiplier) return results + s->taps * (s->forward ? 1 : s->multiplier) * o->bn * 4;
    return buffers > results ? buffers : results;
}

/* Blocks that live on a multiprocessor at once. */
static int64_t resident(const struct fu_conv_tile *o, const shape *s, const tn_target *t)
{
    const int threads = o->warps_m * o->warps_n * 32;
    const int rest = !o->wgmma ? (s->forward ? 110 : 180) : threads > 256 ? 40 : 64; /* beside the sums */
    const int registers = o->bm * o->bn / threads + rest;
    int64_t blocks = t->l1_bytes / (o->grid.shared + BLOCK_SHARED);
    blocks = tn_min64(blocks, t->max_threads / threads);
    return tn_min64(blocks, REGISTERS / ((int64_t)threads * (registers < 255 ? registers : 255)));
}

/* Instructions of a warp for one buffer, as they were counted in what the assembler makes of the kernels:
 * products; what brings their operands from shared memory (four words each, but f32 that is turned: one) and
 * rounds or splits them (ptx.cuh); for each copy what finds its place and whether it is there; and the loop.
 */
static double issued(const struct fu_conv_tile *o, const shape *s)
{
    enum {
        LOOP = 30,
        LOOP_WGMMA = 80,
        ROUND = 2,
        SPLIT = 5,
        COPY_A = 15,
        COPY_B = 15,
        COPY_WINDOWS = 26,
        COPY_TAPS = 61
    };
    const double m = o->bm / o->warps_m / 16, n = o->bn / o->warps_n / 8, threads = o->grid.threads;
    const double steps = o->bk * s->size / 32.0, words = 4 * m + 2 * n;
    const bool wide = s->size == 4, a_turned = wide && s->weights, b_turned = wide && !s->forward;
    const double loads = o->wgmma ? 0 : (a_turned ? 4 : 1) * m + (b_turned ? 4 : 1) * n / 2;
    const double parts = !wide ? 0 : o->products == 3 ? SPLIT : ROUND;
    const double copy_b = s->forward ? COPY_B : s->weights ? COPY_WINDOWS : COPY_TAPS;
    const double copies = (COPY_A * o->bm / o->vec_a + copy_b * o->bn / o->vec_b) * o->bk / threads;
    if (o->wgmma) return steps * m * (o->bn / 128.0) + LOOP_WGMMA + copies;
    return steps * (m * n * o->products + loads + words * parts) + LOOP + copies;
}

static void predict(struct fu_conv_tile *o, const shape *s, const tn_target *t)
{
    if (o->few) { /* memory, or what gathers the windows: half a word a clock and lane */
        const double pixels = (double)(s->weights ? s->k : s->m),
                     channels = (double)(s->weights ? s->m : s->n);
        const double moved = pixels * channels * s->size / memory_per_clock;
        const double words =
            pixels * (double)(s->few.rows * s->few.pieces * 4) * (s->weights || s->few.odd ? 2 : 1);
        const double gathers = 3 * words / 32;
        o->cycles = 2 * start_clocks + (moved > gathers ? moved : gathers) / t->processors;
        o->share = pixels * channels * (double)(s->few.rows * s->few.run) / wgmma_per_clock / t->processors /
                   o->cycles;
        o->bound = moved > gathers ? "DRAM" : "shared";
        return;
    }
    if (s->direct) { /* memory, or arithmetic by all lanes: less where blocks do not fill the last turn */
        const double lanes = 128, sums = (double)(s->weights ? s->k : s->m) * (double)s->n;
        const double work = sums * (double)(s->taps * (s->in_each ? s->in_each : 1)) / lanes;
        const int64_t lives =
            tn_min64(t->max_threads / o->grid.threads, t->l1_bytes / (o->grid.shared + BLOCK_SHARED));
        const double turns = (double)tn_ceil_div(o->grid.n, lives * t->processors),
                     fills = (double)(lives * t->processors);
        const double moved = 2 * sums * s->size / memory_per_clock;
        o->cycles =
            start_clocks + turns * fills / (double)o->grid.n * (work > moved ? work : moved) / t->processors;
        o->share = 0;
        o->bound = work > moved ? "lanes" : "DRAM";
        return;
    }
    const double bm = o->bm, bn = o->bn, bk = o->halo && s->weights ? PIXELS : o->bk, size = s->size;
    /* rows of the image that a buffer costs */
    const bool turned = o->halo && s->weights;
    const double rows = o->halo && !turned ? (double)s->halo / (double)s->taps : bm;
    const double mma = bm * bn * bk * o->products /
                       (size == 4  ? mma_per_clock / 2
                        : o->wgmma ? wgmma_per_clock
                                   : mma_per_clock);
    /* a warpgroup reads its rows for every 128 columns, and these for every 64 rows */
    const double reads_a = o->wgmma ? (double)tn_ceil_div(o->bn, o->halo ? 128 : 256) : o->warps_n,
                 reads_b = o->wgmma ? bm / 64 : o->warps_m;
    double brought = (rows + bn) * bk, read = (reads_a * bm + reads_b * bn) * bk;
    if (turned) { /* 64 channels of x and all of gy an instruction */
        brought = bm * bk + (double)(s->halo * WIDE);
        read = bn / 64 * (64 + bm) * bk;
    }
    if (turned) read *= 1.6; /* both operands are, as an H200 was measured */
    const double shared = (read + brought) * size / shared_per_clock;
    const double l2 = brought * size / (o->wgmma && !s->weights ? wgmma_l2_per_clock : l2_per_clock);
    const double issue = issued(o, s) * o->warps_m * o->warps_n / 4;
    const struct {
        double clocks;
        const char *name;
    } takes[] = {{mma, "tensor"}, {issue, "issue"}, {shared, "shared"}, {l2, "L2"}};
    double step = 0;
    for (int i = 0; i < 4; i++)
        if (takes[i].clocks > step) step = takes[i].clocks, o->bound = takes[i].name;
    const int64_t lives = resident(o, s, t), rounds = tn_ceil_div(o->grid.n, t->processors);
    /* as an H200 was measured: a block alone waits at its barriers, where nobody else multiplies */
    if (o->halo && !turned) step *= lives > 1 ? 1.1 : o->warps_m > 8 ? 1.35 : 1.4;
    /* few warps that gather wait for their places, most where the weights are turned too */
    if (size == 2 && !o->halo && !s->weights) step *= !s->forward ? 1.4 : o->wgmma ? 1.25 : 1.1;
    const double buffers = (double)tn_ceil_div(tn_ceil_div(s->k, (int64_t)bk), o->splits);
    const double written = o->wgmma ? size : 4; /* what is left waits for memory alone */
    double block = buffers * (step + barrier_clocks) + bm * bn * written / memory_per_clock;
    if (o->wgmma) block += start_clocks; /* nothing else is there to be multiplied meanwhile */
    const double warps = (double)(tn_min64(lives, rounds) * o->warps_m * o->warps_n);
    if (warps < warps_that_hide) block *= warps_that_hide / warps;
    o->cycles = (double)rounds * block + start_clocks;
    if (turned) /* all leave their sums, which one more kernel reads */
        o->cycles += 2 * start_clocks + 2 * (double)o->scratch / l2_per_clock / t->processors;
    else if (o->splits > 1) /* each leaves its sums, and the last of a tile reads those of all */
        o->cycles += ((double)rounds + (double)o->splits) * bm * bn * 4 / l2_per_clock;
    const double work = (double)s->m * (double)s->n * (double)s->k * (double)(s->phases * s->groups);
    o->share = mma / (bm * bn * bk) * work / t->processors / o->cycles;
    const double image = s->weights ? (double)s->k : (double)s->m * (double)s->phases,
                 deep = (double)s->channels;
    const double operands = image * deep + (double)s->taps * deep * (double)(s->weights ? s->m : s->n);
    const double far = (operands + image * (double)(s->weights ? s->m : s->n)) * (double)s->groups * size /
                       memory_per_clock / t->processors;
    if (far > o->cycles) o->share *= o->cycles / far, o->bound = "DRAM";
}

/* Columns of a window whose pixels that follow each other in a row are summed by one thread (conv_depthwise.cu); 0: no
 * such kernel. */
static int64_t row_of(const tn_conv2d_desc *d, const shape *s, const struct fu_conv_tile *o)
{
    if (s->multiplier != 1 || o->vec_a == 1 || d->stride[1] != 1 || d->dilation[1] != 1 || d->kw > 7)
        return 0;
    if (s->weights) return d->kw == 3 && d->kh == 3 && s->width % 2 == 0 ? 3 : 0;
    return s->width % (d->kw > 3 ? 2 : 4) == 0 ? d->kw : 0;
}

static void write_defines(const tn_conv2d_desc *d, const shape *s, const tn_target *t, bool stats,
                          struct fu_conv_tile *o)
{
    snprintf(o->defines, sizeof o->defines,
             "#define PASS %d\n#define DTYPE %d\n#define PRODUCTS %d\n#define BM %d\n#define BN %d\n#define "
             "BK %d\n"
             "#define STAGES %d\n#define WARPS_M %d\n#define WARPS_N %d\n#define VEC_A %d\n#define VEC_B %d\n"
             "#define SPLIT %d\n#define STATS %d\n#define EPI_VEC %d\n#define WGMMA %d\n#define HALO "
             "%d\n#define WHOLE %d\n#define BLOCKS %d\n"
             "#define CONV2D_JOIN_(a, b) a##b\n#define CONV2D_JOIN(a, b) CONV2D_JOIN_(a, b)\n"
             "#define SPACE CONV2D_JOIN(ENTRY, _space)\n#define tn_epilogue CONV2D_JOIN(ENTRY, _epilogue)\n"
             "#define tn_statistics CONV2D_JOIN(ENTRY, _statistics)\n"
             "#define tn_prologue CONV2D_JOIN(ENTRY, _prologue)\n#define FEW %d\n#define IN_ROW %d\n",
             (int)d->pass,
             d->dtype == TN_F32   ? 0
             : d->dtype == TN_F16 ? 2
                                  : 3,
             o->products, o->bm, o->bn, o->bk, o->stages, o->warps_m, o->warps_n, o->vec_a, o->vec_b,
             o->splits > 1 || ((o->halo || o->few) && s->weights), stats, o->pack, o->wgmma,
             o->halo ? halos_of(o, s) : 0, o->bk > 1 && s->channels % o->bk == 0,
             (o->row && s->weights) ? 3
             : o->wgmma && o->bm * o->bn <= 64 * o->grid.threads &&
                     t->l1_bytes >= 2 * (o->grid.shared + BLOCK_SHARED)
                 ? 2
                 : 1,
             o->few, o->row);
    const size_t end = strlen(o->defines);
    const struct few *f = &s->few;
    if (o->few)
        snprintf(
            o->defines + end, sizeof o->defines - end,
            "#define KH %d\n#define RUN %d\n#define SHIFT %d\n#define ODD %d\n#define LEFT %d\n#define PITCH "
            "%d\n#define DOWN %d\n#define ROWS %d\n#define TALL %d\n#define REACH %d\n",
            (int)f->rows, (int)f->run, (int)f->shift, f->odd, (int)f->left, (int)f->pitch, (int)f->down,
            (int)s->halo, (int)f->tall, (int)f->reach);
}

/* Of TF32, for one of what is multiplied. */
static int products_of(const shape *s, const tn_target *t) { return s->size == 4 && !t->tf32 ? 3 : 1; }

/* What a tile by warpgroups wants: elements of 16 bits on a GPU that has them, rows of 128 bytes in a buffer,
 * copies of 16 bytes, and, where all registers of a processor are taken, no places to know of each row. */
static bool suits_wgmma(const struct fu_conv_tile *o, const shape *s, const tn_target *t)
{
    const bool turned = o->halo && s->weights;
    return t->wgmma && s->size == 2 && o->bk == 64 && o->stages > 2 && o->vec_a == 8 && o->vec_b == 8 &&
           (turned || (o->bm % (16 * o->warps_m) == 0 && (o->bn == 64 || o->bn % 128 == 0))) &&
           (o->halo || o->warps_m <= 8);
}

/* Numbers pixels as conv_halo.cu has it, so that windows across a border see pixels that do not exist. false:
 * it has no form of the convolution. */
static bool lay_halo(const tn_conv2d_desc *d, const struct fu_conv_tile *o, shape *s)
{
    const int64_t reach[2] = {d->dilation[0] * (d->kh - 1), d->dilation[1] * (d->kw - 1)};
    const int64_t x[2] = {d->h, d->w}, y[2] = {d->oh, d->ow};
    int64_t extent[2];
    if (s->direct || d->stride[0] != 1 || d->stride[1] != 1 || s->channels % o->bk) return false;
    if (s->weights) {
        if (o->bm != 64 || o->bn != WINDOW * WINDOW * WIDE || d->kh != WINDOW || d->kw != WINDOW)
            return false;
    } else if (o->splits > 1 || s->taps < 2 * (o->stages - 2)) {
        return false;
    }
    for (int i = 0; i < 2; i++) { /* in front of what is gathered from, and behind it */
        const bool back = d->pass == TN_CONV_DATA_GRAD;
        const int64_t front = back ? reach[i] - d->pad[2 * i] : d->pad[2 * i];
        const int64_t in = back ? y[i] : x[i], out = back ? x[i] : y[i];
        const int64_t behind = out + reach[i] - front - in;
        const int64_t more = front > behind ? front : behind;
        extent[i] = in + (more > 0 ? more : 0);
        if (extent[i] < out) extent[i] = out;
    }
    s->width = extent[1];
    s->pixels = extent[0] * extent[1];
    *(s->weights ? &s->k : &s->m) = d->n * s->pixels;
    const int64_t own = s->weights ? PIXELS : o->bm;
    s->halo = (own + reach[0] * s->width + reach[1] + 7) / 8 * 8;
    return fits(d->n, extent[0], extent[1], 2) && s->halo < 1 << 14;
}

/* Lays rows of the image as conv_few.cu has it. false: it has no form of the convolution. */
static bool lay_few(const tn_conv2d_desc *d, const struct fu_conv_tile *o, shape *s)
{
    struct few *f = &s->few;
    if (s->direct || d->groups > 1 || d->c > MOST_FEW || d->dilation[1] > 1 || d->pass == TN_CONV_DATA_GRAD)
        return false;
    const int64_t before = d->pad[2] * d->c, row = d->w * d->c, by = d->stride[1] * d->c;
    f->odd = by % 2;
    f->rows = d->kh;
    f->run = d->kw * d->c;
    f->shift = f->odd ? 0 : before % 2;
    f->pieces = tn_ceil_div(f->run + f->shift, 8);
    f->left = (before + 7) / 8 * 8;
    const int64_t end = (d->ow - 1) * by - before + f->pieces * 8 + 2;
    f->pitch = (f->left + (end > row ? end : row) + 7) / 8 * 8;
    f->down = d->dilation[0] * f->pitch;
    f->reach = (d->kh - 1) * d->dilation[0] + 1;
    f->tall = (d->oh - 1) * d->stride[0] + f->reach;
    const int64_t rows = tn_ceil_div(o->bm - 1, d->ow) + 1,
                  more = f->reach - d->stride[0]; /* of y, that a tile sees */
    s->halo = (rows - 1) * d->stride[0] + f->reach + tn_ceil_div(rows - 1, d->oh) * (more > 0 ? more : 0);
    const int64_t pieces = d->kh * f->pieces;
    if (s->weights && (o->warps_m != 4 * tn_ceil_div(pieces, 8) || d->oc % 8)) return false;
    return pieces <= MOST_PIECES && o->stages == 2 && (o->bn == 64 || o->bn == 128) && o->warps_n == 1 &&
           (s->weights || o->warps_m * 16 == o->bm) && fits(s->halo, f->pitch, 1, 1) &&
           fits(d->n, f->tall, 1, 1);
}

static bool fill_in(const tn_conv2d_desc *d, const shape *of, const tn_target *t, bool stats,
                    struct fu_conv_tile *o)
{
    shape own = *of, *const s = &own;
    const int64_t in = d->c / d->groups, out = d->oc / d->groups;
    o->products = products_of(s, t);
    o->vec_a = vector_of(d->pass == TN_CONV_FORWARD ? in : out, s->size);
    o->vec_b = vector_of(in, s->size);
    o->pack = vector_of(s->n, s->size);
    if (s->multiplier) {
        o->products = 1;
        o->vec_a = o->vec_b = s->multiplier == 1 ? vector_of(s->n, s->size) : 1;
        if (s->weights) o->pack = 1;
    }
    if (s->in_each) { /* the only tile there is */
        o->products = 1;
        o->bm = 128, o->bk = 1, o->stages = 1, o->warps_m = 8, o->warps_n = 1;
        o->bn = (int)s->out_each * 8;
        while (o->bn <= 32 && o->bn < 32 * s->out_each) o->bn *= 2;
        if (s->weights) o->pack = 1;
    }
    o->few = !s->direct && o->bk == 8;
    o->wgmma = !s->direct && o->warps_n == 1 && (o->warps_m >= 8 || o->few);
    if (o->few) {
        *(s->weights ? &o->vec_b : &o->vec_a) = vector_of(d->w * d->c, s->size);
        o->halo = false;
        if (!t->wgmma || s->size != 2 || !lay_few(d, o, s)) return false;
    }
    if (o->halo && (!o->wgmma || !lay_halo(d, o, s))) return false;
    if (!o->few && (!valid(o, s) || (o->wgmma && !suits_wgmma(o, s, t)))) return false;
    const bool turned = o->halo && s->weights, few = o->few && s->weights; /* their sums have a finish */
    const int64_t tiles_m = few ? 1 : tn_ceil_div(s->m, o->bm),
                  tiles_n = turned ? s->channels / WIDE : tn_ceil_div(few ? s->m : s->n, o->bn);
    const int64_t tiles = tiles_m * tiles_n * s->groups * s->phases, sets = tn_ceil_div(tiles_m, STATS_TILES);
    const bool alone = s->direct && s->weights;
    const int64_t each = s->in_each ? s->in_each : 1; /* sums of a tap and channel */
    const int64_t steps = turned       ? tn_ceil_div(s->k, PIXELS)
                          : few        ? tn_ceil_div(s->k, o->bm)
                          : !s->direct ? tn_ceil_div(s->k, o->bk)
                          : alone      ? s->k
                                       : 1,
                  per = alone ? tn_ceil_div(tn_ceil_div(steps, o->splits), 2) * 2
                              : tn_ceil_div(steps, o->splits);
    o->splits = tn_ceil_div(steps, per); /* none without work */
    const int64_t tickets =
        (o->splits > 1 && !turned && !few ? tiles : 0) + (stats ? s->groups * tiles_n * (sets + 1) : 0);
    if (tickets > TN_KERNEL_TICKETS || tiles > INT32_MAX / o->splits) return false;
    o->scratch = o->splits > 1 ? o->splits * tiles * (alone ? s->taps * each : o->bm) * o->bn * 4 : 0;
    if (turned || few) o->scratch = o->splits * s->groups * s->m * s->n * 4;
    if (stats) o->scratch += (tiles_m + sets) * d->oc * 2 * 4;
    o->grid = (tn_grid){.n = tiles * o->splits,
                        .chunk = 1,
                        .threads = o->warps_m * o->warps_n * 32,
                        .shared = shared_of(o, s, stats)};
    if (o->few && !few) o->grid.n = tn_min64(tiles_m, tn_ceil_div(2 * t->processors, tiles_n)) * tiles_n;
    if (turned || few) o->grid.finish_n = s->groups * s->m * s->n / o->pack;
    if (turned || few) o->grid.finish_chunk = o->grid.finish_threads = FINISH_THREADS;
    /* the kernel's own word of shared memory is filled up to where the array begins (ptx.cuh) */
    if (o->grid.shared + WORD_SHARED > (t->shared_most > t->shared_bytes ? t->shared_most : t->shared_bytes))
        return false;
    const int64_t dim[] = {d->n,
                           d->h,
                           d->w,
                           d->c,
                           d->oc,
                           d->kh,
                           d->kw,
                           d->oh,
                           d->ow,
                           s->groups,
                           d->stride[0],
                           d->stride[1],
                           d->pad[0],
                           d->pad[1],
                           d->pad[2],
                           d->pad[3],
                           d->dilation[0],
                           d->dilation[1],
                           tiles_m,
                           tiles_n,
                           o->splits,
                           o->halo && !turned ? s->halo : per,
                           s->m,
                           s->n,
                           s->multiplier ? s->multiplier : s->k,
                           s->width,
                           s->pixels,
                           reciprocal(s->width),
                           reciprocal(s->pixels),
                           reciprocal(s->channels),
                           reciprocal(d->kw)};
    o->n_dim = (int)(sizeof dim / sizeof *dim);
    memcpy(o->dim, dim, sizeof dim);
    o->columns = d->pass == TN_CONV_FORWARD     ? d->oc
                 : d->pass == TN_CONV_DATA_GRAD ? d->c
                 : alone                        ? s->taps * each
                                                : s->n;
    o->align[0] = (d->pass == TN_CONV_WEIGHT_GRAD ? o->vec_b : o->vec_a) * s->size;
    o->align[1] = (d->pass == TN_CONV_WEIGHT_GRAD ? o->vec_a : o->vec_b) * s->size;
    o->before = tn_embed_text(TN_EMBED_PTX_CUH);
    o->text = tn_embed_text(s->multiplier ? TN_EMBED_DEPTHWISE_CU
                            : s->in_each  ? TN_EMBED_GROUPED_CU
                            : o->few      ? TN_EMBED_CONV_FEW_CU
                            : turned      ? TN_EMBED_CONV_HALO_WEIGHTS_CU
                            : o->halo     ? TN_EMBED_CONV_HALO_CU
                            : o->wgmma    ? TN_EMBED_CONV2D_WGMMA_CU
                                          : TN_EMBED_CONV2D_CU);
    o->stats = stats;
    o->tuned = false;
    o->product = d->kh == 1 && d->kw == 1 && d->stride[0] == 1 && d->stride[1] == 1 && !d->pad[0] &&
                 !d->pad[1] && !d->pad[2] && !d->pad[3] && d->groups == 1;
    o->row = (int)row_of(d, s, o);
    predict(o, s, t);
    write_defines(d, s, t, stats, o);
    const size_t end = strlen(o->defines);
    if (s->in_each)
        snprintf(o->defines + end, sizeof o->defines - end, "#define IN_EACH %d\n#define OUT_EACH %d\n",
                 (int)s->in_each, (int)s->out_each);
    return true;
}

static bool served(const tn_target *t)
{
    return t->dialect == TN_DIALECT_CUDA && t->capability >= 80 && t->processors > 0 && t->max_threads > 0 &&
           t->l1_bytes > 0;
}

bool fu_conv_tile_as(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out)
{
    shape s;
    return served(t) && (!stats || d->pass == TN_CONV_FORWARD) && shape_of(d, &s) &&
           fill_in(d, &s, t, stats, out);
}

/* ---- the choice ---- */

/* Tiles that are worth trying, those of warpgroups, then the larger, first: of two that are predicted to take
 * the same, the first. */
static const struct {
    int bm, bn, warps_m, warps_n;
    bool halo;
} sizes[] = {
    {384, 128, 12, 1, true}, {64, 576, 12, 1, true},  {256, 128, 8, 1, true},  {256, 64, 8, 1, true},
    {256, 64, 8, 1, false},  {128, 64, 8, 1, false},  {128, 256, 8, 1, false}, {256, 128, 8, 1, false},
    {128, 128, 8, 1, false}, {128, 256, 2, 4, false}, {256, 128, 4, 2, false}, {128, 128, 2, 4, false},
    {128, 64, 2, 2, false},  {64, 128, 2, 2, false},  {64, 64, 2, 2, false},   {128, 32, 4, 1, false},
    {64, 32, 4, 1, false},   {32, 64, 1, 4, false},   {32, 32, 2, 2, false}};

bool fu_conv_size(int i, struct fu_conv_tile *out)
{
    if (i < 0 || i >= (int)(sizeof sizes / sizeof *sizes)) return false;
    out->bm = sizes[i].bm, out->bn = sizes[i].bn;
    out->warps_m = sizes[i].warps_m, out->warps_n = sizes[i].warps_n;
    out->halo = sizes[i].halo;
    return true;
}

/* The only tile there is for channels alone, or in small groups: 16 KiB or so of results, and pixels split
 * until the GPU is full.
 */
static bool choose_alone(const tn_conv2d_desc *d, const shape *s, const tn_target *t, bool stats,
                         struct fu_conv_tile *out)
{
    *out = (struct fu_conv_tile){.bm = 64, .bk = 1, .stages = 1, .warps_m = 8, .warps_n = 1, .splits = 1};
    out->bn = s->n <= 32 ? 32 : 64;
    if (!s->in_each && !s->weights &&
        tn_ceil_div(s->m, 128) * tn_ceil_div(s->n, out->bn) * s->phases >= 4 * t->processors)
        out->bm = 128; /* there are enough of them */
    if (s->weights) {
        const int64_t tiles = tn_ceil_div(s->n, s->in_each ? 8 * s->out_each : out->bn),
                      most = tn_ceil_div(s->k, 256);
        out->splits = tn_min64(most, tn_ceil_div((s->in_each ? 4 : 2) * t->processors, tiles));
        out->vec_a = vector_of(s->n, s->size);
        if (row_of(d, s, out))
            out->warps_m = 4, out->splits = tn_min64(most, tn_ceil_div(3 * t->processors, tiles));
    }
    return fill_in(d, s, t, stats, out);
}

/* Of few channels, of which tiles that are gathered one by one take many times as long. */
static bool choose_few(const tn_conv2d_desc *d, const shape *s, const tn_target *t, bool stats,
                       struct fu_conv_tile *out)
{
    *out = (struct fu_conv_tile){
        .bm = FEW_PIXELS, .bk = 8, .stages = 2, .warps_m = FEW_PIXELS / 16, .warps_n = 1, .splits = 1};
    out->bn = d->oc <= 64 ? 64 : 128;
    if (s->weights) {
        const int64_t pieces =
            d->kh * tn_ceil_div(d->kw * d->c + (d->stride[1] * d->c % 2 ? 0 : d->pad[2] * d->c % 2), 8);
        out->warps_m = 4 * (int)tn_ceil_div(pieces, 8);
        out->splits = tn_ceil_div(2 * t->processors, tn_ceil_div(d->oc, out->bn));
    }
    return fill_in(d, s, t, stats, out);
}

/* 1 2 3 4 6 8 12 16 .. */
static int64_t more_splits(int64_t splits)
{
    return splits % 3 == 0 ? splits / 3 * 4 : splits == 1 ? 2 : splits / 2 * 3;
}

/* Puts `try` among the n best, best first and the older before the newer of the same, unless `each` of its
 * size are better; how many there are now. */
static int keep_best(struct fu_conv_tile *out, int n, int most, int each, const struct fu_conv_tile *try)
{
    int at = n, alike = 0, worst = -1;
    while (at > 0 && try->cycles < out[at - 1].cycles) at--;
    for (int i = 0; i < n; i++) {
        if (out[i].bm != try->bm || out[i].bn != try->bn || out[i].halo != try->halo) continue;
        if (out[i].bk == try->bk && out[i].stages == try->stages && out[i].splits == try->splits) return n;
        alike++;
        worst = i;
    }
    if (alike >= each) {
        if (worst < at) return n;
    } else {
        worst = n < most ? n++ : n - 1;
        if (at > worst) return n;
    }
    memmove(out + at + 1, out + at, (size_t)(worst - at) * sizeof *out);
    out[at] = *try;
    return n;
}

/* All but the weights' gradient of f32 in two parts whose B is the larger, and of warpgroups three, or two
 * that share their sums: there the compiler runs out of registers (`make cuda-kernels` shows the others). */
static bool can_load(const shape *s, const struct fu_conv_tile *o)
{
    if (s->direct || o->halo || o->few || (!s->forward && !s->weights)) return false;
    if (o->warps_m > 8 || (o->warps_m == 8 && s->forward && o->splits > 1)) return false;
    return !(s->weights && o->products == 3 && o->bn > o->bm && o->bn * o->bk > 2048);
}

/* `loading`: of those that can have a prologue. */
static int best_tiles(const tn_conv2d_desc *d, const tn_target *t, bool stats, bool loading, int most,
                      struct fu_conv_tile *out)
{
    enum { EACH = 2 };
    struct fu_conv_tile try = {.n_dim = 0};
    shape s;
    int found = 0;
    if (!served(t) || (stats && d->pass != TN_CONV_FORWARD) || !shape_of(d, &s)) return 0;
    if (s.direct) return !loading && choose_alone(d, &s, t, stats, out);
    if (!loading && choose_few(d, &s, t, stats, out)) return 1;
    try.products = products_of(&s, t);
    for (int i = 0; fu_conv_size(i, &try); i++)
        for (int way = 0; way < 4; way++)
            for (int64_t splits = 1; splits <= MOST_SPLITS; splits = more_splits(splits)) {
                try.bk = (way & 1 ? 64 : 128) / s.size;
                try.stages = way & 2 ? 3 : 4;
                try.splits = splits;
                if (try.halo && s.weights) { /* so many turns of all multiprocessors */
                    if (splits > 2) break;
                    try.splits = splits * t->processors /
                                 (s.groups * tn_ceil_div(s.m, try.bm) * tn_ceil_div(s.channels, WIDE));
                    if (try.splits < 1) try.splits = 1;
                }
                if ((!loading || can_load(&s, &try)) && fill_in(d, &s, t, stats, &try))
                    found = keep_best(out, found, most, EACH, &try);
            }
    return found;
}

int fu_conv_tiles(const tn_conv2d_desc *d, const tn_target *t, bool stats, int most, struct fu_conv_tile *out)
{
    return best_tiles(d, t, stats, false, most, out);
}

bool fu_conv_tile(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out)
{
    return fu_conv_tiles(d, t, stats, 1, out) > 0;
}

/* Before each buffer is multiplied, the part of it that is the image goes through registers; meanwhile only
 * the other blocks of the multiprocessor have work for its tensor cores. Operands of the image's size come
 * from L2, and nobody has asked for them early. Windows that overlap are computed as often as they are
 * loaded. */
double fu_conv_before(const tn_conv2d_desc *d, const tn_target *t, const struct fu_conv_tile *o, double work,
                      int operands)
{
    const double lanes = 128, latency = 600;
    shape s;
    if (!shape_of(d, &s)) return 0;
    const double elements = (double)(s.forward ? o->bm : o->bn) * o->bk, size = s.size;
    const double convert = s.size == 2 ? 4 : 2;
    double buffer = elements * (work + convert) / lanes + 2 * elements * size / shared_per_clock;
    buffer += operands * (elements * size / l2_per_clock + latency);
    const double buffers = (double)tn_ceil_div(tn_ceil_div(s.k, o->bk), o->splits);
    const int64_t lives = resident(o, &s, t), rounds = tn_ceil_div(o->grid.n, t->processors);
    return (double)rounds * buffers * buffer / (double)(lives < 1 ? 1 : tn_min64(lives, rounds));
}

/* ---- what was found by running them ---- */

bool fu_conv_same(const tn_conv2d_desc *a, const tn_conv2d_desc *b)
{
    return a->dtype == b->dtype && a->pass == b->pass && a->tf32 == b->tf32 && a->n == b->n && a->h == b->h &&
           a->w == b->w && a->c == b->c && a->oc == b->oc && a->kh == b->kh && a->kw == b->kw &&
           a->oh == b->oh && a->ow == b->ow && a->groups == b->groups &&
           !memcmp(a->stride, b->stride, sizeof a->stride) && !memcmp(a->pad, b->pad, sizeof a->pad) &&
           !memcmp(a->dilation, b->dilation, sizeof a->dilation);
}

const fu_conv_way *fu_conv_known(const fu_tuned *t, const tn_conv2d_desc *d, bool stats)
{
    for (int i = 0; t && i < t->n; i++)
        if (t->way[i].stats == stats && fu_conv_same(&t->way[i].d, d)) return &t->way[i];
    return NULL;
}

/* Takes the tile that was found to be the fastest by running it, where one was. false: none was. */
static bool found_tile(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out)
{
    const fu_conv_way *w = fu_conv_known(t->tuned, d, stats);
    if (w) {
        *out = (struct fu_conv_tile){.bm = w->bm,
                                     .bn = w->bn,
                                     .bk = w->bk,
                                     .stages = w->stages,
                                     .warps_m = w->warps_m,
                                     .warps_n = w->warps_n,
                                     .splits = w->splits,
                                     .halo = w->halo};
        if (fu_conv_tile_as(d, t, stats, out)) return out->tuned = true;
    }
    return false;
}

bool fu_conv_tile_tuned(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out)
{
    return found_tile(d, t, stats, out) || fu_conv_tile(d, t, stats, out);
}

bool fu_conv_can_load(const tn_conv2d_desc *d, const struct fu_conv_tile *o)
{
    shape s;
    return shape_of(d, &s) && can_load(&s, o);
}

bool fu_conv_tile_loading(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out)
{
    if (found_tile(d, t, stats, out) && fu_conv_can_load(d, out)) return true;
    return best_tiles(d, t, stats, true, 1, out) > 0;
}
