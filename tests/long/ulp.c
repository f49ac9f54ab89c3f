/* ulp.c - walks all floats through every f32 function of the prelude and prints the largest error of each.
 *
 *   cc -std=c11 -D_GNU_SOURCE -O3 -march=native -fno-math-errno -fno-trapping-math -ffp-contract=fast \
 *      tests/long/ulp.c -o build/ulp -pthread -lm && build/ulp [stride [function]]
 *
 * With stride 1, the default, all 2^32 arguments are tried; for pow, whose pairs nobody can walk, 2^32/stride
 * pseudo-random ones. One line per function: name, largest error in ulp (inf: wrong in kind), argument. The
 * reference is libm in f64. Exit status 1 if an error exceeds 2 ulp.
 *
 * Read first: run, which is one thread's share of a walk.
 */
#include "../../src/device/prelude/math.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ulp_error.h"

enum { BLOCK = 4096, MAX_THREADS = 64 };
#define ALL_FLOATS 0x100000000u

#define LOOP(name, exact)                                                                                    \
    __attribute__((noinline)) static void loop_##name(const float *x, float *y, int n)                       \
    {                                                                                                        \
        for (int i = 0; i < n; i++) y[i] = tn_##name(x[i]);                                                  \
    }
TN_EACH_FUNCTION(LOOP)

__attribute__((noinline)) static void loop_pow(const float *x, const float *y, float *z, int n)
{
    for (int i = 0; i < n; i++) z[i] = tn_pow(x[i], y[i]);
}

static const struct {
    const char *name;
    void (*loop)(const float *x, float *y, int n);
    double (*exact)(double);
} table[] = {
#define ROW(name, exact) { #name, loop_##name, exact },
    TN_EACH_FUNCTION(ROW){ "pow", NULL, NULL }
};
enum { ROWS = sizeof table / sizeof *table };

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

static void walk_one(share *s)
{
    float x[BLOCK], y[BLOCK];
    uint64_t span = BLOCK * s->stride;
    for (uint64_t base = span * (uint64_t)s->part; base < ALL_FLOATS; base += span * (uint64_t)s->parts) {
        int n = 0;
        for (uint64_t u = base; n < BLOCK && u < ALL_FLOATS; u += s->stride)
            x[n++] = tn_test_float((uint32_t)u);
        table[s->row].loop(x, y, n);
        for (int i = 0; i < n; i++)
            meet(s, tn_ulp_error(y[i], table[s->row].exact((double)x[i])), x[i], 0);
    }
}

/* A quarter of the pairs are any bit patterns; in half, the exponent is such that the result stays finite, a
 * result of any size being as likely; in a quarter it is a small integer. */
static void walk_pairs(share *s)
{
    float x[BLOCK], y[BLOCK], z[BLOCK];
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
        loop_pow(x, y, z, BLOCK);
        for (int i = 0; i < BLOCK; i++)
            meet(s, tn_ulp_error(z[i], pow((double)x[i], (double)y[i])), x[i], y[i]);
    }
}

static void *run(void *arg)
{
    share *s = arg;
    if (table[s->row].loop)
        walk_one(s);
    else
        walk_pairs(s);
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
            s[t] = (share){
                .row = row, .part = t, .parts = threads, .stride = stride ? stride : 1, .worst = -1
            };
            if (pthread_create(&id[t], NULL, run, &s[t])) return 2;
        }
        for (int t = 0; t < threads; t++) {
            pthread_join(id[t], NULL);
            if (t) meet(&s[0], s[t].worst, s[t].x, s[t].y);
        }
        printf("%-8s %8.4f ulp at %a (0x%08x)", table[row].name, s->worst, (double)s->x, tn_test_bits(s->x));
        if (!table[row].loop) printf(" to the power %a", (double)s->y);
        printf("\n");
        fflush(stdout);
        bad |= s->worst > 2;
    }
    return bad;
}
