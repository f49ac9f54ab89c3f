/* internal.h - what the files of the CUDA device share.
 *
 *   loader.c    the three libraries          api.h      what is used of them
 *   memory.c    device memory                ring.c     host memory to the device and back
 *   compile.c   texts to functions           module.c   what is compiled, on disk and loaded
 *   gemm.c      products                     conv.c     convolutions: kernels/own.cu around products
 *   graph.c     a run of launches as one     timing.c   how long one takes
 *   tell.c      launches are told of, not made
 *   beside.c    a stream for others' work
 *   planned.c   a GPU that is not there   cubin.c    what NVRTC makes of kernels for it
 *   errors.c    what a result means      launch.c   kernels are started
 *   cuda.c      fills struct tn_device
 *
 * One stream does all work in the order of the calls; a second carries large uploads, a third what ranks
 * send. Every entry from the outside makes the device's context the thread's own for as long as it lasts
 * (tn_cuda_enter), so sessions in several threads and programs that use CUDA themselves are not disturbed.
 *
 * Read first: struct tn_cuda, then cuda.c.
 */
#pragma once

#include <stdatomic.h>

#include "../kcache.h"
#include "api.h"

typedef struct tn_cuda tn_cuda;
typedef struct tn_cuda_memory tn_cuda_memory;
typedef struct tn_cuda_ring tn_cuda_ring;
typedef struct tn_cuda_code tn_cuda_code;
typedef struct tn_cuda_blas tn_cuda_blas;

enum { TN_CUDA_RECENT = 8 };

/* The library's own kernels, by what they do (kernels/own.cu). */
typedef enum tn_cuda_own {
    TN_OWN_IM2COL,
    TN_OWN_COL2IM,
    TN_OWN_EPILOGUE,
    TN_OWN_PRODUCT,
    TN_OWN_COUNT
} tn_cuda_own;
/* Variants of each: by dtype, or by the bytes that are moved at once. */
enum { TN_OWN_VARIANTS = 8 };

struct tn_cuda {
    tn_device base;
    tn_cuda_api *api;
    tn_cu_device device;
    tn_cu_context context;
    tn_cu_stream stream, uploads, beside;
    tn_cu_event forked, joined; /* of `beside` */
    tn_log_fn *log;
    void *log_user;
    char name[128];
    int capability; /* 90 for 9.0 */
    int arch;       /* that kernels are compiled for: capability, or less where NVRTC is older than the GPU */
    tn_cuda_memory *memory;
    tn_cuda_ring *ring;
    tn_cuda_code *code;
    tn_cuda_blas *blas;
    tn_kernel *own[TN_OWN_COUNT][TN_OWN_VARIANTS];
    tn_cu_ptr words; /* the fault word, then the tickets */
    tn_fault fault;  /* as the last download, sync or peek found it */
    uint64_t faults; /* taken so far: what was copied before the last is no longer true */
    char why_lost[768];
    bool recording;       /* the stream is being captured */
    atomic_bool gate;     /* opened when all that is timed together has been submitted: timing.c */
    tn_launch_told *told; /* not NULL: nothing is launched, but told of (tn_cuda_tell), */
    void *told_user;
    size_t told_bytes; /* and so much of a workspace asked for */
    bool sync_each;    /* TENSOR_CUDA_SYNC: wait after each launch, so that a failing one is known by name */
    const char *recent[TN_CUDA_RECENT]; /* names of what was launched since the last wait, newest last */
    uint64_t n_recent;
    void *workspace; /* of convolutions: a reserved range, committed as needed */
    size_t workspace_bytes;
    size_t workspace_limit; /* TN_CUDA_WORKSPACE, or what a test says */
};

enum {
    TN_CUDA_FAULT_BYTES = sizeof(tn_fault),
    TN_CUDA_WORD_BYTES = TN_CUDA_FAULT_BYTES + TN_KERNEL_TICKETS * (int)sizeof(uint32_t)
};
/* Addresses for the workspace of convolutions, and what one takes at most, unless one image needs more. */
#define TN_CUDA_WORKSPACE_RANGE ((size_t)16 << 30)
#define TN_CUDA_WORKSPACE       ((size_t)256 << 20)

static inline tn_cuda *tn_cuda_of(tn_device *d) { return (tn_cuda *)(void *)d; }
static inline tn_cu_ptr tn_cuda_ptr(const void *p) { return (tn_cu_ptr)(uintptr_t)p; }

/* ---- errors.c ---- */

/* Turns a driver's result into a status with a line in err (may be NULL): "`what`: CUDA_ERROR_...". */
int tn_cuda_check(tn_cuda *c, tn_cu_result e, tn_errbuf *err, const char *what);
/* Calls the driver's function `name`. */
#define TN_CUDA_DO(c, err, name, ...) tn_cuda_check(c, (c)->api->name(__VA_ARGS__), err, #name)
void tn_cuda_log(const tn_cuda *c, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Makes the context current. A status and a line in err where the device was lost; else tn_cuda_leave is due.
 */
int tn_cuda_enter(tn_cuda *c, tn_errbuf *err);
void tn_cuda_leave(tn_cuda *c);
void tn_cuda_note(tn_cuda *c, const char *name); /* it was launched: for the text of a later error */
/* Waits for all that was launched. */
int tn_cuda_wait(tn_cuda *c, tn_errbuf *err);

/* ---- planned.c ---- */

int tn_cuda_open_planned(const tn_device_options *o, tn_device **out, tn_errbuf *err);

/* ---- cubin.c ---- */

/* Fills in what stands for a driver's functions of modules, where there is none: nothing is launched from
 * them. */
void tn_cuda_fill_unloaded(tn_cuda_api *a);

/* ---- launch.c ---- */

/* Launches over the given arguments; `name` must live as long as the device. `shared`: bytes of dynamic
 * shared memory, which the function was allowed to have. */
int tn_cuda_start(tn_cuda *c, const char *name, tn_cu_function f, tn_cuda_args *a, int threads,
                  int64_t shared, tn_errbuf *err);
/* The text of one of the library's own kernels and its name; NULL: out of memory. Freed by the caller. */
char *tn_cuda_own_text(tn_cuda_own which, int variant, char name[64]);
/* One of the library's own kernels: threads, n and chunk are set, buf and dim filled by the caller. */
int tn_cuda_start_own(tn_cuda *c, tn_cuda_own which, int variant, tn_cuda_args *a, int threads,
                      tn_errbuf *err);
/* The first `bytes` of c->workspace are there from now on; TN_E_NOMEM. */
int tn_cuda_workspace(tn_cuda *c, size_t bytes, tn_errbuf *err);

/* ---- tell.c ---- */

int tn_cuda_tell(const tn_gemm *g, const tn_conv2d_desc *d, void *workspace, size_t *bytes,
                 tn_launch_told *told, void *user, tn_errbuf *err); /* tn_device.tell */

/* ---- memory.c ---- */

int tn_cuda_memory_open(tn_cuda *c, tn_errbuf *err);
void tn_cuda_memory_close(tn_cuda *c); /* all of it, whoever holds it */
void *tn_cuda_alloc(tn_cuda *c, size_t bytes, tn_errbuf *err);
void tn_cuda_free(tn_cuda *c, void *p);
void *tn_cuda_reserve(tn_cuda *c, size_t bytes, tn_errbuf *err);
int tn_cuda_commit(tn_cuda *c, void *base, size_t bytes, tn_errbuf *err);
void tn_cuda_release(tn_cuda *c, void *base);

/* ---- ring.c ---- */

int tn_cuda_ring_open(tn_cuda *c);
void tn_cuda_ring_close(tn_cuda *c);
int tn_cuda_upload(tn_cuda *c, void *dst, const void *host, size_t bytes, tn_errbuf *err);
int tn_cuda_download(tn_cuda *c, void *host, const void *src, size_t bytes, tn_errbuf *err);

int tn_cuda_post(tn_cuda *c, int number, const void *src, size_t bytes, tn_errbuf *err);
bool tn_cuda_peek(tn_cuda *c, int number, void *out);

/* ---- module.c and compile.c ---- */

/* Finds out what NVRTC compiles for this GPU, with an older NVRTC where that is needed; TN_E_UNSUPPORTED. */
int tn_cuda_pick_arch(tn_cuda *c, tn_errbuf *err);
bool tn_cuda_has_wgmma(const tn_cuda *c); /* and so has code for it */

struct tn_kernel {
    tn_cu_function fn, finish; /* finish: NULL where its text defines none */
    char *name;
    tn_kernel_info info;
    int64_t shared_allowed; /* dynamic shared memory that it may have; 0: as every kernel */
    struct tn_kernel *next;
};

int tn_cuda_code_open(tn_cuda *c, const tn_device_options *o, tn_errbuf *err);
void tn_cuda_code_close(tn_cuda *c);
const char *tn_cuda_code_folder(const tn_cuda *c); /* as tn_kcache_folder */
int tn_cuda_compile(tn_cuda *c, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err);

/* One program for NVRTC: `text` whole, `log` its messages. */
typedef struct tn_cuda_unit {
    const char *name; /* of the file in messages */
    char *text;
    char *cubin; /* NULL: it did not compile */
    size_t cubin_bytes;
    char *log;
    int status;
} tn_cuda_unit;
/* Options of every compilation, as one line; it tells the compiler's version too. */
int tn_cuda_options(const tn_cuda *c, char *out, size_t room);
/* Compiles n programs, `jobs` at a time. */
void tn_cuda_build(const tn_cuda *c, tn_cuda_unit *unit, int n, int jobs);

/* ---- gemm.c and conv.c ---- */

void tn_cuda_blas_close(tn_cuda *c);
/* C = beta * C + A * B, with the rest as tn_gemm says; `wide`: C of f16 and bf16 products is f32. */
int tn_cuda_gemm(tn_cuda *c, const tn_gemm *g, bool add, bool wide, tn_errbuf *err);
/* out[i, j] = act(in[i, j] + bias[j]); `wide`: in is f32 whatever the dtype. */
int tn_cuda_epilogue(tn_cuda *c, tn_dtype d, const void *in, bool wide, const void *bias, void *out,
                     int64_t rows, int64_t columns, int64_t in_row, int64_t out_row, bool relu,
                     tn_errbuf *err);
int tn_cuda_conv2d(tn_cuda *c, const tn_conv2d_desc *d, tn_errbuf *err);

/* ---- beside.c ---- */

int tn_cuda_beside(tn_device *d, int (*begin)(void *queue, void *arg), void *arg, tn_errbuf *err);
int tn_cuda_join(tn_device *d, tn_errbuf *err);
void tn_cuda_beside_close(tn_cuda *c);

/* ---- timing.c ---- */

int tn_cuda_time(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid, double *seconds,
                 tn_errbuf *err);

/* ---- graph.c ---- */

int tn_cuda_record_begin(tn_device *d, tn_errbuf *err);
int tn_cuda_record_end(tn_device *d, tn_recording **out, tn_errbuf *err);
int tn_cuda_replay(tn_device *d, tn_recording *r, tn_errbuf *err);
void tn_cuda_forget(tn_device *d, tn_recording *r);
