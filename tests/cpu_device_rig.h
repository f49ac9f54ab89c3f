/* cpu_device_rig.h - a CPU device whose kernel cache is a folder of the test, and the smallest kernel.
 *
 * Read first: run_text. */
#pragma once

#include "tests/test.h"
#include "folder.h"
#include "said.h"
#include "src/device/cpu/kernels.h"
#include "src/device/device.h"

#define ADD(entry, number)                                                                                   \
    "void " entry "(const tn_args *a, int64_t begin, int64_t end)\n"                                         \
    "{\n"                                                                                                    \
    "    float *y = a->buf[0];\n"                                                                            \
    "    for (int64_t i = begin; i < end; i++) y[i] += " number ";\n"                                        \
    "}\n"

static inline tn_device *open_device(const char *dir, int threads)
{
    tn_device *d = NULL;
    tn_errbuf err = {""};
    forget();
    tn_device_options o = {.threads = threads, .cache_dir = dir, .log = hear};
    assert_int_equal(tn_cpu_open(&o, &d, &err), 0);
    return d;
}

/* What the kernel makes of y = 0; NaN where it does not run. */
static inline float result(tn_device *d, tn_kernel *k)
{
    float y[100] = {0};
    tn_errbuf err;
    tn_args args = {.buf = (void *const[]){y}};
    if (d->launch(d, k, &args, &(tn_grid){.n = 100, .chunk = 7}, &err)) return -1;
    for (int i = 1; i < 100; i++)
        if (y[i] != y[0]) return -2;
    return y[0];
}

static inline float run_text(tn_device *d, const char *entry, const char *text)
{
    tn_kernel *k = NULL;
    tn_errbuf err = {""};
    tn_source s = {entry, text};
    if (d->compile(d, &s, 1, &k, &err)) {
        print_message("%s\n", err.text);
        return -3;
    }
    return result(d, k);
}
