/* portable.h - what the prelude's functions are built from, in C99 that needs no library: it stands in the
 * place of exact.h in a file that is to be compiled alone (src/export). Values are those of exact.h, bit for
 * bit.
 *
 * What such a file does not call is left out: src/export/pick.c takes one definition after the other, each of
 * which is named by the line it begins with. TN_FN1 and TN_FN2 are those of exact.h, which it writes out.
 *
 * Read first: tn_bits_f32, then tn_sqrt_f32.
 */

typedef union tn_pun32 {
    float f;
    uint32_t u;
} tn_pun32;

typedef union tn_pun64 {
    double f;
    uint64_t u;
} tn_pun64;

TN_FN uint32_t tn_bits_f32(float x)
{
    tn_pun32 p;
    p.f = x;
    return p.u;
}

TN_FN float tn_from_bits_f32(uint32_t u)
{
    tn_pun32 p;
    p.u = u;
    return p.f;
}

/* a b + c, with one rounding where the processor has an instruction for it. */
TN_FN float tn_fma_f32(float a, float b, float c)
{
#if defined(__GNUC__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF))
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

TN_FN double tn_fma_f64(double a, double b, double c)
{
#if defined(__GNUC__) && (defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMA))
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

#define TN_INF tn_from_bits_f32(0x7f800000u)

#define TN_NAN tn_from_bits_f32(0x7fc00000u)

TN_FN1(float, tn_abs_f32, float, tn_from_bits_f32(tn_bits_f32(x) & 0x7fffffffu))

TN_FN float tn_max_f32(float a, float b) /* NaN wins, here and below */
{
    float larger = b > a ? b : a;
    return b != b ? b : larger;
}

TN_FN float tn_min_f32(float a, float b)
{
    float smaller = b < a ? b : a;
    return b != b ? b : smaller;
}

TN_FN1(float, tn_sign_f32, float, (float)((x > 0) - (x < 0)))
TN_FN1(bool, tn_isnan_f32, float, x != x)
TN_FN1(bool, tn_isfinite_f32, float, x - x == 0)
TN_FN1(bool, tn_isnan_f64, double, x != x)
TN_FN1(bool, tn_isfinite_f64, double, x - x == 0)

/* Adding and subtracting 2^23 leaves the nearest integer; what is larger is one already. */
TN_FN float tn_rint_f32(float x)
{
    const uint32_t sign = tn_bits_f32(x) & 0x80000000u;
    const float a = tn_from_bits_f32(tn_bits_f32(x) & 0x7fffffffu);
    float n = a + 0x1p23f;
    n = n - 0x1p23f;
    return tn_from_bits_f32(tn_bits_f32(a < 0x1p23f ? n : a) | sign);
}

TN_FN double tn_rint_f64(double x)
{
    const double half = x < 0 ? -0x1p52 : 0x1p52;
    double n = x + half;
    n = n - half;
    return x > -0x1p52 && x < 0x1p52 ? n : x;
}

TN_FN1(float, tn_round_f32, float, tn_rint_f32(x))

TN_FN float tn_trunc_f32(float x)
{
    const float a = tn_from_bits_f32(tn_bits_f32(x) & 0x7fffffffu);
    const float n = a < 0x1p23f ? (float)(int32_t)a : a;
    return tn_from_bits_f32(tn_bits_f32(n) | (tn_bits_f32(x) & 0x80000000u));
}

TN_FN float tn_floor_f32(float x)
{
    const float n = tn_trunc_f32(x);
    return n > x ? n - 1 : n;
}

TN_FN float tn_ceil_f32(float x)
{
    const float n = tn_trunc_f32(x);
    const float up = n < x ? n + 1 : n;
    return tn_from_bits_f32(tn_bits_f32(up) | (tn_bits_f32(x) & 0x80000000u));
}

/* Where the processor has an instruction and the compiler may use it without a library (-fno-math-errno),
 * that. Else 1 / sqrt x by Newton's iteration in f64 from a first guess of the bits: 3.4 %, 0.2 %, 5e-6,
 * 4e-11, 2e-21. x times it is far closer to the root than a root of 24 bits ever lies to the middle of two
 * floats, so one rounding is left, the last one: the same as the instruction's. */
TN_FN float tn_sqrt_f32(float x)
{
#if defined(__NO_MATH_ERRNO__) && (defined(__SSE2__) || defined(__aarch64__))
    return __builtin_sqrtf(x);
#else
    tn_pun64 p;
    double d = (double)x, y;
    p.f = d;
    p.u = 0x5fe6eb50c7b537a9u - (p.u >> 1);
    y = p.f;
    y = y * (1.5 - 0.5 * d * y * y);
    y = y * (1.5 - 0.5 * d * y * y);
    y = y * (1.5 - 0.5 * d * y * y);
    y = y * (1.5 - 0.5 * d * y * y);
    y = d * y;
    return x > 0 && x < TN_INF ? (float)y : x < 0 ? TN_NAN : x;
#endif
}

TN_FN1(float, tn_rsqrt_f32, float, 1 / tn_sqrt_f32(x))
TN_FN1(double, tn_abs_f64, double, x < 0 ? -x : x)

TN_FN double tn_max_f64(double a, double b)
{
    double larger = b > a ? b : a;
    return b != b ? b : larger;
}

TN_FN double tn_min_f64(double a, double b)
{
    double smaller = b < a ? b : a;
    return b != b ? b : smaller;
}

TN_FN double tn_copysign_f64(double x, double sign)
{
    tn_pun64 p, s;
    p.f = x;
    s.f = sign;
    p.u = (p.u & 0x7fffffffffffffffu) | (s.u & 0x8000000000000000u);
    return p.f;
}

TN_FN1(double, tn_round_f64, double, tn_copysign_f64(tn_rint_f64(x), x))
TN_FN1(double, tn_trunc_f64, double, x > -0x1p52 && x < 0x1p52 ? tn_copysign_f64((double)(int64_t)x, x) : x)

TN_FN double tn_floor_f64(double x)
{
    const double n = tn_trunc_f64(x);
    return n > x ? n - 1 : n;
}

TN_FN double tn_ceil_f64(double x)
{
    const double n = tn_trunc_f64(x);
    return tn_copysign_f64(n < x ? n + 1 : n, x);
}

TN_FN1(double, tn_sign_f64, double, (double)((x > 0) - (x < 0)))

/* As tn_sqrt_f32, and then one more step with x - r r, r r in two parts (Dekker 1971). What would be lost on
 * the way is scaled by an even power of 2 first. */
TN_FN double tn_sqrt_f64(double x)
{
    const bool small = x < 0x1p-900;
    const bool large = x > 0x1p900;
    const double d = small ? x * 0x1p200 : large ? x * 0x1p-200 : x;
    double y, r, high, low, square;
    tn_pun64 p;
    if (!(x > 0 && x < (double)TN_INF)) return x < 0 ? (double)TN_NAN : x;
    p.f = d;
    p.u = 0x5fe6eb50c7b537a9u - (p.u >> 1);
    y = p.f;
    for (int i = 0; i < 5; i++) y = y * (1.5 - 0.5 * d * y * y);
    r = d * y;
    high = r * 134217729.0;
    high = high - (high - r);
    low = r - high;
    square = r * r;
    r = r + 0.5 * y * ((d - square) - (((high * high - square) + 2 * high * low) + low * low));
    return small ? r * 0x1p-100 : large ? r * 0x1p100 : r;
}

TN_FN1(double, tn_rsqrt_f64, double, 1 / tn_sqrt_f64(x))
TN_FN2(tn_max_i32, int32_t, a > b ? a : b)
TN_FN2(tn_min_i32, int32_t, a < b ? a : b)
TN_FN2(tn_max_i64, int64_t, a > b ? a : b)
TN_FN2(tn_min_i64, int64_t, a < b ? a : b)
TN_FN1(int32_t, tn_abs_i32, int32_t, x < 0 ? 0 - x : x)
TN_FN1(int64_t, tn_abs_i64, int64_t, x < 0 ? 0 - x : x)
TN_FN1(int32_t, tn_sign_i32, int32_t, (x > 0) - (x < 0))
TN_FN1(int64_t, tn_sign_i64, int64_t, (x > 0) - (x < 0))
TN_FN2(tn_max_u8, uint8_t, a > b ? a : b)
TN_FN2(tn_min_u8, uint8_t, a < b ? a : b)
TN_FN1(uint8_t, tn_abs_u8, uint8_t, x)
TN_FN1(uint8_t, tn_sign_u8, uint8_t, x != 0)
TN_FN2(tn_max_bool, bool, a || b)
TN_FN2(tn_min_bool, bool, a &&b)
TN_FN1(bool, tn_abs_bool, bool, x)
TN_FN1(bool, tn_sign_bool, bool, x)

/* to[c * to_line + l] = from[l * from_line + c] for l < lines, c < columns: elements of 4 bytes. */
TN_FN void tn_turn(void *to, int64_t to_line, const void *from, int64_t from_line, int64_t lines,
                   int64_t columns)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    for (int64_t l = 0; l < lines; l++)
        for (int64_t c = 0; c < columns; c++)
            for (int64_t k = 0; k < 4; k++) t[(c * to_line + l) * 4 + k] = f[(l * from_line + c) * 4 + k];
}
