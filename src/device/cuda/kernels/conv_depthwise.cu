/* conv_depthwise.cu - convolution of each channel alone: as many groups as channels of x, `multiplier` channels of y
 * for each. There is no product to speak of; what counts is that memory is read in whole lines.
 *
 * Forward and data gradient: a tile is BM pixels by BN channels. The tile's weights stand in shared memory, taps by
 * channels. A thread has VEC_A channels side by side (one where the multiplier is not 1) and every STRIDE-th pixel,
 * PIXELS of them at once, so that a weight is read for all of them and their elements are on their way together.
 * Weight gradient: a block has BN channels and the pixels of one split; its threads share the pixels, keep the sums
 * of TAPS taps at once in registers, and are added up in their order.
 *
 * dim as conv_begin.cuh says, but 9 is 1 and N all channels; 24 is the multiplier; in PASS 2 M is 1 tile, and 21
 * the pixels of a split. In PASS 2 EPI_VEC is 1. Read first: run, at the end.
 */

namespace SPACE {

enum {
    VEC = VEC_A,
    LANES = BN / VEC,         /* threads side by side along the channels */
    STRIDE = THREADS / LANES, /* and along the pixels */
    PIXELS = BM / STRIDE % 4 ? BM / STRIDE % 2 ? 1 : 2 : 4,
    TAPS = 9,
    MOST_ALONG = IN_ROW > 3 ? 2 : 4,
    ALONG = PIXELS < MOST_ALONG ? PIXELS : MOST_ALONG /* with IN_ROW: pixels of a row that a thread has at once */
};

#if PASS != 2

/* The weights of the tile's channels: [tap][which of the multiplier, PASS 1][channel]. */
TN_FN void load_weights(const tn_cuda_args &a, const place &p, int32_t taps, int32_t each, float *to)
{
    const element *const weight = (const element *)a.buf[1];
    for (int32_t e = (int32_t)threadIdx.x; e < taps * each * BN; e += THREADS) {
        const int32_t channel = p.n0 + e % BN, row = e / BN, tap = row / each, which = row % each;
        if (channel < p.n) to[e] = value_of(weight[(channel * each + which) * taps + tap]);
    }
}

#if IN_ROW
/* Of the ALONG pixels from m on, which are of one row: an element is read once for all of them. */
TN_FN void sum_row(const tn_cuda_args &a, const place &p, int32_t m, int lane, const element *image, const float *weights,
                   float *to)
{
    const int32_t n = p.n0 + lane;
    float sum[ALONG][VEC];
    int32_t n_image, y, x;
    find_pixel(a, p, m, n_image, y, x);
    y = y * (PASS == 0 ? (int32_t)a.dim[10] : 1) + p.y;
    x += p.x - (PASS == 0 ? 0 : IN_ROW - 1); /* of the first that is seen */
    TN_UNROLL(int q = 0; q < ALONG; q++)
        TN_UNROLL(int v = 0; v < VEC; v++) sum[q][v] = 0;
    for (int32_t i = 0; i < p.taps_y; i++) {
        const int32_t down = y + i * p.dy;
        if ((uint32_t)down >= (uint32_t)p.height || m >= p.m || n >= p.n) continue;
        const element *const from = image + ((int64_t)((n_image * p.height + down) * p.width + x) * p.depth + n);
        const float *const row = weights + (p.first_y + i * p.step_y) * IN_ROW * BN + lane;
        element t[ALONG + IN_ROW - 1][VEC];
        TN_UNROLL(int c = 0; c < ALONG + IN_ROW - 1; c++)
            if ((uint32_t)(x + c) < (uint32_t)p.width) tn_load(t[c], from + c * p.depth);
        float weight[IN_ROW][VEC];
        TN_UNROLL(int j = 0; j < IN_ROW; j++) tn_load(weight[j], row + j * BN);
        TN_UNROLL(int c = 0; c < ALONG + IN_ROW - 1; c++) {
            if ((uint32_t)(x + c) >= (uint32_t)p.width) continue;
            float value[VEC];
            TN_UNROLL(int v = 0; v < VEC; v++) value[v] = value_of(t[c][v]);
            TN_UNROLL(int q = 0; q < ALONG; q++) {
                const int j = PASS == 0 ? c - q : q + IN_ROW - 1 - c;
                if (j < 0 || j >= IN_ROW) continue;
                TN_UNROLL(int v = 0; v < VEC; v++) sum[q][v] = fmaf(value[v], weight[j][v], sum[q][v]);
            }
        }
    }
    TN_UNROLL(int q = 0; q < ALONG; q++) tn_store(to + q * ROOM, sum[q]);
}
#endif

TN_FN void run(const tn_cuda_args &a)
{
    place p;
    find_place(a, p);
    const int32_t multiplier = (int32_t)a.dim[24], each = PASS == 1 ? multiplier : 1;
    const int32_t kw = (int32_t)a.dim[6], taps = (int32_t)a.dim[5] * kw;
    const int lane = (int)threadIdx.x % LANES * VEC, first = (int)threadIdx.x / LANES;
    float *const weights = (float *)tn_dynamic_shared(), *const room = weights + taps * each * BN;
    const element *const image = (const element *)a.buf[0];
    load_weights(a, p, taps, each, weights);
    __syncthreads();
#if IN_ROW
    for (int r0 = first * ALONG; r0 < BM; r0 += STRIDE * ALONG)
        sum_row(a, p, p.m0 + r0, lane, image, weights, room + r0 * ROOM + lane);
#else
    const int32_t stride_y = PASS == 0 ? (int32_t)a.dim[10] : 1, stride_x = PASS == 0 ? (int32_t)a.dim[11] : 1;
    const int32_t n = p.n0 + lane, from = PASS == 1 ? n * each : VEC > 1 ? n : n / multiplier;
    for (int r0 = first; r0 < BM; r0 += STRIDE * PIXELS) {
        float sum[PIXELS][VEC];
        int32_t y[PIXELS], x[PIXELS]; /* of the window's first tap, */
        const element *window[PIXELS]; /* and its address */
        TN_UNROLL(int q = 0; q < PIXELS; q++) {
            const int32_t m = p.m0 + r0 + q * STRIDE;
            int32_t n_image;
            TN_UNROLL(int v = 0; v < VEC; v++) sum[q][v] = 0;
            find_pixel(a, p, m, n_image, y[q], x[q]);
            y[q] = y[q] * stride_y + p.y;
            x[q] = x[q] * stride_x + p.x;
            window[q] = image + (int64_t)((n_image * p.height + y[q]) * p.width + x[q]) * p.depth + from;
            if (m >= p.m || n >= p.n) y[q] = -(1 << 30);
        }
        for (int32_t i = 0; i < p.taps_y; i++) {
            bool row[PIXELS];
            TN_UNROLL(int q = 0; q < PIXELS; q++) row[q] = (uint32_t)(y[q] + i * p.dy) < (uint32_t)p.height;
            for (int32_t j = 0; j < p.taps_x; j++) {
                const int32_t tap = (p.first_y + i * p.step_y) * kw + p.first_x + j * p.step_x;
                const int64_t along = (int64_t)(i * p.dy * p.width + j * p.dx) * p.depth;
                bool there[PIXELS];
                TN_UNROLL(int q = 0; q < PIXELS; q++)
                    there[q] = row[q] && (uint32_t)(x[q] + j * p.dx) < (uint32_t)p.width;
                for (int32_t which = 0; which < each; which++) {
                    element t[PIXELS][VEC];
                    float weight[VEC];
                    tn_load(weight, weights + (tap * each + which) * BN + lane);
                    TN_UNROLL(int q = 0; q < PIXELS; q++)
                        if (there[q]) tn_load(t[q], window[q] + along + which);
                    TN_UNROLL(int q = 0; q < PIXELS; q++)
                        if (there[q])
                            TN_UNROLL(int v = 0; v < VEC; v++)
                                sum[q][v] = fmaf(value_of(t[q][v]), weight[v], sum[q][v]);
                }
            }
        }
        TN_UNROLL(int q = 0; q < PIXELS; q++) tn_store(room + (r0 + q * STRIDE) * ROOM + lane, sum[q]);
    }
#endif
    __syncthreads();
    give_results(a, p, room);
}

#else

/* The block's sums of the taps from `tap` on, into sums[tap][channel]. */
TN_FN void sum_taps(const tn_cuda_args &a, const place &p, int32_t tap, int32_t taps, float *sums, float *room)
{
    const int lane = (int)threadIdx.x % LANES * VEC, first = (int)threadIdx.x / LANES;
    const int32_t n = p.n0 + lane, oc = (int32_t)a.dim[4];
    const int32_t begin = p.split * (int32_t)a.dim[21], pixels = (int32_t)(a.dim[0] * a.dim[26]);
    const int32_t end = begin + (int32_t)a.dim[21] < pixels ? begin + (int32_t)a.dim[21] : pixels;
    const element *const image = (const element *)a.buf[0], *const gy = (const element *)a.buf[1];
    float sum[TAPS][VEC];
    int32_t down[TAPS], right[TAPS];
    place_taps(p, tap, taps, down, right);
    TN_UNROLL(int t = 0; t < TAPS; t++)
        TN_UNROLL(int v = 0; v < VEC; v++) sum[t][v] = 0;
#if IN_ROW /* two pixels of a row at once, which see four in each row of the window */
    for (int32_t k = begin + first * 2; k < end && n < p.n; k += STRIDE * 2) {
        int32_t n_image, y, x;
        find_pixel(a, p, k, n_image, y, x);
        y = y * (int32_t)a.dim[10] + down[0];
        x += right[0];
        element g[2][VEC];
        float first_g[VEC], second_g[VEC];
        tn_load(g[0], gy + (int64_t)k * oc + n);
        tn_load(g[1], gy + (int64_t)(k + 1) * oc + n);
        TN_UNROLL(int v = 0; v < VEC; v++) first_g[v] = value_of(g[0][v]), second_g[v] = value_of(g[1][v]);
        TN_UNROLL(int i = 0; i < 3; i++) {
            if ((uint32_t)(y + i * p.dy) >= (uint32_t)p.height) continue;
            const element *const row = image + ((int64_t)((n_image * p.height + y + i * p.dy) * p.width + x) * p.depth + n);
            element e[4][VEC];
            TN_UNROLL(int c = 0; c < 4; c++)
                if ((uint32_t)(x + c) < (uint32_t)p.width) tn_load(e[c], row + c * p.depth);
            TN_UNROLL(int c = 0; c < 4; c++) {
                if ((uint32_t)(x + c) >= (uint32_t)p.width) continue;
                TN_UNROLL(int v = 0; v < VEC; v++) {
                    const float value = value_of(e[c][v]);
                    const int own = c < 3 ? c : 0, before = c > 0 ? c - 1 : 0;
                    if (c < 3) sum[i * 3 + own][v] = fmaf(first_g[v], value, sum[i * 3 + own][v]);
                    if (c > 0) sum[i * 3 + before][v] = fmaf(second_g[v], value, sum[i * 3 + before][v]);
                }
            }
        }
    }
#else
    const int32_t multiplier = (int32_t)a.dim[24], from = VEC > 1 ? n : n / multiplier;
    for (int32_t k = begin + first; k < end && n < p.n; k += STRIDE) {
        int32_t n_image, y, x;
        find_pixel(a, p, k, n_image, y, x);
        y *= (int32_t)a.dim[10];
        x *= (int32_t)a.dim[11];
        const int32_t pixel = (n_image * p.height + y) * p.width + x;
        element g[VEC];
        tn_load(g, gy + (int64_t)k * oc + n);
        element e[TAPS][VEC];
        float value[VEC];
        bool there[TAPS];
        TN_UNROLL(int t = 0; t < TAPS; t++) {
            there[t] = (uint32_t)(y + down[t]) < (uint32_t)p.height && (uint32_t)(x + right[t]) < (uint32_t)p.width;
            if (there[t])
                tn_load(e[t], image + (int64_t)(pixel + down[t] * p.width + right[t]) * p.depth + from);
        }
        TN_UNROLL(int v = 0; v < VEC; v++) value[v] = value_of(g[v]);
        TN_UNROLL(int t = 0; t < TAPS; t++)
            if (there[t])
                TN_UNROLL(int v = 0; v < VEC; v++) sum[t][v] = fmaf(value[v], value_of(e[t][v]), sum[t][v]);
    }
#endif
    TN_UNROLL(int t = 0; t < TAPS; t++) {
        if (tap + t >= taps) break;
        TN_UNROLL(int v = 0; v < VEC; v++) room[first * BN + lane + v] = sum[t][v];
        __syncthreads();
        for (int c = (int)threadIdx.x; c < BN; c += THREADS) {
            float all = 0;
            for (int i = 0; i < STRIDE; i++) all += room[i * BN + c];
            sums[(tap + t) * BN + c] = all;
        }
        __syncthreads();
    }
}

TN_FN void run(const tn_cuda_args &a)
{
    place p;
    find_place(a, p);
    const int32_t taps = (int32_t)(a.dim[5] * a.dim[6]);
    float *const sums = (float *)tn_dynamic_shared();
    for (int32_t tap = 0; tap < taps; tap += TAPS) sum_taps(a, p, tap, taps, sums, sums + taps * BN);
#if SPLIT
    const int32_t splits = (int32_t)a.dim[20];
    float *const scratch = (float *)a.buf[PARTIALS];
    for (int32_t e = (int32_t)threadIdx.x; e < taps * BN; e += THREADS)
        scratch[(int64_t)(p.split * p.tiles + p.tile) * taps * BN + e] = sums[e];
    if (!tn_arrive_last(&a.ticket[p.tile], splits)) return;
    for (int32_t e = (int32_t)threadIdx.x; e < taps * BN; e += THREADS) {
        float all = 0;
#pragma unroll 16
        for (int32_t s = 0; s < splits; s++) all += scratch[(int64_t)(s * p.tiles + p.tile) * taps * BN + e];
        sums[e] = all;
    }
    __syncthreads();
#endif
    for (int32_t e = (int32_t)threadIdx.x; e < taps * BN; e += THREADS) {
        const int32_t c = e / taps, tap = e % taps;
        float v[1] = {sums[tap * BN + c]};
        if (p.n0 + c < p.n) tn_epilogue(a, p.n0 + c, tap, v);
    }
}

#endif

} // namespace SPACE
