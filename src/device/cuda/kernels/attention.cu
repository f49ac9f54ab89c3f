/* attention.cu - attention forward on tensor cores, PASS 0 of what attention_begin.cuh describes: a block owns rows
 * of queries, the keys stream by.
 *
 *   o = sum P v, online: beside o a row keeps its largest score so far and the sum of its exponentials, and both
 *   are made to fit where a tile holds a larger one.
 *
 * Read first: run.
 */

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

TN_FN void run(const tn_cuda_args &a)
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
