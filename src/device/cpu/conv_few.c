/* conv_few.c - results of few channels, as conv_few.h says. Bodies are written once, with vectors of the
 * compiler, and compiled for each instruction set. Read first: pixels. */
#include "conv_few.h"

#include "vectors.h"

enum { SIDE = 4 }; /* pixels at once, which read each weight once */
typedef float lanes __attribute__((vector_size(TN_FEW_LANES * sizeof(float)), aligned(4), may_alias));
typedef float half __attribute__((vector_size(TN_FEW_LANES / 2 * sizeof(float))));

#define BODY static inline __attribute__((always_inline))

BODY float sum_of(const lanes *v)
{
    half h[2];
    vec_f32 q[2];
    memcpy(h, v, sizeof h);
    h[0] += h[1];
    memcpy(q, h, sizeof q);
    q[0] += q[1];
    return (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
}

BODY void pixels(const int side, const int results, const tn_few *f, int64_t p)
{
    lanes sum[SIDE][TN_FEW_RESULTS];
    UNROLL(int i = 0; i < side; i++) {
        UNROLL(int o = 0; o < results; o++) sum[i][o] = (lanes){0};
    }
    const float *w = f->w;
    for (int64_t r = 0; r < f->rows; r++) {
        for (int64_t s = 0; s < f->columns; s++) {
            const float *a = f->a + p * f->pixel + r * f->down + s * f->along;
            for (int64_t c = 0; c < f->run; c += TN_FEW_LANES, w += TN_FEW_LANES) {
                UNROLL(int o = 0; o < results; o++) {
                    const lanes *weight = (const void *)(w + o * f->w_step);
                    UNROLL(int i = 0; i < side; i++) {
                        const lanes *from = (const void *)(a + i * f->pixel + c);
                        sum[i][o] += *from * *weight;
                    }
                }
            }
        }
    }
    UNROLL(int i = 0; i < side; i++) {
        UNROLL(int o = 0; o < results; o++) {
            const float v = sum_of(&sum[i][o]) + (f->bias ? f->bias[o] : 0);
            f->out[(p + i) * f->out_step + o] = f->relu && v < 0 ? 0 : v;
        }
    }
}

BODY void line(const int results, const tn_few *f)
{
    int64_t p = 0;
    for (; p + SIDE <= f->pixels; p += SIDE) pixels(SIDE, results, f, p);
    for (; p < f->pixels; p++) pixels(1, results, f, p);
}

BODY void any(const tn_few *f)
{
    if (f->results == 1)
        line(1, f);
    else if (f->results == 2)
        line(2, f);
    else
        line(3, f);
}

#if X86
static __attribute__((target("avx2"))) void any_avx2(const tn_few *f) { any(f); }
static __attribute__((target("avx512f,avx2"))) void any_avx512(const tn_few *f) { any(f); }
#endif

void tn_few_results(const tn_few *f)
{
#if X86
    if (__builtin_cpu_supports("avx512f")) {
        any_avx512(f);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        any_avx2(f);
        return;
    }
#endif
    any(f);
}
