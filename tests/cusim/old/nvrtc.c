/* nvrtc.c - an NVRTC without nvrtcGetCUBIN, as CUDA 11.0 had it: for the message about a function missing. */
#include "src/device/cuda/api.h"

#define OLD __attribute__((visibility("default")))

OLD tn_nvrtc_result nvrtcVersion(int *major, int *minor);
OLD const char *nvrtcGetErrorString(tn_nvrtc_result error);
OLD tn_nvrtc_result nvrtcCreateProgram(tn_nvrtc_program *program, const char *text, const char *name,
                                       int n_headers, const char *const *headers,
                                       const char *const *include_names);
OLD tn_nvrtc_result nvrtcDestroyProgram(tn_nvrtc_program *program);
OLD tn_nvrtc_result nvrtcCompileProgram(tn_nvrtc_program program, int n_options, const char *const *options);
OLD tn_nvrtc_result nvrtcGetProgramLogSize(tn_nvrtc_program program, size_t *bytes);
OLD tn_nvrtc_result nvrtcGetProgramLog(tn_nvrtc_program program, char *log);

tn_nvrtc_result nvrtcVersion(int *major, int *minor)
{
    *major = 11, *minor = 0;
    return 0;
}

const char *nvrtcGetErrorString(tn_nvrtc_result error)
{
    (void)error;
    return "NVRTC_ERROR";
}

tn_nvrtc_result nvrtcCreateProgram(tn_nvrtc_program *program, const char *text, const char *name,
                                   int n_headers, const char *const *headers,
                                   const char *const *include_names)
{
    (void)program, (void)text, (void)name, (void)n_headers, (void)headers, (void)include_names;
    return TN_NVRTC_OUT_OF_MEMORY;
}

tn_nvrtc_result nvrtcDestroyProgram(tn_nvrtc_program *program)
{
    (void)program;
    return 0;
}

tn_nvrtc_result nvrtcCompileProgram(tn_nvrtc_program program, int n_options, const char *const *options)
{
    (void)program, (void)n_options, (void)options;
    return TN_NVRTC_COMPILATION;
}

tn_nvrtc_result nvrtcGetProgramLogSize(tn_nvrtc_program program, size_t *bytes)
{
    (void)program;
    *bytes = 1;
    return 0;
}

tn_nvrtc_result nvrtcGetProgramLog(tn_nvrtc_program program, char *log)
{
    (void)program;
    *log = 0;
    return 0;
}
