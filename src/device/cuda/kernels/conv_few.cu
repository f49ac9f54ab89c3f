/* conv_few.cu - convolution of so few channels that a row of its window, not a pixel, is what is loaded, by
 * warpgroups; and its weight gradient. A network's first layer is one.
 *
 * In memory the pixels of a window's row follow each other: RUN = kw c numbers, at a place that is a multiple of
 * nothing. A block keeps the rows of the image that BM pixels of y see, each with its border of zeros, and its threads
 * gather from there what a product takes from registers. K is made of pieces of eight numbers, PIECES for each row of
 * the window:
 *
 *   forward    D [BM pixels, BN channels of y] = windows [pixels, pieces] weight [pieces, channels]
 *   weights    D [pieces, BN channels of y]    = windows [pixels, pieces]^T gy [pixels, channels]
 *
 * Where the first number of each window has an odd place (SHIFT) rows begin one number earlier, so that two of them
 * are a word; with ODD, where some have and some have not, a word is made of two. What a piece has before and behind
 * the row belongs to other windows: forward it becomes 0, and so does its weight; of the weights it is never stored.
 *
 * Rows of the image count through all images, TALL of each, so that windows of two images share none. Each block goes
 * through tiles, as many apart as there are blocks, and brings the next one while it multiplies. Weight gradients are
 * left in the scratch by each, as [split][row of gweight][columns], which the kernel's finish adds up in that order.
 * Read first: run.
 */

namespace SPACE
{

enum {
    PIECES = (RUN + SHIFT + 7) / 8,
    ALL = KH * PIECES,
    STEPS = (ALL + 1) / 2, /* forward, of 16 along K */
    GROUP = 12,            /* whose windows are in registers at once */
    DEPTH = STEPS * 16,
    UNIT = PASS == 0 ? VEC_A : VEC_B,
    UNITS = PITCH / UNIT,
    HALO_BYTES = (ROWS * PITCH * 2 + 1023) / 1024 * 1024,
    GY_BYTES = BM * BN * 2,
    WEIGHT_BYTES = (DEPTH + 63) / 64 * BN * 128
};

typedef float sums[BN / 8][4];

TN_FN void multiply_step(sums &sum, const uint32_t (&a)[4], uint64_t b)
{
#if DTYPE == 2
    tn_wgmma_f16<true, PASS != 0>(sum, a, b);
#else
    tn_wgmma_bf16<true, PASS != 0>(sum, a, b);
#endif
}

/* ---- the image ---- */

/* The first row that the window of a pixel of y sees; x: its place in that. */
TN_FN int32_t row_of(const tn_cuda_args &a, const place &p, int32_t pixel, int32_t &x)
{
    int32_t n, y;
    find_pixel(a, p, pixel, n, y, x);
    x = LEFT - SHIFT + (x * (int32_t)a.dim[11] - (int32_t)a.dim[14]) * p.depth;
    return n * TALL + y * (int32_t)a.dim[10];
}

/* Brings the rows that pixels first .. end - 1 of y see. */
TN_FN void fill_halo(const tn_cuda_args &a, const place &p, char *halo, int32_t first, int32_t end)
{
    int32_t x;
    const int32_t top = row_of(a, p, first, x), rows = row_of(a, p, end - 1, x) - top + REACH;
    const int32_t row = p.width * p.depth, above = (int32_t)a.dim[12];
    const element *const image = (const element *)a.buf[0];
#pragma unroll 1
    for (int32_t u = (int32_t)threadIdx.x; u < rows * UNITS; u += THREADS) {
        const int32_t v = top + u / UNITS, n = v / TALL, y = v - n * TALL - above,
                      e = u % UNITS * UNIT - LEFT;
        const bool there = (uint32_t)y < (uint32_t)p.height && (uint32_t)e < (uint32_t)row;
        const element *const from = image + (there ? (n * p.height + y) * row + e : 0);
        char *const to = halo + u * (UNIT * 2);
        if (UNIT > 1)
            tn_copy_async<(UNIT > 1 ? UNIT * 2 : 4)>(to, from, there);
        else
            *(uint16_t *)to = there ? *(const uint16_t *)from : (uint16_t)0;
    }
}

#if PASS == 0
/* ---- forward ---- */

/* Weights as panels, rows of DEPTH numbers. */
TN_FN void fill_weights(const tn_cuda_args &a, const place &p, char *to)
{
    const uint16_t *const weight = (const uint16_t *)a.buf[1];
#pragma unroll 4
    for (int e = (int)threadIdx.x; e < BN * DEPTH; e += THREADS) {
        const int n = e / DEPTH, k = e % DEPTH, i = k / 8 / PIECES, r = k / 8 % PIECES * 8 + k % 8 - SHIFT;
        const bool there = i < KH && r >= 0 && r < RUN && p.n0 + n < p.n;
        ((uint16_t *)to)[tn_panel_place(BN, n, k)] =
            there ? weight[(p.n0 + n) * p.k + i * RUN + r] : (uint16_t)0;
    }
}

/* Which of the two numbers of word t of the piece are of the window's row. */
TN_FN uint32_t inside(int piece, int t)
{
    const int e = piece * 8 + t * 2;
    return (e >= SHIFT && e < SHIFT + RUN ? 0xffffu : 0) |
           (e + 1 >= SHIFT && e + 1 < SHIFT + RUN ? 0xffff0000u : 0);
}

/* Word t of a piece of the window whose first number is number `at` of the halo. */
TN_FN uint32_t word_of(const uint32_t *halo, int32_t at, int q, uint32_t mask)
{
    if (q >= ALL) return 0;
    const uint32_t *const from = halo + (at >> 1) + q / PIECES * (DOWN / 2) + q % PIECES * 4;
    uint32_t w = from[0];
    if (ODD) w = (uint32_t)(((uint64_t)from[1] << 32 | w) >> ((at & 1) * 16));
    return w & mask;
}

TN_FN void multiply(sums &sum, const char *halo, const char *weights, int32_t at0, int32_t at1)
{
    const int t = (int)threadIdx.x % 4;
    const uint32_t *const words = (const uint32_t *)halo + t;
    const uint64_t b = tn_panel(weights, 0);
    uint32_t mask[PIECES];
    TN_UNROLL(int i = 0; i < PIECES; i++) mask[i] = inside(i, t);
    TN_UNROLL(int from = 0; from < STEPS; from += GROUP) {
        uint32_t w[GROUP][4];
        TN_UNROLL(int s = 0; s < GROUP; s++)
            TN_UNROLL(int half = 0; half < 2; half++) {
                const int q = (from + s) * 2 + half;
                if (from + s >= STEPS) {
                    w[s][half * 2] = w[s][half * 2 + 1] = 0;
                    continue;
                }
                w[s][half * 2] = word_of(words, at0, q, mask[q % PIECES]);
                w[s][half * 2 + 1] = word_of(words, at1, q, mask[q % PIECES]);
            }
        tn_wgmma_hold(w);
        tn_wgmma_open();
        TN_UNROLL(int s = 0; s < GROUP; s++) {
            const int k = (from + s) * 16;
            if (k < DEPTH) multiply_step(sum, w[s], tn_panel_at(b, k / 64 * BN * TN_PANEL + k % 64));
        }
        tn_wgmma_close();
        tn_wgmma_wait<0>();
        tn_wgmma_hold(sum);
    }
}

TN_FN void run(const tn_cuda_args &a)
{
    char *const weights = tn_dynamic_shared(), *const halos = weights + WEIGHT_BYTES;
    float *const room = (float *)(halos + 2 * HALO_BYTES);
    const int lane = (int)threadIdx.x % 32,
              own = (int)threadIdx.x / 128 * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    place p;
    find_place(a, p);
    const int32_t step = (int32_t)gridDim.x / (int32_t)a.dim[19] * BM;
    fill_weights(a, p, weights);
    tn_wgmma_show();
    __syncthreads(); /* they are there for all */
    fill_halo(a, p, halos, p.m0, p.m0 + BM < p.m ? p.m0 + BM : p.m);
    tn_copy_commit();
    int reading = 0;
#pragma unroll 1
    for (; p.m0 < p.m; p.m0 += step, reading ^= 1) {
        tn_copy_wait<0>();
        __syncthreads(); /* a tile is there for all, the other halo and the results are no longer read */
        const int32_t next = p.m0 + step;
        if (next < p.m)
            fill_halo(a, p, halos + (reading ? 0 : HALO_BYTES), next, next + BM < p.m ? next + BM : p.m);
        tn_copy_commit();
        int32_t at[2], x;
        const int32_t top = row_of(a, p, p.m0, x);
        TN_UNROLL(int i = 0; i < 2; i++) {
            const int32_t m = p.m0 + own + i * 8;
            const int32_t row = row_of(a, p, m < p.m ? m : p.m - 1, x) - top;
            at[i] = row * PITCH + x;
        }
        sums sum;
        TN_UNROLL(int n = 0; n < BN / 8; n++)
            TN_UNROLL(int i = 0; i < 4; i++) sum[n][i] = 0;
        multiply(sum, halos + (reading ? HALO_BYTES : 0), weights, at[0], at[1]);
        TN_UNROLL(int n = 0; n < BN / 8; n++)
            TN_UNROLL(int i = 0; i < 4; i++)
                room[(own + (i >> 1) * 8) * ROOM + n * 8 + lane % 4 * 2 + (i & 1)] = sum[n][i];
        __syncthreads();
        give_results(a, p, room);
    }
    tn_copy_wait<0>();
}
#else
/* ---- weight gradient ---- */

/* Rows of gy as panels, their windows' rows of the image, and where in these the windows begin. */
TN_FN void fill(const tn_cuda_args &a, const place &p, char *stage, int32_t first)
{
    const element *const gy = (const element *)a.buf[1];
    const int32_t end = first + BM < p.k ? first + BM : p.k;
    TN_UNROLL(int i = 0; i < (BM * BN / 8 + THREADS - 1) / THREADS; i++) {
        const int u = (int)threadIdx.x + i * THREADS, row = u / (BN / 8), chunk = u % (BN / 8);
        if (u >= BM * BN / 8) continue;
        const bool there = first + row < end && p.n0 + chunk * 8 < p.m;
        tn_copy_async<16>(stage + ((chunk / 8 * BM + row) * 8 + ((chunk ^ row) & 7)) * 16,
                          gy + (there ? (first + row) * p.m + p.n0 + chunk * 8 : 0), there);
    }
    fill_halo(a, p, stage + GY_BYTES, first, end);
    int32_t *const table = (int32_t *)(stage + GY_BYTES + HALO_BYTES), x;
    const int32_t top = row_of(a, p, first, x);
    for (int i = (int)threadIdx.x; i < BM; i += THREADS) {
        const int32_t row = row_of(a, p, first + i < end ? first + i : end - 1, x) - top;
        table[i] = row * PITCH + x;
    }
}

enum {
    STAGE = (GY_BYTES + HALO_BYTES + BM * 4 + 1023) / 1024 * 1024,
    HALF = BM / 32
}; /* HALF: steps whose windows are in registers */

/* `left`: how many pixels there are. Those behind stand for others that are. */
template <bool TAIL> TN_FN void multiply(sums &sum, const char *stage, const int32_t (&off)[2], int32_t left)
{
    const uint16_t *const halo = (const uint16_t *)(stage + GY_BYTES);
    const int32_t *const table = (const int32_t *)(stage + GY_BYTES + HALO_BYTES);
    const uint64_t b = tn_panel(stage, BM * TN_PANEL * 2);
    TN_UNROLL(int from = 0; from < BM / 16; from += HALF) {
        uint32_t w[HALF][4];
        TN_UNROLL(int s = 0; s < HALF; s++)
            TN_UNROLL(int half = 0; half < 2; half++) {
                const int pixel = (from + s) * 16 + half * 8 + (int)threadIdx.x % 4 * 2;
                int32_t at[2];
                tn_load(at, table + pixel);
                TN_UNROLL(int row = 0; row < 2; row++) {
                    const uint32_t lower = halo[at[0] + off[row]], upper = halo[at[1] + off[row]];
                    w[s][half * 2 + row] = lower | upper << 16;
                    if (TAIL)
                        w[s][half * 2 + row] &=
                            (pixel < left ? 0xffffu : 0) | (pixel + 1 < left ? 0xffff0000u : 0);
                }
            }
        tn_wgmma_hold(w);
        tn_wgmma_open();
        TN_UNROLL(int s = 0; s < HALF; s++)
            multiply_step(sum, w[s], tn_panel_at(b, (from + s) * 16 * TN_PANEL));
        tn_wgmma_close();
        tn_wgmma_wait<0>();
        tn_wgmma_hold(sum);
    }
}

TN_FN void run(const tn_cuda_args &a)
{
    char *const shared = tn_dynamic_shared();
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * 2;
    place p;
    find_place(a, p);
    const int32_t step = (int32_t)a.dim[20] * BM;
    int32_t off[2];
    TN_UNROLL(int i = 0; i < 2; i++)
        off[i] = first + i < ALL ? (first + i) / PIECES * DOWN + (first + i) % PIECES * 8 + lane / 4 : 0;
    sums sum;
    TN_UNROLL(int n = 0; n < BN / 8; n++)
        TN_UNROLL(int i = 0; i < 4; i++) sum[n][i] = 0;
    int32_t at = p.split * BM;
    if (at < p.k) fill(a, p, shared, at);
    tn_copy_commit();
    int reading = 0;
#pragma unroll 1
    for (; at < p.k; at += step, reading ^= 1) {
        tn_copy_wait<0>();
        tn_wgmma_show();
        __syncthreads(); /* pixels are there for all, and the others no longer read */
        if (at + step < p.k) fill(a, p, shared + (reading ? 0 : STAGE), at + step);
        tn_copy_commit();
        const char *const stage = shared + (reading ? STAGE : 0);
        if (at + BM <= p.k)
            multiply<false>(sum, stage, off, BM);
        else
            multiply<true>(sum, stage, off, p.k - at);
    }
    tn_copy_wait<0>();
    float *const to = (float *)a.buf[PARTIALS] + p.split * p.m * p.n;
    TN_UNROLL(int half = 0; half < 2; half++) {
        const int q = first + half, i = q / PIECES, r = q % PIECES * 8 + lane / 4 - SHIFT;
        if (q >= ALL || r < 0 || r >= RUN) continue;
        TN_UNROLL(int n = 0; n < BN / 8; n++)
            TN_UNROLL(int k = 0; k < 2; k++) {
                const int32_t channel = p.n0 + n * 8 + lane % 4 * 2 + k;
                if (channel < p.m) to[channel * p.n + i * RUN + r] = sum[n][half * 2 + k];
            }
    }
}
#endif

} // namespace SPACE
