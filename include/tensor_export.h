/* tensor_export.h - libtensor: a forward pass, or a whole training step, as one file of C, or of CUDA C++, that needs nothing.
 *
 *     tn_export_begin(s, "model.c");
 *     tn_step_begin(s);
 *     tn_tensor *x = tn_from(s, pixels, TN_F32, TN_SHAPE(1, 28, 28, 1)), *y = forward(&net, x);
 *     tn_export_input(x, "image");
 *     tn_export_output(y, "logits");
 *     tn_step_end(s);
 *     tn_export_end(s);
 *
 * writes model.c, and beside it model.h with what it offers:
 *
 *     typedef struct model model;                         parameters, buffers and scratch: all there is
 *     size_t model_bytes(void);                           sizeof(model)
 *     void model_init(model *m);                          as the session was at tn_export_end
 *     int model_forward(model *m, const float *image, float *logits);
 *     int64_t model_get(const model *m, const char *name, float *to, int64_t room);   (f32 ones)
 *
 * and of a step that assigns to parameters, in the place of model_forward,
 *
 *     float model_step(model *m, const float *image, const int32_t *label);    the loss: the first output of one f32
 *     int64_t model_set(model *m, const char *name, const float *from, int64_t count);
 *     size_t model_save(const model *m, void *to, size_t room);                a checkpoint for tn_load
 *
 * The name is that of the file. The file is C99 and includes what gives integers and sizes their types, and no more: no
 * library, no libm, no memory of its own. Each kernel of the plan is a function whose comment names the calls it came
 * of. All that changes is in the struct, so that several can be in use at once, each by one thread. Dropout, running
 * statistics and the optimizer's moments and counts go on from where the session was, and come back: model_save gives
 * the bytes of what tn_save would write by then, of which up to `room` go to `to` - all of them where room is at
 * least what it returns -, and tn_load takes them from a file. Learning rate and positions of data sets in it are
 * those of the export. There is
 * such a function where an optimizer of tensor_nn.h makes the update, and the processor is a little-endian one.
 *
 * model_forward gives 0, and model_step the loss. Where a pointer is NULL or not aligned for its type, or an index (a
 * label, a token) is out of range, model_forward gives 1 and model_step a NaN; no parameter has changed then, outputs
 * may have. Numbers are those of the session's kernels; products are summed in another order.
 *
 * The next call of the function is this step once more: numbers of the program that it passes to operators are
 * constants of the file. The learning rate is one, too, times m->rate, which is 1 at first and the caller's to change.
 *
 * The weights of a forward pass can be held in fewer bits (tn_export_options); what a call computes stays f32.
 *
 * For a GPU: where the path ends in .cu the file is CUDA C++, of the kernels that the session's device compiles, and needs
 * CUDA's runtime alone. The session is on a GPU, or on one that is planned for and not there (TENSOR_DEVICE=cuda:h100),
 * whose file has no values in it. The struct lies in the memory of the GPU, and the functions launch on a stream:
 *
 *     model *m;
 *     cudaMalloc((void **)&m, model_bytes());
 *     cudaError_t model_init(model *m, cudaStream_t stream);
 *     cudaError_t model_step(model *m, const float *image, const int32_t *label, float *loss, cudaStream_t stream);
 *     int model_wait(model *m, cudaStream_t stream);       1: an index was out of range; no parameter has changed since
 *     cudaError_t model_rate(model *m, double rate, cudaStream_t stream);    (model_step's)
 *     int64_t model_get(..., cudaStream_t stream);         and _set and _save, to and from the host
 *
 * with pointers of the GPU. model_init, _step, _forward and _rate wait for nothing, so that a step can be captured in a
 * graph. Products are a kernel of ours, which is slower than a library; elements of f16 and bf16 are uint16_t.
 *
 * What a session can run in fused mode can be exported, but for: in C elements of f16 and bf16, products and convolutions
 * of anything but f32, and functions (exp, sin, ..) of f64; SGD with momentum, Adagrad and averages of weights (tn_ema),
 * optimizers with .accumulate, and those whose parameters have had different numbers of updates; more than 32 inputs and
 * outputs together; and steps of which a value is read before their end. Each is an error that says so. */
#ifndef TENSOR_EXPORT_H
#define TENSOR_EXPORT_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a forward pass holds its weights: those f32 parameters that are the second operand of products and the windows of
 * convolutions, and nothing else. They are rounded as they are after training; functions take them apart again, block
 * by block, and compute in f32. Biases, norms and tables of an embedding stay f32. */
typedef enum tn_export_weights {
    TN_EXPORT_F32,
    TN_EXPORT_F16,
    TN_EXPORT_BF16,
    TN_EXPORT_INT8 /* q in [-127, 127], w = q scale, with a scale for each output: the largest |w| of its weights / 127 */
} tn_export_weights;

typedef struct tn_export_options {
    tn_export_weights weights;
    /* tn_export_end gives the session's parameters the rounded values, too, so that from then on the session computes
     * what the file does, and tn_evaluate before and after tells what the rounding costs. */
    bool round;
    /* Beside NAME.c and NAME.h there is NAME_threads.c (C99 with gcc's atomic functions, and POSIX threads), with
     *     int model_threads(model *m, int count);
     * from which on calls with m are computed by so many threads, to the same bits by any number. NAME.c needs nothing
     * as before, and goes without that file, and a NAME.cu has none; the gradients of convolutions take more memory. */
    bool threads;
    size_t size;
} tn_export_options;

/* The next step is written to `path`, whose last part is NAME.c or NAME.cu with NAME an identifier that C and such
 * files leave free, and to NAME.h beside it; options NULL, or tn_export_begin(s, path): weights as f32. TN_E_STATE inside
 * a step, in eager mode, where an export was begun already, or a session on a CPU is to write a .cu; TN_E_ARG for such a
 * path, or weights that are none of those above. What opens NAME.c tells of each rounded weight its bytes and how far it
 * is off. */
TN_FUNCTION(int, export_begin_with, tn_session *s, const char *path, const tn_export_options *options);

/* Inside that step: x, which holds data already (a batch's x or y, tn_from), is a parameter of the function, with this
 * name; the order of the calls is that of the parameters. Outside of an export it does nothing. TN_E_ARG where x was
 * computed in this step, or name is no identifier, a word of C, or one that the file has itself. Data that are read and
 * not named become constants of the file. */
TN_API int tn_export_input(tn_tensor *x, const char *name);

/* x is what the function is called for: behind the inputs a pointer to its elements, or what model_step returns. Only
 * what an output or an assignment needs is in the file. */
TN_API int tn_export_output(tn_tensor *x, const char *name);

/* Writes the files, each whole or not at all; a file does not compile beside the .h of another export. 0, or a
 * status, which is also set in the session: TN_E_STATE where no step has run since tn_export_begin, or one did in
 * several parts; TN_E_UNSUPPORTED, also of a training step whose weights are to be rounded, or of weights that are not
 * finite or too large for f16; TN_E_IO, TN_E_NOMEM. */
TN_API int tn_export_end(tn_session *s);

/* For optimizers. x is the result of tn_mul_scalar, called in this step, with a number that is different in each:
 * c (1 - base^t)^exponent, t being the count of updates, this one included; exponent -1 or -0.5. base 0: always c.
 * rate: c is proportional to the learning rate. */
TN_API void tn_export_number(tn_tensor *x, bool rate, double base, double exponent, double t);

/* For who saves training runs. In the step that is exported: `tell` is asked once by tn_export_end of a step that
 * assigns to parameters. Returns 1 there, 0 outside of an export and -1 behind that step. `tell` calls the other three:
 * with the text that a checkpoint begins with, of which 20 digits behind "draw":" are the random numbers drawn by then,
 * and in order with what follows: `count` elements of x from `first` on, or an i64, which is one more after each step of
 * the file where it counts them. */
TN_API int tn_export_checkpoint(tn_session *s, int (*tell)(tn_session *s));
TN_API int tn_export_saved(tn_session *s, const char *text, size_t bytes);
TN_API int tn_export_saved_tensor(tn_tensor *x, int64_t first, int64_t count);
TN_API int tn_export_saved_number(tn_session *s, int64_t number, bool counts);

/* For who knows that this step is not what the next one will be: an export of it fails with TN_E_UNSUPPORTED and the
 * text "export: who: why". Outside of an export it does nothing. */
TN_API void tn_export_refuse(tn_session *s, const char *who, const char *why);

#ifdef __cplusplus
}
#endif

#endif
