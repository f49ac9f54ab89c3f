/* conv_halo_weights.cu - weight gradient of windows of 3 x 3 and stride 1 by warpgroups, where a part of the
 * image stays in shared memory while all taps are multiplied with it.
 *
 * Pixels are numbered as conv_halo.cu has it, so that the pixels of x that a tap sees are those of gy,
 * further up or down by a number. K are pixels, PIXELS of them a buffer: rows of gy, BM of its channels, and
 * the rows of x that their windows see, as many channels. Each of three warpgroups has a column of the
 * window, and of each of its taps
 *
 *   D [channels of x, channels of gy] = x [pixels, channels]^T gy [pixels, channels]
 *
 * both of them turned, as panels (wgmma.cuh). `splits` blocks share the pixels: each leaves its sums in the
 * scratch, as [split][row of gweight][columns], which the kernel's finish adds up in that order. Read first: run.
 */

namespace SPACE
{

enum {
    WINDOW = 3,         /* rows and columns */
    WIDE = 64,          /* channels of x, and BM of gy */
    PIXELS = 128,       /* of a buffer, as conv_model.h has it */
    CHUNKS = WIDE / 8,  /* of a row */
    GY_BYTES = PIXELS * WIDE * 2,
    AHEAD = STAGES - 2 /* buffers that are filled while two are read */
};

typedef float sums[WINDOW][BM / 8][4];

/* Rows of pixels from `lowest` on, WIDE channels each: of an image of height x width pixels of `depth`
 * channels. Where a pixel does not exist, and for channels from `left` on, zeros. */
TN_FN void fill_rows(const tn_cuda_args &a, const place &p, char *to, int32_t rows, int32_t lowest,
                      const element *image, int32_t height, int32_t width, int32_t depth,
                     int32_t left)
{
    const int chunk = (int)threadIdx.x % CHUNKS;
#pragma unroll 1
    for (int32_t row = (int)threadIdx.x / CHUNKS; row < rows; row += THREADS / CHUNKS) {
        const int32_t q = lowest + row;
        int32_t n = 0, y = 0, x = 0;
        bool there = q >= 0 && q < p.k && chunk * 8 < left;
        find_pixel(a, p, there ? q : 0, n, y, x);
        there = there && y < height && x < width;
        tn_copy_async<16>(to + (row * 8 + ((chunk ^ row) & 7)) * 16,
                          image + (there ? ((n * height + y) * width + x) * depth + chunk * 8 : 0), there);
    }
}

/* What a block reads: x and gy from its own channels on, and how many of gy's there are. */
struct source {
    const element *x, *gy;
    int32_t rows;   /* of x in a buffer */
    int32_t lowest; /* the pixel of x that tap 0 of the row sees from pixel 0 */
    int32_t left;
};

TN_FN void fill(const tn_cuda_args &a, const place &p, const source &s, char *stage, int32_t q)
{
    fill_rows(a, p, stage, PIXELS, q, s.gy, (int32_t)a.dim[7], (int32_t)a.dim[8], (int32_t)a.dim[4],
              s.left);
    fill_rows(a, p, stage + GY_BYTES, s.rows, q + s.lowest, s.x, (int32_t)a.dim[1], (int32_t)a.dim[2],
              (int32_t)a.dim[3], WIDE);
}

/* `first`: the row of x that the warpgroup's tap in the first row of taps sees from the first pixel. */
TN_FN void multiply(sums &sum, const char *stage, const char *first, int32_t down)
{
    const uint64_t x = tn_panel(first, 0), gy = tn_panel(stage, 0);
    tn_wgmma_open();
    TN_UNROLL(int step = 0; step < PIXELS / 16; step++)
        TN_UNROLL(int i = 0; i < WINDOW; i++) {
            const uint64_t at = tn_panel_at(x, (step * 16 + i * down) * TN_PANEL),
                           by = tn_panel_at(gy, step * 16 * TN_PANEL);
#if DTYPE == 2
            tn_wgmma_f16<true, true, true>(sum[i], at, by);
#else
            tn_wgmma_bf16<true, true, true>(sum[i], at, by);
#endif
        }
    tn_wgmma_close();
}

TN_FN void run(const tn_cuda_args &a)
{
    char *const shared = tn_dynamic_shared();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int32_t width = (int32_t)a.dim[25];
    place p;
    source s;
    sums sum;
    find_place(a, p);
    const int32_t channel = p.n0 / BN * WIDE;
    s.x = (const element *)a.buf[0] + p.group * p.channels + channel;
    s.gy = (const element *)a.buf[1] + p.group * p.m + p.m0;
    s.rows = (PIXELS + 2 * p.dy * width + 2 * p.dx + 7) / 8 * 8; /* as conv_shape.c has it */
    s.lowest = p.y * width + p.x;
    s.left = p.m - p.m0;
    /* of the thread's first sum; lanes that differ in lane / 4 have columns side by side */
    float *to = (float *)a.buf[PARTIALS] +
                ((p.split * a.dim[9] + p.group) * p.m + p.m0 + lane % 4 * 2) * p.n + warp / 4 * p.channels +
                channel + warp % 4 * 16 + lane / 4;
    const int32_t stage = GY_BYTES + s.rows * WIDE * 2;
    const int32_t all = (p.k + PIXELS - 1) / PIXELS, per = (int32_t)a.dim[21], begin = p.split * per;
    const int32_t count = all - begin < per ? all - begin : per;
    TN_UNROLL(int i = 0; i < WINDOW; i++)
        TN_UNROLL(int n = 0; n < BM / 8; n++)
            TN_UNROLL(int k = 0; k < 4; k++) sum[i][n][k] = 0;
    int32_t left = count, q = begin * PIXELS, reading = 0,
            writing = AHEAD * stage; /* pixel to fill from; bytes */
    TN_UNROLL(int i = 0; i < AHEAD; i++, q += PIXELS) {
        if (i < count) fill(a, p, s, shared + i * stage, q);
        tn_copy_commit();
    }
#pragma unroll 1
    for (; left > 0; left--, q += PIXELS) {
        tn_copy_wait<AHEAD - 1>();
        tn_wgmma_show();
        __syncthreads(); /* a buffer is there for all, and the next to be filled is no longer read */
        if (left > AHEAD) fill(a, p, s, shared + writing, q);
        tn_copy_commit();
        const char *const from = shared + reading;
        multiply(sum, from, from + GY_BYTES + threadIdx.x / 128 * (uint32_t)p.dx * (TN_PANEL * 2), p.dy * width);
        tn_wgmma_wait<1>();
        reading = reading == (STAGES - 1) * stage ? 0 : reading + stage;
        writing = writing == (STAGES - 1) * stage ? 0 : writing + stage;
    }
    tn_wgmma_wait<0>();
    TN_UNROLL(int i = 0; i < WINDOW; i++) tn_wgmma_hold(sum[i]);
    tn_copy_wait<0>();
    const int32_t taps =
        3 * ((int32_t)a.dim[3] / (int32_t)a.dim[9]); /* columns from a row of the window to the next */
    TN_UNROLL(int n = 0; n < BM / 8; n++, to += 6 * p.n)
        TN_UNROLL(int k = 0; k < 2; k++, to += p.n) {
            if (n * 8 + lane % 4 * 2 + k >= s.left) continue;
            TN_UNROLL(int i = 0; i < WINDOW; i++)
                TN_UNROLL(int half = 0; half < 2; half++) to[i * taps + half * 8] = sum[i][n][k + 2 * half];
        }
}

} // namespace SPACE
