/* gemm_kernel.h - the innermost loops of our own matrix product, one set per instruction set.
 *
 * A is handed over in small dense blocks of up to `mr` rows and `kc` columns, B as panels of `nr` columns
 * (zero-padded, or straight from a row-major matrix), so that the kernel keeps an mr x nr tile of C in
 * registers and reads everything else from the nearest caches. Arithmetic is f32 or f64; narrower types are
 * converted while packing, but for bf16 where the processor multiplies it (AVX512_BF16): there an element of
 * A and B is a pair of bf16 that follow each other along k, and what is said of k below counts pairs. That
 * instruction takes denormals for 0 and makes none. Read first: tn_gemm_block, then gemm_micro.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../device.h"

/* Largest values over all instruction sets, for buffers on the stack. TN_GEMM_A_BYTES holds one block of A in
 * either layout and type. */
enum {
    TN_GEMM_MAX_MR = 12,
    TN_GEMM_MAX_NR = 32,
    TN_GEMM_KC_F32 = 384,
    TN_GEMM_KC_F64 = 192,
    TN_GEMM_AHEAD = 16, /* rows of B are asked for so many before they are read */
    TN_GEMM_A_PAD = 16, /* keeps the rows of a block out of each other's cache sets */
    TN_GEMM_APART = 3,  /* rows of A that lie a_step, or 1, apart; each such */
    TN_GEMM_AT = 8,     /* of a block */
    TN_GEMM_A_BYTES = TN_GEMM_MAX_MR * (TN_GEMM_KC_F64 + TN_GEMM_A_PAD) * 8,
};

/* C[rows, cols] (+)= A[rows, kc] B[kc, cols], then bias and relu. */
typedef struct tn_gemm_block {
    /* At most mr, of one vector's columns tall, or any number of such as lie a_step apart; a is readable (and
     * finite or not, it is unused) up to the next multiple of 4. */
    int rows;
    bool a_by_k;         /* a[p * a_step + i], else a[i * a_step + p] */
    int64_t a_step;      /* 0: as packed, mr or a_ld */
    const int64_t *a_at; /* [TN_GEMM_AT]: where in `a` each TN_GEMM_APART rows begin; NULL: in order */
    int64_t cols;        /* any number: panels of nr */
    int64_t kc;          /* at least 1; of a block as packed at most the kernel's kc */
    /* Of matrices that stand apart in memory: k goes in `runs` runs of `run`, behind each of which A and B
     * lie so many elements further off. 0 runs: one. `next` is not asked for then. */
    int64_t runs, run, a_jump, b_jump;
    const void *a;
    const void *b; /* element (p, j) of panel q at b[q * b_step + p * ldb + j]; whole panels are read */
    int64_t ldb, b_step;
    void *c;
    int64_t ldc;
    /* What the next block of A will be packed from, asked for meanwhile: rows of next_bytes, next_ld bytes
     * apart; NULL: nothing. Of rows by k there are kc, and this block's tiles ask for lines next_tile .. of
     * each, of pairs in turn of the even and of the odd rows. */
    const char *next;
    int64_t next_rows, next_bytes, next_ld, next_tile;
    bool accumulate;  /* else C is overwritten */
    const void *bias; /* [cols] or NULL, added after the sum */
    bool relu;        /* NaN stays NaN */
} tn_gemm_block;

/* C[rows, cols] = A[rows, k] B[k, cols], then bias and relu, where A's rows and B's columns run along k: for
 * so few rows that B is not worth packing. Here k, lda and ldb count numbers, not pairs. */
typedef struct tn_gemm_dots {
    int64_t rows, cols, k;
    const void *a, *b; /* element (p, j) of B at b[j * ldb + p] */
    int64_t lda, ldb;
    void *c;
    int64_t ldc;
    const void *bias;
    bool relu;
} tn_gemm_dots;

typedef struct tn_gemm_kernel {
    const char *name;
    int mr, tall, nr, kc, a_ld; /* tall: rows of a tile of no more columns than a vector has */
    int per;                    /* numbers along k of an element of A and B: 2 of bf16 */
    void (*block)(const tn_gemm_block *g);
    void (*dots)(const tn_gemm_dots *g);
} tn_gemm_kernel;

/* For TN_F32 or TN_F64: the best this processor runs; for TN_BF16 that of pairs, NULL where there is none. */
const tn_gemm_kernel *tn_gemm_kernel_for(tn_dtype type);
/* The i-th of all that this processor runs, NULL at the end: for tests. */
const tn_gemm_kernel *tn_gemm_kernel_at(tn_dtype type, int i);

/* Returns the dtype that a storage type is computed in: TN_F64 for TN_F64, else TN_F32. */
static inline tn_dtype tn_gemm_compute(tn_dtype d) { return d == TN_F64 ? TN_F64 : TN_F32; }

/* n contiguous elements of floating type d to its compute type, and back (round to nearest even). */
void tn_widen_floats(tn_dtype d, const void *src, void *dst, int64_t n);
void tn_narrow_floats(tn_dtype d, const void *src, void *dst, int64_t n);

/* dst[p * ldd + j] = src[j * lds + p] for j < cols, p < k; of f32, f64, f16 or bf16. */
void tn_pack_transpose(tn_dtype d, const void *src, int64_t lds, int64_t cols, int64_t k, void *dst,
                       int64_t ldd);

/* dst[p * ldd + j] = the pair src[2p * lds + j], src[(2p + 1) * lds + j] for j < cols, 2p < k; 0 for what is
 * behind k, and for j up to the next multiple of 4. For processors with a kernel of pairs. */
void tn_pack_pairs(const uint16_t *src, int64_t lds, int64_t cols, int64_t k, uint32_t *dst, int64_t ldd);
