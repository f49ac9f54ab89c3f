/* attention_wgmma.cu - attention forward with the products of warpgroups (wgmma.cuh), for 16-bit types and
 * heads of 64 and 128. Behind attention_softmax.cuh and attention_warpgroup.cuh.
 *
 * One warpgroup, the block's last, brings tiles of keys and values into two rings of STAGES; the others have 64 of
 * the block's rows each, a warp 16 of them (M_TILES 1). A tile of a ring is full when what was asked for has come,
 * and empty when each warp of those others is done with it: nobody waits for anybody else (pipe.cuh: mbarrier).
 *
 * In each turn a warpgroup asks for two products, s = q k(t + 1)^T and acc += p v(t), and makes exponentials p
 * of scores s while the second is computed. They take turns in asking, so that tensor cores work for one while
 * others are at their exponentials (as FlashAttention-3 does: Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao, 2024).
 *
 * A block goes on with other rows where all have as many keys (MANY): while results are written keys come.
 *
 * Read first: run.
 */

enum {
    GROUPS = WARPS / 4,
    GROUP = 128,                    /* threads of a warpgroup */
    FEWER = 40,                     /* registers of a thread that copies, and */
    MORE = 232,                     /* of one that computes */
    OWN_ROWS = 1,                   /* barriers: and those behind, of a warpgroup's rows; */
    TURN = OWN_ROWS + GROUPS,       /* and those behind, of its turn to ask */
    MANY = !MASK && !DROPOUT,       /* a block goes on with others' rows, as long as there are some */
    RINGS_BYTES = 256
};

/* A ring's tiles. */
struct ring {
    tn_mbarrier full[STAGES], empty[STAGES];
};

/* Where in a ring tile t lies, and how often it came round. */
struct ring_place {
    int slot, parity;

    TN_MEMBER void next()
    {
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }
};

TN_FN void bring(elem *to, ring &r, const ring_place &at, const matrix &m, int first)
{
    tn_mbarrier_wait(&r.empty[at.slot], at.parity ^ 1);
    copy_in<COLS, GROUP>(to + at.slot * TILE, m, first, (int)threadIdx.x % GROUP);
    if (m.aligned)
        tn_mbarrier_arrive_copies(&r.full[at.slot]);
    else
        tn_mbarrier_arrive(&r.full[at.slot]);
}

TN_FN void produce(const block_rows &b, elem *keys, elem *values, ring *r, ring_place &k, ring_place &v)
{
    bring(keys, r[0], k, b.k, b.begin);
#pragma unroll 1
    for (int t = 0; t < b.tiles; t++) {
        k.next();
        if (t + 1 < b.tiles) bring(keys, r[0], k, b.k, b.begin + (t + 1) * COLS);
        bring(values, r[1], v, b.v, b.begin + t * COLS);
        v.next();
    }
}

/* The tile has come, for the tensor cores too. */
TN_FN void await(ring &r, const ring_place &at)
{
    tn_mbarrier_wait(&r.full[at.slot], at.parity);
    tn_wgmma_show();
}

TN_FN void release(ring &r, const ring_place &at)
{
    if (threadIdx.x % 32 == 0) tn_mbarrier_arrive(&r.empty[at.slot]);
}

/* What a warpgroup keeps of its rows: the scores of one tile, or what became of them, and the sums. */
struct kept_rows {
    float acc[1][D_TILES][4], s[1][N_TILES][4], top[1][2], sum[1][2], fit[1][2];
    uint32_t p[PARTS][4];
};

TN_FN void consume(const tn_cuda_args &a, const block_rows &b, elem *q, elem *keys, elem *values, ring *rings, int group,
                   ring_place &k, ring_place &v)
{
    elem *mine = q + group * 64 * TN_PANEL;
    tn_barrier_sync(OWN_ROWS + group, GROUP); /* the rows before are out */
    copy_in<64, GROUP, ROWS>(mine, b.q, b.row + group * 64, (int)threadIdx.x % GROUP);
    tn_copy_commit();
    kept_rows r = {};
    r.top[0][0] = r.top[0][1] = -TN_INF;
    const uint64_t own = tn_panel(mine, 0), key = tn_panel(keys, 0), value = tn_panel(values, NEXT);
    const int other = group + 1 == GROUPS ? 0 : group + 1;
    if (group + 1 == GROUPS && b.tiles > 1) tn_barrier_arrive(TURN + other, 2 * GROUP);
    tn_copy_wait<0>();
    tn_wgmma_show();
    tn_barrier_sync(OWN_ROWS + group, GROUP);
    await(rings[0], k);
    tn_wgmma_open();
    ask_scores(r.s[0], own, tn_panel_at(key, k.slot * TILE));
    tn_wgmma_wait<0>();
    tn_wgmma_hold(r.s[0]);
    release(rings[0], k);
    weights(r.s, b.h, b.row, b.begin, r.top, r.sum, r.fit);
    keep(r.p, r.s[0]);
#pragma unroll 1
    for (int t = 1; t < b.tiles; t++) {
        k.next();
        await(rings[0], k);
        tn_barrier_sync(TURN + group, 2 * GROUP);
        tn_wgmma_hold(r.acc[0]);
        tn_wgmma_hold(r.p);
        tn_wgmma_open();
        ask_scores(r.s[0], own, tn_panel_at(key, k.slot * TILE));
        await(rings[1], v);
        ask_weighed(r.acc[0], r.p, tn_panel_at(value, v.slot * TILE));
        if (t + 1 < b.tiles || other) tn_barrier_arrive(TURN + other, 2 * GROUP);
        tn_wgmma_wait<1>();
        tn_wgmma_hold(r.s[0]);
        release(rings[0], k);
        weights(r.s, b.h, b.row, b.begin + t * COLS, r.top, r.sum, r.fit);
        tn_barrier_sync_behind(r.sum[0][0] + r.sum[0][1], OWN_ROWS + group, GROUP);
        tn_wgmma_wait<0>();
        tn_wgmma_hold(r.acc[0]);
        release(rings[1], v);
        v.next();
        refit(r.acc, r.fit);
        keep(r.p, r.s[0]);
    }
    await(rings[1], v);
    tn_wgmma_hold(r.acc[0]);
    tn_wgmma_hold(r.p);
    tn_wgmma_open();
    ask_weighed(r.acc[0], r.p, tn_panel_at(value, v.slot * TILE));
    tn_wgmma_wait<0>();
    tn_wgmma_hold(r.acc[0]);
    release(rings[1], v);
    k.next();
    v.next();
    finish(a, b, q, r.acc, r.top, r.sum);
}

TN_FN void run(const tn_cuda_args &a)
{
    elem *q = (elem *)tn_dynamic_shared(), *keys = q + ROWS * HEAD, *values = keys + STAGES * TILE;
    ring *r = (ring *)(values + STAGES * TILE);
    static_assert(2 * sizeof *r <= RINGS_BYTES, "shared memory");
    if (threadIdx.x == 0) {
        TN_UNROLL(int i = 0; i < 2; i++)
            TN_UNROLL(int n = 0; n < STAGES; n++) {
                tn_mbarrier_open(&r[i].full[n], GROUP);
                tn_mbarrier_open(&r[i].empty[n], WARPS);
            }
    }
    __syncthreads();
    const unsigned all = (unsigned)(a.dim[0] * a.dim[1]) * ((unsigned)(a.dim[2] + ROWS - 1) / ROWS); /* blocks' rows */
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    if (group == GROUPS) {
        tn_registers_fewer<FEWER>();
        ring_place k = {0, 0}, v = {0, 0};
#pragma unroll 1
        for (unsigned i = blockIdx.x; i < all; i += gridDim.x) {
            produce(rows_of(a, i), keys, values, r, k, v);
            if (!MANY) break;
        }
    } else {
        tn_registers_more<MORE>();
        ring_place k = {0, 0}, v = {0, 0};
#pragma unroll 1
        for (unsigned i = blockIdx.x; i < all; i += gridDim.x)
        {
            consume(a, rows_of(a, i), q, keys, values, r, group, k, v);
            if (!MANY) break;
        }
    }
}
#undef tn_wgmma
