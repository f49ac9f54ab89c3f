/* nvrtc.c - an NVRTC without nvrtcGetCUBIN, as CUDA 11.0 had it: for the message about a function missing.
 * None of its functions is called. */
#include "src/device/cuda/api.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define nvrtcGetCUBIN                            nvrtcGetSomethingElse
#define TN_CU(library, result, name, parameters) OLD_##library(result, name, parameters)
#define OLD_DRIVER(...)
#define OLD_BLASLT(...)
#define OLD_NVRTC(result, name, parameters)                                                                  \
    __attribute__((visibility("default"))) result name parameters;                                           \
    result name parameters { return 0; }
#include "src/device/cuda/api.def"
