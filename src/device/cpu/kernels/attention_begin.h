/* attention_begin.h - what attention's kernels for processors have in common: vectors, products, packing,
 * masks. The text is compiled at run time.
 *
 * A kernel is this, and attention.c or attention_backward.c. Scores are made a tile at a
 * time (ROWS queries, KEYS keys) and never written. Exponentials are powers of two: the scores come out of
 * the product times log2 e. What an item computes does not depend on who runs it: nor do the bits.
 *
 * All products are one register tile: lanes run along the columns of the right operand, elements of the left
 * are spread over all lanes. Operands are packed once a tile, as f32, with rows filled up to whole vectors.
 *
 * #defines in front: ENTRY, FINISH (names), DTYPE 0 f32 | 2 f16 | 3 bf16, HEAD, SCALE, CAUSAL 0|1, MASK 0 | 1
 * bool | 2 of DTYPE, added, FINE 0|1 (lse is f64), STRICT 0|1 (a query that sees nothing gives 0, and lse is
 * infinite | NaN), DROPOUT 0|1 (then DROP_P, SEED, DRAW), ROWS and KEYS of a tile; forward: O LSE 0|1, which
 * are wanted; backward: DQ DK DV 0|1, SPLIT. SCALE, DROP_P, SEED and DRAW may name the kernel's arguments
 * `a`. Strides and operands: fuser/text/attention.h.
 *
 * Read first: product.
 */

/* Several kernels are compiled as one unit: what this one has is called after it. */
#define OWN_(entry, name) entry##_##name
#define OWN(entry, name)  OWN_(entry, name)
#define lanes             OWN(ENTRY, lanes)
#define element           OWN(ENTRY, element)
#define logarithm         OWN(ENTRY, logarithm)
#define mask_element      OWN(ENTRY, mask_element)
#define in_bits           OWN(ENTRY, in_bits)
#define all               OWN(ENTRY, all)
#define at                OWN(ENTRY, at)
#define put               OWN(ENTRY, put)
#define join              OWN(ENTRY, join)
#define power             OWN(ENTRY, power)
#define largest           OWN(ENTRY, largest)
#define total             OWN(ENTRY, total)
#define half              OWN(ENTRY, half)
#define lanes_there       OWN(ENTRY, lanes_there)
#define half_there        OWN(ENTRY, half_there)
#define tile              OWN(ENTRY, tile)
#define slim              OWN(ENTRY, slim)
#define strip             OWN(ENTRY, strip)
#define score             OWN(ENTRY, score)
#define weigh             OWN(ENTRY, weigh)
#define weigh_turned      OWN(ENTRY, weigh_turned)
#define mask_at           OWN(ENTRY, mask_at)
#define seen_of           OWN(ENTRY, seen_of)
#define share_of          OWN(ENTRY, share_of)
#define next_of           OWN(ENTRY, next_of)
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
#define larger            OWN(ENTRY, larger)
#define largest_of        OWN(ENTRY, largest_of)
#define outgrown          OWN(ENTRY, outgrown)
#define fetch             OWN(ENTRY, fetch)
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
#define MOST (HIGH + 1) /* rows that are taken at a time where one is left over */
#define ROW                                                                                                  \
    (KEYS +                                                                                                  \
     LANES) /* from row to row of a tile of scores, and of keys that stand as columns: no power of two */
#define WIDTH       ((HEAD + 15) / 16 * 16)
#define DIRECT      (DTYPE == 0 && HEAD == WIDTH) /* rows in memory are as packed ones */
#define UNROLL(...) _Pragma("GCC unroll 16") for (__VA_ARGS__)
#define SIMD        _Pragma("omp simd")

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef float half __attribute__((vector_size(2 * LANES)));
typedef float lanes_there __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float half_there __attribute__((vector_size(2 * LANES), aligned(4)));

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

#if FINE
typedef double logarithm;
#else
typedef float logarithm;
#endif

#define LOG2E 1.4426950408889634

#if MASK == 2
/* Turns a number that is added to a score into an exponent of 2. The lowest numbers, which programs use for
 * minus infinity, stay finite, so that a row of nothing else is one of equal scores: they swallow what they
 * are added to, and leave an f64 logarithm of their sum its digits. */
static inline float in_bits(float x)
{
    const float most = 1e11f, y = x * (float)LOG2E;
    return y < -most && x > -__builtin_inff() ? -most : y;
}
#endif
#define LN2 0.6931471805599453

/* ---- vectors ---- */

static inline lanes all(float x)
{
    return x - (lanes){0}; /* x itself, whatever its sign: no arithmetic is left of it */
}

#if defined(__has_builtin)
#define TN_HAS(name) __has_builtin(name)
#else
#define TN_HAS(name) 0
#endif

static inline lanes at(const float *p) { return *(const lanes_there *)p; }

static inline void put(float *p, lanes v) { *(lanes_there *)p = v; }

/* a b + c, in one instruction where there is one: compilers make it of this loop. Where they do not optimise
 * it would stay one, and attention take five times as long: there the instruction is named, for the same
 * bits. */
static inline __attribute__((always_inline)) lanes join(lanes a, lanes b, lanes c)
{
#if !defined(__OPTIMIZE__) && defined(__AVX512F__) && TN_HAS(__builtin_ia32_vfmaddps512_mask)
    return (lanes)__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1,
                                                  4 /* rounded as the mode says */);
#elif !defined(__OPTIMIZE__) && defined(__FMA__) && !defined(__AVX512F__) &&                                 \
    TN_HAS(__builtin_ia32_vfmaddps256)
    return (lanes)__builtin_ia32_vfmaddps256(a, b, c);
#elif !defined(__OPTIMIZE__) && !defined(__FMA__) && !defined(__ARM_FEATURE_FMA)
    return a * b + c;
#else
    UNROLL(int i = 0; i < LANES; i++) c[i] = tn_fma_f32(a[i], b[i], c[i]);
    return c;
#endif
}

/* 2^x, within 1e-7 of it, for x up to 126; 0 below -126. NaN stays. */
TN_FN float power(float x)
{
    const float shift = 0x1.8p23f + 127, t = x + shift, f = x - (t - shift);
    float p = 0x1.41fbbcp-13f;
    p = tn_fma_f32(p, f, 0x1.5f3e52p-10f);
    p = tn_fma_f32(p, f, 0x1.3b2d4cp-7f);
    p = tn_fma_f32(p, f, 0x1.c6aee8p-5f);
    p = tn_fma_f32(p, f, 0x1.ebfbdcp-3f);
    p = tn_fma_f32(p, f, 0x1.62e43p-1f);
    p = tn_fma_f32(p, f, 1);
    p *= tn_from_bits_f32(tn_bits_f32(t) << 23);
    return x < -126 ? 0 : p;
}

static inline float largest(lanes v)
{
    float x[LANES] __attribute__((aligned(64)));
    put(x, v);
    UNROLL(int w = LANES / 2; w; w /= 2) {
        UNROLL(int i = 0; i < w; i++) x[i] = x[i + w] > x[i] ? x[i + w] : x[i];
    }
    return x[0];
}

static inline float total(lanes v)
{
    float x[LANES] __attribute__((aligned(64)));
    put(x, v);
    UNROLL(int w = LANES / 2; w; w /= 2) {
        UNROLL(int i = 0; i < w; i++) x[i] += x[i + w];
    }
    return x[0];
}

/* ---- sizes ---- */

static inline int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns how many of the rows that are left are taken next. */
static inline int64_t next_of(int64_t left) { return left == MOST ? MOST : least(left, HIGH); }

/* Returns how many of n are taken at a time, `most` or fewer and a multiple of `of`, so that all times are
 * about as many. */
static inline int64_t share_of(int64_t n, int64_t most, int64_t of)
{
    const int64_t times = (n + most - 1) / most;
    return times ? whole((n + times - 1) / times, of) : of;
}

/* ---- products ---- */

/* c[high][wide vectors] (+)= a b: element (i, k) of a stands at i * a_row + k * a_k. */
static inline __attribute__((always_inline)) void tile(const int high, const int wide, int64_t k,
                                                       const float *a, int64_t a_row, int64_t a_k,
                                                       const float *b, int64_t b_row, float *c, int64_t c_row,
                                                       bool add)
{
    lanes sum[MOST][4];
    UNROLL(int i = 0; i < high; i++) {
        UNROLL(int j = 0; j < wide; j++) sum[i][j] = add ? at(c + i * c_row + j * LANES) : (lanes){0};
    }
    for (int64_t p = 0; p < k; p++) {
        lanes right[4];
        UNROLL(int j = 0; j < wide; j++) right[j] = at(b + p * b_row + j * LANES);
        UNROLL(int i = 0; i < high; i++) {
            const lanes left = all(a[i * a_row + p * a_k]);
            UNROLL(int j = 0; j < wide; j++) sum[i][j] = join(left, right[j], sum[i][j]);
        }
    }
    UNROLL(int i = 0; i < high; i++) {
        UNROLL(int j = 0; j < wide; j++) put(c + i * c_row + j * LANES, sum[i][j]);
    }
}

/* The same for half a vector of columns, which many processors compute in half the time. */
static inline __attribute__((always_inline)) void slim(const int high, int64_t k, const float *a,
                                                       int64_t a_row, int64_t a_k, const float *b,
                                                       int64_t b_row, float *c, int64_t c_row, bool add)
{
    half sum[MOST];
    UNROLL(int i = 0; i < high; i++) sum[i] = add ? *(const half_there *)(c + i * c_row) : (half){0};
    for (int64_t p = 0; p < k; p++) {
        const half right = *(const half_there *)(b + p * b_row);
        UNROLL(int i = 0; i < high; i++) {
            const half left = a[i * a_row + p * a_k] - (half){0};
            half to = sum[i];
            UNROLL(int l = 0; l < LANES / 2; l++) to[l] = tn_fma_f32(left[l], right[l], to[l]);
            sum[i] = to;
        }
    }
    UNROLL(int i = 0; i < high; i++) *(half_there *)(c + i * c_row) = sum[i];
}

/* The same for any number of columns, a multiple of half a vector: the fewer rows, the wider the tiles. */
static inline __attribute__((always_inline)) void
strip(const int high, int64_t columns, int64_t k, const float *a, const int64_t a_row, const int64_t a_k,
      const float *b, const int64_t b_row, float *c, const int64_t c_row, bool add)
{
    const int wide = high >= HIGH ? 2 : 4;
    int64_t j = 0;
    for (; j + wide * LANES <= columns; j += wide * LANES)
        tile(high, wide, k, a, a_row, a_k, b + j, b_row, c + j, c_row, add);
    for (; j + LANES <= columns; j += LANES) tile(high, 1, k, a, a_row, a_k, b + j, b_row, c + j, c_row, add);
    if (j < columns) slim(high, k, a, a_row, a_k, b + j, b_row, c + j, c_row, add);
}

/* The same for up to MOST rows. */
static inline __attribute__((always_inline)) void
product(int64_t rows, int64_t columns, int64_t k, const float *a, const int64_t a_row, const int64_t a_k,
        const float *b, const int64_t b_row, float *c, const int64_t c_row, bool add)
{
#define STRIP(high)                                                                                          \
    strip(high, columns, k, a, a_row, a_k, b, b_row, c, c_row, add), a += (high)*a_row, c += (high)*c_row
    if (rows == MOST) {
        STRIP(MOST);
        return;
    }
    if (rows & 8 & HIGH) STRIP(8);
    if (rows & 4) STRIP(4);
    for (int64_t i = 0; i < rows % 4; i++) STRIP(1);
#undef STRIP
}

/* Scores of packed rows and columns, and columns weighed by scores: once for all calls. */
static __attribute__((noinline)) void score(int64_t rows, int64_t columns, const float *q, const float *kt,
                                            float *s)
{
    product(rows, columns, HEAD, q, WIDTH, 1, kt, ROW, s, ROW, false);
}

static __attribute__((noinline)) void weigh(int64_t rows, int64_t keys, const float *s, const float *v,
                                            int64_t v_row, float *o, int64_t o_row, bool add)
{
    product(rows, WIDTH, keys, s, ROW, 1, v, v_row, o, o_row, add);
}

/* ---- packing ---- */

/* `rows` rows as f32 times `by`, filled up with zeros to whole vectors. */
static void pack_rows(float *to, const element *from, int64_t stride, int64_t rows, float by)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t d = 0; d < HEAD; d++) to[i * WIDTH + d] = LOAD(from[i * stride + d]) * by;
        for (int64_t d = HEAD; d < WIDTH; d++) to[i * WIDTH + d] = 0;
    }
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
#define ROUND(w)                                                                                             \
    UNROLL(int i = 0; i < LANES; i++)                                                                        \
        if (!(i & w)) SWAP(v[i], v[i + w], LOW##w, HIGH##w)

/* A square of LANES rows, zeros where there are fewer, times `by`, becomes its columns. */
static inline void turn(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows,
                        float by)
{
    lanes v[LANES];
    UNROLL(int i = 0; i < LANES; i++) v[i] = i < rows ? at(from + i * from_row) * by : (lanes){0};
    ROUND(8)
    ROUND(4)
    ROUND(2)
    ROUND(1)
    UNROLL(int i = 0; i < LANES; i++) put(to + i * to_row, v[i]);
}
#else
static inline void turn(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows,
                        float by)
{
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) to[i * to_row + j] = j < rows ? from[j * from_row + i] * by : 0;
}
#endif

/* The rows that there are, times `by`, as columns; `own` has room for them. */
static void pack_columns(float *to, const element *from, int64_t stride, int64_t rows, float by, float *own)
{
#if DIRECT
    const float *at_rows = from;
    (void)own;
#else
    const float *at_rows = own;
    pack_rows(own, from, stride, rows, 1);
    stride = WIDTH;
#endif
    for (int64_t j = 0; j < rows; j += LANES)
        for (int64_t d = 0; d < WIDTH; d += LANES)
            turn(to + d * ROW + j, ROW, at_rows + j * stride + d, stride, rows - j, by);
}

/* ---- masks ---- */

typedef struct place {
    const tn_args *a;
    int64_t batch, head;
} place;

#define NONE (-__builtin_inff())

#if MASK
static inline const mask_element *mask_at(const place *w, int64_t i, int64_t j)
{
    const int64_t *n = w->a->dim + 13;
    return (const mask_element *)w->a->buf[3] + w->batch * n[0] + w->head * n[1] + i * n[2] + j * n[3];
}
#endif

/* Of rows from query i and `valid` columns from key j on: how many columns there are up to the last that is
 * seen. */
static inline int64_t seen_of(const place *w, int64_t rows, int64_t i, int64_t j, int64_t valid)
{
    if (CAUSAL) valid = least(valid, i + rows - j);
#if MASK == 1
    const mask_element *m = mask_at(w, i, j);
    const int64_t row = w->a->dim[15], column = w->a->dim[16];
    if (!row) rows = 1;
    for (; valid > 0; valid--)
        for (int64_t r = 0; r < rows; r++)
            if (m[r * row + (valid - 1) * column]) return valid;
#endif
    (void)w, (void)i;
    return valid;
}

/* Of rows of scores from query i and key j on: sets what is not seen to minus infinity, adds what is added.
 * `valid` are the columns there are; the others are not seen. */
static inline void hide(const place *w, float *s, int64_t rows, int64_t i, int64_t j, int64_t columns,
                        int64_t valid)
{
    for (int64_t r = 0; r < rows; r++) {
        float *row = s + r * ROW;
#if MASK
        const mask_element *m = mask_at(w, i + r, j);
        const int64_t column = w->a->dim[16];
#if MASK == 1
#define SEE(c, m) row[c] = (m) ? row[c] : NONE
#else
#define SEE(c, m) row[c] += in_bits(LOAD(m))
#endif
        if (column == 1)
            for (int64_t c = 0; c < valid; c++) SEE(c, m[c]);
        else
            for (int64_t c = 0; c < valid; c++) SEE(c, m[c * column]);
#undef SEE
#endif
        int64_t seen = valid;
        if (CAUSAL && i + r - j + 1 < seen) seen = i + r - j + 1;
        if (seen < columns) {
            for (int64_t c = seen < 0 ? 0 : seen; c < columns; c++) row[c] = NONE;
        }
    }
    (void)w;
}

/* Factors of rows of probabilities: 0 where an element is dropped, else 1 / (1 - p). */
#if DROPOUT
static void drops(const place *w, float *factor, int64_t rows, int64_t i, int64_t j, int64_t columns,
                  int64_t valid)
{
    const tn_args *a = w->a;
    const int64_t heads = a->dim[1], tq = a->dim[2], tk = a->dim[3];
    const double p = (float)(DROP_P);
    const float keep = (float)(1 / (1 - (double)(DROP_P)));
    for (int64_t r = 0; r < rows; r++) {
        uint32_t word[KEYS];
        const uint64_t first = (uint64_t)(((w->batch * heads + w->head) * tq + i + r) * tk + j);
        for (int64_t c = valid; c < columns; c++) factor[r * ROW + c] = 0;
        tn_philox_fill(SEED, DRAW, first, valid, word);
        for (int64_t c = 0; c < valid; c++) factor[r * ROW + c] = tn_dropped(word[c], p) ? 0 : keep;
    }
}
#endif
