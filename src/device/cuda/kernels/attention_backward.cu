/* attention_backward.cu - the gradients of attention on tensor cores, what attention_begin.cuh calls PASS 1 to 3.
 *
 *   PASS 1  delta     delta = sum of o * go along a row
 *   PASS 2  dk, dv    rows: keys      dv += P^T go           dk += dS^T q      P = exp(s - lse), transposed
 *   PASS 3  dq        rows: queries   dq += dS k             dS = P * (go v^T - delta)
 *
 * Of a row that saw nothing lse is infinite, and its P 0; or NaN with STRICT, then so are its P and all of dv.
 *
 * Read first: differentiate, then the second run.
 */

#if PASS == 1

/* ---- delta ---- */

/* A row is summed by TEAM lanes. Where lse is NaN delta is 0, so that what a mask hid has a gradient of 0 there
 * too. */
TN_FN void run(const tn_cuda_args &a)
{
    enum { CHUNKS = HEAD / CHUNK, TEAM = CHUNKS % 8 ? 4 : 8 };
    const int64_t tq = a.dim[2], rows = a.dim[0] * a.dim[1] * tq;
    const int64_t row = (int64_t)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    const bool there = row < rows;
    uint32_t *counts = (uint32_t *)a.buf[BUF_DELTA + 1]; /* for attention_wgmma_backward.cu */
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.dim[DIM_SPLITS]; i += gridDim.x * THREADS)
        counts[i] = 0;
    const int64_t pair = there ? row / tq : 0, batch = pair / a.dim[1], number = pair % a.dim[1];
    const int64_t i = there ? row % tq : 0;
    const matrix o = matrix_of(a, BUF_O, DIM_O, batch, number, (int)tq);
    const matrix go = matrix_of(a, BUF_GO, DIM_GO, batch, number, (int)tq);
    float sum = 0;
    TN_UNROLL(int c = 0; c < CHUNKS / TEAM; c++) {
        const int column = (c * TEAM + (int)threadIdx.x % TEAM) * CHUNK;
        elem x[CHUNK], y[CHUNK];
        const elem *from = o.at + i * o.stride + column, *other = go.at + i * go.stride + column;
        if (o.aligned && go.aligned) {
            tn_load(x, from);
            tn_load(y, other);
        } else {
            TN_UNROLL(int e = 0; e < CHUNK; e++) {
                x[e] = from[e];
                y[e] = other[e];
            }
        }
        TN_UNROLL(int e = 0; e < CHUNK; e++)
#if DTYPE == 0
            sum = fmaf(x[e], y[e], sum);
#elif DTYPE == 2
            sum = fmaf(tn_half_to_f32(x[e]), tn_half_to_f32(y[e]), sum);
#else
            sum = fmaf(tn_bfloat16_to_f32(x[e]), tn_bfloat16_to_f32(y[e]), sum);
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
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int n = 0; n < N_TILES; n++) {
            const int r = row + row_of(m, 0), c = column + column_of(n, 0);
#if DROPOUT
            const uint32_t bits = keep_bits<TURNED>(h, TURNED ? c : r, TURNED ? r : c);
#endif
            TN_UNROLL(int e = 0; e < 4; e++) {
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
                if (STRICT && MASK && !visible) g[m][n][e] = 0; /* though the gradient of o be NaN */
            }
        }
}

/* Returns true where a query of the head saw nothing: its P is NaN for every key, and so is all of dv. */
TN_FN bool any_blind(const float *lse, int tq, float *room)
{
    bool found = false;
    for (int i = (int)threadIdx.x; i < tq; i += THREADS) found |= lse[i] != lse[i];
    found = __any_sync(0xffffffffu, found);
    __syncthreads(); /* the room is free */
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = found ? 1.0f : 0.0f;
    __syncthreads();
    found = false;
    TN_UNROLL(int w = 0; w < WARPS; w++) found |= room[w] != 0;
    return found;
}

TN_FN void run(const tn_cuda_args &a)
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
    TN_UNROLL(int t = 0; t < STAGES - 1; t++) {
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
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int r = 0; r < 2; r++) {
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
    TN_UNROLL(int m = 0; m < M_TILES; m++) factor[m][0] = factor[m][1] = h.scale;
#if PASS == 3
    copy_out(matrix_of(a, BUF_DQ, DIM_DQ, batch, number, tq), row + own, room, own, by_first, factor);
#else
#if DK
    copy_out(matrix_of(a, BUF_DK, DIM_DK, batch, number, tk), row + own, room, own, by_first, factor);
#endif
#if DV
    const bool blind = STRICT && any_blind(lse, tq, (float *)stage);
    TN_UNROLL(int m = 0; m < M_TILES; m++) factor[m][0] = factor[m][1] = blind ? TN_NAN : 1.0f;
    copy_out(matrix_of(a, BUF_DV, DIM_DV, batch, number, tk), row + own, room + ROWS * PITCH, own,
             by_second, factor);
#endif
#endif
}

#endif
