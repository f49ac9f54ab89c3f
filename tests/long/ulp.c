/* ulp.c - walks all floats through every f32 function of the prelude and prints the largest error of each.
 *
 *   cc -std=c11 -D_GNU_SOURCE -O3 -march=native -fno-math-errno -fno-trapping-math -ffp-contract=off \
 *      tests/long/ulp.c -o build/ulp -pthread -lm && build/ulp [stride [function]]
 *
 * With stride 1, the default, all 2^32 arguments are tried; for pow, whose pairs nobody can walk, 2^32/stride
 * pseudo-random ones. One line per function: name, largest error in ulp (inf: wrong in kind), argument. Exit
 * status 1 if an error exceeds 2 ulp.
 *
 * The reference is libm in f64. Its scalar functions would take most of the time, so a block goes through its
 * vector functions first, which are as good as f64 to 4 ulp: far less than NEARLY ulp of f32. Only where that
 * error comes near the worst so far is the scalar one asked, and it alone decides. All 2^32 arguments of all
 * functions take some ten minutes on two cores.
 *
 * Found with gcc 12 on a processor with AVX-512, all arguments:
 *
 *   exp 1.031     expm1 1.272   log 0.920     log1p 1.514
 *   sin 1.535     cos 1.540     atan 1.879    tanh 1.847    erf 1.937     ndtr 1.929 ulp of 1/2
 *   sigmoid 1.695 sqrt 0.500    rsqrt 1.490   floor, ceil, trunc, round 0
 *   pow 1.050     over 2^32 pairs
 *
 * Without -march=native, so with no FMA: erf 2.110.
 *
 * Read first: judge, then run, which is one thread's share of a walk. */
#include "../../src/device/prelude/math.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* gcc calls libm's vector functions where told that they exist; elsewhere the scalar ones serve. */
#if defined(__x86_64__) && defined(__GLIBC_PREREQ) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
#define VECTOR __attribute__((simd("notinbranch")))
double exp(double) VECTOR;
double expm1(double) VECTOR;
double log(double) VECTOR;
double log1p(double) VECTOR;
double sin(double) VECTOR;
double cos(double) VECTOR;
double atan(double) VECTOR;
double tanh(double) VECTOR;
double erf(double) VECTOR;
double pow(double, double) VECTOR;
#endif
#endif

#include "ulp_error.h"

enum { BLOCK = 1024, MAX_THREADS = 64 };
#define NEARLY     1e-3
#define ALL_FLOATS 0x100000000u

#define LOOP(name, exact, least)                                                                             \
    __attribute__((noinline)) static void loop_##name(const float *x, const float *y, float *z, int n)       \
    {                                                                                                        \
        (void)y;                                                                                             \
        for (int i = 0; i < n; i++) z[i] = tn_##name(x[i]);                                                  \
    }                                                                                                        \
    __attribute__((noinline)) static void exact_##name(const float *x, const float *y, double *z, int n)     \
    {                                                                                                        \
        (void)y;                                                                                             \
        for (int i = 0; i < n; i++) z[i] = exact((double)x[i]);                                              \
    }                                                                                                        \
    static double scalar_##name(double x, double y)                                                          \
    {                                                                                                        \
        (void)y;                                                                                             \
        return exact(x);                                                                                     \
    }
TN_EACH_FUNCTION(LOOP)

__attribute__((noinline)) static void loop_pow(const float *x, const float *y, float *z, int n)
{
    for (int i = 0; i < n; i++) z[i] = tn_pow(x[i], y[i]);
}

__attribute__((noinline)) static void exact_pow(const float *x, const float *y, double *z, int n)
{
    for (int i = 0; i < n; i++) z[i] = pow((double)x[i], (double)y[i]);
}

__attribute__((noinline)) static void errors(const float *z, const double *exact, int least, double *error,
                                             int n)
{
    for (int i = 0; i < n; i++) error[i] = tn_ulp_error(z[i], exact[i], least);
}

static const struct {
    const char *name;
    void (*loop)(const float *x, const float *y, float *z, int n);
    void (*exact)(const float *x, const float *y, double *z, int n); /* nearly */
    double (*scalar)(double x, double y);
    int least;
} table[] = {
#define ROW(name, exact, least) {#name, loop_##name, exact_##name, scalar_##name, least},
    TN_EACH_FUNCTION(ROW){"pow", loop_pow, exact_pow, pow, TN_RELATIVE}};
enum { ROWS = sizeof table / sizeof *table, POW = ROWS - 1 };

typedef struct share {
    int row, part, parts;
    uint64_t stride;
    double worst;
    float x, y; /* where; y is pow's exponent */
} share;

static void meet(share *s, double error, float x, float y)
{
    if (error > s->worst) {
        s->worst = error;
        s->x = x;
        s->y = y;
    }
}

static void judge(share *s, const float *x, const float *y, int n)
{
    float z[BLOCK];
    double exact[BLOCK], error[BLOCK];
    table[s->row].loop(x, y, z, n);
    table[s->row].exact(x, y, exact, n);
    errors(z, exact, table[s->row].least, error, n);
    for (int i = 0; i < n; i++) {
        if (error[i] <= fmax(s->worst - NEARLY, 0)) continue;
        double e = table[s->row].scalar((double)x[i], (double)y[i]);
        meet(s, tn_ulp_error(z[i], e, table[s->row].least), x[i], y[i]);
    }
}

static void walk_one(share *s)
{
    float x[BLOCK], y[BLOCK] = {0};
    uint64_t span = BLOCK * s->stride;
    for (uint64_t base = span * (uint64_t)s->part; base < ALL_FLOATS; base += span * (uint64_t)s->parts) {
        uint64_t left = (ALL_FLOATS - base - 1) / s->stride + 1;
        int n = left < BLOCK ? (int)left : BLOCK;
        for (int i = 0; i < n; i++) x[i] = tn_test_float((uint32_t)base + (uint32_t)i * (uint32_t)s->stride);
        judge(s, x, y, n);
    }
}

/* A quarter of the pairs are any bit patterns; in half, the exponent is such that the result stays finite, a
 * result of any size being as likely; in a quarter it is a small integer. */
static void walk_pairs(share *s)
{
    float x[BLOCK], y[BLOCK];
    uint64_t state = 88172645463325252u + (uint64_t)s->part;
    for (uint64_t done = 0; done < ALL_FLOATS / s->stride / (uint64_t)s->parts; done += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            uint32_t low = (uint32_t)(state * 0x9e3779b97f4a7c15u >> 32);
            x[i] = tn_test_float((uint32_t)(state >> 32));
            y[i] = tn_test_float(low);
            if (i % 4 == 1) y[i] = (float)(int)(low % 64) - 32;
            if (i % 4 > 1) {
                x[i] = fabsf(x[i]);
                y[i] = (float)(((double)low * 0x1p-31 - 1) * 151 / log2((double)x[i]));
            }
        }
        judge(s, x, y, BLOCK);
    }
}

static void *run(void *arg)
{
    share *s = arg;
    if (s->row == POW)
        walk_pairs(s);
    else
        walk_one(s);
    return NULL;
}

int main(int argc, char **argv)
{
    unsigned long stride = argc > 1 ? strtoul(argv[1], NULL, 0) : 1;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores, bad = 0;
    for (int row = 0; row < ROWS; row++) {
        if (argc > 2 && strcmp(argv[2], table[row].name)) continue;
        share s[MAX_THREADS];
        pthread_t id[MAX_THREADS];
        for (int t = 0; t < threads; t++) {
            s[t] =
                (share){.row = row, .part = t, .parts = threads, .stride = stride ? stride : 1, .worst = 0};
            if (pthread_create(&id[t], NULL, run, &s[t])) return 2;
        }
        for (int t = 0; t < threads; t++) {
            pthread_join(id[t], NULL);
            if (t) meet(&s[0], s[t].worst, s[t].x, s[t].y);
        }
        printf("%-8s %8.4f ulp at %a (0x%08x)", table[row].name, s->worst, (double)s->x, tn_test_bits(s->x));
        if (row == POW) printf(" to the power %a", (double)s->y);
        printf("\n");
        fflush(stdout);
        bad |= s->worst > 2;
    }
    return bad;
}
