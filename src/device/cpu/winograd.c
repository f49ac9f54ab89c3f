/* winograd.c - 3x3 convolutions as 16 products over two by two tiles of the result, or 36 over four by four.
 *
 *   forward           y = A^T [ sum over i of  (G w G^T) . (B^T x B) ] A
 *   data gradient     gx: the same of gy, with w turned by half a turn
 *   weight gradient   gw = G^T [ sum over tiles of  (A gy A^T) . (B^T x B) ] G
 *
 * For each of a tile's positions the sum is a matrix product: [tiles, c] [c, oc], or [oc, tiles] [tiles,
 * c].
 *
 * Tiles are taken in blocks small enough that what is between the transforms stays in a core's own cache: the
 * inputs of a block, spread; its products; its results, gathered. Blocks depend on shapes alone, and the
 * weight gradient has a fixed number of partial sums, added in order, which have the memory of as many as there
 * are threads: the bits do not depend on the thread count. Read first: tn_winograd_conv2d, then run_tiles. */
#include "winograd.h"

#include <math.h>
#include <string.h>

#include "../../core/int64.h"
#include "gemm_kernel.h"
#include "pool.h"
#include "slots.h"
#include "winograd_kernel.h"

enum {
    BLOCK_FLOATS = 102400, /* of a block's tiles, before and after the products */
    BLOCK_FEWEST = 24,
    BLOCK_MOST = 96,
    UNITS = 16, /* of a weight gradient, which may run at a time */
    SPLIT_CHANNELS = 64,
    PART_PIXELS = 1024,
    FILTER_FLOATS = 16 << 20,
    NEAR_FLOATS = 4 << 20,
    FILTER_CHANNELS = 64, /* turned at a time */
    APART = 16,           /* keeps the positions of a tile out of each other's cache sets */
    SUM_CHUNK = 1 << 10,
    ADD_CHUNK = 1 << 13,
};

typedef struct conv {
    const tn_conv2d_desc *c;
    const tn_gemm_kernel *product;
    const tn_winograd_kernel *transform;
    /* The tensors that tiles are cut from and written into: x and y, or gy and gx. */
    const char *from;
    char *to;
    int64_t es; /* bytes of one of their elements */
    int64_t from_h, from_w, from_c, to_h, to_w, to_c;
    int64_t top, left; /* the first tile's inputs begin so far outside */
    int64_t tile, span, positions;
    int64_t tiles_y, tiles_x, tiles;
    int64_t block, blocks; /* tiles of one; how many */
    int64_t row;           /* floats from one tile's inputs, spread, to the next, as the product wants them */
    int64_t piece;         /* floats of a block's inputs for as many positions as one such row holds */
    int64_t at[TN_WINOGRAD_POSITIONS]; /* where the first tile's inputs stand for each position */
    int64_t spread;                    /* floats of all of them */
    const void *zeros;                 /* channels outside of the image */
    float *filters;                    /* [position][panel of to_c][from_c][nr] */
    int64_t filter;                    /* floats of one position */
    float *partials; /* weight gradient: the sum, and those of a round's parts: [][position][oc][c] */
    int64_t part_blocks, parts, splits;
    int64_t part, more; /* of a round the first part, and how many partial sums are to be added to the sum */
    tn_slots slots;     /* a block's memory */
} conv;

/* ---- forward and data gradient ---- */

/* Spreads the filters of columns [begin, end) of panels into [from_c][nr] each. Forward: column o, from_c =
 * c; oc filters lie c apart, so what is spread along c is turned. */
static void run_filters(void *arg, int64_t begin, int64_t end)
{
    conv *v = arg;
    const tn_conv2d_desc *c = v->c;
    const char *w = c->in1;
    const int64_t nr = v->product->nr;
    const void *tap[9];
    if (c->pass == TN_CONV_FORWARD) {
        const int mine = tn_take_slot(&v->slots);
        const int64_t step = nr * FILTER_CHANNELS;
        float *spread = tn_slot(&v->slots, mine);
        for (int64_t j = begin; j < end; j++) {
            const int64_t columns = tn_min64(nr, c->oc - j * nr);
            for (int64_t i = 0; i < c->c; i += FILTER_CHANNELS) {
                const int64_t n = tn_min64(FILTER_CHANNELS, c->c - i);
                for (int64_t o = 0; o < columns; o++) {
                    for (int t = 0; t < 9; t++) tap[t] = w + (((j * nr + o) * 9 + t) * c->c + i) * v->es;
                    v->transform->filter(tap, n, spread + o * FILTER_CHANNELS, step);
                }
                for (int p = 0; p < v->positions; p++)
                    tn_pack_transpose(TN_F32, spread + p * step, FILTER_CHANNELS, columns, n,
                                      v->filters + p * v->filter + (j * c->c + i) * nr, nr);
            }
        }
        tn_give_slot(&v->slots, mine);
        return;
    }
    for (int64_t j = begin; j < end; j++) {
        const int64_t n = tn_min64(nr, c->c - j * nr);
        for (int64_t o = 0; o < c->oc; o++) {
            for (int t = 0; t < 9; t++) tap[t] = w + ((o * 9 + 8 - t) * c->c + j * nr) * v->es;
            v->transform->filter(tap, n, v->filters + (j * c->oc + o) * nr, v->filter);
        }
    }
}

/* Finds tile t: its image, and the row and column of its first result. */
static void place(const conv *v, int64_t t, int64_t *image, int64_t *y, int64_t *x)
{
    *x = t % v->tiles_x * v->tile;
    *y = t / v->tiles_x % v->tiles_y * v->tile;
    *image = t / v->tiles_x / v->tiles_y;
}

/* The inputs of tile t. */
static void inputs(const conv *v, int64_t t, const void **pixel)
{
    const int64_t span = v->span, right = v->from_c * v->es, down = v->from_w * right;
    int64_t image, y, x;
    place(v, t, &image, &y, &x);
    y -= v->top, x -= v->left;
    const char *first = v->from + (image * v->from_h + y) * down + x * right;
    const bool whole = y >= 0 && x >= 0 && y + span <= v->from_h && x + span <= v->from_w;
    for (int64_t i = 0; i < span; i++) {
        for (int64_t j = 0; j < span; j++) {
            const bool inside = whole || (y + i >= 0 && y + i < v->from_h && x + j >= 0 && x + j < v->from_w);
            pixel[span * i + j] = inside ? first + i * down + j * right : v->zeros;
        }
    }
}

/* The results of tile t; what lies outside of it is `outside`. */
static void results(const conv *v, int64_t t, void *outside, void **pixel)
{
    const int64_t tile = v->tile;
    int64_t image, y, x;
    place(v, t, &image, &y, &x);
    for (int64_t i = 0; i < tile; i++) {
        for (int64_t j = 0; j < tile; j++) {
            const bool inside = y + i < v->to_h && x + j < v->to_w;
            pixel[tile * i + j] =
                inside ? v->to + ((image * v->to_h + y + i) * v->to_w + x + j) * v->to_c * v->es : outside;
        }
    }
}

static void run_tiles(void *arg, int64_t begin, int64_t end)
{
    conv *v = arg;
    const tn_conv2d_desc *c = v->c;
    const tn_gemm_kernel *kn = v->product;
    const int mine = tn_take_slot(&v->slots);
    const int64_t pieces = tn_ceil_div(v->from_c, kn->kc);
    const int64_t step = v->block * v->to_c + APART;
    float *spread = tn_slot(&v->slots, mine), *products = spread + v->spread;
    float *outside = products + v->positions * step;
    for (int64_t b = begin; b < end; b++) {
        const int64_t first = b * v->block, n = tn_min64(v->block, v->tiles - first);
        for (int64_t t = 0; t < n; t++) {
            const void *pixel[TN_WINOGRAD_POSITIONS];
            inputs(v, first + t, pixel);
            for (int64_t q = 0; q < pieces; q++) {
                const int64_t channels = tn_min64(kn->kc, v->from_c - q * kn->kc);
                v->transform->input(pixel, channels, spread + q * v->piece + t * v->row, v->at);
                for (int i = 0; i < v->positions && q + 1 < pieces; i++)
                    pixel[i] = (const char *)pixel[i] + kn->kc * v->es;
            }
        }
        for (int p = 0; p < v->positions; p++) {
            for (int64_t q = 0; q < pieces; q++) {
                tn_gemm_block g = {.rows = (int)n,
                                   .cols = v->to_c,
                                   .kc = tn_min64(kn->kc, v->from_c - q * kn->kc),
                                   .b = v->filters + p * v->filter + q * kn->kc * kn->nr,
                                   .ldb = kn->nr,
                                   .b_step = v->from_c * kn->nr,
                                   .ldc = v->to_c,
                                   .accumulate = q > 0};
                g.a = spread + v->at[p] + q * v->piece;
                g.c = products + p * step;
                kn->block(&g);
            }
        }
        for (int64_t t = 0; t < n; t++) {
            void *pixel[TN_WINOGRAD_TILE * TN_WINOGRAD_TILE];
            results(v, first + t, outside, pixel);
            v->transform->output(products + t * v->to_c, step, v->to_c, c->bias, c->epilogue == TN_EPI_RELU,
                                 pixel);
        }
    }
    tn_give_slot(&v->slots, mine);
}

/* ---- weight gradient: from x, with gy in the place of results ---- */

/* Unit u is the results' channels of one split, over the blocks of one part of the round. */
static void run_parts(void *arg, int64_t begin, int64_t end)
{
    conv *v = arg;
    const tn_gemm_kernel *kn = v->product;
    const int mine = tn_take_slot(&v->slots);
    const int64_t channels = v->to_c / v->splits;
    const int64_t step = v->block * channels + APART;
    float *spread = tn_slot(&v->slots, mine), *outer = spread + v->spread + kn->nr;
    for (int64_t u = begin; u < end; u++) {
        const int64_t part = v->part + u / v->splits, o0 = u % v->splits * channels;
        const int64_t at = u / v->splits + (v->part > 0); /* the very first is the sum itself */
        float *sums = v->partials + at * v->positions * v->to_c * v->from_c;
        const int64_t last = tn_min64(v->blocks, (part + 1) * v->part_blocks);
        for (int64_t b = part * v->part_blocks; b < last; b++) {
            const int64_t first = b * v->block, n = tn_min64(v->block, v->tiles - first);
            for (int64_t t = 0; t < n; t++) {
                const void *pixel[TN_WINOGRAD_POSITIONS];
                void *result[TN_WINOGRAD_TILE * TN_WINOGRAD_TILE];
                inputs(v, first + t, pixel);
                v->transform->input(pixel, v->from_c, spread + t * v->from_c, v->at);
                /* Only read: results() serves both directions. */
                results(v, first + t, (void *)(uintptr_t)v->zeros, result);
                const void *gy[TN_WINOGRAD_TILE * TN_WINOGRAD_TILE];
                for (int i = 0; i < v->tile * v->tile; i++) gy[i] = (const char *)result[i] + o0 * v->es;
                v->transform->gradient(gy, channels, outer + t * channels, step);
            }
            for (int p = 0; p < v->positions; p++) {
                tn_gemm_block g = {.rows = (int)channels,
                                   .a_by_k = true,
                                   .a_step = channels,
                                   .cols = v->from_c,
                                   .kc = n,
                                   .b = spread + v->at[p],
                                   .ldb = v->from_c,
                                   .b_step = kn->nr,
                                   .ldc = v->from_c,
                                   .accumulate = b > part * v->part_blocks};
                g.a = outer + p * step;
                g.c = sums + (p * v->to_c + o0) * v->from_c;
                kn->block(&g);
            }
        }
    }
    tn_give_slot(&v->slots, mine);
}

/* Adds the round's partial sums [begin, end) to the sum, in the order of their parts. */
static void run_add(void *arg, int64_t begin, int64_t end)
{
    const conv *v = arg;
    const int64_t sums = v->positions * v->to_c * v->from_c;
    for (int64_t q = 1; q <= v->more; q++)
        v->transform->add(v->partials + begin, v->partials + q * sums + begin, end - begin);
}

/* Gathers the taps of the filters of results [begin, end). */
static void run_gather(void *arg, int64_t begin, int64_t end)
{
    const conv *v = arg;
    const int64_t position = v->to_c * v->from_c;
    for (int64_t o = begin; o < end; o++) {
        void *tap[9];
        for (int t = 0; t < 9; t++) tap[t] = (char *)v->c->out + (o * 9 + t) * v->from_c * v->es;
        v->transform->filter_gradient(v->partials + o * v->from_c, position, v->from_c, tap);
    }
}

/* ---- the choice and the call ---- */

bool tn_winograd_serves(const tn_conv2d_desc *c)
{
    const int64_t vl = tn_winograd_kernel_best(2, TN_F32)->vl;
    return (c->dtype == TN_F32 || tn_dtype_is_half(c->dtype)) && c->kh == 3 && c->kw == 3 && c->groups == 1 &&
           c->stride[0] == 1 && c->stride[1] == 1 && c->dilation[0] == 1 && c->dilation[1] == 1 &&
           c->c % vl == 0 && c->oc % vl == 0 && c->pad[0] <= 2 && c->pad[1] <= 2 && c->pad[2] <= 2 &&
           c->pad[3] <= 2 && c->c * c->oc <= FILTER_FLOATS / TN_WINOGRAD_POSITIONS;
}

/* What a product of the sums written out takes, beside one of f32: of bf16, where the processor multiplies
 * pairs along k, half as much. */
static double written_out(const tn_conv2d_desc *c)
{
    return c->dtype == TN_BF16 && tn_gemm_kernel_for(TN_BF16) ? 0.55 : 1;
}

/* What a pass takes by tiles, in products of one channel of the input with one of the result. Measured: on
 * top of the products their transforms, which weigh the more the fewer channels there are, and the filters'
 * as much as so many products however many tiles share them, as long as the nearer caches hold a good part of
 * these. */
static double cost(const tn_conv2d_desc *c, int64_t tile)
{
    const bool back = c->pass == TN_CONV_DATA_GRAD;
    const int64_t h = back ? c->h : c->oh, w = back ? c->w : c->ow, positions = (tile + 2) * (tile + 2);
    const double products =
        (double)positions * (double)c->n * (double)tn_ceil_div(h, tile) * (double)tn_ceil_div(w, tile);
    const double each = 1 / (double)c->c + 1 / (double)c->oc;
    if (tile == 2) return (0.85 + 15 * each) * products + 200 + (double)(c->c * c->oc) / 64;
    return c->c * c->oc > NEAR_FLOATS / positions ? INFINITY : (0.9 + 18 * each) * products + 2000;
}

int tn_winograd_tile(const tn_conv2d_desc *c)
{
    if (!tn_winograd_serves(c)) return 0;
    const double sums = written_out(c) * 9.0 * (double)c->n * (double)c->oh * (double)c->ow, two = cost(c, 2),
                 four = cost(c, 4);
    return four < two && four < sums ? 4 : two < sums ? 2 : 0;
}

static void geometry(conv *v, const tn_conv2d_desc *c, int tile)
{
    const bool back = c->pass == TN_CONV_DATA_GRAD;
    v->c = c;
    v->product = tn_gemm_kernel_for(TN_F32);
    v->transform = tn_winograd_kernel_best(tile, c->dtype);
    v->es = (int64_t)tn_dtype_size(c->dtype);
    v->from = c->in0;
    v->from_h = back ? c->oh : c->h, v->from_w = back ? c->ow : c->w, v->from_c = back ? c->oc : c->c;
    v->to_h = back ? c->h : c->oh, v->to_w = back ? c->w : c->ow, v->to_c = back ? c->c : c->oc;
    /* Input i of the data gradient is reached by outputs i + pad - 2 .. i + pad. */
    v->top = back ? 2 - c->pad[0] : c->pad[0], v->left = back ? 2 - c->pad[2] : c->pad[2];
    /* The weight gradient only reads there; see run_parts. */
    v->to = c->pass == TN_CONV_WEIGHT_GRAD ? (void *)(uintptr_t)c->in1 : c->out;
    v->tile = tile, v->span = tile + 2, v->positions = v->span * v->span;
    v->tiles_y = tn_ceil_div(v->to_h, tile), v->tiles_x = tn_ceil_div(v->to_w, tile);
    v->tiles = c->n * v->tiles_y * v->tiles_x;
    v->block = BLOCK_FLOATS / v->positions / (c->c + c->oc) / 12 * 12;
    v->block = tn_min64(BLOCK_MOST, tn_max64(BLOCK_FEWEST, v->block));
    v->blocks = tn_ceil_div(v->tiles, v->block);
    v->row = v->product->a_ld;
}

/* Lays out a block's inputs. As the left operand of a product they stand in rows that are a constant of it
 * apart: few channels leave room for further positions there, many take several pieces. */
static void lay_out(conv *v)
{
    const int64_t kc = v->product->kc;
    const bool weights = v->c->pass == TN_CONV_WEIGHT_GRAD;
    const int64_t together = weights ? 1 : tn_max64(1, kc / v->from_c);
    v->piece = v->block * (weights ? v->from_c : v->row);
    const int64_t apart = v->piece * (weights ? 1 : tn_ceil_div(v->from_c, kc)) + APART;
    for (int64_t p = 0; p < v->positions; p++) v->at[p] = p / together * apart + p % together * v->from_c;
    v->spread = tn_ceil_div(v->positions, together) * apart;
}

/* As many parts at a time as there are threads: what partial sums take stays in the caches that are near. */
static void run_rounds(conv *v, struct tn_pool *pool)
{
    const int64_t threads = tn_pool_threads(pool), all = v->positions * v->to_c * v->from_c;
    for (v->part = 0; v->part < v->parts; v->part += threads) {
        const int64_t n = tn_min64(threads, v->parts - v->part);
        v->more = n - (v->part == 0);
        tn_pool_run(pool, run_parts, v, n * v->splits, 1);
        if (v->more) tn_pool_run(pool, run_add, v, all, ADD_CHUNK);
    }
    tn_pool_run(pool, run_gather, v, v->to_c, tn_max64(1, SUM_CHUNK / v->from_c));
}

/* Many channels are split, as their inputs cost little to spread once more; else runs of blocks are summed
 * apart. */
static void cut_weights(conv *v)
{
    for (v->splits = 1; v->splits < UNITS / 2 && v->to_c / v->splits % (2 * SPLIT_CHANNELS) == 0;)
        v->splits *= 2;
    const int64_t pixels = v->tiles * v->tile * v->tile;
    const int64_t parts = tn_min64(UNITS / v->splits, tn_max64(1, pixels / PART_PIXELS));
    v->part_blocks = tn_ceil_div(v->blocks, tn_min64(v->blocks, parts));
    v->parts = tn_ceil_div(v->blocks, v->part_blocks);
}

int tn_winograd_conv2d(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, int tile,
                       tn_errbuf *err)
{
    conv v = {.c = c};
    geometry(&v, c, tile);
    lay_out(&v);
    const bool weights = c->pass == TN_CONV_WEIGHT_GRAD;
    const int64_t nr = v.product->nr, most = tn_max64(v.from_c, v.to_c);
    const int64_t slot = v.spread + v.positions * (v.block * v.to_c + APART) + most + 4 * nr,
                  floats = tn_max64(slot, v.positions * nr * FILTER_CHANNELS);
    v.filter = tn_ceil_div(v.to_c, nr) * nr * v.from_c;
    if (weights) cut_weights(&v);
    const int64_t sums = tn_min64(v.parts, tn_pool_threads(pool) + 1),
                  kept = v.positions * (weights ? sums * c->c * c->oc : v.filter);
    float *scratch = tn_cpu_scratch(lib, TN_SCRATCH_SUM, (size_t)kept * sizeof(float));
    if (!tn_open_slots(&v.slots, lib, TN_SCRATCH_PACK, tn_pool_threads(pool), floats * (int64_t)sizeof(float),
                       most * (int64_t)sizeof(float)) ||
        !scratch)
        return tn_err(err, TN_E_NOMEM, "conv2d: no memory for its tiles");
    float *zeros = tn_slot(&v.slots, v.slots.n);
    memset(zeros, 0, (size_t)most * sizeof(float));
    v.zeros = zeros;
    v.filters = v.partials = scratch;
    if (weights) {
        run_rounds(&v, pool);
    } else {
        tn_pool_run(pool, run_filters, &v, tn_ceil_div(v.to_c, nr), 1);
        tn_pool_run(pool, run_tiles, &v, v.blocks, 1);
    }
    return TN_OK;
}
