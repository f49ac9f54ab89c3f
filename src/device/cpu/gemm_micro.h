/* gemm_micro.h - the register tile, written once and included by gemm_kernel.c per instruction set and type.
 *
 * The includer defines: T (float or double), V (a vector of them), MR and NV (the tile is MR rows by NV
 * vectors; one of one vector is TALL rows, if that is defined), TARGET (function attribute), NAME(x)
 * (mangles), CALLED (the kernel's name), and SPLAT(x), FMA(a, b, c), RELU(v); where an element
 * of A and B holds several numbers, also PER, how many, NUMBER, their type, and REST(a, b, n), the products
 * of n of them, fewer than a vector's. MR is a multiple of 4; rows come in fours, what is odd goes through a
 * small tile on the stack. All loops over rows and vectors have constant bounds and unroll, so `acc` lives in
 * registers, and so do the few addresses from which all rows of A are reached. */
#ifndef PER
#define PER    1
#define NUMBER T
#endif
#ifndef TALL
#define TALL MR
#endif
#define VL (int)(sizeof(V) / sizeof(T))
enum {
    NAME(KC) = sizeof(T) == sizeof(float) ? TN_GEMM_KC_F32 : TN_GEMM_KC_F64,
    NAME(NR) = NV * VL,
    NAME(A_LD) = NAME(KC) + TN_GEMM_A_PAD
};
/* A vector in memory, wherever it begins. */
typedef V NAME(vector) __attribute__((aligned(1), may_alias));
#define AT(p)       (*(NAME(vector) *)(p))
#define CONST_AT(p) (*(const NAME(vector) *)(p))

/* One tile of a block: its panel of B, its place in C, and what it asks memory for meanwhile: one line a step
 * of k, along `streams` streams one after the other. */
typedef struct NAME(call) {
    int64_t kc, ldb, ldc, a_step;
    const T *a, *b, *bias;
    const int64_t *a_at;
    T *c;
    const char *ask;
    int64_t streams, stream_ld, stream_steps, stream_ask, ask_step;
    int64_t a_jump, b_jump; /* at the end of each stream */
    bool accumulate, relu;
} NAME(call);

static inline __attribute__((always_inline)) TARGET void
NAME(tile)(const int rows, const int nv, const int64_t a_row, const int64_t a_k, const NAME(call) * g)
{
    enum { APART = TN_GEMM_APART }; /* rows that one address and a stride reach */
    V acc[TALL][NV];
    const T *a[TALL / APART + 1], *b = g->b;
    T *const c = g->c;
    const int64_t ldb = g->ldb, ldc = g->ldc, step = g->ask_step;
    UNROLL(int i = 0; i < rows; i += APART) a[i / APART] = g->a + (g->a_at ? g->a_at[i / APART] : i * a_row);
    if (g->accumulate) {
        UNROLL(int i = 0; i < rows; i++) {
            UNROLL(int j = 0; j < nv; j++) {
                acc[i][j] = AT(c + i * ldc + j * VL);
                if (nv > 1) __builtin_prefetch(c + i * ldc + NAME(NR) + j * VL, 1, 3); /* the next tile's */
            }
        }
    } else {
        UNROLL(int i = 0; i < rows; i++) {
            UNROLL(int j = 0; j < nv; j++) {
                acc[i][j] = SPLAT(0);
                __builtin_prefetch(c + i * ldc + j * VL, 1, 3); /* written when the sums are done */
            }
        }
    }
    for (int64_t r = 0, p = 0; r < g->streams; r++) {
        const char *ask = g->ask + r * g->stream_ld;
        for (const int64_t end = r + 1 < g->streams ? p + g->stream_steps : g->kc; p < end; p++) {
            V bv[NV];
            if (nv > 1) __builtin_prefetch(ask, 0, 2); /* else there are as many loads as multiply-adds */
            ask += step;
            UNROLL(int j = 0; j < nv; j++) {
                bv[j] = CONST_AT(b + j * VL);
                if (nv > 1) __builtin_prefetch(b + TN_GEMM_AHEAD * ldb + j * VL, 0, 3);
            }
            UNROLL(int i = 0; i < rows; i++) {
                V av = SPLAT(a[i / APART][i % APART * a_row]);
                UNROLL(int j = 0; j < nv; j++) acc[i][j] = FMA(av, bv[j], acc[i][j]);
            }
            UNROLL(int i = 0; i < rows; i += APART) a[i / APART] += a_k;
            b += ldb;
        }
        UNROLL(int i = 0; i < rows; i += APART) a[i / APART] += g->a_jump;
        b += g->b_jump;
    }
    if (g->bias) {
        UNROLL(int j = 0; j < nv; j++) {
            V bv = CONST_AT(g->bias + j * VL);
            UNROLL(int i = 0; i < rows; i++) acc[i][j] = acc[i][j] + bv;
        }
    }
    if (g->relu) {
        UNROLL(int i = 0; i < rows; i++) {
            UNROLL(int j = 0; j < nv; j++) acc[i][j] = RELU(acc[i][j]);
        }
    }
    UNROLL(int i = 0; i < rows; i++) {
        UNROLL(int j = 0; j < nv; j++) AT(c + i * ldc + j * VL) = acc[i][j];
    }
}

/* One function per height, width and layout of A; the bodies are what the compiler makes of the constants. */
#define TILE(r, v)                                                                                           \
    static TARGET __attribute__((noinline)) void NAME(rows_##r##_##v)(const NAME(call) * g)                  \
    {                                                                                                        \
        NAME(tile)(r, v, g->a_step, 1, g);                                                                   \
    }                                                                                                        \
    static TARGET __attribute__((noinline)) void NAME(by_k_##r##_##v)(const NAME(call) * g)                  \
    {                                                                                                        \
        NAME(tile)(r, v, 1, g->a_step, g);                                                                   \
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
TILE(16, 1)
TILE(20, 1)
TILE(24, 1)
#endif
#undef TILE

typedef void NAME(tile_fn)(const NAME(call) *);

static NAME(tile_fn) * NAME(pick)(int rows, int nv, bool by_k)
{
#define ROW(r, v)                                                                                            \
    {                                                                                                        \
        NAME(rows_##r##_##v), NAME(by_k_##r##_##v)                                                           \
    }
    static NAME(tile_fn) *const table[TALL / 4][NV][2] = {
#if NV > 2
        {ROW(4, 1), ROW(4, 2), ROW(4, 3)},
#else
        {ROW(4, 1), ROW(4, 2)},
#endif
#if MR > 4
        {ROW(8, 1), ROW(8, 2)},
        {ROW(12, 1), ROW(12, 2)},
        {ROW(16, 1)},
        {ROW(20, 1)},
        {ROW(24, 1)},
#endif
    };
#undef ROW
    return table[rows / 4 - 1][nv - 1][by_k];
}

/* What tile q is to ask for. Rows are shared among the tiles, `each` for one, as streams; of lines that lie
 * far apart a tile takes one, a row at each step. */
static inline void NAME(ask)(const tn_gemm_block *g, int64_t q, int64_t each, NAME(call) * t)
{
    const int64_t turn = g->next_tile + q, line = turn / PER * 64, rows = g->next_rows - q * each;
    t->ask = g->a;
    t->streams = 1;
    t->ask_step = 0;
    if (g->next && g->a_by_k && line < g->next_bytes) {
        t->ask = g->next + line + turn % PER * g->next_ld;
        t->ask_step = PER * g->next_ld;
    } else if (g->next && !g->a_by_k && rows > 0) {
        t->ask = g->next + q * each * g->next_ld;
        t->streams = rows < each ? rows : each;
        t->ask_step = t->stream_ask;
    }
}

/* Rows of w numbers, too few mostly for memcpy's call. */
static TARGET void NAME(copy)(T *d, int64_t ldd, const T *s, int64_t lds, int rows, int w)
{
    for (int i = 0; i < rows; i++) {
        int q = 0;
        for (; q + VL <= w; q += VL) AT(d + i * ldd + q) = CONST_AT(s + i * lds + q);
        for (; q + 4 <= w; q += 4) memcpy(d + i * ldd + q, s + i * lds + q, 4 * sizeof(T));
        if (w - q >= 2) {
            memcpy(d + i * ldd + q, s + i * lds + q, 2 * sizeof(T));
            q += 2;
        }
        if (q < w) d[i * ldd + q] = s[i * lds + q];
    }
}

static void NAME(block)(const tn_gemm_block *g)
{
    const T *bias = g->bias;
    NAME(call) t = {.kc = g->kc, .a_at = g->a_at, .ldb = g->ldb, .a_step = g->a_step};
    if (!t.a_step) t.a_step = g->a_by_k ? MR : NAME(A_LD);
    const int64_t tiles = (g->cols + NAME(NR) - 1) / NAME(NR);
    const int64_t each = g->next && g->next_rows && !g->a_by_k ? (g->next_rows + tiles - 1) / tiles : 1;
    t.accumulate = g->accumulate, t.relu = g->relu;
    t.a_jump = g->a_jump, t.b_jump = g->b_jump;
    if (g->next) {
        t.stream_ld = g->next_ld, t.stream_steps = g->kc / each;
        t.stream_ask = t.stream_steps ? g->next_bytes / t.stream_steps + 1 : 64;
    } else if (g->runs > 1) {
        t.stream_steps = g->run;
    }
    const int most = g->cols <= VL ? TALL : MR;
    for (int i = 0, h; i < g->rows; i += h) {
        /* Tiles of about as many rows: one of few costs nearly as much as one of many. */
        const int left = g->rows - i, these = (left + most - 1) / most;
        h = left <= most ? left : ((left + these - 1) / these + 3) / 4 * 4;
        if (i && h % 4 && !g->accumulate) { /* some twice rather than by way of the stack */
            i -= 4 - h % 4;
            h += 4 - h % 4;
        }
        const int rows = (h + 3) / 4 * 4;
        T *c = (T *)g->c + i * g->ldc;
        t.a = (const T *)g->a + (g->a_by_k ? i : i * t.a_step);
        t.b = g->b;
        for (int64_t j = 0; j < g->cols; j += NAME(NR), t.b += g->b_step) {
            int w = (int)(g->cols - j < NAME(NR) ? g->cols - j : NAME(NR));
            int nv = (w + VL - 1) / VL;
            NAME(tile_fn) *fn = NAME(pick)(rows, nv, g->a_by_k);
            NAME(ask)(g, j / NAME(NR), each, &t);
            if (g->runs > 1) t.streams = g->runs;
            t.c = c + j, t.ldc = g->ldc, t.bias = bias ? bias + j : NULL;
            if (rows == h && w == nv * VL) {
                fn(&t);
                continue;
            }
            T tile[MR * NAME(NR)], edge[NAME(NR)] = {0}; /* what is not set here is of no column of C */
            const int ld = nv * VL;
            if (g->accumulate) {
                memset(tile, 0, (size_t)(rows * ld) * sizeof *tile);
                NAME(copy)(tile, ld, c + j, g->ldc, h, w);
            }
            if (bias) NAME(copy)(edge, 0, bias + j, 0, 1, w);
            t.c = tile, t.ldc = ld, t.bias = bias ? edge : NULL;
            fn(&t);
            NAME(copy)(c + j, g->ldc, tile, ld, h, w);
        }
    }
}

static inline __attribute__((always_inline)) TARGET T NAME(sum)(V v)
{
#if defined(SUM)
    return SUM(v);
#else
    T lane[VL];
    AT(lane) = v;
    for (int h = VL / 2; h; h /= 2)
        for (int l = 0; l < h; l++) lane[l] += lane[l + h];
    return lane[0];
#endif
}

/* Few rows by rows of B as they stand: sums of VL products side by side, then of these. */
static inline __attribute__((always_inline)) TARGET void NAME(dot)(const int rows, const int cols, int64_t k,
                                                                   const NUMBER *a, int64_t lda,
                                                                   const NUMBER *b, int64_t ldb, T *out)
{
    V acc[4][4];
    UNROLL(int i = 0; i < rows; i++) {
        UNROLL(int j = 0; j < cols; j++) acc[i][j] = SPLAT(0);
    }
    int64_t p = 0;
    for (; p + PER * VL <= k; p += PER * VL) {
        V bv[4];
        UNROLL(int j = 0; j < cols; j++) bv[j] = CONST_AT(b + j * ldb + p);
        UNROLL(int i = 0; i < rows; i++) {
            V av = CONST_AT(a + i * lda + p);
            UNROLL(int j = 0; j < cols; j++) acc[i][j] = FMA(av, bv[j], acc[i][j]);
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++) {
#ifdef REST
            const T sum = NAME(sum)(REST(a + i * lda + p, b + j * ldb + p, k - p));
#else
            T sum = 0;
            for (int64_t q = p; q < k; q++) sum += a[i * lda + q] * b[j * ldb + q];
#endif
            out[i * 4 + j] = NAME(sum)(acc[i][j]) + sum;
        }
    }
}

static TARGET void NAME(dots)(const tn_gemm_dots *g)
{
    const NUMBER *a = g->a, *b = g->b;
    const T *bias = g->bias;
    for (int64_t j = 0; j < g->cols; j += 4) {
        const int w = (int)(g->cols - j < 4 ? g->cols - j : 4);
        for (int64_t i = 0; i < g->rows; i += 4) {
            const int h = (int)(g->rows - i < 4 ? g->rows - i : 4);
            const NUMBER *row = a + i * g->lda, *line = b + j * g->ldb;
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

static const tn_gemm_kernel NAME(kernel) = {CALLED,     MR,  TALL,        NAME(NR),  NAME(KC),
                                            NAME(A_LD), PER, NAME(block), NAME(dots)};

#undef T
#undef V
#undef VL
#undef MR
#undef TALL
#undef NV
#undef PER
#undef NUMBER
#undef REST
#undef TARGET
#undef NAME
#undef CALLED
#undef AT
#undef CONST_AT
#undef SPLAT
#undef FMA
#undef RELU
#undef SUM
