/* attention_wgmma.cu - attention forward with the products of warpgroups (wgmma.cuh), for 16-bit types and
 * heads of 64 and 128. Behind attention_softmax.cuh.
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

enum { STEPS = HEAD / 16, PARTS = COLS / 16, TILE = COLS * HEAD, NEXT = COLS * TN_PANEL * 2 };

#if DTYPE == 2
#define tn_wgmma tn_wgmma_f16
#else
#define tn_wgmma tn_wgmma_bf16
#endif

/* s = q k^T is asked for: 64 rows of q's panels. */
TN_FN void ask_scores(float (&s)[N_TILES][4], uint64_t q, uint64_t k)
{
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int panel = i / 4, column = i % 4 * 16;
        const uint64_t left = tn_panel_at(q, panel * ROWS * TN_PANEL + column);
        const uint64_t right = tn_panel_at(k, panel * COLS * TN_PANEL + column);
        if (i == 0)
            tn_wgmma<false, false, false>(s, left, right);
        else
            tn_wgmma<true, false, false>(s, left, right);
    }
    tn_wgmma_close();
}

/* acc += p v is asked for. */
TN_FN void ask_weighed(float (&acc)[D_TILES][4], const uint32_t (&p)[PARTS][4], uint64_t v)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) tn_wgmma<true, true>(acc, p[i], tn_panel_at(v, i * 16 * TN_PANEL));
    tn_wgmma_close();
}

/* A tile's exponentials as the left operand of the next product. */
TN_FN void keep(uint32_t (&p)[PARTS][4], const float (&s)[N_TILES][4])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        fragment<4> f;
        as_operand(f, s, i);
#pragma unroll
        for (int w = 0; w < 4; w++) p[i][w] = f.high[w];
    }
}

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
