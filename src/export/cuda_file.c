/* cuda_file.c - model.cu and model.h around what cuda.c writes: the opening with a line of each launch, the
 * struct, which lies in the memory of the GPU as a whole, and functions of the host that launch on a stream.
 * Start with ex_cuda_functions.
 *
 * What changes from step to step - random numbers drawn, powers of an optimizer's decay, the learning rate -
 * is a member, too, and kernels compute what follows from it, so that no call waits and a step can be
 * captured in a graph. */
#include "export.h"

#include <string.h>

/* ---- the opening ---- */

void ex_cuda_opening(const tn_export *x, tn_growing *t)
{
    double constants, state;
    ex_add_up(x, &constants, &state);
    ex_put(x, t,
           "#if !defined(PART)\n"
           "/* @.cu - written by libtensor: %s. CUDA C++ that needs no library but CUDA's runtime:\n"
           " *\n *     nvcc -O3 -fmad=false -arch=sm_%d%s -c @.cu\n *\n"
           " * With -fmad=false values that two kernels make each for itself have the same bits in both.\n"
           " *\n *   %-14s %12.0f bytes of device memory, %zu of them for what a call computes\n"
           " *   launches       %12d in a call\n *\n",
           x->trains ? "a training step" : "a forward pass", x->s->target.capability,
           x->s->target.wgmma ? "a" : "", x->name, state, ex_scratch_bytes(x), x->n_launch);
    if (x->blank)
        ex_put(x, t,
               " * It was planned for a GPU that is not there, so that the values of parameters are not in "
               "it: they are\n * 0 until @_set gives them others.\n *\n");
    if (strstr(x->kernels.p ? x->kernels.p : "", " tn_product_"))
        tn_put(t, " * Products are computed by tn_product_.., which is right for any strides and slower than "
                  "a library's.\n *\n");
    ex_put(x, t,
           " * What @_%s launches, in order, and the bytes that a step of the plan reads and writes:\n"
           " *\n%s *\n * Read first: @_%s, behind the kernels.\n */\n",
           ex_action(x), x->table.p ? x->table.p : "", ex_action(x));
}

/* ---- the header ---- */

void ex_cuda_header(const tn_export *x, tn_growing *t)
{
    ex_put(x, t,
           "/* @.h - what @.cu offers. Pointers are to memory of the GPU, 16-byte aligned, but where another "
           "is said;\n"
           " * m is one to @_bytes() of it from cudaMalloc. Functions that give a cudaError_t wait for "
           "nothing. */\n#ifndef @_INCLUDED\n#define @_INCLUDED\n\n#include <cuda_runtime_api.h>\n"
           "#include <stddef.h>\n#include <stdint.h>\n\n#if defined(__cplusplus)\nextern \"C\" {\n"
           "#endif\n\n/* All of a model, and what it computes with: initialise it with @_init. */\n"
           "typedef struct @ {\n");
    ex_put_members(x, t);
    tn_put(t,
           "    uint64_t fault[%zu]; /* an index that was out of range */\n"
           "    uint32_t ticket[%d]; /* how many blocks have come to their end */\n",
           sizeof(tn_fault) / 8, (int)TN_KERNEL_TICKETS);
    if (x->n_word) tn_put(t, "    uint64_t number[%d]; /* what changes from call to call */\n", x->n_word);
    ex_put(x, t,
           "    __align__(256) uint64_t arena[%zu]; /* what a call computes and does not keep */\n} @;\n\n",
           ex_scratch_bytes(x) / 8 + 1);
    ex_put(x, t, "size_t @_bytes(void);\ncudaError_t @_init(@ *m, cudaStream_t stream);\n\n");
    for (int i = 0; i < x->n_mark; i++)
        tn_put(t, "/* %s: %lld elements */\n", x->mark[i].name, (long long)x->mark[i].count);
    ex_put(x, t, "cudaError_t @_%s(", ex_action(x));
    ex_put_parameters(x, t);
    ex_put(x, t,
           ");\n\n"
           "/* Waits for the stream. 0; 1: an index was out of range in a call since the last wait: that "
           "call and\n"
           " * those behind it have changed no parameter; -1: CUDA failed, see cudaGetLastError. */\n"
           "int @_wait(@ *m, cudaStream_t stream);\n");
    if (x->trains)
        ex_put(x, t,
               "\n/* From now on the learning rate is that of the session times `rate`. */\n"
               "cudaError_t @_rate(@ *m, double rate, cudaStream_t stream);\n");
    ex_put(x, t,
           "\n/* Waits, and copies the parameter or buffer of that name to the host, or to the GPU: up to "
           "`room` elements.\n * Its count, or -1 where there is none; with to NULL the count alone. */\n"
           "int64_t @_get(const @ *m, const char *name, float *to, int64_t room, cudaStream_t stream);\n"
           "/* The other way round, where count is its count; else nothing happens. */\n"
           "int64_t @_set(@ *m, const char *name, const float *from, int64_t count, cudaStream_t stream);\n");
    if (x->save.n)
        ex_put(x, t,
               "/* Waits. The bytes of a checkpoint, safetensors that tn_load takes: up to `room` of them, "
               "to the host. How many\n * there are. */\n"
               "size_t @_save(const @ *m, void *to, size_t room, cudaStream_t stream);\n");
    tn_put(t, "\n#if defined(__cplusplus)\n}\n#endif\n");
}

/* ---- kernels of one thread ---- */

static bool has_state(const tn_export *x) { return x->draws || x->n_power || x->save.n || x->trains; }

static void put_state(const tn_export *x, tn_growing *t)
{
    ex_put(x, t, "/* The numbers that a call begins with. */\nstatic __global__ void @_first(@ *m)\n{\n");
    ex_put_first_numbers(x, t);
    ex_put(x, t,
           "}\n\n/* A call has come to its end: the next one's. */\nstatic __global__ void @_next(@ *m)\n{\n"
           "    if (((const tn_fault *)(const void *)m->fault)->code) return;\n");
    for (int i = 0; i < x->n_power; i++) tn_put(t, "    m->power%d *= %.17g;\n", i, x->base[i]);
    if (x->draws) tn_put(t, "    m->draw += %llu;\n", (unsigned long long)x->draws);
    if (x->save.n) tn_put(t, "    m->steps++;\n");
    tn_put(t, "}\n\n");
}

static void put_numbers(const tn_export *x, tn_growing *t)
{
    ex_put(x, t,
           "/* What kernels read as a.scalar. */\nstatic __global__ void @_numbers(@ *m)\n{\n"
           "    tn_word *const number = (tn_word *)(void *)m->number;\n");
    for (int i = 0; i < x->n_power; i++)
        tn_put(t, "    const double power%d = m->power%d * %.17g;\n", i, i, x->base[i]);
    tn_put(t, "%s}\n\n", x->numbers.p);
}

/* ---- functions of the host ---- */

static void put_start(tn_growing *t)
{
    tn_put(t, "/* ---- the host ---- */\n\n"
              "template <class T>\n"
              "static void start(void (*kernel)(T), int64_t blocks, int threads, size_t shared, cudaStream_t "
              "stream, T a)\n{\n    void *arguments[] = {&a};\n"
              "    const void *const f = (const void *)kernel;\n"
              "    if (shared) /* more than usual is there only for who asks */\n"
              "        cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);\n"
              "    cudaLaunchKernel(f, dim3((unsigned)blocks), dim3((unsigned)threads), arguments, shared, "
              "stream);\n}\n\n");
}

static void put_init(const tn_export *x, tn_growing *t)
{
    ex_put(x, t,
           "size_t @_bytes(void)\n{\n    return sizeof(@);\n}\n\n"
           "cudaError_t @_init(@ *m, cudaStream_t stream)\n{\n    if (!m) return cudaErrorInvalidValue;\n"
           "    if ((uintptr_t)m %% %d) return cudaErrorMisalignedAddress;\n"
           "    cudaMemsetAsync(m, 0, sizeof *m, stream);\n",
           EXPORT_CUDA_ALIGN);
    TN_EACH(r, x->region, x->n_region) {
        if ((r->written || r->read) && !ex_begins_as_zero(r))
            tn_put(t,
                   "    cudaMemcpyAsync(m->%s, %s_at_first, sizeof %s_at_first, cudaMemcpyHostToDevice, "
                   "stream);\n",
                   r->name, r->name, r->name);
    }
    if (has_state(x)) ex_put(x, t, "    start(@_first, 1, 1, 0, stream, m);\n");
    tn_put(t, "    return cudaGetLastError();\n}\n\n");
}

static void put_action(const tn_export *x, tn_growing *t)
{
    const char *body = x->step.p ? x->step.p : "";
    ex_put(x, t, "cudaError_t @_%s(", ex_action(x));
    ex_put_parameters(x, t);
    tn_put(t, ")\n{\n    if (!m) return cudaErrorInvalidValue;\n");
    for (int i = 0; i < x->n_mark; i++)
        tn_put(t,
               "    if (!%s) return cudaErrorInvalidValue;\n"
               "    if ((uintptr_t)%s %% 16) return cudaErrorMisalignedAddress;\n",
               x->mark[i].name, x->mark[i].name);
    tn_put(t, "    tn_fault *const fault = (tn_fault *)(void *)m->fault;\n    uint32_t *const ticket = "
              "m->ticket;\n");
    if (x->n_word) tn_put(t, "    const tn_word *const number = (const tn_word *)(const void *)m->number;\n");
    if (x->room_bytes || strstr(body, "(arena +"))
        tn_put(t, "    unsigned char *const arena = (unsigned char *)m->arena;\n");
    if (x->room_bytes) tn_put(t, "    unsigned char *const room = arena + %zu;\n", x->arena_bytes);
    if (x->n_word) ex_put(x, t, "    start(@_numbers, 1, 1, 0, stream, m);\n");
    tn_put(t, "%s\n", body);
    if (has_state(x)) ex_put(x, t, "    start(@_next, 1, 1, 0, stream, m);\n");
    tn_put(t, "    return cudaGetLastError();\n}\n\n");
}

static void put_wait(const tn_export *x, tn_growing *t)
{
    ex_put(x, t,
           "int @_wait(@ *m, cudaStream_t stream)\n{\n    tn_fault met = {};\n    if (!m) return -1;\n"
           "    cudaMemcpyAsync(&met, m->fault, sizeof met, cudaMemcpyDeviceToHost, stream);\n"
           "    if (cudaStreamSynchronize(stream) || cudaPeekAtLastError()) return -1;\n"
           "    if (!met.code) return 0;\n    cudaMemsetAsync(m->fault, 0, sizeof m->fault, stream);\n"
           "    cudaMemsetAsync(m->ticket, 0, sizeof m->ticket, stream);\n    return 1;\n}\n\n");
    if (x->trains)
        ex_put(x, t,
               "cudaError_t @_rate(@ *m, double rate, cudaStream_t stream)\n{\n"
               "    if (!m) return cudaErrorInvalidValue;\n"
               "    return cudaMemcpyAsync(&m->rate, &rate, sizeof rate, cudaMemcpyHostToDevice, stream);\n"
               "}\n\n");
}

void ex_cuda_functions(const tn_export *x, tn_growing *t)
{
    if (has_state(x)) put_state(x, t);
    if (x->n_word) put_numbers(x, t);
    put_start(t);
    put_init(x, t);
    put_action(x, t);
    put_wait(x, t);
}
