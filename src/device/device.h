/* device.h - the one door between the runtime and a device.
 *
 * A device knows no graph. It is given text to compile, buffers, and launch shapes; it fills one table of
 * functions (struct tn_device). Nothing above includes a header of cpu/, cuda/ or ref/ but what runs nodes
 * one by one: ref/ref.h and cpu/builtin.h (tests/test_rooms.sh). Everything that can fail returns 0 or a
 * negative tn_status and writes one line into `err`.
 *
 * Read first: struct tn_device, then cpu/cpu.c which fills it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../core/fail.h"
#include "../core/dtype.h"
#include "prelude/abi.h"

typedef struct tn_device tn_device;
typedef struct tn_kernel tn_kernel;       /* a compiled, loaded entry; owned by the device until it closes */
typedef struct tn_recording tn_recording; /* launches and library calls that a device repeats as one */

/* One translation unit to compile. `text` holds everything after the prelude; `entry` is the function's
 * name in it. The text may define a second entry, the kernel's finish (tn_grid), named like the first with
 * TN_FINISH after it. Two sources with equal text are the same kernel. */
typedef struct tn_source {
    const char *entry;
    const char *text;
} tn_source;
#define TN_FINISH "_finish"

/* The numbers that the fuser's passes may know of a device, filled in when it is opened; they know nothing
 * else of it. */
typedef enum tn_dialect {
    TN_DIALECT_C,
    TN_DIALECT_CUDA,
    TN_DIALECT_C99 /* of a file that stands alone, for any compiler (src/export) */
} tn_dialect;
typedef struct tn_target {
    tn_dialect dialect;
    int vector_bytes; /* of a vector register; on a GPU of the widest load of one thread */
    int64_t l1_bytes, l2_bytes;
    int64_t last_bytes;   /* of the last cache; larger results are written past it. 0: 32 MiB */
    int64_t cache_bytes;  /* of the last cache, all of it; 0: not known */
    int capability;       /* GPU: compute capability times 10; 0: not known */
    int processors;       /* GPU: multiprocessors, */
    int max_threads;      /* threads that one of them can hold, */
    int64_t shared_bytes; /* and shared memory that one block can have without asking for more, */
    int64_t shared_most;  /* and when it asks (tn_grid.shared) */
    bool wgmma; /* GPU: it has products of warpgroups, and kernels are compiled for it alone (sm_90a) */
    bool tf32;  /* products of f32 may round their operands to TF32 */
    const struct fu_tuned
        *tuned; /* tiles that were found fastest (fuser/loops/conv_tile.h); NULL: the model's */
    const struct tn_target_profile *profile; /* how fast it is (profile.h); NULL: as the reference */
} tn_target;

/* The registers and memory that a compiled kernel takes, of one thread and of one block. */
typedef struct tn_kernel_info {
    int registers, max_threads;
    int64_t local_bytes; /* of a thread's spilled registers and local arrays */
    int64_t shared_bytes;
} tn_kernel_info;

/* The work of one launch. Items [0, n) run in chunks of at most `chunk` that do not depend on the number of
 * threads, in any order and at once. Where finish_n is not 0, the kernel's finish then runs over [0,
 * finish_n) in the same way and with the same arguments; what all the items wrote is visible to it: a second
 * pass of a CPU's pool, or a second launch of a GPU's. `threads` is the size of a block, 0 on a CPU; a GPU
 * runs ceil(n / chunk) blocks, the one with index b over the items from b * chunk on. `shared` is what each
 * of them has of dynamic shared memory, in bytes, up to the target's shared_most with what the kernel
 * declares; 0 on a CPU. */
typedef struct tn_grid {
    int64_t n, chunk;
    int64_t finish_n, finish_chunk;
    int threads, finish_threads;
    int64_t shared;
} tn_grid;

/* C = act(A * B + bias), each of `batch` times. All strides in elements; either of a matrix's two strides
 * must be 1 unless its extent is 1 (the runtime copies what is not so). Batch extents are up to
 * TN_GEMM_BATCH_DIMS, a stride of 0 broadcasts. C is row-major: unit column stride, c_row as leading
 * dimension. f16/bf16 inputs accumulate in f32 and round once at the end. */
enum { TN_GEMM_BATCH_DIMS = 4, TN_GEMM_SHARED = 8 };
typedef enum tn_epilogue { TN_EPI_NONE, TN_EPI_RELU } tn_epilogue;
typedef struct tn_gemm {
    tn_dtype dtype; /* of a, b, c and bias */
    int64_t m, n, k;
    int batch_ndim;
    int64_t batch[TN_GEMM_BATCH_DIMS];
    const void *a, *b, *bias; /* A[m,k] B[k,n] bias[n] or NULL */
    void *c;                  /* C[m,n] */
    int64_t a_row, a_col, b_row, b_col, c_row;
    int64_t a_batch[TN_GEMM_BATCH_DIMS], b_batch[TN_GEMM_BATCH_DIMS], c_batch[TN_GEMM_BATCH_DIMS];
    tn_epilogue epilogue;
    /* What goes on with A * B instead of its being written, handed each part as soon as it is done
     * (tn_tile), by threads at once; rows are counted through all entries of the batch. Then there are no c,
     * bias and epilogue, and k is at least 1; of 16 bits the sums are handed over as they are, in f32. NULL:
     * C is written. */
    tn_kernel *then;
    const tn_args *args; /* for it */
    /* Not 0: several products of this run have this B and the same number, and a device may keep for the next
     * of them what it has made of B. */
    int share;
    bool tf32; /* f32 operands may be rounded to TF32 where that is faster */
} tn_gemm;

/* 2-D convolution (cross-correlation, as every framework means it), all tensors dense:
 *   x NHWC [n, h, w, c]   weight OHWI [oc, kh, kw, c / groups]   y NHWC [n, oh, ow, oc]
 *   oh = (h + pad[0] + pad[1] - dilation[0]*(kh-1) - 1) / stride[0] + 1, ow likewise with pad[2], pad[3]. */
typedef enum tn_conv_pass { TN_CONV_FORWARD, TN_CONV_DATA_GRAD, TN_CONV_WEIGHT_GRAD } tn_conv_pass;
typedef struct tn_conv2d_desc {
    tn_dtype dtype;
    tn_conv_pass pass;
    int64_t n, h, w, c, oc, kh, kw, oh, ow, groups;
    int64_t stride[2], pad[4], dilation[2]; /* pad: top, bottom, left, right */
    const void *in0, *in1; /* forward: x, weight; data grad: gy, weight; weight grad: x, gy */
    const void *bias;      /* forward only: [oc] or NULL */
    void *out;             /* forward: y; data grad: gx; weight grad: gweight */
    tn_epilogue epilogue;  /* forward only */
    bool tf32;             /* as a tn_gemm's */
} tn_conv2d_desc;

/* Is told of a launch of one of the device's own kernels, of a->n / a->chunk blocks of `threads` threads. A
 * status other than 0 ends it. */
typedef int tn_launch_told(void *user, const tn_source *src, const tn_cuda_args *a, int threads);

typedef struct tn_device_stats {
    uint64_t launches, library_calls, copies; /* since open */
    uint64_t recorded, replays;               /* recordings made, and run again */
    uint64_t compiled, cache_hits;
    size_t bytes_now, bytes_peak; /* handed out by alloc and not given back */
} tn_device_stats;

struct tn_device {
    const char *name;
    int threads;
    tn_target target;
    bool is_reference;       /* the interpreter: runs nodes, keeps elements as tn_stored_dtype says */
    bool shares_host_memory; /* a kernel can read what the host allocated */
    char machine[128];       /* what distinguishes it from others in speed, threads apart */
    const char *folder;      /* where compiled kernels are kept between runs; NULL: nowhere */
    bool no_compiler;        /* set by a compile that failed because there is nothing to compile with */
    bool runs_nothing;       /* it plans for a GPU that is not there: no time can be taken */
    bool lost;               /* it failed for good and refuses everything; `failure` says why */
    tn_device_stats stats;
    tn_errbuf failure; /* why the last call without an `err` failed; empty where it has nothing to say */

    /* Memory, 64-byte aligned. alloc caches what free gives back, so that a step's second run asks the
     * system for nothing. Contents are undefined. NULL when there is none. */
    void *(*alloc)(tn_device *d, size_t bytes);
    void (*free)(tn_device *d, void *p);

    /* A range of addresses that will never move; `commit` makes `bytes` of it from `first` on usable
     * (zeroed), and on some devices what lies ahead of them. */
    void *(*reserve)(tn_device *d, size_t bytes);
    int (*commit)(tn_device *d, void *base, size_t first, size_t bytes);
    void (*release)(tn_device *d, void *base, size_t bytes);

    /* Compiles n sources through the kernel cache; out[i] stays valid until close. On failure err holds
     * the compiler's first lines and the path of the source. */
    int (*compile)(tn_device *d, const tn_source *src, int n, tn_kernel **out, tn_errbuf *err);

    int (*launch)(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid, tn_errbuf *err);

    int (*gemm)(tn_device *d, const tn_gemm *g, tn_errbuf *err);
    int (*conv2d)(tn_device *d, const tn_conv2d_desc *c, tn_errbuf *err);

    int (*copy)(tn_device *d, void *dst, const void *src, size_t bytes); /* on the device */
    int (*upload)(tn_device *d, void *dst, const void *host, size_t bytes);
    int (*download)(tn_device *d, void *host, const void *src, size_t bytes); /* waits */
    int (*sync)(tn_device *d);
    void (*close)(tn_device *d);

    /* ---- what only some devices have: NULL where not ---- */

    int (*zero)(tn_device *d, void *dst,
                size_t bytes); /* of a device that does not share the host's memory */

    /* Has memory ready for a product or a convolution (the other is NULL), so that the call cannot fail for
     * want of it: a plan whose steps have run in part could not be taken back. With neither: the plan has
     * run, large blocks are given back. `shed` counts how often they were. */
    int (*ready)(tn_device *d, const tn_gemm *g, const tn_conv2d_desc *c, tn_errbuf *err);
    uint64_t shed;

    bool (*kernel_info)(tn_device *d, const tn_kernel *k, tn_kernel_info *out);

    /* Tells of the launches that a product or a convolution (the other is NULL) is without a library, and
     * runs nothing: its addresses, and that of `workspace`, are the caller's to choose. *bytes: of the
     * workspace. */
    int (*tell)(const tn_gemm *g, const tn_conv2d_desc *c, void *workspace, size_t *bytes,
                tn_launch_told *told, void *user, tn_errbuf *err);

    /* Of a device that runs nothing: the bytes that were uploaded to this address and that no other upload
     * has replaced; NULL: there are none. */
    const void *(*uploaded)(tn_device *d, const void *at, size_t bytes);

    /* Launches and waits: how long that took by the device's own clock, in seconds. Not while recording. */
    int (*time)(tn_device *d, tn_kernel *k, const tn_args *args, const tn_grid *grid, double *seconds,
                tn_errbuf *err);

    /* A device that does not share the host's memory keeps the fault word that its kernels set by itself
     * (tn_args.fault is not looked at), and a kernel that finds it set does nothing. download and sync bring
     * it along: take_fault tells whether it was set by then, and clears it. */
    bool (*take_fault)(tn_device *d, tn_fault *out);

    /* Values that are looked at without waiting, 8 bytes each, by number: post starts the copy of the newest
     * (it is left out while the one before is on its way), peek gives the newest that has come; false: none
     * has. */
    int (*post)(tn_device *d, int number, const void *src, size_t bytes);
    bool (*peek)(tn_device *d, int number, void *out);

    /* A second queue: `begin` is handed it, a CUstream, with what the library needs current, and what it
     * launches there waits for all that has been launched by then. What is launched behind join waits for
     * that. Also while recording. */
    int (*beside)(tn_device *d, int (*begin)(void *queue, void *arg), void *arg, tn_errbuf *err);
    int (*join)(tn_device *d, tn_errbuf *err);
    void *fault_word; /* of such a device: the tn_fault that its kernels set */

    /* Between record_begin and record_end launches, products, convolutions and copies are noted and do not
     * run; no other function that touches memory may be called. replay runs all of them in order, with the
     * addresses and arguments they had. record_end without `out` drops what was noted. A call in between that
     * fails, or a record_end that fails, leaves nothing behind: run the steps instead. */
    int (*record_begin)(tn_device *d, tn_errbuf *err);
    int (*record_end)(tn_device *d, tn_recording **out, tn_errbuf *err);
    int (*replay)(tn_device *d, tn_recording *r, tn_errbuf *err);
    void (*forget)(tn_device *d, tn_recording *r); /* NULL is allowed */
};

/* request.c: what any device refuses. *batches: how many products there are, 0 where C has no elements. */
int tn_gemm_check(const tn_gemm *g, int64_t *batches, tn_errbuf *err);
int tn_conv2d_check(const tn_conv2d_desc *c, tn_errbuf *err);

typedef void tn_log_fn(int level, const char *text, void *user);

typedef struct tn_device_options {
    int threads;           /* 0: TENSOR_THREADS, else as many as the process may run on */
    const char *cache_dir; /* NULL: TENSOR_CACHE, else $XDG_CACHE_HOME/libtensor, else ~/.cache/libtensor */
    tn_log_fn *log;
    void *log_user;
    int gpu;             /* CUDA: which of those that the process sees */
    const char *planned; /* CUDA: one that is not there, by name or file (cuda/planned.c); NULL: none */
} tn_device_options;

int tn_ref_open(const tn_device_options *o, tn_device **out, tn_errbuf *err);
int tn_cpu_open(const tn_device_options *o, tn_device **out, tn_errbuf *err);
/* TN_E_UNSUPPORTED where there is no usable GPU: err says what is missing and the remedy, *driver (may be
 * NULL) whether at least a driver is there. */
int tn_cuda_open(const tn_device_options *o, tn_device **out, bool *driver, tn_errbuf *err);
