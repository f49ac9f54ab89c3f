/* attention_wgmma_backward.cu - the gradients of q, k and v in one pass with the products of warpgroups
 * (wgmma.cuh), for 16-bit types and heads of 64 and 128, without mask and dropout, for which there is no room in registers; PASS 2 of what
 * attention_begin.cuh describes. Behind attention_warpgroup.cuh.
 *
 * A block of two warpgroups owns 128 keys, a warpgroup 64 of them; tiles of queries stream by, the last first.
 * Five products a tile:
 *
 *   s = k q^T    g = v go^T    dv += p go    dk += ds q    dq += ds^T k
 *
 * where p and ds are those of attention_backward.cu, transposed. ds goes through shared memory to the
 * last product, of which each warpgroup has 64 queries and 64 columns, and which adds to what other blocks have
 * of the same queries. While that is stored the scores of the next tile are computed.
 *
 * What a warp has of dq is added in the order of the keys: a count of who has been there stands in front of
 * the sums, and a warp waits for its turn. Blocks are numbered as they begin, so that those who are waited
 * for have begun; and all take the queries in the same order, so that a wait is short. The first one
 * stores, the last one writes the result. Pass 1 has cleared the counts.
 *
 *   sums   u32 [dim 32], of which batch * heads * tiles * WARPS are counts; then f32, for each of these the 16 x 64
 *          sums in the order of the warp's registers: [8][lane][4]
 *
 * Read first: run.
 */

enum { BUF_SUMS = BUF_DV + 1, DQ_TILES = TN_PANEL / 8, NUMBERS = 2 * COLS, BLOCK_BYTES = 256 };

/* What a block has: its head, its keys, and the tiles of queries that see them, from `end` backwards. It stands in
 * shared memory, since all registers are taken. */
struct block_keys {
    int64_t pair, batch, number;
    int index, blocks, row; /* of its head's keys: the block's number, of how many, its first key */
    int end, tiles;
    matrix q, go, dq;
    const float *lse, *delta;
    head h;
};

/* By one thread. */
TN_FN void take_keys(const tn_cuda_args &a, block_keys &b)
{
    const unsigned number = atomicAdd(a.ticket, 1u); /* in the order of their beginning */
    if (number == gridDim.x - 1) *a.ticket = 0;
    const int tq = (int)a.dim[2], tk = (int)a.dim[3];
    b.blocks = (tk + ROWS - 1) / ROWS;
    b.pair = number / (unsigned)b.blocks, b.batch = b.pair / a.dim[1], b.number = b.pair % a.dim[1];
    b.index = (int)(number % (unsigned)b.blocks), b.row = b.index * ROWS;
    b.end = (tq + COLS - 1) / COLS;
    b.tiles = b.end - (CAUSAL ? least(b.end, b.row / COLS) : 0);
    b.q = matrix_of(a, 0, DIM_Q, b.batch, b.number, tq);
    b.go = matrix_of(a, BUF_GO, DIM_GO, b.batch, b.number, tq);
    b.dq = matrix_of(a, BUF_DQ, DIM_DQ, b.batch, b.number, tq);
    b.lse = (const float *)a.buf[BUF_LSE] + b.pair * tq;
    b.delta = (const float *)a.buf[BUF_DELTA] + b.pair * tq;
    b.h = head_of(a, b.batch, b.number);
}

TN_FN void copy_stage(elem *to, float *numbers, const block_keys &b, int at)
{
    const int i = (int)threadIdx.x;
    copy_in<COLS>(to, b.q, at);
    copy_in<COLS>(to + TILE, b.go, at);
    if (NUMBERS >= THREADS || i < NUMBERS) {
        const int query = at + i % COLS;
        const bool there = query < b.h.tq;
        tn_copy_async<4>(numbers + i, (i < COLS ? b.lse : b.delta) + (there ? query : 0), there);
    }
}

/* The scores become their probabilities. lse: the lane's own, as delta below. */
TN_FN void probabilities(float (&s)[N_TILES][4], const head &h, int row, int column, const float *lse)
{
    const bool test = (CAUSAL && column < row + ROWS - 1) || row + ROWS > h.tk;
    TN_UNROLL(int n = 0; n < N_TILES; n++) {
        float own[2];
        tn_load(own, lse + n * 8);
        own[0] *= (float)ATT_LOG2E, own[1] *= (float)ATT_LOG2E;
        TN_UNROLL(int e = 0; e < 4; e++) s[n][e] = tn_exp2_fast(fmaf(s[n][e], h.power, -own[e % 2]));
    }
    if (!test) return;
    int first[2]; /* column that sees the row's key, but for the lane's own */
    TN_UNROLL(int r = 0; r < 2; r++) {
        const int j = row + row_of(0, 2 * r);
        first[r] = j >= h.tk ? COLS : CAUSAL ? j - column - column_of(0, 0) : 0;
    }
    TN_UNROLL(int n = 0; n < N_TILES; n++)
        TN_UNROLL(int e = 0; e < 4; e++) s[n][e] = n * 8 + e % 2 >= first[e / 2] ? s[n][e] : 0;
}

/* From the probabilities and v go^T of a tile: dS in g, but for the scale. */
TN_FN void differentiate(float (&g)[N_TILES][4], const float (&s)[N_TILES][4], const float *delta)
{
    TN_UNROLL(int n = 0; n < N_TILES; n++) {
        float own[2];
        tn_load(own, delta + n * 8);
        TN_UNROLL(int e = 0; e < 4; e++) g[n][e] = s[n][e] * (g[n][e] - own[e % 2]);
    }
}

/* A warp's rows of ds to shared memory. */
TN_FN void put(elem *to, const uint32_t (&ds)[PARTS][4])
{
    const int own = tn_fresh(tn_panel_place(ROWS, row_of(0, 0), column_of(0, 0))); /* of tile 0; the others' by its bits */
    TN_UNROLL(int i = 0; i < PARTS; i++)
        TN_UNROLL(int w = 0; w < 4; w++) {
            const uint32_t pair[1] = {ds[i][w]};
            const int n = 2 * i + w / 2, place = own ^ n % 8 * 8;
            tn_store((uint32_t *)(to + place + n / 8 * ROWS * TN_PANEL + w % 2 * 8 * TN_PANEL), pair);
        }
}

/* dq += ds^T k is asked for: 64 queries of ds's panels, 64 columns of k's. */
TN_FN void ask_queries(float (&dq)[DQ_TILES][4], uint64_t ds, uint64_t k)
{
    TN_UNROLL(int i = 0; i < ROWS / 16; i++)
        tn_wgmma<true, true, true>(dq, tn_panel_at(ds, i * 16 * TN_PANEL), tn_panel_at(k, i * 16 * TN_PANEL));
    tn_wgmma_close();
}

/* A warp's place among those that have a part of dq: its number, and its sums. */
TN_FN int64_t place_of_sums(const tn_cuda_args &a, const block_keys &b, int tile, float *&sums)
{
    const int64_t place = (b.pair * b.end + tile) * WARPS + threadIdx.x / 32;
    sums = (float *)a.buf[BUF_SUMS] + a.dim[DIM_SPLITS] + place * (16 * TN_PANEL) + threadIdx.x % 32 * 4;
    return place;
}

/* What the blocks with the keys before have of a warp's part of a tile's dq, once it is there. */
TN_FN void take_queries(const tn_cuda_args &a, const block_keys &b, int tile, float (&dq)[DQ_TILES][4])
{
    if (b.index == 0) {
        TN_UNROLL(int n = 0; n < DQ_TILES; n++)
            TN_UNROLL(int e = 0; e < 4; e++) dq[n][e] = 0;
        return;
    }
    float *sums;
    const int64_t place = place_of_sums(a, b, tile, sums);
    if (threadIdx.x % 32 == 0) tn_await_count((uint32_t *)a.buf[BUF_SUMS] + place, (uint32_t)b.index);
    __syncwarp();
    TN_UNROLL(int n = 0; n < DQ_TILES; n++) tn_load(dq[n], sums + n * 128);
}

/* To those with the keys behind; where there are none, it is the result. */
TN_FN void give_queries(const tn_cuda_args &a, const block_keys &b, int tile, const float (&dq)[DQ_TILES][4])
{
    const int last = CAUSAL ? least(b.blocks - 1, (tile * COLS + COLS - 1) / ROWS) : b.blocks - 1;
    if (b.index < last) {
        float *sums;
        const int64_t place = place_of_sums(a, b, tile, sums);
        TN_UNROLL(int n = 0; n < DQ_TILES; n++) tn_store(sums + n * 128, dq[n]);
        __syncwarp();
        if (threadIdx.x % 32 == 0) tn_count((uint32_t *)a.buf[BUF_SUMS] + place);
        return;
    }
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, group = warp / 4;
    const int row = tile * COLS + (HEAD == TN_PANEL ? group * 64 : 0) + warp % 4 * 16 + lane / 4;
    const int column = (HEAD == TN_PANEL ? 0 : group * TN_PANEL) + lane % 4 * 2;
    TN_UNROLL(int r = 0; r < 2; r++) {
        if (row + r * 8 >= b.h.tq) continue;
        elem *to = b.dq.at + (row + r * 8) * b.dq.stride + column;
        TN_UNROLL(int n = 0; n < DQ_TILES; n++) {
            const uint32_t pair[1] = {tn_pack(dq[n][2 * r] * b.h.scale, dq[n][2 * r + 1] * b.h.scale)};
            if (b.dq.aligned) {
                tn_store((uint32_t *)(to + n * 8), pair);
            } else {
                to[n * 8].bits = (uint16_t)pair[0];
                to[n * 8 + 1].bits = (uint16_t)(pair[0] >> 16);
            }
        }
    }
}

TN_FN void run(const tn_cuda_args &a)
{
    elem *keys = (elem *)tn_dynamic_shared(), *values = keys + ROWS * HEAD, *ring = values + ROWS * HEAD;
    elem *slopes = ring + STAGES * 2 * TILE;
    float *numbers = (float *)(slopes + 2 * ROWS * COLS);
    block_keys &b = *(block_keys *)(numbers + STAGES * NUMBERS);
    static_assert(sizeof b <= BLOCK_BYTES, "shared memory");
    if (threadIdx.x == 0) take_keys(a, b);
    __syncthreads();
    const int tk = b.h.tk, warpgroup = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    copy_in<ROWS>(keys, matrix_of(a, 1, DIM_K, b.batch, b.number, tk), b.row);
    copy_in<ROWS>(values, matrix_of(a, 2, DIM_V, b.batch, b.number, tk), b.row);
    TN_UNROLL(int t = 0; t < STAGES - 1; t++) {
        if (t < b.tiles)
            copy_stage(ring + t * 2 * TILE, numbers + t * NUMBERS, b, (b.end - 1 - t) * COLS);
        tn_copy_commit();
    }
    const uint64_t own_key = tn_panel(keys + warpgroup * 64 * TN_PANEL, 0);
    const uint64_t own_value = tn_panel(values + warpgroup * 64 * TN_PANEL, 0);
    const uint64_t tile = tn_panel(ring, 0), turned = tn_panel(ring, NEXT); /* of q; go is TILE further */
    /* of two panels, of ds where the head is 64, else of k, each warpgroup takes one */
    const uint64_t ds_part = tn_panel(slopes + (HEAD == TN_PANEL ? warpgroup * ROWS * TN_PANEL : 0), 0);
    const uint64_t k_part = tn_panel(keys + (HEAD == TN_PANEL ? 0 : warpgroup * ROWS * TN_PANEL), 0);

    float dk[1][D_TILES][4], dv[1][D_TILES][4], s[N_TILES][4], g[N_TILES][4], dq[DQ_TILES][4];
    uint32_t p[PARTS][4], ds[PARTS][4];
    clear(dk);
    clear(dv);
    tn_copy_wait<STAGES - 2>();
    tn_wgmma_show();
    __syncthreads();
    tn_wgmma_open();
    ask_scores(s, own_key, tile);
    tn_wgmma_wait<0>();
    tn_wgmma_hold(s);
    int now = 0; /* the tile's place in the ring */
    for (int t = 0; t < b.tiles; t++) {
        const int then = now + 1 == STAGES ? 0 : now + 1, before = now == 0 ? STAGES - 1 : now - 1;
        const int at = (b.end - 1 - t) * COLS, half = t % 2 * ROWS * COLS;
        const float *lse = numbers + tn_fresh(now * NUMBERS + column_of(0, 0)); /* the lane's own */
        const uint64_t slot = tn_panel_fresh(tn_panel_at(tile, now * 2 * TILE));
        tn_wgmma_open();
        ask_scores(g, tn_panel_fresh(own_value), tn_panel_at(slot, TILE));
        probabilities(s, b.h, b.row, at, lse);
        keep(p, s);
        tn_wgmma_hold(dv[0]);
        tn_wgmma_hold(p);
        tn_wgmma_open();
        ask_weighed(dv[0], p, tn_panel_fresh(tn_panel_at(turned, now * 2 * TILE + TILE)));
        tn_wgmma_wait<HEAD != 64>(); /* where registers are short p has to be done with, too */
        tn_wgmma_hold(g);
        differentiate(g, s, lse + COLS);
        keep(ds, g);
        put(slopes + half, ds);
        tn_wgmma_hold(dk[0]);
        tn_wgmma_hold(ds);
        tn_wgmma_open();
        ask_weighed(dk[0], ds, tn_panel_fresh(tn_panel_at(turned, now * 2 * TILE)));
        tn_wgmma_wait<1>();
        tn_wgmma_hold(dv[0]);
        take_queries(a, b, b.end - 1 - t, dq);
        tn_copy_wait<STAGES - 3>();
        tn_wgmma_show();
        __syncthreads(); /* ds and the next tile have come for all, and all are done with the tile before */
        if (t + STAGES - 1 < b.tiles)
            copy_stage(ring + before * 2 * TILE, numbers + before * NUMBERS, b, at - (STAGES - 1) * COLS);
        tn_copy_commit();
        tn_wgmma_hold(dq);
        tn_wgmma_open();
        ask_queries(dq, tn_panel_fresh(tn_panel_at(ds_part, half)), tn_panel_fresh(k_part));
        /* behind the last tile: of any */
        ask_scores(s, tn_panel_fresh(own_key), tn_panel_fresh(tn_panel_at(tile, then * 2 * TILE)));
        tn_wgmma_wait<1>();
        tn_wgmma_hold(dk[0]);
        tn_wgmma_hold(dq);
        give_queries(a, b, b.end - 1 - t, dq);
        tn_wgmma_wait<0>(); /* a product that is on its way around a loop has the compiler wait for each */
        tn_wgmma_hold(s);
        now = then;
    }
    tn_copy_wait<0>();
    __syncthreads(); /* all are done with k and v */

    const int own = row_of(0, 0) / OWN * OWN; /* the warp's rows */
    float factor[1][2] = {{b.h.scale, b.h.scale}};
    copy_out(matrix_of(a, BUF_DK, DIM_DK, b.batch, b.number, tk), b.row + own, keys, own, dk, factor);
    factor[0][0] = factor[0][1] = 1;
    copy_out(matrix_of(a, BUF_DV, DIM_DV, b.batch, b.number, tk), b.row + own, values, own, dv, factor);
}
#undef tn_wgmma
