/* conv_begin.cuh - what the convolution kernels have in common: where a block is, meeting other blocks, statistics
 * of columns, handing results to the epilogue.
 *
 * A kernel is ptx.cuh, this, conv2d.cu, conv_halo.cu, conv_halo_weights.cu, conv_grouped.cu or
 * conv_depthwise.cu, conv_end.cuh, with these names defined in front:
 *
 *   ENTRY                      the kernel's name; SPACE, tn_epilogue and tn_statistics are made of it, so that
 *                              several kernels can stand in one text
 *   PASS DTYPE                 0 forward  1 data gradient  2 weight gradient; 0 f32  2 f16  3 bf16
 *   PRODUCTS                   of TF32 for one of f32: 1 or 3
 *   BM BN BK STAGES WARPS_M WARPS_N
 *   VEC_A VEC_B                elements that are loaded at once, of A and of B: divisors of the channels
 *   SPLIT STATS                0 or 1
 *   WGMMA                      1: conv2d.cu, behind wgmma.cuh, by warpgroups; f16 or bf16, BK 64
 *   HALO                       0; of conv_halo.cu and conv_halo_weights.cu, behind wgmma.cuh, how many halos
 *                              there is room for: 1 or 2
 *   WHOLE                      1: channels of a tap are a multiple of BK, so that a buffer is of one tap
 *   BLOCKS                     that are to find room on a multiprocessor at once
 *   IN_EACH OUT_EACH           of conv_grouped.cu: channels of a group
 *   EPI_VEC                    columns in a call of tn_epilogue: a divisor of N
 *   PARTIALS                   which buffer is scratch, with SPLIT or STATS
 *   TN_FN void tn_epilogue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[EPI_VEC])
 *                              does all that is to be done with EPI_VEC results side by side. row: the pixel of
 *                              y or gx, or the row of gweight; column: the channel, or place in that row. With
 *                              STATS it leaves in v what they are of
 *   PROLOGUE                   if defined, not in PASS 1:
 *   TN_FN void tn_prologue(const tn_cuda_args &a, int64_t row, int32_t column, float (&v)[..])
 *                              makes of elements of x side by side, VEC_A of them forward and VEC_B in PASS 2,
 *                              what the convolution is of. row: the pixel of x; column: the channel. What lies
 *                              outside of x is never asked for and stays 0
 *   TN_FN void tn_statistics(const tn_cuda_args &a, int32_t column, float mean, float m2, int64_t count)
 *                              with STATS: of each column, once
 *
 * buf: 0, 1 the inputs (forward x, weight; data gy, weight; weight x, gy); all others are the functions'
 * dim: 0 n  1 h  2 w  3 c  4 oc  5 kh  6 kw  7 oh  8 ow  9 groups  10, 11 stride  12 .. 15 padding at top,
 *   bottom, left, right  16, 17 dilation  18 tiles along M  19 along N  20 splits  21 buffers of a split
 *   22 M  23 N  24 K  25 width of a row of pixels along M (K in PASS 2)  26 pixels of an image there (HALO: more
 *   than there are; 21 is rows of a halo)
 *   27 .. 30 reciprocals of 25, 26, the channels of a tap, kw: multiplier + 2^32 shift
 *   all of one group, of one phase: PASS 1 counts pixels of gx in steps of the stride, rounded up
 *
 * A data gradient with stride s falls into s x s phases, the pixels of gx with the same remainder: each sees
 * every s-th tap alone, and is a convolution of stride 1 of its own.
 *
 * Read first: find_place, then give_results.
 */

namespace SPACE {

enum {
    THREADS = WARPS_M * WARPS_N * 32,
    ROOM = BN + 8,   /* of a row of results in shared memory: 8 lanes that store pairs meet 8 groups of banks */
    STATS_TILES = 64 /* that one block combines */
};

#if DTYPE == 0
typedef float element;
#elif DTYPE == 2
typedef tn_half element;
#else
typedef tn_bfloat16 element;
#endif

TN_FN float value_of(float x) { return x; }
TN_FN float value_of(tn_half x) { return tn_half_to_f32(x); }
TN_FN float value_of(tn_bfloat16 x) { return tn_bfloat16_to_f32(x); }
TN_FN void round_to(float &to, float x) { to = x; }
TN_FN void round_to(tn_half &to, float x) { to = tn_f32_to_half(x); }
TN_FN void round_to(tn_bfloat16 &to, float x) { to = tn_f32_to_bfloat16(x); }

/* ---- division by what is known before the launch, of numbers below 2^31 ---- */

struct divisor {
    uint32_t multiplier, shift;
};

TN_FN divisor divisor_of(int64_t packed)
{
    divisor d;
    d.multiplier = (uint32_t)packed;
    d.shift = (uint32_t)(packed >> 32);
    return d;
}

TN_FN int32_t divided(int32_t n, divisor d)
{
    return (int32_t)(__umulhi((uint32_t)n << 1, d.multiplier) >> d.shift);
}

/* ---- where the block is ---- */

struct place {
    int32_t m0, n0, group, split, tile, tiles; /* tile: its number among `tiles` */
#if HALO
    int32_t first, rows; /* of the results: the first one's number, how many */
#endif
    int32_t m, n, k, channels;                 /* extents; channels of a tap along K */
    int32_t phase_y, phase_x;                  /* PASS 1 */
    int32_t first_y, first_x, step_y, step_x, taps_y, taps_x; /* taps that take part: the first, their distance, count */
    int32_t y, x, dy, dx; /* of the window of row 0 and column 0, and from tap to tap of those that take part */
    int32_t height, width, depth; /* of the image that is gathered from */
    divisor by_width, by_pixels, by_channels, by_kw;
};

#if PASS == 1
/* The taps that see the pixels of remainder `phase`, in one direction; their count. */
TN_FN int32_t taps_of(int32_t phase, int32_t taps, int32_t stride, int32_t pad, int32_t dilation, int32_t &first,
                      int32_t &step, int32_t &at, int32_t &by)
{
    const int32_t remainder = (phase + pad) % stride;
    first = 0, step = 1;
    while (first < taps && first * dilation % stride != remainder) first++;
    while (step * dilation % stride != 0) step++;
    at = first < taps ? (phase + pad - first * dilation) / stride : 0;
    by = -(step * dilation / stride);
    return first < taps ? (taps - 1 - first) / step + 1 : 0;
}
#endif

TN_FN void find_place(const tn_cuda_args &a, place &p)
{
    const int32_t tiles_m = (int32_t)a.dim[18], tiles_n = (int32_t)a.dim[19], groups = (int32_t)a.dim[9];
    int32_t b = (int32_t)blockIdx.x;
    const int32_t phases = PASS == 1 ? (int32_t)(a.dim[10] * a.dim[11]) : 1;
    p.tiles = tiles_m * tiles_n * groups * phases;
    p.split = SPLIT ? b / p.tiles : 0;
    p.tile = b -= p.split * p.tiles;
    p.n0 = b % tiles_n * BN;
    b /= tiles_n;
    p.m0 = b % tiles_m * BM;
    b /= tiles_m;
    p.group = b % groups;
    b /= groups;
    p.m = (int32_t)a.dim[22], p.n = (int32_t)a.dim[23], p.k = (int32_t)a.dim[24];
    p.by_width = divisor_of(a.dim[27]), p.by_pixels = divisor_of(a.dim[28]);
    p.by_channels = divisor_of(a.dim[29]), p.by_kw = divisor_of(a.dim[30]);
    p.first_y = p.first_x = 0, p.step_y = p.step_x = 1;
    p.phase_y = p.phase_x = 0;
    p.taps_y = (int32_t)a.dim[5], p.taps_x = (int32_t)a.dim[6];
    p.y = -(int32_t)a.dim[12], p.x = -(int32_t)a.dim[14];
    p.dy = (int32_t)a.dim[16], p.dx = (int32_t)a.dim[17];
    p.height = (int32_t)a.dim[1], p.width = (int32_t)a.dim[2], p.depth = (int32_t)a.dim[3];
    p.channels = p.depth / groups;
#if PASS == 1
    p.phase_y = b / (int32_t)a.dim[11], p.phase_x = b % (int32_t)a.dim[11];
    p.height = (int32_t)a.dim[7], p.width = (int32_t)a.dim[8], p.depth = (int32_t)a.dim[4];
    p.channels = p.depth / groups;
    p.taps_y = taps_of(p.phase_y, (int32_t)a.dim[5], (int32_t)a.dim[10], (int32_t)a.dim[12],
                                   (int32_t)a.dim[16], p.first_y, p.step_y, p.y, p.dy);
    p.taps_x = taps_of(p.phase_x, (int32_t)a.dim[6], (int32_t)a.dim[11], (int32_t)a.dim[14], (int32_t)a.dim[17],
                       p.first_x, p.step_x, p.x, p.dx);
    p.k = p.taps_y * p.taps_x * p.channels;
#endif
}

/* Channel and tap of an index along K (along N in PASS 2). */
TN_FN void find_tap(const place &p, int32_t k, int32_t &i, int32_t &j, int32_t &channel)
{
    const int32_t tap = divided(k, p.by_channels);
    channel = k - tap * p.channels;
#if PASS == 1
    i = p.taps_x > 1 ? (int32_t)((uint32_t)tap / (uint32_t)p.taps_x) : tap;
#else
    i = divided(tap, p.by_kw);
#endif
    j = tap - i * p.taps_x;
}

/* Image, row and column of a pixel along M (along K in PASS 2). */
TN_FN void find_pixel(const tn_cuda_args &a, const place &p, int32_t pixel, int32_t &image, int32_t &y, int32_t &x)
{
    image = divided(pixel, p.by_pixels);
    const int32_t in = pixel - image * (int32_t)a.dim[26];
    y = divided(in, p.by_width);
    x = in - y * (int32_t)a.dim[25];
}

#if PASS == 2
/* Sets the positions in x of the windows of pixel 0 with the COUNT taps from `tap` on; taps behind the last lie
 * outside of the image. */
template <int COUNT>
TN_FN void place_taps(const place &p, int32_t tap, int32_t taps, int32_t (&down)[COUNT], int32_t (&right)[COUNT])
{
    TN_UNROLL(int t = 0; t < COUNT; t++) {
        const int32_t i = divided(tap + t, p.by_kw), j = tap + t - i * p.taps_x;
        down[t] = tap + t < taps ? i * p.dy + p.y : -(1 << 30);
        right[t] = j * p.dx + p.x;
    }
}
#endif

#if HALO
/* How many pixels that exist are in front of pixel q along M. */
TN_FN int32_t pixels_before(const tn_cuda_args &a, const place &p, int32_t q)
{
    const int32_t height = (int32_t)a.dim[PASS == 0 ? 7 : 1], width = (int32_t)a.dim[PASS == 0 ? 8 : 2];
    int32_t n, y, x;
    find_pixel(a, p, q, n, y, x);
    return (n * height + (y < height ? y : height)) * width + (y >= height ? 0 : x < width ? x : width);
}
#endif

/* The number of the tile's first result; how many it has. */
#if HALO
TN_FN int32_t first_result(const place &p) { return p.first; }
TN_FN int32_t rows_of(const place &p) { return p.rows; }
#else
TN_FN int32_t first_result(const place &p) { return p.m0; }
TN_FN int32_t rows_of(const place &p) { return p.m - p.m0 < BM ? p.m - p.m0 : BM; }
#endif

/* How many results there are along M from `from` on, up to `to` or the end. */
TN_FN int32_t results(const tn_cuda_args &a, const place &p, int32_t from, int32_t to)
{
    if (to > p.m) to = p.m;
#if HALO
    return pixels_before(a, p, to) - pixels_before(a, p, from);
#else
    return to - from;
#endif
}

/* ---- blocks together ---- */

#if STATS
/* Mean, and sum of squared distances from it, of `count` numbers; of two such sets together. */
struct moments {
    float mean, m2, count;
};

TN_FN void join(moments &a, moments b)
{
    const float count = a.count + b.count, apart = b.mean - a.mean, share = count > 0 ? b.count / count : 0;
    a.mean += apart * share;
    a.m2 += b.m2 + apart * apart * a.count * share;
    a.count = count;
}

enum { PARTS = THREADS / BN > 0 ? THREADS / BN : 1 }; /* threads that share a column */

/* The parts' moments of a column, joined in their order by part 0. */
TN_FN moments join_parts(moments own, int column, int part, float *room)
{
    __syncthreads();
    if (part < PARTS) {
        room[part * BN + column] = own.mean;
        room[(PARTS + part) * BN + column] = own.m2;
        room[(2 * PARTS + part) * BN + column] = own.count;
    }
    __syncthreads();
    if (part == 0)
        TN_UNROLL(int i = 1; i < PARTS; i++) {
            const moments other = {room[i * BN + column], room[(PARTS + i) * BN + column],
                                   room[(2 * PARTS + i) * BN + column]};
            join(own, other);
        }
    return own;
}

/* Of the columns of the tile, whose values stand in `values`. Scratch: of each tile along M, then of each 64 of
 * them, and of each column mean and m2. */
TN_FN void statistics(const tn_cuda_args &a, const place &p, const float *values, float *room)
{
    const int32_t tiles_m = (int32_t)a.dim[18], tiles_n = (int32_t)a.dim[19], columns = (int32_t)a.dim[4];
    const int32_t m_tile = p.m0 / BM, first = p.group * p.n + p.n0, set = m_tile / STATS_TILES;
    const int32_t sets = (tiles_m + STATS_TILES - 1) / STATS_TILES;
    const int32_t in_set = tiles_m - set * STATS_TILES < STATS_TILES ? tiles_m - set * STATS_TILES : STATS_TILES;
    const int part = (int)threadIdx.x / BN, column = (int)threadIdx.x % BN;
    const bool mine = part < PARTS, there = mine && p.n0 + column < p.n;
    float *const of_tile = (float *)a.buf[PARTIALS] + (SPLIT ? a.dim[20] * p.tiles * (BM * BN) : 0);
    float *const of_set = of_tile + (int64_t)tiles_m * columns * 2;
    uint32_t *ticket = a.ticket + (SPLIT ? p.tiles : 0) + (p.group * tiles_n + p.n0 / BN) * (sets + 1);

    const int32_t rows = rows_of(p);
    moments own = {0, 0, 0};
    if (mine) {
        int32_t n = 0;
        for (int32_t r = part; r < rows; r += PARTS, n++) own.mean += values[r * ROOM + column];
        own.count = (float)n;
        own.mean = n ? own.mean / own.count : 0;
        for (int32_t r = part; r < rows; r += PARTS) {
            const float d = values[r * ROOM + column] - own.mean;
            own.m2 += d * d;
        }
    }
    own = join_parts(own, column, part, room);
    if (there && part == 0) {
        float *to = of_tile + ((int64_t)m_tile * columns + first + column) * 2;
        to[0] = own.mean, to[1] = own.m2;
    }
    if (!tn_arrive_last(&ticket[set], in_set)) return;
    own.mean = own.m2 = own.count = 0;
    if (there)
        for (int32_t i = part; i < in_set; i += PARTS) {
            const int32_t t = set * STATS_TILES + i;
            const float *from = of_tile + ((int64_t)t * columns + first + column) * 2;
            const moments other = {from[0], from[1], (float)results(a, p, t * BM, (t + 1) * BM)};
            join(own, other);
        }
    own = join_parts(own, column, part, room);
    if (there && part == 0) {
        float *to = of_set + ((int64_t)set * columns + first + column) * 2;
        to[0] = own.mean, to[1] = own.m2;
    }
    if (!tn_arrive_last(&ticket[sets], sets)) return;
    own.mean = own.m2 = own.count = 0;
    if (there)
        for (int32_t i = part; i < sets; i += PARTS) {
            const int32_t row = i * STATS_TILES * BM;
            const float *from = of_set + ((int64_t)i * columns + first + column) * 2;
            const moments other = {from[0], from[1], (float)results(a, p, row, row + STATS_TILES * BM)};
            join(own, other);
        }
    own = join_parts(own, column, part, room);
    if (there && part == 0) tn_statistics(a, first + column, own.mean, own.m2, results(a, p, 0, p.m));
}
#endif

/* ---- what becomes of the results ---- */

/* Hands the tile's values, rows of ROOM in shared memory that all threads see, to the epilogue. */
TN_FN void give_results(const tn_cuda_args &a, const place &p, float *room)
{
    for (int e = (int)threadIdx.x; e < BM * (BN / EPI_VEC); e += THREADS) {
        const int r = e / (BN / EPI_VEC), c = e % (BN / EPI_VEC) * EPI_VEC;
        const int32_t m = first_result(p) + r, n = p.n0 + c;
        if (r >= rows_of(p) || n >= p.n) continue;
        int64_t row = m;
        int32_t column = p.group * p.n + n;
#if PASS == 1 && !HALO
        int32_t image, y, x;
        find_pixel(a, p, m, image, y, x);
        y = y * (int32_t)a.dim[10] + p.phase_y;
        x = x * (int32_t)a.dim[11] + p.phase_x;
        if (y >= (int32_t)a.dim[1] || x >= (int32_t)a.dim[2]) continue;
        row = ((int64_t)image * a.dim[1] + y) * a.dim[2] + x;
#elif PASS == 2
        row = p.group * p.m + m;
        column = n;
#endif
        float v[EPI_VEC];
        const float *const from = room + r * ROOM + c;
        if (EPI_VEC == 8) { /* halves in turns, so that eight lanes meet all banks */
            const int odd = (int)threadIdx.x >> 2 & 1;
            float first[4], second[4];
            tn_load(first, from + odd * 4);
            tn_load(second, from + (odd ^ 1) * 4);
            TN_UNROLL(int i = 0; i < EPI_VEC; i++)
                v[i] = (i / 4 ^ odd) ? second[i % 4] : first[i % 4];
        } else {
            TN_UNROLL(int i = 0; i < EPI_VEC; i++) v[i] = from[i];
        }
        tn_epilogue(a, row, column, v);
#if STATS
        TN_UNROLL(int i = 0; i < EPI_VEC; i++) room[r * ROOM + c + i] = v[i];
#endif
    }
#if STATS
    __syncthreads();
    statistics(a, p, room, room + BM * ROOM);
#endif
}

#if PASS == 2 && (HALO || FEW)
/* Adds up what the splits left, EPI_VEC columns an item. */
TN_FN void finish(const tn_cuda_args &a)
{
    const int32_t n = (int32_t)a.dim[23], splits = (int32_t)a.dim[20];
    const int64_t all = a.dim[9] * a.dim[22] * n, end = ((int64_t)blockIdx.x + 1) * a.chunk;
    for (int64_t e = (int64_t)blockIdx.x * a.chunk + threadIdx.x; e < end && e < a.n; e += blockDim.x) {
        const float *from = (const float *)a.buf[PARTIALS] + e * EPI_VEC;
        float v[EPI_VEC] = {0}, more[EPI_VEC];
#pragma unroll 8
        for (int32_t s = 0; s < splits; s++, from += all) {
            tn_load(more, from);
            TN_UNROLL(int i = 0; i < EPI_VEC; i++) v[i] += more[i];
        }
        tn_epilogue(a, e * EPI_VEC / n, (int32_t)(e * EPI_VEC % n), v);
    }
}
#endif
} // namespace SPACE
