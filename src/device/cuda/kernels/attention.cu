/* attention.cu - softmax(scale * q k^T + mask) v and its gradients on tensor cores, without the tq x tk scores
 * ever being in memory (Dao, Fu, Ermon, Rudra, Re: FlashAttention, 2022; Dao: FlashAttention-2, 2023).
 *
 * A block owns ROWS rows of the scores' one side, a warp M_TILES times 16 of them. Tiles of COLS rows of the
 * other side stream through a pipeline of STAGES tiles in shared memory (cp.async). A tile's scores are the
 * accumulators of one product and, with no way through memory, the first operand of the next:
 *
 *   PASS 0  forward   rows: queries   o   = sum P v          P online: a running maximum and sum of each row
 *   PASS 1  delta     delta = sum of o * go along a row
 *   PASS 2  dk, dv    rows: keys      dv += P^T go           dk += dS^T q      P = exp(s - lse), transposed
 *   PASS 3  dq        rows: queries   dq += dS k             dS = P * (go v^T - delta)
 *
 * Nothing is added by two blocks and no sum depends on an order in time: the same bits in each run. Tiles
 * that causality hides from a block are not visited; tests of single elements are made only in tiles that
 * the diagonal or the end of the keys crosses.
 *
 * In front of this text stand ptx.cuh and, as #define:
 *   ENTRY     the kernel's name                  PASS     as above
 *   DTYPE     0 f32, 2 f16, 3 bf16               PRODUCTS 3: f32 as three products of TF32; 1: as one
 *   HEAD      32, 64, 96 or 128                  SCALE    not 0
 *   CAUSAL    1: key j is seen by query i where j <= i
 *   MASK      0 none, 1 bool (true: is seen), 2 of the dtype, added to the scaled scores
 *   DROPOUT   1: P is dropped as a RANDOM node of shape [batch, heads, tq, tk] says, element
 *             ((b * heads + h) * tq + i) * tk + j of the stream of SEED and DRAW; DROP_P is its chance to be
 *             dropped
 *   WARPS, M_TILES, COLS, STAGES, A_REGS         of fu_flash_tile (fuser/attention_cuda.h)
 * SCALE, DROP_P, SEED and DRAW are literals or expressions over the kernel's `a`; SEED and DRAW may be left out
 * and are scalar[0].u and scalar[1].u then. LSE 0 leaves lse out of pass 0, DK 0 or DV 0 that result of pass 2.
 *
 * buf     q, k, v, [mask], o, lse;  backward goes on with  go, delta, dq, dk, dv. Of these pass 1 touches o, lse,
 *         go, delta, pass 2 all but o and dq, pass 3 all but o, dk and dv: the others may be any, or missing
 *         where none follows
 * dim     0 batch  1 heads  2 tq  3 tk, all >= 1, then strides in elements, of (batch, head, row), columns
 *         are dense: 4 q  7 k  10 v  17 o  20 go  23 dq  26 dk  29 dv;  13 mask, of (batch, head, row, column)
 * lse     f32 [batch, heads, tq], the natural logarithm of the sum of the exponentials; delta likewise
 *
 * A row that sees nothing is NaN, and makes dv NaN, as softmax by its definition gives. Values of keys that
 * causality hides from a whole tile are not looked at, be they NaN.
 *
 * Read first: multiply, weigh, then forward.
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
    PITCH = HEAD + CHUNK,           /* of rows in shared memory: ldmatrix meets no bank twice */
    THREADS = 32 * WARPS,
    OWN = 16 * M_TILES,  /* rows of a warp */
    ROWS = OWN * WARPS,  /* of a block */
    N_TILES = COLS / 8,  /* of the scores' columns */
    D_TILES = HEAD / 8,  /* of an output's columns */
    BUF_MASK = 3,
    BUF_O = 3 + (MASK != 0),
    BUF_LSE,
    BUF_GO,
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
    DIM_DV = 29
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
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int k = 0; k < HEAD / DEPTH; k++)
                if (WHOLE) load_rows(kept[m][k], rows + m * 16 * PITCH, k * DEPTH);
    }
    TN_MEMBER void get(fragment<4> &f, int m, int k) const
    {
        uint32_t bits[4];
        if (!WHOLE) load_rows(bits, rows + m * 16 * PITCH, k * DEPTH);
#pragma unroll
        for (int i = 0; i < 4; i++) fill(f, i, WHOLE ? kept[m][k][i] : bits[i]);
    }
};

/* s = A Y^T, with Y [COLS, HEAD] in shared memory. */
template <bool WHOLE>
TN_FN void multiply(float (&s)[M_TILES][N_TILES][4], const row_operand<WHOLE> &a, const elem *y)
{
    const int lane = (int)threadIdx.x % 32;
    y += ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * CHUNK;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] = 0;
#pragma unroll
    for (int k = 0; k < HEAD / DEPTH; k++) {
        fragment<4> left[M_TILES];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) a.get(left[m], m, k);
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            uint32_t bits[4];
            tn_ldmatrix(bits, y + n * 8 * PITCH + k * DEPTH);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                fragment<2> right;
                fill(right, 0, bits[2 * h]);
                fill(right, 1, bits[2 * h + 1]);
#pragma unroll
                for (int m = 0; m < M_TILES; m++) product(s[m][n + h], left[m], right);
            }
        }
    }
}

/* What lies in an accumulator, as the left operand of the next product. Of TF32 the sum's index runs in
 * another order, 0 2 4 6 1 3 5 7, which is that of the accumulators; the right operand follows. */
TN_FN void as_operand(fragment<4> &f, const float (&p)[N_TILES][4], int k)
{
#if DTYPE == 0
    fill(f, 0, tn_bits_f32(p[k][0]));
    fill(f, 1, tn_bits_f32(p[k][2]));
    fill(f, 2, tn_bits_f32(p[k][1]));
    fill(f, 3, tn_bits_f32(p[k][3]));
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
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
#pragma unroll
    for (int k = 0; k < COLS / DEPTH; k++) {
        fragment<4> left[M_TILES];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) as_operand(left[m], p[m], k);
#pragma unroll
        for (int d = 0; d < D_TILES; d += 2) {
            uint32_t bits[4];
#if DTYPE == 0
#pragma unroll
            for (int i = 0; i < 4; i++)
                bits[i] = tn_bits_f32(y[(k * DEPTH + i % 2) * PITCH + d * 8 + i / 2 * 8]);
#else
            tn_ldmatrix_trans(bits, y + k * DEPTH * PITCH + d * 8);
#endif
#pragma unroll
            for (int h = 0; h < 2; h++) {
                fragment<2> right;
                fill(right, 0, bits[2 * h]);
                fill(right, 1, bits[2 * h + 1]);
#pragma unroll
                for (int m = 0; m < M_TILES; m++) product(acc[m][d + h], left[m], right);
            }
        }
    }
}

TN_FN void clear(float (&acc)[M_TILES][D_TILES][4])
{
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int d = 0; d < D_TILES; d++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[m][d][e] = 0;
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

/* COUNT rows from row `first` on; zeros behind the last. They have come when the group of copies has. */
template <int COUNT> TN_FN void copy_in(elem *to, const matrix &m, int first)
{
    for (int i = (int)threadIdx.x; i < COUNT * (HEAD / CHUNK); i += THREADS) {
        const int row = i / (HEAD / CHUNK), column = i % (HEAD / CHUNK) * CHUNK;
        const bool there = first + row < m.rows;
        const elem *from = m.at + (there ? (first + row) * m.stride : 0) + column;
        elem *at = to + row * PITCH + column;
        if (m.aligned) {
            tn_copy_async<16>(at, from, there);
        } else {
#pragma unroll
            for (int e = 0; e < CHUNK; e++) at[e] = there ? from[e] : elem();
        }
    }
}

/* A warp's accumulators to its rows of `m`, through `room`, its rows in shared memory. factor: of each row
 * of an accumulator. */
TN_FN void copy_out(const matrix &m, int first, elem *room, const float (&acc)[M_TILES][D_TILES][4],
                    const float (&factor)[M_TILES][2])
{
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < M_TILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int d = 0; d < D_TILES; d++) {
                elem *at = room + (i * 16 + r * 8 + lane / 4) * PITCH + d * 8 + lane % 4 * 2;
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
        tn_load(chunk, room + row * PITCH + column);
        if (m.aligned) {
            tn_store(to, chunk);
        } else {
#pragma unroll
            for (int e = 0; e < CHUNK; e++) to[e] = chunk[e];
        }
    }
}

/* ---- scores ---- */

/* Which element a lane's accumulator e of tile n holds: its row's and its column's number in the block. */
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

/* Whether score (i, j), which is there, is seen; adds a mask of numbers, times log2 e, to it. */
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
#pragma unroll
        for (int e = 0; e < 4; e++) {
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
#pragma unroll
        for (int d = 0; d < 4; d++) {
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

#if PASS == 0

/* ---- forward ---- */

/* Scores are kept such that this factor > 0 times them is what 2 is raised to. */
TN_FN float factor_of(const head &h) { return MASK == 2 ? 1.0f : fabsf(h.power); }

/* Masks a tile's scores. */
TN_FN void see(float (&s)[M_TILES][N_TILES][4], const head &h, int row, int column)
{
    const bool whole = column + COLS <= h.tk && !(CAUSAL && column + COLS - 1 > row + row_of(0, 0));
    const bool test = __any_sync(0xffffffffu, !whole);
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &x = s[m][n][e];
                if (MASK == 2)
                    x *= h.power;
                else
                    x = h.power < 0 ? -x : x;
                if (!MASK && !test) continue;
                const int i = row + row_of(m, e), j = column + column_of(n, e);
                if (j >= h.tk || (i < h.tq && !seen(h, i, j, x))) x = -TN_INF;
            }
}

/* The scores become their exponentials; `top`, the power that stands for 1, and `sum` are the rows' own. What
 * was summed before is made to fit. */
TN_FN void exponentials(float (&s)[M_TILES][N_TILES][4], float (&acc)[M_TILES][D_TILES][4],
                        float (&top)[M_TILES][2], float (&sum)[M_TILES][2], float factor)
{
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = s[m][0][2 * r];
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                most = fmaxf(most, s[m][n][2 * r]);
                most = fmaxf(most, s[m][n][2 * r + 1]);
            }
            most = fmaxf(most, tn_xor_lane(most, 1));
            most = fmaxf(most, tn_xor_lane(most, 2));
            const float now = fmaxf(top[m][r], most * factor);
            const float base = now == -TN_INF ? 0 : now; /* nothing was seen so far */
            const float fit = tn_exp2_fast(top[m][r] - base);
            top[m][r] = now;
            float part = 0;
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    s[m][n][e] = tn_exp2_fast(fmaf(s[m][n][e], factor, -base));
                    part += s[m][n][e];
                }
            sum[m][r] = sum[m][r] * fit + part;
#pragma unroll
            for (int d = 0; d < D_TILES; d++) {
                acc[m][d][2 * r] *= fit;
                acc[m][d][2 * r + 1] *= fit;
            }
        }
}

TN_FN void forward(const tn_cuda_args &a)
{
    const int tq = (int)a.dim[2], tk = (int)a.dim[3];
    const int blocks = (tq + ROWS - 1) / ROWS; /* of a head */
    const int64_t pair = blockIdx.x / (unsigned)blocks, batch = pair / a.dim[1], number = pair % a.dim[1];
    const int turn = (int)(blockIdx.x % (unsigned)blocks);
    const int row = (CAUSAL ? blocks - 1 - turn : turn) * ROWS; /* the longest first */
    const matrix q = matrix_of(a, 0, DIM_Q, batch, number, tq);
    const matrix k = matrix_of(a, 1, DIM_K, batch, number, tk);
    const matrix v = matrix_of(a, 2, DIM_V, batch, number, tk);
    const head h = head_of(a, batch, number);
    const int last = CAUSAL ? least(tk, row + ROWS) : tk, tiles = (last + COLS - 1) / COLS;

    elem *room = (elem *)tn_dynamic_shared(), *stage = room + ROWS * PITCH;
    elem *mine = room + row_of(0, 0) / OWN * OWN * PITCH; /* the warp's rows */
    copy_in<ROWS>(room, q, row);
    tn_copy_commit();
#pragma unroll
    for (int t = 0; t < STAGES - 1; t++) {
        if (t < tiles) {
            copy_in<COLS>(stage + 2 * t * COLS * PITCH, k, t * COLS);
            copy_in<COLS>(stage + (2 * t + 1) * COLS * PITCH, v, t * COLS);
        }
        tn_copy_commit();
    }
    tn_copy_wait<STAGES - 1>();
    __syncthreads();
    row_operand<A_REGS != 0> left;
    left.open(mine);

    float acc[M_TILES][D_TILES][4], top[M_TILES][2], sum[M_TILES][2];
    clear(acc);
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[m][r] = -TN_INF;
            sum[m][r] = 0;
        }
    for (int t = 0, slot = 0; t < tiles; t++) {
        tn_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile has come for all, and all are done with the one before */
        const int next = t + STAGES - 1, place = slot == 0 ? STAGES - 1 : slot - 1;
        if (next < tiles) {
            copy_in<COLS>(stage + 2 * place * COLS * PITCH, k, next * COLS);
            copy_in<COLS>(stage + (2 * place + 1) * COLS * PITCH, v, next * COLS);
        }
        tn_copy_commit();
        const elem *keys = stage + 2 * slot * COLS * PITCH, *values = keys + COLS * PITCH;
        float s[M_TILES][N_TILES][4];
        multiply(s, left, keys);
        see(s, h, row, t * COLS);
        exponentials(s, acc, top, sum, factor_of(h));
#if DROPOUT
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                const uint32_t bits = keep_bits<false>(h, row + row_of(m, 0), t * COLS + column_of(n, 0));
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!(bits >> e & 1)) s[m][n][e] = 0;
            }
#endif
        weigh(acc, s, values);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }

    float inverse[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float all = sum[m][r];
            all += tn_xor_lane(all, 1);
            all += tn_xor_lane(all, 2);
            inverse[m][r] = 1 / all; /* of a row that sees nothing infinite, and 0 times that is NaN */
#if DROPOUT
            inverse[m][r] *= h.rest;
#endif
#if LSE
            const int i = row + row_of(m, 2 * r);
            const float power = top[m][r] * (float)ATT_LN2 + tn_log_f32(all);
            float *lse = (float *)a.buf[BUF_LSE] + pair * tq;
            if ((int)threadIdx.x % 4 == 0 && i < tq) lse[i] = top[m][r] == -TN_INF ? TN_NAN : power;
#endif
        }
    copy_out(matrix_of(a, BUF_O, DIM_O, batch, number, tq), row + row_of(0, 0) / OWN * OWN, mine, acc, inverse);
}

#elif PASS == 1

/* ---- delta ---- */

/* A row is summed by TEAM lanes. Where the row saw nothing delta is 0, so that what a mask hid has a
 * gradient of 0 there too. */
TN_FN void delta(const tn_cuda_args &a)
{
    enum { CHUNKS = HEAD / CHUNK, TEAM = CHUNKS % 8 ? 4 : 8 };
    const int64_t tq = a.dim[2], rows = a.dim[0] * a.dim[1] * tq;
    const int64_t row = (int64_t)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    const bool there = row < rows;
    const int64_t pair = there ? row / tq : 0, batch = pair / a.dim[1], number = pair % a.dim[1];
    const int64_t i = there ? row % tq : 0;
    const matrix o = matrix_of(a, BUF_O, DIM_O, batch, number, (int)tq);
    const matrix go = matrix_of(a, BUF_GO, DIM_GO, batch, number, (int)tq);
    float sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS / TEAM; c++) {
        const int column = (c * TEAM + (int)threadIdx.x % TEAM) * CHUNK;
        elem x[CHUNK], y[CHUNK];
        const elem *from = o.at + i * o.stride + column, *other = go.at + i * go.stride + column;
        if (o.aligned && go.aligned) {
            tn_load(x, from);
            tn_load(y, other);
        } else {
#pragma unroll
            for (int e = 0; e < CHUNK; e++) {
                x[e] = from[e];
                y[e] = other[e];
            }
        }
#pragma unroll
        for (int e = 0; e < CHUNK; e++)
#if DTYPE == 0
            sum += x[e] * y[e];
#elif DTYPE == 2
            sum += tn_half_to_f32(x[e]) * tn_half_to_f32(y[e]);
#else
            sum += tn_bfloat16_to_f32(x[e]) * tn_bfloat16_to_f32(y[e]);
#endif
    }
    sum = tn_lanes_reduce<tn_sum_of, TEAM>(sum);
    if (!there || threadIdx.x % TEAM) return;
    const float lse = ((const float *)a.buf[BUF_LSE])[row];
    ((float *)a.buf[BUF_DELTA])[row] = lse == lse ? sum : 0;
}

#else

/* ---- dk, dv and dq ---- */

/* Of the rows and of the columns: which operands the two products of a tile take. */
enum { TURNED = PASS == 2, STAGE = 2 * COLS * PITCH * (int)sizeof(elem) + (TURNED ? 2 * COLS * 4 : 0) };

/* One tile of the side that streams: its two matrices, and with TURNED the columns' lse and delta. */
struct stream {
    matrix first, second;
    const float *lse, *delta;
    int tq;
};

TN_FN void copy_stage(char *to, const stream &from, int at)
{
    copy_in<COLS>((elem *)to, from.first, at);
    copy_in<COLS>((elem *)to + COLS * PITCH, from.second, at);
    if (!TURNED) return;
    float *numbers = (float *)(to + 2 * COLS * PITCH * (int)sizeof(elem));
    for (int i = (int)threadIdx.x; i < 2 * COLS; i += THREADS) {
        const int query = at + i % COLS;
        const bool there = query < from.tq;
        tn_copy_async<4>(numbers + i, (i < COLS ? from.lse : from.delta) + (there ? query : 0), there);
    }
}

/* From the scores and go v^T of a tile: P in s, as dv takes it, and dS in g, but for the scale. */
TN_FN void differentiate(float (&s)[M_TILES][N_TILES][4], float (&g)[M_TILES][N_TILES][4], const head &h,
                         int row, int column, const float *numbers, const float (&row_lse)[M_TILES][2],
                         const float (&row_delta)[M_TILES][2])
{
    const int top = row + row_of(0, 0), end = column + COLS;
    const bool crossed = CAUSAL && (TURNED ? column < top + OWN - 1 : end - 1 > top);
    const bool test = __any_sync(0xffffffffu, crossed || (!TURNED && end > h.tk));
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            const int r = row + row_of(m, 0), c = column + column_of(n, 0);
#if DROPOUT
            const uint32_t bits = keep_bits<TURNED>(h, TURNED ? c : r, TURNED ? r : c);
#endif
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int i = TURNED ? column + column_of(n, e) : row + row_of(m, e);
                const int j = TURNED ? row + row_of(m, e) : column + column_of(n, e);
                const float lse = TURNED ? numbers[column_of(n, e)] : row_lse[m][e / 2];
                const float delta = TURNED ? numbers[COLS + column_of(n, e)] : row_delta[m][e / 2];
                float x = s[m][n][e] * h.power, dp = PASS == 3 || DK ? g[m][n][e] : 0;
                bool visible = true;
                if (MASK || test) visible = j < h.tk && (i >= h.tq || seen(h, i, j, x));
                const float p = visible ? tn_exp2_fast(x - lse * (float)ATT_LOG2E) : 0;
#if DROPOUT
                const float keep = bits >> e & 1 ? h.rest : 0;
                s[m][n][e] = p * keep;
                dp *= keep;
#else
                s[m][n][e] = p;
#endif
                g[m][n][e] = p * (dp - delta);
            }
        }
}

/* Whether a query of the head saw nothing: its P is NaN for every key, and so is all of dv. */
TN_FN bool any_blind(const float *lse, int tq, float *room)
{
    bool found = false;
    for (int i = (int)threadIdx.x; i < tq; i += THREADS) found |= lse[i] != lse[i];
    found = __any_sync(0xffffffffu, found);
    __syncthreads(); /* the room is free */
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = found ? 1.0f : 0.0f;
    __syncthreads();
    found = false;
#pragma unroll
    for (int w = 0; w < WARPS; w++) found |= room[w] != 0;
    return found;
}

TN_FN void backward(const tn_cuda_args &a)
{
    const int tq = (int)a.dim[2], tk = (int)a.dim[3], side = TURNED ? tk : tq;
    const int blocks = (side + ROWS - 1) / ROWS;
    const int64_t pair = blockIdx.x / (unsigned)blocks, batch = pair / a.dim[1], number = pair % a.dim[1];
    const int turn = (int)(blockIdx.x % (unsigned)blocks);
    const int row = (CAUSAL && !TURNED ? blocks - 1 - turn : turn) * ROWS; /* the longest first */
    const matrix q = matrix_of(a, 0, DIM_Q, batch, number, tq);
    const matrix k = matrix_of(a, 1, DIM_K, batch, number, tk);
    const matrix v = matrix_of(a, 2, DIM_V, batch, number, tk);
    const matrix go = matrix_of(a, BUF_GO, DIM_GO, batch, number, tq);
    const head h = head_of(a, batch, number);
    const float *lse = (const float *)a.buf[BUF_LSE] + pair * tq;
    const float *delta = (const float *)a.buf[BUF_DELTA] + pair * tq;
    const stream from = {TURNED ? q : k, TURNED ? go : v, lse, delta, tq};
    const int begin = CAUSAL && TURNED ? row / COLS * COLS : 0;
    const int end = TURNED ? tq : CAUSAL ? least(tk, row + ROWS) : tk;
    const int tiles = end > begin ? (end - begin + COLS - 1) / COLS : 0;

    elem *room = (elem *)tn_dynamic_shared();
    char *stage = (char *)(room + 2 * ROWS * PITCH);
    const int own = row_of(0, 0) / OWN * OWN; /* the warp's rows */
    copy_in<ROWS>(room, TURNED ? k : q, row);
    copy_in<ROWS>(room + ROWS * PITCH, TURNED ? v : go, row);
    tn_copy_commit();
#pragma unroll
    for (int t = 0; t < STAGES - 1; t++) {
        if (t < tiles) copy_stage(stage + t * STAGE, from, begin + t * COLS);
        tn_copy_commit();
    }
    tn_copy_wait<STAGES - 1>();
    __syncthreads();
    row_operand<A_REGS != 0> first, second;
    first.open(room + own * PITCH);
    second.open(room + (ROWS + own) * PITCH);

    float by_first[M_TILES][D_TILES][4]; /* dq or dk */
#if PASS == 2 && DV
    float by_second[M_TILES][D_TILES][4];
    clear(by_second);
#endif
    float row_lse[M_TILES][2], row_delta[M_TILES][2];
    clear(by_first);
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = row + row_of(m, 2 * r);
            row_lse[m][r] = !TURNED && i < tq ? lse[i] : 0;
            row_delta[m][r] = !TURNED && i < tq ? delta[i] : 0;
        }
    for (int t = 0, slot = 0; t < tiles; t++) {
        tn_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile has come for all, and all are done with the one before */
        const int next = t + STAGES - 1, place = slot == 0 ? STAGES - 1 : slot - 1;
        if (next < tiles) copy_stage(stage + place * STAGE, from, begin + next * COLS);
        tn_copy_commit();
        const elem *y = (const elem *)(stage + slot * STAGE), *z = y + COLS * PITCH;
        float s[M_TILES][N_TILES][4], g[M_TILES][N_TILES][4];
        multiply(s, first, y);
#if PASS == 3 || DK
        multiply(g, second, z);
#endif
        differentiate(s, g, h, row, begin + t * COLS, (const float *)(z + COLS * PITCH), row_lse, row_delta);
#if PASS == 2 && DV
        weigh(by_second, s, z);
#endif
#if PASS == 3 || DK
        weigh(by_first, g, y);
#endif
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }

    float factor[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; m++) factor[m][0] = factor[m][1] = h.scale;
#if PASS == 3
    copy_out(matrix_of(a, BUF_DQ, DIM_DQ, batch, number, tq), row + own, room + own * PITCH, by_first, factor);
#else
#if DK
    copy_out(matrix_of(a, BUF_DK, DIM_DK, batch, number, tk), row + own, room + own * PITCH, by_first, factor);
#endif
#if DV
    const bool blind = any_blind(lse, tq, (float *)stage);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) factor[m][0] = factor[m][1] = blind ? TN_NAN : 1.0f;
    copy_out(matrix_of(a, BUF_DV, DIM_DV, batch, number, tk), row + own, room + (ROWS + own) * PITCH, by_second,
             factor);
#endif
#endif
}

#endif

} /* namespace */

/* With two blocks on a processor as the aim the compiler uses all 255 registers before it spills. */
#define KERNEL extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) ENTRY(const tn_cuda_args a)
KERNEL
{
#if PASS == 0
    ATT::forward(a);
#elif PASS == 1
    ATT::delta(a);
#else
    ATT::backward(a);
#endif
}

/* Another such text may follow. */
#undef KERNEL
#undef ELEM
#undef tn_pack
#undef ATT
#undef ATT_JOIN
#undef ATT_JOIN2
#undef ATT_LOG2E
#undef ATT_LN2
#undef ENTRY
#undef PASS
#undef DTYPE
#undef PRODUCTS
#undef HEAD
#undef CAUSAL
#undef MASK
#undef DROPOUT
#undef DROP_P
#undef SEED
#undef LSE
#undef DK
#undef DV
#undef DRAW
#undef SCALE
#undef WARPS
#undef M_TILES
#undef COLS
#undef STAGES
#undef A_REGS
