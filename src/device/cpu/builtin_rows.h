/* builtin_rows.h - the rows of ops.def as loops over dense arrays of T. Included by builtin_eltwise.c with
 *   T the type, NAME(row) the function's name, TABLE of the list of all, ATTR what processor it is for,
 * and included again for each combination; it takes these definitions away at its end. */
#define ROW_RESULT_NUM  T
#define ROW_RESULT_FLT  T
#define ROW_RESULT_ANY  T
#define ROW_RESULT_TEST bool
#define ROW_LOOP(name, X, R, expression)                                                                     \
    ATTR static void NAME(name)(void *out, const void *px, const void *py, const void *pz, int64_t n)        \
    {                                                                                                        \
        R *restrict o = out;                                                                                 \
        const X *restrict ax = px;                                                                           \
        const T *restrict ay = py, *restrict az = pz;                                                        \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            const X x = ax[i];                                                                               \
            const T y = ay[i], z = az[i];                                                                    \
            (void)y, (void)z;                                                                                \
            o[i] = (R)(expression);                                                                          \
        }                                                                                                    \
    }
#define K(v)                                    ((T)(v))
#define TN_UNARY(name, type, expression, ...)   ROW_LOOP(name, T, ROW_RESULT_##type, expression)
#define TN_BINARY(name, type, expression, ...)  ROW_LOOP(name, T, ROW_RESULT_##type, expression)
#define TN_TERNARY(name, type, expression, ...) ROW_LOOP(name, bool, ROW_RESULT_##type, expression)
#include "../../core/ops.def"

static loop *const TABLE[TN_OP_COUNT] = {
#define TN_ROW(name, ...) [TN_OP_##name] = NAME(name),
#include "../../core/ops.def"
};

#undef ROW_RESULT_NUM
#undef ROW_RESULT_FLT
#undef ROW_RESULT_ANY
#undef ROW_RESULT_TEST
#undef ROW_LOOP
#undef K
#undef T
#undef NAME
#undef TABLE
#undef ATTR
