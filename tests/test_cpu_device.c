/* test_cpu_device.c - kernels from text to result, copies, threads, memory that runs out. */
#include <pthread.h>

#include "cpu_device_rig.h"
#include "src/core/alloc.h"
#include "src/device/cpu/fpu.h"

/* ---- the ordinary way ------------------------------------------------------------------------------ */

TEST(compiles_and_runs)
{
    const char *dir = fresh_dir();
    tn_device *d = open_device(dir, 2);
    assert_string_equal(d->name, "cpu");
    assert_int_equal(d->threads, 2);
    assert_true(run_text(d, "add_one", ADD("add_one", "1")) == 1);
    assert_int_equal(d->stats.compiled, 1);
    assert_int_equal(d->stats.cache_hits, 0);
    assert_int_equal(d->stats.launches, 1);

    tn_source s = {"add_one", ADD("add_one", "1")};
    tn_kernel *a, *b;
    tn_errbuf err;
    assert_int_equal(d->compile(d, &s, 1, &a, &err), 0);
    assert_int_equal(d->compile(d, &s, 1, &b, &err), 0);
    assert_ptr_equal(a, b);
    assert_int_equal(d->stats.compiled, 1);
    assert_int_equal(d->stats.cache_hits, 2);
    d->close(d);

    d = open_device(dir, 2);
    assert_true(run_text(d, "add_one", ADD("add_one", "1")) == 1);
    assert_int_equal(d->stats.compiled, 0);
    assert_int_equal(d->stats.cache_hits, 1);
    d->close(d);
    assert_string_equal(said, "");
}

TEST(many_at_once)
{
    enum { N = 9 };
    const char *dir = fresh_dir();
    char text[N][256];
    tn_source s[N + 2];
    tn_kernel *k[N + 2];
    tn_errbuf err = {""};
    for (int i = 0; i < N; i++) { /* all with the same entry name */
        snprintf(text[i], sizeof text[i], ADD("add", "%d"), i);
        s[i] = (tn_source){"add", text[i]};
    }
    s[N] = s[3]; /* and one of them twice */
    s[N + 1] = (tn_source){"add__1", ADD("add__1", "100")};
    for (int round = 0; round < 2; round++) {
        tn_device *d = open_device(dir, 2);
        assert_int_equal(d->compile(d, s, N + 2, k, &err), 0);
        for (int i = 0; i < N; i++) assert_true(result(d, k[i]) == (float)i);
        assert_ptr_equal(k[N], k[3]);
        assert_true(result(d, k[N + 1]) == 100);
        assert_int_equal(d->stats.compiled, round ? 0 : N + 1);
        d->close(d);
    }
    assert_int_equal(count_files(dir, ".so"), 2);
    assert_int_equal(count_files(dir, ".c"), N + 1);
    /* each is found again alone */
    tn_device *d = open_device(dir, 1);
    assert_int_equal(d->compile(d, &s[5], 1, k, &err), 0);
    assert_true(result(d, k[0]) == 5);
    assert_int_equal(d->stats.compiled, 0);
    d->close(d);
}

TEST(statics_of_one_unit_may_clash)
{
    tn_source s[] = {
        {"first", "static float f(void) { return 3; }\n" ADD("first", "f()")},
        {"second", "static float f(void) { return 4; }\n" ADD("second", "f()")},
        {"third", ADD("third", "5")},
    };
    tn_kernel *k[3];
    tn_errbuf err = {""};
    tn_device *d = open_device(fresh_dir(), 1);
    assert_int_equal(d->compile(d, s, 3, k, &err), 0);
    for (int i = 0; i < 3; i++) assert_true(result(d, k[i]) == (float)(3 + i));
    assert_int_equal(d->stats.compiled, 3);
    d->close(d);
}

TEST(floating_point_mode_stays)
{
    tn_device *d = open_device(fresh_dir(), 2);
    uint64_t before = tn_fpu_get();
    const char *text = "void tiny(const tn_args *a, int64_t begin, int64_t end)\n"
                       "{\n"
                       "    volatile float x = 0x1p-125f;\n"
                       "    for (int64_t i = begin; i < end; i++) ((float *)a->buf[0])[i] = x / 16 != 0;\n"
                       "}\n";
    assert_true(run_text(d, "tiny", text) == 1); /* denormals are not flushed */
    assert_true(tn_fpu_get() == before);
    d->close(d);
    assert_true(tn_fpu_get() == before);
}

/* An object whose start-up code does what -ffast-math links in. */
TEST(start_up_code_cannot_change_the_mode)
{
#if defined(__SSE__)
    tn_device *d = open_device(fresh_dir(), 2);
    uint64_t before = tn_fpu_get();
    const char *text =
        "__attribute__((constructor)) static void flush(void)\n"
        "{ __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }\n" ADD("flushing", "2");
    assert_true(run_text(d, "flushing", text) == 2);
    assert_true(tn_fpu_get() == before);
    d->close(d);
#else
    skip();
#endif
}

#define PARTS(name, what)                                                                                    \
    "void " name "(const tn_args *a, int64_t begin, int64_t end)\n"                                          \
    "{ for (int64_t i = begin; i < end; i++) ((float *)a->buf[0])[i] = " what "; }\n"                        \
    "void " name "_finish(const tn_args *a, int64_t begin, int64_t end)\n"                                   \
    "{ for (int64_t i = begin; i < end; i++) {\n"                                                            \
    "    float s = 0;\n"                                                                                     \
    "    for (int64_t k = 0; k < 1000; k++) s += ((float *)a->buf[0])[k];\n"                                 \
    "    ((float *)a->buf[1])[i] = s + (float)i; } }\n"

/* Two kernels of one name, in one unit: each keeps its own finish, which sees what all items wrote. */
TEST(a_finish_runs_after_all_items)
{
    tn_device *d = open_device(fresh_dir(), 1);
    tn_source s[] = {
        {"parts", PARTS("parts", "1")}, {"parts", PARTS("parts", "2")}, {"none", ADD("none", "1")}};
    tn_kernel *k[3];
    tn_errbuf err = {""};
    assert_int_equal(d->compile(d, s, 3, k, &err), 0);
    for (int i = 0; i < 2; i++) {
        float part[1000] = {0}, out[70] = {0};
        tn_args args = {.buf = (void *const[]){part, out}};
        tn_grid grid = {.n = 1000, .chunk = 7, .finish_n = 70, .finish_chunk = 3};
        uint64_t before = d->stats.launches;
        assert_int_equal(d->launch(d, k[i], &args, &grid, &err), 0);
        assert_int_equal(d->stats.launches, before + 1);
        for (int j = 0; j < 70; j++) assert_true(out[j] == (float)(1000 * (i + 1) + j));
    }
    float y[100] = {0};
    tn_grid wrong = {.n = 100, .chunk = 7, .finish_n = 1, .finish_chunk = 1};
    assert_int_equal(d->launch(d, k[2], &(tn_args){.buf = (void *const[]){y}}, &wrong, &err), TN_E_ARG);
    d->close(d);
}

TEST(same_bits_on_1_2_3_threads)
{
    const char *dir = fresh_dir();
    static float part[3][200];
    tn_source s = {"sums", "void sums(const tn_args *a, int64_t begin, int64_t end)\n"
                           "{\n"
                           "    float s = 0;\n"
                           "    for (int64_t i = begin; i < end; i++) s += 1.0f / (float)(i * i % 977 + 1);\n"
                           "    ((float *)a->buf[0])[begin / 512] = s;\n"
                           "}\n"};
    for (int t = 0; t < 3; t++) {
        tn_device *d = open_device(dir, t + 1);
        tn_kernel *k;
        tn_errbuf err;
        assert_int_equal(d->compile(d, &s, 1, &k, &err), 0);
        assert_int_equal(d->launch(d, k, &(tn_args){.buf = (void *const[]){part[t]}},
                                   &(tn_grid){.n = 200 * 512 - 3, .chunk = 512}, &err),
                         0);
        d->close(d);
    }
    assert_memory_equal(part[0], part[1], sizeof part[0]);
    assert_memory_equal(part[0], part[2], sizeof part[0]);
}

/* ---- copies, threads, errors ------------------------------------------------------------------------ */

TEST(copies)
{
    enum { N = 5000001 };
    tn_device *d = open_device(fresh_dir(), 2);
    char *a = d->alloc(d, N), *b = d->alloc(d, N), *host = malloc(N);
    for (int i = 0; i < N; i++) host[i] = (char)(i * 31 % 251);
    assert_int_equal(d->upload(d, a, host, N), 0);
    assert_int_equal(d->copy(d, b, a, N), 0);
    memset(a, 0, N);
    assert_int_equal(d->copy(d, a, b, 0), 0);
    assert_int_equal(d->download(d, a, b, N), 0);
    assert_memory_equal(a, host, N);
    assert_int_equal(d->copy(d, a + 3, a, N - 3), 0); /* overlapping: as memmove */
    assert_memory_equal(a + 3, host, N - 3);
    assert_int_equal(d->stats.copies, 3);
    assert_int_equal(d->sync(d), 0);
    assert_true(d->stats.bytes_now == 2 * (size_t)N);
    d->free(d, a);
    assert_true(d->stats.bytes_now == N && d->stats.bytes_peak == 2 * (size_t)N);
    d->free(d, b);
    free(host);
    d->close(d);
}

TEST(thread_count)
{
    setenv("TENSOR_THREADS", "3", 1);
    tn_device *d = open_device(fresh_dir(), 0);
    assert_int_equal(d->threads, 3);
    d->close(d);
    d = open_device(fresh_dir(), 5);
    assert_int_equal(d->threads, 5);
    d->close(d);
    setenv("TENSOR_THREADS", "rubbish", 1);
    d = open_device(fresh_dir(), 0);
    assert_true(d->threads >= 1);
    d->close(d);
    unsetenv("TENSOR_THREADS");
}

/* Every allocation fails in turn, until all goes well. */
TEST(failing_allocations)
{
    const char *dir = fresh_dir();
    tn_source s[] = {{"add", ADD("add", "1")}, {"plus", ADD("plus", "2")}};
    int failures = 0;
    for (long n = 0;; n++) {
        tn_device *d = NULL;
        tn_kernel *k[2] = {NULL, NULL};
        tn_errbuf err = {""};
        tn_device_options o = {.threads = 2, .cache_dir = dir, .log = hear};
        tn_alloc_fail_after(n);
        int status = tn_cpu_open(&o, &d, &err);
        if (!status) status = d->compile(d, s, 2, k, &err);
        tn_alloc_fail_after(-1);
        if (status) {
            failures++;
            assert_true(status == TN_E_NOMEM || status == TN_E_COMPILE || status == TN_E_IO);
            assert_true(err.text[0] != 0);
        }
        if (d && status) assert_int_equal(d->compile(d, s, 2, k, &err), 0); /* there is memory again */
        if (d) {
            assert_true(result(d, k[0]) == 1 && result(d, k[1]) == 2);
            d->close(d);
        }
        if (!status) break;
    }
    assert_true(failures > 10);
}

static void *own_device(void *arg)
{
    tn_device *d = NULL;
    tn_errbuf err;
    tn_device_options o = {.threads = 2, .cache_dir = arg};
    intptr_t bad = tn_cpu_open(&o, &d, &err) != 0;
    for (int i = 0; i < 4 && !bad; i++) {
        char text[256];
        snprintf(text, sizeof text, ADD("add", "%d"), i);
        bad += run_text(d, "add", text) != (float)i;
    }
    if (d) d->close(d);
    return (void *)bad;
}

TEST(devices_in_several_threads)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s", fresh_dir());
    pthread_t t[3];
    void *bad;
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, own_device, dir), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
}

RUN_TESTS(make_base, drop_base)
