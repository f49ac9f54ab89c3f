/* tensor.h - libtensor: tensors, operators, automatic differentiation.
 *
 * A session owns everything. Operators record nodes into the session's step graph and return handles;
 * values exist once something runs them. Chapters:
 *
 *   1 Types and errors     2 Sessions and steps    3 Making tensors      4 Reading tensors
 *   5 Elementwise          6 Reductions            7 Shapes and views    8 Products, convolution, pooling
 *   9 Indexing            10 Norms, softmax, losses, attention          11 Differentiation
 *  12 State: parameters, assignment, modes         13 Call-site macros     14 What was done
 *  15 Operators of one's own
 *
 * Chapters 5 to 10 are tensor_ops.h, 14 is tensor_report.h and 15 tensor_own.h, which this header includes.
 *
 * Conventions, stated once:
 *  - Ownership. Between tn_step_begin and tn_step_end everything an operator returns dies with the step. Creation
 *    functions (chapter 3) called outside a step make tensors that live until tn_free or tn_close, and so do those of
 *    tn_keep and tn_buffer. An operator's result outside a step lives until tn_free or the next tn_step_begin, a
 *    parameter until tn_close. Between tn_scope_begin and tn_scope_end, outside of steps, both die with the scope. A
 *    handle used after its step or scope, or after tn_free, is an error (TN_E_STALE), not undefined.
 *  - Serving. Put tn_step_begin and tn_step_end around each request, with tn_train(s, false) and tn_no_grad_begin
 *    before the first: what a request made goes with its step, memory stays as it is, and a request like the one
 *    before costs no planning. Or tn_scope_begin and tn_scope_end, where results from before are to stay, or each
 *    operator is to run at its call. With neither, results pile up without a bound until they are freed, each by its
 *    own tn_free, those of nested calls as well, as the library cannot know which handles are still wanted; a session
 *    in which they do says so, with the line that makes most of them, and again each time they have doubled.
 *  - Errors. An operator that cannot be done returns NULL, and an operator given NULL returns NULL. The session keeps
 *    the first error, with operator, argument, shapes and the caller's file and line: tn_error, tn_error_text.
 *    Operators know their session by their tensors: one whose tensors are all NULL, or whose list has none, has no
 *    session to report to and records nothing; what made them NULL is recorded already. After an error no assignment
 *    or optimizer step takes effect until tn_clear_error. Functions returning int return 0 or a negative tn_status.
 *    Nothing aborts or exits.
 *  - Modes. In eager mode, and outside of steps, an operator runs at its call. In fused mode the operators of a step
 *    wait: a read of what has no value yet, tn_flush or tn_step_end runs all that wait as one plan, whose kernels
 *    reach across operators, forward and backward. Each operator sees its operands' values at the call in both modes,
 *    and results differ by rounding at most, an exact zero by its sign. What runs: the value asked for, assignments
 *    and gradients, what is kept or watched, and each tensor that no operator has read: no call is left out, and what
 *    a program never uses costs what it costs, as the step ends; tn_explain names it. Of other values nothing stays;
 *    needed again, they are computed again, or are TN_E_NOT_KEPT where a tensor they depend on was assigned to
 *    since (chapter 4 says what can be read when). What runs together takes effect together or not at all: a label,
 *    or another index, that is found to be out of range refuses all assignments, optimizer steps, gradients and
 *    tn_keep of the run (but on a GPU not an assignment that the lookup itself waits for), where eager mode has done
 *    what stands before the failing call. A step that makes the same calls as the one before costs neither nodes nor
 *    planning.
 *  - Shapes broadcast and dtypes promote as in PyTorch. Negative axes count from the back.
 *  - f16 and bf16 are rounded where an operator's result is stored, and nowhere else: what it adds up, squares or
 *    divides by on the way - sums, means, variances, their inverses, what is kept of them for backward - is f32 on
 *    every device, with or without a compiler. Inside a kernel values of 16 bits are carried in f32, too: eager
 *    mode stores after each operator, fused mode at the end of a kernel, so that fused results are the closer ones,
 *    and the two differ by the roundings left out, a few units in the last place. What is widened to f32, by a cast or
 *    where a norm, a sum or a loss begins, is rounded after each operator that led there, and so is what is compared
 *    with a maximum or minimum that was not read before, as gradients of these do. In f32 and f64 an elementwise
 *    operator rounds its result whichever kernel it is part of: the bits are the same in both modes (of sin and cos but
 *    for one argument in ten million).
 *  - Layout. Everything is row-major; images are NHWC and convolution weights OHWI.
 *  - A session may be used from one thread at a time; different sessions are independent.
 */
#ifndef TENSOR_H
#define TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_VERSION_MAJOR 0
#define TN_VERSION_MINOR 1
#define TN_VERSION_PATCH 0

#if defined(__GNUC__)
#define TN_API                __attribute__((visibility("default")))
#define TN_FORMAT(text, args) __attribute__((format(printf, text, args)))
#else
#define TN_API
#define TN_FORMAT(text, args)
#endif

/* Declares an operator twice: tn_NAME(...) and tn_NAME_at(..., file, line). In C the macros of chapter 13
 * turn a call of the first into the second, so that errors and reports name the caller's line. */
#define TN_OP(name, ...)                                                                                     \
    TN_API tn_tensor *(tn_##name)(__VA_ARGS__);                                                              \
    TN_API tn_tensor *tn_##name##_at(__VA_ARGS__, const char *file, int line)
/* The same for other functions that can fail. */
#define TN_FUNCTION(type, name, ...)                                                                               \
    TN_API type (tn_##name)(__VA_ARGS__);                                                                    \
    TN_API type tn_##name##_at(__VA_ARGS__, const char *file, int line)
#define TN_NEW(type, name, ...) TN_FUNCTION(type *, name, __VA_ARGS__)

/* ---- 1 Types and errors ---------------------------------------------------------------------------- */

enum { TN_MAX_DIMS = 8 };

typedef struct tn_session tn_session;
typedef struct tn_tensor tn_tensor;

/* X(enum name, text, bytes) */
#define TN_DTYPES(X)                                                                                         \
    X(TN_F32, "f32", 4)                                                                                      \
    X(TN_F16, "f16", 2)                                                                                      \
    X(TN_BF16, "bf16", 2)                                                                                    \
    X(TN_F64, "f64", 8)                                                                                      \
    X(TN_I32, "i32", 4)                                                                                      \
    X(TN_I64, "i64", 8)                                                                                      \
    X(TN_U8, "u8", 1)                                                                                        \
    X(TN_BOOL, "bool", 1)

typedef enum tn_dtype {
#define TN_X(name, text, bytes) name,
    TN_DTYPES(TN_X)
#undef TN_X
        TN_DTYPE_COUNT
} tn_dtype;

/* X(enum name, value, text) */
#define TN_STATUSES(X)                                                                                       \
    X(TN_OK, 0, "ok")                                                                                        \
    X(TN_E_NOMEM, -1, "out of memory")                                                                       \
    X(TN_E_ARG, -2, "bad argument")                                                                          \
    X(TN_E_NULL, -3, "NULL argument")                                                                        \
    X(TN_E_SHAPE, -4, "shapes do not fit")                                                                   \
    X(TN_E_DTYPE, -5, "wrong dtype")                                                                         \
    X(TN_E_STALE, -6, "tensor used after its step ended or it was freed")                                    \
    X(TN_E_SESSION, -7, "tensors of two sessions mixed")                                                     \
    X(TN_E_GRAD, -8, "cannot be differentiated")                                                             \
    X(TN_E_INDEX, -9, "index out of range")                                                                  \
    X(TN_E_NONFINITE, -10, "non-finite value")                                                               \
    X(TN_E_STATE, -11, "not allowed in this state")                                                          \
    X(TN_E_NOT_KEPT, -12, "value was not kept")                                                              \
    X(TN_E_COMPILE, -13, "kernel did not compile")                                                           \
    X(TN_E_DEVICE, -14, "device failed")                                                                     \
    X(TN_E_IO, -15, "file could not be read or written")                                                     \
    X(TN_E_FORMAT, -16, "file is corrupt or of another format")                                              \
    X(TN_E_UNSUPPORTED, -17, "not available in this build or on this device")                                \
    X(TN_E_INTERNAL, -18, "the library found a mistake of its own")                                          \
    X(TN_E_COMM, -19, "ranks do not work together")

typedef enum tn_status {
#define TN_X(name, value, text) name = value,
    TN_STATUSES(TN_X)
#undef TN_X
} tn_status;

TN_API const char *tn_status_text(int status);  /* "shapes do not fit"; "unknown status" for others */
TN_API const char *tn_dtype_name(tn_dtype d);   /* "f32" */
TN_API size_t tn_dtype_size(tn_dtype d);        /* bytes of one element */
TN_API bool tn_dtype_is_float(tn_dtype d);      /* f16 bf16 f32 f64 */
TN_API const char *tn_version(void);            /* "0.1.0" */

TN_API int tn_error(const tn_session *s);              /* the first error's status; TN_OK when none */
TN_API const char *tn_error_text(const tn_session *s); /* its one-line text; "" when none; valid till cleared */
TN_API void tn_clear_error(tn_session *s);             /* forgets it; a step goes on without what it has refused */

/* Reports a user's error into the session, as the library's own operators do; the first one is kept.
 * Returns `status`. For code built on top of the library. */
TN_API int tn_fail(tn_session *s, int status, const char *op, const char *format, ...) TN_FORMAT(4, 5);

/* Until tn_place_end, calls that say no line of their own, and errors found in them, name this one: so that a
 * function made of several calls can speak of its caller's line. Nests; the outermost counts. NULL is allowed. */
TN_API void tn_place_begin(tn_session *s, const char *file, int line);
TN_API void tn_place_end(tn_session *s);

/* Says something through the session's log, as TN_LOG_WARN. */
TN_API void tn_warn(const tn_session *s, const char *format, ...) TN_FORMAT(2, 3);

/* ---- 2 Sessions and steps -------------------------------------------------------------------------- */

typedef enum tn_device_kind { TN_AUTO, TN_CPU, TN_CUDA, TN_REF } tn_device_kind;
/* Who the ranks of a session are (tn_ranks). AUTO: what a launcher has started (mpirun, srun), by MPI; else this process
 * alone. NONE: this process alone. MPI: by MPI in any case. */
typedef enum tn_comm_kind { TN_COMM_AUTO, TN_COMM_NONE, TN_COMM_MPI } tn_comm_kind;
typedef enum tn_mode { TN_MODE_AUTO, TN_FUSED, TN_EAGER } tn_mode;
/* Of products, convolutions and attention of f32 operands; other dtypes know no difference.
 * F32: as f32 throughout; on a GPU a convolution of our own kernels is put together from three products of halves of
 * the operands' digits, which leaves about 3 * 2^-24 of each product.
 * TF32: on a GPU operands are rounded to 11 significant bits first (a relative error of up to 2^-11 each), sums are of
 * f32; several times as fast. The same as F32 on a CPU.
 * BF16: mixed precision, as torch.autocast. Operands are rounded to bf16 and the result is a bf16; sums within it are
 * of f32. Parameters, their gradients and the optimizer's state stay f32. What follows keeps the dtype of its
 * operands - elementwise operators and norms of bf16 give bf16, with an f32 besides f32 - but reductions, softmax,
 * log_softmax and losses of bf16 give f32. Pays where the machine multiplies bf16: see tn_set_precision.
 * F16: the same in f16, whose gradients would often be 0: tn_backward multiplies the loss by a factor, by which
 * tn_optim_step divides again (tn_loss_scaling in tensor_nn.h). */
typedef enum tn_precision {
    TN_PRECISION_F32,
    TN_PRECISION_TF32,
    TN_PRECISION_BF16,
    TN_PRECISION_F16
} tn_precision;
typedef enum tn_log_level { TN_LOG_ERROR = 1, TN_LOG_WARN, TN_LOG_INFO, TN_LOG_DEBUG } tn_log_level;

typedef struct tn_options {
    size_t size;           /* set by the macro: lets a newer library serve an older program */
    tn_device_kind device; /* TN_AUTO: TENSOR_DEVICE, else cuda where there is one, else cpu. TN_REF is the
                              slow f64 interpreter the tests compare with */
    tn_mode mode;          /* TN_MODE_AUTO: TENSOR_MODE, else fused */
    uint64_t seed;         /* of every random draw in the session */
    int threads;           /* 0: TENSOR_THREADS, else as many as the process may run on; 256 at most serve */
    const char *cache_dir; /* of compiled kernels. NULL: TENSOR_CACHE, else ~/.cache/libtensor */
    void (*log)(int level, const char *text, void *user); /* NULL: warnings and errors to stderr */
    void *log_user;
    tn_precision precision; /* TN_PRECISION_F32: TENSOR_PRECISION, else f32 */
    int gpu; /* with several: 1 is the second of those that CUDA_VISIBLE_DEVICES leaves. 0: that of
                TENSOR_DEVICE=cuda:N, else the first. Of MIG slices CUDA shows a process one: it is named there, MIG-.. */
    tn_comm_kind comm;
    int64_t memory_budget; /* bytes that the values of a training step may take together, as tn_plan_text says of the
                              arena: activations and gradients of them, not parameters, their gradients and moments.
                              0: any number. As much of forward as is needed for it is computed a second time for
                              backward, as between tn_checkpoint_begin and its end: the same training, but for the
                              order of sums, which may differ in a resumed run, too. The first steps may take more,
                              until it is known how much that is. Fused steps on a CPU or GPU; where a budget cannot be
                              met, the choice that takes least is kept to, no more than without, which a warning says
                              once. tn_explain tells what was reached */
} tn_options;

/* A new session, or NULL (the reason goes to the log). Close it with tn_close. */
TN_API tn_session *tn_open_with(const tn_options *options);
/* Frees everything; returns 0, or the status of the error the session still held. NULL is allowed. */
TN_API int tn_close(tn_session *s);

TN_FUNCTION(int, step_begin, tn_session *s);
TN_FUNCTION(int, step_end, tn_session *s); /* runs what is pending; the step's tensors die */
/* Of inference: what is made between the two - results of operators, and tensors of chapter 3 - goes at tn_scope_end,
 * and what was made before stays. Each operator runs at its call, as ever outside of steps; results can be read as often
 * as one likes. No gradient is kept, as after tn_no_grad_begin; tn_backward and tn_grad are TN_E_STATE. Parameters,
 * buffers and what tn_keep makes outlive it. Nests. In a step what is made lives until the step ends; a step that begins
 * in a scope ends what was made in that so far, tensors of chapter 3 too, as it ends all results outside of steps.
 * TN_E_STATE: an end without a begin, and a step that ends in between or has not ended; tn_scope_end also returns an
 * error that an operator has left before. Steps are faster where a request is like one before: their kernels reach
 * across operators. */
TN_FUNCTION(int, scope_begin, tn_session *s);
TN_FUNCTION(int, scope_end, tn_session *s);
TN_FUNCTION(int, flush, tn_session *s); /* runs what is pending now */
/* Waits until the device has done all that was run: a GPU works on while the program does. For who takes the time of a
 * step; a read waits by itself. An index that was found out of range meanwhile, or a GPU that failed, is the error. */
TN_API int tn_synchronize(tn_session *s);
TN_API const char *tn_device_name(const tn_session *s); /* "cpu", "ref", ... */
TN_API int tn_threads(const tn_session *s);
TN_API uint64_t tn_seed(const tn_session *s);

/* Several processes that run the same program are ranks: they share the data, and train one model (docs/distributed.md).
 * tn_rank: which this one is, from 0. tn_ranks: how many there are; 1 and rank 0 where this process stands alone, and
 * for NULL. As a step begins, parameters and buffers that are new take rank 0's values. All ranks record the same
 * steps; one that does not, an error of one of them, and one that is silent for TENSOR_COMM_TIMEOUT seconds, are errors of
 * all, and refuse the run. Random draws of a step differ from rank to rank, those outside of steps do not. */
TN_API int tn_rank(const tn_session *s);
TN_API int tn_ranks(const tn_session *s);

/* fn(arg) is called once by tn_close, before the tensors go; the newest first. */
TN_API int tn_on_close(tn_session *s, void (*fn)(void *arg), void *arg);
TN_API void *tn_on_close_arg(const tn_session *s, void (*fn)(void *arg)); /* what fn was registered with; NULL */

/* tn_op_begin and tn_op_end make one framework operator of the operators between them: in eager mode it runs as one,
 * with as few kernels as its dependences allow, and its inner results are not kept. `name` must outlive the session.
 * Nests. One that is still open where a step begins or ends is ended there, and is TN_E_STATE. Not around tn_backward
 * and tn_optim_step both: in eager mode the update may see gradients that are added after it. */
TN_FUNCTION(int, op_begin, tn_session *s, const char *name);
TN_FUNCTION(int, op_end, tn_session *s);

/* ---- 3 Making tensors ------------------------------------------------------------------------------ */

/* TN_SHAPE(2, 3) stands for the two arguments "ndim, shape"; TN_SCALAR for those of a 0-d tensor.
 * TN_AXES(0, -1) likewise for "naxes, axes", and TN_ALL for all axes. */
#define TN_SHAPE(...)                                                                                        \
    (int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
#define TN_SCALAR 0, (const int64_t *)0
#define TN_AXES(...) (int)(sizeof((const int[]){ __VA_ARGS__ }) / sizeof(int)), (const int[]) { __VA_ARGS__ }
#define TN_ALL 0, (const int *)0

/* Copies prod(shape) elements of host memory at the call. */
TN_OP(from, tn_session *s, const void *data, tn_dtype dtype, int ndim, const int64_t *shape);
/* Uses host memory in place (64-byte aligned memory serves best): it must stay unchanged until `release`
 * is called, which happens once, when the library no longer reads it. release may be NULL. */
TN_OP(borrow, tn_session *s, const void *data, tn_dtype dtype, int ndim, const int64_t *shape,
      void (*release)(void *data, void *user), void *user);
TN_OP(zeros, tn_session *s, tn_dtype dtype, int ndim, const int64_t *shape);
TN_OP(ones, tn_session *s, tn_dtype dtype, int ndim, const int64_t *shape);
/* An integer dtype takes value without its fraction, and one that it cannot hold is TN_E_ARG; u8 counts -1 to -255
 * back from 256, as in PyTorch. */
TN_OP(full, tn_session *s, double value, tn_dtype dtype, int ndim, const int64_t *shape);
TN_OP(arange, tn_session *s, double start, double end, double step, tn_dtype dtype); /* [start, end) */
TN_OP(eye, tn_session *s, int64_t n, tn_dtype dtype);                                /* [n, n] identity */
/* Philox4x32-10 under the session's seed; one draw per call, in program order, whatever the mode. A step that ends
 * with an error gives back the draws of what has not run, so that the step tried again draws the same.
 * rand: uniform in [0, 1), k * 2^-24. randn: standard normal (Box-Muller). f32 f16 bf16 f64, the last with no more
 * digits than f32. */
TN_OP(rand, tn_session *s, tn_dtype dtype, int ndim, const int64_t *shape);
TN_OP(randn, tn_session *s, tn_dtype dtype, int ndim, const int64_t *shape);
TN_OP(randint, tn_session *s, int64_t low, int64_t high, tn_dtype dtype, int ndim,
      const int64_t *shape); /* [low, high) */

/* ---- 4 Reading tensors -----------------------------------------------------------------------------
 *
 * What can be read when, in fused mode. Before anything of a step has run, each of its tensors: the first read
 * runs all that waits and has the value that it asks for kept. After a run: what that run was asked for, what no
 * operator had read by then (a loss, an accuracy), gradients, what was kept or watched, and persistent tensors.
 * Any other tensor is computed again, which takes its time anew, if nothing it depends on was assigned to since,
 * and is TN_E_NOT_KEPT if something was. tn_optim_step assigns to the parameters: once a read has run it, inner
 * values of the model can no longer be had, so call tn_keep on those to be looked at, before the first read; and
 * another tn_backward writes over gradients, so that values computed from them can no longer be had once it has run.
 * In eager mode a value stays; but a view of what was assigned to since (slice, transpose, detach), and a backward
 * that needs such an old value after another has run, are TN_E_NOT_KEPT as well. */

TN_API int tn_ndim(const tn_tensor *x);                    /* -1 for NULL or a dead handle */
TN_API int64_t tn_dim(const tn_tensor *x, int axis);       /* extent; -1 for a bad axis */
TN_API int64_t tn_numel(const tn_tensor *x);
TN_API tn_dtype tn_dtype_of(const tn_tensor *x);           /* TN_DTYPE_COUNT for a dead handle */
TN_API const char *tn_name(const tn_tensor *x);            /* "" when it has none */
TN_FUNCTION(int, set_name, tn_tensor *x, const char *name);    /* for errors, printing and generated kernels */
TN_API tn_session *tn_session_of(const tn_tensor *x);

TN_FUNCTION(double, item, tn_tensor *x); /* the value of a one-element tensor; NaN on error. Waits. */
/* Copies all elements, row-major, converted to `dtype`, into `out` (bytes must be exactly enough). Waits. */
TN_FUNCTION(int, read, tn_tensor *x, tn_dtype dtype, void *out, size_t bytes);
/* The newest finished value of a one-element tensor without waiting; NaN while there is none. Where operators
 * wait, the k-th call of a step answers with the value that the k-th call of the step before asked for. */
TN_API double tn_watch(tn_tensor *x);
/* For who shows values once the step is over. tn_watches: the calls of tn_watch in this step so far that wait for a
 * value, or whose value is on its way. tn_watched: what the i-th of those of the step that has ended, i from 0, has
 * come out as - on a device that runs later than it is told to, the newest value that has arrived; NaN: none. */
TN_API int tn_watches(const tn_session *s);
TN_API double tn_watched(tn_session *s, int i);
TN_FUNCTION(int, print, tn_tensor *x, FILE *out); /* shape, dtype, values (the middle of long axes as ...) */

/* ---- 5 to 10 Operators: tensor_ops.h --------------------------------------------------------------------- */

#include "tensor_ops.h"

/* ---- 11 Differentiation ---------------------------------------------------------------------------------- */

/* Gradients of a one-element loss for every tensor that requires one (parameters do). Two calls in a step add up, and
 * outside of steps all since the last one, which a warning says. Read them with tn_gradient until tn_step_end: one that
 * nobody has asked for when that runs the step need not be kept beyond its parameter's update (docs/design.md). A loss
 * that is infinite or NaN is no error and makes gradients like it, as in PyTorch, but in checked mode (TENSOR_CHECK=1):
 * there it is TN_E_NONFINITE, which says where the first such number came from, and later gradients and updates do not
 * take place. */
TN_FUNCTION(int, backward, tn_tensor *loss);
/* x's gradient by now, its mean over all ranks (tn_mean_over_ranks); NULL without an error when x has none. Ask again
 * after another tn_backward: a handle from before it may show the old sum or the new one. Behind an assignment to where
 * it stands (tn_param_slab) it is what was assigned, to which another tn_backward adds. */
TN_API tn_tensor *tn_gradient(tn_tensor *x);
/* d loss / d inputs[i] into grads[i] (NULL where loss does not depend on it, which the error of an operator that is
 * given it beside other tensors tells; one that is given nothing else has no session to tell). The results are
 * ordinary tensors and can be differentiated again. Of a parameter, and of what else tn_requires_grad was called on,
 * it is the sum over all values that the loss has read of it, those before an assignment too, as in tn_backward. Of an
 * operator's result, a view among them, it is what goes through that very result. Assignments pass no gradient on. */
TN_FUNCTION(int, grad, tn_tensor *loss, int n, tn_tensor *const *inputs, tn_tensor **grads);
/* Sets whether backward makes a gradient for x from now on: x is a parameter (false freezes it), another floating
 * tensor, or an operator's result that passes no gradient on (tn_randn, tn_detach). For a result that does pass
 * gradients on, as it is computed from tensors that require one, it is TN_E_STATE: tn_grad gives its gradient. x made
 * in a step has it for the rest of the step. */
TN_FUNCTION(int, requires_grad, tn_tensor *x, bool on);
TN_OP(detach, tn_tensor *x);                        /* the same value, no gradient through it */
/* From this call on, for a layer or two: F32, BF16 or F16. The session's own precision is that of tn_options. A session
 * of TF32 has that in F32's place. Returns 0, TN_E_NULL or TN_E_ARG. */
TN_API int tn_set_precision(tn_session *s, tn_precision precision);
TN_API tn_precision tn_get_precision(const tn_session *s); /* TN_PRECISION_F32 for NULL */
/* The mode of steps that begin from now on, TN_FUSED or TN_EAGER; in a step it is TN_E_STATE. */
TN_API int tn_set_mode(tn_session *s, tn_mode mode);
TN_API tn_mode tn_get_mode(const tn_session *s); /* TN_MODE_AUTO for NULL */
TN_API int tn_no_grad_begin(tn_session *s);         /* until tn_no_grad_end nothing is kept for backward; nests */
TN_FUNCTION(int, no_grad_end, tn_session *s);

/* What is recorded between the two is computed a second time for backward instead of being kept for it: a step takes
 * less memory and more time. Kept are the values that come from outside and go outside, so put a layer or a block
 * between them, as torch.utils.checkpoint does a function. It is the same training: random draws (tn_dropout) are drawn
 * again as they were, assignments (batch_norm's running statistics) take place once. Which operators share a kernel may
 * change, and with it the order of sums on a GPU, so that losses there agree but for rounding; on a CPU those of
 * transformers, convolutions and recurrences have been seen to agree to the bit. Nests; the outermost pair counts. Of
 * steps in fused mode; eager mode and tn_grad keep what they keep. TN_E_STATE: outside of a step, an end without a
 * begin, or a step that ends in between. */
TN_FUNCTION(int, checkpoint_begin, tn_session *s);
TN_FUNCTION(int, checkpoint_end, tn_session *s);

/* Compares the gradients of f (a scalar function of the n f64 tensors xs) with central differences:
 * 0, or TN_E_GRAD with the first element that differs in tn_error_text. tolerance 0 means 1e-6, relative to
 * 1 + the difference. Call it outside a step, with persistent tensors; each evaluation is a step. */
enum { TN_GRADCHECK_MAX = 16 }; /* inputs */
typedef tn_tensor *tn_gradcheck_fn(tn_session *s, tn_tensor *const *xs, void *user);
TN_FUNCTION(int, gradcheck, tn_session *s, tn_gradcheck_fn *f, int n, tn_tensor *const *xs, void *user, double tolerance);

/* ---- 12 State -------------------------------------------------------------------------------------------- */

/* A trainable tensor: copies `init` into the session's parameter slab and returns the persistent handle. A
 * persistent init is taken over: its handle is freed.
 * The name ("fc.weight") must be new. f32 or f64. */
TN_API tn_tensor *tn_param(tn_session *s, const char *name, tn_tensor *init);
TN_API tn_tensor *tn_param_new_at(tn_session *s, const char *name, tn_tensor *init, const char *file, int line);
/* A persistent named tensor without gradient (running statistics); saved in checkpoints. */
TN_API tn_tensor *tn_buffer(tn_session *s, const char *name, tn_tensor *init);
TN_API tn_tensor *tn_buffer_new_at(tn_session *s, const char *name, tn_tensor *init, const char *file, int line);
/* For a function that makes several and cannot make the last of them: those made since there were `params`
 * and `buffers` of them go, and their names are free. No optimizer may know them yet. Also after an error. */
TN_API void tn_take_back(tn_session *s, int params, int buffers);
/* A persistent copy of x as it is now, to be read in this step or later whatever is assigned meanwhile. Free it
 * with tn_free. In a step in fused mode it does not run anything, but says that the value be kept by the run to
 * come: after that run it is too late where a parameter x depends on has been updated (TN_E_NOT_KEPT). */
TN_OP(keep, tn_tensor *x);
/* A persistent tensor - made outside of steps, by tn_keep, tn_buffer or tn_param_range - is freed, and so is an
 * operator's result outside of a step: its memory is free at once, unless a backward to come may read it or a view
 * of it is held; results computed from it stay. Left alone are NULL, tensors of a step, which end with it, results
 * within tn_op_begin and tn_op_end, gradients, and tensors that are freed already or that tn_param took over. A
 * parameter belongs to the session, whose optimizers and checkpoints know it, and lives until tn_close: it is not
 * freed, which a warning says once, and in checked mode (TENSOR_CHECK=1) the error TN_E_STATE. */
TN_FUNCTION(void, free, tn_tensor *x);
/* target (persistent) takes source's value, same shape; operators recorded before still see the old one. For a view
 * of it that is still held and that no operator has read, and for a backward that may read the old value - so where a
 * parameter is assigned to twice in a step -, that is copied, for which in fused mode what waits is run first, where
 * something does. As after any run, values that it did not keep and that depend on what has been assigned to cannot be
 * read then (TN_E_NOT_KEPT), nor can views that an operator has read, source among them: tn_keep them before. */
TN_FUNCTION(int, assign, tn_tensor *target, tn_tensor *source);
/* target's lines index[0], index[1], .. along an axis become source's, and no others are touched: target (persistent,
 * dense) [.., lines, ..], index [k], source [.., k, ..]. Of a line that is named twice the last one stays. */
TN_FUNCTION(int, assign_rows, tn_tensor *target, int axis, tn_tensor *index, tn_tensor *source);
/* Runs what waits if an assignment to come might have to, as tn_assign says: with this before the first of several
 * assignments, as tn_optim_step does it, they take effect together. 0 or the session's error. */
TN_API int tn_make_room(tn_session *s);

/* All parameters of one dtype stand in one row of memory, and so do their gradients, in the same places: a flat tensor
 * each, persistent, owned by the session. A parameter is the `count` elements from `first`; between two of them are up
 * to 63 elements that are zero in both. Assigning to the whole assigns to each, and to those between them, which it has
 * to leave 0: norms and updates go over the whole. Of a parameter that has no gradient in this step (tn_has_gradient)
 * the gradients hold what an earlier step has left there, which updates do not look at: leave such elements out of sums
 * over the whole, as of a norm. */
TN_FUNCTION(int, param_slab, tn_session *s, tn_dtype dtype, tn_tensor **values, tn_tensor **gradients);
TN_API int tn_param_segment(const tn_tensor *param, int64_t *first, int64_t *count);
TN_API bool tn_has_gradient(const tn_tensor *param); /* written by a tn_backward of this step */
TN_API bool tn_wants_gradient(const tn_tensor *x);   /* as tn_requires_grad left it */
/* Two persistent tensors over a part of the slab, [blocks, 64] from element 64 * first_block on: values and the
 * gradients beside them. Assigning to them assigns to the parameters there. Free each with tn_free. */
TN_FUNCTION(int, param_range, tn_session *s, tn_dtype dtype, int64_t first_block, int64_t blocks, tn_tensor **values,
      tn_tensor **gradients);

TN_API int tn_param_count(const tn_session *s);
TN_API tn_tensor *tn_param_at(const tn_session *s, int i);   /* in order of creation; NULL past the end */
TN_API int tn_buffer_count(const tn_session *s);
TN_API tn_tensor *tn_buffer_at(const tn_session *s, int i);
TN_API tn_tensor *tn_find(const tn_session *s, const char *name); /* parameter or buffer, NULL when none */

TN_API int tn_train(tn_session *s, bool on); /* training (the default) or evaluation, from the next call on */
TN_API bool tn_is_training(const tn_session *s);
/* The number the next random operator will use; part of a checkpoint. tn_set_rng is for between steps: in one, another
 * seed runs what waits first, and a value drawn before that is needed again, such as dropout's mask in backward, is
 * TN_E_STATE. */
TN_API uint64_t tn_rng_draw(const tn_session *s);
TN_API int tn_set_rng(tn_session *s, uint64_t seed, uint64_t draw);

/* ---- 14 What was done: tensor_report.h ---------------------------------------------------------------- */

#include "tensor_report.h"

/* ---- 15 Operators of one's own: tensor_own.h ------------------------------------------------------------ */

#include "tensor_own.h"

#ifdef __cplusplus
}
#endif

/* ---- 13 Call-site macros --------------------------------------------------------------------------------
 *
 *   tn_relu(x)                       -> tn_relu_at(x, __FILE__, __LINE__)
 *   tn_conv2d(x, w, NULL, .pad = 1)  -> tn_conv2d_at(x, w, NULL, &(tn_conv2d_options){ .pad = 1 }, ...)
 *   tn_mul_scalar(x, 2)              -> an integer 2 (an integer tensor stays one); 2.0 a floating one
 *
 * In C a call notes where it stands, and options are named; define TN_NO_MACROS to call the functions themselves.
 * Without the macros (C++, or through a pointer) every function works as declared. tensor_macros.h has one for each
 * function that TN_OP, TN_FUNCTION and TN_NEW declare in these headers, and is made of them when the library is built. */
#if !defined(__cplusplus) && !defined(TN_NO_MACROS)
#define TN_CALL1_(fn, opt, a, ...)             fn(a, &(const opt){__VA_ARGS__}, __FILE__, __LINE__)
#define TN_CALL2_(fn, opt, a, b, ...)          fn(a, b, &(const opt){__VA_ARGS__}, __FILE__, __LINE__)
#define TN_CALL3_(fn, opt, a, b, c, ...)       fn(a, b, c, &(const opt){__VA_ARGS__}, __FILE__, __LINE__)
#define TN_CALL4_(fn, opt, a, b, c, d, ...)    fn(a, b, c, d, &(const opt){__VA_ARGS__}, __FILE__, __LINE__)
#define TN_CALL5_(fn, opt, a, b, c, d, e, ...) fn(a, b, c, d, e, &(const opt){__VA_ARGS__}, __FILE__, __LINE__)
#define TN_NUMBER(v)                                                                                         \
    _Generic((v), float: tn_number_f, double: tn_number_f, long double: tn_number_f, tn_number: tn_number_as_is, \
             default: tn_number_i)(v)
#define tn_open(...)   tn_open_with(&(tn_options){.size = sizeof(tn_options), __VA_ARGS__})
#define tn_param(...)  tn_param_new_at(__VA_ARGS__, __FILE__, __LINE__) /* tn_param_at is another function */
#define tn_buffer(...) tn_buffer_new_at(__VA_ARGS__, __FILE__, __LINE__)
#include "tensor_macros.h"
#endif

#endif
