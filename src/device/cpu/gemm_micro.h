/* gemm_micro.h - the register tile, written once and included by gemm_kernel.c per instruction set and type.
 *
 * The includer defines: T (float or double), V (a vector of VL of them), MR and NV (the tile is MR rows by NV
 * vectors), KC (columns of an A block), TARGET (function attribute), NAME(x) (mangles), and SPLAT(x),
 * LOAD(p), STORE(p, v), FMA(a, b, c), RELU(v). MR is a multiple of 4; rows come in fours, what is odd goes
 * through a small tile on the stack. All loops over rows and vectors have constant bounds and unroll, so
 * `acc` lives in registers; the stride between rows of A is a constant too, which makes its addresses
 * displacements of one register.
 */
enum { NAME(NR) = NV * VL, NAME(A_LD) = KC + TN_GEMM_A_PAD };

static inline __attribute__((always_inline)) TARGET void
NAME(tile)(const int rows, const int nv, const int64_t a_row, const int64_t a_k, int64_t kc, const T *a,
           const T *b, int64_t ldb, T *c, int64_t ldc, bool accumulate, const T *bias, bool relu)
{
    V acc[MR][NV];
    if (accumulate) {
        UNROLL for (int i = 0; i < rows; i++)
        {
            UNROLL for (int j = 0; j < nv; j++)
            {
                acc[i][j] = LOAD(c + i * ldc + j * VL);
            }
        }
    } else {
        UNROLL for (int i = 0; i < rows; i++)
        {
            UNROLL for (int j = 0; j < nv; j++)
            {
                acc[i][j] = SPLAT(0);
            }
        }
    }
    for (int64_t p = 0; p < kc; p++) {
        V bv[NV];
        UNROLL for (int j = 0; j < nv; j++)
        {
            bv[j] = LOAD(b + p * ldb + j * VL);
        }
        UNROLL for (int i = 0; i < rows; i++)
        {
            V av = SPLAT(a[i * a_row + p * a_k]);
            UNROLL for (int j = 0; j < nv; j++)
            {
                acc[i][j] = FMA(av, bv[j], acc[i][j]);
            }
        }
    }
    if (bias) {
        UNROLL for (int j = 0; j < nv; j++)
        {
            V bv = LOAD(bias + j * VL);
            UNROLL for (int i = 0; i < rows; i++)
            {
                acc[i][j] = acc[i][j] + bv;
            }
        }
    }
    if (relu) {
        UNROLL for (int i = 0; i < rows; i++)
        {
            UNROLL for (int j = 0; j < nv; j++)
            {
                acc[i][j] = RELU(acc[i][j]);
            }
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
    {
        UNROLL for (int j = 0; j < nv; j++)
        {
            STORE(c + i * ldc + j * VL, acc[i][j]);
        }
    }
}

/* One function per height, width and layout of A; the bodies are what the compiler makes of the constants. */
#define TILE(r, v)                                                                                           \
    static TARGET __attribute__((noinline)) void NAME(rows_##r##_##v)(                                       \
        int64_t kc, const T *a, const T *b, int64_t ldb, T *c, int64_t ldc, bool acc, const T *bias,         \
        bool relu, int64_t a_step)                                                                           \
    {                                                                                                        \
        (void)a_step;                                                                                        \
        NAME(tile)(r, v, NAME(A_LD), 1, kc, a, b, ldb, c, ldc, acc, bias, relu);                             \
    }                                                                                                        \
    static TARGET __attribute__((noinline)) void NAME(by_k_##r##_##v)(                                       \
        int64_t kc, const T *a, const T *b, int64_t ldb, T *c, int64_t ldc, bool acc, const T *bias,         \
        bool relu, int64_t a_step)                                                                           \
    {                                                                                                        \
        NAME(tile)(r, v, 1, a_step, kc, a, b, ldb, c, ldc, acc, bias, relu);                                 \
    }
TILE(4, 1)
TILE(4, 2)
#if NV > 2
TILE(4, 3)
#endif
#if MR > 4
TILE(8, 1)
TILE(8, 2)
TILE(12, 1)
TILE(12, 2)
#endif
#undef TILE

typedef void NAME(tile_fn)(int64_t, const T *, const T *, int64_t, T *, int64_t, bool, const T *, bool,
                           int64_t);

static NAME(tile_fn) * NAME(pick)(int rows, int nv, bool by_k)
{
#define ROW(r, v)                                                                                            \
    {                                                                                                        \
        NAME(rows_##r##_##v), NAME(by_k_##r##_##v)                                                           \
    }
    static NAME(tile_fn) *const table[MR / 4][NV][2] = {
#if NV > 2
        {ROW(4, 1), ROW(4, 2), ROW(4, 3)},
#else
        {ROW(4, 1), ROW(4, 2)},
#endif
#if MR > 4
        {ROW(8, 1), ROW(8, 2)},
        {ROW(12, 1), ROW(12, 2)},
#endif
    };
#undef ROW
    return table[rows / 4 - 1][nv - 1][by_k];
}

static void NAME(block)(const tn_gemm_block *g)
{
    int64_t asked = 0;
    const T *b = g->b, *bias = g->bias;
    T *c = g->c;
    int rows = (g->rows + 3) / 4 * 4;
    const int64_t a_step = g->a_step ? g->a_step : MR;
    for (int64_t j = 0; j < g->cols; j += NAME(NR), b += g->b_step) {
        int w = (int)(g->cols - j < NAME(NR) ? g->cols - j : NAME(NR));
        int nv = (w + VL - 1) / VL;
        NAME(tile_fn) *fn = NAME(pick)(rows, nv, g->a_by_k);
        for (int64_t up = g->next_rows * (j + w) / g->cols; asked < up; asked++)
            for (int64_t at = 0; at < g->next_bytes; at += 64)
                __builtin_prefetch(g->next + asked * g->next_ld + at, 0, 2);
        if (rows == g->rows && w == nv * VL) {
            fn(g->kc, g->a, b, g->ldb, c + j, g->ldc, g->accumulate, bias ? bias + j : NULL, g->relu, a_step);
            continue;
        }
        T tile[MR * NAME(NR)] = {0}, edge[NAME(NR)] = {0};
        if (g->accumulate) {
            for (int i = 0; i < g->rows; i++)
                memcpy(tile + i * NAME(NR), c + i * g->ldc + j, (size_t)w * sizeof(T));
        }
        if (bias) memcpy(edge, bias + j, (size_t)w * sizeof(T));
        fn(g->kc, g->a, b, g->ldb, tile, NAME(NR), g->accumulate, bias ? edge : NULL, g->relu, a_step);
        for (int i = 0; i < g->rows; i++)
            memcpy(c + i * g->ldc + j, tile + i * NAME(NR), (size_t)w * sizeof(T));
    }
}

static inline __attribute__((always_inline)) TARGET T NAME(sum)(V v)
{
#if defined(SUM)
    return SUM(v);
#else
    T lane[VL];
    STORE(lane, v);
    for (int h = VL / 2; h; h /= 2)
        for (int l = 0; l < h; l++) lane[l] += lane[l + h];
    return lane[0];
#endif
}

/* Few rows by rows of B as they stand: sums of VL products side by side, then of these. */
static inline __attribute__((always_inline)) TARGET void
NAME(dot)(const int rows, const int cols, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb, T *out)
{
    V acc[4][4];
    UNROLL for (int i = 0; i < rows; i++)
    {
        UNROLL for (int j = 0; j < cols; j++)
        {
            acc[i][j] = SPLAT(0);
        }
    }
    int64_t p = 0;
    for (; p + VL <= k; p += VL) {
        V bv[4];
        UNROLL for (int j = 0; j < cols; j++)
        {
            bv[j] = LOAD(b + j * ldb + p);
        }
        UNROLL for (int i = 0; i < rows; i++)
        {
            V av = LOAD(a + i * lda + p);
            UNROLL for (int j = 0; j < cols; j++)
            {
                acc[i][j] = FMA(av, bv[j], acc[i][j]);
            }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++) {
            T sum = 0;
            for (int64_t q = p; q < k; q++) sum += a[i * lda + q] * b[j * ldb + q];
            out[i * 4 + j] = NAME(sum)(acc[i][j]) + sum;
        }
    }
}

static TARGET void NAME(dots)(const tn_gemm_dots *g)
{
    const T *a = g->a, *b = g->b, *bias = g->bias;
    for (int64_t j = 0; j < g->cols; j += 4) {
        const int w = (int)(g->cols - j < 4 ? g->cols - j : 4);
        for (int64_t i = 0; i < g->rows; i += 4) {
            const int h = (int)(g->rows - i < 4 ? g->rows - i : 4);
            const T *row = a + i * g->lda, *line = b + j * g->ldb;
            T sum[16];
            if (w < 4)
                for (int q = 0; q < h * w; q++) NAME(dot)
            (1, 1, g->k, row + q / w * g->lda, 0, line + q % w * g->ldb, 0, sum + q / w * 4 + q % w);
            else if (h == 4) NAME(dot)(4, 4, g->k, row, g->lda, line, g->ldb, sum);
            else if (h == 3) NAME(dot)(3, 4, g->k, row, g->lda, line, g->ldb, sum);
            else if (h == 2) NAME(dot)(2, 4, g->k, row, g->lda, line, g->ldb, sum);
            else NAME(dot)(1, 4, g->k, row, g->lda, line, g->ldb, sum);
            for (int q = 0; q < h * w; q++) {
                T v = sum[q / w * 4 + q % w] + (bias ? bias[j + q % w] : 0);
                ((T *)g->c)[(i + q / w) * g->ldc + j + q % w] = g->relu && v < 0 ? 0 : v;
            }
        }
    }
}

#undef T
#undef V
#undef VL
#undef MR
#undef NV
#undef KC
#undef TARGET
#undef NAME
#undef SPLAT
#undef LOAD
#undef STORE
#undef FMA
#undef RELU
#undef SUM
