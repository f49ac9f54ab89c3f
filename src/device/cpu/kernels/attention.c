/* attention.c - attention forward on a processor, behind attention_begin.h.
 *
 *   o = softmax(scale q k^T + mask) v,  lse = log sum exp of a row's scores
 *
 * An item is ROWS queries of a head. It keeps for each the largest score so far, the sum of exponentials and the
 * weighted sum of v, and rescales them where a tile holds a larger score.
 *
 * Read first: through.
 */

typedef struct rows_state {
    float o[ROWS * WIDTH], sum[ROWS * LANES], most[ROWS];
} rows_state;

/* Takes HIGH queries through one tile of keys. `columns` of its keys are looked at, `valid` are there. */
static inline void through(const place *w, rows_state *x, const float *q, const float *k, const float *v,
                           int64_t r, int64_t rows, int64_t i, int64_t j, int64_t valid, bool first)
{
    float s[HIGH * KEYS] __attribute__((aligned(64)));
    const int64_t columns = whole(valid, LANES);
    product(columns, HEAD, q + r * WIDTH, WIDTH, 1, k, KEYS, s, KEYS, false);
    if (MASK || valid < columns || (CAUSAL && i - j + 1 < valid)) hide(w, s, rows, i, j, columns, valid);
#if DROPOUT
    float factor[HIGH * KEYS] __attribute__((aligned(64)));
    drops(w, factor, rows, i, j, columns, valid);
#endif
    for (int64_t h = 0; h < HIGH; h++) {
        float *row = s + h * KEYS, *o = x->o + (r + h) * WIDTH, *sum = x->sum + (r + h) * LANES;
        float high[LANES] __attribute__((aligned(64)));
        put(high, at(row));
        for (int64_t c = LANES; c < columns; c += LANES) UNROLL for (int l = 0; l < LANES; l++)
            {
                high[l] = row[c + l] > high[l] ? row[c + l] : high[l];
            }
        float top = largest(at(high)), old = x->most[r + h];
        top = top > old ? top : old;
        const float base = top == NONE ? 0 : top;
        SIMD for (int64_t c = 0; c < columns; c++) row[c] = power(row[c] - base);
        lanes added = {0};
        for (int64_t c = 0; c < columns; c += LANES) {
            added += at(row + c);
#if DROPOUT
            put(row + c, at(row + c) * at(factor + h * KEYS + c));
#endif
        }
        x->most[r + h] = top;
        if (first) {
            put(sum, added);
            continue;
        }
        const lanes by = all(power(old - base));
        put(sum, at(sum) * by + added);
        for (int64_t d = 0; d < WIDTH; d += LANES) put(o + d, at(o + d) * by);
    }
    product(WIDTH, valid, s, KEYS, 1, v, WIDTH, x->o + r * WIDTH, WIDTH, !first);
}

void ENTRY(const tn_args *a, int64_t begin, int64_t end)
{
    float q[ROWS * WIDTH] __attribute__((aligned(64))), k[WIDTH * KEYS] __attribute__((aligned(64))),
        v[KEYS * WIDTH] __attribute__((aligned(64)));
    rows_state x __attribute__((aligned(64)));
    const int64_t *n = a->dim, heads = n[1], tq = n[2], tk = n[3], blocks = (tq + ROWS - 1) / ROWS;
    for (int64_t item = begin; item < end; item++) {
        /* of a head the last rows first: under a causal mask they take longest */
        const int64_t which = item / blocks, i0 = (blocks - 1 - item % blocks) * ROWS;
        const place w = {a, which / heads, which % heads};
        const element *qs = (const element *)a->buf[0] + w.batch * n[4] + w.head * n[5] + i0 * n[6];
        const element *ks = (const element *)a->buf[1] + w.batch * n[7] + w.head * n[8];
        const element *vs = (const element *)a->buf[2] + w.batch * n[10] + w.head * n[11];
        const int64_t rows = least(tq - i0, ROWS), last = CAUSAL ? least(tk, i0 + rows) : tk;
        pack_rows(q, qs, n[6], rows, whole(rows, HIGH));
        for (int64_t r = 0; r < ROWS; r++) x.most[r] = NONE;
        for (int64_t j = 0; j < last; j += KEYS) {
            const int64_t there = least(tk - j, KEYS);
            pack_rows(v, ks + j * n[9], n[9], there, KEYS);
            pack_columns(k, v, (float)((SCALE)*LOG2E));
            pack_rows(v, vs + j * n[12], n[12], there, there);
            for (int64_t r = 0; r < rows; r += HIGH) {
                const int64_t valid = CAUSAL ? least(there, i0 + r + HIGH - j) : there;
                if (valid > 0) through(&w, &x, q, k, v, r, rows - r, i0 + r, j, valid, j == 0);
            }
        }
        for (int64_t r = 0; r < rows; r++) {
            const float sum = total(at(x.sum + r * LANES)), by = 1 / sum;
#if O
            element *to =
                (element *)a->buf[3 + (MASK != 0)] + w.batch * n[17] + w.head * n[18] + (i0 + r) * n[19];
            for (int64_t d = 0; d < HEAD; d++) to[d] = STORE(x.o[r * WIDTH + d] * by);
#endif
#if LSE
            float *lse = (float *)a->buf[3 + (MASK != 0) + O] + which * tq + i0 + r;
            *lse = sum == 0 ? TN_NAN : x.most[r] * (float)LN2 + tn_log_f32(sum);
#endif
        }
    }
}
