/* product.cu - what cuBLASLt does not do: a product of any strides and dtype, and what follows a product.
 *
 * One text, of which the host asks for one kernel at a time: it puts #define OWN_PRODUCT or OWN_EPILOGUE,
 * VARIANT (the dtype) and ENTRY (the kernel's name) in front. Sums of f16 and bf16 are f32.
 */

#define KERNEL extern "C" __global__ void __launch_bounds__(256) ENTRY(const tn_cuda_args a)

#if VARIANT == 0
#define own_t float
#define own_acc float
#define OWN_GET(x) (x)
#define OWN_PUT(x) (x)
#elif VARIANT == 1
#define own_t double
#define own_acc double
#define OWN_GET(x) (x)
#define OWN_PUT(x) (x)
#elif VARIANT == 2
#define own_t tn_half
#define own_acc float
#define OWN_GET(x) tn_half_to_f32(x)
#define OWN_PUT(x) tn_f32_to_half(x)
#elif VARIANT == 3
#define own_t tn_bfloat16
#define own_acc float
#define OWN_GET(x) tn_bfloat16_to_f32(x)
#define OWN_PUT(x) tn_f32_to_bfloat16(x)
#elif VARIANT == 4
#define own_t int32_t
#define own_acc uint32_t /* wraps around */
#define OWN_GET(x) ((uint32_t)(x))
#define OWN_PUT(x) ((int32_t)(x))
#elif VARIANT == 5
#define own_t int64_t
#define own_acc uint64_t
#define OWN_GET(x) ((uint64_t)(x))
#define OWN_PUT(x) ((int64_t)(x))
#else
#define own_t uint8_t
#define own_acc uint32_t
#define OWN_GET(x) ((uint32_t)(x))
#define OWN_PUT(x) ((uint8_t)(x))
#endif

#if VARIANT == 0 || VARIANT == 2 || VARIANT == 3
#define OWN_FMA(a, b, c) tn_fma_f32(a, b, c)
#elif VARIANT == 1
#define OWN_FMA(a, b, c) tn_fma_f64(a, b, c)
#else
#define OWN_FMA(a, b, c) ((a) * (b) + (c))
#endif

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

#else

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

#endif
