/* loader.c - finds and opens the driver, NVRTC and cuBLASLt.
 *
 * Where a library is looked for, in this order:
 *
 *   TENSOR_CUDA_DRIVER, TENSOR_CUDA_NVRTC, TENSOR_CUDA_BLASLT    a path: that file and no other
 *   CUDA_HOME, CUDA_PATH                                         their lib64 and lib
 *   the system's loader                                          LD_LIBRARY_PATH, ld.so.cache
 *   /usr/local/cuda, /usr/local/cuda-*                           their lib64
 *   the nvidia packages of the python3 on PATH                   site-packages/nvidia/PACKAGE/lib
 *
 * The driver comes with the system and is not looked for in toolkits, which only carry a stub of it. NVRTC
 * and cuBLASLt are taken of the newest major release that the driver knows: what they make for a newer one it
 * would refuse. Nothing is unloaded once it was in use (RTLD_NODELETE): driver threads may outlive a session.
 *
 * Read first: tn_cuda_load.
 */
#include "api.h"

#include "../../core/settings.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct library {
    const char *what, *soname; /* followed by .MAJOR, except for the driver */
    const char *override;
    const char *remedy;
} library[TN_CUDA_LIBRARIES] = {
    [TN_CUDA_DRIVER] = {"CUDA driver", "libcuda.so.1", "TENSOR_CUDA_DRIVER",
                        "install the NVIDIA driver, release 525 or newer"},
    [TN_CUDA_NVRTC] = {"NVRTC", "libnvrtc.so", "TENSOR_CUDA_NVRTC",
                       "install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, or point CUDA_HOME "
                       "at a toolkit"},
    [TN_CUDA_BLASLT] = {"cuBLASLt", "libcublasLt.so", "TENSOR_CUDA_BLASLT",
                        "install the CUDA toolkit or the Python package nvidia-cublas, or point CUDA_HOME at "
                        "a toolkit"},
};

/* ---- opening one library ---- */

static bool open_at(tn_cuda_api *api, tn_cuda_library which, const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) return false;
    api->library[which] = handle;
    snprintf(api->path[which], sizeof api->path[which], "%s", path);
    return true;
}

/* The newest of what `pattern` matches: names sort by release. */
static bool open_any(tn_cuda_api *api, tn_cuda_library which, const char *pattern)
{
    glob_t g;
    bool found = false;
    if (glob(pattern, 0, NULL, &g)) return false;
    for (size_t i = g.gl_pathc; i-- && !found;) found = open_at(api, which, g.gl_pathv[i]);
    globfree(&g);
    return found;
}

static bool open_in(tn_cuda_api *api, tn_cuda_library which, const char *folder, const char *sub,
                    const char *name)
{
    char pattern[PATH_MAX];
    int n = snprintf(pattern, sizeof pattern, "%s/%s/%s", folder, sub, name);
    return n < (int)sizeof pattern && open_any(api, which, pattern);
}

/* The packages beside the first python3 on PATH, which is that of an activated environment. */
static bool open_in_python(tn_cuda_api *api, tn_cuda_library which, const char *name)
{
    static const char *const sub[] = {"lib/python3*/site-packages/nvidia/*/lib",
                                      "lib64/python3*/site-packages/nvidia/*/lib",
                                      "local/lib/python3*/dist-packages/nvidia/*/lib"};
    const char *path = tn_setting("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        char prefix[PATH_MAX], python[PATH_MAX + 16];
        if (n && n < sizeof prefix) {
            memcpy(prefix, path, n);
            prefix[n] = 0;
            snprintf(python, sizeof python, "%s/python3", prefix);
            char *slash = strrchr(prefix, '/');
            if (slash && !access(python, X_OK)) {
                *slash = 0;
                for (size_t i = 0; i < sizeof sub / sizeof *sub; i++)
                    if (open_in(api, which, prefix, sub[i], name)) return true;
                return false;
            }
        }
        path += n + (path[n] == ':');
    }
    return false;
}

static bool open_named(tn_cuda_api *api, tn_cuda_library which, const char *name)
{
    static const char *const variable[] = {"CUDA_HOME", "CUDA_PATH"};
    for (int i = 0; i < 2; i++) {
        const char *home = tn_setting(variable[i]);
        if (!home) continue;
        if (open_in(api, which, home, "lib64", name) || open_in(api, which, home, "lib", name)) return true;
    }
    return open_at(api, which, name) || open_in(api, which, "/usr/local/cuda", "lib64", name) ||
           open_in(api, which, "/usr/local", "cuda-*/lib64", name) || open_in_python(api, which, name);
}

/* Of major release `newest` or the next older one that is here. */
static bool open_release(tn_cuda_api *api, tn_cuda_library which, int newest)
{
    for (int major = newest; major >= TN_CUDA_MIN_NVRTC / 1000; major--) {
        char name[64];
        snprintf(name, sizeof name, "%s.%d", library[which].soname, major);
        if (open_named(api, which, name)) return true;
    }
    return false;
}

static int open_library(tn_cuda_api *api, tn_cuda_library which, tn_errbuf *err)
{
    const struct library *l = &library[which];
    const char *path = tn_setting(l->override);
    if (path)
        return open_at(api, which, path)
                   ? TN_OK
                   : tn_err(err, TN_E_UNSUPPORTED, "%s names %s, which cannot be opened: %s; unset it",
                            l->override, path, dlerror());
    if (which == TN_CUDA_DRIVER)
        return open_at(api, which, l->soname) || open_at(api, which, "/usr/lib/wsl/lib/libcuda.so.1")
                   ? TN_OK
                   : tn_err(err, TN_E_UNSUPPORTED, "no %s (%s) on this machine; %s", l->what, l->soname,
                            l->remedy);
    int newest = api->driver_version / 1000, oldest = TN_CUDA_MIN_NVRTC / 1000;
    if (open_release(api, which, newest)) return TN_OK;
    return tn_err(err, TN_E_UNSUPPORTED, "no %s (%s.%d%s) for this driver, which knows CUDA up to %d.%d; %s",
                  l->what, l->soname, newest, newest > oldest ? " or older" : "", newest,
                  api->driver_version % 1000 / 10, l->remedy);
}

/* ---- looking up functions ---- */

static int look_up(tn_cuda_api *api, tn_cuda_library which, tn_errbuf *err)
{
#define TN_CU(of, result, name, parameters)                                                                  \
    if (TN_CUDA_##of == which) {                                                                             \
        void *address = dlsym(api->library[which], #name);                                                   \
        if (!address)                                                                                        \
            return tn_err(err, TN_E_UNSUPPORTED, "%s (%s) has no function %s: it is too old; %s",            \
                          library[which].what, api->path[which], #name, library[which].remedy);              \
        memcpy(&api->name, &address, sizeof address); /* POSIX allows what ISO C has no cast for */          \
    }
#include "api.def"
    return TN_OK;
}

/* ---- versions ---- */

static int start_driver(tn_cuda_api *api, tn_errbuf *err)
{
    tn_cu_result e = api->cuInit(0);
    const char *name = NULL, *text = NULL;
    if (e) {
        if (api->cuGetErrorName(e, &name) || !name) name = "an unknown error";
        if (api->cuGetErrorString(e, &text) || !text) text = "";
    }
    if (e == TN_CU_STUB)
        return tn_err(err, TN_E_UNSUPPORTED, "%s is the toolkit's stub and no driver; %s",
                      api->path[TN_CUDA_DRIVER], library[TN_CUDA_DRIVER].remedy);
    if (e == TN_CU_NO_DEVICE)
        return tn_err(err, TN_E_UNSUPPORTED,
                      "the CUDA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES");
    if (e)
        return tn_err(err, TN_E_UNSUPPORTED, "the CUDA driver does not start: %s (%s); check nvidia-smi",
                      name, text);
    if (api->cuDriverGetVersion(&api->driver_version)) api->driver_version = 0;
    if (api->driver_version < TN_CUDA_MIN_DRIVER)
        return tn_err(err, TN_E_UNSUPPORTED, "the CUDA driver is for CUDA %d.%d, older than %d.%d; %s",
                      api->driver_version / 1000, api->driver_version % 1000 / 10, TN_CUDA_MIN_DRIVER / 1000,
                      TN_CUDA_MIN_DRIVER % 1000 / 10, library[TN_CUDA_DRIVER].remedy);
    int count = 0;
    if (api->cuDeviceGetCount(&count) || !count)
        return tn_err(err, TN_E_UNSUPPORTED,
                      "the CUDA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES");
    return TN_OK;
}

static int check_nvrtc(tn_cuda_api *api, tn_errbuf *err)
{
    int major = 0, minor = 0;
    if (api->nvrtcVersion(&major, &minor)) major = 0;
    api->nvrtc_version = major * 1000 + minor * 10;
    if (api->nvrtc_version < TN_CUDA_MIN_NVRTC)
        return tn_err(err, TN_E_UNSUPPORTED, "NVRTC (%s) is of CUDA %d.%d, older than %d.%d; %s",
                      api->path[TN_CUDA_NVRTC], major, minor, TN_CUDA_MIN_NVRTC / 1000,
                      TN_CUDA_MIN_NVRTC % 1000 / 10, library[TN_CUDA_NVRTC].remedy);
    if (major > api->driver_version / 1000)
        return tn_err(err, TN_E_UNSUPPORTED,
                      "NVRTC (%s) is of CUDA %d.%d and the driver for %d.%d, which would refuse its kernels; "
                      "install a newer driver or an older toolkit",
                      api->path[TN_CUDA_NVRTC], major, minor, api->driver_version / 1000,
                      api->driver_version % 1000 / 10);
    return TN_OK;
}

bool tn_cuda_older_nvrtc(tn_cuda_api *api)
{
    tn_errbuf why;
    tn_cuda_api older = *api;
    if (tn_setting(library[TN_CUDA_NVRTC].override) ||
        !open_release(&older, TN_CUDA_NVRTC, api->nvrtc_version / 1000 - 1))
        return false;
    if (look_up(&older, TN_CUDA_NVRTC, &why) || check_nvrtc(&older, &why) ||
        older.nvrtc_version >= api->nvrtc_version) {
        dlclose(older.library[TN_CUDA_NVRTC]);
        return false;
    }
    dlclose(api->library[TN_CUDA_NVRTC]);
    *api = older;
    return true;
}

static int begin(tn_cuda_api **out, tn_errbuf *err)
{
    *out = NULL;
    if (tn_setting_is_foreign())
        return tn_err(err, TN_E_UNSUPPORTED,
                      "the libraries of CUDA heed the environment, which is that of another user here: this "
                      "program has rights that its caller lacks");
    *out = tn_calloc(1, sizeof **out);
    return *out ? TN_OK : tn_err(err, TN_E_NOMEM, "out of memory");
}

int tn_cuda_load_nvrtc(tn_cuda_api **out, tn_errbuf *err)
{
    enum { ANY = 20000 };
    int status = begin(out, err);
    if (status) return status;
    (*out)->driver_version = ANY;
    status = open_library(*out, TN_CUDA_NVRTC, err);
    if (!status) status = look_up(*out, TN_CUDA_NVRTC, err);
    if (!status) status = check_nvrtc(*out, err);
    if (!status) return TN_OK;
    tn_cuda_unload(*out);
    *out = NULL;
    return status;
}

int tn_cuda_load(tn_cuda_api **out, bool *driver, tn_errbuf *err)
{
    tn_cuda_api *api;
    if (driver) *driver = false;
    int status = begin(&api, err);
    *out = NULL;
    if (status) return status;
    status = open_library(api, TN_CUDA_DRIVER, err);
    if (!status) status = look_up(api, TN_CUDA_DRIVER, err);
    if (!status && driver) *driver = true;
    if (!status) status = start_driver(api, err);
    for (tn_cuda_library which = TN_CUDA_NVRTC; which < TN_CUDA_LIBRARIES && !status; which++) {
        status = open_library(api, which, err);
        if (!status) status = look_up(api, which, err);
    }
    if (!status) status = check_nvrtc(api, err);
    if (status) {
        tn_cuda_unload(api);
        return status;
    }
    *out = api;
    return TN_OK;
}

void tn_cuda_unload(tn_cuda_api *api)
{
    if (!api) return;
    for (int i = TN_CUDA_LIBRARIES; i--;)
        if (api->library[i]) dlclose(api->library[i]);
    tn_free_mem(api);
}
