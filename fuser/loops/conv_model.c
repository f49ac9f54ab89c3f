/* conv_model.c - how long a tile of a convolution takes, by a model of what a multiprocessor does.
 *
 * A block goes through K in buffers. Of each, the tensor cores multiply BM x BN x BK, shared memory is read
 * by each warp (its rows of A, its columns of B), the L2 cache sends both parts, and four schedulers issue an
 * instruction a clock; the four overlap, so the longest counts, and a barrier. To that come the first
 * buffer's way and writing the results. Blocks go over the multiprocessors in turns: the last one is as long
 * as a full one, which is what splits are for. Where too few warps live on a multiprocessor to hide the
 * instructions' way, everything takes longer.
 *
 * Read first: fu_conv_predict. */
#include "conv_model.h"

#include "../../src/core/int64.h"

enum { REGISTERS = 65536 };

/* The throughput of a multiprocessor per clock: multiply-adds of 16-bit elements (half as many of TF32),
 * bytes from shared memory, bytes from L2, and bytes of device memory. */
static const double mma_per_clock = 1024, wgmma_per_clock = 2048, shared_per_clock = 128, l2_per_clock = 28,
                    wgmma_l2_per_clock = 44, memory_per_clock = 14;
static const double barrier_clocks = 40, start_clocks = 1500, warps_that_hide = 8;
/* Blocks that live on a multiprocessor at once. */
static int64_t resident(const struct fu_conv_tile *o, const fu_conv_shape *s, const tn_target *t)
{
    const int threads = o->warps_m * o->warps_n * 32;
    const int rest = !o->wgmma ? (s->forward ? 110 : 180) : threads > 256 ? 40 : 64; /* beside the sums */
    const int registers = o->bm * o->bn / threads + rest;
    int64_t blocks = t->l1_bytes / (o->grid.shared + FU_CONV_BLOCK_SHARED);
    blocks = tn_min64(blocks, t->max_threads / threads);
    return tn_min64(blocks, REGISTERS / ((int64_t)threads * (registers < 255 ? registers : 255)));
}

/* Instructions of a warp for one buffer, as they were counted in what the assembler makes of the kernels:
 * products; what brings their operands from shared memory (four words each, but f32 that is turned: one) and
 * rounds or splits them (ptx.cuh); for each copy what finds its place and whether it is there; and the loop.
 */
static double issued(const struct fu_conv_tile *o, const fu_conv_shape *s)
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

void fu_conv_predict(struct fu_conv_tile *o, const fu_conv_shape *s, const tn_target *t)
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
            tn_min64(t->max_threads / o->grid.threads, t->l1_bytes / (o->grid.shared + FU_CONV_BLOCK_SHARED));
        const double turns = (double)tn_ceil_div(o->grid.n, lives * t->processors),
                     fills = (double)(lives * t->processors);
        const double moved = 2 * sums * s->size / memory_per_clock;
        o->cycles =
            start_clocks + turns * fills / (double)o->grid.n * (work > moved ? work : moved) / t->processors;
        o->share = 0;
        o->bound = work > moved ? "lanes" : "DRAM";
        return;
    }
    const double bm = o->bm, bn = o->bn, bk = o->halo && s->weights ? FU_CONV_PIXELS : o->bk, size = s->size;
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
        brought = bm * bk + (double)(s->halo * FU_CONV_WIDE);
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

/* Before each buffer is multiplied, the part of it that is the image goes through registers; meanwhile only
 * the other blocks of the multiprocessor have work for its tensor cores. Operands of the image's size come
 * from L2, and nobody has asked for them early. Windows that overlap are computed as often as they are
 * loaded. */
double fu_conv_before(const tn_conv2d_desc *d, const tn_target *t, const struct fu_conv_tile *o, double work,
                      int operands)
{
    const double lanes = 128, latency = 600;
    fu_conv_shape s;
    if (!fu_conv_shape_of(d, &s)) return 0;
    const double elements = (double)(s.forward ? o->bm : o->bn) * o->bk, size = s.size;
    const double convert = s.size == 2 ? 4 : 2;
    double buffer = elements * (work + convert) / lanes + 2 * elements * size / shared_per_clock;
    buffer += operands * (elements * size / l2_per_clock + latency);
    const double buffers = (double)tn_ceil_div(tn_ceil_div(s.k, o->bk), o->splits);
    const int64_t lives = resident(o, &s, t), rounds = tn_ceil_div(o->grid.n, t->processors);
    return (double)rounds * buffers * buffer / (double)(lives < 1 ? 1 : tn_min64(lives, rounds));
}
