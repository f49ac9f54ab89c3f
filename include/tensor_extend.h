/* tensor_extend.h - libtensor: for code built on top of the library, such as its own layers, optimizers and
 * readers of data, which take what they need from these headers alone.
 *
 * <tensor.h> has most of it: tn_fail and tn_warn, tn_on_close for what belongs to a session, tn_op_begin for what
 * is to be one operator, TN_OP and TN_FUNCTION for declaring it. Here are the other half of TN_FUNCTION, memory of
 * the host, numbers as text, and files that are whole.
 */
#ifndef TENSOR_EXTEND_H
#define TENSOR_EXTEND_H

#include <stdarg.h>

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the caller's line ---- */

/* Begins the definition of tn_NAME, and defines tn_NAME_at, both as TN_FUNCTION or TN_OP have declared them: what goes
 * wrong inside tn_NAME_at names the caller's line, and so do the calls that are recorded. `session` is where errors go;
 * it may use the parameters, and be NULL.
 *
 *     TN_DEFINE(int, save, s, (s, path), tn_session *s, const char *path)
 *     {
 *         if (!s) return TN_E_NULL;
 *         ..
 *     } */
#define TN_DEFINE(type, name, session, args, ...)                                                            \
    TN_PLACED(type, name, session, args, __VA_ARGS__)                                                        \
    type(tn_##name)(__VA_ARGS__)
/* tn_NAME_at alone. */
#define TN_PLACED(type, name, session, args, ...)                                                            \
    type tn_##name##_at(__VA_ARGS__, const char *file, int line)                                             \
    {                                                                                                        \
        tn_session *placed = (session);                                                                      \
        tn_place_begin(placed, file, line);                                                                  \
        type result = (tn_##name)args;                                                                       \
        tn_place_end(placed);                                                                                \
        return result;                                                                                       \
    }

/* ---- loss scaling ---- */

/* In a session that computes in f16, tn_backward begins at fn(loss, arg) from now on. */
TN_API void tn_on_backward(tn_session *s, tn_tensor *(*fn)(tn_tensor *loss, void *arg), void *arg);
TN_API bool tn_uses_f16(const tn_session *s); /* it was opened with, or has been set to, TN_PRECISION_F16 */
TN_API bool tn_in_step(const tn_session *s);  /* between tn_step_begin and tn_step_end */

/* ---- memory of the host ---- */

/* As malloc, calloc, realloc and free, through which all of the library's own memory goes. NULL where there is
 * none; nothing is reported. No bytes are a pointer, too; where tn_realloc fails, p stays valid; tn_free_mem takes
 * NULL. What one of them gave goes to tn_free_mem, not to free. */
TN_API void *tn_malloc(size_t bytes);
TN_API void *tn_calloc(size_t n, size_t size);
TN_API void *tn_realloc(void *p, size_t bytes);
TN_API void tn_free_mem(void *p);

/* ---- the environment ---- */

/* What an environment variable is set to; NULL where it is not set, or empty. It is the library's only way to look at the
 * environment, and NULL for every variable in a program with rights that its caller lacks (set-user-id). */
TN_API const char *tn_setting(const char *name);

/* What this rank's items count for in means over ranks of gradients and statistics from now on: how many of the batch's it
 * has, by what each has on the mean. 1 at first, and where all have as many. A loader says it with each batch, and 1 as
 * it ends. */
TN_API void tn_weigh_rank(tn_session *s, double weight);
TN_API double tn_rank_weight(const tn_session *s);
/* How many of `lines` lines fall to this rank, and from which on: from lines * r / ranks to lines * (r + 1) / ranks to
 * rank r. first may be NULL. */
TN_API int64_t tn_rank_share(const tn_session *s, int64_t lines, int64_t *first);
/* The mean over ranks of x [lines, ..], f32 or f64, and of it this rank's share of the lines, to the bit what
 * tn_mean_over_ranks has there. Another dtype, or no axis, is TN_E_SHAPE. */
TN_API tn_tensor *tn_reduce_scatter(tn_tensor *x);
/* Of x [tn_rank_share(lines), ..] on each rank the whole, [lines, ..]. Other shapes are TN_E_SHAPE. What a step gathers
 * behind its last mean is taken to be what all have agreed on: an error in between is one of all ranks still, but
 * what it has assigned stays. Of both, x itself where there is one rank, and no gradient passes. */
TN_API tn_tensor *tn_all_gather(tn_tensor *x, int64_t lines);
/* tn_gradient of this rank's items alone. */
TN_API tn_tensor *tn_own_gradient(tn_tensor *x);
/* For an optimizer: the gradient of a large parameter, where this step's update can read it as it is made. Nobody
 * else may: it is kept only if it is also asked for by tn_gradient. NULL where it is small, has run, or has to stand in
 * the slab (tn_param_range): in eager mode, among ranks, on a GPU, in checked mode, in a step that is exported. */
TN_API tn_tensor *tn_update_gradient(tn_tensor *param);
/* A persistent tensor over the elements of another one that is dense, from `first` on; free it with tn_free. NULL (with an
 * error) where these are not all in it. */
TN_API tn_tensor *tn_window(tn_tensor *persistent, int64_t first, int ndim, const int64_t *shape);
/* Whether all ranks call this with one text, as "batches of 8 of 1000 items": 0, or TN_E_COMM on all of them, with the first
 * two that differ. op: who asks. */
TN_API int tn_same_on_ranks(tn_session *s, const char *op, const char *text);

/* ---- numbers as text ---- */

/* As the functions of <stdio.h> and <stdlib.h> of these names, with a point in numbers whatever locale the program
 * has set: in many, 0.5 is 0,5, which is no number in a file that goes elsewhere. */
TN_API int tn_snprintf(char *out, size_t n, const char *format, ...) TN_FORMAT(3, 4);
TN_API int tn_vsnprintf(char *out, size_t n, const char *format, va_list args) TN_FORMAT(3, 0);
TN_API double tn_strtod(const char *text, char **end);

/* ---- whole files ---- */

/* Makes the file `path` of what `write` writes to f: under a temporary name (path.RANDOM.part) first, then synced and
 * renamed, so that the file is there whole, or as it was. What a process that was killed meanwhile left there goes
 * with the next call. A file that is replaced gives its permissions to the new one; through a symbolic link the file
 * it leads to is replaced, unless the link is another user's.
 *
 * 0 if all went well. What `write` returned, if not 0. TN_E_IO where something could not be written, or what stands
 * at `path` is no regular file, such as a folder or a FIFO; TN_E_ARG where the name is too long. *why is then the
 * reason, a text that need not be freed ("No space left on device"); where `write` returned TN_E_IO, that of errno.
 * No session is told. */
TN_API int tn_write_whole(const char *path, int (*write)(FILE *f, void *user), void *user, const char **why);

#ifdef __cplusplus
}
#endif

#endif
