/* conv_halo.cu - convolution of stride 1, or its data gradient, by warpgroups, where a part of the image
 * stays in shared memory while all taps are multiplied with it.
 *
 * Pixels are numbered as if `width` of them were a row and `height` rows an image (dim 25, and 26 / 25): as
 * many more than there are that a window across a border meets only such that do not exist, and are 0. So the
 * pixel that a tap of the window of pixel q sees is q and a number that depends on the tap alone: the rows of
 * A for a tap are those for another one, further up or down. A block keeps the pixels that its BM windows
 * see, its halo, 64 channels at a time, and goes through the taps; of the weights a buffer comes for each tap
 * through STAGES of them. The halo of the next 64 channels comes meanwhile, HALO 2, in parts.
 *
 * The halo is a panel (wgmma.cuh) of dim 21 rows, a multiple of 8, any of which can be the first of a product: chunks
 * are exchanged by their addresses.
 *
 * Results of pixels that do not exist are left out before anybody hears of them: those of the others follow
 * each other, so that a tile has as many rows as it has pixels. Read first: run.
 */

namespace SPACE
{

enum {
    GROUPS = WARPS_M / 4,
    MT = BM / 64 / GROUPS,                   /* of 64 rows, of a warpgroup */
    COLUMNS = BN < 128 ? BN : 128,           /* of an instruction */
    STAGE = BK * BN * 2,                     /* bytes of a tap's weights */
    AHEAD = STAGES - 2,                      /* buffers that are filled while two are read */
    AT_ONCE = THREADS / 8,                   /* rows of the halo that all threads copy */
    UNITS = (BK * BN / 8 - 1) / THREADS + 1, /* that a thread copies of a tap's weights, */
    ALL = BK * BN / 8                        /* of all of them */
};

typedef float sums[MT][BN / 8][4];

/* ---- the halo ---- */

/* What a thread copies from: of the pixels, and of the weights. */
struct source {
    int32_t lowest, rows,
        last;          /* the halo's first pixel, how many, and the first that does not exist behind it */
    int32_t at[UNITS]; /* of the weights of tap 0, channel 0; -1: of none */
};

TN_FN void fill_rows(const tn_cuda_args &a, const place &p, const source &s, char *halo, int32_t first,
                     int32_t end, int32_t channel)
{
    const int chunk = (int)threadIdx.x % 8;
    const element *const image = (const element *)a.buf[0] + p.group * p.channels + channel + chunk * 8;
#pragma unroll 1
    for (int32_t row = first + (int)threadIdx.x / 8; row < end; row += AT_ONCE) {
        const int32_t q = s.lowest + row;
        int32_t n = 0, y = 0, x = 0;
        bool there = q >= 0 && q < s.last;
        find_pixel(a, p, there ? q : 0, n, y, x);
        there = there && y < p.height && x < p.width;
        tn_copy_async<16>(halo + (row * 8 + ((chunk ^ row) & 7)) * 16,
                          image + (there ? ((n * p.height + y) * p.width + x) * p.depth : 0), there);
    }
}

/* ---- the weights ---- */

TN_FN void prepare(const tn_cuda_args &a, const place &p, source &s)
{
    const int32_t down = p.y + (p.dy < 0 ? (p.taps_y - 1) * p.dy : 0),
                  right = p.x + (p.dx < 0 ? (p.taps_x - 1) * p.dx : 0);
    s.lowest = p.m0 + down * (int32_t)a.dim[25] + right;
    s.last = (int32_t)(a.dim[0] * a.dim[26]);
    s.rows = (int32_t)a.dim[21];
    TN_UNROLL(int i = 0; i < UNITS; i++) {
        const int u = (int)threadIdx.x + i * THREADS;
#if PASS == 0
        const int32_t n = p.n0 + u / 8;
        s.at[i] = u < ALL && n < p.n ? (p.group * p.n + n) * p.k + u % 8 * 8 : -1;
#else
        const int32_t n = p.n0 + u % (BN / 8) * 8, oc = p.group * p.channels + u / (BN / 8);
        s.at[i] = u < ALL && n < p.n ? oc * p.taps_y * p.taps_x * p.n + n : -1;
#endif
    }
}

/* Those of a tap, and of 64 channels that are summed over. */
TN_FN void fill_weights(const tn_cuda_args &a, const place &p, const source &s, char *stage, int32_t tap,
                        int32_t channel)
{
    const element *const weight = (const element *)a.buf[1];
#if PASS == 0
    const int32_t by = tap * p.channels + channel;
#else
    const int32_t by = (channel * p.taps_y * p.taps_x + tap) * p.n;
#endif
    TN_UNROLL(int i = 0; i < UNITS; i++) {
        const int u = (int)threadIdx.x + i * THREADS;
        if (ALL % THREADS != 0 && u >= ALL) continue;
        const int row = PASS == 0 ? u / 8 : u / (BN / 8), chunk = PASS == 0 ? u % 8 : u % (BN / 8);
        const int to =
            (chunk / 8 * (PASS == 0 ? BN : BK) + row) * 8 + ((chunk ^ row) & 7); /* panels (wgmma.cuh) */
        tn_copy_async<16>(stage + to * 16, weight + (s.at[i] < 0 ? 0 : s.at[i] + by), s.at[i] >= 0);
    }
}

/* ---- products ---- */

/* Of a tap, the warpgroup's first row of which is at `first` in the halo. */
TN_FN void multiply(sums &sum, const char *first, const char *stage)
{
    const uint64_t a = tn_panel(first, 0), b = tn_panel(stage, BK * TN_PANEL * 2);
    tn_wgmma_open();
    TN_UNROLL(int step = 0; step < BK / 16; step++)
        TN_UNROLL(int m = 0; m < MT; m++)
            TN_UNROLL(int n = 0; n < BN / COLUMNS; n++) {
                float(&d)[COLUMNS / 8][4] = *(float(*)[COLUMNS / 8][4]) & sum[m][n * (COLUMNS / 8)];
                const uint64_t at = tn_panel_at(a, m * 64 * TN_PANEL + step * 16);
                const uint64_t by =
                    tn_panel_at(b, PASS == 0 ? n * COLUMNS * TN_PANEL + step * 16
                                             : (n * (COLUMNS / TN_PANEL) * BK + step * 16) * TN_PANEL);
#if DTYPE == 2
                tn_wgmma_f16<true, false, PASS != 0>(d, at, by);
#else
                tn_wgmma_bf16<true, false, PASS != 0>(d, at, by);
#endif
            }
    tn_wgmma_close();
}

/* ---- results ---- */

TN_FN void finish_tile(const tn_cuda_args &a, place &p, const sums &sum, float *room)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int32_t first = pixels_before(a, p, p.m0), end = p.m0 + BM < p.m ? p.m0 + BM : p.m;
    TN_UNROLL(int m = 0; m < MT; m++)
        TN_UNROLL(int half = 0; half < 2; half++) {
            const int32_t q = p.m0 + (warp / 4 * MT + m) * 64 + warp % 4 * 16 + half * 8 + lane / 4;
            const int32_t row = q < end ? pixels_before(a, p, q) - first : 0;
            const bool there = q < end && pixels_before(a, p, q + 1) - first > row;
            float *const to = room + row * ROOM + lane % 4 * 2;
            TN_UNROLL(int n = 0; n < BN / 8; n++)
                TN_UNROLL(int i = 0; i < 2; i++)
                    if (there) to[n * 8 + i] = sum[m][n][half * 2 + i];
        }
    __syncthreads();
    p.first = first;
    p.rows = pixels_before(a, p, end) - first;
    give_results(a, p, room);
}

TN_FN void run(const tn_cuda_args &a)
{
    char *const shared = tn_dynamic_shared();
    place p;
    source s;
    sums sum;
    find_place(a, p);
    prepare(a, p, s);
    const int32_t taps = p.taps_y * p.taps_x, count = p.channels / BK * taps;
    const int32_t halo_bytes = s.rows * BK * 2, part = (s.rows - 1) / ((taps - AHEAD) * AT_ONCE) + 1;
    char *const stages = shared, *const halos = shared + STAGES * STAGE;
    TN_UNROLL(int m = 0; m < MT; m++)
        TN_UNROLL(int n = 0; n < BN / 8; n++)
            TN_UNROLL(int i = 0; i < 4; i++) sum[m][n][i] = 0;
    fill_rows(a, p, s, halos, 0, s.rows, 0);
    int32_t next_tap = 0, next_channel = 0; /* of the buffer to be filled */
    TN_UNROLL(int i = 0; i < AHEAD; i++) {
        if (i < count) fill_weights(a, p, s, stages + i * STAGE, next_tap, next_channel);
        tn_copy_commit();
        if (++next_tap == taps) next_tap = 0, next_channel += BK;
    }
    int32_t reading = 0, writing = AHEAD, tap = 0, i = 0, j = 0, channel = 0;
#pragma unroll 1
    for (int32_t left = count; left > 0; left--) {
        char *const halo = halos + (HALO == 2 && channel / BK % 2 ? halo_bytes : 0);
        tn_copy_wait<AHEAD - 1>();
        tn_wgmma_show();
        __syncthreads(); /* a tap's weights are there for all, and what is filled next is no longer read */
        if (left > AHEAD) fill_weights(a, p, s, stages + writing * STAGE, next_tap, next_channel);
        /* the other halo is read until tap 1, and has to be asked for in time */
        if (HALO == 2 && tap > 0 && channel + BK < p.channels) {
            const int32_t from = (tap - 1) * part * AT_ONCE, to = from + part * AT_ONCE;
            fill_rows(a, p, s, halos + (channel / BK % 2 ? 0 : halo_bytes), from, to < s.rows ? to : s.rows,
                      channel + BK);
        }
        tn_copy_commit();
        const int32_t at = (p.dy < 0 ? (i - p.taps_y + 1) * p.dy : i * p.dy) * (int32_t)a.dim[25] +
                           (p.dx < 0 ? (j - p.taps_x + 1) * p.dx : j * p.dx);
        /* a row as a number without sign: with one, ptxas finds no way but to wait for each product */
        multiply(sum, halo + (threadIdx.x / 128 * (MT * 64) + (uint32_t)at) * (TN_PANEL * 2),
                 stages + reading * STAGE);
        tn_wgmma_wait<1>();
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
        if (++next_tap == taps) next_tap = 0, next_channel += BK;
        if (++j == p.taps_x) j = 0, i++;
        if (++tap == taps) tap = i = 0, channel += BK;
    }
    tn_wgmma_wait<0>();
    TN_UNROLL(int m = 0; m < MT; m++) tn_wgmma_hold(sum[m]);
    tn_copy_wait<0>();
    __syncthreads();
    finish_tile(a, p, sum, (float *)shared);
}

} // namespace SPACE
