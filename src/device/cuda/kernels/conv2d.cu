/* conv2d.cu - convolution as an implicit product on tensor cores: the windows are never written to memory.
 *
 *              C [M, N]            = A [M, K]                   B [K, N]                            PASS
 *   forward    y [pixels, oc]        windows of x (gathered)    weight [oc][kh kw c]                0
 *   data       gx [pixels, c]        windows of gy              weight, taps and oc along K         1
 *   weight     gweight [oc, kh kw c] gy [pixels][oc]            windows of x, pixels along K        2
 *
 * each of one group's channels (conv_begin.cuh tells of phases, and what stands in front).
 *
 * A block computes one tile of BM x BN. Its operands come through STAGES buffers of BK along K, filled by
 * cp.async while the buffers before are multiplied; one barrier a buffer. Each of WARPS_M x WARPS_N warps
 * multiplies its part of the tile with mma.sync, whose operands ldmatrix brings in order; or, with WGMMA, warpgroups
 * multiply out of shared memory, 64 rows by BN of the tile for each four warps (WARPS_N 1). f32 operands are TF32,
 * once (PRODUCTS 1) or as the three products of upper and lower part that matter (PRODUCTS 3: 3 * 2^-22 of each
 * product is lost at most, some 2^-23 as a rule; numbers above 3.4e38 less half a TF32 step become infinite).
 *
 * Where few tiles meet a long K, `splits` blocks share a tile. Each leaves its sum in the scratch; the one that
 * comes last, counted in a ticket of the tile, adds all of them up by their number, so that the bits do not
 * depend on who that is. Statistics go the same way in two steps: of 64 tiles, then of these.
 *
 * With PROLOGUE what the convolution is of is computed from x on the way: each thread waits for what it has asked
 * for itself, and puts these elements through tn_prologue in their places before the barrier that shows them to the
 * others. Only elements that are there: the border of padding is 0 behind the function, whatever that makes of 0.
 *
 * Banks of shared memory. A buffer's rows are 16-byte chunks; chunk c of row r stands in place c ^ f(r). What
 * ldmatrix reads at once are 8 rows of one chunk: f(r) = r mod 8 sends them to the 8 different groups of four
 * banks (rows of fewer than 8 chunks share 128-byte lines, so there f(r) counts lines). f32 along M or N
 * cannot be turned by ldmatrix: lane 4 g + t reads row t, column g, and f(r) = 2 (r mod 4) puts each t 8 banks
 * further. What cp.async writes at once are chunks side by side in a row, of which f makes a permutation.
 *
 * Read first: run, at the end; then the buffers' struct tile.
 */

namespace SPACE {

enum {
    CHUNK = DTYPE == 0 ? 4 : 8, /* elements in 16 bytes */
    STEP = 2 * CHUNK,           /* along K in one mma */
    WM = BM / WARPS_M,
    WN = BN / WARPS_N,
    MT = WM / 16,
    NT = WN / 8,
    A_TURNED = PASS == 2, /* rows of the buffer go along K */
    B_TURNED = PASS != 0
};

/* ---- a buffer: ROWS x COLUMNS elements in shared memory ---- */

template <int ROWS, int COLUMNS, int VEC, bool WORDS> struct tile {
    enum {
        CHUNKS = COLUMNS / CHUNK,
        BYTES = ROWS * COLUMNS * (int)sizeof(element),
        UNITS = COLUMNS / VEC, /* that are copied, in a row */
        STRIDE = THREADS / UNITS,
        COUNT = (ROWS + STRIDE - 1) / STRIDE /* of rows in each of which a thread copies one unit */
    };

    /* WORDS: read word by word, not by ldmatrix. */
    static TN_MEMBER int place(int row, int chunk)
    {
        if (WGMMA) return (chunk / 8 * ROWS + row) * 8 + ((chunk ^ row) & 7); /* panels (wgmma.cuh) */
        const int f = WORDS ? (row & 3) << 1 : CHUNKS >= 8 ? row & 7 : CHUNKS == 4 ? row >> 1 & 3 : row >> 2 & 1;
        return row * CHUNKS + (chunk ^ f);
    }
    static TN_MEMBER const char *at(const char *base, int row, int chunk) { return base + place(row, chunk) * 16; }
    static TN_MEMBER uint32_t word(const char *base, int row, int column)
    {
        return *(const uint32_t *)(base + place(row, column / CHUNK) * 16 + column % CHUNK * (int)sizeof(element));
    }
    static TN_MEMBER int column() { return (int)threadIdx.x % UNITS * VEC; }
    static TN_MEMBER int row(int i) { return (int)threadIdx.x / UNITS + i * STRIDE; }
    static TN_MEMBER char *unit(char *base, int i)
    {
        return base + place(row(i), column() / CHUNK) * 16 + column() % CHUNK * (int)sizeof(element);
    }
    /* The thread's i-th unit. Two bytes are less than cp.async moves. */
    static TN_MEMBER void copy(char *base, int i, const element *from, bool there)
    {
        if (ROWS % STRIDE != 0 && row(i) >= ROWS) return;
        char *to = unit(base, i);
        if (VEC * (int)sizeof(element) >= 4)
            tn_copy_async<(VEC * (int)sizeof(element) >= 4 ? VEC * (int)sizeof(element) : 4)>(to, from, there);
        else
            *(uint16_t *)to = there ? *(const uint16_t *)from : (uint16_t)0;
    }
};

typedef tile<(A_TURNED ? BK : BM), (A_TURNED ? BM : BK), VEC_A, (A_TURNED && DTYPE == 0)> tile_a;
typedef tile<(B_TURNED ? BK : BN), (B_TURNED ? BN : BK), VEC_B, (B_TURNED && DTYPE == 0)> tile_b;
enum { STAGE = tile_a::BYTES + tile_b::BYTES };

/* ---- filling a buffer ---- */

/* The numbers of its rows that a thread computes before it begins. */
struct source {
#if PASS != 2
    int32_t offset[tile_a::COUNT], /* with PROLOGUE the pixel's number */
        y[tile_a::COUNT], x[tile_a::COUNT]; /* of A's windows, tap 0 */
#else
    int32_t i, j, offset; /* of B's columns */
    bool there;
#endif
};

TN_FN void prepare(const tn_cuda_args &a, const place &p, source &s)
{
#if PASS != 2
    const int32_t stride_y = PASS == 0 ? (int32_t)a.dim[10] : 1, stride_x = PASS == 0 ? (int32_t)a.dim[11] : 1;
    TN_UNROLL(int i = 0; i < tile_a::COUNT; i++) {
        const int32_t m = p.m0 + tile_a::row(i);
        int32_t image = 0, y = 0, x = 0;
        find_pixel(a, p, m, image, y, x);
        s.y[i] = m < p.m ? y * stride_y + p.y : -(1 << 30); /* outside of the image, whichever the tap */
        s.x[i] = x * stride_x + p.x;
#if defined(PROLOGUE)
        s.offset[i] = m < p.m ? (image * p.height + s.y[i]) * p.width + s.x[i] : 0;
#else
        s.offset[i] = m < p.m ? ((image * p.height + s.y[i]) * p.width + s.x[i]) * p.depth + p.group * p.channels : 0;
#endif
    }
#else
    int32_t i, j, channel;
    const int32_t n = p.n0 + tile_b::column();
    s.there = n < p.n;
    find_tap(p, s.there ? n : 0, i, j, channel);
    s.i = i * p.dy + p.y;
    s.j = j * p.dx + p.x;
    s.offset = p.group * p.channels + channel;
#endif
}

TN_FN void fill(const tn_cuda_args &a, const place &p, const source &s, char *stage, int32_t k0)
{
    char *const to_a = stage, *const to_b = stage + tile_a::BYTES;
#if PASS == 2
    const element *const image = (const element *)a.buf[0], *const gy = (const element *)a.buf[1];
    const int32_t oc = (int32_t)a.dim[4], column = p.m0 + tile_a::column();
    TN_UNROLL(int i = 0; i < tile_a::COUNT; i++) {
        const int32_t k = k0 + tile_a::row(i);
        const bool there = k < p.k && column < p.m;
        tile_a::copy(to_a, i, gy + (there ? k * oc + p.group * p.m + column : 0), there);
    }
    const int32_t stride_y = (int32_t)a.dim[10], stride_x = (int32_t)a.dim[11];
    TN_UNROLL(int i = 0; i < tile_b::COUNT; i++) {
        const int32_t k = k0 + tile_b::row(i);
        int32_t n, y, x;
        find_pixel(a, p, k, n, y, x);
        y = y * stride_y + s.i;
        x = x * stride_x + s.j;
        const bool there = s.there && k < p.k && (uint32_t)y < (uint32_t)p.height && (uint32_t)x < (uint32_t)p.width;
        tile_b::copy(to_b, i, image + (there ? ((n * p.height + y) * p.width + x) * p.depth + s.offset : 0), there);
    }
#else
    const element *const image = (const element *)a.buf[0], *const weight = (const element *)a.buf[1];
    int32_t i, j, channel;
    const int32_t k = k0 + tile_a::column();
    const bool inside = k < p.k;
    find_tap(p, inside ? k : 0, i, j, channel);
    const int32_t down = i * p.dy, right = j * p.dx;
#if !defined(PROLOGUE)
    const int32_t by = (down * p.width + right) * p.depth + channel;
#endif
    TN_UNROLL(int r = 0; r < tile_a::COUNT; r++) {
        const bool there = inside && (uint32_t)(s.y[r] + down) < (uint32_t)p.height &&
                           (uint32_t)(s.x[r] + right) < (uint32_t)p.width;
#if defined(PROLOGUE)
        const int32_t pixel = s.offset[r] + down * p.width + right;
        tile_a::copy(to_a, r, image + (there ? pixel * p.depth + p.group * p.channels + channel : 0), there);
#else
        tile_a::copy(to_a, r, image + (there ? s.offset[r] + by : 0), there);
#endif
    }
#if PASS == 0
    const int32_t kb = k0 + tile_b::column();
    TN_UNROLL(int r = 0; r < tile_b::COUNT; r++) {
        const int32_t n = p.n0 + tile_b::row(r);
        const bool there = kb < p.k && n < p.n;
        tile_b::copy(to_b, r, weight + (there ? (p.group * p.n + n) * p.k + kb : 0), there);
    }
#else
    const int32_t n = p.n0 + tile_b::column(), kh = (int32_t)a.dim[5], kw = (int32_t)a.dim[6];
    TN_UNROLL(int r = 0; r < tile_b::COUNT; r++) {
        const int32_t kb = k0 + tile_b::row(r);
        const bool there = kb < p.k && n < p.n;
#if WHOLE /* A's, but for the channel */
        const int32_t of = channel - tile_a::column() + tile_b::row(r);
        const int32_t from = (((p.group * p.channels + of) * kh + p.first_y + i * p.step_y) * kw + p.first_x + j * p.step_x) * p.n + n;
#else
        find_tap(p, there ? kb : 0, i, j, channel);
        i = p.first_y + i * p.step_y, j = p.first_x + j * p.step_x;
        const int32_t from = (((p.group * p.channels + channel) * kh + i) * kw + j) * p.n + n;
#endif
        tile_b::copy(to_b, r, weight + (there ? from : 0), there);
    }
#endif
#endif
}

#if defined(PROLOGUE)
/* ---- what the convolution is of ---- */

enum { AT_ONCE = 2 }; /* units whose elements are in registers together: their operands of a channel are read once */

/* The thread's units from `first` on, of those that are there. */
template <class buffer, int VEC>
TN_FN void put_through(const tn_cuda_args &a, char *base, int first, const int64_t (&pixel)[AT_ONCE], int32_t channel)
{
    element t[VEC];
    float v[AT_ONCE][VEC];
    TN_UNROLL(int i = 0; i < AT_ONCE; i++) {
        if (first + i >= buffer::COUNT || pixel[i] < 0) continue;
        tn_load(t, (const element *)buffer::unit(base, first + i));
        TN_UNROLL(int l = 0; l < VEC; l++) v[i][l] = value_of(t[l]);
    }
    TN_UNROLL(int i = 0; i < AT_ONCE; i++)
        if (first + i < buffer::COUNT && pixel[i] >= 0) tn_prologue(a, pixel[i], channel, v[i]);
    TN_UNROLL(int i = 0; i < AT_ONCE; i++) {
        if (first + i >= buffer::COUNT || pixel[i] < 0) continue;
        TN_UNROLL(int l = 0; l < VEC; l++) round_to(t[l], v[i][l]);
        tn_store((element *)buffer::unit(base, first + i), t);
    }
}

/* Applies the prologue to the elements that this thread has brought into the buffer, as fill did; they have
 * arrived. */
TN_FN void transform(const tn_cuda_args &a, const place &p, const source &s, char *stage, int32_t k0)
{
#if PASS == 2
    const int32_t stride_y = (int32_t)a.dim[10], stride_x = (int32_t)a.dim[11];
#pragma unroll 1 /* sums leave few registers */
    for (int first = 0; first < tile_b::COUNT; first += AT_ONCE) {
        int64_t pixel[AT_ONCE];
        TN_UNROLL(int i = 0; i < AT_ONCE; i++) {
            const int32_t k = k0 + tile_b::row(first + i);
            int32_t n, y, x;
            find_pixel(a, p, k, n, y, x);
            y = y * stride_y + s.i;
            x = x * stride_x + s.j;
            const bool there = s.there && k < p.k && tile_b::row(first + i) < BK && (uint32_t)y < (uint32_t)p.height &&
                               (uint32_t)x < (uint32_t)p.width;
            pixel[i] = there ? (int64_t)((n * p.height + y) * p.width + x) : -1;
        }
        put_through<tile_b, VEC_B>(a, stage + tile_a::BYTES, first, pixel, s.offset);
    }
#else
    int32_t i, j, channel;
    const int32_t k = k0 + tile_a::column();
    const bool inside = k < p.k;
    find_tap(p, inside ? k : 0, i, j, channel);
    const int32_t down = i * p.dy, right = j * p.dx;
    TN_UNROLL(int first = 0; first < tile_a::COUNT; first += AT_ONCE) {
        int64_t pixel[AT_ONCE];
        TN_UNROLL(int r = 0; r < AT_ONCE; r++) {
            const int at = first + r < tile_a::COUNT ? first + r : 0;
            const bool there = inside && first + r < tile_a::COUNT && tile_a::row(at) < BM &&
                               (uint32_t)(s.y[at] + down) < (uint32_t)p.height &&
                               (uint32_t)(s.x[at] + right) < (uint32_t)p.width;
            pixel[r] = there ? (int64_t)(s.offset[at] + down * p.width + right) : -1;
        }
        put_through<tile_a, VEC_A>(a, stage, first, pixel, p.group * p.channels + channel);
    }
#endif
}
#endif

/* ---- multiplying a buffer ---- */

typedef float sums[MT][NT][4];

#if WGMMA
/* By warpgroups: asked for, while those of the buffer before run. Of a turned operand a step goes down its panels'
 * rows. */
TN_FN void multiply(sums &sum, const char *stage, int, int)
{
    enum { COLUMNS = BN % 256 == 0 && WARPS_M == 8 ? 256 : BN % 128 == 0 ? 128 : 64, ROW = TN_PANEL }; /* of an instruction; elements of a panel's row */
    const int first = (int)threadIdx.x / 128 * MT;
    const uint64_t a = tn_panel(stage, 0), b = tn_panel(stage + tile_a::BYTES, BK * ROW * 2);
    tn_wgmma_open();
    TN_UNROLL(int step = 0; step < BK / STEP; step++)
        TN_UNROLL(int m = 0; m < MT; m++)
            TN_UNROLL(int n = 0; n < BN / COLUMNS; n++) {
                float(&d)[COLUMNS / 8][4] = *(float(*)[COLUMNS / 8][4]) & sum[m][n * (COLUMNS / 8)];
                const int at = A_TURNED ? ((first + m) * BK + step * STEP) * ROW : (first + m) * 64 * ROW + step * STEP;
                const int by = B_TURNED ? (n * (COLUMNS / ROW) * BK + step * STEP) * ROW : n * COLUMNS * ROW + step * STEP;
#if DTYPE == 2
                tn_wgmma_f16<true, A_TURNED, B_TURNED>(d, tn_panel_at(a, at), tn_panel_at(b, by));
#else
                tn_wgmma_bf16<true, A_TURNED, B_TURNED>(d, tn_panel_at(a, at), tn_panel_at(b, by));
#endif
            }
    tn_wgmma_close();
}
/* Those of the buffer before are done. */
TN_FN void await() { tn_wgmma_wait<1>(); }
TN_FN void settle(sums &sum)
{
    tn_wgmma_wait<0>();
    TN_UNROLL(int m = 0; m < MT; m++) tn_wgmma_hold(sum[m]);
}
TN_FN void show() { tn_wgmma_show(); }
#else
TN_FN void load_a(const char *base, int warp_m, int step, uint32_t (&f)[MT][4])
{
    const int lane = (int)threadIdx.x % 32, part = lane / 8, r = lane % 8;
    TN_UNROLL(int m = 0; m < MT; m++) {
        const int m0 = warp_m * WM + m * 16;
        if (!A_TURNED)
            tn_ldmatrix(f[m], tile_a::at(base, m0 + (part & 1) * 8 + r, step * 2 + (part >> 1)));
        else if (DTYPE != 0)
            tn_ldmatrix_trans(f[m], tile_a::at(base, step * STEP + (part >> 1) * 8 + r, m0 / CHUNK + (part & 1)));
        else
            TN_UNROLL(int i = 0; i < 4; i++)
                f[m][i] = tile_a::word(base, step * STEP + lane % 4 + (i >> 1) * 4, m0 + lane / 4 + (i & 1) * 8);
    }
}

TN_FN void load_b(const char *base, int warp_n, int step, uint32_t (&f)[NT][2])
{
    const int lane = (int)threadIdx.x % 32, part = lane / 8, r = lane % 8;
    TN_UNROLL(int n = 0; n < NT; n += 2) {
        const int n0 = warp_n * WN + n * 8;
        uint32_t d[4];
        if (!B_TURNED)
            tn_ldmatrix(d, tile_b::at(base, n0 + (part >> 1) * 8 + r, step * 2 + (part & 1)));
        else if (DTYPE != 0)
            tn_ldmatrix_trans(d, tile_b::at(base, step * STEP + (part & 1) * 8 + r, n0 / CHUNK + (part >> 1)));
        else
            TN_UNROLL(int i = 0; i < 4; i++)
                d[i] = tile_b::word(base, step * STEP + lane % 4 + (i & 1) * 4, n0 + lane / 4 + (i >> 1) * 8);
        f[n][0] = d[0], f[n][1] = d[1], f[n + 1][0] = d[2], f[n + 1][1] = d[3];
    }
}

TN_FN void multiply(sums &sum, const char *stage, int warp_m, int warp_n)
{
    TN_UNROLL(int step = 0; step < BK / STEP; step++) {
        uint32_t fa[MT][4], fb[NT][2];
        load_a(stage, warp_m, step, fa);
        load_b(stage + tile_a::BYTES, warp_n, step, fb);
#if DTYPE == 0 && PRODUCTS == 3
        uint32_t lower_a[4], lower_b[NT][2];
        TN_UNROLL(int n = 0; n < NT; n++)
            TN_UNROLL(int i = 0; i < 2; i++) tn_split_tf32(__uint_as_float(fb[n][i]), fb[n][i], lower_b[n][i]);
        TN_UNROLL(int m = 0; m < MT; m++) {
            TN_UNROLL(int i = 0; i < 4; i++) tn_split_tf32(__uint_as_float(fa[m][i]), fa[m][i], lower_a[i]);
            TN_UNROLL(int n = 0; n < NT; n++) { /* the small ones first */
                tn_mma_tf32(sum[m][n], lower_a, fb[n]);
                tn_mma_tf32(sum[m][n], fa[m], lower_b[n]);
                tn_mma_tf32(sum[m][n], fa[m], fb[n]);
            }
        }
#else
#if DTYPE == 0
        TN_UNROLL(int n = 0; n < NT; n++)
            TN_UNROLL(int i = 0; i < 2; i++) fb[n][i] = tn_to_tf32(__uint_as_float(fb[n][i]));
#endif
        TN_UNROLL(int m = 0; m < MT; m++) {
#if DTYPE == 0
            TN_UNROLL(int i = 0; i < 4; i++) fa[m][i] = tn_to_tf32(__uint_as_float(fa[m][i]));
#endif
            TN_UNROLL(int n = 0; n < NT; n++)
#if DTYPE == 0
                tn_mma_tf32(sum[m][n], fa[m], fb[n]);
#elif DTYPE == 2
                tn_mma_f16(sum[m][n], fa[m], fb[n]);
#else
                tn_mma_bf16(sum[m][n], fa[m], fb[n]);
#endif
        }
#endif
    }
}
TN_FN void await() {}
TN_FN void settle(sums &) {}
TN_FN void show() {}
#endif

#if SPLIT
/* The tile's sum over all splits, in the block that comes last; false in the others. */
TN_FN bool join_splits(const tn_cuda_args &a, const place &p, sums &sum)
{
    const int32_t splits = (int32_t)a.dim[20];
    float *const scratch = (float *)a.buf[PARTIALS] + threadIdx.x;
    float *own = scratch + (int64_t)(p.split * p.tiles + p.tile) * (BM * BN);
    TN_UNROLL(int m = 0; m < MT; m++)
        TN_UNROLL(int n = 0; n < NT; n++)
            TN_UNROLL(int i = 0; i < 4; i++) own[((m * NT + n) * 4 + i) * THREADS] = sum[m][n][i];
    if (!tn_arrive_last(&a.ticket[p.tile], splits)) return false;
    TN_UNROLL(int m = 0; m < MT; m++)
        TN_UNROLL(int n = 0; n < NT; n++)
            TN_UNROLL(int i = 0; i < 4; i++) sum[m][n][i] = 0;
    for (int32_t s = 0; s < splits; s++) {
        const float *from = scratch + (int64_t)(s * p.tiles + p.tile) * (BM * BN);
        TN_UNROLL(int m = 0; m < MT; m++)
            TN_UNROLL(int n = 0; n < NT; n++)
                TN_UNROLL(int i = 0; i < 4; i++) sum[m][n][i] += from[((m * NT + n) * 4 + i) * THREADS];
    }
    return true;
}
#endif

/* ---- the whole ---- */

/* They go through shared memory, so that a thread has columns that follow each other. */
TN_FN void finish_tile(const tn_cuda_args &a, const place &p, const sums &sum, float *room, int warp_m, int warp_n)
{
    const int lane = (int)threadIdx.x % 32;
    TN_UNROLL(int m = 0; m < MT; m++)
        TN_UNROLL(int n = 0; n < NT; n++)
            TN_UNROLL(int i = 0; i < 4; i++)
                room[((WGMMA ? (warp_m / 4 * MT + m) * 64 + warp_m % 4 * 16 : warp_m * WM + m * 16) + lane / 4 +
                      (i >> 1) * 8) *
                         ROOM + warp_n * WN + n * 8 + lane % 4 * 2 +
                     (i & 1)] = sum[m][n][i];
    __syncthreads();
    give_results(a, p, room);
}

TN_FN void run(const tn_cuda_args &a)
{
    char *const shared = tn_dynamic_shared();
    const int warp_m = (int)threadIdx.x / 32 % WARPS_M, warp_n = (int)threadIdx.x / 32 / WARPS_M;
    place p;
    source s;
    sums sum;
    find_place(a, p);
    prepare(a, p, s);
    const int32_t all = (p.k + BK - 1) / BK, per = SPLIT ? (int32_t)a.dim[21] : all, begin = p.split * per;
    const int32_t count = all - begin < per ? all - begin : per; /* may be below 1 */
    TN_UNROLL(int m = 0; m < MT; m++)
        TN_UNROLL(int n = 0; n < NT; n++)
            TN_UNROLL(int i = 0; i < 4; i++) sum[m][n][i] = 0;
    /* buffers that are filled while others are read: by warpgroups of two at once */
    enum { AHEAD = STAGES - 1 - WGMMA };
    TN_UNROLL(int i = 0; i < AHEAD; i++) {
        if (i < count) fill(a, p, s, shared + i * STAGE, (begin + i) * BK);
        tn_copy_commit();
    }
    int32_t reading = 0, writing = AHEAD;
    for (int32_t i = 0; i < count; i++) {
        tn_copy_wait<AHEAD - 1>();
#if defined(PROLOGUE)
        transform(a, p, s, shared + reading * STAGE, (begin + i) * BK);
#endif
        show();
        __syncthreads(); /* buffer i is there for all, and the next to be filled is no longer read */
        /* first: asking for a product of a warpgroup keeps the warp while those before it run */
        if (i + AHEAD < count) fill(a, p, s, shared + writing * STAGE, (begin + i + AHEAD) * BK);
        tn_copy_commit();
        multiply(sum, shared + reading * STAGE, warp_m, warp_n);
        await();
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }
    settle(sum);
    tn_copy_wait<0>();
    __syncthreads();
#if SPLIT
    if (!join_splits(a, p, sum)) return;
#endif
    finish_tile(a, p, sum, (float *)shared, warp_m, warp_n);
}

} // namespace SPACE
