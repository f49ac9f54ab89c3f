/* attention.cu - attention forward with mma.sync: a block owns rows of queries, the keys stream by. Behind
 * attention_softmax.cuh. Read first: run.
 */

TN_FN void run(const tn_cuda_args &a)
{
    const block_rows b = rows_of(a, blockIdx.x);
    const int tiles = b.tiles;
    elem *room = (elem *)tn_dynamic_shared(), *stage = room + ROWS * PITCH;
    copy_in<ROWS>(room, b.q, b.row);
    tn_copy_commit();
    TN_UNROLL(int t = 0; t < STAGES - 1; t++) {
        if (t < tiles) {
            copy_in<COLS>(stage + 2 * t * COLS * PITCH, b.k, b.begin + t * COLS);
            copy_in<COLS>(stage + (2 * t + 1) * COLS * PITCH, b.v, b.begin + t * COLS);
        }
        tn_copy_commit();
    }
    tn_copy_wait<STAGES - 1>();
    __syncthreads();
    row_operand<A_REGS != 0> left;
    left.open(room + row_of(0, 0) / OWN * OWN * PITCH);

    float acc[M_TILES][D_TILES][4], top[M_TILES][2], sum[M_TILES][2], fit[M_TILES][2];
    clear(acc);
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int r = 0; r < 2; r++) {
            top[m][r] = -TN_INF;
            sum[m][r] = 0;
        }
    for (int t = 0, slot = 0; t < tiles; t++) {
        tn_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile has come for all, and all are done with the one before */
        const int next = t + STAGES - 1, place = slot == 0 ? STAGES - 1 : slot - 1;
        if (next < tiles) {
            copy_in<COLS>(stage + 2 * place * COLS * PITCH, b.k, b.begin + next * COLS);
            copy_in<COLS>(stage + (2 * place + 1) * COLS * PITCH, b.v, b.begin + next * COLS);
        }
        tn_copy_commit();
        const elem *keys = stage + 2 * slot * COLS * PITCH, *values = keys + COLS * PITCH;
        float s[M_TILES][N_TILES][4];
        multiply(s, left, keys);
        weights(s, b.h, b.row, b.begin + t * COLS, top, sum, fit);
        refit(acc, fit);
        weigh(acc, s, values);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    finish(a, b, room, acc, top, sum);
}
