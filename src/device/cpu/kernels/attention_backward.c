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
    float kt[WIDTH * KEYS], vt[WIDTH * KEYS];
    float p[ROWS * KEYS], ds[ROWS * KEYS];
    float lse[ROWS], delta[ROWS], dq[HIGH * WIDTH];
} tiles;

/* Probabilities, and the gradients of the scores, of HIGH queries and one tile of keys. */
static inline void scores(const place *w, tiles *x, int64_t r, int64_t rows, int64_t i, int64_t j,
                          int64_t valid)
{
    float *p = x->p + r * KEYS, *ds = x->ds + r * KEYS;
    const int64_t columns = whole(valid, LANES);
    product(columns, HEAD, x->q + r * WIDTH, WIDTH, 1, x->kt, KEYS, p, KEYS, false);
    product(columns, HEAD, x->go + r * WIDTH, WIDTH, 1, x->vt, KEYS, ds, KEYS, false);
    const bool some = MASK || valid < columns || (CAUSAL && i - j + 1 < valid);
    if (some) hide(w, p, rows, i, j, columns, valid);
#if DROPOUT
    float factor[HIGH * KEYS] __attribute__((aligned(64)));
    drops(w, factor, rows, i, j, columns, valid);
#endif
    for (int64_t h = 0; h < HIGH; h++) {
        const float lse = x->lse[r + h], delta = x->delta[r + h];
        float *to = p + h * KEYS, *grad = ds + h * KEYS;
        SIMD for (int64_t c = 0; c < columns; c++)
        {
            const float e = power(to[c] - lse);
#if DROPOUT
            const float f = factor[h * KEYS + c], g = e * tn_fma_f32(grad[c], f, -delta);
#else
            const float f = 1, g = e * (grad[c] - delta);
#endif
            /* what is hidden passes nothing on, even where a row sees nothing and is NaN */
            grad[c] = MASK != 2 && to[c] == NONE ? 0 : g;
            to[c] = e * f;
        }
        for (int64_t c = columns; c < KEYS; c += LANES) {
            put(p + h * KEYS + c, (lanes){0});
            put(ds + h * KEYS + c, (lanes){0});
        }
    }
}

static void write_rows(element *to, int64_t stride, const float *from, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < HEAD; d++) to[r * stride + d] = STORE(from[r * WIDTH + d]);
}

/* The rows that dq is added up in: those of the gradient itself, or memory of this part's own. */
typedef struct sums {
    float *at;
    int64_t row;
    int width;
} sums;

static inline void add_dq(tiles *x, const sums *s, int64_t r, int64_t rows, int64_t i, int64_t valid)
{
    float *own = x->dq;
    for (int64_t h = 0; h < HIGH && h < rows; h++)
        for (int64_t d = 0; d < s->width; d++) own[h * WIDTH + d] = s->at[(i + h) * s->row + d];
    product(WIDTH, valid, x->ds + r * KEYS, KEYS, 1, x->k, WIDTH, own, WIDTH, true);
    for (int64_t h = 0; h < HIGH && h < rows; h++)
        for (int64_t d = 0; d < s->width; d++) s->at[(i + h) * s->row + d] = own[h * WIDTH + d];
}

/* One tile of keys of a head: all the queries that see it. */
static void keys_of(const place *w, tiles *x, const sums *s, int64_t which, int64_t j, bool blind)
{
    const tn_args *a = w->a;
    const int64_t *n = a->dim, tq = n[2], there = least(n[3] - j, KEYS);
    const element *qs = (const element *)a->buf[0] + w->batch * n[4] + w->head * n[5];
    const element *ks = (const element *)a->buf[1] + w->batch * n[7] + w->head * n[8] + j * n[9];
    const element *vs = (const element *)a->buf[2] + w->batch * n[10] + w->head * n[11] + j * n[12];
    const element *os = (const element *)a->buf[GO - 2] + w->batch * n[17] + w->head * n[18];
    const element *gs = (const element *)a->buf[GO] + w->batch * n[20] + w->head * n[21];
    const float *lse = (const float *)a->buf[GO - 1] + which * tq;
    const bool causal = CAUSAL && !blind;
    pack_rows(x->k, vs, n[12], there, KEYS);
    pack_columns(x->vt, x->k, (float)(SCALE));
    pack_rows(x->k, ks, n[9], there, KEYS);
    pack_columns(x->kt, x->k, (float)((SCALE)*LOG2E));
    for (int64_t i = 0; i < KEYS * WIDTH; i++) x->dk[i] = x->dv[i] = 0;
    for (int64_t i0 = causal ? j / ROWS * ROWS : 0; i0 < tq; i0 += ROWS) {
        const int64_t rows = least(tq - i0, ROWS), full = whole(rows, HIGH);
        pack_rows(x->q, qs + i0 * n[6], n[6], rows, full);
        pack_rows(x->go, gs + i0 * n[22], n[22], rows, full);
        for (int64_t r = 0; r < full; r++) {
            float sum[LANES] = {0};
            const element *o = os + (i0 + r) * n[19];
            for (int64_t d = 0; d < HEAD && r < rows; d++)
                sum[d % LANES] = tn_fma_f32(LOAD(o[d]), x->go[r * WIDTH + d], sum[d % LANES]);
            for (int64_t d = 1; d < LANES; d++) sum[0] += sum[d];
            x->delta[r] = sum[0] * (float)(SCALE);
            x->lse[r] = r < rows ? lse[i0 + r] * (float)LOG2E : 0;
        }
        for (int64_t r = 0; r < full; r += HIGH) {
            const int64_t valid = causal ? least(there, i0 + r + HIGH - j) : there;
            if (valid <= 0) {
                for (int64_t c = r * KEYS; c < (r + HIGH) * KEYS; c++) x->p[c] = x->ds[c] = 0;
                continue;
            }
            scores(w, x, r, rows - r, i0 + r, j, valid);
            if (DQ) add_dq(x, s, r, rows - r, i0 + r, valid);
        }
        for (int64_t c = 0; c < there; c += HIGH) {
            const int64_t first = causal && j + c > i0 ? least(j + c - i0, full) : 0;
            if (DV)
                product(WIDTH, rows - first, x->p + first * KEYS + c, 1, KEYS, x->go + first * WIDTH, WIDTH,
                        x->dv + c * WIDTH, WIDTH, true);
            if (DK)
                product(WIDTH, rows - first, x->ds + first * KEYS + c, 1, KEYS, x->q + first * WIDTH, WIDTH,
                        x->dk + c * WIDTH, WIDTH, true);
        }
    }
    if (DK)
        write_rows((element *)a->buf[OUT + DQ] + w->batch * n[26] + w->head * n[27] + j * n[28], n[28], x->dk,
                   there);
    if (DV)
        write_rows((element *)a->buf[OUT + DQ + DK] + w->batch * n[29] + w->head * n[30] + j * n[31], n[31],
                   x->dv, there);
}

void ENTRY(const tn_args *a, int64_t begin, int64_t end)
{
    tiles x __attribute__((aligned(64)));
    const int64_t *n = a->dim, heads = n[1], tq = n[2], tk = n[3], all_tiles = (tk + KEYS - 1) / KEYS;
    for (int64_t i = 0; i < HIGH * WIDTH; i++) x.dq[i] = 0;
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
            const float lse = ((const float *)a->buf[GO - 1])[which * tq + i];
            blind |= lse != lse;
            for (int64_t d = 0; d < s.width; d++) s.at[i * s.row + d] = 0;
        }
        for (int64_t t = from; t < to; t++) keys_of(&w, &x, &s, which, t * KEYS, blind);
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
