/* attention_begin.h - what attention's kernels for processors have in common: vectors, products, packing,
 * masks. The text is compiled at run time.
 *
 * A kernel is this, attention.c or attention_backward.c, and attention_end.h. Scores are made a tile at a
 * time (ROWS queries, KEYS keys) and never written. Exponentials are powers of two: the scores come out of
 * the product times log2 e. What an item computes does not depend on who runs it: nor do the bits.
 *
 * All products are one register tile: lanes run along the columns of the right operand, elements of the left
 * are spread over all lanes. Operands are packed once a tile, as f32, with rows filled up to whole vectors.
 *
 * #defines in front: ENTRY, FINISH (names), DTYPE 0 f32 | 2 f16 | 3 bf16, HEAD, SCALE, CAUSAL 0|1, MASK 0 | 1
 * bool | 2 of DTYPE, added, STRICT 0|1 (a query that sees nothing gives 0, and lse is infinite | NaN),
 * DROPOUT 0|1 (then DROP_P, SEED, DRAW), ROWS and KEYS of a tile; forward: O LSE 0|1, which are wanted;
 * backward: DQ DK DV 0|1, SPLIT. SCALE, DROP_P, SEED and DRAW may name the kernel's arguments `a`. Strides
 * and operands: fuser/text/attention.h.
 *
 * Read first: product.
 */

/* Several kernels are compiled as one unit: what this one has is called after it. */
#define OWN_(entry, name) entry##_##name
#define OWN(entry, name)  OWN_(entry, name)
#define lanes             OWN(ENTRY, lanes)
#define element           OWN(ENTRY, element)
#define mask_element      OWN(ENTRY, mask_element)
#define in_bits           OWN(ENTRY, in_bits)
#define all               OWN(ENTRY, all)
#define at                OWN(ENTRY, at)
#define put               OWN(ENTRY, put)
#define join              OWN(ENTRY, join)
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
/* Turns a number that is added to a score into an exponent of 2. The lowest numbers, which programs use for
 * minus infinity, stay finite, so that a row of nothing else is one of equal scores. */
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

#if defined(__has_builtin)
#define TN_HAS(name) __has_builtin(name)
#else
#define TN_HAS(name) 0
#endif

static inline lanes at(const float *p)
{
    return *(const lanes *)p;
}

static inline void put(float *p, lanes v)
{
    *(lanes *)p = v;
}

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
    UNROLL for (int i = 0; i < LANES; i++)
    {
        c[i] = tn_fma_f32(a[i], b[i], c[i]);
    }
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
                sum[i][j] = join(left, right[j], sum[i][j]);
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
    if (by == 1) return;
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
