/* test_cusim_kernels.c - CUDA text on the simulated GPU: what it computes, and which of its faults are found.
 *
 * The texts are written by hand. Each fault is planted alone, in a kernel that is right without it.
 */
#include "tests/cusim/rig.h"

#include <math.h>

enum { N = 1000 };

static void pointwise(void **state)
{
    rig *r = *state;
    tn_cu_function f = rig_kernel(r,
                                  "struct args { long n; const float *x; float *y; float scale; };\n"
                                  "extern \"C\" __global__ void __launch_bounds__(128) scaled(const args a)\n"
                                  "{\n"
                                  "    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;\n"
                                  "    if (i < a.n) a.y[i] = fmaf(a.x[i], a.scale, 1.0f);\n"
                                  "}\n",
                                  "scaled");
    float host[N];
    for (int i = 0; i < N; i++) host[i] = (float)i;
    struct {
        long n;
        tn_cu_ptr x, y;
        float scale;
    } a = {N, rig_alloc(r, sizeof host), rig_alloc(r, sizeof host), 0.5f};
    void *parameters[] = {&a};
    rig_upload(r, a.x, host, sizeof host);
    OK(rig_launch(r, f, (N + 127) / 128, 128, parameters));
    a.scale = 7; /* copied at the call */
    rig_download(r, host, a.y, sizeof host);
    for (int i = 0; i < N; i++) assert_true(host[i] == 0.5f * (float)i + 1);
    struct cusim_counters c = rig_count(r);
    assert_int_equal(c.launches, 1);
    assert_int_equal(c.blocks, 8);
    assert_int_equal(c.threads, 1024);
    assert_int_equal(c.reports, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_open, rig_close)
    const struct CMUnitTest tests[] = {
        TEST(pointwise),
    };
    return cmocka_run_group_tests_name("cusim_kernels", tests, NULL, NULL);
}
