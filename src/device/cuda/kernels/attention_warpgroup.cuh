/* attention_warpgroup.cuh - the products of a warpgroup that attention forward and backward have in common;
 * behind wgmma.cuh and attention_begin.cuh. A warpgroup has 64 of the block's ROWS, a warp 16 of them.
 *
 * Read first: ask_scores.
 */

enum { STEPS = HEAD / 16, PARTS = COLS / 16, TILE = COLS * HEAD, NEXT = COLS * TN_PANEL * 2 };

#if DTYPE == 2
#define tn_wgmma tn_wgmma_f16
#else
#define tn_wgmma tn_wgmma_bf16
#endif

/* s = x y^T is asked for: 64 rows of the panels of the block's own x, a tile of y. */
TN_FN void ask_scores(float (&s)[N_TILES][4], uint64_t x, uint64_t y)
{
    TN_UNROLL(int i = 0; i < STEPS; i++) {
        const int panel = i / 4, column = i % 4 * 16;
        const uint64_t left = tn_panel_at(x, panel * ROWS * TN_PANEL + column);
        const uint64_t right = tn_panel_at(y, panel * COLS * TN_PANEL + column);
        if (i == 0)
            tn_wgmma<false, false, false>(s, left, right);
        else
            tn_wgmma<true, false, false>(s, left, right);
    }
    tn_wgmma_close();
}

/* acc += p y is asked for. */
TN_FN void ask_weighed(float (&acc)[D_TILES][4], const uint32_t (&p)[PARTS][4], uint64_t y)
{
    TN_UNROLL(int i = 0; i < PARTS; i++) tn_wgmma<true, true>(acc, p[i], tn_panel_at(y, i * 16 * TN_PANEL));
    tn_wgmma_close();
}

/* What a tile's scores became, as the left operand of the next product. */
TN_FN void keep(uint32_t (&p)[PARTS][4], const float (&s)[N_TILES][4])
{
    TN_UNROLL(int i = 0; i < PARTS; i++) {
        fragment<4> f;
        as_operand(f, s, i);
        TN_UNROLL(int w = 0; w < 4; w++) p[i][w] = f.high[w];
    }
}
