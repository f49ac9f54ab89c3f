/* export_cuda_rig.h - what the tests of exported .cu files share: the simulator's compiler and runtime, and a
 * file that was written to the run's folder, compiled as a whole, opened and initialised. Read first: build.
 */
#pragma once

#include "tests/cuda_rig.h"
#include "tests/folder.h"
#include "tests/nvrtc.h"
#include "tests/cusim/include/cuda_runtime_api.h"

#include <dlfcn.h>

/* ---- the simulator's runtime ---- */

static struct {
    tn_nvrtc_result (*create)(tn_nvrtc_program *, const char *, const char *, int, const char *const *,
                              const char *const *);
    tn_nvrtc_result (*compile)(tn_nvrtc_program, int, const char *const *);
    tn_nvrtc_result (*log_size)(tn_nvrtc_program, size_t *);
    tn_nvrtc_result (*log)(tn_nvrtc_program, char *);
    tn_nvrtc_result (*size)(tn_nvrtc_program, size_t *);
    tn_nvrtc_result (*code)(tn_nvrtc_program, char *);
    tn_nvrtc_result (*destroy)(tn_nvrtc_program *);
    cudaError_t (*malloc)(void **, size_t);
    cudaError_t (*free)(void *);
    cudaError_t (*copy)(void *, const void *, size_t, cudaMemcpyKind);
    cudaError_t (*stream)(cudaStream_t *);
    cudaError_t (*end)(cudaStream_t);
    tn_cu_result (*capture)(tn_cu_stream, tn_cu_capture_mode);
    tn_cu_result (*captured)(tn_cu_stream, tn_cu_graph *);
    tn_cu_result (*instantiate)(tn_cu_graph_exec *, tn_cu_graph, unsigned long long);
    tn_cu_result (*launch)(tn_cu_graph_exec, tn_cu_stream);
    tn_cu_result (*drop)(tn_cu_graph_exec);
    tn_cu_result (*drop_graph)(tn_cu_graph);
} gpu;

static inline void find_gpu(void)
{
    void *lib = dlopen(CUSIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    static const struct {
        void *to;
        const char *name;
    } f[] = {{&gpu.create, "nvrtcCreateProgram"},
             {&gpu.compile, "nvrtcCompileProgram"},
             {&gpu.log_size, "nvrtcGetProgramLogSize"},
             {&gpu.log, "nvrtcGetProgramLog"},
             {&gpu.size, "nvrtcGetCUBINSize"},
             {&gpu.code, "nvrtcGetCUBIN"},
             {&gpu.destroy, "nvrtcDestroyProgram"},
             {&gpu.malloc, "cudaMalloc"},
             {&gpu.free, "cudaFree"},
             {&gpu.copy, "cudaMemcpy"},
             {&gpu.stream, "cudaStreamCreate"},
             {&gpu.end, "cudaStreamDestroy"},
             {&gpu.capture, "cuStreamBeginCapture_v2"},
             {&gpu.captured, "cuStreamEndCapture"},
             {&gpu.instantiate, "cuGraphInstantiateWithFlags"},
             {&gpu.launch, "cuGraphLaunch"},
             {&gpu.drop, "cuGraphExecDestroy"},
             {&gpu.drop_graph, "cuGraphDestroy"}};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        void *at = lib ? dlsym(lib, f[i].name) : NULL;
        if (!at) fail_msg("no %s", f[i].name);
        memcpy(f[i].to, &at, sizeof at);
    }
}

static inline int open_all(void **state)
{
    const int status = make_base(state);
    if (status || rig_open(state)) return 1;
    find_gpu();
    return 0;
}

static inline void *on_gpu(const void *from, size_t bytes)
{
    void *at = NULL;
    assert_int_equal(gpu.malloc(&at, bytes), 0);
    if (from) assert_int_equal(gpu.copy(at, from, bytes, cudaMemcpyHostToDevice), 0);
    return at;
}

/* ---- a file, compiled and opened ---- */

typedef struct model {
    void *library, *m;
    cudaStream_t stream;
    cudaError_t (*act)(void *m, const void *a, const void *b, void *out, cudaStream_t stream);
    cudaError_t (*forward)(void *m, const void *a, void *out, cudaStream_t stream);
    int (*wait)(void *m, cudaStream_t stream);
    cudaError_t (*rate)(void *m, double rate, cudaStream_t stream);
    int64_t (*get)(const void *m, const char *name, float *to, int64_t room, cudaStream_t stream);
    int64_t (*set)(void *m, const char *name, const float *from, int64_t count, cudaStream_t stream);
    size_t (*save)(const void *m, void *to, size_t room, cudaStream_t stream);
} model;

static inline char *text_of(const char *path)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    char *text = calloc((size_t)n + 1, 1);
    rewind(f);
    assert_int_equal(fread(text, 1, (size_t)n, f), n);
    fclose(f);
    return text;
}

static inline void *function(const model *m, const char *name, bool must)
{
    void *f = dlsym(m->library, name);
    if (!f && must) fail_msg("no %s", name);
    return f;
}

/* The files NAME.cu and .h in the run's folder as a library; m->m: a model of it, initialised. */
static inline model build(const char *name)
{
    static int count;
    static const char *const option[] = {"--gpu-architecture=sm_90a", "--cusim-host"};
    model m = {.library = NULL};
    char file[80], so[40];
    size_t bytes = 0;
    tn_nvrtc_program p;
    snprintf(file, sizeof file, "%s.cu", name);
    char *text = text_of(in_base(file));
    assert_int_equal(gpu.create(&p, text, in_base(file), 0, NULL, NULL), 0);
    if (gpu.compile(p, 2, option)) {
        gpu.log_size(p, &bytes);
        char *log = calloc(bytes + 1, 1);
        gpu.log(p, log);
        fail_msg("%.3000s", log);
    }
    assert_int_equal(gpu.size(p, &bytes), 0);
    char *code = malloc(bytes);
    assert_int_equal(gpu.code(p, code), 0);
    snprintf(so, sizeof so, "%s%d.so", name, ++count);
    spill(in_base(so), code, bytes);
    gpu.destroy(&p);
    free(code);
    free(text);
    m.library = dlopen(in_base(so), RTLD_NOW | RTLD_LOCAL);
    if (!m.library) fail_msg("%s", dlerror());
    size_t (*size)(void);
    cudaError_t (*init)(void *, cudaStream_t);
    *(void **)&size = function(&m, "model_bytes", true);
    *(void **)&init = function(&m, "model_init", true);
    *(void **)&m.act = function(&m, "model_step", false);
    *(void **)&m.forward = function(&m, "model_forward", false);
    *(void **)&m.wait = function(&m, "model_wait", true);
    *(void **)&m.get = function(&m, "model_get", true);
    *(void **)&m.set = function(&m, "model_set", true);
    *(void **)&m.rate = function(&m, "model_rate", m.act != NULL);
    *(void **)&m.save = function(&m, "model_save", m.act != NULL);
    assert_int_equal(gpu.stream(&m.stream), 0);
    m.m = on_gpu(NULL, size());
    assert_int_equal(init((char *)m.m + 8, m.stream), cudaErrorMisalignedAddress);
    assert_int_equal(init(NULL, m.stream), cudaErrorInvalidValue);
    assert_int_equal(init(m.m, m.stream), 0);
    return m;
}

static inline void unload(model *m)
{
    assert_int_equal(m->wait(m->m, m->stream), 0);
    gpu.free(m->m);
    gpu.end(m->stream);
}

/* ---- nvcc ---- */

static inline bool has_nvcc(void) { return !system("command -v nvcc >/dev/null 2>&1"); }

/* It takes model.cu without a warning; what it says of the kernels. */
static inline nvrtc_said nvcc_says(const char *arch)
{
    char line[600];
    snprintf(line, sizeof line,
             "cd '%s' && nvcc -O1 -fmad=false -arch=%s -Werror all-warnings -Xptxas -v -Xcompiler "
             "-Wall,-Wextra,-Werror -c model.cu -o model.o >said 2>&1",
             base, arch);
    const int status = system(line);
    char *text = text_of(in_base("said"));
    const nvrtc_said its = nvrtc_read(text);
    if (status || its.warned) fail_msg("%.3000s", text);
    free(text);
    return its;
}
