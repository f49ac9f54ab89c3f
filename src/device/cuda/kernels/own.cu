/* own.cu - what cuBLASLt does not do: a product of any strides and dtype, and what follows a product; and what turns
 * a convolution into one: the windows of an image as rows (im2col), and its transpose, which adds up what the windows
 * say of each element (col2im), as a gather without atomics.
 *
 * One text, of which the host asks for one kernel at a time: it puts #define OWN_PRODUCT, OWN_EPILOGUE, OWN_COL2IM or
 * OWN_IM2COL, VARIANT (the dtype; of im2col log2 of the bytes that are moved at once) and ENTRY (the kernel's name) in
 * front. Sums of f16 and bf16 are f32.
 */

#define KERNEL extern "C" __global__ void __launch_bounds__(256) ENTRY(const tn_cuda_args a)

/* By VARIANT the dtype, the type of its sums, from the one to the other and back, a b + c. */
#define OWN_WRAP(a, b, c) ((a) * (b) + (c))
#define OWN_0(row)        row(float, float, , , tn_fma_f32)
#define OWN_1(row)        row(double, double, , , tn_fma_f64)
#define OWN_2(row)        row(tn_half, float, tn_half_to_f32, tn_f32_to_half, tn_fma_f32)
#define OWN_3(row)        row(tn_bfloat16, float, tn_bfloat16_to_f32, tn_f32_to_bfloat16, tn_fma_f32)
#define OWN_4(row)        row(int32_t, uint32_t, (uint32_t), (int32_t), OWN_WRAP)
#define OWN_5(row)        row(int64_t, uint64_t, (uint64_t), (int64_t), OWN_WRAP)
#define OWN_6(row)        row(uint8_t, uint32_t, (uint32_t), (uint8_t), OWN_WRAP)

#define OWN_JOIN(n, pick)                 OWN_##n(pick)
#define OWN_ROW(n, pick)                  OWN_JOIN(n, pick)
#define OWN_FIRST(t, acc, get, put, fma)  t
#define OWN_SECOND(t, acc, get, put, fma) acc
#define OWN_THIRD(t, acc, get, put, fma)  get
#define OWN_FOURTH(t, acc, get, put, fma) put
#define OWN_FIFTH(t, acc, get, put, fma)  fma
#define own_t                             OWN_ROW(VARIANT, OWN_FIRST)
#define own_acc                           OWN_ROW(VARIANT, OWN_SECOND)
#define OWN_GET                           OWN_ROW(VARIANT, OWN_THIRD)
#define OWN_PUT                           OWN_ROW(VARIANT, OWN_FOURTH)
#define OWN_FMA                           OWN_ROW(VARIANT, OWN_FIFTH)

#if defined(OWN_EPILOGUE)

/* out[i, j] = act(in[i, j] + bias[j]) for i < n / dim[0], j < dim[0]. buf: in, bias or null, out; dim[1],
 * dim[2]: their rows' strides; dim[3]: relu; dim[4]: in is f32 whatever out is. */
KERNEL
{
    const int64_t columns = a.dim[0];
    const own_t *in = (const own_t *)a.buf[0], *bias = (const own_t *)a.buf[1];
    const float *wide = (const float *)a.buf[0];
    own_t *out = (own_t *)a.buf[2];
    int64_t begin = (int64_t)blockIdx.x * a.chunk, end = begin + a.chunk < a.n ? begin + a.chunk : a.n;
    for (int64_t e = begin + threadIdx.x; e < end; e += blockDim.x) {
        int64_t i = e / columns, j = e % columns, from = i * a.dim[1] + j;
        own_acc x = a.dim[4] ? (own_acc)wide[from] : OWN_GET(in[from]);
        if (bias) x += OWN_GET(bias[j]);
        if (a.dim[3] && x < 0) x = 0; /* NaN stays */
        out[i * a.dim[2] + j] = OWN_PUT(x);
    }
}

#elif defined(OWN_PRODUCT)

/* C = act(A * B + bias), or C + A * B where dim[9]. An item is a tile of C in one of the batches. buf: A, B,
 * bias or null, C. dim: m, n, k, A's row and column stride, B's, C's row stride, relu, add, C is f32, number
 * of batch extents, the extents, and the strides of A, B and C along each. */
KERNEL
{
    enum { TILE = 32, THREADS = 256, PER_THREAD = TILE * TILE / THREADS };
    __shared__ own_acc left[TILE][TILE + 1], right[TILE][TILE + 1];
    const int64_t m = a.dim[0], n = a.dim[1], k = a.dim[2];
    const int64_t across = (n + TILE - 1) / TILE, down = (m + TILE - 1) / TILE;
    int64_t item = (int64_t)blockIdx.x, batch = item / (across * down), tile = item % (across * down);
    int64_t at[3] = {0, 0, 0};
    for (int d = (int)a.dim[11] - 1; d >= 0; d--) {
        int64_t i = batch % a.dim[12 + d];
        batch /= a.dim[12 + d];
        for (int t = 0; t < 3; t++) at[t] += i * a.dim[16 + 4 * t + d];
    }
    const own_t *A = (const own_t *)a.buf[0] + at[0], *B = (const own_t *)a.buf[1] + at[1];
    const own_t *bias = (const own_t *)a.buf[2];
    const int64_t row0 = tile / across * TILE, column0 = tile % across * TILE;
    const int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
    own_acc sum[PER_THREAD];
    for (int p = 0; p < PER_THREAD; p++) sum[p] = 0;
    for (int64_t first = 0; first < k; first += TILE) {
        for (int p = 0; p < PER_THREAD; p++) {
            const int line = y + p * (THREADS / TILE);
            const int64_t i = row0 + line, ka = first + x, kb = first + line, j = column0 + x;
            left[line][x] = i < m && ka < k ? OWN_GET(A[i * a.dim[3] + ka * a.dim[4]]) : (own_acc)0;
            right[line][x] = kb < k && j < n ? OWN_GET(B[kb * a.dim[5] + j * a.dim[6]]) : (own_acc)0;
        }
        __syncthreads();
        for (int q = 0; q < TILE; q++)
            for (int p = 0; p < PER_THREAD; p++)
                sum[p] = OWN_FMA(left[y + p * (THREADS / TILE)][q], right[q][x], sum[p]);
        __syncthreads();
    }
    for (int p = 0; p < PER_THREAD; p++) {
        const int64_t i = row0 + y + p * (THREADS / TILE), j = column0 + x, to = at[2] + i * a.dim[7] + j;
        if (i >= m || j >= n) continue;
        own_acc v = sum[p];
        own_t *C = (own_t *)a.buf[3];
        float *wide = (float *)a.buf[3];
        if (a.dim[9]) v += a.dim[10] ? (own_acc)wide[to] : OWN_GET(C[to]);
        if (bias) v += OWN_GET(bias[j]);
#if VARIANT < 4
        if (a.dim[8] && v < 0) v = 0;
#endif
        if (a.dim[10])
            wide[to] = (float)v;
        else
            C[to] = OWN_PUT(v);
    }
}

/* Of both that follow: dim, in units of what is moved,
 *
 *   0 h  1 w  2 c  3 oh  4 ow  5 kh  6 kw  7, 8 stride  9, 10 padding at top and left  11, 12 dilation
 *   13 groups  14 c / groups
 *
 * Rows are [image, oh, ow][group][kh, kw, c / groups]. Fewer than 2^31 units are involved, so all arithmetic
 * is of 32 bits. */

#elif defined(OWN_COL2IM)

/* buf: rows, image. An item is an element of the image: the sum over the windows it is in, in their order. */
KERNEL
{
    const int32_t h = (int32_t)a.dim[0], w = (int32_t)a.dim[1], c = (int32_t)a.dim[2];
    const int32_t oh = (int32_t)a.dim[3], ow = (int32_t)a.dim[4], kh = (int32_t)a.dim[5], kw = (int32_t)a.dim[6];
    const int32_t groups = (int32_t)a.dim[13], width = (int32_t)a.dim[14];
    const own_acc *rows = (const own_acc *)a.buf[0];
    own_t *image = (own_t *)a.buf[1];
    int64_t begin = (int64_t)blockIdx.x * a.chunk, end = begin + a.chunk < a.n ? begin + a.chunk : a.n;
    for (int64_t e = begin + threadIdx.x; e < end; e += blockDim.x) {
        int32_t t = (int32_t)e;
        const int32_t channel = t % c, group = channel / width;
        t /= c;
        const int32_t x = t % w;
        t /= w;
        const int32_t y = t % h, n = t / h;
        own_acc sum = 0;
        for (int32_t i = 0; i < kh; i++) {
            const int32_t down = y + (int32_t)a.dim[9] - i * (int32_t)a.dim[11], oy = down / (int32_t)a.dim[7];
            if (down < 0 || down % (int32_t)a.dim[7] || oy >= oh) continue;
            for (int32_t j = 0; j < kw; j++) {
                const int32_t right = x + (int32_t)a.dim[10] - j * (int32_t)a.dim[12],
                              ox = right / (int32_t)a.dim[8];
                if (right < 0 || right % (int32_t)a.dim[8] || ox >= ow) continue;
                const int32_t row = ((n * oh + oy) * ow + ox) * groups + group;
                sum += rows[((row * kh + i) * kw + j) * width + channel % width];
            }
        }
        image[e] = OWN_PUT(sum);
    }
}

#else

#if VARIANT == 4 /* log2 of the bytes that are moved at once */
#define unit_t tn_move16
#elif VARIANT == 3
#define unit_t uint64_t
#elif VARIANT == 2
#define unit_t uint32_t
#else
#define unit_t uint16_t
#endif

/* buf: image, rows. An item is a unit of the rows. */
KERNEL
{
    const uint32_t h = (uint32_t)a.dim[0], w = (uint32_t)a.dim[1], c = (uint32_t)a.dim[2];
    const uint32_t oh = (uint32_t)a.dim[3], ow = (uint32_t)a.dim[4], kh = (uint32_t)a.dim[5],
                   kw = (uint32_t)a.dim[6];
    const uint32_t groups = (uint32_t)a.dim[13], width = (uint32_t)a.dim[14];
    const unit_t *image = (const unit_t *)a.buf[0];
    unit_t *rows = (unit_t *)a.buf[1];
    int64_t begin = (int64_t)blockIdx.x * a.chunk, end = begin + a.chunk < a.n ? begin + a.chunk : a.n;
    for (int64_t e = begin + threadIdx.x; e < end; e += blockDim.x) {
        uint32_t t = (uint32_t)e;
        const uint32_t channel = t % width;
        t /= width;
        const uint32_t j = t % kw;
        t /= kw;
        const uint32_t i = t % kh;
        t /= kh;
        const uint32_t group = t % groups;
        t /= groups;
        const uint32_t x = t % ow;
        t /= ow;
        const uint32_t y = t % oh, n = t / oh;
        const int32_t row = (int32_t)(y * (uint32_t)a.dim[7] + i * (uint32_t)a.dim[11]) - (int32_t)a.dim[9];
        const int32_t column = (int32_t)(x * (uint32_t)a.dim[8] + j * (uint32_t)a.dim[12]) - (int32_t)a.dim[10];
        unit_t v = {0};
        if (row >= 0 && row < (int32_t)h && column >= 0 && column < (int32_t)w)
            v = image[((n * h + (uint32_t)row) * w + (uint32_t)column) * c + group * width + channel];
        rows[e] = v;
    }
}

#endif
