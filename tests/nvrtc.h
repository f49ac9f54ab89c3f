/* nvrtc.h - NVRTC for tests: opened at run time, so that they build and run without it. It compiles for GPUs
 * that are not there. Read first: nvrtc_open, then nvrtc_compile and nvrtc_read. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NVRTC keeps some memory until the process ends. */
const char *__lsan_default_suppressions(void);
__attribute__((weak)) const char *__lsan_default_suppressions(void) { return "leak:libnvrtc"; }

typedef struct nvrtc {
    int (*create)(void **program, const char *text, const char *name, int headers, const char *const *,
                  const char *const *);
    int (*compile)(void *program, int options, const char *const *option);
    int (*log_size)(void *program, size_t *size);
    int (*log)(void *program, char *text);
    int (*destroy)(void **program);
} nvrtc;

/* false: something is missing in the library. */
static inline int nvrtc_find(nvrtc *n, void *lib)
{
    *(void **)&n->create = dlsym(lib, "nvrtcCreateProgram");
    *(void **)&n->compile = dlsym(lib, "nvrtcCompileProgram");
    *(void **)&n->log_size = dlsym(lib, "nvrtcGetProgramLogSize");
    *(void **)&n->log = dlsym(lib, "nvrtcGetProgramLog");
    *(void **)&n->destroy = dlsym(lib, "nvrtcDestroyProgram");
    return n->create && n->compile && n->log_size && n->log && n->destroy;
}

/* false: it is not installed. */
static inline int nvrtc_open(nvrtc *n)
{
    static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12",
                                        "/usr/local/cuda/lib64/libnvrtc.so",
                                        "/usr/local/cuda/lib/libnvrtc.so"};
    *n = (nvrtc){.create = NULL};
    void *lib = NULL;
    for (unsigned i = 0; i < sizeof names / sizeof *names && !lib; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return lib && nvrtc_find(n, lib);
}

/* Compiles text for an architecture ("sm_90"): NVRTC's status, 0 when it is well. *log, to be freed, is what
 * it and the assembler have to say, registers and spills of each kernel among it. */
static inline int nvrtc_compile(const nvrtc *n, const char *text, const char *arch, char **log)
{
    void *program = NULL;
    char option[64];
    snprintf(option, sizeof option, "--gpu-architecture=%s", arch);
    const char *options[] = {option, "--std=c++17", "--ptxas-options=-v"};
    size_t size = 0;
    int status = n->create(&program, text, "test.cu", 0, NULL, NULL);
    if (!status) status = n->compile(program, 3, options);
    n->log_size(program, &size);
    *log = calloc(size + 1, 1);
    if (!*log) abort();
    n->log(program, *log);
    n->destroy(&program);
    return status;
}

/* What such a log says of the text's kernels. warned: also where ptxas has put waits between products of warpgroups,
 * or ignores what a kernel says of its registers, which it tells as a "Potential Performance Loss". */
typedef struct nvrtc_said {
    long kernels, registers, stack_bytes; /* registers: the most of one kernel, */
    long spilling, spilled_bytes;         /* kernels that spill; what they store and load */
    char most[128], spiller[128];         /* which has most registers; the last that spills */
    bool warned;
} nvrtc_said;

static inline nvrtc_said nvrtc_read(const char *log)
{
    nvrtc_said out = {.warned = strstr(log, "warning") || strstr(log, "Performance Loss")};
    char kernel[128] = "", line[512];
    long spilled = 0;
    for (; *log; log += strcspn(log, "\n"), log += *log == '\n') {
        long stack, stores, loads, registers;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(log, "\n"), log);
        const char *entry = strstr(line, "entry function '"), *used = strstr(line, "Used ");
        if (entry) out.kernels += sscanf(entry, "entry function '%127[^']", kernel) == 1;
        if (sscanf(line, "%*[^0-9]%ld bytes stack frame, %ld bytes spill stores, %ld bytes spill loads",
                   &stack, &stores, &loads) == 3) {
            spilled = stores + loads;
            out.stack_bytes += stack;
        }
        if (!used || sscanf(used, "Used %ld registers", &registers) != 1) continue;
        if (registers > out.registers) {
            out.registers = registers;
            snprintf(out.most, sizeof out.most, "%s", kernel);
        }
        if (!spilled) continue;
        out.spilling++;
        out.spilled_bytes += spilled;
        snprintf(out.spiller, sizeof out.spiller, "%s", kernel);
    }
    return out;
}
