/* cpu_lib_rig.h - what the tests of products and of convolutions share: numbers of any dtype, every thread
 * count giving the same bits.
 *
 * Read first: same_bits. */
#pragma once

#include "tests/test.h"

#include "src/core/alloc.h"
#include "src/core/convert.h"
#include "src/device/cpu/cpu_lib.h"
#include "src/device/cpu/gemm_kernel.h"
#include "src/device/cpu/pool.h"

#ifndef IMPLS
#define IMPLS 2 /* the last two are for convolutions alone */
#endif
static const tn_cpu_impl impls[] = {TN_CPU_AUTO, TN_CPU_PLAIN, TN_CPU_TILES_2, TN_CPU_TILES_4};

/* ---- numbers ---- */

static uint64_t seed_now = 1;

static inline uint32_t next_random(void)
{
    seed_now = seed_now * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed_now >> 33);
}

static inline int64_t up_to(int64_t n) { return next_random() % n; }

static inline void set(tn_dtype d, void *p, int64_t i, double v)
{
    tn_convert((char *)p + (size_t)i * tn_dtype_size(d), d, &v, TN_F64, 1);
}

static inline double get(tn_dtype d, const void *p, int64_t i) { return tn_load_f64(p, d, (size_t)i); }

/* In [-1, 1), integers in -3 to 3, u8 in 0 to 6. */
static inline void *random_array(tn_dtype d, int64_t n)
{
    void *p = malloc((size_t)(n ? n : 1) * tn_dtype_size(d));
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++)
        set(d, p, i,
            tn_dtype_is_float(d) ? next_random() / 1073741824.0 - 1 : (double)up_to(7) - (d != TN_U8) * 3);
    return p;
}

/* Relative rounding of a sum in the compute type, and of one store. */
static inline double sum_eps(tn_dtype d) { return d == TN_F64 ? 0x1p-53 : 0x1p-24; }

static inline double store_eps(tn_dtype d)
{
    return d == TN_F64 ? 0x1p-53 : d == TN_F32 ? 0x1p-24 : d == TN_F16 ? 0x1p-11 : 0x1p-8;
}

/* ---- the same bits ---- */

/* One call of what is under test. */
typedef int call_fn(tn_cpu_lib *lib, tn_pool *pool, void *user, tn_device_stats *stats, tn_errbuf *err);
/* Looks at the answer of one thread, which `what` describes. */
typedef void judge_fn(void *user, int impl, const tn_device_stats *stats, const char *what);

/* Calls on 1, 2, 3 and once more 2 threads with each implementation: the first answer is judged, the others
 * must have its bits. out: what is compared, filled before each call with bytes that no call may leave. */
static inline void same_bits(call_fn *call, judge_fn *judge, void *user, void *out, size_t bytes,
                             const char *name)
{
    tn_cpu_lib *lib;
    void *first = malloc(bytes + 1);
    assert_non_null(first);
    assert_int_equal(tn_cpu_lib_open(&lib), TN_OK);
    for (int im = 0; im < IMPLS; im++) {
        tn_cpu_lib_prefer(lib, impls[im]);
        for (int threads = 1; threads <= 4; threads++) {
            tn_pool *pool;
            tn_errbuf err = {""};
            tn_device_stats stats = {0};
            char what[200];
            snprintf(what, sizeof what, "%s, implementation %d, %d threads", name, im, threads);
            assert_int_equal(tn_pool_open(threads < 4 ? threads : 2, &pool), TN_OK);
            memset(out, 0xA5, bytes);
            int status = call(lib, pool, user, &stats, &err);
            if (status) fail_msg("%s: status %d: %s", what, status, err.text);
            assert_int_equal(stats.library_calls, 1);
            if (threads == 1) {
                judge(user, im, &stats, what);
                memcpy(first, out, bytes);
            } else if (memcmp(first, out, bytes)) {
                fail_msg("%s: other bits than on one thread", what);
            }
            tn_pool_close(pool);
        }
    }
    tn_cpu_lib_close(lib);
    free(first);
}
