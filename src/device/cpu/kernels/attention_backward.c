/* attention_backward.c - the gradients of attention on a processor, behind attention_begin.h.
 *
 * An item is a head, or one of SPLIT parts of its keys: it makes the probabilities again from lse, adds up dk
 * and dv of its keys, and dq where the other parts add theirs, in memory of its own that the finish adds up
 * in order.
 *
 * Read first: scores, then keys_of.
 */

#define PARTIAL (DQ && (SPLIT > 1 || DTYPE != 0))
#define GO      (5 + (MASK != 0)) /* places of buffers */
#define PARTS   (GO + 1)
#define OUT     (PARTS + PARTIAL)

typedef struct tiles {
    float q[ROWS * WIDTH], go[ROWS * WIDTH], k[KEYS * WIDTH], dk[KEYS * WIDTH], dv[KEYS * WIDTH];
    float kt[WIDTH * ROW], vt[WIDTH * ROW];
    float p[ROWS * ROW], ds[ROWS * ROW];
    float lse[ROWS], rest[ROWS], delta[ROWS], dq[MOST * WIDTH];
} tiles;

/* dk and dv: rows weighed by what stands in columns, of as many queries. */
static __attribute__((noinline)) void weigh_turned(int64_t keys, int64_t queries, const float *p,
                                                   const float *q, float *dk, int64_t dk_row, bool add)
{
    product(keys, WIDTH, queries, p, 1, ROW, q, WIDTH, dk, dk_row, add);
}

/* Probabilities, and the gradients of the scores, of up to MOST queries and one tile of keys, of which they
 * look at `valid`. */
static inline void scores(const place *w, tiles *x, int64_t r, int64_t rows, int64_t i, int64_t j,
                          int64_t valid, int64_t there)
{
    float *p = x->p + r * ROW, *ds = x->ds + r * ROW;
    const int64_t columns = whole(valid, LANES);
    score(rows, whole(valid, LANES / 2), x->q + r * WIDTH, x->kt, p);
    score(rows, whole(valid, LANES / 2), x->go + r * WIDTH, x->vt, ds);
    const bool some = MASK || valid < columns || (CAUSAL && i - j + 1 < valid);
    if (some) hide(w, p, rows, i, j, columns, valid);
#if DROPOUT
    float factor[MOST * ROW] __attribute__((aligned(64)));
    drops(w, factor, rows, i, j, columns, valid);
#endif
    for (int64_t h = 0; h < rows; h++) {
        const float lse = x->lse[r + h], delta = x->delta[r + h], rest = FINE ? x->rest[r + h] : 0;
        float *to = p + h * ROW, *grad = ds + h * ROW;
        SIMD for (int64_t c = 0; c < columns; c++)
        {
            const float e = power(FINE ? to[c] - lse - rest : to[c] - lse);
#if DROPOUT
            const float f = factor[h * ROW + c], g = e * tn_fma_f32(grad[c], f, -delta);
#else
            const float f = 1, g = e * (grad[c] - delta);
#endif
            /* what is hidden passes nothing on, even where a row sees nothing and is NaN */
            grad[c] = MASK != 2 && to[c] == NONE ? 0 : g;
            to[c] = e * f;
        }
        /* gradients of keys take several columns at a time, with some behind the last that is seen */
        for (int64_t c = columns; c < there && (MASK || c == columns); c += LANES) {
            put(to + c, (lanes){0});
            put(grad + c, (lanes){0});
        }
    }
}

#if !DIRECT
static void write_rows(element *to, int64_t stride, const float *from, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < HEAD; d++) to[r * stride + d] = STORE(from[r * WIDTH + d]);
}
#endif

/* The rows that dq is added up in: those of the gradient itself, or memory of this part's own. */
typedef struct sums {
    float *at;
    int64_t row;
    int width;
} sums;

static inline void add_dq(tiles *x, const sums *s, int64_t r, int64_t rows, int64_t i, int64_t valid,
                          bool add)
{
    const float *ds = x->ds + r * ROW;
    float *to = s->at + i * s->row, *own = x->dq;
    if (s->width == WIDTH) {
        weigh(rows, valid, ds, x->k, WIDTH, to, s->row, add);
        return;
    }
    for (int64_t h = 0; h < rows; h++)
        for (int64_t d = 0; d < s->width; d++) own[h * WIDTH + d] = to[h * s->row + d];
    weigh(rows, valid, ds, x->k, WIDTH, own, WIDTH, add);
    for (int64_t h = 0; h < rows; h++)
        for (int64_t d = 0; d < s->width; d++) to[h * s->row + d] = own[h * WIDTH + d];
}

/* One tile of keys of a head: all the queries that see it. */
static void keys_of(const place *w, tiles *x, const sums *s, int64_t which, int64_t j, int64_t there,
                    bool first, bool blind)
{
    const tn_args *a = w->a;
    const int64_t *n = a->dim, tq = n[2], most = share_of(tq, ROWS, HIGH);
    const element *qs = (const element *)a->buf[0] + w->batch * n[4] + w->head * n[5];
    const element *ks = (const element *)a->buf[1] + w->batch * n[7] + w->head * n[8] + j * n[9];
    const element *vs = (const element *)a->buf[2] + w->batch * n[10] + w->head * n[11] + j * n[12];
    const element *os = (const element *)a->buf[GO - 2] + w->batch * n[17] + w->head * n[18];
    const element *gs = (const element *)a->buf[GO] + w->batch * n[20] + w->head * n[21];
    const logarithm *lse = (const logarithm *)a->buf[GO - 1] + which * tq;
    const bool causal = CAUSAL && !blind;
    element *dk = DK ? (element *)a->buf[OUT + DQ] + w->batch * n[26] + w->head * n[27] + j * n[28] : 0;
    element *dv = DV ? (element *)a->buf[OUT + DQ + DK] + w->batch * n[29] + w->head * n[30] + j * n[31] : 0;
#if DIRECT
    float *dks = dk, *dvs = dv;
    const int64_t dk_row = n[28], dv_row = n[31];
#else
    float *dks = x->dk, *dvs = x->dv;
    const int64_t dk_row = WIDTH, dv_row = WIDTH;
#endif
    pack_columns(x->kt, ks, n[9], there, (float)((SCALE)*LOG2E), x->k);
    pack_columns(x->vt, vs, n[12], there, (float)(SCALE), x->k);
    pack_rows(x->k, ks, n[9], there, 1);
    const int64_t i1 = causal ? least(j, tq - 1) / most * most : 0;
    for (int64_t i0 = i1; i0 < tq; i0 += most) {
        const int64_t rows = least(tq - i0, most);
        pack_rows(x->q, qs + i0 * n[6], n[6], rows, 1);
        pack_rows(x->go, gs + i0 * n[22], n[22], rows, 1);
        for (int64_t r = 0; r < rows; r++) {
            float sum[LANES] = {0};
            const element *o = os + (i0 + r) * n[19];
            for (int64_t d = 0; d < HEAD; d++)
                sum[d % LANES] = tn_fma_f32(LOAD(o[d]), x->go[r * WIDTH + d], sum[d % LANES]);
            for (int64_t d = 1; d < LANES; d++) sum[0] += sum[d];
            x->delta[r] = sum[0] * (float)(SCALE);
            const logarithm lg = lse[i0 + r] * (logarithm)LOG2E;
            x->lse[r] = (float)lg;
            x->rest[r] = lg - lg == 0 ? (float)(lg - x->lse[r]) : 0;
        }
        for (int64_t r = 0, high; r < rows; r += high) {
            high = next_of(rows - r);
            const int64_t valid = blind ? there : seen_of(w, high, i0 + r, j, there);
            if (valid > 0) {
                scores(w, x, r, high, i0 + r, j, valid, there);
                if (DQ) add_dq(x, s, r, high, i0 + r, valid, !first);
            } else if (MASK)
                for (int64_t c = r * ROW; c < (r + high) * ROW; c++) x->p[c] = x->ds[c] = 0;
        }
        for (int64_t c = 0, keys; c < there; c += keys) {
            const int64_t from = causal && j + c > i0 ? least(j + c - i0, rows) : 0, seen = rows - from;
            const float *p = x->p + from * ROW + c, *ds = x->ds + from * ROW + c;
            keys = next_of(there - c);
            if (DV) weigh_turned(keys, seen, p, x->go + from * WIDTH, dvs + c * dv_row, dv_row, i0 > i1);
            if (DK) weigh_turned(keys, seen, ds, x->q + from * WIDTH, dks + c * dk_row, dk_row, i0 > i1);
        }
    }
#if !DIRECT
    if (DK) write_rows(dk, n[28], x->dk, there);
    if (DV) write_rows(dv, n[31], x->dv, there);
#endif
}

void ENTRY(const tn_args *a, int64_t begin, int64_t end)
{
    tiles x __attribute__((aligned(64)));
    const int64_t *n = a->dim, heads = n[1], tq = n[2], tk = n[3], all_tiles = (tk + KEYS - 1) / KEYS,
                  step = share_of(tk, KEYS, LANES);
    for (int64_t i = 0; i < MOST * WIDTH; i++) x.dq[i] = 0;
    for (int64_t item = begin; item < end; item++) {
        const int64_t which = item / SPLIT, part = item % SPLIT;
        const int64_t from = all_tiles * part / SPLIT, to = all_tiles * (part + 1) / SPLIT;
        const place w = {a, which / heads, which % heads};
#if PARTIAL
        const sums s = {(float *)a->buf[PARTS] + item * tq * WIDTH, WIDTH, WIDTH};
#elif DQ
        const sums s = {(float *)a->buf[OUT] + w.batch * n[23] + w.head * n[24], n[25], HEAD};
#else
        const sums s = {0};
#endif
        bool blind = false; /* some query sees nothing and is NaN, which reaches every key */
        for (int64_t i = 0; i < tq; i++) {
            const logarithm lse = ((const logarithm *)a->buf[GO - 1])[which * tq + i];
            blind |= lse != lse;
        }
        /* where all queries see a key of the first tile, that writes dq and the others add to it */
        const bool first = !MASK && from == 0;
        for (int64_t i = 0; !first && i < tq; i++)
            for (int64_t d = 0; d < s.width; d++) s.at[i * s.row + d] = 0;
        for (int64_t t = from; t < to; t++)
            keys_of(&w, &x, &s, which, t * step, least(step, tk - t * step), first && t == 0, blind);
    }
}

#if PARTIAL
/* Adds up the parts of dq: an item is ROWS rows of a head. */
void FINISH(const tn_args *a, int64_t begin, int64_t end)
{
    const int64_t *n = a->dim, heads = n[1], tq = n[2], blocks = (tq + ROWS - 1) / ROWS;
    for (int64_t item = begin; item < end; item++) {
        const int64_t which = item / blocks, i0 = item % blocks * ROWS, i1 = least(tq, i0 + ROWS);
        const float *part = (const float *)a->buf[PARTS] + which * SPLIT * tq * WIDTH;
        element *to = (element *)a->buf[OUT] + which / heads * n[23] + which % heads * n[24];
        for (int64_t i = i0; i < i1; i++) {
            float sum[WIDTH];
            for (int64_t d = 0; d < WIDTH; d++) sum[d] = part[i * WIDTH + d];
            for (int64_t p = 1; p < SPLIT; p++)
                for (int64_t d = 0; d < WIDTH; d++) sum[d] += part[(p * tq + i) * WIDTH + d];
            for (int64_t d = 0; d < HEAD; d++) to[i * n[25] + d] = STORE(sum[d]);
        }
    }
}
#endif
