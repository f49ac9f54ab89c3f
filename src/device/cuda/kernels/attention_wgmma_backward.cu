/* attention_wgmma_backward.cu - the gradients of q, k and v in one pass with the products of warpgroups
 * (wgmma.cuh), for 16-bit types and heads of 64 and 128, without mask and dropout, for which there is no room in registers; PASS 2 of what
 * attention_begin.cuh describes. Behind attention_warpgroup.cuh.
 *
 * Two warpgroups of a block own 128 keys, 64 each; tiles of queries stream by, the last first. Five products a
 * tile:
 *
 *   s = k q^T    g = v go^T    dv += p go    dk += ds q    dq = ds^T k
 *
 * where p and ds are those of attention_backward.cu, transposed. ds goes through shared memory to the last
 * product, of which each warpgroup has 64 queries and 64 columns. A third warpgroup does what has to be waited
 * for: two of its warps bring tiles into a ring, two add what a warpgroup has of dq, each for one of them.
 *
 * dq is added in the order of the keys: a count of who has been there stands in front of the sums, and a warp
 * waits for its turn. Blocks are numbered as they begin, so that those who are waited for have begun; and all
 * take the queries in the same order, so that a wait is short. The first one stores, the last one writes the
 * result. Pass 1 has cleared the counts.
 *
 *   sums   u32 [dim 32], of which batch * heads * tiles * 2 are counts; then f32, for each of these the 64 x 64
 *          sums in the order of a warpgroup's registers: [warp][8][lane][4]
 *
 * Read first: run.
 */

enum {
    BUF_SUMS = BUF_DV + 1,
    DQ_TILES = TN_PANEL / 8,
    NUMBERS = 2 * COLS,
    GROUPS = WARPS / 4,
    GROUP = 128,           /* threads of a warpgroup, */
    COPYING = 64,          /* of those that copy */
    PART = 64 * TN_PANEL,  /* elements of a warpgroup's part of dq */
    FEWER = 40,            /* registers of a thread that copies, and */
    MORE = 232,            /* of one that computes */
    COMPUTING = 1,         /* barrier of the warpgroups that compute */
    BLOCK_BYTES = 512
};

/* What a block has: its head, its keys, and the tiles of queries that see them, from `end` backwards. It stands in
 * shared memory, since all registers are taken. */
struct block_keys {
    int64_t pair, batch, number;
    int index, blocks, row; /* of its head's keys: the block's number, of how many, its first key */
    int end, tiles;
    matrix q, go, dq;
    const float *lse, *delta;
    head h;
    /* of the ring's stages, of the halves of slopes, of the warpgroups' parts of dq */
    tn_mbarrier full[STAGES], empty[STAGES], put[2], given[GROUPS], taken[GROUPS];
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

/* By COPYING threads. */
TN_FN void copy_stage(elem *to, float *numbers, const block_keys &b, int at)
{
    const int i = (int)threadIdx.x % GROUP;
    copy_in<COLS, COPYING>(to, b.q, at, i);
    copy_in<COLS, COPYING>(to + TILE, b.go, at, i);
    TN_UNROLL(int n = 0; n < NUMBERS; n += COPYING) {
        const int query = at + (n + i) % COLS;
        const bool there = query < b.h.tq;
        tn_copy_async<4>(numbers + n + i, (n < COLS ? b.lse : b.delta) + (there ? query : 0), there);
    }
}

/* Arrives for a warp, whose lanes are done with what they did. */
TN_FN void arrive(tn_mbarrier *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) tn_mbarrier_arrive(b);
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

/* dq = ds^T k is asked for: 64 queries of ds's panels, 64 columns of k's. */
TN_FN void ask_queries(float (&dq)[DQ_TILES][4], uint64_t ds, uint64_t k)
{
    TN_UNROLL(int i = 0; i < ROWS / 16; i++) {
        const uint64_t left = tn_panel_at(ds, i * 16 * TN_PANEL), right = tn_panel_at(k, i * 16 * TN_PANEL);
        if (i == 0)
            tn_wgmma<false, true, true>(dq, left, right);
        else
            tn_wgmma<true, true, true>(dq, left, right);
    }
    tn_wgmma_close();
}

/* What a warpgroup has of dq, to shared memory. */
TN_FN void give(float *parts, block_keys &b, int group, int t, const float (&dq)[DQ_TILES][4])
{
    float *to = parts + group * PART + (int)threadIdx.x / 32 % 4 * (16 * TN_PANEL) + threadIdx.x % 32 * 4;
    tn_mbarrier_wait(&b.taken[group], t % 2 ^ 1);
    TN_UNROLL(int n = 0; n < DQ_TILES; n++) tn_store(to + n * 128, dq[n]);
    tn_wgmma_show();
    arrive(&b.given[group]);
}

/* The result of a tile's part, from what blocks before and this one have of it. By a warp. */
TN_FN void write_queries(const block_keys &b, const float *part, const float *sums, int group, int tile)
{
    const int lane = (int)threadIdx.x % 32;
    const int row = tile * COLS + (HEAD == TN_PANEL ? group * 64 : 0) + lane / 4;
    const int column = (HEAD == TN_PANEL ? 0 : group * TN_PANEL) + lane % 4 * 2;
#pragma unroll 1
    for (int i = 0; i < 4 * DQ_TILES; i += 2) { /* pairs of eight columns, of 16 rows each DQ_TILES */
        const int query = row + i / DQ_TILES * 16;
        float dq[2][4], before[2][4];
        TN_UNROLL(int n = 0; n < 2; n++) {
            tn_load(dq[n], part + (i + n) * 128 + lane * 4);
            TN_UNROLL(int e = 0; e < 4; e++) before[n][e] = 0;
            if (b.index) tn_load(before[n], sums + (i + n) * 128 + lane * 4);
        }
        elem *to = b.dq.at + query * b.dq.stride + column + i % DQ_TILES * 8;
        TN_UNROLL(int r = 0; r < 2; r++) {
            if (query + r * 8 >= b.h.tq) continue;
            TN_UNROLL(int n = 0; n < 2; n++) {
                const uint32_t pair[1] = {tn_pack((before[n][2 * r] + dq[n][2 * r]) * b.h.scale,
                                                  (before[n][2 * r + 1] + dq[n][2 * r + 1]) * b.h.scale)};
                elem *at = to + r * 8 * b.dq.stride + n * 8;
                if (b.dq.aligned) {
                    tn_store((uint32_t *)at, pair);
                } else {
                    at[0].bits = (uint16_t)pair[0];
                    at[1].bits = (uint16_t)(pair[0] >> 16);
                }
            }
        }
    }
}

/* Adds a warpgroup's part of dq, in the order of keys. By a warp. */
TN_FN void add_queries(const tn_cuda_args &a, block_keys &b, const float *parts, int group)
{
    const float *part = parts + group * PART;
    const bool first = threadIdx.x % 32 == 0;
#pragma unroll 1
    for (int t = 0; t < b.tiles; t++) {
        const int tile = b.end - 1 - t;
        const int last = CAUSAL ? least(b.blocks - 1, (tile * COLS + COLS - 1) / ROWS) : b.blocks - 1;
        const int64_t place = (b.pair * b.end + tile) * GROUPS + group;
        uint32_t *count = (uint32_t *)a.buf[BUF_SUMS] + place;
        float *sums = (float *)a.buf[BUF_SUMS] + a.dim[DIM_SPLITS] + place * PART;
        tn_mbarrier_wait(&b.given[group], t % 2);
        if (b.index && first) tn_await_count(count, (uint32_t)b.index);
        __syncwarp();
        if (b.index == last) {
            write_queries(b, part, sums, group, tile);
        } else if (first) {
            tn_bulk_show();
            if (b.index)
                tn_bulk_add(sums, part, PART * (int)sizeof(float));
            else
                tn_bulk_store(sums, part, PART * (int)sizeof(float));
            tn_bulk_wait();
            tn_bulk_show();
            tn_count(count);
        }
        arrive(&b.taken[group]);
    }
}

TN_FN void bring(block_keys &b, elem *ring, float *numbers)
{
    int slot = 0, parity = 1;
#pragma unroll 1
    for (int t = 0; t < b.tiles; t++) {
        tn_mbarrier_wait(&b.empty[slot], parity);
        copy_stage(ring + slot * 2 * TILE, numbers + slot * NUMBERS, b, (b.end - 1 - t) * COLS);
        tn_mbarrier_arrive_copies(&b.full[slot]);
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }
}

TN_FN void compute(const tn_cuda_args &a, block_keys &b, int group, elem *keys, elem *values, elem *ring, elem *slopes,
                   float *parts, const float *numbers)
{
    const int tk = b.h.tk;
    copy_in<ROWS, 32 * WARPS>(keys, matrix_of(a, 1, DIM_K, b.batch, b.number, tk), b.row);
    copy_in<ROWS, 32 * WARPS>(values, matrix_of(a, 2, DIM_V, b.batch, b.number, tk), b.row);
    tn_copy_commit();
    const uint64_t key = tn_panel(keys, 0), value = tn_panel(values, 0), slope = tn_panel(slopes, 0);
    const uint64_t tile = tn_panel(ring, 0), turned = tn_panel(ring, NEXT); /* of q; go is TILE further */

    float dk[1][D_TILES][4], dv[1][D_TILES][4], s[N_TILES][4], g[N_TILES][4], dq[DQ_TILES][4];
    uint32_t p[PARTS][4], ds[PARTS][4];
    clear(dk);
    clear(dv);
    tn_copy_wait<0>();
    tn_wgmma_show();
    tn_barrier_sync(COMPUTING, 32 * WARPS);
    if (b.tiles) tn_mbarrier_wait(&b.full[0], 0); /* of keys that no query sees there is none */
    tn_wgmma_show();
    tn_wgmma_open();
    ask_scores(s, tn_panel_at(key, group * 64 * TN_PANEL), tile);
    tn_wgmma_wait<0>();
    tn_wgmma_hold(s);
    int now = 0, parity = 0; /* the tile's place in the ring */
#pragma unroll 1
    for (int t = 0; t < b.tiles; t++) {
        const bool more = t + 1 < b.tiles; /* else the next scores are of any */
        const int then = !more ? now : now + 1 == STAGES ? 0 : now + 1;
        const int at = (b.end - 1 - t) * COLS, half = t % 2;
        const float *lse = numbers + tn_fresh(now * NUMBERS + column_of(0, 0)); /* the lane's own */
        const uint64_t slot = tn_panel_at(tile, tn_fresh(now) * 2 * TILE);
        probabilities(s, b.h, b.row, at, lse);
        keep(p, s);
        tn_wgmma_hold(dv[0]);
        tn_wgmma_hold(p);
        tn_wgmma_open();
        ask_weighed(dv[0], p, tn_panel_at(turned, tn_fresh(now) * 2 * TILE + TILE));
        tn_wgmma_wait<0>(); /* p has to be done with, since registers are short */
        tn_wgmma_hold(dv[0]);
        tn_wgmma_open();
        ask_scores(g, tn_panel_at(value, tn_fresh(group) * 64 * TN_PANEL), tn_panel_at(slot, TILE));
        tn_wgmma_wait<0>();
        tn_wgmma_hold(g);
        differentiate(g, s, lse + COLS);
        keep(ds, g);
        /* who has put ds of the tile between is done with what was here before */
        put(slopes + half * ROWS * COLS, ds);
        tn_wgmma_show();
        arrive(&b.put[half]);
        tn_wgmma_hold(dk[0]);
        tn_wgmma_hold(ds);
        tn_wgmma_open();
        ask_weighed(dk[0], ds, tn_panel_at(turned, tn_fresh(now) * 2 * TILE));
        tn_wgmma_wait<0>();
        tn_wgmma_hold(dk[0]);
        tn_mbarrier_wait(&b.put[half], t / 2 % 2);
        if (more) {
            tn_mbarrier_wait(&b.full[then], then ? parity : parity ^ 1);
            tn_wgmma_show();
        }
        tn_wgmma_open();
        /* of two panels, of ds where the head is 64, else of k, each warpgroup takes one */
        const int panel = tn_fresh(group) * ROWS * TN_PANEL;
        ask_queries(dq, tn_panel_at(slope, half * ROWS * COLS + (HEAD == TN_PANEL ? panel : 0)),
                    tn_panel_at(key, HEAD == TN_PANEL ? 0 : panel));
        ask_scores(s, tn_panel_at(key, tn_fresh(group) * 64 * TN_PANEL), tn_panel_at(tile, tn_fresh(then) * 2 * TILE));
        tn_wgmma_wait<1>();
        tn_wgmma_hold(dq);
        arrive(&b.empty[now]);
        give(parts, b, group, t, dq);
        tn_wgmma_wait<0>(); /* a product that is on its way around a loop has the compiler wait for each */
        tn_wgmma_hold(s);
        if (then <= now) parity ^= 1;
        now = then;
    }
    tn_barrier_sync(COMPUTING, 32 * WARPS); /* all are done with k and v */

    const int own = row_of(0, 0) / OWN * OWN; /* the warp's rows */
    float factor[1][2] = {{b.h.scale, b.h.scale}};
    copy_out(matrix_of(a, BUF_DK, DIM_DK, b.batch, b.number, tk), b.row + own, keys, own, dk, factor);
    factor[0][0] = factor[0][1] = 1;
    copy_out(matrix_of(a, BUF_DV, DIM_DV, b.batch, b.number, tk), b.row + own, values, own, dv, factor);
}

TN_FN void run(const tn_cuda_args &a)
{
    elem *keys = (elem *)tn_dynamic_shared(), *values = keys + ROWS * HEAD, *ring = values + ROWS * HEAD;
    elem *slopes = ring + STAGES * 2 * TILE;
    float *parts = (float *)(slopes + 2 * ROWS * COLS), *numbers = parts + GROUPS * PART;
    block_keys &b = *(block_keys *)(numbers + STAGES * NUMBERS);
    static_assert(sizeof b <= BLOCK_BYTES, "shared memory");
    if (threadIdx.x == 0) {
        take_keys(a, b);
        TN_UNROLL(int i = 0; i < STAGES; i++) {
            tn_mbarrier_open(&b.full[i], COPYING);
            tn_mbarrier_open(&b.empty[i], WARPS);
        }
        TN_UNROLL(int i = 0; i < 2; i++) tn_mbarrier_open(&b.put[i], WARPS);
        TN_UNROLL(int i = 0; i < GROUPS; i++) {
            tn_mbarrier_open(&b.given[i], 4);
            tn_mbarrier_open(&b.taken[i], 1);
        }
    }
    __syncthreads();
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    if (warp >= WARPS) {
        tn_registers_fewer<FEWER>();
        if (warp < WARPS + COPYING / 32)
            bring(b, ring, numbers);
        else
            add_queries(a, b, parts, warp - WARPS - COPYING / 32);
    } else {
        tn_registers_more<MORE>();
        compute(a, b, warp / 4, keys, values, ring, slopes, parts, numbers);
    }
}
#undef tn_wgmma
