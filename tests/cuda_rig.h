/* cuda_rig.h - what the tests of the CUDA device share: the simulated GPU (tests/cusim) in place of the
 * driver, NVRTC and cuBLASLt, a log that is kept, and kernels cached in a folder of the test's own.
 *
 * Read first: rig_open. */
#pragma once

#include "src/device/cuda/internal.h"
#include "tests/cusim/cusim.h"
#include "tests/test.h"

static struct cusim sim;

static char logged[4096]; /* what was logged since log_clear, a line each */
static int log_lines;

static inline void log_keep(int level, const char *text, void *user)
{
    (void)user;
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%d %s\n", level, text);
    log_lines++;
}

static inline void log_clear(void)
{
    logged[0] = 0;
    log_lines = 0;
}

/* Once per process, and before each test: the simulator as it is at first. */
static inline int rig_open(void **state)
{
    static bool open;
    static char cache[] = "/tmp/tn-cuda-test-XXXXXX";
    char why[512];
    (void)state;
    if (!open) {
        if (cusim_open(&sim, CUSIM_LIBRARY, why, sizeof why)) fail_msg("%s", why);
        if (!getenv("TENSOR_CACHE")) {
            assert_non_null(mkdtemp(cache));
            setenv("TENSOR_CACHE", cache, 1);
        }
        unsetenv("TENSOR_CUDA_SYNC");
        unsetenv("TENSOR_DEVICE");
        open = true;
    }
    setenv("TENSOR_CUDA_DRIVER", CUSIM_LIBRARY, 1);
    setenv("TENSOR_CUDA_NVRTC", CUSIM_LIBRARY, 1);
    setenv("TENSOR_CUDA_BLASLT", CUSIM_LIBRARY, 1);
    sim.reset();
    sim.set("quiet", 1);
    log_clear();
    return 0;
}

#define CUDA_TEST(name)          TEST_IN(name, rig_open, NULL)
#define CUDA_TEST_ON(name, open) TEST_ON_IN(name, open, rig_open)

static inline struct cusim_counters counters(void)
{
    struct cusim_counters c;
    sim.counters(&c);
    return c;
}

static inline tn_device *device_open(void)
{
    tn_errbuf err = {""};
    tn_device *d = NULL;
    tn_device_options o = {.log = log_keep};
    if (tn_cuda_open(&o, &d, NULL, &err)) fail_msg("%s", err.text);
    return d;
}

/* Nothing is left behind. */
static inline void device_close(tn_device *d)
{
    d->close(d);
    assert_int_equal(counters().live, 0);
    assert_int_equal(counters().bytes_now, 0);
}
