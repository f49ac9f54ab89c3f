/* attention_softmax.cuh - the softmax of attention forward, and what becomes of its sums; between the
 * products, by whichever instruction those are (attention.cu, attention_wgmma.cu). PASS 0 of what
 * attention_begin.cuh describes.
 *
 *   o = sum P v, online: beside o a row keeps its largest score so far and the sum of its exponentials, and
 *   both are made to fit where a tile holds a larger one.
 *
 * Where queries are few, as when one token follows the other, several blocks have the same ones, and a part
 * of the keys each. The last of them that is done takes what all have come to, in the order of the keys,
 * whichever it is itself.
 *
 * Read first: exponentials.
 */

/* Scores are kept such that this factor > 0 times them is what 2 is raised to: they get the sign of the
 * scale, and are 0 where that is. */
TN_FN float factor_of(const head &h) { return MASK == 2 || h.power == 0 ? 1.0f : fabsf(h.power); }
TN_FN float sign_of(const head &h)
{
    if (MASK == 2) return h.power;
    return h.power < 0 ? -1.0f : h.power == 0 ? 0.0f : 1.0f;
}

/* Masks a tile's scores. */
TN_FN void see(float (&s)[M_TILES][N_TILES][4], const head &h, int row, int column)
{
    const int top = row + (WGMMA ? 0 : row_of(0, 0) / OWN * OWN); /* of the block, or of the warp */
    const bool whole = column + COLS <= h.tk && !(CAUSAL && column + COLS - 1 > top);
    const float sign = sign_of(h);
    if (sign != 1) {
        TN_UNROLL(int m = 0; m < M_TILES; m++)
            TN_UNROLL(int n = 0; n < N_TILES; n++)
                TN_UNROLL(int e = 0; e < 4; e++) s[m][n][e] *= sign;
    }
    if (!MASK && whole) return;
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int n = 0; n < N_TILES; n++)
            TN_UNROLL(int e = 0; e < 4; e++) {
                float &x = s[m][n][e];
                const int i = row + row_of(m, e), j = column + column_of(n, e);
#if MASK
                if (j >= h.tk || (i < h.tq && !seen(h, i, j, x))) x = -TN_INF;
#else
                const int end = CAUSAL ? least(h.tk, i + 1) : h.tk;
                x = j < end ? x : -TN_INF;
#endif
            }
}

/* Sums and the largest of a row are found by so many additions at a time: with few warps none waits for the one before. */
enum { CHAINS = WGMMA ? 2 : 1 };

/* The scores become their exponentials; `top`, the power that stands for 1, and `sum` are the rows' own. What
 * was summed before has to be multiplied by `fit`. */
TN_FN void exponentials(float (&s)[M_TILES][N_TILES][4], float (&top)[M_TILES][2], float (&sum)[M_TILES][2],
                        float (&fit)[M_TILES][2], float factor)
{
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int r = 0; r < 2; r++) {
            float best[CHAINS], most = -TN_INF;
            TN_UNROLL(int i = 0; i < CHAINS; i++) best[i] = s[m][0][2 * r + i];
            TN_UNROLL(int n = 0; n < N_TILES; n++)
                TN_UNROLL(int e = 0; e < 2; e++) best[e % CHAINS] = fmaxf(best[e % CHAINS], s[m][n][2 * r + e]);
            TN_UNROLL(int i = 0; i < CHAINS; i++) most = fmaxf(most, best[i]);
            most = fmaxf(most, tn_xor_lane(most, 1));
            most = fmaxf(most, tn_xor_lane(most, 2));
            const float now = fmaxf(top[m][r], most * factor);
            const float base = now == -TN_INF ? 0 : now; /* nothing was seen so far */
            fit[m][r] = tn_exp2_fast(top[m][r] - base);
            top[m][r] = now;
            float part[CHAINS] = {0}, all = 0;
            TN_UNROLL(int n = 0; n < N_TILES; n++)
                TN_UNROLL(int e = 0; e < 2; e++) {
                    float &x = s[m][n][2 * r + e];
                    x = tn_exp2_fast(fmaf(x, factor, -base));
                    part[e % CHAINS] += x;
                }
            TN_UNROLL(int i = 0; i < CHAINS; i++) all += part[i];
            sum[m][r] = fmaf(sum[m][r], fit[m][r], all);
        }
}

TN_FN void refit(float (&acc)[M_TILES][D_TILES][4], const float (&fit)[M_TILES][2])
{
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int d = 0; d < D_TILES; d++)
            TN_UNROLL(int e = 0; e < 4; e++) acc[m][d][e] *= fit[m][e / 2];
}

/* From a tile's scores, keys from `column` on, to what its values are weighed with, but for the sum. */
TN_FN void weights(float (&s)[M_TILES][N_TILES][4], const head &h, int row, int column,
                   float (&top)[M_TILES][2], float (&sum)[M_TILES][2], float (&fit)[M_TILES][2])
{
    see(s, h, row, column);
    exponentials(s, top, sum, fit, factor_of(h));
#if DROPOUT
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int n = 0; n < N_TILES; n++) {
            const uint32_t bits = keep_bits<false>(h, row + row_of(m, 0), column + column_of(n, 0));
            TN_UNROLL(int e = 0; e < 4; e++)
                if (!(bits >> e & 1)) s[m][n][e] = 0;
        }
#endif
}

/* ---- a block ---- */

struct block_rows {
    int64_t pair, batch, number; /* its head */
    int row;                     /* the first */
    int begin, tiles;            /* its keys: the first, and their tiles, maybe below 1 */
    matrix q, k, v;
    head h;
};

TN_FN block_rows rows_of(const tn_cuda_args &a, unsigned block)
{
    block_rows b;
    const int tq = (int)a.dim[2], tk = (int)a.dim[3];
    const int blocks = (tq + ROWS - 1) / ROWS; /* of a head */
    const int splits = SPLIT ? (int)a.dim[DIM_SPLITS] : 1, split = (int)(block % (unsigned)splits);
    const unsigned item = block / (unsigned)splits;
    const int turn = (int)(item % (unsigned)blocks);
    const unsigned pair = item / (unsigned)blocks, heads = (unsigned)a.dim[1];
    b.pair = pair, b.batch = pair / heads, b.number = pair % heads;
    b.row = (CAUSAL ? blocks - 1 - turn : turn) * ROWS; /* the longest first */
    b.q = matrix_of(a, 0, DIM_Q, b.batch, b.number, tq);
    b.k = matrix_of(a, 1, DIM_K, b.batch, b.number, tk);
    b.v = matrix_of(a, 2, DIM_V, b.batch, b.number, tk);
    b.h = head_of(a, b.batch, b.number);
    const int last = CAUSAL ? least(tk, b.row + ROWS) : tk, all_tiles = (last + COLS - 1) / COLS;
    const int each = (all_tiles + splits - 1) / splits;
    b.begin = split * each * COLS;
    b.tiles = least(each, all_tiles - split * each);
    return b;
}

#if SPLIT
/* Makes acc, top and sum those of all keys, in one block of those that share the rows from `row` on; false in
 * the others. */
TN_FN bool join(const tn_cuda_args &a, int row, float (&acc)[M_TILES][D_TILES][4], float (&top)[M_TILES][2],
                float (&sum)[M_TILES][2])
{
    const int lane = (int)threadIdx.x % 32, tq = (int)a.dim[2], splits = (int)a.dim[DIM_SPLITS];
    const int64_t item = blockIdx.x / (unsigned)splits, size = (int64_t)least(ROWS, tq) * (HEAD + 2);
    float *parts = (float *)a.buf[BUF_PARTS] + item * splits * size;
    float *own = parts + blockIdx.x % (unsigned)splits * size;
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int r = 0; r < 2; r++) {
            const int i = row_of(m, 2 * r);
            float *to = own + i * (HEAD + 2), all = sum[m][r];
            all += tn_xor_lane(all, 1);
            all += tn_xor_lane(all, 2);
            if (row + i >= tq) continue;
            TN_UNROLL(int d = 0; d < D_TILES; d++) {
                const float pair[2] = {acc[m][d][2 * r], acc[m][d][2 * r + 1]};
                tn_store(to + d * 8 + lane % 4 * 2, pair);
            }
            if (lane % 4 == 0) to[HEAD] = top[m][r], to[HEAD + 1] = all;
        }
    if (!tn_arrive_last(&a.ticket[item], (uint32_t)splits)) return false;
    clear(acc);
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int r = 0; r < 2; r++) {
            const int i = row_of(m, 2 * r);
            const float *from = parts + i * (HEAD + 2);
            top[m][r] = -TN_INF;
            sum[m][r] = 0;
            if (row + i >= tq) continue;
            for (int s = 0; s < splits; s++) top[m][r] = fmaxf(top[m][r], from[s * size + HEAD]);
            const float base = top[m][r] == -TN_INF ? 0 : top[m][r];
            for (int s = 0; s < splits; s++) {
                const float *part = from + s * size, fit = tn_exp2_fast(part[HEAD] - base);
                if (lane % 4 == 0)
                    sum[m][r] += part[HEAD + 1] * fit; /* the four lanes of a row are added up */
                TN_UNROLL(int d = 0; d < D_TILES; d++) {
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

/* The rows' results to memory, through `room`, where the block's own rows were. */
TN_FN void finish(const tn_cuda_args &a, const block_rows &b, elem *room, float (&acc)[M_TILES][D_TILES][4],
                  float (&top)[M_TILES][2], float (&sum)[M_TILES][2])
{
#if SPLIT
    if (!join(a, b.row, acc, top, sum)) return;
#endif
    const int own = row_of(0, 0) / OWN * OWN; /* the warp's rows */
    float inverse[M_TILES][2];
    TN_UNROLL(int m = 0; m < M_TILES; m++)
        TN_UNROLL(int r = 0; r < 2; r++) {
            float all = sum[m][r];
            all += tn_xor_lane(all, 1);
            all += tn_xor_lane(all, 2);
            const bool blind = all == 0; /* the row sees nothing */
            inverse[m][r] = blind ? (STRICT ? TN_NAN : 0.0f) : 1 / all;
#if DROPOUT
            inverse[m][r] *= b.h.rest;
#endif
#if LSE
            const int i = b.row + row_of(m, 2 * r), tq = b.h.tq;
            const float power = top[m][r] * (float)ATT_LN2 + tn_log_f32(all);
            float *lse = (float *)a.buf[BUF_LSE] + b.pair * tq;
            if ((int)threadIdx.x % 4 == 0 && i < tq) lse[i] = blind ? (STRICT ? TN_NAN : TN_INF) : power;
#endif
        }
    copy_out(matrix_of(a, BUF_O, DIM_O, b.batch, b.number, b.h.tq), b.row + own, room, own, acc, inverse);
}
