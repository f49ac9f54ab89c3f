/* test_cuda_device.c - the CUDA device through its table, on the simulated GPU: memory, copies, compilation,
 * launches, faults, recordings, products and convolutions (compared with the CPU's own), and what it says and
 * does when the GPU fails. */
#include <math.h>

#include "cuda_rig.h"

#include "conv_desc.h"
#include "src/core/alloc.h"

/* ---- memory ---- */

CUDA_TEST(test_alloc_caches)
{
    tn_device *d = device_open();
    void *a = d->alloc(d, 1000), *b = d->alloc(d, 5000000), *e = d->alloc(d, 0);
    assert_true(a && b && e && a != b && a != e);
    assert_int_equal((uintptr_t)a % 256, 0);
    size_t now = d->stats.bytes_now;
    assert_true(now >= 5001000);
    d->free(d, b);
    d->free(d, a);
    assert_true(d->stats.bytes_now < 1000 && d->stats.bytes_peak >= now);
    uint64_t asked = counters().allocations;
    for (int i = 0; i < 20; i++) { /* the same again: the same places, and nothing asked of the driver */
        void *a2 = d->alloc(d, 1000), *b2 = d->alloc(d, 5000000);
        assert_ptr_equal(a2, a);
        assert_ptr_equal(b2, b);
        d->free(d, a2);
        d->free(d, b2);
    }
    assert_int_equal(counters().allocations, asked);
    void *many[300]; /* neighbours join again when they are free */
    for (int i = 0; i < 300; i++) assert_non_null(many[i] = d->alloc(d, (size_t)(i + 1) * 700));
    for (int i = 0; i < 300; i += 2) d->free(d, many[i]);
    for (int i = 1; i < 300; i += 2) d->free(d, many[i]);
    asked = counters().allocations;
    for (int i = 0; i < 20; i++) assert_non_null(many[i] = d->alloc(d, 1000000));
    assert_int_equal(counters().allocations, asked);
    d->free(d, NULL);
    device_close(d); /* with some not given back */
}

CUDA_TEST(test_range_grows_in_place)
{
    tn_device *d = device_open();
    char *r = d->reserve(d, (size_t)1 << 33), back[100];
    assert_non_null(r);
    assert_int_equal(d->commit(d, r, 0, 1000), 0);
    memset(back, 1, sizeof back);
    assert_int_equal(d->download(d, back, r + 900, 100), 0);
    for (int i = 0; i < 100; i++) assert_int_equal(back[i], 0);
    assert_int_equal(d->upload(d, r, "hello", 6), 0);
    assert_int_equal(d->commit(d, r, 0, (size_t)9 << 20), 0);
    assert_int_equal(d->commit(d, r, 0, 10), 0); /* smaller: nothing happens */
    assert_int_equal(d->download(d, back, r, 6), 0);
    assert_string_equal(back, "hello");
    assert_int_equal(d->download(d, back, r + ((size_t)9 << 20) - 100, 100), 0);
    for (int i = 0; i < 100; i++) assert_int_equal(back[i], 0);
    assert_int_equal(d->commit(d, r, 0, (size_t)1 << 34), TN_E_ARG);
    assert_int_equal(d->stats.bytes_now, (size_t)9 << 20);
    d->release(d, r, (size_t)1 << 33);
    assert_int_equal(d->stats.bytes_now, 0);
    device_close(d);
}

CUDA_TEST(test_out_of_memory)
{
    sim.set("memory", 64 << 20);
    tn_device *d = device_open();
    void *a = d->alloc(d, 20 << 20), *b = d->alloc(d, 20 << 20);
    assert_true(a && b);
    assert_null(d->alloc(d, 40 << 20));
    assert_non_null(strstr(d->failure.text, "41943040 bytes wanted; this session holds"));
    d->free(d, a);
    d->free(d, b);
    assert_non_null(a = d->alloc(d, 40 << 20)); /* what was cached went back first */
    d->free(d, a);
    char *r = d->reserve(d, (size_t)1 << 33);
    assert_int_equal(d->commit(d, r, 0, (size_t)100 << 20), TN_E_NOMEM);
    assert_int_equal(d->commit(d, r, 0, (size_t)40 << 20), 0);
    assert_int_equal(d->sync(d), 0);
    device_close(d);
}

/* ---- copies ---- */

CUDA_TEST(test_copies)
{
    tn_device *d = device_open();
    enum { N = 11 << 20 }; /* more than a slot, and more than all of them in several rounds */
    unsigned char *host = malloc(N), *back = malloc(N);
    void *a = d->alloc(d, N), *b = d->alloc(d, N);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) host[i] = (unsigned char)(i * 7 + i / 1000 + round);
        assert_int_equal(d->upload(d, a, host, N), 0);
        memset(host, 0xee, N); /* the caller's own again */
        assert_int_equal(d->copy(d, b, a, N), 0);
        assert_int_equal(d->download(d, back, b, N), 0);
        for (int i = 0; i < N; i++)
            if (back[i] != (unsigned char)(i * 7 + i / 1000 + round))
                fail_msg("byte %d of round %d", i, round);
    }
    struct cusim_counters before = counters();
    for (int i = 0; i < 1000; i++) /* small ones wait for nothing */
        assert_int_equal(d->upload(d, (char *)a + i * 8, &(int64_t){i}, 8), 0);
    assert_int_equal(counters().stream_syncs, before.stream_syncs);
    assert_int_equal(counters().host_allocations, before.host_allocations);
    assert_int_equal(d->download(d, back, a, 8000), 0);
    for (int64_t i = 0; i < 1000; i++) assert_memory_equal(back + i * 8, &i, 8);
    assert_int_equal(d->upload(d, a, host, 0), 0);
    assert_int_equal(d->download(d, back, a, 0), 0);
    free(host);
    free(back);
    device_close(d);
}

CUDA_TEST(test_posted_values)
{
    tn_device *d = device_open();
    double *a = d->alloc(d, 8), seen = 0;
    assert_false(d->peek(d, 0, &seen));
    assert_int_equal(d->upload(d, a, &(double){2.5}, 8), 0);
    uint64_t waits = counters().stream_syncs;
    assert_int_equal(d->post(d, 0, a, 8), 0);
    assert_int_equal(counters().stream_syncs, waits);
    assert_int_equal(d->sync(d), 0);
    assert_true(d->peek(d, 0, &seen));
    assert_true(seen == 2.5);
    assert_true(d->peek(d, 0, &seen));
    assert_int_equal(d->post(d, 1000, a, 8), TN_E_ARG);
    assert_false(d->peek(d, -1, &seen));
    device_close(d);
}

/* ---- kernels ---- */

/* out[i] = a * in[i] + i, then, as the finish, out[n] = the sum of its items; dim[0]: n. */
static const char axpi[] =
    "extern \"C\" __global__ void __launch_bounds__(64) axpi(const tn_cuda_args a)\n{\n"
    "    if (a.fault->code) return;\n"
    "    const float *in = (const float *)a.buf[0];\n    float *out = (float *)a.buf[1];\n"
    "    int64_t begin = (int64_t)blockIdx.x * a.chunk, end = begin + a.chunk < a.n ? begin + a.chunk : "
    "a.n;\n"
    "    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)\n"
    "        out[i] = (float)a.scalar[0].f * in[i] + (float)i;\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(32) axpi_finish(const tn_cuda_args a)\n{\n"
    "    float *out = (float *)a.buf[1];\n    float sum = 0;\n    if (threadIdx.x) return;\n"
    "    for (int64_t i = 0; i < a.n; i++) sum += out[i];\n"
    "    out[a.dim[0]] = sum;\n}\n";
static const char faulty[] =
    "extern \"C\" __global__ void __launch_bounds__(32) faulty(const tn_cuda_args a)\n{\n"
    "    if (threadIdx.x == 5) index_fault(a, 7, 1234);\n}\n";
static const char broken[] =
    "extern \"C\" __global__ void broken(const tn_cuda_args a)\n{\n    no_such_thing;\n}\n";

static tn_kernel *compile(tn_device *d, const char *entry, const char *text)
{
    tn_errbuf err = {""};
    tn_kernel *k = NULL;
    if (d->compile(d, &(tn_source){entry, text}, 1, &k, &err)) fail_msg("%s", err.text);
    assert_non_null(k);
    return k;
}

static void launch_axpi(tn_device *d, tn_kernel *k, float *in, float *out, tn_word *scale, int64_t n)
{
    tn_errbuf err = {""};
    tn_args a = {.buf = (void *[]){in, out}, .dim = &n, .scalar = scale, .n_buf = 2, .n_dim = 1};
    tn_grid g = {.n = n, .chunk = 100, .finish_n = n, .finish_chunk = n, .threads = 64, .finish_threads = 32};
    if (d->launch(d, k, &a, &g, &err)) fail_msg("%s", err.text);
}

CUDA_TEST(test_launch)
{
    tn_device *d = device_open();
    enum { N = 1000 };
    tn_kernel *k = compile(d, "axpi", axpi);
    tn_kernel_info info;
    assert_true(d->kernel_info(d, k, &info));
    assert_int_equal(info.max_threads, 64);
    assert_ptr_equal(compile(d, "axpi", axpi), k);
    assert_int_equal(d->stats.compiled + d->stats.cache_hits, 2);
    float in[N], out[N + 1], *din = d->alloc(d, sizeof in), *dout = d->alloc(d, sizeof out);
    tn_word scale = {.f = 3}, *dscale = d->alloc(d, sizeof scale);
    for (int i = 0; i < N; i++) in[i] = (float)(i % 10);
    d->upload(d, din, in, sizeof in);
    d->upload(d, dscale, &scale, sizeof scale);
    for (int round = 0; round < 2; round++) { /* the ticket is 0 again */
        launch_axpi(d, k, din, dout, dscale, N);
        assert_int_equal(d->download(d, out, dout, sizeof out), 0);
        float sum = 0;
        for (int i = 0; i < N; i++) {
            assert_true(out[i] == 3 * in[i] + (float)i);
            sum += out[i];
        }
        assert_true(out[N] == sum);
    }
    tn_errbuf err = {""};
    tn_grid bad = {.n = 10, .chunk = 0, .threads = 64};
    assert_int_equal(d->launch(d, k, &(tn_args){.n_buf = 0}, &bad, &err), TN_E_ARG);
    assert_int_equal(d->launch(d, NULL, &(tn_args){.n_buf = 0}, &bad, &err), TN_E_NULL);
    tn_grid none = {.n = 0, .chunk = 1, .threads = 64};
    uint64_t before = counters().launches;
    assert_int_equal(d->launch(d, k, &(tn_args){.n_buf = 0}, &none, &err), 0);
    assert_int_equal(counters().launches, before);
    device_close(d);

    d = device_open(); /* from the folder now */
    before = counters().compilations;
    compile(d, "axpi", axpi);
    assert_int_equal(counters().compilations, before);
    assert_int_equal(d->stats.cache_hits, 1);
    device_close(d);
}

/* out[item] = the sum of in[8 * item + threads 0 to 7], carried with what it rounds away; in the finish, so
 * that this has blocks of its own. */
static const char carried[] =
    "extern \"C\" __global__ void __launch_bounds__(32) carried(const tn_cuda_args a)\n{\n}\n"
    "extern \"C\" __global__ void __launch_bounds__(32) carried_finish(const tn_cuda_args a)\n{\n"
    "    const float *in = (const float *)a.buf[0] + 8 * blockIdx.x;\n    tn_twice lane[1] = {0.0};\n"
    "    if (threadIdx.x < 4)\n        for (int i = 0; i < 2; i++) lane[0] += in[2 * threadIdx.x + i];\n"
    "    const float sum = (float)tn_team_reduce<tn_sum_of, 32>(lane);\n"
    "    if (threadIdx.x == 0) ((float *)a.buf[1])[blockIdx.x] = sum;\n}\n";

CUDA_TEST(test_sums_carry_what_they_round_away)
{
    enum { ITEMS = 6 };
    static const float big = 16777216, inf = INFINITY;
    const float in[ITEMS][8] = {{big, 1, 1, 1, 1, 1, 1, -big}, {1, big, -big, 1, big, 1, 1, -big},
                                {inf, 1, 2, 3, 4, 5, 6, 7},    {1, 2, 3, 4, 5, 6, 7, -inf},
                                {inf, 1, 2, 3, 4, 5, 6, -inf}, {NAN, 1, 2, 3, 4, 5, 6, 7}};
    const float exact[ITEMS] = {6, 4, inf, -inf, NAN, NAN};
    float out[ITEMS];
    tn_device *d = device_open();
    tn_kernel *k = compile(d, "carried", carried);
    float *din = d->alloc(d, sizeof in), *dout = d->alloc(d, sizeof out);
    tn_args a = {.buf = (void *[]){din, dout}, .n_buf = 2};
    tn_grid g = {
        .n = 1, .chunk = 1, .finish_n = ITEMS, .finish_chunk = 1, .threads = 32, .finish_threads = 32};
    tn_errbuf err = {""};
    d->upload(d, din, in, sizeof in);
    assert_int_equal(d->launch(d, k, &a, &g, &err), 0);
    assert_int_equal(d->download(d, out, dout, sizeof out), 0);
    for (int i = 0; i < ITEMS; i++)
        if (!(out[i] == exact[i] || (isnan(out[i]) && isnan(exact[i]))))
            fail_msg("sum %d is %.9g, not %.9g", i, (double)out[i], (double)exact[i]);
    k = compile(d, "faulty", faulty); /* which has no finish */
    assert_int_equal(d->launch(d, k, &a, &g, &err), TN_E_ARG);
    device_close(d);
}

CUDA_TEST(test_compile_errors)
{
    tn_device *d = device_open();
    tn_errbuf err = {""};
    tn_source src[3] = {{"axpi", axpi}, {"broken", broken}, {"faulty", faulty}};
    tn_kernel *k[3];
    assert_int_equal(d->compile(d, src, 3, k, &err), TN_E_COMPILE);
    assert_non_null(strstr(err.text, "kernel broken: "));
    assert_non_null(strstr(err.text, "no_such_thing"));
    assert_non_null(strstr(err.text, "source kept in /"));
    assert_int_equal(d->compile(d, &(tn_source){"other", axpi}, 1, k, &err), TN_E_COMPILE);
    assert_non_null(strstr(err.text, "its text does not define other"));
    tn_source twice[2] = {{"axpi", axpi},
                          {"axpi", "\n// of the same name\n" /* and another text */
                                   "extern \"C\" __global__ void axpi(const tn_cuda_args a) {}\n"}};
    assert_int_equal(d->compile(d, twice, 2, k, &err), 0);
    assert_true(k[0] && k[1] && k[0] != k[1]);
    sim.set("compile", 1);
    assert_int_equal(d->compile(d, &(tn_source){"late", "// new\n"}, 1, k, &err), TN_E_COMPILE);
    device_close(d);
}

/* Many texts that have one name, more than there are programs to compile at once, each with a finish: all in
 * as few, and each finds its own, compiled and from the folder. */
CUDA_TEST(test_texts_of_one_name)
{
    enum { N = 40 };
    char text[N][512];
    tn_source src[N];
    tn_kernel *k[N];
    tn_errbuf err = {""};
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i],
                 "extern \"C\" __global__ void same(const tn_cuda_args a)\n{\n"
                 "    if (threadIdx.x == 0) ((float *)a.buf[0])[0] = %d;\n}\n"
                 "extern \"C\" __global__ void same_finish(const tn_cuda_args a)\n{\n"
                 "    if (threadIdx.x == 0) ((float *)a.buf[0])[1] = %d;\n}\n",
                 i, i + 100);
        src[i] = (tn_source){"same", text[i]};
    }
    for (int round = 0; round < 2; round++) {
        const uint64_t before = counters().compilations;
        tn_device *d = device_open();
        float got[2], *out = d->alloc(d, sizeof got);
        if (d->compile(d, src, N, k, &err)) fail_msg("%s", err.text);
        assert_true(round ? counters().compilations == before : counters().compilations < before + N);
        assert_int_equal(round ? d->stats.cache_hits : d->stats.compiled, N);
        for (int i = 0; i < N; i++) {
            tn_args a = {.buf = (void *[]){out}, .n_buf = 1};
            tn_grid g = {
                .n = 1, .chunk = 1, .finish_n = 1, .finish_chunk = 1, .threads = 32, .finish_threads = 32};
            if (d->launch(d, k[i], &a, &g, &err)) fail_msg("%d: %s", i, err.text);
            if (d->download(d, got, out, sizeof got)) fail_msg("%d: %s", i, d->failure.text);
            assert_true(got[0] == (float)i && got[1] == (float)(i + 100));
        }
        device_close(d);
    }
}

CUDA_TEST(test_fault_word)
{
    tn_device *d = device_open();
    tn_kernel *k = compile(d, "faulty", faulty), *after = compile(d, "axpi", axpi);
    tn_errbuf err = {""};
    tn_fault fault = {0};
    float *buf = d->alloc(d, 4000), back[3] = {1, 2, 3};
    tn_word *scale = d->alloc(d, sizeof *scale);
    d->upload(d, buf, back, sizeof back);
    d->upload(d, scale, &(tn_word){.f = 1}, sizeof *scale);
    assert_int_equal(d->sync(d), 0);
    assert_false(d->take_fault(d, &fault));
    tn_args none = {.n_buf = 0};
    assert_int_equal(d->launch(d, k, &none, &(tn_grid){.n = 64, .chunk = 32, .threads = 32}, &err), 0);
    launch_axpi(d, after, buf, buf, scale, 3); /* which does nothing now */
    assert_int_equal(d->download(d, back, buf, sizeof back), 0);
    assert_true(back[0] == 1 && back[1] == 2 && back[2] == 3);
    assert_true(d->take_fault(d, &fault));
    assert_int_equal(fault.code, TN_FAULT_INDEX);
    assert_int_equal(fault.where, 7);
    assert_int_equal(fault.value, 1234);
    assert_false(d->take_fault(d, &fault));
    launch_axpi(d, after, buf, buf, scale, 3);
    assert_int_equal(d->download(d, back, buf, sizeof back), 0);
    assert_true(back[0] == 1 && back[1] == 3 && back[2] == 5);
    assert_false(d->take_fault(d, &fault));
    device_close(d);
}

/* ---- failures ---- */

CUDA_TEST(test_failed_launch_is_final)
{
    tn_device *d = device_open();
    tn_kernel *k = compile(d, "axpi", axpi);
    tn_errbuf err = {""};
    float *buf = d->alloc(d, 4000), back[4];
    tn_word *scale = d->alloc(d, sizeof *scale);
    d->upload(d, buf, (float[4]){1}, sizeof back);
    d->upload(d, scale, &(tn_word){.f = 1}, sizeof *scale);
    sim.set("launch", 1);
    tn_args a = {.buf = (void *[]){buf, buf}, .dim = &(int64_t){4}, .scalar = scale, .n_buf = 2, .n_dim = 1};
    tn_grid g = {.n = 4, .chunk = 100, .threads = 64};
    int status = d->launch(d, k, &a, &g, &err);
    memset(back, 7, sizeof back);
    if (!status) status = d->download(d, back, buf, sizeof back);
    assert_int_equal(status, TN_E_DEVICE);
    const char *text = err.text[0] ? err.text : d->failure.text;
    assert_non_null(strstr(text, "CUDA_ERROR_LAUNCH_FAILED"));
    assert_non_null(strstr(text, "axpi"));
    assert_non_null(strstr(text, "open a new one"));
    /* and so on, for everything, in the same words */
    assert_int_equal(d->launch(d, k, &a, &g, &err), TN_E_DEVICE);
    assert_non_null(strstr(err.text, "CUDA_ERROR_LAUNCH_FAILED"));
    assert_null(d->alloc(d, 100));
    assert_int_equal(d->upload(d, buf, back, 4), TN_E_DEVICE);
    assert_int_equal(d->download(d, back, buf, 4), TN_E_DEVICE);
    assert_int_equal(d->copy(d, buf, buf, 4), TN_E_DEVICE);
    assert_int_equal(d->sync(d), TN_E_DEVICE);
    assert_int_equal(d->gemm(d, &(tn_gemm){.m = 1, .n = 1, .k = 1}, &err), TN_E_DEVICE);
    d->free(d, buf);
    d->close(d);
}

CUDA_TEST(test_named_by_waiting)
{
    setenv("TENSOR_CUDA_SYNC", "1", 1);
    tn_device *d = device_open();
    unsetenv("TENSOR_CUDA_SYNC");
    tn_kernel *k = compile(d, "faulty", faulty);
    tn_errbuf err = {""};
    sim.set("launch", 1);
    assert_int_equal(
        d->launch(d, k, &(tn_args){.n_buf = 0}, &(tn_grid){.n = 1, .chunk = 1, .threads = 32}, &err),
        TN_E_DEVICE);
    assert_non_null(strstr(err.text, "did it: faulty;"));
    d->close(d);
}

CUDA_TEST(test_lost_device)
{
    tn_device *d = device_open();
    tn_kernel *k = compile(d, "faulty", faulty);
    tn_errbuf err = {""};
    sim.set("lost", 1);
    int status = d->launch(d, k, &(tn_args){.n_buf = 0}, &(tn_grid){.n = 1, .chunk = 1, .threads = 32}, &err);
    for (int i = 0; i < 3 && !status; i++) status = d->sync(d);
    assert_int_equal(status, TN_E_DEVICE);
    assert_int_equal(d->sync(d), TN_E_DEVICE);
    assert_non_null(strstr(d->failure.text, "the GPU failed"));
    d->close(d);
    sim.reset();
}

/* A context that something else of the process holds outlives the session that a fault ended: the next one is
 * told. */
CUDA_TEST(test_context_that_stays)
{
    tn_errbuf err = {""};
    tn_device *d = device_open(), *next = NULL;
    tn_cu_context mine;
    tn_cu_result (*release)(tn_cu_device) = tn_cuda_of(d)->api->cuDevicePrimaryCtxRelease_v2;
    assert_int_equal(tn_cuda_of(d)->api->cuDevicePrimaryCtxRetain(&mine, 0), 0);
    tn_kernel *k = compile(d, "faulty", faulty);
    sim.set("launch", 1);
    d->launch(d, k, &(tn_args){.n_buf = 0}, &(tn_grid){.n = 1, .chunk = 1, .threads = 32}, &err);
    assert_int_equal(d->sync(d), TN_E_DEVICE);
    d->close(d);
    assert_int_equal(tn_cuda_open(&(tn_device_options){.threads = 1}, &next, NULL, &err), TN_E_DEVICE);
    assert_null(next);
    assert_non_null(strstr(err.text, "something still holds the GPU's primary context"));
    assert_int_equal(release(0), 0);
    device_close(device_open()); /* and works again when nothing holds it */
}

/* What the host takes to submit a launch is no part of the kernel's time (the simulator's host takes 5 us a
 * call, a launch of next to nothing 2). */
CUDA_TEST(test_time_without_the_host)
{
    for (int waits = 0; waits < 2; waits++) {
        if (waits) setenv("TENSOR_CUDA_SYNC", "1", 1);
        tn_device *d = device_open();
        unsetenv("TENSOR_CUDA_SYNC");
        tn_kernel *k = compile(d, "faulty", faulty);
        tn_errbuf err = {""};
        for (int i = 0; i < 3; i++) {
            double seconds = 0;
            int status = d->time(d, k, &(tn_args){.n_buf = 0}, &(tn_grid){.n = 1, .chunk = 1, .threads = 32},
                                 &seconds, &err);
            if (status) fail_msg("%s", err.text);
            assert_true(seconds > 0);
            if (!waits) assert_true(seconds < 4e-6);
        }
        device_close(d);
    }
}

/* ---- recordings ---- */

CUDA_TEST(test_recording)
{
    tn_device *d = device_open();
    tn_kernel *k = compile(d, "axpi", axpi);
    tn_errbuf err = {""};
    enum { N = 300 };
    float in[N], out[N + 1], *din = d->alloc(d, sizeof in), *dout = d->alloc(d, sizeof out);
    tn_word scale = {.f = 2}, *dscale = d->alloc(d, sizeof scale);
    for (int i = 0; i < N; i++) in[i] = (float)i;
    d->upload(d, din, in, sizeof in);
    assert_int_equal(d->record_begin(d, &err), 0);
    launch_axpi(d, k, din, dout, dscale, N);
    launch_axpi(d, k, dout, dout, dscale, N);
    tn_recording *r = NULL;
    assert_int_equal(d->record_end(d, &r, &err), 0);
    assert_non_null(r);
    struct cusim_counters before = counters();
    assert_int_equal(before.launches, 0); /* nothing has run */
    for (int s = 1; s < 4; s++) {         /* scalars come through memory */
        scale.f = s;
        d->upload(d, dscale, &scale, sizeof scale);
        assert_int_equal(d->replay(d, r, &err), 0);
        assert_int_equal(d->download(d, out, dout, sizeof out), 0);
        for (int i = 0; i < N; i++)
            assert_true(out[i] == (float)s * ((float)s * in[i] + (float)i) + (float)i);
    }
    assert_int_equal(counters().graph_launches - before.graph_launches, 3);
    d->forget(d, r);

    /* what cannot be recorded says so, and leaves nothing behind */
    assert_int_equal(d->record_begin(d, &err), 0);
    assert_int_equal(d->upload(d, dscale, &scale, sizeof scale), TN_E_STATE);
    assert_int_equal(d->download(d, out, dout, 4), TN_E_STATE);
    assert_null(d->alloc(d, (size_t)1 << 28));
    assert_non_null(strstr(d->failure.text, "recorded"));
    tn_kernel *late = NULL;
    assert_int_equal(d->compile(d, &(tn_source){"faulty", faulty}, 1, &late, &err), TN_E_STATE);
    assert_int_equal(d->record_end(d, NULL, &err), 0);
    assert_int_equal(d->record_end(d, &r, &err), TN_E_STATE);
    launch_axpi(d, k, din, dout, dscale, N);
    assert_int_equal(d->download(d, out, dout, sizeof out), 0);
    assert_true(out[5] == 3 * 5 + 5);
    assert_int_equal(d->record_begin(d, &err), 0); /* an empty one is nothing to do */
    assert_int_equal(d->record_end(d, &r, &err), 0);
    assert_int_equal(d->replay(d, r, &err), 0);
    d->forget(d, r);
    d->forget(d, NULL);
    device_close(d);
}

/* Each allocation of host memory fails once: an error comes out, and nothing is left behind. */
CUDA_TEST(test_no_host_memory)
{
    bool whole = false;
    for (long n = 0; n < 2000 && !whole; n++) {
        tn_errbuf err = {""};
        tn_device *d = NULL;
        tn_kernel *k = NULL;
        tn_recording *r = NULL;
        tn_alloc_fail_after(n);
        int status = tn_cuda_open(&(tn_device_options){.threads = 1}, &d, NULL, &err);
        float *a = status ? NULL : d->alloc(d, 4000);
        tn_word *scale = a ? d->alloc(d, sizeof *scale) : NULL;
        if (a && !scale) status = TN_E_NOMEM;
        if (!status && !a) status = TN_E_NOMEM;
        if (!status) status = d->compile(d, &(tn_source){"axpi", axpi}, 1, &k, &err);
        if (!status) status = d->upload(d, scale, &(tn_word){.f = 1}, sizeof *scale);
        if (!status) status = d->upload(d, a, (float[4]){1, 2, 3, 4}, 16);
        tn_gemm g = gemm_desc(TN_F32, 2, 2, 2);
        g.a = g.b = a;
        g.c = a ? a + 16 : NULL;
        if (!status) status = d->gemm(d, &g, &err);
        g.dtype = TN_I32;
        if (!status) status = d->gemm(d, &g, &err);
        if (!status) status = d->record_begin(d, &err);
        if (!status) {
            tn_args v = {
                .buf = (void *[]){a, a}, .dim = &(int64_t){4}, .scalar = scale, .n_buf = 2, .n_dim = 1};
            status = d->launch(d, k, &v, &(tn_grid){.n = 4, .chunk = 4, .threads = 64}, &err);
            int end = d->record_end(d, &r, &err);
            if (!status) status = end;
        }
        if (!status) status = d->replay(d, r, &err);
        void *range = status ? NULL : d->reserve(d, 1 << 25);
        if (!status) status = range ? d->commit(d, range, 0, 100) : TN_E_NOMEM;
        whole = !status;
        tn_alloc_fail_after(-1);
        if (status && status != TN_E_NOMEM)
            fail_msg("allocation %ld: status %d, %s; %s", n, status, err.text, d ? d->failure.text : "");
        if (d) {
            assert_int_equal(d->sync(d), 0);
            d->forget(d, r);
            d->close(d);
        }
        assert_int_equal(counters().live, 0);
        assert_int_equal(counters().bytes_now, 0);
    }
    assert_true(whole);
}

RUN_TESTS(NULL, NULL)
