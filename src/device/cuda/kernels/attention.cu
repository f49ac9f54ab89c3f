/* attention.cu - attention forward on tensor cores, PASS 0 of what attention_begin.cuh describes: a block owns rows
 * of queries, the keys stream by.
 *
 *   o = sum P v, online: beside o a row keeps its largest score so far and the sum of its exponentials, and both
 *   are made to fit where a tile holds a larger one.
 *
 * Where queries are few, as when one token follows the other, several blocks have the same ones, and a part of the keys
 * each. The last of them that is done takes what all have come to, in the order of the keys, whichever it is itself.
 *
 * Read first: run.
 */

/* Scores are kept such that this factor > 0 times them is what 2 is raised to: they get the sign of the scale, and
 * are 0 where that is. */
TN_FN float factor_of(const head &h) { return MASK == 2 || h.power == 0 ? 1.0f : fabsf(h.power); }
TN_FN float sign_of(const head &h)
{
    if (MASK == 2) return h.power;
    return h.power < 0 ? -1.0f : h.power == 0 ? 0.0f : 1.0f;
}

/* Masks a tile's scores. */
TN_FN void see(float (&s)[M_TILES][N_TILES][4], const head &h, int row, int column)
{
    const bool whole = column + COLS <= h.tk && !(CAUSAL && column + COLS - 1 > row + row_of(0, 0));
    const bool test = __any_sync(0xffffffffu, !whole);
    const float sign = sign_of(h);
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &x = s[m][n][e];
                x *= sign;
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
            sum[m][r] = fmaf(sum[m][r], fit, part);
#pragma unroll
            for (int d = 0; d < D_TILES; d++) {
                acc[m][d][2 * r] *= fit;
                acc[m][d][2 * r + 1] *= fit;
            }
        }
}

#if SPLIT
/* Makes acc, top and sum those of all keys, in one block of those that share the rows from `row` on; false in the
 * others. */
TN_FN bool join(const tn_cuda_args &a, int row, float (&acc)[M_TILES][D_TILES][4], float (&top)[M_TILES][2],
                float (&sum)[M_TILES][2])
{
    const int lane = (int)threadIdx.x % 32, tq = (int)a.dim[2], splits = (int)a.dim[DIM_SPLITS];
    const int64_t item = blockIdx.x / (unsigned)splits, size = (int64_t)least(ROWS, tq) * (HEAD + 2);
    float *parts = (float *)a.buf[BUF_PARTS] + item * splits * size;
    float *own = parts + blockIdx.x % (unsigned)splits * size;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = row_of(m, 2 * r);
            float *to = own + i * (HEAD + 2), all = sum[m][r];
            all += tn_xor_lane(all, 1);
            all += tn_xor_lane(all, 2);
            if (row + i >= tq) continue;
#pragma unroll
            for (int d = 0; d < D_TILES; d++) {
                const float pair[2] = {acc[m][d][2 * r], acc[m][d][2 * r + 1]};
                tn_store(to + d * 8 + lane % 4 * 2, pair);
            }
            if (lane % 4 == 0) to[HEAD] = top[m][r], to[HEAD + 1] = all;
        }
    if (!tn_arrive_last(&a.ticket[item], (uint32_t)splits)) return false;
    clear(acc);
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = row_of(m, 2 * r);
            const float *from = parts + i * (HEAD + 2);
            top[m][r] = -TN_INF;
            sum[m][r] = 0;
            if (row + i >= tq) continue;
            for (int s = 0; s < splits; s++) top[m][r] = fmaxf(top[m][r], from[s * size + HEAD]);
            const float base = top[m][r] == -TN_INF ? 0 : top[m][r];
            for (int s = 0; s < splits; s++) {
                const float *part = from + s * size, fit = tn_exp2_fast(part[HEAD] - base);
                if (lane % 4 == 0) sum[m][r] += part[HEAD + 1] * fit; /* the four lanes of a row are added up */
#pragma unroll
                for (int d = 0; d < D_TILES; d++) {
                    float pair[2];
                    tn_load(pair, part + d * 8 + lane % 4 * 2);
                    acc[m][d][2 * r] += pair[0] * fit;
                    acc[m][d][2 * r + 1] += pair[1] * fit;
                }
            }
        }
    return true;
}
#endif

TN_FN void run(const tn_cuda_args &a)
{
    const int tq = (int)a.dim[2], tk = (int)a.dim[3];
    const int blocks = (tq + ROWS - 1) / ROWS; /* of a head */
    const int splits = SPLIT ? (int)a.dim[DIM_SPLITS] : 1, split = (int)(blockIdx.x % (unsigned)splits);
    const unsigned item = blockIdx.x / (unsigned)splits;
    const int64_t pair = item / (unsigned)blocks, batch = pair / a.dim[1], number = pair % a.dim[1];
    const int turn = (int)(item % (unsigned)blocks);
    const int row = (CAUSAL ? blocks - 1 - turn : turn) * ROWS; /* the longest first */
    const matrix q = matrix_of(a, 0, DIM_Q, batch, number, tq);
    const matrix k = matrix_of(a, 1, DIM_K, batch, number, tk);
    const matrix v = matrix_of(a, 2, DIM_V, batch, number, tk);
    const head h = head_of(a, batch, number);
    const int last = CAUSAL ? least(tk, row + ROWS) : tk, all_tiles = (last + COLS - 1) / COLS;
    const int each = (all_tiles + splits - 1) / splits, begin = split * each * COLS; /* its keys */
    const int tiles = least(each, all_tiles - split * each);                         /* may be below 1 */

    elem *room = (elem *)tn_dynamic_shared(), *stage = room + ROWS * PITCH;
    elem *mine = room + row_of(0, 0) / OWN * OWN * PITCH; /* the warp's rows */
    copy_in<ROWS>(room, q, row);
    tn_copy_commit();
#pragma unroll
    for (int t = 0; t < STAGES - 1; t++) {
        if (t < tiles) {
            copy_in<COLS>(stage + 2 * t * COLS * PITCH, k, begin + t * COLS);
            copy_in<COLS>(stage + (2 * t + 1) * COLS * PITCH, v, begin + t * COLS);
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
            copy_in<COLS>(stage + 2 * place * COLS * PITCH, k, begin + next * COLS);
            copy_in<COLS>(stage + (2 * place + 1) * COLS * PITCH, v, begin + next * COLS);
        }
        tn_copy_commit();
        const elem *keys = stage + 2 * slot * COLS * PITCH, *values = keys + COLS * PITCH;
        float s[M_TILES][N_TILES][4];
        multiply(s, left, keys);
        see(s, h, row, begin + t * COLS);
        exponentials(s, acc, top, sum, factor_of(h));
#if DROPOUT
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                const uint32_t bits = keep_bits<false>(h, row + row_of(m, 0), begin + t * COLS + column_of(n, 0));
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!(bits >> e & 1)) s[m][n][e] = 0;
            }
#endif
        weigh(acc, s, values);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }

#if SPLIT
    if (!join(a, row, acc, top, sum)) return;
#endif
    float inverse[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float all = sum[m][r];
            all += tn_xor_lane(all, 1);
            all += tn_xor_lane(all, 2);
            const bool blind = all == 0; /* the row sees nothing */
            inverse[m][r] = blind ? (STRICT ? TN_NAN : 0.0f) : 1 / all;
#if DROPOUT
            inverse[m][r] *= h.rest;
#endif
#if LSE
            const int i = row + row_of(m, 2 * r);
            const float power = top[m][r] * (float)ATT_LN2 + tn_log_f32(all);
            float *lse = (float *)a.buf[BUF_LSE] + pair * tq;
            if ((int)threadIdx.x % 4 == 0 && i < tq) lse[i] = blind ? (STRICT ? TN_NAN : TN_INF) : power;
#endif
        }
    copy_out(matrix_of(a, BUF_O, DIM_O, batch, number, tq), row + row_of(0, 0) / OWN * OWN, mine, acc, inverse);
}
