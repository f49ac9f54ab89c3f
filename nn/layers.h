/* layers.h - what layers.c and attention.c share: naming and drawing parameters. */
#ifndef TN_LAYERS_H
#define TN_LAYERS_H

#include "nn.h"

/* The parameter (or buffer) "layer.part"; NULL when init is or the name is taken. */
tn_tensor *tn_nn_named(tn_session *s, const char *op, const char *file, int line, const char *layer,
                       const char *part, tn_tensor *init, bool trained);
/* What a layer that cannot be made whole gives back: parameters and buffers from here on. */
typedef struct tn_nn_mark {
    int params, buffers;
} tn_nn_mark;
static inline tn_nn_mark tn_nn_begin(const tn_session *s)
{
    return (tn_nn_mark){tn_param_count(s), tn_buffer_count(s)};
}
/* Whether the layer is whole; else nothing of it stays. */
static inline bool tn_nn_whole(tn_session *s, tn_nn_mark from, bool whole)
{
    if (!whole) tn_take_back(s, from.params, from.buffers);
    return whole;
}
/* f32 [n], all of them `value`; this one and those below are NULL where an earlier part has failed. */
tn_tensor *tn_nn_full(tn_session *s, double value, int64_t n, const char *file, int line);
/* f32, uniform in [-bound, bound). */
tn_tensor *tn_nn_uniform(tn_session *s, double bound, int ndim, const int64_t *shape, const char *file,
                         int line);
/* f32, N(0, std^2). */
tn_tensor *tn_nn_normal(tn_session *s, double std, int ndim, const int64_t *shape, const char *file,
                        int line);
/* "layer 'fc'" from a parameter "fc.weight" of it; "the layer" where it has none. */
const char *tn_nn_layer(const tn_tensor *part, char *out, size_t size);
/* Whether a layer may be made; reports "'fc' needs <what is wanted, and what was given>" where not ok. */
bool tn_nn_check(tn_session *s, const char *op, const char *name, bool ok, const char *file, int line,
                 const char *fmt, ...) __attribute__((format(printf, 7, 8)));

#endif
