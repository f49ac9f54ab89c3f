/* test_cpu_memory.c - the caching allocator and the ranges that never move. */
#include "tests/test.h"

#include "src/core/alloc.h"
#include "src/core/sanitized.h"
#include "src/device/cpu/memory.h"

#define MB ((size_t)1 << 20)

static tn_memory *open_memory(void)
{
    tn_memory *m = NULL;
    assert_int_equal(tn_memory_open(&m), 0);
    return m;
}

TEST(aligned_and_apart)
{
    tn_memory *m = open_memory();
    const size_t sizes[] = {0, 1, 63, 64, 65, 513, 4096, 100000, MB, 2 * MB, 2 * MB + 1, 17 * MB};
    enum { N = sizeof sizes / sizeof *sizes };
    unsigned char *p[N];
    size_t total = 0;
    for (int i = 0; i < N; i++) {
        p[i] = tn_memory_alloc(m, sizes[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % TN_MEMORY_ALIGN, 0);
        if (sizes[i] >= 2 * MB) assert_int_equal((uintptr_t)p[i] % (2 * MB), 0);
        memset(p[i], i + 1, sizes[i]);
        total += sizes[i] ? sizes[i] : 1;
    }
    assert_int_equal(tn_memory_now(m), total);
    for (int i = 0; i < N; i++)
        for (size_t j = 0; j < sizes[i]; j += 61) assert_int_equal(p[i][j], i + 1);
    for (int i = 0; i < N; i++) tn_memory_free(m, p[i]);
    assert_int_equal(tn_memory_now(m), 0);
    assert_int_equal(tn_memory_peak(m), total);
    tn_memory_close(m);
}

TEST(what_is_freed_is_used_again)
{
    tn_memory *m = open_memory();
    const size_t sizes[] = {100, 5000, 3 * MB};
    for (int i = 0; i < 3; i++) {
        void *p = tn_memory_alloc(m, sizes[i]);
        tn_memory_free(m, p);
        assert_true(tn_memory_kept(m) >= sizes[i]);
        assert_ptr_equal(tn_memory_alloc(m, sizes[i] - 10), p); /* nearly the same size fits too */
    }
    long before = tn_alloc_count();
    void *p[3];
    for (int round = 0; round < 100; round++) { /* a step run again asks the system for nothing */
        for (int i = 0; i < 3; i++) p[i] = tn_memory_alloc(m, 70000);
        for (int i = 0; i < 3; i++) tn_memory_free(m, p[i]);
        if (round == 0) before = tn_alloc_count();
    }
    assert_int_equal(tn_alloc_count(), before);
    tn_memory_close(m);
}

TEST(little_is_wasted)
{
    tn_memory *m = open_memory();
    for (size_t n = 1000; n < 40 * MB; n += n / 3) {
        tn_memory_free(m, tn_memory_alloc(m, n));
        assert_true(tn_memory_kept(m) <= n + n / 8 + 4096 + 64);
        tn_memory_trim(m);
        assert_int_equal(tn_memory_kept(m), 0);
    }
    void *big = tn_memory_alloc(m, 64 * MB), *fit = tn_memory_alloc(m, 11 * MB);
    tn_memory_free(m, big);
    tn_memory_free(m, fit);
    void *p = tn_memory_alloc(m, 10 * MB), *q = tn_memory_alloc(m, 10 * MB), *r = tn_memory_alloc(m, 60 * MB);
    assert_ptr_equal(p, fit);     /* the best fit */
    assert_ptr_not_equal(q, big); /* six times too long */
    assert_ptr_equal(r, big);
    tn_memory_close(m);
}

TEST(strange_frees_are_ignored)
{
    tn_memory *m = open_memory();
    int other;
    char *p = tn_memory_alloc(m, 100), *range = tn_memory_reserve(m, 100);
    tn_memory_free(m, NULL);
    tn_memory_free(m, &other);
    tn_memory_free(m, p + 64);
    tn_memory_free(m, range);
    tn_memory_release(m, p);
    assert_int_equal(tn_memory_now(m), 100);
    tn_memory_free(m, p);
    tn_memory_free(m, p);
    assert_int_equal(tn_memory_now(m), 0);
    char *a = tn_memory_alloc(m, 100), *b = tn_memory_alloc(m, 100);
    assert_ptr_not_equal(a, b);
    tn_memory_close(m);
    tn_memory_close(NULL);
}

/* Against a model: random sizes in random order, contents kept. */
TEST(random_use)
{
    enum { N = 300 };
    tn_memory *m = open_memory();
    unsigned char *p[N] = {0};
    size_t size[N] = {0}, now = 0;
    rng r = {1};
    for (int step = 0; step < 20000; step++) {
        const uint64_t x = rng_next(&r);
        int i = (int)(x % N);
        if (p[i]) {
            assert_int_equal(p[i][0], i % 256);
            assert_int_equal(p[i][size[i] - 1], i % 256);
            now -= size[i];
            tn_memory_free(m, p[i]);
            p[i] = NULL;
        } else {
            size[i] = 1 + (size_t)(x >> 20) % ((size_t)1 << (x >> 50) % 23);
            p[i] = tn_memory_alloc(m, size[i]);
            p[i][0] = p[i][size[i] - 1] = (unsigned char)i;
            now += size[i];
        }
        assert_int_equal(tn_memory_now(m), now);
    }
    tn_memory_close(m);
}

/* Parts in any order: each byte counts once, keeps what it holds, and is zero at first. */
TEST(parts_of_a_range)
{
    enum { PARTS = 400, SPAN = 1 << 16, FAR = 1 << 20 };
    static bool has[SPAN];
    tn_memory *m = open_memory();
    char *p = tn_memory_reserve(m, (size_t)1 << 30);
    assert_non_null(p);
    size_t now = 0;
    uint32_t r = 7;
    for (int i = 0; i < PARTS; i++) {
        const size_t first = (r = r * 1664525 + 1013904223) >> 16,
                     most = (r = r * 1664525 + 1013904223) >> 21;
        const size_t n = first + most > SPAN ? SPAN - first : most;
        assert_int_equal(tn_memory_commit(m, p, FAR + first, n), 0);
        for (size_t k = first; k < first + n; k++) {
            assert_int_equal(p[FAR + k], has[k] ? 7 : 0);
            now += !has[k];
            has[k] = true;
            p[FAR + k] = 7;
        }
        assert_int_equal(tn_memory_now(m), now);
    }
    assert_int_equal(tn_memory_commit(m, p, 0, 8 * MB), 0);
    assert_int_equal(tn_memory_now(m), 8 * MB);
    for (size_t k = 0; k < SPAN; k++) assert_int_equal(p[FAR + k], has[k] ? 7 : 0);
    tn_memory_release(m, p);
    assert_int_equal(tn_memory_now(m), 0);
    tn_memory_close(m);
}

TEST(ranges_grow_in_place)
{
    tn_memory *m = open_memory();
    size_t room = (size_t)64 << 30; /* addresses, not memory */
    char *p = tn_memory_reserve(m, room);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % (2 * MB), 0);
    assert_int_equal(tn_memory_now(m), 0);
    size_t sizes[] = {1, 5000, 4096, 3 * MB, 3 * MB + 1, 10 * MB}, had = 0;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(tn_memory_commit(m, p, 0, sizes[i]), 0);
        for (size_t j = had; j < sizes[i]; j++) assert_int_equal(p[j], 0);
        for (size_t j = 0; j < had; j += 997) assert_int_equal(p[j], 7);
        if (sizes[i] > had) had = sizes[i];
        memset(p, 7, had);
        assert_int_equal(tn_memory_now(m), had);
    }
    assert_int_equal(tn_memory_commit(m, p, 0, room + 2 * MB), TN_E_ARG);
    assert_int_equal(tn_memory_commit(m, p + 64, 0, 10), TN_E_ARG);
    assert_int_equal(tn_memory_commit(m, p, room, 1), TN_E_ARG);
    assert_int_equal(tn_memory_commit(m, p, 1, SIZE_MAX), TN_E_ARG);
    tn_memory_release(m, p);
    assert_int_equal(tn_memory_now(m), 0);
    assert_int_equal(tn_memory_commit(m, p, 0, 10), TN_E_ARG);
    assert_null(tn_memory_reserve(m, 0));
    tn_memory_close(m);
}

TEST(without_memory)
{
    tn_memory *m = open_memory();
    assert_null(tn_memory_alloc(m, SIZE_MAX));
    assert_null(tn_memory_alloc(m, SIZE_MAX / 2));
    assert_null(tn_memory_alloc(m, (size_t)1 << 60));
    assert_null(tn_memory_reserve(m, SIZE_MAX));
    const size_t sizes[] = {10, 5 * MB};
    for (int i = 0; i < 2; i++) {
        int failures = 0;
        for (long n = 0;; n++) {
            tn_memory *other = NULL;
            tn_alloc_fail_after(n);
            int status = tn_memory_open(&other);
            void *p = status ? NULL : tn_memory_alloc(other, sizes[i]);
            tn_alloc_fail_after(-1);
            if (!p) failures++;
            tn_memory_close(other);
            if (p) break;
        }
        assert_true(failures >= 3);
    }
    /* what is kept is given back before giving up */
    void *p = tn_memory_alloc(m, 5 * MB);
    tn_memory_free(m, p);
    tn_alloc_fail_after(0);
    assert_null(tn_memory_alloc(m, 50 * MB));
    assert_int_equal(tn_memory_kept(m), 0);
    tn_alloc_fail_after(-1);

    char *range = tn_memory_reserve(m, MB);
    tn_alloc_fail_after(0);
    assert_null(tn_memory_reserve(m, MB));
    assert_int_equal(tn_memory_commit(m, range, 0, 100), TN_E_NOMEM);
    tn_alloc_fail_after(-1);
    assert_int_equal(tn_memory_commit(m, range, 0, 100), 0);
    tn_memory_close(m);
}

#if defined(TN_ASAN)
#include <sanitizer/asan_interface.h>
TEST(poisoned_where_not_handed_out)
{
    tn_memory *m = open_memory();
    const size_t sizes[] = {8, 1000, 4096, 4 * MB + 8};
    for (int i = 0; i < 4; i++) {
        size_t n = sizes[i];
        char *p = tn_memory_alloc(m, n);
        assert_null(__asan_region_is_poisoned(p, n));
        for (size_t j = 0; j < 64; j++) assert_true(__asan_address_is_poisoned(p + n + j));
        tn_memory_free(m, p);
        for (size_t j = 0; j < n; j += 8) assert_true(__asan_address_is_poisoned(p + j));
        char *q = tn_memory_alloc(m, n - 7);
        assert_ptr_equal(p, q);
        assert_null(__asan_region_is_poisoned(q, n - 7));
        assert_true(__asan_address_is_poisoned(q + n));
    }
    tn_memory_close(m);
}
#endif

RUN_TESTS(NULL, NULL)
