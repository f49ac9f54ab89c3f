/* attention_begin.cuh - what the attention kernels have in common: operands of tensor cores, tiles of memory, which
 * scores are seen and which probabilities kept. Their formula: softmax(scale * q k^T + mask) v, without the tq x tk
 * scores ever being in memory (Dao, Fu, Ermon, Rudra, Re: FlashAttention, 2022; Dao: FlashAttention-2, 2023).
 *
 * A block owns ROWS rows of the scores' one side, a warp M_TILES times 16 of them. Tiles of COLS rows of the
 * other side stream through a pipeline of STAGES tiles in shared memory (cp.async). A tile's scores are the
 * accumulators of one product and, with no way through memory, the first operand of the next. Nothing is added by
 * two blocks and no sum depends on an order in time: the same bits in each run. Tiles that causality hides from a
 * block are not visited; tests of single elements are made only in tiles that the diagonal or the end of the keys
 * crosses.
 *
 * A kernel is ptx.cuh, this, attention_softmax.cuh and attention.cu, or wgmma.cuh in front and attention_warpgroup.cuh
 * with attention_wgmma.cu (PASS 0), or attention_backward.cu (PASS 1 to 3), or wgmma.cuh in front and
 * attention_warpgroup.cuh with attention_wgmma_backward.cu (PASS 2), attention_end.cuh, with these names defined in front:
 *
 *   ENTRY     the kernel's name                  PASS     0 forward, 1 delta, 2 dk and dv (WGMMA: and dq), 3 dq
 *   DTYPE     0 f32, 2 f16, 3 bf16               PRODUCTS 3: f32 as three products of TF32; 1: as one
 *   HEAD      32, 64, 96 or 128                  SCALE    of the scores
 *   CAUSAL    1: key j is seen by query i where j <= i
 *   STRICT    what a query that sees nothing gives: 0 zeros, as PyTorch, and lse is infinite; 1 NaN, as softmax by
 *             its definition, of lse and dv too
 *   MASK      0 none, 1 bool (true: is seen), 2 of the dtype, added to the scaled scores
 *   DROPOUT   1: P is dropped as a RANDOM node of shape [batch, heads, tq, tk] says, element
 *             ((b * heads + h) * tq + i) * tk + j of the stream of SEED and DRAW; DROP_P is its chance to be
 *             dropped
 *   SPLIT     1: several blocks of pass 0 have the same queries, and a part of the keys each; scratch follows lse,
 *             dim[32] is their number
 *   WARPS, M_TILES, COLS, STAGES, A_REGS, WGMMA, BLOCK (threads)  of fu_flash_tile (fuser/text/attention_cuda.h)
 * SCALE, DROP_P, SEED and DRAW are literals or expressions over the kernel's `a`; SEED and DRAW may be left out
 * and are scalar[0].u and scalar[1].u then. LSE 0 leaves lse out of pass 0, DK 0 or DV 0 that result of pass 2.
 *
 * buf     q, k, v, [mask], o, lse;  backward goes on with  go, delta, dq, dk, dv. Of these pass 1 touches o, lse,
 *         go, delta, pass 2 all but o and dq, pass 3 all but o, dk and dv: the others may be any, or missing
 *         where none follows. With WGMMA pass 2 has sums behind dv, and pass 1 behind delta, of which it clears dim[32]
 *         words
 * dim     0 batch  1 heads  2 tq  3 tk, all >= 1, then strides in elements, of (batch, head, row), columns
 *         are dense: 4 q  7 k  10 v  17 o  20 go  23 dq  26 dk  29 dv;  13 mask, of (batch, head, row, column)
 * lse     f32 [batch, heads, tq], the natural logarithm of the sum of the exponentials; delta likewise
 *
 * Values of keys that causality hides from a whole tile are not looked at, be they NaN.
 *
 * Read first: multiply, weigh, then `run` of attention.cu.
 */

#if DTYPE == 0
#define ELEM float
#elif DTYPE == 2
#define ELEM tn_half
#else
#define ELEM tn_bfloat16
#endif
#if DTYPE == 2
#define tn_pack tn_pack_f16
#else
#define tn_pack tn_pack_bf16
#endif
#define ATT_JOIN2(a, b) a##b
#define ATT_JOIN(a, b)  ATT_JOIN2(a, b)
#define ATT             ATT_JOIN(ENTRY, _parts) /* several such texts may share a program */

namespace ATT
{

typedef ELEM elem;

#if !defined(SEED)
#define SEED a.scalar[0].u
#endif
#if !defined(DRAW)
#define DRAW a.scalar[1].u
#endif
#if !defined(LSE)
#define LSE 1
#endif
#if !defined(DK)
#define DK 1
#endif
#if !defined(DV)
#define DV 1
#endif

enum {
    CHUNK = 16 / (int)sizeof(elem), /* elements that are moved at once */
    DEPTH = 2 * CHUNK,              /* of one product */
    PITCH = HEAD + CHUNK,           /* of rows in shared memory: ldmatrix meets no bank twice; or panels */
    THREADS = 32 * WARPS,
    OWN = 16 * M_TILES,  /* rows of a warp */
    ROWS = OWN * WARPS,  /* of a block */
    N_TILES = COLS / 8,  /* of the scores' columns */
    D_TILES = HEAD / 8,  /* of an output's columns */
    BUF_MASK = 3,
    BUF_O = 3 + (MASK != 0),
    BUF_LSE,
    BUF_PARTS = BUF_LSE + LSE, /* forward */
    BUF_GO = BUF_LSE + 1,
    BUF_DELTA,
    BUF_DQ,
    BUF_DK,
    BUF_DV,
    DIM_Q = 4,
    DIM_K = 7,
    DIM_V = 10,
    DIM_MASK = 13,
    DIM_O = 17,
    DIM_GO = 20,
    DIM_DQ = 23,
    DIM_DK = 26,
    DIM_DV = 29,
    DIM_SPLITS = 32
};

#define ATT_LOG2E 1.44269504088896340736
#define ATT_LN2   0.69314718055994530942

/* ---- operands ---- */

/* One operand of a product in the lanes of a warp; f32 values as the sum of two that TF32 holds. */
template <int N> struct fragment {
    uint32_t high[N];
    uint32_t low[DTYPE == 0 && PRODUCTS == 3 ? N : 1];
};

template <int N> TN_FN void fill(fragment<N> &f, int at, uint32_t bits)
{
#if DTYPE == 0
#if PRODUCTS == 3
    tn_split_tf32(tn_from_bits_f32(bits), f.high[at], f.low[at]);
#else
    f.high[at] = tn_to_tf32(tn_from_bits_f32(bits));
#endif
#else
    f.high[at] = bits;
#endif
}

TN_FN void product(float (&d)[4], const fragment<4> &a, const fragment<2> &b)
{
#if DTYPE == 2
    tn_mma_f16(d, a.high, b.high);
#elif DTYPE == 3
    tn_mma_bf16(d, a.high, b.high);
#else
#if PRODUCTS == 3 /* the small ones first */
    tn_mma_tf32(d, a.low, b.high);
    tn_mma_tf32(d, a.high, b.low);
#endif
    tn_mma_tf32(d, a.high, b.high);
#endif
}

/* 16 rows, DEPTH columns from column `at` on, of a warp's rows in shared memory. */
TN_FN void load_rows(uint32_t (&to)[4], const elem *rows, int at)
{
    const int lane = (int)threadIdx.x % 32;
    tn_ldmatrix(to, rows + (lane & 15) * PITCH + at + (lane >> 4) * CHUNK);
}

/* All of a warp's rows in registers (WHOLE), or read when they are wanted. */
template <bool WHOLE> struct row_operand {
    const elem *rows;
    uint32_t kept[M_TILES][HEAD / DEPTH][4];

    TN_MEMBER void open(const elem *from)
    {
        rows = from;
        TN_UNROLL(int m = 0; m < M_TILES; m++)
            TN_UNROLL(int k = 0; k < HEAD / DEPTH; k++)
                if (WHOLE) load_rows(kept[m][k], rows + m * 16 * PITCH, k * DEPTH);
    }
    TN_MEMBER void get(fragment<4> &f, int m, int k) const
    {
        uint32_t bits[4];
        if (!WHOLE) load_rows(bits, rows + m * 16 * PITCH, k * DEPTH);
        TN_UNROLL(int i = 0; i < 4; i++) fill(f, i, WHOLE ? kept[m][k][i] : bits[i]);
    }
};

template <int N> TN_FN void clear(float (&acc)[M_TILES][N][4])
{
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int n = 0; n < N; n++)
            TN_UNROLL(int e = 0; e < 4; e++) acc[m][n][e] = 0;
}

/* acc[..][n] and [n + 1] += left times the two tiles of eight columns each that lie in `bits`. */
template <int N>
TN_FN void add_products(float (&acc)[M_TILES][N][4], int n, const fragment<4> (&left)[M_TILES], const uint32_t (&bits)[4])
{
    TN_UNROLL(int h = 0; h < 2; h++) {
        fragment<2> right;
        fill(right, 0, bits[2 * h]);
        fill(right, 1, bits[2 * h + 1]);
        TN_UNROLL(int m = 0; m < M_TILES; m++) product(acc[m][n + h], left[m], right);
    }
}

/* s = A Y^T, with Y [COLS, HEAD] in shared memory. */
template <bool WHOLE>
TN_FN void multiply(float (&s)[M_TILES][N_TILES][4], const row_operand<WHOLE> &a, const elem *y)
{
    const int lane = (int)threadIdx.x % 32;
    y += ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * CHUNK;
    clear(s);
    TN_UNROLL(int k = 0; k < HEAD / DEPTH; k++) {
        fragment<4> left[M_TILES];
        TN_UNROLL(int m = 0; m < M_TILES; m++) a.get(left[m], m, k);
        TN_UNROLL(int n = 0; n < N_TILES; n += 2) {
            uint32_t bits[4];
            tn_ldmatrix(bits, y + n * 8 * PITCH + k * DEPTH);
            add_products(s, n, left, bits);
        }
    }
}

/* Makes of an accumulator the left operand of the next product. Of TF32 the sum's index runs in another order, 0 2 4
 * 6 1 3 5 7, which is that of the accumulators; the right operand follows. */
TN_FN void as_operand(fragment<4> &f, const float (&p)[N_TILES][4], int k)
{
#if DTYPE == 0
    fill(f, 0, tn_bits_f32(p[k][0]));
    fill(f, 1, tn_bits_f32(p[k][2]));
    fill(f, 2, tn_bits_f32(p[k][1]));
    fill(f, 3, tn_bits_f32(p[k][3]));
#else
    TN_UNROLL(int i = 0; i < 4; i++)
        f.high[i] = tn_pack(p[2 * k + i / 2][i % 2 * 2], p[2 * k + i / 2][i % 2 * 2 + 1]);
#endif
}

/* acc += P Y, with Y [COLS, HEAD] in shared memory. */
TN_FN void weigh(float (&acc)[M_TILES][D_TILES][4], const float (&p)[M_TILES][N_TILES][4], const elem *y)
{
    const int lane = (int)threadIdx.x % 32;
#if DTYPE == 0
    y += lane % 4 * 2 * PITCH + lane / 4;
#else
    y += (lane & 15) * PITCH + (lane >> 4) * 8;
#endif
    TN_UNROLL(int k = 0; k < COLS / DEPTH; k++) {
        fragment<4> left[M_TILES];
        TN_UNROLL(int m = 0; m < M_TILES; m++) as_operand(left[m], p[m], k);
        TN_UNROLL(int d = 0; d < D_TILES; d += 2) {
            uint32_t bits[4];
#if DTYPE == 0
            TN_UNROLL(int i = 0; i < 4; i++)
                bits[i] = tn_bits_f32(y[(k * DEPTH + i % 2) * PITCH + d * 8 + i / 2 * 8]);
#else
            tn_ldmatrix_trans(bits, y + k * DEPTH * PITCH + d * 8);
#endif
            add_products(acc, d, left, bits);
        }
    }
}

/* ---- memory ---- */

/* A matrix [rows, HEAD] of one head. */
struct matrix {
    elem *at;
    int64_t stride;
    int rows;
    bool aligned; /* its rows begin at multiples of 16 bytes */
};

TN_FN matrix matrix_of(const tn_cuda_args &a, int buf, int dim, int64_t batch, int64_t head, int rows)
{
    matrix m;
    m.at = (elem *)a.buf[buf] + batch * a.dim[dim] + head * a.dim[dim + 1];
    m.stride = a.dim[dim + 2];
    m.rows = rows;
    m.aligned = (((uint64_t)m.at | (uint64_t)m.stride * sizeof(elem)) & 15) == 0;
    return m;
}

/* Where element (row, column) of COUNT rows lies in shared memory. */
template <int COUNT> TN_FN int place_of(int row, int column)
{
#if WGMMA
    return tn_panel_place(COUNT, row, column);
#else
    return row * PITCH + column;
#endif
}

/* COUNT rows from row `first` on, to OF in shared memory, by BY threads; zeros behind the last. They have come when the
 * group of copies has. */
template <int COUNT, int BY = THREADS, int OF = COUNT>
TN_FN void copy_in(elem *to, const matrix &m, int first, int thread = (int)threadIdx.x)
{
#if WGMMA
    enum { ALL = COUNT * (HEAD / CHUNK), EACH = (ALL + BY - 1) / BY, STEP = BY / (HEAD / CHUNK) };
    if (m.aligned) { /* a thread's rows stand STEP apart, a multiple of 8 */
        const int row = thread / (HEAD / CHUNK), column = thread % (HEAD / CHUNK) * CHUNK;
        const elem *from = m.at + (first + row) * m.stride + column;
        /* a row 4 further has its chunks exchanged by fours */
        elem *const at = to + place_of<OF>(row, column), *const other = STEP % 8 ? to + (place_of<OF>(row, column) ^ 32) : at;
        static_assert(STEP % 4 == 0, "rows");
        const int64_t step = STEP * m.stride;
        const int last = m.rows - first - row;
        TN_UNROLL(int n = 0; n < EACH; n++) {
            if (ALL % BY && n * BY + thread >= ALL) break;
            tn_copy_async<16>((n * STEP % 8 ? other : at) + n * STEP * TN_PANEL, from, n * STEP < last);
            from += step;
        }
        return;
    }
#pragma unroll 1 /* rare: little text */
#endif
    for (int i = thread; i < COUNT * (HEAD / CHUNK); i += BY) {
        const int row = i / (HEAD / CHUNK), column = i % (HEAD / CHUNK) * CHUNK;
        const bool there = first + row < m.rows;
        const elem *from = m.at + (there ? (first + row) * m.stride : 0) + column;
        elem *at = to + place_of<OF>(row, column);
        if (m.aligned) {
            tn_copy_async<16>(at, from, there);
        } else {
            TN_UNROLL(int e = 0; e < CHUNK; e++) at[e] = there ? from[e] : elem();
        }
    }
}

/* A warp's accumulators to rows `first` ... of `m`, through `room` in shared memory, the block's rows, its own from `own`
 * on. factor: of each row of an accumulator. */
TN_FN void copy_out(const matrix &m, int first, elem *room, int own, const float (&acc)[M_TILES][D_TILES][4],
                    const float (&factor)[M_TILES][2])
{
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
    TN_UNROLL(int i = 0; i < M_TILES; i++)
        TN_UNROLL(int r = 0; r < 2; r++)
            TN_UNROLL(int d = 0; d < D_TILES; d++) {
                elem *at = room + place_of<ROWS>(own + i * 16 + r * 8 + lane / 4, d * 8 + lane % 4 * 2);
                const float x = acc[i][d][2 * r] * factor[i][r], y = acc[i][d][2 * r + 1] * factor[i][r];
#if DTYPE == 0
                const elem pair[2] = {x, y};
                tn_store(at, pair);
#else
                const uint32_t pair[1] = {tn_pack(x, y)};
                tn_store((uint32_t *)at, pair);
#endif
            }
    __syncwarp();
    for (int i = lane; i < OWN * (HEAD / CHUNK); i += 32) {
        const int row = i / (HEAD / CHUNK), column = i % (HEAD / CHUNK) * CHUNK;
        if (first + row >= m.rows) continue;
        elem *to = m.at + (first + row) * m.stride + column, chunk[CHUNK];
        tn_load(chunk, room + place_of<ROWS>(own + row, column));
        if (m.aligned) {
            tn_store(to, chunk);
        } else {
            TN_UNROLL(int e = 0; e < CHUNK; e++) to[e] = chunk[e];
        }
    }
}

/* ---- scores ---- */

/* The element that a lane's accumulator e of tile n holds: its row's and its column's number in the block. */
TN_FN int row_of(int m, int e)
{
    return (int)threadIdx.x / 32 * OWN + m * 16 + e / 2 * 8 + (int)threadIdx.x % 32 / 4;
}
TN_FN int column_of(int n, int e) { return n * 8 + (int)threadIdx.x % 4 * 2 + e % 2; }

#if MASK == 1
typedef uint8_t mask_elem;
#else
typedef elem mask_elem;
#endif

/* One head's masks and random numbers. */
struct head {
    int tq, tk;
    float scale, power; /* of the scores; the same for powers of 2 */
#if MASK
    const mask_elem *mask;
    int64_t mask_row, mask_column;
#endif
#if DROPOUT
    uint64_t seed, draw, first; /* element of the stream */
    double chance;              /* to be dropped */
    float rest;                 /* what the others are multiplied by */
#endif
};

TN_FN head head_of(const tn_cuda_args &a, int64_t batch, int64_t number)
{
    head h;
    h.tq = (int)a.dim[2];
    h.tk = (int)a.dim[3];
    h.scale = (float)(SCALE);
    h.power = (float)((SCALE)*ATT_LOG2E);
#if MASK
    h.mask = (const mask_elem *)a.buf[BUF_MASK] + batch * a.dim[DIM_MASK] + number * a.dim[DIM_MASK + 1];
    h.mask_row = a.dim[DIM_MASK + 2];
    h.mask_column = a.dim[DIM_MASK + 3];
#endif
#if DROPOUT
    h.seed = SEED;
    h.draw = DRAW;
    h.chance = (float)(DROP_P);
    h.rest = (float)(1 / (1 - (double)(DROP_P)));
    h.first = (uint64_t)(batch * a.dim[1] + number) * (uint64_t)h.tq * (uint64_t)h.tk;
#endif
    return h;
}

/* Returns true where score (i, j), which lies in the matrix, is seen; adds a mask of numbers, times log2 e, to it. */
TN_FN bool seen(const head &h, int i, int j, float &s)
{
    if (CAUSAL && j > i) return false;
#if MASK == 1
    return h.mask[i * h.mask_row + j * h.mask_column] != 0;
#elif MASK == 2
#if DTYPE == 0
    const float x = h.mask[i * h.mask_row + j * h.mask_column];
#elif DTYPE == 2
    const float x = tn_half_to_f32(h.mask[i * h.mask_row + j * h.mask_column]);
#else
    const float x = tn_bfloat16_to_f32(h.mask[i * h.mask_row + j * h.mask_column]);
#endif
    /* the lowest numbers, which programs take for minus infinity, stay finite */
    const float most = 3e38f, bits = x * (float)ATT_LOG2E;
    s += bits < -most && x > -TN_INF ? -most : bits;
    return true;
#else
    return true;
#endif
}

#if DROPOUT
TN_FN uint32_t kept(const head &h, uint32_t random) { return tn_dropped(random, h.chance) ? 0 : 1; }

/* Bit e: accumulator e's element is kept. (i, j) is the position of e = 0, whose rows are queries, or with
 * TURNED keys; e = 1 is a column further, e = 2 eight rows. Four keys of a query share a Philox block: where
 * their number is a multiple of four, each lane computes one block for itself and its neighbours. */
template <bool TURNED> TN_FN uint32_t keep_bits(const head &h, int i, int j)
{
    uint32_t bits = 0;
    if (h.tk % 4) {
        TN_UNROLL(int e = 0; e < 4; e++) {
            const int64_t query = i + (TURNED ? e % 2 : e / 2 * 8), key = j + (TURNED ? e / 2 * 8 : e % 2);
            bits |= kept(h, tn_philox_u32(h.seed, h.draw, h.first + (uint64_t)(query * h.tk + key))) << e;
        }
        return bits;
    }
    uint32_t w[4];
    if (TURNED) { /* the lanes of keys j & ~3 ..+3 hold four blocks: of two queries, and of keys 8 further */
        const int mine = j & 3;
        const int64_t query = i + (mine & 1), key = (j & ~3) + (mine >> 1) * 8;
        tn_philox_block(h.seed, h.draw, (h.first + (uint64_t)(query * h.tk + key)) / 4, w);
        TN_UNROLL(int d = 0; d < 4; d++) {
            const int other = mine ^ d;
            uint32_t word = other & 2 ? (other & 1 ? w[3] : w[2]) : (other & 1 ? w[1] : w[0]);
            if (d) word = tn_xor_lane(word, d * 4);
            bits |= kept(h, word) << other;
        }
        return bits;
    }
    const bool odd = (j & 2) != 0; /* the neighbour's blocks are the same: one of the row, one 8 rows on */
    const int64_t query = i + (odd ? 8 : 0), key = j & ~3;
    tn_philox_block(h.seed, h.draw, (h.first + (uint64_t)(query * h.tk + key)) / 4, w);
    const uint32_t x = tn_xor_lane(odd ? w[0] : w[2], 1), y = tn_xor_lane(odd ? w[1] : w[3], 1);
    bits = kept(h, odd ? x : w[0]) | kept(h, odd ? y : w[1]) << 1;
    return bits | kept(h, odd ? w[2] : x) << 2 | kept(h, odd ? w[3] : y) << 3;
}
#endif

TN_FN int least(int a, int b) { return a < b ? a : b; }
