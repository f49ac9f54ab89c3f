/* attention_wgmma.cu - attention forward with the products of warpgroups (wgmma.cuh), for 16-bit types and
 * heads of 64 and 128. Behind attention_softmax.cuh and attention_warpgroup.cuh.
 *
 * A warpgroup has 64 rows, a warp 16 of them (M_TILES 1), all warpgroups of a block the same tiles of keys.
 * In each turn a warpgroup asks for two products, s = q k(t + 1)^T and acc += p v(t), and makes exponentials p
 * of scores s. Every second warpgroup is late: it does these in the other order, so that tensor cores work for
 * one while the other is at its exponentials (as FlashAttention-3 takes turns: Shah, Bikshandi, Zhang, Thakkar,
 * Ramani, Dao, 2024):
 *
 *   early:  asks; s comes, and becomes exponentials while acc comes, which is made to fit; p = s
 *   late:   s of the turn before becomes exponentials, acc is made to fit, p = s; asks; both come
 *
 * Keys are a tile ahead of values in their rings of STAGES: group g of copies is k(g) and v(g - 1).
 *
 * Read first: run.
 */

/* What a warpgroup keeps of its rows: the scores of one tile, or what became of them, and the sums. */
struct kept_rows {
    float acc[1][D_TILES][4], s[1][N_TILES][4], top[1][2], sum[1][2], fit[1][2];
    uint32_t p[PARTS][4];
};

/* s = the scores of tile t + 1 is asked for, then acc += p v(t). */
TN_FN void ask(kept_rows &r, uint64_t q, uint64_t k, uint64_t v)
{
    tn_wgmma_hold(r.acc[0]);
    tn_wgmma_hold(r.p);
    tn_wgmma_open();
    ask_scores(r.s[0], q, k);
    ask_weighed(r.acc[0], r.p, v);
}

/* The scores of the tile of keys from `column` on become p, and acc is made to fit. */
TN_FN void soften(kept_rows &r, const block_rows &b, int column)
{
    weights(r.s, b.h, b.row, column, r.top, r.sum, r.fit);
    refit(r.acc, r.fit);
    keep(r.p, r.s[0]);
}

TN_FN void run(const tn_cuda_args &a)
{
    const block_rows b = rows_of(a);
    const int tiles = b.tiles;
    const bool late = (int)threadIdx.x / 128 % 2 != 0;
    elem *q = (elem *)tn_dynamic_shared(), *keys = q + ROWS * HEAD, *values = keys + STAGES * TILE;
    const uint64_t own = tn_panel(q + (int)threadIdx.x / 128 * 64 * TN_PANEL, 0);
    const uint64_t key = tn_panel(keys, 0), value = tn_panel(values, NEXT);
    copy_in<ROWS>(q, b.q, b.row);
    TN_UNROLL(int g = 0; g < STAGES; g++) {
        if (g < tiles) copy_in<COLS>(keys + g * TILE, b.k, b.begin + g * COLS);
        if (g > 0 && g - 1 < tiles) copy_in<COLS>(values + (g - 1) * TILE, b.v, b.begin + (g - 1) * COLS);
        tn_copy_commit();
    }
    kept_rows r = {};
    r.top[0][0] = r.top[0][1] = -TN_INF;
    tn_copy_wait<STAGES - 1>();
    tn_wgmma_show();
    __syncthreads();
    tn_wgmma_open();
    ask_scores(r.s[0], own, key);
    tn_wgmma_wait<0>();
    tn_wgmma_hold(r.s[0]);
    if (!late) soften(r, b, b.begin);
    int now = 0; /* the slot of keys and values t */
    for (int t = 0; t + 1 < tiles; t++) {
        const int then = now + 1 == STAGES ? 0 : now + 1, before = now == 0 ? STAGES - 1 : now - 1;
        tn_copy_wait<STAGES - 2>();
        tn_wgmma_show();
        __syncthreads(); /* the tiles have come for all, and all are done with those before */
        if (t + STAGES < tiles) copy_in<COLS>(keys + now * TILE, b.k, b.begin + (t + STAGES) * COLS);
        if (t + STAGES - 1 < tiles)
            copy_in<COLS>(values + before * TILE, b.v, b.begin + (t + STAGES - 1) * COLS);
        tn_copy_commit();
        const uint64_t k = tn_panel_at(key, then * TILE), v = tn_panel_at(value, now * TILE);
        if (late) {
            soften(r, b, b.begin + t * COLS);
            ask(r, own, k, v);
            tn_wgmma_wait<0>();
            tn_wgmma_hold(r.s[0]);
            tn_wgmma_hold(r.acc[0]);
        } else {
            ask(r, own, k, v);
            tn_wgmma_wait<1>();
            tn_wgmma_hold(r.s[0]);
            weights(r.s, b.h, b.row, b.begin + (t + 1) * COLS, r.top, r.sum, r.fit);
            tn_wgmma_wait<0>();
            tn_wgmma_hold(r.acc[0]);
            refit(r.acc, r.fit);
            keep(r.p, r.s[0]);
        }
        now = then;
    }
    tn_copy_wait<STAGES - 2>();
    tn_wgmma_show();
    __syncthreads();
    if (late) soften(r, b, b.begin + (tiles - 1) * COLS);
    tn_wgmma_hold(r.acc[0]);
    tn_wgmma_hold(r.p);
    tn_wgmma_open();
    ask_weighed(r.acc[0], r.p, tn_panel_at(value, now * TILE));
    tn_wgmma_wait<0>();
    tn_wgmma_hold(r.acc[0]);
    finish(a, b, q, r.acc, r.top, r.sum);
}
#undef tn_wgmma
