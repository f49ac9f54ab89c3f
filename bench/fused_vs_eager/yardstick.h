/* yardstick.h - kernels written by hand for the cases of fused_vs_eager that memory bounds: how
 * fast such a kernel can be, on this machine and by as many threads. Read first: struct yard. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { YARD_BUFS = 8, YARD_WORKERS = 64, YARD_CHANNELS = 2048 };

typedef struct yard_pool yard_pool;

/* A call's operands: what the case reads, in its order, and what it writes: the outputs of the forward
 * kernel; the gradients of the whole-step kernel, parameters' behind those of large inputs. */
typedef struct yard {
    int64_t n, c; /* rows, and their length: a multiple of 64, at most YARD_CHANNELS */
    const void *in[YARD_BUFS];
    const float *g; /* the gradient of what forward puts out, n x c */
    float *out[YARD_BUFS];
    uint64_t seed, draw; /* of a dropout */
    double p;
    bool stream; /* write past the caches */
    double loss; /* of the whole-step kernel: sum over the outputs of out * g */
    yard_pool *pool;
    void *scratch; /* yard_scratch_bytes() */
} yard;

typedef void yard_fn(yard *y);

/* forward: out[] from in[]. step: loss and gradients from in[] and g, as one who writes the whole training
 * step by hand would do it: what forward made is made again from its inputs. NULL: none. */
typedef struct yardstick {
    const char *name;
    yard_fn *forward, *step;
    int outs, gradients;
} yardstick;

/* NULL where the case has no kernel, or this processor neither AVX-512 nor AVX2. */
const yardstick *yard_find(const char *name);
int64_t yard_scratch_bytes(void);

/* Threads of its own, `threads` with the caller; NULL when they cannot be had. */
yard_pool *yard_pool_new(int threads);
void yard_pool_free(yard_pool *p);
int yard_threads(const yard_pool *p);
/* fn(y, begin, end, worker) over [0, items) in chunks. */
typedef void yard_part(yard *y, int64_t begin, int64_t end, int worker);
void yard_run(yard *y, yard_part *fn, int64_t items);
