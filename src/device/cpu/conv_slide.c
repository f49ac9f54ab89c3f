/* conv_slide.c - depthwise windows that slide, as conv_slide.h says, 16 channels at a time. Bodies are
 * written once and compiled for each type and step. Read first: slide. */
#include "conv_slide.h"

#include "vectors.h"

#if X86
#define BODY static inline __attribute__((always_inline, target(AVX512_TARGET)))

enum { LANES = 16, SIDE = 3, TAPS = SIDE * SIDE };

/* Where three lines are read, for one vector of channels; lines outside stand still on zeros. */
typedef struct place {
    const char *line[SIDE];
    int64_t apart[SIDE]; /* bytes from one pixel to the next */
    __mmask16 lanes;
} place;

static const float zeros[LANES];

BODY place place_of(const tn_slide *s, int64_t ch, __mmask16 lanes)
{
    const int64_t es = (int64_t)tn_dtype_size(s->dtype);
    place p = {.lanes = lanes};
    for (int r = 0; r < SIDE; r++) {
        const char *line = s->line[r];
        p.line[r] = line ? line + ch * es : (const char *)zeros;
        p.apart[r] = line ? s->channels * es : 0;
    }
    return p;
}

/* The window of result o, from that of o - 1 in x. */
BODY void slide(const tn_dtype type, const int step, const bool inside, const tn_slide *s, const place *p,
                int64_t o, __m512 x[SIDE][SIDE])
{
    const int64_t first = o * step + s->first;
    UNROLL(int r = 0; r < SIDE; r++) {
        UNROLL(int i = 0; i < SIDE - step; i++) x[r][i] = x[r][i + step];
        UNROLL(int i = SIDE - step; i < SIDE; i++) {
            const int64_t at = first + i;
            x[r][i] = inside || (at >= 0 && at < s->width)
                          ? avx512_load_floats(type, p->line[r] + at * p->apart[r], p->lanes)
                          : _mm512_setzero_ps();
            if (inside && r == SIDE - 1) __builtin_prefetch(p->line[r] + at * p->apart[r] + s->ahead, 0, 2);
        }
    }
}

/* Before result 0: what a slide to it keeps. */
BODY void begin(const tn_dtype type, const int step, const tn_slide *s, const place *p, __m512 x[SIDE][SIDE])
{
    slide(type, SIDE, false, s, p, 0, x);
    UNROLL(int r = 0; r < SIDE; r++) {
        UNROLL(int i = SIDE - 1; i >= step; i--) x[r][i] = x[r][i - step];
    }
}

/* Results [*lo, *hi) read inside alone. */
static void inside_of(const tn_slide *s, int64_t *lo, int64_t *hi)
{
    for (*lo = 0; *lo < s->count && *lo * s->step + s->first < 0;) ++*lo;
    for (*hi = s->count; *hi > *lo && (*hi - 1) * s->step + s->first + SIDE > s->width;) --*hi;
}

BODY void result(const tn_dtype type, const tn_slide *s, __m512 bias, __m512 w[SIDE][SIDE],
                 __m512 x[SIDE][SIDE], char *to, __mmask16 lanes)
{
    __m512 sum[SIDE] = {bias, _mm512_setzero_ps(), _mm512_setzero_ps()};
    UNROLL(int i = 0; i < SIDE; i++) {
        UNROLL(int r = 0; r < SIDE; r++) sum[r] = _mm512_fmadd_ps(w[r][i], x[r][i], sum[r]);
    }
    sum[0] = _mm512_add_ps(sum[0], _mm512_add_ps(sum[1], sum[2]));
    if (s->relu) sum[0] = _mm512_max_ps(_mm512_setzero_ps(), sum[0]);
    avx512_store_floats(type, to, sum[0], lanes);
}

BODY void results(const tn_dtype type, const int step, const tn_slide *s, char *to)
{
    const int64_t es = (int64_t)tn_dtype_size(type), pixel = s->channels * es;
    int64_t lo, hi;
    inside_of(s, &lo, &hi);
    for (int64_t ch = 0; ch < s->channels; ch += LANES) {
        const __mmask16 lanes = avx512_first_of(s->channels - ch);
        const place p = place_of(s, ch, lanes);
        const __m512 bias = s->bias ? _mm512_maskz_loadu_ps(lanes, s->bias + ch) : _mm512_setzero_ps();
        __m512 w[SIDE][SIDE], x[SIDE][SIDE];
        UNROLL(int t = 0; t < TAPS; t++) {
            w[t / SIDE][t % SIDE] = _mm512_maskz_loadu_ps(lanes, s->taps + t * s->channels + ch);
        }
        char *d = to + ch * es;
        begin(type, step, s, &p, x);
        int64_t o = 0;
        for (; o < lo; o++, d += pixel) {
            slide(type, step, false, s, &p, o, x);
            result(type, s, bias, w, x, d, lanes);
        }
        for (; o < hi; o++, d += pixel) {
            slide(type, step, true, s, &p, o, x);
            result(type, s, bias, w, x, d, lanes);
        }
        for (; o < s->count; o++, d += pixel) {
            slide(type, step, false, s, &p, o, x);
            result(type, s, bias, w, x, d, lanes);
        }
    }
}

BODY void gradient(const tn_dtype type, const char *g, __mmask16 lanes, __m512 x[SIDE][SIDE],
                   __m512 sum[SIDE][SIDE])
{
    const __m512 v = avx512_load_floats(type, g, lanes);
    UNROLL(int t = 0; t < TAPS; t++) {
        sum[t / SIDE][t % SIDE] = _mm512_fmadd_ps(v, x[t / SIDE][t % SIDE], sum[t / SIDE][t % SIDE]);
    }
}

BODY void weights(const tn_dtype type, const int step, const tn_slide *s, const char *from)
{
    const int64_t es = (int64_t)tn_dtype_size(type), pixel = s->channels * es;
    int64_t lo, hi;
    inside_of(s, &lo, &hi);
    for (int64_t ch = 0; ch < s->channels; ch += LANES) {
        const __mmask16 lanes = avx512_first_of(s->channels - ch);
        const char *g = from + ch * es;
        __m512 sum[SIDE][SIDE], x[SIDE][SIDE];
        UNROLL(int t = 0; t < TAPS; t++) sum[t / SIDE][t % SIDE] = _mm512_setzero_ps();
        const place p = place_of(s, ch, lanes);
        begin(type, step, s, &p, x);
        int64_t o = 0;
        for (; o < lo; o++, g += pixel) {
            slide(type, step, false, s, &p, o, x);
            gradient(type, g, lanes, x, sum);
        }
        for (; o < hi; o++, g += pixel) {
            slide(type, step, true, s, &p, o, x);
            __builtin_prefetch(g + s->count * pixel, 0, 2);
            gradient(type, g, lanes, x, sum);
        }
        for (; o < s->count; o++, g += pixel) {
            slide(type, step, false, s, &p, o, x);
            gradient(type, g, lanes, x, sum);
        }
        UNROLL(int t = 0; t < TAPS; t++) {
            float *to = s->taps + t * s->channels + ch;
            _mm512_mask_storeu_ps(to, lanes,
                                  _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, to), sum[t / SIDE][t % SIDE]));
        }
    }
}

#define COMPILED(what, type, step, data)                                                                     \
    static __attribute__((target(AVX512_TARGET))) void what##_##type##_##step(const tn_slide *s, data at)    \
    {                                                                                                        \
        what(type, step, s, at);                                                                             \
    }
#define BOTH(type, step)                                                                                     \
    COMPILED(results, type, step, char *)                                                                    \
    COMPILED(weights, type, step, const char *)
BOTH(TN_F32, 1)
BOTH(TN_F32, 2)
BOTH(TN_F16, 1)
BOTH(TN_F16, 2)
BOTH(TN_BF16, 1)
BOTH(TN_BF16, 2)
#define OF_TYPE(what, s, at)                                                                                 \
    (s->dtype == TN_F32   ? s->step == 1 ? what##_TN_F32_1(s, at) : what##_TN_F32_2(s, at)                   \
       : s->dtype == TN_F16 ? s->step == 1 ? what##_TN_F16_1(s, at) : what##_TN_F16_2(s, at)                 \
       : s->step == 1 ? what##_TN_BF16_1(s, at)                                                              \
                          : what##_TN_BF16_2(s, at))

bool tn_slide_serves(tn_dtype dtype, int64_t step)
{
    return dtype != TN_F64 && (step == 1 || step == 2) && avx512_there();
}

void tn_slide_results(const tn_slide *s, char *to) { OF_TYPE(results, s, to); }

void tn_slide_weights(const tn_slide *s, const char *gradients) { OF_TYPE(weights, s, gradients); }
#else
bool tn_slide_serves(tn_dtype dtype, int64_t step)
{
    (void)dtype, (void)step;
    return false;
}

void tn_slide_results(const tn_slide *s, char *to) { (void)s, (void)to; }

void tn_slide_weights(const tn_slide *s, const char *gradients) { (void)s, (void)gradients; }
#endif
