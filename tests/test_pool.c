/* test_pool.c - every chunk exactly once, whatever runs it. */
#include "tests/test.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "src/core/alloc.h"
#include "src/device/cpu/fpu.h"
#include "src/device/cpu/pool.h"

struct tally {
    atomic_int *count; /* per item */
    int64_t n, chunk;
    atomic_int calls, bad;
};

static void tally_chunk(void *arg, int64_t begin, int64_t end)
{
    struct tally *t = arg;
    atomic_fetch_add(&t->calls, 1);
    if (begin % t->chunk || begin >= end || (end != begin + t->chunk && end != t->n))
        atomic_fetch_add(&t->bad, 1);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&t->count[i], 1);
}

static int wrong(tn_pool *p, int64_t n, int64_t chunk)
{
    struct tally t = {.count = calloc((size_t)n, sizeof *t.count), .n = n, .chunk = chunk};
    tn_pool_run(p, tally_chunk, &t, n, chunk);
    int bad = t.bad + (t.calls != (n + chunk - 1) / chunk);
    for (int64_t i = 0; i < n; i++) bad += t.count[i] != 1;
    free(t.count);
    return bad;
}

TEST(every_item_once)
{
    const int threads[] = {1, 2, 3, 4, 9};
    const int64_t sizes[] = {1, 2, 3, 7, 64, 1000, 4099}, chunks[] = {1, 2, 3, 16, 1000, 5000};
    for (int t = 0; t < 5; t++) {
        tn_pool *p;
        assert_int_equal(tn_pool_open(threads[t], &p), 0);
        assert_int_equal(tn_pool_threads(p), threads[t]);
        for (int i = 0; i < 7; i++)
            for (int j = 0; j < 6; j++) assert_int_equal(wrong(p, sizes[i], chunks[j]), 0);
        tn_pool_close(p);
    }
}

TEST(many_short_calls)
{
    tn_pool *p;
    assert_int_equal(tn_pool_open(3, &p), 0);
    for (int i = 0; i < 3000; i++) {
        assert_int_equal(wrong(p, 2 + i % 5, 1), 0);
        if (i % 500 == 499) usleep(300); /* the workers fall asleep */
    }
    tn_pool_close(p);
}

static void count_call(void *arg, int64_t begin, int64_t end)
{
    (void)begin;
    (void)end;
    ++*(int *)arg;
}

TEST(nothing_and_one_chunk)
{
    tn_pool *p;
    int calls = 0;
    assert_int_equal(tn_pool_open(2, &p), 0);
    tn_pool_run(p, count_call, &calls, 0, 4);
    tn_pool_run(p, count_call, &calls, -5, 4);
    assert_int_equal(calls, 0);
    tn_pool_run(p, count_call, &calls, 7, 0);
    tn_pool_run(p, count_call, &calls, 7, 7);
    tn_pool_run(p, count_call, &calls, INT64_MAX, INT64_MAX);
    assert_int_equal(calls, 3);
    tn_pool_close(p);
    tn_pool_close(NULL);
}

struct ends {
    _Atomic int64_t covered, last;
};

static void note_ends(void *arg, int64_t begin, int64_t end)
{
    struct ends *e = arg;
    atomic_fetch_add(&e->covered, end - begin);
    if (end == INT64_MAX) atomic_store(&e->last, begin);
}

TEST(huge_extents_do_not_overflow)
{
    tn_pool *p;
    struct ends e = {0};
    assert_int_equal(tn_pool_open(2, &p), 0);
    tn_pool_run(p, note_ends, &e, INT64_MAX, INT64_MAX / 3 * 2);
    assert_true(e.covered == INT64_MAX);
    assert_true(e.last == INT64_MAX / 3 * 2);
    tn_pool_close(p);
}

struct nest {
    tn_pool *pool;
    atomic_int inner;
};

static void inner_chunk(void *arg, int64_t begin, int64_t end)
{
    atomic_fetch_add((atomic_int *)arg, (int)(end - begin));
}

static void outer_chunk(void *arg, int64_t begin, int64_t end)
{
    struct nest *n = arg;
    for (int64_t i = begin; i < end; i++) tn_pool_run(n->pool, inner_chunk, &n->inner, 100, 7);
}

TEST(nested_calls_run)
{
    struct nest n = {0};
    assert_int_equal(tn_pool_open(3, &n.pool), 0);
    for (int i = 0; i < 50; i++) tn_pool_run(n.pool, outer_chunk, &n, 40, 3);
    assert_int_equal(n.inner, 50 * 40 * 100);
    tn_pool_close(n.pool);
}

/* ---- the same bits on any number of threads -------------------------------------------------------- */

enum { TERMS = 100003, CHUNK = 1024, PARTS = (TERMS + CHUNK - 1) / CHUNK };

static void partial_sum(void *arg, int64_t begin, int64_t end)
{
    float s = 0;
    for (int64_t i = begin; i < end; i++) s += 1.0f / (float)(i * i % 977 + 1);
    ((float *)arg)[begin / CHUNK] = s;
}

TEST(bits_do_not_depend_on_threads)
{
    float part[3][PARTS];
    for (int t = 0; t < 3; t++) {
        tn_pool *p;
        assert_int_equal(tn_pool_open(t + 1, &p), 0);
        tn_pool_run(p, partial_sum, part[t], TERMS, CHUNK);
        tn_pool_close(p);
    }
    assert_memory_equal(part[0], part[1], sizeof part[0]);
    assert_memory_equal(part[0], part[2], sizeof part[0]);
}

/* ---- floating-point mode --------------------------------------------------------------------------- */

struct modes {
    uint64_t expected;
    atomic_int other, arrived;
};

static void compare_mode(void *arg, int64_t begin, int64_t end)
{
    (void)begin;
    (void)end;
    struct modes *m = arg;
    /* All four wait for each other, so that every thread takes part. */
    atomic_fetch_add(&m->arrived, 1);
    for (int i = 0; i < 20000 && atomic_load(&m->arrived) < 4; i++) usleep(100);
    if (tn_fpu_get() != m->expected) atomic_fetch_add(&m->other, 1);
}

TEST(workers_use_the_callers_mode)
{
    tn_pool *p;
    assert_int_equal(tn_pool_open(4, &p), 0);
    uint64_t before = tn_fpu_get();
#if defined(__SSE__)
    const uint64_t modes[] = {before, before | 0x8040, before}; /* flush to zero, denormals are zero */
#else
    const uint64_t modes[] = {before};
#endif
    int other = 0, changed = 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        struct modes m = {.expected = modes[i]};
        tn_fpu_set(modes[i]);
        tn_pool_run(p, compare_mode, &m, 4, 1);
        other += m.other;
        changed += tn_fpu_get() != modes[i];
    }
    tn_fpu_set(before);
    assert_int_equal(other, 0);
    assert_int_equal(changed, 0);
    tn_pool_close(p);
}

/* ---- processes and threads of the host ------------------------------------------------------------- */

TEST(works_in_a_forked_child)
{
    tn_pool *p;
    assert_int_equal(tn_pool_open(3, &p), 0);
    assert_int_equal(wrong(p, 1000, 10), 0);
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int bad = 0;
            for (int j = 0; j < 200; j++) bad += wrong(p, 100, 3);
            pid_t grandchild = fork();
            if (grandchild == 0) _exit(wrong(p, 1000, 10) != 0);
            int status = 1;
            waitpid(grandchild, &status, 0);
            tn_pool_close(p);
            _exit(bad || status);
        }
        int status = 1;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(wrong(p, 1000, 10), 0);
    }
    tn_pool_close(p);
}

TEST(closed_in_a_child_unused)
{
    tn_pool *p;
    assert_int_equal(tn_pool_open(3, &p), 0);
    pid_t pid = fork();
    if (pid == 0) {
        tn_pool_close(p);
        _exit(0);
    }
    int status = 1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    tn_pool_close(p);
}

static void *own_pool(void *arg)
{
    (void)arg;
    tn_pool *p;
    intptr_t bad = tn_pool_open(3, &p) != 0;
    for (int i = 0; i < 200 && !bad; i++) bad += wrong(p, 300, 1 + i % 40);
    tn_pool_close(p);
    return (void *)bad;
}

TEST(pools_in_several_threads)
{
    pthread_t t[4];
    void *bad;
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, own_pool, NULL), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
}

static atomic_int burning;

static void *burn(void *arg)
{
    (void)arg;
    while (atomic_load(&burning)) {
    }
    return NULL;
}

TEST(busy_cores_and_too_many_threads)
{
    pthread_t t[2];
    tn_pool *p;
    atomic_store(&burning, 1);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&t[i], NULL, burn, NULL), 0);
    assert_int_equal(tn_pool_open(32, &p), 0);
    for (int i = 0; i < 20; i++) assert_int_equal(wrong(p, 2000, 10), 0);
    tn_pool_close(p);
    atomic_store(&burning, 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
}

TEST(errors)
{
    tn_pool *p = (tn_pool *)state;
    assert_int_equal(tn_pool_open(0, &p), TN_E_ARG);
    assert_null(p);
    assert_int_equal(tn_pool_open(1000000, &p), TN_E_ARG);
    for (long i = 0; i < 2; i++) {
        tn_alloc_fail_after(i);
        int status = tn_pool_open(2, &p);
        tn_alloc_fail_after(-1);
        assert_int_equal(status, TN_E_NOMEM);
        assert_null(p);
    }
}

RUN_TESTS(NULL, NULL)
