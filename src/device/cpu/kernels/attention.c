/* attention.c - attention on a processor, forward and backward: text that is compiled at run time.
 *
 *   o = softmax(scale q k^T + mask) v,  lse = log sum exp of a row's scores
 *
 * Scores are made a tile at a time (ROWS queries, KEYS keys) and never written. Forward keeps for each query
 * the largest score so far, the sum of exponentials and the weighted sum of v, and rescales them where a tile
 * holds a larger score. Backward makes the probabilities again from lse. Exponentials are powers of two: the
 * scores come out of the product times log2 e.
 *
 * An item of forward is ROWS queries of a head. An item of backward is a head, or one of SPLIT parts of its
 * keys: it adds up dk and dv of its keys, and dq where the other parts add theirs, in memory of its own that
 * the finish adds up in order. What an item computes does not depend on who runs it: nor do the bits.
 *
 * All products are one register tile: lanes run along the columns of the right operand, elements of the left
 * are spread over all lanes. Operands are packed once a tile, as f32, with rows filled up to whole vectors.
 *
 * #defines in front: ENTRY, FINISH (names), BACKWARD 0|1, DTYPE 0 f32 | 2 f16 | 3 bf16, HEAD, SCALE, CAUSAL
 * 0|1, MASK 0 | 1 bool | 2 of DTYPE, added, DROPOUT 0|1 (then DROP_P, SEED, DRAW), ROWS and KEYS of a tile;
 * forward: O LSE 0|1, which are wanted; backward: DQ DK DV 0|1, SPLIT. SCALE, DROP_P, SEED and DRAW may name
 * the kernel's arguments `a`. Strides and operands: fuser/attention.h.
 *
 * Read first: product, then forward.
 */

/* Several kernels are compiled as one unit: what this one has is called after it. */
#define OWN_(entry, name) entry##_##name
#define OWN(entry, name)  OWN_(entry, name)
#define lanes             OWN(ENTRY, lanes)
#define element           OWN(ENTRY, element)
#define mask_element      OWN(ENTRY, mask_element)
#define all               OWN(ENTRY, all)
#define at                OWN(ENTRY, at)
#define put               OWN(ENTRY, put)
#define power             OWN(ENTRY, power)
#define largest           OWN(ENTRY, largest)
#define total             OWN(ENTRY, total)
#define tile              OWN(ENTRY, tile)
#define product           OWN(ENTRY, product)
#define pack_rows         OWN(ENTRY, pack_rows)
#define turn              OWN(ENTRY, turn)
#define pack_columns      OWN(ENTRY, pack_columns)
#define place             OWN(ENTRY, place)
#define hide              OWN(ENTRY, hide)
#define drops             OWN(ENTRY, drops)
#define whole             OWN(ENTRY, whole)
#define least             OWN(ENTRY, least)
#define rows_state        OWN(ENTRY, rows_state)
#define through           OWN(ENTRY, through)
#define tiles             OWN(ENTRY, tiles)
#define scores            OWN(ENTRY, scores)
#define write_rows        OWN(ENTRY, write_rows)
#define sums              OWN(ENTRY, sums)
#define add_dq            OWN(ENTRY, add_dq)
#define keys_of           OWN(ENTRY, keys_of)

#if defined(__AVX512F__)
#define LANES 16
#define HIGH  8 /* rows of a register tile, which is two vectors wide */
#else
#define LANES 8
#define HIGH  4
#endif
#define WIDTH  ((HEAD + 15) / 16 * 16)
#define UNROLL _Pragma("GCC unroll 16")
#define SIMD   _Pragma("omp simd")

typedef float lanes __attribute__((vector_size(4 * LANES)));

#if DTYPE == 2
typedef tn_half element;
#define LOAD(x)  tn_half_to_f32(x)
#define STORE(x) tn_f32_to_half(x)
#elif DTYPE == 3
typedef tn_bfloat16 element;
#define LOAD(x)  tn_bfloat16_to_f32(x)
#define STORE(x) tn_f32_to_bfloat16(x)
#else
typedef float element;
#define LOAD(x)  (x)
#define STORE(x) (x)
#endif
#if MASK == 1
typedef uint8_t mask_element;
#else
typedef element mask_element;
#endif

#define LOG2E 1.4426950408889634

#if MASK == 2
/* What is added to a score, as an exponent of 2: the lowest numbers, which programs take for minus infinity,
 * stay finite, so that a row of nothing else is one of equal scores. */
static inline float in_bits(float x)
{
    const float most = 3e38f, y = x * (float)LOG2E;
    return y < -most && x > -__builtin_inff() ? -most : y;
}
#endif
#define LN2 0.6931471805599453

/* ---- vectors ---- */

static inline lanes all(float x)
{
    return x - (lanes){0}; /* x itself, whatever its sign: no arithmetic is left of it */
}

static inline lanes at(const float *p)
{
    return *(const lanes *)p;
}

static inline void put(float *p, lanes v)
{
    *(lanes *)p = v;
}

/* 2^x, within 1e-7 of it, for x up to 126; 0 below -126. NaN stays. */
TN_FN float power(float x)
{
    const float shift = 0x1.8p23f + 127, t = x + shift, f = x - (t - shift);
    float p = 0x1.41fbbcp-13f;
    p = p * f + 0x1.5f3e52p-10f;
    p = p * f + 0x1.3b2d4cp-7f;
    p = p * f + 0x1.c6aee8p-5f;
    p = p * f + 0x1.ebfbdcp-3f;
    p = p * f + 0x1.62e43p-1f;
    p = p * f + 1;
    p *= tn_from_bits_f32(tn_bits_f32(t) << 23);
    return x < -126 ? 0 : p;
}

static inline float largest(lanes v)
{
    float x[LANES] __attribute__((aligned(64)));
    put(x, v);
    UNROLL for (int w = LANES / 2; w; w /= 2)
    {
        UNROLL for (int i = 0; i < w; i++)
        {
            x[i] = x[i + w] > x[i] ? x[i + w] : x[i];
        }
    }
    return x[0];
}

static inline float total(lanes v)
{
    float x[LANES] __attribute__((aligned(64)));
    put(x, v);
    UNROLL for (int w = LANES / 2; w; w /= 2)
    {
        UNROLL for (int i = 0; i < w; i++)
        {
            x[i] += x[i + w];
        }
    }
    return x[0];
}

/* ---- products ---- */

/* c[HIGH][wide vectors] (+)= a b: element (i, k) of a stands at i * a_row + k * a_k. */
static inline __attribute__((always_inline)) void tile(const int wide, int64_t k, const float *a,
                                                       int64_t a_row, int64_t a_k, const float *b,
                                                       int64_t b_row, float *c, int64_t c_row, bool add)
{
    lanes sum[HIGH][2];
    UNROLL for (int i = 0; i < HIGH; i++)
    {
        UNROLL for (int j = 0; j < wide; j++)
        {
            sum[i][j] = add ? at(c + i * c_row + j * LANES) : (lanes){0};
        }
    }
    for (int64_t p = 0; p < k; p++) {
        lanes right[2];
        UNROLL for (int j = 0; j < wide; j++)
        {
            right[j] = at(b + p * b_row + j * LANES);
        }
        UNROLL for (int i = 0; i < HIGH; i++)
        {
            const lanes left = all(a[i * a_row + p * a_k]);
            UNROLL for (int j = 0; j < wide; j++)
            {
                sum[i][j] += left * right[j];
            }
        }
    }
    UNROLL for (int i = 0; i < HIGH; i++)
    {
        UNROLL for (int j = 0; j < wide; j++)
        {
            put(c + i * c_row + j * LANES, sum[i][j]);
        }
    }
}

/* The same for any number of columns, a multiple of LANES. */
static inline __attribute__((always_inline)) void product(int64_t columns, int64_t k, const float *a,
                                                          const int64_t a_row, const int64_t a_k,
                                                          const float *b, const int64_t b_row, float *c,
                                                          const int64_t c_row, bool add)
{
    int64_t j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES)
        tile(2, k, a, a_row, a_k, b + j, b_row, c + j, c_row, add);
    if (j < columns) tile(1, k, a, a_row, a_k, b + j, b_row, c + j, c_row, add);
}

/* ---- packing ---- */

/* `rows` rows as f32, filled up with zeros to whole vectors, and to `full` rows. */
static void pack_rows(float *to, const element *from, int64_t stride, int64_t rows, int64_t full)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t d = 0; d < HEAD; d++) to[i * WIDTH + d] = LOAD(from[i * stride + d]);
        for (int64_t d = HEAD; d < WIDTH; d++) to[i * WIDTH + d] = 0;
    }
    for (int64_t i = rows * WIDTH; i < full * WIDTH; i++) to[i] = 0;
}

#if LANES == 16 && (defined(__clang__) || __GNUC__ >= 12)
#define SWAP(a, b, low, high)                                                                                \
    {                                                                                                        \
        lanes both = low(a, b);                                                                              \
        b = high(a, b);                                                                                      \
        a = both;                                                                                            \
    }
#define LOW8(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH8(a, b)                                                                                          \
    __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define LOW4(a, b)  __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define HIGH4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define LOW2(a, b)  __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH2(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define LOW1(a, b)  __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define HIGH1(a, b) __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define ROUND(w)    UNROLL for (int i = 0; i < LANES; i++) if (!(i & w)) SWAP(v[i], v[i + w], LOW##w, HIGH##w)

/* A square of LANES rows becomes its columns. */
static inline void turn(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    lanes v[LANES];
    UNROLL for (int i = 0; i < LANES; i++)
    {
        v[i] = at(from + i * from_row);
    }
    ROUND(8)
    ROUND(4)
    ROUND(2)
    ROUND(1)
    UNROLL for (int i = 0; i < LANES; i++)
    {
        put(to + i * to_row, v[i]);
    }
}
#else
static inline void turn(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) to[i * to_row + j] = from[j * from_row + i];
}
#endif

/* Packed rows, KEYS of them, times `by`, as columns. */
static void pack_columns(float *to, const float *rows, float by)
{
    for (int64_t j = 0; j < KEYS; j += LANES)
        for (int64_t d = 0; d < WIDTH; d += LANES) turn(to + d * KEYS + j, KEYS, rows + j * WIDTH + d, WIDTH);
    for (int64_t i = 0; i < WIDTH * KEYS; i += LANES) put(to + i, at(to + i) * by);
}

/* ---- masks ---- */

/* Of HIGH rows of scores from query i and key j on: what is seen. Sets what is not to minus infinity, adds
 * what is added. `valid` are the columns there are; the others are not seen. */
typedef struct place {
    const tn_args *a;
    int64_t batch, head;
} place;

#define NONE (-__builtin_inff())

static inline void hide(const place *w, float *s, int64_t rows, int64_t i, int64_t j, int64_t columns,
                        int64_t valid)
{
    for (int64_t r = 0; r < HIGH; r++) {
        float *row = s + r * KEYS;
#if MASK
        if (r < rows) {
            const int64_t *n = w->a->dim + 13;
            const mask_element *m = (const mask_element *)w->a->buf[3] + w->batch * n[0] + w->head * n[1] +
                                    (i + r) * n[2] + j * n[3];
            if (n[3] == 1) {
                for (int64_t c = 0; c < valid; c++)
#if MASK == 1
                    row[c] = m[c] ? row[c] : NONE;
#else
                    row[c] += in_bits(LOAD(m[c]));
#endif
            } else {
                for (int64_t c = 0; c < valid; c++)
#if MASK == 1
                    row[c] = m[c * n[3]] ? row[c] : NONE;
#else
                    row[c] += in_bits(LOAD(m[c * n[3]]));
#endif
            }
        }
#endif
        int64_t seen = valid;
        if (CAUSAL && i + r - j + 1 < seen) seen = i + r - j + 1;
        if (seen < columns) {
            for (int64_t c = seen < 0 ? 0 : seen; c < columns; c++) row[c] = NONE;
        }
    }
    (void)w, (void)rows;
}

/* Factors of HIGH rows of probabilities: 0 where an element is dropped, else 1 / (1 - p). */
#if DROPOUT
static void drops(const place *w, float *factor, int64_t rows, int64_t i, int64_t j, int64_t columns,
                  int64_t valid)
{
    const tn_args *a = w->a;
    const int64_t heads = a->dim[1], tq = a->dim[2], tk = a->dim[3];
    const double p = (float)(DROP_P);
    const float keep = (float)(1 / (1 - (double)(DROP_P)));
    for (int64_t r = 0; r < HIGH; r++) {
        uint32_t word[KEYS];
        const uint64_t first = (uint64_t)(((w->batch * heads + w->head) * tq + i + r) * tk + j);
        for (int64_t c = 0; c < columns; c++) factor[r * KEYS + c] = 0;
        if (r >= rows) continue;
        tn_philox_fill(SEED, DRAW, first, valid, word);
        for (int64_t c = 0; c < valid; c++) factor[r * KEYS + c] = tn_dropped(word[c], p) ? 0 : keep;
    }
}
#endif

static inline int64_t whole(int64_t n, int64_t of)
{
    return (n + of - 1) / of * of;
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#if !BACKWARD
/* ---- forward ---- */

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
#else
/* ---- backward ---- */

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
            const float f = factor[h * KEYS + c], g = e * (grad[c] * f - delta);
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

/* Where rows of dq are added up: in the gradient itself, or in memory of this part's own. */
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
                sum[d % LANES] += LOAD(o[d]) * x->go[r * WIDTH + d];
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
        bool blind = false; /* some query sees nothing: its NaN reaches every key */
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
#endif

#undef lanes
#undef element
#undef mask_element
#undef all
#undef at
#undef put
#undef power
#undef largest
#undef total
#undef tile
#undef product
#undef pack_rows
#undef turn
#undef pack_columns
#undef place
#undef hide
#undef drops
#undef whole
#undef least
#undef rows_state
#undef through
#undef tiles
#undef scores
#undef write_rows
#undef sums
#undef add_dq
#undef keys_of
#undef LANES
#undef HIGH
#undef WIDTH
#undef UNROLL
#undef SIMD
#undef LOAD
#undef STORE
#undef LOG2E
#undef LN2
#undef NONE
#undef SWAP
#undef LOW8
#undef HIGH8
#undef LOW4
#undef HIGH4
#undef LOW2
#undef HIGH2
#undef LOW1
#undef HIGH1
#undef ROUND
#undef PARTIAL
#undef OWN
#undef OWN_
#undef GO
#undef PARTS
#undef OUT
#undef ENTRY
#undef FINISH
#undef BACKWARD
#undef DTYPE
#undef HEAD
#undef ROWS
#undef KEYS
#undef SCALE
#undef CAUSAL
#undef MASK
#undef DROPOUT
#undef DROP_P
#undef SEED
#undef DRAW
#undef O
#undef LSE
#undef DQ
#undef DK
#undef DV
#undef SPLIT
