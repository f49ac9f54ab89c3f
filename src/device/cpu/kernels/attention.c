/* attention.c - attention forward on a processor, behind attention_begin.h.
 *
 *   o = softmax(scale q k^T + mask) v,  lse = log sum exp of a row's scores
 *
 * An item is ROWS queries of a head. It keeps for each a score that stands for 1, the sum of exponentials and
 * the weighted sum of v. That score is the largest so far, or less than it by up to SLACK: only a tile that
 * holds a still larger one makes HIGH queries find theirs again and rescale what they have, and after a few
 * tiles hardly any does.
 *
 * Read first: through.
 */

typedef struct rows_state {
    float o[ROWS * WIDTH], sum[ROWS * LANES], most[ROWS];
    bool begun[ROWS]; /* there is something in o and sum */
} rows_state;

#define SLACK 8 /* powers of two: nothing is lost of a float by them */

static inline lanes larger(lanes a, lanes b)
{
    UNROLL(int l = 0; l < LANES; l++) a[l] = b[l] > a[l] ? b[l] : a[l];
    return a;
}

static inline lanes largest_of(const float *row, int64_t columns)
{
    lanes high = at(row);
    for (int64_t c = LANES; c < columns; c += LANES) high = larger(high, at(row + c));
    return high;
}

/* Returns true where one of the rows of scores holds a score that exceeds its row's `most` by more than
 * SLACK. */
static inline bool outgrown(const float *most, const float *s, int64_t rows, int64_t columns)
{
    lanes above = {0};
    for (int64_t h = 0; h < rows; h++)
        above = larger(above, largest_of(s + h * ROW, columns) - all(most[h] + SLACK));
    return largest(above) > 0;
}

/* Asks for part `which` of `parts` of the rows of k and v that come next: they are farther away than the
 * others. */
static inline void fetch(const element *k, int64_t k_row, const element *v, int64_t v_row, int64_t rows,
                         int64_t which, int64_t parts)
{
    const int64_t each = (rows + parts - 1) / parts, end = least(rows, (which + 1) * each);
    for (int64_t i = which * each; i < end; i++)
        for (int64_t d = 0; d < HEAD; d += 64 / (int64_t)sizeof(element)) {
            __builtin_prefetch(k + i * k_row + d);
            __builtin_prefetch(v + i * v_row + d);
        }
}

/* Takes up to MOST queries through one tile of keys, of which they look at `valid`. */
static inline void through(const place *w, rows_state *x, const float *q, const float *k, const float *v,
                           int64_t v_row, int64_t r, int64_t rows, int64_t i, int64_t j, int64_t valid)
{
    float s[MOST * ROW] __attribute__((aligned(64)));
    const int64_t columns = whole(valid, LANES);
    score(rows, whole(valid, LANES / 2), q + r * WIDTH, k, s);
    if (MASK || valid < columns || (CAUSAL && i - j + 1 < valid)) hide(w, s, rows, i, j, columns, valid);
#if DROPOUT
    float factor[MOST * ROW] __attribute__((aligned(64)));
    drops(w, factor, rows, i, j, columns, valid);
#endif
    const bool first = !x->begun[r], rises = first || outgrown(x->most + r, s, rows, columns);
    for (int64_t h = 0; h < rows; h++) {
        float *row = s + h * ROW, *o = x->o + (r + h) * WIDTH, *sum = x->sum + (r + h) * LANES;
        const float old = x->most[r + h], high = rises ? largest(largest_of(row, columns)) : old;
        const float top = high > old ? high : old, base = top == NONE ? 0 : top;
        SIMD for (int64_t c = 0; c < columns; c++) row[c] = power(row[c] - base);
        lanes added = {0};
        for (int64_t c = 0; c < columns; c += LANES) {
            added += at(row + c);
#if DROPOUT
            put(row + c, at(row + c) * at(factor + h * ROW + c));
#endif
        }
        x->most[r + h] = top;
        x->begun[r + h] = true;
        if (rises && !first) {
            const lanes by = all(power(old - base));
            added += at(sum) * by;
            for (int64_t d = 0; d < WIDTH; d += LANES) put(o + d, at(o + d) * by);
        } else if (!first) {
            added += at(sum);
        }
        put(sum, added);
    }
    weigh(rows, valid, s, v, v_row, x->o + r * WIDTH, WIDTH, !first);
}

void ENTRY(const tn_args *a, int64_t begin, int64_t end)
{
    float q[ROWS * WIDTH] __attribute__((aligned(64))), k[WIDTH * ROW] __attribute__((aligned(64))),
        v[KEYS * WIDTH] __attribute__((aligned(64)));
    rows_state x __attribute__((aligned(64)));
    const int64_t *n = a->dim, heads = n[1], tq = n[2], tk = n[3], blocks = (tq + ROWS - 1) / ROWS;
    const int64_t most = share_of(tq, ROWS, HIGH), step = share_of(tk, KEYS, LANES);
    for (int64_t item = begin; item < end; item++) {
        /* of a head the last rows first: under a causal mask they take longest */
        const int64_t which = item / blocks, i0 = (blocks - 1 - item % blocks) * most;
        const place w = {a, which / heads, which % heads};
        const element *qs = (const element *)a->buf[0] + w.batch * n[4] + w.head * n[5] + i0 * n[6];
        const element *ks = (const element *)a->buf[1] + w.batch * n[7] + w.head * n[8];
        const element *vs = (const element *)a->buf[2] + w.batch * n[10] + w.head * n[11];
        const int64_t rows = least(tq - i0, most), last = CAUSAL ? least(tk, i0 + rows) : tk;
        pack_rows(q, qs, n[6], rows, (float)((SCALE)*LOG2E));
        for (int64_t r = 0; r < rows; r++) x.most[r] = NONE;
        for (int64_t r = 0; r < rows; r++) x.begun[r] = false;
        for (int64_t j = 0; j < last; j += step) {
            const int64_t there = seen_of(&w, rows, i0, j, least(tk - j, step));
            if (there <= 0) continue;
            pack_columns(k, ks + j * n[9], n[9], there, 1, v);
#if DIRECT
            const bool once = rows <= 2; /* not worth a copy */
            const float *values = once ? vs + j * n[12] : v;
#else
            const bool once = false;
            const float *values = v;
#endif
            const int64_t v_row = once ? n[12] : WIDTH;
            if (!once) pack_rows(v, vs + j * n[12], n[12], there, 1);
            const element *next_k = ks + (j + there) * n[9], *next_v = vs + (j + there) * n[12];
            for (int64_t r = 0, high; r < rows; r += high) {
                high = next_of(rows - r);
                fetch(next_k, n[9], next_v, n[12], least(last - j - there, step), r / HIGH,
                      whole(rows, HIGH) / HIGH);
                const int64_t valid = seen_of(&w, high, i0 + r, j, there);
                if (valid > 0) through(&w, &x, q, k, values, v_row, r, high, i0 + r, j, valid);
            }
        }
        for (int64_t r = 0; r < rows; r++) {
            const bool blind = !x.begun[r];
            const float sum = blind ? 0 : total(at(x.sum + r * LANES));
            const float by = sum != 0 ? 1 / sum : STRICT ? TN_NAN : 0;
#if O
            element *to =
                (element *)a->buf[3 + (MASK != 0)] + w.batch * n[17] + w.head * n[18] + (i0 + r) * n[19];
            for (int64_t d = 0; d < HEAD; d++) to[d] = STORE(blind ? by : x.o[r * WIDTH + d] * by);
#endif
#if LSE
            logarithm *lse = (logarithm *)a->buf[3 + (MASK != 0) + O] + which * tq + i0 + r;
            *lse = sum != 0 ? x.most[r] * (logarithm)LN2 + tn_log_f32(sum) : STRICT ? TN_NAN : -NONE;
#endif
        }
    }
}
