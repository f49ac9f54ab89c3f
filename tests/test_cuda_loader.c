/* test_cuda_loader.c - finding and refusing CUDA libraries: what is missing is said once, with the remedy,
 * and a session that may choose runs on the CPU. Read first: refused. */
#include "cuda_rig.h"

#include <errno.h>
#include <sys/stat.h>

#include "include/tensor.h"

static char folder[64];

static int setup(void **state)
{
    rig_open(state);
    unsetenv("CUDA_HOME");
    unsetenv("CUDA_PATH");
    return 0;
}

static bool refused_driver; /* whether one was there all the same */

/* What the loader says. */
static const char *refused(void)
{
    static tn_errbuf err;
    tn_device *d = NULL;
    err.text[0] = 0;
    int status = tn_cuda_open(&(tn_device_options){.threads = 1}, &d, &refused_driver, &err);
    if (!status) d->close(d);
    assert_int_equal(status, TN_E_UNSUPPORTED);
    assert_null(d);
    return err.text;
}

/* `says` is part of the reason; the same words come out of a session that must have a GPU, and, after
 * "running on the CPU: ", out of one that may. */
static void check_refused(const char *says, bool driver)
{
    const char *why = refused();
    if (!strstr(why, says)) fail_msg("expected '%s' in '%s'", says, why);
    assert_int_equal(refused_driver, driver);
    char line[1400];
    log_clear();
    tn_session *s = tn_open(.device = TN_AUTO, .threads = 1, .log = log_keep);
    assert_non_null(s);
    assert_string_equal(tn_device_name(s), "cpu");
    assert_int_equal(log_lines, 1);
    snprintf(line, sizeof line, "%d running on the CPU: %s\n", driver ? TN_LOG_WARN : TN_LOG_INFO, why);
    assert_string_equal(logged, line);
    assert_int_equal(tn_close(s), 0);
    log_clear();
    assert_null(tn_open(.device = TN_CUDA, .log = log_keep));
    assert_int_equal(log_lines, 1);
    assert_non_null(strstr(logged, why));
    log_clear();
    setenv("TENSOR_DEVICE", "cuda", 1);
    assert_null(tn_open(.log = log_keep));
    unsetenv("TENSOR_DEVICE");
    assert_int_equal(log_lines, 1);
    assert_non_null(strstr(logged, why));
}

TEST_IN(test_opens, setup, NULL)
{
    tn_session *s = tn_open(.log = log_keep);
    assert_non_null(s);
    assert_string_equal(tn_device_name(s), "cuda");
    assert_string_equal(logged, "");
    assert_int_equal(tn_close(s), 0);
    setenv("TENSOR_DEVICE", "cpu", 1);
    s = tn_open(.log = log_keep);
    unsetenv("TENSOR_DEVICE");
    assert_string_equal(tn_device_name(s), "cpu");
    assert_int_equal(tn_close(s), 0);
}

TEST_IN(test_no_driver, setup, NULL)
{
    setenv("TENSOR_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
    check_refused("TENSOR_CUDA_DRIVER names /nowhere/libcuda.so.1, which cannot be opened: ", false);
    void *real = dlopen("libcuda.so.1", RTLD_NOW);
    if (real) { /* this machine has one: it cannot be missing */
        dlclose(real);
        return;
    }
    unsetenv("TENSOR_CUDA_DRIVER");
    check_refused(
        "no CUDA driver (libcuda.so.1) on this machine; install the NVIDIA driver, release 525 or newer",
        false);
}

TEST_IN(test_driver_too_old, setup, NULL)
{
    sim.set("driver", 11040);
    check_refused("for CUDA 11.4", true);
    sim.set("driver", 11080);
    check_refused(
        "the CUDA driver is for CUDA 11.8, older than 12.0; install the NVIDIA driver, release 525 or newer",
        true);
}

TEST_IN(test_no_gpu, setup, NULL)
{
    sim.set("no-device", 1);
    check_refused("the CUDA driver finds no GPU; check nvidia-smi", true);
}

TEST_IN(test_gpu_too_old, setup, NULL)
{
    sim.set("capability", 61);
    check_refused("has compute capability 6.1, below 7.0; a GPU of the Volta generation or later is needed",
                  true);
    sim.set("capability", 90);
    sim.set("no-virtual", 1);
    check_refused("cannot map memory into reserved addresses", true);
}

/* Computes something whose result is known. */
static void check_works(int gpu, const char *device)
{
    const float v[4] = {1, 2, 3, 4};
    log_clear();
    if (device) setenv("TENSOR_DEVICE", device, 1);
    tn_session *s = tn_open(.device = device ? TN_AUTO : TN_CUDA, .gpu = gpu, .log = log_keep);
    unsetenv("TENSOR_DEVICE");
    if (!s) fail_msg("%s", logged);
    assert_string_equal(tn_device_name(s), "cuda");
    tn_step_begin(s);
    assert_float_equal(tn_item(tn_sum(tn_square(tn_from(s, v, TN_F32, TN_SHAPE(4))), TN_ALL, false)), 30, 0);
    tn_step_end(s);
    assert_string_equal(logged, "");
    assert_int_equal(tn_close(s), 0);
}

TEST_IN(test_several_gpus, setup, NULL)
{
    sim.set("devices", 3);
    for (int i = 0; i < 3; i++) check_works(i, NULL);
    check_works(0, "cuda:2");
    check_works(1, "CUDA:2");
    check_works(0, "cuda");
    log_clear();
    assert_null(tn_open(.device = TN_CUDA, .gpu = 3, .log = log_keep));
    assert_non_null(strstr(logged, "there is no GPU cuda:3: this process sees 3, counted from cuda:0"));
    assert_null(tn_open(.device = TN_CUDA, .gpu = -1, .log = log_keep));
    assert_non_null(strstr(logged, "gpu is -1, must be 0 or more"));
    static const char *const bad[] = {"cuda:", "cuda:1x", "cuda:-1", "cuda:99999", "cpu:0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        log_clear();
        setenv("TENSOR_DEVICE", bad[i], 1);
        assert_null(tn_open(.log = log_keep));
        unsetenv("TENSOR_DEVICE");
        assert_non_null(strstr(logged, "no session: TENSOR_DEVICE is 'c"));
    }
}

/* A GPU newer than NVRTC runs PTX of what both know, from the cache too; an older one asks for an older
 * NVRTC. */
TEST_IN(test_architectures, setup, NULL)
{
    char options[512];
    sim.set("capability", 90);
    tn_device *d = device_open();
    tn_cuda_options(tn_cuda_of(d), options, sizeof options);
    assert_non_null(strstr(options, "--gpu-architecture=sm_90a "));
    assert_true(d->target.wgmma);
    device_close(d);
    sim.set("capability", 103);
    sim.set("newest-arch", 90);
    d = device_open();
    tn_cuda_options(tn_cuda_of(d), options, sizeof options);
    assert_non_null(strstr(options, "--gpu-architecture=compute_90 "));
    assert_int_equal(d->target.capability, 90);
    assert_false(d->target.wgmma); /* what sm_90a alone has is not in PTX for others */
    device_close(d);
    check_works(0, NULL);
    const uint64_t made = counters().compilations;
    assert_true(made > 0);
    check_works(0, NULL);
    assert_int_equal(counters().compilations, made);
    sim.set("newest-arch", 129);
    d = device_open();
    tn_cuda_options(tn_cuda_of(d), options, sizeof options);
    assert_non_null(strstr(options, "--gpu-architecture=sm_103 "));
    device_close(d);
    sim.set("capability", 70);
    check_works(0, NULL);
    sim.set("oldest-arch", 75);
    check_refused("has compute capability 7.0, and NVRTC (", true);
    check_refused(") compiles for 7.5 and later; install an older CUDA toolkit beside it", true);
}

TEST_IN(test_nvrtc, setup, NULL)
{
    setenv("TENSOR_CUDA_NVRTC", "/nowhere/libnvrtc.so", 1);
    check_refused("TENSOR_CUDA_NVRTC names /nowhere/libnvrtc.so, which cannot be opened", true);
    setenv("TENSOR_CUDA_NVRTC", CUSIM_OLD_NVRTC, 1);
    check_refused("nvrtcGetCUBIN", true);
    check_refused("too old; install the CUDA toolkit", true);
    setenv("TENSOR_CUDA_NVRTC", CUSIM_LIBRARY, 1);
    sim.set("nvrtc", 11080);
    check_refused("is of CUDA 11.8, older than 12.0; install the CUDA toolkit", true);
    sim.set("nvrtc", 13000);
    sim.set("driver", 12040);
    check_refused(
        "is of CUDA 13.0 and the driver for 12.4, which would refuse its kernels; install a newer driver or "
        "an older toolkit",
        true);
}

TEST_IN(test_not_found_anywhere, setup, NULL)
{
    unsetenv("TENSOR_CUDA_BLASLT");
    sim.set("driver", 99000); /* no such release will be installed here */
    sim.set("nvrtc", 99000);
    const char *why;
    tn_errbuf err;
    tn_cuda_api *api = NULL;
    bool driver;
    if (!tn_cuda_load(&api, &driver, &err)) { /* an older cuBLASLt was found, as it should be */
        assert_non_null(strstr(api->path[TN_CUDA_BLASLT], "libcublasLt.so."));
        tn_cuda_unload(api);
        return;
    }
    why = err.text;
    assert_non_null(
        strstr(why, "no cuBLASLt (libcublasLt.so.99 or older) for this driver, which knows CUDA up to 99.0"));
    assert_non_null(strstr(why, "nvidia-cublas"));
}

TEST_IN(test_stranger, setup, NULL)
{
    setenv("TENSOR_CUDA_DRIVER", CUSIM_OLD_NVRTC, 1);
    check_refused("has no function cuInit", false);
}

/* ---- where libraries are looked for ---- */

static void link_at(const char *dir, const char *name)
{
    char path[512];
    size_t n = strlen(folder);
    snprintf(path, sizeof path, "%s/%s", folder, dir);
    for (char *p = path + n + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0700);
            *p = '/';
        }
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", folder, dir, name);
    if (symlink(CUSIM_LIBRARY, path) && errno != EEXIST) fail_msg("cannot link %s", path);
}

static void check_found(tn_cuda_library which, const char *sub)
{
    char want[512];
    tn_errbuf err;
    tn_cuda_api *api = NULL;
    snprintf(want, sizeof want, "%s/%s", folder, sub);
    if (tn_cuda_load(&api, NULL, &err)) fail_msg("%s", err.text);
    assert_string_equal(api->path[which], want);
    tn_cuda_unload(api);
}

TEST_IN(test_search, setup, NULL)
{
    char home[512], path[4096], *before = getenv("PATH");
    strcpy(folder, "/tmp/tn-cuda-home-XXXXXX");
    assert_non_null(mkdtemp(folder));
    unsetenv("TENSOR_CUDA_NVRTC");
    sim.set("driver", 98000);
    sim.set("nvrtc", 98000);
    link_at("one/lib64", "libnvrtc.so.97");
    link_at("two/lib", "libnvrtc.so.98");
    snprintf(home, sizeof home, "%s/one", folder);
    setenv("CUDA_HOME", home, 1);
    check_found(TN_CUDA_NVRTC, "one/lib64/libnvrtc.so.97");
    snprintf(home, sizeof home, "%s/two", folder);
    setenv("CUDA_PATH", home, 1); /* the newer release, though looked at later */
    check_found(TN_CUDA_NVRTC, "two/lib/libnvrtc.so.98");
    unsetenv("CUDA_HOME");
    unsetenv("CUDA_PATH");
    link_at("venv/lib/python3.99/site-packages/nvidia/cuda_nvrtc/lib", "libnvrtc.so.98");
    link_at("venv/bin", "python3");
    snprintf(path, sizeof path, "%s/nothing::%s/venv/bin:%s", folder, folder, before ? before : "");
    before = before ? strdup(before) : NULL;
    setenv("PATH", path, 1);
    check_found(TN_CUDA_NVRTC, "venv/lib/python3.99/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.98");
    if (before) setenv("PATH", before, 1);
    free(before);
    snprintf(path, sizeof path, "rm -rf '%s'", folder);
    assert_int_equal(system(path), 0);
}

/* A GPU that the newest NVRTC has left behind gets the one of the release before. It is a copy of the
 * simulator, which takes its settings from the environment as it is loaded. */
TEST_IN(test_older_nvrtc, setup, NULL)
{
    char text[1200], options[512];
    strcpy(folder, "/tmp/tn-cuda-home-XXXXXX");
    assert_non_null(mkdtemp(folder));
    unsetenv("TENSOR_CUDA_NVRTC");
    sim.set("driver", 98000);
    sim.set("nvrtc", 98000);
    sim.set("oldest-arch", 80);
    sim.set("capability", 75);
    link_at("cuda/lib64", "libnvrtc.so.98");
    snprintf(text, sizeof text, "cp '%s' '%s/cuda/lib64/libnvrtc.so.97'", CUSIM_LIBRARY, folder);
    assert_int_equal(system(text), 0);
    snprintf(text, sizeof text, "%s/cuda", folder);
    setenv("CUDA_HOME", text, 1);
    setenv("TENSOR_CUSIM_FAIL", "nvrtc=97000,quiet=1", 1);
    tn_device *d = device_open();
    unsetenv("TENSOR_CUSIM_FAIL");
    snprintf(text, sizeof text, "%s/cuda/lib64/libnvrtc.so.97", folder);
    assert_string_equal(tn_cuda_of(d)->api->path[TN_CUDA_NVRTC], text);
    tn_cuda_options(tn_cuda_of(d), options, sizeof options);
    assert_non_null(strstr(options, "NVRTC 97.0 --gpu-architecture=sm_75 "));
    device_close(d);
    check_works(0, NULL);
    unsetenv("CUDA_HOME");
    snprintf(text, sizeof text, "rm -rf '%s'", folder);
    assert_int_equal(system(text), 0);
}

/* ---- what the library itself needs ---- */

TEST(test_links_no_cuda)
{
    const char *build = getenv("BUILD");
    char command[512], line[512];
    snprintf(command, sizeof command, "readelf -d '%s/libtensor.so' 2>&1 || ldd '%s/libtensor.so'",
             build ? build : "build", build ? build : "build");
    FILE *f = popen(command, "r");
    int needed = 0;
    while (f && fgets(line, sizeof line, f)) {
        needed += strstr(line, "libc.so") != NULL;
        if (strstr(line, "libcuda") || strstr(line, "nvrtc") || strstr(line, "cublas")) fail_msg("%s", line);
    }
    if (f) pclose(f);
    if (!needed) skip(); /* the shared library was not built, or nothing here can tell what it needs */
}

RUN_TESTS(NULL, NULL)
