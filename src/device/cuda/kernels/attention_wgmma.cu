/* attention_wgmma.cu - attention forward with the products of warpgroups (wgmma.cuh), for 16-bit types and
 * heads of 64 and 128. Behind attention_softmax.cuh and attention_warpgroup.cuh.
 *
 * A warpgroup has 64 rows, a warp 16 of them (M_TILES 1), all warpgroups of a block the same tiles of keys.
 * While the exponentials of a tile are taken, tensor cores weigh the values of the tile before it:
 *
 *   turn t:  s = q k(t + 1)^T and acc += p v(t) are asked for; s comes, and becomes exponentials; acc comes,
 * and is made to fit; p = s.
 *
 * Keys are a tile ahead of values in their rings of STAGES: group g of copies is k(g) and v(g - 1).
 *
 * Read first: run.
 */

TN_FN void run(const tn_cuda_args &a)
{
    const block_rows b = rows_of(a);
    const int tiles = b.tiles;
    elem *q = (elem *)tn_dynamic_shared(), *keys = q + ROWS * HEAD, *values = keys + STAGES * TILE;
    const uint64_t own = tn_panel(q + (int)threadIdx.x / 128 * 64 * TN_PANEL, 0);
    const uint64_t key = tn_panel(keys, 0), value = tn_panel(values, NEXT);
    copy_in<ROWS>(q, b.q, b.row);
#pragma unroll
    for (int g = 0; g < STAGES; g++) {
        if (g < tiles) copy_in<COLS>(keys + g * TILE, b.k, b.begin + g * COLS);
        if (g > 0 && g - 1 < tiles) copy_in<COLS>(values + (g - 1) * TILE, b.v, b.begin + (g - 1) * COLS);
        tn_copy_commit();
    }
    float acc[1][D_TILES][4], s[1][N_TILES][4], top[1][2] = {{-TN_INF, -TN_INF}}, sum[1][2] = {{0, 0}},
                                                fit[1][2];
    uint32_t p[PARTS][4];
    clear(acc);
    tn_copy_wait<STAGES - 1>();
    tn_wgmma_show();
    __syncthreads();
    tn_wgmma_open();
    ask_scores(s[0], own, key);
    tn_wgmma_wait<0>();
    tn_wgmma_hold(s[0]);
    weights(s, b.h, b.row, b.begin, top, sum, fit);
    keep(p, s[0]);
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
        tn_wgmma_hold(acc[0]);
        tn_wgmma_hold(p);
        tn_wgmma_open();
        ask_scores(s[0], own, tn_panel_at(key, then * TILE));
        ask_weighed(acc[0], p, tn_panel_at(value, now * TILE));
        tn_wgmma_wait<1>();
        tn_wgmma_hold(s[0]);
        weights(s, b.h, b.row, b.begin + (t + 1) * COLS, top, sum, fit);
        tn_wgmma_wait<0>();
        tn_wgmma_hold(acc[0]);
        refit(acc, fit);
        keep(p, s[0]);
        now = then;
    }
    tn_copy_wait<STAGES - 2>();
    tn_wgmma_show();
    __syncthreads();
    tn_wgmma_hold(acc[0]);
    tn_wgmma_hold(p);
    tn_wgmma_open();
    ask_weighed(acc[0], p, tn_panel_at(value, now * TILE));
    tn_wgmma_wait<0>();
    tn_wgmma_hold(acc[0]);
    finish(a, b, q, acc, top, sum);
}
#undef tn_wgmma
