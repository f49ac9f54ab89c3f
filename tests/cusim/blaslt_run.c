/* blaslt_run.c - computes the products that were handed to cuBLASLt.
 *
 * Plain loops, arranged so that the compiler vectorises them: A is laid out with the rows of the result side
 * by side, columns of the result are taken four at a time. Accumulation is in f32, or f64 where the scale is.
 *
 * Read first: sim_run_product. */
#include "sim.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 256, COLUMNS = 4 };

static size_t type_bytes(unsigned type) { return type == TN_CUBLAS_F64 ? 8 : type == TN_CUBLAS_F32 ? 4 : 2; }

/* ---- elements ---- */

/* Rounds to nearest, ties to even, by letting the addition of a suitable power of two round. */
static uint16_t to_half(float x)
{
    uint16_t sign = (uint16_t)(sim_bits(x) >> 16 & 0x8000);
    double a = fabs((double)x);
    if (isnan(x)) return (uint16_t)(sign | 0x7e00);
    if (a >= 65520) return (uint16_t)(sign | 0x7c00);
    int e = 0;
    frexp(a, &e);
    if (e < -13) e = -13;                        /* denormals share the smallest exponent */
    double scaled = nearbyint(ldexp(a, 11 - e)); /* the mantissa as an integer, up to 2048 */
    double rounded = ldexp(scaled, e - 11);
    if (rounded < 0x1p-14) return (uint16_t)(sign | (uint16_t)ldexp(rounded, 24));
    frexp(rounded, &e);
    return (uint16_t)(sign | (uint16_t)((e + 14) << 10) | ((uint16_t)ldexp(rounded, 11 - e) & 1023));
}

static uint16_t to_bfloat16(float x)
{
    const uint32_t bits = sim_bits(x);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double get(const char *base, unsigned type, int64_t i)
{
    switch (type) {
    case TN_CUBLAS_F64: return ((const double *)(const void *)base)[i];
    case TN_CUBLAS_F32: return (double)((const float *)(const void *)base)[i];
    case TN_CUBLAS_F16: return (double)sim_from_half(((const uint16_t *)(const void *)base)[i]);
    }
    return (double)sim_float((uint32_t)((const uint16_t *)(const void *)base)[i] << 16);
}

static void set(char *base, unsigned type, int64_t i, double x)
{
    switch (type) {
    case TN_CUBLAS_F64: ((double *)(void *)base)[i] = x; return;
    case TN_CUBLAS_F32: ((float *)(void *)base)[i] = (float)x; return;
    case TN_CUBLAS_F16: ((uint16_t *)(void *)base)[i] = to_half((float)x); return;
    }
    ((uint16_t *)(void *)base)[i] = to_bfloat16((float)x);
}

/* ---- matrices ---- */

static int64_t row_stride(const sim_matrix *x) { return x->row_order ? x->leading : 1; }

static int64_t column_stride(const sim_matrix *x) { return x->row_order ? 1 : x->leading; }

static bool held(const sim_matrix *x)
{
    int64_t last = (x->rows - 1) * row_stride(x) + (x->columns - 1) * column_stride(x);
    int64_t low = x->stride < 0 ? (x->batch - 1) * x->stride : 0,
            high = x->stride > 0 ? (x->batch - 1) * x->stride : 0;
    size_t bytes = type_bytes(x->type);
    return sim_memory_holds(x->at + (uint64_t)(low * (int64_t)bytes),
                            (uint64_t)(high - low + last + 1) * bytes);
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

static double finish(const sim_product *p, double x, double bias)
{
    x += bias;
    if (p->epilogue & TN_CUBLAS_EPILOGUE_RELU) return x > 0 ? x : isnan(x) ? x : 0;
    return p->epilogue & 32 ? gelu(x) : x;
}

/* An operand of one product of the batch, and its strides: along the result, and along the depth. */
typedef struct operand {
    const char *base;
    unsigned type;
    bool tf32;
    int64_t along, depth;
} operand;

/* To 10 bits behind the point, the nearest, ties away from zero, as cvt.rna.tf32 does. */
static double to_tf32(double x)
{
    const uint32_t bits = sim_bits((float)x);
    return (bits & 0x7f800000u) == 0x7f800000u ? x : (double)sim_float((bits + 0x1000u) & ~0x1fffu);
}

static double element(const operand *x, int64_t i)
{
    double value = get(x->base, x->type, i);
    return x->tf32 ? to_tf32(value) : value;
}

static const char *base_of(const sim_matrix *x, int64_t batch)
{
    return (const char *)sim_pointer(x->at) + batch * x->stride * (int64_t)type_bytes(x->type);
}

static operand operand_of(const sim_matrix *x, int64_t batch, bool depth_is_rows, bool tf32)
{
    int64_t row = row_stride(x), column = column_stride(x);
    return (operand){base_of(x, batch), x->type, tf32, depth_is_rows ? column : row,
                     depth_is_rows ? row : column};
}

/* One block of the result: `a` holds ROWS rows of it, for each step of the depth; `b` its columns. */
#define BLOCK(T)                                                                                             \
    static void lay_##T(const operand *x, int64_t first, int64_t n, int64_t room, int64_t k, T *to)          \
    {                                                                                                        \
        for (int64_t l = 0; l < k; l++)                                                                      \
            for (int64_t i = 0; i < room; i++)                                                               \
                to[l * room + i] = i < n ? (T)element(x, (first + i) * x->along + l * x->depth) : (T)0;      \
    }                                                                                                        \
    static void multiply_##T(const operand *x, const operand *y, int64_t i0, int64_t j0, int64_t rows,       \
                             int64_t columns, int64_t k, T *a, T *b, double *out)                            \
    {                                                                                                        \
        T sum[COLUMNS][ROWS] = {{0}};                                                                        \
        if (!j0) lay_##T(x, i0, rows, ROWS, k, a);                                                           \
        lay_##T(y, j0, columns, COLUMNS, k, b);                                                              \
        for (int64_t l = 0; l < k; l++)                                                                      \
            for (int64_t j = 0; j < COLUMNS; j++)                                                            \
                for (int64_t i = 0; i < ROWS; i++) sum[j][i] += b[l * COLUMNS + j] * a[l * ROWS + i];        \
        for (int64_t j = 0; j < COLUMNS; j++)                                                                \
            for (int64_t i = 0; i < ROWS; i++) out[j * ROWS + i] = (double)sum[j][i];                        \
    }
BLOCK(float)
BLOCK(double)

static void store(const sim_product *p, int64_t batch, int64_t i0, int64_t j0, int64_t rows, int64_t columns,
                  const double *sum)
{
    const char *c = p->beta != 0 ? base_of(&p->c, batch) : NULL;
    char *d = (char *)sim_pointer((uint64_t)(uintptr_t)base_of(&p->d, batch));
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++) {
            const int64_t row = i0 + i, column = j0 + j;
            double x = p->alpha * sum[j * ROWS + i];
            if (c) x += p->beta * get(c, p->c.type, row * row_stride(&p->c) + column * column_stride(&p->c));
            double bias = p->bias ? get(sim_pointer(p->bias), p->bias_type, row) : 0;
            set(d, p->d.type, row * row_stride(&p->d) + column * column_stride(&p->d), finish(p, x, bias));
        }
}

static void product(const sim_product *p, int64_t batch, int64_t k, void *a, void *b)
{
    const operand x = operand_of(&p->a, batch, p->transpose_a, p->tf32),
                  y = operand_of(&p->b, batch, !p->transpose_b, p->tf32);
    for (int64_t i = 0; i < p->d.rows; i += ROWS)
        for (int64_t j = 0; j < p->d.columns; j += COLUMNS) {
            const int64_t rows = p->d.rows - i < ROWS ? p->d.rows - i : ROWS;
            const int64_t columns = p->d.columns - j < COLUMNS ? p->d.columns - j : COLUMNS;
            double sum[COLUMNS * ROWS];
            if (p->double_precision)
                multiply_double(&x, &y, i, j, rows, columns, k, a, b, sum);
            else
                multiply_float(&x, &y, i, j, rows, columns, k, a, b, sum);
            store(p, batch, i, j, rows, columns, sum);
        }
}

void sim_run_product(const sim_product *p)
{
    const size_t k = (size_t)(p->transpose_a ? p->a.rows : p->a.columns);
    if (!held(&p->a) || !held(&p->b) || !held(&p->d) || (p->beta != 0 && !held(&p->c)) ||
        (p->bias && !sim_memory_holds(p->bias, (size_t)p->d.rows * type_bytes(p->bias_type))) ||
        !sim_memory_holds(p->workspace, p->workspace_bytes)) {
        sim_fault(SIM_ILLEGAL_ADDRESS,
                  "a product of %lld x %lld x %zu leaves device memory, or its memory was freed",
                  (long long)p->d.rows, (long long)p->d.columns, k);
        return;
    }
    if (p->workspace_bytes) memset(sim_pointer(p->workspace), 0xff, p->workspace_bytes);
    void *a = calloc(k * ROWS, sizeof(double)), *b = calloc(k * COLUMNS, sizeof(double));
    if (!a || !b) sim_fault(TN_CU_OUT_OF_MEMORY, "no host memory for a product");
    for (int64_t i = 0; a && b && i < p->d.batch; i++) product(p, i, (int64_t)k, a, b);
    free(a);
    free(b);
}
