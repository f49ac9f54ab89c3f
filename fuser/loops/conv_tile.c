/* conv_tile.c - chooses the tile of a convolution on tensor cores: of those there are, the one that the model
 * (conv_model.c) predicts to be the fastest, or that running them has found to be.
 *
 * Read first: fu_conv_tile, then fill_in.
 */
#include "conv_model.h"

#include "../../src/core/int64.h"
#include "../../src/device/embed.h"

#include <stdio.h>
#include <string.h>

enum {
    STATS_TILES = 64, /* as conv2d.cu has it */
    ROOM = 8,         /* likewise: more than a tile's columns in a row of results */
    WORD_SHARED = 1024,
    FINISH_THREADS = 256,
    MOST_SPLITS = 256,
    MOST_UNITS = 16, /* that a thread copies of one buffer's A, and of B */
    FEW_PIXELS = 128 /* of a tile of conv_few.cu */
};

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

static bool valid(const struct fu_conv_tile *o, const fu_conv_shape *s)
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
static int halos_of(const struct fu_conv_tile *o, const fu_conv_shape *s)
{
    return s->channels > o->bk ? 2 : 1;
}

static int64_t shared_of(const struct fu_conv_tile *o, const fu_conv_shape *s, bool stats)
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
    if (o->halo && s->weights)
        return o->stages * ((int64_t)o->bm * FU_CONV_PIXELS + s->halo * FU_CONV_WIDE) * s->size;
    int64_t results = (int64_t)o->bm * (o->bn + ROOM) * 4;
    if (stats) results += 3 * 4 * (int64_t)(threads > o->bn ? threads : o->bn);
    if (s->in_each) return results + s->taps * o->bn * s->in_each * 4;
    if (s->multiplier) return results + s->taps * (s->forward ? 1 : s->multiplier) * o->bn * 4;
    return buffers > results ? buffers : results;
}

/* Columns of a window whose pixels that follow each other in a row are summed by one thread (conv_depthwise.cu); 0: no
 * such kernel. */
static int64_t row_of(const tn_conv2d_desc *d, const fu_conv_shape *s, const struct fu_conv_tile *o)
{
    if (s->multiplier != 1 || o->vec_a == 1 || d->stride[1] != 1 || d->dilation[1] != 1 || d->kw > 7)
        return 0;
    if (s->weights) return d->kw == 3 && d->kh == 3 && s->width % 2 == 0 ? 3 : 0;
    return s->width % (d->kw > 3 ? 2 : 4) == 0 ? d->kw : 0;
}

static void write_defines(const tn_conv2d_desc *d, const fu_conv_shape *s, const tn_target *t, bool stats,
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
                     t->l1_bytes >= 2 * (o->grid.shared + FU_CONV_BLOCK_SHARED)
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
static int products_of(const fu_conv_shape *s, const tn_target *t)
{
    return s->size == 4 && !t->tf32 ? 3 : 1;
}

/* What a tile by warpgroups wants: elements of 16 bits on a GPU that has them, rows of 128 bytes in a buffer,
 * copies of 16 bytes, and, where all registers of a processor are taken, no places to know of each row. */
static bool suits_wgmma(const struct fu_conv_tile *o, const fu_conv_shape *s, const tn_target *t)
{
    const bool turned = o->halo && s->weights;
    return t->wgmma && s->size == 2 && o->bk == 64 && o->stages > 2 && o->vec_a == 8 && o->vec_b == 8 &&
           (turned || (o->bm % (16 * o->warps_m) == 0 && (o->bn == 64 || o->bn % 128 == 0))) &&
           (o->halo || o->warps_m <= 8);
}

static bool fill_in(const tn_conv2d_desc *d, const fu_conv_shape *of, const tn_target *t, bool stats,
                    struct fu_conv_tile *o)
{
    fu_conv_shape own = *of, *const s = &own;
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
        if (!t->wgmma || s->size != 2 || !fu_conv_lay_few(d, o, s)) return false;
    }
    if (o->halo && (!o->wgmma || !fu_conv_lay_halo(d, o, s))) return false;
    if (!o->few && (!valid(o, s) || (o->wgmma && !suits_wgmma(o, s, t)))) return false;
    const bool turned = o->halo && s->weights, few = o->few && s->weights; /* their sums have a finish */
    const int64_t tiles_m = few ? 1 : tn_ceil_div(s->m, o->bm),
                  tiles_n = turned ? s->channels / FU_CONV_WIDE : tn_ceil_div(few ? s->m : s->n, o->bn);
    const int64_t tiles = tiles_m * tiles_n * s->groups * s->phases, sets = tn_ceil_div(tiles_m, STATS_TILES);
    const bool alone = s->direct && s->weights;
    const int64_t each = s->in_each ? s->in_each : 1; /* sums of a tap and channel */
    const int64_t steps = turned       ? tn_ceil_div(s->k, FU_CONV_PIXELS)
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
    fu_conv_predict(o, s, t);
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
    fu_conv_shape s;
    return served(t) && (!stats || d->pass == TN_CONV_FORWARD) && fu_conv_shape_of(d, &s) &&
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
static bool choose_alone(const tn_conv2d_desc *d, const fu_conv_shape *s, const tn_target *t, bool stats,
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
static bool choose_few(const tn_conv2d_desc *d, const fu_conv_shape *s, const tn_target *t, bool stats,
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
static bool can_load(const fu_conv_shape *s, const struct fu_conv_tile *o)
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
    fu_conv_shape s;
    int found = 0;
    if (!served(t) || (stats && d->pass != TN_CONV_FORWARD) || !fu_conv_shape_of(d, &s)) return 0;
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
                    try.splits =
                        splits * t->processors /
                        (s.groups * tn_ceil_div(s.m, try.bm) * tn_ceil_div(s.channels, FU_CONV_WIDE));
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

/* ---- what was found by running them ---- */

static bool same(const tn_conv2d_desc *a, const tn_conv2d_desc *b)
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
        if (t->way[i].stats == stats && same(&t->way[i].d, d)) return &t->way[i];
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
    fu_conv_shape s;
    return fu_conv_shape_of(d, &s) && can_load(&s, o);
}

bool fu_conv_tile_loading(const tn_conv2d_desc *d, const tn_target *t, bool stats, struct fu_conv_tile *out)
{
    if (found_tile(d, t, stats, out) && fu_conv_can_load(d, out)) return true;
    return best_tiles(d, t, stats, true, 1, out) > 0;
}
