/* conv_grouped.cu - convolution of groups of few channels each, IN_EACH that are gathered and OUT_EACH that come of
 * them (PASS 1 gathers gy's channels; PASS 2 those of x, and OUT_EACH are gy's). Tiles of tensor cores would be filled
 * with other groups' zeros; what counts is that memory is read in whole lines and weights from shared memory.
 *
 * BN channels of the result are BN / OUT_EACH groups, side by side in a warp. Forward and data gradient: a tile is BM
 * pixels; a thread has one group and PIXELS pixels at once, for which a weight is read once. Weight gradient: a block
 * has its groups and the pixels of one split; its threads share the pixels, keep the sums of TAPS taps at once in
 * registers, and are added up in their order.
 *
 * dim as conv_begin.cuh says, but 9 is 1 and N all channels of the result (of y in PASS 2); in PASS 2 M is 1 tile, and
 * 21 the pixels of a split. VEC_A, VEC_B: of A's and B's channels of a group. In PASS 2 EPI_VEC is 1. Read first: run,
 * at the end.
 */

namespace SPACE {

enum {
    GROUPS = BN / OUT_EACH,    /* threads side by side */
    STRIDE = THREADS / GROUPS, /* and along the pixels */
    PIXELS = BM / STRIDE < 4 ? BM / STRIDE : 4
};

/* N elements from an address that is a multiple of VEC of them. */
template <int VEC, int N> TN_FN void load_each(float (&to)[N], const element *from)
{
    TN_UNROLL(int i = 0; i < N; i += VEC) {
        element t[VEC];
        tn_load(t, from + i);
        TN_UNROLL(int l = 0; l < VEC; l++) to[i + l] = value_of(t[l]);
    }
}

#if PASS != 2

/* The weights of the tile's groups: [tap][channel of the result][group][gathered channel]. */
TN_FN void load_weights(const tn_cuda_args &a, const place &p, int32_t taps, float *to)
{
    const element *const weight = (const element *)a.buf[1];
    for (int32_t e = (int32_t)threadIdx.x; e < taps * OUT_EACH * GROUPS * IN_EACH; e += THREADS) {
        const int32_t i = e % IN_EACH, g = e / IN_EACH % GROUPS, row = e / (IN_EACH * GROUPS);
        const int32_t o = row % OUT_EACH, tap = row / OUT_EACH, group = p.n0 / OUT_EACH + g;
        if (group * OUT_EACH >= p.n) continue;
        to[e] = value_of(weight[PASS == 0 ? ((group * OUT_EACH + o) * taps + tap) * IN_EACH + i
                                          : ((group * IN_EACH + i) * taps + tap) * OUT_EACH + o]);
    }
}

TN_FN void run(const tn_cuda_args &a)
{
    place p;
    find_place(a, p);
    const int32_t kw = (int32_t)a.dim[6], taps = (int32_t)a.dim[5] * kw;
    const int32_t stride_y = PASS == 0 ? (int32_t)a.dim[10] : 1, stride_x = PASS == 0 ? (int32_t)a.dim[11] : 1;
    const int lane = (int)threadIdx.x % GROUPS, first = (int)threadIdx.x / GROUPS;
    const int32_t group = p.n0 / OUT_EACH + lane;
    float *const weights = (float *)tn_dynamic_shared(), *const room = weights + taps * OUT_EACH * GROUPS * IN_EACH;
    const element *const image = (const element *)a.buf[0] + group * IN_EACH;
    load_weights(a, p, taps, weights);
    __syncthreads();
    for (int r = first; r < BM; r += STRIDE * PIXELS) {
        float sum[PIXELS][OUT_EACH];
        int32_t base[PIXELS], y[PIXELS], x[PIXELS];
        TN_UNROLL(int q = 0; q < PIXELS; q++) {
            const int32_t m = p.m0 + r + q * STRIDE;
            int32_t n_image;
            find_pixel(a, p, m, n_image, y[q], x[q]);
            y[q] = m < p.m && group * OUT_EACH < p.n ? y[q] * stride_y + p.y : -(1 << 30); /* outside */
            x[q] = x[q] * stride_x + p.x;
            base[q] = n_image * p.height;
            TN_UNROLL(int o = 0; o < OUT_EACH; o++) sum[q][o] = 0;
        }
        for (int32_t i = 0; i < p.taps_y; i++)
            for (int32_t j = 0; j < p.taps_x; j++) {
                const int32_t tap = (p.first_y + i * p.step_y) * kw + p.first_x + j * p.step_x;
                float t[PIXELS][IN_EACH];
                TN_UNROLL(int q = 0; q < PIXELS; q++) {
                    const int32_t row = y[q] + i * p.dy, column = x[q] + j * p.dx;
                    if ((uint32_t)row < (uint32_t)p.height && (uint32_t)column < (uint32_t)p.width) {
                        load_each<VEC_A>(t[q], image + (int64_t)((base[q] + row) * p.width + column) * p.depth);
                    } else {
                        TN_UNROLL(int l = 0; l < IN_EACH; l++) t[q][l] = 0;
                    }
                }
                const float *const of_tap = weights + (tap * OUT_EACH * GROUPS + lane) * IN_EACH;
                TN_UNROLL(int o = 0; o < OUT_EACH; o++) {
                    TN_UNROLL(int l = 0; l < IN_EACH; l++) {
                        const float w = of_tap[o * GROUPS * IN_EACH + l];
                        TN_UNROLL(int q = 0; q < PIXELS; q++) sum[q][o] = fmaf(t[q][l], w, sum[q][o]);
                    }
                }
            }
        TN_UNROLL(int q = 0; q < PIXELS; q++)
            if (r + q * STRIDE < BM)
                TN_UNROLL(int o = 0; o < OUT_EACH; o++) room[(r + q * STRIDE) * ROOM + lane * OUT_EACH + o] = sum[q][o];
    }
    __syncthreads();
    give_results(a, p, room);
}

#else

enum { TAPS = 64 / (IN_EACH * OUT_EACH) < 1 ? 1 : 64 / (IN_EACH * OUT_EACH) < 9 ? 64 / (IN_EACH * OUT_EACH) : 9 };

/* The block's sums of the taps from `tap` on, into sums[tap][channel of y][group][channel of x]. */
TN_FN void sum_taps(const tn_cuda_args &a, const place &p, int32_t tap, int32_t taps, float *sums, float *room)
{
    const int lane = (int)threadIdx.x % GROUPS, first = (int)threadIdx.x / GROUPS;
    const int32_t group = p.n0 / OUT_EACH + lane, oc = (int32_t)a.dim[4];
    const int32_t begin = p.split * (int32_t)a.dim[21], pixels = (int32_t)(a.dim[0] * a.dim[26]);
    const int32_t end = begin + (int32_t)a.dim[21] < pixels ? begin + (int32_t)a.dim[21] : pixels;
    const element *const image = (const element *)a.buf[0] + group * IN_EACH;
    const element *const gy = (const element *)a.buf[1] + group * OUT_EACH;
    float sum[TAPS][OUT_EACH][IN_EACH];
    int32_t down[TAPS], right[TAPS];
    place_taps(p, tap, taps, down, right);
    TN_UNROLL(int t = 0; t < TAPS; t++)
        TN_UNROLL(int o = 0; o < OUT_EACH; o++)
            TN_UNROLL(int l = 0; l < IN_EACH; l++) sum[t][o][l] = 0;
    for (int32_t k = begin + first; k < end && group * OUT_EACH < p.n; k += STRIDE) {
        int32_t n_image, y, x;
        find_pixel(a, p, k, n_image, y, x);
        y *= (int32_t)a.dim[10];
        x *= (int32_t)a.dim[11];
        float g[OUT_EACH];
        load_each<VEC_A>(g, gy + (int64_t)k * oc);
        TN_UNROLL(int t = 0; t < TAPS; t++) {
            const int32_t row = y + down[t], column = x + right[t];
            if ((uint32_t)row >= (uint32_t)p.height || (uint32_t)column >= (uint32_t)p.width) continue;
            float e[IN_EACH];
            load_each<VEC_B>(e, image + (int64_t)((n_image * p.height + row) * p.width + column) * p.depth);
            TN_UNROLL(int o = 0; o < OUT_EACH; o++)
                TN_UNROLL(int l = 0; l < IN_EACH; l++) sum[t][o][l] = fmaf(g[o], e[l], sum[t][o][l]);
        }
    }
    TN_UNROLL(int t = 0; t < TAPS; t++) {
        if (tap + t >= taps) break;
        TN_UNROLL(int o = 0; o < OUT_EACH; o++) {
            TN_UNROLL(int l = 0; l < IN_EACH; l++) room[(first * GROUPS + lane) * IN_EACH + l] = sum[t][o][l];
            __syncthreads();
            for (int e = (int)threadIdx.x; e < GROUPS * IN_EACH; e += THREADS) {
                float all = 0;
                for (int i = 0; i < STRIDE; i++) all += room[i * GROUPS * IN_EACH + e];
                sums[((tap + t) * OUT_EACH + o) * GROUPS * IN_EACH + e] = all;
            }
            __syncthreads();
        }
    }
}

TN_FN void run(const tn_cuda_args &a)
{
    place p;
    find_place(a, p);
    const int32_t taps = (int32_t)(a.dim[5] * a.dim[6]), all_sums = taps * OUT_EACH * GROUPS * IN_EACH;
    float *const sums = (float *)tn_dynamic_shared();
    for (int32_t tap = 0; tap < taps; tap += TAPS) sum_taps(a, p, tap, taps, sums, sums + all_sums);
#if SPLIT
    const int32_t splits = (int32_t)a.dim[20];
    float *const scratch = (float *)a.buf[PARTIALS];
    for (int32_t e = (int32_t)threadIdx.x; e < all_sums; e += THREADS)
        scratch[(int64_t)(p.split * p.tiles + p.tile) * all_sums + e] = sums[e];
    if (!tn_arrive_last(&a.ticket[p.tile], splits)) return;
    for (int32_t e = (int32_t)threadIdx.x; e < all_sums; e += THREADS) {
        float all = 0;
        for (int32_t s = 0; s < splits; s++) all += scratch[(int64_t)(s * p.tiles + p.tile) * all_sums + e];
        sums[e] = all;
    }
    __syncthreads();
#endif
    for (int32_t e = (int32_t)threadIdx.x; e < all_sums; e += THREADS) { /* in the order of gweight */
        const int32_t l = e % IN_EACH, tap = e / IN_EACH % taps, channel = e / (IN_EACH * taps);
        const int32_t g = channel / OUT_EACH, o = channel % OUT_EACH;
        float v[1] = {sums[((tap * OUT_EACH + o) * GROUPS + g) * IN_EACH + l]};
        if (p.n0 + channel < p.n) tn_epilogue(a, p.n0 + channel, tap * IN_EACH + l, v);
    }
}

#endif

} // namespace SPACE
