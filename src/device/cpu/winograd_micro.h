/* winograd_micro.h - the transforms of Winograd's convolutions F(2x2, 3x3) and F(4x4, 3x3), written once and
 * included by winograd_kernel.c per instruction set.
 *
 * The includer defines: V (a vector of floats), TARGET (function attribute), NAME(x) (mangles), SPLAT(x),
 * FMA(a, b, c) = a b + c, RELU(v), and WIDEN_F16(p), NARROW_F16(p, v), WIDEN_BF16(p), NARROW_BF16(p, v), which
 * read and write as many numbers of 16 bits. Everything
 * is element by element along channels, of which there is a multiple of VL. What each function computes
 * stands in winograd_kernel.h: first along one axis, then along both. `m` is the tile's side, 2 or 4, and `d`
 * the dtype of pixels and taps: constants wherever they stand, so that all loops unroll. */
#define INLINE static inline __attribute__((always_inline)) TARGET
#define VL     (int)(sizeof(V) / sizeof(float))
typedef V NAME(vector) __attribute__((aligned(1), may_alias));
#define AT(p)       (*(NAME(vector) *)(p))
#define CONST_AT(p) (*(const NAME(vector) *)(p))

/* ---- numbers as they are stored ---- */

INLINE V NAME(get)(const tn_dtype d, const void *p, int64_t i)
{
    if (d == TN_F32) return CONST_AT((const float *)p + i);
    const uint16_t *h = (const uint16_t *)p + i;
    return d == TN_F16 ? WIDEN_F16(h) : WIDEN_BF16(h);
}

INLINE void NAME(put)(const tn_dtype d, void *p, int64_t i, V v)
{
    uint16_t *h = (uint16_t *)p + i;
    if (d == TN_F32)
        AT((float *)p + i) = v;
    else if (d == TN_F16)
        NARROW_F16(h, v);
    else
        NARROW_BF16(h, v);
}

/* ---- along one axis ---- */

/* s + k t and s - k t. */
INLINE void NAME(both)(float k, V t, V s, V *sum, V *difference)
{
    *sum = FMA(SPLAT(k), t, s);
    *difference = FMA(SPLAT(-k), t, s);
}

/* B^T d. */
INLINE void NAME(spread_input)(const int m, const V *d, V *t)
{
    if (m == 2) {
        t[0] = d[0] - d[2];
        t[1] = d[1] + d[2];
        t[2] = d[2] - d[1];
        t[3] = d[1] - d[3];
        return;
    }
    const V aa = SPLAT(-P1 * P1), bb = SPLAT(-P2 * P2), product = SPLAT(P1 * P1 * P2 * P2),
            sum = SPLAT(-(P1 * P1 + P2 * P2));
    t[0] = FMA(product, d[0], FMA(sum, d[2], d[4]));
    NAME(both)(P1, FMA(bb, d[1], d[3]), FMA(bb, d[2], d[4]), &t[1], &t[2]);
    NAME(both)(P2, FMA(aa, d[1], d[3]), FMA(aa, d[2], d[4]), &t[3], &t[4]);
    t[5] = FMA(product, d[1], FMA(sum, d[3], d[5]));
}

/* A y. */
INLINE void NAME(spread_result)(const int m, const V *y, V *t)
{
    t[0] = y[0];
    if (m == 2) {
        t[1] = y[0] + y[1];
        t[2] = y[0] - y[1];
        t[3] = SPLAT(0) - y[1];
        return;
    }
    NAME(both)(P1, FMA(SPLAT(P1 * P1), y[3], y[1]), FMA(SPLAT(P1 * P1), y[2], y[0]), &t[1], &t[2]);
    NAME(both)(P2, FMA(SPLAT(P2 * P2), y[3], y[1]), FMA(SPLAT(P2 * P2), y[2], y[0]), &t[3], &t[4]);
    t[5] = y[3];
}

/* A^T u. */
INLINE void NAME(gather_result)(const int m, const V *u, V *y)
{
    if (m == 2) {
        y[0] = u[0] + u[1] + u[2];
        y[1] = u[1] - u[2] - u[3];
        return;
    }
    const V s1 = u[1] + u[2], d1 = u[1] - u[2], s2 = u[3] + u[4], d2 = u[3] - u[4];
    y[0] = u[0] + (s1 + s2);
    y[1] = FMA(SPLAT(P2), d2, SPLAT(P1) * d1);
    y[2] = FMA(SPLAT(P2 * P2), s2, SPLAT(P1 * P1) * s1);
    y[3] = FMA(SPLAT(P2 * P2 * P2), d2, FMA(SPLAT(P1 * P1 * P1), d1, u[5]));
}

/* G g. */
INLINE void NAME(spread_filter)(const int m, const V *g, V *t)
{
    if (m == 2) {
        const V half = SPLAT(0.5f), outer = half * (g[0] + g[2]), inner = half * g[1];
        t[0] = g[0];
        t[1] = outer + inner;
        t[2] = outer - inner;
        t[3] = g[2];
        return;
    }
    t[0] = SPLAT(N0) * g[0];
    NAME(both)(P1 * N1, g[1], SPLAT(N1) * FMA(SPLAT(P1 * P1), g[2], g[0]), &t[1], &t[2]);
    NAME(both)(P2 * N2, g[1], SPLAT(N2) * FMA(SPLAT(P2 * P2), g[2], g[0]), &t[3], &t[4]);
    t[5] = g[2];
}

/* G^T u. */
INLINE void NAME(gather_filter)(const int m, const V *u, V *g)
{
    if (m == 2) {
        const V half = SPLAT(0.5f), outer = half * (u[1] + u[2]);
        g[0] = u[0] + outer;
        g[1] = half * (u[1] - u[2]);
        g[2] = outer + u[3];
        return;
    }
    const V s1 = SPLAT(N1) * (u[1] + u[2]), s2 = SPLAT(N2) * (u[3] + u[4]);
    g[0] = FMA(SPLAT(N0), u[0], s1 + s2);
    g[1] = FMA(SPLAT(P2 * N2), u[3] - u[4], SPLAT(P1 * N1) * (u[1] - u[2]));
    g[2] = FMA(SPLAT(P2 * P2), s2, FMA(SPLAT(P1 * P1), s1, u[5]));
}

/* ---- along both: columns, then rows ---- */

/* `transform`, of `from` numbers `to`, of each column of from * from numbers, x[i] of column j, and then of each row
 * of what that gives: y[j] of row i, to * to numbers in all. */
#define BOTH_WAYS(transform, from, to, x_is, put_y)                                                          \
    V t[6][6], x[6], y[6];                                                                                   \
    UNROLL(int j = 0; j < (from); j++) {                                                                     \
        UNROLL(int i = 0; i < (from); i++) x[i] = x_is;                                                      \
        NAME(transform)(m, x, y);                                                                            \
        UNROLL(int i = 0; i < (to); i++) t[i][j] = y[i];                                                     \
    }                                                                                                        \
    UNROLL(int i = 0; i < (to); i++) {                                                                       \
        NAME(transform)(m, t[i], y);                                                                         \
        UNROLL(int j = 0; j < (to); j++) put_y;                                                              \
    }

INLINE void NAME(input)(const int m, const tn_dtype d, const void *const *pixel, int64_t n, float *v,
                        const int64_t *at)
{
    const int span = m + 2;
    for (int64_t c = 0; c < n; c += VL) {
        BOTH_WAYS(spread_input, span, span, NAME(get)(d, pixel[span * i + j], c),
                  AT(v + at[span * i + j] + c) = y[j])
    }
}

INLINE void NAME(gradient)(const int m, const tn_dtype d, const void *const *pixel, int64_t n, float *z,
                           int64_t step)
{
    const int span = m + 2;
    for (int64_t c = 0; c < n; c += VL) {
        BOTH_WAYS(spread_result, m, span, NAME(get)(d, pixel[m * i + j], c),
                  AT(z + (span * i + j) * step + c) = y[j])
    }
}

INLINE void NAME(output)(const int m, const tn_dtype d, const float *p, int64_t step, int64_t n,
                         const void *bias, bool relu, void *const *pixel)
{
    const int span = m + 2;
    for (int64_t c = 0; c < n; c += VL) {
        const V b = bias ? NAME(get)(d, bias, c) : SPLAT(0);
        BOTH_WAYS(gather_result, span, m, CONST_AT(p + (span * i + j) * step + c),
                  NAME(put)(d, pixel[m * i + j], c, relu ? RELU(y[j] + b) : (V)(y[j] + b)))
    }
}

INLINE void NAME(filter)(const int m, const tn_dtype d, const void *const *tap, int64_t n, float *u,
                         int64_t step)
{
    const int span = m + 2;
    for (int64_t c = 0; c < n; c += VL) {
        BOTH_WAYS(spread_filter, 3, span, NAME(get)(d, tap[3 * i + j], c),
                  AT(u + (span * i + j) * step + c) = y[j])
    }
}

INLINE void NAME(filter_gradient)(const int m, const tn_dtype d, const float *p, int64_t step, int64_t n,
                                  void *const *tap)
{
    const int span = m + 2;
    for (int64_t c = 0; c < n; c += VL) {
        BOTH_WAYS(gather_filter, span, 3, CONST_AT(p + (span * i + j) * step + c),
                  NAME(put)(d, tap[3 * i + j], c, y[j]))
    }
}

static TARGET void NAME(add)(float *sum, const float *more, int64_t n)
{
    for (int64_t c = 0; c < n; c += VL) AT(sum + c) += CONST_AT(more + c);
}

/* ---- for each tile and dtype ---- */

#define TRANSFORMS(m, d, type)                                                                               \
    static TARGET void NAME(input_##m##_##d)(const void *const *pixel, int64_t n, float *v,                  \
                                             const int64_t *at)                                              \
    {                                                                                                        \
        NAME(input)(m, type, pixel, n, v, at);                                                               \
    }                                                                                                        \
    static TARGET void NAME(gradient_##m##_##d)(const void *const *pixel, int64_t n, float *z, int64_t step) \
    {                                                                                                        \
        NAME(gradient)(m, type, pixel, n, z, step);                                                          \
    }                                                                                                        \
    static TARGET void NAME(output_##m##_##d)(const float *p, int64_t step, int64_t n, const void *bias,     \
                                              bool relu, void *const *pixel)                                 \
    {                                                                                                        \
        NAME(output)(m, type, p, step, n, bias, relu, pixel);                                                \
    }                                                                                                        \
    static TARGET void NAME(filter_##m##_##d)(const void *const *tap, int64_t n, float *u, int64_t step)     \
    {                                                                                                        \
        NAME(filter)(m, type, tap, n, u, step);                                                              \
    }                                                                                                        \
    static TARGET void NAME(filter_gradient_##m##_##d)(const float *p, int64_t step, int64_t n,              \
                                                       void *const *tap)                                     \
    {                                                                                                        \
        NAME(filter_gradient)(m, type, p, step, n, tap);                                                     \
    }
#define KERNEL(m, d, type)                                                                                   \
    {                                                                                                        \
        VL, m, type, NAME(input_##m##_##d), NAME(gradient_##m##_##d), NAME(output_##m##_##d),                \
            NAME(filter_##m##_##d), NAME(filter_gradient_##m##_##d), NAME(add)                               \
    }
TRANSFORMS(2, f32, TN_F32)
TRANSFORMS(4, f32, TN_F32)
TRANSFORMS(2, f16, TN_F16)
TRANSFORMS(4, f16, TN_F16)
TRANSFORMS(2, bf16, TN_BF16)
TRANSFORMS(4, bf16, TN_BF16)
static const tn_winograd_kernel NAME(kernels)[] = {KERNEL(2, f32, TN_F32),   KERNEL(4, f32, TN_F32),
                                                   KERNEL(2, f16, TN_F16),   KERNEL(4, f16, TN_F16),
                                                   KERNEL(2, bf16, TN_BF16), KERNEL(4, bf16, TN_BF16)};

#undef BOTH_WAYS
#undef TRANSFORMS
#undef KERNEL
#undef INLINE
#undef V
#undef VL
#undef AT
#undef CONST_AT
#undef TARGET
#undef NAME
#undef SPLAT
#undef FMA
#undef RELU
#undef WIDEN_F16
#undef NARROW_F16
#undef WIDEN_BF16
#undef NARROW_BF16
